//! MRAC (Kumar, Sung, Xu and Wang, SIGMETRICS 2004): how many flows have which size, from one array of
//! counters.
//!
//! A flow adds to one counter; flows that share one can't be told apart, but the distribution of sizes can be
//! estimated from the distribution of the counters' values. Flows that fall into a counter are Poisson, of
//! each size apart, so a counter's value is compound Poisson. Expectation-maximisation alternates between the
//! posterior number of flows of each size, given the values, and the rates that this implies. Kumar et al.
//! enumerate the ways in which a value can be a sum of few flows; here the expectation is exact for any
//! number of flows: by Mecke's formula, E[flows of size i | value y] = λᵢ · P(y − i) / P(y), where P comes
//! from Panjer's recursion.

use std::collections::BTreeMap;

use crate::array::{Array, Rule};
use crate::{Bounds, BuildError, Distribution, Kind, QueryError};

/// Values up to here are treated exactly; beyond, a value is one large flow and what small ones add.
const DENSE: usize = 1500;
/// Rounds of expectation and maximisation at most.
const ROUNDS: usize = 60;
/// The change of flows of any size, relative to all, at which the rounds end.
const SETTLED: f64 = 1e-6;
/// Small flows beside a large one: up to this total size they are told apart.
const BESIDE: usize = 64;

/// The distribution of flow sizes, from 1 to 2³⁰ counters (the paper has 4 × 65536). An accuracy needs one
/// counter a flow, and more where the error is below a tenth.
pub type Mrac<const N: usize> = Array<N, Counters>;

/// A cell is a counter.
#[derive(Clone, Copy, Debug)]
pub struct Counters;

impl Rule for Counters {
    type Cell = u32;
    const KIND: Kind = Kind::Mrac;
    const PURPOSE: u64 = 0x6d_72;
    const CELLS: (&'static str, &'static str) = ("the number of counters", "1 to 2^30");

    #[inline(always)]
    fn mark([hash, _]: [u64; 2]) -> (u32, u32) {
        ((hash >> 32) as u32, 0)
    }

    #[inline(always)]
    fn add(counter: &mut u32, _: u32, weight: u32) {
        *counter = counter.saturating_add(weight);
    }

    fn unite(counter: &mut u32, other: u32) {
        *counter = counter.saturating_add(other);
    }

    fn shape(n: usize) -> String {
        format!("{n} counters")
    }

    fn cells_for(error: f64, _: f64, flows: f64) -> Result<f64, BuildError> {
        Ok((flows * (0.1 / error).max(1.0)).max(64.0))
    }

    /// From the counters that are empty, as linear counting does.
    fn cardinality(counters: &[u32]) -> Result<Bounds<f64>, QueryError> {
        let empty = counters.iter().filter(|c| **c == 0).count();
        crate::linear_counting::cardinality(Kind::Mrac, counters.len() as u64, empty as u64)
    }

    /// A counter that is full, or none that is empty: there were so many flows that they can't be told apart.
    fn is_saturated(counters: &[u32]) -> bool {
        counters.contains(&u32::MAX) || !counters.contains(&0)
    }

    fn size_distribution(counters: &[u32]) -> Result<Distribution, QueryError> {
        let values = values(counters);
        if values.is_empty() {
            return Ok(Vec::new());
        }
        Ok(expectation_maximisation(&values, counters.len()).into_iter().collect())
    }
}

/// Counts the counters of each value, zero left out.
fn values(counters: &[u32]) -> BTreeMap<u32, u64> {
    let mut sorted: Vec<u32> = counters.iter().copied().filter(|c| *c > 0).collect();
    sorted.sort_unstable();
    sorted.chunk_by(|a, b| a == b).filter_map(|c| Some((*c.first()?, c.len() as u64))).collect()
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
