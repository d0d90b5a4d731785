//! States of `measure` put together: shards answer as one pass does, epochs go by the clock, and what doesn't
//! belong together is refused.

use std::path::{Path, PathBuf};

use crate::common::{campus, run, run_with, scratch, small, text};
use serde_json::Value;
use tempfile::TempDir;

fn measure(trace: &Path, words: &[&str]) -> Value {
    let all = ["measure", text(trace), "--format", "json"];
    run(all.iter().chain(words)).with(0).json()
}

fn merge(states: &[String], words: &[&str]) -> Value {
    let states = states.iter().map(String::as_str);
    run(["measure", "merge", "--format", "json"].into_iter().chain(states).chain(words.iter().copied()))
        .with(0)
        .json()
}

/// A place for files, by name.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(scratch())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }
}

/// The header of a small-endian capture of Ethernet with times in ns.
const SECOND: u64 = 1_000_000_000;

const HEADER: [u8; 24] =
    [0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 1, 0, 0, 0];

/// The record of a frame at a time in ns.
fn record(time: u64, frame: &[u8]) -> Vec<u8> {
    let (seconds, ns, len) = (time / SECOND, time % SECOND, frame.len() as u64);
    let head = [seconds, ns, len, len].into_iter().flat_map(|word| (word as u32).to_le_bytes());
    head.chain(frame.iter().copied()).collect()
}

/// A packet of one IPv4 source at a time in ns.
fn packet(time: u64, source: [u8; 4]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    frame.extend([0x45, 0, 0, 20, 0, 0, 0, 0, 64, 61, 0, 0]);
    frame.extend(source);
    frame.extend([192, 0, 2, 1]);
    record(time, &frame)
}

fn write(path: &Path, packets: &[Vec<u8>]) {
    std::fs::write(path, [HEADER.to_vec(), packets.concat()].concat()).unwrap();
}

/// The packets of the small capture, those of the second half a day later.
fn two_days() -> ([u8; 24], Vec<Vec<u8>>) {
    let bytes = std::fs::read(small()).unwrap();
    let (header, mut rest) = bytes.split_first_chunk::<24>().unwrap();
    let mut packets = Vec::new();
    while !rest.is_empty() {
        let len = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize + 16;
        packets.push(rest[..len].to_vec());
        rest = &rest[len..];
    }
    let half = packets.len() / 2;
    for packet in &mut packets[half..] {
        let seconds = u32::from_le_bytes(packet[..4].try_into().unwrap()) + 86_400;
        packet[..4].copy_from_slice(&seconds.to_le_bytes());
    }
    (*header, packets)
}

/// Every epoch without its mark of the first and the last: a shard may begin later than the others.
fn without_partial(result: &Value) -> Vec<Value> {
    let mut epochs = result["epochs"].as_array().unwrap().clone();
    epochs.iter_mut().for_each(|e| drop(e.as_object_mut().unwrap().remove("partial")));
    epochs
}

/// One, two, four and seven shards, over two days: the same epochs at the same times, the same answers, bit
/// for bit.
#[test]
fn shards_are_merged_by_time_into_what_one_pass_says() {
    let (header, packets) = two_days();
    let files = Files::new();
    let write = |name: &str, some: &[&Vec<u8>]| {
        let bytes = some.iter().flat_map(|p| p.iter().copied());
        std::fs::write(files.path(name), header.into_iter().chain(bytes).collect::<Vec<u8>>()).unwrap();
    };
    write("whole", &packets.iter().collect::<Vec<_>>());
    for (sketch, task) in [
        ("exact", "heavy-changes"),
        ("flow-radar", "heavy-changes"),
        ("linear-counting", "cardinality"),
        ("count-min", "heavy-hitters"),
    ] {
        let words =
            ["--sketch", sketch, "--task", task, "--epoch", "300us", "--top", "1000", "--memory", "200KiB"];
        let one = measure(&files.path("whole"), &words);
        let quiet = |e: &&Value| e["packets"] == 0;
        assert!(one["epochs"].as_array().unwrap().iter().any(|e| quiet(&e)), "a day without packets");
        for shards in [1, 2, 4, 7] {
            let mut states = Vec::new();
            for shard in 0..shards {
                let (trace, state) = (format!("{shard}.pcap"), files.text(&format!("{shard}.state")));
                // By bursts, so that some have no packet in some epochs.
                let mine: Vec<_> = packets
                    .iter()
                    .enumerate()
                    .filter(|(i, _)| i / 40 % shards == shard)
                    .map(|p| p.1)
                    .collect();
                write(&trace, &mine);
                measure(&files.path(&trace), &[&words[..], &["--save", &state]].concat());
                states.push(state);
            }
            states.reverse();
            let merged = merge(&states, &["--top", "1000"]);
            assert_eq!(without_partial(&merged), without_partial(&one), "{sketch} of {shards} shards");
        }
    }
}

/// Flows that every shard finds lighter than its own are the heaviest of all: they are listed after the
/// merge.
#[test]
fn flows_spread_over_shards_are_found() {
    let files = Files::new();
    let mut states = Vec::new();
    for shard in 0..4u8 {
        let mut packets = Vec::new();
        for i in 0..200 {
            (0..10).for_each(|_| packets.push(packet(5, [10, shard, 0, i])));
        }
        for i in 0..20 {
            (0..9).for_each(|_| packets.push(packet(6, [172, 16, 0, i])));
        }
        let trace = files.path("trace");
        write(&trace, &packets);
        states.push(files.text(&format!("{shard}.state")));
        measure(&trace, &["--sketch", "count-min", "--save", states.last().unwrap()]);
    }
    let merged = merge(&states, &[]);
    let epoch = &merged["epochs"][0];
    let rows = epoch["answers"].as_array().unwrap();
    assert_eq!(rows.len(), 20);
    for row in rows {
        assert!(row["key"].as_str().unwrap().starts_with("172.16.0."), "{row}");
        assert_eq!(row["estimate"], 36);
    }
    assert_eq!(epoch["unlisted_at_most"], 10, "the shards' own flows");
}

/// With too little memory to find them, the answer says how heavy they may be, and a warning that the list
/// isn't sure.
#[test]
fn what_a_merge_can_not_know_is_said() {
    let files = Files::new();
    let mut states = Vec::new();
    for shard in 0..4u8 {
        let own = (0..250u8).flat_map(|i| vec![packet(5, [10, shard, 0, i]); 10]);
        let shared = (0..20u8).flat_map(|i| vec![packet(6, [172, 16, 0, i]); 9]);
        let trace = files.path("trace");
        write(&trace, &own.chain(shared).collect::<Vec<_>>());
        states.push(files.text(&format!("{shard}.state")));
        let words = ["--sketch", "count-min", "--memory", "48KiB", "--save", states.last().unwrap()];
        measure(&trace, &words);
    }
    let epoch = &merge(&states, &[])["epochs"][0];
    assert!(epoch["unlisted_at_most"].as_u64().unwrap() >= 36, "{epoch}");
    let states = states.iter().map(String::as_str);
    run(["measure", "merge"].into_iter().chain(states)).with(0).saying(&["no state kept", "--memory"]);
}

#[test]
fn states_that_do_not_belong_together() {
    let files = Files::new();
    let base = files.text("base");
    let by_time = ["--epoch", "1s", "--sketch", "univmon"];
    measure(small(), &[&by_time[..], &["--save", &base]].concat());
    let later = files.path("later.pcap");
    write(&later, &[packet(86_400_000_000_000, [10, 0, 0, 1])]);
    for (trace, words, saying) in [
        (small(), &["--tunnel", "inner"][..], &["tunnel mode", "inner", "outer"][..]),
        // No epoch of one is an epoch of the other, and still they don't fit.
        (&later, &["--seed", "9"], &["seeds"]),
        (&later, &["--memory", "64KiB"], &["shapes"]),
    ] {
        let other = files.text("other");
        measure(trace, &[&by_time[..], words, &["--save", &other]].concat());
        run(["measure", "merge", &base, &other]).with(2).silent().saying(saying);
        run(["measure", "merge", &other, &base]).with(2).silent().saying(saying);
    }
    // Epochs by packets end where each state's own packets do.
    let (some, whole) = (files.text("some"), files.text("whole"));
    measure(small(), &["--epoch", "700p", "--save", &some]);
    run(["measure", "merge", &some, &some]).with(2).silent().saying(&["700", "--epoch by time"]);
    // Days that are added up into one epoch are no mistake, but they are told.
    measure(small(), &["--save", &whole]);
    let other = files.text("other");
    measure(&later, &["--save", &other]);
    let said = run(["measure", "merge", &whole, &other]).with(0).stderr;
    assert!(said.contains("different times"), "{said}");
    let said = run(["measure", "merge", &whole, &whole]).with(0).stderr;
    assert!(!said.contains("different times"), "{said}");
}

/// Whoever names a file twice, or a copy of it, is told that its packets count twice.
#[test]
fn the_same_state_twice_is_told() {
    let files = Files::new();
    let [tcp, udp, copy, empty, other] = ["tcp", "udp", "copy", "empty", "other"].map(|n| files.text(n));
    measure(small(), &["--rules", "tcp", "--save", &tcp]);
    measure(small(), &["--rules", "udp", "--save", &udp]);
    std::fs::copy(&tcp, &copy).unwrap();
    let said = |states: &[&str]| run([&["measure", "merge"], states].concat()).with(0).stderr;
    let told = |name: &str, how: &str| format!("{name} {how}: its packets are counted twice");
    assert!(!said(&[&tcp, &udp]).contains("twice"));
    assert!(said(&[&tcp, &udp, &tcp]).contains(&told(&tcp, "is named twice")));
    assert!(said(&[&tcp, &copy]).contains(&told(&copy, &format!("is a copy of {tcp}"))));
    // States of nothing are alike.
    for state in [&empty, &other] {
        measure(small(), &["--rules", "none", "--save", state]);
    }
    assert!(!said(&[&empty, &other]).contains("twice"));
}

#[test]
fn files_of_newer_versions_are_refused_with_advice() {
    let files = Files::new();
    let state = files.text("state");
    measure(small(), &["--save", &state]);
    let whole = std::fs::read(&state).unwrap();
    let newer = u16::from_le_bytes([whole[8], whole[9]]) + 1;
    let mut bytes = whole;
    bytes[8..10].copy_from_slice(&newer.to_le_bytes());
    std::fs::write(&state, bytes).unwrap();
    let version = format!("version {newer}");
    run(["measure", "query", &state]).with(2).silent().saying(&[&version, "newer program"]);
}

/// The number of flows to list belongs to the question, not to the state.
#[test]
fn states_fit_together_whatever_is_listed() {
    let files = Files::new();
    for sketch in ["count-min", "space-saving", "univmon", "flow-radar"] {
        let (a, b) = (files.text("a"), files.text("b"));
        measure(small(), &["--sketch", sketch, "--top", "5", "--save", &a]);
        measure(small(), &["--sketch", sketch, "--top", "500", "--save", &b]);
        assert_eq!(merge(&[a, b], &[])["packets"], 4000);
    }
}

/// Epochs by time begin at multiples of their length since 1970, whenever the first packet came.
#[test]
fn epochs_lie_on_the_clock() {
    let files = Files::new();
    let trace = files.path("trace");
    let second = 1_000_000_000;
    let at = |ms: u64| packet(1_700_000_000 * second + ms * 1_000_000, [10, 0, 0, 1]);
    write(&trace, &[at(300), at(900), at(1001), at(1999), at(2000), at(5500)]);
    let result = measure(&trace, &["--epoch", "1s", "--sketch", "exact"]);
    let epochs = result["epochs"].as_array().unwrap();
    let of = |e: &Value, key: &str| e[key].as_u64().unwrap();
    let start =
        |e: &Value| (of(e, "start_ns") / second - 1_700_000_000, of(e, "end_ns") / second - 1_700_000_000);
    assert!(epochs.iter().all(|e| of(e, "start_ns") % second == 0 && of(e, "end_ns") % second == 0));
    let spans: Vec<_> = epochs.iter().map(|e| (start(e), of(e, "packets"))).collect();
    assert_eq!(spans, [((0, 1), 2), ((1, 2), 2), ((2, 3), 1), ((3, 5), 0), ((5, 6), 1)]);
    let partial: Vec<_> = epochs.iter().map(|e| e["partial"].as_bool().unwrap()).collect();
    assert_eq!(partial, [true, false, false, false, true]);
    assert_eq!(of(&epochs[0], "first_packet_ns") % second, 300_000_000);
    assert_eq!(of(&epochs[0], "last_packet_ns") % second, 900_000_000);
    assert!(epochs[3].get("first_packet_ns").is_none(), "nothing came");
}

/// A FlowRadar that can't be decoded whole: what it says of a change has the truth within its bounds.
#[test]
fn changes_of_an_overfull_flow_radar_are_within_their_bounds() {
    for memory in ["8KiB", "16KiB", "32KiB"] {
        let words =
            ["--sketch", "flow-radar", "--task", "heavy-changes", "--key", "5tuple", "--epoch", "8000p"];
        let more = ["--memory", memory, "--weight", "bytes", "--top", "1000", "--compare", "exact"];
        let result = measure(&campus(), &[&words[..], &more].concat());
        for epoch in &result["epochs"].as_array().unwrap()[1..] {
            assert_eq!(epoch["saturated"], true, "{memory}");
            for row in epoch["answers"].as_array().unwrap() {
                let of = |key: &str| row[key].as_u64().unwrap();
                assert!(of("lower") <= of("true") && of("true") <= of("upper"), "{memory}: {row}");
            }
        }
    }
}

/// More than 32 bits of bytes of one source: it is listed for a threshold beyond, and told to be more than
/// counters hold, at once and of the saved state.
#[test]
fn weights_beyond_32_bits_are_listed_and_told() {
    let files = Files::new();
    let (trace, state) = (files.path("trace"), files.text("state"));
    let mut long = packet(SECOND, [10, 0, 0, 1]);
    long[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    write(&trace, &[long.clone(), long.clone(), long, packet(SECOND, [10, 0, 0, 2])]);
    for sketch in ["count-min", "rev-sketch"] {
        let of_trace = ["measure", text(&trace), "--sketch", sketch, "--key", "src", "--weight", "bytes"];
        let words = ["--threshold", "4294967296", "--format", "json", "--save", &state];
        let at_once = run(of_trace.iter().chain(&words)).with(0);
        let later =
            run(["measure", "query", &state, "--threshold", "4294967296", "--format", "json"]).with(0);
        for told in [at_once, later] {
            let told = told.saying(&["counters of 32 bits are full", "a shorter --epoch"]);
            let rows = told.json()["epochs"][0]["answers"].as_array().unwrap().clone();
            assert_eq!(rows.len(), 1, "{sketch}: {rows:?}");
            let of = |key: &str| rows[0][key].as_u64().unwrap();
            let bytes = 3 * u64::from(u32::MAX);
            assert_eq!(rows[0]["key"], "10.0.0.1");
            assert!(of("lower") <= bytes && bytes <= of("upper"), "{sketch}: {rows:?}");
        }
    }
}

/// Networks of IPv4 say nothing of IPv6: its addresses stay whole, and that is told.
#[test]
fn a_prefix_of_ipv4_leaves_ipv6_whole() {
    let files = Files::new();
    let trace = files.path("both.pcap");
    run(["synth", "--packets", "2000", "--flows", "100", "--ipv6", "0.5", "--seed", "4", text(&trace)])
        .with(0);
    let result = measure(&trace, &["--sketch", "exact", "--key", "src/24", "--top", "1000"]);
    let whole = measure(&trace, &["--sketch", "exact", "--key", "src", "--top", "1000"]);
    let keys = |r: &Value| {
        let rows = r["epochs"][0]["answers"].as_array().unwrap().iter();
        rows.map(|a| a["key"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let six = |r: &Value| keys(r).into_iter().filter(|k| k.contains(':')).collect::<Vec<_>>();
    assert!(!six(&whole).is_empty());
    assert_eq!(six(&result), six(&whole));
    assert!(keys(&result).iter().all(|k| k.contains(':') || k.ends_with("/24")));
    run(["measure", text(&trace), "--key", "src/24"]).with(0).saying(&["src/24/56", "whole"]);
    let said = run(["measure", text(&trace), "--key", "src/24/56"]).with(0).stderr;
    assert!(!said.contains("whole"), "{said}");
}

/// The budget is the sketch's; what stands in front of it takes more, and both are told.
#[test]
fn memory_of_sketch_and_aggregator_is_told() {
    let result = measure(small(), &["--memory", "64KiB"]);
    let of = |key: &str| result[key].as_u64().unwrap();
    assert!(of("memory_bytes") <= 64 << 10 && of("aggregator_bytes") > 64 << 10, "{result}");
    let table = run(["measure", text(small()), "--memory", "64KiB"]).with(0);
    let table = String::from_utf8(table.stdout).unwrap();
    for row in ["memory of the sketch", "memory of the aggregator", "together"] {
        assert!(table.contains(row), "{row} is not in {table}");
    }
}

/// Saved states don't tell which packets were left out, nor what the aggregator took: the table says so. JSON
/// has numbers there as ever.
#[test]
fn what_states_do_not_tell_is_unknown() {
    let files = Files::new();
    let state = files.text("state");
    let measured = measure(small(), &["--save", &state]);
    assert!(measured["aggregator_bytes"].as_u64().unwrap() > 0 && measured["packets_skipped"] == 0);
    for words in [&["query", &state][..], &["merge", &state, &state]] {
        let result = run(["measure"].iter().chain(words).chain(&["--format", "json"])).with(0).json();
        for key in ["aggregator_bytes", "packets_skipped"] {
            assert_eq!(result[key], 0, "{key}");
        }
        assert!(result["memory_bytes"].as_u64().unwrap() > 0, "the sketch is there");
        let table = String::from_utf8(run(["measure"].iter().chain(words)).with(0).stdout).unwrap();
        for row in ["left out", "memory of the aggregator", "together"] {
            let line = table.lines().find(|line| line.contains(row)).unwrap_or_default();
            assert!(line.ends_with('–'), "{row}: {table}");
        }
    }
    // Without an aggregator none takes memory.
    measure(small(), &["--aggregate", "off", "--save", &state]);
    let table = String::from_utf8(run(["measure", "query", &state]).with(0).stdout).unwrap();
    assert!(!table.contains("aggregator"), "{table}");
}

/// A packet of one IPv6 source at a time in ns.
fn packet_of_ipv6(time: u64, source: u8) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd];
    frame.extend([0x60, 0, 0, 0, 0, 0, 59, 64]);
    for last in [source, 99] {
        frame.extend([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    }
    record(time, &frame)
}

/// The changes of each epoch: key, by how much, which way.
fn changes(result: &Value) -> Vec<Vec<(String, u64, String)>> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let row = |row: &Value| (text(&row["key"]), row["estimate"].as_u64().unwrap(), text(&row["direction"]));
    let epochs = result["epochs"].as_array().unwrap().iter();
    epochs.map(|epoch| epoch["answers"].as_array().unwrap().iter().map(row).collect()).collect()
}

/// A shard that sees no packet of IPv6 has no sketch of it. Where the epoch before, of another shard, has
/// one, its flows are gone, and that is told as in one pass.
#[test]
fn flows_of_an_ip_version_that_ends_with_a_shard_are_changes() {
    let files = Files::new();
    let early: Vec<_> =
        (0..50).flat_map(|n| [packet_of_ipv6(SECOND + n, 1), packet(SECOND + n, [192, 0, 2, 7])]).collect();
    let late: Vec<_> = (0..50).map(|n| packet(2 * SECOND + n, [192, 0, 2, 7])).collect();
    write(&files.path("early"), &early);
    write(&files.path("late"), &late);
    write(&files.path("both"), &[&early[..], &late[..]].concat());
    for sketch in ["exact", "flow-radar", "rev-sketch", "univmon"] {
        let words = ["--task", "heavy-changes", "--sketch", sketch, "--epoch", "1s", "--memory", "4MiB"];
        let states = ["early", "late"].map(|name| {
            let state = files.text(&format!("{name}.state"));
            measure(&files.path(name), &[&words[..], &["--save", &state]].concat());
            state
        });
        let whole = measure(&files.path("both"), &words);
        let gone = ("2001:db8::1".to_owned(), 50, "down".to_owned());
        assert_eq!(changes(&whole), [vec![], vec![gone]], "{sketch}");
        let merged = merge(&states, &[]);
        assert_eq!(without_partial(&merged), without_partial(&whole), "{sketch}");
    }
}

/// A window is compared with the one a step before, also where nothing came in that: windows as long as their
/// step are epochs.
#[test]
fn changes_after_a_silence_are_told_of_windows_too() {
    let files = Files::new();
    let packets: Vec<_> = [(100, 7), (101, 7), (110, 7), (111, 8)]
        .into_iter()
        .flat_map(|(second, source)| (0..50).map(move |n| packet(second * SECOND + n, [192, 0, 2, source])))
        .collect();
    write(&files.path("trace"), &packets);
    let words = ["--task", "heavy-changes", "--sketch", "exact"];
    let by = |more: &[&str]| measure(&files.path("trace"), &[&words[..], more].concat());
    let epochs = by(&["--epoch", "1s"]);
    let windows = by(&["--window", "1s", "--slide", "1s"]);
    let change = |source: u8, by: u64, way: &str| (format!("192.0.2.{source}"), by, way.to_owned());
    let (up, down) = (change(7, 50, "up"), change(7, 50, "down"));
    let want = [vec![], vec![], vec![down.clone()], vec![up], vec![down.clone(), change(8, 50, "up")]];
    assert_eq!(changes(&epochs), want);
    assert_eq!(changes(&windows), want);
    let times = |result: &Value| {
        let epochs = result["epochs"].as_array().unwrap().iter();
        epochs.map(|e| [&e["start_ns"], &e["end_ns"], &e["packets"]].map(|n| n.as_u64().unwrap())).collect()
    };
    let (of_epochs, of_windows): (Vec<_>, Vec<_>) = (times(&epochs), times(&windows));
    assert_eq!(of_windows, of_epochs);
    // Longer ones: the last with the packets of second 101 is gone with second 103.
    let longer = by(&["--window", "2s", "--slide", "1s"]);
    let silent: Vec<_> = longer["epochs"].as_array().unwrap().iter().filter(|e| e["packets"] == 0).collect();
    assert_eq!(silent.len(), 1);
    assert_eq!([&silent[0]["start_ns"], &silent[0]["end_ns"]], [102 * SECOND, 110 * SECOND]);
    let told = changes(&longer);
    assert_eq!(told[3..5], [vec![down], vec![change(7, 50, "up")]]);
    // Of other questions, windows in which nothing came aren't answered.
    let hitters = measure(&files.path("trace"), &["--window", "2s", "--slide", "1s"]);
    assert!(hitters["epochs"].as_array().unwrap().iter().all(|e| e["packets"] != 0));
}

/// Two panes with more flows than can be listed: the window of both can't be told, and the others can.
#[test]
fn a_window_that_does_not_add_up_fails_alone() {
    let files = Files::new();
    let flows = |second: u64| if matches!(second, 3 | 4) { 10_000u64 } else { 10 };
    let packets: Vec<_> = (0..8)
        .flat_map(|second| {
            (0..flows(second)).map(move |n| {
                packet((second + 1) * SECOND + n, [10, second as u8, (n / 200) as u8, (n % 200) as u8])
            })
        })
        .collect();
    write(&files.path("trace"), &packets);
    let words = ["--sketch", "flow-radar", "--memory", "64KiB", "--window", "2s", "--slide", "1s"];
    let told = measure(&files.path("trace"), &[&words[..], &["--task", "cardinality"]].concat());
    let starts = |list: &Value| -> Vec<u64> {
        list.as_array().unwrap().iter().map(|e| e["start_ns"].as_u64().unwrap() / SECOND).collect()
    };
    assert_eq!(starts(&told["epochs"]), [0, 1, 2, 3, 5, 6, 7]);
    assert_eq!(starts(&told["failed"]), [4]);
    assert!(told["failed"][0]["error"].as_str().unwrap().contains("more flows than can be decoded"));
    assert_eq!(told["epochs"][1]["estimate"], 20.0);
    // Nothing can be compared with it.
    let changes =
        run(["measure", text(&files.path("trace")), "--task", "heavy-changes"].iter().chain(&words));
    changes.with(2).saying(&["the window from 4000000000 ns"]);
}

/// A state may come from a pipe.
#[test]
fn a_state_is_read_from_stdin() {
    let files = Files::new();
    let state = files.text("a.state");
    measure(small(), &["--save", &state]);
    let bytes = std::fs::read(&state).unwrap();
    for verb in ["query", "merge"] {
        let named = run(["measure", verb, "--format", "json", &state]).with(0).json();
        let piped = run_with(&bytes, &["measure", verb, "--format", "json", "-"]).with(0).json();
        assert_eq!(named, piped, "{verb}");
    }
}

/// People see when an epoch was, and that a window is one.
#[test]
fn epochs_and_windows_are_told_with_their_times() {
    let campus = campus();
    let table = |words: &[&str]| {
        let ended = run(["measure", text(&campus), "--task", "cardinality"].iter().chain(words)).with(0);
        String::from_utf8(ended.stdout).unwrap()
    };
    let epochs = table(&["--epoch", "40ms"]);
    for title in ["Epoch 0 (+0 to +40ms): ", "Epoch 1 (+40ms to +80ms): "] {
        assert!(epochs.contains(title), "{epochs}");
    }
    let windows = table(&["--window", "40ms", "--slide", "20ms", "--sketch", "exaloglog"]);
    assert!(windows.contains("Window 1 (+20ms to +60ms): ") && !windows.contains("Epoch"), "{windows}");
    assert!(table(&[]).contains("Epoch 0: 24,000 packets"));
}

/// Epochs by packets that all begin at one time, where clocks are coarse or have gone back, have a file each.
#[test]
fn epochs_that_begin_at_the_same_time_have_a_file_each() {
    let files = Files::new();
    let clocks: [fn(u64) -> u64; 2] = [|_| 5, |at| 1_000 - at];
    for (clock, begin) in clocks.into_iter().zip([5, 1_000]) {
        let packets: Vec<_> = (0..35_u8).map(|at| packet(clock(at.into()), [10, 0, 0, at])).collect();
        write(&files.path("trace"), &packets);
        let folder = files.path(&format!("from {begin}"));
        std::fs::create_dir(&folder).unwrap();
        let graph = format!("measure(task=cardinality, sketch=exact, epoch=10p, save='{}')", text(&folder));
        run(["run", "-i", &files.text("trace"), "-o", "null", "-e", &graph]).with(0);
        let mut names: Vec<_> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        let expected = ["-2.state", "-3.state", "-4.state", ".state"].map(|end| format!("{begin}{end}"));
        assert_eq!(names, expected);
        let states: Vec<_> = names.iter().map(|name| text(&folder.join(name)).to_owned()).collect();
        let merged = merge(&states, &[]);
        assert_eq!(
            (&merged["epochs"][0]["packets"], &merged["epochs"][0]["estimate"]),
            (&35.into(), &35.0.into())
        );
    }
}
