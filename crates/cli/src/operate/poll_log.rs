//! The file of a log of polls: the log lies in memory until the run is over, and room for it is kept on the
//! disk meanwhile, so that an operator hears at once where there is none.

use std::io::{self, BufWriter, Write};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use anyhow::anyhow;
use slipstream::new_file::{Room, is_full};
use slipstream::runtime::{PollCounts, PollLog, RunReport};
use tracing::{error, info, warn};

use super::Shared;
use crate::log::LIVE;
use crate::replace::Replacement;

/// Bytes of a line for which room is kept: as much as it can have, as long as the numbers of its batch, of
/// the polls before it and of its source have no more than 21 digits together.
const LINE: u64 = 64;

/// The troubles of the log that have been told.
#[derive(Debug, Default)]
struct Told {
    disk_full: bool,
    log_full: bool,
}

/// Room on the disk for a log that grows in memory.
#[derive(Debug)]
pub(crate) struct Keeper {
    /// None where the file system keeps no room, or the log goes to a device or a pipe.
    room: Option<Room>,
    file: String,
    told: Mutex<Told>,
}

impl Keeper {
    pub(crate) fn new(file: &Replacement) -> Self {
        Self { room: file.room(), file: file.said().to_owned(), told: Mutex::default() }
    }

    /// Keeps room for the polls that are in the log by now; tells when there begins to be none, in the log or
    /// on the disk, and when there is room on the disk again.
    fn keep(&self, counts: PollCounts) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let (file, polls) = (&self.file, counts.logged);
        if counts.missed > 0 && !std::mem::replace(&mut told.log_full, true) {
            warn!(target: LIVE, file, polls, "the log of polls is full; further ones are lost (--poll-log-max makes more)");
        }
        let Some(room) = &self.room else { return };
        match room.keep((polls + 1) * LINE) {
            Err(error) if is_full(&error) => {
                if !std::mem::replace(&mut told.disk_full, true) {
                    error!(
                        target: LIVE, file, polls, %error,
                        "there is no room on the disk for the log of polls; those that find none at the end of the run are lost"
                    );
                }
            }
            // Where no room can be kept, the end will tell.
            Err(_) => {}
            Ok(()) if std::mem::take(&mut told.disk_full) => {
                info!(target: LIVE, file, polls, "there is room on the disk for the log of polls again");
            }
            Ok(()) => {}
        }
    }
}

/// Has room kept on threads of their own, so that whoever looks on doesn't wait for a slow disk.
pub(crate) struct Keeping {
    operation: Shared,
    under_way: Option<JoinHandle<()>>,
}

impl Keeping {
    pub(crate) fn new(operation: Shared) -> Self {
        Self { operation, under_way: None }
    }

    /// Begins to keep room for the polls that this report tells of, once what was begun before is done.
    pub(crate) fn look(&mut self, report: &RunReport) {
        let is_busy = self.under_way.as_ref().is_some_and(|thread| !thread.is_finished());
        let Some(counts) = report.poll_log.filter(|_| self.operation.poll_log.is_some() && !is_busy) else {
            return;
        };
        let operation = Shared::clone(&self.operation);
        let keep = move || operation.poll_log.iter().for_each(|keeper| keeper.keep(counts));
        // Where there is no thread for it, there may be one the next time.
        self.under_way = thread::Builder::new().name("poll-log".into()).spawn(keep).ok();
    }
}

impl Drop for Keeping {
    /// The log is written behind what was begun before.
    fn drop(&mut self) {
        if let Some(thread) = self.under_way.take() {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

/// A file that is written, and where its last whole line ends.
struct Lines<'a> {
    file: &'a mut Replacement,
    bytes: u64,
    /// Bytes of its whole lines, and their number.
    whole: u64,
    lines: u64,
}

impl Write for Lines<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let taken = self.file.write(data)?;
        let written = data.get(..taken).unwrap_or_default();
        if let Some(last) = written.iter().rposition(|byte| *byte == b'\n') {
            self.whole = self.bytes + last as u64 + 1;
        }
        self.lines += written.iter().filter(|byte| **byte == b'\n').count() as u64;
        self.bytes += taken as u64;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Writes the log of a run that is over. Where the disk is full, the polls that find room are in the file.
///
/// # Errors
/// Polls are lost since they can't be written.
pub(crate) fn write(log: &PollLog, mut file: Replacement) -> anyhow::Result<()> {
    let mut lines = Lines { file: &mut file, bytes: 0, whole: 0, lines: 0 };
    let mut out = BufWriter::new(&mut lines);
    let written = log.write(&mut out);
    // The bytes that it still holds have found no room.
    let _ = out.into_parts();
    let (whole, polls) = (lines.whole, lines.lines.saturating_sub(1));
    let lost = match written {
        Err(error) if polls > 0 && is_full(&error) => Some(error),
        written => written.map(|()| None)?,
    };
    file.shorten(whole)?;
    file.commit()?;
    if let Some(error) = lost {
        let all = log.polls().len() as u64;
        return Err(anyhow!("{error}; {} of {all} polls are lost", all.saturating_sub(polls)));
    }
    if log.missed() > 0 {
        warn!("--poll-log: {} polls found no room; --poll-log-max makes more", log.missed());
    }
    Ok(())
}
