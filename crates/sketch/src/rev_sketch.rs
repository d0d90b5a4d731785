//! RevSketch, the reversible sketch (Schweller et al., IMC 2004 and IEEE/ACM ToN 15, 2007): which keys
//! changed between two epochs, found from the sketches alone.
//!
//! Counters as in Count-Min, but their number comes from a hash that can be undone (`modular`): of two
//! epochs' difference, the buckets that stand out lead back to the keys. A second, ordinary sketch
//! (*verification*) weeds out keys that are found by chance, and makes estimates better.
//!
//! States are linear: shards add up, and any two epochs can be compared. A full counter has the value that
//! its row lacks of the whole weight; where a row has several, each has its share, and bounds are as much
//! wider (module `full`).

use std::cell::LazyCell;
use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::full::{self, END, FullRow};
use crate::hash::{Hasher, below};
use crate::kind::{cells, need};
use crate::modular::{
    Heavy, MAX_HEAVY, MAX_LEN, MAX_PATHS, MAX_STAGES, Modular, TABLES, bucket_of, heaviest,
};
use crate::serial::{Decoder, Encoder, StateError};
use crate::simd::prefetch;
use crate::sketch::{same, select, select_changes};
use crate::state::{Add, State, state_methods, tables};
use crate::stats::{SHARE, median};
use crate::{
    Bounds, BuildError, Change, Confidence, Flow, Kind, MergeError, QueryError, Question, Size, Sketch,
    Update, Want,
};

/// Rows of the verification sketch.
const CHECKS: usize = 2;
const AHEAD: usize = 16;
/// Of a change at the promised threshold, the share of its size that a bucket must show.
const SHOWN: i64 = 2;
/// Standard deviations of a bucket's noise that half the promised threshold is away.
const SIGMAS: f64 = 5.0;
/// Partial keys that are followed at most, until the search is narrowed to fewer buckets,
const PATHS_AT_ONCE: usize = 1 << 17;
/// and searches for one answer.
const SEARCHES: usize = 64;

/// Heavy changes by key, and heavy hitters.
#[derive(Clone, Debug)]
pub struct RevSketch<const N: usize> {
    /// Stage after stage, table after table; then the verification rows.
    cells: Vec<u32>,
    bits: u32,
    modular: Modular,
    checks: Hasher,
    seed: u64,
    weight: u64,
}

impl<const N: usize> RevSketch<N> {
    /// An empty sketch with tables of 2^`bits` counters: 8 to 16 (as in the paper). Keys of up to four bytes
    /// take 4 tables and 2 for verification; every three bytes more take another 4.
    ///
    /// # Errors
    /// [`BuildError`] where a parameter is out of range.
    pub fn new(bits: u32, seed: u64) -> Result<Self, BuildError> {
        Self::check(bits)?;
        need(Kind::RevSketch, (Self::rows() * 4) << bits)?;
        let modular = Modular::new(N, bits, seed);
        Ok(Self { cells: vec![0; Self::rows() << bits], ..Self::without_cells(bits, modular, seed) })
    }

    fn without_cells(bits: u32, modular: Modular, seed: u64) -> Self {
        Self { cells: Vec::new(), bits, modular, checks: Hasher::new(seed, 0x72_65_76), seed, weight: 0 }
    }

    fn check(bits: u32) -> Result<(), BuildError> {
        let wrong = |what, range| Err(BuildError::Parameter { kind: Kind::RevSketch, what, range });
        if N == 0 || N > MAX_LEN {
            return wrong("the key length", "1 to 64 bytes");
        }
        if !(8..=16).contains(&bits) {
            return wrong("the bits of a bucket's number", "8 to 16");
        }
        Ok(())
    }

    const fn rows() -> usize {
        Modular::stages_for(N) * TABLES + CHECKS
    }

    /// The sketch for a size: the largest tables that a budget holds; for an accuracy, 2¹⁶ or fewer counters
    /// a table, 4/error² of them at least, which makes a bucket's noise half the error of the root of Σ
    /// change².
    ///
    /// # Errors
    /// [`BuildError`] where the size is impossible.
    pub fn sized(size: Size, seed: u64) -> Result<Self, BuildError> {
        let kind = Kind::RevSketch;
        let bits = match size {
            Size::Memory(budget) => {
                let hashes = Modular::bytes_for(N);
                let least = (Self::rows() << 8) * 4 + hashes;
                if budget < least {
                    return Err(BuildError::TooSmall { kind, least, budget });
                }
                ((budget - hashes) / 4 / Self::rows()).ilog2().min(16)
            }
            Size::Accuracy { error, .. } => {
                let width = cells(kind, 4.0 / (error * error))?;
                if width > 1 << 16 {
                    return Err(BuildError::TooLarge {
                        kind,
                        what: "this accuracy",
                        limit: 1 << 16,
                        of: "counters a table",
                    });
                }
                width.next_power_of_two().ilog2().max(8)
            }
        };
        Self::new(bits, seed)
    }

    #[inline(always)]
    fn check_cells(&self, key: &[u8; N]) -> [usize; CHECKS] {
        let [a, b, ..] = self.checks.hash(key).pieces();
        let (w, first) = (self.width(), self.modular.stages() * TABLES);
        [(first << self.bits) + below(a, w), ((first + 1) << self.bits) + below(b, w)]
    }

    #[inline(always)]
    fn each_cell(&self, key: &[u8; N], mut f: impl FnMut(usize)) {
        let mut buckets = [0; MAX_STAGES];
        self.modular.buckets(key, &mut buckets);
        for (stage, packed) in buckets.iter().enumerate().take(self.modular.stages()) {
            for t in 0..TABLES {
                f(((stage * TABLES + t) << self.bits) + bucket_of(*packed, t));
            }
        }
        self.check_cells(key).into_iter().for_each(f);
    }

    /// All cells of a key, those of verification last.
    fn places(&self, key: &[u8; N]) -> Vec<usize> {
        let mut places = Vec::with_capacity(Self::rows());
        self.each_cell(key, |i| places.push(i));
        places
    }

    /// The sketch without its keys.
    fn view(&self) -> View<'_> {
        View { cells: &self.cells, bits: self.bits, weight: self.weight }
    }

    /// Counters of a row.
    fn width(&self) -> usize {
        1 << self.bits
    }

    /// The bounds of a size, with what [`View::ends`] says where it is asked.
    fn bounds(&self, key: &[u8; N], ends: &dyn Fn() -> (u64, u64)) -> Bounds<u64> {
        self.view().bounds(&self.places(key), ends)
    }

    /// Calls a function with an earlier state subtracted from this one; none is a state without packets.
    fn with_difference<T>(&self, earlier: Option<&Self>, f: impl FnOnce(Difference<'_>) -> T) -> T {
        let places = |key: &[u8]| key.first_chunk().map_or_else(Vec::new, |key| self.places(key));
        f(Difference::new(self.view(), earlier.map(Self::view), &self.modular, &places))
    }

    /// Lists changes: see [`Difference::changes`].
    fn changes(&self, earlier: Option<&Self>, want: Want, paths: usize) -> Vec<Change<N>> {
        let found = self.with_difference(earlier, |difference| difference.changes(want, paths));
        let mut changes = Vec::with_capacity(found.len());
        for (key, change) in &found {
            if let Some(key) = key.first_chunk() {
                changes.push(Change { key: *key, change: *change });
            }
        }
        select_changes(changes, want)
    }

    /// The least change (in weight) against an earlier epoch that is found: ten times the standard deviation
    /// of a bucket's noise. One is lost only where opposite changes of its size share its buckets in two
    /// tables or, of keys longer than four bytes, in two of one stage or in three of all.
    ///
    /// # Errors
    /// [`MergeError`] where the states don't fit together.
    pub fn promised(&self, earlier: &dyn Sketch<N>) -> Result<u64, MergeError> {
        Ok(self.with_difference(Some(same(self, earlier)?), |difference| difference.promised()))
    }
}

/// All of a sketch but its keys: the same code for keys of all lengths.
#[derive(Clone, Copy)]
struct View<'a> {
    cells: &'a [u32],
    bits: u32,
    weight: u64,
}

impl<'a> View<'a> {
    const fn width(self) -> usize {
        1 << self.bits
    }

    fn is_saturated(self) -> bool {
        self.cells.contains(&u32::MAX)
    }

    /// The least and the most that the least counter of a key may stand for, where all of them are full.
    fn ends(self) -> (u64, u64) {
        full::ends(self.cells, self.width(), self.weight)
    }

    /// The bounds of the size of a key with these cells.
    fn bounds(self, places: &[usize], ends: &dyn Fn() -> (u64, u64)) -> Bounds<u64> {
        let counts = places.iter().map(|i| self.cells.get(*i).copied().unwrap_or(0));
        full::bounds(counts.min().unwrap_or(u32::MAX).into(), self.width(), self.weight, ends)
    }

    fn full_rows(self) -> impl Iterator<Item = FullRow> + 'a {
        full::rows(self.cells, self.width(), self.weight)
    }

    /// The values of the counters, of full ones what they most likely stand for.
    fn values(self) -> Vec<i64> {
        let mut values: Vec<i64> = self.cells.iter().map(|c| i64::from(*c)).collect();
        if self.is_saturated() {
            for (row, full) in values.chunks_mut(self.width()).zip(self.full_rows()) {
                let mean = i64::try_from(full.mean()).unwrap_or(i64::MAX);
                row.iter_mut().filter(|v| **v == END as i64).for_each(|v| *v = mean);
            }
        }
        values
    }

    /// The most by which the values of a key's counters, at these cells, may be off.
    fn spread(self, places: &[usize], spreads: &[u64]) -> u64 {
        let full = places.iter().filter(|i| self.cells.get(**i) == Some(&u32::MAX));
        full.filter_map(|i| spreads.get(*i >> self.bits).copied()).max().unwrap_or(0)
    }

    /// What full counters may be off their values in each row; nothing where none is full.
    fn spreads(self) -> Vec<u64> {
        if self.is_saturated() { self.full_rows().map(FullRow::spread).collect() } else { Vec::new() }
    }
}

/// Limits of the search for keys.
struct Effort {
    /// Buckets of a table that are followed.
    buckets: usize,
    /// Partial keys that may still be followed.
    paths: usize,
    /// Tables in which a key need not stand out, one a stage: another key's opposite change may hide it
    /// there.
    misses: usize,
}

impl Effort {
    const fn new(misses: usize) -> Self {
        Self { buckets: MAX_HEAVY, paths: MAX_PATHS, misses }
    }
}

/// Two states, subtracted, and from that again what is known already.
struct Difference<'a> {
    sketch: View<'a>,
    earlier: Option<View<'a>>,
    modular: &'a Modular,
    /// All cells of a key, those of verification last.
    places: &'a dyn Fn(&[u8]) -> Vec<usize>,
    cells: Vec<i64>,
    /// The change of all weight together.
    net: i64,
}

/// Keys that changed, by how much.
type Found = BTreeMap<Vec<u8>, i64>;

impl<'a> Difference<'a> {
    fn new(
        sketch: View<'a>,
        earlier: Option<View<'a>>,
        modular: &'a Modular,
        places: &'a dyn Fn(&[u8]) -> Vec<usize>,
    ) -> Self {
        let value = |s: View<'_>| i64::try_from(s.weight).unwrap_or(i64::MAX);
        let mut cells = sketch.values();
        if let Some(earlier) = earlier {
            cells.iter_mut().zip(earlier.values()).for_each(|(now, then)| *now = now.saturating_sub(then));
        }
        let net = value(sketch).saturating_sub(earlier.map_or(0, value));
        Self { sketch, earlier, modular, places, cells, net }
    }

    /// The mean share of a bucket in the net change; rounded towards zero, so that little in either direction
    /// is nothing.
    const fn mean(&self) -> i64 {
        self.net / (1 << self.sketch.bits)
    }

    fn row(&self, row: usize) -> impl Iterator<Item = i64> + '_ {
        let width = 1usize << self.sketch.bits;
        let mean = self.mean();
        let cells = self.cells.get(row * width..(row + 1) * width).unwrap_or_default();
        cells.iter().map(move |c| c.saturating_sub(mean))
    }

    fn cell(&self, index: usize) -> i64 {
        self.cells.get(index).map_or(0, |c| c.saturating_sub(self.mean()))
    }

    /// Standard deviation of a bucket: from the least second moment of any row, for collisions of great
    /// changes make those of others too large.
    fn noise(&self) -> f64 {
        let rows = 0..self.cells.len() >> self.sketch.bits;
        let moments = rows.map(|r| self.row(r).map(|v| (v as f64).powi(2)).sum::<f64>());
        (moments.fold(f64::INFINITY, f64::min) / (1u64 << self.sketch.bits) as f64).sqrt()
    }

    fn promised(&self) -> u64 {
        (self.noise() * SIGMAS * SHOWN as f64).ceil().max(1.0) as u64
    }

    /// Keys whose buckets stand out upwards (`sign` 1) or downwards (−1) by at least `threshold`; where they
    /// are too many to follow, those of the greatest buckets.
    fn keys(&self, threshold: i64, sign: i64, effort: &mut Effort) -> Vec<Vec<u8>> {
        let modular = self.modular;
        while effort.buckets > 0 {
            let table =
                |row| heaviest(self.row(row).map(|v| v.saturating_mul(sign)), threshold, effort.buckets);
            let stage = |s: usize| std::array::from_fn(|t| table(s * TABLES + t));
            let heavy: Vec<Heavy> = (0..modular.stages()).map(stage).collect();
            let allowed = effort.paths.min(PATHS_AT_ONCE);
            let mut left = allowed;
            let keys = modular.keys(&heavy, effort.misses, &mut left);
            effort.paths -= allowed - left;
            if let Some(keys) = keys {
                return keys;
            }
            effort.buckets = heavy.iter().flatten().map(Vec::len).max().unwrap_or(0) / 2;
        }
        Vec::new()
    }

    /// The median over all rows of these cells.
    fn median(&self, places: &[usize]) -> i64 {
        let mut values: Vec<i64> = places.iter().map(|i| self.cell(*i)).collect();
        median(&mut values)
    }

    /// The median over all rows; nothing where fewer verification rows than `rows` show half of it.
    fn estimate(&self, key: &[u8], rows: usize) -> Option<i64> {
        let places = (self.places)(key);
        let estimate = self.median(&places);
        let shown = |i: &usize| {
            let value = self.cell(*i);
            value.signum() == estimate.signum() && value.unsigned_abs() >= estimate.unsigned_abs() / 2
        };
        let shown = places.iter().rev().take(CHECKS).filter(|i| shown(i)).count();
        (shown >= rows).then_some(estimate)
    }

    /// Takes a change that is known out of the difference.
    fn subtract(&mut self, places: &[usize], change: i64) {
        for i in places {
            if let Some(cell) = self.cells.get_mut(*i) {
                *cell = cell.saturating_sub(change);
            }
        }
        self.net = self.net.saturating_sub(change);
    }

    /// Takes changes of at least `threshold` that both verification rows show out, the greatest first, and
    /// adds them to those that were found; whether there were any. Where there are none, the greatest that
    /// one row shows: two opposite changes that share a cell of the other row hide each other there, until
    /// one of them is taken out.
    ///
    /// Keys that only share their buckets with great changes have nothing left once these are taken out.
    fn take(&mut self, threshold: u64, effort: &mut Effort, found: &mut Found) -> bool {
        let least = (threshold / SHOWN as u64).max(1);
        let bucket = i64::try_from(least).unwrap_or(i64::MAX);
        let mut keys = self.keys(bucket, 1, effort);
        keys.extend(self.keys(bucket, -1, effort));
        let estimated =
            |this: &Self, key: &[u8], rows| this.estimate(key, rows).filter(|e| e.unsigned_abs() >= least);
        let mut candidates: Vec<_> = keys
            .into_iter()
            .filter_map(|k| Some((Reverse(estimated(self, &k, 1)?.unsigned_abs()), k)))
            .collect();
        candidates.sort_unstable();
        let mut any = false;
        for rows in [CHECKS, 1] {
            for (_, key) in &candidates {
                let Some(change) = estimated(self, key, rows) else { continue };
                self.subtract(&(self.places)(key), change);
                let known: &mut i64 = found.entry(key.clone()).or_default();
                *known = known.saturating_add(change);
                any = true;
                if rows < CHECKS {
                    break;
                }
            }
            if any {
                break;
            }
        }
        any
    }

    /// Searches until nothing is left of what `threshold` asks for, or the effort is spent: with no table
    /// missing and, of long keys, of which most are found so and then there is less to follow, with some that
    /// may.
    fn exhaust(&mut self, threshold: &dyn Fn(&Self) -> u64, paths: usize, found: &mut Found) {
        let (first, then) = self.misses();
        for misses in std::iter::once(first).chain(then) {
            let mut effort = Effort { paths, ..Effort::new(misses) };
            for _ in 0..SEARCHES {
                if !self.take(threshold(self), &mut effort, found) {
                    break;
                }
                effort.buckets = MAX_HEAVY.min(effort.buckets * 2);
            }
        }
    }

    /// Tables that may miss, at first and then.
    fn misses(&self) -> (usize, Option<usize>) {
        if self.modular.stages() == 1 { (1, None) } else { (0, Some(2)) }
    }

    /// Lists the changes, following so many partial keys at most for what is promised, and half as many
    /// beyond.
    ///
    /// First come the changes that are promised, to the last: were smaller ones looked for as soon as the
    /// noise falls, these, of which there may be any number, would use the paths up, and one that hides in a
    /// verification row, whose turn comes when nothing else is found, would be lost. What was found makes
    /// noise no more, so that smaller changes stand out in the next round.
    fn changes(mut self, want: Want, paths: usize) -> Vec<(Vec<u8>, Bounds<i64>)> {
        let mut found = Found::new();
        let promised = want.threshold.max(self.promised());
        self.exhaust(&|_| promised, paths, &mut found);
        if self.promised() < promised && want.threshold < promised {
            self.exhaust(&|this| want.threshold.max(this.promised()), paths / 2, &mut found);
        }
        if (2..self.promised()).contains(&want.threshold) {
            let (first, _) = self.misses();
            self.take(want.threshold, &mut Effort { paths, ..Effort::new(first) }, &mut found);
        }
        // The median of what is left in a key's buckets belongs to the key.
        for (key, change) in &mut found {
            let places = (self.places)(key);
            let more = self.median(&places);
            self.subtract(&places, more);
            *change = change.saturating_add(more);
        }
        let error = (2.0 * self.noise()).ceil() as u64;
        let states = [Some(self.sketch), self.earlier].map(|state| state.map(|s| (s, s.spreads())));
        let least = want.threshold.max(self.promised() / SHOWN as u64);
        found.retain(|_, change| change.unsigned_abs() >= least);
        let all = found.into_iter().map(|(key, estimate)| {
            let spread = |sum: u64, (s, spreads): &(View<'_>, Vec<u64>)| {
                sum.saturating_add(if spreads.is_empty() {
                    0
                } else {
                    s.spread(&(self.places)(&key), spreads)
                })
            };
            let error = states.iter().flatten().fold(error, spread);
            let error = i64::try_from(error).unwrap_or(i64::MAX);
            let (lower, upper) = (estimate.saturating_sub(error), estimate.saturating_add(error));
            (key, Bounds { estimate, lower, upper })
        });
        all.collect()
    }
}

impl<const N: usize> State<N> for RevSketch<N> {
    fn read_parameters(seed: u64, d: &mut Decoder<'_>) -> Result<Self, StateError> {
        let bits = d.u32()?;
        Self::check(bits).map_err(|_| StateError::Damaged("its shape is impossible"))?;
        Ok(Self::without_cells(bits, Modular::of_version(d.version(), N, bits, seed), seed))
    }

    fn write_parameters(&self, out: &mut Encoder) {
        out.u32(self.bits);
    }

    tables! { self: cells: Add, Self::rows() << self.bits; }
}

impl<const N: usize> Sketch<N> for RevSketch<N> {
    state_methods!();

    fn kind(&self) -> Kind {
        Kind::RevSketch
    }

    fn state_version(&self) -> u16 {
        self.modular.version()
    }

    fn shape(&self) -> String {
        let how = self.modular.layout();
        format!("{} tables of {} counters{how}", Self::rows(), self.width())
    }

    fn memory_bytes(&self) -> usize {
        size_of_val(self.cells.as_slice()) + self.modular.memory_bytes()
    }

    fn update(&mut self, key: &[u8; N], weight: u64) {
        let add = u32::try_from(weight).unwrap_or(u32::MAX);
        self.weight = self.weight.saturating_add(weight);
        let mut places = [0; MAX_STAGES * TABLES + CHECKS];
        let mut n = 0;
        self.each_cell(key, |i| {
            if let Some(place) = places.get_mut(n) {
                *place = i;
            }
            n += 1;
        });
        for place in places.iter().take(n) {
            if let Some(cell) = self.cells.get_mut(*place) {
                *cell = cell.saturating_add(add);
            }
        }
    }

    fn update_all(&mut self, updates: &[Update<N>]) {
        if self.modular.stages() > 1 {
            return updates.iter().for_each(|u| self.update(&u.key, u64::from(u.weight)));
        }
        let mut buckets = [0; MAX_STAGES];
        for some in updates.chunks(AHEAD) {
            let mut places = [[0usize; TABLES + CHECKS]; AHEAD];
            for (place, u) in places.iter_mut().zip(some) {
                self.modular.buckets(&u.key, &mut buckets);
                let [packed, ..] = buckets;
                let [x, y] = self.check_cells(&u.key);
                let at = |t: usize| (t << self.bits) + bucket_of(packed, t);
                *place = [at(0), at(1), at(2), at(3), x, y];
                place.iter().for_each(|i| prefetch(&self.cells, *i));
            }
            for (place, u) in places.iter().zip(some) {
                self.weight = self.weight.saturating_add(u64::from(u.weight));
                for i in place {
                    if let Some(cell) = self.cells.get_mut(*i) {
                        *cell = cell.saturating_add(u.weight);
                    }
                }
            }
        }
    }

    fn update_cost(&self) -> f64 {
        3.5 * self.modular.stages() as f64
    }

    fn merges_exactly(&self) -> bool {
        true
    }

    /// As Count-Min with all rows: upper is certain, lower holds with a probability of 1 − e⁻⁶ at least.
    fn flow_size(&self, key: &[u8; N]) -> Result<Bounds<u64>, QueryError> {
        Ok(self.bounds(key, &|| self.view().ends()))
    }

    /// Heavy hitters are changes against nothing. Counters of several keys together may spell one that was
    /// never seen, and since nothing was taken away from any, its lightest counter mostly rules it out: a key
    /// of which even the lower end is heavier than that is left out.
    fn heavy_hitters(&self, want: Want) -> Result<Vec<Flow<N>>, QueryError> {
        // The estimate of a flow whose counters are full is the most that they may stand for, and so the size
        // as a change may be less.
        let (full, ends) = (self.is_saturated(), LazyCell::new(|| self.view().ends()));
        let threshold = if full { want.threshold.min(END) } else { want.threshold };
        let changes = self.changes(None, Want { threshold, top: usize::MAX }, MAX_PATHS);
        let mut flows = Vec::with_capacity(changes.len());
        for Change { key, change } in changes.into_iter().filter(|c| c.change.estimate > 0) {
            let size = self.bounds(&key, &|| *ends);
            if i64::try_from(size.upper).is_ok_and(|upper| change.lower > upper) {
                continue;
            }
            flows.push(Flow { key, size });
        }
        Ok(select(flows, want))
    }

    /// Bounds are two standard deviations either side. Without a threshold, that of [`RevSketch::promised`]
    /// is taken.
    fn heavy_changes(&self, earlier: &dyn Sketch<N>, want: Want) -> Result<Vec<Change<N>>, QueryError> {
        Ok(self.changes(Some(same(self, earlier)?), want, MAX_PATHS))
    }

    fn confidence(&self, question: Question) -> Confidence {
        Confidence::Share(match question {
            Question::Sizes => 1.0 - (-(Self::rows() as f64)).exp(),
            _ => SHARE,
        })
    }

    fn least_change(&self, earlier: &dyn Sketch<N>) -> Result<Option<u64>, MergeError> {
        let promised = self.promised(earlier)?;
        let sure = |state: &Self| state.view().spreads().iter().all(|spread| *spread == 0);
        Ok((sure(self) && sure(same(self, earlier)?)).then_some(promised))
    }

    fn is_saturated(&self) -> bool {
        self.cells.contains(&u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(i: u32) -> [u8; 4] {
        i.wrapping_mul(0x9e37_79b1).to_le_bytes()
    }

    /// Two opposite changes share a counter of a verification row, beside others that are found at once, and
    /// small ones that more paths lead to than may be followed: what is promised is found nevertheless.
    #[test]
    fn small_changes_do_not_use_up_what_promised_ones_need() {
        let mut hidden = 0;
        for seed in 0..4 {
            let (earlier, mut later) =
                (RevSketch::<4>::new(12, seed).unwrap(), RevSketch::<4>::new(12, seed).unwrap());
            let (up, down) = opposite(&later);
            let mut before = earlier;
            later.update(&up, 40_000);
            before.update(&down, 40_000);
            // Each time that some are found, as many stand out that are a sixth of their size.
            for (tier, size) in [20_000u64, 3_300, 550, 92, 15].into_iter().enumerate() {
                (0..130).for_each(|i| later.update(&key(7_000_000 + 1_000 * tier as u32 + i), size));
            }
            let promised = later.promised(&before).unwrap();
            assert!(promised <= 40_000, "{promised}");
            let want = Want { threshold: 1, top: usize::MAX };
            let got = later.changes(Some(&before), want, MAX_PATHS);
            for (key, size) in [(up, 40_000i64), (down, -40_000)] {
                let change = got.iter().find(|c| c.key == key).map_or(0, |c| c.change.estimate);
                hidden += u32::from((change - size).abs() > 4_000);
            }
        }
        // One may be hidden in two tables at once.
        assert!(hidden <= 1, "{hidden} of 8 changes that are promised");
    }

    /// Lists the heavy hitters among keys whose sizes fall as 1/rank^`skew`, 200,000 together; returns how
    /// many are listed, and how many of these were never seen.
    fn invented<const N: usize>(bits: u32, keys: u64, skew: f64, seed: u64) -> (usize, usize) {
        let mut sketch = RevSketch::<N>::new(bits, seed).unwrap();
        let share = |rank: u64| (rank as f64).powf(-skew);
        let all: f64 = (1..=keys).map(share).sum();
        let (mut seen, mut state) = (std::collections::BTreeSet::new(), seed);
        for rank in 1..=keys {
            let key = std::array::from_fn(|_| crate::hash::split_mix(&mut state) as u8);
            sketch.update(&key, (200_000.0 / all * share(rank)).ceil() as u64);
            seen.insert(key);
        }
        let listed = sketch.heavy_hitters(Want { threshold: 1, top: 200 }).unwrap();
        (listed.len(), listed.iter().filter(|f| !seen.contains(&f.key)).count())
    }

    /// More keys than counters: parts of many spell others, which the counters rule out.
    #[test]
    fn heavy_hitters_that_were_never_seen_are_left_out() {
        let (mut listed, mut invented_ones) = (0, 0);
        for seed in 1..=3 {
            for (n, wrong) in [invented::<4>(13, 18_000, 0.8, seed), invented::<16>(11, 20_000, 1.2, seed)] {
                listed += n;
                invented_ones += wrong;
            }
        }
        assert!(listed > 600, "{listed}");
        assert!(invented_ones * 400 <= listed, "{invented_ones} of {listed}");
    }

    /// Two keys that share a cell of the first verification row.
    fn opposite(sketch: &RevSketch<4>) -> ([u8; 4], [u8; 4]) {
        let mut seen = BTreeMap::new();
        (0..)
            .map(key)
            .find_map(|k| {
                let [cell, _] = sketch.check_cells(&k);
                seen.insert(cell, k).map(|other| (other, k))
            })
            .unwrap()
    }
}
