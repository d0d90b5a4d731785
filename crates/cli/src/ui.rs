//! Messages on stderr (progress, warnings, errors), and interrupts.

use std::any::Any;
use std::fmt;
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXFSZ};

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use ratatui::crossterm::terminal;
use slipstream::io::capture::{CaptureError, Stopped, stops_streams};
use slipstream::new_file::advice_on_write;
use slipstream::source::SourceError;
use slipstream_report::visible;
use tracing::Level;

/// Tells a user the reason for a wait.
pub(crate) fn note(what: &str) {
    if crate::log::is_json() {
        tracing::info!(target: crate::log::TOLD, "{what}");
    } else {
        say_at(Level::INFO, &format!("slipstream: {what}"));
    }
}

/// Tells a user of an error.
pub(crate) fn complain(what: &str) {
    if crate::log::is_json() {
        tracing::error!(target: crate::log::TOLD, "{what}");
    } else {
        say_at(Level::ERROR, &format!("slipstream: {what}"));
    }
}

/// Tells where metrics are served.
pub(crate) fn tell_metrics(url: &str) {
    if crate::log::is_json() {
        tracing::info!(target: crate::log::TOLD, url, "metrics");
    } else {
        say(&format!("metrics: {url}"));
    }
}

/// Prints lines to stderr.
pub(crate) fn say(what: &str) {
    say_at(Level::INFO, what);
}

/// Prints lines to stderr, which are of some importance.
fn say_at(level: Level, what: &str) {
    let lines: Vec<String> = what.split('\n').map(visible).collect();
    crate::log::write_at(level, format!("{}\n", lines.join("\n")).as_bytes());
}

/// An error and its causes on one line; a cause that an error's own text ends with is not said again.
pub(crate) fn in_words(error: &anyhow::Error) -> String {
    let mut all = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if all.is_empty() {
            all = cause;
        } else if !all.contains(&cause) {
            all = format!("{all}: {cause}");
        }
    }
    all
}

/// The error of a file that can't be read, in the words that captures have.
pub(crate) fn unreadable(path: &Path, error: io::Error) -> anyhow::Error {
    let name = path.display();
    match error.kind() {
        io::ErrorKind::NotFound => anyhow!("{name}: no such file"),
        io::ErrorKind::PermissionDenied => {
            anyhow!("{name}: permission to read it is denied; check its mode and that of its directories")
        }
        io::ErrorKind::IsADirectory => anyhow!("{name}: is a directory; name a file"),
        _ => anyhow::Error::from(error).context(name.to_string()),
    }
}

/// The error of a run that the user ended (Ctrl-C, or a request to terminate) before it had a result.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;

/// Ends what has no result yet, by an error, where the user interrupted.
pub(crate) fn unless(interrupted: &AtomicBool) -> Result<(), Interrupted> {
    if interrupted.load(Ordering::Relaxed) { Err(Interrupted) } else { Ok(()) }
}

/// Exit status after an interrupt: what shells give to a program that SIGINT ends.
pub(crate) const INTERRUPTED: u8 = 130;

/// Refuses to send packets to somebody's screen.
pub(crate) fn refuse_terminal() -> anyhow::Result<()> {
    if io::stdout().is_terminal() {
        anyhow::bail!(
            "-: packets don't go to a terminal; name a file, or pipe them into a program: … - | tshark -r -"
        );
    }
    Ok(())
}

/// The time and the memory that the program took, as far as the system accounts for them.
pub(crate) fn effort(elapsed: Duration) -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).map(str::trim);
    let peak = peak.and_then(|l| l.strip_suffix(" kB")?.parse::<u64>().ok());
    let memory =
        peak.map(|kib| format!(", {} MiB of memory at most", kib.div_ceil(1024))).unwrap_or_default();
    format!("ended after {:.3} s{memory}", elapsed.as_secs_f64())
}

/// The command line, as a shell reads it, but for characters that can't be shown.
pub(crate) fn command_line() -> String {
    let quoted = |word: String| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+./:,@%".contains(c);
        if !word.is_empty() && word.chars().all(plain) {
            word
        } else {
            format!("'{}'", word.replace('\'', "'\\''"))
        }
    };
    let words = std::env::args_os().skip(1).map(|word| quoted(word.to_string_lossy().into_owned()));
    visible(&["slipstream".to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" "))
}

/// True for the error of writing to a stdout whose reader went away.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let capture = |e: &'_ (dyn std::error::Error + 'static)| {
        e.downcast_ref::<CaptureError>().map(CaptureError::reader_left_stdout)
    };
    if let Some(stdout) = error.chain().find_map(capture) {
        return stdout;
    }
    error.chain().filter_map(|e| e.downcast_ref::<io::Error>()).any(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// True for the error of waiting for a stream when an interrupt came.
pub(crate) fn is_interrupt(error: &anyhow::Error) -> bool {
    let ended = error.downcast_ref::<SourceError>().is_some_and(|e| e.downcast_ref::<Stopped>().is_some());
    let mut errors = error.chain().filter_map(|e| e.downcast_ref::<io::Error>());
    // Whoever opens ports tells of errors in words.
    let said = || error.chain().any(|cause| cause.to_string().contains(&Stopped.to_string()));
    let in_words = Stopped::check().is_err() && said();
    ended || error.is::<Interrupted>() || errors.any(Stopped::is_why) || in_words
}

/// Columns of the terminal that stdout goes to, if it goes to one.
///
/// Where none is asked, crossterm's `size` runs the program `tput`, from wherever PATH has one.
pub(crate) fn columns() -> Option<usize> {
    let size = if io::stdout().is_terminal() { terminal::window_size().ok() } else { None };
    size.map(|size| usize::from(size.columns)).filter(|columns| *columns > 0)
}

/// True once a file of the command's is written to stdout.
static STDOUT_IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// Leaves stdout to a file that is written there under a name such as `/dev/stdout`: results go to stderr
/// from here on, as they do beside packets.
pub(crate) fn leave_stdout() {
    STDOUT_IS_TAKEN.store(true, Ordering::Relaxed);
}

/// Prints a result to stdout, or to stderr where [a file has stdout](leave_stdout).
///
/// # Errors
/// As [`write_out`].
pub(crate) fn print(text: impl fmt::Display) -> anyhow::Result<()> {
    if STDOUT_IS_TAKEN.load(Ordering::Relaxed) {
        say(&text.to_string());
        return Ok(());
    }
    write_out(format!("{text}\n").as_bytes())
}

/// Writes to stdout. A reader who has seen enough and left is none of the run's business: what it found, and
/// its exit status, are the same.
///
/// # Errors
/// Stdout can't be written.
pub(crate) fn write_out(bytes: &[u8]) -> anyhow::Result<()> {
    write_on(bytes).map(drop)
}

/// Writes a part of a long result to stdout; false if its reader has left, for whom nothing more need be
/// found.
///
/// # Errors
/// As [`write_out`].
pub(crate) fn write_on(bytes: &[u8]) -> anyhow::Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(anyhow::anyhow!("stdout: cannot be written: {error}{}", advice_on_write(&error))),
    }
}

/// Time after a first signal in which further ones change nothing: the program ends as it is to.
const ENDS_WELL: Duration = Duration::from_secs(2);

/// Set by the first interrupt (Ctrl-C), request to terminate, or hang-up, so that files are finished or taken
/// away; one that comes more than two seconds later ends the program at once. All who ask share it.
pub(crate) fn interrupts() -> io::Result<Arc<AtomicBool>> {
    if let Some(interrupted) = INTERRUPTS.get() {
        return Ok(Arc::clone(interrupted));
    }
    let interrupted = stops_at(ending())?;
    Ok(Arc::clone(INTERRUPTS.get_or_init(|| interrupted)))
}

static INTERRUPTS: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Nobody but [`reading`] has asked for signals so far, and it is over: they do what they do by default.
static UNHEARD: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Reads what the command line names, such as a configuration or rules. Where that is a pipe that nobody
/// writes to, an interrupt, a request to terminate and a hang-up end the waiting. Behind it they end the
/// program, unless whoever comes next asks for [`interrupts`] or [`LiveSignals`].
///
/// A configuration may take long to check. Two seconds after a signal the program ends in any case:
/// nothing was begun yet that would have to be finished.
pub(crate) fn reading<T, E: Into<anyhow::Error>>(read: impl FnOnce() -> Result<T, E>) -> anyhow::Result<T> {
    let mut heard = Vec::new();
    UNHEARD.store(false, Ordering::Relaxed);
    let (hears, tells) = UnixStream::pair()?;
    for &signal in ending() {
        heard.push(signal_hook::flag::register(signal, stops_streams())?);
        heard.push(signal_hook::low_level::pipe::register(signal, tells.try_clone()?)?);
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&UNHEARD))?;
    }
    drop(tells);
    thread::Builder::new().name("signals".into()).spawn(move || end_late(hears))?;
    let read = read();
    UNHEARD.store(true, Ordering::Relaxed);
    for id in heard {
        signal_hook::low_level::unregister(id);
    }
    match Stopped::check() {
        Ok(()) => read.map_err(Into::into),
        Err(_) => Err(Interrupted.into()),
    }
}

/// Has writing beyond the limit of files' lengths (`ulimit -f`, `LimitFSIZE=` of a service) fail as on a full
/// disk, where the system would kill the program without a word.
pub(crate) fn outlive_file_limit() {
    // That somebody hears the signal is enough: writing then gives the error. Where nobody can, the program
    // ends as it did.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
}

/// Signals that ask a program to end.
fn ending() -> &'static [i32] {
    if ignores_hang_up() { &[SIGINT, SIGTERM] } else { &[SIGINT, SIGTERM, SIGHUP] }
}

fn stops_at(signals: &[i32]) -> io::Result<Arc<AtomicBool>> {
    let (flag, at_once) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (heard, tells) = UnixStream::pair()?;
    UNHEARD.store(false, Ordering::Relaxed);
    for &signal in signals {
        signal_hook::flag::register(signal, stops_streams())?;
        signal_hook::flag::register_conditional_shutdown(signal, INTERRUPTED.into(), Arc::clone(&at_once))?;
        signal_hook::flag::register(signal, Arc::clone(&flag))?;
        signal_hook::low_level::pipe::register(signal, tells.try_clone()?)?;
    }
    // One that came while this went on has set the first of them at least.
    if Stopped::check().is_err() {
        flag.store(true, Ordering::Relaxed);
    }
    thread::Builder::new().name("signals".into()).spawn(move || end_hard(heard, &at_once))?;
    Ok(flag)
}

/// Ends the program two seconds after a signal, each of which is a byte of `heard`, unless nobody sends any
/// more by then: what was under way is over.
fn end_late(mut heard: UnixStream) {
    let mut first: Option<Instant> = None;
    loop {
        let left = first.map(|first| ENDS_WELL.saturating_sub(first.elapsed()));
        if left.is_some_and(|left| left.is_zero()) || heard.set_read_timeout(left).is_err() {
            break;
        }
        match heard.read(&mut [0]) {
            Ok(0) => return,
            Ok(_) => _ = first.get_or_insert_with(slipstream::clock::now),
            // Its time is over, or a signal came.
            Err(_) => {}
        }
    }
    signal_hook::low_level::exit(INTERRUPTED.into());
}

/// Waits for a signal that comes so long after the first one that the program should have ended, and ends it.
/// Each is a byte of `heard`.
fn end_hard(mut heard: UnixStream, at_once: &AtomicBool) {
    let mut first: Option<Instant> = None;
    loop {
        match heard.read(&mut [0]) {
            Ok(1..) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            _ => return,
        }
        let now = slipstream::clock::now();
        if now.duration_since(*first.get_or_insert(now)) >= ENDS_WELL {
            break;
        }
    }
    // Should this take long, the next one doesn't wait for it.
    at_once.store(true, Ordering::Relaxed);
    let kept: Vec<Slot> = std::mem::take(&mut *lock(&KEPT));
    kept.iter().rev().for_each(|slot| drop(lock(slot).take()));
    signal_hook::low_level::exit(INTERRUPTED.into());
}

type Slot = Arc<Mutex<Option<Box<dyn Any + Send>>>>;

static KEPT: Mutex<Vec<Slot>> = Mutex::new(Vec::new());

/// Something that puts back when it is dropped what the program has changed around it; also where a further
/// signal ends the program.
pub(crate) struct Kept(Slot);

impl Kept {
    pub(crate) fn new(what: impl Any + Send) -> Self {
        let slot: Slot = Arc::new(Mutex::new(Some(Box::new(what))));
        lock(&KEPT).push(Arc::clone(&slot));
        Self(slot)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        lock(&KEPT).retain(|slot| !Arc::ptr_eq(slot, &self.0));
        drop(lock(&self.0).take());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// True if this program is to outlive its terminal, as under `nohup`.
fn ignores_hang_up() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask >> (SIGHUP - 1) & 1 == 1)
}

/// The requests that signals make of a live run.
pub(crate) struct LiveSignals {
    stop: Arc<AtomicBool>,
    hang_up: Arc<AtomicBool>,
    /// Somebody wants to know what is counted so far.
    pub(crate) statistics: Arc<AtomicBool>,
    terminal: bool,
}

/// Set by user signals, which end nothing from the first call on, as they would by default.
pub(crate) fn user_signals() -> io::Result<Arc<AtomicBool>> {
    static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    if let Some(asked) = ASKED.get() {
        return Ok(Arc::clone(asked));
    }
    let asked = ASKED.get_or_init(Arc::default);
    for signal in [SIGUSR1, SIGUSR2] {
        signal_hook::flag::register(signal, Arc::clone(asked))?;
    }
    Ok(Arc::clone(asked))
}

/// A request that a signal made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Nothing,
    Reload,
    Stop,
}

impl LiveSignals {
    /// From now on an interrupt or request to terminate asks to stop, and one that comes more than two
    /// seconds later ends the program at once; a hang-up asks to reload, or to stop where `reloads` says that
    /// there is nothing to reload. User signals ask for [`statistics`](Self::statistics): they end no run,
    /// as they would by default.
    pub(crate) fn new(reloads: bool) -> io::Result<Self> {
        let statistics = user_signals()?;
        if !reloads {
            let (stop, hang_up) = (interrupts()?, Arc::default());
            return Ok(Self { stop, hang_up, statistics, terminal: false });
        }
        Self::that_reload(statistics, || stops_at(&[SIGINT, SIGTERM]))
    }

    /// As [`new`](Self::new) for a run that can be told to reload; `stops` hears the other signals.
    fn that_reload(
        statistics: Arc<AtomicBool>,
        stops: impl FnOnce() -> io::Result<Arc<AtomicBool>>,
    ) -> io::Result<Self> {
        let hang_up = Arc::<AtomicBool>::default();
        // Heard before `stops` has hang-ups no longer end the program: none goes by unheard in between.
        signal_hook::flag::register(SIGHUP, Arc::clone(&hang_up))?;
        let stop = stops()?;
        let terminal = io::stdin().is_terminal() && !ignores_hang_up();
        Ok(Self { stop, hang_up, statistics, terminal })
    }

    /// Set once the run is to stop.
    pub(crate) fn stop(&self) -> &AtomicBool {
        &self.stop
    }

    /// The request that was made since the last time.
    pub(crate) fn request(&self) -> Request {
        let hung_up = self.hang_up.swap(false, Ordering::Relaxed);
        // The terminal is gone: that hang-up was no request to reload.
        let gone = hung_up && self.terminal && !io::stdin().is_terminal();
        match self.stop.load(Ordering::Relaxed) || gone {
            true => Request::Stop,
            false if hung_up => Request::Reload,
            false => Request::Nothing,
        }
    }
}

/// A bar on stderr, when that is a terminal and the work takes longer than a second.
pub(crate) struct Progress {
    bar: ProgressBar,
    since: std::time::Instant,
}

const STEPS: u64 = 1000;
/// Time between two looks at the clock where nothing else says that it is time to.
const BETWEEN_TICKS: Duration = Duration::from_millis(100);

/// The time that is left, once that can be told.
fn left(state: &ProgressState, out: &mut dyn fmt::Write) {
    let eta = state.eta();
    if state.pos() > 0 && eta >= Duration::from_secs(1) {
        let _ = write!(out, ", {} left", HumanDuration(eta));
    }
}

/// Does work that can't say how far it is, and shows how long it has been under way.
pub(crate) fn at_work<T>(what: &str, work: impl FnOnce() -> T) -> T {
    if !io::stderr().is_terminal() {
        return work();
    }
    let (ends, ended) = channel::<()>();
    thread::scope(|scope| {
        let show = move || {
            let progress = Progress::with_template(what, "{msg} {spinner} {elapsed}");
            while ended.recv_timeout(BETWEEN_TICKS) == Err(RecvTimeoutError::Timeout) {
                progress.at(None);
            }
        };
        // Without the thread nothing is shown.
        let shown = thread::Builder::new().name("progress".into()).spawn_scoped(scope, show);
        // It ends when this goes, also where the work panics; the scope waits for it.
        let _ends = ends;
        let done = work();
        drop(shown);
        done
    })
}

impl Progress {
    pub(crate) fn new(what: &str) -> Self {
        Self::with_template(what, "{msg} {wide_bar} {percent:>3}% {elapsed}{left}")
    }

    fn with_template(what: &str, template: &str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(STEPS), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.with_key("left", left));
        }
        bar.set_message(what.to_owned());
        Self { bar, since: slipstream::clock::now() }
    }

    /// Shows the share of the work that is done, 0 to 1, where it is known.
    pub(crate) fn at(&self, share: Option<f64>) {
        if self.bar.is_hidden() && io::stderr().is_terminal() && self.since.elapsed() > Duration::from_secs(1)
        {
            self.bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
        }
        match share {
            Some(share) => self.bar.set_position((share.clamp(0.0, 1.0) * STEPS as f64) as u64),
            None => self.bar.tick(),
        }
    }

    /// The same in a run that [`interrupts`] end.
    pub(crate) fn goes_on(&self, share: Option<f64>) -> Result<(), Interrupted> {
        self.at(share);
        INTERRUPTS.get().map_or(Ok(()), |interrupted| unless(interrupted))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hang-up that comes while a run begins to hear signals has it reload. Signals are a process's, so
    /// that a process of its own tries it.
    #[test]
    fn a_hang_up_before_the_run_is_not_lost() {
        const TRIES: &str = "SLIPSTREAM_TEST_HANGS_UP";
        if std::env::var_os(TRIES).is_none() {
            let tests = std::env::current_exe().unwrap();
            let mut alone = std::process::Command::new(tests);
            alone.args(["--exact", "ui::tests::a_hang_up_before_the_run_is_not_lost"]).env(TRIES, "yes");
            let done = alone.output().unwrap();
            assert!(done.status.success(), "{done:?}");
            return;
        }
        reading(|| io::Result::Ok(())).unwrap();
        let stops = || {
            let stop = stops_at(&[SIGINT, SIGTERM])?;
            signal_hook::low_level::raise(SIGHUP)?;
            Ok(stop)
        };
        let signals = LiveSignals::that_reload(Arc::default(), stops).unwrap();
        assert_eq!(signals.request(), Request::Reload);
        assert_eq!(signals.request(), Request::Nothing);
    }
}
