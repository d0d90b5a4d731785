//! A stretch as bytes. The book, `book/src/partials.md`, has the layout.
//!
//! `SLIPPART`, version (u16), number of sections (u16), CRC-32 of these 12 bytes (u32); then seven sections,
//! each a name of four letters, the length of its content (u64), the content, and CRC-32 of all three (u32).
//! All numbers are little-endian; those in sections, but for addresses and ports, have a variable length
//! (LEB128). A reader believes no length: it allocates what the bytes at hand can fill.

mod input;
mod out;
mod read;

use thiserror::Error;

use self::input::In;
use self::out::Out;
use self::read::{Known, read_flows, read_totals};
use super::{FlowPart, Place, Stretch};
use crate::partial::Settings;

const MAGIC: &[u8; 8] = b"SLIPPART";
/// Version 2 added how a part ends.
const VERSION: u16 = 2;
const SECTIONS: [&[u8; 4]; 7] = [b"PLAC", b"SETT", b"TOTL", b"FLOW", b"ORDR", b"HEAD", b"WIND"];
/// No count of packets is so large: sums of a few don't overflow.
const MOST: u64 = 1 << 56;
/// Of a row in the head: the bits of a packet, and whether it has no flow, or its time was moved.
const NONE: u8 = 0x40;
const MOVED: u8 = 0x80;

/// The reason why bytes are no saved part of an analysis. Bytes are counted from 0.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StretchError {
    /// Something else altogether.
    #[error("byte 0: this is no saved part of an analysis")]
    Magic,
    /// Of a version that is not known.
    #[error(
        "byte 8: a saved part of an analysis of version {found}; this program reads versions 1 to {reads}: read it \
         with a newer program"
    )]
    Version {
        /// In the bytes.
        found: u16,
        /// The newest that can be read.
        reads: u16,
    },
    /// The bytes end too early.
    #[error("byte {byte}: the saved part of an analysis ends in the middle of what begins here")]
    Cut {
        /// The byte at which something begins of which the end is missing.
        byte: usize,
    },
    /// Bits were changed or lost.
    #[error("byte {byte}: a damaged part of an analysis: the checksum of what begins here is wrong")]
    Checksum {
        /// The byte at which it begins.
        byte: usize,
    },
    /// It can't be.
    #[error("byte {byte}: a damaged part of an analysis: {what}")]
    Damaged {
        /// The byte at which the figure ends that can't be.
        byte: usize,
        /// The reason why it can't be.
        what: &'static str,
    },
}

impl Stretch {
    /// The bytes that every saved part begins with.
    pub const MAGIC: &[u8] = MAGIC;

    /// As bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256 + 32 * self.flows.len() + 6 * self.head.len());
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&(SECTIONS.len() as u16).to_le_bytes());
        let sum = crc32fast::hash(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        let mut section = |name: &[u8; 4], write: &dyn Fn(&Self, &mut Out)| {
            let begin = out.len();
            out.extend_from_slice(name);
            out.extend_from_slice(&[0; 8]);
            let mut content = Out(std::mem::take(&mut out));
            write(self, &mut content);
            out = content.0;
            let len = (out.len() - begin - 12) as u64;
            if let Some(place) = out.get_mut(begin + 4..begin + 12) {
                place.copy_from_slice(&len.to_le_bytes());
            }
            let sum = crc32fast::hash(out.get(begin..).unwrap_or_default());
            out.extend_from_slice(&sum.to_le_bytes());
        };
        let [place, settings, totals, flows, orders, head, windows] = SECTIONS;
        section(place, &|s, out| s.place.write(out));
        section(settings, &|s, out| s.settings.write(out));
        section(totals, &Self::write_totals);
        section(flows, &Self::write_flows);
        section(orders, &Self::write_orders);
        section(head, &Self::write_head);
        section(windows, &Self::write_windows);
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// [`StretchError`] for anything that [`Stretch::to_bytes`] doesn't write.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, StretchError> {
        if bytes.get(..8) != Some(MAGIC) {
            return Err(StretchError::Magic);
        }
        let mut all = In { bytes, at: 8, end: bytes.len() };
        let (version, sections) = (u16::from_le_bytes(all.array()?), u16::from_le_bytes(all.array()?));
        let sum = u32::from_le_bytes(all.array()?);
        if version == 0 || version > VERSION {
            return Err(StretchError::Version { found: version, reads: VERSION });
        }
        if crc32fast::hash(bytes.get(..12).unwrap_or_default()) != sum {
            return Err(StretchError::Checksum { byte: 0 });
        }
        if usize::from(sections) != SECTIONS.len() {
            return all.damaged("another number of sections than its version has");
        }
        let mut contents = [In { bytes, at: 0, end: 0 }; SECTIONS.len()];
        for (content, name) in contents.iter_mut().zip(SECTIONS) {
            *content = all.section(name)?;
        }
        if all.at != bytes.len() {
            return all.damaged("there is more behind its last section");
        }
        let [mut place, mut settings, mut totals, mut flows, mut orders, mut head, mut windows] = contents;
        let place = Place::read(&mut place, version)?;
        let settings = Settings::read(&mut settings)?;
        let (opens, totals, opening, clock) = read_totals(&mut totals)?;
        let (table, twins, flows) = read_flows(&mut flows)?;
        let known = Known { opens, records: totals.records, flows: flows.len() as u64, opening, clock };
        let (ip, tcp, temporal) = known.orders(&mut orders, &settings)?;
        let within = |flow: &FlowPart| flow.ip[1] <= ip.packets && flow.tcp[1] <= tcp.packets;
        orders.check(flows.iter().all(within), "positions beyond the last packet")?;
        let (kept, head) = known.head(&mut head)?;
        let windows = known.windows(&mut windows, &settings, &head)?;
        Ok(Self {
            settings,
            place,
            opens,
            totals,
            opening,
            clock,
            table,
            twins,
            flows,
            ip,
            tcp,
            temporal,
            head,
            kept,
            windows,
        })
    }
}
