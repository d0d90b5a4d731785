//! Packets' inputs, and the way in which Python waits for work: it is told how far that is, may interrupt it,
//! and takes turns.

use std::io::Cursor;
use std::panic;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::{thread, time};

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use slipstream::io::capture::CaptureReader;
use slipstream::io::synth::{Synth, SynthConfig};
use slipstream::units::Duration;

use crate::error::Damaged;

/// A source of packets, as it is named.
#[derive(FromPyObject)]
pub(crate) enum Input {
    Path(PathBuf),
    Bytes(PyBackedBytes),
}

/// A source of packets, opened.
pub(crate) enum Opened {
    Capture(Box<CaptureReader>),
    Synth(Box<Synth>),
}

impl Input {
    /// Its name in results and errors.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Path(path) => path.display().to_string(),
            Self::Bytes(_) => "<bytes>".to_owned(),
        }
    }

    pub(crate) fn open(self) -> anyhow::Result<Opened> {
        let reader = match self {
            Self::Path(path) => {
                if let Some(settings) = path.to_str().and_then(|text| text.strip_prefix("synth:")) {
                    return Ok(Opened::Synth(Box::new(Synth::new(SynthConfig::from_text(settings)?)?)));
                }
                CaptureReader::open(&path)?
            }
            Self::Bytes(bytes) => CaptureReader::from_reader(Cursor::new(bytes), "<bytes>")?,
        };
        Ok(Opened::Capture(Box::new(reader)))
    }
}

/// The byte at which a capture is damaged, and the damage in words; an error if that is not to be borne.
pub(crate) fn damage(reader: &CaptureReader, strict: bool) -> Result<Option<(u64, String)>, Damaged> {
    let Some(damage) = reader.damage() else { return Ok(None) };
    let found = Damaged { file: reader.name().to_owned(), byte: damage.byte, what: damage.what.to_string() };
    if strict { Err(found) } else { Ok(Some((found.byte, found.to_string()))) }
}

/// The numbers of packets of a capture that have other times than it gives: those that lie beyond what there
/// can be and were moved to that bound, and those that have none.
#[derive(Clone, Copy, Default)]
pub(crate) struct OddTimes {
    clamped: u64,
    missing: u64,
}

impl OddTimes {
    /// Those of a capture that was read to its end.
    pub(crate) fn of(reader: &CaptureReader) -> Self {
        let notes = reader.notes();
        Self { clamped: notes.clamped_times, missing: notes.without_time }
    }

    pub(crate) fn and(self, other: Self) -> Self {
        Self { clamped: self.clamped + other.clamped, missing: self.missing + other.missing }
    }

    pub(crate) fn pair(self) -> (u64, u64) {
        (self.clamped, self.missing)
    }
}

/// A time: whole nanoseconds, or a number with a unit.
#[derive(FromPyObject)]
pub(crate) enum Time {
    Nanoseconds(u64),
    Text(String),
}

impl Time {
    pub(crate) fn ns(&self) -> anyhow::Result<u64> {
        match self {
            Self::Nanoseconds(ns) => Ok(*ns),
            Self::Text(text) => text.parse::<Duration>().map(|d| d.0).map_err(|why| anyhow::anyhow!("{why}")),
        }
    }
}

/// Told how far the work is.
pub(crate) struct Progress {
    pub(crate) name: String,
    pub(crate) callback: Option<Py<PyAny>>,
}

impl Progress {
    /// Tells the share of the work that is done, where it is known.
    ///
    /// # Errors
    /// The user interrupted the program, or the callback raised an exception.
    pub(crate) fn at(&self, share: Option<f64>) -> PyResult<()> {
        Python::attach(|py| {
            py.check_signals()?;
            if let Some(callback) = &self.callback {
                callback.call1(py, (&self.name, share))?;
            }
            Ok(())
        })
    }
}

/// Does `work` on what threads share, once it is this thread's turn. Neither while it waits nor while it
/// works does it hold Python's lock, so that whoever has the turn can always end it.
pub(crate) fn in_turn<T: Send, R: Send>(
    py: Python<'_>,
    shared: &Mutex<T>,
    work: impl FnOnce(&mut T) -> R + Send,
) -> R {
    py.detach(|| work(&mut shared.lock().unwrap_or_else(PoisonError::into_inner)))
}

/// Does `work` that tells nobody how far it is on a thread of its own, so that the user can interrupt whoever
/// waits for it. The work then goes on to its end, of which nobody hears.
///
/// # Errors
/// The user interrupted the program, or there can't be another thread.
pub(crate) fn aside<R: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> R + Send + 'static,
) -> PyResult<R> {
    // Nothing is sent: the end that the thread has is dropped once the work is done.
    let (end, mut ended) = mpsc::channel::<()>();
    let worker = thread::Builder::new().spawn(move || {
        let _end = end;
        work()
    })?;
    let ended = &mut ended;
    py.detach(move || {
        until_ended(ended, check_signals)?;
        worker.join().or_else(|panicked| panic::resume_unwind(panicked))
    })
}

/// Waits without Python's lock until the other end of a channel is dropped. Meanwhile it does `now_and_then`.
///
/// # Errors
/// Those of `now_and_then`, which end the wait.
pub(crate) fn until_ended(
    ended: &Receiver<()>,
    mut now_and_then: impl FnMut() -> PyResult<()>,
) -> PyResult<()> {
    const EVERY: time::Duration = time::Duration::from_millis(20);
    while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(EVERY) {
        now_and_then()?;
    }
    Ok(())
}

/// Has Python look for signals, which its main thread alone does.
///
/// # Errors
/// The user interrupted the program.
pub(crate) fn check_signals() -> PyResult<()> {
    Python::attach(|py| py.check_signals())
}
