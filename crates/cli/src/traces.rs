//! Several traces as one stream, in the order in which they are named, of which some packets count.
//!
//! A trace that begins before the one before it has ended makes the stream's time run backwards, as unsorted
//! captures do: nothing is sorted, so that memory doesn't grow.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::bail;
use slipstream::interface::Interface;
use slipstream::io::capture::{CaptureError, CaptureReader, Format, Record};
use slipstream::io::sources::Records;
use slipstream::runtime::SourceError;
use slipstream_wire::Encapsulation;

use crate::commands::report_damage;
use crate::port::Input;
use crate::selection::{Selection, Selector};

/// No byte: nothing is damaged.
const WHOLE: u64 = u64::MAX;

/// The byte at which the first damaged trace is damaged, for whoever has given the stream away.
#[derive(Clone, Debug)]
pub(crate) struct DamagedAt(Arc<AtomicU64>);

impl DamagedAt {
    pub(crate) fn byte(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|byte| *byte != WHOLE)
    }
}

/// Traces that are read one after another.
pub(crate) struct Traces {
    /// The one being read; none at the end.
    current: Option<Input>,
    rest: VecDeque<PathBuf>,
    all: usize,
    /// Traces that have ended.
    ended: usize,
    selector: Option<Selector>,
    strict: bool,
    /// Unpacks on a thread of its own.
    ahead: bool,
    /// CPU time of such threads that have ended, in ns.
    ahead_cpu_ns: u64,
    damaged: DamagedAt,
    interfaces: Vec<Interface>,
    /// The place of the current trace's interfaces among all.
    base: usize,
    frame: Vec<u8>,
    /// Packets of the synthetic trace being made.
    made: u64,
}

impl Traces {
    /// The first trace, open already, and others, which must be there.
    pub(crate) fn new(
        first: Input,
        others: &[PathBuf],
        selection: &Selection,
        encapsulation: Encapsulation,
        strict: bool,
    ) -> anyhow::Result<Self> {
        for path in others {
            refuse_stdin(path)?;
            if !is_word(path) {
                std::fs::metadata(path).map_err(|error| CaptureError::open(path, error))?;
            }
        }
        let selected = !selection.is_everything();
        let mut traces = Self {
            current: None,
            rest: others.iter().cloned().collect(),
            all: others.len() + 1,
            ended: 0,
            selector: selected.then(|| Selector::new(selection, encapsulation)),
            strict,
            ahead: false,
            ahead_cpu_ns: 0,
            damaged: DamagedAt(Arc::new(AtomicU64::new(WHOLE))),
            interfaces: Vec::new(),
            base: 0,
            frame: Vec::new(),
            made: 0,
        };
        traces.begin(first);
        Ok(traces)
    }

    pub(crate) fn damaged(&self) -> DamagedAt {
        self.damaged.clone()
    }

    /// Unpacks compressed traces on a thread of its own from now on.
    pub(crate) fn unpack_ahead(&mut self) {
        self.ahead = true;
        if let Some(Input::Capture(reader)) = &mut self.current {
            reader.unpack_ahead();
        }
    }

    /// Progress as a share of 1, if that is known.
    pub(crate) fn share(&self) -> Option<f64> {
        let of_current = match self.current.as_ref()? {
            Input::Capture(reader) => reader.bytes_read() as f64 / reader.file_len()?.max(1) as f64,
            Input::Synth(synth) => self.made as f64 / synth.config().packets.max(1) as f64,
        };
        Some((self.ended as f64 + of_current) / self.all.max(1) as f64)
    }

    /// Gives the next packets that count to `visit`, `most` at most; returns how many, 0 at the end.
    pub(crate) fn read(&mut self, most: usize, mut visit: impl FnMut(&Record<'_>)) -> anyhow::Result<usize> {
        let mut n = 0;
        while n < most && !self.selector.as_ref().is_some_and(Selector::is_done) {
            let Self { current: Some(current), selector, base, .. } = self else { break };
            let mut take = |record: &Record<'_>| {
                let (at, link, len, data) = (record.time.0, record.link, record.original_len, record.data);
                if selector.as_mut().is_none_or(|s| s.wants(at, link, len, data)) {
                    visit(record);
                    n += 1;
                }
            };
            let taken = match current {
                Input::Capture(reader) => reader.next_record()?.map(|record| {
                    take(&Record { interface: record.interface + *base as u32, ..record });
                }),
                Input::Synth(synth) => synth.next_record(&mut self.frame).map(|record| {
                    self.made += 1;
                    take(&Record { interface: *base as u32, ..record });
                }),
            };
            if taken.is_none() {
                self.end_current()?;
                self.open_next()?;
            }
        }
        self.note_interfaces();
        if n == 0 {
            self.end_current()?;
        }
        Ok(n)
    }

    /// Takes the current trace away, and says what is wrong with it.
    fn end_current(&mut self) -> anyhow::Result<()> {
        self.note_interfaces();
        let Some(input) = self.current.take() else { return Ok(()) };
        self.ended += 1;
        let Input::Capture(reader) = input else { return Ok(()) };
        self.ahead_cpu_ns += reader.ahead_cpu_ns();
        if let Some(byte) = report_damage(&reader, self.strict)?
            && self.damaged.byte().is_none()
        {
            self.damaged.0.store(byte, Ordering::Relaxed);
        }
        Ok(())
    }

    fn open_next(&mut self) -> anyhow::Result<()> {
        if let Some(path) = self.rest.pop_front() {
            self.begin(Input::open(&path)?);
        }
        Ok(())
    }

    fn begin(&mut self, mut input: Input) {
        self.made = 0;
        if let (Input::Capture(reader), true) = (&mut input, self.ahead) {
            reader.unpack_ahead();
        }
        let of_input = interfaces(&input);
        // A pcap file has one interface, which is often that of the file before.
        let again = match (&input, of_input.as_slice()) {
            (Input::Capture(reader), [one]) if reader.format() == Format::Pcap => {
                self.interfaces.iter().position(|known| known == one)
            }
            _ => None,
        };
        self.base = again.unwrap_or(self.interfaces.len());
        self.current = Some(input);
        self.note_interfaces();
    }

    /// Interfaces of pcapng may be found at any place.
    fn note_interfaces(&mut self) {
        let Some(input) = &self.current else { return };
        let of_input = interfaces(input);
        if self.interfaces.len() < self.base + of_input.len() {
            self.interfaces.truncate(self.base);
            self.interfaces.extend(of_input);
        }
    }
}

/// Refuses stdin where it would be read beside, or behind, another trace.
pub(crate) fn refuse_stdin(path: &Path) -> anyhow::Result<()> {
    if path.as_os_str() == "-" {
        bail!("- (stdin) can only be the first of several traces");
    }
    Ok(())
}

/// Returns true for what names no file.
fn is_word(path: &Path) -> bool {
    let name = path.to_string_lossy();
    name == "-" || name == "null" || name.contains(':')
}

fn interfaces(input: &Input) -> Vec<Interface> {
    match input {
        Input::Capture(reader) => CaptureReader::interfaces(reader).to_vec(),
        Input::Synth(synth) => {
            let snap_len = synth.config().snap_len.unwrap_or(0);
            vec![Interface { link_number: 1, snap_len, name: Some("synth".into()) }]
        }
    }
}

/// Records as a replay takes them.
impl Records for Traces {
    fn read(&mut self, most: usize, visit: &mut dyn FnMut(&Record<'_>)) -> Result<usize, SourceError> {
        let read = Traces::read(self, most, |record| visit(record));
        read.map_err(|error| match error.downcast::<CaptureError>() {
            Ok(error) => SourceError::new(error),
            Err(error) => SourceError::new(format!("{error:#}")),
        })
    }

    fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    fn progress(&self) -> Option<f64> {
        self.share()
    }

    fn work_ahead(&mut self) {
        self.unpack_ahead();
    }

    fn ahead_cpu_ns(&self) -> u64 {
        let current = match &self.current {
            Some(Input::Capture(reader)) => reader.ahead_cpu_ns(),
            _ => 0,
        };
        self.ahead_cpu_ns + current
    }
}
