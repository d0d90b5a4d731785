//! A cache of decisions by whole flow keys: two flows never share an entry, whatever their hashes say.

use slipstream_wire::{FlowKey, NarrowKey, WideKey};

use super::fields::NO_ICMP;
use super::{PacketFields, Reads};
use slipstream_core::huge;

/// Places that a key may be in.
const WAYS: usize = 4;
/// In place of a rule: no rule matched.
const NO_RULE: u32 = u32::MAX;
/// In place of a rule: nothing is known.
const EMPTY: u32 = u32::MAX - 1;

/// The first matching rule of flows seen lately: bounded, four-way set-associative, the least recently used
/// of four making room.
///
/// If rules read more than the flow key ([`Reads`]), such as TCP flags, the bits that they read are part of
/// what must be equal. ICMP is not cached where rules read its type. Rules that read the packet's length or
/// the state of its connection can't be cached by flow at all ([`obstacle`](DecisionCache::obstacle)): the
/// cache then never knows anything.
#[derive(Clone, Debug)]
pub struct DecisionCache {
    narrow: Table<NarrowKey>,
    wide: Table<WideKey>,
    mask: u32,
    usable: bool,
    icmp: bool,
}

#[derive(Clone, Copy, Debug)]
struct Entry<K> {
    key: K,
    word: u32,
    rule: u32,
}

#[derive(Clone, Debug)]
struct Table<K> {
    sets: Vec<[Entry<K>; WAYS]>,
    mask: usize,
}

impl DecisionCache {
    /// Names what rules read that packets of one flow don't share, so that none of their decisions can be
    /// cached.
    #[must_use]
    pub const fn obstacle(reads: Reads) -> Option<&'static str> {
        if reads.state {
            Some("the states of connections")
        } else if reads.length {
            Some("the lengths of packets")
        } else {
            None
        }
    }

    /// A cache of `flows` IPv4 flows and a quarter as many others (IPv6, or more than one VLAN tag), at least
    /// four of each, both rounded up to powers of two, for rules that read what `reads` says.
    #[must_use]
    pub fn new(flows: usize, reads: Reads) -> Self {
        Self {
            narrow: Table::new(flows, NarrowKey([0; 2])),
            wide: Table::new(flows / 4, WideKey([0; 7])),
            mask: reads.word,
            usable: Self::obstacle(reads).is_none(),
            icmp: reads.icmp,
        }
    }

    /// Memory that a cache of so many flows takes when it is made, in bytes, piece by piece.
    pub(super) fn memory_for(flows: usize) -> [u64; 2] {
        [Table::<NarrowKey>::memory_for(flows), Table::<WideKey>::memory_for(flows / 4)]
    }

    /// The first rule that matches packets of this flow like `packet` (inner `None`: no rule does), if it is
    /// known. `hash` is [`FlowKey::hash64`] of `key`, always with the same seed.
    #[inline]
    pub fn get(&mut self, key: &FlowKey, hash: u64, packet: &PacketFields) -> Option<Option<u32>> {
        if !self.knows(packet) {
            return None;
        }
        let word = packet.word() & self.mask;
        let rule = match key {
            FlowKey::Narrow(key) => self.narrow.get(key, hash, word),
            FlowKey::Wide(key) => self.wide.get(key, hash, word),
        }?;
        Some((rule != NO_RULE).then_some(rule))
    }

    /// Remembers the first rule that matches packets of this flow like `packet`.
    #[inline]
    pub fn put(&mut self, key: &FlowKey, hash: u64, packet: &PacketFields, rule: Option<u32>) {
        if !self.knows(packet) {
            return;
        }
        let word = packet.word() & self.mask;
        let rule = rule.unwrap_or(NO_RULE);
        match key {
            FlowKey::Narrow(key) => self.narrow.put(*key, hash, word, rule),
            FlowKey::Wide(key) => self.wide.put(*key, hash, word, rule),
        }
    }

    /// Returns true if what is decided about a packet can be known by its flow.
    #[inline]
    fn knows(&self, packet: &PacketFields) -> bool {
        self.usable && !(self.icmp && packet.icmp != NO_ICMP)
    }

    /// Forgets everything: for another rule set that reads the same.
    pub fn clear(&mut self) {
        self.narrow.clear();
        self.wide.clear();
    }

    /// Memory in bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        size_of_val(self.narrow.sets.as_slice()) + size_of_val(self.wide.sets.as_slice())
    }
}

impl<K: Copy + Eq> Table<K> {
    /// Sets for so many flows.
    fn count(flows: usize) -> usize {
        flows.div_ceil(WAYS).next_power_of_two()
    }

    fn memory_for(flows: usize) -> u64 {
        (Self::count(flows) as u64).saturating_mul(size_of::<[Entry<K>; WAYS]>() as u64)
    }

    fn new(flows: usize, key: K) -> Self {
        let count = Self::count(flows);
        let mut sets = huge::with_capacity(count);
        sets.resize(count, [Entry { key, word: 0, rule: EMPTY }; WAYS]);
        Self { sets, mask: count - 1 }
    }

    /// Finds the cached rule; its entry becomes the first of its set.
    #[inline]
    fn get(&mut self, key: &K, hash: u64, word: u32) -> Option<u32> {
        let set = self.sets.get_mut(hash as usize & self.mask)?;
        let at = set.iter().position(|e| e.key == *key && e.word == word && e.rule != EMPTY)?;
        if at > 0 {
            set.get_mut(..=at)?.rotate_right(1);
        }
        let [first, ..] = set;
        Some(first.rule)
    }

    #[inline]
    fn put(&mut self, key: K, hash: u64, word: u32, rule: u32) {
        let Some(set) = self.sets.get_mut(hash as usize & self.mask) else { return };
        let known = set.iter().position(|e| e.key == key && e.word == word);
        if let Some(used) = set.get_mut(..=known.unwrap_or(WAYS - 1)) {
            used.rotate_right(1);
        }
        let [first, ..] = set;
        *first = Entry { key, word, rule };
    }

    fn clear(&mut self) {
        self.sets.iter_mut().flatten().for_each(|entry| entry.rule = EMPTY);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(n: u16, ipv6: bool) -> FlowKey {
        if ipv6 {
            return FlowKey::new(&[], [7; 16].into(), [8; 16].into(), 6, n, 1).unwrap();
        }
        FlowKey::new(&[], [10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 6, n, 1).unwrap()
    }

    fn packet(key: &FlowKey) -> PacketFields {
        PacketFields::of(key, 0, 60)
    }

    proptest! {
        /// Against a list in which the one used last stands first, and the fifth falls off.
        #[test]
        fn of_four_flows_the_least_recently_used_makes_room(
            steps in prop::collection::vec((0..7_u16, any::<bool>(), prop::option::of(0..3_u32)), 0..60),
            ipv6 in any::<bool>(),
            clear_at in 0..60_usize,
        ) {
            let mut cache = DecisionCache::new(4, Reads::default());
            let mut twin: Vec<(u16, Option<u32>)> = Vec::new();
            for (n, (flow, put, rule)) in steps.into_iter().enumerate() {
                if n == clear_at {
                    cache.clear();
                    twin.clear();
                }
                let (key, known) = (key(flow, ipv6), twin.iter().position(|(f, _)| *f == flow));
                if put {
                    cache.put(&key, u64::from(flow), &packet(&key), rule);
                    known.map(|at| twin.remove(at));
                    twin.insert(0, (flow, rule));
                    twin.truncate(4);
                } else {
                    let expected = known.map(|at| twin.remove(at));
                    prop_assert_eq!(cache.get(&key, u64::from(flow), &packet(&key)), expected.map(|(_, rule)| rule));
                    twin.splice(0..0, expected);
                }
            }
        }
    }

    /// Packets of one flow of ICMP may differ in type, which rules may read; packets of other flows can't.
    #[test]
    fn icmp_is_remembered_where_rules_do_not_read_its_type() {
        let key = key(0, false);
        for (reads, icmp) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut cache = DecisionCache::new(4, Reads { icmp: reads, ..Reads::default() });
            let packet = if icmp { packet(&key).with_icmp(8, 0) } else { packet(&key) };
            cache.put(&key, 0, &packet, Some(1));
            let expected = (!(reads && icmp)).then_some(Some(1));
            assert_eq!(cache.get(&key, 0, &packet), expected, "{reads} {icmp}");
        }
    }
}
