//! The counts and times of a stage, taken where it is called.

use slipstream_core::batch::{Arrivals, Batch};
use slipstream_core::clock::Meter;
use slipstream_core::stage::{Context, Output, Stage};
use slipstream_core::time::Nanos;

use super::contexts;
use crate::runtime::live::Excess;

/// Counts of a stage's packets, trains, batches and time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Packets that came in.
    pub packets: u64,
    /// Trains that came in; reckoned from those of some of the batches where packets went from one live port
    /// to another, and nobody looked at the rest.
    pub trains: u64,
    /// Batches that came in.
    pub batches: u64,
    /// Packets that went out.
    pub packets_out: u64,
    /// Time spent in the stage itself, without the stages behind it, in ns: measured in one of 16 calls, and
    /// scaled up.
    pub busy_ns: u64,
}

/// The counts and times of a stage.
#[derive(Default)]
pub(super) struct Ledger {
    pub(super) tally: Tally,
    /// Packets that a source led here by itself, which takes no time of the stage.
    pub(super) relays: u64,
    /// Packets that came in calls that were timed.
    pub(super) timed_packets: u64,
    /// Calls in which no packet came, such as deadlines, and those of them that were timed.
    pub(super) calls: u64,
    pub(super) timed_calls: u64,
    /// Measures the stage's time, if it is left out of that of the run.
    pub(super) left_out: Option<Box<Meter>>,
    /// Of the stages at the end of a live pipeline.
    pub(super) excess: Option<Box<Excess>>,
    /// The flows of batches are looked up before the stage takes them: the number of the place where that is.
    pub(super) looks_up: Option<usize>,
    /// Of the last batch whose trains were counted.
    pub(super) share: TrainShare,
}

/// Trains a packet, and what is left of a train of batches in which nobody looked for trains; both in 1/2¹⁶.
#[derive(Clone, Copy, Default)]
pub(super) struct TrainShare {
    each: u64,
    rest: u64,
}

impl TrainShare {
    /// So many packets came as so many trains.
    fn seen(&mut self, trains: u64, packets: u64) {
        self.each = (trains << 16).checked_div(packets).unwrap_or(self.each);
    }

    /// The trains that so many packets come as, by the last that were seen.
    fn of(&mut self, packets: u64) -> u64 {
        self.rest += packets * self.each;
        let trains = self.rest >> 16;
        self.rest &= (1 << 16) - 1;
        trains
    }
}

impl Ledger {
    /// The tally, with the time of all calls reckoned from that of the calls that were timed.
    pub(super) fn scaled(&self, packets_out: u64) -> Tally {
        let share = |all: u64, timed: u64| if timed == 0 { 1.0 } else { all as f64 / timed as f64 };
        let by_packets = share(self.tally.packets - self.relays, self.timed_packets);
        let scale = if self.timed_packets == 0 { share(self.calls, self.timed_calls) } else { by_packets };
        Tally { packets_out, busy_ns: (self.tally.busy_ns as f64 * scale) as u64, ..self.tally }
    }

    /// The stage takes packets as they arrive.
    pub(super) fn arrive(
        &mut self,
        stage: &mut dyn Stage,
        cx: &mut Context<'_>,
        arrivals: &mut Arrivals,
        out: &mut dyn Output,
    ) {
        self.tally.packets += arrivals.frames.len() as u64;
        self.tally.batches += 1;
        self.tally.trains += stage.arrive(cx, arrivals, out);
    }

    /// The stage takes a batch.
    pub(super) fn process(
        &mut self,
        stage: &mut dyn Stage,
        cx: &mut Context<'_>,
        batch: &mut Batch,
        out: &mut dyn Output,
    ) {
        self.tally.packets += batch.frames.len() as u64;
        self.tally.trains += batch.trains.len() as u64;
        self.tally.batches += 1;
        self.share.seen(batch.trains.len() as u64, batch.frames.len() as u64);
        if let Some(excess) = &mut self.excess {
            excess.leaving(cx.pool, batch);
        }
        if let Some(place) = self.looks_up {
            contexts::look_up(cx, batch, place);
        }
        match &self.left_out {
            Some(meter) => {
                meter.start();
                stage.process(cx, batch, out);
                meter.stop();
            }
            None => stage.process(cx, batch, out),
        }
        if self.looks_up.is_some()
            && let Some(flows) = cx.pool.flows()
        {
            flows.leave();
        }
        if let Some(excess) = &mut self.excess {
            excess.left();
        }
    }

    /// A source led packets here that came at `now`, and they have left.
    pub(super) fn relayed(&mut self, packets: u64, now: Nanos) {
        self.relays += packets;
        self.unread(packets);
        if let Some(excess) = &mut self.excess {
            excess.relayed(packets, now);
        }
    }

    /// A batch came that has no trains.
    fn unread(&mut self, packets: u64) {
        self.tally.packets += packets;
        self.tally.trains += self.share.of(packets);
        self.tally.batches += 1;
    }

    /// The stage takes a batch of which it looks at nothing but the packets, and which has no trains.
    pub(super) fn process_unread(
        &mut self,
        stage: &mut dyn Stage,
        cx: &mut Context<'_>,
        batch: &mut Batch,
        out: &mut dyn Output,
    ) {
        self.unread(batch.frames.len() as u64);
        if let Some(excess) = &mut self.excess {
            excess.leaving_unread(cx.pool, &batch.frames);
        }
        stage.process(cx, batch, out);
        if let Some(excess) = &mut self.excess {
            excess.left();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Where all batches are alike, what is reckoned is what there was, to one train a batch that was
        /// looked at.
        #[test]
        fn trains_are_reckoned_from_those_that_were_seen(packets in 1u64..=256, share in 1u64..=256, batches in 1u64..2000) {
            let trains = (packets * share / 256).max(1);
            let mut known = TrainShare::default();
            known.seen(trains, packets);
            let reckoned: u64 = (0..batches).map(|_| known.of(packets)).sum();
            let all = trains * batches;
            // 1/2¹⁶ of a train is lost for each packet at most.
            let lost = packets * batches / (1 << 16) + 1;
            prop_assert!((all.saturating_sub(lost)..=all).contains(&reckoned), "{} of {}", reckoned, all);
        }
    }

    #[test]
    fn nothing_is_reckoned_before_anything_was_seen() {
        let mut share = TrainShare::default();
        assert_eq!(share.of(100), 0);
        share.seen(0, 0);
        assert_eq!(share.of(100), 0);
    }
}
