//! Flow contexts change nothing: with them and without, however few there are and on any number of threads, a
//! chain of functions gives the same bytes at the same times, the same drops and counters. Functions stand in
//! any order; flows pause around every timeout; packets are of every kind that a function treats apart.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use proptest::prelude::*;
use slipstream::pipeline::Plan;
use slipstream::runtime::{ContextCounts, Driver};

use super::build;
use super::modes::{self, Burst, SECOND};

/// Timeouts of the functions, in ns: pauses lie around them.
const TIMES: &[u64] = &[SECOND / 10, SECOND, 2 * SECOND, 10 * SECOND, 20 * SECOND];

/// Functions of which chains are made; `{n}` is their place.
const FUNCTIONS: &[&str] = &[
    "flow_stats(export=\"flows{n}.ipfix\", idle=100ms, active=1s, flows=6)",
    "flow_stats(export=\"flows{n}.ipfix\", idle=2s, active=10s)",
    "firewall(rules=\"plain\")",
    "firewall(rules=\"detailed\")",
    "firewall(rules=\"iptables\", format=iptables, chain=FORWARD)",
    "firewall(rules=\"lengths\")",
    "firewall(rules=\"stateful\", connections=8)",
    "firewall(rules=\"plain\", cache=16)",
    "router(interfaces=[\"wan 10.0.1.254/24 02:00:00:00:00:fe\"], routes=\"routes\", reload=1s, icmp_rate=2, \
     neighbours=[\"10.0.1.1 02:00:00:00:00:fe\"], neighbour_timeout=2s, neighbour_hold=3)",
    "router(interfaces=[\"wan 10.0.1.254/24 02:00:00:00:00:fe\"], neighbour_timeout=2s, icmp_rate=2)",
    "router(interfaces=[\"wan 10.0.1.254/24 02:00:00:00:00:fe\"], routes=\"routes\", reverse_path=strict, icmp_rate=2, \
     neighbours=[\"10.0.1.1 02:00:00:00:00:fe\"])",
    "nat(pool=[192.0.2.1], inside=[10.0.0.0/8], ports=\"1024-1031\", sessions=8, udp_timeout=10s, tcp_timeout=20s)",
    "nat(pool=[192.0.2.1])",
    "nptv6(inside=2001:db8::/48, external=2001:db8:5::/48)",
    "meter(per=flow, cir=8kbps, cbs=200B, ebs=100B, mark=af1, flows=4)",
    "meter(cir=8kbps, cbs=300B, ebs=100B, mark=af2)",
    "switch(ports=[\"t: tcp\"])",
    "counter",
    "limit(rate=3pps)",
    "vlan_push(id=7)",
    "reframe(hold=20ms, burst=4)",
    "firewall(rules=\"reset\", connections=8)",
    "balancer(service=\"10.0.1.1:80\", protocol=udp, backends=[10.1.0.1, \"10.1.0.2 weight=2\"], mode=nat, idle=1s, \
     connections=3)",
    "balancer(service=\"10.0.1.1:80\", protocol=tcp, backends=[10.1.0.1, 10.1.0.2], mode=dsr, source=10.9.0.1, mtu=576, \
     idle=1s)",
    "measure(task=heavy-hitters, key=5tuple, sketch=exact, epoch=7p, keep=100, memory=64KiB)",
    "l2fwd(ports=[p, q], ageing=1s, stations=16)",
];

/// Functions with two ways through them: their ports on the way there, then those on the way back. Functions
/// without ports of two ways stand in the way there alone.
const TWO_WAY: &[(&str, [&str; 4])] = &[
    ("firewall(rules=\"stateful\", connections=8)", ["", "", "[back]", "[back]"]),
    ("firewall(rules=\"reset\", connections=8)", ["", "", "[back]", "[back]"]),
    ("firewall(rules=\"detailed\")", ["", "", "[back]", "[back]"]),
    (
        "nat(pool=[192.0.2.1], inside=[10.0.0.0/8], ports=\"1024-1031\", sessions=8, udp_timeout=10s, tcp_timeout=20s)",
        ["", "", "[outside]", "[inside]"],
    ),
    ("nat(pool=[192.0.2.1], filtering=address-dependent)", ["", "", "[outside]", "[inside]"]),
    ("nptv6(inside=2001:db8::/48, external=2001:db8:5::/48)", ["", "", "[outside]", "[inside]"]),
    (
        "balancer(service=\"10.0.1.1:80\", protocol=udp, backends=[10.1.0.1, 10.1.0.2], mode=nat, idle=1s, connections=3)",
        ["", "", "[backends]", "[clients]"],
    ),
    ("l2fwd(ports=[p, q], ageing=1s)", ["[p]", "[q]", "[q]", "[p]"]),
    (
        "router(interfaces=[\"lan 10.0.0.254/24 02:00:00:00:00:fe\", \"wan 10.0.1.254/24 02:00:00:00:00:fe\"], \
         neighbour_timeout=2s, icmp_rate=2)",
        ["[lan]", "[wan]", "[wan]", "[lan]"],
    ),
    ("flow_stats(export=\"flows{n}.ipfix\", idle=2s, active=10s)", ["", "", "", ""]),
    ("meter(per=flow, cir=8kbps, cbs=200B, ebs=100B, mark=af1, flows=4)", ["", "", "", ""]),
];

const FILES: &[(&str, &str)] = &[
    ("plain", "deny udp dst port 83\nallow src net 10.0.0.0/8\ncount tcp\nallow dst port 80\ndefault deny\n"),
    (
        "detailed",
        "deny flags syn,!ack dst port 81\nreset tcp dst port 83\ndeny dscp 12\ncount fragment\nlog 1/3 any\n\
         allow vlan 5\nallow tcp\ndefault allow\n",
    ),
    (
        "iptables",
        "*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -p icmp --icmp-type echo-request -s 10.0.0.2 -j DROP\n\
         -A FORWARD -p udp --dport 80 -m limit --limit 2/sec --limit-burst 3 -j ACCEPT\n\
         -A FORWARD -p udp --dport 80 -j DROP\nCOMMIT\n",
    ),
    ("lengths", "deny length 300-900\nallow udp\ndefault allow\n"),
    ("stateful", "allow state established,related\nallow state new src net 10.0.0.0/30\ndefault deny\n"),
    (
        "reset",
        "allow state established,related\nreset state new tcp dst port 83\ncount state new\nallow state new dscp 0\n\
         allow udp dst port 81\ndefault deny\n",
    ),
    ("routes", "default via 10.0.1.1\n10.0.1.2/32 via 10.0.1.3\nblackhole 10.0.0.3/32\n"),
];

/// A packet of a burst, of which some come in a VLAN, with another code point, by IPv6, or in fragments.
fn text(burst: &Burst, variant: u8) -> String {
    let plain = modes::text(&Burst { from_a: true, ..burst.clone() });
    let (host, port) = (burst.host, burst.port);
    match variant {
        0 => plain.replacen(" ip ", " vlan 5 ip ", 1),
        1 if !plain.contains("arp") => format!("{plain} tos 30"),
        2 => format!("eth 02::{host}>02::fe ip 2001:db8::{host}>2001:db8:1::1 udp {host}>{port} len 100"),
        3 => format!("eth 02::{host}>02::fe ip 2001:db8::{host}>2001:db8:1::1 tcp {host}>{port} A"),
        4 => format!("eth 02::{host}>02::fe ip 10.0.0.{host}>10.0.1.1 id {host} mf udp {port}>{port} len 66"),
        5 => format!("eth 02::{host}>02::fe ip 10.0.0.{host}>10.0.1.1 id {host} offset 32 proto 17 len 66"),
        6 => format!("eth 02::{host}>02::fe ip 10.0.0.{host}>10.0.1.1 tcp 0>0 A snap 40"),
        _ => plain,
    }
}

type Outcome = (BTreeMap<String, Vec<u8>>, Vec<String>);

/// Runs packets through a chain.
fn outcome(
    graph: &str,
    packets: &[(u64, bool, Vec<u8>)],
    context: &str,
    workers: usize,
) -> (Outcome, Option<ContextCounts>) {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in FILES {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    let mut ports = String::new();
    for port in ["a", "b", "x", "y"] {
        if ["a", "b"].contains(&port) {
            modes::write(&dir.path().join(format!("{port}.pcapng")), packets, port == "a");
        }
        if graph
            .lines()
            .any(|line| line.starts_with(&format!("{port} -> ")) || line.ends_with(&format!(" -> {port}")))
        {
            ports += &format!("[stage.{port}]\ntype = \"pcap\"\npath = \"{port}.pcapng\"\n");
        }
    }
    let text = format!("{context}\ngraph = '''\n{graph}\n'''\n{ports}");
    let plan = Plan::from_toml(&text, "contexts", dir.path()).unwrap_or_else(|e| panic!("{graph}\n{e}"));
    let mut pipeline = plan.build(1).unwrap_or_else(|e| panic!("{graph}\n{e}"));
    pipeline.untimed();
    let report = Driver::new(pipeline).workers(workers).run(&mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(report.live, 0, "packets were lost:\n{graph}");
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let entry = entry.unwrap();
        files.insert(entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap());
    }
    let mut counts = modes::counted(&report, &[]);
    counts.extend(report.stages.iter().filter_map(|s| Some(format!("{} {}", s.name, s.report.as_ref()?))));
    ((files, counts), report.contexts)
}

/// The graph of functions one behind the other.
fn graph(functions: &[usize], decide: &str) -> String {
    let mut graph = String::new();
    let mut before = vec!["a".to_owned()];
    for (n, function) in functions.iter().enumerate() {
        let text = FUNCTIONS[*function].replace("{n}", &n.to_string());
        let decides = ["counter", "reframe", "vlan_push", "limit", "measure"]
            .iter()
            .all(|name| !text.starts_with(name));
        let text = match text.strip_suffix(')') {
            Some(text) if decides => format!("{text}, decide={decide})"),
            _ => text,
        };
        graph += &format!("f{n} :: {text}\n");
        let (input, output) = if text.starts_with("l2fwd") { ("[p]", "[q]") } else { ("", "") };
        before.drain(..).for_each(|port| graph += &format!("{port} -> {input}f{n}\n"));
        before.push(format!("f{n}{output}"));
        if text.starts_with("switch") {
            before = vec![format!("f{n}[t]"), format!("f{n}[other]")];
        }
    }
    before.into_iter().for_each(|port| graph += &format!("{port} -> x\n"));
    graph
}

/// The graph of functions with two ways, from `a` to `x` and from `b` to `y`: both go through them in the
/// same order, since no graph but a router's may lead back.
fn two_ways(functions: &[usize], decide: &str) -> String {
    let (mut graph, mut there, mut back) = (String::new(), "a".to_owned(), "b".to_owned());
    for (n, function) in functions.iter().enumerate() {
        let (text, [input, output, back_input, back_output]) = TWO_WAY[*function];
        let text = text.replace("{n}", &n.to_string());
        let text = text.strip_suffix(')').unwrap();
        graph += &format!("f{n} :: {text}, decide={decide})\n{there} -> {input}f{n}\n");
        there = format!("f{n}{output}");
        if !back_input.is_empty() {
            graph += &format!("{back} -> {back_input}f{n}\n");
            back = format!("f{n}{back_output}");
        }
    }
    graph + &format!("{there} -> x\n{back} -> y\n")
}

fn packets(bursts: &[(Burst, u8)]) -> Vec<(u64, bool, Vec<u8>)> {
    let mut now = SECOND;
    let mut packets = Vec::new();
    for (burst, variant) in bursts {
        let text = if burst.from_a { text(burst, *variant) } else { modes::text(burst) };
        let packet = build::packet(&text, false).unwrap();
        for (which, percent, more) in &burst.pauses {
            let base = TIMES.get(*which).map_or(0, |time| time / 100 * percent);
            now += base.saturating_add_signed(*more);
            packets.push((now, burst.from_a, packet.bytes.clone()));
        }
    }
    packets
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if std::env::var_os("LONG").is_some() { 3000 } else { 128 }, ..ProptestConfig::default() })]

    #[test]
    fn contexts_change_nothing(
        bursts in prop::collection::vec((modes::burst(), 0u8..24), 1..80),
        functions in prop::collection::vec(0..FUNCTIONS.len(), 1..6),
        decide in prop::sample::select(&["train", "packet"][..]),
    ) {
        let bursts: Vec<_> = bursts.into_iter().map(|(burst, v)| (Burst { from_a: true, ..burst }, v)).collect();
        let (graph, packets) = (graph(&functions, decide), packets(&bursts));
        let (without, none) = outcome(&graph, &packets, "context = \"off\"", 1);
        prop_assert_eq!(none, None);
        for (context, workers) in [
            ("", 1),
            ("context_flows = 16", 1),
            ("context_flows = 3", 1),
            ("context_flows = 1", 1),
            ("", 2),
            ("context_flows = 3", 3),
            ("context_flows = 16", 7),
        ] {
            let (with, counts) = outcome(&graph, &packets, context, workers);
            prop_assert_eq!(&with.1, &without.1, "counters with {:?}, {} workers\n{}", context, workers, &graph);
            prop_assert!(with.0 == without.0, "files with {context:?}, {workers} workers\n{graph}");
            prop_assert!(counts.is_none_or(|counts| counts.begun >= counts.evicted));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if std::env::var_os("LONG").is_some() { 2000 } else { 64 }, ..ProptestConfig::default() })]

    /// The same where packets go both ways, and meet what those of the other way left.
    #[test]
    fn contexts_change_nothing_both_ways(
        bursts in prop::collection::vec((modes::burst(), 0u8..24), 1..80),
        functions in prop::collection::vec(0..TWO_WAY.len(), 1..5),
        decide in prop::sample::select(&["train", "packet"][..]),
    ) {
        let (graph, packets) = (two_ways(&functions, decide), packets(&bursts));
        let (without, _) = outcome(&graph, &packets, "context = \"off\"", 1);
        for (context, workers) in [("", 1), ("context_flows = 16", 1), ("context_flows = 2", 1), ("", 2), ("context_flows = 2", 4)] {
            let (with, _) = outcome(&graph, &packets, context, workers);
            prop_assert_eq!(&with.1, &without.1, "counters with {:?}, {} workers\n{}", context, workers, &graph);
            prop_assert!(with.0 == without.0, "files with {context:?}, {workers} workers\n{graph}");
        }
    }
}

/// The chain that contexts are for: each flow is looked up once, and begins once, on any number of threads.
#[test]
fn one_look_up_serves_the_chain() {
    let mut bursts = Vec::new();
    for round in 0..20 {
        for host in 1..4 {
            let pauses = vec![(usize::MAX, 0, 1000 + round)];
            bursts.push((Burst { pauses, from_a: true, kind: 0, host, far: 1, port: 80 }, 23));
        }
    }
    let chain = graph(&[1, 8, 2, 11], "train");
    let ((files, counts), contexts) = outcome(&chain, &packets(&bursts), "", 1);
    let contexts = contexts.unwrap();
    assert_eq!((contexts.lookups, contexts.begun, contexts.evicted, contexts.without), (60, 3, 0, 0));
    assert!(files["x.pcapng"].len() > 60 * 80, "{counts:?}");
    let ((others, _), _) = outcome(&chain, &packets(&bursts), "context = \"off\"", 1);
    assert!(files == others);
    for workers in [2, 3, 4, 7] {
        let ((others, _), counts) = outcome(&chain, &packets(&bursts), "", workers);
        assert_eq!(counts, Some(contexts), "{workers} workers");
        assert!(files == others);
    }
}

#[test]
fn layout_and_memory_are_told_and_bounded() {
    let plan = |text: &str| {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in FILES {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let graph = "in :: null -> e :: flow_stats -> reframe -> counter -> f :: flow_stats -> w :: firewall(rules='plain') -> nat(pool=[192.0.2.1]) -> g :: flow_stats -> out :: null";
        let plan = Plan::from_toml(&format!("graph = \"{graph}\"\n{text}"), "c.toml", dir.path())?;
        plan.context_plan()
    };
    let told = plan("context_flows = 1000").unwrap();
    let places: Vec<_> =
        told.places.iter().map(|p| (p.stage.as_str(), p.offset, p.bytes, p.looks_up)).collect();
    // The first statistics stand alone before the reframer, the last behind what rewrites addresses. Its
    // table has twice as many flows as there may be packets in it.
    assert_eq!(places, [("f", 20, 4, true), ("w", 24, 16, false), ("nat", 40, 4, false)]);
    let memory = 64_000 + 16_384 + 4 * told.numbers;
    assert_eq!((told.flows, told.bytes, told.memory, told.long_keys), (1000, 64, memory, 56_000));
    assert!(told.numbers >= 2 * 8192, "{}", told.numbers);
    assert!(plan("context = \"off\"").unwrap().places.is_empty());
    let error = plan("context_flows = 1000\ncontext_memory = \"100KiB\"").unwrap_err().to_string();
    let told =
        format!("would take {} bytes, 102400 are given: 1000 flows of 64 bytes are 64000", memory + 56_000);
    assert!(error.contains(&told), "{error}");
    let error = plan("context = \"of\"").unwrap_err().to_string();
    assert!(error.contains("did you mean `off`?"), "{error}");
}
