//! Capture files: pcap and pcapng, by content, streaming, in and out.

use slipstream_wire::LinkType;

use crate::time::Nanos;

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
    /// Name, where the file gives one.
    pub name: Option<String>,
}

/// Where and how a file is damaged; what came before is good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Byte (of the decompressed stream) at which the first record or block that could not be read begins.
    pub byte: u64,
    /// What is wrong there.
    pub what: String,
}
