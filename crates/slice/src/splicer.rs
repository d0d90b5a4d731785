//! The way out: a packet that comes back from a function finds its payload by its token (NFSlicer, §III-C b).
//!
//! Tokens are accepted here only, where packets come from functions; what comes from the network meets the
//! [slicer](super::slicer). A packet that brings no token goes on as it is. One whose token gets no payload
//! has none any more, and is dropped, counted by cause.

use slipstream_wire::{Headers, LinkType, classify};

use slipstream_core::time::Nanos;

use super::DSCP_SLICED;
use super::config::{Bind, ConfigError, SliceConfig};
use super::hidden::{may_hold_another, read};
use super::layers::Layers;
use super::layout::{token_before, whole_end};
use super::parked::{Parked, Transport};
use super::payload_table::{Found, PayloadTable, Refusal};
use super::quote::{self, Quote};
use super::token::{TOKEN_LEN, Token, TokenMode};

/// The splicer's result for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spliced {
    /// It was not sliced, and goes on as it is.
    Untouched,
    /// It has its payload again.
    Whole {
        /// Length of the frame now, in bytes.
        len: usize,
    },
    /// An ICMP error that quoted a sliced packet quotes the whole one.
    Quote {
        /// Length of the frame now, in bytes.
        len: usize,
    },
}

/// Causes that a packet is dropped for at the splicer, each with its name, in the order of
/// [`SpliceCounters::refused`].
const DROPPED: [(Refusal, &str); 9] = [
    (Refusal::Forged, "forged"),
    (Refusal::Stale, "stale"),
    (Refusal::Late, "late"),
    (Refusal::Duplicate, "duplicate"),
    (Refusal::Released, "released"),
    (Refusal::Mangled, "mangled"),
    (Refusal::Oversize, "oversize"),
    (Refusal::Swapped, "swapped"),
    (Refusal::Hidden, "hidden"),
];

/// Names of the causes that a packet is dropped for at the splicer, in the order of
/// [`SpliceCounters::refused`].
pub const REFUSALS: [&str; DROPPED.len()] = {
    let [(_, a), (_, b), (_, c), (_, d), (_, e), (_, f), (_, g), (_, h), (_, i)] = DROPPED;
    [a, b, c, d, e, f, g, h, i]
};

/// Counters of the splicer, in packets; they add up to those that came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpliceCounters {
    /// Not sliced.
    pub untouched: u64,
    /// Whole again.
    pub spliced: u64,
    /// ICMP errors whose quote was restored.
    pub quotes: u64,
    /// Dropped, by [`REFUSALS`].
    pub refused: [u64; REFUSALS.len()],
    /// For another worker.
    pub elsewhere: u64,
}

impl SpliceCounters {
    /// Packets that came.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.untouched + self.spliced + self.quotes + self.elsewhere + self.refused.iter().sum::<u64>()
    }

    pub(super) fn refuse(&mut self, refusal: Refusal) {
        if let Refusal::Elsewhere(_) = refusal {
            // The packet is handed over, not dropped.
            self.elsewhere += 1;
            return;
        }
        let mut counts = DROPPED.iter().zip(&mut self.refused);
        if let Some((_, n)) = counts.find(|((cause, _), _)| *cause == refusal) {
            *n += 1;
        }
    }
}

/// The tokens that a packet brings.
#[derive(Debug)]
pub(super) enum Brought {
    Nothing,
    /// The token of this payload; the packet's headers.
    Payload(Found, Layers),
    /// An ICMP error that quotes a sliced packet.
    Error(Quote),
}

/// Splices packets.
#[derive(Clone, Debug)]
pub struct Splicer {
    pub(super) mtu: usize,
    keyed: bool,
    /// Packets may take the fast path.
    fast: bool,
    pub(super) counters: SpliceCounters,
    pub(super) scratch: Vec<u8>,
}

/// The token that a frame would bring to the splicer: the last eight bytes of its IP packet; `None` where it
/// can't have one.
///
/// Whoever drops a sliced packet can have its payload given up at once: [`PayloadTable::release`].
#[must_use]
pub fn token_of(link: LinkType, packet: &[u8]) -> Option<Token> {
    let headers = read(link, packet)?;
    token_before(packet, whole_end(packet, &headers)?)
}

impl Splicer {
    /// With these settings.
    ///
    /// # Errors
    /// [`ConfigError`] as [`SliceConfig::validate`] finds it.
    pub fn new(config: &SliceConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            mtu: config.mtu as usize,
            keyed: config.mode == TokenMode::Keyed,
            fast: config.bind == Bind::Nothing,
            counters: SpliceCounters::default(),
            scratch: Vec::new(),
        })
    }

    /// Without the fast path, whose results must equal those of the general one on any bytes: tests and
    /// benchmarks compare with it.
    #[must_use]
    pub fn without_shortcuts(self) -> Self {
        Self { fast: false, ..self }
    }

    /// Returns true if packets on this link may take the fast path.
    #[inline(always)]
    pub(super) fn takes_fast_path(&self, link: LinkType) -> bool {
        self.fast && matches!(link, LinkType::Ethernet)
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> SpliceCounters {
        self.counters
    }

    /// Splices the frame in the first `len` bytes of `buffer`, in place: what goes on stands at its start.
    /// The payload is copied from `table`, which must be one of [`Storage::Copied`](super::Storage::Copied),
    /// and takes room behind the frame.
    ///
    /// # Errors
    /// Why the packet is to be dropped; or [`Refusal::Elsewhere`], with the worker to whose table it has to
    /// be taken. The frame stays as it is.
    pub fn splice(
        &mut self,
        table: &mut PayloadTable,
        link: LinkType,
        buffer: &mut [u8],
        len: usize,
        now: Nanos,
    ) -> Result<Spliced, Refusal> {
        let done = match self.splice_fast(table, link, buffer, len, now) {
            Some(len) => Ok(Spliced::Whole { len }),
            None => self.try_splice(table, link, buffer, len, now),
        };
        self.count(&done);
        done
    }

    /// Splices a packet on the fast path; `None` leaves it as it is, for the general one.
    #[inline(always)]
    fn splice_fast(
        &self,
        table: &mut PayloadTable,
        link: LinkType,
        buffer: &mut [u8],
        len: usize,
        now: Nanos,
    ) -> Option<usize> {
        if !self.takes_fast_path(link) {
            return None;
        }
        let join = self.join_fast(table, buffer.get(..len)?, now)?;
        let whole = join.whole_len();
        let packet = buffer.get_mut(..whole)?;
        let payload = packet.get_mut(join.at..)?;
        let found = table.payload(join.entry, join.len);
        if payload.len() != found.len() {
            return None;
        }
        payload.copy_from_slice(found);
        join.fields.put(packet.first_chunk_mut()?);
        table.leave(join.entry);
        Some(whole)
    }

    #[inline]
    pub(super) fn count(&mut self, done: &Result<Spliced, Refusal>) {
        match done {
            Ok(Spliced::Untouched) => self.counters.untouched += 1,
            Ok(Spliced::Whole { .. }) => self.counters.spliced += 1,
            Ok(Spliced::Quote { .. }) => self.counters.quotes += 1,
            Err(refusal) => self.counters.refuse(*refusal),
        }
    }

    /// The general way.
    #[inline(never)]
    fn try_splice(
        &mut self,
        table: &mut PayloadTable,
        link: LinkType,
        buffer: &mut [u8],
        len: usize,
        now: Nanos,
    ) -> Result<Spliced, Refusal> {
        let Some(packet) = buffer.get_mut(..len) else { return Ok(Spliced::Untouched) };
        let Some(headers) = self.read(table, link, packet)? else { return Ok(Spliced::Untouched) };
        match self.brought(table, packet, &headers, now)? {
            Brought::Nothing => Ok(Spliced::Untouched),
            Brought::Error(quote) => {
                quote::restore(packet, &headers, &quote).map(|len| Spliced::Quote { len })
            }
            Brought::Payload(found, layers) => {
                let (at, payload) = (layers.end - TOKEN_LEN, usize::from(found.parked.len));
                let trailer = usize::from(found.parked.trailer).min(len - layers.end);
                let whole = at + payload + trailer;
                if whole > buffer.len() {
                    table.abandon(&found);
                    return Err(Refusal::Oversize);
                }
                buffer.copy_within(layers.end..layers.end + trailer, at + payload);
                if let Some(to) = buffer.get_mut(at..at + payload) {
                    to.copy_from_slice(table.payload(found.entry, found.parked.len));
                }
                layers.repair(buffer.get_mut(..whole).unwrap_or_default(), &found.parked);
                table.leave_any(found.entry);
                Ok(Spliced::Whole { len: whole })
            }
        }
    }

    /// The headers of a packet; `None` where it has none that can be read, and goes on as it is.
    ///
    /// # Errors
    /// [`Refusal::Hidden`] where a token would leave with it.
    #[inline]
    pub(super) fn read(
        &self,
        table: &PayloadTable,
        link: LinkType,
        packet: &[u8],
    ) -> Result<Option<Headers>, Refusal> {
        match read(link, packet) {
            None if self.keyed && table.find_any(packet).is_some() => Err(Refusal::Hidden),
            headers => Ok(headers),
        }
    }

    /// Finds the token of a packet with these outermost headers.
    #[inline]
    pub(super) fn brought(
        &self,
        table: &mut PayloadTable,
        packet: &[u8],
        headers: &Headers,
        now: Nanos,
    ) -> Result<Brought, Refusal> {
        let marked = headers.tos >> 2 == DSCP_SLICED;
        let Some(end) = whole_end(packet, headers) else {
            let hidden = || self.keyed && table.find_any(behind(packet, headers)).is_some();
            return match marked {
                true => Err(Refusal::Mangled),
                false if hidden() => Err(Refusal::Hidden),
                false => Ok(Brought::Nothing),
            };
        };
        let Some(token) = token_before(packet, end) else { return Ok(Brought::Nothing) };
        let holds = may_hold_another(packet, headers);
        let error = holds && quote::is_error(packet, headers);
        let ours = self.keyed && table.is_ours(token);
        if self.keyed && !ours && (holds || end < packet.len()) {
            match self.inside(table, packet, headers, end)? {
                Brought::Nothing => {}
                other => return Ok(other),
            }
        }
        // Without the mark only a token that can't be guessed counts; with neither, nothing but a quote.
        if !marked && !(if self.keyed { ours } else { error && quotes_mark(packet, headers) }) {
            return Ok(Brought::Nothing);
        }
        if error {
            match table.recall(token) {
                Some(parked)
                    if parked.kind != Transport::Icmp && !(marked && is_itself(packet, headers, &parked)) =>
                {
                    let at = end - TOKEN_LEN;
                    return Ok(Brought::Error(Quote { at, len: TOKEN_LEN, end, parked }));
                }
                // The mark in a quote alone says little: the error came from the network, about a packet that
                // had it there.
                None if !marked && !self.keyed => return Ok(Brought::Nothing),
                _ => {}
            }
        }
        let found = table.find(token, now)?;
        let layers = Layers::find(packet, headers, &found.parked)?;
        let (at, six) = layers.sliced();
        if !table.is_of_flow(found.entry, packet, at, six, found.parked.kind) {
            return Err(Refusal::Swapped);
        }
        if layers.whole_len(&found.parked) > self.mtu {
            table.abandon(&found);
            return Err(Refusal::Oversize);
        }
        Ok(Brought::Payload(found, layers))
    }

    /// Finds a token inside of a packet, or behind its end, that doesn't end in one: an ICMP error quotes a
    /// sliced packet to some length, is padded, or has extensions behind the quote (RFC 4884).
    #[cold]
    fn inside(
        &self,
        table: &PayloadTable,
        packet: &[u8],
        headers: &Headers,
        end: usize,
    ) -> Result<Brought, Refusal> {
        // A packet that holds no other may yet be followed by the end of one.
        let from = if may_hold_another(packet, headers) {
            usize::from(headers.l4)
        } else {
            (end + 1).saturating_sub(TOKEN_LEN)
        };
        let whole = packet.get(..end).unwrap_or_default();
        if quote::is_error(packet, headers)
            && let Some(at) = quote::token_place(whole, headers)
            && let Some(hidden) = whole.get(..(at + TOKEN_LEN).min(end)).and_then(|q| table.find_part(q, at))
            && let Some(parked) = table.recall(hidden.token)
        {
            let next = hidden.at + hidden.len;
            return match table.find_hidden(packet, next) {
                None => Ok(Brought::Error(Quote { at, len: hidden.len, end, parked })),
                Some(_) => Err(Refusal::Hidden),
            };
        }
        match table.find_hidden(packet, from).or_else(|| table.find_cut_off(whole)) {
            None => Ok(Brought::Nothing),
            Some(_) => Err(Refusal::Hidden),
        }
    }
}

/// A packet from its IP header on.
fn behind<'a>(packet: &'a [u8], headers: &Headers) -> &'a [u8] {
    packet.get(usize::from(headers.l3)..).unwrap_or_default()
}

/// Returns true if a packet that looks like an ICMP error is the one that the token was made for, not one
/// that quotes it.
#[cold]
fn is_itself(packet: &[u8], headers: &Headers, parked: &Parked) -> bool {
    Layers::find(packet, headers, parked).is_ok()
}

/// Returns true if what an ICMP error quotes carries the mark.
#[cold]
fn quotes_mark(packet: &[u8], headers: &Headers) -> bool {
    let quote = packet.get(usize::from(headers.l4) + 8..).unwrap_or_default();
    classify(LinkType::RawIp, quote).is_ok_and(|quoted| quoted.tos >> 2 == DSCP_SLICED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_counted_under_its_own_name() {
        for (at, (cause, name)) in DROPPED.into_iter().enumerate() {
            assert_eq!((format!("{cause:?}").to_lowercase().as_str(), REFUSALS[at]), (name, name));
            let mut counters = SpliceCounters::default();
            counters.refuse(cause);
            assert_eq!((counters.refused[at], counters.packets()), (1, 1), "{name}");
        }
        let mut counters = SpliceCounters::default();
        counters.refuse(Refusal::Elsewhere(3));
        assert_eq!((counters.elsewhere, counters.packets()), (1, 1));
    }
}
