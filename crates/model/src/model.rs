//! The model: its inputs, checked once, and its solution.

use crate::arrivals::{Interarrival, Start};
use crate::chain::Chain;
use crate::counts::{Counts, counts};
use crate::delay::{self, Delay};
use crate::error::{Error, positive};
use crate::joint::Joint;
use crate::pmf::Pmf;
use crate::service::{ServiceTimes, Variation};

/// The longest queue that a model may have, in packets.
pub const MAX_QUEUE: usize = 1 << 20;
/// Most bytes that the elimination may keep.
pub(crate) const MAX_MEMORY: usize = 1 << 30;
/// A solution is not given out where one more poll would change its distribution by more than this, summed
/// over states.
const MAX_RESIDUAL: f64 = 1e-9;
/// Nor where packets taken and packets served differ by more than this, relatively.
const MAX_IMBALANCE: f64 = 1e-9;

/// Everything that the model must be told.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    /// Capacity L of the queue, packets.
    pub queue: usize,
    /// Largest batch β that a poll takes, packets.
    pub batch: usize,
    /// Length of a slot, ns.
    pub slot_ns: f64,
    /// Time between packets, in slots.
    pub interarrival: Interarrival,
    /// Mean service times by batch size; that of 0 is an empty poll.
    pub service: ServiceTimes,
    /// Variation of service times around their mean.
    pub variation: Variation,
    /// State of the arrival process at a poll.
    pub start: Start,
}

/// A finite queue from which a server takes up to β packets a poll: eqs. (1) to (3) of the paper.
#[derive(Clone, Debug)]
pub struct Model {
    pub(crate) parameters: Parameters,
    /// The service time of batches of 0, 1, … β packets, in slots.
    pub(crate) services: Vec<Pmf>,
}

/// The predictions of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    /// Packets in the queue when it is polled: probabilities of 0 to L.
    pub queue_pmf: Vec<f64>,
    /// Packets taken by a poll: probabilities of 0 to β, eq. (2).
    pub batch_pmf: Vec<f64>,
    /// Mean packets taken by a poll, empty polls included.
    pub mean_batch: f64,
    /// Standard deviation of the packets taken by a poll.
    pub sd_batch: f64,
    /// Mean packets in the queue when it is polled.
    pub mean_queue: f64,
    /// Share of packets that find the queue full, eq. (3).
    pub p_loss: f64,
    /// Packets served in a second.
    pub throughput_pps: f64,
    /// Packets that come in a second.
    pub offered_pps: f64,
    /// Share of the time in which packets are served, the rest being empty polls.
    pub utilization: f64,
    /// Packets that come while a batch of β is served, ÷ β: 1 is saturation.
    pub load: f64,
    /// From a packet's arrival to the poll that takes it.
    pub wait: Delay,
    /// From a packet's arrival to the end of the service of its batch.
    pub sojourn: Delay,
    /// The change of `queue_pmf` by one more poll, summed over states with no sign.
    pub residual: f64,
    /// Relative difference of packets accepted and packets served.
    pub imbalance: f64,
}

impl Model {
    /// Checks the inputs, and makes the service time distributions.
    ///
    /// # Errors
    /// The [`Error`] that says which input can't be.
    pub fn new(parameters: Parameters) -> Result<Self, Error> {
        let p = &parameters;
        positive("the slot, in ns,", p.slot_ns)?;
        positive("the largest batch, in packets,", p.batch as f64)?;
        if p.batch > p.queue {
            return Err(Error::BatchAboveQueue { batch: p.batch, queue: p.queue });
        }
        if p.queue > MAX_QUEUE {
            let what = "the queue, in packets,";
            return Err(Error::OutOfRange { what, value: p.queue as f64, low: 1.0, high: MAX_QUEUE as f64 });
        }
        let bytes = p.queue.saturating_mul(p.batch).saturating_mul(size_of::<f64>());
        if bytes > MAX_MEMORY {
            return Err(Error::TooLarge {
                what: "the elimination",
                needed: format!("{} MiB", bytes >> 20),
                limit: format!("{} MiB", MAX_MEMORY >> 20),
                advice: "choose a shorter queue or a smaller batch",
            });
        }
        let service = |size: usize| {
            let value_ns = p.service.mean_ns(size);
            if !(value_ns.is_finite() && value_ns > 0.0) {
                return Err(Error::ServiceTime { size, value_ns });
            }
            p.variation.pmf(size, value_ns / p.slot_ns)
        };
        let services = (0..=p.batch).map(service).collect::<Result<_, _>>()?;
        Ok(Self { parameters, services })
    }

    /// The inputs.
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Packets that come while a batch of β is served, ÷ β: 1 is saturation.
    #[must_use]
    pub fn load(&self) -> f64 {
        let longest = self.services.last().map_or(0.0, Pmf::mean);
        longest / (self.parameters.interarrival.mean() * self.parameters.batch as f64)
    }

    /// Solves the model.
    ///
    /// # Errors
    /// [`Error::TooLarge`] where it would take too long, [`Error::NotUnique`] where the queue may settle in
    /// several ways, [`Error::NoArrivals`] where no packet ever comes, [`Error::NotConverged`] where the
    /// solution fails its own checks.
    pub fn solve(&self) -> Result<Solution, Error> {
        let p = &self.parameters;
        let start = match p.start {
            // Nothing to remember: the residual is the same at every poll.
            Start::Exact if p.interarrival.is_memoryless() => Start::Equilibrium,
            Start::Exact => return self.solve_exact(),
            other => other,
        };
        let poisson = p.variation == Variation::Poisson;
        let rows = counts(&p.interarrival, &self.services, poisson, start, p.queue)?;
        let chain = Chain { rows: &rows, batch: p.batch, queue: p.queue, phases: 1 };
        let queue_pmf = chain.stationary()?;
        let residual = chain.residual(&queue_pmf);
        let flow = Flow::new(self, &rows, &queue_pmf, 1);
        if flow.arrived == 0.0 {
            return Err(Error::NoArrivals);
        }
        let (wait, sojourn) = delay::delays(self, start, &rows, &queue_pmf, &flow, None);
        let solution = self.solution(queue_pmf, &flow, wait, sojourn, residual);
        solution.check()?;
        Ok(solution)
    }

    /// With the residual in the state.
    fn solve_exact(&self) -> Result<Solution, Error> {
        let p = &self.parameters;
        let joint = Joint::new(self)?;
        let chain = Chain { rows: &joint.rows, batch: p.batch, queue: p.queue, phases: joint.phases };
        let states = chain.stationary()?;
        let residual = chain.residual(&states);
        let flow = Flow::new(self, &joint.numbers, &states, joint.phases);
        if flow.arrived == 0.0 {
            return Err(Error::NoArrivals);
        }
        let (queue_pmf, taken) = (joint.queue(&states), joint.taken(&states, p.batch));
        let (rows, left) = (joint.mixed(&taken), joint.left(self, &taken));
        let (wait, sojourn) = delay::delays(self, Start::Equilibrium, &rows, &queue_pmf, &flow, Some(left));
        let solution = self.solution(queue_pmf, &flow, wait, sojourn, residual);
        solution.check()?;
        Ok(solution)
    }

    fn solution(
        &self,
        queue_pmf: Vec<f64>,
        flow: &Flow,
        wait: Delay,
        sojourn: Delay,
        residual: f64,
    ) -> Solution {
        let p = &self.parameters;
        let mean_batch = flow.served;
        let variance: f64 =
            flow.batch_pmf.iter().enumerate().map(|(v, q)| (v as f64 - mean_batch).powi(2) * q).sum();
        let per_second = 1e9 / p.slot_ns;
        Solution {
            mean_batch,
            sd_batch: variance.sqrt(),
            mean_queue: queue_pmf.iter().enumerate().map(|(k, q)| k as f64 * q).sum(),
            p_loss: flow.lost / flow.arrived,
            throughput_pps: flow.served / flow.cycle * per_second,
            offered_pps: per_second / p.interarrival.mean(),
            utilization: 1.0 - flow.idle / flow.cycle,
            load: self.load(),
            wait,
            sojourn,
            residual,
            imbalance: ((flow.arrived - flow.lost) / flow.served - 1.0).abs(),
            batch_pmf: flow.batch_pmf.clone(),
            queue_pmf,
        }
    }
}

impl Solution {
    /// Refuses a solution that doesn't satisfy the equations.
    fn check(&self) -> Result<(), Error> {
        // Written so that what is not a number fails, too.
        let within = |what, value: f64, limit: f64| {
            if value <= limit { Ok(()) } else { Err(Error::NotConverged { what, value, limit }) }
        };
        within("the change by one more poll", self.residual, MAX_RESIDUAL)?;
        within("packets accepted against packets served", self.imbalance, MAX_IMBALANCE)
    }

    /// The least batch size up to which a share `q` of polls lies.
    #[must_use]
    pub fn batch_quantile(&self, q: f64) -> usize {
        let mut sum = 0.0;
        let at = self.batch_pmf.iter().position(|p| {
            sum += p;
            sum >= q
        });
        at.unwrap_or(self.batch_pmf.len().saturating_sub(1))
    }
}

/// Means a poll: times in slots, packets.
pub(crate) struct Flow {
    pub(crate) batch_pmf: Vec<f64>,
    pub(crate) served: f64,
    pub(crate) arrived: f64,
    pub(crate) lost: f64,
    pub(crate) cycle: f64,
    /// The part of `cycle` spent on empty polls.
    pub(crate) idle: f64,
}

impl Flow {
    /// From the distribution over states, each a queue and one of `phases`; `rows` tells how many packets
    /// come, by batch and phase.
    fn new(model: &Model, rows: &[Counts], states: &[f64], phases: usize) -> Self {
        let (batch, queue) = (model.parameters.batch, model.parameters.queue);
        let mut batch_pmf = vec![0.0; batch + 1];
        let (mut arrived, mut lost) = (0.0, 0.0);
        let full: Vec<Vec<f64>> = rows.iter().skip(batch * phases).map(Counts::excess).collect();
        for (state, q) in states.iter().enumerate() {
            let (length, phase) = (state / phases, state % phases);
            let taken = length.min(batch);
            let Some(row) = rows.get(taken * phases + phase) else { continue };
            if let Some(place) = batch_pmf.get_mut(taken) {
                *place += q;
            }
            arrived += q * row.mean();
            let room = queue - (length - taken);
            let excess = match full.get(phase) {
                Some(full) if taken == batch => full.get(room).copied(),
                _ if row.last() > room => row.excess().get(room).copied(),
                _ => None,
            };
            lost += q * excess.unwrap_or(0.0);
        }
        let weighted = |f: &dyn Fn(usize) -> f64| batch_pmf.iter().enumerate().map(|(v, q)| q * f(v)).sum();
        let mean = |v: usize| model.services.get(v).map_or(0.0, Pmf::mean);
        Self {
            served: weighted(&|v| v as f64),
            arrived,
            cycle: weighted(&mean),
            idle: batch_pmf.first().copied().unwrap_or(0.0) * mean(0),
            lost,
            batch_pmf,
        }
    }
}
