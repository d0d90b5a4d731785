//! Bytes to and from memory for packets that a card writes and reads, with a last-level cache that takes them
//! in (DDIO) and without.

use super::FRAME_CHECK;

/// The part of the last-level cache that a card may write to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cache {
    /// Bytes of the last-level cache. The paper's processor, an Intel Xeon Silver 4214, has 16.5 MiB.
    pub bytes: f64,
    /// Ways of that cache: 11 in the paper's processor.
    pub ways: u32,
    /// Ways that a card may write to: 2 by default, 0 where DDIO is switched off.
    pub io_ways: u32,
    /// Packet buffers that are used in turn: receive descriptors, and those on their way out. The paper gives
    /// no number, but says that frames of up to 512 bytes stayed in two ways and larger ones did not, which
    /// holds from 3000 to 5900; 4096 by default.
    pub buffers: u32,
    /// Bytes of a packet that the processor reads: one cache line.
    pub bytes_read: f64,
}

impl Default for Cache {
    fn default() -> Self {
        Self { bytes: 16.5 * 1024.0 * 1024.0, ways: 11, io_ways: 2, buffers: 4096, bytes_read: 64.0 }
    }
}

/// Bytes to and from memory for a packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerPacket {
    /// Written to memory.
    pub written: f64,
    /// Read from memory.
    pub read: f64,
}

impl PerPacket {
    /// Both together.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.written + self.read
    }
}

impl Cache {
    /// Share of packets that are evicted to memory before they leave: those for which the ways have no room,
    /// buffers being used in turn. 1 where cards may write to no way.
    #[must_use]
    pub fn spilled(&self, frame: u32) -> f64 {
        let room = self.bytes * f64::from(self.io_ways) / f64::from(self.ways.max(1));
        let set = f64::from(self.buffers) * lines(frame);
        if self.io_ways == 0 { 1.0 } else { (1.0 - room / set).clamp(0.0, 1.0) }
    }

    /// Bytes for a frame of so many bytes on the wire. A spilled packet is written once and read once, in
    /// part by the processor and the rest by the card.
    #[must_use]
    pub fn per_packet(&self, frame: u32) -> PerPacket {
        let (spilled, bytes) = (self.spilled(frame), lines(frame));
        // The card fetches changed lines from the processor's cache, which writes them to memory some time
        // later.
        let changed = if self.io_ways == 0 { self.bytes_read.min(bytes) } else { 0.0 };
        PerPacket { written: spilled * bytes + changed, read: spilled * bytes }
    }
}

fn lines(frame: u32) -> f64 {
    f64::from(frame.saturating_sub(FRAME_CHECK).max(1).div_ceil(64)) * 64.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// §VI-D c: two ways hold packets of up to 512 bytes, eight hold all, none holds any.
    #[test]
    fn what_the_paper_says_of_its_cache() {
        let with = |io_ways| Cache { io_ways, ..Cache::default() };
        for frame in [64, 512] {
            assert_eq!(with(2).per_packet(frame).total(), 0.0, "{frame}");
        }
        for frame in [1024, 1518] {
            let total = with(2).per_packet(frame).total();
            assert!(total > 0.0 && total < with(0).per_packet(frame).total(), "{frame}: {total}");
        }
        for frame in [64, 512, 1024, 1518] {
            assert_eq!(with(8).per_packet(frame).total(), 0.0, "{frame}");
        }
        assert_eq!(with(0).per_packet(1518), PerPacket { written: 1600.0, read: 1536.0 });
        assert_eq!(with(0).per_packet(u32::MAX).read, 4_294_967_296.0);
    }
}
