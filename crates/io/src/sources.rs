//! Sources of a replay's packets: a capture that is read as it goes, or generated traffic.

use std::any::Any;
use std::os::fd::BorrowedFd;

use slipstream_core::batch::Arrivals;
use slipstream_core::frame::Frame;
use slipstream_core::interface::Interface;
use slipstream_core::pool::{BufId, PacketMeta, Pool};
use slipstream_core::source::{Source, SourceError};
use slipstream_core::time::Nanos;

use crate::capture::{CaptureReader, Record};
use crate::synth::Synth;

/// Clamps time so that it never runs backwards, and numbers the packets.
#[derive(Debug, Default)]
pub(crate) struct Order {
    now: Nanos,
    pub(crate) sequence: u64,
    pub(crate) backwards: u64,
}

impl Order {
    #[inline]
    pub(crate) fn arrive(&mut self, time: Nanos) -> Nanos {
        if time < self.now {
            self.went_back();
        } else {
            self.now = time;
        }
        self.now
    }

    /// A record arrives: its bytes go into the pool, and its frame to the others.
    #[inline(always)]
    fn take(&mut self, pool: &mut Pool, arrivals: &mut Arrivals, record: &Record<'_>) {
        let (arrival, buf) = (self.arrive(record.time), store(pool, record));
        arrivals.frames.push(Frame::unclassified(arrival, buf, record.data.len() as u32));
    }

    #[cold]
    fn went_back(&mut self) {
        self.backwards += 1;
    }
}

/// A capture that is read as it goes.
#[derive(Debug)]
pub struct CaptureSource {
    reader: CaptureReader,
    order: Order,
    /// Records that are not there are not waited for.
    as_they_come: bool,
    /// Behind the records that were given last the stream failed.
    failed: Option<SourceError>,
}

impl CaptureSource {
    /// Reads from here on.
    #[must_use]
    pub fn new(reader: CaptureReader) -> Self {
        Self { reader, order: Order::default(), as_they_come: false, failed: None }
    }

    /// The reader, for what it knows of the file.
    #[must_use]
    pub fn reader(&self) -> &CaptureReader {
        &self.reader
    }

    /// [`Source::fill`]; with `AS_THEY_COME` with the records that are there, the first of which is.
    #[inline(always)]
    fn fill_from<const AS_THEY_COME: bool>(
        &mut self,
        pool: &mut Pool,
        arrivals: &mut Arrivals,
        max: usize,
    ) -> Result<usize, SourceError> {
        arrivals.first = self.order.sequence;
        let mut n = 0;
        while n < max {
            let Some(record) = self.reader.next_record()? else { break };
            self.order.take(pool, arrivals, &record);
            n += 1;
            if AS_THEY_COME && self.nothing_follows() {
                break;
            }
        }
        self.order.sequence += n as u64;
        Ok(n)
    }

    /// Returns true if no record is there behind the one that was read last, or there will be none.
    fn nothing_follows(&mut self) -> bool {
        self.reader.waits().unwrap_or_else(|error| {
            self.failed = Some(error.into());
            true
        })
    }
}

impl Source for CaptureSource {
    fn fill(&mut self, pool: &mut Pool, arrivals: &mut Arrivals, max: usize) -> Result<usize, SourceError> {
        if self.as_they_come {
            return self.fill_from::<true>(pool, arrivals, max);
        }
        self.fill_from::<false>(pool, arrivals, max)
    }

    fn waits(&mut self) -> Result<bool, SourceError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let waits = self.reader.waits()?;
        self.as_they_come = self.reader.stream().is_some();
        Ok(waits)
    }

    fn stream(&self) -> Option<BorrowedFd<'_>> {
        self.reader.stream()
    }

    fn interfaces(&self) -> &[Interface] {
        self.reader.interfaces()
    }

    fn clock_backwards(&self) -> u64 {
        self.order.backwards
    }

    fn progress(&self) -> Option<f64> {
        let all = self.reader.file_len()?;
        Some(self.reader.bytes_read() as f64 / all.max(1) as f64)
    }

    fn details(&self) -> Option<&dyn Any> {
        Some(&self.reader)
    }

    fn work_ahead(&mut self) {
        self.reader.unpack_ahead();
    }

    fn ahead_cpu_ns(&self) -> u64 {
        self.reader.ahead_cpu_ns()
    }
}

/// Somebody who has records.
pub trait Records: Send {
    /// Gives the next records to `visit`, `most` at most; returns how many, 0 at the end.
    ///
    /// # Errors
    /// [`SourceError`] where the rest can't be had.
    fn read(&mut self, most: usize, visit: &mut dyn FnMut(&Record<'_>)) -> Result<usize, SourceError>;

    /// As [`Source::interfaces`].
    fn interfaces(&self) -> &[Interface];

    /// As [`Source::progress`].
    fn progress(&self) -> Option<f64> {
        None
    }

    /// As [`Source::work_ahead`].
    fn work_ahead(&mut self) {}

    /// As [`Source::ahead_cpu_ns`].
    fn ahead_cpu_ns(&self) -> u64 {
        0
    }
}

/// Records as a source of packets.
#[derive(Debug)]
pub struct RecordSource<R> {
    records: R,
    order: Order,
}

impl<R: Records> RecordSource<R> {
    /// Reads from here on.
    #[must_use]
    pub fn new(records: R) -> Self {
        Self { records, order: Order::default() }
    }
}

impl<R: Records> Source for RecordSource<R> {
    fn fill(&mut self, pool: &mut Pool, arrivals: &mut Arrivals, max: usize) -> Result<usize, SourceError> {
        let Self { records, order } = self;
        arrivals.first = order.sequence;
        let n = records.read(max, &mut |record| order.take(pool, arrivals, record))?;
        order.sequence += n as u64;
        Ok(n)
    }

    fn interfaces(&self) -> &[Interface] {
        self.records.interfaces()
    }

    fn clock_backwards(&self) -> u64 {
        self.order.backwards
    }

    fn progress(&self) -> Option<f64> {
        self.records.progress()
    }

    fn work_ahead(&mut self) {
        self.records.work_ahead();
    }

    fn ahead_cpu_ns(&self) -> u64 {
        self.records.ahead_cpu_ns()
    }
}

pub(crate) fn store(pool: &mut Pool, record: &Record<'_>) -> BufId {
    let meta =
        PacketMeta { original_len: record.original_len, interface: record.interface, time: record.time };
    pool.insert(meta, record.data)
}

/// Traffic that is made as it goes.
#[derive(Debug)]
pub struct SynthSource {
    synth: Synth,
    interface: [Interface; 1],
    packets: u64,
    sequence: u64,
    frame: Vec<u8>,
}

impl SynthSource {
    /// Makes what `synth` makes.
    #[must_use]
    pub fn new(synth: Synth) -> Self {
        let snap_len = synth.config().snap_len.unwrap_or(0);
        let interface = [Interface { link_number: 1, snap_len, name: Some("synth".into()) }];
        Self { packets: synth.remaining(), synth, interface, sequence: 0, frame: Vec::new() }
    }
}

impl Source for SynthSource {
    fn fill(&mut self, pool: &mut Pool, arrivals: &mut Arrivals, max: usize) -> Result<usize, SourceError> {
        arrivals.first = self.sequence;
        let mut n = 0;
        while n < max {
            let Some(packet) = self.synth.next_record(&mut self.frame) else { break };
            let Record { time, original_len, data, .. } = packet;
            let buf = pool.insert(PacketMeta { original_len, interface: 0, time }, data);
            arrivals.frames.push(Frame::unclassified(time, buf, data.len() as u32));
            n += 1;
        }
        self.sequence += n as u64;
        Ok(n)
    }

    fn interfaces(&self) -> &[Interface] {
        &self.interface
    }

    fn progress(&self) -> Option<f64> {
        Some(self.sequence as f64 / self.packets.max(1) as f64)
    }
}
