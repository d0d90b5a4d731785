//! Inputs and outputs: pipes, the same file; and exit status 1 for a check that holds.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use serde_json::Value;

use crate::common::{BINARY, Ended, campus, names, run, run_in, run_with, scratch, small, text};

#[test]
fn stdin_is_a_text_like_any_other() {
    let small = small();
    let trace = text(small);
    let packets = |ended: Ended| ended.with(0).json()["packets_in"].as_u64().unwrap();
    let graph = b"graph = \"in :: synth(traffic=\\\"packets=10\\\") -> null\"";
    assert_eq!(packets(run_with(graph, &["run", "-", "--format", "json"])), 10);
    run_with(b"graph = \"synth -> nul\"", &["validate", "-"])
        .with(2)
        .silent()
        .saying(&["-: line 1, column 19"]);
    let rules = ["run", "-i", trace, "-o", "null", "--format", "json", "-e"];
    let run_by = |text: &[u8], graph: &str| run_with(text, &[&rules[..], &[graph]].concat());
    let all = packets(run_by(b"\xef\xbb\xbfdefault allow", "firewall(rules=\"-\")"));
    assert_eq!(packets(run_by(b"tcp", "reframe(bypass=@-)")), all);
    // Also where a pipeline is built several times.
    let twice = "firewall(rules=\"-\") -> b :: firewall(rules=\"-\")";
    assert_eq!(packets(run_by(b"default allow", twice)), all);
    let live = ["run", "--duration", "100ms", "--format", "json", "-e"];
    let live = live.iter().chain(&["paced(rate=1kpps) -> firewall(rules=\"-\") -> null"]);
    assert!(packets(run_with(b"default allow", &live.copied().collect::<Vec<_>>())) > 0);
    let selected = run_with(b"udp port 1", &["analyze", trace, "--rules", "@-"]).with(0);
    assert!(String::from_utf8_lossy(&selected.stdout).contains("not selected"));
    let costs = b"{\"per_train_ns\": 600, \"per_packet_ns\": 80}";
    run_with(costs, &["recommend", trace, "--holds", "0,16us", "--hold-cost", "60ns", "--costs", "-"])
        .with(0);
}

#[test]
fn stdin_is_a_capture_like_any_other() {
    let bytes = fs::read(small()).unwrap();
    let piped = run_with(&bytes, &["analyze", "-", "--format", "json"]).with(0).json();
    let named = run(["analyze", text(small()), "--format", "json"]).with(0).json();
    assert_eq!(piped["ip"], named["ip"]);
    assert_eq!(piped["records"], 2000);
    let compressed = fs::read(campus()).unwrap();
    assert_eq!(
        run_with(&compressed, &["analyze", "-", "--format", "json"]).with(0).json()["records"],
        24_000
    );
    for words in
        [&["analyze", "-", "-"][..], &["analyze", "-", "-", "--keep-going"], &["reframe", "-", "-", "null"]]
    {
        let said = ["- (stdin) can only be the first of several traces"];
        run_with(&bytes, words).with(2).silent().saying(&said);
    }
    let second = run_with(&bytes, &["analyze", text(small()), "-", "--format", "json"]).with(0).json();
    assert_eq!(second["total"]["records"], 4000, "{second}");
    run_with(b"", &["analyze", "-"]).with(2).silent().saying(&["stdin", "empty"]);
    run_with(b"hello", &["analyze", "-"]).with(2).silent().saying(&["stdin"]);
}

#[test]
fn stdout_has_the_packets_and_stderr_the_report() {
    let dir = scratch();
    let out = dir.path().join("out.pcap");
    run(["reframe", text(small()), text(&out)]).with(0);
    let piped = run(["reframe", text(small()), "-", "--format", "json"]).with(0);
    assert!(piped.stdout == fs::read(&out).unwrap(), "stdout has what the file has, and nothing else");
    let report: serde_json::Value =
        serde_json::from_str(&piped.stderr).expect("stderr has the report, as JSON");
    assert_eq!(report["packets_in"], 2000);
    let bytes = fs::read(small()).unwrap();
    let both = run_with(&bytes, &["reframe", "-", "-"]).with(0).saying(&["SLF"]);
    assert!(both.stdout == piped.stdout, "from a pipe to a pipe");
    let made = run(["synth", "--packets", "10", "-"]).with(0).saying(&["packets"]);
    assert_eq!(run_with(&made.stdout, &["analyze", "-", "--format", "json"]).with(0).json()["records"], 10);
}

/// Where there is no terminal, nobody is asked how wide it is: no program of the name `tput`, say.
#[test]
fn no_other_program_is_run() {
    let dir = scratch();
    let (told, program) = (dir.path().join("told"), dir.path().join("tput"));
    fs::write(&program, format!("#!/bin/sh\necho \"$@\" >> {}\necho 80\n", text(&told))).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    for words in [
        &["analyze", text(small())][..],
        &["measure", "--task", "cardinality", text(small())],
        &["list"],
        &["--help"],
    ] {
        let ended = Command::new(BINARY).args(words).env("PATH", dir.path()).output().unwrap();
        assert!(ended.status.success() && !ended.stdout.is_empty(), "{words:?}");
        assert!(!told.exists(), "{words:?} ran tput {}", fs::read_to_string(&told).unwrap_or_default());
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let command = format!(
        "{BINARY} reframe {} - 2>/dev/null | head -c 100 >/dev/null; echo ${{PIPESTATUS[0]}}",
        text(&campus())
    );
    let output = Command::new("bash").args(["-c", &command]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "0");
}

/// Checks that fail, and errors, are told by the status also where nobody reads the result to its end.
#[test]
fn a_reader_that_goes_away_makes_nothing_right() {
    let trace = text(&campus()).to_owned();
    for (words, status) in [
        (format!("analyze {trace} --fail-if 'ip.slf>0' --format json"), "1"),
        (format!("analyze {trace} missing.pcap"), "2"),
        ("validate -i synth: -o null -e 'foo -> bar' --format json".to_owned(), "2"),
        ("list --format json".to_owned(), "0"),
        ("man".to_owned(), "0"),
    ] {
        // The reader has gone before the program begins.
        let command = format!("(sleep 0.1; {BINARY} {words} 2> /dev/null) | true; echo ${{PIPESTATUS[0]}}");
        let output = Command::new("bash").args(["-c", &command]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), status, "{words}");
    }
}

/// Of a named pipe all is meant to be read: who leaves early makes the run fail.
#[test]
fn a_reader_that_leaves_a_named_pipe_is_an_error() {
    let dir = scratch();
    let command = format!(
        "mkfifo pipe; head -c 100 pipe > /dev/null & {BINARY} reframe {} pipe; echo $?",
        text(&campus())
    );
    let output = Command::new("bash").args(["-c", &command]).current_dir(dir.path()).output().unwrap();
    let ended = Ended::of(output);
    assert_eq!(String::from_utf8_lossy(&ended.stdout).lines().last(), Some("2"));
    ended.saying(&["pipe", "gone away"]);
}

#[test]
fn the_output_may_be_the_input() {
    let dir = scratch();
    let (file, other) = (dir.path().join("trace.pcap"), dir.path().join("other.pcap"));
    fs::copy(small(), &file).unwrap();
    run(["reframe", text(small()), text(&other)]).with(0);
    run(["reframe", text(&file), text(&file)]).with(0);
    assert!(fs::read(&file).unwrap() == fs::read(&other).unwrap(), "in place as to another file");
    assert_eq!(names(dir.path()), ["other.pcap", "trace.pcap"]);
    let link = dir.path().join("link.pcap");
    std::os::unix::fs::symlink("trace.pcap", &link).unwrap();
    run(["reframe", text(&link), text(&link), "--hold", "0"]).with(0);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink(), "a link stays a link");
    assert_eq!(run(["analyze", text(&file), "--format", "json"]).with(0).json()["records"], 2000);
}

/// Of the names that a shell makes of `*.pcap`, the last one would be the output.
#[test]
fn the_last_of_several_captures_is_not_replaced_without_a_word() {
    let dir = scratch();
    for name in ["a.pcap", "b.pcap", "c.pcap"] {
        fs::copy(small(), dir.path().join(name)).unwrap();
    }
    let reframe = |words: &[&str]| run_in(dir.path(), ["reframe"].iter().chain(words));
    for words in [
        &["a.pcap", "b.pcap", "c.pcap"][..],
        &["b.pcap", "a.pcap", "c.pcap"],
        &["a.pcap", "b.pcap", "c.pcap", "--rules", "udp", "--preload"],
    ] {
        reframe(words).with(2).silent().saying(&["OUT ", "is there already", "--overwrite"]);
        for name in ["a.pcap", "b.pcap", "c.pcap"] {
            assert!(
                fs::read(dir.path().join(name)).unwrap() == fs::read(small()).unwrap(),
                "{words:?}: {name}"
            );
        }
    }
    // An input that isn't there is told before.
    reframe(&["a.pcap", "none.pcap", "c.pcap"]).with(2).saying(&["none.pcap", "no such file"]);
    fs::create_dir(dir.path().join("in")).unwrap();
    let reframe = |words: &[&str]| {
        let words = words.iter().map(|word| word.replace("../", "in/../"));
        run_in(dir.path(), ["reframe".to_owned()].into_iter().chain(words))
    };
    // What holds nothing is nothing to lose.
    fs::write(dir.path().join("empty.pcap"), "").unwrap();
    for words in [
        &["a.pcap", "b.pcap", "new.pcap"][..],
        &["a.pcap", "b.pcap", "new.pcap", "--overwrite"],
        &["a.pcap", "b.pcap", "empty.pcap"],
        &["a.pcap", "b.pcap", "null"],
        &["a.pcap", "b.pcap", "c.pcap", "--overwrite"],
        // No pattern makes these names.
        &["b.pcap", "new.pcap"],
        &["b.pcap", "b.pcap", "new.pcap"],
        &["../b.pcap", "b.pcap", "new.pcap"],
        &["b.pcap", "synth:packets=5", "./new.pcap"],
        &["a.pcap", "b.pcap", "a.pcap"],
    ] {
        reframe(words).with(0);
    }
    let written = run_in(dir.path(), ["analyze", "a.pcap", "--format", "json"]).with(0).json();
    assert_eq!(written["records"], 4000);
}

/// A file that is no capture doesn't take the place of one, whose name stands where another was forgotten.
#[test]
fn a_capture_is_replaced_by_captures_alone() {
    let dir = scratch();
    for name in ["a.pcap", "b.pcap"] {
        fs::copy(small(), dir.path().join(name)).unwrap();
    }
    run_in(dir.path(), ["reframe", "a.pcap", "c.pcapng"]).with(0);
    let ng = fs::read(dir.path().join("c.pcapng")).unwrap();
    for other in ["a.pcap", "c.pcapng"] {
        for words in [
            &["analyze", "--report", other, "b.pcap"][..],
            &["analyze", "b.pcap", "--parquet", other],
            &["analyze", "b.pcap", "--save", other],
            &["measure", "b.pcap", "--task", "cardinality", "--save", other],
            &["lab", "hold", "--quick", "--report", other],
        ] {
            run_in(dir.path(), words).with(2).silent().saying(&[other, "is a capture", "name another file"]);
        }
    }
    assert!(fs::read(dir.path().join("a.pcap")).unwrap() == fs::read(small()).unwrap());
    assert!(fs::read(dir.path().join("c.pcapng")).unwrap() == ng);
    assert_eq!(names(dir.path()), ["a.pcap", "b.pcap", "c.pcapng"]);
}

/// A name on Linux is bytes.
#[test]
fn names_that_are_not_text() {
    let dir = scratch();
    let [from, to, made] = [&b"n\xff.pcap"[..], b"to\xff.pcapng", b"made\xff.pcap"].map(OsStr::from_bytes);
    fs::copy(small(), dir.path().join(from)).unwrap();
    let json = [OsStr::new("--format"), OsStr::new("json")];
    let verb = |words: &[&OsStr]| run_in(dir.path(), words.iter().chain(&json)).with(0).json();
    let report = verb(&[OsStr::new("reframe"), from, to]);
    assert_eq!(
        (&report["input"], &report["output"]),
        (&"n\u{fffd}.pcap".into(), &"to\u{fffd}.pcapng".into())
    );
    assert_eq!(verb(&[OsStr::new("reframe"), from, from, to])["input"][1], "n\u{fffd}.pcap");
    let report = verb(&[OsStr::new("synth"), made, OsStr::new("--packets"), OsStr::new("10")]);
    assert_eq!(report["output"], "made\u{fffd}.pcap");
    assert_eq!(verb(&[OsStr::new("analyze"), to])["records"], 4000);
    // Mistakes beside such a name are told as beside any other.
    for wrong in ["--nosuch", "-1us"] {
        let words =
            [OsStr::new("reframe"), from, OsStr::new("null"), OsStr::new("--hold"), OsStr::new(wrong)];
        run_in(dir.path(), words).with(2).silent().saying(&[wrong]);
    }
}

/// Neither another output nor an input is replaced without a word.
#[test]
fn outputs_have_files_of_their_own() {
    let dir = scratch();
    let trace = dir.path().join("d.pcap");
    fs::copy(small(), &trace).unwrap();
    let refused = |words: &[&str], said: &[&str]| {
        run_in(dir.path(), words).with(2).silent().saying(said);
        assert_eq!(names(dir.path()), ["d.pcap"], "{words:?}");
        assert!(fs::read(&trace).unwrap() == fs::read(small()).unwrap(), "{words:?} changed the trace");
    };
    for out in ["same.pcap", "./same.pcap"] {
        let words = ["-i", "d.pcap", "-o", out, "-e", "tap(path=same.pcap) -> limit(rate=1kpps, burst=10)"];
        let said = ["`tap` writes same.pcap, and so does `out`", "out: ", "and so does `tap`"];
        refused(&[&["run"], &words[..]].concat(), &said);
        refused(&[&["validate"], &words[..]].concat(), &said);
    }
    refused(
        &["analyze", "d.pcap", "--report", "z.x", "--parquet", "./z.x"],
        &["--report z.x and --parquet ./z.x: one would replace the other"],
    );
    let read = |words: &[&str], option: &str| {
        refused(&[words, &[option, "./d.pcap"]].concat(), &[option, "./d.pcap would replace d.pcap"]);
    };
    for option in ["--report", "--parquet", "--parquet-packets", "--save"] {
        read(&["analyze", "d.pcap"], option);
    }
    read(&["measure", "--task", "cardinality", "d.pcap"], "--save");
    read(&["model", "compare", "d.pcap"], "--report");
    let solve = ["--interarrival", "poisson", "--mean", "90", "--queue", "64", "--log", "d.pcap"];
    read(&[&["model", "solve"], &solve[..]].concat(), "--report");
    // Rules, in whatever option, and what a stage reads.
    fs::write(dir.path().join("r"), "udp\n").unwrap();
    let rules = |words: &[&str], said: &[&str]| {
        run_in(dir.path(), words).with(2).silent().saying(said);
        assert_eq!(fs::read(dir.path().join("r")).unwrap(), b"udp\n", "{words:?} changed the rules");
    };
    let told = ["./r would replace r, which is in use"];
    rules(&["analyze", "d.pcap", "--rules", "@r", "--report", "./r"], &told);
    rules(&["measure", "--task", "cardinality", "d.pcap", "--rules", "@r", "--save", "./r"], &told);
    rules(&["recommend", "d.pcap", "--costs", "r", "--report", "./r"], &told);
    for option in [["--bypass", "@r"], ["--rules", "@r"], ["--class", "x: @r => hold=1us"]] {
        rules(&[&["reframe", "d.pcap", "./r"], &option[..]].concat(), &told);
    }
    rules(&["run", "-i", "d.pcap", "-o", "./r", "-e", "firewall(rules=r)"], &["and `firewall` reads r"]);
    fs::remove_file(dir.path().join("r")).unwrap();
    refused(
        &["run", "-i", "d.pcap", "-o", "null", "-e", "flow_stats(export=d.pcap)"],
        &["and `in` reads d.pcap"],
    );
    // A pipeline's own files, be they there yet or not, but for a capture onto its input.
    let polls = ["run", "-i", "d.pcap", "-o", "new.pcap", "-e", "counter", "--poll-log", "./new.pcap"];
    refused(&polls, &["--poll-log ./new.pcap would replace new.pcap"]);
    let polls =
        ["run", "-i", "d.pcap", "-e", "pcap(path=n.pcap, rotate_time=1s)", "--poll-log", "n-00001.pcap"];
    refused(&polls, &["--poll-log n-00001.pcap would replace n.pcap"]);
    let shared = ["--report", "/dev/null", "--parquet", "/dev/null"];
    run_in(dir.path(), ["analyze", "d.pcap"].iter().chain(&shared)).with(0);
}

/// The remarks that `validate` makes on a pipeline are made where it runs, be it live or a replay.
#[test]
fn a_replay_tells_the_notes_of_its_pipeline() {
    let words = ["-i", text(small()), "-o", "null", "-e", "slice(entries=4) -> splice"];
    let noted = run(["validate"].iter().chain(&words)).with(0);
    let noted = String::from_utf8(noted.stdout).unwrap();
    let note = noted.lines().find_map(|line| line.strip_prefix("note: ")).unwrap();
    assert!(note.starts_with("slice: functions get up to"), "{note}");
    run(["run"].iter().chain(&words)).with(0).saying(&[note]);
}

/// A capture that goes to stdout has it for itself, by whatever name.
#[test]
fn packets_alone_go_to_stdout() {
    let dir = scratch();
    fs::copy(small(), dir.path().join("d.pcap")).unwrap();
    let from = ["run", "-i", "d.pcap"];
    for words in [
        &["-o", "-", "-e", "tap(path=/dev/stdout)"][..],
        &["-o", "-", "-e", "flow_stats(export=\"/dev/stdout\")"],
        &["-o", "/dev/fd/1", "-e", "tap(path=/proc/self/fd/1)"],
        &["-e", "in -> t :: tee; t[0] -> pcap(path=\"-\"); t[1] -> pcap(path=\"-\")"],
    ] {
        let told = ["stdout; name a file for the other"];
        run_in(dir.path(), from.iter().chain(words)).with(2).silent().saying(&told);
    }
    let packets = |words: &[&str], many: u64| {
        let ended = run_in(dir.path(), words).with(0);
        assert!(ended.stderr.contains("packets"), "{words:?}: the report is on stderr: {}", ended.stderr);
        fs::write(dir.path().join("got"), ended.stdout).unwrap();
        let got = run_in(dir.path(), ["analyze", "got", "--format", "json"]).with(0).json();
        assert_eq!(
            (&got["records"], &got["truncated_at_byte"]),
            (&many.into(), &serde_json::Value::Null),
            "{words:?}"
        );
    };
    for name in ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        packets(&[&from[..], &["-o", name, "-e", "counter"]].concat(), 2000);
        packets(&[&from[..], &["-o", "null", "-e", &format!("tap(path={name})")]].concat(), 2000);
        packets(&["reframe", "d.pcap", name], 2000);
        packets(&["synth", name, "--packets", "9"], 9);
    }
}

/// A file that is written to stdout is whole there, and the result is on stderr.
#[test]
fn a_file_beside_the_result_may_have_stdout() {
    let dir = scratch();
    fs::copy(small(), dir.path().join("d.pcap")).unwrap();
    for (words, begin, result) in [
        (&["analyze", "d.pcap", "--parquet", "/dev/stdout"][..], &b"PAR1"[..], "Locality"),
        (
            &["analyze", "d.pcap", "--parquet-packets", "/dev/fd/1", "--format", "json"],
            b"PAR1",
            "\"schema\": 1",
        ),
        (&["analyze", "d.pcap", "--report", "/proc/self/fd/1"], b"<!DOCTYPE html>", "Locality"),
        (&["measure", "d.pcap", "--task", "cardinality", "--save", "/dev/stdout"], b"SLIPMEAS", "Epoch 0"),
    ] {
        let named = dir.path().join("named");
        let to_file: Vec<&str> =
            words
                .iter()
                .map(|word| {
                    if word.starts_with("/dev/") || word.starts_with("/proc/") { text(&named) } else { *word }
                })
                .collect();
        let beside = run_in(dir.path(), &to_file).with(0);
        assert!(String::from_utf8(beside.stdout).unwrap().contains(result), "{words:?}");
        let ended = run_in(dir.path(), words).with(0).saying(&[result]);
        assert!(ended.stdout.starts_with(begin), "{words:?}");
        // A page has the command line, which differs; all else are the bytes of the file.
        if begin != b"<!DOCTYPE html>" {
            assert_eq!(ended.stdout, fs::read(&named).unwrap(), "{words:?}");
        }
        assert!(!ended.stdout.windows(result.len()).any(|w| w == result.as_bytes()) || begin[0] == b'<');
    }
}

/// A stage that writes a file writes to stdout under its name, and leaves no file that is called so.
#[test]
fn a_tap_and_an_export_may_go_to_stdout() {
    let dir = scratch();
    for (graph, begin) in
        [("tap(path=-)", [0x0a, 0x0d, 0x0d, 0x0a]), ("flow_stats(export=\"-\")", [0, 10, 0, 0])]
    {
        let ended = run_in(dir.path(), ["run", "-i", text(small()), "-o", "null", "-e", graph]).with(0);
        let same = ended.stdout.iter().zip(begin).take_while(|(is, should)| **is == *should).count();
        assert!(same >= 2 && ended.stderr.contains("packets"), "{graph}: {}", ended.stderr);
        assert_eq!(names(dir.path()), [""; 0], "{graph}");
    }
    let both = ["run", "-i", text(small()), "-o", "-", "-e", "tap(path=-)"];
    run_in(dir.path(), both).with(2).silent().saying(&["only one can have stdout"]);
}

/// If one output can't be written, no other takes its place.
#[test]
fn what_fails_replaces_nothing() {
    let dir = scratch();
    fs::copy(small(), dir.path().join("d.pcap")).unwrap();
    // An IP packet without a frame around it, which no pcap holds beside one with a frame.
    let mut bytes =
        vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 101, 0, 0, 0];
    bytes.extend([1, 0, 0, 0, 0, 0, 0, 0, 20, 0, 0, 0, 20, 0, 0, 0, 0x45, 0, 0, 20, 0, 0, 0, 0, 64, 59]);
    bytes.extend([0; 10]);
    fs::write(dir.path().join("raw.pcap"), bytes).unwrap();
    run_in(dir.path(), ["reframe", "d.pcap", "raw.pcap", "two.pcapng"]).with(0);
    let old = ["a.pcap", "b.gz", "c.zst", "e.ipfix", "f.save"];
    old.iter().for_each(|name| fs::write(dir.path().join(name), "OLD").unwrap());
    let before = names(dir.path());
    for words in [
        &["run", "-i", "d.pcap", "-o", "a.pcap", "-e", "tap(path=/dev/full)"][..],
        &["run", "-i", "d.pcap", "-o", "/dev/full", "-e", "tap(path=b.gz) -> tap(path=c.zst)"],
        &["run", "-i", "d.pcap", "-o", "a.pcap", "-e", "flow_stats(export=\"/dev/full\")"],
        &["run", "-i", "d.pcap", "-o", "/dev/full", "-e", "flow_stats(export=e.ipfix)"],
        &["run", "-i", "two.pcapng", "-o", "new.pcapng", "-e", "tap(path=a.pcap)"],
        &[
            "run",
            "-i",
            "two.pcapng",
            "-e",
            "t :: tee; in -> t; t[0] -> pcap(path=n.pcapng); t[1] -> pcap(path=a.pcap)",
        ],
        &["analyze", "d.pcap", "--save", "f.save", "--report", "/dev/full"],
        &["analyze", "d.pcap", "--parquet", "f.save", "--report", "/dev/full"],
        &["analyze", "d.pcap", "--report", "f.save", "--parquet-packets", "/dev/full"],
    ] {
        let ended = run_in(dir.path(), words).with(2).silent();
        if words.iter().any(|word| word.contains("/dev/full")) {
            ended.saying(&["/dev/full", "free some space or write elsewhere"]);
        }
        assert_eq!(names(dir.path()), before, "{words:?} left something");
        for name in old {
            assert_eq!(fs::read(dir.path().join(name)).unwrap(), b"OLD", "{words:?} replaced {name}");
        }
    }
}

/// A saved state may be added to in its place.
#[test]
fn a_merged_state_may_replace_one_of_its_own() {
    let dir = scratch();
    let measure = |words: &[&str]| run_in(dir.path(), ["measure"].iter().chain(words)).with(0);
    measure(&["--task", "cardinality", text(small()), "--save", "a.state"]);
    fs::copy(dir.path().join("a.state"), dir.path().join("b.state")).unwrap();
    measure(&["merge", "a.state", "b.state", "--save", "a.state"]);
    assert!(names(dir.path()) == ["a.state", "b.state"]);
}

#[test]
fn an_input_that_fails_leaves_the_old_output_alone() {
    let dir = scratch();
    let (cut, out) = (dir.path().join("cut.pcap"), dir.path().join("out.pcap"));
    let bytes = fs::read(small()).unwrap();
    fs::write(&cut, &bytes[..bytes.len() - 5]).unwrap();
    fs::write(&out, "what was there before").unwrap();
    run(["reframe", "--strict", text(&cut), text(&out)]).with(2);
    assert_eq!(fs::read(&out).unwrap(), b"what was there before");
    assert_eq!(names(dir.path()), ["cut.pcap", "out.pcap"]);
}

/// A plain capture of such a name would be taken for a compressed one.
#[test]
fn a_compression_that_there_is_not() {
    let dir = scratch();
    let out = dir.path().join("out.pcap.XZ");
    let graph = format!("in :: pcap(path={}) -> pcap(path={})", text(small()), text(&out));
    for words in [&["reframe", text(small()), text(&out)][..], &["synth", text(&out)], &["run", "-e", &graph]]
    {
        run(words).with(2).silent().saying(&["out.pcap.XZ", "not with xz", ".gz or .zst"]);
    }
    assert_eq!(names(dir.path()), [""; 0]);
}

#[test]
fn the_name_of_the_output_says_its_format() {
    let dir = scratch();
    let magic = [
        ("a.pcap", &[0x4d, 0x3c, 0xb2, 0xa1][..]),
        ("a.PCAP", &[0x4d, 0x3c, 0xb2, 0xa1]),
        ("a.pcapng", &[0x0a, 0x0d, 0x0d, 0x0a]),
        ("a.pcap.gz", &[0x1f, 0x8b]),
        ("a.pcapng.zst", &[0x28, 0xb5, 0x2f, 0xfd]),
        ("as-the-input", &[0x4d, 0x3c, 0xb2, 0xa1]),
    ];
    for (name, magic) in magic {
        run_in(dir.path(), ["reframe", text(small()), name]).with(0);
        assert!(fs::read(dir.path().join(name)).unwrap().starts_with(magic), "{name}");
    }
}

#[test]
fn a_check_that_holds_is_status_one() {
    let reframe = |check: &str| run(["reframe", text(small()), "null", "--fail-if", check]);
    reframe("slf_out>1").with(1).saying(&["slf_out>1"]);
    reframe("slf_out<1").with(0);
    reframe("delay_ns.max > 64000").with(0);
    reframe("released.deadline>=1").with(1);
    let two = ["--fail-if", "records!=2000", "--fail-if", "ip.windows.1.mean_train<100"];
    run(["analyze", text(small())].iter().chain(&two)).with(1).saying(&["ip.windows.1.mean_train<100"]);
    let ended = run(["analyze", text(small()), "--format", "json", "--fail-if", "records==2000"]).with(1);
    assert_eq!(ended.json()["records"], 2000, "the result is printed all the same");
}

/// The header that makes the flow is the one that rules look at, as for `analyze`.
#[test]
fn rules_look_into_tunnels_where_flows_are_those_within() {
    let dir = scratch();
    let file = dir.path().join("tunnel.pcap");
    // DNS in IP in IP, without a link layer.
    let ip = |length: u8, protocol: u8| {
        let [a, b] = if protocol == 4 { [1, 2] } else { [3, 4] };
        [0x45, 0, 0, length, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, a, 10, 0, 0, b]
    };
    let packet = [&ip(48, 4)[..], &ip(28, 17), &[4, 210, 0, 53, 0, 8, 0, 0]].concat();
    let mut bytes =
        vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 101, 0, 0, 0];
    for second in 0..3 {
        bytes.extend([second, 0, 0, 0, 0, 0, 0, 0, 48, 0, 0, 0, 48, 0, 0, 0]);
        bytes.extend(&packet);
    }
    fs::write(&file, bytes).unwrap();
    for (tunnel, rules, packets) in [
        ("inner", "udp port 53", 3),
        ("inner", "proto 4", 0),
        ("outer", "udp port 53", 0),
        ("outer", "proto 4", 3),
    ] {
        let options = ["--tunnel", tunnel, "--rules", rules, "--format", "json"];
        let seen = run(["analyze", text(&file)].iter().chain(&options)).with(0).json();
        assert_eq!(seen["ip"]["packets"], packets, "{options:?}");
        let report = run(["reframe", text(&file), "null"].iter().chain(&options)).with(0).json();
        assert_eq!(report["packets_in"], packets, "{options:?}");
    }
}

/// Options that have nothing to be about are told.
#[test]
fn options_without_effect_are_told() {
    let dir = scratch();
    let run = |graph: &str| {
        let words =
            ["run", "--duration", "100ms", "--session-log", "json:log", "--state", "state", "--log-denied"];
        run_in(dir.path(), words.into_iter().chain(["-e", graph])).with(0)
    };
    run("paced(rate=1kpps) -> null").saying(&[
        "--session-log has no effect",
        "--log-denied has no effect",
        "--state has no effect",
    ]);
    fs::write(dir.path().join("rules"), "default allow\n").unwrap();
    let ended = run("paced(rate=1kpps) -> nat(pool=[192.0.2.1]) -> firewall(rules=rules) -> null");
    assert!(!ended.stderr.contains("no effect"), "{}", ended.stderr);
}

/// A named pipe can be read once: it is one part, as stdin is, and what must read a trace again refuses it at
/// once.
#[test]
fn a_named_pipe_is_read_once() {
    let dir = scratch();
    let shell = |verb: &str| {
        // Who opens a pipe waits for the other end, which may never come.
        let script = format!(
            "rm -f pipe; mkfifo pipe; timeout 20 sh -c 'cat {} > pipe' > /dev/null 2>&1 & timeout 10 {BINARY} {verb}",
            text(&campus())
        );
        Command::new("sh").current_dir(dir.path()).args(["-c", &script]).output().unwrap()
    };
    let json = |output: &Output| -> Value { serde_json::from_slice(&output.stdout).unwrap() };
    for verb in ["--save whole.part pipe", "--part 1/2 --save first.part pipe"] {
        let output = shell(&format!("analyze --format json {verb}"));
        assert!(output.status.success(), "{verb}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(json(&output)["ip"]["packets"], 24_000, "{verb}");
    }
    let output = shell("analyze --format json --part 2/2 --save second.part pipe");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let merged = run_in(dir.path(), ["analyze", "merge", "--format", "json", "second.part", "first.part"]);
    assert_eq!(merged.with(0).json()["ip"]["packets"], 24_000);
    let output = shell("recommend --hold-cost 0 pipe");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("pipe: the trace is read once a hold"), "{said}");
}
