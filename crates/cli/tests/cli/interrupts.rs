//! Ends before the end: signals in the middle of the work, and in the middle of waiting for somebody.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::common::{BINARY, Ended, interrupt, names, run_in, scratch, small, text};

/// A first Ctrl-C ends a replay by the wall clock well: what is held leaves, the file is whole, nothing is
/// left over.
#[test]
fn an_interrupted_replay_by_the_wall_clock_ends_well() {
    let dir = tempfile::tempdir().unwrap();
    let made = std::process::Command::new(env!("CARGO_BIN_EXE_slipstream"))
        .args(["synth", "--packets", "100000", "--rate", "1kpps", "--size", "60", "in.pcap"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert!(made.status.success());
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_slipstream"))
        .args(["reframe", "in.pcap", "out.pcap", "--pace", "real", "--hold", "1s", "--format", "json"])
        .current_dir(dir.path())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    interrupt(&child, "-INT");
    let status = child.wait().unwrap();
    assert!(status.success(), "{status}");
    let mut text = String::new();
    std::io::Read::read_to_string(&mut child.stdout.take().unwrap(), &mut text).unwrap();
    let result: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(result["released"]["drain"].as_u64().unwrap() > 0, "{text}");
    assert_eq!(result["packets_in"], result["packets_out"]);
    let mut names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["in.pcap", "out.pcap"]);
}

/// Neither Ctrl-C nor the end of the terminal leaves anything half-written behind.
#[test]
fn an_interrupted_synth_leaves_nothing() {
    interrupted_synth("-INT");
    interrupted_synth("-HUP");
}

fn interrupted_synth(signal: &str) {
    let dir = tempfile::tempdir().unwrap();
    // Whoever runs the tests under `nohup` would hand that on.
    let mut child = std::process::Command::new("env")
        .args(["--default-signal=HUP", env!("CARGO_BIN_EXE_slipstream")])
        .args(["synth", "--packets", "1G", "--size", "60", "out.pcap.gz"])
        .current_dir(dir.path())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    interrupt(&child, signal);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// A run that has its result in memory until the end leaves nothing of it either, when a signal ends it on
/// its way.
#[test]
fn an_analysis_that_is_ended_leaves_nothing() {
    for signal in ["-HUP", "-TERM"] {
        let dir = scratch();
        let mut child = Command::new("env")
            .args(["--default-signal=HUP", BINARY])
            .args(["analyze", "-", "--report", "page.html", "--parquet", "flows.parquet"])
            .stdin(std::process::Stdio::piped())
            .current_dir(dir.path())
            .spawn()
            .unwrap();
        // Waiting for it would close its input, whose end is a result of another kind.
        let _input = child.stdin.take();
        interrupt(&child, signal);
        assert_eq!(child.wait().unwrap().code(), Some(130));
        assert_eq!(names(dir.path()), [""; 0], "{signal}");
    }
}

/// Ctrl-C ends an analysis of any kind, and no part of it is taken for its result.
#[test]
fn an_interrupted_analysis_has_no_result() {
    let (endless, long) = ("synth:packets=1G,size=60", "synth:packets=2M,flows=500,size=60");
    for words in [
        &[endless][..],
        &[endless, "--save", "part"],
        &[endless, "--by", "slice 1s", "--parquet-packets", "packets.parquet"],
        &[long, long, long, "--frontier", "--keep-going"],
        &[long, long, long, "--frontier", "--threads", "1"],
    ] {
        let dir = scratch();
        let child = Command::new(BINARY)
            .arg("analyze")
            .args(words)
            .args(["--format", "json"])
            .current_dir(dir.path())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        interrupt(&child, "-INT");
        let ended = Ended::of(child.wait_with_output().unwrap()).with(130).saying(&["interrupted"]);
        assert!(ended.stdout.is_empty(), "{words:?}");
        assert_eq!(names(dir.path()), [""; 0], "{words:?}");
    }
}

/// A program under `nohup` outlives its terminal.
#[test]
fn the_end_of_the_terminal_may_be_ignored() {
    let dir = scratch();
    let command = format!("trap '' HUP; exec {BINARY} synth --packets 1G --size 60 out.pcap.gz");
    let mut child = Command::new("bash")
        .args(["-c", &command])
        .stderr(std::process::Stdio::null())
        .current_dir(dir.path())
        .spawn()
        .unwrap();
    let pause = || std::thread::sleep(std::time::Duration::from_millis(500));
    let kill = |signal: &str, pid: &str| {
        assert!(Command::new("kill").args([signal, pid]).status().unwrap().success());
    };
    pause();
    kill("-HUP", &child.id().to_string());
    pause();
    assert!(child.try_wait().unwrap().is_none(), "it ended");
    kill("-INT", &child.id().to_string());
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

/// Who waits for somebody to read a pipe ends when it is asked to, and the pipe stays one; so does a device.
#[test]
fn waiting_for_a_reader_can_be_ended() {
    let nat = ["--session-log", "json:pipe", "-e", "paced(rate=1kpps) -> nat(pool=[192.0.2.1]) -> null"];
    for words in [
        &["-e", "paced(rate=1kpps) -> pcap(path=pipe)"][..],
        &["-e", "paced(rate=1kpps) -> flow_stats(export=pipe) -> null"],
        &nat,
    ] {
        let dir = scratch();
        let pipe = dir.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let child = Command::new(BINARY)
            .arg("run")
            .args(words)
            .current_dir(dir.path())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        interrupt(&child, "-TERM");
        Ended::of(child.wait_with_output().unwrap()).with(130).saying(&["interrupted"]);
        assert_eq!(names(dir.path()), ["pipe"], "{words:?}");
        assert!(!fs::metadata(&pipe).unwrap().is_file(), "{words:?}");
    }
    let (dir, words) = (scratch(), ["-e", "flow_stats(export=/dev/null)"]);
    run_in(dir.path(), ["run", "-i", text(small()), "-o", "null"].into_iter().chain(words)).with(0);
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
}

/// Starts the command in this folder, with the usual way to take a hang-up: whoever runs the tests under
/// `nohup` would hand theirs on.
fn start_in(dir: &Path, words: &[&str]) -> Child {
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP", BINARY]).args(words).current_dir(dir);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// So does who waits for somebody to write to one, by whatever signal and in every command that reads
/// captures, and leaves no file behind; else it is a capture like any other.
#[test]
fn waiting_for_a_writer_can_be_ended() {
    let dir = scratch();
    let pipe = dir.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let start = |words: &[&str]| start_in(dir.path(), words);
    for words in [
        &["analyze", "--report", "out", "pipe"][..],
        &["reframe", "pipe", "out.pcap"],
        &["reframe", "--preload", "pipe", "out.pcap"],
        &["measure", "--task", "heavy-hitters", "--save", "out", "pipe"],
        &["measure", "--task", "heavy-hitters", "--task", "entropy", "pipe"],
        &["measure", "--task", "heavy-hitters", "--time", "..1s", "pipe"],
        &["run", "-i", "pipe", "-o", "out.pcap", "-e", "counter"],
    ] {
        for signal in ["-TERM", "-HUP", "-INT"] {
            let child = start(words);
            interrupt(&child, signal);
            Ended::of(child.wait_with_output().unwrap()).with(130).saying(&["interrupted"]);
            assert_eq!(names(dir.path()), ["pipe"], "{words:?} {signal}");
        }
    }
    for words in [
        &["analyze", "--format", "json", "pipe"][..],
        &["reframe", "--format", "json", "pipe", "null"],
        &["measure", "--task", "heavy-hitters", "--format", "json", "pipe"],
        &["run", "--format", "json", "-i", "pipe", "-o", "null", "-e", "counter"],
    ] {
        let child = start(words);
        std::thread::sleep(std::time::Duration::from_millis(300));
        fs::write(&pipe, fs::read(small()).unwrap()).unwrap();
        let found = Ended::of(child.wait_with_output().unwrap()).with(0).json();
        let packets = ["records", "packets_in", "packets"].into_iter().find_map(|key| found[key].as_u64());
        assert_eq!(packets, Some(2000), "{words:?}: {found}");
    }
}

/// So does who waits for a configuration or rules, as long as nothing has begun yet; behind it all goes on as
/// ever.
#[test]
fn waiting_for_rules_can_be_ended() {
    let dir = scratch();
    let pipe = dir.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let start = |words: &[&str]| start_in(dir.path(), words);
    let input = text(small());
    for words in [
        &["run", "pipe"][..],
        &["run", "-i", input, "-o", "null", "-e", "firewall(rules=pipe)"],
        &["run", "-i", input, "-o", "null", "-e", "reframe(bypass=@pipe)"],
        &["validate", "pipe"],
        &["validate", "--format", "json", "-i", input, "-o", "null", "-e", "firewall(rules=pipe)"],
        &["graph", "pipe"],
        &["reframe", "--bypass", "@pipe", input, "null"],
        &["analyze", "--rules", "@pipe", input],
    ] {
        for signal in ["-TERM", "-HUP", "-INT"] {
            let child = start(words);
            interrupt(&child, signal);
            let ended = Ended::of(child.wait_with_output().unwrap()).with(130).saying(&["interrupted"]);
            assert!(ended.stdout.is_empty(), "{words:?} {signal}");
        }
    }
    let child =
        start(&["run", "--format", "json", "-e", "paced(rate=1kpps) -> reframe(bypass=@pipe) -> null"]);
    std::thread::sleep(std::time::Duration::from_millis(300));
    fs::write(&pipe, "udp\n").unwrap();
    interrupt(&child, "-TERM");
    let report = Ended::of(child.wait_with_output().unwrap()).with(0).json();
    assert!(report["packets_in"].as_u64().unwrap() > 0, "{report}");
}

/// A run that takes longer than a second shows on a terminal that it is under way, also where nobody knows
/// how far it is; a short one shows nothing.
#[test]
fn long_solutions_show_that_they_are_under_way() {
    let shown = |polls: &str| {
        let words = ["--rate", "11mpps", "--service-base", "600ns", "--service-per-packet", "77ns"];
        let command = format!("{BINARY} model solve {} --simulate {polls}", words.join(" "));
        // A terminal of its own, for stdout and stderr.
        let mut terminal = Command::new("script");
        terminal.args(["-qec", &command, "/dev/null"]).env("TERM", "xterm");
        let ended = Ended::of(terminal.stdin(std::process::Stdio::null()).output().unwrap()).with(0);
        let all = String::from_utf8_lossy(&ended.stdout).into_owned();
        assert!(all.contains("Simulated, with 99 % confidence"), "{all}");
        all.contains("simulating")
    };
    assert!(!shown("1000"));
    let mut polls = 100_000;
    while !shown(&polls.to_string()) {
        polls *= 4;
        assert!(polls < 1 << 30, "nothing is shown");
    }
}

/// Whatever takes long behind the reading of a configuration ends with a signal, too, though nothing asks
/// for signals meanwhile. Here it is that many long lists of rules are made ready, one after the other, of
/// which all together take far longer than it takes until the program has to end.
#[test]
fn a_check_that_takes_long_can_be_interrupted() {
    let dir = tempfile::tempdir().unwrap();
    let mut rules = String::new();
    for n in 0..200_000 {
        let (a, b, c) = (n >> 16 & 255, n >> 8 & 255, n & 255);
        rules += &format!("deny udp src net 10.{a}.{b}.{c}/32 dst port {}\n", n % 60_000 + 1);
    }
    fs::write(dir.path().join("rules.txt"), rules + "allow any\n").unwrap();
    let stages = vec!["firewall(rules=\"rules.txt\")"; 40].join(" -> ");
    fs::write(dir.path().join("long.toml"), format!("graph = '''synth -> {stages} -> null'''\n")).unwrap();
    let mut child = Command::new(BINARY)
        .args(["validate", "long.toml"])
        .current_dir(dir.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // The first list has been read by then.
    std::thread::sleep(std::time::Duration::from_millis(500));
    interrupt(&child, "-TERM");
    let mut status = None;
    for _ in 0..300 {
        status = child.try_wait().unwrap();
        if status.is_some() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    if status.is_none() {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!(status.and_then(|status| status.code()), Some(130));
}
