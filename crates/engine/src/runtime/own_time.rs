//! A live run in the engine's own time: the clock counts what its polls take, and nothing else.
//!
//! One thread does both, what comes and what is done with it. Every poll is the same one as in real time: the source is
//! asked, what it has goes through the stages, what is due leaves; how long that takes is measured, and by so much the clock
//! goes on. Then it stands still, while packets whose time has come are put into the source's ring, each with its exact time. A
//! poll that was interrupted ([`Usual`] tells) counts with the time of another one of its size. Where a source says what a poll is to
//! take at least ([`LiveSource::least_ns`](super::LiveSource::least_ns)), so much passes without being waited for.
//!
//! So a queue before the engine can be watched on a machine that is never left alone for long enough to do it in real time: what the engine
//! needs is real and measured, when packets come is exact, and no interruption falls into either. What it doesn't have is a
//! second core. The ring is written by the core that reads it, so that its entries are in the cache already, where a network card
//! or another core would leave them to be fetched, and nobody else uses the memory while a poll runs.

use std::ops::ControlFlow;

use slipstream_stats::Histogram;

use super::drive::{Feed, Run, RunError, RunReport};
use super::live::NAP;
use super::poll_log::PollLog;
use super::probe::Probe;
use super::replay::Tick;
use super::source::LiveSource;
use super::usual::Usual;
use crate::clock::{LiveClock, Meter};
use crate::time::Nanos;

/// What a run in the engine's own time was made of.
#[derive(Clone, Debug, Default)]
pub struct OwnTime {
    /// Time that passed by the engine's own clock, in ns, from [`LiveOptions::settle`](super::LiveOptions::settle) on, as all that
    /// follows.
    pub elapsed_ns: u64,
    /// Packets that came.
    pub come: u64,
    /// Packets of these that found the ring full.
    pub dropped: u64,
    /// Polls.
    pub polls: u64,
    /// Polls that were interrupted, so that another one's time counts.
    pub interrupted: u64,
    /// What they took beyond the times that count, in ns.
    pub interruptions_ns: u64,
    /// Polls that took longer than was stated ([`LiveSource::least_ns`](super::LiveSource::least_ns)), where something was.
    pub beyond_cost: u64,
    /// From a packet's arrival to the end of the poll that took it, in ns. Where a stage holds packets, not to when they left.
    pub sojourn: Histogram,
    /// What a [`Probe`] took, in ns, every 100 µs: whether the core kept its speed.
    pub probes: Histogram,
}

/// From probe to probe, in ns of the engine's time.
const PROBES: u64 = 100_000;

impl Run {
    /// Whether the packets of a source come in the engine's own time.
    pub(super) fn in_own_time(&mut self) -> bool {
        self.pipeline.heads.iter_mut().filter_map(|h| h.source.live()).any(|s| s.own_time().is_some())
    }

    /// As `run_live`, but in the engine's own time, which begins now.
    pub(super) fn run_own_time(&mut self, tick: &mut Tick<'_>) -> Result<RunReport, RunError> {
        if self.pipeline.heads.len() > 1 {
            return Err(RunError::OwnTime);
        }
        let clock = LiveClock::get();
        let options = self.live.clone();
        let meter = Meter::new();
        let mut feeds = self.feeds();
        self.pipeline.find_ways();
        let start = clock.now();
        let limits = options.limits(start);
        self.log = options.poll_log.map(PollLog::new);
        let (mut own, mut usual, probe) = (OwnTime::default(), Usual::new(), Probe::default());
        let (mut now, mut asked, mut probed) = (start, Nanos(0), start);
        let settled = start.after(options.settle.as_nanos() as u64);
        // What had come and was dropped when it began to count.
        let mut before = None;
        meter.start();
        let result = loop {
            self.come(now);
            if before.is_none() && now >= settled {
                before = Some(self.come_and_dropped());
            }
            if now.since(probed) >= PROBES {
                probed = now;
                own.probes.record(probe.run());
            }
            let begun = clock.now();
            if begun.since(asked) >= NAP {
                asked = begun;
                if tick(None) == ControlFlow::Break(()) {
                    break Ok(());
                }
            }
            let taken: u64 = feeds.iter().map(Feed::packets).sum();
            if now >= limits.end || taken >= limits.packets {
                break Ok(());
            }
            self.pipeline.set_clock(clock.behind(begun.since(now)));
            let (took, least, ended) = match self.own_poll(&mut feeds, now, limits.packets - taken, &meter) {
                Ok(done) => done,
                Err(error) => break Err(error),
            };
            let size = feeds.iter().map(Feed::packets).sum::<u64>() - taken;
            let (counts, interrupted) = usual.judge(size as usize, took.max(1));
            let beyond = least > 0 && counts > least;
            if beyond {
                self.took_longer();
            }
            let counts = counts.max(least);
            now = now.after(counts);
            if before.is_some() {
                own.note(counts, took, interrupted);
                own.beyond_cost += u64::from(beyond);
                self.note_sojourns(size as usize, now, &mut own.sojourn);
            }
            if ended {
                break Ok(());
            }
        };
        meter.stop();
        if let Some((come, dropped)) = before {
            let now = self.come_and_dropped();
            (own.come, own.dropped) = (now.0 - come, now.1 - dropped);
        }
        self.own_time = Some(own);
        self.pipeline.drain(&mut self.pool, now);
        self.end(result, &feeds, &meter)
    }

    /// A poll, as it is in a live run; returns what it took and what it was to take at least, in ns, and whether nothing more will come.
    fn own_poll(
        &mut self,
        feeds: &mut [Feed],
        now: Nanos,
        most: u64,
        meter: &Meter,
    ) -> Result<(u64, u64, bool), RunError> {
        let clock = LiveClock::get();
        let begun = clock.now();
        let round = self.round(feeds, now, most)?;
        if !round.more {
            self.pipeline.run_to(&mut self.pool, now);
            self.now = self.now.max(now);
        }
        self.answer(feeds, meter);
        let mut ended = false;
        if !round.busy {
            self.pipeline.tell_ends(|head| feeds.get(head).is_some_and(Feed::at_end));
            ended = feeds.iter().all(Feed::at_end) && self.pipeline.finished();
        }
        Ok((clock.now().since(begun), round.least_ns, ended))
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

impl OwnTime {
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
    use crate::batch::Batch;
    use crate::clock;
    use crate::io::paced::{Clock, Cost, Paced, PacedConfig, Process};
    use crate::io::synth::{Synth, SynthConfig};
    use crate::reframe::Output;
    use crate::runtime::{LiveOptions, Pipeline, Poll};
    use crate::stage::{Context, Stage};

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
            Run::new(pipeline).live(LiveOptions { poll_log: Some(10_000), ..LiveOptions::default() });
        assert!(run.in_own_time());
        let report = run.run_own_time(&mut |_| ControlFlow::Continue(())).unwrap();
        (report, run.poll_log().unwrap().clone())
    }

    fn counter(report: &RunReport, name: &str) -> u64 {
        report.sources[0].counters.iter().find(|c| c.0 == name).unwrap().1
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
        let own = disturbed.own_time.unwrap();
        let made = (log.polls().len() / 10 - 10) as u64;
        assert!(made > 5 && own.interrupted >= made, "{} of {made}", own.interrupted);
        assert!(own.interruptions_ns > made * 2_500_000);
        // The last packet comes at 100 ms.
        assert!((100_000_000..120_000_000).contains(&own.elapsed_ns), "{}", own.elapsed_ns);
        assert!(own.elapsed_ns.abs_diff(calm.own_time.unwrap().elapsed_ns) < 20_000_000);
        assert_eq!((own.sojourn.count(), own.come, own.dropped), (5_000, 5_000, 0));
        assert!(own.probes.count() > 100, "{}", own.probes.count());
        assert!(own.sojourn.max().unwrap() < 3_000_000, "{:?}", own.sojourn.max());
    }

    /// What happens before doesn't count, though it happens.
    #[test]
    fn what_settles_does_not_count() {
        let mut pipeline = Pipeline::chain(vec![(
            "work".to_owned(),
            Box::new(Work { interrupted: usize::MAX, batches: 0 }),
        )]);
        pipeline.heads[0].source = Box::new(paced(5e5, 100, 3_000));
        let settle = Duration::from_millis(3);
        let mut run = Run::new(pipeline).live(LiveOptions { settle, ..LiveOptions::default() });
        let report = run.run_own_time(&mut |_| ControlFlow::Continue(())).unwrap();
        let own = report.own_time.as_ref().unwrap();
        // A packet comes every 2 µs, and the first poll at which it counts begins up to a ms later.
        assert!((900..=1_500).contains(&own.come), "{}", own.come);
        assert!(own.dropped > 0 && own.dropped < counter(&report, "dropped_by_queue"));
        assert!(own.sojourn.count() < report.sources[0].packets);
    }

    /// What a poll finds is what has come by then and was not taken before, less what found the ring full.
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
        // What a poll really takes is a tenth of it, so that only an interruption of which `Usual` knows nothing yet could be longer.
        let beyond = counter(&report, "polls_beyond_cost");
        assert!(beyond < 10, "{beyond}");
        let follow = log.polls().windows(2).filter(|w| w[1].empty_before == 0);
        let apart = |w: &&[Poll]| w[1].time.since(w[0].time) != cost.of(w[0].batch as usize);
        assert!(follow.filter(apart).count() as u64 <= beyond);
        let own = report.own_time.unwrap();
        assert!(own.elapsed_ns > 200_000_000, "{}", own.elapsed_ns);
    }

    /// In real time they take no less.
    #[test]
    fn a_stated_cost_is_waited_for_in_real_time() {
        let cost = Cost { per_poll: 2_000_000, per_packet: 50_000 };
        let mut pipeline = Pipeline::chain(vec![]);
        pipeline.heads[0].source = Box::new(stated(Clock::Wall, cost, 200));
        let options = LiveOptions { poll_log: Some(1_000), busy_poll: true, ..LiveOptions::default() };
        let mut run = Run::new(pipeline).live(options);
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
        let refused = Run::new(pipeline).run_own_time(&mut |_| ControlFlow::Continue(()));
        assert!(matches!(refused, Err(RunError::OwnTime)));
    }
}
