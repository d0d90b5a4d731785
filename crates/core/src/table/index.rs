//! The index of a table: from a hash to the number of an entry.
//!
//! 8-byte slots (32 bits of hash, 32 bits of entry number plus one; 0 is free), linear probing, at most half
//! full, no tombstones. The index knows no keys: whoever asks compares them in full. A table may have several
//! indices over the same entries, one for each key that its entries are looked up by.

use alloc::vec::Vec;

use crate::huge;
use crate::prefetch::prefetch_at;

use super::NONE;

/// Slots beyond its first that an entry of a half full index goes past by chance less than once in 10²⁰
/// (linear probing: the chance of a run of n taken slots falls by e^(−0.19 n)).
pub const LONG_PROBE: usize = 256;

/// Slots of a page of memory.
const PAGE_SLOTS: usize = 4096 / size_of::<u64>();

/// An index of a bounded number of entries.
#[derive(Debug)]
pub struct Index {
    slots: Vec<u64>,
    /// Bits that a hash is shifted to the right by, so that it is a place in the index; at least 32.
    shift: u32,
    long_probes: u64,
}

#[inline]
const fn tag(hash: u64) -> u32 {
    (hash >> 32) as u32
}

#[inline]
const fn id_of(slot: u64) -> u32 {
    (slot as u32).wrapping_sub(1)
}

impl Index {
    /// An index of at most `limit` entries (1 to 2³⁰).
    #[must_use]
    pub fn new(limit: u32) -> Self {
        let slots = Self::slots(limit);
        Self { slots: huge::zeros(slots), shift: 64 - slots.trailing_zeros().min(32), long_probes: 0 }
    }

    /// Memory of an index of so many entries, in bytes.
    #[must_use]
    pub fn memory(limit: u32) -> u64 {
        Self::slots(limit) as u64 * size_of::<u64>() as u64
    }

    fn slots(limit: u32) -> usize {
        ((limit as usize).clamp(1, 1 << 30) * 2).next_power_of_two().max(16)
    }

    /// Writes to all of its memory, so that the system has given it by then.
    pub(crate) fn touch(&mut self) {
        // Zeros that come from the system are there when they are first written.
        for slot in self.slots.iter_mut().step_by(PAGE_SLOTS) {
            *core::hint::black_box(slot) = 0;
        }
    }

    /// Entries added more than [`LONG_PROBE`] slots behind the one that their hash says. Chance doesn't do
    /// that: who sends the packets knows the seed, or the hash is no good.
    #[must_use]
    pub const fn long_probes(&self) -> u64 {
        self.long_probes
    }

    /// The place where a look-up of `hash` begins, or that of an entry in a slot, which has the upper half of
    /// its hash.
    #[inline]
    fn home(&self, hash: u64) -> usize {
        (hash >> self.shift) as usize
    }

    #[inline]
    fn mask(&self) -> usize {
        self.slots.len() - 1
    }

    /// Asks for the line where a look-up of `hash` begins.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        prefetch_at(&self.slots, self.home(hash));
    }

    /// The first entry whose 32 bits of hash are those of `hash`: most likely the right one. [`NONE`] where
    /// there is none.
    #[inline]
    #[must_use]
    pub fn candidate(&self, hash: u64) -> u32 {
        self.find(hash, |_| true).unwrap_or(NONE)
    }

    /// The entry of this hash that `is` accepts.
    #[inline]
    pub fn find(&self, hash: u64, is: impl Fn(u32) -> bool) -> Option<u32> {
        let tag = tag(hash);
        let mask = self.mask();
        let mut at = self.home(hash);
        loop {
            let slot = *self.slots.get(at)?;
            if slot == 0 {
                return None;
            }
            if (slot >> 32) as u32 == tag && is(id_of(slot)) {
                return Some(id_of(slot));
            }
            at = (at + 1) & mask;
        }
    }

    /// Adds an entry. The caller keeps their number within the limit.
    pub fn insert(&mut self, hash: u64, id: u32) {
        let mask = self.mask();
        let home = self.home(hash);
        let mut at = home;
        while let Some(slot) = self.slots.get_mut(at) {
            if *slot == 0 {
                *slot = u64::from(tag(hash)) << 32 | u64::from(id + 1);
                self.long_probes += u64::from(at.wrapping_sub(home) & mask > LONG_PROBE);
                return;
            }
            at = (at + 1) & mask;
        }
    }

    /// Takes out an entry that was added with this hash: later slots of the cluster move up where they may.
    pub fn remove(&mut self, hash: u64, id: u32) {
        let mask = self.mask();
        let mut hole = self.home(hash);
        loop {
            match self.slots.get(hole) {
                Some(0) | None => return,
                Some(&slot) if id_of(slot) == id => break,
                Some(_) => hole = (hole + 1) & mask,
            }
        }
        let mut next = (hole + 1) & mask;
        while let Some(&slot) = self.slots.get(next).filter(|s| **s != 0) {
            let home = self.home(slot);
            // The slot may fill the hole unless its home lies cyclically after the hole.
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(hole) & mask) {
                if let Some(place) = self.slots.get_mut(hole) {
                    *place = slot;
                }
                hole = next;
            }
            next = (next + 1) & mask;
        }
        if let Some(place) = self.slots.get_mut(hole) {
            *place = 0;
        }
    }

    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        self.slots.iter().filter(|s| **s != 0).count()
    }

    /// Slots that look-ups of all entries read.
    #[cfg(test)]
    pub(super) fn probes(&self) -> u64 {
        let distance = |(at, slot): (usize, &u64)| at.wrapping_sub(self.home(*slot)) & self.mask();
        self.slots.iter().enumerate().filter(|(_, s)| **s != 0).map(|place| distance(place) as u64 + 1).sum()
    }
}
