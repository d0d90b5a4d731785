//! UnivMon (Liu et al., SIGCOMM 2016): one sketch for many questions: heavy hitters and changes, cardinality, entropy,
//! second moment.
//!
//! Level j sees the keys whose hash ends in j ones or more: levels are nested, each half of the one before. Each has a
//! Count-Sketch (Charikar, Chen and Farach-Colton, 2002) and its heaviest keys. From the last level backwards, a sum Σ g(size)
//! over all flows is estimated: twice the sum of the next level, corrected by the heavy keys of this one (Braverman and
//! Ostrovsky's recursive sum).
//!
//! A Count-Sketch is linear, and all levels share one shape and one set of hash functions. So a key is put only into the
//! table of the *last* level that sees it, and level j is the sum of the tables from j on, added up when it is asked. An
//! update touches one table instead of two on average, and a key is told apart from fewer others.

use std::any::Any;

use crate::hash::{Hash, Hasher};
use crate::kind::cells;
use crate::serial::{Decoder, Encoder, StateError};
use crate::simd::prefetch;
use crate::sketch::{same, select, select_changes};
use crate::stats::median;
use crate::store::{MAX_KEEP, Store};
use crate::{Bounds, BuildError, Change, Flow, Kind, MergeError, QueryError, Size, Sketch, Update, Want};

/// Rows of each Count-Sketch: odd, so that a median is one of them.
const ROWS: usize = 5;
const AHEAD: usize = 16;
/// Standard deviations above which an estimate is that of a heavy flow.
const HEAVY: f64 = 4.0;

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
        Self::check(params)?;
        let cells = vec![0; params.levels * ROWS * params.width];
        let stores = (0..params.levels).map(|_| Store::new(params.keep, seed)).collect();
        Ok(Self::with(params, cells, stores, seed))
    }

    fn with(params: UnivMonParams, cells: Vec<i64>, stores: Vec<Store<N>>, seed: u64) -> Self {
        let (places, levels) = (Hasher::new(seed, 0x75_6d), Hasher::new(seed, 0x75_6d_6c));
        Self { params, cells, stores, places, levels, seed, weight: 0 }
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

    /// The sketch for a size. A budget is shared: about a third for stores, the rest for counters, over as many levels as leave
    /// no more flows to the last than it can keep. For an accuracy, about (2/error)² keys are kept, and twice as many
    /// counters a row.
    ///
    /// # Errors
    /// [`BuildError`] where the size is impossible.
    pub fn sized(size: Size, seed: u64) -> Result<Self, BuildError> {
        let kind = Kind::UnivMon;
        let params = match size {
            Size::Memory(budget) => {
                let mut best = None;
                // Fewer levels leave more for each; a level must be able to keep what 16 M flows leave to it.
                for levels in [4, 6, 8, 10, 12, 14, 16] {
                    let share = budget / levels;
                    let mut keep = 0;
                    for bit in (0..20).rev() {
                        let more = keep | 1 << bit;
                        if Store::<N>::bytes_for(more) <= share / 3 {
                            keep = more;
                        }
                    }
                    let width = share.saturating_sub(Store::<N>::bytes_for(keep)) / 8 / ROWS;
                    let params = UnivMonParams { levels, width: width.min(1 << 22), keep };
                    if Self::check(params).is_ok() && (keep << levels <= 1 << 24 || best.is_none()) {
                        best = Some(params);
                    }
                }
                let least = 4 * (Store::<N>::bytes_for(1) * 3).max(Store::<N>::bytes_for(1) + 2 * 8 * ROWS);
                best.ok_or(BuildError::TooSmall { kind, least, budget })?
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
                UnivMonParams { levels: levels.min(32), width: (2 * keep).min(1 << 22), keep }
            }
        };
        Self::new(params, seed)
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

    /// The size of a flow, from the table of its last level.
    fn estimate(&self, key: &[u8; N]) -> i64 {
        let (cells, signs) = self.place(key, self.level(key));
        let mut values = [0; ROWS];
        for ((i, cell), value) in cells.into_iter().enumerate().zip(&mut values) {
            let cell = self.cells.get(cell).copied().unwrap_or(0);
            *value = if signs >> i & 1 == 1 { cell.saturating_neg() } else { cell };
        }
        median_of_five(values)
    }

    /// Keys kept, with their last levels and sizes (at least 1), the greatest first.
    fn kept(&self) -> Vec<(u64, usize, [u8; N])> {
        let of = |(level, store): (usize, &Store<N>)| {
            let size = |key: [u8; N]| (self.estimate(&key).max(1) as u64, level, key);
            store.keys().into_iter().map(size).collect::<Vec<_>>()
        };
        let mut kept: Vec<_> = self.stores.iter().enumerate().flat_map(of).collect();
        kept.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.2.cmp(&b.2)));
        kept
    }

    /// Σ g(size) over all flows.
    ///
    /// Which flows correct a level's sum must not depend on whether the next level sees them. Of estimates near the noise
    /// those that it made large would be chosen, and the noise is not the same in all tables; so only estimates
    /// well above it count as heavy.
    fn sum(&self, g: impl Fn(f64) -> f64) -> f64 {
        let kept = self.kept();
        let mut sum = 0.0;
        for level in (0..self.params.levels).rev() {
            let seen = kept.iter().filter(|(_, last, _)| *last >= level);
            // A level whose stores were never full has all its flows: nothing is estimated.
            let complete = self.stores.iter().skip(level).all(|s| !s.ever_full());
            if complete || level + 1 == self.params.levels {
                sum = seen.map(|(size, ..)| g(*size as f64)).sum();
                continue;
            }
            let least = HEAVY * self.usual_noise(level);
            let heavy = seen.take(self.params.keep).filter(|(size, ..)| *size as f64 >= least);
            let correction: f64 = heavy
                .map(|(size, last, _)| if *last > level { -g(*size as f64) } else { g(*size as f64) })
                .sum();
            sum = (2.0 * sum + correction).max(0.0);
        }
        sum
    }

    /// The standard deviation of a row's estimate in the table of a level, great collisions left out: from the median of its
    /// counters, as if they were normal.
    fn usual_noise(&self, level: usize) -> f64 {
        let first = level * ROWS * self.params.width;
        let row = self.cells.get(first..first + self.params.width).unwrap_or_default();
        let mut sizes: Vec<u64> = row.iter().map(|c| c.unsigned_abs()).collect();
        let middle = sizes.len() / 2;
        if middle >= sizes.len() {
            return 0.0;
        }
        *sizes.select_nth_unstable(middle).1 as f64 / 0.6745
    }

    /// What a sum is off by with a probability of about 5 %, relative: two over the root of the keys kept; 0 where all are.
    fn error(&self) -> f64 {
        if self.stores.iter().all(|s| !s.ever_full()) { 0.0 } else { 2.0 / (self.params.keep as f64).sqrt() }
    }

    /// What the noise of single sizes may add up to in a sum whose terms have this derivative: a third of a row's usual
    /// noise for every key kept, all in one direction.
    fn noise_in_sum(&self, derivative: impl Fn(f64) -> f64) -> f64 {
        let noise: Vec<f64> = (0..self.params.levels).map(|l| self.usual_noise(l) / 3.0).collect();
        let kept = self.kept();
        kept.iter().map(|(size, level, _)| derivative(*size as f64) * noise.get(*level).unwrap_or(&0.0)).sum()
    }

    /// The root of a row's mean square in the table of a level: the standard deviation of one row's estimate.
    fn noise(&self, level: usize) -> f64 {
        let w = self.params.width;
        let rows = (0..ROWS).map(|r| {
            let first = (level * ROWS + r) * w;
            let row = self.cells.get(first..first + w).unwrap_or_default();
            row.iter().map(|c| (*c as f64).powi(2)).sum::<f64>()
        });
        (rows.fold(f64::INFINITY, f64::min) / w as f64).sqrt()
    }

    fn bounds(&self, key: &[u8; N]) -> Bounds<u64> {
        let level = self.level(key);
        let estimate = self.estimate(key).max(0) as u64;
        // The median of five lies within two standard deviations of one with a probability of 99 %.
        let error = (2.0 * self.noise(level)).ceil() as u64;
        Bounds { estimate, lower: estimate.saturating_sub(error), upper: estimate.saturating_add(error) }
    }

    pub(crate) fn decode(seed: u64, weight: u64, d: &mut Decoder<'_>) -> Result<Self, StateError> {
        let params =
            UnivMonParams { levels: d.u32()? as usize, width: d.u32()? as usize, keep: d.u32()? as usize };
        Self::check(params).map_err(|_| StateError::Damaged("its shape is impossible"))?;
        let cells = d.all(params.levels * ROWS * params.width)?;
        let cells = cells.into_iter().map(u64::cast_signed).collect();
        let stores: Vec<Store<N>> =
            (0..params.levels).map(|_| Store::decode(seed, d)).collect::<Result<_, _>>()?;
        if stores.iter().any(|s| s.keep() != params.keep) {
            return Err(StateError::Damaged("its levels keep different numbers of keys"));
        }
        Ok(Self { weight, ..Self::with(params, cells, stores, seed) })
    }
}

/// The middle of five.
#[inline(always)]
fn median_of_five([a, b, c, d, e]: [i64; ROWS]) -> i64 {
    // The greater of the two lesser, and the lesser of the two greater, of the first four; with the fifth, the middle of three.
    let (a, b) = (a.min(b), a.max(b));
    let (c, d) = (c.min(d), c.max(d));
    let (low, high) = (a.max(c), b.min(d));
    low.min(high).max(low.max(high).min(e))
}

impl<const N: usize> Sketch<N> for UnivMon<N> {
    fn kind(&self) -> Kind {
        Kind::UnivMon
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn shape(&self) -> String {
        let UnivMonParams { levels, width, keep } = self.params;
        format!("{levels} levels of {ROWS} rows of {width} counters, {keep} keys kept")
    }

    fn weight(&self) -> u64 {
        self.weight
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

    fn clear(&mut self) {
        self.cells.fill(0);
        self.stores.iter_mut().for_each(Store::clear);
        self.weight = 0;
    }

    fn merge(&mut self, other: &dyn Sketch<N>) -> Result<(), MergeError> {
        let other = same(self, other)?;
        let is_empty = |s: &Self| s.weight == 0 && s.stores.iter().all(Store::is_empty);
        if is_empty(other) {
            return Ok(());
        }
        if is_empty(self) {
            self.clone_from(other);
            return Ok(());
        }
        self.cells.iter_mut().zip(&other.cells).for_each(|(a, b)| *a = a.saturating_add(*b));
        self.weight = self.weight.saturating_add(other.weight);
        let mut stores = std::mem::take(&mut self.stores);
        for (a, b) in stores.iter_mut().zip(&other.stores) {
            a.merge(b, |key| u64::try_from(self.estimate(key)).unwrap_or(0).max(1));
        }
        self.stores = stores;
        Ok(())
    }

    /// Holds as the bounds of sizes do: with a probability of about 99 % for a flow. A flow that is kept isn't listed either where
    /// noise takes all of it away.
    fn unlisted(&self) -> Option<u64> {
        let noise = |level| (2.0 * self.noise(level)).ceil() as u64;
        let of = |(level, store): (usize, &Store<N>)| store.bar().saturating_add(noise(level));
        self.stores.iter().enumerate().map(of).max()
    }

    fn boxed_clone(&self) -> Box<dyn Sketch<N>> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn encode(&self, out: &mut Encoder) {
        out.u32(self.params.levels as u32);
        out.u32(self.params.width as u32);
        out.u32(self.params.keep as u32);
        self.cells.iter().for_each(|c| out.u64(c.cast_unsigned()));
        self.stores.iter().for_each(|s| s.encode(out));
    }

    /// Bounds hold with a probability of about 99 %.
    fn flow_size(&self, key: &[u8; N]) -> Result<Bounds<u64>, QueryError> {
        Ok(self.bounds(key))
    }

    fn heavy_hitters(&self, want: Want) -> Result<Vec<Flow<N>>, QueryError> {
        let flow = |(_, _, key)| Flow { key, size: self.bounds(&key) };
        Ok(select(self.kept().into_iter().map(flow).collect(), want))
    }

    /// Among the keys that either epoch kept.
    fn heavy_changes(&self, earlier: &dyn Sketch<N>, want: Want) -> Result<Vec<Change<N>>, QueryError> {
        let earlier = same(self, earlier)?;
        let mut keys: Vec<[u8; N]> = self.kept().into_iter().chain(earlier.kept()).map(|k| k.2).collect();
        keys.sort_unstable();
        keys.dedup();
        let change = |key: [u8; N]| {
            let level = self.level(&key);
            let (cells, signs) = self.place(&key, level);
            let mut rows = [0; ROWS];
            for ((i, cell), row) in cells.into_iter().enumerate().zip(&mut rows) {
                let of = |s: &Self| s.cells.get(cell).copied().unwrap_or(0);
                let change = of(self).saturating_sub(of(earlier));
                *row = if signs >> i & 1 == 1 { change.saturating_neg() } else { change };
            }
            let estimate = median(&mut rows);
            let error = (2.0 * (self.noise(level) + earlier.noise(level))).ceil() as i64;
            let (lower, upper) = (estimate.saturating_sub(error), estimate.saturating_add(error));
            Change { key, change: Bounds { estimate, lower, upper } }
        };
        Ok(select_changes(keys.into_iter().map(change).collect(), want))
    }

    /// Bounds hold in about 95 % of cases.
    fn cardinality(&self) -> Result<Bounds<f64>, QueryError> {
        let (estimate, error) = (self.sum(|_| 1.0), self.error());
        Ok(Bounds { estimate, lower: estimate * (1.0 - error).max(0.0), upper: estimate * (1.0 + error) })
    }

    /// Bounds hold in about 95 % of cases.
    fn entropy(&self) -> Result<Bounds<f64>, QueryError> {
        let n = self.weight as f64;
        if n == 0.0 {
            return Ok(Bounds::exact(0.0));
        }
        let sum = self.sum(|size| size * size.log2());
        let limit = n.log2();
        let noise = self.noise_in_sum(|size| size.log2() + std::f64::consts::LOG2_E) / n;
        let part = sum / n;
        let error = part * self.error() + noise;
        let entropy = |part: f64| (limit - part).clamp(0.0, limit);
        Ok(Bounds { estimate: entropy(part), lower: entropy(part + error), upper: entropy(part - error) })
    }

    /// Bounds hold in about 95 % of cases.
    fn second_moment(&self) -> Result<Bounds<f64>, QueryError> {
        let estimate = self.sum(|size| size * size);
        let error = estimate * self.error() + self.noise_in_sum(|size| 2.0 * size);
        Ok(Bounds { estimate, lower: (estimate - error).max(0.0), upper: estimate + error })
    }

    fn is_saturated(&self) -> bool {
        self.cells.iter().any(|c| *c == i64::MAX || *c == i64::MIN)
    }
}
