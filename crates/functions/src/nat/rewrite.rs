//! A translation as it is applied to packets: new addresses and ports, and what they do to checksums (RFC
//! 1624), worked out once and applied to any number of packets of the same flow.
//!
//! Bytes that were not captured are not written, nor any beyond the IP packet's own end: padding stays.

use slipstream_wire::checksum::{Delta, FoldedDelta};
use slipstream_wire::protocol::{ICMP, ICMP_CHECKSUM, SCTP, TCP, TCP_CHECKSUM, UDP, UDP_CHECKSUM};
use slipstream_wire::{Flags, NarrowKey};

use super::packet::{Ip, Packet, Tuple, end, spans};
use crate::bytes::{be16, put};
use slipstream_core::frame::Frame;
use slipstream_core::stage::Context;

const UDP_LITE: u8 = 136;
const DCCP: u8 = 33;

/// The frame ends within the IPv4 header, or the packet before the ports that change: nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the packet ends before its endpoints")]
pub struct Truncated;

/// New endpoints of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rewrite {
    /// The key of the packet after it.
    new: NarrowKey,
    /// Of an ICMP query: the new identifier, if it changes.
    icmp_id: Option<u16>,
    deltas: Deltas,
}

/// Changes by a translation to the checksums of the IP header and of the transport header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Deltas {
    ip: FoldedDelta,
    transport: FoldedDelta,
}

impl Rewrite {
    /// The change from `old` endpoints to `new` ones of the same protocol.
    #[inline]
    #[must_use]
    pub fn between(old: NarrowKey, new: NarrowKey) -> Self {
        let (was, is) = (Tuple::of(old), Tuple::of(new));
        let addresses = Delta::new().double_word(was.src, is.src).double_word(was.dst, is.dst);
        if was.protocol == ICMP {
            // One port is the identifier, the other says which query it is and never changes.
            let ids = [(was.src_port, is.src_port), (was.dst_port, is.dst_port)];
            let changed = ids.into_iter().find(|(old, new)| old != new);
            let transport = changed.map_or(Delta::new(), |(old, new)| Delta::new().word(old, new));
            let deltas = Deltas { ip: addresses.folded(), transport: transport.folded() };
            return Self { new, icmp_id: changed.map(|(_, id)| id), deltas };
        }
        let transport = addresses.word(was.src_port, is.src_port).word(was.dst_port, is.dst_port);
        let deltas = Deltas { ip: addresses.folded(), transport: transport.folded() };
        Self { new, icmp_id: None, deltas }
    }

    /// The change to `new` endpoints that makes these differences, of a protocol other than ICMP: what
    /// [`between`](Self::between) gave when the differences were kept.
    #[inline]
    pub(super) const fn again(new: NarrowKey, deltas: Deltas) -> Self {
        Self { new, icmp_id: None, deltas }
    }

    /// Its changes to checksums.
    #[inline]
    pub(super) const fn deltas(&self) -> Deltas {
        self.deltas
    }

    /// The endpoints that packets have after it.
    #[must_use]
    pub const fn endpoints(&self) -> NarrowKey {
        self.new
    }

    /// Rewrites the IPv4 packet at `l3` in `frame`, whose transport header is at `l4`; returns whether it has
    /// another destination address now. Of a fragment that changes which lies in it: in the first one of a
    /// datagram the ports, in that with the transport checksum the checksum.
    ///
    /// # Errors
    /// [`Truncated`], and nothing changed, if the frame ends before the IPv4 header does, or a packet of TCP,
    /// UDP or SCTP, by its own length, before its ports.
    #[inline(always)]
    pub fn apply(&self, frame: &mut [u8], l3: usize, l4: usize) -> Result<bool, Truncated> {
        match self.apply_fast(frame, l3, l4) {
            Some(other_destination) => Ok(other_destination),
            // A copy goes by reference, so that a rewrite that is applied fast stays in registers.
            None => Self::apply_any(&Self { ..*self }, frame, l3, l4),
        }
    }

    /// Rewrites the most frequent kind of packet: IPv4 without options, TCP or UDP, that goes beyond the
    /// checksum. It takes one check, then words at fixed places. Returns `None`, and changes nothing, if the
    /// packet is of another kind.
    #[inline(always)]
    fn apply_fast(&self, frame: &mut [u8], l3: usize, l4: usize) -> Option<bool> {
        let NarrowKey([addresses, rest]) = self.new;
        // The checksum of UDP lies within 8 bytes, that of TCP within 18.
        let (is_tcp, least) = match (rest >> 24) as u8 {
            TCP => (true, 38),
            UDP => (false, 28),
            _ => return None,
        };
        let bytes: &mut [u8; 38] = frame.get_mut(l3..).and_then(<[u8]>::first_chunk_mut)?;
        let fragment = u16::from_be_bytes([bytes[6], bytes[7]]) & 0x3fff != 0;
        let short = !spans(u16::from_be_bytes([bytes[2], bytes[3]]), least);
        if l4 != l3 + 20 || fragment || short {
            return None;
        }
        let (ip, transport) = bytes.split_at_mut(20);
        let ip: &mut [u8; 20] = ip.try_into().ok()?;
        let transport: &mut [u8; 18] = transport.try_into().ok()?;
        [ip[10], ip[11]] = self.deltas.ip.apply(u16::from_be_bytes([ip[10], ip[11]])).to_be_bytes();
        let destination = u32::from_be_bytes([ip[16], ip[17], ip[18], ip[19]]);
        [ip[12], ip[13], ip[14], ip[15], ip[16], ip[17], ip[18], ip[19]] = addresses.to_be_bytes();
        [transport[0], transport[1], transport[2], transport[3]] = ((rest >> 32) as u32).to_be_bytes();
        if is_tcp {
            let sum = u16::from_be_bytes([transport[16], transport[17]]);
            [transport[16], transport[17]] = self.deltas.transport.apply(sum).to_be_bytes();
        } else {
            let sum = u16::from_be_bytes([transport[6], transport[7]]);
            [transport[6], transport[7]] = self.deltas.transport.apply_udp(sum).to_be_bytes();
        }
        Some(destination != addresses as u32)
    }

    #[inline(never)]
    fn apply_any(&self, frame: &mut [u8], l3: usize, l4: usize) -> Result<bool, Truncated> {
        let NarrowKey([_, rest]) = self.new;
        let ports = matches!((rest >> 24) as u8, TCP | UDP | SCTP);
        let whole = be16(frame, l3 + 6).is_some_and(|fragment| fragment & 0x3fff == 0);
        if ports && whole && !Packet::reaches(frame, l3, l4 + 4) {
            return Err(Truncated);
        }
        let (fragment, other_destination) = self.apply_addresses(frame, l3)?;
        let end = l3 + end(frame.get(l3..).unwrap_or_default(), fragment);
        let start = usize::from(fragment & 0x1fff) * 8;
        self.apply_transport(frame.get_mut(..end).unwrap_or_default(), l4, start);
        Ok(other_destination)
    }

    /// Addresses and header checksum; the word with the fragment's place, and whether the destination is
    /// another one.
    #[inline]
    fn apply_addresses(&self, frame: &mut [u8], l3: usize) -> Result<(u16, bool), Truncated> {
        let NarrowKey([addresses, _]) = self.new;
        let header: &mut [u8; 20] = frame.get_mut(l3..).and_then(<[u8]>::first_chunk_mut).ok_or(Truncated)?;
        let [_, _, _, _, _, _, f0, f1, _, _, c0, c1, rest @ ..] = header;
        let [sum0, sum1] = self.deltas.ip.apply(u16::from_be_bytes([*c0, *c1])).to_be_bytes();
        (*c0, *c1) = (sum0, sum1);
        let other = u64::from_be_bytes(*rest) as u32 != addresses as u32;
        *rest = addresses.to_be_bytes();
        Ok((u16::from_be_bytes([*f0, *f1]), other))
    }

    /// The part of the transport header that is there, where the bytes at `l4` are those from `start` on of
    /// the datagram: a multiple of 8, so that no field lies on both sides.
    fn apply_transport(&self, frame: &mut [u8], l4: usize, start: usize) {
        let NarrowKey([_, rest]) = self.new;
        let (protocol, ports) = ((rest >> 24) as u8, ((rest >> 32) as u32).to_be_bytes());
        match protocol {
            TCP | UDP if start == 0 => {
                put(frame, l4, &ports);
            }
            ICMP if start == 0 => {
                if let Some(id) = self.icmp_id {
                    put(frame, l4 + 4, &id.to_be_bytes());
                }
            }
            _ => {}
        }
        if let Some(at) = checksum_at(protocol).and_then(|at| at.checked_sub(start)) {
            self.update(frame, l4 + at, protocol);
        }
        if protocol == ICMP && start == 0 && self.icmp_id == Some(0) {
            put_checksum_of_zeros(frame.get_mut(l4..).unwrap_or_default());
        }
    }

    fn update(&self, frame: &mut [u8], at: usize, protocol: u8) {
        if let Some(old) = be16(frame, at) {
            put(frame, at, &self.updated(old, protocol).to_be_bytes());
        }
    }

    #[inline]
    fn updated(&self, checksum: u16, protocol: u8) -> u16 {
        let transport = &self.deltas.transport;
        match protocol {
            UDP => transport.apply_udp(checksum),
            // Like UDP's it is never sent as 0, but always there (RFC 3828 §3.1).
            UDP_LITE => match transport.apply(checksum) {
                0 => u16::MAX,
                updated => updated,
            },
            _ => transport.apply(checksum),
        }
    }
}

/// Gives an ICMP message of zeros its checksum, 0xffff: an echo reply with identifier and number 0 is one. It
/// is the only message in which a checksum of 0 is wrong, to which an update comes as well (RFC 1624 §3).
/// A message of which no more than zeros is there is right with 0xffff, whatever else belongs to it.
#[cold]
fn put_checksum_of_zeros(message: &mut [u8]) {
    if message.iter().all(|byte| *byte == 0) {
        put(message, ICMP_CHECKSUM, &[0xff; 2]);
    }
}

/// Offset of the checksum in a transport header whose checksum covers fields of a translation. (SCTP's does
/// not cover addresses, and its ports are never changed.)
const fn checksum_at(protocol: u8) -> Option<usize> {
    match protocol {
        TCP => Some(TCP_CHECKSUM),
        UDP | UDP_LITE | DCCP => Some(UDP_CHECKSUM),
        ICMP => Some(ICMP_CHECKSUM),
        _ => None,
    }
}

/// New endpoints of an ICMP error, and of the packet that it quotes (RFC 5508 REQ-4, REQ-5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorRewrite {
    outer: Rewrite,
    quoted: Rewrite,
}

impl ErrorRewrite {
    /// The change of the error's own addresses (keys without ports), and of the quoted packet.
    #[must_use]
    pub fn between(outer: [NarrowKey; 2], quoted: [NarrowKey; 2]) -> Self {
        let [old_outer, new_outer] = outer;
        let [old_quoted, new_quoted] = quoted;
        Self {
            outer: Rewrite::between(old_outer, new_outer),
            quoted: Rewrite::between(old_quoted, new_quoted),
        }
    }

    /// The error's own addresses after it.
    #[must_use]
    pub const fn outer(&self) -> NarrowKey {
        self.outer.endpoints()
    }

    /// The quoted packet's endpoints after it.
    #[must_use]
    pub const fn quoted(&self) -> NarrowKey {
        self.quoted.endpoints()
    }

    /// Returns true if the addresses and ports of the quoted packet are in the first of these packets, which
    /// are an error or its fragments: always, unless an error comes in tiny fragments.
    pub(crate) fn reaches(cx: &Context<'_>, frames: &[Frame]) -> bool {
        let Some(first) = frames.first() else { return true };
        let (l3, quote) = (usize::from(first.info.l3()), usize::from(first.info.l4()) + 8);
        let data = cx.data(first);
        let header = data.get(quote).map_or(60, |first| usize::from(first & 15) * 4);
        let end = be16(data, l3 + 2).map_or(0, |length| l3 + usize::from(length));
        !Flags(first.info.flags()).has(Flags::FRAGMENT) || quote + header + 8 <= end
    }

    /// Rewrites the transport checksum that an error in fragments quotes, if it doesn't come in the first of
    /// them as the ports do, and the error's own checksum by that. [`apply`](Self::apply) does the rest.
    pub(crate) fn apply_apart(&self, cx: &mut Context<'_>, frames: &[Frame]) {
        let Some((first, later)) = frames.split_first().filter(|(_, later)| !later.is_empty()) else {
            return;
        };
        let l4 = usize::from(first.info.l4());
        let quote = cx.data(first).get(l4 + 8..).unwrap_or_default();
        let Ok(ip) = Ip::read(quote) else { return };
        let length = be16(quote, 2).map_or(0, usize::from);
        let Some(at) = checksum_at(ip.protocol).filter(|at| ip.len + at + 2 <= length) else { return };
        let in_message = 8 + ip.len + at;
        for frame in later {
            let (l3, data) = (usize::from(frame.info.l3()), cx.data_mut(frame));
            let fragment = be16(data, l3 + 6).unwrap_or(0);
            let end = l3 + end(data.get(l3..).unwrap_or_default(), fragment);
            let Some(here) = in_message.checked_sub(usize::from(fragment & 0x1fff) * 8) else { return };
            let here = here + usize::from(frame.info.l4());
            let Some(old) = be16(data, here).filter(|_| here + 2 <= end) else { continue };
            let new = self.quoted.updated(old, ip.protocol);
            put(data, here, &new.to_be_bytes());
            let message = cx.data_mut(first);
            if let Some(sum) = be16(message, l4 + 2) {
                put(message, l4 + 2, &Delta::new().word(old, new).apply(sum).to_be_bytes());
            }
            return;
        }
    }

    /// Rewrites the ICMP error at `l3` in `frame`, whose ICMP header is at `l4`: its addresses, the quoted
    /// packet's addresses, ports and checksums as far as they are quoted, and the checksums over all of that.
    /// Returns whether it has another destination address now. A later fragment has the addresses alone.
    ///
    /// # Errors
    /// [`Truncated`], and nothing changed, if the frame ends before the outer IPv4 header.
    pub fn apply(&self, frame: &mut [u8], l3: usize, l4: usize) -> Result<bool, Truncated> {
        let (fragment, other_destination) = self.outer.apply_addresses(frame, l3)?;
        if fragment & 0x1fff != 0 {
            return Ok(other_destination);
        }
        let end = be16(frame, l3 + 2).map_or(0, usize::from);
        let end = if end == 0 { frame.len() } else { frame.len().min(l3 + end) };
        let mut message = Patch { bytes: frame.get_mut(l4..end).unwrap_or_default(), delta: Delta::new() };
        self.patch_quoted(&mut message);
        let Patch { bytes, delta } = message;
        if let Some(old) = be16(bytes, 2) {
            put(bytes, 2, &delta.apply(old).to_be_bytes());
        }
        Ok(other_destination)
    }

    fn patch_quoted(&self, message: &mut Patch<'_>) {
        const AT: usize = 8;
        let quote = message.bytes.get(AT..).unwrap_or_default();
        let Ok(ip) = Ip::read(quote) else { return };
        let length = be16(quote, 2).map_or(0, usize::from);
        let NarrowKey([addresses, rest]) = self.quoted.new;
        for (n, shift) in [48, 32, 16, 0].into_iter().enumerate() {
            message.set(AT + 12 + 2 * n, |_| (addresses >> shift) as u16);
        }
        message.set(AT + 10, |old| self.quoted.deltas.ip.apply(old));
        let l4 = AT + ip.len;
        match ip.protocol {
            TCP | UDP => {
                message.set(l4, |_| (rest >> 48) as u16);
                message.set(l4 + 2, |_| (rest >> 32) as u16);
            }
            ICMP => message.set(l4 + 4, |old| self.quoted.icmp_id.unwrap_or(old)),
            _ => {}
        }
        // Bytes beyond the quoted packet's own end are padding or an extension (RFC 4884).
        if let Some(at) = checksum_at(ip.protocol).filter(|at| ip.len + at + 2 <= length) {
            message.set(l4 + at, |old| self.quoted.updated(old, ip.protocol));
        }
    }
}

/// Bytes that are changed word by word, and what that does to a checksum over them.
struct Patch<'a> {
    bytes: &'a mut [u8],
    delta: Delta,
}

impl Patch<'_> {
    /// Changes the word at an even offset, if it is there.
    fn set(&mut self, at: usize, change: impl FnOnce(u16) -> u16) {
        if let Some(old) = be16(self.bytes, at) {
            let new = change(old);
            put(self.bytes, at, &new.to_be_bytes());
            self.delta = self.delta.word(old, new);
        }
    }
}
