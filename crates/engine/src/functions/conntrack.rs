//! Connection tracking: which packets belong to a connection that was let through before.
//!
//! A packet is looked up first ([`Conntrack::look_up`]), the firewall decides by what it is, and only what was accepted
//! leaves a trace ([`Conntrack::accept`]): packets that are denied cost no memory. A connection is one entry for both
//! directions. States and timeouts are those of Linux, so that the same rules give the same verdicts.
//!
//! VLAN ids do not count: the way back may lead through another VLAN. A datagram that comes in fragments is tracked as one
//! packet where it is reassembled. Fragments by themselves have no ports: all of them between two addresses and of one
//! protocol are one connection of their own.

use slipstream_wire::protocol::{ICMP, ICMPV6, TCP, UDP};
use slipstream_wire::{Flags, FlowKey, Headers, NarrowKey, WideKey};

use super::bytes::be16;
use super::packet::{quoted, with_ports};
use super::table::{Full, Key, NONE, Table};
use super::tcp_state::{Direction, SECOND, Step, TcpState, TcpTimeouts, is_plausible};
use crate::time::Nanos;

/// What a packet is to the tracker, as rules ask for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CtState {
    /// It begins a connection, or belongs to one of which only one direction was seen.
    New,
    /// It belongs to a connection of which both directions were seen.
    Established,
    /// An ICMP error about a packet of a connection.
    Related,
    /// It can't belong to anything: an answer to nothing, an impossible TCP segment, an error about nothing.
    Invalid,
    /// It is not tracked: neighbour discovery and multicast listeners of IPv6.
    Untracked,
}

/// How the tracker reads a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// May begin a connection.
    Opens,
    /// An ICMP reply.
    Reply,
    /// An ICMP error; the key is that of the quoted packet.
    Error,
    Untracked,
    Invalid,
}

/// What the tracker reads of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tracked {
    /// Both directions have this one.
    key: FlowKey,
    /// Whether the packet goes from the key's source to its destination.
    forward: bool,
    kind: Kind,
    /// TCP flags, where they were captured.
    tcp_flags: Option<u8>,
}

impl Tracked {
    /// Reads a classified packet.
    #[must_use]
    pub fn read(frame: &[u8], headers: &Headers) -> Self {
        let plain = untagged(headers.key);
        if headers.flags.has(Flags::FRAGMENT) {
            return Self::new(plain, Kind::Opens, None);
        }
        match (headers.key.protocol(), headers.flags.has(Flags::IPV6)) {
            (TCP, _) => {
                let flags = headers.flags.has(Flags::TCP).then_some(headers.tcp_flags);
                Self::new(plain, Kind::Opens, flags)
            }
            (ICMP, false) | (ICMPV6, true) => Self::icmp(frame, headers, plain, true),
            _ => Self::new(plain, Kind::Opens, None),
        }
    }

    fn new(key: FlowKey, kind: Kind, tcp_flags: Option<u8>) -> Self {
        let both = key.bidirectional();
        Self { key: both, forward: both == key, kind, tcp_flags }
    }

    /// Queries have their identifier as the port of the end that asks, and the request's type as that of the other.
    fn icmp(frame: &[u8], headers: &Headers, plain: FlowKey, may_quote: bool) -> Self {
        let at = usize::from(headers.l4);
        let (Some(&kind), Some(id)) = (frame.get(at), be16(frame, at + 4)) else {
            return Self::new(plain, Kind::Invalid, None);
        };
        let asks = |request: u16| Self::new(with_ports(plain, id, request << 8), Kind::Opens, None);
        let answers = |request: u16| Self::new(with_ports(plain, request << 8, id), Kind::Reply, None);
        match (headers.flags.has(Flags::IPV6), kind) {
            (false, 8 | 13 | 15 | 17) => asks(u16::from(kind)),
            (false, 0) => answers(8),
            (false, 14 | 16 | 18) => answers(u16::from(kind) - 1),
            (true, 128) => asks(128),
            (true, 129) => answers(128),
            (true, 130..=137 | 143) => Self::new(plain, Kind::Untracked, None),
            (false, 3 | 4 | 5 | 11 | 12) | (true, 1..=4) if may_quote => {
                Self::error(frame, at + 8, plain).unwrap_or_else(|| Self::new(plain, Kind::Invalid, None))
            }
            _ => Self::new(plain, Kind::Invalid, None),
        }
    }

    /// An error is about the packet that it quotes, and goes to the one who sent that.
    fn error(frame: &[u8], at: usize, outer: FlowKey) -> Option<Self> {
        let (quote, headers) = quoted(frame, at)?;
        let plain = untagged(headers.key);
        if headers.key.src() != outer.dst() || headers.key.is_ipv6() != outer.is_ipv6() {
            return None;
        }
        let read = match (headers.key.protocol(), headers.flags.has(Flags::IPV6)) {
            (ICMP, false) | (ICMPV6, true) => Self::icmp(quote, &headers, plain, false),
            _ => Self::new(plain, Kind::Opens, None),
        };
        matches!(read.kind, Kind::Opens | Kind::Reply).then_some(Self { kind: Kind::Error, ..read })
    }
}

/// The key without VLAN ids.
fn untagged(key: FlowKey) -> FlowKey {
    match key {
        FlowKey::Narrow(NarrowKey([a, rest])) => FlowKey::Narrow(NarrowKey([a, rest & !0xff_ffff])),
        FlowKey::Wide(WideKey([_, s, _, d, rest, ..])) if !key.is_ipv6() => {
            FlowKey::Narrow(NarrowKey([s << 32 | d, rest & !0xff_ffff]))
        }
        FlowKey::Wide(WideKey([a, b, c, d, rest, ..])) => {
            FlowKey::Wide(WideKey([a, b, c, d, rest & !0xffff, 0, 0]))
        }
    }
}

/// What a tracker is told. Timeouts in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConntrackConfig {
    /// IPv4 connections remembered at most, 1 to 2³⁰.
    pub connections_v4: u32,
    /// IPv6 connections remembered at most, 1 to 2³⁰.
    pub connections_v6: u32,
    /// Whether a TCP connection may begin with an ACK: one that was open before anybody looked.
    pub loose: bool,
    /// TCP, by state.
    pub tcp: TcpTimeouts,
    /// UDP in one direction.
    pub udp: u64,
    /// UDP in both directions.
    pub udp_replied: u64,
    /// ICMP and ICMPv6 queries.
    pub icmp: u64,
    /// Everything else.
    pub other: u64,
    /// Seed of the hash.
    pub seed: u64,
}

impl Default for ConntrackConfig {
    fn default() -> Self {
        Self {
            connections_v4: 1 << 17,
            connections_v6: 1 << 15,
            loose: true,
            tcp: TcpTimeouts::LINUX,
            udp: 30 * SECOND,
            udp_replied: 120 * SECOND,
            icmp: 30 * SECOND,
            other: 600 * SECOND,
            seed: 0,
        }
    }
}

/// A connection.
#[derive(Clone, Copy, Debug)]
struct Connection {
    /// Whether its first packet went from the key's source to its destination.
    forward: bool,
    /// Whether packets went both ways.
    replied: bool,
    tcp: TcpState,
}

/// What [`Conntrack::look_up`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// What the packet is.
    pub state: CtState,
    /// Which way it goes.
    pub direction: Direction,
    id: u32,
    step: Step,
}

/// What a tracker has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConntrackCounters {
    /// Connections begun.
    pub opened: u64,
    /// Connections whose time passed.
    pub expired: u64,
    /// Connections of one direction only that made room for others.
    pub displaced: u64,
    /// Connections that found no room.
    pub refused: u64,
}

/// The connection tracker of one worker.
#[derive(Debug)]
pub struct Conntrack {
    v4: Table<NarrowKey, Connection>,
    v6: Table<WideKey, Connection>,
    config: ConntrackConfig,
    counters: ConntrackCounters,
}

impl Conntrack {
    /// A tracker that has seen nothing.
    #[must_use]
    pub fn new(config: &ConntrackConfig) -> Self {
        Self {
            v4: Table::new(config.connections_v4, config.seed),
            v6: Table::new(config.connections_v6, config.seed),
            config: *config,
            counters: ConntrackCounters::default(),
        }
    }

    /// The hash of a packet's connection.
    #[inline]
    #[must_use]
    pub fn hash(&self, packet: &Tracked) -> u64 {
        packet.key.hash64(self.config.seed)
    }

    /// Asks for the index line of a connection, a batch ahead.
    #[inline]
    pub fn prefetch_index(&self, packet: &Tracked, hash: u64) {
        match packet.key {
            FlowKey::Narrow(_) => self.v4.prefetch_index(hash),
            FlowKey::Wide(_) => self.v6.prefetch_index(hash),
        }
    }

    /// Asks for a connection, a few packets ahead.
    #[inline]
    pub fn prefetch_connection(&self, packet: &Tracked, hash: u64) {
        let _ = match packet.key {
            FlowKey::Narrow(_) => self.v4.candidate(hash),
            FlowKey::Wide(_) => self.v6.candidate(hash),
        };
    }

    /// What a packet is. Changes nothing.
    #[inline]
    #[must_use]
    pub fn look_up(&self, packet: &Tracked, now: Nanos) -> Seen {
        match packet.key {
            FlowKey::Narrow(key) => self.see(&self.v4, &key, packet, now),
            FlowKey::Wide(key) => self.see(&self.v6, &key, packet, now),
        }
    }

    #[inline]
    fn see<K: Key>(&self, table: &Table<K, Connection>, key: &K, packet: &Tracked, now: Nanos) -> Seen {
        let found = table.find(key, table.hash(key)).filter(|&id| !table.is_due(id, now));
        let connection = found.and_then(|id| table.get(id));
        let direction = match connection {
            Some(c) if c.forward != packet.forward => Direction::Reply,
            _ => Direction::Original,
        };
        let mut step = Step::Ignore;
        let state = match (packet.kind, connection) {
            (Kind::Untracked, _) => CtState::Untracked,
            (Kind::Error, Some(_)) => CtState::Related,
            (Kind::Invalid | Kind::Error, _) | (Kind::Reply, None) => CtState::Invalid,
            (_, None) => self.first(packet),
            (_, Some(c)) => {
                step = step_of(c, packet, direction);
                match step {
                    Step::Invalid => CtState::Invalid,
                    Step::Reopen => CtState::New,
                    _ if c.replied || direction == Direction::Reply => CtState::Established,
                    _ => CtState::New,
                }
            }
        };
        Seen { state, direction, id: found.unwrap_or(NONE), step }
    }

    fn first(&self, packet: &Tracked) -> CtState {
        let may = !is_tcp(packet)
            || packet
                .tcp_flags
                .is_some_and(|f| is_plausible(f) && TcpState::first(f, self.config.loose).is_some());
        if may { CtState::New } else { CtState::Invalid }
    }

    /// A packet that was looked up just now was let through: its connection begins, or goes on. Nothing happens for errors,
    /// invalid and untracked packets.
    ///
    /// # Errors
    /// [`Full`] when a new connection finds no room; counted.
    #[inline]
    pub fn accept(&mut self, packet: &Tracked, seen: &Seen, now: Nanos) -> Result<(), Full> {
        if !matches!(seen.state, CtState::New | CtState::Established) {
            return Ok(());
        }
        let (config, counters) = (&self.config, &mut self.counters);
        match packet.key {
            FlowKey::Narrow(key) => accept(&mut self.v4, key, packet, seen, now, config, counters),
            FlowKey::Wide(key) => accept(&mut self.v6, key, packet, seen, now, config, counters),
        }
    }

    /// Forgets connections whose time has passed, `visits` at most of each IP version. One whose time has passed is never
    /// found, called or not.
    pub fn expire(&mut self, now: Nanos, visits: u32) {
        self.counters.expired += expire(&mut self.v4, now, visits) + expire(&mut self.v6, now, visits);
    }

    /// Connections remembered.
    #[must_use]
    pub fn connections(&self) -> u32 {
        self.v4.len() + self.v6.len()
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> &ConntrackCounters {
        &self.counters
    }
}

fn is_tcp(packet: &Tracked) -> bool {
    // Fragments of TCP have no ports and no flags, and are tracked like any protocol without states.
    packet.key.protocol() == TCP && (packet.key.src_port(), packet.key.dst_port()) != (0, 0)
}

fn step_of(connection: &Connection, packet: &Tracked, direction: Direction) -> Step {
    match packet.tcp_flags {
        Some(flags) if is_tcp(packet) && !is_plausible(flags) => Step::Invalid,
        Some(flags) if is_tcp(packet) => connection.tcp.step(direction, flags),
        _ => Step::Ignore,
    }
}

fn expire<K: Key>(table: &mut Table<K, Connection>, now: Nanos, mut visits: u32) -> u64 {
    let mut expired = 0;
    while let Some(id) = table.next_due(now, &mut visits) {
        table.remove(id);
        expired += 1;
    }
    expired
}

impl ConntrackConfig {
    fn deadline(&self, connection: &Connection, packet: &Tracked, now: Nanos) -> Nanos {
        now.after(match packet.key.protocol() {
            _ if is_tcp(packet) => self.tcp.of(connection.tcp),
            UDP if connection.replied => self.udp_replied,
            UDP => self.udp,
            ICMP | ICMPV6 => self.icmp,
            _ => self.other,
        })
    }
}

#[inline]
fn accept<K: Key>(
    table: &mut Table<K, Connection>,
    key: K,
    packet: &Tracked,
    seen: &Seen,
    now: Nanos,
    config: &ConntrackConfig,
    counters: &mut ConntrackCounters,
) -> Result<(), Full> {
    let Some(connection) = table.get_mut(seen.id) else {
        return open(table, key, packet, now, config, counters);
    };
    connection.replied |= seen.direction == Direction::Reply;
    match seen.step {
        Step::To(state) => connection.tcp = state,
        Step::Reopen => {
            *connection = Connection { forward: packet.forward, replied: false, tcp: TcpState::SynSent };
        }
        Step::Ignore if is_tcp(packet) => return Ok(()),
        Step::Ignore | Step::Invalid => {}
    }
    let deadline = config.deadline(connection, packet, now);
    table.set_deadline(seen.id, deadline);
    Ok(())
}

#[inline(never)]
fn open<K: Key>(
    table: &mut Table<K, Connection>,
    key: K,
    packet: &Tracked,
    now: Nanos,
    config: &ConntrackConfig,
    counters: &mut ConntrackCounters,
) -> Result<(), Full> {
    const SWEEP: u32 = 16;
    counters.expired += expire(table, now, SWEEP);
    let hash = table.hash(&key);
    // The same connection, its time passed.
    if let Some(id) = table.find(&key, hash) {
        table.remove(id);
        counters.expired += 1;
    }
    if table.is_full()
        && let Some(id) = table.soonest().filter(|&id| table.get(id).is_some_and(|c| !c.replied))
    {
        table.remove(id);
        counters.displaced += 1;
    }
    let tcp = packet.tcp_flags.and_then(|flags| TcpState::first(flags, true)).unwrap_or_default();
    let connection = Connection { forward: packet.forward, replied: false, tcp };
    let deadline = config.deadline(&connection, packet, now);
    match table.insert(key, hash, connection, deadline) {
        Ok(_) => {
            counters.opened += 1;
            Ok(())
        }
        Err(full) => {
            counters.refused += 1;
            Err(full)
        }
    }
}

#[cfg(test)]
#[path = "conntrack_tests.rs"]
mod tests;
