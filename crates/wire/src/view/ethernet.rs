//! Ethernet II (IEEE 802.3) and VLAN tags (IEEE 802.1Q, 802.1ad).

use super::{holds, view};
use crate::bytes::{from, put};

mod field {
    pub(super) const DST: usize = 0;
    pub(super) const SRC: usize = 6;
    pub(super) const ETHERTYPE: usize = 12;
    pub(super) const HEADER: usize = 14;

    pub(super) const TCI: usize = 0;
    pub(super) const TAGGED_ETHERTYPE: usize = 2;
    pub(super) const TAG: usize = 4;
}

view! {
    /// An Ethernet frame without preamble.
    Ethernet, check |bytes| holds(bytes, field::HEADER);
    /// Destination address.
    dst, set_dst: [u8; 6] = field::DST;
    /// Source address.
    src, set_src: [u8; 6] = field::SRC;
    /// Ethertype; below 0x0600 an IEEE 802.3 length.
    ethertype, set_ethertype: u16 = field::ETHERTYPE;
}

impl<T: AsRef<[u8]>> Ethernet<T> {
    /// The bytes that follow the ethertype: a [`Vlan`] tag if it says so. Padding is part of it.
    pub fn payload(&self) -> &[u8] {
        from(self.bytes(), field::HEADER)
    }
}

view! {
    /// The bytes that follow the ethertype of a VLAN tag: tag control information, the next ethertype, the
    /// payload.
    Vlan, check |bytes| holds(bytes, field::TAG);
    /// Tag control information: priority (3 bits), drop eligible (1), VLAN id (12).
    tci, set_tci: u16 = field::TCI;
    /// Ethertype of the payload.
    ethertype, set_ethertype: u16 = field::TAGGED_ETHERTYPE;
}

impl<T: AsRef<[u8]>> Vlan<T> {
    /// VLAN id, 0 to 4095.
    pub fn id(&self) -> u16 {
        self.tci() & 0xfff
    }

    /// Priority code point, 0 to 7.
    pub fn priority(&self) -> u8 {
        (self.tci() >> 13) as u8
    }

    /// Says that the frame may be dropped first.
    pub fn drop_eligible(&self) -> bool {
        self.tci() & 0x1000 != 0
    }

    /// The bytes that follow the tag.
    pub fn payload(&self) -> &[u8] {
        from(self.bytes(), field::TAG)
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Vlan<T> {
    /// Sets the VLAN id (its low 12 bits), keeping priority and drop eligibility.
    pub fn set_id(&mut self, id: u16) {
        let tci = self.tci() & 0xf000 | id & 0xfff;
        put(self.bytes_mut(), field::TCI, &tci.to_be_bytes());
    }
}
