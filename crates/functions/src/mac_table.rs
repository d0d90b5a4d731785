//! The filtering database of a learning bridge (IEEE 802.1Q-2018 §8.8): the ports of stations, per VLAN.

use super::table::{NONE, Table};
use slipstream_core::time::Nanos;

/// A station in a VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Station {
    /// VLAN id, 0 to 4095; 0 for untagged frames.
    pub vlan: u16,
    /// Address.
    pub mac: [u8; 6],
}

impl Station {
    fn key(self) -> u64 {
        let [a, b, c, d, e, f] = self.mac;
        u64::from(self.vlan) << 48 | u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    }

    /// Returns true if it is a group address: no station has one.
    #[must_use]
    pub const fn is_group(&self) -> bool {
        self.mac[0] & 1 != 0
    }
}

/// The effect of a frame's source address on the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// A station that was not known.
    New,
    /// Known there.
    Known,
    /// Known elsewhere until now.
    Moved {
        /// The port where it was.
        from: u16,
    },
    /// A static entry says something else, and stands.
    Static,
    /// There is no room.
    Full,
    /// A group address as source, or all zeros: not learned.
    Refused,
}

/// Counters of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MacCounters {
    /// Stations learned.
    pub learned: u64,
    /// Stations that changed their port.
    pub moved: u64,
    /// Stations forgotten after the ageing time.
    pub aged: u64,
    /// Frames whose station found no room.
    pub full: u64,
    /// Frames whose source is no station's, or contradicts a static entry.
    pub refused: u64,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    port: u16,
    fixed: bool,
}

/// The table of one bridge.
///
/// ```
/// use slipstream_core::time::Nanos;
/// use slipstream_functions::mac_table::{Learned, MacTable, Station};
///
/// let mut table = MacTable::new(1000, 300_000_000_000, 1);
/// let station = Station { vlan: 0, mac: [2, 0, 0, 0, 0, 1] };
/// assert_eq!(table.learn(station, 3, Nanos(0)), Learned::New);
/// assert_eq!(table.learn(station, 4, Nanos(1)), Learned::Moved { from: 3 });
/// assert_eq!(table.look_up(station, Nanos(2)), Some(4));
/// assert_eq!(table.look_up(station, Nanos(301_000_000_000)), None);
/// ```
#[derive(Debug)]
pub struct MacTable {
    table: Table<u64, Place>,
    ageing: u64,
    counters: MacCounters,
}

impl MacTable {
    /// A table for at most `stations` (1 to 2³⁰), each forgotten `ageing` nanoseconds after its last frame
    /// (IEEE: 300 s).
    #[must_use]
    pub fn new(stations: u32, ageing: u64, seed: u64) -> Self {
        Self { table: Table::new(stations, seed), ageing, counters: MacCounters::default() }
    }

    /// Memory that a table for so many stations takes when it is made, in bytes, piece by piece.
    pub(crate) fn memory(stations: u32) -> [u64; 3] {
        Table::<u64, Place>::memory(stations)
    }

    /// A static entry: never learned over, never aged. False where there is no room or it is a group address.
    pub fn fix(&mut self, station: Station, port: u16) -> bool {
        let key = station.key();
        let hash = self.table.hash(&key);
        if let Some(id) = self.table.find(&key, hash) {
            self.table.remove(id);
        }
        !station.is_group() && self.table.insert(key, hash, Place { port, fixed: true }, Nanos::MAX).is_ok()
    }

    /// A frame from `station` came in at `port`.
    #[inline]
    pub fn learn(&mut self, station: Station, port: u16, now: Nanos) -> Learned {
        self.learn_known(station, NONE, port, now).0
    }

    /// The same for a station that most likely has the entry of this number; gives the entry that it has now,
    /// or [`NONE`].
    #[inline]
    pub fn learn_known(&mut self, station: Station, known: u32, port: u16, now: Nanos) -> (Learned, u32) {
        if station.is_group() || station.mac == [0; 6] {
            self.counters.refused += 1;
            return (Learned::Refused, NONE);
        }
        let key = station.key();
        let deadline = now.after(self.ageing);
        let hash = if self.table.holds(known, &key, now) { None } else { Some(self.table.hash(&key)) };
        let found = hash.map_or(Some(known), |hash| self.table.find(&key, hash));
        if let Some(id) = found {
            let past = self.table.is_due(id, now);
            let Some(place) = self.table.get_mut(id) else { return (Learned::Full, NONE) };
            if place.fixed {
                if place.port == port {
                    return (Learned::Known, id);
                }
                self.counters.refused += 1;
                return (Learned::Static, id);
            }
            let from = std::mem::replace(&mut place.port, port);
            self.table.extend(id, deadline);
            let learned = match (past, from == port) {
                (true, _) => {
                    self.counters.aged += 1;
                    self.counters.learned += 1;
                    Learned::New
                }
                (false, true) => Learned::Known,
                (false, false) => {
                    self.counters.moved += 1;
                    Learned::Moved { from }
                }
            };
            return (learned, id);
        }
        self.expire(now, 16);
        if self.table.is_full() {
            self.expire(now, u32::MAX);
        }
        let hash = self.table.hash(&key);
        let Ok(id) = self.table.insert(key, hash, Place { port, fixed: false }, deadline) else {
            self.counters.full += 1;
            return (Learned::Full, NONE);
        };
        self.counters.learned += 1;
        (Learned::New, id)
    }

    /// So many more frames came from a station, of each of which the same was learned as just now.
    pub fn more(&mut self, learned: Learned, frames: u64) {
        match learned {
            Learned::Full => self.counters.full += frames,
            Learned::Refused | Learned::Static => self.counters.refused += frames,
            Learned::New | Learned::Known | Learned::Moved { .. } => {}
        }
    }

    /// The entry of a station, which is most likely that of the number `known`; [`NONE`] where it has none,
    /// or its time has passed.
    #[inline]
    #[must_use]
    pub fn entry(&self, station: Station, known: u32, now: Nanos) -> u32 {
        let key = station.key();
        if self.table.holds(known, &key, now) {
            return known;
        }
        let found = self.table.find(&key, self.table.hash(&key));
        found.filter(|&id| !self.table.is_due(id, now)).unwrap_or(NONE)
    }

    /// The port where the station of an entry is, as [`entry`](Self::entry) found it just now.
    #[inline]
    #[must_use]
    pub fn port(&self, entry: u32) -> Option<u16> {
        self.table.get(entry).map(|place| place.port)
    }

    /// The port where a station is; `None` where that is not known (and for groups): the frame goes to all
    /// ports.
    #[inline]
    #[must_use]
    pub fn look_up(&self, station: Station, now: Nanos) -> Option<u16> {
        self.port(self.entry(station, NONE, now))
    }

    /// Up to when what was just learned of the station of an entry, or not, and where it is stay as they are
    /// if nothing more comes; `now` where there is no entry: a station could be learned at any time.
    #[must_use]
    pub fn holds_until(&self, entry: u32, now: Nanos) -> Nanos {
        match self.table.deadline(entry) {
            deadline if deadline > now => deadline,
            _ => now,
        }
    }

    /// Asks for an entry by its number, a few packets ahead.
    #[inline]
    pub fn prefetch_known(&self, entry: u32) {
        self.table.prefetch_entry(entry);
    }

    /// Asks for what a look-up will read, a batch ahead.
    #[inline]
    pub fn prefetch(&self, station: Station) {
        self.table.prefetch_index(self.table.hash(&station.key()));
    }

    /// Forgets stations that were silent, `visits` at most. One that was is never found, called or not.
    pub fn expire(&mut self, now: Nanos, mut visits: u32) {
        while let Some(id) = self.table.next_due(now, &mut visits) {
            self.table.remove(id);
            self.counters.aged += 1;
        }
    }

    /// Entries far from where their hash says; see [`Index::long_probes`](super::table::Index::long_probes).
    #[must_use]
    pub const fn long_probes(&self) -> u64 {
        self.table.long_probes()
    }

    /// Stations in the table.
    #[must_use]
    pub fn stations(&self) -> u32 {
        self.table.len()
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> &MacCounters {
        &self.counters
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn station(n: u8) -> Station {
        Station { vlan: u16::from(n % 3), mac: [2, 0, 0, 0, 0, n / 3] }
    }

    proptest! {
        #[test]
        fn equals_a_map(
            frames in proptest::collection::vec((0..60_u8, 0..4_u16, 0..200_000_000_u64), 1..300),
            fixed in proptest::collection::vec((0..60_u8, 0..4_u16), 0..4), room in 8..70_u32,
        ) {
            const AGEING: u64 = 1_000_000_000;
            let mut table = MacTable::new(room, AGEING, 3);
            let mut twin: HashMap<Station, (u16, u64)> = HashMap::new();
            let mut pinned: HashMap<Station, u16> = HashMap::new();
            for (n, port) in fixed {
                prop_assert!(table.fix(station(n), port));
                pinned.insert(station(n), port);
            }
            let mut now = 77;
            for (n, port, gap) in frames {
                now += gap;
                table.expire(Nanos(now), 100);
                let station = station(n);
                let place = twin.get(&station).filter(|(_, deadline)| *deadline > now).map(|(port, _)| *port);
                let learned = table.learn(station, port, Nanos(now));
                match (pinned.get(&station), place) {
                    (Some(p), _) if *p == port => prop_assert_eq!(learned, Learned::Known),
                    (Some(_), _) => prop_assert_eq!(learned, Learned::Static),
                    (None, Some(p)) if p == port => prop_assert_eq!(learned, Learned::Known),
                    (None, Some(from)) => prop_assert_eq!(learned, Learned::Moved { from }),
                    (None, None) => {
                        if learned == Learned::Full {
                            // Those just aged may still take room, for a tick at most.
                            let near = twin.values().filter(|(_, d)| *d + (1 << 26) > now).count();
                            prop_assert!(near + pinned.len() >= room as usize);
                        } else {
                            prop_assert_eq!(learned, Learned::New);
                        }
                    }
                }
                if !pinned.contains_key(&station) && learned != Learned::Full {
                    twin.insert(station, (port, now + AGEING));
                }
                for n in 0..60 {
                    let station = super::tests::station(n);
                    let expected = pinned.get(&station).copied().or_else(|| {
                        twin.get(&station).filter(|(_, deadline)| *deadline > now).map(|(port, _)| *port)
                    });
                    prop_assert_eq!(table.look_up(station, Nanos(now)), expected);
                }
                prop_assert!(table.stations() <= room);
            }
        }
    }

    #[test]
    fn moves_are_counted_and_groups_refused() {
        let mut table = MacTable::new(10, 300, 1);
        let a = station(3);
        assert_eq!(table.learn(a, 1, Nanos(0)), Learned::New);
        assert_eq!(table.learn(a, 2, Nanos(1)), Learned::Moved { from: 1 });
        assert_eq!(table.look_up(Station { vlan: 9, ..a }, Nanos(1)), None, "another VLAN");
        let group = Station { vlan: 0, mac: [1, 0, 0x5e, 0, 0, 1] };
        assert_eq!(table.learn(group, 1, Nanos(1)), Learned::Refused);
        assert!(!table.fix(group, 1));
        assert_eq!(table.learn(Station { vlan: 0, mac: [0; 6] }, 1, Nanos(1)), Learned::Refused);
        let MacCounters { learned, moved, refused, .. } = *table.counters();
        assert_eq!((learned, moved, refused), (1, 1, 2));
    }
}
