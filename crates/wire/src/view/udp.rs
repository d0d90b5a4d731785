//! UDP (RFC 768).

use super::{holds, view};
use crate::bytes::between;

mod field {
    pub(super) const SRC_PORT: usize = 0;
    pub(super) const DST_PORT: usize = 2;
    pub(super) const LENGTH: usize = 4;
    pub(super) const CHECKSUM: usize = crate::protocol::UDP_CHECKSUM;
    pub(super) const HEADER: usize = 8;
}

view! {
    /// A UDP datagram. Its length is not checked against the bytes: captures may be cut.
    Udp, check |bytes| holds(bytes, field::HEADER);
    /// Source port.
    src_port, set_src_port: u16 = field::SRC_PORT;
    /// Destination port.
    dst_port, set_dst_port: u16 = field::DST_PORT;
    /// Length of header and payload, in bytes.
    length, set_length: u16 = field::LENGTH;
    /// Checksum over pseudo-header, header and payload; 0 for none.
    checksum, set_checksum: u16 = field::CHECKSUM;
}

impl<T: AsRef<[u8]>> Udp<T> {
    /// The payload by the length field, as far as it is there.
    pub fn payload(&self) -> &[u8] {
        between(self.bytes(), field::HEADER, usize::from(self.length()))
    }
}
