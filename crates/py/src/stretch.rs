//! `slipstream.partials` and `slipstream.spark`: parts of traces, their analyses, and their packets as
//! columns.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::Context;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use slipstream::io::capture::{CaptureError, CaptureReader, Part, Parts, Span, spans_told};
use slipstream_trace::{
    Config, Ending, MergeError, Opening, Place, Stretch as State, StretchAnalyzer, StretchError,
};
use slipstream_wire::{Encapsulation, LinkType};

use crate::analyze::Analysis;
use crate::error::{Damaged, PartialError, StateError, exception};
use crate::input::{OddTimes, Progress, Time, damage, in_turn};

/// The analysis of a part of a trace. Threads that use it at the same time take turns.
#[pyclass(frozen, module = "slipstream._native")]
pub(crate) struct Stretch(Mutex<State>);

impl Stretch {
    fn of(state: State) -> Self {
        Self(Mutex::new(state))
    }
}

#[pymethods]
impl Stretch {
    /// Of bytes that [`Stretch::save`] made.
    #[staticmethod]
    fn load(py: Python<'_>, state: &[u8]) -> PyResult<Self> {
        py.detach(|| State::from_bytes(state)).map(Self::of).map_err(|error| of_state(py, &error))
    }

    fn save<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let bytes = in_turn(py, &self.0, |state| state.to_bytes());
        PyBytes::new(py, &bytes)
    }

    /// Adds the part that follows.
    fn join(&self, py: Python<'_>, next: Py<Self>) -> PyResult<()> {
        // A copy, since two threads that wait for one another's part would wait for ever.
        let next = in_turn(py, &next.get().0, |next| next.clone());
        in_turn(py, &self.0, |mine| mine.join(&next)).map_err(|error| of_merge(py, error))
    }

    /// Raises an exception if parts of its trace are missing before or behind it.
    fn complete(&self, py: Python<'_>) -> PyResult<()> {
        in_turn(py, &self.0, |state| state.complete()).map_err(|error| of_merge(py, error))
    }

    /// True where nothing was left for it.
    #[getter]
    fn is_nothing(&self, py: Python<'_>) -> bool {
        in_turn(py, &self.0, |state| state.is_nothing())
    }

    /// The analysis of a trace that is this part.
    fn finish(&self, py: Python<'_>) -> Analysis {
        in_turn(py, &self.0, |state| {
            let place = state.place();
            let damage =
                place.truncated_at_byte.map(|byte| (byte, format!("{}: damaged at byte {byte}", place.file)));
            Analysis {
                file: place.file.clone(),
                damage,
                odd_times: None,
                partial: state.clone().into_partial(),
            }
        })
    }

    #[getter]
    fn file(&self, py: Python<'_>) -> String {
        in_turn(py, &self.0, |state| state.place().file.clone())
    }

    /// Its bytes in the file: where the first record begins (0: with the file), and where the next part
    /// begins (0: unknown).
    #[getter]
    fn span(&self, py: Python<'_>) -> (u64, u64) {
        in_turn(py, &self.0, |state| (state.place().from, state.place().to))
    }

    #[getter]
    fn truncated_at_byte(&self, py: Python<'_>) -> Option<u64> {
        in_turn(py, &self.0, |state| state.place().truncated_at_byte)
    }

    #[getter]
    fn records(&self, py: Python<'_>) -> u64 {
        in_turn(py, &self.0, |state| state.records())
    }

    #[getter]
    fn opens(&self, py: Python<'_>) -> bool {
        in_turn(py, &self.0, |state| state.opens())
    }

    #[getter]
    fn kept_packets(&self, py: Python<'_>) -> usize {
        in_turn(py, &self.0, |state| state.kept_packets())
    }
}

fn of_state(py: Python<'_>, error: &StretchError) -> PyErr {
    let text = error.to_string();
    let byte = text.strip_prefix("byte ").and_then(|rest| rest.split(':').next()?.parse::<u64>().ok());
    let error = StateError::new_err(text);
    let told = error.value(py).setattr("byte", byte);
    told.err().unwrap_or(error)
}

fn of_merge(py: Python<'_>, error: MergeError) -> PyErr {
    let reason = match error {
        MergeError::Unresolved => "unresolved",
        MergeError::Gap { .. } => "gap",
        MergeError::Settings => "settings",
        MergeError::Opens => "opens",
        MergeError::OtherTrace => "other trace",
        MergeError::First { .. } | MergeError::Last { .. } => "missing",
    };
    let error = PartialError::new_err(error.to_string());
    let told = error.value(py).setattr("reason", reason);
    told.err().unwrap_or(error)
}

/// Settings of an analysis, as Python has them.
#[derive(FromPyObject)]
pub(crate) struct Settings {
    #[pyo3(item)]
    windows: Vec<Time>,
    #[pyo3(item)]
    burst: u32,
    #[pyo3(item)]
    top: usize,
    #[pyo3(item)]
    inner: bool,
}

impl Settings {
    fn config(&self) -> anyhow::Result<Config> {
        let windows_ns =
            self.windows.iter().map(Time::ns).collect::<anyhow::Result<_>>().context("windows")?;
        let encapsulation = if self.inner { Encapsulation::Inner } else { Encapsulation::Outer };
        Ok(Config { windows_ns, burst: self.burst, top: self.top, encapsulation, ..Config::default() })
    }
}

/// Cuts a capture into spans of about so many bytes.
#[pyfunction]
pub(crate) fn spans(py: Python<'_>, path: PathBuf, bytes: u64) -> PyResult<Vec<(u64, u64)>> {
    let progress = Progress { name: path.display().to_string(), callback: None };
    let told = |share| progress.at(Some(share)).map_err(anyhow::Error::from);
    let spans = py.detach(|| spans_told(&path, bytes, None, told)).map_err(exception)?;
    Ok(spans.into_iter().map(|span| (span.from, span.to)).collect())
}

/// Packets of a span of a capture.
enum Source {
    Parts(Box<Parts>, Part),
    /// Of what can't be cut.
    Whole(Box<CaptureReader>),
    Done,
}

impl Source {
    fn open(path: &Path, span: Span, walk: bool) -> anyhow::Result<Self> {
        let reader = CaptureReader::open(path)?;
        let parts = if walk { Parts::walked(reader, span)? } else { Parts::within(reader, span)? };
        Ok(match parts {
            Ok(parts) => Self::Parts(Box::new(parts), Part::default()),
            Err(whole) if span != Span::ALL => {
                return Err(CaptureError::NoParts { file: whole.name().to_owned() }.into());
            }
            Err(whole) => Self::Whole(whole),
        })
    }
}

/// Analyses a span of a capture. `walk`: what was said of the packets may have been said anywhere before.
#[pyfunction]
#[pyo3(signature = (path, span, *, settings, keep, walk, progress))]
pub(crate) fn stretch(
    py: Python<'_>,
    path: PathBuf,
    span: (u64, u64),
    settings: Settings,
    keep: bool,
    walk: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<Stretch> {
    let file = path.display().to_string();
    let progress = Progress { name: file.clone(), callback: progress };
    py.detach(move || {
        let span = Span { from: span.0, to: span.1 };
        let mut analyzer = StretchAnalyzer::new(settings.config()?, Opening::new(span.from == 0, keep))?;
        let read = span.read(
            &path,
            walk,
            |record| analyzer.packet(record.time.0, record.link, record.original_len, record.data),
            |share| progress.at(share).map_err(anyhow::Error::from),
        )?;
        let place = Place {
            file,
            from: span.from,
            to: read.to,
            context_from: read.context_from,
            context_to: read.context_to,
            truncated_at_byte: read.damage.map(|damage| damage.byte),
            ending: if read.ends { Ending::Ends } else { Ending::Continues },
        };
        anyhow::Ok(Stretch::of(analyzer.finish(place)))
    })
    .map_err(exception)
}

/// Analyses packets that come as columns.
#[pyclass(frozen, module = "slipstream._native")]
pub(crate) struct Builder(Mutex<Option<StretchAnalyzer>>);

#[pymethods]
impl Builder {
    #[new]
    fn new(settings: Settings, begins: bool, keep: bool) -> PyResult<Self> {
        let analyzer = settings
            .config()
            .and_then(|config| Ok(StretchAnalyzer::new(config, Opening::new(begins, keep))?));
        analyzer.map(|analyzer| Self(Mutex::new(Some(analyzer)))).map_err(exception)
    }

    /// Takes packets: times in nanoseconds (i64, the bits of a u64), link types (i32), lengths (i64), `n` + 1
    /// offsets (i32), and the bytes that these point into; all little-endian.
    fn add(
        &self,
        py: Python<'_>,
        times: &[u8],
        links: &[u8],
        lens: &[u8],
        offsets: &[u8],
        data: &[u8],
    ) -> PyResult<()> {
        in_turn(py, &self.0, |analyzer| {
            let analyzer = analyzer.as_mut().context("it is finished")?;
            let (words, _) = offsets.as_chunks::<4>();
            let places = words.iter().map(|word| u32::from_le_bytes(*word) as usize);
            let ranges = places.clone().zip(places.skip(1));
            let ((times, _), (links, _), (lens, _)) =
                (times.as_chunks::<8>(), links.as_chunks::<4>(), lens.as_chunks::<8>());
            for (((time, link), len), (from, to)) in times.iter().zip(links).zip(lens).zip(ranges) {
                let link = LinkType::from_number(u32::from_le_bytes(*link) as u16);
                let bytes = data.get(from..to).context("offsets that point behind the bytes")?;
                let len = i64::from_le_bytes(*len);
                let len = u32::try_from(len).with_context(|| format!("original_len: {len} is no length"))?;
                analyzer.packet(u64::from_le_bytes(*time), link, len, bytes);
            }
            anyhow::Ok(())
        })
        .map_err(exception)
    }

    fn finish(&self, py: Python<'_>, file: String) -> PyResult<Stretch> {
        in_turn(py, &self.0, |analyzer| {
            let analyzer = analyzer.take().context("it is finished")?;
            anyhow::Ok(Stretch::of(analyzer.finish(Place { file, ..Place::default() })))
        })
        .map_err(exception)
    }
}

/// The packets of a span, as columns.
#[pyclass(frozen, module = "slipstream._native")]
pub(crate) struct Packets(Mutex<Reading>);

struct Reading {
    source: Source,
    last: bool,
    strict: bool,
    /// It stands for what was said of packets before the span: see [`Parts::context`].
    context: u64,
    damage: Option<(u64, String)>,
    odd_times: OddTimes,
}

/// Number of packets, times (i64), link types (i32), lengths (i64), `n` + 1 offsets (i32), bytes.
type Columns<'py> = (usize, [Bound<'py, PyBytes>; 5]);

#[derive(Default)]
struct Table {
    rows: usize,
    times: Vec<u8>,
    links: Vec<u8>,
    lens: Vec<u8>,
    offsets: Vec<u8>,
    data: Vec<u8>,
}

impl Table {
    fn push(&mut self, time: u64, link: LinkType, len: u32, data: &[u8]) {
        self.rows += 1;
        self.times.extend_from_slice(&time.to_le_bytes());
        self.links.extend_from_slice(&number(link).to_le_bytes());
        self.lens.extend_from_slice(&u64::from(len).to_le_bytes());
        self.data.extend_from_slice(data);
        self.offsets.extend_from_slice(&(self.data.len() as u32).to_le_bytes());
    }
}

fn number(link: LinkType) -> u32 {
    match link {
        LinkType::Loopback => 0,
        LinkType::Ethernet => 1,
        LinkType::RawIp => 101,
        LinkType::LinuxSll => 113,
        LinkType::LinuxSll2 => 276,
        LinkType::Other(n) => n.into(),
    }
}

#[pymethods]
impl Packets {
    #[new]
    fn new(py: Python<'_>, path: PathBuf, span: (u64, u64), walk: bool, strict: bool) -> PyResult<Self> {
        let (span, last) = (Span { from: span.0, to: span.1 }, span.1 == u64::MAX);
        let source = py.detach(|| Source::open(&path, span, walk)).map_err(exception)?;
        let context = if let Source::Parts(parts, _) = &source { parts.context() } else { 0 };
        Ok(Self(Mutex::new(Reading {
            source,
            last,
            strict,
            context,
            damage: None,
            odd_times: OddTimes::default(),
        })))
    }

    /// The next packets, of at least so many bytes unless they are the last ones; None at the end. There, the
    /// span ends where the next one begins, or this raises an exception.
    fn next<'py>(&self, py: Python<'py>, bytes: usize) -> PyResult<Option<Columns<'py>>> {
        let table = in_turn(py, &self.0, |reading| reading.table(bytes)).map_err(exception)?;
        Ok((table.rows > 0).then(|| {
            let Table { rows, times, links, lens, offsets, data } = &table;
            (*rows, [times, links, lens, offsets, data].map(|column| PyBytes::new(py, column)))
        }))
    }

    /// The byte at which the capture is damaged, and the damage in words, once it was met.
    #[getter]
    fn damage(&self, py: Python<'_>) -> Option<(u64, String)> {
        in_turn(py, &self.0, |reading| reading.damage.clone())
    }

    /// The numbers of packets whose times lie beyond what there can be, and of those that have none, once the
    /// end was met.
    #[getter]
    fn odd_times(&self, py: Python<'_>) -> (u64, u64) {
        in_turn(py, &self.0, |reading| reading.odd_times.pair())
    }
}

impl Reading {
    fn table(&mut self, bytes: usize) -> anyhow::Result<Table> {
        let mut table = Table { offsets: vec![0; 4], ..Table::default() };
        // Offsets have 31 bits.
        let bytes = bytes.min(1 << 30);
        let source = &mut self.source;
        match source {
            Source::Done => {}
            Source::Parts(parts, part) => {
                while table.data.len() < bytes {
                    if !parts.next(part)? {
                        let (byte, context) = parts.span_end()?;
                        let changed = context != self.context && !self.last;
                        let lacks_time = parts.lacks_time();
                        let done = std::mem::replace(source, Source::Done);
                        if let Source::Parts(parts, _) = done {
                            let reader = parts.into_reader();
                            self.odd_times = OddTimes::of(&reader);
                            self.damage = damage(&reader, self.strict || !self.last)?;
                            if changed || lacks_time {
                                let why = if lacks_time {
                                    "the first packet of a part has no time but that of the one before"
                                } else {
                                    "interfaces are described in the middle of it"
                                };
                                let what = format!("{why}: read it in one piece");
                                return Err(Damaged { file: reader.name().to_owned(), byte, what }.into());
                            }
                        }
                        break;
                    }
                    for record in part.records() {
                        table.push(record.time.0, record.link, record.original_len, record.data);
                    }
                }
            }
            Source::Whole(reader) => {
                while table.data.len() < bytes {
                    let Some(record) = reader.next_record()? else {
                        self.odd_times = OddTimes::of(reader);
                        self.damage = self.damage.take().or(damage(reader, self.strict)?);
                        break;
                    };
                    table.push(record.time.0, record.link, record.original_len, record.data);
                }
            }
        }
        Ok(table)
    }
}
