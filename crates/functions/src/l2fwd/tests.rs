//! The bridge against a slow twin: a map of who was seen where and when.

use std::collections::HashMap;

use proptest::prelude::*;
use slipstream_wire::{LinkType, classify};

use super::Bridge;
use crate::mac_table::{MacTable, Station};
use crate::{PerPacket, PerTrain};
use slipstream_core::batch::{Batch, Train};
use slipstream_core::frame::{Frame, Info};
use slipstream_core::pool::{PacketMeta, Pool};
use slipstream_core::stage::Output;
use slipstream_core::stage::{Context, Observe, Stage};
use slipstream_core::time::Nanos;

const PORTS: u8 = 4;
const AGEING: u64 = 1_000_000_000;

/// A packet that leaves: port and bytes.
#[derive(Default)]
struct Collect(Vec<(u8, Vec<u8>)>);

impl Output for Collect {
    fn emit(&mut self, pool: &mut Pool, batch: &mut Batch) {
        for (i, (_, frames)) in batch.iter().enumerate() {
            let port = batch.ports.get(i).copied().unwrap_or(0);
            for frame in frames {
                self.0.push((port, pool.data(frame.buf, frame.len).to_vec()));
                pool.free(frame.buf);
            }
        }
        batch.clear();
    }
}

/// A frame: sender, receiver (250 and up: a group), VLAN, and a number that tells it from others of its
/// train.
type Sent = (u8, u8, u8, u8);

fn bytes((from, to, vlan, n): Sent) -> Vec<u8> {
    let mut frame = vec![if to >= 250 { 1 } else { 2 }, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from];
    if vlan > 0 {
        frame.extend([0x81, 0, 0, vlan]);
    }
    frame.extend([
        8, 0, 0x45, 0, 0, 29, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 1, 0, 2, 0, 9, 0, 0, n,
    ]);
    frame
}

fn train(pool: &mut Pool, batch: &mut Batch, link: LinkType, now: Nanos, sent: &[Vec<u8>]) {
    let start = batch.frames.len() as u32;
    for data in sent {
        let meta = PacketMeta { original_len: data.len() as u32, interface: 0, time: now };
        let buf = pool.insert(meta, data);
        let info = Info::new(&classify(link, data).unwrap());
        batch.frames.push(Frame { info, ..Frame::unclassified(now, buf, data.len() as u32) });
    }
    let len = sent.len() as u32;
    batch.trains.push(Train { flow: 0, start, len, release: now, order: 0, sequence: 0, continues: false });
}

fn run(stage: &mut dyn Stage, pool: &mut Pool, input: u8, now: Nanos, sent: &[Sent]) -> Vec<(u8, Vec<u8>)> {
    // Trains are of one flow: one VLAN.
    let trains = sent.chunk_by(|a, b| a.2 == b.2).map(|same| same.iter().copied().map(bytes).collect());
    run_on(LinkType::Ethernet, stage, pool, (input, now), trains)
}

fn run_on(
    link: LinkType,
    stage: &mut dyn Stage,
    pool: &mut Pool,
    (input, now): (u8, Nanos),
    trains: impl Iterator<Item = Vec<Vec<u8>>>,
) -> Vec<(u8, Vec<u8>)> {
    let (mut batch, mut out) = (Batch::new(), Collect::default());
    for same in trains {
        train(pool, &mut batch, link, now, &same);
    }
    let links = [link];
    let mut cx = Context { now, pool, input, links: &links };
    stage.process(&mut cx, &mut batch, &mut out);
    out.0
}

proptest! {
    #[test]
    fn equals_a_map(batches in proptest::collection::vec(
        (0..PORTS, 0..400_000_000_u64, proptest::collection::vec((0..8_u8, prop_oneof![0..8_u8, 250..=255_u8], 0..3_u8, any::<u8>()), 1..12)),
        1..40,
    )) {
        let bridge = || Bridge::new(PORTS, MacTable::new(1000, AGEING, 3));
        let (mut trains, mut packets) = (PerTrain::new(bridge()), PerPacket::new(bridge()));
        let mut pool = Pool::new();
        let mut seen: HashMap<(u8, u8), (u8, u64)> = HashMap::new();
        let mut now = 7;
        for (input, gap, sent) in batches {
            now += gap;
            let mut expected = Vec::new();
            for one @ (from, to, vlan, _) in &sent {
                seen.insert((*vlan, *from), (input, now));
                let known = seen.get(&(*vlan, *to)).filter(|(_, t)| now < t + AGEING).map(|(port, _)| *port);
                for port in (0..PORTS).filter(|port| *port != input && known.is_none_or(|k| k == *port)) {
                    expected.push((port, bytes(*one)));
                }
            }
            // Copies of a frame leave right behind it, whatever train it is in.
            let by_train = run(&mut trains, &mut pool, input, Nanos(now), &sent);
            prop_assert_eq!(&by_train, &expected);
            prop_assert_eq!(run(&mut packets, &mut pool, input, Nanos(now), &sent), expected);
        }
        prop_assert_eq!(pool.live(), 0);
        prop_assert!(trains.decisions() <= packets.decisions());
        prop_assert_eq!(trains.drops(), packets.drops());
    }

    /// Each frame of a station that finds no room, or is not where the settings say, is counted, by trains as
    /// packet by packet.
    #[test]
    fn a_full_table_counts_frames(batches in proptest::collection::vec(
        (0..PORTS, 0..400_000_000_u64, proptest::collection::vec((0..4_u8, 0..4_u8, 0..2_u8), 1..5), 1..6_usize),
        1..30,
    )) {
        let bridge = || {
            let mut table = MacTable::new(3, AGEING, 3);
            table.fix(Station { vlan: 0, mac: [2, 0, 0, 0, 0, 1] }, 2);
            Bridge::new(PORTS, table)
        };
        let (mut trains, mut packets) = (PerTrain::new(bridge()), PerPacket::new(bridge()));
        let (mut pool, mut now) = (Pool::new(), 7);
        for (input, gap, sent, times) in batches {
            now += gap;
            let sent: Vec<Sent> = sent.iter().flat_map(|(from, to, vlan)| (0..times).map(|n| (*from, *to, *vlan, n as u8))).collect();
            let by_train = run(&mut trains, &mut pool, input, Nanos(now), &sent);
            prop_assert_eq!(run(&mut packets, &mut pool, input, Nanos(now), &sent), by_train);
        }
        prop_assert_eq!(counted(&trains), counted(&packets));
    }
}

fn counted(stage: &dyn Stage) -> Vec<(&'static str, u64)> {
    let mut all = Vec::new();
    stage.counters(&mut |name, n| all.push((name, n)));
    all.retain(|(name, _)| *name != "decisions");
    all
}

/// Frames that have no Ethernet addresses, or a group's as source, tell nothing about stations, neither alone
/// nor as a train.
#[test]
fn what_is_dropped_unread_teaches_nothing() {
    let cooked = [&[0, 0, 0, 1, 0, 6][..], &[2, 0, 0, 0, 0, 1, 0, 0], &bytes((0, 0, 0, 7))[12..]].concat();
    let mut from_group = bytes((1, 2, 0, 7));
    from_group[6] = 3;
    for (link, frame) in [(LinkType::LinuxSll, cooked), (LinkType::Ethernet, from_group)] {
        let bridge = || Bridge::new(PORTS, MacTable::new(1000, AGEING, 3));
        let (mut trains, mut packets) = (PerTrain::new(bridge()), PerPacket::new(bridge()));
        let mut pool = Pool::new();
        for stage in [&mut trains as &mut dyn Stage, &mut packets] {
            let sent = std::iter::once(vec![frame.clone(); 3]);
            assert!(run_on(link, stage, &mut pool, (0, Nanos(7)), sent).is_empty());
            // A station that really is at port 1 stays there.
            run(stage, &mut pool, 1, Nanos(8), &[(1, 9, 0, 0)]);
            let sent = std::iter::once(vec![frame.clone(); 3]);
            assert!(run_on(link, stage, &mut pool, (0, Nanos(9)), sent).is_empty());
            assert_eq!(run(stage, &mut pool, 2, Nanos(10), &[(2, 1, 0, 0)]), [(1, bytes((2, 1, 0, 0)))]);
        }
        assert_eq!(counted(&trains), counted(&packets));
        let refused = counted(&trains).into_iter().find(|(name, _)| *name == "stations_refused");
        assert_eq!(refused, Some(("stations_refused", 0)));
    }
}
