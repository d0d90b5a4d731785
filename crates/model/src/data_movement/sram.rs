//! Room for payloads that wait on a card or in a switch.

use super::SMALLEST_FRAME;

/// The packets that are sliced, and the time that functions have them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Demand {
    /// Speed of the link in bits a second.
    pub link: f64,
    /// Smallest frame that is sliced, in bytes: the threshold. 500 in the paper.
    pub smallest: u32,
    /// Largest frame, in bytes: 1518.
    pub largest: u32,
    /// Bytes between frames on the wire: preamble and gap are 20; 0 as in the paper, which leaves them out.
    pub framing: u32,
    /// Mean time that functions have a packet, in ns: 10,000 in the paper.
    pub service_ns: u64,
    /// Entries for every one that is needed on average, 1 or more: for bursts.
    pub headroom: f64,
    /// Entries that a token can name: an upper bound, none by default.
    pub most_entries: u32,
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
            most_entries: u32::MAX,
            metadata: 10,
        }
    }
}

/// The room that a [`Demand`] takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Room {
    /// Packets a second that are worth slicing, at most: the smallest of them, back to back.
    pub rate: f64,
    /// Payloads that wait at a time (N), 1 to [`Demand::most_entries`].
    pub entries: u32,
    /// Bytes of an entry (M): the largest frame less the 64 bytes that travel on.
    pub entry_bytes: u32,
    /// Bytes of all payloads.
    pub payload_bytes: u64,
    /// Bytes of all payloads and of the metadata beside them.
    pub all_bytes: u64,
}

/// Packets that wait on average, by Little's law: those that come in a second times the seconds that each
/// stays.
///
/// ```
/// // §V of the paper slices 4 million packets a second, each 25 µs at the functions.
/// assert_eq!(slipstream_model::data_movement::sram::waiting(4e6, 25_000), 100.0);
/// ```
#[must_use]
pub fn waiting(rate: f64, service_ns: u64) -> f64 {
    rate.max(0.0) * service_ns as f64 / 1e9
}

impl Demand {
    /// Entries by Little's law, and their bytes.
    ///
    /// ```
    /// use slipstream_model::data_movement::sram::Demand;
    ///
    /// // §VII of the paper: N = 250, M = 1454, 355 KiB.
    /// let room = Demand::default().room();
    /// assert_eq!((room.entries, room.entry_bytes, room.payload_bytes / 1024), (250, 1454, 354));
    /// ```
    #[must_use]
    pub fn room(&self) -> Room {
        let rate = self.link / (8.0 * f64::from(self.smallest.saturating_add(self.framing).max(1)));
        let entries = (waiting(rate, self.service_ns) * self.headroom.max(1.0)).ceil();
        let entries = (entries as u32).clamp(1, self.most_entries.max(1));
        let entry_bytes = self.largest.saturating_sub(SMALLEST_FRAME);
        let bytes = |each: u32| u64::from(entries) * u64::from(each);
        Room {
            rate,
            entries,
            entry_bytes,
            payload_bytes: bytes(entry_bytes),
            all_bytes: bytes(entry_bytes.saturating_add(self.metadata)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_bounded_by_what_a_token_can_name() {
        let demand = Demand { service_ns: 1_000_000_000, headroom: 2.0, ..Demand::default() };
        assert_eq!(demand.room().entries, 50_000_000);
        assert_eq!(Demand { most_entries: 1 << 16, ..demand }.room().entries, 1 << 16);
        assert_eq!(Demand { service_ns: 0, ..demand }.room().entries, 1, "a table has an entry");
        assert_eq!(Demand { headroom: 0.5, ..Demand::default() }.room().entries, 250);
    }
}
