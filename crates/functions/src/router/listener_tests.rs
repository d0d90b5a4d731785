//! Queries of multicast listeners, and what a router reports.

use super::link_tests::{Links, STATION, address};
use super::tests::{datagram, framed};
use super::*;
use crate::PerPacket;
use crate::test_packets::ipv6;
use slipstream_core::stage::Stage;
use slipstream_wire::checksum::{Verdict, fill_transport, verify_transport};
use slipstream_wire::classify;

/// A query as routers send it (RFC 3810 §5.1, RFC 2710 §3), from this address and as far from its end.
fn query(from: &str, lives: u8, group: &str, version: u8) -> Vec<u8> {
    let IpAddr::V6(group) = address(group) else { panic!("{group}") };
    let mut icmp = vec![130, 0, 0, 0, 3, 232, 0, 0];
    icmp.extend(group.octets());
    icmp.resize(if version == 1 { 24 } else { 28 }, 0);
    let body = [&[58, 0, 5, 2, 0, 0, 1, 0][..], &icmp].concat();
    let (IpAddr::V6(from), IpAddr::V6(to)) = (address(from), address("ff02::1")) else { panic!("{from}") };
    let mut packet = ipv6(0, from, to, &body);
    packet[7] = lives;
    let mut frame = [&[0x33, 0x33, 0, 0, 0, 1][..], &STATION, &[0x86, 0xdd], &packet].concat();
    let headers = classify(LinkType::Ethernet, &frame).unwrap();
    fill_transport(&mut frame, &headers);
    frame
}

/// The groups that are reported in answer to a frame, each with its port and the kind of its record, or 0
/// where the report is of the first version.
fn reported(links: &mut Links, frame: &[u8]) -> Vec<(u8, u8, IpAddr)> {
    let group = |bytes: &[u8]| IpAddr::from(<[u8; 16]>::try_from(&bytes[..16]).unwrap());
    let mut all = Vec::new();
    for (port, frame) in links.send(1, frame) {
        let headers = classify(LinkType::Ethernet, &frame).unwrap();
        let icmp = &frame[usize::from(headers.l4)..];
        assert_eq!(verify_transport(&frame, &headers), Verdict::Right);
        assert_eq!((frame[21], frame[20]), (1, 0), "it stays on its link, and has an option");
        match icmp[0] {
            131 => all.push((port, 0, group(&icmp[8..]))),
            143 => all.extend(icmp[8..].chunks(20).map(|record| (port, record[0], group(&record[4..])))),
            other => panic!("{other}"),
        }
    }
    all
}

/// Switches that snoop send questions about an address only to where its group was reported.
#[test]
fn groups_of_addresses_are_reported() {
    let interfaces = ["lan 10.0.0.1/24 02:00:00:00:00:01", "wan 2001:db8:5::7:8/127 02:00:00:00:00:02"];
    let mut links = Links::new(interfaces, "");
    // The address of all routers on the link (fe80::), the link-local one, and the one that is given.
    let groups = ["ff02::1:ff00:0", "ff02::1:ff00:2", "ff02::1:ff07:8"].map(address);
    let is = |kind: u8| groups.map(|group| (1, kind, group)).to_vec();
    assert_eq!(reported(&mut links, &query("fe80::9", 1, "::", 2)), is(2));
    assert_eq!(reported(&mut links, &query("fe80::9", 1, "::", 1)), is(0));
    assert_eq!(reported(&mut links, &query("fe80::9", 1, "ff02::1:ff07:8", 2)), is(2)[2..]);
    assert_eq!(reported(&mut links, &query("fe80::9", 1, "ff02::1:ff07:9", 2)), []);
    // Who uses up all ICMP errors, from afar, has not taken the answer away.
    let mut router = Router::with_defaults(super::interfaces(interfaces.into_iter()).unwrap(), 3);
    router.limiter = crate::RateLimiter::or_none(0, 1);
    links.stage = PerPacket::new(router);
    assert_eq!(reported(&mut links, &query("fe80::9", 1, "::", 2)), is(2));
    let told: usize = (0..200).map(|_| reported(&mut links, &query("fe80::9", 1, "::", 2)).len()).sum();
    assert!((99 * 3..=101 * 3).contains(&told), "{told}");
    // Packets to a prefix of another network come by routes.
    let mut translating = super::interfaces(interfaces.into_iter()).unwrap();
    translating[1].proxied = vec!["2001:db8:7::/48".parse().unwrap()];
    links.stage = PerPacket::new(Router::with_defaults(translating, 3));
    assert_eq!(reported(&mut links, &query("fe80::9", 1, "::", 2)), is(2));
    assert_eq!(reported(&mut links, &query("2001:db8::9", 1, "::", 2)), [], "from elsewhere");
    assert_eq!(reported(&mut links, &query("fe80::9", 64, "::", 2)), [], "from elsewhere");
    let mut hidden = query("fe80::9", 1, "::", 2);
    hidden[56..62].copy_from_slice(&[1, 4, 5, 2, 0, 0]);
    let headers = classify(LinkType::Ethernet, &hidden).unwrap();
    fill_transport(&mut hidden, &headers);
    assert_eq!(reported(&mut links, &hidden), [], "padding is no option for routers");
    let mut padded = query("fe80::9", 1, "::", 2);
    padded[56..62].copy_from_slice(&[1, 0, 5, 2, 0, 0]);
    assert_eq!(reported(&mut links, &padded), is(2), "the option may stand behind padding");
    let mut damaged = query("fe80::9", 1, "::", 2);
    damaged[70] ^= 1;
    assert_eq!(reported(&mut links, &damaged), []);
    // Of several shards the first one answers.
    let mut router = Router::with_defaults(super::interfaces(interfaces.into_iter()).unwrap(), 3);
    router.answers = false;
    links.stage = PerPacket::new(router);
    assert_eq!(reported(&mut links, &query("fe80::9", 1, "::", 2)), []);
    // At work the first packet has it say so unasked, before it says where its addresses are.
    let mut router = Router::with_defaults(super::interfaces(interfaces.into_iter()).unwrap(), 3);
    router.unannounced = proxy::to_announce(&router.interfaces, None);
    links.stage = PerPacket::new(router);
    let out = links.send(0, &framed(1, &datagram(address("192.0.2.254"), 9, b"x")));
    let v6: Vec<u8> = out.iter().filter(|(port, _)| *port == 1).map(|(_, frame)| frame[20]).collect();
    assert_eq!(v6, [0, 58, 58], "a report, then two advertisements");
    // Nobody acknowledges a report, so that it is sent once more.
    let (waited, out) = links.next_due();
    assert_eq!(waited, 1_000_000_000);
    let [(1, report)] = out.as_slice() else { panic!("one report: {out:?}") };
    assert_eq!((report[20], report[62]), (0, 143));
    assert_eq!(links.stage.next_deadline(), Nanos::MAX);
}
