//! TwoLevel (Yu, Jose and Miao, NSDI 2013, OpenSketch): sources with many distinct counterparts
//! (superspreaders), or destinations with many distinct sources (victims of DDoS).
//!
//! A key is a pair: source, counterpart. Level one is a reversible sketch over sources, so that they can be
//! decoded; level two has larger bitmaps, which tell how many counterparts. In both, a cell is a bitmap of
//! several resolutions (`multires`) instead of the counter and the small plain bitmap of the original: it
//! counts *distinct* pairs, so that a source which sends many packets to one host doesn't stand out; it
//! doesn't saturate before hundreds of thousands; and setting bits is idempotent, so the state doesn't depend
//! on the order of packets, and shards are united with OR.

use crate::hash::{Hash, Hasher, below};
use crate::kind::{MAX_CELLS, cells, need};
use crate::modular::{
    Heavy, MAX_HEAVY, MAX_LEN, MAX_PATHS, MAX_STAGES, Modular, TABLES, bucket_of, heaviest,
};
use crate::multires::{self, PARTS};
use crate::serial::{Decoder, Encoder, StateError};
use crate::simd::prefetch;
use crate::sketch::select;
use crate::state::{Or, State, state_methods, tables};
use crate::stats::{findings, two_sided};
use crate::{Bounds, BuildError, Flow, Kind, QueryError, Size, Sketch, Update, Want};

/// Rows of level two.
const ROWS: usize = 4;
/// Relative standard error of a spread well above what others leave in a bitmap: 0.118 of one bitmap of 512
/// bits, and of the mean of the middle two of four (a normal distribution's) 0.546 of that.
const ERROR: f64 = 0.118 * MIDDLE;
/// The standard deviation of the mean of the middle two of four, in those of one.
const MIDDLE: f64 = 0.546;
/// The least spread for which an accuracy is asked.
const LEAST: f64 = 100.0;
/// Standard errors either side that hold 95 % of answers, and a few more: sources are listed the rather, the
/// greater their estimates.
const SIGMAS: f64 = 2.2;
/// The share of bitmaps that others leave more (or less) in than the bounds allow for: two of the four of a
/// source do with a probability of 2.5 %.
const CROWDED: f64 = 0.065;
const AHEAD: usize = 8;
/// Of the sources that are listed, the share that may be invented, on average.
const INVENTED: f64 = 0.01;
/// Sources that are followed where nothing says which spread is of interest.
const FOLLOWED: usize = 256;

/// A bitmap of eight components of 64 bits: one cache line.
type Map = [u64; PARTS];

/// Shape of a [`TwoLevel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TwoLevelParams {
    /// Bytes of a key that are the source: 1 to all but one.
    pub source_len: usize,
    /// Level one has tables of 2^bits bitmaps of 64 bits: 8 to 16.
    pub bits: u32,
    /// Level two has 4 rows of so many bitmaps of 512 bits: 1 to 2²⁴.
    pub width: usize,
}

/// Sources by their number of distinct counterparts.
#[derive(Clone, Debug)]
pub struct TwoLevel<const N: usize> {
    params: TwoLevelParams,
    level1: Vec<u64>,
    level2: Vec<Map>,
    modular: Modular,
    sources: Hasher,
    pairs: Hasher,
    seed: u64,
    weight: u64,
}

/// A source that level one may hold.
struct Candidate {
    source: Vec<u8>,
    /// Its estimate by level one.
    shown: i64,
    /// The chance that a source that was never seen finds bitmaps as full in every row of level two.
    chance: f64,
}

/// The place of a pair's bits.
#[derive(Clone, Copy)]
struct Places {
    mask: u64,
    rows: [usize; ROWS],
    pair: Hash,
}

impl<const N: usize> TwoLevel<N> {
    /// An empty sketch.
    ///
    /// # Errors
    /// [`BuildError`] where a parameter is out of range.
    pub fn new(params: TwoLevelParams, seed: u64) -> Result<Self, BuildError> {
        Self::check(params)?;
        let modular = Modular::new(params.source_len, params.bits, seed);
        let (one, two) = ((modular.stages() * TABLES) << params.bits, ROWS * params.width);
        need(Kind::TwoLevel, one * 8 + two * size_of::<Map>())?;
        let mut this = Self::without_tables(params, modular, seed);
        this.level1 = vec![0; one];
        this.level2 = vec![[0; PARTS]; two];
        Ok(this)
    }

    fn without_tables(params: TwoLevelParams, modular: Modular, seed: u64) -> Self {
        let (sources, pairs) = (Hasher::new(seed, 0x74_6c_73), Hasher::new(seed, 0x74_6c_70));
        let (level1, level2) = (Vec::new(), Vec::new());
        Self { params, level1, level2, modular, sources, pairs, seed, weight: 0 }
    }

    fn check(p: TwoLevelParams) -> Result<(), BuildError> {
        let wrong = |what, range| Err(BuildError::Parameter { kind: Kind::TwoLevel, what, range });
        match p {
            _ if p.source_len == 0 || p.source_len >= N || p.source_len > MAX_LEN => {
                wrong("the length of the source", "1 byte to one less than the key, at most 64")
            }
            _ if !(8..=16).contains(&p.bits) => wrong("the bits of a bucket's number", "8 to 16"),
            _ if p.width == 0 || p.width > 1 << 24 => wrong("the width of level two", "1 to 2^24"),
            _ => Ok(()),
        }
    }

    /// The sketch for a size: of a budget, up to half for level one. For an accuracy (relative, of spreads of
    /// 100 and more), as wide as the number of flows asks for: what others leave in a bitmap may vary by what
    /// the error allows beyond that of the bitmap itself. An error below 0.064 times the normal quantile of
    /// the confidence (0.127 for 95 %) can't be had.
    ///
    /// # Errors
    /// [`BuildError`] where the size is impossible.
    pub fn sized(size: Size, seed: u64, source_len: usize) -> Result<Self, BuildError> {
        let kind = Kind::TwoLevel;
        let tables = Modular::stages_for(source_len.clamp(1, MAX_LEN)) * TABLES;
        let params = match size {
            Size::Memory(budget) => {
                let hashes = Modular::bytes_for(source_len.clamp(1, MAX_LEN));
                let least = (tables << 8) * 8 + ROWS * 64 + hashes;
                if budget < least {
                    return Err(BuildError::TooSmall { kind, least, budget });
                }
                let budget = budget - hashes;
                let bits = (budget / 2 / 8 / tables).max(1 << 8).ilog2().min(16);
                let width = (budget - (tables << bits) * 8) / 64 / ROWS;
                TwoLevelParams { source_len, bits, width: width.clamp(1, 1 << 24) }
            }
            Size::Accuracy { error, confidence, flows } => {
                let sigmas = two_sided(confidence);
                let spare = (error / sigmas).powi(2) - ERROR * ERROR;
                if spare <= 0.0 {
                    return Err(BuildError::TooExact { kind, error, least: sigmas * ERROR, confidence });
                }
                // Others are as few pairs as make a third of this deviation if each were a source's only one:
                // they are not.
                let crowd = (spare.sqrt() * LEAST / MIDDLE / 3.0).powi(2);
                let width = cells(kind, (flows as f64 / crowd).max(64.0))?;
                let bits = (flows / 8).max(256).min(MAX_CELLS as u64).ilog2().min(16);
                TwoLevelParams { source_len, bits, width: width.min(1 << 24) }
            }
        };
        Self::new(params, seed)
    }

    fn source<'a>(&self, key: &'a [u8; N]) -> &'a [u8] {
        key.get(..self.params.source_len).unwrap_or_default()
    }

    #[inline(always)]
    fn places(&self, key: &[u8; N]) -> Places {
        let pair = self.pairs.hash(key);
        let [a, b] = pair.0;
        let mask = 1u64 << (multires::part(a) * 8 + (b & 7) as u32);
        Places { mask, rows: rows_of(&self.sources, self.params.width, self.source(key)), pair }
    }

    #[inline(always)]
    fn put(&mut self, buckets: &[u64; MAX_STAGES], places: &Places) {
        let bits = self.params.bits;
        for (stage, packed) in buckets.iter().enumerate().take(self.modular.stages()) {
            for t in 0..TABLES {
                let at = ((stage * TABLES + t) << bits) + bucket_of(*packed, t);
                if let Some(cell) = self.level1.get_mut(at) {
                    *cell |= places.mask;
                }
            }
        }
        let [a, b] = places.pair.0;
        for (row, at) in places.rows.into_iter().enumerate() {
            // Each row takes other bits of the hash, so that their errors differ.
            let (choice, bit) = (a >> (14 * row), b >> (6 + 6 * row) & 63);
            let part = multires::part(choice & 0x3fff | 1 << 14);
            if let Some(word) = self.level2.get_mut(at).and_then(|m| m.get_mut(part as usize)) {
                *word |= 1 << bit;
            }
        }
    }

    /// The sketch without its keys.
    fn view(&self) -> View<'_> {
        let Self { params, level1, level2, modular, sources, .. } = self;
        View { params: *params, level1, level2, modular, sources }
    }
}

/// The bitmaps of a source in level two.
#[inline(always)]
fn rows_of(sources: &Hasher, w: usize, source: &[u8]) -> [usize; ROWS] {
    let hash = match source.first_chunk::<4>() {
        Some(four) if source.len() == 4 => sources.hash64(four),
        _ => sources.hash_slice(source),
    };
    // Two pieces of 32 bits and two that mix them: rows of one source's collisions differ.
    let (a, b) = (hash as u32, (hash >> 32) as u32);
    let more = crate::hash::mix(hash, 0x9e37_79b9_7f4a_7c15);
    let (c, d) = (more as u32, (more >> 32) as u32);
    [below(a, w), w + below(b, w), 2 * w + below(c, w), 3 * w + below(d, w)]
}

/// All of a sketch but the keys: the same code for keys of all lengths.
struct View<'a> {
    params: TwoLevelParams,
    level1: &'a [u64],
    level2: &'a [Map],
    modular: &'a Modular,
    sources: &'a Hasher,
}

impl View<'_> {
    fn rows_of(&self, source: &[u8]) -> [usize; ROWS] {
        rows_of(self.sources, self.params.width, source)
    }

    /// The sources with the most counterparts, with these.
    fn superspreaders(&self, want: Want) -> Vec<(Vec<u8>, Bounds<u64>)> {
        let estimates = self.estimates();
        let sorted = self.sorted(&estimates);
        let sources = self.verified(self.candidates(want.threshold, &estimates, &sorted));
        let size = |c: Candidate| self.spread(&c.source, &sorted).map(|size| (c.source, size));
        sources.into_iter().filter_map(size).collect()
    }

    /// Distinct pairs by bitmap of level two, row by row.
    fn estimates(&self) -> Vec<f64> {
        self.level2.iter().map(|m| of_map(m).0).collect()
    }

    /// Every row of level two in ascending order.
    fn sorted(&self, estimates: &[f64]) -> Vec<Vec<f64>> {
        let mut rows: Vec<Vec<f64>> =
            estimates.chunks(self.params.width.max(1)).map(<[f64]>::to_vec).collect();
        rows.iter_mut().for_each(|row| row.sort_unstable_by(f64::total_cmp));
        rows
    }

    /// The chance that four bitmaps, one of each row and drawn at random, are as full as those of a source:
    /// the fourth power of the greatest share of a row that is.
    fn chance(&self, source: &[u8], estimates: &[f64], sorted: &[Vec<f64>]) -> f64 {
        let share = |(at, row): (usize, &Vec<f64>)| {
            let own = estimates.get(at).copied().unwrap_or(0.0);
            if own > 0.0 {
                (row.len() - row.partition_point(|v| *v < own)) as f64 / row.len() as f64
            } else {
                1.0
            }
        };
        self.rows_of(source).into_iter().zip(sorted).map(share).fold(0.0, f64::max).powi(ROWS as i32)
    }

    /// The candidates that are no chance finds.
    ///
    /// Level one tells keys by parts, and parts of several sources spell others, the more, the longer keys
    /// are and the smaller its tables. Where level two has a source isn't told by level one; so how full
    /// bitmaps are in the places of a source that was never seen is known: as those of its row. From this
    /// follows how many of so many candidates seem to be there by chance, and how far down the list those
    /// that do are no more than one in a hundred. The same is tried with fewer, of which level one shows
    /// more, and the longest list is the answer.
    fn verified(&self, mut candidates: Vec<Candidate>) -> Vec<Candidate> {
        candidates.sort_unstable_by(|a, b| a.chance.total_cmp(&b.chance).then(a.source.cmp(&b.source)));
        // A source that level one lacks (a table may miss it) is below zero.
        let (mut least, mut best) = (i64::MIN, (0, 0));
        loop {
            let chances: Vec<f64> =
                candidates.iter().filter(|c| c.shown >= least).map(|c| c.chance).collect();
            if chances.is_empty() {
                break;
            }
            best = best.max((findings(&chances, INVENTED), least));
            least = least.saturating_mul(2).max(1);
        }
        let (n, least) = best;
        candidates.into_iter().filter(|c| c.shown >= least).take(n).collect()
    }

    /// Estimates how many counterparts a source has: the mean of the middle two of what the rows tell, each
    /// less what the half of its bitmaps have. Collisions with other great sources are in the upper two,
    /// mostly. Nothing where others leave as much as its emptiest bitmap has in some.
    fn spread(&self, source: &[u8], sorted: &[Vec<f64>]) -> Option<Bounds<u64>> {
        let mut rows = [0.0; ROWS];
        let (mut full, mut whole) = (false, 0.0);
        let (mut less, mut more) = (0.0f64, 0.0f64);
        for ((value, row), at) in rows.iter_mut().zip(sorted).zip(self.rows_of(source)) {
            let map = self.level2.get(at).copied().unwrap_or_default();
            let (own, is_full) = multires::most_likely(map.map(u64::count_ones), 64);
            full |= is_full;
            let of = |share: f64| row.get((row.len() as f64 * share) as usize).copied().unwrap_or(0.0);
            let usual = if row.len() > 1 { of(0.5) } else { 0.0 };
            *value = (own - usual).max(0.0);
            whole += own / ROWS as f64;
            (less, more) = (less.max(usual - of(CROWDED)), more.max(of(1.0 - CROWDED) - usual));
        }
        rows.sort_unstable_by(f64::total_cmp);
        let [least, low, high, _] = rows;
        let estimate = 0.5 * (low + high);
        let error = SIGMAS * MIDDLE * multires::error(whole.max(1.0), 64) * whole.max(1.0) + 0.5;
        let upper = if full { u64::MAX } else { (estimate + error + less).ceil() as u64 };
        let lower = (estimate - error - more).max(0.0) as u64;
        let estimate = estimate.round() as u64;
        // Others only add: a source is in all of its bitmaps.
        let told = least.round() > more;
        told.then_some(Bounds { estimate, lower: lower.min(estimate), upper: upper.max(estimate) })
    }

    /// Distinct pairs by bucket of one table of level one, less their average.
    fn table(&self, row: usize) -> Vec<i64> {
        let width = 1usize << self.params.bits;
        let cells = self.level1.get(row * width..(row + 1) * width).unwrap_or_default();
        let estimates: Vec<f64> =
            cells.iter().map(|c| multires::estimate(multires::set_bits_small(*c), 8).0).collect();
        let mean = estimates.iter().sum::<f64>() / width as f64;
        estimates.into_iter().map(|e| (e - mean) as i64).collect()
    }

    /// Takes the estimate of a source by level one: the least of its buckets.
    fn shown(&self, source: &[u8], tables: &[Vec<i64>]) -> i64 {
        let mut buckets = [0; MAX_STAGES];
        self.modular.buckets(source, &mut buckets);
        let of_stage = |(stage, packed): (&[Vec<i64>], u64)| {
            let value = |(t, table): (usize, &Vec<i64>)| table.get(bucket_of(packed, t)).copied();
            stage.iter().enumerate().filter_map(value).min()
        };
        tables.chunks(TABLES).zip(buckets).filter_map(of_stage).min().unwrap_or(0)
    }

    /// Sources whose buckets stand out by `spread`, or the most that can be followed.
    fn candidates(&self, spread: u64, estimates: &[f64], sorted: &[Vec<f64>]) -> Vec<Candidate> {
        let stages = self.modular.stages();
        let tables: Vec<Vec<i64>> = (0..stages * TABLES).map(|r| self.table(r)).collect();
        // A bitmap of 64 bits is good to a third or so: what shows a third (in stages, a quarter) may be the
        // spread.
        let slack = if stages > 1 { 4 } else { 3 };
        let mut threshold = match spread {
            0 | 1 => {
                let most = |t: &Vec<i64>| {
                    let mut sorted = t.clone();
                    sorted.sort_unstable_by(|a, b| b.cmp(a));
                    sorted.get(FOLLOWED).copied().unwrap_or(0)
                };
                tables.iter().map(most).max().unwrap_or(0)
            }
            given => i64::try_from(given).unwrap_or(i64::MAX) / slack,
        }
        .max(1);
        loop {
            let of = |s: usize, t: usize| tables.get(s * TABLES + t).map(Vec::as_slice).unwrap_or_default();
            let heavy: Vec<Heavy> = (0..stages)
                .map(|s| std::array::from_fn(|t| heaviest(of(s, t).iter().copied(), threshold, MAX_HEAVY)))
                .collect();
            let mut paths = MAX_PATHS;
            if let Some(keys) = self.modular.keys(&heavy, usize::from(stages == 1), &mut paths) {
                let candidate = |source: Vec<u8>| {
                    let shown = self.shown(&source, &tables);
                    Candidate { chance: self.chance(&source, estimates, sorted), source, shown }
                };
                return keys.into_iter().map(candidate).collect();
            }
            threshold = threshold.saturating_mul(2);
        }
    }
}

fn any_full(level2: &[Map]) -> bool {
    level2.iter().any(|m| of_map(m).1)
}

/// Distinct pairs in a bitmap of level two; whether it is full.
fn of_map(map: &Map) -> (f64, bool) {
    multires::estimate(map.map(u64::count_ones), 64)
}

impl<const N: usize> State<N> for TwoLevel<N> {
    fn read_parameters(seed: u64, d: &mut Decoder<'_>) -> Result<Self, StateError> {
        let params = TwoLevelParams {
            source_len: usize::from(d.u16()?),
            bits: u32::from(d.u16()?),
            width: d.u32()? as usize,
        };
        Self::check(params).map_err(|_| StateError::Damaged("its shape is impossible"))?;
        let modular = Modular::of_version(d.version(), params.source_len, params.bits, seed);
        Ok(Self::without_tables(params, modular, seed))
    }

    fn write_parameters(&self, out: &mut Encoder) {
        out.u16(self.params.source_len as u16);
        out.u16(self.params.bits as u16);
        out.u32(self.params.width as u32);
    }

    tables! {
        self:
        level1: Or, (self.modular.stages() * TABLES) << self.params.bits;
        level2: Or, ROWS * self.params.width;
    }
}

impl<const N: usize> Sketch<N> for TwoLevel<N> {
    state_methods!();

    fn kind(&self) -> Kind {
        Kind::TwoLevel
    }

    fn state_version(&self) -> u16 {
        self.modular.version()
    }

    fn shape(&self) -> String {
        let TwoLevelParams { source_len, bits, width } = self.params;
        let (tables, how) = (1u64 << bits, self.modular.layout());
        format!("sources of {source_len} bytes, tables of {tables} bitmaps, rows of {width}{how}")
    }

    fn memory_bytes(&self) -> usize {
        size_of_val(self.level1.as_slice())
            + size_of_val(self.level2.as_slice())
            + self.modular.memory_bytes()
    }

    fn update(&mut self, key: &[u8; N], weight: u64) {
        self.weight = self.weight.saturating_add(weight);
        let mut buckets = [0; MAX_STAGES];
        self.modular.buckets(self.source(key), &mut buckets);
        self.put(&buckets, &self.places(key));
    }

    fn update_all(&mut self, updates: &[Update<N>]) {
        let mut buckets = [0; MAX_STAGES];
        let bits = self.params.bits;
        for some in updates.chunks(AHEAD) {
            let mut places = [(0, Places { mask: 0, rows: [0; ROWS], pair: Hash([0; 2]) }); AHEAD];
            for (place, u) in places.iter_mut().zip(some) {
                self.modular.buckets(self.source(&u.key), &mut buckets);
                let [packed, ..] = buckets;
                *place = (packed, self.places(&u.key));
                for t in 0..TABLES {
                    prefetch(&self.level1, (t << bits) + bucket_of(packed, t));
                }
                place.1.rows.iter().for_each(|i| prefetch(&self.level2, *i));
            }
            for (place, u) in places.iter().zip(some) {
                self.weight = self.weight.saturating_add(u64::from(u.weight));
                if self.modular.stages() > 1 {
                    self.modular.buckets(self.source(&u.key), &mut buckets);
                } else if let Some(first) = buckets.first_mut() {
                    *first = place.0;
                }
                self.put(&buckets, &place.1);
            }
        }
    }

    fn update_cost(&self) -> f64 {
        8.0 * self.modular.stages() as f64
    }

    fn merges_exactly(&self) -> bool {
        true
    }

    /// Bounds hold in 95 % of cases: a standard error is about 6 %, and what others leave in the bitmaps
    /// comes to that; upper has no end where a bitmap is full. Of what is listed, one in a hundred was never
    /// seen, on average: sources that can't be told from such are left out, which may be all of them where
    /// many stand out in small tables.
    fn superspreaders(&self, source_len: usize, want: Want) -> Result<Vec<Flow<N>>, QueryError> {
        if source_len != self.params.source_len {
            return Err(self.unsupported("spreads of sources of another length"));
        }
        let mut flows = Vec::new();
        for (source, size) in self.view().superspreaders(want) {
            let mut key = [0; N];
            if let Some(bytes) = key.get_mut(..source.len()) {
                bytes.copy_from_slice(&source);
            }
            flows.push(Flow { key, size });
        }
        Ok(select(flows, want))
    }

    fn is_saturated(&self) -> bool {
        any_full(&self.level2)
    }
}
