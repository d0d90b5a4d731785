//! The layout of the file.
//!
//! ```text
//!     0  magic (8), version (4), bytes of a ring (8, at 16)          written once, by the side that comes first
//!   128  side 0: whether it has joined (4): 1, or 2 where nobody may any more
//!   256  side 1: the same
//!   512  ring from side 0 to side 1: tail (8), producer closed (4)   written by the producer
//!   640                              head (8), consumer closed (4)   written by the consumer
//!   768  ring from side 1 to side 0: as above
//!  4096  bytes of the first ring, then those of the second
//! ```
//!
//! Numbers are in the machine's byte order: both sides run on it. Whatever two sides write lies in different
//! pairs of cache lines (processors fetch lines in pairs).

use std::io::Read;
use std::path::Path;

use super::error::ShmError;

/// Magic number at the start of the file.
const MAGIC: [u8; 8] = *b"slipshm\n";
/// Of this layout.
const VERSION: u32 = 2;
/// Bytes before the rings.
pub(super) const HEADER: usize = 4096;
/// Bytes that a ring may have.
const SIZES: std::ops::RangeInclusive<u64> = 1 << 16..=1 << 30;

/// One of the two sides: 0 came first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Side(u8);

impl Side {
    pub(super) const BOTH: [Self; 2] = [Self(0), Self(1)];

    pub(super) fn other(self) -> Self {
        Self(1 - self.0)
    }

    /// The byte of the file whose lock it holds.
    pub(super) fn lock(self) -> u8 {
        self.0
    }

    /// Offset of its mark.
    pub(super) fn joined(self) -> usize {
        128 + 128 * usize::from(self.0)
    }

    /// The ring that it sends by.
    pub(super) fn ring(self, bytes: u64) -> Place {
        let control = 512 + 256 * usize::from(self.0);
        Place {
            tail: control,
            head: control + 128,
            data: HEADER + usize::from(self.0) * bytes as usize,
            bytes,
        }
    }
}

/// The byte that is locked while a side is being taken.
pub(super) const SETUP_LOCK: u8 = 2;

/// Offsets of a ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// The producer's counter of bytes put in so far; behind that, a mark that it is done.
    pub(super) tail: usize,
    /// The consumer's counter of bytes taken out; behind that, the same mark.
    pub(super) head: usize,
    /// The bytes.
    pub(super) data: usize,
    /// Size of the ring in bytes, a power of two.
    pub(super) bytes: u64,
}

/// From a position to the mark behind it that says that nobody goes on.
pub(super) const CLOSED: usize = 8;

/// Checks that a ring may have this size.
pub(super) fn check_size(bytes: u64) -> Result<(), ShmError> {
    if bytes.is_power_of_two() && SIZES.contains(&bytes) { Ok(()) } else { Err(ShmError::Size(bytes)) }
}

/// Bytes of a file with rings of so many.
pub(super) fn file_bytes(ring: u64) -> u64 {
    HEADER as u64 + 2 * ring
}

/// The beginning of a file with rings of so many bytes; 0 while it is made.
pub(super) fn header(ring: u64) -> [u8; 24] {
    let mut header = [0; 24];
    let (magic, rest) = header.split_at_mut(8);
    magic.copy_from_slice(&MAGIC);
    let (version, ring_bytes) = rest.split_at_mut(8);
    version.copy_from_slice(&u64::from(VERSION).to_ne_bytes());
    ring_bytes.copy_from_slice(&ring.to_ne_bytes());
    header
}

/// The state of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing is in it, or nothing but the header that it has while it is made.
    Empty,
    /// A port with rings of so many bytes.
    Port(u64),
}

/// Reads the beginning of a file, which is `len` bytes long.
pub(super) fn read(mut file: impl Read, len: u64, path: &Path) -> Result<Found, ShmError> {
    if len == 0 {
        return Ok(Found::Empty);
    }
    let mut header = [0; 24];
    let not_ours = || ShmError::NotOurs(path.to_owned());
    file.read_exact(&mut header).map_err(|_| not_ours())?;
    let (magic, rest) = header.split_at(8);
    if magic != MAGIC {
        return Err(not_ours());
    }
    let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
    let (version, ring) = rest.split_at(8);
    let (version, ring) = (number(version), number(ring));
    if version != u64::from(VERSION) {
        return Err(ShmError::Version { path: path.to_owned(), found: version as u32, known: VERSION });
    }
    if ring == 0 {
        return Ok(Found::Empty);
    }
    let damaged = |what| ShmError::Damaged { path: path.to_owned(), what };
    check_size(ring).map_err(|_| damaged("its header names a size that no ring can have"))?;
    if len != file_bytes(ring) {
        return Err(damaged("it is shorter or longer than its header says"));
    }
    Ok(Found::Port(ring))
}
