//! The log, on stderr: what happens to a live run, and warnings.
//!
//! Events of a live run ([`LIVE`]) are told from level `info` on, with their time; everything else from
//! `warn` on, as plain lines. `--log-level` sets one level for both, `--log-format json` makes one JSON
//! object a line of everything but reports. Under systemd's journal, which has times of its own, text goes
//! without.
//!
//! While a pipeline runs live nobody waits for whoever reads the log ([`dont_wait`]).

mod queue;

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use clap::ValueEnum;
use tracing::{Metadata, warn};
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::fmt::format::{DefaultFields, Format};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

/// The target of events of a live run.
pub(crate) const LIVE: &str = "slipstream::live";
/// The target of what is told whatever the level.
pub(crate) const TOLD: &str = "slipstream::told";

/// Least importance of what is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Level {
    /// Nothing.
    Off,
    /// What ends a run.
    Error,
    /// What somebody should look at.
    Warn,
    /// What happens: links, reloads, sessions that were restored.
    Info,
    /// What it does about it.
    Debug,
    /// Everything.
    Trace,
}

impl From<Level> for LevelFilter {
    fn from(level: Level) -> Self {
        match level {
            Level::Off => Self::OFF,
            Level::Error => Self::ERROR,
            Level::Warn => Self::WARN,
            Level::Info => Self::INFO,
            Level::Debug => Self::DEBUG,
            Level::Trace => Self::TRACE,
        }
    }
}

/// The form of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For programs: one JSON object a line.
    Json,
}

/// Texts for stderr that a thread writes, once a live run has begun.
static QUEUE: OnceLock<Arc<queue::Queue>> = OnceLock::new();

/// Longest wait for a reader of the log when a live run has ended.
const PATIENCE: Duration = Duration::from_secs(2);

/// Lines on stderr are to be JSON.
static JSON: AtomicBool = AtomicBool::new(false);

/// True where lines on stderr are to be JSON: those that are no report go by [`TOLD`] then.
pub(crate) fn is_json() -> bool {
    JSON.load(Ordering::Relaxed)
}

/// From now on a thread writes to stderr, and nobody waits for it: where a reader falls behind by more than
/// 256 lines, what comes then is left out, and the log says how many lines once there is room.
///
/// # Errors
/// No thread is to be had.
pub(crate) fn dont_wait() -> io::Result<()> {
    if QUEUE.get().is_none() {
        let tell = |lines_left_out| {
            warn!(target: LIVE, lines_left_out, "nobody read the log in time; lines of it were left out");
        };
        // Another thread may have been faster; then this one has nothing to do.
        let _ = QUEUE.set(queue::Queue::start(io::stderr(), tell)?);
    }
    Ok(())
}

/// Waits until everything that was said is written, for two seconds at most.
pub(crate) fn drain() {
    if let Some(queue) = QUEUE.get() {
        queue.drain(PATIENCE);
    }
}

/// Writes to stderr. Errors of that are dropped: no other place is left to report them.
pub(crate) fn write(data: &[u8]) {
    match QUEUE.get() {
        Some(queue) => queue.offer(data),
        None => drop(io::stderr().write_all(data)),
    }
}

/// Stderr.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        write(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// True where stderr may have colours: a terminal, unless its user sets `NO_COLOR` (<https://no-color.org>).
fn colours() -> bool {
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

/// The least level of events: of live runs, and of all others.
fn levels(verbose: u8, asked_for: Option<Level>) -> (LevelFilter, LevelFilter) {
    let usual = match verbose {
        0 => (LevelFilter::INFO, LevelFilter::WARN),
        1 => (LevelFilter::INFO, LevelFilter::INFO),
        _ => (LevelFilter::DEBUG, LevelFilter::DEBUG),
    };
    asked_for.map_or(usual, |level| (level.into(), level.into()))
}

/// Lines of text.
fn lines<S>() -> fmt::Layer<S, DefaultFields, Format, fn() -> Stderr> {
    fmt::layer().with_writer((|| Stderr) as fn() -> Stderr).with_ansi(colours()).with_target(false)
}

/// Sends log lines to stderr.
pub(crate) fn to_stderr(verbose: u8, level: Option<Level>, format: LogFormat) {
    let (live, other) = levels(verbose, level);
    let is_live = |event: &Metadata<'_>| event.target() == LIVE;
    let told = move |event: &Metadata<'_>| {
        event.target() == TOLD || *event.level() <= if is_live(event) { live } else { other }
    };
    let of_live = filter_fn(move |event| told(event) && is_live(event));
    let of_others = filter_fn(move |event| told(event) && !is_live(event));
    let registry = tracing_subscriber::registry();
    match format {
        LogFormat::Json => {
            JSON.store(true, Ordering::Relaxed);
            let layer = fmt::layer().json().flatten_event(true).with_target(false).with_writer(|| Stderr);
            registry.with(layer.with_filter(filter_fn(told))).init();
        }
        LogFormat::Text if std::env::var_os("JOURNAL_STREAM").is_some() => {
            registry.with(lines().without_time().with_filter(filter_fn(told))).init();
        }
        LogFormat::Text => {
            let others = lines().without_time().with_filter(of_others);
            registry.with(lines().with_filter(of_live)).with(others).init();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_that_was_asked_for_counts_for_all() {
        assert_eq!(levels(0, None), (LevelFilter::INFO, LevelFilter::WARN));
        assert_eq!(levels(2, None), (LevelFilter::DEBUG, LevelFilter::DEBUG));
        assert_eq!(levels(2, Some(Level::Error)), (LevelFilter::ERROR, LevelFilter::ERROR));
        assert_eq!(levels(0, Some(Level::Off)), (LevelFilter::OFF, LevelFilter::OFF));
    }
}
