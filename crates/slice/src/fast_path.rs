//! The packets that fill a link, sliced and spliced at fixed offsets: untagged Ethernet, IPv4 without
//! options, TCP or UDP, no fragment, nothing behind the IP packet, to one destination. Whatever this declines
//! takes the general path, which does the same to every packet, byte for byte and count for count.

use slipstream_wire::protocol::{TCP, UDP};

use super::DSCP_SLICED;
use super::hidden::is_tunnel_port;
use super::layout::{carry, folded, token_before};
use super::parked::{Pair, Parked, Transport};
use super::payload_table::PayloadTable;
use super::slicer::Slicer;
use super::splicer::Splicer;
use super::token::{TOKEN_LEN, Token};
use slipstream_core::pool::SHORT;
use slipstream_core::time::Nanos;

/// Offsets of the headers.
const L3: usize = 14;
const L4: usize = L3 + 20;
/// Bytes that the shortest such packet has: a sliced UDP packet.
const LEAST: usize = L4 + 8 + TOKEN_LEN;
/// End of a TCP header without options.
pub(super) const TCP_END: usize = L4 + 20;

/// The fields that are read of such a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct FastHeaders {
    start: Start,
    tcp: bool,
    /// Start of its payload, and end of its IP packet.
    payload: usize,
    end: usize,
}

/// The first four bytes of an IPv4 header: version, length of the header, TOS, and bytes of the packet.
#[derive(Clone, Copy, Debug)]
struct Start(u32);

impl Start {
    /// That of an untagged Ethernet frame, if it is one of IPv4 without options.
    #[inline(always)]
    fn read(f: &[u8; L4]) -> Option<Self> {
        let types = u64::from_be_bytes([f[12], f[13], f[14], f[15], f[16], f[17], f[18], f[19]]);
        (types >> 40 == 0x08_0045).then_some(Self((types >> 16) as u32))
    }

    /// All but the length.
    #[inline(always)]
    fn first(self) -> u16 {
        (self.0 >> 16) as u16
    }

    #[inline(always)]
    fn length(self) -> u16 {
        self.0 as u16
    }

    #[inline(always)]
    fn dscp(self) -> u8 {
        (self.0 >> 18) as u8 & 0x3f
    }

    /// With another DSCP and length.
    #[inline(always)]
    fn with(self, dscp: u8, length: u16) -> Self {
        Self(self.0 & 0xff03_0000 | u32::from(dscp) << 18 | u32::from(length))
    }
}

/// The cut of such a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct FastCut {
    packet: FastHeaders,
    /// Start of the payload that is parked.
    pub(super) at: usize,
    /// Bytes that are parked.
    pub(super) parked: usize,
}

/// Two bytes of a header, as a number.
#[inline(always)]
fn be(high: u8, low: u8) -> u16 {
    u16::from_be_bytes([high, low])
}

impl FastHeaders {
    #[inline(always)]
    fn read(head: &[u8; LEAST]) -> Option<Self> {
        let start = Start::read(head.first_chunk()?)?;
        let middle = u32::from_be_bytes([head[20], head[21], head[22], head[23]]);
        if middle & 0x3fff_0000 != 0 {
            return None;
        }
        let length = usize::from(start.length());
        let (tcp, header) = match middle as u8 {
            TCP => (true, usize::from(head[46] >> 4) * 4),
            UDP if usize::from(be(head[38], head[39])) + 20 == length => (false, 8),
            _ => return None,
        };
        let (payload, end) = (L4 + header, L3 + length);
        ((header >= 20 || !tcp) && payload <= end).then_some(Self { start, tcp, payload, end })
    }

    #[inline(always)]
    fn kind(&self) -> Transport {
        if self.tcp { Transport::Tcp } else { Transport::Udp }
    }
}

/// A packet too short to be sliced goes on as it is, unless it could be taken for a sliced one, or may hold
/// another packet that could: then `false`, and the general way has to look. `keyed`: whether that could be
/// so without the mark.
#[inline(always)]
pub(super) fn passes(table: &PayloadTable, packet: &[u8], keyed: bool) -> bool {
    let Some(head) = packet.first_chunk::<L4>() else { return false };
    let Some(start) = Start::read(head).filter(|start| start.dscp() != DSCP_SLICED) else { return false };
    if !keyed {
        return true;
    }
    let end = L3 + usize::from(start.length());
    let plain = head[23] == TCP || head[23] == UDP && !has_tunnel_port(packet);
    // An IP packet that can't be so long, or is not wholly there, ends in no token.
    let no_token = end < L4
        || token_before(packet, end).is_none_or(|token| !(table.names_one(token) && table.is_ours(token)));
    plain && no_token
}

/// Returns true if the destination port of a UDP packet is one of tunnels.
#[inline(always)]
fn has_tunnel_port(packet: &[u8]) -> bool {
    packet.first_chunk::<38>().is_none_or(|head| is_tunnel_port(be(head[36], head[37])))
}

impl Slicer {
    /// Finds the cut of a packet, if it is of a kind that this handles.
    #[inline(always)]
    pub(super) fn cut_fast(&self, packet: &[u8]) -> Option<FastCut> {
        let head: &[u8; LEAST] = packet.first_chunk::<SHORT>()?.first_chunk()?;
        let headers = FastHeaders::read(head)?;
        let too_long = usize::from(headers.start.length()) > self.functions_mtu;
        // To many: by an Ethernet group, or IPv4 from 224 on.
        if headers.end != packet.len() || head[0] & 1 != 0 || head[30] >= 224 || too_long {
            return None;
        }
        let parked = self.parks((headers.end - headers.payload) as u32) as usize;
        let at = headers.end - parked;
        // Sums are of words of four bytes.
        let known =
            parked != 0 && parked <= self.most && at + TOKEN_LEN <= SHORT && (at - L4).is_multiple_of(4);
        known.then_some(FastCut { packet: headers, at, parked })
    }
}

/// Four bytes of a ones' complement sum, as the machine has them.
#[inline(always)]
fn four<const AT: usize>(f: &[u8; SHORT]) -> u64 {
    f.get(AT..).and_then(<[u8]>::first_chunk).map_or(0, |w| u64::from(u32::from_ne_bytes(*w)))
}

/// Eight of them.
#[inline(always)]
fn eight<const AT: usize>(f: &[u8; SHORT]) -> u64 {
    f.get(AT..).and_then(<[u8]>::first_chunk).map_or(0, |w| u64::from_ne_bytes(*w))
}

/// Of four bytes as the machine has them, the last two.
const LAST_TWO: u64 = u32::from_ne_bytes([0, 0, 0xff, 0xff]) as u64;

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

impl FastCut {
    /// Returns true if the packet may be one of a tunnel.
    #[inline(always)]
    pub(super) fn may_be_tunnel(&self, packet: &[u8]) -> bool {
        !self.packet.tcp && has_tunnel_port(packet)
    }

    /// Bytes of the sliced frame.
    #[inline(always)]
    pub(super) fn sliced_len(&self) -> usize {
        self.at + TOKEN_LEN
    }

    /// Computes the headers of the sliced packet, and the record of the old ones; `f` is the start of the
    /// packet.
    #[inline(always)]
    pub(super) fn headers(&self, f: &[u8; SHORT], token: Token) -> (Fields, Parked) {
        let (Self { at, parked, packet }, end) = (*self, self.sliced_len());
        let start = packet.start;
        let (first, old, length) = (start.first(), start.length(), (end - L3) as u16);
        let marked = start.with(DSCP_SLICED, length);
        let mut ip = Pair { whole: be(f[24], f[25]), sliced: 0 };
        ip.sliced = changed(ip.whole, [(first, marked.first()), (old, length)]);

        let covered = u64::from(((end - L4) as u16).to_be());
        let protocol = u64::from(u16::from(if packet.tcp { TCP } else { UDP }).to_be());
        // The pseudo-header and the transport header without its checksum.
        let (whole, few, words, rest) = if packet.tcp {
            let words = carry(eight::<34>(f), eight::<42>(f));
            (be(f[50], f[51]), four::<50>(f) & LAST_TWO, words, f.get(L4 + 20..at))
        } else {
            // Its length is that of the sliced packet.
            (be(f[40], f[41]), covered, four::<34>(f), f.get(L4 + 8..at))
        };
        let few = rest
            .unwrap_or_default()
            .as_chunks()
            .0
            .iter()
            .fold(few + protocol + covered, |sum, w| sum + u64::from(u32::from_ne_bytes(*w)));
        let words = carry(carry(words, eight::<26>(f)), u64::from_ne_bytes(token.to_bytes()));
        let sliced = match folded(carry(words, few)) {
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
            dscp: start.dscp(),
            kind: packet.kind(),
        };
        (Fields { start: marked, ip: ip.sliced, transport: sliced, tcp: packet.tcp }, parked)
    }
}

/// The fields of the headers that slicing changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields {
    start: Start,
    /// Checksums.
    ip: u16,
    transport: u16,
    tcp: bool,
}

impl Fields {
    /// Writes them.
    #[inline(always)]
    pub(super) fn put(self, f: &mut [u8; TCP_END]) {
        [f[14], f[15], f[16], f[17]] = self.start.0.to_be_bytes();
        [f[24], f[25]] = self.ip.to_be_bytes();
        if self.tcp {
            [f[50], f[51]] = self.transport.to_be_bytes();
        } else {
            [f[38], f[39]] = (self.start.length() - 20).to_be_bytes();
            [f[40], f[41]] = self.transport.to_be_bytes();
        }
    }
}

/// Writes a token; returns what stood there, for [`put_back`].
#[inline(always)]
pub(super) fn put_token(packet: &mut [u8], at: usize, token: Token) -> u64 {
    match packet.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        Some(place) => u64::from_ne_bytes(std::mem::replace(place, token.to_bytes())),
        None => 0,
    }
}

/// Writes what stood where a token stands.
#[inline(always)]
pub(super) fn put_back(packet: &mut [u8], at: usize, start: u64) {
    if let Some(place) = packet.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        *place = start.to_ne_bytes();
    }
}

/// A sliced packet whose payload was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct FastJoin {
    /// The entry that its payload is of.
    pub(super) entry: u32,
    /// Offset that its payload goes to, and the payload's length.
    pub(super) at: usize,
    pub(super) len: u16,
    /// The DSCP that it came with.
    pub(super) dscp: u8,
    pub(super) fields: Fields,
}

impl Splicer {
    /// The payload of a packet that this knows to join.
    #[inline(always)]
    pub(super) fn join_fast(&self, table: &PayloadTable, packet: &[u8], now: Nanos) -> Option<FastJoin> {
        let head: &[u8; LEAST] = packet.first_chunk()?;
        let headers = FastHeaders::read(head).filter(|headers| headers.start.dscp() == DSCP_SLICED)?;
        let token = token_before(packet, headers.end)?;
        let (entry, parked) = table.waits(token, now)?;
        let at = headers.end.checked_sub(TOKEN_LEN)?;
        let same = parked.kind == headers.kind()
            && usize::from(parked.at) == at
            && usize::from(parked.rest) == headers.end - headers.payload
            && parked.trailer == 0
            && parked.len != 0
            // The header that is repaired is there.
            && at + usize::from(parked.len) >= TCP_END
            && at - L3 + usize::from(parked.len) <= self.mtu
            // A checksum that the function made itself.
            && (headers.tcp || parked.transport.whole != 0 || (head[40], head[41]) == (0, 0));
        if !same {
            return None;
        }
        let start = headers.start;
        let length = (at - L3) as u16 + parked.len;
        let unmarked = start.with(parked.dscp, length);
        let ip = match be(head[24], head[25]) {
            left if left == parked.ip.sliced => parked.ip.whole,
            left => changed(left, [(start.first(), unmarked.first()), (start.length(), length)]),
        };
        let transport = if headers.tcp {
            let &[.., a, b, _, _] = packet.first_chunk::<TCP_END>()?;
            restored(be(a, b), parked.transport, false)
        } else {
            match be(head[40], head[41]) {
                0 => 0,
                left => restored(left, parked.transport, true),
            }
        };
        let fields = Fields { start: unmarked, ip, transport, tcp: headers.tcp };
        Some(FastJoin { entry, at, len: parked.len, dscp: parked.dscp, fields })
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

impl FastJoin {
    /// Bytes of the whole frame.
    #[inline(always)]
    pub(super) fn whole_len(&self) -> usize {
        self.at + usize::from(self.len)
    }
}
