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

pub(super) fn claims(
    gains: &[(usize, Arrangement, f64)],
    trivial: &[(Arrangement, f64)],
    apart: &[(Arrangement, f64)],
    findings: &mut Findings,
) {
    let of = |arrangement| Gains::of(gains, arrangement);
    let mut add = |claim: &str, paper: Value, measured: &Gains, least: f64| {
        let judged = Claim::at_least(claim, paper, measured.median(), least, 1.0);
        findings.claims.push(Claim {
            measured: json!(measured.text()),
            criterion: format!("median over the loads {}", judged.criterion),
            ..judged
        });
    };
    let order = of(Arrangement::FrontPackets(64_000));
    add(
        "gain of the order alone: reframer in front (64 us, its cost not counted), per packet, polls of 32 as in the baseline",
        json!(1.84),
        &order,
        1.84,
    );
    let order = of(Arrangement::FrontPackets(128_000));
    add("the same at 128 us", json!(2.0), &order, 2.0);
    let trains = of(Arrangement::FrontTrains(64_000));
    add(
        "gain of deciding once per train, over the row above at 64 us (not in the paper)",
        Value::Null,
        &trains.over(&of(Arrangement::FrontPackets(64_000))),
        1.0,
    );
    let front = of(Arrangement::Front(64_000));
    add("gain of batches of 256 over that (not in the paper)", Value::Null, &front.over(&trains), 1.0);
    add("order, trains and batches together, 64 us (our own aim)", Value::Null, &front, 1.84);
    add(
        "gain of batches that mix flows (as Batchy), per packet",
        json!(1.04),
        &of(Arrangement::Batches),
        1.04,
    );
    let inside = of(Arrangement::InChain(64_000));
    add("gain of a reframer in the chain, 64 us, its cost counted, per train", json!(1.6), &inside, 1.6);
    add("the same at 16 us (our own aim: no loss)", Value::Null, &of(Arrangement::InChain(16_000)), 1.0);
    let large = of(Arrangement::InChainLarge(64_000)).over(&inside);
    findings.claims.push(Claim::checked(
        "large flows only, against all flows, 64 us",
        "0.96 to 1.0",
        large.text(),
        "median over the loads at least 0.9",
        large.median() >= 0.9,
    ));
    let auto = of(Arrangement::InChainAuto(64_000));
    let least_of_auto =
        |gain: f64| (gain >= 0.98, "at least 0.98, for it stands aside where nothing is gained");
    let (met, criterion) = least_of_auto(auto.least());
    let claim = "reframer in the chain whose hold sets itself (up to 64 us, at the price of what a packet that joins saves)";
    findings.claims.push(Claim::checked(claim, Value::Null, auto.text(), criterion, met));
    let trivial_auto =
        trivial.iter().find(|t| t.0 == Arrangement::InChainAuto(64_000)).map_or(f64::NAN, |t| t.1);
    let (met, criterion) = least_of_auto(trivial_auto);
    findings.claims.push(Claim::checked(
        "the same with trivial rules",
        Value::Null,
        trivial_auto,
        criterion,
        met,
    ));
    let arrangements = |w: &Arrangement| {
        matches!(
            w,
            Arrangement::FrontPackets(_)
                | Arrangement::FrontTrains(_)
                | Arrangement::Front(_)
                | Arrangement::InChain(_)
        )
    };
    let least = trivial
        .iter()
        .filter(|(arrangement, _)| arrangements(arrangement))
        .map(|t| t.1)
        .fold(f64::NAN, f64::min);
    findings.claims.push(Claim::checked(
        "trivial rules (10,000 hosts): least gain of any reframer (our own aim)",
        Value::Null,
        least,
        "at least 1.0",
        least >= 1.0,
    ));
    // The functions of the paper look flows up by themselves: here the order saves what contexts save.
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
        let gain = apart.iter().find(|of| of.0 == arrangement).map_or(f64::NAN, |of| of.1);
        findings.claims.push(Claim::at_least(claim, json!(paper), gain, paper, 1.0));
    }
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
