//! The way in: packets that the kernel put into the pool's memory.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll;
use slipstream_core::batch::Arrivals;
use slipstream_core::clock::LiveClock;
use slipstream_core::frame::Frame;
use slipstream_core::interface::Interface;
use slipstream_core::pool::{PacketMeta, Pool, Region};
use slipstream_core::source::{LiveSource, Source, SourceError};
use slipstream_core::time::Nanos;

use super::program::{MARK, STAMP};
use super::ring::Ring;
use super::sys::Socket;
use super::umem::{Umem, UmemRegion};
use super::{Options, Port, XdpError, checksum};

/// Interval of looks at the socket's error, in ns.
const LOOK_EVERY: u64 = 100_000_000;
/// Packets whose stamps are asked for before they are read.
const AHEAD: u32 = 8;
/// Buffers that are put into a fill ring at once at least.
const REFILL: u32 = 64;

/// A queue of the interface, with its socket.
#[derive(Debug)]
pub(super) struct Queue {
    number: u32,
    socket: Arc<Socket>,
    receive: Ring<libc::xdp_desc>,
    fill: Ring<u64>,
    /// Buffers in the fill ring when the kernel has taken none, at most.
    size: u32,
    /// Few buffers are free: packets are copied elsewhere, so that theirs are free again.
    scarce: bool,
}

impl Queue {
    /// A queue whose fill ring is full: packets may come as soon as the program stands on the interface.
    pub(super) fn new(
        number: u32,
        socket: Arc<Socket>,
        receive: Ring<libc::xdp_desc>,
        mut fill: Ring<u64>,
        umem: &Umem,
    ) -> Self {
        let size = fill.usable(u32::MAX);
        let mut this = Self { number, socket, receive, fill, size, scarce: false };
        this.refill(umem);
        this
    }

    /// Puts free buffers into the fill ring, up to its size, if that is worth it.
    fn refill(&mut self, umem: &Umem) {
        let room = self.fill.usable(self.size);
        if room < REFILL.min(self.size / 4) && !self.scarce {
            return;
        }
        let mut free = umem.free();
        let from = free.len() - free.len().min(room as usize);
        for number in free.drain(from..).rev() {
            self.fill.push(umem.address(number));
        }
        // Were all buffers taken by packets that are held, none could come in any more.
        self.scarce = free.len() < self.size as usize / 4;
        drop(free);
        self.fill.publish();
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }
}

/// Packets as an interface receives them.
#[derive(Debug)]
pub struct Receiver {
    port: Arc<Port>,
    queues: Vec<Queue>,
    /// The queue that is asked first.
    turn: usize,
    /// Tells of packets in any queue, where there are several.
    any: Option<OwnedFd>,
    interface: [Interface; 1],
    clock: LiveClock,
    /// True if the pool has adopted the memory; none: it was not asked yet.
    adopted: Option<bool>,
    checksums: bool,
    busy_poll: bool,
    looked: Nanos,
    last: Nanos,
    sequence: u64,
    counts: Counts,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    bytes: u64,
    copied: u64,
    stamped: u64,
    checksums: u64,
    odd: u64,
}

impl Receiver {
    pub(super) fn new(port: Arc<Port>, queues: Vec<Queue>, options: &Options) -> io::Result<Self> {
        let mut any = None;
        if queues.len() > 1 {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            for queue in &queues {
                let data = epoll::EventData::new_u64(queue.number.into());
                epoll::add(&epoll, queue.socket.fd(), data, epoll::EventFlags::IN)?;
            }
            any = Some(epoll);
        }
        let interface = Interface { link_number: 1, snap_len: 0, name: Some(port.name.clone()) };
        let mut this = Self {
            port,
            queues,
            turn: 0,
            any,
            interface: [interface],
            clock: LiveClock::get(),
            adopted: None,
            checksums: options.checksums,
            busy_poll: options.busy_poll,
            looked: Nanos(0),
            last: Nanos(0),
            sequence: 0,
            counts: Counts::default(),
        };
        this.refill();
        Ok(this)
    }

    /// Once in a while: is the interface still there?
    fn look_around(&mut self, now: Nanos) -> Result<(), XdpError> {
        if self.looked != Nanos(0) && now.since(self.looked) < LOOK_EVERY {
            return Ok(());
        }
        self.looked = now;
        for queue in &self.queues {
            // An interface that is down may come up again; one that is gone doesn't come back.
            queue.socket.take_error().map_err(XdpError::of(&self.port.name, "asking for errors"))?;
        }
        self.port.gone().map_or(Ok(()), Err)
    }

    /// Puts free buffers into the fill rings, and has drivers that sleep take them.
    fn refill(&mut self) {
        for queue in &mut self.queues {
            queue.refill(&self.port.umem);
            if self.busy_poll || queue.fill.needs_wakeup() {
                queue.socket.wake_to_receive();
            }
        }
    }

    /// Appends up to `max` packets of a queue.
    fn take(&mut self, at: usize, pool: &mut Pool, arrivals: &mut Arrivals, max: usize, now: Nanos) -> usize {
        let Self { port, queues, clock, counts, last, checksums, .. } = self;
        let Some(queue) = queues.get_mut(at) else { return 0 };
        let umem = &port.umem;
        let adopted = self.adopted == Some(true) && !queue.scarce;
        let ready = queue.receive.usable(max as u32);
        let mut n = 0;
        // Another core wrote what stands before a packet: to fetch it takes longer than all else here.
        let ask = |receive: &Ring<libc::xdp_desc>, entries: u32| {
            if let Some(packet) = receive.peek(entries) {
                umem.prefetch((packet.addr as usize).saturating_sub(STAMP));
            }
        };
        (0..ready.min(AHEAD)).for_each(|entries| ask(&queue.receive, entries));
        for _ in 0..ready {
            ask(&queue.receive, AHEAD);
            let Some(packet) = queue.receive.pop() else { break };
            let (offset, len) = (packet.addr as usize, packet.len);
            // SAFETY: the buffer is this port's from the moment at which its entry was read.
            let stamp = unsafe { umem.read(offset.saturating_sub(STAMP), STAMP) }.and_then(stamp);
            let arrival = stamp.map_or(now, |ns| clock.at_monotonic(ns)).min(now).max(*last);
            let meta = PacketMeta { original_len: len, interface: 0, time: arrival };
            counts.stamped += u64::from(stamp.is_some());
            let in_place = if adopted && umem.in_one(offset, len as usize) {
                pool.adopted(offset, len, meta)
            } else {
                None
            };
            let buf = match in_place {
                Some(buf) => buf,
                None => {
                    // SAFETY: as above; the buffer goes back only when the packet was copied.
                    let Some(data) = (unsafe { umem.read(offset, len as usize) }) else {
                        counts.odd += 1;
                        continue;
                    };
                    let buf = pool.insert(meta, data);
                    counts.copied += 1;
                    if let Some(number) = umem.number(packet.addr) {
                        umem.free().push(number);
                    }
                    buf
                }
            };
            if *checksums {
                counts.checksums += u64::from(checksum::complete(pool.data_mut(buf, len)));
            }
            arrivals.frames.push(Frame::unclassified(arrival, buf, len));
            counts.bytes += u64::from(len);
            *last = arrival;
            n += 1;
        }
        if ready > 0 {
            queue.receive.publish();
        }
        n
    }
}

/// The time that the program wrote before a packet, in ns of the monotonic clock.
fn stamp(bytes: &[u8]) -> Option<u64> {
    let (time, mark) = bytes.split_first_chunk::<8>()?;
    (*mark == MARK.to_ne_bytes()).then(|| u64::from_ne_bytes(*time))
}

impl LiveSource for Receiver {
    fn poll(
        &mut self,
        pool: &mut Pool,
        arrivals: &mut Arrivals,
        max: usize,
        now: Nanos,
    ) -> Result<usize, SourceError> {
        self.look_around(now)?;
        if self.adopted.is_none() {
            let umem = &self.port.umem;
            self.adopted = Some(pool.with_region(|region: &mut UmemRegion| region.is(umem)).unwrap_or(false));
        }
        arrivals.first = self.sequence;
        let mut n = 0;
        for at in 0..self.queues.len() {
            n += self.take((self.turn + at) % self.queues.len(), pool, arrivals, max - n, now);
        }
        // Another one is the first to be asked next time, so that a full queue doesn't starve the others.
        self.turn = (self.turn + 1) % self.queues.len().max(1);
        if n > 0 || self.queues.iter().any(|queue| queue.scarce) {
            pool.give_back();
        }
        self.refill();
        self.sequence += n as u64;
        Ok(n)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.any {
            // Only asking has the driver look.
            _ if self.busy_poll => None,
            Some(epoll) => Some(epoll.as_fd()),
            None => self.queues.first().map(|queue| queue.socket.fd()),
        }
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
        let Counts { bytes, copied, stamped, checksums, odd } = self.counts;
        let (mut dropped, mut ring_full, mut no_buffer, mut too_long) = (0, 0, 0, 0);
        for queue in &self.queues {
            let Ok(statistics) = queue.socket.statistics() else { continue };
            // Where the kernel copies, it drops what finds no buffer, each of which it counts as such, and
            // what fits none.
            let long = statistics.rx_dropped.saturating_sub(statistics.rx_fill_ring_empty_descs);
            let long = if queue.socket.zero_copy() { 0 } else { long };
            dropped += statistics.rx_dropped - long + statistics.rx_ring_full;
            ring_full += statistics.rx_ring_full;
            no_buffer += statistics.rx_fill_ring_empty_descs;
            too_long += long;
        }
        let left = self.queues.iter().map(|queue| self.port.program.left_to_kernel(queue.number)).sum();
        visit("bytes", bytes);
        visit("left_to_kernel", left);
        visit("dropped_by_kernel", dropped);
        visit("too_long", too_long);
        visit("ring_full", ring_full);
        visit("no_buffer", no_buffer);
        visit("copied", copied);
        visit("stamped_by_kernel", stamped);
        visit("checksums_filled_in", checksums);
        visit("odd_descriptors", odd);
        let waiting = self.queues.iter().map(|queue| u64::from(queue.receive.waiting())).sum();
        visit("left_in_ring", waiting);
        visit("queues", self.queues.len() as u64);
        visit("native", u64::from(self.port.program.is_native()));
        visit("zero_copy", u64::from(self.queues.iter().all(|queue| queue.socket.zero_copy())));
    }

    fn region(&mut self) -> Option<Box<dyn Region>> {
        self.port.umem.region()
    }
}
