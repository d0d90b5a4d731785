//! Capture files: pcap and pcapng, by content, streaming, in and out.
//!
//! Bytes take this way in: a device (file, pipe) is wrapped by as many decompressors as its content asks for
//! ([`decompress`]), the last of them fills a window of bytes ([`window`]), and one of two framings
//! ([`pcap`], [`pcapng`]) cuts records out of that window. A [`Record`] borrows the window: no packet is
//! copied or allocated for. [`CaptureReader`] holds it together; [`CaptureWriter`] is the way out.
//!
//! A damaged file is not an error: all that precedes the damage is delivered, then the reader ends and
//! [`CaptureReader::damage`] says at which byte, and why. [`CaptureError`] is for what leaves nothing to
//! deliver.

mod ahead;
mod decompress;
mod error;
mod fields;
mod gunzip;
mod parts;
mod pcap;
mod pcapng;
mod reader;
mod sections;
mod sniff;
mod spans;
#[cfg(test)]
mod stream_tests;
mod target;
mod window;
mod writer;
#[cfg(test)]
mod writer_tests;

use slipstream_wire::LinkType;

use slipstream_core::time::Nanos;

pub use slipstream_core::interface::{Interface, MAX_INTERFACE_NAME};

pub use error::{CaptureError, is_interface};
pub use parts::{Part, Parts};
pub use reader::{CaptureReader, Notes};
pub use sections::Sections;
pub use slipstream_core::stop::{Stopped, stops_streams};
pub use spans::{Span, SpanRead, span_of_part, spans, spans_of, spans_told};
pub use writer::{CaptureWriter, Summary, WriterOptions};

/// The longest packet, in captured bytes, that is read or written: 64 MiB. A length beyond it is damage.
pub const MAX_CAPTURED: u32 = 0x400_0000;

/// One captured packet, borrowed from the reader's buffer.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Capture time.
    pub time: Nanos,
    /// Index into [`CaptureReader::interfaces`].
    pub interface: u32,
    /// Link type of that interface.
    pub link: LinkType,
    /// Bytes on the wire; `data` may be shorter.
    pub original_len: u32,
    /// The captured bytes.
    pub data: &'a [u8],
}

/// File format of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Classic pcap.
    Pcap,
    /// pcapng.
    PcapNg,
}

impl Format {
    /// The format of a file that begins with these bytes, of which four are looked at; none of a compressed
    /// one.
    ///
    /// ```
    /// use slipstream_io::capture::Format;
    ///
    /// assert_eq!(Format::of(&[0x0a, 0x0d, 0x0d, 0x0a]), Some(Format::PcapNg));
    /// assert_eq!(Format::of(b"<!DOCTYPE html>"), None);
    /// ```
    #[must_use]
    pub fn of(begin: &[u8]) -> Option<Self> {
        if pcap::layout(begin).is_some() {
            return Some(Self::Pcap);
        }
        begin.starts_with(&pcapng::SECTION.to_le_bytes()).then_some(Self::PcapNg)
    }
}

/// Compression around a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// None.
    None,
    /// gzip.
    Gzip,
    /// Zstandard.
    Zstd,
}

/// Damage to a file, and its place; everything before it is good.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("damaged at byte {byte}: {what}")]
pub struct Damage {
    /// Byte (of the decompressed stream) at which the first record or block that could not be read begins.
    pub byte: u64,
    /// The damage, in words.
    pub what: String,
}
