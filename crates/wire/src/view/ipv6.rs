//! IPv6 (RFC 8200) and its extension headers.

use core::net::Ipv6Addr;

use super::{HeaderError, holds, view};
use crate::bytes::{be16, between, byte, put};
use crate::general::MAX_EXTENSIONS;
use crate::protocol::is_extension;
use crate::protocol::{AH, FRAGMENT};

mod field {
    pub(super) const VERSION_CLASS: usize = 0;
    pub(super) const CLASS_FLOW: usize = 1;
    pub(super) const PAYLOAD_LENGTH: usize = 4;
    pub(super) const NEXT_HEADER: usize = 6;
    pub(super) const HOP_LIMIT: usize = 7;
    pub(super) const SRC: usize = 8;
    pub(super) const DST: usize = 24;
    pub(super) const HEADER: usize = 40;

    pub(super) const FRAGMENT_OFFSET: usize = 2;
}

view! {
    /// An IPv6 packet. The payload length is not checked against the bytes: captures may be cut.
    Ipv6, check |bytes| {
        holds(bytes, field::HEADER)?;
        let version = byte(bytes, field::VERSION_CLASS) >> 4;
        if version == 6 { Ok(()) } else { Err(HeaderError::Version(version)) }
    };
    /// Length of what follows the fixed header, in bytes; 0 for jumbograms.
    payload_length, set_payload_length: u16 = field::PAYLOAD_LENGTH;
    /// The type of the header that follows the fixed one: an extension header or the transport protocol.
    next_header, set_next_header: u8 = field::NEXT_HEADER;
    /// Hops left.
    hop_limit, set_hop_limit: u8 = field::HOP_LIMIT;
    /// Source address.
    src, set_src: Ipv6Addr = field::SRC;
    /// Destination address.
    dst, set_dst: Ipv6Addr = field::DST;
}

impl<T: AsRef<[u8]>> Ipv6<T> {
    /// Traffic class: DSCP in the upper six bits, ECN in the lower two.
    pub fn traffic_class(&self) -> u8 {
        (be16(self.bytes(), field::VERSION_CLASS) >> 4) as u8
    }

    /// Differentiated services code point, 0 to 63.
    pub fn dscp(&self) -> u8 {
        self.traffic_class() >> 2
    }

    /// Flow label, 20 bits.
    pub fn flow_label(&self) -> u32 {
        crate::bytes::be32(self.bytes(), field::VERSION_CLASS) & 0xf_ffff
    }

    /// The bytes that follow the fixed header by payload length, without padding, as far as it is there.
    pub fn payload(&self) -> &[u8] {
        between(self.bytes(), field::HEADER, field::HEADER + usize::from(self.payload_length()))
    }

    /// The extension headers.
    pub fn extensions(&self) -> Extensions<'_> {
        Extensions {
            packet: self.bytes(),
            protocol: self.next_header(),
            at: field::HEADER,
            left: MAX_EXTENSIONS,
        }
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Ipv6<T> {
    /// Sets the traffic class.
    pub fn set_traffic_class(&mut self, class: u8) {
        let first = byte(self.bytes(), field::VERSION_CLASS) & 0xf0 | class >> 4;
        let second = byte(self.bytes(), field::CLASS_FLOW) & 0x0f | class << 4;
        put(self.bytes_mut(), field::VERSION_CLASS, &[first, second]);
    }

    /// Sets the code point (its low six bits), keeping ECN.
    pub fn set_dscp(&mut self, dscp: u8) {
        let class = dscp << 2 | self.traffic_class() & 3;
        self.set_traffic_class(class);
    }
}

/// An extension header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extension<'a> {
    /// Its own protocol number: 0, 43, 44, 51, 60 or 135.
    pub protocol: u8,
    /// The offset at which it begins, in bytes from the start of the IPv6 header.
    pub at: usize,
    /// Its bytes, as far as they are there; at least eight.
    pub bytes: &'a [u8],
}

impl Extension<'_> {
    /// Protocol number of what follows it.
    pub fn next_header(&self) -> u8 {
        byte(self.bytes, 0)
    }

    /// For a fragment header whether the packet is a fragment: offset above 0 or more to follow.
    pub fn is_fragment(&self) -> bool {
        self.protocol == FRAGMENT && be16(self.bytes, field::FRAGMENT_OFFSET) & 0xfff9 != 0
    }
}

/// The extension headers of an IPv6 packet, as [`classify`](fn@crate::classify) walks them: at most 32, each
/// with at least eight bytes captured, none after a fragment.
#[derive(Clone, Debug)]
pub struct Extensions<'a> {
    packet: &'a [u8],
    protocol: u8,
    at: usize,
    left: u32,
}

impl Extensions<'_> {
    /// Protocol number of what comes next; after the last item that of the transport header.
    pub fn protocol(&self) -> u8 {
        self.protocol
    }

    /// The offset at which that begins, in bytes from the start of the IPv6 header. It may lie beyond the
    /// captured bytes.
    pub fn at(&self) -> usize {
        self.at
    }
}

impl<'a> Iterator for Extensions<'a> {
    type Item = Extension<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let Self { packet, protocol, at, left } = *self;
        if left == 0 || !is_extension(protocol) || packet.len() < at + 8 {
            return None;
        }
        let units = usize::from(byte(packet, at + 1));
        let length = match protocol {
            FRAGMENT => 8,
            AH => (units + 2) * 4,
            _ => (units + 1) * 8,
        };
        let header = Extension { protocol, at, bytes: between(packet, at, at + length) };
        self.protocol = header.next_header();
        self.at += length;
        self.left = if header.is_fragment() { 0 } else { left - 1 };
        Some(header)
    }
}
