//! A firewall before fragments, against a slow twin: the datagrams as they were before they were cut.

use proptest::prelude::*;
use slipstream_wire::{LinkType, classify};

use crate::conntrack::ConntrackConfig;
use crate::firewall::{ConnState, Firewall, FirewallStage, Method, PacketFields, RuleSet, Verdict as Fate};
use crate::test_packets::{echo, filled, ipv4, ipv4_fragment, tcp, udp};
use crate::{PerPacket, PerTrain};
use slipstream_core::batch::{Batch, Train};
use slipstream_core::flow_context::FlowContexts;
use slipstream_core::frame::{Frame, Info};
use slipstream_core::pool::{PacketMeta, Pool};
use slipstream_core::stage::Output;
use slipstream_core::stage::{Context, DropReason, Stage};
use slipstream_core::time::Nanos;

const RULES: &str = "deny state invalid\ndeny udp dst port 5353\ndeny flags syn,!ack dst port 23\ndeny length 500-\n\
                     count tcp\nlog 1/3 udp\nallow state new\ndefault deny";

/// A datagram: its kind, bytes of payload, bytes of a fragment in units of eight (0: it is whole), one that
/// gets lost, and the times of its fragments.
#[derive(Clone, Debug)]
struct Sent {
    kind: u8,
    size: usize,
    units: usize,
    lost: Option<usize>,
    times: Vec<u16>,
}

fn sent() -> impl Strategy<Value = Sent> {
    let units = prop_oneof![1 => Just(0_usize), 3 => 1..30_usize];
    (
        0..6_u8,
        0..600_usize,
        units,
        prop::option::weighted(0.15, 0..90_usize),
        prop::collection::vec(0..40_u16, 90),
    )
        .prop_map(|(kind, size, units, lost, times)| {
            // A first fragment of TCP has the flags.
            let least = if (2..5).contains(&kind) && units > 0 { 2 } else { 0 };
            Sent { kind, size, units: units.max(least), lost, times }
        })
}

/// A datagram, and its fragments.
fn packets(n: u16, sent: &Sent) -> (Vec<u8>, Vec<Vec<u8>>) {
    let data = vec![n as u8; sent.size];
    let (protocol, payload) = match sent.kind {
        0 => (17, udp(4000 + n % 3, 53, &data)),
        1 => (17, udp(4000 + n % 3, 5353, &data)),
        2 => (6, tcp(4000 + n % 3, 80, 2, &data)),
        3 => (6, tcp(4000 + n % 3, 23, 2, &data)),
        4 => (6, tcp(4000 + n % 3, 80, 3, &data)),
        _ => (1, echo(8, n % 3, &data)),
    };
    let numbered = |mut packet: Vec<u8>| {
        packet[4..6].copy_from_slice(&n.to_be_bytes());
        filled(packet)
    };
    let whole = numbered(ipv4(protocol, 0x0a00_0001, 0x0a00_0002, &payload));
    let size = sent.units * 8;
    if size == 0 || size >= payload.len() {
        return (whole.clone(), vec![whole]);
    }
    let piece = |(i, bytes): (usize, &[u8])| {
        let more = if (i + 1) * size < payload.len() { 0x2000 } else { 0 };
        let word = more | (i * size / 8) as u16;
        numbered(ipv4_fragment(protocol, 0x0a00_0001, 0x0a00_0002, word, &[], bytes))
    };
    let fragments = whole[20..].chunks(size).enumerate().map(piece).collect();
    (whole, fragments)
}

/// A packet that left: its port, its bytes, and when.
pub(crate) type Left = (u8, Vec<u8>, Nanos);

#[derive(Default)]
pub(crate) struct Collect(Vec<Left>);

impl Output for Collect {
    fn emit(&mut self, pool: &mut Pool, batch: &mut Batch) {
        assert!(batch.frames.len() <= slipstream_core::batch::BATCH);
        for (i, (train, frames)) in batch.iter().enumerate() {
            let port = batch.ports.get(i).copied().unwrap_or(0);
            for frame in frames {
                assert!(!frame.info.is_datagram());
                let time = train.release.max(frame.arrival);
                self.0.push((port, pool.data(frame.buf, frame.len).to_vec(), time));
                pool.free(frame.buf);
            }
        }
        batch.clear();
    }
}

/// Hands packets to a stage in batches of these sizes, packets of one flow behind each other as a train; lets
/// time run out.
pub(crate) fn run(stage: &mut dyn Stage, packets: &[Vec<u8>], sizes: &[usize]) -> (Vec<Left>, u64) {
    run_with(stage, packets, sizes, &mut None)
}

/// The same with flow contexts.
pub(crate) fn run_with(
    stage: &mut dyn Stage,
    packets: &[Vec<u8>],
    sizes: &[usize],
    contexts: &mut Option<Box<FlowContexts>>,
) -> (Vec<Left>, u64) {
    let (mut pool, mut out, mut now) = (Pool::new(), Collect::default(), 1 << 60);
    let mut left = packets;
    for size in sizes.iter().cycle() {
        let (batched, rest) = left.split_at((*size).min(left.len()));
        left = rest;
        let mut batch = Batch::new();
        let mut before = None;
        for packet in batched {
            let meta = PacketMeta { original_len: packet.len() as u32, ..PacketMeta::default() };
            let buf = pool.insert(meta, packet);
            let headers = classify(LinkType::RawIp, packet).ok();
            now += 1000;
            let frame = Frame::unclassified(Nanos(now), buf, packet.len() as u32);
            let start = batch.frames.len() as u32;
            let info = headers.as_ref().map_or(frame.info, Info::new);
            batch.frames.push(Frame { info, ..frame });
            let key = headers.map(|headers| headers.key);
            match batch.trains.last_mut() {
                Some(train) if key.is_some() && before == key => train.len += 1,
                _ => batch.trains.push(Train {
                    flow: 0,
                    start,
                    len: 1,
                    release: Nanos(now),
                    order: 0,
                    sequence: 0,
                    continues: false,
                }),
            }
            before = key;
        }
        let mut cx = Context { now: Nanos(now), pool: &mut pool, input: 0, links: &[LinkType::RawIp] };
        if let Some(contexts) = contexts {
            contexts.look_up(&cx, &mut batch, 0);
        }
        std::mem::swap(cx.pool.flows(), contexts);
        stage.process(&mut cx, &mut batch, &mut out);
        std::mem::swap(cx.pool.flows(), contexts);
        if let Some(contexts) = contexts {
            contexts.leave();
        }
        if left.is_empty() {
            break;
        }
    }
    while stage.next_deadline() < Nanos::MAX {
        let now = stage.next_deadline();
        let mut cx = Context { now, pool: &mut pool, input: 0, links: &[LinkType::RawIp] };
        stage.on_deadline(&mut cx, &mut out);
    }
    assert_eq!((stage.held(), pool.live()), (0, 0));
    (out.0, stage.drops().iter().find(|(r, _)| *r == DropReason::FragmentTimeout).map_or(0, |(_, n)| n))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// However datagrams are cut and mixed, their fragments fare as they would have whole, once per train as
    /// per packet, and leave at the same time.
    #[test]
    fn fragments_fare_as_their_datagram(all in prop::collection::vec(sent(), 1..25), sizes in prop::collection::vec(1..256_usize, 1..6)) {
        let rules = RuleSet::parse(RULES).unwrap();
        let twin = Firewall::new(rules.clone(), Method::Linear);
        let (mut wire, mut expected, mut timed_out) = (Vec::new(), Vec::new(), 0);
        for (n, sent) in (0..).zip(&all) {
            let (whole, mut fragments) = packets(n, sent);
            let headers = classify(LinkType::RawIp, &whole).unwrap();
            let state = if sent.kind == 4 { ConnState::Invalid } else { ConnState::New };
            let fields = PacketFields::new(&headers, whole.len() as u32).with_state(state);
            let port = u8::from(twin.decide(&fields, |_, _| {}).verdict != Fate::Allow);
            match sent.lost.filter(|_| fragments.len() > 1) {
                Some(lost) => {
                    fragments.remove(lost % fragments.len());
                    timed_out += fragments.len() as u64;
                }
                None => expected.extend(fragments.iter().map(|fragment| (port, fragment.clone()))),
            }
            let times = sent.times.iter().map(|time| u64::from(n) * 8 + u64::from(*time));
            wire.extend(times.zip(fragments));
        }
        wire.sort();
        let wire: Vec<Vec<u8>> = wire.into_iter().map(|(_, packet)| packet).collect();
        let stage = || {
            let mut stage = FirewallStage::new(Firewall::new(rules.clone(), Method::Fast), 0, true, 7);
            stage.track(&ConntrackConfig::default());
            stage
        };
        let (trains, late) = run(&mut PerTrain::new(stage()), &wire, &sizes);
        let single = run(&mut PerPacket::new(stage()), &wire, &[1]);
        prop_assert_eq!((&trains, late), (&single.0, single.1));
        prop_assert_eq!(late, timed_out);
        // The fragments of a datagram are behind each other, in order.
        let place = |packet: &[u8]| (packet[4..6].to_vec(), u16::from_be_bytes([packet[6], packet[7]]) & 0x1fff);
        for pair in trains.windows(2) {
            let (first, second) = (place(&pair[0].1), place(&pair[1].1));
            prop_assert!(second.1 == 0 || first.0 == second.0 && first.1 < second.1);
        }
        let mut sorted: Vec<_> = trains.into_iter().map(|(port, packet, _)| (port, packet)).collect();
        let mut wanted = expected;
        sorted.sort();
        wanted.sort();
        prop_assert_eq!(sorted, wanted);
    }
}

/// A batch that is full of datagrams goes on in between; what comes behind still leaves when it is complete.
#[test]
fn datagrams_leave_when_they_are_complete_in_large_batches_too() {
    let sent = Sent { kind: 0, size: 300, units: 10, lost: None, times: Vec::new() };
    let wire: Vec<_> = (0..150).flat_map(|n| packets(n, &sent).1).collect();
    let stage = || {
        let mut stage =
            FirewallStage::new(Firewall::new(RuleSet::parse(RULES).unwrap(), Method::Fast), 0, true, 7);
        stage.track(&ConntrackConfig::default());
        stage
    };
    let (large, single) =
        (run(&mut PerTrain::new(stage()), &wire, &[256]), run(&mut PerPacket::new(stage()), &wire, &[1]));
    assert!(wire.len() > 512);
    assert_eq!(large, single);
}
