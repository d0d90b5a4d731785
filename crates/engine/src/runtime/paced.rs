//! A replay by the wall clock: packets come as long after the first one as they did in the capture, and what is held
//! leaves on time even when no packet comes.

use std::ops::ControlFlow;
use std::thread;
use std::time::{Duration, Instant};

use super::replay::{Deliver, ReplayError, ReplayReport, Tick};
use super::sink::Sink;
use super::source::{Classifier, Source};
use crate::batch::{Arrivals, BATCH};
use crate::clock::{self, Meter};
use crate::pool::Pool;
use crate::reframe::{Reframe, ReframeConfig};
use crate::time::Nanos;

const NAP: Duration = Duration::from_millis(100);

/// Real time against the capture's.
struct WallClock {
    start: Instant,
    first: Nanos,
}

impl WallClock {
    /// Asks `tick` at least every [`NAP`] whether to go on.
    fn sleep_until(&self, time: Nanos, tick: &mut Tick<'_>) -> ControlFlow<()> {
        let due = self.start + Duration::from_nanos(time.since(self.first));
        loop {
            let left = due.saturating_duration_since(clock::now());
            if left.is_zero() {
                return ControlFlow::Continue(());
            }
            thread::sleep(left.min(NAP));
            tick(None)?;
        }
    }
}

pub(super) fn run(
    config: &ReframeConfig,
    source: &mut dyn Source,
    mut pool: Pool,
    sink: &mut dyn Sink,
    tick: &mut Tick<'_>,
) -> Result<ReplayReport, ReplayError> {
    let mut stage = Reframe::new(config)?;
    let mut classifier = Classifier::new(config.encapsulation);
    let mut read = Arrivals::default();
    let mut one = Arrivals::default();
    let meter = Meter::new();
    let mut known = 0;
    let mut wall: Option<WallClock> = None;
    let mut go_on = ControlFlow::Continue(());
    while go_on.is_continue() {
        let n = source.fill(&mut pool, &mut read, BATCH)?;
        let new = source.interfaces().get(known..).unwrap_or_default();
        new.iter().try_for_each(|i| sink.interface(i)).map_err(ReplayError::Sink)?;
        known = source.interfaces().len();
        classifier.interfaces(source.interfaces());
        let mut out = Deliver { sink, meter: &meter, result: Ok(()) };
        for (frame, sequence) in read.frames.drain(..).zip(read.first..) {
            let wall = wall.get_or_insert_with(|| WallClock { start: clock::now(), first: frame.arrival });
            go_on = idle(&mut stage, &mut pool, wall, frame.arrival, &mut out, tick);
            if go_on.is_break() || wall.sleep_until(frame.arrival, tick).is_break() {
                go_on = ControlFlow::Break(());
                break;
            }
            one.frames.push(frame);
            one.first = sequence;
            meter.start();
            classifier.classify(&pool, &mut one);
            stage.process(&mut pool, &mut one, &mut out);
            meter.stop();
        }
        read.clear();
        if n == 0 {
            if let Some(wall) = &wall {
                go_on = idle(&mut stage, &mut pool, wall, Nanos::MAX, &mut out, tick);
            }
            stage.finish(&mut pool, &mut out);
        }
        out.result.map_err(ReplayError::Sink)?;
        if n == 0 {
            break;
        }
    }
    if go_on.is_break() {
        let mut out = Deliver { sink, meter: &meter, result: Ok(()) };
        stage.drain(&mut pool, &mut out);
        out.result.map_err(ReplayError::Sink)?;
    }
    Ok(ReplayReport {
        stats: stage.stats(),
        clock_backwards: source.clock_backwards(),
        elapsed_ns: meter.elapsed_ns(),
        cpu_ns: meter.cpu_ns(),
        interrupted: false,
    })
}

/// Lets what is due before `until` leave on time.
fn idle(
    stage: &mut Reframe,
    pool: &mut Pool,
    wall: &WallClock,
    until: Nanos,
    out: &mut Deliver<'_>,
    tick: &mut Tick<'_>,
) -> ControlFlow<()> {
    while stage.next_deadline() < until {
        let due = stage.next_deadline();
        wall.sleep_until(due, tick)?;
        stage.advance(pool, due.after(1), out);
    }
    ControlFlow::Continue(())
}
