//! Everyday use: typing errors, interrupts, terminals, units.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{BINARY, Ended, campus, interrupt, names, run, run_in, run_with, scratch, small, text};
use serde_json::Value;

fn stdout(ended: &Ended) -> String {
    String::from_utf8(ended.stdout.clone()).unwrap()
}

/// Runs a command on a terminal; returns stdout and stderr in one, and the exit status.
fn on_a_terminal(command: &str) -> (String, i32) {
    let words = ["-qec", command, "/dev/null"];
    let output =
        Command::new("script").args(words).stdin(Stdio::null()).output().expect("script is installed");
    (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.code().unwrap())
}

#[test]
fn ports_of_a_configuration_can_be_replaced() {
    let dir = scratch();
    fs::create_dir(dir.path().join("conf")).unwrap();
    let write = |name: &str, config: &str| fs::write(dir.path().join("conf").join(name), config).unwrap();
    let ports = "[stage.in]\ntype = \"pcap\"\npath = \"nothing.pcap\"\n[stage.out]\ntype = \"null\"\n";
    write("one.toml", &format!("graph = \"in -> reframe -> out\"\n{ports}"));
    write("two.toml", &format!("graph = \"in -> [0]f :: counter -> out; b :: synth -> [0]f\"\n{ports}"));
    fs::copy(small(), dir.path().join("mine.pcap")).unwrap();
    let words = "run conf/one.toml -i mine.pcap -o out.pcap --format json";
    let json = run_in(dir.path(), words.split(' ')).with(0).json();
    assert_eq!(json["packets_in"], 2000);
    assert!(dir.path().join("out.pcap").exists(), "paths of the command line are where the user is");
    run_in(dir.path(), ["run", "conf/two.toml", "-i", "mine.pcap"])
        .with(2)
        .silent()
        .saying(&["-i could stand in for each of b, in"]);
    // Nothing is made of an output that can't be one.
    run_in(dir.path(), ["run", "conf/one.toml", "-o", "synth:"])
        .with(2)
        .silent()
        .saying(&["no packet can go to"]);
}

#[test]
fn a_reader_of_a_pipeline_that_goes_away_is_no_error() {
    let command = format!(
        "{BINARY} run -i {} -o - -e reframe 2>/dev/null | head -c 100 >/dev/null; echo ${{PIPESTATUS[0]}}",
        text(&campus())
    );
    let output = Command::new("bash").args(["-c", &command]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "0");
}

/// A file that has a name is not whole without the rest.
#[test]
fn a_named_pipe_whose_reader_goes_away_is_an_error() {
    let dir = scratch();
    let command = format!(
        "mkfifo pipe; head -c 100 pipe >/dev/null & {BINARY} reframe {} pipe 2>/dev/null; echo $?",
        text(&campus())
    );
    let output = Command::new("bash").args(["-c", &command]).current_dir(dir.path()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "2");
}

#[test]
fn slips_are_answered_with_what_was_meant() {
    let (trace, dir) = (text(small()), scratch());
    let answers: [(&[&str], &[&str]); 8] = [
        (
            &["run", "-i", trace, "-o", "null", "-e", "reframe -> reframe"],
            &["goes round", "a :: reframe -> b :: reframe"],
        ),
        (&["measure", trace, "b.pcap"], &["b.pcap", "no such file"]),
        (&["reframe", "lo", "null"], &["lo: no such file", "af_packet:lo"]),
        (&["reframe", trace, "lo"], &["af_packet:lo", "./lo"]),
        (&["run", "-i", "lo", "-o", "null", "-e", "reframe"], &["af_packet:lo"]),
        (
            &["reframe", trace, "null", "--hold", "5s"],
            &["--hold", "5s is out of range", "0 to 4s are possible"],
        ),
        (&["analyze", trace, "--fail-if", "ip.slf=<2"], &["\"=<\" is no comparison", "<="]),
        (&["model", "solve", "--strict"], &["--strict"]),
    ];
    for (words, said) in answers {
        run_in(dir.path(), words).with(2).silent().saying(said);
    }
    assert_eq!(names(dir.path()), [""; 0]);
    run_in(dir.path(), ["analyze", trace, "--html", "a.html"]).with(0);
    assert_eq!(names(dir.path()), ["a.html"]);
}

/// A replay goes at the pace of the wall clock where that was asked for, and comes to the same.
#[test]
fn a_pipeline_is_replayed_at_the_pace_of_its_packets() {
    let dir = scratch();
    let synth = "synth:packets=200,rate=1kpps,flows=4";
    let replay = |pace: &str| {
        let out = dir.path().join(pace);
        let since = slipstream::clock::now();
        run(["run", "-i", synth, "-o", text(&out), "-e", "reframe(hold=5ms)", "--pace", pace]).with(0);
        (since.elapsed(), fs::read(out).unwrap())
    };
    let (took, packets) = replay("real");
    assert!(took >= std::time::Duration::from_millis(199), "{took:?}");
    assert_eq!(packets, replay("fast").1);
}

/// An error names the file that was asked for, once, and no temporary one.
#[test]
fn a_missing_folder_is_named() {
    let dir = scratch();
    let trace = text(small());
    let graph = "flow_stats(export=\"no/flows.ipfix\")";
    for words in [
        vec!["reframe", trace, "no/out.pcap"],
        vec!["analyze", trace, "--report", "no/a.html"],
        vec!["run", "-i", trace, "-o", "no/out.pcap", "-e", "reframe"],
        vec!["run", "-i", trace, "-o", "null", "-e", graph],
    ] {
        let ended = run_in(dir.path(), &words).with(2).silent().saying(&["there is no folder no"]);
        assert!(!ended.stderr.contains("os error"), "{}", ended.stderr);
    }
}

#[test]
fn flow_records_have_the_mode_of_any_new_file() {
    let dir = scratch();
    let command = format!(
        "umask 022; {BINARY} run -i {} -o null -e 'flow_stats(export=\"flows.ipfix\")' >/dev/null && stat -c %a flows.ipfix",
        text(small())
    );
    let output = Command::new("sh").args(["-c", &command]).current_dir(dir.path()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "644");
    let mode = fs::metadata(dir.path().join("flows.ipfix")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
}

/// Ctrl-C: what was done until then is told, and no file could be taken for a whole one.
#[test]
fn an_interrupted_replay_tells_what_it_did() {
    let verbs: [&[&str]; 3] = [
        &["reframe", "synth:packets=1G,size=60", "out.pcap"],
        &["reframe", "synth:packets=1G,size=60", "out.pcap", "--workers", "2"],
        &["run", "-i", "synth:packets=1G,size=60", "-o", "out.pcap", "-e", "reframe"],
    ];
    for words in verbs {
        let dir = scratch();
        let child = Command::new(BINARY)
            .args(words)
            .args(["--format", "json"])
            .current_dir(dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        interrupt(&child, "-INT");
        let ended = Ended::of(child.wait_with_output().unwrap()).with(130).saying(&["interrupted"]);
        let json = ended.json();
        assert_eq!(json["interrupted"], true);
        assert!(json["packets_in"].as_u64().unwrap() > 0, "{words:?}: {json}");
        assert_eq!(names(dir.path()), [""; 0], "{words:?}");
    }
}

#[test]
fn packets_do_not_go_to_a_terminal() {
    for words in ["reframe X -", "run -i X -o - -e reframe", "synth -"] {
        let command = format!("{BINARY} {}", words.replace('X', text(small())));
        let (shown, status) = on_a_terminal(&command);
        assert!(status == 2 && shown.contains("don't go to a terminal"), "{words}: {status} {shown:?}");
    }
}

#[test]
fn warnings_have_colours_only_where_they_are_wanted() {
    let dir = scratch();
    let cut = dir.path().join("cut.pcap");
    let bytes = fs::read(small()).unwrap();
    fs::write(&cut, &bytes[..bytes.len() - 5]).unwrap();
    let analyze = format!("{BINARY} analyze {} >/dev/null", text(&cut));
    assert!(on_a_terminal(&analyze).0.contains('\u{1b}'));
    let (plain, _) = on_a_terminal(&format!("NO_COLOR=1 {analyze}"));
    assert!(plain.contains("damaged") && !plain.contains('\u{1b}'), "{plain:?}");
}

/// A bar says how much time is left once it knows, and never that it is still nothing.
#[test]
fn progress_says_what_is_left() {
    // However fast the machine is, the reader takes two seconds.
    let slowly = "for i in $(seq 50); do head -c 1500000 > /dev/null; sleep 0.04; done; cat > /dev/null";
    let synth = format!("{BINARY} synth - --packets 1M --size 60");
    let (shown, _) = on_a_terminal(&format!("stty cols 100; {synth} | ({slowly})"));
    assert!(shown.contains("making packets") && !shown.contains("still"), "{shown:?}");
    assert!(!shown.contains(" 0s left") && !shown.contains(" 0 seconds left"), "{shown:?}");
}

#[test]
fn more_is_said_where_more_is_asked_for() {
    run(["analyze", text(small())]).with(0);
    for verb in [vec!["analyze", text(small())], vec!["list"], vec!["synth", "null", "--packets", "10"]] {
        run(verb.iter().chain(&["-v"])).with(0).saying(&["ended after", "MiB of memory"]);
    }
}

/// One file that is no capture keeps nobody from the results of the others.
#[test]
fn one_bad_trace_of_several() {
    let dir = scratch();
    fs::write(dir.path().join("README"), "no capture").unwrap();
    let words = ["analyze", "README", text(small()), "--format", "json"];
    let ended = run_in(dir.path(), words).with(2).saying(&["README: not pcap", "1 of 2 traces"]);
    let json = ended.json();
    assert_eq!(json["traces"].as_array().unwrap().len(), 1);
    assert_eq!(json["total"]["records"], 2000);
    assert_eq!(json["failed"][0]["file"], "README");
    run_in(dir.path(), words.iter().chain(&["--strict"])).with(2).silent().saying(&["README"]);
    run_in(dir.path(), ["analyze", "README", "README"]).with(2).silent().saying(&["none of the traces"]);
    run_in(dir.path(), ["analyze", "README"]).with(2).silent().saying(&["README: not pcap"]);
}

#[test]
fn units_suit_the_values() {
    let dir = scratch();
    let slow = dir.path().join("slow.pcap");
    run(["synth", "--packets", "20", "--rate", "1pps", "--size", "60", text(&slow)]).with(0);
    let table = stdout(&run(["analyze", text(&slow), "--top", "3"]).with(0));
    let row = |label: &str| table.lines().find(|l| l.trim_start().starts_with(label)).unwrap_or_default();
    assert!(
        row("packets a second").ends_with("1.053 pps") && row("rate").ends_with("505.3 bit/s"),
        "{table}"
    );
    let endpoints = |top: &str| {
        let table = stdout(&run(["analyze", text(small()), "--top", top]).with(0));
        let rows = table.lines().skip_while(|l| !l.starts_with("Addresses")).skip(2);
        rows.take_while(|l| !l.is_empty()).count()
    };
    assert_eq!([endpoints("3"), endpoints("7"), endpoints("0")], [3, 7, 0]);
    let entropy = stdout(&run(["measure", text(small()), "--task", "entropy"]).with(0));
    assert!(entropy.lines().any(|l| l.contains("estimate") && l.ends_with(" bits")), "{entropy}");
    let changes = stdout(&run(["measure", text(small()), "--task", "heavy-changes"]).with(0));
    assert!(changes.contains("a shorter --epoch makes more"), "{changes}");
}

/// Bytes 24 to 31 of a pcap file are the time of its first packet.
#[test]
fn one_packet_is_one_packet() {
    let mut bytes = fs::read(small()).unwrap();
    bytes[24..28].copy_from_slice(&u32::MAX.to_le_bytes());
    let later = run_with(&bytes, &["analyze", "-"]).with(0);
    assert!(later.stderr.contains("packets ran backwards"), "{}", later.stderr);
    let two = stdout_of_two(&bytes);
    let again = ["measure", "-", "--task", "cardinality", "--task", "entropy"];
    for words in [&["analyze", "-"][..], &["reframe", "-", "null"], &["measure", "-"], &again] {
        run_with(&two, words).with(0).saying(&["the times of 1 packet ran backwards"]);
    }
    // A file is read in parts where there are several workers.
    let dir = scratch();
    let file = dir.path().join("late.pcap");
    fs::write(&file, &bytes).unwrap();
    for workers in ["1", "3"] {
        let words = ["measure", text(&file), "--workers", workers, "--format", "json"];
        let measured = run(words).with(0).saying(&["packets ran backwards"]).json();
        let packets = measured["packets"].as_u64().unwrap();
        assert_eq!(measured["clock_backwards"], packets - 1, "{workers} workers");
    }
}

/// A pcapng of a packet with a time, one without, and one of the year 2600.
#[test]
fn times_that_a_capture_does_not_have_are_told() {
    let block = |kind: u32, body: &[u32]| {
        let len = 12 + 4 * body.len() as u32;
        [&[kind, len], body, &[len]].concat()
    };
    let (late, data) = (19_880_000_000_000_000_u64, [0; 15]);
    let packet = |time: u64| block(6, &[&[0, (time >> 32) as u32, time as u32, 60, 60], &data[..]].concat());
    let section = block(0x0a0d_0d0a, &[0x1a2b_3c4d, 1, u32::MAX, u32::MAX]);
    let simple = block(3, &[&[60], &data[..]].concat());
    let words = [section, block(1, &[1, 0]), packet(1), simple, packet(late)].concat();
    let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    let (dir, name) = (scratch(), "odd.pcapng");
    let path = dir.path().join(name);
    fs::write(&path, &bytes).unwrap();
    let path = text(&path);
    for words in [
        &["analyze", path][..],
        &["analyze", "--threads", "1", path],
        &["analyze", "--part", "1/1", path],
        &["reframe", path, "null"],
        &["reframe", "--preload", path, "null"],
        &["run", "-i", path, "-o", "null", "-e", "counter"],
        &["measure", path, "--task", "entropy"],
        &["measure", path, path, "--task", "entropy"],
    ] {
        let said = run(words).with(0).stderr;
        for what in
            ["the times of 1 packet lie before 1970 or after 2554", "the times of 1 packet are not told"]
        {
            let of_file = format!("{name}: {what}");
            let times = words.iter().filter(|word| **word == path).count();
            assert_eq!(said.matches(&of_file).count(), times, "{words:?}: {said}");
        }
    }
}

/// The header and the first two packets of a pcap file of packets cut at 96 bytes.
fn stdout_of_two(pcap: &[u8]) -> Vec<u8> {
    let record = |at: usize| 16 + u32::from_le_bytes(pcap[at + 8..at + 12].try_into().unwrap()) as usize;
    let second = 24 + record(24);
    pcap[..second + record(second)].to_vec()
}

#[test]
fn lists_can_be_read() {
    for words in [vec!["list"], vec!["list", "router"], vec!["lab"]] {
        let shown = stdout(&run(&words).with(0));
        let longest = shown.lines().map(|l| l.chars().count()).max().unwrap();
        assert!(longest <= 112, "{words:?}: {longest} columns\n{shown}");
        let json = run(words.iter().chain(&["--format", "json"])).with(0).json();
        let mut texts = Vec::new();
        for item in json["stages"].as_array().or(json["labs"].as_array()).unwrap() {
            texts.extend(["summary", "what"].iter().filter_map(|k| item[k].as_str()));
            texts
                .extend(item["settings"].as_array().into_iter().flatten().filter_map(|s| s["help"].as_str()));
        }
        let shown: Vec<&str> = shown.split_whitespace().collect();
        let broken = texts.iter().take(if words.len() > 1 { usize::MAX } else { 1 });
        for word in broken.flat_map(|t| t.split_whitespace()) {
            assert!(
                shown.iter().any(|s| s.trim_end_matches(':') == word.trim_end_matches(':')),
                "{word:?} is broken"
            );
        }
    }
}

#[test]
fn synth_says_its_defaults_and_makes_no_more_than_it_must() {
    let help = stdout(&run(["synth", "--help"]).with(0));
    for line in ["Packets to make [default: 100000]", "Flows alive at a time [default: 10000]"] {
        assert!(help.contains(line), "{help}");
    }
    let made: Value = run(["synth", "null", "--format", "json"]).with(0).json();
    assert!(made["packets"] == 100_000 && made["bytes"].as_u64().unwrap() < 100_000_000, "{made}");
    assert!(!Path::new("null").exists());
}

/// One flow that sends alone makes one run, whatever length of runs was asked for.
#[test]
fn synth_says_of_a_locality_that_one_flow_can_not_have() {
    let of_one = ["synth", "null", "--packets", "10", "--flows", "1"];
    let last = ["synth", "null", "--packets", "10", "--flows", "5", "--active", "1", "--slf", "2.5"];
    for (words, said) in [
        ([&of_one[..], &["--slf", "4"]].concat(), "slf 4 is not met: a flow that sends alone"),
        (last.to_vec(), "give `active` 2 or more"),
    ] {
        run(words).with(0).saying(&[said]);
    }
    for words in [of_one.to_vec(), [&of_one[..], &["--slf", "1"]].concat(), last[..6].to_vec()] {
        assert_eq!(run(words).with(0).stderr, "");
    }
}

/// A setting that the campus doesn't have is refused, not left out without a word.
#[test]
fn settings_that_a_profile_does_not_have() {
    let campus = ["synth", "--profile", "campus", "null"];
    let has = ["campus traffic has no such setting", "copies, packets, seed, start and snap-len"];
    for (option, value) in [
        ("--flows", "10"),
        ("--active", "10"),
        ("--slf", "1"),
        ("--order", "random"),
        ("--train", "fixed"),
        ("--zipf", "0"),
        ("--size", "64"),
        ("--rate", "1mpps"),
        ("--arrivals", "poisson"),
        ("--protocol", "tcp"),
        ("--ipv6", "0.5"),
        ("--vlan", "0.5"),
        ("--vlan-ids", "7"),
    ] {
        let named = format!("{}: ", option.trim_start_matches('-'));
        run(campus.iter().chain(&[option, value])).with(2).silent().saying(&has).saying(&[&named]);
    }
    let own = ["--copies", "2", "--packets", "9", "--seed", "3", "--start", "5", "--snap-len", "96"];
    run(campus.iter().chain(&own)).with(0);
    let graph = "in :: synth(traffic=\"profile=campus,flows=10\") -> out :: null";
    for verb in ["validate", "run"] {
        run([verb, "-e", graph]).with(2).silent().saying(&["flows: ", has[0], "graph: line 1"]);
    }
}

/// A negative value looks like an option, and is told as a value.
#[test]
fn negative_values_are_told_as_such() {
    for (words, said) in [
        ("reframe a.pcap b.pcap --hold -1us", "--hold -1us: no value of this option is negative"),
        ("synth --seed -7 a.pcap", "--seed -7: no value of this option is negative"),
        ("measure a.pcap --threshold -1", "--threshold -1: no value of this option is negative"),
        ("synth --zipf -0.5 a.pcap", "--zipf -0.5: no value of this option is negative"),
        ("reframe -9 a.pcap", "unexpected argument"),
    ] {
        run(words.split(' ')).with(2).saying(&[said]);
    }
}

/// The first question of a user who knows no costs yet, of a trace with a packet in a second, too.
#[test]
fn a_hold_is_recommended_without_costs() {
    let campus = campus();
    let words = ["--holds", "0,16us", "--hold-cost", "60ns", "--format", "json"];
    let asked = |trace: &str| run(["recommend", trace].iter().chain(&words)).with(0).json();
    let answer = asked(text(&campus));
    assert_eq!((&answer["costs_from"], &answer["slot_ns"]), (&"typical".into(), &10.0.into()));
    assert_eq!(answer["costs"]["per_train_ns"], 60.0);
    let seldom = asked("synth:packets=500,flows=20,rate=1pps");
    assert_eq!(seldom["slot_ns"], 1000.0);
    assert_eq!(seldom["recommended"]["hold_ns"], 0);
    // Without a hold there is no cost of holding to measure, for which this trace would be too short.
    let short = "synth:packets=500,flows=20,rate=1mpps";
    let none = run(["recommend", short, "--holds", "0", "--format", "json"]).with(0).json();
    assert_eq!((&none["hold_cost_measured"], &none["recommended"]["hold_ns"]), (&false.into(), &0.into()));
    run(["recommend", short, "--holds", "0,16us"]).with(2).saying(&["--hold-cost"]);
    let table = run(["recommend", text(&campus), "--holds", "0,16us", "--hold-cost", "60ns"]).with(0);
    assert!(String::from_utf8_lossy(&table.stdout).contains("assumed: --costs has yours"));
}

/// On one thread three stages share what is looked up; on two each would look up for itself, and more memory
/// would not change that.
#[test]
fn the_table_says_why_several_threads_have_no_flow_contexts() {
    let meter = "meter(cir=1mbps, per=flow)";
    let source = |name: &str| format!("{name} :: synth(traffic=\"packets=100,flows=10\") -> {meter}");
    let (a, b) = (source("a"), source("b"));
    let graph = format!(
        "n :: nat(pool=192.0.2.1); {a} -> [inside]n; {b} -> [outside]n; n[outside] -> null; n[inside] -> null"
    );
    let told = |workers: &str| {
        let table = stdout(&run(["run", "-e", &graph, "--workers", workers]).with(0));
        table.split_once("Flow contexts\n").map(|(_, rows)| rows.to_owned()).expect("rows of flow contexts")
    };
    assert!(told("1").contains("trains looked up"));
    let why = told("2");
    assert!(why.contains("none") && why.contains("share a look-up"), "{why}");
}
