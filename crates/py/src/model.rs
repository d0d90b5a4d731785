//! `slipstream.model`: the queue of a processor that works in batches.

use anyhow::{Context, bail};
use pyo3::prelude::*;
use serde_json::{Value, json};
use slipstream_model::{Delay, Interarrival, Model, Parameters, ServiceTimes, Solution, Start, Variation};

use crate::error::exception;
use crate::input::aside;

/// Solves the model for one load. Times are in ns, `mean` in slots. Gives the command's report.
#[pyfunction]
#[pyo3(signature = (*, queue, batch, slot, interarrival, mean, cv, service_base, service_per_packet, empty_poll, service, start))]
#[allow(clippy::too_many_arguments, reason = "each is a keyword in Python")]
pub(crate) fn solve(
    py: Python<'_>,
    queue: usize,
    batch: usize,
    slot: f64,
    interarrival: String,
    mean: f64,
    cv: Option<f64>,
    service_base: f64,
    service_per_packet: f64,
    empty_poll: f64,
    service: String,
    start: String,
) -> PyResult<String> {
    aside(py, move || {
        if cv.is_some() && interarrival != "negbin" {
            bail!("cv is for interarrival=\"negbin\"; the variation of the others follows from their mean");
        }
        let interarrival = match &*interarrival {
            "deterministic" => Interarrival::deterministic(mean),
            "poisson" => Interarrival::poisson(mean),
            "geometric" => Interarrival::geometric(mean),
            "negbin" => {
                Interarrival::negative_binomial(mean, cv.context("interarrival=\"negbin\" needs cv")?)
            }
            other => {
                bail!("interarrival {other:?}: there are deterministic, poisson, geometric and negbin")
            }
        }?;
        let variation = match &*service {
            "poisson" => Variation::Poisson,
            "deterministic" => Variation::Deterministic,
            other => bail!("service {other:?}: there are poisson and deterministic"),
        };
        let start = match &*start {
            "renewal" => Start::Renewal,
            "equilibrium" => Start::Equilibrium,
            "exact" => Start::Exact,
            other => bail!("start {other:?}: there are renewal, equilibrium and exact"),
        };
        let service = ServiceTimes::linear(service_base, service_per_packet, empty_poll)?;
        let model =
            Model::new(Parameters { queue, batch, slot_ns: slot, interarrival, service, variation, start })?;
        let since = slipstream::clock::now();
        let solution = model.solve()?;
        Ok(report(&model, &solution, since.elapsed().as_nanos() as u64).to_string())
    })?
    .map_err(exception)
}

fn report(model: &Model, s: &Solution, elapsed_ns: u64) -> Value {
    let p = model.parameters();
    json!({
        "load": s.load,
        "offered_pps": s.offered_pps,
        "throughput_pps": s.throughput_pps,
        "p_loss": s.p_loss,
        "utilization": s.utilization,
        "mean_batch": s.mean_batch,
        "sd_batch": s.sd_batch,
        "mean_queue": s.mean_queue,
        "wait_ns": delay(&s.wait),
        "sojourn_ns": delay(&s.sojourn),
        "residual": s.residual,
        "schema": 1,
        "queue": p.queue,
        "batch": p.batch,
        "slot_ns": p.slot_ns,
        "start": p.start,
        "interarrival": { "process": p.interarrival.name(), "mean_slots": p.interarrival.mean(), "cv": p.interarrival.cv() },
        "service": { "process": p.variation.name(), "empty_poll_ns": p.service.mean_ns(0), "lines": p.service.pieces() },
        "batch_pmf": s.batch_pmf,
        "queue_pmf": s.queue_pmf,
        "simulation": null,
        "elapsed_ns": elapsed_ns,
    })
}

fn delay(d: &Delay) -> Value {
    let at = |q: f64| d.quantile_ns(q).round().max(0.0) as u64;
    json!({ "mean": d.mean_ns(), "p50": at(0.5), "p90": at(0.9), "p99": at(0.99) })
}
