//! What an aggregator in front of sketches gains (Agg-Evict paper, Figs. 2, 5, 6, 7, 8), and trains instead of it.
//!
//! Everything is measured in this process on keys in memory, with the drain of the aggregator in the time. Tables are
//! warmed by a first pass; rows that are compared are measured in turn, several times, and the least time counts.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use serde_json::{Value, json};
use slipstream::clock::thread_cpu_ns;
use slipstream::io::capture::{CaptureError, Interface};
use slipstream::io::synth::{Order, Size, Synth, SynthConfig, TrainModel};
use slipstream::pool::{PacketMeta, Pool};
use slipstream::reframe::ReframeConfig;
use slipstream::runtime::{Replay, Sink, SynthSource};
use slipstream::time::Nanos;
use slipstream_sketch::{
    AggregatorConfig, CountMin, CountMinParams, Eviction, Exact, FlowRadar, FlowRadarParams, Fm, Front,
    Instructions, Kind, LinearCounting, Mrac, RevSketch, Sketch, SpaceSaving, TwoLevel, TwoLevelParams,
    UnivMon, UnivMonParams, Update,
};
use slipstream_wire::{FlowKey, LinkType, classify};

use super::{Bench, Chart, Claim, Findings, Lab};

pub(super) const LAB: Lab = Lab {
    name: "measure",
    source: "Accelerating Network Measurement in Software (CCR'18), Figs. 2, 5, 6, 7, 8",
    what: "time of sketches with and without an aggregator in front",
    run,
};

const SEED: u64 = 7;
/// Mean length of bursts.
const BURST: f64 = 6.0;

/// Numbers between 0 and 1 from a seed (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) >> 11) as f64 / (1u64 << 53) as f64
    }
}

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
        let at = random.next() * sum;
        sums.partition_point(|s| *s < at) as u32
    };
    let mut now = draw(&mut random);
    (0..packets)
        .map(|_| {
            if random.next() * burst < 1.0 {
                now = draw(&mut random);
            }
            now
        })
        .collect()
}

/// A flow number as a key: its first bytes look random, as addresses do, and name the flow.
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
    Ok(match kind {
        Kind::CountMin => Box::new(CountMin::new(CountMinParams { rows: 4, width: 65_536, keep: 0 }, SEED)?),
        Kind::FlowRadar => Box::new(FlowRadar::new(FlowRadarParams { cells: 65_536, lines: 16_384 }, SEED)?),
        Kind::SpaceSaving => Box::new(SpaceSaving::new(128, SEED)?),
        Kind::RevSketch => Box::new(RevSketch::new(16, SEED)?),
        Kind::TwoLevel => {
            let params = TwoLevelParams { source_len: N / 2, bits: 16, width: 4096 };
            Box::new(TwoLevel::new(params, SEED)?)
        }
        Kind::Mrac => Box::new(Mrac::new(4 * 65_536, SEED)?),
        Kind::Fm => Box::new(Fm::new(4, SEED)?),
        Kind::LinearCounting => Box::new(LinearCounting::new(4 * 65_536 / 2, SEED)?),
        Kind::UnivMon => Box::new(UnivMon::new(UnivMonParams { levels: 4, width: 16_384, keep: 128 }, SEED)?),
        Kind::Exact => Box::new(Exact::new(SEED)),
    })
}

/// What stands in front of a sketch.
#[derive(Clone, Copy)]
enum Before {
    Nothing,
    Aggregator(AggregatorConfig),
}

fn grr() -> Before {
    Before::Aggregator(AggregatorConfig::default())
}

fn front<const N: usize>(kind: Kind, before: Before) -> anyhow::Result<Front<N>> {
    let sketch = sketch(kind)?;
    Ok(match before {
        Before::Nothing => Front::plain(sketch),
        Before::Aggregator(config) => Front::aggregated(sketch, &config)?,
    })
}

/// Fronts over one stream, in turn: the least CPU time an update of each in ns, batches of `batch` updates at a time. CPU time, for
/// a round takes longer than what a scheduler grants at a time.
fn race<const N: usize>(
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

/// Rows and charts in the making.
struct Book<'a> {
    lab: &'a Bench<'a>,
    findings: Findings,
    packets: usize,
    rounds: usize,
}

impl Book<'_> {
    fn row(&mut self, value: Value) {
        if let Value::Object(map) = value {
            self.findings.rows.push(map);
        }
    }

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
        self.findings.charts.push(Chart {
            title: title.to_owned(),
            caption: "Time an update, the drain of the aggregator included; least of several rounds."
                .to_owned(),
            x_label: x_label.to_owned(),
            y_label: y_label.to_owned(),
            groups,
            series,
        });
    }

    fn claim(&mut self, claim: &str, paper: Value, measured: Value, holds: bool) {
        self.findings.claims.push(Claim {
            claim: claim.to_owned(),
            paper,
            measured,
            holds: Some(holds),
            comparable: true,
            why: None,
        });
    }
}

fn run(lab: &Bench<'_>) -> anyhow::Result<Findings> {
    let (packets, rounds) = if lab.quick { (200_000, 2) } else { (2_000_000, 5) };
    let mut book = Book { lab, findings: Findings::default(), packets, rounds };
    let flows = packets * 3 / 10;
    let shuffled = flow_numbers(packets, flows, 1.1, 1.0);
    let bursts = flow_numbers(packets, flows, 1.1, BURST);
    batches(&mut book, &shuffled)?;
    lab.step(0.1)?;
    solutions(&mut book, &shuffled, &bursts)?;
    lab.step(0.5)?;
    keys(&mut book, &bursts)?;
    lab.step(0.6)?;
    skew_and_size(&mut book, &shuffled)?;
    lab.step(0.8)?;
    design(&mut book, &shuffled)?;
    lab.step(0.9)?;
    trains(&mut book)?;
    distinct(&mut book)?;
    exact_table(&mut book)?;
    not_comparable(&mut book.findings);
    Ok(book.findings)
}

/// Fig. 2: FlowRadar, fed in batches; how many flows a batch has.
fn batches(book: &mut Book<'_>, flows: &[u32]) -> anyhow::Result<()> {
    let stream = updates::<4>(flows);
    let mut fronts = [front::<4>(Kind::FlowRadar, Before::Nothing)?];
    let (mut shares, mut times) = (Vec::new(), Vec::new());
    let sizes = [32, 128, 512, 2048, 8192];
    for batch in sizes {
        let unique: usize = flows.chunks(batch).map(|c| c.iter().collect::<BTreeSet<_>>().len()).sum();
        let share = unique as f64 / flows.len() as f64;
        let ns = race(&mut fronts, &stream, batch, book.rounds).first().copied().unwrap_or(f64::NAN);
        book.row(json!({ "figure": "2", "batch": batch, "unique_share": share, "ns_per_update": ns }));
        shares.push(share);
        times.push(ns);
    }
    let labels = sizes.iter().map(ToString::to_string).collect();
    book.chart(
        "Fig. 2b: flows in a batch",
        "packets in a batch",
        "flows ÷ packets",
        labels,
        vec![("flows", shares.clone())],
    );
    let ratio = shares.first().copied().unwrap_or(1.0) / shares.last().copied().unwrap_or(1.0);
    let claim = "Fig. 2b: flows a packet in batches of 32, over those in batches of 8192";
    book.claim(claim, json!(2.23), json!(ratio), ratio > 1.5);
    Ok(())
}

/// Fig. 5: all nine, and the exact table, plain and behind the aggregator, in both orders.
fn solutions(book: &mut Book<'_>, shuffled: &[u32], bursts: &[u32]) -> anyhow::Result<()> {
    for (order, flows) in [("shuffled", shuffled), ("bursts", bursts)] {
        let (four, eight) = (updates::<4>(flows), updates::<8>(flows));
        let (mut plain, mut with, mut names) = (Vec::new(), Vec::new(), Vec::new());
        for kind in Kind::ALL {
            // TwoLevel counts pairs of a source and its counterpart.
            let (a, b, bytes) = if kind == Kind::TwoLevel {
                let mut fronts = [front::<8>(kind, Before::Nothing)?, front::<8>(kind, grr())?];
                compare(race(&mut fronts, &eight, 256, book.rounds), &fronts)
            } else {
                let mut fronts = [front::<4>(kind, Before::Nothing)?, front::<4>(kind, grr())?];
                compare(race(&mut fronts, &four, 256, book.rounds), &fronts)
            };
            book.row(json!({
                "figure": "5", "order": order, "sketch": kind.name(), "memory_bytes": bytes,
                "ns_plain": a, "ns_aggregated": b, "speed_up": a / b,
            }));
            names.push(kind.name().to_owned());
            plain.push(a);
            with.push(b);
            book.lab.step(0.1)?;
        }
        let slower =
            plain.iter().zip(&with).zip(Kind::ALL).filter(|((a, b), k)| *b > *a && *k != Kind::Exact);
        let slower: Vec<&str> = slower.map(|(_, k)| k.name()).collect();
        let best = plain.iter().zip(&with).map(|(a, b)| a / b).fold(0.0, f64::max);
        book.chart(
            &format!("Fig. 5: nine solutions, {order}"),
            "",
            "ns an update",
            names,
            vec![("plain", plain), ("aggregator", with)],
        );
        let claim = format!("Fig. 5b, {order}: the aggregator makes all nine faster");
        let measured =
            if slower.is_empty() { json!("all nine") } else { json!(format!("not {}", slower.join(", "))) };
        book.claim(&claim, json!("all nine"), measured, slower.is_empty());
        book.claim(
            &format!("Fig. 5b, {order}: latency lower by up to"),
            json!(5.7),
            json!(best),
            best >= 2.0,
        );
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
fn keys(book: &mut Book<'_>, flows: &[u32]) -> anyhow::Result<()> {
    fn of<const N: usize>(flows: &[u32], rounds: usize, batch: usize) -> anyhow::Result<(f64, f64, usize)> {
        let mut fronts = [front::<N>(Kind::FlowRadar, Before::Nothing)?, front::<N>(Kind::FlowRadar, grr())?];
        Ok(compare(race(&mut fronts, &updates(flows), batch, rounds), &fronts))
    }
    let mut faster = true;
    for (name, (a, b, _)) in [
        ("source (4 bytes)", of::<4>(flows, book.rounds, 256)?),
        ("source and destination (8 bytes)", of::<8>(flows, book.rounds, 256)?),
        ("5-tuple (13 bytes)", of::<13>(flows, book.rounds, 256)?),
    ] {
        book.row(json!({ "figure": "6ab", "key": name, "ns_plain": a, "ns_aggregated": b, "mpps_aggregated": 1e3 / b }));
        faster &= b < a;
    }
    book.claim(
        "Fig. 6b: FlowRadar is faster behind the aggregator for every kind of key",
        json!(true),
        json!(faster),
        faster,
    );
    for batch in [32, 256, 1024, 8192] {
        let (a, b, _) = of::<4>(flows, book.rounds, batch)?;
        book.row(json!({ "figure": "6c", "batch": batch, "ns_plain": a, "ns_aggregated": b }));
    }
    Ok(())
}

/// Fig. 7: skew, and the size of the aggregator.
fn skew_and_size(book: &mut Book<'_>, shuffled: &[u32]) -> anyhow::Result<()> {
    let (mut plain, mut with, mut labels) = (Vec::new(), Vec::new(), Vec::new());
    for skew in [0.3, 0.6, 0.9, 1.1, 1.5, 2.0] {
        let stream = updates::<4>(&flow_numbers(book.packets, book.packets * 3 / 10, skew, 1.0));
        let mut fronts = [front::<4>(Kind::FlowRadar, Before::Nothing)?, front::<4>(Kind::FlowRadar, grr())?];
        let (a, b, _) = compare(race(&mut fronts, &stream, 256, book.rounds), &fronts);
        book.row(json!({ "figure": "7ab", "skew": skew, "ns_plain": a, "ns_aggregated": b }));
        labels.push(skew.to_string());
        plain.push(a);
        with.push(b);
    }
    let falls = with.first() > with.last();
    book.chart(
        "Fig. 7b: FlowRadar by skew",
        "Zipf exponent",
        "ns an update",
        labels,
        vec![("plain", plain), ("aggregator", with)],
    );
    book.claim(
        "Fig. 7b: behind the aggregator, time falls as traffic is more skewed",
        json!(true),
        json!(falls),
        falls,
    );
    let stream = updates::<4>(shuffled);
    let mut times = Vec::new();
    for buckets in [125, 250, 500, 1000, 2000, 4000, 8000] {
        let config = AggregatorConfig { buckets, ..AggregatorConfig::default() };
        let mut fronts = [front::<4>(Kind::FlowRadar, Before::Aggregator(config))?];
        let ns = race(&mut fronts, &stream, 256, book.rounds).first().copied().unwrap_or(f64::NAN);
        let [front] = &fronts;
        let stats = front.stats().unwrap_or_default();
        let share = stats.hits as f64 / stats.updates.max(1) as f64;
        let bytes = front.aggregator_bytes();
        book.row(json!({
            "figure": "7c", "buckets": buckets, "aggregator_bytes": bytes, "ns_aggregated": ns, "hit_share": share,
        }));
        times.push(ns);
    }
    let falls = times.first() > times.get(4);
    book.claim(
        "Fig. 7c: a larger aggregator is faster (125 against 2000 buckets)",
        json!(true),
        json!(falls),
        falls,
    );
    Ok(())
}

/// Fig. 8: GRR against LRU, SIMD against none.
fn design(book: &mut Book<'_>, shuffled: &[u32]) -> anyhow::Result<()> {
    let with = |eviction, instructions| {
        Before::Aggregator(AggregatorConfig { eviction, instructions, ..AggregatorConfig::default() })
    };
    let best = Instructions::best();
    let (four, eight) = (updates::<4>(shuffled), updates::<8>(shuffled));
    let mut grr_wins = 0;
    for kind in Kind::ALL.into_iter().filter(|k| *k != Kind::Exact) {
        let (grr, lru) = (with(Eviction::Grr, best), with(Eviction::Lru, best));
        let (a, b, _) = if kind == Kind::TwoLevel {
            let mut fronts = [front::<8>(kind, grr)?, front::<8>(kind, lru)?];
            compare(race(&mut fronts, &eight, 256, book.rounds), &fronts)
        } else {
            let mut fronts = [front::<4>(kind, grr)?, front::<4>(kind, lru)?];
            compare(race(&mut fronts, &four, 256, book.rounds), &fronts)
        };
        grr_wins += u32::from(a <= b);
        book.row(json!({ "figure": "8a", "sketch": kind.name(), "ns_grr": a, "ns_lru": b }));
    }
    let claim = "Fig. 8a: GRR is faster than LRU for the seven solutions without a heap";
    book.claim(claim, json!("7 of 9"), json!(format!("{grr_wins} of 9")), grr_wins >= 7);
    let mut times = BTreeMap::new();
    let all = Instructions::available();
    let mut fronts = Vec::new();
    for instructions in &all {
        fronts.push(front::<4>(Kind::FlowRadar, with(Eviction::Grr, *instructions))?);
    }
    let stream = updates::<4>(&flow_numbers(book.packets, book.packets / 100, 1.1, BURST));
    for (instructions, ns) in all.iter().zip(race(&mut fronts, &stream, 256, book.rounds)) {
        let name = format!("{instructions:?}").to_lowercase();
        book.row(json!({ "figure": "8bc", "instructions": name, "ns_aggregated": ns }));
        times.insert(name, ns);
    }
    let portable = times.get("portable").copied().unwrap_or(f64::NAN);
    let simd = times.values().copied().fold(f64::INFINITY, f64::min);
    book.claim(
        "Fig. 8c: SIMD saves about so many ns an update",
        json!(20),
        json!(portable - simd),
        portable > simd,
    );
    Ok(())
}

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
fn trains(book: &mut Book<'_>) -> anyhow::Result<()> {
    let config = SynthConfig {
        flows: 20_000,
        packets: book.packets as u64 / 4,
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
        let mut reframe = ReframeConfig::default();
        reframe.default.hold_ns = hold_ns;
        let mut keys = Keys::default();
        let mut tick = |_: Option<f64>| ControlFlow::Continue(());
        Replay::new(&reframe)?.run(&mut SynthSource::new(synth), Pool::new(), &mut keys, &mut tick)?;
        Ok(keys.0)
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
            [front::<13>(Kind::FlowRadar, Before::Nothing)?, front::<13>(Kind::FlowRadar, grr())?];
        let (plain, with, _) = compare(race(&mut fronts, &packets, 256, book.rounds), &fronts);
        let (per_train, both, _) = compare(race(&mut fronts, &trains, 256, book.rounds), &fronts);
        let share = trains.len() as f64 / packets.len().max(1) as f64;
        book.row(json!({
            "figure": "trains", "order": order, "updates_per_packet": share, "ns_plain": plain,
            "ns_aggregated": with, "ns_per_train": per_train * share, "ns_per_train_aggregated": both * share,
        }));
        results.insert(if held { "trains" } else { "plain" }, if held { per_train * share } else { plain });
    }
    let of = |name: &str| results.get(name).copied().unwrap_or(f64::NAN);
    let (plain, trains) = (of("plain"), of("trains"));
    let text = "One update a train behind reframe costs less a packet than one a packet (FlowRadar, 5-tuple)";
    book.claim(text, Value::Null, json!(format!("{trains:.1} ns against {plain:.1}")), trains < plain);
    Ok(())
}

/// Where every key is another, an aggregator can only cost.
fn distinct(book: &mut Book<'_>) -> anyhow::Result<()> {
    let flows: Vec<u32> = (0..book.packets as u32).collect();
    let stream = updates::<4>(&flows);
    let mut worst = 0.0f64;
    for kind in [Kind::CountMin, Kind::Mrac, Kind::LinearCounting, Kind::Fm, Kind::FlowRadar] {
        let mut fronts = [front::<4>(kind, Before::Nothing)?, front::<4>(kind, grr())?];
        let (a, b, _) = compare(race(&mut fronts, &stream, 256, book.rounds), &fronts);
        book.row(json!({ "figure": "all distinct", "sketch": kind.name(), "ns_plain": a, "ns_aggregated": b, "ratio": b / a }));
        worst = worst.max(b / a);
    }
    let text = "All keys distinct: the aggregator steps aside and costs at most 5 % (not in the paper)";
    book.claim(text, Value::Null, json!(worst), worst <= 1.05);
    Ok(())
}

/// From how many flows on a sketch is faster than the table that it saves (Alipourfard, Moshref and Yu, HotNets 2015).
fn exact_table(book: &mut Book<'_>) -> anyhow::Result<()> {
    let mut ratios = Vec::new();
    let scale = if book.lab.quick { 10 } else { 1 };
    for (flows, packets) in [(20_000, 2_000_000), (200_000, 2_000_000), (5_000_000, 20_000_000)] {
        let (flows, packets) = (flows / scale, packets / scale);
        let mut random = Random(SEED);
        let uniform: Vec<u32> = (0..packets).map(|_| (random.next() * flows as f64) as u32).collect();
        for (order, numbers) in [("zipf 1.1", flow_numbers(packets, flows, 1.1, 1.0)), ("uniform", uniform)] {
            let stream = updates::<4>(&numbers);
            let mut fronts = [
                front::<4>(Kind::Exact, Before::Nothing)?,
                front::<4>(Kind::CountMin, Before::Nothing)?,
                front::<4>(Kind::CountMin, grr())?,
            ];
            let times = race(&mut fronts, &stream, 256, book.rounds.min(3));
            let [exact, plain, with] = times.as_slice() else { continue };
            let bytes = fronts.each_ref().map(Front::sketch_bytes);
            let [exact_bytes, sketch_bytes, _] = bytes;
            book.row(json!({
                "figure": "exact table", "keys": order, "flows": flows, "ns_exact": exact, "ns_count_min": plain,
                "ns_count_min_aggregated": with, "exact_bytes": exact_bytes, "count_min_bytes": sketch_bytes,
            }));
            ratios.push(with / exact);
            book.lab.step(0.95)?;
        }
    }
    let most = ratios.iter().copied().skip(4).fold(0.0, f64::max);
    let text = "Count-Min behind the aggregator takes at most half the time of the exact table at 5 M flows";
    book.claim(text, Value::Null, json!(most), most <= 0.5);
    Ok(())
}

fn not_comparable(findings: &mut Findings) {
    findings.claims.push(Claim {
        claim: "Fig. 5a: eight of nine solutions reach 14.88 Mpps behind the aggregator".to_owned(),
        paper: json!("14.88 Mpps"),
        measured: Value::Null,
        holds: None,
        comparable: false,
        why: Some("needs a 10G card and DPDK; times an update stand in rows of figure 5".to_owned()),
    });
}
