//! [`CaptureWriter`]: writes a capture, always with nanoseconds.

use std::io::{self, Write};
use std::path::Path;

use super::target::{Sink, Target};
use super::{CaptureError, Compression, Format, Interface, MAX_CAPTURED, MAX_INTERFACE_NAME, pcap, pcapng};
use slipstream_core::new_file::is_stdout;
use slipstream_core::time::Nanos;

/// Bytes gathered before they are handed on.
const CHUNK: usize = 256 * 1024;
/// Snap length in a pcap header where none is known: what tcpdump and Wireshark write, and the most that
/// libpcap reads of most link types.
const SNAP_LEN: u32 = 262_144;
/// pcapng option: the program that wrote the file.
const SHB_USERAPPL: u16 = 4;

/// Settings for writing a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriterOptions {
    /// File format.
    pub format: Format,
    /// Compression around it.
    pub compression: Compression,
}

impl WriterOptions {
    /// The settings that the extension of `path` asks for: `.pcap`, `.cap` or `.dmp` for pcap, `.pcapng` or
    /// `.ntar` for pcapng, any of them (or none) followed by `.gz` or `.zst` for compression. Upper case
    /// counts as lower. Any other extension means `otherwise`: the format of the input.
    #[must_use]
    pub fn for_path(path: &Path, otherwise: Format) -> Self {
        let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
        let (name, compression) = match name.rsplit_once('.') {
            Some((rest, "gz" | "gzip")) => (rest, Compression::Gzip),
            Some((rest, "zst" | "zstd")) => (rest, Compression::Zstd),
            _ => (name.as_str(), Compression::None),
        };
        let format = match name.rsplit_once('.') {
            Some((_, "pcap" | "cap" | "dmp")) => Format::Pcap,
            Some((_, "pcapng" | "ntar")) => Format::PcapNg,
            _ => otherwise,
        };
        Self { format, compression }
    }
}

/// Amounts that were written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Packets.
    pub packets: u64,
    /// Captured bytes of these packets.
    pub data_bytes: u64,
    /// Bytes of the file, as compressed.
    pub file_bytes: u64,
}

/// Writes a capture file.
///
/// A file is written under a temporary name in its directory and takes its place at
/// [`CaptureWriter::finish`]; dropped before, the writer leaves nothing behind. So the output may be the very
/// file that is being read. What exists and is not a regular file (a device, a pipe) is written directly.
///
/// ```
/// use slipstream_io::capture::{CaptureWriter, Compression, Format, Interface, WriterOptions};
/// use slipstream_core::time::Nanos;
///
/// let options = WriterOptions { format: Format::PcapNg, compression: Compression::None };
/// let mut writer = CaptureWriter::to_writer(std::io::sink(), "nowhere", options)?;
/// let interface = Interface { link_number: 1, snap_len: 96, name: Some("eth0".into()) };
/// let ethernet = writer.add_interface(&interface);
/// writer.write(ethernet, Nanos(1_700_000_000_000_000_001), 1514, &[0; 96])?;
/// assert_eq!(writer.finish()?.packets, 1);
/// # Ok::<(), slipstream_io::capture::CaptureError>(())
/// ```
pub struct CaptureWriter {
    sink: Sink,
    /// Bytes not yet handed on.
    pending: Vec<u8>,
    /// Bytes that were handed on, before compression.
    handed_on: u64,
    format: Format,
    interfaces: Vec<Interface>,
    /// pcap: whether the file header is written. It waits for the first packet, for the interfaces to be
    /// known.
    headed: bool,
    /// pcap: the link number of the file, once there is a packet or a header, and whether interfaces have
    /// others.
    link: Option<u32>,
    links_differ: bool,
    /// Packets may be longer than their interface's snap length.
    longer: bool,
    /// A write failed, and the file has a hole: it must never be completed.
    failed: bool,
    /// Everything was handed on.
    ended: bool,
    summary: Summary,
    /// Compressed packets reach the file whenever something is handed on.
    stays: bool,
    /// The amounts that have reached the file and can be read from there; its length up to there.
    reached: Summary,
    name: String,
}

impl std::fmt::Debug for CaptureWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CaptureWriter")
            .field("name", &self.name)
            .field("format", &self.format)
            .field("summary", &self.summary)
            .finish_non_exhaustive()
    }
}

impl CaptureWriter {
    /// Writes to the file `path`.
    ///
    /// # Errors
    ///
    /// [`CaptureError::IsDirectory`], [`CaptureError::Create`]; [`CaptureError::OtherCompression`] where the
    /// name ends in one that there is not, such as `.xz`.
    pub fn create(path: &Path, options: WriterOptions) -> Result<Self, CaptureError> {
        Self::start(Target::create(path)?, path.display().to_string(), options)
    }

    /// Writes to what a user names so: stdout, be it by `-` or another name, or the file `path`.
    ///
    /// # Errors
    ///
    /// As [`CaptureWriter::create`] and [`CaptureWriter::to_writer`].
    pub fn to_named(path: &Path, options: WriterOptions) -> Result<Self, CaptureError> {
        if is_stdout(path) {
            return Self::to_writer(io::stdout(), "stdout", options);
        }
        Self::create(path, options)
    }

    /// Writes to `out`; `name` stands for it in errors.
    ///
    /// # Errors
    ///
    /// [`CaptureError::Write`]: the compressor could not be set up.
    pub fn to_writer(
        out: impl Write + Send + 'static,
        name: &str,
        options: WriterOptions,
    ) -> Result<Self, CaptureError> {
        Self::start(Target::Other(Box::new(out)), name.to_owned(), options)
    }

    fn start(target: Target, name: String, options: WriterOptions) -> Result<Self, CaptureError> {
        let sink = match Sink::new(target, options.compression) {
            Ok(sink) => sink,
            Err(source) => return Err(CaptureError::Write { file: name, source }),
        };
        let mut pending = Vec::with_capacity(CHUNK);
        if options.format == Format::PcapNg {
            section_header(&mut pending);
        }
        let format = options.format;
        Ok(Self {
            sink,
            pending,
            handed_on: 0,
            format,
            interfaces: Vec::new(),
            headed: false,
            link: None,
            links_differ: false,
            longer: false,
            failed: false,
            ended: false,
            summary: Summary::default(),
            stays: false,
            reached: Summary::default(),
            name,
        })
    }

    /// All that is written is to stay, however the writing ends: see [`CaptureWriter::close`].
    #[must_use]
    pub fn staying(self) -> Self {
        Self { stays: true, ..self }
    }

    /// Packets may be longer than the snap length of their interface. Programs on libpcap refuse such packets
    /// or cut them; so the file declares that there is no limit in pcapng, and 262,144 bytes at least in
    /// pcap. To be called before there is an interface.
    #[must_use]
    pub fn with_longer_packets(self) -> Self {
        Self { longer: true, ..self }
    }

    /// Adds an interface, at any time; the result is its number for [`CaptureWriter::write`]. A pcap file has
    /// room for packets of one link number: that of its first packet.
    pub fn add_interface(&mut self, interface: &Interface) -> u32 {
        match self.format {
            Format::Pcap => {
                let other = |known: &Interface| known.link_number != interface.link_number;
                self.links_differ |= self.interfaces.first().is_some_and(other);
            }
            Format::PcapNg => {
                let snap_len = if self.longer { 0 } else { interface.snap_len };
                interface_description(&mut self.pending, interface, snap_len);
            }
        }
        self.interfaces.push(interface.clone());
        self.interfaces.len() as u32 - 1
    }

    /// Says that a pcap file can hold packets of this interface.
    #[cold]
    fn fits(&mut self, interface: u32) -> Result<(), CaptureError> {
        let second = self.interfaces.get(interface as usize).map_or(0, |i| i.link_number);
        match *self.link.get_or_insert(second) {
            first if first == second => Ok(()),
            first => Err(CaptureError::LinkTypesDiffer { file: self.name.clone(), first, second }),
        }
    }

    /// Writes a packet: captured at `time` on `interface`, `original_len` bytes long, of which `data` was
    /// captured. It is written as it is, be it longer than the interface's snap length (see
    /// [`with_longer_packets`](Self::with_longer_packets)) or than `original_len`. A packet that has no byte,
    /// on the wire either, is written one nanosecond later where its record in pcap would be taken for none,
    /// as at the time 0, at which it would be nothing but zeros.
    ///
    /// # Errors
    ///
    /// [`CaptureError::UnknownInterface`], [`CaptureError::PacketTooLong`], [`CaptureError::TimeTooLate`] and
    /// [`CaptureError::LinkTypesDiffer`] (pcap only), [`CaptureError::Write`].
    #[inline]
    pub fn write(
        &mut self,
        interface: u32,
        time: Nanos,
        original_len: u32,
        data: &[u8],
    ) -> Result<(), CaptureError> {
        // Of no bytes, too: one less than none is more than any.
        let unusual = data.len().wrapping_sub(1) >= MAX_CAPTURED as usize;
        if interface as usize >= self.interfaces.len() || unusual {
            return self.write_unusual(interface, time, original_len, data);
        }
        self.record(interface, time, original_len, data)
    }

    /// As [`CaptureWriter::write`], of a packet that has no bytes or can't be written.
    #[cold]
    fn write_unusual(
        &mut self,
        interface: u32,
        time: Nanos,
        original_len: u32,
        data: &[u8],
    ) -> Result<(), CaptureError> {
        if interface as usize >= self.interfaces.len() || !data.is_empty() {
            return Err(self.refused(interface, data.len()));
        }
        let head = pcap::record_head(time, 0, original_len).filter(|_| self.format == Format::Pcap);
        let is_taken = head.is_none_or(pcap::is_taken_for_record);
        self.record(interface, if is_taken { time } else { Nanos(time.0 + 1) }, original_len, data)
    }

    /// Writes the record of a packet.
    #[inline]
    fn record(
        &mut self,
        interface: u32,
        time: Nanos,
        original_len: u32,
        data: &[u8],
    ) -> Result<(), CaptureError> {
        let captured = data.len() as u32;
        match self.format {
            Format::Pcap => {
                let Some(head) = pcap::record_head(time, captured, original_len) else {
                    let packet = self.summary.packets + 1;
                    return Err(CaptureError::TimeTooLate { file: self.name.clone(), packet, time });
                };
                if self.links_differ {
                    self.fits(interface)?;
                }
                self.head();
                put(&mut self.pending, head);
                self.pending.extend_from_slice(data);
            }
            Format::PcapNg => {
                let padding = data.len().next_multiple_of(4) - data.len();
                let len = pcapng::PACKET_MIN + captured + padding as u32;
                let (high, low) = ((time.0 >> 32) as u32, time.0 as u32);
                put(&mut self.pending, [pcapng::PACKET, len, interface, high, low, captured, original_len]);
                self.pending.extend_from_slice(data);
                self.pending.extend([0; 3].into_iter().take(padding));
                self.pending.extend_from_slice(&len.to_le_bytes());
            }
        }
        self.summary.packets += 1;
        self.summary.data_bytes += u64::from(captured);
        if self.pending.len() >= CHUNK { self.hand_on(false) } else { Ok(()) }
    }

    /// Size of the file in bytes, before compression, once another packet is written of which so many bytes
    /// were captured.
    #[inline]
    pub(crate) fn size_with_packet(&self, captured: usize) -> u64 {
        let (header, record) = match self.format {
            Format::Pcap if self.headed => (0, pcap::RECORD_HEADER + captured),
            Format::Pcap => (pcap::FILE_HEADER, pcap::RECORD_HEADER + captured),
            Format::PcapNg => (0, pcapng::PACKET_MIN as usize + captured.next_multiple_of(4)),
        };
        self.handed_on + (self.pending.len() + header + record) as u64
    }

    /// The same, once another interface is described.
    pub(crate) fn size_with_interface(&self, interface: &Interface) -> u64 {
        let mut description = Vec::new();
        if self.format == Format::PcapNg {
            interface_description(&mut description, interface, 0);
        }
        self.handed_on + (self.pending.len() + description.len()) as u64
    }

    /// The amounts that were given to it.
    #[must_use]
    pub fn summary(&self) -> Summary {
        self.summary
    }

    /// The amounts that have reached the file and can be read from there. Of a compressed file that does not
    /// [stay](Self::staying) this is known when it was published only.
    #[must_use]
    pub fn reached(&self) -> Summary {
        self.reached
    }

    /// Hands on what was gathered, and gives the file its name, so that all that was written can be read,
    /// however the program ends. It goes on from there.
    ///
    /// # Errors
    ///
    /// [`CaptureError::Write`].
    pub fn publish(&mut self) -> Result<(), CaptureError> {
        if self.format == Format::Pcap {
            self.head();
        }
        self.hand_on(true)?;
        let named = self.sink.publish();
        if named.is_err() {
            // The file went with the attempt.
            (self.failed, self.reached) = (true, Summary::default());
        }
        named.map_err(|source| self.unwritable(source))
    }

    /// Completes the file and puts it in its place.
    ///
    /// # Errors
    ///
    /// [`CaptureError::Write`]: nothing is left behind.
    pub fn finish(mut self) -> Result<Summary, CaptureError> {
        self.end()?;
        self.complete()
    }

    /// Completes the file, or keeps what has reached it, up to the last whole packet: under its own name,
    /// unless there is no packet. The amounts are those that are in the file now. Of a compressed file that
    /// is what was handed on before the failure, if it [stays](Self::staying).
    pub fn close(mut self) -> (Summary, Result<(), CaptureError>) {
        if let Err(error) = self.end() {
            let reached = self.reached;
            let kept = self.sink.into_target().keep(reached.file_bytes, reached.packets > 0);
            return (if kept.is_ok() { reached } else { Summary::default() }, Err(error));
        }
        match self.complete() {
            Ok(summary) => (summary, Ok(())),
            Err(error) => (Summary::default(), Err(error)),
        }
    }

    /// Hands on everything to the end, so that the file has only to be [put in its place](Self::finish).
    /// Nothing may be written behind it.
    ///
    /// # Errors
    ///
    /// [`CaptureError::Write`].
    pub fn end(&mut self) -> Result<(), CaptureError> {
        if self.ended {
            return Ok(());
        }
        if self.format == Format::Pcap {
            self.head();
        }
        self.hand_on(false)?;
        self.sink.end().map_err(|source| self.unwritable(source))?;
        self.ended = true;
        Ok(())
    }

    /// Puts in its place what has its end.
    fn complete(self) -> Result<Summary, CaptureError> {
        let Self { sink, mut summary, name, .. } = self;
        summary.file_bytes = sink.written();
        let complete = sink.into_target().complete();
        complete.map(|()| summary).map_err(|source| CaptureError::Write { file: name, source })
    }

    /// Hands on what was gathered, and has it reach the file, if it stays or is to be `read` there.
    #[cold]
    fn hand_on(&mut self, read: bool) -> Result<(), CaptureError> {
        if self.failed {
            return Err(self.unwritable(io::Error::other("an earlier write failed")));
        }
        let (before, flush) = (self.sink.written(), self.stays || read);
        let written = self.sink.write_all(&self.pending);
        let written = written.and_then(|()| if flush { self.sink.flush() } else { Ok(()) });
        self.failed = written.is_err();
        let (plain, now) = (self.sink.is_plain(), self.sink.written());
        if written.is_ok() && (plain || flush) {
            self.reached = Summary { file_bytes: now, ..self.summary };
        } else if plain {
            let there = self.pending.get(..(now - before) as usize).unwrap_or(&self.pending);
            let whole = whole_records(self.format, before == 0, there);
            self.reached.packets += whole.packets;
            self.reached.data_bytes += whole.data_bytes;
            self.reached.file_bytes += whole.file_bytes;
        }
        self.handed_on += self.pending.len() as u64;
        self.pending.clear();
        self.pending.shrink_to(2 * CHUNK);
        written.map_err(|source| self.unwritable(source))
    }

    fn unwritable(&self, source: io::Error) -> CaptureError {
        CaptureError::Write { file: self.name.clone(), source }
    }

    /// Writes the pcap file header, once.
    #[inline]
    fn head(&mut self) {
        if !self.headed {
            self.headed = true;
            let first = self.interfaces.first().map(|interface| interface.link_number);
            let link = self.link.or(first);
            self.link = link;
            let least = if self.longer { SNAP_LEN } else { 0 };
            file_header(&mut self.pending, &self.interfaces, link, least);
        }
    }

    /// The reason why a packet can't be written.
    #[cold]
    fn refused(&self, interface: u32, len: usize) -> CaptureError {
        let (file, packet, known) = (self.name.clone(), self.summary.packets + 1, self.interfaces.len());
        if interface as usize >= known {
            CaptureError::UnknownInterface { file, packet, interface, known }
        } else {
            CaptureError::PacketTooLong { file, packet, len }
        }
    }
}

/// The amounts of whole records at the beginning of `bytes`, which this writer made; they begin with a file
/// header where that `heads` them.
fn whole_records(format: Format, heads: bool, bytes: &[u8]) -> Summary {
    let mut whole = Summary::default();
    let header = if format == Format::Pcap && heads { pcap::FILE_HEADER } else { 0 };
    let Some(mut rest) = bytes.get(header..) else { return whole };
    whole.file_bytes = header as u64;
    let word = |bytes: &[u8], at: usize| {
        let word = bytes.get(at..)?.first_chunk().copied();
        word.map(u32::from_le_bytes)
    };
    loop {
        // Packets come as (length of the record, captured bytes), and other blocks of pcapng as their length.
        let record = match format {
            Format::Pcap => {
                word(rest, 8).map(|captured| (pcap::RECORD_HEADER as u32 + captured, Some(captured)))
            }
            Format::PcapNg => word(rest, 4).map(|len| {
                let is_packet = word(rest, 0) == Some(pcapng::PACKET);
                (len, word(rest, 20).filter(|_| is_packet))
            }),
        };
        let Some((len, captured)) = record else { return whole };
        let Some(behind) = rest.get(len as usize..).filter(|_| len > 0) else { return whole };
        rest = behind;
        whole.file_bytes += u64::from(len);
        whole.packets += u64::from(captured.is_some());
        whole.data_bytes += captured.map_or(0, u64::from);
    }
}

/// Appends words in the byte order of what is written: little-endian on every machine.
#[inline]
fn put<const N: usize>(out: &mut Vec<u8>, words: [u32; N]) {
    out.extend_from_slice(words.map(u32::to_le_bytes).as_flattened());
}

/// The header of a pcap file with packets of `interfaces`, which share a link number; its snap length is
/// `least` at least.
fn file_header(out: &mut Vec<u8>, interfaces: &[Interface], link: Option<u32>, least: u32) {
    let snap_len =
        |interface: &Interface| if interface.snap_len == 0 { SNAP_LEN } else { interface.snap_len };
    let snap_len = interfaces.iter().map(snap_len).max().unwrap_or(SNAP_LEN).max(least);
    let version = 4 << 16 | 2;
    put(out, [pcap::NANOS, version, 0, 0, snap_len, link.unwrap_or(1)]);
}

/// Opens a pcapng section.
fn section_header(out: &mut Vec<u8>) {
    let mut body = Vec::new();
    // Version 1.0; the section's length is not told.
    put(&mut body, [pcapng::BYTE_ORDER, 1, u32::MAX, u32::MAX]);
    option(&mut body, SHB_USERAPPL, b"slipstream");
    option(&mut body, 0, &[]);
    block(out, pcapng::SECTION, &body);
}

/// Describes an interface in pcapng, with this snap length.
fn interface_description(out: &mut Vec<u8>, interface: &Interface, snap_len: u32) {
    let mut body = Vec::new();
    put(&mut body, [interface.link_number & 0xffff, snap_len]);
    if let Some(name) = &interface.name {
        let cut = name.floor_char_boundary(MAX_INTERFACE_NAME);
        option(&mut body, pcapng::IF_NAME, name.get(..cut).unwrap_or_default().as_bytes());
    }
    option(&mut body, pcapng::IF_TSRESOL, &[9]);
    // A pcap link field has, where bit 26 is set, the length of the frame check sequence in its top 4 bits,
    // in units of 16 bits.
    if interface.link_number & 1 << 26 != 0 {
        option(&mut body, pcapng::IF_FCSLEN, &[(interface.link_number >> 28) as u8 * 16]);
    }
    option(&mut body, 0, &[]);
    block(out, pcapng::INTERFACE, &body);
}

/// Appends a pcapng block around `body`, a multiple of four bytes.
fn block(out: &mut Vec<u8>, kind: u32, body: &[u8]) {
    let len = body.len() as u32 + 12;
    put(out, [kind, len]);
    out.extend_from_slice(body);
    out.extend_from_slice(&len.to_le_bytes());
}

/// Appends a pcapng option, padded to four bytes.
fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&(value.len() as u16).to_le_bytes());
    out.extend_from_slice(value);
    out.resize(out.len().next_multiple_of(4), 0);
}
