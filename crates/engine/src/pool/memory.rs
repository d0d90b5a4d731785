//! The memory of a pool: one range of addresses that grows, so that a packet's bytes are found by one multiplication.
//!
//! Pages are taken when they are first written. To grow, the range moves to where there is room for twice as much; its pages
//! move with it, nothing is copied. Nobody outside keeps an address: packets are known by their numbers.

#![allow(unsafe_code)]

#[cfg(any(not(target_os = "linux"), miri))]
pub(super) use copied::Memory;
#[cfg(all(target_os = "linux", not(miri)))]
pub(super) use mapped::Memory;

#[cfg(all(target_os = "linux", not(miri)))]
mod mapped {
    use std::alloc::{Layout, handle_alloc_error};
    use std::ffi::c_void;
    use std::ops::Range;
    use std::ptr::{NonNull, null_mut};

    use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mremap, munmap};

    use crate::pool::MOST;

    /// Where the range begins and ends: pages that lie so can be huge, and stay so when they move.
    const ALIGNED: usize = 2 << 20;

    /// Bytes that read as zeros until they are written.
    #[derive(Debug)]
    pub(in crate::pool) struct Memory {
        start: NonNull<u8>,
        /// A multiple of [`ALIGNED`].
        len: usize,
    }

    // SAFETY: the range is this value's alone, as a vector's memory is.
    unsafe impl Send for Memory {}
    // SAFETY: a shared reference only reads it.
    unsafe impl Sync for Memory {}

    impl Memory {
        pub(in crate::pool) const fn new() -> Self {
            Self { start: NonNull::dangling(), len: 0 }
        }

        #[inline(always)]
        pub(in crate::pool) fn bytes(&self) -> &[u8] {
            // SAFETY: `len` bytes from `start` on are mapped, readable and initialised (zeros or what was written), and
            // change only through `&mut self`; with none of them the pointer is dangling, but aligned and not null.
            unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
        }

        #[inline(always)]
        pub(in crate::pool) fn bytes_mut(&mut self) -> &mut [u8] {
            // SAFETY: as in `bytes`; they are also writable, and `&mut self` makes this the only reference.
            unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
        }

        /// Makes it `len` bytes long at least.
        #[cold]
        pub(in crate::pool) fn grow(&mut self, len: usize) {
            if len <= self.len {
                return;
            }
            // Twice as much is a wish, what was asked for a need: where addresses are short, a range that moves to another, both
            // of which exist for a moment, may be too much, and one that grows somehow is not.
            let aligned = |len: usize| len.next_multiple_of(ALIGNED);
            let (twice, more, needed) =
                (aligned(len.max(2 * self.len)), aligned(len.max(self.len / 8 * 9)), aligned(len));
            let grown = len <= MOST
                && [twice, more, needed].into_iter().any(|len| self.move_to_room_for(len) || self.remap(len));
            if !grown {
                Self::exhausted(len);
            }
        }

        fn exhausted(len: usize) -> ! {
            handle_alloc_error(Layout::from_size_align(len, ALIGNED).unwrap_or(Layout::new::<u8>()))
        }

        /// Makes the range longer, where it is or anywhere else; returns whether the system has room.
        fn remap(&mut self, len: usize) -> bool {
            if self.len == 0 {
                return false;
            }
            let old = self.start.as_ptr().cast();
            // SAFETY: the range is this value's; nobody has a reference into it, as `&mut self` says. A new place is one where nothing is.
            let Ok(place) = (unsafe { mremap(old, self.len, len, MremapFlags::MAYMOVE) }) else {
                return false;
            };
            let Some(start) = NonNull::new(place.cast()) else { return false };
            (self.start, self.len) = (start, len);
            true
        }

        /// Moves the range to where it can be longer; returns whether the system has room.
        fn move_to_room_for(&mut self, len: usize) -> bool {
            let (none, both) = (ProtFlags::empty(), ProtFlags::READ | ProtFlags::WRITE);
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            let room = len + ALIGNED;
            // SAFETY: a new mapping at an address that the system chooses touches nothing that exists.
            let Ok(found) = (unsafe { mmap_anonymous(null_mut(), room, none, flags) }) else { return false };
            let skip = (found as usize).next_multiple_of(ALIGNED) - found as usize;
            // SAFETY: `skip` is less than `ALIGNED`, so this lies in the mapping.
            let place: *mut c_void = unsafe { found.byte_add(skip) };
            let done = if self.len == 0 {
                // SAFETY: the range lies in the mapping just made, which nobody else knows of.
                unsafe { mmap_anonymous(place, len, both, flags | MapFlags::FIXED) }
            } else {
                let old = self.start.as_ptr().cast();
                // rustix's `mremap_fixed` passes mmap's flag in place of mremap's.
                let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                // SAFETY: the old range is this value's; nobody has a reference into it, as `&mut self` says. The new one lies in
                // the mapping just made, which nobody else knows of.
                let moved = unsafe { libc::mremap(old, self.len, len, flags, place) };
                if moved == place { Ok(place) } else { Err(rustix::io::Errno::NOMEM) }
            };
            let start = NonNull::new(place.cast()).filter(|_| done.is_ok());
            let Some(start) = start else {
                // SAFETY: the mapping just made, all of it; nobody has used it.
                let _ = unsafe { munmap(found, room) };
                return false;
            };
            (self.start, self.len) = (start, len);
            // SAFETY: the parts of that mapping before and behind the range, which nobody uses; and advice leaves contents and
            // validity as they are.
            unsafe {
                if skip > 0 {
                    let _ = munmap(found, skip);
                }
                let _ = munmap(place.byte_add(len), ALIGNED - skip);
                let _ = madvise(place, len, Advice::LinuxHugepage);
            }
            true
        }

        /// As [`Memory::grow`], where addresses are short.
        #[cfg(test)]
        pub(in crate::pool) fn grow_in_need(&mut self, len: usize) {
            let len = len.next_multiple_of(ALIGNED);
            assert!(len <= self.len || self.remap(len) || self.move_to_room_for(len));
        }

        /// Gives pages back to the system; they read as zeros. The range is one of whole [`ALIGNED`] pieces.
        #[cold]
        pub(in crate::pool) fn release(&mut self, range: Range<usize>) {
            if let Some(bytes) = self.bytes_mut().get_mut(range) {
                // SAFETY: anonymous private pages of this value alone, borrowed for writing: they become zeros.
                let _ = unsafe { madvise(bytes.as_mut_ptr().cast(), bytes.len(), Advice::LinuxDontNeed) };
            }
        }
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            if self.len > 0 {
                // SAFETY: the range is this value's, and nobody uses it any more.
                let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
            }
        }
    }
}

/// Where pages can't be moved, bytes are copied.
#[cfg(any(not(target_os = "linux"), miri, test))]
mod copied {
    use std::ops::Range;

    /// Bytes that are zeros until they are written.
    #[derive(Debug)]
    pub(in crate::pool) struct Memory(Vec<u8>);

    impl Memory {
        pub(in crate::pool) const fn new() -> Self {
            Self(Vec::new())
        }

        #[inline(always)]
        pub(in crate::pool) fn bytes(&self) -> &[u8] {
            &self.0
        }

        #[inline(always)]
        pub(in crate::pool) fn bytes_mut(&mut self) -> &mut [u8] {
            &mut self.0
        }

        #[cold]
        pub(in crate::pool) fn grow(&mut self, len: usize) {
            if len > self.0.len() {
                self.0.resize(len, 0);
            }
        }

        #[cold]
        pub(in crate::pool) fn release(&mut self, range: Range<usize>) {
            if let Some(bytes) = self.0.get_mut(range) {
                bytes.fill(0);
            }
        }
    }
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use super::{copied, mapped};
    use proptest::prelude::*;

    const PIECE: usize = 2 << 20;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Against the obvious twin: a vector.
        #[test]
        fn holds_what_a_vector_would(steps in prop::collection::vec((0u8..4, 0usize..12, any::<u8>()), 1..30)) {
            let (mut memory, mut twin) = (mapped::Memory::new(), copied::Memory::new());
            for (what, piece, value) in steps {
                let at = piece * PIECE;
                match what {
                    0 => {
                        memory.grow(at + 1);
                        twin.grow(at + PIECE);
                    }
                    3 => {
                        memory.grow_in_need(at + 1);
                        twin.grow(at + PIECE);
                    }
                    1 => {
                        if let Some(byte) = twin.bytes_mut().get_mut(at + usize::from(value)) {
                            *byte = value;
                            memory.bytes_mut()[at + usize::from(value)] = value;
                        }
                    }
                    _ => {
                        twin.release(at..at + PIECE);
                        memory.release(at..at + PIECE);
                    }
                }
                prop_assert!(memory.bytes().len() >= twin.bytes().len());
                for at in (0..twin.bytes().len()).step_by(PIECE).flat_map(|at| at..at + 256) {
                    if let Some(byte) = twin.bytes().get(at) {
                        prop_assert_eq!(memory.bytes().get(at), Some(byte), "byte {}", at);
                    }
                }
            }
        }
    }
}
