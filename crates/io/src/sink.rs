//! Destinations of a replay's packets: a capture file, or nowhere.

use std::sync::{Arc, Mutex, PoisonError};

use crate::capture::{CaptureError, CaptureWriter};
use crate::rotation::Rotation;
use slipstream_core::batch::Batch;
use slipstream_core::interface::Interface;
use slipstream_core::pool::{PacketMeta, Pool};
use slipstream_core::time::Nanos;

/// Takes trains out.
pub trait Sink {
    /// An interface that packets will come from; they are numbered in the order in which they come up.
    ///
    /// # Errors
    /// [`CaptureError`] where the output can't hold it.
    fn interface(&mut self, interface: &Interface) -> Result<(), CaptureError>;

    /// Takes a packet that leaves at `release`.
    ///
    /// # Errors
    /// [`CaptureError`] where the output can't be written.
    fn packet(&mut self, release: Nanos, meta: PacketMeta, data: &[u8]) -> Result<(), CaptureError>;

    /// Returns true if it only throws away, so that nobody need call it.
    fn discards(&self) -> bool {
        false
    }
}

/// A sink that its owner looks at afterwards.
impl<S: Sink> Sink for Arc<Mutex<S>> {
    fn interface(&mut self, interface: &Interface) -> Result<(), CaptureError> {
        self.lock().unwrap_or_else(PoisonError::into_inner).interface(interface)
    }

    fn packet(&mut self, release: Nanos, meta: PacketMeta, data: &[u8]) -> Result<(), CaptureError> {
        self.lock().unwrap_or_else(PoisonError::into_inner).packet(release, meta, data)
    }
}

/// Throws everything away.
#[derive(Clone, Copy, Debug, Default)]
pub struct NullSink;

impl Sink for NullSink {
    fn interface(&mut self, _: &Interface) -> Result<(), CaptureError> {
        Ok(())
    }

    fn packet(&mut self, _: Nanos, _: PacketMeta, _: &[u8]) -> Result<(), CaptureError> {
        Ok(())
    }

    fn discards(&self) -> bool {
        true
    }
}

/// Which time is written with a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stamp {
    /// The time of its release; never decreasing.
    #[default]
    Release,
    /// The time that the input gave.
    Arrival,
}

/// Writes a capture file.
#[derive(Debug)]
pub struct CaptureSink {
    writer: CaptureWriter,
    stamp: Stamp,
    rotation: Option<Rotation>,
}

impl CaptureSink {
    /// Writes to `writer`.
    #[must_use]
    pub fn new(writer: CaptureWriter, stamp: Stamp) -> Self {
        Self { writer, stamp, rotation: None }
    }

    /// Goes on in other files by and by.
    #[must_use]
    pub fn rotating(self, rotation: Rotation) -> Self {
        Self { rotation: Some(rotation), ..self }
    }

    /// All that was written can be read from now on, however the program ends.
    ///
    /// # Errors
    /// [`CaptureError`] where it can't be written.
    pub fn publish(&mut self) -> Result<(), CaptureError> {
        self.writer.publish()
    }

    /// The writer, to be finished.
    #[must_use]
    pub fn into_writer(self) -> CaptureWriter {
        self.writer
    }
}

impl Sink for CaptureSink {
    fn interface(&mut self, interface: &Interface) -> Result<(), CaptureError> {
        if let Some(rotation) = &mut self.rotation {
            rotation.interface(interface);
        }
        self.writer.add_interface(interface).map(|_| ())
    }

    fn packet(&mut self, release: Nanos, meta: PacketMeta, data: &[u8]) -> Result<(), CaptureError> {
        let time = match self.stamp {
            Stamp::Release => release,
            Stamp::Arrival => meta.time,
        };
        if let Some(rotation) = &mut self.rotation {
            if rotation.is_full(time, data.len()) {
                rotation.turn(&mut self.writer)?;
            }
            rotation.written(time, data.len());
        }
        self.writer.write(meta.interface, time, meta.original_len, data)
    }
}

/// Hands a batch to a sink and gives the packets' memory back.
pub fn deliver(sink: &mut dyn Sink, pool: &mut Pool, batch: &Batch) -> Result<(), CaptureError> {
    let mut result = Ok(());
    for (train, frames) in batch.iter() {
        for frame in frames {
            if result.is_ok() {
                result = sink.packet(train.release, pool.meta(frame.buf), pool.data(frame.buf, frame.len));
            }
        }
    }
    free(pool, batch);
    result
}

/// Gives the memory of a batch's packets back.
pub fn free(pool: &mut Pool, batch: &Batch) {
    if !pool.retains() {
        batch.frames.iter().for_each(|f| pool.free(f.buf));
    }
}
