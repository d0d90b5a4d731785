//! IPv4 (RFC 791; DSCP and ECN: RFC 2474, RFC 3168).

use core::net::Ipv4Addr;

use super::{HeaderError, holds, view};
use crate::bytes::{between, byte, put};

mod field {
    pub(super) const VERSION_IHL: usize = 0;
    pub(super) const TOS: usize = 1;
    pub(super) const TOTAL_LENGTH: usize = 2;
    pub(super) const IDENT: usize = 4;
    pub(super) const FRAGMENT: usize = 6;
    pub(super) const TTL: usize = 8;
    pub(super) const PROTOCOL: usize = 9;
    pub(super) const CHECKSUM: usize = 10;
    pub(super) const SRC: usize = 12;
    pub(super) const DST: usize = 16;
    pub(super) const OPTIONS: usize = 20;
}

view! {
    /// An IPv4 packet. The total length is not checked against the bytes: captures may be cut.
    Ipv4, check |bytes| {
        holds(bytes, field::OPTIONS)?;
        let first = byte(bytes, field::VERSION_IHL);
        if first >> 4 != 4 {
            return Err(HeaderError::Version(first >> 4));
        }
        let length = usize::from(first & 15) * 4;
        if length < field::OPTIONS { Err(HeaderError::Length(length)) } else { holds(bytes, length) }
    };
    /// Type of service: DSCP in the upper six bits, ECN in the lower two.
    tos, set_tos: u8 = field::TOS;
    /// Length of header and payload in bytes; 0 in captures of packets that the network card will segment.
    total_length, set_total_length: u16 = field::TOTAL_LENGTH;
    /// Identification of the datagram that fragments belong to.
    ident, set_ident: u16 = field::IDENT;
    /// Time to live, in hops.
    ttl, set_ttl: u8 = field::TTL;
    /// Protocol of the payload.
    protocol, set_protocol: u8 = field::PROTOCOL;
    /// Header checksum.
    checksum, set_checksum: u16 = field::CHECKSUM;
    /// Source address.
    src, set_src: Ipv4Addr = field::SRC;
    /// Destination address.
    dst, set_dst: Ipv4Addr = field::DST;
}

impl<T: AsRef<[u8]>> Ipv4<T> {
    /// Length of the header with options, in bytes.
    pub fn header_len(&self) -> usize {
        usize::from(byte(self.bytes(), field::VERSION_IHL) & 15) * 4
    }

    /// Differentiated services code point, 0 to 63.
    pub fn dscp(&self) -> u8 {
        self.tos() >> 2
    }

    fn fragment(&self) -> u16 {
        crate::bytes::be16(self.bytes(), field::FRAGMENT)
    }

    /// Says that routers must not fragment the packet.
    pub fn dont_fragment(&self) -> bool {
        self.fragment() & 0x4000 != 0
    }

    /// Says that fragments follow this one.
    pub fn more_fragments(&self) -> bool {
        self.fragment() & 0x2000 != 0
    }

    /// The offset of the payload in the payload of the datagram, in bytes.
    pub fn fragment_offset(&self) -> u16 {
        self.fragment() << 3
    }

    /// Says that the packet is a fragment, the first included.
    pub fn is_fragment(&self) -> bool {
        self.fragment() & 0x3fff != 0
    }

    /// The header, with options.
    pub fn header(&self) -> &[u8] {
        between(self.bytes(), 0, self.header_len())
    }

    /// The options.
    pub fn options(&self) -> Ipv4Options<'_> {
        Ipv4Options(between(self.bytes(), field::OPTIONS, self.header_len()))
    }

    /// The payload by total length, without padding, as far as it is there.
    pub fn payload(&self) -> &[u8] {
        between(self.bytes(), self.header_len(), usize::from(self.total_length()))
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Ipv4<T> {
    /// Sets the code point (its low six bits), keeping ECN.
    pub fn set_dscp(&mut self, dscp: u8) {
        let tos = dscp << 2 | self.tos() & 3;
        self.set_tos(tos);
    }

    /// Sets or clears don't-fragment.
    pub fn set_dont_fragment(&mut self, on: bool) {
        let value = if on { self.fragment() | 0x4000 } else { self.fragment() & !0x4000 };
        put(self.bytes_mut(), field::FRAGMENT, &value.to_be_bytes());
    }
}

/// One IPv4 option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Option<'a> {
    /// Copied flag, class and number.
    pub kind: u8,
    /// The bytes that follow the length byte; empty for no-operation (1).
    pub data: &'a [u8],
}

/// The options of an IPv4 header, up to the end-of-options mark. A length that can't be is an error and the
/// last item.
#[derive(Clone, Debug)]
pub struct Ipv4Options<'a>(&'a [u8]);

impl<'a> Iterator for Ipv4Options<'a> {
    type Item = Result<Ipv4Option<'a>, HeaderError>;

    fn next(&mut self) -> Option<Self::Item> {
        next_option(&mut self.0).map(|found| found.map(|(kind, data)| Ipv4Option { kind, data }))
    }
}

/// Takes an option off a list in the encoding that IPv4 and TCP share: 0 ends the list, 1 stands alone, any
/// other kind has a length that counts kind, length and data.
pub(super) fn next_option<'a>(list: &mut &'a [u8]) -> Option<Result<(u8, &'a [u8]), HeaderError>> {
    let (&kind, rest) = list.split_first()?;
    match (kind, rest) {
        (0, _) => {
            *list = &[];
            None
        }
        (1, _) => {
            *list = rest;
            Some(Ok((1, &[])))
        }
        (_, [length, ..]) => {
            let length = usize::from(*length);
            match (list.get(2..length), list.get(length..)) {
                (Some(data), Some(rest)) => {
                    *list = rest;
                    Some(Ok((kind, data)))
                }
                _ => {
                    let have = list.len();
                    *list = &[];
                    let truncated = HeaderError::Truncated { needed: length, have };
                    Some(Err(if length < 2 { HeaderError::Length(length) } else { truncated }))
                }
            }
        }
        (_, []) => {
            *list = &[];
            Some(Err(HeaderError::Truncated { needed: 2, have: 1 }))
        }
    }
}
