//! The exact start: the time that is left of an interarrival time when a poll comes is a part of the state.
//!
//! A state is the queue and that residual, 1 to R slots, R being the longest interarrival time; in one number
//! `queue · R + residual − 1`. During a service of `b` slots that begins with a residual `r`, the first
//! packet comes after `r` slots, each further one after an interarrival time; the last of these reaches
//! beyond the service, and what does so is the next residual. That takes R² times the memory and R³ times the
//! time of the other starts, so it is for short distributions.

use crate::counts::Counts;
use crate::error::Error;
use crate::model::{MAX_MEMORY, Model};
use crate::pmf::{Pmf, TAIL};

/// Most additions for the elimination of one solution: about a minute of a core.
const MAX_WORK: f64 = 2e11;

/// Joint distributions of the arrivals of a service and the residual at its end, by batch size and residual
/// at its start.
pub(crate) struct Joint {
    /// R.
    pub(crate) phases: usize,
    /// Row `v · R + r − 1`: probabilities of `n · R + r′ − 1`, n packets coming and r′ being left.
    pub(crate) rows: Vec<Counts>,
    /// The same rows: probabilities of n.
    pub(crate) numbers: Vec<Counts>,
    /// By slots: mean time since arrival, summed over the packets of an arrival process that began with one
    /// at 0.
    since: Vec<f64>,
}

impl Joint {
    /// # Errors
    /// [`Error::ExactStart`] where it takes too much memory or time.
    pub(crate) fn new(model: &Model) -> Result<Self, Error> {
        let a = model.parameters.interarrival.pmf()?;
        let phases = a.last().max(1);
        check(model, &a, phases)?;
        let longest = model.services.iter().map(Pmf::last).max().unwrap_or(0);
        let mut joint = Self { phases, rows: Vec::new(), numbers: Vec::new(), since: since(&a, longest) };
        for service in &model.services {
            joint.service(&a, service);
        }
        Ok(joint)
    }

    /// The rows of one batch size.
    fn service(&mut self, a: &Pmf, service: &Pmf) {
        let phases = self.phases;
        let at =
            |x: usize| x.checked_sub(service.start()).and_then(|i| service.probabilities().get(i)).copied();
        // By residual: probabilities of n · R + r′ − 1.
        let mut flat: Vec<Vec<f64>> = (1..=phases)
            .map(|r| (1..=phases).map(|left| r.checked_sub(left).and_then(at).unwrap_or(0.0)).collect())
            .collect();
        // P(service − the time from the first packet to the n-th = x), from x = 0 on.
        let mut rest: Vec<f64> = (0..=service.last()).map(|x| at(x).unwrap_or(0.0)).collect();
        loop {
            for (r, row) in (1..).zip(&mut flat) {
                let from_here = rest.get(r..).unwrap_or_default();
                row.extend((1..=phases).map(|left| {
                    // The n-th packet came `u` slots before the end, the next one comes `left` after it.
                    let next = a.iter().filter_map(|(k, p)| Some((k.checked_sub(left)?, p)));
                    next.map(|(u, p)| p * from_here.get(u).copied().unwrap_or(0.0)).sum::<f64>()
                }));
            }
            let shifted = |x: usize| a.iter().map(|(k, p)| p * rest.get(x + k).copied().unwrap_or(0.0)).sum();
            rest = (0..rest.len()).map(shifted).collect();
            if rest.iter().skip(1).all(|p| *p < TAIL) {
                break;
            }
        }
        for row in flat {
            let numbers = row.chunks(phases).map(|c| c.iter().sum()).collect();
            self.numbers.push(cut(numbers));
            self.rows.push(cut(row));
        }
    }

    /// The distribution of the residual and of what a poll takes, from that of all states: by
    /// `v · R + r − 1`.
    pub(crate) fn taken(&self, states: &[f64], batch: usize) -> Vec<f64> {
        let mut taken = vec![0.0; (batch + 1) * self.phases];
        for (state, q) in states.iter().enumerate() {
            let v = (state / self.phases).min(batch);
            if let Some(place) = taken.get_mut(v * self.phases + state % self.phases) {
                *place += q;
            }
        }
        taken
    }

    /// The distribution of the queue.
    pub(crate) fn queue(&self, states: &[f64]) -> Vec<f64> {
        states.chunks(self.phases).map(|c| c.iter().sum()).collect()
    }

    /// Distributions of the arrivals while a batch of v is served, averaged over the residual.
    pub(crate) fn mixed(&self, taken: &[f64]) -> Vec<Counts> {
        let mix = |(weights, rows): (&[f64], &[Counts])| {
            let mut p = vec![0.0; rows.iter().map(Counts::last).max().unwrap_or(0) + 1];
            let sum: f64 = weights.iter().sum();
            for (weight, row) in weights.iter().zip(rows) {
                for (place, q) in p.iter_mut().skip(row.start).zip(&row.p) {
                    // A size that no poll takes has no residuals; any will do.
                    *place += q * if sum > 0.0 { weight / sum } else { 1.0 / rows.len() as f64 };
                }
            }
            cut(p)
        };
        taken.chunks(self.phases).zip(self.numbers.chunks(self.phases)).map(mix).collect()
    }

    /// Residual service summed over all packets of a poll when they come, in slots.
    pub(crate) fn left(&self, model: &Model, taken: &[f64]) -> f64 {
        let of = |(weights, service): (&[f64], &Pmf)| -> f64 {
            let after =
                |b: usize, r: usize| b.checked_sub(r).and_then(|s| self.since.get(s)).copied().unwrap_or(0.0);
            let mean = |r: usize| service.iter().map(|(b, p)| p * after(b, r)).sum::<f64>();
            (1..).zip(weights).filter(|(_, w)| **w > 0.0).map(|(r, w)| w * mean(r)).sum()
        };
        taken.chunks(self.phases).zip(&model.services).map(of).sum()
    }
}

/// By number of slots m: the sum of `m − s` over all packets at s ≤ m, the first of which is at 0, on
/// average.
fn since(a: &Pmf, longest: usize) -> Vec<f64> {
    let (mut density, mut since) = (Vec::with_capacity(longest + 1), Vec::with_capacity(longest + 1));
    let at_once = if a.start() == 0 { a.probabilities().first().copied().unwrap_or(0.0) } else { 0.0 };
    let (mut packets, mut sum) = (0.0, 0.0);
    for m in 0..=longest {
        let before: f64 = a
            .iter()
            .filter(|(k, _)| *k > 0)
            .filter_map(|(k, p)| Some(p * density.get(m.checked_sub(k)?).copied().unwrap_or(0.0)))
            .sum();
        density.push((before + if m == 0 { 1.0 } else { 0.0 }) / (1.0 - at_once));
        sum += packets;
        since.push(sum);
        packets += density.last().copied().unwrap_or(0.0);
    }
    since
}

/// Leaves out what is too small at both ends.
fn cut(mut p: Vec<f64>) -> Counts {
    p.truncate(p.iter().rposition(|p| *p >= TAIL).map_or(0, |i| i + 1));
    let start = p.iter().position(|p| *p >= TAIL).unwrap_or(0);
    p.drain(..start);
    Counts { start, p, beyond: 0.0 }
}

/// Refuses what would take too long or too much.
fn check(model: &Model, a: &Pmf, phases: usize) -> Result<(), Error> {
    let p = &model.parameters;
    let (r, batch) = (phases as f64, p.batch as f64);
    let states = (p.queue as f64 + 1.0) * r;
    let longest = model.services.iter().map(Pmf::last).max().unwrap_or(0) as f64;
    // Packets that a service may bring at most, with room for chance.
    let most =
        longest / a.mean() + 12.0 * (longest / a.mean() * (a.variance() / a.mean().powi(2) + 1.0)).sqrt();
    let reach = most.min(p.queue as f64) + 1.0;
    let bytes = size_of::<f64>() as f64 * (states * (batch + 1.0) * r + (batch + 1.0) * r * (most + 1.0) * r);
    let tables = (batch + 1.0)
        * (most + 1.0)
        * (r * r * a.probabilities().len() as f64 + longest * a.probabilities().len() as f64);
    let work = states * (batch + 1.0) * r * reach * r + tables;
    if bytes <= MAX_MEMORY as f64 && work <= MAX_WORK {
        return Ok(());
    }
    Err(Error::ExactStart {
        interarrival: p.interarrival.name(),
        residuals: phases,
        states,
        mebibytes: bytes / 1_048_576.0,
        additions: work,
        limit_mebibytes: MAX_MEMORY >> 20,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_one_after_the_other_have_been_there_for_that_long() {
        let a = Pmf::from_weights("test", 2, vec![1.0]).unwrap();
        // At 0, 2, 4: after five slots 5 + 3 + 1.
        assert_eq!(since(&a, 5), [0.0, 1.0, 2.0, 4.0, 6.0, 9.0]);
        // Half of them at once: twice as many at each time.
        let a = Pmf::from_weights("test", 0, vec![1.0, 0.0, 1.0]).unwrap();
        assert_eq!(since(&a, 5), [0.0, 2.0, 4.0, 8.0, 12.0, 18.0]);
    }
}
