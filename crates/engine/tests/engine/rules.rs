//! The rule language from outside: which rules match which packets, and what is said about text that is no
//! rule.

use std::net::IpAddr;

use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::{Error as ValueError, StrDeserializer};
use slipstream::rules::{Rule, RuleFileError};
use slipstream_wire::{Headers, LinkType, classify};

/// An Ethernet frame, written out by hand.
struct Frame {
    vlans: &'static [u16],
    src: &'static str,
    dst: &'static str,
    tos: u8,
    protocol: u8,
    /// The IPv4 word with fragment flags and offset.
    fragment: u16,
    /// The transport header.
    transport: Vec<u8>,
}

impl Frame {
    fn bytes(&self) -> Vec<u8> {
        let (src, dst): (IpAddr, IpAddr) = (self.src.parse().unwrap(), self.dst.parse().unwrap());
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        for id in self.vlans {
            frame.extend([0x81, 0]);
            frame.extend(id.to_be_bytes());
        }
        let length = self.transport.len() as u16;
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                frame.extend([8, 0, 0x45, self.tos]);
                frame.extend((20 + length).to_be_bytes());
                frame.extend([0, 0]);
                frame.extend(self.fragment.to_be_bytes());
                frame.extend([64, self.protocol, 0, 0]);
                frame.extend(src.octets().into_iter().chain(dst.octets()));
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                frame.extend([0x86, 0xdd, 0x60 | self.tos >> 4, self.tos << 4, 0, 0]);
                frame.extend(length.to_be_bytes());
                frame.extend([self.protocol, 64]);
                frame.extend(src.octets().into_iter().chain(dst.octets()));
            }
            _ => panic!("addresses of different versions"),
        }
        frame.extend(&self.transport);
        frame
    }

    fn headers(&self) -> Headers {
        classify(LinkType::Ethernet, &self.bytes()).unwrap()
    }
}

fn ports(src: u16, dst: u16) -> Vec<u8> {
    [src.to_be_bytes(), dst.to_be_bytes()].concat()
}

fn tcp(src: u16, dst: u16, flags: u8) -> Vec<u8> {
    let mut header = ports(src, dst);
    header.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 2, 0, 0, 0, 0, 0]);
    header
}

fn udp(src: u16, dst: u16) -> Vec<u8> {
    let mut header = ports(src, dst);
    header.extend([0, 8, 0, 0]);
    header
}

const NONE: &[u16] = &[];

/// The packets of the table: name, headers, length on the wire.
fn packets() -> Vec<(&'static str, Headers, u32)> {
    let (a, b) = ("10.0.0.1", "192.168.1.1");
    let (c, d) = ("2001:db8::1", "2001:db8:1::1");
    let v4 = |src, dst, tos, protocol, transport| Frame {
        vlans: NONE,
        src,
        dst,
        tos,
        protocol,
        fragment: 0,
        transport,
    };
    let cut = tcp(1234, 80, 0x02)[..4].to_vec();
    [
        ("syn", v4(a, b, 0, 6, tcp(1234, 80, 0x02)), 60),
        ("synack", v4(b, a, 0, 6, tcp(80, 1234, 0x12)), 60),
        ("data", v4(a, b, 0x28, 6, tcp(1234, 80, 0x18)), 1514),
        ("fin", v4(b, a, 0, 6, tcp(80, 1234, 0x51)), 60),
        ("cut", v4(a, b, 0, 6, cut), 1514),
        ("dns", v4(a, "8.8.8.8", 0xb8, 17, udp(5353, 53)), 70),
        ("ping", v4(a, b, 0, 1, vec![8, 0, 0, 0, 0, 0, 0, 0]), 98),
        ("gre", v4("172.16.0.1", "172.16.0.2", 0, 47, vec![0; 8]), 200),
        ("fragment", Frame { fragment: 0x2000, ..v4(a, b, 0, 17, udp(7, 80)) }, 1514),
        ("six", v4(c, d, 0x03, 6, tcp(40_000, 443, 0x10)), 86),
        ("ping6", v4(d, c, 0, 58, vec![128, 0, 0, 0, 0, 0, 0, 0]), 118),
        ("tagged", Frame { vlans: &[7, 100], ..v4(a, b, 0x02, 17, udp(8000, 9000)) }, 64),
        ("untagged0", Frame { vlans: &[0], ..v4(a, b, 0x01, 132, ports(80, 81)) }, 64),
    ]
    .map(|(name, frame, len)| (name, frame.headers(), len))
    .into()
}

#[test]
fn rules_match_what_they_say() {
    let all = "syn synack data fin cut dns ping gre fragment six ping6 tagged untagged0";
    let four = "syn synack data fin cut dns ping gre fragment tagged untagged0";
    let table = [
        ("any", all),
        ("none", ""),
        ("ip", four),
        ("ip6", "six ping6"),
        ("tcp", "syn synack data fin cut six"),
        ("TCP", "syn synack data fin cut six"),
        ("udp", "dns fragment tagged"),
        ("icmp", "ping"),
        ("icmp6", "ping6"),
        ("sctp", "untagged0"),
        ("gre", "gre"),
        ("proto 47", "gre"),
        ("proto gre,1,50-58", "gre ping ping6"),
        ("ip proto 17", "dns fragment tagged"),
        ("src 10.0.0.1", "syn data cut dns ping fragment tagged untagged0"),
        ("src host 10.0.0.1 tcp", "syn data cut"),
        ("src 10.0.0.0/8 dst 192.168.0.0/16 tcp", "syn data cut"),
        ("dst net 10.0.0.0/8", "synack fin"),
        ("host 8.8.8.8", "dns"),
        ("host 8.8.8.8,172.16.0.2", "dns gre"),
        ("net 172.16.0.0/12", "gre"),
        ("net 0.0.0.0/0", four),
        ("net ::/0", "six ping6"),
        ("dst 2001:db8::/48", "ping6"),
        ("net 2001:db8::/32", "six ping6"),
        ("src 2001:db8::1", "six"),
        ("host ::ffff:10.0.0.1", ""),
        ("port 80", "syn synack data fin cut untagged0"),
        ("src port 80", "synack fin untagged0"),
        ("dst port 80", "syn data cut"),
        ("port 53,443,8000-8080", "dns six tagged"),
        ("port 40000-", "six"),
        ("port 0-65535", "syn synack data fin cut dns six tagged untagged0"),
        ("tcp port 80", "syn synack data fin cut"),
        ("tcp and dst port 80 or udp and dst port 53", "syn data cut dns"),
        ("dscp ef", "dns"),
        ("dscp 46", "dns"),
        ("dscp af11,EF", "data dns"),
        ("dscp 8-15", "data"),
        ("ecn ce", "six"),
        ("ecn 1-3", "six tagged untagged0"),
        ("ecn ect0,ect1", "tagged untagged0"),
        ("ecn not-ect dscp cs0 tcp", "syn synack fin cut"),
        ("syn", "syn synack"),
        ("tcp syn", "syn synack"),
        ("tcp syn !ack", "syn"),
        ("flags syn,!ack", "syn"),
        ("flags !syn,!fin", "data six"),
        ("ack", "synack data fin six"),
        ("fin or psh", "data fin"),
        ("ece", "fin"),
        ("rst or urg or cwr", ""),
        ("tcp not syn", "data fin cut six"),
        ("vlan", "tagged untagged0"),
        ("vlan 7", "tagged"),
        ("vlan 100-200", "tagged"),
        ("vlan 0", "untagged0"),
        ("vlan udp", "tagged"),
        ("fragment", "fragment"),
        ("length 0-64", "syn synack fin tagged untagged0"),
        ("length 1000-", "data cut fragment"),
        ("length 98,118", "ping ping6"),
        ("not ip", "six ping6"),
        ("!ip and !icmp6", "six"),
        ("not (tcp or udp)", "ping gre ping6 untagged0"),
        ("icmp or icmp6 && ip6", "ping ping6"),
        ("(icmp or icmp6) && ip6", "ping6"),
        ("icmp; gre", "ping gre"),
        ("icmp # echo\n\n# tunnels\ngre\n", "ping gre"),
        ("icmp\nor gre\nand none", "ping"),
        ("tcp and (\n  fin\n  psh\n)", "data fin"),
        ("host 8.8.8.8,\n  172.16.0.2", "dns gre"),
    ];
    for (text, expected) in table {
        let rule = Rule::parse(text).unwrap_or_else(|e| panic!("{e}"));
        let matched: Vec<_> = packets()
            .into_iter()
            .filter(|(_, headers, len)| rule.matches(headers, *len))
            .map(|(name, ..)| name)
            .collect();
        assert_eq!(matched.join(" "), sorted_like_packets(expected), "{text}");
        assert_eq!(Rule::parse(&rule.to_string()).unwrap(), rule, "{text}");
    }
}

fn sorted_like_packets(names: &str) -> String {
    let wanted: Vec<_> = names.split_whitespace().collect();
    let found: Vec<_> = packets().into_iter().map(|(n, ..)| n).filter(|n| wanted.contains(n)).collect();
    assert_eq!(found.len(), wanted.len(), "a name that is no packet: {names}");
    found.join(" ")
}

#[test]
fn rules_print_in_one_form() {
    for (text, printed) in [
        ("TCP && SYN", "tcp and syn"),
        ("tcp; udp", "tcp or udp"),
        ("(tcp) (udp or icmp)", "tcp and (udp or icmp)"),
        ("tcp or (udp or icmp)", "tcp or udp or icmp"),
        ("tcp udp or icmp", "tcp and udp or icmp"),
        ("not not tcp", "tcp"),
        ("!(tcp or udp)", "not (tcp or udp)"),
        ("proto 6", "tcp"),
        ("proto 6,17", "proto tcp,udp"),
        ("proto 200", "proto 200"),
        ("proto 1-3,4", "proto 1-4"),
        ("port 443,80,8000-8080,8081", "port 80,443,8000-8081"),
        ("src host 10.0.0.1", "src 10.0.0.1"),
        ("net 10.0.0.1/32", "host 10.0.0.1"),
        ("host 10.0.0.1,10.1.0.0/16", "net 10.0.0.1,10.1.0.0/16"),
        ("dscp 46,0-7", "dscp 0-7,ef"),
        ("ecn 3,0", "ecn not-ect,ce"),
        ("flags syn", "syn"),
        ("flags !ack , syn", "flags syn,!ack"),
        ("vlan 5-5", "vlan 5"),
        ("length 64-4294967295", "length 64-"),
    ] {
        assert_eq!(Rule::parse(text).unwrap().to_string(), printed, "{text}");
    }
}

#[test]
fn errors_say_where_what_and_how_else() {
    // Text, line, column, message, hint.
    let table = [
        ("", 1, 1, "there is no rule here", "write `any` for every packet, `none` for no packet"),
        ("# nothing\n", 2, 1, "there is no rule here", "write `any` for every packet, `none` for no packet"),
        ("tcp sny", 1, 5, "unknown word `sny`", "did you mean `syn`?"),
        ("tcp\nvlan 5 and ucp", 2, 12, "unknown word `ucp`", "did you mean `udp`?"),
        ("fragmnet", 1, 1, "unknown word `fragmnet`", "did you mean `fragment`?"),
        ("portrange 1-2", 1, 1, "unknown word `portrange`", "write `port 8000-8080`"),
        ("ef", 1, 1, "unknown word `ef`", "write `dscp ef`"),
        (
            "arp",
            1,
            1,
            "unknown word `arp`",
            "packets that aren't IP pass through untouched, so that no rule sees them",
        ),
        ("plover", 1, 1, "unknown word `plover`", ""),
        (
            "port 80 or 443",
            1,
            12,
            "the value `443` has no word before it",
            "write `port 443` or `vlan 443`, say; lists: `port 80,443`",
        ),
        (
            "10.0.0.1",
            1,
            1,
            "the address `10.0.0.1` has no word before it",
            "write `host 10.0.0.1`, `src 10.0.0.1` or `dst 10.0.0.1`; lists: `host 10.0.0.1,10.0.0.2`",
        ),
        (
            "port",
            1,
            5,
            "the rule ends where a port is missing",
            "a port is 0 to 65535; a range `1-3`, a list `1,3`",
        ),
        ("port http", 1, 6, "`http` is no port", "a port is 0 to 65535; a range `1-3`, a list `1,3`"),
        ("port 65536", 1, 6, "`65536` is no port", "a port is 0 to 65535; a range `1-3`, a list `1,3`"),
        ("port 80-70", 1, 6, "the range runs backwards", "write `70-80`"),
        (
            "port 80,",
            1,
            9,
            "the rule ends where a port is missing",
            "a port is 0 to 65535; a range `1-3`, a list `1,3`",
        ),
        ("port = 80", 1, 6, "unexpected character `=`", "a value follows its word: `port 80`, `not port 80`"),
        ("vlan 4096", 1, 6, "`4096` is no VLAN id", "a VLAN id is 0 to 4095; a range `1-3`, a list `1,3`"),
        ("dscp efe", 1, 6, "`efe` is no DSCP", "did you mean `ef`?"),
        ("dscp 64", 1, 6, "`64` is no DSCP", "a DSCP is 0 to 63 or a name; a range `1-3`, a list `1,3`"),
        ("ecn ect", 1, 5, "`ect` is no ECN code point", "did you mean `ect1`?"),
        (
            "ecn 4",
            1,
            5,
            "`4` is no ECN code point",
            "an ECN code point is 0 to 3 or a name; a range `1-3`, a list `1,3`",
        ),
        (
            "ecn",
            1,
            4,
            "the rule ends where an ECN code point is missing",
            "an ECN code point is 0 to 3 or a name; a range `1-3`, a list `1,3`",
        ),
        ("proto tpc", 1, 7, "`tpc` is no protocol", "did you mean `tcp`?"),
        ("length -", 1, 8, "`-` is no length", "write a length like `64`, `64-128` or `64-`"),
        ("length +5", 1, 8, "unexpected character `+`", ""),
        ("flags syn,akc", 1, 11, "`akc` is no TCP flag", "did you mean `ack`?"),
        ("flags syn,!syn", 1, 12, "`syn` can't be both set and clear", ""),
        ("flags", 1, 6, "the rule ends where a TCP flag is missing", "write `flags syn,!ack`"),
        (
            "src 10.0.0.1/8",
            1,
            5,
            "`10.0.0.1/8` has bits set beyond its prefix",
            "write `10.0.0.0/8` for the network, `10.0.0.1` for the address",
        ),
        (
            "src 10.0.0.0/33",
            1,
            5,
            "`10.0.0.0/33` is no address",
            "the prefix of an IPv4 address is 0 to 32 bits",
        ),
        ("src ::/129", 1, 5, "`::/129` is no address", "the prefix of an IPv6 address is 0 to 128 bits"),
        (
            "src example.org",
            1,
            5,
            "`example.org` is no address",
            "names aren't looked up; write `10.0.0.1`, `10.0.0.0/8` or `2001:db8::/32`",
        ),
        (
            "src or dst 10.0.0.1",
            1,
            5,
            "expected an address, found `or`",
            "write `host` or `port` for either side",
        ),
        (
            "host\n10.0.0.1",
            1,
            5,
            "the rule ends where an address is missing",
            "write `10.0.0.1`, `10.0.0.0/8` or `2001:db8::/32`",
        ),
        ("tcp and", 1, 8, "the rule ends where a rule is missing", ""),
        ("and tcp", 1, 1, "a rule is missing before `and`", ""),
        ("tcp or || udp", 1, 8, "a rule is missing before `||`", ""),
        ("tcp & udp", 1, 5, "unexpected character `&`", "write `and` or `&&`"),
        ("tcp, udp", 1, 4, "unexpected `,`", "lists are for values: `port 80,443`; join rules with `or`"),
        ("(tcp", 1, 1, "this parenthesis is never closed", ""),
        ("tcp)", 1, 4, "this parenthesis was never opened", ""),
        ("()", 1, 2, "unexpected `)`: a rule is missing before it", ""),
        (
            "tcp[13] = 2",
            1,
            4,
            "unexpected character `[`",
            "rules ask for TCP flags by name, `syn`, and can't ask for other bytes of a packet",
        ),
        ("tcp \u{e9}", 1, 5, "unexpected character `\u{e9}`", ""),
    ];
    for (text, line, column, message, hint) in table {
        let error = Rule::parse(text).expect_err(text);
        let got = (error.line, error.column, error.message.as_str(), error.hint.as_deref().unwrap_or(""));
        assert_eq!(got, (line, column, message, hint), "{text:?}");
    }
}

#[test]
fn errors_show_the_line_with_a_caret() {
    let shown = |text: &str| Rule::parse(text).unwrap_err().to_string();
    assert_eq!(
        shown("udp\r\n\ttcp prt 80 # web\r\nicmp"),
        "line 2, column 6: unknown word `prt`\n  |  tcp prt 80 # web\n  |      ^^^\n  = hint: did you mean `port`?"
    );
    assert_eq!(
        shown("tcp and"),
        "line 1, column 8: the rule ends where a rule is missing\n  | tcp and\n  |        ^"
    );
    let long = format!("{} \u{e9} {}", "tcp or".repeat(5_000), "udp".repeat(5_000));
    assert!(shown(&long).len() < 400, "a long line is cut");
}

#[test]
fn depth_and_length_are_bounded() {
    let nested = |n: usize| "(".repeat(n) + "tcp" + &")".repeat(n);
    assert_eq!(Rule::parse(&nested(64)).unwrap(), Rule::parse("tcp").unwrap());
    let error = Rule::parse(&nested(65)).unwrap_err();
    assert_eq!(
        (error.column, error.message.as_str()),
        (65, "more than 64 parentheses and `not`s within one another")
    );
    assert!(Rule::parse(&("!".repeat(64) + "tcp")).is_ok());
    assert!(Rule::parse(&("!".repeat(65) + "tcp")).is_err());
    assert!(Rule::parse(&"(".repeat(60_000)).is_err());

    let long = |n: usize| "tcp".to_owned() + &" ".repeat(n - 3);
    assert!(Rule::parse(&long(65_536)).is_ok());
    assert_eq!(Rule::parse(&long(65_537)).unwrap_err().message, "the rule is longer than 65536 bytes");
}

#[test]
fn what_can_not_match_is_known_beforehand() {
    for text in [
        "none",
        "syn udp",
        "tcp and none",
        "ip ip6",
        "not any",
        "flags syn,ack !ack",
        "ecn ce ecn 0",
        "syn proto 17",
    ] {
        assert!(Rule::parse(text).unwrap().is_never(), "{text}");
    }
    for text in ["any", "none or any", "not none", "tcp or any"] {
        assert!(Rule::parse(text).unwrap().is_always(), "{text}");
    }
    assert!(Rule::never().is_never() && !Rule::never().is_always());
    assert!(Rule::always().is_always() && !Rule::always().is_never());
    assert_eq!(Rule::never(), Rule::parse("none").unwrap());
    assert_eq!(Rule::always(), Rule::parse("any").unwrap());
}

#[test]
fn rules_are_read_from_configuration_as_strings() {
    let read = |text: &'static str| {
        let text: StrDeserializer<'_, ValueError> = text.into_deserializer();
        Rule::deserialize(text)
    };
    assert_eq!(read("tcp syn").unwrap(), Rule::parse("tcp syn").unwrap());
    assert!(read("tcp sny").unwrap_err().to_string().contains("did you mean `syn`?"));
}

#[test]
fn rules_are_read_from_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bypass.rules");
    std::fs::write(&path, "# opening and closing\ntcp syn\ntcp fin\n").unwrap();
    assert_eq!(Rule::parse_file(&path).unwrap().to_string(), "tcp and syn or tcp and fin");

    std::fs::write(&path, "tcp\nsny\n").unwrap();
    let error = Rule::parse_file(&path).unwrap_err();
    assert!(matches!(error, RuleFileError::Syntax { .. }));
    assert!(
        error.to_string().starts_with(&format!("{}: line 2, column 1: unknown word", path.display())),
        "{error}"
    );

    let missing = Rule::parse_file(folder.path().join("missing")).unwrap_err();
    assert!(matches!(missing, RuleFileError::Read { .. }));

    std::fs::write(&path, "tcp\n".repeat(20_000)).unwrap();
    assert!(matches!(Rule::parse_file(&path).unwrap_err(), RuleFileError::Syntax { .. }));
}

#[test]
fn the_book_says_what_is_so() {
    let page = include_str!("../../../../book/src/rules.md");
    let (_, asked) = page.split_once("## What can be asked").unwrap();
    let rows = asked.lines().filter(|line| line.starts_with("| `"));
    let cells: Vec<_> = rows.map(|row| row.split('|').nth(1).unwrap()).collect();
    assert!(cells.len() > 20, "{cells:?}");
    for text in cells.iter().flat_map(|cell| cell.split('`').skip(1).step_by(2)) {
        Rule::parse(text).unwrap_or_else(|e| panic!("{e}"));
    }
    for text in ["icmp\ntcp sny", "src 10.1.2.3/8"] {
        let error = Rule::parse(text).unwrap_err().to_string();
        assert!(page.contains(&error), "{error}");
    }
}
