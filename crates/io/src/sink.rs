//! Destinations of a replay's packets: a capture file, or nowhere.

use std::sync::{Arc, Mutex, PoisonError};

use crate::capture::{CaptureError, CaptureWriter, Summary};
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

/// The time that is written with a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stamp {
    /// The time of its release; never decreasing.
    #[default]
    Release,
    /// The time that the input gave.
    Arrival,
}

/// Writes a capture file.
///
/// An error ends the file; what comes then is lost, and counted, until it is to [begin
/// again](Self::begin_again).
#[derive(Debug)]
pub struct CaptureSink {
    /// None behind an error, and at the end.
    writer: Option<CaptureWriter>,
    stamp: Stamp,
    rotation: Option<Rotation>,
    /// The packets that were written stay, however the writing ends.
    stays: bool,
    /// Packets that came.
    taken: u64,
    /// The amounts in files that are closed.
    closed: Summary,
}

impl CaptureSink {
    /// Writes to `writer`, packets of any length.
    #[must_use]
    pub fn new(writer: CaptureWriter, stamp: Stamp) -> Self {
        // A packet may leave longer than it came: headers are put before it.
        let (writer, closed) = (Some(writer.with_longer_packets()), Summary::default());
        Self { writer, stamp, rotation: None, stays: false, taken: 0, closed }
    }

    /// Goes on in other files by and by.
    #[must_use]
    pub fn rotating(self, rotation: Rotation) -> Self {
        Self { rotation: Some(rotation), ..self }
    }

    /// The packets that were written stay, however the writing ends: of a file that can't be written any
    /// more, all that it has whole.
    #[must_use]
    pub fn staying(self) -> Self {
        Self { writer: self.writer.map(CaptureWriter::staying), stays: true, ..self }
    }

    /// All that was written can be read from now on, however the program ends.
    ///
    /// # Errors
    /// [`CaptureError`] where it can't be written.
    pub fn publish(&mut self) -> Result<(), CaptureError> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let published = writer.publish();
        let any = writer.summary().packets > 0;
        match (&published, &mut self.rotation) {
            (Err(_), _) => self.give_up(),
            (Ok(()), Some(rotation)) if any => rotation.delete_oldest(1),
            (Ok(()), _) => {}
        }
        published
    }

    /// Packets that were written, and their bytes. Of what stays, only those that have reached a file count.
    #[must_use]
    pub fn written(&self) -> (u64, u64) {
        let open = self.writer.as_ref().map_or_else(Summary::default, |writer| {
            if self.stays { writer.reached() } else { writer.summary() }
        });
        (self.closed.packets + open.packets, self.closed.data_bytes + open.data_bytes)
    }

    /// Packets that came and won't be in any file.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let open = self.writer.as_ref().map_or(0, |writer| writer.summary().packets);
        self.taken - self.closed.packets - open
    }

    /// Returns true if it can go on in another file behind an error.
    #[must_use]
    pub fn can_begin_again(&self) -> bool {
        self.stays && self.rotation.is_some()
    }

    /// Goes on in another file behind an error, where there are to be several, if that can be written now.
    ///
    /// # Errors
    /// [`CaptureError`] where it can't.
    pub fn begin_again(&mut self) -> Result<(), CaptureError> {
        if let (None, Some(rotation)) = (&self.writer, &mut self.rotation) {
            let mut writer = rotation.open(self.stays)?;
            // On a disk that is full, a file can be made, but not be written.
            writer.publish()?;
            self.writer = Some(writer);
        }
        Ok(())
    }

    /// Has all that was written reach the file, which is then only to be [finished](Self::finish).
    ///
    /// # Errors
    /// [`CaptureError`] where it can't be written.
    pub fn flush(&mut self) -> Result<(), CaptureError> {
        let flushed = self.writer.as_mut().map_or(Ok(()), CaptureWriter::end);
        if flushed.is_err() {
            self.give_up();
        }
        flushed
    }

    /// Completes what is written.
    ///
    /// # Errors
    /// [`CaptureError`] where it can't be written.
    pub fn finish(&mut self) -> Result<(), CaptureError> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        if let Some(rotation) = &mut self.rotation
            && self.stays
            && writer.summary().packets == 0
            && rotation.has_others()
        {
            // No packet came: that is no reason to delete any that did.
            rotation.closed(false);
            return Ok(());
        }
        self.close(writer)?;
        if let Some(rotation) = &mut self.rotation {
            rotation.delete_oldest(0);
        }
        Ok(())
    }

    /// Completes a file, or keeps what there is of it if that is to stay.
    fn close(&mut self, writer: CaptureWriter) -> Result<(), CaptureError> {
        let (there, result) = if self.stays {
            writer.close()
        } else {
            match writer.finish() {
                Ok(summary) => (summary, Ok(())),
                Err(error) => (Summary::default(), Err(error)),
            }
        };
        self.closed.packets += there.packets;
        self.closed.data_bytes += there.data_bytes;
        if let Some(rotation) = &mut self.rotation {
            rotation.closed(result.is_ok() || there.packets > 0);
        }
        result
    }

    /// Leaves a file behind an error.
    #[cold]
    fn give_up(&mut self) {
        if let Some(writer) = self.writer.take()
            && self.stays
        {
            // The reason why it can't be completed has been said.
            let _ = self.close(writer);
        }
    }

    /// Completes a file and begins the next one.
    #[cold]
    fn turn(&mut self) -> Result<(), CaptureError> {
        if let Some(writer) = self.writer.take() {
            self.close(writer)?;
        }
        if let Some(rotation) = &mut self.rotation {
            self.writer = Some(rotation.open(self.stays)?);
            rotation.delete_oldest(1);
        }
        Ok(())
    }

    fn write(&mut self, time: Nanos, meta: PacketMeta, data: &[u8]) -> Result<(), CaptureError> {
        if let (Some(writer), Some(rotation)) = (&self.writer, &self.rotation)
            && rotation.is_full(time, writer.size_with_packet(data.len()))
        {
            self.turn()?;
        }
        if let Some(rotation) = &mut self.rotation {
            rotation.packet(time);
        }
        match &mut self.writer {
            Some(writer) => writer.write(meta.interface, time, meta.original_len, data),
            None => Ok(()),
        }
    }
}

impl Sink for CaptureSink {
    fn interface(&mut self, interface: &Interface) -> Result<(), CaptureError> {
        if let Some(rotation) = &mut self.rotation {
            rotation.interface(interface);
        }
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let room = |rotation: &mut Rotation| rotation.has_room(writer.size_with_interface(interface));
        if self.rotation.as_mut().is_none_or(room) {
            writer.add_interface(interface);
        }
        Ok(())
    }

    fn packet(&mut self, release: Nanos, meta: PacketMeta, data: &[u8]) -> Result<(), CaptureError> {
        let time = match self.stamp {
            Stamp::Release => release,
            Stamp::Arrival => meta.time,
        };
        self.taken += 1;
        if self.writer.is_none() {
            return Ok(());
        }
        let written = self.write(time, meta, data);
        if written.is_err() {
            self.give_up();
        }
        written
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::{CaptureReader, Format, WriterOptions};

    /// Programs on libpcap refuse what is longer than the snap length in pcapng, and cut it in pcap. In
    /// pcapng they want one snap length of all interfaces.
    #[test]
    fn no_packet_is_longer_than_the_snap_length_that_is_declared() {
        let folder = tempfile::tempdir().unwrap();
        let time = Nanos(1);
        for (format, want) in [(Format::PcapNg, [0, 0, 0]), (Format::Pcap, [500_000; 3])] {
            let path = folder.path().join("a");
            let options = WriterOptions::for_path(&path, format);
            let mut sink = CaptureSink::new(CaptureWriter::create(&path, options).unwrap(), Stamp::Release);
            for snap_len in [96, 0, 500_000] {
                sink.interface(&Interface { link_number: 1, snap_len, name: None }).unwrap();
            }
            sink.packet(time, PacketMeta { original_len: 1504, interface: 0, time }, &[0; 100]).unwrap();
            sink.finish().unwrap();
            let mut reader = CaptureReader::open(&path).unwrap();
            assert_eq!(reader.next_record().unwrap().unwrap().data.len(), 100);
            assert!(reader.interfaces().iter().zip(want).all(|(found, want)| found.snap_len == want));
        }
    }
}
