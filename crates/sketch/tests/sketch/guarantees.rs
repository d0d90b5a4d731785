//! The promise of each sketch, over many seeds: the share of answers within the bound, not one lucky run.

use crate::common::{bursts, entropy, key, sketch, sorted, truth, zipf};
use slipstream_sketch::{
    Bounds, CountMin, CountMinParams, Exact, Fm, Kind, LinearCounting, Mrac, QueryError, RevSketch, Size,
    Sketch, SpaceSaving, TwoLevel, TwoLevelParams, UnivMon, UnivMonParams, Update, Want,
};

fn want(top: usize) -> Want {
    Want { threshold: 1, top }
}

/// The share of flows, over all seeds, whose size is below the lower bound; none may be above the upper one.
fn below_the_bound(seeds: u64, stream: &[Update<4>], make: impl Fn(u64) -> Box<dyn Sketch<4>>) -> f64 {
    let sizes = truth(stream);
    let (mut keys, mut beyond) = (0u64, 0u64);
    for seed in 0..seeds {
        let mut s = make(seed);
        s.update_all(stream);
        for (key, size) in &sizes {
            let got = s.flow_size(key).unwrap();
            assert!(got.estimate >= *size && got.upper >= *size);
            keys += 1;
            beyond += u64::from(got.lower > *size);
        }
    }
    beyond as f64 / keys as f64
}

/// Of at least e⁻ᵈ: never too small, and too large by more than (e/w)·N for at most a share of e⁻ᵈ of keys.
#[test]
fn count_min_keeps_its_bound() {
    let stream = zipf::<4>(60_000, 20_000, 1.0, 1);
    for rows in [1, 2, 4, 6] {
        let params = CountMinParams { rows, width: 512, keep: 0 };
        let share = below_the_bound(30, &stream, |seed| Box::new(CountMin::new(params, seed).unwrap()));
        assert!(share <= (-(rows as f64)).exp(), "{rows} rows: {share} of keys are beyond the bound");
    }
}

#[test]
fn count_min_lists_the_heavy() {
    let stream = zipf::<13>(200_000, 50_000, 1.1, 2);
    let sizes = truth(&stream);
    for seed in 0..10 {
        let mut s = sketch::<13>(Kind::CountMin, 400_000, seed);
        s.update_all(&stream);
        let got = s.heavy_hitters(want(20)).unwrap();
        let true_top = sorted(&sizes);
        let found = true_top[..20].iter().filter(|t| got.iter().any(|g| g.key == t.0)).count();
        assert!(found >= 19, "seed {seed}: {found} of 20");
        assert!(got.is_sorted_by(|a, b| a.size.estimate >= b.size.estimate));
    }
}

/// Every key of more than N/m is kept, and the error of every key is at most N/m; in any order, also after
/// merges.
#[test]
fn space_saving_keeps_its_bounds() {
    for seed in 0..40 {
        let m = 100;
        let stream = if seed % 2 == 0 {
            zipf::<4>(40_000, 5_000, 1.0, seed)
        } else {
            bursts(40_000, 5_000, 6.0, seed)
        };
        let sizes = truth(&stream);
        let mut one = SpaceSaving::<4>::new(m, seed).unwrap();
        one.update_all(&stream);
        let mut merged = SpaceSaving::<4>::new(m, seed).unwrap();
        for part in stream.chunks(9_000) {
            let mut shard = SpaceSaving::<4>::new(m, seed).unwrap();
            shard.update_all(part);
            merged.merge(&shard).unwrap();
        }
        for s in [&one, &merged] {
            let n = s.weight();
            assert_eq!(n, 40_000);
            let got = s.heavy_hitters(want(m)).unwrap();
            for (key, size) in &sizes {
                let bounds = s.flow_size(key).unwrap();
                assert!(bounds.lower <= *size && *size <= bounds.upper, "{bounds:?} of {size}");
                assert!(bounds.upper - bounds.lower <= n / m as u64, "{bounds:?}: an error beyond N/m");
                if *size > n / m as u64 {
                    assert!(got.iter().any(|g| g.key == *key), "a flow of {size} is not kept");
                }
            }
        }
    }
}

/// 0.78/√m, and unbiased, from a few keys to a million.
#[test]
fn fm_errs_as_stated() {
    for n in [10u64, 300, 3_000, 30_000, 300_000] {
        let (maps, seeds) = (256, 40);
        let (mut squares, mut sum, mut inside) = (0.0, 0.0, 0);
        for seed in 0..seeds {
            let mut s = Fm::<4>::new(maps, seed).unwrap();
            (0..n).for_each(|i| s.update(&key(i), 1));
            let got = s.cardinality().unwrap();
            let error = got.estimate / n as f64 - 1.0;
            (squares, sum) = (squares + error * error, sum + error);
            inside += u32::from(got.lower <= n as f64 && n as f64 <= got.upper);
        }
        let (rms, bias) = ((squares / seeds as f64).sqrt(), sum / seeds as f64);
        let stated = 0.78 / (maps as f64).sqrt();
        assert!(rms < 1.35 * stated, "{n}: an error of {rms} instead of {stated}");
        assert!(bias.abs() < 0.03, "{n}: a bias of {bias}");
        assert!(inside * 10 >= seeds as u32 * 8, "{n}: {inside} of {seeds} within the bounds");
    }
    // The paper's four bitmaps: a coarse answer, but one.
    let mut s = Fm::<4>::new(4, 1).unwrap();
    assert_eq!(s.cardinality().unwrap().estimate, 0.0);
    (0..100_000).for_each(|i| s.update(&key(i), 1));
    let got = s.cardinality().unwrap().estimate;
    assert!((30_000.0..300_000.0).contains(&got), "{got}");
}

#[test]
fn linear_counting_errs_as_the_textbook_says() {
    for n in [100u64, 1_000, 5_000, 16_000] {
        let (bits, seeds) = (4096.0f64, 60);
        let t = n as f64 / bits;
        let stated = (bits * (t.exp() - t - 1.0)).sqrt() / n as f64;
        let (mut squares, mut inside) = (0.0, 0);
        for seed in 0..seeds {
            let mut s = LinearCounting::<4>::new(64, seed).unwrap();
            (0..n).for_each(|i| s.update(&key(i), 1));
            let got = s.cardinality().unwrap();
            squares += (got.estimate / n as f64 - 1.0).powi(2);
            inside += u32::from(got.lower <= n as f64 && n as f64 <= got.upper);
        }
        let rms = (squares / f64::from(seeds as u32)).sqrt();
        assert!(rms < 1.3 * stated && rms > 0.7 * stated, "{n}: {rms} instead of {stated}");
        assert!(inside * 10 >= seeds as u32 * 8, "{n}: {inside} of {seeds}");
    }
}

#[test]
fn a_full_bitmap_is_an_error_not_infinity() {
    let mut s = LinearCounting::<4>::new(1, 0).unwrap();
    (0..10_000).for_each(|i| s.update(&key(i), 1));
    let Err(QueryError::Saturated { at_least, .. }) = s.cardinality() else { panic!("it answered") };
    assert!(at_least.is_finite() && s.is_saturated());
}

/// Accuracies that were asked for are kept.
#[test]
fn sized_by_accuracy() {
    let size = Size::Accuracy { error: 0.02, confidence: 0.95, flows: 20_000 };
    let (mut fm, mut linear) = (0, 0);
    for seed in 0..40 {
        let within = |s: &mut dyn Sketch<4>| {
            (0..20_000).for_each(|i| s.update(&key(i), 1));
            (s.cardinality().unwrap().estimate / 20_000.0 - 1.0).abs() <= 0.02
        };
        fm += u32::from(within(&mut Fm::<4>::sized(size, seed).unwrap()));
        linear += u32::from(within(&mut LinearCounting::<4>::sized(size, seed).unwrap()));
    }
    assert!(fm >= 34 && linear >= 34, "within 2 %: {fm} and {linear} of 40");
}

/// Weighted mean relative difference of the distribution against the true one, at a flow for every second
/// counter, one a counter, and two.
#[test]
fn mrac_tells_the_distribution() {
    let stream = zipf::<4>(400_000, 60_000, 1.0, 3);
    let sizes = truth(&stream);
    let mut exact = std::collections::BTreeMap::new();
    sizes.values().for_each(|s| *exact.entry(*s).or_insert(0.0) += 1.0);
    for (load, limit) in [(0.5, 0.10), (1.0, 0.12), (2.0, 0.3)] {
        for seed in 0..8 {
            let mut s = Mrac::<4>::new((sizes.len() as f64 / load) as usize, seed).unwrap();
            s.update_all(&stream);
            let got: std::collections::BTreeMap<u64, f64> =
                s.size_distribution().unwrap().into_iter().collect();
            let all: std::collections::BTreeSet<u64> = got.keys().chain(exact.keys()).copied().collect();
            let of = |m: &std::collections::BTreeMap<u64, f64>, k| m.get(&k).copied().unwrap_or(0.0);
            let apart: f64 = all.iter().map(|k| (of(&got, *k) - of(&exact, *k)).abs()).sum();
            let sum: f64 = all.iter().map(|k| of(&got, *k) + of(&exact, *k)).sum();
            let wmrd = 2.0 * apart / sum;
            assert!(wmrd < limit, "load {load}, seed {seed}: WMRD {wmrd}");
            let flows: f64 = got.values().sum();
            assert!((flows / sizes.len() as f64 - 1.0).abs() < 0.05, "{flows} flows");
        }
    }
}

/// Sizes as Count-Min with six rows: upper is certain, lower too great for at most a share of e⁻⁶.
#[test]
fn rev_sketch_keeps_the_bound_of_sizes() {
    let stream = zipf::<4>(60_000, 20_000, 1.0, 6);
    let share = below_the_bound(20, &stream, |seed| Box::new(RevSketch::new(9, seed).unwrap()));
    assert!(share <= (-6.0f64).exp(), "{share} of keys are beyond the bound");
}

/// Every change above the promised threshold is found, for short and long keys, and what is found is a
/// change.
fn rev_sketch_finds<const N: usize>(planted: u64, background: usize) {
    let (earlier, later) = (zipf(background, 30_000, 1.0, 1), zipf(background, 30_000, 1.0, 2));
    for seed in 0..20 {
        let (mut a, mut b) = (RevSketch::<N>::new(16, seed).unwrap(), RevSketch::<N>::new(16, seed).unwrap());
        a.update_all(&earlier);
        b.update_all(&later);
        let promised = a.promised(&b).unwrap();
        // Planted changes make noise themselves: so many of such a size that they stay above what is
        // promised.
        let size = (promised * 4).max(500);
        let flows: Vec<[u8; N]> = (0..planted).map(|i| key(1_000_000 + i * 7 + seed)).collect();
        for (i, flow) in flows.iter().enumerate() {
            if i % 2 == 0 { b.update(flow, size) } else { a.update(flow, size) }
        }
        assert!(size >= b.promised(&a).unwrap(), "the test plants changes below the threshold");
        let changes = b.heavy_changes(&a, Want { threshold: size / 2, top: usize::MAX }).unwrap();
        for (i, flow) in flows.iter().enumerate() {
            let change = changes.iter().find(|c| c.key == *flow);
            let change = change.unwrap_or_else(|| panic!("seed {seed}: change {i} of {planted} is lost"));
            let true_change = if i % 2 == 0 { size as i64 } else { -(size as i64) };
            assert!((change.change.estimate - true_change).abs() < size as i64 / 3, "{change:?}");
        }
        for change in &changes {
            assert!(
                flows.contains(&change.key) || change.change.estimate.abs() < 2 * size as i64,
                "invented {change:?}"
            );
        }
        assert!(changes.len() <= flows.len() + 20, "{} changes for {}", changes.len(), flows.len());
    }
}

#[test]
fn rev_sketch_finds_every_planted_change() {
    rev_sketch_finds::<4>(20, 100_000);
    rev_sketch_finds::<8>(10, 100_000);
    rev_sketch_finds::<13>(10, 100_000);
    rev_sketch_finds::<37>(6, 50_000);
}

#[test]
fn rev_sketch_lists_heavy_hitters() {
    let stream = zipf::<4>(300_000, 30_000, 1.2, 4);
    let top = sorted(&truth(&stream));
    for seed in 0..5 {
        let mut s = RevSketch::<4>::new(16, seed).unwrap();
        s.update_all(&stream);
        let got = s.heavy_hitters(want(10)).unwrap();
        let found = top[..10].iter().filter(|t| got.iter().any(|g| g.key == t.0)).count();
        assert!(found >= 9, "seed {seed}: {found}");
    }
}

/// Small tables, long keys, and a few flows that are nearly everything: buckets of several of these together
/// spell other keys, which must not be listed; and flows far below their noise must be, once they are taken
/// out.
fn rev_sketch_invents_nothing<const N: usize>(memory: usize) {
    for seed in 0..3u64 {
        let size = |i: u64| match i {
            0..12 => 20_000 - 1_000 * i,
            _ => 700,
        };
        let mut s = RevSketch::<N>::sized(Size::Memory(memory), seed).unwrap();
        (0..20).for_each(|i| s.update(&key(i * 31 + seed), size(i)));
        zipf(5_000, 400, 0.4, seed).iter().for_each(|u| s.update(&u.key, 1));
        let empty = RevSketch::<N>::sized(Size::Memory(memory), seed).unwrap();
        let changes = s.heavy_changes(&empty, want(usize::MAX)).unwrap();
        let hitters = s.heavy_hitters(want(usize::MAX)).unwrap();
        for i in 0..20 {
            let flow = key(i * 31 + seed);
            assert!(hitters.iter().any(|h| h.key == flow), "seed {seed}: flow {i} is not listed");
            let change = changes.iter().find(|c| c.key == flow).map_or(0, |c| c.change.estimate);
            assert!(
                change.unsigned_abs().abs_diff(size(i)) < 150,
                "seed {seed}: {change} instead of {}",
                size(i)
            );
        }
        let others = |k: &[u8; N]| (0..20).all(|i| *k != key(i * 31 + seed));
        let invented = changes.iter().filter(|c| c.change.estimate.abs() > 300 && others(&c.key)).count();
        assert_eq!(invented, 0, "seed {seed}, {N} bytes");
    }
}

/// A few packets less than before are not noise in every bucket.
#[test]
fn rev_sketch_finds_the_smallest_changes() {
    for seed in 0..10 {
        let make = || RevSketch::<4>::sized(Size::Memory(786_432), seed).unwrap();
        let (mut a, mut b) = (make(), make());
        for (flow, before, after) in [(1u64, 5u64, 0u64), (2, 1, 0), (3, 1, 0), (4, 0, 5)] {
            a.update(&key(flow), before);
            b.update(&key(flow), after);
        }
        let mut got: Vec<i64> =
            b.heavy_changes(&a, want(9)).unwrap().iter().map(|c| c.change.estimate).collect();
        got.sort_unstable();
        assert_eq!(got, [-5, -1, -1, 5], "seed {seed}");
    }
}

#[test]
fn rev_sketch_is_not_misled_by_a_few_great_flows() {
    rev_sketch_invents_nothing::<4>(200_000);
    rev_sketch_invents_nothing::<16>(262_144);
    rev_sketch_invents_nothing::<37>(800_000);
}

/// A pair: source, counterpart.
fn pair(source: u32, counterpart: u32) -> [u8; 8] {
    let mut key = [0; 8];
    key[..4].copy_from_slice(&source.wrapping_mul(0x85eb_ca6b).to_be_bytes());
    key[4..].copy_from_slice(&counterpart.to_be_bytes());
    key
}

/// Spreads against the truth, with talkers beside that send a lot to one host.
#[test]
fn two_level_finds_superspreaders_not_talkers() {
    let (mut found, mut inside, mut all, mut squares) = (0, 0, 0, 0.0);
    for seed in 0..10u32 {
        let params = TwoLevelParams { source_len: 4, bits: 16, width: 4096 };
        let mut s = TwoLevel::<8>::new(params, u64::from(seed)).unwrap();
        let spread = |i: u32| 500 + 400 * i;
        for source in 0..20u32 {
            (0..spread(source)).for_each(|c| s.update(&pair(source + seed * 100, c * 3 + source), 1));
        }
        for talker in 0..20u32 {
            s.update(&pair(50_000 + talker, 1), 1_000_000);
        }
        for i in 0..100_000u32 {
            s.update(&pair(1_000_000 + i % 40_000, i), 1);
        }
        let got = s.superspreaders(4, Want { threshold: 300, top: 100 }).unwrap();
        for source in 0..20u32 {
            all += 1;
            let mut key = pair(source + seed * 100, 0);
            key[4..].fill(0);
            let Some(flow) = got.iter().find(|g| g.key == key) else { continue };
            found += 1;
            let true_spread = u64::from(spread(source));
            inside += u32::from(flow.size.lower <= true_spread && true_spread <= flow.size.upper);
            squares += (flow.size.estimate as f64 / true_spread as f64 - 1.0).powi(2);
        }
        for flow in &got {
            let source = u32::from_be_bytes(flow.key[..4].try_into().unwrap());
            assert!(
                !(50_000..50_020).any(|t: u32| t.wrapping_mul(0x85eb_ca6b) == source),
                "a talker is listed"
            );
        }
    }
    assert!(found * 100 >= all * 99, "{found} of {all} found");
    assert!(inside * 100 >= all * 90, "{inside} of {all} within the bounds");
    let rms = (squares / f64::from(found)).sqrt();
    assert!(rms < 0.15, "a relative error of {rms}");
}

/// Sources of `N` / 2 bytes, their spreads by the exact table: those of at least `spread` are found, and of
/// what is listed hardly any was never seen. Parts of long addresses spell many others, which only bitmaps of
/// level two refute.
fn two_level_invents_nothing<const N: usize>(memory: usize, spreaders: u64, spread: u64, threshold: u64) {
    let half = N / 2;
    let pair = |source: u64, counterpart: u64| {
        let mut pair = [0x20; N];
        pair[half - 4..half].copy_from_slice(&key::<4>(source));
        pair[N - 4..].copy_from_slice(&key::<4>(counterpart));
        pair
    };
    let (mut found, mut all, mut listed, mut invented) = (0, 0, 0, 0);
    for seed in 0..6 {
        let mut s = TwoLevel::<N>::sized(Size::Memory(memory), seed, half).unwrap();
        let mut exact = Exact::<N>::new(seed);
        let of = |i: u64| (0..spread).map(move |c| pair(1_000 * seed + i, 7 * c + i));
        let others = (0..10_000).map(|i| pair(1_000_000 + i % 4_000, i));
        for key in (0..spreaders).flat_map(of).chain(others) {
            s.update(&key, 1);
            exact.update(&key, 1);
        }
        let truth = exact.superspreaders(half, want(usize::MAX)).unwrap();
        let got = s.superspreaders(half, Want { threshold, top: usize::MAX }).unwrap();
        for flow in truth.iter().filter(|t| t.size.estimate >= spread) {
            all += 1;
            found += u64::from(got.iter().any(|g| g.key == flow.key));
        }
        listed += got.len();
        invented += got.iter().filter(|g| truth.iter().all(|t| t.key != g.key)).count();
    }
    assert!(found * 100 >= all * 95, "{N} bytes in {memory}, from {threshold}: {found} of {all} found");
    assert!(
        invented * 50 <= listed,
        "{N} bytes in {memory}, from {threshold}: {invented} of {listed} invented"
    );
}

#[test]
fn two_level_lists_no_source_that_was_never_seen() {
    two_level_invents_nothing::<8>(262_144, 20, 500, 1);
    two_level_invents_nothing::<8>(262_144, 20, 500, 200);
    two_level_invents_nothing::<32>(262_144, 4, 500, 200);
    two_level_invents_nothing::<32>(1 << 20, 6, 500, 1);
    two_level_invents_nothing::<32>(4 << 20, 12, 500, 200);
}

/// Entropy and cardinality within 5 % at the memory that the documentation states, and the heaviest flows.
#[test]
fn univmon_answers_within_five_percent() {
    let stream = zipf::<4>(2_000_000, 420_000, 1.02, 5);
    let sizes = truth(&stream);
    assert!((150_000..260_000).contains(&sizes.len()), "{} flows", sizes.len());
    let (h, top) = (entropy(&sizes), sorted(&sizes));
    let f2: f64 = sizes.values().map(|s| (*s as f64).powi(2)).sum();
    let (mut cardinality, mut entropies, mut inside, mut flows, mut flows_inside) = (0, 0, 0, 0, 0);
    let seeds = 10;
    let holds = |got: Bounds<f64>, truth: f64| u32::from(got.lower <= truth && truth <= got.upper);
    for seed in 0..seeds {
        let mut s = UnivMon::<4>::new(UnivMonParams { levels: 8, width: 8192, keep: 4096 }, seed).unwrap();
        s.update_all(&stream);
        assert!(s.memory_bytes() <= 5 << 20, "{}", s.memory_bytes());
        let n = s.cardinality().unwrap().estimate;
        cardinality += u32::from((n / sizes.len() as f64 - 1.0).abs() < 0.05);
        let e = s.entropy().unwrap().estimate;
        entropies += u32::from((e / h - 1.0).abs() < 0.05);
        let got = s.heavy_hitters(want(20)).unwrap();
        let found = top[..20].iter().filter(|t| got.iter().any(|g| g.key == t.0)).count();
        assert!(found >= 19, "seed {seed}: {found} of 20");
        for g in &got {
            let size = sizes[&g.key];
            assert!((g.size.estimate as f64 / size as f64 - 1.0).abs() < 0.1, "{g:?} of {size}");
        }
        inside += holds(s.cardinality().unwrap(), sizes.len() as f64);
        inside += holds(s.entropy().unwrap(), h) + holds(s.second_moment().unwrap(), f2);
        for (key, size) in sizes.iter().step_by(4_000) {
            let got = s.flow_size(key).unwrap();
            flows += 1;
            flows_inside += u64::from(got.lower <= *size && *size <= got.upper);
        }
        assert!((s.second_moment().unwrap().estimate / f2 - 1.0).abs() < 0.1);
    }
    assert!(cardinality >= 9 && entropies >= 9, "within 5 %: {cardinality} and {entropies} of {seeds}");
    assert!(inside * 10 >= seeds as u32 * 3 * 9, "{inside} of {} sums within their bounds", 3 * seeds);
    assert!(flows_inside * 100 >= flows * 99, "{flows_inside} of {flows} sizes within their bounds");
}

#[test]
fn univmon_finds_changes() {
    for seed in 0..5 {
        let make = || UnivMon::<4>::new(UnivMonParams { levels: 6, width: 4096, keep: 512 }, seed).unwrap();
        let (mut a, mut b) = (make(), make());
        a.update_all(&zipf(100_000, 20_000, 1.0, 1));
        b.update_all(&zipf(100_000, 20_000, 1.0, 2));
        (0..10).for_each(|i| b.update(&key(900_000 + i), 4_000));
        let got = b.heavy_changes(&a, want(10)).unwrap();
        let found = (0..10).filter(|i| got.iter().any(|c| c.key == key(900_000 + i))).count();
        assert!(found >= 9, "seed {seed}: {found}");
    }
}

/// A weight that no counter can hold ends at its end, and is told.
#[test]
fn counters_saturate_and_say_so() {
    let mut s = CountMin::<4>::new(CountMinParams { rows: 4, width: 16, keep: 0 }, 0).unwrap();
    for _ in 0..3 {
        s.update_all(&[Update { key: [1; 4], weight: u32::MAX }]);
    }
    let got = s.flow_size(&[1; 4]).unwrap();
    assert!(s.is_saturated() && got.upper >= 3 * u64::from(u32::MAX), "{got:?}");
    let mut s = UnivMon::<4>::new(UnivMonParams { levels: 1, width: 16, keep: 4 }, 0).unwrap();
    s.update(&[1; 4], u64::MAX);
    s.update(&[1; 4], u64::MAX);
    assert!(s.is_saturated() && s.weight() == u64::MAX);
    assert!(s.entropy().unwrap().estimate.is_finite());
}

/// A size that no counter of 32 bits can hold is within its bounds and is listed, alone or beside others as
/// large, in one state and in merged ones.
#[test]
fn sizes_beyond_a_counter_are_listed_and_bounded() {
    const END: u64 = u32::MAX as u64;
    let count_min = |seed| -> Box<dyn Sketch<4>> {
        Box::new(CountMin::new(CountMinParams { rows: 4, width: 4_096, keep: 64 }, seed).unwrap())
    };
    let rev_sketch = |seed| -> Box<dyn Sketch<4>> { Box::new(RevSketch::new(12, seed).unwrap()) };
    let makes: [&dyn Fn(u64) -> Box<dyn Sketch<4>>; 2] = [&count_min, &rev_sketch];
    for (make, seed) in makes.into_iter().flat_map(|make| (0..10).map(move |seed| (make, seed))) {
        for sizes in [vec![5 * END + 7], vec![2 * END, 7 * END], vec![END + 1, 30 * END, 900 * END]] {
            let fill = || {
                let mut s = make(seed);
                sizes.iter().zip(0..).for_each(|(size, i)| s.update(&key(i), *size));
                (100..2_000).for_each(|i| s.update(&key(i), 1_000));
                s
            };
            let mut merged = fill();
            merged.merge(&*fill()).unwrap();
            for (s, times) in [(fill(), 1), (merged, 2)] {
                assert!(s.is_saturated());
                let kind = s.kind();
                let listed = s.heavy_hitters(Want { threshold: END + 1, top: 10 }).unwrap();
                assert_eq!(listed.len(), sizes.len(), "{kind}, seed {seed}: {listed:?}");
                for (size, i) in sizes.iter().zip(0..) {
                    let (truth, got) = (size * times, s.flow_size(&key(i)).unwrap());
                    assert!(got.lower <= truth && truth <= got.upper, "{kind}: {truth} in {got:?}");
                    assert!(listed.iter().any(|f| f.key == key(i) && f.size == got), "{kind}: {listed:?}");
                    // One full counter a row has a value, and only others in it make it too large.
                    let beside = s.weight() / 500;
                    assert!(sizes.len() > 1 || got.estimate - truth < beside, "{kind}: {truth} in {got:?}");
                    assert!(sizes.len() > 1 || truth - got.lower < beside, "{kind}: {truth} in {got:?}");
                }
            }
        }
    }
}

/// Changes of sizes that no counter can hold are within their bounds; where full counters may hide some,
/// none is promised.
#[test]
fn changes_beyond_a_counter_are_bounded() {
    const END: u64 = u32::MAX as u64;
    let fill = |sizes: &[(u64, u64)], seed| {
        let mut s = RevSketch::<4>::new(12, seed).unwrap();
        sizes.iter().for_each(|(i, size)| s.update(&key(*i), *size));
        (100..2_000).for_each(|i| s.update(&key(i), 1_000));
        s
    };
    for seed in 0..10 {
        let (before, after) = (fill(&[(1, 5 * END)], seed), fill(&[(1, 12 * END), (3, 3_000_000_000)], seed));
        assert!(after.least_change(&before).unwrap().is_some(), "every counter has a value");
        let got = after.heavy_changes(&before, want(5)).unwrap();
        let of = |i| got.iter().find(|c| c.key == key(i)).unwrap().change;
        for (i, truth) in [(1, 7 * END as i64), (3, 3_000_000_000)] {
            let change = of(i);
            assert!((change.estimate - truth).abs() < 10_000, "{truth}: {change:?}");
        }

        let before = fill(&[(1, 2 * END), (2, 5 * END)], seed);
        let after = fill(&[(1, 12 * END), (2, 5 * END), (3, 3_000_000_000)], seed);
        assert_eq!(after.least_change(&before).unwrap(), None);
        let got = after.heavy_changes(&before, want(5)).unwrap();
        let of = |i| got.iter().find(|c| c.key == key(i)).map(|c| c.change);
        let change = of(1).unwrap();
        let truth = 10 * END as i64;
        assert!(change.lower <= truth && truth <= change.upper, "{truth}: {change:?}");
        for (i, truth) in [(2, 0), (3, 3_000_000_000)] {
            let right = |c: Bounds<i64>| c.lower <= truth && truth <= c.upper;
            assert!(of(i).is_none_or(right), "{truth}: {:?}", of(i));
        }
    }
}
