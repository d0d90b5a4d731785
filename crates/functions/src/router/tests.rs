//! The router against a slow twin: routes one by one, headers taken apart and put together again; and what
//! holds for any packets at all.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;

use etherparse::{Ipv4Header, Ipv6Header};
use ipnet::IpNet;
use proptest::prelude::*;
use slipstream_wire::checksum::{Verdict as Sum, verify_ip, verify_transport};
use slipstream_wire::{LinkType, classify};

use super::fib::Fib;
use super::*;
use crate::routes::Routes;
use crate::test_packets as packets;
use crate::{PerPacket, PerTrain};
use slipstream_core::batch::{Batch, Train};
use slipstream_core::frame::Info;
use slipstream_core::pool::{PacketMeta, Pool};
use slipstream_core::stage::Output;
use slipstream_core::stage::{Observe, Stage};

const OWN: [&str; 3] =
    ["a 192.0.2.1/24 2001:db8:a::1/64", "b 198.51.100.1/24", "c 203.0.113.1/24 2001:db8:c::1/64"];

/// Three interfaces, with Ethernet addresses 02::1 to 02::3 or without.
fn router(ethernet: bool) -> Router {
    let texts: Vec<String> = (1..)
        .zip(OWN)
        .map(|(n, text)| if ethernet { format!("{text} 02:00:00:00:00:0{n}") } else { text.into() })
        .collect();
    Router::with_defaults(interfaces(texts.iter().map(String::as_str)).unwrap(), 3)
}

/// A packet that leaves: port, time and bytes.
#[derive(Default)]
pub(super) struct Collect(pub(super) Vec<(u8, u64, Vec<u8>)>);

impl Output for Collect {
    fn emit(&mut self, pool: &mut Pool, batch: &mut Batch) {
        assert!(batch.frames.len() <= slipstream_core::batch::BATCH);
        for (i, (train, frames)) in batch.iter().enumerate() {
            let port = batch.ports.get(i).copied().unwrap_or(0);
            for frame in frames {
                let time = train.release.max(frame.arrival).0;
                self.0.push((port, time, pool.data(frame.buf, frame.len).to_vec()));
                pool.free(frame.buf);
            }
        }
        batch.clear();
    }
}

/// Packets at one port, at one time after the other; what is of one flow and comes back to back is a train.
pub(super) fn run(
    stage: &mut dyn Stage,
    pool: &mut Pool,
    input: u8,
    link: LinkType,
    sent: &[(u64, Vec<u8>)],
) -> Collect {
    let (mut batch, mut out) = (Batch::new(), Collect::default());
    let mut last = None;
    for (time, data) in sent {
        let now = Nanos(*time);
        let meta = PacketMeta { original_len: data.len() as u32, interface: 0, time: now };
        let buf = pool.insert(meta, data);
        let headers = classify(link, data).ok();
        let info = headers.map_or(Info::default(), |h| Info::new(&h));
        let start = batch.frames.len() as u32;
        batch.frames.push(Frame { info, ..Frame::unclassified(now, buf, data.len() as u32) });
        let key = headers.map(|h| h.key);
        match batch.trains.last_mut() {
            Some(train) if key.is_some() && key == last => train.len += 1,
            _ => batch.trains.push(Train {
                flow: 0,
                start,
                len: 1,
                release: now,
                order: 0,
                sequence: 0,
                continues: false,
            }),
        }
        last = key;
    }
    let now = sent.last().map_or(Nanos(0), |s| Nanos(s.0));
    let links = [link];
    let mut cx = Context { now, pool, input, links: &links };
    stage.process(&mut cx, &mut batch, &mut out);
    out
}

/// A route of the twin: where to, or nowhere.
type Target = Option<(u8, u8)>;

fn address(v6: bool, [a, b, c]: [u8; 3]) -> IpAddr {
    if v6 {
        Ipv6Addr::new(0x2001, 0xdb8, 0xf, a.into(), b.into(), 0, 0, c.into()).into()
    } else {
        Ipv4Addr::new(10, a, b, c).into()
    }
}

fn prefix(v6: bool, at: [u8; 3], len: u8) -> IpNet {
    let len = if v6 { 48 + len * 3 } else { 8 + len }.min(if v6 { 128 } else { 32 });
    IpNet::new(address(v6, at), len).unwrap().trunc()
}

fn text(routes: &BTreeMap<IpNet, Target>) -> String {
    let line = |(net, target): (&IpNet, &Target)| match target {
        Some((port, n)) => {
            let via = if net.addr().is_ipv6() { "via fe80::" } else { "via inet6 fe80::" };
            format!("{net} {via}{n:x} port {port} mac 02:00:00:00:09:{n:02x}\n")
        }
        None => format!("blackhole {net}\n"),
    };
    routes.iter().map(line).collect()
}

/// A packet that left the twin: its port and bytes.
fn twin(routes: &BTreeMap<IpNet, Target>, frame: &[u8]) -> Option<(u8, Vec<u8>)> {
    let ip = &frame[14..];
    let v6 = ip[0] >> 4 == 6;
    let (dst, header): (IpAddr, Vec<u8>) = if v6 {
        let (mut header, _) = Ipv6Header::from_slice(ip).unwrap();
        header.hop_limit = header.hop_limit.checked_sub(1).filter(|n| *n > 0)?;
        (header.destination.into(), header.to_bytes().into())
    } else {
        let (mut header, _) = Ipv4Header::from_slice(ip).unwrap();
        header.time_to_live = header.time_to_live.checked_sub(1).filter(|n| *n > 0)?;
        header.header_checksum = header.calc_header_checksum();
        (header.destination.into(), header.to_bytes().to_vec())
    };
    let (_, target) =
        routes.iter().filter(|(net, _)| net.contains(&dst)).max_by_key(|(net, _)| net.prefix_len())?;
    let (port, n) = (*target)?;
    let macs = [2, 0, 0, 0, 9, n, 2, 0, 0, 0, 0, port + 1];
    Some((port, [&macs, &frame[12..14], &header, &ip[header.len()..]].concat()))
}

pub(super) fn framed(to: u8, ip: &[u8]) -> Vec<u8> {
    let kind: [u8; 2] = if ip[0] >> 4 == 6 { [0x86, 0xdd] } else { [8, 0] };
    [&[2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, 0x77][..], &kind, ip].concat()
}

/// A UDP packet to an address, with this time to live and this payload.
pub(super) fn datagram(dst: IpAddr, lives: u8, payload: &[u8]) -> Vec<u8> {
    let udp = packets::udp(1000, 53, payload);
    let mut packet = match dst {
        IpAddr::V4(dst) => packets::ipv4(17, 0xc000_0207, dst.to_bits(), &udp),
        IpAddr::V6(dst) => packets::ipv6(17, "2001:db8:a::7".parse().unwrap(), dst, &udp),
    };
    packet[if dst.is_ipv4() { 8 } else { 7 }] = lives;
    packets::filled(packet)
}

fn is_right(frame: &[u8]) -> bool {
    let headers = classify(LinkType::Ethernet, frame).unwrap();
    verify_ip(frame, &headers) != Sum::Wrong && verify_transport(frame, &headers) != Sum::Wrong
}

type Sent = (bool, [u8; 3], u8, u8);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn equals_a_linear_scan(
        routes in proptest::collection::vec(
            (any::<bool>(), [0..3_u8, 0..3, 0..3], 0..25_u8, proptest::option::of((0..3_u8, 1..5_u8))), 0..20),
        sent in proptest::collection::vec(
            (any::<bool>(), [0..3_u8, 0..3, 0..3], prop_oneof![0..4_u8, any::<u8>()], 0..30_u8), 1..60),
    ) {
        let routes: BTreeMap<IpNet, Target> =
            routes.into_iter().map(|(v6, at, len, target)| (prefix(v6, at, len), target)).collect();
        let parsed = Routes::parse(&text(&routes)).unwrap();
        let with_routes = || {
            let mut made = router(true);
            let fib = Fib::build(&made.interfaces, parsed.routes()).unwrap();
            made.limiter = RateLimiter::new(0, 1);
            made.limiter.allow(1, Nanos(0));
            made.install(fib, Nanos(0));
            made
        };
        let sent: Vec<(u64, Vec<u8>)> = (0..).zip(&sent)
            .map(|(time, (v6, at, lives, n)): (u64, &Sent)| (time, framed(1, &datagram(address(*v6, *at), *lives, &vec![*n; usize::from(*n)]))))
            .collect();
        let expected: Vec<(u8, Vec<u8>)> = sent.iter().filter_map(|(_, frame)| twin(&routes, frame)).collect();
        let (mut trains, mut single) = (PerTrain::new(with_routes()), PerPacket::new(with_routes()));
        for stage in [&mut trains as &mut dyn Stage, &mut single] {
            let mut pool = Pool::new();
            let out = run(stage, &mut pool, 0, LinkType::Ethernet, &sent);
            let out: Vec<(u8, Vec<u8>)> = out.0.into_iter().map(|(port, _, data)| (port, data)).collect();
            prop_assert!(out.iter().all(|(_, frame)| is_right(frame)));
            prop_assert_eq!(&out, &expected);
            prop_assert_eq!((pool.live(), stage.drops().total()), (0, (sent.len() - expected.len()) as u64));
        }
        prop_assert!(trains.decisions() <= single.decisions());
    }

    /// Whatever comes: nothing is lost, no flow changes its order, a train fares as its packets alone.
    #[test]
    fn nothing_is_lost_and_order_is_kept(
        events in proptest::collection::vec((0..3_u8, 0..2_000_000_000_u64, proptest::collection::vec((0..4_u8, 1..6_u8, 0..4_u16), 1..20)), 1..12),
    ) {
        let (mut trains, mut single) = (PerTrain::new(router(true)), PerPacket::new(router(true)));
        let (mut pool, mut other_pool) = (Pool::new(), Pool::new());
        let (mut now, mut id) = (0, 0_u16);
        let mut last: HashMap<(Vec<u8>, u8), u16> = HashMap::new();
        for (input, gap, sent) in events {
            now += gap;
            let sent: Vec<(u64, Vec<u8>)> = sent.into_iter().enumerate().map(|(i, (kind, n, big))| {
                id += 1;
                let number = id.to_be_bytes();
                let to = Ipv4Addr::new(198, 51, 100, n);
                let payload = [&number[..], &vec![0; usize::from(big) * 500]].concat();
                let frame = match kind {
                    // A neighbour on the second link says where it is, asked or not.
                    0 => {
                        let mut arp = vec![2, 0, 0, 0, 0, input + 1, 2, 0, 0, 0, 7, n, 8, 6, 0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 7, n];
                        arp.extend(to.octets());
                        arp.extend([2, 0, 0, 0, 0, 2, 198, 51, 100, 1]);
                        arp
                    }
                    _ => framed(input + 1, &datagram(to.into(), kind, &payload)),
                };
                (now + i as u64, frame)
            }).collect();
            let out = run(&mut trains, &mut pool, input, LinkType::Ethernet, &sent);
            let alone = run(&mut single, &mut other_pool, input, LinkType::Ethernet, &sent);
            // Packets that leave by one port keep their order; between ports there is none.
            let by_port = |all: &[(u8, u64, Vec<u8>)]| {
                let mut all = all.to_vec();
                all.sort_by_key(|(port, ..)| *port);
                all
            };
            prop_assert_eq!(by_port(&out.0), by_port(&alone.0));
            for (port, _, frame) in &out.0 {
                let Ok(headers) = classify(LinkType::Ethernet, frame) else { continue };
                prop_assert!(is_right(frame));
                // Datagrams of the flow, and first fragments of them, carry their numbers in rising order.
                let offset = u16::from_be_bytes([frame[20], frame[21]]) & 0x1fff;
                if headers.key.protocol() == 17 && offset == 0 {
                    let number = u16::from_be_bytes([frame[42], frame[43]]);
                    let flow = (frame[30..34].to_vec(), *port);
                    prop_assert!(last.insert(flow, number).is_none_or(|before| before < number));
                }
            }
            prop_assert_eq!(pool.live(), trains.held());
        }
        // Time runs on until nobody is asked for any more.
        let links = [LinkType::Ethernet];
        while trains.next_deadline() < Nanos::MAX {
            let mut cx = Context { now: trains.next_deadline(), pool: &mut pool, input: 0, links: &links };
            trains.on_deadline(&mut cx, &mut Collect::default());
        }
        prop_assert_eq!((pool.live(), trains.held()), (0, 0));
    }

    /// Any bytes on any link.
    #[test]
    fn hostile_frames_cost_a_counter(
        frames in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..120), 1..20),
        heads in proptest::collection::vec(0..6_usize, 20), ethernet in any::<bool>(), v6 in any::<bool>(),
    ) {
        let head: &[u8] = match (ethernet, v6) {
            (true, false) => &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 8, 0, 0x45, 0, 0, 60, 0, 0, 0, 0, 2, 1],
            (true, true) => &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 32, 58, 255],
            (false, false) => &[0x46, 0, 0, 60],
            (false, true) => &[0x60, 0, 0, 0, 0, 20, 44, 3],
        };
        let sent: Vec<(u64, Vec<u8>)> = (0..).zip(frames.iter().zip(heads))
            .map(|(time, (frame, n))| (time, [head.get(..head.len() * n.min(4) / 4).unwrap(), frame].concat())).collect();
        let link = if ethernet { LinkType::Ethernet } else { LinkType::RawIp };
        let mut stage = PerTrain::new(router(ethernet));
        let mut pool = Pool::new();
        run(&mut stage, &mut pool, 0, link, &sent);
        prop_assert_eq!(pool.live(), stage.held());
    }
}

pub(super) fn has(counter: &str, stage: &dyn Stage) -> u64 {
    let mut found = None;
    stage.counters(&mut |name, n| found = found.or((name == counter).then_some(n)));
    found.unwrap()
}

/// Routes change while packets go: the new table as a whole, or the old one.
#[test]
fn routes_are_read_anew() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"10.0.0.0/8 port b\n").unwrap();
    let mut made = router(false);
    made.watch(file.path(), 1_000_000).unwrap();
    let (mut stage, mut pool) = (PerPacket::new(made), Pool::new());
    let mut now = 0;
    let mut port = |stage: &mut PerPacket<Router>| {
        now += 2_000_000;
        let packet = datagram([10, 0, 0, 9].into(), 9, b"x");
        let out = run(stage, &mut pool, 0, LinkType::RawIp, &[(now, packet)]);
        out.0.first().map(|(port, ..)| *port)
    };
    let mut until = |stage: &mut PerPacket<Router>, counter: &str, n: u64| {
        for _ in 0..2000 {
            let went = port(stage);
            if has(counter, stage) == n {
                return went;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        panic!("{counter} never comes to {n}");
    };
    assert_eq!(until(&mut stage, "routes", 1), Some(1));
    let replace = |text: &str| {
        let mut new = tempfile::NamedTempFile::new_in(file.path().parent().unwrap()).unwrap();
        new.write_all(text.as_bytes()).unwrap();
        std::fs::rename(new.path(), file.path()).unwrap();
    };
    replace("10.0.0.0/8 port c\n10.1.0.0/16 port b\n");
    assert_eq!(until(&mut stage, "route_reloads", 1), Some(2));
    replace("10.0.0.0/8 port nowhere\n");
    assert_eq!(until(&mut stage, "route_reload_errors", 1), Some(2), "a bad file leaves the old table");
    let said = stage.report().unwrap()["routes_error"].as_str().unwrap().to_owned();
    assert!(said.contains("line 1") && said.contains("a, b, c"), "{said}");
    replace("10.0.0.0/8 port b\n");
    assert_eq!(until(&mut stage, "route_reloads", 2), Some(1));
    assert!(stage.report().is_none());
}

/// Routes are read when that is asked for, though the next check is far away and no packet comes.
#[test]
fn routes_are_read_when_asked() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"10.0.0.0/8 port b\n").unwrap();
    let mut made = router(false);
    made.watch(file.path(), 86_400_000_000_000).unwrap();
    let (mut stage, mut pool) = (PerTrain::new(made), Pool::new());
    assert_eq!((stage.reloads(), stage.next_deadline()), (Some("its routes"), Nanos::MAX));
    file.write_all(b"10.1.0.0/16 port c\n10.2.0.0/16 port c\n").unwrap();
    stage.reload(Nanos(5_000));
    assert_eq!(stage.next_deadline(), Nanos(5_000));
    for _ in 0..2000 {
        let now = stage.next_deadline();
        if now == Nanos::MAX {
            break;
        }
        let links = [LinkType::RawIp];
        stage.on_deadline(
            &mut Context { now, pool: &mut pool, input: 0, links: &links },
            &mut Collect::default(),
        );
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!((has("routes", &stage), has("route_reloads", &stage)), (3, 1));
    assert_eq!(stage.next_deadline(), Nanos::MAX, "nothing is wanted any more");
}

#[test]
fn routes_that_lead_nowhere_are_refused() {
    for (text, part) in [
        ("10.0.0.0/8 via 10.1.1.1", "no interface has a network with the gateway 10.1.1.1"),
        ("\n10.0.0.0/8 via 192.0.2.1", "line 2: the gateway 192.0.2.1 is the router itself"),
        ("10.0.0.0/8 via 192.0.2.255", "the gateway 192.0.2.255 is no host's"),
        ("10.0.0.0/8 port d", "no interface is called `d`; there are a, b, c"),
        ("2001:db8:f::/48 via fe80::1", "must name a port"),
        (
            "10.0.0.0/8 via 192.0.2.9 mac 2:0:0:0:0:9\n11.0.0.0/8 via 192.0.2.9\n\
             12.0.0.0/8 via 192.0.2.9 mac 2:0:0:0:0:8",
            "line 3: the gateway 192.0.2.9 has another Ethernet address in line 1",
        ),
    ] {
        let routes = Routes::parse(text).unwrap();
        let error = Fib::build(&router(true).interfaces, routes.routes()).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

/// Each gateway has a place among the neighbours, by however many routes.
#[test]
fn more_gateways_than_neighbours_are_refused() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let route = |n: u32| format!("10.{n}.0.0/16 via 192.0.2.{}\n", 16 + n % 20);
    file.write_all((0..40).map(route).collect::<String>().as_bytes()).unwrap();
    let interfaces = Arc::clone(&router(true).interfaces);
    let started = |room| Watch::start(file.path(), Arc::clone(&interfaces), room, 1);
    let error = started(19).unwrap_err();
    let says = ": 20 gateways, but `neighbour_table` has places for 19; raise it";
    assert!(error.ends_with(says), "{error}");
    assert!(started(20).is_ok());
}

/// Errors about packets of a train, and fragments of others, leave in the places of these packets, however
/// many of a train are decided about at once: what stands behind several ports may ask what came before.
#[test]
fn what_a_packet_sets_off_leaves_in_its_place() {
    let dst = "198.51.100.9".parse().unwrap();
    let packet = |n: usize| match n % 7 {
        0 | 4 => datagram(dst, 1, &[n as u8; 20]),
        2 => datagram(dst, 64, &[n as u8; 1480]),
        _ => datagram(dst, 64, &[n as u8; 20]),
    };
    let sent: Vec<(u64, Vec<u8>)> = (0..256).map(|n| (1_000_000, packet(n))).collect();
    let mut links = interfaces(OWN.into_iter()).unwrap();
    links[1].mtu = 600;
    let router = || Router::with_defaults(links.clone(), 3);
    let (mut by_train, mut by_packet) = (PerTrain::new(router()), PerPacket::new(router()));
    let stages: [&mut dyn Stage; 2] = [&mut by_train, &mut by_packet];
    let [by_train, by_packet] = stages.map(|stage| {
        let mut pool = Pool::new();
        let left = run(stage, &mut pool, 0, LinkType::RawIp, &sent).0;
        assert_eq!(pool.live(), 0);
        left
    });
    let ports: Vec<u8> = by_train.iter().map(|(port, ..)| *port).collect();
    assert!(ports.starts_with(&[0, 1, 1, 1, 1, 1, 0, 1]) && by_train == by_packet, "{ports:?}");
}
