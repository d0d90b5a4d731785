//! Runs of our own data path for the model: packets come into a ring of L places, the engine takes up to β of them a poll, in its
//! own time. That counts what its polls take and not what interrupts them, so that a queue near saturation can be measured where no core
//! is left alone for long. What is left is that a core is sometimes slower: points are measured by turns, in short slices,
//! and slices in which the core didn't have its full speed don't count where there are enough others. `wall` measures in real time.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use slipstream::clock;
use slipstream::pipeline::Plan;
use slipstream::runtime::{LiveOptions, OwnTime, Poll, Quiet, Run, RunReport};
use slipstream::time::Nanos;
use slipstream_model::PollLog;
use slipstream_stats::Histogram;

use super::super::Bench;

/// Length of a slice, beside what it takes to settle, in the engine's time.
const SLICE_NS: f64 = 8e6;
/// Slices of a point, at least.
const FEWEST: u64 = 3;
/// Packets until every flow has been there and every table is in the cache.
const WARM: f64 = 8192.0;
/// Polls that the log of a run has room for.
const POLLS: usize = 1 << 18;

/// When packets come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Process {
    Constant,
    Poisson,
    /// Bursts of so many on average.
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

/// What a run is given.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) rate_pps: f64,
    pub(super) process: Process,
    /// Places of the ring, L.
    pub(super) queue: usize,
    /// Packets that a poll takes at most, β.
    pub(super) batch: usize,
    /// What the chain is given to settle, from an empty queue.
    pub(super) settle_ns: f64,
    /// Above saturation: how long it takes until the ring is full.
    pub(super) fill_ns: Option<f64>,
}

/// What was measured at a point.
#[derive(Debug, Default)]
pub(super) struct Measured {
    /// Polls that count.
    pub(super) log: Option<PollLog>,
    /// Slices that count.
    pub(super) runs: usize,
    /// Whether there were enough slices in which the core had its full speed. Else all slices count.
    pub(super) steady: bool,
    /// Share of such slices.
    pub(super) quiet_share: f64,
    /// Share of all polls, empty ones included, that were interrupted and counted with the time of another one.
    pub(super) interrupted: f64,
    /// Share of packets lost.
    pub(super) p_loss: Option<f64>,
    /// From arrival to the end of service, ns.
    pub(super) sojourn: Histogram,
}

impl Measured {
    /// Packets a second that were served in the time that counts.
    pub(super) fn served_pps(&self) -> Option<f64> {
        self.log.as_ref().and_then(PollLog::rate_pps)
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

/// A point: what a load is called in the log, and what it is.
pub(super) type Point = (String, Load);

/// How much is measured of a point.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// Polls at full speed that are enough.
    pub(super) polls: usize,
    /// Real time after which no more is begun.
    pub(super) within: Duration,
}

/// Slices of a point, those at full speed and all.
#[derive(Default)]
struct Slices {
    quiet: Vec<Slice>,
    slowed: Vec<Slice>,
}

struct Slice {
    polls: Vec<slipstream_model::Poll>,
    offered: u64,
    dropped: u64,
    own: OwnTime,
}

impl Slices {
    fn polls(&self) -> usize {
        self.quiet.iter().map(|s| s.polls.len()).sum()
    }

    fn measured(mut self, name: &str, enough: usize) -> Measured {
        let quiet_share = self.quiet.len() as f64 / (self.quiet.len() + self.slowed.len()).max(1) as f64;
        let steady = self.polls() >= enough;
        if !steady {
            self.quiet.append(&mut self.slowed);
        }
        let mut all = Measured { steady, quiet_share, runs: self.quiet.len(), ..Measured::default() };
        let (mut offered, mut dropped, mut made, mut interrupted) = (0, 0, 0, 0);
        let mut runs = Vec::new();
        for slice in self.quiet {
            offered += slice.offered;
            dropped += slice.dropped;
            made += slice.own.polls;
            interrupted += slice.own.interrupted;
            all.sojourn.merge(&slice.own.sojourn);
            runs.push(slipstream_model::Run { rate: name.to_owned(), polls: slice.polls });
        }
        all.interrupted = interrupted as f64 / made.max(1) as f64;
        all.p_loss = (offered > 0).then(|| dropped as f64 / offered as f64);
        all.log = Some(PollLog { runs });
        all
    }
}

/// Measures points in the engine's own time, by turns: whatever makes the core slower or faster for a while meets all of them.
pub(super) fn measure(
    lab: &Bench<'_>,
    chain: &Chain,
    points: &[Point],
    quiet: &mut Quiet,
    effort: Effort,
) -> anyhow::Result<Vec<Measured>> {
    let mut all: Vec<Slices> = points.iter().map(|_| Slices::default()).collect();
    let end = clock::now() + effort.within;
    for seed in 1.. {
        for ((_, load), slices) in points.iter().zip(&mut all) {
            lab.check()?;
            if slices.polls() >= effort.polls || seed > FEWEST && clock::now() >= end {
                continue;
            }
            let before = quiet.now();
            let slice = slice(chain, load, seed)?;
            let of = if before && quiet.now() { &mut slices.quiet } else { &mut slices.slowed };
            of.push(slice);
        }
        if all.iter().all(|s| s.polls() >= effort.polls) || seed >= FEWEST && clock::now() >= end {
            break;
        }
    }
    Ok(all.into_iter().zip(points).map(|(s, (name, _))| s.measured(name, effort.polls)).collect())
}

fn slice(chain: &Chain, load: &Load, seed: u64) -> anyhow::Result<Slice> {
    let settle_ns = load.settle_ns.max(load.fill_ns.unwrap_or(0.0)).max(WARM / load.rate_pps * 1e9);
    let duration = Duration::from_nanos((SLICE_NS + settle_ns) as u64);
    let (report, log) = run(chain, load, "own", duration, POLLS, seed)?;
    let start = log.first().map_or(Nanos(0), |p| p.time);
    Ok(Slice {
        polls: log.iter().map(|p| model_poll(p, start)).filter(|p| p.time_ns >= settle_ns).collect(),
        offered: counter(&report, "offered")?,
        dropped: counter(&report, "dropped_by_queue")?,
        own: report.own_time.context("the run was in the engine's own time")?,
    })
}

/// Runs the chain once, by this clock (`own` or `wall`).
pub(super) fn run(
    chain: &Chain,
    load: &Load,
    clock: &str,
    duration: Duration,
    room: usize,
    seed: u64,
) -> anyhow::Result<(RunReport, Vec<Poll>)> {
    let graph = format!(
        "in :: paced(clock={clock}, rate={:.0}pps, arrivals={}, burst={}, queue={}, batch={}, seed={seed}, {}) -> {}",
        load.rate_pps,
        load.process.name(),
        load.process.burst(),
        load.queue,
        load.batch,
        chain.traffic,
        chain.graph
    );
    let plan = Plan::from_graph(&graph, None, None, Path::new(""))?;
    let options = LiveOptions {
        duration: Some(duration),
        busy_poll: true,
        poll_log: Some(room),
        ..LiveOptions::default()
    };
    let mut run = Run::new(plan.build(1)?).live(options);
    let report = run.run(&mut |_| ControlFlow::Continue(()))?;
    let polls = run.poll_log().map(|log| log.polls().to_vec()).unwrap_or_default();
    Ok((report, polls))
}

/// A counter of the chain's source.
pub(super) fn counter(report: &RunReport, name: &str) -> anyhow::Result<u64> {
    let source = report.sources.first().context("a run has a source")?;
    Ok(source.counters.iter().find(|c| c.0 == name).map_or(0, |c| c.1))
}

/// A poll as the model takes it; times since `start`, as those since 1970 leave no room for single ns in a number with a fraction.
pub(super) fn model_poll(poll: &Poll, start: Nanos) -> slipstream_model::Poll {
    let (batch, empty_before) = (poll.batch, poll.empty_before);
    slipstream_model::Poll { time_ns: poll.time.since(start) as f64, batch, empty_before }
}
