//! The way in: a packet's payload is parked, and a token stands for it (NFSlicer, §III-C a).
//!
//! A packet that can't be sliced is forwarded whole. No packet that this lets through unsliced can be taken
//! for a sliced one: one that comes with the mark of sliced packets, or ends in a token that only the key
//! makes, gets a token of its own behind it, or is remarked or dropped. A packet with such a token where the
//! splicer could come upon it only once a function has taken something off the packet
//! ([`hidden`](super::hidden)) is dropped.

use slipstream_wire::{Headers, LinkType, ip_end};

use slipstream_core::pool::SHORT;
use slipstream_core::time::Nanos;

use super::config::{Amount, Bind, ConfigError, Marked, SliceConfig, Storage};
use super::fast_path::{FastCut, passes, put_token};
use super::hidden::{may_hold_another, read};
use super::layout::{Cut, cut, empty_cut, token_before, whole_end};
use super::parked::Held;
use super::payload_table::{PayloadTable, Place};
use super::token::{TOKEN_LEN, Token, TokenMode};
use super::{DSCP_SLICED, layout};

/// Why a packet is forwarded whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Why {
    /// Shorter than the threshold, or slicing would not make it shorter.
    Small,
    /// No rule selects it.
    NotSelected,
    /// Not IP, a fragment, neither TCP nor UDP, to many, extension headers that are not understood, lengths
    /// that don't agree, not wholly captured, or to be cut behind the first 65,535 bytes of the frame.
    Kind,
    /// More payload than an entry has room for.
    NoRoom,
    /// The next entry is in use.
    Full,
    /// Longer than the functions between take ([`SliceConfig::functions_mtu`]): they have to see its length.
    TooLong,
}

impl Why {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 6] =
        [Self::Small, Self::NotSelected, Self::Kind, Self::NoRoom, Self::Full, Self::TooLong];

    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Small => "whole_small",
            Self::NotSelected => "whole_not_selected",
            Self::Kind => "whole_kind",
            Self::NoRoom => "whole_no_room",
            Self::Full => "whole_full",
            Self::TooLong => "whole_too_long",
        }
    }
}

/// The slicer's result for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sliced {
    /// It goes on as it is.
    Whole(Why),
    /// It is sliced: `len` bytes go on, `parked` bytes of payload wait.
    Sliced {
        /// Length of the frame now, in bytes.
        len: usize,
        /// Bytes that wait.
        parked: usize,
        /// The token that stands for them.
        token: Token,
    },
    /// It carried the mark, or ended like a sliced packet, and got a token without a payload: it is 8 bytes
    /// longer.
    Empty {
        /// Length of the frame now, in bytes.
        len: usize,
        /// The token at the end of the frame.
        token: Token,
    },
    /// It carried the mark and has another DSCP now.
    Remarked,
    /// It is to be dropped: it carried the mark, or ended in a token, and the policy, or that it can get no
    /// token, says so.
    Dropped,
}

/// Counters of the slicer, in packets. All but `parked_bytes` and `tokens_from_network` add up to the packets
/// that came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SliceCounters {
    /// Payload parked.
    pub sliced: u64,
    /// Token without payload.
    pub empty: u64,
    /// Another DSCP.
    pub remarked: u64,
    /// Dropped.
    pub dropped: u64,
    /// Forwarded whole, by [`Why`].
    pub whole: [u64; Why::ALL.len()],
    /// Bytes parked.
    pub parked_bytes: u64,
    /// Packets that came with a token that only the key makes: an attacker has seen one.
    pub tokens_from_network: u64,
}

impl SliceCounters {
    /// Packets that came.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.sliced + self.empty + self.remarked + self.dropped + self.whole.iter().sum::<u64>()
    }

    /// Packets that were worth slicing and found no entry, as a share of all that were worth slicing.
    #[must_use]
    pub fn unsliced_share(&self) -> f64 {
        let full = self.whole.get(Why::Full as usize).copied().unwrap_or(0);
        let all = self.sliced + full;
        if all == 0 { 0.0 } else { full as f64 / all as f64 }
    }
}

/// The decision about a packet, before it is carried out.
#[derive(Debug)]
pub(super) enum Decision {
    Whole(Why),
    /// Cut it, and let its payload wait here.
    Cut(Cut, Place),
    /// Give it this DSCP.
    Remark(u8),
    Drop,
}

/// Slices packets.
#[derive(Clone, Debug)]
pub struct Slicer {
    pub(super) config: SliceConfig,
    pub(super) keyed: bool,
    everything: bool,
    /// All of a payload is parked.
    whole_payloads: bool,
    /// Packets may take the fast path.
    fast: bool,
    pub(super) most: usize,
    /// Longest IP packet that the functions between take.
    pub(super) functions_mtu: usize,
    counters: SliceCounters,
    pub(super) scratch: Vec<u8>,
}

impl Slicer {
    /// With these settings.
    ///
    /// # Errors
    /// [`ConfigError`] as [`SliceConfig::validate`] finds it.
    pub fn new(config: &SliceConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let most = match config.storage {
            Storage::InPlace => usize::from(u16::MAX),
            Storage::Copied { entry_bytes } => entry_bytes as usize,
        };
        Ok(Self {
            keyed: config.mode == TokenMode::Keyed,
            everything: config.rules.is_always(),
            whole_payloads: config.keep_bytes == 0 && config.amount == Amount::Share(1.0),
            fast: config.bind == Bind::Nothing,
            functions_mtu: config.functions_mtu as usize,
            config: config.clone(),
            most,
            counters: SliceCounters::default(),
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

    /// Returns true if a packet that is cut so may go on in its buffer, before its payload.
    pub(super) fn may_stay(&self, table: &PayloadTable, cut: &Cut) -> bool {
        self.fast && table.entry_bytes() == 0 && cut.trailer == 0 && cut.parked >= TOKEN_LEN
    }

    /// Returns true if a frame of so many bytes is below the threshold.
    #[inline(always)]
    pub(super) fn is_short(&self, len: usize) -> bool {
        len < self.config.threshold as usize
    }

    /// Returns true if an IP packet is longer than the functions between take.
    #[inline]
    fn is_too_long(&self, packet: &[u8], headers: &Headers) -> bool {
        let end = ip_end(packet, headers);
        end.saturating_sub(usize::from(headers.l3)) > self.functions_mtu
    }

    /// Returns true if a packet below the threshold, on such a link, can't be taken for a sliced one.
    #[inline(always)]
    pub(super) fn passes(&self, table: &PayloadTable, packet: &[u8]) -> bool {
        passes(table, packet, self.keyed)
    }

    /// As [`SliceConfig::parks`].
    #[inline(always)]
    pub(super) fn parks(&self, payload: u32) -> u32 {
        if self.whole_payloads && payload > TOKEN_LEN as u32 { payload } else { self.config.parks(payload) }
    }

    /// The cut of a long enough packet on such a link, if it is known without the general analysis.
    #[inline(always)]
    pub(super) fn cut_on_fast_path(&self, packet: &[u8]) -> Option<FastCut> {
        if !self.everything {
            return None;
        }
        // The part of a tunnel's payload that stays is searched for tokens.
        self.cut_fast(packet).filter(|cut| self.whole_payloads || !cut.may_be_tunnel(packet))
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> SliceCounters {
        self.counters
    }

    /// Slices the frame in the first `len` bytes of `buffer`, in place: what goes on stands at its start. The
    /// payload is copied into `table`, which must be one of [`Storage::Copied`]. Up to 8 bytes behind the
    /// frame are used for a packet that comes with the mark; where they are not there it is remarked.
    pub fn slice(
        &mut self,
        table: &mut PayloadTable,
        link: LinkType,
        buffer: &mut [u8],
        len: usize,
        now: Nanos,
    ) -> Sliced {
        let Some(packet) = buffer.get(..len) else { return self.count(Sliced::Whole(Why::Kind)) };
        if self.takes_fast_path(link) {
            if self.is_short(len) {
                if self.passes(table, packet) {
                    return self.count(Sliced::Whole(Why::Small));
                }
            } else if let Some(cut) = self.cut_on_fast_path(packet) {
                return match table.place(now) {
                    Some(place) => self.cut_off(table, &cut, place, buffer, len, now),
                    None => self.slice_any(table, (link, true), buffer, len, now),
                };
            }
        }
        self.slice_any(table, (link, false), buffer, len, now)
    }

    /// The general way; `met_full` as [`Slicer::decide`] takes it.
    #[inline(never)]
    fn slice_any(
        &mut self,
        table: &mut PayloadTable,
        (link, met_full): (LinkType, bool),
        buffer: &mut [u8],
        len: usize,
        now: Nanos,
    ) -> Sliced {
        let packet = buffer.get(..len).unwrap_or_default();
        let headers = read(link, packet);
        let decision = self.decide(table, (link, met_full), packet, headers.as_ref(), len as u32, now);
        self.carry_out(table, decision, headers.as_ref(), buffer, now)
    }

    /// Cuts a packet on the fast path.
    #[inline(always)]
    fn cut_off(
        &mut self,
        table: &mut PayloadTable,
        cut: &FastCut,
        place: Place,
        buffer: &mut [u8],
        len: usize,
        now: Nanos,
    ) -> Sliced {
        let token = table.token(&place);
        if let Some(room) = table.room_mut(&place, cut.parked)
            && let Some(payload) = buffer.get(cut.at..len)
        {
            room.copy_from_slice(payload);
        }
        let Some(front) = buffer.first_chunk_mut::<SHORT>() else {
            return self.count(Sliced::Whole(Why::Kind));
        };
        let (fields, parked) = cut.headers(front, token);
        if let Some(front) = front.first_chunk_mut() {
            fields.put(front);
        }
        put_token(front, cut.at, token);
        table.park(place, now, parked, Held::default());
        self.count(Sliced::Sliced { len: cut.sliced_len(), parked: cut.parked, token })
    }

    fn carry_out(
        &mut self,
        table: &mut PayloadTable,
        decision: Decision,
        headers: Option<&Headers>,
        buffer: &mut [u8],
        now: Nanos,
    ) -> Sliced {
        let room = buffer.len();
        let done = match decision {
            Decision::Whole(why) => Sliced::Whole(why),
            Decision::Drop => Sliced::Dropped,
            Decision::Remark(dscp) => remark(buffer, headers, dscp),
            Decision::Cut(cut, _) if cut.sliced_len() > room => remark(buffer, headers, 0),
            Decision::Cut(cut, place) => {
                if let Some(to) = table.room_mut(&place, cut.parked)
                    && let Some(payload) = buffer.get(cut.at..cut.end)
                {
                    to.copy_from_slice(payload);
                }
                buffer.copy_within(cut.end..cut.end + cut.trailer, cut.at + TOKEN_LEN);
                let token = table.token(&place);
                let front = buffer.get_mut(..cut.sliced_len()).unwrap_or_default();
                let parked = cut.write(front, token);
                table.bind(&place, front, &cut);
                table.park_any(place, now, parked, Held::default());
                sliced(&cut, token)
            }
        };
        self.count(done)
    }

    /// Decides about a packet. `headers` are those of its outermost IP header, `wire_len` its length on the
    /// wire; `met_full`: it could be cut, but the entry whose turn it was is in use.
    #[inline]
    pub(super) fn decide(
        &mut self,
        table: &mut PayloadTable,
        (link, met_full): (LinkType, bool),
        packet: &[u8],
        headers: Option<&Headers>,
        wire_len: u32,
        now: Nanos,
    ) -> Decision {
        let Some(headers) = headers else { return self.unread(table, packet) };
        let why = if met_full {
            Why::Full
        } else if packet.len() < self.config.threshold as usize {
            Why::Small
        } else if self.is_too_long(packet, headers) {
            Why::TooLong
        } else if !self.everything && !self.config.rules.matches(headers, wire_len) {
            Why::NotSelected
        } else {
            match cut(link, packet, headers, |payload| self.config.parks(payload)) {
                Ok(cut) if cut.parked > self.most => Why::NoRoom,
                Ok(cut) if self.keeps_token(table, packet, headers, &cut) => return self.smuggled(),
                Ok(cut) => match table.place(now) {
                    Some(place) => return Decision::Cut(cut, place),
                    None => Why::Full,
                },
                Err(why) => why,
            }
        };
        self.whole(table, packet, headers, why, now)
    }

    /// Decides about a packet that is not cut: none may leave that could be taken for a sliced one.
    #[inline]
    fn whole(
        &mut self,
        table: &mut PayloadTable,
        packet: &[u8],
        headers: &Headers,
        why: Why,
        now: Nanos,
    ) -> Decision {
        if self.keyed && hides_token(table, packet, headers) {
            return self.smuggled();
        }
        if headers.tos >> 2 == DSCP_SLICED {
            return self.marked(table, packet, headers, now);
        }
        if self.keyed && ends_in_token(table, packet, headers) {
            return self.impostor(table, packet, headers, now);
        }
        Decision::Whole(why)
    }

    /// A frame that can't be read: no IP, or not wholly there. It goes on unless it brings a token in.
    #[cold]
    fn unread(&mut self, table: &PayloadTable, packet: &[u8]) -> Decision {
        if self.keyed && table.find_hidden(packet, 0).is_some() {
            return self.smuggled();
        }
        Decision::Whole(Why::Kind)
    }

    /// Returns true if what stays of a tunnel's payload in front of the token has one in it.
    fn keeps_token(&self, table: &PayloadTable, packet: &[u8], headers: &Headers, cut: &Cut) -> bool {
        self.keyed
            && !self.whole_payloads
            && may_hold_another(packet, headers)
            && packet.get(..cut.at).is_some_and(|kept| table.find_hidden(kept, cut.l4).is_some())
    }

    /// A packet in which a token stands that a function could bring to light.
    #[cold]
    fn smuggled(&mut self) -> Decision {
        self.counters.tokens_from_network += 1;
        Decision::Drop
    }

    /// A packet that carries the mark and is not sliced.
    #[cold]
    fn marked(&mut self, table: &mut PayloadTable, packet: &[u8], headers: &Headers, now: Nanos) -> Decision {
        let genuine = self.keyed && ends_in_token(table, packet, headers);
        self.counters.tokens_from_network += u64::from(genuine);
        let otherwise = match self.config.marked {
            Marked::Slice => 0,
            // Another DSCP leaves the token as it is.
            Marked::Remark(_) if genuine => return Decision::Drop,
            Marked::Remark(dscp) => return Decision::Remark(dscp),
            Marked::Drop => return Decision::Drop,
        };
        match self.empty_slice(table, packet, headers, now) {
            Some((cut, place)) => Decision::Cut(cut, place),
            None if genuine => Decision::Drop,
            None => Decision::Remark(otherwise),
        }
    }

    /// A packet without the mark whose last bytes are a token that only the key makes.
    #[cold]
    fn impostor(
        &mut self,
        table: &mut PayloadTable,
        packet: &[u8],
        headers: &Headers,
        now: Nanos,
    ) -> Decision {
        self.counters.tokens_from_network += 1;
        if self.config.marked != Marked::Slice {
            return Decision::Drop;
        }
        match self.empty_slice(table, packet, headers, now) {
            Some((cut, place)) => Decision::Cut(cut, place),
            None => Decision::Drop,
        }
    }

    /// The cut and the place of a packet that only gets a token; `None` where it can get none.
    fn empty_slice(
        &self,
        table: &mut PayloadTable,
        packet: &[u8],
        headers: &Headers,
        now: Nanos,
    ) -> Option<(Cut, Place)> {
        let fits = |cut: &Cut| cut.end - cut.l3 + TOKEN_LEN <= self.functions_mtu;
        let cut = empty_cut(packet, headers).filter(fits)?;
        Some((cut, table.place_empty(now)?))
    }

    #[inline]
    pub(super) fn count(&mut self, done: Sliced) -> Sliced {
        let c = &mut self.counters;
        match done {
            Sliced::Whole(why) => {
                if let Some(n) = c.whole.get_mut(why as usize) {
                    *n += 1;
                }
            }
            Sliced::Sliced { parked, .. } => {
                c.sliced += 1;
                c.parked_bytes += parked as u64;
            }
            Sliced::Empty { .. } => c.empty += 1,
            Sliced::Remarked => c.remarked += 1,
            Sliced::Dropped => c.dropped += 1,
        }
        done
    }
}

/// Returns true if a token stands in a packet that may hold another.
#[inline]
fn hides_token(table: &PayloadTable, packet: &[u8], headers: &Headers) -> bool {
    may_hold_another(packet, headers) && table.find_hidden(packet, usize::from(headers.l3)).is_some()
}

/// Returns true if the IP packet's last bytes are a token that only the key makes.
#[inline]
fn ends_in_token(table: &PayloadTable, packet: &[u8], headers: &Headers) -> bool {
    whole_end(packet, headers)
        .and_then(|end| token_before(packet, end))
        .is_some_and(|token| table.is_ours(token))
}

pub(super) fn sliced(cut: &Cut, token: Token) -> Sliced {
    let len = cut.sliced_len();
    if cut.parked == 0 {
        Sliced::Empty { len, token }
    } else {
        Sliced::Sliced { len, parked: cut.parked, token }
    }
}

/// Gives a packet another DSCP; its length stays.
pub(super) fn remark(packet: &mut [u8], headers: Option<&Headers>, dscp: u8) -> Sliced {
    if let Some(headers) = headers {
        layout::set_dscp(packet, headers, dscp);
    }
    Sliced::Remarked
}
