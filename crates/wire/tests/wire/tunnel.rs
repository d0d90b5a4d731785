//! Flow keys from within tunnels, as a table: description, frame, what is expected.

use proptest::prelude::*;
use slipstream_wire::Encapsulation::{Inner, Outer};
use slipstream_wire::{Flags, LinkType, classify, classify_with};

use crate::frames::*;

const INNER: u8 = Flags::INNER;

fn check(cases: Vec<(&str, Vec<u8>, Expected)>) {
    for (description, frame, result) in cases {
        assert_eq!(seen(classify_with(LinkType::Ethernet, &frame, Inner)), expected(result), "{description}");
        assert_eq!(
            classify_with(LinkType::Ethernet, &frame, Outer),
            classify(LinkType::Ethernet, &frame),
            "{description}: outer"
        );
    }
}

/// From 192.168.0.1:80 to 192.168.0.2:1234.
fn inner4() -> Vec<u8> {
    let mut ip = ipv4(6, &tcp(80, 1234));
    ip[12..20].copy_from_slice(&[192, 168, 0, 1, 192, 168, 0, 2]);
    ip
}

const TCP4: &str = "192.168.0.1:80 > 192.168.0.2:1234 tcp";

fn outer(protocol: u8, payload: &[u8]) -> Vec<u8> {
    ethernet(0x800, &ipv4(protocol, payload))
}

fn gre(flags: u16, protocol: u16, optional: &[u8], payload: &[u8]) -> Vec<u8> {
    [&flags.to_be_bytes()[..], &protocol.to_be_bytes(), optional, payload].concat()
}

fn vxlan(flags: u8, payload: &[u8]) -> Vec<u8> {
    udp(1000, 4789, &[&[flags, 0, 0, 0, 0, 0, 7, 0], payload].concat())
}

fn geneve(first: u8, second: u8, protocol: u16, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let header = [&[first, second][..], &protocol.to_be_bytes(), &[0, 0, 7, 0]].concat();
    udp(1000, 6081, &[&header, options, payload].concat())
}

#[test]
fn followed() {
    let six = ipv6(17, &udp(53, 99, &[]));
    check(vec![
        ("no tunnel", outer(17, &udp(53, 99, &[])), Ok(("10.0.0.1:53 > 10.0.0.2:99 udp", 14, 34, UDP))),
        ("IPv4 in IPv4", outer(4, &inner4()), Ok((TCP4, 34, 54, TCP | INNER))),
        (
            "IPv6 in IPv4",
            outer(41, &six),
            Ok(("[2001:db8::1]:53 > [2001:db8::2]:99 udp", 34, 74, UDP | V6 | INNER)),
        ),
        ("IPv4 in IPv6", ethernet(0x86dd, &ipv6(4, &inner4())), Ok((TCP4, 54, 74, TCP | INNER))),
        (
            "IPv4 in IPv6 behind destination options",
            ethernet(0x86dd, &ipv6(60, &extension(4, 0, 0, &inner4()))),
            Ok((TCP4, 62, 82, TCP | INNER)),
        ),
        ("GRE", outer(47, &gre(0, 0x800, &[], &inner4())), Ok((TCP4, 38, 58, TCP | INNER))),
        (
            "GRE with checksum, key and sequence number",
            outer(47, &gre(0xb000, 0x800, &[0; 12], &inner4())),
            Ok((TCP4, 50, 70, TCP | INNER)),
        ),
        (
            "GRE with a key",
            outer(47, &gre(0x2000, 0x800, &[0; 4], &inner4())),
            Ok((TCP4, 42, 62, TCP | INNER)),
        ),
        (
            "GRE, an Ethernet frame inside",
            outer(47, &gre(0x2000, 0x6558, &[0; 4], &ethernet(0x800, &inner4()))),
            Ok((TCP4, 56, 76, TCP | INNER)),
        ),
        ("VXLAN", outer(17, &vxlan(8, &ethernet(0x800, &inner4()))), Ok((TCP4, 64, 84, TCP | INNER))),
        (
            "GENEVE",
            outer(17, &geneve(0, 0, 0x6558, &[], &ethernet(0x800, &inner4()))),
            Ok((TCP4, 64, 84, TCP | INNER)),
        ),
        (
            "GENEVE with options, IP inside",
            outer(17, &geneve(2, 0x40, 0x800, &[0; 8], &inner4())),
            Ok((TCP4, 58, 78, TCP | INNER)),
        ),
        (
            "VLAN ids: outer ones first",
            tagged(
                &[(0x88a8, 1), (0x8100, 2)],
                0x800,
                &ipv4(17, &vxlan(8, &tagged(&[(0x8100, 3)], 0x800, &inner4()))),
            ),
            Ok(("192.168.0.1:80 > 192.168.0.2:1234 tcp vlan 1.2.3", 76, 96, TCP | INNER)),
        ),
        (
            "a fragment inside has no ports",
            outer(4, &ipv4_with(6, 0x2000, &[], &tcp(80, 1234))),
            Ok(("10.0.0.1 > 10.0.0.2 tcp", 34, 54, FRAGMENT | INNER)),
        ),
        (
            "GRE in VXLAN in IP in IP",
            outer(4, &ipv4(17, &vxlan(8, &ethernet(0x800, &ipv4(47, &gre(0, 0x800, &[], &inner4())))))),
            Ok((TCP4, 108, 128, TCP | INNER)),
        ),
    ]);
}

#[test]
fn not_followed() {
    let frame = ethernet(0x800, &inner4());
    let gre_key = "10.0.0.1 > 10.0.0.2 gre";
    let vxlan_key = "10.0.0.1:1000 > 10.0.0.2:4789 udp";
    let geneve_key = "10.0.0.1:1000 > 10.0.0.2:6081 udp";
    let eleven = tagged(&[(0x8100, 1); 11], 0x800, &inner4());
    check(vec![
        (
            "GRE version 1 (PPTP)",
            outer(47, &gre(0x2001, 0x880b, &[0; 4], &inner4())),
            Ok((gre_key, 14, 34, 0)),
        ),
        (
            "GRE with source routing",
            outer(47, &gre(0x4000, 0x800, &[0; 4], &inner4())),
            Ok((gre_key, 14, 34, 0)),
        ),
        ("GRE, no IP inside", outer(47, &gre(0, 0x8847, &[], &inner4())), Ok((gre_key, 14, 34, 0))),
        ("GRE cut", outer(47, &[0, 0, 8]), Ok((gre_key, 14, 34, 0))),
        ("GRE, another version inside", outer(47, &gre(0, 0x86dd, &[], &inner4())), Ok((gre_key, 14, 34, 0))),
        (
            "a fragment of a tunnel",
            ethernet(0x800, &ipv4_with(47, 0x2000, &[], &gre(0, 0x800, &[], &inner4()))),
            Ok((gre_key, 14, 34, FRAGMENT)),
        ),
        ("inner header cut", outer(4, &inner4()[..19]), Ok(("10.0.0.1 > 10.0.0.2 ipip", 14, 34, 0))),
        ("VXLAN without identifier", outer(17, &vxlan(0, &frame)), Ok((vxlan_key, 14, 34, UDP))),
        ("VXLAN, ARP inside", outer(17, &vxlan(8, &ethernet(0x806, &[0; 28]))), Ok((vxlan_key, 14, 34, UDP))),
        ("VXLAN, too many tags inside", outer(17, &vxlan(8, &eleven)), Ok((vxlan_key, 14, 34, UDP))),
        ("VXLAN header cut", outer(17, &udp(1000, 4789, &[8; 7])), Ok((vxlan_key, 14, 34, UDP))),
        (
            "from the port of VXLAN: an answer goes to another",
            outer(17, &udp(4789, 1000, &[&[8, 0, 0, 0, 0, 0, 7, 0], &frame[..]].concat())),
            Ok(("10.0.0.1:4789 > 10.0.0.2:1000 udp", 14, 34, UDP)),
        ),
        ("GENEVE version 1", outer(17, &geneve(0x40, 0, 0x6558, &[], &frame)), Ok((geneve_key, 14, 34, UDP))),
        (
            "GENEVE control packet",
            outer(17, &geneve(0, 0x80, 0x6558, &[], &frame)),
            Ok((geneve_key, 14, 34, UDP)),
        ),
        (
            "GENEVE options beyond the frame",
            outer(17, &geneve(63, 0, 0x800, &[], &inner4())),
            Ok((geneve_key, 14, 34, UDP)),
        ),
    ]);
}

/// The ninth tunnel of a frame is not entered.
#[test]
fn bounded_depth() {
    let nested = |depth: usize| (0..depth).fold(inner4(), |packet, _| ipv4(4, &packet));
    let key = |depth| {
        let headers = classify_with(LinkType::RawIp, &nested(depth), Inner).unwrap();
        (headers.key.to_string(), headers.l3)
    };
    assert_eq!(key(8), (TCP4.to_owned(), 160));
    assert_eq!(key(9), ("10.0.0.1 > 10.0.0.2 ipip".to_owned(), 160));
}

/// Offsets are 16 bits: a header beyond is not followed.
#[test]
fn inner_header_beyond_64_kb() {
    let far = [&[60, 255][..], &[0; 2046]].concat().repeat(31);
    let mut last = vec![0; 2048];
    (last[0], last[1]) = (4, 255);
    let frame = ipv6(60, &[&far[..], &last, &inner4()].concat());
    let headers = classify_with(LinkType::RawIp, &frame, Inner).unwrap();
    assert_eq!(headers, classify(LinkType::RawIp, &frame).unwrap());
    assert_eq!((headers.key.protocol(), headers.l4), (4, u16::MAX));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Whatever is inside, the outer headers classify as before, and the inner ones only go deeper.
    #[test]
    fn any_inside(protocol in proptest::sample::select(vec![4_u8, 17, 41, 47]), mut payload in proptest::collection::vec(any::<u8>(), 8..120), port in proptest::sample::select(vec![4789_u16, 6081])) {
        if protocol == 17 {
            payload[2..4].copy_from_slice(&port.to_be_bytes());
        }
        let frame = outer(protocol, &payload);
        let (out, inner) = (classify(LinkType::Ethernet, &frame).unwrap(), classify_with(LinkType::Ethernet, &frame, Inner).unwrap());
        if inner.flags.has(INNER) {
            prop_assert!(inner.l3 > out.l4 || inner.l3 == out.l4 && protocol != 17);
        } else {
            prop_assert_eq!(inner, out);
        }
    }
}
