//! The driver of pipelines: one loop for replays, live runs and measurements of the engine itself.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use slipstream_core::batch::{Arrivals, BATCH, Batch};
use slipstream_core::classify::Classifier;
use slipstream_core::clock::Meter;
use slipstream_core::operate::Operate;
use slipstream_core::pool::Pool;
use slipstream_core::registry::OneThread;
use slipstream_core::time::Nanos;
use slipstream_io::capture::CaptureReader;

use super::capture_time::CaptureTime;
use super::feeds::{Course, Feed, Round};
use super::graph::{Crossing, Pipeline, Sections, StopOnPanic};
use super::live::{LiveOptions, WallTime};
use super::monitor::Monitor;
use super::operator::Inbox;
use super::poll_log::PollLog;
use super::replay::{Pace, Tick};
use super::report::{Draft, RunError, RunReport, SourceReport};
use super::service_time::{ServiceTime, ServiceTimeReport};
use crate::pipeline::Plan;

/// The end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Everything that came has left.
    Well,
    /// It stopped where it was.
    Interrupted,
}

/// The limits at which a run ends, whatever the sources still have.
pub(super) struct Limits {
    pub(super) end: Nanos,
    pub(super) packets: u64,
}

impl Limits {
    pub(super) const NONE: Self = Self { end: Nanos(u64::MAX), packets: u64::MAX };
}

/// The clock that a run goes by.
pub(super) trait Clock {
    /// Gets ready for the first round.
    fn begin(&mut self, driver: &mut Driver, run: &mut Run<'_>) -> Result<Limits, RunError>;

    /// The course of the next round, once it may begin; or the end.
    fn next(&mut self, driver: &mut Driver, run: &mut Run<'_>) -> Result<ControlFlow<End, Course>, RunError>;

    /// Nothing more will come, and other threads run sections: lets time run on there, where that is for them
    /// to do.
    fn all_came(&mut self, driver: &mut Driver, run: &mut Run<'_>);

    /// Lets time pass after a round; or ends.
    fn passed(&mut self, driver: &mut Driver, run: &mut Run<'_>, round: Round) -> ControlFlow<End>;

    /// Lets what is held leave, unless the run was interrupted.
    fn end(&mut self, driver: &mut Driver, run: &mut Run<'_>, interrupted: bool);
}

/// A run that is under way.
pub(super) struct Run<'a> {
    pub(super) feeds: Vec<Feed>,
    pub(super) meter: Meter,
    pub(super) sections: Option<&'a Sections>,
    pub(super) crossing: Crossing,
    tick: &'a mut dyn FnMut(Option<f64>) -> ControlFlow<()>,
}

impl<'a> Run<'a> {
    fn new(
        driver: &mut Driver,
        sections: Option<&'a Sections>,
        tick: &'a mut dyn FnMut(Option<f64>) -> ControlFlow<()>,
    ) -> Self {
        let (feeds, meter, crossing) = (driver.feeds(), Meter::new(), Crossing::default());
        Self { feeds, meter, sections, crossing, tick }
    }

    /// Tells how far it is; asks whether to go on.
    pub(super) fn tick(&mut self, done: Option<f64>) -> ControlFlow<()> {
        (self.tick)(done)
    }

    /// Packets that went in.
    pub(super) fn taken(&self) -> u64 {
        self.feeds.iter().map(|f| f.packets).sum()
    }

    /// Returns true if no source has anything more.
    pub(super) fn at_end(&self) -> bool {
        self.feeds.iter().all(Feed::at_end)
    }
}

/// Drives a pipeline by one of three clocks: the captures' own, as fast as it goes or slowed down to the wall
/// clock; the wall clock, where a port is live; or the time that its own work takes. A replay may have
/// several threads.
///
/// A replay over captures and generated traffic is a discrete-event simulation. Several sources are merged by
/// time. Where all packets take one way, whole batches go through; where packets that were held may meet
/// others, or some go round, events go through one by one, so that everything happens in the order of time.
///
/// ```
/// use std::ops::ControlFlow;
///
/// use slipstream::pipeline::Plan;
/// use slipstream::runtime::Driver;
///
/// let traffic = "flows=4,packets=1000,order=round-robin";
/// let graph = format!("in :: synth(traffic=\"{traffic}\") -> reframe(hold=64us) -> counter -> null");
/// let plan = Plan::from_graph(&graph, None, None, "".as_ref())?;
/// // On two threads what comes out is that of one, to the byte.
/// let mut driver = Driver::new(plan.build(plan.seeds(None))?).workers(2);
/// let report = driver.run(&mut |_| ControlFlow::Continue(()))?;
/// assert_eq!((report.sources[0].packets, report.live), (1000, 0));
/// let trains = report.stages.iter().find(|stage| stage.name == "counter").map(|stage| stage.tally.trains);
/// assert!(trains < Some(1000), "packets of a flow came back to back");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Driver {
    pub(super) pipeline: Pipeline,
    pub(super) pool: Pool,
    /// The pool was given, or was made for the ports of the pipeline.
    pub(super) own_pool: bool,
    pub(super) now: Nanos,
    pub(super) live: LiveOptions,
    pub(super) log: Option<PollLog>,
    pub(super) service_time: Option<ServiceTimeReport>,
    monitor: Option<Monitor>,
    /// Requests of the operator of a live run.
    inbox: Option<Arc<Inbox>>,
    /// The report of a live run that ended with an error.
    pub(super) partial: Option<RunReport>,
    workers: usize,
    pace: Pace,
    largest_batch: usize,
    strict: bool,
    /// CPU time of the threads beside this one, in ns.
    workers_cpu_ns: u64,
    /// Other shards of a live run.
    pub(super) shards: Vec<Driver>,
    /// Set once a shard is about to end: all others are to, too.
    pub(super) stop_shards: Arc<AtomicBool>,
    pub(super) classifier: Classifier,
    pub(super) batch: Batch,
    pub(super) arrivals: Arrivals,
    pub(super) sequence: u64,
    /// Batches of packets that nobody needs to look at.
    pub(super) unread: u32,
    /// Interfaces of all sources.
    pub(super) interfaces: u32,
}

impl Driver {
    /// Of this pipeline.
    #[must_use]
    pub fn new(pipeline: Pipeline) -> Self {
        Self {
            pipeline,
            pool: Pool::new(),
            own_pool: false,
            workers: 1,
            pace: Pace::Fast,
            largest_batch: BATCH,
            strict: false,
            workers_cpu_ns: 0,
            shards: Vec::new(),
            stop_shards: Arc::default(),
            classifier: Classifier::default(),
            batch: Batch::new(),
            arrivals: Arrivals::default(),
            now: Nanos(0),
            sequence: 0,
            unread: 0,
            interfaces: 0,
            live: LiveOptions::default(),
            log: None,
            service_time: None,
            monitor: None,
            inbox: None,
            partial: None,
        }
    }

    /// On so many threads (at least 1), should it be a replay. What comes out is the same to the byte,
    /// whatever their number: see the sections of a pipeline.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers.max(1);
        self
    }

    /// By this clock, should it be a replay. By the wall clock it takes one thread, whatever was asked for.
    #[must_use]
    pub fn pace(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
    }

    /// With at most so many packets of a source at a time, 1 to 256 (the default), should it be a replay.
    /// The same packets leave whatever it is; smaller batches cost more, and counters of batches and of the
    /// messages of an export are higher.
    #[must_use]
    pub fn largest_batch(mut self, packets: usize) -> Self {
        self.largest_batch = packets.clamp(1, BATCH);
        self
    }

    /// With a damaged capture as an error, should it be a replay: no file is written then. Otherwise all that
    /// precedes the damage is used.
    #[must_use]
    pub fn strict(mut self, strict: bool) -> Self {
        self.strict = strict;
        self
    }

    /// With this pool, in which packets of its sources lie already.
    #[must_use]
    pub fn pool(mut self, pool: Pool) -> Self {
        (self.pool, self.own_pool) = (pool, true);
        self
    }

    /// With these settings, should it be a live run.
    #[must_use]
    pub fn live(mut self, options: LiveOptions) -> Self {
        self.live = options;
        self
    }

    /// The settings of a live run.
    #[must_use]
    pub fn live_options(&self) -> &LiveOptions {
        &self.live
    }

    /// Reports to this monitor while it goes on, when it is asked.
    #[must_use]
    pub fn monitor(mut self, monitor: Monitor) -> Self {
        self.monitor = Some(monitor);
        self
    }

    /// The polls of the live run that is over, if they were to be logged.
    #[must_use]
    pub fn poll_log(&self) -> Option<&PollLog> {
        self.log.as_ref()
    }

    /// The report of a live run that an error ended, up to then; once.
    pub fn take_partial(&mut self) -> Option<RunReport> {
        self.partial.take()
    }

    /// The stages that can read something anew while a live run goes on, and what: see
    /// [`LiveOptions::reload`].
    #[must_use]
    pub fn reloads(&self) -> Vec<(&str, &'static str)> {
        self.pipeline.reloads()
    }

    /// The remarks that its stages have, as [`Plan::notes`] gives them of the plan that it was built from,
    /// without another pipeline being put together for them.
    #[must_use]
    pub fn notes(&self, plan: &Plan) -> Vec<(String, String)> {
        plan.notes_on(&self.pipeline)
    }

    /// Returns true if its stages keep what they decided in flow contexts.
    #[must_use]
    pub fn has_contexts(&self) -> bool {
        self.pipeline.context_counts().is_some()
    }

    /// Says that it follows the wall clock.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.pipeline.live()
    }

    /// The stage of this name as its operator sees it, before the run or behind it; while it goes on there is
    /// [`LiveOptions::operator`].
    pub fn operate(&mut self, stage: &str) -> Option<&mut dyn Operate> {
        self.pipeline.operate(stage)
    }

    /// The number of shards that it runs in.
    #[must_use]
    pub fn shards(&self) -> usize {
        1 + self.shards.len()
    }

    /// As [`operate`](Self::operate), of one of the shards.
    pub fn operate_shard(&mut self, shard: usize, stage: &str) -> Option<&mut dyn Operate> {
        match shard.checked_sub(1) {
            None => self.operate(stage),
            Some(n) => self.shards.get_mut(n)?.operate(stage),
        }
    }

    /// By which such a run is asked to do so.
    #[must_use]
    pub fn reload_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.live.reload)
    }

    /// Replays everything that the sources have, and finishes what is written. `tick` is called now and then
    /// with the progress; where it wants no more, the run stops where it is, its report says that it was
    /// [interrupted](RunReport::interrupted), and no file is written.
    ///
    /// The run is live if a port of the pipeline is: it follows the wall clock, until the sources have
    /// ended (which interfaces never do), a limit of [`LiveOptions`] is reached, or `tick` wants no more, and
    /// always ends well.
    ///
    /// # Errors
    /// [`RunError`] where an input can't be read or an output can't be written.
    pub fn run(&mut self, tick: &mut Tick<'_>) -> Result<RunReport, RunError> {
        match self.pipeline.live() {
            true if !self.shards.is_empty() => self.run_shards(tick),
            true => self.run_live(tick),
            false => self.replay(tick),
        }
    }

    /// The monitor of a run in shards, which asks each of them.
    pub(super) fn monitor_of_all(&mut self) -> Option<Monitor> {
        self.monitor.take()
    }

    pub(super) fn watch(&mut self, monitor: Monitor) {
        self.monitor = Some(monitor);
    }

    /// A run by the wall clock, or in service time.
    pub(super) fn run_live(&mut self, tick: &mut Tick<'_>) -> Result<RunReport, RunError> {
        self.live.take_core()?;
        self.adopt_memory()?;
        self.pipeline.find_ways();
        self.pipeline.check_links()?;
        let attached = self.live.operator.attach(self.live.shard);
        self.inbox = Some(attached.inbox());
        let mut clock: Box<dyn Clock> = if self.in_service_time() {
            Box::new(ServiceTime::new(self)?)
        } else {
            Box::new(WallTime::new(&self.live))
        };
        self.log = self.live.poll_log.map(PollLog::new);
        let sections = if self.workers > 1 { self.cut_live()? } else { None };
        let mut run = Run::new(self, sections.as_ref(), tick);
        let mut result = self.in_sections(clock.as_mut(), &mut run);
        if let Some(sections) = &sections {
            run.sections = None;
            self.workers_cpu_ns = sections.cpu_ns();
            let died = sections.is_stopped() && result.is_ok();
            let joined = sections.rejoin(&mut self.pipeline).map_err(RunError::from);
            result = result.and(joined).and_then(|()| {
                if died {
                    return Err(RunError::Died);
                }
                // This thread lets out what the sections still hold, and waits for what was sent.
                let limits = clock.begin(self, &mut run)?;
                self.rounds(clock.as_mut(), &mut run, &limits)
            });
        }
        self.inbox = None;
        drop(attached);
        clock.end(self, &mut run, false);
        // Files are whole and counters kept even if a port failed: only now it is known what left.
        let finished = self.pipeline.finish().map_err(RunError::from);
        let report = self.report(&run).made();
        match result.and(finished) {
            Ok(()) => Ok(report),
            Err(error) => {
                self.partial = Some(report);
                Err(error)
            }
        }
    }

    /// Cuts a live pipeline, where every stage takes all that comes.
    fn cut_live(&mut self) -> Result<Option<Sections>, RunError> {
        if self.in_service_time() {
            return Err(RunError::Alone(OneThread::OwnTime.why()));
        }
        if self.pipeline.is_bounded() {
            return Err(RunError::Alone(OneThread::Room.why()));
        }
        self.cut()
    }

    /// Cuts the pipeline into sections for the threads that were asked for; none where it can't be cut.
    fn cut(&mut self) -> Result<Option<Sections>, RunError> {
        if let Some((name, kind)) = self.pipeline.not_shared() {
            return Err(RunError::NotShared { name, kind });
        }
        Ok(self.pipeline.cut(&mut self.pool, self.workers))
    }

    /// The rounds of a run, with other threads for the sections, where there are any.
    fn in_sections(&mut self, clock: &mut dyn Clock, run: &mut Run<'_>) -> Result<End, RunError> {
        let limits = clock.begin(self, run)?;
        let Some(sections) = run.sections else { return self.rounds(clock, run, &limits) };
        thread::scope(|scope| {
            let _told = StopOnPanic(sections);
            let mut threads = Vec::new();
            for n in 1..self.workers {
                let worker = thread::Builder::new().name(format!("worker-{n}"));
                match worker.spawn_scoped(scope, move || sections.work(n)) {
                    Ok(thread) => threads.push(thread),
                    Err(error) => {
                        sections.stop();
                        return Err(RunError::Worker(error));
                    }
                }
            }
            let result = self.rounds(clock, run, &limits);
            match &result {
                Ok(End::Interrupted) => sections.stop(),
                Err(_) if !self.pipeline.live() => sections.stop(),
                // Live, what came before an error leaves.
                Ok(End::Well) | Err(_) => {
                    clock.all_came(self, run);
                    self.pipeline.send(sections, &mut run.crossing, true);
                    sections.close();
                }
            }
            run.meter.stop();
            // One that panicked has said so, and has stopped all.
            threads.into_iter().for_each(|thread| drop(thread.join()));
            result
        })
    }

    /// A run by the clock of the captures, on as many threads as were asked for.
    fn replay(&mut self, tick: &mut Tick<'_>) -> Result<RunReport, RunError> {
        let mut clock = CaptureTime::new(&self.pipeline, self.pace, self.largest_batch);
        let parallel = self.workers > 1 && self.pace == Pace::Fast;
        let Some(sections) = (if parallel { self.cut()?.map(Sections::patient) } else { None }) else {
            let mut run = Run::new(self, None, tick);
            let limits = clock.begin(self, &mut run)?;
            let interrupted = self.rounds(&mut clock, &mut run, &limits)? == End::Interrupted;
            clock.end(self, &mut run, interrupted);
            return self.end(&run, interrupted);
        };
        self.pipeline.heads.iter_mut().for_each(|head| head.source.work_ahead());
        let mut run = Run::new(self, Some(&sections), tick);
        let result = self.in_sections(&mut clock, &mut run);
        run.sections = None;
        let stopped = sections.is_stopped();
        let ahead: u64 = self.pipeline.heads.iter().map(|head| head.source.ahead_cpu_ns()).sum();
        self.workers_cpu_ns = sections.cpu_ns() + ahead;
        let joined = sections.rejoin(&mut self.pipeline);
        let interrupted = result? == End::Interrupted;
        joined?;
        if stopped && !interrupted {
            return Err(RunError::Died);
        }
        self.end(&run, interrupted)
    }

    /// The one loop: the clock says up to when packets may come, the sources are asked for them, they go
    /// through the pipeline, and the clock lets time pass.
    fn rounds(&mut self, clock: &mut dyn Clock, run: &mut Run<'_>, limits: &Limits) -> Result<End, RunError> {
        loop {
            let mut course = match clock.next(self, run)? {
                ControlFlow::Continue(course) => course,
                ControlFlow::Break(end) => return Ok(end),
            };
            let taken = run.taken();
            if course.now >= limits.end || taken >= limits.packets {
                self.take_rest(run);
                return self.part(clock, run);
            }
            course.max = limits.packets - taken;
            let round = match self.round(run, &course) {
                Ok(round) => round,
                Err(error) => {
                    // Packets that live sources have brought before it go in.
                    self.take_rest(run);
                    return Err(error);
                }
            };
            if let Some(sections) = run.sections {
                self.pipeline.send(sections, &mut run.crossing, false);
                sections.make_room();
                if sections.is_stopped() {
                    return Err(RunError::Died);
                }
            }
            if self.monitor.as_ref().is_some_and(Monitor::wanted) {
                self.show(run);
            }
            if self.inbox.as_ref().is_some_and(|inbox| inbox.is_wanted()) {
                self.serve(course.now);
            }
            match clock.passed(self, run, round) {
                ControlFlow::Continue(()) => {}
                ControlFlow::Break(End::Well) => return self.part(clock, run),
                ControlFlow::Break(end) => return Ok(end),
            }
        }
    }

    /// Finishes what is written, unless only a part is there, and says what happened.
    fn end(&mut self, run: &Run<'_>, interrupted: bool) -> Result<RunReport, RunError> {
        if !interrupted {
            self.refuse_damage()?;
            self.pipeline.finish_all_or_none()?;
        }
        Ok(RunReport { interrupted, ..self.report(run).made() })
    }

    fn refuse_damage(&self) -> Result<(), RunError> {
        let damaged = self.captures().find_map(|reader| Some((reader.name(), reader.damage()?)));
        match damaged.filter(|_| self.strict) {
            Some((file, damage)) => {
                Err(RunError::Damaged { file: file.to_owned(), byte: damage.byte, what: damage.what.clone() })
            }
            None => Ok(()),
        }
    }

    /// Reports to the monitor.
    #[cold]
    fn show(&self, run: &Run<'_>) {
        if let Some(monitor) = &self.monitor {
            monitor.show(self.report(run));
        }
    }

    /// Does one thing that the operator asks for.
    #[cold]
    fn serve(&mut self, now: Nanos) {
        if let Some(visits) = self.inbox.as_ref().and_then(|inbox| inbox.next()) {
            self.pipeline.visit(&visits, now);
        }
    }

    fn report(&self, run: &Run<'_>) -> Draft {
        let left_out = self.pipeline.left_out();
        let sections = run.sections.iter().flat_map(|s| s.draft_reports());
        let (stages, drafts) = self.pipeline.draft_reports().chain(sections).unzip();
        let source = |(head, feed): (&super::graph::Head, &Feed)| {
            let mut counters = Vec::new();
            head.source.counters(&mut |name, n| counters.push((name, n)));
            SourceReport {
                name: head.name.clone(),
                kind: head.kind,
                packets: feed.packets,
                clock_backwards: head.source.clock_backwards(),
                counters,
            }
        };
        // Packets that were read from a capture ahead of their time have not come.
        let ahead = run.feeds.iter().map(|feed| feed.waiting() as u64).sum();
        let report = RunReport {
            sources: self.pipeline.heads.iter().zip(&run.feeds).map(source).collect(),
            stages,
            elapsed_ns: run.meter.elapsed_ns().saturating_sub(left_out.0),
            cpu_ns: (run.meter.cpu_ns() + self.workers_cpu_ns).saturating_sub(left_out.1),
            live: self.pool.live().saturating_sub(ahead),
            service_time: self.service_time.clone(),
            poll_log: self.log.as_ref().map(PollLog::counts),
            contexts: self.pipeline.context_counts(),
            interrupted: false,
            shards: Vec::new(),
        };
        Draft { report, drafts }
    }

    /// The readers of the captures behind the sources.
    pub fn captures(&self) -> impl Iterator<Item = &CaptureReader> {
        self.pipeline.heads.iter().filter_map(|h| h.source.details()?.downcast_ref())
    }
}
