//! The rules against an obvious twin, and what merging and cutting leave of packets.

use proptest::prelude::*;

use super::{Kind, Limits, Refusal, Segment, SuperFrame, SuperHeader};
use crate::checksum::{fill_ip, fill_transport};
use crate::{Headers, LinkType, classify};

/// A packet by its fields. The default is a TCP segment over IPv4 with everything right.
#[derive(Clone, Debug, PartialEq)]
struct Packet {
    v6: bool,
    udp: bool,
    tags: u8,
    hardware: u8,
    tos: u8,
    ttl: u8,
    label: u8,
    id: u16,
    df: bool,
    more: bool,
    ip_options: bool,
    seq: u32,
    ack: u32,
    flags: u16,
    window: u16,
    urgent: u16,
    stamp: Option<u32>,
    payload: usize,
    padding: usize,
    /// Added to the transport checksum.
    error: u16,
    no_checksum: bool,
    ip_error: u16,
}

const ACK: u16 = 0x10;
const PSH: u16 = 0x08;
const FIN: u16 = 0x01;
const CWR: u16 = 0x80;
const ECE: u16 = 0x40;

impl Default for Packet {
    fn default() -> Self {
        Self {
            v6: false,
            udp: false,
            tags: 0,
            hardware: 1,
            tos: 0,
            ttl: 64,
            label: 0,
            id: 7,
            df: true,
            more: false,
            ip_options: false,
            seq: 1000,
            ack: 5,
            flags: ACK,
            window: 500,
            urgent: 0,
            stamp: None,
            payload: 100,
            padding: 0,
            error: 0,
            no_checksum: false,
            ip_error: 0,
        }
    }
}

impl Packet {
    fn frame(&self) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, self.hardware, 2, 0, 0, 0, 0, 9];
        for tag in 0..self.tags {
            frame.extend([0x81, 0, 0, tag + 1]);
        }
        let mut transport = vec![0x1f, 0x90, 0x04, 0xd2];
        if self.udp {
            transport.extend(((8 + self.payload) as u16).to_be_bytes());
            transport.extend([0, 0]);
        } else {
            transport.extend(self.seq.to_be_bytes());
            transport.extend(self.ack.to_be_bytes());
            let words: u16 = if self.stamp.is_some() { 8 } else { 5 };
            transport.extend((words << 12 | self.flags).to_be_bytes());
            transport.extend(self.window.to_be_bytes());
            transport.extend([0, 0]);
            transport.extend(self.urgent.to_be_bytes());
            if let Some(stamp) = self.stamp {
                transport.extend([1, 1, 8, 10]);
                transport.extend(stamp.to_be_bytes());
                transport.extend([0, 0, 0, 3]);
            }
        }
        transport.extend((0..self.payload).map(|n| (n as u32).wrapping_add(self.seq) as u8));
        let protocol = if self.udp { 17 } else { 6 };
        if self.v6 {
            frame.extend([0x86, 0xdd, 0x60 | self.tos >> 4, self.tos << 4, 0, self.label]);
            frame.extend((transport.len() as u16).to_be_bytes());
            frame.extend([protocol, self.ttl]);
            frame.extend([0x20; 32]);
        } else {
            let options: &[u8] = if self.ip_options { &[1, 1, 1, 1] } else { &[] };
            frame.extend([8, 0, 0x45 + (options.len() / 4) as u8, self.tos]);
            frame.extend(((20 + options.len() + transport.len()) as u16).to_be_bytes());
            frame.extend(self.id.to_be_bytes());
            frame.extend([u8::from(self.df) << 6 | u8::from(self.more) << 5, 0, self.ttl, protocol, 0, 0]);
            frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
            frame.extend(options);
        }
        frame.extend(transport);
        let headers = self.headers(&frame);
        fill_ip(&mut frame, &headers);
        fill_transport(&mut frame, &headers);
        let mut add = |at: usize, n: u16| {
            let old = u16::from_be_bytes([frame[at], frame[at + 1]]);
            frame[at..at + 2].copy_from_slice(&old.wrapping_add(n).to_be_bytes());
        };
        let field = usize::from(headers.l4) + if self.udp { 6 } else { 16 };
        add(field, self.error);
        if !self.v6 {
            add(usize::from(headers.l3) + 10, self.ip_error);
        }
        if self.udp && self.no_checksum {
            frame[field..field + 2].fill(0);
        }
        frame.resize(frame.len() + self.padding, 0);
        frame
    }

    fn headers(&self, frame: &[u8]) -> Headers {
        classify(LinkType::Ethernet, frame).unwrap()
    }

    /// Alone it could be of a super-frame.
    fn fits(&self) -> bool {
        self.payload > 0
            && self.padding == 0
            && (self.v6 || !self.ip_options && !self.more)
            && (!self.udp || !self.no_checksum)
    }

    fn sums_are_right(&self) -> bool {
        self.error == 0 && (self.v6 || self.ip_error == 0)
    }

    /// The same but for what may differ from packet to packet.
    fn kind(&self) -> Self {
        let tcp = |n: u32| if self.udp { 0 } else { n };
        Self {
            seq: 0,
            id: 0,
            payload: 0,
            error: 0,
            ip_error: 0,
            no_checksum: false,
            flags: if self.udp { 0 } else { self.flags & !(PSH | FIN) },
            ack: tcp(self.ack),
            window: tcp(self.window.into()) as u16,
            urgent: tcp(self.urgent.into()) as u16,
            stamp: self.stamp.filter(|_| !self.udp),
            label: if self.v6 { self.label } else { 0 },
            df: self.df && !self.v6,
            ..self.clone()
        }
    }
}

/// The obvious twin: may `next` follow `run`, which has one packet at least?
fn follows(run: &[Packet], next: &Packet, limits: Limits) -> bool {
    let (first, last) = (&run[0], &run[run.len() - 1]);
    let ends = |p: &Packet| !p.udp && p.flags & 0xaf != 0;
    let ids: Vec<u16> = run.iter().chain([next]).map(|p| p.id).collect();
    let grows = ids.windows(2).all(|w| w[1] == w[0].wrapping_add(1));
    let stays = ids.iter().all(|id| *id == first.id);
    let headers = if first.v6 { 40 } else { 20 }
        + if first.udp {
            8
        } else if first.stamp.is_some() {
            32
        } else {
            20
        };
    let total: usize = run.iter().map(|p| p.payload).sum::<usize>() + next.payload + headers;
    first.fits()
        && next.fits()
        && first.sums_are_right()
        && next.sums_are_right()
        && first.kind() == next.kind()
        && !ends(last)
        && last.payload == first.payload
        && next.payload <= first.payload
        && (first.udp || next.seq == last.seq.wrapping_add(last.payload as u32))
        && (first.v6 || grows || stays)
        && total <= limits.bytes as usize
        && run.len() < usize::from(limits.segments)
        && (!first.udp || run.len() < 64)
}

fn twin(packets: &[Packet], limits: Limits) -> Vec<usize> {
    let mut runs: Vec<Vec<Packet>> = Vec::new();
    for packet in packets {
        match runs.last_mut() {
            Some(run) if follows(run, packet, limits) => run.push(packet.clone()),
            _ => runs.push(vec![packet.clone()]),
        }
    }
    runs.iter().map(Vec::len).collect()
}

/// Lengths of the super-frames that packets make, in their order.
fn merge(frames: &[Vec<u8>], limits: Limits) -> Vec<usize> {
    let mut runs = Vec::new();
    let mut open: Option<(SuperFrame, Segment<'_>)> = None;
    for frame in frames {
        let headers = classify(LinkType::Ethernet, frame).unwrap();
        let Ok(next) = Segment::parse(frame, headers.l3, headers.l4) else {
            open = None;
            runs.push(1);
            continue;
        };
        if let Some((run, last)) = &mut open {
            let mut joined = *run;
            let fits = joined.join(last, &next, limits).is_ok();
            if fits && last.checksums_are_right() && next.checksums_are_right() {
                (*run, *last) = (joined, next);
                *runs.last_mut().unwrap() += 1;
                continue;
            }
        }
        open = Some((SuperFrame::start(&next), next));
        runs.push(1);
    }
    runs
}

/// Cuts as a kernel does, by the book: headers again and again, each with its part of the payload.
fn cut(header: &SuperHeader, payload: &[u8]) -> Vec<Vec<u8>> {
    let parts: Vec<&[u8]> = payload.chunks(header.size.into()).collect();
    let mut frames = Vec::new();
    for (n, part) in parts.iter().enumerate() {
        let mut frame = header.bytes().to_vec();
        frame.extend(*part);
        let of_super = classify(LinkType::Ethernet, &frame).unwrap();
        let (l3, l4) = (usize::from(of_super.l3), usize::from(of_super.l4));
        let (ip_len, l4_len) = ((frame.len() - l3) as u16, (frame.len() - l4) as u16);
        if frame[l3] >> 4 == 4 {
            let id = u16::from_be_bytes([frame[l3 + 4], frame[l3 + 5]]).wrapping_add(n as u16);
            frame[l3 + 2..l3 + 4].copy_from_slice(&ip_len.to_be_bytes());
            frame[l3 + 4..l3 + 6].copy_from_slice(&id.to_be_bytes());
        } else {
            frame[l3 + 4..l3 + 6].copy_from_slice(&(ip_len - 40).to_be_bytes());
        }
        if header.kind == Kind::Udp {
            frame[l4 + 4..l4 + 6].copy_from_slice(&l4_len.to_be_bytes());
        } else {
            let seq = u32::from_be_bytes(frame[l4 + 4..l4 + 8].try_into().unwrap());
            let past = n * usize::from(header.size);
            frame[l4 + 4..l4 + 8].copy_from_slice(&seq.wrapping_add(past as u32).to_be_bytes());
            if n + 1 < parts.len() {
                frame[l4 + 13] &= !0x09;
            }
        }
        let headers = classify(LinkType::Ethernet, &frame).unwrap();
        fill_ip(&mut frame, &headers);
        fill_transport(&mut frame, &headers);
        frames.push(frame);
    }
    frames
}

/// One super-frame of these frames, cut again; `None` where a cut can't bring back what was.
fn there_and_back(frames: &[Vec<u8>]) -> Option<Vec<Vec<u8>>> {
    let parse = |frame| {
        let headers = classify(LinkType::Ethernet, frame).unwrap();
        Segment::parse(frame, headers.l3, headers.l4).unwrap()
    };
    let segments: Vec<Segment<'_>> = frames.iter().map(|f| parse(f)).collect();
    let mut run = SuperFrame::start(&segments[0]);
    for pair in segments.windows(2) {
        let limits = Limits { segments: u16::MAX, ..Limits::default() };
        run.join(&pair[0], &pair[1], limits).unwrap();
    }
    let payload: Vec<u8> = segments.iter().flat_map(|s| s.payload().to_vec()).collect();
    assert_eq!(usize::from(run.segments()), frames.len());
    let header = SuperHeader::new(&run, &segments[0], &segments[segments.len() - 1]);
    let (_, ip, transport) = segments[0].headers();
    assert_eq!(run.bytes() as usize, ip.len() + transport.len() + payload.len());
    (!run.has_fixed_id()).then(|| cut(&header, &payload))
}

/// Packets that mostly follow one another, from a beginning near where numbers wrap, and now and then differ
/// in one thing.
fn packets() -> impl Strategy<Value = Vec<Packet>> {
    let change = prop_oneof![
        40 => Just(0_u8),
        25 => 1..26_u8,
    ];
    let start = (any::<[bool; 4]>(), 0..3_u8, any::<bool>(), 1..=300_usize, prop::option::of(1..5_u32));
    (start, prop::collection::vec((change, 1..=300_usize), 1..30)).prop_map(|(start, steps)| {
        let ([v6, udp, df, fixed], tags, wraps, size, stamp) = start;
        let mut next = Packet { v6, udp, df, tags, stamp, ..Packet::default() };
        if wraps {
            (next.seq, next.id) = (u32::MAX - 400, u16::MAX - 2);
        }
        let mut packets = Vec::new();
        for (change, other) in steps {
            next.payload = size;
            let mut packet = next.clone();
            match change {
                1 => packet.payload = other,
                2 => packet.payload = 0,
                3 => packet.flags |= PSH,
                4 => packet.flags |= FIN,
                5 => packet.flags |= CWR,
                6 => packet.flags ^= ECE,
                7 => packet.flags |= 0x04,
                8 => packet.ack += 1,
                9 => packet.window += 1,
                10 => packet.urgent = 1,
                11 => packet.stamp = Some(other as u32),
                12 => packet.seq = packet.seq.wrapping_add(1),
                13 => packet.seq = packet.seq.wrapping_sub(size as u32),
                14 => packet.id = packet.id.wrapping_add(1),
                15 => packet.df ^= true,
                16 => packet.ttl -= 1,
                17 => packet.tos = 4,
                18 => packet.label = 1,
                19 => packet.hardware = 2,
                20 => packet.padding = 3,
                21 => packet.error = 1,
                22 => packet.ip_error = 1,
                23 => packet.no_checksum = true,
                24 => packet.ip_options = !v6,
                25 => packet.flags |= 0x200,
                _ => {}
            }
            next.seq = packet.seq.wrapping_add(packet.payload as u32);
            if !fixed {
                next.id = packet.id.wrapping_add(1);
            }
            packets.push(packet);
        }
        packets
    })
}

proptest! {
    /// Against the obvious twin, by the fields that packets were made of.
    #[test]
    fn super_frames_are_those_of_the_twin(
        packets in packets(), bytes in 300..3000_u32, segments in 2..9_u16, small in any::<bool>(),
    ) {
        let limits = if small { Limits { bytes, segments } } else { Limits::default() };
        let frames: Vec<_> = packets.iter().map(Packet::frame).collect();
        prop_assert_eq!(merge(&frames, limits), twin(&packets, limits));
    }

    /// Cutting a super-frame by the book brings back the bytes that came.
    #[test]
    fn cutting_brings_back_what_came(packets in packets()) {
        let frames: Vec<_> = packets.iter().map(Packet::frame).collect();
        let mut at = 0;
        for len in merge(&frames, Limits::default()) {
            let run = &frames[at..at + len];
            if len > 1 && let Some(back) = there_and_back(run) {
                prop_assert_eq!(back, run);
            }
            at += len;
        }
        prop_assert_eq!(at, frames.len());
    }

    /// Any bytes are a segment or are none, and nothing else happens.
    #[test]
    fn any_bytes_can_be_asked(bytes in prop::collection::vec(any::<u8>(), 0..200), l3 in 0..60_u16, l4 in 0..99_u16) {
        if let Ok(segment) = Segment::parse(&bytes, l3, l4) {
            let _ = segment.checksums_are_right();
            let mut run = SuperFrame::start(&segment);
            let _ = run.join(&segment, &segment, Limits::default());
            assert!(SuperHeader::new(&run, &segment, &segment).bytes().len() >= 28);
        }
    }
}

fn why(first: &Packet, next: &Packet) -> Result<(), Refusal> {
    let (a, b) = (first.frame(), next.frame());
    let parse = |frame| {
        let headers = classify(LinkType::Ethernet, frame).unwrap();
        Segment::parse(frame, headers.l3, headers.l4)
    };
    let (a, b) = (parse(&a)?, parse(&b)?);
    SuperFrame::start(&a).join(&a, &b, Limits::default())?;
    if a.checksums_are_right() && b.checksums_are_right() { Ok(()) } else { Err(Refusal::Checksum) }
}

#[test]
fn each_reason_is_told() {
    let first = Packet::default();
    let next = Packet { id: 8, seq: 1100, ..first.clone() };
    let cases: [(&str, Packet, Result<(), Refusal>); 20] = [
        ("the next one", next.clone(), Ok(())),
        ("shorter", Packet { payload: 1, ..next.clone() }, Ok(())),
        ("PSH and FIN at the end", Packet { flags: ACK | PSH | FIN, ..next.clone() }, Ok(())),
        ("fixed identification", Packet { id: 7, ..next.clone() }, Ok(())),
        ("longer", Packet { payload: 101, ..next.clone() }, Err(Refusal::Size)),
        ("no payload", Packet { payload: 0, ..next.clone() }, Err(Refusal::NoPayload)),
        ("padded", Packet { payload: 3, padding: 3, ..next.clone() }, Err(Refusal::Length)),
        ("a gap", Packet { seq: 1101, ..next.clone() }, Err(Refusal::Sequence)),
        ("again", Packet { seq: 1000, ..next.clone() }, Err(Refusal::Sequence)),
        ("another identification", Packet { id: 9, ..next.clone() }, Err(Refusal::IpId)),
        ("another TTL", Packet { ttl: 63, ..next.clone() }, Err(Refusal::IpHeader)),
        ("another TOS", Packet { tos: 2, ..next.clone() }, Err(Refusal::IpHeader)),
        ("another way", Packet { hardware: 3, ..next.clone() }, Err(Refusal::IpHeader)),
        ("options", Packet { ip_options: true, ..next.clone() }, Err(Refusal::IpOptions)),
        ("a fragment", Packet { more: true, ..next.clone() }, Err(Refusal::Protocol)),
        ("news of congestion", Packet { flags: ACK | ECE, ..next.clone() }, Err(Refusal::TcpFlags)),
        ("reset", Packet { flags: ACK | 4, ..next.clone() }, Err(Refusal::TcpFlags)),
        ("a window", Packet { window: 501, ..next.clone() }, Err(Refusal::TcpHeader)),
        ("time stamps", Packet { stamp: Some(1), ..next.clone() }, Err(Refusal::TcpOptions)),
        ("a wrong checksum", Packet { error: 1, ..next.clone() }, Err(Refusal::Checksum)),
    ];
    for (name, packet, expected) in cases {
        assert_eq!(why(&first, &packet), expected, "{name}");
    }
    let pushed = Packet { flags: ACK | PSH, ..first.clone() };
    assert_eq!(why(&pushed, &next), Err(Refusal::Ended));
    // A number that wraps is a number as any other.
    let first = Packet { seq: u32::MAX - 49, id: u16::MAX, df: false, ..first };
    assert_eq!(why(&first, &Packet { seq: 50, id: 0, ..first.clone() }), Ok(()));
    let datagram = Packet { udp: true, no_checksum: true, ..Packet::default() };
    assert_eq!(why(&datagram, &datagram), Err(Refusal::NoChecksum));
}

/// Of a sum there are two ways to write 0; a cut would bring back the other one.
#[test]
fn a_checksum_that_no_calculation_gives_stays_as_it_is() {
    let mut frame = Packet::default().frame();
    // The last bytes of the payload make the checksum 0.
    let at = frame.len() - 2;
    let old = u16::from_be_bytes([frame[50], frame[51]]);
    let word = u16::from_be_bytes([frame[at], frame[at + 1]]);
    let new = crate::checksum::combine(word, old);
    frame[at..].copy_from_slice(&new.to_be_bytes());
    let headers = classify(LinkType::Ethernet, &frame).unwrap();
    fill_transport(&mut frame, &headers);
    assert_eq!(frame[50..52], [0, 0]);
    let right = |frame: &[u8]| Segment::parse(frame, 14, 34).unwrap().checksums_are_right();
    assert!(right(&frame));
    frame[50..52].fill(0xff);
    assert!(!right(&frame));
}

/// PPPoE has a length before the IP header, so that a super-frame would not be what it says.
#[test]
fn other_link_layers_are_left_alone() {
    let frame = Packet::default().frame();
    let mut pppoe = frame[..12].to_vec();
    pppoe.extend([0x88, 0x64, 0x11, 0, 0, 1, 0, 142, 0, 0x21]);
    pppoe.extend(&frame[14..]);
    assert_eq!(Segment::parse(&pppoe, 22, 42).unwrap_err(), Refusal::Protocol);
    assert!(Segment::parse(&frame[14..], 0, 20).is_ok());
}

/// Two tags, IPv6 and all options that TCP may have.
#[test]
fn the_longest_headers_have_room() {
    let packet = Packet { v6: true, tags: 2, ..Packet::default() };
    let mut frame = packet.frame();
    let Headers { l3, l4, .. } = packet.headers(&frame);
    let (l3, l4) = (usize::from(l3), usize::from(l4));
    frame[l4 + 12] = 15 << 4 | frame[l4 + 12] & 15;
    frame.splice(l4 + 20..l4 + 20, [1; 40]);
    let length = u16::from_be_bytes([frame[l3 + 4], frame[l3 + 5]]) + 40;
    frame[l3 + 4..l3 + 6].copy_from_slice(&length.to_be_bytes());
    let segment = Segment::parse(&frame, l3 as u16, l4 as u16).unwrap();
    let header = SuperHeader::new(&SuperFrame::start(&segment), &segment, &segment);
    assert_eq!(header.bytes().len(), 14 + 8 + 40 + 60);
    assert_eq!(header.bytes()[..l4 + 16], frame[..l4 + 16]);
    assert_eq!(header.bytes()[l4 + 18..], frame[l4 + 18..l4 + 60], "all but the checksum");
}

/// A TCP header that is said to be shorter than any, or longer than the packet, has no payload behind it.
#[test]
fn lengths_of_headers_that_lie_are_refused() {
    let packet = Packet::default();
    let mut frame = packet.frame();
    let Headers { l3, l4, .. } = packet.headers(&frame);
    let behind = frame.len() - usize::from(l4);
    for words in 0..16 {
        frame[usize::from(l4) + 12] = words << 4;
        let expected = match usize::from(words) * 4 {
            length if length < 20 || length > behind => Err(Refusal::Length),
            length if length == behind => Err(Refusal::NoPayload),
            _ => Ok(()),
        };
        assert_eq!(Segment::parse(&frame, l3, l4).map(drop), expected, "{words}");
    }
}

/// A kernel or a card that cuts a super-frame sums from the transport header on, and writes the sum there.
#[test]
fn the_place_of_the_checksum_is_that_of_the_protocol() {
    for (udp, v6, tags) in (0..8).flat_map(|n| [0, 2].map(|tags| (n & 1 != 0, n & 2 != 0, tags))) {
        let packet = Packet { udp, v6, tags, ..Packet::default() };
        let frame = packet.frame();
        let headers = packet.headers(&frame);
        let segment = Segment::parse(&frame, headers.l3, headers.l4).unwrap();
        let run = SuperFrame::start(&segment);
        let (from, at) = SuperHeader::new(&run, &segment, &segment).checksum_place();
        assert_eq!((from, at), (headers.l4, if udp { 6 } else { 16 }), "{packet:?}");
    }
}

/// The kernel reads tags of two types. A super-frame behind one of another type it can't cut, and drops.
#[test]
fn tags_that_linux_does_not_know_are_left_alone() {
    let frame = Packet::default().frame();
    let tagged = |types: &[u16]| {
        let mut tagged = frame[..12].to_vec();
        types.iter().for_each(|kind| tagged.extend([kind.to_be_bytes(), [0, 5]].as_flattened()));
        tagged.extend(&frame[12..]);
        let headers = classify(LinkType::Ethernet, &tagged).unwrap();
        Segment::parse(&tagged, headers.l3, headers.l4).map(drop)
    };
    for known in [&[0x8100][..], &[0x88a8], &[0x88a8, 0x8100], &[0x8100, 0x8100], &[0x88a8, 0x88a8]] {
        assert_eq!(tagged(known), Ok(()), "{known:x?}");
    }
    for unknown in [&[0x9100][..], &[0x9100, 0x8100], &[0x8100, 0x9100], &[0x88a8, 0x8100, 0x8100]] {
        assert_eq!(tagged(unknown), Err(Refusal::Protocol), "{unknown:x?}");
    }
}
