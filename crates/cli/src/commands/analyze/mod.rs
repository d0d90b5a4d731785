//! `slipstream analyze`: what locality does my traffic have, and what would holding it gain?
//!
//! `read` takes traces in, `parts` saves and joins parts of them, `table` prints for people, `diff` compares
//! two.

mod diff;
mod parts;
mod read;
mod table;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{anyhow, bail};
use serde::Serialize;
use serde_json::Value;
use slipstream_lab::frontier::Frontier;
use slipstream_report::{Table, plural};
use slipstream_trace::{Config, Details, FlowFile, GroupBy, Groups, PacketFile, Partial, Report};

use super::{Outcome, checked, frontier};
use crate::check::{self, Check};
use crate::cli;
use crate::replace::{Replacement, refuse_shared};
use crate::report::{self, Subject, Taken};
use crate::selection::encapsulation;
use crate::traces::refuse_stdin;
use crate::ui;

use diff::Difference;
use read::analyze_one;

/// Groups that are listed at most, unless the user says so: of flows, and of stretches of time.
const GROUPS: (usize, usize) = (20, 10_000);

/// A trace's part of the result.
#[derive(Clone, Copy, Serialize)]
struct Trace<'a> {
    file: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    part: Option<parts::Extent>,
    truncated_at_byte: Option<u64>,
    /// Packets that the user's selection left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<u64>,
    #[serde(flatten)]
    report: &'a Report,
    #[serde(skip_serializing_if = "Option::is_none")]
    groups: Option<&'a Groups>,
    #[serde(skip_serializing_if = "Option::is_none")]
    frontier: Option<&'a Frontier>,
}

/// Several traces as one.
#[derive(Serialize)]
struct Total<'a> {
    #[serde(flatten)]
    report: &'a Report,
    #[serde(skip_serializing_if = "Option::is_none")]
    groups: Option<&'a Groups>,
}

/// All of it. For one trace, its keys stand at the top level, too.
#[derive(Serialize)]
struct Analysis<'a> {
    schema: u32,
    #[serde(flatten)]
    whole: Whole<'a>,
    traces: Vec<Trace<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    diff: Option<&'a Difference>,
    /// Those that could not be read.
    #[serde(skip_serializing_if = "<[Failed]>::is_empty")]
    failed: &'a [Failed],
}

/// A trace that could not be read, and why.
#[derive(Serialize)]
struct Failed {
    file: String,
    error: String,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Whole<'a> {
    One(Trace<'a>),
    Several { total: Total<'a> },
}

impl<'a> Analysis<'a> {
    fn of(
        analyzed: &'a [Analyzed],
        total: Total<'a>,
        diff: Option<&'a Difference>,
        failed: &'a [Failed],
    ) -> Self {
        let trace = |one: &'a Analyzed| Trace {
            file: &one.file,
            part: one.part,
            truncated_at_byte: one.truncated_at_byte,
            left_out: one.left_out,
            report: &one.report,
            groups: one.groups.as_ref(),
            frontier: one.frontier.as_ref(),
        };
        let traces: Vec<_> = analyzed.iter().map(trace).collect();
        let whole = match traces.as_slice() {
            [one] if failed.is_empty() => Whole::One(*one),
            _ => Whole::Several { total },
        };
        Self { schema: 1, whole, traces, diff, failed }
    }
}

/// The analysis of one trace.
struct Analyzed {
    file: String,
    /// Set for a part of a trace.
    part: Option<parts::Extent>,
    truncated_at_byte: Option<u64>,
    left_out: Option<u64>,
    partial: Partial,
    report: Report,
    details: Option<Details>,
    groups: Option<Groups>,
    frontier: Option<Frontier>,
}

/// A Parquet file of packets that several traces go to, one after another.
type Packets = Mutex<PacketFile<Replacement>>;

impl Analyzed {
    /// A trace of which nothing but the analysis is known.
    fn plain(file: String, partial: Partial) -> Self {
        let report = partial.report();
        let (part, truncated_at_byte, left_out) = (None, None, None);
        let (details, groups, frontier) = (None, None, None);
        Self { file, part, truncated_at_byte, left_out, partial, report, details, groups, frontier }
    }

    /// Its name in tables.
    fn name(&self) -> String {
        self.part.map_or_else(|| self.file.clone(), |part| part.name(&self.file))
    }
}

/// Files that are written beside the result. They are opened first, so that nobody learns after hours that a
/// path can't be written.
struct Output {
    page: Option<Replacement>,
    flows: Option<Replacement>,
    /// Those that are written already, and wait for the others.
    written: Vec<Replacement>,
}

impl Output {
    fn open(page: Option<&Path>, flows: Option<&Path>) -> anyhow::Result<Self> {
        let page = page.map(|p| Replacement::create("--report", p)).transpose()?;
        let flows = flows.map(|p| Replacement::create("--parquet", p)).transpose()?;
        Ok(Self { page, flows, written: Vec::new() })
    }

    fn write(
        self,
        analyzed: &[Analyzed],
        total: &Total<'_>,
        diff: Option<&Difference>,
    ) -> anyhow::Result<()> {
        let mut written = self.written;
        if let Some(file) = self.page {
            written.push(write_page(file, analyzed, total, diff)?);
        }
        if let Some(file) = self.flows {
            written.push(write_flows(file, analyzed)?);
        }
        Replacement::commit_all(written)
    }

    /// Writes and prints the result of traces of which nothing but the analysis is known.
    fn print(
        self,
        analyzed: &[Analyzed],
        reporting: &cli::Reporting,
        checks: &[Check],
    ) -> anyhow::Result<Outcome> {
        let merged = merged(analyzed)?;
        let total = merged.as_ref().or(analyzed.first().map(|a| &a.report));
        let total = total.ok_or_else(|| anyhow!("no trace was named"))?;
        let whole = Total { report: total, groups: None };
        self.write(analyzed, &whole, None)?;
        let result = Analysis::of(analyzed, whole, None, &[]);
        super::finish(reporting, checks, &serde_json::to_value(&result)?, || {
            let mut t = Table::default();
            tables(&mut t, analyzed, total, None);
            t
        })
    }
}

pub(super) fn run(args: &cli::Analyze) -> anyhow::Result<Outcome> {
    if let Some(cli::AnalyzeAction::Merge(args)) = &args.action {
        return parts::merge(args);
    }
    let checks = check::parse_all(&args.reporting.fail_if)?;
    if args.diff && args.traces.len() != 2 {
        bail!("--diff compares two traces, not {}", args.traces.len());
    }
    // Two threads would each get some of its bytes.
    args.traces.iter().filter(|trace| trace.as_os_str() == "-").skip(1).try_for_each(|t| refuse_stdin(t))?;
    let (config, at_once) = config(args)?;
    frontier::check(args)?;
    refuse_shared_files(args)?;
    let mut output = Output::open(args.report.as_deref(), args.parquet.as_deref())?;
    // From here on they end it by an error; see `Progress::goes_on`.
    ui::interrupts()?;
    if args.part.is_some() || args.save.is_some() {
        let [trace] = args.traces.as_slice() else {
            bail!("--part and --save take one trace, not {}", args.traces.len());
        };
        let save = args.save.as_deref().map(|p| Replacement::create("--save", p)).transpose()?;
        let analyzed = parts::analyze(trace, &config, args, save, &mut output)?;
        return output.print(&[analyzed], &args.reporting, &checks);
    }
    let packets = args.parquet_packets.as_deref().map(|p| Replacement::create("--parquet-packets", p));
    let packets = packets.transpose()?.map(|file| PacketFile::new(file, config.encapsulation)).transpose()?;
    let packets = packets.map(Mutex::new);
    let (analyzed, failed) = analyze_all(args, &config, at_once, packets.as_ref())?;
    let merged = merged(&analyzed)?;
    let total = merged.as_ref().or(analyzed.first().map(|a| &a.report));
    let total = total.ok_or_else(|| anyhow!("no trace was named"))?;
    let groups = merged_groups(args, &analyzed)?;
    if let Some(file) = packets {
        let file = file.into_inner().map_err(|_| anyhow!("a thread of the analysis failed"))?;
        output.written.push(file.finish()?);
    }
    let whole = Total { report: total, groups: groups.as_ref() };
    let diff = match analyzed.as_slice() {
        [a, b] if args.diff => Some(Difference::of(args, a, b)?),
        _ if args.diff => bail!("--diff needs both traces"),
        _ => None,
    };
    output.write(&analyzed, &whole, diff.as_ref())?;
    let result = Analysis::of(&analyzed, whole, diff.as_ref(), &failed);
    let text = match args.reporting.format {
        cli::Format::Json => serde_json::to_string_pretty(&result)?,
        cli::Format::Table => {
            let mut t = Table::default();
            match &diff {
                Some(diff) => diff.as_table(&mut t),
                None => tables(&mut t, &analyzed, total, groups.as_ref()),
            }
            table::failed(&mut t, &failed);
            t.render(ui::columns())
        }
    };
    ui::print(text)?;
    if !failed.is_empty() && !args.keep_going {
        bail!(
            "{} of {} could not be analysed (--keep-going takes that for success)",
            failed.len(),
            plural(args.traces.len() as u64, "trace")
        );
    }
    let value = if checks.is_empty() { Value::Null } else { serde_json::to_value(&result)? };
    checked(&checks, &value)
}

/// The settings that traces are analysed by, and the number of them that are analysed at once.
fn config(args: &cli::Analyze) -> anyhow::Result<(Config, usize)> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.map_or(cores, usize::from);
    // Packets of several traces go to one file in the order of the command line.
    let at_once = if args.parquet_packets.is_some() { 1 } else { threads.min(args.traces.len()) };
    let config = Config {
        windows_ns: args.window.iter().map(|w| w.0).collect(),
        burst: args.burst,
        top: args.top,
        encapsulation: encapsulation(args.tunnel),
        threads: (threads / at_once).max(1),
        ..Config::default()
    };
    config.validate()?;
    Ok((config, at_once))
}

/// Refuses a file for two of the results, or for a result and what is read.
fn refuse_shared_files(args: &cli::Analyze) -> anyhow::Result<()> {
    let outputs = [
        ("--report", args.report.as_deref()),
        ("--parquet", args.parquet.as_deref()),
        ("--parquet-packets", args.parquet_packets.as_deref()),
        ("--save", args.save.as_deref()),
    ];
    let inputs = args.traces.iter().map(PathBuf::as_path).chain(args.selection.rules_file());
    refuse_shared(outputs, inputs)
}

/// The time that several traces took together.
fn taken(total: &Report, analyzed: &[Analyzed]) -> Taken {
    Taken::of(total, analyzed.iter().map(|one| one.report.duration_ns))
}

/// The tables of all traces, and of their total.
fn tables(t: &mut Table, analyzed: &[Analyzed], total: &Report, groups: Option<&Groups>) {
    for one in analyzed {
        let report = (&one.report, Taken::Whole(one.report.duration_ns));
        table::report(t, &one.name(), (one.truncated_at_byte, one.left_out), report);
        if let Some(groups) = &one.groups {
            table::groups(t, groups);
        }
        if let Some(frontier) = &one.frontier {
            frontier::as_table(t, frontier);
        }
        conclude(t, &one.report, one.frontier.as_ref());
    }
    if analyzed.len() > 1 {
        let left_out: Option<u64> = analyzed.iter().map(|a| a.left_out).sum();
        table::report(
            t,
            &format!("total of {} traces", analyzed.len()),
            (None, left_out),
            (total, taken(total, analyzed)),
        );
        if let Some(groups) = groups {
            table::groups(t, groups);
        }
        conclude(t, total, None);
    }
}

/// The verdict, last, where a reader looks for it.
fn conclude(t: &mut Table, report: &Report, frontier: Option<&Frontier>) {
    let verdict = report::verdict(&report.ip, frontier);
    if !verdict.is_empty() {
        t.title("Verdict");
        t.prose([verdict]);
    }
}

/// Groups that are listed at most.
fn most_groups(args: &cli::Analyze, by: GroupBy) -> usize {
    args.groups.unwrap_or(if let GroupBy::Slice(_) = by { GROUPS.1 } else { GROUPS.0 })
}

/// The groups of several traces together: none of slices of time, which belong to their trace.
fn merged_groups(args: &cli::Analyze, analyzed: &[Analyzed]) -> anyhow::Result<Option<Groups>> {
    let (Some(by), [first, others @ ..]) = (args.by, analyzed) else { return Ok(None) };
    let Some(details) = first.details.as_ref().filter(|_| !matches!(by.0, GroupBy::Slice(_))) else {
        return Ok(None);
    };
    let mut total = details.clone();
    for one in others.iter().filter_map(|a| a.details.as_ref()) {
        total.merge(one)?;
    }
    Ok(Some(Groups::of(&total, by.0, most_groups(args, by.0))))
}

/// Reads all traces, several at once; results are in the order of the command line. One that can't be read
/// keeps none of the others from being analysed, but with `--strict` alone, or where it is the only one.
fn analyze_all(
    args: &cli::Analyze,
    config: &Config,
    at_once: usize,
    packets: Option<&Packets>,
) -> anyhow::Result<(Vec<Analyzed>, Vec<Failed>)> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(args.traces.len()));
    let work = || {
        while let Some((i, path)) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|i| Some((i, args.traces.get(i)?)))
        {
            let result = analyze_one(path, config, args, packets);
            let ends = |error| args.damage.strict && !args.keep_going || ui::is_interrupt(error);
            let failed = result.as_ref().is_err_and(ends);
            if let Ok(mut done) = done.lock() {
                done.push((i, result));
            }
            if failed {
                next.store(args.traces.len(), Ordering::Relaxed);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..at_once {
            scope.spawn(work);
        }
        work();
    });
    let mut done = done.into_inner().map_err(|_| anyhow!("a thread of the analysis failed"))?;
    done.sort_by_key(|d| d.0);
    let (mut analyzed, mut failed, mut first) = (Vec::new(), Vec::new(), None);
    for (i, result) in done {
        match result {
            Ok(one) => analyzed.push(one),
            Err(error) if ui::is_interrupt(&error) => return Err(error),
            Err(error) if args.damage.strict && !args.keep_going => return Err(error),
            Err(error) => {
                let file = args.traces.get(i).map(|p| p.display().to_string()).unwrap_or_default();
                failed.push(Failed { file, error: ui::in_words(&error) });
                first = first.or(Some(error));
            }
        }
    }
    match first {
        Some(error) if analyzed.is_empty() && failed.len() == 1 => Err(error),
        _ => {
            failed.iter().for_each(|f| ui::complain(&f.error));
            if analyzed.is_empty() {
                bail!("none of the traces could be analysed");
            }
            Ok((analyzed, failed))
        }
    }
}

/// Writes `--report`: the total first, where there are several traces.
fn write_page(
    mut file: Replacement,
    analyzed: &[Analyzed],
    total: &Total<'_>,
    diff: Option<&Difference>,
) -> anyhow::Result<Replacement> {
    let mut subjects = Vec::with_capacity(analyzed.len() + 1);
    if analyzed.len() > 1 {
        let name = format!("total of {} traces", analyzed.len());
        let Total { report, groups } = *total;
        let taken = taken(report, analyzed);
        subjects.push(Subject { name, truncated_at_byte: None, report, taken, groups, frontier: None });
    }
    subjects.extend(analyzed.iter().map(|a| Subject {
        name: a.name(),
        truncated_at_byte: a.truncated_at_byte,
        report: &a.report,
        taken: Taken::Whole(a.report.duration_ns),
        groups: a.groups.as_ref(),
        frontier: a.frontier.as_ref(),
    }));
    let mut beside = Table::default();
    if let Some(diff) = diff {
        diff.as_table(&mut beside);
    }
    file.write_all(report::html(&subjects, &beside)?.as_bytes())?;
    Ok(file)
}

/// Writes `--parquet`: the flows of all traces.
fn write_flows(file: Replacement, analyzed: &[Analyzed]) -> anyhow::Result<Replacement> {
    let mut flows = FlowFile::new(file)?;
    for one in analyzed {
        match &one.details {
            Some(details) => flows.details(&one.file, details)?,
            None => flows.trace(&one.file, &one.partial)?,
        }
    }
    Ok(flows.finish()?)
}

/// The merged report of several traces; none for a single one.
fn merged(analyzed: &[Analyzed]) -> anyhow::Result<Option<Report>> {
    let [first, others @ ..] = analyzed else { return Ok(None) };
    if others.is_empty() {
        return Ok(None);
    }
    let mut total = first.partial.clone();
    for one in others {
        total.merge(&one.partial)?;
    }
    Ok(Some(total.report()))
}
