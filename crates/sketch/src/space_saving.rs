//! Space-Saving (Metwally, Agrawal and El Abbadi, ICDT 2005): the heaviest keys, with bounds, from m
//! counters.
//!
//! A key that has no counter takes the one of the lightest key, and with it that key's count, which it
//! remembers as its own possible error. So the count of a key is never too small and too large by at most
//! N/m, and every key of more than N/m has a counter. Which other keys do depends on the order of updates;
//! the bounds hold in any.
//!
//! A counter takes 16 bytes of keys of 4: its key, its count, and its error as a number of 32 bits that is
//! exact up to 2²⁶ and rounded up beyond. An index of places finds it by key. The lightest counter is not
//! kept at hand, for counts that grow would move it all the time: a sixteenth of the counters, the lightest
//! when they were looked for, wait in a heap; one whose count has grown since is put back, or left out where
//! it grew beyond all that wait. Where none waits, all counters are looked through again.

use std::collections::BinaryHeap;

use crate::hash::{Hasher, below, same_key};
use crate::kind::{cells, need};
use crate::order;
use crate::serial::{Decoder, Encoder, StateError};
use crate::sketch::select;
use crate::state::{State, state_methods};
use crate::{Bounds, BuildError, Confidence, Flow, Kind, QueryError, Question, Size, Sketch, Update, Want};

/// A counter's key, count and error.
type Entry<const N: usize> = ([u8; N], u64, u64);

/// Counters for each that waits in the heap of the lightest.
const WAITING: usize = 16;
/// Counters that a state to be read has room for at first: it believes no length.
const ROOM: usize = 64;

/// A number of up to 64 bits in 32, rounded up where it has more than 26 digits: 26 digits, and by how many
/// it is shifted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rounded(u32);

impl Rounded {
    const DIGITS: u32 = 26;

    fn up(value: u64) -> Self {
        let shift = (u64::BITS - value.leading_zeros()).saturating_sub(Self::DIGITS);
        let digits = (value >> shift) + u64::from(value & ((1 << shift) - 1) > 0);
        // One more may have been carried into a 27th digit.
        let carried = u32::from(digits >> Self::DIGITS > 0);
        Self((shift + carried) << Self::DIGITS | (digits >> carried) as u32)
    }

    fn value(self) -> u64 {
        let digits = u128::from(self.0 & ((1 << Self::DIGITS) - 1));
        u64::try_from(digits << (self.0 >> Self::DIGITS)).unwrap_or(u64::MAX)
    }
}

/// A key and what is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counter<const N: usize> {
    count: u64,
    error: Rounded,
    key: [u8; N],
}

/// Finds counters by the hashes of their keys: places from 1, in a table of half as many more, by linear
/// probing.
#[derive(Clone, Debug)]
enum Index {
    Narrow(Vec<u16>),
    Wide(Vec<u32>),
}

impl Index {
    fn slots(capacity: usize) -> usize {
        capacity + capacity / 2 + 1
    }

    fn new(capacity: usize) -> Self {
        if capacity < usize::from(u16::MAX) {
            Self::Narrow(vec![0; Self::slots(capacity)])
        } else {
            Self::Wide(vec![0; Self::slots(capacity)])
        }
    }

    fn bytes_for(capacity: usize) -> usize {
        Self::slots(capacity) * if capacity < usize::from(u16::MAX) { 2 } else { 4 }
    }

    #[inline(always)]
    fn len(&self) -> usize {
        match self {
            Self::Narrow(slots) => slots.len(),
            Self::Wide(slots) => slots.len(),
        }
    }

    /// The counter at a slot; none where it is empty.
    #[inline(always)]
    fn get(&self, slot: usize) -> Option<usize> {
        let place = match self {
            Self::Narrow(slots) => slots.get(slot).map_or(0, |p| usize::from(*p)),
            Self::Wide(slots) => slots.get(slot).map_or(0, |p| *p as usize),
        };
        place.checked_sub(1)
    }

    #[inline(always)]
    fn set(&mut self, slot: usize, counter: Option<usize>) {
        let place = counter.map_or(0, |c| c + 1);
        match self {
            Self::Narrow(slots) => slots.get_mut(slot).into_iter().for_each(|p| *p = place as u16),
            Self::Wide(slots) => slots.get_mut(slot).into_iter().for_each(|p| *p = place as u32),
        }
    }

    /// The slot at which the search for a hash begins.
    #[inline(always)]
    fn home(&self, hash: u64) -> usize {
        below((hash >> 32) as u32, self.len())
    }

    #[inline(always)]
    fn next(&self, slot: usize) -> usize {
        if slot + 1 == self.len() { 0 } else { slot + 1 }
    }

    /// The slot of the counter that `is` recognises, or the empty one where the search ended.
    #[inline(always)]
    fn find(&self, hash: u64, is: impl Fn(usize) -> bool) -> (usize, Option<usize>) {
        let mut slot = self.home(hash);
        // A third of the slots is always empty, so that every search ends.
        loop {
            match self.get(slot) {
                Some(counter) if !is(counter) => slot = self.next(slot),
                found => return (slot, found),
            }
        }
    }

    /// Empties a slot; those behind it whose search passes it move up.
    #[inline(always)]
    fn remove(&mut self, mut hole: usize, hash_of: impl Fn(usize) -> u64) {
        let mut slot = self.next(hole);
        while let Some(counter) = self.get(slot) {
            let home = self.home(hash_of(counter));
            // Its home isn't between the hole (not included) and where it is.
            let stays = if hole < slot { home > hole && home <= slot } else { home > hole || home <= slot };
            if !stays {
                self.set(hole, Some(counter));
                hole = slot;
            }
            slot = self.next(slot);
        }
        self.set(hole, None);
    }

    fn clear(&mut self) {
        match self {
            Self::Narrow(slots) => slots.fill(0),
            Self::Wide(slots) => slots.fill(0),
        }
    }
}

/// A counter of a key that weighs so much more, perhaps.
fn more<const N: usize>((key, count, error): Entry<N>, by: u64) -> Entry<N> {
    (key, count.saturating_add(by), error.saturating_add(by))
}

/// The heaviest keys.
#[derive(Clone, Debug)]
pub struct SpaceSaving<const N: usize> {
    counters: Vec<Counter<N>>,
    index: Index,
    /// Counters that were the lightest, with their counts at that time, all bits of them turned over: the
    /// lightest is the greatest.
    lightest: BinaryHeap<(u64, u32)>,
    /// No counter outside of `lightest` is lighter than this.
    bar: u64,
    /// By how much those may be heavier than the lightest that are to wait: as much as a few of them are.
    step: u64,
    capacity: usize,
    /// Counters that the index has room for.
    room: usize,
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
        need(Kind::SpaceSaving, Self::bytes_for(capacity))?;
        let mut this = Self::empty(capacity, capacity, seed);
        this.lightest.reserve_exact(Self::waiting(capacity));
        Ok(this)
    }

    /// With room for so many of its counters at first.
    fn empty(capacity: usize, room: usize, seed: u64) -> Self {
        Self {
            counters: Vec::with_capacity(room),
            index: Index::new(room),
            lightest: BinaryHeap::new(),
            bar: 0,
            step: 1,
            capacity,
            room,
            floor: 0,
            hasher: Hasher::new(seed, 0x73_73),
            seed,
            weight: 0,
        }
    }

    /// Counters that wait at most.
    const fn waiting(capacity: usize) -> usize {
        capacity.div_ceil(WAITING)
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
                // The most counters that fit, found by halves.
                let (mut fits, mut too_many) = (1, (budget / size_of::<Counter<N>>() + 2).min(Self::MAX + 1));
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

    /// Bytes that so many counters take, with their index and the heap.
    fn bytes_for(capacity: usize) -> usize {
        capacity * size_of::<Counter<N>>()
            + Index::bytes_for(capacity)
            + Self::waiting(capacity) * size_of::<(u64, u32)>()
    }

    /// The lightest count where all counters are taken: what a key without one may weigh.
    fn least(&self) -> u64 {
        if self.counters.len() < self.capacity {
            return self.floor;
        }
        self.counters.iter().map(|c| c.count).min().unwrap_or(0).max(self.floor)
    }

    #[inline(always)]
    fn add(&mut self, key: &[u8; N], weight: u64) {
        self.weight = self.weight.saturating_add(weight);
        let hash = self.hasher.hash64(key);
        let (slot, found) = self.find(key, hash);
        if let Some(counter) = found.and_then(|i| self.counters.get_mut(i)) {
            counter.count = counter.count.saturating_add(weight);
        } else if self.counters.len() < self.room {
            self.index.set(slot, Some(self.counters.len()));
            let (count, error) = (self.floor.saturating_add(weight), Rounded::up(self.floor));
            self.counters.push(Counter { count, error, key: *key });
        } else if self.room < self.capacity {
            self.grow();
            self.fill(&[(*key, self.floor.saturating_add(weight), self.floor)]);
        } else {
            self.replace(key, hash, weight);
        }
    }

    /// Makes room for twice as many counters: a state that was read begins with room for what it has.
    #[cold]
    fn grow(&mut self) {
        self.room = (self.room * 2).clamp(1, self.capacity);
        let entries = self.unsorted();
        self.counters = Vec::with_capacity(self.room);
        self.index = Index::new(self.room);
        self.fill(&entries);
    }

    #[inline(always)]
    fn find(&self, key: &[u8; N], hash: u64) -> (usize, Option<usize>) {
        self.index.find(hash, |i| self.counters.get(i).is_some_and(|c| same_key(&c.key, key)))
    }

    /// The lightest key's counter becomes this one's.
    #[inline(always)]
    fn replace(&mut self, key: &[u8; N], hash: u64, weight: u64) {
        let place = self.take_lightest();
        let (counters, hasher) = (&mut self.counters, self.hasher);
        let Some(counter) = counters.get_mut(place) else { return };
        let old = hasher.hash64(&counter.key);
        let error = counter.count.max(self.floor);
        *counter = Counter { count: error.saturating_add(weight), error: Rounded::up(error), key: *key };
        if counter.count < self.bar {
            self.lightest.push((!counter.count, place as u32));
        }
        let (slot, _) = self.index.find(old, |i| i == place);
        let counters = &self.counters;
        self.index.remove(slot, |i| counters.get(i).map_or(0, |c| hasher.hash64(&c.key)));
        let (slot, _) = self.index.find(hash, |_| false);
        self.index.set(slot, Some(place));
    }

    /// Takes the lightest counter out of those that wait.
    #[inline(always)]
    fn take_lightest(&mut self) -> usize {
        loop {
            let Some((then, place)) = self.lightest.pop() else {
                self.look_for_lightest();
                continue;
            };
            let now = self.counters.get(place as usize).map_or(0, |c| c.count);
            if now == !then {
                return place as usize;
            }
            if now < self.bar {
                self.lightest.push((!now, place));
            }
        }
    }

    /// Lets the lightest counters wait. There is one at least.
    #[cold]
    fn look_for_lightest(&mut self) {
        let most = Self::waiting(self.capacity);
        let mut found = std::mem::take(&mut self.lightest).into_vec();
        found.reserve_exact(most);
        let least = self.counters.iter().map(|c| c.count).min().unwrap_or(0);
        loop {
            found.clear();
            self.bar = least.saturating_add(self.step);
            let mut light =
                self.counters.iter().zip(0..).filter(|(c, _)| c.count < self.bar || c.count == least);
            found.extend(light.by_ref().take(most).map(|(c, place)| (!c.count, place)));
            if light.next().is_none() {
                break;
            }
            if self.step == 1 {
                // More than may wait are the lightest: any of them will do.
                self.bar = least;
                break;
            }
            self.step /= 2;
        }
        if found.len() < most / 4 {
            self.step = self.step.saturating_mul(2);
        }
        self.lightest = BinaryHeap::from(found);
    }

    /// Says that nothing was put in.
    fn is_empty(&self) -> bool {
        self.counters.is_empty() && self.weight == 0 && self.floor == 0
    }

    /// All counters, in no order.
    fn unsorted(&self) -> Vec<Entry<N>> {
        let mut all = Vec::with_capacity(self.counters.len());
        for counter in &self.counters {
            all.push(counter.entry());
        }
        all
    }

    /// All counters: key, count, error.
    fn entries(&self) -> Vec<Entry<N>> {
        let mut all = self.unsorted();
        order::by_key(&mut all, |e| &e.0);
        all
    }

    /// Fills an empty sketch.
    fn fill(&mut self, entries: &[Entry<N>]) {
        for (key, count, error) in entries {
            if self.counters.len() == self.room {
                self.grow();
            }
            let hash = self.hasher.hash64(key);
            let (slot, _) = self.index.find(hash, |_| false);
            self.index.set(slot, Some(self.counters.len()));
            self.counters.push(Counter { count: *count, error: Rounded::up(*error), key: *key });
        }
    }
}

impl<const N: usize> Counter<N> {
    /// Key, count, error.
    fn entry(&self) -> Entry<N> {
        (self.key, self.count, self.error.value().min(self.count))
    }
}

impl<const N: usize> State<N> for SpaceSaving<N> {
    fn read_parameters(seed: u64, d: &mut Decoder<'_>) -> Result<Self, StateError> {
        let capacity = d.u32()? as usize;
        let floor = d.u64()?;
        if capacity == 0 || capacity > Self::MAX {
            return Err(StateError::Damaged("its shape is impossible"));
        }
        Ok(Self { floor, ..Self::empty(capacity, capacity.min(ROOM), seed) })
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
        let (mut all, mut in_order): (Vec<Entry<N>>, _) = (Vec::with_capacity(entries.len()), true);
        for (key, [count, error]) in entries {
            if error > count {
                return Err(StateError::Damaged("an error is above its count"));
            }
            in_order &= all.last().is_none_or(|before| before.0 < key);
            all.push((key, count, error));
        }
        if !in_order {
            return Err(StateError::Damaged("its keys are out of order"));
        }
        self.fill(&all);
        Ok(())
    }

    fn write_tables(&self, out: &mut Encoder) {
        out.entries(self.entries().into_iter().map(|(key, count, error)| (key, [count, error])));
    }

    fn clear_tables(&mut self) {
        self.counters.clear();
        self.lightest.clear();
        self.index.clear();
        (self.floor, self.bar, self.step) = (0, 0, 1);
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
        // Either side may have seen, unnoticed, as much of a key that only the other one knows.
        let own = self.entries();
        let mut entries = own.clone();
        for entry in &mut entries {
            *entry = more(*entry, theirs);
        }
        for (key, count, error) in other.entries() {
            match own.binary_search_by(|e| e.0.cmp(&key)) {
                Ok(i) => {
                    if let (Some(e), Some((_, own, own_error))) = (entries.get_mut(i), own.get(i)) {
                        *e = (key, own.saturating_add(count), own_error.saturating_add(error));
                    }
                }
                Err(_) => entries.push(more((key, count, error), mine)),
            }
        }
        order::by_rank(&mut entries, |e| e.1, |e| &e.0);
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
            + Index::bytes_for(self.room)
            + self.lightest.capacity() * size_of::<(u64, u32)>()
    }

    fn update(&mut self, key: &[u8; N], weight: u64) {
        self.add(key, weight);
    }

    fn update_all(&mut self, updates: &[Update<N>]) {
        updates.iter().for_each(|u| self.add(&u.key, u64::from(u.weight)));
    }

    fn update_cost(&self) -> f64 {
        4.0
    }

    fn confidence(&self, _: Question) -> Confidence {
        Confidence::Certain
    }

    /// Both bounds are certain.
    fn flow_size(&self, key: &[u8; N]) -> Result<Bounds<u64>, QueryError> {
        let (_, found) = self.find(key, self.hasher.hash64(key));
        Ok(match found.and_then(|i| self.counters.get(i)).map(Counter::entry) {
            Some((_, count, error)) => Bounds { estimate: count, lower: count - error, upper: count },
            None => Bounds { estimate: 0, lower: 0, upper: self.least() },
        })
    }

    fn heavy_hitters(&self, want: Want) -> Result<Vec<Flow<N>>, QueryError> {
        let mut flows = Vec::with_capacity(self.counters.len());
        for (key, count, error) in self.unsorted() {
            flows.push(Flow { key, size: Bounds { estimate: count, lower: count - error, upper: count } });
        }
        Ok(select(flows, want))
    }

    fn unlisted(&self) -> Option<u64> {
        Some(self.least())
    }
}
