//! Linux cooked captures, which stand for the link layer where a capture has none (LINKTYPE_LINUX_SLL,
//! _SLL2).

use super::{holds, view};
use crate::bytes::{between, from};

mod field {
    pub(super) const PACKET_TYPE: usize = 0;
    pub(super) const HARDWARE: usize = 2;
    pub(super) const ADDRESS_LENGTH: usize = 4;
    pub(super) const ADDRESS: usize = 6;
    pub(super) const ETHERTYPE: usize = 14;
    pub(super) const HEADER: usize = 16;

    pub(super) const ETHERTYPE_2: usize = 0;
    pub(super) const INTERFACE_2: usize = 4;
    pub(super) const HARDWARE_2: usize = 8;
    pub(super) const PACKET_TYPE_2: usize = 10;
    pub(super) const ADDRESS_LENGTH_2: usize = 11;
    pub(super) const ADDRESS_2: usize = 12;
    pub(super) const HEADER_2: usize = 20;

    pub(super) const ADDRESS_MAX: usize = 8;
}

view! {
    /// Linux cooked capture, version 1.
    Sll, check |bytes| holds(bytes, field::HEADER);
    /// 0 to us, 1 broadcast, 2 multicast, 3 to another host, 4 sent by us.
    packet_type: u16 = field::PACKET_TYPE;
    /// ARPHRD_ number of the interface.
    hardware: u16 = field::HARDWARE;
    /// Length of the sender's link-layer address in bytes; may exceed the eight that are recorded.
    address_length: u16 = field::ADDRESS_LENGTH;
    /// Ethertype of the payload.
    ethertype: u16 = field::ETHERTYPE;
}

impl<T: AsRef<[u8]>> Sll<T> {
    /// Sender's link-layer address, at most its first eight bytes.
    pub fn address(&self) -> &[u8] {
        let length = usize::from(self.address_length()).min(field::ADDRESS_MAX);
        between(self.bytes(), field::ADDRESS, field::ADDRESS + length)
    }

    /// The bytes that follow the header.
    pub fn payload(&self) -> &[u8] {
        from(self.bytes(), field::HEADER)
    }
}

view! {
    /// Linux cooked capture, version 2.
    Sll2, check |bytes| holds(bytes, field::HEADER_2);
    /// Ethertype of the payload.
    ethertype: u16 = field::ETHERTYPE_2;
    /// Index of the interface.
    interface: u32 = field::INTERFACE_2;
    /// ARPHRD_ number of the interface.
    hardware: u16 = field::HARDWARE_2;
    /// 0 to us, 1 broadcast, 2 multicast, 3 to another host, 4 sent by us.
    packet_type: u8 = field::PACKET_TYPE_2;
    /// Length of the sender's link-layer address in bytes; may exceed the eight that are recorded.
    address_length: u8 = field::ADDRESS_LENGTH_2;
}

impl<T: AsRef<[u8]>> Sll2<T> {
    /// Sender's link-layer address, at most its first eight bytes.
    pub fn address(&self) -> &[u8] {
        let length = usize::from(self.address_length()).min(field::ADDRESS_MAX);
        between(self.bytes(), field::ADDRESS_2, field::ADDRESS_2 + length)
    }

    /// The bytes that follow the header.
    pub fn payload(&self) -> &[u8] {
        from(self.bytes(), field::HEADER_2)
    }
}
