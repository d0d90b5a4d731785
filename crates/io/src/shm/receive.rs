//! The way in of a side: packets out of the ring, as a source.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::error::ShmError;
use super::parked::{DROPS, MARK, MOST, Mark, Parked, SLICED};
use super::ring::{Consumer, Damage, Record, room_for};
use super::session::{Peer, Session};
use slipstream_core::batch::Arrivals;
use slipstream_core::frame::Frame;
use slipstream_core::interface::Interface;
use slipstream_core::pool::{PacketMeta, Pool};
use slipstream_core::source::{LiveSource, Source, SourceError};
use slipstream_core::time::Nanos;

/// Interfaces of the other process that can be told apart.
const MOST_INTERFACES: usize = 4096;
/// Silence, in ns, after which the state of the other side is checked, and the interval of further checks.
const ASK: u64 = 10_000_000;
/// Polls without packets after which the thread may sleep a little, and how long at least and at most, in ns.
const EMPTY: u32 = 2000;
const NAP: u64 = 50_000;
const LONGEST_NAP: u64 = 1_000_000;
/// In between it sleeps for this part of the time that nothing has come for: a side that is at rest takes
/// next to no CPU time, and what ends the silence waits for less than a hundredth of it.
const NAP_OF_SILENCE: u64 = 128;

/// The receiving end of a side.
#[derive(Debug)]
pub struct Receiver {
    session: Arc<Session>,
    consumer: Consumer,
    /// The list by which the other side is told of dropped packets whose payloads wait there.
    parked: Option<Arc<Parked>>,
    /// The last owner of such a payload there, and its number here.
    owner: Option<(u32, u32)>,
    interfaces: Vec<Interface>,
    /// Number and link type of the interfaces at the other side, in the order of `interfaces`.
    known: Vec<(u32, u32)>,
    /// Place among them of the one that a packet came from last.
    last: usize,
    counts: Counts,
    /// Polls since the last packet, when the first of them was, and how long before the last one, in ns.
    empty: u32,
    silent_since: Nanos,
    silence: u64,
    ask: Nanos,
    /// Time to wait for the other process, and the start of the wait.
    wait_ns: Option<u64>,
    since: Option<Nanos>,
    ended: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    packets: u64,
    bytes: u64,
    ring_bytes: u64,
    /// Packets that were dropped at the other side while their payloads waited here.
    drops: u64,
}

impl Receiver {
    pub(super) fn new(
        session: Arc<Session>,
        consumer: Consumer,
        parked: Option<Arc<Parked>>,
        wait_ns: Option<u64>,
    ) -> Self {
        Self {
            session,
            consumer,
            parked,
            owner: None,
            interfaces: Vec::new(),
            known: Vec::new(),
            last: 0,
            counts: Counts::default(),
            empty: 0,
            silent_since: Nanos(0),
            silence: 0,
            ask: Nanos(0),
            wait_ns,
            since: None,
            ended: false,
        }
    }

    /// The number here of an interface there.
    fn interface(&mut self, number: u32, link: u32) -> Result<u32, ShmError> {
        let wanted = (number, link);
        if self.known.get(self.last) != Some(&wanted) {
            self.last = match self.known.iter().position(|k| *k == wanted) {
                Some(place) => place,
                None if self.known.len() == MOST_INTERFACES => {
                    let damage = Damage("it names more interfaces than there can be");
                    return Err(self.session.damaged(damage));
                }
                None => {
                    let name = Some(format!("{} {number}", self.session.name()));
                    self.interfaces.push(Interface { link_number: link, snap_len: 0, name });
                    self.known.push(wanted);
                    self.known.len() - 1
                }
            };
        }
        Ok(self.last as u32)
    }

    /// Takes up to `max` packets out of the ring.
    fn take(&mut self, pool: &mut Pool, arrivals: &mut Arrivals, max: usize) -> Result<usize, ShmError> {
        let (mut n, mut last) = (0, Nanos(0));
        while n < max {
            let record = match self.consumer.next() {
                Ok(Some(record)) => record,
                Ok(None) => break,
                Err(damage) => return Err(self.session.damaged(damage)),
            };
            if record.interface & DROPS != 0 {
                self.take_drops(pool, record.len)?;
                continue;
            }
            let mark = self.mark(&record)?;
            let len = record.len - if record.interface & SLICED != 0 { MARK as u32 } else { 0 };
            let interface = self.interface(record.interface & !SLICED, record.link)?;
            let whose = mark.and_then(|mark| Some((self.owner_here(mark.owner)?, mark.token)));
            // A token that stands for no payload is told apart only while its packet is known as sliced.
            let least = if mark.is_some() && whose.is_none() { len } else { 0 };
            let original_len = record.original_len.max(least);
            let meta = PacketMeta { original_len, interface, time: Nanos(record.time) };
            let fill = |to: &mut [u8]| self.consumer.read(0, to);
            let buf = match whose {
                Some((owner, token)) => pool.insert_sliced_with(meta, len as usize, (owner, token), fill),
                None => pool.insert_with(meta, len as usize, fill),
            };
            // Packets that others held may come behind later ones.
            last = last.max(Nanos(record.arrival));
            arrivals.frames.push(Frame::unclassified(last, buf, len));
            self.consumer.pass(record.len);
            self.counts.packets += 1;
            self.counts.bytes += u64::from(len);
            self.counts.ring_bytes += room_for(record.len as usize);
            n += 1;
        }
        self.consumer.give_back();
        Ok(n)
    }

    /// The mark that follows a sliced packet, if this is one.
    fn mark(&self, record: &Record) -> Result<Option<Mark>, ShmError> {
        if record.interface & SLICED == 0 {
            return Ok(None);
        }
        let from = (record.len as usize).checked_sub(MARK);
        let from = from.ok_or_else(|| self.session.damaged(Damage("a sliced packet has no mark")))?;
        let mut bytes = [0; MARK];
        self.consumer.read(from, &mut bytes);
        Ok(Some(Mark::from_bytes(bytes)))
    }

    /// The number here of the owner of a payload there, where it is to be told what became of the packet.
    fn owner_here(&mut self, there: u32) -> Option<u32> {
        match self.owner {
            Some((known, here)) if known == there => Some(here),
            _ => {
                let here = self.parked.as_ref()?.owner(there)?;
                self.owner = Some((there, here));
                Some(here)
            }
        }
    }

    /// The packets of these payloads were dropped at the other side: their owners learn it as if they had
    /// been dropped here.
    fn take_drops(&mut self, pool: &mut Pool, len: u32) -> Result<(), ShmError> {
        let len = len as usize;
        if len == 0 || len > MOST * MARK || !len.is_multiple_of(MARK) {
            return Err(self
                .session
                .damaged(Damage("a message about dropped packets is of no length that it can have")));
        }
        for from in (0..len).step_by(MARK) {
            let mut bytes = [0; MARK];
            self.consumer.read(from, &mut bytes);
            let Mark { owner, token } = Mark::from_bytes(bytes);
            pool.report_dropped(owner, token);
            self.counts.drops += 1;
        }
        self.consumer.pass(len as u32);
        self.counts.ring_bytes += room_for(len);
        Ok(())
    }

    /// The other process is waited for no longer than was said, and as long as it finds the file.
    fn wait_on(&mut self, peer: Peer, now: Nanos) -> Result<(), ShmError> {
        if peer == Peer::Awaited {
            self.session.check_name().inspect_err(|_| self.ended = true)?;
        }
        let Some(wait) = self.wait_ns else { return Ok(()) };
        if peer != Peer::Awaited {
            self.wait_ns = None;
        } else if now.since(*self.since.get_or_insert(now)) > wait {
            self.ended = true;
            return Err(self.session.nobody_came(wait));
        }
        Ok(())
    }

    /// Nothing came: has the other side finished, or ended without?
    fn nothing_came(
        &mut self,
        pool: &mut Pool,
        arrivals: &mut Arrivals,
        max: usize,
        now: Nanos,
    ) -> Result<usize, ShmError> {
        self.empty = self.empty.saturating_add(1);
        if self.empty == 1 {
            self.ask = now.after(ASK);
            self.silent_since = now;
        }
        self.silence = now.since(self.silent_since);
        let mut left = false;
        if now >= self.ask {
            self.ask = now.after(ASK);
            let peer = self.session.peer();
            left = peer == Peer::Left;
            self.wait_on(peer, now)?;
        }
        let finished = self.consumer.finished();
        if !finished && !left {
            return Ok(0);
        }
        // The packets that it put in last, before it said or the system let know that it was gone.
        let n = self.take(pool, arrivals, max)?;
        if n == 0 {
            self.ended = true;
            if !finished {
                return Err(self.session.peer_died());
            }
        }
        Ok(n)
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
        arrivals.first = self.counts.packets;
        if let Some(parked) = &self.parked {
            parked.collect(pool);
        }
        let mut n = self.take(pool, arrivals, max)?;
        if n == 0 && max > 0 && !self.ended {
            n = self.nothing_came(pool, arrivals, max, now)?;
        }
        if n > 0 {
            self.empty = 0;
        }
        Ok(n)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn patience(&self) -> Option<u64> {
        (self.empty > EMPTY).then(|| (self.silence / NAP_OF_SILENCE).clamp(NAP, LONGEST_NAP))
    }

    fn ended(&self) -> bool {
        self.ended
    }
}

impl Source for Receiver {
    fn fill(&mut self, pool: &mut Pool, arrivals: &mut Arrivals, max: usize) -> Result<usize, SourceError> {
        self.poll_now(pool, arrivals, max)
    }

    fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    fn live(&mut self) -> Option<&mut dyn LiveSource> {
        Some(self)
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        visit("packets_received", self.counts.packets);
        visit("bytes_received", self.counts.bytes);
        visit("ring_bytes_received", self.counts.ring_bytes);
        visit("told_of_drops", self.counts.drops);
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.consumer.close();
    }
}
