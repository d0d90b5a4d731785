//! Bounds hold as often as stated: for each sketch, question, load, memory and length of keys, over many
//! seeds, the share of answers whose bounds exclude the truth is no greater than stated, but for what a
//! binomial distribution leaves to chance.

use std::collections::BTreeMap;

use crate::common::{bursts, entropy, key, truth, zipf};
use slipstream_sketch::{
    Bounds, Fm, LinearCounting, Mrac, QueryError, RevSketch, Size, Sketch, TwoLevel, UnivMon, Update, Want,
};

/// Answers of one kind: how many there were, and how many had the truth within their bounds.
#[derive(Default)]
struct Tally {
    held: u64,
    all: u64,
    sum: f64,
}

impl Tally {
    fn add<T: Copy + PartialOrd + Into<f64>>(&mut self, got: Bounds<T>, truth: T) {
        assert!(got.lower <= got.estimate && got.estimate <= got.upper, "bounds beside the estimate");
        self.see(got.lower <= truth && truth <= got.upper, got.estimate.into() - truth.into());
    }

    fn see(&mut self, held: bool, off: f64) {
        self.held += u64::from(held);
        self.all += 1;
        self.sum += off;
    }

    /// The mean error.
    fn bias(&self) -> f64 {
        self.sum / self.all as f64
    }

    /// Says that the share that held can be the stated one: three standard deviations below it is too far.
    fn check(&self, stated: f64, what: &str) {
        let (n, held) = (self.all as f64, self.held as f64);
        let margin = 3.0 * (n * stated * (1.0 - stated)).sqrt();
        assert!(held >= n * stated - margin, "{what}: {} of {} hold, stated {stated}", self.held, self.all);
    }
}

/// A number of distinct keys in `cells` cells, by seed: bounds of the cardinality, and its bias in standard
/// errors.
fn cardinality<const N: usize>(
    cells: usize,
    flows: u64,
    seeds: u64,
    make: impl Fn(u64) -> Box<dyn Sketch<N>>,
) -> Tally {
    let mut tally = Tally::default();
    for seed in 0..seeds {
        let mut s = make(seed);
        (0..flows).for_each(|i| s.update(&key(i + seed * 1_000_003), 1));
        match s.cardinality() {
            Ok(got) => tally.add(got, flows as f64),
            Err(QueryError::Saturated { .. }) if s.is_saturated() => tally.see(true, 0.0),
            Err(other) => panic!("{cells} cells, {flows} flows: {other}"),
        }
    }
    tally
}

/// From a tenth of a key to hundreds a bitmap, in few bitmaps and in many.
fn fm_at_every_fill<const N: usize>() {
    for maps in [4usize, 16, 64, 256, 1024] {
        for load in [0.1, 0.25, 0.5, 0.8, 1.0, 1.3, 1.6, 2.0, 3.0, 4.0, 6.0, 10.0, 30.0, 200.0] {
            let flows = ((maps as f64 * load) as u64).max(1);
            let seeds = if flows > 20_000 { 60 } else { 400 };
            let tally =
                cardinality::<N>(maps, flows, seeds, |seed| Box::new(Fm::<N>::new(maps, seed).unwrap()));
            let what = format!("fm, {N} bytes, {maps} bitmaps, {flows} flows");
            tally.check(0.95, &what);
            let (bias, error) = (tally.bias() / flows as f64, 0.65 / ((maps * seeds as usize) as f64).sqrt());
            assert!(bias.abs() < 4.0 * error + 0.5 / (maps as f64).powi(2), "{what}: a bias of {bias}");
        }
    }
}

#[test]
fn fm_holds_at_every_fill() {
    fm_at_every_fill::<4>();
    fm_at_every_fill::<13>();
}

/// An accuracy that was asked for is kept, whatever the fill that the number of flows comes to.
#[test]
fn fm_keeps_the_accuracy_that_it_was_sized_for() {
    for (error, flows) in [(0.02, 4_000u64), (0.02, 9_500), (0.03, 2_700), (0.05, 5_000), (0.1, 300)] {
        let size = Size::Accuracy { error, confidence: 0.95, flows };
        let mut tally = Tally::default();
        for seed in 0..100 {
            let mut s = Fm::<4>::sized(size, seed).unwrap();
            (0..flows).for_each(|i| s.update(&key(i + seed * 1_000_003), 1));
            let off = s.cardinality().unwrap().estimate / flows as f64 - 1.0;
            tally.see(off.abs() <= error, off);
        }
        tally.check(0.95, &format!("fm for {error} of {flows}"));
    }
}

/// Linear counting, and MRAC's number of flows, which is told the same way.
#[test]
fn linear_counting_holds_at_every_fill() {
    for words in [1usize, 4, 16, 64] {
        for load in [0.01, 0.1, 0.3, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0] {
            let flows = ((words as f64 * 64.0 * load) as u64).max(1);
            let tally = cardinality::<4>(words * 64, flows, 400, |s| {
                Box::new(LinearCounting::<4>::new(words, s).unwrap())
            });
            tally.check(0.95, &format!("linear counting, {} bits, {flows} flows", words * 64));
            let tally = cardinality::<8>(words * 64, flows, 400, |s| {
                Box::new(Mrac::<8>::new(words * 64, s).unwrap())
            });
            tally.check(0.95, &format!("mrac, {} counters, {flows} flows", words * 64));
        }
    }
}

/// A stream and what is true of it.
struct Load<const N: usize> {
    name: &'static str,
    stream: Vec<Update<N>>,
}

fn loads<const N: usize>() -> Vec<Load<N>> {
    let of = |name, stream| Load { name, stream };
    let few = (0..400).map(|i| Update { key: key(i), weight: 1 + (i % 7) as u32 * 40 }).collect();
    let ones = (0..60_000).map(|i| Update { key: key(i), weight: 1 }).collect();
    let clusters =
        (0..20_000u64).map(|i| Update { key: key(i), weight: if i % 10 == 0 { 50 } else { 3 } }).collect();
    // A few flows that are nearly everything, over many of one packet.
    let elephants = (0..40_000u64)
        .map(|i| Update { key: key(i), weight: if i % 1000 == 999 { 20_000 } else { 1 } })
        .collect();
    vec![
        of("few flows", few),
        of("flows of one packet", ones),
        of("clusters", clusters),
        of("elephants", elephants),
        of("zipf 1.0", zipf(150_000, 60_000, 1.0, 1)),
        of("zipf 1.3", zipf(150_000, 60_000, 1.3, 2)),
        of("bursts", bursts(100_000, 30_000, 6.0, 3)),
        of("very many of about four", zipf(400_000, 100_000, 0.0, 4)),
    ]
}

/// UnivMon at every fill, from budgets that hold all flows to such that hold hardly any.
fn univmon_holds<const N: usize>(memories: &[usize]) {
    for Load { name, stream } in loads::<N>() {
        let sizes = truth(&stream);
        let (h, n) = (entropy(&sizes), sizes.len() as f64);
        let f2: f64 = sizes.values().map(|s| (*s as f64).powi(2)).sum();
        for memory in memories {
            let what = |question: &str| format!("univmon, {N} bytes, {memory}, {name}: {question}");
            let (mut number, mut bits, mut moment, mut listed, mut named) =
                (Tally::default(), Tally::default(), Tally::default(), Tally::default(), Tally::default());
            for seed in 0..20 {
                let mut s = UnivMon::<N>::sized(Size::Memory(*memory), seed).unwrap();
                s.update_all(&stream);
                match s.cardinality() {
                    Ok(got) => number.add(got, n),
                    Err(QueryError::Saturated { at_least, .. }) => number.see(at_least <= n, 0.0),
                    Err(other) => panic!("{other}"),
                }
                let got = s.entropy().unwrap();
                // Only the last digits of sums differ where all flows are known.
                bits.add(Bounds { lower: got.lower - 1e-9, upper: got.upper + 1e-9, ..got }, h);
                let got = s.second_moment().unwrap();
                moment.add(
                    Bounds { lower: got.lower * (1.0 - 1e-9), upper: got.upper * (1.0 + 1e-9), ..got },
                    f2,
                );
                let hitters = s.heavy_hitters(Want { threshold: 1, top: 20 }).unwrap();
                for flow in &hitters {
                    let size = sizes.get(&flow.key).copied().unwrap_or(0);
                    listed.see(
                        flow.size.lower <= size && size <= flow.size.upper,
                        flow.size.estimate as f64 - size as f64,
                    );
                }
                for (key, size) in sizes.iter().step_by(sizes.len() / 10) {
                    let got = s.flow_size(key).unwrap();
                    named.see(got.lower <= *size && *size <= got.upper, got.estimate as f64 - *size as f64);
                }
            }
            number.check(0.95, &what("cardinality"));
            bits.check(0.95, &what("entropy"));
            assert!(
                *memory < 1 << 20 || bits.bias().abs() < 0.05,
                "{}: {} bits",
                what("entropy"),
                bits.bias()
            );
            moment.check(0.95, &what("second moment"));
            listed.check(0.95, &what("heavy hitters"));
            named.check(0.95, &what("flow size"));
        }
    }
}

#[test]
fn univmon_holds_at_every_fill() {
    univmon_holds::<4>(&[12 << 10, 64 << 10, 256 << 10, 1 << 20]);
    univmon_holds::<13>(&[64 << 10]);
}

/// Changes of UnivMon, between epochs of the same ranks and other keys.
#[test]
fn univmon_holds_for_changes() {
    let earlier = zipf::<4>(100_000, 40_000, 1.0, 1);
    let mut later = zipf::<4>(100_000, 40_000, 1.0, 2);
    later.iter_mut().filter(|u| u.key[0] & 1 == 1).for_each(|u| u.key[1] ^= 0x55);
    let (before, after) = (truth(&earlier), truth(&later));
    for memory in [32 << 10, 256 << 10, 4 << 20] {
        let mut tally = Tally::default();
        for seed in 0..12 {
            let make = || UnivMon::<4>::sized(Size::Memory(memory), seed).unwrap();
            let (mut a, mut b) = (make(), make());
            a.update_all(&earlier);
            b.update_all(&later);
            let of =
                |sizes: &BTreeMap<[u8; 4], u64>, key: &[u8; 4]| sizes.get(key).copied().unwrap_or(0) as i64;
            let listed = b.heavy_changes(&a, Want { threshold: 1, top: 20 }).unwrap();
            assert!(listed.len() >= 5, "{memory}: {} changes", listed.len());
            for c in listed {
                let truth = of(&after, &c.key) - of(&before, &c.key);
                tally.see(
                    c.change.lower <= truth && truth <= c.change.upper,
                    (c.change.estimate - truth) as f64,
                );
            }
        }
        tally.check(0.95, &format!("univmon, changes in {memory}"));
    }
}

/// Changes of the promised size in either direction, among many small ones: hardly any is lost (those that
/// opposite ones hide in two tables), and bounds hold for what is listed. Some share a counter of a
/// verification row with an opposite one.
fn rev_sketch_finds_what_it_promises<const N: usize>(bits: u32, planted: u64, seeds: u64) {
    let (mut promised, mut lost, mut tally) = (0, 0, Tally::default());
    for seed in 0..seeds {
        let make = || RevSketch::<N>::new(bits, seed).unwrap();
        let (mut a, mut b) = (make(), make());
        let earlier = zipf::<N>(60_000, 20_000, 0.9, seed);
        let mut later = zipf::<N>(60_000, 20_000, 0.9, seed + 1000);
        // The same ranks in both, of other keys.
        later.iter_mut().for_each(|u| u.key[1] ^= 0x55);
        a.update_all(&earlier);
        b.update_all(&later);
        let size = b.promised(&a).unwrap() * 3;
        let flows: Vec<[u8; N]> = (0..planted).map(|i| key(1_000_000 + 7 * i + 100_003 * seed)).collect();
        flows
            .iter()
            .enumerate()
            .for_each(|(i, f)| if i % 2 == 0 { b.update(f, size) } else { a.update(f, size) });
        assert!(b.promised(&a).unwrap() <= size, "the test plants changes below the threshold");
        let (before, after) = (truth(&earlier), truth(&later));
        let listed = b.heavy_changes(&a, Want { threshold: 1, top: usize::MAX }).unwrap();
        let found: BTreeMap<[u8; N], i64> = listed.iter().map(|c| (c.key, c.change.estimate)).collect();
        promised += planted;
        lost += flows.iter().filter(|f| !found.contains_key(*f)).count() as u64;
        for c in &listed {
            let of = |sizes: &BTreeMap<[u8; N], u64>| sizes.get(&c.key).copied().unwrap_or(0) as i64;
            let planted = match flows.iter().position(|f| *f == c.key) {
                Some(i) if i % 2 == 0 => size as i64,
                Some(_) => -(size as i64),
                None => 0,
            };
            let truth = of(&after) - of(&before) + planted;
            tally.see(c.change.lower <= truth && truth <= c.change.upper, (c.change.estimate - truth) as f64);
        }
    }
    let what = format!("rev-sketch, {N} bytes, 2^{bits} counters a table");
    assert!(lost * 1000 <= promised, "{what}: {lost} of {promised} changes are lost");
    tally.check(0.95, &format!("{what}: heavy changes"));
}

#[test]
fn rev_sketch_finds_every_change_that_it_promises() {
    rev_sketch_finds_what_it_promises::<4>(12, 24, 12);
    rev_sketch_finds_what_it_promises::<4>(14, 80, 2);
    rev_sketch_finds_what_it_promises::<8>(12, 12, 4);
}

/// Sources of 100 to 2,000 counterparts among thousands of few, in the sketch for a size: errors of those
/// that are listed, relative, and whether bounds hold.
fn spreads(size: Size, seeds: u64, pairs: u64) -> (Vec<f64>, Tally) {
    let pair = |source: u64, counterpart: u64| {
        let (mut pair, [a, b]) = ([0; 8], [key::<4>(source), key::<4>(counterpart)]);
        pair[..4].copy_from_slice(&a);
        pair[4..].copy_from_slice(&b);
        pair
    };
    let (mut errors, mut tally) = (Vec::new(), Tally::default());
    for seed in 0..seeds {
        let mut s = TwoLevel::<8>::sized(size, seed, 4).unwrap();
        let spread = |i: u64| 100 + 100 * i;
        let base = seed * 1_000_003;
        (0..20).for_each(|i| (0..spread(i)).for_each(|c| s.update(&pair(base + i, c * 3 + i), 1)));
        (0..pairs).for_each(|i| s.update(&pair(base + 1_000 + i % (pairs / 3), i), 1));
        let listed = s.superspreaders(4, Want { threshold: 60, top: 100 }).unwrap();
        for i in 0..20 {
            let key = pair(base + i, 0);
            let Some(flow) = listed.iter().find(|f| f.key[..4] == key[..4]) else { continue };
            let truth = spread(i);
            errors.push(flow.size.estimate as f64 / truth as f64 - 1.0);
            tally.see(flow.size.lower <= truth && truth <= flow.size.upper, 0.0);
        }
    }
    (errors, tally)
}

#[test]
fn two_level_holds_and_is_unbiased() {
    for (memory, pairs) in
        [(64 << 10, 3_000), (256 << 10, 6_000), (256 << 10, 60_000), (1 << 20, 30_000), (4 << 20, 30_000)]
    {
        let (errors, tally) = spreads(Size::Memory(memory), 5, pairs);
        let bias = errors.iter().sum::<f64>() / errors.len() as f64;
        let rms = (errors.iter().map(|e| e * e).sum::<f64>() / errors.len() as f64).sqrt();
        let what = format!("two-level in {memory}, {pairs} pairs of others");
        tally.check(0.95, &what);
        assert!(bias.abs() < 0.03 + 4.0 * rms / (errors.len() as f64).sqrt(), "{what}: a bias of {bias}");
    }
}

#[test]
fn two_level_keeps_the_accuracy_that_it_was_sized_for_or_says_that_it_cannot() {
    let mut last = usize::MAX;
    for error in [0.15, 0.2, 0.3] {
        let size = Size::Accuracy { error, confidence: 0.95, flows: 50_000 };
        let memory = TwoLevel::<8>::sized(size, 0, 4).unwrap().memory_bytes();
        assert!(memory < last, "{error}: {memory} bytes, no less than for a smaller error");
        last = memory;
        let (errors, _) = spreads(size, 4, 29_000);
        let mut within = Tally::default();
        errors.iter().for_each(|e| within.see(e.abs() <= error, *e));
        within.check(0.95, &format!("two-level for {error}"));
    }
    for (error, confidence) in [(0.05, 0.95), (0.12, 0.95), (0.15, 0.99)] {
        let refused = TwoLevel::<8>::sized(Size::Accuracy { error, confidence, flows: 50_000 }, 0, 4);
        let told = refused.map(|_| ()).unwrap_err().to_string();
        assert!(told.contains("the least is"), "{told}");
    }
}
