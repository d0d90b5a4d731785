//! The loop that drives the stage over a capture's own clock.
//!
//! [`source`] brings packets in, [`replay`] runs one worker, [`shard`] several, [`sink`] takes what comes out.

mod replay;
mod shard;
mod sink;
mod source;

pub use replay::{Replay, ReplayError, ReplayReport};
pub use sink::{CaptureSink, NullSink, Sink, Stamp};
pub use source::{CaptureSource, Preload, Source, SourceError};
