//! The counts and times of a stage, taken where it is called.

use std::cell::Cell;

use slipstream_core::batch::{Arrivals, Batch};
use slipstream_core::clock::Meter;
use slipstream_core::source::Came;
use slipstream_core::stage::{Context, Output, Stage};

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
    /// Calls, also those in which no packet came, such as deadlines.
    pub(super) calls: u64,
    /// The calls that were timed, but for the first.
    pub(super) timed: Sample,
    /// The first one, in which memory is touched that was not before: it says nothing about others.
    pub(super) first: Option<Sample>,
    /// The stage's time as it was told, which never falls.
    pub(super) told: Cell<Told>,
    /// Measures the stage's time, if it is left out of that of the run.
    pub(super) left_out: Option<Box<Meter>>,
    /// Of the stages at the end of a live pipeline.
    pub(super) excess: Option<Box<Excess>>,
    /// The flows of batches are looked up before the stage takes them: the number of the place where that is.
    pub(super) looks_up: Option<usize>,
    /// Of the last batch whose trains were counted.
    pub(super) share: TrainShare,
}

/// Calls, the packets that came in them, and the time that they took, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sample {
    calls: u64,
    packets: u64,
    busy_ns: u64,
}

impl Sample {
    fn since(self, before: Self) -> Self {
        Self {
            calls: self.calls - before.calls,
            packets: self.packets - before.packets,
            busy_ns: self.busy_ns - before.busy_ns,
        }
    }

    /// The time of all calls, if these are some of them; `None` where nothing is known of their packets.
    fn scaled_to(self, all: Self) -> Option<u64> {
        let share = |all: u64, timed: u64| (timed > 0).then(|| all as f64 / timed as f64);
        let scale =
            if all.packets > 0 { share(all.packets, self.packets) } else { share(all.calls, self.calls) };
        scale.map(|scale| (self.busy_ns as f64 * scale) as u64)
    }
}

/// The time that was told, in ns, and what it was reckoned from.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    busy_ns: u64,
    all: Sample,
    timed: Sample,
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
    /// A call was timed, in which so many packets came.
    pub(super) fn time(&mut self, packets: u64, busy_ns: u64) {
        let Self { first, timed, .. } = self;
        let place = if first.is_some() { timed } else { first.insert(Sample::default()) };
        place.calls += 1;
        place.packets += packets;
        place.busy_ns += busy_ns;
    }

    /// The tally, with the time of all calls reckoned from that of the calls that were timed: since it was
    /// told last, from those since then. So it never falls.
    pub(super) fn scaled(&self, packets_out: u64) -> Tally {
        let (mut told, first) = (self.told.get(), self.first.unwrap_or_default());
        let all = Sample {
            calls: self.calls - first.calls,
            packets: self.tally.packets - self.relays - first.packets,
            busy_ns: 0,
        };
        // Packets of calls of which none was timed are left for the next time.
        if let Some(more) = self.timed.since(told.timed).scaled_to(all.since(told.all)) {
            told = Told { busy_ns: told.busy_ns + more, all, timed: self.timed };
            self.told.set(told);
        }
        Tally { packets_out, busy_ns: first.busy_ns + told.busy_ns, ..self.tally }
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

    /// A source led these packets here, and they have left.
    pub(super) fn relayed(&mut self, packets: u64, came: &[Came]) {
        self.relays += packets;
        self.unread(packets);
        if let Some(excess) = &mut self.excess {
            excess.relayed(came);
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
        /// Whenever it is told, the time of a stage doesn't fall, and calls that are alike are reckoned to be
        /// so: of those that came behind the last timed one nothing is known yet.
        #[test]
        fn a_stages_time_never_falls(calls in prop::collection::vec((0u64..4, any::<bool>(), any::<bool>()), 1..200)) {
            let (mut ledger, mut before, mut known) = (Ledger::default(), 0, 0);
            let all_alike = calls.iter().all(|c| c.0 == 3);
            for (n, (packets, timed, told)) in calls.into_iter().enumerate() {
                ledger.tally.packets += packets;
                ledger.calls += 1;
                if n % 16 == 0 || timed {
                    ledger.time(packets, 100 * packets);
                    known = 100 * ledger.tally.packets;
                }
                if told {
                    let now = ledger.scaled(0).busy_ns;
                    prop_assert!(now >= before, "{now} after {before}");
                    before = now;
                }
            }
            let now = ledger.scaled(0).busy_ns;
            prop_assert!(now >= before);
            if all_alike {
                prop_assert!(now >= known - 300 && now <= 100 * ledger.tally.packets);
            }
        }

        #[test]
        fn calls_that_are_alike_take_what_they_take(count in 1u64..1000, every in 1u64..20) {
            let mut ledger = Ledger::default();
            for n in 0..count {
                ledger.tally.packets += 3;
                ledger.calls += 1;
                if n % every == 0 {
                    ledger.time(3, 300);
                }
            }
            let reckoned = ledger.scaled(0).busy_ns;
            // Of a single timed call it isn't known whether others took as long.
            let expected = if count > every { 300 * count } else { 300 };
            prop_assert!(reckoned.abs_diff(expected) <= 1, "{} of {}", reckoned, expected);
        }

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
