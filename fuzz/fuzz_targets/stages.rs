//! Any packets through every stage type in a pipeline, whose tables were filled from any records: nothing
//! panics, no packet is left inside, packets leave alike whether a stage decides once a train or once a
//! packet, and on one thread or two; and tables that are saved are taken again.
#![no_main]

use std::ops::ControlFlow;
use std::path::Path;

use libfuzzer_sys::fuzz_target;
use slipstream::pipeline::{Plan, stage_type};
use slipstream::runtime::Driver;
use slipstream::time::Nanos;
use slipstream_fuzz::{BEGIN, folder, packets, read, saved, write};

const RULES: &str = "count udp\nlog 1/3 tcp syn\nreset tcp dst port 23\nallow state established,related\n\
                     deny state invalid\ndeny length 0-59\nallow state new src net 10.0.0.0/8,2001:db8::/32\n";

/// A stage type and its settings, without `decide`; how the inputs `a` and `b` and the outputs `x` and `y`
/// are led; whether the type has `decide`.
const STAGES: [(&str, &str, &str, bool); 19] = [
    ("firewall", "rules=rules.txt, connections=8, fragments=4", "a -> f -> x; b -> [back]f[back] -> y", true),
    ("firewall", "rules=rules.txt, connections=8, early_drop=true, checksum=all, cache=4", "a -> f -> x; b -> [back]f[back] -> y; f[denied] -> x; f[replies] -> y", true),
    ("nat", "pool=[192.0.2.1], sessions=8, fragments=4, ports=1024-1030, static=\"10.0.0.9 = 192.0.2.9\"", "a -> f -> x; b -> [outside]f[inside] -> y", true),
    ("nat", "pool=[192.0.2.0/30], sessions=8, pooling=arbitrary, filtering=address-and-port-dependent, inbound_refresh=true", "a -> f -> x; b -> [outside]f[inside] -> y", true),
    ("nptv6", "inside=2001:db8::/48, external=2001:db8:2::/48", "a -> f -> x; b -> [outside]f[inside] -> y", true),
    ("balancer", "service=\"192.0.2.1:80\", backends=[10.0.0.1, \"10.0.0.2 weight=2\"], source=192.0.2.9, connections=8, mtu=576, fragments=4", "a -> f -> x; f[clients] -> y; b -> [backends]f", true),
    ("balancer", "service=\"192.0.2.1:80\", backends=[10.0.0.1, 10.0.0.2], mode=nat, connections=8", "a -> f -> x; b -> [backends]f[clients] -> y", true),
    ("router", "interfaces=[\"a 10.0.0.1/24 2001:db8::1/64 02:00:00:00:00:01\", \"b 192.0.2.2/24 2001:db8:2::1/64 02:00:00:00:00:02 mtu 1280\"], neighbours=[\"192.0.2.1 02:02:02:02:02:02\"], neighbour_table=16", "a -> [a]f[b] -> y; b -> [b]f[a] -> x", true),
    ("l2fwd", "ports=[a, b], stations=16, static=\"02:00:00:00:00:02 b\"", "a -> [a]f[b] -> y; b -> [b]f[a] -> x", true),
    ("meter", "cir=1mbps, cbs=200, pir=2mbps, pbs=300, per=flow, flows=8, aware=true, mark=af2, red=port", "a -> f -> x; f[red] -> y; b -> f", true),
    ("meter", "cir=1mbps, cbs=200, ebs=100, mark=\"1,2,-\"", "a -> f -> x; b -> y", true),
    ("flow_stats", "flows=8, idle=1s, active=3s", "a -> f -> x; b -> y", true),
    ("switch", "ports=[\"dns: udp dst port 53\", \"more: tcp syn or ip6\"]", "a -> f; b -> f; f[dns] -> x; f[more] -> x; f[other] -> y", true),
    ("slice", "threshold=1, entries=4", "a -> f -> n :: nat(pool=[192.0.2.1], sessions=8, fragments=4) -> splice -> x; b -> y", false),
    ("slice", "threshold=1, entries=4, storage=copy, entry_bytes=100, keep_bytes=3, mode=paper", "a -> f -> m :: meter(cir=1mbps, mark=af1) -> vlan_push(id=7) -> splice -> x; b -> y", false),
    ("reframe", "hold=1s, compress=\"ack,gro\", tcp_order=true, class=[\"t: top 2 => hold=2s, burst=3\"], top_window=16, flows=1024, capacity=5", "a -> f -> x; b -> y", false),
    ("delay", "time=1s, jitter=1s, capacity=3", "a -> f -> vlan_push(id=3, ethertype=802.1ad) -> x; b -> vlan_pop -> y", false),
    ("limit", "rate=1mbps, burst=200", "a -> f -> t :: tee(ports=2); t[0] -> x; t[1] -> y; f[exceeded] -> y; b -> tap(path=tap.pcap, rules=\"udp\") -> y", false),
    ("measure", "task=heavy-hitters, memory=4KiB, epoch=3p, key=5tuple", "a -> f -> x; b -> y", false),
];

fn driver(graph: &str, folder: &Path) -> Driver {
    let plan = Plan::from_graph(graph, None, None, folder).unwrap_or_else(|errors| panic!("{graph}: {errors}"));
    Driver::new(plan.build(7).unwrap_or_else(|error| panic!("{graph}: {error}")))
}

fuzz_target!(|data: &[u8]| {
    let Some((&[which, hold, records], mut rest)) = data.split_first_chunk::<3>() else { return };
    let (kind, settings, wiring, decides) = STAGES[usize::from(which) % STAGES.len()];
    let tables = stage_type(kind).unwrap().properties.tables;
    let mut given = Vec::new();
    for number in 0..usize::from(records % 6) {
        if tables.is_empty() {
            break;
        }
        let number = number % tables.len();
        let (record, after) = rest.split_at(tables[number].record.min(rest.len()));
        given.push((number, record));
        rest = after;
    }
    let folder = folder("stages");
    std::fs::write(folder.join("rules.txt"), RULES).unwrap();
    let [a, b] = packets(rest);
    write(&folder.join("a.pcap"), &a);
    write(&folder.join("b.pcap"), &b);
    let hold = ["0", "100us", "1s"][usize::from(hold) % 3];
    let mut results = Vec::new();
    for (decide, workers) in [("train", 1), ("packet", 1), ("train", 2)] {
        let decide = if decides { format!(", decide={decide}") } else { String::new() };
        let graph = format!(
            "a0 :: pcap(path=a.pcap) -> a :: reframe(hold={hold}, bypass=none, flows=1024, capacity=64)\nb0 :: pcap(path=b.pcap) -> b :: counter\n\
             f :: {kind}({settings}{decide})\nx :: pcap(path=x.pcap)\ny :: pcap(path=y.pcap)\n{wiring}"
        );
        let mut driver = driver(&graph, &folder).workers(workers);
        for (table, record) in &given {
            if let Some(stage) = driver.operate("f") {
                stage.restore(*table, record, 5, Nanos(BEGIN));
            }
        }
        let report = driver.run(&mut |_| ControlFlow::Continue(())).unwrap_or_else(|e| panic!("{graph}: {e}"));
        let held: u64 = report.stages.iter().map(|stage| stage.held).sum();
        assert_eq!((report.live, held), (0, 0), "packets are left inside");
        let came: u64 = report.sources.iter().map(|source| source.packets).sum();
        assert_eq!(came, (a.len() + b.len()) as u64);

        let now = Nanos(a.iter().chain(&b).map(|packet| packet.0).max().unwrap_or(BEGIN));
        let before = saved(&mut driver, "f", kind, now);
        let mut other = self::driver(&graph, &folder);
        for (table, record) in before.iter().enumerate().flat_map(|(n, all)| all.iter().map(move |r| (n, r))) {
            let stage = other.operate("f").unwrap();
            assert!(stage.restore(table, record, 0, now), "{kind}: {record:?} was saved, and is not taken");
        }
        assert_eq!(saved(&mut other, "f", kind, now), before);
        drop(other);
        results.push((read(&folder.join("x.pcap")), read(&folder.join("y.pcap")), before));
    }
    assert_eq!(results[0], results[2], "on two threads it is something else");
    assert_eq!(results[0], results[1], "decided once a train it is something else");
});
