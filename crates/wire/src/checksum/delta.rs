//! Incremental update of a checksum (RFC 1624, equation 3): HC' = ~(~HC + ~m + m').

use core::net::IpAddr;

use super::fold;

/// The change that rewritten fields make to a checksum. Fields must lie at even offsets of what the checksum
/// covers: take a single byte together with its neighbour.
///
/// ```
/// use slipstream_wire::checksum::{Delta, checksum};
///
/// let mut header = *b"\x45\x00\x00\x1c\x00\x00\x00\x00\x40\x11\x00\x00\x0a\x00\x00\x01\x0a\x00\x00\x02";
/// let before = checksum(&header);
/// let delta = Delta::new().word(0x4011, 0x3f11).double_word(0x0a00_0002, 0xc0a8_0101);
/// header[8] = 0x3f;
/// header[16..].copy_from_slice(&[192, 168, 1, 1]);
/// assert_eq!(delta.apply(before), checksum(&header));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delta(u64);

impl Delta {
    /// No change.
    #[must_use]
    pub const fn new() -> Self {
        Self(0)
    }

    /// A 16-bit field changes from `old` to `new`.
    #[inline]
    #[must_use]
    pub const fn word(self, old: u16, new: u16) -> Self {
        Self(self.0 + !old as u64 + new as u64)
    }

    /// A 32-bit field changes from `old` to `new`.
    #[inline]
    #[must_use]
    pub const fn double_word(self, old: u32, new: u32) -> Self {
        self.word((old >> 16) as u16, (new >> 16) as u16).word(old as u16, new as u16)
    }

    /// 16 bytes change from `old` to `new`.
    #[inline]
    #[must_use]
    pub fn bytes16(mut self, old: [u8; 16], new: [u8; 16]) -> Self {
        for (old, new) in old.as_chunks::<2>().0.iter().zip(new.as_chunks::<2>().0) {
            self = self.word(u16::from_be_bytes(*old), u16::from_be_bytes(*new));
        }
        self
    }

    /// An address changes from `old` to `new`; they may be of different IP versions, as the addresses of a
    /// pseudo-header are when a packet is translated.
    #[must_use]
    pub fn address(self, old: IpAddr, new: IpAddr) -> Self {
        match (old, new) {
            (IpAddr::V4(old), IpAddr::V4(new)) => self.double_word(old.to_bits(), new.to_bits()),
            (old, new) => self.bytes16(octets(old), octets(new)),
        }
    }

    /// The same change, added up once for many packets.
    #[inline]
    #[must_use]
    pub const fn folded(self) -> FoldedDelta {
        FoldedDelta(fold(self.0))
    }

    /// The updated checksum of an IP header, TCP or ICMP. It equals the recomputed one if `checksum` was
    /// right, unless all that it covers becomes zero: the checksum of that is 0xffff, and this gives 0. No IP
    /// header and no pseudo-header is zero, but an ICMP echo reply may be.
    #[inline]
    #[must_use]
    pub const fn apply(self, checksum: u16) -> u16 {
        if self.0 == 0 { checksum } else { !fold(self.0 + !checksum as u64) }
    }

    /// The updated checksum of UDP: 0 means that there is none and stays 0; a sum that comes to 0 is sent as
    /// 0xffff.
    #[inline]
    #[must_use]
    pub const fn apply_udp(self, checksum: u16) -> u16 {
        as_udp(checksum, self.apply(checksum))
    }
}

/// A [`Delta`] that is applied to many packets: its sum in 16 bits, so that one end-around carry is all that
/// is left to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FoldedDelta(u16);

impl FoldedDelta {
    /// As [`Delta::apply`].
    #[inline]
    #[must_use]
    pub const fn apply(self, checksum: u16) -> u16 {
        let (sum, carry) = self.0.overflowing_add(!checksum);
        !(sum + carry as u16)
    }

    /// As [`Delta::apply_udp`].
    #[inline]
    #[must_use]
    pub const fn apply_udp(self, checksum: u16) -> u16 {
        as_udp(checksum, self.apply(checksum))
    }
}

/// An updated checksum as UDP writes it: one that was 0 stays 0, and one that comes to 0 is 0xffff.
#[inline]
const fn as_udp(checksum: u16, updated: u16) -> u16 {
    match (checksum, updated) {
        (0, _) => 0,
        (_, 0) => 0xffff,
        (_, updated) => updated,
    }
}

/// An IPv4 address in the last four of 16 bytes: zeros add nothing to a sum.
fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()).to_be_bytes(),
        IpAddr::V6(v6) => v6.octets(),
    }
}
