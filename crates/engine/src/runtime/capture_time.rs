//! The clock of captures: time is that of the next packet or deadline. A replay goes as fast as it can, or is
//! slowed down so that packets come as long after the first one as they did in the capture.

use std::ops::ControlFlow;
use std::thread;
use std::time::{Duration, Instant};

use slipstream_core::clock;
use slipstream_core::time::Nanos;
use slipstream_io::cpu;

use super::driver::{Clock, Driver, End, Limits, Run};
use super::feeds::{Course, END_OF_TIME, Feed, Late, Round};
use super::graph::{Pipeline, Sections};
use super::live::NAP;
use super::replay::Pace;
use super::report::RunError;

/// Rounds between two questions whether to go on.
const ASKED: u64 = 64;

/// The clock of a replay.
pub(super) struct CaptureTime {
    at_once: usize,
    rounds: u64,
    /// Time is measured round by round, without that of the sources. Where all packets lie in memory, nothing
    /// is left out.
    meters: bool,
    wall: Option<SlowedDown>,
}

impl CaptureTime {
    pub(super) fn new(pipeline: &Pipeline, pace: Pace, largest_batch: usize) -> Self {
        let at_once = if pipeline.needs_single_events() { 1 } else { largest_batch };
        let meters = !pipeline.heads.iter().all(|head| head.source.preloaded());
        Self { at_once, rounds: 0, meters, wall: (pace == Pace::Real).then(SlowedDown::default) }
    }
}

impl Clock for CaptureTime {
    fn begin(&mut self, _: &mut Driver, run: &mut Run<'_>) -> Result<Limits, RunError> {
        if run.sections.is_some() || !self.meters {
            // Others work while this thread reads.
            run.meter.start();
        }
        Ok(Limits::NONE)
    }

    fn next(&mut self, driver: &mut Driver, run: &mut Run<'_>) -> Result<ControlFlow<End, Course>, RunError> {
        if self.rounds > 0 && self.rounds.is_multiple_of(ASKED) {
            if driver.pipeline.failed() || run.sections.is_some_and(Sections::failed) {
                return Ok(ControlFlow::Break(End::Well));
            }
            let progress = driver.pipeline.heads.first().and_then(|h| h.source.progress());
            if run.tick(progress).is_break() {
                let end = if self.wall.is_some() { End::Well } else { End::Interrupted };
                return Ok(ControlFlow::Break(end));
            }
        }
        self.rounds += 1;
        let mut now = END_OF_TIME;
        if let Some(wall) = &mut self.wall {
            for head in 0..run.feeds.len() {
                let Some(feed) = run.feeds.get_mut(head) else { break };
                driver.refill(head, feed)?;
            }
            if let Some(first) = run.feeds.iter().filter_map(Feed::next).min() {
                if wall.wait_for(first, driver, run).is_break() {
                    // By the wall clock a run ends well whenever it ends.
                    wall.gone = true;
                    return Ok(ControlFlow::Break(End::Well));
                }
                now = first;
            }
        }
        let (at_once, meters) = (self.at_once, self.meters);
        Ok(ControlFlow::Continue(Course { now, max: u64::MAX, at_once, late: Late::Stays, meters }))
    }

    fn passed(&mut self, _: &mut Driver, run: &mut Run<'_>, round: Round) -> ControlFlow<End> {
        if round.busy || !run.at_end() { ControlFlow::Continue(()) } else { ControlFlow::Break(End::Well) }
    }

    fn all_came(&mut self, driver: &mut Driver, run: &mut Run<'_>) {
        self.end(driver, run, false);
    }

    fn end(&mut self, driver: &mut Driver, run: &mut Run<'_>, interrupted: bool) {
        if interrupted {
            return;
        }
        let mut goes_on = true;
        if let Some(wall) = &mut self.wall {
            goes_on = !wall.gone && wall.wait_for(Nanos::MAX, driver, run).is_continue();
        }
        run.meter.start();
        if goes_on {
            driver.pipeline.run_to(&mut driver.pool, END_OF_TIME);
        }
        driver.pipeline.drain(&mut driver.pool, driver.now);
        if run.sections.is_none() {
            run.meter.stop();
        }
    }
}

/// Real time against the capture's.
#[derive(Default)]
struct SlowedDown {
    /// The time at which the first packet came, and its own time.
    start: Option<(Instant, Nanos)>,
    /// Nobody wants to wait any longer.
    gone: bool,
}

impl SlowedDown {
    /// Waits for a time of the capture; what is due before leaves on time.
    fn wait_for(&mut self, time: Nanos, driver: &mut Driver, run: &mut Run<'_>) -> ControlFlow<()> {
        loop {
            let due = driver.pipeline.next_deadline();
            if due >= time {
                break;
            }
            self.sleep_until(due, run)?;
            driver.pipeline.run_to(&mut driver.pool, due);
        }
        if time == Nanos::MAX { ControlFlow::Continue(()) } else { self.sleep_until(time, run) }
    }

    /// Sleeps, and asks now and then whether to go on.
    fn sleep_until(&mut self, time: Nanos, run: &mut Run<'_>) -> ControlFlow<()> {
        let (start, first) = *self.start.get_or_insert_with(|| {
            cpu::punctual_timers();
            (clock::now(), time)
        });
        let due = start + Duration::from_nanos(time.since(first));
        loop {
            let left = due.saturating_duration_since(clock::now());
            if left.is_zero() {
                return ControlFlow::Continue(());
            }
            thread::sleep(left.min(Duration::from_nanos(NAP)));
            run.tick(None)?;
        }
    }
}
