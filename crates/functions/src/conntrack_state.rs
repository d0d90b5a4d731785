//! Connections as records: listed, saved and restored.
//!
//! A record is 56 bytes, integers in little-endian order: source and destination of the packet that began the
//! connection (16 bytes each, IPv4 addresses as `::ffff:a.b.c.d`), their ports (2 each), protocol, flags
//! (1: answered, 2: a SYN came before it was over, 4: addresses that read as IPv4's are IPv6's), TCP state,
//! class, the time that is left (8, in ns) and the age (8, in ns).

use std::net::{IpAddr, Ipv6Addr};

use serde_json::json;
use slipstream_core::operate::{EntryEnds, Fields, StateTable, put_address};
use slipstream_core::table::Key;
use slipstream_core::time::Nanos;
use slipstream_wire::FlowKey;

use super::super::packet::with_ports;
use super::super::tcp_state::TcpState;
use super::packet::key_of_connection;
use super::{Class, Connection, Connections, Conntrack, Links};

/// The table of connections, as its operator sees it.
pub(crate) const CONNECTIONS: StateTable = StateTable {
    name: "connections",
    version: 1,
    record: RECORD,
    describe,
    names: &[("tcp_state", &TcpState::NAMES), ("class", &Class::NAMES)],
    ends,
};

const RECORD: usize = 56;
/// Both directions were seen.
const REPLIED: u8 = 1;
/// Its opener sent a SYN though it was not over.
const AGAIN: u8 = 2;
/// Its packets are of IPv6, though their addresses begin with `::ffff:0:0/96`: nobody should send such, but
/// anybody can.
const MAPPED: u8 = 4;
/// Places of IPv6 connections begin here.
const V6: u32 = 1 << 31;

/// The fields of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    /// From the end that began it to the other.
    key: FlowKey,
    replied: bool,
    again: bool,
    tcp: TcpState,
    class: Class,
    left: u64,
    age: u64,
}

fn address(bytes: [u8; 16], mapped: bool) -> IpAddr {
    let address = Ipv6Addr::from(bytes);
    address.to_ipv4_mapped().filter(|_| !mapped).map_or(IpAddr::V6(address), IpAddr::V4)
}

fn is_mapped(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some())
}

impl Record {
    fn put(&self, out: &mut Vec<u8>) {
        put_address(out, self.key.src());
        put_address(out, self.key.dst());
        out.extend(self.key.src_port().to_le_bytes());
        out.extend(self.key.dst_port().to_le_bytes());
        let mapped = is_mapped(self.key.src()) || is_mapped(self.key.dst());
        let flags = [(self.replied, REPLIED), (self.again, AGAIN), (mapped, MAPPED)];
        let flags = flags.into_iter().filter(|(set, _)| *set).fold(0, |all, (_, flag)| all | flag);
        out.extend([self.key.protocol(), flags, self.tcp as u8, self.class as u8]);
        out.extend(self.left.to_le_bytes());
        out.extend(self.age.to_le_bytes());
    }

    fn read(record: &[u8]) -> Option<Self> {
        let mut fields = Fields(record);
        let (src, dst) = (fields.bytes(), fields.bytes());
        let (src_port, dst_port) = (fields.u16(), fields.u16());
        let [protocol, flags, tcp, class] = fields.bytes();
        let mapped = flags & MAPPED != 0;
        let (src, dst) = (address(src, mapped), address(dst, mapped));
        let plain = FlowKey::new(&[], src, dst, protocol, 0, 0).ok()?;
        let (tcp, class) = (TcpState::of_number(tcp)?, *Class::ALL.get(usize::from(class))?);
        let key = with_ports(plain, src_port, dst_port);
        let (replied, again) = (flags & REPLIED != 0, flags & AGAIN != 0);
        let (left, age) = (fields.u64(), fields.u64());
        (record.len() == RECORD).then_some(Self { key, replied, again, tcp, class, left, age })
    }
}

fn ends(record: &[u8]) -> Option<EntryEnds> {
    let Record { key, .. } = Record::read(record)?;
    let (source, destination) = ((key.src(), key.src_port()), (key.dst(), key.dst_port()));
    Some(EntryEnds { protocol: key.protocol(), source, destination, external: None })
}

fn describe(record: &[u8]) -> Option<serde_json::Value> {
    let Record { key, replied, tcp, class, left, age, .. } = Record::read(record)?;
    let tcp = (key.protocol() == slipstream_wire::protocol::TCP).then(|| tcp.name());
    Some(json!({
        "protocol": key.protocol(),
        "source": key.src(),
        "source_port": key.src_port(),
        "destination": key.dst(),
        "destination_port": key.dst_port(),
        "answered": replied,
        "tcp_state": tcp,
        "class": class.name(),
        "expires_in_s": left as f64 / 1e9,
        "age_s": age as f64 / 1e9,
    }))
}

fn save<K: Key>(
    connections: &Connections<K>,
    whole: fn(K) -> FlowKey,
    (from, places): (u32, u32),
    now: Nanos,
    out: &mut Vec<u8>,
) -> Option<u32> {
    let table = &connections.table;
    let (ids, next) = table.ids_from(from, places);
    for id in ids.filter(|&id| !table.is_due(id, now)) {
        let (Some(key), Some(connection)) = (table.key(id), table.get(id)) else { continue };
        let both = whole(*key);
        let key = if connection.forward { both } else { both.reversed() };
        let &Connection { replied, again, tcp, class, opened, .. } = connection;
        let (left, age) = (table.deadline(id).since(now), now.since(opened));
        Record { key, replied, again, tcp, class, left, age }.put(out);
    }
    next
}

/// Adds a connection that is not there yet.
fn restore<K: Key>(connections: &mut Connections<K>, key: K, connection: Connection, until: Nanos) -> bool {
    let hash = connections.table.hash(&key);
    connections.table.find(&key, hash).is_none() && connections.insert(key, hash, connection, until).is_ok()
}

fn remove<K: Key>(connections: &mut Connections<K>, key: K) -> bool {
    let found = connections.table.find(&key, connections.table.hash(&key));
    found.is_some_and(|id| {
        connections.remove(id);
        true
    })
}

impl Conntrack {
    /// As [`Operate::save`](slipstream_core::operate::Operate::save).
    pub(crate) fn save(&self, from: u32, places: u32, now: Nanos, out: &mut Vec<u8>) -> Option<u32> {
        if from < V6 {
            return save(&self.v4, FlowKey::Narrow, (from, places), now, out).or(Some(V6));
        }
        save(&self.v6, FlowKey::Wide, (from - V6, places), now, out).map(|next| next | V6)
    }

    /// As [`Operate::restore`](slipstream_core::operate::Operate::restore). Nobody makes room for it.
    pub(crate) fn restore(&mut self, record: &[u8], away: u64, now: Nanos) -> bool {
        let Some(Record { key, replied, again, tcp, class, left, age }) = Record::read(record) else {
            return false;
        };
        let Some(left) = left.checked_sub(away).filter(|left| *left > 0) else { return false };
        let (both, forward) = key_of_connection(key);
        let until = now.after(left);
        let opened = Nanos(now.0.saturating_sub(age.saturating_add(away)));
        let connection = Connection { forward, replied, again, tcp, class, links: Links::default(), opened };
        let restored = match both {
            FlowKey::Narrow(key) => restore(&mut self.v4, key, connection, until),
            FlowKey::Wide(key) => restore(&mut self.v6, key, connection, until),
        };
        self.counters.restored += u64::from(restored);
        restored
    }

    /// As [`Operate::remove`](slipstream_core::operate::Operate::remove).
    pub(crate) fn forget(&mut self, record: &[u8]) -> bool {
        match Record::read(record).map(|record| key_of_connection(record.key)) {
            Some((FlowKey::Narrow(key), _)) => remove(&mut self.v4, key),
            Some((FlowKey::Wide(key), _)) => remove(&mut self.v6, key),
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ConntrackConfig, Tracked};
    use super::*;
    use crate::test_packets::{echo, ipv4, ipv6, udp};
    use proptest::prelude::*;
    use slipstream_wire::{LinkType, classify};

    const ACK: u8 = 0x10;
    const SYN: u8 = 0x02;
    const FIN: u8 = 0x01;
    const RST: u8 = 0x04;

    /// A TCP segment between two of a few hosts, one way or the other.
    fn tcp(host: u8, port: u8, back: bool, flags: u8) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0];
        let (a, b) = ([10, 0, 0, host], [192, 0, 2, 1]);
        let (from, to) = if back { (b, a) } else { (a, b) };
        packet.extend(from.iter().chain(&to));
        let (client, server) = ([0x10, port], [0, 80]);
        let (from, to) = if back { (server, client) } else { (client, server) };
        packet.extend(from.iter().chain(&to));
        packet.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 0, 1, 0, 0, 0, 0]);
        packet
    }

    fn offer(conntrack: &mut Conntrack, packet: &[u8], now: Nanos) -> super::super::CtState {
        let headers = classify(LinkType::RawIp, packet).unwrap();
        let tracked = Tracked::read(packet, &headers);
        let seen = conntrack.look_up(&tracked, now);
        let _ = conntrack.accept(&tracked, &seen, now);
        seen.state
    }

    fn saved(conntrack: &Conntrack, now: Nanos) -> Vec<u8> {
        let (mut out, mut from) = (Vec::new(), Some(0));
        while let Some(at) = from {
            from = conntrack.save(at, 3, now, &mut out);
        }
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// A tracker that was saved and restored says of every packet what the one says that went on.
        #[test]
        fn a_restart_changes_no_verdict(
            packets in proptest::collection::vec((0..4u8, 0..3u8, any::<bool>(), 0..6usize, 0..40u64), 1..120),
            restart in any::<proptest::sample::Index>(),
            away in 0..20u64,
        ) {
            let config = ConntrackConfig { connections_v4: 64, connections_v6: 16, loose: false, ..ConntrackConfig::default() };
            let (mut stays, mut restarts) = (Conntrack::new(&config), Conntrack::new(&config));
            let at = restart.index(packets.len());
            let mut now = 1_000_000_000_000u64;
            for (n, (host, port, back, flags, gap)) in packets.into_iter().enumerate() {
                now += gap * 1_000_000_000;
                if n == at {
                    let state = saved(&restarts, Nanos(now));
                    now += away * 1_000_000_000;
                    restarts = Conntrack::new(&ConntrackConfig { seed: 77, ..config });
                    for record in state.chunks(RECORD) {
                        restarts.restore(record, away * 1_000_000_000, Nanos(now));
                    }
                    let counted = restarts.counters();
                    prop_assert_eq!((counted.restored, counted.opened), (restarts.connections().into(), 0));
                    prop_assert_eq!(saved(&restarts, Nanos(now)).len(), saved(&stays, Nanos(now)).len());
                }
                let flags = [SYN, SYN | ACK, ACK, FIN | ACK, RST, ACK][flags];
                let packet = tcp(host, port, back, flags);
                let (one, other) = (offer(&mut stays, &packet, Nanos(now)), offer(&mut restarts, &packet, Nanos(now)));
                prop_assert_eq!(one, other, "packet {}", n);
            }
        }

        /// A restart changes no connection: one of IPv6 is none of IPv4, whatever its addresses look like,
        /// and a ping stays with the end that asked.
        #[test]
        fn a_connection_is_restored_as_what_it_was(
            hosts in proptest::collection::vec((0..6_usize, 0..6_usize), 1..20),
            ids in proptest::collection::vec(prop_oneof![Just(0x0800_u16), Just(0x8000), 1..4_u16], 20),
            ping: bool,
        ) {
            let six = |n: usize| match n {
                0..3 => Ipv6Addr::from_bits(0xffff_0a00_0000 | n as u128),
                _ => Ipv6Addr::from_bits(0x2001_0db8 << 96 | n as u128),
            };
            let now = Nanos(1_000_000_000_000);
            let mut before = Conntrack::new(&ConntrackConfig::default());
            let mut packets = Vec::new();
            for ((from, to), id) in hosts.into_iter().zip(ids) {
                let (v6, v4, body) = match ping {
                    true => (58, 1, [echo(128, id, b"x"), echo(8, id, b"x")]),
                    false => (17, 17, [udp(id, 53, b"x"), udp(id, 53, b"x")]),
                };
                packets.push(ipv6(v6, six(from), six(to), &body[0]));
                packets.push(ipv4(v4, 0x0a00_0000 | from as u32, 0x0a00_0000 | to as u32, &body[1]));
                if from != to {
                    offer(&mut before, &packets[packets.len() - 2], now);
                }
            }
            let mut after = Conntrack::new(&ConntrackConfig::default());
            let state = saved(&before, now);
            prop_assert!(state.chunks(RECORD).all(|record| after.restore(record, 0, now)));
            for packet in &packets {
                let known = [&before, &after].map(|conntrack| {
                    let tracked = Tracked::read(packet, &classify(LinkType::RawIp, packet).unwrap());
                    conntrack.look_up(&tracked, now).connection().is_some()
                });
                prop_assert_eq!(known[0], known[1]);
            }
            prop_assert!(state.chunks(RECORD).all(|record| describe(record).is_some() && after.forget(record)));
            prop_assert_eq!(after.connections(), 0);
        }

        /// Any bytes are a record, or are refused.
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let mut conntrack = Conntrack::new(&ConntrackConfig::default());
            let restored = conntrack.restore(&bytes, 0, Nanos(5));
            prop_assert!(!restored || bytes.len() == RECORD);
            prop_assert_eq!(describe(&bytes).is_some(), Record::read(&bytes).is_some());
            if restored {
                prop_assert!(conntrack.forget(&bytes));
                prop_assert_eq!(conntrack.connections(), 0);
            }
        }
    }
}
