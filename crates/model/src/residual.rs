//! The rest of a service when its packets come, summed over those of a poll that find a place: with the
//! full batches before them, that is how long they wait. Nothing is rounded here.

use crate::arrivals::Interarrival;
use crate::counts::dot;
use crate::model::{Flow, Model};
use crate::pmf::Pmf;

/// Probabilities below this, and packets that are fewer, don't show.
const SMALL: f64 = 1e-12;

/// For the equilibrium start: what is left for all packets of a poll when they come, and for those that are
/// lost, in slots.
///
/// The packets after the r-th have `E[D(D − 1)/2]/E[A]` together, D being the service less r interarrival
/// times where that is above 0.
pub(crate) fn equilibrium(model: &Model, queue_pmf: &[f64], flow: &Flow) -> (f64, f64) {
    let (queue, batch) = (model.parameters.queue, model.parameters.batch);
    let mean = model.parameters.interarrival.mean();
    let of_all = pairs(flow.batch_pmf.iter().copied().zip(&model.services));
    let all = of_all.first().copied().unwrap_or(0.0) / mean;
    if flow.lost <= SMALL * flow.arrived {
        return (all, 0.0);
    }
    // Behind what a poll leaves, there is room for less than the queue.
    let full = pairs(model.services.last().map(|b| (1.0, b)).into_iter());
    let mut after = pairs(after_all(model, queue_pmf));
    // Services that are too rare to count must not make the sums long.
    after.truncate(after.iter().rposition(|d| *d > SMALL * SMALL).map_or(0, |last| last + 1));
    let mut sums = Sums::new(&model.parameters.interarrival, &[&full, &after]);
    let mut lost = 0.0;
    for (room, q) in (batch..queue).zip(queue_pmf.iter().skip(batch + 1).rev()) {
        if *q > SMALL * SMALL {
            sums.nth(room);
            lost += q * sums.mean(&full);
        }
    }
    sums.nth(queue);
    (all, (lost + sums.mean(&after)) / mean)
}

/// For the renewal start: what is left for all packets of a poll that find a place, in slots. The n-th packet
/// comes after n interarrival times.
pub(crate) fn renewal(model: &Model, queue_pmf: &[f64]) -> f64 {
    let (queue, batch) = (model.parameters.queue, model.parameters.batch);
    let full = excess(model.services.last().map(|b| (1.0, b)).into_iter());
    let after = excess(after_all(model, queue_pmf));
    // By packets that a poll leaves at most: the probability, from one packet on.
    let behind = queue_pmf.iter().skip(batch + 1).scan(0.0, |sum, q| {
        *sum += q;
        Some(*sum)
    });
    let behind: Vec<f64> = std::iter::once(0.0).chain(behind).collect();
    let mut sums = Sums::new(&model.parameters.interarrival, &[&full, &after]);
    let mut left = 0.0;
    for n in 1..=queue {
        sums.nth(n);
        if sums.p.is_empty() {
            break;
        }
        left += sums.mean(&after);
        // The n-th packet finds a place behind so many and fewer.
        let room = behind.get((queue - n).min(queue - batch)).copied().unwrap_or(0.0);
        if room > 0.0 {
            left += room * sums.mean(&full);
        }
    }
    left
}

/// The services after which a poll has left nothing, by their probabilities.
fn after_all<'a>(model: &'a Model, queue_pmf: &'a [f64]) -> impl Iterator<Item = (f64, &'a Pmf)> {
    queue_pmf.iter().copied().zip(&model.services)
}

/// Sums of interarrival times, as far as what is asked about them reaches.
struct Sums<'a> {
    sums: crate::arrivals::Sums<'a>,
    limit: usize,
    least: usize,
    p: Vec<f64>,
}

impl<'a> Sums<'a> {
    /// For functions of the sum, which are 0 from their ends on.
    fn new(interarrival: &'a Interarrival, of: &[&[f64]]) -> Self {
        let limit = of.iter().map(|values| values.len()).max().unwrap_or(0).saturating_sub(1);
        Self { sums: interarrival.sums(limit), limit, least: 0, p: Vec::new() }
    }

    /// Goes on to the sum of `n`, which must rise.
    fn nth(&mut self, n: usize) {
        self.least = self.sums.nth(n, self.limit, &mut self.p);
    }

    /// The mean of a function of the sum.
    fn mean(&self, values: &[f64]) -> f64 {
        dot(&self.p, values.get(self.least..).unwrap_or_default())
    }
}

/// By a number of slots: the mean of D, a time being less by so many where that is above 0.
fn excess<'a>(mixture: impl Iterator<Item = (f64, &'a Pmf)>) -> Vec<f64> {
    let mut values = Vec::new();
    for (weight, pmf) in mixture.filter(|(weight, _)| *weight > 0.0) {
        values.resize(values.len().max(pmf.last() + 1), 0.0);
        values.iter_mut().skip(pmf.start()).zip(pmf.probabilities()).for_each(|(to, p)| *to += weight * p);
    }
    let (mut above, mut excess) = (0.0, 0.0);
    for place in values.iter_mut().rev() {
        excess += above;
        above += std::mem::replace(place, excess);
    }
    values
}

/// The same of D(D − 1)/2.
fn pairs<'a>(mixture: impl Iterator<Item = (f64, &'a Pmf)>) -> Vec<f64> {
    let mut values = excess(mixture);
    let mut pairs = 0.0;
    for place in values.iter_mut().rev() {
        pairs += std::mem::replace(place, pairs);
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excess_and_pairs_are_those_of_the_definition() {
        let of = |start, weights| Pmf::from_weights("test", start, weights).unwrap();
        let (short, long) = (of(2, vec![1.0, 3.0]), of(7, vec![1.0]));
        let mixture = || [(0.25, &short), (0.0, &long), (0.75, &long)].into_iter();
        let (excess, pairs) = (excess(mixture()), pairs(mixture()));
        assert_eq!(excess.len(), 8);
        for less in 0..8 {
            let mean = |f: fn(f64) -> f64| -> f64 {
                let each = |(weight, pmf): (f64, &Pmf)| -> f64 {
                    pmf.iter().map(|(b, p)| weight * p * f(b.saturating_sub(less) as f64)).sum()
                };
                mixture().map(each).sum()
            };
            assert!((excess[less] - mean(|d| d)).abs() < 1e-12, "{less}");
            assert!((pairs[less] - mean(|d| d * (d - 1.0).max(0.0) / 2.0)).abs() < 1e-12, "{less}");
        }
    }
}
