//! The log of sessions as lines of JSON in a file, which somebody may move away, in a pipe, or on a disk that
//! may become full.

use std::fmt::Write as _;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use slipstream::new_file::open_straight;
use slipstream::operate::SessionEvent;
use tracing::warn;

use crate::log::LIVE;
use crate::port::is_special;

/// Bytes that are written at a time, whole lines if they are no longer: a pipe takes all of them or none
/// (`PIPE_BUF`), so that it is known which it has taken.
const AT_ONCE: usize = 4096;

/// An event; with the number of its shard where there are several.
pub(super) fn as_json(event: &SessionEvent, shard: Option<usize>) -> String {
    let SessionEvent { time, begins, protocol, inside, external, remote } = event;
    let event = if *begins { "session_created" } else { "session_deleted" };
    let mut all = format!(
        r#"{{"time_ns":{},"event":"{event}","protocol":{protocol},"inside":"{}","inside_port":{},"external":"{}","external_port":{},"remote":"{}","remote_port":{}"#,
        time.0, inside.0, inside.1, external.0, external.1, remote.0, remote.1
    );
    if let Some(shard) = shard {
        // A string takes everything.
        let _ = write!(all, r#","shard":{shard}"#);
    }
    all.push('}');
    all
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// True if what is written to a file of this name comes out at stdout.
pub(super) fn is_stdout(path: &Path) -> bool {
    let (file, stdout) = (fs::metadata(path), fs::metadata("/dev/stdout"));
    matches!((file, stdout), (Ok(file), Ok(stdout)) if is_same(&file, &stdout))
}

/// True if the last line of a file has no end: whoever wrote it was stopped.
fn is_cut(path: &Path, about: &Metadata) -> bool {
    let mut last = [b'\n'];
    let mut read = || File::open(path)?.read_exact_at(&mut last, about.len() - 1);
    // One that may only be written to is none that could be looked at.
    about.is_file() && about.len() > 0 && read().is_ok() && last != *b"\n"
}

/// The file.
#[derive(Debug)]
pub(super) struct Lines {
    path: PathBuf,
    file: File,
    /// Bytes of the next event's line that are in the file.
    begun: usize,
    /// The file ends with a part of a line that is none of ours.
    cut: bool,
    /// It has no longer its name, and there is no other file of that name to be had.
    astray: bool,
}

impl Lines {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        // Who talks to whom is not everybody's business.
        let file = match is_special(path) {
            true => open_straight(path)?,
            false => OpenOptions::new().create(true).append(true).mode(0o640).open(path)?,
        };
        let cut = is_cut(path, &file.metadata()?);
        Ok(Self { path: path.to_owned(), file, begun: 0, cut, astray: false })
    }

    /// Begins another file where somebody has moved this one away. Where there is none to be had, the old one
    /// goes on.
    fn follow(&mut self) {
        let (there, mine) = (fs::metadata(&self.path), self.file.metadata());
        if matches!((there, mine), (Ok(there), Ok(mine)) if is_same(&there, &mine)) {
            self.astray = false;
            return;
        }
        match Self::open(&self.path) {
            // A line that was begun in the old one is written to the new one whole.
            Ok(new) => *self = new,
            Err(error) => {
                if !std::mem::replace(&mut self.astray, true) {
                    let file = self.path.display().to_string();
                    warn!(target: LIVE, file, %error, "the log of sessions was moved away, and none can be begun anew; the old one goes on");
                }
            }
        }
    }

    /// Appends some of these events as lines: how many are written whole, and why not more. The others are to
    /// be the first of the next call.
    pub(super) fn write(
        &mut self,
        events: &[SessionEvent],
        shard: Option<usize>,
    ) -> (usize, Option<io::Error>) {
        self.follow();
        let mut piece = String::with_capacity(AT_ONCE);
        for event in events {
            let line = as_json(event, shard);
            if !piece.is_empty() && piece.len() + line.len() >= AT_ONCE {
                break;
            }
            piece.push_str(&line);
            piece.push('\n');
        }
        match self.append(piece.as_bytes()) {
            Ok(done) => (done, None),
            Err(error) => (0, Some(error)),
        }
    }

    /// Writes some of these lines; the number of those that are in the file whole now.
    fn append(&mut self, lines: &[u8]) -> io::Result<usize> {
        if self.cut {
            self.some(b"\n")?;
            self.cut = false;
        }
        let end = self.begun + self.some(lines.get(self.begun..).unwrap_or_default())?;
        let written = lines.get(..end).unwrap_or_default();
        self.begun = written.iter().rev().take_while(|byte| **byte != b'\n').count();
        Ok(written.iter().filter(|byte| **byte == b'\n').count())
    }

    fn some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.file.write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::event;
    use super::*;

    /// A disk becomes full in the middle of a line: it goes on there when there is room again.
    #[test]
    fn a_line_that_was_begun_goes_on() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("nat.json");
        let all = [event(1), event(20), event(300)];
        let whole: String = all.iter().map(|event| as_json(event, None) + "\n").collect();
        for end in 1..whole.len() {
            fs::write(&path, "").unwrap();
            let mut lines = Lines::open(&path).unwrap();
            // So much of them finds room.
            let done = lines.append(&whole.as_bytes()[..end]).unwrap();
            assert_eq!(done, whole[..end].lines().count() - usize::from(lines.begun > 0));
            assert!(matches!(lines.write(&all[done..], None), (n, None) if n == all.len() - done));
            assert_eq!(fs::read_to_string(&path).unwrap(), whole, "cut behind {end} bytes");
        }
    }
}
