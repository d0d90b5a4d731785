//! The fast way through the stage, for what most packets are under the settings that most have: of a known
//! flow, to be held, in a stage with room, without classes. Whether packets are like that is found out for
//! many at once; then all of them are stored, then time passes for all of them. That comes to the same as one
//! packet after the other as long as time has passed before a packet whose flow's train is due, or that makes
//! a train leave. Short loops over few things do without most of the loads, stores and calls that one long
//! loop needs.
//!
//! Any other packet is left to [`Reframe::packet`].

use core::ops::Range;

use super::config::Policy;
use super::flow_table::{Entry, NONE, is_open};
use slipstream_core::stage::Output;

use super::block::Block;
use super::leaving::{Leaving, order_by, sort};
use super::reframer::{AHEAD, Reframe};
use super::slot::TrainSlot;
use super::stats::Cause;
use slipstream_core::batch::{BATCH, Batch, Train};
use slipstream_core::frame::{Frame, Info};
use slipstream_core::keys::{KeySlice, is_short};
use slipstream_core::pool::Pool;
use slipstream_core::time::Nanos;
use slipstream_wire::FlowKey;

impl Reframe {
    /// Makes entries for flows that are new, as long as there is room, so that their packets can take the
    /// fast path.
    #[inline(never)]
    pub(super) fn admit(
        &mut self,
        frames: &[Frame],
        keys: KeySlice<'_>,
        hashes: &[u64],
        candidates: &mut [u32],
    ) {
        let packets = frames.iter().zip(keys.kept()).zip(hashes).zip(candidates);
        for (((frame, key), hash), candidate) in packets {
            if *candidate == NONE && frame.info.classified() {
                let now = frame.arrival.max(self.instant);
                *candidate = self.table.admit(&keys.key_of(*key), *hash, now).unwrap_or(NONE);
            }
        }
    }

    /// Returns false of a packet that the fast path never holds. Such packets come one after the other, too,
    /// where much of the traffic is to pass.
    #[inline(always)]
    pub(super) fn may_go_fast(&self, block: &Block<'_>, at: usize) -> bool {
        let frame_and_rule = block.frames.get(at).zip(self.bypass_info);
        frame_and_rule.is_some_and(|(frame, bypass)| has_to_wait(frame.info, bypass))
    }

    /// Finds the packets of a block, from number `from` on, that the fast path holds; returns the number of
    /// the first that it doesn't. Those before it are counted as arrived, and must be given to
    /// [`Reframe::hold_fast`]. With `JOINING` their trains are prefetched: most packets join one.
    #[inline(never)]
    pub(super) fn fast_run<const JOINING: bool>(&mut self, block: &Block<'_>, from: usize) -> usize {
        let Some(bypass) = self.bypass_info else { return from };
        let (room, mut room_bytes) = self.room();
        let end = block.frames.len().min(from.saturating_add(room));
        let mut at = from;
        loop {
            let frames = block.frames.get(at..end).unwrap_or_default();
            let keys = block.keys.kept().get(at..).unwrap_or_default();
            let hashes = block.hashes.get(at..).unwrap_or_default();
            let candidates = block.candidates.get(at..).unwrap_or_default();
            for (((frame, key), &hash), &candidate) in frames.iter().zip(keys).zip(hashes).zip(candidates) {
                let Some(rest) = room_bytes.checked_sub(u64::from(frame.len)) else { break };
                if !has_to_wait(frame.info, bypass) || !is_short(*key) {
                    break;
                }
                let key = FlowKey::Narrow(*key);
                let Some(train) = self.table.train_of(&key, hash, candidate) else { break };
                if JOINING {
                    self.hold.prefetch(train);
                }
                room_bytes = rest;
                at += 1;
            }
            // Long keys are compared elsewhere: a loop without calls keeps in registers what it needs.
            match self.fast_with_long_key(block, at, room_bytes) {
                Some(rest) if at < end => room_bytes = rest,
                _ => break,
            }
            at += 1;
        }
        let flows = block.candidates.get(from..at).unwrap_or_default();
        let mut changes = 0;
        if let Some((_, later)) = flows.split_first() {
            changes = flows.iter().zip(later).map(|(a, b)| u32::from(a != b)).sum();
        }
        self.came(flows, changes);
        at
    }

    /// As [`Reframe::fast_run`], where packets come in runs of one flow: what the packets of a run have in
    /// common is looked at once.
    #[inline(never)]
    pub(super) fn fast_runs(&mut self, block: &Block<'_>, from: usize) -> usize {
        let Some(bypass) = self.bypass_info else { return from };
        let (room, mut room_bytes) = self.room();
        let end = block.frames.len().min(from.saturating_add(room));
        let (mut at, mut before, mut changes) = (from, NONE, 0);
        while at < end {
            let run = at..block.run_end(at).min(end);
            let (Some(key), Some(&hash)) = (block.keys.get(at), block.hashes.get(at)) else { break };
            let Some(&candidate) = block.candidates.get(at) else { break };
            let Some(train) = self.table.train_of(&key, hash, candidate) else { break };
            self.hold.prefetch(train);
            for frame in block.frames.get(run.clone()).unwrap_or_default() {
                let Some(rest) = room_bytes.checked_sub(u64::from(frame.len)) else { break };
                if !has_to_wait(frame.info, bypass) {
                    break;
                }
                room_bytes = rest;
                at += 1;
            }
            // Of the first run nothing is before it.
            changes += u32::from(at > run.start && candidate != before && before != NONE);
            before = candidate;
            if at < run.end {
                break;
            }
        }
        self.came(block.candidates.get(from..at).unwrap_or_default(), changes);
        at
    }

    /// The packets, and the captured bytes, that there is room for beside those inside.
    #[inline(always)]
    fn room(&self) -> (usize, u64) {
        let packets = self.capacity.saturating_sub(self.hold.packets() + self.leaving_packets);
        let bytes = self.capacity_bytes.saturating_sub(self.hold.bytes() + self.leaving_bytes);
        (packets as usize, bytes)
    }

    /// Counts packets of these flows as arrived. The flow is another one so many times among them.
    #[inline(always)]
    fn came(&mut self, flows: &[u32], changes: u32) {
        if let [first, ..] = flows
            && let [.., last] = flows
        {
            self.stats.runs_in += u64::from(changes) + u64::from(*first != self.last_in);
            self.last_in = *last;
            // A few packets say little about those that follow.
            if flows.len() >= AHEAD / 4 {
                self.in_runs = 3 * changes as usize <= flows.len();
            }
        }
    }

    /// The room in bytes behind a packet, if it has a long key and the fast path holds it.
    #[inline(never)]
    fn fast_with_long_key(&self, block: &Block<'_>, at: usize, room_bytes: u64) -> Option<u64> {
        let (frame, kept) = (block.frames.get(at)?, *block.keys.kept().get(at)?);
        let rest = room_bytes.checked_sub(u64::from(frame.len))?;
        if is_short(kept) || !has_to_wait(frame.info, self.bypass_info?) {
            return None;
        }
        let (hash, candidate) = (*block.hashes.get(at)?, *block.candidates.get(at)?);
        let train = self.table.train_of(block.keys.long_key(kept), hash, candidate)?;
        self.hold.prefetch(train);
        Some(rest)
    }

    /// Holds packets on the fast path.
    pub(super) fn hold_fast(
        &mut self,
        pool: &mut Pool,
        block: &Block<'_>,
        range: Range<usize>,
        out: &mut dyn Output,
    ) {
        let Some(last) = block.frames.get(range.clone()).and_then(<[Frame]>::last) else { return };
        let (mut at, mut caught_up) = (range.start, range.start);
        loop {
            at += if self.in_runs {
                self.store_runs(block, at..range.end)
            } else {
                self.store(block, at..range.end)
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
            let train = entry.train;
            self.hold.count(1, u64::from(frame.len));
            if !is_open(train) {
                let first = Frame { flow, hash: block.hash(at), ..*frame };
                entry.train = self.hold.open(0, block.sequence(at), first);
            } else if self.hold.append(train, frame) >= self.burst {
                self.leave(train, Cause::Full);
            }
            at += 1;
            caught_up = at;
        }
        let rest = block.frames.get(caught_up..range.end).unwrap_or_default();
        self.catch_up(pool, rest, last.arrival, out);
    }

    /// Stores packets without looking at the time, as far as nothing leaves by what they do and memory is
    /// there; returns how many.
    #[inline(never)]
    fn store(&mut self, block: &Block<'_>, range: Range<usize>) -> usize {
        let (stored, opened) = self.hold.store(self.table.entries_mut(), block, range, self.burst);
        self.joining = 2 * opened < stored;
        stored
    }

    /// The same, a run of packets of one flow at a time.
    #[inline(never)]
    fn store_runs(&mut self, block: &Block<'_>, range: Range<usize>) -> usize {
        let (stored, opened) = self.hold.store_runs(self.table.entries_mut(), block, range, self.burst);
        self.joining = 2 * opened < stored;
        stored
    }

    /// Lets time pass to `now`. Of `stored`, packets that count as held already, none arrived before the
    /// instant so far.
    pub(super) fn catch_up(
        &mut self,
        pool: &mut Pool,
        mut stored: &[Frame],
        now: Nanos,
        out: &mut dyn Output,
    ) {
        if now <= self.instant {
            return;
        }
        loop {
            if self.hold.due().min(now) > self.instant {
                self.emit_leaving(pool, out);
                stored = self.release(stored, now);
                while let Some(later) = self.release_together(stored, now) {
                    stored = self.release(later, now);
                }
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

    /// Emits trains that are due before `now`, up to the first that is due together with another, or for
    /// which the batch has no place. Returns what of `stored` arrives only after that.
    #[inline(never)]
    fn release<'a>(&mut self, stored: &'a [Frame], now: Nanos) -> &'a [Frame] {
        let mut before = *self.table.last();
        if before == NONE || self.hold.due() >= now {
            return stored;
        }
        let Batch { frames, trains, .. } = &mut self.out;
        let (start, first) = (frames.len(), trains.len());
        let leading = self.hold.leading(now, BATCH.saturating_sub(start));
        let (table, policy, hold_ns) = (&mut self.table, self.policy, self.alone.hold_ns);
        let (mut at, mut runs) = (start as u32, 0);
        trains.extend(self.hold.first(leading.trains).map(|(_, slot)| {
            let (flow, sequence, start, len) = (slot.flow(), slot.sequence, at, u32::from(slot.count));
            at += len;
            let order = leaves(table.get_mut(flow), slot, policy);
            let continues = before == flow;
            before = flow;
            runs += u64::from(!continues);
            let release = slot.base().after(hold_ns);
            Train { flow, start, len, release, order, sequence, continues }
        }));
        *table.last() = before;
        self.stats.runs_out += runs;
        // Finds the most packets held at the moment at which each train is about to leave.
        let (mut held, mut come, mut peak) = (self.hold.packets(), 0, 0);
        for train in trains.get(first..).unwrap_or_default() {
            while let Some(frame) = stored.get(come)
                && frame.arrival < train.release
            {
                come += 1;
            }
            peak = peak.max(held - (stored.len() - come) as u32);
            held -= train.len;
            self.instant = train.release;
        }
        self.hold.note_peak(peak);
        let mut longer = 0;
        if let Some(class) = self.stats.classes.first_mut() {
            self.hold.close_leading(&leading, frames, |release, train| {
                longer += 1;
                class.train_left(Cause::Deadline, release, train);
            });
        }
        self.alone.trains += (leading.trains - longer) as u64;
        stored.get(come..).unwrap_or_default()
    }

    /// Emits the trains that are due first, all at one time before `now`, in the order of the policy: those
    /// of packets that came in one burst. Returns what of `stored` arrives only after that, and `None` where
    /// there is no such train, or no place in the batch for all of them.
    #[inline(never)]
    fn release_together<'a>(&mut self, stored: &'a [Frame], now: Nanos) -> Option<&'a [Frame]> {
        let Self { hold, table, leaving, out, policy, .. } = self;
        let Batch { frames, trains, .. } = out;
        let mut before = *table.last();
        let leading = hold.leading_together(now, BATCH.saturating_sub(frames.len()))?;
        if before == NONE {
            return None;
        }
        let release = hold.due();
        leaving.extend(hold.first(leading.trains).map(|(train, slot)| {
            let order = leaves(table.get_mut(slot.flow()), slot, *policy);
            Leaving { order, sequence: slot.sequence, train, cause: Cause::Deadline }
        }));
        sort(leaving);
        let later = arriving_from(stored, release);
        hold.note_peak(hold.packets() - later.len() as u32);
        let (mut alone, mut runs) = (0, 0);
        let class = self.stats.classes.first_mut()?;
        for Leaving { order, sequence, train, .. } in leaving.drain(..) {
            let (start, flow) = (frames.len(), hold.train(train).flow());
            hold.take_out(train, frames);
            let packets = frames.get(start..).unwrap_or_default();
            match packets {
                [_] => alone += 1,
                _ => class.train_left(Cause::Deadline, release, packets),
            }
            let continues = before == flow;
            before = flow;
            runs += u64::from(!continues);
            let (start, len) = (start as u32, packets.len() as u32);
            trains.push(Train { flow, start, len, release, order, sequence, continues });
        }
        hold.close_first(&leading);
        *table.last() = before;
        self.stats.runs_out += runs;
        self.alone.trains += alone;
        self.instant = release;
        Some(later)
    }
}

/// True of a packet that has a flow, and that no rule lets pass: the fast path holds no other. Rules are a
/// mask and a value.
#[inline(always)]
fn has_to_wait(info: Info, bypass: (u64, u64)) -> bool {
    info.classified() && !info.is(bypass)
}

/// The train of a flow leaves. Returns its order among those that leave with it.
#[inline(always)]
fn leaves(entry: &mut Entry, slot: &TrainSlot, policy: Policy) -> u64 {
    entry.train = NONE;
    entry.count(slot.count);
    order_by(policy, entry, slot)
}

/// The packets that arrive at `time` or later.
#[inline(always)]
pub(super) fn arriving_from(mut frames: &[Frame], time: Nanos) -> &[Frame] {
    while let Some((first, rest)) = frames.split_first()
        && first.arrival < time
    {
        frames = rest;
    }
    frames
}
