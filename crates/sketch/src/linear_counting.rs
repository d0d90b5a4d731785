//! Linear counting (Whang, Vander-Zanden and Taylor, ACM TODS 15, 1990): how many distinct keys, from one
//! bitmap.
//!
//! A key sets one of m bits. With z bits left unset, n ≈ −m ln(z/m); the standard error is √(m(eᵗ − t − 1))
//! with t = n/m. A full bitmap tells only that there were about m ln m or more: that is an error, not a
//! number.

use crate::array::{Array, Rule};
use crate::kind::{MAX_CELLS, cells};
use crate::stats::{SIGMAS, crossing, two_sided};
use crate::{Bounds, BuildError, Kind, QueryError};

/// With this number of empty cells on average, none is empty with a probability of 2.5 %.
const CERTAIN: f64 = 3.69;

/// Distinct keys, from a bitmap of n × 64 bits (1 to 2²⁵ words, so that bits can be numbered with room to
/// spare). An accuracy needs the smallest whose standard error at that many flows, times the normal quantile
/// of the confidence, is no more than the error, and that is full with a probability under 10⁻⁴.
pub type LinearCounting<const N: usize> = Array<N, Words>;

/// A cell is a word of the bitmap.
#[derive(Clone, Copy, Debug)]
pub struct Words;

impl Rule for Words {
    type Cell = u64;
    const KIND: Kind = Kind::LinearCounting;
    const PURPOSE: u64 = 0x6c_63;
    const CELLS: (&'static str, &'static str) = ("the number of words", "1 to 2^25");
    const MAX: usize = MAX_CELLS / 32;

    #[inline(always)]
    fn mark([hash, _]: [u64; 2]) -> (u32, u64) {
        ((hash >> 32) as u32, 1 << (hash & 63))
    }

    #[inline(always)]
    fn add(word: &mut u64, mark: u64, _: u32) {
        *word |= mark;
    }

    fn unite(word: &mut u64, other: u64) {
        *word |= other;
    }

    fn shape(n: usize) -> String {
        format!("{} bits", n * 64)
    }

    fn cells_for(error: f64, confidence: f64, flows: f64) -> Result<f64, BuildError> {
        let z = two_sided(confidence);
        let enough = |m: f64| z * standard_error(flows, m) <= error * flows && m * (-flows / m).exp() > 10.0;
        let mut m = 64.0;
        while !enough(m) {
            m = cells(Kind::LinearCounting, m * 1.25)? as f64;
        }
        Ok(m / 64.0)
    }

    fn cardinality(words: &[u64]) -> Result<Bounds<f64>, QueryError> {
        cardinality(Kind::LinearCounting, words.len() as u64 * 64, unset(words))
    }

    fn is_saturated(words: &[u64]) -> bool {
        unset(words) == 0
    }
}

fn unset(words: &[u64]) -> u64 {
    words.iter().map(|w| u64::from(w.count_zeros())).sum()
}

/// Of a bitmap of m bits that saw n keys.
fn standard_error(n: f64, m: f64) -> f64 {
    let t = n / m;
    (m * (t.exp() - t - 1.0)).sqrt()
}

/// Estimates the number of keys, where so many of `all` cells were never touched.
pub(crate) fn cardinality(sketch: Kind, all: u64, untouched: u64) -> Result<Bounds<f64>, QueryError> {
    let (m, z) = (all as f64, untouched as f64);
    if untouched == 0 {
        // Fewer keys would have left a cell untouched with a probability of more than 97.5 %.
        return Err(QueryError::Saturated { sketch, at_least: (m * (m / CERTAIN).ln()).max(m) });
    }
    if untouched == all {
        return Ok(Bounds::exact(0.0));
    }
    let estimate = m * (m / z).ln();
    // With n keys, so many cells are left on average, and vary by so much; half a cell more either side, for
    // cells are whole.
    let left = |n: f64| m * (-n / m).exp();
    let error = |n: f64| SIGMAS * (left(n) * (1.0 - (1.0 + n / m) * (-n / m).exp())).max(0.0).sqrt() + 0.5;
    // There were at least as many keys as there are cells that were touched.
    let lower = crossing(|n| z - left(n) + error(n), 0.0, estimate).max(m - z).min(estimate);
    let upper = crossing(|n| z - left(n) - error(n), estimate, m * ((m / z).ln() + CERTAIN + 2.0));
    Ok(Bounds { estimate, lower, upper })
}
