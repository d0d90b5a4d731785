//! Service times of batches: the mean for every size, and the distribution around it.

use std::collections::BTreeMap;

use crate::error::{Error, not_negative};
use crate::pmf::{Family, MAX_SUPPORT, Pmf};

/// Mean service times by batch size, in ns.
///
/// ```
/// use slipstream_model::ServiceTimes;
///
/// // 600 ns a batch and 80 ns a packet; an empty poll takes 100 ns. Batches of 32 were measured.
/// let times = ServiceTimes::linear(600.0, 80.0, 100.0)?.with_measured([(32, 3000.0)])?;
/// assert_eq!([0, 1, 32, 33].map(|size| times.mean_ns(size)), [100.0, 680.0, 3000.0, 3240.0]);
/// # Ok::<(), slipstream_model::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceTimes {
    empty_poll_ns: f64,
    pieces: Vec<Piece>,
    measured: BTreeMap<usize, f64>,
}

/// `base_ns + per_packet_ns · size`, for batches of `from` packets and more, up to the next piece.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Piece {
    /// The smallest batch that it holds for, packets.
    pub from: usize,
    /// Time of a batch, ns; may be negative where the line doesn't hold for small batches.
    pub base_ns: f64,
    /// Time that each packet adds, ns.
    pub per_packet_ns: f64,
}

impl ServiceTimes {
    /// A batch of `i ≥ 1` packets takes `base_ns + per_packet_ns · i`, an empty poll `empty_poll_ns`.
    ///
    /// # Errors
    /// [`Error::Negative`] for a number that is negative or not finite.
    pub fn linear(base_ns: f64, per_packet_ns: f64, empty_poll_ns: f64) -> Result<Self, Error> {
        not_negative("the service time of a batch, in ns,", base_ns)?;
        not_negative("the service time a packet, in ns,", per_packet_ns)?;
        Self::piecewise(vec![Piece { from: 1, base_ns, per_packet_ns }], empty_poll_ns)
    }

    /// Lines that hold from a size on each, the first from 1.
    ///
    /// # Errors
    /// [`Error::Measurement`] where they are not in order or don't begin at 1; [`Error::Negative`] for an
    /// empty poll that takes less than nothing. Whether times are above zero is checked where they are used,
    /// as [`Error::ServiceTime`].
    pub fn piecewise(pieces: Vec<Piece>, empty_poll_ns: f64) -> Result<Self, Error> {
        not_negative("the time of an empty poll, in ns,", empty_poll_ns)?;
        if pieces.first().is_none_or(|p| p.from > 1) || !pieces.is_sorted_by(|a, b| a.from < b.from) {
            return Err(Error::Measurement(
                "the lines of a piecewise service time must be in order of size and begin at 1".to_owned(),
            ));
        }
        if let Some(p) = pieces.iter().find(|p| !p.base_ns.is_finite() || !p.per_packet_ns.is_finite()) {
            return Err(Error::Negative { what: "a piece of the service time, in ns,", value: p.base_ns });
        }
        Ok(Self { empty_poll_ns, pieces, measured: BTreeMap::new() })
    }

    /// With these means where sizes were measured, and the lines for all others (§V-A of the paper).
    ///
    /// # Errors
    /// [`Error::ServiceTime`] for a mean that is not above zero.
    pub fn with_measured(mut self, means: impl IntoIterator<Item = (usize, f64)>) -> Result<Self, Error> {
        for (size, value_ns) in means {
            if !(value_ns.is_finite() && value_ns > 0.0) {
                return Err(Error::ServiceTime { size, value_ns });
            }
            self.measured.insert(size, value_ns);
        }
        Ok(self)
    }

    /// The mean for a batch of `size` packets, ns.
    #[must_use]
    pub fn mean_ns(&self, size: usize) -> f64 {
        if let Some(mean) = self.measured.get(&size) {
            return *mean;
        }
        if size == 0 {
            return self.empty_poll_ns;
        }
        let piece = self.pieces.iter().rev().find(|p| p.from <= size);
        piece.map_or(f64::NAN, |p| p.base_ns + p.per_packet_ns * size as f64)
    }

    /// The lines.
    #[must_use]
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Every time multiplied by `factor`: another machine, or `1/cores`.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Self {
        let pieces = self.pieces.iter().map(|p| Piece {
            from: p.from,
            base_ns: p.base_ns * factor,
            per_packet_ns: p.per_packet_ns * factor,
        });
        Self {
            empty_poll_ns: self.empty_poll_ns * factor,
            pieces: pieces.collect(),
            measured: self.measured.iter().map(|(size, mean)| (*size, mean * factor)).collect(),
        }
    }
}

/// The distribution of a service time around its mean.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Variation {
    /// Poisson in slots, as in the paper.
    #[default]
    Poisson,
    /// None: the mean, or the two slots beside it.
    Deterministic,
    /// As observed, by size, as factors of the mean of that size; sizes that were not observed have those of
    /// the nearest one that was.
    Empirical(BTreeMap<usize, Vec<f64>>),
}

impl Variation {
    /// Its name on the command line.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Poisson => "poisson",
            Self::Deterministic => "deterministic",
            Self::Empirical(_) => "empirical",
        }
    }

    /// The distribution of the time of a batch of `size` packets with this mean, in slots.
    pub(crate) fn pmf(&self, size: usize, mean: f64) -> Result<Pmf, Error> {
        if mean > MAX_SUPPORT as f64 / 4.0 {
            return Err(Error::TooLarge {
                what: "the service time of a batch",
                needed: format!("{mean} slots"),
                limit: format!("{} slots", MAX_SUPPORT / 4),
                advice: "choose a longer slot",
            });
        }
        match self {
            Self::Poisson => Family::poisson(mean).pmf("service times"),
            Self::Deterministic => Ok(Pmf::nearly_constant(mean)),
            Self::Empirical(by_size) => {
                let below = by_size.range(..=size).next_back();
                let above = by_size.range(size..).next();
                let nearest = match (below, above) {
                    (Some(b), Some(a)) if a.0 - size < size - b.0 => Some(a),
                    (Some(b), _) => Some(b),
                    (None, a) => a,
                };
                let factors = nearest.map(|n| n.1.as_slice()).unwrap_or_default();
                let what = format!("service times of {size} packets");
                Pmf::from_samples(&what, factors.iter().map(|f| f * mean))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_means_come_before_lines() {
        let pieces = vec![
            Piece { from: 1, base_ns: 100.0, per_packet_ns: 10.0 },
            Piece { from: 32, base_ns: 50.0, per_packet_ns: 8.0 },
        ];
        let times = ServiceTimes::piecewise(pieces, 20.0).unwrap().with_measured([(5, 77.0)]).unwrap();
        assert_eq!([0, 1, 5, 31, 32].map(|i| times.mean_ns(i)), [20.0, 110.0, 77.0, 410.0, 306.0]);
        assert_eq!(times.scaled(2.0).mean_ns(5), 154.0);
    }

    #[test]
    fn bad_times_are_refused() {
        assert!(ServiceTimes::linear(-1.0, 1.0, 1.0).is_err());
        assert!(ServiceTimes::linear(1.0, f64::NAN, 1.0).is_err());
        assert!(ServiceTimes::linear(1.0, 1.0, f64::INFINITY).is_err());
        assert!(ServiceTimes::piecewise(vec![], 1.0).is_err());
        assert!(
            ServiceTimes::piecewise(vec![Piece { from: 2, base_ns: 1.0, per_packet_ns: 1.0 }], 1.0).is_err()
        );
        assert!(ServiceTimes::linear(1.0, 1.0, 1.0).unwrap().with_measured([(3, 0.0)]).is_err());
    }

    #[test]
    fn variation_keeps_the_mean() {
        let observed = Variation::Empirical([(4, vec![0.9, 1.1]), (8, vec![0.5, 1.0, 1.5])].into());
        for v in [Variation::Poisson, Variation::Deterministic, observed] {
            for size in [0, 1, 4, 5, 7, 100] {
                let pmf = v.pmf(size, 123.4).unwrap();
                assert!((pmf.mean() - 123.4).abs() < 1e-9, "{}", v.name());
            }
        }
        assert!(Variation::Empirical(BTreeMap::new()).pmf(1, 10.0).is_err());
    }
}
