//! ARP (RFC 826).

use core::net::Ipv4Addr;

use super::{holds, view};
use crate::bytes::{array, between, byte};
use crate::protocol::ETHERTYPE_IPV4;

mod field {
    pub(super) const HARDWARE: usize = 0;
    pub(super) const PROTOCOL: usize = 2;
    pub(super) const HARDWARE_LENGTH: usize = 4;
    pub(super) const PROTOCOL_LENGTH: usize = 5;
    pub(super) const OPERATION: usize = 6;
    pub(super) const ADDRESSES: usize = 8;
}

view! {
    /// An ARP packet for addresses of any length.
    Arp, check |bytes| {
        holds(bytes, field::ADDRESSES)?;
        let pair = usize::from(byte(bytes, field::HARDWARE_LENGTH)) + usize::from(byte(bytes, field::PROTOCOL_LENGTH));
        holds(bytes, field::ADDRESSES + 2 * pair)
    };
    /// Hardware type: 1 is Ethernet.
    hardware: u16 = field::HARDWARE;
    /// Ethertype of the protocol.
    protocol: u16 = field::PROTOCOL;
    /// Length of a hardware address in bytes.
    hardware_length: u8 = field::HARDWARE_LENGTH;
    /// Length of a protocol address in bytes.
    protocol_length: u8 = field::PROTOCOL_LENGTH;
    /// 1 request, 2 reply.
    operation, set_operation: u16 = field::OPERATION;
}

impl<T: AsRef<[u8]>> Arp<T> {
    /// The nth of: sender hardware, sender protocol, target hardware, target protocol address.
    fn address(&self, n: usize) -> &[u8] {
        let (hardware, protocol) = (usize::from(self.hardware_length()), usize::from(self.protocol_length()));
        let start = field::ADDRESSES + n.div_ceil(2) * hardware + n / 2 * protocol;
        between(self.bytes(), start, start + if n.is_multiple_of(2) { hardware } else { protocol })
    }

    /// Sender hardware address.
    pub fn sender_hardware(&self) -> &[u8] {
        self.address(0)
    }

    /// Sender protocol address.
    pub fn sender_protocol(&self) -> &[u8] {
        self.address(1)
    }

    /// Target hardware address.
    pub fn target_hardware(&self) -> &[u8] {
        self.address(2)
    }

    /// Target protocol address.
    pub fn target_protocol(&self) -> &[u8] {
        self.address(3)
    }

    /// Sender and target, if their addresses are IPv4.
    pub fn ipv4(&self) -> Option<(Ipv4Addr, Ipv4Addr)> {
        let is_ipv4 = self.protocol() == ETHERTYPE_IPV4 && self.protocol_length() == 4;
        is_ipv4.then(|| {
            (array::<4>(self.sender_protocol(), 0).into(), array::<4>(self.target_protocol(), 0).into())
        })
    }
}
