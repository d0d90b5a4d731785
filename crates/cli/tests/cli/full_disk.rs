//! Disks, devices and files that take no more.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::common::{BINARY, Ended, campus, names, run, run_under, scratch, small, text, with_mounts};

/// No file may have more than 20 KiB.
const SHORT_FILES: &str = "ulimit -f 20";

/// Runs a pipeline in a folder of its own of 64 KiB, and `meanwhile` beside it. Its files are copied into the
/// folder `files` afterwards. None where no file system can be mounted.
fn run_in_64_kib(dir: &Path, graph: &str, meanwhile: &str) -> Option<Ended> {
    let command = format!(
        "mkdir disk files && mount -t tmpfs -o size=64k none disk && cd disk || exit 99
         {BINARY} run --format json -e '{graph}' 2> ../log & {meanwhile}
         wait $!; status=$?; cp * ../files; cat ../log >&2; exit $status"
    );
    with_mounts(dir, &command)
}

/// Packets in a file, which must not be damaged.
fn records(file: &Path) -> u64 {
    let ended =
        Ended::of(Command::new(BINARY).args(["analyze", text(file), "--format", "json"]).output().unwrap());
    assert!(!ended.stderr.contains("damaged"), "{}", ended.stderr);
    ended.with(0).json()["records"].as_u64().unwrap()
}

/// Packets that came, that a stage wrote, and that were dropped.
fn figures(result: &Value, stage: &str) -> (u64, u64, u64) {
    let stage = result["stages"].as_array().unwrap().iter().find(|s| s["name"] == stage).unwrap();
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let (written, dropped) = (&stage["counters"]["packets_written"], &result["dropped"]["not_sent"]);
    (number(&result["packets_in"]), number(written), number(dropped))
}

#[test]
fn what_was_written_stays_and_the_rest_counts_as_dropped() {
    for file in ["p.pcap", "p.pcapng"] {
        let dir = scratch();
        let graph = format!("paced(rate=10kpps, packets=200k) -> out :: pcap(path={file})");
        let Some(ended) = run_in_64_kib(dir.path(), &graph, "") else { return };
        let ended = ended.with(2).saying(&["ERROR", file, "No space left"]);
        let (came, written, dropped) = figures(&ended.json(), "out");
        assert_eq!(written + dropped, came);
        assert_eq!(records(&dir.path().join("files").join(file)), written);
        assert!(written > 500, "{written}");
        assert!(came < 150_000, "it ended when nothing was left to write to: {came}");
    }
}

#[test]
fn packets_go_on_to_where_they_can() {
    let dir = scratch();
    let graph = "paced(rate=10kpps, packets=20k) -> t :: tee; t -> null; t[1] -> out :: pcap(path=p.pcap)";
    let Some(ended) = run_in_64_kib(dir.path(), graph, "") else { return };
    let ended = ended.with(2).saying(&["can't write", "No space left"]);
    let at = |what: &str| ended.stderr.find(what).unwrap_or(usize::MAX);
    assert!(at("can't write") < at("ended"), "{}", ended.stderr);
    let result = ended.json();
    let ((came, written, dropped), (_, passed, _)) = (figures(&result, "out"), figures(&result, "null"));
    assert_eq!((written + dropped, passed), (came, came));
    assert_eq!(came, 20_000);
    assert_eq!(records(&dir.path().join("files/p.pcap")), written);
}

#[test]
fn complete_files_stay_and_another_is_begun_when_there_is_room() {
    let dir = scratch();
    let graph = "paced(rate=1kpps, packets=8k) -> out :: pcap(path=p.pcap, rotate_size=16KiB, keep=3)";
    // Something else takes half of the disk, and goes away when nothing can be written for two seconds.
    let other = "head -c 32768 /dev/zero > other; for n in {1..100}; do grep -q \"can't write\" ../log && break; sleep 0.1; done
         sleep 2; cp p-00001.pcap ../files/early; rm other;";
    let Some(ended) = run_in_64_kib(dir.path(), graph, other) else { return };
    let ended = ended.with(0).saying(&["can't write", "No space left", "writes again"]);
    let files = dir.path().join("files");
    let mut kept: Vec<_> = fs::read_dir(&files).unwrap().map(|f| f.unwrap().path()).collect();
    kept.retain(|path| path.extension().is_some());
    assert_eq!(kept.len(), 3, "{kept:?}");
    // The first of them was there all the time that nothing could be written.
    assert!(records(&files.join("early")) > 150);
    kept.iter().for_each(|file| assert!(records(file) > 0));
    let (came, written, dropped) = figures(&ended.json(), "out");
    assert_eq!(written + dropped, came);
    assert!(dropped > 500 && written > 500, "{written} {dropped}");
}

/// The system kills who writes beyond a limit of files' lengths and doesn't hear of it.
#[test]
fn a_limit_of_files_lengths_is_an_error_of_writing() {
    let trace = campus();
    let trace = text(&trace);
    for words in [
        format!("reframe {trace} out.pcap"),
        format!("run -i {trace} -o out.pcapng -e counter"),
        format!("run -i {trace} -o null -e 'tap(path=out.pcap)'"),
        format!("measure {trace} --sketch univmon --save out.state"),
        format!("analyze {trace} --parquet-packets out.parquet"),
        "synth out.pcap --packets 10000".into(),
        "synth - --packets 10000 > stdout".into(),
    ] {
        let dir = scratch();
        run_under(SHORT_FILES, dir.path(), &words).with(2).saying(&["File too large", "ulimit -f"]);
        assert!(names(dir.path()).iter().all(|name| name == "stdout"), "{words}: {:?}", names(dir.path()));
    }
}

#[test]
fn a_live_run_keeps_what_a_limit_of_files_lengths_lets_it_write() {
    let dir = scratch();
    let graph = "paced(rate=10kpps, packets=20k) -> t :: tee; t -> null; t[1] -> out :: pcap(path=p.pcap)";
    let ended = run_under(SHORT_FILES, dir.path(), &format!("run --format json -e '{graph}'"));
    let result = ended.with(2).saying(&["can't write", "File too large", "ended"]).json();
    let ((came, written, dropped), (_, passed, _)) = (figures(&result, "out"), figures(&result, "null"));
    assert_eq!((written + dropped, passed), (came, came));
    assert_eq!((came, records(&dir.path().join("p.pcap"))), (20_000, written));
    assert!(written > 50, "{written}");
}

/// The log of polls lies in memory meanwhile, and an operator hears of the disk before the end.
#[test]
fn a_log_of_polls_says_at_once_that_it_finds_no_room_and_keeps_what_does() {
    let dir = scratch();
    let command = format!(
        "mkdir disk && mount -t tmpfs -o size=64k none disk && cd disk || exit 99
         {BINARY} run --format json --poll-log p.csv -e 'paced(rate=2kpps, packets=10k) -> null'
         status=$?; cp p.csv ..; exit $status"
    );
    let Some(ended) = with_mounts(dir.path(), &command) else { return };
    let ended = ended.with(2).saying(&["no room on the disk for the log of polls", "polls are lost"]);
    let at = |what: &str| ended.stderr.find(what).unwrap_or(usize::MAX);
    assert!(at("no room on the disk") < at("ended"), "{}", ended.stderr);
    assert_eq!(ended.json()["packets_in"], 10_000);
    let written = fs::read_to_string(dir.path().join("p.csv")).unwrap();
    assert!(written.len() > 60_000 && written.ends_with('\n'), "{} bytes", written.len());
    assert!(written.lines().all(|line| line.split(',').count() == 5));
    let (_, lost) = ended.stderr.split_once("elsewhere; ").unwrap();
    let lost: Vec<usize> = lost.split(' ').filter_map(|word| word.parse().ok()).collect();
    assert_eq!(lost, [lost[1] + 1 - written.lines().count(), lost[1]]);
}

/// A log without room for more polls says so while the run goes on.
#[test]
fn a_log_of_polls_that_is_full_says_so_at_once() {
    let ended = Ended::of(
        Command::new(BINARY)
            .args(["run", "--poll-log", "/dev/null", "--poll-log-max", "10", "-e"])
            .arg("paced(rate=1kpps, packets=2k) -> null")
            .output()
            .unwrap(),
    );
    let ended = ended.with(0);
    let at = |what: &str| ended.stderr.find(what).unwrap_or(usize::MAX);
    assert!(at("the log of polls is full") < at("ended"), "{}", ended.stderr);
}

/// What went wrong is said once.
#[test]
fn a_full_disk_is_told_once() {
    for option in ["--parquet", "--parquet-packets", "--report"] {
        let ended = run(["analyze", text(small()), option, "/dev/full"]).with(2).silent();
        assert_eq!(ended.stderr.matches("No space left").count(), 1, "{}", ended.stderr);
    }
}

/// A result that took long is shown though its page can't be written.
#[test]
fn a_full_disk_loses_no_result() {
    let campus = campus();
    let server = ["--service-base", "600ns", "--service-per-packet", "77ns", "--format", "json"];
    for (words, key) in [
        (["model", "solve", "--rate", "11mpps"], "mean_batch"),
        (["model", "sweep", "--rates", "11mpps"], "rows"),
    ] {
        let ended = run([&words[..], &server, &["--report", "/dev/full"]].concat()).with(2);
        assert_eq!(ended.stderr.matches("No space left").count(), 1, "{}", ended.stderr);
        assert!(!ended.json()[key].is_null(), "{key}");
    }
    let words = ["recommend", text(&campus), "--holds", "0,16us", "--hold-cost", "60ns"];
    let ended = run(words.iter().chain(&["--report", "/dev/full"])).with(2).saying(&["/dev/full"]);
    assert!(String::from_utf8_lossy(&ended.stdout).contains("Recommended hold"), "{:?}", ended.stdout);
}

#[test]
fn a_full_stdout_is_told_as_such() {
    for words in ["list", "man", "completions bash", "analyze"] {
        let trace = if words == "analyze" { text(small()) } else { "" };
        let command = format!("{BINARY} {words} {trace} > /dev/full");
        let output = Command::new("bash").args(["-c", &command]).output().unwrap();
        Ended::of(output).with(2).saying(&["stdout: cannot be written", "free some space"]);
    }
}

#[test]
fn a_device_that_is_full() {
    run([Path::new("reframe"), &campus(), Path::new("/dev/full")])
        .with(2)
        .silent()
        .saying(&["/dev/full", "space"]);
    run(["synth", "--packets", "10000", "/dev/full"]).with(2).silent().saying(&["/dev/full", "space"]);
    for words in [&format!("analyze {}", text(small())), "--help", "--version", "reframe -h"] {
        let to_full = format!("{BINARY} {words} > /dev/full");
        Ended::of(Command::new("sh").args(["-c", &to_full]).output().unwrap()).with(2).saying(&["space"]);
    }
}

#[test]
fn a_file_that_may_not_grow_leaves_nothing_behind() {
    for verb in ["reframe IN out.pcap", "reframe IN out.pcapng.gz", "synth --packets 100000 out.pcap"] {
        let dir = scratch();
        let words = verb.replace("IN", text(&campus()));
        // 64 kB at most; the signal that comes with it is ignored, so that writing fails as on a full disk.
        run_under("trap '' XFSZ; ulimit -f 64", dir.path(), &words).with(2).silent().saying(&["out.pcap"]);
        assert_eq!(names(dir.path()), [""; 0], "{verb}");
    }
}

#[test]
fn a_disk_that_is_full_keeps_the_old_file() {
    let dir = scratch();
    let command = format!(
        "mount -t tmpfs -o size=128k none . && cd \"$PWD\" && echo old > out.pcap && {{ {BINARY} reframe {} out.pcap; echo $?; \
         cat out.pcap; ls -A; }}",
        text(&campus())
    );
    let Some(ended) = with_mounts(dir.path(), &command) else { return };
    assert_eq!(
        String::from_utf8_lossy(&ended.stdout),
        "2\nold\nout.pcap\n",
        "status, old content, only that file"
    );
    ended.saying(&["out.pcap", "space"]);
}
