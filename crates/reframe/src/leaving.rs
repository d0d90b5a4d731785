//! The way out of the stage: trains leave their lists, those that leave at one instant are put in order, and
//! all go out in batches.

use super::config::Policy;
use super::flow_table::{Entry, is_open};
use super::reframer::Reframe;
use super::slot::TrainSlot;
use super::stats::Cause;
use slipstream_core::batch::{BATCH, Train};
use slipstream_core::frame::Frame;
use slipstream_core::pool::Pool;
use slipstream_core::stage::Output;
use slipstream_core::time::Nanos;

/// A train that leaves at the current instant and waits for its place among the others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaving {
    pub(super) order: u64,
    /// Number of its first packet, which parts trains of one order.
    pub(super) sequence: u64,
    pub(super) train: u32,
    pub(super) cause: Cause,
}

/// The order of a train, whose packets count for its flow already, among those that leave with it; weights
/// left out.
#[inline(always)]
pub(super) fn order_by(policy: Policy, entry: &Entry, slot: &TrainSlot) -> u64 {
    match policy {
        Policy::Oldest => entry.first_seen.0,
        Policy::Waiting => slot.base().0,
        Policy::Shortest => u64::from(entry.packets()) << 32,
    }
}

/// Puts trains that leave at one instant in order.
#[inline(always)]
pub(super) fn sort(leaving: &mut [Leaving]) {
    // One number is compared without a branch.
    leaving.sort_unstable_by_key(|l| u128::from(l.order) << 64 | u128::from(l.sequence));
}

/// Trains of one packet that left at their deadline: all waited exactly as long, so that one counter says
/// everything.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alone {
    pub(super) hold_ns: u64,
    pub(super) trains: u64,
}

impl Reframe {
    /// Lets a packet pass at once, behind what its flow has inside.
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "one packet with all that was found out about it")]
    pub(super) fn pass(
        &mut self,
        pool: &mut Pool,
        frame: &Frame,
        class: u8,
        train: u32,
        cause: Cause,
        sequence: u64,
        out: &mut dyn Output,
    ) {
        if is_open(train) {
            self.leave(train, Cause::Bypass);
        }
        self.emit_leaving(pool, out);
        if let Some(finish) = &mut self.finish {
            finish.observe(pool, frame);
        }
        if let Some(stats) = self.stats.classes.get_mut(class as usize) {
            stats.packets_out += 1;
            stats.packets_bypassed += u64::from(cause == Cause::Bypass);
            stats.train(cause, 1);
            stats.delay.record(0);
        }
        self.emit_single(pool, frame, class, sequence, out);
    }

    /// Emits a packet that is a train by itself; one that isn't classified has no class.
    #[inline(always)]
    pub(super) fn emit_single(
        &mut self,
        pool: &mut Pool,
        frame: &Frame,
        class: u8,
        sequence: u64,
        out: &mut dyn Output,
    ) {
        if self.out.frames.len() + 1 > BATCH {
            self.flush(pool, out);
        }
        let classified = frame.info.classified();
        let continues = classified && self.table.continues(frame.flow);
        self.stats.runs_out += u64::from(classified && !continues);
        if classified {
            self.by_class.left(&mut self.stats, class, !continues);
        }
        let start = self.out.frames.len() as u32;
        self.out.frames.push(*frame);
        let (flow, release) = (frame.flow, self.instant);
        self.out.trains.push(Train { flow, start, len: 1, release, order: 0, sequence, continues });
    }

    /// Takes a train from its list: it leaves at the current instant.
    #[inline(always)]
    pub(super) fn leave(&mut self, train: u32, cause: Cause) {
        // A packet that makes its train leave was never held.
        self.hold.note_peak(self.hold.packets() - self.early - u32::from(cause == Cause::Full));
        self.hold.unlink(train);
        let slot = self.hold.train(train);
        self.by_class.let_go(&mut self.stats, slot.class, slot.count, cause);
        let entry = self.table.get_mut(slot.flow());
        entry.train_leaves(slot.class);
        entry.count(slot.count);
        let order = order_by(self.policy, entry, slot);
        let weight = if self.weighted {
            self.class_settings.get(slot.class as usize).map_or(1, |t| t.weight)
        } else {
            0
        };
        let order = match (weight, self.policy) {
            (0, _) => order,
            (weight, Policy::Shortest) => order / u64::from(weight),
            (weight, _) => u64::MAX - self.instant.since(Nanos(order)).saturating_mul(u64::from(weight)),
        };
        self.leaving_packets += u32::from(slot.count);
        self.leaving_bytes += u64::from(slot.bytes);
        self.leaving.push(Leaving { order, sequence: slot.sequence, train, cause });
    }

    /// Emits what leaves at the current instant, in the order of the policy.
    #[inline(always)]
    pub(super) fn emit_leaving(&mut self, pool: &mut Pool, out: &mut dyn Output) {
        if !self.leaving.is_empty() {
            self.emit_group(pool, out);
        }
    }

    #[inline(never)]
    fn emit_group(&mut self, pool: &mut Pool, out: &mut dyn Output) {
        if self.leaving.len() > 1 {
            sort(&mut self.leaving);
        }
        let mut at = 0;
        while let Some(&leaving) = self.leaving.get(at) {
            self.emit_train(pool, leaving, out);
            at += 1;
        }
        self.leaving.clear();
        (self.leaving_packets, self.leaving_bytes) = (0, 0);
    }

    fn emit_train(&mut self, pool: &mut Pool, leaving: Leaving, out: &mut dyn Output) {
        let Leaving { order, sequence, train, cause } = leaving;
        let slot = self.hold.train(train);
        let (class, count, flow) = (slot.class, usize::from(slot.count), slot.flow());
        if self.out.frames.len() + count > BATCH {
            self.flush(pool, out);
        }
        let release = self.instant;
        let Some(stats) = self.stats.classes.get_mut(class as usize) else { return };
        let start = self.out.frames.len();
        let frames = &mut self.out.frames;
        self.hold.close(train, frames);
        stats.train_left(cause, release, frames.get(start..).unwrap_or_default());
        if let Some(finish) = &mut self.finish {
            let coalesced = finish.finish(pool, frames, start) as u64;
            stats.packets_coalesced += coalesced;
            stats.packets_out -= coalesced;
        }
        let len = frames.len() - start;
        self.table.get_mut(flow).train_is_out();
        let continues = self.table.continues(flow);
        self.stats.runs_out += u64::from(!continues);
        self.by_class.left(&mut self.stats, class, !continues);
        let (start, len) = (start as u32, len as u32);
        self.out.trains.push(Train { flow, start, len, release, order, sequence, continues });
    }

    #[inline(never)]
    pub(super) fn flush(&mut self, pool: &mut Pool, out: &mut dyn Output) {
        if !self.out.is_empty() {
            self.stats.packets_out += self.out.frames.len() as u64;
            if let Some(gro) = &mut self.gro {
                gro.mark(pool, &mut self.out);
            }
            out.emit(pool, &mut self.out);
            self.out.clear();
        }
    }
}
