//! The rules in the XDP program against the same rules asked by the engine, of random packets.

use proptest::prelude::*;
use slipstream_core::rules::{Rule, testing};
use slipstream_wire::view::Ipv6;
use slipstream_wire::{LinkType, classify};

use super::headers::{EXTENSIONS, TAGS};
use super::interpreter::{Machine, REDIRECT};
use super::prefilter::{MOST, Prefilter};
use super::program::{COUNTER, Only, PASS, program};

/// Runs the program with these rules on a packet: true if a socket gets it.
fn takes(rule: &Rule, frame: &[u8]) -> bool {
    let rules = Prefilter::new(rule).unwrap();
    let only = Only { rules: &rules, counters: 9 };
    let verdicts = [false, true].map(|stamped| {
        let mut machine = Machine::new(frame, 1, 3);
        let verdict = machine.run(&program(7, Some(only), stamped));
        assert_eq!(machine.begins(), 0, "where the packet begins");
        let counted: Vec<u8> = machine.counters.iter().step_by(COUNTER).copied().collect();
        assert_eq!(counted, [0, u8::from(verdict == PASS as u64), 0]);
        verdict
    });
    assert_eq!(verdicts[0], verdicts[1], "the time makes a difference");
    assert!(verdicts[0] == REDIRECT || verdicts[0] == PASS as u64);
    verdicts[0] == REDIRECT
}

/// The same by the engine's own classification and rules. Packets with more tags or headers than the program
/// reads stay with the kernel.
fn should_take(rule: &Rule, frame: &[u8]) -> bool {
    let Ok(headers) = classify(LinkType::Ethernet, frame) else { return false };
    let extensions =
        Ipv6::new_checked(&frame[usize::from(headers.l3)..]).map_or(0, |ip| ip.extensions().count());
    headers.key.vlans().count() <= TAGS
        && extensions <= EXTENSIONS
        && rule.matches(&headers, frame.len() as u32)
}

/// Any of these bytes, mostly; else any byte.
fn byte(usual: &'static [u8]) -> BoxedStrategy<u8> {
    prop_oneof![6 => prop::sample::select(usual), 1 => any::<u8>()].boxed()
}

fn address4() -> BoxedStrategy<[u8; 4]> {
    let usual: &'static [[u8; 4]] = &[[10, 0, 0, 1], [10, 0, 0, 2], [10, 1, 0, 0], [192, 168, 1, 1]];
    prop_oneof![4 => prop::sample::select(usual), 1 => any::<[u8; 4]>()].boxed()
}

fn address6() -> BoxedStrategy<[u8; 16]> {
    let usual = [1, 0x2001_0db8 << 96 | 1, 0x2001_0db8 << 96 | 2, 0xffff_0a00_0001_u128];
    prop_oneof![4 => prop::sample::select(usual.map(u128::to_be_bytes).to_vec()), 1 => any::<[u8; 16]>()]
        .boxed()
}

fn port() -> BoxedStrategy<[u8; 2]> {
    let usual = [0, 53, 80, 443, 8000, 65_535].map(u16::to_be_bytes).to_vec();
    prop_oneof![4 => prop::sample::select(usual), 1 => any::<[u8; 2]>()].boxed()
}

/// A transport header's first bytes, and what follows.
fn transport() -> impl Strategy<Value = Vec<u8>> {
    (
        port(),
        port(),
        any::<[u8; 9]>(),
        byte(&[0x02, 0x12, 0x10, 0x04]),
        prop::collection::vec(any::<u8>(), 0..40),
    )
        .prop_map(|(src, dst, middle, flags, rest)| [&src[..], &dst, &middle, &[flags], &rest].concat())
}

const PROTOCOLS: &[u8] = &[1, 6, 6, 6, 17, 17, 47, 58, 132];

fn ipv4() -> impl Strategy<Value = Vec<u8>> {
    let first = byte(&[0x45, 0x45, 0x45, 0x46, 0x4f, 0x44, 0x65]);
    let fragment =
        prop_oneof![4 => Just([0, 0]), 1 => Just([0x40, 0]), 1 => Just([0x20, 0]), 1 => any::<[u8; 2]>()];
    (
        first,
        any::<u8>(),
        fragment,
        byte(PROTOCOLS),
        address4(),
        address4(),
        prop::collection::vec(any::<u8>(), 40),
        transport(),
    )
        .prop_map(|(first, tos, fragment, protocol, src, dst, options, transport)| {
            let options = &options[..(usize::from(first & 15) * 4).saturating_sub(20)];
            let header = [first, tos, 0, 60, 0, 1, fragment[0], fragment[1], 64, protocol, 0, 0];
            [&header[..], &src, &dst, options, &transport].concat()
        })
}

/// Extension headers, each of its kind and with a length that mostly holds, and the number of the first.
fn extensions(protocol: u8) -> impl Strategy<Value = (u8, Vec<u8>)> {
    let kind = byte(&[0, 43, 51, 60, 44, 135]);
    let offset = prop_oneof![3 => Just([0, 0]), 1 => Just([0, 1]), 1 => any::<[u8; 2]>()];
    let count = prop_oneof![3 => 0..3_usize, 1 => 0..EXTENSIONS + 3];
    let one = (kind, 0..4_u8, offset);
    count.prop_flat_map(move |count| prop::collection::vec(one.clone(), count)).prop_map(move |all| {
        let mut bytes = Vec::new();
        let mut next = all.iter().map(|(kind, ..)| *kind).skip(1).chain([protocol]);
        for (kind, units, offset) in &all {
            let len = match kind {
                44 => 8,
                51 => (usize::from(*units) + 2) * 4,
                _ => (usize::from(*units) + 1) * 8,
            };
            let start = bytes.len();
            bytes.resize(start + len.max(8), 0xee);
            bytes.truncate(start + len);
            bytes[start..start + 4].copy_from_slice(&[next.next().unwrap(), *units, offset[0], offset[1]]);
        }
        (all.first().map_or(protocol, |(kind, ..)| *kind), bytes)
    })
}

fn ipv6() -> impl Strategy<Value = Vec<u8>> {
    let headers = byte(PROTOCOLS).prop_flat_map(extensions);
    (byte(&[0x60, 0x6b, 0x45]), any::<u8>(), headers, address6(), address6(), transport()).prop_map(
        |(first, second, (next, extensions), src, dst, transport)| {
            let header = [first, second, 0, 0, 0, 60, next, 64];
            [&header[..], &src, &dst, &extensions, &transport].concat()
        },
    )
}

/// Ethernet frames: with up to three tags, of IPv4, IPv6 or something else, whole or cut anywhere.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let id = prop_oneof![prop::sample::select(&[1_u16, 100, 4095]), any::<u16>()];
    let kind = prop::sample::select(&[0x8100_u16, 0x88a8, 0x9100]);
    let tags = prop::collection::vec((kind, id), 0..TAGS + 2);
    let packet = prop_oneof![
        4 => ipv4().prop_map(|packet| (0x0800_u16, packet)),
        4 => ipv6().prop_map(|packet| (0x86dd, packet)),
        1 => (any::<u16>(), transport()),
        1 => ipv4().prop_map(|packet| (0x0806, packet)),
    ];
    let cut = prop_oneof![3 => Just(usize::MAX), 1 => 0..120_usize];
    (tags, packet, cut).prop_map(|(tags, (kind, packet), cut)| {
        let mut frame = vec![2; 12];
        for (kind, id) in tags {
            frame.extend(kind.to_be_bytes());
            frame.extend(id.to_be_bytes());
        }
        frame.extend(kind.to_be_bytes());
        frame.extend(packet);
        frame.truncate(cut);
        frame
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn the_program_takes_what_the_rules_match(
        expr in testing::expr(),
        frames in prop::collection::vec(frame(), 1..16),
    ) {
        // The printed rule parses to the same one.
        let rule = Rule::parse(&expr.to_string()).unwrap();
        for frame in frames {
            let headers = classify(LinkType::Ethernet, &frame);
            prop_assert_eq!(takes(&rule, &frame), should_take(&rule, &frame), "{} on {:?} {:?}", rule, headers, frame);
        }
    }

    /// Rules of one test each, which meets packets of every kind.
    #[test]
    fn the_program_reads_each_field(frame in frame()) {
        for rule in [
            "any", "ip", "ip6", "tcp", "udp", "sctp", "icmp6", "proto 44", "fragment", "vlan", "vlan 1", "vlan 4095",
            "src port 53", "dst port 80-443", "port 0-65535", "syn", "flags syn,!ack", "dscp 0-31", "ecn ce",
            "src 10.0.0.1", "dst 10.0.0.0/8", "src 2001:db8::1", "dst 2001:db8::/33", "length 60-100", "not tcp",
        ] {
            let rule = Rule::parse(rule).unwrap();
            prop_assert_eq!(takes(&rule, &frame), should_take(&rule, &frame), "{}", rule);
        }
    }
}

#[test]
fn too_many_comparisons_are_refused_with_the_rule() {
    let list =
        |n: usize| (0..n).map(|n| format!("10.{}.{}.0/24", n / 200, n % 200)).collect::<Vec<_>>().join(",");
    // One of them asks for the version.
    assert!(Prefilter::new(&Rule::parse(&format!("src {}", list(MOST - 1))).unwrap()).is_ok());
    let text = format!("udp\nsrc {}\ndst {}", list(MOST / 2), list(MOST / 2));
    let error = Prefilter::new(&Rule::parse(&text).unwrap()).unwrap_err();
    assert_eq!((error.comparisons, error.number), (MOST + 3, 3));
    let text = error.to_string();
    assert!(text.contains("rule 3, `dst 10.0.0.0/24,10.0.1.0/24,") && text.contains("2048"), "{text}");
}
