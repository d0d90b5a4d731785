//! The ACK compressor against the obvious twin, and what a data sender makes of its work.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::ack_tests::{ack, compress, sack, timestamps};
use super::test_packets::{ACK, ECE, PSH, Packet};
use super::{AckCompressor, AckState, PacketView};

/// The obvious twin, in the fields that packets were made of: whether packet `i` may vanish.
fn may_vanish(before: &[Packet], train: &[Packet], i: usize) -> bool {
    let (Some(next), this) = (train.get(i + 1), &train[i]) else { return false };
    let pure = |p: &Packet| {
        p.payload == 0
            && (p.flags == ACK || p.flags == ACK | ECE)
            && p.urgent == 0
            && p.tcp_checksum_error == 0
            && p.tos & 3 == 0
            && p.snap.is_none()
    };
    let behind = |a: u32, b: u32| a == b || a.wrapping_sub(b) > 1 << 30;
    let seen: Vec<u32> =
        before.iter().chain(&train[..i]).filter(|p| p.flags & ACK != 0).map(|p| p.ack).collect();
    let all_read = before.iter().chain(&train[..i]).all(|p| p.snap.is_none());
    let advances = all_read && !seen.is_empty() && seen.iter().all(|&a| !behind(this.ack, a));
    let field = |p: &Packet| (p.seq, p.flags, p.tos, p.ttl, p.hardware, p.options.len());
    let stamp = |p: &Packet| {
        let number = |at: usize| p.options.get(at..at + 4).map(|b| u32::from_be_bytes(b.try_into().unwrap()));
        if p.options.get(2) == Some(&8) { (number(4), number(8)) } else { (None, None) }
    };
    let options = match (stamp(this), stamp(next)) {
        ((Some(v1), Some(e1)), (Some(v2), Some(e2))) => v2 >= v1 && e2 >= e1,
        _ => {
            this.options == next.options
                && (this.options.is_empty() || first_block(this).is_none_or(|(s, _)| s >= this.ack))
        }
    };
    pure(this)
        && pure(next)
        && advances
        && !behind(next.ack, this.ack)
        && next.window >= this.window
        && field(this) == field(next)
        && options
}

fn first_block(p: &Packet) -> Option<(u32, u32)> {
    let number = |at: usize| u32::from_be_bytes(p.options[at..at + 4].try_into().unwrap());
    (p.options.get(2) == Some(&5)).then(|| (number(4), number(8)))
}

/// A data sender's reading of the acknowledgements of its peer, for events and final state to be compared.
#[derive(Debug, Default, PartialEq)]
struct Sender {
    una: Option<u32>,
    /// The number at each duplicate acknowledgement (RFC 5681 §2).
    duplicates: Vec<u32>,
    last_window: Option<u16>,
    /// Bytes, in units of the test, known to have arrived beyond `una`.
    scoreboard: BTreeSet<(u32, u32)>,
    /// Reports of packets that came twice.
    duplicate_sacks: Vec<(u32, u32)>,
    /// The furthest byte that may be sent, for window scales 0 to 14.
    edges: [u64; 15],
    newest: (u32, u32),
    ece: Option<bool>,
    ece_edges: usize,
    /// Everything that isn't a pure acknowledgement, in its order.
    others: Vec<(u32, u16, usize)>,
}

impl Sender {
    fn of(packets: &[&Packet]) -> Self {
        let mut sender = Self::default();
        packets.iter().for_each(|p| sender.receive(p));
        sender
    }

    fn receive(&mut self, p: &Packet) {
        if p.payload > 0 || p.flags & !ECE != ACK {
            self.others.push((p.seq, p.flags, p.payload));
        }
        if p.tcp_checksum_error != 0 || p.flags & ACK == 0 {
            return;
        }
        let una = self.una.unwrap_or(p.ack);
        if p.payload == 0 && p.ack == una && self.una.is_some() && self.last_window == Some(p.window) {
            self.duplicates.push(una);
        }
        self.last_window = Some(p.window);
        self.una = Some(una.max(p.ack));
        if let Some(block) = first_block(p) {
            if block.0 < p.ack { self.duplicate_sacks.push(block) } else { _ = self.scoreboard.insert(block) }
        }
        self.scoreboard.retain(|&(start, _)| start >= una.max(p.ack));
        for (scale, edge) in self.edges.iter_mut().enumerate() {
            *edge = (*edge).max(u64::from(p.ack) + (u64::from(p.window) << scale));
        }
        if p.options.get(2) == Some(&8) {
            let number = |at: usize| u32::from_be_bytes(p.options[at..at + 4].try_into().unwrap());
            self.newest = self.newest.max((number(4), number(8)));
        }
        let ece = p.flags & ECE != 0;
        self.ece_edges += usize::from(self.ece.is_some_and(|before| before != ece));
        self.ece = Some(ece);
    }
}

/// Packets that mostly advance, and differ in one thing or another now and then. Numbers stay within 2³¹.
fn train() -> impl Strategy<Value = Vec<Packet>> {
    let options = || prop_oneof![4 => Just(0_u8), 4 => Just(1), 2 => Just(2), 1 => Just(3), 1 => Just(4)];
    let other_options = prop::option::weighted(0.1, options());
    let step = prop_oneof![8 => 1..200_u32, 2 => Just(0), 1 => Just(200_000)];
    let odd = prop_oneof![9 => Just(0_u8), 1 => 1..12_u8];
    let packet = (
        step,
        any::<bool>(),
        other_options,
        0..4_u32,
        0..3_u32,
        prop_oneof![9 => Just(500), 1 => 0..1000_u16],
        odd,
    );
    (options(), prop::collection::vec(packet, 0..24)).prop_map(|(usual, steps)| {
        let (mut number, mut clock, mut echo) = (1_000_000, 10_000_u32, 20_000_u32);
        steps
            .into_iter()
            .map(|(step, ece, options, tick, back, window, odd)| {
                // Two hundred thousand is a step back: a packet that was overtaken.
                number = if step == 200_000 { number - 50 } else { number + step };
                clock += tick;
                echo += tick;
                let mut p = Packet { window, ..ack(number) };
                p.options = match options.unwrap_or(usual) {
                    0 => vec![],
                    1 => timestamps(clock - 2 * (back / 2), echo),
                    2 => sack(&[(1_100_000, 1_200_000)]),
                    3 => sack(&[(number + tick, number + 5)]),
                    _ => sack(&[(500_000, 500_100)]),
                };
                match odd {
                    1 => p.payload = 10,
                    2 => p.flags |= PSH,
                    3 => p.tcp_checksum_error = 1,
                    4 => p.tos = 1,
                    5 => p.ttl = 60,
                    6 => p.seq += 1,
                    7 => p.hardware = 2,
                    11 => (p.flags, p.ack) = (PSH, number.wrapping_mul(1 + tick)),
                    10 if ece && tick == 3 => p.snap = Some(14 + 20 + 13),
                    8 | 9 if ece => p.flags |= ECE,
                    _ => {}
                }
                p
            })
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn what_goes_is_what_the_obvious_twin_lets_go(packets in train(), cut in 0..24_usize) {
        let (first, second) = packets.split_at(cut.min(packets.len()));
        let mut state = AckState::default();
        for (before, train) in [(&[][..], first), (first, second)] {
            let expected: Vec<_> = (0..train.len()).map(|i| !may_vanish(before, train, i)).collect();
            prop_assert_eq!(compress(&mut state, train), expected);
        }
    }

    #[test]
    fn the_sender_learns_the_same(packets in train(), cut in 0..24_usize) {
        let (first, second) = packets.split_at(cut.min(packets.len()));
        let mut state = AckState::default();
        let mut keep = compress(&mut state, first);
        keep.extend(compress(&mut state, second));
        let all: Vec<_> = packets.iter().collect();
        let left: Vec<_> = packets.iter().zip(&keep).filter(|(_, k)| **k).map(|(p, _)| p).collect();
        prop_assert_eq!(Sender::of(&left), Sender::of(&all));
    }

    #[test]
    fn any_bytes_are_taken(
        packets in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..80), 0..60_u16, 0..90_u16), 0..8),
    ) {
        let views: Vec<_> = packets.iter().map(|(data, l3, l4)| PacketView { data, l3: *l3, l4: *l4 }).collect();
        let mut keep = Vec::new();
        AckCompressor.compress(&mut AckState::default(), &views, &mut keep);
        prop_assert_eq!(keep.len(), views.len());
        prop_assert!(keep.last().is_none_or(|&last| last));
    }
}

#[test]
fn the_property_tests_see_acknowledgements_go() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut gone = 0;
    for _ in 0..100 {
        let packets = train().new_tree(&mut runner).unwrap().current();
        gone += compress(&mut AckState::default(), &packets).iter().filter(|&&k| !k).count();
    }
    assert!(gone > 200, "{gone}");
}
