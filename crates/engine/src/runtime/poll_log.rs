//! A log of polls: when a source was asked, and how many packets it had. The queueing model is fitted to it.
//!
//! It lies in memory, allocated before the run and bounded, and is written when the run is over: no system call comes
//! between two polls. Polls without packets are only counted, since a busy loop makes millions a second.

use std::io::{self, Write};

use crate::time::Nanos;

/// A poll that brought packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poll {
    /// When.
    pub time: Nanos,
    /// Packets that it brought, 1 and more.
    pub batch: u32,
    /// Polls of the same source that brought none since the entry before of that source.
    pub empty_before: u32,
    /// Number of the source, in the order of [`RunReport::sources`](super::RunReport::sources).
    pub source: u16,
}

/// The log.
#[derive(Clone, Debug, Default)]
pub struct PollLog {
    polls: Vec<Poll>,
    max: usize,
    missed: u64,
    /// Empty polls since the last entry, by source.
    empty: Vec<u32>,
}

impl PollLog {
    /// A log of at most `max` entries, 24 bytes each; those after them are only counted.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self { polls: Vec::with_capacity(max), max, missed: 0, empty: Vec::new() }
    }

    /// The entries, in the order of time.
    #[must_use]
    pub fn polls(&self) -> &[Poll] {
        &self.polls
    }

    /// Polls with packets for which there was no room.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// A source was polled.
    #[inline]
    pub(super) fn poll(&mut self, source: usize, time: Nanos, batch: usize) {
        if self.empty.len() <= source {
            self.empty.resize(source + 1, 0);
        }
        let Some(empty) = self.empty.get_mut(source) else { return };
        if batch == 0 {
            *empty = empty.saturating_add(1);
        } else if self.polls.len() < self.max {
            let empty_before = std::mem::take(empty);
            self.polls.push(Poll { time, batch: batch as u32, empty_before, source: source as u16 });
        } else {
            self.missed += 1;
        }
    }

    /// Writes it as CSV: a line of names, then one line a poll, `time_ns,batch,empty_before,source`.
    ///
    /// # Errors
    /// What `out` says.
    pub fn write(&self, mut out: impl Write) -> io::Result<()> {
        writeln!(out, "time_ns,batch,empty_before,source")?;
        for p in &self.polls {
            writeln!(out, "{},{},{},{}", p.time.0, p.batch, p.empty_before, p.source)?;
        }
        out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written() {
        let mut log = PollLog::new(3);
        for (source, time, batch) in
            [(0, 5, 0), (0, 6, 0), (0, 7, 4), (2, 7, 0), (2, 8, 1), (0, 9, 256), (0, 10, 2), (0, 11, 0)]
        {
            log.poll(source, Nanos(time), batch);
        }
        let mut text = Vec::new();
        log.write(&mut text).unwrap();
        let want = "time_ns,batch,empty_before,source\n7,4,2,0\n8,1,1,2\n9,256,0,0\n";
        assert_eq!(String::from_utf8(text).unwrap(), want);
        assert_eq!((log.polls().len(), log.missed()), (3, 1));
    }
}
