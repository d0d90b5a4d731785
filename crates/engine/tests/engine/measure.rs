//! The `measure` stage: the same answers from trains as from packets, packets untouched, epochs by packets
//! and by time.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use slipstream::pipeline::Plan;
use slipstream::runtime::{Driver, Monitor, RunReport, StageReport};

const TRAFFIC: &str =
    "flows=300,packets=6000,slf=2,zipf=1,protocol=0.7,ipv6=0.3,size=100..1400,rate=1mpps,seed=5";

fn run(graph: &str) -> RunReport {
    let plan = Plan::from_graph(graph, None, None, Path::new("")).unwrap_or_else(|e| panic!("{e}"));
    Driver::new(plan.build(7).unwrap_or_else(|e| panic!("{e}")))
        .run(&mut |_| ControlFlow::Continue(()))
        .unwrap()
}

fn graph(stages: &str) -> String {
    format!("in :: synth(traffic=\"{TRAFFIC}\") -> {stages} -> out :: null")
}

fn measured(report: &RunReport) -> &StageReport {
    report.stages.iter().find(|s| s.kind == "measure").unwrap()
}

fn epochs(report: &RunReport) -> Vec<Value> {
    measured(report).report.as_ref().unwrap()["epochs"].as_array().unwrap().clone()
}

fn counter(report: &RunReport, name: &str) -> u64 {
    measured(report).counter(name).unwrap()
}

/// States of linear sketches don't depend on how updates are cut, so neither do answers. Epochs of an odd
/// number of packets end in the middle of trains.
#[test]
fn trains_and_packets_give_the_same_answers() {
    for task in [
        "heavy-hitters, sketch=exact, key=5tuple",
        "heavy-hitters, sketch=flow-radar, key=src-dst, weight=bytes",
        "flow-size, sketch=count-min, key=src/24, weight=bytes",
        "heavy-changes, key=dst",
        "superspreaders, threshold=20",
        "ddos-victims, threshold=20",
        "size-distribution, key=5tuple",
        "cardinality, key=src-dst",
        "cardinality, sketch=fm",
        "entropy, sketch=exact",
    ] {
        for before in ["", "reframe(hold=64us) -> "] {
            let of = |by: &str| {
                run(&graph(&format!(
                    "{before}measure(task={task}, epoch=2001p, keep=100, memory=768KiB, by={by})"
                )))
            };
            let (trains, packets) = (of("trains"), of("packets"));
            // A store of keys beside Count-Min depends on the order of updates, counts don't.
            assert_eq!(epochs(&trains), epochs(&packets), "{task} {before}");
            assert_eq!(epochs(&trains).len(), 3, "{task}");
            let (a, b) = (counter(&trains, "updates"), counter(&packets, "updates"));
            assert!(a < b, "{task} {before}: {a} updates by trains, {b} by packets");
            assert_eq!(b, counter(&packets, "packets_counted"));
            assert_eq!(counter(&trains, "packets_counted") + counter(&trains, "not_ip"), 6000);
        }
    }
}

#[test]
fn bounds_hold_where_order_matters() {
    for sketch in ["space-saving", "univmon"] {
        for by in ["trains", "packets"] {
            let exact = run(&graph("measure(sketch=exact, epoch=2000p, keep=10, top=1000)"));
            let graph =
                graph(&format!("measure(sketch={sketch}, epoch=2000p, keep=10, by={by}, memory=256KiB)"));
            for (truth, got) in epochs(&exact).iter().zip(epochs(&run(&graph))) {
                assert_eq!(got["packets"], truth["packets"]);
                let top = &truth["answers"][0];
                let first = &got["answers"][0];
                assert_eq!(first["key"], top["key"], "{sketch} {by}");
                let size = top["estimate"].as_u64().unwrap();
                assert!(first["lower"].as_u64().unwrap() <= size && size <= first["upper"].as_u64().unwrap());
            }
        }
    }
}

#[test]
fn packets_pass_untouched() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, stages: &str| {
        let path = dir.path().join(name);
        let to = path.display();
        run(&format!("in :: synth(traffic=\"{TRAFFIC}\") -> {stages} out :: pcap(path=\"{to}\")"));
        std::fs::read(path).unwrap()
    };
    let plain = file("plain.pcap", "reframe(hold=64us) ->");
    let seen = file("seen.pcap", "reframe(hold=64us) -> measure(epoch=100us) -> measure(task=entropy) ->");
    assert!(plain == seen, "a measured pipeline writes other bytes");
}

#[test]
fn epochs_by_time_begin_whole_lengths_apart_and_lose_nothing() {
    for by in ["trains", "packets"] {
        let report = run(&graph(&format!("measure(sketch=exact, epoch=1ms, keep=1000, by={by})")));
        let all = epochs(&report);
        // 6000 packets at 1 Mpps take 6 ms.
        assert!((6..=8).contains(&all.len()), "{} epochs", all.len());
        let number = |e: &Value, name: &str| e[name].as_u64().unwrap();
        for pair in all.windows(2) {
            assert_eq!((number(&pair[1], "start_ns") - number(&pair[0], "start_ns")) % 1_000_000, 0);
            assert!(number(&pair[1], "start_ns") >= number(&pair[0], "end_ns"));
        }
        let sum: u64 = all.iter().map(|e| number(e, "packets")).sum();
        assert_eq!(sum, counter(&report, "packets_counted"));
        assert_eq!(sum, all.iter().map(|e| number(e, "weight")).sum::<u64>());
    }
}

/// Epochs by time lie where the clock says, whenever the first packet came; only the first and the last one
/// may be cut.
#[test]
fn epochs_by_time_lie_on_the_clock() {
    let report = run(&graph("measure(sketch=exact, epoch=700us, keep=1000)"));
    let all = epochs(&report);
    assert!(all.len() > 5);
    for (i, e) in all.iter().enumerate() {
        let number = |name: &str| e[name].as_u64().unwrap();
        assert_eq!(
            (number("start_ns") % 700_000, number("end_ns") - number("start_ns")),
            (0, 700_000),
            "{e}"
        );
        assert!(number("start_ns") <= number("first_packet_ns"), "{e}");
        assert!(number("first_packet_ns") <= number("last_packet_ns"), "{e}");
        assert!(number("last_packet_ns") < number("end_ns"), "{e}");
        assert_eq!(e["partial"], i == 0 || i + 1 == all.len(), "epoch {i} of {}", all.len());
    }
    let by_packets = run(&graph("measure(sketch=exact, epoch=2000p, keep=1000)"));
    assert!(epochs(&by_packets).iter().all(|e| e["partial"] == false && e["end_ns"] == e["last_packet_ns"]));
}

/// A stretch in which nothing came is an epoch that changes are measured against: what was there goes, what
/// comes after is new. The stage says what the verb says.
#[test]
fn changes_are_against_the_epoch_before_even_if_nothing_came_in_it() {
    let slow = "flows=1,packets=3,slf=1,rate=1pps,seed=1";
    let report = run(&format!(
        "in :: synth(traffic=\"{slow}\") -> measure(task=heavy-changes, sketch=exact, epoch=400ms, keep=100) \
         -> out :: null"
    ));
    let all = epochs(&report);
    let of = |e: &Value| (e["packets"].as_u64().unwrap(), e["answers"][0]["direction"].clone());
    let got: Vec<_> = all.iter().map(of).collect();
    let (up, down) = (Value::from("up"), Value::from("down"));
    let expected = [(1, Value::Null), (0, down.clone()), (1, up.clone()), (0, down), (1, up)].to_vec();
    assert_eq!(got, expected);
    for pair in all.windows(2) {
        assert_eq!(pair[0]["end_ns"], pair[1]["start_ns"]);
    }
}

/// A seed that is named is taken; else a replay has that of the run, and gives the same answers every time.
#[test]
fn seeds_of_replays() {
    let of = |settings: &str, seed: u64| {
        let text = graph(&format!("measure(sketch=space-saving, memory=6KiB, top=50{settings})"));
        let plan = Plan::from_graph(&text, None, None, Path::new("")).unwrap();
        let report = Driver::new(plan.build(seed).unwrap()).run(&mut |_| ControlFlow::Continue(())).unwrap();
        epochs(&report)
    };
    assert_eq!(of("", 1), of("", 1));
    assert_eq!(of(", seed=5", 1), of(", seed=5", 2));
}

/// A silence of hours costs nothing: no epoch ends in which no packet came.
#[test]
fn silence_is_no_epoch() {
    let slow = "flows=3,packets=4,slf=1,rate=1pps,seed=1";
    let report =
        run(&format!("in :: synth(traffic=\"{slow}\") -> measure(epoch=1ms, keep=100) -> out :: null"));
    assert_eq!(epochs(&report).len(), 4);
    let none = run("in :: synth -> measure(task=entropy, rules=\"src host 203.0.113.77\") -> out :: null");
    assert!(epochs(&none).is_empty());
}

#[test]
fn rules_select_what_is_measured() {
    for by in ["trains", "packets"] {
        let stages =
            format!("counter(rules=\"tcp\") -> measure(rules=\"tcp\", by={by}, sketch=exact, key=5tuple)");
        let report = run(&graph(&stages));
        let tcp = report.stages[0].counter("packets_counted").unwrap();
        assert!(tcp > 300 && tcp < 5700);
        assert_eq!(counter(&report, "packets_counted"), tcp);
        assert!(
            epochs(&report)[0]["answers"]
                .as_array()
                .unwrap()
                .iter()
                .all(|a| a["key"].as_str().unwrap().ends_with(" tcp"))
        );
    }
}

#[test]
fn what_cannot_be_measured_is_told_before_it_runs() {
    for (settings, word) in [
        ("epoch=0p", "empty"),
        ("epoch=soon", "epoch"),
        ("key=source", "key"),
        ("task=superspreaders, key=5tuple", "src"),
        ("task=entropy, sketch=mrac", "entropy"),
        ("sketch=mrac, task=size-distribution, weight=bytes", "packets"),
        ("sketch=two-level, task=superspreaders, memory=2KiB", "needs at least"),
        ("sketch=hyperloglog", "possible"),
        ("task=everything", "possible"),
    ] {
        let text = graph(&format!("measure({settings})"));
        let error =
            Plan::from_graph(&text, None, None, Path::new("")).and_then(|plan| plan.build(1)).unwrap_err();
        assert!(error.to_string().contains(word), "{settings}: {error}");
    }
}

/// Who asks a running pipeline gets its figures, and the run isn't disturbed.
#[test]
fn a_board_shows_a_run_that_goes_on() {
    let text = graph("measure(epoch=1000p)").replace("packets=6000", "packets=400000");
    let plan = Plan::from_graph(&text, None, None, Path::new("")).unwrap();
    let monitor = Monitor::default();
    let asked = monitor.clone();
    let asker = std::thread::spawn(move || {
        let mut seen = Vec::new();
        for _ in 0..20 {
            let Some(report) = asked.ask(Duration::from_millis(200)) else { continue };
            seen.push(report.sources[0].packets);
        }
        seen
    });
    let mut run = Driver::new(plan.build(1).unwrap()).monitor(monitor);
    let report = run.run(&mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(report.sources[0].packets, 400_000);
    let seen = asker.join().unwrap();
    assert!(seen.is_sorted() && *seen.last().unwrap() <= 400_000, "{seen:?}");
}
