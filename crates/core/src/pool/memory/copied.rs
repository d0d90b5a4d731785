//! Memory as the allocator gives it, where pages can't be moved: bytes are copied, and windows are short.

use alloc::alloc::{alloc_zeroed, dealloc};
use core::alloc::Layout;
use core::ops::Range;
use core::ptr::{NonNull, copy_nonoverlapping};

use super::ALIGNED;

/// Bytes of a window, at most: all of them are taken at once.
const MOST: usize = if cfg!(miri) { 1 << 26 } else { 1 << 30 };

/// The layout of a range in memory.
fn layout(len: usize) -> Option<Layout> {
    Layout::from_size_align(len, 64).ok().filter(|layout| layout.size() > 0)
}

fn allocate(len: usize) -> Option<NonNull<u8>> {
    // SAFETY: the layout is not empty.
    NonNull::new(unsafe { alloc_zeroed(layout(len)?) })
}

/// Makes a range longer, elsewhere; returns where it is, unless the system has no room.
///
/// # Safety
/// The `old` bytes from `start` on are what this returned, or none; nobody uses them while this works, nor
/// the old addresses afterwards.
pub(super) unsafe fn grow(start: NonNull<u8>, old: usize, len: usize) -> Option<NonNull<u8>> {
    let place = allocate(len)?;
    // SAFETY: both are as long, and the new one is apart; the old one is the caller's to give back.
    unsafe {
        copy_nonoverlapping(start.as_ptr(), place.as_ptr(), old.min(len));
        unmap(start, old);
    }
    Some(place)
}

/// Makes bytes zeros.
pub(super) fn release(bytes: &mut [u8]) {
    bytes.fill(0);
}

/// Gives a range back.
///
/// # Safety
/// It is the caller's, made here, and nobody uses it any more.
pub(super) unsafe fn unmap(start: NonNull<u8>, len: usize) {
    if let Some(layout) = layout(len) {
        // SAFETY: the caller's promise: it was allocated with this layout.
        unsafe { dealloc(start.as_ptr(), layout) };
    }
}

/// A range that never moves.
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
    /// Takes as much as there is, up to [`MOST`]; none where that would be less than `least`.
    pub(in crate::pool) fn reserve(least: usize) -> Option<Self> {
        let len = MOST.max(least.next_multiple_of(ALIGNED));
        Some(Self { start: allocate(len)?, len })
    }

    /// None: the allocator puts memory anywhere.
    pub(in crate::pool) fn beside(_: usize, _: usize) -> Option<Self> {
        None
    }

    pub(in crate::pool) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// In bytes.
    pub(in crate::pool) fn len(&self) -> usize {
        self.len
    }

    /// Copies bytes to its beginning, and gives their place back; returns whether they are there.
    ///
    /// # Safety
    /// The range is the caller's, nobody has a reference into it or will use it again, and nobody uses this
    /// window.
    pub(super) unsafe fn take_over(&self, start: NonNull<u8>, len: usize) -> bool {
        if len > self.len {
            return false;
        }
        // SAFETY: the caller's promise; the window is at least as long, and apart.
        unsafe {
            copy_nonoverlapping(start.as_ptr(), self.start.as_ptr(), len);
            unmap(start, len);
        }
        true
    }

    /// Returns true if there are so many bytes.
    pub(in crate::pool) fn open(&self, range: Range<usize>) -> bool {
        range.end <= self.len
    }

    /// Makes bytes zeros.
    ///
    /// # Safety
    /// No packet that anybody uses is in them.
    pub(in crate::pool) unsafe fn release(&self, range: Range<usize>) {
        if range.end <= self.len && range.start < range.end {
            // SAFETY: the range lies in the window, and nobody uses it, as the caller promises.
            unsafe { self.start.as_ptr().add(range.start).write_bytes(0, range.end - range.start) };
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the range is this value's, and nobody uses it any more.
        unsafe { unmap(self.start, self.len) };
    }
}
