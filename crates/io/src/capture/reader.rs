//! [`CaptureReader`]: opens a capture, finds out what it is, and hands out its records.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::decompress::{self, Device, DeviceError};
use super::fields::Order;
use super::pcap::{self, Cut, Pcap};
use super::pcapng::{self, PcapNg};
use super::spans::Shape;
use super::window::{Stop, Window};
use super::{CaptureError, Compression, Damage, Format, Interface, Record, sniff};
use slipstream_core::stop::{Stopped, Stream};

/// Maximum number of layers of compression; a file can be made that unpacks to itself.
const LAYERS: usize = 4;

/// Counts of events that are neither packets nor damage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// Packets whose time was before 1970 or beyond what [`Nanos`](slipstream_core::time::Nanos) can hold
    /// (2554), and was moved to that bound.
    pub clamped_times: u64,
    /// Packets without a time (simple packet blocks of pcapng), which have that of the packet before them in
    /// the file; 0 where there is none.
    pub without_time: u64,
    /// Blocks of a pcapng file that are neither packets, interfaces nor section headers, and were passed
    /// over.
    pub skipped_blocks: u64,
    /// Sections of a pcapng file begun so far.
    pub sections: u64,
    /// The first packet behind those that were left out has no time: it has that of one of them, which is not
    /// known.
    pub(super) lacks_time: bool,
}

impl Notes {
    /// Adds those of another part of the file.
    pub(super) fn add(&mut self, other: &Self) {
        self.clamped_times += other.clamped_times;
        self.without_time += other.without_time;
        self.skipped_blocks += other.skipped_blocks;
        self.sections += other.sections;
        self.lacks_time |= other.lacks_time;
    }
}

enum Framing {
    Pcap(Pcap),
    PcapNg(PcapNg),
    /// The end was reached, or damage.
    Over,
}

/// Reads the records of a capture, one after another.
///
/// Memory: a window of 256 KiB, which grows to the largest record met (at most 65 MiB, and only as bytes
/// arrive), plus the window of each decompressor (32 KiB for gzip, what a zstd frame asks for, at most 128
/// MiB).
///
/// ```
/// use slipstream_io::capture::CaptureReader;
///
/// // An empty capture: a pcap header, Ethernet.
/// let header = &[0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0];
/// let mut reader = CaptureReader::from_reader(header.as_slice(), "header")?;
/// while let Some(record) = reader.next_record()? {
///     println!("{} {} bytes", record.time, record.data.len());
/// }
/// assert_eq!(reader.damage(), None);
/// # Ok::<(), slipstream_io::capture::CaptureError>(())
/// ```
pub struct CaptureReader {
    window: Window,
    framing: Framing,
    interfaces: Vec<Interface>,
    notes: Notes,
    damage: Option<Damage>,
    format: Format,
    compression: Compression,
    read: Arc<AtomicU64>,
    file_len: Option<u64>,
    /// The file, if it is one.
    file: Option<Arc<File>>,
    /// The pipe or the like that it is read from as it is.
    stream: Option<OwnedFd>,
    name: String,
}

impl std::fmt::Debug for CaptureReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CaptureReader")
            .field("name", &self.name)
            .field("format", &self.format)
            .field("compression", &self.compression)
            .field("position", &self.window.position())
            .finish_non_exhaustive()
    }
}

impl CaptureReader {
    /// Opens the capture file at `path`, by its content: its name does not matter.
    ///
    /// # Errors
    ///
    /// It can't be opened or read, or it is not a capture: see [`CaptureError`].
    pub fn open(path: &Path) -> Result<Self, CaptureError> {
        let failed = |error| CaptureError::open(path, error);
        let metadata = fs::metadata(path).map_err(failed)?;
        if metadata.is_dir() {
            return Err(CaptureError::IsDirectory { file: path.display().to_string() });
        }
        if !metadata.is_file() {
            // To open a named pipe as a file would wait for who writes to it, and for nothing else.
            return Self::of_stream(Stream::open(path).map_err(failed)?, path.display().to_string());
        }
        let file = File::open(path).map_err(failed)?;
        let again = file.try_clone().ok().map(Arc::new);
        let reader = Self::start(file, path.display().to_string(), Some(metadata.len()))?;
        Ok(Self { file: again, ..reader })
    }

    /// Reads a capture from stdin; see [`stops_streams`](super::stops_streams).
    ///
    /// # Errors
    ///
    /// As [`CaptureReader::open`].
    pub fn stdin() -> Result<Self, CaptureError> {
        let failed = |error| CaptureError::open(Path::new("stdin"), error);
        Self::of_stream(Stream::stdin().map_err(failed)?, "stdin".to_owned())
    }

    fn of_stream(stream: Stream, name: String) -> Result<Self, CaptureError> {
        let again = stream.descriptor().ok();
        let reader = Self::start(stream, name, None)?;
        let plain = reader.compression == Compression::None;
        Ok(Self { stream: again.filter(|_| plain), ..reader })
    }

    /// Reads a capture from `input`: a pipe, memory. `name` stands for it in errors.
    ///
    /// # Errors
    ///
    /// As [`CaptureReader::open`].
    pub fn from_reader(input: impl Read + Send + 'static, name: &str) -> Result<Self, CaptureError> {
        Self::start(input, name.to_owned(), None)
    }

    /// The next record; None at the end of the capture or at damage: see [`CaptureReader::damage`].
    ///
    /// # Errors
    ///
    /// [`CaptureError::Read`]: the device failed. That ends the capture: asked again, there is no further
    /// record.
    #[inline(always)]
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>, CaptureError> {
        let cut = match &mut self.framing {
            Framing::Pcap(pcap) => pcap.next(&mut self.window),
            Framing::PcapNg(ng) => ng.next(&mut self.window, &mut self.interfaces, &mut self.notes),
            Framing::Over => return Ok(None),
        };
        match cut {
            Ok(cut) => Ok(Some(Record {
                time: cut.time,
                interface: cut.interface,
                link: cut.link,
                original_len: cut.original_len,
                data: self.window.slice(cut.data),
            })),
            Err(stop) => self.stop(stop).map(|()| None),
        }
    }

    /// Returns true if [`CaptureReader::next_record`] would wait for whoever writes to a pipe: the next
    /// record isn't there, or not all of it. What is there is read. Of a compressed stream it isn't known.
    ///
    /// # Errors
    ///
    /// As [`CaptureReader::next_record`].
    pub fn waits(&mut self) -> Result<bool, CaptureError> {
        let Some(stream) = &self.stream else { return Ok(false) };
        loop {
            let lacks = match &mut self.framing {
                Framing::Pcap(pcap) => pcap.lacks(self.window.unread()),
                Framing::PcapNg(ng) => ng.lacks(self.window.unread()),
                Framing::Over => return Ok(false),
            };
            let gone_on = match &mut self.framing {
                // A caller that is to wait for a packet takes in what comes before it.
                Framing::PcapNg(ng) if lacks == 0 => {
                    match ng.pass(&mut self.window, &mut self.interfaces, &mut self.notes) {
                        Ok(true) => continue,
                        Ok(false) => return Ok(false),
                        Err(stop) => Err(stop),
                    }
                }
                _ if lacks == 0 || self.window.is_over() => return Ok(false),
                // Once it was asked to end nothing more comes.
                _ if Stopped::check().is_err() || !is_readable(stream) => return Ok(true),
                _ => self.window.read_once(lacks).map_err(Stop::Io),
            };
            if let Err(stop) = gone_on {
                return self.stop(stop).map(|()| false);
            }
        }
    }

    /// The pipe for whose writer it [waits](Self::waits): it becomes readable when there is more.
    #[must_use]
    pub fn stream(&self) -> Option<BorrowedFd<'_>> {
        self.stream.as_ref().map(AsFd::as_fd)
    }

    /// Lets another thread read, and decompress, the rest of the input ahead of the records that are asked
    /// for, up to 2 MiB. Records, damage and errors stay the same. The input is read in blocks of 256 KiB:
    /// from a pipe, a record may come later than it could.
    pub fn read_ahead(&mut self) {
        self.window.read_ahead();
    }

    /// [Reads ahead](Self::read_ahead) where that pays: in a compressed file. To hand over what is merely
    /// copied costs about as much as the copy.
    pub fn unpack_ahead(&mut self) {
        if self.file_len.is_some() && self.compression != Compression::None {
            self.read_ahead();
        }
    }

    /// CPU time in ns of the thread that [reads ahead](Self::read_ahead).
    #[must_use]
    pub fn ahead_cpu_ns(&self) -> u64 {
        self.window.ahead_cpu_ns()
    }

    /// The damage to the capture, and its place, once [`CaptureReader::next_record`] has come to it.
    #[must_use]
    pub fn damage(&self) -> Option<&Damage> {
        self.damage.as_ref()
    }

    /// The interfaces met so far; [`Record::interface`] is an index. A pcapng file may bring more at any
    /// time, and those of all its sections are kept.
    #[must_use]
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// The file format.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// The outermost compression.
    #[must_use]
    pub fn compression(&self) -> Compression {
        self.compression
    }

    /// Bytes read so far of the underlying file, which may be compressed.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Size of the underlying file in bytes; None for pipes and the like.
    #[must_use]
    pub fn file_len(&self) -> Option<u64> {
        self.file_len
    }

    /// The events so far that are neither packets nor damage.
    #[must_use]
    pub fn notes(&self) -> Notes {
        self.notes
    }

    pub(super) fn set_notes(&mut self, notes: Notes) {
        self.notes = notes;
    }

    /// The capture's name in errors.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    fn start(
        input: impl Read + Send + 'static,
        name: String,
        file_len: Option<u64>,
    ) -> Result<Self, CaptureError> {
        let read = Arc::new(AtomicU64::new(0));
        let opening = Opening { name: &name, read: &read };
        let device = Window::new(Box::new(Device::new(input, Arc::clone(&read))));
        let (mut window, compression) = opening.unpack(device)?;
        let mut notes = Notes::default();
        let (framing, format, interfaces) = opening.framing(&mut window, &mut notes)?;
        Ok(Self {
            window,
            framing,
            interfaces,
            notes,
            damage: None,
            format,
            compression,
            read,
            file_len,
            file: None,
            stream: None,
            name,
        })
    }

    /// The file, and the place in it where the next record begins, if several threads can read it at once:
    /// it is no pipe, and not compressed.
    pub(super) fn place(&self) -> Option<(Arc<File>, u64)> {
        let file = self.file.as_ref().filter(|_| self.compression == Compression::None)?;
        Some((Arc::clone(file), self.window.position()))
    }

    /// Passes over what comes before the first packet of a pcapng file: descriptions of interfaces. What
    /// comes later is met as it comes.
    ///
    /// # Errors
    /// [`CaptureError::Read`]: the device failed.
    pub(super) fn pass_to_packets(&mut self) -> Result<(), CaptureError> {
        loop {
            let Framing::PcapNg(ng) = &mut self.framing else { return Ok(()) };
            match ng.pass(&mut self.window, &mut self.interfaces, &mut self.notes) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(stop) => return self.stop(stop),
            }
        }
    }

    /// Goes on at a later record, which is not the next one. What was noted is for who reads those before.
    pub(super) fn leave_out(&mut self) {
        self.set_notes(Notes::default());
        if let Framing::PcapNg(ng) = &mut self.framing {
            ng.leave_out();
        }
    }

    /// A number for what the capture has said so far of the records to come, never 0: byte order, and
    /// interfaces with their link types and clocks. Who begins to read in the middle needs the same.
    #[must_use]
    pub fn context(&self) -> u64 {
        let mut bytes = Vec::new();
        match &self.framing {
            Framing::PcapNg(ng) => ng.describe(&mut bytes),
            Framing::Pcap(_) => {}
            Framing::Over => return 1,
        }
        // FNV-1a, which is the same everywhere.
        let hash = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        bytes.iter().fold(0xcbf2_9ce4_8422_2325, hash) | 1
    }

    /// Returns the signs by which its records can be told, the first of which begins with these bytes.
    pub(super) fn shape(&self, begin: [u8; 4]) -> Shape {
        match &self.framing {
            Framing::Pcap(pcap) => pcap.shape(begin),
            Framing::PcapNg(ng) => ng.shape(),
            Framing::Over => Shape::Blocks { order: Order::Little },
        }
    }

    /// The most bytes that it says to have captured of a packet.
    pub(super) fn snap_len(&self) -> u64 {
        self.interfaces.iter().map(|interface| interface.snap_len.into()).max().unwrap_or(0)
    }

    /// Cuts the records out of another window, as long as they begin before `end`; returns false at the end
    /// of the capture.
    #[inline]
    pub(super) fn cut_part(
        &mut self,
        window: &mut Window,
        end: u64,
        each: impl FnMut(&Window, Cut),
    ) -> Result<bool, CaptureError> {
        self.read.fetch_max(end, Ordering::Relaxed);
        let cut = match &mut self.framing {
            Framing::Pcap(pcap) => pcap.each(window, end, each),
            Framing::PcapNg(ng) => ng.each(window, end, (&mut self.interfaces, &mut self.notes), each),
            Framing::Over => return Ok(window.position() >= end),
        };
        cut.map_or_else(|stop| self.stop(stop).map(|()| false), |()| Ok(true))
    }

    /// The device failed: there are no further records.
    pub(super) fn fail(&mut self, error: std::io::Error) -> CaptureError {
        self.framing = Framing::Over;
        Opening { name: &self.name, read: &self.read }.failed(error)
    }

    /// Returns true once the end was reached, or damage.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.framing, Framing::Over)
    }

    /// Deals with what came instead of a record.
    #[cold]
    fn stop(&mut self, stop: Stop) -> Result<(), CaptureError> {
        self.framing = Framing::Over;
        match stop {
            Stop::End => {}
            Stop::Damage(damage) => self.damage = Some(damage),
            Stop::Io(error) => return Err(Opening { name: &self.name, read: &self.read }.failed(error)),
        }
        Ok(())
    }
}

/// Returns true if something can be read, were it the end.
fn is_readable(stream: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|n| n > 0)
}

/// The steps from a device to a framing; knows what to call it in errors.
struct Opening<'a> {
    name: &'a str,
    read: &'a AtomicU64,
}

impl Opening<'_> {
    /// Puts decompressors upon `window` until something else shows; tells the outermost compression.
    fn unpack(&self, mut window: Window) -> Result<(Window, Compression), CaptureError> {
        let mut outermost = Compression::None;
        for _ in 0..=LAYERS {
            self.want(&mut window, 4)?;
            let compression = decompress::compression(window.unread());
            if compression == Compression::None {
                return Ok((window, outermost));
            }
            if outermost == Compression::None {
                outermost = compression;
            }
            window = decompress::layer(window, compression).map_err(|error| self.failed(error))?;
        }
        Err(CaptureError::TooManyLayers { file: self.file(), layers: LAYERS })
    }

    /// Finds out the format and reads the file header.
    fn framing(
        &self,
        window: &mut Window,
        notes: &mut Notes,
    ) -> Result<(Framing, Format, Vec<Interface>), CaptureError> {
        if !self.want(window, 1)? {
            return Err(match window.fault() {
                Some(fault) => CaptureError::BadCompression { file: self.file(), what: fault.to_owned() },
                None => CaptureError::Empty { file: self.file() },
            });
        }
        self.want(window, 4)?;
        if let Some(layout) = pcap::layout(window.unread()) {
            self.header(window, Format::Pcap, pcap::FILE_HEADER)?;
            let (pcap, interface) = Pcap::new(layout, window.unread()).map_err(|version| {
                let (major, minor) = (version.major, version.minor);
                CaptureError::UnsupportedVersion { file: self.file(), format: Format::Pcap, major, minor }
            })?;
            window.take(pcap::FILE_HEADER, 0, 0);
            return Ok((Framing::Pcap(pcap), Format::Pcap, vec![interface]));
        }
        if Format::of(window.unread()) == Some(Format::PcapNg) {
            self.header(window, Format::PcapNg, pcapng::SECTION_MIN)?;
            let framing = PcapNg::new(window, notes).map_err(|stop| self.bad_section(window, stop))?;
            return Ok((Framing::PcapNg(framing), Format::PcapNg, Vec::new()));
        }
        self.want(window, sniff::LOOK)?;
        let (found, advice) = sniff::name(window.unread().get(..sniff::LOOK).unwrap_or(window.unread()));
        Err(CaptureError::UnknownFormat { file: self.file(), found, advice })
    }

    /// Makes the file header available.
    fn header(&self, window: &mut Window, format: Format, needed: usize) -> Result<(), CaptureError> {
        if self.want(window, needed)? {
            return Ok(());
        }
        let (found, why) = (window.unread().len(), window.fault().map(str::to_owned));
        Err(CaptureError::HeaderTruncated { file: self.file(), format, found, needed, why })
    }

    /// From what is wrong with the first section header.
    fn bad_section(&self, window: &Window, stop: Stop) -> CaptureError {
        match stop {
            Stop::Io(error) => self.failed(error),
            Stop::Damage(Damage { byte, what }) => match pcapng::version(window.unread()) {
                Some((major, minor)) if major != 1 => CaptureError::UnsupportedVersion {
                    file: self.file(),
                    format: Format::PcapNg,
                    major,
                    minor,
                },
                _ => CaptureError::BadHeader { file: self.file(), byte, what },
            },
            Stop::End => CaptureError::Empty { file: self.file() },
        }
    }

    fn want(&self, window: &mut Window, n: usize) -> Result<bool, CaptureError> {
        window.want(n).map_err(|error| self.failed(error))
    }

    fn failed(&self, error: std::io::Error) -> CaptureError {
        let source = DeviceError::unwrap(error);
        if source.kind() == std::io::ErrorKind::IsADirectory {
            return CaptureError::IsDirectory { file: self.file() };
        }
        CaptureError::Read { file: self.file(), byte: self.read.load(Ordering::Relaxed), source }
    }

    fn file(&self) -> String {
        self.name.to_owned()
    }
}
