//! A live run in the engine's own time: the clock counts what its polls take, and nothing else.
//!
//! One thread does both, what comes and what is done with it. Every poll is the same one as in real time: the
//! source is asked, what it has goes through the stages, what is due leaves; how long that takes is measured,
//! and by so much the clock goes on. Then it stands still, while packets whose time has come are put into the
//! source's ring, each with its exact time. A poll that was interrupted ([`OutlierFilter`] tells) counts with
//! the time of another one of its size. Where a source says what a poll is to take at least
//! ([`LiveSource::least_ns`]), so much passes without being waited for.
//!
//! So a queue before the engine can be watched on a machine that is never left alone for long enough to do it
//! in real time: what the engine needs is real and measured, when packets come is exact, and no interruption
//! falls into either. What it doesn't have is a second core. The ring is written by the core that reads it,
//! so that its entries are in the cache already, where a network card or another core would leave them to be
//! fetched, and nobody else uses the memory while a poll runs.

use std::ops::ControlFlow;

use slipstream_stats::Histogram;

use super::driver::{Clock, Driver, End, Limits, Run};
use super::feeds::{Course, Feed, Late, Round};
use super::live::NAP;
use super::outliers::OutlierFilter;
use super::probe::Probe;
use super::report::RunError;
use slipstream_core::batch::BATCH;
use slipstream_core::clock::LiveClock;
use slipstream_core::source::LiveSource;
use slipstream_core::time::Nanos;

/// The parts of a run in the engine's own time.
#[derive(Clone, Debug, Default)]
pub struct ServiceTimeReport {
    /// Time that passed by the engine's own clock, in ns, from
    /// [`LiveOptions::settle`](super::LiveOptions::settle) on, as all that follows.
    pub elapsed_ns: u64,
    /// Packets that came.
    pub come: u64,
    /// Packets of these that found the ring full.
    pub dropped: u64,
    /// Polls.
    pub polls: u64,
    /// Polls that were interrupted, so that another one's time counts.
    pub interrupted: u64,
    /// Their duration beyond the times that count, in ns.
    pub interruptions_ns: u64,
    /// Polls that took longer than was stated ([`LiveSource::least_ns`]), where something was.
    pub beyond_cost: u64,
    /// From a packet's arrival to the end of the poll that took it, in ns. Where a stage holds packets, not
    /// to when they left.
    pub sojourn: Histogram,
    /// Duration of a [`Probe`], in ns, every 100 µs: it shows if the core kept its speed.
    pub probes: Histogram,
}

/// From probe to probe, in ns of the engine's time.
const PROBES: u64 = 100_000;

/// The time that the engine's own polls take.
pub(super) struct ServiceTime {
    clock: LiveClock,
    report: ServiceTimeReport,
    outliers: OutlierFilter,
    probe: Probe,
    now: Nanos,
    /// The time at which the poll under way began, by the wall clock.
    begun: Nanos,
    asked: Nanos,
    probed: Nanos,
    settled: Nanos,
    /// Packets that went in before the poll under way.
    taken: u64,
    /// Packets that had come and were dropped when it began to count.
    before: Option<(u64, u64)>,
}

impl ServiceTime {
    /// A measurement that begins now.
    pub(super) fn new(driver: &Driver) -> Result<Self, RunError> {
        if driver.pipeline.heads.len() > 1 {
            return Err(RunError::ServiceTime);
        }
        let clock = LiveClock::get();
        let start = clock.now();
        Ok(Self {
            clock,
            report: ServiceTimeReport::default(),
            outliers: OutlierFilter::new(),
            probe: Probe::default(),
            now: start,
            begun: start,
            asked: Nanos(0),
            probed: start,
            settled: start.after(driver.live.settle.as_nanos() as u64),
            taken: 0,
            before: None,
        })
    }
}

impl Clock for ServiceTime {
    fn begin(&mut self, driver: &mut Driver, run: &mut Run<'_>) -> Result<Limits, RunError> {
        run.meter.start();
        Ok(driver.live.limits(self.now))
    }

    fn next(&mut self, driver: &mut Driver, run: &mut Run<'_>) -> Result<ControlFlow<End, Course>, RunError> {
        driver.come(self.now);
        if self.before.is_none() && self.now >= self.settled {
            self.before = Some(driver.come_and_dropped());
        }
        if self.now.since(self.probed) >= PROBES {
            self.probed = self.now;
            self.report.probes.record(self.probe.run());
        }
        let begun = self.clock.now();
        if begun.since(self.asked) >= NAP {
            self.asked = begun;
            if run.tick(None).is_break() {
                return Ok(ControlFlow::Break(End::Well));
            }
        }
        self.taken = run.taken();
        driver.pipeline.set_clock(self.clock.behind(begun.since(self.now)));
        self.begun = self.clock.now();
        let (now, late) = (self.now, Late::ComesAtOnce);
        Ok(ControlFlow::Continue(Course { now, max: u64::MAX, at_once: BATCH, late, meters: false }))
    }

    fn passed(&mut self, driver: &mut Driver, run: &mut Run<'_>, round: Round) -> ControlFlow<End> {
        if !round.more {
            driver.let_pass(self.now);
        }
        let mut ended = false;
        if !round.busy {
            driver.pipeline.tell_ends(None, |head| run.feeds.get(head).is_some_and(Feed::at_end));
            ended = run.at_end() && driver.pipeline.finished();
        }
        let (took, least) = (self.clock.now().since(self.begun), round.least_ns);
        let size = (run.taken() - self.taken) as usize;
        let (counts, interrupted) = self.outliers.judge(size, took.max(1));
        let beyond = least > 0 && counts > least;
        if beyond {
            driver.took_longer();
        }
        let counts = counts.max(least);
        self.now = self.now.after(counts);
        if self.before.is_some() {
            self.report.note(counts, took, interrupted);
            self.report.beyond_cost += u64::from(beyond);
            driver.note_sojourns(size, self.now, &mut self.report.sojourn);
        }
        if ended { ControlFlow::Break(End::Well) } else { ControlFlow::Continue(()) }
    }

    fn all_came(&mut self, _: &mut Driver, _: &mut Run<'_>) {}

    fn end(&mut self, driver: &mut Driver, run: &mut Run<'_>, _: bool) {
        run.meter.stop();
        if let Some((come, dropped)) = self.before {
            let now = driver.come_and_dropped();
            (self.report.come, self.report.dropped) = (now.0 - come, now.1 - dropped);
        }
        driver.service_time = Some(self.report.clone());
        driver.pipeline.drain(&mut driver.pool, self.now);
    }
}

impl Driver {
    /// Returns true if the packets of a source come in service time.
    pub(super) fn in_service_time(&mut self) -> bool {
        self.pipeline.heads.iter_mut().filter_map(|h| h.source.live()).any(|s| s.own_time().is_some())
    }

    /// A poll took longer than it was to take at least.
    pub(super) fn took_longer(&mut self) {
        let sources = self.pipeline.heads.iter_mut().filter_map(|h| h.source.live());
        sources.for_each(LiveSource::took_longer);
    }

    /// Packets come, up to now.
    fn come(&mut self, now: Nanos) {
        let sources = self.pipeline.heads.iter_mut().filter_map(|h| h.source.live());
        sources.filter_map(|s| s.own_time()).for_each(|s| s.come(now));
    }

    /// Packets that have come so far, and how many of these were dropped.
    fn come_and_dropped(&mut self) -> (u64, u64) {
        let mut sources = self.pipeline.heads.iter_mut().filter_map(|h| h.source.live());
        sources.find_map(|s| Some(s.own_time()?.come_and_dropped())).unwrap_or_default()
    }

    /// The last poll took so many packets, and ended now.
    fn note_sojourns(&mut self, packets: usize, now: Nanos, sojourn: &mut Histogram) {
        let sources = self.pipeline.heads.iter_mut().filter_map(|h| h.source.live());
        for source in sources.filter_map(|s| s.own_time()) {
            source.taken(packets, &mut |arrival| sojourn.record(now.since(arrival)));
        }
    }
}

impl ServiceTimeReport {
    fn note(&mut self, counts: u64, took: u64, interrupted: bool) {
        self.polls += 1;
        self.elapsed_ns += counts;
        if interrupted {
            self.interrupted += 1;
            self.interruptions_ns += took.saturating_sub(counts);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::runtime::RunReport;
    use crate::runtime::poll_log::PollLog;
    use crate::runtime::{LiveOptions, Pipeline, Poll};
    use slipstream_core::batch::Batch;
    use slipstream_core::clock;
    use slipstream_core::stage::Output;
    use slipstream_core::stage::{Context, Observe, Stage};
    use slipstream_io::paced::{Clock, Cost, Paced, PacedConfig, Process};
    use slipstream_io::synth::{Synth, SynthConfig};

    /// Takes 100 µs a batch and 10 µs a packet, and lets every so many-th batch be interrupted for 3 ms.
    struct Work {
        interrupted: usize,
        batches: usize,
    }

    impl Stage for Work {
        fn process(&mut self, cx: &mut Context<'_>, batch: &mut Batch, _: &mut dyn Output) {
            let end = clock::now() + Duration::from_micros(100 + 10 * batch.frames.len() as u64);
            batch.frames.iter().for_each(|f| cx.pool.free(f.buf));
            batch.clear();
            self.batches += 1;
            if self.batches > 100 && self.batches.is_multiple_of(self.interrupted) {
                thread::sleep(Duration::from_millis(3));
            }
            while clock::now() < end {
                std::hint::spin_loop();
            }
        }
    }

    impl Observe for Work {}

    fn paced(rate: f64, queue: u32, packets: u64) -> Paced {
        let (process, clock) = (Process::Constant, Clock::Own);
        let config = PacedConfig {
            rate,
            process,
            clock,
            queue,
            batch: 64,
            packets: Some(packets),
            seed: 1,
            cost: Cost::default(),
        };
        Paced::new(config, Synth::new(SynthConfig::default()).unwrap())
    }

    fn stated(clock: Clock, cost: Cost, packets: u64) -> Paced {
        let (process, queue, batch) = (Process::Poisson, 64, 16);
        let packets = Some(packets);
        let config = PacedConfig { rate: 8e3, process, clock, queue, batch, packets, seed: 5, cost };
        Paced::new(config, Synth::new(SynthConfig::default()).unwrap())
    }

    fn run(source: Paced, interrupted: usize) -> (RunReport, PollLog) {
        run_through(Box::new(Work { interrupted, batches: 0 }), source)
    }

    fn run_through(stage: Box<dyn Stage + Send>, source: Paced) -> (RunReport, PollLog) {
        let mut pipeline = Pipeline::chain(vec![("work".to_owned(), stage)]);
        pipeline.heads[0].source = Box::new(source);
        let mut run =
            Driver::new(pipeline).live(LiveOptions { poll_log: Some(10_000), ..LiveOptions::default() });
        assert!(run.in_service_time());
        let report = run.run_live(&mut |_| ControlFlow::Continue(())).unwrap();
        (report, run.poll_log().unwrap().clone())
    }

    fn counter(report: &RunReport, name: &str) -> u64 {
        report.sources[0].counter(name).unwrap()
    }

    /// As [`Work`], by a clock that nothing else moves.
    struct Exact {
        interrupted: usize,
        batches: usize,
    }

    impl Stage for Exact {
        fn process(&mut self, cx: &mut Context<'_>, batch: &mut Batch, _: &mut dyn Output) {
            self.batches += 1;
            let interrupted = self.batches > 100 && self.batches.is_multiple_of(self.interrupted);
            let more = if interrupted { 3_000_000 } else { 0 };
            clock::stand_in::pass(100_000 + 10_000 * batch.frames.len() as u64 + more);
            batch.frames.iter().for_each(|f| cx.pool.free(f.buf));
            batch.clear();
        }
    }

    impl Observe for Exact {}

    /// Polls come as if nothing had interrupted them, and how many were is said.
    #[test]
    fn interruptions_are_no_part_of_the_time() {
        let run = |interrupted| {
            clock::stand_in::set(Some(1_000_000_000_000));
            let done = run_through(Box::new(Exact { interrupted, batches: 0 }), paced(5e4, 512, 5_000));
            clock::stand_in::set(None);
            done
        };
        // 50 packets a ms, of which the engine can serve 90 and more.
        let (calm, calm_log) = run(usize::MAX);
        let (disturbed, log) = run(10);
        let mean = |log: &PollLog| {
            let all: u64 = log.polls().iter().map(|p| u64::from(p.batch)).sum();
            assert_eq!(all, 5_000);
            all as f64 / log.polls().len() as f64
        };
        let (a, b) = (mean(&calm_log), mean(&log));
        assert!(a > 8.0 && (b / a - 1.0).abs() < 0.3, "{a} {b}");
        let own = disturbed.service_time.unwrap();
        let made = (log.polls().len() / 10 - 10) as u64;
        assert!(made > 5 && own.interrupted >= made, "{} of {made}", own.interrupted);
        assert!(own.interruptions_ns > made * 2_500_000);
        // The last packet comes at 100 ms.
        assert!((100_000_000..120_000_000).contains(&own.elapsed_ns), "{}", own.elapsed_ns);
        assert!(own.elapsed_ns.abs_diff(calm.service_time.unwrap().elapsed_ns) < 20_000_000);
        assert_eq!((own.sojourn.count(), own.come, own.dropped), (5_000, 5_000, 0));
        assert!(own.probes.count() > 100, "{}", own.probes.count());
        assert!(own.sojourn.max().unwrap() < 3_000_000, "{:?}", own.sojourn.max());
    }

    /// Events before the start of the count happen and don't count.
    #[test]
    fn what_settles_does_not_count() {
        clock::stand_in::set(Some(1_000_000_000_000));
        let mut pipeline = Pipeline::chain(vec![(
            "work".to_owned(),
            Box::new(Exact { interrupted: usize::MAX, batches: 0 }),
        )]);
        pipeline.heads[0].source = Box::new(paced(5e5, 100, 3_000));
        let settle = Duration::from_millis(3);
        let mut run = Driver::new(pipeline).live(LiveOptions { settle, ..LiveOptions::default() });
        let report = run.run_live(&mut |_| ControlFlow::Continue(())).unwrap();
        clock::stand_in::set(None);
        let own = report.service_time.as_ref().unwrap();
        // A packet comes every 2 µs, and the first poll at which it counts begins up to a ms later.
        assert!((900..=1_500).contains(&own.come), "{}", own.come);
        assert!(own.dropped > 0 && own.dropped < counter(&report, "dropped_by_queue"));
        assert!(own.sojourn.count() < report.sources[0].packets);
    }

    /// A poll finds the packets that came by then and were not taken before, less those that found the ring
    /// full.
    #[test]
    fn arrivals_are_exact() {
        for (gap, queue) in [(20_000, 512), (2_000, 100)] {
            let (report, log) = run(paced(1e9 / gap as f64, queue, 3_000), usize::MAX);
            let mut start = None;
            let (mut taken, mut come, mut lost) = (0, 0, 0);
            for poll in log.polls() {
                // The first packet comes a gap after the start, and was found at the first poll from then on.
                let start = *start.get_or_insert_with(|| poll.newest.0 - gap * u64::from(poll.batch));
                let due = ((poll.time.0 - start) / gap).min(3_000);
                let room = u64::from(queue) - (come - taken - lost);
                lost += (due - come).saturating_sub(room);
                come = due;
                assert_eq!(u64::from(poll.batch), (come - taken - lost).min(64));
                taken += u64::from(poll.batch);
            }
            assert_eq!((taken, lost), (3_000 - lost, counter(&report, "dropped_by_queue")));
            assert_eq!((gap == 2_000, counter(&report, "offered")), (lost > 0, 3_000));
        }
    }

    /// Polls take what they are said to take, whatever they did.
    #[test]
    fn a_stated_cost_is_the_time_of_a_poll() {
        let cost = Cost { per_poll: 1_000_000, per_packet: 100_000 };
        let (report, log) = run(stated(Clock::Own, cost, 2_000), usize::MAX);
        // A poll really takes a tenth of it, so that only an interruption of which `OutlierFilter` knows
        // nothing yet could be longer.
        let beyond = counter(&report, "polls_beyond_cost");
        assert!(beyond < 10, "{beyond}");
        let follow = log.polls().windows(2).filter(|w| w[1].empty_before == 0);
        let apart = |w: &&[Poll]| w[1].time.since(w[0].time) != cost.of(w[0].batch as usize);
        assert!(follow.filter(apart).count() as u64 <= beyond);
        let own = report.service_time.unwrap();
        assert!(own.elapsed_ns > 200_000_000, "{}", own.elapsed_ns);
    }

    /// In real time they take no less.
    #[test]
    fn a_stated_cost_is_waited_for_in_real_time() {
        let cost = Cost { per_poll: 2_000_000, per_packet: 50_000 };
        let mut pipeline = Pipeline::chain(vec![]);
        pipeline.heads[0].source = Box::new(stated(Clock::Wall, cost, 200));
        let options = LiveOptions { poll_log: Some(1_000), busy_poll: true, ..LiveOptions::default() };
        let mut run = Driver::new(pipeline).live(options);
        let report = run.run_live(&mut |_| ControlFlow::Continue(())).unwrap();
        let polls = run.poll_log().unwrap().polls();
        for w in polls.windows(2) {
            let least = cost.of(w[0].batch as usize) + u64::from(w[1].empty_before) * cost.of(0);
            assert!(w[1].time.since(w[0].time) >= least, "{w:?}");
        }
        // 16 a poll at the most.
        assert!(polls.len() >= 3 && report.elapsed_ns >= 3 * cost.per_poll);
    }

    #[test]
    fn another_source_is_refused() {
        let mut pipeline = Pipeline::chain(vec![]);
        pipeline.heads[0].source = Box::new(paced(1e6, 10, 1));
        let second = Pipeline::chain(vec![]).heads.remove(0);
        pipeline.heads.push(second);
        let refused = Driver::new(pipeline).run_live(&mut |_| ControlFlow::Continue(()));
        assert!(matches!(refused, Err(RunError::ServiceTime)));
    }
}
