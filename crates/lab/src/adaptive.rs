//! The adaptive hold beside fixed ones and beside clairvoyance: the frontier of campus traffic, what each
//! part of its knowledge is worth, and how fast it follows a step.

use std::path::Path;

use serde_json::{Value, json};
use slipstream::io::capture::CaptureReader;
use slipstream::io::synth::{Synth, SynthConfig};
use slipstream::reframe::{Budget, ReframeConfig, ReframeStats};
use slipstream::time::Nanos;
use slipstream_wire::{Encapsulation, LinkType};

use super::ablation;
use super::frontier::{Arrivals, Beside, Frontier, config, run as hold, run_with};
use super::{Bench, Chart, Claim, Findings, Lab};

pub(super) const LAB: Lab = Lab {
    name: "adaptive",
    source: "Packet Order Matters! (NSDI'22), §4 (\"finding the sweet spot\" of the hold is future work)",
    what: "mean train against mean delay: fixed holds, the adaptive hold, and one that knows the future",
    needs: None,
    run,
};

/// Fixed holds, ns.
const HOLDS: [u64; 6] = [8_000, 16_000, 32_000, 64_000, 128_000, 256_000];
/// The hold that the claims are about, and what its trains may cost at most, in ns.
const AIMS: [(u64, f64); 2] = [(64_000, 30_000.0), (128_000, 52_000.0)];
const BURST: u16 = 32;
/// Longest wait of the adaptive hold in the step, ns.
const LONGEST_NS: u64 = 1_000_000;
/// The budget in the step: a mean delay, in ns.
const BUDGET_NS: u64 = 30_000;
/// The longest hold of the one that sets itself, and what it takes a packet more in a train for, ns.
const MOST_NS: u64 = 256_000;
/// Width of a window in which the delay is watched after the step, ns.
const WINDOW_NS: u64 = 20_000_000;
/// Packets of a trace that parts of the hold's knowledge are measured on, at most.
const MOST: usize = 100_000;
/// The delay has settled when it stays this near the budget.
const NEAR: f64 = 0.25;

fn run(lab: &Bench<'_>) -> anyhow::Result<Findings> {
    let packets = if lab.quick { 100_000 } else { 400_000 };
    let mut findings = Findings::default();
    let copies: &[usize] = if lab.quick { &[1] } else { &[1, 4, 16] };
    let parts = (copies.len() + 2) as f64;
    for (i, copies) in copies.iter().enumerate() {
        let arrivals = campus(*copies, packets)?;
        let frontier = measure(lab, &arrivals, i as f64 / parts, 1.0 / parts)?;
        tell(&mut findings, *copies, &frontier);
    }
    ablation(lab, &mut findings, (parts - 2.0) / parts, 1.0 / parts)?;
    step(lab, packets, &mut findings)?;
    tuned(lab, packets, &mut findings)?;
    Ok(findings)
}

/// Campus traffic.
fn campus(copies: usize, packets: usize) -> anyhow::Result<Arrivals> {
    let config = SynthConfig::from_text(&format!("profile=campus,copies={copies},packets={packets},seed=7"))?;
    let mut synth = Synth::new(config)?;
    let (mut frame, mut arrivals) = (Vec::new(), Arrivals::default());
    while let Some(time) = synth.next_packet(&mut frame) {
        arrivals.push(time, LinkType::Ethernet, frame.len() as u32, &frame, Encapsulation::Outer);
    }
    Ok(arrivals)
}

fn measure(lab: &Bench<'_>, arrivals: &Arrivals, from: f64, share: f64) -> anyhow::Result<Frontier> {
    Frontier::measure(arrivals, &HOLDS, BURST, |done| lab.step(from + share * done))
}

fn us(ns: f64) -> f64 {
    ns / 1e3
}

fn tell(findings: &mut Findings, copies: usize, frontier: &Frontier) {
    for b in &frontier.holds {
        findings.row(json!({
            "copies": copies,
            "hold_ns": b.fixed.hold_ns,
            "mean_train": b.fixed.mean_train,
            "delay_fixed_ns": b.fixed.mean_delay_ns,
            "delay_adaptive_ns": b.learned.map(|p| p.mean_delay_ns),
            "delay_clairvoyant_ns": b.clairvoyant.map(|p| p.mean_delay_ns),
            "futile_wait_fixed_ns": b.fixed.futile_wait_ns,
            "futile_wait_adaptive_ns": b.learned.map(|p| p.futile_wait_ns),
            "price_ns": b.learned.and_then(|p| p.price_ns),
        }));
    }
    let mut claim = |claim: String, measured: Value, criterion: &str, holds: bool| {
        findings.claims.push(Claim::checked(claim, Value::Null, measured, criterion, holds));
    };
    let of = |hold: u64| frontier.holds.iter().find(|b| b.fixed.hold_ns == hold);
    for (hold, most) in AIMS {
        let Some((b, adaptive)) = of(hold).and_then(|b| Some((b, b.learned?))) else { continue };
        let of_trains = format!("{copies} x campus, trains of the {} us hold", hold / 1000);
        let name = format!("{of_trains}: mean delay");
        let text = format!("{:.1} us (fixed: {:.1})", us(adaptive.mean_delay_ns), us(b.fixed.mean_delay_ns));
        let criterion = format!("at most {:.0} us", us(most));
        claim(name, json!(text), &criterion, adaptive.mean_delay_ns <= most);
        let ratio = adaptive.futile_wait_ns / b.fixed.futile_wait_ns;
        let name = format!("{of_trains}: futile wait beside the fixed hold's");
        claim(name, json!(format!("{ratio:.2}")), "at most 0.4", ratio <= 0.4);
    }
    let above = |b: &&Beside| b.learned.is_some_and(|p| p.mean_delay_ns > b.fixed.mean_delay_ns);
    let beaten = frontier.holds.iter().filter(above).count();
    let reached = frontier.holds.iter().filter(|b| b.learned.is_some()).count();
    let text = format!("{beaten} of {reached}");
    claim(
        format!("{copies} x campus: fixed holds that cost less than the adaptive one, at equal trains"),
        json!(text),
        "no fixed hold costs less",
        beaten == 0,
    );
    let delay = |f: &dyn Fn(&Beside) -> Option<f64>| frontier.holds.iter().map(|b| f(b).map(us)).collect();
    findings.draw(Chart {
        title: format!("Mean delay at equal mean train, {copies} x campus"),
        caption: "Each group is the mean train that a fixed hold reaches; lower is better.".into(),
        x_label: "mean train (fixed hold)".into(),
        y_label: "mean delay, µs".into(),
        groups: frontier
            .holds
            .iter()
            .map(|b| format!("{:.2} ({} us)", b.fixed.mean_train, b.fixed.hold_ns / 1000))
            .collect(),
        series: vec![
            ("fixed".into(), delay(&|b| Some(b.fixed.mean_delay_ns))),
            ("adaptive".into(), delay(&|b| b.learned.map(|p| p.mean_delay_ns))),
            ("clairvoyant".into(), delay(&|b| b.clairvoyant.map(|p| p.mean_delay_ns))),
        ],
    });
}

/// The worth of each part of its knowledge: on campus traffic, and on the captures below
/// `$SLIPSTREAM_TRACES`, where that is set.
fn ablation(lab: &Bench<'_>, findings: &mut Findings, from: f64, share: f64) -> anyhow::Result<()> {
    let mut traffic = vec![("campus".to_owned(), campus(1, MOST)?)];
    if !lab.quick
        && let Some(folder) = std::env::var_os("SLIPSTREAM_TRACES")
    {
        traffic.extend(captures(folder.as_ref())?);
    }
    let all = traffic.len() as f64;
    for (i, (name, arrivals)) in traffic.iter().enumerate() {
        let begin = from + share * i as f64 / all;
        let rows = ablation::rows(name, arrivals, &mut |done| lab.step(begin + share * done / all))?;
        rows.into_iter().for_each(|row| findings.row(row));
    }
    Ok(())
}

/// The captures in `large` and `multi` of a folder, by name: the first packets of each.
fn captures(folder: &Path) -> anyhow::Result<Vec<(String, Arrivals)>> {
    let mut files = Vec::new();
    for part in ["large", "multi"] {
        let Ok(entries) = std::fs::read_dir(folder.join(part)) else { continue };
        files.extend(entries.filter_map(|entry| entry.ok().map(|e| e.path())));
    }
    files.sort();
    let mut all = Vec::new();
    for file in files {
        let mut arrivals = Arrivals::default();
        let mut reader = CaptureReader::open(&file)?;
        while arrivals.len() < MOST
            && let Some(record) = reader.next_record()?
        {
            arrivals.push(record.time, record.link, record.original_len, record.data, Encapsulation::Outer);
        }
        let name = file.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        all.push((name, arrivals));
    }
    Ok(all)
}

/// A budget of a mean delay, and traffic that suddenly has all gaps four times as long.
fn step(lab: &Bench<'_>, packets: usize, findings: &mut Findings) -> anyhow::Result<()> {
    let mut arrivals = campus(1, packets)?;
    let at = arrivals.stretch_second_half(4);
    // Delay and packets by window, from the beginning.
    let mut windows: Vec<(u64, u64)> = Vec::new();
    let start = arrivals.first();
    let (_, price) =
        hold(&arrivals, LONGEST_NS, BURST, Some(Budget::Delay(BUDGET_NS)), &mut |release, delays| {
            let window = (release.since(start) / WINDOW_NS) as usize;
            if windows.len() <= window {
                windows.resize(window + 1, (0, 0));
            }
            if let Some((sum, n)) = windows.get_mut(window) {
                delays.for_each(|d| (*sum, *n) = (*sum + d, *n + 1));
            }
        })?;
    // The last window is cut short.
    windows.pop();
    let mean = |w: &(u64, u64)| w.0 as f64 / w.1.max(1) as f64;
    let far = |w: &(u64, u64)| (mean(w) / BUDGET_NS as f64 - 1.0).abs() > NEAR;
    let step = (at.since(start) / WINDOW_NS) as usize;
    let (before, after) = windows.split_at(step.min(windows.len()));
    let settled = |w: &[(u64, u64)]| w.iter().rposition(far).map_or(0, |last| last as u64 + 1) * WINDOW_NS;
    for (name, part) in [("start", before), ("gaps four times as long", after)] {
        let packets: u64 = part.iter().map(|w| w.1).sum();
        let delay: u64 = part.iter().map(|w| w.0).sum();
        findings.row(json!({
            "step": name,
            "budget_ns": BUDGET_NS,
            "settled_after_ns": settled(part),
            "mean_delay_ns": delay as f64 / packets.max(1) as f64,
            "price_at_the_end_ns": price,
        }));
    }
    let ms = settled(after) / 1_000_000;
    findings.claims.push(Claim::checked(
        "traffic time after a step until the mean delay of every 20 ms stays within a quarter of the budget",
        Value::Null,
        json!(format!("{ms} ms")),
        "at most 100 ms",
        ms <= 100,
    ));
    lab.step(0.95)
}

/// The hold that sets itself, in the same step; beside the fixed hold that would have been best in each half.
fn tuned(lab: &Bench<'_>, packets: usize, findings: &mut Findings) -> anyhow::Result<()> {
    let mut arrivals = campus(1, packets)?;
    let step = arrivals.stretch_second_half(4);
    let mut auto = config(MOST_NS, BURST);
    auto.default.hold_min_ns = Some(0);
    let (mine, stats) = costs(&arrivals, &auto, step)?;
    // In half octaves, as it tries them.
    let holds = (0..16).map(|n| (MOST_NS as f64 / 2f64.powf(f64::from(n) / 2.0)) as u64).chain([0]);
    let mut fixed = Vec::new();
    for hold in holds {
        fixed.push((hold, costs(&arrivals, &config(hold, BURST), step)?.0));
    }
    let changes = stats.auto.first().map_or(0, |a| a.changes);
    for (half, name) in ["before the step", "after it"].into_iter().enumerate() {
        let of = |all: &[(f64, u64); 2]| all.get(half).copied().unwrap_or_default();
        let (cost, n) = of(&mine);
        let best = fixed.iter().map(|(hold, all)| (of(all).0, *hold)).min_by(|a, b| a.0.total_cmp(&b.0));
        let (least, hold) = best.unwrap_or_default();
        let regret = (cost - least) / (n.max(1) as f64 * MOST_NS as f64);
        findings.row(json!({
            "hold_that_sets_itself": name,
            "best_fixed_hold_ns": hold,
            "worth_a_packet_ns": -cost / n.max(1) as f64,
            "best_worth_a_packet_ns": -least / n.max(1) as f64,
            "regret": regret,
            "changes": changes,
        }));
        findings.claims.push(Claim::checked(
            format!("{name}: loss of the hold that sets itself beside the best fixed one, which is known beforehand"),
            Value::Null,
            json!(format!("{:.1} % of the price of a packet", 100.0 * regret)),
            "at most 10 %",
            regret <= 0.1,
        ));
    }
    lab.step(1.0)
}

/// Delay less what joins are worth, in ns, and packets, of each side of a step in time.
fn costs(
    arrivals: &Arrivals,
    config: &ReframeConfig,
    step: Nanos,
) -> anyhow::Result<([(f64, u64); 2], ReframeStats)> {
    let mut halves = [(0.0, 0); 2];
    let (_, stats) = run_with(arrivals, config, &mut |release, delays| {
        let [before, after] = &mut halves;
        let (cost, packets) = if release < step { before } else { after };
        let (sum, n) = delays.fold((0u64, 0u64), |(sum, n), delay| (sum + delay, n + 1));
        *packets += n;
        *cost += sum as f64 - MOST_NS as f64 * n.saturating_sub(1) as f64;
    })?;
    Ok((halves, stats))
}
