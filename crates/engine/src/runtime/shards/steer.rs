//! The shard that a packet belongs to.
//!
//! Without a NAT, connections are spread by a hash that both directions share ([`spread`]). Behind a NAT an
//! inside host has all that is its own on one shard, by a hash of its address: its mappings, its sessions,
//! its external address. Each shard gives external ports of a range of its own, so that answers say by their
//! destination where they belong.
//!
//! ICMP errors go with the packet that they tell of, and fragments with the first one of their datagram:
//! those that come before it have to [wait](super::early).

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ipnet::{IpNet, Ipv4Net};
use slipstream_core::operate::EntryEnds;
use slipstream_io::spread::{self, Ends};
use slipstream_wire::ToeplitzKey;
use slipstream_wire::protocol::{HOP_BY_HOP, ICMP, ICMPV6, TCP, UDP};

/// Datagrams whose first fragment is remembered, and how many of them share a hash: the latest ones.
const DATAGRAMS: usize = 1024;
const WAYS: usize = 8;
/// Places of a card's table of queues, or of its beginning.
const TABLE: u32 = 128;
/// ICMPv6 type of a query of multicast listeners (RFC 3810 §5.1).
const LISTENER_QUERY: u8 = 130;

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

/// The hash by which connections are led to shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Hash {
    /// The hash of the kernel's packet filter ([`spread`]).
    #[default]
    Filter,
    /// The hash of network cards: the Toeplitz hash with a symmetric key.
    Rss,
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

/// Hosts behind a NAT, as far as somebody says so.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hosts<'a> {
    /// All that are translated; none: every source that comes to its inside.
    pub(crate) translated: &'a [IpNet],
    /// Some that it has sessions or mappings of, or whose shard has told so.
    pub(crate) known: &'a HashSet<IpAddr>,
}

/// Returns true if one of the networks has the address.
fn names(nets: &[IpNet], address: IpAddr) -> bool {
    nets.iter().any(|net| net.contains(&address))
}

impl Hosts<'_> {
    /// Returns true if a connection that is not of external addresses was begun from outside, as far as one
    /// can tell.
    fn begun_from_outside(&self, source: IpAddr, destination: IpAddr) -> bool {
        let [from_inside, to_inside] = [source, destination].map(|end| names(self.translated, end));
        if from_inside || to_inside {
            return !from_inside;
        }
        // Settings that name no host say nothing, nor do others about IPv6, which is not translated.
        let otherwise = source.is_ipv4() && !self.translated.is_empty();
        !self.known.contains(&source) && (otherwise || self.known.contains(&destination))
    }
}

/// The external addresses that count now: a reload changes them while shards run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Externals(Arc<(AtomicU64, Mutex<External>)>);

impl Externals {
    pub(crate) fn new(external: External) -> Self {
        Self(Arc::new((AtomicU64::new(1), Mutex::new(external))))
    }

    /// From now on these count.
    pub(crate) fn set(&self, external: External) {
        *self.0.1.lock().unwrap_or_else(PoisonError::into_inner) = external;
        self.0.0.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn get(&self) -> External {
        self.0.1.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Fragments of one datagram, and where the first of them went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Datagram {
    key: DatagramKey,
    shard: u32,
}

/// The addresses of a datagram, each in front of zeros where they are of IPv4, its identification, and its
/// protocol, which only IPv4 tells datagrams apart by.
pub(super) type DatagramKey = ([[u8; 16]; 2], u32, u8);

/// The way of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Led {
    /// To this shard.
    To(u32),
    /// To this shard, as the first fragment of this datagram, whose others go there, too.
    First(DatagramKey, u32),
    /// Nobody knows yet: it is a later fragment of this datagram, whose first one has not come. By its
    /// addresses it would go to this shard.
    Early(DatagramKey, u32),
}

/// Leads packets of one source to shards.
#[derive(Debug)]
pub(crate) struct Steer {
    shards: u32,
    by: By,
    externals: Externals,
    /// The change of these that `external` is of.
    seen: u64,
    external: External,
    /// The card's key, where connections go by its hash.
    rss: Option<Box<ToeplitzKey>>,
    datagrams: Box<[Datagram]>,
    /// Frames in which neighbours on the link tell of themselves are for all shards.
    neighbours: bool,
}

impl Steer {
    pub(crate) fn new(shards: u32, by: By, hash: Hash, externals: Externals) -> Self {
        let rss = (hash == Hash::Rss).then(|| Box::new(ToeplitzKey::new(ToeplitzKey::SYMMETRIC)));
        let datagrams = vec![Datagram::default(); DATAGRAMS].into();
        let (seen, external) = (0, External::default());
        let (shards, neighbours) = (shards.max(1), false);
        let mut steer = Self { shards, by, externals, seen, external, rss, datagrams, neighbours };
        steer.look();
        steer
    }

    /// The same, where all shards are to hear what neighbours say, since each has a router that asks them.
    pub(crate) fn telling_all(self, neighbours: bool) -> Self {
        Self { neighbours, ..self }
    }

    /// True for a frame that is for all shards.
    #[inline]
    pub(crate) fn for_all(&self, frame: &[u8]) -> bool {
        self.neighbours && is_of_neighbours(frame)
    }

    /// Goes by the external addresses that count now.
    #[inline]
    pub(crate) fn look(&mut self) {
        let latest = self.externals.0.0.load(Ordering::Acquire);
        if latest != self.seen {
            self.seen = latest;
            self.external = self.externals.get();
        }
    }

    /// The shard to which the packets of a saved entry are led. `inside` says which hosts are behind the NAT,
    /// if there is one. None where they would be led to two: an inside host's own shard has no part in the
    /// external port.
    pub(crate) fn of_entry(&self, ends: &EntryEnds, inside: Option<Hosts<'_>>) -> Option<u32> {
        let (source, destination) = (Octets::of(ends.source.0), Octets::of(ends.destination.0));
        let is_query = ends.protocol == ICMP;
        let by_port = |port: u16| {
            self.external.shard(is_query.then_some(port), (!is_query).then_some(port), self.shards)
        };
        let Some(inside) = inside else {
            let mut payload = [0; 4];
            let ports = [ends.source.1, ends.destination.1].map(u16::to_be_bytes);
            payload.iter_mut().zip(ports.as_flattened()).for_each(|(to, from)| *to = *from);
            let ends = Ends {
                protocol: ends.protocol,
                source: source.bytes(),
                destination: destination.bytes(),
                payload: &payload,
                fragment: None,
                extended: false,
            };
            return Some(self.connection(&ends) % self.shards);
        };
        let host = |octets: &Octets| spread::address(octets.bytes()) % self.shards;
        if let Some((_, port)) = ends.external {
            return Some(host(&source)).filter(|shard| *shard == by_port(port));
        }
        // Behind the NAT packets have external ends, before it inside hosts.
        Some(if self.external.has(source.bytes()) {
            by_port(ends.source.1)
        } else if self.external.has(destination.bytes()) {
            by_port(ends.destination.1)
        } else if inside.begun_from_outside(ends.source.0, ends.destination.0) {
            host(&destination)
        } else {
            host(&source)
        })
    }

    /// The end of a connection of a shard that is behind the NAT, where settings don't name it and the shard
    /// tells: inside hosts have all that is their own on one.
    pub(crate) fn inside_host(&self, ends: &EntryEnds, translated: &[IpNet], shard: u32) -> Option<IpAddr> {
        let both = [ends.source.0, ends.destination.0];
        let is_told = |end: &IpAddr| names(translated, *end) || self.external.has(Octets::of(*end).bytes());
        if ends.external.is_some() || both.iter().any(is_told) {
            return None;
        }
        let is_here = |end: &&IpAddr| spread::address(Octets::of(**end).bytes()) % self.shards == shard;
        let mut here = both.iter().filter(is_here);
        here.next().copied().filter(|_| here.next().is_none())
    }

    /// The hash of a connection.
    fn connection(&self, ends: &Ends<'_>) -> u32 {
        let Some(key) = &self.rss else { return ends.hash(true) };
        // Addresses, then of TCP and UDP, which all cards know, the ports; the last bits of it are the place
        // in the card's table, which has the queues in turn.
        let (mut input, addresses) = ([0; 36], ends.source.len() + ends.destination.len());
        let whole = ends.source.iter().chain(ends.destination);
        input.iter_mut().zip(whole).for_each(|(to, from)| *to = *from);
        let ports = ends.ports().filter(|_| [TCP, UDP].contains(&ends.protocol));
        let [from, to] = ports.unwrap_or_default();
        let both = (u32::from(from) << 16 | u32::from(to)).to_be_bytes();
        input.iter_mut().skip(addresses).zip(both).for_each(|(to, from)| *to = from);
        // Without ports their bytes are 0, which add nothing.
        key.hash(&input) % TABLE
    }

    /// The way of an Ethernet frame. What isn't IP belongs to the first shard.
    #[inline]
    pub(super) fn lead(&mut self, frame: &[u8]) -> Led {
        let Some(ends) = Ends::of_frame(frame) else { return Led::To(0) };
        match ends.fragment {
            None => Led::To(self.of_packet(&ends)),
            Some((id, first)) => self.of_fragment(&ends, id, first),
        }
    }

    fn of_fragment(&mut self, ends: &Ends<'_>, id: u32, first: bool) -> Led {
        let mut addresses = [[0; 16]; 2];
        for (to, from) in addresses.iter_mut().zip([ends.source, ends.destination]) {
            to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        }
        let protocol = if ends.source.len() == 4 { ends.protocol } else { 0 };
        let key = (addresses, id, protocol);
        let bytes = addresses.as_flattened().iter().copied().chain(id.to_be_bytes()).chain([protocol]);
        let at = bytes.fold(0u32, |sum, b| sum.wrapping_mul(31).wrapping_add(u32::from(b)));
        let own = self.of_packet(ends);
        let place = spread::address(&at.to_be_bytes()) as usize % (DATAGRAMS / WAYS);
        let Some(those) = self.datagrams.chunks_exact_mut(WAYS).nth(place) else { return Led::To(own) };
        let known = those.iter_mut().find(|datagram| datagram.key == key);
        if first {
            match known {
                Some(known) => known.shard = own,
                None => {
                    those.rotate_right(1);
                    those.iter_mut().take(1).for_each(|latest| *latest = Datagram { key, shard: own });
                }
            }
            return Led::First(key, own);
        }
        if let Some(known) = known {
            return Led::To(known.shard);
        }
        // An inside host has all that is its own on one shard, whatever the first fragment says.
        if self.by == By::Inside { Led::To(own) } else { Led::Early(key, own) }
    }

    fn of_packet(&self, ends: &Ends<'_>) -> u32 {
        let told_of = error(ends);
        let hash = match (self.by, told_of) {
            (By::Connection, about) => self.connection(about.as_ref().unwrap_or(ends)),
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

/// The bytes of an address.
struct Octets([u8; 16], usize);

impl Octets {
    fn of(address: IpAddr) -> Self {
        let mut all = [0; 16];
        let mut put = |bytes: &[u8]| {
            all.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
            bytes.len()
        };
        let len = match address {
            IpAddr::V4(v4) => put(&v4.octets()),
            IpAddr::V6(v6) => put(&v6.octets()),
        };
        Self(all, len)
    }

    fn bytes(&self) -> &[u8] {
        self.0.get(..self.1).unwrap_or_default()
    }
}

/// The packet that an ICMP error tells of.
fn error<'a>(ends: &Ends<'a>) -> Option<Ends<'a>> {
    if ends.fragment.is_some_and(|(_, first)| !first) {
        return None;
    }
    let (kind, rest) = (*ends.payload.first()?, ends.payload.get(8..)?);
    match ends.protocol {
        ICMP if matches!(kind, 3 | 4 | 5 | 11 | 12) => Ends::of_ipv4(rest),
        ICMPV6 if kind < 128 => Ends::of_ipv6(rest),
        _ => None,
    }
}

/// True for what neighbours say of themselves, and for what they ask all stations: ARP (RFC 826), neighbour
/// solicitations and advertisements (RFC 4861), and queries of multicast listeners, which stand behind an
/// option for routers (RFC 3810 §5). The first shard alone answers, so that it must hear of them.
fn is_of_neighbours(frame: &[u8]) -> bool {
    let kind = |at: usize| frame.get(at..at + 2);
    let at = if matches!(kind(12), Some([0x81, 0] | [0x88, 0xa8])) { 16 } else { 12 };
    match kind(at) {
        Some([8, 6]) => true,
        Some([0x86, 0xdd]) => match (frame.get(at + 8), frame.get(at + 42..at + 44)) {
            (Some(&ICMPV6), Some([135 | 136, _])) => true,
            (Some(&HOP_BY_HOP), Some(&[ICMPV6, words])) => {
                frame.get(at + 50 + 8 * usize::from(words)) == Some(&LISTENER_QUERY)
            }
            _ => false,
        },
        _ => false,
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

    impl Steer {
        /// The shard of a packet, if its first fragment came before it; else that of its addresses.
        fn shard(&mut self, frame: &[u8]) -> u32 {
            match self.lead(frame) {
                Led::To(shard) | Led::First(_, shard) | Led::Early(_, shard) => shard,
            }
        }
    }

    #[test]
    fn what_neighbours_say_is_for_all_where_routers_ask() {
        let mut arp = vec![0; 60];
        arp[12..14].copy_from_slice(&[8, 6]);
        let mut discovery = vec![0; 86];
        discovery[12..14].copy_from_slice(&[0x86, 0xdd]);
        discovery[20] = ICMPV6;
        discovery[54] = 135;
        // A query stands behind a hop-by-hop header, as the reports that other hosts give do.
        let behind_options = |kind: u8| {
            let mut frame = [&discovery[..54], &[ICMPV6, 0, 5, 2, 0, 0, 1, 0, kind], &[0; 27]].concat();
            frame[20] = 0;
            frame
        };
        let (query, report) = (behind_options(130), behind_options(143));
        let tagged = |frame: &[u8]| [&frame[..12], &[0x81, 0, 0, 7], &frame[12..]].concat();
        let echo = [&discovery[..54], &[128], &discovery[55..]].concat();
        let steer = || Steer::new(2, By::Connection, Hash::Filter, Externals::default());
        let (quiet, asking) = (steer(), steer().telling_all(true));
        for frame in [arp, discovery.clone(), query] {
            assert!(asking.for_all(&frame) && asking.for_all(&tagged(&frame)) && !quiet.for_all(&frame));
            assert!((0..14).all(|len| !asking.for_all(&frame[..len])));
        }
        assert!(!asking.for_all(&report));
        assert!(!asking.for_all(&echo) && !asking.for_all(&udp(([1; 4], 1), ([2; 4], 2))));
    }

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

    /// An IPv6 packet of UDP with these headers in front of it, each by its number.
    fn udp6(from: ([u8; 16], u16), to: ([u8; 16], u16), headers: &[(u8, Vec<u8>)]) -> Vec<u8> {
        let mut numbers: Vec<u8> = headers.iter().map(|header| header.0).collect();
        numbers.push(UDP);
        let mut frame = vec![0; 12];
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 48, numbers[0], 64]);
        frame.extend(from.0);
        frame.extend(to.0);
        for ((_, header), next) in headers.iter().zip(&numbers[1..]) {
            frame.push(*next);
            frame.extend(header);
        }
        frame.extend(from.1.to_be_bytes());
        frame.extend(to.1.to_be_bytes());
        frame.extend([0; 12]);
        frame
    }

    /// A header of options or of authentication, without its first byte.
    fn extensions() -> impl Strategy<Value = Vec<(u8, Vec<u8>)>> {
        let one = (prop::sample::select(vec![0u8, 43, 51, 60, 135]), 0u8..4);
        let header = |(number, length): (u8, u8)| {
            let bytes =
                if number == 51 { (usize::from(length) + 2) * 4 } else { (usize::from(length) + 1) * 8 };
            let mut header = vec![0; bytes - 1];
            header[0] = length;
            (number, header)
        };
        prop::collection::vec(one.prop_map(header), 0..4)
    }

    fn hashes() -> impl Strategy<Value = Hash> {
        prop_oneof![Just(Hash::Filter), Just(Hash::Rss)]
    }

    proptest! {
        /// The shard is that of the queue which a card with the symmetric key would take, whose table has 128
        /// places: by the hash of the flow's key, which goes another way.
        #[test]
        fn shards_are_the_queues_of_a_card(a: [u8; 4], b: [u8; 4], p: u16, q: u16, shards in 1u32..9) {
            let frame = udp((a, p), (b, q));
            let flow = slipstream_wire::FlowKey::new(&[], a.into(), b.into(), UDP, p, q).unwrap();
            let queue = slipstream_wire::rss_hash(&flow, &ToeplitzKey::new(ToeplitzKey::SYMMETRIC)) % 128 % shards;
            prop_assert_eq!(Steer::new(shards, By::Connection, Hash::Rss, Externals::default()).shard(&frame), queue);
        }

        /// Both directions of a connection, errors about it, and its fragments meet.
        #[test]
        fn connections_meet(
            a: [u8; 4], b: [u8; 4], p: u16, q: u16, shards in 1u32..9, id: [u8; 2], hash in hashes(),
            kind in prop::sample::select(vec![3u8, 4, 5, 11, 12]),
        ) {
            let mut steer = Steer::new(shards, By::Connection, hash, Externals::default());
            let (there, back) = (udp((a, p), (b, q)), udp((b, q), (a, p)));
            let shard = steer.shard(&there);
            prop_assert!(shard < shards);
            prop_assert_eq!(steer.shard(&back), shard);
            let mut error = about(&there);
            error[34] = kind;
            prop_assert_eq!(steer.shard(&error), shard);
            let entry = |source, destination| EntryEnds { protocol: UDP, source, destination, external: None };
            let (one, other) = ((IpAddr::from(a), p), (IpAddr::from(b), q));
            prop_assert_eq!(steer.of_entry(&entry(one, other), None), Some(shard));
            prop_assert_eq!(steer.of_entry(&entry(other, one), None), Some(shard));
            let mut first = there.clone();
            first[18..22].copy_from_slice(&[id[0], id[1], 0x20, 0]);
            let mut rest = there;
            rest[18..22].copy_from_slice(&[id[0], id[1], 0, 9]);
            rest[34..].fill(0xee);
            prop_assert_eq!((steer.shard(&first), steer.shard(&rest)), (shard, shard));
        }

        /// So do those of IPv6, whatever headers stand before the ports.
        #[test]
        fn connections_meet_behind_extension_headers(
            a: [u8; 16], b: [u8; 16], p: u16, q: u16, shards in 1u32..9, id: [u8; 4], hash in hashes(),
            before in extensions(), behind in extensions(),
        ) {
            let mut steer = Steer::new(shards, By::Connection, hash, Externals::default());
            let shard = steer.shard(&udp6((a, p), (b, q), &[]));
            let all = [&before[..], &behind[..]].concat();
            prop_assert_eq!(steer.shard(&udp6((b, q), (a, p), &all)), shard);
            let fragment = |offset: [u8; 2]| {
                let header = (44, [&[0][..], &offset, &id].concat());
                [&before[..], &[header], &behind[..]].concat()
            };
            prop_assert_eq!(steer.shard(&udp6((a, p), (b, q), &fragment([0, 0]))), shard, "whole");
            prop_assert_eq!(steer.shard(&udp6((a, p), (b, q), &fragment([0, 1]))), shard, "the first part");
            let mut rest = udp6((a, p), (b, q), &fragment([0, 0x18]));
            let header = 54 + before.iter().map(|header| header.1.len() + 1).sum::<usize>();
            rest[header] = 60;
            rest[header + 8..].fill(0xee);
            prop_assert_eq!(steer.shard(&rest), shard, "a later part");
            // An error about it, to its source.
            let sent = udp6((a, p), (b, q), &all);
            let mut error = udp6(([9; 16], 0), (a, 0), &[]);
            error[20] = ICMPV6;
            error.truncate(54);
            error.extend([1, 4, 0, 0, 0, 0, 0, 0]);
            error.extend(&sent[14..]);
            prop_assert_eq!(steer.shard(&error), shard, "an error");
        }

        /// Answers to what a NAT sends with a port of its own part come back to its shard, errors about it
        /// too.
        #[test]
        fn answers_meet_the_mapping(
            inside: [u8; 4], remote: [u8; 4], far: u16, shards in 1u32..9, pick: u16, first in 1u16..2000, count in 9u16..60_000,
        ) {
            let range = PortRange { first, last: first.saturating_add(count) };
            let external = External { addresses: vec!["192.0.2.0/30".parse().unwrap()], ranges: vec![range], identifiers: None };
            let mut within = Steer::new(shards, By::Inside, Hash::Filter, Externals::new(external.clone()));
            let mut outside = Steer::new(shards, By::Outside, Hash::Filter, Externals::new(external));
            prop_assume!(!Ipv4Net::new([192, 0, 2, 0].into(), 30).unwrap().contains(&Ipv4Addr::from(remote)));
            let shard = within.shard(&udp((inside, 4000), (remote, far)));
            prop_assert_eq!(within.shard(&udp((inside, 5000), (remote, far.wrapping_add(1)))), shard, "one host");
            let part = range.part(shard, shards).unwrap();
            let port = part.first + pick % (part.last - part.first + 1);
            let sent = udp(([192, 0, 2, 1], port), (remote, far));
            prop_assert_eq!(outside.shard(&udp((remote, far), ([192, 0, 2, 1], port))), shard);
            prop_assert_eq!(outside.shard(&about(&sent)), shard);
            // An entry of the session is restored there, and one with another shard's port nowhere; those of
            // a firewall before and behind the NAT are, too.
            let ends = |source, external| EntryEnds {
                protocol: UDP, source, destination: (IpAddr::from(remote), far), external,
            };
            let (host, pool) = ((IpAddr::from(inside), 4000), (IpAddr::from([192, 0, 2, 1]), port));
            let (nets, hosts) = ([IpNet::new(IpAddr::from(inside), 32).unwrap()], HashSet::from([host.0]));
            prop_assume!(inside != remote && !within.external.has(&inside));
            let begun_there = EntryEnds { protocol: UDP, source: (remote.into(), far), destination: host, external: None };
            // The NAT's settings say which hosts are inside, or its own entries do.
            for inside in [
                Hosts { translated: &nets, known: &HashSet::new() },
                Hosts { translated: &[], known: &hosts },
            ] {
                let of_entry = |ends: &EntryEnds| within.of_entry(ends, Some(inside));
                prop_assert_eq!(of_entry(&ends(host, Some(pool))), Some(shard));
                prop_assert_eq!(of_entry(&ends(host, None)), Some(shard));
                prop_assert_eq!(of_entry(&ends(pool, None)), Some(shard));
                prop_assert_eq!(of_entry(&begun_there), Some(shard));
                if let Some(other) = range.part((shard + 1) % shards, shards).filter(|_| shards > 1) {
                    let wrong = (pool.0, other.first);
                    prop_assert_eq!(of_entry(&ends(host, Some(wrong))), None);
                }
            }
            // So are entries of hosts that it doesn't translate, whoever began: their shard told who is
            // inside.
            let named: [IpNet; 1] = ["203.0.113.0/24".parse().unwrap()];
            prop_assume!(![inside, remote].iter().any(|a| named[0].contains(&IpAddr::from(*a))));
            for ends in [ends(host, None), begun_there] {
                let known: HashSet<_> = within.inside_host(&ends, &named, shard).into_iter().collect();
                let there = spread::address(&remote) % shards;
                prop_assert_eq!(known.contains(&host.0), there != shard);
                if there != shard {
                    let inside = Hosts { translated: &named, known: &known };
                    prop_assert_eq!(within.of_entry(&ends, Some(inside)), Some(shard));
                }
                prop_assert_eq!(within.inside_host(&ends, &nets, shard), None, "settings say it");
            }
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
        fn any_bytes_belong_somewhere(
            bytes in proptest::collection::vec(any::<u8>(), 0..120), shards in 1u32..9, hash in hashes(),
        ) {
            for by in [By::Connection, By::Inside, By::Outside] {
                let external = External { addresses: vec!["0.0.0.0/0".parse().unwrap()], ..External::default() };
                prop_assert!(Steer::new(shards, by, hash, Externals::new(external)).shard(&bytes) < shards);
            }
        }
    }
}
