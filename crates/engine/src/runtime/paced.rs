//! A replay by the wall clock: packets come as long after the first one as they did in the capture, and what is held
//! leaves on time even when no packet comes.

use std::thread;
use std::time::{Duration, Instant};

use super::replay::{Deliver, ReplayError, ReplayReport};
use super::sink::Sink;
use super::source::{Classifier, Source};
use crate::batch::{Arrivals, BATCH};
use crate::clock::{self, Meter};
use crate::frame::Frame;
use crate::pool::Pool;
use crate::reframe::{Reframe, ReframeConfig};
use crate::time::Nanos;

/// Real time against the capture's.
struct WallClock {
    start: Instant,
    first: Nanos,
}

impl WallClock {
    fn sleep_until(&self, time: Nanos) {
        let due = self.start + Duration::from_nanos(time.since(self.first));
        thread::sleep(due.saturating_duration_since(clock::now()));
    }
}

pub(super) fn run(
    config: &ReframeConfig,
    source: &mut dyn Source,
    mut pool: Pool,
    sink: &mut dyn Sink,
    tick: &mut dyn FnMut(Option<f64>),
) -> Result<ReplayReport, ReplayError> {
    let mut stage = Reframe::new(config)?;
    let mut classifier = Classifier::new(config.encapsulation);
    let mut read = Arrivals::default();
    let mut one = Arrivals::default();
    let meter = Meter::new();
    let mut known = 0;
    let mut wall: Option<WallClock> = None;
    loop {
        let n = source.fill(&mut pool, &mut read, BATCH)?;
        let new = source.interfaces().get(known..).unwrap_or_default();
        new.iter().try_for_each(|i| sink.interface(i)).map_err(ReplayError::Sink)?;
        known = source.interfaces().len();
        classifier.interfaces(source.interfaces());
        let mut out = Deliver { sink, meter: &meter, result: Ok(()) };
        for (frame, sequence) in read.frames.drain(..).zip(read.first..) {
            let wall = wall.get_or_insert_with(|| WallClock { start: clock::now(), first: frame.arrival });
            idle(&mut stage, &mut pool, wall, &frame, &mut out);
            wall.sleep_until(frame.arrival);
            one.frames.push(frame);
            one.first = sequence;
            meter.start();
            classifier.classify(&pool, &mut one);
            stage.process(&mut pool, &mut one, &mut out);
            meter.stop();
        }
        read.clear();
        if n == 0 {
            while let Some(wall) = wall.as_ref().filter(|_| stage.next_deadline() < Nanos::MAX) {
                let due = stage.next_deadline();
                wall.sleep_until(due);
                stage.advance(&mut pool, due.after(1), &mut out);
            }
            stage.finish(&mut pool, &mut out);
        }
        out.result.map_err(ReplayError::Sink)?;
        if n == 0 {
            break;
        }
        tick(source.progress());
    }
    Ok(ReplayReport {
        stats: stage.stats(),
        clock_backwards: source.clock_backwards(),
        elapsed_ns: meter.elapsed_ns(),
        cpu_ns: meter.cpu_ns(),
    })
}

/// Lets what is due before the next packet leave on time.
fn idle(stage: &mut Reframe, pool: &mut Pool, wall: &WallClock, next: &Frame, out: &mut Deliver<'_>) {
    while stage.next_deadline() < next.arrival {
        let due = stage.next_deadline();
        wall.sleep_until(due);
        stage.advance(pool, due.after(1), out);
    }
}
