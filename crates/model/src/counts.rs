//! The number of arrivals during a service: the distributions `x` of eq. (1), one for each batch size.
//!
//! With `S_n` the time of the n-th arrival after a poll, `P(X ≥ n) = P(S_n ≤ B)`. For the equilibrium start,
//! `P(S_n = s) = (P(A⁽ⁿ⁻¹⁾ < s) − P(A⁽ⁿ⁾ < s))/E[A]` with `A⁽ⁿ⁾` the sum of n interarrival times, so that
//! `P(X = n)` is the second difference over n of `E[(B − A⁽ⁿ⁾)⁺]/E[A]`; the second difference of `E[(A⁽ⁿ⁾ −
//! B)⁺]` is the same. The first is small where many packets come, the second where few do, so each tail is
//! computed from what is small there and keeps its relative precision; in the middle about σ² of the 2⁵³ of a
//! double is lost, σ the standard deviation of the count.

use std::ops::RangeInclusive;

use crate::arrivals::{Interarrival, Start};
use crate::error::Error;
use crate::model::MAX_MEMORY;
use crate::pmf::{MAX_SUPPORT, Pmf, TAIL};

/// Sums of interarrival times that reach beyond so many of the longest service are worked out up to that
/// service only: what lies above it follows from the mean then, and is large enough to be told from it.
const FAR: usize = 8;
/// Most additions for the tables of one solution: some minutes of a core.
const MAX_WORK: f64 = 2e11;

/// The distribution of the number of arrivals during the service of one batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Counts {
    /// The least number with a probability above [`TAIL`].
    pub(crate) start: usize,
    /// Probabilities of `start`, `start + 1`, ….
    pub(crate) p: Vec<f64>,
    /// The mean of what the number exceeds `last()` by, where larger numbers are counted as that one.
    pub(crate) beyond: f64,
}

impl Counts {
    /// The largest number.
    pub(crate) fn last(&self) -> usize {
        self.start + self.p.len().saturating_sub(1)
    }

    pub(crate) fn mean(&self) -> f64 {
        self.p.iter().enumerate().map(|(i, p)| (self.start + i) as f64 * p).sum::<f64>() + self.beyond
    }

    /// `P(X ≥ j)` for `j` from 0 to `last() + 1`.
    pub(crate) fn tail(&self) -> Vec<f64> {
        let mut tail = vec![0.0; self.last() + 2];
        let mut sum = 0.0;
        for (place, p) in tail.iter_mut().rev().skip(1).zip(self.p.iter().rev()) {
            sum += p;
            *place = sum;
        }
        tail.iter_mut().take(self.start).for_each(|t| *t = sum);
        tail
    }

    /// `E[(X − c)⁺]` for `c` from 0 to `last()`.
    pub(crate) fn excess(&self) -> Vec<f64> {
        let tail = self.tail();
        let mut excess = vec![0.0; self.last() + 1];
        let mut sum = self.beyond;
        for (place, t) in excess.iter_mut().rev().zip(tail.iter().rev()) {
            sum += t;
            *place = sum;
        }
        excess
    }
}

/// Steps in which a smooth integrand may be summed, in slots, the coarse ones last.
const STRIDES: [usize; 3] = [1, 4, 16];
/// The natural logarithm of 1e40, which a spectrum must have lost for a stride to be taken.
const NEGLIGIBLE: f64 = 92.1;

/// The coarsest of [`STRIDES`] for a function whose spectrum at a frequency is `exp(−decay(frequency))`,
/// falling with it.
fn stride(decay: impl Fn(f64) -> f64) -> usize {
    let smooth = |s: &usize| decay(std::f64::consts::PI / *s as f64) >= NEGLIGIBLE;
    STRIDES.iter().skip(1).rposition(smooth).map_or(0, |i| i + 1)
}

/// A distribution of service times, whole and in the coarser strides:
/// `(from / stride, stride · probabilities)`, places of which the slot is a multiple of the stride.
struct Strided(Vec<(usize, Vec<f64>)>);

impl Strided {
    fn new(service: &Pmf, smooth: bool) -> Self {
        let mean = service.mean();
        let coarsest = if smooth { stride(|w| mean * (1.0 - w.cos())) } else { 0 };
        let every = |s: &usize| {
            let first = service.start().next_multiple_of(*s);
            let values = service.probabilities().iter().skip(first - service.start()).step_by(*s);
            (first / s, values.map(|p| p * *s as f64).collect())
        };
        Self(STRIDES.iter().take(coarsest + 1).map(every).collect())
    }
}

/// Values of a function from `from` on, which is 0 elsewhere, in the strides that were asked for.
#[derive(Default)]
struct Table {
    strided: [(usize, Vec<f64>); STRIDES.len()],
    coarsest: usize,
}

impl Table {
    /// Takes `values`, and makes the coarser copies.
    fn fill(&mut self, from: usize, coarsest: usize, values: impl FnOnce(&mut Vec<f64>)) {
        self.coarsest = coarsest;
        let [(start, finest), coarse @ ..] = &mut self.strided;
        *start = from;
        values(finest);
        for ((start, copy), s) in coarse.iter_mut().zip(&STRIDES[1..]).take(coarsest) {
            let first = from.next_multiple_of(*s);
            *start = first / s;
            copy.clear();
            copy.extend(finest.iter().skip(first - from).step_by(*s));
        }
    }

    /// The mean of the function over a service time.
    fn mean(&self, service: &Strided) -> f64 {
        let coarsest = self.coarsest.min(service.0.len().saturating_sub(1));
        let both = self.strided.get(coarsest).zip(service.0.get(coarsest));
        let Some(((from, values), (start, b))) = both else { return 0.0 };
        let b = b.get(from.saturating_sub(*start)..).unwrap_or_default();
        let values = values.get(start.saturating_sub(*from)..).unwrap_or_default();
        dot(b, values)
    }
}

/// Expectations over the service time for one batch size, by number of arrivals: above and below the middle.
struct Row<'a> {
    service: &'a Pmf,
    strided: Strided,
    /// From this number on, what lies below the service time is used; before, what lies above it.
    middle: usize,
    below: Sparse,
    above: Sparse,
}

/// Values from `start` on, all others 0.
#[derive(Default)]
struct Sparse {
    start: usize,
    values: Vec<f64>,
}

impl Sparse {
    fn push(&mut self, at: usize, value: f64) {
        if self.values.is_empty() {
            if value == 0.0 {
                return;
            }
            self.start = at;
        }
        self.values.resize(at - self.start, 0.0);
        self.values.push(value);
    }

    fn at(&self, n: usize) -> f64 {
        n.checked_sub(self.start).and_then(|i| self.values.get(i)).copied().unwrap_or(0.0)
    }

    fn end(&self) -> usize {
        self.start + self.values.len()
    }
}

/// The distributions for every service time of `services`, in order. `start` is renewal or equilibrium;
/// `poisson` tells that service times are Poisson-distributed. Packets beyond a `queue` needn't be told
/// apart.
pub(crate) fn counts(
    arrivals: &Interarrival,
    services: &[Pmf],
    poisson: bool,
    start: Start,
    queue: usize,
) -> Result<Vec<Counts>, Error> {
    let mean = arrivals.mean();
    let longest = services.iter().map(Pmf::last).max().unwrap_or(0);
    let order = if start == Start::Renewal { Order::First } else { Order::Second };
    let most = order.most(queue);
    let far = longest.saturating_mul(FAR).clamp(1, MAX_SUPPORT).max(longest);
    check_work(arrivals, services, longest, (most, far))?;
    let row = |service| {
        let middle = (Pmf::mean(service) / mean).ceil() as usize;
        let strided = Strided::new(service, poisson);
        Row { service, strided, middle, below: Sparse::default(), above: Sparse::default() }
    };
    let mut rows: Vec<Row<'_>> = services.iter().map(row).collect();
    let last_middle = rows.iter().map(|r| r.middle).max().unwrap_or(0);
    let reach = arrivals.reach(last_middle.min(most) + 2);
    let mut sums = arrivals.sums(reach.min(far).max(longest));
    let (mut p, mut table) = (Vec::new(), Table::default());
    for n in 0..=most {
        // The upper end of the sum: the longest service where the lower part is used, else all of it.
        let below = |r: &Row<'_>| n + 1 >= r.middle;
        let to = rows.iter().filter(|r| below(r)).map(|r| r.service.last()).max().unwrap_or(0);
        let cut = n <= last_middle && reach > far && arrivals.exceeds(n, far);
        let limit = if n > last_middle {
            to
        } else if cut {
            longest
        } else {
            far
        };
        let least = sums.next(limit, &mut p);
        let pending = |r: &Row<'_>| n <= r.middle || !p.is_empty() && least < r.service.last();
        if n > last_middle && !rows.iter().any(pending) {
            break;
        }
        if p.is_empty() && !cut {
            continue;
        }
        let coarsest = stride(|w| n as f64 * arrivals.decay(w));
        if !p.is_empty() {
            table.fill(least, coarsest, |out| order.below(&p, to.saturating_sub(least), out));
            for r in rows.iter_mut().filter(|r| below(r)) {
                r.below.push(n, table.mean(&r.strided));
            }
        }
        let last = if cut { usize::MAX } else { least + p.len() - 1 };
        let above = |r: &Row<'_>| n <= r.middle && r.service.start() < last;
        let from = rows.iter().filter(|r| above(r)).map(|r| r.service.start()).min();
        if let Some(from) = from {
            let lead = least.saturating_sub(from);
            if cut {
                let mean = n as f64 * mean;
                table.fill(from, coarsest, |out| order.rest(&p, least, mean, from..=longest, out));
            } else {
                table.fill(from.min(least), coarsest, |out| order.above(&p, lead, out));
            }
            for r in rows.iter_mut().filter(|r| above(r)) {
                r.above.push(n, table.mean(&r.strided));
            }
        }
    }
    Ok(rows.iter().map(|r| order.finish(r, mean, most)).collect())
}

/// Refuses what would take too long or too much.
fn check_work(
    arrivals: &Interarrival,
    services: &[Pmf],
    longest: usize,
    (most, far): (usize, usize),
) -> Result<(), Error> {
    let refuse = |needed: String, limit: String| {
        let what = "the distribution of the number of arrivals";
        Err(Error::TooLarge { what, needed, limit, advice: "choose a longer slot" })
    };
    let (mean, cv) = (arrivals.mean(), arrivals.cv());
    let (longest, far) = (longest as f64, far as f64);
    // Packets that a service may bring at most, with room for bursts.
    let expected = longest / mean;
    let packets = (expected + 12.0 * cv * expected.sqrt() + 32.0 * cv * cv).min(most as f64);
    let places: f64 = services.iter().map(|s| s.probabilities().len() as f64).sum();
    let reach = (longest + 12.0 * cv * mean * (expected + 1.0).sqrt()).min(far);
    let work = packets * (longest + places) + expected.min(packets) * (reach - longest);
    if work > MAX_WORK {
        return refuse(format!("{work:.1e} additions"), format!("{MAX_WORK:.0e}"));
    }
    let bytes = 2.0 * size_of::<f64>() as f64 * packets * services.len() as f64;
    if bytes > MAX_MEMORY as f64 {
        return refuse(format!("{:.1e} MiB", bytes / 1_048_576.0), format!("{} MiB", MAX_MEMORY >> 20));
    }
    Ok(())
}

/// The function of n whose differences give the count.
#[derive(Clone, Copy)]
enum Order {
    /// Of `P(A⁽ⁿ⁾ ≤ B)`: the renewal start.
    First,
    /// Of `E[(B − A⁽ⁿ⁾)⁺]/E[A]`: the equilibrium start.
    Second,
}

impl Order {
    /// For τ from the least value of the sum to `reach` above it: `P(A⁽ⁿ⁾ ≤ τ)`, or `E[(τ − A⁽ⁿ⁾)⁺]`.
    fn below(self, p: &[f64], reach: usize, out: &mut Vec<f64>) {
        out.clear();
        let (mut at_most, mut mean) = (0.0, 0.0);
        let places = reach + 1;
        let within = p.get(..places).unwrap_or(p).iter();
        match self {
            Self::First => {
                out.extend(within.map(|p| {
                    at_most += p;
                    at_most
                }));
                out.resize(places, at_most);
            }
            Self::Second => {
                out.extend(within.map(|p| {
                    let here = mean;
                    at_most += p;
                    mean += at_most;
                    here
                }));
                out.extend((out.len()..places).map(|_| {
                    let here = mean;
                    mean += at_most;
                    here
                }));
            }
        }
    }

    /// For τ from `lead` below the least value of the sum to its largest: `P(A⁽ⁿ⁾ > τ)`, or `E[(A⁽ⁿ⁾ − τ)⁺]`.
    fn above(self, p: &[f64], lead: usize, out: &mut Vec<f64>) {
        out.clear();
        let (mut more, mut mean) = (0.0, 0.0);
        let downwards = p.iter().rev();
        match self {
            Self::First => {
                out.extend(downwards.map(|p| {
                    let here = more;
                    more += p;
                    here
                }));
                out.resize(p.len() + lead, more);
            }
            Self::Second => {
                out.extend(downwards.map(|p| {
                    mean += more;
                    more += p;
                    mean
                }));
                out.extend((0..lead).map(|_| {
                    mean += more;
                    mean
                }));
            }
        }
        out.reverse();
    }

    /// Fills in what [`above`](Self::above) would for these τ, of a sum with this mean of which `p` has the
    /// values up to the last τ: it is the complement of what lies below.
    fn rest(self, p: &[f64], least: usize, mean: f64, range: RangeInclusive<usize>, out: &mut Vec<f64>) {
        let (from, to) = range.into_inner();
        if p.is_empty() {
            out.clear();
        } else {
            self.below(p, to.saturating_sub(least), out);
            out.drain(..from.saturating_sub(least).min(out.len()));
        }
        let lead = (to + 1).saturating_sub(from).saturating_sub(out.len());
        out.splice(..0, std::iter::repeat_n(0.0, lead));
        for (tau, value) in (from..=to).zip(out) {
            *value = match self {
                Self::First => 1.0 - *value,
                Self::Second => mean - tau as f64 + *value,
            };
        }
    }

    /// The most interarrival times that must be added up where a queue of this size is all that packets find.
    fn most(self, queue: usize) -> usize {
        match self {
            // The mean of the count follows from all probabilities.
            Self::First => usize::MAX - 1,
            Self::Second => queue + 1,
        }
    }

    /// The distribution from the row; where the sums end at `most` it is the last number, and stands for
    /// larger ones too.
    fn finish(self, r: &Row<'_>, mean: f64, most: usize) -> Counts {
        // A service that brings more packets than that at any rate is in neither table.
        let least_end = if most < r.middle { most } else { 1 };
        let end = r.below.end().max(r.above.end()).max(least_end);
        let value = |n: usize| match (self, n < r.middle) {
            (Self::First, true) => r.above.at(n + 1) - r.above.at(n),
            (Self::First, false) => r.below.at(n) - r.below.at(n + 1),
            (Self::Second, true) if n == 0 => r.above.at(1) / mean,
            (Self::Second, false) if n == 0 => 1.0 - (r.below.at(0) - r.below.at(1)) / mean,
            (Self::Second, true) => second(&r.above, n) / mean,
            (Self::Second, false) => second(&r.below, n) / mean,
        };
        let first = r.above.start.min(r.middle).saturating_sub(1);
        // A second difference reaches one further than what it is taken of.
        let mut p: Vec<f64> = (first..=end.min(most - 1)).map(|n| value(n).max(0.0)).collect();
        let mut beyond = 0.0;
        if end >= most {
            // `E[(X − most)⁺]` and the same for one less; their difference is `P(X ≥ most)`.
            let excess = |n: usize| match most < r.middle {
                true => (r.above.at(n) + r.service.mean()) / mean - n as f64,
                false => r.below.at(n) / mean,
            };
            p.push((excess(most - 1) - excess(most)).max(0.0));
            beyond = excess(most).max(0.0);
        }
        let last = p.iter().rposition(|p| *p >= TAIL).map_or(0, |i| i + 1);
        p.truncate(last);
        let skip = p.iter().position(|p| *p >= TAIL).unwrap_or(0);
        p.drain(..skip);
        Counts { start: first + skip, p, beyond }
    }
}

fn second(values: &Sparse, n: usize) -> f64 {
    (values.at(n - 1) - values.at(n)) - (values.at(n) - values.at(n + 1))
}

/// The sum of products, in eight lanes that the compiler keeps in vector registers.
pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    let n = a.len().min(b.len());
    let (a, b) = (a.get(..n).unwrap_or_default(), b.get(..n).unwrap_or_default());
    let (a8, a_rest) = a.as_chunks::<8>();
    let (b8, b_rest) = b.as_chunks::<8>();
    let mut lanes = [0.0f64; 8];
    for (x, y) in a8.iter().zip(b8) {
        for ((lane, x), y) in lanes.iter_mut().zip(x).zip(y) {
            *lane += x * y;
        }
    }
    let rest: f64 = a_rest.iter().zip(b_rest).map(|(x, y)| x * y).sum();
    lanes.iter().sum::<f64>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::Variation;

    /// By the definition: step through the slots of a service, one renewal at a time.
    fn slow(arrivals: &Interarrival, service: &Pmf, start: Start, most: usize) -> Vec<f64> {
        let a = arrivals.pmf().unwrap();
        let at = |k: usize| {
            k.checked_sub(a.start()).and_then(|i| a.probabilities().get(i)).copied().unwrap_or(0.0)
        };
        let reach = service.last();
        let residual =
            |r: usize| -> f64 { if r == 0 { 0.0 } else { (r..=a.last()).map(at).sum::<f64>() / a.mean() } };
        let first: Vec<f64> =
            (0..=reach).map(|s| if start == Start::Renewal { at(s) } else { residual(s) }).collect();
        let mut at_least = vec![1.0];
        let mut sum = first;
        for _ in 0..=most {
            at_least.push(service.iter().map(|(t, b)| b * sum[..=t].iter().sum::<f64>()).sum());
            let mut next = vec![0.0; reach + 1];
            for (s, p) in sum.iter().enumerate() {
                for (k, q) in a.iter().take_while(|(k, _)| s + k <= reach) {
                    next[s + k] += p * q;
                }
            }
            sum = next;
        }
        at_least.windows(2).map(|w| w[0] - w[1]).collect()
    }

    #[test]
    fn counts_are_as_by_the_definition() {
        let services: Vec<Pmf> =
            [0.0, 7.5, 31.0, 80.2].iter().map(|m| Variation::Poisson.pmf(1, *m).unwrap()).collect();
        let odd = Pmf::from_weights("test", 0, vec![3.0, 0.0, 1.0, 0.0, 0.0, 9.0, 0.5]).unwrap();
        for arrivals in [
            Interarrival::deterministic(4.3).unwrap(),
            Interarrival::deterministic(0.7).unwrap(),
            Interarrival::poisson(3.1).unwrap(),
            Interarrival::geometric(6.0).unwrap(),
            Interarrival::negative_binomial(5.0, 0.6).unwrap(),
            Interarrival::negative_binomial(5.0, 2.0).unwrap(),
            Interarrival::negative_binomial(500.0, 2.0).unwrap(),
            Interarrival::empirical(odd).unwrap(),
        ] {
            for start in [Start::Renewal, Start::Equilibrium] {
                let fast = counts(&arrivals, &services, true, start, 1000).unwrap();
                for (row, service) in fast.iter().zip(&services) {
                    let slow = slow(&arrivals, service, start, 200);
                    for (n, want) in slow.iter().enumerate() {
                        let got = n.checked_sub(row.start).and_then(|i| row.p.get(i)).copied().unwrap_or(0.0);
                        assert!(
                            (got - want).abs() < 2e-13,
                            "{} {start:?} {} {n}: {got} {want}",
                            arrivals.name(),
                            service.mean()
                        );
                    }
                }
            }
        }
    }

    /// Bursts of 16 packets with geometric pauses: sums have tails much longer than normal ones, and all of
    /// them count.
    #[test]
    fn probabilities_of_counts_sum_to_one_however_bursty_arrivals_are() {
        for (gap, burst) in [(10.3, 16.0), (2.0, 40.0), (60.0, 4.0)] {
            let each: f64 = 1.0 / (gap * burst);
            let pauses = (0..6000).map(|k| (1.0 - each).powi(k) * each / burst);
            let weights: Vec<f64> = std::iter::once(1.0 - 1.0 / burst).chain(pauses).collect();
            let arrivals = Interarrival::empirical(Pmf::from_weights("test", 0, weights).unwrap()).unwrap();
            let services: Vec<Pmf> =
                [30, 330, 900].map(|t| Variation::Deterministic.pmf(1, f64::from(t)).unwrap()).into();
            for row in counts(&arrivals, &services, false, Start::Equilibrium, 4000).unwrap() {
                let sum: f64 = row.p.iter().sum();
                assert!((sum - 1.0).abs() < 1e-11, "{gap} {burst}: 1 {:+e}", sum - 1.0);
            }
        }
    }

    /// A packet with probability p in every slot, a Poisson number of slots: a Poisson number of packets.
    #[test]
    fn geometric_arrivals_thin_a_poisson_service_to_the_last_digit_of_the_tails() {
        let means = [100.0, 677.0, 20_312.0];
        let services: Vec<Pmf> = means.iter().map(|m| Variation::Poisson.pmf(1, *m).unwrap()).collect();
        let arrivals = Interarrival::geometric(83.5197).unwrap();
        for (row, mean) in
            counts(&arrivals, &services, true, Start::Equilibrium, 4000).unwrap().iter().zip(means)
        {
            let want = crate::pmf::Family::poisson(mean / 83.5197).pmf("test").unwrap();
            for (n, p) in want.iter().filter(|(_, p)| *p > 1e-20) {
                let got = row.p[n - row.start];
                assert!((got / p - 1.0).abs() < 1e-6, "{mean} {n}: {got} {p}");
            }
            assert!((row.mean() / (mean / 83.5197) - 1.0).abs() < 1e-13);
        }
    }

    /// Strides leave out nothing that matters: all strides against every slot.
    #[test]
    fn strides_change_nothing() {
        let means = [300.0, 1300.0, 5000.0];
        let services: Vec<Pmf> = means.iter().map(|m| Variation::Poisson.pmf(1, *m).unwrap()).collect();
        for arrivals in [
            Interarrival::poisson(40.0).unwrap(),
            Interarrival::geometric(40.0).unwrap(),
            Interarrival::negative_binomial(40.0, 2.0).unwrap(),
            Interarrival::deterministic(40.3).unwrap(),
        ] {
            let coarse = counts(&arrivals, &services, true, Start::Equilibrium, 4000).unwrap();
            let fine = counts(&arrivals, &services, false, Start::Equilibrium, 4000).unwrap();
            for (a, b) in coarse.iter().zip(&fine) {
                for (i, want) in b.p.iter().enumerate() {
                    let got =
                        (b.start + i).checked_sub(a.start).and_then(|n| a.p.get(n)).copied().unwrap_or(0.0);
                    let name = arrivals.name();
                    assert!((got - want).abs() <= 1e-10 * want + 1e-25, "{name}: {got} {want}");
                }
            }
        }
        assert_eq!(stride(|w| 1e4 * (1.0 - w.cos())), 2);
        assert_eq!(stride(|w| 2e3 * (1.0 - w.cos())), 1);
        assert_eq!(stride(|_| 0.0), 0);
    }

    /// Interarrival times that are mostly much longer than a service, and packets that are mostly many more
    /// than a queue holds: as by the definition, with one number for all beyond the queue.
    #[test]
    fn long_pauses_and_short_queues_leave_the_counts_as_they_are() {
        let services: Vec<Pmf> = [3.0, 20.0].iter().map(|m| Variation::Poisson.pmf(1, *m).unwrap()).collect();
        let pauses =
            Pmf::from_weights("test", 0, [vec![90.0, 5.0, 5.0], vec![0.0; 3000], vec![1.0]].concat());
        for arrivals in [
            Interarrival::negative_binomial(5.0, 4.0).unwrap(),
            Interarrival::negative_binomial(5.0, 2.0).unwrap(),
            Interarrival::geometric(60.0).unwrap(),
            Interarrival::poisson(0.2).unwrap(),
            Interarrival::geometric(1.0).unwrap(),
            Interarrival::deterministic(900.3).unwrap(),
            Interarrival::empirical(pauses.unwrap()).unwrap(),
        ] {
            for (start, queue) in [(Start::Renewal, 3), (Start::Equilibrium, 3), (Start::Equilibrium, 60)] {
                let fast = counts(&arrivals, &services, true, start, queue).unwrap();
                for (row, service) in fast.iter().zip(&services) {
                    let name = format!("{} {start:?} {queue}", arrivals.name());
                    let slow = slow(&arrivals, service, start, 400);
                    let at = |n: usize| {
                        n.checked_sub(row.start).and_then(|i| row.p.get(i)).copied().unwrap_or(0.0)
                    };
                    for (n, want) in slow.iter().enumerate().take(queue + 1) {
                        assert!((at(n) - want).abs() < 1e-12, "{name} {n}: {} {want}", at(n));
                    }
                    let more: f64 = (queue + 1..=row.last()).map(at).sum();
                    let want: f64 = slow.iter().skip(queue + 1).sum();
                    assert!((more - want).abs() < 1e-5, "{name}: {more} {want}");
                    if start == Start::Equilibrium {
                        let want = service.mean() / arrivals.mean();
                        assert!((row.mean() / want - 1.0).abs() < 1e-10, "{name}: {} {want}", row.mean());
                    }
                }
            }
        }
    }

    #[test]
    fn tails_and_excess() {
        let c = Counts { start: 2, p: vec![0.5, 0.25, 0.25], beyond: 0.0 };
        assert_eq!(c.tail(), [1.0, 1.0, 1.0, 0.5, 0.25, 0.0]);
        assert_eq!(c.excess(), [2.75, 1.75, 0.75, 0.25, 0.0]);
        assert_eq!(c.mean(), 2.75);
        let c = Counts { beyond: 2.0, ..c };
        assert_eq!(c.excess(), [4.75, 3.75, 2.75, 2.25, 2.0]);
        assert_eq!(c.mean(), 4.75);
    }
}
