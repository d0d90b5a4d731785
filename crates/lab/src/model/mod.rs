//! The queueing model beside our own data path (Figs. 4 to 10 of its paper).
//!
//! `engine` measures in the engine's own time, `homogeneous` and `mixed` are the paper's two scenarios,
//! `sizing` asks `dimension` for a machine and runs it; `wall` measures in real time, on two cores, as a
//! cross-check. What was measured on a machine that was too busy with other things is not comparable.

mod engine;
mod homogeneous;
mod mixed;
mod sizing;
mod wall;

use std::thread;
use std::time::Duration;

use serde_json::Value;
use slipstream_model::{
    Error, Fit, Interarrival, Parameters, PollLog, Solution, Start, Strategy, Variation, solve_all,
};

use super::{Bench, Chart, Claim, Findings, Lab};
use engine::{Chain, Effort, Load, Measured, Point, Process, Speed};
use homogeneous::Subject;

pub(super) const LAB: Lab = Lab {
    name: "model",
    source: "Discrete-Time Modeling of NFV Accelerators that Exploit Batched Processing, Figs. 4 to 10",
    what: "batch sizes and loss of our own data path, predicted and measured; a recommended machine, run",
    needs: None,
    run,
};

/// Places of the ring, and packets of a poll, as in the paper.
const QUEUE: usize = 4096;
const BATCH: usize = 256;
/// Fewest polls of a point whose distribution is compared.
const FEW_POLLS: usize = 200;

fn run(lab: &Bench<'_>) -> anyhow::Result<Findings> {
    let mut findings = Findings::default();
    let mut speed = Speed::find(Duration::from_millis(if lab.quick { 300 } else { 2000 }));
    alone(lab, Subject::stated(), &mut Speed::any(), &mut findings)?;
    lab.step(0.35)?;
    alone(lab, Subject::cross_connect(), &mut speed, &mut findings)?;
    lab.step(0.7)?;
    mixed::run(lab, &mut speed, &mut findings)?;
    lab.step(1.0)?;
    Ok(findings)
}

/// Runs all measurements of a chain in which packets are alike.
fn alone(
    lab: &Bench<'_>,
    subject: Subject,
    speed: &mut Speed,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    if let Some(calibrated) = homogeneous::run(lab, subject, speed, findings)? {
        sizing::run(lab, &calibrated, speed, findings)?;
        wall::cross_check(lab, &calibrated, findings)?;
    }
    Ok(())
}

/// The length of the measurement of a point, and a bound in time for all points together.
fn effort(lab: &Bench<'_>, seconds: u64) -> Effort {
    if lab.quick {
        Effort { polls: 4000, within: Duration::from_secs(seconds / 5) }
    } else {
        Effort { polls: 30_000, within: Duration::from_secs(seconds) }
    }
}

/// An offered load at which all polls take β packets, in packets a second.
const OVERLOAD: Load = Load {
    rate_pps: 1e8,
    process: Process::Constant,
    queue: QUEUE,
    batch: BATCH,
    settle_ns: 0.0,
    fill_ns: Some(3e6),
};

/// The capacity of a chain, in packets a second.
fn capacity(lab: &Bench<'_>, chain: &Chain, speed: &mut Speed) -> anyhow::Result<Option<f64>> {
    let effort = Effort { polls: 1500, ..effort(lab, 10) };
    let measured = engine::measure(lab, chain, &[("overload".to_owned(), OVERLOAD)], speed, effort)?;
    Ok(measured.first().and_then(|m| full_speed(m.log.as_ref())))
}

/// Packets a second in full batches, by the median of their times.
fn full_speed(log: Option<&PollLog>) -> Option<f64> {
    let services = log.iter().flat_map(|log| &log.runs).flat_map(slipstream_model::Run::services);
    let mut full: Vec<f64> = services.filter(|s| s.0 as usize == BATCH).map(|s| s.1).collect();
    full.sort_by(f64::total_cmp);
    full.get(full.len() / 2).map(|ns| BATCH as f64 / ns * 1e9)
}

/// Upper bound of the time in which a load above saturation fills the ring, in ns.
fn fill_ns(rate_pps: f64, capacity_pps: f64) -> Option<f64> {
    (rate_pps > capacity_pps).then(|| 1.5 * QUEUE as f64 / (rate_pps - capacity_pps) * 1e9 + 1e6)
}

/// A load of a chain, the ring and the batch as in the paper.
fn load(capacity_pps: f64, load: f64, process: Process) -> Load {
    let rate_pps = load * capacity_pps;
    // Near saturation a queue takes longer to forget that it was empty.
    let settle_ns = (1e5 / (1.0 - load).max(0.1)).min(1e6);
    Load {
        rate_pps,
        process,
        queue: QUEUE,
        batch: BATCH,
        settle_ns,
        fill_ns: fill_ns(rate_pps, capacity_pps),
    }
}

const PROCESSES: usize = 4;

/// The arrival processes of §V-A, in the order of their variation, for a mean in slots of 1 ns.
fn processes(mean: f64) -> [(&'static str, Result<Interarrival, Error>); PROCESSES] {
    [
        ("poisson", Interarrival::poisson(mean)),
        ("negbin 0.5", Interarrival::negative_binomial(mean, 0.5)),
        ("geometric", Interarrival::geometric(mean)),
        ("negbin 2", Interarrival::negative_binomial(mean, 2.0)),
    ]
}

/// The model's question for a rate: service times from a fit, slots of 1 ns.
fn question(
    fit: &Fit,
    strategy: (Strategy, Option<&str>),
    interarrival: Interarrival,
    (queue, batch): (usize, usize),
) -> Result<Parameters, Error> {
    Ok(Parameters {
        queue,
        batch,
        slot_ns: 1.0,
        interarrival,
        service: fit.service_times(strategy.0, strategy.1, None)?,
        variation: Variation::Poisson,
        start: Start::Equilibrium,
    })
}

/// Solves the questions that are possible.
fn solve(questions: Vec<Result<Parameters, Error>>) -> Vec<Option<Solution>> {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let asked: Vec<Parameters> = questions.iter().filter_map(|q| q.as_ref().ok().cloned()).collect();
    let mut answers = solve_all(&asked, threads).into_iter();
    questions.iter().map(|q| q.as_ref().ok().and_then(|_| answers.next()?.ok())).collect()
}

impl Findings {
    /// A claim that was put to the test, or couldn't be. Where the core was not `steady` a measurement says
    /// nothing, whichever way it came out.
    fn claim(
        &mut self,
        claim: impl Into<String>,
        paper: impl Into<Value>,
        criterion: &str,
        measured: Option<(Value, bool)>,
        steady: bool,
    ) {
        self.claims.push(match measured {
            None => Claim::not_comparable(claim, paper, Value::Null, NOT_MEASURED),
            Some((measured, _)) if !steady => Claim::not_comparable(claim, paper, measured, SLOWED),
            Some((measured, holds)) => Claim::checked(claim, paper, measured, criterion, holds),
        });
    }
}

const NOT_MEASURED: &str =
    "the machine was too busy with other work, or the generator too slow, for it to be measured";
const SLOWED: &str = "the core rarely had its full speed, since the machine was busy with other work";

/// Lower bounds of the classes of batch sizes in which distributions are shown.
const CLASSES: [usize; 10] = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256];

/// Names of the classes of batch sizes.
fn classes() -> Vec<String> {
    let next = CLASSES.iter().skip(1).map(|n| n - 1).chain([BATCH]);
    let name =
        |(from, to): (&usize, usize)| if *from == to { to.to_string() } else { format!("{from}–{to}") };
    CLASSES.iter().zip(next).map(name).collect()
}

/// A distribution by classes.
fn by_class(pmf: &[f64]) -> Vec<Option<f64>> {
    let ends = CLASSES.iter().skip(1).copied().chain([usize::MAX]);
    let share = |(from, to): (&usize, usize)| pmf.iter().take(to).skip(*from).sum::<f64>();
    CLASSES.iter().zip(ends).map(|c| Some(share(c))).collect()
}

/// The least value up to which a share `q` lies.
fn quantile(pmf: &[f64], q: f64) -> usize {
    let mut sum = 0.0;
    let reached = pmf.iter().position(|p| {
        sum += p;
        sum >= q - 1e-12
    });
    reached.unwrap_or(pmf.len().saturating_sub(1))
}

fn mean(pmf: &[f64]) -> f64 {
    pmf.iter().enumerate().map(|(v, p)| v as f64 * p).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_all_batches() {
        assert_eq!(classes(), ["0", "1", "2–3", "4–7", "8–15", "16–31", "32–63", "64–127", "128–255", "256"]);
        let pmf = vec![1.0 / 257.0; 257];
        let shares = by_class(&pmf);
        assert!((shares.iter().flatten().sum::<f64>() - 1.0).abs() < 1e-12);
        assert_eq!(shares[9], Some(1.0 / 257.0));
        assert_eq!((quantile(&pmf, 0.5), quantile(&[0.0, 1.0], 0.5)), (128, 1));
        assert!((mean(&pmf) - 128.0).abs() < 1e-9);
    }

    #[test]
    fn the_ring_is_full_when_it_counts() {
        assert_eq!(fill_ns(1e6, 2e6), None);
        let fill = fill_ns(2e6, 1e6).unwrap();
        // Each second a million packets too many.
        assert!(fill > 4096.0 / 1e6 * 1e9 && fill < 1e7);
    }
}
