//! Rule files and iptables-save: what people write, what it means, and what they are told where it means
//! nothing.

use proptest::prelude::*;
use slipstream_wire::{Flags, FlowKey, Headers};

use super::*;

/// A packet in words: `tcp 10.0.0.1:1234 > 10.0.0.2:80 syn`, ports, flags, `dscp N`, `vlan N` and `fragment`
/// where wanted.
pub(super) fn packet(text: &str) -> PacketFields {
    PacketFields::new(&headers(text), 60)
}

fn headers(text: &str) -> Headers {
    let mut words = text.split(' ');
    let proto = match words.next().unwrap() {
        "tcp" => 6,
        "udp" => 17,
        "icmp" => 1,
        other => other.parse().unwrap(),
    };
    let mut end = || {
        let word = words.find(|w| *w != ">").unwrap();
        match word.parse::<std::net::SocketAddr>() {
            Ok(socket) => (socket.ip(), socket.port()),
            Err(_) => (word.parse().unwrap(), 0),
        }
    };
    let ((src, src_port), (dst, dst_port)) = (end(), end());
    let rest: Vec<&str> = words.collect();
    let number = |name: &str| {
        let at = rest.iter().position(|w| *w == name)?;
        rest[at + 1].parse::<u16>().ok()
    };
    let fragment = rest.contains(&"fragment");
    let vlans: Vec<u16> = number("vlan").into_iter().collect();
    let flag = |name: &str, bit: u8| if rest.contains(&name) { bit } else { 0 };
    let bit = |set: bool, bit: u8| if set { bit } else { 0 };
    let ports = matches!(proto, 6 | 17 | 132) && !fragment;
    Headers {
        key: FlowKey::new(&vlans, src, dst, proto, src_port, dst_port).unwrap(),
        l3: 14,
        l4: 34,
        flags: Flags(
            bit(src.is_ipv6(), Flags::IPV6)
                | bit(fragment, Flags::FRAGMENT)
                | bit(ports, Flags::PORTS)
                | bit(ports && proto == 6, Flags::TCP),
        ),
        tcp_flags: flag("fin", 1) | flag("syn", 2) | flag("rst", 4) | flag("ack", 16),
        tos: number("dscp").map_or(0, |n| (n as u8) << 2),
    }
}

/// Says for each packet which line decides and how: `allow 3`, `deny default`.
pub(super) fn check(set: &RuleSet, cases: &[(&str, &str)]) {
    for method in [Method::Linear, Method::Fast] {
        let firewall = Firewall::new(set.clone(), method);
        for (text, expected) in cases {
            let (text, state) = text.split_once(" state ").unwrap_or((text, "untracked"));
            let state = ConnState::NAMES.iter().find(|(n, _)| *n == state).unwrap().1;
            let mut passed = String::new();
            let line = |i: u32| set.rules()[i as usize].line;
            let decision = firewall.decide(&packet(text).with_state(state), |i, action| {
                let name = match action {
                    Action::Count => "count",
                    Action::Log { .. } => "log",
                    _ => return,
                };
                passed += &format!("{name} {}, ", line(i));
            });
            let verdict = format!("{:?}", decision.verdict).to_lowercase();
            let by = decision.rule.map_or("default".to_owned(), |i| line(i).to_string());
            assert_eq!(format!("{passed}{verdict} {by}"), *expected, "{method:?}: {text}");
        }
    }
}

#[test]
fn the_first_rule_that_decides_counts() {
    let set = RuleSet::parse(
        "# our own words\n\
         allow state established,related\n\
         deny src 10.66.0.0/16\n\
         log 1/100 tcp syn !ack\n\
         count udp port 53\n\
         \n\
         reset tcp dst port 25   # no mail\n\
         allow tcp dst 192.0.2.0/24,198.51.100.7 port 80,443\n\
         deny fragment\n\
         allow vlan 100-200\n\
         allow ip6 dscp ef\n\
         deny not (udp or icmp)\n\
         default allow\n",
    )
    .unwrap();
    check(
        &set,
        &[
            ("tcp 10.66.1.1:1 > 192.0.2.1:80 state established", "allow 2"),
            ("tcp 10.66.1.1:1 > 192.0.2.1:80", "deny 3"),
            ("tcp 10.67.1.1:1 > 192.0.2.1:80 syn", "log 4, allow 8"),
            ("tcp 10.67.1.1:1 > 192.0.2.1:80 syn ack", "allow 8"),
            ("tcp 10.67.1.1:443 > 198.51.100.7:9", "allow 8"),
            ("tcp 10.67.1.1:443 > 198.51.100.8:9", "deny 12"),
            ("tcp 10.67.1.1:1 > 192.0.2.1:25 syn", "log 4, reset 7"),
            ("udp 10.67.1.1:53 > 192.0.2.1:25", "count 5, allow default"),
            ("udp 10.67.1.1 > 192.0.2.1 fragment", "deny 9"),
            ("tcp 10.0.0.1:1 > 10.0.0.2:2 vlan 150", "allow 10"),
            ("tcp 10.0.0.1:1 > 10.0.0.2:2 vlan 201", "deny 12"),
            ("tcp [2001:db8::1]:1 > [2001:db8::2]:2 dscp 46", "allow 11"),
            ("tcp 10.0.0.1:1 > 10.0.0.2:2 dscp 46", "deny 12"),
            ("icmp 10.0.0.1 > 10.0.0.2", "allow default"),
            ("47 10.0.0.1 > 10.0.0.2", "deny 12"),
        ],
    );
    let reads = set.reads();
    assert_eq!((reads.tcp_flags(), reads.tos(), reads.length, reads.state), (0x12, 0xfc, false, true));
    let reads = |text| RuleSet::parse(text).unwrap().reads();
    let ports = Reads { word: Flags::PORTS.into(), ..Reads::default() };
    assert_eq!(reads("allow tcp port 80\ndeny vlan 7"), ports);
    assert_eq!(reads("allow length 0-100"), Reads { length: true, ..Reads::default() });
    assert_eq!(reads("allow fragment"), Reads { word: Flags::FRAGMENT.into(), ..Reads::default() });
}

#[test]
fn without_a_default_what_no_rule_allows_is_denied() {
    let set = RuleSet::parse("allow tcp").unwrap();
    check(&set, &[("udp 10.0.0.1:1 > 10.0.0.2:2", "deny default")]);
}

/// A file that was emptied by mistake would deny everything.
#[test]
fn text_without_a_rule_is_an_error_unless_it_has_a_default() {
    for text in ["", "\n", "# allow tcp\n\n  # deny any"] {
        let errors = RuleSet::parse(text).unwrap_err().errors;
        let [error] = errors.as_slice() else { panic!("{text:?}: {errors:?}") };
        assert!(error.message.contains("no rule"), "{error}");
        assert_eq!(error.hint.as_deref(), Some("write `default deny` if that is meant"));
    }
    assert_eq!(RuleSet::parse("default deny").unwrap().default_verdict(), Verdict::Deny);
    assert_eq!(RuleSet::parse("# open\ndefault allow\n").unwrap().default_verdict(), Verdict::Allow);
    // The mistake is told, and not that nothing is left.
    assert_eq!(RuleSet::parse("accept any").unwrap_err().errors.len(), 1);
}

#[test]
fn everything_that_is_wrong_is_said_at_once_with_its_place() {
    let errors = RuleSet::parse(
        "allow tcp port 80\n\
         accept any\n\
         deny tcp sny\n\
         \u{20}\u{20}deny\n\
         log 1/0 any\n\
         allow state new,establishd tcp\n\
         default drop\n\
         default deny\n\
         default allow\n\
         default deny now\n",
    )
    .unwrap_err()
    .in_file("acl.txt");
    let places: Vec<_> = errors.errors.iter().map(|e| (e.line, e.column)).collect();
    assert_eq!(places, [(2, 1), (3, 10), (4, 7), (5, 5), (6, 13), (7, 9), (9, 8), (10, 14)]);
    let hints: Vec<_> = errors.errors.iter().map(|e| e.hint.as_deref().unwrap_or("")).collect();
    assert_eq!(
        hints[..4],
        [
            "did you mean `allow`?",
            "did you mean `syn`?",
            "write `any` for every packet",
            "write `log 1/100` for one packet in a hundred"
        ]
    );
    assert!(errors.to_string().starts_with("acl.txt:2:1: `accept` is no action"), "{errors}");
}

#[test]
fn errors_end_at_twenty() {
    let errors = RuleSet::parse(&"nonsense\n".repeat(30)).unwrap_err();
    assert_eq!((errors.errors.len(), errors.more), (20, true));
    let errors = RuleSet::parse(&"nonsense\n".repeat(20)).unwrap_err();
    assert_eq!((errors.errors.len(), errors.more), (20, false));
}

#[test]
fn a_rule_that_comes_down_to_too_much_is_an_error() {
    let ports = (0..70).map(|i| (i * 10).to_string()).collect::<Vec<_>>().join(",");
    let error = RuleSet::parse(&format!("allow src port {ports} and dst port {ports}")).unwrap_err();
    assert!(error.errors[0].message.contains("more than 4096"), "{error}");
    assert!(RuleSet::parse(&format!("allow src port {ports}\nallow dst port {ports}")).is_ok());
}

const SAVED: &str = r#"# Generated by iptables-save v1.8.9 on Mon Jan  1 00:00:00 2024
*nat
:PREROUTING ACCEPT [0:0]
-A PREROUTING -i eth0 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.0.0.1
COMMIT
*filter
:INPUT DROP [10:200]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [5:100]
:web - [0:0]
:blocked - [0:0]
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -m comment --comment "the \"bad\" ones, -j DROP" -j blocked
-A FORWARD -p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN -m multiport --dports 80,443,8000:8080 -j web
[3:180] -A FORWARD ! -s 10.0.0.0/8 -p udp -m udp ! --sport 53 -j REJECT --reject-with icmp-port-unreachable
-A FORWARD -p icmp
-A FORWARD -d 192.0.2.0/255.255.255.0 -m dscp --dscp-class EF -j ACCEPT
-A FORWARD -m iprange --src-range 10.9.0.1-10.9.0.6 -j LOG --log-prefix "nine: "
-A FORWARD -p tcp -m tcp ! --syn -g web
-A blocked -s 10.66.0.1/32 -j RETURN
-A blocked -s 10.66.0.0/16 -j DROP
-A web -s 10.0.0.7/32 -j RETURN
-A web -d 192.0.2.0/24 -j ACCEPT
COMMIT
"#;

#[test]
fn iptables_save_means_what_iptables_does() {
    let set = RuleSet::parse_iptables(SAVED, "FORWARD").unwrap();
    check(
        &set,
        &[
            ("tcp 10.66.0.2:1 > 192.0.2.1:80 state established", "allow 12"),
            ("tcp 10.66.0.2:1 > 192.0.2.1:80 syn", "deny 21"),
            // Comes back from `blocked`, and goes on.
            ("tcp 10.66.0.1:1 > 192.0.2.1:80 syn", "allow 23"),
            ("tcp 10.0.0.7:1 > 192.0.2.1:80 syn", "deny default"),
            ("tcp 10.0.0.1:1 > 192.0.2.1:8081 syn", "deny default"),
            ("tcp 10.0.0.1:1 > 192.0.2.1:8080 syn", "allow 23"),
            ("tcp 10.0.0.1:1 > 192.0.3.1:8080 syn", "deny default"),
            ("udp 11.0.0.1:1 > 192.0.3.1:1", "reset 15"),
            ("udp 11.0.0.1:53 > 192.0.3.1:1", "deny default"),
            ("udp 10.0.0.1:1 > 192.0.3.1:1", "deny default"),
            ("udp 11.0.0.1 > 192.0.3.1 fragment", "deny default"),
            ("icmp 10.0.0.1 > 192.0.3.1", "count 16, deny default"),
            ("icmp 10.0.0.1 > 192.0.2.1 dscp 46", "count 16, allow 17"),
            ("47 10.9.0.6 > 192.0.3.1", "log 18, deny default"),
            ("47 10.9.0.7 > 192.0.3.1", "deny default"),
            // Never comes back from a chain that it went to.
            ("tcp 10.0.0.1:1 > 192.0.2.1:8081 ack", "allow 23"),
            ("tcp 10.0.0.7:1 > 192.0.2.1:8081 ack", "deny 22"),
            ("tcp 10.0.0.1:1 > 192.0.3.1:8081 ack", "deny 19"),
            ("tcp [2001:db8::1]:1 > [2001:db8::2]:80 syn", "deny default"),
        ],
    );
    let output = RuleSet::parse_iptables(SAVED, "OUTPUT").unwrap();
    check(&output, &[("udp 10.0.0.1:1 > 10.0.0.2:2", "allow default")]);
}

#[test]
fn ip6tables_save_is_about_ipv6() {
    for program in ["ip6tables-save", "ip6tables-nft-save"] {
        let text = format!(
            "# Generated by {program} v1.8.9\n*filter\n:FORWARD DROP [0:0]\n-A FORWARD -j ACCEPT\nCOMMIT\n"
        );
        let set = RuleSet::parse_iptables(&text, "FORWARD").unwrap();
        check(&set, &[("58 2001:db8::1 > ::2", "allow 4"), ("icmp 10.0.0.1 > 10.0.0.2", "deny default")]);
    }
    let text = "*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -s 2001:db8::/32 -p ipv6-icmp -j ACCEPT\n-A FORWARD -j DROP\nCOMMIT\n";
    let set = RuleSet::parse_iptables(text, "FORWARD").unwrap();
    check(
        &set,
        &[
            ("58 2001:db8::1 > ::2", "allow 3"),
            ("58 2001:db9::1 > ::2", "deny 4"),
            ("icmp 10.0.0.1 > 10.0.0.2", "allow default"),
        ],
    );
}

#[test]
fn what_iptables_asks_and_rules_can_not_is_an_error_not_a_wider_rule() {
    let text = "*filter\n:FORWARD DROP [0:0]\n:loop - [0:0]\n\
        -A FORWARD -i eth0 -j ACCEPT\n\
        -A FORWARD -m recent --update -j LOG\n\
        -A FORWARD -p tcp --dprot 80 -j ACCEPT\n\
        -A FORWARD -p tcp --dport 99999 -j ACCEPT\n\
        -A FORWARD -s 10.0.0.300 -j ACCEPT\n\
        -A FORWRAD -j ACCEPT\n\
        -A FORWARD -m comment --comment \"open\n\
        -A FORWARD -p icmp --fragment -j ACCEPT\n\
        -I FORWARD -j ACCEPT\n\
        -A FORWARD -s 10.0.0.1\n\
        -A FORWARD -s ::1\n\
        COMMIT\n";
    let errors = RuleSet::parse_iptables(text, "FORWARD").unwrap_err();
    let places: Vec<_> = errors.errors.iter().map(|e| (e.line, e.column)).collect();
    let expected =
        [(4, 12), (5, 15), (6, 19), (7, 27), (8, 15), (9, 4), (10, 33), (11, 20), (12, 1), (14, 15)];
    assert_eq!(places, expected, "{errors}");
    assert!(errors.errors.iter().all(|e| e.hint.is_some() || e.message.contains("quote")), "{errors}");
    let circle = "*filter\n:FORWARD DROP\n:a -\n:b -\n-A FORWARD -j a\n-A a -j b\n-A b -j a\nCOMMIT\n";
    let error = RuleSet::parse_iptables(circle, "FORWARD").unwrap_err();
    assert!(error.to_string().contains("calls itself"), "{error}");
    assert_eq!(error.errors[0].line, 7);
    let nowhere = "*filter\n:FORWARD DROP\n-A FORWARD -j nowhere\nCOMMIT\n";
    let error = RuleSet::parse_iptables(nowhere, "FORWARD").unwrap_err();
    assert!(error.to_string().contains("no chain `nowhere`"), "{error}");
    assert!(RuleSet::parse_iptables(SAVED, "web").unwrap_err().to_string().contains("has no policy"));
    assert!(RuleSet::parse_iptables("*nat\nCOMMIT\n", "FORWARD").is_err());
}

#[test]
fn a_table_of_iptables_save_ends_with_commit_and_not_with_the_file() {
    let errors = |text: &str| {
        let errors = RuleSet::parse_iptables(text, "FORWARD").unwrap_err().errors;
        errors.into_iter().map(|e| (e.line, e.column, e.message)).collect::<Vec<_>>()
    };
    let whole =
        "*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -s 10.0.0.1 -j DROP\n-A FORWARD -j DROP\nCOMMIT\n";
    let other = "*mangle\n:FORWARD ACCEPT [0:0]\n-A FORWARD -j MARK --set-mark 1\nCOMMIT\n";
    for text in [whole.to_owned(), whole.trim_end().to_owned(), format!("{other}{whole}\n# done\n{other}")] {
        assert_eq!(RuleSet::parse_iptables(&text, "FORWARD").unwrap().rules().len(), 2, "{text}");
    }
    // Cut short wherever a line ends, and within the last one.
    for (end, _) in whole.match_indices('\n').take(4) {
        let line = whole[..end].matches('\n').count() + 1;
        for cut in [&whole[..end], &whole[..=end]] {
            let found = errors(cut);
            assert_eq!((found[0].0, found[0].1), (line, 1), "{cut:?}");
            assert!(found[0].2.contains("`COMMIT` is expected behind this line"), "{found:?}");
        }
    }
    assert!(errors(whole.strip_suffix("IT\n").unwrap())[0].2.contains("found `COMM`"));
    assert_eq!(errors(&format!("{whole}*nat\n-A PREROUTING -j ACCEPT\n"))[0].0, 7);
    // Behind the end of the table.
    let late = format!("{whole}-A FORWARD -s 10.0.0.2 -j ACCEPT\n");
    assert_eq!(errors(&late), [(6, 1, "this line is in no table".to_owned())]);
    assert_eq!(errors(&format!("{whole}COMMIT\n"))[0].0, 6);
    // A table within a table.
    let open = whole.replace("COMMIT\n", other);
    let found = errors(&open);
    assert_eq!((found[0].0, found[0].1), (5, 1), "{found:?}");
    assert!(found[0].2.contains("`filter` is not closed before this one"), "{found:?}");
}

#[test]
fn protocols_have_the_names_that_iptables_prints() {
    let text = "*filter\n:FORWARD DROP [0:0]\n-A FORWARD -p ipencap -j ACCEPT\n-A FORWARD -p ipip -j REJECT\n\
        -A FORWARD ! -p ospf -s 10.9.0.0/16 -j ACCEPT\n-A FORWARD -p hopopt -s 10.8.0.0/16 -j ACCEPT\nCOMMIT\n";
    check(
        &RuleSet::parse_iptables(text, "FORWARD").unwrap(),
        &[
            ("4 10.0.0.1 > 10.0.0.2", "allow 3"),
            ("94 10.0.0.1 > 10.0.0.2", "reset 4"),
            ("88 10.9.0.1 > 10.0.0.2", "allow 5"),
            ("89 10.9.0.1 > 10.0.0.2", "deny default"),
            // 0 means all, whatever it is called.
            ("88 10.8.0.1 > 10.0.0.2", "allow 6"),
        ],
    );
    let ours = RuleSet::parse("allow proto ipencap\nallow proto ipv6-nonxt,etherip\ndeny ipip\n").unwrap();
    check(
        &ours,
        &[
            ("4 10.0.0.1 > 10.0.0.2", "allow 1"),
            ("97 10.0.0.1 > 10.0.0.2", "allow 2"),
            ("94 10.0.0.1 > 10.0.0.2", "deny default"),
        ],
    );
}

#[test]
fn chains_that_double_at_every_call_end_in_an_error() {
    let mut text = String::from("*filter\n:FORWARD DROP\n");
    (0..30).for_each(|i| text += &format!(":c{i} -\n"));
    text += "-A FORWARD -j c0\n";
    (0..29).for_each(|i| text += &format!("-A c{i} -j c{0}\n-A c{i} -j c{0}\n", i + 1));
    text += "-A c29 -j ACCEPT\nCOMMIT\n";
    let error = RuleSet::parse_iptables(&text, "FORWARD").unwrap_err();
    assert!(error.to_string().contains("times in all"), "{error}");
}

/// A condition of random chains, with a function that tells if a packet from 10.0.0.`host` to TCP port `port`
/// matches.
type Asks = (&'static str, fn(u8, u16) -> bool);
const ASKS: [Asks; 6] = [
    ("", |_, _| true),
    ("-s 10.0.0.1/32", |host, _| host == 1),
    ("! -s 10.0.0.0/30", |host, _| host > 3),
    ("-s 10.0.0.0/31 -p tcp --dport 80", |host, port| host < 2 && port == 80),
    ("-p tcp -m multiport ! --dports 80,443:445", |_, port| port != 80 && !(443..=445).contains(&port)),
    ("-p udp", |_, _| false),
];
const TARGETS: [&str; 8] = ["-j ACCEPT", "-j DROP", "-j REJECT", "-j RETURN", "-j LOG", "", "-j c", "-g c"];

/// Goes through a chain and those that it calls, as the kernel does. Inner `None`: at the end, or back from
/// it.
fn walk(
    chains: &[Vec<(usize, usize, usize)>],
    at: usize,
    packet: (u8, u16),
    passed: &mut usize,
) -> Option<Verdict> {
    for &(asks, target, to) in &chains[at] {
        if !ASKS[asks].1(packet.0, packet.1) {
            continue;
        }
        let to = at + 1 + to;
        match TARGETS[target] {
            "-j ACCEPT" => return Some(Verdict::Allow),
            "-j DROP" => return Some(Verdict::Deny),
            "-j REJECT" => return Some(Verdict::Reset),
            "-j RETURN" => return None,
            "-g c" if to < chains.len() => return walk(chains, to, packet, passed),
            "-j c" if to < chains.len() => {
                if let Some(verdict) = walk(chains, to, packet, passed) {
                    return Some(verdict);
                }
            }
            // Without a target, or without a chain left to call.
            _ => *passed += 1,
        }
    }
    None
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn chains_of_iptables_decide_as_the_kernel_walks_them(
        chains in prop::collection::vec(
            prop::collection::vec((0..ASKS.len(), 0..TARGETS.len(), 0..2_usize), 0..6), 1..5),
    ) {
        let mut text = String::from("*filter\n:FORWARD DROP\n");
        (1..chains.len()).for_each(|i| text += &format!(":c{i} -\n"));
        for (i, chain) in chains.iter().enumerate() {
            let name = if i == 0 { "FORWARD".to_owned() } else { format!("c{i}") };
            for &(asks, target, to) in chain {
                let to = i + 1 + to;
                let target = match TARGETS[target] {
                    target if !target.ends_with(" c") => target.to_owned(),
                    target if to < chains.len() => format!("{target}{to}"),
                    _ => String::new(),
                };
                text += &format!("-A {name} {} {target}\n", ASKS[asks].0);
            }
        }
        text += "COMMIT\n";
        let set = RuleSet::parse_iptables(&text, "FORWARD").map_err(|e| TestCaseError::fail(e.to_string()))?;
        for method in [Method::Linear, Method::Fast] {
            let firewall = Firewall::new(set.clone(), method);
            for (host, port) in (0..5).flat_map(|host| [79, 80, 443, 446].map(|port| (host, port))) {
                let packet = packet(&format!("tcp 10.0.0.{host}:1 > 10.0.1.1:{port}"));
                let (mut passed, mut expected) = (0, 0);
                let verdict = walk(&chains, 0, (host, port), &mut expected).unwrap_or(Verdict::Deny);
                let decision = firewall.decide(&packet, |_, action| {
                    passed += usize::from(!matches!(action, Action::Skip { .. }));
                });
                prop_assert_eq!((decision.verdict, passed), (verdict, expected), "{:?} {} {}\n{}", method, host, port, text);
            }
        }
    }
}

/// Words of both formats in any order.
fn babble() -> impl Strategy<Value = String> {
    let words = [
        "allow",
        "deny",
        "default",
        "log",
        "1/3",
        "state",
        "new",
        "tcp",
        "port",
        "80",
        "10.0.0.0/8",
        "\n",
        "#",
        "any",
        "not",
        "*filter",
        ":FORWARD",
        "DROP",
        "-",
        "-A",
        "FORWARD",
        "-s",
        "-p",
        "--dport",
        "!",
        "-j",
        "web",
        ":web",
        "RETURN",
        "\"",
        "\\",
        "é",
        "[1:2]",
        "-m",
        "COMMIT",
        "--syn",
        "-g",
    ];
    prop::collection::vec(prop::sample::select(words.to_vec()), 0..40).prop_map(|words| words.join(" "))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_text_is_a_rule_set_or_has_errors_within_it(text in prop_oneof![".*", babble()]) {
        for result in [RuleSet::parse(&text), RuleSet::parse_iptables(&text, "FORWARD")] {
            if let Err(errors) = result {
                prop_assert!((1..=20).contains(&errors.errors.len()));
                for error in &errors.errors {
                    prop_assert!(text.is_char_boundary(error.offset), "{}", error);
                    prop_assert_eq!(error.line, text[..error.offset].matches('\n').count() + 1);
                }
            }
        }
    }
}
