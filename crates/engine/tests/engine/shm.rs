//! Pipelines joined by shared memory, two threads in place of two processes, and which graphs may be.

use std::ops::ControlFlow;
use std::path::Path;

use slipstream::pipeline::Plan;
use slipstream::runtime::{Driver, LiveOptions, RunReport};

fn plan(graph: &str) -> Plan {
    Plan::from_graph(graph, None, None, Path::new("")).unwrap()
}

fn run(graph: &str) -> RunReport {
    let options = LiveOptions { fast: true, ..LiveOptions::default() };
    Driver::new(plan(graph).build(1).unwrap()).live(options).run(&mut |_| ControlFlow::Continue(())).unwrap()
}

/// Both pipelines, until both have ended by themselves.
fn both(near: &str, far: &str) -> [RunReport; 2] {
    both_with("128KiB", near, far)
}

fn both_with(ring: &str, near: &str, far: &str) -> [RunReport; 2] {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("there");
    let there = format!("there :: shm(path=\"{}\", ring={ring})", path.display());
    let (near, far) = (format!("{there}; {near}"), format!("{there}; {far}"));
    let reports = std::thread::scope(|scope| {
        let far = scope.spawn(|| run(&far));
        [run(&near), far.join().unwrap()]
    });
    assert!(!path.exists());
    reports
}

fn counter(report: &RunReport, stage: &str, name: &str) -> u64 {
    let mut sources = report.sources.iter().filter(|s| s.name == stage);
    let mut stages = report.stages.iter().filter(|s| s.name == stage);
    sources.find_map(|s| s.counter(name)).or_else(|| stages.find_map(|s| s.counter(name))).unwrap()
}

const TRAFFIC: &str = "synth(traffic=\"packets=20000,size=900,protocol=udp,flows=50\")";

#[test]
fn what_goes_there_comes_back_and_both_end() {
    let [near, far] = both(&format!("{TRAFFIC} -> there; there -> out :: null"), "there -> counter -> there");
    assert_eq!(near.sources.iter().map(|s| s.packets).collect::<Vec<_>>(), [20_000, 20_000]);
    assert_eq!(counter(&near, "out", "packets_written"), 20_000);
    assert_eq!(counter(&near, "out", "bytes_written"), 20_000 * 900);
    assert_eq!(counter(&far, "counter", "packets_counted"), 20_000);
    for report in [&near, &far] {
        assert_eq!(report.live, 0);
        assert!(report.stages.iter().all(|s| s.drops.total() == 0));
    }
    // Packets that a stage holds leave before the end is told. A ring for all: what is let go at once finds
    // room.
    let [near, far] = both_with(
        "32MiB",
        &format!("{TRAFFIC} -> reframe(hold=300us) -> there; there -> out :: null"),
        "there -> reframe(hold=200us) -> there",
    );
    assert_eq!(counter(&near, "out", "packets_written"), 20_000);
    assert_eq!((near.live, far.live), (0, 0));
}

/// A port that stands in a section of another thread hears, too, that nothing more comes to it.
#[test]
fn both_end_on_several_threads() {
    let dir = tempfile::tempdir().unwrap();
    for (number, (workers, others)) in [(1, 3), (2, 1), (2, 2), (4, 3)].into_iter().enumerate() {
        let there = format!(
            "there :: shm(path=\"{}\", ring=4MiB, when_full=drop)",
            dir.path().join(number.to_string()).display()
        );
        let run = |graph: &str, workers| {
            let pipeline = plan(&format!("{there}; {graph}")).build(1).unwrap();
            Driver::new(pipeline).workers(workers).run(&mut |_| ControlFlow::Continue(())).unwrap()
        };
        let near = "in :: synth(traffic=\"packets=500,flows=9,size=100\") -> reframe -> there; there -> counter -> out :: null";
        let [near, far] = std::thread::scope(|scope| {
            let far = scope.spawn(|| run("there -> counter -> reframe(hold=1ms) -> there", others));
            [run(near, workers), far.join().unwrap()]
        });
        assert_eq!((counter(&near, "there", "packets_sent"), far.sources[0].packets), (500, 500));
        assert_eq!((near.sources[1].packets, near.live, far.live), (500, 0, 0));
    }
}

#[test]
fn one_way_is_enough() {
    let [near, far] = both(&format!("{TRAFFIC} -> there"), "there -> out :: null");
    assert_eq!(counter(&near, "there", "packets_sent"), 20_000);
    assert_eq!(counter(&far, "out", "bytes_written"), 20_000 * 900);
}

/// One that is too long for the ring is dropped and counted; those that just fit, and come before anybody
/// takes them out, wait.
#[test]
fn long_packets_wait_for_room_and_too_long_ones_stop_nobody() {
    let there = |ring: &str, path: &Path| format!("there :: shm(path=\"{}\", ring={ring})", path.display());
    for (ring, traffic, too_long) in [
        ("64KiB", "packets=3000,size=100..40000", true),
        ("64KiB", "packets=300,size=32000", false),
        ("1MiB", "packets=3000,size=9000", false),
        ("128KiB", "packets=3000,size=100..40000", false),
        ("4MiB", "packets=1000,size=60000", false),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let there = there(ring, &dir.path().join("there"));
        let [near, far] = std::thread::scope(|scope| {
            let near = scope.spawn(|| run(&format!("{there}; synth(traffic=\"{traffic}\") -> there")));
            // Until then the ring fills.
            std::thread::sleep(std::time::Duration::from_millis(50));
            let far = run(&format!("{there}; there -> out :: null"));
            [near.join().unwrap(), far]
        });
        let lost = counter(&near, "there", "too_long");
        assert_eq!((counter(&near, "there", "ring_full"), lost > 0), (0, too_long), "{traffic} in {ring}");
        let came = counter(&far, "out", "packets_written");
        assert_eq!(came + lost, near.sources[0].packets, "{traffic} in {ring}");
    }
}

#[test]
fn sliced_packets_cross_with_headers_alone() {
    let [near, far] = both(
        &format!("{TRAFFIC} -> slice(storage=copy, entries=4096) -> there; there -> splice -> out :: null"),
        "there -> nat(pool=[192.0.2.0/28]) -> there",
    );
    // 42 bytes of headers and the token.
    assert_eq!(counter(&near, "there", "bytes_sent"), 20_000 * 50);
    assert_eq!(counter(&far, "there", "bytes_sent"), 20_000 * 50);
    assert_eq!(counter(&near, "splice", "spliced"), 20_000);
    assert_eq!(counter(&near, "out", "bytes_written"), 20_000 * 900);
    assert_eq!((near.live, far.live), (0, 0));
}

#[test]
fn payloads_of_packets_that_never_come_back_are_given_up() {
    let [near, far] = both(
        &format!("{TRAFFIC} -> slice(entries=1024, ttl=2) -> there; there -> splice -> out :: null"),
        "there -> limit(rate=1pps, burst=100) -> there",
    );
    let dropped: u64 = far.stages.iter().map(|s| s.drops.total()).sum();
    assert!(dropped > 19_000, "{dropped}");
    assert_eq!(counter(&near, "out", "packets_written"), 20_000 - dropped);
    assert_eq!((near.live, far.live), (0, 0), "payloads are left inside");
}

/// A packet that a function in another process drops is reported on the way back, so that its payload waits
/// no longer.
#[test]
fn drops_in_another_process_are_told() {
    let there = |explicit: bool| {
        let slice = format!("slice(entries=4096, ttl=65535, explicit_drop={explicit})");
        both(
            &format!("{TRAFFIC} -> {slice} -> there; there -> splice -> out :: null"),
            "there -> limit(rate=1pps, burst=100) -> there",
        )
    };
    let [near, far] = there(true);
    let dropped: u64 = far.stages.iter().map(|s| s.drops.total()).sum();
    let [sliced, whole] = ["sliced", "whole_full"].map(|name| counter(&near, "slice", name));
    assert_eq!(sliced + whole, 20_000);
    // At most a ring of packets is under way, so the table is never full.
    assert_eq!((whole, counter(&near, "out", "packets_written")), (0, 20_000 - dropped));
    assert!(dropped > 19_000, "{dropped}");
    assert_eq!(counter(&far, "there", "drops_told"), dropped);
    assert_eq!(counter(&near, "there", "told_of_drops"), dropped);
    assert_eq!(counter(&near, "slice", "payloads_released"), dropped);
    assert_eq!(counter(&near, "slice", "payloads_left_at_end"), 0);
    assert_eq!((near.live, far.live), (0, 0));
    // Without, the table fills, and stays so.
    let [near, _] = there(false);
    assert_eq!(counter(&near, "slice", "payloads_released"), 0);
    let (whole, left) =
        (counter(&near, "slice", "whole_full"), counter(&near, "slice", "payloads_left_at_end"));
    assert!(whole > 10_000 && left > 3900, "{whole} {left}");
    assert_eq!(near.live, 0);
}

/// Through a process in the middle, which only passes on what it gets.
#[test]
fn drops_behind_another_process_are_told_too() {
    let dir = tempfile::tempdir().unwrap();
    let port =
        |name: &str| format!("{name} :: shm(path=\"{}\", ring=128KiB); ", dir.path().join(name).display());
    let near =
        format!("{}{TRAFFIC} -> slice(entries=16384, ttl=65535) -> a; a -> splice -> out :: null", port("a"));
    let middle = format!("{}{}a -> b; b -> a", port("a"), port("b"));
    let far = format!("{}b -> limit(rate=1pps, burst=100) -> b", port("b"));
    let [near, middle, far] = std::thread::scope(|scope| {
        let others = [&middle, &far].map(|graph| scope.spawn(|| run(graph)));
        let near = run(&near);
        let [middle, far] = others.map(|other| other.join().unwrap());
        [near, middle, far]
    });
    let dropped: u64 = far.stages.iter().map(|s| s.drops.total()).sum();
    assert!(dropped > 19_000, "{dropped}");
    // The last are told when the first process has nothing left to send, and gives up by itself what still
    // waits.
    let [released, left] =
        ["payloads_released", "payloads_left_at_end"].map(|name| counter(&near, "slice", name));
    assert_eq!(released + left, dropped);
    assert!(left < 10_000, "{left}");
    assert!(counter(&middle, "a", "drops_told") >= released && released > 10_000, "{released}");
    assert_eq!(counter(&near, "slice", "whole_full"), 0);
    assert_eq!((near.live, middle.live, far.live), (0, 0, 0));
}

#[test]
fn the_two_ends_of_one_port_are_opened_once() {
    let port = || Some(("shm", vec![("path".to_owned(), "x".to_owned())]));
    let joined = Plan::from_graph("counter", port(), port(), Path::new("")).unwrap();
    assert_eq!((joined.stages.len(), joined.wires.len()), (2, 2));
    joined.check().unwrap();
    let named = Plan::from_graph(
        "in -> [a]f :: l2fwd(ports=[a, b], map=[\"a > b\"]); f[b] -> out",
        port(),
        port(),
        Path::new(""),
    );
    assert_eq!(named.unwrap().stages.len(), 2);
    let other = Some(("shm", vec![("path".to_owned(), "y".to_owned())]));
    assert_eq!(Plan::from_graph("counter", port(), other, Path::new("")).unwrap().stages.len(), 3);
    let file = || Some(("pcap", vec![("path".to_owned(), "x".to_owned())]));
    assert_eq!(Plan::from_graph("counter", file(), file(), Path::new("")).unwrap().stages.len(), 3);
}

/// Sliced packets may leave by a port with functions behind it, and by no other.
#[test]
fn functions_may_be_behind_a_port() {
    let check = |graph: &str| {
        let ports =
            "lan :: af_packet(interface=eth1); wan :: af_packet(interface=eth2); there :: shm(path=x); ";
        let plan = Plan::from_graph(&format!("{ports}{graph}"), None, None, Path::new(""));
        plan.and_then(|p| p.check()).map_err(|e| e.to_string())
    };
    let rest = "; wan -> null";
    check(&format!("lan -> slice -> there; there -> splice -> lan{rest}")).unwrap();
    check(&format!("lan -> slice -> counter -> there; there -> counter2 :: counter -> splice -> lan{rest}"))
        .unwrap();
    for (graph, wrong) in [
        ("lan -> slice -> there; there -> lan; wan -> splice -> null", "past"),
        ("lan -> slice -> there; there -> splice -> lan; wan -> splice", "past"),
        ("lan -> slice -> wan; there -> splice -> lan; wan -> null", "past"),
        ("lan -> slice -> there; there -> wan; wan -> slice; there -> null", ""),
    ] {
        let error = check(graph).expect_err(graph);
        assert!(error.contains(wrong), "{graph}: {error}");
    }
}
