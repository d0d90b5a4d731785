//! Memory as the system maps it.

use core::iter;
use core::ops::Range;
use core::ptr::{NonNull, without_provenance_mut};
use std::ffi::c_void;

use rustix::mm::{
    Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mprotect, mremap,
    munmap,
};

use super::ALIGNED;
use crate::pool::MOST;

/// Bytes of a window beside adopted memory: the first of them that there are addresses for.
const BESIDE: [usize; 4] = [16 << 30, 4 << 30, 1 << 30, 256 << 20];
const FLAGS: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);

/// Makes a range longer, here or elsewhere; returns where it is, unless the system has no room.
///
/// # Safety
/// The `old` bytes from `start` on are what this returned, or none; nobody uses them while this works, nor
/// the old addresses afterwards.
pub(super) unsafe fn grow(start: NonNull<u8>, old: usize, len: usize) -> Option<NonNull<u8>> {
    // SAFETY: the caller's promise.
    unsafe { move_to_room_for(start, old, len).or_else(|| remap(start, old, len)) }
}

/// Makes the range longer, where it is or anywhere else.
///
/// # Safety
/// That of [`grow`].
unsafe fn remap(start: NonNull<u8>, old: usize, len: usize) -> Option<NonNull<u8>> {
    if old == 0 {
        return None;
    }
    // SAFETY: the range is the caller's; nobody has a reference into it. A new place is one where nothing is.
    let place = unsafe { mremap(start.as_ptr().cast(), old, len, MremapFlags::MAYMOVE) }.ok()?;
    NonNull::new(place.cast())
}

/// Moves the range to where it can be longer.
///
/// # Safety
/// That of [`grow`].
unsafe fn move_to_room_for(start: NonNull<u8>, old: usize, len: usize) -> Option<NonNull<u8>> {
    let place = aligned(len, 0)?;
    // SAFETY: the old range is the caller's; nobody has a reference into it. The new one was just made, and
    // nobody else knows of it.
    let done = unsafe {
        if old == 0 {
            let both = ProtFlags::READ | ProtFlags::WRITE;
            mmap_anonymous(place.as_ptr().cast(), len, both, FLAGS | MapFlags::FIXED).is_ok()
        } else {
            move_to(start, old, place, len)
        }
    };
    if !done {
        // SAFETY: the mapping just made, all of it; nobody has used it.
        let _ = unsafe { munmap(place.as_ptr().cast(), len) };
        return None;
    }
    // SAFETY: advice leaves contents and validity as they are.
    let _ = unsafe { madvise(place.as_ptr().cast(), len, Advice::LinuxHugepage) };
    Some(place)
}

/// Moves pages over what is mapped at `place`.
///
/// # Safety
/// Both ranges are the caller's, and nobody has a reference into either.
unsafe fn move_to(start: NonNull<u8>, old: usize, place: NonNull<u8>, len: usize) -> bool {
    // rustix's `mremap_fixed` passes mmap's flag in place of mremap's.
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let place: *mut c_void = place.as_ptr().cast();
    // SAFETY: the caller's promise.
    unsafe { libc::mremap(start.as_ptr().cast(), old, len, flags, place) == place }
}

/// Addresses that begin at a multiple of [`ALIGNED`], behind which there is nothing yet; at `near` if
/// possible, or anywhere for 0.
fn aligned(len: usize, near: usize) -> Option<NonNull<u8>> {
    let room = len.checked_add(ALIGNED)?;
    let near = without_provenance_mut(near);
    // SAFETY: a new mapping at an address that the system chooses touches nothing that exists.
    let found = unsafe { mmap_anonymous(near, room, ProtFlags::empty(), FLAGS) }.ok()?;
    let skip = (found as usize).next_multiple_of(ALIGNED) - found as usize;
    // SAFETY: `skip` is less than `ALIGNED`, so all of this lies in the mapping, whose parts before and
    // behind the range nobody uses.
    let place: *mut c_void = unsafe {
        let place = found.byte_add(skip);
        if skip > 0 {
            let _ = munmap(found, skip);
        }
        let _ = munmap(place.byte_add(len), ALIGNED - skip);
        place
    };
    NonNull::new(place.cast())
}

/// Gives pages back to the system; they read as zeros.
pub(super) fn release(bytes: &mut [u8]) {
    // SAFETY: anonymous private pages, borrowed for writing: they become zeros.
    let _ = unsafe { madvise(bytes.as_mut_ptr().cast(), bytes.len(), Advice::LinuxDontNeed) };
}

/// Gives a range back.
///
/// # Safety
/// It is the caller's, and nobody uses it any more.
pub(super) unsafe fn unmap(start: NonNull<u8>, len: usize) {
    // SAFETY: the caller's promise.
    let _ = unsafe { munmap(start.as_ptr().cast(), len) };
}

/// A range of addresses that is as long as it can be, and never moves. It takes nothing but addresses until
/// parts of it are opened.
#[derive(Debug)]
pub(in crate::pool) struct Window {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: it is addresses; what is done with the bytes is their users' affair.
unsafe impl Send for Window {}
// SAFETY: its own methods change only what no packet is in, as each of them says.
unsafe impl Sync for Window {}

impl Window {
    /// Reserves addresses: all that numbers of buffers can tell apart, and where a limit is set, half of what
    /// it leaves, since others need some too. None where that would be fewer than `least`.
    pub(in crate::pool) fn reserve(least: usize) -> Option<Self> {
        let mut len = MOST;
        let mut start = aligned(len, 0);
        while start.is_none() && len / 2 >= least.max(ALIGNED) {
            len /= 2;
            start = aligned(len, 0);
        }
        let window = Self { start: start?, len };
        if len < MOST && len / 2 >= least {
            drop(window);
            len /= 2;
            return Some(Self { start: aligned(len, 0)?, len }.on_huge_pages());
        }
        Some(window.on_huge_pages())
    }

    /// Reserves addresses beside `size` bytes at `start`: both together must be no more than numbers of
    /// buffers can tell apart.
    pub(in crate::pool) fn beside(start: usize, size: usize) -> Option<Self> {
        let end = start.checked_add(size)?;
        for len in BESIDE {
            // Anywhere, which is mostly near; then behind it and before it, further and further away.
            let steps = (0..16).map(|n| n * (len + ALIGNED));
            let around = steps.flat_map(|step| [end + step, start.saturating_sub(len + 2 * ALIGNED + step)]);
            for near in iter::once(0).chain(around) {
                let Some(window) = aligned(len, near & !(ALIGNED - 1)).map(|start| Self { start, len })
                else {
                    continue;
                };
                let own = window.start.as_ptr().addr();
                if end.max(own + len) - start.min(own) <= MOST {
                    return Some(window.on_huge_pages());
                }
            }
        }
        None
    }

    fn on_huge_pages(self) -> Self {
        // SAFETY: advice leaves contents and validity as they are.
        let _ = unsafe { madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxHugepage) };
        self
    }

    pub(in crate::pool) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// In bytes.
    pub(in crate::pool) fn len(&self) -> usize {
        self.len
    }

    /// Moves pages to its beginning; returns whether they are there.
    ///
    /// # Safety
    /// The range is the caller's, nobody has a reference into it or will use it again, and nothing of this
    /// window is open.
    pub(super) unsafe fn take_over(&self, start: NonNull<u8>, len: usize) -> bool {
        // SAFETY: the caller's promise; the window is at least as long.
        len == 0 || len <= self.len && unsafe { move_to(start, len, self.start, len) }
    }

    /// Makes bytes readable and writable; those that were stay as they are. Returns whether there are so
    /// many.
    pub(in crate::pool) fn open(&self, range: Range<usize>) -> bool {
        if range.end > self.len || range.is_empty() {
            return range.end <= self.len;
        }
        let both = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: pages of this window, to which rights are only added.
        unsafe {
            mprotect(self.start.as_ptr().add(range.start).cast(), range.end - range.start, both).is_ok()
        }
    }

    /// Gives pages back to the system; they read as zeros.
    ///
    /// # Safety
    /// No packet that anybody uses is in them.
    pub(in crate::pool) unsafe fn release(&self, range: Range<usize>) {
        if range.end <= self.len && range.start < range.end {
            // SAFETY: anonymous private pages of this window that nobody uses, as the caller promises: they
            // become zeros.
            unsafe {
                let start = self.start.as_ptr().add(range.start);
                let _ = madvise(start.cast(), range.end - range.start, Advice::LinuxDontNeed);
            }
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the range is this value's, and nobody uses it any more.
        unsafe { unmap(self.start, self.len) };
    }
}
