//! The log, on stderr: what happens to a live run, and warnings.
//!
//! Events of a live run ([`LIVE`]) are told from level `info` on, with their time; everything else from
//! `warn` on, as plain lines. `--log-level` sets one level for both, `--log-format json` makes one JSON
//! object a line of everything but reports. Where stderr is systemd's journal, which has times of its own,
//! text goes without, and each line begins with its priority (`<4>`, sd-daemon(3)), which the journal takes
//! off.
//!
//! While a pipeline runs live nobody waits for whoever reads the log ([`dont_wait`]).

mod queue;

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs::{File, Metadata as FileMetadata};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use clap::ValueEnum;
use tracing::{Metadata, warn};
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::{DefaultFields, Format};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

/// The target of events of a live run.
pub(crate) const LIVE: &str = "slipstream::live";
/// The target of events of a live run that an option asks for by itself: they are no warnings, and are told
/// where warnings are.
pub(crate) const ASKED_FOR: &str = "slipstream::live::asked_for";
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
fn write(data: &[u8]) {
    match QUEUE.get() {
        Some(queue) => queue.offer(data),
        None => drop(io::stderr().write_all(data)),
    }
}

/// Writes lines of some importance to stderr.
pub(crate) fn write_at(level: tracing::Level, data: &[u8]) {
    write(&if is_journal() { with_priority(level, data) } else { Cow::Borrowed(data) });
}

/// True where stderr is a stream to systemd's journal.
fn is_journal() -> bool {
    static IS_JOURNAL: OnceLock<bool> = OnceLock::new();
    *IS_JOURNAL.get_or_init(|| {
        let stderr = io::stderr().as_fd().try_clone_to_owned().and_then(|fd| File::from(fd).metadata());
        let named = std::env::var_os("JOURNAL_STREAM");
        named.zip(stderr.ok()).is_some_and(|(named, stderr)| is_stream(&named, &stderr))
    })
}

/// True for the file that `JOURNAL_STREAM` names by its device and inode. A program has that variable from
/// whoever started it, also where its stderr goes elsewhere.
fn is_stream(named: &OsStr, file: &FileMetadata) -> bool {
    let numbers = || {
        let (device, inode) = named.to_str()?.split_once(':')?;
        Some((device.parse::<u64>().ok()?, inode.parse::<u64>().ok()?))
    };
    numbers() == Some((file.dev(), file.ino()))
}

/// Lines as the journal takes them: each with its priority, that of syslog.
fn with_priority(level: tracing::Level, lines: &[u8]) -> Cow<'_, [u8]> {
    let priority: &[u8] = match level {
        tracing::Level::ERROR => b"<3>",
        tracing::Level::WARN => b"<4>",
        tracing::Level::INFO => b"<6>",
        tracing::Level::DEBUG | tracing::Level::TRACE => b"<7>",
    };
    let lines = lines.split_inclusive(|byte| *byte == b'\n');
    lines.flat_map(|line| [priority, line]).flatten().copied().collect()
}

/// Stderr, for events of a level where one is known.
struct Stderr(Option<tracing::Level>);

impl Write for Stderr {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        match self.0 {
            Some(level) => write_at(level, data),
            None => write(data),
        }
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Gives each event its [`Stderr`].
struct ToStderr;

impl MakeWriter<'_> for ToStderr {
    type Writer = Stderr;

    fn make_writer(&self) -> Stderr {
        Stderr(None)
    }

    fn make_writer_for(&self, event: &Metadata<'_>) -> Stderr {
        Stderr(Some(*event.level()))
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

/// True for events of this target and level under the least levels of live runs and of all else.
fn is_told(target: &str, level: tracing::Level, (live, other): (LevelFilter, LevelFilter)) -> bool {
    match target {
        TOLD => true,
        ASKED_FOR => level.min(tracing::Level::WARN) <= live,
        LIVE => level <= live,
        _ => level <= other,
    }
}

/// Lines of text.
fn lines<S>() -> fmt::Layer<S, DefaultFields, Format, ToStderr> {
    fmt::layer().with_writer(ToStderr).with_ansi(colours()).with_target(false)
}

/// Sends log lines to stderr.
pub(crate) fn to_stderr(verbose: u8, level: Option<Level>, format: LogFormat) {
    let (live, other) = levels(verbose, level);
    let is_live = |event: &Metadata<'_>| [LIVE, ASKED_FOR].contains(&event.target());
    let told = move |event: &Metadata<'_>| is_told(event.target(), *event.level(), (live, other));
    let of_live = filter_fn(move |event| told(event) && is_live(event));
    let of_others = filter_fn(move |event| told(event) && !is_live(event));
    let registry = tracing_subscriber::registry();
    match format {
        LogFormat::Json => {
            JSON.store(true, Ordering::Relaxed);
            let layer = fmt::layer().json().flatten_event(true).with_target(false).with_writer(ToStderr);
            registry.with(layer.with_filter(filter_fn(told))).init();
        }
        LogFormat::Text if is_journal() => {
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
    fn the_journal_has_each_line_with_its_priority() {
        let of = |level, lines: &str| String::from_utf8(with_priority(level, lines.as_bytes()).into_owned());
        assert_eq!(of(tracing::Level::WARN, "a\nb\n").unwrap(), "<4>a\n<4>b\n");
        assert_eq!(of(tracing::Level::ERROR, "a").unwrap(), "<3>a");
        assert_eq!(of(tracing::Level::TRACE, "").unwrap(), "");
    }

    #[test]
    fn the_journal_is_known_by_its_stream() {
        let file = tempfile::tempfile().unwrap().metadata().unwrap();
        let named = |text: &str| is_stream(OsStr::new(text), &file);
        assert!(named(&format!("{}:{}", file.dev(), file.ino())));
        assert!(!named(&format!("{}:{}", file.dev(), file.ino() + 1)));
        assert!(!named("") && !named("1") && !named("a:b"));
    }

    #[test]
    fn what_an_option_asks_for_is_told_where_warnings_are() {
        use tracing::Level as Of;
        for (least, of_live, asked_for) in
            [(Level::Info, true, true), (Level::Warn, false, true), (Level::Error, false, false)]
        {
            let levels = levels(0, Some(least));
            assert_eq!(is_told(LIVE, Of::INFO, levels), of_live, "{least:?}");
            assert_eq!(is_told(ASKED_FOR, Of::INFO, levels), asked_for, "{least:?}");
        }
    }

    #[test]
    fn a_level_that_was_asked_for_counts_for_all() {
        assert_eq!(levels(0, None), (LevelFilter::INFO, LevelFilter::WARN));
        assert_eq!(levels(2, None), (LevelFilter::DEBUG, LevelFilter::DEBUG));
        assert_eq!(levels(2, Some(Level::Error)), (LevelFilter::ERROR, LevelFilter::ERROR));
        assert_eq!(levels(0, Some(Level::Off)), (LevelFilter::OFF, LevelFilter::OFF));
    }
}
