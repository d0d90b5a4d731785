//! The way out: packets that the machine receives by the interface.

use std::io::IoSlice;
use std::sync::Arc;

use slipstream_core::batch::Batch;
use slipstream_core::frame::Frame;
use slipstream_core::pool::Pool;
use slipstream_core::port::{PortError, Transmit};
use slipstream_core::stage::{Context, DropReason, Drops};

use super::Port;
use crate::super_frame::{MOST, Super, Takes};
use slipstream_wire::gro::Kind;

/// Hands frames to the machine.
#[derive(Debug)]
pub struct Sender {
    port: Arc<Port>,
    /// The super-frames that it hands over; none where none are wanted.
    takes: Option<Takes>,
    /// The interface was taken away.
    gone: bool,
    counts: SendCounts,
}

/// Counters of a [`Sender`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendCounts {
    /// Packets that left.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that the kernel had no room for.
    pub no_room: u64,
    /// Packets that the interface doesn't take, such as while it is down.
    pub refused: u64,
    /// Super-frames that left.
    pub super_frames: u64,
    /// Packets in them, which count as packets too.
    pub super_frame_packets: u64,
    /// Super-frames that the kernel did not take: their packets left one by one.
    pub super_frames_refused: u64,
    /// Packets that left by themselves for a wrong checksum.
    pub wrong_checksums: u64,
}

impl Sender {
    pub(super) fn new(port: Arc<Port>, super_frames: bool) -> Self {
        // The machine itself receives packets of any length.
        let takes = super_frames.then_some(Takes { mtu: u32::MAX, udp: true });
        Self { port, takes, gone: false, counts: SendCounts::default() }
    }

    /// The counters.
    #[must_use]
    pub fn counts(&self) -> SendCounts {
        self.counts
    }

    fn send(&mut self, packet: &[u8]) {
        loop {
            let result = self.port.device.write(packet);
            match result.map_err(|error| error.raw_os_error()) {
                Ok(()) => {
                    self.counts.packets += 1;
                    self.counts.bytes += packet.len() as u64;
                }
                Err(Some(libc::EINTR)) => continue,
                Err(Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM)) => self.counts.no_room += 1,
                Err(error) => {
                    self.gone |= error == Some(libc::EBADFD);
                    self.counts.refused += 1;
                }
            }
            return;
        }
    }

    /// Hands over the super-frame at the start of `frames`, if there is one; returns its packets, 0 where
    /// they are to leave one by one.
    fn send_super(&mut self, pool: &Pool, frames: &[Frame]) -> usize {
        let wrong = &mut self.counts.wrong_checksums;
        let whole = self.takes.and_then(|takes| Super::of(pool, frames, takes, wrong));
        let Some(whole) = whole else { return 0 };
        let frames = frames.get(..whole.packets).unwrap_or_default();
        let mut parts = [IoSlice::new(&[]); MOST + 2];
        let payloads = frames.iter().map(|frame| whole.payload(pool, frame));
        let all = [&whole.offload[..], whole.headers.bytes()].into_iter().chain(payloads);
        for (part, bytes) in parts.iter_mut().zip(all) {
            *part = IoSlice::new(bytes);
        }
        let parts = parts.get(..frames.len() + 2).unwrap_or_default();
        let n = whole.packets as u64;
        loop {
            match self.port.device.write_parts(parts).map_err(|error| error.raw_os_error()) {
                Ok(()) => {
                    self.counts.packets += n;
                    self.counts.bytes += frames.iter().map(|f| u64::from(f.len)).sum::<u64>();
                    self.counts.super_frames += 1;
                    self.counts.super_frame_packets += n;
                }
                Err(Some(libc::EINTR)) => continue,
                Err(Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM)) => self.counts.no_room += n,
                Err(error) => {
                    self.counts.super_frames_refused += 1;
                    if let (Some(libc::EINVAL), Kind::Udp, Some(takes)) =
                        (error, whole.headers.kind, &mut self.takes)
                    {
                        takes.udp = false;
                    }
                    return 0;
                }
            }
            return whole.packets;
        }
    }
}

/// The kernel copies what it is handed, so that buffers are free at once.
impl Transmit for Sender {
    fn takes_unread(&self) -> bool {
        true
    }

    fn ethernet_only(&self) -> bool {
        true
    }

    fn tx(&mut self, cx: &mut Context<'_>, batch: &mut Batch) {
        let mut frames = batch.frames.as_slice();
        while let Some((frame, rest)) = frames.split_first() {
            let sent = self.send_super(cx.pool, frames);
            if sent > 0 {
                frames = frames.get(sent..).unwrap_or_default();
            } else {
                self.send(cx.data(frame));
                frames = rest;
            }
        }
        // Not dropped: should its payload wait here, it goes on waiting.
        batch.frames.iter().for_each(|frame| cx.pool.free_spliced(frame.buf));
        batch.clear();
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let counts = self.counts;
        visit("packets_sent", counts.packets);
        visit("bytes_sent", counts.bytes);
        visit("no_room", counts.no_room);
        visit("refused", counts.refused);
        visit("super_frames_sent", counts.super_frames);
        visit("packets_in_super_frames", counts.super_frame_packets);
        visit("super_frames_refused", counts.super_frames_refused);
        visit("packets_with_wrong_checksums", counts.wrong_checksums);
    }

    fn drops(&self) -> Drops {
        let mut drops = Drops::default();
        drops.add(DropReason::NotSent, self.counts.no_room + self.counts.refused);
        drops
    }

    fn is_gone(&self) -> bool {
        self.gone
    }

    fn finish(&mut self) -> Result<(), PortError> {
        Ok(self.port.gone().map_or(Ok(()), Err::<(), _>)?)
    }
}
