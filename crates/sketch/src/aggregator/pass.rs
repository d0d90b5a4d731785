//! The hot loop: updates into the table, what leaves into the buffer of evictions. No branch depends on a hit or a miss,
//! for the processor could not predict it.

use super::Aggregator;
use crate::Update;
use crate::hash::below;
use crate::simd::{Lookup, Work, prefetch};

/// Updates whose buckets are computed and asked for ahead of use.
const AHEAD: usize = 32;
/// Evictions that are collected before the sink gets them.
pub(super) const FLUSH: usize = 256;
/// Room for evictions.
pub(super) const OUT: usize = FLUSH + 64;

/// Some updates on their way through a table.
pub(super) struct Pass<'a, const N: usize, const LRU: bool> {
    pub(super) table: &'a mut Aggregator<N>,
    pub(super) updates: &'a [Update<N>],
    pub(super) sink: &'a mut dyn FnMut(&[Update<N>]),
    pub(super) hits: &'a mut u64,
}

impl<const N: usize, const LRU: bool> Work for Pass<'_, N, LRU> {
    #[inline(always)]
    fn run<L: Lookup>(&mut self, lookup: L) {
        for some in self.updates.chunks(AHEAD) {
            let mut places = [(0u32, 0u32); AHEAD];
            for (place, update) in places.iter_mut().zip(some) {
                *place = self.table.place(&update.key);
                prefetch(&self.table.buckets, place.0 as usize);
            }
            for (place, update) in places.iter().zip(some) {
                *self.hits += u64::from(self.table.put::<L, LRU>(lookup, *place, update));
            }
            if self.table.out_len >= FLUSH {
                self.table.flush(self.sink);
            }
        }
    }
}

impl<const N: usize> Aggregator<N> {
    /// A key's bucket, and what stands for it in the line.
    #[inline(always)]
    pub(super) fn place(&self, key: &[u8; N]) -> (u32, u32) {
        let folded = self.hasher.fold(key);
        let bucket = below((folded >> 32) as u32, self.buckets.len()) as u32;
        match key.first_chunk::<4>() {
            Some(whole) if N == 4 => (bucket, u32::from_le_bytes(*whole)),
            _ => (bucket, folded as u32),
        }
    }

    /// Puts one update into its bucket; returns whether it found its key there.
    #[inline(always)]
    fn put<L: Lookup, const LRU: bool>(
        &mut self,
        lookup: L,
        (index, print): (u32, u32),
        update: &Update<N>,
    ) -> bool {
        let index = index as usize;
        let (Some(bucket), Some(used), Some(out)) =
            (self.buckets.get_mut(index), self.used.get_mut(index), self.out.get_mut(self.out_len))
        else {
            return false;
        };
        let found = lookup.find(&bucket.keys, print) & u32::from(*used);
        let (hit, full) = (found != 0, *used == u16::MAX);
        let victim = if LRU && full && !hit {
            self.stamps.get(index).map_or(0, |s| oldest(s, self.clock))
        } else {
            self.next
        };
        let free = (!u32::from(*used)).trailing_zeros() as usize;
        let elsewhere = if full { victim } else { free };
        let slot = if hit { found.trailing_zeros() as usize } else { elsewhere } & 15;
        let (Some(line), Some(count)) = (bucket.keys.0.get_mut(slot), bucket.counts.get_mut(slot)) else {
            return false;
        };
        let mut same = hit;
        let key = if N == 4 {
            short_key(*line)
        } else {
            let Some(key) = self.keys.get_mut(index * 16 + slot) else { return false };
            let old = *key;
            same &= old == update.key;
            *key = update.key;
            old
        };
        // A count that would overflow leaves as if it were another key's.
        let (sum, over) = count.overflowing_add(update.weight);
        same &= !over;
        *out = Update { key, weight: *count };
        self.out_len += usize::from((hit | full) & !same);
        *count = if same { sum } else { update.weight };
        *line = print;
        *used |= 1 << slot;
        self.next = (self.next + usize::from(full & !hit)) & 15;
        if LRU {
            self.clock = self.clock.wrapping_add(1);
            if let Some(stamp) = self.stamps.get_mut(index).and_then(|s| s.get_mut(slot)) {
                *stamp = self.clock;
            }
        }
        same
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
