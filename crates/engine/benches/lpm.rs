//! Longest-prefix match: a lookup one by one and in a batch, among tables of the size of a small network and
//! of the whole Internet, at random addresses that routes hold; with the table warm in the caches and with it
//! cold; and how long it takes to build.

#![allow(missing_docs, clippy::unwrap_used, clippy::indexing_slicing)]

use std::hint::black_box;
use std::net::{Ipv4Addr, Ipv6Addr};

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use ipnet::{Ipv4Net, Ipv6Net};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use slipstream::functions::lpm::{Lpm4, Lpm6};

const ASKED: usize = 8192;

/// Prefixes whose lengths are spread as in the Internet's table: three in five a /24, and blocks of
/// neighbours.
fn routes4(count: usize) -> Vec<(Ipv4Net, u32)> {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let mut routes = Vec::with_capacity(count);
    while routes.len() < count {
        let len = match random.random_range(0..100) {
            0..60 => 24,
            60..70 => 22,
            70..80 => 23,
            80..95 => random.random_range(16..22),
            _ => random.random_range(8..16),
        };
        let start: u32 = random.random_range(1 << 24..224 << 24);
        for i in 0..random.random_range(1..8_u32) {
            let bits = start.wrapping_add(i << (32 - u32::from(len)));
            routes.push((Ipv4Net::new(bits.into(), len).unwrap().trunc(), random.random_range(0..200)));
        }
    }
    routes
}

/// Two in five a /48, a quarter a /32, under the blocks that registries hand out.
fn routes6(count: usize) -> Vec<(Ipv6Net, u32)> {
    let mut random = ChaCha8Rng::seed_from_u64(2);
    let mut routes = Vec::with_capacity(count);
    while routes.len() < count {
        let len = match random.random_range(0..100) {
            0..40 => 48,
            40..65 => 32,
            65..75 => 44,
            75..85 => 40,
            85..93 => 36,
            93..97 => 29,
            _ => 64,
        };
        let head =
            [0x2001, 0x2400, 0x2600, 0x2800, 0x2a00, 0x2a10, 0x2c00][random.random_range(0..7)] as u128;
        let start =
            head << 112 | random.random_range(0..40_000_u128) << 99 | random.random_range(0..64_u128) << 80;
        for i in 0..random.random_range(1..6_u128) {
            let bits = start.wrapping_add(i << (128 - u32::from(len)));
            routes.push((Ipv6Net::new(bits.into(), len).unwrap().trunc(), random.random_range(0..200)));
        }
    }
    routes
}

fn asked4(routes: &[(Ipv4Net, u32)], count: usize) -> Vec<Ipv4Addr> {
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let mut one = || {
        let (net, _) = routes[random.random_range(0..routes.len())];
        random.random_range(net.network().to_bits()..=net.broadcast().to_bits()).into()
    };
    (0..count).map(|_| one()).collect()
}

fn asked6(routes: &[(Ipv6Net, u32)], count: usize) -> Vec<Ipv6Addr> {
    let mut random = ChaCha8Rng::seed_from_u64(4);
    let mut one = || {
        let (net, _) = routes[random.random_range(0..routes.len())];
        random.random_range(net.network().to_bits()..=net.broadcast().to_bits()).into()
    };
    (0..count).map(|_| one()).collect()
}

/// Reads more than the caches next to a core hold, so that what was in them is not.
fn evict(junk: &[u64]) -> u64 {
    junk.iter().step_by(8).sum()
}

/// `warm`: 8192 addresses again and again. `random`: a million addresses, so that a large table is never in
/// the caches as a whole. `cold`: 32 addresses behind a sweep of the caches.
macro_rules! table {
    ($c:expr, $name:literal, $count:expr, $table:ty, $routes:ident, $asked:ident) => {{
        let routes = $routes($count);
        let table = <$table>::build(routes.iter().copied());
        let mut group = $c.benchmark_group(format!("lpm/{}", $name));
        for (kind, count) in [("warm", ASKED), ("random", 1 << 20)] {
            let asked = $asked(&routes, count);
            let mut values = vec![None; count];
            group.throughput(Throughput::Elements(count as u64)).sample_size(20);
            group.bench_function(format!("{kind}/one"), |b| {
                b.iter(|| asked.iter().map(|&a| u64::from(table.lookup(a).unwrap_or(0))).sum::<u64>());
            });
            group.bench_function(format!("{kind}/many"), |b| {
                b.iter(|| {
                    table.lookup_many(&asked, &mut values);
                    values.len()
                });
            });
        }
        let asked = $asked(&routes, ASKED);
        let junk = vec![1_u64; 8 << 20];
        let mut values = [None; 32];
        let mut batches = asked.chunks_exact(32).cycle();
        group.throughput(Throughput::Elements(32));
        group.bench_function("cold/many", |b| {
            b.iter_batched(
                || {
                    black_box(evict(&junk));
                    batches.next().unwrap()
                },
                |batch| {
                    table.lookup_many(batch, &mut values);
                    values[0]
                },
                BatchSize::PerIteration,
            );
        });
        group.sample_size(10).bench_function("build", |b| {
            b.iter(|| <$table>::build(routes.iter().copied()).memory());
        });
        println!("{}: {} prefixes in {} kB", $name, table.len(), table.memory() >> 10);
        group.finish();
    }};
}

fn lpm(c: &mut Criterion) {
    table!(c, "v4/200", 200, Lpm4, routes4, asked4);
    table!(c, "v4/1M", 1_000_000, Lpm4, routes4, asked4);
    table!(c, "v6/200", 200, Lpm6, routes6, asked6);
    table!(c, "v6/200k", 200_000, Lpm6, routes6, asked6);
}

criterion_group!(benches, lpm);
criterion_main!(benches);
