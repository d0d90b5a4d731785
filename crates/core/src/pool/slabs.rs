//! The books of a memory's slabs: some are used, others are free.

use alloc::vec::Vec;
use core::ops::Range;

use super::{SLAB_BYTES, SLAB_UNITS, UNIT};

/// The slabs of a memory, one behind the other.
#[derive(Debug, Default)]
pub(super) struct Slabs {
    /// The start of the first one, in units.
    origin: usize,
    /// Number of slabs up to the last one that is used.
    count: usize,
    /// Slabs that nobody uses: where each stretch of them begins, and how many it has; in order, with others
    /// between them.
    free: Vec<(usize, usize)>,
    /// Packets with slabs of their own, and how many.
    oversize: Vec<(u32, usize)>,
}

impl Slabs {
    /// Slabs that begin so many bytes behind the beginning of the memory, a multiple of [`UNIT`].
    #[cfg(feature = "std")]
    pub(super) fn behind(bytes: usize) -> Self {
        Self { origin: bytes / UNIT, ..Self::default() }
    }

    /// The end of the last one: bytes that the memory must have.
    pub(super) fn bytes(&self) -> usize {
        self.origin * UNIT + self.count * SLAB_BYTES
    }

    /// Slabs that are used.
    pub(super) fn in_use(&self) -> usize {
        self.count - self.free.iter().map(|(_, n)| n).sum::<usize>()
    }

    /// So many slabs, one behind the other; returns the number of the first in units.
    pub(super) fn take(&mut self, n: usize) -> u32 {
        let first = match self.free.iter().position(|(_, free)| *free >= n) {
            Some(at) => match self.free.get_mut(at) {
                Some((first, free)) if *free > n => {
                    *free -= n;
                    *first + *free
                }
                _ => self.free.remove(at).0,
            },
            None => {
                let first = self.count;
                self.count += n;
                first
            }
        };
        (self.origin + first * SLAB_UNITS) as u32
    }

    /// Takes `n` slabs in a row for one packet; returns where they begin, in units.
    pub(super) fn take_oversize(&mut self, n: usize) -> u32 {
        let id = self.take(n);
        self.oversize.push((id, n));
        id
    }

    /// Takes the slabs of a packet back, whose pages, before anybody can have them again, `release` gives
    /// back to the system.
    pub(super) fn free_oversize(&mut self, id: u32, release: impl FnOnce(Range<usize>)) {
        let Some(at) = self.oversize.iter().position(|(of, _)| *of == id) else { return };
        let (_, n) = self.oversize.swap_remove(at);
        let first = (id as usize - self.origin) / SLAB_UNITS;
        release(id as usize * UNIT..id as usize * UNIT + n * SLAB_BYTES);
        self.free.push((first, n));
        self.free.sort_unstable();
        self.free.dedup_by(|next, (first, n)| {
            let adjacent = *first + *n == next.0;
            *n += if adjacent { next.1 } else { 0 };
            adjacent
        });
        // Free slabs behind all that is used needn't be remembered.
        if let Some((first, _)) = self.free.pop_if(|(first, n)| *first + *n == self.count) {
            self.count = first;
        }
    }
}
