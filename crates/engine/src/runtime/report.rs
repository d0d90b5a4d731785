//! The results of a run: its report, or the error that ended it early.

use std::{fmt, io};

use slipstream_core::flow_context::ContextCounts;
use slipstream_core::pool::AdoptError;
use slipstream_core::source::SourceError;
use slipstream_core::stage::{DraftReport, StageError};
use thiserror::Error;

use super::graph::StageReport;
use super::poll_log::PollCounts;
use super::service_time::ServiceTimeReport;

/// The reason why a run ended early.
#[derive(Debug, Error)]
pub enum RunError {
    /// An input can't be read on.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A capture is damaged, of a run that was to be [strict](super::Driver::strict).
    #[error("{file}: damaged at byte {byte}: {what}")]
    Damaged {
        /// Its name.
        file: String,
        /// Byte at which the first record or block begins that can't be read.
        byte: u64,
        /// The damage, in words.
        what: String,
    },
    /// An output can't be written.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// A worker thread can't be started.
    #[error("a worker thread can't be started: {0}")]
    Worker(io::Error),
    /// Packet memory of a port can't be used.
    #[error(transparent)]
    Memory(#[from] AdoptError),
    /// A pipeline needs one thread.
    #[error("this pipeline runs on one thread: {0}; leave out --workers")]
    Alone(&'static str),
    /// Nobody promised that a stage can share the memory of packets with other threads.
    #[error(
        "stage `{name}` runs on one thread, since its type `{kind}` was not registered for several \
         (Registry::register_shared); leave out --workers"
    )]
    NotShared {
        /// The stage.
        name: String,
        /// Its type.
        kind: &'static str,
    },
    /// A thread can't have the core or the priority that was asked for.
    #[error("{what}: {error}")]
    Core {
        /// The core or priority, in words.
        what: String,
        /// The reason.
        error: io::Error,
    },
    /// A worker thread ended before its work did.
    #[error("a worker thread ended before its work did; this is a fault of the program: please report it")]
    Died,
    /// Packets of one source come in the engine's own time, and there is another source, whose don't.
    #[error("a source whose packets come in the engine's own time must be the only one")]
    ServiceTime,
}

/// The packets and counters of a source.
#[derive(Clone, Debug)]
pub struct SourceReport {
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: &'static str,
    /// Packets.
    pub packets: u64,
    /// Packets whose time ran backwards.
    pub clock_backwards: u64,
    /// Its own counters.
    pub counters: Vec<(&'static str, u64)>,
}

/// The count of this name among the counters of a source or a stage.
pub(super) fn counter(counters: &[(&'static str, u64)], name: &str) -> Option<u64> {
    counters.iter().find(|(known, _)| *known == name).map(|(_, n)| *n)
}

impl SourceReport {
    /// One of its own counters by its name; none where it has no such counter.
    #[must_use]
    pub fn counter(&self, name: &str) -> Option<u64> {
        counter(&self.counters, name)
    }
}

/// The results of a run.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// Every source.
    pub sources: Vec<SourceReport>,
    /// Every stage.
    pub stages: Vec<StageReport>,
    /// Real time of the data path, in ns.
    pub elapsed_ns: u64,
    /// CPU time of the data path, in ns.
    pub cpu_ns: u64,
    /// Packets that are still inside: 0, or packets were lost.
    pub live: u64,
    /// Of a run in the engine's own time: how that went.
    pub service_time: Option<ServiceTimeReport>,
    /// The state of the log of polls, if there is one.
    pub poll_log: Option<PollCounts>,
    /// Counters of flow contexts, if there were any.
    pub contexts: Option<ContextCounts>,
    /// Whoever is told of the progress of a replay wanted no more: it stopped where it was, and no file was
    /// written.
    pub interrupted: bool,
    /// Of a run in shards: the report of each.
    pub shards: Vec<RunReport>,
}

/// The results of a run, but for the stages' own reports, which are still to be made: the data path leaves
/// that to whoever has asked.
pub(super) struct Draft {
    pub(super) report: RunReport,
    /// One for each stage.
    pub(super) drafts: Vec<DraftReport>,
}

impl fmt::Debug for Draft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Draft").field("report", &self.report).finish_non_exhaustive()
    }
}

impl Draft {
    /// The results with all reports made.
    pub(super) fn made(self) -> RunReport {
        let Self { mut report, drafts } = self;
        for (stage, draft) in report.stages.iter_mut().zip(drafts) {
            stage.report = draft();
        }
        report
    }
}
