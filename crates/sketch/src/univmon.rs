//! UnivMon (Liu et al., SIGCOMM 2016): one sketch for many questions: heavy hitters and changes, cardinality,
//! entropy, second moment.
//!
//! Level j sees the keys whose hash ends in j ones or more: levels are nested, each half of the one before.
//! Each has a Count-Sketch (Charikar, Chen and Farach-Colton, 2002) and its heaviest keys.
//!
//! A Count-Sketch is linear, and all levels share one shape and one set of hash functions. So a key is put
//! only into the table of the *last* level that sees it, and level j is the sum of the tables from j on. An
//! update touches one table instead of two on average, and a key is told apart from fewer others. The tables
//! are strata then: each holds a known share of all keys, at random.
//!
//! Sums Σ g(size) over all flows come from these strata (`sums`) and not from the recursion of Braverman and
//! Ostrovsky, which takes differences of levels and adds up their errors: a flow that a stratum knows stands
//! for as many as the strata that would know it hold. Sizes of keys are estimated together (`count_sketch`),
//! and are exact in a table whose keys are all known.

use crate::count_sketch::{Place, ROWS, Solved, median_of_five, middle, solve};
use crate::hash::{Hash, Hasher};
use crate::kind::{cells, need};
use crate::order;
use crate::serial::{Decoder, Encoder, StateError};
use crate::simd::prefetch;
use crate::sketch::{entropy_of, same, select, select_changes};
use crate::state::{Add, Apart, State, state_methods, tables};
use crate::store::{MAX_KEEP, Store};
use crate::sums::{self, Function, Stratum};
use crate::{Bounds, BuildError, Change, Flow, Kind, MergeError, QueryError, Size, Sketch, Update, Want};

const AHEAD: usize = 16;
/// Standard deviations above which an estimate is that of a heavy flow.
const HEAVY: f64 = 4.0;
/// The probability with which a size is off by a standard deviation or more.
const ONE_SIGMA: f64 = 0.317;
/// The probability with which the size of a flow is beyond its bounds: less than the 5 % that are stated, for
/// flows are listed the rather, the greater their estimates.
const BEYOND: f64 = 0.02;
/// Flows of a sample, at most, that the others are judged by.
const SAMPLE: usize = 4096;
/// The probability with which any flow is listed of which nothing but noise is seen.
const INVENTED: f64 = 0.05;

/// Shape of a [`UnivMon`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnivMonParams {
    /// Levels: 1 to 32. log₂ of the number of flows is enough.
    pub levels: usize,
    /// Counters (64 bits) of a row; each level has five rows. 2 to 2²².
    pub width: usize,
    /// Keys kept a level: 1 to 2²⁴. The error of sums over flows goes with its inverse root.
    pub keep: usize,
}

/// Heavy hitters, heavy changes, cardinality, entropy, second moment.
#[derive(Clone, Debug)]
pub struct UnivMon<const N: usize> {
    params: UnivMonParams,
    /// Level after level, row after row: keys whose last level it is.
    cells: Vec<i64>,
    stores: Vec<Store<N>>,
    places: Hasher,
    levels: Hasher,
    seed: u64,
    weight: u64,
}

impl<const N: usize> UnivMon<N> {
    /// An empty sketch.
    ///
    /// # Errors
    /// [`BuildError`] where a parameter is out of range.
    pub fn new(params: UnivMonParams, seed: u64) -> Result<Self, BuildError> {
        check(params)?;
        let store = Store::<N>::bytes_for(params.keep);
        need(Kind::UnivMon, params.levels * (ROWS * params.width * 8 + store))?;
        let cells = vec![0; params.levels * ROWS * params.width];
        Ok(Self { cells, ..Self::without_cells(params, params.keep, seed) })
    }

    /// The keys of a saved state cost memory as they are read, not before: its stores are made with room for
    /// none.
    fn without_cells(params: UnivMonParams, room: usize, seed: u64) -> Self {
        let (places, levels) = (Hasher::new(seed, 0x75_6d), Hasher::new(seed, 0x75_6d_6c));
        let stores = (0..params.levels).map(|_| Store::new(room, seed)).collect();
        Self { params, cells: Vec::new(), stores, places, levels, seed, weight: 0 }
    }

    /// The sketch for a size. A budget is shared: about a third for stores, the rest for counters, over as
    /// many levels as leave no more flows to the last than it can keep. For an accuracy, about (2/error)²
    /// keys are kept, and twice as many counters a row.
    ///
    /// # Errors
    /// [`BuildError`] where the size is impossible.
    pub fn sized(size: Size, seed: u64) -> Result<Self, BuildError> {
        Self::new(params_for(size, Store::<N>::bytes_for)?, seed)
    }

    /// The last level that sees a key.
    #[inline(always)]
    fn level(&self, key: &[u8; N]) -> usize {
        (self.levels.hash64(key).trailing_ones() as usize).min(self.params.levels - 1)
    }

    /// The cells of a key in the table of a level, and the signs (bit per row; set = minus).
    #[inline(always)]
    fn place(&self, key: &[u8; N], level: usize) -> ([usize; ROWS], u32) {
        let w = self.params.width;
        let Hash([a, b]) = self.places.hash(key);
        // Five pieces of 22 bits, and five bits of sign.
        let pieces = [a, a >> 22, a >> 44 | b << 20, b >> 2, b >> 24];
        let first = level * ROWS * w;
        let mut row = 0;
        let cells = pieces.map(|p| {
            let cell = first + row * w + (((p & 0x3f_ffff) * w as u64) >> 22) as usize;
            row += 1;
            cell
        });
        (cells, (b >> 46) as u32 & 0x1f)
    }

    #[inline(always)]
    fn put(&mut self, key: &[u8; N], weight: i64, level: usize, cells: [usize; ROWS], signs: u32) {
        let mut values = [0; ROWS];
        for ((i, cell), value) in cells.into_iter().enumerate().zip(&mut values) {
            if let Some(cell) = self.cells.get_mut(cell) {
                let minus = -i64::from(signs >> i & 1);
                *cell = cell.saturating_add((weight ^ minus) - minus);
                *value = (*cell ^ minus).wrapping_sub(minus);
            }
        }
        if let Some(store) = self.stores.get_mut(level) {
            store.offer(key, u64::try_from(median_of_five(values)).unwrap_or(0).max(1));
        }
    }

    /// The sketch without its keys.
    fn view(&self) -> View<'_> {
        let Self { params, cells, weight, .. } = self;
        let mut kept = Vec::with_capacity(self.stores.len());
        for store in &self.stores {
            kept.push(Kept { keys: store.len(), bar: store.bar() });
        }
        View { params: *params, cells, weight: *weight, kept }
    }

    /// The cells of a key within the table of its level.
    fn place_in_table(&self, key: &[u8; N]) -> Place {
        self.place(key, 0)
    }

    fn places_in_table(&self, keys: &[[u8; N]]) -> Vec<Place> {
        let mut places = Vec::with_capacity(keys.len());
        for key in keys {
            places.push(self.place_in_table(key));
        }
        places
    }

    /// The size of a flow as its counters alone tell it.
    fn estimate(&self, key: &[u8; N]) -> i64 {
        middle(table_of(&self.cells, self.params, self.level(key)), &self.place_in_table(key))
    }

    /// The keys that a level kept, in order.
    fn kept(&self, level: usize) -> Vec<[u8; N]> {
        self.stores.get(level).map_or_else(Vec::new, Store::keys)
    }

    /// A level's keys and their sizes.
    fn solved(&self, view: &View<'_>, level: usize) -> Level<N> {
        let keys = self.kept(level);
        Level { solved: view.solved(level, &self.places_in_table(&keys)), keys }
    }

    /// The same of what changed since an earlier epoch, of keys that either has kept.
    fn solved_change(
        &self,
        earlier: &Self,
        (view, before): (&View<'_>, &View<'_>),
        level: usize,
    ) -> Level<N> {
        let mut keys = self.kept(level);
        keys.extend_from_slice(&earlier.kept(level));
        order::keys(&mut keys);
        keys.dedup();
        Level { solved: view.solved_change(before, level, &self.places_in_table(&keys)), keys }
    }

    /// The sizes of each level's flows.
    fn all_solved(&self, view: &View<'_>) -> Vec<Solved> {
        let mut all = Vec::with_capacity(self.params.levels);
        for level in 0..self.params.levels {
            all.push(self.solved(view, level).solved);
        }
        all
    }

    fn bounds(&self, key: &[u8; N]) -> Bounds<u64> {
        let level = self.level(key);
        let Level { keys, solved } = self.solved(&self.view(), level);
        let size = match keys.binary_search(key) {
            Ok(i) => solved.sizes.get(i).copied().unwrap_or(0),
            // No other key is in the table, where all are known.
            Err(_) if solved.exact => 0,
            Err(_) => solved.of_other(&self.place_in_table(key)),
        };
        around(size, solved.error(BEYOND))
    }
}

fn check(p: UnivMonParams) -> Result<(), BuildError> {
    let wrong = |what, range| Err(BuildError::Parameter { kind: Kind::UnivMon, what, range });
    match p {
        _ if p.levels == 0 || p.levels > 32 => wrong("the number of levels", "1 to 32"),
        _ if p.width < 2 || p.width > 1 << 22 => wrong("the width", "2 to 2^22"),
        _ if p.keep == 0 || p.keep > MAX_KEEP => wrong("the number of keys kept", "1 to 2^24"),
        _ => Ok(()),
    }
}

/// The shape for a size, where a store of so many keys takes as many bytes.
fn params_for(size: Size, bytes_for: fn(usize) -> usize) -> Result<UnivMonParams, BuildError> {
    let kind = Kind::UnivMon;
    match size {
        Size::Memory(budget) => {
            let mut best = None;
            // Fewer levels leave more for each; a level must be able to keep what 16 M flows leave to it.
            for levels in [4, 6, 8, 10, 12, 14, 16] {
                let share = budget / levels;
                let mut keep = 0;
                for bit in (0..20).rev() {
                    let more = keep | 1 << bit;
                    if bytes_for(more) <= share / 3 {
                        keep = more;
                    }
                }
                let width = share.saturating_sub(bytes_for(keep)) / 8 / ROWS;
                let params = UnivMonParams { levels, width: width.min(1 << 22), keep };
                if check(params).is_ok() && (keep << levels <= 1 << 24 || best.is_none()) {
                    best = Some(params);
                }
            }
            let least = 4 * (bytes_for(1) * 3).max(bytes_for(1) + 2 * 8 * ROWS);
            best.ok_or(BuildError::TooSmall { kind, least, budget })
        }
        Size::Accuracy { error, confidence, flows } => {
            let z = crate::stats::two_sided(confidence);
            let keep = cells(kind, (z / error).powi(2))?.max(16);
            if keep > MAX_KEEP {
                return Err(BuildError::TooLarge {
                    kind,
                    what: "this accuracy",
                    limit: MAX_KEEP as u64,
                    of: "keys",
                });
            }
            let levels = (flows as f64 / keep as f64).log2().ceil().max(0.0) as usize + 1;
            Ok(UnivMonParams { levels: levels.min(32), width: (2 * keep).min(1 << 22), keep })
        }
    }
}

/// The facts that the store of a level tells without its keys.
#[derive(Clone, Copy)]
struct Kept {
    keys: usize,
    bar: u64,
}

impl Kept {
    /// Says that a key may have been turned away or forgotten.
    const fn ever_full(self) -> bool {
        self.bar > 0
    }
}

/// The counters of a level.
fn table_of(cells: &[i64], params: UnivMonParams, level: usize) -> &[i64] {
    let each = ROWS * params.width;
    cells.get(level * each..(level + 1) * each).unwrap_or_default()
}

/// All of a sketch but its keys: the same code for keys of all lengths.
struct View<'a> {
    params: UnivMonParams,
    cells: &'a [i64],
    weight: u64,
    kept: Vec<Kept>,
}

impl View<'_> {
    /// The counters of a level.
    fn table(&self, level: usize) -> &[i64] {
        table_of(self.cells, self.params, level)
    }

    /// The probability that a flow's last level is this one.
    fn share(&self, level: usize) -> f64 {
        let last = level + 1 == self.params.levels;
        (-(level as f64 + f64::from(u8::from(!last)))).exp2()
    }

    /// Says that the keys which a level kept are all that it has seen.
    fn has_all(&self, level: usize) -> bool {
        self.kept.get(level).is_none_or(|kept| !kept.ever_full())
    }

    /// The sizes of a level's keys, which have these places.
    fn solved(&self, level: usize, places: &[Place]) -> Solved {
        solve(self.table(level).to_vec(), places, self.has_all(level))
    }

    /// Their changes since an earlier epoch.
    fn solved_change(&self, earlier: &Self, level: usize, places: &[Place]) -> Solved {
        let change = |(a, b): (&i64, &i64)| a.saturating_sub(*b);
        let cells = self.table(level).iter().zip(earlier.table(level)).map(change).collect();
        solve(cells, places, self.has_all(level) && earlier.has_all(level))
    }

    /// The estimate above which a flow of a level is more than noise, where there are so many flows in all:
    /// one that none of them is likely to have by chance.
    fn least(&self, level: usize, flows: f64, solved: &Solved) -> u64 {
        solved.error(INVENTED / (flows * self.share(level)).max(1.0))
    }

    /// Bounds the number of flows from above.
    fn most(&self) -> f64 {
        self.number().map_or(self.weight as f64, |n| n.upper).min(self.weight as f64)
    }

    /// Estimates the number of flows from the levels that know all of theirs.
    fn number(&self) -> Result<Bounds<f64>, QueryError> {
        let (mut known, mut share, mut all) = (0.0, 0.0, 0.0);
        for (level, kept) in self.kept.iter().enumerate() {
            all += kept.keys as f64;
            if !kept.ever_full() {
                (known, share) = (known + kept.keys as f64, share + self.share(level));
            }
        }
        if share == 0.0 {
            // The last level has more flows than it keeps.
            let last = self.kept.last().map_or(0, |kept| kept.keys) as f64;
            let kept = sums::number(last, self.share(self.params.levels - 1));
            return Err(QueryError::Saturated { sketch: Kind::UnivMon, at_least: kept.lower.max(all) });
        }
        let Bounds { estimate, lower, upper } = sums::number(known, share);
        Ok(Bounds { estimate: estimate.max(all), lower: lower.max(all), upper: upper.max(all) })
    }

    /// Collects what each level knows of its flows.
    fn strata(&self, solved: &[Solved]) -> Vec<Stratum> {
        let mut strata: Vec<_> = solved.iter().enumerate().map(|(level, s)| self.stratum(level, s)).collect();
        let (sample, share) = self.sample(solved);
        for (stratum, solved) in strata.iter_mut().zip(solved) {
            sums::know_no_smaller(stratum, &sample, share, |error| solved.beyond(error));
        }
        strata
    }

    /// Sizes of flows of the levels that know all of theirs, in ascending order: of all flows, this share.
    fn sample(&self, levels: &[Solved]) -> (Vec<f64>, f64) {
        let exact = || levels.iter().enumerate().filter(|(_, solved)| solved.exact);
        let mut sizes: Vec<f64> = exact().flat_map(|(_, l)| &l.sizes).map(|s| *s as f64).collect();
        sizes.sort_unstable_by(f64::total_cmp);
        let one_in = sizes.len().div_ceil(SAMPLE).max(1);
        let share: f64 = exact().map(|(level, _)| self.share(level)).sum();
        (sizes.into_iter().skip(one_in / 2).step_by(one_in).collect(), share / one_in as f64)
    }

    /// The largest size of a flow that a level may have turned away: its estimate then was off by the noise
    /// of all others.
    fn turned_away(&self, level: usize, kept: Kept) -> u64 {
        kept.bar.saturating_add(solve(self.table(level).to_vec(), &[], false).error(BEYOND))
    }

    /// The most that a flow of a level may weigh which isn't listed.
    fn unlisted(&self, level: usize, flows: f64, solved: &Solved) -> u64 {
        let full = self.kept.get(level).filter(|kept| kept.ever_full());
        let unknown = full.map_or(0, |kept| self.turned_away(level, *kept));
        let noise = match solved.exact {
            true => 0,
            false => self.least(level, flows, solved).saturating_add(solved.error(BEYOND)),
        };
        unknown.max(noise)
    }

    /// The number of flows that may be as large as a size and were turned away by levels that keep too few of
    /// theirs, from a sample of all flows.
    fn hidden(&self, levels: &[Solved], (sample, share): &(Vec<f64>, f64), size: u64) -> f64 {
        let of = |(level, (kept, solved)): (usize, (&Kept, &Solved))| {
            if solved.exact || !kept.ever_full() || *share == 0.0 {
                return 0.0;
            }
            let least = size.saturating_sub(solved.error(BEYOND).saturating_mul(2)) as f64;
            let most = self.turned_away(level, *kept) as f64;
            let alike = sample.iter().filter(|s| (least..=most).contains(*s)).count();
            self.share(level) / share * alike as f64
        };
        self.kept.iter().zip(levels).enumerate().map(of).sum()
    }

    fn stratum(&self, level: usize, solved: &Solved) -> Stratum {
        let (share, error) = (self.share(level), solved.error(ONE_SIGMA) as f64);
        let from = match self.kept.get(level) {
            _ if solved.exact => 0.0,
            // A flow may have been turned away while its counters, shared with heavier ones, told too little.
            Some(kept) if kept.ever_full() => {
                (HEAVY * error).max(self.turned_away(level, *kept) as f64 + 1.0)
            }
            _ => HEAVY * error + 1.0,
        };
        Stratum { share, sizes: solved.sizes.iter().map(|s| *s as f64).collect(), from, error }
    }

    fn sum(&self, strata: &[Stratum], g: Function) -> Bounds<f64> {
        sums::sum(strata, self.weight as f64, g)
    }

    fn entropy(&self, strata: &[Stratum]) -> Bounds<f64> {
        let n = self.weight as f64;
        if strata.iter().all(|s| s.from <= 0.0) {
            let sizes = strata.iter().flat_map(|s| &s.sizes).map(|s| *s as u64);
            return Bounds::exact(entropy_of(sizes.collect()));
        }
        let part = self.sum(strata, |size| {
            let log = size.log2();
            [size * log, log + std::f64::consts::LOG2_E, std::f64::consts::LOG2_E / size]
        });
        let entropy = |sum: f64| (n.log2() - sum / n).clamp(0.0, n.log2());
        Bounds { estimate: entropy(part.estimate), lower: entropy(part.upper), upper: entropy(part.lower) }
    }

    /// What no estimate of a level was above, of a state of version 1: the middle of one counter of each row.
    fn greatest(&self, level: usize) -> u64 {
        let mut rows = [0; ROWS];
        for (greatest, row) in rows.iter_mut().zip(self.table(level).chunks(self.params.width.max(1))) {
            *greatest = row.iter().map(|cell| cell.unsigned_abs()).max().unwrap_or(0);
        }
        rows.sort_unstable();
        rows.get(ROWS / 2).copied().unwrap_or(u64::MAX)
    }

    /// A counter that ended at its end, or more flows in the last level than it can keep: then nothing tells
    /// how many light flows there are.
    fn is_saturated(&self) -> bool {
        let ended = |c: &i64| *c == i64::MAX || *c == i64::MIN;
        self.weight == u64::MAX || self.cells.iter().any(ended) || self.number().is_err()
    }
}

/// The keys of a level, in order, and the table with them taken out.
struct Level<const N: usize> {
    keys: Vec<[u8; N]>,
    solved: Solved,
}

/// A size and its bounds.
fn around(size: i64, error: u64) -> Bounds<u64> {
    let estimate = u64::try_from(size).unwrap_or(0);
    Bounds { estimate, lower: estimate.saturating_sub(error), upper: estimate.saturating_add(error) }
}

/// Keys that are more than noise, with their levels and sizes.
type Found<const N: usize> = Vec<([u8; N], usize, i64)>;

/// Adds the keys of a level whose sizes are so.
fn find<const N: usize>(found: &mut Found<N>, number: usize, level: &Level<N>, so: &dyn Fn(i64) -> bool) {
    for (key, size) in level.keys.iter().zip(&level.solved.sizes) {
        if so(*size) {
            found.push((*key, number, *size));
        }
    }
}

/// Of what was found, the greatest as wanted, each with what its size may be off by.
///
/// `hidden` tells how many flows that are not among those found may be as large as a size.
fn listed<const N: usize>(
    levels: &[Solved],
    mut found: Found<N>,
    want: Want,
    hidden: &dyn Fn(u64) -> f64,
) -> Vec<([u8; N], i64, u64)> {
    order::by_rank(&mut found, |f| f.2.unsigned_abs(), |f| &f.0);
    let mut sizes = Vec::with_capacity(found.len());
    for (_, level, size) in &found {
        sizes.push((*level, size.unsigned_abs()));
    }
    let (count, errors) = errors_of(levels, &sizes, want, hidden);
    let mut all = Vec::with_capacity(count);
    for (key, level, size) in found.iter().take(count) {
        all.push((*key, *size, errors.get(*level).copied().unwrap_or(0)));
    }
    all
}

/// Of levels and sizes of what was found, the greatest first: how many are listed, and by what a size may be
/// off by levels.
///
/// A listed flow was chosen for its estimate: of many flows of about one size, those whose errors are the
/// greatest. So the fewer of those that might have been listed are, the wider the bounds, such that no more
/// than the stated share of those that *are* listed fails (Benjamini and Yekutieli, J. Am. Stat. Assoc. 100,
/// 2005).
fn errors_of(
    levels: &[Solved],
    found: &[(usize, u64)],
    want: Want,
    hidden: &dyn Fn(u64) -> f64,
) -> (usize, Vec<u64>) {
    let enough = found.partition_point(|f| f.1 >= want.threshold.max(1));
    let count = enough.min(want.top);
    let last = found.get(count.wrapping_sub(1)).map_or(0, |f| f.1);
    let errors = |probability: f64| levels.iter().map(move |l| l.error(probability));
    let reach: Vec<u64> = errors(BEYOND).map(|error| error.saturating_mul(2)).collect();
    let near = |f: &&(usize, u64)| f.1.saturating_add(reach.get(f.0).copied().unwrap_or(0)) >= last;
    let contenders = found.iter().filter(near).count() as f64 + hidden(last);
    let beyond = BEYOND * (count as f64 / contenders.max(1.0)).min(1.0);
    (count, errors(beyond).collect())
}

impl<const N: usize> State<N> for UnivMon<N> {
    fn read_parameters(seed: u64, d: &mut Decoder<'_>) -> Result<Self, StateError> {
        let params =
            UnivMonParams { levels: d.u32()? as usize, width: d.u32()? as usize, keep: d.u32()? as usize };
        check(params).map_err(|_| StateError::Damaged("its shape is impossible"))?;
        Ok(Self::without_cells(params, 0, seed))
    }

    fn write_parameters(&self, out: &mut Encoder) {
        out.u32(self.params.levels as u32);
        out.u32(self.params.width as u32);
        out.u32(self.params.keep as u32);
    }

    tables! { self: cells: Add, self.params.levels * ROWS * self.params.width; stores: Apart, self.params.levels; }

    fn amend(&mut self, version: u16) {
        if version > 1 {
            return;
        }
        let view = self.view();
        let greatest: Vec<u64> = (0..self.params.levels).map(|level| view.greatest(level)).collect();
        for (store, greatest) in self.stores.iter_mut().zip(greatest) {
            store.raise(greatest);
        }
    }

    fn check_tables(&self) -> Result<(), StateError> {
        if self.stores.iter().any(|s| s.keep() != self.params.keep) {
            return Err(StateError::Damaged("its levels keep different numbers of keys"));
        }
        Ok(())
    }

    fn unite(&mut self, other: &Self) -> Result<(), MergeError> {
        let is_empty = |s: &Self| s.weight == 0 && s.stores.iter().all(Store::is_empty);
        if is_empty(other) {
            return Ok(());
        }
        if is_empty(self) {
            self.clone_from(other);
            return Ok(());
        }
        self.unite_tables(other);
        let mut stores = std::mem::take(&mut self.stores);
        for (a, b) in stores.iter_mut().zip(&other.stores) {
            a.merge(b, &|key| u64::try_from(self.estimate(key)).unwrap_or(0).max(1));
        }
        self.stores = stores;
        Ok(())
    }
}

impl<const N: usize> Sketch<N> for UnivMon<N> {
    state_methods!();

    fn kind(&self) -> Kind {
        Kind::UnivMon
    }

    fn shape(&self) -> String {
        let UnivMonParams { levels, width, keep } = self.params;
        format!("{levels} levels of {ROWS} rows of {width} counters, {keep} keys kept")
    }

    fn memory_bytes(&self) -> usize {
        size_of_val(self.cells.as_slice()) + self.stores.iter().map(Store::memory_bytes).sum::<usize>()
    }

    fn update(&mut self, key: &[u8; N], weight: u64) {
        self.weight = self.weight.saturating_add(weight);
        let level = self.level(key);
        let (cells, signs) = self.place(key, level);
        self.put(key, i64::try_from(weight).unwrap_or(i64::MAX), level, cells, signs);
    }

    fn update_all(&mut self, updates: &[Update<N>]) {
        for some in updates.chunks(AHEAD) {
            let mut places = [(0, ([0; ROWS], 0)); AHEAD];
            for (place, u) in places.iter_mut().zip(some) {
                let level = self.level(&u.key);
                *place = (level, self.place(&u.key, level));
                place.1.0.iter().for_each(|i| prefetch(&self.cells, *i));
            }
            for (place, u) in places.iter().zip(some) {
                self.weight = self.weight.saturating_add(u64::from(u.weight));
                self.put(&u.key, i64::from(u.weight), place.0, place.1.0, place.1.1);
            }
        }
    }

    fn update_cost(&self) -> f64 {
        6.0
    }

    /// Holds as the bounds of sizes do. A flow isn't listed because it was turned away, or because it can't
    /// be told from noise.
    fn unlisted(&self) -> Option<u64> {
        let view = self.view();
        let (flows, solved) = (view.most(), self.all_solved(&view));
        solved.iter().enumerate().map(|(level, solved)| view.unlisted(level, flows, solved)).max()
    }

    /// Bounds hold in 95 % of cases; where all flows of a level are known, always: then they are the size.
    fn flow_size(&self, key: &[u8; N]) -> Result<Bounds<u64>, QueryError> {
        Ok(self.bounds(key))
    }

    /// Bounds as those of [`UnivMon::flow_size`]. Flows that can't be told from noise aren't listed.
    fn heavy_hitters(&self, want: Want) -> Result<Vec<Flow<N>>, QueryError> {
        let view = self.view();
        let (mut levels, mut found, flows) = (Vec::new(), Vec::new(), view.most());
        for number in 0..self.params.levels {
            let level = self.solved(&view, number);
            let least = i64::try_from(view.least(number, flows, &level.solved)).unwrap_or(i64::MAX);
            find(&mut found, number, &level, &|size| size > least);
            levels.push(level.solved);
        }
        let sample = view.sample(&levels);
        let listed = listed(&levels, found, want, &|size| view.hidden(&levels, &sample, size));
        let mut flows = Vec::with_capacity(listed.len());
        for (key, size, error) in listed {
            flows.push(Flow { key, size: around(size, error) });
        }
        Ok(select(flows, want))
    }

    /// Among the keys that either epoch kept; bounds as those of sizes.
    fn heavy_changes(&self, earlier: &dyn Sketch<N>, want: Want) -> Result<Vec<Change<N>>, QueryError> {
        let earlier = same(self, earlier)?;
        let views = (&self.view(), &earlier.view());
        let (mut levels, mut found, flows) = (Vec::new(), Vec::new(), views.0.most() + views.1.most());
        for number in 0..self.params.levels {
            let level = self.solved_change(earlier, views, number);
            let least = views.0.least(number, flows, &level.solved);
            find(&mut found, number, &level, &|size| size.unsigned_abs() > least);
            levels.push(level.solved);
        }
        let listed = listed(&levels, found, want, &|_| 0.0);
        let mut changes = Vec::with_capacity(listed.len());
        for (key, estimate, error) in listed {
            let error = i64::try_from(error).unwrap_or(i64::MAX);
            let (lower, upper) = (estimate.saturating_sub(error), estimate.saturating_add(error));
            changes.push(Change { key, change: Bounds { estimate, lower, upper } });
        }
        Ok(select_changes(changes, want))
    }

    /// Bounds hold in 95 % of cases, and are the figure where all flows are known.
    fn cardinality(&self) -> Result<Bounds<f64>, QueryError> {
        self.view().number()
    }

    /// Bounds hold in 95 % of cases, and are the figure where all flows are known.
    fn entropy(&self) -> Result<Bounds<f64>, QueryError> {
        if self.weight == 0 {
            return Ok(Bounds::exact(0.0));
        }
        let view = self.view();
        Ok(view.entropy(&view.strata(&self.all_solved(&view))))
    }

    /// Bounds hold in 95 % of cases, and are the figure where all flows are known.
    fn second_moment(&self) -> Result<Bounds<f64>, QueryError> {
        let view = self.view();
        let strata = view.strata(&self.all_solved(&view));
        Ok(view.sum(&strata, |size| [size * size, 2.0 * size, 2.0]))
    }

    /// A counter that ended at its end, or more flows in the last level than it can keep: then nothing tells
    /// how many light flows there are.
    fn is_saturated(&self) -> bool {
        self.view().is_saturated()
    }
}
