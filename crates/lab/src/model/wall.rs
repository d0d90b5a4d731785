//! The same in real time: a generator thread on one core, a ring of L places, and the engine on another core.
//!
//! Both threads need their core all the time, and on a machine that others use they don't get it. How that is
//! kept out of the comparison: every point is made of many short runs that begin with an empty queue, and of
//! each run only what no interruption has touched counts. An interruption of the engine shows as a service
//! that took twice its usual time and 20 µs more, one of the generator as packets that are late by its own
//! account (the log has the time of the newest). What comes after one counts again when the queue has been
//! empty, or, above saturation, full again, and the chain has had a little time to settle.

use std::collections::BTreeMap;
use std::time::Duration;

use slipstream::runtime::{LiveOptions, Poll};
use slipstream::time::Nanos;
use slipstream_model::{Interarrival, PollLog, Strategy, compare, fit};

use serde_json::{Value, json};

use super::engine::{counter, model_poll, run};
use super::homogeneous::Calibrated;
use super::{
    BATCH, Bench, Chain, FEW_POLLS, Findings, Load, OVERLOAD, Process, QUEUE, full_speed, load, question,
    solve,
};

/// Length of a run, beside the time that fills the ring.
const RUN_NS: f64 = 6e6;
/// Time that a service may take beyond twice its mean.
const STALL_NS: f64 = 20e3;
/// Longest time of an empty poll.
const EMPTY_POLL_NS: f64 = 500.0;
/// Longest gap that counts as chance, in mean gaps between packets (or between bursts).
const GAPS: f64 = 12.0;
/// Lateness of packets that is allowed beside that.
const LATE_NS: f64 = 5e3;
/// A generator that is late more often than once in this time can't make more; one that is interrupted is
/// late more seldom.
const PACE_NS: f64 = 200e3;
/// Polls that the log of a run has room for.
const POLLS: usize = 1 << 16;

/// The length of a measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// Polls that are enough.
    pub(super) polls: usize,
    /// Runs at most.
    pub(super) runs: usize,
}

/// The measurements at a point.
#[derive(Debug, Default)]
pub(super) struct Measured {
    /// Polls that no interruption has touched.
    pub(super) log: Option<PollLog>,
    /// Share of the time that counts.
    pub(super) clean_share: f64,
    /// The load was more than the generator can make.
    pub(super) outpaced: bool,
}

impl Measured {
    pub(super) fn polls(&self) -> usize {
        self.log.as_ref().map_or(0, PollLog::polls)
    }
}

/// Measures a point; `name` is what its load is called in the log.
pub(super) fn measure(
    lab: &Bench<'_>,
    chain: &Chain,
    load: &Load,
    name: &str,
    effort: Effort,
) -> anyhow::Result<Measured> {
    let duration = Duration::from_nanos((RUN_NS + load.fill_ns.unwrap_or(0.0)) as u64);
    let mut pieces = Vec::new();
    let (mut runs, mut polls, mut outpaced) = (0, 0, 0);
    let (mut clean_ns, mut ns) = (0.0, 0.0);
    while runs < effort.runs && polls < effort.polls {
        lab.check()?;
        runs += 1;
        let options = LiveOptions {
            duration: Some(duration),
            busy_poll: true,
            poll_log: Some(POLLS),
            ..LiveOptions::default()
        };
        let (report, log) = run(chain, load, "wall", options, runs as u64)?;
        let elapsed_ns = report.elapsed_ns.max(1) as f64;
        outpaced += usize::from(counter(&report, "generator_interruptions")? as f64 * PACE_NS > elapsed_ns);
        ns += elapsed_ns;
        for polls_of in clean(&log, load) {
            polls += polls_of.len();
            clean_ns += polls_of.last().zip(polls_of.first()).map_or(0.0, |(b, a)| b.time_ns - a.time_ns);
            pieces.push(slipstream_model::Run { rate: name.to_owned(), polls: polls_of });
        }
    }
    Ok(Measured {
        log: (!pieces.is_empty()).then_some(PollLog { runs: pieces }),
        clean_share: if ns > 0.0 { clean_ns / ns } else { 0.0 },
        outpaced: 2 * outpaced > runs,
    })
}

/// The typical service time by order of magnitude of the batch: the lower quartile of polls that another
/// follows at once. A class of which there are only interrupted ones has no long times for that: a smaller
/// batch never takes longer, and one of twice as many packets at most twice as long.
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

/// The stretches of a log that no interruption has touched.
fn clean(polls: &[Poll], load: &Load) -> Vec<Vec<slipstream_model::Poll>> {
    let usual = usual(polls);
    let gap_ns = 1e9 / load.rate_pps;
    let chance = LATE_NS + GAPS * gap_ns * f64::from(load.process.burst());
    let mut segments = Vec::new();
    let mut current: Vec<slipstream_model::Poll> = Vec::new();
    let mut last: Option<&Poll> = None;
    let start = polls.first().map_or(Nanos(0), |p| p.time);
    // From when on polls count, if it is known.
    let mut from = Some(load.fill_ns.unwrap_or(load.settle_ns));
    for poll in polls {
        let own = model_poll(poll, start);
        let now = own.time_ns;
        let emptied = (poll.batch as usize) < load.batch;
        let late = emptied && poll.time.since(poll.newest) as f64 > chance;
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
        // Two polls at one tick of the clock can't be.
        if from.is_some_and(|from| now >= from) && current.last().is_none_or(|p| p.time_ns < now) {
            current.push(own);
        }
    }
    segments.push(current);
    segments.retain(|s| s.len() > 1);
    segments
}

/// The load at which real time is held against the model.
const LOAD: f64 = 0.3;

/// A point in real time, with its own capacity and its own fit: the other core is at work there, too.
pub(super) fn cross_check(
    lab: &Bench<'_>,
    calibrated: &Calibrated,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    let claim =
        calibrated.subject.says(&format!("in real time, load {LOAD}: the mean batch is off by packets"));
    let effort =
        if lab.quick { Effort { polls: 1500, runs: 120 } } else { Effort { polls: 6000, runs: 600 } };
    let full =
        measure(lab, &calibrated.subject.chain, &OVERLOAD, "overload", Effort { polls: 600, ..effort })?;
    let Some(capacity_pps) = full_speed(full.log.as_ref()) else {
        findings.claim(claim, Value::Null, "at most 1 packet", None, false);
        return Ok(());
    };
    let at = load(capacity_pps, LOAD, Process::Constant);
    let measured = measure(lab, &calibrated.subject.chain, &at, "0.3", effort)?;
    let Some(log) = measured.log.as_ref().filter(|_| measured.polls() >= FEW_POLLS && !measured.outpaced)
    else {
        findings.claim(claim, Value::Null, "at most 1 packet", None, false);
        return Ok(());
    };
    let runs = [log, full.log.as_ref().unwrap_or(log)].into_iter().flat_map(|log| log.runs.clone());
    let found = fit(&PollLog { runs: runs.collect() })?;
    let asked = Interarrival::poisson(1e9 / at.rate_pps)
        .and_then(|a| question(&found, (Strategy::Global, None), a, (QUEUE, BATCH)));
    let Some(s) = solve(vec![asked]).into_iter().next().flatten() else { return Ok(()) };
    let c = compare(&log.batch_pmf(), &s.batch_pmf)?;
    findings.row(json!({
        "chain": calibrated.subject.key, "clock": "wall", "load": LOAD, "rate_mpps": at.rate_pps / 1e6, "polls": measured.polls(),
        "clean_share": measured.clean_share, "mean_batch": c.measured_mean, "mean_batch_predicted": c.predicted_mean,
        "relative_error": c.relative_error, "jsd": c.jsd, "capacity_mpps": capacity_pps / 1e6,
        "capacity_own_time_mpps": calibrated.capacity_pps / 1e6,
    }));
    let off = (c.measured_mean - c.predicted_mean).abs();
    let found = Some((json!(off), off <= 1.0));
    findings.claim(claim, Value::Null, "at most 1 packet", found, measured.clean_share > 0.5);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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

    fn kept(polls: &[Poll], load: &Load) -> Vec<usize> {
        clean(polls, load).iter().map(Vec::len).collect()
    }

    #[test]
    fn what_is_quiet_is_kept_but_for_the_start() {
        assert_eq!(kept(&polls(3000), &load()), [2000]);
        assert!(kept(&[], &load()).is_empty());
    }

    #[test]
    fn an_interruption_of_the_engine_ends_a_stretch() {
        let mut all = polls(5000);
        // 300 µs away between two polls.
        all.iter_mut().skip(2500).for_each(|p| {
            p.time = Nanos(p.time.0 + 300_000);
            p.newest = Nanos(p.newest.0 + 300_000);
        });
        // The poll behind the interruption is part of it. What follows is settled a millisecond after the
        // next empty poll, number 2505.
        assert_eq!(kept(&all, &load()), [1500, 5000 - 3505]);
    }

    #[test]
    fn an_interruption_of_the_generator_ends_a_stretch() {
        let mut all = polls(5000);
        for poll in &mut all[2500..2600] {
            poll.newest = Nanos(poll.newest.0 - 30_000);
        }
        let segments = kept(&all, &load());
        assert!(segments[0] == 1500 && segments.len() == 2, "{segments:?}");
    }

    /// Large batches there are only behind interruptions, and each is interrupted itself: that doesn't make
    /// it usual.
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
        assert_eq!(clean(&all, &load()).len(), 2);
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
        assert_eq!(kept(&all, &load), [2000, 2000]);
    }
}
