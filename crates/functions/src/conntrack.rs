//! Connection tracking: which packets belong to a connection that was let through before.
//!
//! A packet is looked up first ([`Conntrack::look_up`]), the firewall decides by what it is, and only what
//! was accepted leaves a trace ([`Conntrack::accept`]): packets that are denied cost no memory. A connection
//! is one entry for both directions. States and timeouts are those of Linux, so that the same rules give the
//! same verdicts. When the table is full, a connection that was not answered, or was answered and went no
//! further, makes room ([`Class`]).
//!
//! VLAN ids do not count: the way back may lead through another VLAN. A datagram that comes in fragments is
//! tracked as one packet where it is reassembled. Fragments by themselves have no ports: all of them between
//! two addresses and of one protocol are one connection of their own.

use slipstream_wire::protocol::{ICMP, ICMPV6, TCP, UDP};
use slipstream_wire::{FlowKey, NarrowKey, WideKey};

use super::table::{Full, Key, Links, NONE};
use super::tcp_state::{Direction, RST, Step, TcpState, TcpTimeouts, is_plausible};
use slipstream_core::settings::{self, Setting, Settings};
use slipstream_core::time::{Nanos, SECOND};

#[path = "conntrack_packet.rs"]
pub(crate) mod packet;
#[path = "conntrack_room.rs"]
mod room;
#[path = "conntrack_state.rs"]
mod state;

use packet::Kind;
pub use packet::Tracked;
pub use room::Class;
use room::Connections;
pub(crate) use state::CONNECTIONS as STATE;

/// State of a packet within its connection, as rules ask for it.
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

/// Settings of a tracker. Timeouts are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConntrackConfig {
    /// IPv4 connections remembered at most, 1 to 2³⁰.
    pub connections_v4: u32,
    /// IPv6 connections remembered at most, 1 to 2³⁰.
    pub connections_v6: u32,
    /// True if a TCP connection may begin with an ACK: one that was open before anybody looked.
    pub loose: bool,
    /// True if assured connections make room where there are no others: else new ones are refused then.
    pub early_drop: bool,
    /// TCP, by state.
    pub tcp: TcpTimeouts,
    /// TCP that was open before anybody looked, at most, as long as packets have gone one way only.
    pub tcp_one_way: u64,
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
        Self::from_settings(&Settings::defaults(SETTINGS), 0)
    }
}

/// The settings of [`ConntrackConfig`], in the firewall and here by default.
pub const SETTINGS: &[Setting] = &[CONNECTIONS, EARLY_DROP];
pub(crate) const CONNECTIONS: Setting = Setting::new(
    "connections",
    settings::Kind::Count(1, 1 << 26),
    "IPv4 connections tracked at most, and a quarter as many of IPv6",
)
.or("131072");
pub(crate) const EARLY_DROP: Setting = Setting::new(
    "early_drop",
    settings::Kind::Bool,
    "Where all connections are assured: the oldest makes room for a new one, which is refused otherwise",
)
.or("false");

impl ConntrackConfig {
    /// The configuration that these values make; timeouts are those of Linux.
    #[must_use]
    pub fn from_settings(settings: &Settings, seed: u64) -> Self {
        let connections = settings.number("connections") as u32;
        Self {
            connections_v4: connections,
            connections_v6: (connections / 4).max(1),
            loose: true,
            early_drop: settings.flag("early_drop"),
            tcp: TcpTimeouts::LINUX,
            tcp_one_way: 300 * SECOND,
            udp: 30 * SECOND,
            udp_replied: 120 * SECOND,
            icmp: 30 * SECOND,
            other: 600 * SECOND,
            seed,
        }
    }
}

/// A connection.
#[derive(Clone, Copy, Debug)]
struct Connection {
    /// True if its first packet went from the key's source to its destination.
    forward: bool,
    /// True if packets went both ways.
    replied: bool,
    /// True if its opener sent a SYN though it was not over: an answer to that begins another connection.
    again: bool,
    tcp: TcpState,
    class: Class,
    links: Links,
    /// When its first packet came.
    opened: Nanos,
}

impl Connection {
    fn new(packet: &Tracked, tcp: TcpState, now: Nanos) -> Self {
        let (class, links) = (Class::Unanswered, Links::default());
        Self { forward: packet.forward, replied: false, again: false, tcp, class, links, opened: now }
    }
}

/// The result of [`Conntrack::look_up`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// State of the packet.
    pub state: CtState,
    /// The way that it goes.
    pub direction: Direction,
    id: u32,
    step: Step,
}

impl Seen {
    /// Returns true if the packet would begin a connection.
    #[must_use]
    pub(super) const fn begins(&self) -> bool {
        matches!(self.state, CtState::New) && self.id == NONE
    }

    /// Number of the packet's connection, the same in both directions, if there is one. The number is another
    /// connection's once this one has ended.
    #[must_use]
    pub const fn connection(&self) -> Option<u32> {
        if self.id == NONE { None } else { Some(self.id) }
    }
}

/// Counters of a tracker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConntrackCounters {
    /// Connections begun.
    pub opened: u64,
    /// Connections that came back from a saved state.
    pub restored: u64,
    /// Connections whose time passed, of those that were begun and of those that came back.
    pub expired: u64,
    /// Connections that made room for others, by their [`Class`].
    pub displaced: [u64; Class::ALL.len()],
    /// Times that a connection was to begin and found no room: one that is tried again counts again, and of a
    /// train that is decided about once, all packets count as one.
    pub refused: u64,
}

impl ConntrackCounters {
    /// Connections of a class that made room for others.
    #[must_use]
    pub fn displaced(&self, class: Class) -> u64 {
        self.displaced.get(class as usize).copied().unwrap_or(0)
    }
}

/// The connection tracker of one worker.
///
/// ```
/// use slipstream_core::time::Nanos;
/// use slipstream_functions::conntrack::{Conntrack, ConntrackConfig, CtState, Tracked};
/// use slipstream_wire::{LinkType, classify};
///
/// // UDP from 10.0.0.1:5000 to 10.0.0.2:53, and the answer.
/// let query = [
///     0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
///     19, 136, 0, 53, 0, 8, 0, 0,
/// ];
/// let answer = [
///     0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1,
///     0, 53, 19, 136, 0, 8, 0, 0,
/// ];
///
/// let mut connections = Conntrack::new(&ConntrackConfig::default());
/// let mut states = Vec::new();
/// for (now, packet) in [&query, &answer, &query].into_iter().enumerate() {
///     let packet = Tracked::read(packet, &classify(LinkType::RawIp, packet)?);
///     let seen = connections.look_up(&packet, Nanos(now as u64));
///     // Here a firewall judges; what it lets through is accepted.
///     connections.accept(&packet, &seen, Nanos(now as u64))?;
///     states.push(seen.state);
/// }
/// assert_eq!(states, [CtState::New, CtState::Established, CtState::Established]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Conntrack {
    v4: Connections<NarrowKey>,
    v6: Connections<WideKey>,
    config: ConntrackConfig,
    /// The shortest of the timeouts, in ns.
    shortest: u64,
    counters: ConntrackCounters,
}

impl Conntrack {
    /// A tracker that has seen nothing.
    #[must_use]
    pub fn new(config: &ConntrackConfig) -> Self {
        Self {
            v4: Connections::new(config.connections_v4, config.seed),
            v6: Connections::new(config.connections_v6, config.seed),
            config: *config,
            shortest: config.shortest(),
            counters: ConntrackCounters::default(),
        }
    }

    /// Memory that a tracker takes when it is made, in bytes, piece by piece.
    pub(crate) fn memory(config: &ConntrackConfig) -> impl Iterator<Item = u64> + use<> {
        let v4 = Connections::<NarrowKey>::memory(config.connections_v4);
        v4.into_iter().chain(Connections::<WideKey>::memory(config.connections_v6))
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
            FlowKey::Narrow(_) => self.v4.table.prefetch_index(hash),
            FlowKey::Wide(_) => self.v6.table.prefetch_index(hash),
        }
    }

    /// Asks for a connection, a few packets ahead.
    #[inline]
    pub fn prefetch_connection(&self, packet: &Tracked, hash: u64) {
        let _ = match packet.key {
            FlowKey::Narrow(_) => self.v4.table.candidate(hash),
            FlowKey::Wide(_) => self.v6.table.candidate(hash),
        };
    }

    /// Asks for a connection by its number (see [`Seen::connection`]), a few packets ahead.
    #[inline]
    pub fn prefetch_known(&self, packet: &Tracked, id: u32) {
        match packet.key {
            FlowKey::Narrow(_) => self.v4.table.prefetch_entry(id),
            FlowKey::Wide(_) => self.v6.table.prefetch_entry(id),
        }
    }

    /// Finds the state of a packet. Changes nothing.
    #[inline]
    #[must_use]
    pub fn look_up(&self, packet: &Tracked, now: Nanos) -> Seen {
        self.look_up_known(packet, NONE, now)
    }

    /// The same for a packet whose connection most likely has this number, for either direction: then it is
    /// not searched for.
    #[inline]
    #[must_use]
    pub fn look_up_known(&self, packet: &Tracked, id: u32, now: Nanos) -> Seen {
        match packet.key {
            FlowKey::Narrow(key) => self.see(&self.v4, &key, packet, id, now),
            FlowKey::Wide(key) => self.see(&self.v6, &key, packet, id, now),
        }
    }

    #[inline]
    fn see<K: Key>(
        &self,
        connections: &Connections<K>,
        key: &K,
        packet: &Tracked,
        id: u32,
        now: Nanos,
    ) -> Seen {
        let table = &connections.table;
        let found = if table.holds(id, key, now) {
            Some(id)
        } else {
            table.find(key, table.hash(key)).filter(|&id| !table.is_due(id, now))
        };
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

    /// A packet that was looked up just now was let through: its connection begins, or goes on. Nothing
    /// happens for errors, invalid and untracked packets.
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

    /// Up to when a packet of the same flow as this one, which was looked up at `now`, is sure to be seen in
    /// the same way, whether this one is accepted or not; `now` where one packet may change what the next one
    /// is.
    #[must_use]
    pub fn holds_until(&self, packet: &Tracked, seen: &Seen, now: Nanos) -> Nanos {
        if seen.id == NONE {
            return now;
        }
        let deadline = match packet.key {
            FlowKey::Narrow(_) => self.v4.table.deadline(seen.id),
            FlowKey::Wide(_) => self.v6.table.deadline(seen.id),
        };
        deadline.min(now.after(self.shortest))
    }

    /// Forgets connections whose time has passed, `visits` at most of each IP version. One whose time has
    /// passed is never found, called or not.
    pub fn expire(&mut self, now: Nanos, visits: u32) {
        self.counters.expired += self.v4.expire(now, visits) + self.v6.expire(now, visits);
    }

    /// Connections remembered.
    #[must_use]
    pub fn connections(&self) -> u32 {
        self.v4.table.len() + self.v6.table.len()
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> &ConntrackCounters {
        &self.counters
    }

    /// Connections whose place lay far from where their hash says; see
    /// [`Index::long_probes`](super::table::Index::long_probes).
    #[must_use]
    pub fn long_probes(&self) -> u64 {
        self.v4.table.long_probes() + self.v6.table.long_probes()
    }
}

fn is_tcp(packet: &Tracked) -> bool {
    // Fragments of TCP are tracked like any protocol without states.
    packet.key.protocol() == TCP && packet.kind != Kind::Fragment
}

fn step_of(connection: &Connection, packet: &Tracked, direction: Direction) -> Step {
    match packet.tcp_flags {
        Some(flags) if is_tcp(packet) && !is_plausible(flags) => Step::Invalid,
        Some(flags) if is_tcp(packet) => match connection.tcp.step(direction, flags) {
            Step::Ignore if connection.again && connection.tcp.begins_again(direction, flags) => {
                Step::To(TcpState::SynReceived)
            }
            step => step,
        },
        _ => Step::Ignore,
    }
}

impl ConntrackConfig {
    fn shortest(&self) -> u64 {
        let Self { tcp, tcp_one_way, udp, udp_replied, icmp, other, .. } = self;
        tcp.shortest().min(*tcp_one_way).min(*udp).min(*udp_replied).min(*icmp).min(*other)
    }

    fn of_tcp(&self, connection: &Connection) -> u64 {
        let usual = self.tcp.of(connection.tcp);
        // Any ACK begins a connection: one that nobody has answered is not kept for days.
        let one_way = connection.tcp == TcpState::Established && !connection.replied;
        if one_way { usual.min(self.tcp_one_way) } else { usual }
    }

    fn deadline(&self, connection: &Connection, packet: &Tracked, now: Nanos) -> Nanos {
        now.after(match packet.key.protocol() {
            _ if is_tcp(packet) => self.of_tcp(connection),
            UDP if connection.replied => self.udp_replied,
            UDP => self.udp,
            ICMP | ICMPV6 => self.icmp,
            _ => self.other,
        })
    }
}

#[inline]
fn accept<K: Key>(
    connections: &mut Connections<K>,
    key: K,
    packet: &Tracked,
    seen: &Seen,
    now: Nanos,
    config: &ConntrackConfig,
    counters: &mut ConntrackCounters,
) -> Result<(), Full> {
    let Some(connection) = connections.table.get_mut(seen.id) else {
        return open(connections, key, packet, now, config, counters);
    };
    let before = connection.tcp;
    if !connection.replied && is_tcp(packet) && packet.tcp_flags.is_some_and(|flags| flags & RST != 0) {
        // A reset is the only answer, or takes the question back: there is no connection.
        connections.remove(seen.id);
        return Ok(());
    }
    connection.replied |= seen.direction == Direction::Reply;
    match seen.step {
        Step::To(state) => connection.tcp = state,
        Step::Reopen => {
            let again = Connection::new(packet, TcpState::SynSent, now);
            *connection = Connection { class: connection.class, links: connection.links, ..again };
        }
        Step::Ignore if is_tcp(packet) => {
            let asks = |flags| before.asks_again(seen.direction, flags);
            connection.again |= packet.tcp_flags.is_some_and(asks);
        }
        Step::Ignore | Step::Invalid => {}
    }
    if connection.again && connection.tcp == TcpState::SynReceived {
        connection.again = false;
    }
    let (was, class) = (connection.class, connection.class_after(packet, before, now));
    if !(seen.step == Step::Ignore && is_tcp(packet)) {
        let deadline = config.deadline(connection, packet, now);
        connections.table.set_deadline(seen.id, deadline);
    }
    if class != was {
        connections.reclass(seen.id, class);
    }
    Ok(())
}

#[inline(never)]
fn open<K: Key>(
    connections: &mut Connections<K>,
    key: K,
    packet: &Tracked,
    now: Nanos,
    config: &ConntrackConfig,
    counters: &mut ConntrackCounters,
) -> Result<(), Full> {
    const SWEEP: u32 = 16;
    counters.expired += connections.expire(now, SWEEP);
    if connections.table.is_full() {
        counters.expired += connections.expire(now, u32::MAX);
    }
    let hash = connections.table.hash(&key);
    // The same connection, its time passed.
    if let Some(id) = connections.table.find(&key, hash) {
        connections.remove(id);
        counters.expired += 1;
    }
    if let Some(class) = connections.make_room(now, config.early_drop)
        && let Some(displaced) = counters.displaced.get_mut(class as usize)
    {
        *displaced += 1;
    }
    let tcp = packet.tcp_flags.and_then(|flags| TcpState::first(flags, true)).unwrap_or_default();
    let connection = Connection::new(packet, tcp, now);
    let deadline = config.deadline(&connection, packet, now);
    match connections.insert(key, hash, connection, deadline) {
        Ok(()) => {
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
