//! `slipstream measure`: questions about flows, answered by sketches.
//!
//! Packets of IPv4 and of IPv6 go to a sketch each (keys of four bytes cost much less than keys of sixteen),
//! and answers are put together exactly: no flow is of both ([`slipstream::measure`]). Here a trace is read;
//! `show` prints, `state` saves.

mod saved;
mod show;
mod state;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;

use anyhow::{anyhow, bail};
use clap::ValueEnum;
use slipstream::io::capture::{CaptureReader, Part, Parts};
use slipstream::measure::{
    self, Ask, Digest, DigestMeasurement, EpochResult, Keying, Packet, PacketSource, Plan, SketchSet, Task,
    TraceEpoch, TraceError, TraceResult, TraceSettings, measure_trace,
};
use slipstream_sketch::{Eviction, Kind, Size, Want};
use slipstream_wire::{Encapsulation, LinkType};
use tracing::warn;

use super::{Outcome, report_damage};
use crate::check;
use crate::cli::{Tunnel, measure as cli};
use crate::port::Input;
use crate::replace::Replacement;
use crate::ui::{self, Progress};

use state::{Description, Saved, SavedEpoch};

/// The result of a measurement.
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
    let sketches = SketchSet::new(ask.clone(), plan(args, kind).configs(&ask))?;
    let save = args.save.as_deref().map(|p| Replacement::create("--save", p)).transpose()?;
    let (result, damage) = read(args, sketches, path)?;
    for (i, _) in result.epochs.iter().enumerate().filter(|(_, e)| e.ended.result.saturated) {
        warn!("epoch {i}: the sketch is saturated; give it more --memory or a shorter --epoch");
    }
    if result.ipv6 && keying.kind().leaves_ipv6_whole() {
        let key = keying.kind();
        warn!(
            "--key {key} names networks of IPv4: IPv6 addresses are left whole; {key}/56 names those of both"
        );
    }
    let (mut epochs, mut saved) = (Vec::new(), Vec::new());
    for TraceEpoch { span, ended } in result.epochs {
        epochs.push(ended.result);
        saved.push(SavedEpoch { span, states: ended.states });
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
        memory_bytes: result.memory_bytes,
        aggregator_bytes: result.aggregator_bytes,
        packets: result.packets,
        skipped: result.skipped,
        spent_ns: Some(result.spent_ns),
        truncated_at_byte: damage,
        compared: args.compare.is_some(),
        epochs,
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
        Saved { about, epochs: saved }.write(file)?;
    }
    show::finish(&report, args.answers.format, &checks)
}

/// The name of an option's value.
fn name_of(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|v| v.get_name().to_owned()).unwrap_or_default()
}

/// Measures the packets of a trace; also tells where the trace is damaged.
fn read(args: &cli::Measure, sketches: SketchSet, path: &Path) -> anyhow::Result<(TraceResult, Option<u64>)> {
    let settings = TraceSettings {
        epoch: args.epoch,
        bytes: args.weight == cli::Weight::Bytes,
        encapsulation: match args.tunnel {
            Tunnel::Outer => Encapsulation::Outer,
            Tunnel::Inner => Encapsulation::Inner,
        },
        workers: args.workers.map_or_else(|| available_parallelism().map_or(1, usize::from), usize::from),
    };
    let name = path.display().to_string();
    let mut input = Input::open(path)?;
    if let Input::Capture(reader) = input {
        if settings.workers > 1 {
            match Parts::new(*reader) {
                Ok(parts) => return read_parts(args, sketches, &settings, parts, Progress::new(&name)),
                Err(reader) => input = Input::Capture(reader),
            }
        } else {
            input = Input::Capture(reader);
        }
    }
    if let Input::Capture(reader) = &mut input
        && settings.workers > 1
    {
        reader.unpack_ahead();
    }
    let mut trace = Trace {
        input,
        progress: Some(Progress::new(&name)),
        interrupted: ui::interrupts()?,
        packets: 0,
        frame: Vec::new(),
    };
    let result = measure_trace(sketches, &settings, &mut trace).map_err(|error| match error {
        TraceError::Source(error) => error,
        TraceError::Measure(error) => error.into(),
    })?;
    drop(trace.progress.take());
    let damage = match &trace.input {
        Input::Capture(reader) => report_damage(reader, args.strict)?,
        Input::Synth(_) => None,
    };
    Ok((result, damage))
}

/// Measures a file of which several threads read parts; sketches take the parts in order, on this one.
fn read_parts(
    args: &cli::Measure,
    sketches: SketchSet,
    settings: &TraceSettings,
    parts: Parts,
    progress: Progress,
) -> anyhow::Result<(TraceResult, Option<u64>)> {
    let make = |part: &Part, digest: &mut Option<Digest>| {
        let digest = digest.get_or_insert_with(|| Digest::new(*settings));
        digest.clear();
        for record in part.records() {
            digest.packet(&Packet {
                time_ns: record.time.0,
                link: record.link,
                original_len: record.original_len,
                data: record.data,
            });
        }
    };
    let interrupted = ui::interrupts()?;
    let mut measurement = DigestMeasurement::new(sketches, settings);
    parts.each(settings.workers - 1, make, |digest: &mut Option<Digest>| -> anyhow::Result<()> {
        progress.at(Some(parts.progress()));
        if interrupted.load(Ordering::Relaxed) {
            return Err(ui::Interrupted.into());
        }
        match digest {
            Some(digest) => Ok(measurement.add(digest)?),
            None => Ok(()),
        }
    })?;
    let result = measurement.finish()?;
    drop(progress);
    let damage = report_damage(&parts.into_reader(), args.strict)?;
    Ok((result, damage))
}

/// A trace while it is read.
struct Trace {
    input: Input,
    progress: Option<Progress>,
    interrupted: Arc<AtomicBool>,
    packets: u64,
    frame: Vec<u8>,
}

impl PacketSource for Trace {
    type Error = anyhow::Error;

    fn read(&mut self, most: usize, mut visit: impl FnMut(&Packet<'_>)) -> anyhow::Result<bool> {
        let mut left = most;
        let done = match &mut self.input {
            Input::Capture(reader) => {
                while left > 0 {
                    let Some(record) = reader.next_record()? else { return Ok(false) };
                    visit(&Packet {
                        time_ns: record.time.0,
                        link: record.link,
                        original_len: record.original_len,
                        data: record.data,
                    });
                    left -= 1;
                }
                share(reader)
            }
            Input::Synth(synth) => {
                while left > 0 {
                    let Some(at) = synth.next_packet(&mut self.frame) else { return Ok(false) };
                    let captured = synth.config().captured_len(self.frame.len());
                    visit(&Packet {
                        time_ns: at.0,
                        link: LinkType::Ethernet,
                        original_len: self.frame.len() as u32,
                        data: self.frame.get(..captured).unwrap_or(&self.frame),
                    });
                    left -= 1;
                }
                Some(self.packets as f64 / synth.config().packets.max(1) as f64)
            }
        };
        let before = self.packets;
        self.packets += most as u64;
        if before >> 16 != self.packets >> 16 {
            self.progress.iter().for_each(|p| p.at(done));
            if self.interrupted.load(Ordering::Relaxed) {
                return Err(ui::Interrupted.into());
            }
        }
        Ok(true)
    }
}

fn share(reader: &CaptureReader) -> Option<f64> {
    reader.file_len().map(|all| reader.bytes_read() as f64 / all.max(1) as f64)
}
