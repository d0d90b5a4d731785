//! Capture files: pcap and pcapng, by content, streaming, in and out.
//!
//! Bytes take this way in: a device (file, pipe) is wrapped by as many decompressors as its content asks for
//! ([`decompress`]), the last of them fills a window of bytes ([`window`]), and one of two framings ([`pcap`],
//! [`pcapng`]) cuts records out of that window. A [`Record`] borrows the window: no packet is copied or allocated
//! for. [`CaptureReader`] holds it together; [`CaptureWriter`] is the way out.
//!
//! A damaged file is not an error: all that precedes the damage is delivered, then the reader ends and
//! [`CaptureReader::damage`] says at which byte, and why. [`CaptureError`] is for what leaves nothing to deliver.

mod decompress;
mod error;
mod fields;
mod gunzip;
mod pcap;
mod pcapng;
mod reader;
mod sniff;
mod target;
mod window;
mod writer;

use slipstream_wire::LinkType;

use crate::time::Nanos;

pub use error::{CaptureError, is_interface};
pub use reader::{CaptureReader, Notes};
pub use writer::{CaptureWriter, Summary, WriterOptions};

/// The longest packet, in captured bytes, that is read or written: 64 MiB. A length beyond it is damage.
pub const MAX_CAPTURED: u32 = 0x400_0000;

/// The longest interface name, in bytes of UTF-8; longer ones are cut.
pub const MAX_INTERFACE_NAME: usize = 256;

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

/// What packets were captured on: a pcap file has one, pcapng any number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Link type number as in the file (pcap: the whole 32-bit field, FCS bits included).
    pub link_number: u32,
    /// Snap length in bytes; 0 = unlimited.
    pub snap_len: u32,
    /// Name, where the file gives one; at most [`MAX_INTERFACE_NAME`] bytes of it.
    pub name: Option<String>,
}

impl Interface {
    /// The link type that the low 16 bits of [`Interface::link_number`] name.
    #[must_use]
    pub const fn link(&self) -> LinkType {
        LinkType::from_number(self.link_number as u16)
    }
}

/// Where and how a file is damaged; what came before is good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Byte (of the decompressed stream) at which the first record or block that could not be read begins.
    pub byte: u64,
    /// What is wrong there.
    pub what: String,
}
