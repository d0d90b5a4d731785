//! What an operator keeps of a live run and asks of it: the log of sessions, the state, the control socket,
//! where files and readers are not as they should be.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use crate::common::{BINARY, Ended, run, scratch, text};

/// How long a NAT of these tests remembers flows of UDP.
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
struct Running {
    /// None once it has ended.
    child: Option<Child>,
    control: PathBuf,
}

impl Drop for Running {
    fn drop(&mut self) {
        // Where a test fails before the end.
        self.child.iter_mut().for_each(|child| drop(child.kill().and_then(|()| child.wait())));
    }
}

impl Running {
    /// Waits until it serves at its socket, or has ended.
    fn start(dir: &Path, words: &[&str]) -> Self {
        let control = dir.join("control");
        let child = Command::new(BINARY)
            .args(["run", "--format", "json", "--control", text(&control)])
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

    fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_none_or(|child| child.try_wait().unwrap().is_some())
    }

    fn ctl(&self, words: &[&str]) -> Ended {
        run([&["ctl"], words, &["--control", text(&self.control), "--format", "json"]].concat())
    }

    /// Has it end, which it must within a time, before anybody has read what it says.
    fn stop(mut self) -> Ended {
        let pid = self.child.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        let since = slipstream::clock::now();
        while !self.has_ended() {
            assert!(since.elapsed() < Duration::from_secs(15), "it doesn't end");
            sleep(Duration::from_millis(20));
        }
        Ended::of(self.child.take().unwrap().wait_with_output().unwrap())
    }
}

fn make_fifo(path: &Path) {
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
fn tables_are_not_asked_for_fields_that_they_do_not_have() {
    let dir = scratch();
    let running = Running::start(dir.path(), &["-e", &nat(TIMEOUT, "192.0.2.1")]);
    for verb in ["list", "delete"] {
        let ask = |only: &str| running.ctl(&[verb, "n", "sessions", "--only", only]);
        ask("remoteport=9").with(2).silent().saying(&["no field `remoteport`", "remote_port"]);
        ask("inside=999").with(2).silent().saying(&["`inside`", "an address"]);
        ask("remote_port=9").with(0);
    }
    running.stop().with(0);
}

/// A pipe in place of a file that is read again would keep a reload waiting, and everybody behind it.
#[test]
fn a_reload_reads_no_pipes() {
    let dir = scratch();
    let [config, rules] = ["c.toml", "rules.txt"].map(|name| dir.path().join(name));
    let graph = "graph = \"paced(rate=1kpps) -> fw -> null\"\n[stage.fw]\ntype = \"firewall\"\nrules = \"rules.txt\"\n";
    fs::write(&config, graph).unwrap();
    fs::write(&rules, "allow any\n").unwrap();
    let running = Running::start(dir.path(), &[text(&config)]);
    running.ctl(&["reload"]).with(0);
    for path in [&rules, &config] {
        fs::remove_file(path).unwrap();
        make_fifo(path);
        running.ctl(&["reload"]).with(2).saying(&[text(path), "no regular file"]);
    }
    fs::remove_file(&config).unwrap();
    fs::remove_file(&rules).unwrap();
    fs::write(&config, graph).unwrap();
    fs::write(&rules, "deny any\n").unwrap();
    running.ctl(&["reload"]).with(0);
    running.stop().with(0);
}
