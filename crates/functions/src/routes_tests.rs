//! Route files: what they mean, and what is said about those that mean nothing.

use proptest::prelude::*;

use super::*;

fn route(text: &str) -> Route {
    let routes = Routes::parse(text).unwrap();
    assert_eq!(routes.routes().len(), 1, "{text}");
    routes.routes()[0].clone()
}

fn forward(gateway: Option<&str>, port: Option<&str>, mac: Option<[u8; 6]>) -> NextHop {
    NextHop::Forward { gateway: gateway.map(|g| g.parse().unwrap()), port: port.map(str::to_owned), mac }
}

#[test]
fn routes_in_our_words_and_in_those_of_ip_route() {
    for (text, net, next, metric) in [
        ("10.0.0.0/8 via 192.0.2.1 port 1", "10.0.0.0/8", forward(Some("192.0.2.1"), Some("1"), None), 0),
        ("10.0.0.1 port wan # a host", "10.0.0.1/32", forward(None, Some("wan"), None), 0),
        (
            "2001:db8::/32 via fe80::1 dev eth0 mac 02:00:00:00:0a:FF metric 7",
            "2001:db8::/32",
            forward(Some("fe80::1"), Some("eth0"), Some([2, 0, 0, 0, 10, 255])),
            7,
        ),
        ("default via 192.0.2.1", "0.0.0.0/0", forward(Some("192.0.2.1"), None, None), 0),
        (
            "default via fe80::1 dev eth0 proto ra metric 100 pref medium",
            "::/0",
            forward(Some("fe80::1"), Some("eth0"), None),
            100,
        ),
        ("10.0.0.0/8 via inet6 fe80::1 dev e", "10.0.0.0/8", forward(Some("fe80::1"), Some("e"), None), 0),
        (
            "172.17.0.0/16 dev docker0 proto kernel scope link src 172.17.0.1 linkdown",
            "172.17.0.0/16",
            forward(None, Some("docker0"), None),
            0,
        ),
        ("blackhole 10.66.0.0/16", "10.66.0.0/16", NextHop::Blackhole, 0),
        ("unreachable default dev lo metric 4294967295", "0.0.0.0/0", NextHop::Unreachable, u32::MAX),
        ("prohibit 2001:db8::/48", "2001:db8::/48", NextHop::Prohibit, 0),
        (
            "unicast 10.0.0.0/8 dev e\n10.0.0.0/8 dev f metric 1",
            "10.0.0.0/8",
            forward(None, Some("e"), None),
            0,
        ),
    ] {
        let expected = Route { net: net.parse().unwrap(), next, metric, line: 1 };
        assert_eq!(route(text), expected, "{text}");
    }
}

/// Output of `ip route` and `ip -6 route` of iproute2 6.1.
const OF_LINUX: &str = "\
default via 10.0.0.254 dev e0
10.0.0.0/24 dev e0 proto kernel scope link src 10.0.0.1
10.2.0.0/16 via 10.0.0.254 dev e0 realms 3/4 mtu lock 1400 window 1000 rtt 100ms rttvar 50ms ssthresh 10 \
cwnd lock 12 advmss 1400 reordering 5 hoplimit 64 initcwnd 10 features ecn rto_min lock 200ms initrwnd 12 \
quickack 1 congctl reno fastopen_no_cookie 1
10.3.0.0/16 nhid 12 via 10.0.0.253 dev e0 proto bgp metric 20
throw 10.4.0.0/16
unreachable 10.5.0.0/16
10.6.0.0/16 via 10.0.0.254 dev e0 ttl-propagate disabled rt_offload rt_trap
10.7.1.1 via 10.0.0.254 dev e0 src 10.0.0.1 uid 0
    cache expires 300sec mtu 1400
2001:db8:5::/48 via fe80::1 dev e1 proto ra metric 1024 expires 299sec hoplimit 64 pref high
throw 2001:db8:7::/48 dev lo metric 1024 pref medium
2001:db8:a::/64 dev e0 proto kernel metric 256 pref medium
fe80::/64 dev e1 proto kernel metric 256 pref medium
fe80::/64 dev e0 proto kernel metric 256 pref medium
unreachable default dev lo metric 4294967295 error -101 pref medium
";

#[test]
fn what_linux_prints_is_understood() {
    let routes = Routes::parse(OF_LINUX).unwrap();
    assert_eq!(routes.skipped(), [13, 14], "each link has its own link-local network");
    let via = |gateway| forward(Some(gateway), Some("e0"), None);
    let found: Vec<_> = routes.routes().iter().map(|r| (r.net.to_string(), r.next.clone())).collect();
    let expected = [
        ("0.0.0.0/0", via("10.0.0.254")),
        ("10.0.0.0/24", forward(None, Some("e0"), None)),
        ("10.2.0.0/16", via("10.0.0.254")),
        ("10.3.0.0/16", via("10.0.0.253")),
        ("10.4.0.0/16", NextHop::Throw),
        ("10.5.0.0/16", NextHop::Unreachable),
        ("10.6.0.0/16", via("10.0.0.254")),
        ("10.7.1.1/32", via("10.0.0.254")),
        ("2001:db8:5::/48", forward(Some("fe80::1"), Some("e1"), None)),
        ("2001:db8:7::/48", NextHop::Throw),
        ("2001:db8:a::/64", forward(None, Some("e0"), None)),
        ("::/0", NextHop::Unreachable),
    ];
    assert_eq!(found, expected.map(|(net, next)| (net.to_owned(), next)));
}

/// Words that say for which packets a route is, and what becomes of them, are not passed over.
#[test]
fn words_that_mean_something_are_not_passed_over() {
    for (text, column) in [
        ("10.0.0.0/8 via 192.0.2.1 tos 0x10", 26),
        ("2001:db8::/32 from 2001:db8:1::/48 dev e", 15),
        ("10.0.0.0/8 encap mpls 100 via 192.0.2.1 dev e", 12),
        ("10.0.0.0/8 via 192.0.2.1 table 100", 26),
        ("blackhole 10.0.0.0/8 table vpn", 22),
        ("10.0.0.0/8 dev e hoplimits 64", 18),
        ("10.0.0.0/8 dev e lock 64", 18),
        ("10.0.0.0/8 dev e mtu lock", 22),
        ("10.0.0.0/8 dev e proto lock static", 29),
        ("throw 10.0.0.0/8 via 192.0.2.1", 7),
        ("fe80::/64", 1),
        ("\tnexthop via 192.0.2.1 dev e weight 1 ", 2),
    ] {
        let errors = Routes::parse(text).unwrap_err().errors;
        assert_eq!(errors.iter().map(|e| e.column).collect::<Vec<_>>(), [column], "{text}");
    }
}

/// Packets meet the tables `local` and `main` whatever rules there are.
#[test]
fn the_tables_that_all_packets_meet() {
    let text = "ff00::/8 dev e table local metric 256 pref medium\n10.0.0.0/8 dev e table main\n\
                10.1.0.0/16 dev e table 254\nlocal 10.0.0.1 dev e table 255\n10.2.0.0/16 dev e table 255\n";
    let routes = Routes::parse(text).unwrap();
    assert_eq!(routes.skipped(), [1, 4, 5]);
    let nets: Vec<_> = routes.routes().iter().map(|route| route.net.to_string()).collect();
    assert_eq!(nets, ["10.0.0.0/8", "10.1.0.0/16"]);
}

#[test]
fn routes_that_forward_nothing_are_left_out_and_named() {
    let routes = Routes::parse(
        "local 10.0.0.1 dev lo\n\n10.0.0.0/8 dev e\nbroadcast 10.0.0.255 dev e\n11.0.0.0/8 dev e dead\n",
    )
    .unwrap();
    assert_eq!(routes.skipped(), [1, 4, 5]);
    assert_eq!(routes.routes().len(), 1);
}

#[test]
fn the_table_gives_the_route() {
    let routes = Routes::parse(
        "10.0.0.0/8 port 1\ndefault port 0\n10.1.0.0/16 port 2\n::/0 port 3\nblackhole 10.1.2.0/24",
    )
    .unwrap();
    let table = routes.table();
    for (address, line) in [("10.9.9.9", 1), ("9.9.9.9", 2), ("10.1.9.9", 3), ("::1", 4), ("10.1.2.3", 5)] {
        let at = table.lookup(address.parse().unwrap()).unwrap();
        assert_eq!(routes.routes()[at as usize].line, line, "{address}");
    }
}

#[test]
fn everything_that_is_wrong_is_said_at_once_with_its_place() {
    let text = "10.0.0.1/8 port 1\n\
        defualt port 1\n\
        10.0.0.0/8\n\
        11.0.0.0/8 vai 10.0.0.1\n\
        12.0.0.0/8 via 10.0.0\n\
        13.0.0.0/8 via fe80::1\n\
        14.0.0.0/8 port\n\
        15.0.0.0/8 port 1 mac 02:00:00:00:00\n\
        16.0.0.0/8 port 1 port 2\n\
        17.0.0.0/8 port 1\n\
        17.0.0.0/8 port 2\n\
        blackhole 18.0.0.0/8 via 10.0.0.1\n\
        19.0.0.0/8 port 1 metric x\n\
        20.0.0.0/8 port 1 mac 01:00:5e:00:00:01\n\
        default nexthop via 10.0.0.1 weight 1\n";
    let errors = Routes::parse(text).unwrap_err();
    let places: Vec<_> = errors.errors.iter().map(|e| (e.line, e.column)).collect();
    let expected = [
        (1, 1),
        (2, 1),
        (3, 1),
        (4, 12),
        (5, 16),
        (6, 16),
        (7, 12),
        (8, 23),
        (9, 19),
        (11, 1),
        (12, 11),
        (13, 26),
        (14, 23),
        (15, 9),
    ];
    assert_eq!(places, expected, "{errors}");
    assert!(errors.to_string().contains("did you mean `default`?"), "{errors}");
    assert!(errors.to_string().contains("did you mean `via`?"), "{errors}");
    assert!(errors.to_string().contains("write `10.0.0.0/8`"), "{errors}");
}

#[test]
fn a_file_that_is_wrong_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("routes.txt");
    assert!(Routes::parse_file(&path).unwrap_err().to_string().contains("routes.txt"));
    std::fs::write(&path, "\nnowhere\n").unwrap();
    let error = Routes::parse_file(&path).unwrap_err().to_string();
    assert!(error.contains("routes.txt:2:1: "), "{error}");
    std::fs::write(&path, "default port 1\n").unwrap();
    assert_eq!(Routes::parse_file(&path).unwrap().routes().len(), 1);
}

fn babble() -> impl Strategy<Value = String> {
    let words = [
        "default",
        "10.0.0.0/8",
        "::/0",
        "via",
        "10.0.0.1",
        "fe80::1",
        "port",
        "1",
        "dev",
        "mac",
        "02:00:00:00:00:01",
        "metric",
        "\n",
        "#",
        "blackhole",
        "inet6",
        "local",
        "dead",
        "é",
        "proto",
        "throw",
        "mtu",
        "lock",
        "cache",
        "pref",
        "fe80::/64",
    ];
    prop::collection::vec(prop::sample::select(words.to_vec()), 0..30).prop_map(|words| words.join(" "))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_text_is_routes_or_has_errors_within_it(text in prop_oneof![".*", babble()]) {
        match Routes::parse(&text) {
            Ok(routes) => prop_assert_eq!(routes.table().v4.len() + routes.table().v6.len(), routes.routes().len()),
            Err(errors) => {
                prop_assert!((1..=20).contains(&errors.errors.len()));
                for error in &errors.errors {
                    prop_assert!(text.is_char_boundary(error.offset), "{}", error);
                    prop_assert_eq!(error.line, text[..error.offset].matches('\n').count() + 1);
                }
            }
        }
    }
}
