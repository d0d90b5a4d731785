//! The savings of slicing (NFSlicer, Figs. 7 to 15): bytes across a boundary between processes, CPU time,
//! latency through it, and the model's curves, which are marked as such.

mod middlebox;
mod model;
mod steps;
mod studies;

use serde_json::{Value, json};

use super::{Bench, Claim, Findings, Lab};
use steps::Steps;

pub(super) const LAB: Lab = Lab {
    name: "slice",
    source: "NFSlicer: Data Movement Optimization for Shallow Network Functions, Figs. 7 to 15",
    what: "what slicing saves: bytes, CPU time and latency across shared memory, and a model of PCI Express",
    needs: None,
    run,
};

/// Sizes of frames on the wire, as in the paper.
const SIZES: [u32; 4] = [64, 512, 1024, 1518];
/// The axis of sizes.
const BYTES: &str = "bytes of a frame on the wire";

fn run(lab: &Bench<'_>) -> anyhow::Result<Findings> {
    let mut findings = Findings::default();
    model::add(&mut findings)?;
    let steps = Steps::new(lab, studies::steps(lab.quick));
    studies::cpu(&steps, &mut findings)?;
    studies::functions(&steps, &mut findings)?;
    studies::fractions(&steps, &mut findings)?;
    studies::rates(&steps, &mut findings)?;
    disturbance(&steps, &mut findings);
    not_shown(&mut findings);
    Ok(findings)
}

/// Reports the share of time in which other programs had the cores: latencies are of the rest.
fn disturbance(steps: &Steps<'_>, findings: &mut Findings) {
    let share = steps.disturbed();
    findings.row(json!({ "disturbed_share": share, "repeated": steps.repeated() }));
    findings.claims.push(told(
        "share of the milliseconds of experiments in which another program took a core".to_owned(),
        Value::Null,
        json!(format!("{:.1} %, {} experiments repeated", share * 100.0, steps.repeated())),
        if share > 0.5 {
            "the machine was not idle: latencies are of its few quiet milliseconds, and no more than a hint"
        } else {
            "latencies are of the other milliseconds"
        },
    ));
}

/// Lists the paper's figures that need its hardware, each with the paper's value.
fn not_shown(findings: &mut Findings) {
    for (claim, paper, why) in [
        (
            "a core of its own for the measuring client leaves the gap between 64 B and 1518 B (Fig. 11)",
            "unchanged",
            "there are two cores in all, and both are taken",
        ),
        (
            "last-level cache misses with 2 and 8 ways for the card (Fig. 12)",
            "below 1 % of accesses; 3 times as many at 1518 B as at 64 B with 2 ways",
            "no network card writes to this machine's cache, and it has no counters of misses",
        ),
        (
            "latency with 2 and 8 ways for the card, and without (Fig. 13)",
            "2 and 8 ways alike; without much longer for 1518 B",
            "DDIO takes an Intel server and its network card",
        ),
    ] {
        findings.claims.push(Claim::not_comparable(claim, paper, Value::Null, why));
    }
}

/// A figure that is shown, not held against the paper's, and the reason.
fn told(claim: String, paper: Value, measured: Value, why: &str) -> Claim {
    Claim::not_comparable(claim, paper, measured, why)
}
