//! The sources of a run: packets that were read and have not gone in yet, and a round in which every source
//! is asked once.

use slipstream_core::batch::{Arrivals, BATCH, Batch, Train};
use slipstream_core::frame::Frame;
use slipstream_core::interface::Interface;
use slipstream_core::pool::PacketMeta;
use slipstream_core::source::Came;
use slipstream_core::time::Nanos;
use slipstream_wire::NarrowKey;

use super::driver::{Driver, Run};
use super::report::RunError;
use super::waiting::AT_ONCE;

/// Batches whose trains are counted although nobody needs them: so many at the beginning, and one in so many.
const UNREAD_FIRST: u32 = 64;
const UNREAD_EVERY: u32 = 127;

/// No packet of a capture comes later: a time behind it is when all have come.
pub(super) const END_OF_TIME: Nanos = Nanos(u64::MAX - 1);

/// Maximum number of times that a source is read on in one round.
const REFILLS: u32 = 3;

/// The course of a round.
pub(super) struct Course {
    /// Packets that come later than this stay where they are.
    pub(super) now: Nanos,
    /// Packets that are taken at most.
    pub(super) max: u64,
    /// Packets that go in at once, at most.
    pub(super) at_once: usize,
    /// The treatment of packets of captures whose time has passed.
    pub(super) late: Late,
    /// The time that the data path takes is measured round by round: reading is no part of it.
    pub(super) meters: bool,
}

/// The treatment of packets of captures whose time has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Late {
    /// They come at their own time: there is no other.
    Stays,
    /// They come at once, no earlier than what came before them.
    ComesAtOnce,
    /// All come now, late or not.
    ComesNow,
}

/// The result of a round.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Round {
    /// Packets came.
    pub(super) busy: bool,
    /// A source may have more.
    pub(super) more: bool,
    /// Least duration of the round, the work on its packets included, in ns.
    pub(super) least_ns: u64,
    /// A source was asked for less than it might have, since what comes behind has no room.
    pub(super) blocked: bool,
    /// Different times at which packets of live sources came, about.
    pub(super) events: u32,
    /// The first of these times.
    pub(super) first: Option<Nanos>,
}

/// A source, what it has brought, and what of that has not arrived yet.
#[derive(Debug, Default)]
pub(super) struct Feed {
    pub(super) live: bool,
    pending: Arrivals,
    /// Number of pending packets that went in already.
    at: usize,
    /// The numbers that its interfaces have among those of all sources.
    numbers: Vec<u32>,
    /// Some of these numbers are not those that the source gave.
    renumbered: bool,
    pub(super) ended: bool,
    /// A stream has nothing for now, and is not waited for; so it may be, in a live run.
    pub(super) waits: bool,
    pub(super) may_wait: bool,
    /// Its first packet, whenever it comes, comes at once.
    pub(super) begins: bool,
    pub(super) packets: u64,
    /// Packets that may go in now, in a live run.
    pub(super) room: usize,
    /// Least duration of the last poll, in ns.
    pub(super) least_ns: u64,
    /// Different times at which the packets of the last poll came, about, and the first of them.
    events: u32,
    first: Option<Nanos>,
    /// Nobody looks at the packets that were read last.
    unread: bool,
    /// The source may lead packets straight to the port behind it, and these it did last.
    relays: bool,
    relayed: Vec<Came>,
    /// The shift that is added to the times of a capture's packets (modulo 2⁶⁴) in a live run.
    shift: u64,
}

impl Feed {
    /// Packets that were read and have not gone in come no earlier than this.
    pub(super) fn not_before(&mut self, time: Nanos) {
        let left = self.pending.frames.get_mut(self.at..).unwrap_or_default();
        left.iter_mut().take_while(|f| f.arrival < time).for_each(|f| f.arrival = time);
    }

    /// Packets that were read and have not gone in come no earlier than the first of these times, and no
    /// later than the second, unless the first one is.
    fn come_between(&mut self, first: Nanos, last: Nanos) {
        let left = self.pending.frames.get_mut(self.at..).unwrap_or_default();
        left.iter_mut().for_each(|f| f.arrival = f.arrival.min(last).max(first));
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

    /// Returns true if it has to be read on before it is known which source has the next packet.
    fn exhausted(&self) -> bool {
        !self.live && !self.ended && !self.waits && self.next().is_none()
    }

    /// Packets that were read and have not gone in.
    pub(super) fn waiting(&self) -> usize {
        self.pending.frames.len().saturating_sub(self.at)
    }

    /// Returns true if nothing more will come.
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

impl Driver {
    /// One for each source.
    pub(super) fn feeds(&mut self) -> Vec<Feed> {
        let feed = |h: &mut super::graph::Head| {
            let live = h.source.live().is_some();
            Feed { live, relays: live, ..Feed::default() }
        };
        self.pipeline.heads.iter_mut().map(feed).collect()
    }

    /// Asks every source and hands on what has come by `course.now`, in the order of time.
    pub(super) fn round(&mut self, run: &mut Run<'_>, course: &Course) -> Result<Round, RunError> {
        let mut round = Round::default();
        let Run { feeds, meter, .. } = run;
        let mut left = course.max;
        for (head, feed) in feeds.iter_mut().enumerate() {
            let wanted = BATCH.min(usize::try_from(left).unwrap_or(BATCH));
            feed.room = self.pipeline.room(head);
            round.blocked |= feed.room == 0;
            let waiting = feed.waiting();
            if feed.live && waiting > 0 {
                // Another source had to be read on before it was known whose packet comes first.
                round.more = true;
                left = left.saturating_sub(waiting as u64);
            } else if feed.live {
                let most = wanted.min(feed.room);
                // One that was asked for nothing has not ended.
                let (n, more) = if most == 0 { (0, false) } else { self.poll(head, feed, most, course.now)? };
                round.events += feed.events;
                round.first = round.first.into_iter().chain(feed.first).min();
                round.more |= more;
                // Packets that went elsewhere count, too.
                round.busy |= more || (n > 0 && feed.waiting() == 0);
                round.least_ns = round.least_ns.max(if most == 0 { 0 } else { feed.least_ns });
                left = left.saturating_sub(n as u64);
            } else {
                self.refill(head, feed)?;
                if feed.begins
                    && let Some(first) = feed.next()
                {
                    feed.begins = false;
                    feed.shift_by(course.now.0.wrapping_sub(first.0));
                }
                match course.late {
                    Late::Stays => {}
                    Late::ComesNow => feed.come_now(course.now),
                    Late::ComesAtOnce => feed.not_before(self.now),
                }
            }
        }
        if course.meters {
            meter.start();
        }
        // A round goes on if the time of reading needn't be told from the rest.
        let mut refills = if course.late == Late::Stays && !course.meters { REFILLS } else { 0 };
        // In the order of time, as far as each source goes before another one has a packet.
        while let Some((head, until)) = next_of(feeds, course.now) {
            let Some(feed) = feeds.get_mut(head) else { break };
            // Live ones were asked for no more than are wanted.
            let wanted = if feed.live { BATCH } else { BATCH.min(usize::try_from(left).unwrap_or(BATCH)) };
            if wanted == 0 {
                break;
            }
            let came = |t: Nanos| t <= course.now && until.is_none_or(|u| (t, head) < u);
            let n = self.take_from(head, feed, wanted.min(course.at_once).min(feed.room), came);
            feed.room -= n.min(feed.room);
            left -= if feed.live { 0 } else { n as u64 };
            round.busy = true;
            if feed.exhausted() {
                if refills == 0 {
                    // Time doesn't pass it by: what it has next may have come already.
                    round.more = true;
                    break;
                }
                refills -= 1;
                self.refill(head, feed)?;
            }
        }
        if course.meters && run.sections.is_none() {
            meter.stop();
        }
        Ok(round)
    }

    /// Reads on where everything that was read has gone in.
    pub(super) fn refill(&mut self, head: usize, feed: &mut Feed) -> Result<(), RunError> {
        if feed.at < feed.pending.frames.len() || feed.ended {
            return Ok(());
        }
        feed.pending.clear();
        feed.at = 0;
        let Some(source) = self.pipeline.heads.get_mut(head).map(|h| &mut h.source) else { return Ok(()) };
        feed.waits = feed.may_wait && source.waits()?;
        if feed.waits {
            return self.new_interfaces(head, feed);
        }
        let n = source.fill(&mut self.pool, &mut feed.pending, BATCH)?;
        feed.ended = n == 0;
        feed.unread = self.stays_unread(head);
        feed.shift_times();
        if feed.pending.frames.last().is_some_and(|last| last.arrival > END_OF_TIME) {
            feed.pending.frames.iter_mut().for_each(|f| f.arrival = f.arrival.min(END_OF_TIME));
        }
        self.new_interfaces(head, feed)
    }

    /// Asks a live source for up to `max` packets that have come by `now`; returns how many, and whether
    /// there may be more.
    pub(super) fn poll(
        &mut self,
        head: usize,
        feed: &mut Feed,
        max: usize,
        now: Nanos,
    ) -> Result<(usize, bool), RunError> {
        feed.pending.clear();
        (feed.at, feed.least_ns, feed.events, feed.first) = (0, 0, 0, None);
        feed.unread = self.stays_unread(head);
        let relayed = self.relay(head, feed, max, now).unwrap_or(0);
        let source = self.pipeline.heads.get_mut(head).and_then(|h| h.source.live());
        let Some(source) = source.filter(|_| !feed.ended) else { return Ok((0, false)) };
        let polled = match relayed {
            0 => source.poll(&mut self.pool, &mut feed.pending, max, now),
            n => Ok(n),
        };
        let n = match polled {
            Ok(n) => n,
            Err(error) => {
                // Packets that it brought before it failed are packets that came.
                feed.come_between(self.now, now);
                self.new_interfaces(head, feed)?;
                return Err(error.into());
            }
        };
        feed.ended = n == 0 && source.ended();
        feed.least_ns = source.least_ns(n);
        let more = n >= max.min(source.at_once());
        if let Some(log) = &mut self.log {
            log.poll(head, now, &feed.pending.frames);
        }
        // The clock of the stages may have gone past what came late; what came since the clock was read comes
        // now.
        let mut before = Nanos(0);
        let at_once = |frames: &[Frame]| {
            let (Some(first), Some(last)) = (frames.first(), frames.last()) else { return true };
            first.arrival == last.arrival && (self.now..=now).contains(&first.arrival)
        };
        let first = feed.relayed.first().filter(|_| relayed > 0).map(|those| those.arrival);
        feed.first = first.or_else(|| feed.pending.frames.first().map(|frame| frame.arrival));
        if relayed > 0 {
            for those in &feed.relayed {
                feed.events += u32::from(those.arrival.since(before) > AT_ONCE);
                before = those.arrival;
            }
        } else if at_once(&feed.pending.frames) {
            feed.events = u32::from(n > 0);
        } else {
            for frame in &mut feed.pending.frames {
                feed.events += u32::from(frame.arrival.since(before) > AT_ONCE);
                before = frame.arrival;
                frame.arrival = frame.arrival.min(now).max(self.now);
            }
        }
        if n > 0 {
            self.new_interfaces(head, feed)?;
        }
        Ok((n, more))
    }

    /// Has a live source lead up to `max` packets straight to the port behind it, where nobody looks at them;
    /// returns how many. None where they are to be polled.
    #[inline]
    fn relay(&mut self, head: usize, feed: &mut Feed, max: usize, now: Nanos) -> Option<usize> {
        if !feed.unread || !feed.relays || feed.ended || self.log.is_some() {
            return None;
        }
        feed.relayed.clear();
        let n = self.pipeline.relay(head, &mut self.pool, now, max, &mut feed.relayed);
        feed.relays = n.is_some();
        let n = n?;
        self.unread = self.unread.wrapping_add(u32::from(n > 0));
        self.sequence += n as u64;
        feed.packets += n as u64;
        Some(n)
    }

    fn new_interfaces(&mut self, head: usize, feed: &mut Feed) -> Result<(), RunError> {
        let Some(from) = self.pipeline.heads.get(head) else { return Ok(()) };
        let source = &from.source;
        if source.interfaces().len() == feed.numbers.len() && !feed.renumbered {
            return Ok(());
        }
        // A capture may name its first interfaces with its first packets, none of which went in yet. Of those
        // that come later, a port drops what it can't send.
        if feed.numbers.is_empty() && !feed.live {
            from.check_links()?;
        }
        let new: Vec<Interface> = source.interfaces().iter().skip(feed.numbers.len()).cloned().collect();
        if !new.is_empty() {
            feed.numbers.extend(self.interfaces..self.interfaces + new.len() as u32);
            self.interfaces += new.len() as u32;
            self.pipeline.interfaces(&new)?;
            self.classifier.links(self.pipeline.links());
        }
        feed.renumbered = feed.numbers.last().is_some_and(|n| *n as usize >= feed.numbers.len());
        if feed.renumbered {
            for frame in &feed.pending.frames {
                let mut meta = self.pool.meta(frame.buf);
                meta.interface =
                    feed.numbers.get(meta.interface as usize).copied().unwrap_or(PacketMeta::MAX_INTERFACE);
                self.pool.set_meta(frame.buf, meta);
            }
        }
        Ok(())
    }

    /// Packets that live sources have brought go in before a run ends.
    pub(super) fn take_rest(&mut self, run: &mut Run<'_>) {
        for (head, feed) in run.feeds.iter_mut().enumerate().filter(|(_, feed)| feed.live) {
            while feed.waiting() > 0 {
                self.take_from(head, feed, BATCH, |_| true);
            }
        }
    }

    /// Packets that were read arrive at a head, up to `most` of them and as long as their time is as `which`
    /// says; returns how many.
    pub(super) fn take_from(
        &mut self,
        head: usize,
        feed: &mut Feed,
        most: usize,
        which: impl Fn(Nanos) -> bool,
    ) -> usize {
        let left = feed.pending.frames.get(feed.at..).unwrap_or_default();
        // Arrivals never run backwards: if the last one may go in, all before it may.
        let n = match left.last() {
            Some(last) if left.len() <= most && which(last.arrival) => left.len(),
            _ => left.iter().take(most).take_while(|f| which(f.arrival)).count().max(1),
        };
        if feed.at == 0 && n == left.len() {
            // All packets needn't be copied. The memory is handed back, so that it is filled again while it
            // is in the cache.
            feed.packets += n as u64;
            std::mem::swap(&mut self.arrivals.frames, &mut feed.pending.frames);
            self.take(head, feed.unread);
            std::mem::swap(&mut self.arrivals.frames, &mut feed.pending.frames);
            return n;
        }
        let arriving = left.get(..n).unwrap_or(left);
        self.arrivals.frames.extend_from_slice(arriving);
        feed.at += arriving.len();
        feed.packets += arriving.len() as u64;
        self.take(head, feed.unread);
        n
    }

    /// Says whether the next packets that come to a head are looked at by nobody. Where the port behind it
    /// doesn't, trains are counted in the first batches, and in one of so many.
    fn stays_unread(&self, head: usize) -> bool {
        let number = self.unread.wrapping_add(1);
        self.pipeline.takes_unread(head) && number > UNREAD_FIRST && !number.is_multiple_of(UNREAD_EVERY)
    }

    /// Packets arrive at a head, `unread` where nobody looks at them.
    fn take(&mut self, head: usize, unread: bool) {
        self.arrivals.first = self.sequence;
        self.sequence += self.arrivals.frames.len() as u64;
        let first = self.arrivals.frames.first().map_or(self.now, |f| f.arrival);
        self.pipeline.run_to_arrival(&mut self.pool, first);
        self.now = self.arrivals.frames.last().map_or(self.now, |f| f.arrival);
        if self.pipeline.takes_unread(head) {
            self.unread = self.unread.wrapping_add(1);
        }
        if unread {
            std::mem::swap(&mut self.arrivals.frames, &mut self.batch.frames);
            self.pipeline.push_unread(head, &mut self.pool, self.now, &mut self.batch);
            self.batch.clear();
            std::mem::swap(&mut self.arrivals.frames, &mut self.batch.frames);
        } else if self.pipeline.takes_arrivals(head) {
            if self.pipeline.takes_classified(head) {
                // The headers are in this core's cache now.
                self.classifier.classify(&self.pool, &mut self.arrivals);
            }
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

/// The source whose packet comes next, if one has come by `now`; and the first packet of another one, which
/// it must not go beyond: its time, and the number of its source.
#[inline]
fn next_of(feeds: &[Feed], now: Nanos) -> Option<(usize, Option<(Nanos, usize)>)> {
    if let [alone] = feeds {
        return alone.ready(now).map(|_| (0, None));
    }
    let (_, head) = feeds.iter().enumerate().filter_map(|(i, f)| Some((f.ready(now)?, i))).min()?;
    let others = feeds.iter().enumerate().filter(|(i, _)| *i != head);
    Some((head, others.filter_map(|(i, f)| Some((f.ready(Nanos::MAX)?, i))).min()))
}

/// A short key that no flow has: bits that are zero in all of them are not.
const NONE: NarrowKey = NarrowKey([0, 1 << 14]);

/// Packets as they came, as a batch: what comes back to back of one flow is a train.
pub(crate) fn into_trains(arrivals: &mut Arrivals, batch: &mut Batch) {
    batch.clear();
    batch.frames.extend_from_slice(&arrivals.frames);
    let Batch { trains, .. } = batch;
    let keys = arrivals.keys.as_slice();
    // A packet that can't be classified is like no other.
    let mut before = NONE;
    for (start, (frame, key)) in (0u32..).zip(arrivals.frames.iter().zip(keys.kept())) {
        let known = frame.info.classified();
        match trains.last_mut() {
            Some(train) if known && keys.are_same(*key, before) => train.len += 1,
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
        before = if known { *key } else { NONE };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use slipstream_wire::{Flags, FlowKey, Headers, WideKey};

    use super::*;
    use slipstream_core::frame::Info;
    use slipstream_core::pool::BufId;
    use slipstream_core::time::Nanos;

    proptest! {
        /// Against the obvious twin: neighbours of one key, and nothing that could not be classified. Half of
        /// the flows have short keys, half long ones.
        #[test]
        fn trains_are_neighbours_of_one_key(packets in prop::collection::vec((0u64..4, prop::bool::weighted(0.8)), 0..300)) {
            let mut arrivals = Arrivals { first: 7, ..Arrivals::default() };
            for (n, (flow, classified)) in (0u32..).zip(&packets) {
                let key = match flow % 2 {
                    0 => FlowKey::Narrow(NarrowKey([*flow, 17 << 24])),
                    _ => FlowKey::Wide(WideKey([*flow; 7])),
                };
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
            let mut trains = batch.trains.iter();
            for twin in packets.chunk_by(|a, b| a == b && a.1) {
                let train = trains.next().unwrap();
                prop_assert_eq!((train.start as usize, train.len as usize), (start, twin.len()));
                prop_assert_eq!((train.release, train.sequence), (Nanos(start as u64), 7 + start as u64));
                start += twin.len();
            }
            prop_assert!(trains.next().is_none());
        }
    }
}
