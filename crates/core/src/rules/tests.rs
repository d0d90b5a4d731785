//! Rules of any shape against the obvious evaluator, their printouts, and text of any kind.

use core::net::IpAddr;

use proptest::prelude::*;
use slipstream_wire::{Flags, FlowKey, Headers};

use super::Rule;
use super::expr::{Expr, Ranges, Side, Test};
use super::testing::{expr, few, headers};

/// The meaning of a rule, by the letter of its tree.
fn obvious(expr: &Expr, h: &Headers, len: u32) -> bool {
    match expr {
        Expr::Any => true,
        Expr::None => false,
        Expr::Not(inner) => !obvious(inner, h, len),
        Expr::And(parts) => parts.iter().all(|p| obvious(p, h, len)),
        Expr::Or(parts) => parts.iter().any(|p| obvious(p, h, len)),
        Expr::Test(test) => obvious_test(test, h, len),
    }
}

fn obvious_test(test: &Test, h: &Headers, len: u32) -> bool {
    let sides = |side, src: bool, dst: bool| match side {
        Side::Src => src,
        Side::Dst => dst,
        Side::Either => src || dst,
    };
    let within = |ranges: &Ranges, n: u32| ranges.pairs().iter().any(|&(lo, hi)| lo <= n && n <= hi);
    match test {
        Test::Ip6(six) => h.key.src().is_ipv6() == *six,
        Test::Proto(set) => set.iter().any(|n| n == h.key.protocol()),
        Test::Net(side, nets) => {
            let has = |a: IpAddr| nets.iter().any(|net| net.contains(&a));
            sides(*side, has(h.key.src()), has(h.key.dst()))
        }
        Test::Port(side, ports) => {
            let has = |port: u16| h.flags.has(Flags::PORTS) && within(ports, port.into());
            sides(*side, has(h.key.src_port()), has(h.key.dst_port()))
        }
        Test::Dscp(set) => (0..64).any(|n| set >> n & 1 == 1 && h.tos / 4 == n),
        Test::Ecn(set) => (0..4).any(|n| set >> n & 1 == 1 && h.tos % 4 == n),
        Test::Flags { mask, value } => h.flags.has(Flags::TCP) && h.tcp_flags & mask == *value,
        Test::Vlan(None) => h.key.vlans().next().is_some(),
        Test::Vlan(Some(ids)) => h.key.vlans().any(|id| within(ids, id.into())),
        Test::Fragment => h.flags.has(Flags::FRAGMENT),
        Test::Length(bytes) => within(bytes, len),
    }
}

/// Words of the language in any order, to get further into the parser than random bytes do.
fn babble() -> impl Strategy<Value = String> {
    let words = super::names::PRIMITIVES
        .iter()
        .copied()
        .chain([
            "tcp",
            "syn",
            "(",
            ")",
            "!",
            "&&",
            "||",
            ";",
            "\n",
            ",",
            "#",
            "80",
            "80-90",
            "10.0.0.0/8",
            "::/0",
            "ef",
            "é",
        ])
        .collect::<Vec<_>>();
    prop::collection::vec(prop::sample::select(words), 0..30).prop_map(|words| words.join(" "))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn compiled_rules_mean_what_their_trees_say(
        expr in expr(),
        packets in prop::collection::vec((headers(), few(&[60, 64, 1514], any::<u32>())), 1..16),
    ) {
        let rule = Rule::new(expr);
        for (h, len) in packets {
            let expected = obvious(&rule.expr, &h, len);
            prop_assert_eq!(rule.matches(&h, len), expected, "{} on {} {:?}", rule, h.key, h.flags);
            prop_assert!(!rule.is_never() || !expected);
            if let Some((mask, value)) = rule.tcp_flags_only() {
                prop_assert_eq!(h.flags.has(Flags::TCP) && h.tcp_flags & mask == value, expected, "{}", rule);
            }
            prop_assert!(!rule.is_always() || expected);
        }
    }

    #[test]
    fn what_is_printed_parses_to_the_same_rule(expr in expr()) {
        let rule = Rule::new(expr);
        let printed = rule.to_string();
        let again = Rule::parse(&printed).map_err(|e| TestCaseError::fail(e.to_string()))?;
        prop_assert_eq!(&again, &rule, "{}", printed);
        prop_assert_eq!(again.to_string(), printed);
    }

    #[test]
    fn any_text_is_a_rule_or_an_error_within_it(text in prop_oneof![".*", babble()]) {
        match Rule::parse(&text) {
            Ok(rule) => prop_assert_eq!(Rule::parse(&rule.to_string()).unwrap(), rule),
            Err(error) => {
                prop_assert!(text.is_char_boundary(error.offset), "{}", error);
                prop_assert_eq!(error.line, text[..error.offset].matches('\n').count() + 1);
                let line = text.split('\n').nth(error.line - 1).unwrap_or_default();
                // Of a long line only a part is shown, which may be blank.
                let blank = line.trim().is_empty() || line.chars().count() > 60;
                let shown = error.to_string().lines().count() - usize::from(error.hint.is_some());
                prop_assert!(shown == 3 || shown == 1 && blank, "{}", error);
            }
        }
    }

    #[test]
    fn ranges_hold_what_was_put_in(pairs in prop::collection::vec((0..50_u32, 0..8_u32), 1..8), n in 0..60_u32) {
        let pairs: Vec<_> = pairs.into_iter().map(|(lo, more)| (lo, lo + more)).collect();
        let expected = pairs.iter().any(|&(lo, hi)| (lo..=hi).contains(&n));
        prop_assert_eq!(Ranges::new(pairs).contains(n), expected);
    }
}

#[test]
fn the_usual_bypass_is_one_masked_comparison() {
    use super::Compiled;
    for text in [
        "syn",
        "tcp syn",
        "tcp and syn and not ack",
        "ip6 udp dscp ef",
        "not fragment",
        "flags syn,!ack",
        "tcp",
    ] {
        assert!(matches!(Rule::parse(text).unwrap().compiled, Compiled::Word(_)), "{text}");
    }
}

#[test]
fn a_rule_about_tcp_flags_alone_says_which() {
    for (text, expected) in [
        ("tcp syn", Some((0x02, 0x02))),
        ("syn", Some((0x02, 0x02))),
        ("flags syn,!ack", Some((0x12, 0x02))),
        ("syn and not ack", Some((0x12, 0x02))),
        ("flags !syn", Some((0x02, 0))),
        ("not syn", None),
        ("tcp", None),
        ("ip6 syn", None),
        ("syn ecn ce", None),
        ("syn or fin", None),
        ("any", None),
    ] {
        assert_eq!(Rule::parse(text).unwrap().tcp_flags_only(), expected, "{text}");
    }
}

#[test]
fn the_longest_rule_compiles_and_runs() {
    let text = "net ".to_owned() + &"::,".repeat(21_843) + "::";
    assert!(text.len() <= super::parse::MAX_LENGTH);
    let rule = Rule::parse(&text).unwrap();
    let key = |dst: &str| FlowKey::new(&[], "::1".parse().unwrap(), dst.parse().unwrap(), 17, 1, 2).unwrap();
    let headers = |dst| Headers { key: key(dst), l3: 0, l4: 40, flags: Flags(5), tcp_flags: 0, tos: 0 };
    assert!(rule.matches(&headers("::"), 60));
    assert!(!rule.matches(&headers("::2"), 60));
}

/// One that is too long is told so, wherever its characters end.
#[test]
fn a_file_that_is_too_long_is_no_file_of_something_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rule");
    for begin in ["any # ", "any #  "] {
        std::fs::write(&path, begin.to_owned() + &"é".repeat(super::parse::MAX_LENGTH)).unwrap();
        let error = Rule::parse_file(&path).unwrap_err().to_string();
        assert!(error.contains("longer than 65536 bytes"), "{error}");
    }
}
