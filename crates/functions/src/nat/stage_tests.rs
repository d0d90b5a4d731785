//! The stage: packets by their bytes, once per train as per packet.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use super::tests::{A, EXT, R, config};
use super::*;
use crate::reassembly::stage_tests::{Left, run_with};
use crate::tcp_state::ACK;
use crate::test_packets::{echo, error, ipv4, ipv4_fragment, ipv6, tcp, udp};
use crate::{PerPacket, PerTrain};
use slipstream_core::flow_context::{FlowContexts, Layout};
use slipstream_core::stage::Stage;

/// Packets that left, and counters other than those of decisions.
type Seen = (Vec<Left>, BTreeMap<&'static str, u64>);

fn seen(stage: &mut dyn Stage, packets: &[Vec<u8>], contexts: &mut Option<Box<FlowContexts>>) -> Seen {
    let (left, _) = run_with(stage, packets, &[100], contexts);
    let mut counters = BTreeMap::new();
    stage.counters(&mut |name, value| {
        counters.insert(name, value);
    });
    counters.retain(|name, _| !matches!(*name, "decisions" | "long_probes"));
    (left, counters)
}

/// The fates of packets from inside a NAT: they are one, however it decides, with contexts and without.
fn each_way(packets: &[Vec<u8>]) -> Seen {
    let stage = || NatStage::new(Nat::new(&config()).unwrap());
    let by_train = seen(&mut PerTrain::new(stage()), packets, &mut None);
    assert_eq!(by_train, seen(&mut PerPacket::new(stage()), packets, &mut None));
    let mut layout = Layout::default();
    let place = layout.place(1);
    let mut contexts = Some(Box::new(FlowContexts::new(&layout, 64, 7)));
    contexts.as_mut().unwrap().turn_to(place);
    assert_eq!(by_train, seen(&mut PerTrain::new(stage()), packets, &mut contexts), "with contexts");
    by_train
}

/// A packet of this total length, in a frame that goes on with other bytes.
fn ends_at(length: u16, mut packet: Vec<u8>) -> Vec<u8> {
    packet[2..4].copy_from_slice(&length.to_be_bytes());
    packet.resize(packet.len().max(60), 0xee);
    packet
}

#[test]
fn counters_of_packets_count_packets() {
    let end = Ipv6Addr::from(0x2001_0db8 << 96);
    let mut packets = vec![ipv6(17, end, end, &udp(1, 2, b"x")); 5];
    packets.extend(vec![ipv4(1, A, R, &echo(9, 1, b"")); 3]);
    packets.extend(vec![ends_at(20, ipv4(17, A, R, &udp(5000, 53, b""))); 4]);
    let (left, counters) = each_way(&packets);
    assert_eq!(left.len(), 5);
    assert_eq!([counters["not_ipv4"], counters["unreadable"], counters["truncated"]], [5, 3, 4]);
    assert_eq!([counters["sessions"], counters["mappings"]], [0, 0]);
}

/// A redirect about a session's packet is none of the errors that are translated: it would tell a host a
/// gateway of the other side's choice.
#[test]
fn redirects_stay_on_their_side() {
    let request = ipv4(17, A, R, &udp(5000, 53, b"x"));
    let reply = ipv4(17, R, A, &udp(53, 5000, b"x"));
    let errors = [3, 4, 5, 11, 12].map(|kind| ipv4(1, A, R, &error(kind, 1, &reply)));
    let (left, counters) = each_way(&[&[request][..], &errors].concat());
    let kinds: Vec<u8> = left[1..].iter().map(|(_, bytes, _)| bytes[20]).collect();
    assert_eq!((kinds, counters["unreadable"]), (vec![3, 4, 11, 12], 1));
    let mut nat = Nat::new(&config()).unwrap();
    let outside =
        |kind| Packet::read(&ipv4(1, R, EXT, &error(kind, 1, &ipv4(17, EXT, R, &udp(5000, 53, b"x")))), 0);
    nat.outbound(&Packet::read(&ipv4(17, A, R, &udp(5000, 53, b"x")), 0).unwrap(), Nanos(1));
    assert!(matches!(nat.inbound(&outside(3).unwrap(), Nanos(2)), Verdict::Error(_)));
    assert_eq!(outside(5), Err(ReadError::IcmpType(5)));
}

/// Padding that looks like the ports of a session, behind and before packets that have them.
#[test]
fn a_packet_shorter_than_its_ports_shares_nothing() {
    for (protocol, payload) in [(17, udp(5000, 53, b"hello, world")), (6, tcp(5000, 80, ACK, b""))] {
        let whole = ipv4(protocol, A, R, &payload);
        for length in [20, 22, 23] {
            let short = ends_at(length, whole.clone());
            let packets = [&short, &whole, &whole, &short, &short, &whole].map(Vec::clone);
            let (left, counters) = each_way(&packets);
            let expected = ipv4(protocol, EXT, R, &payload);
            assert!(left.iter().all(|(port, bytes, _)| (*port, bytes) == (0, &expected)));
            assert_eq!((left.len(), counters["truncated"], counters["sessions"]), (3, 3, 1));
        }
    }
}

/// In a train a packet may be shorter than the one that was decided about: what alone would not be read is
/// not rewritten either.
#[test]
fn what_ends_before_its_ports_is_not_rewritten() {
    for protocol in [6, 17, 33, 132, 136] {
        let whole = ipv4(protocol, A, R, &[&[0x13, 0x88, 0, 80][..], &[7; 16]].concat());
        let Tuple { src_port, dst_port, .. } = Tuple::of(Packet::read(&whole, 0).unwrap().key);
        let rewrite = Rewrite::between(
            key_of(protocol, A, src_port, R, dst_port),
            key_of(protocol, EXT, src_port, R, dst_port),
        );
        for length in 20..=40 {
            let mut short = ends_at(length, whole.clone());
            let (before, read) = (short.clone(), Packet::read(&short, 0));
            let done = rewrite.apply(&mut short, 0, 20);
            assert_eq!(done.is_ok(), read.is_ok(), "{length} bytes of protocol {protocol}");
            assert_eq!(short == before, done.is_err());
        }
    }
}

/// UDP-Lite has no packets without a checksum: one that comes to 0 is sent as its other zero.
#[test]
fn no_checksum_of_udp_lite_is_zero() {
    let old = key_of(136, A, 0, R, 0);
    let rewrite = Rewrite::between(old, key_of(136, EXT, 0, R, 0));
    let (mut zeros, mut packet) = (0, ipv4(136, A, R, &[0; 20]));
    let begin = packet.clone();
    for checksum in 1..=u16::MAX {
        packet.copy_from_slice(&begin);
        packet[26..28].copy_from_slice(&checksum.to_be_bytes());
        rewrite.apply(&mut packet, 0, 20).unwrap();
        assert_ne!(packet[26..28], [0, 0], "from {checksum:#06x}");
        zeros += u32::from(packet[26..28] == [0xff, 0xff]);
    }
    assert!(zeros > 0);
}

/// Of such a packet nobody knows whether it shows an address of the inside.
#[test]
fn what_ends_within_its_ip_header_goes_nowhere() {
    let whole = ipv4(17, A, R, &udp(5000, 53, b"hello"));
    let long_header = [&[0x4f], &whole[1..]].concat();
    let short_header = [&[0x44], &whole[1..]].concat();
    let packets = [whole[..19].to_vec(), long_header, short_header, vec![0x60; 39], vec![0x50; 40]];
    let (left, counters) = each_way(&packets);
    assert_eq!(left.iter().map(|(_, bytes, _)| bytes).collect::<Vec<_>>(), [&packets[4]]);
    assert_eq!([counters["truncated"], counters["not_ipv4"]], [4, 1]);
}

/// Neither ports nor a checksum are written behind the end of a packet.
#[test]
fn padding_stays() {
    for (protocol, payload, sum) in [(17, udp(5000, 53, b""), 26), (6, tcp(5000, 80, ACK, b""), 36)] {
        let whole = ipv4(protocol, A, R, &payload);
        let new = key_of(protocol, EXT, 7000, R, 53);
        let rewrite = Rewrite::between(Packet::read(&whole, 0).unwrap().key, new);
        let mut all = ends_at(whole.len() as u16, whole.clone());
        rewrite.apply(&mut all, 0, 20).unwrap();
        for length in 1..=whole.len() {
            let mut packet = ends_at(length as u16, whole.clone());
            let mut expected = packet.clone();
            let done = rewrite.apply(&mut packet, 0, 20);
            assert_eq!(done, if length < 24 { Err(Truncated) } else { Ok(false) });
            if done.is_ok() {
                expected[10..24].copy_from_slice(&all[10..24]);
                if length >= sum + 2 {
                    expected[sum..sum + 2].copy_from_slice(&all[sum..sum + 2]);
                }
            }
            assert_eq!(packet, expected, "{length} bytes of protocol {protocol}");
        }
    }
}

/// Shards have a part of each range of ports: a port in both would belong to two of them, each of which could
/// give it to a host of its own.
#[test]
fn a_port_of_two_ranges_belongs_to_no_shard() {
    use slipstream_core::settings::{Settings, Value};

    let hinders = |ports: &str, low_ports: &str| {
        let text = |text: &str| Value::Text(text.to_owned());
        let settings = Settings::defaults(NAT.settings)
            .with("hairpin", Value::Bool(false))
            .with("ports", text(ports))
            .with("low_ports", text(low_ports));
        (NAT.properties.hindrance)(&settings).is_some()
    };
    assert!(!hinders("1024-65535", "1-1023") && !hinders("1-65535", "none"));
    assert!(!hinders("1-1000", "1001-1023") && !hinders("40000-50000", "600-1023"));
    for (ports, low_ports) in [("512-65535", "1-1023"), ("1-65535", "1-1023"), ("1-1023", "1023-2000")] {
        assert!(hinders(ports, low_ports), "{ports} and {low_ports}");
    }
}

/// The checksum of TCP that an error quotes may come in another fragment of the error than the ports: the
/// fragments together are the error that would have left whole.
#[test]
fn a_quoted_checksum_in_a_later_fragment_is_translated() {
    let requests = [A + 1, A].map(|host| ipv4(6, host, R, &tcp(5000, 80, ACK, b"")));
    for (options, cuts) in [(&[][..], &[40][..]), (&[1; 8], &[48]), (&[], &[40, 48]), (&[], &[48])] {
        let reply = |to, port| ipv4_fragment(6, R, to, 0, options, &tcp(80, port, ACK, b"some data"));
        let message = error(3, 3, &reply(A, 5000));
        let whole = ipv4(1, A, R, &message);
        let ends = cuts.iter().copied().chain([message.len()]);
        let fragments = [0].into_iter().chain(cuts.iter().copied()).zip(ends).map(|(start, end)| {
            let more = if end < message.len() { 0x2000 } else { 0 };
            ipv4_fragment(1, A, R, more | (start / 8) as u16, &[], &whole[20 + start..20 + end])
        });
        let packets: Vec<Vec<u8>> = requests.iter().cloned().chain(fragments).collect();
        let (left, _) = each_way(&packets);
        assert_eq!(left.len(), packets.len());
        // The port was taken, so that another one is quoted.
        let port = Tuple::of(Packet::read(&left[1].1, 0).unwrap().key).src_port;
        assert_ne!(port, 5000);
        let together: Vec<u8> = left[2..].iter().flat_map(|(_, bytes, _)| bytes[20..].to_vec()).collect();
        assert_eq!(together, ipv4(1, EXT, R, &error(3, 3, &reply(EXT, port)))[20..], "cut at {cuts:?}");
    }
}
