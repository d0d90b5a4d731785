//! The half of a port that packets come from: bursts from its queues, one after the other.

#![allow(unsafe_code)]

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use slipstream_core::batch::Arrivals;
use slipstream_core::frame::Frame;
use slipstream_core::interface::Interface;
use slipstream_core::pool::{PacketMeta, Pool};
use slipstream_core::source::{Came, LiveSource, Source, SourceError};
use slipstream_core::time::Nanos;

use crate::device::{Device, Options, Share};
use crate::error::DpdkError;
use crate::mempool::{Mempool, offset};
use crate::send::Sender;
use crate::sys::{self, BURST, ELSEWHERE, Mbuf, Memory, Place};

/// A capture is at its end when its device has had nothing so many times.
const EMPTY_AT_END: u32 = 8;

/// Receives.
#[derive(Debug)]
pub struct Receiver {
    device: Arc<Device>,
    memory: Memory,
    share: Share,
    /// This half's queues, and the place among them of the one that is asked first.
    queues: Box<[u16]>,
    next: usize,
    burst: usize,
    captured: bool,
    idle: u64,
    interface: [Interface; 1],
    sequence: u64,
    mbufs: Box<[Mbuf; BURST]>,
    places: Box<[Place; BURST]>,
    /// The time of the latest packet of a capture.
    latest: Nanos,
    backwards: u64,
    /// The run's pool is known to be the mempool.
    checked: bool,
    packets: u64,
    bytes: u64,
    copied: u64,
    /// Polls that brought nothing, there being no free mbuf.
    mempool_empty: u64,
}

impl Receiver {
    pub(crate) fn new(device: Arc<Device>, options: &Options) -> Result<Self, DpdkError> {
        let interface = Interface { link_number: 1, snap_len: 0, name: Some(device.name.clone()) };
        let mut this = Self {
            memory: device.memory,
            share: options.share,
            queues: device.queues(options.share),
            device,
            next: 0,
            burst: options.burst.clamp(1, BURST),
            captured: options.captured,
            idle: options.idle,
            interface: [interface],
            sequence: 0,
            mbufs: Box::new([Mbuf::NONE; BURST]),
            places: Box::new([Place::default(); BURST]),
            latest: Nanos(0),
            backwards: 0,
            checked: false,
            packets: 0,
            bytes: 0,
            copied: 0,
            mempool_empty: 0,
        };
        if this.captured && this.memory.find_time(this.device.port).is_err() {
            return Err(DpdkError::NoTimes(this.device.name.clone()));
        }
        Ok(this)
    }

    /// Receives up to `max` packets.
    fn receive(
        &mut self,
        pool: &mut Pool,
        arrivals: &mut Arrivals,
        max: usize,
        now: Option<Nanos>,
    ) -> Result<usize, SourceError> {
        // Buffers of packets that were freed are there for packets that come.
        if self.checked {
            pool.give_back()
        } else {
            self.check(pool)?
        }
        arrivals.first = self.sequence;
        let (max, mut n) = (max.min(self.burst), 0);
        for _ in 0..self.queues.len() {
            let Some(queue) = self.next_queue() else { break };
            let wanted = max - n;
            let (Some(mbufs), Some(places)) = (self.mbufs.get_mut(..wanted), self.places.get_mut(..wanted))
            else {
                break;
            };
            // SAFETY: the device is open with this queue, as long as this half has it; this is the only half
            // of its share, which the queue belongs to.
            let came = unsafe { sys::receive(self.device.port, queue, &self.memory, mbufs, places) };
            self.arrive(pool, arrivals, came, now);
            n += came;
            if n >= max {
                break;
            }
        }
        self.count(n);
        if n == 0 && now.is_some() {
            self.look_for_mbufs(pool);
        }
        Ok(n)
    }

    /// The queue whose turn it is.
    #[inline]
    fn next_queue(&mut self) -> Option<u16> {
        let queue = self.queues.get(self.next).copied();
        self.next = if self.next + 1 < self.queues.len() { self.next + 1 } else { 0 };
        queue
    }

    /// The first `came` packets of the lists arrive.
    #[inline]
    fn arrive(&mut self, pool: &mut Pool, arrivals: &mut Arrivals, came: usize, now: Option<Nanos>) {
        let Self { mbufs, places, memory, latest, backwards, bytes, copied, .. } = self;
        if let Some(now) = now {
            let here = places.iter().take(came).map(|place| match place.unit {
                // No packet begins there: it is not adopted.
                ELSEWHERE => (0, place.len),
                unit => (offset(unit), place.len),
            });
            let meta = |original_len| PacketMeta { original_len, interface: 0, time: now };
            arrivals.frames.reserve(came);
            let mut all = 0;
            pool.adopt_all(here, now, |pool, n, len, buf| {
                all += u64::from(len);
                let buf = match (buf, mbufs.get(n)) {
                    (Some(buf), _) => buf,
                    (None, Some(mbuf)) => {
                        *copied += 1;
                        // SAFETY: it has just been received, and was not adopted.
                        let copy = |to: &mut [u8]| unsafe { sys::copy_out(*mbuf, to) };
                        pool.insert_with(meta(len), len as usize, copy)
                    }
                    (None, None) => return,
                };
                arrivals.frames.push(Frame::unclassified(now, buf, len));
            });
            *bytes += all;
            return;
        }
        for (mbuf, place) in mbufs.iter().zip(places.iter()).take(came) {
            // SAFETY: it has just been received.
            let time = Nanos(unsafe { memory.time(*mbuf) }.saturating_mul(1000));
            *backwards += u64::from(time < *latest);
            *latest = time.max(*latest);
            let len = place.len;
            *bytes += u64::from(len);
            let meta = PacketMeta { original_len: len, interface: 0, time };
            let adopted =
                if place.unit == ELSEWHERE { None } else { pool.adopted(offset(place.unit), len, meta) };
            let buf = adopted.unwrap_or_else(|| {
                *copied += 1;
                // SAFETY: it has just been received, and was not adopted.
                pool.insert_with(meta, len as usize, |to| unsafe { sys::copy_out(*mbuf, to) })
            });
            arrivals.frames.push(Frame::unclassified(*latest, buf, len));
        }
    }

    /// Makes sure that the pool is the one that packets can be adopted by.
    #[cold]
    fn check(&mut self, pool: &mut Pool) -> Result<(), SourceError> {
        let memory = &self.memory;
        match pool.with_region(|mempool: &mut Mempool| mempool.is(memory)) {
            Some(true) => self.checked = true,
            _ => return Err(DpdkError::OtherPool.into()),
        }
        Ok(())
    }

    /// So many packets came.
    #[inline]
    fn count(&mut self, n: usize) {
        self.sequence += n as u64;
        self.packets += n as u64;
    }

    /// Nothing came: was that for want of mbufs? It is asked only where the pipeline has many.
    #[inline]
    fn look_for_mbufs(&mut self, pool: &Pool) {
        if pool.live() >= self.burst as u64 && self.memory.free_mbufs() < self.burst as u32 {
            self.mempool_empty += 1;
        }
    }
}

impl Source for Receiver {
    /// Packets of a capture, with its times. Drivers don't say that it is at its end: it is when nothing
    /// comes any more. It loses the packet that finds no mbuf, so that no more are asked for than find one;
    /// one in several mbufs may still be lost.
    fn fill(&mut self, pool: &mut Pool, arrivals: &mut Arrivals, max: usize) -> Result<usize, SourceError> {
        for _ in 0..EMPTY_AT_END {
            pool.give_back();
            // Only asking tells whether there is another packet, if none is free.
            let free = self.memory.free_mbufs().max(1) as usize;
            let n = self.receive(pool, arrivals, max.min(free), None)?;
            if n > 0 {
                return Ok(n);
            }
            if self.device.stats(self.share).no_mbuf > 0 {
                // Time passes by packets, so that what is held would never leave.
                return Err(DpdkError::NoMbufs(self.device.name.clone()).into());
            }
        }
        Ok(0)
    }

    fn interfaces(&self) -> &[Interface] {
        &self.interface
    }

    fn clock_backwards(&self) -> u64 {
        self.backwards
    }

    fn live(&mut self) -> Option<&mut dyn LiveSource> {
        if self.captured { None } else { Some(self) }
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let stats = self.device.stats(self.share);
        visit("packets_received", self.packets);
        visit("bytes_received", self.bytes);
        visit("copied", self.copied);
        visit("missed", stats.missed);
        visit("errors", stats.errors);
        visit("no_mbuf", stats.no_mbuf);
        visit("mempool_empty", self.mempool_empty);
        visit("queues", self.queues.len() as u64);
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
        self.receive(pool, arrivals, max, Some(now))
    }

    /// Mbufs go from device to device as they are.
    fn relay(
        &mut self,
        pool: &mut Pool,
        to: &mut dyn Any,
        max: usize,
        now: Nanos,
        came: &mut Vec<Came>,
    ) -> bool {
        let Some(to) = to.downcast_mut::<Sender>() else { return false };
        pool.give_back();
        // Burst after burst, as long as one of the queues may have more.
        let (mut n, mut empty) = (0, 0);
        while n < max && empty < self.queues.len() {
            let Some(queue) = self.next_queue() else { break };
            let wanted = self.burst.min(max - n);
            // SAFETY: as in `receive`.
            let relayed = unsafe { to.relay((self.device.port, queue), wanted) };
            let came = relayed.received as usize;
            empty = if came < wanted { empty + 1 } else { 0 };
            n += came;
            self.bytes += relayed.bytes_received;
        }
        self.count(n);
        if n == 0 {
            self.look_for_mbufs(pool);
        } else {
            came.push(Came { arrival: now, time: now, packets: n });
        }
        true
    }

    fn at_once(&self) -> usize {
        self.burst
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn patience(&self) -> Option<u64> {
        Some(self.idle).filter(|idle| *idle > 0)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.device.receives.leave(self.share.number);
    }
}
