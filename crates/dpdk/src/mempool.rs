//! The memory of packets: a mempool, as the engine's pool adopts it.
//!
//! A packet lies 272 bytes behind the beginning of its mbuf: 128 of the mbuf, 16 private ones, 128 of head
//! room. The last 16 bytes of the head room are where the pool keeps what it knows of a packet; DPDK and
//! its drivers leave them alone.

#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;

use slipstream_core::pool::{Buffers, LEAD, Region};

use crate::sys::Memory;

/// Bytes of a unit, by which places are counted.
pub(crate) const UNIT: usize = 64;

/// Offset of the packet of this unit, in bytes.
pub(crate) fn offset(unit: u32) -> usize {
    unit as usize * UNIT + LEAD
}

/// The unit of a packet that begins there.
pub(crate) fn unit(offset: usize) -> u32 {
    (offset / UNIT) as u32
}

/// A mempool that the engine's pool has adopted.
pub(crate) struct Mempool {
    memory: Memory,
    /// Its owner knows by this that it is in use.
    _used: Arc<()>,
    units: Vec<u32>,
    /// Bytes that a packet can have.
    room: usize,
    /// Packets that stages made, which have mbufs.
    pub(crate) made: u64,
}

impl Mempool {
    pub(crate) fn new(memory: Memory, room: usize, used: Arc<()>) -> Self {
        Self { memory, _used: used, units: Vec::with_capacity(256), room, made: 0 }
    }

    /// Returns true if it is this one.
    pub(crate) fn is(&self, memory: &Memory) -> bool {
        self.memory.start() == memory.start()
    }
}

// SAFETY: the mempool's memory is in one piece, as is made sure when it is made; it stays as long as
// `_used` is there. The pool has the mbufs that a burst brought or that `take` gave, each alone (one
// reference), until they are given back or sent.
unsafe impl Region for Mempool {
    fn start(&self) -> NonNull<u8> {
        self.memory.start()
    }

    fn size(&self) -> usize {
        self.memory.size()
    }

    fn buffers(&self) -> Buffers {
        let (first, stride, len) = self.memory.buffers();
        Buffers { first, stride, len }
    }

    fn take(&mut self, len: usize) -> Option<usize> {
        if len > self.room {
            return None;
        }
        let unit = self.memory.take()?;
        self.made += 1;
        Some(offset(unit))
    }

    fn give_back(&mut self, packets: &mut dyn Iterator<Item = usize>) {
        self.units.clear();
        self.units.extend(packets.map(unit));
        // SAFETY: the pool gives back what it has, once.
        unsafe { self.memory.give_back(&self.units) };
    }
}
