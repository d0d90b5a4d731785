//! The meta data of a packet, in the 16 bytes before its own.

use super::HEADER;
use crate::time::Nanos;

/// The meta data of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketMeta {
    /// Bytes on the wire.
    pub original_len: u32,
    /// Interface it was captured on, up to [`PacketMeta::MAX_INTERFACE`].
    pub interface: u32,
    /// The time that its capture gives, not clamped.
    pub time: Nanos,
}

impl PacketMeta {
    /// Highest interface number.
    pub const MAX_INTERFACE: u32 = (1 << 24) - 1;
}

/// A packet's meta data and size class as they stand before its bytes.
#[inline]
pub(super) fn head(meta: PacketMeta, class: u8) -> [u8; HEADER] {
    let interface = meta.interface.min(PacketMeta::MAX_INTERFACE);
    let low = u64::from(meta.original_len) << 32 | u64::from(interface << 8 | u32::from(class));
    (u128::from(meta.time.0) << 64 | u128::from(low)).to_le_bytes()
}

/// The bytes of a packet's meta data, to be carried to another packet as they are.
#[derive(Clone, Copy, Debug)]
pub struct Head(pub(super) [u8; HEADER]);

impl Head {
    /// The same meta data, before a packet of another size class.
    #[inline(always)]
    pub(super) fn of_class(self, class: u8) -> [u8; HEADER] {
        let Self([_, rest @ ..]) = self;
        let mut head = [class; HEADER];
        if let Some(place) = head.last_chunk_mut() {
            *place = rest;
        }
        head
    }
}

/// The meta data that stand there.
#[inline]
pub(super) fn meta_of(head: &[u8; HEADER]) -> PacketMeta {
    let head = u128::from_le_bytes(*head);
    PacketMeta {
        original_len: (head >> 32) as u32,
        interface: head as u32 >> 8,
        time: Nanos((head >> 64) as u64),
    }
}
