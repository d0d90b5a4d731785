//! The same queue, packet by packet: the slow twin of the solution, with confidence intervals.
//!
//! With [`Start::Exact`] the arrival process never starts anew at a poll, which is what a real one does; with
//! the other two it does as the model supposes. Everything is drawn from the seed, so a run can be repeated.

use std::collections::{BTreeMap, VecDeque};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::arrivals::Start;
use crate::error::Error;
use crate::model::{Model, Parameters};
use crate::pmf::Pmf;

/// The length of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Polls that count, at least a thousand.
    pub polls: u64,
    /// Polls before, which don't: the queue is empty at first.
    pub warmup: u64,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// An estimate with its uncertainty.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Estimate {
    /// The mean over the run.
    pub mean: f64,
    /// Half the width of its confidence interval at 99 %.
    pub half_width: f64,
}

impl Estimate {
    /// True if `value` lies within `times` the half-width of the mean; differences by rounding are ignored.
    #[must_use]
    pub fn holds(&self, value: f64, times: f64) -> bool {
        (value - self.mean).abs() <= times * self.half_width + 1e-12 * value.abs()
    }
}

/// The results of a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct Simulated {
    /// Packets a poll.
    pub mean_batch: Estimate,
    /// Packets in the queue at a poll.
    pub mean_queue: Estimate,
    /// Share of packets lost.
    pub p_loss: Estimate,
    /// Time from arrival to poll, ns.
    pub wait_ns: Estimate,
    /// Time from arrival to the end of service, ns.
    pub sojourn_ns: Estimate,
    /// Share of polls that took 0 to β packets.
    pub batch_pmf: Vec<f64>,
    /// Sojourn times at shares of 0.5, 0.9 and 0.99, ns.
    pub sojourn_quantiles_ns: [f64; 3],
}

/// Parts of a run whose means are compared.
const PARTS: u64 = 32;
/// Student's t for 31 degrees of freedom, two-sided 99 %.
const STUDENT: f64 = 2.7440;

/// Draws from a distribution by its sums.
struct Sampler {
    start: usize,
    sums: Vec<f64>,
}

impl Sampler {
    fn new(pmf: &Pmf) -> Self {
        let mut sum = 0.0;
        let add = |p: &f64| {
            sum += p;
            sum
        };
        Self { start: pmf.start(), sums: pmf.probabilities().iter().map(add).collect() }
    }

    fn draw(&self, rng: &mut ChaCha8Rng) -> u64 {
        let u: f64 = rng.random::<f64>() * self.sums.last().copied().unwrap_or(1.0);
        (self.start + self.sums.partition_point(|s| *s <= u).min(self.sums.len() - 1)) as u64
    }
}

/// The time to the first arrival after a moment that knows nothing of the last: `P(R = r) = P(A ≥ r)/E[A]`.
fn residual(a: &Pmf) -> Result<Pmf, Error> {
    let mut at_least: Vec<f64> = Vec::with_capacity(a.last());
    let mut sum = 0.0;
    let by_value = a.probabilities().iter().rev();
    at_least.extend(by_value.map(|p| {
        sum += p;
        sum
    }));
    at_least.extend(std::iter::repeat_n(sum, a.start()));
    // At this point the last element is for a value of 0; residuals begin at 1.
    at_least.pop();
    at_least.reverse();
    Pmf::from_weights("the residual of an interarrival time", 1, at_least)
}

/// Sums over a part of the run.
#[derive(Clone, Copy, Default)]
struct Part {
    polls: f64,
    batch: f64,
    queue: f64,
    arrived: f64,
    lost: f64,
    wait: f64,
    sojourn: f64,
}

/// Polls that can be simulated at most.
const MOST_POLLS: u64 = 1_000_000_000;
/// Packets that can be simulated at most: each is drawn, which takes hours for so many.
const MOST_PACKETS: f64 = 1e12;

/// Sojourns of packets, in slots, counted by length: a long run takes no more memory than a short one.
#[derive(Default)]
struct Sojourns {
    /// Counts of those below [`Self::NEAR`], as far as there are any.
    near: Vec<u64>,
    far: BTreeMap<u64, u64>,
    all: u64,
}

impl Sojourns {
    const NEAR: u64 = 1 << 22;

    #[inline]
    fn count(&mut self, slots: u64) {
        self.all += 1;
        if slots < Self::NEAR && slots >= self.near.len() as u64 {
            self.near.resize((slots + 1).next_power_of_two() as usize, 0);
        }
        match self.near.get_mut(slots as usize) {
            Some(n) => *n += 1,
            None => *self.far.entry(slots).or_default() += 1,
        }
    }

    /// The shortest that this share of packets does not exceed; 0 where there are none.
    fn quantile(&self, share: f64) -> u64 {
        let rank = ((self.all as f64 * share).ceil() as u64).max(1);
        let counted =
            (0..).zip(self.near.iter().copied()).chain(self.far.iter().map(|(slots, n)| (*slots, *n)));
        let mut below = 0;
        for (slots, n) in counted {
            below += n;
            if below >= rank {
                return slots;
            }
        }
        0
    }
}

/// Runs the queue.
///
/// # Errors
/// [`Error::OutOfRange`] for less than a thousand polls or more than a billion, or where more than 10¹²
/// packets may come in them; [`Error::Distribution`] where a distribution can't be drawn from.
pub fn simulate(model: &Model, effort: Effort) -> Result<Simulated, Error> {
    for (what, polls, low) in
        [("the number of polls", effort.polls, 1000), ("the number of polls to warm up", effort.warmup, 0)]
    {
        if !(low..=MOST_POLLS).contains(&polls) {
            let (value, low, high) = (polls as f64, low as f64, MOST_POLLS as f64);
            return Err(Error::OutOfRange { what, value, low, high });
        }
    }
    let parameters = model.parameters();
    let a = parameters.interarrival.pmf()?;
    let longest = model.services.iter().map(Pmf::mean).fold(0.0, f64::max);
    let packets = (effort.polls + effort.warmup) as f64 * longest / a.mean();
    if packets > MOST_PACKETS {
        let what = "the number of packets that may come in so many polls";
        return Err(Error::OutOfRange { what, value: packets.round(), low: 0.0, high: MOST_PACKETS });
    }
    let restart = match parameters.start {
        Start::Renewal => Some(Sampler::new(&a)),
        Start::Equilibrium => Some(Sampler::new(&residual(&a)?)),
        Start::Exact => None,
    };
    let arrivals = Sampler::new(&a);
    let services: Vec<Sampler> = model.services.iter().map(Sampler::new).collect();
    let mut rng = ChaCha8Rng::seed_from_u64(effort.seed);
    let mut parts = vec![Part::default(); PARTS as usize];
    let mut batches = vec![0u64; parameters.batch + 1];
    let mut sojourns = Sojourns::default();
    let mut queue: VecDeque<u64> = VecDeque::new();
    let (mut now, mut next) = (0u64, 1 + arrivals.draw(&mut rng));
    let per_part = effort.polls.div_ceil(PARTS);
    for poll in 0..effort.warmup + per_part * PARTS {
        let counted = poll.checked_sub(effort.warmup);
        let mut part = counted.and_then(|n| parts.get_mut((n / per_part) as usize));
        let waiting = queue.len();
        let batch = waiting.min(parameters.batch);
        let Some(service) = services.get(batch) else { break };
        let end = now + service.draw(&mut rng);
        for at in queue.drain(..batch) {
            if let Some(part) = &mut part {
                part.wait += (now - at) as f64;
                part.sojourn += (end - at) as f64;
                sojourns.count(end - at);
            }
        }
        if let Some(restart) = &restart {
            next = now + restart.draw(&mut rng);
        }
        while next <= end {
            let full = queue.len() >= parameters.queue;
            if !full {
                queue.push_back(next);
            }
            if let Some(part) = &mut part {
                part.arrived += 1.0;
                part.lost += f64::from(u8::from(full));
            }
            next += arrivals.draw(&mut rng);
        }
        if let Some(part) = part {
            part.polls += 1.0;
            part.batch += batch as f64;
            part.queue += waiting as f64;
            if let Some(n) = batches.get_mut(batch) {
                *n += 1;
            }
        }
        now = end;
    }
    Ok(summary(&parts, &batches, &sojourns, parameters))
}

fn summary(
    parts: &[Part],
    batches: &[u64],
    sojourns: &Sojourns,
    &Parameters { batch, slot_ns, .. }: &Parameters,
) -> Simulated {
    let estimate = |above: &dyn Fn(&Part) -> f64, below: &dyn Fn(&Part) -> f64, unit: f64| {
        let ratio = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
        let mean = ratio(parts.iter().map(above).sum(), parts.iter().map(below).sum());
        let n = parts.len() as f64;
        let squares: f64 = parts.iter().map(|p| (ratio(above(p), below(p)) - mean).powi(2)).sum();
        Estimate { mean: mean * unit, half_width: STUDENT * (squares / (n - 1.0) / n).sqrt() * unit }
    };
    let polls: u64 = batches.iter().sum();
    // An event that was never seen comes in at most so many polls: (1 - p)^polls is a hundredth then.
    let unseen = (100f64.ln() / polls.max(1) as f64).min(1.0);
    // A few polls that differ, in a few of the parts, tell no more about rare ones than none would.
    let at_least = |e: Estimate, most: f64| Estimate { half_width: e.half_width.max(unseen * most), ..e };
    Simulated {
        mean_batch: at_least(estimate(&|p| p.batch, &|p| p.polls, 1.0), batch as f64),
        mean_queue: estimate(&|p| p.queue, &|p| p.polls, 1.0),
        p_loss: at_least(estimate(&|p| p.lost, &|p| p.arrived, 1.0), 1.0),
        wait_ns: estimate(&|p| p.wait, &|p| p.batch, slot_ns),
        sojourn_ns: estimate(&|p| p.sojourn, &|p| p.batch, slot_ns),
        batch_pmf: batches.iter().map(|n| *n as f64 / polls.max(1) as f64).collect(),
        sojourn_quantiles_ns: [0.5, 0.9, 0.99].map(|q| sojourns.quantile(q) as f64 * slot_ns),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Interarrival, ServiceTimes, Variation};

    fn model(interarrival: Interarrival, service: ServiceTimes, variation: Variation) -> Model {
        let (queue, batch, slot_ns, start) = (64, 8, 1.0, Start::Equilibrium);
        Model::new(Parameters { queue, batch, slot_ns, interarrival, service, variation, start }).unwrap()
    }

    #[test]
    fn quantiles_of_counted_sojourns_are_those_of_sorted_ones() {
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        for most in [1u64, 3, 1000, 1 << 24] {
            let mut counted = Sojourns::default();
            assert_eq!(counted.quantile(0.5), 0);
            let mut sorted: Vec<u64> = (0..777).map(|_| rng.random_range(0..most)).collect();
            sorted.iter().for_each(|slots| counted.count(*slots));
            sorted.sort_unstable();
            for share in [0.0f64, 0.001, 0.5, 0.9, 0.99, 1.0] {
                let rank = ((777.0 * share).ceil() as usize).saturating_sub(1);
                assert_eq!(counted.quantile(share), sorted[rank], "{share} of {most}");
            }
        }
    }

    /// A number that would take for ever is refused at once.
    #[test]
    fn polls_are_bounded() {
        let service = ServiceTimes::linear(10.0, 5.0, 5.0).unwrap();
        let model = model(Interarrival::deterministic(9.0).unwrap(), service, Variation::Deterministic);
        let run = |polls, warmup| simulate(&model, Effort { polls, warmup, seed: 1 });
        assert!(run(1000, 0).is_ok());
        for (polls, warmup) in [(999, 0), (MOST_POLLS + 1, 0), (u64::MAX, 0), (1000, u64::MAX)] {
            assert!(matches!(run(polls, warmup), Err(Error::OutOfRange { .. })), "{polls} {warmup}");
        }
    }

    /// So are polls that are few, but last for as long as it takes that many packets to come.
    #[test]
    fn packets_are_bounded() {
        let slow = ServiceTimes::linear(1_000_000.0, 5.0, 5.0).unwrap();
        let model = model(Interarrival::deterministic(1.0).unwrap(), slow, Variation::Deterministic);
        let run = |polls| simulate(&model, Effort { polls, warmup: polls / 10, seed: 1 });
        for polls in [1_000_000, MOST_POLLS] {
            let Err(Error::OutOfRange { what, value, .. }) = run(polls) else { panic!("{polls} polls run") };
            assert!(what.contains("packets") && value > 1e12, "{what}: {value}");
        }
    }

    #[test]
    fn the_residual_is_that_of_the_definition() {
        let a = Pmf::from_weights("test", 2, vec![1.0, 0.0, 3.0]).unwrap();
        let r = residual(&a).unwrap();
        assert_eq!(r.start(), 1);
        let mean = a.mean();
        for (k, p) in r.iter() {
            let at_least: f64 = a.iter().filter(|(v, _)| *v >= k).map(|(_, p)| p).sum();
            assert!((p - at_least / mean).abs() < 1e-15);
        }
        // A value of 0 is followed by the next packet at once: no slot lies in it.
        let zero = Pmf::from_weights("test", 0, vec![1.0, 1.0]).unwrap();
        assert_eq!(residual(&zero).unwrap().probabilities(), [1.0]);
    }

    /// Near saturation almost every batch is full: most runs see no other. Below, losses come in few polls.
    #[test]
    fn confidence_covers_what_is_rare() {
        for mean in [8.0, 9.0] {
            let service = ServiceTimes::linear(20.0, 6.0, 5.0).unwrap();
            let model = model(Interarrival::geometric(mean).unwrap(), service, Variation::Poisson);
            let solution = model.solve().unwrap();
            let (mut batch, mut loss) = (0, 0);
            for seed in 0..40 {
                let sim = simulate(&model, Effort { polls: 30_000, warmup: 3000, seed }).unwrap();
                batch += u32::from(!sim.mean_batch.holds(solution.mean_batch, 1.0));
                loss += u32::from(!sim.p_loss.holds(solution.p_loss, 1.0));
            }
            assert!(batch <= 2 && loss <= 2, "{mean}: {batch} and {loss} of 40 are outside");
        }
    }

    #[test]
    fn a_sampler_follows_its_distribution() {
        let pmf = Pmf::from_weights("test", 3, vec![1.0, 0.0, 3.0]).unwrap();
        let (sampler, mut rng) = (Sampler::new(&pmf), ChaCha8Rng::seed_from_u64(1));
        let draws: Vec<u64> = (0..40_000).map(|_| sampler.draw(&mut rng)).collect();
        let of = |v| draws.iter().filter(|d| **d == v).count();
        assert_eq!(of(3) + of(5), draws.len());
        assert!(of(3).abs_diff(10_000) < 500);
    }
}
