//! The loops that drive stages: over a capture's own clock, or live.
//!
//! [`source`] brings packets in, [`replay`] runs one worker, [`shard`] several, [`paced`] one by the wall clock,
//! [`sink`] takes what comes out. [`graph`] is a pipeline of many stages, [`drive`] the loop that drives it over
//! captures, [`rehearsal`] one that only measures it, [`live`] one by the wall clock, with ports whose packets come when they
//! come; [`own_time`] one in the engine's own time, [`usual`] tells which of its polls were interrupted, [`probe`] how fast the core is;
//! [`poll_log`] remembers how many packets came at a time; a [`board`] shows others how a run goes.

mod board;
mod drive;
mod graph;
mod live;
mod own_time;
mod paced;
mod poll_log;
mod probe;
mod rehearsal;
mod replay;
mod shard;
mod sink;
mod source;
mod usual;

pub use board::Board;
pub use drive::{Run, RunError, RunReport, SourceReport};
pub use graph::{Pipeline, StageReport, Tally};
pub use live::LiveOptions;
pub use own_time::OwnTime;
pub use poll_log::{Poll, PollLog};
pub use probe::Probe;
pub use rehearsal::{Timing, Traffic};
pub use replay::{Pace, Replay, ReplayError, ReplayReport, Tick};
pub use sink::{CaptureSink, NullSink, Sink, Stamp};
pub(crate) use source::Classifier;
pub use source::{CaptureSource, LiveSource, OwnTimeSource, Preload, Source, SourceError, SynthSource};
