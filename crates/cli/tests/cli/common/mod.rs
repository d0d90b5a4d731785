//! Helpers of the command's tests: they run it, make directories, find the bundled trace.

#![allow(dead_code, reason = "each test uses some of it")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::Duration;

use tempfile::TempDir;

/// The program under test.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_slipstream");

/// The directory of bundled traces.
pub(crate) fn traces() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../traces")
        .canonicalize()
        .expect("traces/ is in the repository")
}

/// A bundled trace of 24,000 packets, gzip inside.
pub(crate) fn campus() -> PathBuf {
    traces().join("campus.pcap.gz")
}

/// A small plain pcap of 2,000 packets of 96 bytes, made once.
pub(crate) fn small() -> &'static Path {
    static SMALL: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let make = || {
        let dir = scratch();
        let file = dir.path().join("small.pcap");
        let words = ["synth", "--profile", "campus", "--packets", "2000", "--seed", "5", "--snap-len", "96"];
        let done = Command::new(BINARY).args(words).arg(&file).output().expect("the program starts");
        assert!(done.status.success(), "{done:?}");
        (dir, file)
    };
    &SMALL.get_or_init(make).1
}

/// Headings of a page follow one another without a step that is left out, so that who hears it finds the way.
pub(crate) fn check_headings(page: &str) {
    let levels = page.split("<h").skip(1).filter_map(|rest| rest.chars().next()?.to_digit(10));
    let levels: Vec<u32> = levels.collect();
    assert_eq!(levels.first(), Some(&1));
    for pair in levels.windows(2) {
        assert!(pair[1] <= pair[0] + 1, "h{} behind h{}: {levels:?}", pair[1], pair[0]);
    }
}

/// An empty directory, removed when dropped.
pub(crate) fn scratch() -> TempDir {
    tempfile::tempdir().expect("a directory for temporary files")
}

/// Runs the program in `dir` as a shell does that has taken a `limit` upon itself, such as `ulimit -v 300000`
/// for 300 MB of address space.
pub(crate) fn run_under(limit: &str, dir: &Path, words: &str) -> Ended {
    let command = format!("{limit}; exec {BINARY} {words}");
    Ended::of(Command::new("bash").args(["-c", &command]).current_dir(dir).output().unwrap())
}

/// Runs a script that mounts something in `dir`, of which nobody else sees anything. None where no file
/// system can be mounted.
pub(crate) fn with_mounts(dir: &Path, script: &str) -> Option<Ended> {
    let unshare = ["--map-root-user", "--mount", "bash", "-c", script];
    let ended = Ended::of(Command::new("unshare").args(unshare).current_dir(dir).output().unwrap());
    if ended.stdout.is_empty() && !ended.stderr.contains("slipstream") {
        let what = format!("no file system can be mounted here: {}", ended.stderr);
        assert!(std::env::var_os("CI").is_none(), "{what}");
        eprintln!("{what}; a full disk was not tried");
        return None;
    }
    Some(ended)
}

/// Output and exit status of a run.
pub(crate) struct Ended {
    pub(crate) status: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Ended {
    pub(crate) fn of(output: Output) -> Self {
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        Self { status: output.status.code(), stdout: output.stdout, stderr }
    }

    /// It must have ended with this status; no panic whatever it was.
    #[track_caller]
    pub(crate) fn with(self, status: i32) -> Self {
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        assert_eq!(self.status, Some(status), "stderr: {}", self.stderr);
        self
    }

    /// Each of these must be in what it said on stderr.
    #[track_caller]
    pub(crate) fn saying(self, words: &[&str]) -> Self {
        for word in words {
            assert!(self.stderr.contains(word), "{word:?} is not in: {}", self.stderr);
        }
        self
    }

    /// Results belong on stdout; a run without one must leave it empty.
    #[track_caller]
    pub(crate) fn silent(self) -> Self {
        assert!(self.stdout.is_empty(), "on stdout: {}", String::from_utf8_lossy(&self.stdout));
        self
    }

    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.stdout)
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&self.stdout)))
    }
}

/// Runs the program in a directory.
pub(crate) fn run_in<S: AsRef<std::ffi::OsStr>>(dir: &Path, words: impl IntoIterator<Item = S>) -> Ended {
    let command = Command::new(BINARY).args(words).current_dir(dir).stdin(Stdio::null()).output();
    Ended::of(command.expect("the program starts"))
}

/// Runs the program.
pub(crate) fn run<S: AsRef<std::ffi::OsStr>>(words: impl IntoIterator<Item = S>) -> Ended {
    run_in(Path::new("."), words)
}

/// Runs the program with these bytes on stdin.
pub(crate) fn run_with(stdin: &[u8], words: &[&str]) -> Ended {
    let mut child = Command::new(BINARY)
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut pipe = child.stdin.take().expect("stdin is a pipe");
    let bytes = stdin.to_vec();
    // It may end before it has read everything; that is for the caller to judge.
    let writer = std::thread::spawn(move || drop(pipe.write_all(&bytes)));
    let output = child.wait_with_output().expect("the program ends");
    writer.join().expect("writing to a pipe doesn't panic");
    Ended::of(output)
}

/// A path as text.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are UTF-8")
}

/// Names in a directory, in order.
pub(crate) fn names(dir: &Path) -> Vec<String> {
    let entries = dir.read_dir().expect("the directory is there").map(|e| e.expect("an entry").file_name());
    let mut names: Vec<String> = entries.map(|n| n.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Time on processors that a process has taken, with that of its threads.
fn taken(pid: &str) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Its name, in brackets, may have spaces.
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = rest.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok());
    Duration::from_millis(ticks.sum::<u64>() * 10)
}

/// Sends a signal to a run in the middle of its work: once it has computed for a fifth of a second since it
/// began to listen for signals, or half a second after that where it waits.
#[track_caller]
pub(crate) fn interrupt(child: &Child, signal: &str) {
    let (pid, since) = (child.id().to_string(), slipstream::clock::now());
    // SIGTERM, which nobody but the command itself catches on the way to it.
    let listens = |status: &str| {
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        caught
            .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
            .is_some_and(|mask| mask >> 14 & 1 == 1)
    };
    while !listens(&fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default()) {
        assert!(since.elapsed() < Duration::from_secs(30), "it doesn't listen for signals");
        sleep(Duration::from_millis(10));
    }
    let (before, listening) = (taken(&pid), slipstream::clock::now());
    let computed = || taken(&pid).saturating_sub(before) >= Duration::from_millis(200);
    while listening.elapsed() < Duration::from_millis(500) && !computed() {
        sleep(Duration::from_millis(20));
    }
    assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
}
