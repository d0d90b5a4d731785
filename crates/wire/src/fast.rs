//! Fast paths for the frames that fill a link: Ethernet with at most one VLAN tag, IPv4 without options or
//! IPv6 without extension headers, TCP or UDP, no fragment. Each makes one length check, then reads words at
//! fixed offsets. Whatever they decline goes to [`classify_reference`], with which they agree on every frame.

use crate::key::{FlowKey, NarrowKey, VlanStack};
use crate::protocol::{ETHERTYPE_IPV6, TCP, UDP};
use crate::{Flags, Headers, LinkType, Skip, classify_reference};

/// IPv4 without options, and as much of TCP as [`Flags::TCP`] asks for.
const IPV4_TCP: usize = 20 + 14;

/// Untagged Ethernet and as much of IPv4.
pub(crate) const UNTAGGED: usize = 14 + IPV4_TCP;

/// Untagged Ethernet, IPv4.
#[inline(always)]
pub(crate) fn untagged(frame: &[u8; UNTAGGED]) -> Option<Headers> {
    if word(frame, 12)? & 0x00ff_ffff != 0x45_0008 {
        return None;
    }
    ipv4(frame.last_chunk()?, 14, 0)
}

/// Four bytes from `at` on, the first the lowest: one load, where bytes put together are several if not all
/// of them are used.
#[inline(always)]
fn word<const N: usize>(bytes: &[u8; N], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word))
}

/// `tag` as in word 1 of a narrow key. The caller has checked version and header length.
#[inline(always)]
fn ipv4(ip: &[u8; IPV4_TCP], l3: u16, tag: u64) -> Option<Headers> {
    let middle = word(ip, 6)?;
    let protocol = (middle >> 24) as u8;
    if middle & 0xff3f != 0 || (protocol != TCP && protocol != UDP) {
        return None;
    }
    let addresses = u64::from_be_bytes([ip[12], ip[13], ip[14], ip[15], ip[16], ip[17], ip[18], ip[19]]);
    let ports = u32::from_be_bytes([ip[20], ip[21], ip[22], ip[23]]);
    let rest = u64::from(ports) << 32 | u64::from(protocol) << 24 | tag;
    Some(headers(FlowKey::Narrow(NarrowKey([addresses, rest])), l3, l3 + 20, 0, protocol, ip[33], ip[1]))
}

/// Frames that are not [`untagged`]: one VLAN tag over IPv4, short UDP, IPv6, and then everything.
#[inline(never)]
pub(crate) fn uncommon(frame: &[u8]) -> Result<Headers, Skip> {
    if let Some(headers) = tagged(frame).or_else(|| ipv6(frame)).or_else(|| short(frame)) {
        return Ok(headers);
    }
    classify_reference(LinkType::Ethernet, frame)
}

/// Ethernet with one IEEE 802.1Q tag, IPv4.
#[inline]
fn tagged(frame: &[u8]) -> Option<Headers> {
    let bytes: &[u8; 18 + IPV4_TCP] = frame.first_chunk()?;
    let tag = u32::from_be_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]);
    let start = u32::from_be_bytes([bytes[16], bytes[17], bytes[18], bytes[19]]);
    if tag >> 16 != 0x8100 || start >> 8 != 0x08_0045 {
        return None;
    }
    let ip: &[u8; IPV4_TCP] = bytes.last_chunk()?;
    ipv4(ip, 18, 1 << 12 | u64::from(tag & 0xfff))
}

/// A UDP frame without padding, or with a capture length that ends soon after the ports: untagged IPv4, 38 to
/// 47 bytes.
#[inline]
fn short(frame: &[u8]) -> Option<Headers> {
    let bytes: &[u8; 38] = frame.first_chunk()?;
    let start = u32::from_be_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]);
    if start >> 8 != 0x08_0045 || bytes[23] != UDP {
        return None;
    }
    let mut ip = [0; IPV4_TCP];
    ip[..24].copy_from_slice(&bytes[14..]);
    ipv4(&ip, 14, 0)
}

/// Untagged Ethernet, IPv6.
#[inline]
fn ipv6(frame: &[u8]) -> Option<Headers> {
    let bytes: &[u8; 14 + 40 + 14] = frame.first_chunk()?;
    let ip: &[u8; 54] = bytes.last_chunk()?;
    let protocol = ip[6];
    let version = ip[0] >> 4;
    if u16::from_be_bytes([bytes[12], bytes[13]]) != ETHERTYPE_IPV6
        || version != 6
        || (protocol != TCP && protocol != UDP)
    {
        return None;
    }
    let word = |at: [u8; 8]| -> u64 { u64::from_be_bytes(at) };
    let src = [
        word([ip[8], ip[9], ip[10], ip[11], ip[12], ip[13], ip[14], ip[15]]),
        word([ip[16], ip[17], ip[18], ip[19], ip[20], ip[21], ip[22], ip[23]]),
    ];
    let dst = [
        word([ip[24], ip[25], ip[26], ip[27], ip[28], ip[29], ip[30], ip[31]]),
        word([ip[32], ip[33], ip[34], ip[35], ip[36], ip[37], ip[38], ip[39]]),
    ];
    let ports = u32::from_be_bytes([ip[40], ip[41], ip[42], ip[43]]);
    let key = FlowKey::pack_v6(&VlanStack::default(), src, dst, protocol, ports);
    let tos = ip[0] << 4 | ip[1] >> 4;
    Some(headers(key, 14, 54, Flags::IPV6, protocol, ip[53], tos))
}

#[inline(always)]
fn headers(key: FlowKey, l3: u16, l4: u16, flags: u8, protocol: u8, tcp_flags: u8, tos: u8) -> Headers {
    let tcp = u8::from(protocol == TCP);
    Headers {
        key,
        l3,
        l4,
        flags: Flags(flags | Flags::PORTS | (tcp * Flags::TCP)),
        tcp_flags: tcp_flags & tcp.wrapping_neg(),
        tos,
    }
}
