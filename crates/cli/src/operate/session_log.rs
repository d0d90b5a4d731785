//! The log of a NAT's sessions (RFC 6888 §4), as IPFIX (RFC 8158), syslog (RFC 5424) or lines of JSON.
//!
//! Events wait in a queue of bounded length for a thread that writes, so that nobody waits for a disk that is
//! full or a reader that has stopped. What can't be written is tried again; what finds no room is counted.

mod lines;

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use slipstream::clock::{LiveClock, RealTime, real_time};
use slipstream::functions::datagrams::Datagrams;
use slipstream::functions::ipfix::{Exporter, IpfixConfig};
use slipstream::operate::SessionEvent;
use slipstream::time::Nanos;
use tracing::{info, warn};

use self::lines::{Lines, as_json};
use crate::log::LIVE;

/// Events that may wait.
const ROOM: usize = 1 << 18;
/// Events that are written at a time.
const AT_ONCE: usize = 1024;
/// Time until what could not be written is tried again.
const AGAIN: Duration = Duration::from_millis(200);
/// Time after which the templates of IPFIX are sent again: a collector may have begun anew, and where it is
/// behind a firewall nobody says so.
const TEMPLATES: Duration = Duration::from_secs(60);
/// Time without an error after which datagrams count as going through again: not each one has an answer.
const QUIET: Duration = Duration::from_secs(10);
/// Longest wait, when a run has ended, until all is written.
const PATIENCE: Duration = Duration::from_secs(2);

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

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ipfix(to) => write!(f, "ipfix:{to}"),
            Self::Syslog(to) => write!(f, "syslog:{to}"),
            Self::Json(path) => write!(f, "json:{}", path.display()),
        }
    }
}

/// Returns true of an address with a port that datagrams can be sent to.
fn has_port(to: &str) -> bool {
    to.rsplit_once(':').is_some_and(|(_, port)| port.parse().is_ok_and(|port: u16| port > 0))
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("ipfix", to)) if has_port(to) => Ok(Self::Ipfix(to.to_owned())),
            Some(("syslog", to)) if has_port(to) => Ok(Self::Syslog(to.to_owned())),
            Some(("json", "-")) => Ok(Self::Json("/dev/stdout".into())),
            Some(("json", path)) if !path.is_empty() => Ok(Self::Json(path.into())),
            _ => Err("write ipfix:ADDRESS:PORT, syslog:ADDRESS:PORT (a port from 1 to 65535) or json:FILE"
                .to_owned()),
        }
    }
}

/// The fate of events that were to be written.
#[derive(Debug, Default)]
struct Written {
    /// Those that need not be tried again, from the first one on.
    done: usize,
    /// Those of them that are lost.
    lost: u64,
    error: Option<io::Error>,
}

/// An open log.
enum Log {
    /// An exporter for each shard, whose number is its observation domain.
    Ipfix(Vec<Exporter>, Datagrams),
    Syslog(Datagrams),
    Json(Lines),
}

/// The fate of events that were sent.
fn sent(datagrams: &mut Datagrams, done: usize, error: Option<io::Error>) -> Written {
    let (lost, late) = datagrams.take_lost();
    Written { done, lost, error: error.or(late) }
}

impl Log {
    fn open(target: &Target, shards: usize) -> io::Result<Self> {
        Ok(match target {
            Target::Ipfix(to) => {
                let of = |domain| {
                    let template_interval = Some(TEMPLATES.as_nanos() as u64);
                    Exporter::of_sessions(&IpfixConfig {
                        domain,
                        template_interval,
                        ..IpfixConfig::default()
                    })
                };
                Self::Ipfix((0..shards as u32).map(of).collect(), Datagrams::to(to.as_str())?)
            }
            Target::Syslog(to) => Self::Syslog(Datagrams::to(to.as_str())?),
            Target::Json(path) => Self::Json(Lines::open(path)?),
        })
    }

    /// Writes events of a shard, some of them at least unless it fails, with its number where there are
    /// several.
    fn write(&mut self, events: &[SessionEvent], shard: Option<usize>, now: Nanos) -> Written {
        match self {
            Self::Ipfix(exporters, datagrams) => {
                let done = events.len();
                let Some(exporter) = exporters.get_mut(shard.unwrap_or_default()) else {
                    return Written { done, ..Written::default() };
                };
                let waiting = Cell::new(0);
                let mut send = |message: &[u8]| datagrams.send(message, waiting.take());
                let mut result = Ok(());
                for event in events {
                    result = result.and(exporter.push_session(event, now, &mut send));
                    waiting.set(waiting.get() + 1);
                }
                let error = result.and(exporter.flush(now, &mut send)).err();
                let written = sent(datagrams, done, error);
                if written.error.is_some() {
                    // Who begins to listen later is to know how to read what comes.
                    exporters.iter_mut().for_each(Exporter::send_templates_again);
                }
                written
            }
            Self::Syslog(datagrams) => {
                let pid = std::process::id();
                let mut error = None;
                for event in events {
                    // Facility local0, severity informational; whoever collects them has the time.
                    let line = format!("<134>1 - - slipstream {pid} nat - {}", as_json(event, shard));
                    if let Err(why) = datagrams.send(line.as_bytes(), 1) {
                        error.get_or_insert(why);
                    }
                }
                sent(datagrams, events.len(), error)
            }
            Self::Json(lines) => {
                let (done, error) = lines.write(events, shard);
                Written { done, lost: 0, error }
            }
        }
    }

    fn clock_was_set_back(&mut self) {
        if let Self::Ipfix(exporters, _) = self {
            exporters.iter_mut().for_each(Exporter::clock_was_set_back);
        }
    }

    /// The reason why nothing can be sent now, if there is no way to whoever collects it.
    fn without_way(&self) -> Option<io::Error> {
        match self {
            Self::Ipfix(_, datagrams) | Self::Syslog(datagrams) => datagrams.without_way(),
            Self::Json(_) => None,
        }
    }

    /// Time without an error after which it works again.
    fn quiet(&self) -> Duration {
        if matches!(self, Self::Json(_)) { Duration::ZERO } else { QUIET }
    }
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<(usize, SessionEvent)>,
    /// Events that the thread has taken and not written yet.
    in_hand: usize,
    /// Events that will not be written, and how many of them the log of the run has told of.
    lost: u64,
    told: u64,
    /// Attempts to write that failed.
    errors: u64,
    /// Events that came faster than the stages could note them.
    missed: u64,
    /// Since there was no room, not everything was written yet.
    crowded: bool,
    /// Up to when whoever has events waits for room; before the run has ended, nobody does.
    until: Option<Instant>,
}

impl State {
    /// Events that are lost and that nothing has told of; whoever asks does.
    fn untold(&mut self) -> u64 {
        let told = self.told;
        self.told = self.lost;
        self.lost - told
    }
}

#[derive(Debug)]
struct Shared {
    room: usize,
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread waits for events: some of one shard.
    fn next(&self) -> (usize, Vec<SessionEvent>) {
        let mut state = self.lock();
        loop {
            if let Some((shard, _)) = state.waiting.front().copied() {
                let same = state.waiting.iter().take(AT_ONCE).take_while(|(other, _)| *other == shard);
                let count = same.count();
                let events: Vec<_> = state.waiting.drain(..count).map(|(_, event)| event).collect();
                state.in_hand = count;
                self.changed.notify_all();
                return (shard, events);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// An attempt to write failed.
    fn failed(&self) {
        self.lock().errors += 1;
    }

    /// The thread has done with events that it took.
    fn written(&self, done: usize, lost: u64) {
        let mut state = self.lock();
        state.in_hand -= done.min(state.in_hand);
        state.lost += lost;
        self.changed.notify_all();
    }

    /// Returns true once when everything is written since there was no room.
    fn has_caught_up(&self) -> bool {
        let mut state = self.lock();
        let over = state.crowded && state.waiting.is_empty() && state.in_hand == 0;
        state.crowded &= !over;
        over
    }

    /// See [`State::untold`].
    fn untold(&self) -> u64 {
        self.lock().untold()
    }
}

/// The log, as it appears to those who have events; its threads share it.
#[derive(Clone, Debug)]
pub(crate) struct SessionLog {
    shared: Arc<Shared>,
    target: Target,
}

impl SessionLog {
    /// Opens it for the sessions of so many shards, and starts the thread that writes.
    ///
    /// # Errors
    /// It can't be opened.
    pub(crate) fn start(target: &Target, shards: usize) -> anyhow::Result<Self> {
        let failed = || format!("--session-log {target}");
        let log = Log::open(target, shards).with_context(failed)?;
        Self::with_room(target, log, shards, ROOM, LiveClock::get()).with_context(failed)
    }

    /// The log with so much room, of events whose times are this clock's.
    fn with_room(
        target: &Target,
        log: Log,
        shards: usize,
        room: usize,
        clock: LiveClock,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared { room, state: Mutex::default(), changed: Condvar::new() });
        let read = Arc::clone(&shared);
        let write = move || write_all(&read, log, shards, clock);
        thread::Builder::new().name("session-log".into()).spawn(write)?;
        Ok(Self { shared, target: target.clone() })
    }

    /// Takes events of a shard, in their order. Those that find no room are lost.
    pub(crate) fn offer(&self, shard: usize, mut events: &[SessionEvent]) {
        let mut state = self.shared.lock();
        while !events.is_empty() {
            let fit = self.shared.room.saturating_sub(state.waiting.len()).min(events.len());
            let (some, rest) = events.split_at_checked(fit).unwrap_or((events, &[]));
            state.waiting.extend(some.iter().map(|event| (shard, *event)));
            self.shared.changed.notify_all();
            events = rest;
            let left = state.until.map(|until| until.saturating_duration_since(slipstream::clock::now()));
            let Some(left) = left.filter(|left| !left.is_zero() && !events.is_empty()) else { break };
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if !events.is_empty() {
            state.lost += events.len() as u64;
            let first = !std::mem::replace(&mut state.crowded, true);
            drop(state);
            if first {
                warn!(target: LIVE, "the log of sessions is not taken in time; what finds no room is lost");
            }
        }
    }

    /// Events never came here: there were more of them than a stage can note between two looks.
    pub(crate) fn missed(&self, events: u64) {
        self.shared.lock().missed += events;
    }

    /// Events that are lost or never came, and attempts to write that failed.
    pub(crate) fn trouble(&self) -> (u64, u64) {
        let state = self.shared.lock();
        (state.lost + state.missed, state.errors)
    }

    /// The run has ended: from now on for two seconds whoever has events waits for room.
    pub(crate) fn end_soon(&self) {
        self.shared.lock().until = Some(slipstream::clock::now() + PATIENCE);
    }

    /// Waits for the rest of that time until all is written, and tells of events that were not. False if
    /// stdout is where they could not be, so that nothing else can be written there.
    pub(crate) fn finish(&self) -> bool {
        let state = self.shared.lock();
        let left = state.until.map_or(PATIENCE, |u| u.saturating_duration_since(slipstream::clock::now()));
        let busy = |state: &mut State| state.in_hand > 0 || !state.waiting.is_empty();
        let (mut state, _) =
            self.shared.changed.wait_timeout_while(state, left, busy).unwrap_or_else(PoisonError::into_inner);
        let stuck = state.in_hand + state.waiting.len();
        let events = stuck as u64 + state.untold();
        drop(state);
        if events > 0 {
            warn!(target: LIVE, events, "the log of sessions ends without events that could not be written");
        }
        stuck == 0 || !matches!(&self.target, Target::Json(path) if lines::is_stdout(path))
    }
}

fn tell_failed(error: &io::Error) {
    warn!(target: LIVE, %error, "the log of sessions can't be written");
}

/// Writes events as they come.
fn write_all(shared: &Shared, mut log: Log, shards: usize, clock: LiveClock) {
    let (mut failed, mut times): (Option<Instant>, _) = (None, RealTime::of(clock));
    if let Some(error) = log.without_way() {
        failed = Some(slipstream::clock::now());
        shared.failed();
        tell_failed(&error);
    }
    loop {
        let (shard, mut events) = shared.next();
        if times.look() {
            log.clock_was_set_back();
        }
        events.iter_mut().for_each(|event| event.time = times.at(event.time));
        let shown = (shards > 1).then_some(shard);
        let mut left = events.as_slice();
        while !left.is_empty() {
            let Written { done, lost, error } = log.write(left, shown, real_time());
            left = left.get(done..).unwrap_or_default();
            shared.written(done, lost);
            let now = slipstream::clock::now();
            if let Some(error) = error {
                shared.failed();
                if failed.replace(now).is_none() {
                    tell_failed(&error);
                }
                if !left.is_empty() {
                    thread::sleep(AGAIN);
                }
            } else if failed.is_some_and(|at| now.duration_since(at) >= log.quiet()) {
                failed = None;
                info!(target: LIVE, events_lost = shared.untold(), "the log of sessions is written again");
            } else if failed.is_none() && shared.has_caught_up() {
                warn!(target: LIVE, events_lost = shared.untold(), "the log of sessions is taken in time again");
            }
        }
    }
}

#[cfg(test)]
mod tests;
