//! `slipstream model dimension`: the smallest machine for a target.

use std::thread;

use serde_json::{Value, json};
use slipstream_model::{Candidate, Choices, Dimension, Target, dimension};
use slipstream_report::{Table, time};

use super::super::Outcome;
use super::{finish, inputs, loss, mpps};
use crate::check;
use crate::cli::model;
use crate::ui::at_work;

pub(super) fn run(args: &model::Dimension) -> anyhow::Result<Outcome> {
    let checks = check::parse_all(&args.reporting.fail_if)?;
    let slot_ns = args.server.reading.slot.0;
    let mean = inputs::mean_slots(args.rate.0, slot_ns)?;
    // Of a single core packets may be more than one a slot, of all that there may be too few.
    let process = |cores: u32| inputs::interarrival(&args.arrivals, slot_ns, Some(mean * f64::from(cores)));
    let interarrival = process(args.max_cores).or_else(|why| process(1).map_err(|_| why))?;
    // Mean, queue and batch are those of each candidate.
    let core = inputs::parameters(&args.server, (1, 1), interarrival)?;
    let choices =
        Choices { cores: args.max_cores, queues: args.queues.clone(), batches: args.batches.clone() };
    let target = Target { p_loss: args.max_loss, p99_sojourn_ns: args.max_p99.map(|t| t.0) };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let found = at_work("dimensioning", || dimension(&core, mean, &choices, target, threads))?;
    let result = json!({
        "schema": 1,
        "offered_pps": args.rate.0,
        "max_loss": target.p_loss,
        "max_p99_ns": target.p99_sojourn_ns,
        "cores": found.best.cores,
        "queue": found.best.queue,
        "batch": found.best.batch,
        "max_core_pps": found.max_core_pps,
        "max_total_pps": found.max_core_pps * f64::from(found.best.cores),
        "per_core": found.best.solution.summary(),
        "considered": found.considered.iter().map(json_candidate).collect::<Vec<_>>(),
    });
    finish(&args.reporting, &checks, &result, || table(&found))
}

fn json_candidate(c: &Candidate) -> Value {
    json!({
        "cores": c.cores,
        "queue": c.queue,
        "batch": c.batch,
        "met": c.met,
        "p_loss": c.solution.p_loss,
        "load": c.solution.load,
        "mean_batch": c.solution.mean_batch,
        "sojourn_ns": c.solution.sojourn.summary(),
    })
}

fn table(d: &Dimension) -> Table {
    let mut t = Table::default();
    let best = &d.best;
    t.title("The smallest machine that does");
    t.row(["cores", &best.cores.to_string()]);
    t.row(["queue of each", &best.queue.to_string()]);
    t.row(["largest batch", &best.batch.to_string()]);
    t.row(["a core gets", &mpps(best.solution.offered_pps)]);
    t.row(["a core bears", &mpps(d.max_core_pps)]);
    t.row(["all bear", &mpps(d.max_core_pps * f64::from(best.cores))]);
    t.title("Considered");
    t.row(["cores", "queue", "batch", "load", "loss", "p99", "meets the target"]);
    for c in &d.considered {
        t.row([
            c.cores.to_string(),
            c.queue.to_string(),
            c.batch.to_string(),
            format!("{:.3}", c.solution.load),
            loss(c.solution.p_loss),
            time(Some(c.solution.sojourn.quantile_ns(0.99))),
            if c.met { "yes" } else { "no" }.to_owned(),
        ]);
    }
    t
}
