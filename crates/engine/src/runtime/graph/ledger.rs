//! The counts and times of a stage, taken where it is called.

use slipstream_core::batch::{Arrivals, Batch};
use slipstream_core::clock::Meter;
use slipstream_core::stage::{Context, Output, Stage};

use super::contexts;
use crate::runtime::live::Excess;

/// Counts of a stage's packets, trains, batches and time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Packets that came in.
    pub packets: u64,
    /// Trains that came in.
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
}

impl Ledger {
    /// The tally, with the time of all calls reckoned from that of the calls that were timed.
    pub(super) fn scaled(&self, packets_out: u64) -> Tally {
        let share = |all: u64, timed: u64| if timed == 0 { 1.0 } else { all as f64 / timed as f64 };
        let by_packets = share(self.tally.packets, self.timed_packets);
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
}
