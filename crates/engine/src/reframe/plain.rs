//! The fast way through the stage, for what most packets are under the settings that most have: of a known flow, to be
//! held, in a stage with room, without classes. Whether packets are like that is found out for many at once; then all of
//! them are stored, then time passes for all of them. That comes to the same as one packet after the other as long as
//! time has passed before a packet whose flow's train is due, or that makes a train leave. Short loops over few things do
//! without most of the loads, stores and calls that one long loop needs.
//!
//! Any other packet is left to [`Reframe::packet`].

use std::mem::take;
use std::ops::Range;

use super::config::Policy;
use super::flow_table::NONE;
use super::stage::{Block, Output, Reframe};
use super::stats::Cause;
use crate::batch::Train;
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
        let mut room_bytes = self.capacity_bytes - self.hold.bytes();
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
            at = self.store(block, at..range.end);
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
    /// the number of the first that it did not store.
    #[inline(never)]
    fn store(&mut self, block: &Block<'_>, range: Range<usize>) -> usize {
        let mut at = range.start;
        let frames = block.frames.get(range.clone()).unwrap_or_default();
        let flows = block.candidates.get(range).unwrap_or_default();
        for (frame, &flow) in frames.iter().zip(flows) {
            let entry = self.table.get_mut(flow);
            let train = entry.train;
            if train == NONE {
                if !self.hold.has_free_train() {
                    break;
                }
                entry.count_packet();
                entry.train = self.hold.open(0, block.sequence(at), frame, flow, block.hash(at));
            } else {
                if !self.hold.joins(train, frame.arrival, self.burst) {
                    break;
                }
                entry.count_packet();
                self.hold.append(train, frame);
            }
            at += 1;
        }
        at
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
    fn release_singles<'a>(&mut self, mut stored: &'a [Frame], now: Nanos) -> &'a [Frame] {
        // Taken out, so that the compiler knows that nothing but these loops sees the rest of the stage change.
        let (mut frames, mut trains) = (take(&mut self.out.frames), take(&mut self.out.trains));
        let mut last = *self.table.last();
        let (mut singles, mut runs) = (0, 0);
        while last != NONE && frames.len() < frames.capacity() && trains.len() < trains.capacity() {
            let release = self.hold.first_of_one_class().0;
            if release >= now {
                break;
            }
            stored = arriving_from(stored, release);
            self.hold.note_peak(self.hold.packets() - stored.len() as u32);
            let Some((frame, sequence)) = self.hold.pop_single() else { break };
            let flow = frame.flow;
            let entry = self.table.get_mut(flow);
            entry.train = NONE;
            let order = match self.policy {
                Policy::Oldest => entry.first_seen.0,
                Policy::Waiting => frame.arrival.0,
                Policy::Shortest => u64::from(entry.packets()) << 32,
            };
            let start = frames.len() as u32;
            frames.push(frame);
            let continues = last == flow;
            last = flow;
            runs += u64::from(!continues);
            trains.push(Train { flow, start, len: 1, release, order, sequence, continues });
            self.instant = release;
            singles += 1;
        }
        (self.out.frames, self.out.trains) = (frames, trains);
        *self.table.last() = last;
        self.alone.trains += singles;
        self.stats.runs_out += runs;
        stored
    }
}

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
