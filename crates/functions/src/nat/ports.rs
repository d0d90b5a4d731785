//! External ports: which are taken, and which one a mapping gets.
//!
//! A port keeps its number where it can (RFC 4787 §4.2.1), else its range (REQ-3a) and its parity (REQ-4):
//! the search for a free one begins at a place that a keyed function of both endpoints chooses (RFC 6056
//! §3.3.3) and takes the first one that fits, 64 ports at a step. A search that found none is not made again
//! before a port is given back: where inside hosts have taken all ports, their next packets cost no searches.

use std::ops::RangeInclusive;

use aes::Aes128Enc;
use aes::cipher::{BlockCipherEncrypt, KeyInit};
use slipstream_wire::NarrowKey;

/// Starting points of the search for a port. Others see the ports that come out, which must tell nothing of
/// those to come: a block of AES, not the hash of the tables.
#[derive(Clone, Debug)]
pub(super) struct Starts(Aes128Enc);

impl Starts {
    pub(super) fn new(seed: u64) -> Self {
        let key = u128::from_be_bytes(*b"slipstream ports") ^ u128::from(seed);
        Self(Aes128Enc::new(&key.to_le_bytes().into()))
    }

    /// 64 bits for a pair of endpoints.
    pub(super) fn of(&self, endpoints: NarrowKey) -> u64 {
        let NarrowKey([addresses, rest]) = endpoints;
        let mut block = (u128::from(addresses) << 64 | u128::from(rest)).to_le_bytes().into();
        self.0.encrypt_block(&mut block);
        block.iter().take(8).fold(0, |all, byte| all << 8 | u64::from(*byte))
    }
}

const WORDS: usize = 1024;
const EVEN: u64 = 0x5555_5555_5555_5555;

/// Ports of one protocol at one address: a bit for each that is taken.
#[derive(Debug)]
struct Bitmap(Vec<u64>);

impl Bitmap {
    fn new() -> Self {
        Self(vec![0; WORDS])
    }

    fn taken(&self, port: u16) -> bool {
        self.0.get(usize::from(port / 64)).is_some_and(|word| word >> (port % 64) & 1 != 0)
    }

    fn set(&mut self, port: u16, taken: bool) {
        if let Some(word) = self.0.get_mut(usize::from(port / 64)) {
            let bit = 1 << (port % 64);
            *word = if taken { *word | bit } else { *word & !bit };
        }
    }

    /// The first free port from `first` to `last` that `parity` (a mask of bits within a word) allows.
    fn first_free(&self, first: u16, last: u16, parity: u64) -> Option<u16> {
        let words = usize::from(first / 64)..=usize::from(last / 64);
        for (at, word) in self.0.get(words)?.iter().enumerate() {
            let at = usize::from(first / 64) + at;
            let mut free = !word & parity;
            if at == usize::from(first / 64) {
                free &= u64::MAX << (first % 64);
            }
            if at == usize::from(last / 64) {
                free &= u64::MAX >> (63 - last % 64);
            }
            if free != 0 {
                return Some((at * 64) as u16 + free.trailing_zeros() as u16);
            }
        }
        None
    }

    fn search(&self, range: &RangeInclusive<u16>, hash: u64, parity: u64) -> Option<u16> {
        if range.is_empty() {
            return None;
        }
        let (first, last) = (*range.start(), *range.end());
        let size = u64::from(last - first) + 1;
        let start = first + (hash % size) as u16;
        let from_start = self.first_free(start, last, parity);
        from_start.or_else(|| if start > first { self.first_free(first, start - 1, parity) } else { None })
    }
}

/// The protocols that have external ports, or identifiers that serve as such.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PortSpace {
    Tcp,
    Udp,
    Icmp,
}

impl PortSpace {
    pub(super) fn of(protocol: u8) -> Option<Self> {
        match protocol {
            6 => Some(Self::Tcp),
            17 => Some(Self::Udp),
            1 => Some(Self::Icmp),
            _ => None,
        }
    }

    pub(super) const fn protocol(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Icmp => 1,
        }
    }
}

/// The searches that found no port, by protocol: those for inside ports below 1024, and those for the others.
#[derive(Clone, Copy, Debug, Default)]
struct Vain([[bool; 2]; 3]);

impl Vain {
    fn of(&mut self, space: PortSpace, wanted: u16) -> Option<&mut bool> {
        self.0.get_mut(space as usize)?.get_mut(usize::from(wanted < 1024))
    }

    /// A port of this protocol is free again.
    fn forget(&mut self, space: PortSpace) {
        if let Some(of_space) = self.0.get_mut(space as usize) {
            *of_space = [false; 2];
        }
    }
}

/// The ports of an address.
#[derive(Debug)]
pub(super) struct AddressPorts {
    spaces: [Bitmap; 3],
    vain: Vain,
}

impl AddressPorts {
    /// None of them taken.
    pub(super) fn new() -> Self {
        Self { spaces: [Bitmap::new(), Bitmap::new(), Bitmap::new()], vain: Vain::default() }
    }
}

/// The ports of all addresses of a pool.
#[derive(Debug)]
pub(super) struct Ports {
    spaces: Vec<AddressPorts>,
    high: RangeInclusive<u16>,
    low: RangeInclusive<u16>,
    identifiers: RangeInclusive<u16>,
    /// Searches that found no port at any address.
    vain: Vain,
}

impl Ports {
    pub(super) fn new(addresses: usize, high: RangeInclusive<u16>, low: RangeInclusive<u16>) -> Self {
        let spaces = (0..addresses).map(|_| AddressPorts::new()).collect();
        Self { spaces, high, low, identifiers: 0..=u16::MAX, vain: Vain::default() }
    }

    /// With these identifiers for ICMP queries.
    pub(super) fn with_identifiers(self, identifiers: RangeInclusive<u16>) -> Self {
        Self { identifiers, ..self }
    }

    fn bitmap(&mut self, address: usize, space: PortSpace) -> Option<&mut Bitmap> {
        self.spaces.get_mut(address).and_then(|ports| ports.spaces.get_mut(space as usize))
    }

    /// Returns true if no address had a port for the inside port `wanted`, and none was given back since.
    pub(super) fn has_none(&mut self, space: PortSpace, wanted: u16) -> bool {
        self.vain.of(space, wanted).is_some_and(|vain| *vain)
    }

    /// No address that may be used has a port for the inside port `wanted`.
    pub(super) fn note_none(&mut self, space: PortSpace, wanted: u16) {
        if let Some(vain) = self.vain.of(space, wanted) {
            *vain = true;
        }
    }

    /// Takes a port at an address for the inside port `wanted`; `None` when there is none left. `start` says
    /// where the search begins, if there has to be one.
    pub(super) fn take(
        &mut self,
        address: usize,
        space: PortSpace,
        wanted: u16,
        start: impl FnOnce() -> u64,
    ) -> Option<u16> {
        if self.spaces.get_mut(address)?.vain.of(space, wanted).is_some_and(|vain| *vain) {
            return None;
        }
        let port = self.search(address, space, wanted, start);
        if let Some(vain) = self.spaces.get_mut(address)?.vain.of(space, wanted).filter(|_| port.is_none()) {
            *vain = true;
        }
        port
    }

    fn search(
        &mut self,
        address: usize,
        space: PortSpace,
        wanted: u16,
        start: impl FnOnce() -> u64,
    ) -> Option<u16> {
        let (high, low, identifiers) = (self.high.clone(), self.low.clone(), self.identifiers.clone());
        let bitmap = self.bitmap(address, space)?;
        let same_parity = if wanted.is_multiple_of(2) { EVEN } else { !EVEN };
        let port = if space == PortSpace::Icmp {
            let free = identifiers.contains(&wanted) && !bitmap.taken(wanted);
            if free { Some(wanted) } else { bitmap.search(&identifiers, start(), u64::MAX) }
        } else {
            let (first, second) = if wanted < 1024 { (&low, &high) } else { (&high, &low) };
            let second = if wanted < 1024 { Some(second) } else { None };
            if first.contains(&wanted) && !bitmap.taken(wanted) {
                Some(wanted)
            } else {
                let hash = start();
                bitmap
                    .search(first, hash, same_parity)
                    .or_else(|| bitmap.search(first, hash, !same_parity))
                    .or_else(|| second.and_then(|range| bitmap.search(range, hash, same_parity)))
                    .or_else(|| second.and_then(|range| bitmap.search(range, hash, !same_parity)))
            }
        }?;
        bitmap.set(port, true);
        Some(port)
    }

    /// Ports of one address more.
    pub(super) fn add(&mut self, new: &mut AddressPorts) {
        let spaces = std::mem::replace(&mut new.spaces, std::array::from_fn(|_| Bitmap(Vec::new())));
        self.spaces.push(AddressPorts { spaces, vain: Vain::default() });
        self.vain = Vain::default();
    }

    /// From now on ports come from these ranges.
    pub(super) fn set_ranges(&mut self, high: RangeInclusive<u16>, low: RangeInclusive<u16>) {
        (self.high, self.low) = (high, low);
        self.vain = Vain::default();
        self.spaces.iter_mut().for_each(|ports| ports.vain = Vain::default());
    }

    /// Takes a certain port, if it is free and may be taken.
    pub(super) fn take_this(&mut self, address: usize, space: PortSpace, port: u16) -> bool {
        let within = match space {
            PortSpace::Icmp => self.identifiers.contains(&port),
            _ => self.high.contains(&port) || self.low.contains(&port),
        };
        let Some(bitmap) = self.bitmap(address, space).filter(|bitmap| within && !bitmap.taken(port)) else {
            return false;
        };
        bitmap.set(port, true);
        true
    }

    /// Takes a certain port for good: a static mapping has it.
    pub(super) fn reserve(&mut self, address: usize, space: PortSpace, port: u16) {
        if let Some(bitmap) = self.bitmap(address, space) {
            bitmap.set(port, true);
        }
    }

    pub(super) fn give_back(&mut self, address: usize, space: PortSpace, port: u16) {
        if let Some(ports) = self.spaces.get_mut(address) {
            ports.vain.forget(space);
        }
        self.vain.forget(space);
        if let Some(bitmap) = self.bitmap(address, space) {
            bitmap.set(port, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// One port at a time, in the order of the search.
    fn slow(taken: &BTreeSet<u16>, range: &RangeInclusive<u16>, hash: u64, odd: Option<bool>) -> Option<u16> {
        let all: Vec<u16> = range.clone().collect();
        let start = (hash % all.len() as u64) as usize;
        let (before, after) = all.split_at(start);
        let fits = |p: &&u16| !taken.contains(p) && odd.is_none_or(|odd| (**p % 2 == 1) == odd);
        after.iter().chain(before).find(fits).copied()
    }

    proptest! {
        #[test]
        fn equals_a_search_port_by_port(
            wanted in prop_oneof![0..70_u16, 1000..1100_u16],
            hashes in proptest::collection::vec(any::<u64>(), 1..200),
            gone in proptest::collection::vec(any::<proptest::sample::Index>(), 0..50),
            (start, size) in (1030..1100_u16, 0..130_u16),
        ) {
            let (high, low) = (start..=start + size, 30..=70);
            let mut ports = Ports::new(1, high.clone(), low.clone());
            let mut taken = BTreeSet::new();
            for (n, hash) in hashes.into_iter().enumerate() {
                let port = ports.take(0, PortSpace::Udp, wanted, || hash);
                let odd = wanted % 2 == 1;
                let home = if wanted < 1024 { &low } else { &high };
                let mut expected = Some(wanted).filter(|p| home.contains(p) && !taken.contains(p));
                let ranges: &[_] = if wanted < 1024 { &[&low, &high] } else { &[&high] };
                for range in ranges {
                    for odd in [odd, !odd] {
                        expected = expected.or_else(|| slow(&taken, range, hash, Some(odd)));
                    }
                }
                prop_assert_eq!(port, expected);
                taken.extend(port);
                if let Some(which) = gone.get(n).filter(|_| !taken.is_empty()) {
                    let all: Vec<u16> = taken.iter().copied().collect();
                    let port = *which.get(&all);
                    ports.give_back(0, PortSpace::Udp, port);
                    taken.remove(&port);
                }
            }
        }
    }

    #[test]
    fn every_port_is_given_once() {
        let mut ports = Ports::new(2, 1024..=65_535, 1..=1023);
        ports.reserve(1, PortSpace::Tcp, 5000);
        let mut seen = BTreeSet::new();
        while let Some(port) = ports.take(1, PortSpace::Tcp, 4000, || 12345) {
            assert!(seen.insert(port));
        }
        assert_eq!(seen.len(), 65_536 - 1024 - 1);
        assert!(!seen.contains(&5000));
        assert_eq!(ports.take(1, PortSpace::Icmp, 0, || 7), Some(0));
        assert_eq!(ports.take(1, PortSpace::Icmp, 0, || 7), Some(7));
        assert_eq!(ports.take(0, PortSpace::Tcp, 4000, || 1), Some(4000));
        assert_eq!(ports.take(2, PortSpace::Tcp, 4000, || 1), None);
        let mut few = Ports::new(1, 1024..=65_535, 1..=1023).with_identifiers(500..=502);
        let mut taken: Vec<_> = (0..3).map(|n| few.take(0, PortSpace::Icmp, 7, || n).unwrap()).collect();
        taken.sort_unstable();
        assert_eq!((taken, few.take(0, PortSpace::Icmp, 501, || 1)), (vec![500, 501, 502], None));
    }

    /// A search that found no port is not made again before one is given back, of the same protocol; one for
    /// another range of ports is.
    #[test]
    fn searches_in_vain_are_not_repeated() {
        use PortSpace::{Icmp, Tcp, Udp};
        let again = || -> u64 { panic!("a search that found nothing is made again") };
        let mut ports = Ports::new(2, 1024..=1027, 1..=2).with_identifiers(7..=7);
        let take = |ports: &mut Ports, address, space, wanted: u16, n: usize| {
            (0..n).filter(|_| ports.take(address, space, wanted, || 1).is_some()).count()
        };
        assert_eq!(take(&mut ports, 0, Udp, 5000, 5), 4);
        assert_eq!((take(&mut ports, 0, Udp, 500, 3), take(&mut ports, 0, Icmp, 9, 2)), (2, 1));
        for (space, wanted) in [(Udp, 5000), (Udp, 1024), (Udp, 500), (Udp, 1), (Icmp, 9), (Icmp, 7)] {
            assert_eq!(ports.take(0, space, wanted, again), None);
        }
        assert_eq!(ports.take(0, Tcp, 5000, || 1), Some(1026));
        assert_eq!(ports.take(1, Udp, 5000, || 1), Some(1026));
        // A port of another protocol, or at another address, is none.
        ports.give_back(0, Tcp, 1026);
        ports.give_back(1, Udp, 1026);
        assert_eq!(ports.take(0, Udp, 5000, again), None);
        ports.give_back(0, Udp, 1025);
        assert_eq!((ports.take(0, Udp, 500, || 0), ports.take(0, Udp, 5000, || 0)), (Some(1025), None));
        assert_eq!(ports.take(0, Udp, 5000, again), None);
        ports.set_ranges(1024..=1028, 1..=2);
        assert_eq!(ports.take(0, Udp, 5000, || 0), Some(1028));
        // At all addresses.
        ports.note_none(Udp, 5000);
        assert!(ports.has_none(Udp, 6000) && !ports.has_none(Udp, 500) && !ports.has_none(Tcp, 5000));
        ports.give_back(0, Tcp, 1024);
        assert!(ports.has_none(Udp, 5000));
        ports.give_back(1, Udp, 1024);
        assert!(!ports.has_none(Udp, 5000));
    }

    /// Every bit of the endpoints and of the seed changes about half of the bits of a start.
    #[test]
    fn starts_say_nothing_of_one_another() {
        let key = NarrowKey([0x0a00_0001_0808_0808, 0x1388_0035_1100_0000]);
        let start = Starts::new(5).of(key);
        let NarrowKey([a, b]) = key;
        let flips = (0..64).flat_map(|bit| {
            let others = [NarrowKey([a ^ 1 << bit, b]), NarrowKey([a, b ^ 1 << bit])];
            others.map(|key| Starts::new(5).of(key)).into_iter().chain([Starts::new(5 ^ 1 << bit).of(key)])
        });
        let flipped: Vec<u32> = flips.map(|other| (start ^ other).count_ones()).collect();
        assert!(flipped.iter().all(|n| (10..=54).contains(n)), "{flipped:?}");
        let mean = f64::from(flipped.iter().sum::<u32>()) / flipped.len() as f64;
        assert!((30.0..34.0).contains(&mean), "{mean}");
    }
}
