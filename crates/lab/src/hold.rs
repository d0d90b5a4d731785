//! Is the hold that `recommend` would choose the best one? The chain of §5.1 with a reframer in it, predicted
//! from α, β′ and the gain curve of campus traffic, and run at every hold.
//!
//! Times are CPU times of one core over packets in memory, so that other programs take little part in them.
//! All are measured in turn, round after round, so that a slow stretch of the machine meets all alike.
//!
//! α and β′ are measured on other traffic than the one that is predicted: flows in random order, in runs
//! of mixed lengths. It comes in polls of as many packets as the campus traffic, for a poll has a cost,
//! too, which is part of β′ here. The reframer's own cost is measured in front of the chain, at one hold:
//! functions take longer behind it than for the same trains from elsewhere, which it doesn't show by itself.

use serde_json::{Value, json};
use slipstream::functions::firewall::Firewall;
use slipstream::functions::firewall::generate::Kind;
use slipstream::runtime::Traffic;
use slipstream_model::{
    Aim, Costs, Gain, Goal, Interarrival, Outlook, Parameters, ServiceTimes, Start, Variation, outlook,
    recommend,
};

use super::bench;
use super::chain::{self, Arrangement, Campus, Reframer};
use super::{Bench, Claim, Curve, Findings, Lab, Plot, Scale};

pub(super) const LAB: Lab = Lab {
    name: "hold",
    source: "Packet Order Matters! (NSDI'22), §2.4 (cost = α / SLF + β) applied to §5.1",
    what: "the hold that `recommend` chooses for campus traffic and a chain, beside the chain run at every hold",
    needs: None,
    run,
};

/// Mean lengths of runs at which costs are measured: those that holds give, and some more.
const SLFS: [f64; 6] = [1.0, 1.5, 2.0, 3.0, 4.0, 8.0];
/// Flows where costs are measured.
const FLOWS: usize = 10_000;
/// Holds to choose from, ns.
const HOLDS: [u64; 7] = [0, 8_000, 16_000, 32_000, 64_000, 128_000, 256_000];
/// The hold at which the reframer's own cost is measured, ns.
const HELD: u64 = 64_000;
/// Turns of a round.
const TURNS: usize = 2;
/// Copies of the campus traffic, for a load that is worth holding.
const COPIES: usize = 8;

/// The prediction and the measurement of a hold.
struct Trial {
    predicted: Outlook,
    measured_ns: f64,
}

impl Trial {
    fn hold_us(&self) -> f64 {
        self.predicted.hold_ns / 1e3
    }

    /// The error of the predicted cost of a packet, as a share of the measured one.
    fn off(&self) -> f64 {
        self.predicted.packet_ns / self.measured_ns - 1.0
    }
}

fn run(lab: &Bench<'_>) -> anyhow::Result<Findings> {
    let (packets, rounds) = if lab.quick { (60_000, 4) } else { (300_000, 8) };
    let wall = bench::rules(Kind::Mixed, 10_000);
    let pool = bench::keys(&wall, (packets / 2).max(FLOWS))?;
    let keys = pool.get(..FLOWS).unwrap_or(&pool);
    let campus = chain::campus(COPIES, packets, &pool)?;
    let learned = SLFS.map(|slf| bench::mixed_traffic(keys, slf, packets));
    let mut subjects: Vec<Subject<'_>> = learned.iter().map(|t| (Arrangement::Trains, t)).collect();
    let at = |hold| if hold == 0 { Arrangement::Trains } else { Arrangement::InChain(hold) };
    subjects.extend(HOLDS.map(|hold| (at(hold), &campus.traffic)));
    subjects.extend([at(HELD), Arrangement::FrontTrains(HELD)].map(|way| (way, &campus.traffic)));
    let measured = in_turn(lab, &subjects, &wall, rounds)?;
    let (points, measured) = measured.split_at(SLFS.len().min(measured.len()));
    let (tried, held) = measured.split_at(HOLDS.len().min(measured.len()));
    let per_held_packet_ns = match held {
        // What the reframe stage adds in front of the chain, beside the chain that gets the same trains.
        [(_, inside), (_, front)] => (inside - front).max(0.0),
        _ => 0.0,
    };
    let costs = Costs { per_held_packet_ns, ..Costs::fit(points, 100.0)? };
    let gains = HOLDS.iter().zip(tried).map(|(hold, (slf, _))| gain(&campus, *hold, *slf));
    let gains = gains.collect::<anyhow::Result<Vec<_>>>()?;
    let outlooks = outlook(&parameters(&campus, &costs)?, &costs, &gains, 2)?;
    let best = recommend(&outlooks, Goal { aim: Aim::Capacity, p99_ns: None }).map(|o| o.hold_ns);
    let tried = outlooks.into_iter().zip(tried);
    let tried: Vec<Trial> =
        tried.map(|(predicted, (_, measured_ns))| Trial { predicted, measured_ns: *measured_ns }).collect();
    Ok(findings(&costs, &tried, best))
}

/// The arrangement of reframer and chain, and the traffic that it gets.
type Subject<'a> = (Arrangement, &'a Traffic);

/// SLF and cost of a packet of each, in ns: the least turn of several rounds, in which all take turns.
fn in_turn(
    lab: &Bench<'_>,
    subjects: &[Subject<'_>],
    wall: &Firewall,
    rounds: usize,
) -> anyhow::Result<Vec<(f64, f64)>> {
    let mut all: Vec<(f64, f64)> = vec![(1.0, f64::INFINITY); subjects.len()];
    for round in 0..rounds {
        for ((way, traffic), least) in subjects.iter().zip(&mut all) {
            let cost = chain::measure(*way, traffic, chain::Chain::of(wall), TURNS)?;
            *least = (cost.slf, cost.timing.least().min(least.1));
        }
        lab.step((round + 1) as f64 / rounds as f64)?;
    }
    Ok(all)
}

/// The locality behind a hold, and the time that packets are held.
fn gain(campus: &Campus, hold: u64, slf: f64) -> anyhow::Result<Gain> {
    let held = match hold {
        0 => campus.traffic.clone(),
        hold => campus.traffic.reframed(&Reframer::All(hold).config()?)?,
    };
    let mut delays: Vec<u64> = held.times().map(|(left, came)| left.since(came)).collect();
    delays.sort_unstable();
    let at = |share: usize| delays.get(delays.len() * share / 1000).copied().unwrap_or(0) as f64;
    let sum: u64 = delays.iter().sum();
    Ok(Gain {
        hold_ns: hold as f64,
        slf,
        mean_delay_ns: sum as f64 / delays.len().max(1) as f64,
        p995_delay_ns: at(995),
    })
}

/// Campus traffic at its own rate, with a ring of typical size.
fn parameters(campus: &Campus, costs: &Costs) -> anyhow::Result<Parameters> {
    let mut times = campus.traffic.times().map(|t| t.0);
    let first = times.next().unwrap_or_default();
    let span = times.last().unwrap_or_default().since(first).max(1) as f64;
    Ok(Parameters {
        queue: 4096,
        batch: chain::BURST,
        slot_ns: 10.0,
        interarrival: Interarrival::geometric(span / campus.traffic.len().max(1) as f64 / 10.0)?,
        service: ServiceTimes::linear(0.0, costs.packet_ns(1.0), costs.empty_poll_ns)?,
        variation: Variation::Poisson,
        start: Start::Equilibrium,
    })
}

fn findings(costs: &Costs, tried: &[Trial], best: Option<f64>) -> Findings {
    let mut findings = Findings::default();
    rows(costs, tried, &mut findings);
    claims(tried, best, &mut findings);
    draw(tried, &mut findings);
    findings
}

fn rows(costs: &Costs, tried: &[Trial], findings: &mut Findings) {
    findings.row(json!({
        "per_train_ns": costs.per_train_ns, "per_train_error_ns": costs.per_train_error_ns,
        "per_packet_ns": costs.per_packet_ns, "per_packet_error_ns": costs.per_packet_error_ns,
        "per_held_packet_ns": costs.per_held_packet_ns,
    }));
    for t in tried {
        findings.row(json!({
            "hold_ns": t.predicted.hold_ns as u64, "slf": t.predicted.slf, "ns_per_packet": t.measured_ns,
            "ns_per_packet_predicted": t.predicted.packet_ns, "off": t.off(),
            "capacity_mpps": 1e3 / t.measured_ns, "capacity_mpps_predicted": t.predicted.capacity_pps / 1e6,
            "mean_latency_predicted_ns": t.predicted.mean_latency_ns,
        }));
    }
}

/// The claims are aims of our own: the paper recommends no hold.
fn claims(tried: &[Trial], best: Option<f64>, findings: &mut Findings) {
    let mut claim = |claim: &str, measured: Value, criterion: &str, holds: bool| {
        findings.claims.push(Claim::checked(claim, Value::Null, measured, criterion, holds));
    };
    let most = tried.iter().map(|t| t.off().abs()).fold(0.0, f64::max);
    claim(
        "cost of a packet at every hold, predicted from α, β′, SLF and the reframer's cost: off by a share of",
        json!(most),
        "at most 0.2",
        most <= 0.2,
    );
    let least = tried.iter().map(|t| t.measured_ns).fold(f64::INFINITY, f64::min);
    if let Some(chosen) = tried.iter().find(|t| Some(t.predicted.hold_ns) == best) {
        let lost = chosen.measured_ns / least - 1.0;
        let text = format!("{:.0} us, {:.1} % above the least cost measured", chosen.hold_us(), lost * 100.0);
        claim(
            "what the recommended hold costs beside the best one",
            json!(text),
            "at most 5 % more",
            lost <= 0.05,
        );
    }
    // Where no hold is recommended it is still told what one would bring.
    let held = tried.iter().skip(1).min_by(|a, b| a.predicted.packet_ns.total_cmp(&b.predicted.packet_ns));
    if let Some((none, held)) = tried.first().zip(held) {
        let predicted = none.predicted.packet_ns / held.predicted.packet_ns;
        let measured = none.measured_ns / held.measured_ns;
        let text = format!("{:.0} us: {measured:.2} measured, {predicted:.2} predicted", held.hold_us());
        claim(
            "gain over none of the hold that is predicted to cost least",
            json!(text),
            "predicted within 20 % of measured",
            (predicted / measured - 1.0).abs() <= 0.2,
        );
    }
}

fn draw(tried: &[Trial], findings: &mut Findings) {
    let curve =
        |name: &str, of: fn(&Trial) -> f64| Curve::ours(name, tried.iter().map(|t| (t.hold_us(), of(t))));
    findings.draw(Plot {
        title: "Cost a packet by hold".into(),
        caption:
            "Predicted from α, β′, the reframer's own cost and the locality behind the hold; measured with the \
             reframer in the chain."
                .into(),
        x: Scale::linear("hold, µs"),
        y: Scale::linear("ns a packet"),
        curves: vec![curve("measured", |t| t.measured_ns), curve("predicted", |t| t.predicted.packet_ns)],
    });
}
