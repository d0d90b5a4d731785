//! The two ends of a replay, made by this library: they use packets only while they have them, so that
//! several threads may work in the same memory.

use std::any::Any;
use std::fmt;

use slipstream_core::pool::Pool;
use slipstream_core::port::Outlet;
use slipstream_core::source::{Source, SourceError};
use slipstream_core::stage::Stage;
use slipstream_io::capture::{CaptureReader, CaptureWriter};
use slipstream_io::ports::CaptureStage;
use slipstream_io::preload::Preload;
use slipstream_io::sink::{CaptureSink, NullSink, Stamp};
use slipstream_io::sources::{CaptureSource, RecordSource, Records, SynthSource};
use slipstream_io::synth::Synth;

use super::replay::ToSink;

/// A source of this library, and the memory of its packets.
pub struct Origin {
    source: Box<dyn Source + Send>,
    /// The source that packets in memory were read from.
    read: Option<Box<dyn Source + Send>>,
    pool: Pool,
}

impl Origin {
    fn of(source: impl Source + Send + 'static) -> Self {
        Self { source: Box::new(source), read: None, pool: Pool::new() }
    }

    /// A capture that is read as it goes.
    #[must_use]
    pub fn capture(reader: CaptureReader) -> Self {
        Self::of(CaptureSource::new(reader))
    }

    /// Traffic that is made as it goes.
    #[must_use]
    pub fn synth(synth: Synth) -> Self {
        Self::of(SynthSource::new(synth))
    }

    /// Records of whoever has some.
    #[must_use]
    pub fn records(records: impl Records + 'static) -> Self {
        Self::of(RecordSource::new(records))
    }

    /// All of its packets in memory, to be replayed `turns` times.
    ///
    /// # Errors
    /// As [`Preload::read`].
    pub fn preloaded(mut self, turns: u32) -> Result<Self, SourceError> {
        let preload = Preload::read(self.source.as_mut(), &mut self.pool, turns)?;
        Ok(Self { source: Box::new(preload), read: Some(self.source), pool: self.pool })
    }

    /// The source's knowledge beside its packets; see [`Source::details`]. Of packets in memory it is that of
    /// the source that they were read from.
    #[must_use]
    pub fn details(&self) -> Option<&dyn Any> {
        self.read.as_ref().unwrap_or(&self.source).details()
    }

    pub(super) fn into_parts(self) -> (Box<dyn Source + Send>, Pool) {
        (self.source, self.pool)
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Origin").finish_non_exhaustive()
    }
}

/// A destination of this library.
pub struct Destination(Box<dyn Stage + Send>);

impl Destination {
    /// Nowhere.
    #[must_use]
    pub fn nowhere() -> Self {
        Self(Box::new(ToSink::new(NullSink)))
    }

    /// A capture, with this time of each packet.
    #[must_use]
    pub fn capture(writer: CaptureWriter, stamp: Stamp) -> Self {
        Self(Box::new(Outlet::new(CaptureStage::new(CaptureSink::new(writer, stamp)))))
    }

    pub(super) fn into_stage(self) -> Box<dyn Stage + Send> {
        self.0
    }
}

impl fmt::Debug for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Destination").finish_non_exhaustive()
    }
}
