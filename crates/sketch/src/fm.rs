//! FM, probabilistic counting with stochastic averaging (Flajolet and Martin, JCSS 31, 1985): how many distinct keys.
//!
//! A key chooses one of m bitmaps and in it bit i with probability 2⁻⁽ⁱ⁺¹⁾. R, the lowest *unset* bit, averaged over
//! bitmaps, tells n ≈ (m/φ)·2^R with φ = 0.77351, at a standard error of about 0.78/√m. While a bitmap sees few keys that
//! is biased; then the number of bitmaps without any key tells more, by the formula of linear counting.

use crate::array::{Array, Rule};
use crate::stats::{SIGMAS, two_sided};
use crate::{Bounds, BuildError, Kind, QueryError};

/// Flajolet and Martin's correction.
const PHI: f64 = 0.773_51;
/// Standard error of one bitmap, relative.
const ERROR: f64 = 0.78;
/// Scheuermann and Mauve's exponent (ICNS 2007) of the correction for few keys a bitmap.
const KAPPA: f64 = 1.75;
/// Up to so many keys a bitmap, empty bitmaps tell more than R.
const FEW: f64 = 1.5;

/// Distinct keys, from bitmaps of 32 bits (1 to 2³⁰ of them; the paper has 4). An accuracy needs (z·0.78/error)² of
/// them, z the normal quantile of the confidence.
pub type Fm<const N: usize> = Array<N, Bitmaps>;

/// A cell is a bitmap.
#[derive(Clone, Copy, Debug)]
pub struct Bitmaps;

impl Rule for Bitmaps {
    type Cell = u32;
    const KIND: Kind = Kind::Fm;
    const PURPOSE: u64 = 0x66_6d;
    const CELLS: (&'static str, &'static str) = ("the number of bitmaps", "1 to 2^30");

    #[inline(always)]
    fn mark([a, b]: [u64; 2]) -> (u32, u32) {
        (a as u32, 1 << b.trailing_zeros().min(31))
    }

    #[inline(always)]
    fn add(map: &mut u32, mark: u32, _: u32) {
        *map |= mark;
    }

    fn unite(map: &mut u32, other: u32) {
        *map |= other;
    }

    fn shape(n: usize) -> String {
        format!("{n} bitmaps of 32 bits")
    }

    fn cells_for(error: f64, confidence: f64, _: f64) -> Result<f64, BuildError> {
        Ok((two_sided(confidence) * ERROR / error).powi(2))
    }

    fn cardinality(maps: &[u32]) -> Result<Bounds<f64>, QueryError> {
        let estimate = estimate(maps);
        let factor = SIGMAS * ERROR / (maps.len() as f64).sqrt();
        let lower = (estimate / (1.0 + factor)).min(estimate);
        Ok(Bounds { estimate, lower, upper: estimate * (1.0 + factor) })
    }

    fn is_saturated(maps: &[u32]) -> bool {
        maps.iter().all(|b| *b == u32::MAX)
    }
}

fn estimate(maps: &[u32]) -> f64 {
    let m = maps.len() as f64;
    let empty = maps.iter().filter(|b| **b == 0).count() as f64;
    if empty == m {
        return 0.0;
    }
    if empty > 0.0 {
        let linear = m * (m / empty).ln();
        if linear <= FEW * m && m >= 16.0 {
            return linear;
        }
    }
    let mean = maps.iter().map(|b| f64::from(b.trailing_ones())).sum::<f64>() / m;
    m / PHI * (mean.exp2() - (-KAPPA * mean).exp2())
}
