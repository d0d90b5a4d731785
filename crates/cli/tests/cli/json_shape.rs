//! The JSON results keep their keys and the kinds of their values: programs depend on them.

use crate::common::{self, campus, run, small, text};
use serde_json::Value;

/// The shape of a value.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// A count or a time in ns: never negative, no fraction.
    Whole,
    Number,
    Text,
    List,
    Object,
    /// A whole number or null.
    MaybeWhole,
}
use Kind::{List, MaybeWhole, Number, Object, Text, Whole};

#[track_caller]
fn has(value: &Value, table: &[(&str, Kind)]) {
    for (path, kind) in table {
        let found = path.split('.').try_fold(value, |at, key| match at {
            Value::Array(list) => list.get(key.parse::<usize>().ok()?),
            other => other.get(key),
        });
        let Some(found) = found else { panic!("no {path}") };
        let fits = match kind {
            Whole => found.is_u64(),
            Number => found.is_number(),
            Text => found.is_string(),
            List => found.is_array(),
            Object => found.is_object(),
            MaybeWhole => found.is_u64() || found.is_null(),
        };
        assert!(fits, "{path} is not {kind:?}: {found}");
    }
}

/// No key may be in another style than snake_case.
fn snake_case(value: &Value) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                assert!(
                    key.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'),
                    "{key}"
                );
                snake_case(inner);
            }
        }
        Value::Array(list) => list.iter().for_each(snake_case),
        _ => {}
    }
}

const TRACE: &[(&str, Kind)] = &[
    ("file", Text),
    ("records", Whole),
    ("bytes", Whole),
    ("duration_ns", Whole),
    ("skipped", Object),
    ("skipped.non_ip", Whole),
    ("skipped.unsupported_link_type", Whole),
    ("skipped.truncated", Whole),
    ("ipv6", Whole),
    ("fragments", Whole),
    ("flows_bidirectional", Whole),
    ("truncated_at_byte", MaybeWhole),
    ("ip", Object),
    ("tcp", Object),
    ("top_endpoints", List),
];

const SEQUENCE: &[(&str, Kind)] = &[
    ("packets", Whole),
    ("flows", Whole),
    ("single_packet_flows", Whole),
    ("runs", Whole),
    ("slf", Number),
    ("pairs", Whole),
    ("share_spatial_distance_gt_1", Number),
    ("flow_size.max", Whole),
    ("windows", List),
    ("flow_switches.0.batch", Whole),
    ("flow_switches.0.batches", Whole),
    ("flow_switches.0.unordered", Number),
    ("flow_switches.0.ordered", Number),
];

const DISTRIBUTION: &[(&str, Kind)] = &[
    ("mean", Number),
    ("p25", Number),
    ("p50", Number),
    ("p75", Number),
    ("p90", Number),
    ("p99", Number),
    ("histogram.0.from", Whole),
    ("histogram.0.to", Whole),
    ("histogram.0.count", Whole),
];

const WINDOW: &[(&str, Kind)] = &[
    ("window_ns", Whole),
    ("burst", Whole),
    ("batches", Whole),
    ("mean_train", Number),
    ("share_packets_in_trains", Number),
    ("histogram", List),
    ("p25", Number),
    ("p50", Number),
    ("p75", Number),
    ("p90", Number),
    ("slf_after", Number),
];

const ACKS: &[(&str, Kind)] =
    &[("pure_acks", Whole), ("ack_coalescable_simple", Number), ("ack_coalescable_strict", Number)];

const DELAYS: &[(&str, Kind)] = &[
    ("wait_ns.mean", Number),
    ("wait_ns.p50", Whole),
    ("wait_ns.p90", Whole),
    ("wait_ns.p99", Whole),
    ("sojourn_ns.mean", Number),
    ("sojourn_ns.p50", Whole),
    ("sojourn_ns.p90", Whole),
    ("sojourn_ns.p99", Whole),
];

const SOLUTION: &[(&str, Kind)] = &[
    ("mean_batch", Number),
    ("sd_batch", Number),
    ("mean_queue", Number),
    ("p_loss", Number),
    ("throughput_pps", Number),
    ("offered_pps", Number),
    ("utilization", Number),
    ("load", Number),
    ("residual", Number),
];

/// Service times that all verbs of `model` take.
const SERVICE: [&str; 4] = ["--service-base", "600ns", "--service-per-packet", "77ns"];

fn model(words: &[&str]) -> Value {
    let all = ["model"].iter().chain(words).chain(&["--format", "json"]);
    let result = run(all).with(0).json();
    assert_eq!(result["schema"], 1);
    snake_case(&result);
    result
}

#[test]
fn model_solve() {
    let machine = ["solve", "--queue", "512", "--batch", "32", "--rate", "9mpps", "--simulate", "2k"];
    let result = model(&[&machine[..], &SERVICE].concat());
    has(&result, SOLUTION);
    has(&result, DELAYS);
    has(&result, &[("elapsed_ns", Whole), ("batch_pmf", List), ("queue_pmf", List), ("simulation", Object)]);
    assert_eq!(result["batch_pmf"].as_array().unwrap().len(), 33);
    assert_eq!(result["queue_pmf"].as_array().unwrap().len(), 513);
}

#[test]
fn model_sweep_and_dimension() {
    let loads =
        ["sweep", "--queue", "512", "--batch", "32", "--loads", "0.5,1.1", "--processes", "poisson,negbin:2"];
    let result = model(&[&loads[..], &SERVICE].concat());
    let rows = result["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    for row in rows {
        has(row, SOLUTION);
        has(row, DELAYS);
        has(row, &[("process", Text)]);
    }
    let target = ["dimension", "--rate", "20mpps", "--queues", "512", "--batches", "32", "--slot", "10ns"];
    let result = model(&[&target[..], &SERVICE].concat());
    has(
        &result,
        &[("cores", Whole), ("queue", Whole), ("batch", Whole), ("considered", List), ("per_core", Object)],
    );
    has(&result["per_core"], SOLUTION);
    let considered = result["considered"].as_array().unwrap();
    let cores = result["cores"].as_u64().unwrap();
    assert!(considered.iter().any(|c| c["cores"] == cores - 1 && c["met"] == false), "the next smaller one");
}

#[test]
fn model_fit_and_compare() {
    let dir = common::scratch();
    let log = dir.path().join("polls.csv");
    let (mut lines, mut time) = ("time_ns,batch\n".to_owned(), 0);
    for i in 0..400u64 {
        let batch = 5 + i * 7 % 11;
        lines += &format!("{time},{batch}\n");
        time += 600 + 77 * batch;
    }
    std::fs::write(&log, lines).unwrap();
    let result = model(&["fit", text(&log)]);
    has(&result, &[("service_base_ns", Number), ("service_per_packet_ns", Number), ("r_squared", Number)]);
    has(&result, &[("global", Object), ("per_rate", List), ("by_size", List), ("polls", Whole)]);
    assert!((result["service_base_ns"].as_f64().unwrap() - 600.0).abs() < 1e-6);
    let result = model(&["compare", text(&log)]);
    has(&result["rates"][0], &[("relative_error", Number), ("jsd", Number), ("predicted", Object)]);
    has(&result["rates"][0]["predicted"], SOLUTION);
}

#[test]
fn analyze() {
    let words = ["analyze", "--format", "json", "--window", "16us,1ms", "--burst", "8"];
    let one = run(words.iter().chain(&[text(&campus())])).with(0).json();
    assert_eq!(one["schema"], 1);
    snake_case(&one);
    has(&one, TRACE);
    for name in ["ip", "tcp"] {
        let sequence = &one[name];
        has(sequence, SEQUENCE);
        for distribution in ["spatial_distance", "temporal_distance_ns", "flow_size"] {
            has(&sequence[distribution], DISTRIBUTION);
        }
        let windows = sequence["windows"].as_array().unwrap();
        let asked: Vec<_> = windows.iter().map(|w| (w["window_ns"].as_u64(), w["burst"].as_u64())).collect();
        assert_eq!(
            asked,
            [(Some(16_000), Some(8)), (Some(1_000_000), Some(8))],
            "the windows asked for, in order"
        );
        for window in windows {
            has(window, WINDOW);
            if name == "tcp" {
                has(window, ACKS);
            }
        }
    }
    assert_eq!(one["records"], 24_000);
    assert!(one["truncated_at_byte"].is_null());

    let (campus, small) = (campus(), small());
    let two = run(words.iter().chain(&[text(&campus), text(small)])).with(0).json();
    assert_eq!(two["schema"], 1);
    assert_eq!(two["total"]["records"], 26_000);
    let traces = two["traces"].as_array().unwrap();
    assert_eq!(traces.len(), 2);
    traces.iter().for_each(|t| has(t, TRACE));
    assert_eq!(traces[0]["ip"], one["ip"], "each trace is reported as alone");
    has(&two["total"]["ip"], SEQUENCE);
}

#[test]
fn analyze_of_no_ip_packets() {
    let dir = common::scratch();
    let file = dir.path().join("none.pcap");
    let header = [0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0];
    std::fs::write(&file, header).unwrap();
    let none = run(["analyze", "--format", "json", text(&file)]).with(0).json();
    has(&none, TRACE);
    assert_eq!((none["records"].as_u64(), none["ip"]["packets"].as_u64()), (Some(0), Some(0)));
    assert!(none["ip"]["slf"].is_null(), "a ratio over nothing is null");
    run(["analyze", text(&file)]).with(0);
    let out = dir.path().join("out.pcap");
    let nothing = run(["reframe", "--format", "json", text(&file), text(&out)]).with(0).json();
    has(&nothing, COUNTERS);
    assert_eq!(std::fs::metadata(&out).unwrap().len(), 24);
}

const COUNTERS: &[(&str, Kind)] = &[
    ("packets_in", Whole),
    ("packets_out", Whole),
    ("packets_coalesced", Whole),
    ("packets_bypassed", Whole),
    ("dropped", Object),
    ("trains", Whole),
    ("futile_wait_ns", Whole),
    ("released.full", Whole),
    ("released.deadline", Whole),
    ("released.capacity", Whole),
    ("released.bypass", Whole),
    ("released.drain", Whole),
    ("held_max", Whole),
    ("elapsed_ns", Whole),
    ("cpu_ns", Whole),
    ("truncated_at_byte", MaybeWhole),
];

const RATIOS: &[(&str, Kind)] = &[("slf_in", Number), ("slf_out", Number), ("mean_train", Number)];

/// Times are whole numbers of ns; a mean of them needn't be.
const DELAY: &[(&str, Kind)] =
    &[("mean", Number), ("p50", Whole), ("p90", Whole), ("p99", Whole), ("max", Whole)];

#[test]
fn reframe() {
    let result = run(["reframe", text(small()), "null", "--format", "json"]).with(0).json();
    assert_eq!(result["schema"], 1);
    snake_case(&result);
    has(&result, COUNTERS);
    has(&result, RATIOS);
    has(&result["delay_ns"], DELAY);
    assert!(result.get("classes").is_none(), "no classes were set");

    let classes =
        ["--class", "dns: udp port 53 => bypass", "--class", "web: tcp port 80,443 => hold=1ms, burst=8"];
    let words = ["reframe", text(small()), "null", "--format", "json"];
    let result = run(words.iter().chain(&classes)).with(0).json();
    snake_case(&result);
    let per_class = result["classes"].as_array().unwrap();
    let names: Vec<_> = per_class.iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["default", "dns", "web"]);
    for class in per_class {
        has(
            class,
            &[("packets_in", Whole), ("packets_out", Whole), ("trains", Whole), ("futile_wait_ns", Whole)],
        );
        has(class, &[("delay_ns", Object), ("released", Object), ("dropped", Object), ("held_max", Whole)]);
        // A class without packets has none of these.
        if class["packets_in"] != 0 {
            has(class, RATIOS);
        }
    }
    // Each class has the same in a pipeline.
    let traffic = text(small());
    let graph =
        "reframe(class=[\"dns: udp port 53 => bypass\", \"web: tcp port 80,443 => hold=1ms, burst=8\"])";
    let run = run(["run", "-i", traffic, "-o", "null", "-e", graph, "--format", "json"]).with(0).json();
    let stage = run["stages"].as_array().unwrap().iter().find(|s| s["type"] == "reframe").unwrap();
    assert_eq!(stage["report"]["classes"], result["classes"], "{stage}");
    for key in ["packets_in", "packets_out", "packets_bypassed", "trains", "futile_wait_ns"] {
        let sum: u64 = per_class.iter().map(|c| c[key].as_u64().unwrap()).sum();
        assert_eq!(result[key], sum, "{key} is the sum of the classes'");
    }
    let held = &per_class[2];
    assert!(held["delay_ns"]["max"].as_u64() <= Some(1_000_000), "{held}");
}

#[test]
fn reframe_with_an_adaptive_hold() {
    let campus = campus();
    let words = ["reframe", text(&campus), "null", "--format", "json", "--hold", "1ms"];
    let adaptive = ["--admit", "adaptive", "--budget", "delay=30us"];
    let result = run(words.iter().chain(&adaptive)).with(0).json();
    snake_case(&result);
    has(&result, COUNTERS);
    has(&result, &[("price_ns", Whole)]);
    // A short trace, of which the beginning is spent on learning.
    let mean = result["delay_ns"]["mean"].as_f64().unwrap();
    assert!((15_000.0..36_000.0).contains(&mean), "{mean}");
    assert!(result["delay_ns"]["max"].as_u64() <= Some(1_000_000));
    let again = run(words.iter().chain(&adaptive).chain(&["--workers", "3"])).with(0).json();
    for key in ["trains", "slf_out", "delay_ns", "price_ns", "released"] {
        assert_eq!(result[key], again[key], "{key} on three threads");
    }
}

#[test]
fn analyze_with_a_frontier() {
    let dir = common::scratch();
    let (page, campus) = (dir.path().join("page.html"), campus());
    let words = ["analyze", "--frontier", "--report", text(&page), text(&campus)];
    let result = run(words.iter().chain(&["--format", "json"])).with(0).json();
    snake_case(&result);
    let frontier = &result["frontier"];
    has(frontier, &[("burst", Whole), ("longest_ns", Whole), ("adaptive", List), ("clairvoyant", List)]);
    let holds = frontier["holds"].as_array().unwrap();
    assert_eq!(holds.len(), 3);
    for hold in holds {
        let point = &[("mean_train", Number), ("mean_delay_ns", Number), ("futile_wait_ns", Number)];
        let curves = [hold, &hold["adaptive"], &hold["clairvoyant"]];
        curves.iter().for_each(|p| has(p, point));
        let [fixed, adaptive, knowing] = curves.map(|p| p["mean_delay_ns"].as_f64().unwrap());
        assert!(knowing < adaptive && adaptive < fixed, "{hold}");
    }
    assert!(std::fs::read_to_string(&page).unwrap().contains("What trains cost"));
    let table = run(words).with(0);
    assert!(String::from_utf8(table.stdout).unwrap().contains("Mean delay at equal mean train"));
    run(["analyze", "--frontier", "--burst", "300", text(&campus)]).with(2).silent().saying(&["--burst 300"]);
}

#[test]
fn synth() {
    let result = run(["synth", "--packets", "100", "--seed", "3", "--format", "json", "null"]).with(0).json();
    assert_eq!((&result["schema"], &result["packets"], &result["seed"]), (&1.into(), &100.into(), &3.into()));
    has(
        &result,
        &[("bytes", Whole), ("captured_bytes", Whole), ("duration_ns", Whole), ("file_bytes", MaybeWhole)],
    );
    snake_case(&result);
}

/// A key that says nothing of a kind of groups is there nevertheless.
#[test]
fn groups_have_the_same_keys_whatever_they_are_by() {
    let groups = |by: &str| {
        let report = run(["analyze", text(small()), "--by", by, "--format", "json"]).with(0).json();
        report["groups"].as_object().unwrap().clone()
    };
    assert_eq!(groups("dst-port").get("slice_ns"), Some(&Value::Null));
    assert_eq!(groups("slice 1ms")["slice_ns"], 1_000_000);
}
