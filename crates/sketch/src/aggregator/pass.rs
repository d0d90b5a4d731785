//! The hot loop: updates into the table, what leaves into the buffer of evictions.
//!
//! Updates are taken in by blocks. First runs of one key are joined, and their buckets asked for. Then all
//! runs are looked up: what is found is added, without a branch on whether it was, for the processor could
//! not predict it; what is not found is put on a list. Last, the list is put in, and what it displaces
//! leaves. So keys are written only after a whole block was compared: a comparison that loads a line into
//! which four bytes were just stored would have to wait until the store has left its buffer, because a store
//! can't be forwarded to a longer load.

use std::hint::select_unpredictable;

use super::{Aggregator, Bucket};
use crate::Update;
use crate::hash::{Hasher, below, same_key};
use crate::simd::{Lookup, Work, prefetch, prefetch_at};

/// Updates of a block: a power of two, so that an index into it needs no check.
pub(super) const BLOCK: usize = 64;
/// Room for evictions: a power of two, too.
pub(super) const OUT: usize = 256;
/// Evictions that are collected before the sink gets them; what one block of updates or one bucket gives
/// still fits.
pub(super) const FLUSH: usize = OUT - BLOCK;

/// Some updates on their way through a table.
pub(super) struct Pass<'a, const N: usize, const LRU: bool> {
    pub(super) table: &'a mut Aggregator<N>,
    pub(super) updates: &'a [Update<N>],
    pub(super) sink: &'a mut dyn FnMut(&[Update<N>]),
    pub(super) tally: Tally,
}

/// Counts of updates, by what became of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    /// Runs that updates were joined to.
    pub(super) runs: u64,
    /// Runs whose key was in the table.
    pub(super) hits: u64,
}

/// Of so many blocks without runs, only one is searched for runs again.
const SEARCH_EVERY: u32 = 8;

/// A key's bucket, and what stands for it in the line.
#[derive(Clone, Copy, Default)]
pub(super) struct Place {
    pub(super) bucket: u32,
    pub(super) print: u32,
}

impl<const N: usize, const LRU: bool> Work for Pass<'_, N, LRU> {
    #[inline(always)]
    fn run<L: Lookup>(&mut self, lookup: L) {
        let table = &mut *self.table;
        let hasher = table.hasher;
        let mut hot = Hot::<N, LRU> {
            buckets: &mut table.buckets,
            used: &mut table.used,
            keys: &mut table.keys,
            stamps: &mut table.stamps,
            out: &mut table.out,
            out_len: table.out_len,
            next: table.next,
            clock: table.clock,
        };
        let mut joined = [Update { key: [0; N], weight: 0 }; BLOCK];
        let mut places = [Place::default(); BLOCK];
        let mut missed = [0u32; BLOCK];
        let mut skip = 0;
        for some in self.updates.chunks(BLOCK) {
            let mut runs = some;
            if skip == 0 {
                let n = join_runs(some, &mut joined);
                runs = joined.get(..n).unwrap_or_default();
                skip = if are_rare(n, some.len()) { SEARCH_EVERY } else { 1 };
            }
            skip -= 1;
            let Some(places) = places.get_mut(..runs.len()) else { break };
            for (place, run) in places.iter_mut().zip(runs) {
                *place = Place::of(&hasher, hot.used.len(), &run.key);
                prefetch(hot.buckets, place.bucket as usize);
                prefetch_at(hot.buckets, place.bucket as usize, 64);
            }
            let misses = hot.find(lookup, runs, places, &mut missed);
            self.tally.runs += runs.len() as u64;
            self.tally.hits += (runs.len() - misses) as u64;
            for at in missed.iter().take(misses) {
                if let (Some(run), Some(place)) = (runs.get(*at as usize), places.get(*at as usize)) {
                    self.tally.hits += u64::from(hot.insert(lookup, *place, run));
                }
            }
            if hot.out_len >= FLUSH {
                (self.sink)(hot.out.get(..hot.out_len).unwrap_or_default());
                hot.out_len = 0;
            }
        }
        let Hot { out_len, next, clock, .. } = hot;
        (table.out_len, table.next, table.clock) = (out_len, next, clock);
    }
}

/// Says that so few updates were joined that the search isn't worth its time.
pub(super) const fn are_rare(runs: usize, updates: usize) -> bool {
    runs * 10 > updates * 9
}

/// Counts the runs of one key.
pub(super) fn count_runs<const N: usize>(updates: &[Update<N>]) -> usize {
    let ends = updates.iter().zip(updates.iter().skip(1)).filter(|(a, b)| !same_key(&a.key, &b.key));
    ends.count() + usize::from(!updates.is_empty())
}

/// Joins updates of one key that follow one another; returns how many there are then. A run ends early where
/// its weight would overflow. `M` is a power of two, and there are at most so many updates.
#[inline(always)]
pub(super) fn join_runs<const N: usize, const M: usize>(
    updates: &[Update<N>],
    runs: &mut [Update<N>; M],
) -> usize {
    let Some(mut before) = updates.first() else { return 0 };
    let (mut weight, mut at) = (0u32, 0);
    for update in updates {
        let (sum, over) = weight.overflowing_add(update.weight);
        let same = same_key(&update.key, &before.key) & !over;
        weight = select_unpredictable(same, sum, update.weight);
        at += usize::from(!same);
        if let Some(run) = runs.get_mut(at & (M - 1)) {
            *run = Update { key: update.key, weight };
        }
        before = update;
    }
    at + 1
}

impl Place {
    /// Chooses the bucket of a key, among so many.
    #[inline(always)]
    pub(super) fn of<const N: usize>(hasher: &Hasher, buckets: usize, key: &[u8; N]) -> Self {
        let folded = hasher.fold(key);
        let bucket = below((folded >> 32) as u32, buckets) as u32;
        match key.first_chunk::<4>() {
            Some(whole) if N == 4 => Self { bucket, print: u32::from_le_bytes(*whole) },
            _ => Self { bucket, print: folded as u32 },
        }
    }
}

/// The tables and indices of an aggregator while updates pass. What is here can live in registers; in the
/// aggregator itself it might be changed by any store into its tables, as far as the compiler can tell.
struct Hot<'a, const N: usize, const LRU: bool> {
    buckets: &'a mut [Bucket],
    used: &'a mut [u16],
    keys: &'a mut [[u8; N]],
    stamps: &'a mut [[u32; 16]],
    out: &'a mut [Update<N>; OUT],
    out_len: usize,
    next: usize,
    clock: u32,
}

impl<const N: usize, const LRU: bool> Hot<'_, N, LRU> {
    /// Adds the runs whose keys are there, and lists the others; returns how many these are.
    #[inline(always)]
    fn find<L: Lookup>(
        &mut self,
        lookup: L,
        runs: &[Update<N>],
        places: &[Place],
        missed: &mut [u32; BLOCK],
    ) -> usize {
        let mut masks = [0u32; BLOCK];
        if N != 4 {
            for (place, mask) in places.iter().zip(&mut masks) {
                *mask = self.mask(lookup, *place);
                prefetch(self.keys, place.bucket as usize * 16 + (mask.trailing_zeros() & 15) as usize);
            }
        }
        let mut misses = 0;
        for (i, ((place, run), mask)) in places.iter().zip(runs).zip(&masks).enumerate() {
            let index = place.bucket as usize;
            let found = if N == 4 { self.mask(lookup, *place) } else { *mask };
            let slot = found.trailing_zeros() as usize & 15;
            let mut hit = found != 0;
            if N != 4 {
                hit &= self.keys.get(index * 16 + slot).is_some_and(|key| same_key(key, &run.key));
            }
            if let Some(count) = self.buckets.get_mut(index).and_then(|b| b.counts.get_mut(slot)) {
                let (sum, over) = count.overflowing_add(run.weight);
                hit &= !over;
                *count = select_unpredictable(hit, sum, *count);
            }
            if LRU {
                self.clock = self.clock.wrapping_add(1);
                if let Some(stamp) = self.stamps.get_mut(index).and_then(|s| s.get_mut(slot)) {
                    *stamp = select_unpredictable(hit, self.clock, *stamp);
                }
            }
            if let Some(missed) = missed.get_mut(misses & (BLOCK - 1)) {
                *missed = i as u32;
            }
            misses += usize::from(!hit);
        }
        misses
    }

    /// Which entries of a bucket are there and have this key or fingerprint.
    #[inline(always)]
    fn mask<L: Lookup>(&self, lookup: L, place: Place) -> u32 {
        match (self.buckets.get(place.bucket as usize), self.used.get(place.bucket as usize)) {
            (Some(bucket), Some(used)) => lookup.find(&bucket.keys, place.print) & u32::from(*used),
            _ => 0,
        }
    }

    /// Puts a run in that was not found, if no run before it was of the same key; returns whether one was.
    #[inline(always)]
    fn insert<L: Lookup>(&mut self, lookup: L, place: Place, run: &Update<N>) -> bool {
        let index = place.bucket as usize;
        let (Some(bucket), Some(used)) = (self.buckets.get_mut(index), self.used.get_mut(index)) else {
            return false;
        };
        let found = lookup.find(&bucket.keys, place.print) & u32::from(*used);
        let full = *used == u16::MAX;
        let slot = match () {
            () if found != 0 => found.trailing_zeros() as usize,
            () if !full => (!u32::from(*used)).trailing_zeros() as usize,
            () if LRU => self.stamps.get(index).map_or(0, |s| oldest(s, self.clock)),
            () => self.next,
        } & 15;
        let (Some(word), Some(count)) = (bucket.keys.0.get_mut(slot), bucket.counts.get_mut(slot)) else {
            return false;
        };
        if LRU {
            self.clock = self.clock.wrapping_add(1);
            if let Some(stamp) = self.stamps.get_mut(index).and_then(|s| s.get_mut(slot)) {
                *stamp = self.clock;
            }
        }
        let old = match N {
            4 => short_key(*word),
            _ => self.keys.get(index * 16 + slot).copied().unwrap_or([0; N]),
        };
        // A count that would overflow leaves as if it were another key's.
        if found != 0
            && same_key(&old, &run.key)
            && let Some(sum) = count.checked_add(run.weight)
        {
            *count = sum;
            return true;
        }
        if found != 0 || full {
            if let Some(out) = self.out.get_mut(self.out_len & (OUT - 1)) {
                *out = Update { key: old, weight: *count };
            }
            self.out_len += 1;
            self.next = (self.next + usize::from(found == 0)) & 15;
        }
        *word = place.print;
        *count = run.weight;
        *used |= 1 << slot;
        if N != 4
            && let Some(at) = self.keys.get_mut(index * 16 + slot)
        {
            *at = run.key;
        }
        false
    }
}

/// A key of four bytes from its place in the line.
#[inline(always)]
pub(super) fn short_key<const N: usize>(print: u32) -> [u8; N] {
    let bytes = print.to_le_bytes();
    std::array::from_fn(|i| bytes.get(i).copied().unwrap_or(0))
}

/// The position with the greatest age; ages are told right for 2³² updates.
#[inline(always)]
fn oldest(stamps: &[u32; 16], now: u32) -> usize {
    let (mut at, mut age) = (0, 0);
    for (i, stamp) in stamps.iter().enumerate() {
        let its = now.wrapping_sub(*stamp);
        if its > age {
            (at, age) = (i, its);
        }
    }
    at
}
