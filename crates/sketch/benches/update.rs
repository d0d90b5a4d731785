//! What an update costs: every sketch, plain and behind the aggregator, on 2 M updates in random order, in bursts, and all distinct; with
//! the drain in the time, tables warm. Beside them the exact table (hashbrown with rapidhash) and Apache DataSketches.
//! Errors of these and of ours, on the same keys in the same memory, are printed first.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a benchmark")]
#![allow(missing_docs, reason = "criterion's macros make public items")]

use std::collections::HashMap;
use std::hint::black_box;

use criterion::{
    BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main, measurement::WallTime,
};
use datasketches::countmin::CountMinSketch;
use datasketches::frequencies::FrequentItemsSketch;
use datasketches::hll::{HllSketch, HllType};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Zipf};
use slipstream_sketch::{
    AggregatorConfig, CountMin, CountMinParams, FlowRadar, FlowRadarParams, Fm, Front, Kind, LinearCounting,
    Mrac, RevSketch, Sketch, SpaceSaving, TwoLevel, TwoLevelParams, UnivMon, UnivMonParams, Update, Want,
};

const UPDATES: usize = 2_000_000;

fn flows(order: &str) -> Vec<u32> {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let zipf = Zipf::new(700_000.0, 1.1).unwrap();
    let mut now = 0;
    let mut next = |i: usize| match order {
        "distinct" => i as u32,
        "bursts" if i > 0 && rng.random_bool(5.0 / 6.0) => now,
        _ => {
            now = zipf.sample(&mut rng) as u32;
            now
        }
    };
    (0..UPDATES).map(|i| next(i).wrapping_mul(0x9e37_79b1)).collect()
}

fn updates<const N: usize>(flows: &[u32]) -> Vec<Update<N>> {
    let key = |f: &u32| {
        let mut key = [10; N];
        key[..4].copy_from_slice(&f.to_le_bytes());
        key
    };
    flows.iter().map(|f| Update { key: key(f), weight: 1 }).collect()
}

/// As in the paper, §4.1.
fn sketch<const N: usize>(kind: Kind) -> Box<dyn Sketch<N>> {
    match kind {
        Kind::CountMin => {
            Box::new(CountMin::new(CountMinParams { rows: 4, width: 65_536, keep: 0 }, 1).unwrap())
        }
        Kind::FlowRadar => {
            Box::new(FlowRadar::new(FlowRadarParams { cells: 65_536, lines: 16_384 }, 1).unwrap())
        }
        Kind::SpaceSaving => Box::new(SpaceSaving::new(128, 1).unwrap()),
        Kind::RevSketch => Box::new(RevSketch::new(16, 1).unwrap()),
        Kind::TwoLevel => {
            let params = TwoLevelParams { source_len: (N / 2).min(4), bits: 16, width: 4096 };
            Box::new(TwoLevel::new(params, 1).unwrap())
        }
        Kind::Mrac => Box::new(Mrac::new(262_144, 1).unwrap()),
        Kind::Fm => Box::new(Fm::new(4, 1).unwrap()),
        Kind::LinearCounting => Box::new(LinearCounting::new(131_072, 1).unwrap()),
        Kind::UnivMon => {
            Box::new(UnivMon::new(UnivMonParams { levels: 4, width: 16_384, keep: 128 }, 1).unwrap())
        }
        Kind::Exact => Box::new(slipstream_sketch::Exact::new(1)),
    }
}

fn ours<const N: usize>(group: &mut BenchmarkGroup<'_, WallTime>, order: &str, flows: &[u32]) {
    let stream = updates::<N>(flows);
    for kind in Kind::ALL {
        for aggregate in [false, true] {
            let mut front = match aggregate {
                false => Front::plain(sketch::<N>(kind)),
                true => Front::aggregated(sketch::<N>(kind), &AggregatorConfig::default()).unwrap(),
            };
            let how = if aggregate { "aggregator" } else { "plain" };
            group.bench_function(format!("{kind}/{how}/{order}/{N} bytes"), |b| {
                b.iter(|| {
                    stream.chunks(256).for_each(|some| front.update_all(some));
                    front.clear();
                });
            });
        }
    }
}

fn yardsticks(group: &mut BenchmarkGroup<'_, WallTime>, order: &str, flows: &[u32]) {
    group.bench_function(format!("hashbrown + rapidhash/{order}"), |b| {
        b.iter(|| {
            let mut table: hashbrown::HashMap<u32, u64, rapidhash::fast::RandomState> = Default::default();
            flows.iter().for_each(|f| *table.entry(*f).or_insert(0) += 1);
            black_box(table.len())
        });
    });
    group.bench_function(format!("datasketches count-min 4 x 65536/{order}"), |b| {
        let mut s = CountMinSketch::<u64>::new(4, 65_536).unwrap();
        b.iter(|| flows.iter().for_each(|f| s.update(f)));
    });
    group.bench_function(format!("datasketches frequent items 1024/{order}"), |b| {
        let mut s = FrequentItemsSketch::<u32>::new(1024).unwrap();
        b.iter(|| flows.iter().for_each(|f| s.update(*f)));
    });
    group.bench_function(format!("datasketches hll_8, 4096/{order}"), |b| {
        let mut s = HllSketch::new(12, HllType::Hll8).unwrap();
        b.iter(|| flows.iter().for_each(|f| s.update(f)));
    });
}

/// Mean absolute error of sizes, recall of the 100 heaviest, relative error of the number of flows.
fn errors(flows: &[u32]) {
    let mut truth: HashMap<u32, u64> = HashMap::new();
    flows.iter().for_each(|f| *truth.entry(*f).or_insert(0) += 1);
    let stream = updates::<4>(flows);
    let mut top: Vec<(u64, u32)> = truth.iter().map(|(k, v)| (*v, *k)).collect();
    top.sort_unstable_by(|a, b| b.cmp(a));
    let mean = |estimate: &dyn Fn(u32) -> u64| {
        truth.iter().map(|(k, v)| estimate(*k).abs_diff(*v)).sum::<u64>() as f64 / truth.len() as f64
    };
    let mut mine = CountMin::<4>::new(CountMinParams { rows: 4, width: 65_536, keep: 0 }, 1).unwrap();
    mine.update_all(&stream);
    // Its counters have 64 bits: half as many in the same memory.
    let mut theirs = CountMinSketch::<u64>::new(4, 32_768).unwrap();
    flows.iter().for_each(|f| theirs.update(f));
    println!(
        "1 MiB of Count-Min, mean absolute error: ours {:.2}, datasketches {:.2}",
        mean(&|k| mine.flow_size(&k.to_le_bytes()).unwrap().estimate),
        mean(&|k| theirs.estimate(k))
    );
    let mut theirs = FrequentItemsSketch::<u32>::new(1024).unwrap();
    flows.iter().for_each(|f| theirs.update(*f));
    let mut mine = SpaceSaving::<4>::new(768, 1).unwrap();
    mine.update_all(&stream);
    let kept = mine.heavy_hitters(Want { threshold: 1, top: 768 }).unwrap();
    let ours = top.iter().take(100).filter(|t| kept.iter().any(|k| k.key == t.1.to_le_bytes())).count();
    let other = top.iter().take(100).filter(|t| theirs.estimate(&t.1) > 0).count();
    println!(
        "768 counters, of the 100 heaviest kept: Space-Saving {ours}, datasketches frequent items {other}"
    );
    let mut theirs = HllSketch::new(12, HllType::Hll8).unwrap();
    flows.iter().for_each(|f| theirs.update(f));
    let mut fm = Fm::<4>::new(1024, 1).unwrap();
    fm.update_all(&stream);
    let off = |estimate: f64| (estimate / truth.len() as f64 - 1.0).abs() * 100.0;
    println!(
        "4 KiB, error of {} flows: FM {:.2} %, datasketches HLL {:.2} %",
        truth.len(),
        off(fm.cardinality().unwrap().estimate),
        off(theirs.estimate())
    );
}

fn bench(c: &mut Criterion) {
    let mut group = c.benchmark_group("update");
    group.throughput(Throughput::Elements(UPDATES as u64)).sample_size(10);
    for order in ["shuffled", "bursts", "distinct"] {
        let flows = flows(order);
        if order == "shuffled" {
            errors(&flows);
        }
        ours::<8>(&mut group, order, &flows);
        ours::<4>(&mut group, order, &flows);
        ours::<13>(&mut group, order, &flows);
        yardsticks(&mut group, order, &flows);
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
