//! `slipstream.model`: the queue of a processor that works in batches.

use anyhow::{Context, bail};
use pyo3::prelude::*;
use slipstream_model::{Interarrival, Model, Parameters, Report, ServiceTimes, Start, Variation};

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
        let report = Report::new(&model, Some(&solution), None, since.elapsed().as_nanos() as u64);
        Ok(serde_json::to_string(&report)?)
    })?
    .map_err(exception)
}
