//! An operator's work with a live run: the log of sessions, the state, the control socket, where files and
//! readers are not as they should be.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use crate::common::{BINARY, Ended, run, scratch, text};

/// Time that a NAT of these tests remembers flows of UDP.
const TIMEOUT: Duration = Duration::from_secs(2);

/// 200 flows of UDP, each of a packet or more, through a NAT; the run goes on when they have come.
fn nat(timeout: Duration, pool: &str) -> String {
    format!(
        "in :: paced(rate=20kpps, packets=1000, traffic=\"flows=200,packets=1000\") \
         -> n :: nat(pool=[{pool}], udp_timeout={}s, loose=true) -> null; \
         paced(rate=20pps, traffic=\"flows=1\") -> null",
        timeout.as_secs()
    )
}

/// The program at work.
pub(crate) struct Running {
    /// None once it has ended.
    child: Option<Child>,
    control: PathBuf,
}

impl Drop for Running {
    fn drop(&mut self) {
        // A test may fail before the end.
        self.child.iter_mut().for_each(|child| drop(child.kill().and_then(|()| child.wait())));
    }
}

impl Running {
    /// As [`Running::of`], of `slipstream run`.
    pub(crate) fn start(dir: &Path, words: &[&str]) -> Self {
        Self::of("run", dir, words)
    }

    /// Waits until it serves at its socket, or has ended.
    pub(crate) fn of(verb: &str, dir: &Path, words: &[&str]) -> Self {
        let control = dir.join("control");
        let child = Command::new(BINARY)
            .args([verb, "--format", "json", "--control", text(&control)])
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut running = Self { child: Some(child), control };
        let since = slipstream::clock::now();
        while !running.has_ended() && running.ctl(&["ping"]).status != Some(0) {
            assert!(since.elapsed() < Duration::from_secs(60), "it doesn't answer");
            sleep(Duration::from_millis(20));
        }
        running
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_none_or(|child| child.try_wait().unwrap().is_some())
    }

    pub(crate) fn ctl(&self, words: &[&str]) -> Ended {
        run([&["ctl"], words, &["--control", text(&self.control), "--format", "json"]].concat())
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Has it end, which it must within a time, before anybody has read what it says.
    pub(crate) fn stop(mut self) -> Ended {
        self.signal("-TERM");
        let since = slipstream::clock::now();
        while !self.has_ended() {
            assert!(since.elapsed() < Duration::from_secs(15), "it doesn't end");
            sleep(Duration::from_millis(20));
        }
        Ended::of(self.child.take().unwrap().wait_with_output().unwrap())
    }
}

pub(crate) fn make_fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// An event: by whom, whether it is the beginning, and when.
type Event = (String, bool, u64);

fn events(path: &Path) -> Vec<Event> {
    let event = |line: &str| {
        let all: serde_json::Value = serde_json::from_str(line).unwrap();
        let flow = ["protocol", "inside", "inside_port", "remote", "remote_port"].map(|f| all[f].to_string());
        (flow.join(" "), all["event"] == "session_created", all["time_ns"].as_u64().unwrap())
    };
    fs::read_to_string(path).unwrap_or_default().lines().map(event).collect()
}

/// Sessions that began, and those that ended.
fn counted(path: &Path) -> (usize, usize) {
    let all = events(path);
    let begun = all.iter().filter(|(_, begins, _)| *begins).count();
    (begun, all.len() - begun)
}

/// Waits until this comes true.
#[track_caller]
fn comes(what: &str, mut is: impl FnMut() -> bool) {
    let since = slipstream::clock::now();
    while !is() {
        assert!(since.elapsed() < Duration::from_secs(30), "{what}");
        sleep(Duration::from_millis(50));
    }
}

/// Waits until all flows have come.
fn all_begun(log: &Path) -> usize {
    let mut seen = 0;
    comes("sessions begin", || {
        let before = std::mem::replace(&mut seen, counted(log).0);
        sleep(Duration::from_millis(600));
        seen > 100 && seen == before
    });
    seen
}

#[test]
fn a_reader_of_the_session_log_that_has_stopped_keeps_no_run_from_ending() {
    let dir = scratch();
    let fifo = dir.path().join("fifo");
    make_fifo(&fifo);
    let reader = OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
    for target in [text(&fifo), "/dev/stdout"] {
        let graph = nat(TIMEOUT, "192.0.2.1").replace("flows=200", "flows=20000").replace("1000", "20000");
        let running = Running::start(dir.path(), &["--session-log", &format!("json:{target}"), "-e", &graph]);
        sleep(Duration::from_millis(1500));
        let ended = running.stop().with(0).saying(&["ends without events", "events="]);
        // The report can't be printed where nobody reads, and is on stderr.
        assert_eq!(ended.stderr.contains("packets_in"), target == "/dev/stdout", "{}", ended.stderr);
    }
    drop(reader);
}

/// Sessions that begin just before the data path waits for somebody are told of when it goes on.
#[test]
fn a_data_path_that_waits_loses_no_session_from_the_log() {
    let dir = scratch();
    let log = dir.path().join("log");
    let traffic = "flows=6000,packets=20000";
    let graph = format!(
        "paced(rate=20kpps, packets=20000, traffic=\"{traffic}\") \
         -> n :: nat(pool=[192.0.2.1], udp_timeout=600s, loose=true) -> pcap(path=\"-\")"
    );
    let target = format!("json:{}", text(&log));
    let mut child = Command::new(BINARY)
        .args(["run", "--format", "json", "--session-log", &target, "-e", &graph])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Longer than anybody waits for it to answer.
    sleep(Duration::from_millis(2500));
    std::io::copy(&mut child.stdout.take().unwrap(), &mut std::io::sink()).unwrap();
    let ended = Ended::of(child.wait_with_output().unwrap()).with(0);
    let report: serde_json::Value =
        serde_json::from_str(&ended.stderr[ended.stderr.find("{\n").unwrap()..]).unwrap();
    let stages = report["stages"].as_array().unwrap();
    let n = stages.iter().find(|stage| stage["name"] == "n").unwrap();
    let opened = n["counters"]["sessions_opened"].as_u64().unwrap() as usize;
    assert!(opened > 1000, "{opened}");
    assert_eq!(counted(&log), (opened, opened));
}

/// The end of a session that nobody uses is logged within about a second of its time, though no packet
/// comes, with the time at which it was.
#[test]
fn sessions_end_while_no_packet_comes() {
    let dir = scratch();
    let log = dir.path().join("log");
    let target = format!("json:{}", text(&log));
    let graph = nat(TIMEOUT, "192.0.2.1");
    let running = Running::start(dir.path(), &["--session-log", &target, "-e", &graph]);
    let begun = all_begun(&log);
    comes("sessions end", || counted(&log).1 == begun);
    let shown = running.ctl(&["report"]).with(0).json();
    let stages = shown["report"]["stages"].as_array().unwrap();
    let n = stages.iter().find(|stage| stage["name"] == "n").unwrap();
    assert_eq!((n["counters"]["sessions"].as_u64(), n["counters"]["mappings"].as_u64()), (Some(0), Some(0)));
    running.stop().with(0);
    let mut began = BTreeMap::new();
    for (flow, begins, time) in events(&log) {
        if begins {
            began.insert(flow, time);
            continue;
        }
        let lasted = Duration::from_nanos(time - began[&flow]);
        assert!((TIMEOUT..TIMEOUT + Duration::from_secs(1)).contains(&lasted), "{flow}: {lasted:?}");
    }
}

#[test]
fn sessions_end_with_the_process_unless_their_state_is_kept() {
    let dir = scratch();
    let [log, state] = ["log", "state"].map(|name| dir.path().join(name));
    let target = format!("json:{}", text(&log));
    let graph = nat(Duration::from_secs(100), "192.0.2.1");
    let running = Running::start(dir.path(), &["--session-log", &target, "-e", &graph]);
    let begun = all_begun(&log);
    running.stop().with(0);
    assert_eq!(counted(&log), (begun, begun));
    // With a state they go on; those whose time is over meanwhile, or that have no place any more, end.
    for (timeout, pool, end) in [(TIMEOUT * 3, "192.0.2.1", "over"), (TIMEOUT * 50, "192.0.2.9", "left out")]
    {
        let words = ["--session-log", &target, "--state", text(&state), "-e"];
        // On a machine that stands still for as long, all of them may be over before the run has ended.
        let mut timeout = timeout;
        loop {
            fs::remove_file(&log).unwrap();
            let _ = fs::remove_file(&state);
            let running = Running::start(dir.path(), &[&words[..], &[&nat(timeout, "192.0.2.1")]].concat());
            let begun = all_begun(&log);
            running.stop().with(0);
            if counted(&log).1 < begun {
                break;
            }
            assert!(timeout < TIMEOUT * 50, "{end}: sessions ended that are kept");
            timeout *= 4;
        }
        sleep(if end == "over" { timeout } else { Duration::ZERO });
        let later = format!(
            "n :: nat(pool=[{pool}], udp_timeout=100s); paced(rate=20pps) -> null; paced(rate=1kpps, packets=1) -> n -> null"
        );
        let running = Running::start(dir.path(), &[&words[..], &[&later]].concat());
        running.stop().with(0);
        // The one packet may have begun a session.
        let all = events(&log);
        let mut open: BTreeMap<&String, i64> = BTreeMap::new();
        for (flow, begins, _) in &all {
            *open.entry(flow).or_default() += if *begins { 1 } else { -1 };
        }
        assert!(open.values().filter(|n| **n != 0).count() <= 1, "{end}: {open:?}");
        assert!(open.values().all(|n| *n >= 0), "{end}: something ended twice");
    }
}

#[test]
fn lines_of_denials_add_up() {
    let dir = scratch();
    let rules = dir.path().join("rules.txt");
    fs::write(&rules, "deny any\n").unwrap();
    let graph = format!("paced(rate=2kpps, packets=3000) -> firewall(rules=\"{}\") -> null", text(&rules));
    let ended =
        run(["run", "--log-denied", "--log-format", "json", "--format", "json", "-e", &graph]).with(0);
    let lines = ended.stderr.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let denied = lines.filter(|line| line["message"] == "denied");
    let packets: Vec<u64> = denied.map(|line| line["packets"].as_u64().unwrap()).collect();
    assert_eq!(
        packets.iter().sum::<u64>(),
        ended.json()["dropped"]["denied"].as_u64().unwrap(),
        "{packets:?}"
    );
    // Ten a second, and a look more at both ends.
    let seconds = ended.json()["elapsed_ns"].as_f64().unwrap() / 1e9;
    assert!((3..6 + (10.0 * seconds) as usize).contains(&packets.len()), "{packets:?} in {seconds} s");
}

#[test]
fn a_state_that_can_not_be_written_is_told_at_the_start() {
    let dir = scratch();
    let graph = nat(TIMEOUT, "192.0.2.1");
    for path in ["/nowhere/at/all", "/proc/state", "/dev/null", text(dir.path())] {
        run(["run", "--state", path, "--state-unreadable", "ignore", "-e", &graph])
            .with(2)
            .silent()
            .saying(&["--state", path, "can't be written"]);
    }
}

#[test]
fn a_state_is_written_to_where_its_name_leads() {
    let dir = scratch();
    let [link, between, file] = ["link", "between", "sub/state"].map(|name| dir.path().join(name));
    fs::create_dir(dir.path().join("sub")).unwrap();
    symlink("between", &link).unwrap();
    symlink("sub/state", &between).unwrap();
    for _ in 0..2 {
        run([
            "run",
            "--state",
            text(&link),
            "-e",
            "paced(rate=1kpps, packets=9) -> nat(pool=[192.0.2.1]) -> null",
        ])
        .with(0);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink(), "the link was replaced");
        assert!(fs::symlink_metadata(&file).unwrap().is_file());
        fs::write(dir.path().join("empty"), "").unwrap();
    }
}

/// Each would overwrite at its end what the other has saved.
#[test]
fn a_state_is_kept_by_one_process() {
    let dir = scratch();
    let state = dir.path().join("state");
    let graph = nat(TIMEOUT, "192.0.2.1");
    let words = ["--state", text(&state), "-e", &graph];
    for turn in ["without a file", "with that of the turn before"] {
        let running = Running::start(dir.path(), &words);
        let refused = run([&["run", "--duration", "100ms"], &words[..]].concat()).with(2).silent();
        refused.saying(&["--state", text(&state), "another process keeps its state", "name another file"]);
        running.ctl(&["save"]).with(0);
        run([&["run", "--duration", "100ms"], &words[..]].concat()).with(2).silent();
        // What an operator puts there is nobody's.
        fs::remove_file(&state).unwrap();
        running.stop().with(0);
        assert!(state.exists(), "{turn}: nothing was saved at the end");
    }
    run([&["run", "--duration", "100ms"], &words[..]].concat()).with(0);
}

#[test]
fn the_log_says_why_a_run_ended() {
    for (words, reason) in [
        (&["--duration", "100ms"][..], "(--duration)"),
        (&["--packets", "5"], "(--packets)"),
        (&[], "nothing more comes"),
    ] {
        let graph = "paced(rate=1kpps, packets=200) -> null";
        run([&["run"], words, &["-e", graph]].concat()).with(0).saying(&["ended", reason]);
    }
}

/// A collector of logs reads every line, the address of the metrics and a last error included.
#[test]
fn a_log_in_json_is_json_throughout() {
    let run_with = |words: &[&str]| run([&["run", "--log-format", "json"], words].concat());
    let served = ["--metrics", "127.0.0.1:0", "--duration", "100ms", "-e", "paced(rate=1kpps) -> null"];
    let wrong = ["-e", "paced(rate=1kpps) -> nothing"];
    let checked = ["--fail-if", "packets_in>0", "-e", "synth(traffic=\"flows=1,packets=9\") -> null"];
    for (words, status, told) in
        [(&served[..], 0, "metrics"), (&wrong, 2, "nothing"), (&checked, 1, "packets_in")]
    {
        let ended = run_with(words).with(status);
        let messages: Vec<String> = ended
            .stderr
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).expect(line)["message"].to_string())
            .collect();
        assert!(messages.iter().any(|message| message.contains(told)), "{messages:?}");
    }
    let silent = run_with(&[&["--log-level", "off"], &wrong[..]].concat()).with(2);
    assert!(silent.stderr.contains("nothing"), "the error is told in any case");
}

/// A process that is killed while packets wait for it in shared memory took some of them, and the others were
/// not sent; each is in one of the two accounts, of the report and of the control socket's.
#[test]
fn packets_for_a_process_that_was_killed_are_counted() {
    let dir = scratch();
    let port = format!("shm(path=\"{}\", ring=64KiB)", text(&dir.path().join("shm")));
    let near = ["-e", &format!("paced(rate=50kpps, traffic=\"size=100,flows=4\") -> there :: {port}")];
    let mut running = Running::start(dir.path(), &near);
    let mut there = Command::new(BINARY)
        .args(["run", "-e", &format!("{port} -> counter -> null")])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let sent = |name: &str| {
        let report = running.ctl(&["report"]);
        let report = (report.status == Some(0)).then(|| report.json()["report"].clone());
        report.map_or(0, |report| report["stages"][0]["counters"][name].as_u64().unwrap())
    };
    comes("packets are taken", || sent("packets_sent") > 5000);
    assert!(Command::new("kill").args(["-STOP", &there.id().to_string()]).status().unwrap().success());
    let mut last = 0;
    comes("the ring is full", || {
        let before = std::mem::replace(&mut last, sent("packets_sent"));
        sleep(Duration::from_millis(200));
        before == sent("packets_sent")
    });
    there.kill().unwrap();
    there.wait().unwrap();
    comes("it ends", || running.has_ended());
    let ended = Ended::of(running.child.take().unwrap().wait_with_output().unwrap()).with(2);
    assert!(ended.stderr.contains("ended without finishing"), "{}", ended.stderr);
    let report = ended.json();
    let (source, shm) = (&report["sources"][0], &report["stages"][0]);
    let number = |value: &serde_json::Value| value.as_u64().unwrap();
    let never_taken = number(&shm["counters"]["never_taken"]);
    assert!(never_taken > 100, "{report:#}");
    let dropped = number(&shm["dropped"]["not_sent"]);
    assert!(dropped >= never_taken, "{report:#}");
    assert_eq!(number(&shm["counters"]["packets_sent"]) + dropped - never_taken, number(&source["packets"]));
    assert_eq!(number(&report["packets_out"]) + dropped, number(&source["packets"]), "{report:#}");
}

#[test]
fn tables_are_not_asked_for_fields_that_they_do_not_have() {
    let dir = scratch();
    let running = Running::start(dir.path(), &["-e", &nat(TIMEOUT, "192.0.2.1")]);
    for verb in ["list", "delete"] {
        let ask = |only: &str| running.ctl(&[verb, "n", "sessions", "--only", only]);
        ask("remoteport=9").with(2).silent().saying(&["no field `remoteport`", "remote_port"]);
        ask("inside=999").with(2).silent().saying(&["`inside`", "an address"]);
        ask("remote_port=9").with(0);
        // Of a field that is given twice one value counts, which whoever deletes something should know.
        let twice = |value: &str| {
            running.ctl(&[
                verb,
                "n",
                "sessions",
                "--only",
                "remote_port=9",
                "--only",
                &format!("remote_port={value}"),
            ])
        };
        twice("10").with(0).saying(&["--only remote_port is given several times", "10"]);
        assert_eq!(twice("9").with(0).stderr, "", "the same value once more");
    }
    running.stop().with(0);
}

/// A user signal ends no run, as it would by default: it asks for what is counted.
#[test]
fn user_signals_have_statistics_logged() {
    let dir = scratch();
    let rules = dir.path().join("rules");
    fs::write(&rules, "deny any\n").unwrap();
    let graph = format!(
        "in :: paced(rate=10kpps, packets=700) -> fw :: firewall(rules=\"{}\") -> null; \
         paced(rate=20pps, traffic=\"flows=1\") -> null",
        text(&rules)
    );
    for signal in ["-USR1", "-USR2"] {
        let mut running = Running::start(dir.path(), &["-e", &graph]);
        let log = BufReader::new(running.child.as_mut().unwrap().stderr.take().unwrap());
        running.signal(signal);
        let mut lines = log.lines().map(Result::unwrap).filter(|line| line.contains("statistics"));
        let run = lines.next().expect("the log tells of the run");
        assert!(run.contains("inside=") && run.contains("seconds="), "{run}");
        // The signal may have come before the packets had: what they are counted as, the next one tells.
        let firewall = lines.find(|line| line.contains("stage=\"fw\"")).expect("the log tells of each stage");
        assert!(firewall.contains("packets=") && firewall.contains("held=0"), "{firewall}");
        comes("that all packets are denied", || {
            running.ctl(&["report"]).json()["report"]["stages"][0]["dropped"]["denied"] == 700
        });
        running.signal(signal);
        let firewall = lines.find(|line| line.contains("stage=\"fw\"")).expect("the log tells of each stage");
        assert!(firewall.contains("packets=700") && firewall.contains("denied=700"), "{firewall}");
        running.stop().with(0);
    }
}

/// Nor does it end the start of one whose configuration takes long to come.
#[test]
fn a_user_signal_does_not_end_a_start() {
    let dir = scratch();
    let config = dir.path().join("config.toml");
    make_fifo(&config);
    let mut command = Command::new(BINARY);
    command.arg("run").arg(&config).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let mut writes = OpenOptions::new().write(true).open(&config).unwrap();
    let usr1 = ["-USR1", &child.id().to_string()];
    assert!(Command::new("kill").args(usr1).status().unwrap().success());
    writes.write_all(b"graph = \"paced(rate=1kpps, packets=10) -> null\"\n").unwrap();
    drop(writes);
    Ended::of(child.wait_with_output().unwrap()).with(0).saying(&["ended"]);
}

/// Who presses Ctrl-C twice wants what the first one does.
#[test]
fn a_second_signal_right_behind_the_first_changes_nothing() {
    let dir = scratch();
    let mut running = Running::start(dir.path(), &["-e", "paced(rate=1kpps) -> reframe(hold=1ms) -> null"]);
    let pid = running.child.as_ref().unwrap().id();
    let twice = format!("kill -INT {pid}; kill -TERM {pid}");
    assert!(Command::new("bash").args(["-c", &twice]).status().unwrap().success());
    let ended = Ended::of(running.child.take().unwrap().wait_with_output().unwrap()).with(0);
    assert!(ended.json()["packets_in"].as_u64().is_some());
    assert!(!running.control.exists());
}

/// A run that waits for a reader does not end by itself; what it has changed around it is put back all the
/// same.
#[test]
fn a_later_signal_ends_a_run_that_hangs() {
    let dir = scratch();
    let mut running = Running::start(dir.path(), &["-e", "paced(rate=50kpps) -> pcap(path=\"-\")"]);
    // The pipe is full soon.
    sleep(Duration::from_millis(500));
    for _ in 0..2 {
        running.signal("-INT");
        sleep(Duration::from_millis(500));
        assert!(!running.has_ended());
    }
    sleep(Duration::from_millis(1500));
    running.signal("-INT");
    assert_eq!(running.child.take().unwrap().wait().unwrap().code(), Some(130));
    assert!(!running.control.exists());
}

/// It is found out before ports are open, where packets would be lost.
#[test]
fn a_core_that_is_not_there_is_told_before_the_run_begins() {
    let graph = "paced(rate=1kpps) -> counter -> null";
    let words = ["run", "--shards", "2", "--cores", "0,9999", "--duration", "100ms", "-e", graph];
    let ended = run(words).with(2).silent().saying(&["core 9999 can't be had; there are 0"]);
    assert!(!ended.stderr.contains("running"), "{}", ended.stderr);
}

/// Shards without a core of their own share one: an operator who left a number out is told so.
#[test]
fn shards_that_share_a_core_are_told() {
    let graph = "paced(rate=1kpps) -> counter -> null";
    for (cores, told) in [(&["--cores", "0"][..], true), (&["--cores", "0,0"], false), (&[], false)] {
        let words = ["run", "--shards", "2", "--duration", "100ms", "-e", graph];
        let ended = run(words.iter().chain(cores)).with(0);
        assert_eq!(ended.stderr.contains("share its time"), told, "{cores:?}: {}", ended.stderr);
    }
}

/// Where stderr is the journal's, each line has the priority by which `journalctl -p` chooses, and no time;
/// where it goes elsewhere, a variable of whoever started the program changes nothing.
#[test]
fn the_journal_gets_priorities() {
    let dir = scratch();
    let log = |named: &dyn Fn(u64, u64) -> String, words: &[&str]| {
        let path = dir.path().join("log");
        let file = fs::File::create(&path).unwrap();
        let about = file.metadata().unwrap();
        let mut command = Command::new(BINARY);
        command.args(words).env("JOURNAL_STREAM", named(about.dev(), about.ino()));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).status().unwrap();
        fs::read_to_string(path).unwrap()
    };
    // Packets that find no session are lost; what is discarded was to be.
    let graph = "paced(rate=200pps, traffic=\"flows=5,packets=5000\") \
                 -> nat(pool=[192.0.2.1], sessions=1) -> discard";
    let run = ["run", "--metrics", "127.0.0.1:0", "--duration", "2500ms", "-e", graph];
    let ours = |device: u64, inode: u64| format!("{device}:{inode}");
    for (words, error) in [(&run[..], false), (&["run", "-e", "nonsense("], true)] {
        for format in ["text", "json"] {
            let words = [words, &["--log-format", format]].concat();
            let said = log(&ours, &words);
            for line in said.lines() {
                let important = line.contains("WARN");
                let priority = if error {
                    "<3>"
                } else if important {
                    "<4>"
                } else {
                    "<6>"
                };
                assert!(line.starts_with(priority), "{format}: {line}");
            }
            let expected = if error { 1 } else { 4 };
            assert!(said.lines().count() >= expected && !said.contains("panicked"), "{format}: {said}");
            let of =
                |reason: &str| said.lines().find(|line| line.contains("first drop") && line.contains(reason));
            for (reason, priority) in [("table_full", "<4>"), ("discarded", "<6>")] {
                let is_so = of(reason).is_some_and(|line| line.starts_with(priority));
                assert!(error || is_so, "{format}: {said}");
            }
        }
    }
    let elsewhere = log(&|device, inode| format!("{device}:{}", inode + 1), &run);
    let live = elsewhere.lines().find(|line| line.contains("running")).unwrap();
    assert!(live.starts_with("20") && !elsewhere.contains("<6>"), "{elsewhere}");
}
