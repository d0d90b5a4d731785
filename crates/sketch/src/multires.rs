//! Bitmaps of several resolutions (Estan, Varghese and Fisk, IMC 2003): how many distinct things, from a few to many, in little memory.
//!
//! Eight components; a thing goes to component c with probability ¾·4⁻ᶜ (the last: 4⁻⁷) and sets one of its bits. Few things are
//! told by the first, fully seen component, many by later ones, which see a sample. Setting a bit twice does nothing, so
//! order and repetition don't matter, and bitmaps of shards are united with OR.

/// Components.
pub(crate) const PARTS: usize = 8;
/// Part of a component's bits that may be set before a finer sample tells more.
const FULL: f64 = 0.9;

/// The component of a thing, from its hash: a quarter goes on to the next, each time.
#[inline(always)]
pub(crate) fn part(hash: u64) -> u32 {
    (hash.trailing_zeros() / 2).min(PARTS as u32 - 1)
}

/// How many things set the bits of components of `bits` bits each, of which `set[c]` are set; and whether even the last is
/// full, so that it may have been any number more.
pub(crate) fn estimate(set: [u32; PARTS], bits: u32) -> (f64, bool) {
    let m = f64::from(bits);
    let base = set.iter().position(|s| f64::from(*s) <= FULL * m).unwrap_or(PARTS - 1);
    let mut sampled = 0.0;
    let mut full = false;
    for s in set.iter().skip(base) {
        let unset = (m - f64::from(*s)).max(0.0);
        // A full component: one bit less stands for "that many or more".
        full |= unset < 1.0;
        sampled += m * (m / unset.max(0.5)).ln();
    }
    (sampled * f64::from(1u32 << (2 * base)), full)
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

    #[test]
    fn a_full_bitmap_says_so() {
        let (many, full) = estimate([64; PARTS], 64);
        assert!(full && many.is_finite());
        assert!(!estimate([0; PARTS], 64).1);
        assert_eq!(estimate([0; PARTS], 64).0, 0.0);
    }
}
