//! Any packets through any chain of functions: with flow contexts, however few, with one decision a train, on
//! one thread or several, packets, files, tables, drops and counters are those of the same chain that decides
//! about each packet by itself.
#![no_main]

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use libfuzzer_sys::fuzz_target;
use slipstream::pipeline::Plan;
use slipstream::runtime::Driver;
use slipstream::time::Nanos;
use slipstream_fuzz::{BEGIN, Packet, folder, packets, read, saved, write};

const FILES: [(&str, &str); 3] = [
    (
        "rules.txt",
        "count udp\nlog 1/3 tcp syn\nreset tcp dst port 23\nallow state established,related\n\
         deny state invalid\ndeny length 0-59\nallow state new src net 10.0.0.0/8,2001:db8::/32\n",
    ),
    (
        "plain.txt",
        "deny tcp flags syn,!ack dst port 81\ndeny dscp 12\ncount fragment\nallow udp\ndefault allow\n",
    ),
    ("routes.txt", "default via 192.0.2.77 dev b\n10.0.0.0/24 dev a\n192.0.2.128/25 via 192.0.2.78 dev b\n"),
];

/// Functions, without `decide`: their inputs and outputs on the way from `a` to `x`, then on that from `b` to
/// `y`, which doesn't lead through those that have none; and whether they have `decide`.
const FUNCTIONS: [(&str, [&str; 4], bool); 19] = [
    ("firewall(rules=rules.txt, connections=8, fragments=4", ["", "", "[back]", "[back]"], true),
    ("firewall(rules=plain.txt, cache=4", ["", "", "[back]", "[back]"], true),
    (
        "nat(pool=[192.0.2.1], sessions=8, fragments=4, ports=1024-1030, static=\"10.0.0.9 = 192.0.2.9\"",
        ["", "", "[outside]", "[inside]"],
        true,
    ),
    (
        "nat(pool=[192.0.2.0/30], sessions=8, pooling=arbitrary, filtering=address-and-port-dependent, inbound_refresh=true",
        ["", "", "[outside]", "[inside]"],
        true,
    ),
    (
        "balancer(service=\"192.0.2.1:80\", backends=[10.0.0.1, \"10.0.0.2 weight=2\"], mode=nat, connections=8",
        ["", "", "[backends]", "[clients]"],
        true,
    ),
    (
        "balancer(service=\"192.0.2.1:80\", backends=[10.0.0.1], source=192.0.2.9, connections=8, mtu=576, fragments=4",
        ["", "", "", ""],
        true,
    ),
    (
        "router(interfaces=[\"a 10.0.0.1/24 2001:db8::1/64 02:00:00:00:00:01\", \"b 192.0.2.2/24 2001:db8:2::1/64 02:00:00:00:00:02 mtu 1280\"], neighbours=[\"192.0.2.77 02:02:02:02:02:02\"], neighbour_table=16, routes=routes.txt",
        ["[a]", "[b]", "[b]", "[a]"],
        true,
    ),
    ("l2fwd(ports=[a, b], stations=16, static=\"02:00:00:00:00:02 b\"", ["[a]", "[b]", "[b]", "[a]"], true),
    (
        "meter(cir=1mbps, cbs=200, pir=2mbps, pbs=300, per=flow, flows=8, aware=true, mark=af2",
        ["", "", "", ""],
        true,
    ),
    ("meter(cir=1mbps, cbs=200, ebs=100, mark=\"1,2,-\"", ["", "", "", ""], true),
    ("flow_stats(export=\"flows{n}.ipfix\", flows=8, idle=1s, active=3s", ["", "", "", ""], true),
    ("flow_stats(flows=64, idle=1s, active=60s", ["", "", "", ""], true),
    ("nptv6(inside=2001:db8::/48, external=2001:db8:7::/48", ["", "", "[outside]", "[inside]"], true),
    ("slice(threshold=1, entries=4) -> splice(of=f{n})", ["", "", "", ""], false),
    ("reframe(hold=1ms, flows=1024, capacity=64)", ["", "", "", ""], false),
    ("vlan_push(id=7)", ["", "", "", ""], false),
    ("vlan_pop", ["", "", "", ""], false),
    ("counter", ["", "", "", ""], false),
    ("firewall(rules=rules.txt, connections=64", ["", "", "[back]", "[back]"], true),
];

/// Counters of decisions, and of answers that were sought for them.
const OF_DECISIONS: [&str; 3] = ["decisions", "connections_refused", "cache_hits"];

/// The chain: both ways lead through its functions in the same order, since no graph but a router's may lead
/// back.
fn graph(functions: &[u8], hold: &str, decide: &str) -> String {
    let mut graph = format!(
        "a0 :: pcap(path=a.pcap) -> a :: reframe(hold={hold}, bypass=none, flows=1024, capacity=64)\n\
         b0 :: pcap(path=b.pcap) -> b :: counter\nx :: pcap(path=x.pcap)\ny :: pcap(path=y.pcap)\n"
    );
    let (mut there, mut back) = ("a".to_owned(), "b".to_owned());
    for (n, function) in functions.iter().enumerate() {
        let (text, [input, output, back_input, back_output], decides) =
            FUNCTIONS[usize::from(*function) % FUNCTIONS.len()];
        let mut text = text.replace("{n}", &n.to_string());
        if decides {
            text += &format!(", decide={decide})");
        }
        let mut last = format!("f{n}");
        if let Some((slice, splice)) = text.split_once(" -> ") {
            graph += &format!("f{n} :: {slice}\ns{n} :: {splice}\nf{n} -> s{n}\n");
            last = format!("s{n}");
        } else {
            graph += &format!("f{n} :: {text}\n");
        }
        graph += &format!("{there} -> {input}f{n}\n");
        there = format!("{last}{output}");
        if !back_input.is_empty() {
            graph += &format!("{back} -> {back_input}f{n}\n");
            back = format!("f{n}{back_output}");
        }
    }
    graph + &format!("{there} -> x\n{back} -> y\n")
}

/// All that a run leaves.
#[derive(Debug, PartialEq)]
struct Outcome {
    packets: [Vec<Packet>; 2],
    counts: Vec<String>,
    tables: Vec<Vec<Vec<Vec<u8>>>>,
    exported: BTreeMap<usize, Vec<u8>>,
}

/// Runs it; none where functions contradict each other, as a gateway that has an address of a NAT's pool.
fn outcome(graph: &str, context: (&str, &str), workers: usize, folder: &Path, now: Nanos) -> Option<Outcome> {
    let plan =
        Plan::from_graph(graph, None, None, folder).unwrap_or_else(|errors| panic!("{graph}: {errors}"));
    let plan = plan.with_pipeline_settings(&[context]).unwrap_or_else(|errors| panic!("{graph}: {errors}"));
    let mut pipeline = plan.build(7).ok()?;
    pipeline.untimed();
    let mut driver = Driver::new(pipeline).workers(workers);
    let report = driver.run(&mut |_| ControlFlow::Continue(())).unwrap_or_else(|e| panic!("{graph}: {e}"));
    let held: u64 = report.stages.iter().map(|stage| stage.held).sum();
    assert_eq!((report.live, held), (0, 0), "packets are left inside");
    let (mut counts, mut tables) = (Vec::new(), Vec::new());
    for stage in &report.stages {
        let counters = stage.counters.iter().filter(|(name, _)| !OF_DECISIONS.contains(name));
        counts.extend(counters.map(|(name, n)| format!("{}.{name} {n}", stage.name)));
        counts.extend(stage.drops.iter().map(|(reason, n)| format!("{}.{} {n}", stage.name, reason.name())));
        if stage.name.starts_with('f') {
            tables.push(saved(&mut driver, &stage.name, stage.kind, now));
        }
    }
    drop(driver);
    let exported =
        (0..8).filter_map(|n| Some((n, std::fs::read(folder.join(format!("flows{n}.ipfix"))).ok()?)));
    Some(Outcome {
        packets: ["x.pcap", "y.pcap"].map(|name| read(&folder.join(name))),
        counts,
        tables,
        exported: exported.collect(),
    })
}

fuzz_target!(|data: &[u8]| {
    let Some((&[how, count, flows, workers], rest)) = data.split_first_chunk::<4>() else { return };
    let (functions, rest) = rest.split_at(usize::from(count % 5 + 1).min(rest.len()));
    let folder = folder("chain");
    for (name, text) in FILES {
        std::fs::write(folder.join(name), text).unwrap();
    }
    for n in 0..8 {
        let _ = std::fs::remove_file(folder.join(format!("flows{n}.ipfix")));
    }
    let [a, b] = packets(rest);
    write(&folder.join("a.pcap"), &a);
    write(&folder.join("b.pcap"), &b);
    let now = Nanos(a.iter().chain(&b).map(|packet| packet.0).max().unwrap_or(BEGIN));
    let hold = ["0", "100us", "1s"][usize::from(how) % 3];
    let flows = (flows % 16 + 1).to_string();
    let twin = outcome(&graph(functions, hold, "packet"), ("context", "off"), 1, &folder, now);
    let others = [
        ("train", ("context_flows", "1024"), 1),
        ("train", ("context_flows", &flows[..]), usize::from(workers % 3) + 2),
        ("packet", ("context_flows", &flows), 1),
        ("train", ("context_flows", &flows), 1),
    ];
    // Two of them, so that there is time for more inputs.
    for (decide, context, workers) in others.into_iter().cycle().skip(usize::from(how >> 2 & 3)).take(2) {
        let graph = graph(functions, hold, decide);
        let other = outcome(&graph, context, workers, &folder, now);
        assert!(other == twin, "{context:?}, {workers} threads\n{graph}\n{other:?}\n{twin:?}");
    }
});
