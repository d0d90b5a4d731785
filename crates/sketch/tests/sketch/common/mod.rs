//! Streams with a known truth.

#![allow(dead_code, reason = "each test uses some of it")]

use std::collections::BTreeMap;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Zipf};
use slipstream_sketch::{Config, Kind, Size, Sketch, Update, build};

/// A stream of updates.
pub(crate) type Stream<const N: usize> = Vec<Update<N>>;

/// Flow number to key: 4 bytes as they are; longer keys with constant parts, as addresses and ports have.
pub(crate) fn key<const N: usize>(flow: u64) -> [u8; N] {
    let mut key = [10; N];
    let mixed = (flow as u32).wrapping_mul(0x9e37_79b1).to_le_bytes();
    key.iter_mut().zip(mixed).for_each(|(k, b)| *k = b);
    if N > 8 {
        key[N - 1] = 6;
        key[N - 2] = flow as u8;
    }
    key
}

/// `packets` updates of weight 1 over `flows` flows, Zipf-distributed with `exponent`, in random order.
pub(crate) fn zipf<const N: usize>(packets: usize, flows: u64, exponent: f64, seed: u64) -> Stream<N> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let zipf = Zipf::new(flows as f64, exponent).unwrap();
    (0..packets).map(|_| Update { key: key(zipf.sample(&mut rng) as u64), weight: 1 }).collect()
}

/// The same in bursts of a geometric length.
pub(crate) fn bursts<const N: usize>(packets: usize, flows: u64, mean: f64, seed: u64) -> Stream<N> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let zipf = Zipf::new(flows as f64, 1.1).unwrap();
    let mut now = key(1);
    let next = |rng: &mut ChaCha8Rng| key(zipf.sample(rng) as u64);
    (0..packets)
        .map(|_| {
            if rng.random_bool(1.0 / mean) {
                now = next(&mut rng);
            }
            Update { key: now, weight: 1 }
        })
        .collect()
}

/// Totals by key.
pub(crate) fn truth<const N: usize>(stream: &[Update<N>]) -> BTreeMap<[u8; N], u64> {
    let mut totals = BTreeMap::new();
    for u in stream {
        *totals.entry(u.key).or_insert(0) += u64::from(u.weight);
    }
    totals
}

/// Totals, the greatest first.
pub(crate) fn sorted<const N: usize>(truth: &BTreeMap<[u8; N], u64>) -> Vec<([u8; N], u64)> {
    let mut all: Vec<_> = truth.iter().map(|(k, v)| (*k, *v)).collect();
    all.sort_unstable_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    all
}

/// Entropy in bits.
pub(crate) fn entropy<const N: usize>(truth: &BTreeMap<[u8; N], u64>) -> f64 {
    let n: u64 = truth.values().sum();
    truth.values().map(|v| *v as f64 / n as f64).map(|p| -p * p.log2()).sum()
}

/// A sketch of a kind in so much memory.
pub(crate) fn sketch<const N: usize>(kind: Kind, memory: usize, seed: u64) -> Box<dyn Sketch<N>> {
    build(&Config { kind, size: Size::Memory(memory), seed, keep: 64, source_len: N / 2 }).unwrap()
}
