//! Ports: where packets come in and go out, such as capture files, network interfaces, shared memory. What a
//! port takes stays its own until it says that it is complete: a card sends from the buffer, and only then is
//! that free.
//!
//! A port has two halves. The one that receives is a [`Source`], with a live side where packets come by the
//! wall clock. The one that transmits is a [`Transmit`]; at the end of a pipeline it stands as an [`Outlet`].
//! Both use the same pool, and where that has [adopted](crate::pool::Region) memory, packets are received,
//! changed and sent in place.

use std::any::Any;
use std::fmt;
use std::os::fd::BorrowedFd;

use slipstream_wire::LinkType;

use crate::batch::{Arrivals, Batch};
use crate::frame::Frame;
use crate::interface::Interface;
use crate::pool::{Pool, Region};
use crate::registry::Made;
use crate::source::{Source, SourceError};
use crate::stage::{Context, DropReason, Drops, Egress, Observe, Output, Stage, StageError};
use crate::time::Nanos;

/// The reason why a port can't be used any more, in the words of whoever implements it.
pub type PortError = SourceError;

/// The half of a port that packets go to.
pub trait Transmit {
    /// Takes the packets of a batch, each with its buffer, and leaves the batch empty. A buffer is freed, or
    /// [let go](Pool::let_go), when its packet has left or can't; of a sliced packet, it is
    /// [`Pool::free_spliced`] that doesn't count as a drop. What can't leave is counted in
    /// [`Transmit::drops`].
    fn tx(&mut self, cx: &mut Context<'_>, batch: &mut Batch);

    /// Returns true if all that it looks at of a batch are its packets: where they come straight from a port,
    /// nobody then parses their headers or looks for trains.
    fn takes_unread(&self) -> bool {
        false
    }

    /// Returns true if only Ethernet frames can leave: packets of interfaces of other link types are then
    /// dropped before they come here.
    fn ethernet_only(&self) -> bool {
        false
    }

    /// Itself, for sources whose packets it takes without their coming into the pool:
    /// [`LiveSource::relay`](crate::source::LiveSource::relay).
    fn relay(&mut self) -> Option<&mut dyn Any> {
        None
    }

    /// Frees the buffers of packets that have left since; returns how many. It is asked before each batch.
    fn complete(&mut self, _pool: &mut Pool) -> u64 {
        0
    }

    /// Packets that it has taken and whose buffers are not freed.
    fn in_flight(&self) -> u64 {
        0
    }

    /// The time at which it wants to look after what it has, though no packet comes; [`Nanos::MAX`] for
    /// never.
    fn next_look(&self) -> Nanos {
        Nanos::MAX
    }

    /// Does that: the time is here.
    fn look(&mut self, cx: &mut Context<'_>) {
        self.complete(cx.pool);
    }

    /// Nothing more comes. Waits a moment for what is on its way; when this returns, all buffers are freed,
    /// or are no longer the pool's.
    fn drain(&mut self, cx: &mut Context<'_>) {
        self.complete(cx.pool);
    }

    /// Memory for packets that it would have the pool adopt, as [`Source::region`] says.
    fn region(&mut self) -> Option<Box<dyn Region>> {
        None
    }

    /// Learns of interfaces that packets come from, in the order of their numbers.
    ///
    /// # Errors
    /// Its format can't hold them.
    fn interfaces(&mut self, _new: &[Interface]) -> Result<(), PortError> {
        Ok(())
    }

    /// Packets that it can take now without losing any, where that is limited.
    fn room(&mut self) -> usize {
        usize::MAX
    }

    /// Returns true if a live run is to go on, all sources having ended, since what was sent has yet to be
    /// taken.
    fn unfinished(&self) -> bool {
        self.in_flight() > 0
    }

    /// Learns, in a live run, that nothing more will come.
    fn no_more(&mut self) {}

    /// Visits its counters, by name.
    fn counters(&self, _visit: &mut dyn FnMut(&'static str, u64)) {}

    /// Packets that it dropped, by reason.
    fn drops(&self) -> Drops {
        Drops::default()
    }

    /// Figures of a type that only its implementer and those who ask for them know.
    fn figures(&self) -> Option<Box<dyn Any + Send>> {
        None
    }

    /// The reason why it can't write now, in words for the user; packets are lost meanwhile.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// Says that it can write nothing more, so that a replay need not go on: [`finish`](Self::finish) tells
    /// why. One that [is gone](Self::is_gone) has failed.
    fn failed(&self) -> bool {
        self.is_gone()
    }

    /// Returns true if what it sends by was taken away, such as its interface: a live run ends then, whatever
    /// others can still write.
    fn is_gone(&self) -> bool {
        false
    }

    /// Has all that it writes reach its file, as [`Egress::flush`] says.
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    fn flush(&mut self) -> Result<(), PortError> {
        Ok(())
    }

    /// Finishes what it writes, such as a capture file.
    ///
    /// # Errors
    /// The packets did not all get where they should.
    fn finish(&mut self) -> Result<(), PortError> {
        Ok(())
    }
}

/// The event to wait for until a port may have packets.
#[derive(Clone, Copy, Debug)]
pub enum Wait<'a> {
    /// This becomes readable when one comes.
    Readable(BorrowedFd<'a>),
    /// It is to be asked again after this time, in ns.
    Within(u64),
    /// It is to be asked at once: only asking tells.
    No,
    /// Nothing more will come.
    Ended,
}

/// A port: its halves.
#[derive(Default)]
pub struct Port {
    /// The half that packets come from, if there is one.
    pub receive: Option<Box<dyn Source + Send>>,
    /// The half that packets go to, if there is one.
    pub transmit: Option<Box<dyn Transmit + Send>>,
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (receive, transmit) = (self.receive.is_some(), self.transmit.is_some());
        f.debug_struct("Port").field("receive", &receive).field("transmit", &transmit).finish()
    }
}

impl Port {
    /// One that packets come from.
    #[must_use]
    pub fn receiving(source: impl Source + Send + 'static) -> Self {
        Self { receive: Some(Box::new(source)), transmit: None }
    }

    /// One that packets go to.
    #[must_use]
    pub fn transmitting(transmit: impl Transmit + Send + 'static) -> Self {
        Self { receive: None, transmit: Some(Box::new(transmit)) }
    }

    /// Both ways.
    #[must_use]
    pub fn both(source: impl Source + Send + 'static, transmit: impl Transmit + Send + 'static) -> Self {
        Self { receive: Some(Box::new(source)), transmit: Some(Box::new(transmit)) }
    }

    /// Appends up to `max` packets that have come, not yet classified, in the order of arrival; returns how
    /// many. Of a port that is not live, 0 is the end.
    ///
    /// # Errors
    /// [`PortError`] where nothing more can come.
    pub fn rx(
        &mut self,
        pool: &mut Pool,
        arrivals: &mut Arrivals,
        max: usize,
        now: Nanos,
    ) -> Result<usize, PortError> {
        let Some(source) = &mut self.receive else { return Ok(0) };
        if let Some(live) = source.live() {
            return live.poll(pool, arrivals, max, now);
        }
        source.fill(pool, arrivals, max)
    }

    /// Takes the packets of a batch; of a port that nothing goes to, they stay in it.
    pub fn tx(&mut self, cx: &mut Context<'_>, batch: &mut Batch) {
        if let Some(transmit) = &mut self.transmit {
            transmit.tx(cx, batch);
        }
    }

    /// Frees the buffers of packets that have left; returns how many.
    pub fn complete(&mut self, pool: &mut Pool) -> u64 {
        self.transmit.as_mut().map_or(0, |transmit| transmit.complete(pool))
    }

    /// The event to wait for until packets may have come.
    pub fn wait(&mut self) -> Wait<'_> {
        let Some(source) = &mut self.receive else { return Wait::Ended };
        let Some(live) = source.live() else { return Wait::No };
        if live.ended() {
            return Wait::Ended;
        }
        match (live.patience(), live.descriptor()) {
            (_, Some(descriptor)) => Wait::Readable(descriptor),
            (Some(ns), None) => Wait::Within(ns),
            (None, None) => Wait::No,
        }
    }
}

/// A port becomes a source, a stage or both, by its place in the graph.
impl From<Port> for Made {
    fn from(port: Port) -> Self {
        match (port.receive, port.transmit) {
            (Some(source), None) => Self::Source(source),
            (None, Some(transmit)) => Self::Stage(Box::new(Outlet::of(transmit))),
            (Some(source), Some(transmit)) => Self::TwoWay(source, Box::new(Outlet::of(transmit))),
            (None, None) => Self::Checked,
        }
    }
}

/// The transmitting half of a port at the end of a pipeline.
pub struct Outlet {
    transmit: Box<dyn Transmit + Send>,
    /// Interfaces that packets come from, as far as they were looked at.
    links: usize,
    /// Packets of some of them can't leave here.
    some_others: bool,
    /// Such packets that came, and were dropped.
    others: u64,
    /// Some interface is one of a capture that may have taken no more than the beginnings of packets, which
    /// go out on a wire here.
    some_cut: bool,
    /// Such packets that came.
    cut: u64,
}

impl fmt::Debug for Outlet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outlet").field("in_flight", &self.transmit.in_flight()).finish()
    }
}

impl Outlet {
    /// Packets go there.
    #[must_use]
    pub fn new(transmit: impl Transmit + Send + 'static) -> Self {
        Self::of(Box::new(transmit))
    }

    fn of(transmit: Box<dyn Transmit + Send>) -> Self {
        Self { transmit, links: 0, some_others: false, others: 0, some_cut: false, cut: 0 }
    }

    /// Drops what is no Ethernet frame, where nothing else can leave.
    #[inline]
    fn drop_others(&mut self, cx: &mut Context<'_>, batch: &mut Batch) {
        if self.links != cx.links.len() {
            self.links = cx.links.len();
            let others = cx.links.iter().any(|link| *link != LinkType::Ethernet);
            self.some_others = others && self.transmit.ethernet_only();
        }
        if self.some_others {
            self.drop_each_other(cx, batch);
        }
    }

    #[cold]
    fn drop_each_other(&mut self, cx: &mut Context<'_>, batch: &mut Batch) {
        let fits = |frame: &Frame| cx.link(frame) == LinkType::Ethernet;
        let keep: Vec<bool> = batch.frames.iter().map(fits).collect();
        for (frame, _) in batch.frames.iter().zip(&keep).filter(|(_, keep)| !**keep) {
            cx.pool.free(frame.buf);
            self.others += 1;
        }
        batch.retain(&keep);
    }

    fn count_cut(&mut self, cx: &Context<'_>, batch: &Batch) {
        let is_cut = |frame: &Frame| {
            let whole = cx.pool.unsliced(frame.buf, frame.len);
            whole.is_some_and(|(original_len, data)| original_len as usize > data.len())
        };
        self.cut += batch.frames.iter().filter(|frame| is_cut(frame)).count() as u64;
    }
}

impl Stage for Outlet {
    fn process(&mut self, cx: &mut Context<'_>, batch: &mut Batch, _: &mut dyn Output) {
        self.transmit.complete(cx.pool);
        self.drop_others(cx, batch);
        if self.some_cut {
            self.count_cut(cx, batch);
        }
        self.transmit.tx(cx, batch);
    }

    fn takes_unread(&self) -> bool {
        self.transmit.takes_unread()
    }

    fn next_deadline(&self) -> Nanos {
        self.transmit.next_look()
    }

    fn on_deadline(&mut self, cx: &mut Context<'_>, _: &mut dyn Output) {
        self.transmit.look(cx);
    }

    fn drain(&mut self, cx: &mut Context<'_>, _: &mut dyn Output) {
        self.transmit.drain(cx);
    }

    fn egress(&mut self) -> Option<&mut dyn Egress> {
        Some(self)
    }
}

impl Observe for Outlet {
    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.transmit.counters(visit);
        if self.transmit.ethernet_only() {
            visit("not_ethernet", self.others);
            visit("captured_in_part", self.cut);
        }
    }

    fn drops(&self) -> Drops {
        let mut drops = self.transmit.drops();
        drops.add(DropReason::NotSent, self.others);
        drops
    }

    fn trouble(&self) -> Option<String> {
        self.transmit.trouble()
    }

    fn figures(&self) -> Option<Box<dyn Any + Send>> {
        self.transmit.figures()
    }
}

impl Egress for Outlet {
    fn region(&mut self) -> Option<Box<dyn Region>> {
        self.transmit.region()
    }

    fn interfaces(&mut self, new: &[Interface]) -> Result<(), StageError> {
        self.some_cut |= self.transmit.ethernet_only() && new.iter().any(|one| one.snap_len > 0);
        self.transmit.interfaces(new).map_err(StageError::from)
    }

    fn ethernet_only(&self) -> bool {
        self.transmit.ethernet_only()
    }

    fn unfinished(&self) -> bool {
        self.transmit.unfinished()
    }

    fn room(&mut self) -> usize {
        self.transmit.room()
    }

    fn relay(&mut self) -> Option<&mut dyn Any> {
        self.transmit.relay()
    }

    fn no_more(&mut self) {
        self.transmit.no_more();
    }

    fn failed(&self) -> bool {
        self.transmit.failed()
    }

    fn is_gone(&self) -> bool {
        self.transmit.is_gone()
    }

    fn flush(&mut self) -> Result<(), StageError> {
        self.transmit.flush().map_err(StageError::from)
    }

    fn finish(&mut self) -> Result<(), StageError> {
        self.transmit.finish().map_err(StageError::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::PacketMeta;

    /// Sends frames, and counts them.
    struct Card {
        ethernet_only: bool,
        frames: u64,
    }

    impl Transmit for Card {
        fn tx(&mut self, cx: &mut Context<'_>, batch: &mut Batch) {
            self.frames += batch.frames.len() as u64;
            assert_eq!(batch.iter().map(|(_, frames)| frames.len()).sum::<usize>(), batch.frames.len());
            batch.frames.iter().for_each(|frame| cx.pool.free(frame.buf));
            batch.clear();
        }

        fn ethernet_only(&self) -> bool {
            self.ethernet_only
        }

        fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
            visit("frames", self.frames);
        }
    }

    /// Nothing is emitted by the end of a pipeline.
    struct Nobody;

    impl Output for Nobody {
        fn emit(&mut self, _: &mut Pool, batch: &mut Batch) {
            assert!(batch.is_empty());
        }
    }

    #[test]
    fn packets_that_were_captured_in_part_are_counted() {
        for (ethernet_only, snap_len, want) in [(true, 60, 1), (true, 0, 0), (false, 60, 0)] {
            let mut pool = Pool::new();
            let mut outlet = Outlet::new(Card { ethernet_only, frames: 0 });
            outlet.interfaces(&[Interface { link_number: 1, snap_len, name: None }]).unwrap();
            let mut batch = Batch::new();
            for original_len in [60, 61] {
                let meta = PacketMeta { original_len, ..PacketMeta::default() };
                let frame = Frame::unclassified(Nanos(1), pool.insert(meta, &[0; 60]), 60);
                batch.push_single(frame, Nanos(1), 0);
            }
            let links = &[LinkType::Ethernet];
            let mut cx = Context { now: Nanos(1), pool: &mut pool, input: 0, links };
            outlet.process(&mut cx, &mut batch, &mut Nobody);
            let mut cut = 0;
            outlet.counters(&mut |name, n| cut += if name == "captured_in_part" { n } else { 0 });
            assert_eq!((cut, outlet.drops().total()), (want, 0));
        }
    }

    #[test]
    fn a_card_is_spared_what_is_no_ethernet_frame() {
        let (one, two) = ([LinkType::Ethernet], [LinkType::Ethernet, LinkType::RawIp]);
        for (ethernet_only, sent, others) in [(true, 5, 2), (false, 7, 0)] {
            let mut pool = Pool::new();
            let mut outlet = Outlet::new(Card { ethernet_only, frames: 0 });
            for (links, interfaces) in [(&one[..], &[0, 0][..]), (&two[..], &[0, 1, 0, 1, 0][..])] {
                let mut batch = Batch::new();
                for interface in interfaces {
                    let meta = PacketMeta { interface: *interface, ..PacketMeta::default() };
                    let frame = Frame::unclassified(Nanos(1), pool.insert(meta, &[0; 60]), 60);
                    batch.push_single(frame, Nanos(1), 0);
                }
                let mut cx = Context { now: Nanos(1), pool: &mut pool, input: 0, links };
                outlet.process(&mut cx, &mut batch, &mut Nobody);
            }
            let mut frames = 0;
            outlet.counters(&mut |name, n| frames += if name == "frames" { n } else { 0 });
            assert_eq!((frames, outlet.drops().total(), pool.live()), (sent, others, 0));
        }
    }
}
