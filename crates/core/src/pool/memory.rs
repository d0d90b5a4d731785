//! The memory of a pool: one range of addresses, so that a packet's bytes are found by one multiplication.
//!
//! A pool that is alone has a range that grows: it moves to where there is room for twice as much. Pages move
//! with it, and nothing is copied. Siblings have a [`Window`] together, which is as long as it can be from
//! the beginning and never moves. In both, pages are taken when they are first written. Adopted memory is
//! somebody else's, with a window beside it. Nobody outside keeps an address: packets are known by their
//! numbers.

#![allow(unsafe_code)]
#![cfg_attr(not(feature = "std"), expect(dead_code, reason = "only siblings have a window"))]

use alloc::alloc::handle_alloc_error;
use alloc::sync::Arc;
use core::alloc::Layout;
use core::ops::Range;
use core::ptr::NonNull;

#[cfg(any(not(all(target_os = "linux", feature = "std")), miri))]
use copied as system;
#[cfg(all(target_os = "linux", feature = "std", not(miri)))]
use mapped as system;

pub(super) use system::Window;

use super::MOST;

#[cfg(any(not(all(target_os = "linux", feature = "std")), miri))]
mod copied;
#[cfg(all(target_os = "linux", feature = "std", not(miri)))]
mod mapped;

/// Alignment of ranges: pages that lie so can be huge, and stay so when they move.
const ALIGNED: usize = 2 << 20;

/// Bytes that read as zeros until they are written.
#[derive(Debug)]
pub(super) struct Memory {
    start: NonNull<u8>,
    /// A multiple of [`ALIGNED`].
    len: usize,
    home: Home,
}

/// The owner of the range.
#[derive(Debug)]
enum Home {
    /// This value's alone.
    Own,
    /// A window, which several pools may have, and which begins so many bytes behind the beginning; the rest
    /// was adopted.
    Window(Arc<Window>, usize),
}

// SAFETY: the range is this value's alone, as a vector's memory is; or it lies in a window, whose packets are
// used by one pool at a time, as the caller of `Pool::siblings` promises; or it was adopted from one who may
// be sent.
unsafe impl Send for Memory {}
// SAFETY: a shared reference only reads it.
unsafe impl Sync for Memory {}

impl Memory {
    pub(super) const fn new() -> Self {
        Self { start: NonNull::dangling(), len: 0, home: Home::Own }
    }

    /// The same bytes, for another pool; none where they are this value's alone. What lies beyond the slabs
    /// that were opened must not be reached for.
    pub(super) fn twin(&self) -> Self {
        match &self.home {
            Home::Own => Self::new(),
            Home::Window(window, at) => {
                Self { start: self.start, len: self.len, home: Home::Window(Arc::clone(window), *at) }
            }
        }
    }

    /// `size` bytes at an address that is somebody else's, and a window beside them; and the address from
    /// which both are counted.
    pub(super) fn beside(start: usize, size: usize, window: Arc<Window>) -> (Self, usize) {
        let own = window.start().as_ptr().expose_provenance();
        // Units are counted from what was adopted, whose buffers lie as they do; a window begins at a
        // multiple of all.
        let base = start.min(own);
        let len = (start + size).max(own + window.len()) - base;
        let first = NonNull::new(core::ptr::with_exposed_provenance_mut(base)).unwrap_or(NonNull::dangling());
        (Self { start: first, len, home: Home::Window(window, own - base) }, base)
    }

    /// Offset of the part that is not adopted, in bytes.
    pub(super) fn own_part(&self) -> usize {
        if let Home::Window(_, at) = &self.home { *at } else { 0 }
    }

    /// The bytes of this range, if there are so many.
    #[inline(always)]
    pub(super) fn get(&self, range: Range<usize>) -> Option<&[u8]> {
        if range.start > range.end || range.end > self.len {
            return None;
        }
        // SAFETY: `len` bytes from `start` on are mapped, readable and initialised (zeros or what was
        // written), and the range lies in them. Where they are this value's alone, they change only through
        // `&mut self`; with none of them the pointer is dangling, but aligned and not null. Of a window, the
        // caller of `Pool::siblings` promised that this is part of one packet, which nobody else uses at this
        // time. So did that of `Pool::adopt`, where the range lies in one of two mappings, both of which have
        // exposed their addresses.
        Some(unsafe { core::slice::from_raw_parts(self.address(range.start), range.end - range.start) })
    }

    /// The same, to be changed.
    #[inline(always)]
    pub(super) fn get_mut(&mut self, range: Range<usize>) -> Option<&mut [u8]> {
        if range.start > range.end || range.end > self.len {
            return None;
        }
        // SAFETY: as in `get`; they are also writable, and `&mut self` makes this the only reference.
        Some(unsafe {
            core::slice::from_raw_parts_mut(self.address(range.start).cast_mut(), range.end - range.start)
        })
    }

    /// The address of a byte, or one beyond them, for hints to the processor.
    #[inline(always)]
    pub(super) fn address(&self, at: usize) -> *const u8 {
        self.start.as_ptr().wrapping_add(at)
    }

    /// Makes a range of its own `len` bytes long at least.
    #[cold]
    pub(super) fn grow(&mut self, len: usize) {
        if let Home::Window(_, at) = &self.home {
            return self.open(*at..len);
        }
        if len <= self.len {
            return;
        }
        // Twice as much is a wish, what was asked for a need: where addresses are short, a range that moves
        // to another, both of which exist for a moment, may be too much, and one that grows somehow is not.
        let aligned = |len: usize| len.next_multiple_of(ALIGNED);
        let (twice, more, needed) =
            (aligned(len.max(2 * self.len)), aligned(len.max(self.len / 8 * 9)), aligned(len));
        if len > MOST || ![twice, more, needed].into_iter().any(|len| self.grow_to(len)) {
            exhausted(len);
        }
    }

    fn grow_to(&mut self, len: usize) -> bool {
        if !matches!(self.home, Home::Own) {
            return false;
        }
        // SAFETY: the range is this value's alone, and nobody has a reference into it, as `&mut self` says;
        // nor will anybody use the old one.
        let grown = unsafe { system::grow(self.start, self.len, len) };
        grown.inspect(|start| (self.start, self.len) = (*start, len)).is_some()
    }

    /// Gives pages of its own range back to the system; they read as zeros. It is one of whole [`ALIGNED`]
    /// pieces.
    #[cold]
    pub(super) fn release(&mut self, range: Range<usize>) {
        if let Some(bytes) = self.get_mut(range) {
            system::release(bytes);
        }
    }

    /// Makes bytes of a window readable and writable, whoever else has it; those that were stay as they are.
    #[cold]
    pub(super) fn open(&self, range: Range<usize>) {
        let Home::Window(window, at) = &self.home else { return };
        if range.start < *at || !window.open(range.start - at..range.end - at) {
            exhausted(range.end);
        }
    }

    /// As [`Memory::release`], whoever else has the window.
    ///
    /// # Safety
    /// No packet that anybody uses is in the range, which is not part of what was adopted.
    #[cold]
    pub(super) unsafe fn release_shared(&self, range: Range<usize>) {
        if let Home::Window(window, at) = &self.home
            && range.start >= *at
        {
            // SAFETY: the caller's promise.
            unsafe { window.release(range.start - at..range.end - at) };
        }
    }

    /// The same bytes, in a window that several pools can have.
    pub(super) fn into_shared(mut self) -> Self {
        if matches!(self.home, Home::Window(..)) {
            return self;
        }
        let Some(window) = Window::reserve((2 * self.len).max(1 << 26)) else { exhausted(self.len) };
        // SAFETY: the range is this value's alone, nobody has a reference into it, and nobody will use it any
        // more. The window is new and longer.
        if !unsafe { window.take_over(self.start, self.len) } {
            exhausted(self.len);
        }
        self.len = 0;
        Self { start: window.start(), len: window.len(), home: Home::Window(Arc::new(window), 0) }
    }
}

/// Ends the program, as the allocator does, where `len` bytes of memory can't be had.
pub(super) fn exhausted(len: usize) -> ! {
    handle_alloc_error(Layout::from_size_align(len, ALIGNED).unwrap_or(Layout::new::<u8>()))
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.len > 0 && matches!(self.home, Home::Own) {
            // SAFETY: the range is this value's, and nobody uses it any more.
            unsafe { system::unmap(self.start, self.len) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PIECE: usize = 2 << 20;
    const CASES: u32 = if cfg!(miri) { 1 } else { 24 };
    const STEPS: usize = if cfg!(miri) { 6 } else { 30 };
    const PIECES: usize = if cfg!(miri) { 3 } else { 12 };

    /// Makes it so long, at least. An interpreter does that at once, and `resize` byte by byte.
    fn grow(twin: &mut Vec<u8>, len: usize) {
        twin.extend(vec![0; len.saturating_sub(twin.len())]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() })]

        /// Against the obvious twin: a vector.
        #[test]
        fn holds_what_a_vector_would(steps in prop::collection::vec((0u8..4, 0..PIECES, any::<u8>()), 1..STEPS)) {
            let (mut memory, mut twin) = (Memory::new(), Vec::<u8>::new());
            for (what, piece, value) in steps {
                let at = piece * PIECE;
                match what {
                    0 => {
                        memory.grow(at + 1);
                        grow(&mut twin, at + PIECE);
                    }
                    3 => {
                        // As where addresses are short.
                        assert!(at + PIECE <= memory.len || memory.grow_to(at + PIECE));
                        grow(&mut twin, at + PIECE);
                    }
                    1 => {
                        let at = at + usize::from(value);
                        if let Some(byte) = twin.get_mut(at) {
                            *byte = value;
                            memory.get_mut(at..at + 1).unwrap()[0] = value;
                        }
                    }
                    _ => {
                        if let Some(bytes) = twin.get_mut(at..at + PIECE) {
                            bytes.fill(0);
                            memory.release(at..at + PIECE);
                        }
                    }
                }
                prop_assert!(memory.len >= twin.len());
                for at in (0..twin.len()).step_by(PIECE) {
                    prop_assert_eq!(memory.get(at..at + 256), twin.get(at..at + 256), "from {}", at);
                }
            }
            prop_assert!(memory.get(memory.len..memory.len + 1).is_none());
            // The window has what the range had.
            let memory = memory.into_shared();
            prop_assert!(twin.len() <= memory.len);
            memory.open(0..twin.len());
            let mut memory = memory.twin();
            for at in (0..twin.len()).step_by(PIECE) {
                prop_assert_eq!(memory.get(at..at + 256), twin.get(at..at + 256), "from {}", at);
                memory.get_mut(at..at + 256).unwrap().fill(1);
            }
        }
    }
}
