//! The router's own packets: echo replies and ICMP errors.

use std::net::IpAddr;

use slipstream_core::stage::Observe;
use slipstream_wire::checksum::{Verdict, verify_transport};
use slipstream_wire::{LinkType, classify};

use super::link_tests::{INTERFACES, Links, STATION, address, answered, be, is_known, source_of_answer};
use super::tests::{datagram, framed, has};
use super::*;
use crate::test_packets::{echo, filled, ipv4, ipv6, udp};

/// A host on the link `lan` that the router knows, and the router's own address there.
fn known_host(links: &mut Links) -> (Ipv6Addr, Ipv6Addr) {
    let [host, own] = ["2001:db8:a::7", "2001:db8:a::1"];
    is_known(links, host, own);
    (host.parse().unwrap(), own.parse().unwrap())
}

/// RFC 4443 §2.2 (a): what was asked answers. RFC 1812 §4.3.2.4: the outgoing interface does.
#[test]
fn port_unreachable_comes_from_the_ipv6_address_that_was_asked() {
    let mut links = Links::new(INTERFACES, "default via 192.0.2.254 port wan");
    let v6 = |to: &str| datagram(address(to), 9, b"x");
    for to in ["2001:db8::1", "2001:db8:a::1", "fe80::ff:fe00:1"] {
        assert_eq!(source_of_answer(&mut links, &v6(to)), Some(address(to)), "{to}");
    }
    // Of the other link's own address nothing may come by this one.
    assert_eq!(source_of_answer(&mut links, &v6("fe80::ff:fe00:2")), Some(address("2001:db8:a::1")));
    assert_eq!(source_of_answer(&mut links, &v6("2001:db8:ffff::1")), Some(address("2001:db8:a::1")));
    let v4 = ipv4(17, 0x0a00_0007, 0xc000_0201, &udp(1000, 53, b"x"));
    assert_eq!(source_of_answer(&mut links, &v4), Some(address("10.0.0.1")));
}

/// RFC 4291 §2.5.6, RFC 4443 §4.2: only the address that was asked replies, and one of another link can't by
/// this one.
#[test]
fn echo_replies_from_an_address_of_another_link_don_t_leave() {
    let mut links = Links::new(INTERFACES, "");
    for (to, reply) in [
        ("fe80::ff:fe00:1", Some("fe80::ff:fe00:1")),
        ("fe80::ff:fe00:2", None),
        ("2001:db8::1", Some("2001:db8::1")),
    ] {
        let (IpAddr::V6(src), IpAddr::V6(dst)) = (address("2001:db8:a::7"), address(to)) else { panic!() };
        let request = ipv6(58, src, dst, &echo(128, 7, b"payload"));
        assert_eq!(source_of_answer(&mut links, &request), reply.map(address), "{to}");
    }
    let counted = ["echo_replies", "own_packets_unroutable"].map(|name| has(name, &links.stage));
    assert_eq!((counted, links.pool.live()), ([2, 1], 0));
}

/// RFC 792, RFC 1071: the checksum of a reply that is all zeros is 0xffff.
#[test]
fn echo_replies_of_zeros_have_a_right_checksum() {
    let mut links = Links::new(INTERFACES, "");
    is_known(&mut links, "10.0.0.7", "10.0.0.1");
    for (id, payload) in [(0, &[0; 9][..]), (0, &[]), (0, &[0xff, 0xff]), (7, &[1, 2, 3])] {
        let mut request = echo(8, id, payload);
        request[6..8].fill(0);
        let request = filled(ipv4(1, be([10, 0, 0, 7]), be([10, 0, 0, 1]), &request));
        let out = links.send(0, &framed(1, &request));
        let reply = &out[0].1;
        let headers = classify(LinkType::Ethernet, reply).unwrap();
        assert_eq!((reply[34], verify_transport(reply, &headers)), (0, Verdict::Right), "{id} {payload:?}");
        let zeros = reply[34..].iter().all(|byte| *byte == 0);
        assert!(!zeros, "their sum is 0, which receivers take for damage");
    }
}

/// A reply that no route leads back for is none that was sent.
#[test]
fn answers_that_can_t_leave_are_counted_as_such() {
    let mut links = Links::new(INTERFACES, "");
    for (protocol, payload) in [(1, echo(8, 1, b"x")), (17, udp(1, 2, b"x"))] {
        assert!(links.send(0, &framed(1, &ipv4(protocol, 0x0808_0808, 0x0a00_0001, &payload))).is_empty());
    }
    let counted =
        ["echo_replies", "icmp_errors", "own_packets_unroutable"].map(|name| has(name, &links.stage));
    assert_eq!((counted, links.pool.live()), ([0, 0, 2], 0));
}

/// RFC 6724 §5, rule 2: who is beyond the link could not answer, and routers on the way drop such packets.
#[test]
fn errors_beyond_the_link_come_from_addresses_that_reach_beyond() {
    let routes = "default via 169.254.7.254 port wan\ndefault via fe80::254 port wan";
    let (IpAddr::V6(src), IpAddr::V6(dst)) = (address("2a00::1"), address("2001:db8:a::7")) else { panic!() };
    let mut four = ipv4(17, be([8; 4]), be([10, 0, 0, 7]), &udp(1, 2, b"x"));
    let mut six = ipv6(17, src, dst, &udp(1, 2, b"x"));
    (four[8], six[7]) = (1, 1);
    let four = filled(four);
    for (more, own_four, own_six) in
        [("", "10.0.0.1", "2001:db8:a::1"), ("192.0.2.1/24 2001:db8::1/64", "192.0.2.1", "2001:db8::1")]
    {
        let wan = format!("wan 169.254.7.1/24 {more} fe80::2/64 02:00:00:00:00:02");
        let mut links = Links::new([INTERFACES[0], &wan], routes);
        for (packet, gateway, asker, own) in
            [(&four, "169.254.7.254", "169.254.7.1", own_four), (&six, "fe80::254", "fe80::2", own_six)]
        {
            links.send(1, &framed(2, packet));
            let out = links.send(1, &answered(gateway, STATION, asker));
            let source = |frame: &[u8]| classify(LinkType::Ethernet, frame).unwrap().key.src();
            let sources: Vec<_> = out.iter().map(|(port, frame)| (*port, source(frame))).collect();
            assert_eq!(sources, [(1, address(own))], "{wan}");
        }
    }
}

/// RFC 8200 §4.4, RFC 5095 §3: a packet that is to go on by way of a routing header is told that its type is
/// none that is known; one that has come to its end is as any other.
#[test]
fn a_routing_header_leads_nowhere() {
    let mut links = Links::new(INTERFACES, "");
    let (host, own) = known_host(&mut links);
    let udp = udp(1000, 53, b"x");
    let routing = |next: u8, kind: u8, left: u8| [&[next, 2, kind, left, 0, 0, 0, 0][..], &[9; 16]].concat();
    let options = [43, 0, 1, 4, 0, 0, 0, 0];
    // The first fragment of a datagram, and a later one.
    let first = [17, 0, 0, 1, 0, 0, 0, 5];
    let later = [17, 0, 1, 0, 0, 0, 0, 5];
    for (next, headers, expected) in [
        (43, routing(17, 0, 1), Some(([4, 0], 42))),
        (43, routing(17, 3, 2), Some(([4, 0], 42))),
        (43, routing(17, 4, 1), Some(([4, 0], 42))),
        (43, routing(17, 253, 255), Some(([4, 0], 42))),
        (60, [&options[..], &routing(17, 0, 1)].concat(), Some(([4, 0], 50))),
        (43, [routing(44, 0, 1), first.to_vec()].concat(), Some(([4, 0], 42))),
        (43, [routing(44, 0, 1), later.to_vec()].concat(), None),
        (43, routing(17, 0, 0), Some(([1, 4], 0))),
        (60, [&options[..], &routing(17, 4, 0)].concat(), Some(([1, 4], 0))),
    ] {
        let packet = ipv6(next, host, own, &[&headers[..], &udp].concat());
        let out = links.send(0, &framed(1, &packet));
        let told = out.first().map(|(port, frame)| {
            assert_eq!((*port, frame[20], &frame[62..]), (0, 58, &packet[..]), "{headers:?}");
            let headers = classify(LinkType::Ethernet, frame).unwrap();
            assert_eq!(verify_transport(frame, &headers), Verdict::Right);
            ([frame[54], frame[55]], be32(frame, 58).unwrap())
        });
        assert_eq!(told, expected, "{headers:?}");
    }
    // Nobody is told about what was sent to many, and no neighbour is learnt from it.
    let all: Ipv6Addr = "ff02::1".parse().unwrap();
    let packet = ipv6(43, host, all, &[routing(17, 0, 1), udp].concat());
    assert!(links.send(0, &framed(1, &packet)).is_empty());
    let dropped: Vec<_> = links.stage.drops().iter().collect();
    assert_eq!(dropped, [(DropReason::Unsupported, 8), (DropReason::Local, 4)]);
    assert_eq!(links.pool.live(), 0);
}

/// Who is told that nobody listens at a port has sent the datagram as it came (RFC 1122 §4.1.3.4, RFC 8200
/// §8.1).
#[test]
fn nobody_is_told_about_damaged_datagrams() {
    let mut links = Links::new(INTERFACES, "");
    let own: [IpAddr; 2] = ["10.0.0.1", "2001:db8:a::1"].map(address);
    is_known(&mut links, "10.0.0.7", "10.0.0.1");
    is_known(&mut links, "2001:db8:a::7", "2001:db8:a::1");
    let [IpAddr::V4(four), IpAddr::V6(six)] = own else { unreachable!() };
    let v4 = ipv4(17, be([10, 0, 0, 7]), four.into(), &udp(1, 2, b"data"));
    let v6 = ipv6(17, "2001:db8:a::7".parse().unwrap(), six, &udp(1, 2, b"data"));
    let without = |packet: &[u8], sum: usize| {
        let mut packet = packet.to_vec();
        packet[sum..sum + 2].fill(0);
        packet
    };
    let wrong = |packet: &[u8]| [&packet[..packet.len() - 1], b"x"].concat();
    for (packet, told) in [
        (v4.clone(), true),
        (v6.clone(), true),
        (wrong(&v4), false),
        (wrong(&v6), false),
        (without(&v4, 26), true),
        (without(&v6, 46), false),
    ] {
        assert_eq!(links.send(0, &framed(1, &packet)).len(), usize::from(told), "{packet:x?}");
    }
    let dropped: Vec<_> = links.stage.drops().iter().collect();
    assert_eq!(dropped[0], (DropReason::Malformed, 3));
}

/// RFC 8200 §4.2: the type of an option that is unknown says what becomes of a packet to the router. An echo
/// reply has none of the extension headers of its request: options that the sender of the request may not
/// know either, a routing header, or a fragment header.
#[test]
fn echo_replies_have_no_extension_headers() {
    let mut links = Links::new(INTERFACES, "");
    let (host, own) = known_host(&mut links);
    let request = echo(128, 7, b"payload");
    let option = |next: u8, kind: u8| [next, 0, kind, 4, 0, 0, 0, 0];
    let reply = Some(([129, 0], 0x0007_0001));
    let problem = |pointer: u32| Some(([4, 2], pointer));
    // Options of both kinds, and a routing header and a fragment header that do nothing any more.
    let all =
        [option(60, 5), option(43, 0x1e), [44, 0, 0, 0, 0, 0, 0, 0], [58, 0, 0, 0, 0, 0, 0, 5]].concat();
    for (next, headers, expected) in [
        (58, vec![], reply),
        (0, option(58, 1).to_vec(), reply),
        (60, option(58, 0x1e).to_vec(), reply),
        (43, vec![58, 0, 0, 0, 0, 0, 0, 0], reply),
        (44, vec![58, 0, 0, 0, 0, 0, 0, 5], reply),
        (0, all, reply),
        (60, option(58, 0x5e).to_vec(), None),
        (60, option(58, 0x9e).to_vec(), problem(42)),
        (60, option(58, 0xde).to_vec(), problem(42)),
        (0, [option(60, 1), option(58, 0xbe)].concat(), problem(50)),
        (60, vec![58, 0, 0, 0, 0, 0xbe, 1, 0], problem(45)),
        // A jumbogram's option has its place among those of each hop, and its own length.
        (60, option(58, 0xc2).to_vec(), problem(42)),
        (60, vec![58, 0, 1, 5, 0, 0, 0, 0], None),
        (60, vec![58, 0, 1, 3, 0, 0, 0, 0x1e], None),
    ] {
        let packet = ipv6(next, host, own, &[&headers[..], &request].concat());
        let out = links.send(0, &framed(1, &packet));
        let told = out.first().map(|(_, frame)| {
            let read = classify(LinkType::Ethernet, frame).unwrap();
            assert_eq!(verify_transport(frame, &read), Verdict::Right);
            assert_eq!((frame[20], read.key.src(), read.key.dst()), (58, own.into(), host.into()));
            let behind = if frame[54] == 129 { &request[8..] } else { &packet[..] };
            assert_eq!(&frame[62..], behind, "{headers:?}");
            assert_eq!(usize::from(be16(frame, 18).unwrap()), frame.len() - 54);
            ([frame[54], frame[55]], be32(frame, 58).unwrap())
        });
        assert_eq!(told, expected, "{headers:?}");
    }
    // Nobody is told about what was sent to many.
    let packet = ipv6(60, host, "ff02::1".parse().unwrap(), &[&option(58, 0x9e)[..], &request].concat());
    assert!(links.send(0, &framed(1, &packet)).is_empty());
    let dropped: Vec<_> = links.stage.drops().iter().collect();
    assert_eq!(dropped, [(DropReason::Malformed, 2), (DropReason::Unsupported, 7), (DropReason::Local, 8)]);
    assert_eq!(links.pool.live(), 0);
}

/// RFC 3927 §2.6.2: what the router itself says to them stays on the link, too, whatever routes say.
#[test]
fn answers_to_link_local_addresses_of_ipv4_stay_on_their_link() {
    let routes = "default via 192.0.2.254 mac 02:00:00:00:07:01 port wan\n169.254.0.0/16 port wan";
    let mut links = Links::new(INTERFACES, routes);
    for (protocol, payload) in [(1, echo(8, 1, b"x")), (17, udp(1, 2, b"x"))] {
        let request = ipv4(protocol, be([169, 254, 3, 4]), be([10, 0, 0, 1]), &payload);
        let out = links.send(0, &framed(1, &request));
        assert!(out.iter().all(|(port, _)| *port == 0), "protocol {protocol}: {out:?}");
    }
    let question = [&[0x0a, 0, 0, 1][..], &[0; 6], &[169, 254, 3, 4]].concat();
    let mut links = Links::new(INTERFACES, routes);
    let request = ipv4(1, be([169, 254, 3, 4]), be([10, 0, 0, 1]), &echo(8, 1, b"x"));
    let out = links.send(0, &framed(1, &request));
    assert_eq!(out.len(), 1);
    assert_eq!((&out[0].1[12..14], &out[0].1[28..42]), (&[8, 6][..], &question[..]), "asks who has it");
}
