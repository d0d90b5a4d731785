//! Flow numbers: a dense `u32` for every flow key, from an open-addressing table that compares whole keys.
//!
//! Narrow keys (IPv4, at most one VLAN tag) live in the table itself, so that a look-up costs one cache line;
//! wide ones live beside it, behind a 32-bit tag. The hash is seeded at random, so that no capture can be
//! made to collide; numbers are given in order of first appearance, so nothing that is reported depends on
//! the seed.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::iter;

use slipstream_wire::{FlowKey, NarrowKey, WideKey};

use crate::block::NO_FLOW;

const INITIAL_SLOTS: usize = 1024;

#[derive(Clone, Copy, Debug)]
struct NarrowSlot {
    key: NarrowKey,
    flow: u32,
}

#[derive(Clone, Copy, Debug)]
struct WideSlot {
    tag: u32,
    /// Index into `wide_keys`.
    at: u32,
}

const EMPTY_NARROW: NarrowSlot = NarrowSlot { key: NarrowKey([0; 2]), flow: NO_FLOW };
const EMPTY_WIDE: WideSlot = WideSlot { tag: 0, at: NO_FLOW };

/// Flow keys and their numbers.
///
/// Holds at most 2³² − 1 flows: far more than fit in memory at about 100 bytes each.
#[derive(Clone, Debug)]
pub(crate) struct FlowTable {
    seed: u64,
    narrow: Vec<NarrowSlot>,
    narrow_used: usize,
    wide: Vec<WideSlot>,
    wide_keys: Vec<(WideKey, u32)>,
    next: u32,
}

/// The hash function of a table, keyed with its seed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hashing(u64);

impl Hashing {
    #[inline]
    pub(crate) fn hash(self, key: &FlowKey) -> u64 {
        key.hash64(self.0)
    }
}

impl FlowTable {
    pub(crate) fn new() -> Self {
        Self {
            seed: RandomState::new().build_hasher().finish(),
            narrow: vec![EMPTY_NARROW; INITIAL_SLOTS],
            narrow_used: 0,
            wide: vec![EMPTY_WIDE; INITIAL_SLOTS],
            wide_keys: Vec::new(),
            next: 0,
        }
    }

    #[inline]
    pub(crate) fn hash(&self, key: &FlowKey) -> u64 {
        self.hashing().hash(key)
    }

    /// Its hash function.
    pub(crate) fn hashing(&self) -> Hashing {
        Hashing(self.seed)
    }

    /// Numbers given so far.
    pub(crate) fn numbers(&self) -> usize {
        self.next as usize
    }

    /// A number that belongs to no key of the table.
    pub(crate) fn spare_number(&mut self) -> u32 {
        let number = self.next;
        self.next = (number + 1).min(NO_FLOW - 1);
        number
    }

    /// Reads the slots at which the search for `hashes` begins, so that they are in the cache, their misses
    /// overlapping, when [`FlowTable::number`] comes by. What it returns only keeps the reads alive.
    #[inline]
    pub(crate) fn touch(&self, hashes: impl Iterator<Item = (u64, bool)>) -> u32 {
        hashes.fold(0, |seen, (hash, narrow)| {
            seen ^ if narrow {
                self.narrow.get(slot_of(hash, self.narrow.len())).map_or(0, |s| s.flow)
            } else {
                self.wide.get(slot_of(hash, self.wide.len())).map_or(0, |s| s.at)
            }
        })
    }

    /// The number of the flow `key`, if it has one.
    pub(crate) fn get(&self, key: &FlowKey) -> Option<u32> {
        let hash = self.hash(key);
        match key {
            FlowKey::Narrow(key) => {
                let mut i = slot_of(hash, self.narrow.len());
                while let Some(slot) = self.narrow.get(i).filter(|slot| slot.flow != NO_FLOW) {
                    if slot.key == *key {
                        return Some(slot.flow);
                    }
                    i = slot_of(i as u64 + 1, self.narrow.len());
                }
                None
            }
            FlowKey::Wide(key) => {
                let mut i = slot_of(hash, self.wide.len());
                while let Some(slot) = self.wide.get(i).filter(|slot| slot.at != NO_FLOW) {
                    let found = self.wide_keys.get(slot.at as usize).filter(|(k, _)| k == key);
                    if let Some((_, flow)) = found.filter(|_| slot.tag == tag_of(hash)) {
                        return Some(*flow);
                    }
                    i = slot_of(i as u64 + 1, self.wide.len());
                }
                None
            }
        }
    }

    /// The number of the flow `key`, whose hash is `hash`; a new one when it is new.
    #[inline]
    pub(crate) fn number(&mut self, key: &FlowKey, hash: u64) -> u32 {
        match key {
            FlowKey::Narrow(key) => self.narrow_number(key, hash),
            FlowKey::Wide(key) => self.wide_number(key, hash),
        }
    }

    #[inline]
    fn narrow_number(&mut self, key: &NarrowKey, hash: u64) -> u32 {
        let mut i = slot_of(hash, self.narrow.len());
        while let Some(slot) = self.narrow.get(i) {
            if slot.flow == NO_FLOW {
                break;
            }
            if slot.key == *key {
                return slot.flow;
            }
            i = slot_of(i as u64 + 1, self.narrow.len());
        }
        self.insert_narrow(*key, i)
    }

    #[inline]
    fn wide_number(&mut self, key: &WideKey, hash: u64) -> u32 {
        let mut i = slot_of(hash, self.wide.len());
        while let Some(slot) = self.wide.get(i) {
            if slot.at == NO_FLOW {
                break;
            }
            if slot.tag == tag_of(hash)
                && let Some((_, flow)) = self.wide_keys.get(slot.at as usize).filter(|(k, _)| k == key)
            {
                return *flow;
            }
            i = slot_of(i as u64 + 1, self.wide.len());
        }
        self.insert_wide(*key, hash, i)
    }

    #[cold]
    fn insert_narrow(&mut self, key: NarrowKey, at: usize) -> u32 {
        let flow = self.spare_number();
        if let Some(slot) = self.narrow.get_mut(at) {
            *slot = NarrowSlot { key, flow };
        }
        self.narrow_used += 1;
        if self.narrow_used * 4 > self.narrow.len() * 3 {
            let old = std::mem::take(&mut self.narrow);
            self.narrow = vec![EMPTY_NARROW; old.len() * 2];
            for moved in old.into_iter().filter(|s| s.flow != NO_FLOW) {
                let hash = self.hash(&FlowKey::Narrow(moved.key));
                place(&mut self.narrow, hash, moved, |s| s.flow == NO_FLOW);
            }
        }
        flow
    }

    #[cold]
    fn insert_wide(&mut self, key: WideKey, hash: u64, at: usize) -> u32 {
        let flow = self.spare_number();
        if let Some(slot) = self.wide.get_mut(at) {
            *slot = WideSlot { tag: tag_of(hash), at: self.wide_keys.len() as u32 };
        }
        self.wide_keys.push((key, flow));
        if self.wide_keys.len() * 4 > self.wide.len() * 3 {
            self.wide = vec![EMPTY_WIDE; self.wide.len() * 2];
            for (at, (key, _)) in self.wide_keys.iter().enumerate() {
                let hash = FlowKey::Wide(*key).hash64(self.seed);
                let slot = WideSlot { tag: tag_of(hash), at: at as u32 };
                place(&mut self.wide, hash, slot, |s| s.at == NO_FLOW);
            }
        }
        flow
    }

    /// Every key with its number, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (FlowKey, u32)> + '_ {
        let narrow = self.narrow.iter().filter(|s| s.flow != NO_FLOW);
        let narrow = narrow.map(|s| (FlowKey::Narrow(s.key), s.flow));
        narrow.chain(self.wide_keys.iter().map(|(key, flow)| (FlowKey::Wide(*key), *flow)))
    }

    /// Every key with its number, in ascending order of numbers: of first appearance.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = (FlowKey, u32)> + '_ {
        let mut places = vec![NO_FLOW; self.numbers()];
        for (slot, at) in self.narrow.iter().zip(0..).filter(|(slot, _)| slot.flow != NO_FLOW) {
            if let Some(place) = places.get_mut(slot.flow as usize) {
                *place = at;
            }
        }
        let slots = places.into_iter().filter_map(|at| self.narrow.get(at as usize));
        let mut narrow = slots.map(|s| (FlowKey::Narrow(s.key), s.flow)).peekable();
        // Wide keys are pushed as they get their numbers: they are in order already.
        let mut wide = self.wide_keys.iter().map(|(key, flow)| (FlowKey::Wide(*key), *flow)).peekable();
        iter::from_fn(move || match (narrow.peek(), wide.peek()) {
            (Some((_, n)), Some((_, w))) if w < n => wide.next(),
            (None, _) => wide.next(),
            _ => narrow.next(),
        })
    }
}

/// The slot for `hash` in a table of `slots`, a power of two.
#[inline]
fn slot_of(hash: u64, slots: usize) -> usize {
    hash as usize & slots.wrapping_sub(1)
}

#[inline]
fn tag_of(hash: u64) -> u32 {
    (hash >> 32) as u32
}

fn place<T>(slots: &mut [T], hash: u64, item: T, empty: impl Fn(&T) -> bool) {
    let len = slots.len();
    let mut i = slot_of(hash, len);
    while slots.get(i).is_some_and(|s| !empty(s)) {
        i = slot_of(i as u64 + 1, len);
    }
    if let Some(slot) = slots.get_mut(i) {
        *slot = item;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn key(n: u64, wide: bool) -> FlowKey {
        if wide {
            FlowKey::Wide(WideKey([n, 0, 0, 1, 17 << 24 | 6 << 16, 0, 0]))
        } else {
            FlowKey::Narrow(NarrowKey([n, 6 << 24]))
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn numbers_follow_a_hash_map(keys in proptest::collection::vec((0u64..4000, any::<bool>()), 0..6000)) {
            let mut table = FlowTable::new();
            let mut twin = HashMap::new();
            for (n, wide) in keys {
                let key = key(n, wide);
                let next = twin.len() as u32;
                let want = *twin.entry(key).or_insert(next);
                let hash = table.hash(&key);
                prop_assert_eq!(table.get(&key), (want < next).then_some(want));
                prop_assert_eq!(table.number(&key, hash), want);
                prop_assert_eq!(table.get(&key), Some(want));
            }
            prop_assert_eq!(table.numbers(), twin.len());
            let mut in_order: Vec<_> = twin.iter().map(|(k, n)| (*k, *n)).collect();
            in_order.sort_by_key(|(_, n)| *n);
            prop_assert_eq!(table.in_order().collect::<Vec<_>>(), in_order);
            prop_assert_eq!(table.iter().collect::<HashMap<_, _>>(), twin);
        }
    }

    #[test]
    fn keys_whose_hashes_collide_stay_apart() {
        let mut table = FlowTable::new();
        for wide in [false, true] {
            let a = table.number(&key(1, wide), 7);
            let b = table.number(&key(2, wide), 7);
            assert_ne!(a, b);
            assert_eq!(table.number(&key(1, wide), 7), a);
            assert_eq!(table.number(&key(2, wide), 7), b);
        }
    }
}
