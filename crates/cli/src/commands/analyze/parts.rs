//! Parts of traces: analysed by themselves, saved, and joined to what `analyze` gives of the whole.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use serde::Serialize;
use slipstream::io::capture::{Span, SpanRead, span_of_part};
use slipstream::text_file;
use slipstream_trace::{Config, Ending, MergeError, Opening, Place, Stretch, StretchAnalyzer};
use tracing::warn;

use super::super::{Outcome, report_damage, report_times, tell_damage};
use super::read::LOOK_EVERY;
use super::{Analyzed, Output};
use crate::check;
use crate::cli::{self, PartOf};
use crate::port::{Input, is_special};
use crate::replace::{Replacement, refuse_shared};
use crate::ui::{Progress, unreadable};
use crate::units::Duration;

/// The part of its trace that a result is of.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Extent {
    /// Byte at which its first record begins; 0 with the trace.
    from_byte: u64,
    /// Byte at which the next part begins; null where that is not known.
    to_byte: Option<u64>,
    /// Packets that are kept as they are, since what came before them may matter.
    kept_packets: usize,
}

impl Extent {
    pub(super) fn name(&self, file: &str) -> String {
        match (self.from_byte, self.to_byte) {
            (u64::MAX, _) => format!("{file}, a part without packets"),
            (from, None) => format!("{file}, from byte {from}"),
            (from, Some(to)) => format!("{file}, bytes {from} to {to}"),
        }
    }
}

/// Analyses a trace, or the part of it that `--part` asks for, in such a way that it joins others; writes it
/// to `save`, which takes its name with what else is written.
pub(super) fn analyze(
    path: &Path,
    config: &Config,
    args: &cli::Analyze,
    save: Option<Replacement>,
    output: &mut Output,
) -> anyhow::Result<Analyzed> {
    let file = path.display().to_string();
    let span = span(path, args.part)?;
    let how = How { keep: args.keep_packets, walk: args.walk };
    let stretch = match Input::open(path)? {
        Input::Capture(reader) if !is_stream(path) => {
            drop(reader);
            let (stretch, read) = read_span(path, span, config, how)?;
            report(&file, &read, args.damage.strict)?;
            stretch
        }
        input => read_stream(input, span, config, &file, args.damage.strict)?,
    };
    if let Some(save) = save {
        output.written.push(write(&stretch, save)?);
    }
    Ok(analyzed(stretch, args.part.is_some()))
}

/// Returns true if packets are read or made once, from begin to end: stdin, made traffic, any pipe.
fn is_stream(path: &Path) -> bool {
    let name = path.to_string_lossy();
    name == "-" || name.starts_with("synth:") || is_special(path)
}

fn span(path: &Path, part: Option<PartOf>) -> anyhow::Result<Span> {
    let name = path.to_string_lossy();
    let stream = is_stream(path);
    match part {
        None => Ok(Span::ALL),
        Some(PartOf::Number(number, _)) if stream => Ok(if number == 1 { Span::ALL } else { Span::NOTHING }),
        Some(PartOf::Number(number, of)) => {
            let span = span_of_part(path, number, of)?;
            if span.is_none() {
                warn!(
                    "{name}: nothing is left for part {number}/{of}, since the file can't be cut where it would begin: \
                     a part before has these packets"
                );
            }
            Ok(span.unwrap_or(Span::NOTHING))
        }
        Some(PartOf::Bytes(_)) if stream => bail!("--part: {name} can't be cut at bytes"),
        Some(PartOf::Bytes(span)) => Ok(span),
    }
}

/// The way in which a part is read.
#[derive(Clone, Copy)]
struct How {
    keep: bool,
    walk: bool,
}

fn read_span(path: &Path, span: Span, config: &Config, how: How) -> anyhow::Result<(Stretch, SpanRead)> {
    let file = path.display().to_string();
    let mut analyzer = StretchAnalyzer::new(config.clone(), Opening::new(span.from == 0, how.keep))?;
    let progress = Progress::new(&file);
    let read = span.read(
        path,
        how.walk,
        |record| analyzer.packet(record.time.0, record.link, record.original_len, record.data),
        |share| anyhow::Ok(progress.goes_on(share)?),
    )?;
    let place = Place {
        file,
        from: span.from,
        to: read.to,
        context_from: read.context_from,
        context_to: read.context_to,
        truncated_at_byte: read.damage.as_ref().map(|damage| damage.byte),
        ending: if read.ends { Ending::Ends } else { Ending::Continues },
    };
    Ok((analyzer.finish(place), read))
}

/// Says what is wrong with the packets of a span, as [`report_damage`] does of a capture.
fn report(file: &str, read: &SpanRead, strict: bool) -> anyhow::Result<()> {
    report_times(file, read.notes);
    read.damage.as_ref().map_or(Ok(()), |damage| tell_damage(file, damage, strict))
}

/// A trace from a pipe, or one that is made: it has one part, and parts in which nothing is left.
fn read_stream(
    input: Input,
    span: Span,
    config: &Config,
    file: &str,
    strict: bool,
) -> anyhow::Result<Stretch> {
    let mut analyzer = StretchAnalyzer::new(config.clone(), Opening::new(span.from == 0, false))?;
    let (progress, mut packets) = (Progress::new(file), 0u64);
    let mut goes_on = || {
        packets += 1;
        if packets.is_multiple_of(LOOK_EVERY) { progress.goes_on(None) } else { Ok(()) }
    };
    let mut place =
        Place { file: file.to_owned(), from: span.from, ending: Ending::Ends, ..Place::default() };
    match input {
        _ if span == Span::NOTHING => place.ending = Ending::Unknown,
        Input::Capture(mut reader) => {
            while let Some(record) = reader.next_record()? {
                analyzer.packet(record.time.0, record.link, record.original_len, record.data);
                goes_on()?;
            }
            place.truncated_at_byte = report_damage(&reader, strict)?;
        }
        Input::Synth(mut synth) => {
            let mut frame = Vec::new();
            while let Some(record) = synth.next_record(&mut frame) {
                analyzer.packet(record.time.0, record.link, record.original_len, record.data);
                goes_on()?;
            }
        }
    }
    Ok(analyzer.finish(place))
}

fn write(stretch: &Stretch, mut file: Replacement) -> anyhow::Result<Replacement> {
    file.write_all(&stretch.to_bytes())?;
    Ok(file)
}

/// `part`: say which part of the trace it is.
fn analyzed(stretch: Stretch, part: bool) -> Analyzed {
    let place = stretch.place().clone();
    let extent = Extent {
        from_byte: place.from,
        to_byte: Some(place.to).filter(|to| *to > 0),
        kept_packets: stretch.kept_packets(),
    };
    let partial = stretch.into_partial();
    Analyzed {
        part: part.then_some(extent),
        truncated_at_byte: place.truncated_at_byte,
        ..Analyzed::plain(place.file, partial)
    }
}

/// `analyze merge`.
pub(super) fn merge(args: &cli::MergeParts) -> anyhow::Result<Outcome> {
    let checks = check::parse_all(&args.reporting.fail_if)?;
    let others = [("--report", args.report.as_deref()), ("--parquet", args.parquet.as_deref())];
    refuse_shared(others, args.parts.iter().map(PathBuf::as_path))?;
    // Parts may be joined into one of them, which is of the same kind.
    refuse_shared(others.into_iter().chain([("--save", args.save.as_deref())]), [])?;
    let mut output = Output::open(args.report.as_deref(), args.parquet.as_deref())?;
    let save = args.save.as_deref().map(|p| Replacement::create("--save", p)).transpose()?;
    let mut traces: Vec<Vec<Saved>> = Vec::new();
    for path in &args.parts {
        let saved = Saved::read(path)?;
        let of = |trace: &&mut Vec<Saved>| trace.first().is_some_and(|first| first.file() == saved.file());
        match traces.iter_mut().find(of) {
            Some(trace) => trace.push(saved),
            None => traces.push(vec![saved]),
        }
    }
    if let (Some(save), [one, another, ..]) = (&args.save, traces.as_slice()) {
        let names = [one, another].map(|trace| trace.first().map_or("", Saved::file));
        bail!(
            "--save {}: the parts are of several traces, {} and {}; a file has parts of one",
            save.display(),
            names[0],
            names[1]
        );
    }
    let mut whole = Vec::with_capacity(traces.len());
    for trace in traces {
        let joined = joined(trace, args.save.is_some())?;
        if let Some(damage) = joined.place().truncated_at_byte {
            warn!("{}: damaged at byte {damage}; the packets before it were used", joined.place().file);
        }
        whole.push(joined);
    }
    if let (Some(save), [one]) = (save, whole.as_slice()) {
        output.written.push(write(one, save)?);
    }
    let analyzed: Vec<Analyzed> = whole
        .into_iter()
        .map(|stretch| {
            let incomplete = stretch.complete().is_err();
            analyzed(stretch, incomplete)
        })
        .collect();
    output.print(&analyzed, &args.reporting, &checks)
}

/// A part in a file.
struct Saved {
    path: PathBuf,
    stretch: Stretch,
}

impl Saved {
    fn read(path: &Path) -> anyhow::Result<Self> {
        let bytes = text_file::marked(path, Stretch::MAGIC).map_err(|error| unreadable(path, error))?;
        let stretch = Stretch::from_bytes(&bytes).with_context(|| path.display().to_string())?;
        Ok(Self { path: path.to_owned(), stretch })
    }

    fn file(&self) -> &str {
        &self.stretch.place().file
    }
}

/// The parts of one trace as one. `partly`: some may be missing.
fn joined(mut parts: Vec<Saved>, partly: bool) -> anyhow::Result<Stretch> {
    parts.sort_by_key(|part| (part.stretch.place().from, !part.stretch.opens()));
    if parts.iter().any(|part| !part.stretch.is_nothing()) {
        parts.retain(|part| !part.stretch.is_nothing());
    }
    let mut parts = parts.into_iter();
    let Some(mut whole) = parts.next() else { bail!("no part was named") };
    let earliest = whole.path.clone();
    let mut from = whole.stretch.place().from;
    for next in parts {
        let before = core::mem::replace(&mut from, next.stretch.place().from);
        if whole.stretch.place().truncated_at_byte.is_some() {
            if from == before {
                let (one, other, file) = (whole.path.display(), next.path.display(), whole.file());
                bail!("{one} and {other}, parts of {file}, both begin at byte {from}: name one of them");
            }
            // Bytes behind damage are no part of the trace.
            break;
        }
        if let Err(error) = whole.stretch.join(&next.stretch) {
            rejoin(&mut whole, &next, error)?;
            if whole.stretch.place().ending == Ending::Ends {
                break;
            }
        }
        whole.path = next.path;
    }
    match whole.stretch.complete() {
        Err(error) if !partly => {
            let path = if matches!(error, MergeError::First { .. }) { earliest } else { whole.path };
            let file = &whole.stretch.place().file;
            bail!("{}: {file}: {error} (--save joins parts of which some are missing)", path.display());
        }
        _ => Ok(whole.stretch),
    }
}

/// The settings of two parts that differ, with their values.
fn differences(one: &Config, other: &Config) -> String {
    let list = |of: &mut dyn Iterator<Item = String>| of.collect::<Vec<_>>().join(",");
    let values = |c: &Config| {
        [
            ("--window", list(&mut c.windows_ns.iter().map(|ns| Duration(*ns).exact()))),
            ("--burst", c.burst.to_string()),
            ("--top", c.top.to_string()),
            ("--tunnel", format!("{:?}", c.encapsulation).to_lowercase()),
            ("batches of flow switches", list(&mut c.switch_batches.iter().map(u32::to_string))),
        ]
    };
    let both = values(one).into_iter().zip(values(other));
    let differ = both.filter(|((_, a), (_, b))| a != b);
    let told: Vec<_> = differ.map(|((name, a), (_, b))| format!("{name} ({a} and {b})")).collect();
    told.join(", ")
}

/// Joins a part that doesn't join as it is: it is analysed anew, from where the one before ends and with all
/// packets kept.
fn rejoin(whole: &mut Saved, next: &Saved, error: MergeError) -> anyhow::Result<()> {
    let file = whole.file().to_owned();
    let (here, there) = (whole.stretch.place().clone(), next.stretch.place().clone());
    let names = format!("{} and {}, parts of {file}", whole.path.display(), next.path.display());
    let contexts = here.to == there.from;
    let advice = match error {
        // Bytes are missing, or two parts overlap.
        MergeError::Gap { .. } if !contexts => bail!("{names}, don't follow one another: {error}"),
        MergeError::Gap { .. } if there.context_from == SpanRead::TIME_BEFORE => {
            "its first packet has no time but that of the one before: make it with --walk"
        }
        MergeError::Gap { .. } => "the file describes further interfaces in between: make it with --walk",
        MergeError::Settings => {
            let differ = differences(&whole.stretch.config(), &next.stretch.config());
            bail!("{names}: {error}; they differ in {differ}")
        }
        MergeError::Unresolved => "times run backwards from one to the next: make it with --keep-packets",
        _ => bail!("{names}: {error}"),
    };
    let last = there.ending == Ending::Ends || there.to == 0;
    let to = if last { u64::MAX } else { there.to };
    let config = whole.stretch.config();
    let redo = |to: u64| {
        let span = Span { from: here.to, to };
        read_span(Path::new(&file), span, &config, How { keep: true, walk: true })
    };
    let anew = redo(to).or_else(|_| redo(u64::MAX));
    let (anew, _) = anew.map_err(|why| {
        anyhow!(
            "{}: {advice}; it could not be made anew here: {}",
            next.path.display(),
            crate::ui::in_words(&why)
        )
    })?;
    warn!("{}: was analysed anew, since {advice}", next.path.display());
    whole.stretch.join(&anew).map_err(|error| anyhow!("{names}: {error}"))
}
