//! The parts of reports about a model, its solution and a simulation.

use serde::Serialize;

use crate::{Delay, Estimate, Model, Parameters, Piece, Simulated, Solution, Start};

/// The report on one load, as `slipstream model solve` and its twin in Python give it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Report<'a> {
    #[serde(flatten)]
    figures: Option<Summary>,
    schema: u32,
    #[serde(flatten)]
    inputs: Inputs<'a>,
    batch_pmf: Option<&'a [f64]>,
    queue_pmf: Option<&'a [f64]>,
    simulation: Option<SimulatedSummary<'a>>,
    elapsed_ns: u64,
}

impl<'a> Report<'a> {
    /// Of a model that took so long to solve. A start that can't be solved is only simulated.
    #[must_use]
    pub fn new(
        model: &'a Model,
        solution: Option<&'a Solution>,
        simulated: Option<&'a Simulated>,
        elapsed_ns: u64,
    ) -> Self {
        Self {
            figures: solution.map(Solution::summary),
            schema: 1,
            inputs: model.parameters().inputs(),
            batch_pmf: solution.map(|s| &*s.batch_pmf),
            queue_pmf: solution.map(|s| &*s.queue_pmf),
            simulation: simulated.map(SimulatedSummary::new),
            elapsed_ns,
        }
    }
}

/// A delay in ns: its mean, and the quantiles in whole ns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DelaySummary {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: u64,
    /// The delay that 90 % of packets don't exceed.
    pub p90: u64,
    /// The delay that 99 % of packets don't exceed.
    pub p99: u64,
}

/// The figures of a [`Solution`], whose fields explain them, without its distributions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "each is the field of the solution that has its name")]
pub struct Summary {
    pub load: f64,
    pub offered_pps: f64,
    pub throughput_pps: f64,
    pub p_loss: f64,
    pub utilization: f64,
    pub mean_batch: f64,
    pub sd_batch: f64,
    pub mean_queue: f64,
    pub wait_ns: DelaySummary,
    pub sojourn_ns: DelaySummary,
    pub residual: f64,
}

/// The inputs of a model; see [`Parameters`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Inputs<'a> {
    queue: usize,
    batch: usize,
    slot_ns: f64,
    start: Start,
    interarrival: Arrivals,
    service: Service<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Arrivals {
    process: &'static str,
    mean_slots: f64,
    cv: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Service<'a> {
    process: &'static str,
    empty_poll_ns: f64,
    lines: &'a [Piece],
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct SimulatedSummary<'a> {
    confidence: f64,
    mean_batch: Estimate,
    mean_queue: Estimate,
    p_loss: Estimate,
    mean_wait_ns: Estimate,
    mean_sojourn_ns: Estimate,
    sojourn_ns: Quantiles,
    batch_pmf: &'a [f64],
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Quantiles {
    p50: u64,
    p90: u64,
    p99: u64,
}

impl<'a> SimulatedSummary<'a> {
    fn new(s: &'a Simulated) -> Self {
        let [p50, p90, p99] = s.sojourn_quantiles_ns.map(whole);
        Self {
            confidence: 0.99,
            mean_batch: s.mean_batch,
            mean_queue: s.mean_queue,
            p_loss: s.p_loss,
            mean_wait_ns: s.wait_ns,
            mean_sojourn_ns: s.sojourn_ns,
            sojourn_ns: Quantiles { p50, p90, p99 },
            batch_pmf: &s.batch_pmf,
        }
    }
}

/// A time in whole ns.
fn whole(ns: f64) -> u64 {
    ns.round().max(0.0) as u64
}

impl Delay {
    /// Its mean and quantiles.
    #[must_use]
    pub fn summary(&self) -> DelaySummary {
        let at = |q| whole(self.quantile_ns(q));
        DelaySummary { mean: self.mean_ns(), p50: at(0.5), p90: at(0.9), p99: at(0.99) }
    }
}

impl Solution {
    /// Its figures without the distributions.
    #[must_use]
    pub fn summary(&self) -> Summary {
        Summary {
            load: self.load,
            offered_pps: self.offered_pps,
            throughput_pps: self.throughput_pps,
            p_loss: self.p_loss,
            utilization: self.utilization,
            mean_batch: self.mean_batch,
            sd_batch: self.sd_batch,
            mean_queue: self.mean_queue,
            wait_ns: self.wait.summary(),
            sojourn_ns: self.sojourn.summary(),
            residual: self.residual,
        }
    }
}

impl Parameters {
    fn inputs(&self) -> Inputs<'_> {
        let Self { interarrival, service, variation, .. } = self;
        Inputs {
            queue: self.queue,
            batch: self.batch,
            slot_ns: self.slot_ns,
            start: self.start,
            interarrival: Arrivals {
                process: interarrival.name(),
                mean_slots: interarrival.mean(),
                cv: interarrival.cv(),
            },
            service: Service {
                process: variation.name(),
                empty_poll_ns: service.mean_ns(0),
                lines: service.pieces(),
            },
        }
    }
}
