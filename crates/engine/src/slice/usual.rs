//! The packets that fill a link, sliced and spliced at fixed offsets: untagged Ethernet, IPv4 without options, TCP or UDP, no
//! fragment, nothing behind the IP packet, to one destination. Whatever this declines goes the general way, which does the
//! same to every packet, byte for byte and count for count.

use slipstream_wire::protocol::{TCP, UDP};

use super::DSCP_SLICED;
use super::layout::{folded, token_before};
use super::payload_table::{Found, Pair, Parked, PayloadTable, Transport};
use super::slicer::Slicer;
use super::splicer::Splicer;
use super::token::{TOKEN_LEN, Token};
use crate::pool::SHORT;
use crate::time::Nanos;

/// Where the headers stand.
const L3: usize = 14;
const L4: usize = L3 + 20;
/// Bytes that the shortest such packet has: a sliced UDP packet.
const LEAST: usize = L4 + 8 + TOKEN_LEN;
/// Where a TCP header ends that has no options.
pub(super) const TCP_END: usize = L4 + 20;

/// What is read of such a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usual {
    tcp: bool,
    /// Where its payload begins, and where its IP packet ends.
    payload: usize,
    end: usize,
}

/// How it is cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct UsualCut {
    packet: Usual,
    /// Where the payload that is parked begins.
    pub(super) at: usize,
    /// Bytes that are parked.
    pub(super) parked: usize,
}

/// Two bytes of a header, as a number.
#[inline(always)]
fn be(high: u8, low: u8) -> u16 {
    u16::from_be_bytes([high, low])
}

/// The first bytes of a packet as far as they must be such a packet's; its TOS.
#[inline(always)]
fn tos(head: &[u8; L4]) -> Option<u8> {
    let start = u32::from_be_bytes([head[12], head[13], head[14], head[15]]);
    (start >> 8 == 0x08_0045).then_some(start as u8)
}

impl Usual {
    #[inline(always)]
    fn read(head: &[u8; LEAST]) -> Option<Self> {
        let middle = u32::from_be_bytes([head[20], head[21], head[22], head[23]]);
        if middle & 0x3fff_0000 != 0 {
            return None;
        }
        let length = usize::from(be(head[16], head[17]));
        let (tcp, header) = match middle as u8 {
            TCP => (true, usize::from(head[46] >> 4) * 4),
            UDP if usize::from(be(head[38], head[39])) + 20 == length => (false, 8),
            _ => return None,
        };
        let (payload, end) = (L4 + header, L3 + length);
        ((header >= 20 || !tcp) && payload <= end).then_some(Self { tcp, payload, end })
    }

    #[inline(always)]
    fn kind(&self) -> Transport {
        if self.tcp { Transport::Tcp } else { Transport::Udp }
    }
}

/// A packet too short to be sliced goes on as it is, unless it could be taken for a sliced one: then `false`, and the
/// general way has to look. `keyed`: whether that could be so without the mark.
#[inline(always)]
pub(super) fn passes(table: &PayloadTable, packet: &[u8], keyed: bool) -> bool {
    let Some(head) = packet.first_chunk::<L4>() else { return false };
    if tos(head).is_none_or(|tos| tos >> 2 == DSCP_SLICED) {
        return false;
    }
    let end = L3 + usize::from(be(head[16], head[17]));
    // An IP packet that can't be so long, or is not wholly there, ends in no token.
    !keyed
        || end < L4
        || token_before(packet, end).is_none_or(|token| !(table.names_one(token) && table.is_ours(token)))
}

impl Slicer {
    /// How a packet is cut that this knows to cut.
    #[inline(always)]
    pub(super) fn cut_usual(&self, packet: &[u8]) -> Option<UsualCut> {
        let head: &[u8; LEAST] = packet.first_chunk::<SHORT>()?.first_chunk()?;
        tos(head.first_chunk()?)?;
        let usual = Usual::read(head)?;
        // To many: by an Ethernet group, or IPv4 from 224 on.
        if usual.end != packet.len() || head[0] & 1 != 0 || head[30] >= 224 {
            return None;
        }
        let parked = self.parks((usual.end - usual.payload) as u32) as usize;
        let at = usual.end - parked;
        // Sums are of words of four bytes.
        let known =
            parked != 0 && parked <= self.most && at + TOKEN_LEN <= SHORT && (at - L4).is_multiple_of(4);
        known.then_some(UsualCut { packet: usual, at, parked })
    }
}

/// A ones' complement sum's four bytes, as the machine has them.
#[inline(always)]
fn word(a: u8, b: u8, c: u8, d: u8) -> u64 {
    u64::from(u32::from_ne_bytes([a, b, c, d]))
}

/// End-around carries of a sum of at most a few words.
#[inline(always)]
fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// A checksum after two words changed (RFC 1624, equation 3).
#[inline(always)]
fn changed(checksum: u16, [(a, b), (c, d)]: [(u16, u16); 2]) -> u16 {
    !fold(u32::from(!checksum) + u32::from(!a) + u32::from(b) + u32::from(!c) + u32::from(d))
}

impl UsualCut {
    /// Bytes of the sliced frame.
    #[inline(always)]
    pub(super) fn sliced_len(&self) -> usize {
        self.at + TOKEN_LEN
    }

    /// What the headers become, and what is remembered of them; `f` is what the packet begins with.
    #[inline(always)]
    pub(super) fn headers(&self, f: &[u8; SHORT], token: Token) -> (Fields, Parked) {
        let (Self { at, parked, packet }, end) = (*self, self.sliced_len());
        let (first, old, length) = (be(f[14], f[15]), be(f[16], f[17]), (end - L3) as u16);
        let marked = first & 0xff03 | u16::from(DSCP_SLICED) << 2;
        let mut ip = Pair { whole: be(f[24], f[25]), sliced: 0 };
        ip.sliced = changed(ip.whole, [(first, marked), (old, length)]);

        let covered = (end - L4) as u16;
        let length_word = u64::from(covered.to_be());
        let [a, b, c, d, e, g, h, i] = token.to_bytes();
        let mut sum = word(a, b, c, d) + word(e, g, h, i);
        // The pseudo-header, and what stands before the checksum.
        sum += word(f[26], f[27], f[28], f[29]) + word(f[30], f[31], f[32], f[33]);
        sum += word(0, f[23], 0, 0) + length_word + word(f[34], f[35], f[36], f[37]);
        let (whole, rest) = if packet.tcp {
            sum += word(f[38], f[39], f[40], f[41]) + word(f[42], f[43], f[44], f[45]);
            sum += word(f[46], f[47], f[48], f[49]) + word(f[52], f[53], 0, 0);
            (be(f[50], f[51]), f.get(L4 + 20..at))
        } else {
            sum += length_word;
            (be(f[40], f[41]), f.get(L4 + 8..at))
        };
        for &[a, b, c, d] in rest.unwrap_or_default().as_chunks().0 {
            sum += word(a, b, c, d);
        }
        let sliced = match folded(sum) {
            _ if whole == 0 && !packet.tcp => 0,
            0 if !packet.tcp => 0xffff,
            sliced => sliced,
        };

        let parked = Parked {
            len: parked as u16,
            at: at as u16,
            rest: (end - packet.payload) as u16,
            trailer: 0,
            transport: Pair { whole, sliced },
            ip,
            dscp: (first as u8) >> 2,
            kind: packet.kind(),
        };
        let tos = marked as u8;
        (Fields { tos, length, ip: ip.sliced, transport: sliced, tcp: packet.tcp }, parked)
    }
}

/// The fields of the headers that slicing changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields {
    tos: u8,
    /// Of the IP packet, in bytes.
    length: u16,
    /// Checksums.
    ip: u16,
    transport: u16,
    tcp: bool,
}

impl Fields {
    /// Writes them.
    #[inline(always)]
    pub(super) fn put(self, f: &mut [u8; TCP_END]) {
        f[15] = self.tos;
        [f[16], f[17]] = self.length.to_be_bytes();
        [f[24], f[25]] = self.ip.to_be_bytes();
        if self.tcp {
            [f[50], f[51]] = self.transport.to_be_bytes();
        } else {
            [f[38], f[39]] = (self.length - 20).to_be_bytes();
            [f[40], f[41]] = self.transport.to_be_bytes();
        }
    }
}

/// Writes a token.
#[inline(always)]
pub(super) fn put_token(packet: &mut [u8], at: usize, token: Token) {
    if let Some(place) = packet.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        *place = token.to_bytes();
    }
}

/// A sliced packet whose payload was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct UsualJoin {
    pub(super) found: Found,
    /// Where its payload goes.
    pub(super) at: usize,
    pub(super) fields: Fields,
}

impl Splicer {
    /// The payload of a packet that this knows to join.
    #[inline(always)]
    pub(super) fn join_usual(&self, table: &PayloadTable, packet: &[u8], now: Nanos) -> Option<UsualJoin> {
        let head: &[u8; LEAST] = packet.first_chunk()?;
        tos(head.first_chunk()?).filter(|tos| tos >> 2 == DSCP_SLICED)?;
        let usual = Usual::read(head)?;
        let token = token_before(packet, usual.end)?;
        let found = table.find(token, now).ok()?;
        let (parked, at) = (&found.parked, usual.end.checked_sub(TOKEN_LEN)?);
        let same = parked.kind == usual.kind()
            && usize::from(parked.at) == at
            && usize::from(parked.rest) == usual.end - usual.payload
            && parked.trailer == 0
            && parked.len != 0
            // What is repaired is there.
            && at + usize::from(parked.len) >= TCP_END
            && at - L3 + usize::from(parked.len) <= self.mtu
            // A checksum that the function made itself.
            && (usual.tcp || parked.transport.whole != 0 || (head[40], head[41]) == (0, 0));
        if !same {
            return None;
        }
        let (first, old) = (be(head[14], head[15]), be(head[16], head[17]));
        let length = (at - L3) as u16 + parked.len;
        let unmarked = first & 0xff03 | u16::from(parked.dscp) << 2;
        let ip = match be(head[24], head[25]) {
            left if left == parked.ip.sliced => parked.ip.whole,
            left => changed(left, [(first, unmarked), (old, length)]),
        };
        let transport = if usual.tcp {
            let &[.., a, b, _, _] = packet.first_chunk::<TCP_END>()?;
            restored(be(a, b), parked.transport, false)
        } else {
            match be(head[40], head[41]) {
                0 => 0,
                left => restored(left, parked.transport, true),
            }
        };
        let fields = Fields { tos: unmarked as u8, length, ip, transport, tcp: usual.tcp };
        Some(UsualJoin { found, at, fields })
    }
}

/// A checksum as it came, where the function left that of the sliced packet; else changed by as much.
#[inline(always)]
fn restored(left: u16, Pair { whole, sliced }: Pair, udp: bool) -> u16 {
    if left == sliced {
        return whole;
    }
    match !fold(u32::from(!left) + u32::from(sliced) + u32::from(!whole)) {
        0 if udp => 0xffff,
        value => value,
    }
}

impl UsualJoin {
    /// Bytes of the whole frame.
    #[inline(always)]
    pub(super) fn whole_len(&self) -> usize {
        self.at + usize::from(self.found.parked.len)
    }
}
