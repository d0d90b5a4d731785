//! A replay of one source through the reframer: a pipeline of one stage, built from values.

use std::ops::ControlFlow;

use slipstream_core::batch::Batch;
use slipstream_core::interface::Interface;
use slipstream_core::pool::Pool;
use slipstream_core::source::Source;
use slipstream_core::stage::{Context, Egress, Observe, Output, Stage, StageError};
use slipstream_io::capture::CaptureError;
use slipstream_io::sink::{Sink, deliver, free};
use slipstream_reframe::{ConfigError, ReframeConfig, ReframeStage, ReframeStats};
use thiserror::Error;

use super::driver::Driver;
use super::ends::{Destination, Origin};
use super::graph::Pipeline;
use super::report::{RunError, RunReport};
use crate::stages::with_heavy_flows;

/// Told now and then how far a replay is, as a share of 1 where that is known; says whether to go on.
pub type Tick<'a> = dyn FnMut(Option<f64>) -> ControlFlow<()> + 'a;

/// The reason why a replay ended early.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// The input can't be read on, or the output can't be written.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A setting is out of range.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// The result of a replay.
#[derive(Clone, Debug, Default)]
pub struct ReplayReport {
    /// The stage's counters.
    pub stats: ReframeStats,
    /// Packets whose time ran backwards; they were taken to arrive with the packet before them.
    pub clock_backwards: u64,
    /// Real time of the data path, in ns. On one thread it leaves out what the output took; on several it is
    /// all of the time.
    pub elapsed_ns: u64,
    /// CPU time of the data path, of all threads, in ns.
    pub cpu_ns: u64,
    /// Whoever is told of the progress wanted no more: what was held or not yet read did not leave.
    pub interrupted: bool,
}

/// The clock by which packets come and go in a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// The capture's own, as fast as it goes.
    #[default]
    Fast,
    /// The wall clock: packets come as long after the first one as in the capture.
    Real,
}

/// A replay of one source through a reframer.
#[derive(Clone, Copy, Debug)]
pub struct Replay<'a> {
    config: &'a ReframeConfig,
    workers: usize,
    pace: Pace,
    vouched: bool,
}

impl<'a> Replay<'a> {
    /// With these settings, on one thread.
    ///
    /// # Errors
    /// [`ConfigError`] where a setting is out of range.
    pub fn new(config: &'a ReframeConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self { config, workers: 1, pace: Pace::Fast, vouched: false })
    }

    /// On `workers` threads; see [`Driver::workers`]. More than one are refused
    /// ([`RunError::NotShared`]) where nobody vouches for source and destination: see
    /// [`between`](Self::between) and [`vouched`](Self::vouched).
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    /// Lets source and destination work beside other threads in the same packet memory.
    ///
    /// # Safety
    /// As for [`Registry::register_shared`](crate::pipeline::Registry::register_shared), of both.
    #[allow(unsafe_code)]
    #[must_use]
    pub unsafe fn vouched(mut self) -> Self {
        self.vouched = true;
        self
    }

    /// At this pace; see [`Driver::pace`].
    #[must_use]
    pub fn pace(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
    }

    /// The driver of such a replay between two ends of this library.
    ///
    /// # Errors
    /// [`ConfigError`] where a setting is out of range.
    #[allow(unsafe_code)]
    pub fn between(&self, from: Origin, to: Destination) -> Result<Driver, ConfigError> {
        let (source, pool) = from.into_parts();
        // SAFETY: sources and destinations of this library forget a packet's `BufId` when they give it on.
        unsafe { self.vouched() }.driver(source, pool, to.into_stage())
    }

    /// The driver of such a replay, of everything that `source` has, whose packets may lie in `pool` already;
    /// `out` is the stage that they go to, such as [`ToSink`] or the
    /// [`Outlet`](slipstream_core::port::Outlet) of a capture file.
    ///
    /// # Errors
    /// [`ConfigError`] where a setting is out of range.
    #[allow(unsafe_code)]
    pub fn driver(
        &self,
        source: Box<dyn Source + Send>,
        pool: Pool,
        mut out: Box<dyn Stage + Send>,
    ) -> Result<Driver, ConfigError> {
        let discards = out.egress().is_some_and(|end| end.discards());
        let reframe: Box<dyn Stage + Send> = Box::new(ReframeStage::new(&with_heavy_flows(self.config))?);
        let stages = vec![("reframe".to_owned(), reframe), ("out".to_owned(), out)];
        let pipeline = Pipeline::chain(stages).from_source(source);
        let mut pipeline = if self.vouched {
            // SAFETY: the reframer forgets a packet's `BufId` when the packet goes on; source and destination
            // do so too, as the caller of `vouched` promised.
            unsafe { pipeline.shared() }
        } else {
            pipeline
        };
        pipeline.untimed();
        if self.workers == 1 && !discards {
            pipeline.leave_out("out");
        }
        Ok(Driver::new(pipeline).workers(self.workers).pace(self.pace).pool(pool))
    }

    /// Runs the [`driver`](Self::driver). `tick` is called now and then with the progress. Where it wants no
    /// more, a replay at [`Pace::Real`] lets go what it holds and ends well; any other stops where it is, and
    /// its report says that it was [interrupted](ReplayReport::interrupted).
    ///
    /// # Errors
    /// [`ReplayError`] where the input can't be read or the output can't be written.
    pub fn run(
        &self,
        source: impl Source + Send + 'static,
        pool: Pool,
        sink: impl Sink + Send + 'static,
        tick: &mut Tick<'_>,
    ) -> Result<ReplayReport, ReplayError> {
        let mut driver = self.driver(Box::new(source), pool, Box::new(ToSink::new(sink)))?;
        Ok(ReplayReport::from(&driver.run(tick)?))
    }
}

impl From<&RunReport> for ReplayReport {
    fn from(report: &RunReport) -> Self {
        Self {
            stats: report.stages.iter().find_map(|s| s.reframe.as_deref()).cloned().unwrap_or_default(),
            clock_backwards: report.sources.iter().map(|s| s.clock_backwards).sum(),
            elapsed_ns: report.elapsed_ns,
            cpu_ns: report.cpu_ns,
            interrupted: report.interrupted,
        }
    }
}

/// The stage that hands packets to a [`Sink`] at the end of a pipeline.
#[derive(Debug)]
pub struct ToSink<S> {
    sink: S,
    failed: Option<CaptureError>,
}

impl<S: Sink> ToSink<S> {
    /// To this sink.
    #[must_use]
    pub fn new(sink: S) -> Self {
        Self { sink, failed: None }
    }
}

impl<S: Sink> Stage for ToSink<S> {
    fn process(&mut self, cx: &mut Context<'_>, batch: &mut Batch, _: &mut dyn Output) {
        if self.sink.discards() || self.failed.is_some() {
            free(cx.pool, batch);
        } else if let Err(error) = deliver(&mut self.sink, cx.pool, batch) {
            self.failed = Some(error);
        }
        batch.clear();
    }

    fn is_timeless(&self) -> bool {
        true
    }

    fn egress(&mut self) -> Option<&mut dyn Egress> {
        Some(self)
    }
}

impl<S: Sink> Observe for ToSink<S> {}

impl<S: Sink> Egress for ToSink<S> {
    fn interfaces(&mut self, new: &[Interface]) -> Result<(), StageError> {
        new.iter().try_for_each(|i| self.sink.interface(i)).map_err(StageError::new)
    }

    fn failed(&self) -> bool {
        self.failed.is_some()
    }

    fn discards(&self) -> bool {
        self.sink.discards()
    }

    fn flush(&mut self) -> Result<(), StageError> {
        self.finish()
    }

    fn finish(&mut self) -> Result<(), StageError> {
        self.failed.take().map_or(Ok(()), |error| Err(StageError::new(error)))
    }
}
