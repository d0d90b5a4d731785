//! Locality in the model: what a packet costs falls with the spatial locality factor (SLF) of the traffic as `α/SLF + β′`
//! (§2.4 of the Reframer paper), because what is paid once a train is shared by its packets.

use serde::{Deserialize, Serialize};

use crate::error::{Error, not_negative, positive};
use crate::model::{Model, Parameters};
use crate::service::ServiceTimes;

/// What a packet costs, by locality.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// α: what is paid once a train, ns.
    pub per_train_ns: f64,
    /// β′: what every packet costs, ns.
    pub per_packet_ns: f64,
    /// What a batch costs, ns.
    #[serde(default)]
    pub per_batch_ns: f64,
    /// What a poll that finds nothing takes, ns.
    pub empty_poll_ns: f64,
}

impl Costs {
    /// Checks that all are possible.
    ///
    /// # Errors
    /// [`Error::Negative`] and [`Error::NotPositive`].
    pub fn check(&self) -> Result<(), Error> {
        not_negative("the cost of a train, in ns,", self.per_train_ns)?;
        not_negative("the cost of a packet, in ns,", self.per_packet_ns)?;
        not_negative("the cost of a batch, in ns,", self.per_batch_ns)?;
        positive("the time of an empty poll, in ns,", self.empty_poll_ns)?;
        positive("the cost of a train and its packet, in ns,", self.per_train_ns + self.per_packet_ns)
            .map(drop)
    }

    /// What a packet costs at a locality, ns.
    #[must_use]
    pub fn packet_ns(&self, slf: f64) -> f64 {
        self.per_train_ns / slf + self.per_packet_ns
    }

    /// α and β′ from measured costs of a packet at several localities: a least-squares line over 1/SLF.
    ///
    /// # Errors
    /// [`Error::Measurement`] for less than two localities, or where the line is one that costs can't have.
    pub fn fit(measured: &[(f64, f64)], empty_poll_ns: f64) -> Result<Self, Error> {
        let n = measured.len() as f64;
        let x = |slf: f64| slf.recip();
        let mean_x = measured.iter().map(|m| x(m.0)).sum::<f64>() / n;
        let mean_y = measured.iter().map(|m| m.1).sum::<f64>() / n;
        let sxx: f64 = measured.iter().map(|m| (x(m.0) - mean_x).powi(2)).sum();
        let sxy: f64 = measured.iter().map(|m| (x(m.0) - mean_x) * (m.1 - mean_y)).sum();
        if measured.iter().any(|m| m.0.is_nan() || m.0 < 1.0 || !m.1.is_finite())
            || sxx.is_nan()
            || sxx <= 1e-18
        {
            return Err(Error::Measurement(
                "α and β′ need finite costs at two localities (SLF of at least 1) or more".to_owned(),
            ));
        }
        let per_train_ns = sxy / sxx;
        let per_packet_ns = mean_y - per_train_ns * mean_x;
        if per_train_ns < 0.0 || per_packet_ns < 0.0 {
            return Err(Error::Measurement(format!(
                "the line through the costs has α = {per_train_ns:.1} ns and β′ = {per_packet_ns:.1} ns, and neither can be negative"
            )));
        }
        Ok(Self { per_train_ns, per_packet_ns, per_batch_ns: 0.0, empty_poll_ns })
    }
}

/// A point of a trace's gain curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gain {
    /// How long packets are held at most, ns.
    pub hold_ns: f64,
    /// The locality after holding.
    pub slf: f64,
    /// The mean time that a packet is held, ns; at most `hold_ns`.
    pub mean_delay_ns: f64,
}

/// What a hold time would bring.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Outlook {
    /// How long packets are held at most, ns.
    pub hold_ns: f64,
    /// The locality after holding.
    pub slf: f64,
    /// What a packet costs then, ns.
    pub packet_ns: f64,
    /// The most packets a second that a core can serve.
    pub capacity_pps: f64,
    /// Packets served in a second at the offered load.
    pub throughput_pps: f64,
    /// Share of packets lost.
    pub p_loss: f64,
    /// Mean time from arrival to the end of service, holding included, ns.
    pub mean_latency_ns: f64,
    /// A time that at most one packet in a hundred exceeds, holding included, ns: the p99 of the queue after the whole hold.
    pub p99_latency_ns: f64,
}

/// What to look for in a hold time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// The most packets a second, with the shortest hold among equals.
    Throughput,
    /// The shortest mean latency.
    Latency,
    /// The most throughput with a p99 of the latency of at most so many ns.
    ThroughputWithin(f64),
}

/// Predicts every point of a gain curve with the service times replaced by what `costs` gives at its locality.
///
/// # Errors
/// Those of [`Costs::check`] and of solving; [`Error::OutOfRange`] for an SLF below 1.
pub fn outlook(base: &Parameters, costs: &Costs, curve: &[Gain]) -> Result<Vec<Outlook>, Error> {
    costs.check()?;
    let one = |gain: &Gain| {
        if !(gain.slf.is_finite() && gain.slf >= 1.0) {
            let (value, high) = (gain.slf, f64::MAX);
            return Err(Error::OutOfRange { what: "the locality (SLF)", value, low: 1.0, high });
        }
        not_negative("the hold, in ns,", gain.hold_ns)?;
        not_negative("the mean delay of holding, in ns,", gain.mean_delay_ns)?;
        let packet_ns = costs.packet_ns(gain.slf);
        let service = ServiceTimes::linear(costs.per_batch_ns, packet_ns, costs.empty_poll_ns)?;
        let s = Model::new(Parameters { service, ..base.clone() })?.solve()?;
        Ok(Outlook {
            hold_ns: gain.hold_ns,
            slf: gain.slf,
            packet_ns,
            capacity_pps: 1e9 / (packet_ns + costs.per_batch_ns / base.batch as f64),
            throughput_pps: s.throughput_pps,
            p_loss: s.p_loss,
            mean_latency_ns: s.sojourn.mean_ns() + gain.mean_delay_ns,
            p99_latency_ns: s.sojourn.quantile_ns(0.99) + gain.hold_ns,
        })
    };
    curve.iter().map(one).collect()
}

/// The best of several, if any meets the goal.
#[must_use]
pub fn recommend(outlooks: &[Outlook], goal: Goal) -> Option<&Outlook> {
    // Differences below a thousandth are none.
    let better = |a: &Outlook, b: &Outlook| match goal {
        Goal::Latency => a.mean_latency_ns < b.mean_latency_ns * 0.999,
        _ => {
            a.throughput_pps > b.throughput_pps * 1.001
                || a.throughput_pps > b.throughput_pps * 0.999 && a.mean_latency_ns < b.mean_latency_ns
        }
    };
    let within = |o: &&Outlook| match goal {
        Goal::ThroughputWithin(most) => o.p99_latency_ns <= most,
        _ => true,
    };
    outlooks.iter().filter(within).fold(None, |best, o| match best {
        Some(b) if !better(o, b) => Some(b),
        _ => Some(o),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Interarrival, Start, Variation};

    fn base(load_pps: f64) -> Parameters {
        Parameters {
            queue: 256,
            batch: 32,
            slot_ns: 10.0,
            interarrival: Interarrival::geometric(1e8 / load_pps).unwrap(),
            service: ServiceTimes::linear(1.0, 1.0, 1.0).unwrap(),
            variation: Variation::Poisson,
            start: Start::Equilibrium,
        }
    }

    const COSTS: Costs =
        Costs { per_train_ns: 300.0, per_packet_ns: 50.0, per_batch_ns: 0.0, empty_poll_ns: 50.0 };

    fn curve() -> Vec<Gain> {
        [(0.0, 1.2), (16e3, 1.9), (64e3, 2.9), (128e3, 3.3)]
            .map(|(hold_ns, slf)| Gain { hold_ns, slf, mean_delay_ns: 0.7 * hold_ns })
            .to_vec()
    }

    #[test]
    fn costs_are_found_again() {
        let measured: Vec<_> = [1.0, 2.0, 8.0].iter().map(|s| (*s, COSTS.packet_ns(*s))).collect();
        let costs = Costs::fit(&measured, 50.0).unwrap();
        assert!((costs.per_train_ns - 300.0).abs() < 1e-9 && (costs.per_packet_ns - 50.0).abs() < 1e-9);
        for bad in [
            vec![],
            vec![(1.0, 5.0)],
            vec![(2.0, 5.0), (2.0, 6.0)],
            vec![(0.5, 1.0), (2.0, 1.0)],
            vec![(1.0, 1.0), (2.0, 9.0)],
        ] {
            assert!(Costs::fit(&bad, 50.0).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn overload_asks_for_holding_and_low_load_for_none() {
        let heavy = outlook(&base(8e6), &COSTS, &curve()).unwrap();
        assert!(heavy.windows(2).all(|w| w[0].throughput_pps < w[1].throughput_pps));
        assert_eq!(recommend(&heavy, Goal::Throughput).unwrap().hold_ns, 128e3);
        assert!(recommend(&heavy, Goal::ThroughputWithin(100e3)).unwrap().hold_ns <= 64e3);
        assert!(recommend(&heavy, Goal::ThroughputWithin(1.0)).is_none());
        let light = outlook(&base(1e6), &COSTS, &curve()).unwrap();
        assert_eq!(recommend(&light, Goal::Latency).unwrap().hold_ns, 0.0);
        assert_eq!(recommend(&light, Goal::Throughput).unwrap().hold_ns, 0.0);
        let wrong = Gain { hold_ns: 0.0, slf: 0.5, mean_delay_ns: 0.0 };
        assert!(outlook(&base(1e6), &COSTS, &[wrong]).is_err());
    }
}
