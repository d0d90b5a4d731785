//! The way out: packets that the machine receives by the interface.

use std::sync::Arc;

use slipstream_core::batch::Batch;
use slipstream_core::port::{PortError, Transmit};
use slipstream_core::stage::{Context, DropReason, Drops};

use super::Port;

/// Hands frames to the machine.
#[derive(Debug)]
pub struct Sender {
    port: Arc<Port>,
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
}

impl Sender {
    pub(super) fn new(port: Arc<Port>) -> Self {
        Self { port, counts: SendCounts::default() }
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
                Err(_) => self.counts.refused += 1,
            }
            return;
        }
    }
}

/// The kernel copies what it is handed, so that buffers are free at once.
impl Transmit for Sender {
    fn tx(&mut self, cx: &mut Context<'_>, batch: &mut Batch) {
        for frame in &batch.frames {
            self.send(cx.data(frame));
            cx.pool.free(frame.buf);
        }
        batch.clear();
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let SendCounts { packets, bytes, no_room, refused } = self.counts;
        visit("packets_sent", packets);
        visit("bytes_sent", bytes);
        visit("no_room", no_room);
        visit("refused", refused);
    }

    fn drops(&self) -> Drops {
        let mut drops = Drops::default();
        drops.add(DropReason::NotSent, self.counts.no_room + self.counts.refused);
        drops
    }

    fn finish(&mut self) -> Result<(), PortError> {
        Ok(self.port.gone().map_or(Ok(()), Err::<(), _>)?)
    }
}
