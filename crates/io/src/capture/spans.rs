//! A capture file cut at records, for readers that know nothing of one another: other processes, other
//! machines.
//!
//! Only the record before says where one begins. So a place to cut is looked for: from every byte
//! where a record might begin, records are followed one after the other, through [`LOOK`] times the longest
//! record there should be. A chain that comes upon what can't be a record, or doesn't end with the file, is
//! none. If all chains that are left have met, then where they have met a record begins, unless a record is
//! longer than it should be. If they have not, as where packets carry what looks like records themselves, the
//! file is not cut there.
//!
//! That is a well-founded guess, and no more: the proof is that who reads the records before comes to the end
//! of one exactly there. The first part begins at the file's first record; so if every part ends where the
//! next one begins, all of them are right. Whoever reads a [`Span`] to its end checks that
//! ([`Parts::span_end`]).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use super::fields::Order;
use super::parts::BYTES;
use super::{CaptureError, CaptureReader, Damage, Notes, Part, Parts, Record};

/// Number of the longest records that are looked at.
const LOOK: usize = 4;
/// Places one behind the other at which a cut is looked for: what leaves it open at one, such as times that
/// read like lengths for a while, may have ended at the next.
const TRIES: usize = 3;
/// The longest record that a file should have at least, whatever it says; and at most.
const LONGEST: std::ops::RangeInclusive<u64> = 0x1_0000..=0x4_0000;

/// The most bytes that a packet should have had on the wire: 16 MiB.
const ON_THE_WIRE: u32 = 0x100_0000;

/// The most seconds that records should be apart from the first one: a year.
const APART: u32 = 366 * 86_400;

/// A part of a capture file, in bytes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Byte at which its first record begins; 0 for the beginning of the file.
    pub from: u64,
    /// Byte at which the first record of the next part begins; [`u64::MAX`] for the end of the file, wherever
    /// that is.
    pub to: u64,
}

impl Span {
    /// All of a file.
    pub const ALL: Self = Self { from: 0, to: u64::MAX };
    /// Nothing, behind the end of a file.
    pub const NOTHING: Self = Self { from: u64::MAX, to: u64::MAX };

    /// Hands the packets of this part of the capture at `path` to `packet`, in order, and tells `progress`
    /// now and then the share of the file that was read, where that is known. What can't be cut has only
    /// [`Span::ALL`] and [`Span::NOTHING`]. `walk`: see [`Parts::walked`].
    ///
    /// # Errors
    /// [`CaptureError`], [`CaptureError::NotThere`] and [`CaptureError::NoParts`] among them; and that of
    /// `progress`, which ends it.
    pub fn read<E: From<CaptureError>>(
        self,
        path: &Path,
        walk: bool,
        mut packet: impl FnMut(&Record<'_>),
        mut progress: impl FnMut(Option<f64>) -> Result<(), E>,
    ) -> Result<SpanRead, E> {
        let mut reader = CaptureReader::open(path)?;
        let mut read = SpanRead::default();
        if self.from == u64::MAX {
            return Ok(read);
        }
        let mut taken = 0u64;
        let parts = if walk { Parts::walked(reader, self)? } else { Parts::within(reader, self)? };
        match parts {
            Ok(parts) => {
                read.context_from = parts.context();
                let mut part = Part::default();
                while parts.visit(&mut part, |record| packet(&record))? {
                    taken += 1;
                    if taken.is_multiple_of(64) {
                        progress(Some(parts.progress()))?;
                    }
                }
                (read.to, read.context_to) = parts.span_end()?;
                if parts.lacks_time() {
                    read.context_from = SpanRead::TIME_BEFORE;
                }
                reader = parts.into_reader();
            }
            Err(whole) if self != Self::ALL => {
                return Err(CaptureError::NoParts { file: whole.name().to_owned() }.into());
            }
            Err(whole) => {
                reader = *whole;
                while let Some(record) = reader.next_record()? {
                    packet(&record);
                    taken += 1;
                    if taken.is_multiple_of(1 << 18) {
                        progress(None)?;
                    }
                }
            }
        }
        read.notes = reader.notes();
        read.damage = reader.damage().cloned();
        read.ends = self.to == u64::MAX || read.damage.is_some();
        Ok(read)
    }
}

/// Findings about a [`Span`] that was read to its end.
#[derive(Clone, Debug, Default)]
pub struct SpanRead {
    /// Byte at which the next part begins; 0 if that is not known, as of a compressed file.
    pub to: u64,
    /// Numbers for what the file had said of records before the span, and before the next one: see
    /// [`Parts::context`]; 0 where they are not known.
    pub context_from: u64,
    /// See there.
    pub context_to: u64,
    /// The events in the span that are neither packets nor damage.
    pub notes: Notes,
    /// Place of the damage at which the capture ends.
    pub damage: Option<Damage>,
    /// No part of the capture follows.
    pub ends: bool,
}

impl SpanRead {
    /// The `context_from` of a span whose first packet has no time but that of the one before, which was not
    /// read. It is never that of a span's end, so that the two don't join; see [`Parts::walked`].
    pub const TIME_BEFORE: u64 = 2;
}

/// Signs by which the records of a file can be told.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    /// Records of pcap: with headers of so many bytes, fractions of a second below a limit, and lengths in
    /// either order; the first one has this time in seconds.
    Records { order: Order, header: u64, fractions: u32, either_order: bool, seconds: u32 },
    /// Blocks of pcapng.
    Blocks { order: Order },
}

impl Shape {
    /// Bytes between places where a record may begin.
    fn step(self) -> u64 {
        match self {
            Self::Records { .. } => 1,
            Self::Blocks { .. } => 4,
        }
    }

    /// Length of the record that may begin here, of which `bytes` are there; None if none can.
    fn length(self, bytes: &[u8], longest: u64) -> Option<u64> {
        match self {
            Self::Records { order, header, fractions, either_order, seconds } => {
                let head = bytes.get(..header as usize)?;
                // Four bytes behind a record's header, the length on the wire would be that captured, and the
                // fraction of a second the time.
                if order.u32(head, 4) >= fractions || order.u32(head, 0).abs_diff(seconds) > APART {
                    return None;
                }
                let (captured, original) = (order.u32(head, 8), order.u32(head, 12));
                // Within seconds of 1970 such a fraction may be a time, but a packet's first bytes are seldom
                // a length; and payloads of zeros would be packets of no bytes.
                if original > ON_THE_WIRE || head.iter().all(|byte| *byte == 0) {
                    return None;
                }
                let captured = if either_order { captured.min(original) } else { captured };
                (u64::from(captured) <= longest).then(|| header + u64::from(captured))
            }
            Self::Blocks { order } => {
                let len = order.u32(bytes.get(..8)?, 4);
                let sound = len >= 12 && len.is_multiple_of(4) && u64::from(len) <= longest + 0x1000;
                let again = sound.then(|| bytes.get(len as usize - 4..len as usize)).flatten()?;
                (order.u32(again, 0) == len).then_some(len.into())
            }
        }
    }
}

/// Parts of about `bytes` bytes each of the capture at `path`; one of all of it where it is compressed, or no
/// regular file.
///
/// ```no_run
/// use slipstream_io::capture::{CaptureReader, Part, Parts, spans};
///
/// let path = "trace.pcap".as_ref();
/// for span in spans(path, 64 << 20)? {
///     // Each of these could be elsewhere.
///     let mut part = Part::default();
///     if let Ok(parts) = Parts::within(CaptureReader::open(path)?, span)? {
///         while parts.next(&mut part)? {
///             println!("{} packets", part.len());
///         }
///         parts.span_end()?;
///     }
/// }
/// # Ok::<(), slipstream_io::capture::CaptureError>(())
/// ```
///
/// # Errors
/// [`CaptureError`]: the file can't be opened or read, or is no capture.
pub fn spans(path: &Path, bytes: u64) -> Result<Vec<Span>, CaptureError> {
    spans_of(path, bytes, None)
}

/// The same, of a file none of whose records has more than `longest` captured bytes; of None, as many as the
/// file says, 64 to 256 KiB. Where that is so, a place that was found is one where a record begins; fewer are
/// found the larger it is.
///
/// # Errors
/// As [`spans`].
pub fn spans_of(path: &Path, bytes: u64, longest: Option<u64>) -> Result<Vec<Span>, CaptureError> {
    spans_told(path, bytes, longest, |_| Ok(()))
}

/// The same; tells `progress` before each place that is looked for how much of the file was gone over.
///
/// # Errors
/// As [`spans`]; and that of `progress`, which ends it.
pub fn spans_told<E: From<CaptureError>>(
    path: &Path,
    bytes: u64,
    longest: Option<u64>,
    mut progress: impl FnMut(f64) -> Result<(), E>,
) -> Result<Vec<Span>, E> {
    let mut reader = CaptureReader::open(path)?;
    let Some(cutter) = Cutter::new(&mut reader, longest)? else { return Ok(vec![Span::ALL]) };
    let bytes = bytes.max(1);
    let (mut from, mut all, mut at) = (0, Vec::new(), bytes);
    while at < cutter.len {
        progress(at as f64 / cutter.len as f64)?;
        if let Some(place) = cutter.place(at).map_err(|error| reader.fail(error))?
            && place > from
        {
            all.push(Span { from, to: place });
            from = place;
            at = at.max(place);
        }
        at = at.saturating_add(bytes);
    }
    all.push(Span { from, to: u64::MAX });
    Ok(all)
}

/// Part `number` (from 1) of the capture at `path`, if it is cut in `parts` of about the same size; looks for
/// two places to cut, however many parts there are. None where nothing is left for this part: the file can't
/// be cut where it would begin, and the part before has its packets.
///
/// # Errors
/// As [`spans`].
pub fn span_of_part(path: &Path, number: u64, parts: u64) -> Result<Option<Span>, CaptureError> {
    let mut reader = CaptureReader::open(path)?;
    let Some(cutter) = Cutter::new(&mut reader, None)? else {
        return Ok((number <= 1).then_some(Span::ALL));
    };
    let bytes = cutter.len.div_ceil(parts.max(1)).max(1);
    // A place behind the next boundary counts for none, so that boundaries don't depend on one another.
    let boundary = |number: u64| -> std::io::Result<Option<u64>> {
        let at = number.saturating_mul(bytes);
        let place = if at < cutter.len { cutter.place(at)? } else { None };
        Ok(place.filter(|place| *place < at.saturating_add(bytes)))
    };
    let span = || -> std::io::Result<Option<Span>> {
        let from = if number <= 1 { Some(0) } else { boundary(number - 1)? };
        let Some(from) = from else { return Ok(None) };
        for next in number.max(1)..parts {
            if let Some(to) = boundary(next)? {
                return Ok(Some(Span { from, to }));
            }
        }
        Ok(Some(Span { from, to: u64::MAX }))
    };
    span().map_err(|error| reader.fail(error))
}

/// Looks for places to cut a file.
struct Cutter {
    file: Arc<File>,
    /// Byte at which its first packet's record begins, and bytes of the file.
    first: u64,
    len: u64,
    shape: Shape,
    longest: u64,
}

impl Cutter {
    /// None for what can't be cut: it is compressed, or no regular file.
    fn new(reader: &mut CaptureReader, longest: Option<u64>) -> Result<Option<Self>, CaptureError> {
        reader.pass_to_packets()?;
        let (Some((file, first)), Some(len)) = (reader.place(), reader.file_len()) else { return Ok(None) };
        let mut seconds = [0; 4];
        if file.read_exact_at(&mut seconds, first).is_err() {
            return Ok(None);
        }
        let shape = reader.shape(seconds);
        let longest = longest.unwrap_or(reader.snap_len().clamp(*LONGEST.start(), *LONGEST.end()));
        Ok(Some(Self { file, first, len, shape, longest }))
    }

    /// A place from `at` on where a record begins, not the first one; None if that can't be told.
    fn place(&self, at: u64) -> std::io::Result<Option<u64>> {
        let reach = (self.longest + 0x2000) as usize * LOOK;
        for at in (at..self.len).step_by(reach).take(TRIES) {
            let place = self.place_within(at, reach)?;
            if place.is_some() {
                return Ok(place);
            }
        }
        Ok(None)
    }

    /// The same, from `reach` bytes alone.
    fn place_within(&self, at: u64, reach: usize) -> std::io::Result<Option<u64>> {
        let step = self.shape.step();
        let at = at.max(self.first).next_multiple_of(step);
        let mut bytes = vec![0; reach.min(self.len.saturating_sub(at) as usize)];
        let mut have = 0;
        while let Some(rest) = bytes.get_mut(have..).filter(|rest| !rest.is_empty()) {
            match self.file.read_at(rest, at + have as u64) {
                Ok(0) => break,
                Ok(n) => have += n,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        bytes.truncate(have);
        let place = self.meeting(&bytes, at + have as u64 == self.len).map(|place| at + place as u64);
        Ok(place.filter(|place| *place > self.first))
    }

    /// The first place in `bytes` through which all chains go that begin where a record must have begun.
    /// `ends`: the file ends with them.
    fn meeting(&self, bytes: &[u8], ends: bool) -> Option<usize> {
        const DEAD: u32 = u32::MAX;
        let step = self.shape.step() as usize;
        let places = bytes.len() / step;
        // Beginnings: the record before may end anywhere up to here.
        let first = (((self.longest + 0x1018) as usize).min(bytes.len()) / step).min(places);
        // Chains are followed up to here; what is beyond has no records of which all is there.
        let end =
            if ends { bytes.len() } else { bytes.len().saturating_sub((self.longest + 0x1018) as usize) };
        // By place: where the chain goes from there; DEAD if it comes to nothing.
        let mut next = vec![DEAD; places];
        for place in (0..places).rev() {
            let here = place * step;
            let Some(len) = bytes.get(here..).and_then(|rest| self.shape.length(rest, self.longest)) else {
                continue;
            };
            let to = here + len as usize;
            let alive = match to {
                _ if here >= end => !ends,
                _ if ends && to == bytes.len() => true,
                _ if !ends && to >= end => to <= bytes.len(),
                _ => next.get(to / step).is_some_and(|next| *next != DEAD),
            };
            if alive && let Some(next) = next.get_mut(place) {
                *next = (to / step) as u32;
            }
        }
        let alive = |place: usize| next.get(place).is_some_and(|next| *next != DEAD);
        // All that are alive must come to the same place in the end: the latest of those where two meet.
        let mut beginnings: Vec<u32> =
            (0..first).filter(|place| alive(*place)).map(|place| place as u32).collect();
        let stop = (end / step) as u32;
        // The record before may be the last one.
        if ends && stop as usize <= first {
            beginnings.push(stop);
        }
        while let [one, two, ..] = beginnings.as_slice() {
            // The one that is behind goes on.
            let behind = *one;
            if behind >= stop || one == two {
                if one != two {
                    return None;
                }
                beginnings.remove(0);
                continue;
            }
            let to = next.get(behind as usize).copied().filter(|to| *to != DEAD)?;
            beginnings.remove(0);
            let place = beginnings.partition_point(|other| *other < to);
            beginnings.insert(place, to);
        }
        let meeting = *beginnings.first()?;
        (meeting < stop).then_some(meeting as usize * step)
    }
}

impl Parts {
    /// Reads a [`Span`] of a capture that has just been opened.
    ///
    /// # Errors
    /// The device failed. As a value, the reader, of a capture that has only [`Span::ALL`].
    pub fn within(
        reader: CaptureReader,
        span: Span,
    ) -> Result<Result<Self, Box<CaptureReader>>, CaptureError> {
        Self::within_of(reader, span, BYTES)
    }

    /// The same, in parts of so many bytes.
    pub(super) fn within_of(
        mut reader: CaptureReader,
        span: Span,
        bytes: u64,
    ) -> Result<Result<Self, Box<CaptureReader>>, CaptureError> {
        if span.from > 0 {
            reader.pass_to_packets()?;
            reader.leave_out();
        }
        Ok(Self::of(reader, bytes).map(|mut parts| {
            parts.limit(span);
            parts
        }))
    }

    /// The same, going over all of the file up to the span first: what a pcapng file says there of its
    /// interfaces holds for the span, too, wherever it stands; and a first packet without a time has that of
    /// the one before.
    ///
    /// # Errors
    /// As [`Parts::within`]; [`CaptureError::NotThere`] where the span begins where no record does.
    pub fn walked(
        reader: CaptureReader,
        span: Span,
    ) -> Result<Result<Self, Box<CaptureReader>>, CaptureError> {
        let mut parts = match Self::new(reader) {
            Ok(parts) => parts,
            Err(reader) => return Ok(Err(reader)),
        };
        if span.from > 0 {
            parts.limit(Span { from: 0, to: span.from });
            let mut part = Part::default();
            while parts.next(&mut part)? {}
            parts.span_end()?;
            parts.forget_notes();
        }
        parts.limit(span);
        Ok(Ok(parts))
    }

    /// Returns the byte at which the next record begins, once all parts were read, and a number for what the
    /// file has said of records from there on (never 0).
    ///
    /// # Errors
    /// [`CaptureError::NotThere`]: the span ends where no record begins, so that it, or the one behind it,
    /// was cut in a wrong place.
    pub fn span_end(&self) -> Result<(u64, u64), CaptureError> {
        let (reader, position, to) = self.end();
        if !reader && position != to && to != u64::MAX {
            return Err(self.not_there(to));
        }
        Ok((position, self.context()))
    }
}
