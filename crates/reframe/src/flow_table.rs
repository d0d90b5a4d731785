//! The flow table: from a flow key to what the stage remembers of that flow.
//!
//! An [`Index`] points into entries of 32 bytes, two a cache line, which never move. Keys are compared in
//! full: two flows never share an entry.
//!
//! The table never refuses a flow. When it is full, an entry that holds no packets and was not used lately
//! makes room (second chance, in the order of the entries), and that flow is taken for a new one when it
//! comes again.

use alloc::vec::Vec;

use slipstream_wire::{FlowKey, NarrowKey, WideKey};

use super::block::for_each_run;
use slipstream_core::huge;
use slipstream_core::keys::{KeySlice, StoredKey, is_short};
use slipstream_core::prefetch::prefetch_at;
use slipstream_core::table::Index;
use slipstream_core::time::Nanos;

/// No train, no flow.
pub const NONE: u32 = u32::MAX;

/// From here up to [`NONE`], in place of a train: the last one, whose class is the number from here on, is on
/// its way out, and nothing joins it any more. The entry stays until it is out.
const LEAVING: u32 = NONE - (1 << u8::BITS);

/// Says whether this is a train that packets may join, as [`Entry::train`] has it.
#[inline(always)]
pub(crate) const fn is_open(train: u32) -> bool {
    train < LEAVING
}

/// In place of the wide key of a flow that has none.
const NO_WIDE: WideKey = WideKey([0; 7]);

/// The state of one flow.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(32))]
pub struct Entry {
    /// Of a wide key its hash, the key itself standing beside.
    key: StoredKey,
    /// Arrival of the flow's first packet.
    pub first_seen: Nanos,
    /// Packets counted, and a bit for recent use; see [`Entry::packets`].
    counters: u32,
    /// The train that holds its packets, or [`NONE`]. The 256 numbers before that are no train's either:
    /// they stand for one that is on its way out, until which the entry stays.
    pub train: u32,
}

const _: () = assert!(size_of::<Entry>() == 32);

/// Lowest bit of the counters; the packets are counted above it.
const RECENT: u32 = 1;

impl Entry {
    /// Packets of the flow counted so far (up to 2³¹).
    #[inline(always)]
    #[must_use]
    pub fn packets(&self) -> u32 {
        self.counters >> 1
    }

    /// The train that the flow's next packet may join, or [`NONE`]. On hot paths [`is_open`] is asked about
    /// [`Entry::train`] instead.
    #[inline(always)]
    pub(crate) fn open_train(&self) -> u32 {
        if is_open(self.train) { self.train } else { NONE }
    }

    /// Its train, of this class, is on its way out.
    #[inline(always)]
    pub(crate) fn train_leaves(&mut self, class: u8) {
        self.train = LEAVING + u32::from(class);
    }

    /// A train of another class than this is on its way out.
    #[inline(always)]
    pub(crate) fn leaves_from_other(&self, class: u8) -> bool {
        (LEAVING..NONE).contains(&self.train) && self.train != LEAVING + u32::from(class)
    }

    /// Its train is out; there may be another one by now.
    #[inline(always)]
    pub(crate) fn train_is_out(&mut self) {
        self.train = self.open_train();
    }

    /// Counts packets. Those of a train are counted when it leaves: nobody asks before, and until then the
    /// entry stays anyway.
    #[inline(always)]
    pub fn count(&mut self, packets: u16) {
        self.counters = (self.counters | RECENT).saturating_add(2 * u32::from(packets));
    }
}

/// The flow table of one worker.
///
/// ```
/// use slipstream_reframe::flow_table::{FlowTable, NONE};
/// use slipstream_reframe::{FlowKey, Nanos};
///
/// let key = FlowKey::new(&[], [10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, 4000, 53)?;
/// let mut table = FlowTable::new(1024, 7);
/// let hash = table.hash(&key);
/// assert_eq!(table.candidate(hash), NONE);
/// let (flow, is_new) = table.entry(&key, hash, NONE, Nanos(5));
/// assert!(is_new);
/// table.get_mut(flow).count(3);
///
/// // Its next packets, a batch ahead, a few packets ahead, and when their turn comes.
/// table.prefetch_index(hash);
/// let candidate = table.candidate(hash);
/// assert_eq!(table.entry(&key, hash, candidate, Nanos(9)), (flow, false));
/// let entry = table.get_mut(flow);
/// assert_eq!((entry.packets(), entry.first_seen, entry.train), (3, Nanos(5), NONE));
/// # Ok::<(), slipstream_wire::KeyError>(())
/// ```
#[derive(Debug)]
pub struct FlowTable {
    index: Index,
    entries: Vec<Entry>,
    wide: Vec<WideKey>,
    limit: usize,
    hand: usize,
    seed: u64,
    evictions: u64,
    /// The flow that [`FlowTable::continues`] was last asked about; [`NONE`] once its entry went to another.
    last: u32,
    /// The key of the flow that was last asked about, where its entry went to another.
    last_key: (StoredKey, WideKey),
}

impl FlowTable {
    /// A table for at most `limit` flows, 1 to 2³⁰. Its index has at least twice as many slots, and their
    /// number is a power of two.
    #[must_use]
    pub fn new(limit: u32, seed: u64) -> Self {
        let limit = limit.clamp(1, 1 << 30);
        Self {
            index: Index::new(limit),
            entries: huge::with_capacity(limit as usize),
            wide: Vec::new(),
            limit: limit as usize,
            hand: 0,
            seed,
            evictions: 0,
            last: NONE,
            last_key: (StoredKey::NONE, NO_WIDE),
        }
    }

    /// Sizes in bytes of what a table for so many flows takes, wide keys included.
    pub(crate) fn memory(limit: u32) -> [usize; 3] {
        let of = |size: usize| (limit as usize).saturating_mul(size);
        let index = usize::try_from(Index::memory(limit)).unwrap_or(usize::MAX);
        [index, of(size_of::<Entry>()), of(size_of::<WideKey>())]
    }

    /// Takes the memory for as many wide keys as there can be, which else is taken as they come.
    pub(crate) fn reserve_all(&mut self) {
        self.wide.reserve_exact(self.limit);
    }

    /// Flows that it has room for.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Flows that it has had room for so far; their numbers are below this.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Flows forgotten to make room.
    #[must_use]
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Flows whose place lay far from where their hash says; see [`Index::long_probes`].
    #[must_use]
    pub fn long_probes(&self) -> u64 {
        self.index.long_probes()
    }

    /// The hash of a key, as the other functions want it.
    #[inline]
    #[must_use]
    pub fn hash(&self, key: &FlowKey) -> u64 {
        key.hash64(self.seed)
    }

    /// First step of a look-up, one batch ahead: asks for the index line.
    #[inline]
    pub fn prefetch_index(&self, hash: u64) {
        self.index.prefetch(hash);
    }

    /// Second step: the entry that the flow most likely has, its line asked for. [`NONE`] where the flow is
    /// new.
    #[inline]
    #[must_use]
    pub fn candidate(&self, hash: u64) -> u32 {
        let id = self.index.candidate(hash);
        prefetch_at(&self.entries, id as usize);
        id
    }

    /// The first two steps for several keys: hashes, and the entries that the flows most likely have. Slices
    /// of one length.
    #[inline(always)]
    pub(crate) fn look_ahead(&self, keys: KeySlice<'_>, hashes: &mut [u64], candidates: &mut [u32]) {
        for (key, hash) in keys.kept().iter().zip(hashes.iter_mut()) {
            *hash = self.hash(&FlowKey::Narrow(*key));
            self.prefetch_index(*hash);
        }
        // A loop without calls keeps in registers what it needs: long keys come behind.
        if !keys.all_short() {
            self.hash_long(keys, hashes);
        }
        for (hash, candidate) in hashes.iter().zip(candidates) {
            *candidate = self.candidate(*hash);
        }
    }

    /// As [`FlowTable::look_ahead`], where packets come in runs of one key, up to 64 packets in all: a key is
    /// looked up once a run. Returns a bit for each packet, the lowest for the first: set where a run begins.
    #[inline(never)]
    pub(crate) fn look_ahead_in_runs(
        &self,
        keys: KeySlice<'_>,
        hashes: &mut [u64],
        candidates: &mut [u32],
    ) -> u64 {
        let begins = keys.begins();
        for_each_run(begins, hashes, |at, hashes| {
            let hash = keys.get(at).map_or(0, |key| self.hash(&key));
            self.prefetch_index(hash);
            hashes.fill(hash);
        });
        for_each_run(begins, candidates, |at, candidates| {
            candidates.fill(hashes.get(at).map_or(NONE, |hash| self.candidate(*hash)));
        });
        begins
    }

    #[inline(never)]
    fn hash_long(&self, keys: KeySlice<'_>, hashes: &mut [u64]) {
        for (key, hash) in keys.kept().iter().zip(hashes) {
            if !is_short(*key) {
                *hash = self.hash(keys.long_key(*key));
                self.prefetch_index(*hash);
            }
        }
    }

    /// All entries, by their numbers.
    #[inline(always)]
    pub(crate) fn entries_mut(&mut self) -> &mut [Entry] {
        &mut self.entries
    }

    /// The train of the flow, where `candidate` is its entry.
    #[inline(always)]
    pub(crate) fn train_of(&self, key: &FlowKey, hash: u64, candidate: u32) -> Option<u32> {
        let entry = self.entries.get(candidate as usize)?;
        self.is(candidate, key, StoredKey::of(key, hash)).then_some(entry.train)
    }

    /// The flow that [`FlowTable::continues`] was asked about last; [`NONE`] where nothing is known of it.
    #[inline(always)]
    pub(crate) fn last(&mut self) -> &mut u32 {
        &mut self.last
    }

    /// From now on [`FlowTable::continues`] knows no flow before.
    pub(crate) fn forget_last(&mut self) {
        (self.last, self.last_key) = (NONE, (StoredKey::NONE, NO_WIDE));
    }

    /// From now on [`FlowTable::continues`] takes this flow, which may have no entry, for the one before.
    pub(crate) fn set_last(&mut self, key: &FlowKey) {
        let (hash, wide) = match key {
            FlowKey::Narrow(_) => (0, NO_WIDE),
            FlowKey::Wide(wide) => (self.hash(key), *wide),
        };
        (self.last, self.last_key) = (NONE, (StoredKey::of(key, hash), wide));
    }

    /// The key of the flow that [`FlowTable::continues`] was asked about last, if one is known.
    pub(crate) fn last_flow(&self) -> Option<FlowKey> {
        let (key, wide) = self.last_key;
        self.key_at(self.last).or_else(|| key.flow(wide))
    }

    /// The key of an entry.
    pub(crate) fn key_at(&self, id: u32) -> Option<FlowKey> {
        let entry = self.entries.get(id as usize)?;
        entry.key.flow(self.wide.get(id as usize).copied().unwrap_or(NO_WIDE))
    }

    /// The seed of [`FlowTable::hash`].
    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    #[inline(always)]
    fn is(&self, id: u32, key: &FlowKey, stored: StoredKey) -> bool {
        match self.entries.get(id as usize) {
            Some(entry) if entry.key == stored => match key {
                FlowKey::Narrow(_) => true,
                FlowKey::Wide(wide) => self.wide.get(id as usize) == Some(wide),
            },
            _ => false,
        }
    }

    /// Last step: the flow's entry, made if there is none, and whether it was made. `candidate` is what the
    /// second step said; the table may have changed since.
    ///
    /// A full table must have an entry without a train ([`Entry::train`] is [`NONE`]), which makes room: it
    /// is looked for until it is found. The stage has more entries than it can hold trains.
    #[inline(always)]
    pub fn entry(&mut self, key: &FlowKey, hash: u64, candidate: u32, now: Nanos) -> (u32, bool) {
        let stored = StoredKey::of(key, hash);
        if self.is(candidate, key, stored) {
            return (candidate, false);
        }
        match self.find(key, hash, stored) {
            Some(id) => (id, false),
            None => (self.insert(key, hash, stored, now), true),
        }
    }

    /// The same for one of `keys`, of which the hash and the candidate are known.
    #[inline(always)]
    pub(crate) fn entry_of(
        &mut self,
        keys: &KeySlice<'_>,
        kept: NarrowKey,
        (hash, candidate): (u64, u32),
        now: Nanos,
    ) -> (u32, bool) {
        let key = &FlowKey::Narrow(kept);
        if is_short(kept) && self.is(candidate, key, StoredKey::of(key, hash)) {
            return (candidate, false);
        }
        self.entry_of_any(&keys.key_of(kept), (hash, candidate), now)
    }

    #[inline(never)]
    fn entry_of_any(&mut self, key: &FlowKey, (hash, candidate): (u64, u32), now: Nanos) -> (u32, bool) {
        self.entry(key, hash, candidate, now)
    }

    /// The flow's entry, made if there is none; `None` where another would have to make room.
    pub(crate) fn admit(&mut self, key: &FlowKey, hash: u64, now: Nanos) -> Option<u32> {
        let stored = StoredKey::of(key, hash);
        let room = self.entries.len() < self.limit;
        self.find(key, hash, stored).or_else(|| room.then(|| self.insert(key, hash, stored, now)))
    }

    fn find(&self, key: &FlowKey, hash: u64, stored: StoredKey) -> Option<u32> {
        self.index.find(hash, |id| self.is(id, key, stored))
    }

    #[inline(never)]
    fn insert(&mut self, key: &FlowKey, hash: u64, stored: StoredKey, now: Nanos) -> u32 {
        let entry = Entry { key: stored, first_seen: now, counters: RECENT, train: NONE };
        let id = if self.entries.len() < self.limit {
            self.entries.push(entry);
            (self.entries.len() - 1) as u32
        } else {
            let id = self.evict();
            if let Some(place) = self.entries.get_mut(id as usize) {
                *place = entry;
            }
            id
        };
        if let FlowKey::Wide(wide) = key {
            if self.wide.len() <= id as usize {
                self.wide.resize(id as usize + 1, NO_WIDE);
            }
            if let Some(place) = self.wide.get_mut(id as usize) {
                *place = *wide;
            }
        }
        self.index.insert(hash, id);
        id
    }

    /// Frees an entry that holds nothing, one not used lately if there is one within two turns. There always
    /// is one: the table has more entries than the stage can hold trains.
    fn evict(&mut self) -> u32 {
        self.evictions += 1;
        loop {
            let id = self.hand;
            self.hand = (self.hand + 1) % self.limit;
            let Some(entry) = self.entries.get_mut(id) else { continue };
            if entry.train != NONE {
                continue;
            }
            if entry.counters & RECENT != 0 {
                entry.counters &= !RECENT;
                continue;
            }
            let key = entry.key;
            if self.last == id as u32 {
                self.last_key = (key, self.wide.get(id).copied().unwrap_or(NO_WIDE));
                self.last = NONE;
            }
            self.index.remove(key.hash(self.seed), id as u32);
            return id as u32;
        }
    }

    /// An entry. Numbers come from [`FlowTable::entry`] and stay good while the entry holds a train.
    ///
    /// # Panics
    /// For a number that the table has never given.
    #[inline(always)]
    #[expect(
        clippy::indexing_slicing,
        reason = "entries are never removed, so a number once given out is in range"
    )]
    #[must_use]
    pub fn get_mut(&mut self, id: u32) -> &mut Entry {
        &mut self.entries[id as usize]
    }

    /// Returns true if this is the flow that was asked about last: entry numbers tell, unless the entry was
    /// given to another flow in between.
    #[inline]
    pub fn continues(&mut self, id: u32) -> bool {
        if self.last == id {
            return true;
        }
        let same = self.last == NONE && self.was_last(id);
        self.last = id;
        same
    }

    #[cold]
    fn was_last(&self, id: u32) -> bool {
        let (key, wide) = self.last_key;
        self.entries.get(id as usize).is_some_and(|e| e.key == key)
            && (!key.is_wide() || self.wide.get(id as usize) == Some(&wide))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn key(n: u16) -> FlowKey {
        if n.is_multiple_of(3) {
            FlowKey::Wide(WideKey([u64::from(n), 1, 2, 3, 4, 5, 6]))
        } else {
            FlowKey::Narrow(NarrowKey([u64::from(n), u64::from(n) << 32]))
        }
    }

    proptest! {
        /// Against a map, with collisions forced by a hash of few values, and with entries pinned down by
        /// trains.
        #[test]
        fn never_mixes_flows_up(
            ops in proptest::collection::vec((0u16..60, any::<bool>()), 1..400),
            limit in 8u32..40,
            hashes in 1u64..50,
        ) {
            let mut table = FlowTable::new(limit, 1);
            let mut twin: HashMap<u16, u32> = HashMap::new();
            let mut held: Vec<u16> = Vec::new();
            // Of wide keys only a few hashes; of narrow ones those that a stored key has.
            let hashed = |table: &FlowTable, n: u16| {
                let k = key(n);
                let hash = if matches!(k, FlowKey::Wide(_)) { (u64::from(n) % hashes) << 40 } else { table.hash(&k) };
                (k, hash)
            };
            for (n, hold) in ops {
                let (k, hash) = hashed(&table, n);
                let candidate = table.candidate(hash);
                let (id, _) = table.entry(&k, hash, candidate, Nanos(7));
                if held.contains(&n) {
                    prop_assert_eq!(Some(&id), twin.get(&n), "a held flow lost its entry");
                }
                twin.retain(|other, i| *i != id || *other == n);
                twin.insert(n, id);
                prop_assert_eq!(table.find(&k, hash, StoredKey::of(&k, hash)), Some(id));
                if hold && !held.contains(&n) && held.len() + 2 < limit as usize {
                    held.push(n);
                    table.get_mut(id).train = 1;
                } else if !hold && held.contains(&n) {
                    held.retain(|h| *h != n);
                    table.get_mut(id).train = NONE;
                }
                // Every flow that has an entry is found, and no other.
                for (other, id) in &twin {
                    let (k, hash) = hashed(&table, *other);
                    prop_assert_eq!(table.find(&k, hash, StoredKey::of(&k, hash)), Some(*id));
                }
                prop_assert_eq!(twin.len(), table.len());
            }
        }
    }

    #[test]
    fn a_full_table_makes_room() {
        let mut table = FlowTable::new(16, 3);
        for n in 0..1000u16 {
            let k = key(n);
            let hash = table.hash(&k);
            table.entry(&k, hash, NONE, Nanos(0));
        }
        assert_eq!((table.len(), table.evictions()), (16, 984));
    }

    #[test]
    fn a_key_of_zeros_is_a_key() {
        let mut table = FlowTable::new(16, 3);
        let zero = FlowKey::Narrow(NarrowKey([0, 0]));
        let hash = table.hash(&zero);
        let (id, _) = table.entry(&zero, hash, 5, Nanos(1));
        assert_eq!(table.candidate(hash), id);
    }

    /// The entry of a flow whose train is on its way out goes to no other flow.
    #[test]
    fn who_leaves_stays_until_he_is_out() {
        let mut table = FlowTable::new(16, 3);
        let add = |table: &mut FlowTable, n: u16| {
            let k = key(n);
            let hash = table.hash(&k);
            table.entry(&k, hash, NONE, Nanos(0)).0
        };
        for n in 0..16 {
            let id = add(&mut table, n);
            table.get_mut(id).train_leaves(n as u8);
        }
        assert!(table.get_mut(5).leaves_from_other(4) && !table.get_mut(5).leaves_from_other(5));
        assert_eq!(table.get_mut(5).open_train(), NONE);
        table.get_mut(5).train_is_out();
        assert!(!table.get_mut(5).leaves_from_other(4));
        for n in 100..200 {
            assert_eq!(add(&mut table, n), 5);
        }
        table.get_mut(5).train = 7;
        table.get_mut(5).train_is_out();
        assert_eq!(table.get_mut(5).open_train(), 7);
    }
}
