//! Errors beside Apache DataSketches (its Rust library), task by task, as the book's tables print them: at
//! equal bytes of memory, and of saved states.
//!
//! `cargo bench -p slipstream-sketch --bench accuracy -- [cardinality] [top] [sizes] [--trials N] [--keys N]`;
//! `--keys` leaves out cardinalities above it. Memory of theirs is what its documentation says of the table
//! alone, without its head and exceptions.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a benchmark"
)]

use std::collections::HashMap;

use datasketches::countmin::CountMinSketch;
use datasketches::cpc::{CpcSketch, CpcUnion};
use datasketches::frequencies::FrequentItemsSketch;
use datasketches::hll::{HllSketch, HllType, HllUnion};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Zipf};
use slipstream_sketch::{
    CountMin, CountMinParams, ExaLogLog, ExaLogLogHip, Size, Sketch, SpaceSaving, Want, save,
};

/// Numbers of distinct keys.
const CARDINALITIES: [u32; 5] = [1_000, 10_000, 100_000, 1_000_000, MANY];
/// So many keys take their time: nothing is merged then.
const MANY: u32 = 10_000_000;

/// Root mean square of relative errors, and the mean length of saved states.
#[derive(Default)]
struct Errors {
    squares: f64,
    bytes: usize,
    trials: u32,
}

impl Errors {
    fn add(&mut self, estimate: f64, truth: f64, bytes: usize) {
        self.squares += (estimate / truth - 1.0).powi(2);
        self.bytes += bytes;
        self.trials += 1;
    }

    fn error(&self) -> f64 {
        (self.squares / f64::from(self.trials)).sqrt()
    }

    fn text(&self) -> String {
        if self.trials == 0 {
            return "-".to_owned();
        }
        format!("{:.3} %, {} B", self.error() * 100.0, self.bytes / self.trials as usize)
    }
}

fn row(cells: &[String]) {
    println!("| {} |", cells.join(" | "));
}

fn head(cells: &[&str]) {
    row(&cells.iter().map(ToString::to_string).collect::<Vec<_>>());
    println!("|{}", "---|".repeat(cells.len()));
}

/// The keys of a set.
fn keys(set: u32, range: std::ops::Range<u32>) -> impl Iterator<Item = u32> {
    range.map(move |i| (i ^ set << 24).wrapping_mul(0x9e37_79b1) ^ set)
}

/// Keys on their way into a sketch.
type Keys<'a> = &'a mut dyn Iterator<Item = u32>;

/// One way to count keys: of a stream as it comes, and of two parts of it that share a third of the keys,
/// merged. The estimate, and the bytes of the saved state.
struct Counter<W, M> {
    whole: W,
    merged: M,
}

/// Errors of a counter by the number of keys: of the stream, then of merged parts, where that is asked for.
fn count<W, M>(counter: &Counter<W, M>, n: u32, trials: u32) -> [Errors; 2]
where
    W: Fn(Keys<'_>) -> (f64, usize),
    M: Fn([Keys<'_>; 2]) -> (f64, usize),
{
    let mut errors = [Errors::default(), Errors::default()];
    for set in 0..trials {
        let (estimate, bytes) = (counter.whole)(&mut keys(set, 0..n));
        errors[0].add(estimate, f64::from(n), bytes);
        if n < MANY {
            let (a, b) = (&mut keys(set, 0..n / 3 * 2), &mut keys(set, n / 3..n));
            let (estimate, bytes) = (counter.merged)([a, b]);
            errors[1].add(estimate, f64::from(n), bytes);
        }
    }
    errors
}

/// Sets that are tried: more where they cost little.
fn sets(trials: u32, n: u32) -> u32 {
    if n <= 100_000 { trials * 5 } else { trials }
}

fn counted<S: Sketch<4>>(sketch: &S) -> (f64, usize) {
    (sketch.cardinality().unwrap().estimate, save(sketch).len())
}

/// A sketch of ours.
fn with_ours<S: Sketch<4>>(make: &dyn Fn() -> S, n: u32, trials: u32) -> [Errors; 2] {
    let fill = |keys: Keys<'_>| {
        let mut sketch = make();
        keys.for_each(|k| sketch.update(&k.to_le_bytes(), 1));
        sketch
    };
    let whole = |keys: Keys<'_>| counted(&fill(keys));
    let merged = |[a, b]: [Keys<'_>; 2]| {
        let mut sketch = fill(a);
        sketch.merge(&fill(b)).unwrap();
        counted(&sketch)
    };
    count(&Counter { whole, merged }, n, trials)
}

fn with_hll(lg_k: u8, bits: HllType, n: u32, trials: u32) -> [Errors; 2] {
    let fill = |keys: Keys<'_>| {
        let mut sketch = HllSketch::new(lg_k, bits).unwrap();
        keys.for_each(|k| sketch.update(k));
        sketch
    };
    let whole = |keys: Keys<'_>| {
        let sketch = fill(keys);
        (sketch.estimate(), sketch.serialize().len())
    };
    let merged = |[a, b]: [Keys<'_>; 2]| {
        let mut union = HllUnion::new(lg_k).unwrap();
        union.update(&fill(a));
        union.update(&fill(b));
        let sketch = union.to_sketch(bits);
        (sketch.estimate(), sketch.serialize().len())
    };
    count(&Counter { whole, merged }, n, trials)
}

fn with_cpc(lg_k: u8, n: u32, trials: u32) -> [Errors; 2] {
    let fill = |keys: Keys<'_>| {
        let mut sketch = CpcSketch::new(lg_k).unwrap();
        keys.for_each(|k| sketch.update(k));
        sketch
    };
    let whole = |keys: Keys<'_>| {
        let sketch = fill(keys);
        (sketch.estimate(), sketch.serialize().len())
    };
    let merged = |[a, b]: [Keys<'_>; 2]| {
        let mut union = CpcUnion::new(lg_k).unwrap();
        union.update(&fill(a)).unwrap();
        union.update(&fill(b)).unwrap();
        let sketch = union.to_sketch();
        (sketch.estimate(), sketch.serialize().len())
    };
    count(&Counter { whole, merged }, n, trials)
}

/// Bytes that a CPC sketch takes in memory after so many keys.
fn cpc_memory(lg_k: u8, n: u32) -> usize {
    let mut sketch = CpcSketch::new(lg_k).unwrap();
    (0..n).for_each(|k| sketch.update(k));
    sketch.estimated_size()
}

fn cardinality(trials: u32, most: u32) {
    println!(
        "\nDistinct keys: root mean square of the relative error of {trials} sets (five times as many up to 100,000 keys), mean length of the saved state."
    );
    println!(
        "Each cell: of the stream as it came; of two parts of it that share a third of the keys, merged.\n"
    );
    head(&[
        "theirs",
        "in memory",
        "keys",
        "theirs: stream; merged",
        "exaloglog",
        "exaloglog-hip",
        "exaloglog-hip, 14 below",
    ]);
    let both = |e: &[Errors; 2]| format!("{}; {}", e[0].text(), e[1].text());
    for n in CARDINALITIES.into_iter().filter(|n| *n <= most) {
        let trials = sets(trials, n);
        let line = |name: &str, bytes: usize, theirs: [Errors; 2]| {
            let size = Size::Memory(bytes);
            row(&[
                name.to_owned(),
                format!("{bytes} B"),
                n.to_string(),
                both(&theirs),
                both(&with_ours(&|| ExaLogLog::<4>::sized(size, 1).unwrap(), n, trials)),
                both(&with_ours(&|| ExaLogLogHip::<4>::sized(size, 1).unwrap(), n, trials)),
                both(&with_ours(&|| ExaLogLogHip::<4>::sized_below(size, 14, 1).unwrap(), n, trials)),
            ]);
        };
        line("HLL, 4 bits", 512, with_hll(10, HllType::Hll4, n, trials));
        line("HLL, 4 bits", 2048, with_hll(12, HllType::Hll4, n, trials));
        line("HLL, 8 bits", 1024, with_hll(10, HllType::Hll8, n, trials));
        line("CPC", cpc_memory(10, n), with_cpc(10, n, trials));
        line("CPC", cpc_memory(12, n), with_cpc(12, n, trials));
    }
    println!(
        "\nAt equal bytes saved: registers of exaloglog-hip (14 below) and of exaloglog, such that saved states have no more bytes.\n"
    );
    head(&["CPC", "keys", "theirs: stream; merged", "exaloglog-hip", "exaloglog"]);
    for (lg_k, wide, plain) in [(10, 524, 274), (12, 2096, 1096)] {
        for n in CARDINALITIES.into_iter().filter(|n| *n <= most) {
            let trials = sets(trials, n);
            row(&[
                format!("2^{lg_k}"),
                n.to_string(),
                both(&with_cpc(lg_k, n, trials)),
                both(&with_ours(&|| ExaLogLogHip::<4>::new(wide, 14, 1).unwrap(), n, trials)),
                both(&with_ours(&|| ExaLogLog::<4>::new(plain, 1).unwrap(), n, trials)),
            ]);
        }
    }
}

/// Flow numbers, Zipf-distributed with exponent 1.1 over 700,000.
fn zipf(updates: usize, seed: u64) -> Vec<u32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let zipf = Zipf::new(700_000.0, 1.1).unwrap();
    (0..updates).map(|_| (zipf.sample(&mut rng) as u32).wrapping_mul(0x9e37_79b1)).collect()
}

fn truth(flows: &[u32]) -> (HashMap<u32, u64>, Vec<(u64, u32)>) {
    let mut truth = HashMap::new();
    flows.iter().for_each(|f| *truth.entry(*f).or_insert(0) += 1);
    let mut top: Vec<(u64, u32)> = truth.iter().map(|(k, v)| (*v, *k)).collect();
    top.sort_unstable_by(|a, b| b.cmp(a));
    (truth, top)
}

/// The heaviest flows by either, of which each is asked for a hundred.
fn top(trials: u32) {
    println!(
        "\nThe 100 heaviest of 2,000,000 updates, Zipf 1.1: how many of the 100 that are named are among them, and the mean error of their sizes.\n"
    );
    head(&["memory", "frequent items", "their error", "Space-Saving", "its error"]);
    let trials = trials.div_ceil(20);
    for places in [128, 256, 512, 1024, 2048] {
        let memory = places * 18;
        let (mut right, mut off) = ([0usize; 2], [0.0; 2]);
        for seed in 0..u64::from(trials) {
            let stream = zipf(2_000_000, seed);
            let (sizes, top) = truth(&stream);
            // Of equal weights either will do.
            let least = top[99].0;
            let mut judge = |who: usize, named: Vec<(u32, u64)>| {
                right[who] += named.iter().filter(|(k, _)| sizes[k] >= least).count();
                let error = |(k, v): &(u32, u64)| v.abs_diff(sizes[k]) as f64 / sizes[k] as f64;
                off[who] += named.iter().map(error).sum::<f64>() / named.len() as f64;
            };
            let mut theirs = FrequentItemsSketch::<u32>::new(places).unwrap();
            stream.iter().for_each(|f| theirs.update(*f));
            let mut named: Vec<(u32, u64)> = theirs
                .frequent_items_with_threshold(datasketches::frequencies::ErrorType::NoFalseNegatives, 0)
                .iter()
                .map(|r| (*r.item(), r.estimate()))
                .collect();
            named.sort_by_key(|(_, v)| std::cmp::Reverse(*v));
            named.truncate(100);
            judge(0, named);
            let mut mine = SpaceSaving::<4>::sized(Size::Memory(memory), seed).unwrap();
            stream.iter().for_each(|f| mine.update(&f.to_le_bytes(), 1));
            let named = mine.heavy_hitters(Want { threshold: 1, top: 100 }).unwrap();
            judge(1, named.iter().map(|f| (u32::from_le_bytes(f.key), f.size.estimate)).collect());
        }
        let of = |who: usize| format!("{:.1}", right[who] as f64 / f64::from(trials));
        let error = |who: usize| format!("{:.2} %", off[who] / f64::from(trials) * 100.0);
        row(&[format!("{memory} B"), of(0), error(0), of(1), error(1)]);
    }
}

fn sizes() {
    println!("\nSizes of flows by Count-Min, 2,000,000 updates, Zipf 1.1: mean error.\n");
    head(&["memory", "theirs", "ours"]);
    let stream = zipf(2_000_000, 1);
    let (sizes, _) = truth(&stream);
    for memory in [1usize << 16, 1 << 18, 1 << 20] {
        // Its counters have 64 bits: half as many in the same memory.
        let mut theirs = CountMinSketch::<u64>::new(4, (memory / 32) as u32).unwrap();
        let mut mine =
            CountMin::<4>::new(CountMinParams { rows: 4, width: memory / 16, keep: 0 }, 1).unwrap();
        stream.iter().for_each(|f| theirs.update(f));
        stream.iter().for_each(|f| mine.update(&f.to_le_bytes(), 1));
        let mean = |of: &dyn Fn(u32) -> u64| {
            sizes.iter().map(|(k, v)| of(*k).abs_diff(*v) as f64).sum::<f64>() / sizes.len() as f64
        };
        let of_mine = mean(&|k| mine.flow_size(&k.to_le_bytes()).unwrap().estimate);
        row(&[
            format!("{memory} B"),
            format!("{:.2}", mean(&|k| theirs.estimate(k))),
            format!("{of_mine:.2}"),
        ]);
    }
}

fn main() {
    let mut words: Vec<String> = std::env::args().skip(1).filter(|w| w != "--bench").collect();
    let mut number = |name: &str, usual: u32| match words.iter().position(|w| w == name) {
        Some(at) => words.drain(at..=at + 1).next_back().and_then(|n| n.parse().ok()).expect("a number"),
        None => usual,
    };
    let (trials, most) = (number("--trials", 200), number("--keys", MANY));
    let wanted = |table: &str| words.is_empty() || words.iter().any(|w| w == table);
    if wanted("cardinality") {
        cardinality(trials, most);
    }
    if wanted("top") {
        top(trials);
    }
    if wanted("sizes") {
        sizes();
    }
}
