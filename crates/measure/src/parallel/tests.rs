//! Any number of workers gives the answers, states and counts of one pass, packet by packet.

use std::sync::Arc;

use proptest::prelude::*;
use slipstream_sketch::{Confidence, Eviction, Kind, Size, Want};
use slipstream_wire::classify;

use super::*;
use crate::{Ask, Keying, Plan, Task, keying};

/// A packet: time in ns, length on the wire, bytes.
type Sample = (u64, u32, Vec<u8>);

fn frame(ipv6: bool, src: u8, dst: u8, port: u8) -> Vec<u8> {
    let ip = |version: u8| [10, version, 0, src, 10, version, 1, dst];
    let udp = [0, port, 0, 53, 0, 8, 0, 0];
    if ipv6 {
        let mut all = vec![0x60, 0, 0, 0, 0, 8, 17, 64];
        let address = |last: u8| [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
        all.extend(address(src));
        all.extend(address(dst));
        all.extend(udp);
        return all;
    }
    let mut all = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0];
    all.extend(ip(4));
    all.extend(udp);
    all
}

/// Packets of a trace in memory; fails after so many.
struct Memory<'a> {
    packets: &'a [Sample],
    at: usize,
    fails_at: Option<usize>,
}

impl PacketSource for Memory<'_> {
    type Error = &'static str;

    fn read(&mut self, most: usize, mut visit: impl FnMut(&Packet<'_>)) -> Result<bool, &'static str> {
        // Fewer than asked for, so that blocks are small and many.
        for _ in 0..most.min(7) {
            if self.fails_at == Some(self.at) {
                return Err("the device is gone");
            }
            let Some((time_ns, original_len, data)) = self.packets.get(self.at) else { return Ok(false) };
            self.at += 1;
            visit(&Packet { time_ns: *time_ns, link: LinkType::RawIp, original_len: *original_len, data });
        }
        Ok(true)
    }
}

/// Packets in digests of these sizes.
fn in_digests(
    sketches: SketchSet,
    settings: &TraceSettings,
    packets: &[Sample],
    parts: &[usize],
) -> TraceResult {
    let mut measurement = DigestMeasurement::new(sketches, settings);
    let (mut digest, mut left) = (Digest::new(*settings), packets);
    for part in parts.iter().chain([&usize::MAX]) {
        let (now, rest) = left.split_at((*part).min(left.len()));
        left = rest;
        digest.clear();
        for (time_ns, original_len, data) in now {
            let (time_ns, original_len) = (*time_ns, *original_len);
            digest.packet(&Packet { time_ns, link: LinkType::RawIp, original_len, data });
        }
        measurement.add(&mut digest).unwrap();
    }
    measurement.finish().unwrap()
}

/// One packet after the other into one set of sketches.
fn one_pass(mut sketches: SketchSet, settings: &TraceSettings, packets: &[Sample]) -> TraceResult {
    let mut result = TraceResult::default();
    let mut span = Span::default();
    let mut before = std::collections::HashMap::new();
    let keying = sketches.ask().keying;
    let mut clock = 0;
    let mut end = |span: &mut Span, last: bool, sketches: &mut SketchSet| {
        let by_time = matches!(settings.epoch, EpochLength::Time(_)) && span.packets > 0;
        span.partial = by_time && (last || result.epochs.is_empty());
        let ended = sketches.end_epoch(*span).unwrap();
        result.epochs.push(TraceEpoch { span: *span, ended });
    };
    for (time, len, data) in packets {
        let Ok(headers) = classify(LinkType::RawIp, data) else {
            result.skipped += 1;
            continue;
        };
        result.clock_backwards += u64::from(*time < clock);
        clock = clock.max(*time);
        let time = clock;
        let gap = before.insert(keying.key(&headers.key).get().to_vec(), time).map(|last| time - last);
        let weight = match (settings.weight, gap) {
            (Weight::Bytes, _) => u64::from(*len),
            (Weight::Gap, Some(gap)) => gap,
            (Weight::Gap, None) => {
                result.without_gap += 1;
                continue;
            }
            _ => 1,
        };
        if result.packets == 0 {
            span = Span::begin(settings.epoch, time);
        }
        match settings.epoch {
            EpochLength::Packets(n) if span.packets == n => {
                end(&mut span, false, &mut sketches);
                span = Span::begin(settings.epoch, time);
            }
            // None ends with the last time that there is.
            EpochLength::Time(_) if time >= span.end_ns && span.end_ns < u64::MAX => {
                end(&mut span, false, &mut sketches);
                let next = Span::begin(settings.epoch, time);
                if next.start_ns > span.end_ns {
                    span = Span { start_ns: span.end_ns, end_ns: next.start_ns, ..Span::default() };
                    end(&mut span, false, &mut sketches);
                }
                span = next;
            }
            _ => {}
        }
        span.last_ns = time;
        if let EpochLength::Packets(_) = settings.epoch {
            span.end_ns = time;
        }
        span.packets += 1;
        result.packets += 1;
        result.ipv6 |= headers.key.is_ipv6();
        sketches.push(&headers.key, weight).unwrap();
    }
    end(&mut span, true, &mut sketches);
    result.measure_memory();
    result
}

fn packets() -> impl Strategy<Value = Vec<Sample>> {
    // Gap, flow, whether it is IPv6 (rarely) or nothing at all, length. Some flows are much heavier than
    // others.
    let one = (0u64..40, 0u8..60, 0u8..12, 40u32..1500);
    // Some come when time ends.
    let start = prop_oneof![3 => Just(5u64), 1 => Just(u64::MAX - 3_000)];
    (start, prop::collection::vec(one, 0..700)).prop_map(|(start, all)| {
        let mut time = start;
        let sample = |(gap, flow, version, len): (u64, u8, u8, u32)| {
            // Some gaps are longer than 32 bits say.
            time = time.saturating_add(if gap == 39 { 2_000 + (u64::from(len == 40) << 33) } else { gap });
            let src = if flow < 30 { 1 } else { flow };
            let data = if version == 11 { vec![0; 9] } else { frame(version == 10, src, flow / 7, flow) };
            (time, len, data)
        };
        all.into_iter().map(sample).collect()
    })
}

fn tasks() -> impl Strategy<Value = (Task, Kind)> {
    prop::sample::select(vec![
        (Task::HeavyHitters, Kind::SpaceSaving),
        (Task::HeavyHitters, Kind::CountMin),
        (Task::HeavyChanges, Kind::RevSketch),
        (Task::HeavyChanges, Kind::UnivMon),
        (Task::HeavyChanges, Kind::Exact),
        (Task::Superspreaders, Kind::TwoLevel),
        (Task::SizeDistribution, Kind::Mrac),
        (Task::SizeDistribution, Kind::FlowRadar),
        (Task::Cardinality, Kind::LinearCounting),
        (Task::Cardinality, Kind::Fm),
        (Task::Entropy, Kind::UnivMon),
        (Task::Entropy, Kind::Exact),
        (Task::Quantiles, Kind::DdSketch),
    ])
}

fn sketches(task: Task, kind: Kind, aggregate: Option<Eviction>, compare: bool) -> SketchSet {
    let key: Keying = keying(None, task, kind).unwrap();
    let want = Want { threshold: 1, top: 20 };
    let ask = Arc::new(Ask { task, keying: key, want, flows: Vec::new() });
    let size = Size::Memory(if matches!(kind, Kind::RevSketch | Kind::TwoLevel) { 1 << 20 } else { 16_384 });
    let plan = Plan { kind, size, aggregate, seed: 1, compare, save: true, timed: false };
    SketchSet::new(ask.clone(), plan.configs(&ask)).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 24 }))]

    #[test]
    fn answers_do_not_depend_on_the_number_of_workers(
        samples in packets(),
        (task, kind) in tasks(),
        epoch in prop_oneof![
            (1u64..300).prop_map(EpochLength::Packets),
            (50u64..5_000).prop_map(EpochLength::Time),
        ],
        aggregate in prop_oneof![Just(None), Just(Some(Eviction::Grr)), Just(Some(Eviction::Lru))],
        compare in any::<bool>(),
        weighed in any::<bool>(),
        late in any::<bool>(),
        parts in prop::collection::vec(0..400_usize, 1..5),
    ) {
        let mut samples = samples;
        let weight = match (weighed, kind) {
            (true, Kind::DdSketch) => Weight::Gap,
            (false, Kind::DdSketch) => Weight::Bytes,
            // MRAC's sizes are packets.
            (true, kind) if kind != Kind::Mrac => Weight::Bytes,
            _ => Weight::Packets,
        };
        if late {
            samples.iter_mut().skip(2).step_by(5).for_each(|(time, ..)| *time = time.saturating_sub(200));
        }
        let settings = TraceSettings { epoch, weight, encapsulation: Encapsulation::Outer, workers: 1 };
        let make = || sketches(task, kind, aggregate, compare);
        let want = one_pass(make(), &settings, &samples);
        for workers in [0, 1, 2, 3, 4, 7] {
            let got = if workers == 0 {
                in_digests(make(), &settings, &samples, &parts)
            } else {
                let mut source = Memory { packets: &samples, at: 0, fails_at: None };
                measure_trace(make(), &TraceSettings { workers, ..settings }, &mut source).unwrap()
            };
            prop_assert_eq!(got.epochs.len(), want.epochs.len());
            for (a, b) in got.epochs.iter().zip(&want.epochs) {
                prop_assert_eq!(a.span, b.span);
                prop_assert_eq!(&a.ended.result, &b.ended.result, "{} workers", workers);
                prop_assert_eq!(&a.ended.states, &b.ended.states, "{} workers", workers);
            }
            prop_assert_eq!((got.memory_bytes, got.aggregator_bytes), (want.memory_bytes, want.aggregator_bytes));
            let counts = |r: &TraceResult| {
                (r.packets, r.skipped, r.without_gap, r.forgotten_flows, r.clock_backwards, r.ipv6)
            };
            prop_assert_eq!(counts(&got), counts(&want));
        }
    }
}

/// Bounds of gaps are certain until a flow was forgotten, and never after; the end of every epoch says so,
/// and how many flows it were.
#[test]
#[cfg_attr(miri, ignore = "hundreds of thousands of packets")]
fn gaps_that_may_be_missing_are_told() {
    let mut samples: Vec<Sample> = Vec::new();
    let mut add = |sources: std::ops::Range<u32>| {
        for source in sources {
            let mut data = frame(false, 0, 1, 2);
            data[12..16].copy_from_slice(&source.to_be_bytes());
            samples.push((10 * samples.len() as u64, 60, data));
        }
    };
    // Two epochs of gaps. Between them come more flows than can be remembered, the third is of those.
    [0..500, 0..500, 0..200_000, 199_500..200_000].into_iter().for_each(&mut add);
    let settings = TraceSettings {
        epoch: EpochLength::Packets(500),
        weight: Weight::Gap,
        encapsulation: Encapsulation::Outer,
        workers: 1,
    };
    for workers in [0, 1, 3] {
        let sketches = sketches(Task::Quantiles, Kind::DdSketch, None, false);
        let result = if workers == 0 {
            in_digests(sketches, &settings, &samples, &[100_000, 3])
        } else {
            let mut source = Memory { packets: &samples, at: 0, fails_at: None };
            measure_trace(sketches, &TraceSettings { workers, ..settings }, &mut source).unwrap()
        };
        // The first 500 flows have two gaps each.
        assert_eq!((result.packets, result.without_gap), (1500, 200_000));
        // There are 131,072 places, most of which were taken before a flow had to give way.
        assert!((68_928..75_000).contains(&result.forgotten_flows), "{}", result.forgotten_flows);
        let promised = result.epochs.iter().map(|epoch| epoch.ended.result.promise.confidence);
        let promised: Vec<_> = promised.collect();
        assert_eq!(promised, [Confidence::Certain, Confidence::None, Confidence::None], "{workers} workers");
        let told = result.epochs.iter().map(|epoch| epoch.ended.result.to_json()["bounds"] == "none");
        assert_eq!(told.collect::<Vec<_>>(), [false, true, true]);
    }
}

/// A source that fails ends the work of all, with its error.
#[test]
fn a_failing_source_stops_every_worker() {
    let samples: Vec<Sample> = (0..500).map(|i| (i, 60, frame(i % 5 == 0, i as u8, 1, 2))).collect();
    let epoch = EpochLength::Packets(50);
    for workers in [1, 2, 4] {
        let settings =
            TraceSettings { epoch, weight: Weight::Packets, encapsulation: Encapsulation::Outer, workers };
        let mut source = Memory { packets: &samples, at: 0, fails_at: Some(321) };
        let sketches = sketches(Task::HeavyHitters, Kind::SpaceSaving, Some(Eviction::Grr), false);
        let error = measure_trace(sketches, &settings, &mut source).unwrap_err();
        assert!(matches!(error, TraceError::Source("the device is gone")), "{error:?}");
    }
}

/// A worker that panics doesn't leave the others waiting, whichever of them reads just then.
#[test]
fn a_panic_is_passed_on() {
    struct Broken {
        reads_left: u32,
    }
    impl PacketSource for Broken {
        type Error = ();
        fn read(&mut self, _: usize, _: impl FnMut(&Packet<'_>)) -> Result<bool, ()> {
            assert_ne!(self.reads_left, 0, "broken");
            self.reads_left -= 1;
            Ok(true)
        }
    }
    let epoch = EpochLength::Packets(50);
    let settings =
        TraceSettings { epoch, weight: Weight::Packets, encapsulation: Encapsulation::Outer, workers: 2 };
    for reads_left in 0..20 {
        let sketches = sketches(Task::HeavyHitters, Kind::SpaceSaving, Some(Eviction::Grr), false);
        let run = || measure_trace(sketches, &settings, &mut Broken { reads_left }).map(|_| ());
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        assert!(ended.is_err(), "a panic after {reads_left} reads was lost");
    }
}

/// An Ethernet frame of TCP or UDP over IPv4 without options, one byte of which may be another, and of which
/// so many bytes may be captured.
fn nearly_usual() -> impl Strategy<Value = Vec<u8>> {
    let change = proptest::option::of((0usize..64, any::<u8>()));
    (any::<[u8; 32]>(), any::<[u8; 32]>(), any::<bool>(), change, 40usize..=64).prop_map(
        |(first, second, tcp, change, captured)| {
            let mut frame = [first, second].concat();
            frame[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
            frame[20..24].copy_from_slice(&[0x40, 0, 64, if tcp { 6 } else { 17 }]);
            if let Some((at, byte)) = change {
                frame[at] = byte;
            }
            frame.truncate(captured);
            frame
        },
    )
}

/// A frame around another one: VXLAN.
fn around(mut outer: Vec<u8>, inner: &[u8]) -> Vec<u8> {
    outer.resize(50, 0);
    outer[23] = 17;
    outer[36..38].copy_from_slice(&4789u16.to_be_bytes());
    outer[42..50].copy_from_slice(&[8, 0, 0, 0, 0, 0, 1, 0]);
    [&outer, inner].concat()
}

proptest! {
    #[test]
    fn usual_packets_are_taken_as_any(
        frames in proptest::collection::vec(
            (
                prop_oneof![
                    nearly_usual(),
                    (nearly_usual(), nearly_usual()).prop_map(|(outer, inner)| around(outer, &inner)),
                ],
                any::<bool>(),
            ),
            1..40,
        ),
        inner: bool,
        bytes: bool,
    ) {
        let encapsulation = if inner { Encapsulation::Inner } else { Encapsulation::Outer };
        let weight = if bytes { Weight::Bytes } else { Weight::Packets };
        let epoch = EpochLength::Packets(10);
        let settings = TraceSettings { epoch, weight, encapsulation, workers: 1 };
        let (mut digest, mut twin) = (Digest::new(settings), Digest::new(settings));
        for (n, (data, ethernet)) in frames.iter().enumerate() {
            let link = if *ethernet { LinkType::Ethernet } else { LinkType::RawIp };
            let packet = Packet { time_ns: n as u64, link, original_len: 60 + n as u32, data };
            digest.packet(&packet);
            twin.uncommon(&packet);
        }
        prop_assert_eq!(&digest.rows, &twin.rows);
        prop_assert_eq!(&digest.times, &twin.times);
        prop_assert_eq!((digest.skipped, digest.ipv6), (twin.skipped, twin.ipv6));
    }
}
