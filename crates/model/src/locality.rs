//! Locality in the model: what a packet costs falls with the spatial locality factor (SLF) of the traffic as
//! `α/SLF + β′` (§2.4 of the Reframer paper), because what is paid once a train is shared by its packets.

use serde::{Deserialize, Serialize};

use crate::dimension::solve_all;
use crate::error::{Error, not_negative, positive};
use crate::model::{Parameters, Solution};
use crate::service::ServiceTimes;

/// Costs of a packet, by locality.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// α: cost of a train, ns.
    pub per_train_ns: f64,
    /// β′: cost of each packet, ns.
    pub per_packet_ns: f64,
    /// Cost of a batch, ns.
    #[serde(default)]
    pub per_batch_ns: f64,
    /// Time of an empty poll, ns.
    pub empty_poll_ns: f64,
    /// Cost of holding a packet, ns; 0 where another machine holds.
    #[serde(default)]
    pub per_held_packet_ns: f64,
    /// Standard error of α, ns.
    #[serde(default)]
    pub per_train_error_ns: f64,
    /// Standard error of β′, ns.
    #[serde(default)]
    pub per_packet_error_ns: f64,
    /// Correlation of the two errors, −1 to 1: negative where both come from one line.
    #[serde(default)]
    pub error_correlation: f64,
}

impl Costs {
    /// Checks that all are possible.
    ///
    /// # Errors
    /// [`Error::Negative`], [`Error::NotPositive`], [`Error::OutOfRange`].
    pub fn check(&self) -> Result<(), Error> {
        for (what, value) in [
            ("the cost of a train, in ns,", self.per_train_ns),
            ("the cost of a packet, in ns,", self.per_packet_ns),
            ("the cost of a batch, in ns,", self.per_batch_ns),
            ("the cost of holding a packet, in ns,", self.per_held_packet_ns),
            ("the error of the cost of a train, in ns,", self.per_train_error_ns),
            ("the error of the cost of a packet, in ns,", self.per_packet_error_ns),
        ] {
            not_negative(what, value)?;
        }
        if !(-1.0..=1.0).contains(&self.error_correlation) {
            let (what, value) = ("the correlation of the errors", self.error_correlation);
            return Err(Error::OutOfRange { what, value, low: -1.0, high: 1.0 });
        }
        positive("the time of an empty poll, in ns,", self.empty_poll_ns)?;
        positive("the cost of a train and its packet, in ns,", self.per_train_ns + self.per_packet_ns)
            .map(drop)
    }

    /// Cost of a packet to the functions at a locality, ns.
    #[must_use]
    pub fn packet_ns(&self, slf: f64) -> f64 {
        self.per_train_ns / slf + self.per_packet_ns
    }

    /// The standard error of [`Costs::packet_ns`], ns.
    #[must_use]
    pub fn packet_error_ns(&self, slf: f64) -> f64 {
        let (a, b) = (self.per_train_error_ns / slf, self.per_packet_error_ns);
        (a * a + b * b + 2.0 * self.error_correlation * a * b).max(0.0).sqrt()
    }

    /// α and β′ from measured costs of a packet at several localities: a least-squares line over 1/SLF, with
    /// the errors that follow from what it leaves (none from two points).
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
        let left: f64 = measured.iter().map(|m| (m.1 - per_packet_ns - per_train_ns * x(m.0)).powi(2)).sum();
        let variance = if n > 2.0 { left / (n - 2.0) } else { 0.0 };
        Ok(Self {
            per_train_ns,
            per_packet_ns,
            per_batch_ns: 0.0,
            empty_poll_ns,
            per_held_packet_ns: 0.0,
            per_train_error_ns: (variance / sxx).sqrt(),
            per_packet_error_ns: (variance * (1.0 / n + mean_x * mean_x / sxx)).sqrt(),
            error_correlation: -mean_x / (sxx / n + mean_x * mean_x).sqrt(),
        })
    }
}

/// A point of a trace's gain curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gain {
    /// Longest hold of a packet, ns.
    pub hold_ns: f64,
    /// The locality after holding.
    pub slf: f64,
    /// The mean time that a packet is held, ns; at most `hold_ns`.
    pub mean_delay_ns: f64,
    /// The time that 995 of 1000 packets are held at most, ns; at most `hold_ns`.
    pub p995_delay_ns: f64,
}

/// The prediction for a hold time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Outlook {
    /// Longest hold of a packet, ns.
    pub hold_ns: f64,
    /// The locality after holding.
    pub slf: f64,
    /// Cost of a packet, holding included, ns.
    pub packet_ns: f64,
    /// Its standard error, as far as it follows from that of the costs, ns.
    pub packet_error_ns: f64,
    /// Cost of a full batch, ns.
    pub batch_ns: f64,
    /// The most packets a second that a core can serve.
    pub capacity_pps: f64,
    /// Packets that come while a full batch is served, ÷ its size: 1 is saturation.
    pub load: f64,
    /// Packets served in a second at the offered load.
    pub throughput_pps: f64,
    /// Share of packets lost.
    pub p_loss: f64,
    /// Mean packets that a poll takes.
    pub mean_batch: f64,
    /// Mean time in the queue and in service, ns.
    pub mean_queue_ns: f64,
    /// Mean time from arrival to the end of service, holding included, ns.
    pub mean_latency_ns: f64,
    /// A time that at most one packet in a hundred exceeds, holding included, ns: what 99.5 % of packets
    /// don't exceed in the queue and in the hold, added, however the two depend on each other.
    pub p99_latency_ns: f64,
}

/// The property by which the best hold time is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Aim {
    /// The most packets served at the offered load; of holds that serve as many, the shortest mean latency.
    #[default]
    Throughput,
    /// The shortest hold that comes within a hundredth of the most packets a second that a core can serve.
    Capacity,
    /// The shortest mean latency.
    Latency,
}

/// The aim, and a bound that must be kept.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Goal {
    /// The aim.
    pub aim: Aim,
    /// Longest [`Outlook::p99_latency_ns`]; none where it doesn't matter.
    pub p99_ns: Option<f64>,
}

/// Predicts every point of a gain curve with the service times replaced by what `costs` gives at its
/// locality; on so many threads.
///
/// The queue is the one before the hold: packets come to it as `base` says, whatever the hold, and each costs
/// what it does at the locality behind the hold. The time held is added to that in the queue.
///
/// # Errors
/// Those of [`Costs::check`] and of solving; [`Error::OutOfRange`] for an SLF below 1.
pub fn outlook(
    base: &Parameters,
    costs: &Costs,
    curve: &[Gain],
    threads: usize,
) -> Result<Vec<Outlook>, Error> {
    costs.check()?;
    let questions = curve.iter().map(|g| question(base, costs, g)).collect::<Result<Vec<_>, _>>()?;
    let answers = solve_all(&questions, threads);
    curve.iter().zip(answers).map(|(gain, s)| Ok(answer(base, costs, gain, &s?))).collect()
}

/// Cost of a packet at a point of the curve, holding included, ns.
fn held_packet_ns(costs: &Costs, gain: &Gain) -> f64 {
    costs.packet_ns(gain.slf) + if gain.hold_ns > 0.0 { costs.per_held_packet_ns } else { 0.0 }
}

fn question(base: &Parameters, costs: &Costs, gain: &Gain) -> Result<Parameters, Error> {
    if !(gain.slf.is_finite() && gain.slf >= 1.0) {
        let (value, high) = (gain.slf, f64::MAX);
        return Err(Error::OutOfRange { what: "the locality (SLF)", value, low: 1.0, high });
    }
    not_negative("the hold, in ns,", gain.hold_ns)?;
    not_negative("the mean delay of holding, in ns,", gain.mean_delay_ns)?;
    not_negative("the delay of holding, in ns,", gain.p995_delay_ns)?;
    let service = ServiceTimes::linear(costs.per_batch_ns, held_packet_ns(costs, gain), costs.empty_poll_ns)?;
    Ok(Parameters { service, ..base.clone() })
}

fn answer(base: &Parameters, costs: &Costs, gain: &Gain, s: &Solution) -> Outlook {
    let packet_ns = held_packet_ns(costs, gain);
    let batch_ns = costs.per_batch_ns + packet_ns * base.batch as f64;
    // Where packets are so rare that a slot is longer than any service, every time in slots is 0; but each
    // packet is served at least once.
    let alone_ns = costs.per_batch_ns + packet_ns;
    Outlook {
        hold_ns: gain.hold_ns,
        slf: gain.slf,
        packet_ns,
        packet_error_ns: costs.packet_error_ns(gain.slf),
        batch_ns,
        capacity_pps: 1e9 / batch_ns * base.batch as f64,
        load: s.load,
        throughput_pps: s.throughput_pps,
        p_loss: s.p_loss,
        mean_batch: s.mean_batch,
        mean_queue_ns: s.sojourn.mean_ns(),
        mean_latency_ns: s.sojourn.mean_ns() + gain.mean_delay_ns,
        p99_latency_ns: s.sojourn.quantile_ns(0.995).max(alone_ns) + gain.p995_delay_ns,
    }
}

/// The best of several in order of their holds, if any meets the goal. Differences below a thousandth are
/// none.
#[must_use]
pub fn recommend(outlooks: &[Outlook], goal: Goal) -> Option<&Outlook> {
    let within = |o: &&Outlook| goal.p99_ns.is_none_or(|most| o.p99_latency_ns <= most);
    let kept = || outlooks.iter().filter(within);
    match goal.aim {
        Aim::Throughput => {
            let most = kept().map(|o| o.throughput_pps).fold(0.0, f64::max);
            quickest(kept().filter(|o| o.throughput_pps >= most * 0.999))
        }
        Aim::Capacity => {
            let most = kept().map(|o| o.capacity_pps).fold(0.0, f64::max);
            kept().find(|o| o.capacity_pps >= most * 0.99)
        }
        Aim::Latency => quickest(kept()),
    }
}

/// The first with the shortest mean latency.
fn quickest<'a>(outlooks: impl Iterator<Item = &'a Outlook>) -> Option<&'a Outlook> {
    outlooks.fold(None, |best, o| match best {
        Some(b) if o.mean_latency_ns >= b.mean_latency_ns * 0.999 => Some(b),
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

    const COSTS: Costs = Costs {
        per_train_ns: 300.0,
        per_packet_ns: 50.0,
        per_batch_ns: 0.0,
        empty_poll_ns: 50.0,
        per_held_packet_ns: 0.0,
        per_train_error_ns: 0.0,
        per_packet_error_ns: 0.0,
        error_correlation: 0.0,
    };

    fn curve() -> Vec<Gain> {
        let gain =
            |(hold_ns, slf)| Gain { hold_ns, slf, mean_delay_ns: 0.7 * hold_ns, p995_delay_ns: hold_ns };
        [(0.0, 1.2), (16e3, 1.9), (64e3, 2.9), (128e3, 3.3)].map(gain).to_vec()
    }

    fn look(load_pps: f64, costs: &Costs) -> Vec<Outlook> {
        outlook(&base(load_pps), costs, &curve(), 2).unwrap()
    }

    fn best(outlooks: &[Outlook], aim: Aim, p99_ns: Option<f64>) -> Option<f64> {
        recommend(outlooks, Goal { aim, p99_ns }).map(|o| o.hold_ns)
    }

    #[test]
    fn costs_are_found_again_and_errors_are_those_of_a_line() {
        let measured: Vec<_> = [1.0, 2.0, 8.0].iter().map(|s| (*s, COSTS.packet_ns(*s))).collect();
        let costs = Costs::fit(&measured, 50.0).unwrap();
        assert!((costs.per_train_ns - 300.0).abs() < 1e-9 && (costs.per_packet_ns - 50.0).abs() < 1e-9);
        assert!(costs.per_train_error_ns < 1e-9 && costs.packet_error_ns(1.0) < 1e-9);
        // A line, moved by about ±1.
        let moved = [(1.0, 351.0), (2.0, 199.0), (4.0, 126.0), (8.0, 86.5)];
        let c = Costs::fit(&moved, 50.0).unwrap();
        let x = [1.0, 0.5, 0.25, 0.125];
        let mean = x.iter().sum::<f64>() / 4.0;
        let sxx: f64 = x.iter().map(|x| (x - mean).powi(2)).sum();
        let left: f64 =
            x.iter().zip(&moved).map(|(x, m)| (m.1 - c.per_packet_ns - c.per_train_ns * x).powi(2)).sum();
        assert!((c.per_train_error_ns - (left / 2.0 / sxx).sqrt()).abs() < 1e-9);
        // The error of the line at a place, from the textbook: s² (1/n + (x − mean)²/sxx).
        for slf in [1.0, 1.7, 30.0] {
            let want = (left / 2.0 * (0.25 + (1.0 / slf - mean).powi(2) / sxx)).sqrt();
            assert!((c.packet_error_ns(slf) - want).abs() < 1e-9, "{slf}");
        }
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
        let heavy = look(8e6, &COSTS);
        assert!(heavy.windows(2).all(|w| w[0].throughput_pps < w[1].throughput_pps));
        assert_eq!(best(&heavy, Aim::Throughput, None), Some(128e3));
        assert!(best(&heavy, Aim::Throughput, Some(130e3)).unwrap() <= 64e3);
        assert_eq!(best(&heavy, Aim::Throughput, Some(1.0)), None);
        let light = look(1e6, &COSTS);
        for aim in [Aim::Latency, Aim::Throughput] {
            assert_eq!(best(&light, aim, None), Some(0.0));
        }
        assert_eq!(best(&light, Aim::Capacity, None), Some(128e3));
        assert_eq!(best(&light, Aim::Capacity, Some(70e3)), Some(64e3));
    }

    #[test]
    fn what_holding_costs_is_counted() {
        let dear = Costs { per_held_packet_ns: 200.0, ..COSTS };
        let (free, paid) = (look(8e6, &COSTS), look(8e6, &dear));
        assert_eq!(free[0], paid[0]);
        assert!((paid[1].packet_ns - free[1].packet_ns - 200.0).abs() < 1e-9);
        assert_eq!(best(&paid, Aim::Capacity, None), Some(0.0));
    }

    /// Of packets that come once in ten seconds, in slots of a millisecond, no service takes a slot.
    #[test]
    fn no_packet_is_through_before_it_is_served() {
        let rare =
            Parameters { slot_ns: 1e6, interarrival: Interarrival::geometric(1e4).unwrap(), ..base(1e6) };
        for costs in [COSTS, Costs { per_batch_ns: 100.0, ..COSTS }] {
            for o in outlook(&rare, &costs, &curve(), 2).unwrap() {
                let least = costs.per_batch_ns + o.packet_ns + o.hold_ns;
                assert!(o.p99_latency_ns >= least, "{o:?}");
            }
        }
        assert_eq!(best(&outlook(&rare, &COSTS, &curve(), 2).unwrap(), Aim::Latency, Some(1.0)), None);
    }

    #[test]
    fn the_impossible_is_refused() {
        let wrong = Gain { hold_ns: 0.0, slf: 0.5, mean_delay_ns: 0.0, p995_delay_ns: 0.0 };
        assert!(outlook(&base(1e6), &COSTS, &[wrong], 1).is_err());
        for bad in [
            Costs { per_held_packet_ns: -1.0, ..COSTS },
            Costs { empty_poll_ns: 0.0, ..COSTS },
            Costs { per_train_error_ns: f64::NAN, ..COSTS },
            Costs { error_correlation: 1.5, ..COSTS },
            Costs { per_train_ns: 0.0, per_packet_ns: 0.0, ..COSTS },
        ] {
            assert!(outlook(&base(1e6), &bad, &curve(), 1).is_err(), "{bad:?}");
        }
    }
}
