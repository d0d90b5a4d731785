//! Count-Min (Cormode and Muthukrishnan, J. Algorithms 55, 2005): sizes of flows from d rows of w counters.
//!
//! A key adds to one counter of each row; its estimate is the least of them. It is never too small, and too
//! large by more than (e/w)·N with a probability of at most e⁻ᵈ. Every counter is added to (no conservative
//! update), so states add up: shards merge to what one pass would have given, bit for bit. Of a key whose
//! counters are all full, what the rows lack of the whole weight bounds the size (module `full`).
//!
//! To list heavy hitters it may keep a store of keys beside the counters; the store depends on the order of
//! updates, the counters don't. Merged, it has the keys of all stores; what a key may weigh that none of them
//! kept is bounded by the sum of what each store bounds ([`Sketch::unlisted`]).

use std::cell::LazyCell;

use crate::full::{self, END};
use crate::hash::{Hasher, below};
use crate::kind::{MAX_CELLS, cells, need};
use crate::serial::{Decoder, Encoder, StateError};
use crate::simd::{CACHED, add_in_four_rows};
use crate::sketch::select;
use crate::state::{Add, Apart, State, state_methods, tables};
use crate::store::{MAX_KEEP, Store};
use crate::{
    Bounds, BuildError, Confidence, Flow, Kind, MergeError, QueryError, Question, Size, Sketch, Update, Want,
};

/// Rows that one hash gives.
const ROWS_A_HASH: usize = 4;
/// Keys that are kept also where an eighth of the memory is too small for them: what fills a table of 64.
const LEAST_KEPT: usize = 28;

/// Shape of a [`CountMin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountMinParams {
    /// Rows: 1 to 16.
    pub rows: usize,
    /// 32-bit counters a row: 1 to 2³⁰ ÷ rows.
    pub width: usize,
    /// Keys kept to list the heaviest: 0 to 2²⁴. States can be merged whatever it is, unless it is 0 for one
    /// of them only.
    pub keep: usize,
}

/// Sizes of flows, and with a store the heaviest of them.
#[derive(Clone, Debug)]
pub struct CountMin<const N: usize> {
    rows: usize,
    width: usize,
    cells: Vec<u32>,
    hashers: Vec<Hasher>,
    store: Store<N>,
    seed: u64,
    weight: u64,
}

impl<const N: usize> CountMin<N> {
    /// The most rows.
    pub const MAX_ROWS: usize = 16;

    /// An empty sketch.
    ///
    /// # Errors
    /// [`BuildError`] where a parameter is out of range.
    pub fn new(params: CountMinParams, seed: u64) -> Result<Self, BuildError> {
        Self::check(params)?;
        let keys = Store::<N>::bytes_for(params.keep);
        need(Kind::CountMin, params.rows * params.width * 4 + keys)?;
        let mut this = Self::without_cells(params, seed);
        this.cells = vec![0; params.rows * params.width];
        Ok(this)
    }

    fn without_cells(CountMinParams { rows, width, keep }: CountMinParams, seed: u64) -> Self {
        Self {
            rows,
            width,
            cells: Vec::new(),
            hashers: Self::hashers(rows, seed),
            store: Store::new(keep, seed),
            seed,
            weight: 0,
        }
    }

    fn check(p: CountMinParams) -> Result<(), BuildError> {
        let wrong = |what, range| Err(BuildError::Parameter { kind: Kind::CountMin, what, range });
        if p.rows == 0 || p.rows > Self::MAX_ROWS {
            return wrong("the number of rows", "1 to 16");
        }
        if p.width == 0 || p.width > MAX_CELLS / p.rows {
            return wrong("the width", "1 to 2^30 / rows");
        }
        if p.keep > MAX_KEEP {
            return wrong("the number of keys kept", "0 to 2^24");
        }
        Ok(())
    }

    fn hashers(rows: usize, seed: u64) -> Vec<Hasher> {
        (0..rows.div_ceil(ROWS_A_HASH)).map(|i| Hasher::new(seed, 0x63_6d_00 + i as u64)).collect()
    }

    /// The number of keys to keep in a sketch of so much memory: what fits in an eighth of it, but 28 where
    /// half of it holds them.
    #[must_use]
    pub fn keys_within(memory: usize) -> usize {
        Store::<N>::keys_within(Self::share(memory))
    }

    /// The bytes of a budget that are set aside for keys.
    fn share(memory: usize) -> usize {
        (memory / 8).max(Store::<N>::bytes_for(LEAST_KEPT).min(memory / 2))
    }

    /// The sketch for a size: four rows for a budget, ⌈ln 1/(1−confidence)⌉ of e/error counters for an
    /// accuracy. The width doesn't depend on how many keys are kept, up to [`CountMin::keys_within`]: such
    /// states can be merged.
    ///
    /// # Errors
    /// [`BuildError`] where the size is impossible.
    pub fn sized(size: Size, seed: u64, keep: usize) -> Result<Self, BuildError> {
        let kind = Kind::CountMin;
        let params = match size {
            Size::Memory(budget) => {
                let keys = Store::<N>::bytes_for(keep.min(MAX_KEEP));
                let set_aside = if keep == 0 { 0 } else { keys.max(Self::share(budget)) };
                let rest = budget.saturating_sub(set_aside);
                let width = (rest / 16).min(MAX_CELLS / 4);
                if width == 0 {
                    return Err(BuildError::TooSmall { kind, least: (keys + 16).max(32), budget });
                }
                CountMinParams { rows: 4, width, keep }
            }
            Size::Accuracy { error, confidence, .. } => {
                let rows = ((1.0 / (1.0 - confidence)).ln().ceil().max(1.0) as usize).min(Self::MAX_ROWS);
                CountMinParams { rows, width: cells(kind, std::f64::consts::E / error)?, keep }
            }
        };
        Self::new(params, seed)
    }

    /// Says that nothing was put in.
    fn is_empty(&self) -> bool {
        self.weight == 0 && self.store.is_empty()
    }

    fn estimate(&self, key: &[u8; N]) -> u64 {
        let mut least = u32::MAX;
        for (h, hasher) in self.hashers.iter().enumerate() {
            let first = h * ROWS_A_HASH;
            for (i, piece) in hasher.hash(key).pieces().into_iter().enumerate().take(self.rows - first) {
                let place = (first + i) * self.width + below(piece, self.width);
                least = least.min(self.cells.get(place).copied().unwrap_or(0));
            }
        }
        u64::from(least)
    }

    /// The least and the most that the least counter of a key may stand for, where all of them are full.
    fn ends(&self) -> (u64, u64) {
        full::ends(&self.cells, self.width, self.weight)
    }

    /// The bounds of a size, with what [`CountMin::ends`] says where it is asked.
    fn bounds(&self, key: &[u8; N], ends: &dyn Fn() -> (u64, u64)) -> Bounds<u64> {
        full::bounds(self.estimate(key), self.width, self.weight, ends)
    }

    /// Four rows and no store.
    #[inline(always)]
    fn update_four(&mut self, hasher: Hasher, updates: &[Update<N>]) {
        let more: u64 = updates.iter().map(|u| u64::from(u.weight)).sum();
        self.weight = self.weight.saturating_add(more);
        // No counter is above the whole weight: as long as that fits into one, none can reach its end.
        if self.weight <= u64::from(u32::MAX) {
            add_in_four_rows(&mut self.cells, self.width, hasher, updates);
        } else {
            for u in updates {
                self.add(&u.key, u.weight);
            }
        }
    }

    /// Adds to a key's counters; gives the least of them.
    #[inline(always)]
    fn add(&mut self, key: &[u8; N], weight: u32) -> u32 {
        let mut least = u32::MAX;
        for (h, hasher) in self.hashers.iter().enumerate() {
            let first = h * ROWS_A_HASH;
            for (i, piece) in hasher.hash(key).pieces().into_iter().enumerate().take(self.rows - first) {
                if let Some(cell) = self.cells.get_mut((first + i) * self.width + below(piece, self.width)) {
                    *cell = cell.saturating_add(weight);
                    least = least.min(*cell);
                }
            }
        }
        least
    }
}

fn greatest(cells: &[u32]) -> u64 {
    cells.iter().max().map_or(0, |cell| u64::from(*cell))
}

/// A bound of all estimates: of the greatest counters of the rows, the least.
fn greatest_estimate(cells: &[u32], width: usize) -> u64 {
    let rows = cells.chunks(width.max(1));
    let least = rows.filter_map(|row| row.iter().max()).min().copied();
    u64::from(least.unwrap_or(u32::MAX))
}

impl<const N: usize> State<N> for CountMin<N> {
    fn read_parameters(seed: u64, d: &mut Decoder<'_>) -> Result<Self, StateError> {
        let params = CountMinParams { rows: d.u32()? as usize, width: d.u32()? as usize, keep: 0 };
        Self::check(params).map_err(|_| StateError::Damaged("its shape is impossible"))?;
        Ok(Self::without_cells(params, seed))
    }

    fn write_parameters(&self, out: &mut Encoder) {
        out.u32(self.rows as u32);
        out.u32(self.width as u32);
    }

    tables! { self: cells: Add, self.rows * self.width; store: Apart, 1; }

    fn amend(&mut self, version: u16) {
        if version == 1 {
            self.store.raise(greatest_estimate(&self.cells, self.width));
        }
    }

    fn check_tables(&self) -> Result<(), StateError> {
        if greatest(&self.cells) > self.weight {
            return Err(StateError::Damaged("a counter is above the whole weight"));
        }
        Ok(())
    }

    fn unite(&mut self, other: &Self) -> Result<(), MergeError> {
        if other.is_empty() {
            return Ok(());
        }
        if self.is_empty() {
            self.clone_from(other);
            return Ok(());
        }
        self.unite_tables(other);
        let mut store = std::mem::replace(&mut self.store, Store::new(0, self.seed));
        store.merge(&other.store, &|key| self.estimate(key));
        self.store = store;
        Ok(())
    }
}

impl<const N: usize> Sketch<N> for CountMin<N> {
    state_methods!();

    fn kind(&self) -> Kind {
        Kind::CountMin
    }

    fn shape(&self) -> String {
        let keys = if self.store.keep() > 0 { "with" } else { "without" };
        format!("{} rows of {} counters, {keys} a store of keys", self.rows, self.width)
    }

    fn memory_bytes(&self) -> usize {
        size_of_val(self.cells.as_slice()) + self.store.memory_bytes()
    }

    fn update(&mut self, key: &[u8; N], weight: u64) {
        self.weight = self.weight.saturating_add(weight);
        let least = self.add(key, u32::try_from(weight).unwrap_or(u32::MAX));
        self.store.offer(key, u64::from(least));
    }

    fn update_all(&mut self, updates: &[Update<N>]) {
        match self.hashers.as_slice() {
            [one] if self.rows == 4 && self.store.keep() == 0 => self.update_four(*one, updates),
            _ => updates.iter().for_each(|u| self.update(&u.key, u64::from(u.weight))),
        }
    }

    fn update_cost(&self) -> f64 {
        let fast = self.rows == 4 && self.store.keep() == 0 && self.cells.len() <= CACHED;
        if fast { 0.5 } else { 0.33 * self.rows as f64 }
    }

    fn merges_exactly(&self) -> bool {
        self.store.keep() == 0
    }

    /// Upper is certain; lower = estimate − (e/w)·N holds with probability 1 − e⁻ᵈ.
    ///
    /// Where all counters of the key are full, upper and estimate are the most that they may stand for, and
    /// lower comes from the least.
    fn flow_size(&self, key: &[u8; N]) -> Result<Bounds<u64>, QueryError> {
        Ok(self.bounds(key, &|| self.ends()))
    }

    fn heavy_hitters(&self, want: Want) -> Result<Vec<Flow<N>>, QueryError> {
        if self.store.keep() == 0 {
            return Err(self.unsupported("which flows are heavy (it was made without a store of keys)"));
        }
        let ends = LazyCell::new(|| self.ends());
        let mut flows = Vec::new();
        for key in self.store.keys() {
            flows.push(Flow { key, size: self.bounds(&key, &|| *ends) });
        }
        Ok(select(flows, want))
    }

    fn confidence(&self, _: Question) -> Confidence {
        Confidence::Share(1.0 - (-(self.rows as f64)).exp())
    }

    fn unlisted(&self) -> Option<u64> {
        let bar = self.store.bar();
        // A full counter tells nothing of what was added to it.
        let bar = if bar >= END { self.ends().1 } else { bar.min(self.weight) };
        (self.store.keep() > 0).then_some(bar)
    }

    fn is_saturated(&self) -> bool {
        self.cells.contains(&u32::MAX)
    }
}
