//! `slipstream measure`: questions about flows, answered by sketches.
//!
//! Packets of IPv4 and of IPv6 go to a sketch each (keys of four bytes cost much less than keys of sixteen), and answers are put
//! together exactly: no flow is of both. `lane` is one such sketch on its way through the trace, `answer` asks, `show` prints,
//! `state` saves.

mod answer;
mod keys;
mod lane;
mod saved;
mod show;
mod state;

use std::path::Path;
use std::sync::atomic::Ordering;

use anyhow::{anyhow, bail};
use clap::ValueEnum;
use slipstream::io::capture::CaptureReader;
use slipstream_sketch::{AggregatorConfig, Config, Eviction, Instructions, Kind, Size, Want};
use slipstream_wire::{Encapsulation, LinkType, classify_with};
use tracing::warn;

use super::{Outcome, report_damage};
use crate::check;
use crate::cli::{self, SketchName, Task};
use crate::port::Input;
use crate::replace::Replacement;
use crate::ui::{self, Progress};
use crate::units::Epoch;

use answer::{Answer, Ask};
use keys::{KeyKind, Keying};
use lane::{Lane, LaneConfig, lane};
use state::{Description, Saved, SavedEpoch};

/// Share of the memory that IPv4 gets, of four.
const IPV4_QUARTERS: u64 = 3;

/// One epoch of the result.
struct EpochResult {
    packets: u64,
    weight: u64,
    start_ns: u64,
    end_ns: u64,
    flows: Option<u64>,
    saturated: bool,
    answer: Answer,
}

/// Everything that is printed.
struct Report {
    task: Task,
    sketch: String,
    key: String,
    weight: String,
    aggregate: String,
    epoch: String,
    memory_bytes: usize,
    aggregator_bytes: usize,
    packets: u64,
    skipped: u64,
    spent_ns: Option<u64>,
    truncated_at_byte: Option<u64>,
    compared: bool,
    epochs: Vec<EpochResult>,
}

pub(super) fn run(args: &cli::Measure) -> anyhow::Result<Outcome> {
    match &args.action {
        None => trace(args),
        Some(cli::MeasureAction::Merge { states, save, task, answers }) => {
            saved::merge(states, save.as_deref(), *task, answers)
        }
        Some(cli::MeasureAction::Query { state, task, answers }) => saved::query(state, *task, answers),
    }
}

/// What `--sketch` says, or the sketch made for the task.
fn kind_of(sketch: Option<SketchName>, task: Task) -> Kind {
    match sketch {
        Some(SketchName::CountMin) => Kind::CountMin,
        Some(SketchName::FlowRadar) => Kind::FlowRadar,
        Some(SketchName::SpaceSaving) => Kind::SpaceSaving,
        Some(SketchName::RevSketch) => Kind::RevSketch,
        Some(SketchName::TwoLevel) => Kind::TwoLevel,
        Some(SketchName::Mrac) => Kind::Mrac,
        Some(SketchName::Fm) => Kind::Fm,
        Some(SketchName::LinearCounting) => Kind::LinearCounting,
        Some(SketchName::UnivMon) => Kind::UnivMon,
        Some(SketchName::Exact) => Kind::Exact,
        None => match task {
            Task::FlowSize => Kind::CountMin,
            Task::HeavyHitters => Kind::SpaceSaving,
            Task::HeavyChanges => Kind::RevSketch,
            Task::Superspreaders | Task::DdosVictims => Kind::TwoLevel,
            Task::SizeDistribution => Kind::Mrac,
            Task::Cardinality => Kind::LinearCounting,
            Task::Entropy => Kind::UnivMon,
        },
    }
}

/// How packets become keys for a task.
fn keying(key: Option<&str>, task: Task, kind: Kind) -> anyhow::Result<Keying> {
    let victims = task == Task::DdosVictims;
    let text = key.unwrap_or(if victims { "dst" } else { "src" });
    let key: KeyKind = text.parse().map_err(|e: String| anyhow!("--key {e}"))?;
    // A two-level sketch holds pairs whatever it is asked.
    if victims || task == Task::Superspreaders || kind == Kind::TwoLevel {
        return Keying::pairs(key, victims).map_err(|e| anyhow!("--{e}"));
    }
    Ok(Keying::plain(key))
}

fn ask(task: Task, keying: Keying, answers: &cli::Answers) -> anyhow::Result<Ask> {
    if !answers.flow.is_empty() && task != Task::FlowSize {
        bail!("--flow goes with the task flow-size, not with {}", state::task_name(task));
    }
    let flow = |text: &String| {
        let (key, ipv6) = keying.parse(text).map_err(|e| anyhow!(e))?;
        Ok((key.get().to_vec(), ipv6))
    };
    let flows = answers.flow.iter().map(flow).collect::<anyhow::Result<Vec<_>>>()?;
    let want = Want { threshold: answers.threshold.0, top: answers.top as usize };
    Ok(Ask { task, keying, want, flows })
}

/// The sketch of one IP version, with its part of the memory.
fn sketch_config(args: &cli::Measure, kind: Kind, ask: &Ask, ipv6: bool) -> Config {
    let size = match args.error {
        Some(error) => Size::Accuracy { error, confidence: args.confidence, flows: args.flows.0 },
        None => {
            let four = args.memory.0 / 4 * IPV4_QUARTERS;
            let part = if ipv6 { args.memory.0 - four } else { four };
            Size::Memory(usize::try_from(part).unwrap_or(usize::MAX))
        }
    };
    let lists = matches!(ask.task, Task::FlowSize | Task::HeavyHitters) && ask.flows.is_empty();
    let keep = if lists { (ask.want.top * 2).max(64) } else { 0 };
    let lens = ask.keying.source_lens();
    Config { kind, size, seed: args.seed, keep, source_len: if ipv6 { lens.1 } else { lens.0 } }
}

fn lane_config(args: &cli::Measure, kind: Kind, ask: &Ask, ipv6: bool) -> LaneConfig {
    let eviction = match args.aggregate {
        cli::Aggregate::Grr => Some(Eviction::Grr),
        cli::Aggregate::Lru => Some(Eviction::Lru),
        cli::Aggregate::Off => None,
    };
    let aggregator = |eviction| AggregatorConfig {
        eviction,
        instructions: Instructions::best(),
        seed: args.seed,
        ..AggregatorConfig::default()
    };
    LaneConfig {
        sketch: sketch_config(args, kind, ask, ipv6),
        aggregator: eviction.map(aggregator),
        compare: args.compare.is_some(),
        changes: ask.task == Task::HeavyChanges,
        save: args.save.is_some(),
    }
}

fn trace(args: &cli::Measure) -> anyhow::Result<Outcome> {
    let checks = check::parse_all(&args.answers.fail_if)?;
    let kind = kind_of(args.sketch, args.task);
    let keying = keying(args.key.as_deref(), args.task, kind)?;
    let ask = ask(args.task, keying, &args.answers)?;
    if kind == Kind::Mrac && args.weight == cli::Weight::Bytes {
        bail!(
            "--sketch mrac: its estimate is for sizes in packets; use --weight packets, or exact or flow-radar"
        );
    }
    let path = args.trace.as_deref().ok_or_else(|| anyhow!("no trace was named"))?;
    // Made and asked before any packet is read, so that what can't work is told at once.
    let configs = [lane_config(args, kind, &ask, false), lane_config(args, kind, &ask, true)];
    let (four, six) = keying.lens();
    for (len, config) in [four, six].into_iter().zip(&configs) {
        lane(len, config)?.end_epoch(&ask)?;
    }
    let save = args.save.as_deref().map(|p| Replacement::create("--save", p)).transpose()?;
    let mut run = Run::new(args, &ask, configs)?;
    let (skipped, damage) = run.read(path)?;
    run.end_epoch()?;
    let report = Report {
        task: args.task,
        sketch: kind.name().to_owned(),
        key: keying.kind().to_string(),
        weight: name_of(args.weight),
        aggregate: name_of(args.aggregate),
        epoch: args.epoch.to_string(),
        memory_bytes: run.memory_bytes,
        aggregator_bytes: run.aggregator_bytes,
        packets: run.all_packets,
        skipped,
        spent_ns: Some(run.lanes.iter().flatten().map(|l| l.spent_ns()).sum()),
        truncated_at_byte: damage,
        compared: args.compare.is_some(),
        epochs: run.epochs,
    };
    if let Some(file) = save {
        let about = Description {
            task: args.task,
            sketch: report.sketch.clone(),
            key: keying.kind(),
            pairs: keying.is_pairs(),
            weight: report.weight.clone(),
            epoch: report.epoch.clone(),
            aggregate: report.aggregate.clone(),
        };
        Saved { about, epochs: run.saved }.write(file)?;
    }
    show::finish(&report, args.answers.format, &checks)
}

/// The name of an option's value.
fn name_of(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|v| v.get_name().to_owned()).unwrap_or_default()
}

/// A trace on its way through the lanes.
struct Run<'a> {
    args: &'a cli::Measure,
    ask: &'a Ask,
    configs: [LaneConfig; 2],
    /// IPv4 and, from the first such packet on, IPv6.
    lanes: [Option<Box<dyn Lane>>; 2],
    epochs: Vec<EpochResult>,
    saved: Vec<SavedEpoch>,
    packets: u64,
    all_packets: u64,
    start: u64,
    last: u64,
    memory_bytes: usize,
    aggregator_bytes: usize,
}

impl<'a> Run<'a> {
    fn new(args: &'a cli::Measure, ask: &'a Ask, configs: [LaneConfig; 2]) -> anyhow::Result<Self> {
        let [four, _] = &configs;
        let lanes = [Some(lane(ask.keying.lens().0, four)?), None];
        Ok(Self {
            args,
            ask,
            configs,
            lanes,
            epochs: Vec::new(),
            saved: Vec::new(),
            packets: 0,
            all_packets: 0,
            start: 0,
            last: 0,
            memory_bytes: 0,
            aggregator_bytes: 0,
        })
    }

    /// Reads a trace; returns how many packets were no IP packets, and where it is damaged.
    fn read(&mut self, path: &Path) -> anyhow::Result<(u64, Option<u64>)> {
        let name = path.display().to_string();
        let progress = Progress::new(&name);
        let interrupted = ui::interrupts()?;
        let mut skipped = 0;
        let damage = match Input::open(path)? {
            Input::Capture(mut reader) => {
                let mut n = 0u64;
                while let Some(record) = reader.next_record()? {
                    skipped += u64::from(!self.packet(
                        record.time.0,
                        record.link,
                        record.original_len,
                        record.data,
                    )?);
                    n += 1;
                    if n.is_multiple_of(1 << 16) {
                        progress.at(share(&reader));
                        if interrupted.load(Ordering::Relaxed) {
                            bail!("interrupted");
                        }
                    }
                }
                drop(progress);
                report_damage(&reader, self.args.strict)?
            }
            Input::Synth(mut synth) => {
                let mut frame = Vec::new();
                while let Some(at) = synth.next_packet(&mut frame) {
                    let data = frame.get(..synth.config().captured_len(frame.len())).unwrap_or(&frame);
                    skipped += u64::from(!self.packet(at.0, LinkType::Ethernet, frame.len() as u32, data)?);
                    if self.all_packets.is_multiple_of(1 << 16) {
                        progress.at(Some(self.all_packets as f64 / synth.config().packets.max(1) as f64));
                        if interrupted.load(Ordering::Relaxed) {
                            bail!("interrupted");
                        }
                    }
                }
                None
            }
        };
        Ok((skipped, damage))
    }

    /// Takes in one packet; whether it is an IP packet.
    fn packet(&mut self, time: u64, link: LinkType, len: u32, data: &[u8]) -> anyhow::Result<bool> {
        let tunnel = match self.args.tunnel {
            cli::Tunnel::Outer => Encapsulation::Outer,
            cli::Tunnel::Inner => Encapsulation::Inner,
        };
        let Ok(headers) = classify_with(link, data, tunnel) else { return Ok(false) };
        let time = time.max(self.last);
        if self.all_packets == 0 {
            (self.start, self.last) = (time, time);
        }
        match self.args.epoch {
            Epoch::Packets(n) if self.packets == n => {
                self.end_epoch()?;
                self.start = time;
            }
            Epoch::Time(ns) => self.pass_time(time, ns)?,
            Epoch::Packets(_) => {}
        }
        self.last = time;
        (self.packets, self.all_packets) = (self.packets + 1, self.all_packets + 1);
        let key = self.ask.keying.key(&headers.key);
        let weight = if self.args.weight == cli::Weight::Bytes { len } else { 1 };
        let six = headers.key.is_ipv6();
        let [first, second] = &mut self.lanes;
        let lane_of = if six { second } else { first };
        if let Some(lane) = lane_of {
            lane.push(key.get(), weight);
        } else {
            let [_, config] = &self.configs;
            let mut new = lane(self.ask.keying.lens().1, config)?;
            new.push(key.get(), weight);
            *lane_of = Some(new);
        }
        Ok(true)
    }

    /// Ends epochs that are over; one without packets stands for any number of them in a row.
    fn pass_time(&mut self, time: u64, ns: u64) -> anyhow::Result<()> {
        let over = (time - self.start) / ns;
        if over == 0 {
            return Ok(());
        }
        self.last = self.start.saturating_add(ns);
        self.end_epoch()?;
        self.start = self.last;
        if over > 1 {
            self.last = self.start.saturating_add((over - 1).saturating_mul(ns));
            self.end_epoch()?;
            self.start = self.last;
        }
        Ok(())
    }

    fn end_epoch(&mut self) -> anyhow::Result<()> {
        let mut sides = Vec::with_capacity(2);
        for lane in self.lanes.iter_mut() {
            sides.push(lane.as_mut().map(|l| l.end_epoch(self.ask)).transpose()?);
        }
        let all = || sides.iter().flatten();
        self.memory_bytes = self.memory_bytes.max(all().map(|s| s.memory_bytes).sum());
        self.aggregator_bytes = self.aggregator_bytes.max(all().map(|s| s.aggregator_bytes).sum());
        let weight = all().fold(0u64, |sum, s| sum.saturating_add(s.weight));
        let flows = all().filter_map(|s| s.flows).reduce(|a, b| a + b);
        let saturated = all().any(|s| s.saturated);
        let mut states: [Vec<u8>; 2] = Default::default();
        for (to, side) in states.iter_mut().zip(&mut sides) {
            *to = side.as_mut().and_then(|s| s.state.take()).unwrap_or_default();
        }
        let weights = sides.iter().map(|s| s.as_ref().map_or(0, |s| s.weight)).collect::<Vec<_>>();
        let answers = sides.into_iter().flatten().map(|s| s.answer);
        let weights = (weights.first().copied().unwrap_or(0), weights.get(1).copied().unwrap_or(0));
        let answer = answers.reduce(|a, b| a.join(b, weights, self.ask));
        let Some(answer) = answer else { bail!("an epoch without a sketch") };
        let (packets, start_ns, end_ns) = (self.packets, self.start, self.last);
        if saturated {
            warn!(
                "epoch {}: the sketch is saturated; give it more --memory or a shorter --epoch",
                self.epochs.len()
            );
        }
        self.epochs.push(EpochResult { packets, weight, start_ns, end_ns, flows, saturated, answer });
        if self.args.save.is_some() {
            self.saved.push(SavedEpoch { packets, start_ns, end_ns, states });
        }
        self.packets = 0;
        Ok(())
    }
}

fn share(reader: &CaptureReader) -> Option<f64> {
    reader.file_len().map(|all| reader.bytes_read() as f64 / all.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_has_a_sketch_that_answers_it() {
        for task in Task::value_variants() {
            let kind = kind_of(None, *task);
            let keying = keying(None, *task, kind).unwrap();
            let want = Want { threshold: 0, top: 5 };
            let ask = Ask { task: *task, keying, want, flows: Vec::new() };
            for (len, source_len) in
                [(keying.lens().0, keying.source_lens().0), (keying.lens().1, keying.source_lens().1)]
            {
                let sketch = Config { kind, size: Size::Memory(1 << 18), seed: 1, keep: 5, source_len };
                let config =
                    LaneConfig { sketch, aggregator: None, compare: true, changes: false, save: false };
                lane(len, &config).unwrap().end_epoch(&ask).unwrap();
            }
        }
    }
}
