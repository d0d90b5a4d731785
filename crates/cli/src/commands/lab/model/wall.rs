//! Runs of our own data path for the model: a generator thread, a ring of L places, and the engine that polls it, in real
//! time on two cores.
//!
//! Both threads need their core all the time, and on a machine that others use they don't get it. How that is kept out of the
//! comparison: every point is made of many short runs that begin with an empty queue, and of each run only what no
//! interruption has touched counts. An interruption of the engine shows as a service that took twice its usual time and
//! 20 µs more, one of the generator as packets that are late by its own account (the log has the time of the newest). What comes
//! after one counts again when the queue has been empty, or, above saturation, full again, and the chain has had a
//! little time to settle. Loss and sojourn times below saturation are those of the runs that were not interrupted at all.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use slipstream::pipeline::Plan;
use slipstream::runtime::{LiveOptions, Poll, Run};
use slipstream_model::PollLog;
use slipstream_stats::Histogram;

use super::super::Bench;

/// Length of a run, beside what it takes to fill the ring.
const RUN_NS: f64 = 6e6;
/// How near to its end the last poll of a run must be, for the run not to have ended in an interruption.
const END_NS: f64 = 0.5e6;
/// What a service may take beyond twice its usual time.
const STALL_NS: f64 = 20e3;
/// What an empty poll may take.
const EMPTY_POLL_NS: f64 = 500.0;
/// Mean gaps between packets (of bursts: between bursts) that are believed to be chance.
const GAPS: f64 = 12.0;
/// How late packets may be beside that.
const LATE_NS: f64 = 5e3;
/// A generator that is late more often than once in this time can't make more; one that is interrupted is late more seldom.
const PACE_NS: f64 = 200e3;
/// Polls that the log of a run has room for.
const POLLS: usize = 1 << 16;

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

    fn burst(self) -> u32 {
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

/// How much is measured of a point.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// Polls that are enough.
    pub(super) polls: usize,
    /// Runs at most.
    pub(super) runs: usize,
    /// Uninterrupted runs that are enough.
    pub(super) whole: usize,
}

/// What was measured at a point.
#[derive(Debug, Default)]
pub(super) struct Measured {
    /// Polls that no interruption has touched.
    pub(super) log: Option<PollLog>,
    /// Runs, and those without interruption.
    pub(super) runs: usize,
    pub(super) whole: usize,
    /// Share of the time that counts.
    pub(super) clean_share: f64,
    /// Share of packets lost in runs without interruption.
    pub(super) p_loss: Option<f64>,
    /// From arrival to the end of service in runs without interruption, ns.
    pub(super) sojourn: Histogram,
    /// Whether more was asked of the generator than it can make.
    pub(super) outpaced: bool,
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

/// Measures a point; `name` is what its load is called in the log.
pub(super) fn measure(
    lab: &Bench<'_>,
    chain: &Chain,
    load: &Load,
    name: &str,
    effort: Effort,
) -> anyhow::Result<Measured> {
    let mut all = Measured::default();
    let mut pieces = Vec::new();
    let (mut offered, mut dropped, mut polls, mut outpaced) = (0, 0, 0, 0);
    let (mut clean_ns, mut ns) = (0.0, 0.0);
    while all.runs < effort.runs && (polls < effort.polls || all.whole < effort.whole) {
        lab.check()?;
        all.runs += 1;
        let one = run_once(chain, load, all.runs as u64)?;
        outpaced += usize::from(one.interruptions as f64 * PACE_NS > one.elapsed_ns as f64);
        let (segments, mut disturbed) = clean(&one.polls, load);
        // An engine that doesn't come back is interrupted, too.
        disturbed |= one.last_poll_ns + END_NS < one.elapsed_ns as f64
            || one.elapsed_ns as f64 > one.asked_ns + END_NS;
        ns += one.elapsed_ns as f64;
        if !disturbed && one.away_ns == 0 {
            all.whole += 1;
            offered += one.offered;
            dropped += one.dropped;
            all.sojourn.merge(&one.sojourn);
        }
        for polls_of in segments {
            polls += polls_of.len();
            clean_ns += polls_of.last().zip(polls_of.first()).map_or(0.0, |(b, a)| b.time_ns - a.time_ns);
            pieces.push(slipstream_model::Run { rate: name.to_owned(), polls: polls_of });
        }
    }
    all.clean_share = if ns > 0.0 { clean_ns / ns } else { 0.0 };
    all.p_loss = (offered > 0).then(|| dropped as f64 / offered as f64);
    all.outpaced = 2 * outpaced > all.runs;
    all.log = (!pieces.is_empty()).then_some(PollLog { runs: pieces });
    Ok(all)
}

struct Once {
    polls: Vec<Poll>,
    sojourn: Histogram,
    offered: u64,
    dropped: u64,
    away_ns: u64,
    interruptions: u64,
    elapsed_ns: u64,
    /// How long the run was to be.
    asked_ns: f64,
    /// From the first poll to the last that brought packets.
    last_poll_ns: f64,
}

fn run_once(chain: &Chain, load: &Load, seed: u64) -> anyhow::Result<Once> {
    let graph = format!(
        "in :: paced(rate={:.0}pps, arrivals={}, burst={}, queue={}, batch={}, seed={seed}, {}) -> {}",
        load.rate_pps,
        load.process.name(),
        load.process.burst(),
        load.queue,
        load.batch,
        chain.traffic,
        chain.graph
    );
    let plan = Plan::from_graph(&graph, None, None, Path::new(""))?;
    let duration = Duration::from_nanos((RUN_NS + load.fill_ns.unwrap_or(0.0)) as u64);
    let options = LiveOptions {
        duration: Some(duration),
        busy_poll: true,
        poll_log: Some(POLLS),
        ..LiveOptions::default()
    };
    let mut run = Run::new(plan.build(1)?).live(options);
    let report = run.run(&mut |_| ControlFlow::Continue(()))?;
    let source = report.sources.first().context("a run has a source")?;
    let counter = |name: &str| source.counters.iter().find(|c| c.0 == name).map_or(0, |c| c.1);
    let mut sojourn = Histogram::new();
    report.stages.iter().filter_map(|s| s.excess.as_ref()).for_each(|h| sojourn.merge(h));
    let polls = run.poll_log().map(|log| log.polls().to_vec()).unwrap_or_default();
    let span = polls.last().zip(polls.first()).map_or(0, |(last, first)| last.time.since(first.time));
    Ok(Once {
        polls,
        asked_ns: duration.as_nanos() as f64,
        last_poll_ns: span as f64,
        sojourn,
        offered: counter("offered"),
        dropped: counter("dropped_by_queue"),
        away_ns: counter("generator_away_ns"),
        interruptions: counter("generator_interruptions"),
        elapsed_ns: report.elapsed_ns.max(1),
    })
}

/// The usual service time by order of magnitude of the batch: the lower quartile of polls that another follows at once. A class of
/// which there are only interrupted ones has no long times for that: a smaller batch never takes longer, and one of twice as many packets
/// at most twice as long.
fn usual(polls: &[Poll]) -> BTreeMap<u32, f64> {
    let mut classes: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for (a, b) in polls.iter().zip(polls.iter().skip(1)).filter(|(_, b)| b.empty_before == 0) {
        classes.entry(a.batch.ilog2()).or_default().push(b.time.since(a.time) as f64);
    }
    let quartile = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 4).copied().unwrap_or(0.0)
    };
    let mut usual: BTreeMap<u32, f64> =
        classes.into_iter().map(|(class, times)| (class, quartile(times))).collect();
    let mut least = f64::INFINITY;
    for time in usual.values_mut().rev() {
        least = least.min(*time);
        *time = least;
    }
    let mut a_packet = f64::INFINITY;
    for (class, time) in &mut usual {
        // Batches of one class differ by up to a factor of two among themselves.
        a_packet = a_packet.min(*time / f64::from(*class).exp2());
        *time = time.min(2.0 * a_packet * f64::from(*class).exp2());
    }
    usual
}

/// The stretches of a log that no interruption has touched, and whether there was one.
fn clean(polls: &[Poll], load: &Load) -> (Vec<Vec<slipstream_model::Poll>>, bool) {
    let usual = usual(polls);
    let gap_ns = 1e9 / load.rate_pps;
    let chance = LATE_NS + GAPS * gap_ns * f64::from(load.process.burst());
    let mut segments = Vec::new();
    let mut current = Vec::new();
    let mut disturbed = false;
    let mut last: Option<&Poll> = None;
    // From when on polls count, if it is known.
    let first = polls.first().map_or(0.0, |p| p.time.0 as f64);
    let mut from = Some(first + load.fill_ns.unwrap_or(load.settle_ns));
    for poll in polls {
        let now = poll.time.0 as f64;
        let emptied = (poll.batch as usize) < load.batch;
        let late = emptied && now - poll.newest.0 as f64 > chance;
        let (mut stalled, mut away) = (false, false);
        if let Some(last) = last {
            let service = usual.get(&last.batch.ilog2()).copied().unwrap_or(0.0);
            let empty = EMPTY_POLL_NS * f64::from(poll.empty_before);
            stalled = poll.time.since(last.time) as f64 > 2.0 * service + empty + STALL_NS;
            away = emptied
                && poll.newest.since(last.newest) as f64 > f64::from(poll.batch) * gap_ns + chance
                && load.fill_ns.is_none();
        }
        last = Some(poll);
        if late || stalled || away {
            disturbed = true;
            segments.push(std::mem::take(&mut current));
            // A full ring stays full while nobody polls it.
            from = match load.fill_ns {
                Some(_) if stalled && !late => from,
                Some(fill) => Some(now + fill),
                None => None,
            };
        }
        if from.is_none() && poll.empty_before > 0 && !late && !away {
            from = Some(now + load.settle_ns);
        }
        if from.is_some_and(|from| now >= from) {
            let (batch, empty_before) = (poll.batch, poll.empty_before);
            // Two polls at one tick of the clock can't be.
            if current.last().is_none_or(|p: &slipstream_model::Poll| p.time_ns < now) {
                current.push(slipstream_model::Poll { time_ns: now, batch, empty_before });
            }
        }
    }
    segments.push(current);
    segments.retain(|s| s.len() > 1);
    (segments, disturbed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use slipstream::time::Nanos;

    fn load() -> Load {
        Load {
            rate_pps: 1e6,
            process: Process::Constant,
            queue: 512,
            batch: 64,
            settle_ns: 1e6,
            fill_ns: None,
        }
    }

    /// Polls 1 µs apart, each with the packet that came just before, every fifth after an empty one.
    fn polls(n: u64) -> Vec<Poll> {
        let poll = |i: u64| Poll {
            time: Nanos(1_000_000 + i * 1000),
            batch: 1,
            empty_before: u32::from(i.is_multiple_of(5)),
            newest: Nanos(1_000_000 + i * 1000 - 50),
            source: 0,
        };
        (0..n).map(poll).collect()
    }

    fn kept(polls: &[Poll], load: &Load) -> (Vec<usize>, bool) {
        let (segments, disturbed) = clean(polls, load);
        (segments.iter().map(Vec::len).collect(), disturbed)
    }

    #[test]
    fn what_is_quiet_is_kept_but_for_the_start() {
        assert_eq!(kept(&polls(3000), &load()), (vec![2000], false));
        assert_eq!(kept(&[], &load()), (vec![], false));
    }

    #[test]
    fn an_interruption_of_the_engine_ends_a_stretch() {
        let mut all = polls(5000);
        // 300 µs away between two polls.
        all.iter_mut().skip(2500).for_each(|p| {
            p.time = Nanos(p.time.0 + 300_000);
            p.newest = Nanos(p.newest.0 + 300_000);
        });
        // The poll behind the interruption is part of it. What follows is settled a millisecond after the next empty poll,
        // number 2505.
        assert_eq!(kept(&all, &load()), (vec![1500, 5000 - 3505], true));
    }

    #[test]
    fn an_interruption_of_the_generator_ends_a_stretch() {
        let mut all = polls(5000);
        for poll in &mut all[2500..2600] {
            poll.newest = Nanos(poll.newest.0 - 30_000);
        }
        let (segments, disturbed) = kept(&all, &load());
        assert!(disturbed && segments[0] == 1500 && segments.len() == 2, "{segments:?}");
    }

    /// Large batches there are only behind interruptions, and each is interrupted itself: that doesn't make it usual.
    #[test]
    fn what_is_seldom_is_not_usual_for_that() {
        let mut all = polls(5000);
        all.iter_mut().skip(2500).for_each(|p| {
            p.time = Nanos(p.time.0 + 300_000);
            p.newest = Nanos(p.newest.0 + 300_000);
        });
        (all[2499].batch, all[2500].batch, all[2500].empty_before) = (64, 64, 0);
        let usual = usual(&all);
        assert!(usual[&6] <= 128_000.0 && usual[&0] == 1000.0, "{usual:?}");
        assert!(clean(&all, &load()).1);
    }

    #[test]
    fn above_saturation_a_full_ring_stays_full() {
        let mut all = polls(6000);
        for poll in &mut all {
            (poll.batch, poll.empty_before) = (64, 0);
            poll.newest = Nanos(poll.newest.0 - 500_000);
        }
        all.iter_mut().skip(4000).for_each(|p| p.time = Nanos(p.time.0 + 300_000));
        let load = Load { fill_ns: Some(2e6), ..load() };
        assert_eq!(kept(&all, &load), (vec![2000, 2000], true));
    }
}
