//! Flow keys as a table: description, link type, frame, what is expected.

use proptest::prelude::*;
use slipstream_wire::LinkType::{Ethernet, LinuxSll, LinuxSll2, Loopback, Other, RawIp};
use slipstream_wire::Skip::{Malformed, NonIp, Truncated, UnsupportedLinkType};
use slipstream_wire::{LinkType, classify, classify_reference, tcp_segment};

use crate::frames::*;

type Case = (&'static str, LinkType, Vec<u8>, Expected);

const PLAIN: &str = "10.0.0.1:80 > 10.0.0.2:1234 tcp";
const PLAIN_UDP: &str = "10.0.0.1:53 > 10.0.0.2:99 udp";
const NO_PORTS: &str = "10.0.0.1 > 10.0.0.2 tcp";
const SIX: &str = "[2001:db8::1]:80 > [2001:db8::2]:1234 tcp";
const SIX_NO_PORTS: &str = "2001:db8::1 > 2001:db8::2 tcp";

fn check(cases: Vec<Case>) {
    for (description, link, frame, result) in cases {
        assert_eq!(seen(classify(link, &frame)), expected(result), "{description}");
        assert_eq!(classify(link, &frame), classify_reference(link, &frame), "{description}: fast path");
    }
}

fn tcp4() -> Vec<u8> {
    ipv4(6, &tcp(80, 1234))
}

fn tcp6() -> Vec<u8> {
    ipv6(6, &tcp(80, 1234))
}

#[test]
fn link_types() {
    let sll = |ethertype: u16, ip: &[u8]| [&[0; 14][..], &ethertype.to_be_bytes(), ip].concat();
    let sll2 = |ethertype: u16, ip: &[u8]| [&ethertype.to_be_bytes()[..], &[0; 18], ip].concat();
    let loopback = |ip: &[u8]| [&[2, 0, 0, 0], ip].concat();
    // Of a tag, what follows its own ethertype: priority and VLAN, then the ethertype of what it is before.
    let tag = [&[0xa0, 5, 8, 0], &tcp4()[..]].concat();
    let tags = [&[0, 7, 0x81, 0], &tag[..]].concat();
    let (one, two) = ("10.0.0.1:80 > 10.0.0.2:1234 tcp vlan 5", "10.0.0.1:80 > 10.0.0.2:1234 tcp vlan 7.5");
    check(vec![
        ("Ethernet", Ethernet, ethernet(0x800, &tcp4()), Ok((PLAIN, 14, 34, TCP))),
        ("Ethernet, IPv6", Ethernet, ethernet(0x86dd, &tcp6()), Ok((SIX, 14, 54, TCP | V6))),
        ("Ethernet, header cut", Ethernet, vec![0; 13], Err(Truncated)),
        ("Ethernet, nothing", Ethernet, vec![], Err(Truncated)),
        ("raw IPv4", RawIp, tcp4(), Ok((PLAIN, 0, 20, TCP))),
        ("raw IPv6", RawIp, tcp6(), Ok((SIX, 0, 40, TCP | V6))),
        ("raw, nothing", RawIp, vec![], Err(Truncated)),
        ("raw, version 5", RawIp, vec![0x55; 40], Err(NonIp)),
        ("loopback, IPv4", Loopback, loopback(&tcp4()), Ok((PLAIN, 4, 24, TCP))),
        (
            "loopback, IPv6: the nibble decides, not the family",
            Loopback,
            loopback(&tcp6()),
            Ok((SIX, 4, 44, TCP | V6)),
        ),
        ("loopback, family alone", Loopback, loopback(&[]), Err(Truncated)),
        ("loopback, first byte of IPv4", Loopback, loopback(&[0x45]), Err(Truncated)),
        ("loopback, neither version", Loopback, loopback(&[0x15]), Err(NonIp)),
        ("cooked v1", LinuxSll, sll(0x800, &tcp4()), Ok((PLAIN, 16, 36, TCP))),
        ("cooked v1, IPv6", LinuxSll, sll(0x86dd, &tcp6()), Ok((SIX, 16, 56, TCP | V6))),
        ("cooked v1, ARP", LinuxSll, sll(0x806, &[0; 28]), Err(NonIp)),
        ("cooked v1, VLAN tag", LinuxSll, sll(0x8100, &tag), Ok((one, 20, 40, TCP))),
        ("cooked v1, two VLAN tags", LinuxSll, sll(0x88a8, &tags), Ok((two, 24, 44, TCP))),
        ("cooked v1, VLAN tag cut", LinuxSll, sll(0x8100, &tag[..3]), Err(Truncated)),
        ("cooked v2, VLAN tag", LinuxSll2, sll2(0x8100, &tag), Ok((one, 24, 44, TCP))),
        ("cooked v1, header cut", LinuxSll, vec![0; 15], Err(Truncated)),
        ("cooked v2", LinuxSll2, sll2(0x800, &tcp4()), Ok((PLAIN, 20, 40, TCP))),
        ("cooked v2, IPv6", LinuxSll2, sll2(0x86dd, &tcp6()), Ok((SIX, 20, 60, TCP | V6))),
        ("cooked v2, header cut", LinuxSll2, vec![0; 19], Err(Truncated)),
        ("another link type", Other(147), ethernet(0x800, &tcp4()), Err(UnsupportedLinkType)),
    ]);
}

#[test]
fn link_type_numbers() {
    for (number, link) in [
        (0, Loopback),
        (1, Ethernet),
        (12, RawIp),
        (14, RawIp),
        (101, RawIp),
        (108, Loopback),
        (113, LinuxSll),
        (228, RawIp),
        (229, RawIp),
        (276, LinuxSll2),
        (147, Other(147)),
    ] {
        assert_eq!(LinkType::from_number(number), link);
    }
}

#[test]
fn not_ip() {
    check(vec![
        ("ARP", Ethernet, ethernet(0x806, &[0; 46]), Err(NonIp)),
        ("LLDP", Ethernet, ethernet(0x88cc, &[0; 46]), Err(NonIp)),
        (
            "MPLS is not looked into",
            Ethernet,
            ethernet(0x8847, &[&[0, 1, 1, 64][..], &tcp4()].concat()),
            Err(NonIp),
        ),
        ("PPPoE is not looked into", Ethernet, ethernet(0x8864, &tcp4()), Err(NonIp)),
        ("802.3 length", Ethernet, ethernet(38, &[0x42; 46]), Err(NonIp)),
        ("IPv4 ethertype over version 6", Ethernet, ethernet(0x800, &tcp6()), Err(NonIp)),
        ("IPv6 ethertype over version 4", Ethernet, ethernet(0x86dd, &padded(tcp4(), 60)), Err(NonIp)),
        ("the same, one byte captured", Ethernet, ethernet(0x86dd, &[0x45]), Err(NonIp)),
    ]);
}

#[test]
fn vlan_tags() {
    let vlans = |n: usize| vec![(0x8100, 1); n];
    let cut_tag = |length| cut(tagged(&[(0x8100, 5)], 0x800, &tcp4()), length);
    check(vec![
        (
            "one tag, its priority bits are not part of the id",
            Ethernet,
            tagged(&[(0x8100, 0xf064)], 0x800, &tcp4()),
            Ok(("10.0.0.1:80 > 10.0.0.2:1234 tcp vlan 100", 18, 38, TCP)),
        ),
        (
            "id 0 is a tag too",
            Ethernet,
            tagged(&[(0x88a8, 0)], 0x800, &tcp4()),
            Ok(("10.0.0.1:80 > 10.0.0.2:1234 tcp vlan 0", 18, 38, TCP)),
        ),
        (
            "three kinds of tag",
            Ethernet,
            tagged(&[(0x88a8, 7), (0x8100, 4095), (0x9100, 9)], 0x800, &tcp4()),
            Ok(("10.0.0.1:80 > 10.0.0.2:1234 tcp vlan 7.4095.9", 26, 46, TCP)),
        ),
        (
            "IPv6 under a tag",
            Ethernet,
            tagged(&[(0x8100, 3)], 0x86dd, &tcp6()),
            Ok(("[2001:db8::1]:80 > [2001:db8::2]:1234 tcp vlan 3", 18, 58, TCP | V6)),
        ),
        (
            "ten tags",
            Ethernet,
            tagged(&vlans(10), 0x800, &tcp4()),
            Ok(("10.0.0.1:80 > 10.0.0.2:1234 tcp vlan 1.1.1.1.1.1.1.1.1.1", 54, 74, TCP)),
        ),
        ("eleven tags", Ethernet, tagged(&vlans(11), 0x800, &tcp4()), Err(Malformed)),
        ("ARP under a tag", Ethernet, tagged(&vlans(1), 0x806, &[0; 46]), Err(NonIp)),
        ("another ethertype for tags", Ethernet, tagged(&[(0x9200, 1)], 0x800, &tcp4()), Err(NonIp)),
        ("cut before the tag", Ethernet, cut_tag(14), Err(Truncated)),
        ("cut in the tag", Ethernet, cut_tag(17), Err(Truncated)),
        ("cut after the tag", Ethernet, cut_tag(18), Err(Truncated)),
    ]);
}

#[test]
fn ipv4_headers() {
    let raw = |ip| ethernet(0x800, ip);
    let mut no_length = tcp4();
    no_length[2..4].fill(0);
    let mut short_header = tcp4();
    short_header[0] = 0x44;
    let mut longest = tcp4();
    longest[0] = 0x4f;
    check(vec![
        ("UDP, no padding", Ethernet, raw(&ipv4(17, &udp(53, 99, &[]))), Ok((PLAIN_UDP, 14, 34, UDP))),
        (
            "UDP, padded",
            Ethernet,
            padded(raw(&ipv4(17, &udp(53, 99, &[]))), 60),
            Ok((PLAIN_UDP, 14, 34, UDP)),
        ),
        (
            "SCTP has ports",
            Ethernet,
            raw(&ipv4(132, &[0, 5, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0])),
            Ok(("10.0.0.1:5 > 10.0.0.2:6 sctp", 14, 34, UDP)),
        ),
        ("ICMP has none", Ethernet, raw(&ipv4(1, &[8; 40])), Ok(("10.0.0.1 > 10.0.0.2 icmp", 14, 34, 0))),
        (
            "UDP-Lite has none here",
            Ethernet,
            raw(&ipv4(136, &[8; 40])),
            Ok(("10.0.0.1 > 10.0.0.2 udplite", 14, 34, 0)),
        ),
        ("options", Ethernet, raw(&ipv4_with(6, 0, &[1; 8], &tcp(80, 1234))), Ok((PLAIN, 14, 42, TCP))),
        ("header beyond the frame", Ethernet, raw(&longest), Ok((NO_PORTS, 14, 74, 0))),
        ("header length under 20", Ethernet, raw(&short_header), Err(Malformed)),
        ("total length 0, as before segmentation", Ethernet, raw(&no_length), Ok((PLAIN, 14, 34, TCP))),
        ("19 bytes of header", Ethernet, cut(raw(&tcp4()), 33), Err(Truncated)),
        ("20 bytes of header", Ethernet, cut(raw(&tcp4()), 34), Ok((NO_PORTS, 14, 34, 0))),
        ("3 bytes of ports", Ethernet, cut(raw(&tcp4()), 37), Ok((NO_PORTS, 14, 34, 0))),
        ("ports", Ethernet, cut(raw(&tcp4()), 38), Ok((PLAIN, 14, 34, UDP))),
        ("13 bytes of TCP", Ethernet, cut(raw(&tcp4()), 47), Ok((PLAIN, 14, 34, UDP))),
        ("14 bytes of TCP", Ethernet, cut(raw(&tcp4()), 48), Ok((PLAIN, 14, 34, TCP))),
        ("nothing after the ethertype", Ethernet, raw(&[]), Err(Truncated)),
        (
            "padding is read as ports, the IP length is not asked",
            Ethernet,
            padded(raw(&ipv4(17, &[])), 60),
            Ok(("10.0.0.1 > 10.0.0.2 udp", 14, 34, UDP)),
        ),
    ]);
}

#[test]
fn ipv4_fragments() {
    let with = |word| ethernet(0x800, &ipv4_with(6, word, &[], &tcp(80, 1234)));
    check(vec![
        ("don't fragment is no fragment", Ethernet, with(0x4000), Ok((PLAIN, 14, 34, TCP))),
        ("the reserved bit neither", Ethernet, with(0x8000), Ok((PLAIN, 14, 34, TCP))),
        ("first fragment", Ethernet, with(0x2000), Ok((NO_PORTS, 14, 34, FRAGMENT))),
        ("middle fragment", Ethernet, with(0x2001), Ok((NO_PORTS, 14, 34, FRAGMENT))),
        ("last fragment", Ethernet, with(0x0001), Ok((NO_PORTS, 14, 34, FRAGMENT))),
    ]);
}

#[test]
fn ipv6_headers() {
    let raw = |ip: Vec<u8>| ethernet(0x86dd, &ip);
    let long = |next, payload: &[u8]| [&[next, 2][..], &[0; 22], payload].concat();
    let chain = |n: usize| {
        let inner = (1..n).fold(extension(6, 0, 0, &tcp(80, 1234)), |inner, _| extension(60, 0, 0, &inner));
        ipv6(60, &inner)
    };
    let t = || tcp(80, 1234);
    check(vec![
        (
            "UDP",
            Ethernet,
            raw(ipv6(17, &udp(53, 99, &[]))),
            Ok(("[2001:db8::1]:53 > [2001:db8::2]:99 udp", 14, 54, UDP | V6)),
        ),
        ("ICMPv6", Ethernet, raw(ipv6(58, &[0; 20])), Ok(("2001:db8::1 > 2001:db8::2 icmp6", 14, 54, V6))),
        ("39 bytes of header", Ethernet, cut(raw(tcp6()), 53), Err(Truncated)),
        ("40 bytes of header", Ethernet, cut(raw(tcp6()), 54), Ok((SIX_NO_PORTS, 14, 54, V6))),
        ("ports", Ethernet, cut(raw(tcp6()), 58), Ok((SIX, 14, 54, UDP | V6))),
        ("hop-by-hop", Ethernet, raw(ipv6(0, &extension(6, 0, 0, &t()))), Ok((SIX, 14, 62, TCP | V6))),
        ("routing", Ethernet, raw(ipv6(43, &long(6, &t()))), Ok((SIX, 14, 78, TCP | V6))),
        (
            "destination options",
            Ethernet,
            raw(ipv6(60, &extension(6, 0, 0, &t()))),
            Ok((SIX, 14, 62, TCP | V6)),
        ),
        ("mobility", Ethernet, raw(ipv6(135, &extension(6, 0, 0, &t()))), Ok((SIX, 14, 62, TCP | V6))),
        (
            "authentication: its length is in words of four bytes",
            Ethernet,
            raw(ipv6(51, &[&[6, 4][..], &[0; 22], &t()].concat())),
            Ok((SIX, 14, 78, TCP | V6)),
        ),
        (
            "ESP hides what follows",
            Ethernet,
            raw(ipv6(50, &t())),
            Ok(("2001:db8::1 > 2001:db8::2 esp", 14, 54, V6)),
        ),
        (
            "no next header",
            Ethernet,
            raw(ipv6(59, &[])),
            Ok(("2001:db8::1 > 2001:db8::2 proto 59", 14, 54, V6)),
        ),
        (
            "first fragment: the protocol is known, ports are not in the key",
            Ethernet,
            raw(ipv6(44, &extension(6, 0, 1, &t()))),
            Ok((SIX_NO_PORTS, 14, 62, FRAGMENT | V6)),
        ),
        (
            "last fragment",
            Ethernet,
            raw(ipv6(44, &extension(6, 0, 8, &t()))),
            Ok((SIX_NO_PORTS, 14, 62, FRAGMENT | V6)),
        ),
        ("atomic fragment", Ethernet, raw(ipv6(44, &extension(6, 9, 6, &t()))), Ok((SIX, 14, 62, TCP | V6))),
        (
            "the walk ends at a fragment",
            Ethernet,
            raw(ipv6(44, &extension(60, 0, 1, &extension(6, 0, 0, &t())))),
            Ok(("2001:db8::1 > 2001:db8::2 proto 60", 14, 62, FRAGMENT | V6)),
        ),
        (
            "extension cut: its own number is the protocol",
            Ethernet,
            cut(raw(ipv6(60, &extension(6, 0, 0, &t()))), 61),
            Ok(("2001:db8::1 > 2001:db8::2 proto 60", 14, 54, V6)),
        ),
        (
            "extension longer than the frame",
            Ethernet,
            raw(ipv6(60, &extension(6, 255, 0, &t()))),
            Ok((SIX_NO_PORTS, 14, 54 + 2048, V6)),
        ),
        ("32 extensions", Ethernet, raw(chain(32)), Ok((SIX, 14, 54 + 256, TCP | V6))),
        (
            "33 extensions",
            Ethernet,
            raw(chain(33)),
            Ok(("2001:db8::1 > 2001:db8::2 proto 60", 14, 54 + 256, V6)),
        ),
    ]);
}

#[test]
fn fields_beside_the_key() {
    for frame in [ethernet(0x800, &tcp4()), ethernet(0x86dd, &tcp6()), tagged(&[(0x8100, 1)], 0x800, &tcp4())]
    {
        let headers = classify(Ethernet, &frame).unwrap();
        assert_eq!((headers.tos, headers.tcp_flags), (0xb8, 0x18));
        let segment = tcp_segment(&frame, &headers).unwrap();
        assert_eq!((segment.seq, segment.ack, segment.flags, segment.window), (7, 9, 0x118, 256));
    }
    let offset_beyond_u16 = {
        let jumbo = [&[60, 255][..], &[0; 2046]].concat().repeat(32);
        classify(RawIp, &ipv6(60, &jumbo)).unwrap()
    };
    assert_eq!(offset_beyond_u16.l4, u16::MAX);
}

/// Any link type that a number gives, half of them Ethernet.
fn link() -> impl Strategy<Value = LinkType> {
    prop_oneof![
        Just(Ethernet),
        proptest::sample::select(vec![0_u16, 101, 113, 276, 147]).prop_map(LinkType::from_number)
    ]
}

/// Frames that mostly get past the link layer, with bytes changed and the end cut.
fn structured() -> impl Strategy<Value = Vec<u8>> {
    let protocol =
        || proptest::sample::select(vec![0_u8, 1, 4, 6, 6, 17, 17, 41, 43, 44, 47, 51, 60, 132, 135]);
    let v4 = (protocol(), prop_oneof![3 => Just(0x4000), 1 => any::<u16>()], 0_usize..3, any::<[u8; 40]>())
        .prop_map(|(p, word, options, rest)| (0x800, ipv4_with(p, word, &vec![1; options * 4], &rest)));
    let v6 = (protocol(), any::<[u8; 60]>(), protocol()).prop_map(|(p, mut rest, next)| {
        rest[0] = next;
        rest[1] %= 4;
        (0x86dd, ipv6(p, &rest))
    });
    let tags = proptest::collection::vec(
        (proptest::sample::select(vec![0x8100, 0x88a8, 0x9100]), any::<u16>()),
        0..3,
    );
    let change = proptest::collection::vec((0_usize..60, any::<u8>()), 0..2);
    (tags, prop_oneof![v4, v6], change, prop_oneof![Just(200), 0..100_usize]).prop_map(
        |(tags, (ethertype, ip), change, length)| {
            let mut frame = tagged(&tags, ethertype, &ip);
            for (at, value) in change {
                frame[at % 60] = value;
            }
            frame.truncate(length);
            frame
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn fast_paths_equal_the_reference(frame in structured()) {
        prop_assert_eq!(classify(Ethernet, &frame), classify_reference(Ethernet, &frame));
    }

    #[test]
    fn fast_paths_equal_the_reference_on_any_bytes(link in link(), frame: Vec<u8>) {
        prop_assert_eq!(classify(link, &frame), classify_reference(link, &frame));
    }
}
