//! ICMP (RFC 792) and ICMPv6 (RFC 4443), which share their first four bytes.

use super::{holds, view};
use crate::bytes::from;

mod field {
    pub(super) const TYPE: usize = 0;
    pub(super) const CODE: usize = 1;
    pub(super) const CHECKSUM: usize = crate::protocol::ICMP_CHECKSUM;
    pub(super) const REST: usize = 4;
    pub(super) const HEADER: usize = 8;
}

view! {
    /// An ICMP message.
    Icmpv4, check |bytes| holds(bytes, field::HEADER);
    /// Type.
    kind, set_kind: u8 = field::TYPE;
    /// Code: a subtype.
    code, set_code: u8 = field::CODE;
    /// Checksum over the message.
    checksum, set_checksum: u16 = field::CHECKSUM;
    /// Four bytes that depend on the type: of an echo the identifier and the sequence number.
    rest, set_rest: [u8; 4] = field::REST;
}

impl<T: AsRef<[u8]>> Icmpv4<T> {
    /// The bytes that follow the eight of the header: of an error the packet that caused it.
    pub fn payload(&self) -> &[u8] {
        from(self.bytes(), field::HEADER)
    }
}

view! {
    /// An ICMPv6 message.
    Icmpv6, check |bytes| holds(bytes, field::HEADER);
    /// Type.
    kind, set_kind: u8 = field::TYPE;
    /// Code: a subtype.
    code, set_code: u8 = field::CODE;
    /// Checksum over pseudo-header and message.
    checksum, set_checksum: u16 = field::CHECKSUM;
    /// Four bytes that depend on the type: of an echo the identifier and the sequence number.
    rest, set_rest: [u8; 4] = field::REST;
}

impl<T: AsRef<[u8]>> Icmpv6<T> {
    /// The bytes that follow the eight of the header: of an error the packet that caused it.
    pub fn payload(&self) -> &[u8] {
        from(self.bytes(), field::HEADER)
    }
}
