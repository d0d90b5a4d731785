//! SCTP (RFC 9260): the common header.

use super::{holds, view};
use crate::bytes::{array, from, put};
use crate::crc32c;

mod field {
    pub(super) const SRC_PORT: usize = 0;
    pub(super) const DST_PORT: usize = 2;
    pub(super) const TAG: usize = 4;
    pub(super) const CHECKSUM: usize = crate::protocol::SCTP_CHECKSUM;
    pub(super) const HEADER: usize = 12;
}

view! {
    /// An SCTP packet. It has no length: the bytes must end where the IP payload does.
    Sctp, check |bytes| holds(bytes, field::HEADER);
    /// Source port.
    src_port, set_src_port: u16 = field::SRC_PORT;
    /// Destination port.
    dst_port, set_dst_port: u16 = field::DST_PORT;
    /// Verification tag of the association.
    tag, set_tag: u32 = field::TAG;
}

impl<T: AsRef<[u8]>> Sctp<T> {
    /// CRC32c as carried, its bytes in transmission order: least significant first (RFC 9260 appendix A).
    pub fn checksum(&self) -> u32 {
        u32::from_le_bytes(array(self.bytes(), field::CHECKSUM))
    }

    /// CRC32c of the packet, computed with its checksum field as 0.
    pub fn computed_checksum(&self) -> u32 {
        let bytes = self.bytes();
        let (before, after) = bytes.split_at(bytes.len().min(field::CHECKSUM));
        crc32c::finish(crc32c::update(
            crc32c::update(crc32c::update(crc32c::START, before), &[0; 4]),
            from(after, 4),
        ))
    }

    /// Says that the checksum is right.
    pub fn verify_checksum(&self) -> bool {
        self.checksum() == self.computed_checksum()
    }

    /// The chunks.
    pub fn payload(&self) -> &[u8] {
        from(self.bytes(), field::HEADER)
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Sctp<T> {
    /// Sets the checksum to what [`computed_checksum`](Self::computed_checksum) gives.
    pub fn fill_checksum(&mut self) {
        let checksum = self.computed_checksum();
        put(self.bytes_mut(), field::CHECKSUM, &checksum.to_le_bytes());
    }
}
