//! `slipstream measure`: questions about flows, answered by sketches.
//!
//! Packets of IPv4 and of IPv6 go to a sketch each (keys of four bytes cost much less than keys of sixteen),
//! and answers are put together exactly: no flow is of both ([`slipstream::measure`]). Here a trace is read;
//! `show` prints, `state` saves.

mod saved;
mod sets;
mod show;
mod state;
mod windows;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::available_parallelism;

use anyhow::{anyhow, bail};
use clap::ValueEnum;
use slipstream::io::capture::{Part, Parts};
use slipstream::measure::{
    self, Ask, Description, Digest, DigestMeasurement, EpochLength, EpochResult, Keying, Packet,
    PacketSource, Plan, Saved, SavedEpoch, SketchSet, Task, TraceEpoch, TraceError, TraceResult,
    TraceSettings, Weight, measure_trace,
};
use slipstream_report::plural;
use slipstream_sketch::{Eviction, Kind, Size, Want};
use tracing::warn;

use super::{Outcome, report_damage};
use crate::check;
use crate::cli::flags::{default_of, number_of};
use crate::cli::measure as cli;
use crate::port::Input;
use crate::replace::{Replacement, refuse_shared};
use crate::selection::{encapsulation, first_time};
use crate::traces::Traces;
use crate::ui::{self, Progress};

use windows::{FailedWindow, Sliding};

/// Packets that several tasks are given at a time.
const BLOCK: usize = 4096;

/// The result of a measurement.
struct Report {
    task: Task,
    sketch: String,
    key: String,
    weight: String,
    aggregate: String,
    epoch: String,
    /// The epochs are sliding windows.
    windows: bool,
    tunnel: String,
    seed: u64,
    memory_bytes: usize,
    /// Saved states don't tell what the aggregator took, nor which packets were left out.
    aggregator_bytes: Option<usize>,
    packets: u64,
    skipped: Option<u64>,
    /// Of gaps, where it is known: packets without one, and flows that were forgotten.
    gaps: Option<(u64, u64)>,
    /// Of traces: packets whose times ran backwards.
    clock_backwards: Option<u64>,
    spent_ns: Option<u64>,
    truncated_at_byte: Option<u64>,
    compared: bool,
    epochs: Vec<EpochResult>,
    /// Windows that can't be told.
    failed: Vec<FailedWindow>,
}

pub(super) fn run(args: &cli::Measure) -> anyhow::Result<Outcome> {
    match &args.action {
        None => trace(args),
        Some(cli::MeasureAction::Merge { states, save, task, answers }) => {
            saved::merge(states, save.as_deref(), *task, answers)
        }
        Some(cli::MeasureAction::Query { state, task, answers }) => saved::query(state, *task, answers),
        Some(cli::MeasureAction::Sets { first, second, format, fail_if }) => {
            sets::sets([first, second], *format, fail_if)
        }
    }
}

fn ask(task: Task, keying: Keying, answers: &cli::Answers) -> anyhow::Result<Ask> {
    if !answers.flow.is_empty() && task != Task::FlowSize {
        bail!("--flow goes with the task flow-size, not with {task}");
    }
    let flow = |text: &String| {
        let (key, ipv6) = keying.parse(text).map_err(|e| anyhow!("--flow {e}"))?;
        Ok((key.get().to_vec(), ipv6))
    };
    let flows = answers.flow.iter().map(flow).collect::<anyhow::Result<Vec<_>>>()?;
    let usual = || number_of("measure", "top", default_of("measure", "top")).map_err(|e| anyhow!(e));
    let top = answers.top.map_or_else(usual, |top| Ok(top.into()))?;
    let want = Want { threshold: answers.threshold.0, top: top as usize };
    Ok(Ask { task, keying, want, flows })
}

/// Says so where `--top` or `--threshold` was given and no answer is a list.
fn tell_of_lists(tasks: &[Task], answers: &cli::Answers) {
    let lists = |task: &Task| task.lists_keys() && answers.flow.is_empty();
    if tasks.iter().any(lists) {
        return;
    }
    let tasks: Vec<_> = tasks.iter().map(ToString::to_string).collect();
    let why = if answers.flow.is_empty() { "lists no keys" } else { "lists the keys of --flow" };
    for (option, given) in [("--top", answers.top.is_some()), ("--threshold", answers.threshold.0 > 0)] {
        if given {
            warn!("{option} has no effect: {} {why}", tasks.join(" or "));
        }
    }
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
        save: args.save.is_some() || args.window.is_some(),
        timed: true,
    }
}

/// A task with what answers it.
struct Job {
    task: Task,
    kind: Kind,
    keying: Keying,
    sketches: SketchSet,
}

impl Job {
    /// Sketches are made and asked before any packet is read, so that what can't work is told at once.
    fn new(args: &cli::Measure, task: Task) -> anyhow::Result<Self> {
        let kind = args.sketch.unwrap_or(task.sketch());
        let keying = measure::keying(args.key.as_deref(), task, kind).map_err(|e| anyhow!("--key: {e}"))?;
        let ask = Arc::new(ask(task, keying, &args.answers)?);
        let weight = weight(args);
        if weight == Weight::Delay {
            bail!(
                "--weight delay: a trace by itself has none; ask the stage, as in `slipstream run -i TRACE -o null \
                 -e 'reframe -> measure(task=quantiles, weight=delay)'`"
            );
        }
        weight.refuse(kind, task).map_err(|e| anyhow!("--weight: {e}"))?;
        if task == Task::Quantiles && args.compare.is_some() {
            bail!("--compare exact: the exact table keeps no values, so that quantiles can't be compared");
        }
        let sketches = SketchSet::new(ask.clone(), plan(args, kind).configs(&ask))?;
        Ok(Self { task, kind, keying, sketches })
    }
}

fn trace(args: &cli::Measure) -> anyhow::Result<Outcome> {
    let checks = check::parse_all(&args.answers.fail_if)?;
    if args.task.len() > 1 && args.save.is_some() {
        bail!("--save goes with one task; a state can be asked for others by `slipstream measure query`");
    }
    if args.task.len() > 1 && args.answers.format == cli::MeasureFormat::Csv {
        bail!("--format csv has the columns of one task; use json");
    }
    let sliding = Sliding::of(args)?;
    let epoch = sliding.map_or(args.epoch, Sliding::pane);
    let inputs = args.trace.iter().map(PathBuf::as_path).chain(args.selection.rules_file());
    refuse_shared([("--save", args.save.as_deref())], inputs)?;
    let save = args.save.as_deref().map(|p| Replacement::create("--save", p)).transpose()?;
    tell_of_lists(&args.task, &args.answers);
    let mut jobs: Vec<_> =
        args.task.iter().map(|task| Job::new(args, *task)).collect::<anyhow::Result<_>>()?;
    let abouts: Vec<_> = jobs.iter().map(|job| (job.task, job.kind, job.keying)).collect();
    let (results, damage) = if jobs.len() > 1 {
        read_several(args, epoch, jobs.into_iter().map(|job| job.sketches).collect())?
    } else {
        let Some(job) = jobs.pop() else { bail!("no task was named") };
        let (result, damage) = read(args, epoch, job.sketches)?;
        (vec![result], damage)
    };
    // All tasks saw the same packets.
    let backwards = results.first().map_or(0, |result| result.clock_backwards);
    if backwards > 0 {
        warn!(
            "the times of {} ran backwards; epochs take them to come with the one before",
            plural(backwards, "packet")
        );
    }
    let mut save = save;
    let reports = abouts
        .into_iter()
        .zip(results)
        .map(|(about, result)| report(args, about, (epoch, sliding), (result, damage), save.take()));
    show::finish(&reports.collect::<anyhow::Result<Vec<_>>>()?, args.answers.format, &checks)
}

/// The answers of a task's sketches.
fn report(
    args: &cli::Measure,
    (task, kind, keying): (Task, Kind, Keying),
    (epoch, sliding): (EpochLength, Option<Sliding>),
    (result, damage): (TraceResult, Option<u64>),
    save: Option<Replacement>,
) -> anyhow::Result<Report> {
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
    let mut report = Report {
        task,
        sketch: kind.name().to_owned(),
        key: keying.kind().to_string(),
        weight: name_of(args.weight),
        aggregate: name_of(if kind.takes_values() { cli::Aggregate::Off } else { args.aggregate }),
        epoch: epoch.to_string(),
        windows: sliding.is_some(),
        tunnel: name_of(args.tunnel),
        seed: args.seed,
        memory_bytes: result.memory_bytes,
        aggregator_bytes: Some(result.aggregator_bytes),
        packets: result.packets,
        skipped: Some(result.skipped),
        gaps: (weight(args) == Weight::Gap).then_some((result.without_gap, result.forgotten_flows)),
        clock_backwards: Some(result.clock_backwards),
        spent_ns: Some(result.spent_ns),
        truncated_at_byte: damage,
        compared: args.compare.is_some(),
        epochs,
        failed: Vec::new(),
    };
    if save.is_some() || sliding.is_some() {
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
        let mut states = Saved { about, epochs: saved };
        if let Some(file) = save {
            state::write(&states, file)?;
        }
        if let Some(sliding) = sliding {
            let windows = sliding.windows(&states.epochs, keying.lens())?;
            // Windows are compared with the one before, so that there must be none missing between.
            if let Some(window) = windows.failed.first().filter(|_| task == Task::HeavyChanges) {
                bail!("the window from {} ns: {}", window.span.start_ns, window.error);
            }
            for window in &windows.failed {
                warn!("the window from {} ns is left out: {}", window.span.start_ns, window.error);
            }
            (states.epochs, report.failed) = (windows.summed, windows.failed);
            if task == Task::HeavyChanges {
                states.epochs = sliding.with_silence(states.epochs, keying.lens())?;
            }
            report.epochs = saved::answer(&states, None, &args.answers)?.epochs;
            report.epoch = sliding.name();
        }
    }
    let (what, length) = if sliding.is_some() { ("window", "--window") } else { ("epoch", "--epoch") };
    tell_of_full(&report, what, length);
    Ok(report)
}

/// Warns of sketches that were too full for what they promise.
fn tell_of_full(report: &Report, what: &str, length: &str) {
    // Memory makes more counters, not greater ones.
    let narrow = matches!(Kind::from_name(&report.sketch), Some(Kind::CountMin | Kind::RevSketch));
    for (i, _) in report.epochs.iter().enumerate().filter(|(_, e)| e.saturated) {
        if narrow {
            warn!(
                "{what} {i}: counters of 32 bits are full, so bounds are wide; a shorter {length} fills them \
                 less, and --sketch univmon has counters of 64 bits"
            );
        } else {
            warn!("{what} {i}: the sketch is saturated; give it more --memory or a shorter {length}");
        }
    }
}

/// The figure that counts of a packet.
fn weight(args: &cli::Measure) -> Weight {
    Weight::named(&name_of(args.weight))
}

/// The name of an option's value.
fn name_of(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|v| v.get_name().to_owned()).unwrap_or_default()
}

/// Measures the packets of the traces; also tells where the first damaged one is damaged.
fn read(
    args: &cli::Measure,
    epoch: EpochLength,
    sketches: SketchSet,
) -> anyhow::Result<(TraceResult, Option<u64>)> {
    let settings = settings(args, epoch);
    let Some((first, others)) = args.trace.split_first() else { bail!("no trace was named") };
    let progress = Progress::new(&first.display().to_string());
    let mut input = Input::open(first)?;
    if let Input::Capture(reader) = input {
        if settings.workers > 1 && others.is_empty() && args.selection.count.is_none() {
            match Parts::new(*reader) {
                Ok(parts) => return read_parts(args, sketches, &settings, (first, parts), progress),
                Err(reader) => input = Input::Capture(reader),
            }
        } else {
            input = Input::Capture(reader);
        }
    }
    let mut traces = Traces::new(input, others, &args.selection, settings.encapsulation, args.strict)?;
    if settings.workers > 1 {
        traces.unpack_ahead();
    }
    let damaged = traces.damaged();
    let interrupted = ui::interrupts()?;
    let mut trace = Trace { traces, progress, interrupted, packets: 0 };
    let result = measure_trace(sketches, &settings, &mut trace).map_err(|error| match error {
        TraceError::Source(error) => error,
        TraceError::Measure(error) => error.into(),
    })?;
    Ok((result, damaged.byte()))
}

fn settings(args: &cli::Measure, epoch: EpochLength) -> TraceSettings {
    TraceSettings {
        epoch,
        weight: weight(args),
        encapsulation: encapsulation(args.tunnel),
        workers: args.workers.map_or_else(|| available_parallelism().map_or(1, usize::from), usize::from),
    }
}

/// Measures the packets of the traces for several tasks at once, on one thread.
fn read_several(
    args: &cli::Measure,
    epoch: EpochLength,
    sketches: Vec<SketchSet>,
) -> anyhow::Result<(Vec<TraceResult>, Option<u64>)> {
    let settings = settings(args, epoch);
    let Some((first, others)) = args.trace.split_first() else { bail!("no trace was named") };
    let progress = Progress::new(&first.display().to_string());
    let input = Input::open(first)?;
    let mut traces = Traces::new(input, others, &args.selection, settings.encapsulation, args.strict)?;
    traces.unpack_ahead();
    let interrupted = ui::interrupts()?;
    let mut tasks: Vec<_> = sketches
        .into_iter()
        .map(|sketches| (DigestMeasurement::new(sketches, &settings), Digest::new(settings)))
        .collect();
    loop {
        let read = traces.read(BLOCK, |record| {
            let packet = Packet {
                time_ns: record.time.0,
                link: record.link,
                original_len: record.original_len,
                data: record.data,
            };
            tasks.iter_mut().for_each(|(_, digest)| digest.packet(&packet));
        })?;
        for (measurement, digest) in &mut tasks {
            measurement.add(digest)?;
            digest.clear();
        }
        if let Some(share) = traces.share() {
            progress.at(Some(share));
        }
        ui::unless(&interrupted)?;
        if read < BLOCK {
            break;
        }
    }
    drop(progress);
    let results = tasks.into_iter().map(|(measurement, _)| measurement.finish());
    Ok((results.collect::<Result<_, _>>()?, traces.damaged().byte()))
}

/// Measures a file of which several threads read parts; sketches take the parts in order, on this one.
fn read_parts(
    args: &cli::Measure,
    sketches: SketchSet,
    settings: &TraceSettings,
    (path, parts): (&Path, Parts),
    progress: Progress,
) -> anyhow::Result<(TraceResult, Option<u64>)> {
    let first = if args.selection.time.is_some() { first_time(path)? } else { 0 };
    let selected = !args.selection.is_everything();
    let filter = selected.then(|| args.selection.filter(first, settings.encapsulation));
    let make = |part: &Part, digest: &mut Option<Digest>| {
        let digest = digest.get_or_insert_with(|| Digest::new(*settings));
        digest.clear();
        for record in part.records() {
            let (at, link, len, data) = (record.time.0, record.link, record.original_len, record.data);
            if filter.is_some_and(|filter| !filter.wants(at, link, len, data)) {
                continue;
            }
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
        ui::unless(&interrupted)?;
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

/// Traces while they are read.
struct Trace {
    traces: Traces,
    progress: Progress,
    interrupted: Arc<AtomicBool>,
    packets: u64,
}

impl PacketSource for Trace {
    type Error = anyhow::Error;

    fn read(&mut self, most: usize, mut visit: impl FnMut(&Packet<'_>)) -> anyhow::Result<bool> {
        let read = self.traces.read(most, |record| {
            visit(&Packet {
                time_ns: record.time.0,
                link: record.link,
                original_len: record.original_len,
                data: record.data,
            });
        })?;
        let before = self.packets;
        self.packets += read as u64;
        if before >> 16 != self.packets >> 16 {
            if let Some(share) = self.traces.share() {
                self.progress.at(Some(share));
            }
            ui::unless(&self.interrupted)?;
        }
        Ok(read == most)
    }
}
