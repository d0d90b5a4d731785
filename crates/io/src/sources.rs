//! Sources of a replay's packets: a capture that is read as it goes, or generated traffic.

use std::any::Any;

use slipstream_core::batch::Arrivals;
use slipstream_core::frame::Frame;
use slipstream_core::interface::Interface;
use slipstream_core::pool::{BufId, PacketMeta, Pool};
use slipstream_core::source::{Source, SourceError};
use slipstream_core::time::Nanos;

use crate::capture::{CaptureReader, Record};
use crate::parted::Parted;
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

    #[cold]
    fn went_back(&mut self) {
        self.backwards += 1;
    }
}

/// A capture that is read as it goes.
#[derive(Debug)]
pub struct CaptureSource {
    reading: Reading,
    order: Order,
    /// CPU time of threads that have ended, in ns.
    ahead_ns: u64,
}

#[derive(Debug)]
enum Reading {
    /// By the thread that asks.
    Alone(Box<CaptureReader>),
    /// By several.
    Parted(Box<Parted>),
    /// Neither, for a moment.
    None,
}

impl CaptureSource {
    /// Reads from here on.
    #[must_use]
    pub fn new(reader: CaptureReader) -> Self {
        Self { reading: Reading::Alone(Box::new(reader)), order: Order::default(), ahead_ns: 0 }
    }

    /// The reader, for what it knows of the file; none while several threads read.
    #[must_use]
    pub fn reader(&self) -> Option<&CaptureReader> {
        if let Reading::Alone(reader) = &self.reading { Some(reader) } else { None }
    }

    /// All parts were read: the reader, which knows of damage, is alone again.
    #[cold]
    fn end_parts(&mut self) -> Result<(), SourceError> {
        if let Reading::Parted(parted) = std::mem::replace(&mut self.reading, Reading::None) {
            let (reader, cpu_ns, error) = parted.end();
            self.reading = reader.map_or(Reading::None, |reader| Reading::Alone(Box::new(reader)));
            self.ahead_ns += cpu_ns;
            error.map_or(Ok(()), Err)?;
        }
        Ok(())
    }
}

impl Source for CaptureSource {
    fn fill(&mut self, pool: &mut Pool, arrivals: &mut Arrivals, max: usize) -> Result<usize, SourceError> {
        arrivals.first = self.order.sequence;
        let n = match &mut self.reading {
            Reading::Alone(reader) => {
                let mut n = 0;
                while n < max {
                    let Some(record) = reader.next_record()? else { break };
                    let arrival = self.order.arrive(record.time);
                    let buf = store(pool, &record);
                    arrivals.frames.push(Frame::unclassified(arrival, buf, record.data.len() as u32));
                    n += 1;
                }
                n
            }
            Reading::Parted(parted) => parted.fill(pool, arrivals, max, &mut self.order),
            Reading::None => 0,
        };
        self.order.sequence += n as u64;
        if n < max && matches!(self.reading, Reading::Parted(_)) {
            self.end_parts()?;
        }
        Ok(n)
    }

    fn interfaces(&self) -> &[Interface] {
        match &self.reading {
            Reading::Alone(reader) => reader.interfaces(),
            Reading::Parted(parted) => parted.interfaces(),
            Reading::None => &[],
        }
    }

    fn clock_backwards(&self) -> u64 {
        self.order.backwards
    }

    fn progress(&self) -> Option<f64> {
        match &self.reading {
            Reading::Alone(reader) => {
                let all = reader.file_len()?;
                Some(reader.bytes_read() as f64 / all.max(1) as f64)
            }
            Reading::Parted(parted) => Some(parted.progress()),
            Reading::None => None,
        }
    }

    fn details(&self) -> Option<&dyn Any> {
        self.reader().map(|reader| reader as &dyn Any)
    }

    fn work_ahead(&mut self, pools: Vec<Pool>, classify: bool) {
        self.reading = match std::mem::replace(&mut self.reading, Reading::None) {
            Reading::Alone(reader) => match Parted::new(*reader, pools, classify) {
                Ok(parted) => Reading::Parted(Box::new(parted)),
                Err(mut reader) => {
                    reader.unpack_ahead();
                    Reading::Alone(reader)
                }
            },
            other => other,
        };
    }

    fn ahead_cpu_ns(&self) -> u64 {
        let now = match &self.reading {
            Reading::Alone(reader) => reader.ahead_cpu_ns(),
            Reading::Parted(parted) => parted.cpu_ns(),
            Reading::None => 0,
        };
        self.ahead_ns + now
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
            let Some(time) = self.synth.next_packet(&mut self.frame) else { break };
            let captured = self.synth.config().captured_len(self.frame.len());
            let data = self.frame.get(..captured).unwrap_or(&self.frame);
            let meta = PacketMeta { original_len: self.frame.len() as u32, interface: 0, time };
            let buf = pool.insert(meta, data);
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
