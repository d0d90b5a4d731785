//! Memory that can't be had is an error, and nothing dies of it.

use std::fs;
use std::path::Path;

use crate::common::{campus, names, run_under, scratch, text};

/// 300 MB of address space.
const LITTLE: &str = "ulimit -v 300000";

/// Runs the program with little memory, of which it says that tables of this setting's size can't be had.
fn tables_are_refused(dir: &Path, words: &str, setting: &str) {
    let hint = format!("give `{setting}` a lower value");
    run_under(LITTLE, dir, words).with(2).silent().saying(&["memory for tables", "can't be had", &hint]);
}

#[test]
fn memory_that_can_not_be_had_is_an_error() {
    let dir = scratch();
    for sketch in ["count-min", "flow-radar", "space-saving", "mrac"] {
        let words =
            format!("measure {} --task heavy-hitters --sketch {sketch} --memory 8GiB", text(&campus()));
        run_under("ulimit -v 600000", dir.path(), &words).with(2).silent().saying(&[
            sketch,
            "memory",
            "can't be had",
        ]);
    }
    for (setting, value) in [("flows", 268_435_456), ("capacity", 16_777_216)] {
        let words = format!("reframe {} null --{setting} {value}", text(&campus()));
        tables_are_refused(dir.path(), &words, setting);
    }
}

#[test]
fn more_flows_than_memory_are_an_error() {
    let dir = scratch();
    for (traffic, flows) in
        [("", 16_777_216), ("--order random --zipf 1.1", 4_194_304), ("--protocol tcp", 12_582_912)]
    {
        let words = format!("synth --packets 10 --flows {flows} {traffic} out.pcap");
        run_under(LITTLE, dir.path(), &words)
            .with(2)
            .silent()
            .saying(&["flows", "of memory, which can't be had"]);
        assert_eq!(names(dir.path()), [""; 0], "{traffic}");
    }
}

#[test]
fn tables_of_stages_that_can_not_be_had_are_an_error() {
    let dir = scratch();
    fs::write(dir.path().join("rules"), "allow state established\nallow tcp syn\n").unwrap();
    let router =
        "router(routes=routes, neighbour_table=4194304, interfaces=[\"lan 192.0.2.1/24 02:00:00:00:00:01\"])";
    fs::write(dir.path().join("routes"), "198.51.100.0/24 via 192.0.2.9\n").unwrap();
    for (setting, graph) in [
        ("flows", "reframe(flows=268435456)"),
        ("capacity", "reframe(capacity=16777216)"),
        ("sessions", "nat(pool=192.0.2.1, sessions=67108864)"),
        ("connections", "firewall(rules=rules, connections=67108864)"),
        ("cache", "firewall(rules=rules, cache=67108864)"),
        (
            "connections",
            "balancer(service=\"192.0.2.9:80\", source=\"192.0.2.79\", backends=192.0.2.10, connections=67108864)",
        ),
        ("flows", "flow_stats(flows=67108864)"),
        ("stations", "l2fwd(ports=[a, b], stations=67108864)"),
        ("flows", "meter(cir=1mbps, per=flow, flows=67108864)"),
        ("neighbour_table", router),
        ("entries", "slice(entries=65536, storage=copy, entry_bytes=16384) -> splice"),
        ("context_flows", "flow_stats -> meter(cir=1mbps, per=flow)"),
    ] {
        let context = if setting == "context_flows" { "--context-flows 67108864" } else { "" };
        let words = format!("run -i {} -o null {context} -e '{graph}'", text(&campus()));
        tables_are_refused(dir.path(), &words, setting);
    }
}
