//! IPv6 packets whose extension headers hide what they precede.

use std::net::Ipv6Addr;

use slipstream_core::flow_context::{FlowContexts, Layout};
use slipstream_core::stage::Observe;

use super::stage::FirewallStage;
use super::{Firewall, Method, RuleSet};
use crate::PerTrain;
use crate::conntrack::ConntrackConfig;
use crate::reassembly::stage_tests::run_with;
use crate::tcp_state::SYN;
use crate::test_packets::{ipv6, tcp};

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

#[test]
fn what_no_rule_can_be_asked_about_is_denied() {
    let rules =
        ["deny tcp dst port 23\ndefault allow", "deny tcp dst port 23\nallow state new\ndefault allow"];
    // A flow's first packet ends within its headers, those behind it have more than are walked.
    let same_flow = [cut(behind(2, 80), 52), behind(33, 80), behind(33, 23), behind(180, 23), behind(33, 80)];
    for (text, contexts) in [(rules[0], false), (rules[0], true), (rules[1], false), (rules[1], true)] {
        let rules = RuleSet::parse(text).unwrap();
        let track = rules.reads().state.then(ConntrackConfig::default);
        let mut stage = FirewallStage::new(Firewall::new(rules, Method::Fast), 0, true, 7);
        if let Some(config) = track {
            stage.track(&config);
        }
        let (mut layout, mut stage) = (Layout::default(), PerTrain::new(stage));
        let words = layout.place(4);
        let mut contexts = contexts.then(|| {
            let mut contexts = Box::new(FlowContexts::new(&layout, 8, 7));
            contexts.turn_to(words);
            contexts
        });
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
