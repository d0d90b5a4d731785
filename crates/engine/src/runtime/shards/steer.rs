//! The shard that a packet belongs to.
//!
//! Without a NAT, connections are spread by a hash that both directions share ([`spread`]). Behind a NAT an
//! inside host has all that is its own on one shard, by a hash of its address: its mappings, its sessions,
//! its external address. Each shard gives external ports of a range of its own, so that answers say by their
//! destination where they belong.
//!
//! ICMP errors go with the packet that they tell of, and fragments with the first one of their datagram, as
//! long as that came before them.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use slipstream_io::spread::{self, Ends};

/// Datagrams whose first fragment is remembered; a power of two.
const DATAGRAMS: usize = 1024;
const ICMP: u8 = 1;
const ICMP6: u8 = 58;

/// The rule by which packets of a source are led to shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum By {
    /// Both addresses and ports: a connection.
    #[default]
    Connection,
    /// The source address: packets that come to the inside of a NAT.
    Inside,
    /// The destination: packets that come to the outside of a NAT.
    Outside,
}

/// Ports that a NAT may give, and how they are shared out to shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortRange {
    pub(crate) first: u16,
    pub(crate) last: u16,
}

impl PortRange {
    fn count(self) -> u32 {
        u32::from(self.last.saturating_sub(self.first)) + 1
    }

    /// The part of one of so many shards; none where there are fewer ports than shards.
    pub(crate) fn part(self, shard: u32, shards: u32) -> Option<Self> {
        let at = |n: u32| (u64::from(self.count()) * u64::from(n)).div_ceil(u64::from(shards)) as u32;
        let (from, to) = (at(shard), at(shard + 1));
        let port = |n: u32| u16::try_from(u32::from(self.first) + n).ok();
        (from < to).then_some(Self { first: port(from)?, last: port(to - 1)? })
    }

    /// The shard whose part a port is in.
    fn shard(self, port: u16, shards: u32) -> Option<u32> {
        let within = (self.first..=self.last).contains(&port);
        let n = u64::from(port.wrapping_sub(self.first));
        within.then(|| (n * u64::from(shards) / u64::from(self.count())) as u32)
    }
}

/// The external addresses of a NAT, and its ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct External {
    pub(crate) addresses: Vec<Ipv4Net>,
    pub(crate) ranges: Vec<PortRange>,
    /// Identifiers of ICMP queries.
    pub(crate) identifiers: Option<PortRange>,
}

impl External {
    fn has(&self, address: &[u8]) -> bool {
        let Ok(bytes) = <[u8; 4]>::try_from(address) else { return false };
        let address = Ipv4Addr::from(bytes);
        self.addresses.iter().any(|net| net.contains(&address))
    }

    /// The shard that has given this port, or the identifier of this query.
    fn shard(&self, query: Option<u16>, port: Option<u16>, shards: u32) -> u32 {
        let (ids, ranges) = (self.identifiers.as_slice(), self.ranges.as_slice());
        let (number, ranges) = if query.is_some() { (query, ids) } else { (port, ranges) };
        let of = |number| ranges.iter().find_map(|range| range.shard(number, shards));
        number.and_then(of).unwrap_or_default()
    }
}

/// Fragments of one datagram, and where the first of them went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Datagram {
    key: [u8; 11],
    shard: u32,
}

/// Leads packets of one source to shards.
#[derive(Debug)]
pub(crate) struct Steer {
    shards: u32,
    by: By,
    external: External,
    datagrams: Box<[Datagram]>,
}

impl Steer {
    pub(crate) fn new(shards: u32, by: By, external: External) -> Self {
        Self { shards: shards.max(1), by, external, datagrams: vec![Datagram::default(); DATAGRAMS].into() }
    }

    /// The shard of an Ethernet frame. What isn't IP belongs to the first one.
    pub(crate) fn shard(&mut self, frame: &[u8]) -> u32 {
        let Some(ends) = Ends::of_frame(frame) else { return 0 };
        match ends.fragment {
            None => self.of_packet(&ends),
            Some((id, first)) => self.of_fragment(&ends, id, first),
        }
    }

    fn of_fragment(&mut self, ends: &Ends<'_>, id: [u8; 2], first: bool) -> u32 {
        let mut key = [0; 11];
        let (source, destination, rest) = (key.split_at_mut(4), ends.source, ends.destination);
        if destination.len() == 4 && rest.len() == 4 {
            source.0.copy_from_slice(destination);
            let (to, rest_of_key) = source.1.split_at_mut(4);
            to.copy_from_slice(rest);
            rest_of_key.copy_from_slice(&[id[0], id[1], ends.protocol]);
        }
        let at = key.iter().fold(0u32, |sum, b| sum.wrapping_mul(31).wrapping_add(u32::from(*b)));
        let own = self.of_packet(ends);
        let Some(place) = self.datagrams.get_mut(spread::address(&at.to_be_bytes()) as usize % DATAGRAMS)
        else {
            return own;
        };
        if first {
            *place = Datagram { key, shard: own };
            return own;
        }
        if place.key == key { place.shard } else { own }
    }

    fn of_packet(&self, ends: &Ends<'_>) -> u32 {
        let told_of = error(ends);
        let hash = match (self.by, told_of) {
            (By::Connection, about) => about.as_ref().unwrap_or(ends).hash(true),
            // An error from inside is about a packet that went there.
            (By::Inside, Some(about)) => spread::address(about.destination),
            (By::Inside, None) => spread::address(ends.source),
            // An error from outside is about a packet that left, with an external source.
            (By::Outside, Some(about)) if self.external.has(about.source) => {
                let port = about.ports().map(|[from, _]| from);
                return self.external.shard(query(&about), port, self.shards);
            }
            (By::Outside, Some(about)) => spread::address(about.source),
            (By::Outside, None) if self.external.has(ends.destination) => {
                let port = ends.ports().map(|[_, to]| to);
                return self.external.shard(query(ends), port, self.shards);
            }
            (By::Outside, None) => spread::address(ends.destination),
        };
        hash % self.shards
    }
}

/// The packet that an ICMP error tells of.
fn error<'a>(ends: &Ends<'a>) -> Option<Ends<'a>> {
    let (kind, rest) = (*ends.payload.first()?, ends.payload.get(8..)?);
    match ends.protocol {
        ICMP if matches!(kind, 3 | 4 | 11 | 12) => Ends::of_ipv4(rest),
        ICMP6 if kind < 128 => {
            let (source, destination) = (rest.get(8..24)?, rest.get(24..40)?);
            let (protocol, payload) = (*rest.get(6)?, rest.get(40..)?);
            Some(Ends { protocol, source, destination, payload, fragment: None })
        }
        _ => None,
    }
}

/// The identifier of an ICMP query or its answer, which a NAT translates like a port.
fn query(ends: &Ends<'_>) -> Option<u16> {
    let first = ends.fragment.is_none_or(|(_, first)| first);
    let [kind, _, _, _, a, b] = *ends.payload.first_chunk()?;
    (first && ends.protocol == ICMP && matches!(kind, 0 | 8 | 13..=18)).then(|| u16::from_be_bytes([a, b]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn udp(from: ([u8; 4], u16), to: ([u8; 4], u16)) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([8, 0, 0x45, 0, 0, 40, 0, 9, 0x40, 0, 64, 17, 0, 0]);
        frame.extend(from.0);
        frame.extend(to.0);
        frame.extend(from.1.to_be_bytes());
        frame.extend(to.1.to_be_bytes());
        frame.extend([0; 12]);
        frame
    }

    /// As an error about a packet that a router far away sent to its source.
    fn about(frame: &[u8]) -> Vec<u8> {
        let mut error = udp(([203, 0, 113, 1], 0), ([0; 4], 0));
        error[23] = ICMP;
        error[30..34].copy_from_slice(&frame[26..30]);
        error.truncate(34);
        error.extend([3, 1, 0, 0, 0, 0, 0, 0]);
        error.extend(&frame[14..]);
        error
    }

    proptest! {
        /// Both directions of a connection, errors about it, and its fragments meet.
        #[test]
        fn connections_meet(a: [u8; 4], b: [u8; 4], p: u16, q: u16, shards in 1u32..9, id: [u8; 2]) {
            let mut steer = Steer::new(shards, By::Connection, External::default());
            let (there, back) = (udp((a, p), (b, q)), udp((b, q), (a, p)));
            let shard = steer.shard(&there);
            prop_assert!(shard < shards);
            prop_assert_eq!(steer.shard(&back), shard);
            prop_assert_eq!(steer.shard(&about(&there)), shard);
            let mut first = there.clone();
            first[18..22].copy_from_slice(&[id[0], id[1], 0x20, 0]);
            let mut rest = there;
            rest[18..22].copy_from_slice(&[id[0], id[1], 0, 9]);
            rest[34..].fill(0xee);
            prop_assert_eq!((steer.shard(&first), steer.shard(&rest)), (shard, shard));
        }

        /// Answers to what a NAT sends with a port of its own part come back to its shard, errors about it
        /// too.
        #[test]
        fn answers_meet_the_mapping(
            inside: [u8; 4], remote: [u8; 4], far: u16, shards in 1u32..9, pick: u16, first in 1u16..2000, count in 9u16..60_000,
        ) {
            let range = PortRange { first, last: first.saturating_add(count) };
            let external = External { addresses: vec!["192.0.2.0/30".parse().unwrap()], ranges: vec![range], identifiers: None };
            let mut within = Steer::new(shards, By::Inside, external.clone());
            let mut outside = Steer::new(shards, By::Outside, external);
            prop_assume!(!Ipv4Net::new([192, 0, 2, 0].into(), 30).unwrap().contains(&Ipv4Addr::from(remote)));
            let shard = within.shard(&udp((inside, 4000), (remote, far)));
            prop_assert_eq!(within.shard(&udp((inside, 5000), (remote, far.wrapping_add(1)))), shard, "one host");
            let part = range.part(shard, shards).unwrap();
            let port = part.first + pick % (part.last - part.first + 1);
            let sent = udp(([192, 0, 2, 1], port), (remote, far));
            prop_assert_eq!(outside.shard(&udp((remote, far), ([192, 0, 2, 1], port))), shard);
            prop_assert_eq!(outside.shard(&about(&sent)), shard);
            // Packets that are not translated meet, too.
            prop_assert_eq!(outside.shard(&udp((remote, far), (inside, 4000))), shard);
        }

        /// The parts of a range are all of it, each port once.
        #[test]
        fn parts_are_the_whole(first in 1u16..60_000, count in 0u16..5000, shards in 1u32..17) {
            let range = PortRange { first, last: first.saturating_add(count) };
            let mut next = u32::from(first);
            for shard in 0..shards {
                let Some(part) = range.part(shard, shards) else { continue };
                prop_assert_eq!(u32::from(part.first), next);
                for port in part.first..=part.last {
                    prop_assert_eq!(range.shard(port, shards), Some(shard));
                }
                next = u32::from(part.last) + 1;
            }
            prop_assert_eq!(next, u32::from(range.last) + 1);
        }

        #[test]
        fn any_bytes_belong_somewhere(bytes in proptest::collection::vec(any::<u8>(), 0..120), shards in 1u32..9) {
            for by in [By::Connection, By::Inside, By::Outside] {
                let external = External { addresses: vec!["0.0.0.0/0".parse().unwrap()], ..External::default() };
                prop_assert!(Steer::new(shards, by, external).shard(&bytes) < shards);
            }
        }
    }
}
