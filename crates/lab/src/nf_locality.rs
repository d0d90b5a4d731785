//! The cost of a packet to network functions, by spatial locality (Figs. 4, 5, 20).

use std::process::Command;

use anyhow::Context;
use serde_json::{Map, Value, json};
use slipstream::functions::firewall::generate::Kind;
use slipstream::runtime::{FlowContextSettings, Pipeline, StageReport, Timing};
use slipstream_wire::FlowKey;

use super::bench::{self, NamedStage, Per};
use super::{Bench, Claim, Curve, Findings, Lab, Paper, Plot, Scale};

pub(super) const LAB: Lab = Lab {
    name: "nf-locality",
    source: "Packet Order Matters! (NSDI'22), §2.4, Figs. 4, 5; appendix A.1, Fig. 20",
    what: "cost of NAT, firewall and a chain by packet locality, per packet and per train",
    needs: None,
    run,
};

const SLFS: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// Flows, as in the paper's experiment.
const FLOWS: usize = 10_000;

/// The functions of a measurement, with the flows that they let pass.
struct Subject {
    name: &'static str,
    keys: Vec<FlowKey>,
    make: Box<dyn Fn(Per) -> anyhow::Result<Vec<NamedStage>>>,
    /// Settings of its flow contexts.
    contexts: FlowContextSettings,
}

impl Subject {
    fn pipeline(&self, per: Per) -> anyhow::Result<Pipeline> {
        Ok(bench::pipeline((self.make)(per)?)?.with_contexts(&self.contexts))
    }
}

const SUBJECTS: [&str; 5] = ["nat", "firewall", "firewall with cache", "chain", "chain without contexts"];

/// The functions of this name, one of [`SUBJECTS`], and so many flows that they let pass.
fn subject(name: &str, flows: usize) -> anyhow::Result<Subject> {
    let name = SUBJECTS.into_iter().find(|known| *known == name).context("no such subject")?;
    let large = name.starts_with("firewall");
    let wall = bench::rules(Kind::Mixed, if large { 20_000 } else { 10_000 });
    let keys = bench::keys(&wall, flows)?;
    let room = FlowContextSettings::default();
    let contexts = match name {
        "nat" | "chain" => FlowContextSettings { flows: room.flows.max(flows as u32), ..room },
        _ => FlowContextSettings::OFF,
    };
    let make: Box<dyn Fn(Per) -> anyhow::Result<Vec<NamedStage>>> = match name {
        "nat" => Box::new(|per| Ok(vec![bench::nat(per)?])),
        "firewall" => Box::new(move |per| Ok(vec![bench::firewall(&wall, 0, per)])),
        "firewall with cache" => Box::new(move |per| Ok(vec![bench::firewall(&wall, 16_384, per)])),
        _ => Box::new(move |per| bench::chain(&wall, 200, per)),
    };
    Ok(Subject { name, keys, make, contexts })
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

fn row(subject: &Subject, per: Per, slf: usize, timing: &Timing, reports: &[StageReport]) -> Value {
    let dropped: u64 = reports.iter().map(|r| r.drops.total()).sum();
    json!({
        "function": subject.name,
        "per": per.name(),
        "slf": slf,
        "ns_per_packet": timing.least(),
        "ns_per_packet_median": timing.median(),
        "dropped": dropped,
    })
}

fn run(lab: &Bench<'_>) -> anyhow::Result<Findings> {
    if let Ok(point) = std::env::var(bench::POINT) {
        return run_point(&point);
    }
    let (packets, turns) = if lab.quick { (60_000, 5) } else { (PACKETS, 15) };
    let mut findings = Findings::default();
    let subjects: Vec<Subject> =
        SUBJECTS.iter().map(|name| subject(name, FLOWS)).collect::<anyhow::Result<_>>()?;
    let steps = (subjects.len() * SLFS.len()) as f64;
    let mut done = 0.0;
    let mut per_packet = Vec::new();
    for subject in &subjects {
        let mut costs: [Vec<(f64, f64)>; 2] = [Vec::new(), Vec::new()];
        for slf in SLFS {
            let traffic = bench::traffic(&subject.keys, slf, packets);
            for (per, costs) in Per::BOTH.into_iter().zip(&mut costs) {
                let mut pipeline = subject.pipeline(per)?;
                let (timing, reports) = traffic.rehearse(&mut pipeline, turns, 256)?;
                costs.push((slf as f64, timing.least()));
                findings.row(row(subject, per, slf, &timing, &reports));
            }
            done += 1.0;
            lab.step(done / steps)?;
        }
        conclude(subject.name, &costs, &mut findings);
        let [packet, _] = costs;
        per_packet.push((subject.name, packet));
    }
    draw_costs(&per_packet, &mut findings)?;
    if !lab.quick {
        count_all(lab, &subjects, &mut findings)?;
        draw_misses(&mut findings)?;
    }
    Ok(findings)
}

/// The function whose instructions and misses count.
const COUNTED: &str = "*rehearsal*Bench*pass*";
/// Packets of a turn.
const PACKETS: usize = 200_000;

/// Runs one point, `SUBJECT,PER,SLF`, `SUBJECT,PER,SLF,TURNS` or `SUBJECT,PER,SLF,TURNS,FLOWS`: for one turn
/// of few packets, to be counted (also where the turns are 0), or for so many turns of as many packets as the
/// lab itself has, or as there are flows, which are timed.
fn run_point(point: &str) -> anyhow::Result<Findings> {
    let mut parts = point.split(',');
    let (name, per, slf) = (parts.next(), parts.next(), parts.next());
    let per = if per == Some("packet") { Per::Packet } else { Per::Train };
    let slf: usize = slf.and_then(|s| s.parse().ok()).context("no SLF")?;
    let turns: usize = parts.next().map_or(Ok(0), str::parse).context("no number of turns")?;
    let flows: usize = parts.next().map_or(Ok(FLOWS), str::parse).context("no number of flows")?;
    let subject = &subject(name.unwrap_or_default(), flows)?;
    let packets = if turns > 0 { PACKETS.max(flows * slf) } else { bench::COUNTED_PACKETS };
    let traffic = bench::traffic(&subject.keys, slf, packets);
    let (timing, reports) = traffic.rehearse(&mut subject.pipeline(per)?, turns.max(1), 256)?;
    let mut findings = Findings::default();
    if turns > 0 {
        findings.row(row(subject, per, slf, &timing, &reports));
    }
    Ok(findings)
}

/// Instructions and simulated cache misses a packet (Figs. 5, 20b to d), where Callgrind is installed.
fn count_all(lab: &Bench<'_>, subjects: &[Subject], findings: &mut Findings) -> anyhow::Result<()> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        tracing::warn!("valgrind is not installed: instructions and cache misses are not counted");
        return Ok(());
    }
    for subject in subjects {
        for per in Per::BOTH {
            for slf in [1, 16] {
                let counts = count(lab, &format!("{},{},{slf}", subject.name, per.name()))?;
                let a_packet = |n: u64| n as f64 / bench::COUNTED_PACKETS as f64;
                findings.row(json!({
                    "counted": subject.name,
                    "per": per.name(),
                    "slf": slf,
                    "instructions": a_packet(counts.instructions),
                    "l1_misses": a_packet(counts.l1_misses),
                    "ll_misses": a_packet(counts.ll_misses),
                }));
                lab.step(1.0)?;
            }
        }
    }
    Ok(())
}

/// Counts of Callgrind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    instructions: u64,
    l1_misses: u64,
    ll_misses: u64,
}

fn count(lab: &Bench<'_>, point: &str) -> anyhow::Result<Counts> {
    let file = tempfile::NamedTempFile::new()?;
    let out = Command::new("valgrind")
        .args([
            "--tool=callgrind",
            "--cache-sim=yes",
            "--I1=32768,8,64",
            "--D1=32768,8,64",
            "--LL=524288,8,64",
        ])
        .arg(format!("--toggle-collect={COUNTED}"))
        .arg(format!("--callgrind-out-file={}", file.path().display()))
        .arg(&lab.program)
        .args(["lab", LAB.name, "--quick"])
        .env(bench::POINT, point)
        .output()
        .context("valgrind can't be run")?;
    anyhow::ensure!(out.status.success(), "valgrind: {}", String::from_utf8_lossy(&out.stderr));
    totals(&std::fs::read_to_string(file.path())?).context("Callgrind's file has no totals")
}

/// The totals of a Callgrind file, its events named in a line before.
fn totals(text: &str) -> Option<Counts> {
    let line = |key: &str| text.lines().find_map(|l| l.strip_prefix(key));
    let names: Vec<&str> = line("events:")?.split_whitespace().collect();
    let values: Vec<u64> = line("totals:")
        .or(line("summary:"))?
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()
        .ok()?;
    let sum = |wanted: &[&str]| {
        let of = |(name, value): (&&str, &u64)| if wanted.contains(name) { *value } else { 0 };
        names.iter().zip(&values).map(of).sum()
    };
    Some(Counts {
        instructions: sum(&["Ir"]),
        l1_misses: sum(&["D1mr", "D1mw", "I1mr"]),
        ll_misses: sum(&["DLmr", "DLmw", "ILmr"]),
    })
}

/// Cycles a packet at SLF 1 over those at SLF 32: the points of Fig. 4b that the authors published.
fn paper_ratio(name: &str) -> Option<f64> {
    match name {
        "nat" => Some(1427.41 / 1113.78),
        "firewall" => Some(1273.7 / 788.0),
        "firewall with cache" => Some(1430.86 / 702.368),
        _ => None,
    }
}

fn conclude(name: &str, [packet, train]: &[Vec<(f64, f64)>; 2], findings: &mut Findings) {
    for (per, points) in [("packet", packet), ("train", train)] {
        let (alpha, beta, error) = fit(points);
        findings.row(json!({
            "fit": name,
            "per": per,
            "alpha_ns": alpha,
            "beta_ns": beta,
            "rms_error_ns": error,
        }));
    }
    for (per, points) in [("packet", packet), ("train", train)] {
        let (alpha, beta, error) = fit(points);
        let mean = points.iter().map(|p| p.1).sum::<f64>() / points.len() as f64;
        // Fig. 4b shows single functions, which decide for every packet.
        let paper = (per == "packet" && paper_ratio(name).is_some()).then_some("fits (Fig. 4b)");
        findings.claims.push(Claim::checked(
            format!("{name}, per {per}: the cost a packet follows α / SLF + β"),
            paper.map_or(Value::Null, Value::from),
            format!(
                "{alpha:.0} / SLF + {beta:.0} ns, α's share {:.2}, error {error:.1} ns",
                alpha / (alpha + beta)
            ),
            "root mean square error at most 10 % of the mean cost",
            error <= 0.1 * mean,
        ));
    }
    let ratio = |points: &[(f64, f64)]| match (points.first(), points.last()) {
        (Some(first), Some(last)) => first.1 / last.1,
        _ => f64::NAN,
    };
    let text = format!("{name}, per packet: SLF 1 costs so many times what SLF 32 costs");
    findings.claims.push(match paper_ratio(name) {
        Some(paper) => Claim::number(format!("{text} (Fig. 4b)"), paper, ratio(packet), 0.2, 1.0),
        None => Claim::not_comparable(
            text,
            "432 us over 124 us of sojourn (Fig. 20a)",
            ratio(packet),
            "the paper's figure is a time in the system under load, and its functions decide otherwise",
        ),
    });
    findings.claims.push(Claim::at_least(
        format!("{name}, per train: SLF 1 costs so many times what SLF 32 costs (our own way)"),
        Value::Null,
        ratio(train),
        ratio(packet),
        1.0,
    ));
    findings.draw(Plot {
        title: format!("{name}: cost a packet"),
        caption: "Least of several turns, in memory, one core; packets of 10,000 flows in random order."
            .into(),
        x: Scale::log("SLF", 2.0),
        y: Scale::linear("ns a packet"),
        curves: vec![
            Curve::ours("per packet", packet.iter().copied()),
            Curve::ours("per train", train.iter().copied()),
        ],
    });
}

/// Fig. 4b: cycles a packet by locality, over those at SLF 1; ours are ns of another processor.
fn draw_costs(costs: &[(&str, Vec<(f64, f64)>)], findings: &mut Findings) -> anyhow::Result<()> {
    let mut curves = Vec::new();
    for (name, points) in costs.iter().filter(|(name, _)| paper_ratio(name).is_some()) {
        curves.push(Curve::ours(*name, points.iter().copied()).over_first());
        curves.push(Curve::paper(*name, Paper::Reframer.series("4b", name)?).over_first());
    }
    findings.draw(Plot {
        title: "Fig. 4b: cost of a packet by locality, over that at SLF 1".into(),
        caption: format!(
            "Functions that decide for every packet. Paper: cycles, mean, least and largest of several runs; ours: \
             least time. {}",
            Paper::Reframer.caption()
        ),
        x: Scale::linear("SLF"),
        y: Scale::linear("over SLF 1"),
        curves,
    });
    Ok(())
}

/// Fig. 20b: misses of the first-level cache in the chain, of Callgrind's cache and of the paper's.
fn draw_misses(findings: &mut Findings) -> anyhow::Result<()> {
    let of = |per: Per| {
        let wanted = move |row: &&Map<String, Value>| {
            row.get("counted") == Some(&json!("chain")) && row.get("per") == Some(&json!(per.name()))
        };
        let number = |row: &Map<String, Value>, key: &str| row.get(key).and_then(Value::as_f64);
        let rows = findings.rows.iter().filter(wanted);
        rows.filter_map(|row| Some((number(row, "slf")?, number(row, "l1_misses")?))).collect::<Vec<_>>()
    };
    let [packet, train] = Per::BOTH.map(of);
    if packet.is_empty() {
        return Ok(());
    }
    findings.draw(Plot {
        title: "Fig. 20b: misses of the first-level cache a packet, chain".into(),
        caption: format!(
            "Ours: a simulated cache of 32 KiB, instructions and data, at SLF 1 and 16. Paper: mean, least and \
             largest, counted by the processor. {}",
            Paper::Reframer.caption()
        ),
        x: Scale::linear("SLF"),
        y: Scale::linear("misses a packet"),
        curves: vec![
            Curve::ours("per packet", packet),
            Curve::ours("per train", train),
            Curve::paper("per packet", Paper::Reframer.series("20b", "chain")?),
        ],
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Counts, Findings, conclude, fit, totals};

    /// The paper's fits are those of single functions that decide for every packet: whatever else is fitted
    /// is an aim of our own.
    #[test]
    fn only_what_the_paper_fitted_is_held_against_it() {
        let mut findings = Findings::default();
        let points = || [1.0, 2.0, 32.0].map(|slf| (slf, 90.0 / slf + 12.0)).to_vec();
        for name in ["nat", "chain"] {
            conclude(name, &[points(), points()], &mut findings);
        }
        let fits = findings.claims.iter().filter(|c| c.claim.contains("follows"));
        let papers: Vec<(&str, bool)> =
            fits.filter_map(|c| Some((c.claim.split(':').next()?, !c.is_own()))).collect();
        assert_eq!(
            papers,
            [
                ("nat, per packet", true),
                ("nat, per train", false),
                ("chain, per packet", false),
                ("chain, per train", false),
            ]
        );
    }

    #[test]
    fn callgrind_files_are_read() {
        let text = "version: 1\nevents: Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw\nfn=x\ntotals: 100 20 10 1 2 3 4 5 6\n";
        assert_eq!(totals(text), Some(Counts { instructions: 100, l1_misses: 6, ll_misses: 15 }));
        assert_eq!(totals("nothing"), None);
    }

    #[test]
    fn a_line_is_found_again() {
        let points: Vec<(f64, f64)> = [1.0, 2.0, 4.0, 8.0].map(|s| (s, 90.0 / s + 12.0)).into();
        let (alpha, beta, error) = fit(&points);
        assert!((alpha - 90.0).abs() < 1e-9 && (beta - 12.0).abs() < 1e-9 && error < 1e-9);
    }
}
