//! The router and the neighbours on its links speak with each other.

use std::net::IpAddr;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use slipstream_wire::checksum::{Verdict, fill_transport, verify_transport};
use slipstream_wire::{LinkType, classify};

use super::discovery::{answer, question};
use super::fib::Fib;
use super::tests::{Collect, datagram, framed, has, run};
use super::*;
use crate::routes::Routes;
use crate::test_packets::{echo, ipv4, ipv6, udp};
use crate::{PerPacket, PerTrain};
use slipstream_core::pool::Pool;
use slipstream_core::stage::{Observe, Stage};

const LAN: Mac = [2, 0, 0, 0, 0, 1];
const WAN: Mac = [2, 0, 0, 0, 0, 2];
pub(super) const STATION: Mac = [2, 0, 0, 0, 7, 1];
const OTHER: Mac = [2, 0, 0, 0, 7, 2];

/// A router with interfaces `lan` and `wan`, and a capture of what leaves it.
pub(super) struct Links {
    pub(super) stage: PerPacket<Router>,
    pub(super) pool: Pool,
    now: u64,
}

impl Links {
    pub(super) fn new(interfaces: [&str; 2], routes: &str) -> Self {
        let mut router = Router::with_defaults(super::interfaces(interfaces.into_iter()).unwrap(), 3);
        let routes = Routes::parse(routes).unwrap();
        let fib = Fib::build(&router.interfaces, routes.routes()).unwrap();
        router.install(fib, Nanos(0));
        Self { stage: PerPacket::new(router), pool: Pool::new(), now: 0 }
    }

    /// What is due next happens: the nanoseconds until then, and the packets that leave, each with its port.
    pub(super) fn next_due(&mut self) -> (u64, Vec<(u8, Vec<u8>)>) {
        let now = self.stage.next_deadline();
        let waited = now.since(Nanos(std::mem::replace(&mut self.now, now.0)));
        let mut out = Collect::default();
        let mut cx = Context { now, pool: &mut self.pool, input: 0, links: &[LinkType::Ethernet; 2] };
        self.stage.on_deadline(&mut cx, &mut out);
        (waited, out.0.into_iter().map(|(port, _, frame)| (port, frame)).collect())
    }

    /// The frames that leave after this one has come, with their ports.
    pub(super) fn send(&mut self, input: u8, frame: &[u8]) -> Vec<(u8, Vec<u8>)> {
        self.now += 1000;
        let sent = [(self.now, frame.to_vec())];
        let out = run(&mut self.stage, &mut self.pool, input, LinkType::Ethernet, &sent);
        out.0.into_iter().map(|(port, _, data)| (port, data)).collect()
    }

    /// The Ethernet destination of a packet from `lan` to an address, if it leaves by `wan` at once.
    fn way_to(&mut self, to: &str) -> Option<Mac> {
        let out = self.send(0, &framed(1, &datagram(address(to), 9, b"x")));
        let is_packet = |frame: &&(u8, Vec<u8>)| frame.0 == 1 && is_to(&frame.1, to);
        out.iter().find(is_packet).map(|(_, frame)| *frame.first_chunk().unwrap())
    }
}

pub(super) fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Says whether a frame holds the datagram to this address, and no question about it.
fn is_to(frame: &[u8], to: &str) -> bool {
    match address(to) {
        IpAddr::V4(to) => frame[12..14] == [8, 0] && frame[30..34] == to.octets(),
        IpAddr::V6(to) => frame[12..14] == [0x86, 0xdd] && frame[20] == 17 && frame[38..54] == to.octets(),
    }
}

/// A station on the link `wan` says where an address is; it was asked.
pub(super) fn answered(address_of: &str, station: Mac, own: &str) -> Vec<u8> {
    let mut out = Vec::new();
    answer(station, address(address_of), (address(own), WAN), true, &mut out);
    out
}

/// A station on the link `wan` advertises an IPv6 address with these flags.
fn advertisement(address_of: &str, station: Mac, own: &str, flags: u8) -> Vec<u8> {
    let mut frame = answered(address_of, station, own);
    frame[58] = flags;
    let headers = classify(LinkType::Ethernet, &frame).unwrap();
    assert!(fill_transport(&mut frame, &headers));
    frame
}

/// A station with this address and Ethernet address asks for one of the router's.
fn asks(who: &str, station: Mac, wanted: &str) -> Vec<u8> {
    let length = if who.contains(':') { 64 } else { 24 };
    let [a, b, c, d, e, f] = station;
    let text = format!("x {who}/{length} {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
    let mut out = Vec::new();
    assert!(question(&Interface::parse(&text).unwrap(), address(wanted), None, &mut out));
    out
}

pub(super) const INTERFACES: [&str; 2] = [
    "lan 10.0.0.1/24 2001:db8:a::1/64 02:00:00:00:00:01",
    "wan 192.0.2.1/32 2001:db8::1/64 02:00:00:00:00:02",
];

#[test]
fn neighbours_beyond_the_networks_of_the_interface_are_reached() {
    let routes = "172.16.0.0/12 port wan\n\
        2001:db8:77::/48 port wan\n\
        198.51.100.0/24 via 203.0.113.5 port wan\n\
        10.9.0.0/16 via 192.0.2.254 port wan\n";
    let mut links = Links::new(INTERFACES, routes);
    for (to, next, own) in [
        ("172.16.0.9", "172.16.0.9", "192.0.2.1"),
        ("2001:db8:77::9", "2001:db8:77::9", "2001:db8::1"),
        ("198.51.100.20", "203.0.113.5", "192.0.2.1"),
        ("10.9.9.9", "192.0.2.254", "192.0.2.1"),
    ] {
        let out = links.send(0, &framed(1, &datagram(address(to), 9, b"first")));
        assert_eq!((out.len(), out[0].0), (1, 1), "{to}: it is asked for");
        let out = links.send(1, &answered(next, STATION, own));
        assert!(matches!(&*out, [(1, frame)] if is_to(frame, to)), "{to}: what waited leaves");
        assert_eq!(links.way_to(to), Some(STATION), "{to}");
        links.send(1, &answered(next, OTHER, own));
        assert_eq!(links.way_to(to), Some(OTHER), "{to}: it has moved");
    }
    assert_eq!(links.pool.live(), 0);
}

#[test]
fn who_asks_is_remembered_if_a_route_says_that_it_is_on_the_link() {
    let mut links = Links::new(INTERFACES, "172.16.0.0/12 port wan\n2001:db8:77::/48 port wan\n");
    let neighbours = |links: &Links| has("neighbours", &links.stage);
    for (who, wanted) in [("172.16.0.9", "192.0.2.1"), ("2001:db8:77::9", "2001:db8::1")] {
        links.send(1, &asks(who, STATION, wanted));
        assert_eq!(links.way_to(who), Some(STATION), "{who}");
    }
    assert_eq!(neighbours(&links), 2);
    // Of other addresses, and at another port, nobody is remembered, asked or not.
    for (port, who, wanted, own) in [
        (1, "203.0.113.7", "192.0.2.1", "192.0.2.1"),
        (1, "2001:db8:99::9", "2001:db8::1", "2001:db8::1"),
        (1, "10.0.0.7", "192.0.2.1", "192.0.2.1"),
        (0, "172.16.0.8", "10.0.0.1", "10.0.0.1"),
    ] {
        links.send(port, &asks(who, STATION, wanted));
        let mut out = Vec::new();
        answer(STATION, address(who), (address(own), if port == 0 { LAN } else { WAN }), true, &mut out);
        links.send(port, &out);
        // Nor if it answers what was not asked.
        links.send(port, &answered("172.16.0.77", STATION, "192.0.2.1"));
    }
    assert_eq!(neighbours(&links), 2);
}

/// RFC 4861 §7.2.5: who is known is not displaced by who says without the Override flag that he is there.
#[test]
fn an_advertisement_without_override_displaces_nobody() {
    let mut links = Links::new(INTERFACES, "");
    let soft = |station| advertisement("2001:db8::77", station, "2001:db8::1", 0);
    let firm = |station| advertisement("2001:db8::77", station, "2001:db8::1", 0x20);
    assert_eq!(links.way_to("2001:db8::77"), None);
    assert_eq!(links.send(1, &soft(STATION)).len(), 1, "to who is asked for it says enough");
    links.send(1, &soft(OTHER));
    assert_eq!(links.way_to("2001:db8::77"), Some(STATION));
    links.send(1, &firm(OTHER));
    assert_eq!(links.way_to("2001:db8::77"), Some(OTHER));
}

/// A station on the link `lan` with this address has asked for the router's, and answered when it was asked.
pub(super) fn is_known(links: &mut Links, host: &str, own: &str) {
    links.send(0, &asks(host, STATION, own));
    let mut out = Vec::new();
    answer(STATION, address(host), (address(own), LAN), true, &mut out);
    links.send(0, &out);
}

/// The source of what comes back to the host 7 on the link `lan` for a packet to the router.
pub(super) fn source_of_answer(links: &mut Links, packet: &[u8]) -> Option<IpAddr> {
    let host = if packet[0] >> 4 == 6 { "2001:db8:a::7" } else { "10.0.0.7" };
    is_known(links, host, if packet[0] >> 4 == 6 { "2001:db8:a::1" } else { "10.0.0.1" });
    let out = links.send(0, &framed(1, packet));
    let (port, frame) = out.first()?;
    assert_eq!((*port, &frame[..6]), (0, &STATION[..]));
    Some(classify(LinkType::Ethernet, frame).unwrap().key.src())
}

/// The flags of the advertisement that answers a question about an address at the port `wan`.
fn flags_of_answer(links: &mut Links, wanted: &str) -> Option<u8> {
    let out = links.send(1, &asks("2001:db8::9", STATION, wanted));
    out.first().map(|(_, frame)| {
        assert_eq!(frame[54], 136);
        frame[58]
    })
}

/// RFC 4861 §7.2.8: for others the router answers without the Override flag.
#[test]
fn answers_for_what_is_translated_override_nothing() {
    let mut router = Router::with_defaults(super::interfaces(INTERFACES.into_iter()).unwrap(), 3);
    let mut interfaces = router.interfaces.to_vec();
    interfaces[1].proxied = vec!["2001:db8::90/124".parse().unwrap(), "2001:db8::1/128".parse().unwrap()];
    router.interfaces = interfaces.into();
    let mut links = Links { stage: PerPacket::new(router), pool: Pool::new(), now: 0 };
    assert_eq!(flags_of_answer(&mut links, "2001:db8::99"), Some(0xc0));
    assert_eq!(flags_of_answer(&mut links, "2001:db8::1"), Some(0xe0), "its own address");
    assert_eq!(flags_of_answer(&mut links, "2001:db8::7"), None);
}

/// RFC 4291 §2.5.5.2: IPv4 addresses in IPv6's form stay within a host.
#[test]
fn mapped_addresses_are_on_no_link() {
    let mut links = Links::new(INTERFACES, "::/0 via 2001:db8::fe port wan mac 02:00:00:00:07:01");
    let sends = |links: &mut Links, src: &str, dst: &str| {
        let [src, dst]: [Ipv6Addr; 2] = [src, dst].map(|a| a.parse().unwrap());
        links.send(0, &framed(1, &ipv6(17, src, dst, &udp(1, 2, b"x")))).len()
    };
    for (src, dst, left) in [
        ("2001:db8:a::7", "2001:db8:77::1", 1),
        ("::ffff:10.0.0.7", "2001:db8:77::1", 0),
        ("2001:db8:a::7", "::ffff:192.0.2.9", 0),
        ("::ffff:127.0.0.1", "2001:db8:a::1", 0),
        ("::fffe:a00:7", "2001:db8:77::1", 1),
        ("::1:ffff:a00:7", "2001:db8:77::1", 1),
    ] {
        assert_eq!(sends(&mut links, src, dst), left, "{src} > {dst}");
    }
    assert_eq!(links.stage.drops().iter().collect::<Vec<_>>(), [(DropReason::Martian, 3)]);
}

/// RFC 3927 §7: neither their senders nor their receivers are behind a router.
#[test]
fn link_local_addresses_of_ipv4_stay_on_their_link() {
    let routes = "default via 192.0.2.254 mac 02:00:00:00:07:01 port wan\n169.254.0.0/16 port wan";
    let mut links = Links::new(["lan 10.0.0.1/24 169.254.7.1/24 02:00:00:00:00:01", INTERFACES[1]], routes);
    let from = |src: [u8; 4], dst: [u8; 4], payload: &[u8]| {
        framed(1, &ipv4(if payload[0] == 8 { 1 } else { 17 }, be(src), be(dst), payload))
    };
    for (src, dst, left) in [
        ([10, 0, 0, 7], [8, 8, 8, 8], 1),
        ([169, 254, 3, 4], [8, 8, 8, 8], 0),
        ([10, 0, 0, 7], [169, 254, 169, 254], 0),
        ([169, 253, 3, 4], [169, 255, 3, 4], 1),
    ] {
        assert_eq!(links.send(0, &from(src, dst, &udp(1, 2, b"x"))).len(), left, "{src:?} > {dst:?}");
    }
    assert_eq!(links.stage.drops().iter().collect::<Vec<_>>(), [(DropReason::Martian, 2)]);
    links.send(0, &from([169, 254, 7, 9], [169, 254, 7, 1], &echo(8, 1, b"x")));
    assert_eq!(has("echo_replies", &links.stage), 1, "the router itself is on that link");
}

pub(super) fn be(address: [u8; 4]) -> u32 {
    u32::from_be_bytes(address)
}

/// Sources that no route leads back to (RFC 3704), on the way through the router and to it, with IPv4 by its
/// fast path, too.
#[test]
fn forged_sources_are_dropped_where_that_is_asked_for() {
    let interfaces = [
        "lan 10.0.0.1/24 2001:db8:a::1/64 02:00:00:00:00:01",
        "wan 192.0.2.1/24 2001:db8::1/64 02:00:00:00:00:02",
    ];
    let routes = "10.7.0.0/16 via 10.0.0.9 mac 02:00:00:00:07:01\n\
        2001:db8:7::/48 via 2001:db8:a::9 mac 02:00:00:00:07:01\n\
        8.0.0.0/8 via 192.0.2.254 mac 02:00:00:00:07:02\n\
        2001:db8:8::/48 via 2001:db8::fe mac 02:00:00:00:07:02\n\
        blackhole 8.6.0.0/16\n";
    // The port that it comes by, and whether it passes under `off`, `loose` and `strict`.
    for (port, src, dst, passes) in [
        (0, "10.7.0.7", "8.8.8.8", [true, true, true]),
        (0, "8.1.1.1", "8.8.8.8", [true, true, false]),
        (0, "9.1.1.1", "8.8.8.8", [true, false, false]),
        (0, "8.6.1.1", "8.8.8.8", [true, false, false]),
        (1, "8.1.1.1", "10.7.0.7", [true, true, true]),
        (1, "10.0.0.5", "10.7.0.7", [true, true, false]),
        (1, "10.7.0.5", "10.7.0.7", [true, true, false]),
        (0, "2001:db8:a::5", "2001:db8:8::8", [true, true, true]),
        (1, "2001:db8:a::5", "2001:db8:7::7", [true, true, false]),
        (1, "2001:db8:9::5", "2001:db8:7::7", [true, false, false]),
        // To the router itself.
        (1, "2001:db8:8::5", "2001:db8::1", [true, true, true]),
        (1, "2001:db8:a::5", "2001:db8::1", [true, true, false]),
        (1, "fe80::5", "2001:db8::1", [true, true, true]),
    ] {
        for (passes, reverse_path) in
            passes.into_iter().zip([ReversePath::Off, ReversePath::Loose, ReversePath::Strict])
        {
            let mut router = Router::with_defaults(super::interfaces(interfaces.into_iter()).unwrap(), 3);
            router.reverse_path = reverse_path;
            let fib = Fib::build(&router.interfaces, Routes::parse(routes).unwrap().routes()).unwrap();
            router.install(fib, Nanos(0));
            let mut links = Links { stage: PerPacket::new(router), pool: Pool::new(), now: 0 };
            let packet = match (address(src), address(dst)) {
                (IpAddr::V4(src), IpAddr::V4(dst)) => ipv4(17, src.into(), dst.into(), &udp(1, 2, b"x")),
                (IpAddr::V6(src), IpAddr::V6(dst)) => ipv6(17, src, dst, &udp(1, 2, b"x")),
                _ => unreachable!(),
            };
            links.send(port, &framed(port + 1, &packet));
            let dropped: u64 =
                links.stage.drops().iter().map(|(why, n)| u64::from(why == DropReason::Martian) * n).sum();
            assert_eq!(dropped == 0, passes, "{src} > {dst} by {port}, {reverse_path:?}");
        }
    }
}

/// The addresses of a pool belong to what translates behind its port, from where they come back to another
/// inside host. Nobody behind another port sends from them: they would go out as if they had been translated.
#[test]
fn addresses_of_a_pool_are_forged_behind_other_ports() {
    let all = [
        "lan 10.0.0.1/24 2001:db8:a::1/64 02:00:00:00:00:01",
        "wan 192.0.2.1/24 2001:db8::1/64 02:00:00:00:00:02",
    ];
    let routes = "default via 192.0.2.254 mac 02:00:00:00:07:02\n2001:db8:8::/48 via 2001:db8::fe\n";
    let at = |v4: [u8; 4], v6: &str| (be(v4), address(v6));
    let host = at([10, 0, 0, 7], "2001:db8:a::7");
    let pool = at([192, 0, 2, 8], "2001:db8::8");
    let far = at([8, 8, 8, 8], "2001:db8:8::8");
    let (off, loose, strict) = (ReversePath::Off, ReversePath::Loose, ReversePath::Strict);
    for (port, src, dst, way, passes) in [
        (0, pool, far, off, true),
        (0, pool, far, loose, true),
        (0, pool, far, strict, false),
        (0, host, far, strict, true),
        (0, host, pool, strict, true),
        // Back from what translates it, to another inside host.
        (1, pool, host, strict, true),
    ] {
        let mut interfaces = super::interfaces(all.into_iter()).unwrap();
        interfaces[1].proxied = vec!["192.0.2.8/30".parse().unwrap(), "2001:db8::8/126".parse().unwrap()];
        let mut router = Router::with_defaults(interfaces, 3);
        router.reverse_path = way;
        let fib = Fib::build(&router.interfaces, Routes::parse(routes).unwrap().routes()).unwrap();
        router.install(fib, Nanos(0));
        let mut links = Links { stage: PerPacket::new(router), pool: Pool::new(), now: 0 };
        let (IpAddr::V6(src6), IpAddr::V6(dst6)) = (src.1, dst.1) else { unreachable!() };
        for packet in [ipv4(17, src.0, dst.0, &udp(1, 2, b"x")), ipv6(17, src6, dst6, &udp(1, 2, b"x"))] {
            let mut frame = framed(port + 1, &packet);
            if port == 1 {
                // The router itself was the last that sent it.
                frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
            }
            links.send(port, &frame);
        }
        let dropped: u64 = links.stage.drops().iter().map(|(_, n)| n).sum();
        assert_eq!(dropped, if passes { 0 } else { 2 }, "{src:?} > {dst:?} by {port}, {way:?}");
    }
}

/// RFC 4291 §2.6.1: the network address of each network is one of the router's own.
#[test]
fn the_anycast_address_of_routers_is_answered_for() {
    let lan = "lan 10.0.0.1/24 2001:db8:a::1/64 2001:db8:b::1/126 02:00:00:00:00:01";
    let wan = "wan 2001:db8::1/64 2001:db8:c::1/127 2001:db8:d::1/128 2001:db8:e::/64 02:00:00:00:00:02";
    let mut links = Links::new([lan, wan], "2001:db8:a::/128 via 2001:db8::fe");
    // On the link, without the Override flag (RFC 4861 §7.2.7).
    for (wanted, flags) in [
        ("2001:db8::", Some(0xc0)),
        ("fe80::", Some(0xc0)),
        ("2001:db8::1", Some(0xe0)),
        ("2001:db8:e::", Some(0xe0)),
        ("2001:db8:c::", None),
        ("2001:db8:d::", None),
        ("2001:db8:a::", None),
    ] {
        assert_eq!(flags_of_answer(&mut links, wanted), flags, "{wanted}");
    }
    // By way of its unicast address (RFC 4443 §2.2 (b), §4.2).
    let host: Ipv6Addr = "2001:db8:a::7".parse().unwrap();
    for to in ["2001:db8:a::", "2001:db8:b::", "2001:db8::", "fe80::"] {
        let IpAddr::V6(asked) = address(to) else { unreachable!() };
        let echo = ipv6(58, host, asked, &[128, 0, 0, 0, 0, 7, 0, 1, 0x55]);
        assert_eq!(source_of_answer(&mut links, &echo), Some(address("2001:db8:a::1")), "{to}");
        let out = links.send(0, &framed(1, &echo));
        let reply = &out[0].1;
        let headers = classify(LinkType::Ethernet, reply).unwrap();
        assert_eq!((reply[54], verify_transport(reply, &headers)), (129, Verdict::Right));
        let datagram = datagram(asked.into(), 9, b"x");
        assert_eq!(source_of_answer(&mut links, &datagram), Some(address("2001:db8:a::1")), "{to}");
    }
    // Of a network of two addresses both are stations'.
    assert_eq!(links.send(0, &framed(1, &datagram(address("2001:db8:c::"), 9, b"x")))[0].0, 1);
}

/// A translated address leads to its translator, the anycast address of routers as well.
#[test]
fn an_anycast_address_that_is_translated_is_not_the_router_s() {
    let mut interfaces = super::interfaces(INTERFACES.into_iter()).unwrap();
    interfaces[1].proxied = vec!["2001:db8::/120".parse().unwrap()];
    let fib = Fib::build(&interfaces, &[]).unwrap();
    assert_eq!(fib.look_up(address("2001:db8::")), Some(Hop::Translated(1)));
    assert_eq!(fib.look_up(address("2001:db8:a::")), Some(Hop::Own));
}

/// Nothing comes after the table in which a route throws: there is none, nor a shorter one.
#[test]
fn a_route_that_throws_is_no_route() {
    let mut links = Links::new(INTERFACES, "default via 192.0.2.254 port wan\nthrow 10.4.0.0/16");
    let packet = |to: u32| ipv4(17, 0x0a00_0007, to, &udp(1000, 53, b"x"));
    assert_eq!(source_of_answer(&mut links, &packet(0x0a04_0001)), Some(address("10.0.0.1")));
    assert!(links.stage.drops().iter().any(|drops| drops == (DropReason::NoRoute, 1)));
    assert_eq!(links.send(0, &framed(1, &packet(0x0a05_0001)))[0].0, 1, "the gateway is asked for");
}

/// Other settings, as a reload of the configuration hands them over, tell the Ethernet address of a gateway
/// that packets wait for: they leave at once, and not with whatever the next change of routes brings.
#[test]
fn what_waits_for_a_gateway_leaves_when_other_settings_tell_where_it_is() {
    use slipstream_core::operate::{Operate, Update};
    use slipstream_core::stage::Stage;

    let mut links = Links::new(INTERFACES, "198.51.100.0/24 via 203.0.113.5 port wan\n");
    let out = links.send(0, &framed(1, &datagram(address("198.51.100.20"), 9, b"first")));
    assert_eq!((out.len(), links.stage.held()), (1, 1), "it is asked for");
    let interfaces: std::sync::Arc<[Interface]> = super::interfaces(INTERFACES.into_iter()).unwrap().into();
    let routes = Routes::parse("198.51.100.0/24 via 203.0.113.5 mac 02:00:00:00:07:01 port wan\n").unwrap();
    let fib = Fib::build(&interfaces, routes.routes()).unwrap();
    let update: Update = super::stage::update_of(interfaces, fib);
    let now = Nanos(links.now + 1);
    let operate: &mut dyn Operate = links.stage.operate().unwrap();
    drop(operate.update(update, now));
    assert!(links.stage.next_deadline() <= now, "there is something to do");
    let mut out = super::tests::Collect::default();
    let kinds = [LinkType::Ethernet];
    let mut cx = Context { now, pool: &mut links.pool, input: 0, links: &kinds };
    links.stage.on_deadline(&mut cx, &mut out);
    let [(1, _, frame)] = out.0.as_slice() else { panic!("what waited leaves: {:?}", out.0) };
    assert!(is_to(frame, "198.51.100.20") && frame[..6] == STATION && frame[6..12] == WAN);
    assert_eq!((links.stage.held(), links.pool.live()), (0, 0));
}

/// The packets that leave where each comes by itself, what is due before it having happened.
fn one_by_one(stage: &mut dyn Stage, sent: &[(u64, Vec<u8>)]) -> Vec<(u8, u64, Vec<u8>)> {
    let (mut pool, mut all) = (Pool::new(), Collect::default());
    for one in sent {
        while stage.next_deadline() <= Nanos(one.0) {
            let now = stage.next_deadline();
            let mut cx = Context { now, pool: &mut pool, input: 0, links: &[LinkType::Ethernet] };
            stage.on_deadline(&mut cx, &mut all);
        }
        all.0.extend(run(stage, &mut pool, 0, LinkType::Ethernet, std::slice::from_ref(one)).0);
    }
    all.0
}

proptest! {
    /// Packets of one batch may have come seconds apart: questions are repeated and given up between them,
    /// each at its own time, and what waited leaves or is dropped then.
    #[test]
    fn what_is_due_within_a_batch_happens_in_time(
        ops in vec((0..7_u8, select(vec![0, 1000, 300_000_000, 1_000_000_000, 1_500_000_000, 5_000_000_000, 70_000_000_000])), 1..60),
        decide_each: bool,
    ) {
        let (mut now, mut sent) = (1_u64, Vec::new());
        for (to, gap) in ops {
            now += gap;
            sent.push((now, match to {
                0..2 => {
                    let mut out = Vec::new();
                    answer(STATION, address(["192.0.2.70", "192.0.2.71"][usize::from(to)]), (address("192.0.2.1"), LAN), true, &mut out);
                    out
                }
                to => framed(1, &datagram(address(["192.0.2.70", "192.0.2.71", "198.51.100.9"][usize::from(to % 3)]), 9, b"x")),
            }));
        }
        let router = || {
            let texts = ["lan 192.0.2.1/24 02:00:00:00:00:01", "wan 198.51.100.1/24 02:00:00:00:00:02"];
            Router::with_defaults(super::interfaces(texts.into_iter()).unwrap(), 3)
        };
        let (mut train, mut packet) = (PerTrain::new(router()), PerPacket::new(router()));
        let stage: &mut dyn Stage = if decide_each { &mut packet } else { &mut train };
        let together = run(stage, &mut Pool::new(), 0, LinkType::Ethernet, &sent).0;
        let mut twin = PerTrain::new(router());
        prop_assert_eq!(together, one_by_one(&mut twin, &sent));
    }
}

/// The addresses that the next packet has the router announce, each with its port.
fn announced(links: &mut Links) -> Vec<(u8, IpAddr)> {
    let says = |frame: &[u8]| match frame[12..14] {
        [8, 6] if frame[28..32] == frame[38..42] => {
            <[u8; 4]>::try_from(&frame[28..32]).ok().map(IpAddr::from)
        }
        [0x86, 0xdd] if frame[54] == 136 => <[u8; 16]>::try_from(&frame[62..78]).ok().map(IpAddr::from),
        _ => None,
    };
    let out = links.send(0, &framed(1, &datagram(address("192.0.2.254"), 9, b"x")));
    out.iter().filter_map(|(port, frame)| Some((*port, says(frame)?))).collect()
}

/// Other hosts remember for minutes or hours which station had an address before. So the links are told of
/// those that are here from the start, and of those that a reload brings, of each once.
#[test]
fn addresses_are_announced_when_they_are_new() {
    use slipstream_core::operate::Operate;

    let mut links = Links::new(INTERFACES, "");
    assert_eq!(announced(&mut links), [], "in a replay nobody is told");
    let mut router = Router::with_defaults(super::interfaces(INTERFACES.into_iter()).unwrap(), 3);
    router.unannounced = proxy::to_announce(&router.interfaces, None);
    links.stage = PerPacket::new(router);
    let mut own = announced(&mut links);
    own.retain(|(_, address)| address.is_ipv4());
    assert_eq!(own, [(0, address("10.0.0.1")), (1, address("192.0.2.1"))]);
    let mut reload = |pool: &[&str]| {
        let mut all = super::interfaces(INTERFACES.into_iter()).unwrap();
        all[1].proxied = pool.iter().map(|net| net.parse().unwrap()).collect();
        let all: std::sync::Arc<[Interface]> = all.into();
        let fib = Fib::build(&all, &[]).unwrap();
        let operate: &mut dyn Operate = links.stage.operate().unwrap();
        drop(operate.update(super::stage::update_of(all, fib), Nanos(links.now + 1)));
    };
    reload(&["192.0.2.8/31"]);
    reload(&["192.0.2.8/31", "2001:db8::9/128"]);
    reload(&["192.0.2.8/31", "192.0.2.1/32", "2001:db8::9/128"]);
    // Nobody on the link asks for what others route here.
    reload(&["192.0.2.8/31", "192.0.2.1/32", "2001:db8::9/128", "2001:db8:7::/48"]);
    let pool = ["192.0.2.8", "192.0.2.9", "2001:db8::9"].map(|text| (1, address(text)));
    assert_eq!(announced(&mut links), pool);
    assert_eq!(announced(&mut links), []);
}
