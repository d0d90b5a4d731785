//! A bounded exact-match table: what a function remembers of a flow, for how long.
//!
//! Keys are held by value and compared in full: two flows never share an entry, whatever a seeded hash says.
//! Entries never move; each begins at a cache line and is found through an [`Index`], so that a look-up reads
//! two lines, both of which can be asked for ahead: [`Table::prefetch_index`] a batch ahead,
//! [`Table::candidate`] a few packets ahead, [`Table::holds`] at last, and [`Table::find`] where the
//! candidate was not the one.
//!
//! Every entry has a deadline. A use sets it anew, which is one write to a line that was read anyway;
//! [`Table::next_due`] gives the entries whose deadline has passed, at a cost that does not depend on how
//! many are alive. All memory is reserved by [`Table::new`]; a full table refuses, and its owner decides
//! whether to refuse too or to make room.

mod index;
mod queue;
mod wheel;

pub use index::{Index, LONG_PROBE};
pub use queue::{Linked, Links, Queue};

use alloc::vec::Vec;
use core::fmt;

use slipstream_wire::{FlowKey, NarrowKey, WideKey};
use wheel::Wheel;

use crate::huge;
use crate::prefetch::prefetch;
use crate::time::Nanos;

/// No entry.
pub const NONE: u32 = u32::MAX;

/// A key of a table.
pub trait Key: Copy + Eq {
    /// A 64-bit hash, uniform in all bits for a secret `seed`, the same on every machine.
    fn hash(&self, seed: u64) -> u64;
}

impl Key for NarrowKey {
    #[inline]
    fn hash(&self, seed: u64) -> u64 {
        FlowKey::Narrow(*self).hash64(seed)
    }
}

impl Key for WideKey {
    #[inline]
    fn hash(&self, seed: u64) -> u64 {
        FlowKey::Wide(*self).hash64(seed)
    }
}

impl Key for FlowKey {
    #[inline]
    fn hash(&self, seed: u64) -> u64 {
        self.hash64(seed)
    }
}

impl Key for u64 {
    #[inline]
    fn hash(&self, seed: u64) -> u64 {
        NarrowKey([*self, 0]).hash(seed)
    }
}

/// The table has as many entries as it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the table is full")
    }
}

impl core::error::Error for Full {}

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Entry<K, V> {
    deadline: Nanos,
    value: V,
    /// Behind what every use changes: a long key may reach into the next cache line.
    key: K,
}

impl<K, V> Entry<K, V> {
    /// Sets its deadline, and tells the wheel of one that is earlier.
    #[inline(always)]
    fn set_deadline(&mut self, id: u32, deadline: Nanos, wheel: &mut Wheel) {
        let before = core::mem::replace(&mut self.deadline, deadline);
        if deadline < before {
            wheel.advance(id, deadline);
        }
    }
}

/// The table.
///
/// ```
/// use slipstream_core::table::{Full, Table};
/// use slipstream_core::time::Nanos;
///
/// /// How long a station is remembered that says nothing, in ns.
/// const TIMEOUT: u64 = 300_000_000_000;
///
/// // Two stations at most, by their addresses; the port behind which each is.
/// let mut stations: Table<u64, u8> = Table::new(2, 1);
/// let learn = |stations: &mut Table<u64, u8>, address, port, now: u64| {
///     let hash = stations.hash(&address);
///     stations.insert(address, hash, port, Nanos(now + TIMEOUT))
/// };
/// let first = learn(&mut stations, 0x02_00_00_00_00_01, 3, 0)?;
/// learn(&mut stations, 0x02_00_00_00_00_02, 4, 10)?;
/// assert_eq!(learn(&mut stations, 0x02_00_00_00_00_03, 5, 20), Err(Full));
/// assert_eq!(stations.find(&0x02_00_00_00_00_01, stations.hash(&0x02_00_00_00_00_01)), Some(first));
///
/// // The first one's time is over; its owner takes it out.
/// let due = stations.next_due(Nanos(TIMEOUT + 5), &mut 16);
/// assert_eq!(due.and_then(|id| stations.remove(id)), Some((0x02_00_00_00_00_01, 3)));
/// # Ok::<(), Full>(())
/// ```
#[derive(Debug)]
pub struct Table<K, V> {
    index: Index,
    entries: Vec<Entry<K, V>>,
    wheel: Wheel,
    limit: u32,
    len: u32,
    seed: u64,
}

impl<K: Key, V: Copy> Table<K, V> {
    /// A table of at most `limit` entries (1 to 2³⁰), hashed with `seed`.
    #[must_use]
    pub fn new(limit: u32, seed: u64) -> Self {
        let limit = limit.clamp(1, 1 << 30);
        Self {
            index: Index::new(limit),
            entries: huge::with_capacity(limit as usize),
            wheel: Wheel::new(limit as usize),
            limit,
            len: 0,
            seed,
        }
    }

    /// Memory that tables of at most `limit` entries take when they are made, in bytes: one number for each
    /// piece of it.
    #[must_use]
    pub fn memory(limit: u32) -> [u64; 3] {
        let limit = limit.clamp(1, 1 << 30);
        let entries = u64::from(limit) * size_of::<Entry<K, V>>() as u64;
        [Index::memory(limit), entries, Wheel::memory(limit)]
    }

    /// Entries in the table, those included that are due and not yet taken out.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Returns true if it has no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns true if [`Table::insert`] would refuse.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.len == self.limit
    }

    /// The hash of a key, as the other functions want it.
    #[inline]
    #[must_use]
    pub fn hash(&self, key: &K) -> u64 {
        key.hash(self.seed)
    }

    /// Entries whose place lay far from where their hash says; see [`Index::long_probes`].
    #[must_use]
    pub const fn long_probes(&self) -> u64 {
        self.index.long_probes()
    }

    /// First step of a look-up, one batch ahead: asks for the index line.
    #[inline]
    pub fn prefetch_index(&self, hash: u64) {
        self.index.prefetch(hash);
    }

    /// Second step: the entry that the key most likely has, its line asked for. [`NONE`] where there is none.
    #[inline]
    #[must_use]
    pub fn candidate(&self, hash: u64) -> u32 {
        let id = self.index.candidate(hash);
        self.prefetch_entry(id);
        id
    }

    /// Asks for the line of an entry that another index found.
    #[inline]
    pub fn prefetch_entry(&self, id: u32) {
        prefetch(self.entries.get(id as usize));
    }

    /// Last step: the key's entry.
    #[inline]
    #[must_use]
    pub fn find(&self, key: &K, hash: u64) -> Option<u32> {
        self.index.find(hash, |id| self.entries.get(id as usize).is_some_and(|e| e.key == *key))
    }

    /// Adds an entry for a key that has none, due at `deadline` ([`Nanos::MAX`]: never).
    ///
    /// # Errors
    /// [`Full`] when there is no room.
    pub fn insert(&mut self, key: K, hash: u64, value: V, deadline: Nanos) -> Result<u32, Full> {
        if self.is_full() {
            return Err(Full);
        }
        let id = self.wheel.take();
        let entry = Entry { deadline, value, key };
        match self.entries.get_mut(id as usize) {
            Some(place) => *place = entry,
            None => self.entries.push(entry),
        }
        self.len += 1;
        self.index.insert(hash, id);
        self.wheel.link(id, deadline);
        Ok(id)
    }

    /// Takes an entry out; `None` if the number is not in use.
    pub fn remove(&mut self, id: u32) -> Option<(K, V)> {
        let place = self.entries.get_mut(id as usize)?;
        let entry = *place;
        if !self.wheel.give_back(id) {
            return None;
        }
        // Nobody takes it for one that is in use.
        place.deadline = Nanos(0);
        self.len -= 1;
        self.index.remove(entry.key.hash(self.seed), id);
        Some((entry.key, entry.value))
    }

    /// The value of an entry. (Of one taken out: the last it had, until its number is used again.)
    #[inline]
    #[must_use]
    pub fn get(&self, id: u32) -> Option<&V> {
        self.entries.get(id as usize).map(|e| &e.value)
    }

    /// The value of an entry, to change.
    #[inline]
    #[must_use]
    pub fn get_mut(&mut self, id: u32) -> Option<&mut V> {
        self.entries.get_mut(id as usize).map(|e| &mut e.value)
    }

    /// The key of an entry.
    #[inline]
    #[must_use]
    pub fn key(&self, id: u32) -> Option<&K> {
        self.entries.get(id as usize).map(|e| &e.key)
    }

    /// The time at which an entry is due; 0 for a number that is not in use.
    #[inline]
    #[must_use]
    pub fn deadline(&self, id: u32) -> Nanos {
        self.entries.get(id as usize).map_or(Nanos(0), |e| e.deadline)
    }

    /// Returns true if an entry is due: its time has passed, though it was not taken out yet.
    #[inline]
    #[must_use]
    pub fn is_due(&self, id: u32, now: Nanos) -> bool {
        self.deadline(id) <= now
    }

    /// Sets a deadline that is not before the present one: what a use does.
    #[inline]
    pub fn extend(&mut self, id: u32, deadline: Nanos) {
        if let Some(entry) = self.entries.get_mut(id as usize) {
            entry.deadline = entry.deadline.max(deadline);
        }
    }

    /// Returns true if an entry is that of a key, and not due at `now`: a [`candidate`](Table::candidate) may
    /// be another's, or may have been taken out since. (Nobody sets the deadline of one that was taken out.)
    #[inline(always)]
    #[must_use]
    pub fn holds(&self, id: u32, key: &K, now: Nanos) -> bool {
        self.entries.get(id as usize).is_some_and(|e| e.key == *key && e.deadline > now)
    }

    /// Uses an entry: `change` changes its value and gives its new deadline.
    #[inline(always)]
    pub fn touch(&mut self, id: u32, change: impl FnOnce(&mut V) -> Nanos) {
        if let Some(entry) = self.entries.get_mut(id as usize) {
            let deadline = change(&mut entry.value);
            entry.set_deadline(id, deadline, &mut self.wheel);
        }
    }

    /// Sets any deadline.
    #[inline]
    pub fn set_deadline(&mut self, id: u32, deadline: Nanos) {
        if let Some(entry) = self.entries.get_mut(id as usize) {
            entry.set_deadline(id, deadline, &mut self.wheel);
        }
    }

    /// Returns true if no entry is due at `now` that [`next_due`](Table::next_due) would find.
    #[inline(always)]
    pub fn is_quiet(&self, now: Nanos) -> bool {
        self.wheel.is_quiet(now)
    }

    /// The next entry that is due at `now`, for its owner to [`remove`](Table::remove) (or give a new
    /// deadline by [`renew`](Table::renew)); `None` if there is none, or after `visits` entries were looked
    /// at, which it counts down. Entries come out at most 67 ms after they were due, if this is called that
    /// often.
    #[inline(always)]
    pub fn next_due(&mut self, now: Nanos, visits: &mut u32) -> Option<u32> {
        if self.wheel.is_quiet(now) { None } else { self.look_for_due(now, visits) }
    }

    #[inline(never)]
    fn look_for_due(&mut self, now: Nanos, visits: &mut u32) -> Option<u32> {
        while *visits > 0 {
            *visits -= 1;
            let id = self.wheel.next_due(now)?;
            let deadline = self.deadline(id);
            if deadline <= now {
                return Some(id);
            }
            self.wheel.link(id, deadline);
        }
        None
    }

    /// Gives an entry that [`next_due`](Table::next_due) returned another deadline.
    pub fn renew(&mut self, id: u32, deadline: Nanos) {
        if let Some(entry) = self.entries.get_mut(id as usize).filter(|_| self.wheel.in_use(id)) {
            entry.deadline = deadline;
            self.wheel.link(id, deadline);
        }
    }

    /// An entry to give up for another: about the one that is due first. `None` where no entry has a
    /// deadline.
    pub fn soonest(&mut self) -> Option<u32> {
        const TRIES: usize = 8;
        for _ in 0..TRIES {
            let id = self.wheel.soonest()?;
            // One that was used since it was hung up goes to where it belongs now, and the next one is asked.
            self.wheel.link(id, self.deadline(id));
            if self.wheel.soonest() == Some(id) {
                return Some(id);
            }
        }
        self.wheel.soonest()
    }

    /// Numbers of the entries among so many places from place `from` on, and the place behind them; none at
    /// the end of the table. A place's number is that of the entry in it.
    pub fn ids_from(&self, from: u32, places: u32) -> (impl Iterator<Item = u32> + '_, Option<u32>) {
        let all = self.entries.len() as u32;
        let end = from.saturating_add(places).min(all);
        ((from..end).filter(|&id| self.wheel.in_use(id)), (end < all).then_some(end))
    }

    /// Numbers of all entries, in the order of their numbers.
    pub fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.entries.len() as u32).filter(|&id| self.wheel.in_use(id))
    }
}

#[cfg(test)]
mod tests;
