//! `slipstream.analyze`: the locality of traces.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::{panic, thread};

use anyhow::Context;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use slipstream::io::capture::{CaptureReader, Part, Parts, Record, Sections};
use slipstream_trace::{Analyzer, Config, Digest, FlowFile, Partial, SectionAnalyzer, analyze_sections};
use slipstream_wire::Encapsulation;

use crate::error::exception;
use crate::input::{Input, OddTimes, Opened, Progress, Time, check_signals, damage, until_ended};

/// The analysis of one trace: what its report and its flows are made of.
#[pyclass(frozen, module = "slipstream._native")]
pub(crate) struct Analysis {
    pub(crate) file: String,
    pub(crate) damage: Option<(u64, String)>,
    /// None where it is made of saved parts, which don't say.
    pub(crate) odd_times: Option<OddTimes>,
    pub(crate) partial: Partial,
}

#[pymethods]
impl Analysis {
    /// Name of the trace.
    #[getter]
    fn file(&self) -> &str {
        &self.file
    }

    /// The byte at which the trace is damaged, and the damage in words.
    #[getter]
    fn damage(&self) -> Option<(u64, String)> {
        self.damage.clone()
    }

    /// The numbers of packets whose times lie beyond what there can be, and of those that have none, if they
    /// are known.
    #[getter]
    fn odd_times(&self) -> Option<(u64, u64)> {
        self.odd_times.map(OddTimes::pair)
    }

    /// The report, as the command has it.
    fn report(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| Ok(serde_json::to_string(&self.partial.report())?)).map_err(exception)
    }

    /// The flows of this trace, as a Parquet file.
    fn flows<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = py.detach(|| {
            let mut flows = FlowFile::new(Vec::new())?;
            flows.trace(&self.file, &self.partial)?;
            anyhow::Ok(flows.finish()?)
        });
        Ok(PyBytes::new(py, &bytes.map_err(exception)?))
    }

    /// This trace and others as if they were one, as the command's total.
    fn merged(&self, py: Python<'_>, others: Vec<Py<Self>>) -> PyResult<Self> {
        py.detach(|| {
            let (mut partial, mut odd_times) = (self.partial.clone(), self.odd_times);
            for other in &others {
                let other = other.get();
                partial.merge(&other.partial)?;
                odd_times = odd_times.zip(other.odd_times).map(|(a, b)| a.and(b));
            }
            anyhow::Ok(Self { file: "total".to_owned(), damage: None, odd_times, partial })
        })
        .map_err(exception)
    }
}

/// Analyses one trace.
#[pyfunction]
#[pyo3(signature = (input, *, windows, burst, top, inner, threads, strict, progress))]
#[allow(clippy::too_many_arguments, reason = "each is a keyword in Python")]
pub(crate) fn analyze(
    py: Python<'_>,
    input: Input,
    windows: Vec<Time>,
    burst: u32,
    top: usize,
    inner: bool,
    threads: Option<usize>,
    strict: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<Analysis> {
    let name = input.name();
    let progress = Progress { name, callback: progress };
    py.detach(move || {
        let windows_ns = windows.iter().map(Time::ns).collect::<anyhow::Result<_>>().context("windows")?;
        let threads = threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
        let encapsulation = if inner { Encapsulation::Inner } else { Encapsulation::Outer };
        let config = Config { windows_ns, burst, top, encapsulation, threads, ..Config::default() };
        config.validate()?;
        run(input, config, strict, &progress)
    })
    .map_err(exception)
}

fn run(input: Input, config: Config, strict: bool, progress: &Progress) -> anyhow::Result<Analysis> {
    let file = input.name();
    if let (Input::Path(path), true) = (&input, config.threads > 1)
        && path.is_file()
        && let Some(analysis) = in_sections(path, &config, strict, progress)?
    {
        return Ok(analysis);
    }
    match input.open()? {
        Opened::Capture(mut reader) => {
            if config.threads > 1 {
                match Parts::new(*reader) {
                    Ok(parts) => return in_parts(file, parts, config, strict, progress),
                    Err(whole) => reader = whole,
                }
                reader.unpack_ahead();
            }
            in_order(file, *reader, config, strict, progress)
        }
        Opened::Synth(mut synth) => {
            let mut analyzer = Analyzer::new(config)?;
            let (mut frame, mut packets) = (Vec::new(), 0u64);
            while let Some(record) = synth.next_record(&mut frame) {
                analyzer.packet(record.time.0, record.link, record.original_len, record.data);
                packets += 1;
                if packets.is_multiple_of(1 << 18) {
                    progress.at(None)?;
                }
            }
            let odd_times = Some(OddTimes::default());
            Ok(Analysis { file, damage: None, odd_times, partial: analyzer.finish() })
        }
    }
}

fn in_order(
    file: String,
    mut reader: CaptureReader,
    config: Config,
    strict: bool,
    progress: &Progress,
) -> anyhow::Result<Analysis> {
    let mut analyzer = Analyzer::new(config)?;
    let mut packets = 0u64;
    while let Some(record) = reader.next_record()? {
        analyzer.packet(record.time.0, record.link, record.original_len, record.data);
        packets += 1;
        if packets.is_multiple_of(1 << 18) {
            progress.at(reader.file_len().map(|all| reader.bytes_read() as f64 / all.max(1) as f64))?;
        }
    }
    let damage = damage(&reader, strict)?;
    Ok(Analysis { file, damage, odd_times: Some(OddTimes::of(&reader)), partial: analyzer.finish() })
}

/// Each thread reads a section, as the command does it; None if the trace must be read in one piece. The
/// calling thread reads none: it alone hears an interrupt, and listens all the time.
fn in_sections(
    path: &Path,
    config: &Config,
    strict: bool,
    progress: &Progress,
) -> anyhow::Result<Option<Analysis>> {
    let Some(sections) = Sections::new(path, config.threads)? else { return Ok(None) };
    let (stopped, share) = (AtomicBool::new(false), AtomicU64::new(0));
    let read = |number: usize, section: &mut SectionAnalyzer<'_>| {
        let record = |section: &mut SectionAnalyzer<'_>, record: Record<'_>| {
            section.packet(record.time.0, record.link, record.original_len, record.data);
        };
        let goes_on = |section: &mut SectionAnalyzer<'_>, done: f64| {
            // Numbers that are not negative are in the order of their bits.
            share.fetch_max(done.to_bits(), Ordering::Relaxed);
            anyhow::Ok(!stopped.load(Ordering::Relaxed) && !section.gives_up())
        };
        sections.read(number, section, record, goes_on)
    };
    let partial = thread::scope(|scope| {
        let (end, ended) = mpsc::channel::<()>();
        let work = || {
            let _end = end;
            analyze_sections(config, sections.len(), read)
        };
        // Without another thread the trace is read in another way.
        let Ok(worker) = thread::Builder::new().spawn_scoped(scope, work) else { return Ok(None) };
        let mut told = 0;
        let heard = until_ended(&ended, || {
            let now = share.load(Ordering::Relaxed);
            let more = now > told;
            told = now;
            if more { progress.at(Some(f64::from_bits(now))) } else { check_signals() }
        });
        // The others stop then, which takes them a moment.
        stopped.store(heard.is_err(), Ordering::Relaxed);
        let made = worker.join().unwrap_or_else(|panicked| panic::resume_unwind(panicked));
        heard?;
        made
    })?;
    let (Some(partial), Some(reader)) = (partial, sections.into_reader()) else { return Ok(None) };
    let file = path.display().to_string();
    let odd_times = Some(OddTimes::of(&reader));
    Ok(Some(Analysis { file, damage: damage(&reader, strict)?, odd_times, partial }))
}

/// Several threads read parts, as the command does it.
fn in_parts(
    file: String,
    parts: Parts,
    config: Config,
    strict: bool,
    progress: &Progress,
) -> anyhow::Result<Analysis> {
    let readers = config.threads / 2;
    let mut analyzer = Analyzer::new(Config { threads: config.threads - readers, ..config })?;
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
            progress.at(Some(parts.progress()))?;
        }
        anyhow::Ok(())
    })?;
    let reader = parts.into_reader();
    let damage = damage(&reader, strict)?;
    Ok(Analysis { file, damage, odd_times: Some(OddTimes::of(&reader)), partial: analyzer.finish() })
}
