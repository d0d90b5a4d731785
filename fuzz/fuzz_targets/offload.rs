//! Any header of a network card's work before any frame: a frame keeps its bytes but those of its checksum; a
//! super-frame is refused, or cut into packets of a bounded size, whose payloads are together its own, with
//! right lengths, numbers and checksums.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slipstream::io::super_frame::{HEADER_BYTES, taken_in};
use slipstream_fuzz::Input;
use slipstream_wire::checksum::{Verdict, fill_ip, verify_ip, verify_transport};
use slipstream_wire::{Encapsulation, Flags, Headers, LinkType, classify, classify_with, ip_end};

/// Bytes of all headers of a packet that is cut off a super-frame, at most.
const LONGEST_HEADERS: usize = 1024;

/// Headers that go before an IP packet of a super-frame, by their number: none; VXLAN, Geneve with options,
/// GRE with a key and a checksum, IP in IP.
fn tunnel(number: u8, six: bool, inner: &[u8], options: u8) -> Vec<u8> {
    let ethertype = if six { [0x86, 0xdd] } else { [8, 0] };
    let mut inside = Vec::new();
    let protocol = match number {
        1 | 2 => {
            let ports = if number == 1 { [0xc0, 1, 0x12, 0xb5] } else { [0xc0, 1, 0x17, 0xc1] };
            inside.extend(ports);
            inside.extend([0, 0, 0, options & 1]);
            if number == 1 {
                inside.extend([8, 0, 0, 0, 0, 0, 7, 0]);
            } else {
                inside.extend([options & 63, 0, 0x65, 0x58, 0, 0, 7, 0]);
                inside.extend(vec![0; usize::from(options & 63) * 4]);
            }
            inside.extend([6; 12]);
            inside.extend(ethertype);
            17
        }
        3 => {
            inside.extend([options & 0xb0, 0, ethertype[0], ethertype[1]]);
            inside.extend(vec![0; (options & 0xb0).count_ones() as usize * 4]);
            47
        }
        _ if six => 41,
        _ => 4,
    };
    inside.extend(inner);
    let len = inside.len() as u16;
    if matches!(number, 1 | 2) {
        inside[4..6].copy_from_slice(&len.to_be_bytes());
    }
    network(options & 2 != 0, protocol, &[], &inside)
}

/// An IP packet, with extension headers where it has room for them.
fn network(six: bool, protocol: u8, extensions: &[(u8, u8)], inside: &[u8]) -> Vec<u8> {
    let mut packet = Vec::new();
    if six {
        let mut chain = Vec::new();
        let next = |n: usize| extensions.get(n).map_or(protocol, |(kind, _)| *kind);
        for (n, (_, len)) in extensions.iter().enumerate() {
            chain.extend([next(n + 1), *len, 0, len & 1]);
            chain.resize(chain.len() + 4 + usize::from(*len) * 8, 0);
        }
        packet.extend([0x60, 0, 0, 0]);
        packet.extend(((chain.len() + inside.len()) as u16).to_be_bytes());
        packet.extend([next(0), 64]);
        packet.extend([0x20; 32]);
        packet.extend(chain);
    } else {
        packet.extend([0x45, 0]);
        packet.extend(((20 + inside.len()) as u16).to_be_bytes());
        packet.extend([0xff, 0xfe, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    }
    packet.extend(inside);
    packet
}

/// A super-frame, and where its transport header is.
fn frame(input: &mut Input<'_>) -> (Vec<u8>, usize, bool, bool) {
    let (shape, way, options) = (input.byte(), input.byte(), input.byte());
    let bit = |n: u8| shape >> n & 1 == 1;
    let (six, tcp) = (bit(0), bit(1));
    let extensions: Vec<_> = (0..shape >> 4 & 7)
        .map(|_| ([0, 43, 60, 51, 44, 43, 60, 60][usize::from(input.byte() & 7)], input.byte()))
        .take_while(|_| bit(3))
        .collect();
    let len = usize::from(input.u32() as u16) >> (input.byte() & 15);
    let mut transport = vec![0x10, 0, 0x20, 0];
    if tcp {
        transport.extend([0xff, 0xff, 0xff, 0x80, 0, 0, 0, 1, 0x80, 0x99, 1, 0, 0, 0, 0, 0]);
        transport.extend([1, 1, 8, 10, 0, 0, 0, 5, 0, 0, 0, 6]);
    } else {
        transport.extend(((8 + len) as u16).to_be_bytes());
        transport.extend([0, 0]);
    }
    let header = transport.len();
    transport.extend((0..len.min(65_400)).map(|n| (n ^ n >> 8) as u8));
    let behind = transport.len();
    let mut packet = network(six, if tcp { 6 } else { 17 }, &extensions, &transport);
    let mut six = six;
    if (1..5).contains(&(way & 7)) {
        packet = tunnel(way & 7, six, &packet, options);
        six = options & 2 != 0;
    }
    let mut frame = vec![2; 12];
    if bit(2) {
        frame.extend([0x81, 0, 0, 9]);
    }
    frame.extend(if six { [0x86, 0xdd] } else { [8, 0] });
    frame.extend(packet);
    if let Ok(headers) = classify(LinkType::Ethernet, &frame) {
        fill_ip(&mut frame, &headers);
    }
    let at = frame.len() - behind;
    for _ in 0..way >> 5 {
        let place = usize::from(input.byte());
        let place = if place & 1 == 0 { place / 2 } else { (at + place / 2).saturating_sub(20) };
        let value = input.byte();
        if let Some(byte) = frame.get_mut(place) {
            *byte = value;
        }
    }
    if way & 8 != 0 {
        frame.resize(frame.len() + usize::from(options), 0);
    }
    if way & 16 != 0 {
        frame.truncate(frame.len() - header.min(usize::from(options)));
    }
    frame.truncate(14 + 8 + (1 << 16));
    (frame, at, tcp, bit(7))
}

/// The outermost headers of a packet, and the innermost ones.
fn layers(packet: &[u8]) -> [Headers; 2] {
    let of = |which| classify_with(LinkType::Ethernet, packet, which).unwrap();
    [of(Encapsulation::Outer), of(Encapsulation::Inner)]
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let mut header: [u8; HEADER_BYTES] = std::array::from_fn(|_| input.byte());
    let (before, at, tcp, any) = frame(&mut input);
    if !any {
        // As the kernel writes it, but for the size of packets, and whether their checksums are missing.
        header[0] &= 1;
        header[1] = match header[1] & 3 {
            0 => 0,
            _ if !tcp => 5,
            other => [1, 1, 4, 0x81][usize::from(other)],
        };
        header[6..8].copy_from_slice(&(at as u16).to_ne_bytes());
        header[8..10].copy_from_slice(&(if tcp { 16_u16 } else { 6 }).to_ne_bytes());
    }
    let mut whole = before.clone();
    let mut packets: Vec<Vec<u8>> = Vec::new();
    // Of packets in between, one in a hundred is looked at; of all, their lengths are.
    let (mut number, mut bytes, mut last) = (0_usize, 0_usize, Vec::new());
    let mut payload = Vec::new();
    let size = usize::from(u16::from_ne_bytes([header[4], header[5]]));
    let taken = taken_in(&header, &mut whole, &mut |packet| {
        bytes += packet.len();
        if number < 100 || number.is_multiple_of(100) {
            packets.push(packet.to_vec());
        }
        // All but the last one have as much payload as the header says.
        payload.extend_from_slice(&packet[packet.len().saturating_sub(size)..]);
        last = packet.to_vec();
        number += 1;
    });
    if header[1] & 0x7f == 0 {
        assert!(taken && number == 1 && packets[0].len() == before.len());
        let changed = before.iter().zip(&packets[0]).filter(|(a, b)| a != b).count();
        assert!(changed <= if header[0] & 1 == 0 { 0 } else { 4 });
        return;
    }
    if !taken {
        assert_eq!(number, 0);
        return;
    }
    assert!(number > 0 && size > 0);
    if number == 1 {
        assert_eq!(last.len(), before.len());
    }
    // All have headers of one length, so that these are what the packets have more than the super-frame.
    let front =
        if number > 1 { (bytes - before.len()) / (number - 1) } else { before.len().saturating_sub(size) };
    assert_eq!(bytes, before.len() + front * (number - 1));
    if number > 1 {
        assert!(front <= LONGEST_HEADERS, "{front} bytes of headers");
        assert_eq!(number, (before.len() - front).div_ceil(size));
        // The last one may be shorter.
        let whole = (number - 1) * size;
        assert!(payload[..whole] == before[front..front + whole]);
        assert!(last[front..] == before[front + whole..]);
    }
    let [first, _] = layers(&packets[0]);
    let start = usize::from(u16::from_ne_bytes([header[6], header[7]]));
    for packet in packets.iter().chain([&last]) {
        let [outer, inner] = layers(packet);
        assert_eq!((outer.l3, outer.l4), (first.l3, first.l4));
        // What lies deeper than the packets that were cut is their payload.
        let cut = header[0] & 1 != 0 && start == usize::from(inner.l4);
        for headers in std::iter::once(&outer).chain(cut.then_some(&inner)) {
            assert_eq!(ip_end(packet, headers), packet.len());
            assert!(!headers.flags.has(Flags::FRAGMENT));
            assert_ne!(verify_ip(packet, headers), Verdict::Wrong);
            assert_ne!(verify_transport(packet, headers), Verdict::Wrong);
        }
    }
});
