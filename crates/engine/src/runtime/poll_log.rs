//! A log of polls: when a source was asked, and how many packets it had. The queueing model is fitted to it.
//!
//! It lies in memory, allocated before the run and bounded, and is written when the run is over: no system
//! call comes between two polls. Polls without packets are only counted, since a busy loop makes millions a
//! second.

use std::io::{self, Write};

use slipstream_core::frame::Frame;
use slipstream_core::time::Nanos;

/// A poll that brought packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poll {
    /// When.
    pub time: Nanos,
    /// Packets that it brought, 1 and more.
    pub batch: u32,
    /// Polls of the same source that brought none since the entry before of that source.
    pub empty_before: u32,
    /// When the newest of the packets arrived, by the source's own account: from how far it lies behind
    /// `time` one can tell whether arrivals were late.
    pub newest: Nanos,
    /// Number of the source, in the order of [`RunReport::sources`](super::RunReport::sources).
    pub source: u16,
}

/// The number of polls with packets so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollCounts {
    /// Those in the log.
    pub logged: u64,
    /// Those for which it had no room.
    pub missed: u64,
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
    /// A log of at most `max` entries, 32 bytes each; those after them are only counted.
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

    pub(super) fn counts(&self) -> PollCounts {
        PollCounts { logged: self.polls.len() as u64, missed: self.missed }
    }

    /// A source was polled, and brought these packets.
    #[inline]
    pub(super) fn poll(&mut self, source: usize, time: Nanos, packets: &[Frame]) {
        if self.empty.len() <= source {
            self.empty.resize(source + 1, 0);
        }
        let Some(empty) = self.empty.get_mut(source) else { return };
        let Some(newest) = packets.last() else {
            *empty = empty.saturating_add(1);
            return;
        };
        if self.polls.len() < self.max {
            self.polls.push(Poll {
                time,
                batch: packets.len() as u32,
                empty_before: std::mem::take(empty),
                newest: newest.arrival,
                source: source as u16,
            });
        } else {
            self.missed += 1;
        }
    }

    /// Writes it as CSV: a line of names, then one line a poll,
    /// `time_ns,batch,empty_before,source,newest_ns`.
    ///
    /// # Errors
    /// The error of `out`.
    pub fn write(&self, mut out: impl Write) -> io::Result<()> {
        writeln!(out, "time_ns,batch,empty_before,source,newest_ns")?;
        for p in &self.polls {
            writeln!(out, "{},{},{},{},{}", p.time.0, p.batch, p.empty_before, p.source, p.newest.0)?;
        }
        out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slipstream_core::pool::{PacketMeta, Pool};

    #[test]
    fn what_is_written() {
        let mut log = PollLog::new(3);
        let mut pool = Pool::new();
        let meta = PacketMeta { original_len: 60, interface: 0, time: Nanos(0) };
        for (source, time, batch) in
            [(0, 5, 0), (0, 6, 0), (0, 7, 4), (2, 7, 0), (2, 8, 1), (0, 9, 256), (0, 10, 2), (0, 11, 0)]
        {
            let frame = |n| {
                Frame::unclassified(
                    Nanos(time - 2 + (n == batch - 1) as u64),
                    pool.insert(meta, &[0; 60]),
                    60,
                )
            };
            let frames: Vec<Frame> = (0..batch).map(frame).collect();
            log.poll(source, Nanos(time), &frames);
        }
        let mut text = Vec::new();
        log.write(&mut text).unwrap();
        let want = "time_ns,batch,empty_before,source,newest_ns\n7,4,2,0,6\n8,1,1,2,7\n9,256,0,0,8\n";
        assert_eq!(String::from_utf8(text).unwrap(), want);
        assert_eq!((log.polls().len(), log.missed()), (3, 1));
        assert_eq!(log.counts(), PollCounts { logged: 3, missed: 1 });
    }
}
