//! Merges: shards of a stream, put together, answer as one pass over it does, and say what they can't know.

use std::collections::BTreeMap;

use crate::common::{key, sorted, truth, zipf};
use proptest::prelude::*;
use slipstream_sketch::{
    Config, CountMin, CountMinParams, Kind, Size, Sketch, SpaceSaving, UnivMon, UnivMonParams, Update, Want,
    build, save,
};

type Made = Box<dyn Sketch<4>>;

const ALL: Want = Want { threshold: 1, top: usize::MAX };

fn made(kind: Kind, memory: usize, keep: usize) -> Made {
    build(&Config { kind, size: Size::Memory(memory), seed: 3, keep, source_len: 2 }).unwrap()
}

/// Memory in which every kind can be made, and is too small for what the tests put in.
fn memory(kind: Kind) -> usize {
    if matches!(kind, Kind::RevSketch | Kind::TwoLevel) { 60_000 } else { 20_000 }
}

fn merged(shards: &[Made]) -> Made {
    let mut whole = shards[0].boxed_clone();
    shards[1..].iter().for_each(|s| whole.merge(s.as_ref()).unwrap());
    whole
}

/// Each shard's own flows are heavier there than those that all shards share, which are the heaviest of all.
fn spread_over_shards() -> Vec<Vec<Update<4>>> {
    let of = |shard: u64| {
        let own = (0..200).map(move |i| Update { key: key(1000 * (shard + 1) + i), weight: 100 });
        let shared = (0..20).map(|i| Update { key: key(i), weight: 90 });
        own.chain(shared).collect()
    };
    (0..4).map(of).collect()
}

fn over(make: impl Fn() -> Made, parts: &[Vec<Update<4>>]) -> (Made, Made) {
    let mut one = make();
    let shard = |part: &Vec<Update<4>>| {
        let mut s = make();
        s.update_all(part);
        s
    };
    parts.iter().for_each(|p| one.update_all(p));
    (merged(&parts.iter().map(shard).collect::<Vec<_>>()), one)
}

/// Of the truly greatest `top`, how many are listed; and all that aren't listed at all weigh no more than is
/// stated.
fn recall(s: &dyn Sketch<4>, sizes: &BTreeMap<[u8; 4], u64>, top: usize) -> usize {
    let listed = s.heavy_hitters(Want { threshold: 1, top }).unwrap();
    sorted(sizes).iter().take(top).filter(|(key, _)| listed.iter().any(|f| f.key == *key)).count()
}

fn what_is_missing_is_stated(s: &dyn Sketch<4>, sizes: &BTreeMap<[u8; 4], u64>) {
    let listed = s.heavy_hitters(ALL).unwrap();
    let most = s.unlisted().unwrap();
    let listed: std::collections::BTreeSet<_> = listed.iter().map(|f| f.key).collect();
    let beyond = sizes.iter().filter(|(key, size)| !listed.contains(*key) && **size > most).count();
    // UnivMon's holds for 99 % of flows.
    let may = if s.kind() == Kind::UnivMon { sizes.len() / 100 } else { 0 };
    assert!(beyond <= may, "{}: {beyond} of {} are heavier than {most}, not listed", s.kind(), sizes.len());
}

/// With as many keys as a budget has room for, flows that no shard finds heavy are found; with fewer, the
/// answer says how heavy a flow may be that isn't listed.
#[test]
fn flows_spread_over_shards_are_listed_or_what_is_missing_is_stated() {
    let parts = spread_over_shards();
    let sizes = truth(&parts.concat());
    for memory in [48 << 10, 768 << 10] {
        let keep = CountMin::<4>::keys_within(memory);
        let (both, one) = over(|| made(Kind::CountMin, memory, keep), &parts);
        assert_eq!(recall(one.as_ref(), &sizes, 20), 20, "one pass, {memory} bytes");
        assert_eq!(recall(both.as_ref(), &sizes, 20), 20, "merged, {memory} bytes");
        what_is_missing_is_stated(both.as_ref(), &sizes);
        let (both, _) = over(|| made(Kind::UnivMon, memory, 0), &parts);
        what_is_missing_is_stated(both.as_ref(), &sizes);
        if memory > 100_000 {
            // In less, one pass doesn't find them either.
            assert_eq!(recall(both.as_ref(), &sizes, 20), 20, "univmon, {memory} bytes");
        }
    }
    for keep in [1, 30, 64] {
        let (both, _) = over(|| made(Kind::CountMin, 48 << 10, keep), &parts);
        what_is_missing_is_stated(both.as_ref(), &sizes);
        assert!(!both.heavy_hitters(ALL).unwrap().is_empty(), "what the shards kept is listed");
        let params = UnivMonParams { levels: 4, width: 2048, keep };
        let (both, _) = over(|| Box::new(UnivMon::<4>::new(params, 5).unwrap()), &parts);
        what_is_missing_is_stated(both.as_ref(), &sizes);
    }
    for m in [20, 100, 128] {
        let (both, _) = over(|| Box::new(SpaceSaving::<4>::new(m, 1).unwrap()), &parts);
        what_is_missing_is_stated(both.as_ref(), &sizes);
    }
}

#[test]
fn a_state_of_nothing_changes_nothing() {
    for kind in Kind::ALL {
        let mut full = made(kind, 2 * memory(kind), 6);
        full.update_all(&zipf(5_000, 400, 1.0, 4));
        let before = save(full.as_ref());
        let nothing = made(kind, 2 * memory(kind), 6);
        full.merge(nothing.as_ref()).unwrap();
        assert_eq!(save(full.as_ref()), before, "{kind} and nothing");
        let mut other = nothing.boxed_clone();
        other.merge(full.as_ref()).unwrap();
        assert_eq!(save(other.as_ref()), before, "nothing and {kind}");
    }
}

/// The number of keys that are to be listed is no part of what states must agree in.
#[test]
fn states_that_keep_different_numbers_of_keys_can_be_merged() {
    let memory = 100_000;
    let most = CountMin::<4>::keys_within(memory);
    let mut shapes: Vec<_> = [1, 40, most].map(|keep| made(Kind::CountMin, memory, keep).shape()).to_vec();
    shapes.dedup();
    assert_eq!(shapes.len(), 1, "{shapes:?}");
    let (mut few, many) = (made(Kind::CountMin, memory, 1), made(Kind::CountMin, memory, most));
    few.merge(many.as_ref()).unwrap();
    let none = made(Kind::CountMin, memory, 0);
    assert!(few.merge(none.as_ref()).is_err(), "a state without keys knows none of its own");
    for memory in [300, 2_000, 20_000, 1 << 20] {
        let keep = CountMin::<37>::keys_within(memory).max(1);
        let config =
            Config { kind: Kind::CountMin, size: Size::Memory(memory), seed: 1, keep, source_len: 0 };
        let made = build::<37>(&config).unwrap();
        assert!(made.memory_bytes() <= memory, "{} of {memory} bytes", made.memory_bytes());
    }
}

fn streams() -> impl Strategy<Value = Vec<(u8, u32, u32)>> {
    // Which shard, which key, which weight.
    prop::collection::vec((0u8..7, 0u32..150, 1u32..40), 1..600)
}

fn parts(stream: &[(u8, u32, u32)], shards: u8) -> Vec<Vec<Update<4>>> {
    let of = |shard| {
        let mine = stream.iter().filter(move |u| u.0 % shards == shard);
        mine.map(|u| Update { key: key(u64::from(u.1)), weight: u.2 }).collect()
    };
    (0..shards).map(of).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Any order and any grouping give the same state, bit for bit; of Space-Saving any order of two.
    #[test]
    fn the_order_of_merges_does_not_matter(stream in streams(), kind in 0usize..12, keep in 1usize..20) {
        let kind = Kind::ALL[kind];
        let make = |part: &Vec<Update<4>>| {
            let mut s = made(kind, 4 * memory(kind), keep);
            s.update_all(part);
            s
        };
        let all: Vec<Made> = parts(&stream, 3).iter().map(make).collect();
        let (a, b, c) = (&all[0], &all[1], &all[2]);
        let of = |x: &Made, y: &Made| merged(&[x.boxed_clone(), y.boxed_clone()]);
        prop_assert_eq!(save(of(a, b).as_ref()), save(of(b, a).as_ref()));
        if kind != Kind::SpaceSaving {
            prop_assert_eq!(save(of(&of(a, b), c).as_ref()), save(of(a, &of(c, b)).as_ref()));
        }
    }

    /// Bounds that are certain of one pass are certain of merged shards: no size below its lower or above its
    /// upper end, and nothing heavier than stated that isn't listed. A merged state goes on taking packets in
    /// and stays right.
    #[test]
    fn bounds_hold_after_merges(stream in streams(), shards in 1u8..8, keep in 1usize..30, rest in streams()) {
        let (split, rest) = (parts(&stream, shards), parts(&rest, 1).concat());
        let makes: [Box<dyn Fn() -> Made>; 3] = [
            Box::new(|| Box::new(CountMin::<4>::new(CountMinParams { rows: 4, width: 64, keep }, 1).unwrap())),
            Box::new(|| Box::new(SpaceSaving::<4>::new(keep, 1).unwrap())),
            Box::new(|| made(Kind::Exact, 0, 0)),
        ];
        for make in makes {
            let (mut both, _) = over(make, &split);
            for more in [&[][..], &rest] {
                both.update_all(more);
                let sizes = truth(&[split.concat(), more.to_vec()].concat());
                let certain = both.kind() != Kind::CountMin;
                for flow in both.heavy_hitters(ALL).unwrap() {
                    let size = sizes[&flow.key];
                    prop_assert!(size <= flow.size.upper, "{}: {size} of {flow:?}", both.kind());
                    prop_assert!(!certain || flow.size.lower <= size, "{}: {size} of {flow:?}", both.kind());
                }
                what_is_missing_is_stated(both.as_ref(), &sizes);
            }
        }
    }
}

/// Zipf traffic, dealt out packet by packet: no shard sees a heavy flow as a whole, and the list is
/// nevertheless the one of one pass.
#[test]
fn merged_shards_list_what_one_pass_lists() {
    let stream = zipf::<4>(60_000, 8_000, 1.0, 11);
    let sizes = truth(&stream);
    for shards in [2, 4, 7] {
        let part = |shard| stream.iter().skip(shard).step_by(shards).copied().collect::<Vec<_>>();
        let parts: Vec<_> = (0..shards).map(part).collect();
        for (kind, memory) in
            [(Kind::CountMin, 48 << 10), (Kind::UnivMon, 192 << 10), (Kind::SpaceSaving, 48 << 10)]
        {
            let keep = CountMin::<4>::keys_within(memory);
            let (both, one) = over(|| made(kind, memory, keep), &parts);
            let (merged, whole) = (recall(both.as_ref(), &sizes, 20), recall(one.as_ref(), &sizes, 20));
            assert!(merged >= whole, "{kind} of {shards} shards: {merged} of 20, {whole} in one pass");
            what_is_missing_is_stated(both.as_ref(), &sizes);
        }
    }
}
