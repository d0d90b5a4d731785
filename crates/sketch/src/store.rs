//! The heaviest keys beside a sketch that can estimate sizes but doesn't know keys.
//!
//! No heap: keys whose estimate is above a bar go into a hash table; when that is full, the greater half
//! stays and the bar rises to the least of it. So a key costs one comparison where it is light, one look-up
//! where it is heavy.

use hashbrown::HashTable;

use crate::hash::Hasher;
use crate::order;
use crate::serial::{Decoder, Encoder, StateError};
use crate::state::{Apart, Table};

/// Keys of a table that is made to see how many bytes it takes.
const FEW: usize = 64;

/// Up to twice `keep` keys, of which the `keep` heaviest are always among them (by estimates that never
/// shrink). After a merge it has the keys of both sides, which may be more.
#[derive(Clone, Debug)]
pub(crate) struct Store<const N: usize> {
    keep: usize,
    /// No key that isn't in the table was ever offered with a greater estimate; of merged stores, the sum of
    /// theirs.
    bar: u64,
    table: HashTable<([u8; N], u64)>,
    hasher: Hasher,
}

impl<const N: usize> Store<N> {
    pub(crate) fn new(keep: usize, seed: u64) -> Self {
        let table = HashTable::with_capacity(if keep == 0 { 0 } else { keep * 2 });
        Self { keep, bar: 0, table, hasher: Hasher::new(seed, 0x73_74_6f) }
    }

    /// The most keys that a store of so many bytes can keep: 0 to [`MAX_KEEP`].
    pub(crate) fn keys_within(bytes: usize) -> usize {
        let mut keep = 0;
        for bit in (0..MAX_KEEP.ilog2()).rev() {
            let more = keep | 1 << bit;
            if Self::bytes_for(more) <= bytes {
                keep = more;
            }
        }
        keep
    }

    /// Bytes that a store of so many keys takes. None of more than a few keys is made to find out.
    pub(crate) fn bytes_for(keep: usize) -> usize {
        match keep {
            0 => 0,
            1..=FEW => Self::new(keep, 0).memory_bytes(),
            _ => {
                // As the table of a few keys, but for the number of its buckets: of each an entry and a byte.
                let buckets = |keep: usize| (keep * 2 * 8 / 7).next_power_of_two();
                let more = buckets(keep) - buckets(FEW);
                Self::bytes_for(FEW) + more * (size_of::<([u8; N], u64)>() + 1)
            }
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.table.allocation_size()
    }

    pub(crate) fn keep(&self) -> usize {
        self.keep
    }

    /// A key has this estimate now.
    #[inline(always)]
    pub(crate) fn offer(&mut self, key: &[u8; N], estimate: u64) {
        if estimate > self.bar && self.keep > 0 {
            self.insert(key, estimate);
        }
    }

    #[inline]
    fn insert(&mut self, key: &[u8; N], estimate: u64) {
        let hasher = self.hasher;
        let hash = hasher.hash64(key);
        if let Some((_, old)) = self.table.find_mut(hash, |e| e.0 == *key) {
            *old = (*old).max(estimate);
            return;
        }
        if self.table.len() >= self.keep * 2 {
            self.prune();
            if estimate <= self.bar {
                return;
            }
        }
        self.table.insert_unique(hash, (*key, estimate), |e| hasher.hash64(&e.0));
    }

    /// Keeps the greater half; the bar is the least that was kept.
    #[cold]
    fn prune(&mut self) {
        let mut all: Vec<([u8; N], u64)> = self.table.drain().collect();
        let keep = self.keep.min(all.len());
        if keep < all.len() {
            all.select_nth_unstable_by(keep, |a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
            self.bar = self.bar.max(all.get(keep).map_or(0, |e| e.1));
            all.truncate(keep);
        }
        let hasher = self.hasher;
        for entry in all {
            self.table.insert_unique(hasher.hash64(&entry.0), entry, |e| hasher.hash64(&e.0));
        }
    }

    /// Says that no key is kept and none was turned away.
    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty() && self.bar == 0
    }

    /// The greatest estimate that a key may have had that isn't kept.
    pub(crate) fn bar(&self) -> u64 {
        self.bar
    }

    /// Of a state of version 1, in which a merge had taken the greater of two bars where it takes their sum
    /// today: raises it to what no estimate was above, unless no key was ever turned away.
    pub(crate) fn raise(&mut self, greatest: u64) {
        if self.bar > 0 {
            self.bar = self.bar.max(greatest);
        }
    }

    /// The number of keys that are kept.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// The keys that are kept, in order.
    pub(crate) fn keys(&self) -> Vec<[u8; N]> {
        let mut keys = Vec::with_capacity(self.table.len());
        for (key, _) in &self.table {
            keys.push(*key);
        }
        order::keys(&mut keys);
        keys
    }

    /// Takes the keys of both, with their estimates after the merge.
    ///
    /// A key that neither side kept had no more than its bar on either: no more than the sum of both bars in
    /// all. None is dropped here, however light: of a flow that is spread over many shards no single one can
    /// tell that it is heavy. So the order of merges doesn't matter.
    pub(crate) fn merge(&mut self, other: &Self, estimate: &dyn Fn(&[u8; N]) -> u64) {
        let mut keys = self.keys();
        keys.extend_from_slice(&other.keys());
        order::keys(&mut keys);
        keys.dedup();
        self.bar = self.bar.saturating_add(other.bar);
        self.keep = self.keep.max(other.keep);
        let hasher = self.hasher;
        self.table = HashTable::with_capacity((self.keep * 2).max(keys.len()));
        for key in keys {
            let entry = (key, estimate(&key));
            self.table.insert_unique(hasher.hash64(&key), entry, |e| hasher.hash64(&e.0));
        }
    }
}

/// The merge of two stores needs estimates, which only the sketch has.
impl<const N: usize> Table<Apart> for Store<N> {
    /// A `keep` beyond what the state holds costs memory only when it is used.
    fn read(&mut self, _: usize, d: &mut Decoder<'_>) -> Result<(), StateError> {
        (self.keep, self.bar) = (d.u32()? as usize, d.u64()?);
        let entries = d.entries::<N, 1>()?;
        if self.keep > MAX_KEEP || self.keep == 0 && !entries.is_empty() {
            return Err(StateError::Damaged("it keeps more keys than it may"));
        }
        let hasher = self.hasher;
        self.table = HashTable::with_capacity(entries.len());
        for (key, [estimate]) in entries {
            let hash = hasher.hash64(&key);
            if self.table.find(hash, |e| e.0 == key).is_some() {
                return Err(StateError::Damaged("it keeps a key twice"));
            }
            self.table.insert_unique(hash, (key, estimate), |e| hasher.hash64(&e.0));
        }
        Ok(())
    }

    fn write(&self, out: &mut Encoder) {
        out.u32(self.keep as u32);
        out.u64(self.bar);
        out.entries(self.table.iter().map(|(key, estimate)| (*key, [*estimate])));
    }

    fn clear(&mut self) {
        self.table.clear();
        self.bar = 0;
    }

    fn unite(&mut self, _: &Self) {}
}

/// The most keys that a store keeps.
pub(crate) const MAX_KEEP: usize = 1 << 24;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bytes_are_told_without_taking_them() {
        fn check<const N: usize>(keep: usize) {
            assert_eq!(Store::<N>::bytes_for(keep), Store::<N>::new(keep, 0).memory_bytes(), "{N} {keep}");
        }
        for keep in (1..300).chain((300..100_000).step_by(977)).chain((0..20).map(|bit| 7 << bit)) {
            check::<4>(keep);
            check::<13>(keep);
            check::<37>(keep);
        }
    }

    proptest! {
        /// The twin sorts all final estimates; the store must have the greatest `keep` of those that are
        /// distinct.
        #[test]
        fn the_heaviest_are_kept(offers in prop::collection::vec((0u32..60, 1u64..50), 1..400), keep in 1usize..20) {
            let mut store = Store::<4>::new(keep, 3);
            let mut totals = std::collections::BTreeMap::new();
            for (key, weight) in offers {
                let total = totals.entry(key.to_le_bytes()).or_insert(0);
                *total += weight;
                store.offer(&key.to_le_bytes(), *total);
            }
            let kept = store.keys();
            prop_assert!(kept.len() <= 2 * keep);
            for (key, total) in &totals {
                prop_assert!(*total <= store.bar() || kept.contains(key), "{key:?} of {total} is above the bar");
            }
            let mut all: Vec<_> = totals.into_iter().map(|(k, v)| (v, k)).collect();
            all.sort_unstable_by(|a, b| b.cmp(a));
            // Of equal estimates either may be kept.
            let least = all.get(keep - 1).map_or(0, |e| e.0);
            for (value, key) in all.iter().filter(|e| e.0 > least) {
                prop_assert!(kept.contains(key), "{key:?} of {value} is not kept");
            }
        }
    }

    /// As many keys as fit, and not one more.
    #[test]
    fn keys_fill_the_bytes_that_they_are_given() {
        for bytes in [0, 100, 1000, 1104, 5000, 100_000, 1 << 20] {
            let keep = Store::<13>::keys_within(bytes);
            assert!(Store::<13>::bytes_for(keep) <= bytes);
            assert!(Store::<13>::bytes_for(keep + 1) > bytes, "{keep} keys in {bytes} bytes");
        }
    }

    #[test]
    fn memory_is_what_was_planned() {
        for keep in [1, 10, 128, 1000] {
            let mut store = Store::<13>::new(keep, 0);
            for i in 0..keep as u64 * 10 {
                let mut key = [0; 13];
                key[..8].copy_from_slice(&i.to_le_bytes());
                store.offer(&key, i + 1);
            }
            assert_eq!(store.memory_bytes(), Store::<13>::bytes_for(keep));
        }
    }
}
