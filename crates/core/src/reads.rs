//! The fields of a packet that a decision reads.

use crate::frame::Frame;
use crate::pool::Pool;

/// Fields beyond the flow key that a decision depends on: packets of a train that differ in one of them don't
/// share it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads(u64);

impl Reads {
    /// The flow key alone.
    pub const KEY: Self = Self(0);
    /// Bits that say if the packet is a fragment, and which headers could be read: always part of the
    /// comparison too.
    pub const SHAPE: Self = Self(0xff << 32);
    /// Offset of the IP header.
    pub const L3: Self = Self(0xffff);
    /// TCP flags.
    pub const TCP_FLAGS: Self = Self(0xff << 40);
    /// DSCP.
    pub const DSCP: Self = Self(0xfc << 48);
    /// ECN.
    pub const ECN: Self = Self(0x03 << 48);
    /// Length on the wire.
    pub const LENGTH: Self = Self(1 << 63);

    /// Fields by their places in a word of [`Flags`](slipstream_wire::Flags) (bits 0 to 8), TCP flags (8 to
    /// 16) and TOS (16 to 24).
    #[must_use]
    pub const fn of_word(mask: u32) -> Self {
        Self((mask as u64 & 0xff_ffff) << 32)
    }

    /// The fields of both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns true if all fields of `other` are among these.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Counts the packets at the start of `others` that agree with `first` in these fields.
    #[inline(always)]
    #[must_use]
    pub fn agreeing(self, pool: &Pool, first: &Frame, others: &[Frame]) -> usize {
        let mask = (self.0 | Self::SHAPE.0) & !Self::LENGTH.0;
        // All of them are looked at, so that many are at once: mostly all agree. Most trains are short: those
        // few packets take no loop, whose end no processor foresees.
        let (bits, first_few) = (first.info.bits(), [0, 1, 2, 3]);
        let at = |n: usize| others.get(n).unwrap_or(first).info.bits() ^ bits;
        let mut differ = first_few.into_iter().fold(0, |all, n| all | at(n));
        for other in others.get(first_few.len()..).unwrap_or_default() {
            differ |= other.info.bits() ^ bits;
        }
        if differ & mask == 0 && self.0 & Self::LENGTH.0 == 0 {
            return others.len();
        }
        others.iter().position(|other| !self.agree(pool, first, other)).unwrap_or(others.len())
    }

    /// Returns true if two packets of one flow agree in these fields.
    #[inline]
    #[must_use]
    pub fn agree(self, pool: &Pool, a: &Frame, b: &Frame) -> bool {
        let mask = (self.0 | Self::SHAPE.0) & !Self::LENGTH.0;
        (a.info.bits() ^ b.info.bits()) & mask == 0
            && (self.0 & Self::LENGTH.0 == 0
                || pool.meta(a.buf).original_len == pool.meta(b.buf).original_len)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use slipstream_wire::{Flags, FlowKey, Headers, NarrowKey};

    use super::*;
    use crate::frame::Info;
    use crate::pool::PacketMeta;
    use crate::time::Nanos;

    proptest! {
        /// Against one comparison after the other, field by field.
        #[test]
        fn packets_agree_as_long_as_no_field_differs(
            packets in prop::collection::vec((0u16..2, 0u8..2, 0u8..2, 0u8..8, 60u32..62), 1..12),
            alike in any::<bool>(),
            fields in prop::array::uniform5(any::<bool>()),
        ) {
            let mut pool = Pool::new();
            let frame = |&(l3, fragment, tcp_flags, tos, original_len): &(u16, u8, u8, u8, u32)| {
                let flags = Flags(Flags::PORTS | (fragment * Flags::FRAGMENT));
                let key = FlowKey::Narrow(NarrowKey([1, 2]));
                let info = Info::new(&Headers { key, l3, l4: 34, flags, tcp_flags, tos });
                let buf = pool.insert(PacketMeta { original_len, ..PacketMeta::default() }, &[0; 60]);
                Frame { info, ..Frame::unclassified(Nanos(1), buf, 60) }
            };
            // Packets of a train are alike for the most part.
            let packets: Vec<_> = if alike { vec![packets[0]; packets.len()] } else { packets };
            let frames: Vec<Frame> = packets.iter().map(frame).collect();
            let all = [Reads::L3, Reads::TCP_FLAGS, Reads::DSCP, Reads::ECN, Reads::LENGTH];
            let asked = all.into_iter().zip(fields).filter(|(_, asked)| *asked);
            let reads = asked.fold(Reads::KEY, |reads, (field, _)| reads.and(field));
            let (first, others) = frames.split_first().unwrap();
            let agree = |other: &(u16, u8, u8, u8, u32)| {
                let (a, b) = (&packets[0], other);
                let [l3, tcp_flags, dscp, ecn, length] = fields;
                a.1 == b.1
                    && (!l3 || a.0 == b.0)
                    && (!tcp_flags || a.2 == b.2)
                    && (!dscp || a.3 >> 2 == b.3 >> 2)
                    && (!ecn || a.3 & 3 == b.3 & 3)
                    && (!length || a.4 == b.4)
            };
            let slow = packets[1..].iter().take_while(|other| agree(other)).count();
            prop_assert_eq!(reads.agreeing(&pool, first, others), slow);
            for (frame, packet) in others.iter().zip(&packets[1..]) {
                prop_assert_eq!(reads.agree(&pool, first, frame), agree(packet));
            }
        }
    }
}
