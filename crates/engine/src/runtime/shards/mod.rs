//! A live pipeline on several cores, replicated: each shard has a pool, stages, tables and a share of the
//! ports' packets of its own, and a thread that runs it. Nothing is shared but boxes ([`mailbox`]) for
//! packets that a port gave to the wrong shard.
//!
//! [`steer`] says which shard a packet belongs to, [`steered`] are the sources that go by it, [`early`] has
//! fragments wait of which nobody knows that yet, and [`report`] makes one report of all.

mod early;
mod mailbox;
mod report;
mod steer;
mod steered;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

pub(crate) use self::steer::{By, External, Externals, Hash, Hosts, PortRange, Steer};

use self::mailbox::{Inbox, Mailbox};
pub(super) use self::report::merged;
use self::steered::Steered;
use super::driver::{Clock, Driver, End, Run};
use super::graph::{Head, Pipeline};
use super::monitor::Monitor;
use super::replay::Tick;
use super::report::{RunError, RunReport};
use crate::pipeline::{Diagnostics, ShardPlan};
use slipstream_core::registry::{Common, Shard, Sharing};
use slipstream_core::seed::Seeds;

/// Longest wait of a shard for what others have for it, once it is about to end, in ns. They look after every
/// tenth of a second whether they are to end, too.
const PARTING: u64 = 500_000_000;
/// The pause where they have nothing yet.
const PAUSE: Duration = Duration::from_micros(200);

impl ShardPlan {
    /// Builds the pipeline of each shard. `seeds` is asked once for each.
    ///
    /// # Errors
    /// A port can't be opened, or a stage can't be built.
    pub fn build(&self, seeds: impl Fn() -> Seeds) -> Result<Vec<Pipeline>, Diagnostics> {
        let mut pipelines = Vec::new();
        let (common, of) = (Common::default(), self.plans.len() as u32);
        for (plan, number) in self.plans.iter().zip(0..) {
            pipelines.push(plan.build_shard(seeds(), Shard { number, of, common: Some(&common) })?);
        }
        self.connect(&mut pipelines).map_err(|error| {
            let plan = self.plans.first();
            plan.map_or(Diagnostics(Vec::new()), |plan| {
                plan.error(format!("descriptors between shards: {error}"))
            })
        })?;
        Ok(pipelines)
    }

    /// Puts boxes between the shards' sources of one name.
    fn connect(&self, pipelines: &mut [Pipeline]) -> std::io::Result<()> {
        let shards = pipelines.len();
        for (name, source) in self.sources.iter().filter(|(_, source)| !source.stays) {
            let everywhere = source.sharing != Sharing::First;
            let senders = |to: usize| match everywhere {
                true => shards - 1,
                false => usize::from(to > 0),
            };
            let make =
                |to: usize| (senders(to) > 0).then(|| Mailbox::new(senders(to)).map(Arc::new)).transpose();
            let boxes: Vec<Option<Arc<Mailbox>>> = (0..shards).map(make).collect::<Result<_, _>>()?;
            for (own, pipeline) in pipelines.iter_mut().enumerate() {
                let Some(at) = pipeline.heads.iter().position(|head| head.name == *name) else { continue };
                let Some(head) = pipeline.heads.get_mut(at) else { continue };
                let nothing: Box<dyn slipstream_core::source::Source + Send> =
                    Box::new(slipstream_io::preload::Preload::default());
                let inner = std::mem::replace(&mut head.source, nothing);
                let inbox = boxes.get(own).cloned().flatten().map(|own| Inbox::new(own, name));
                if everywhere || own == 0 {
                    let steer = Steer::new(shards as u32, source.by, self.hash, self.externals.clone())
                        .telling_all(source.neighbours);
                    let others: Vec<_> =
                        boxes.iter().enumerate().map(|(n, to)| to.clone().filter(|_| n != own)).collect();
                    head.source = Box::new(Steered::new(inner, steer, own, &others)?);
                    if let Some(inbox) = inbox {
                        let more = Head::new(head.name.clone(), head.kind, Box::new(inbox), head.edge);
                        pipeline.heads.insert(at + 1, more);
                    }
                } else if let Some(inbox) = inbox {
                    head.source = Box::new(inbox);
                }
            }
        }
        pipelines.iter_mut().for_each(Pipeline::look_over);
        Ok(())
    }
}

impl Driver {
    /// With these shards beside it, each of which runs on a thread of its own, by the same settings: see
    /// [`Plan::in_shards`](crate::pipeline::Plan::in_shards).
    #[must_use]
    pub fn beside(mut self, others: Vec<Driver>) -> Self {
        self.shards = others;
        self
    }

    /// Runs this shard and those beside it until one of them ends.
    pub(super) fn run_shards(&mut self, tick: &mut Tick<'_>) -> Result<RunReport, RunError> {
        let mut others = std::mem::take(&mut self.shards);
        if let Some(monitor) = self.monitor_of_all() {
            let parts: Vec<Monitor> = (0..=others.len()).map(|_| Monitor::default()).collect();
            monitor.made_of(parts.clone());
            for (driver, part) in std::iter::once(&mut *self).chain(&mut others).zip(parts) {
                driver.watch(part);
            }
        }
        for (n, driver) in others.iter_mut().enumerate() {
            let mut options = self.live.clone();
            options.reload = Arc::default();
            options.shard = n + 1;
            driver.live = options;
        }
        let reload = self.reload_flag();
        let reloads: Vec<_> = others.iter().map(Driver::reload_flag).collect();
        let stop = Arc::<AtomicBool>::default();
        self.stop_shards = Arc::clone(&stop);
        others.iter_mut().for_each(|driver| driver.stop_shards = Arc::clone(&stop));
        let results = thread::scope(|scope| {
            let mut threads = Vec::new();
            let mut results = Vec::new();
            for (n, driver) in others.iter_mut().enumerate() {
                let stop = &stop;
                let thread = thread::Builder::new().name(format!("shard-{}", n + 1));
                let run = move || {
                    let _stops = StopOthers(stop);
                    driver.run_live(&mut |_| until(stop))
                };
                match thread.spawn_scoped(scope, run) {
                    Ok(thread) => threads.push(thread),
                    Err(error) => {
                        stop.store(true, Ordering::Relaxed);
                        results.push(Err(RunError::Worker(error)));
                        break;
                    }
                }
            }
            let own = {
                let _stops = StopOthers(&stop);
                self.run_live(&mut |share| {
                    // Before this shard takes it back.
                    if reload.load(Ordering::Relaxed) {
                        reloads.iter().for_each(|other| other.store(true, Ordering::Relaxed));
                    }
                    tick(share)?;
                    until(&stop)
                })
            };
            results.insert(0, own);
            results.extend(threads.into_iter().map(|thread| thread.join().unwrap_or(Err(RunError::Died))));
            results
        });
        let (mut reports, mut failed) = (Vec::new(), None);
        let drivers = std::iter::once(&mut *self).chain(&mut others);
        for (result, driver) in results.into_iter().zip(drivers) {
            match result {
                Ok(report) => reports.push(report),
                Err(error) => {
                    reports.extend(driver.take_partial());
                    failed.get_or_insert(error);
                }
            }
        }
        // Their stages can be asked behind the run, too.
        self.shards = others;
        let all = merged(reports);
        match failed {
            None => Ok(all),
            Some(error) => {
                self.partial = Some(all);
                Err(error)
            }
        }
    }
}

impl Driver {
    /// Before a shard ends, it gives the others what is theirs, and takes in what they have for it. They are
    /// asked to end meanwhile; one that doesn't is not waited for.
    pub(super) fn part(&mut self, clock: &mut dyn Clock, run: &mut Run<'_>) -> Result<End, RunError> {
        let mut until = None;
        loop {
            let parting =
                self.pipeline.heads.iter_mut().map(|head| head.source.live().is_some_and(|l| l.part()));
            let parting: Vec<bool> = parting.collect();
            if !parting.contains(&true) {
                return Ok(End::Well);
            }
            // The others are asked for nothing more.
            run.feeds.iter_mut().zip(parting).for_each(|(feed, parting)| feed.ended = !parting);
            self.stop_shards.store(true, Ordering::Relaxed);
            let course = match clock.next(self, run)? {
                ControlFlow::Continue(course) => course,
                ControlFlow::Break(end) => return Ok(end),
            };
            if course.now >= *until.get_or_insert(course.now.after(PARTING)) {
                return Ok(End::Well);
            }
            let round = self.round(run, &course)?;
            if !round.more {
                self.let_pass(course.now);
            }
            if !round.busy {
                thread::sleep(PAUSE);
            }
        }
    }
}

fn until(stop: &AtomicBool) -> ControlFlow<()> {
    if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// When one shard ends, however that is, all do.
struct StopOthers<'a>(&'a AtomicBool);

impl Drop for StopOthers<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
