//! Reads a trace into an analysis, and into whatever else was asked of it.

use std::path::Path;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{anyhow, bail};
use slipstream::io::capture::{CaptureReader, Part, Parts, Record, Sections};
use slipstream::time::Nanos;
use slipstream_lab::frontier::Arrivals;
use slipstream_trace::{
    Analyzer, Config, DetailConfig, DetailDigest, Details, Digest, GroupBy, Groups, PacketFile, PacketRow,
    Partial, SectionAnalyzer, Slices,
};
use slipstream_wire::LinkType;

use super::super::{frontier, report_damage};
use super::{Analyzed, Packets, most_groups};
use crate::cli;
use crate::port::Input;
use crate::replace::Replacement;
use crate::selection::{Selector, first_time};
use crate::ui::Progress;

/// Packets between two looks at whether to go on.
pub(super) const LOOK_EVERY: u64 = 1 << 18;

/// All that packets of a trace go to, in their order.
struct Sinks<'a> {
    analyzer: Analyzer,
    details: Option<Details>,
    slices: Option<Slices>,
    arrivals: Option<Arrivals>,
    packets: Option<MutexGuard<'a, PacketFile<Replacement>>>,
    selector: Option<Selector>,
    config: &'a Config,
    number: u64,
}

impl<'a> Sinks<'a> {
    fn new(
        args: &'a cli::Analyze,
        config: &'a Config,
        packets: Option<&'a Packets>,
        file: &str,
    ) -> anyhow::Result<Self> {
        let packets = packets.map(|p| p.lock().map_err(|_| anyhow!("a thread of the analysis failed")));
        let mut packets = packets.transpose()?;
        packets.iter_mut().for_each(|packets| packets.begin(file));
        let slices = match args.by.map(|by| by.0) {
            Some(by @ GroupBy::Slice(ns)) => {
                Some(Slices::new(ns, details(args, config), most_groups(args, by)))
            }
            _ => None,
        };
        let selected = !args.selection.is_everything();
        Ok(Self {
            analyzer: Analyzer::new(config.clone())?,
            details: wants_details(args).then(|| Details::new(details(args, config))),
            slices,
            arrivals: args.frontier.then(Arrivals::default),
            packets,
            selector: selected.then(|| Selector::new(&args.selection, config.encapsulation)),
            config,
            number: 0,
        })
    }

    /// Returns true if packets go to the analysis and to nothing else.
    fn has_only_the_analysis(&self) -> bool {
        let others = self.details.is_some() | self.slices.is_some() | self.arrivals.is_some();
        !(others | self.packets.is_some() | self.selector.is_some())
    }

    /// Takes the next packet of the trace; false where no further one counts.
    fn packet(&mut self, at: Nanos, link: LinkType, len: u32, data: &[u8]) -> anyhow::Result<bool> {
        self.number += 1;
        if let Some(selector) = &mut self.selector
            && !selector.wants(at.0, link, len, data)
        {
            return Ok(!selector.is_done());
        }
        self.analyzer.packet(at.0, link, len, data);
        let flow = self.details.as_mut().and_then(|details| details.packet(at.0, link, len, data));
        if let Some(slices) = &mut self.slices {
            slices.packet(at.0, link, len, data);
        }
        if let Some(arrivals) = &mut self.arrivals {
            arrivals.push(at, link, len, data, self.config.encapsulation);
        }
        if let Some(packets) = &mut self.packets {
            let (number, time_ns, original_len) = (self.number, at.0, len);
            let row = PacketRow { number, time_ns, link, original_len, data, flow };
            packets.packet(&row)?;
        }
        Ok(!self.selector.as_ref().is_some_and(Selector::is_done))
    }

    fn finish(self, file: String, damaged: Option<u64>, args: &cli::Analyze) -> anyhow::Result<Analyzed> {
        let frontier = self.arrivals.map(|arrivals| frontier::measure(args, &arrivals)).transpose()?;
        let groups = self.slices.map(Slices::finish);
        let left_out = self.selector.map(|s| s.left_out());
        let analyzed =
            Analyzed::of(file, damaged, left_out, self.analyzer.finish(), self.details, groups, args);
        Ok(Analyzed { frontier, ..analyzed })
    }
}

impl Analyzed {
    fn of(
        file: String,
        truncated_at_byte: Option<u64>,
        left_out: Option<u64>,
        partial: Partial,
        details: Option<Details>,
        slices: Option<Groups>,
        args: &cli::Analyze,
    ) -> Self {
        let by_flow = |by: cli::By| Some(Groups::of(details.as_ref()?, by.0, most_groups(args, by.0)));
        let groups = slices.or_else(|| args.by.and_then(by_flow));
        let plain = Self::plain(file, partial);
        Self { truncated_at_byte, left_out, details, groups, ..plain }
    }
}

/// Settings of what is counted flow by flow; trains only where groups show them.
fn details(args: &cli::Analyze, config: &Config) -> DetailConfig {
    DetailConfig {
        windows_ns: if args.by.is_some() { config.windows_ns.clone() } else { Vec::new() },
        burst: config.burst,
        encapsulation: config.encapsulation,
    }
}

fn wants_details(args: &cli::Analyze) -> bool {
    let by_flow = args.by.is_some_and(|by| !matches!(by.0, GroupBy::Slice(_)));
    by_flow || args.parquet.is_some() || args.parquet_packets.is_some()
}

/// Returns true if all that is asked for can be had of parts that several threads read. Every packet in order
/// is for one thread.
fn goes_by_parts(args: &cli::Analyze) -> bool {
    let by_slice = matches!(args.by, Some(cli::By(GroupBy::Slice(_))));
    !args.frontier && !by_slice && args.parquet_packets.is_none() && args.selection.count.is_none()
}

/// Returns true if all that is asked for can be had of sections that one thread each reads from begin to end.
fn goes_by_sections(args: &cli::Analyze) -> bool {
    goes_by_parts(args) && !wants_details(args)
}

pub(super) fn analyze_one(
    path: &Path,
    config: &Config,
    args: &cli::Analyze,
    packets: Option<&Packets>,
) -> anyhow::Result<Analyzed> {
    let file = path.display().to_string();
    let progress = Progress::new(&file);
    if config.threads > 1
        && goes_by_sections(args)
        && let Some(analyzed) = analyze_sections(path, config, args, &progress)?
    {
        return Ok(analyzed);
    }
    // Rows that were written stay, so that a damaged trace has to be known before its first one is.
    if packets.is_some() && args.damage.strict && args.keep_going {
        refuse_damaged(path, config, args, &progress)?;
    }
    let mut input = Input::open(path)?;
    if let Input::Capture(reader) = input {
        if config.threads > 1 && goes_by_parts(args) {
            match Parts::new(*reader) {
                Ok(parts) => return analyze_parts(path, parts, config, args, progress),
                Err(reader) => input = Input::Capture(reader),
            }
        } else {
            input = Input::Capture(reader);
        }
    }
    let mut sinks = Sinks::new(args, config, packets, &file)?;
    let mut truncated_at_byte = None;
    match input {
        Input::Capture(mut reader) => {
            if config.threads > 1 {
                reader.unpack_ahead();
            }
            read(&mut reader, &mut sinks, &progress)?;
            drop(progress);
            truncated_at_byte = report_damage(&reader, args.damage.strict)?;
        }
        Input::Synth(mut synth) => {
            let (mut frame, mut packets) = (Vec::new(), 0u64);
            while let Some(Record { time, link, original_len, data, .. }) = synth.next_record(&mut frame) {
                packets += 1;
                if packets.is_multiple_of(LOOK_EVERY) {
                    progress.goes_on(None)?;
                }
                if !sinks.packet(time, link, original_len, data)? {
                    break;
                }
            }
        }
    }
    sinks.finish(file, truncated_at_byte, args)
}

/// Reads a trace as far as its packets count.
///
/// # Errors
/// It is damaged, or can't be read twice.
fn refuse_damaged(
    path: &Path,
    config: &Config,
    args: &cli::Analyze,
    progress: &Progress,
) -> anyhow::Result<()> {
    if path.as_os_str() == "-" || (path.exists() && !path.is_file()) {
        bail!(
            "{}: --parquet-packets with --strict and --keep-going reads traces twice, which takes files; \
             leave one of these out",
            path.display()
        );
    }
    let Input::Capture(mut reader) = Input::open(path)? else { return Ok(()) };
    let mut selector = Selector::new(&args.selection, config.encapsulation);
    records(&mut reader, progress, |at, link, len, data| {
        selector.wants(at.0, link, len, data);
        Ok(!selector.is_done())
    })?;
    if reader.damage().is_some() {
        report_damage(&reader, true)?;
    }
    Ok(())
}

/// Analyses a file of which each thread reads a section; None if it must be read in one piece.
fn analyze_sections(
    path: &Path,
    config: &Config,
    args: &cli::Analyze,
    progress: &Progress,
) -> anyhow::Result<Option<Analyzed>> {
    // Pipes are opened once.
    if path.as_os_str() == "-" || !path.is_file() {
        return Ok(None);
    }
    let Some(sections) = Sections::new(path, config.threads)? else { return Ok(None) };
    let selected = !args.selection.is_everything();
    // Each thread must know from when times count.
    let first = if args.selection.time.is_some() { first_time(path)? } else { 0 };
    let filter = selected.then(|| args.selection.filter(first, config.encapsulation));
    let (left_out, taken) = (AtomicU64::new(0), AtomicU64::new(0));
    let partial = slipstream_trace::analyze_sections(config, sections.len(), |number, section| {
        let goes_on = |section: &mut SectionAnalyzer<'_>, share| {
            if taken.fetch_add(1, Ordering::Relaxed).is_multiple_of(64) {
                progress.goes_on(Some(share))?;
            }
            anyhow::Ok(!section.gives_up())
        };
        let Some(filter) = filter else {
            let record = |section: &mut SectionAnalyzer<'_>, record: Record<'_>| {
                section.packet(record.time.0, record.link, record.original_len, record.data);
            };
            return sections.read(number, section, record, goes_on);
        };
        let record = |section: &mut SectionAnalyzer<'_>, record: Record<'_>| {
            let (at, link, len, data) = (record.time.0, record.link, record.original_len, record.data);
            if filter.wants(at, link, len, data) {
                section.packet(at, link, len, data);
            } else {
                left_out.fetch_add(1, Ordering::Relaxed);
            }
        };
        sections.read(number, section, record, goes_on)
    })?;
    let (Some(partial), Some(reader)) = (partial, sections.into_reader()) else { return Ok(None) };
    let damaged = report_damage(&reader, args.damage.strict)?;
    let left_out = selected.then(|| left_out.into_inner());
    let file = path.display().to_string();
    Ok(Some(Analyzed::of(file, damaged, left_out, partial, None, None, args)))
}

/// The results that a part of a trace is made into.
#[derive(Default)]
struct Made {
    digest: Option<Digest>,
    details: Option<DetailDigest>,
    left_out: u64,
}

/// Analyses a file of which several threads read parts. About half of the work is to read packets and to find
/// their headers, the other half to compare them in their order.
fn analyze_parts(
    path: &Path,
    parts: Parts,
    config: &Config,
    args: &cli::Analyze,
    progress: Progress,
) -> anyhow::Result<Analyzed> {
    let readers = config.threads / 2;
    let mut analyzer = Analyzer::new(Config { threads: config.threads - readers, ..config.clone() })?;
    let mut details = wants_details(args).then(|| Details::new(details(args, config)));
    let (empty, no_details) = (analyzer.digest(), details.as_ref().map(Details::digest));
    let selected = !args.selection.is_everything();
    // The parts' own threads must know from when times count.
    let first = if args.selection.time.is_some() { first_time(path)? } else { 0 };
    let filter = selected.then(|| args.selection.filter(first, config.encapsulation));
    let make = |part: &Part, made: &mut Made| {
        let digest = made.digest.get_or_insert_with(|| empty.clone());
        digest.clear();
        made.left_out = 0;
        if let Some(empty) = &no_details {
            made.details.get_or_insert_with(|| empty.clone()).clear();
        }
        for record in part.records() {
            let (at, link, len, data) = (record.time.0, record.link, record.original_len, record.data);
            if filter.is_some_and(|filter| !filter.wants(at, link, len, data)) {
                made.left_out += 1;
                continue;
            }
            digest.packet(at, link, len, data);
            if let Some(details) = &mut made.details {
                details.packet(at, link, len, data);
            }
        }
    };
    let (mut taken, mut left_out) = (0u64, 0);
    parts.each(readers, make, |made: &mut Made| {
        if let Some(digest) = &made.digest {
            analyzer.add(digest);
        }
        if let (Some(details), Some(digest)) = (&mut details, &made.details) {
            details.add(digest);
        }
        left_out += made.left_out;
        taken += 1;
        if taken.is_multiple_of(64) {
            progress.goes_on(Some(parts.progress()))?;
        }
        anyhow::Ok(())
    })?;
    drop(progress);
    let damaged = report_damage(&parts.into_reader(), args.damage.strict)?;
    let file = path.display().to_string();
    let left_out = selected.then_some(left_out);
    Ok(Analyzed::of(file, damaged, left_out, analyzer.finish(), details, None, args))
}

fn read(reader: &mut CaptureReader, sinks: &mut Sinks<'_>, progress: &Progress) -> anyhow::Result<()> {
    if sinks.has_only_the_analysis() {
        // Most traces: nothing is asked for each packet but what the analysis itself asks.
        let analyzer = &mut sinks.analyzer;
        return records(reader, progress, |at, link, len, data| {
            analyzer.packet(at.0, link, len, data);
            Ok(true)
        });
    }
    records(reader, progress, |at, link, len, data| sinks.packet(at, link, len, data))
}

/// Hands the packets of a capture to `packet`, until it wants no more.
#[inline(always)]
fn records(
    reader: &mut CaptureReader,
    progress: &Progress,
    mut packet: impl FnMut(Nanos, LinkType, u32, &[u8]) -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let mut packets = 0u64;
    while let Some(record) = reader.next_record()? {
        if !packet(record.time, record.link, record.original_len, record.data)? {
            break;
        }
        packets += 1;
        if packets.is_multiple_of(LOOK_EVERY) {
            progress.goes_on(reader.file_len().map(|all| reader.bytes_read() as f64 / all.max(1) as f64))?;
        }
    }
    Ok(())
}
