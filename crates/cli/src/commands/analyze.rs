//! `slipstream analyze`: what locality does my traffic have, and what would holding it gain?

use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, anyhow, bail};
use serde::Serialize;
use serde_json::Value;
use slipstream::io::capture::{CaptureReader, Part, Parts};
use slipstream::time::Nanos;
use slipstream_lab::frontier::{Arrivals, Frontier};
use slipstream_report::{Table, bit_rate, count, number, packet_rate, plural, share, time};
use slipstream_trace::{Analyzer, Config, Digest, EndpointSide, FlowFile, Partial, Report, Sequence};
use slipstream_wire::{Encapsulation, LinkType};
use tracing::warn;

use super::{Outcome, frontier, report_damage};
use crate::check;
use crate::cli;
use crate::port::Input;
use crate::replace::Replacement;
use crate::report::{self, Subject};
use crate::ui::{self, Progress};
use crate::units::Duration;

/// A trace's part of the result.
#[derive(Clone, Copy, Serialize)]
struct Trace<'a> {
    file: &'a str,
    truncated_at_byte: Option<u64>,
    #[serde(flatten)]
    report: &'a Report,
    #[serde(skip_serializing_if = "Option::is_none")]
    frontier: Option<&'a Frontier>,
}

/// All of it. For one trace, its keys stand at the top level, too.
#[derive(Serialize)]
struct Analysis<'a> {
    schema: u32,
    #[serde(flatten)]
    whole: Whole<'a>,
    traces: Vec<Trace<'a>>,
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
    Several { total: &'a Report },
}

impl<'a> Analysis<'a> {
    fn of(analyzed: &'a [Analyzed], reports: &'a [Report], total: &'a Report, failed: &'a [Failed]) -> Self {
        let trace = |(one, report): (&'a Analyzed, &'a Report)| Trace {
            file: &one.file,
            truncated_at_byte: one.truncated_at_byte,
            report,
            frontier: one.frontier.as_ref(),
        };
        let traces: Vec<_> = analyzed.iter().zip(reports).map(trace).collect();
        let whole = match traces.as_slice() {
            [one] if failed.is_empty() => Whole::One(*one),
            _ => Whole::Several { total },
        };
        Self { schema: 1, whole, traces, failed }
    }
}

/// The analysis of one trace.
struct Analyzed {
    file: String,
    truncated_at_byte: Option<u64>,
    partial: Partial,
    frontier: Option<Frontier>,
}

pub(super) fn run(args: &cli::Analyze) -> anyhow::Result<Outcome> {
    let checks = check::parse_all(&args.reporting.fail_if)?;
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.map_or(cores, usize::from);
    let at_once = threads.min(args.traces.len());
    let config = Config {
        windows_ns: args.window.iter().map(|w| w.0).collect(),
        burst: args.burst,
        top: args.top,
        encapsulation: match args.tunnel {
            cli::Tunnel::Outer => Encapsulation::Outer,
            cli::Tunnel::Inner => Encapsulation::Inner,
        },
        threads: (threads / at_once).max(1),
        ..Config::default()
    };
    config.validate()?;
    frontier::check(args)?;
    // Opened first, so that nobody learns after hours that a path can't be written.
    let page = args.report.as_deref().map(|p| Replacement::create("--report", p)).transpose()?;
    let flows = args.parquet.as_deref().map(|p| Replacement::create("--parquet", p)).transpose()?;
    let (analyzed, failed) = analyze_all(args, &config, at_once)?;
    let reports: Vec<Report> = analyzed.iter().map(|a| a.partial.report()).collect();
    let merged = merged(&analyzed)?;
    let total = merged.as_ref().or(reports.first()).ok_or_else(|| anyhow!("no trace was named"))?;
    if let Some(file) = page {
        write_page(file, &analyzed, &reports, total)?;
    }
    if let Some(file) = flows {
        write_flows(file, &analyzed)?;
    }
    let result = Analysis::of(&analyzed, &reports, total, &failed);
    match args.reporting.format {
        cli::Format::Json => ui::print(serde_json::to_string_pretty(&result)?)?,
        cli::Format::Table => {
            let mut t = Table::default();
            for (one, report) in analyzed.iter().zip(&reports) {
                as_table(&mut t, &one.file, one.truncated_at_byte, report);
                if let Some(frontier) = &one.frontier {
                    frontier::as_table(&mut t, frontier);
                }
                conclude(&mut t, report, one.frontier.as_ref());
            }
            if analyzed.len() > 1 {
                as_table(&mut t, &format!("total of {} traces", analyzed.len()), None, total);
                conclude(&mut t, total, None);
            }
            ui::print(t.render(ui::columns()))?;
        }
    }
    if !failed.is_empty() {
        bail!("{} of {} could not be analysed", failed.len(), plural(args.traces.len() as u64, "trace"));
    }
    let value = if checks.is_empty() { Value::Null } else { serde_json::to_value(&result)? };
    Ok(match check::failed(&checks, &value)? {
        Some(what) => Outcome::CheckFailed(what),
        None => Outcome::Done,
    })
}

/// Reads all traces, several at once; results are in the order of the command line. One that can't be read
/// keeps none of the others from being analysed, but with `--strict`, or where it is the only one.
fn analyze_all(
    args: &cli::Analyze,
    config: &Config,
    at_once: usize,
) -> anyhow::Result<(Vec<Analyzed>, Vec<Failed>)> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(args.traces.len()));
    let work = || {
        while let Some((i, path)) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|i| Some((i, args.traces.get(i)?)))
        {
            let result = analyze_one(path, config, args);
            let failed = result.is_err() && args.damage.strict;
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
            Err(error) if args.damage.strict => return Err(error),
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

fn analyze_one(path: &Path, config: &Config, args: &cli::Analyze) -> anyhow::Result<Analyzed> {
    let file = path.display().to_string();
    let progress = Progress::new(&file);
    let mut input = Input::open(path)?;
    if let Input::Capture(reader) = input {
        // Who wants every packet's bytes in order has them from one thread.
        if config.threads > 1 && !args.frontier {
            match Parts::new(*reader) {
                Ok(parts) => return analyze_parts(file, parts, config, args, progress),
                Err(reader) => input = Input::Capture(reader),
            }
        } else {
            input = Input::Capture(reader);
        }
    }
    let mut analyzer = Analyzer::new(config.clone())?;
    let mut truncated_at_byte = None;
    let mut arrivals = args.frontier.then(Arrivals::default);
    let mut packet = |at: Nanos, link, len, data: &[u8]| {
        analyzer.packet(at.0, link, len, data);
        if let Some(arrivals) = &mut arrivals {
            arrivals.push(at, link, len, data, config.encapsulation);
        }
    };
    match input {
        Input::Capture(mut reader) => {
            if config.threads > 1 {
                reader.unpack_ahead();
            }
            read(&mut reader, &mut packet, &progress)?;
            drop(progress);
            truncated_at_byte = report_damage(&reader, args.damage.strict)?;
        }
        Input::Synth(mut synth) => {
            let mut frame = Vec::new();
            while let Some(at) = synth.next_packet(&mut frame) {
                let data = frame.get(..synth.config().captured_len(frame.len())).unwrap_or(&frame);
                packet(at, LinkType::Ethernet, frame.len() as u32, data);
            }
        }
    }
    let frontier = arrivals.map(|arrivals| frontier::measure(args, &arrivals)).transpose()?;
    Ok(Analyzed { file, truncated_at_byte, partial: analyzer.finish(), frontier })
}

/// Analyses a file of which several threads read parts. About half of the work is to read packets and to find
/// their headers, the other half to compare them in their order.
fn analyze_parts(
    file: String,
    parts: Parts,
    config: &Config,
    args: &cli::Analyze,
    progress: Progress,
) -> anyhow::Result<Analyzed> {
    let readers = config.threads / 2;
    let mut analyzer = Analyzer::new(Config { threads: config.threads - readers, ..config.clone() })?;
    let empty = analyzer.digest();
    let make = |part: &Part, digest: &mut Option<Digest>| {
        let digest = digest.get_or_insert_with(|| empty.clone());
        digest.clear();
        for record in part.records() {
            digest.packet(record.time.0, record.link, record.original_len, record.data);
        }
    };
    let mut taken = 0u64;
    parts.each(readers, make, |digest: &mut Option<Digest>| {
        if let Some(digest) = digest {
            analyzer.add(digest);
        }
        taken += 1;
        if taken.is_multiple_of(64) {
            progress.at(Some(parts.progress()));
        }
        anyhow::Ok(())
    })?;
    drop(progress);
    let truncated_at_byte = report_damage(&parts.into_reader(), args.damage.strict)?;
    Ok(Analyzed { file, truncated_at_byte, partial: analyzer.finish(), frontier: None })
}

fn read(
    reader: &mut CaptureReader,
    packet: &mut impl FnMut(Nanos, LinkType, u32, &[u8]),
    progress: &Progress,
) -> anyhow::Result<()> {
    let mut packets = 0u64;
    while let Some(record) = reader.next_record()? {
        packet(record.time, record.link, record.original_len, record.data);
        packets += 1;
        if packets.is_multiple_of(1 << 18) {
            progress.at(reader.file_len().map(|all| reader.bytes_read() as f64 / all.max(1) as f64));
        }
    }
    Ok(())
}

/// Writes `--report`: the total first, where there are several traces.
fn write_page(
    mut file: Replacement,
    analyzed: &[Analyzed],
    reports: &[Report],
    total: &Report,
) -> anyhow::Result<()> {
    let mut subjects = Vec::with_capacity(analyzed.len() + 1);
    if analyzed.len() > 1 {
        let name = format!("total of {} traces", analyzed.len());
        subjects.push(Subject { name, truncated_at_byte: None, report: total, frontier: None });
    }
    subjects.extend(analyzed.iter().zip(reports).map(|(a, report)| Subject {
        name: a.file.clone(),
        truncated_at_byte: a.truncated_at_byte,
        report,
        frontier: a.frontier.as_ref(),
    }));
    file.write_all(report::html(&subjects)?.as_bytes()).context("--report")?;
    file.commit().context("--report")
}

/// Writes `--parquet`: the flows of all traces.
fn write_flows(file: Replacement, analyzed: &[Analyzed]) -> anyhow::Result<()> {
    let mut flows = FlowFile::new(file)?;
    for one in analyzed {
        flows.trace(&one.file, &one.partial)?;
    }
    flows.finish()?.commit().context("--parquet")
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

/// The verdict, last, where a reader looks for it.
fn conclude(t: &mut Table, report: &Report, frontier: Option<&Frontier>) {
    let verdict = report::verdict(&report.ip, frontier);
    if !verdict.is_empty() {
        t.title("Verdict");
        t.prose([verdict]);
    }
}

fn as_table(t: &mut Table, name: &str, truncated_at_byte: Option<u64>, r: &Report) {
    t.title(name.to_owned());
    t.row(["packets", &count(r.records)]);
    t.row(["bytes on the wire", &count(r.bytes)]);
    t.row(["duration", &time(Some(r.duration_ns as f64))]);
    if r.duration_ns > 0 {
        t.row(["rate", &bit_rate(r.bytes, r.duration_ns)]);
        t.row(["packets a second", &packet_rate(r.records, r.duration_ns)]);
    }
    let skipped = [
        ("not IP", r.skipped.non_ip),
        ("of an unsupported link type", r.skipped.unsupported_link_type),
        ("cut off in the headers", r.skipped.truncated),
        ("malformed", r.skipped.malformed),
    ];
    for (what, n) in skipped.into_iter().filter(|s| s.1 > 0) {
        t.row([&format!("left out: {what}"), &count(n)]);
    }
    t.row(["IPv6 packets", &count(r.ipv6)]);
    t.row(["fragments", &count(r.fragments)]);
    t.row(["flows, both directions as one", &count(r.flows_bidirectional)]);
    if r.clock_backwards > 0 {
        t.row(["times that ran backwards", &count(r.clock_backwards)]);
    }
    if let Some(byte) = truncated_at_byte {
        t.row(["damaged at byte", &count(byte)]);
    }
    t.title("Locality");
    t.row(["", "all IP", "TCP"]);
    let both =
        |t: &mut Table, label: &str, f: &dyn Fn(&Sequence) -> String| t.row([label, &f(&r.ip), &f(&r.tcp)]);
    both(t, "packets", &|s| count(s.packets));
    both(t, "flows, each direction", &|s| count(s.flows));
    both(t, "... of a single packet", &|s| count(s.single_packet_flows));
    both(t, "packets a flow, mean", &|s| number(s.flow_size.distribution.mean, 1));
    both(t, "spatial locality factor (SLF)", &|s| number(s.slf, 3));
    both(t, "pairs with another flow between", &|s| share(s.share_spatial_distance_gt_1));
    both(t, "spatial distance, median", &|s| number(s.spatial_distance.p50, 0));
    both(t, "temporal distance, median", &|s| time(s.temporal_distance_ns.p50));
    for (label, s) in [("What holding would gain: all IP", &r.ip), ("What holding would gain: TCP", &r.tcp)] {
        if s.packets == 0 {
            continue;
        }
        t.title(label);
        t.row(["hold", "SLF after", "mean train", "in trains of 2+", "p75", "p90", "ACKs coalescable"]);
        for w in &s.windows {
            t.row([
                Duration(w.window_ns).to_string(),
                number(w.slf_after, 3),
                number(w.mean_train, 3),
                share(w.share_packets_in_trains),
                number(w.p75, 0),
                number(w.p90, 0),
                w.acks.map_or_else(String::new, |a| share(a.ack_coalescable_strict)),
            ]);
        }
    }
    if !r.ip.flow_switches.is_empty() {
        t.title("Flow switches in a batch");
        t.row(["batch", "as they come", "sorted by flow"]);
        for s in &r.ip.flow_switches {
            t.row([s.batch.to_string(), format!("{:.1}", s.unordered), format!("{:.1}", s.ordered)]);
        }
    }
    if !r.top_endpoints.is_empty() {
        t.title("Addresses with the most flows");
        t.row([
            "",
            "flows sent",
            "received",
            "packets a flow sent, mean",
            "largest",
            "received, mean",
            "largest",
        ]);
        for e in &r.top_endpoints {
            let side = |s: &EndpointSide| [number(s.mean, 1), s.max.map_or_else(|| "–".to_owned(), count)];
            let flows = [e.address.to_string(), count(e.tx.flows), count(e.rx.flows)];
            t.row(flows.into_iter().chain(side(&e.tx)).chain(side(&e.rx)));
        }
    }
    if r.clock_backwards > 0 {
        warn!(
            "{name}: the times of {} ran backwards; windows take them to come with the one before",
            plural(r.clock_backwards, "packet")
        );
    }
}
