//! States: with and without the aggregator, from shards, as bytes; bad bytes, bad sizes, bad pairs.

use crate::common::{self, bursts, sketch, truth, zipf};
use proptest::prelude::*;
use slipstream_sketch::{
    AggregatorConfig, BuildError, Config, Encoder, Eviction, Exact, Front, Kind, MergeError, QueryError,
    Size, Sketch, StateError, Update, Want, build, load, peek, save,
};

const MEMORY: usize = 100_000;

/// State depends on what was put in, not on the order.
const LINEAR: [Kind; 9] = [
    Kind::CountMin,
    Kind::FlowRadar,
    Kind::RevSketch,
    Kind::TwoLevel,
    Kind::Mrac,
    Kind::Fm,
    Kind::LinearCounting,
    Kind::ExaLogLog,
    Kind::Exact,
];

fn without_store<const N: usize>(kind: Kind, seed: u64) -> Box<dyn Sketch<N>> {
    let size = Size::Memory(if N > 13 { 8 * MEMORY } else { 2 * MEMORY });
    build(&Config { kind, size, seed, keep: 0, source_len: N / 2 }).unwrap()
}

fn the_same_with_the_aggregator<const N: usize>(stream: &[Update<N>]) {
    for kind in LINEAR {
        let mut plain = without_store::<N>(kind, 3);
        stream.iter().for_each(|u| plain.update(&u.key, u64::from(u.weight)));
        for eviction in [Eviction::Grr, Eviction::Lru] {
            let config = AggregatorConfig { buckets: 50, eviction, ..AggregatorConfig::default() };
            let mut front = Front::aggregated(without_store::<N>(kind, 3), &config).unwrap();
            stream.chunks(1000).for_each(|c| front.update_all(c));
            assert_eq!(save(front.settled()), save(plain.as_ref()), "{kind} {eviction:?} {N}");
        }
        let mut shards: Vec<_> = (0..3).map(|_| without_store::<N>(kind, 3)).collect();
        for (i, some) in stream.chunks(700).enumerate() {
            shards[i % 3].update_all(some);
        }
        let mut merged = without_store::<N>(kind, 3);
        shards.iter().for_each(|s| merged.merge(s.as_ref()).unwrap());
        assert_eq!(save(merged.as_ref()), save(plain.as_ref()), "{kind} from shards, {N}");
        // FlowRadar's filter may hide a flow in one order and not in another.
        assert_eq!(plain.merges_exactly(), kind != Kind::FlowRadar, "{kind}");
    }
}

#[test]
fn linear_sketches_are_bit_identical_with_the_aggregator_and_from_shards() {
    the_same_with_the_aggregator(&zipf::<4>(20_000, 3_000, 1.0, 1));
    the_same_with_the_aggregator(&bursts::<4>(20_000, 3_000, 6.0, 1));
    the_same_with_the_aggregator(&zipf::<8>(20_000, 1_500, 1.0, 1));
    the_same_with_the_aggregator(&zipf::<13>(20_000, 1_500, 1.0, 1));
    the_same_with_the_aggregator(&zipf::<37>(20_000, 1_500, 1.0, 1));
}

#[test]
fn one_by_one_or_many_at_once_is_the_same() {
    let mut stream = zipf::<8>(5_000, 500, 1.0, 2);
    stream.iter_mut().enumerate().for_each(|(i, u)| u.weight = i as u32 % 7 * 1000);
    for kind in Kind::ALL {
        let (mut one, mut many) = (sketch::<8>(kind, 2 * MEMORY, 1), sketch::<8>(kind, 2 * MEMORY, 1));
        stream.iter().for_each(|u| one.update(&u.key, u64::from(u.weight)));
        stream.chunks(333).for_each(|c| many.update_all(c));
        assert_eq!(save(one.as_ref()), save(many.as_ref()), "{kind}");
        one.clear();
        assert_eq!(one.weight(), 0);
        assert_eq!(
            save(one.as_ref()),
            save(sketch::<8>(kind, 2 * MEMORY, 1).as_ref()),
            "{kind} is empty again"
        );
    }
}

#[test]
fn states_can_be_read_again_and_answer_as_before() {
    for kind in Kind::ALL {
        let mut s = sketch::<8>(kind, 2 * MEMORY, 5);
        s.update_all(&zipf(20_000, 1_000, 1.1, 3));
        let bytes = save(s.as_ref());
        assert_eq!(peek(&bytes).unwrap(), (kind, 8));
        let mut back = load::<8>(&bytes).unwrap();
        assert_eq!(save(back.as_ref()), bytes, "{kind}");
        assert_eq!((back.weight(), back.shape(), back.seed()), (s.weight(), s.shape(), s.seed()));
        let want = Want { threshold: 1, top: 10 };
        assert_eq!(back.heavy_hitters(want).ok(), s.heavy_hitters(want).ok(), "{kind}");
        assert_eq!(back.superspreaders(4, want).ok(), s.superspreaders(4, want).ok(), "{kind}");
        assert_eq!(back.cardinality().ok(), s.cardinality().ok(), "{kind}");
        assert_eq!(back.entropy().ok(), s.entropy().ok(), "{kind}");
        assert_eq!(back.size_distribution().ok(), s.size_distribution().ok(), "{kind}");
        // It goes on as if it had never been saved.
        let more = zipf(5_000, 1_000, 1.1, 4);
        back.update_all(&more);
        s.update_all(&more);
        assert_eq!(save(back.as_ref()), save(s.as_ref()), "{kind} goes on");
        assert!(back.merge(s.as_ref()).is_ok(), "{kind}");
        assert_eq!(load::<4>(&bytes).unwrap_err(), StateError::KeyLength { found: 8, expected: 4 });
    }
}

/// Small states, as the present version of each kind wrote them first: they must stay readable, and be
/// written the same.
#[test]
fn golden_files() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    for kind in Kind::ALL {
        let memory = match kind {
            Kind::RevSketch | Kind::TwoLevel => 40_000,
            Kind::SpaceSaving => 1034,
            _ => 2_000,
        };
        let mut s: Box<dyn Sketch<4>> =
            build(&Config { kind, size: Size::Memory(memory), seed: 42, keep: 4, source_len: 2 }).unwrap();
        for i in 0..20u32 {
            s.update(&[10, 0, (i % 3) as u8, i as u8], u64::from(i * i));
        }
        golden(&dir.join(format!("{kind}.sketch")), s.as_ref());
        if kind == Kind::ExaLogLogHip {
            // Of many keys it is another one: registers forget then.
            (0..5000u32).for_each(|i| s.update(&i.to_le_bytes(), 1));
            golden(&dir.join(format!("{kind}-full.sketch")), s.as_ref());
        }
    }
}

fn golden(file: &std::path::Path, sketch: &dyn Sketch<4>) {
    let bytes = save(sketch);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(file, &bytes).unwrap();
    }
    let golden = std::fs::read(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let kind = sketch.kind();
    assert_eq!(bytes, golden, "{kind}: the format or a hash changed; if it must, raise its version");
    assert_eq!(save(load::<4>(&golden).unwrap().as_ref()), golden);
}

/// A state of a newer version is refused, whole and with a right checksum as it is, and the error says what
/// to do.
#[test]
fn newer_versions_are_refused() {
    for kind in Kind::ALL {
        let mut s = sketch::<8>(kind, 2 * MEMORY, 1);
        s.update(&[1; 8], 9);
        let reads = kind.state_version();
        for found in [0, reads + 1, u16::MAX] {
            let mut bytes = save(s.as_ref());
            bytes[8..10].copy_from_slice(&found.to_le_bytes());
            let bytes = resealed(bytes);
            let error = StateError::Version { kind, found, reads };
            assert_eq!(peek(&bytes).unwrap_err(), error);
            assert_eq!(load::<8>(&bytes).unwrap_err(), error);
            let text = error.to_string();
            assert!(text.contains(kind.name()) && text.contains("newer program"), "{text}");
            assert!(text.contains(&format!("version {found};")) && text.contains(&format!("1 to {reads}:")));
        }
    }
}

#[test]
fn damage_is_an_error() {
    for kind in Kind::ALL {
        let mut s = build::<4>(&Config { kind, size: Size::Memory(40_000), seed: 1, keep: 4, source_len: 2 })
            .unwrap();
        s.update(&[1, 2, 3, 4], 9);
        let bytes = save(s.as_ref());
        for cut in (0..bytes.len()).step_by(97).chain([bytes.len() - 1]) {
            assert!(load::<4>(&bytes[..cut]).is_err(), "{kind} cut at {cut}");
        }
        for bit in (0..bytes.len() * 8).step_by(bytes.len().max(64) / 16) {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(load::<4>(&bad).is_err(), "{kind} with bit {bit} flipped");
        }
    }
    assert_eq!(load::<4>(b"").unwrap_err(), StateError::Magic);
}

/// A state with a right checksum but any parameters and tables: an error or a sketch, never a panic or a huge
/// allocation.
fn resealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let body = bytes.len() - 4;
    let sum = crc32fast::hash(&bytes[..body]).to_le_bytes();
    bytes[body..].copy_from_slice(&sum);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]
    #[test]
    fn hostile_states(kind in 0usize..13, edits in prop::collection::vec((32usize..400, any::<u8>()), 0..12), cut in 0usize..200) {
        let kind = Kind::ALL[kind];
        let memory = if matches!(kind, Kind::RevSketch | Kind::TwoLevel) { 40_000 } else { 1_500 };
        let mut s = build::<4>(&Config { kind, size: Size::Memory(memory), seed: 1, keep: 4, source_len: 2 }).unwrap();
        (0..30u8).for_each(|i| s.update(&[i, 2, 3, 4], 9));
        let mut bytes = save(s.as_ref());
        for (at, byte) in edits {
            let at = at.min(bytes.len() - 5);
            bytes[at] = byte;
        }
        if cut < 100 {
            bytes.truncate(bytes.len() - cut.min(bytes.len() - 40));
        }
        if let Ok(mut s) = load::<4>(&resealed(bytes)) {
            let want = Want { threshold: 1, top: 10 };
            let _ = (s.heavy_hitters(want), s.superspreaders(2, want), s.size_distribution(), s.is_saturated());
            let _ = (s.second_moment(), s.flow_size(&[1; 4]), s.heavy_changes(s.as_ref(), want));
            for figure in [s.cardinality(), s.entropy()].into_iter().flatten() {
                prop_assert!(figure.estimate.is_finite());
            }
            let copy = s.boxed_clone();
            let _ = s.merge(copy.as_ref());
            s.update(&[9; 4], 1);
        }
    }
}

#[test]
fn states_that_do_not_fit() {
    for kind in Kind::ALL {
        let mut a = sketch::<8>(kind, 2 * MEMORY, 1);
        let before = save(a.as_ref());
        let other_seed = sketch::<8>(kind, 2 * MEMORY, 2);
        assert!(matches!(a.merge(other_seed.as_ref()), Err(MergeError::Seed(1, 2))), "{kind}");
        if kind != Kind::Exact {
            let larger = sketch::<8>(kind, 8 * MEMORY, 1);
            assert!(matches!(a.merge(larger.as_ref()), Err(MergeError::Shape(..))), "{kind}");
        }
        let other = if kind == Kind::Fm { Kind::Mrac } else { Kind::Fm };
        let error = a.merge(sketch::<8>(other, 2 * MEMORY, 1).as_ref()).unwrap_err();
        assert_eq!(error, MergeError::Kind(kind, other));
        assert_eq!(save(a.as_ref()), before, "{kind} is unchanged after an error");
        let want = Want { threshold: 1, top: 1 };
        match a.heavy_changes(other_seed.as_ref(), want) {
            Err(QueryError::Mismatch(MergeError::Seed(..)) | QueryError::Unsupported { .. }) => {}
            other => panic!("{kind}: {other:?}"),
        }
    }
}

#[test]
fn sizes_that_are_possible_are_kept_and_others_are_errors() {
    for kind in Kind::ALL {
        let make = |size| build::<8>(&Config { kind, size, seed: 1, keep: 8, source_len: 4 });
        let config = |memory| Config { kind, size: Size::Memory(memory), seed: 1, keep: 8, source_len: 2 };
        for memory in [50_000, 65_536, 100_000, 1 << 20, 3_000_000] {
            let s = make(Size::Memory(memory)).unwrap_or_else(|e| panic!("{kind} in {memory}: {e}"));
            assert!(s.memory_bytes() <= memory, "{kind}: {} of {memory} bytes", s.memory_bytes());
            let least = if kind == Kind::Exact { 0 } else { memory / 5 };
            assert!(s.memory_bytes() >= least, "{kind}: only {} of {memory} bytes", s.memory_bytes());
        }
        for memory in (0..40_000).step_by(307) {
            let all = [
                build::<4>(&config(memory)).map(|s| s.memory_bytes()),
                build::<13>(&config(memory)).map(|s| s.memory_bytes()),
                build::<37>(&config(memory)).map(|s| s.memory_bytes()),
            ];
            for bytes in all.into_iter().flatten() {
                assert!(bytes <= memory, "{kind}: {bytes} of {memory} bytes");
            }
        }
        if kind != Kind::Exact {
            let error = make(Size::Memory(0)).unwrap_err();
            assert!(matches!(error, BuildError::TooSmall { budget: 0, .. }), "{kind}: {error}");
            for memory in [(64 << 30) + 1, usize::MAX / 2, usize::MAX] {
                let error = make(Size::Memory(memory)).map(drop).unwrap_err().to_string();
                assert_eq!(error, format!("{kind}: the memory must be 64 GiB at most"));
            }
        }
        let accuracy = |error, confidence, flows| Size::Accuracy { error, confidence, flows };
        for (error, confidence, flows) in [
            (0.0, 0.9, 10),
            (1.0, 0.9, 10),
            (f64::NAN, 0.9, 10),
            (0.1, 0.0, 10),
            (0.1, 1.0, 10),
            (0.1, 0.9, 0),
        ] {
            let result = make(accuracy(error, confidence, flows));
            assert!(
                matches!(result, Err(BuildError::Parameter { .. })),
                "{kind} {error} {confidence} {flows}"
            );
        }
        make(accuracy(0.15, 0.9, 1000)).unwrap_or_else(|e| panic!("{kind}: {e}"));
        // Absurd, but no panic and no allocation that brings the machine down.
        let _ = make(accuracy(1e-12, 0.9, u64::MAX)).map(drop).map_err(|e| e.to_string());
    }
}

/// However many keys come and go, no table outgrows what was planned.
#[test]
fn memory_stays_within_the_budget() {
    let stream = zipf::<13>(60_000, 40_000, 0.6, 8);
    for kind in Kind::ALL.into_iter().filter(|k| *k != Kind::Exact) {
        for memory in [9_216, 30_000, MEMORY] {
            let config = Config { kind, size: Size::Memory(memory), seed: 1, keep: 20, source_len: 4 };
            let Ok(mut s) = build::<13>(&config) else { continue };
            s.update_all(&stream);
            assert!(s.memory_bytes() <= memory, "{kind}: {} of {memory} bytes", s.memory_bytes());
        }
    }
}

#[test]
fn nothing_in_nothing_out() {
    for kind in Kind::ALL {
        let s = sketch::<8>(kind, 2 * MEMORY, 1);
        let want = Want { threshold: 0, top: 5 };
        assert!(s.heavy_hitters(want).map_or(true, |h| h.is_empty()), "{kind}");
        assert!(s.superspreaders(4, want).map_or(true, |h| h.is_empty()), "{kind}");
        assert!(s.heavy_changes(s.as_ref(), want).map_or(true, |h| h.is_empty()), "{kind}");
        assert!(s.size_distribution().map_or(true, |h| h.is_empty()), "{kind}");
        for figure in [s.cardinality(), s.entropy(), s.second_moment()].into_iter().flatten() {
            assert_eq!((figure.estimate, figure.lower, figure.upper), (0.0, 0.0, 0.0), "{kind}");
        }
        assert!(!s.is_saturated(), "{kind}");
    }
}

#[test]
fn the_exact_table_is_exact() {
    let stream = zipf::<13>(30_000, 4_000, 1.0, 9);
    let sizes = truth(&stream);
    let mut s = Exact::<13>::new(1);
    s.update_all(&stream);
    assert_eq!(s.len(), sizes.len());
    assert_eq!(s.iter().collect::<std::collections::BTreeMap<_, _>>(), sizes);
    assert!((s.entropy().unwrap().estimate - common::entropy(&sizes)).abs() < 1e-9);
}

/// A sketch of another crate: it keeps the total weight alone.
#[derive(Clone, Debug, Default)]
struct Total(u64);

impl Sketch<4> for Total {
    fn kind(&self) -> Kind {
        Kind::Other("total")
    }

    fn seed(&self) -> u64 {
        0
    }

    fn shape(&self) -> String {
        "one counter".to_owned()
    }

    fn weight(&self) -> u64 {
        self.0
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>()
    }

    fn update(&mut self, _: &[u8; 4], weight: u64) {
        self.0 += weight;
    }

    fn update_cost(&self) -> f64 {
        0.1
    }

    fn clear(&mut self) {
        self.0 = 0;
    }

    fn merge(&mut self, other: &dyn Sketch<4>) -> Result<(), MergeError> {
        let other = other.as_any().downcast_ref::<Self>();
        self.0 += other.ok_or(MergeError::Kind(self.kind(), Kind::Exact))?.0;
        Ok(())
    }

    fn boxed_clone(&self) -> Box<dyn Sketch<4>> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn encode(&self, out: &mut Encoder) {
        out.u64(self.0);
    }
}

#[test]
fn a_sketch_of_another_crate_is_used_as_any_other() {
    let stream = zipf::<4>(5_000, 300, 1.0, 6);
    let weight: u64 = stream.iter().map(|u| u64::from(u.weight)).sum();
    let mut front = Front::aggregated(Box::<Total>::default(), &AggregatorConfig::default()).unwrap();
    front.update_all(&stream);
    let mut both = front.take();
    both.merge(&Total(7)).unwrap();
    assert_eq!(both.weight(), weight + 7);
    assert!(both.merge(&Exact::<4>::new(0)).is_err());
    let error = both.cardinality().unwrap_err();
    assert_eq!(error.to_string(), "total keeps nothing that could answer the number of flows");
    // Only its own crate can read what it saved.
    assert_eq!(load::<4>(&save(both.as_ref())).unwrap_err(), StateError::Kind(u8::MAX));
    let config = Config { kind: Kind::Other("total"), ..Config::default() };
    assert!(matches!(build::<4>(&config), Err(BuildError::Parameter { .. })));
}
