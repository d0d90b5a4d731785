//! The loop that drives a pipeline over the clock of its captures: a discrete-event replay.
//!
//! Several sources are merged by time. Where all packets take one way, whole batches go through; where packets that were
//! held may meet others, events go through one by one, so that everything happens in the order of time.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use slipstream_wire::FlowKey;
use thiserror::Error;

use super::board::Board;
use super::graph::{Pipeline, StageReport};
use super::live::LiveOptions;
use super::own_time::OwnTime;
use super::poll_log::PollLog;
use super::replay::Tick;
use super::source::{Classifier, SourceError};
use crate::batch::{Arrivals, BATCH, Batch, Train};
use crate::clock::Meter;
use crate::frame::Frame;
use crate::io::capture::{CaptureReader, Interface};
use crate::pool::{PacketMeta, Pool};
use crate::stage::StageError;
use crate::time::Nanos;

/// Why a run ended early.
#[derive(Debug, Error)]
pub enum RunError {
    /// An input can't be read on.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// An output can't be written.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// Packets of one source come in the engine's own time, and there is another source, whose don't.
    #[error("a source whose packets come in the engine's own time must be the only one")]
    OwnTime,
}

/// What came from a source.
#[derive(Clone, Debug)]
pub struct SourceReport {
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: &'static str,
    /// Packets.
    pub packets: u64,
    /// Packets whose time ran backwards.
    pub clock_backwards: u64,
    /// Its own counters.
    pub counters: Vec<(&'static str, u64)>,
}

/// What a run did.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// Every source.
    pub sources: Vec<SourceReport>,
    /// Every stage.
    pub stages: Vec<StageReport>,
    /// Real time of the data path, in ns.
    pub elapsed_ns: u64,
    /// CPU time of the data path, in ns.
    pub cpu_ns: u64,
    /// Packets that are still inside: 0, or packets were lost.
    pub live: u64,
    /// Of a run in the engine's own time: how that went.
    pub own_time: Option<OwnTime>,
    /// Whoever is told of the progress of a replay wanted no more: it stopped where it was, and no file was
    /// written.
    pub interrupted: bool,
}

/// A source, what it has brought, and what of that has not arrived yet.
#[derive(Debug, Default)]
pub(super) struct Feed {
    pub(super) live: bool,
    pending: Arrivals,
    /// How many of the pending packets went in already.
    at: usize,
    /// The numbers that its interfaces have among those of all sources.
    numbers: Vec<u32>,
    ended: bool,
    packets: u64,
    /// Packets that may go in now, in a live run.
    pub(super) room: usize,
    /// What the last poll was to take at least, in ns.
    pub(super) least_ns: u64,
    /// What is added to the times of a capture's packets (modulo 2⁶⁴) in a live run.
    shift: u64,
}

impl Feed {
    /// Packets that went in.
    pub(super) fn packets(&self) -> u64 {
        self.packets
    }

    /// Packets that were read and have not gone in come no earlier than this.
    pub(super) fn not_before(&mut self, time: Nanos) {
        let left = self.pending.frames.get_mut(self.at..).unwrap_or_default();
        left.iter_mut().take_while(|f| f.arrival < time).for_each(|f| f.arrival = time);
    }

    /// Packets that were read and have not gone in come now.
    pub(super) fn come_now(&mut self, now: Nanos) {
        let left = self.pending.frames.get_mut(self.at..).unwrap_or_default();
        left.iter_mut().for_each(|f| f.arrival = now);
    }

    /// The packets that are ready may go in, and there is room for some.
    pub(super) fn ready(&self, now: Nanos) -> Option<Nanos> {
        self.next().filter(|t| *t <= now && self.room > 0)
    }

    /// Whether nothing more will come.
    pub(super) fn at_end(&self) -> bool {
        self.ended && self.next().is_none()
    }

    /// From now on packets come by so much later (modulo 2⁶⁴), those that have been read too.
    pub(super) fn shift_by(&mut self, shift: u64) {
        self.shift = shift;
        self.shift_times();
    }

    fn shift_times(&mut self) {
        if self.shift != 0 && !self.live {
            self.pending
                .frames
                .iter_mut()
                .for_each(|f| f.arrival = Nanos(f.arrival.0.wrapping_add(self.shift)));
        }
    }

    pub(super) fn next(&self) -> Option<Nanos> {
        self.pending.frames.get(self.at).map(|f| f.arrival)
    }
}

/// A run of a pipeline: a replay over captures and generated traffic, or live.
#[derive(Debug)]
pub struct Run {
    pub(super) pipeline: Pipeline,
    pub(super) pool: Pool,
    pub(super) now: Nanos,
    pub(super) live: LiveOptions,
    pub(super) log: Option<PollLog>,
    pub(super) own_time: Option<OwnTime>,
    board: Option<Board>,
    /// The report of a live run that ended with an error.
    pub(super) partial: Option<RunReport>,
    classifier: Classifier,
    batch: Batch,
    arrivals: Arrivals,
    sequence: u64,
    /// Interfaces of all sources.
    interfaces: u32,
}

impl Run {
    /// Of this pipeline.
    #[must_use]
    pub fn new(pipeline: Pipeline) -> Self {
        Self {
            pipeline,
            pool: Pool::new(),
            classifier: Classifier::default(),
            batch: Batch::new(),
            arrivals: Arrivals::default(),
            now: Nanos(0),
            sequence: 0,
            interfaces: 0,
            live: LiveOptions::default(),
            log: None,
            own_time: None,
            board: None,
            partial: None,
        }
    }

    /// With these settings, should it be a live run.
    #[must_use]
    pub fn live(mut self, options: LiveOptions) -> Self {
        self.live = options;
        self
    }

    /// Answers at this board while it goes on, when it is asked.
    #[must_use]
    pub fn board(mut self, board: Board) -> Self {
        self.board = Some(board);
        self
    }

    /// The polls of the live run that is over, if they were to be logged.
    #[must_use]
    pub fn poll_log(&self) -> Option<&PollLog> {
        self.log.as_ref()
    }

    /// The report of a live run that an error ended, up to then; once.
    pub fn take_partial(&mut self) -> Option<RunReport> {
        self.partial.take()
    }

    /// The stages that can read something anew while a live run goes on, and what: see
    /// [`LiveOptions::reload`].
    #[must_use]
    pub fn reloads(&self) -> Vec<(&str, &'static str)> {
        self.pipeline.reloads()
    }

    /// Says that it follows the wall clock.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.pipeline.live()
    }

    /// By which such a run is asked to do so.
    #[must_use]
    pub fn reload_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.live.reload)
    }

    /// Replays everything that the sources have, and finishes what is written. `tick` is called now and then with the
    /// progress; where it wants no more, the run stops where it is, its report says that it was
    /// [interrupted](RunReport::interrupted), and no file is written.
    ///
    /// Where a port of the pipeline is live, so is the run: it follows the wall clock, until the sources have ended (which
    /// interfaces never do), a limit of [`LiveOptions`] is reached, or `tick` wants no more, and always ends well.
    ///
    /// # Errors
    /// [`RunError`] where an input can't be read or an output can't be written.
    pub fn run(&mut self, tick: &mut Tick<'_>) -> Result<RunReport, RunError> {
        if self.pipeline.live() { self.run_live(tick) } else { self.replay(tick) }
    }

    fn replay(&mut self, tick: &mut Tick<'_>) -> Result<RunReport, RunError> {
        let most = if self.pipeline.needs_single_events() { 1 } else { BATCH };
        let meter = Meter::new();
        let mut feeds = self.feeds();
        let mut rounds = 0u64;
        loop {
            for (head, feed) in feeds.iter_mut().enumerate() {
                self.refill(head, feed)?;
            }
            let first = feeds.iter().enumerate().filter_map(|(i, f)| Some((f.next()?, i))).min();
            let Some((_, head)) = first else { break };
            // As far as this source goes before another one has a packet.
            let others = feeds
                .iter()
                .enumerate()
                .filter(|(i, _)| *i != head)
                .filter_map(|(i, f)| Some((f.next()?, i)));
            let until = others.min();
            let Some(feed) = feeds.get_mut(head) else { break };
            meter.start();
            self.take_from(head, feed, most, |t| until.is_none_or(|u| (t, head) < u));
            meter.stop();
            self.answer(&feeds, &meter);
            rounds += 1;
            let progress = || self.pipeline.heads.first().and_then(|h| h.source.progress());
            if rounds.is_multiple_of(64) && tick(progress()) == ControlFlow::Break(()) {
                return Ok(RunReport { interrupted: true, ..self.report(&feeds, &meter) });
            }
        }
        meter.start();
        self.pipeline.run_to(&mut self.pool, Nanos(u64::MAX - 1));
        self.pipeline.drain(&mut self.pool, self.now);
        meter.stop();
        self.finish(&feeds, &meter)
    }

    /// Finishes what is written, and says what happened.
    pub(super) fn finish(&mut self, feeds: &[Feed], meter: &Meter) -> Result<RunReport, RunError> {
        self.pipeline.finish()?;
        Ok(self.report(feeds, meter))
    }

    /// Says how it goes, if somebody has asked.
    #[inline]
    pub(super) fn answer(&self, feeds: &[Feed], meter: &Meter) {
        if let Some(board) = self.board.as_ref().filter(|b| b.wanted()) {
            board.show(self.report(feeds, meter));
        }
    }

    pub(super) fn report(&self, feeds: &[Feed], meter: &Meter) -> RunReport {
        let source = |(head, feed): (&super::graph::Head, &Feed)| {
            let mut counters = Vec::new();
            head.source.counters(&mut |name, n| counters.push((name, n)));
            SourceReport {
                name: head.name.clone(),
                kind: head.kind,
                packets: feed.packets,
                clock_backwards: head.source.clock_backwards(),
                counters,
            }
        };
        RunReport {
            sources: self.pipeline.heads.iter().zip(feeds).map(source).collect(),
            stages: self.pipeline.reports(),
            elapsed_ns: meter.elapsed_ns(),
            cpu_ns: meter.cpu_ns(),
            live: self.pool.live(),
            own_time: self.own_time.clone(),
            interrupted: false,
        }
    }

    /// One for each source.
    pub(super) fn feeds(&mut self) -> Vec<Feed> {
        let feed = |h: &mut super::graph::Head| Feed { live: h.source.live().is_some(), ..Feed::default() };
        self.pipeline.heads.iter_mut().map(feed).collect()
    }

    /// The readers of the captures behind the sources.
    pub fn captures(&self) -> impl Iterator<Item = &CaptureReader> {
        self.pipeline.heads.iter().filter_map(|h| h.source.capture())
    }

    /// Reads on where everything that was read has gone in.
    pub(super) fn refill(&mut self, head: usize, feed: &mut Feed) -> Result<(), RunError> {
        if feed.at < feed.pending.frames.len() || feed.ended {
            return Ok(());
        }
        feed.pending.clear();
        feed.at = 0;
        let Some(source) = self.pipeline.heads.get_mut(head).map(|h| &mut h.source) else { return Ok(()) };
        let n = source.fill(&mut self.pool, &mut feed.pending, BATCH)?;
        feed.ended = n == 0;
        feed.shift_times();
        self.new_interfaces(head, feed)
    }

    /// Asks a live source for up to `max` packets that have come by `now`; returns how many, and whether there may be more.
    pub(super) fn poll(
        &mut self,
        head: usize,
        feed: &mut Feed,
        max: usize,
        now: Nanos,
    ) -> Result<(usize, bool), RunError> {
        feed.pending.clear();
        (feed.at, feed.least_ns) = (0, 0);
        let source = self.pipeline.heads.get_mut(head).and_then(|h| h.source.live());
        let Some(source) = source.filter(|_| !feed.ended) else { return Ok((0, false)) };
        let n = source.poll(&mut self.pool, &mut feed.pending, max, now)?;
        feed.ended = n == 0 && source.ended();
        feed.least_ns = source.least_ns(n);
        let more = n >= max.min(source.at_once());
        if let Some(log) = &mut self.log {
            log.poll(head, now, &feed.pending.frames);
        }
        // The clock of the stages may have gone past what came late; what came since the clock was read comes now.
        feed.pending.frames.iter_mut().for_each(|f| f.arrival = f.arrival.min(now).max(self.now));
        if n > 0 {
            self.new_interfaces(head, feed)?;
        }
        Ok((n, more))
    }

    fn new_interfaces(&mut self, head: usize, feed: &mut Feed) -> Result<(), RunError> {
        let Some(source) = self.pipeline.heads.get(head).map(|h| &h.source) else { return Ok(()) };
        let new: Vec<Interface> = source.interfaces().iter().skip(feed.numbers.len()).cloned().collect();
        if !new.is_empty() {
            feed.numbers.extend(self.interfaces..self.interfaces + new.len() as u32);
            self.interfaces += new.len() as u32;
            self.pipeline.interfaces(&new)?;
            self.classifier.links(self.pipeline.links());
        }
        if feed.numbers.last().is_some_and(|n| *n as usize >= feed.numbers.len()) {
            for frame in &feed.pending.frames {
                let mut meta = self.pool.meta(frame.buf);
                meta.interface =
                    feed.numbers.get(meta.interface as usize).copied().unwrap_or(PacketMeta::MAX_INTERFACE);
                self.pool.set_meta(frame.buf, meta);
            }
        }
        Ok(())
    }

    /// Packets that were read arrive at a head, up to `most` of them and as long as their time is as `which` says;
    /// returns how many.
    pub(super) fn take_from(
        &mut self,
        head: usize,
        feed: &mut Feed,
        most: usize,
        which: impl Fn(Nanos) -> bool,
    ) -> usize {
        let left = feed.pending.frames.get(feed.at..).unwrap_or_default();
        let n = left.iter().take(most).take_while(|f| which(f.arrival)).count().max(1);
        let arriving = left.get(..n).unwrap_or(left);
        self.arrivals.frames.extend_from_slice(arriving);
        feed.at += arriving.len();
        feed.packets += arriving.len() as u64;
        self.take(head);
        n
    }

    /// Packets arrive at a head.
    fn take(&mut self, head: usize) {
        self.arrivals.first = self.sequence;
        self.sequence += self.arrivals.frames.len() as u64;
        let first = self.arrivals.frames.first().map_or(self.now, |f| f.arrival);
        self.pipeline.run_to(&mut self.pool, first);
        self.now = self.arrivals.frames.last().map_or(self.now, |f| f.arrival);
        if self.pipeline.takes_arrivals(head) {
            self.pipeline.arrive(head, &mut self.pool, self.now, &mut self.arrivals);
        } else {
            self.classifier.classify(&self.pool, &mut self.arrivals);
            into_trains(&mut self.arrivals, &mut self.batch);
            self.pipeline.push(head, &mut self.pool, self.now, &mut self.batch);
            self.batch.clear();
        }
        self.arrivals.clear();
    }
}

/// Packets as they came, as a batch: what comes back to back of one flow is a train.
pub(crate) fn into_trains(arrivals: &mut Arrivals, batch: &mut Batch) {
    batch.clear();
    batch.frames.extend_from_slice(&arrivals.frames);
    let Batch { trains, .. } = batch;
    let mut before: Option<&FlowKey> = None;
    for (start, (frame, key)) in (0u32..).zip(arrivals.frames.iter().zip(&arrivals.keys)) {
        let known = frame.info.classified().then_some(key);
        match trains.last_mut() {
            Some(train) if known.is_some() && known == before => train.len += 1,
            _ => trains.push(Train {
                flow: Frame::NO_FLOW,
                start,
                len: 1,
                release: frame.arrival,
                order: 0,
                sequence: arrivals.first + u64::from(start),
                continues: false,
            }),
        }
        before = known;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use slipstream_wire::{Flags, Headers, NarrowKey};

    use super::*;
    use crate::frame::Info;
    use crate::pool::BufId;
    use crate::time::Nanos;

    proptest! {
        /// Against the obvious twin: neighbours of one key, and nothing that could not be classified.
        #[test]
        fn trains_are_neighbours_of_one_key(packets in prop::collection::vec((0u64..3, prop::bool::weighted(0.8)), 0..40)) {
            let mut arrivals = Arrivals { first: 7, ..Arrivals::default() };
            for (n, (flow, classified)) in (0u32..).zip(&packets) {
                let key = FlowKey::Narrow(NarrowKey([*flow, 17 << 24]));
                let headers = Headers { key, l3: 14, l4: 34, flags: Flags(Flags::PORTS), tcp_flags: 0, tos: 0 };
                let mut frame = Frame::unclassified(Nanos(n.into()), BufId(n), 60);
                frame.info = if *classified { Info::new(&headers) } else { Info::default() };
                arrivals.frames.push(frame);
                arrivals.keys.push(key);
            }
            let mut batch = Batch::new();
            into_trains(&mut arrivals, &mut batch);
            prop_assert_eq!(&batch.frames, &arrivals.frames);
            let mut start = 0;
            for twin in packets.chunk_by(|a, b| a == b && a.1) {
                let train = batch.trains.remove(0);
                prop_assert_eq!((train.start as usize, train.len as usize), (start, twin.len()));
                prop_assert_eq!((train.release, train.sequence), (Nanos(start as u64), 7 + start as u64));
                start += twin.len();
            }
            prop_assert!(batch.trains.is_empty());
        }
    }
}
