//! The gain of an aggregator in front of sketches (Agg-Evict paper, Figs. 2, 5, 6, 7, 8), and of trains
//! instead of it.
//!
//! Everything is measured in this process on keys in memory, with the drain of the aggregator in the time.
//! Tables are warmed by a first pass; rows that are compared are measured in turn, several times, and the
//! least time counts.

mod beyond;
mod design;

use std::collections::BTreeSet;

use serde_json::{Value, json};
use slipstream::clock::thread_cpu_ns;
use slipstream_sketch::{
    AggregatorConfig, CountMinParams, FlowRadarParams, Front, Kind, Params, Sketch, TwoLevelParams,
    UnivMonParams, Update, build_with,
};

use crate::random::Random;

use super::{Bench, Chart, Claim, Curve, Findings, Lab, Paper, Plot, Scale};

pub(super) const LAB: Lab = Lab {
    name: "measure",
    source: "Accelerating Network Measurement in Software (CCR'18), Figs. 2, 5, 6, 7, 8",
    what: "time of sketches with and without an aggregator in front",
    needs: None,
    run,
};

const SEED: u64 = 7;
/// Mean length of bursts.
const BURST: f64 = 6.0;

/// Flow numbers: Zipf-distributed over `flows`, in bursts of a geometric length.
fn flow_numbers(packets: usize, flows: usize, skew: f64, burst: f64) -> Vec<u32> {
    let mut sums = Vec::with_capacity(flows);
    let mut sum = 0.0;
    for rank in 1..=flows {
        sum += (rank as f64).powf(-skew);
        sums.push(sum);
    }
    let mut random = Random(SEED);
    let draw = |random: &mut Random| {
        let at = random.share() * sum;
        sums.partition_point(|s| *s < at) as u32
    };
    let mut now = draw(&mut random);
    (0..packets)
        .map(|_| {
            if random.share() * burst < 1.0 {
                now = draw(&mut random);
            }
            now
        })
        .collect()
}

/// A flow number as a key; its first bytes are pseudorandom, as those of addresses, and name the flow.
fn key<const N: usize>(flow: u32) -> [u8; N] {
    let mut key = [10; N];
    let mixed = (flow ^ 0x5bd1_e995).wrapping_mul(0x9e37_79b1).to_le_bytes();
    key.iter_mut().zip(mixed).for_each(|(k, b)| *k = b);
    key
}

fn updates<const N: usize>(flows: &[u32]) -> Vec<Update<N>> {
    flows.iter().map(|f| Update { key: key(*f), weight: 1 }).collect()
}

/// The sketches with the parameters of the paper's §4.1; UnivMon with its four levels.
fn sketch<const N: usize>(kind: Kind) -> anyhow::Result<Box<dyn Sketch<N>>> {
    let params = match kind {
        Kind::CountMin => Params::CountMin(CountMinParams { rows: 4, width: 65_536, keep: 0 }),
        Kind::FlowRadar => Params::FlowRadar(FlowRadarParams { cells: 65_536, lines: 16_384 }),
        Kind::SpaceSaving => Params::SpaceSaving(128),
        Kind::RevSketch => Params::RevSketch(16),
        Kind::TwoLevel => Params::TwoLevel(TwoLevelParams { source_len: N / 2, bits: 16, width: 4096 }),
        Kind::Mrac => Params::Mrac(4 * 65_536),
        Kind::Fm => Params::Fm(4),
        Kind::LinearCounting => Params::LinearCounting(4 * 65_536 / 2),
        Kind::UnivMon => Params::UnivMon(UnivMonParams { levels: 4, width: 16_384, keep: 128 }),
        Kind::Exact => Params::Exact,
        other @ (Kind::ExaLogLog | Kind::ExaLogLogHip | Kind::DdSketch | Kind::Other(_)) => {
            anyhow::bail!("{other} is none of the paper's sketches")
        }
    };
    Ok(build_with(params, SEED)?)
}

/// The aggregator in front of a sketch, if there is one.
#[derive(Clone, Copy)]
enum InFront {
    Nothing,
    Aggregator(AggregatorConfig),
}

fn grr() -> InFront {
    InFront::Aggregator(AggregatorConfig::default())
}

fn front<const N: usize>(kind: Kind, before: InFront) -> anyhow::Result<Front<N>> {
    let sketch = sketch(kind)?;
    Ok(match before {
        InFront::Nothing => Front::plain(sketch),
        InFront::Aggregator(config) => Front::aggregated(sketch, &config)?,
    })
}

/// Runs fronts over one stream, in turn: the least CPU time of an update of each in ns, batches of `batch`
/// updates at a time. It is CPU time, because a round takes longer than a scheduler's time slice.
fn time_in_turn<const N: usize>(
    fronts: &mut [Front<N>],
    stream: &[Update<N>],
    batch: usize,
    rounds: usize,
) -> Vec<f64> {
    let mut best = vec![f64::INFINITY; fronts.len()];
    for round in 0..=rounds {
        for (front, best) in fronts.iter_mut().zip(&mut best) {
            let since = thread_cpu_ns();
            stream.chunks(batch).for_each(|some| front.update_all(some));
            front.drain();
            let ns = (thread_cpu_ns() - since) as f64 / stream.len().max(1) as f64;
            front.clear();
            // The first round touches the pages.
            if round > 0 {
                *best = best.min(ns);
            }
        }
    }
    best
}

/// A run of the lab: its settings, and the rows, claims and charts so far.
struct Study<'a> {
    lab: &'a Bench<'a>,
    findings: Findings,
    packets: usize,
    rounds: usize,
}

impl Study<'_> {
    fn chart(
        &mut self,
        title: &str,
        x_label: &str,
        y_label: &str,
        groups: Vec<String>,
        series: Vec<(&str, Vec<f64>)>,
    ) {
        let series =
            series.into_iter().map(|(n, v)| (n.to_owned(), v.into_iter().map(Some).collect())).collect();
        self.findings.draw(Chart {
            title: title.to_owned(),
            caption: "Time an update, the drain of the aggregator included; least of several rounds."
                .to_owned(),
            x_label: x_label.to_owned(),
            y_label: y_label.to_owned(),
            groups,
            series,
        });
    }

    /// Times by a number, of a figure for which the paper's text has no number.
    fn plot(&mut self, title: &str, x: Scale, curves: Vec<Curve>) {
        self.findings.draw(Plot {
            title: title.to_owned(),
            caption:
                "Time an update, the drain of the aggregator included; least of several rounds. The paper \
                      prints no number of this figure."
                    .to_owned(),
            x,
            y: Scale::linear("ns an update"),
            curves,
        });
    }

    /// A claim that is right or wrong, by this criterion.
    fn claim(&mut self, claim: &str, paper: Value, measured: Value, criterion: &str, holds: bool) {
        self.findings.claims.push(Claim::checked(claim, paper, measured, criterion, holds));
    }
}

fn run(lab: &Bench<'_>) -> anyhow::Result<Findings> {
    let (packets, rounds) = if lab.quick { (200_000, 2) } else { (2_000_000, 5) };
    let mut study = Study { lab, findings: Findings::default(), packets, rounds };
    let flows = packets * 3 / 10;
    let shuffled = flow_numbers(packets, flows, 1.1, 1.0);
    let bursts = flow_numbers(packets, flows, 1.1, BURST);
    batches(&mut study, &shuffled)?;
    lab.step(0.1)?;
    solutions(&mut study, &shuffled, &bursts)?;
    lab.step(0.5)?;
    keys(&mut study, &bursts)?;
    lab.step(0.6)?;
    design::skew_and_size(&mut study, &shuffled)?;
    lab.step(0.8)?;
    design::design(&mut study, &shuffled)?;
    lab.step(0.9)?;
    beyond::trains(&mut study)?;
    beyond::distinct(&mut study)?;
    beyond::exact_table(&mut study)?;
    not_comparable(&mut study.findings);
    Ok(study.findings)
}

/// Fig. 2: FlowRadar, fed in batches; how many flows a batch has.
fn batches(study: &mut Study<'_>, flows: &[u32]) -> anyhow::Result<()> {
    let stream = updates::<4>(flows);
    let mut fronts = [front::<4>(Kind::FlowRadar, InFront::Nothing)?];
    let (mut shares, mut times) = (Vec::new(), Vec::new());
    let sizes = [32, 128, 512, 2048, 8192];
    for batch in sizes {
        let unique: usize = flows.chunks(batch).map(|c| c.iter().collect::<BTreeSet<_>>().len()).sum();
        let share = unique as f64 / flows.len() as f64;
        let ns = time_in_turn(&mut fronts, &stream, batch, study.rounds).first().copied().unwrap_or(f64::NAN);
        study
            .findings
            .row(json!({ "figure": "2", "batch": batch, "unique_share": share, "ns_per_update": ns }));
        shares.push(share);
        times.push(ns);
    }
    // The fall from batches of 32 on is shown as the gain over them.
    let over_32 = |of: &[f64]| {
        let first = of.first().copied().unwrap_or(f64::NAN);
        sizes.map(|s| s as f64).into_iter().zip(of.iter().map(move |v| first / v)).collect::<Vec<_>>()
    };
    for (title, y, figure, points) in [
        (
            "Fig. 2a: throughput without an aggregator, over batches of 32",
            "throughput",
            "2a",
            over_32(&times),
        ),
        ("Fig. 2b: packets a flow in a batch, over batches of 32", "benefit", "2b", over_32(&shares)),
    ] {
        study.findings.draw(Plot {
            title: title.to_owned(),
            caption: format!("FlowRadar, source addresses. {}", Paper::AggEvict.caption()),
            x: Scale::log("packets in a batch", 2.0),
            y: Scale::linear(&format!("{y} over batches of 32")),
            curves: vec![
                Curve::ours("", points),
                Curve::paper("", Paper::AggEvict.series(figure, "source")?),
            ],
        });
    }
    let ratio = shares.first().copied().unwrap_or(1.0) / shares.last().copied().unwrap_or(1.0);
    let claim = "Fig. 2b: flows a packet in batches of 32, over those in batches of 8192";
    study.findings.claims.push(Claim::number(claim, 2.23, ratio, 0.1, 1.0));
    // §2: with source addresses the throughput falls to 87.4 % from batches of 32 to those of 8192.
    let grows = times.last().zip(times.first()).map_or(f64::NAN, |(large, small)| large / small);
    let claim = "Fig. 2a: FlowRadar without an aggregator, time an update in batches of 8192 over that in batches of 32";
    study.findings.claims.push(Claim::number(claim, 1.0 / 0.874, grows, 0.1, 1.0));
    Ok(())
}

/// Fig. 5: all nine, and the exact table, plain and behind the aggregator, in both orders.
fn solutions(study: &mut Study<'_>, shuffled: &[u32], bursts: &[u32]) -> anyhow::Result<()> {
    for (order, flows) in [("shuffled", shuffled), ("bursts", bursts)] {
        let (four, eight) = (updates::<4>(flows), updates::<8>(flows));
        let (mut plain, mut with, mut names) = (Vec::new(), Vec::new(), Vec::new());
        for kind in Kind::PAPER {
            // TwoLevel counts pairs of a source and its counterpart.
            let (a, b, bytes) = if kind == Kind::TwoLevel {
                let mut fronts = [front::<8>(kind, InFront::Nothing)?, front::<8>(kind, grr())?];
                compare(time_in_turn(&mut fronts, &eight, 256, study.rounds), &fronts)
            } else {
                let mut fronts = [front::<4>(kind, InFront::Nothing)?, front::<4>(kind, grr())?];
                compare(time_in_turn(&mut fronts, &four, 256, study.rounds), &fronts)
            };
            study.findings.row(json!({
                "figure": "5", "order": order, "sketch": kind.name(), "memory_bytes": bytes,
                "ns_plain": a, "ns_aggregated": b, "speed_up": a / b,
            }));
            names.push(kind.name().to_owned());
            plain.push(a);
            with.push(b);
            study.lab.step(0.1)?;
        }
        // The exact table is none of the nine.
        let nine = || plain.iter().zip(&with).zip(Kind::PAPER).filter(|(_, k)| *k != Kind::Exact);
        let slower: Vec<&str> = nine().filter(|((a, b), _)| b > a).map(|(_, k)| k.name()).collect();
        let best = nine().map(|((a, b), _)| a / b).fold(0.0, f64::max);
        study.chart(
            &format!("Fig. 5: nine solutions and the exact table, {order}"),
            "",
            "ns an update",
            names,
            vec![("plain", plain), ("aggregator", with)],
        );
        let claim = format!("Fig. 5b, {order}: the aggregator makes all nine faster");
        let measured =
            if slower.is_empty() { json!("all nine") } else { json!(format!("not {}", slower.join(", "))) };
        study.claim(&claim, json!("all nine"), measured, "all nine", slower.is_empty());
        let claim = format!("Fig. 5b, {order}: latency lower by up to (times)");
        study.findings.claims.push(Claim::number(claim, 5.7, best, 0.2, 1.0));
    }
    Ok(())
}

fn compare<const N: usize>(times: Vec<f64>, fronts: &[Front<N>]) -> (f64, f64, usize) {
    let bytes = fronts.first().map_or(0, Front::sketch_bytes);
    match times.as_slice() {
        [a, b] => (*a, *b, bytes),
        _ => (f64::NAN, f64::NAN, bytes),
    }
}

/// Fig. 6a, 6b: keys of 4, 8 and 13 bytes; 6c: batches.
fn keys(study: &mut Study<'_>, flows: &[u32]) -> anyhow::Result<()> {
    fn of<const N: usize>(flows: &[u32], rounds: usize, batch: usize) -> anyhow::Result<(f64, f64, usize)> {
        let mut fronts =
            [front::<N>(Kind::FlowRadar, InFront::Nothing)?, front::<N>(Kind::FlowRadar, grr())?];
        Ok(compare(time_in_turn(&mut fronts, &updates(flows), batch, rounds), &fronts))
    }
    let mut faster = true;
    let (mut plain, mut with) = (Vec::new(), Vec::new());
    let bytes = [4.0, 8.0, 13.0];
    for (bytes, (name, (a, b, _))) in bytes.into_iter().zip([
        ("source (4 bytes)", of::<4>(flows, study.rounds, 256)?),
        ("source and destination (8 bytes)", of::<8>(flows, study.rounds, 256)?),
        ("5-tuple (13 bytes)", of::<13>(flows, study.rounds, 256)?),
    ]) {
        study.findings.row(json!({ "figure": "6ab", "key": name, "ns_plain": a, "ns_aggregated": b, "mpps_aggregated": 1e3 / b }));
        faster &= b < a;
        plain.push((bytes, a));
        with.push((bytes, b));
    }
    draw_keys(study, &plain, &with)?;
    study.claim(
        "Fig. 6b: FlowRadar is faster behind the aggregator for every kind of key",
        json!(true),
        json!(faster),
        "faster for all three",
        faster,
    );
    let mut aggregated = Vec::new();
    for batch in [32, 256, 1024, 8192] {
        let (a, b, _) = of::<4>(flows, study.rounds, batch)?;
        study.findings.row(json!({ "figure": "6c", "batch": batch, "ns_plain": a, "ns_aggregated": b }));
        aggregated.push(b);
    }
    let grows = aggregated.last().zip(aggregated.first()).map_or(f64::NAN, |(large, small)| large / small);
    let claim =
        "Fig. 6c: behind the aggregator, time an update in batches of 8192 over that in batches of 32";
    study.findings.claims.push(Claim::checked(claim, "grows gradually", grows, "above 1", grows > 1.0));
    Ok(())
}

/// Figs. 6a and 6b, by bytes of the key.
fn draw_keys(study: &mut Study<'_>, plain: &[(f64, f64)], with: &[(f64, f64)]) -> anyhow::Result<()> {
    let mpps = |points: &[(f64, f64)]| points.iter().map(|(x, ns)| (*x, 1e3 / ns)).collect::<Vec<_>>();
    study.findings.draw(Plot {
        title: "Fig. 6a: throughput of FlowRadar by key".into(),
        caption: format!(
            "One core, keys in memory; the paper's point, at 13 bytes with DPDK, is a lower bound. {}",
            Paper::AggEvict.caption()
        ),
        x: Scale::linear("bytes of a key"),
        y: Scale::linear("Mpps"),
        curves: vec![
            Curve::ours("plain", mpps(plain)),
            Curve::ours("aggregator", mpps(with)),
            Curve::paper("aggregator", Paper::AggEvict.series("6a", "with the aggregator")?),
        ],
    });
    study.plot(
        "Fig. 6b: time of FlowRadar by key",
        Scale::linear("bytes of a key"),
        vec![Curve::ours("plain", plain.iter().copied()), Curve::ours("aggregator", with.iter().copied())],
    );
    Ok(())
}

fn not_comparable(findings: &mut Findings) {
    findings.claims.push(Claim::not_comparable(
        "Fig. 5a: eight of nine solutions reach 14.88 Mpps behind the aggregator",
        "14.88 Mpps",
        Value::Null,
        "needs a 10G card and DPDK; times an update stand in rows of figure 5",
    ));
}
