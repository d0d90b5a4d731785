//! The fast way through the stage, for what most packets are under the settings that most have: of a known flow, to be
//! held, in a stage with room, without classes. Whether packets are like that is found out for many at once; then all of
//! them are stored, then time passes for all of them. That comes to the same as one packet after the other as long as
//! time has passed before a packet whose flow's train is due, or that makes a train leave. Short loops over few things do
//! without most of the loads, stores and calls that one long loop needs.
//!
//! Any other packet is left to [`Reframe::packet`].

use std::ops::Range;

use super::config::Policy;
use super::flow_table::NONE;
use super::hold::TrainSlot;
use super::stage::{Block, Output, Reframe};
use super::stats::Cause;
use crate::batch::{BATCH, Batch, Train};
use crate::frame::Frame;
use crate::pool::Pool;
use crate::time::Nanos;

impl Reframe {
    /// Finds out which packets of a block, from number `from` on, are to be held as usual; returns the number of the first
    /// that isn't. Those before it are counted as arrived, and must be given to [`Reframe::keep_usual`].
    #[inline(never)]
    pub(super) fn usual(&mut self, block: &Block<'_>, from: usize) -> usize {
        let Some(bypass) = self.bypass_info else { return from };
        let frames = block.frames.get(from..).unwrap_or_default();
        let room = self.capacity.saturating_sub(self.hold.packets() + self.leaving_packets) as usize;
        let mut room_bytes = self.capacity_bytes.saturating_sub(self.hold.bytes());
        let frames = frames.get(..room).unwrap_or(frames);
        let keys = block.keys.get(from..).unwrap_or_default();
        let hashes = block.hashes.get(from..).unwrap_or_default();
        let candidates = block.candidates.get(from..).unwrap_or_default();
        let (mut last, mut runs) = (self.last_in, 0);
        let mut n = 0;
        for (((frame, key), &hash), &candidate) in frames.iter().zip(keys).zip(hashes).zip(candidates) {
            let Some(rest) = room_bytes.checked_sub(u64::from(frame.len)) else { break };
            if !frame.info.classified() || frame.info.is(bypass) || !self.table.knows(key, hash, candidate) {
                break;
            }
            room_bytes = rest;
            runs += u64::from(candidate != last);
            last = candidate;
            n += 1;
        }
        self.last_in = last;
        self.stats.runs_in += runs;
        from + n
    }

    /// Holds packets that are as usual.
    pub(super) fn keep_usual(
        &mut self,
        pool: &mut Pool,
        block: &Block<'_>,
        range: Range<usize>,
        out: &mut dyn Output,
    ) {
        let Some(last) = block.frames.get(range.clone()).and_then(<[Frame]>::last) else { return };
        let (mut at, mut caught_up) = (range.start, range.start);
        loop {
            at = if self.joining {
                self.store::<true>(block, at..range.end)
            } else {
                self.store::<false>(block, at..range.end)
            };
            if at >= range.end {
                break;
            }
            if self.hold.grow() {
                continue;
            }
            let (Some(frame), Some(&flow)) = (block.frames.get(at), block.candidates.get(at)) else { break };
            self.catch_up(pool, block.frames.get(caught_up..at).unwrap_or_default(), frame.arrival, out);
            let entry = self.table.get_mut(flow);
            entry.count_packet();
            let train = entry.train;
            self.hold.count(1, u64::from(frame.len));
            if train == NONE {
                entry.train = self.hold.open(0, block.sequence(at), frame, flow, block.hash(at));
            } else if self.hold.append(train, frame) >= self.burst {
                self.leave(train, Cause::Full);
            }
            at += 1;
            caught_up = at;
        }
        let rest = block.frames.get(caught_up..range.end).unwrap_or_default();
        self.catch_up(pool, rest, last.arrival, out);
    }

    /// Stores packets without looking at the time, as far as nothing leaves by what they do and memory is there; returns
    /// the number of the first that it did not store. What most packets do, join a train or open one, is in the loop; the
    /// other is called.
    #[inline(never)]
    fn store<const JOINING: bool>(&mut self, block: &Block<'_>, range: Range<usize>) -> usize {
        let frames = block.frames.get(range.clone()).unwrap_or_default();
        let flows = block.candidates.get(range.clone()).unwrap_or_default();
        let (mut opened, mut bytes, mut stored) = (0, 0, 0);
        for (frame, &flow) in frames.iter().zip(flows) {
            let entry = self.table.get_mut(flow);
            let train = entry.train;
            if train == NONE {
                if !self.hold.has_free_train() {
                    break;
                }
                let at = range.start + stored;
                entry.train = if JOINING {
                    self.hold.open_seldom(block.sequence(at), frame, flow, block.hash(at))
                } else {
                    self.hold.open(0, block.sequence(at), frame, flow, block.hash(at))
                };
                opened += 1;
            } else {
                let joined = if JOINING {
                    self.hold.join(train, frame, self.burst)
                } else {
                    self.hold.join_seldom(train, frame, self.burst)
                };
                if !joined {
                    break;
                }
            }
            entry.count_packet();
            bytes += u64::from(frame.len);
            stored += 1;
        }
        self.joining = 2 * opened < stored;
        self.hold.count(stored as u32, bytes);
        range.start + stored
    }

    /// Lets time pass to `now`. Of `stored`, packets that count as held already, none arrived before the instant so far.
    fn catch_up(&mut self, pool: &mut Pool, mut stored: &[Frame], now: Nanos, out: &mut dyn Output) {
        if now <= self.instant {
            return;
        }
        loop {
            if self.hold.due().min(now) > self.instant {
                self.emit_leaving(pool, out);
                stored = self.release_singles(stored, now);
            }
            let (due, train) = self.hold.first_of_one_class();
            if due.min(now) > self.instant {
                self.instant = due.min(now);
            }
            if due > now || train == NONE {
                break;
            }
            stored = arriving_from(stored, due);
            self.early = stored.len() as u32;
            self.leave(train, Cause::Deadline);
        }
        self.early = 0;
    }

    /// Emits trains of one packet that are due before `now`, up to the first train that is longer, or due together with
    /// another, or for which the batch has no place. Returns what of `stored` arrives only after that.
    #[inline(never)]
    fn release_singles<'a>(&mut self, stored: &'a [Frame], now: Nanos) -> &'a [Frame] {
        let last = self.table.last();
        if *last == NONE || self.hold.due() >= now {
            return stored;
        }
        let Batch { frames, trains, .. } = &mut self.out;
        let (start, first) = (frames.len(), trains.len());
        let n = self.hold.singles(now, BATCH.saturating_sub(start).min(AT_ONCE));
        frames.extend(self.hold.leading(n).map(TrainSlot::frame));
        let (mut before, mut runs) = (*last, 0);
        let (table, policy, hold_ns) = (&mut self.table, self.policy, self.alone.hold_ns);
        trains.extend(self.hold.leading(n).zip(start as u32..).map(|(slot, start)| {
            let (flow, sequence) = (slot.flow, slot.sequence);
            let entry = table.get_mut(flow);
            entry.train = NONE;
            let order = match policy {
                Policy::Oldest => entry.first_seen.0,
                Policy::Waiting => slot.base().0,
                Policy::Shortest => u64::from(entry.packets()) << 32,
            };
            let continues = before == flow;
            before = flow;
            runs += u64::from(!continues);
            let release = slot.base().after(hold_ns);
            Train { flow, start, len: 1, release, order, sequence, continues }
        }));
        *table.last() = before;
        self.stats.runs_out += runs;
        self.alone.trains += n as u64;
        // How many are held, and have come by then, when each of them is about to leave.
        let (mut held, mut come, mut peak) = (self.hold.packets(), 0, 0);
        for train in trains.get(first..).unwrap_or_default() {
            while let Some(frame) = stored.get(come)
                && frame.arrival < train.release
            {
                come += 1;
            }
            peak = peak.max(held - (stored.len() - come) as u32);
            held -= 1;
            self.instant = train.release;
        }
        self.hold.note_peak(peak);
        self.hold.close_leading(n);
        stored.get(come..).unwrap_or_default()
    }
}

/// Trains that are released together at most.
const AT_ONCE: usize = 64;

/// The packets that arrive at `time` or later.
#[inline(always)]
fn arriving_from(mut frames: &[Frame], time: Nanos) -> &[Frame] {
    while let Some((first, rest)) = frames.split_first()
        && first.arrival < time
    {
        frames = rest;
    }
    frames
}
