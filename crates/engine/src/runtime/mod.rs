//! The loop that drives the stage over a capture's own clock.
//!
//! [`source`] brings packets in, [`replay`] runs one worker, [`shard`] several, [`paced`] one by the wall clock,
//! [`sink`] takes what comes out. [`graph`] is a pipeline of many stages, [`drive`] the loop that drives it, [`rehearsal`] one that only
//! measures it.

mod drive;
mod graph;
mod paced;
mod rehearsal;
mod replay;
mod shard;
mod sink;
mod source;

pub use drive::{Run, RunError, RunReport, SourceReport};
pub use graph::{Pipeline, StageReport, Tally};
pub use rehearsal::{Timing, Traffic};
pub use replay::{Pace, Replay, ReplayError, ReplayReport, Tick};
pub use sink::{CaptureSink, NullSink, Sink, Stamp};
pub(crate) use source::Classifier;
pub use source::{CaptureSource, Preload, Source, SourceError, SynthSource};
