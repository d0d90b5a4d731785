//! The measurements: CPU time in memory, and latency and bytes across the boundary between two processes.

use anyhow::Context;
use serde_json::json;
use slipstream::pipeline::Plan;
use slipstream::runtime::{Pipeline, Traffic};
use slipstream::slice::{Amount, PayloadTable, Sliced, Slicer};
use slipstream::time::Nanos;
use slipstream_wire::LinkType;

use super::super::{Chart, Claim, Curve, Findings, Paper, Plot, Scale};
use super::middlebox::{self, Latency, Load, Outcome, Transfer};
use super::steps::Steps;
use super::{BYTES, SIZES, told};

/// The reason why latency is shown and not held against the paper's.
const NO_CARD: &str =
    "shared memory between two processes of one machine in place of PCI Express, DDIO and 100 Gbit/s";

/// Share of a run's milliseconds above which it is worth another one that other programs took a core.
const DISTURBED: f64 = 0.9;

/// Latencies of which one is so many times the other were not measured under the same conditions.
const FAR_APART: f64 = 4.0;

/// Runs of each experiment, and seconds of packets in each. The figures are those of the best milliseconds,
/// so many short runs tell more than a few long ones.
fn turns(quick: bool) -> (usize, f64) {
    if quick { (2, 0.1) } else { (5, 0.08) }
}

/// Packets of a run.
fn packets(quick: bool, rate: f64) -> u64 {
    (rate * turns(quick).1) as u64
}

/// Functions, sizes and rates of the experiments.
fn functions_shown(quick: bool) -> usize {
    if quick { 1 } else { FUNCTIONS }
}

fn sizes_in_part(quick: bool) -> &'static [u32] {
    if quick { &[1518] } else { &[512, 1024, 1518] }
}

fn rates_shown(quick: bool) -> &'static [f64] {
    if quick { &[50e3, 200e3] } else { &[25e3, 50e3, 100e3, 200e3, 400e3, 800e3] }
}

const FUNCTIONS: usize = 5;
/// Transfers in the study of parts.
const PARTS: usize = 7;

/// Steps of all studies.
pub(super) fn steps(quick: bool) -> usize {
    let cpu = SIZES.len() * (FUNCTIONS + 1);
    let experiments = functions_shown(quick) * SIZES.len() * 2
        + sizes_in_part(quick).len() * PARTS
        + rates_shown(quick).len() * 3;
    cpu + experiments * turns(quick).0
}

/// The functions of the paper's Table I, between `in` and `out`, deciding for every packet as the paper's do.
fn graphs(rules: &str) -> [(&'static str, String); FUNCTIONS] {
    let firewall = format!("firewall(rules=\"{rules}\", decide=packet)");
    let nat = "nat(pool=[203.0.113.0/27], decide=packet)";
    let l2fwd = "in -> [a]f :: l2fwd(ports=[a, b], map=[\"a > b\"], decide=packet); f[b] -> out";
    [
        ("l2fwd", l2fwd.to_owned()),
        ("meter", "in -> meter(cir=1000gbps, decide=packet) -> out".to_owned()),
        ("firewall", format!("in -> {firewall} -> out")),
        ("nat", format!("in -> {nat} -> out")),
        ("firewall, nat", format!("in -> {firewall} -> {nat} -> out")),
    ]
}

/// A thousand rules, all of which are looked at and let everything pass.
fn rules() -> anyhow::Result<tempfile::NamedTempFile> {
    let file = tempfile::NamedTempFile::new()?;
    let lines: String =
        (0..1000u32).map(|n| format!("deny src host 198.51.{}.{}\n", 100 + n / 250, n % 250)).collect();
    std::fs::write(file.path(), format!("{lines}default allow\n"))?;
    Ok(file)
}

/// Packets of a size in memory, whole or as they are when sliced.
fn traffic(size: u32, transfer: Transfer, packets: usize) -> anyhow::Result<Traffic> {
    let mut frames = middlebox::frames(size)?;
    if let Transfer::Sliced(amount) = transfer {
        let config = middlebox::config(amount);
        let (mut slicer, mut table) = (Slicer::new(&config)?, PayloadTable::new(&config, 0)?);
        for frame in &mut frames {
            let len = frame.len();
            if let Sliced::Sliced { len, .. } =
                slicer.slice(&mut table, LinkType::Ethernet, frame, len, Nanos(0))
            {
                frame.truncate(len);
            }
        }
    }
    let mut traffic = Traffic::default();
    for n in 0..packets {
        let frame = frames.get(n % frames.len()).map_or(&[][..], Vec::as_slice);
        traffic.push(Nanos(1_000_000_000 + n as u64 * 100), frame.len() as u32, frame);
    }
    Ok(traffic)
}

/// A pipeline without ports.
fn pipeline(graph: &str) -> anyhow::Result<Pipeline> {
    let ends = ("null", Vec::new());
    Ok(Plan::from_graph(graph, Some(ends.clone()), Some(ends), "".as_ref())?.build(1)?)
}

/// CPU time in memory, one core: functions on whole and on sliced packets, and what slicing takes.
pub(super) fn cpu(lab: &Steps<'_>, findings: &mut Findings) -> anyhow::Result<()> {
    let (packets, turns) = if lab.quick() { (20_000, 5) } else { (50_000, 15) };
    let rules = rules()?;
    let rules = rules.path().to_str().context("the directory for temporary files has no name in UTF-8")?;
    let graphs = graphs(rules);
    let measure = |graph: &str, traffic: &Traffic| -> anyhow::Result<f64> {
        Ok(traffic.rehearse(&mut pipeline(graph)?, turns, 32)?.0.least())
    };
    for size in SIZES {
        let (whole, sliced) =
            (traffic(size, Transfer::Whole, packets)?, traffic(size, Transfer::FULL, packets)?);
        let nothing = measure("counter", &whole)?;
        for (name, graph) in &graphs {
            let [on_whole, on_sliced] = [measure(graph, &whole)?, measure(graph, &sliced)?];
            findings.row(json!({
                "cpu": name,
                "size": size,
                "ns_whole": on_whole,
                "ns_sliced": on_sliced,
            }));
            lab.step()?;
        }
        let both = |how: &str| measure(&format!("slice({how}) -> splice"), &whole);
        let copied = both("storage=copy, entry_bytes=1536")?;
        let in_place = both("mode=keyed")?;
        let turns = if lab.quick() { 20_000 } else { 100_000 };
        let crossing = |transfer| middlebox::crossing(size, transfer, turns);
        findings.row(json!({
            "slicer_cpu": "slice and splice, beyond a pipeline that only counts",
            "size": size,
            "ns_in_place": cost(in_place - nothing),
            "ns_copied": cost(copied - nothing),
            "ns_boundary_whole": crossing(Transfer::Whole)?,
            "ns_boundary_sliced": crossing(Transfer::FULL)?,
        }));
        lab.step()?;
    }
    Ok(())
}

/// One load whole and sliced, several times in turn.
struct Pair {
    whole: Best,
    sliced: Best,
}

/// The results of several runs of one load: the least of each figure, which other work on the machine
/// disturbed least.
struct Best {
    latency: Latency,
    last: Outcome,
    /// Share of their milliseconds in which another program took a core.
    disturbed: f64,
}

impl Best {
    fn of(outcomes: Vec<Outcome>) -> anyhow::Result<Self> {
        let latency = outcomes.iter().map(|o| o.latency).reduce(Latency::least).context("no run")?;
        let disturbed = disturbed(&outcomes);
        let last = outcomes.into_iter().last().context("no run")?;
        Ok(Self { latency, last, disturbed })
    }

    /// True if there were enough milliseconds in which no other program took a core.
    fn quiet(&self) -> bool {
        self.disturbed <= DISTURBED
    }

    /// A latency to be drawn, none where other programs had the cores: that is no latency of this one.
    fn of_this(&self, latency: f64) -> f64 {
        if self.quiet() { latency } else { f64::NAN }
    }
}

/// Share of the milliseconds of some runs in which another program took a core.
fn disturbed(outcomes: &[Outcome]) -> f64 {
    let (all, some) = outcomes.iter().fold((0, 0), |(a, d), o| (a + o.windows, d + o.disturbed));
    some as f64 / all.max(1) as f64
}

/// Runs each transfer several times in turn, and once more where almost no millisecond was undisturbed.
fn several(lab: &Steps<'_>, load: &Load<'_>, transfers: &[Transfer]) -> anyhow::Result<Vec<Best>> {
    let (times, _) = turns(lab.quick());
    let mut all: Vec<Vec<Outcome>> = vec![Vec::with_capacity(times + 1); transfers.len()];
    for _ in 0..times {
        for (transfer, outcomes) in transfers.iter().zip(&mut all) {
            outcomes.push(lab.run(&Load { transfer: *transfer, ..load.clone() })?);
            lab.step()?;
        }
    }
    for (transfer, outcomes) in transfers.iter().zip(&mut all) {
        if disturbed(outcomes) > DISTURBED {
            outcomes.extend(lab.run_again(&Load { transfer: *transfer, ..load.clone() })?);
        }
    }
    all.into_iter().map(Best::of).collect()
}

fn pair(lab: &Steps<'_>, load: &Load<'_>) -> anyhow::Result<Pair> {
    let mut both = several(lab, load, &[Transfer::Whole, Transfer::FULL])?;
    let sliced = both.pop().context("no run")?;
    let whole = both.pop().context("no run")?;
    Ok(Pair { whole, sliced })
}

/// Latency of each function by size, whole and sliced (Fig. 7), and the bytes that cross.
pub(super) fn functions(lab: &Steps<'_>, findings: &mut Findings) -> anyhow::Result<()> {
    let rules = rules()?;
    let rules = rules.path().to_str().context("the directory for temporary files has no name in UTF-8")?;
    let rate = 100e3;
    let packets = packets(lab.quick(), rate);
    // One function stands for the others; the whole lab has all.
    for (name, graph) in graphs(rules).iter().take(functions_shown(lab.quick())) {
        let mut latencies: [Vec<(f64, f64)>; 2] = Default::default();
        let mut bytes: [Vec<(f64, f64)>; 2] = Default::default();
        for size in SIZES {
            let load = Load { graph, size, transfer: Transfer::Whole, rate, packets };
            let Pair { whole, sliced } = pair(lab, &load)?;
            for (place, (best, transfer)) in
                [(&whole, Transfer::Whole), (&sliced, Transfer::FULL)].into_iter().enumerate()
            {
                findings.row(json!({
                    "function": name,
                    "size": size,
                    "way": transfer.name(),
                    "rate_kpps": rate / 1e3,
                    "bytes_out": best.last.bytes_out,
                    "bytes_back": best.last.bytes_back,
                    "ring_bytes": best.last.ring_bytes,
                    "p50_ns": best.latency.p50,
                    "p90_ns": best.latency.p90,
                    "mean_ns": best.latency.mean,
                    "function_busy_ns": best.last.function_ns,
                    "disturbed_share": best.disturbed,
                }));
                if let (Some(latencies), Some(bytes)) = (latencies.get_mut(place), bytes.get_mut(place)) {
                    latencies.push((f64::from(size), best.of_this(best.latency.p50) / 1e3));
                    bytes.push((f64::from(size), best.last.bytes_out));
                }
            }
            if size == 1518 {
                conclude(name, &whole, &sliced, findings);
            }
        }
        draw_function(name, latencies, bytes, findings)?;
    }
    Ok(())
}

/// Latency by size, whole and sliced; of the first function also the bytes, and the paper's points.
fn draw_function(
    name: &str,
    latencies: [Vec<(f64, f64)>; 2],
    bytes: [Vec<(f64, f64)>; 2],
    findings: &mut Findings,
) -> anyhow::Result<()> {
    let curves = |[whole, sliced]: [Vec<(f64, f64)>; 2]| {
        vec![Curve::ours("whole", whole), Curve::ours("sliced", sliced)]
    };
    let l2fwd = name == "l2fwd";
    if l2fwd {
        findings.draw(Plot {
            title: "Bytes across the boundary, a packet, one way".into(),
            caption: "Of frames, without the ring's own headers; counted, the same on every machine.".into(),
            x: Scale::linear(BYTES),
            y: Scale::linear("bytes"),
            curves: curves(bytes),
        });
    }
    let (mut curves, mut caption) = (
        curves(latencies),
        "From when a packet fell due to when it was whole again, through shared memory, 100,000 a second; least \
         of all milliseconds of several runs."
            .to_owned(),
    );
    if l2fwd {
        curves.push(Curve::paper("whole", Paper::Nfslicer.series("7a", "whole")?));
        let paper = Paper::Nfslicer.caption();
        caption = format!("{caption} The paper's are over PCI Express, 4 million a second. {paper}");
    }
    findings.draw(Plot {
        title: format!("{name}: median latency (beside Fig. 7)"),
        caption,
        x: Scale::linear(BYTES),
        y: Scale::linear("µs"),
        curves,
    });
    Ok(())
}

/// By how much `b` is less than `a`, as a share of `a`; none where the two can't be compared: one of them
/// never had a quiet millisecond, or they are so far apart that no slicing can be the cause.
fn less(a: (&Best, f64), b: (&Best, f64)) -> Option<f64> {
    let ratio = b.1 / a.1;
    (a.0.quiet() && b.0.quiet() && (1.0 / FAR_APART..=FAR_APART).contains(&ratio)).then_some(1.0 - ratio)
}

/// A share in words, or that there is none.
fn percent(share: Option<f64>) -> String {
    share.map_or_else(
        || "not comparable: other programs had the cores".to_owned(),
        |s| format!("{:.1} %", s * 100.0),
    )
}

/// A difference of two measurements as a cost, none where noise made it negative.
fn cost(ns: f64) -> Option<f64> {
    (ns.is_finite() && ns > 0.0).then_some(ns)
}

fn conclude(name: &str, whole: &Best, sliced: &Best, findings: &mut Findings) {
    let [p50, p90] = [|l: &Latency| l.p50, |l: &Latency| l.p90]
        .map(|of| percent(less((whole, of(&whole.latency)), (sliced, of(&sliced.latency)))));
    if name == "l2fwd" {
        let fewer = whole.last.bytes_out / sliced.last.bytes_out;
        findings.claims.push(Claim::checked(
            "bytes that cross for a packet of 1518 B: so many times fewer when sliced",
            "more than 20, up to 24",
            fewer,
            "above 20, and as many bytes back as out",
            fewer > 20.0 && sliced.last.bytes_back == sliced.last.bytes_out,
        ));
    }
    findings.claims.push(told(
        format!("{name}: p50 / p90 latency of 1518 B less by slicing (Fig. 7)"),
        json!(match name {
            "l2fwd" => "20.2 % / 28.6 %",
            "nat" => "19.7 % / 18.5 %",
            "firewall, nat" => "18.8 % / 9.4 %",
            _ => "17.0 to 20.2 % / 9.4 to 28.6 %",
        }),
        json!(format!("{p50} / {p90}")),
        NO_CARD,
    ));
}

/// Only a part of the payload is parked (Fig. 8).
pub(super) fn fractions(lab: &Steps<'_>, findings: &mut Findings) -> anyhow::Result<()> {
    let packets = packets(lab.quick(), 100e3);
    let transfers: [Transfer; PARTS] = [
        Transfer::Whole,
        Transfer::Sliced(Amount::Bytes(160)),
        Transfer::Sliced(Amount::Bytes(320)),
        Transfer::Sliced(Amount::Share(0.25)),
        Transfer::Sliced(Amount::Share(0.5)),
        Transfer::Sliced(Amount::Share(0.75)),
        Transfer::FULL,
    ];
    let graphs = graphs("");
    let (_, l2fwd) = graphs.first().context("no function")?;
    for &size in sizes_in_part(lab.quick()) {
        let load = Load { graph: l2fwd, size, transfer: Transfer::Whole, rate: 100e3, packets };
        let all = several(lab, &load, &transfers)?;
        let Some(none) = all.first() else { continue };
        let none_bytes = none.last.bytes_out;
        let less = |best: &Best| less((none, none.latency.mean), (best, best.latency.mean));
        for (transfer, best) in transfers.iter().zip(&all) {
            findings.row(json!({
                "fraction": transfer.name(),
                "size": size,
                "bytes_out": best.last.bytes_out,
                "fewer_bytes": 1.0 - best.last.bytes_out / none_bytes,
                "mean_ns": best.latency.mean,
                "less_latency": less(best),
                "disturbed_share": best.disturbed,
            }));
        }
        let less = |n: usize| percent(all.get(n).and_then(less));
        if size == 1518 {
            findings.claims.push(told(
                "l2fwd, 1518 B: mean latency less with 160 B, 320 B and all of the payload sliced (Fig. 8)"
                    .into(),
                json!("2 %, 4.8 %, 17 %"),
                json!(format!("{}, {}, {}", less(1), less(2), less(6))),
                NO_CARD,
            ));
        }
        findings.draw(Chart {
            title: format!("Part of the payload sliced, {size} B: bytes that cross one way (beside Fig. 8)"),
            caption: "160 and 320 B are what switches slice.".into(),
            x_label: "part that is sliced".into(),
            y_label: "bytes".into(),
            groups: transfers.iter().map(|w| w.name()).collect(),
            series: vec![(String::from("bytes"), all.iter().map(|b| Some(b.last.bytes_out)).collect())],
        });
    }
    Ok(())
}

/// The mean latency over that of small packets, where they can be compared.
fn over(best: &Best, small: &Best) -> Option<f64> {
    less((small, small.latency.mean), (best, best.latency.mean)).map(|less| 1.0 - less)
}

fn in_words(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| percent(None), |ratio| format!("{ratio:.2}"))
}

/// The gap between small and large packets by rate (Fig. 10).
pub(super) fn rates(lab: &Steps<'_>, findings: &mut Findings) -> anyhow::Result<()> {
    let rates = rates_shown(lab.quick());
    let graphs = graphs("");
    let (_, l2fwd) = graphs.first().context("no function")?;
    let mut series: [Vec<(f64, f64)>; 3] = Default::default();
    let mut gaps = Vec::new();
    for &rate in rates {
        let packets = packets(lab.quick(), rate);
        let load = |size| Load { graph: l2fwd, size, transfer: Transfer::Whole, rate, packets };
        let small = several(lab, &load(64), &[Transfer::Whole])?.pop().context("no run")?;
        let Pair { whole, sliced } = pair(lab, &load(1518))?;
        for (name, best, series) in [("64 B", &small), ("1518 B", &whole), ("1518 B sliced", &sliced)]
            .into_iter()
            .zip(&mut series)
            .map(|((name, best), series)| (name, best, series))
        {
            series.push((rate / 1e3, best.of_this(best.latency.mean) / 1e3));
            findings.row(json!({
                "rate_kpps": rate / 1e3,
                "packets": name,
                "mean_ns": best.latency.mean,
                "p90_ns": best.latency.p90,
                "over_64": over(best, &small),
                "disturbed_share": best.disturbed,
            }));
        }
        gaps.extend(over(&whole, &small).map(|gap| (rate / 1e3, gap)));
        findings.claims.push(told(
            format!(
                "l2fwd at {} kpps: mean latency of 1518 B over 64 B, whole and sliced (Fig. 10)",
                rate / 1e3
            ),
            json!("1.05 at 1 Mpps, 1.2 at 4, 1.46 at 7; sliced 1.0"),
            json!(format!("{}, sliced {}", in_words(over(&whole, &small)), in_words(over(&sliced, &small)))),
            NO_CARD,
        ));
    }
    let [small, whole, sliced] = series;
    findings.draw(Plot {
        title: "Mean latency through shared memory by rate, l2fwd (beside Fig. 10)".into(),
        caption: "Least of all milliseconds of several runs. The paper's rates are of another machine."
            .into(),
        x: Scale::log("thousand packets a second", 10.0),
        y: Scale::linear("µs"),
        curves: vec![
            Curve::ours("64 B", small),
            Curve::ours("1518 B whole", whole),
            Curve::ours("1518 B sliced", sliced),
        ],
    });
    findings.draw(Plot {
        title: "Mean latency of 1518 B over that of 64 B, l2fwd (Fig. 10)".into(),
        caption: format!(
            "Ours through shared memory, where no other program had the cores; the paper's over PCI Express. {}",
            Paper::Nfslicer.caption()
        ),
        x: Scale::log("thousand packets a second", 10.0),
        y: Scale::linear("over 64 B"),
        curves: vec![Curve::ours("", gaps), Curve::paper("", Paper::Nfslicer.series("10", "whole")?)],
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn best(ns: f64, disturbed: f64) -> Best {
        let latency = Latency { p50: ns, p90: ns, mean: ns };
        let last = Outcome {
            latency,
            bytes_out: 0.0,
            bytes_back: 0.0,
            ring_bytes: 0.0,
            function_ns: 0.0,
            windows: 1,
            disturbed: 0,
        };
        Best { latency, last, disturbed }
    }

    #[test]
    fn what_can_not_be_compared_is_not() {
        let of = |a: &Best, b: &Best| percent(less((a, a.latency.mean), (b, b.latency.mean)));
        assert_eq!(of(&best(1000.0, 0.1), &best(800.0, 0.2)), "20.0 %");
        for (a, b) in [
            (best(1000.0, 0.0), best(20_471_000.0, 0.0)),
            (best(1000.0, 0.95), best(900.0, 0.0)),
            (best(0.0, 0.0), best(900.0, 0.0)),
            (best(1000.0, 0.0), best(f64::INFINITY, 0.0)),
        ] {
            assert!(of(&a, &b).starts_with("not comparable"));
        }
        assert!(best(900.0, 0.95).of_this(900.0).is_nan() && best(900.0, 0.1).of_this(900.0) == 900.0);
        assert_eq!((cost(-3.0), cost(f64::NAN), cost(4.0)), (None, None, Some(4.0)));
    }
}
