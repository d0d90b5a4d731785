//! `measure`: every task on bundled and real traces, beside the truth; states saved, merged, asked; what
//! can't be.

use std::path::{Path, PathBuf};

use crate::common::{campus, run, scratch, small, text};
use serde_json::Value;

const TASKS: [(&str, &str); 8] = [
    ("flow-size", "src"),
    ("heavy-hitters", "src"),
    ("heavy-changes", "src"),
    ("superspreaders", "src"),
    ("ddos-victims", "dst"),
    ("size-distribution", "5tuple"),
    ("cardinality", "5tuple"),
    ("entropy", "src-dst"),
];

fn measure(trace: &Path, words: &[&str]) -> Value {
    let all = ["measure", text(trace), "--format", "json"];
    run(all.iter().chain(words)).with(0).json()
}

fn no_nan(value: &Value) {
    match value {
        Value::Object(map) => map.values().for_each(no_nan),
        Value::Array(list) => list.iter().for_each(no_nan),
        Value::Number(n) => assert!(n.as_f64().unwrap().is_finite()),
        _ => {}
    }
}

/// Checks the keys that every result must have, and the figures that hold for any trace.
fn sane(result: &Value, task: &str) {
    assert_eq!((&result["schema"], &result["task"]), (&1.into(), &task.into()));
    for key in ["sketch", "key", "aggregate"] {
        assert!(result[key].is_string(), "{key}");
    }
    assert!(result["memory_bytes"].as_u64().unwrap() <= 1 << 20);
    no_nan(result);
    let epochs = result["epochs"].as_array().unwrap();
    assert!(!epochs.is_empty());
    for epoch in epochs {
        let flows = epoch["flows"].as_u64().unwrap();
        assert!(epoch["packets"].is_u64() && epoch["weight"].is_u64());
        if let Some(answers) = epoch["answers"].as_array() {
            let size = |a: &Value, key: &str| a[key].as_u64().unwrap();
            assert!(
                answers.windows(2).all(|w| size(&w[0], "estimate") >= size(&w[1], "estimate")),
                "{epoch}"
            );
            for a in answers {
                assert!(a["key"].is_string());
                assert!(
                    size(a, "lower") <= size(a, "estimate") && size(a, "estimate") <= size(a, "upper"),
                    "{a}"
                );
                let (estimate, truth) = (size(a, "estimate") as f64, size(a, "true") as f64);
                assert!(
                    (estimate - truth).abs() <= 0.4 * truth + 0.01 * epoch["weight"].as_f64().unwrap() + 3.0,
                    "{a}"
                );
            }
        } else if let Some(sizes) = epoch["distribution"].as_array() {
            let true_flows: u64 = sizes.iter().map(|s| s["true"].as_u64().unwrap()).sum();
            assert_eq!(true_flows, flows);
            assert!(epoch["wmrd"].as_f64().is_none_or(|w| w < 0.5), "{}", epoch["wmrd"]);
        } else {
            let (estimate, truth) = (epoch["estimate"].as_f64().unwrap(), epoch["true"].as_f64().unwrap());
            assert!((estimate - truth).abs() <= 0.1 * truth + 0.2, "{task}: {estimate} instead of {truth}");
            assert!(
                epoch["lower"].as_f64().unwrap() <= estimate && estimate <= epoch["upper"].as_f64().unwrap()
            );
            assert!(epoch.get("relative_error").is_some());
        }
    }
}

#[test]
fn every_task_beside_the_truth() {
    for (task, key) in TASKS {
        for aggregate in ["grr", "lru", "off"] {
            let words = [
                "--task",
                task,
                "--key",
                key,
                "--aggregate",
                aggregate,
                "--compare",
                "exact",
                "--epoch",
                "8000p",
            ];
            let result = measure(&campus(), &words);
            sane(&result, task);
            let packets: Vec<u64> =
                result["epochs"].as_array().unwrap().iter().map(|e| e["packets"].as_u64().unwrap()).collect();
            assert_eq!(packets, [8000, 8000, 8000]);
            assert_eq!((&result["key"], &result["aggregate"]), (&key.into(), &aggregate.into()));
        }
        for format in ["table", "csv"] {
            let ended = run(["measure", text(small()), "--task", task, "--format", format]).with(0);
            assert!(!ended.stdout.is_empty());
        }
    }
}

/// Every sketch answers what the documentation's table says, and refuses the rest with exit 2 before it reads
/// anything.
#[test]
fn which_sketch_answers_what() {
    let answers = [
        ("count-min", "flow-size heavy-hitters"),
        (
            "flow-radar",
            "flow-size heavy-hitters heavy-changes superspreaders ddos-victims size-distribution cardinality entropy",
        ),
        ("space-saving", "flow-size heavy-hitters"),
        ("rev-sketch", "flow-size heavy-hitters heavy-changes"),
        ("two-level", "superspreaders ddos-victims"),
        ("mrac", "size-distribution cardinality"),
        ("fm", "cardinality"),
        ("linear-counting", "cardinality"),
        ("univmon", "flow-size heavy-hitters heavy-changes cardinality entropy"),
        (
            "exact",
            "flow-size heavy-hitters heavy-changes superspreaders ddos-victims size-distribution cardinality entropy",
        ),
    ];
    for (sketch, can) in answers {
        for (task, _) in TASKS {
            let ended =
                run(["measure", text(small()), "--sketch", sketch, "--task", task, "--format", "json"]);
            if can.split(' ').any(|t| t == task) {
                assert_eq!(ended.with(0).json()["sketch"], sketch);
            } else {
                ended.with(2).silent();
            }
        }
    }
}

#[test]
fn the_exact_sketch_is_exact_and_bytes_are_bytes() {
    let words = [
        "--sketch",
        "exact",
        "--compare",
        "exact",
        "--weight",
        "bytes",
        "--key",
        "5tuple",
        "--top",
        "1000000",
    ];
    let result = measure(small(), &words);
    let epoch = &result["epochs"][0];
    let answers = epoch["answers"].as_array().unwrap();
    assert_eq!(answers.len() as u64, epoch["flows"].as_u64().unwrap());
    for a in answers {
        assert!(a["estimate"] == a["true"] && a["lower"] == a["upper"]);
    }
    let sum: u64 = answers.iter().map(|a| a["estimate"].as_u64().unwrap()).sum();
    assert_eq!(sum, epoch["weight"].as_u64().unwrap());
    assert_eq!(epoch["recall"], 1.0);
    let all = run(["analyze", text(small()), "--format", "json"]).with(0).json();
    assert_eq!(sum, all["bytes"].as_u64().unwrap());
}

#[test]
fn both_ip_versions_are_one_answer() {
    let words = ["synth", "--packets", "20000", "--flows", "300", "--ipv6", "0.5", "--seed", "4"];
    let dir = scratch();
    let trace = dir.path().join("both.pcap");
    run(words.iter().chain(&[text(&trace)])).with(0);
    for (task, key) in TASKS {
        let result =
            measure(&trace, &["--task", task, "--key", key, "--compare", "exact", "--epoch", "10000p"]);
        sane(&result, task);
    }
    let top = measure(&trace, &["--sketch", "exact", "--key", "5tuple", "--top", "300"]);
    let keys: Vec<&str> =
        top["epochs"][0]["answers"].as_array().unwrap().iter().map(|a| a["key"].as_str().unwrap()).collect();
    assert!(keys.iter().any(|k| k.starts_with('[')) && keys.iter().any(|k| !k.starts_with('[')));
    // A flow that was printed can be asked for.
    let one =
        measure(&trace, &["--task", "flow-size", "--key", "5tuple", "--flow", keys[0], "--flow", keys[1]]);
    let asked: Vec<&str> =
        one["epochs"][0]["answers"].as_array().unwrap().iter().map(|a| a["key"].as_str().unwrap()).collect();
    assert_eq!(asked.len(), 2);
    assert!(asked.contains(&keys[0]) && asked.contains(&keys[1]));
}

#[test]
fn epochs_by_time_and_over_a_gap() {
    let result = measure(&campus(), &["--epoch", "10ms", "--task", "cardinality", "--compare", "exact"]);
    let epochs = result["epochs"].as_array().unwrap();
    let sum: u64 = epochs.iter().map(|e| e["packets"].as_u64().unwrap()).sum();
    assert_eq!(sum, 24_000);
    assert!(epochs.len() > 3);
    for pair in epochs.windows(2) {
        assert_eq!(pair[0]["end_ns"], pair[1]["start_ns"]);
        assert_eq!(pair[0]["end_ns"].as_u64().unwrap() - pair[0]["start_ns"].as_u64().unwrap(), 10_000_000);
    }
    // Two packets a day apart: an epoch each, and one between that stands for all empty ones.
    let dir = scratch();
    let (a, both) = (dir.path().join("a.pcap"), dir.path().join("both.pcap"));
    run(["synth", "--packets", "1", "--size", "64", text(&a)]).with(0);
    let one = std::fs::read(&a).unwrap();
    let mut bytes = one.clone();
    let mut second = one[24..].to_vec();
    let seconds = u32::from_le_bytes(second[..4].try_into().unwrap()) + 86_400;
    second[..4].copy_from_slice(&seconds.to_le_bytes());
    bytes.extend(second);
    std::fs::write(&both, bytes).unwrap();
    let result = measure(&both, &["--epoch", "1s", "--task", "heavy-changes", "--sketch", "exact"]);
    let packets: Vec<u64> =
        result["epochs"].as_array().unwrap().iter().map(|e| e["packets"].as_u64().unwrap()).collect();
    assert_eq!(packets, [1, 0, 1]);
    let directions: Vec<&Value> = (0..3).map(|i| &result["epochs"][i]["answers"][0]["direction"]).collect();
    assert_eq!(directions, [&Value::Null, &"down".into(), &"up".into()]);
}

/// IPv6 that first comes in a later epoch has changed since the one before, when there was none; also in a
/// saved state.
#[test]
fn changes_of_an_ip_version_that_comes_later() {
    let dir = scratch();
    let file = |name: &str| dir.path().join(name);
    let (four, six, both, state) = (file("4.pcap"), file("6.pcap"), file("both.pcap"), file("state"));
    for (share, file) in [("0", &four), ("1", &six)] {
        let words = ["synth", "--packets", "100", "--flows", "5", "--ipv6", share, "--seed", "4", text(file)];
        run(words).with(0);
    }
    let mut bytes = std::fs::read(&four).unwrap();
    bytes.extend(&std::fs::read(&six).unwrap()[24..]);
    std::fs::write(&both, bytes).unwrap();
    let words = ["--task", "heavy-changes", "--sketch", "exact", "--epoch", "100p", "--save", text(&state)];
    let result = measure(&both, &words);
    let up = |result: &Value| {
        let rows = result["epochs"][1]["answers"].as_array().unwrap();
        let up = rows.iter().filter(|r| r["direction"] == "up" && r["key"].as_str().unwrap().contains(':'));
        up.map(|r| r["estimate"].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!(up(&result), 100);
    let asked = run(["measure", "query", text(&state), "--format", "json"]).with(0).json();
    assert_eq!(asked["epochs"], result["epochs"]);
}

/// Shards, saved and merged, say what one pass says; a state answers other questions, too.
#[test]
fn states_are_saved_merged_and_asked() {
    let dir = scratch();
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    for (sketch, task) in [
        ("count-min", "heavy-hitters"),
        ("flow-radar", "cardinality"),
        ("two-level", "superspreaders"),
        ("linear-counting", "cardinality"),
        ("univmon", "entropy"),
        ("exact", "size-distribution"),
    ] {
        let (a, b) = (file("a.state"), file("b.state"));
        let words = ["--sketch", sketch, "--task", task];
        let saved = measure(&campus(), &[&words[..], &["--save", &a]].concat());
        measure(small(), &[&words[..], &["--save", &b]].concat());
        let asked = run(["measure", "query", &a, "--format", "json"]).with(0).json();
        assert_eq!(asked["epochs"], saved["epochs"], "{sketch}: what is saved says the same");
        let merged = file("merged.state");
        let both = run(["measure", "merge", &a, &b, "--save", &merged, "--format", "json"]).with(0).json();
        assert_eq!(both["epochs"][0]["packets"], 26_000);
        let again = run(["measure", "query", &merged, "--format", "json"]).with(0).json();
        assert_eq!(again["epochs"], both["epochs"]);
        // Merging in the other order is the same.
        let other = run(["measure", "merge", &b, &a, "--format", "json"]).with(0).json();
        if sketch != "count-min" && sketch != "univmon" {
            assert_eq!(other["epochs"], both["epochs"], "{sketch}");
        }
    }
    let univmon = file("u.state");
    measure(&campus(), &["--sketch", "univmon", "--save", &univmon]);
    for task in ["cardinality", "entropy", "heavy-hitters", "flow-size"] {
        run(["measure", "query", &univmon, "--task", task]).with(0);
    }
    run(["measure", "query", &univmon, "--task", "superspreaders"])
        .with(2)
        .silent()
        .saying(&["superspreaders"]);
    run(["measure", "query", &univmon, "--task", "size-distribution"]).with(2).silent().saying(&["univmon"]);
}

#[test]
fn states_that_do_not_fit_or_are_damaged() {
    let dir = scratch();
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let base = file("base");
    measure(small(), &["--save", &base]);
    for (name, words) in [
        ("seeds", &["--seed", "9"][..]),
        ("shapes", &["--memory", "64KiB"]),
        ("key", &["--key", "dst"]),
        ("sketch", &["--sketch", "univmon"]),
        ("weight", &["--weight", "bytes"]),
    ] {
        let other = file(name);
        measure(small(), &[words, &["--save", &other]].concat());
        run(["measure", "merge", &base, &other]).with(2).silent().saying(&[name]);
    }
    let bytes = std::fs::read(&base).unwrap();
    for (at, byte) in [(0, 0u8), (9, 9), (20, 0xff), (bytes.len() / 2, 0x55), (bytes.len() - 1, 0x55)] {
        let mut bad = bytes.clone();
        bad[at] ^= byte | 1;
        let damaged = file("damaged");
        std::fs::write(&damaged, bad).unwrap();
        run(["measure", "query", &damaged]).with(2).silent().saying(&["damaged"]);
    }
    std::fs::write(file("empty"), b"").unwrap();
    run(["measure", "query", &file("empty")]).with(2).silent();
    run(["measure", "query", &file("absent")]).with(2).silent().saying(&["absent"]);
    run(["measure", "query", text(small())]).with(2).silent().saying(&["no state"]);
}

#[test]
fn what_can_not_be() {
    for (words, why) in [
        (&["--memory", "0"][..], "bytes"),
        (&["--memory", "100", "--sketch", "rev-sketch"], "needs at least"),
        (&["--epoch", "0p"], "epoch"),
        (&["--epoch", "12"], "epoch"),
        (&["--key", "source"], "src-dst"),
        (&["--key", "src/0"], "prefix"),
        (&["--task", "superspreaders", "--key", "dst"], "key"),
        (&["--task", "entropy", "--sketch", "fm"], "fm"),
        (&["--task", "size-distribution", "--weight", "bytes"], "packets"),
        (&["--error", "0"], "error"),
        (&["--error", "2"], "error"),
        (&["--error", "nan"], "error"),
        (&["--error", "1e-9", "--sketch", "count-min"], "count-min"),
        (&["--task", "cardinality", "--flow", "10.0.0.1"], "flow-size"),
        (&["--task", "flow-size", "--flow", "ten"], "ten"),
        (&["--top", "0"], "top"),
    ] {
        run(["measure", text(small())].iter().chain(words)).with(2).silent().saying(&[why]);
    }
    run(["measure"]).with(2).silent().saying(&["<TRACE>"]);
    run(["measure", "no-such-file.pcap"]).with(2).silent().saying(&["no-such-file.pcap"]);
}

/// An option without an effect is told of, and is no error: one of several tasks may have a use for it.
#[test]
fn a_list_that_no_task_has_is_told_of() {
    let measured = |words: &[&str]| run(["measure", text(small()), "--top", "5"].iter().chain(words)).with(0);
    let told = "--top has no effect";
    measured(&["--task", "cardinality"]).saying(&[told, "cardinality lists no keys"]);
    measured(&["--task", "flow-size", "--flow", "10.0.0.1"])
        .saying(&[told, "flow-size lists the keys of --flow"]);
    let least = &["--threshold", "9"];
    measured(&[&["--task", "entropy"], &least[..]].concat())
        .saying(&[told, "--threshold has no effect: entropy lists no keys"]);
    for words in [&["--task", "heavy-hitters"][..], &["--task", "cardinality", "--task", "heavy-changes"]] {
        let ended = measured(&[words, least].concat());
        assert!(!ended.stderr.contains("has no effect"), "{words:?}");
    }
    let usual = measure(&campus(), &["--key", "5tuple"]);
    assert_eq!(usual["epochs"][0]["answers"].as_array().unwrap().len(), 20, "as --help says");
}

/// A capture without IP packets: an empty answer for every task.
#[test]
fn nothing_to_measure() {
    let dir = scratch();
    let file = dir.path().join("none.pcap");
    let header = [0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0];
    std::fs::write(&file, header).unwrap();
    for (task, key) in TASKS {
        let result = measure(&file, &["--task", task, "--key", key, "--compare", "exact"]);
        let epoch = &result["epochs"][0];
        assert_eq!((epoch["packets"].as_u64(), epoch["flows"].as_u64()), (Some(0), Some(0)));
        assert!(epoch["answers"].as_array().is_none_or(Vec::is_empty));
        assert!(epoch["distribution"].as_array().is_none_or(Vec::is_empty));
        assert!(epoch["estimate"].is_null() || epoch["estimate"] == 0.0);
        assert!(result["ns_per_packet"].is_null());
    }
}

/// The time is that of what there is: without an aggregator the table names the sketch alone.
#[test]
fn the_table_says_whose_time_a_packet_takes() {
    for (words, place) in [
        (&["--aggregate", "grr"][..], "both"),
        (&["--aggregate", "off"], "the sketch"),
        (&["--task", "quantiles", "--weight", "bytes"], "the sketch"),
    ] {
        let ended = run(["measure", text(small())].iter().chain(words)).with(0);
        let table = String::from_utf8_lossy(&ended.stdout);
        assert!(table.contains(&format!("time a packet in {place} ")), "{words:?}: {table}");
        assert_eq!(table.contains("memory of the aggregator"), place == "both", "{words:?}: {table}");
    }
}

#[test]
fn checks_decide_the_exit_status() {
    let words = ["measure", text(small()), "--task", "cardinality", "--fail-if"];
    run(words.iter().chain(&["epochs.0.estimate>1"])).with(1);
    run(words.iter().chain(&["epochs.0.estimate<1"])).with(0);
    run(words.iter().chain(&["epochs.0.nonsense<1"])).with(2);
}

/// Real captures; none where `SLIPSTREAM_TRACES=none` says that there are none.
fn captures() -> Vec<PathBuf> {
    let dir = std::env::var_os("SLIPSTREAM_TRACES")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces"), PathBuf::from)
        .join("multi");
    let Ok(entries) = dir.read_dir() else {
        let none = Path::new("none/multi");
        assert_eq!(dir, none, "no captures there: SLIPSTREAM_TRACES names their folder, or is `none`");
        eprintln!("SLIPSTREAM_TRACES=none: nothing was tested");
        return Vec::new();
    };
    entries.map(|e| e.unwrap().path()).filter(|p| p.metadata().unwrap().len() < 3 << 20).collect()
}

#[test]
fn real_captures_through_every_task() {
    for capture in captures() {
        for (task, key) in TASKS {
            let result =
                measure(&capture, &["--task", task, "--key", key, "--compare", "exact", "--epoch", "2000p"]);
            sane(&result, task);
        }
    }
}

/// The stage, the verb and a saved state are refused what a sketch can't tell, before any packet is read.
#[test]
fn a_sketch_of_values_has_no_distribution_of_sizes() {
    let dir = scratch();
    let (trace, says) = (text(small()), "the distribution of flow sizes");
    let words = ["--task", "size-distribution", "--sketch", "ddsketch", "--weight"];
    for weight in ["packets", "bytes"] {
        let all = ["measure", "no-such-trace.pcap"].iter().chain(&words).chain([&weight]);
        run(all).with(2).silent().saying(&["ddsketch", says]);
    }
    let graph = "measure(task=size-distribution, sketch=ddsketch)";
    let ended =
        run(["run", "-i", trace, "-o", "null", "-e", graph]).with(2).silent().saying(&["ddsketch", says]);
    assert!(ended.stderr.contains("column 40"), "at the sketch: {}", ended.stderr);
    let state = dir.path().join("q.state");
    let save = ["--task", "quantiles", "--weight", "bytes", "--save", text(&state)];
    run(["measure", trace].iter().chain(&save)).with(0);
    run(["measure", "query", text(&state), "--task", "size-distribution"]).with(2).silent().saying(&[says]);
    run(["measure", "query", text(&state)]).with(0);
}
