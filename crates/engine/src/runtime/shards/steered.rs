//! A source of one shard that keeps what belongs there, and hands the rest to the others.

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use slipstream_core::batch::Arrivals;
use slipstream_core::interface::Interface;
use slipstream_core::pool::{Pool, Region};
use slipstream_core::source::{LiveSource, Source, SourceError};
use slipstream_core::time::Nanos;

use super::mailbox::{Mailbox, Parcels};
use super::steer::Steer;

/// A live source whose packets are shared out.
pub(super) struct Steered {
    inner: Box<dyn Source + Send>,
    /// The inner one's own, to sleep on.
    descriptor: Option<OwnedFd>,
    /// Patience of the inner port, as it said behind the last poll.
    patience: Option<u64>,
    more: bool,
    steer: Steer,
    own: usize,
    /// The boxes of all shards, none for this one, and what is on its way there.
    others: Vec<Option<(Arc<Mailbox>, Parcels)>>,
    sequence: u64,
    handed_over: u64,
    lost: u64,
    closed: bool,
}

impl Steered {
    /// Of shard `own`, which has no box among `boxes`.
    ///
    /// # Errors
    /// There is no other descriptor to be had.
    pub(super) fn new(
        mut inner: Box<dyn Source + Send>,
        steer: Steer,
        own: usize,
        boxes: &[Option<Arc<Mailbox>>],
    ) -> std::io::Result<Self> {
        let others = boxes.iter().map(|to| to.clone().map(|to| (to, Parcels::default()))).collect();
        let live = inner.live();
        let patience = live.as_ref().and_then(|live| live.patience());
        let descriptor = live.and_then(|live| Some(live.descriptor()?.try_clone_to_owned()));
        let descriptor = descriptor.transpose()?;
        let (sequence, handed_over, lost, more, closed) = (0, 0, 0, false, false);
        Ok(Self {
            inner,
            descriptor,
            patience,
            more,
            steer,
            own,
            others,
            sequence,
            handed_over,
            lost,
            closed,
        })
    }

    /// Keeps the packets from place `from` on that belong here; returns how many these are. Of what is for
    /// all shards each has a copy.
    fn share_out(&mut self, pool: &mut Pool, arrivals: &mut Arrivals, from: usize) -> usize {
        let mut kept = from;
        self.steer.look();
        for at in from..arrivals.frames.len() {
            let Some(frame) = arrivals.frames.get(at).copied() else { break };
            let data = pool.data(frame.buf, frame.len);
            let for_all = self.steer.for_all(data);
            if for_all {
                for (_, parcels) in self.others.iter_mut().flatten() {
                    parcels.add(frame.arrival, pool.meta(frame.buf), data);
                    self.handed_over += 1;
                }
            }
            let owner = if for_all { self.own } else { self.steer.shard(data) as usize };
            match self.others.get_mut(owner) {
                Some(Some((_, parcels))) if owner != self.own => {
                    parcels.add(frame.arrival, pool.meta(frame.buf), data);
                    pool.free(frame.buf);
                    self.handed_over += 1;
                }
                _ => {
                    if let Some(place) = arrivals.frames.get_mut(kept) {
                        *place = frame;
                    }
                    kept += 1;
                }
            }
        }
        arrivals.frames.truncate(kept);
        arrivals.first = self.sequence;
        self.sequence += (kept - from) as u64;
        for (mailbox, parcels) in self.others.iter_mut().flatten().filter(|(_, p)| !p.is_empty()) {
            self.lost += mailbox.put(parcels);
        }
        kept - from
    }

    fn close(&mut self) {
        if !std::mem::replace(&mut self.closed, true) {
            self.others.iter().flatten().for_each(|(mailbox, _)| mailbox.close());
        }
    }
}

impl Drop for Steered {
    fn drop(&mut self) {
        self.close();
    }
}

impl LiveSource for Steered {
    fn poll(
        &mut self,
        pool: &mut Pool,
        arrivals: &mut Arrivals,
        max: usize,
        now: Nanos,
    ) -> Result<usize, SourceError> {
        let Some(live) = self.inner.live() else { return Ok(0) };
        let from = arrivals.frames.len();
        let found = live.poll(pool, arrivals, max, now)?;
        let over = found == 0 && live.ended();
        self.more = found > 0 && found >= max.min(live.at_once());
        self.patience = live.patience();
        let kept = self.share_out(pool, arrivals, from);
        if over {
            self.close();
        }
        Ok(kept)
    }

    /// There may be more, however few of them stayed.
    fn at_once(&self) -> usize {
        if self.more { 0 } else { usize::MAX }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(AsFd::as_fd)
    }

    fn patience(&self) -> Option<u64> {
        self.patience
    }

    fn ended(&self) -> bool {
        self.closed
    }
}

impl Source for Steered {
    fn fill(&mut self, pool: &mut Pool, arrivals: &mut Arrivals, max: usize) -> Result<usize, SourceError> {
        let from = arrivals.frames.len();
        self.inner.fill(pool, arrivals, max)?;
        Ok(self.share_out(pool, arrivals, from))
    }

    fn interfaces(&self) -> &[Interface] {
        self.inner.interfaces()
    }

    fn clock_backwards(&self) -> u64 {
        self.inner.clock_backwards()
    }

    fn details(&self) -> Option<&dyn Any> {
        self.inner.details()
    }

    fn live(&mut self) -> Option<&mut dyn LiveSource> {
        Some(self)
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.inner.counters(visit);
        visit("to_other_shards", self.handed_over);
        visit("lost_between_shards", self.lost);
    }

    fn region(&mut self) -> Option<Box<dyn Region>> {
        self.inner.region()
    }
}
