//! FlowRadar (Li, Miao, Kim and Yu, NSDI 2016): the exact list of flows with their sizes, from an invertible
//! Bloom lookup table.
//!
//! A flow that a Bloom filter hasn't seen is XORed into one cell of each of four sub-tables; its weight is
//! added to these cells every time. Decoding ([`decode`]) peels cells that hold one flow. Up to
//! about 0.772 flows per cell nearly every state can be peeled whole; beyond, nearly none. A flow that the
//! Bloom filter wrongly took for known is in no cell's XOR, but its weight is in four cells: decoding solves
//! for the sizes that the other flows must have.
//!
//! The filter keeps a flow's eight bits in one cache line. The four cells lie in disjoint sub-tables, so that
//! no flow can cancel itself.

mod decode;
#[cfg(test)]
mod tests;

pub use decode::Decoded;

use crate::hash::{Hasher, below};
use crate::kind::{MAX_CELLS, cells, need};
use crate::serial::{Decoder, Encoder, StateError, Word};
use crate::simd::prefetch;
use crate::sketch::{changes_between, distribution_of, entropy_of, same, second_moment_of, select, spreads};
use crate::state::{Apart, State, state_methods, tables};
use crate::stats::SHARE;
use crate::{
    Bounds, BuildError, Change, Confidence, Distribution, Flow, Kind, MergeError, QueryError, Question, Size,
    Sketch, Update, Want,
};

/// Sub-tables, and cells of a flow.
const TABLES: usize = 4;
/// Words of one line of the Bloom filter.
const LINE: usize = 8;
/// Bits of a flow in its line.
const BITS: u32 = 8;
const AHEAD: usize = 16;
/// Flows per cell up to which decoding succeeds: 0.75 of the limit for four sub-tables, 0.772.
const LOAD: f64 = 0.75 * 0.772;

/// A cell: the flows that share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell<const N: usize> {
    weight: u64,
    flows: u32,
    keys: [u8; N],
}

impl<const N: usize> Cell<N> {
    const EMPTY: Self = Self { weight: 0, flows: 0, keys: [0; N] };

    #[inline(always)]
    fn flip(&mut self, key: &[u8; N]) {
        self.keys.iter_mut().zip(key).for_each(|(a, b)| *a ^= *b);
    }
}

impl<const N: usize> Default for Cell<N> {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl<const N: usize> Word for Cell<N> {
    const BYTES: usize = 12 + N;

    fn write(self, out: &mut Vec<u8>) {
        out.extend(self.weight.to_le_bytes());
        out.extend(self.flows.to_le_bytes());
        out.extend(self.keys);
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let (weight, rest) = bytes.split_first_chunk()?;
        let (flows, keys) = rest.split_first_chunk()?;
        let keys = *keys.first_chunk()?;
        Some(Self { weight: u64::from_le_bytes(*weight), flows: u32::from_le_bytes(*flows), keys })
    }
}

/// Shape of a [`FlowRadar`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRadarParams {
    /// Cells a sub-table: 1 to 2²⁸. The paper has 262144 cells in all.
    pub cells: usize,
    /// Lines of 512 bits of the Bloom filter: 1 to 2²⁶.
    pub lines: usize,
}

/// All flows with their sizes.
#[derive(Clone, Debug)]
pub struct FlowRadar<const N: usize> {
    /// Sub-table after sub-table.
    cells: Vec<Cell<N>>,
    /// Cells a sub-table.
    width: usize,
    filter: Vec<[u64; LINE]>,
    /// Lines of the filter.
    lines: usize,
    hasher: Hasher,
    filter_hasher: Hasher,
    seed: u64,
    weight: u64,
}

impl<const N: usize> FlowRadar<N> {
    /// An empty table.
    ///
    /// # Errors
    /// [`BuildError`] where a parameter is out of range.
    pub fn new(params: FlowRadarParams, seed: u64) -> Result<Self, BuildError> {
        Self::check(params)?;
        need(Kind::FlowRadar, params.cells * TABLES * size_of::<Cell<N>>() + params.lines * LINE * 8)?;
        let (cells, filter) = (vec![Cell::EMPTY; params.cells * TABLES], vec![[0; LINE]; params.lines]);
        Ok(Self { cells, filter, ..Self::without_tables(params, seed) })
    }

    fn without_tables(params: FlowRadarParams, seed: u64) -> Self {
        Self {
            cells: Vec::new(),
            width: params.cells,
            filter: Vec::new(),
            lines: params.lines,
            hasher: Hasher::new(seed, 0x66_72),
            filter_hasher: Hasher::new(seed, 0x66_72_62),
            seed,
            weight: 0,
        }
    }

    fn check(p: FlowRadarParams) -> Result<(), BuildError> {
        let wrong = |what, range| Err(BuildError::Parameter { kind: Kind::FlowRadar, what, range });
        match p {
            _ if p.cells == 0 || p.cells > MAX_CELLS / TABLES => {
                wrong("the cells of a sub-table", "1 to 2^28")
            }
            _ if p.lines == 0 || p.lines > MAX_CELLS / 16 => wrong("the lines of the filter", "1 to 2^26"),
            _ => Ok(()),
        }
    }

    /// The table for a size: three quarters of a budget for cells, one for the filter; for an accuracy, cells
    /// for that many flows at three quarters of the limit of decoding (the list is exact then, whatever error
    /// is accepted), and 56 bits of the filter a flow.
    ///
    /// # Errors
    /// [`BuildError`] where the size is impossible.
    pub fn sized(size: Size, seed: u64) -> Result<Self, BuildError> {
        let cell = size_of::<Cell<N>>();
        let params = match size {
            Size::Memory(budget) => {
                let least = TABLES * cell + 64;
                if budget < least {
                    return Err(BuildError::TooSmall { kind: Kind::FlowRadar, least, budget });
                }
                let lines = (budget / 4 / 64).clamp(1, MAX_CELLS / 16);
                let width = ((budget - lines * 64) / (TABLES * cell)).min(MAX_CELLS / TABLES);
                FlowRadarParams { cells: width, lines }
            }
            Size::Accuracy { flows, .. } => FlowRadarParams {
                // A small table needs more than the limit of infinite ones.
                cells: cells(Kind::FlowRadar, (flows as f64 / LOAD + 64.0) / TABLES as f64)?,
                lines: cells(Kind::FlowRadar, flows as f64 * 56.0 / 512.0)?,
            },
        };
        Self::new(params, seed)
    }

    /// Flows that were new to the filter: each is counted in one cell of each sub-table.
    fn counted(&self) -> u64 {
        self.cells.iter().take(self.width).map(|c| u64::from(c.flows)).sum()
    }

    /// The share of unseen flows that the filter takes for known now; it was less before.
    fn filter_errs(&self) -> f64 {
        errs(&self.filter)
    }

    /// Bounds the number of flows that the filter has hidden: if all others are decoded, what is left over
    /// tells; else three standard deviations above what is expected.
    fn hidden_at_most(&self, decoded: &Decoded<N>) -> f64 {
        if decoded.undecoded == 0 {
            return 2.0 * decoded.hidden as f64;
        }
        let usual = self.hidden_usually();
        (usual + 3.0 * usual.sqrt()).floor()
    }

    fn cardinality_of(&self, decoded: &Decoded<N>) -> Bounds<f64> {
        let counted = self.counted() as f64;
        let most = self.hidden_at_most(decoded);
        let estimate = counted + (decoded.hidden as f64).min(most);
        Bounds { estimate, lower: counted, upper: counted + most }
    }

    /// The expected number of flows that the filter has hidden, if it had always erred as often as it does
    /// now.
    fn hidden_usually(&self) -> f64 {
        let errs = self.filter_errs().min(0.999);
        self.counted() as f64 * errs / (1.0 - errs)
    }

    /// The most that a flow may weigh which isn't among the decoded ones.
    fn at_most(&self, decoded: &Decoded<N>, key: &[u8; N]) -> u64 {
        least_of(&decoded.left, self.places(key))
    }

    /// The number of flows that it can decode with near certainty.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        (self.cells.len() as f64 * LOAD) as u64
    }

    #[inline(always)]
    fn places(&self, key: &[u8; N]) -> [usize; TABLES] {
        let [a, b, c, d] = self.hasher.hash(key).pieces();
        let w = self.width;
        [below(a, w), w + below(b, w), 2 * w + below(c, w), 3 * w + below(d, w)]
    }

    /// A flow's line of the filter, and its bits there: nine bits of hash each, so the same bit may come
    /// twice.
    #[inline(always)]
    fn filter_place(&self, key: &[u8; N]) -> (usize, u64, u64) {
        let [a, b] = self.filter_hasher.hash(key).0;
        (below((a >> 32) as u32, self.filter.len()), b, a)
    }

    /// Sets a flow's bits; whether any was unset.
    #[inline(always)]
    fn is_new(line: &mut [u64; LINE], bits: u64, more: u64) -> bool {
        let mut new = 0;
        // Seven times nine bits, then nine of the other word.
        let picks = (0..BITS - 1).map(|i| bits >> (9 * i)).chain([more]);
        for pick in picks {
            if let Some(word) = line.get_mut((pick >> 6 & 7) as usize) {
                let bit = 1 << (pick & 63);
                new |= !*word & bit;
                *word |= bit;
            }
        }
        new != 0
    }

    #[inline(always)]
    fn put(&mut self, key: &[u8; N], weight: u64, places: [usize; TABLES], filter: (usize, u64, u64)) {
        self.weight = self.weight.saturating_add(weight);
        let new = self.filter.get_mut(filter.0).is_some_and(|line| Self::is_new(line, filter.1, filter.2));
        for place in places {
            if let Some(cell) = self.cells.get_mut(place) {
                cell.weight = cell.weight.saturating_add(weight);
                if new {
                    cell.flows = cell.flows.saturating_add(1);
                    cell.flip(key);
                }
            }
        }
    }
}

/// The share of unseen flows that a filter takes for known.
fn errs(filter: &[[u64; LINE]]) -> f64 {
    let full = |line: &[u64; LINE]| {
        let set: u32 = line.iter().map(|word| word.count_ones()).sum();
        (f64::from(set) / (64 * LINE) as f64).powi(BITS as i32)
    };
    filter.iter().map(full).sum::<f64>() / filter.len().max(1) as f64
}

/// The least that is left in any of these cells.
fn least_of(left: &[u64], places: [usize; TABLES]) -> u64 {
    places.iter().filter_map(|i| left.get(*i)).min().copied().unwrap_or(0)
}

/// The entropy of a weight of which only flows of these sizes, `flows` at most in all, are known.
fn entropy_of_known(sizes: Vec<u64>, weight: u64, flows: f64) -> Bounds<f64> {
    let all = weight as f64;
    let (mut rest, mut sum) = (all, 0.0);
    for size in sizes.iter().map(|s| *s as f64).filter(|s| *s > 0.0) {
        rest -= size;
        sum += size * size.log2();
    }
    if !(all > 0.0 && rest >= 1.0) {
        return Bounds::exact(entropy_of(sizes));
    }
    let flows = (flows - sizes.len() as f64).clamp(1.0, rest);
    let entropy = |parts: f64| (all.log2() - (sum + rest * (rest / parts).log2()) / all).max(0.0);
    Bounds { estimate: entropy(flows), lower: entropy(1.0), upper: entropy(flows) }
}

impl<const N: usize> State<N> for FlowRadar<N> {
    fn read_parameters(seed: u64, d: &mut Decoder<'_>) -> Result<Self, StateError> {
        let params = FlowRadarParams { cells: d.u32()? as usize, lines: d.u32()? as usize };
        Self::check(params).map_err(|_| StateError::Damaged("its shape is impossible"))?;
        Ok(Self::without_tables(params, seed))
    }

    fn write_parameters(&self, out: &mut Encoder) {
        out.u32(self.width as u32);
        out.u32(self.lines as u32);
    }

    tables! { self: cells: Apart, self.width * TABLES; filter: Apart, self.lines; }

    /// Lists the flows of one side and puts them in at the other: a flow that both have seen would otherwise
    /// cancel itself. One side must be decodable; either may be.
    fn unite(&mut self, other: &Self) -> Result<(), MergeError> {
        let mut decoded = other.decoded();
        if !decoded.is_complete() {
            decoded = self.decoded();
            if !decoded.is_complete() {
                return Err(MergeError::Undecodable(self.kind()));
            }
            self.clone_from(other);
        }
        for flow in &decoded.flows {
            self.update(&flow.key, flow.size.estimate);
        }
        Ok(())
    }
}

impl<const N: usize> Sketch<N> for FlowRadar<N> {
    state_methods!();

    fn kind(&self) -> Kind {
        Kind::FlowRadar
    }

    fn shape(&self) -> String {
        format!("{TABLES} sub-tables of {} cells, {} lines of filter", self.width, self.filter.len())
    }

    fn memory_bytes(&self) -> usize {
        size_of_val(self.cells.as_slice()) + size_of_val(self.filter.as_slice())
    }

    fn update(&mut self, key: &[u8; N], weight: u64) {
        self.put(key, weight, self.places(key), self.filter_place(key));
    }

    fn update_all(&mut self, updates: &[Update<N>]) {
        for some in updates.chunks(AHEAD) {
            let mut places = [([0; TABLES], (0, 0, 0)); AHEAD];
            for (place, u) in places.iter_mut().zip(some) {
                *place = (self.places(&u.key), self.filter_place(&u.key));
                prefetch(&self.filter, place.1.0);
                place.0.iter().for_each(|i| prefetch(&self.cells, *i));
            }
            for (place, u) in places.iter().zip(some) {
                self.put(&u.key, u64::from(u.weight), place.0, place.1);
            }
        }
    }

    fn update_cost(&self) -> f64 {
        7.0
    }

    /// Exact where all is decoded. Of a flow that wasn't, no more than the least that is left in its cells.
    fn flow_size(&self, key: &[u8; N]) -> Result<Bounds<u64>, QueryError> {
        let decoded = self.decoded();
        if let Ok(i) = decoded.flows.binary_search_by(|f| f.key.cmp(key)) {
            return Ok(decoded.flows.get(i).map_or(Bounds::exact(0), |f| f.size));
        }
        Ok(Bounds { estimate: 0, lower: 0, upper: self.at_most(&decoded, key) })
    }

    fn heavy_hitters(&self, want: Want) -> Result<Vec<Flow<N>>, QueryError> {
        Ok(select(self.decoded().flows, want))
    }

    /// 0 where all is decoded. Else a flow has a cell in each sub-table, and in the one where least is left
    /// at most that.
    fn unlisted(&self) -> Option<u64> {
        decode::most_in_a_table(&self.decoded().left, self.width)
    }

    /// Of flows that at least one of the epochs lists. What the other one may have had of a flow that it
    /// doesn't list is within the bounds, and the estimate is the least change that they allow.
    fn heavy_changes(&self, earlier: &dyn Sketch<N>, want: Want) -> Result<Vec<Change<N>>, QueryError> {
        let earlier = same(self, earlier)?;
        let (before, after) = (earlier.decoded(), self.decoded());
        Ok(changes_between(
            (&before.flows, &|key| earlier.at_most(&before, key)),
            (&after.flows, &|key| self.at_most(&after, key)),
            want,
        ))
    }

    /// Flows that weren't decoded may all be of one source: that is the upper end.
    fn superspreaders(&self, source_len: usize, want: Want) -> Result<Vec<Flow<N>>, QueryError> {
        let decoded = self.decoded();
        let missing = decoded.undecoded.saturating_add(self.hidden_at_most(&decoded).ceil() as u64);
        let mut keys = Vec::with_capacity(decoded.flows.len());
        for flow in &decoded.flows {
            keys.push(flow.key);
        }
        Ok(spreads(keys, missing, source_len, want))
    }

    /// Of the flows that were decoded.
    fn size_distribution(&self) -> Result<Distribution, QueryError> {
        Ok(distribution_of(self.decoded().sizes(|_| true)))
    }

    /// Every new flow adds one to the flows of one cell of each sub-table, decoded or not.
    fn cardinality(&self) -> Result<Bounds<f64>, QueryError> {
        Ok(self.cardinality_of(&self.decoded()))
    }

    /// Exact where all is decoded. Else what wasn't is somewhere between one flow and as many as there are.
    fn entropy(&self) -> Result<Bounds<f64>, QueryError> {
        let decoded = self.decoded();
        let known = decoded.sizes(|size| size.lower == size.upper);
        if decoded.is_complete() {
            return Ok(Bounds::exact(entropy_of(known)));
        }
        Ok(entropy_of_known(known, self.weight, self.cardinality_of(&decoded).upper))
    }

    fn second_moment(&self) -> Result<Bounds<f64>, QueryError> {
        let decoded = self.decoded();
        if !decoded.is_complete() {
            return Err(QueryError::Saturated { sketch: self.kind(), at_least: self.capacity() as f64 });
        }
        Ok(Bounds::exact(second_moment_of(&decoded.sizes(|_| true))))
    }

    fn confidence(&self, _: Question) -> Confidence {
        if self.is_saturated() { Confidence::Share(SHARE) } else { Confidence::Certain }
    }

    fn is_saturated(&self) -> bool {
        self.weight == u64::MAX || !self.decoded().is_complete()
    }
}
