//! States that older versions wrote, as they were written then: they are read, answer within their bounds,
//! and merge with those of today where their tables mean the same.

use std::collections::BTreeMap;

use slipstream_sketch::{
    CountMin, CountMinParams, Kind, MergeError, RevSketch, Sketch, TwoLevel, TwoLevelParams, UnivMon,
    UnivMonParams, Want, load, peek, save,
};

const ALL: Want = Want { threshold: 1, top: usize::MAX };

fn file(name: &str) -> Vec<u8> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn key<const N: usize>(i: u32) -> [u8; N] {
    std::array::from_fn(|j| (i.wrapping_mul(2_654_435_761).rotate_left(j as u32 * 5) >> 7) as u8)
}

/// The updates that the larger files have seen.
fn updates<const N: usize>(range: std::ops::Range<u32>) -> impl Iterator<Item = ([u8; N], u64)> {
    range.map(|i| (key(i), u64::from(i * i % 97 + 1)))
}

fn sizes<const N: usize>(updates: impl Iterator<Item = ([u8; N], u64)>) -> BTreeMap<[u8; N], u64> {
    let mut sizes = BTreeMap::new();
    updates.for_each(|(key, weight)| *sizes.entry(key).or_default() += weight);
    sizes
}

fn version(state: &[u8]) -> u16 {
    u16::from_le_bytes([state[8], state[9]])
}

/// The updates that all kinds of golden files have seen.
fn small(s: &mut dyn Sketch<4>) {
    for i in 0..20u32 {
        s.update(&[10, 0, (i % 3) as u8, i as u8], u64::from(i * i));
    }
}

/// The same stream, then and now: tables that mean the same are the same, so that the state is written as one
/// of today, and as if it had been made today.
#[test]
fn the_first_version_is_read() {
    for kind in [Kind::RevSketch, Kind::TwoLevel, Kind::CountMin, Kind::UnivMon, Kind::ExaLogLog] {
        let old = file(&format!("{kind}.v1.sketch"));
        assert_eq!((version(&old), peek(&old)), (1, Ok((kind, 4))));
        let mut read = load::<4>(&old).unwrap();
        let now = save(read.as_ref());
        assert_eq!(version(&now), 2, "{kind}");
        let mut fresh = read.boxed_clone();
        fresh.clear();
        let mut merged = fresh.boxed_clone();
        small(fresh.as_mut());
        assert_eq!(read.weight(), fresh.weight(), "{kind}");
        // A bar that a merge may have left too low was raised when it was read.
        if !matches!(kind, Kind::UnivMon | Kind::CountMin) {
            assert_eq!(now, save(fresh.as_ref()), "{kind}");
        }
        assert_eq!(read.superspreaders(2, ALL).ok(), fresh.superspreaders(2, ALL).ok(), "{kind}");
        assert_eq!(read.cardinality().ok(), fresh.cardinality().ok(), "{kind}");
        merged.merge(read.as_ref()).unwrap();
        merged.merge(fresh.as_ref()).unwrap();
        read.merge(fresh.as_ref()).unwrap();
        assert_eq!(save(merged.as_ref()), save(read.as_ref()), "{kind}");
    }
}

/// Registers of the first version forgot events from the first key on: they do so now, and merge with ones
/// that forgot none so far.
#[test]
fn registers_that_forget_are_read_and_go_on() {
    let old = file("exaloglog-hip.v1.sketch");
    assert_eq!((version(&old), peek(&old)), (1, Ok((Kind::ExaLogLogHip, 4))));
    let mut read = load::<4>(&old).unwrap();
    let now = save(read.as_ref());
    assert_eq!((version(&now), now.len()), (2, old.len()));
    assert_eq!(save(load::<4>(&now).unwrap().as_ref()), now);
    let mut today = read.boxed_clone();
    today.clear();
    small(today.as_mut());
    let keys = |s: &dyn Sketch<4>| s.cardinality().unwrap();
    assert!((keys(read.as_ref()).estimate - 20.0).abs() < 1.0 && keys(read.as_ref()).upper < 25.0);
    assert!(save(today.as_ref()).len() < 100, "a state of few keys is short");
    let mut merged = today.boxed_clone();
    merged.merge(read.as_ref()).unwrap();
    read.merge(today.as_ref()).unwrap();
    assert_eq!(save(merged.as_ref()), save(read.as_ref()));
    assert!((keys(merged.as_ref()).estimate - 20.0).abs() < 1.0);
    assert_eq!(merged.weight(), 2 * today.weight());
}

/// Of long keys the buckets had other numbers: such a state answers as it did, is written as it was, and
/// doesn't merge with one of today.
#[test]
fn buckets_of_long_keys_are_as_they_were() {
    let old = file("rev-sketch-long.v1.sketch");
    let mut read = load::<13>(&old).unwrap();
    assert_eq!(save(read.as_ref()), old);
    let great = read.flow_size(&key(3)).unwrap();
    assert!((great.lower..=great.upper).contains(&50_010) && great.lower > 40_000, "{great:?}");
    for (key, size) in sizes(updates(0..20)) {
        let got = read.flow_size(&key).unwrap();
        assert!(got.upper >= size, "{key:?} of {size}: {got:?}");
    }
    let today = RevSketch::<13>::new(8, 42).unwrap();
    assert!(
        matches!(read.merge(&today), Err(MergeError::Shape(a, b)) if a.contains("version 1") && !b.contains("version"))
    );
    let again = load::<13>(&old).unwrap();
    read.merge(again.as_ref()).unwrap();
    assert_eq!(read.weight(), 2 * again.weight());
    assert_eq!(version(&save(read.as_ref())), 1);

    let old = file("two-level-long.v1.sketch");
    let read = load::<16>(&old).unwrap();
    assert_eq!(save(read.as_ref()), old);
    // Tables as small as these tell no source of 8 bytes; what is listed of it is at least no invention.
    let sources: Vec<_> = (0..2).map(|i| key::<16>(i)[..8].to_vec()).collect();
    let spreads = read.superspreaders(8, Want { threshold: 50, top: 5 }).unwrap();
    assert!(spreads.iter().all(|f| sources.contains(&f.key[..8].to_vec())), "{spreads:?}");
    let mut today = TwoLevel::<16>::new(TwoLevelParams { source_len: 8, bits: 8, width: 8 }, 42).unwrap();
    assert!(matches!(today.merge(read.as_ref()), Err(MergeError::Shape(..))));
}

/// Merges left the bar of keys that aren't listed too low: what is said of them holds nevertheless.
#[test]
fn what_merged_states_of_the_first_version_do_not_list_is_bounded() {
    let mut truth = sizes(updates::<4>(0..30).chain(updates(15..45)));
    *truth.get_mut(&key(44)).unwrap() += 500;
    let count_min = CountMin::<4>::new(CountMinParams { rows: 4, width: 64, keep: 4 }, 42).unwrap();
    bounded(&file("count-min-merged.v1.sketch"), &count_min, &truth);
    let truth = sizes(updates::<4>(0..60).chain(updates(30..90)));
    let univmon = UnivMon::<4>::new(UnivMonParams { levels: 3, width: 8, keep: 4 }, 42).unwrap();
    bounded(&file("univmon-merged.v1.sketch"), &univmon, &truth);
}

/// Those are listed, or no heavier than what isn't; also with as much of today put in.
fn bounded(old: &[u8], today: &dyn Sketch<4>, truth: &BTreeMap<[u8; 4], u64>) {
    let mut read = load::<4>(old).unwrap();
    assert_eq!((version(old), version(&save(read.as_ref()))), (1, 2));
    let mut fresh = today.boxed_clone();
    truth.iter().for_each(|(key, size)| fresh.update(key, *size));
    for times in 1..3 {
        let listed = read.heavy_hitters(ALL).unwrap();
        let rest = read.unlisted().unwrap();
        assert!(rest <= read.weight());
        for (key, size) in truth {
            let known = listed.iter().any(|f| f.key == *key);
            assert!(known || size * times <= rest, "{key:?} of {size} times {times}, {rest}");
        }
        read.merge(fresh.as_ref()).unwrap();
    }
}
