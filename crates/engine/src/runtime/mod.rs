//! The loop that drives the stage over a capture's own clock.
//!
//! [`source`] brings packets in, [`replay`] runs one worker, [`shard`] several, [`paced`] one by the wall clock,
//! [`sink`] takes what comes out.

mod paced;
mod replay;
mod shard;
mod sink;
mod source;

pub use replay::{Pace, Replay, ReplayError, ReplayReport, Tick};
pub use sink::{CaptureSink, NullSink, Sink, Stamp};
pub use source::{CaptureSource, Preload, Source, SourceError, SynthSource};
