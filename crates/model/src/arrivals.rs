//! Arrivals: independent, equally distributed interarrival times, and sums of `n` of them.

use rustfft::algorithm::Radix4;
use rustfft::num_complex::Complex;
use rustfft::{Fft, FftDirection};

use crate::error::{Error, positive};
use crate::pmf::{Family, MAX_SUPPORT, Pmf, TAIL};

/// The state of the arrival process at a poll (`--start`), from which the arrivals of a service are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// A whole interarrival time begins at every poll. Simple, and biased: too few packets come.
    Renewal,
    /// The time to the first arrival is the residual of an interarrival time, `P(R = r) = P(A ≥ r)/E[A]`,
    /// drawn anew at every poll. The mean number of arrivals is right; what is lost is that one residual
    /// depends on the last.
    #[default]
    Equilibrium,
    /// The residual of one poll is what the last one left of it: the queue as it is. Solved where arrivals
    /// remember nothing (geometric) and for interarrival times of a few dozen slots at most, whose residuals
    /// go into the state; simulated for all. Quantiles of waiting times then take the arrivals within a
    /// service as the equilibrium start has them; all else is exact.
    Exact,
}

/// The distribution of the time between two packets, in slots.
///
/// ```
/// use slipstream_model::Interarrival;
///
/// // Ten million packets a second in slots of 10 ns: ten slots between two of them.
/// let random = Interarrival::geometric(10.0)?;
/// let bursty = Interarrival::negative_binomial(10.0, 2.0)?;
/// assert!(random.cv() < 1.0 && (bursty.cv() - 2.0).abs() < 1e-9);
/// // Two cores share the packets.
/// assert_eq!(bursty.with_mean(20.0)?.mean(), 20.0);
/// # Ok::<(), slipstream_model::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Interarrival {
    kind: Kind,
    mean: f64,
}

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Deterministic,
    Poisson,
    Geometric,
    /// Failures before the `r`-th success of probability `p`.
    NegativeBinomial {
        r: f64,
        p: f64,
    },
    Empirical(Pmf),
}

impl Interarrival {
    /// The longest mean, in slots.
    pub(crate) const MAX_MEAN: f64 = (MAX_SUPPORT / 8) as f64;

    /// Always `mean` slots; where that is no whole number, the two beside it in the proportion that keeps the
    /// mean.
    ///
    /// # Errors
    /// [`Error::NotPositive`], [`Error::TooLarge`] for a mean beyond 2²¹ slots; so also below.
    pub fn deterministic(mean: f64) -> Result<Self, Error> {
        Ok(Self { kind: Kind::Deterministic, mean: mean_of(mean)? })
    }

    /// Poisson-distributed: its coefficient of variation is `1/√mean`, so it depends on the slot length.
    ///
    /// # Errors
    /// As [`Interarrival::deterministic`].
    pub fn poisson(mean: f64) -> Result<Self, Error> {
        Ok(Self { kind: Kind::Poisson, mean: mean_of(mean)? })
    }

    /// Geometric over 1, 2, …: every slot has a packet with the same probability. Its coefficient of
    /// variation is `√(1 − 1/mean)`.
    ///
    /// # Errors
    /// As [`Interarrival::deterministic`]; [`Error::OutOfRange`] for a mean below one slot.
    pub fn geometric(mean: f64) -> Result<Self, Error> {
        mean_of(mean)?;
        if mean < 1.0 {
            let what = "the mean of a geometric interarrival time, in slots (more, where they are shorter),";
            return Err(Error::OutOfRange { what, value: mean, low: 1.0, high: Self::MAX_MEAN });
        }
        Ok(Self { kind: Kind::Geometric, mean })
    }

    /// Negative binomial over 0, 1, 2, … with this coefficient of variation, which must be above `1/√mean`,
    /// where it becomes Poisson.
    ///
    /// # Errors
    /// As [`Interarrival::deterministic`]; [`Error::Variation`] for a coefficient that it can't have.
    pub fn negative_binomial(mean: f64, cv: f64) -> Result<Self, Error> {
        mean_of(mean)?;
        positive("the coefficient of variation", cv)?;
        let variance = (cv * mean).powi(2);
        let (p, r) = (mean / variance, mean * mean / (variance - mean));
        if !(variance > mean * (1.0 + 1e-9) && r > 1e-9 && p > 1e-15) {
            let limit = if variance <= mean * (1.0 + 1e-9) {
                format!(
                    "it must be above 1/√mean = {:.6}; for exactly that take poisson, for less a longer mean in slots",
                    mean.sqrt().recip()
                )
            } else {
                "that is too much to be computed".to_owned()
            };
            return Err(Error::Variation { distribution: "negative binomial", mean, cv, limit });
        }
        Ok(Self { kind: Kind::NegativeBinomial { r, p }, mean })
    }

    /// As observed.
    ///
    /// # Errors
    /// [`Error::NotPositive`] where its mean is zero.
    pub fn empirical(pmf: Pmf) -> Result<Self, Error> {
        let mean = mean_of(pmf.mean())?;
        Ok(Self { kind: Kind::Empirical(pmf), mean })
    }

    /// The same kind of process with another mean; an empirical one is stretched.
    ///
    /// # Errors
    /// As the constructor of its kind.
    pub fn with_mean(&self, mean: f64) -> Result<Self, Error> {
        match &self.kind {
            Kind::Deterministic => Self::deterministic(mean),
            Kind::Poisson => Self::poisson(mean),
            Kind::Geometric => Self::geometric(mean),
            Kind::NegativeBinomial { .. } => Self::negative_binomial(mean, self.cv()),
            Kind::Empirical(pmf) => {
                mean_of(mean)?;
                let factor = mean / self.mean;
                let scaled = pmf.iter().map(|(k, p)| (k as f64 * factor, p));
                Self::empirical(Pmf::from_weighted_samples("interarrival times", scaled)?)
            }
        }
    }

    /// The mean, in slots.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.mean
    }

    /// The coefficient of variation: standard deviation ÷ mean.
    #[must_use]
    pub fn cv(&self) -> f64 {
        let variance = match &self.kind {
            Kind::Deterministic => self.mean.fract() * (1.0 - self.mean.fract()),
            Kind::Poisson => self.mean,
            Kind::Geometric => self.mean * (self.mean - 1.0),
            Kind::NegativeBinomial { r, p } => r * (1.0 - p) / (p * p),
            Kind::Empirical(pmf) => pmf.variance(),
        };
        variance.sqrt() / self.mean
    }

    /// Its name on the command line.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self.kind {
            Kind::Deterministic => "deterministic",
            Kind::Poisson => "poisson",
            Kind::Geometric => "geometric",
            Kind::NegativeBinomial { .. } => "negbin",
            Kind::Empirical(_) => "empirical",
        }
    }

    /// True if the process has no memory of its last arrival, so that every [`Start`] but
    /// renewal is the same.
    #[must_use]
    pub fn is_memoryless(&self) -> bool {
        matches!(self.kind, Kind::Geometric) || self.mean == 1.0 && self.cv() == 0.0
    }

    /// The distribution as probabilities; what is left out at the ends is below 10⁻²⁶.
    ///
    /// # Errors
    /// [`Error::Distribution`] where it is too long.
    pub fn pmf(&self) -> Result<Pmf, Error> {
        match &self.kind {
            Kind::Empirical(pmf) => Ok(pmf.clone()),
            _ => self.family(1).pmf("interarrival times"),
        }
    }

    /// At least minus the logarithm of the absolute value of the characteristic function, at all frequencies
    /// from `w` to π.
    pub(crate) fn decay(&self, w: f64) -> f64 {
        let negative_binomial = |r: f64, p: f64| {
            let q = 1.0 - p;
            r * (0.5 * (1.0 + q * q - 2.0 * q * w.cos()).ln() - p.ln())
        };
        match &self.kind {
            Kind::Poisson => self.mean * (1.0 - w.cos()),
            Kind::Geometric => negative_binomial(1.0, self.mean.recip()),
            Kind::NegativeBinomial { r, p } => negative_binomial(*r, *p),
            Kind::Deterministic | Kind::Empirical(_) => 0.0,
        }
    }

    /// The sum of `n` interarrival times in closed form; of an empirical one there is none.
    fn family(&self, n: usize) -> Family {
        match &self.kind {
            Kind::Deterministic => {
                Family::binomial(n, self.mean.fract(), n.saturating_mul(self.mean.floor() as usize))
            }
            Kind::Poisson => Family::poisson(n as f64 * self.mean),
            Kind::Geometric => Family::negative_binomial(n as f64, self.mean.recip(), n),
            Kind::NegativeBinomial { r, p } => Family::negative_binomial(n as f64 * r, *p, 0),
            Kind::Empirical(_) => Family::point(0),
        }
    }

    /// A value that the sum of up to `n` interarrival times exceeds so seldom that what lies beyond doesn't
    /// matter: the mean of that is below 1e-15 interarrival times. By Chernoff's bound
    /// `E[(S − x)⁺] ≤ M(θ)ⁿ·e^(−θx)/θ`, for the best of some θ.
    pub(crate) fn reach(&self, n: usize) -> usize {
        let Kind::Empirical(pmf) = &self.kind else { return usize::MAX };
        let last = pmf.last() as f64;
        let bound = |theta: f64| {
            let places = pmf.iter().filter(|(_, p)| *p > 0.0);
            let moment: f64 = places.map(|(k, p)| p * (theta * (k as f64 - last)).exp()).sum();
            // Of M, multiplied by e^(θ·last) again.
            let log_moment = moment.ln() + theta * last;
            (n as f64 * log_moment - (theta * 1e-15 * self.mean).ln()) / theta
        };
        let best = (-12..=20).map(|i| bound((0.5 * f64::from(i)).exp2() / last.max(1.0)));
        best.fold(n as f64 * last, f64::min).ceil() as usize
    }

    /// True if the sum of `n` interarrival times may exceed `limit`.
    pub(crate) fn exceeds(&self, n: usize, limit: usize) -> bool {
        match &self.kind {
            Kind::Empirical(pmf) => n.saturating_mul(pmf.last()) > limit,
            _ => self.family(n).exceeds(limit),
        }
    }

    /// The distributions of the sums of 0, 1, 2, … interarrival times, of which values up to `reach` matter.
    pub(crate) fn sums(&self, reach: usize) -> Sums<'_> {
        let convolution = match &self.kind {
            Kind::Empirical(pmf) => Some(Convolution::new(pmf, reach)),
            _ => None,
        };
        Sums { interarrival: self, n: 0, convolution }
    }
}

fn mean_of(mean: f64) -> Result<f64, Error> {
    let mean = positive("the mean interarrival time, in slots,", mean)?;
    if mean > Interarrival::MAX_MEAN {
        return Err(Error::TooLarge {
            what: "the mean interarrival time",
            needed: format!("{mean} slots"),
            limit: format!("{} slots", MAX_SUPPORT / 8),
            advice: "choose a longer slot",
        });
    }
    Ok(mean)
}

/// The distributions of the sums of 0, 1, 2, … interarrival times, one after the other.
pub(crate) struct Sums<'a> {
    interarrival: &'a Interarrival,
    n: usize,
    convolution: Option<Convolution>,
}

impl Sums<'_> {
    /// As [`next`](Self::next) for the sum of `n`, which must not be one that was written before.
    pub(crate) fn nth(&mut self, n: usize, limit: usize, out: &mut Vec<f64>) -> usize {
        if let Some(convolution) = &mut self.convolution {
            (self.n.max(1)..n).for_each(|_| convolution.step());
        }
        self.n = n;
        self.next(limit, out)
    }

    /// Writes the probabilities of the next sum for values up to `limit`, and returns the least value
    /// written.
    pub(crate) fn next(&mut self, limit: usize, out: &mut Vec<f64>) -> usize {
        let n = self.n;
        self.n += 1;
        let Some(convolution) = &mut self.convolution else {
            return self.interarrival.family(n).write(limit, out);
        };
        if n > 0 {
            convolution.step();
        }
        out.clear();
        let keep = (limit + 1).saturating_sub(convolution.start).min(convolution.p.len());
        out.extend(convolution.p.iter().take(keep));
        convolution.start
    }
}

/// Sums of an empirical distribution, by convolution: term by term where it has few values, else by Fourier
/// transform, whose rounding error is about 1e-16 of the largest probability. Its length is a power of two,
/// and its algorithm the same on every processor, so that all give the same figures.
struct Convolution {
    atoms: Vec<(usize, f64)>,
    /// Values beyond this are dropped; they don't influence those below.
    reach: usize,
    start: usize,
    p: Vec<f64>,
    transform: Option<Transform>,
}

struct Transform {
    forward: Radix4<f64>,
    inverse: Radix4<f64>,
    /// The transform of the distribution, moved to 0.
    of_one: Vec<Complex<f64>>,
    buffer: Vec<Complex<f64>>,
    scratch: Vec<Complex<f64>>,
}

/// Terms a value, up to which convolving term by term is cheaper.
const FEW_ATOMS: usize = 48;
/// Largest rounding error of a transform in place of 0.
const ROUNDING: f64 = 1e-18;

impl Convolution {
    fn new(pmf: &Pmf, reach: usize) -> Self {
        let atoms: Vec<_> = pmf.iter().filter(|a| a.1 > 0.0 && a.0 <= reach).collect();
        let transform = (atoms.len() > FEW_ATOMS).then(|| {
            let places = pmf.probabilities().len().min(reach + 1);
            let length = (reach + places + 1).next_power_of_two();
            let plan = |direction| Radix4::new(length, direction);
            let (forward, inverse) = (plan(FftDirection::Forward), plan(FftDirection::Inverse));
            let zero = Complex::new(0.0, 0.0);
            let mut of_one = vec![zero; length];
            for (place, p) in of_one.iter_mut().zip(pmf.probabilities()).take(places) {
                place.re = *p;
            }
            let scratch =
                vec![zero; forward.get_inplace_scratch_len().max(inverse.get_inplace_scratch_len())];
            let mut t = Transform { forward, inverse, of_one, buffer: vec![zero; length], scratch };
            t.forward.process_with_scratch(&mut t.of_one, &mut t.scratch);
            t
        });
        Self { atoms, reach, start: 0, p: vec![1.0], transform }
    }

    /// From the sum of `n` to that of `n + 1`.
    fn step(&mut self) {
        let Some(&(least, _)) = self.atoms.first() else { return self.p.clear() };
        let mut next = match &mut self.transform {
            Some(t) => t.convolve(&self.p),
            None => {
                let widest = self.atoms.last().map_or(0, |a| a.0) - least;
                let mut next = vec![0.0; self.p.len() + widest];
                for &(k, w) in &self.atoms {
                    for (to, from) in next.iter_mut().skip(k - least).zip(&self.p) {
                        *to += w * from;
                    }
                }
                next
            }
        };
        self.start += least;
        next.truncate((self.reach + 1).saturating_sub(self.start));
        let last = next.iter().rposition(|p| *p >= TAIL).map_or(0, |i| i + 1);
        next.truncate(last);
        let first = next.iter().position(|p| *p >= TAIL).unwrap_or(0);
        next.drain(..first);
        self.start += first;
        self.p = next;
    }
}

impl Transform {
    fn convolve(&mut self, p: &[f64]) -> Vec<f64> {
        self.buffer.fill(Complex::new(0.0, 0.0));
        for (place, p) in self.buffer.iter_mut().zip(p) {
            place.re = *p;
        }
        self.forward.process_with_scratch(&mut self.buffer, &mut self.scratch);
        for (a, b) in self.buffer.iter_mut().zip(&self.of_one) {
            *a *= b;
        }
        self.inverse.process_with_scratch(&mut self.buffer, &mut self.scratch);
        let scale = (self.buffer.len() as f64).recip();
        let value = |c: &Complex<f64>| if c.re * scale > ROUNDING { c.re * scale } else { 0.0 };
        self.buffer.iter().map(value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum of `n` by the definition.
    fn slow_sum(pmf: &Pmf, n: usize, length: usize) -> Vec<f64> {
        let mut sum = vec![0.0; length];
        sum[0] = 1.0;
        for _ in 0..n {
            let mut next = vec![0.0; length];
            for (i, s) in sum.iter().enumerate() {
                for (k, p) in pmf.iter() {
                    if i + k < length {
                        next[i + k] += s * p;
                    }
                }
            }
            sum = next;
        }
        sum
    }

    #[test]
    fn sums_are_convolutions() {
        let wide = Pmf::from_weights("test", 2, (0..60).map(|i| 1.0 + f64::from(i % 7)).collect()).unwrap();
        let few = Pmf::from_weights("test", 0, vec![1.0, 0.0, 0.0, 3.0, 0.5]).unwrap();
        for a in [
            Interarrival::deterministic(3.4).unwrap(),
            Interarrival::deterministic(0.3).unwrap(),
            Interarrival::poisson(4.2).unwrap(),
            Interarrival::geometric(5.0).unwrap(),
            Interarrival::geometric(1.0).unwrap(),
            Interarrival::negative_binomial(6.0, 0.7).unwrap(),
            Interarrival::negative_binomial(6.0, 2.0).unwrap(),
            Interarrival::empirical(wide).unwrap(),
            Interarrival::empirical(few).unwrap(),
        ] {
            let pmf = a.pmf().unwrap();
            assert!((pmf.mean() / a.mean() - 1.0).abs() < 1e-12, "{a:?}");
            let cv = pmf.variance().sqrt() / pmf.mean();
            assert!((cv - a.cv()).abs() < 1e-7, "{a:?}: {cv} {}", a.cv());
            let (mut sums, mut p) = (a.sums(399), Vec::new());
            for n in 0..12 {
                let start = sums.next(399, &mut p);
                let slow = slow_sum(&pmf, n, 400);
                for (k, want) in slow.iter().enumerate() {
                    let got = k.checked_sub(start).and_then(|i| p.get(i)).copied().unwrap_or(0.0);
                    assert!((got - want).abs() < 1e-14, "{a:?}, n {n}, {k}: {got} {want}");
                }
            }
        }
    }

    #[test]
    fn what_a_distribution_cannot_have_is_refused() {
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e9] {
            assert!(Interarrival::poisson(bad).is_err());
            assert!(Interarrival::deterministic(bad).is_err());
            assert!(Interarrival::geometric(bad).is_err());
            assert!(Interarrival::negative_binomial(bad, 0.5).is_err());
        }
        assert!(Interarrival::geometric(0.5).is_err());
        for cv in [0.0, 0.1, -1.0, f64::NAN, f64::INFINITY, 1e12] {
            assert!(Interarrival::negative_binomial(100.0, cv).is_err(), "{cv}");
        }
        let error = Interarrival::negative_binomial(100.0, 0.05).unwrap_err().to_string();
        assert!(error.contains("0.100000"), "{error}");
    }

    #[test]
    fn another_mean_keeps_the_kind() {
        let pmf = Pmf::from_samples("test", [10.0, 20.0, 60.0]).unwrap();
        for a in [
            Interarrival::negative_binomial(40.0, 0.8).unwrap(),
            Interarrival::empirical(pmf).unwrap(),
            Interarrival::geometric(40.0).unwrap(),
        ] {
            let b = a.with_mean(80.0).unwrap();
            assert!((b.mean() - 80.0).abs() < 1e-9);
            assert!((b.cv() - a.cv()).abs() < 0.02, "{}", a.name());
        }
    }
}
