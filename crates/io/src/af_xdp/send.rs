//! The way out: packets leave from where they lie in the pool's memory.

use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use slipstream_core::batch::Batch;
use slipstream_core::pool::{BufId, Pool, Region};
use slipstream_core::port::{PortError, Transmit};
use slipstream_core::stage::{Context, DropReason, Drops};
use slipstream_core::time::Nanos;

use super::ring::Ring;
use super::sys::Socket;
use super::umem::UmemRegion;
use super::{OVERHEAD, Port};
use crate::af_packet::InterfaceInfo;

/// Time to wait for room before the next try, and the most tries in one batch; then packets are dropped.
const WAIT: Duration = Duration::from_micros(100);
const WAITS: u32 = 50;
/// Bytes of the shortest frame: its header.
const SHORTEST: u32 = 14;
/// Interval of looks at the interface's MTU, in ns.
const LOOK_EVERY: u64 = 100_000_000;
/// When to look after packets that the kernel has not taken, and after such as are on their way, in ns.
const SOON: u64 = 100_000;
const LATER: u64 = 10_000_000;
/// Free buffers that are kept at hand.
const AT_HAND: usize = 64;

/// Sends frames by an interface.
#[derive(Debug)]
pub struct Sender {
    port: Arc<Port>,
    socket: Arc<Socket>,
    transmit: Ring<libc::xdp_desc>,
    completion: Ring<u64>,
    zero_copy: bool,
    /// True if the pool has adopted the memory; none: it was not asked yet.
    adopted: Option<bool>,
    /// Packets that the kernel has, or that are in the ring.
    in_flight: u32,
    /// The kernel has not taken everything from the ring.
    left: bool,
    /// The interface was down at the last try.
    down: bool,
    /// The interface was taken away.
    gone: bool,
    longest: u32,
    looked: Nanos,
    now: Nanos,
    /// Free buffers, for packets that lie elsewhere.
    spare: Vec<u32>,
    counts: SendCounts,
}

/// Counters of a [`Sender`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendCounts {
    /// Packets that left.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that had to be copied into the memory first.
    pub copied: u64,
    /// Packets that the interface takes for too long (its MTU), or that are shorter than a header.
    pub too_long: u64,
    /// Packets for which no room was found in time.
    pub no_room: u64,
    /// Packets that the interface can't send, such as while it is down.
    pub refused: u64,
    /// Times that it waited for room.
    pub waits: u64,
}

impl SendCounts {
    fn not_sent(&self) -> u64 {
        self.too_long + self.no_room + self.refused
    }
}

impl Sender {
    pub(super) fn new(
        port: Arc<Port>,
        socket: Arc<Socket>,
        transmit: Ring<libc::xdp_desc>,
        completion: Ring<u64>,
        info: &InterfaceInfo,
    ) -> Self {
        let zero_copy = socket.zero_copy();
        Self {
            port,
            socket,
            transmit,
            completion,
            zero_copy,
            adopted: None,
            in_flight: 0,
            left: false,
            down: false,
            gone: false,
            longest: info.mtu + OVERHEAD,
            looked: Nanos(0),
            now: Nanos(0),
            spare: Vec::with_capacity(2 * AT_HAND),
            counts: SendCounts::default(),
        }
    }

    /// The counters.
    #[must_use]
    pub fn counts(&self) -> SendCounts {
        self.counts
    }

    fn look_around(&mut self, pool: &mut Pool) {
        if self.adopted.is_none() {
            let umem = &self.port.umem;
            self.adopted = Some(pool.with_region(|region: &mut UmemRegion| region.is(umem)).unwrap_or(false));
        }
        if self.now.since(self.looked) >= LOOK_EVERY {
            self.looked = self.now;
            if let Some(info) = self.port.info() {
                self.longest = info.mtu + OVERHEAD;
            }
        }
    }

    /// Gives the buffers of packets that have left back; returns how many.
    fn reap(&mut self) -> u64 {
        if self.in_flight == 0 {
            return 0;
        }
        let done = self.completion.usable(self.in_flight);
        if done > 0 {
            let mut free = self.port.umem.free();
            for _ in 0..done {
                free.extend(self.completion.pop().and_then(|address| self.port.umem.number(address)));
            }
            drop(free);
            self.completion.publish();
            self.in_flight -= done;
        }
        u64::from(done)
    }

    /// Shows the kernel what is in the ring, and has it take that.
    fn kick(&mut self) {
        self.transmit.publish();
        self.left = false;
        if !self.transmit.needs_wakeup() {
            return;
        }
        let mut unread = self.transmit.unread();
        if unread == 0 && self.down {
            // A thread that waits for packets has the kernel send, too: so the ring may be empty, and the
            // interface up again.
            self.down = self.socket.wake_to_send().is_err();
        }
        while unread > 0 {
            let result = self.socket.wake_to_send();
            let before = unread;
            unread = self.transmit.unread();
            match result.map_err(|error| error.raw_os_error()) {
                // Nothing gets on, such as when the interface has lost the queue.
                Ok(()) if unread >= before => break,
                Ok(()) => self.down = false,
                // So many at a time: it goes on as long as it gets on.
                Err(Some(libc::EAGAIN | libc::EINTR)) if unread < before => self.down = false,
                // The kernel took a packet, and the queue behind had no room for it.
                Err(Some(libc::EBUSY)) if unread < before && !self.zero_copy => {
                    self.take_back(unread, 1);
                }
                Err(Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV)) => {
                    self.down = true;
                    self.gone = self.gone || self.port.gone().is_some();
                    break;
                }
                Err(_) => break,
            }
            if self.zero_copy {
                break;
            }
        }
        self.left = unread > 0 && !self.zero_copy;
    }

    /// So many packets, behind which others were put into the ring, have not left after all.
    #[cold]
    fn take_back(&mut self, others: u32, packets: u32) {
        let ago = (1..=packets).map(|n| others.saturating_add(n));
        let bytes: u64 = ago.filter_map(|ago| self.transmit.written(ago)).map(|p| u64::from(p.len)).sum();
        self.counts.refused += u64::from(packets);
        self.counts.packets = self.counts.packets.saturating_sub(packets.into());
        self.counts.bytes = self.counts.bytes.saturating_sub(bytes);
    }

    /// Waits for a place in the ring; returns true if there is one.
    fn make_room(&mut self, waits: &mut u32) -> bool {
        loop {
            self.kick();
            self.reap();
            if self.transmit.usable(1) > 0 {
                return true;
            }
            if *waits == 0 || self.down {
                return false;
            }
            *waits -= 1;
            self.counts.waits += 1;
            self.pause(WAIT);
        }
    }

    fn pause(&self, time: Duration) {
        let mut fds = [PollFd::from_borrowed_fd(self.socket.fd(), PollFlags::OUT)];
        let pause = Timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
        // A socket that is ready at once may have been so before.
        if matches!(poll(&mut fds, Some(&pause)), Ok(n) if n > 0) {
            let _ = poll(&mut [], Some(&pause));
        }
    }

    /// The place of a packet in the memory, which is the kernel's from now on; none where there is no room
    /// for a copy.
    fn place(&mut self, pool: &mut Pool, buf: BufId, len: u32) -> Option<usize> {
        if self.adopted == Some(true)
            && pool.offset(buf).is_some_and(|offset| self.port.umem.in_one(offset, len as usize))
            && let Some(offset) = pool.let_go(buf)
        {
            return Some(offset);
        }
        if self.spare.is_empty() {
            pool.give_back();
            if self.port.umem.free().is_empty() {
                // Those of packets that have left.
                self.kick();
                self.reap();
            }
            let mut free = self.port.umem.free();
            let from = free.len() - free.len().min(AT_HAND);
            self.spare.extend(free.drain(from..));
        }
        let number = self.spare.pop();
        // SAFETY: the buffer was on the list of free ones, and is this port's now.
        let offset = number.and_then(|number| unsafe { self.port.umem.write(number, pool.data(buf, len)) });
        match offset {
            Some(_) => {
                self.counts.copied += 1;
                // Not dropped: should its payload wait here, it goes on waiting.
                pool.free_spliced(buf);
            }
            None => {
                self.spare.extend(number);
                pool.free(buf);
            }
        }
        offset
    }
}

impl Transmit for Sender {
    fn takes_unread(&self) -> bool {
        true
    }

    fn ethernet_only(&self) -> bool {
        true
    }

    fn tx(&mut self, cx: &mut Context<'_>, batch: &mut Batch) {
        self.now = cx.now;
        self.look_around(cx.pool);
        if self.down {
            self.kick();
        }
        let mut waits = WAITS;
        for frame in &batch.frames {
            if frame.len > self.longest || frame.len < SHORTEST {
                self.counts.too_long += 1;
                cx.pool.free(frame.buf);
                continue;
            }
            if self.down {
                self.counts.refused += 1;
                cx.pool.free(frame.buf);
                continue;
            }
            if self.transmit.usable(1) == 0 && !self.make_room(&mut waits) {
                self.counts.no_room += 1;
                cx.pool.free(frame.buf);
                continue;
            }
            let Some(offset) = self.place(cx.pool, frame.buf, frame.len) else {
                self.counts.no_room += 1;
                continue;
            };
            self.transmit.push(libc::xdp_desc { addr: offset as u64, len: frame.len, options: 0 });
            self.in_flight += 1;
            self.counts.packets += 1;
            self.counts.bytes += u64::from(frame.len);
        }
        batch.clear();
        self.kick();
    }

    fn complete(&mut self, _: &mut Pool) -> u64 {
        self.reap()
    }

    fn in_flight(&self) -> u64 {
        self.in_flight.into()
    }

    fn next_look(&self) -> Nanos {
        match (self.left, self.in_flight) {
            (true, _) => self.now.after(if self.down { LATER } else { SOON }),
            (false, 0) => Nanos::MAX,
            (false, _) => self.now.after(LATER),
        }
    }

    fn look(&mut self, cx: &mut Context<'_>) {
        self.now = cx.now;
        self.kick();
        self.reap();
    }

    fn drain(&mut self, cx: &mut Context<'_>) {
        self.now = cx.now;
        for _ in 0..10 * WAITS {
            self.kick();
            self.reap();
            if self.in_flight == 0 || self.down {
                break;
            }
            self.pause(2 * WAIT);
        }
        // The rest goes with the socket.
        let lost = std::mem::take(&mut self.in_flight);
        self.take_back(0, lost);
        self.left = false;
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let SendCounts { packets, bytes, copied, too_long, no_room, refused, waits } = self.counts;
        visit("packets_sent", packets);
        visit("bytes_sent", bytes);
        visit("copied", copied);
        visit("too_long", too_long);
        visit("no_room", no_room);
        visit("refused", refused);
        visit("waits_for_room", waits);
        visit("in_flight", self.in_flight());
        visit("zero_copy", u64::from(self.zero_copy));
    }

    fn drops(&self) -> Drops {
        let mut drops = Drops::default();
        drops.add(DropReason::NotSent, self.counts.not_sent());
        drops
    }

    fn region(&mut self) -> Option<Box<dyn Region>> {
        self.port.umem.region()
    }

    fn is_gone(&self) -> bool {
        self.gone
    }

    fn finish(&mut self) -> Result<(), PortError> {
        Ok(self.port.gone().map_or(Ok(()), Err::<(), _>)?)
    }
}
