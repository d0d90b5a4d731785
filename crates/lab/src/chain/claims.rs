//! What the measurements of the chain say about the paper, and about our own aims.

use serde_json::{Value, json};
use slipstream_report::plural;

use super::Arrangement;
use crate::{Claim, Findings};

/// Gains of one arrangement over the loads: the median, the least and the largest. Each is the ratio of the
/// medians of many turns.
struct Gains(Vec<f64>);

impl Gains {
    fn of(all: &[(usize, Arrangement, f64)], arrangement: Arrangement) -> Self {
        Self(all.iter().filter(|(_, w, _)| *w == arrangement).map(|g| g.2).collect())
    }

    /// Gains over those of another arrangement, load by load.
    fn over(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(a, b)| a / b).collect())
    }

    fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |i: usize| sorted.get(i).copied().unwrap_or(f64::NAN);
        let n = sorted.len();
        if n % 2 == 1 { at(n / 2) } else { (at((n / 2).wrapping_sub(1)) + at(n / 2)) / 2.0 }
    }

    fn least(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::min)
    }

    fn text(&self) -> String {
        let most = self.0.iter().copied().fold(f64::NAN, f64::max);
        let loads = plural(self.0.len() as u64, "load");
        format!("{:.2} ({:.2} to {most:.2} over {loads})", self.median(), self.least())
    }
}

/// The claims about gains over the baseline: with mixed rules (copies of campus traffic, arrangement, gain),
/// with `trivial` rules, and with mixed rules where functions stand `apart`, without flow contexts.
pub(super) fn claims(
    gains: &[(usize, Arrangement, f64)],
    trivial: &[(Arrangement, f64)],
    apart: &[(Arrangement, f64)],
    findings: &mut Findings,
) {
    let of = |arrangement| Gains::of(gains, arrangement);
    in_front(of, findings);
    in_the_chain(of, findings);
    with_trivial_rules(trivial, findings);
    without_contexts(apart, findings);
}

/// A gain that is to be as large as `least`, judged by the median over the loads.
fn gain(claim: &str, paper: impl Into<Value>, measured: &Gains, least: f64) -> Claim {
    let judged = Claim::at_least(claim, paper, measured.median(), least, 1.0);
    Claim {
        measured: json!(measured.text()),
        criterion: format!("median over the loads {}", judged.criterion),
        ..judged
    }
}

/// The reframer in front of the chain: what order, trains and batches are worth, one on top of the other.
fn in_front(of: impl Fn(Arrangement) -> Gains, findings: &mut Findings) {
    let order = of(Arrangement::FrontPackets(64_000));
    let trains = of(Arrangement::FrontTrains(64_000));
    let all = of(Arrangement::Front(64_000));
    findings.claims.extend([
        gain(
            "gain of the order alone: reframer in front (64 us, its cost not counted), per packet, polls of 32 as in the baseline",
            1.84,
            &order,
            1.84,
        ),
        gain("the same at 128 us", 2.0, &of(Arrangement::FrontPackets(128_000)), 2.0),
        gain(
            "gain of deciding once per train, over the row above at 64 us (not in the paper)",
            Value::Null,
            &trains.over(&order),
            1.0,
        ),
        gain("gain of batches of 256 over that (not in the paper)", Value::Null, &all.over(&trains), 1.0),
        gain("order, trains and batches together, 64 us (our own aim)", Value::Null, &all, 1.84),
        gain(
            "gain of batches that mix flows (as Batchy), per packet",
            1.04,
            &of(Arrangement::Batches),
            1.04,
        ),
    ]);
}

/// The reframer in the chain, its cost counted.
fn in_the_chain(of: impl Fn(Arrangement) -> Gains, findings: &mut Findings) {
    let inside = of(Arrangement::InChain(64_000));
    let large = of(Arrangement::InChainLarge(64_000)).over(&inside);
    let auto = of(Arrangement::InChainAuto(64_000));
    findings.claims.extend([
        gain("gain of a reframer in the chain, 64 us, its cost counted, per train", 1.6, &inside, 1.6),
        gain("the same at 16 us (our own aim: no loss)", Value::Null, &of(Arrangement::InChain(16_000)), 1.0),
        Claim::checked(
            "large flows only, against all flows, 64 us",
            "0.96 to 1.0",
            large.text(),
            "median over the loads at least 0.9",
            large.median() >= 0.9,
        ),
        stands_aside(
            "reframer in the chain whose hold sets itself (up to 64 us, at the price of what a packet that joins saves)",
            auto.text(),
            auto.least(),
        ),
    ]);
}

/// A claim about the least gain of a hold that sets itself.
fn stands_aside(claim: &str, measured: impl Into<Value>, least: f64) -> Claim {
    let criterion = "at least 0.98, for it stands aside where nothing is gained";
    Claim::checked(claim, Value::Null, measured, criterion, least >= 0.98)
}

fn with_trivial_rules(gains: &[(Arrangement, f64)], findings: &mut Findings) {
    let auto = gain_of(gains, Arrangement::InChainAuto(64_000));
    let holds_all = |arrangement: &Arrangement| {
        matches!(
            arrangement,
            Arrangement::FrontPackets(_)
                | Arrangement::FrontTrains(_)
                | Arrangement::Front(_)
                | Arrangement::InChain(_)
        )
    };
    let all = gains.iter().filter(|(arrangement, _)| holds_all(arrangement));
    let least = all.map(|(_, gain)| *gain).fold(f64::NAN, f64::min);
    findings.claims.extend([
        stands_aside("the same with trivial rules", auto, auto),
        Claim::checked(
            "trivial rules (10,000 hosts): least gain of any reframer (our own aim)",
            Value::Null,
            least,
            "at least 1.0",
            least >= 1.0,
        ),
    ]);
}

/// The functions of the paper look flows up by themselves: here the order saves what contexts save.
fn without_contexts(gains: &[(Arrangement, f64)], findings: &mut Findings) {
    for (claim, paper, arrangement) in [
        (
            "without flow contexts: the order alone, reframer in front (64 us, its cost not counted), per packet",
            1.84,
            Arrangement::FrontPackets(64_000),
        ),
        (
            "without flow contexts: a reframer in the chain, 64 us, its cost counted",
            1.6,
            Arrangement::InChain(64_000),
        ),
    ] {
        findings.claims.push(Claim::at_least(claim, paper, gain_of(gains, arrangement), paper, 1.0));
    }
}

/// The gain of an arrangement; no number where it was not measured.
fn gain_of(gains: &[(Arrangement, f64)], arrangement: Arrangement) -> f64 {
    gains.iter().find(|(known, _)| *known == arrangement).map_or(f64::NAN, |(_, gain)| *gain)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each hold is held against the paper's gain behind a reframer in front with this hold (§5.1, Fig. 12b).
    #[test]
    fn each_hold_is_held_against_its_own_gain() {
        let gains = [(64_000, 1.9), (128_000, 1.9)].map(|(h, gain)| (8, Arrangement::FrontPackets(h), gain));
        let mut findings = Findings::default();
        claims(&gains, &[], &[], &mut findings);
        let of = |text: &str| {
            let claim = findings.claims.iter().find(|c| c.claim.contains(text)).unwrap();
            (claim.paper.clone(), claim.holds)
        };
        assert_eq!(of("the order alone"), (json!(1.84), Some(true)));
        assert_eq!(of("the same at 128 us"), (json!(2.0), Some(false)));
    }
}
