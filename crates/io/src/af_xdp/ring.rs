//! The rings that a socket shares with the kernel: one side writes entries and counts them, the other reads
//! them and counts those.
//!
//! Counts are of 32 bits and wrap around; an entry's place is its count modulo the size, a power of two. Each
//! side writes its own count only, behind what it did to entries, and looks at the other's only when what it
//! knows of it doesn't suffice.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// The writer of a ring's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// This program writes, the kernel reads: fill and transmit rings.
    Writes,
    /// The kernel writes, this program reads: receive and completion rings.
    Reads,
}

/// Counts of a ring, as one side knows them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    side: Side,
    size: u32,
    /// Entries that this side is done with.
    mine: u32,
    /// Entries that the other side was done with when it was last looked at.
    theirs: u32,
}

impl Counts {
    pub(super) fn new(side: Side, size: u32, mine: u32, theirs: u32) -> Self {
        Self { side, size, mine, theirs }
    }

    /// Entries that this side can do something with: places that are free, or entries to read.
    pub(super) fn usable(&self) -> u32 {
        match self.side {
            Side::Writes => self.size - self.mine.wrapping_sub(self.theirs),
            Side::Reads => self.theirs.wrapping_sub(self.mine),
        }
    }

    /// The place of the next entry, which is done with then; none where none is usable.
    pub(super) fn next(&mut self) -> Option<u32> {
        let place = self.after(0)?;
        self.mine = self.mine.wrapping_add(1);
        Some(place)
    }

    /// The place of the entry that comes so many behind the next one; none where that is not usable.
    pub(super) fn after(&self, entries: u32) -> Option<u32> {
        (entries < self.usable()).then(|| self.mine.wrapping_add(entries) & (self.size - 1))
    }
}

/// Offsets of the parts of a ring in its mapping, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) producer: usize,
    pub(super) consumer: usize,
    pub(super) flags: usize,
    pub(super) entries: usize,
}

impl From<libc::xdp_ring_offset> for Layout {
    fn from(at: libc::xdp_ring_offset) -> Self {
        Self {
            producer: at.producer as usize,
            consumer: at.consumer as usize,
            flags: at.flags as usize,
            entries: at.desc as usize,
        }
    }
}

/// Values that a ring may have: plain numbers, of which any bytes are one.
///
/// # Safety
/// That is so.
pub(super) unsafe trait Entry: Copy {}

// SAFETY: a number.
unsafe impl Entry for u64 {}
// SAFETY: numbers.
unsafe impl Entry for libc::xdp_desc {}

/// One side of a ring.
#[derive(Debug)]
pub(super) struct Ring<T> {
    memory: NonNull<u8>,
    /// Bytes of the mapping; 0 where it is somebody else's.
    mapped: usize,
    layout: Layout,
    counts: Counts,
    entry: std::marker::PhantomData<T>,
}

// SAFETY: this side of the ring is this value's alone; the other side is the kernel's, and both keep to the
// counts, which are read and written as atomics.
unsafe impl<T: Entry> Send for Ring<T> {}

impl<T: Entry> Ring<T> {
    /// Maps a ring of `size` entries of a socket, `offset` being that of its kind.
    pub(super) fn map(
        socket: BorrowedFd<'_>,
        offset: u64,
        layout: Layout,
        side: Side,
        size: u32,
    ) -> io::Result<Self> {
        let bytes = layout.entries + size as usize * size_of::<T>();
        let Some(len) = NonZeroUsize::new(bytes) else { return Err(io::ErrorKind::InvalidInput.into()) };
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of this program.
        let memory = unsafe { mmap(std::ptr::null_mut(), len.get(), access, flags, socket, offset) }?;
        let memory = NonNull::new(memory.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: so many bytes were just mapped, which the kernel laid out so, and `drop` takes them away.
        let mut ring = unsafe { Self::over(memory, layout, side, size) };
        ring.mapped = bytes;
        Ok(ring)
    }

    /// A ring that lies here.
    ///
    /// # Safety
    /// As long as the ring is there, so is the memory: `size` entries (a power of two) from where the layout
    /// says, and the counts and the flags, each aligned. No other value has this side of it.
    unsafe fn over(memory: NonNull<u8>, layout: Layout, side: Side, size: u32) -> Self {
        let counts = Counts::new(side, size, 0, 0);
        let mut ring = Self { memory, mapped: 0, layout, counts, entry: std::marker::PhantomData };
        ring.counts.mine = ring.word(ring.own()).load(Ordering::Relaxed);
        ring.look();
        ring
    }

    fn own(&self) -> usize {
        if self.counts.side == Side::Writes { self.layout.producer } else { self.layout.consumer }
    }

    fn other(&self) -> usize {
        if self.counts.side == Side::Writes { self.layout.consumer } else { self.layout.producer }
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: the offsets are those of the layout, aligned words in the memory, which lives as long as
        // `self`, and which the kernel too reads and writes as a whole.
        unsafe { AtomicU32::from_ptr(self.memory.add(at).as_ptr().cast()) }
    }

    /// Looks how far the other side is.
    fn look(&mut self) {
        self.counts.theirs = self.word(self.other()).load(Ordering::Acquire);
    }

    /// Entries that can be written, or read, up to `wanted`: the other side is looked at only if it takes
    /// that.
    pub(super) fn usable(&mut self, wanted: u32) -> u32 {
        if self.counts.usable() < wanted {
            self.look();
        }
        self.counts.usable().min(wanted)
    }

    /// Entries that the other side has written and this one has not read.
    pub(super) fn waiting(&self) -> u32 {
        self.word(self.other()).load(Ordering::Relaxed).wrapping_sub(self.counts.mine)
    }

    /// Entries of a ring written here that the kernel has not read yet.
    pub(super) fn unread(&mut self) -> u32 {
        self.look();
        self.counts.size - self.counts.usable()
    }

    fn entry(&self, place: u32) -> NonNull<T> {
        // SAFETY: places are below the size, so that the entry lies in the memory.
        unsafe { self.memory.add(self.layout.entries).cast::<T>().add(place as usize) }
    }

    /// Writes the next entry; false where there is no room. Only [`Ring::publish`] shows it to the other
    /// side.
    pub(super) fn push(&mut self, value: T) -> bool {
        let Some(place) = self.counts.next() else { return false };
        // SAFETY: the entry is this side's until its count is published.
        unsafe { self.entry(place).write(value) };
        true
    }

    /// The entry that was written so many ago, 1 being the newest, whether the kernel has read it or not;
    /// none where its place has another one by now.
    pub(super) fn written(&self, ago: u32) -> Option<T> {
        let Counts { side, size, mine, .. } = self.counts;
        if side != Side::Writes || ago == 0 || ago > size {
            return None;
        }
        // SAFETY: only this side writes entries of such a ring, which are plain numbers.
        Some(unsafe { self.entry(mine.wrapping_sub(ago) & (size - 1)).read() })
    }

    /// Reads the next entry. Only [`Ring::publish`] gives its place back to the other side.
    pub(super) fn pop(&mut self) -> Option<T> {
        let place = self.counts.next()?;
        // SAFETY: the other side wrote the entry before it counted it, and leaves it alone until it is given
        // back.
        Some(unsafe { self.entry(place).read() })
    }

    /// Reads the entry that comes so many behind the next one, which stays there.
    pub(super) fn peek(&self, entries: u32) -> Option<T> {
        let place = self.counts.after(entries)?;
        // SAFETY: as in `pop`.
        Some(unsafe { self.entry(place).read() })
    }

    /// Tells the other side how far this one is.
    pub(super) fn publish(&self) {
        self.word(self.own()).store(self.counts.mine, Ordering::Release);
    }

    /// Returns true if the kernel goes on only when it is called.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.word(self.layout.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        if self.mapped > 0 {
            // SAFETY: the mapping was made by `map` with this length, and nothing borrows from it any more.
            let _ = unsafe { munmap(self.memory.as_ptr().cast(), self.mapped) };
        }
    }
}

#[cfg(test)]
mod tests;
