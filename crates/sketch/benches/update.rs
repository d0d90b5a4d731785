//! The cost of an update, as the tables that the book prints: every sketch, plain and behind the aggregator,
//! on 2 M updates in random order, in bursts, and all distinct; the exact table (hashbrown with rapidhash) at
//! few and many flows; Apache DataSketches on the same keys in the same memory, with the errors of both.
//!
//! Everything that is compared is measured in turn, round after round, and the least counts: CPU time of the
//! thread, the drain of the aggregator included, tables warm. `cargo bench -p slipstream-sketch --bench
//! update -- [TABLE…] [--quick] [--rounds N]`, where a table is `4`, `13`, `exact` or `datasketches`; or `--
//! only SKETCH plain|aggregator ORDER [13]` for one front alone, to count its instructions with Callgrind.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a benchmark"
)]

use std::collections::HashMap;
use std::hint::black_box;

use datasketches::countmin::CountMinSketch;
use datasketches::frequencies::FrequentItemsSketch;
use datasketches::hll::{HllSketch, HllType};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Zipf};
use rustix::time::{ClockId, clock_gettime};
use slipstream_sketch::{
    Aggregator, AggregatorConfig, Array, CountMin, CountMinParams, DdSketch, ExaLogLog, ExaLogLogHip, Exact,
    FlowRadar, FlowRadarParams, Fm, Front, Kind, LinearCounting, Mrac, Registers, RevSketch, Rule, Size,
    Sketch, SpaceSaving, TwoLevel, TwoLevelParams, UnivMon, UnivMonParams, Update, Want,
};

const ORDERS: [&str; 3] = ["random order", "bursts", "all distinct"];
/// Updates that a front is given at a time.
const BATCH: usize = 256;
/// Mean length of a burst.
const BURST: f64 = 6.0;

/// The amount that is measured.
#[derive(Clone, Copy)]
struct Scale {
    updates: usize,
    rounds: usize,
}

fn cpu_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The least time an update of each of some things that are done in turn, in ns; the first round, which
/// touches the pages, doesn't count.
fn race(updates: usize, rounds: usize, things: &mut [&mut dyn FnMut()]) -> Vec<f64> {
    let mut best = vec![f64::INFINITY; things.len()];
    for round in 0..=rounds {
        for (thing, best) in things.iter_mut().zip(&mut best) {
            let since = cpu_ns();
            thing();
            let ns = (cpu_ns() - since) as f64 / updates as f64;
            if round > 0 {
                *best = best.min(ns);
            }
        }
    }
    best
}

/// Flow numbers, Zipf-distributed with exponent 1.1 over `flows`, or each another.
fn flows(order: &str, updates: usize, flows: usize, seed: u64) -> Vec<u32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let zipf = Zipf::new(flows as f64, 1.1).unwrap();
    let mut now = 0;
    let mut next = |i: usize| match order {
        "all distinct" => i as u32,
        "uniform" => rng.random_range(0..flows as u32),
        "bursts" if i > 0 && !rng.random_bool(1.0 / BURST) => now,
        _ => {
            now = zipf.sample(&mut rng) as u32;
            now
        }
    };
    (0..updates).map(|i| next(i).wrapping_mul(0x9e37_79b1)).collect()
}

fn updates<const N: usize>(flows: &[u32]) -> Vec<Update<N>> {
    let key = |f: &u32| {
        let mut key = [10; N];
        key[..4].copy_from_slice(&f.to_le_bytes());
        key
    };
    flows.iter().map(|f| Update { key: key(f), weight: 1 }).collect()
}

fn distinct(flows: &[u32]) -> usize {
    let mut all = flows.to_vec();
    all.sort_unstable();
    all.dedup();
    all.len()
}

/// Parameters of the paper's §4.1; UnivMon with its four levels.
fn sketch<const N: usize>(kind: Kind) -> Box<dyn Sketch<N>> {
    match kind {
        Kind::CountMin => Box::new(count_min()),
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
        Kind::ExaLogLog => Box::new(ExaLogLog::new(1024, 1).unwrap()),
        Kind::ExaLogLogHip => Box::new(ExaLogLogHip::new(2048, 6, 1).unwrap()),
        Kind::DdSketch => Box::new(DdSketch::new(7, 1).unwrap()),
        Kind::Exact => Box::new(Exact::new(1)),
        Kind::Other(name) => panic!("{name} is no sketch of this crate"),
    }
}

const COUNT_MIN: CountMinParams = CountMinParams { rows: 4, width: 65_536, keep: 0 };

fn count_min<const N: usize>() -> CountMin<N> {
    CountMin::new(COUNT_MIN, 1).unwrap()
}

fn front<const N: usize>(sketch: Box<dyn Sketch<N>>, aggregate: bool) -> Front<N> {
    match aggregate {
        false => Front::plain(sketch),
        true => Front::aggregated(sketch, &AggregatorConfig::default()).unwrap(),
    }
}

/// An epoch through a front: updates, drain, and back to nothing.
fn epoch<const N: usize>(front: &mut Front<N>, stream: &[Update<N>]) {
    stream.chunks(BATCH).for_each(|some| front.update_all(some));
    front.drain();
}

/// Time of an update, plain and behind the aggregator; emptying the tables afterwards doesn't count.
fn plain_and_aggregated<const N: usize>(
    make: &dyn Fn() -> Box<dyn Sketch<N>>,
    stream: &[Update<N>],
    rounds: usize,
) -> [f64; 2] {
    let mut fronts = [false, true].map(|aggregate| front(make(), aggregate));
    let mut best = [f64::INFINITY; 2];
    for round in 0..=rounds {
        for (front, best) in fronts.iter_mut().zip(&mut best) {
            let since = cpu_ns();
            epoch(front, stream);
            let ns = (cpu_ns() - since) as f64 / stream.len() as f64;
            front.clear();
            if round > 0 {
                *best = best.min(ns);
            }
        }
    }
    best
}

fn row(cells: &[String]) {
    println!("| {} |", cells.join(" | "));
}

fn head(cells: &[&str]) {
    row(&cells.iter().map(ToString::to_string).collect::<Vec<_>>());
    println!("|{}", "---|".repeat(cells.len()));
}

/// All sketches on keys of `N` bytes.
fn sketches<const N: usize>(scale: Scale) {
    let numbers = ORDERS.map(|order| flows(order, scale.updates, scale.updates * 7 / 20, 1));
    let counts = numbers.each_ref().map(|n| distinct(n));
    println!(
        "\nKeys of {N} bytes, {} updates; flows: {counts:?}. Plain → aggregator, ns an update.\n",
        scale.updates
    );
    head(&["sketch", ORDERS[0], ORDERS[1], ORDERS[2], "ratio there"]);
    let streams = numbers.each_ref().map(|n| updates::<N>(n));
    let pairs = numbers.each_ref().map(|n| updates::<8>(n));
    for kind in Kind::ALL {
        // TwoLevel counts pairs of a source and its counterpart: keys of four bytes are none.
        if kind == Kind::TwoLevel && N != 4 {
            continue;
        }
        let mut cells = vec![kind.to_string()];
        let mut ratio = f64::NAN;
        for (stream, pairs) in streams.iter().zip(&pairs) {
            let [plain, with] = match kind {
                Kind::TwoLevel => plain_and_aggregated(&|| sketch::<8>(kind), pairs, scale.rounds),
                _ => plain_and_aggregated(&|| sketch::<N>(kind), stream, scale.rounds),
            };
            cells.push(format!("{plain:.1} → {with:.1}"));
            ratio = with / plain;
        }
        cells.push(format!("{ratio:.2}"));
        row(&cells);
    }
    let mut cells = vec!["aggregator alone".to_owned()];
    for stream in &streams {
        let mut aggregator = Aggregator::<N>::new(&AggregatorConfig::default()).unwrap();
        let mut left = 0;
        let mut pass = || {
            stream.chunks(BATCH).for_each(|some| aggregator.offer(some, &mut |out| left += out.len()));
            aggregator.drain(&mut |out| left += out.len());
        };
        let best = race(stream.len(), scale.rounds, &mut [&mut pass]);
        let stats = aggregator.stats();
        let hits = stats.hits as f64 / stats.updates as f64;
        cells.push(format!("{:.1}, {:.0} % hits", best[0], hits * 100.0));
        black_box(left);
    }
    row(&cells);
}

/// The exact table against Count-Min, where flows are few and where they are many.
fn exact(scale: Scale) {
    println!(
        "\nThe exact table (hashbrown with rapidhash, growing from nothing), Count-Min 4 x 65536, and 4 x 16384 behind an \
         aggregator of 1000 buckets, ns an update.\n"
    );
    head(&[
        "flows, keys of 4 bytes",
        "updates",
        "table",
        "its MB",
        "Count-Min",
        "behind the aggregator",
        "their MB",
        "small Count-Min behind the aggregator",
        "their MB",
    ]);
    for (order, all, n) in [
        ("random order", scale.updates, scale.updates * 7 / 20),
        ("uniform", scale.updates, scale.updates / 10),
        ("random order", scale.updates * 10, scale.updates * 25),
        ("uniform", scale.updates * 10, scale.updates * 5 / 2),
    ] {
        let numbers = flows(order, all, n, 1);
        let stream = updates::<4>(&numbers);
        let (mut plain, mut with) =
            (front::<4>(Box::new(count_min()), false), front(Box::new(count_min()), true));
        let small = CountMin::<4>::new(CountMinParams { width: 16_384, ..COUNT_MIN }, 1).unwrap();
        let config = AggregatorConfig { buckets: 1000, ..Default::default() };
        let mut small = Front::aggregated(Box::new(small), &config).unwrap();
        let mut bytes = 0;
        let best = race(
            all,
            scale.rounds.min(3),
            &mut [
                &mut || {
                    let mut table: hashbrown::HashMap<u32, u64, rapidhash::fast::RandomState> =
                        Default::default();
                    numbers.iter().for_each(|f| *table.entry(*f).or_insert(0) += 1);
                    bytes = table.allocation_size();
                    black_box(&table);
                },
                &mut || epoch(&mut plain, &stream),
                &mut || epoch(&mut with, &stream),
                &mut || epoch(&mut small, &stream),
            ],
        );
        let name = if order == "uniform" { order } else { "Zipf 1.1" };
        let megabytes = |bytes: usize| format!("{:.2}", bytes as f64 / 1e6);
        let memory =
            |f: &Front<4>| format!("{} + {}", megabytes(f.sketch_bytes()), megabytes(f.aggregator_bytes()));
        row(&[
            format!("{}, {name}", distinct(&numbers)),
            all.to_string(),
            format!("{:.1}", best[0]),
            megabytes(bytes),
            format!("{:.1}", best[1]),
            format!("{:.1}", best[2]),
            memory(&with),
            format!("{:.1}", best[3]),
            memory(&small),
        ]);
    }
}

/// Apache DataSketches and ours: the same keys, the same memory, time and error.
fn datasketches(scale: Scale) {
    let numbers =
        ["random order", "bursts"].map(|order| flows(order, scale.updates, scale.updates * 7 / 20, 1));
    println!("\nApache DataSketches (Rust) and ours, ns an update in {} and in bursts.\n", ORDERS[0]);
    head(&["what", "theirs", "ours", "ours behind the aggregator", "error", "theirs", "ours"]);
    // Its counters have 64 bits: half as many in the same memory.
    let rival = || CountMinSketch::<u64>::new(4, 32_768).unwrap();
    let times = numbers.each_ref().map(|n| {
        let mut theirs = rival();
        let time = race(n.len(), scale.rounds, &mut [&mut || n.iter().for_each(|f| theirs.update(f))])[0];
        (time, plain_and_aggregated::<4>(&|| Box::new(count_min()), &updates(n), scale.rounds))
    });
    let truth = truth(&numbers[0]);
    let mean = |estimate: &dyn Fn(u32) -> u64| {
        truth.iter().map(|(k, v)| estimate(*k).abs_diff(*v)).sum::<u64>() as f64 / truth.len() as f64
    };
    let (mut theirs, mut ours) = (rival(), count_min::<4>());
    numbers[0].iter().for_each(|f| theirs.update(f));
    ours.update_all(&updates(&numbers[0]));
    let errors = [
        format!("{:.2}", mean(&|k| theirs.estimate(k))),
        format!("{:.2}", mean(&|k| ours.flow_size(&k.to_le_bytes()).unwrap().estimate)),
    ];
    rivals("Count-Min, 1 MiB", &times, "mean error of a flow's size", errors);

    // 1024 places of a key (8 bytes, for it may be absent), a count and a state (2), three quarters of them
    // in use.
    let (places, memory) = (1024, 1024 * 18);
    let rival = || FrequentItemsSketch::<u32>::new(places).unwrap();
    let mine = || SpaceSaving::<4>::sized(Size::Memory(memory), 1).unwrap();
    let times = numbers.each_ref().map(|n| {
        let mut theirs = rival();
        let time = race(n.len(), scale.rounds, &mut [&mut || n.iter().for_each(|f| theirs.update(*f))])[0];
        (time, plain_and_aggregated::<4>(&|| Box::new(mine()), &updates(n), scale.rounds))
    });
    let mut top: Vec<(u64, u32)> = truth.iter().map(|(k, v)| (*v, *k)).collect();
    top.sort_unstable_by(|a, b| b.cmp(a));
    let (mut theirs, mut ours) = (rival(), mine());
    numbers[0].iter().for_each(|f| theirs.update(*f));
    ours.update_all(&updates(&numbers[0]));
    let kept = ours.heavy_hitters(Want { threshold: 1, top: usize::MAX }).unwrap();
    let lost = |kept: &dyn Fn(u32) -> bool| top.iter().take(100).filter(|t| !kept(t.1)).count().to_string();
    let errors =
        [lost(&|k| theirs.lower_bound(&k) > 0), lost(&|k| kept.iter().any(|f| f.key == k.to_le_bytes()))];
    rivals("frequent items and Space-Saving, 18 KiB", &times, "of the 100 heaviest, lost", errors);

    let rival = || HllSketch::new(12, HllType::Hll8).unwrap();
    let mine = |seed| ExaLogLog::<4>::new(1024, seed).unwrap();
    let times = numbers.each_ref().map(|n| {
        let mut theirs = rival();
        let time = race(n.len(), scale.rounds, &mut [&mut || n.iter().for_each(|f| theirs.update(f))])[0];
        (time, plain_and_aggregated::<4>(&|| Box::new(mine(1)), &updates(n), scale.rounds))
    });
    let errors = [
        cardinality_error(truth.len(), &|keys| counted_by_hll(12, HllType::Hll8, keys)),
        cardinality_error(truth.len(), &|keys| counted_by_us::<Registers>(4096, keys)),
    ];
    let errors = errors.map(|e| format!("{:.2} %", e * 100.0));
    rivals("HLL (8 bits) and ExaLogLog, 4 KiB", &times, "of the number of flows, root mean square", errors);
}

fn counted_by_hll(lg_k: u8, bits: HllType, keys: &mut dyn Iterator<Item = u32>) -> f64 {
    let mut sketch = HllSketch::new(lg_k, bits).unwrap();
    keys.for_each(|k| sketch.update(k));
    sketch.estimate()
}

fn counted_by_us<R: Rule>(bytes: usize, keys: &mut dyn Iterator<Item = u32>) -> f64 {
    let mut sketch = Array::<4, R>::sized(Size::Memory(bytes), 1).unwrap();
    keys.for_each(|k| sketch.update(&k.to_le_bytes(), 1));
    sketch.cardinality().unwrap().estimate
}

/// The relative error of a count of so many keys, root mean square of a number of sets of them.
fn cardinality_error(n: usize, count: &dyn Fn(&mut dyn Iterator<Item = u32>) -> f64) -> f64 {
    let tries = 60u32;
    let of = |set: u32| {
        let mut keys = (0..n as u32).map(|i| (i ^ set << 25).wrapping_mul(0x9e37_79b1));
        (count(&mut keys) / n as f64 - 1.0).powi(2)
    };
    ((0..tries).map(of).sum::<f64>() / f64::from(tries)).sqrt()
}

fn truth(flows: &[u32]) -> HashMap<u32, u64> {
    let mut truth = HashMap::new();
    flows.iter().for_each(|f| *truth.entry(*f).or_insert(0) += 1);
    truth
}

/// A row: times of theirs, of ours plain and of ours behind the aggregator, in both orders.
fn rivals(what: &str, times: &[(f64, [f64; 2]); 2], error: &str, errors: [String; 2]) {
    let both = |time: fn(&(f64, [f64; 2])) -> f64| format!("{:.1}, {:.1}", time(&times[0]), time(&times[1]));
    let [theirs, ours] = errors;
    row(&[
        what.to_owned(),
        both(|t| t.0),
        both(|t| t.1[0]),
        both(|t| t.1[1]),
        error.to_owned(),
        theirs,
        ours,
    ]);
}

/// One front alone.
fn only(words: &[String], scale: Scale) {
    match words {
        [name, how, order] => one::<4>(name, how, order, scale),
        [name, how, order, bytes] if bytes == "13" => one::<13>(name, how, order, scale),
        _ => panic!("only SKETCH plain|aggregator ORDER [13]"),
    }
}

fn one<const N: usize>(name: &str, how: &str, order: &str, scale: Scale) {
    let kind = Kind::from_name(name).expect("the name of a sketch");
    let stream = updates::<N>(&flows(order, scale.updates, scale.updates * 7 / 20, 1));
    let mut front = front(sketch::<N>(kind), how == "aggregator");
    for _ in 0..scale.rounds {
        epoch(&mut front, &stream);
        front.clear();
    }
}

fn main() {
    let mut words: Vec<String> = std::env::args().skip(1).filter(|w| w != "--bench").collect();
    let mut scale = Scale { updates: 2_000_000, rounds: 7 };
    if let Some(at) = words.iter().position(|w| w == "--quick") {
        words.remove(at);
        scale = Scale { updates: 200_000, rounds: 3 };
    }
    if let Some(at) = words.iter().position(|w| w == "--rounds") {
        scale.rounds = words.drain(at..=at + 1).next_back().and_then(|n| n.parse().ok()).expect("--rounds N");
    }
    if words.first().is_some_and(|w| w == "only") {
        return only(&words[1..], scale);
    }
    let wanted = |table: &str| words.is_empty() || words.iter().any(|w| w == table);
    if wanted("4") {
        sketches::<4>(scale);
    }
    if wanted("13") {
        sketches::<13>(scale);
    }
    if wanted("exact") {
        exact(scale);
    }
    if wanted("datasketches") {
        datasketches(scale);
    }
}
