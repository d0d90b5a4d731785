//! `slipstream measure`: questions about flows, answered by sketches.
//!
//! Packets of IPv4 and of IPv6 go to a sketch each (keys of four bytes cost much less than keys of sixteen), and answers are put
//! together exactly: no flow is of both ([`slipstream::measure`]). Here a trace is read; `show` prints, `state` saves.

mod saved;
mod show;
mod state;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{anyhow, bail};
use clap::ValueEnum;
use slipstream::io::capture::CaptureReader;
use slipstream::measure::{self, Ask, EpochLength, EpochResult, Keying, Lanes, Plan, Span, Task};
use slipstream_sketch::{Eviction, Kind, Size, Want};
use slipstream_wire::{Encapsulation, LinkType, classify_with};
use tracing::warn;

use super::{Outcome, report_damage};
use crate::check;
use crate::cli::{Tunnel, measure as cli};
use crate::port::Input;
use crate::replace::Replacement;
use crate::ui::{self, Progress};

use state::{Description, Saved, SavedEpoch};

/// Everything that is printed.
struct Report {
    task: Task,
    sketch: String,
    key: String,
    weight: String,
    aggregate: String,
    epoch: String,
    tunnel: String,
    seed: u64,
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

fn ask(task: Task, keying: Keying, answers: &cli::Answers) -> anyhow::Result<Ask> {
    if !answers.flow.is_empty() && task != Task::FlowSize {
        bail!("--flow goes with the task flow-size, not with {task}");
    }
    let flow = |text: &String| {
        let (key, ipv6) = keying.parse(text).map_err(|e| anyhow!(e))?;
        Ok((key.get().to_vec(), ipv6))
    };
    let flows = answers.flow.iter().map(flow).collect::<anyhow::Result<Vec<_>>>()?;
    let want = Want { threshold: answers.threshold.0, top: answers.top as usize };
    Ok(Ask { task, keying, want, flows })
}

fn plan(args: &cli::Measure, kind: Kind) -> Plan {
    let memory = usize::try_from(args.memory.0).unwrap_or(usize::MAX);
    Plan {
        kind,
        size: match args.error {
            Some(error) => Size::Accuracy { error, confidence: args.confidence, flows: args.flows.0 },
            None => Size::Memory(memory),
        },
        aggregate: match args.aggregate {
            cli::Aggregate::Grr => Some(Eviction::Grr),
            cli::Aggregate::Lru => Some(Eviction::Lru),
            cli::Aggregate::Off => None,
        },
        seed: args.seed,
        compare: args.compare.is_some(),
        save: args.save.is_some(),
        timed: true,
    }
}

fn trace(args: &cli::Measure) -> anyhow::Result<Outcome> {
    let checks = check::parse_all(&args.answers.fail_if)?;
    let task = args.task;
    let kind = args.sketch.unwrap_or(task.sketch());
    let keying = measure::keying(args.key.as_deref(), task, kind).map_err(|e| anyhow!("--key: {e}"))?;
    let ask = Arc::new(ask(task, keying, &args.answers)?);
    if kind == Kind::Mrac && args.weight == cli::Weight::Bytes {
        bail!(
            "--sketch mrac: its estimate is for sizes in packets; use --weight packets, or exact or flow-radar"
        );
    }
    let path = match args.trace.as_slice() {
        [one] => one,
        [] => bail!("no trace was named"),
        several => bail!(
            "{} traces; measure takes one: --save a state of each, and `slipstream measure merge` adds them up",
            several.len()
        ),
    };
    // Made and asked before any packet is read, so that what can't work is told at once.
    let lanes = Lanes::new(ask.clone(), plan(args, kind).lanes(&ask))?;
    let save = args.save.as_deref().map(|p| Replacement::create("--save", p)).transpose()?;
    let mut run = Run::new(args, lanes);
    let (skipped, damage) = run.read(path)?;
    run.end_epoch(true)?;
    if run.ipv6 && keying.kind().leaves_ipv6_whole() {
        let key = keying.kind();
        warn!(
            "--key {key} names networks of IPv4: IPv6 addresses are left whole; {key}/56 names those of both"
        );
    }
    let report = Report {
        task,
        sketch: kind.name().to_owned(),
        key: keying.kind().to_string(),
        weight: name_of(args.weight),
        aggregate: name_of(args.aggregate),
        epoch: args.epoch.to_string(),
        tunnel: name_of(args.tunnel),
        seed: args.seed,
        memory_bytes: run.memory_bytes,
        aggregator_bytes: run.aggregator_bytes,
        packets: run.all_packets,
        skipped,
        spent_ns: Some(run.lanes.spent_ns()),
        truncated_at_byte: damage,
        compared: args.compare.is_some(),
        epochs: run.epochs,
    };
    if let Some(file) = save {
        let about = Description {
            task,
            sketch: report.sketch.clone(),
            key: keying.kind(),
            pairs: keying.is_pairs(),
            weight: report.weight.clone(),
            epoch: report.epoch.clone(),
            aggregate: report.aggregate.clone(),
            tunnel: report.tunnel.clone(),
            seed: report.seed,
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
    lanes: Lanes,
    epochs: Vec<EpochResult>,
    saved: Vec<SavedEpoch>,
    /// The epoch under way.
    span: Span,
    all_packets: u64,
    /// Whether there was IPv6.
    ipv6: bool,
    memory_bytes: usize,
    aggregator_bytes: usize,
}

impl<'a> Run<'a> {
    fn new(args: &'a cli::Measure, lanes: Lanes) -> Self {
        Self {
            args,
            lanes,
            epochs: Vec::new(),
            saved: Vec::new(),
            span: Span::default(),
            all_packets: 0,
            ipv6: false,
            memory_bytes: 0,
            aggregator_bytes: 0,
        }
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
                            return Err(ui::Interrupted.into());
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
                            return Err(ui::Interrupted.into());
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
            Tunnel::Outer => Encapsulation::Outer,
            Tunnel::Inner => Encapsulation::Inner,
        };
        let Ok(headers) = classify_with(link, data, tunnel) else { return Ok(false) };
        self.ipv6 |= headers.key.is_ipv6();
        let time = time.max(self.span.last_ns);
        let epoch = self.args.epoch;
        if self.all_packets == 0 {
            self.span = Span::begin(epoch, time);
        }
        match epoch {
            EpochLength::Packets(n) if self.span.packets == n => {
                self.end_epoch(false)?;
                self.span = Span::begin(epoch, time);
            }
            EpochLength::Time(_) if time >= self.span.end_ns => self.pass_time(time)?,
            _ => {}
        }
        self.span.last_ns = time;
        if let EpochLength::Packets(_) = epoch {
            self.span.end_ns = time;
        }
        (self.span.packets, self.all_packets) = (self.span.packets + 1, self.all_packets + 1);
        let weight = if self.args.weight == cli::Weight::Bytes { len } else { 1 };
        self.lanes.push(&headers.key, u64::from(weight))?;
        Ok(true)
    }

    /// Ends epochs that are over; one without packets stands for any number of them in a row.
    fn pass_time(&mut self, time: u64) -> anyhow::Result<()> {
        self.end_epoch(false)?;
        let next = Span::begin(self.args.epoch, time);
        let ended = self.span.end_ns;
        if next.start_ns > ended {
            self.span = Span { start_ns: ended, end_ns: next.start_ns, ..Span::default() };
            self.end_epoch(false)?;
        }
        self.span = next;
        Ok(())
    }

    fn end_epoch(&mut self, last: bool) -> anyhow::Result<()> {
        let by_time = matches!(self.args.epoch, EpochLength::Time(_)) && self.span.packets > 0;
        self.span.partial = by_time && (last || self.epochs.is_empty());
        let span = self.span;
        let ended = self.lanes.end_epoch(span)?;
        self.memory_bytes = self.memory_bytes.max(ended.memory_bytes);
        self.aggregator_bytes = self.aggregator_bytes.max(ended.aggregator_bytes);
        if ended.result.saturated {
            warn!(
                "epoch {}: the sketch is saturated; give it more --memory or a shorter --epoch",
                self.epochs.len()
            );
        }
        self.epochs.push(ended.result);
        if self.args.save.is_some() {
            self.saved.push(SavedEpoch { span, states: ended.states });
        }
        Ok(())
    }
}

fn share(reader: &CaptureReader) -> Option<f64> {
    reader.file_len().map(|all| reader.bytes_read() as f64 / all.max(1) as f64)
}
