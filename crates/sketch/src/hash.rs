//! Keyed hashing of keys of a fixed length.
//!
//! Every hash depends on a seed, in every factor of every multiplication: who doesn't know the seed can't
//! choose keys that collide. The same seed gives the same hashes on every machine, so that states can be
//! merged across machines.

/// One key's hash: 128 bits, uniform in all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hash(pub(crate) [u64; 2]);

impl Hash {
    /// Four pieces of 32 bits.
    #[inline(always)]
    pub(crate) const fn pieces(self) -> [u32; 4] {
        let [a, b] = self.0;
        [a as u32, (a >> 32) as u32, b as u32, (b >> 32) as u32]
    }
}

/// A hash function, drawn by its seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hasher {
    secret: [u64; 4],
}

impl Hasher {
    /// The function number `purpose` of a seed; functions of different purposes have nothing to do with one
    /// another.
    pub(crate) fn new(seed: u64, purpose: u64) -> Self {
        let mut state = seed ^ purpose.wrapping_mul(0xa24b_aed4_963e_e407).rotate_left(17);
        // Odd, so that no factor is ever zero whatever the seed.
        let secret = std::array::from_fn(|_| split_mix(&mut state) | 1);
        Self { secret }
    }

    /// All 128 bits.
    #[inline(always)]
    pub(crate) fn hash<const N: usize>(&self, key: &[u8; N]) -> Hash {
        let [_, s1, s2, s3] = self.secret;
        let folded = self.fold(key);
        Hash([mix(folded ^ s2, s1.rotate_left(24)), mix(folded ^ s3, s1.rotate_left(48))])
    }

    /// 64 bits.
    #[inline(always)]
    pub(crate) fn hash64<const N: usize>(&self, key: &[u8; N]) -> u64 {
        let [_, s1, s2, _] = self.secret;
        mix(self.fold(key) ^ s2, s1.rotate_left(24))
    }

    /// 64 bits of a part of a key whose length isn't known before.
    pub(crate) fn hash_slice(&self, bytes: &[u8]) -> u64 {
        let [s0, s1, s2, s3] = self.secret;
        let mut folded = mix(bytes.len() as u64 ^ s0, s3);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            for (to, from) in word.iter_mut().zip(chunk) {
                *to = *from;
            }
            folded = mix(u64::from_le_bytes(word) ^ s0, folded ^ s1);
        }
        mix(folded ^ s2, s1.rotate_left(24))
    }

    /// 64 bits that differ for different keys (keys of up to 8 bytes: but for a chance of 2⁻⁶⁴), not uniform.
    #[inline(always)]
    pub(crate) fn fold<const N: usize>(&self, key: &[u8; N]) -> u64 {
        let [s0, s1, _, s3] = self.secret;
        match N {
            0..=8 => mix(word::<N>(key, 0) ^ s0, s1),
            9..=16 => mix(word::<N>(key, 0) ^ s0, word::<N>(key, N.saturating_sub(8)) ^ s1),
            _ => {
                let mut folded = s3;
                let mut at = 0;
                while at + 16 < N {
                    folded = mix(word::<N>(key, at) ^ s0 ^ folded, word::<N>(key, at + 8) ^ s1);
                    at += 16;
                }
                // The last 16 bytes, some of them perhaps for the second time.
                let (a, b) = (word::<N>(key, N.saturating_sub(16)), word::<N>(key, N.saturating_sub(8)));
                mix(a ^ s0 ^ folded.rotate_left(29), b ^ s1)
            }
        }
    }
}

/// A keyed hash of keys of any length, of 64 bits: for tables of whoever has keys.
#[derive(Clone, Copy, Debug)]
pub struct KeyHash(Hasher);

impl KeyHash {
    /// The hash of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Hasher::new(seed, 0x6b_65_78))
    }

    /// The hash of a key.
    #[must_use]
    #[inline]
    pub fn of(&self, key: &[u8]) -> u64 {
        self.0.hash_slice(key)
    }
}

/// A key of any bytes (a name, a URL) as one of 16 bytes, which every sketch takes: two different keys give
/// the same one with a probability of 2⁻¹²⁸, if nobody who chooses keys knows the seed.
///
/// ```
/// use slipstream_sketch::{Config, build, fixed_key};
///
/// let mut sketch = build::<16>(&Config::default())?;
/// for name in ["example.org", "example.net", "example.org"] {
///     sketch.update(&fixed_key(name.as_bytes(), 5), 1);
/// }
/// assert_eq!(sketch.flow_size(&fixed_key(b"example.org", 5)).unwrap().estimate, 2);
/// # Ok::<(), slipstream_sketch::BuildError>(())
/// ```
#[must_use]
pub fn fixed_key(bytes: &[u8], seed: u64) -> [u8; 16] {
    let half = |purpose| Hasher::new(seed, purpose).hash_slice(bytes);
    (u128::from(half(0x6b_65_79)) | u128::from(half(0x6b_65_7a)) << 64).to_le_bytes()
}

/// The eight bytes at `at`, or what is left of them.
#[inline(always)]
fn word<const N: usize>(key: &[u8; N], at: usize) -> u64 {
    if let Some(bytes) = key.get(at..).and_then(|k| k.first_chunk::<8>()) {
        return u64::from_le_bytes(*bytes);
    }
    if let Some(bytes) = key.first_chunk::<4>() {
        let low = u64::from(u32::from_le_bytes(*bytes));
        let high = key.last_chunk::<4>().map_or(0, |b| u64::from(u32::from_le_bytes(*b)));
        return if N == 4 { low } else { low | high << 32 };
    }
    key.iter().fold(0, |all, byte| all << 8 | u64::from(*byte))
}

/// Compares two keys, without a branch where they are short.
#[inline(always)]
pub(crate) fn same_key<const N: usize>(a: &[u8; N], b: &[u8; N]) -> bool {
    match N {
        4 | 8 => word::<N>(a, 0) == word::<N>(b, 0),
        9..=16 => {
            let last = N.saturating_sub(8);
            (word::<N>(a, 0) ^ word::<N>(b, 0)) | (word::<N>(a, last) ^ word::<N>(b, last)) == 0
        }
        _ => a == b,
    }
}

/// A 64×64→128-bit product, its halves folded into one.
#[inline(always)]
pub(crate) const fn mix(a: u64, b: u64) -> u64 {
    let p = a as u128 * b as u128;
    p as u64 ^ (p >> 64) as u64
}

/// Steele, Lea and Flood's SplitMix64: a stream of random numbers from a counter.
pub(crate) const fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// A 32-bit piece of a hash as an index below `n` (at most 2³²): no division, no bias that matters.
#[inline(always)]
pub(crate) const fn below(piece: u32, n: usize) -> usize {
    ((piece as u64 * n as u64) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn all_lengths_differ<const N: usize>() {
        let hasher = Hasher::new(1, 2);
        let mut seen = HashSet::new();
        seen.insert(hasher.hash(&[0; N]).0);
        for byte in 0..N {
            for bit in 0..8 {
                let mut key = [0; N];
                key[byte] = 1 << bit;
                assert!(seen.insert(hasher.hash(&key).0), "bit {bit} of byte {byte} of {N} doesn't count");
            }
        }
    }

    #[test]
    fn every_bit_of_a_key_counts() {
        all_lengths_differ::<1>();
        all_lengths_differ::<3>();
        all_lengths_differ::<4>();
        all_lengths_differ::<7>();
        all_lengths_differ::<8>();
        all_lengths_differ::<13>();
        all_lengths_differ::<16>();
        all_lengths_differ::<17>();
        all_lengths_differ::<32>();
        all_lengths_differ::<37>();
        all_lengths_differ::<64>();
    }

    /// Sequential keys, the usual enemy of weak hashes, over 256 cells: chi² of each piece within six
    /// deviations.
    #[test]
    fn pieces_are_uniform() {
        for seed in 0..20 {
            let hasher = Hasher::new(seed, 0);
            let mut cells = [[0u32; 256]; 4];
            let n = 65_536u32;
            for key in 0..n {
                for (row, piece) in cells.iter_mut().zip(hasher.hash(&key.to_be_bytes()).pieces()) {
                    row[below(piece, 256)] += 1;
                }
            }
            for row in cells {
                let mean = f64::from(n) / 256.0;
                let chi2: f64 = row.iter().map(|c| (f64::from(*c) - mean).powi(2) / mean).sum();
                assert!((chi2 - 255.0).abs() < 6.0 * (2.0f64 * 255.0).sqrt(), "seed {seed}: {chi2}");
            }
        }
    }

    /// Flipping any bit of the key flips every bit of the hash with probability one half.
    #[test]
    fn avalanche() {
        let hasher = Hasher::new(7, 7);
        let mut flips = [0u32; 128];
        let mut trials = 0;
        for key in 0..500u64 {
            let key = key.wrapping_mul(0x1234_5678_9abc_def1).to_le_bytes();
            let base = hasher.hash(&key).0;
            for bit in 0..64 {
                let mut other = key;
                other[bit / 8] ^= 1 << (bit % 8);
                let hash = hasher.hash(&other).0;
                trials += 1;
                for (i, flip) in flips.iter_mut().enumerate() {
                    *flip += u32::from((base[i / 64] ^ hash[i / 64]) >> (i % 64) & 1 == 1);
                }
            }
        }
        for (i, flip) in flips.into_iter().enumerate() {
            let share = f64::from(flip) / f64::from(trials);
            assert!((share - 0.5).abs() < 0.02, "bit {i} flips with {share}");
        }
    }

    #[test]
    fn seeds_and_purposes_make_different_functions() {
        let hash = |seed, purpose| Hasher::new(seed, purpose).hash(&[1, 2, 3, 4]).0;
        assert_eq!(hash(1, 1), hash(1, 1));
        assert_ne!(hash(1, 1), hash(2, 1));
        assert_ne!(hash(1, 1), hash(1, 2));
        assert_ne!(Hasher::new(0, 0).hash_slice(&[0]), Hasher::new(0, 0).hash_slice(&[0, 0]));
    }
}
