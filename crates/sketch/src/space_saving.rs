//! Space-Saving (Metwally, Agrawal and El Abbadi, ICDT 2005): the heaviest keys, with bounds, from m
//! counters.
//!
//! A key that has no counter takes the one of the lightest key, and with it that key's count, which it
//! remembers as its own possible error. So the count of a key is never too small and too large by at most
//! N/m, and every key of more than N/m has a counter. Which other keys do depends on the order of updates;
//! the bounds hold in any.
//!
//! Counters form a heap of four children a node, ordered by count, and a hash table finds them by key.

use hashbrown::HashTable;

use crate::hash::Hasher;
use crate::kind::cells;
use crate::serial::{Decoder, Encoder, StateError};
use crate::sketch::select;
use crate::state::{State, state_methods};
use crate::{Bounds, BuildError, Confidence, Flow, Kind, QueryError, Question, Size, Sketch, Update, Want};

/// A key and what is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counter<const N: usize> {
    key: [u8; N],
    error: u64,
    /// Its place in the heap.
    place: u32,
}

/// A node of the heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Node {
    count: u64,
    /// Whose count it is.
    counter: u32,
}

/// The heaviest keys.
#[derive(Clone, Debug)]
pub struct SpaceSaving<const N: usize> {
    counters: Vec<Counter<N>>,
    heap: Vec<Node>,
    index: HashTable<u32>,
    capacity: usize,
    /// No key without a counter weighs more than this or than the lightest counter. Above 0 only after a
    /// merge.
    floor: u64,
    hasher: Hasher,
    seed: u64,
    weight: u64,
}

impl<const N: usize> SpaceSaving<N> {
    /// The most counters.
    pub const MAX: usize = 1 << 24;

    /// An empty sketch of `capacity` counters: 1 to 2²⁴ (the paper has 128).
    ///
    /// # Errors
    /// [`BuildError`] where the number is out of range.
    pub fn new(capacity: usize, seed: u64) -> Result<Self, BuildError> {
        if capacity == 0 || capacity > Self::MAX {
            let (what, range) = ("the number of counters", "1 to 2^24");
            return Err(BuildError::Parameter { kind: Kind::SpaceSaving, what, range });
        }
        let mut this = Self::empty(capacity, seed);
        this.counters.reserve_exact(capacity);
        this.heap.reserve_exact(capacity);
        this.index = HashTable::with_capacity(Self::index_room(capacity));
        Ok(this)
    }

    fn empty(capacity: usize, seed: u64) -> Self {
        Self {
            counters: Vec::new(),
            heap: Vec::new(),
            index: HashTable::new(),
            capacity,
            floor: 0,
            hasher: Hasher::new(seed, 0x73_73),
            seed,
            weight: 0,
        }
    }

    /// The sketch for a size: for an accuracy, 1/error counters.
    ///
    /// # Errors
    /// [`BuildError`] where the size is impossible.
    pub fn sized(size: Size, seed: u64) -> Result<Self, BuildError> {
        let kind = Kind::SpaceSaving;
        let capacity = match size {
            Size::Memory(budget) => {
                let least = Self::bytes_for(1);
                if budget < least {
                    return Err(BuildError::TooSmall { kind, least, budget });
                }
                // The table of the index grows in powers of two: the most counters that fit, found by halves.
                let (mut fits, mut too_many) = (1, (budget / 8 + 2).min(Self::MAX + 1));
                while too_many - fits > 1 {
                    let middle = fits + (too_many - fits) / 2;
                    if Self::bytes_for(middle) <= budget { fits = middle } else { too_many = middle }
                }
                fits
            }
            Size::Accuracy { error, .. } => cells(kind, 1.0 / error)?,
        };
        Self::new(capacity, seed)
    }

    /// Entries that the index has room for. A key that leaves it leaves a mark, and where marks fill a table
    /// more than half full, it grows; one with twice the room is tidied in place.
    const fn index_room(capacity: usize) -> usize {
        capacity * 2
    }

    /// Bytes that so many counters take; the index as hashbrown makes it: 7/8 full at most, a power of two, a
    /// byte more an entry and 16 at the end.
    fn bytes_for(capacity: usize) -> usize {
        let buckets = match Self::index_room(capacity) {
            0..=3 => 4,
            4..=7 => 8,
            8..=14 => 16,
            n => (n * 8 / 7).next_power_of_two(),
        };
        capacity * (size_of::<Counter<N>>() + size_of::<Node>()) + buckets * 5 + 32
    }

    /// The lightest count where all counters are taken: what a key without one may weigh.
    fn least(&self) -> u64 {
        let lightest = self.heap.first().map_or(0, |n| n.count);
        if self.counters.len() < self.capacity { self.floor } else { lightest.max(self.floor) }
    }

    #[inline(always)]
    fn add(&mut self, key: &[u8; N], weight: u64) {
        self.weight = self.weight.saturating_add(weight);
        let hash = self.hasher.hash64(key);
        let counters = &self.counters;
        let is = |i: &u32| counters.get(*i as usize).is_some_and(|c| c.key == *key);
        if let Some(i) = self.index.find(hash, is) {
            let place = self.counters.get(*i as usize).map_or(0, |c| c.place as usize);
            if let Some(node) = self.heap.get_mut(place) {
                node.count = node.count.saturating_add(weight);
            }
            self.sink(place);
        } else if self.counters.len() < self.capacity {
            let (count, counter) = (self.floor.saturating_add(weight), self.counters.len() as u32);
            self.counters.push(Counter { key: *key, error: self.floor, place: counter });
            self.heap.push(Node { count, counter });
            self.put_in_index(hash, counter);
            self.swim(counter as usize);
        } else {
            self.replace(key, hash, weight);
        }
    }

    /// The lightest key's counter becomes this one's.
    #[inline(always)]
    fn replace(&mut self, key: &[u8; N], hash: u64, weight: u64) {
        let Some(node) = self.heap.first_mut() else { return };
        let (error, counter) = (node.count.max(self.floor), node.counter);
        node.count = error.saturating_add(weight);
        let Some(c) = self.counters.get_mut(counter as usize) else { return };
        let old = self.hasher.hash64(&c.key);
        (c.key, c.error) = (*key, error);
        if let Ok(entry) = self.index.find_entry(old, |i| *i == counter) {
            entry.remove();
        }
        self.put_in_index(hash, counter);
        self.sink(0);
    }

    #[inline(always)]
    fn put_in_index(&mut self, hash: u64, counter: u32) {
        let (counters, hasher) = (&self.counters, self.hasher);
        let rehash = |i: &u32| counters.get(*i as usize).map_or(0, |c| hasher.hash64(&c.key));
        self.index.insert_unique(hash, counter, rehash);
    }

    /// A node whose count grew goes down to where it belongs.
    #[inline(always)]
    fn sink(&mut self, mut place: usize) {
        let Some(node) = self.heap.get(place).copied() else { return };
        loop {
            let first = place * 4 + 1;
            let Some(children) = self.heap.get(first..) else { break };
            let mut least = None;
            for (i, child) in children.iter().take(4).enumerate() {
                if least.is_none_or(|(_, n): (usize, Node)| child.count < n.count) {
                    least = Some((first + i, *child));
                }
            }
            let Some((at, child)) = least.filter(|(_, n)| n.count < node.count) else { break };
            self.settle(place, child);
            place = at;
        }
        self.settle(place, node);
    }

    /// A node that is new at the end goes up to where it belongs.
    fn swim(&mut self, mut place: usize) {
        let Some(node) = self.heap.get(place).copied() else { return };
        while place > 0 {
            let parent = (place - 1) / 4;
            let Some(above) = self.heap.get(parent).copied().filter(|n| n.count > node.count) else { break };
            self.settle(place, above);
            place = parent;
        }
        self.settle(place, node);
    }

    #[inline(always)]
    fn settle(&mut self, place: usize, node: Node) {
        if let Some(at) = self.heap.get_mut(place) {
            *at = node;
        }
        if let Some(counter) = self.counters.get_mut(node.counter as usize) {
            counter.place = place as u32;
        }
    }

    /// Says that nothing was put in.
    fn is_empty(&self) -> bool {
        self.counters.is_empty() && self.weight == 0 && self.floor == 0
    }

    /// All counters: key, count, error.
    fn entries(&self) -> Vec<([u8; N], u64, u64)> {
        let entry = |n: &Node| self.counters.get(n.counter as usize).map(|c| (c.key, n.count, c.error));
        let mut all: Vec<_> = self.heap.iter().filter_map(entry).collect();
        all.sort_unstable();
        all
    }

    /// Fills an empty sketch.
    fn fill(&mut self, entries: &[([u8; N], u64, u64)]) {
        for (key, count, error) in entries {
            let counter = self.counters.len() as u32;
            self.counters.push(Counter { key: *key, error: *error, place: counter });
            self.heap.push(Node { count: *count, counter });
            self.put_in_index(self.hasher.hash64(key), counter);
            self.swim(counter as usize);
        }
    }
}

impl<const N: usize> State<N> for SpaceSaving<N> {
    fn read_parameters(seed: u64, d: &mut Decoder<'_>) -> Result<Self, StateError> {
        let capacity = d.u32()? as usize;
        let floor = d.u64()?;
        if capacity == 0 || capacity > Self::MAX {
            return Err(StateError::Damaged("its shape is impossible"));
        }
        Ok(Self { floor, ..Self::empty(capacity, seed) })
    }

    fn write_parameters(&self, out: &mut Encoder) {
        out.u32(self.capacity as u32);
        out.u64(self.floor);
    }

    fn read_tables(&mut self, d: &mut Decoder<'_>) -> Result<(), StateError> {
        let entries = d.entries::<N, 2>()?;
        if entries.len() > self.capacity {
            return Err(StateError::Damaged("its shape is impossible"));
        }
        if entries.iter().any(|(_, [count, error])| error > count) {
            return Err(StateError::Damaged("an error is above its count"));
        }
        if !entries.is_sorted_by(|a, b| a.0 < b.0) {
            return Err(StateError::Damaged("its keys are out of order"));
        }
        let entries: Vec<_> = entries.into_iter().map(|(key, [count, error])| (key, count, error)).collect();
        self.fill(&entries);
        Ok(())
    }

    fn write_tables(&self, out: &mut Encoder) {
        out.entries(self.entries().into_iter().map(|(key, count, error)| (key, [count, error])));
    }

    fn clear_tables(&mut self) {
        self.counters.clear();
        self.heap.clear();
        self.index.clear();
        self.floor = 0;
    }

    fn unite_tables(&mut self, other: &Self) {
        if other.is_empty() {
            return;
        }
        if self.is_empty() {
            self.floor = other.floor;
            self.fill(&other.entries());
            return;
        }
        let (mine, theirs) = (self.least(), other.least());
        let mut all = std::collections::BTreeMap::new();
        for (key, count, error) in self.entries() {
            all.insert(key, (count, error, theirs));
        }
        for (key, count, error) in other.entries() {
            let e = all.entry(key).or_insert((mine, mine, 0));
            *e = (e.0.saturating_add(count), e.1.saturating_add(error), 0);
        }
        // The other side may have seen, unnoticed, as much of a key that only this one knows.
        let all =
            all.into_iter().map(|(k, (c, e, more))| (k, (c.saturating_add(more), e.saturating_add(more))));
        let mut entries: Vec<_> = all.map(|(key, (count, error))| (key, count, error)).collect();
        entries.sort_unstable_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        let dropped = entries.get(self.capacity).map_or(0, |e| e.1);
        entries.truncate(self.capacity);
        self.clear_tables();
        self.floor = dropped.max(mine.saturating_add(theirs));
        self.fill(&entries);
    }

    fn set_weight(&mut self, weight: u64) {
        self.weight = weight;
    }
}

impl<const N: usize> Sketch<N> for SpaceSaving<N> {
    state_methods!();

    fn kind(&self) -> Kind {
        Kind::SpaceSaving
    }

    fn shape(&self) -> String {
        format!("{} counters", self.capacity)
    }

    fn memory_bytes(&self) -> usize {
        self.counters.capacity() * size_of::<Counter<N>>()
            + self.heap.capacity() * size_of::<Node>()
            + self.index.allocation_size()
    }

    fn update(&mut self, key: &[u8; N], weight: u64) {
        self.add(key, weight);
    }

    fn update_all(&mut self, updates: &[Update<N>]) {
        updates.iter().for_each(|u| self.add(&u.key, u64::from(u.weight)));
    }

    fn update_cost(&self) -> f64 {
        6.0
    }

    fn confidence(&self, _: Question) -> Confidence {
        Confidence::Certain
    }

    /// Both bounds are certain.
    fn flow_size(&self, key: &[u8; N]) -> Result<Bounds<u64>, QueryError> {
        let counters = &self.counters;
        let is = |i: &u32| counters.get(*i as usize).is_some_and(|c| c.key == *key);
        let counter = self.index.find(self.hasher.hash64(key), is).and_then(|i| counters.get(*i as usize));
        Ok(match counter.and_then(|c| Some((self.heap.get(c.place as usize)?.count, c.error))) {
            Some((count, error)) => Bounds { estimate: count, lower: count - error, upper: count },
            None => Bounds { estimate: 0, lower: 0, upper: self.least() },
        })
    }

    fn heavy_hitters(&self, want: Want) -> Result<Vec<Flow<N>>, QueryError> {
        let flow = |(key, count, error): ([u8; N], u64, u64)| Flow {
            key,
            size: Bounds { estimate: count, lower: count - error, upper: count },
        };
        Ok(select(self.entries().into_iter().map(flow).collect(), want))
    }

    fn unlisted(&self) -> Option<u64> {
        Some(self.least())
    }
}
