//! Is the machine that `dimension` recommends large enough, and the next smaller one too small?

use serde_json::json;
use slipstream_model::{
    Candidate, Choices, Error, Interarrival, Parameters, Start, Strategy, Target, Variation, dimension,
};

use super::homogeneous::Bed;
use super::{Bench, Findings, Load, Process, Speed, effort, engine, object};

/// Share of packets that may be lost.
const TARGET: f64 = 0.01;

/// What is asked.
struct Task {
    what: &'static str,
    rate_pps: f64,
    process: Process,
    queues: Vec<usize>,
    batches: Vec<usize>,
}

pub(super) fn run(
    lab: &Bench<'_>,
    bed: &Bed,
    speed: &mut Speed,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    let line = &bed.fit.global;
    let capacity = |batch: usize| {
        let times = bed.fit.service_times(Strategy::Global, None, None).ok()?;
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
        try_out(lab, bed, task, speed, findings)?;
    }
    Ok(())
}

fn interarrival(task: &Task) -> Result<Interarrival, Error> {
    let gap = 1e9 / task.rate_pps;
    match task.process {
        Process::Constant => Interarrival::poisson(gap),
        Process::Poisson => Interarrival::geometric(gap),
        Process::Bursty(b) => Interarrival::negative_binomial(gap, (2.0 * f64::from(b) - 1.0).sqrt()),
    }
}

fn try_out(
    lab: &Bench<'_>,
    bed: &Bed,
    task: &Task,
    speed: &mut Speed,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    let all = Parameters {
        queue: 1,
        batch: 1,
        slot_ns: 1.0,
        interarrival: interarrival(task)?,
        service: bed.fit.service_times(Strategy::Global, None, None)?,
        variation: Variation::Poisson,
        start: Start::Equilibrium,
    };
    let choices = Choices { cores: 1, queues: task.queues.clone(), batches: task.batches.clone() };
    let target = Target { p_loss: TARGET, p99_sojourn_ns: None };
    let claim = |which: &str| format!("dimension, {}: {which}", task.what);
    let Ok(found) = dimension(&all, &choices, target, 2) else {
        findings.claim(claim("there is a configuration that does"), "not measured", None, bed.steady);
        return Ok(());
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
    let measured = engine::measure(lab, &bed.chain, &asked, speed, effort(lab, 15))?;
    for ((which, c), m) in both.into_iter().zip(measured) {
        let lost = m.p_loss.unwrap_or(0.0);
        findings.rows.push(object(json!({
            "dimension": task.what, "rate_mpps": task.rate_pps / 1e6, "arrivals": task.process.name(),
            "queue": c.queue, "batch": c.batch, "target_loss": TARGET, "which": which, "polls": m.polls(),
            "full_speed": m.full_speed, "p_loss_predicted": c.solution.p_loss, "p_loss": lost,
            "sojourn_p99_predicted_ns": c.solution.sojourn.quantile_ns(0.99), "sojourn_p99_ns": m.sojourn.quantile(0.99),
        })));
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
            "not measured",
            Some((json!(text), met == c.met)),
            m.steady && bed.steady,
        );
    }
    Ok(())
}
