use std::net::Ipv6Addr;

use proptest::prelude::*;
use slipstream_wire::{LinkType, classify};

use super::*;
use crate::test_packets::{filled, ipv4, ipv4_fragment, ipv6, is_right, tcp, udp};
use slipstream_core::frame::Info;
use slipstream_core::pool::PacketMeta;
use slipstream_core::time::SECOND;

const START: Nanos = Nanos(1 << 60);
const A: u32 = 0x0a00_0001;
const B: u32 = 0x0a00_0002;

/// A fragment: IP version, identification, place of its first byte, bytes, whether more follow.
#[derive(Clone, Debug)]
struct Cut {
    six: bool,
    ident: u16,
    start: usize,
    bytes: Vec<u8>,
    more: bool,
}

impl Cut {
    fn packet(&self) -> Vec<u8> {
        let more = u16::from(self.more);
        if self.six {
            let word = self.start as u16 | more;
            let mut payload =
                [&[17, 0], &word.to_be_bytes()[..], &[0, 0], &self.ident.to_be_bytes()].concat();
            payload.extend(&self.bytes);
            return ipv6(44, Ipv6Addr::from(1), Ipv6Addr::from(2), &payload);
        }
        let mut packet = ipv4_fragment(17, A, B, more << 13 | (self.start / 8) as u16, &[], &self.bytes);
        packet[4..6].copy_from_slice(&self.ident.to_be_bytes());
        filled(packet)
    }
}

/// The parts of a context.
struct Bench {
    pool: Pool,
    reassembler: Reassembler,
}

impl Bench {
    fn new(limits: FragmentLimits) -> Self {
        Self { pool: Pool::new(), reassembler: Reassembler::new(limits) }
    }

    fn take_packet(&mut self, packet: &[u8], now: Nanos, input: u8) -> Taken {
        let meta = PacketMeta { original_len: packet.len() as u32, ..PacketMeta::default() };
        let buf = self.pool.insert(meta, packet);
        let mut frame = Frame::unclassified(now, buf, packet.len() as u32);
        frame.info = Info::new(&classify(LinkType::RawIp, packet).unwrap());
        assert!(self.reassembler.wants(&frame));
        let mut cx = Context { now, pool: &mut self.pool, input, links: &[LinkType::RawIp] };
        self.reassembler.take(&mut cx, &frame)
    }

    fn take(&mut self, cut: &Cut, now: Nanos) -> Taken {
        self.take_packet(&cut.packet(), now, 0)
    }

    /// The datagram and the fragments that were let go, given back.
    fn released(&mut self) -> (Vec<u8>, Vec<Vec<u8>>) {
        let frames = self.reassembler.released().to_vec();
        let mut all = frames.iter().map(|f| self.pool.data(f.buf, f.len).to_vec());
        let (whole, fragments) = (all.next().unwrap(), all.collect());
        assert!(frames[0].info.is_datagram());
        frames.iter().for_each(|f| self.pool.free(f.buf));
        (whole, fragments)
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.reassembler.drops().iter().find(|(r, _)| *r == reason).map_or(0, |(_, n)| n)
    }
}

/// The obvious twin: of every datagram the fragments that are there, and the runs in which they came.
#[derive(Clone, Default)]
struct Twin(Vec<Waiting>);

#[derive(Clone)]
struct Waiting {
    six: bool,
    ident: u16,
    since: Nanos,
    cuts: Vec<Cut>,
    /// First byte and first byte behind, in the order in which they were begun.
    runs: Vec<(usize, usize)>,
    end: Option<usize>,
}

impl Waiting {
    fn deadline(&self) -> Nanos {
        self.since.after(if self.six { 60 } else { 30 } * SECOND)
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Kept,
    Dropped(DropReason),
    Complete(Vec<Vec<u8>>),
}

impl Twin {
    fn take(&mut self, cut: &Cut, now: Nanos) -> Outcome {
        self.0.retain(|w| w.deadline() > now);
        let found = self.0.iter().position(|w| (w.six, w.ident) == (cut.six, cut.ident));
        let mut waiting = match found {
            Some(at) => self.0.remove(at),
            None => {
                let (six, ident) = (cut.six, cut.ident);
                Waiting { six, ident, since: now, cuts: vec![], runs: vec![], end: None }
            }
        };
        let keep = |twin: &mut Self, waiting: Waiting| {
            if !waiting.cuts.is_empty() {
                twin.0.push(waiting);
            }
        };
        let (start, end) = (cut.start, cut.start + cut.bytes.len());
        let headless = cut.six && start == 0 && end < 8;
        if start == end || headless || cut.six && end > 65_535 {
            if cut.six {
                keep(self, waiting);
            }
            return Outcome::Dropped(DropReason::Malformed);
        }
        if cut.more && end % 8 != 0 {
            return Outcome::Dropped(DropReason::Malformed);
        }
        let furthest = waiting.cuts.iter().map(|c| c.start + c.bytes.len()).max().unwrap_or(0);
        let contradicts = match (waiting.end, cut.more) {
            (Some(known), true) => end > known,
            (Some(known), false) => end != known,
            (None, true) => false,
            (None, false) => end < furthest,
        };
        if contradicts {
            if cut.six {
                keep(self, waiting);
            }
            return Outcome::Dropped(DropReason::FragmentOverlap);
        }
        if waiting.runs.iter().any(|&(a, b)| a <= start && end <= b) {
            if !cut.more && waiting.end.is_none() {
                return Outcome::Dropped(DropReason::FragmentOverlap);
            }
            keep(self, waiting);
            return Outcome::Dropped(DropReason::FragmentDuplicate);
        }
        if waiting.runs.iter().any(|&(a, b)| start < b && a < end) {
            return Outcome::Dropped(DropReason::FragmentOverlap);
        }
        match waiting.runs.iter_mut().find(|(_, b)| *b == start && start == furthest) {
            Some(run) => run.1 = end,
            None => waiting.runs.push((start, end)),
        }
        waiting.cuts.push(cut.clone());
        if !cut.more {
            waiting.end = Some(end);
        }
        let bytes: usize = waiting.cuts.iter().map(|c| c.bytes.len()).sum();
        if waiting.end == Some(bytes) {
            waiting.cuts.sort_by_key(|c| c.start);
            return Outcome::Complete(waiting.cuts.iter().map(Cut::packet).collect());
        }
        self.0.push(waiting);
        Outcome::Kept
    }
}

fn cuts() -> impl Strategy<Value = (Cut, u64)> {
    // Places that meet often, and now and then one that can't be.
    let start = prop_oneof![20 => (0..6_usize).prop_map(|n| n * 8), 1 => Just(65_512)];
    let len = prop_oneof![12 => (1..4_usize).prop_map(|n| n * 8), 3 => 0..30_usize];
    let gap = prop_oneof![10 => 0..1000_u64, 1 => 0..40 * SECOND];
    (any::<bool>(), 0..2_u16, start, len, any::<bool>(), any::<u8>(), gap).prop_map(
        |(six, ident, start, len, more, byte, gap)| {
            (Cut { six, ident, start, bytes: vec![byte; len], more }, gap)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Fragments in any order, twice, overlapping, with lies about ends: as the twin says, and nothing is
    /// lost.
    #[test]
    fn datagrams_are_those_of_the_twin(steps in prop::collection::vec(cuts(), 1..60)) {
        let (mut bench, mut twin) = (Bench::new(FragmentLimits::default()), Twin::default());
        let mut now = START;
        for (cut, gap) in steps {
            now = now.after(gap);
            // Fragments that no header can express are not tested.
            if !cut.more && cut.start == 0 {
                continue;
            }
            let expired = bench.dropped(DropReason::FragmentTimeout);
            let before = *bench.reassembler.drops();
            let taken = bench.take(&cut, now);
            let expired = bench.dropped(DropReason::FragmentTimeout) - expired;
            let dropped = bench.reassembler.drops().total() - before.total();
            match twin.take(&cut, now) {
                Outcome::Kept => {
                    prop_assert_eq!((taken, dropped - expired), (Taken::Kept, 0));
                }
                Outcome::Dropped(reason) => {
                    prop_assert_eq!(taken, Taken::Kept);
                    prop_assert!(bench.dropped(reason) > before.iter().find(|(r, _)| *r == reason).map_or(0, |(_, n)| n));
                }
                Outcome::Complete(packets) => {
                    prop_assert_eq!(taken, Taken::Complete);
                    let (whole, fragments) = bench.released();
                    prop_assert_eq!(&fragments, &packets);
                    let header = if cut.six { 48 } else { 20 };
                    let payload: Vec<u8> = packets.iter().flat_map(|p| p[header..].to_vec()).collect();
                    let expected = if cut.six {
                        ipv6(17, Ipv6Addr::from(1), Ipv6Addr::from(2), &payload)
                    } else {
                        let mut packet = ipv4(17, A, B, &payload);
                        packet[4..6].copy_from_slice(&packets[0][4..6]);
                        packet
                    };
                    // Checksums of the transport are whatever they were.
                    let end = if cut.six { 40 } else { 10 };
                    prop_assert_eq!(&whole[..end], &expected[..end]);
                    prop_assert_eq!(&whole[whole.len() - payload.len()..], &payload[..]);
                }
            }
            let waiting: usize = twin.0.iter().map(|w| w.cuts.len()).sum();
            prop_assert_eq!(bench.reassembler.held(), waiting as u64);
            prop_assert_eq!(bench.pool.live(), waiting as u64);
            let next = twin.0.iter().map(Waiting::deadline).min();
            prop_assert_eq!(bench.reassembler.next_deadline(), next.unwrap_or(Nanos::MAX));
        }
        bench.reassembler.drain(&mut bench.pool);
        prop_assert_eq!((bench.reassembler.held(), bench.pool.live()), (0, 0));
    }

    /// Whatever comes, no bound is passed, every packet is somewhere, and a datagram whose fragments follow
    /// each other is complete beside any flood.
    #[test]
    fn a_flood_costs_itself(
        flood in prop::collection::vec((any::<u16>(), 0..4_usize, 1..9_usize), 1..200), fragments in 4..40_u32, at in 0..200_usize,
    ) {
        let limits = FragmentLimits { fragments, bytes: 2000, ..FragmentLimits::default() };
        let mut bench = Bench::new(limits);
        let mut sent = 0;
        for (n, (ident, place, units)) in flood.iter().enumerate() {
            if n == at % flood.len() {
                for start in [8, 0, 16] {
                    let cut = Cut { six: true, ident: 1, start, bytes: vec![1; 8], more: start < 16 };
                    let taken = bench.take(&cut, START);
                    prop_assert_eq!(taken == Taken::Complete, start == 16);
                }
                bench.released();
            }
            let cut = Cut { six: false, ident: *ident, start: 8 + place * 64, bytes: vec![0; units * 8], more: true };
            bench.take(&cut, START);
            sent += 1;
            prop_assert!(bench.reassembler.held() <= u64::from(fragments) && bench.reassembler.bytes <= 2000);
            prop_assert_eq!(bench.pool.live(), bench.reassembler.held());
            prop_assert_eq!(bench.reassembler.held() + bench.reassembler.drops().total(), sent);
        }
        bench.reassembler.drain(&mut bench.pool);
        prop_assert_eq!(bench.pool.live(), 0);
        prop_assert_eq!(bench.reassembler.drops().total(), sent);
    }

    /// Nothing panics, whatever the headers say.
    #[test]
    fn hostile_fragments_cost_a_counter(packets in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..90)), 1..20)) {
        let mut bench = Bench::new(FragmentLimits { fragments: 4, ..FragmentLimits::default() });
        for (six, bytes) in packets {
            let mut packet = Cut { six, ident: 1, start: 8, bytes: vec![], more: true }.packet();
            let keep = if six { 6 } else { 4 };
            for (n, byte) in bytes.iter().enumerate() {
                match packet.get_mut(keep + n) {
                    Some(place) if n % 3 != 1 => *place = *byte,
                    Some(_) => {}
                    None => packet.push(*byte),
                }
            }
            let Ok(headers) = classify(LinkType::RawIp, &packet) else { continue };
            if headers.flags.has(Flags::FRAGMENT) && bench.take_packet(&packet, START, 0) == Taken::Complete {
                bench.released();
            }
        }
        bench.reassembler.drain(&mut bench.pool);
        prop_assert_eq!(bench.pool.live(), 0);
    }
}

/// The pieces of a payload, each so many bytes long.
fn pieces(six: bool, payload: &[u8], size: usize) -> Vec<Cut> {
    let all = payload.chunks(size).enumerate();
    all.map(|(n, bytes)| Cut {
        six,
        ident: 7,
        start: n * size,
        bytes: bytes.to_vec(),
        more: (n + 1) * size < payload.len(),
    })
    .collect()
}

#[test]
fn the_datagram_is_the_packet_that_was_cut() {
    let payload = udp(5000, 53, &[9; 3000]);
    for six in [false, true] {
        let expected = if six {
            ipv6(17, Ipv6Addr::from(1), Ipv6Addr::from(2), &payload)
        } else {
            let mut packet = ipv4(17, A, B, &payload);
            packet[4..6].copy_from_slice(&7_u16.to_be_bytes());
            filled(packet)
        };
        let filled = &expected[expected.len() - payload.len()..];
        let mut cuts = pieces(six, filled, 1480);
        cuts.reverse();
        let mut bench = Bench::new(FragmentLimits::default());
        let taken: Vec<Taken> = cuts.iter().map(|cut| bench.take(cut, START)).collect();
        assert_eq!(taken, [Taken::Kept, Taken::Kept, Taken::Complete]);
        let frame = bench.reassembler.released()[0];
        assert!(Flags(frame.info.flags()).has(Flags::PORTS | Flags::FRAGMENT));
        assert_eq!(bench.pool.meta(frame.buf).original_len, expected.len() as u32);
        let (whole, fragments) = bench.released();
        assert_eq!(whole, expected);
        assert!(is_right(&whole));
        cuts.reverse();
        assert_eq!(fragments, cuts.iter().map(Cut::packet).collect::<Vec<_>>());
        assert_eq!(bench.pool.live(), 0);
    }
}

#[test]
fn extension_headers_are_found_on_both_sides_of_the_cut() {
    // Hop-by-hop options before the fragment header, destination options and the UDP header behind it.
    let unit = |next: u8| [next, 0, 1, 4, 0, 0, 0, 0];
    let payload = [&unit(60)[..], &unit(17), &udp(1, 53, &[0; 8])].concat();
    let expected = ipv6(0, Ipv6Addr::from(1), Ipv6Addr::from(2), &payload);
    let behind = &expected[48..];
    let mut bench = Bench::new(FragmentLimits::default());
    let cuts = [(0, &behind[..8], 1), (0, &behind[..16], 1), (16, &behind[16..], 0)];
    for (start, bytes, more) in cuts {
        let word = (start as u16 | more).to_be_bytes();
        let fragment = [&unit(44)[..], &[60, 0], &word, &[0, 0, 0, 5], bytes].concat();
        let packet = ipv6(0, Ipv6Addr::from(1), Ipv6Addr::from(2), &fragment);
        assert_eq!(bench.take_packet(&packet, START, 0) == Taken::Complete, more == 0);
    }
    // Without the UDP header the first fragment was none.
    assert_eq!(bench.dropped(DropReason::Malformed), 1);
    let frame = bench.reassembler.released()[0];
    let (whole, _) = bench.released();
    assert_eq!(whole, expected);
    assert!(Flags(frame.info.flags()).has(Flags::PORTS));
}

#[test]
fn inputs_are_apart_and_so_are_protocols_of_ipv4() {
    let mut bench = Bench::new(FragmentLimits::default());
    let cuts = pieces(false, &[0; 16], 8);
    assert_eq!(bench.take_packet(&cuts[0].packet(), START, 0), Taken::Kept);
    assert_eq!(bench.take_packet(&cuts[1].packet(), START, 1), Taken::Kept);
    let mut other = cuts[1].packet();
    other[9] = 6;
    assert_eq!(bench.take_packet(&filled(other), START, 0), Taken::Kept);
    assert_eq!(bench.reassembler.held(), 3);
    assert_eq!(bench.take_packet(&cuts[1].packet(), START, 0), Taken::Complete);
    bench.released();
    bench.reassembler.drain(&mut bench.pool);
}

#[test]
fn a_datagram_of_too_many_fragments_goes() {
    let mut bench = Bench::new(FragmentLimits::default());
    for cut in pieces(false, &[0; 8 * (MOST as usize + 1)], 8) {
        assert_eq!(bench.take(&cut, START), Taken::Kept);
    }
    assert_eq!(bench.dropped(DropReason::FragmentLimit), u64::from(MOST) + 1);
    let cuts = pieces(false, &[0; 8 * MOST as usize], 8);
    let taken: Vec<Taken> = cuts.iter().rev().map(|cut| bench.take(cut, START)).collect();
    assert_eq!(taken.last(), Some(&Taken::Complete));
    assert_eq!(bench.released().1.len(), MOST as usize);
}

/// Else a receiver could put flags that came with other ports behind these.
#[test]
fn a_first_fragment_of_tcp_has_the_flags() {
    let syn = tcp(5000, 23, 2, &[7; 40]);
    for (size, reversed) in [8, 16, 24, 32].into_iter().flat_map(|size| [(size, false), (size, true)]) {
        let mut bench = Bench::new(FragmentLimits::default());
        let mut cuts = pieces(false, &syn, size);
        if reversed {
            cuts.reverse();
        }
        let complete = cuts.iter().any(|cut| {
            let mut packet = cut.packet();
            packet[9] = 6;
            bench.take_packet(&filled(packet), START, 0) == Taken::Complete
        });
        assert_eq!(complete, size > 8, "{size}");
        assert_eq!(bench.dropped(DropReason::Malformed), u64::from(size == 8));
        if complete {
            bench.released();
        }
        bench.reassembler.drain(&mut bench.pool);
        assert_eq!(bench.pool.live(), 0);
    }
}

#[test]
fn where_none_is_held_a_first_fragment_has_its_ports() {
    let mut bench = Bench::new(FragmentLimits { fragments: 0, ..FragmentLimits::default() });
    let cuts = pieces(false, &udp(5000, 53, &[0; 40]), 24);
    assert_eq!(bench.take(&cuts[1], START), Taken::AsItIs);
    assert_eq!(bench.take(&cuts[0], START), Taken::Complete);
    let frame = bench.reassembler.released()[0];
    assert!(Flags(frame.info.flags()).has(Flags::PORTS));
    assert_eq!(bench.released().1, [cuts[0].packet()]);
    assert_eq!(bench.reassembler.held(), 0);
}
