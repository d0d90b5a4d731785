//! Bit vectors over rules that no decision tree takes (Lakshman and Stiliadis, "High-speed policy-based
//! packet forwarding using efficient multi-dimensional range matching", 1998; summed up as by Baboescu and
//! Varghese, 2001).
//!
//! The values of each dimension are parted into at most 256 stretches, each with a vector that says which
//! rules reach into it. A packet's five vectors together leave few candidates, which are compared in full.
//! Memory and time to build are in proportion to the rules, whatever they look like.

use std::mem::size_of;

use super::PacketFields;
use super::conjunction::Rest;
use super::entry::{DIMS, Entry, Family, Input, point};
use super::forest::NONE;

/// Stretches of one dimension.
const STRETCHES: usize = 256;

#[derive(Clone, Debug)]
pub(super) struct Bitmap<F: Family> {
    entries: Vec<Entry<F>>,
    dims: Vec<Dim>,
}

/// One dimension.
#[derive(Clone, Debug)]
struct Dim {
    /// The first value of every stretch but the first, ascending.
    starts: Vec<u128>,
    /// The vectors of all stretches, one behind the other.
    vectors: Vec<u64>,
    /// For each stretch which words of its vector have a bit set.
    summaries: Vec<u64>,
}

impl<F: Family> Bitmap<F> {
    /// Vectors over the entries `chosen`, ascending indexes into `input`.
    pub(super) fn new(input: &Input<F>, chosen: &[u32]) -> Self {
        let regions: Vec<_> = chosen.iter().filter_map(|&at| input.regions.get(at as usize)).collect();
        let dims = if regions.is_empty() { 0 } else { DIMS };
        let range = |d: usize| {
            let side = move |r: &[u128; DIMS]| r.get(d).copied().unwrap_or(0);
            regions.iter().map(move |r| (side(&r.lo), side(&r.hi)))
        };
        Self {
            entries: chosen.iter().filter_map(|&at| input.entries.get(at as usize)).copied().collect(),
            dims: (0..dims).map(|d| Dim::new(range(d), regions.len())).collect(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The first rule in it, [`NONE`] where there is none.
    #[inline]
    pub(super) fn first_rule(&self) -> u32 {
        self.entries.first().map_or(NONE, |entry| entry.rule)
    }

    /// The first matching rule from `start` on, if it comes before `best`.
    #[inline(never)]
    pub(super) fn lookup(&self, packet: &PacketFields, rests: &[Rest], start: u32, best: u32) -> u32 {
        let words = self.entries.len().div_ceil(64);
        let mut rows: [(&[u64], &[u64]); DIMS] = [(&[], &[]); DIMS];
        for ((row, dim), value) in rows.iter_mut().zip(&self.dims).zip(point(packet)) {
            *row = dim.row(value, words);
        }
        for group in 0..words.div_ceil(64) {
            let mut summary =
                rows.iter().fold(u64::MAX, |bits, (_, s)| bits & s.get(group).copied().unwrap_or(0));
            while summary != 0 {
                let word = group * 64 + summary.trailing_zeros() as usize;
                summary &= summary - 1;
                let mut bits =
                    rows.iter().fold(u64::MAX, |bits, (v, _)| bits & v.get(word).copied().unwrap_or(0));
                while bits != 0 {
                    let Some(entry) = self.entries.get(word * 64 + bits.trailing_zeros() as usize) else {
                        break;
                    };
                    if entry.rule >= best {
                        return best;
                    }
                    if entry.rule >= start && entry.matches(packet, rests) {
                        return entry.rule;
                    }
                    bits &= bits - 1;
                }
            }
        }
        best
    }

    pub(super) fn memory(&self) -> usize {
        let dim = |d: &Dim| d.starts.len() * 16 + (d.vectors.len() + d.summaries.len()) * 8;
        self.entries.len() * size_of::<Entry<F>>() + self.dims.iter().map(dim).sum::<usize>()
    }
}

impl Dim {
    fn new(ranges: impl Iterator<Item = (u128, u128)> + Clone, count: usize) -> Self {
        let mut edges: Vec<u128> = ranges
            .clone()
            .flat_map(|(lo, hi)| [lo, hi.saturating_add(1)])
            .filter(|&edge| edge != 0)
            .collect();
        edges.sort_unstable();
        edges.dedup();
        let every = edges.len().div_ceil(STRETCHES - 1).max(1);
        let starts: Vec<u128> = edges.into_iter().step_by(every).collect();
        let words = count.div_ceil(64);
        let groups = words.div_ceil(64);
        let mut vectors = vec![0_u64; words * (starts.len() + 1)];
        let mut summaries = vec![0_u64; groups * (starts.len() + 1)];
        for (i, (lo, hi)) in ranges.enumerate() {
            let at = |value: u128| starts.partition_point(|&s| s <= value);
            for stretch in at(lo)..=at(hi) {
                if let Some(word) = vectors.get_mut(stretch * words + i / 64) {
                    *word |= 1 << (i % 64);
                }
                if let Some(group) = summaries.get_mut(stretch * groups + i / 4096) {
                    *group |= 1 << (i / 64 % 64);
                }
            }
        }
        Self { starts, vectors, summaries }
    }

    /// Vector and summary of the stretch that a value is in.
    fn row(&self, value: u128, words: usize) -> (&[u64], &[u64]) {
        let at = self.starts.partition_point(|&s| s <= value);
        let groups = words.div_ceil(64);
        (
            self.vectors.get(at * words..(at + 1) * words).unwrap_or(&[]),
            self.summaries.get(at * groups..(at + 1) * groups).unwrap_or(&[]),
        )
    }
}
