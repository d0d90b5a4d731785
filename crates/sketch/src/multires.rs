//! Bitmaps of several resolutions (Estan, Varghese and Fisk, IMC 2003): how many distinct things, from a few
//! to many, in little memory.
//!
//! Eight components; a thing goes to component c with probability ¾·4⁻ᶜ (the last: 4⁻⁷) and sets one of its
//! bits. Few things are told by the first, fully seen component, many by later ones, which see a sample.
//! Setting a bit twice does nothing, so order and repetition don't matter, and bitmaps of shards are united
//! with OR.

use crate::stats::crossing;

/// Components.
pub(crate) const PARTS: usize = 8;
/// Part of a component's bits that may be set before a finer sample tells more.
const FULL: f64 = 0.9;

/// The component of a thing, from its hash: a quarter goes on to the next, each time.
#[inline(always)]
pub(crate) fn part(hash: u64) -> u32 {
    (hash.trailing_zeros() / 2).min(PARTS as u32 - 1)
}

/// Estimates how many items set the bits of components of `bits` bits each, of which `set[c]` are set; and
/// whether even the last is full, so that it may have been any number more.
pub(crate) fn estimate(set: [u32; PARTS], bits: u32) -> (f64, bool) {
    let m = f64::from(bits);
    let base = set.iter().position(|s| f64::from(*s) <= FULL * m).unwrap_or(PARTS - 1);
    let mut sampled = 0.0;
    let mut full = false;
    // Components without a set bit add nothing, and need no logarithm.
    for s in set.iter().skip(base).filter(|s| **s > 0) {
        let unset = (m - f64::from(*s)).max(0.0);
        // A full component: one bit less stands for "that many or more".
        full |= unset < 1.0;
        sampled += m * (m / unset.max(0.5)).ln();
    }
    (sampled * f64::from(1u32 << (2 * base)), full)
}

/// The number of things under which so many set bits of components of `bits` bits each are the most likely,
/// as [`estimate`] but from all components at once; whether even the last is full, so that it may have been
/// any number more.
pub(crate) fn most_likely(set: [u32; PARTS], bits: u32) -> (f64, bool) {
    let m = f64::from(bits);
    let full = set.last().is_some_and(|s| *s >= bits);
    if set.iter().all(|s| *s == 0) {
        return (0.0, false);
    }
    let slope = |n: f64| {
        let of = |(part, set): (usize, &u32)| {
            let (q, set) = (probability(part) / m, f64::from((*set).min(bits)));
            set * q / (n * q).exp_m1() - (m - set) * q
        };
        set.iter().enumerate().map(of).sum::<f64>()
    };
    let n = crossing(|log| -slope(log.exp2()), -4.0, 40.0).exp2();
    // Less the bias of the first order (Cox and Snell, 1968).
    (n / (1.0 + information(n, bits, 3) / (2.0 * information(n, bits, 2).powi(2))), full)
}

/// The relative standard error of [`most_likely`] where there were n things.
pub(crate) fn error(n: f64, bits: u32) -> f64 {
    if n <= 0.0 { 0.0 } else { (1.0 / information(n, bits, 2) - 1.0 / n).max(0.0).sqrt() }
}

/// The probability of a component.
fn probability(part: usize) -> f64 {
    let passed = 0.25f64.powi(part as i32);
    if part + 1 == PARTS { passed } else { 0.75 * passed }
}

/// Σ xᵏ/(eˣ − 1) over all bits, x = n times the probability of a bit: for k = 2 the Fisher information of ln
/// n.
fn information(n: f64, bits: u32, power: i32) -> f64 {
    let m = f64::from(bits);
    (0..PARTS).map(|part| n * probability(part) / m).map(|x| m * x.powi(power) / x.exp_m1()).sum()
}

/// As many of 64 bits as there are set, by components of eight.
pub(crate) fn set_bits_small(map: u64) -> [u32; PARTS] {
    map.to_le_bytes().map(u8::count_ones)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::split_mix;

    #[test]
    fn from_few_to_many() {
        for n in [1u64, 5, 30, 200, 1000, 10_000, 100_000] {
            let mut errors = [0.0f64; 2];
            for seed in 0..40u64 {
                let (mut small, mut large) = (0u64, [0u64; PARTS]);
                let mut state = seed * 1000 + n;
                for _ in 0..n {
                    let (h, b) = (split_mix(&mut state), split_mix(&mut state));
                    small |= 1 << (part(h) * 8 + (b & 7) as u32);
                    large[part(h) as usize] |= 1 << (b & 63);
                }
                let got = [estimate(set_bits_small(small), 8).0, estimate(large.map(u64::count_ones), 64).0];
                for (e, g) in errors.iter_mut().zip(got) {
                    *e += (g / n as f64 - 1.0).powi(2) / 40.0;
                }
            }
            assert!(errors[0].sqrt() < 0.6, "{n}: 64 bits are off by {}", errors[0].sqrt());
            assert!(errors[1].sqrt() < 0.2, "{n}: 512 bits are off by {}", errors[1].sqrt());
        }
    }

    /// Unbiased, and as far off as it says, from few to many.
    #[test]
    fn the_most_likely_number_errs_as_stated() {
        for n in [1u64, 8, 60, 500, 4_000, 30_000, 300_000] {
            let (mut squares, mut sum, seeds) = (0.0, 0.0, 150);
            for seed in 0..seeds {
                let (mut map, mut state) = ([0u64; PARTS], seed * 7 + n);
                for _ in 0..n {
                    let (h, b) = (split_mix(&mut state), split_mix(&mut state));
                    map[part(h) as usize] |= 1 << (b & 63);
                }
                let off = most_likely(map.map(u64::count_ones), 64).0 / n as f64 - 1.0;
                (squares, sum) = (squares + off * off, sum + off);
            }
            let (rms, bias) = ((squares / seeds as f64).sqrt(), sum / seeds as f64);
            let stated = error(n as f64, 64);
            // Of a handful, collisions are too rare to be a variance.
            assert!(
                rms < 1.25 * stated + 1e-2 && (n < 60 || rms > 0.75 * stated - 1e-2),
                "{n}: {rms}, not {stated}"
            );
            assert!(bias.abs() < 4.0 * stated / (seeds as f64).sqrt() + 3e-3, "{n}: a bias of {bias}");
        }
        assert!((0..200).all(|i| error(1.06f64.powi(i), 64) < 0.118));
    }

    #[test]
    fn a_full_bitmap_says_so() {
        let (many, full) = estimate([64; PARTS], 64);
        assert!(full && many.is_finite());
        assert!(!estimate([0; PARTS], 64).1);
        assert_eq!(estimate([0; PARTS], 64).0, 0.0);
    }
}
