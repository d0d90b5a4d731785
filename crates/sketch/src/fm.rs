//! FM, probabilistic counting with stochastic averaging (Flajolet and Martin, JCSS 31, 1985): how many
//! distinct keys.
//!
//! A key chooses one of m bitmaps and in it bit i with probability 2⁻⁽ⁱ⁺¹⁾. Flajolet and Martin take the
//! lowest unset bit of each bitmap; that is biased while a bitmap sees few keys, and the higher bits tell
//! something too. Here the number of keys is the one under which the bits that are set are the most likely
//! (maximum likelihood, as Ertl, arXiv 1702.01284, for HyperLogLog, and Lang, arXiv 1708.06839, for these
//! bitmaps): bit i of a bitmap stays unset with probability e^(−λpᵢ), where λ = n/m and pᵢ is the bit's
//! probability. One formula holds from the first key to the last bit, at a standard error of at most 0.65/√m,
//! which follows from the Fisher information at every fill.

use crate::array::{Array, Rule};
use crate::stats::{SIGMAS, crossing, two_sided};
use crate::{Bounds, BuildError, Kind, QueryError};

/// Standard error of one bitmap that sees many keys, relative: 1/√(π²/(6 ln 2)).
const ERROR: f64 = 0.65;
/// Bits of a bitmap.
const BITS: usize = 32;

/// Distinct keys, from bitmaps of 32 bits (1 to 2³⁰ of them; the paper has 4). An accuracy needs
/// (z·0.65/error)² of them, z the normal quantile of the confidence.
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
        let m = maps.len() as f64;
        let mut set = [0u64; BITS];
        for map in maps {
            set.iter_mut().enumerate().for_each(|(i, n)| *n += u64::from(map >> i & 1));
        }
        // Every key sets one bit at most.
        let least = set.iter().sum::<u64>() as f64;
        if least == 0.0 {
            return Ok(Bounds::exact(0.0));
        }
        if Self::is_saturated(maps) {
            // Fewer keys would have set the two rarest bits of every bitmap with a probability of less than
            // 2.5 %.
            let rate = -(-(0.025f64.powf(0.5 / m))).ln_1p() / probability(BITS - 1);
            return Err(QueryError::Saturated { sketch: Kind::Fm, at_least: m * rate });
        }
        let estimate = (m * most_likely(&set, m)).max(least);
        // The keys under which an estimate like this one is just within the errors that they cause; half a
        // key more either side, since estimates of few keys are as coarse as keys are.
        // The fewer the bitmaps, the longer the tails.
        let sigmas = SIGMAS * (1.0 + 0.5 / m);
        let low = |n: f64| n * (sigmas * error(n, m)).exp() + 0.5 - estimate;
        let high = |n: f64| n * (-sigmas * error(n, m)).exp() - 0.5 - estimate;
        let lower = crossing(low, 0.0, estimate).max(least).min(estimate);
        let upper = crossing(high, estimate, (estimate + 1.0) * (2.0 * sigmas * ERROR).exp());
        Ok(Bounds { estimate, lower, upper })
    }

    fn is_saturated(maps: &[u32]) -> bool {
        maps.iter().all(|b| *b == u32::MAX)
    }
}

/// The probability of bit i.
fn probability(i: usize) -> f64 {
    1.0 / (2u64 << i.min(BITS - 2)) as f64
}

/// Σ xᵏ/(eˣ − 1) over the bits of a bitmap, x = λpᵢ: for k = 2 the Fisher information of ln λ.
fn information(rate: f64, power: i32) -> f64 {
    (0..BITS).map(|i| rate * probability(i)).map(|x| x.powi(power) / x.exp_m1()).sum()
}

/// The keys a bitmap under which so many bits of each kind are the most likely, less the bias of the first
/// order that such an estimate has (Cox and Snell, J. R. Stat. Soc. B 30, 1968).
fn most_likely(set: &[u64; BITS], m: f64) -> f64 {
    // Its slope falls with the rate, from plus infinity to less than nothing.
    let slope = |rate: f64| {
        let of = |(i, n): (usize, &u64)| {
            let (p, n) = (probability(i), *n as f64);
            // Most bits are rare ones that no key has set.
            if n == 0.0 {
                return -m * p;
            }
            n * p / (rate * p).exp_m1() - (m - n) * p
        };
        set.iter().enumerate().map(of).sum::<f64>()
    };
    let rate = crossing(|log| -slope(log.exp2()), -40.0, 40.0).exp2();
    rate / (1.0 + information(rate, 3) / (2.0 * m * information(rate, 2).powi(2)))
}

/// The relative standard error of the estimate of n keys. The information is that of a Poisson number of
/// keys; what that number itself varies by is none of the estimate's error.
fn error(n: f64, m: f64) -> f64 {
    if n <= 0.0 {
        return 0.0;
    }
    (1.0 / (m * information(n / m, 2)) - 1.0 / n).max(0.0).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Limits of the sums over bits where many of them matter: integrals that are known.
    #[test]
    fn the_error_is_that_of_the_literature() {
        let limit = (6.0 * 2f64.ln()).sqrt() / std::f64::consts::PI;
        assert!((error(1e7, 100.0) * 10.0 - limit).abs() < 1e-3, "{} and {limit}", error(1e7, 100.0));
        assert!(limit < ERROR && (0..400).all(|i| error(1.05f64.powi(i), 1.0) <= ERROR));
        // Few keys are told by their collisions: n²/(6m) of them.
        assert!((error(100.0, 1e5) * (6e5f64).sqrt() - 1.0).abs() < 1e-2);
    }

    #[test]
    fn full_bitmaps_are_an_error() {
        assert!(matches!(Bitmaps::cardinality(&[u32::MAX; 4]), Err(QueryError::Saturated { .. })));
        let nearly = Bitmaps::cardinality(&[u32::MAX, u32::MAX >> 1]).unwrap();
        assert!(nearly.estimate > 1e9 && nearly.upper.is_finite(), "{nearly:?}");
    }
}
