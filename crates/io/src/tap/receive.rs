//! The way in: what the machine sends by the interface.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use slipstream_core::batch::Arrivals;
use slipstream_core::frame::Frame;
use slipstream_core::interface::Interface;
use slipstream_core::pool::{PacketMeta, Pool};
use slipstream_core::source::{LiveSource, Source, SourceError};
use slipstream_core::time::Nanos;

use super::lost::Lost;
use super::{Port, TapError};
use crate::offload::{LONGEST, Offload, Segmenter};

/// Packets as the machine sends them.
#[derive(Debug)]
pub struct Receiver {
    port: Arc<Port>,
    interface: [Interface; 1],
    /// For what is read: a header and a packet.
    bytes: Vec<u8>,
    /// For a packet of a super-frame.
    scratch: Vec<u8>,
    segmenter: Segmenter,
    /// A super-frame is being cut.
    cutting: bool,
    sequence: u64,
    counts: Counts,
    /// Packets that the interface had no room for; none where another queue counts them.
    lost: Option<Lost>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    bytes: u64,
    reads: u64,
    checksums: u64,
    super_frames: u64,
    segments: u64,
    uncut: u64,
}

impl Receiver {
    pub(super) fn new(port: Arc<Port>, lost: Option<Lost>) -> Self {
        let interface = Interface { link_number: 1, snap_len: 0, name: Some(port.name.clone()) };
        Self {
            port,
            interface: [interface],
            bytes: vec![0; LONGEST],
            scratch: Vec::new(),
            segmenter: Segmenter::default(),
            cutting: false,
            sequence: 0,
            counts: Counts::default(),
            lost,
        }
    }

    /// Reads a packet, which comes to `emit` unless it is a super-frame; false where there is none.
    fn read(&mut self, emit: &mut dyn FnMut(&[u8])) -> Result<bool, TapError> {
        let len = match self.port.device.read(&mut self.bytes) {
            Ok(len) => len,
            Err(error) if [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted].contains(&error.kind()) => {
                return Ok(false);
            }
            // While the interface is down nothing comes; it may come up again.
            Err(error) if error.raw_os_error() == Some(libc::EIO) => return Ok(false),
            Err(error) => {
                return Err(self
                    .port
                    .gone()
                    .unwrap_or_else(|| TapError::of(&self.port.name, "reading from")(error)));
            }
        };
        self.counts.reads += 1;
        let Some((header, frame)) = self.bytes.get_mut(..len).and_then(|b| b.split_first_chunk_mut()) else {
            return Ok(true);
        };
        let offload = Offload::read(header);
        if !offload.is_super_frame() {
            self.counts.checksums += u64::from(offload.complete(frame));
            emit(frame);
            return Ok(true);
        }
        self.counts.super_frames += 1;
        self.cutting = self.segmenter.take(frame, offload);
        self.counts.uncut += u64::from(!self.cutting);
        Ok(true)
    }
}

impl LiveSource for Receiver {
    fn poll(
        &mut self,
        pool: &mut Pool,
        arrivals: &mut Arrivals,
        max: usize,
        now: Nanos,
    ) -> Result<usize, SourceError> {
        arrivals.first = self.sequence;
        let (mut n, mut bytes) = (0, 0);
        let mut insert = |data: &[u8]| {
            let meta = PacketMeta { original_len: data.len() as u32, interface: 0, time: now };
            let buf = pool.insert(meta, data);
            arrivals.frames.push(Frame::unclassified(now, buf, data.len() as u32));
            (n, bytes) = (n + 1, bytes + data.len() as u64);
            n
        };
        let mut taken = 0;
        while taken < max {
            if self.cutting {
                if self.segmenter.next(&mut self.scratch) {
                    self.counts.segments += 1;
                    taken = insert(&self.scratch);
                } else {
                    self.cutting = false;
                }
                continue;
            }
            if !self.read(&mut |frame| taken = insert(frame))? {
                break;
            }
        }
        self.counts.bytes += bytes;
        self.sequence += n as u64;
        Ok(n)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.port.device.fd())
    }
}

impl Source for Receiver {
    fn fill(&mut self, pool: &mut Pool, arrivals: &mut Arrivals, max: usize) -> Result<usize, SourceError> {
        self.poll_now(pool, arrivals, max)
    }

    fn interfaces(&self) -> &[Interface] {
        &self.interface
    }

    fn live(&mut self) -> Option<&mut dyn LiveSource> {
        Some(self)
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let Counts { bytes, reads, checksums, super_frames, segments, uncut } = self.counts;
        let lost = |lost: &Lost| lost.count(self.port.device.name().as_deref());
        visit("bytes", bytes);
        visit("dropped_by_kernel", self.lost.as_ref().map_or(0, lost));
        visit("reads", reads);
        visit("checksums_filled_in", checksums);
        visit("super_frames", super_frames);
        visit("segments", segments);
        visit("super_frames_uncut", uncut);
    }
}
