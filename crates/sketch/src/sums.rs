//! Sums over all flows, Σ g(size), from samples of them: for each stratum, which holds flows at random, those
//! of some size or more are known.
//!
//! A flow is known where its stratum knows flows of its size; the strata of which that is so hold a share π
//! of all keys, and so each flow that is known stands for 1/π of them (Horvitz and Thompson, 1952). Heavy
//! flows are known in every stratum and stand for themselves; light ones are sampled. The sum of all sizes is
//! known, too: where the sample has more or less of it than there is, Σ g is corrected in proportion (a
//! regression estimate; Cochran, *Sampling Techniques*, chapter 7), which leaves only what g(size)/size
//! differs by among light flows.

use crate::Bounds;
use crate::stats::SIGMAS;

/// The variance of a sum is itself estimated from a sample, in which a few flows may be most of it.
const WIDER: f64 = 1.15;

/// Which strata know all of their flows depends on how many these are, which varies the more where they are
/// few.
const CHOSEN: f64 = 1.3;

/// Of the flows that a stratum seems to know, the share that may be smaller ones.
const SMALLER: f64 = 0.1;

/// Flows at random: each flow is in one stratum.
pub(crate) struct Stratum {
    /// The probability that a flow is in this one.
    pub(crate) share: f64,
    /// Sizes of flows that are known.
    pub(crate) sizes: Vec<f64>,
    /// All flows of this size and more are known; 0: all flows.
    pub(crate) from: f64,
    /// Standard deviation of a size.
    pub(crate) error: f64,
}

/// Has a stratum know flows only from such a size on that few of them are smaller ones. Where very many flows
/// are of about one size, some seem to be much larger, and these may be more than the flows that are.
///
/// Sizes of flows of strata that know all of theirs are a sample, in ascending order, that has this share of
/// all flows. `beyond` is the probability that a size of this stratum is too great by so much or more.
pub(crate) fn know_no_smaller(
    stratum: &mut Stratum,
    sample: &[f64],
    share: f64,
    beyond: impl Fn(f64) -> f64,
) {
    // Nothing tells if no stratum knows all of its flows.
    if stratum.from <= 0.0 || sample.is_empty() || share <= 0.0 {
        return;
    }
    let times = stratum.share / share;
    let mut step = (0.5 * stratum.error).max(1.0);
    loop {
        let from = stratum.from;
        let known = stratum.sizes.iter().filter(|s| **s >= from).count() as f64;
        let (smaller, others) = sample.split_at(sample.partition_point(|s| *s < from));
        let seem: f64 = smaller.iter().rev().map(|s| beyond(from - s)).take_while(|p| *p > 0.0).sum();
        // Some that are of this size seem smaller.
        let miss: f64 = others.iter().map(|s| beyond(s - from)).take_while(|p| *p > 0.0).sum();
        if known == 0.0 || times * (seem - miss) <= SMALLER * known {
            return;
        }
        stratum.from += step;
        // However much some sizes are off by, that takes few steps.
        step *= 1.25;
    }
}

/// A function of a size with its first and second derivative; a convex one, 0 for 0.
pub(crate) type Function = fn(f64) -> [f64; 3];

/// Sizes from one on that the same strata know.
struct Tier {
    from: f64,
    to: f64,
    share: f64,
}

/// Σ g over all flows, whose sizes add up to `weight`; bounds hold in 95 % of cases, and are the figure where
/// all flows are known.
pub(crate) fn sum(strata: &[Stratum], weight: f64, g: Function) -> Bounds<f64> {
    let value = |size: f64| {
        let [value, ..] = g(size);
        value
    };
    if strata.iter().all(|s| s.from <= 0.0) {
        return Bounds::exact(strata.iter().flat_map(|s| &s.sizes).map(|s| value(*s)).sum());
    }
    let tiers = tiers(strata);
    let least = tiers.first().map_or(f64::INFINITY, |t| t.from);
    let share = |size: f64| tiers.iter().find(|t| size < t.to).map_or(1.0, |t| t.share);
    let known = || {
        let of = |s| known_of(s);
        strata.iter().flat_map(of).map(|(size, error)| (size, error, share(size)))
    };
    let spare = |share: f64| (1.0 - share) / (share * share);
    // The slope says how much g goes with the size: of flows that are sampled, or between what it is for the
    // least and for the greatest that no stratum knows.
    let (mut slope, mut unknown) = (0.0, 0.0);
    if least > 1.0 {
        let top = least.min(weight).max(1.0);
        (slope, unknown) = (0.5 * (value(1.0) + value(top) / top), 0.5 * (value(top) / top - value(1.0)));
    } else {
        let of = |f: fn(f64, f64) -> f64| known().map(|(s, _, p)| spare(p) * f(value(s), s)).sum::<f64>();
        let squares = of(|_, s| s * s);
        if squares > 0.0 {
            slope = of(|g, s| g * s) / squares;
        }
    }
    let (mut sum, mut sizes, mut variance) = (0.0, 0.0, 0.0);
    for (size, error, share) in known() {
        let [value, first, second] = g(size);
        // An error of a size makes a convex function too great on average.
        sum += (value - 0.5 * second * error * error) / share;
        sizes += size / share;
        variance += spare(share) * (value - slope * size).powi(2);
        variance += ((first - slope) * error / share).powi(2);
    }
    // One flow more of the greatest size that is sampled so: few flows in a sample don't show how large
    // others are.
    for tier in &tiers {
        let top = tier.to.min(weight);
        variance += spare(tier.share) * (value(top) - slope * top).powi(2);
    }
    let left = weight - sizes;
    let estimate = (sum + slope * left).max(0.0);
    let error = WIDER * SIGMAS * variance.sqrt() + unknown * left.max(0.0);
    Bounds { estimate, lower: (estimate - error).max(0.0), upper: estimate + error }
}

/// Flows of a stratum that are known, and the standard deviation of their sizes.
fn known_of(stratum: &Stratum) -> impl Iterator<Item = (f64, f64)> + '_ {
    let known = stratum.sizes.iter().filter(|s| **s > 0.0 && **s >= stratum.from);
    known.map(|s| (*s, stratum.error))
}

/// Sizes by the strata that know them, from the least known size on; what all strata know is none of them.
fn tiers(strata: &[Stratum]) -> Vec<Tier> {
    let mut from: Vec<(f64, f64)> = strata.iter().map(|s| (s.from, s.share)).collect();
    from.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let mut tiers: Vec<Tier> = Vec::with_capacity(from.len());
    let mut all = 0.0;
    for (i, (at, share)) in from.iter().enumerate() {
        all += share;
        if let Some((next, _)) = from.get(i + 1).filter(|(next, _)| next > at) {
            tiers.push(Tier { from: *at, to: *next, share: all });
        }
    }
    if tiers.is_empty() {
        // All know the same sizes: nothing below them is sampled.
        let at = from.first().map_or(0.0, |f| f.0);
        tiers.push(Tier { from: at, to: at, share: 1.0 });
    }
    tiers
}

/// Estimates the number of flows, of which `known` are in strata of this share of all flows; bounds hold in
/// 95 % of cases.
pub(crate) fn number(known: f64, share: f64) -> Bounds<f64> {
    if share >= 1.0 {
        return Bounds::exact(known);
    }
    let error = |n: f64| CHOSEN * SIGMAS * (n * share * (1.0 - share)).sqrt();
    let estimate = known / share;
    let low = |n: f64| n * share + error(n) + 0.5 - known;
    let high = |n: f64| n * share - error(n) - 0.5 - known;
    Bounds {
        estimate,
        lower: crate::stats::crossing(low, 0.0, estimate).clamp(known.min(estimate), estimate),
        upper: crate::stats::crossing(high, estimate, (2.0 * known + 40.0) / share),
    }
}
