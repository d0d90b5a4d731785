//! Is the machine that `dimension` recommends large enough, and the next smaller one too small?

use serde_json::{Value, json};
use slipstream_model::{
    Candidate, Choices, Error, Interarrival, Parameters, Pmf, Start, Strategy, Target, Variation, dimension,
};

use super::homogeneous::Calibrated;
use super::{Bench, Findings, Load, Process, Speed, effort, engine};

/// Share of packets that may be lost.
const TARGET: f64 = 0.01;

/// The question to `model dimension`.
struct Task {
    what: &'static str,
    rate_pps: f64,
    process: Process,
    queues: Vec<usize>,
    batches: Vec<usize>,
}

pub(super) fn run(
    lab: &Bench<'_>,
    calibrated: &Calibrated,
    speed: &mut Speed,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    let line = &calibrated.fit.global;
    let capacity = |batch: usize| {
        let times = calibrated.fit.service_times(Strategy::Global, None, None).ok()?;
        Some(batch as f64 / times.mean_ns(batch) * 1e9)
    };
    let mut tasks = Vec::new();
    // Between what batches of 2 and of 4 bear.
    if let Some((two, four)) = capacity(2).zip(capacity(4)).filter(|_| line.service_base_ns > 0.0) {
        tasks.push(Task {
            what: "largest batch",
            rate_pps: (two * four).sqrt(),
            process: Process::Constant,
            queues: vec![512],
            batches: vec![1, 2, 4, 8, 16, 32, 64],
        });
    }
    if let Some(most) = capacity(32) {
        tasks.push(Task {
            what: "queue",
            rate_pps: 0.8 * most,
            process: Process::Bursty(16),
            queues: vec![32, 64, 128, 256, 512, 1024, 2048],
            batches: vec![32],
        });
    }
    for task in &tasks {
        try_out(lab, calibrated, task, speed, findings)?;
    }
    Ok(())
}

/// Slots of bursts, in ns: sums of a distribution given as numbers take a while with shorter ones.
const BURST_SLOT_NS: f64 = 40.0;

/// The arrivals of a task, its slot in ns, and how services vary around their mean, which in slots as long as
/// those of bursts is not at all.
fn arrivals(task: &Task) -> Result<(Interarrival, f64, Variation), Error> {
    let gap = 1e9 / task.rate_pps;
    Ok(match task.process {
        Process::Constant => (Interarrival::poisson(gap)?, 1.0, Variation::Poisson),
        Process::Poisson => (Interarrival::geometric(gap)?, 1.0, Variation::Poisson),
        Process::Bursty(b) => {
            (bursts(gap / BURST_SLOT_NS, f64::from(b))?, BURST_SLOT_NS, Variation::Deterministic)
        }
    })
}

/// The time between packets that come in bursts, with a mean of `gap` slots: none within a burst, whose
/// length is geometric with a mean of `burst` packets, and geometric between bursts. What follows a poll is
/// then what the equilibrium start says, exactly.
fn bursts(gap: f64, burst: f64) -> Result<Interarrival, Error> {
    let each = (gap * burst).recip();
    let between = (1..).map(|k| (1.0 - each).powi(k - 1) * each / burst).take_while(|p| *p > NEGLIGIBLE);
    let weights = std::iter::once(1.0 - burst.recip()).chain(between).collect();
    Interarrival::empirical(Pmf::from_weights("the time between packets", 0, weights)?)
}

/// Probabilities too small to show in a share of packets lost.
const NEGLIGIBLE: f64 = 1e-14;

fn try_out(
    lab: &Bench<'_>,
    calibrated: &Calibrated,
    task: &Task,
    speed: &mut Speed,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    let (interarrival, slot_ns, variation) = arrivals(task)?;
    let all = Parameters {
        queue: 1,
        batch: 1,
        slot_ns,
        interarrival,
        service: calibrated.fit.service_times(Strategy::Global, None, None)?,
        variation,
        start: Start::Equilibrium,
    };
    let choices = Choices { cores: 1, queues: task.queues.clone(), batches: task.batches.clone() };
    let target = Target { p_loss: TARGET, p99_sojourn_ns: None };
    let claim = |which: &str| calibrated.subject.says(&format!("dimension, {}: {which}", task.what));
    let found = match dimension(&all, all.interarrival.mean(), &choices, target, 2) {
        Ok(found) => found,
        Err(e) => {
            let none = Some((json!(e.to_string()), false));
            findings.claim(
                claim("there is a configuration that does"),
                Value::Null,
                "one is found",
                none,
                calibrated.steady,
            );
            return Ok(());
        }
    };
    let at = found.considered.iter().position(|c| (c.queue, c.batch) == (found.best.queue, found.best.batch));
    let smaller = at.and_then(|at| at.checked_sub(1)).and_then(|at| found.considered.get(at));
    let both = [("the recommended one", Some(&found.best)), ("the next smaller one", smaller)];
    let both: Vec<_> = both.into_iter().filter_map(|(which, c)| Some((which, c?))).collect();
    let load = |c: &Candidate| Load {
        rate_pps: task.rate_pps,
        process: task.process,
        queue: c.queue,
        batch: c.batch,
        settle_ns: 0.0,
        fill_ns: None,
    };
    let asked: Vec<_> = both.iter().map(|(which, c)| ((*which).to_owned(), load(c))).collect();
    let measured = engine::measure(lab, &calibrated.subject.chain, &asked, speed, effort(lab, 15))?;
    for ((which, c), m) in both.into_iter().zip(measured) {
        let lost = m.p_loss.unwrap_or(0.0);
        findings.row(json!({
            "chain": calibrated.subject.key, "dimension": task.what, "rate_mpps": task.rate_pps / 1e6, "arrivals": task.process.name(),
            "queue": c.queue, "batch": c.batch, "target_loss": TARGET, "which": which, "polls": m.polls(),
            "full_speed": m.full_speed, "p_loss_predicted": c.solution.p_loss, "p_loss": lost,
            "sojourn_p99_predicted_ns": c.solution.sojourn.quantile_ns(0.99), "sojourn_p99_ns": m.sojourn.quantile(0.99),
        }));
        let met = lost <= TARGET;
        let text = format!(
            "{} the target: {:.2} % lost, {:.2} % predicted",
            if met { "meets" } else { "misses" },
            lost * 100.0,
            c.solution.p_loss * 100.0
        );
        let wanted = if c.met { "meets 1 %" } else { "doesn't" };
        let which = format!("{which} (queue {}, batch {}) {wanted}", c.queue, c.batch);
        findings.claim(
            claim(&which),
            Value::Null,
            "meets or misses the target as predicted",
            Some((json!(text), met == c.met)),
            m.steady && calibrated.steady,
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_have_the_rate_and_variation_of_the_generator() {
        for (gap, burst) in [(7.5, 16.0), (100.0, 2.0), (3.0, 8.0)] {
            let a = bursts(gap, burst).unwrap();
            assert!((a.mean() / gap - 1.0).abs() < 1e-9, "{} {gap}", a.mean());
            // Exponential gaps between bursts have a squared coefficient of 2b − 1; in slots, one slot in the
            // mean less.
            let squared = 2.0 * burst - 1.0 - gap.recip();
            assert!((a.cv().powi(2) / squared - 1.0).abs() < 1e-6, "{} {squared}", a.cv().powi(2));
        }
    }
}
