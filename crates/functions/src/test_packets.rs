//! Packets for tests: raw IP, checksums right.

use std::net::Ipv6Addr;

use slipstream_wire::checksum::{Verdict, fill_ip, fill_transport, verify_ip, verify_transport};
use slipstream_wire::{Headers, LinkType, classify};

pub(super) fn headers(packet: &[u8]) -> Headers {
    classify(LinkType::RawIp, packet).expect("an IP packet")
}

/// Writes all checksums.
pub(super) fn filled(mut packet: Vec<u8>) -> Vec<u8> {
    let headers = headers(&packet);
    fill_ip(&mut packet, &headers);
    fill_transport(&mut packet, &headers);
    packet
}

/// `fragment` is the word of flags and offset; checksums are filled in.
pub(super) fn ipv4_fragment(
    protocol: u8,
    src: u32,
    dst: u32,
    fragment: u16,
    options: &[u8],
    payload: &[u8],
) -> Vec<u8> {
    let mut packet = vec![0x45 + (options.len() / 4) as u8, 0];
    packet.extend(((20 + options.len() + payload.len()) as u16).to_be_bytes());
    packet.extend([0x12, 0x34]);
    packet.extend(fragment.to_be_bytes());
    packet.extend([64, protocol, 0, 0]);
    packet.extend(src.to_be_bytes());
    packet.extend(dst.to_be_bytes());
    packet.extend(options);
    packet.extend(payload);
    filled(packet)
}

pub(super) fn ipv4(protocol: u8, src: u32, dst: u32, payload: &[u8]) -> Vec<u8> {
    ipv4_fragment(protocol, src, dst, 0, &[], payload)
}

pub(super) fn ipv6(next: u8, src: Ipv6Addr, dst: Ipv6Addr, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend((payload.len() as u16).to_be_bytes());
    packet.extend([next, 64]);
    packet.extend(src.octets());
    packet.extend(dst.octets());
    packet.extend(payload);
    filled(packet)
}

pub(super) fn tcp(src: u16, dst: u16, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut segment = [src.to_be_bytes(), dst.to_be_bytes()].concat();
    segment.extend([0, 0, 0, 7, 0, 0, 0, 9, 0x50, flags, 1, 0, 0, 0, 0, 0]);
    segment.extend(payload);
    segment
}

pub(super) fn udp(src: u16, dst: u16, payload: &[u8]) -> Vec<u8> {
    let length = (8 + payload.len()) as u16;
    [&src.to_be_bytes()[..], &dst.to_be_bytes(), &length.to_be_bytes(), &[0, 0], payload].concat()
}

/// An echo (type 8) or its reply (0), ICMPv6's 128 and 129.
pub(super) fn echo(kind: u8, id: u16, payload: &[u8]) -> Vec<u8> {
    [&[kind, 0, 0, 0], &id.to_be_bytes()[..], &[0, 1], payload].concat()
}

/// An ICMP error that quotes.
pub(super) fn error(kind: u8, code: u8, quoted: &[u8]) -> Vec<u8> {
    [&[kind, code, 0, 0, 0, 0, 0, 0], quoted].concat()
}

/// No checksum is wrong.
pub(super) fn is_right(packet: &[u8]) -> bool {
    let headers = headers(packet);
    verify_ip(packet, &headers) != Verdict::Wrong && verify_transport(packet, &headers) != Verdict::Wrong
}
