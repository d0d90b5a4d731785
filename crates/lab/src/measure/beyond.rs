//! Questions beyond the paper: trains of `reframe` instead of an aggregator, traffic without locality, the
//! exact table.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use slipstream::io::capture::{CaptureError, Interface};
use slipstream::io::synth::{Order, Size, Synth, SynthConfig, TrainModel};
use slipstream::pool::{PacketMeta, Pool};
use slipstream::reframe::ReframeConfig;
use slipstream::rules::Rule;
use slipstream::runtime::{Replay, Sink, SynthSource};
use slipstream::time::Nanos;
use slipstream_report::count;
use slipstream_sketch::{Front, Kind, Update};
use slipstream_wire::{FlowKey, LinkType, classify};

use super::super::Claim;
use super::{InFront, Random, SEED, Study, compare, flow_numbers, front, grr, key, time_in_turn, updates};

/// Records whose packet leaves, in the order in which they leave.
#[derive(Default)]
struct Keys(Vec<FlowKey>);

impl Sink for Keys {
    fn interface(&mut self, _: &Interface) -> Result<(), CaptureError> {
        Ok(())
    }

    fn packet(&mut self, _: Nanos, _: PacketMeta, data: &[u8]) -> Result<(), CaptureError> {
        self.0.extend(classify(LinkType::Ethernet, data).ok().map(|h| h.key));
        Ok(())
    }
}

/// Trains of `reframe` instead of an aggregator, and before one: one update a train.
pub(super) fn trains(study: &mut Study<'_>) -> anyhow::Result<()> {
    let config = SynthConfig {
        flows: 20_000,
        packets: study.packets as u64 / 4,
        zipf: 1.1,
        slf: 1.5,
        order: Order::Random,
        train: TrainModel::Geometric,
        size: Size::Fixed(64),
        seed: SEED,
        ..SynthConfig::default()
    };
    let of = |held: bool| -> anyhow::Result<Vec<FlowKey>> {
        let synth = Synth::new(config.clone())?;
        let hold_ns = if held { 64_000 } else { 0 };
        let mut reframe = ReframeConfig { bypass: Rule::never(), ..ReframeConfig::default() };
        reframe.default.hold_ns = hold_ns;
        let keys = Arc::new(Mutex::new(Keys::default()));
        let mut tick = |_: Option<f64>| ControlFlow::Continue(());
        Replay::new(&reframe)?.run(SynthSource::new(synth), Pool::new(), Arc::clone(&keys), &mut tick)?;
        let mut keys = keys.lock().map_err(|_| anyhow::anyhow!("the keys were lost"))?;
        Ok(std::mem::take(&mut keys.0))
    };
    let mut numbers: BTreeMap<FlowKey, u32> = BTreeMap::new();
    let mut results: BTreeMap<&str, f64> = BTreeMap::new();
    for (order, held) in [("as it comes", false), ("after reframe, 64us", true)] {
        let keys = of(held)?;
        let mut flows = Vec::with_capacity(keys.len());
        for k in &keys {
            let next = numbers.len() as u32;
            flows.push(*numbers.entry(*k).or_insert(next));
        }
        let packets = updates::<13>(&flows);
        let trains: Vec<Update<13>> = flows
            .chunk_by(|a, b| a == b)
            .filter_map(|c| Some(Update { key: key(*c.first()?), weight: c.len() as u32 }))
            .collect();
        let mut fronts =
            [front::<13>(Kind::FlowRadar, InFront::Nothing)?, front::<13>(Kind::FlowRadar, grr())?];
        let (plain, with, _) = compare(time_in_turn(&mut fronts, &packets, 256, study.rounds), &fronts);
        let (per_train, both, _) = compare(time_in_turn(&mut fronts, &trains, 256, study.rounds), &fronts);
        let share = trains.len() as f64 / packets.len().max(1) as f64;
        study.findings.row(json!({
            "figure": "trains", "order": order, "updates_per_packet": share, "ns_plain": plain,
            "ns_aggregated": with, "ns_per_train": per_train * share, "ns_per_train_aggregated": both * share,
        }));
        results.insert(if held { "trains" } else { "plain" }, if held { per_train * share } else { plain });
    }
    let of = |name: &str| results.get(name).copied().unwrap_or(f64::NAN);
    let (plain, trains) = (of("plain"), of("trains"));
    let text = "One update a train behind reframe costs less a packet than one a packet (FlowRadar, 5-tuple)";
    study.claim(
        text,
        Value::Null,
        json!(format!("{trains:.1} ns against {plain:.1}")),
        "less",
        trains < plain,
    );
    Ok(())
}

/// Number of equal sketches that are measured, since the place of one in memory changes its time by more than
/// a twentieth.
const MADE_ANEW: usize = 4;
/// Largest ratio of cost with an aggregator to cost without, on keys without locality.
const AT_MOST: f64 = 1.05;

/// Distinct keys: an aggregator can only cost.
pub(super) fn distinct(study: &mut Study<'_>) -> anyhow::Result<()> {
    let flows: Vec<u32> = (0..study.packets as u32).collect();
    let (four, eight) = (updates::<4>(&flows), updates::<8>(&flows));
    let (mut worst, mut told) = ((0.0f64, ""), 0);
    for kind in Kind::PAPER {
        let aside = if kind == Kind::TwoLevel {
            Overhead::measure(kind, &eight, study.rounds)?
        } else {
            Overhead::measure(kind, &four, study.rounds)?
        };
        let (a, b, scatter) = (aside.plain.0, aside.aggregated, aside.plain.1 / aside.plain.0);
        study.findings.row(json!({
            "figure": "all distinct", "sketch": kind.name(), "ns_plain": a, "ns_aggregated": b, "ratio": b / a,
            "scatter": scatter, "aside_share": aside.share,
        }));
        if scatter <= AT_MOST {
            told += 1;
            if b / a > worst.0 {
                worst = (b / a, kind.name());
            }
        }
        study.lab.step(0.92)?;
    }
    study.findings.claims.push(overhead(worst, told));
    Ok(())
}

/// The greatest cost of an aggregator, the sketch it was seen with, and of how many sketches.
fn overhead((worst, sketch): (f64, &str), told: usize) -> Claim {
    let text = "All keys distinct: the aggregator steps aside and costs at most 5 % (not in the paper)";
    let measured = match told {
        0 => Value::Null,
        told => json!(format!("{worst:.3}, {sketch}; of {told} sketches whose like differ by less")),
    };
    let comparable = told >= Kind::PAPER.len() / 2;
    if comparable {
        Claim::checked(text, Value::Null, measured, format!("at most {AT_MOST}"), worst <= AT_MOST)
    } else {
        let why = "two equal sketches without an aggregator differ by more than that";
        Claim::not_comparable(text, Value::Null, measured, why)
    }
}

/// The cost of an aggregator in front of a sketch on traffic without locality.
struct Overhead {
    /// Of several sketches without one, ns an update: the fastest and the slowest.
    plain: (f64, f64),
    /// Of as many with one, the fastest.
    aggregated: f64,
    /// The share of updates that passed by it.
    share: f64,
}

impl Overhead {
    fn measure<const N: usize>(kind: Kind, updates: &[Update<N>], rounds: usize) -> anyhow::Result<Self> {
        let mut this = Self { plain: (f64::INFINITY, 0.0), aggregated: f64::INFINITY, share: 0.0 };
        for _ in 0..MADE_ANEW {
            let mut fronts = [front::<N>(kind, InFront::Nothing)?, front::<N>(kind, grr())?];
            let (plain, with, _) = compare(time_in_turn(&mut fronts, updates, 256, rounds), &fronts);
            this.plain = (this.plain.0.min(plain), this.plain.1.max(plain));
            this.aggregated = this.aggregated.min(with);
            this.share = aside(&fronts);
        }
        Ok(this)
    }
}

/// The share of updates that passed by the aggregator, of the front that has one.
pub(super) fn aside<const N: usize>(fronts: &[Front<N>]) -> f64 {
    let stats = fronts.iter().find_map(Front::stats).unwrap_or_default();
    stats.aside as f64 / (stats.updates + stats.aside).max(1) as f64
}

/// The claim about the most flows that were measured.
fn beside_exact(flows: usize) -> String {
    format!(
        "Count-Min behind the aggregator takes at most half the time of the exact table at {} flows",
        count(flows as u64)
    )
}

/// The number of flows from which on a sketch is faster than an exact table (Alipourfard, Moshref and Yu,
/// HotNets 2015).
pub(super) fn exact_table(study: &mut Study<'_>) -> anyhow::Result<()> {
    let mut ratios = Vec::new();
    let scale = if study.lab.quick { 10 } else { 1 };
    for (flows, packets) in [(20_000, 2_000_000), (200_000, 2_000_000), (5_000_000, 20_000_000)] {
        let (flows, packets) = (flows / scale, packets / scale);
        let mut random = Random(SEED);
        let uniform: Vec<u32> = (0..packets).map(|_| (random.share() * flows as f64) as u32).collect();
        for (order, numbers) in [("zipf 1.1", flow_numbers(packets, flows, 1.1, 1.0)), ("uniform", uniform)] {
            let stream = updates::<4>(&numbers);
            let mut fronts = [
                front::<4>(Kind::Exact, InFront::Nothing)?,
                front::<4>(Kind::CountMin, InFront::Nothing)?,
                front::<4>(Kind::CountMin, grr())?,
            ];
            let times = time_in_turn(&mut fronts, &stream, 256, study.rounds.min(3));
            let [exact, plain, with] = times.as_slice() else { continue };
            let bytes = fronts.each_ref().map(Front::sketch_bytes);
            let [exact_bytes, sketch_bytes, _] = bytes;
            study.findings.row(json!({
                "figure": "exact table", "keys": order, "flows": flows, "ns_exact": exact, "ns_count_min": plain,
                "ns_count_min_aggregated": with, "exact_bytes": exact_bytes, "count_min_bytes": sketch_bytes,
            }));
            ratios.push((flows, with / exact));
            study.lab.step(0.95)?;
        }
    }
    let most_flows = ratios.iter().map(|(flows, _)| *flows).max().unwrap_or_default();
    let most = ratios.iter().filter(|r| r.0 == most_flows).map(|r| r.1).fold(0.0, f64::max);
    study.claim(&beside_exact(most_flows), Value::Null, json!(most), "at most 0.5", most <= 0.5);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A claim names what was measured, and a measurement of nothing is none.
    #[test]
    fn claims_say_what_was_measured() {
        assert!(beside_exact(500_000).ends_with("exact table at 500,000 flows"));
        assert_eq!(overhead((0.0, ""), 0).measured, Value::Null);
        assert!(overhead((1.02, "mrac"), 9).measured.as_str().unwrap().starts_with("1.020, mrac; of 9"));
    }
}
