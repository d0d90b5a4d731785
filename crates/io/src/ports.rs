//! Ports of a replay: capture files, generated traffic, nowhere.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use crate::capture::{CaptureError, CaptureReader, CaptureWriter, Format, WriterOptions};
use crate::rotation::{Limits, Rotation};
use crate::sink::{CaptureSink, Sink, Stamp};
use crate::sources::{CaptureSource, SynthSource};
use crate::synth::{Synth, SynthConfig};
use slipstream_core::batch::Batch;
use slipstream_core::interface::Interface;
use slipstream_core::new_file::is_stdout;
use slipstream_core::pool::{Lengths, PacketMeta};
use slipstream_core::port::{Port, PortError, Transmit};
use slipstream_core::registry::{
    BuildError, Group, IN, Made, Meets, Need, OUT, Partner, Ports, Properties, Role, Sharing, Site,
    StageType, lonely,
};
use slipstream_core::settings::{Kind, Setting, Settings};
use slipstream_core::stage::{Context, DropReason, Drops};
use slipstream_core::time::Nanos;

/// The stage type.
pub const PCAP: StageType = StageType {
    name: "pcap",
    group: Group::Port,
    summary: "Reads or writes a capture file (pcap, pcapng; plain, gzip, zstd), by its place in the graph",
    example: "in :: pcap(path=a.pcapng) -> reframe -> out :: pcap(path=b.pcapng)",
    inputs: IN,
    outputs: OUT,
    settings: &[
        Setting {
            name: "path",
            kind: Kind::File,
            default: None,
            required: true,
            help: "The file; `-` for stdin or stdout",
        },
        Setting {
            name: "stamp",
            kind: Kind::Choice(&["release", "arrival"]),
            default: Some("release"),
            required: false,
            help: "Which time is written with a packet",
        },
        Setting {
            name: "format",
            kind: Kind::Choice(&["pcap", "pcapng"]),
            default: Some("pcapng"),
            required: false,
            help: "What to write where the file's name doesn't say",
        },
        Setting::new(
            "rotate_size",
            Kind::Bytes(1 << 10, 1 << 50),
            "Written: go on in another file when one has so many bytes, before compression; a.pcapng becomes a-00001.pcapng, …",
        ),
        Setting::new(
            "rotate_time",
            Kind::Time(1_000_000_000, 31_536_000_000_000_000),
            "Written: go on in another file so long after the first packet of one",
        ),
        Setting::new(
            "keep",
            Kind::Count(1, 1 << 20),
            "Of these files: how many are kept; older ones are deleted. Left out: all",
        ),
    ],
    properties: Properties {
        drops: &[DropReason::NotSent],
        writes: Some("path"),
        partners: &[Partner { of: &["keep"], need: Need::Given(&["rotate_size", "rotate_time"]) }],
        ..Properties::new(
            // A file is one sequence, which one core reads or writes.
            |_| Meets::Everything,
        )
    },
    build: pcap,
};

/// The stage type.
pub const SYNTH: StageType = StageType {
    name: "synth",
    group: Group::Port,
    summary: "Makes traffic with a known locality",
    example: "in :: synth(traffic=\"flows=1024,packets=100k,slf=4\") -> counter -> out :: null",
    inputs: Ports::None,
    outputs: OUT,
    settings: &[Setting {
        name: "traffic",
        kind: Kind::Text("KEY=VALUE,… as for `slipstream synth`"),
        default: Some(""),
        required: false,
        help: "What to make",
    }],
    properties: Properties {
        ..Properties::new(
            // One sequence of random numbers makes all packets.
            |_| Meets::Everything,
        )
    },
    build: synth,
};

/// The stage type.
pub const NULL: StageType = StageType {
    name: "null",
    group: Group::Port,
    summary: "Brings nothing, or takes everything",
    example: "in -> reframe -> out :: null",
    inputs: IN,
    outputs: OUT,
    settings: &[],
    properties: Properties {
        leads_nowhere: true,
        sharing: |_| Sharing::First,
        ..Properties::new(
            // Nothing is decided, and what is counted adds up.
            |_| Meets::Nothing,
        )
    },
    build: null,
};

/// Settings that say nothing of a capture that is read.
const WRITTEN: &[&str] = &["stamp", "format", "rotate_size", "rotate_time", "keep"];

fn pcap(settings: &Settings, site: &Site<'_>) -> Result<Made, BuildError> {
    let path = settings.file("path").unwrap_or(Path::new("-"));
    let wrong = |e: &dyn std::error::Error| BuildError::setting("path", e.to_string());
    if site.role == Role::Source {
        let unmet = Partner { of: WRITTEN, need: Need::Given(&[]) };
        if let Some(error) = lonely(&[unmet], PCAP.settings, settings).next() {
            let name = error.setting.unwrap_or_default();
            let what = format!("`{name}` is about a file that is written, and this one is read");
            return Err(
                BuildError::setting(name, what).hint("leave it out, or set it on the port that writes")
            );
        }
        let stdin = path.as_os_str() == "-";
        if site.dry && (stdin || is_stream(path)) {
            return Ok(Made::Checked);
        }
        let reader = if stdin { CaptureReader::stdin() } else { CaptureReader::open(path) };
        return reader.map(|r| Port::receiving(CaptureSource::new(r)).into()).map_err(|e| wrong(&e));
    }
    if site.dry {
        return Ok(Port::transmitting(Nowhere::default()).into());
    }
    let format = if settings.text("format") == "pcap" { Format::Pcap } else { Format::PcapNg };
    let options = WriterOptions::for_path(path, format);
    let limits = limits(settings);
    if limits.any() && (is_stdout(path) || is_stream(path)) {
        return Err(BuildError::setting("path", "what goes to a pipe or a device can't be cut into files"));
    }
    let stamp = if settings.text("stamp") == "arrival" { Stamp::Arrival } else { Stamp::Release };
    let sink = if limits.any() {
        let begin = if site.live { Rotation::go_on } else { Rotation::begin };
        let (rotation, writer) = begin(path, options, limits).map_err(|e| wrong(&e))?;
        CaptureSink::new(writer, stamp).rotating(rotation)
    } else {
        let writer = CaptureWriter::to_named(path, options);
        CaptureSink::new(writer.map_err(|e| wrong(&e))?, stamp)
    };
    let stage = CaptureStage::new(sink);
    Ok(Port::transmitting(if site.live { stage.published() } else { stage }).into())
}

/// When a capture with these settings goes on in another file.
#[must_use]
pub fn limits(settings: &Settings) -> Limits {
    Limits {
        size: settings.optional_number("rotate_size"),
        time: settings.optional_number("rotate_time"),
        keep: settings.optional_number("keep").map(|n| n as usize),
    }
}

/// Returns true if what is read from a file is gone then: a pipe or a device. A check must leave it to the
/// run.
fn is_stream(path: &Path) -> bool {
    let kind = std::fs::metadata(path).map(|m| m.file_type());
    kind.is_ok_and(|kind| kind.is_fifo() || kind.is_char_device() || kind.is_socket())
}

fn synth(settings: &Settings, _: &Site<'_>) -> Result<Made, BuildError> {
    let wrong = |e: &dyn std::error::Error| BuildError::setting("traffic", e.to_string());
    let config = SynthConfig::from_text(settings.text("traffic")).map_err(|e| wrong(&e))?;
    let synth = Synth::new(config).map_err(|e| wrong(&e))?;
    Ok(Port::receiving(SynthSource::new(synth)).into())
}

fn null(_: &Settings, site: &Site<'_>) -> Result<Made, BuildError> {
    if site.role == Role::Source {
        return Ok(Port::receiving(crate::preload::Preload::default()).into());
    }
    Ok(Port::transmitting(Nowhere::default()).into())
}

/// Takes everything, to be forgotten: the packets did leave.
#[derive(Debug, Default)]
pub struct Nowhere {
    packets: u64,
    bytes: u64,
}

impl Transmit for Nowhere {
    fn takes_unread(&self) -> bool {
        true
    }

    fn tx(&mut self, cx: &mut Context<'_>, batch: &mut Batch) {
        self.packets += batch.frames.len() as u64;
        self.bytes += batch.frames.iter().map(|frame| u64::from(frame.len)).sum::<u64>();
        cx.pool.free_all(&batch.frames);
        batch.clear();
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        visit("packets_written", self.packets);
        visit("bytes_written", self.bytes);
    }
}

/// Writes packets to a capture.
#[derive(Debug)]
pub struct CaptureStage {
    sink: CaptureSink,
    failed: Option<CaptureError>,
    /// The time to try again, behind an error.
    again: Nanos,
    /// Live: when what was written is next to be published; none where that is done at the end.
    publish: Option<Nanos>,
}

/// The time between two times at which a live capture is published, in ns.
const PUBLISH: u64 = 1_000_000_000;
/// The time between two attempts to go on behind an error, in ns.
const AGAIN: u64 = 1_000_000_000;

impl CaptureStage {
    /// To this file.
    #[must_use]
    pub fn new(sink: CaptureSink) -> Self {
        Self { sink, failed: None, again: Nanos::MAX, publish: None }
    }

    /// Packets that were written can be read, and stay, from a second after they came on.
    #[must_use]
    pub fn published(self) -> Self {
        Self { sink: self.sink.staying(), publish: Some(Nanos::MAX), ..self }
    }

    /// Writes the packets of a batch, which stay.
    pub fn write(&mut self, cx: &Context<'_>, batch: &Batch) {
        if self.failed.is_some() && cx.now >= self.again {
            self.try_again(cx.now);
        }
        if self.publish == Some(Nanos::MAX) {
            self.publish = Some(cx.now.after(PUBLISH));
        }
        for (train, frames) in batch.iter() {
            for frame in frames {
                // A token that stands for no payload makes a packet longer than it was.
                let Lengths { wire, here, .. } = cx.pool.lengths(frame.buf, frame.len);
                let meta = PacketMeta { original_len: wire.max(here), ..cx.pool.meta(frame.buf) };
                let time = train.release.max(frame.arrival);
                if let Err(error) = self.sink.packet(time, meta, cx.data(frame)) {
                    self.fails(error, cx.now);
                }
            }
        }
    }

    /// Publishes what was written, where it is time for that.
    pub fn publish(&mut self, now: Nanos) {
        self.publish = Some(Nanos::MAX);
        if let Err(error) = self.sink.publish() {
            self.fails(error, now);
        }
    }

    /// Goes on in another file, if that can be written.
    #[cold]
    fn try_again(&mut self, now: Nanos) {
        match self.sink.begin_again() {
            Ok(()) => self.failed = None,
            Err(error) => self.fails(error, now),
        }
    }

    /// Ends the file by this, unless it has failed before.
    fn end(
        &mut self,
        by: impl FnOnce(&mut CaptureSink) -> Result<(), CaptureError>,
    ) -> Result<(), PortError> {
        let written = match self.failed.take() {
            Some(error) => Err(error),
            None => by(&mut self.sink),
        };
        match written {
            // A reader of stdout may have seen enough, as in `… | head`.
            Err(error) if error.reader_left_stdout() => Ok(()),
            written => Ok(written?),
        }
    }

    /// Nothing more can be written, or nothing for now.
    #[cold]
    fn fails(&mut self, error: CaptureError, now: Nanos) {
        let passes = error.may_pass() && self.sink.can_begin_again();
        self.again = if passes { now.after(AGAIN) } else { Nanos::MAX };
        self.failed = Some(error);
    }

    /// The reason why it can't write now, unless nobody minds.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        let error = self.failed.as_ref().filter(|error| !error.reader_left_stdout())?;
        Some(error.to_string())
    }
}

/// Packets given to a file are copied, so that buffers are free at once.
impl Transmit for CaptureStage {
    fn tx(&mut self, cx: &mut Context<'_>, batch: &mut Batch) {
        self.write(cx, batch);
        batch.frames.iter().for_each(|f| cx.pool.free(f.buf));
        batch.clear();
    }

    fn next_look(&self) -> Nanos {
        self.publish.unwrap_or(Nanos::MAX)
    }

    fn look(&mut self, cx: &mut Context<'_>) {
        self.publish(cx.now);
    }

    fn interfaces(&mut self, new: &[Interface]) -> Result<(), PortError> {
        Ok(new.iter().try_for_each(|i| self.sink.interface(i))?)
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let (packets, bytes) = self.sink.written();
        visit("packets_written", packets);
        visit("bytes_written", bytes);
    }

    fn drops(&self) -> Drops {
        let mut drops = Drops::default();
        drops.add(DropReason::NotSent, self.sink.lost());
        drops
    }

    fn trouble(&self) -> Option<String> {
        CaptureStage::trouble(self)
    }

    fn failed(&self) -> bool {
        self.failed.is_some() && self.again == Nanos::MAX
    }

    fn flush(&mut self) -> Result<(), PortError> {
        self.end(CaptureSink::flush)
    }

    fn finish(&mut self) -> Result<(), PortError> {
        self.end(CaptureSink::finish)
    }
}

/// A port that has its name in front of a colon on the command line.
struct Named {
    name: &'static str,
    /// Its stage type.
    kind: &'static str,
    /// Its settings, by what stands behind the colon.
    settings: fn(&str) -> Vec<(String, String)>,
}

const NAMED: [Named; 6] = [
    Named { name: "af_packet", kind: "af_packet", settings: |text| setting("interface", text) },
    Named { name: "af_xdp", kind: "af_xdp", settings: af_xdp },
    Named { name: "tap", kind: "tap_interface", settings: |text| setting("interface", text) },
    Named { name: "shm", kind: "shm", settings: |text| setting("path", text) },
    Named { name: "dpdk", kind: "dpdk", settings: dpdk },
    Named { name: "synth", kind: "synth", settings: |text| setting("traffic", text) },
];

/// Ports that have their names in front of a colon on the command line, each with its stage type.
pub fn port_names() -> impl Iterator<Item = (&'static str, &'static str)> {
    NAMED.iter().map(|port| (port.name, port.kind))
}

/// A port as named on the command line (`FILE`, `-`, `null`, `synth:…`, `af_packet:IF`, `af_xdp:IF[:QUEUES]`,
/// `tap:IF`, `shm:FILE`, `dpdk:DEV[;SETTING=VALUE…]`): its stage type and settings.
#[must_use]
pub fn port_of(text: &str) -> (&'static str, Vec<(String, String)>) {
    let named = text.split_once(':');
    let named = named.and_then(|(name, rest)| Some((NAMED.iter().find(|port| port.name == name)?, rest)));
    match named {
        Some((port, rest)) => (port.kind, (port.settings)(rest)),
        None if text == "null" => ("null", Vec::new()),
        None => ("pcap", setting("path", text)),
    }
}

fn setting(key: &str, value: &str) -> Vec<(String, String)> {
    vec![(key.to_owned(), value.to_owned())]
}

/// An interface, and behind a colon its queues.
fn af_xdp(text: &str) -> Vec<(String, String)> {
    let (interface, queues) = text.split_once(':').unwrap_or((text, "all"));
    [setting("interface", interface), setting("queues", queues)].concat()
}

/// A device, and behind semicolons other settings: commas and `=` are part of a device's arguments.
fn dpdk(text: &str) -> Vec<(String, String)> {
    let mut parts = text.split(';');
    let device = parts.next().map(|device| ("device".to_owned(), device.to_owned()));
    let more = parts.map(|part| part.split_once('=').unwrap_or((part, "")));
    device.into_iter().chain(more.map(|(key, value)| (key.trim().to_owned(), value.to_owned()))).collect()
}
