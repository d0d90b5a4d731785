//! Classic pcap: a 24-byte file header, then records of a 16-byte header and data
//! (draft-ietf-opsawg-pcap; the modified form has 24-byte record headers).

use slipstream_wire::LinkType;

use super::fields::Order;
use super::spans::Shape;
use super::window::{Stop, Window};
use super::{Damage, Interface, MAX_CAPTURED};
use slipstream_core::time::Nanos;

/// Bytes of the file header.
pub(super) const FILE_HEADER: usize = 24;
/// Bytes of a record's header, but in the modified form.
pub(super) const RECORD_HEADER: usize = 16;

/// Magic number of microsecond files, as a number.
const MICROS: u32 = 0xa1b2_c3d4;
/// Magic number of nanosecond files; the one that is written.
pub(super) const NANOS: u32 = 0xa1b2_3c4d;
/// Magic number of Kuznetzov's modified form, in microseconds.
const MODIFIED: u32 = 0xa1b2_cd34;

/// A record, cut out of the window.
pub(super) struct Cut {
    pub(super) time: Nanos,
    pub(super) interface: u32,
    pub(super) link: LinkType,
    pub(super) original_len: u32,
    /// Place of its data in the window.
    pub(super) data: std::ops::Range<usize>,
}

/// The version of a pcap file, where it is not one that can be read.
pub(super) struct BadVersion {
    pub(super) major: u16,
    pub(super) minor: u16,
}

/// A decoder of the records of a pcap file.
pub(super) struct Pcap {
    order: Order,
    /// Nanoseconds in one unit of the second time field.
    unit: u64,
    /// Bytes of a record header: 16 or 24.
    header: usize,
    link: LinkType,
    /// Files before version 2.4 have the two lengths in either order: the smaller is the captured one.
    either_order: bool,
}

/// The layout of a file, if it is pcap: byte order, nanoseconds per unit, bytes of a record header.
pub(super) fn layout(begin: &[u8]) -> Option<(Order, u64, usize)> {
    let magic = begin.first_chunk::<4>()?;
    for order in [Order::Little, Order::Big] {
        match order.u32(magic, 0) {
            MICROS => return Some((order, 1000, RECORD_HEADER)),
            NANOS => return Some((order, 1, RECORD_HEADER)),
            MODIFIED => return Some((order, 1000, 24)),
            _ => {}
        }
    }
    None
}

impl Pcap {
    /// Reads the file header that `bytes` begin with. `layout` comes from [`layout`].
    ///
    /// # Errors
    ///
    /// The version is neither 2 nor 543.0 (DG/UX).
    pub(super) fn new(
        (order, unit, header): (Order, u64, usize),
        bytes: &[u8],
    ) -> Result<(Self, Interface), BadVersion> {
        let (major, minor) = (order.u16(bytes, 4), order.u16(bytes, 6));
        if major != 2 && (major, minor) != (543, 0) {
            return Err(BadVersion { major, minor });
        }
        let interface =
            Interface { link_number: order.u32(bytes, 20), snap_len: order.u32(bytes, 16), name: None };
        let pcap = Self { order, unit, header, link: interface.link(), either_order: minor < 4 };
        Ok((pcap, interface))
    }

    /// Returns the signs by which its records can be told, the first of which begins with these bytes.
    pub(super) fn shape(&self, begin: [u8; 4]) -> Shape {
        Shape::Records {
            order: self.order,
            header: self.header as u64,
            fractions: (1_000_000_000 / self.unit) as u32,
            either_order: self.either_order,
            seconds: self.order.u32(&begin, 0),
        }
    }

    /// Cuts the next record.
    #[inline]
    pub(super) fn next(&self, window: &mut Window) -> Result<Cut, Stop> {
        loop {
            // The order is a constant in either call, and no field asks for it.
            let ready = match self.order {
                Order::Little => self.ready(Order::Little, window),
                Order::Big => self.ready(Order::Big, window),
            };
            match ready {
                Some(cut) => return Ok(cut),
                None => self.prepare(window)?,
            }
        }
    }

    /// Hands the records that begin before `end`, a byte of the file, to `each`: those that [`Pcap::next`]
    /// gives one by one. They stay in registers on their way. To read back from memory what has just been
    /// written in other widths takes longer than to cut a record.
    #[inline]
    pub(super) fn each(
        &self,
        window: &mut Window,
        end: u64,
        mut each: impl FnMut(&Window, Cut),
    ) -> Result<(), Stop> {
        while window.position() < end {
            let ready = match self.order {
                Order::Little => self.ready(Order::Little, window),
                Order::Big => self.ready(Order::Big, window),
            };
            match ready {
                Some(cut) => each(window, cut),
                None => self.prepare(window)?,
            }
        }
        Ok(())
    }

    /// Bytes that have to be there before the next record can be cut, or told to be damaged; 0 where they
    /// are.
    pub(super) fn lacks(&self, unread: &[u8]) -> usize {
        if unread.len() < self.header {
            return self.header;
        }
        let (captured, _) = self.lengths(self.order, unread);
        let total = self.header + captured as usize;
        if captured > MAX_CAPTURED || total <= unread.len() { 0 } else { total }
    }

    /// The next record, if it is sound and all of it is in the window.
    #[inline(always)]
    fn ready(&self, order: Order, window: &mut Window) -> Option<Cut> {
        let head = window.unread().first_chunk::<16>()?;
        let (seconds, fraction) = (order.u32(head, 0), order.u32(head, 4));
        let (captured, original_len) = self.lengths(order, head);
        let total = self.header + captured as usize;
        if captured > MAX_CAPTURED
            || total > window.unread().len()
            || captured == 0 && no_record(head).is_some()
        {
            return None;
        }
        // The largest sum, 2^32 s and 2^32 us, is below 2^63.
        let time = Nanos(u64::from(seconds) * 1_000_000_000 + u64::from(fraction) * self.unit);
        let data = window.take(total, self.header, total);
        Some(Cut { time, interface: 0, link: self.link, original_len, data })
    }

    /// Makes [`Pcap::ready`] succeed, or says why it can't.
    #[cold]
    #[inline(never)]
    fn prepare(&self, window: &mut Window) -> Result<(), Stop> {
        if !window.want(self.header)? {
            return Err(window.end("a record header"));
        }
        let (captured, _) = self.lengths(self.order, window.unread());
        if captured > MAX_CAPTURED {
            return Err(absurd(window, captured));
        }
        if let Some(what) = window.unread().first_chunk().and_then(no_record) {
            return Err(Stop::Damage(Damage { byte: window.position(), what: what.to_owned() }));
        }
        let total = self.header + captured as usize;
        if !window.want(total)? {
            return Err(window.cut(window.position(), &format!("a record of {total} bytes")));
        }
        Ok(())
    }

    /// Captured and original length in a record header.
    #[inline(always)]
    fn lengths(&self, order: Order, head: &[u8]) -> (u32, u32) {
        let (captured, original) = (order.u32(head, 8), order.u32(head, 12));
        if self.either_order && captured > original { (original, captured) } else { (captured, original) }
    }
}

/// The words of a record's header, as they are written; none of a time that no record can have.
pub(super) fn record_head(time: Nanos, captured: u32, original_len: u32) -> Option<[u32; 4]> {
    let seconds = u32::try_from(time.0 / 1_000_000_000).ok()?;
    Some([seconds, (time.0 % 1_000_000_000) as u32, captured, original_len])
}

/// Returns true if this header, as it is written, can be told from what is none.
pub(super) fn is_taken_for_record(head: [u32; 4]) -> bool {
    no_record(head.map(u32::to_le_bytes).as_flattened().first_chunk().unwrap_or(&[0; RECORD_HEADER]))
        .is_none()
}

/// Returns what stands where a record's header should, if that is none although it could be read as an empty
/// packet's.
///
/// Zeros would be a packet without a byte, at the begin of 1970. They are what a file system gives of a file
/// that was made longer and not written, as where the power fails. The header of a file would be a packet of
/// one of six seconds from 1998 to 2083, at one of few fractions of it.
#[cold]
#[inline(never)]
fn no_record(head: &[u8; 16]) -> Option<&'static str> {
    if *head == [0; 16] {
        return Some("zeros where a record should begin, as in a file that was not written to its end");
    }
    let version = |order: Order| order.u16(head, 4) == 2 && order.u16(head, 6) <= 4;
    let is_file = layout(head).is_some_and(|(order, ..)| version(order)) && head.get(8..) == Some(&[0; 8]);
    is_file.then_some(
        "the header of another capture, which was written behind this one; name both, or join them with `mergecap`",
    )
}

#[cold]
fn absurd(window: &Window, captured: u32) -> Stop {
    let what =
        format!("a record that claims {captured} captured bytes (the most there can be: {MAX_CAPTURED})");
    Stop::Damage(Damage { byte: window.position(), what })
}
