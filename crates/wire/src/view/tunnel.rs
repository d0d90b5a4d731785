//! Headers that carry another packet: GRE (RFC 2784, RFC 2890), VXLAN (RFC 7348), GENEVE (RFC 8926).

use super::{HeaderError, holds, view};
use crate::bytes::{be16, be32, between, byte, from};

mod field {
    pub(super) const GRE_FLAGS: usize = 0;
    pub(super) const GRE_PROTOCOL: usize = 2;
    pub(super) const GRE_OPTIONAL: usize = 4;

    pub(super) const VXLAN_FLAGS: usize = 0;
    pub(super) const VXLAN_VNI: usize = 4;
    pub(super) const VXLAN_HEADER: usize = 8;

    pub(super) const GENEVE_VERSION_LENGTH: usize = 0;
    pub(super) const GENEVE_FLAGS: usize = 1;
    pub(super) const GENEVE_PROTOCOL: usize = 2;
    pub(super) const GENEVE_VNI: usize = 4;
    pub(super) const GENEVE_OPTIONS: usize = 8;
}

const GRE_CHECKSUM: u16 = 0x8000;
const GRE_KEY: u16 = 0x2000;
const GRE_SEQUENCE: u16 = 0x1000;
/// Source routing and what else RFC 1701 had that RFC 2784 forbids, and the version.
const GRE_FORBIDDEN: u16 = 0x4c07;

view! {
    /// A GRE packet of version 0 without source routing.
    Gre, check |bytes| {
        holds(bytes, field::GRE_OPTIONAL)?;
        let flags = be16(bytes, field::GRE_FLAGS);
        if flags & GRE_FORBIDDEN != 0 {
            return Err(HeaderError::Version((flags & 7) as u8));
        }
        holds(bytes, gre_header(flags))
    };
    /// The optional fields that there are, and the version.
    flags: u16 = field::GRE_FLAGS;
    /// Ethertype of the payload; 0x6558 for an Ethernet frame.
    protocol, set_protocol: u16 = field::GRE_PROTOCOL;
}

/// Length of the header: checksum, key and sequence number are there only if their flags are.
fn gre_header(flags: u16) -> usize {
    field::GRE_OPTIONAL + (flags & (GRE_CHECKSUM | GRE_KEY | GRE_SEQUENCE)).count_ones() as usize * 4
}

impl<T: AsRef<[u8]>> Gre<T> {
    /// Length of the header, in bytes.
    pub fn header_len(&self) -> usize {
        gre_header(self.flags())
    }

    /// The optional field of flag `bit`: those of higher bits come before it.
    fn optional(&self, bit: u16) -> Option<u32> {
        let flags = self.flags();
        let before = flags & (GRE_CHECKSUM | GRE_KEY | GRE_SEQUENCE) & !(bit | (bit - 1));
        (flags & bit != 0).then(|| be32(self.bytes(), gre_header(before)))
    }

    /// Checksum over header and payload, if there is one.
    pub fn checksum(&self) -> Option<u16> {
        self.optional(GRE_CHECKSUM).map(|word| (word >> 16) as u16)
    }

    /// Key, if there is one.
    pub fn key(&self) -> Option<u32> {
        self.optional(GRE_KEY)
    }

    /// Sequence number, if there is one.
    pub fn sequence(&self) -> Option<u32> {
        self.optional(GRE_SEQUENCE)
    }

    /// The bytes that follow the header.
    pub fn payload(&self) -> &[u8] {
        from(self.bytes(), self.header_len())
    }
}

view! {
    /// A VXLAN header; an Ethernet frame follows.
    Vxlan, check |bytes| holds(bytes, field::VXLAN_HEADER);
    /// Flags: 0x08 says that the network identifier is valid.
    flags: u8 = field::VXLAN_FLAGS;
}

impl<T: AsRef<[u8]>> Vxlan<T> {
    /// Network identifier (24 bits), if it is valid.
    pub fn vni(&self) -> Option<u32> {
        (self.flags() & 8 != 0).then(|| be32(self.bytes(), field::VXLAN_VNI) >> 8)
    }

    /// The Ethernet frame.
    pub fn payload(&self) -> &[u8] {
        from(self.bytes(), field::VXLAN_HEADER)
    }
}

view! {
    /// A GENEVE header of version 0, with options.
    Geneve, check |bytes| {
        holds(bytes, field::GENEVE_OPTIONS)?;
        let first = byte(bytes, field::GENEVE_VERSION_LENGTH);
        if first >> 6 != 0 {
            return Err(HeaderError::Version(first >> 6));
        }
        holds(bytes, field::GENEVE_OPTIONS + usize::from(first & 0x3f) * 4)
    };
    /// Ethertype of the payload; 0x6558 for an Ethernet frame.
    protocol, set_protocol: u16 = field::GENEVE_PROTOCOL;
}

impl<T: AsRef<[u8]>> Geneve<T> {
    /// Length of the header with options, in bytes.
    pub fn header_len(&self) -> usize {
        field::GENEVE_OPTIONS + usize::from(byte(self.bytes(), field::GENEVE_VERSION_LENGTH) & 0x3f) * 4
    }

    /// Says that this is a control packet, which carries no user data.
    pub fn is_control(&self) -> bool {
        byte(self.bytes(), field::GENEVE_FLAGS) & 0x80 != 0
    }

    /// Says that whoever takes the packet out of the tunnel must understand some option.
    pub fn has_critical_options(&self) -> bool {
        byte(self.bytes(), field::GENEVE_FLAGS) & 0x40 != 0
    }

    /// Network identifier, 24 bits.
    pub fn vni(&self) -> u32 {
        be32(self.bytes(), field::GENEVE_VNI) >> 8
    }

    /// The options: class (2 bytes), type, length in words (5 bits), data.
    pub fn options(&self) -> &[u8] {
        between(self.bytes(), field::GENEVE_OPTIONS, self.header_len())
    }

    /// The bytes that follow the header.
    pub fn payload(&self) -> &[u8] {
        from(self.bytes(), self.header_len())
    }
}
