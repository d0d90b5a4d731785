//! Packets as the stage gets them, in trains of any length: extension headers that hide what they precede,
//! the log, and flow contexts.

use std::net::Ipv6Addr;

use slipstream_core::flow_context::{FlowContexts, Layout};
use slipstream_core::stage::Observe;

use super::stage::FirewallStage;
use super::{Firewall, Method, RuleSet};
use crate::PerTrain;
use crate::conntrack::ConntrackConfig;
use crate::reassembly::stage_tests::run_with;
use crate::tcp_state::{RST, SYN};
use crate::test_packets::{error, filled, ipv4, ipv6, tcp, udp};

/// A SYN to a port, behind so many headers of destination options.
fn behind(headers: usize, port: u16) -> Vec<u8> {
    let next = |n: usize| if n + 1 < headers { 60 } else { 6 };
    let chain = (0..headers).flat_map(|n| [next(n), 0, 1, 4, 0, 0, 0, 0]);
    let payload: Vec<u8> = chain.chain(tcp(4000, port, SYN, &[])).collect();
    let host = |n: u128| Ipv6Addr::from_bits(0x2001_0db8 << 96 | n);
    ipv6(if headers == 0 { 6 } else { 60 }, host(1), host(2), &payload)
}

/// The packet, its end gone.
fn cut(mut packet: Vec<u8>, len: usize) -> Vec<u8> {
    packet.truncate(len);
    packet
}

/// A firewall with these rules, which tracks connections where they ask for states; with flow contexts or
/// without.
fn stage_of(rules: &str, contexts: bool) -> (PerTrain<FirewallStage>, Option<Box<FlowContexts>>) {
    let rules = RuleSet::parse(rules).unwrap();
    let tracks = rules.reads().state;
    let mut stage = FirewallStage::new(Firewall::new(rules, Method::Fast), 0, true, 7);
    if tracks {
        stage.track(&ConntrackConfig::default());
    }
    let (mut layout, stage) = (Layout::default(), PerTrain::new(stage));
    let words = layout.place(4);
    let contexts = contexts.then(|| {
        let mut contexts = Box::new(FlowContexts::new(&layout, 8, 7));
        contexts.turn_to(words);
        contexts
    });
    (stage, contexts)
}

#[test]
fn what_no_rule_can_be_asked_about_is_denied() {
    let rules =
        ["deny tcp dst port 23\ndefault allow", "deny tcp dst port 23\nallow state new\ndefault allow"];
    // A flow's first packet ends within its headers, those behind it have more than are walked.
    let same_flow = [cut(behind(2, 80), 52), behind(33, 80), behind(33, 23), behind(180, 23), behind(33, 80)];
    for (text, contexts) in [(rules[0], false), (rules[0], true), (rules[1], false), (rules[1], true)] {
        let (mut stage, mut contexts) = stage_of(text, contexts);
        let mut ports = |packets: &[Vec<u8>], sizes: &[usize]| -> Vec<u8> {
            run_with(&mut stage, packets, sizes, &mut contexts).0.iter().map(|(port, ..)| *port).collect()
        };
        for headers in [0, 1, 31, 32] {
            assert_eq!(ports(&[behind(headers, 23), behind(headers, 80)], &[1]), [1, 0], "{headers}: {text}");
        }
        assert_eq!(ports(&same_flow, &[1]), [1; 5], "{text}");
        assert_eq!(ports(&same_flow, &[5]), [1; 5], "{text}");
        let mut hidden = 0;
        stage.counters(&mut |name, n| hidden += if name == "hidden_protocol" { n } else { 0 });
        assert_eq!(hidden, 10, "{text}");
    }
}

/// The two fragments of what follows an IPv6 header, cut behind so many bytes.
fn cut_in_two(packet: &[u8], at: usize) -> [Vec<u8>; 2] {
    let (next, (first, rest)) = (packet[6], packet[40..].split_at(at));
    let host = |n: u128| Ipv6Addr::from_bits(0x2001_0db8 << 96 | n);
    [(first, 1), (rest, at as u16)].map(|(bytes, word)| {
        let payload = [&[next, 0][..], &word.to_be_bytes(), &[0, 0, 0, 9], bytes].concat();
        ipv6(44, host(1), host(2), &payload)
    })
}

/// Extension headers hide what they precede in a datagram that came in fragments, too, though rules that ask
/// for fragments match it; and so does a fragment header behind a fragment's.
#[test]
fn fragments_hide_no_protocol() {
    let (mut stage, _) = stage_of("deny tcp dst port 23\ndefault allow", false);
    let mut ports = |packets: &[Vec<u8>]| -> Vec<u8> {
        run_with(&mut stage, packets, &[1], &mut None).0.iter().map(|(port, ..)| *port).collect()
    };
    let host = |n: u128| Ipv6Addr::from_bits(0x2001_0db8 << 96 | n);
    let long = |headers: usize, port: u16| {
        let packet = behind(headers, port);
        ipv6(packet[6], host(1), host(2), &[&packet[40..], &[0; 32]].concat())
    };
    for (headers, port, expected) in
        [(0, 80, 0), (0, 23, 1), (32, 80, 0), (32, 23, 1), (33, 80, 1), (33, 23, 1)]
    {
        let fragments = cut_in_two(&long(headers, port), headers * 8 + 24);
        assert_eq!(ports(&fragments), [expected; 2], "{headers} headers, port {port}");
    }
    // The first fragment of another datagram, itself in two fragments.
    let [inner, _] = cut_in_two(&long(0, 23), 40);
    assert_eq!(ports(&cut_in_two(&inner, 32)), [0; 0]);
    // A fragment header that is alone is none.
    let payload = [&[6, 0, 0, 0, 0, 0, 0, 3][..], &long(0, 23)[40..]].concat();
    assert_eq!(ports(&cut_in_two(&ipv6(44, host(1), host(2), &payload), 40)), [1; 2]);
}

/// Packets that get no answer, such as resets and ICMP errors, take none of those that may be made from
/// others.
#[test]
fn what_gets_no_answer_leaves_it_to_others() {
    let rules = RuleSet::parse("reset any").unwrap();
    let mut stage = FirewallStage::new(Firewall::new(rules, Method::Fast), 0, true, 7);
    stage.limiter = crate::RateLimiter::new(1, 2);
    let segment = |flags| ipv4(6, 0x0a00_0001, 0x0a00_0002, &tcp(4000, 23, flags, &[]));
    let about = ipv4(1, 0x0a00_0001, 0x0a00_0002, &error(3, 3, &segment(SYN)));
    let packets =
        [segment(RST), about.clone(), segment(RST), about, segment(SYN), segment(SYN), segment(SYN)];
    let left = run_with(&mut PerTrain::new(stage), &packets, &[1], &mut None).0;
    let answers = left.iter().filter(|(port, ..)| *port == 2).count();
    assert_eq!(answers, 2, "of three that get one");
}

/// One packet in so many is logged, and every packet counts, wherever trains are cut.
#[test]
fn the_log_counts_packets_and_not_trains() {
    let text = "log 1/3 tcp dst port 80\nlog 1/2 tcp dst port 80\nlog 1/1 udp\ndefault allow\n";
    let packets = vec![ipv4(6, 0x0a00_0001, 0x0a00_0002, &tcp(4000, 80, 0x10, &[])); 20];
    for sizes in [&[1][..], &[2, 1], &[7], &[5, 3, 1], &[20]] {
        let (mut stage, mut contexts) = stage_of(text, false);
        let left = run_with(&mut stage, &packets, sizes, &mut contexts).0;
        assert!(left.len() == 20 && left.iter().all(|(port, ..)| *port == 0), "{sizes:?}");
        let mut counted = Vec::new();
        stage.counters(&mut |name, n| {
            if ["logged", "by_default"].contains(&name) {
                counted.push((name, n));
            }
        });
        counted.sort_unstable();
        assert_eq!(counted, [("by_default", 20), ("logged", 20 / 3 + 20 / 2)], "{sizes:?}");
        // A train has an entry of each rule that logs one of its packets at least.
        let (mut seen, mut entries) = (0, 0);
        for size in sizes.iter().cycle().take(20) {
            let after = (seen + size).min(20);
            entries += [3, 2].into_iter().filter(|one_in| after / one_in > seen / one_in).count();
            seen = after;
        }
        let report = stage.report().unwrap();
        assert_eq!(report["logged"].as_array().unwrap().len(), entries, "{sizes:?}");
        let hits: Vec<_> = report["hits"].as_array().unwrap().iter().map(|hit| &hit["packets"]).collect();
        assert_eq!(hits, [20, 20], "{sizes:?}");
    }
}

/// The rule that a flow's context has is that of packets with the same bits, as far as rules read them.
#[test]
fn a_context_answers_for_packets_with_the_same_bits() {
    let packets = [0, 0xb8, 0, 0, 0xb8, 0xb8, 0x28].map(|tos| {
        let mut packet = ipv4(17, 0x0a00_0001, 0x0a00_0002, &udp(4000, 80, &[]));
        packet[1] = tos;
        filled(packet)
    });
    for (end, contexts) in [
        ("default allow\n", false),
        ("default allow\n", true),
        ("allow state new,established\n", false),
        ("allow state new,established\n", true),
    ] {
        let (mut stage, mut contexts) = stage_of(&format!("deny dscp ef\n{end}"), contexts);
        for sizes in [&[1][..], &[packets.len()]] {
            let left = run_with(&mut stage, &packets, sizes, &mut contexts).0;
            let ports: Vec<_> = left.iter().map(|(port, ..)| *port).collect();
            assert_eq!(ports, [0, 1, 0, 0, 1, 1, 0], "{end} {sizes:?}");
        }
    }
}
