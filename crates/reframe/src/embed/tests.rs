use core::net::IpAddr;

use proptest::prelude::*;
use slipstream_core::pool::PacketMeta;
use slipstream_core::stage::{Context, Observe, Stage};
use slipstream_wire::classify;

use super::*;
use crate::stage::ReframeStage;
use crate::{Admit, Budget, Class, ClassSettings, Policy, Rule};

/// A packet on the wire: Ethernet, IPv4, and UDP or TCP; or none that can be classified.
#[derive(Clone, Debug)]
struct Sent {
    gap: u64,
    flow: u8,
    kind: u8,
    len: u16,
}

impl Sent {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; 60 + usize::from(self.len)];
        let protocol = if self.kind == 0 { 17 } else { 6 };
        // One kind has IP options, so that its layers lie elsewhere.
        let words = if self.kind == 4 { 6 } else { 5 };
        bytes[12..24].copy_from_slice(&[8, 0, 0x40 | words, 0, 0, 46, 0, 0, 0, 0, 64, protocol]);
        bytes[26..34].copy_from_slice(&[10, 0, 0, self.flow, 10, 0, 0, 9]);
        let l4 = 14 + 4 * usize::from(words);
        bytes[l4 + 3] = 80;
        bytes[l4 + 13] = if self.kind == 2 { 2 } else { 0x10 };
        if self.kind == 3 {
            bytes[12] = 0x88;
        }
        bytes
    }
}

fn traffic() -> impl Strategy<Value = Vec<Sent>> {
    let gap = prop_oneof![3 => Just(0), 4 => 0..50_u64, 3 => 0..3000_u64, 1 => Just(1_000_000)];
    let kind = prop_oneof![4 => Just(0_u8), 4 => Just(1), 1 => Just(2), 1 => Just(3), 1 => Just(4)];
    let packet = (gap, 0..6_u8, kind, 0..3_u16);
    let packet = packet.prop_map(|(gap, flow, kind, len)| Sent { gap, flow, kind, len: 100 * len });
    prop::collection::vec(packet, 0..200)
}

/// The time in ns by which a poll is later than the packets.
fn polled_at() -> impl Strategy<Value = i64> {
    prop_oneof![4 => -400..1_i64, 1 => 0..6000_i64]
}

fn config() -> impl Strategy<Value = ReframeConfig> {
    let settings = || {
        (
            prop_oneof![Just(0_u64), Just(1), Just(40), 1..5000_u64],
            1..6_u16,
            1..3_u32,
            prop::bool::weighted(0.1),
        )
            .prop_map(|(hold_ns, burst, weight, bypass)| ClassSettings {
                hold_ns,
                hold_min_ns: None,
                burst,
                weight,
                bypass,
            })
    };
    let rule = prop::sample::select(vec![
        "tcp syn",
        "none",
        "length 200-9999",
        "src host 10.0.0.1",
        "udp or tcp syn",
    ]);
    let capacity = prop_oneof![Just(8192_u32), 1..20_u32];
    let bytes = prop_oneof![Just(64 << 20_u64), 100..3000_u64];
    let policy = prop::sample::select(vec![Policy::Oldest, Policy::Waiting, Policy::Shortest]);
    (settings(), prop::option::of(settings()), rule, capacity, bytes, policy, any::<bool>()).prop_map(
        |(default, class, bypass, capacity, capacity_bytes, policy, second)| ReframeConfig {
            default,
            capacity,
            capacity_bytes,
            flows: 1,
            policy,
            admit: if second { Admit::Second } else { Admit::Always },
            bypass: Rule::parse(bypass).unwrap(),
            classes: class.map(class_of).into_iter().collect(),
            ..ReframeConfig::default()
        },
    )
}

fn class_of(settings: ClassSettings) -> Class {
    Class {
        name: "some".to_owned(),
        rule: Rule::parse("length 150-9999 or src host 10.0.0.3").unwrap(),
        top: None,
        settings,
    }
}

/// The output: release times and handles, train by train.
type Trains = Vec<(u64, Vec<u32>)>;

#[derive(Default)]
struct Collect(Trains);

impl Output for Collect {
    fn emit(&mut self, pool: &mut Pool, batch: &mut Batch) {
        for (train, frames) in batch.iter() {
            let handles = frames.iter().map(|f| pool.meta(f.buf).interface);
            self.0.push((train.release.0, handles.collect()));
        }
        batch.clear();
    }
}

/// The trains of the stage in a pipeline, of batches as long as `sizes` say.
fn pipeline(config: &ReframeConfig, sent: &[Sent], sizes: &[usize]) -> (Trains, ReframeStats) {
    let mut stage = ReframeStage::new(config).unwrap();
    let (mut pool, mut out, mut now, mut at) = (Pool::new(), Collect::default(), 0, 0);
    let mut sizes = sizes.iter().cycle();
    while at < sent.len() {
        let batch = &sent[at..(at + sizes.next().unwrap()).min(sent.len())];
        let mut arrivals = Arrivals { first: at as u64, ..Arrivals::default() };
        for (n, packet) in batch.iter().enumerate() {
            now += packet.gap;
            let bytes = packet.bytes();
            let interface = (at + n) as u32;
            let meta = PacketMeta { original_len: bytes.len() as u32, interface, time: Nanos(now) };
            let buf = pool.insert(meta, &bytes);
            arrivals.frames.push(Frame::unclassified(Nanos(now), buf, bytes.len() as u32));
        }
        at += batch.len();
        let mut cx = Context { now: Nanos(now), pool: &mut pool, input: 0, links: &[LinkType::Ethernet] };
        stage.arrive(&mut cx, &mut arrivals, &mut out);
    }
    loop {
        let now = stage.next_deadline();
        if now == Nanos::MAX {
            break;
        }
        let mut cx = Context { now, pool: &mut pool, input: 0, links: &[LinkType::Ethernet] };
        stage.on_deadline(&mut cx, &mut out);
    }
    (out.0, *stage.figures().unwrap().downcast().unwrap())
}

/// Polls by one of the two ways.
fn poll(reframer: &mut Reframer, now: u64, burst: bool, out: &mut Trains) {
    if !burst {
        while let Some(train) = reframer.poll(Nanos(now)) {
            out.push((train.release.0, train.handles.to_vec()));
        }
        return;
    }
    let mut handles = [0; BATCH];
    loop {
        let mut lens = Vec::new();
        let (trains, n) = reframer.poll_burst(Nanos(now), 3, &mut handles, |i, train| {
            assert_eq!(i, lens.len());
            lens.push((train.release.0, train.handles.to_vec()));
        });
        assert_eq!((trains, n), (lens.len(), lens.iter().map(|l| l.1.len()).sum()));
        let joined: Vec<u32> = lens.iter().flat_map(|l| l.1.iter().copied()).collect();
        assert_eq!(handles[..n], joined);
        out.append(&mut lens);
        if trains == 0 {
            return;
        }
    }
}

proptest! {
    /// At the highest price an adaptive hold is a fixed one, in all that leaves and in every counter.
    #[test]
    fn at_the_highest_price_a_hold_is_fixed(
        config in config(),
        sent in traffic(),
        sizes in prop::collection::vec(1..80_usize, 1..4),
    ) {
        let fixed = ReframeConfig { admit: Admit::Always, ..config };
        let budget = Some(Budget::Price(Budget::MAX_PRICE_NS));
        let adaptive = ReframeConfig { admit: Admit::Adaptive, budget, ..fixed.clone() };
        let (expected, stats) = pipeline(&fixed, &sent, &sizes);
        let (trains, mut got) = pipeline(&adaptive, &sent, &sizes);
        prop_assert_eq!(trains, expected);
        prop_assert!(got.prices_ns.iter().all(|price| *price == Budget::MAX_PRICE_NS));
        prop_assert_eq!(got.prices_ns.len(), 1 + fixed.classes.len());
        got.prices_ns.clear();
        prop_assert_eq!(format!("{got:?}"), format!("{stats:?}"));
    }

    /// The obvious twin is the stage, fed in batches; here packets come one by one or in bursts of one time,
    /// with polls in between, some of them ahead of the packets: those come late, when it was polled.
    #[test]
    fn trains_are_those_of_the_pipeline(
        config in config(),
        sent in traffic(),
        sizes in prop::collection::vec(1..80_usize, 1..4),
        ways in prop::collection::vec((0..3_u8, any::<bool>(), any::<bool>(), polled_at()), 1..40),
    ) {
        let mut reframer = Reframer::new(&config).unwrap();
        let (mut out, mut now, mut at) = (Trains::new(), 0, 0);
        let (mut polled, mut arrived, mut late) = (0, 0, sent.clone());
        let mut ways = ways.iter().cycle();
        while at < sent.len() {
            let (way, polls, by_burst, ahead) = *ways.next().unwrap();
            now += sent[at].gap;
            if polls {
                let time = now.saturating_add_signed(ahead);
                poll(&mut reframer, time, by_burst, &mut out);
                polled = polled.max(time);
            }
            late[at].gap = now.max(polled) - arrived;
            arrived = now.max(polled);
            if way == 0 {
                reframer.push(Nanos(now), at as u32, &sent[at].bytes()).unwrap();
                at += 1;
            } else {
                let same = 1 + sent[at + 1..].iter().take(BATCH - 1).take_while(|p| p.gap == 0).count();
                let all: Vec<_> = sent[at..at + same].iter().map(Sent::bytes).collect();
                let packets: Vec<_> = (at as u32..).zip(&all).map(|(handle, bytes)| {
                    let len = bytes.len() as u32;
                    match (way, classify(LinkType::Ethernet, bytes)) {
                        (1, _) => Packet::new(handle, &bytes[..54]).wire_len(len),
                        (_, Ok(headers)) if headers.flags.has(Flags::TCP) => {
                            Packet::with_key(handle, len, headers.key).tcp_flags(headers.tcp_flags)
                        }
                        (_, Ok(headers)) => Packet::with_headers(handle, len, headers),
                        (_, Err(_)) => Packet::without_flow(handle, len),
                    }
                }).collect();
                reframer.push_burst(Nanos(now), packets.iter().copied()).unwrap();
                at += same;
            }
            prop_assert_eq!(reframer.packets() + out.iter().map(|t| t.1.len()).sum::<usize>(), at);
        }
        loop {
            let next = reframer.next_deadline();
            if next == Nanos::MAX {
                break;
            }
            let before = out.len();
            poll(&mut reframer, next.0, false, &mut out);
            prop_assert!(out.len() > before, "something leaves at the time that was named");
        }
        prop_assert_eq!(reframer.packets(), 0);
        let (expected, stats) = pipeline(&config, &late, &sizes);
        prop_assert_eq!(out, expected);
        prop_assert_eq!(reframer.stats(), stats);
    }

    /// Whatever is pushed, polled and drained, at whatever time: what was taken comes out exactly once.
    #[test]
    fn handles_come_out_once(
        config in config(),
        steps in prop::collection::vec((0..6_u8, any::<u64>(), prop::collection::vec(any::<u8>(), 0..90)), 0..200),
    ) {
        let mut reframer = Reframer::new(&config).unwrap();
        let (mut taken, mut out) = (0, Trains::new());
        let mut now = 0;
        for (step, time, bytes) in steps {
            let time = if time % 7 == 0 { time } else { now + time % 10_000 };
            match step {
                0 => poll(&mut reframer, time, time % 2 == 0, &mut out),
                1 => reframer.drain(),
                _ => match reframer.push(Nanos(time), taken, &bytes) {
                    Ok(()) => (taken, now) = (taken + 1, time.min(u64::MAX / 2)),
                    Err(PushError::TimeRanBackwards { now, last }) => prop_assert!(now < last),
                    Err(PushError::EndOfTime(arrival)) => prop_assert!(arrival > Reframer::LAST),
                    Err(PushError::Unpolled(n)) => prop_assert!(n > config.capacity as usize),
                    Err(error) => prop_assert!(false, "{}", error),
                },
            }
        }
        reframer.drain();
        poll(&mut reframer, 0, true, &mut out);
        let mut handles: Vec<u32> = out.into_iter().flat_map(|(_, handles)| handles).collect();
        handles.sort_unstable();
        prop_assert_eq!(handles, (0..taken).collect::<Vec<_>>());
    }
}

fn packet(flow: u8) -> Vec<u8> {
    Sent { gap: 0, flow, kind: 0, len: 0 }.bytes()
}

#[test]
fn who_never_polls_is_refused_and_loses_nothing() {
    let config = ReframeConfig { capacity: 4, ..ReframeConfig::default() };
    let mut reframer = Reframer::new(&config).unwrap();
    let mut taken = 0;
    let error = loop {
        match reframer.push(Nanos(taken), taken as u32, &packet(taken as u8)) {
            Ok(()) => taken += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(taken, 2 * 4 + BATCH as u64, "as the documentation says");
    assert_eq!((taken, error), (264, PushError::Unpolled(260)));
    let mut out = Trains::new();
    poll(&mut reframer, taken, true, &mut out);
    assert_eq!((out.len(), reframer.packets()), (260, 4));
    assert!(reframer.push(Nanos(taken), 0, &packet(0)).is_ok());
}

#[test]
fn what_cannot_be_is_refused_in_words() {
    let refused = |config| Reframer::new(&config).unwrap_err().to_string();
    let config = ReframeConfig::default;
    assert!(
        refused(ReframeConfig { compress_ack: true, ..config() }).contains("compress_ack reads the bytes")
    );
    assert!(refused(ReframeConfig { tcp_order: true, ..config() }).contains("tcp_order reads the bytes"));
    assert!(refused(ReframeConfig { capacity: 0, ..config() }).contains("capacity = 0"));
    let mut reframer = Reframer::new(&config()).unwrap();
    reframer.push(Nanos(5), 1, &packet(1)).unwrap();
    let error = reframer.push(Nanos(4), 2, &packet(1)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the time 0.000000004 s is before 0.000000005 s, when a packet was pushed; times must not run backwards"
    );
    let burst = [Packet::without_flow(0, 60); BATCH + 1];
    assert_eq!(reframer.push_burst(Nanos(5), burst.iter().copied()), Err(PushError::TooMany(257)));
    assert_eq!(reframer.packets(), 1, "nothing of what was refused is inside");
}

#[test]
fn a_key_says_what_bytes_say() {
    let host = |n| IpAddr::from([10, 0, 0, n]);
    let key = FlowKey::new(&[], host(1), host(9), 17, 0, 80).unwrap();
    let mut reframer = Reframer::new(&ReframeConfig::default()).unwrap();
    reframer.push(Nanos(1), 1, &packet(1)).unwrap();
    reframer.push(Nanos(2), 2, &packet(2)).unwrap();
    reframer.push_key(Nanos(3), 3, 60, key).unwrap();
    assert_eq!(reframer.poll(Nanos(64_001)), None);
    assert_eq!(reframer.next_deadline(), Nanos(64_002));
    assert_eq!(reframer.poll(Nanos(64_002)).unwrap().handles, [1, 3]);
    assert_eq!(reframer.poll(Nanos(64_002)), None);
    assert_eq!(reframer.poll(Nanos::MAX).unwrap().handles, [2]);
}

#[test]
fn time_passes_by_a_poll_that_gives_nothing() {
    let mut reframer = Reframer::new(&ReframeConfig::default()).unwrap();
    assert_eq!(reframer.poll(Nanos(1_000_000)), None);
    reframer.push(Nanos(0), 1, &packet(1)).unwrap();
    assert_eq!(reframer.poll(Nanos(1_000_000)), None);
    assert_eq!(reframer.next_deadline(), Nanos(1_064_001));
    // The same while another packet is held.
    assert_eq!(reframer.poll(Nanos(1_050_000)), None);
    reframer.push(Nanos(10), 2, &packet(2)).unwrap();
    let mut releases = Vec::new();
    while let Some(train) = reframer.poll(Nanos(2_000_000)) {
        releases.push((train.release, train.handles.to_vec()));
    }
    assert_eq!(releases, [(Nanos(1_064_000), vec![1]), (Nanos(1_114_000), vec![2])]);
}

#[test]
fn nothing_stays_inside_at_the_end_of_time() {
    let before = Nanos(u64::MAX - 1);
    for admit in [Admit::Always, Admit::Second, Admit::Adaptive] {
        for hold_ns in [0, 64_000, ReframeConfig::MAX_HOLD_NS] {
            let mut config = ReframeConfig { admit, ..ReframeConfig::default() };
            config.default.hold_ns = hold_ns;
            let mut reframer = Reframer::new(&config).unwrap();
            for handle in 0..3 {
                reframer.push(Reframer::LAST, handle, &packet(1)).unwrap();
            }
            let (next, mut out) = (reframer.next_deadline(), Trains::new());
            assert!(next < Nanos::MAX);
            poll(&mut reframer, next.0, false, &mut out);
            assert!(!out.is_empty());
            poll(&mut reframer, before.0, false, &mut out);
            assert_eq!(
                (out.into_iter().flat_map(|train| train.1).collect::<Vec<_>>(), reframer.packets()),
                (vec![0, 1, 2], 0)
            );
            assert_eq!(reframer.push(before, 3, &packet(1)), Err(PushError::EndOfTime(before)));
            assert_eq!(reframer.push(Reframer::LAST, 3, &packet(1)), Err(PushError::EndOfTime(before)));
        }
    }
    let mut reframer = Reframer::new(&ReframeConfig::default()).unwrap();
    let error = reframer.push(Reframer::LAST.after(1), 1, &packet(1)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a packet that arrives at 18446744069.709551614 s; 18446744069.709551613 s is the latest time, also to be \
         polled before"
    );
    assert!(reframer.push(Reframer::LAST, 1, &packet(1)).is_ok(), "nothing has changed");
}

#[test]
fn other_link_layers_and_tunnels_have_flows_too() {
    let config = ReframeConfig { encapsulation: Encapsulation::Inner, ..ReframeConfig::default() };
    let mut reframer = Reframer::new(&config).unwrap().with_link(LinkType::RawIp);
    // IP in IP: the outer packets are of one flow, the inner ones of two.
    for (n, flow) in [1, 2, 1, 2].into_iter().enumerate() {
        let mut bytes = vec![0x45, 0, 0, 66, 0, 0, 0, 0, 64, 4, 0, 0, 10, 1, 0, 1, 10, 1, 0, 2];
        bytes.extend_from_slice(&packet(flow)[14..]);
        reframer.push(Nanos(n as u64), n as u32, &bytes).unwrap();
    }
    assert_eq!(reframer.poll(Nanos::MAX).unwrap().handles, [0, 2]);
    assert_eq!(reframer.poll(Nanos::MAX).unwrap().handles, [1, 3]);
}

/// Frames that are read fast where the outer headers are asked for: the inner ones say which flow it is.
#[test]
fn the_flow_of_a_usual_frame_is_in_the_tunnel_where_that_is_asked_for() {
    let encapsulated = |flow: u8| {
        let mut bytes = packet(9);
        bytes[34..38].copy_from_slice(&[200, 0, 0x12, 0xb5]); // to the port of VXLAN
        bytes.resize(42, 0);
        bytes.extend_from_slice(&[8, 0, 0, 0, 0, 0, 7, 0]);
        bytes.extend_from_slice(&packet(flow));
        let len = (bytes.len() - 14) as u16;
        bytes[16..18].copy_from_slice(&len.to_be_bytes());
        bytes
    };
    assert!(slipstream_wire::classify_usual(encapsulated(1).first_chunk().unwrap()).is_some());
    let orders = [
        (Encapsulation::Outer, vec![vec![0, 1, 2, 3]]),
        (Encapsulation::Inner, vec![vec![0, 2], vec![1, 3]]),
    ];
    for (encapsulation, expected) in orders {
        let config = ReframeConfig { encapsulation, ..ReframeConfig::default() };
        let mut reframer = Reframer::new(&config).unwrap();
        for (n, flow) in [1, 2, 1, 2].into_iter().enumerate() {
            reframer.push(Nanos(n as u64), n as u32, &encapsulated(flow)).unwrap();
        }
        let mut out = Trains::new();
        poll(&mut reframer, 1_000_000, false, &mut out);
        let handles: Vec<_> = out.into_iter().map(|(_, handles)| handles).collect();
        assert_eq!(handles, expected, "{encapsulation:?}");
    }
}

/// Whatever its bytes or its key say, a packet that is longer than frames can be belongs to no flow.
#[test]
fn a_packet_too_long_to_be_classified_passes() {
    let (bytes, key) = (packet(1), FlowKey::new(&[], [1; 4].into(), [2; 4].into(), 17, 1, 2).unwrap());
    for (len, held) in [(MAX_FRAME_LEN, 2), (MAX_FRAME_LEN + 1, 0)] {
        let mut reframer = Reframer::new(&ReframeConfig::default()).unwrap();
        let packets = [Packet::new(0, &bytes).wire_len(len), Packet::with_key(1, len, key)];
        reframer.push_burst(Nanos(0), packets.iter().copied()).unwrap();
        assert_eq!(reframer.packets() - reframer.unpolled(), held, "{len}");
    }
}

/// Trains of a flow that leave at one time may be of several classes: the one that weighs more comes behind
/// the one before it all the same.
#[test]
fn no_train_overtakes_one_of_its_flow_by_its_weight() {
    for policy in [Policy::Oldest, Policy::Waiting, Policy::Shortest] {
        let settings = ClassSettings { burst: 2, ..ReframeConfig::default().default };
        let long = Class {
            name: "long".into(),
            rule: Rule::parse("length 500-1500").unwrap(),
            ..class_of(ClassSettings { weight: 1000, ..settings.clone() })
        };
        let config =
            ReframeConfig { default: settings, classes: vec![long], policy, ..ReframeConfig::default() };
        let mut reframer = Reframer::new(&config).unwrap();
        for (handle, (time, len)) in
            (0..).zip([(0, 60), (0, 60), (9, 60), (9, 60), (9, 600), (9, 600), (9, 60), (9, 60)])
        {
            let bytes = packet(1);
            let packet = [Packet::new(handle, &bytes).wire_len(len)];
            reframer.push_burst(Nanos(time), packet.iter().copied()).unwrap();
        }
        let mut out = Trains::new();
        poll(&mut reframer, 10, false, &mut out);
        let handles: Vec<u32> = out.into_iter().flat_map(|(_, handles)| handles).collect();
        assert_eq!(handles, [0, 1, 2, 3, 4, 5, 6, 7], "{policy:?}");
    }
}

/// A caller who polls one packet for each that he pushes, near the bound of what may wait, doesn't have
/// everything that waits moved each time.
#[test]
fn what_waits_is_seldom_moved() {
    let config = ReframeConfig { capacity: 4096, ..ReframeConfig::default() };
    let mut reframer = Reframer::new(&config).unwrap();
    let push = |reframer: &mut Reframer| {
        reframer.push_burst(Nanos(0), [Packet::without_flow(7, 60)].iter().copied())
    };
    while push(&mut reframer).is_ok() {}
    let (mut moved, mut before) = (0, 0);
    for _ in 0..20_000 {
        assert!(reframer.poll(Nanos(1)).is_some());
        push(&mut reframer).unwrap();
        moved += usize::from(reframer.ready.handles_polled < before);
        before = reframer.ready.handles_polled;
    }
    assert!((1..=8).contains(&moved), "{moved}");
    assert_eq!(reframer.ready.handles.capacity(), Ready::room(Reframer::limit(&config)));
}

/// Packets whose description panicked were not taken.
#[test]
fn what_was_not_described_was_not_taken() {
    let mut reframer = Reframer::new(&ReframeConfig::default()).unwrap();
    let packets = (0..4).map(|n| {
        assert!(n < 3);
        Packet::without_flow(n, 60)
    });
    let pushed = std::panic::AssertUnwindSafe(|| reframer.push_burst(Nanos(1), packets));
    assert!(std::panic::catch_unwind(pushed).is_err());
    reframer.push_burst(Nanos(1), [Packet::without_flow(9, 60)].iter().copied()).unwrap();
    assert_eq!(reframer.poll(Nanos(2)).map(|train| train.handles), Some(&[9][..]));
    assert_eq!(reframer.poll(Nanos(2)), None);
    assert_eq!(reframer.stats().packets_in, 1);
}
