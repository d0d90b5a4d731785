//! Super-frames cut, against the packets that they were made of.

use super::*;
use proptest::prelude::*;
use slipstream_wire::checksum::{Verdict, verify_ip, verify_transport};

/// A frame by itself, checksums and all.
fn frame(v6: bool, tcp: bool, tag: bool, id: u16, seq: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2; 12];
    if tag {
        frame.extend([0x81, 0, 0, 9]);
    }
    let transport = if tcp { 32 } else { 8 } + payload.len() as u16;
    let protocol = if tcp { TCP } else { UDP };
    if v6 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend(transport.to_be_bytes());
        frame.extend([protocol, 64]);
        frame.extend([0x20; 32]);
    } else {
        frame.extend([8, 0, 0x45, 0]);
        frame.extend((20 + transport).to_be_bytes());
        frame.extend(id.to_be_bytes());
        frame.extend([0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    }
    frame.extend([0x10, 0, 0x20, 0]);
    if tcp {
        frame.extend(seq.to_be_bytes());
        frame.extend([0, 0, 0, 1, 0x80, flags, 1, 0, 0, 0, 0, 0]);
        // Options: time stamps.
        frame.extend([1, 1, 8, 10, 0, 0, 0, 5, 0, 0, 0, 6]);
    } else {
        frame.extend(transport.to_be_bytes());
        frame.extend([0, 0]);
    }
    frame.extend(payload);
    let headers = classify(LinkType::Ethernet, &frame).unwrap();
    fill_ip(&mut frame, &headers);
    fill_transport(&mut frame, &headers);
    frame
}

/// Returns true if a way of tunnels has Ethernet frames in it.
fn is_of_ethernet(way: usize) -> bool {
    way < 3
}

/// Returns true if a way of tunnels is over UDP.
fn is_udp(way: usize) -> bool {
    way < 2
}

/// A frame in a tunnel: VXLAN with a checksum or without, on a port that is none of its own; GRE with a
/// checksum, with Ethernet frames or IP packets in it, or with a key; IP in IP.
fn in_tunnel(way: usize, inner: &[u8], id: u16) -> Vec<u8> {
    let at = if inner[12..14] == [0x81, 0] { 16 } else { 12 };
    let six = inner[at] == 0x86;
    let inside = if is_of_ethernet(way) { inner } else { &inner[at + 2..] };
    let ethertype = match (is_of_ethernet(way), six) {
        (true, _) => [0x65, 0x58],
        (false, true) => [0x86, 0xdd],
        (false, false) => [8, 0],
    };
    let (protocol, header) = match way {
        0 | 1 => {
            let len = (16 + inside.len() as u16).to_be_bytes();
            (UDP, vec![0xc0, 1, 0x21, 0x18, len[0], len[1], 0, 0, 8, 0, 0, 0, 0, 0, 7, 0])
        }
        2 | 3 => (GRE, vec![0x80, 0, ethertype[0], ethertype[1], 0, 0, 0, 0]),
        4 => (GRE, vec![0x20, 0, ethertype[0], ethertype[1], 1, 2, 3, 4]),
        _ => (if six { IPV6 } else { IPV4 }, Vec::new()),
    };
    let mut frame = vec![4; 12];
    let len = (header.len() + inside.len()) as u16;
    if way == 1 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend(len.to_be_bytes());
        frame.extend([protocol, 64]);
        frame.extend([0xfd; 32]);
    } else {
        frame.extend([8, 0, 0x45, 0]);
        frame.extend((20 + len).to_be_bytes());
        frame.extend(id.to_be_bytes());
        frame.extend([0, 0, 64, protocol, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    }
    let l4 = frame.len();
    frame.extend(header);
    frame.extend(inside);
    let headers = classify(LinkType::Ethernet, &frame).unwrap();
    assert_eq!(usize::from(headers.l4), l4);
    fill_ip(&mut frame, &headers);
    match way {
        1 => assert!(fill_transport(&mut frame, &headers)),
        2 | 3 => {
            let value = checksum(&frame[l4..]);
            put(&mut frame, l4 + 4, value);
        }
        _ => {}
    }
    frame
}

/// Senders leave SCTP's checksum to the card, too, which is a CRC of the packet without padding.
#[test]
fn checksums_of_sctp_are_completed() {
    for (tag, padding) in [(false, 0), (true, 0), (false, 6)] {
        let mut frame = frame(false, false, tag, 1, 0, 0, &[7; 20]);
        let l4 = frame.len() - 28;
        frame[l4 - 11] = 132;
        frame[l4 + 8..l4 + 12].fill(0);
        frame.resize(frame.len() + padding, 0);
        let headers = classify(LinkType::Ethernet, &frame).unwrap();
        let offload = Offload::read(&[1, 0, 0, 0, 0, 0, l4 as u8, 0, 8, 0]);
        assert!(offload.complete(&mut frame));
        assert_eq!(verify_transport(&frame, &headers), Verdict::Right);
        // One whose header is cut short has no place for it.
        assert!(!offload.complete(&mut frame[..l4 + 11]));
    }
    // In a tunnel, the header says where.
    let mut inner = frame(true, false, false, 1, 0, 0, &[7; 20]);
    let at = inner.len() - 28;
    inner[20] = 132;
    inner[at + 8..at + 12].fill(0);
    let mut outer = in_tunnel(0, &inner, 5);
    let l4 = outer.len() - 28;
    assert!(Offload::read(&[1, 0, 0, 0, 0, 0, l4 as u8, 0, 8, 0]).complete(&mut outer));
    inner[at..].copy_from_slice(&outer[l4..]);
    let headers = classify(LinkType::Ethernet, &inner).unwrap();
    assert_eq!(verify_transport(&inner, &headers), Verdict::Right);
}

#[test]
fn packets_of_a_tunnel_that_have_numbers_are_not_cut() {
    let mut whole = in_tunnel(4, &frame(false, true, false, 1, 2, 0x10, &[7; 3000]), 5);
    let header = [1, 1, 0, 0, 100, 0, (whole.len() - 3032) as u8, 0, 16, 0];
    let mut segmenter = Segmenter::default();
    assert!(segmenter.take(&whole, Offload::read(&header)));
    whole[34] |= GRE_SEQUENCE;
    assert!(!segmenter.take(&whole, Offload::read(&header)));
    // Two tunnels, one in the other: the header tells of the innermost packet only.
    let once = in_tunnel(5, &frame(false, true, false, 1, 2, 0x10, &[7; 3000]), 5);
    let twice = in_tunnel(0, &once, 6);
    let header = [1, 1, 0, 0, 100, 0, (twice.len() - 3032) as u8, 0, 16, 0];
    assert!(!segmenter.take(&twice, Offload::read(&header)));
}

/// The low byte of a length may be that which IPv6 begins with, the hops behind it a length that fits.
#[test]
fn bytes_of_a_header_that_look_like_another_one_are_none() {
    for payload in 1..300_usize {
        let whole = in_tunnel(0, &frame(false, true, false, 0, 2, 0x10, &vec![7; payload]), 5);
        let header = [1, 1, 0, 0, 10, 0, (whole.len() - payload - 32) as u8, 0, 16, 0];
        assert!(Segmenter::default().take(&whole, Offload::read(&header)), "{payload}");
    }
}

#[test]
fn a_tunnel_has_headers_of_a_bounded_length() {
    let takes = |options: usize| {
        let inner = frame(true, true, true, 1, 2, 0x10, &[7; 3000]);
        let mut outer = frame(true, false, true, 1, 2, 0, &[]);
        let l4 = outer.len() - 8;
        // A header of Geneve, whose options nobody reads.
        outer.extend([63, 0, 0x65, 0x58, 0, 0, 7, 0]);
        outer.extend(vec![0; options]);
        outer.extend(inner);
        let len = ((outer.len() - l4) as u16).to_be_bytes();
        outer[l4 + 4..][..2].copy_from_slice(&len);
        outer[22..24].copy_from_slice(&len);
        let (size, start) = (100u16.to_ne_bytes(), ((outer.len() - 3032) as u16).to_ne_bytes());
        let header = [&[1, 4, 0, 0][..], &size, &start, &[16, 0]].concat();
        Segmenter::default().take(&outer, Offload::read(header.first_chunk().unwrap()))
    };
    assert!(takes(252));
    assert!(!takes(600));
}

/// A frame of TCP over IPv6 with these extension headers: their kinds, and their lengths in units of
/// eight bytes, the first of which is not counted.
fn extended(extensions: &[(u8, u8)], seq: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = frame(true, true, false, 1, seq, flags, payload);
    let (mut chain, mut before) = (Vec::new(), 20);
    for (kind, len) in extensions {
        let next = if before == 20 { &mut frame[before] } else { &mut chain[before - 54] };
        *next = *kind;
        before = 54 + chain.len();
        // A routing header names one more place to go to: a last destination, which sums are made with.
        chain.extend([TCP, *len, 4, u8::from(*kind == 43), 0, 0, 0, 0]);
        chain.resize(chain.len() + usize::from(*len) * 8, 0x31);
    }
    frame.splice(54..54, chain.iter().copied());
    let len = ((frame.len() - 54) as u16).to_be_bytes();
    frame[18..20].copy_from_slice(&len);
    let l4 = 54 + chain.len();
    let last = if extensions.iter().any(|(kind, _)| *kind == 43) { [0x31; 16] } else { [0x20; 16] };
    let mut pseudo = [[0x20; 16], last].concat();
    pseudo.extend(((frame.len() - l4) as u32).to_be_bytes());
    pseudo.extend([0, 0, 0, TCP]);
    put(&mut frame, l4 + 16, 0);
    let value = checksum(&[&pseudo, &frame[l4..]].concat());
    put(&mut frame, l4 + 16, value);
    frame
}

/// The header of a super-frame that `extended` makes; its checksum is missing or not.
fn of_extended(whole: &[u8], payload: usize, size: u16, missing: bool) -> Offload {
    let l4 = (whole.len() - payload - 32) as u16;
    let numbers = [0, size, if missing { l4 } else { 0 }, if missing { 16 } else { 0 }].map(u16::to_ne_bytes);
    Offload::read([&[u8::from(missing), 4][..], &numbers.concat()].concat().first_chunk().unwrap())
}

/// On its way through a routing header a packet has another destination than the one that its checksum is
/// made with. What the sender has put into the field knows that one.
#[test]
fn checksums_behind_a_routing_header_are_right() {
    let payload: Vec<u8> = (0..3001_u32).map(|n| n as u8).collect();
    for extensions in [&[(43, 2)][..], &[(0, 0), (43, 4), (60, 1)]] {
        let mut whole = extended(extensions, 7, 0x18, &payload);
        let l4 = whole.len() - payload.len() - 32;
        let offload = of_extended(&whole, payload.len(), 1000, true);
        // The sum of the pseudo-header, as the kernel hands it over.
        let mut pseudo = [[0x20; 16], [0x31; 16]].concat();
        pseudo.extend(((whole.len() - l4) as u32).to_be_bytes());
        pseudo.extend([0, 0, 0, TCP]);
        put(&mut whole, l4 + 16, !checksum(&pseudo));
        let (mut segmenter, mut packet, mut got) = (Segmenter::default(), Vec::new(), Vec::new());
        assert!(segmenter.take(&whole, offload));
        while segmenter.next(&mut packet) {
            got.push(packet.clone());
        }
        let twin = payload.chunks(1000).enumerate().map(|(n, part)| {
            extended(extensions, 7 + 1000 * n as u32, if n < 3 { 0x10 } else { 0x18 }, part)
        });
        assert!(got == twin.collect::<Vec<_>>());
        // Where nothing is missing, nobody says what the sum was made with.
        assert!(!segmenter.take(&whole, of_extended(&whole, payload.len(), 1000, false)));
    }
}

/// Each packet would need a proof of its own that nobody but its sender can make.
#[test]
fn packets_with_an_authentication_header_are_not_cut() {
    for (kind, cuts) in [(60, true), (51, false)] {
        let mut whole = extended(&[(60, 1)], 7, 0x18, &[7; 3000]);
        if kind == 51 {
            // Its length is in units of four bytes, two of which are not counted.
            (whole[20], whole[55]) = (51, 2);
        }
        for missing in [false, true] {
            let offload = of_extended(&whole, 3000, 1000, missing);
            assert_eq!(Segmenter::default().take(&whole, offload), cuts, "{kind}");
        }
    }
}

/// Each packet has all headers of its super-frame: long ones before few bytes each would make gigabytes
/// of a single frame.
#[test]
fn headers_of_packets_are_of_a_bounded_length() {
    for (len, cuts) in [(20, true), (110, true), (120, false), (255, false)] {
        let whole = extended(&[(60, len)], 7, 0x18, &[7; 3000]);
        let offload = of_extended(&whole, 3000, 1, true);
        assert_eq!(Segmenter::default().take(&whole, offload), cuts, "{len}");
    }
    let whole = extended(&[(60, 255); 16], 7, 0x18, &[7; 3000]);
    assert!(!Segmenter::default().take(&whole, of_extended(&whole, 3000, 1, true)));
}

/// A header of TCP has 20 bytes at least; with fewer, what is changed in it would be payload.
#[test]
fn a_tcp_header_that_is_too_short_is_refused() {
    for words in 0..16_u8 {
        let mut whole = frame(false, true, false, 1, 2, 0x18, &[0xff; 3000]);
        whole[46] = words << 4;
        let offload = Offload::read(&[0, 1, 0, 0, 100, 100, 0, 0, 0, 0]);
        assert_eq!(Segmenter::default().take(&whole, offload), words >= 5, "{words}");
    }
}

/// A packet that is not cut may be as long as there is room for: IPv6 has lengths for it, IPv4 has none.
#[test]
fn packets_of_64_kib_keep_their_lengths() {
    for tcp in [false, true] {
        let len = LONGEST - HEADER - 8 - 14 - 40 - if tcp { 32 } else { 8 };
        let whole = frame(true, tcp, false, 1, 2, 0x10, &vec![7; len]);
        assert_eq!(whole.len(), 14 + (1 << 16));
        let header = |kind: u8| {
            let [low, high] = u16::MAX.to_ne_bytes();
            Offload::read(&[0, kind, 0, 0, low, high, 0, 0, 0, 0])
        };
        let (mut segmenter, mut packet) = (Segmenter::default(), Vec::new());
        assert!(segmenter.take(&whole, header(if tcp { 4 } else { 5 })));
        assert!(segmenter.next(&mut packet) && packet == whole);
        assert!(!segmenter.next(&mut packet));
        let mut whole = frame(false, tcp, false, 1, 2, 0x10, &[7; 20]);
        whole.resize(14 + (1 << 16), 7);
        assert!(!segmenter.take(&whole, header(if tcp { 1 } else { 5 })));
    }
}

fn survives(mut bytes: Vec<u8>, header: [u8; HEADER]) -> Result<(), TestCaseError> {
    let (mut segmenter, mut packet) = (Segmenter::default(), Vec::new());
    let offload = Offload::read(&header);
    segmenter.take(&bytes, offload);
    let mut n = 0;
    while segmenter.next(&mut packet) {
        n += 1;
    }
    prop_assert!(n <= bytes.len());
    offload.complete(&mut bytes);
    Ok(())
}

proptest! {
    /// Against the obvious twin: the packets that a sender without such a card makes.
    #[test]
    fn super_frames_are_cut_as_senders_cut(
        (v6, tcp, tag, ecn) in any::<(bool, bool, bool, bool)>(), (id, seq) in any::<(u16, u32)>(),
        size in 1usize..1500, len in 1usize..9000, flags in any::<u8>(),
    ) {
        let payload: Vec<u8> = (0..len).map(|n| n as u8).collect();
        let whole = frame(v6, tcp, tag, id, seq, flags, &payload);
        let parts = len.div_ceil(size);
        let twin: Vec<_> = payload.chunks(size).enumerate().map(|(n, part)| {
            let mut flags = flags;
            if n + 1 < parts {
                flags &= !0x09;
            }
            if n > 0 {
                flags &= !0x80;
            }
            frame(v6, tcp, tag, id.wrapping_add(n as u16), seq.wrapping_add((n * size) as u32), flags, part)
        }).collect();
        let kind = match (tcp, v6) { (true, false) => 1u8, (true, true) => 4, _ => 5 } | if ecn { 0x80 } else { 0 };
        let [s0, s1] = (size as u16).to_ne_bytes();
        let offload = Offload::read(&[1, kind, 0, 0, s0, s1, 34, 0, 16, 0]);
        prop_assert!(offload.is_super_frame());
        let (mut segmenter, mut packet, mut got) = (Segmenter::default(), Vec::new(), Vec::new());
        prop_assert!(segmenter.take(&whole, offload));
        while segmenter.next(&mut packet) {
            got.push(packet.clone());
        }
        for packet in &got {
            let headers = classify(LinkType::Ethernet, packet).unwrap();
            prop_assert_eq!(verify_transport(packet, &headers), Verdict::Right);
            prop_assert!(verify_ip(packet, &headers) != Verdict::Wrong);
        }
        prop_assert_eq!(got, twin);
    }

    /// The same in tunnels: each packet is in one of its own, as if it had been put there by itself.
    #[test]
    fn super_frames_in_tunnels_are_cut_as_senders_cut(
        way in 0usize..6, (v6, tcp, tag) in any::<(bool, bool, bool)>(), (id, seq) in any::<(u16, u32)>(),
        size in 1usize..1500, len in 1usize..9000, outer_id in any::<u16>(),
    ) {
        let payload: Vec<u8> = (0..len).map(|n| n as u8).collect();
        let tag = tag && is_of_ethernet(way);
        let whole = in_tunnel(way, &frame(v6, tcp, tag, id, seq, 0x10, &payload), outer_id);
        let twin: Vec<_> = payload.chunks(size).enumerate().map(|(n, part)| {
            let number = n as u16;
            let seq = seq.wrapping_add((n * size) as u32);
            let inner = frame(v6, tcp, tag, id.wrapping_add(number), seq, 0x10, part);
            in_tunnel(way, &inner, outer_id.wrapping_add(number))
        }).collect();
        let kind = match (tcp, v6) { (true, false) => 1u8, (true, true) => 4, _ => 5 };
        let ([s0, s1], start) = ((size as u16).to_ne_bytes(), whole.len() - len - if tcp { 32 } else { 8 });
        let ([c0, c1], offset) = ((start as u16).to_ne_bytes(), if tcp { 16 } else { 6 });
        let header = [1, kind, 0, 0, s0, s1, c0, c1, offset, 0];
        let (mut segmenter, mut packet, mut got) = (Segmenter::default(), Vec::new(), Vec::new());
        prop_assert!(segmenter.take(&whole, Offload::read(&header)));
        while segmenter.next(&mut packet) {
            got.push(packet.clone());
        }
        prop_assert_eq!(got, twin);
        // A header that doesn't say where the packet in the tunnel is tells of the outermost one.
        let header = [0, kind, 0, 0, s0, s1, 0, 0, 0, 0];
        prop_assert!(is_udp(way) && !tcp || !segmenter.take(&whole, Offload::read(&header)));
    }

    /// Any bytes at all are cut, or refused, and nothing else happens.
    #[test]
    fn nonsense_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200), header in any::<[u8; HEADER]>()) {
        survives(bytes, header)?;
    }

    /// So are super-frames of any length that were changed in any places, in tunnels or not.
    #[test]
    fn what_is_half_right_is_refused_or_cut(
        (v6, tcp, tag) in any::<(bool, bool, bool)>(),
        way in proptest::option::of(0usize..6),
        len in prop_oneof![0usize..300, 65_000usize..65_472],
        edits in proptest::collection::vec((0usize..140, any::<u8>()), 0..4),
        behind in 0usize..100,
        header in any::<[u8; HEADER]>(),
        right in any::<bool>(),
    ) {
        let mut bytes = frame(v6, tcp, tag, 1, 2, 0x10, &vec![7; len.min(65_400)]);
        let start = bytes.len() - len.min(65_400) - if tcp { 32 } else { 8 };
        let alone = bytes.len();
        if let Some(way) = way.filter(|_| len < 300) {
            bytes = in_tunnel(way, &bytes, 5);
        }
        let start = start + bytes.len() - alone;
        for (at, byte) in edits {
            if let Some(there) = bytes.get_mut(at) {
                *there = byte;
            }
        }
        bytes.resize((bytes.len() + behind).min(LONGEST - HEADER), 0);
        let mut header = header;
        if right {
            (header[0], header[1]) = (1, if tcp { 1 } else { 5 });
            [header[6], header[7]] = (start as u16).to_ne_bytes();
        }
        survives(bytes, header)?;
    }

    /// Missing checksums become what they are of whole packets.
    #[test]
    fn checksums_are_completed((v6, tcp) in any::<(bool, bool)>(), payload in proptest::collection::vec(any::<u8>(), 0..99)) {
        let right = frame(v6, tcp, false, 1, 2, 0x18, &payload);
        let (l4, field) = (if v6 { 54 } else { 34 }, if tcp { 16 } else { 6 });
        let mut partial = right.clone();
        let mut pseudo = if v6 { right[22..54].to_vec() } else { right[26..34].to_vec() };
        pseudo.extend([0, if tcp { TCP } else { UDP }]);
        pseudo.extend(((right.len() - l4) as u16).to_be_bytes());
        partial[l4 + field..l4 + field + 2].copy_from_slice(&(!checksum(&pseudo)).to_be_bytes());
        let offload = Offload::read(&[1, 0, 0, 0, 0, 0, l4 as u8, 0, field as u8, 0]);
        prop_assert!(offload.complete(&mut partial));
        prop_assert_eq!(partial, right);
    }
}
