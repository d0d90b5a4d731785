//! Packets on their way from one shard to another: copied into memory that both share, many at a time.
//!
//! The lock is taken once for all packets that a poll found for a shard, and once by that shard for all that
//! came since it looked last. A bell, which is a descriptor to sleep on, tells it that something came.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use slipstream_core::batch::Arrivals;
use slipstream_core::frame::Frame;
use slipstream_core::interface::Interface;
use slipstream_core::pool::{PacketMeta, Pool};
use slipstream_core::source::{LiveSource, Source, SourceError};
use slipstream_core::time::Nanos;

/// Bytes that wait at most; what comes beyond is dropped and counted.
const MOST_BYTES: usize = 16 << 20;

/// A packet among the bytes.
#[derive(Clone, Copy, Debug)]
struct Parcel {
    arrival: Nanos,
    meta: PacketMeta,
    len: u32,
}

/// Packets, their bytes one behind the other.
#[derive(Debug, Default)]
pub(super) struct Parcels {
    parcels: Vec<Parcel>,
    bytes: Vec<u8>,
}

impl Parcels {
    /// Adds a copy of a packet.
    pub(super) fn add(&mut self, arrival: Nanos, meta: PacketMeta, data: &[u8]) {
        self.parcels.push(Parcel { arrival, meta, len: data.len() as u32 });
        self.bytes.extend_from_slice(data);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parcels.is_empty()
    }

    fn clear(&mut self) {
        self.parcels.clear();
        self.bytes.clear();
    }
}

/// The box of one shard, for packets of one source, which all others may put some into.
#[derive(Debug)]
pub(super) struct Mailbox {
    waiting: Mutex<Parcels>,
    /// Something was put in since its owner looked.
    full: AtomicBool,
    bell: OwnedFd,
    /// Sources that may still put something in.
    senders: AtomicUsize,
}

impl Mailbox {
    /// For so many senders.
    pub(super) fn new(senders: usize) -> std::io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let (waiting, full) = (Mutex::default(), AtomicBool::new(false));
        Ok(Self { waiting, full, bell, senders: AtomicUsize::new(senders) })
    }

    /// Moves packets into the box; returns how many found no room and are lost.
    pub(super) fn put(&self, from: &mut Parcels) -> u64 {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.bytes.len() + from.bytes.len() > MOST_BYTES {
            let lost = from.parcels.len() as u64;
            from.clear();
            return lost;
        }
        waiting.parcels.append(&mut from.parcels);
        waiting.bytes.append(&mut from.bytes);
        drop(waiting);
        // First the bell, then the word: who sees the word finds the bell to silence.
        self.ring();
        self.full.store(true, Ordering::Release);
        0
    }

    /// One sender has nothing more to send.
    pub(super) fn close(&self) {
        self.senders.fetch_sub(1, Ordering::AcqRel);
        self.ring();
        self.full.store(true, Ordering::Release);
    }

    fn ring(&self) {
        // A bell that can't be rung any louder has been heard.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Everything that has come; false if nothing has.
    fn take(&self, to: &mut Parcels) -> bool {
        if !self.full.swap(false, Ordering::AcqRel) {
            return false;
        }
        let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
        std::mem::swap(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner), to);
        true
    }
}

/// The way out of a mailbox: a source of its shard.
#[derive(Debug)]
pub(super) struct Inbox {
    mailbox: Arc<Mailbox>,
    taken: Parcels,
    /// Packets and bytes of these that went in already.
    at: (usize, usize),
    interface: [Interface; 1],
    last: Nanos,
    sequence: u64,
    packets: u64,
    ended: bool,
}

impl Inbox {
    pub(super) fn new(mailbox: Arc<Mailbox>, name: &str) -> Self {
        let interface = Interface { link_number: 1, snap_len: 0, name: Some(name.to_owned()) };
        let (taken, at, last) = (Parcels::default(), (0, 0), Nanos(0));
        Self { mailbox, taken, at, interface: [interface], last, sequence: 0, packets: 0, ended: false }
    }
}

impl LiveSource for Inbox {
    fn poll(
        &mut self,
        pool: &mut Pool,
        arrivals: &mut Arrivals,
        max: usize,
        now: Nanos,
    ) -> Result<usize, SourceError> {
        if self.at.0 >= self.taken.parcels.len() {
            self.taken.clear();
            self.at = (0, 0);
            let closed = self.mailbox.senders.load(Ordering::Acquire) == 0;
            if !self.mailbox.take(&mut self.taken) {
                self.ended = closed;
                return Ok(0);
            }
        }
        arrivals.first = self.sequence;
        let mut n = 0;
        for parcel in self.taken.parcels.iter().skip(self.at.0).take(max) {
            let end = self.at.1 + parcel.len as usize;
            let data = self.taken.bytes.get(self.at.1..end).unwrap_or_default();
            self.last = parcel.arrival.min(now).max(self.last);
            let buf = pool.insert(PacketMeta { interface: 0, ..parcel.meta }, data);
            arrivals.frames.push(Frame::unclassified(self.last, buf, parcel.len));
            self.at = (self.at.0 + 1, end);
            n += 1;
        }
        (self.sequence, self.packets) = (self.sequence + n as u64, self.packets + n as u64);
        Ok(n)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.mailbox.bell.as_fd())
    }

    fn ended(&self) -> bool {
        self.ended
    }

    /// Others may still have packets for this shard.
    fn part(&mut self) -> bool {
        !self.ended
    }
}

impl Source for Inbox {
    fn fill(&mut self, _: &mut Pool, _: &mut Arrivals, _: usize) -> Result<usize, SourceError> {
        Ok(0)
    }

    fn interfaces(&self) -> &[Interface] {
        &self.interface
    }

    fn live(&mut self) -> Option<&mut dyn LiveSource> {
        Some(self)
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        visit("from_other_shards", self.packets);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_several_senders_come_out_once_each_and_in_their_order() {
        const EACH: u32 = 20_000;
        let mailbox = Arc::new(Mailbox::new(2).unwrap());
        let send = |sender: u8| {
            let mailbox = Arc::clone(&mailbox);
            move || {
                let mut parcels = Parcels::default();
                for number in 0..EACH {
                    let meta = PacketMeta { original_len: 5, interface: 0, time: Nanos(1) };
                    let mut data = vec![sender];
                    data.extend(number.to_be_bytes());
                    parcels.add(Nanos(u64::from(number)), meta, &data);
                    if number % 7 == 0 {
                        assert_eq!(mailbox.put(&mut parcels), 0);
                    }
                }
                mailbox.put(&mut parcels);
                mailbox.close();
            }
        };
        let threads: Vec<_> = [0, 1].map(|n| std::thread::spawn(send(n))).into();
        let (mut inbox, mut pool, mut arrivals) =
            (Inbox::new(Arc::clone(&mailbox), "in"), Pool::new(), Arrivals::default());
        let mut next = [0u32; 2];
        while !inbox.ended() {
            inbox.poll(&mut pool, &mut arrivals, 100, Nanos(u64::MAX / 2)).unwrap();
            for frame in arrivals.frames.drain(..) {
                let data = pool.data(frame.buf, frame.len);
                let sender = usize::from(data[0]);
                assert_eq!(u32::from_be_bytes(*data[1..].first_chunk().unwrap()), next[sender]);
                next[sender] += 1;
                pool.free(frame.buf);
            }
        }
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!((next, pool.live()), ([EACH; 2], 0));
    }

    #[test]
    fn a_full_box_takes_no_more_and_says_so() {
        let mailbox = Mailbox::new(1).unwrap();
        let meta = PacketMeta { original_len: 0, interface: 0, time: Nanos(1) };
        let mut parcels = Parcels::default();
        parcels.add(Nanos(0), meta, &vec![0; MOST_BYTES]);
        assert_eq!(mailbox.put(&mut parcels), 0);
        parcels.add(Nanos(0), meta, &[1]);
        parcels.add(Nanos(0), meta, &[2]);
        assert_eq!((mailbox.put(&mut parcels), parcels.is_empty()), (2, true));
    }
}
