//! A replay on one core: packets in the order of the capture, time by its own clock.

use std::ops::ControlFlow;

use thiserror::Error;

use super::sink::{Sink, deliver, free};
use super::source::{Classifier, Source, SourceError};
use super::{paced, shard};
use crate::batch::{Arrivals, BATCH, Batch};
use crate::clock::Meter;
use crate::io::capture::CaptureError;
use crate::pool::Pool;
use crate::reframe::{ConfigError, Output, Reframe, ReframeConfig, ReframeStats};

/// Told now and then how far a replay is, as a share of 1 where that is known; says whether to go on.
pub type Tick<'a> = dyn FnMut(Option<f64>) -> ControlFlow<()> + 'a;

/// Why a replay ended early.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// The input can't be read on.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The output can't be written.
    #[error(transparent)]
    Sink(CaptureError),
    /// A setting is out of range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A worker thread could not be started, or ended early.
    #[error("a worker thread failed: {0}")]
    Worker(String),
}

/// What a replay did.
#[derive(Clone, Debug, Default)]
pub struct ReplayReport {
    /// The stage's counters, of all workers together.
    pub stats: ReframeStats,
    /// Packets whose time ran backwards; they were taken to arrive with the packet before them.
    pub clock_backwards: u64,
    /// Real time of the data path alone, in ns.
    pub elapsed_ns: u64,
    /// CPU time of the data path alone, of all workers, in ns.
    pub cpu_ns: u64,
    /// Whoever is told of the progress wanted no more: what was held or not yet read did not leave.
    pub interrupted: bool,
}

/// By which clock packets come and go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// By the capture's own, as fast as it goes.
    #[default]
    Fast,
    /// By the wall clock: as long after the first packet as in the capture.
    Real,
}

/// A replay of one source through one stage, or as many as there are workers.
#[derive(Debug)]
pub struct Replay<'a> {
    config: &'a ReframeConfig,
    workers: usize,
    pace: Pace,
}

impl<'a> Replay<'a> {
    /// With these settings, on one core.
    ///
    /// # Errors
    /// [`ConfigError`] where a setting is out of range.
    pub fn new(config: &'a ReframeConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self { config, workers: 1, pace: Pace::Fast })
    }

    /// On `workers` threads: each has the flows that a symmetric RSS hash gives it, and its share of capacity and
    /// flow table. What comes out depends on the input, the settings and this number, never on scheduling.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers.max(1);
        self
    }

    /// At this pace. [`Pace::Real`] takes one worker, whatever was asked for.
    #[must_use]
    pub fn pace(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
    }

    /// Replays everything that `source` has; `tick` is called now and then with the progress. Where it wants
    /// no more, a replay at [`Pace::Real`] lets go what it holds and ends well; any other stops where it is,
    /// and its report says that it was [interrupted](ReplayReport::interrupted).
    ///
    /// # Errors
    /// [`ReplayError`] where the input can't be read or the output can't be written.
    pub fn run(
        &self,
        source: &mut dyn Source,
        pool: Pool,
        sink: &mut dyn Sink,
        tick: &mut Tick<'_>,
    ) -> Result<ReplayReport, ReplayError> {
        if self.pace == Pace::Real {
            return paced::run(self.config, source, pool, sink, tick);
        }
        if self.workers > 1 {
            return shard::run(self.config, self.workers, source, pool, sink, tick);
        }
        run_one(self.config, source, pool, sink, tick)
    }
}

fn run_one(
    config: &ReframeConfig,
    source: &mut dyn Source,
    mut pool: Pool,
    sink: &mut dyn Sink,
    tick: &mut Tick<'_>,
) -> Result<ReplayReport, ReplayError> {
    let mut stage = Reframe::new(config)?;
    let mut classifier = Classifier::new(config.encapsulation);
    let mut arrivals = Arrivals::default();
    let meter = Meter::new();
    let preloaded = source.preloaded();
    // Fewer at once stay in the first-level cache on their way; more at once pay less for what is not measured.
    let at_once = if preloaded { BATCH / 4 } else { BATCH };
    let mut known = 0;
    let mut batches = 0u64;
    let mut interrupted = false;
    if preloaded {
        meter.start();
    }
    loop {
        let filled = source.fill(&mut pool, &mut arrivals, at_once);
        if source.interfaces().len() > known {
            let new = source.interfaces();
            meter
                .pause(|| new.iter().skip(known).try_for_each(|i| sink.interface(i)))
                .map_err(ReplayError::Sink)?;
            known = new.len();
            classifier.interfaces(new);
        }
        let n = filled?;
        meter.start();
        classifier.classify(&pool, &mut arrivals);
        let mut out = Deliver { sink, meter: &meter, result: Ok(()) };
        if n > 0 {
            stage.process(&mut pool, &mut arrivals, &mut out);
        } else {
            stage.finish(&mut pool, &mut out);
        }
        out.result.map_err(ReplayError::Sink)?;
        if n == 0 {
            break;
        }
        if !preloaded {
            meter.stop();
        }
        batches += 1;
        if batches.is_multiple_of(64) && tick(source.progress()).is_break() {
            interrupted = true;
            break;
        }
    }
    meter.stop();
    Ok(ReplayReport {
        stats: stage.stats(),
        clock_backwards: source.clock_backwards(),
        elapsed_ns: meter.elapsed_ns(),
        cpu_ns: meter.cpu_ns(),
        interrupted,
    })
}

/// Hands what the stage emits to the sink; what the sink does is not the data path's time.
pub(super) struct Deliver<'a> {
    pub(super) sink: &'a mut dyn Sink,
    pub(super) meter: &'a Meter,
    pub(super) result: Result<(), CaptureError>,
}

impl Output for Deliver<'_> {
    fn emit(&mut self, pool: &mut Pool, batch: &mut Batch) {
        if self.sink.discards() {
            free(pool, batch);
        } else if self.result.is_ok() {
            self.result = self.meter.pause(|| deliver(self.sink, pool, batch));
        }
    }
}
