//! Runs of our own data path for the model: packets come into a ring of L places, the engine takes up to β of
//! them a poll, in its own time. That counts what its polls take and not what interrupts them, so that a
//! queue near saturation can be measured where no core is left alone for long. What is left is that a core is
//! sometimes slower: points are measured by turns, in short slices, and slices in which the core didn't have
//! its full speed don't count where there are enough others. `wall` measures in real time.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use slipstream::clock;
use slipstream::pipeline::Plan;
use slipstream::runtime::{Driver, LiveOptions, Poll, Probe, RunReport, ServiceTimeReport};
use slipstream::time::Nanos;
use slipstream_model::PollLog;
use slipstream_stats::Histogram;

use super::super::Bench;

/// Length of a slice, beside what it takes to settle, in the engine's time.
const SLICE_NS: f64 = 8e6;
/// Least number of slices of a point.
const FEWEST: u64 = 3;
/// Share of the probes of a slice that must show full speed.
const MOST: f64 = 0.9;
/// Probes in a row that must show full speed before a slice begins.
const IN_A_ROW: usize = 8;
/// Longest wait for these probes.
const PATIENCE: Duration = Duration::from_millis(20);
/// Packets in which every flow comes and every table gets into the cache.
const WARM: f64 = 8192.0;
/// Polls that the log of a run has room for.
const POLLS: usize = 1 << 18;

/// The arrival process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Process {
    Constant,
    Poisson,
    /// Bursts with this mean number of packets.
    Bursty(u32),
}

impl Process {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Constant => "constant",
            Self::Poisson => "poisson",
            Self::Bursty(_) => "bursty",
        }
    }

    pub(super) fn burst(self) -> u32 {
        if let Self::Bursty(n) = self { n } else { 1 }
    }
}

/// The traffic of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) rate_pps: f64,
    pub(super) process: Process,
    /// Places of the ring, L.
    pub(super) queue: usize,
    /// Packets that a poll takes at most, β.
    pub(super) batch: usize,
    /// Time for the queue to settle, from empty, before polls are measured.
    pub(super) settle_ns: f64,
    /// Above saturation: time in which the ring fills, ns.
    pub(super) fill_ns: Option<f64>,
}

/// The measurements at a point.
#[derive(Debug, Default)]
pub(super) struct Measured {
    /// Polls that count.
    pub(super) log: Option<PollLog>,
    /// Slices that count.
    pub(super) slices: usize,
    /// The core had its full speed in enough slices, and only those count; else all slices count.
    pub(super) steady: bool,
    /// Share of slices in which the core had its full speed.
    pub(super) full_speed: f64,
    /// Share of all polls, empty ones included, that were interrupted and counted with the time of another
    /// one.
    pub(super) interrupted: f64,
    /// Share of packets lost.
    pub(super) p_loss: Option<f64>,
    /// From arrival to the end of service, ns.
    pub(super) sojourn: Histogram,
}

impl Measured {
    /// Packets a second that were served in the time that counts.
    fn served_pps(&self) -> Option<f64> {
        self.log.as_ref().and_then(PollLog::rate_pps)
    }

    /// Share of packets, which come at this rate, that were not served: above saturation what finds the ring
    /// full.
    pub(super) fn unserved(&self, rate_pps: f64) -> Option<f64> {
        self.served_pps().map(|served| (1.0 - served / rate_pps).max(0.0))
    }

    pub(super) fn polls(&self) -> usize {
        self.log.as_ref().map_or(0, PollLog::polls)
    }
}

/// A pipeline behind the ring: the settings of its traffic, and its graph.
pub(super) struct Chain {
    pub(super) traffic: String,
    pub(super) graph: String,
}

/// A point: the name of a load in the log, and the load.
pub(super) type Point = (String, Load);

/// The length of a measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// Polls at full speed that are enough.
    pub(super) polls: usize,
    /// Real time after which no further slice begins.
    pub(super) within: Duration,
}

/// The full speed of the core, as far as it is known; or that it doesn't matter.
pub(super) struct Speed {
    probe: Probe,
    best_ns: u64,
    matters: bool,
}

impl Speed {
    /// Finds the full speed by probes during `within`.
    pub(super) fn find(within: Duration) -> Self {
        let mut this = Self { probe: Probe::default(), best_ns: u64::MAX, matters: true };
        let end = clock::now() + within;
        while clock::now() < end {
            this.full();
        }
        this
    }

    /// The speed of chains with a stated time of polls, which any core can keep to.
    pub(super) fn any() -> Self {
        Self { probe: Probe::default(), best_ns: u64::MAX, matters: false }
    }

    /// True if the core has its full speed now.
    fn full(&mut self) -> bool {
        let ns = self.probe.run();
        self.best_ns = self.best_ns.min(ns);
        ns <= self.limit()
    }

    /// Longest time of a probe at full speed: an eighth above the least.
    fn limit(&self) -> u64 {
        self.best_ns.saturating_add(self.best_ns / 8)
    }

    /// Waits for full speed, at most [`PATIENCE`].
    fn wait(&mut self) {
        let end = clock::now() + PATIENCE;
        let mut in_a_row = 0;
        while self.matters && in_a_row < IN_A_ROW && clock::now() < end {
            in_a_row = if self.full() { in_a_row + 1 } else { 0 };
        }
    }

    /// True if the core had its full speed during a slice, or as much as was needed.
    fn was_full(&self, slice: &Slice) -> bool {
        if !self.matters {
            return slice.own.beyond_cost == 0;
        }
        let all = slice.own.probes.count() as f64;
        let full = slice.own.probes.buckets().filter(|b| b.from.unsigned_abs() <= self.limit());
        full.map(|b| b.count as f64).sum::<f64>() >= MOST * all && all > 0.0
    }
}

/// One slice of a point's measurement.
struct Slice {
    polls: Vec<slipstream_model::Poll>,
    own: ServiceTimeReport,
}

/// Measures points in the engine's own time, by turns: whatever makes the core slower or faster for a while
/// meets all of them.
pub(super) fn measure(
    lab: &Bench<'_>,
    chain: &Chain,
    points: &[Point],
    speed: &mut Speed,
    effort: Effort,
) -> anyhow::Result<Vec<Measured>> {
    let mut all: Vec<Vec<Slice>> = points.iter().map(|_| Vec::new()).collect();
    let end = clock::now() + effort.within;
    let mut seed = 0;
    loop {
        seed += 1;
        for ((_, load), slices) in points.iter().zip(&mut all) {
            lab.check()?;
            if enough(slices, speed, effort) || seed > FEWEST && clock::now() >= end {
                continue;
            }
            speed.wait();
            let slice = slice(chain, load, seed)?;
            speed.best_ns = speed.best_ns.min(slice.own.probes.min().unwrap_or(u64::MAX));
            slices.push(slice);
        }
        if all.iter().all(|s| enough(s, speed, effort)) || seed >= FEWEST && clock::now() >= end {
            break;
        }
    }
    let each = all.into_iter().zip(points);
    Ok(each.map(|(slices, (name, _))| measured(slices, name, speed, effort)).collect())
}

/// True if there are enough slices at full speed.
fn enough(slices: &[Slice], speed: &Speed, effort: Effort) -> bool {
    let full = || slices.iter().filter(|s| speed.was_full(s));
    full().count() as u64 >= FEWEST && full().map(|s| s.polls.len()).sum::<usize>() >= effort.polls
}

/// The measurements of the slices at full speed, or of all slices where there are not enough of them.
fn measured(slices: Vec<Slice>, name: &str, speed: &Speed, effort: Effort) -> Measured {
    let steady = enough(&slices, speed, effort);
    let made = slices.len();
    let full = slices.iter().filter(|s| speed.was_full(s)).count();
    let kept: Vec<Slice> = slices.into_iter().filter(|s| !steady || speed.was_full(s)).collect();
    let sum = |f: &dyn Fn(&ServiceTimeReport) -> u64| kept.iter().map(|s| f(&s.own)).sum::<u64>() as f64;
    let (come, polls) = (sum(&|o| o.come), sum(&|o| o.polls));
    let mut all = Measured {
        steady,
        full_speed: full as f64 / made.max(1) as f64,
        slices: kept.len(),
        interrupted: sum(&|o| o.interrupted) / polls.max(1.0),
        p_loss: (come > 0.0).then(|| sum(&|o| o.dropped) / come),
        ..Measured::default()
    };
    kept.iter().for_each(|s| all.sojourn.merge(&s.own.sojourn));
    let run = |s: Slice| slipstream_model::Run { rate: name.to_owned(), polls: s.polls };
    all.log = Some(PollLog { runs: kept.into_iter().map(run).collect() });
    all
}

fn slice(chain: &Chain, load: &Load, seed: u64) -> anyhow::Result<Slice> {
    let settle_ns = load.settle_ns.max(load.fill_ns.unwrap_or(0.0)).max(WARM / load.rate_pps * 1e9);
    let duration = Duration::from_nanos((SLICE_NS + settle_ns) as u64);
    let options = LiveOptions {
        duration: Some(duration),
        settle: Duration::from_nanos(settle_ns as u64),
        poll_log: Some(POLLS),
        ..LiveOptions::default()
    };
    let (report, log) = run(chain, load, "own", options, seed)?;
    let start = log.first().map_or(Nanos(0), |p| p.time);
    Ok(Slice {
        polls: log.iter().map(|p| model_poll(p, start)).filter(|p| p.time_ns >= settle_ns).collect(),
        own: report.service_time.context("the run was in the engine's own time")?,
    })
}

/// Runs the chain once, by this clock (`own` or `wall`).
pub(super) fn run(
    chain: &Chain,
    load: &Load,
    clock: &str,
    options: LiveOptions,
    seed: u64,
) -> anyhow::Result<(RunReport, Vec<Poll>)> {
    let burst = match load.process {
        Process::Bursty(burst) => format!(", burst={burst}"),
        _ => String::new(),
    };
    let graph = format!(
        "in :: paced(clock={clock}, rate={:.0}pps, arrivals={}{burst}, queue={}, batch={}, seed={seed}, {}) -> {}",
        load.rate_pps,
        load.process.name(),
        load.queue,
        load.batch,
        chain.traffic,
        chain.graph
    );
    let plan = Plan::from_graph(&graph, None, None, Path::new(""))?;
    let mut run = Driver::new(plan.build(1)?).live(options);
    let report = run.run(&mut |_| ControlFlow::Continue(()))?;
    let polls = run.poll_log().map(|log| log.polls().to_vec()).unwrap_or_default();
    Ok((report, polls))
}

/// A counter of the chain's source.
pub(super) fn counter(report: &RunReport, name: &str) -> anyhow::Result<u64> {
    let source = report.sources.first().context("a run has a source")?;
    Ok(source.counter(name).unwrap_or(0))
}

/// A poll as the model takes it; times since `start`, as those since 1970 leave no room for single ns in a
/// number with a fraction.
pub(super) fn model_poll(poll: &Poll, start: Nanos) -> slipstream_model::Poll {
    let (batch, empty_before) = (poll.batch, poll.empty_before);
    slipstream_model::Poll { time_ns: poll.time.since(start) as f64, batch, empty_before }
}
