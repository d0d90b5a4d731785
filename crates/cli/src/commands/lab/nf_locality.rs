//! What a packet costs network functions, by how many of its flow come back to back (Figs. 4, 5, 20).

use serde_json::{Map, Value, json};
use slipstream::functions::firewall::generate::Kind;
use slipstream_wire::FlowKey;

use super::bench::{self, Named, Per};
use super::{Bench, Chart, Claim, Findings, Lab};

pub(super) const LAB: Lab = Lab {
    name: "nf-locality",
    source: "Packet Order Matters! (NSDI'22), §2.4, Figs. 4, 5; appendix A.1, Fig. 20",
    what: "cost of NAT, firewall and a chain by packet locality, per packet and per train",
    run,
};

const SLFS: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// Flows, as in the paper's experiment.
const FLOWS: usize = 10_000;

/// What is measured.
struct Subject {
    name: &'static str,
    keys: Vec<FlowKey>,
    make: Box<dyn Fn(Per) -> anyhow::Result<Vec<Named>>>,
}

fn subjects() -> anyhow::Result<Vec<Subject>> {
    let (large, mixed) = (bench::rules(Kind::Mixed, 20_000), bench::rules(Kind::Mixed, 10_000));
    let (large_keys, mixed_keys) = (bench::keys(&large, FLOWS)?, bench::keys(&mixed, FLOWS)?);
    let cached = large.clone();
    Ok(vec![
        Subject { name: "nat", keys: mixed_keys.clone(), make: Box::new(|per| Ok(vec![bench::nat(per)?])) },
        Subject {
            name: "firewall",
            keys: large_keys.clone(),
            make: Box::new(move |per| Ok(vec![bench::firewall(&large, 0, per)])),
        },
        Subject {
            name: "firewall with cache",
            keys: large_keys,
            make: Box::new(move |per| Ok(vec![bench::firewall(&cached, 16_384, per)])),
        },
        Subject {
            name: "chain",
            keys: mixed_keys,
            make: Box::new(move |per| bench::chain(&mixed, 200, per)),
        },
    ])
}

/// Least squares of cost = α / SLF + β: α, β and the root mean square error.
fn fit(points: &[(f64, f64)]) -> (f64, f64, f64) {
    let n = points.len() as f64;
    let mean = |f: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(f).sum::<f64>() / n;
    let (mx, my) = (mean(&|p| 1.0 / p.0), mean(&|p| p.1));
    let sxy = mean(&|p| (1.0 / p.0 - mx) * (p.1 - my));
    let sxx = mean(&|p| (1.0 / p.0 - mx).powi(2));
    let alpha = sxy / sxx;
    let beta = my - alpha * mx;
    let error = mean(&|p| (alpha / p.0 + beta - p.1).powi(2)).sqrt();
    (alpha, beta, error)
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn run(lab: &Bench<'_>) -> anyhow::Result<Findings> {
    let (packets, turns) = if lab.quick { (60_000, 5) } else { (200_000, 15) };
    let mut findings = Findings::default();
    let subjects = subjects()?;
    let steps = (subjects.len() * SLFS.len()) as f64;
    let mut done = 0.0;
    for subject in &subjects {
        let mut costs: [Vec<(f64, f64)>; 2] = [Vec::new(), Vec::new()];
        for slf in SLFS {
            let traffic = bench::traffic(&subject.keys, slf, packets);
            for (per, costs) in Per::BOTH.into_iter().zip(&mut costs) {
                let mut pipeline = bench::pipeline((subject.make)(per)?)?;
                let (timing, reports) = traffic.rehearse(&mut pipeline, turns, 256)?;
                let dropped: u64 = reports.iter().map(|r| r.drops.total()).sum();
                costs.push((slf as f64, timing.least()));
                findings.rows.push(object(json!({
                    "function": subject.name,
                    "per": per.name(),
                    "slf": slf,
                    "ns_per_packet": timing.least(),
                    "ns_per_packet_median": timing.median(),
                    "dropped": dropped,
                })));
            }
            done += 1.0;
            lab.step(done / steps)?;
        }
        conclude(subject.name, &costs, &mut findings);
    }
    Ok(findings)
}

fn conclude(name: &str, [packet, train]: &[Vec<(f64, f64)>; 2], findings: &mut Findings) {
    for (per, points) in [("packet", packet), ("train", train)] {
        let (alpha, beta, error) = fit(points);
        findings.rows.push(object(json!({
            "fit": name,
            "per": per,
            "alpha_ns": alpha,
            "beta_ns": beta,
            "rms_error_ns": error,
        })));
    }
    let (alpha, beta, error) = fit(train);
    let ends = |points: &[(f64, f64)]| Some((points.first()?.1, points.last()?.1));
    let ratio = ends(train).map_or(0.0, |(first, last)| first / last);
    findings.claims.push(Claim {
        claim: format!("{name}: the cost a packet follows α / SLF + β (error within 10 % of the mean cost)"),
        paper: json!("fits (Fig. 4b)"),
        measured: json!(format!("{alpha:.0} / SLF + {beta:.0} ns, error {error:.1} ns")),
        holds: Some(error <= 0.1 * (train.iter().map(|p| p.1).sum::<f64>() / train.len() as f64)),
        comparable: true,
        why: None,
    });
    findings.claims.push(Claim {
        claim: format!("{name}: packets back to back are cheaper, SLF 1 over SLF 32"),
        paper: json!("falls with SLF (Fig. 4b; Fig. 20 for the chain)"),
        measured: json!(ratio),
        holds: Some(ratio > 1.2),
        comparable: true,
        why: None,
    });
    findings.charts.push(Chart {
        title: format!("{name}: cost a packet (Fig. 4b, Fig. 20)"),
        caption: "Least of several turns, in memory, one core; packets of 10,000 flows in random order."
            .into(),
        x_label: "SLF".into(),
        y_label: "ns a packet".into(),
        groups: SLFS.iter().map(ToString::to_string).collect(),
        series: [("per packet", packet), ("per train", train)]
            .into_iter()
            .map(|(label, points)| (label.to_owned(), points.iter().map(|p| Some(p.1)).collect()))
            .collect(),
    });
}

#[cfg(test)]
mod tests {
    use super::fit;

    #[test]
    fn a_line_is_found_again() {
        let points: Vec<(f64, f64)> = [1.0, 2.0, 4.0, 8.0].map(|s| (s, 90.0 / s + 12.0)).into();
        let (alpha, beta, error) = fit(&points);
        assert!((alpha - 90.0).abs() < 1e-9 && (beta - 12.0).abs() < 1e-9 && error < 1e-9);
    }
}
