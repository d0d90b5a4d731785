//! Random numbers that are the same on every machine.
//!
//! The stream is ChaCha8, and what turns its integers into times, sizes and ranks uses only IEEE additions,
//! multiplications, divisions and square roots, and the logarithm and powers of the `libm` crate, which are
//! written in those. The platform's own mathematical library, which differs in the last bit, is never called.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub(super) struct Rng(ChaCha8Rng);

impl Rng {
    /// The stream number `stream` of `seed`; streams are independent of each other.
    pub(super) fn new(seed: u64, stream: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        Self(rng)
    }

    /// 64 random bits.
    pub(super) fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Uniform in `0..n`; 0 where `n` is 0. The bias is below n / 2^64.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }

    /// Uniform in the open interval (0, 1), a multiple of 2^-53.
    pub(super) fn unit(&mut self) -> f64 {
        ((self.bits() >> 11) as f64 + 0.5) * (1.0 / 9_007_199_254_740_992.0)
    }

    /// True with probability `p`.
    pub(super) fn chance(&mut self, p: f64) -> bool {
        self.unit() < p
    }

    /// Exponential with the given mean.
    pub(super) fn exponential(&mut self, mean: f64) -> f64 {
        -libm::log(self.unit()) * mean
    }

    /// Geometric on 1, 2, 3, … with the given mean (≥ 1), at most `MAX_GEOMETRIC`.
    pub(super) fn geometric(&mut self, mean: f64) -> u64 {
        let go_on = 1.0 - 1.0 / mean;
        if go_on <= 0.0 {
            return 1;
        }
        let more = libm::floor(libm::log(self.unit()) / libm::log(go_on));
        1 + (more as u64).min(MAX_GEOMETRIC - 1)
    }
}

/// The longest run that a geometric draw gives.
const MAX_GEOMETRIC: u64 = 1 << 32;

/// 64 bits that depend on nothing but `seed` and `n` (the finaliser of SplitMix64): attributes of flow `n`
/// that must not depend on when it is first seen.
pub(super) fn scatter(seed: u64, n: u64) -> u64 {
    let mut z = seed ^ n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// True for the share `p` of all values of `bits`.
pub(super) fn within(bits: u64, p: f64) -> bool {
    ((bits >> 11) as f64) < p * 9_007_199_254_740_992.0
}

/// A Pareto distribution bounded on both sides: `P(X > x)` falls as `x^-shape` from `low` to `high`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pareto {
    low: f64,
    high: f64,
    shape: f64,
}

impl Pareto {
    /// Bounds `0 < low <= high`, `shape > 0`.
    pub(super) const fn new(low: f64, high: f64, shape: f64) -> Self {
        Self { low, high, shape }
    }

    /// The whole number at or below the value that the share `u` of the distribution lies below.
    pub(super) fn quantile(&self, u: f64) -> u64 {
        self.power_quantile(u, self.shape)
    }

    /// The same for the size-biased distribution, the one of the flow that a packet drawn at random belongs
    /// to.
    pub(super) fn size_biased_quantile(&self, u: f64) -> u64 {
        self.power_quantile(u, self.shape - 1.0)
    }

    fn power_quantile(&self, u: f64, a: f64) -> u64 {
        if libm::fabs(a) < 1e-9 {
            return libm::floor(self.low * libm::pow(self.high / self.low, u)) as u64;
        }
        let (l, h) = (libm::pow(self.low, -a), libm::pow(self.high, -a));
        libm::floor(libm::pow(l + u * (h - l), -1.0 / a)) as u64
    }
}

/// Draws an index in proportion to a weight, in constant time (Walker's alias method, built as Vose does).
#[derive(Clone, Debug)]
pub(super) struct Alias(Vec<(f64, u32)>);

impl Alias {
    /// Over `weights` (not empty, none negative, not all 0).
    pub(super) fn new(weights: &[f64]) -> Self {
        let n = weights.len() as f64;
        let total: f64 = weights.iter().sum();
        let mut table: Vec<(f64, u32)> =
            weights.iter().zip(0_u32..).map(|(w, i)| (w * n / total, i)).collect();
        let (mut small, mut large): (Vec<u32>, Vec<u32>) = (Vec::new(), Vec::new());
        for &(p, i) in &table {
            if p < 1.0 { small.push(i) } else { large.push(i) }
        }
        while let (Some(&s), Some(&l)) = (small.last(), large.last()) {
            small.pop();
            let mut lack = 0.0;
            if let Some(cell) = table.get_mut(s as usize) {
                lack = 1.0 - cell.0;
                cell.1 = l;
            }
            if let Some(cell) = table.get_mut(l as usize) {
                cell.0 -= lack;
                if cell.0 < 1.0 {
                    large.pop();
                    small.push(l);
                }
            }
        }
        for i in small.into_iter().chain(large) {
            if let Some(cell) = table.get_mut(i as usize) {
                cell.0 = 1.0;
            }
        }
        Self(table)
    }

    /// One index.
    pub(super) fn draw(&self, rng: &mut Rng) -> u32 {
        let i = rng.below(self.0.len() as u64);
        match self.0.get(i as usize) {
            Some(&(p, other)) if rng.unit() >= p => other,
            _ => i as u32,
        }
    }
}

/// Draws ranks again and again, never the same twice in a row, so that rank r comes up in proportion to
/// `r^-exponent` in the long run.
///
/// Drawing with weights `w` and drawing again on a repeat gives rank r the share `w(1-w)/Σ w(1-w)`. So `w` is
/// solved for: `w(1-w) = c·z` with `z` the Zipf share and `c` such that the `w` sum to 1. No sequence without
/// repeats gives a rank more than half: where the first one would have that much, it comes up every other
/// time, and the others share the rest in proportion.
#[derive(Clone, Debug)]
pub(super) struct Ranks {
    /// Of all ranks, or of all but the first.
    table: Alias,
    /// The weight of the first rank where that is more than a half, so that drawing again could take long.
    first: Option<f64>,
}

impl Ranks {
    /// Bytes that [`Ranks::zipf`] takes: a table, and beside it, while it is built, two vectors of weights
    /// and two of ranks, which grow by doubling.
    pub(super) fn memory(n: u32) -> u64 {
        let each = size_of::<(f64, u32)>() + 2 * size_of::<f64>() + 2 * 2 * size_of::<u32>();
        u64::from(n) * each as u64
    }

    /// `n` ranks, 2 at least.
    pub(super) fn zipf(n: u32, exponent: f64) -> Self {
        let weights = weights_without_repeats(n, exponent);
        match weights.split_first() {
            Some((&first, others)) if first > 0.5 => Self { table: Alias::new(others), first: Some(first) },
            _ => Self { table: Alias::new(&weights), first: None },
        }
    }

    /// One that isn't `last`.
    pub(super) fn draw(&self, last: Option<u32>, rng: &mut Rng) -> u32 {
        loop {
            let rank = match self.first {
                None => self.table.draw(rng),
                Some(weight) if last != Some(0) && rng.chance(weight) => 0,
                Some(_) => 1 + self.table.draw(rng),
            };
            if Some(rank) != last {
                return rank;
            }
        }
    }
}

/// The weights `w` of [`Ranks`]; beside a first one of 1, the others count among themselves.
fn weights_without_repeats(n: u32, exponent: f64) -> Vec<f64> {
    let mut shares: Vec<f64> = (1..=n).map(|r| libm::pow(f64::from(r), -exponent)).collect();
    let total: f64 = shares.iter().sum();
    for z in &mut shares {
        *z /= total;
    }
    let top = shares.first().copied().unwrap_or(1.0);
    if top >= 0.5 {
        // Between two of the first rank one other comes, so that the others' weights are their shares.
        if let Some(first) = shares.first_mut() {
            *first = 1.0;
        }
        return shares;
    }
    // The root of w(1-w) = c·z below one half; only the first rank may need the one above.
    let low_root = |c: f64, z: f64| 2.0 * c * z / (1.0 + libm::sqrt((1.0 - 4.0 * c * z).max(0.0)));
    let sum_of_others = |c: f64| shares.iter().skip(1).map(|&z| low_root(c, z)).sum::<f64>();
    let most = 0.25 / top;
    let above = sum_of_others(most) + 0.5 < 1.0;
    let first = |c: f64| if above { 1.0 - low_root(c, top) } else { low_root(c, top) };
    let (mut lo, mut hi) = (0.0, most);
    for _ in 0..48 {
        let c = 0.5 * (lo + hi);
        // Below one half the sum grows with c from 0; above it falls from more than 1 as c grows.
        if (first(c) + sum_of_others(c) < 1.0) == above { hi = c } else { lo = c }
    }
    let c = 0.5 * (lo + hi);
    shares.iter().enumerate().map(|(i, &z)| if i == 0 { first(c) } else { low_root(c, z) }).collect()
}
