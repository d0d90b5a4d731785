//! Errors that leave nothing to read, or keep a file from being written.

use slipstream_core::new_file::advice_on_write;
use slipstream_core::source::SourceError;
use std::io;
use std::path::Path;

use super::{Format, MAX_CAPTURED};
use slipstream_core::time::Nanos;

/// The reason why a capture can't be read or written. One variant per cause; each names the file, and
/// what to do about it where that is known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// There is no such file.
    #[error("{file}: no such file{}", interface_advice(.file))]
    NotFound {
        /// The file.
        file: String,
    },
    /// The file may not be read by this user.
    #[error("{file}: permission to read it is denied; check its mode and that of its directories")]
    PermissionDenied {
        /// The file.
        file: String,
    },
    /// A directory where a file is needed.
    #[error("{file}: is a directory; name a capture file")]
    IsDirectory {
        /// The directory.
        file: String,
    },
    /// A file to write whose name asks for a compression that captures are not written in.
    #[error(
        "{file}: captures are written with gzip or Zstandard, not with {compression}; let the name end in .gz or .zst"
    )]
    OtherCompression {
        /// The file.
        file: String,
        /// The end of its name.
        compression: String,
    },
    /// Opening failed for some other reason.
    #[error("{file}: cannot be opened: {source}")]
    Open {
        /// The file.
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// There is not a single byte.
    #[error("{file}: empty; a capture without packets has at least a file header of 24 bytes")]
    Empty {
        /// The file.
        file: String,
    },
    /// Neither pcap nor pcapng.
    #[error("{file}: not pcap or pcapng: byte 0 begins {found}; {advice}")]
    UnknownFormat {
        /// The file.
        file: String,
        /// The apparent format of the file, or its first bytes.
        found: String,
        /// Advice on converting it.
        advice: String,
    },
    /// Compressed over and over.
    #[error("{file}: compressed more than {layers} times over; unpack it first")]
    TooManyLayers {
        /// The file.
        file: String,
        /// Layers of compression that are read.
        layers: usize,
    },
    /// A version that came or went.
    #[error("{file}: {format} version {major}.{minor} at byte 4 is not one that can be read ({readable}); {advice}",
        format = name(*.format), readable = readable(*.format), advice = super::sniff::CONVERT)]
    UnsupportedVersion {
        /// The file.
        file: String,
        /// Its format.
        format: Format,
        /// Major version number.
        major: u16,
        /// Minor version number.
        minor: u16,
    },
    /// The file ends within its header.
    #[error("{file}: its {format} header is cut off at byte {found} of {needed}{}; copy or download it again",
        because(.why.as_deref()), format = name(*.format))]
    HeaderTruncated {
        /// The file.
        file: String,
        /// Its format.
        format: Format,
        /// Bytes there are.
        found: usize,
        /// Bytes of a header.
        needed: usize,
        /// The words of the decompressor, if one is at fault.
        why: Option<String>,
    },
    /// The file header contradicts itself.
    #[error("{file}: damaged at byte {byte}, within its header: {what}; copy or download it again")]
    BadHeader {
        /// The file.
        file: String,
        /// Byte (of the decompressed stream) where the header begins.
        byte: u64,
        /// The damage, in words.
        what: String,
    },
    /// A compressed file that can't be unpacked from the start.
    #[error("{file}: cannot be unpacked: {what}{}", again(.what))]
    BadCompression {
        /// The file.
        file: String,
        /// The words of the decompressor.
        what: String,
    },
    /// The device failed.
    #[error("{file}: reading failed after byte {byte}: {source}")]
    Read {
        /// The file.
        file: String,
        /// Bytes of it that were read before.
        byte: u64,
        /// The system's error.
        source: io::Error,
    },
    /// A part of a file ends where no record begins.
    #[error(
        "{file}: it was cut at byte {byte}, and no record begins there (one ends at byte {next}): read it in one piece"
    )]
    NotThere {
        /// The file.
        file: String,
        /// Byte at which the part ends.
        byte: u64,
        /// Byte at which the next record begins.
        next: u64,
    },
    /// A part was asked for of what has no parts.
    #[error("{file}: has no parts, since it is compressed or no regular file: read it in one piece")]
    NoParts {
        /// The file.
        file: String,
    },
    /// The folder of the output is missing.
    #[error("{file}: there is no folder {folder}; make it first")]
    NoFolder {
        /// The file.
        file: String,
        /// The folder.
        folder: String,
    },
    /// The output can't be created.
    #[error("{file}: cannot be created: {source}; check that its directory exists and may be written to")]
    Create {
        /// The file.
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// Writing failed: disk full, pipe closed, ...
    #[error("{file}: cannot be written: {source}{}", advice_on_write(.source))]
    Write {
        /// The file.
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// A pcap file can hold only one link type.
    #[error(
        "{file}: a pcap file holds one link type, and the packets have two ({first} and {second}); write a .pcapng file"
    )]
    LinkTypesDiffer {
        /// The file.
        file: String,
        /// Link number of the first interface.
        first: u32,
        /// Link number of the one that can't be added.
        second: u32,
    },
    /// A packet of an interface that was never added.
    #[error("{file}: packet {packet} is of interface {interface}, and only {known} were added")]
    UnknownInterface {
        /// The file.
        file: String,
        /// Number of the packet, from 1.
        packet: u64,
        /// Its interface, from 0.
        interface: u32,
        /// Number of interfaces that there are.
        known: usize,
    },
    /// pcap has 32 bits for seconds: they end in February 2106.
    #[error("{file}: packet {packet} has time {time}, and pcap ends at 4294967295 s; write a .pcapng file")]
    TimeTooLate {
        /// The file.
        file: String,
        /// Number of the packet, from 1.
        packet: u64,
        /// Its time.
        time: Nanos,
    },
    /// A packet that no reader would accept.
    #[error("{file}: packet {packet} has {len} bytes, and the most that can be written is {MAX_CAPTURED}")]
    PacketTooLong {
        /// The file.
        file: String,
        /// Number of the packet, from 1.
        packet: u64,
        /// Its captured bytes.
        len: usize,
    },
}

fn name(format: Format) -> &'static str {
    match format {
        Format::Pcap => "pcap",
        Format::PcapNg => "pcapng",
    }
}

fn readable(format: Format) -> &'static str {
    match format {
        Format::Pcap => "2.x",
        Format::PcapNg => "1.x",
    }
}

fn because(why: Option<&str>) -> String {
    why.map(|why| format!(" ({why})")).unwrap_or_default()
}

/// Advice where a stream can't be unpacked, unless its words have some.
fn again(what: &str) -> &'static str {
    if what == super::decompress::LONG_WINDOW { "" } else { "; copy or download it again" }
}

/// Advice where what was taken for a file is the name of a network interface of this machine.
fn interface_advice(file: &str) -> String {
    if is_interface(file) {
        format!("; the network interface of this name is af_packet:{file}")
    } else {
        String::new()
    }
}

/// Returns true if a network interface of this machine has this name.
#[must_use]
pub fn is_interface(name: &str) -> bool {
    let plain = !name.is_empty() && !name.contains('/') && !name.starts_with('.');
    plain && Path::new("/sys/class/net").join(name).exists()
}

impl CaptureError {
    /// From a failure to open `file` for reading, or to find it.
    #[must_use]
    pub fn open(file: &Path, source: io::Error) -> Self {
        let file = file.display().to_string();
        match source.kind() {
            io::ErrorKind::NotFound => Self::NotFound { file },
            io::ErrorKind::PermissionDenied => Self::PermissionDenied { file },
            io::ErrorKind::IsADirectory => Self::IsDirectory { file },
            _ => Self::Open { file, source },
        }
    }

    /// From a failure to create `file`.
    pub(crate) fn create(file: &Path, source: io::Error) -> Self {
        let name = file.display().to_string();
        match file.parent().filter(|f| !f.as_os_str().is_empty() && !f.exists()) {
            Some(folder) => Self::NoFolder { file: name, folder: folder.display().to_string() },
            None => Self::Create { file: name, source },
        }
    }

    /// Returns true if the next attempt to write may do better: a disk that is full can be emptied, a folder
    /// come back.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::Create { .. } | Self::NoFolder { .. })
    }

    /// Returns true if the output was stdout, and whoever read it went away.
    #[must_use]
    pub fn reader_left_stdout(&self) -> bool {
        matches!(self, Self::Write { file, source } if file == "stdout" && source.kind() == io::ErrorKind::BrokenPipe)
    }
}

impl From<CaptureError> for SourceError {
    fn from(error: CaptureError) -> Self {
        Self::new(error)
    }
}
