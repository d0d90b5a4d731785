//! Distributions over whole slots: those given as numbers, and the (a, b) family in closed form.
//!
//! Poisson, negative binomial and binomial probabilities share one recurrence,
//! `p(k+1) = p(k)·(a + b·k)/(k + 1)` (Panjer's class), and sums of equal ones stay in their family. That
//! gives every n-fold sum of interarrival times without a convolution. The recurrence starts where the
//! probability is known best: at the mode, by Loader's saddle-point form, which keeps a relative error of
//! about 1e-15 where differences of log-gammas would lose ten digits.

use crate::error::Error;

/// Probabilities below this are left out at both ends of a distribution: 11 standard deviations of a normal
/// one. The mass left out of a distribution is below a hundred times that.
pub const TAIL: f64 = 1e-28;

/// The most places that a distribution given as numbers may have.
pub const MAX_SUPPORT: usize = 1 << 24;

/// A distribution over 0, 1, 2, … slots with bounded support.
///
/// ```
/// use slipstream_model::Pmf;
///
/// // Three slots as often as six, and four twice as often.
/// let gaps = Pmf::from_weights("gaps", 3, vec![1.0, 2.0, 0.0, 1.0])?;
/// assert_eq!((gaps.start(), gaps.last(), gaps.mean()), (3, 6, 4.25));
/// assert_eq!([0.25, 0.75, 0.99].map(|share| gaps.quantile(share)), [3, 4, 6]);
///
/// // A value between two slots counts for both.
/// assert_eq!(Pmf::from_samples("gaps", [2.25])?.probabilities(), [0.75, 0.25]);
/// # Ok::<(), slipstream_model::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Pmf {
    start: usize,
    p: Vec<f64>,
}

impl Pmf {
    /// From weights of `start`, `start + 1`, …, which are normalised; zeros at both ends are dropped.
    ///
    /// # Errors
    /// [`Error::Distribution`] where a weight is negative or not finite, all are zero, or there are more than
    /// [`MAX_SUPPORT`] places.
    pub fn from_weights(what: &str, start: usize, mut weights: Vec<f64>) -> Result<Self, Error> {
        let wrong = |why: String| Error::Distribution { what: what.to_owned(), why };
        if let Some((i, w)) = weights.iter().enumerate().find(|(_, w)| !w.is_finite() || **w < 0.0) {
            return Err(wrong(format!("the weight of {} slots is {w}", start.saturating_add(i))));
        }
        let last = weights.iter().rposition(|w| *w > 0.0).ok_or_else(|| wrong("it is empty".to_owned()))?;
        weights.truncate(last + 1);
        let first = weights.iter().position(|w| *w > 0.0).unwrap_or(0);
        weights.drain(..first);
        if start.saturating_add(first).saturating_add(weights.len()) > MAX_SUPPORT {
            return Err(wrong(format!("it reaches beyond {MAX_SUPPORT} slots; choose a longer slot")));
        }
        let sum: f64 = weights.iter().sum();
        if !sum.is_finite() {
            return Err(wrong("its weights add up to more than a number can hold".to_owned()));
        }
        weights.iter_mut().for_each(|w| *w /= sum);
        Ok(Self { start: start + first, p: weights })
    }

    /// From observed values in slots, which are rounded so that each keeps its place on average: a value
    /// between two slots counts for both in proportion, and the mean stays what it was.
    ///
    /// # Errors
    /// [`Error::Distribution`] where there is no value, or one is negative, not finite or beyond
    /// [`MAX_SUPPORT`].
    pub fn from_samples(what: &str, samples: impl IntoIterator<Item = f64>) -> Result<Self, Error> {
        Self::from_weighted_samples(what, samples.into_iter().map(|value| (value, 1.0)))
    }

    /// The same of values that have weights.
    pub(crate) fn from_weighted_samples(
        what: &str,
        samples: impl Iterator<Item = (f64, f64)>,
    ) -> Result<Self, Error> {
        let mut weights: Vec<f64> = Vec::new();
        for (value, weight) in samples {
            if !(0.0..(MAX_SUPPORT - 1) as f64).contains(&value) {
                let why =
                    format!("{value} slots is not a value between 0 and {MAX_SUPPORT}; choose a longer slot");
                return Err(Error::Distribution { what: what.to_owned(), why });
            }
            let (low, share) = (value.floor() as usize, value.fract());
            if weights.len() < low + 2 {
                weights.resize(low + 2, 0.0);
            }
            for (place, part) in weights.iter_mut().skip(low).zip([1.0 - share, share]) {
                *place += part * weight;
            }
        }
        Self::from_weights(what, 0, weights)
    }

    /// All of it at `mean`, or at the two whole numbers beside it so that the mean is kept: the least
    /// variable distribution over whole slots with this mean.
    #[must_use]
    pub(crate) fn nearly_constant(mean: f64) -> Self {
        let (low, share) = (mean.floor(), mean.fract());
        let p = if share > 0.0 { vec![1.0 - share, share] } else { vec![1.0] };
        Self { start: low as usize, p }
    }

    /// The least value.
    #[must_use]
    pub fn start(&self) -> usize {
        self.start
    }

    /// The largest value.
    #[must_use]
    pub fn last(&self) -> usize {
        self.start + self.p.len() - 1
    }

    /// Probabilities of `start()`, `start() + 1`, ….
    #[must_use]
    pub fn probabilities(&self) -> &[f64] {
        &self.p
    }

    /// Values with their probabilities.
    pub fn iter(&self) -> impl Iterator<Item = (usize, f64)> + '_ {
        self.p.iter().enumerate().map(|(i, p)| (self.start + i, *p))
    }

    /// The mean, in slots.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.start as f64 + self.p.iter().enumerate().map(|(i, p)| i as f64 * p).sum::<f64>()
    }

    /// The variance, in slots².
    #[must_use]
    pub fn variance(&self) -> f64 {
        let mean = self.mean();
        self.iter().map(|(k, p)| (k as f64 - mean).powi(2) * p).sum()
    }

    /// The least value up to which a share `q`, 0 to 1, of the probability lies.
    #[must_use]
    pub fn quantile(&self, q: f64) -> usize {
        let mut sum = 0.0;
        for (k, p) in self.iter() {
            sum += p;
            if sum >= q {
                return k;
            }
        }
        self.last()
    }
}

/// A member of the (a, b) family, moved up by `shift`: `p(k+1) = p(k)·(a + b·k)/(k + 1)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Family {
    /// `a − 1`.
    rise: f64,
    /// `1 − b`, which must not be computed from `b`: what is lost there adds up over thousands of steps.
    fall: f64,
    shift: usize,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// All at `shift`.
    Point,
    Poisson {
        mean: f64,
    },
    /// Failures before the `r`-th success of probability `p`; `r` need not be whole.
    NegativeBinomial {
        r: f64,
        p: f64,
    },
    Binomial {
        n: f64,
        p: f64,
    },
}

impl Family {
    pub(crate) fn point(at: usize) -> Self {
        Self { rise: -1.0, fall: 1.0, shift: at, kind: Kind::Point }
    }

    pub(crate) fn poisson(mean: f64) -> Self {
        if mean == 0.0 {
            return Self::point(0);
        }
        Self { rise: mean - 1.0, fall: 1.0, shift: 0, kind: Kind::Poisson { mean } }
    }

    /// `0 < p < 1`.
    pub(crate) fn negative_binomial(r: f64, p: f64, shift: usize) -> Self {
        if r == 0.0 || p >= 1.0 {
            return Self::point(shift);
        }
        Self { rise: (1.0 - p) * r - 1.0, fall: p, shift, kind: Kind::NegativeBinomial { r, p } }
    }

    /// `0 ≤ p < 1`.
    pub(crate) fn binomial(n: usize, p: f64, shift: usize) -> Self {
        if n == 0 || p <= 0.0 {
            return Self::point(shift);
        }
        let (n, odds) = (n as f64, p / (1.0 - p));
        Self { rise: n * odds - 1.0, fall: 1.0 + odds, shift, kind: Kind::Binomial { n, p } }
    }

    /// The probability of `shift + k`, from the saddle-point form.
    fn at(&self, k: f64) -> f64 {
        match self.kind {
            Kind::Point => f64::from(u8::from(k == 0.0)),
            Kind::Poisson { mean } => poisson_at(k, mean),
            Kind::NegativeBinomial { r, p } => r / (r + k) * binomial_at(r, r + k, p),
            Kind::Binomial { n, p } => binomial_at(k, n, p),
        }
    }

    /// The most probable value, without the shift.
    fn mode(&self) -> usize {
        match self.kind {
            Kind::Point => 0,
            _ => (self.rise / self.fall).ceil().max(0.0) as usize,
        }
    }

    /// True if a value above `limit` has a probability that is written.
    pub(crate) fn exceeds(&self, limit: usize) -> bool {
        let Some(room) = limit.checked_sub(self.shift) else { return true };
        let ends = match self.kind {
            Kind::Point => true,
            Kind::Binomial { n, .. } => room as f64 >= n,
            _ => false,
        };
        self.mode() > room || !ends && self.at(room as f64 + 1.0) >= TAIL
    }

    /// Writes the probabilities of all values up to `limit` that are at least [`TAIL`], and returns the least
    /// of these values. Nothing is written where there is none.
    pub(crate) fn write(&self, limit: usize, out: &mut Vec<f64>) -> usize {
        out.clear();
        let Some(room) = limit.checked_sub(self.shift) else { return self.shift };
        let anchor = self.mode().min(room);
        let at_anchor = self.at(anchor as f64);
        // Downwards, then turned round.
        if at_anchor >= TAIL {
            out.push(at_anchor);
        }
        let (mut p, mut k) = (at_anchor, anchor);
        while k > 0 && p >= TAIL {
            let n = k.min(BLOCK);
            let mut block = self.inverse_ratios(k - n);
            let steps = block.get_mut(..n).unwrap_or_default();
            steps.reverse();
            out.extend_from_slice(products(&mut p, steps));
            k -= n;
        }
        out.reverse();
        let start = self.shift + anchor + 1 - out.len().max(1);
        if out.is_empty() {
            return start;
        }
        let (mut p, mut k) = (at_anchor, anchor);
        while k < room && p >= TAIL {
            let n = (room - k).min(BLOCK);
            out.extend_from_slice(products(&mut p, self.ratios(k).get_mut(..n).unwrap_or_default()));
            k += n;
        }
        start
    }

    /// `p(j+1)/p(j)` without the shift, for [`BLOCK`] values `j` from `k` on: side by side, for vector
    /// registers.
    #[inline]
    fn ratios(&self, k: usize) -> [f64; BLOCK] {
        let k = k as f64;
        let mut block: [f64; BLOCK] = std::array::from_fn(|i| i as f64);
        match self.kind {
            // For a success that is all but certain, the form below would be a small difference of large
            // numbers.
            Kind::Binomial { n, p } => {
                block.iter_mut().for_each(|i| *i = (n - (k + *i)) / (k + *i + 1.0) * (p / (1.0 - p)));
            }
            _ => {
                block.iter_mut().for_each(|i| *i = 1.0 + (self.rise - self.fall * (k + *i)) / (k + *i + 1.0))
            }
        }
        block
    }

    /// `p(j)/p(j+1)` for the same values.
    #[inline]
    fn inverse_ratios(&self, k: usize) -> [f64; BLOCK] {
        if let Kind::Binomial { .. } = self.kind {
            return self.ratios(k).map(f64::recip);
        }
        let k = k as f64;
        std::array::from_fn(|i| {
            let k = k + i as f64;
            (k + 1.0) / (k + 1.0 + (self.rise - self.fall * k))
        })
    }

    /// The whole distribution.
    pub(crate) fn pmf(&self, what: &str) -> Result<Pmf, Error> {
        let mut p = Vec::new();
        let start = self.write(MAX_SUPPORT, &mut p);
        Pmf::from_weights(what, start, p)
    }
}

/// Values whose ratios are worked out together.
const BLOCK: usize = 32;
/// Replaces factors by what `p` becomes, multiplied by one after the other, and returns those that are at
/// least [`TAIL`]: away from the mode it only falls. Four at a time, since a product that waits for the one
/// before it is most of the time.
fn products<'a>(p: &mut f64, factors: &'a mut [f64]) -> &'a [f64] {
    let (fours, rest) = factors.as_chunks_mut::<4>();
    for [a, b, c, d] in fours {
        let (two, last_two) = (*a * *b, *c * *d);
        let all = *p * (two * last_two);
        (*a, *b, *c, *d) = (*p * *a, *p * two, *p * (two * *c), all);
        *p = all;
    }
    for factor in rest {
        *p *= *factor;
        *factor = *p;
    }
    let n = if *p >= TAIL { factors.len() } else { factors.partition_point(|p| *p >= TAIL) };
    factors.get(..n).unwrap_or_default()
}

const LN_SQRT_2PI: f64 = 0.918_938_533_204_672_8;

/// The error of Stirling's formula, `ln Γ(x+1) − ((x + ½)·ln x − x + ½·ln 2π)`, for `x > 0`.
fn stirling_error(x: f64) -> f64 {
    if x < 16.0 {
        return libm::lgamma(x + 1.0) - ((x + 0.5) * x.ln() - x + LN_SQRT_2PI);
    }
    let s = 1.0 / (x * x);
    (1.0 / 12.0 - s * (1.0 / 360.0 - s * (1.0 / 1260.0 - s * (1.0 / 1680.0 - s * (1.0 / 1188.0))))) / x
}

/// The deviance `x·ln(x/mean) + mean − x`, without the cancellation near `x = mean`.
fn deviance(x: f64, mean: f64) -> f64 {
    let difference = x - mean;
    if difference.abs() >= 0.1 * (x + mean) {
        return if x > 0.0 { x * (x / mean).ln() + mean - x } else { mean };
    }
    // With v = (x − mean)/(x + mean): x·ln((1+v)/(1−v)) − (x − mean), as a series in v².
    let v = difference / (x + mean);
    let mut sum = difference * v;
    let mut term = 2.0 * x * v;
    let square = v * v;
    for j in 1..1000u32 {
        term *= square;
        let next = sum + term / f64::from(2 * j + 1);
        if next == sum {
            break;
        }
        sum = next;
    }
    sum
}

fn poisson_at(x: f64, mean: f64) -> f64 {
    if x == 0.0 {
        return (-mean).exp();
    }
    (-stirling_error(x) - deviance(x, mean)).exp() / (2.0 * std::f64::consts::PI * x).sqrt()
}

/// Probability of `x` successes in `n` trials; neither need be whole.
fn binomial_at(x: f64, n: f64, p: f64) -> f64 {
    let q = 1.0 - p;
    if x == 0.0 {
        return (n * libm::log1p(-p)).exp();
    }
    if x >= n {
        return (n * p.ln()).exp();
    }
    let y = n - x;
    let log =
        stirling_error(n) - stirling_error(x) - stirling_error(y) - deviance(x, n * p) - deviance(y, n * q);
    log.exp() * (n / (2.0 * std::f64::consts::PI * x * y)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn family_moments(f: &Family) -> (f64, f64, f64) {
        let mut p = Vec::new();
        let start = f.write(MAX_SUPPORT, &mut p);
        let sum: f64 = p.iter().sum();
        let pmf = Pmf::from_weights("test", start, p).unwrap();
        (sum, pmf.mean(), pmf.variance())
    }

    #[track_caller]
    fn close(a: f64, b: f64, relative: f64) {
        assert!((a - b).abs() <= relative * b.abs().max(1e-300), "{a} against {b}");
    }

    #[test]
    fn families_add_up_to_one_and_have_their_moments() {
        for (f, mean, variance) in [
            (Family::poisson(0.3), 0.3, 0.3),
            (Family::poisson(83.5197), 83.5197, 83.5197),
            (Family::poisson(1e6), 1e6, 1e6),
            (Family::negative_binomial(0.25, 0.004, 0), 0.25 * 0.996 / 0.004, 0.25 * 0.996 / 0.004 / 0.004),
            (Family::negative_binomial(300.0, 0.01, 300), 300.0 / 0.01, 300.0 * 0.99 / 1e-4),
            (Family::binomial(300, 0.52, 24_000), 24_000.0 + 156.0, 300.0 * 0.52 * 0.48),
            (Family::binomial(7, 0.999, 0), 6.993, 7.0 * 0.999 * 0.001),
            (Family::binomial(9, 1.0 - 1e-14, 0), 9.0, 9e-14),
            (Family::point(17), 17.0, 0.0),
        ] {
            let (sum, m, v) = family_moments(&f);
            close(sum, 1.0, 2e-13);
            close(m, mean, 1e-11);
            assert!((v - variance).abs() <= 1e-9 * variance + 1e-15, "{f:?}: {v} {variance}");
        }
    }

    #[test]
    fn a_limit_cuts_without_changing_what_is_left() {
        let f = Family::negative_binomial(40.0, 0.1, 40);
        let (mut all, mut cut) = (Vec::new(), Vec::new());
        let start = f.write(MAX_SUPPORT, &mut all);
        for limit in [39, 40, 100, 300, 400, 5000] {
            let from = f.write(limit, &mut cut);
            for (i, p) in cut.iter().enumerate() {
                close(*p, all[from + i - start], 1e-12);
            }
            assert!(cut.is_empty() || from + cut.len() - 1 <= limit);
            assert_eq!(cut.is_empty(), limit < start, "{limit}");
        }
    }

    #[test]
    fn samples_keep_their_mean() {
        let pmf = Pmf::from_samples("test", [1.25, 2.0, 7.5]).unwrap();
        close(pmf.mean(), 10.75 / 3.0, 1e-14);
        assert_eq!((pmf.start(), pmf.last()), (1, 8));
        assert_eq!(Pmf::nearly_constant(2.25).mean(), 2.25);
        assert_eq!(Pmf::nearly_constant(3.0).probabilities(), [1.0]);
        for bad in [vec![], vec![-1.0], vec![f64::NAN], vec![1e30]] {
            assert!(Pmf::from_samples("test", bad).is_err());
        }
        for bad in [vec![0.0, 0.0], vec![1.0, -1.0], vec![f64::INFINITY]] {
            assert!(Pmf::from_weights("test", 0, bad).is_err());
        }
    }

    #[test]
    fn quantiles() {
        let pmf = Pmf::from_weights("test", 3, vec![1.0, 2.0, 1.0]).unwrap();
        assert_eq!([0.0, 0.25, 0.26, 0.75, 0.76, 1.0].map(|q| pmf.quantile(q)), [3, 3, 4, 4, 5, 5]);
    }
}
