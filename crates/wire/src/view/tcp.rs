//! TCP (RFC 9293; flags AE, CWR, ECE: RFC 3168 and AccECN).

use super::{HeaderError, TcpOptions, holds, view};
use crate::bytes::{be16, between, byte, from, put};

mod field {
    pub(super) const SRC_PORT: usize = 0;
    pub(super) const DST_PORT: usize = 2;
    pub(super) const SEQ: usize = 4;
    pub(super) const ACK: usize = 8;
    pub(super) const OFFSET_FLAGS: usize = 12;
    pub(super) const WINDOW: usize = 14;
    pub(super) const CHECKSUM: usize = crate::protocol::TCP_CHECKSUM;
    pub(super) const URGENT: usize = 18;
    pub(super) const OPTIONS: usize = 20;
}

view! {
    /// A TCP segment.
    Tcp, check |bytes| {
        holds(bytes, field::OPTIONS)?;
        let length = usize::from(byte(bytes, field::OFFSET_FLAGS) >> 4) * 4;
        if length < field::OPTIONS { Err(HeaderError::Length(length)) } else { holds(bytes, length) }
    };
    /// Source port.
    src_port, set_src_port: u16 = field::SRC_PORT;
    /// Destination port.
    dst_port, set_dst_port: u16 = field::DST_PORT;
    /// Sequence number.
    seq, set_seq: u32 = field::SEQ;
    /// Acknowledgement number; means something if ACK is set.
    ack, set_ack: u32 = field::ACK;
    /// Window, unscaled.
    window, set_window: u16 = field::WINDOW;
    /// Checksum over pseudo-header, header and payload.
    checksum, set_checksum: u16 = field::CHECKSUM;
    /// Urgent pointer.
    urgent, set_urgent: u16 = field::URGENT;
}

impl<T> Tcp<T> {
    /// No more data from the sender.
    pub const FIN: u16 = 0x001;
    /// Synchronize sequence numbers.
    pub const SYN: u16 = 0x002;
    /// Reset the connection.
    pub const RST: u16 = 0x004;
    /// Push.
    pub const PSH: u16 = 0x008;
    /// The acknowledgement number is valid.
    pub const ACK: u16 = 0x010;
    /// The urgent pointer is valid.
    pub const URG: u16 = 0x020;
    /// ECN echo.
    pub const ECE: u16 = 0x040;
    /// Congestion window reduced.
    pub const CWR: u16 = 0x080;
    /// Accurate ECN, once the nonce sum.
    pub const AE: u16 = 0x100;
}

impl<T: AsRef<[u8]>> Tcp<T> {
    /// Length of the header with options, in bytes.
    pub fn header_len(&self) -> usize {
        usize::from(byte(self.bytes(), field::OFFSET_FLAGS) >> 4) * 4
    }

    /// The twelve bits from the reserved ones (0x800 to 0x200) over AE (0x100) and CWR (0x80) to FIN (0x01).
    pub fn flags(&self) -> u16 {
        be16(self.bytes(), field::OFFSET_FLAGS) & 0xfff
    }

    /// The options.
    pub fn options(&self) -> TcpOptions<'_> {
        TcpOptions::new(between(self.bytes(), field::OPTIONS, self.header_len()))
    }

    /// The bytes that follow the header, to the end.
    pub fn payload(&self) -> &[u8] {
        from(self.bytes(), self.header_len())
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Tcp<T> {
    /// Sets the twelve bits that [`flags`](Self::flags) reads.
    pub fn set_flags(&mut self, flags: u16) {
        let value = be16(self.bytes(), field::OFFSET_FLAGS) & 0xf000 | flags & 0xfff;
        put(self.bytes_mut(), field::OFFSET_FLAGS, &value.to_be_bytes());
    }
}
