//! Packet classification: a lookup among generated rules, with the structures warm in the caches and with
//! them cold, and how long it takes to build them. Packets hit random rules, so that every lookup goes
//! another way.

#![allow(missing_docs, clippy::unwrap_used, clippy::indexing_slicing)]

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use slipstream::functions::firewall::cache::DecisionCache;
use slipstream::functions::firewall::forest::Forest;
use slipstream::functions::firewall::generate::{Kind, packets, rules};
use slipstream::functions::firewall::reference::Linear;
use slipstream::functions::firewall::{PacketFields, RuleSet};

const PACKETS: usize = 8192;

fn fields(rules: &RuleSet) -> Vec<PacketFields> {
    packets(rules, PACKETS, 9).iter().map(|h| PacketFields::new(h, 60)).collect()
}

/// Reads more than the caches next to a core hold, so that what was in them is not.
fn evict(junk: &[u64]) -> u64 {
    junk.iter().step_by(8).sum()
}

fn warm(c: &mut Criterion) {
    let mut group = c.benchmark_group("acl");
    group.throughput(Throughput::Elements(PACKETS as u64));
    let sizes = [("1k", 1000), ("10k", 10_000), ("20k", 20_000)];
    for ((name, kind), (size, count)) in Kind::ALL.into_iter().flat_map(|k| sizes.map(|s| (k, s))) {
        let rules = rules(kind, count, 7);
        let forest = Forest::new(&rules);
        let packets = fields(&rules);
        group.bench_function(format!("{name}/{size}"), |b| {
            b.iter(|| packets.iter().map(|p| u64::from(forest.lookup(p).unwrap_or(0))).sum::<u64>());
        });
    }
    group.finish();
}

/// A batch of lookups behind a sweep of the caches: the first packets after something else had the core.
fn cold(c: &mut Criterion) {
    let mut group = c.benchmark_group("acl_cold");
    const BATCH: usize = 32;
    group.throughput(Throughput::Elements(BATCH as u64)).sample_size(20);
    let junk = vec![1_u64; 8 << 20];
    for (name, kind, count) in [("mixed/10k", Kind::Mixed, 10_000), ("hosts/10k", Kind::Hosts, 10_000)] {
        let rules = rules(kind, count, 7);
        let forest = Forest::new(&rules);
        let packets = fields(&rules);
        let mut batches = packets.chunks_exact(BATCH).cycle();
        group.bench_function(name, |b| {
            b.iter_batched(
                || {
                    black_box(evict(&junk));
                    batches.next().unwrap()
                },
                |batch| batch.iter().map(|p| u64::from(forest.lookup(p).unwrap_or(0))).sum::<u64>(),
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

/// The same packets through the linear classifier, and through the cache of decisions.
fn others(c: &mut Criterion) {
    let rules = rules(Kind::Mixed, 10_000, 7);
    let packets = fields(&rules);
    let headers = slipstream::functions::firewall::generate::packets(&rules, PACKETS, 9);
    let mut group = c.benchmark_group("acl_others");
    let some = &packets[..64];
    let linear = Linear::new(&rules);
    group.throughput(Throughput::Elements(some.len() as u64)).sample_size(10);
    group.bench_function("linear/mixed/10k", |b| {
        b.iter(|| some.iter().map(|p| u64::from(linear.lookup(p).unwrap_or(0))).sum::<u64>());
    });
    group.throughput(Throughput::Elements(PACKETS as u64)).sample_size(50);
    let mut cache = DecisionCache::new(2 * PACKETS, rules.reads());
    for (h, p) in headers.iter().zip(&packets) {
        cache.put(&h.key, h.key.hash64(1), p, Some(1));
    }
    group.bench_function("cache/hit", |b| {
        b.iter(|| {
            let known = headers.iter().zip(&packets).map(|(h, p)| cache.get(&h.key, h.key.hash64(1), p));
            known.filter(Option::is_some).count()
        });
    });
    group.bench_function("fields", |b| {
        b.iter(|| headers.iter().map(|h| u64::from(black_box(PacketFields::new(h, 60)).word())).sum::<u64>());
    });
    group.finish();
}

fn build(c: &mut Criterion) {
    let mut group = c.benchmark_group("acl_build");
    group.sample_size(10);
    for (name, kind) in Kind::ALL {
        let rules = rules(kind, 20_000, 7);
        group.bench_function(format!("{name}/20k"), |b| b.iter(|| Forest::new(&rules)));
    }
    group.finish();
}

criterion_group!(benches, warm, cold, others, build);
criterion_main!(benches);
