//! The gain of a reframer in front of a chain of functions, and inside it (Figs. 12, 14, 15, 16, 18; §5.2).

use std::collections::HashMap;
use std::thread;

use anyhow::{Context, anyhow};
use serde_json::{Value, json};
use slipstream::functions::firewall::Firewall;
use slipstream::functions::firewall::generate::Kind;
use slipstream::io::synth::{Synth, SynthConfig};
use slipstream::runtime::{FlowContextSettings, Pipeline, Timing, Traffic};
use slipstream_wire::{FlowKey, LinkType, classify};

use super::bench::{self, Per};
use super::{Bench, Chart, Findings, Lab};

mod claims;
mod plots;
mod reframer;

use claims::claims;
pub(super) use reframer::Reframer;

pub(super) const LAB: Lab = Lab {
    name: "chain",
    source: "Packet Order Matters! (NSDI'22), §5.1 to §5.3, Figs. 12, 14, 15, 16, 18",
    what: "the chain flow statistics, router, firewall, NAT over campus traffic, with and without a reframer",
    needs: None,
    run,
};

const HOLDS: [u64; 3] = [16_000, 64_000, 128_000];
/// Packets that a driver hands over in a burst.
pub(super) const BURST: usize = 32;
/// Share of packets that the large flows carry: the largest flows that together carry so much.
const LARGE_SHARE: f64 = 0.8;
/// The rules of the tables and charts that compare all arrangements.
const MIXED: &str = "10k mixed";
/// The rules of a point whose functions have no flow contexts.
const APART: &str = "mixed without contexts";
/// DSCP that marks packets of large flows.
const LARGE_DSCP: u8 = 10;

/// Campus traffic whose flows have the given keys.
pub(super) struct Campus {
    pub(super) traffic: Traffic,
    /// The keys that it uses.
    pub(super) keys: Vec<FlowKey>,
    large_share: f64,
}

pub(super) fn campus(copies: usize, packets: usize, pool: &[FlowKey]) -> anyhow::Result<Campus> {
    let config = SynthConfig::from_text(&format!("profile=campus,copies={copies},packets={packets},seed=7"))?;
    let mut synth = Synth::new(config)?;
    let mut frame = Vec::new();
    let mut flows: HashMap<FlowKey, usize> = HashMap::new();
    let mut sizes: Vec<usize> = Vec::new();
    let mut seen = Vec::with_capacity(packets);
    while let Some(time) = synth.next_packet(&mut frame) {
        let Ok(headers) = classify(LinkType::Ethernet, &frame) else { continue };
        let next = flows.len();
        let flow = *flows.entry(headers.key).or_insert(next);
        if flow == sizes.len() {
            sizes.push(0);
        }
        if let Some(size) = sizes.get_mut(flow) {
            *size += 1;
        }
        seen.push((time, flow, frame.len() as u32));
    }
    let keys = pool
        .get(..flows.len())
        .ok_or_else(|| anyhow!("{} flows, but only {} keys", flows.len(), pool.len()))?;
    let large_from = large_from(&sizes);
    let frames: Vec<Vec<u8>> = keys
        .iter()
        .zip(&sizes)
        .map(|(key, size)| bench::frame_with_dscp(key, if *size >= large_from { LARGE_DSCP } else { 0 }))
        .collect();
    let mut traffic = Traffic::default();
    for (time, flow, len) in &seen {
        if let Some(frame) = frames.get(*flow) {
            traffic.push(*time, *len, frame);
        }
    }
    let large: usize = sizes.iter().filter(|s| **s >= large_from).sum();
    Ok(Campus { traffic, keys: keys.to_vec(), large_share: large as f64 / seen.len().max(1) as f64 })
}

/// Packets from which on a flow counts as large.
fn large_from(sizes: &[usize]) -> usize {
    let mut sizes = sizes.to_vec();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let all: usize = sizes.iter().sum();
    let mut sum = 0;
    let enough = |size: &usize| {
        sum += size;
        sum as f64 >= all as f64 * LARGE_SHARE
    };
    sizes.iter().copied().find(enough).unwrap_or(1)
}

/// The chain of functions.
#[derive(Clone, Copy)]
pub(super) struct Chain<'a> {
    wall: &'a Firewall,
    contexts: bool,
}

impl<'a> Chain<'a> {
    /// With this firewall, and with flow contexts.
    pub(super) fn of(wall: &'a Firewall) -> Self {
        Self { wall, contexts: true }
    }

    /// Each function looks every flow up by itself, as those of the paper do.
    fn without_contexts(self) -> Self {
        Self { contexts: false, ..self }
    }
}

/// The arrangement of reframer and chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrangement {
    /// Every function decides for every packet, as packets come.
    Baseline,
    /// The same with full batches, whatever flows are in them (Batchy-like).
    Batches,
    /// Decisions once per train, of trains as they come.
    Trains,
    /// Packets come reframed; functions decide for every packet: nothing but the order differs from the
    /// baseline, as in the paper.
    FrontPackets(u64),
    /// The same, and functions decide once per train.
    FrontTrains(u64),
    /// The same in batches of 256.
    Front(u64),
    /// The reframe stage is in the chain, its cost included.
    InChain(u64),
    /// The same, only large flows being held.
    InChainLarge(u64),
    /// The reframe stage is in the chain and holds packets only where that is worth it, up to so long.
    InChainAuto(u64),
    /// The reframe stage without a chain behind it.
    Alone(u64),
}

impl Arrangement {
    fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline, per packet",
            Self::Batches => "batches of 256, per packet",
            Self::Trains => "per train, as they come",
            Self::FrontPackets(_) => "reframer in front, per packet",
            Self::FrontTrains(_) => "reframer in front, per train",
            Self::Front(_) => "reframer in front, per train, batches of 256",
            Self::InChain(_) => "reframer in the chain, per train",
            Self::InChainLarge(_) => "reframer in the chain, large flows only",
            Self::InChainAuto(_) => "reframer in the chain, its hold sets itself",
            Self::Alone(_) => "reframer alone",
        }
    }

    /// The hold of its reframer, or the most that this may choose, in ns.
    fn hold(self) -> Option<u64> {
        self.reframer().map(|reframer| match reframer {
            Reframer::All(hold) | Reframer::Large(hold) | Reframer::Auto(hold) => hold,
        })
    }

    /// The reframer, wherever it stands.
    fn reframer(self) -> Option<Reframer> {
        match self {
            Self::Baseline | Self::Batches | Self::Trains => None,
            Self::FrontPackets(hold)
            | Self::FrontTrains(hold)
            | Self::Front(hold)
            | Self::InChain(hold)
            | Self::Alone(hold) => Some(Reframer::All(hold)),
            Self::InChainLarge(hold) => Some(Reframer::Large(hold)),
            Self::InChainAuto(most) => Some(Reframer::Auto(most)),
        }
    }

    /// Returns true if the reframer is a stage of the pipeline, whose cost counts.
    fn reframes_itself(self) -> bool {
        matches!(self, Self::InChain(_) | Self::InChainLarge(_) | Self::InChainAuto(_) | Self::Alone(_))
    }

    fn pipeline(self, chain: Chain<'_>) -> anyhow::Result<Pipeline> {
        let per = match self {
            Self::Baseline | Self::Batches | Self::FrontPackets(_) => Per::Packet,
            _ => Per::Train,
        };
        let reframer = self.reframer().filter(|_| self.reframes_itself());
        let mut stages: Vec<_> = reframer.map(Reframer::stage).transpose()?.into_iter().collect();
        if let Self::Alone(_) = self {
            return bench::pipeline(stages);
        }
        stages.extend(bench::chain(chain.wall, 200, per)?);
        let pipeline = bench::pipeline(stages)?;
        Ok(if chain.contexts { pipeline } else { pipeline.with_contexts(&FlowContextSettings::OFF) })
    }

    fn at_once(self) -> usize {
        match self {
            Self::Batches | Self::Front(_) => 256,
            _ => BURST,
        }
    }
}

/// The cost of an arrangement.
pub(super) struct Cost {
    arrangement: Arrangement,
    pub(super) timing: Timing,
    pub(super) slf: f64,
    mean_latency_ns: f64,
    p999_latency_ns: f64,
}

impl Cost {
    /// Adds a repeated measurement; the latency goes with the least cost.
    fn add(&mut self, again: Self) {
        if again.timing.least() < self.timing.least() {
            (self.mean_latency_ns, self.p999_latency_ns) = (again.mean_latency_ns, again.p999_latency_ns);
        }
        self.timing.extend(&again.timing);
    }
}

/// Latency of packets that wait for the reframer and for a server that takes `cost` ns each, in the order in
/// which they come: mean and 99.9th percentile. A calculation (Lindley's recursion), not a measurement.
fn latency(times: impl Iterator<Item = (u64, u64)>, cost: f64) -> (f64, f64) {
    let mut free = 0.0f64;
    let mut all: Vec<f64> = times
        .map(|(comes, arrived)| {
            free = free.max(comes as f64) + cost;
            free - arrived as f64
        })
        .collect();
    all.sort_by(f64::total_cmp);
    let mean = all.iter().sum::<f64>() / all.len().max(1) as f64;
    let p999 = all.get(all.len() * 999 / 1000).copied().unwrap_or(0.0);
    (mean, p999)
}

pub(super) fn measure(
    arrangement: Arrangement,
    campus: &Traffic,
    chain: Chain<'_>,
    turns: usize,
) -> anyhow::Result<Cost> {
    let reframed = |reframer: Reframer| anyhow::Ok(campus.reframed(&reframer.config()?)?);
    let held = arrangement.reframer().map(reframed).transpose()?;
    let comes = held.as_ref().unwrap_or(campus);
    let input = if arrangement.reframes_itself() { campus } else { comes };
    let (timing, _) = input.rehearse(&mut arrangement.pipeline(chain)?, turns, arrangement.at_once())?;
    let (mean, p999) = latency(comes.times().map(|(t, a)| (t.0, a.0)), timing.least());
    Ok(Cost { arrangement, timing, slf: comes.slf(), mean_latency_ns: mean, p999_latency_ns: p999 })
}

fn row(rules: &str, copies: usize, campus: &Campus, cost: &Cost, baseline: &Timing) -> Value {
    let ns = cost.timing.least();
    let gbps = campus.traffic.mean_len() * 8.0 / ns;
    json!({
        "rules": rules,
        "copies": copies,
        "way": cost.arrangement.name(),
        "hold_ns": cost.arrangement.hold(),
        "slf": cost.slf,
        "ns_per_packet": ns,
        "ns_per_packet_median": cost.timing.median(),
        "throughput_mpps": 1e3 / ns,
        "throughput_gbps": gbps,
        "gain": baseline.least() / ns,
        "gain_median": baseline.median() / cost.timing.median(),
        "latency_mean_ns": cost.mean_latency_ns,
        "latency_p999_ns": cost.p999_latency_ns,
    })
}

/// Runs one point, `WAY,HOLD_NS,COPIES,RULES` or `WAY,HOLD_NS,COPIES,RULES,TURNS`, where the way is
/// `baseline`, `trains`, `front`, `inside`, `auto` (inside, its hold sets itself up to this) or `alone` (the
/// reframer without a chain) and the rules are `mixed`, `hosts` or `mixed without contexts`: for one turn of
/// few packets, to be counted by Callgrind, or for so many turns, which are timed.
fn run_point(point: &str) -> anyhow::Result<Findings> {
    let mut parts = point.split(',');
    let (way, hold, copies) = (parts.next(), parts.next(), parts.next());
    let hold: u64 = hold.and_then(|h| h.parse().ok()).context("no hold")?;
    let copies: usize = copies.and_then(|c| c.parse().ok()).context("no number of campuses")?;
    let arrangement = match way {
        Some("baseline") => Arrangement::Baseline,
        Some("trains") => Arrangement::Trains,
        Some("front") => Arrangement::FrontTrains(hold),
        Some("inside") => Arrangement::InChain(hold),
        Some("auto") => Arrangement::InChainAuto(hold),
        Some("alone") => Arrangement::Alone(hold),
        _ => return Err(anyhow!("no such way")),
    };
    let rules = parts.next();
    if !rules.is_none_or(|rules| ["mixed", "hosts", APART].contains(&rules)) {
        return Err(anyhow!("no such rules"));
    }
    let turns: usize = parts.next().map_or(Ok(0), str::parse).context("no number of turns")?;
    let packets = if turns > 0 { 300_000 } else { bench::COUNTED_PACKETS };
    let mixed = bench::rules(Kind::Mixed, 10_000);
    let campus = campus(copies, packets, &bench::keys(&mixed, packets / 2)?)?;
    let hosts = rules == Some("hosts");
    let wall = if hosts { bench::host_rules(&campus.keys, 10_000)? } else { mixed };
    let chain = Chain::of(&wall);
    let chain = if rules == Some(APART) { chain.without_contexts() } else { chain };
    let cost = measure(arrangement, &campus.traffic, chain, turns.max(1))?;
    let mut findings = Findings::default();
    if turns > 0 {
        findings.row(row(rules.unwrap_or_default(), copies, &campus, &cost, &cost.timing));
    }
    Ok(findings)
}

fn run(lab: &Bench<'_>) -> anyhow::Result<Findings> {
    if let Ok(point) = std::env::var(bench::POINT) {
        return run_point(&point);
    }
    let (packets, effort) = if lab.quick { (60_000, (3, 3)) } else { (300_000, (5, 3)) };
    let loads: &[usize] = if lab.quick { &[8] } else { &[1, 4, 8, 16] };
    let mut findings = Findings::default();
    let mixed = bench::rules(Kind::Mixed, 10_000);
    let pool = bench::keys(&mixed, packets / 2)?;
    let arrangements = arrangements();
    let apart = arrangements_apart();
    let steps = (((loads.len() + 1) * arrangements.len() + apart.len()) * effort.0) as f64;
    let mut done = 0.0;
    let mut step = || {
        done += 1.0;
        lab.step(done / steps)
    };
    let mut gains: Vec<(usize, Arrangement, f64)> = Vec::new();
    let (mut trivial, mut by_itself) = (Vec::new(), Vec::new());
    for &copies in loads {
        let campus = campus(copies, packets, &pool)?;
        let mut all = |rules, chain, ways: &[Arrangement], findings: &mut Findings| {
            measure_all(rules, copies, &campus, chain, ways, effort, findings, &mut step)
        };
        let chain = Chain::of(&mixed);
        let seen = all(MIXED, chain, &arrangements, &mut findings)?;
        gains.extend(seen.into_iter().map(|(arrangement, gain)| (copies, arrangement, gain)));
        if copies == 8 {
            let hosts = bench::host_rules(&campus.keys, 10_000)?;
            trivial = all("10k hosts", Chain::of(&hosts), &arrangements, &mut findings)?;
            let rules = "10k mixed, without flow contexts,";
            by_itself = all(rules, chain.without_contexts(), &apart, &mut findings)?;
            workers(&campus.traffic, chain, effort.0 * effort.1, &mut findings)?;
            plots::by_hold(&mut findings)?;
        }
    }
    plots::by_load(&mut findings)?;
    claims(&gains, &trivial, &by_itself, &mut findings);
    Ok(findings)
}

fn arrangements() -> Vec<Arrangement> {
    let mut arrangements = vec![Arrangement::Baseline, Arrangement::Batches, Arrangement::Trains];
    for hold in HOLDS {
        arrangements.extend([
            Arrangement::FrontPackets(hold),
            Arrangement::FrontTrains(hold),
            Arrangement::Front(hold),
            Arrangement::InChain(hold),
        ]);
    }
    arrangements.extend([Arrangement::InChainLarge(64_000), Arrangement::InChainAuto(64_000)]);
    arrangements
}

/// Those that are compared where functions have no flow contexts, as in the paper.
fn arrangements_apart() -> Vec<Arrangement> {
    let mut arrangements = vec![Arrangement::Baseline, Arrangement::Batches];
    for hold in [64_000, 128_000] {
        arrangements.extend([
            Arrangement::FrontPackets(hold),
            Arrangement::Front(hold),
            Arrangement::InChain(hold),
        ]);
    }
    arrangements.push(Arrangement::InChainLarge(64_000));
    arrangements
}

#[expect(clippy::too_many_arguments, reason = "one table of the lab, with all that it is about")]
fn measure_all(
    rules: &str,
    copies: usize,
    campus: &Campus,
    chain: Chain<'_>,
    arrangements: &[Arrangement],
    (rounds, turns): (usize, usize),
    findings: &mut Findings,
    step: &mut dyn FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Vec<(Arrangement, f64)>> {
    let mut costs: Vec<Cost> = Vec::new();
    // Arrangements take turns, round after round, so that other work on the machine hits all of them.
    for _ in 0..rounds {
        for (at, arrangement) in arrangements.iter().enumerate() {
            let cost = measure(*arrangement, &campus.traffic, chain, turns)?;
            match costs.get_mut(at) {
                Some(known) => known.add(cost),
                None => costs.push(cost),
            }
            step()?;
        }
    }
    let baseline = costs
        .iter()
        .find(|c| c.arrangement == Arrangement::Baseline)
        .context("the baseline was not measured")?;
    for cost in &costs {
        findings.row(row(rules, copies, campus, cost, &baseline.timing));
    }
    let chart = |title: &str, y: &str, f: &dyn Fn(&Cost) -> f64| Chart {
        title: format!(
            "{title}, {rules} rules, {copies} campuses ({:.0} % in large flows)",
            campus.large_share * 100.0
        ),
        caption:
            "Least of several turns, in memory, one core. In front: the reframer's own cost is not counted."
                .into(),
        x_label: "hold".into(),
        y_label: y.into(),
        groups: costs.iter().map(|c| label(c.arrangement)).collect(),
        series: vec![(y.to_owned(), costs.iter().map(|c| Some(f(c))).collect())],
    };
    findings.draw(chart("Cost (Figs. 12a, 15a)", "ns a packet", &|c| c.timing.least()));
    let median = baseline.timing.median();
    Ok(costs.iter().map(|c| (c.arrangement, median / c.timing.median())).collect())
}

fn label(arrangement: Arrangement) -> String {
    let short = match arrangement {
        Arrangement::Baseline => "baseline",
        Arrangement::Batches => "batches",
        Arrangement::Trains => "trains",
        Arrangement::FrontPackets(_) => "front/packet",
        Arrangement::FrontTrains(_) => "front/train",
        Arrangement::Front(_) => "front/256",
        Arrangement::InChain(_) => "in chain",
        Arrangement::InChainLarge(_) => "large only",
        Arrangement::InChainAuto(_) => "auto, up to",
        Arrangement::Alone(_) => "alone",
    };
    arrangement.hold().map_or(short.to_owned(), |h| format!("{short} {} us", h / 1000))
}

/// Throughput of one and two workers, each with its share of the flows (Fig. 14a), and of a reframer without
/// a chain (Fig. 14b).
fn workers(traffic: &Traffic, chain: Chain<'_>, turns: usize, findings: &mut Findings) -> anyhow::Result<()> {
    for arrangement in [Arrangement::Baseline, Arrangement::InChain(128_000), Arrangement::Alone(128_000)] {
        let mut one = 0.0;
        for count in [1usize, 2] {
            let shares = traffic.shared_out(count);
            let run = |share: &Traffic| -> anyhow::Result<f64> {
                let (timing, _) =
                    share.rehearse(&mut arrangement.pipeline(chain)?, turns, arrangement.at_once())?;
                Ok(1e3 / timing.least())
            };
            let rates: Vec<anyhow::Result<f64>> = thread::scope(|scope| {
                let all: Vec<_> = shares.iter().map(|share| scope.spawn(move || run(share))).collect();
                all.into_iter().map(|t| t.join().map_err(|_| anyhow!("a worker failed"))?).collect()
            });
            let mpps: f64 = rates.into_iter().sum::<anyhow::Result<f64>>()?;
            one = if count == 1 { mpps } else { one };
            findings.row(json!({
                "workers": count,
                "way": arrangement.name(),
                "throughput_mpps": mpps,
                "scaling": mpps / one,
            }));
        }
    }
    plots::by_workers(findings)
}

#[cfg(test)]
mod tests {
    use super::{large_from, latency};

    #[test]
    fn large_flows_carry_most_packets() {
        assert_eq!(large_from(&[1, 50, 1, 30, 1, 17]), 30);
        assert_eq!((large_from(&[5]), large_from(&[])), (5, 1));
    }

    #[test]
    fn waiting_adds_up() {
        // Two at once, served one after the other, each 10 ns: 10 and 20 ns; a third later: 10 ns and 5 held
        // before.
        let (mean, p999) = latency([(100, 100), (100, 100), (500, 495)].into_iter(), 10.0);
        assert!((mean - (10.0 + 20.0 + 15.0) / 3.0).abs() < 1e-9);
        assert!((p999 - 20.0).abs() < 1e-9);
    }
}
