//! Bytes to and from memory for packets that a card brings and fetches, where the last-level cache takes them in (DDIO) and where it
//! does not.

use super::FRAME_CHECK;

/// The part of the last-level cache that a card may write to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cache {
    /// Bytes of the last-level cache. The paper's processor, an Intel Xeon Silver 4214, has 16.5 MiB.
    pub bytes: f64,
    /// Its ways: 11 there.
    pub ways: u32,
    /// Ways that a card may write to: 2 by default, 0 where that is switched off (DDIO).
    pub io_ways: u32,
    /// Packet buffers that are used in turn: receive descriptors, and those on their way out. 4096 by default; the paper doesn't
    /// say, but that frames of up to 512 bytes stayed in two ways and larger ones did not, which holds from 3000 to 5900.
    pub buffers: u32,
    /// Bytes of a packet that the processor looks at: one line.
    pub looked_at: f64,
}

impl Default for Cache {
    fn default() -> Self {
        Self { bytes: 16.5 * 1024.0 * 1024.0, ways: 11, io_ways: 2, buffers: 4096, looked_at: 64.0 }
    }
}

/// Bytes a packet to and from memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerPacket {
    /// Written to memory.
    pub written: f64,
    /// Read from it.
    pub read: f64,
}

impl PerPacket {
    /// Both.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.written + self.read
    }
}

impl Cache {
    /// Share of packets that are pushed out to memory before they leave: those for which the ways have no room, buffers being used in
    /// turn. 1 where cards may write to no way.
    #[must_use]
    pub fn spilled(&self, frame: u32) -> f64 {
        let room = self.bytes * f64::from(self.io_ways) / f64::from(self.ways.max(1));
        let set = f64::from(self.buffers) * lines(frame);
        if self.io_ways == 0 { 1.0 } else { (1.0 - room / set).clamp(0.0, 1.0) }
    }

    /// Bytes for a frame of so many bytes on the wire: what is spilled is written once and read once, by the processor what it looks at
    /// and by the card the rest.
    #[must_use]
    pub fn per_packet(&self, frame: u32) -> PerPacket {
        let (spilled, bytes) = (self.spilled(frame), lines(frame));
        // What the processor changed is in its cache when the card fetches it, and goes to memory some time later.
        let changed = if self.io_ways == 0 { self.looked_at.min(bytes) } else { 0.0 };
        PerPacket { written: spilled * bytes + changed, read: spilled * bytes }
    }
}

fn lines(frame: u32) -> f64 {
    f64::from(frame.saturating_sub(FRAME_CHECK).max(1).next_multiple_of(64))
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
    }
}
