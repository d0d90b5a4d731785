//! `slipstream model`: the queue of a processor that works in batches.

mod compare;
mod dimension;
mod fit;
mod inputs;
mod solve;
mod sweep;

use slipstream_report::per_second;

pub(super) use inputs::warn_of_coarse;

use super::{Outcome, finish, finish_beside};
use crate::cli::model::ModelVerb;

pub(super) fn run(verb: &ModelVerb) -> anyhow::Result<Outcome> {
    match verb {
        ModelVerb::Solve(args) => solve::run(args),
        ModelVerb::Fit(args) => fit::run(args),
        ModelVerb::Compare(args) => compare::run(args),
        ModelVerb::Dimension(args) => dimension::run(args),
        ModelVerb::Sweep(args) => sweep::run(args),
    }
}

/// A share that may be very small, for people.
pub(super) fn loss(p: f64) -> String {
    match p {
        0.0 => "0".to_owned(),
        p if p >= 0.001 => format!("{:.3} %", p * 100.0),
        p => format!("{p:.2e}"),
    }
}

/// Packets a second, for people.
fn mpps(pps: f64) -> String {
    // Ten-thousandths of a million tell little of less than this.
    if pps > 0.0 && pps < 1e5 { per_second(pps) } else { format!("{:.4} Mpps", pps / 1e6) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_rates_are_told_by_their_own_unit() {
        let told = [0.0, 0.001, 99_900.0, 1e5, 11.97e6].map(mpps);
        assert_eq!(told, ["0.0000 Mpps", "0.00100 pps", "99.90 kpps", "0.1000 Mpps", "11.9700 Mpps"]);
    }
}
