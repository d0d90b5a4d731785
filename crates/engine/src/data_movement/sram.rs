//! Room for payloads that wait, on a card or in a switch.

use crate::slice::entries_for;

use super::SMALLEST_FRAME;

/// What is known of the packets and of how long functions have them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Demand {
    /// Speed of the link in bits a second.
    pub link: f64,
    /// Smallest frame that is sliced, in bytes: the threshold. 500 in the paper.
    pub smallest: u32,
    /// Largest frame, in bytes: 1518.
    pub largest: u32,
    /// Bytes between frames on the wire: preamble and gap, 20 in truth; the paper leaves them out.
    pub framing: u32,
    /// How long functions have a packet on average, in ns: 10,000 in the paper.
    pub service_ns: u64,
    /// Entries for every one that is needed on average, 1 or more: for bursts.
    pub headroom: f64,
    /// Bytes beside a payload: generation 3, TTL 2, length 2, checksum difference 2, DSCP and state 1.
    pub metadata: u32,
}

impl Default for Demand {
    fn default() -> Self {
        Self {
            link: 100e9,
            smallest: 500,
            largest: 1518,
            framing: 0,
            service_ns: 10_000,
            headroom: 1.0,
            metadata: 10,
        }
    }
}

/// What that takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Room {
    /// Packets that are worth slicing, a second at most: the smallest of them, back to back.
    pub rate: f64,
    /// Payloads that wait at a time (N).
    pub entries: u32,
    /// Bytes of an entry (M): the largest frame but the 64 bytes that go on.
    pub entry_bytes: u32,
    /// Bytes of all payloads.
    pub payload_bytes: u64,
    /// The same with what is kept beside them.
    pub all_bytes: u64,
}

impl Demand {
    /// Entries by Little's law, and their bytes.
    ///
    /// ```
    /// use slipstream::data_movement::sram::Demand;
    ///
    /// // §VII of the paper: N = 250, M = 1454, 355 KiB.
    /// let room = Demand::default().room();
    /// assert_eq!((room.entries, room.entry_bytes, room.payload_bytes / 1024), (250, 1454, 354));
    /// ```
    #[must_use]
    pub fn room(&self) -> Room {
        let rate = self.link / (8.0 * f64::from((self.smallest + self.framing).max(1)));
        let entries = entries_for(rate, self.service_ns, self.headroom);
        let entry_bytes = self.largest.saturating_sub(SMALLEST_FRAME);
        let bytes = |each: u32| u64::from(entries) * u64::from(each);
        Room {
            rate,
            entries,
            entry_bytes,
            payload_bytes: bytes(entry_bytes),
            all_bytes: bytes(entry_bytes + self.metadata),
        }
    }
}
