//! The log of a NAT's sessions (RFC 6888 §4), as IPFIX (RFC 8158), syslog (RFC 5424) or lines of JSON; and
//! firewalls' denials, in the log of the run.
//!
//! A thread of its own takes what happened from the stages, five times a second.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::UdpSocket;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Context;
use serde_json::json;
use slipstream::clock::LiveClock;
use slipstream::functions::ipfix::{Exporter, IpfixConfig};
use slipstream::operate::{Denial, Events, SessionEvent};
use slipstream::pipeline::Plan;
use slipstream::runtime::{Driver, Operator};
use slipstream::time::Nanos;
use tracing::warn;

use crate::log::LIVE;

/// Time between two looks.
const EVERY: Duration = Duration::from_millis(200);
/// Sessions that may begin or end between two looks; beyond that they are counted as missed.
const SESSIONS: usize = 1 << 15;
/// Denials between two looks.
const DENIALS: usize = 64;
/// Denials that are told of between two looks.
const TOLD: usize = 2;
/// Longest wait for the data path.
const PATIENCE: Duration = Duration::from_secs(1);

/// Target of the log of sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Messages of IPFIX over UDP.
    Ipfix(String),
    /// Messages of syslog over UDP.
    Syslog(String),
    /// Lines of JSON in a file.
    Json(PathBuf),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("ipfix", to)) if to.contains(':') => Ok(Self::Ipfix(to.to_owned())),
            Some(("syslog", to)) if to.contains(':') => Ok(Self::Syslog(to.to_owned())),
            Some(("json", path)) if !path.is_empty() => Ok(Self::Json(path.into())),
            _ => Err("write ipfix:ADDRESS:PORT, syslog:ADDRESS:PORT or json:FILE".to_owned()),
        }
    }
}

/// An open log.
enum Log {
    /// An exporter for each shard, whose number is its observation domain.
    Ipfix(Vec<Exporter>, UdpSocket),
    Syslog(UdpSocket),
    Json(PathBuf, File),
}

fn socket(to: &str) -> io::Result<UdpSocket> {
    let local = if to.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
    let socket = UdpSocket::bind(local)?;
    socket.connect(to)?;
    Ok(socket)
}

fn append(path: &PathBuf) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

/// An event; with the number of its shard where there are several.
fn as_json(event: &SessionEvent, shard: Option<usize>) -> String {
    let SessionEvent { time, begins, protocol, inside, external, remote } = event;
    let mut all = json!({
        "time_ns": time.0,
        "event": if *begins { "session_created" } else { "session_deleted" },
        "protocol": protocol,
        "inside": inside.0,
        "inside_port": inside.1,
        "external": external.0,
        "external_port": external.1,
        "remote": remote.0,
        "remote_port": remote.1,
    });
    if let (Some(shard), Some(all)) = (shard, all.as_object_mut()) {
        all.insert("shard".to_owned(), shard.into());
    }
    all.to_string()
}

impl Log {
    fn open(target: &Target, shards: usize) -> io::Result<Self> {
        Ok(match target {
            Target::Ipfix(to) => {
                let of = |domain| Exporter::of_sessions(&IpfixConfig { domain, ..IpfixConfig::default() });
                Self::Ipfix((0..shards as u32).map(of).collect(), socket(to)?)
            }
            Target::Syslog(to) => Self::Syslog(socket(to)?),
            Target::Json(path) => Self::Json(path.clone(), append(path)?),
        })
    }

    /// Writes events of a shard, where there are several; the first error, after all were tried.
    fn write(&mut self, events: &[SessionEvent], shard: Option<usize>, now: Nanos) -> io::Result<()> {
        match self {
            Self::Ipfix(exporters, socket) => {
                let Some(exporter) = exporters.get_mut(shard.unwrap_or_default()) else { return Ok(()) };
                let mut send = |message: &[u8]| socket.send(message).map(drop);
                let mut result = Ok(());
                for event in events {
                    result = result.and(exporter.push_session(event, now, &mut send));
                }
                result.and(exporter.flush(now, &mut send))
            }
            Self::Syslog(socket) => {
                let pid = std::process::id();
                // Facility local0, severity informational; whoever collects them has the time.
                let line = |event: &SessionEvent| {
                    format!("<134>1 - - slipstream {pid} nat - {}", as_json(event, shard))
                };
                let sent: Vec<_> = events.iter().map(|e| socket.send(line(e).as_bytes()).map(drop)).collect();
                sent.into_iter().collect()
            }
            Self::Json(path, file) => {
                // Somebody may have moved it away, to begin another one.
                let same = |file: &File| -> io::Result<bool> {
                    Ok(std::fs::metadata(&*path)?.ino() == file.metadata()?.ino())
                };
                if !same(file).unwrap_or(false) {
                    *file = append(path)?;
                }
                let lines: String = events.iter().map(|event| as_json(event, shard) + "\n").collect();
                file.write_all(lines.as_bytes())
            }
        }
    }
}

/// Stages and events that the thread looks for.
struct Look {
    operator: Operator,
    shards: usize,
    stages: Vec<String>,
    log: Option<Log>,
    denied: bool,
    /// Events that could not be written, and whether that was told.
    failed: bool,
}

impl Look {
    /// Memory for what happens until the next look.
    fn room(&self) -> Events {
        Events {
            sessions: Vec::with_capacity(if self.log.is_some() { SESSIONS } else { 0 }),
            denials: Vec::with_capacity(if self.denied { DENIALS } else { 0 }),
            missed: 0,
        }
    }

    /// Looks at the stages of a pipeline that doesn't run yet, or any longer.
    fn look_at(&mut self, driver: &mut Driver) {
        for shard in 0..driver.shards() {
            for stage in self.stages.clone() {
                let mut events = self.room();
                if let Some(operated) = driver.operate_shard(shard, &stage) {
                    operated.events(&mut events);
                }
                self.tell(&stage, shard, &events);
            }
        }
    }

    fn look(&mut self) {
        for shard in 0..self.shards {
            for stage in self.stages.clone() {
                let mut events = self.room();
                let got = self.operator.visit(shard, &stage, PATIENCE, move |stage, _| {
                    if let Some(stage) = stage.operate() {
                        stage.events(&mut events);
                    }
                    events
                });
                if let Some(events) = got {
                    self.tell(&stage, shard, &events);
                }
            }
        }
    }

    fn tell(&mut self, stage: &str, shard: usize, events: &Events) {
        let now = LiveClock::get().now();
        let shard = (self.shards > 1).then_some(shard);
        if let Some(log) = self.log.as_mut().filter(|_| !events.sessions.is_empty()) {
            let written = log.write(&events.sessions, shard, now);
            if let (Err(error), false) = (&written, self.failed) {
                warn!(target: LIVE, %error, "the log of sessions can't be written");
            }
            self.failed = written.is_err();
        }
        if events.missed > 0 && self.log.is_some() {
            warn!(target: LIVE, stage, shard, events = events.missed, "sessions came faster than they could be logged");
        }
        for Denial { line, flow, packets, .. } in
            events.denials.iter().take(if self.denied { TOLD } else { 0 })
        {
            let rule = line.map_or("the default".to_owned(), |line| format!("line {line}"));
            warn!(target: LIVE, stage, shard, rule, %flow, packets, "denied");
        }
    }
}

/// The thread.
pub(crate) struct Sessions {
    over: Sender<()>,
    thread: JoinHandle<Look>,
}

impl Sessions {
    /// Logs the sessions of a plan's NATs, and denials of its firewalls, where that is wanted, from the first
    /// packet of the run that is about to begin; nothing is done where neither is.
    ///
    /// # Errors
    /// The log can't be opened.
    pub(crate) fn start(
        operator: Operator,
        driver: &mut Driver,
        plan: &Plan,
        target: Option<&Target>,
        denied: bool,
    ) -> anyhow::Result<Option<Self>> {
        let shards = driver.shards();
        let log = target
            .map(|t| Log::open(t, shards).with_context(|| format!("--session-log {t:?}")))
            .transpose()?;
        let wanted = |kind: &str| kind == "nat" && log.is_some() || kind == "firewall" && denied;
        let stages: Vec<_> =
            plan.stages.iter().filter(|s| wanted(s.kind.name)).map(|s| s.name.clone()).collect();
        if stages.is_empty() {
            return Ok(None);
        }
        let (over, ends) = channel();
        let mut look = Look { operator, shards, stages, log, denied, failed: false };
        look.look_at(driver);
        let run = move || {
            while ends.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                look.look();
            }
            look
        };
        let thread = thread::Builder::new().name("sessions".into()).spawn(run)?;
        Ok(Some(Self { over, thread }))
    }

    /// The run has ended: logs what is left.
    pub(crate) fn finish(self, driver: &mut Driver) {
        drop(self.over);
        // A thread that panicked has said so.
        if let Ok(mut look) = self.thread.join() {
            look.look_at(driver);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read() {
        assert_eq!("ipfix:10.0.0.1:4739".parse(), Ok(Target::Ipfix("10.0.0.1:4739".into())));
        assert_eq!("syslog:[::1]:514".parse(), Ok(Target::Syslog("[::1]:514".into())));
        assert_eq!("json:/var/log/nat".parse(), Ok(Target::Json("/var/log/nat".into())));
        for wrong in ["", "json:", "ipfix:10.0.0.1", "file", "udp:1.2.3.4:5"] {
            assert!(wrong.parse::<Target>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_file_that_was_moved_away_begins_anew() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("nat.json");
        let event = SessionEvent {
            time: Nanos(5),
            begins: true,
            protocol: 17,
            inside: ([10, 0, 0, 1].into(), 1),
            external: ([192, 0, 2, 1].into(), 2),
            remote: ([198, 51, 100, 1].into(), 3),
        };
        let mut log = Log::open(&Target::Json(path.clone()), 1).unwrap();
        log.write(&[event, event], None, Nanos(5)).unwrap();
        std::fs::rename(&path, scratch.path().join("old")).unwrap();
        log.write(&[event], Some(3), Nanos(5)).unwrap();
        let read = std::fs::read_to_string(&path).unwrap();
        assert_eq!(read.lines().count(), 1);
        let value: serde_json::Value = serde_json::from_str(read.trim()).unwrap();
        assert_eq!(
            (value["external"].as_str(), value["external_port"].as_u64(), value["shard"].as_u64()),
            (Some("192.0.2.1"), Some(2), Some(3))
        );
    }
}
