//! Packets and trains, as C sees them.

use core::net::{Ipv4Addr, Ipv6Addr};
use core::slice::from_raw_parts;

use slipstream_reframe::embed::Packet;
use slipstream_wire::FlowKey;

use crate::error::{Failure, SLIP_E_ARGUMENT, SLIP_E_NULL};

/// The flow of a packet, where the caller knows it already.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct slip_key {
    /// Source address in network order; of IPv4 the first four bytes count.
    pub src: [u8; 16],
    /// Destination address, the same way.
    pub dst: [u8; 16],
    /// Source port in the order of the machine; 0 for protocols without ports.
    pub src_port: u16,
    /// Destination port, the same way.
    pub dst_port: u16,
    /// VLAN id, 1 to 4095; 0 without a tag. Pass the bytes of packets whose tag has the id 0, or that have
    /// more than one.
    pub vlan: u16,
    /// 4 or 6.
    pub ip_version: u8,
    /// IP protocol: 6 is TCP, 17 is UDP.
    pub protocol: u8,
    /// TCP flags (FIN 0x01, SYN 0x02 … CWR 0x80), for rules such as `tcp syn`; 0 where it is not TCP.
    pub tcp_flags: u8,
    /// Must be 0.
    pub reserved: [u8; 3],
}

/// A packet to be pushed. Its bytes are read while slip_reframe_push_burst runs, and never again.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct slip_packet {
    /// Its bytes, from the link-layer header on; as many as reach to the end of the transport header are
    /// enough. NULL where `key` says all, and of a packet without a flow, which passes at once.
    pub data: *const u8,
    /// Its flow, read from `data` where this is NULL.
    pub key: *const slip_key,
    /// Number of bytes at `data`.
    pub captured: u32,
    /// Its length on the wire in bytes; 0: as many as `captured`.
    pub length: u32,
    /// Any number that says to the caller which packet it is.
    pub handle: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// Packets of one flow that left together. Their handles stand one behind the other, those of the next train
/// behind them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct slip_train {
    /// When it left, in ns.
    pub release_ns: u64,
    /// Number of its flow, SLIP_NO_FLOW for a packet that can't be classified. Of two trains that leave
    /// within a hold of each other it is the same only if their flows are.
    pub flow: u32,
    /// Number of its packets, 1 to SLIP_BURST.
    pub count: u32,
}

impl slip_key {
    fn flow(&self) -> Option<FlowKey> {
        let vlans = [self.vlan];
        let vlans = if self.vlan == 0 { &[][..] } else { &vlans[..] };
        let (src, dst) = match self.ip_version {
            4 => {
                let four = |a: &[u8; 16]| a.first_chunk::<4>().map(|a| Ipv4Addr::from(*a).into());
                (four(&self.src)?, four(&self.dst)?)
            }
            6 => (Ipv6Addr::from(self.src).into(), Ipv6Addr::from(self.dst).into()),
            _ => return None,
        };
        FlowKey::new(vlans, src, dst, self.protocol, self.src_port, self.dst_port).ok()
    }
}

impl slip_packet {
    /// Returns true if it has no key, and nothing that can't be.
    #[inline(always)]
    pub(crate) fn is_usual(&self) -> bool {
        (self.key.addr() | self.reserved as usize == 0) & (!self.data.is_null() | (self.captured == 0))
    }

    /// Checks that packet `at` of a burst is one.
    ///
    /// # Safety
    /// Its key is NULL, or leads to one.
    pub(crate) unsafe fn check(&self, at: usize) -> Result<(), Failure> {
        let wrong = |code, what| Err(Failure::new(code, format!("packet {at} of the burst: {what}")));
        if self.reserved != 0 {
            return wrong(SLIP_E_ARGUMENT, "reserved is not 0");
        }
        if self.key.is_null() {
            if self.is_usual() {
                return Ok(());
            }
            return wrong(SLIP_E_NULL, "data is NULL, and captured is not 0");
        }
        // SAFETY: the caller's promise.
        let key = unsafe { self.key.read_unaligned() };
        if key.reserved != [0; 3] {
            return wrong(SLIP_E_ARGUMENT, "reserved of its key is not 0");
        }
        if key.flow().is_some() { Ok(()) } else { wrong(SLIP_E_ARGUMENT, "its key is none") }
    }

    /// As the library wants it, with the bytes at `data`; without any where there are none, or a key.
    ///
    /// # Safety
    /// Its data is NULL, or leads to as many bytes as it says, which nobody changes as long as `'a`; or it
    /// has a key.
    #[inline(always)]
    pub(crate) unsafe fn bytes<'a>(&self) -> Packet<'a> {
        let len = if self.length == 0 { self.captured } else { self.length };
        let (data, captured) = if self.key.is_null() & !self.data.is_null() {
            (self.data, self.captured as usize)
        } else {
            (core::ptr::NonNull::<u8>::dangling().as_ptr().cast_const(), 0)
        };
        // SAFETY: the caller's promise; where there are no bytes, any address does that is not NULL.
        let bytes = unsafe { from_raw_parts(data, captured) };
        Packet::new(self.handle, bytes).wire_len(len)
    }

    /// As the library wants it, where it was checked.
    ///
    /// # Safety
    /// Its key is NULL, or leads to one; its data is NULL, or leads to as many bytes as it says, which nobody
    /// changes as long as `'a`.
    pub(crate) unsafe fn packet<'a>(&self) -> Packet<'a> {
        if !self.key.is_null() {
            let len = if self.length == 0 { self.captured } else { self.length };
            // SAFETY: the caller's promise.
            let key = unsafe { self.key.read_unaligned() };
            return match key.flow() {
                Some(flow) => Packet::with_key(self.handle, len, flow).tcp_flags(key.tcp_flags),
                None => Packet::without_flow(self.handle, len),
            };
        }
        // SAFETY: the caller's promise.
        unsafe { self.bytes() }
    }
}
