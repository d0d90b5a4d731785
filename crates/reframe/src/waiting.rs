//! The way of packets through the stage where the hold is adaptive.

use core::ops::Range;

use super::adaptive::Waits;
use super::block::Block;
use super::flow_table::NONE;
use super::plain::arriving_from;
use super::reframer::{Reframe, wire_len};
use super::stats::Cause;
use slipstream_core::frame::Frame;
use slipstream_core::pool::Pool;
use slipstream_core::stage::Output;
use slipstream_core::time::Nanos;

impl Reframe {
    /// Takes the packets of a block. It is apart from other holds so that it costs them nothing.
    #[inline(never)]
    pub(super) fn block_of_adaptive(&mut self, pool: &mut Pool, block: &Block<'_>, out: &mut dyn Output) {
        let mut at = 0;
        while at < block.frames.len() {
            if self.plain_adaptive && self.may_go_fast(block, at) {
                // The packet after which the price is set anew is left to the long way.
                let most = self.adaptive.as_ref().map_or(0, |a| a.until_steered(0));
                let frames = block.frames.get(..at + most).unwrap_or(block.frames);
                let at_this_price = Block { frames, ..*block };
                let end = if self.in_runs {
                    self.fast_runs(&at_this_price, at)
                } else {
                    self.fast_run::<true>(&at_this_price, at)
                };
                self.wait_fast(pool, block, at..end, out);
                at = end;
            }
            let Some((frame, found)) = block.found(at) else { break };
            self.packet::<true>(pool, frame, found, out);
            at += 1;
        }
    }

    /// Holds packets that [`Reframe::fast_run`] found; the same as [`Reframe::packet`] does, without what is
    /// not needed for them.
    fn wait_fast(&mut self, pool: &mut Pool, block: &Block<'_>, range: Range<usize>, out: &mut dyn Output) {
        let Some(last) = block.frames.get(range.clone()).and_then(<[Frame]>::last) else { return };
        self.learn(pool, block, range.clone());
        let (mut at, mut caught_up, mut passed) = (range.start, range.start, 0);
        while at < range.end {
            let (Some(frame), Some(&flow)) = (block.frames.get(at), block.candidates.get(at)) else { break };
            let waits_here = self.adaptive.as_ref().map_or(Waits::NONE, |a| a.waits_after(at));
            if self.table.get_mut(flow).open_train() != NONE || waits_here.of(1) != 0 {
                let stored = self.store_waiting(block, at..range.end);
                at += stored;
                if at >= range.end {
                    break;
                }
                if stored > 0 || self.hold.grow() {
                    continue;
                }
            }
            self.let_leave(pool, block.frames.get(caught_up..at).unwrap_or_default(), frame.arrival, out);
            let frame = Frame { flow, hash: block.hash(at), ..*frame };
            let entry = self.table.get_mut(flow);
            let mut train = entry.open_train();
            if train == NONE && waits_here.of(1) == 0 {
                entry.count(1);
                passed += 1;
                self.emit_leaving(pool, out);
                self.emit_single(pool, &frame, 0, block.sequence(at), out);
            } else {
                self.hold.count(1, u64::from(frame.len));
                let mut count = 1;
                if train == NONE {
                    train = self.hold.open(0, block.sequence(at), frame);
                    self.table.get_mut(flow).train = train;
                } else {
                    count = self.hold.append(train, &frame);
                }
                if count >= self.burst {
                    self.leave(train, Cause::Full);
                } else {
                    self.wait_of(train, waits_here.of(count));
                }
            }
            at += 1;
            caught_up = at;
        }
        let rest = block.frames.get(caught_up..range.end).unwrap_or_default();
        self.let_leave(pool, rest, last.arrival, out);
        if let Some(class) = self.stats.classes.first_mut() {
            class.passed(Cause::Deadline, passed);
        }
    }

    #[inline(never)]
    fn learn(&mut self, pool: &Pool, block: &Block<'_>, range: Range<usize>) {
        let Some(adaptive) = &mut self.adaptive else { return };
        if self.embedded {
            adaptive.observe_all(block, range, |frame| wire_len(true, pool, frame));
        } else {
            adaptive.observe_all(block, range, |frame| wire_len(false, pool, frame));
        }
    }

    /// Stores packets without looking at the time, as far as nothing leaves by what they do and memory is
    /// there; returns how many.
    #[inline(never)]
    fn store_waiting(&mut self, block: &Block<'_>, range: Range<usize>) -> usize {
        let Some(adaptive) = &self.adaptive else { return 0 };
        self.hold.store_waiting(self.table.entries_mut(), block, range, self.burst, adaptive)
    }

    /// Lets time pass to `now`. Of `stored`, packets that count as held already, none arrived before the
    /// instant so far.
    #[inline(always)]
    fn let_leave(&mut self, pool: &mut Pool, stored: &[Frame], now: Nanos, out: &mut dyn Output) {
        if now > self.instant {
            if self.hold.due() > now && self.leaving.is_empty() {
                self.instant = now;
            } else {
                self.let_leave_some(pool, stored, now, out);
            }
        }
    }

    #[inline(never)]
    fn let_leave_some(&mut self, pool: &mut Pool, mut stored: &[Frame], now: Nanos, out: &mut dyn Output) {
        loop {
            if self.hold.due() <= now {
                self.hold.settle();
            }
            let due = self.hold.due();
            if due.min(now) > self.instant {
                self.emit_leaving(pool, out);
                self.instant = due.min(now);
            }
            if due > now {
                break;
            }
            let Some(train) = self.hold.first_due() else { break };
            stored = arriving_from(stored, due);
            self.early = stored.len() as u32;
            self.leave(train, Cause::Deadline);
        }
        self.early = 0;
    }

    /// Learns from a packet that has come; returns the waits of its train.
    #[inline]
    pub(super) fn observe(&mut self, pool: &Pool, frame: &Frame, new: bool, class: u8) -> Waits {
        let len = self.wire_len(pool, frame);
        let Some(adaptive) = &mut self.adaptive else { return Waits::NONE };
        adaptive.cover(frame.flow as usize + 1);
        let stats = self.stats.classes.get(usize::from(class));
        adaptive.observe(frame, new, class, len, self.instant, stats)
    }

    /// Gives the train of a flow, whose packet was just held, one of these times to wait for the next one.
    #[inline]
    pub(super) fn wait(&mut self, flow: u32, waits: Waits) {
        let train = self.table.get_mut(flow).open_train();
        if train != NONE {
            self.wait_of(train, waits.of(self.hold.train(train).count));
        }
    }

    /// Gives a train the wait of this number.
    #[inline(always)]
    fn wait_of(&mut self, train: u32, wait: u8) {
        let Some(adaptive) = &self.adaptive else { return };
        let ns = adaptive.waits_ns(self.hold.train(train).class).of(wait);
        if wait == 0 || !self.hold.wait(train, self.instant, ns) {
            self.leave(train, Cause::Deadline);
        }
    }
}
