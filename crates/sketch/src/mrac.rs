//! MRAC (Kumar, Sung, Xu and Wang, SIGMETRICS 2004): how many flows have which size, from one array of counters.
//!
//! A flow adds to one counter; flows that share one can't be told apart, but the distribution of sizes can be estimated from
//! the distribution of the counters' values. Flows that fall into a counter are Poisson, of each size apart, so a
//! counter's value is compound Poisson. Expectation-maximisation alternates between the posterior number of flows of each
//! size, given the values, and the rates that this implies. Kumar et al. enumerate the ways in which a value can
//! be a sum of few flows; here the expectation is exact for any number of flows: by Mecke's formula,
//! E[flows of size i | value y] = λᵢ · P(y − i) / P(y), where P comes from Panjer's recursion.

use std::any::Any;
use std::collections::BTreeMap;

use crate::hash::{Hasher, below};
use crate::kind::{MAX_CELLS, cells};
use crate::serial::{Decoder, Encoder, StateError};
use crate::simd::prefetch;
use crate::sketch::same;
use crate::{Bounds, BuildError, Distribution, Kind, MergeError, QueryError, Size, Sketch, Update};

/// Values up to here are treated exactly; beyond, a value is one large flow and what small ones add.
const DENSE: usize = 1500;
/// Rounds of expectation and maximisation at most.
const ROUNDS: usize = 60;
/// The change of flows of any size, relative to all, at which the rounds end.
const SETTLED: f64 = 1e-6;
/// Small flows beside a large one: up to this total size they are told apart.
const BESIDE: usize = 64;
const AHEAD: usize = 32;

/// The distribution of flow sizes.
#[derive(Clone, Debug)]
pub struct Mrac<const N: usize> {
    cells: Vec<u32>,
    hasher: Hasher,
    seed: u64,
    weight: u64,
}

impl<const N: usize> Mrac<N> {
    /// An empty array of `counters` (1 to 2³⁰; the paper has 4 × 65536).
    ///
    /// # Errors
    /// [`BuildError`] where the number is out of range.
    pub fn new(counters: usize, seed: u64) -> Result<Self, BuildError> {
        if counters == 0 || counters > MAX_CELLS {
            let (what, range) = ("the number of counters", "1 to 2^30");
            return Err(BuildError::Parameter { kind: Kind::Mrac, what, range });
        }
        Ok(Self { cells: vec![0; counters], hasher: Hasher::new(seed, 0x6d_72), seed, weight: 0 })
    }

    /// The array for a size: for an accuracy, one counter a flow, and more where the error is below a tenth.
    ///
    /// # Errors
    /// [`BuildError`] where the size is impossible.
    pub fn sized(size: Size, seed: u64) -> Result<Self, BuildError> {
        let counters = match size {
            Size::Memory(budget) if budget < 4 => {
                return Err(BuildError::TooSmall { kind: Kind::Mrac, least: 4, budget });
            }
            Size::Memory(budget) => (budget / 4).min(MAX_CELLS),
            Size::Accuracy { error, flows, .. } => {
                cells(Kind::Mrac, flows as f64 * (0.1 / error).max(1.0))?.max(64)
            }
        };
        Self::new(counters, seed)
    }

    #[inline(always)]
    fn place(&self, key: &[u8; N]) -> usize {
        below((self.hasher.hash64(key) >> 32) as u32, self.cells.len())
    }

    /// How many counters have which value, zero left out.
    fn values(&self) -> BTreeMap<u32, u64> {
        let mut sorted: Vec<u32> = self.cells.iter().copied().filter(|c| *c > 0).collect();
        sorted.sort_unstable();
        sorted.chunk_by(|a, b| a == b).filter_map(|c| Some((*c.first()?, c.len() as u64))).collect()
    }

    pub(crate) fn decode(seed: u64, weight: u64, d: &mut Decoder<'_>) -> Result<Self, StateError> {
        let n = d.count(4)?;
        if n == 0 || n > MAX_CELLS {
            return Err(StateError::Damaged("its shape is impossible"));
        }
        Ok(Self { cells: d.all_u32(n)?, hasher: Hasher::new(seed, 0x6d_72), seed, weight })
    }
}

/// Expected flows a counter, by size; index 0 is not used.
struct Rates {
    of_size: Vec<f64>,
}

impl Rates {
    /// Panjer's recursion: the probability of each total, divided by that of no flow at all.
    fn totals(&self, up_to: usize) -> Vec<f64> {
        let sizes: Vec<(usize, f64)> =
            self.of_size.iter().copied().enumerate().skip(1).filter(|(_, r)| *r > 0.0).collect();
        let mut p = vec![0.0; up_to + 1];
        if let Some(first) = p.first_mut() {
            *first = 1.0;
        }
        for total in 1..=up_to {
            let parts = sizes.iter().take_while(|(size, _)| *size <= total);
            let sum: f64 = parts
                .map(|(size, rate)| *size as f64 * rate * p.get(total - size).copied().unwrap_or(0.0))
                .sum();
            if let Some(at) = p.get_mut(total) {
                *at = sum / total as f64;
            }
        }
        p
    }
}

/// Flows by size, from how many of `counters` counters have which value.
fn expectation_maximisation(values: &BTreeMap<u32, u64>, counters: usize) -> BTreeMap<u64, f64> {
    let m = counters as f64;
    let highest = values.range(..=DENSE as u32).next_back().map_or(0, |(v, _)| *v as usize);
    let dense: Vec<(usize, f64)> =
        values.range(..=DENSE as u32).map(|(v, n)| (*v as usize, *n as f64)).collect();
    let sparse: Vec<(u64, f64)> =
        values.range(DENSE as u32 + 1..).map(|(v, n)| (u64::from(*v), *n as f64)).collect();
    // To begin with, every value is one flow, and there are as many as empty counters tell.
    let taken: f64 = values.values().map(|n| *n as f64).sum();
    let all = if taken < m { m * (m / (m - taken)).ln() } else { taken * (m.ln() + 1.0) };
    let mut flows = vec![0.0; highest + 1];
    for (value, n) in &dense {
        if let Some(f) = flows.get_mut(*value) {
            *f = n * all / taken;
        }
    }
    for _ in 0..ROUNDS {
        let rates = Rates { of_size: flows.iter().map(|f| f / m).collect() };
        let p = rates.totals(highest);
        let mut next = vec![0.0; highest + 1];
        for (value, n) in &dense {
            let whole = p.get(*value).copied().unwrap_or(0.0);
            if whole <= 0.0 {
                continue;
            }
            let sizes = rates.of_size.iter().take(value + 1).enumerate().skip(1).filter(|(_, r)| **r > 0.0);
            for (size, rate) in sizes {
                let rest = p.get(value - size).copied().unwrap_or(0.0);
                if let Some(f) = next.get_mut(size) {
                    *f += n * rate * rest / whole;
                }
            }
        }
        // Beside a large flow, small ones fall as anywhere.
        let beside: f64 = sparse.iter().map(|s| s.1).sum();
        for (f, rate) in next.iter_mut().zip(&rates.of_size).take(BESIDE + 1) {
            *f += beside * rate;
        }
        let moved = flows.iter().zip(&next).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        flows = next;
        if moved <= SETTLED * all {
            break;
        }
    }
    let mut result: BTreeMap<u64, f64> = BTreeMap::new();
    for (size, f) in flows.iter().enumerate().skip(1).filter(|(_, f)| **f > 1e-3) {
        result.insert(size as u64, *f);
    }
    spread_large(&sparse, &Rates { of_size: flows.iter().map(|f| f / m).collect() }, &mut result);
    result
}

/// A value beyond the dense range is a large flow and small ones of a total of 0 to [`BESIDE`] beside it.
fn spread_large(sparse: &[(u64, f64)], rates: &Rates, result: &mut BTreeMap<u64, f64>) {
    let small = Rates { of_size: rates.of_size.iter().take(BESIDE + 1).copied().collect() };
    let p = small.totals(BESIDE);
    let all: f64 = p.iter().sum();
    for (value, n) in sparse {
        for (total, share) in p.iter().enumerate().map(|(t, p)| (t, p / all)).filter(|(_, s)| *s > 1e-4) {
            *result.entry(value - total as u64).or_default() += n * share;
        }
    }
}

impl<const N: usize> Sketch<N> for Mrac<N> {
    fn kind(&self) -> Kind {
        Kind::Mrac
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn shape(&self) -> String {
        format!("{} counters", self.cells.len())
    }

    fn weight(&self) -> u64 {
        self.weight
    }

    fn memory_bytes(&self) -> usize {
        size_of_val(self.cells.as_slice())
    }

    fn update(&mut self, key: &[u8; N], weight: u64) {
        self.weight = self.weight.saturating_add(weight);
        let place = self.place(key);
        if let Some(cell) = self.cells.get_mut(place) {
            *cell = cell.saturating_add(u32::try_from(weight).unwrap_or(u32::MAX));
        }
    }

    fn update_all(&mut self, updates: &[Update<N>]) {
        for some in updates.chunks(AHEAD) {
            let mut places = [0; AHEAD];
            for (place, u) in places.iter_mut().zip(some) {
                *place = self.place(&u.key);
                prefetch(&self.cells, *place);
            }
            for (place, u) in places.iter().zip(some) {
                self.weight = self.weight.saturating_add(u64::from(u.weight));
                if let Some(cell) = self.cells.get_mut(*place) {
                    *cell = cell.saturating_add(u.weight);
                }
            }
        }
    }

    fn update_cost(&self) -> f64 {
        0.6
    }

    fn clear(&mut self) {
        self.cells.fill(0);
        self.weight = 0;
    }

    fn merge(&mut self, other: &dyn Sketch<N>) -> Result<(), MergeError> {
        let other = same(self, other)?;
        self.cells.iter_mut().zip(&other.cells).for_each(|(a, b)| *a = a.saturating_add(*b));
        self.weight = self.weight.saturating_add(other.weight);
        Ok(())
    }

    fn boxed_clone(&self) -> Box<dyn Sketch<N>> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn encode(&self, out: &mut Encoder) {
        out.u32(self.cells.len() as u32);
        out.all_u32(&self.cells);
    }

    fn size_distribution(&self) -> Result<Distribution, QueryError> {
        let values = self.values();
        if values.is_empty() {
            return Ok(Vec::new());
        }
        Ok(expectation_maximisation(&values, self.cells.len()).into_iter().collect())
    }

    /// From the counters that are empty, as linear counting does.
    fn cardinality(&self) -> Result<Bounds<f64>, QueryError> {
        let m = self.cells.len() as f64;
        let empty = self.cells.iter().filter(|c| **c == 0).count() as f64;
        if empty == 0.0 {
            return Err(QueryError::Saturated { sketch: self.kind(), at_least: m * m.ln() });
        }
        let estimate = m * (m / empty).ln();
        let error = 1.96 * crate::linear_counting::standard_error(estimate, m);
        Ok(Bounds {
            estimate,
            lower: (estimate - error).max(m - empty).min(estimate),
            upper: estimate + error,
        })
    }

    fn is_saturated(&self) -> bool {
        self.cells.contains(&u32::MAX)
    }
}
