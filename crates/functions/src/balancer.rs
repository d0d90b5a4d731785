//! The load balancer: which backend a connection goes to, and stays with.
//!
//! A new connection's backend comes from [`Maglev`], so that several balancers agree; an affinity table keeps
//! connections where they are when backends come and go. A backend that is not healthy, or has weight 0, gets
//! no new connections; one that is not healthy loses those that it has, one of weight 0 keeps them (it
//! drains).
//!
//! Anyone can fill the table with first packets from forged sources. So where it is full, a connection that
//! has had one packet makes room for a new one, the oldest first; one that has had more stays.
//!
//! A connection is known without its VLAN ids: its packets may come by several links, or to another balancer
//! by another one, and belong to the same backend.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};

use slipstream_wire::{FlowKey, NarrowKey};

use super::conntrack::packet::untagged;
use super::maglev::{Maglev, MaglevError, Member};
use super::nat::{ErrorRewrite, Rewrite, Tuple};
use super::table::{Key, Linked, Links, Queue, Table};
use slipstream_core::time::Nanos;

/// A backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backend {
    /// Its address, by which it is known when the list changes.
    pub address: IpAddr,
    /// Its share of new connections, relative to the others' weights.
    pub weight: u32,
    /// True if it works.
    pub healthy: bool,
}

impl Backend {
    fn identity(&self) -> u64 {
        let bits = match self.address {
            IpAddr::V4(a) => u128::from(a.to_bits()) | 4 << 64,
            IpAddr::V6(a) => a.to_bits(),
        };
        // Without a seed: all balancers of a service make the same table.
        NarrowKey([(bits >> 64) as u64, bits as u64]).hash(0)
    }

    fn member(&self) -> Member {
        Member { identity: self.identity(), weight: if self.healthy { self.weight } else { 0 } }
    }
}

/// Counters of a balancer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BalancerCounters {
    /// Connections that got a backend.
    pub connections: u64,
    /// Connections that lost their backend and got another.
    pub moved: u64,
    /// Connections of one packet that were forgotten for a new one: the table was full.
    pub displaced: u64,
    /// Packets that were balanced without being remembered: the table was full of connections that have had
    /// more than one.
    pub unremembered: u64,
    /// Packets for which there was no backend.
    pub nobody: u64,
}

/// A balancer of one service.
///
/// ```
/// use slipstream_core::table::NONE;
/// use slipstream_core::time::Nanos;
/// use slipstream_functions::balancer::{Backend, Balancer, BalancerConfig};
/// use slipstream_functions::maglev::SMALL;
/// use slipstream_wire::FlowKey;
///
/// let backend = |last, healthy| Backend { address: [10, 1, 0, last].into(), weight: 1, healthy };
/// let config = BalancerConfig { places: SMALL, connections: 1000, idle: 300_000_000_000, seed: 1 };
/// let mut balancer = Balancer::new(&config, vec![backend(1, true), backend(2, true)])?;
///
/// let key = FlowKey::new(&[], [10, 0, 0, 1].into(), [192, 0, 2, 80].into(), 6, 40_000, 80)?;
/// let first = balancer.choose(&key, NONE, Nanos(0)).ok_or("no backend")?;
/// // The connection stays where it is when a backend comes, and moves when its own goes down.
/// let down = |n| backend(n as u8 + 1, n != first.backend);
/// balancer.set_backends(vec![backend(1, true), backend(2, true), backend(3, true)], Nanos(1))?;
/// assert_eq!(balancer.choose(&key, NONE, Nanos(1)), Some(first));
/// balancer.set_backends(vec![down(0), down(1)], Nanos(2))?;
/// assert_eq!(balancer.choose(&key, NONE, Nanos(2)).map(|now| now.backend), Some(1 - first.backend));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Balancer {
    backends: Vec<Backend>,
    /// The places of all of them.
    places: Vec<Place>,
    /// The IPv4 addresses of all of them, sorted.
    addresses: Vec<u32>,
    /// Backends so far.
    serials: u64,
    maglev: Maglev,
    /// The backends among which the table chooses, by their places in the list.
    chosen: Vec<u32>,
    size: u32,
    affinity: Table<FlowKey, Affinity>,
    /// The connections that have had one packet.
    young: Queue,
    idle: u64,
    /// No connection is remembered for longer than this without a packet.
    longest_idle: u64,
    counters: BalancerCounters,
}

/// A connection that is remembered.
#[derive(Clone, Copy, Debug)]
struct Affinity {
    /// Its backend's place in the list.
    backend: u32,
    /// It has had one packet, and is in the list of such connections.
    young: bool,
    links: Links,
}

impl Affinity {
    fn to(backend: u32) -> Self {
        Self { backend, young: false, links: Links::default() }
    }
}

impl Linked for Affinity {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

/// A place in the list of backends.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The number of its backend among all that there were.
    serial: u64,
    /// The time from which another backend may have it: [`Nanos::MAX`] while it is listed. Then no
    /// connection leads here any more.
    free: Nanos,
    /// Packets that went to its backend.
    packets: u64,
}

impl Place {
    /// That of the backend with this number, which is listed.
    const fn of(serial: u64) -> Self {
        Self { serial, free: Nanos::MAX, packets: 0 }
    }
}

/// Backends and the table that chooses among them.
#[derive(Debug)]
pub(crate) struct Backends {
    backends: Vec<Backend>,
    maglev: Maglev,
    /// As [`BalancerConfig::idle`].
    idle: u64,
}

impl Backends {
    pub(crate) fn new(backends: Vec<Backend>, places: u32, idle: u64) -> Result<Self, MaglevError> {
        Ok(Self { maglev: Balancer::table(&backends, places)?, backends, idle })
    }
}

/// Settings of a balancer, besides its backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BalancerConfig {
    /// Places of the Maglev table, a prime: [`SMALL`](super::maglev::SMALL), [`LARGE`](super::maglev::LARGE).
    pub places: u32,
    /// Connections remembered at most, 1 to 2³⁰.
    pub connections: u32,
    /// Nanoseconds after which a silent connection is forgotten.
    pub idle: u64,
    /// Seed of the connection table.
    pub seed: u64,
}

/// A backend that was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// Its place in the list.
    pub backend: u32,
    /// Number of the connection, where it is remembered; another connection's once this one is forgotten.
    pub connection: Option<u32>,
}

/// The hash that chooses a place is the same in all balancers of a service.
const PLACE_SEED: u64 = 0x736c_6970_7374_7265;

impl Balancer {
    /// A balancer over these backends.
    ///
    /// # Errors
    /// [`MaglevError`] for a number of places that is no prime or too small.
    pub fn new(config: &BalancerConfig, backends: Vec<Backend>) -> Result<Self, MaglevError> {
        let maglev = Self::table(&backends, config.places)?;
        let serials = backends.len() as u64;
        let mut balancer = Self {
            chosen: (0..backends.len() as u32).collect(),
            backends,
            places: (0..serials).map(Place::of).collect(),
            addresses: Vec::new(),
            serials,
            maglev,
            size: config.places,
            affinity: Table::new(config.connections, config.seed),
            young: Queue::default(),
            idle: config.idle,
            longest_idle: config.idle,
            counters: BalancerCounters::default(),
        };
        balancer.sort_addresses();
        Ok(balancer)
    }

    /// Memory that a balancer takes for so many connections when it is made, in bytes, piece by piece.
    pub(crate) fn memory(connections: u32) -> [u64; 3] {
        Table::<FlowKey, Affinity>::memory(connections)
    }

    fn sort_addresses(&mut self) {
        let addresses = self.backends.iter().filter_map(|b| match b.address {
            IpAddr::V4(address) => Some(address.to_bits()),
            IpAddr::V6(_) => None,
        });
        self.addresses.clear();
        self.addresses.extend(addresses);
        self.addresses.sort_unstable();
    }

    fn table(backends: &[Backend], size: u32) -> Result<Maglev, MaglevError> {
        let members: Vec<Member> = backends.iter().map(Backend::member).collect();
        Maglev::new(&members, size)
    }

    /// Asks for the index line of a connection, ahead of use; returns the connection's hash.
    #[inline]
    pub fn prefetch(&self, key: &FlowKey) -> u64 {
        let hash = self.affinity.hash(&untagged(*key));
        self.affinity.prefetch_index(hash);
        hash
    }

    /// Asks for a connection by its number, a few packets ahead.
    #[inline]
    pub fn prefetch_known(&self, id: u32) {
        self.affinity.prefetch_entry(id);
    }

    /// The backend of the packet with this key, from client to service, and the number of its connection
    /// where that is remembered; `None` where there is no backend. `known` is most likely that number, or
    /// [`NONE`](super::table::NONE).
    #[inline]
    pub fn choose(&mut self, key: &FlowKey, known: u32, now: Nanos) -> Option<Chosen> {
        let key = &untagged(*key);
        if self.affinity.holds(known, key, now) {
            return self.choose_again(key, known, now);
        }
        let hash = self.affinity.hash(key);
        match self.affinity.find(key, hash).filter(|&id| !self.affinity.is_due(id, now)) {
            Some(id) => self.choose_again(key, id, now),
            None => self.choose_new(key, hash, now),
        }
    }

    /// The backend of a connection that is remembered, or another one where that is not there any more.
    #[inline]
    fn choose_again(&mut self, key: &FlowKey, id: u32, now: Nanos) -> Option<Chosen> {
        let backend = self.affinity.get(id)?.backend;
        if self.backends.get(backend as usize).is_some_and(|b| b.healthy) {
            self.extend(id, now);
            return Some(Chosen { backend, connection: Some(id) });
        }
        let backend = self.by_hash(key)?;
        self.counters.moved += 1;
        if let Some(affinity) = self.affinity.get_mut(id) {
            affinity.backend = backend;
        }
        self.extend(id, now);
        Some(Chosen { backend, connection: Some(id) })
    }

    /// Up to when packets of a connection whose backend was just chosen are sure to go there too.
    #[must_use]
    pub fn holds_until(&self, connection: u32) -> Nanos {
        self.affinity.deadline(connection)
    }

    /// A further packet of a connection whose backend was just chosen came at `now`.
    #[inline]
    pub fn extend(&mut self, connection: u32, now: Nanos) {
        self.affinity.extend(connection, now.after(self.idle));
        if self.affinity.get(connection).is_some_and(|affinity| affinity.young) {
            self.grown(connection);
        }
    }

    /// A connection is not young any more.
    #[inline(never)]
    fn grown(&mut self, connection: u32) {
        self.young.take_out(&mut self.affinity, connection);
        if let Some(affinity) = self.affinity.get_mut(connection) {
            affinity.young = false;
        }
    }

    /// Takes a connection out; false if there is none of this number.
    fn remove(&mut self, connection: u32) -> bool {
        if self.affinity.get(connection).is_some_and(|affinity| affinity.young) {
            self.young.take_out(&mut self.affinity, connection);
        }
        self.affinity.remove(connection).is_some()
    }

    /// So many more packets are treated like one that is not remembered, for which a backend was just found
    /// or not.
    pub fn more_unremembered(&mut self, packets: u64, found: bool) {
        let BalancerCounters { unremembered, nobody, .. } = &mut self.counters;
        *(if found { unremembered } else { nobody }) += packets;
    }

    /// The backend that has the connection of this key, or would get it; nothing is remembered.
    #[must_use]
    pub fn backend_of(&self, key: &FlowKey, now: Nanos) -> Option<u32> {
        let key = &untagged(*key);
        let known =
            self.affinity.find(key, self.affinity.hash(key)).filter(|&id| !self.affinity.is_due(id, now));
        let backend = known.and_then(|id| self.affinity.get(id)).map(|affinity| affinity.backend);
        let healthy = |n: &u32| self.backends.get(*n as usize).is_some_and(|b| b.healthy);
        backend.filter(healthy).or_else(|| self.place_of(key))
    }

    /// The backend that the table chooses.
    fn place_of(&self, key: &FlowKey) -> Option<u32> {
        self.chosen.get(self.maglev.backend(key.hash(PLACE_SEED))? as usize).copied()
    }

    fn by_hash(&mut self, key: &FlowKey) -> Option<u32> {
        let backend = self.place_of(key);
        self.counters.nobody += u64::from(backend.is_none());
        backend
    }

    #[inline(never)]
    fn choose_new(&mut self, key: &FlowKey, hash: u64, now: Nanos) -> Option<Chosen> {
        let backend = self.by_hash(key)?;
        self.expire(now, 16);
        if self.affinity.is_full() {
            self.expire(now, u32::MAX);
        }
        if let Some(past) = self.affinity.find(key, hash) {
            self.remove(past);
        }
        if self.affinity.is_full()
            && let Some(young) = self.young.first()
        {
            self.remove(young);
            self.counters.displaced += 1;
        }
        let affinity = Affinity { young: true, ..Affinity::to(backend) };
        match self.affinity.insert(*key, hash, affinity, now.after(self.idle)) {
            Ok(id) => {
                self.young.push(&mut self.affinity, id);
                self.counters.connections += 1;
                Some(Chosen { backend, connection: Some(id) })
            }
            Err(_) => {
                self.counters.unremembered += 1;
                Some(Chosen { backend, connection: None })
            }
        }
    }

    /// Takes another list of backends at `now`. They are known by their addresses: connections stay with
    /// those that remain. Those that are gone keep their places in [`backends`](Self::backends), unhealthy,
    /// until no connection can lead to them any more.
    ///
    /// # Errors
    /// [`MaglevError`], and nothing changed, for too many backends.
    pub fn set_backends(&mut self, backends: Vec<Backend>, now: Nanos) -> Result<(), MaglevError> {
        self.update(&mut Backends::new(backends, self.size, self.idle)?, now);
        Ok(())
    }

    /// As [`set_backends`](Self::set_backends), with a table that was made elsewhere; the one before goes to
    /// `made`. New backends take the places of those that are gone for long enough, or come behind the
    /// others. No connection is looked at.
    pub(crate) fn update(&mut self, made: &mut Backends, now: Nanos) {
        std::mem::swap(&mut self.maglev, &mut made.maglev);
        self.backends.iter_mut().for_each(|b| (b.weight, b.healthy) = (0, false));
        let gone = now.after(self.longest_idle);
        self.places.iter_mut().for_each(|place| place.free = place.free.min(gone));
        self.chosen.clear();
        let mut places: HashMap<IpAddr, usize> = self.backends.iter().map(|b| b.address).zip(0..).collect();
        let mut new = Vec::new();
        for backend in &made.backends {
            match places.get(&backend.address) {
                Some(place) => self.set(*place, *backend),
                None => new.push(*backend),
            }
        }
        let free = |(at, place): (usize, &Place)| (place.free <= now).then_some(at);
        let mut free: Vec<usize> = self.places.iter().enumerate().rev().filter_map(free).collect();
        for backend in new {
            if places.contains_key(&backend.address) {
                continue;
            }
            let at = free.pop().unwrap_or(self.backends.len());
            let place = Place::of(self.serials);
            self.serials += 1;
            match self.places.get_mut(at) {
                Some(old) => *old = place,
                None => {
                    self.backends.push(backend);
                    self.places.push(place);
                }
            }
            self.set(at, backend);
            places.insert(backend.address, at);
        }
        let place = |backend: &Backend| places.get(&backend.address).map(|at| *at as u32);
        self.chosen.extend(made.backends.iter().filter_map(place));
        self.sort_addresses();
        self.idle = made.idle;
        self.longest_idle = self.longest_idle.max(made.idle);
    }

    /// This backend is listed at this place.
    fn set(&mut self, at: usize, backend: Backend) {
        if let (Some(old), Some(place)) = (self.backends.get_mut(at), self.places.get_mut(at)) {
            *old = backend;
            place.free = Nanos::MAX;
        }
    }

    /// Returns true if a backend has this IPv4 address, or had it when connections that may last began.
    #[inline]
    #[must_use]
    pub fn knows(&self, address: u32) -> bool {
        self.addresses.binary_search(&address).is_ok()
    }

    /// So many packets went to the backend at this place of the list.
    #[inline]
    pub(crate) fn went(&mut self, place: u32, packets: u64) {
        if let Some(place) = self.places.get_mut(place as usize) {
            place.packets += packets;
        }
    }

    /// The backends that are on the list now, each with the packets that went to it.
    pub(crate) fn listed(&self) -> impl Iterator<Item = (&Backend, u64)> {
        let all = |place: &u32| self.backends.get(*place as usize).zip(self.places.get(*place as usize));
        self.chosen.iter().filter_map(all).map(|(backend, place)| (backend, place.packets))
    }

    /// The number of the backend at this place of the list, among all that there were.
    #[inline]
    pub(crate) fn serial(&self, place: u32) -> u64 {
        self.places.get(place as usize).map_or(u64::MAX, |place| place.serial)
    }

    /// Places of the table.
    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    /// As [`BalancerConfig::idle`].
    pub(crate) fn idle(&self) -> u64 {
        self.idle
    }

    /// The backends that are on the list now, by their places.
    pub(crate) fn chosen(&self) -> &[u32] {
        &self.chosen
    }

    /// Visits the connections among so many places, each with the address of its backend and the time that
    /// is left; returns the place to go on from.
    pub(crate) fn save(
        &self,
        from: u32,
        places: u32,
        now: Nanos,
        mut visit: impl FnMut(&FlowKey, IpAddr, u64),
    ) -> Option<u32> {
        let (ids, next) = self.affinity.ids_from(from, places);
        for id in ids.filter(|&id| !self.affinity.is_due(id, now)) {
            let (Some(key), Some(affinity)) = (self.affinity.key(id), self.affinity.get(id)) else {
                continue;
            };
            if let Some(backend) = self.backends.get(affinity.backend as usize) {
                visit(key, backend.address, self.affinity.deadline(id).since(now));
            }
        }
        next
    }

    /// A connection is this backend's until `until`; false where it has one, or there is no such backend, or
    /// no room.
    pub(crate) fn restore(&mut self, key: FlowKey, backend: IpAddr, until: Nanos, now: Nanos) -> bool {
        let all = || self.backends.iter().zip(&self.places);
        let listed = |(b, place): (&Backend, &Place)| b.address == backend && place.free == Nanos::MAX;
        let Some(place) = all().position(listed) else { return false };
        self.longest_idle = self.longest_idle.max(until.since(now));
        let key = untagged(key);
        let hash = self.affinity.hash(&key);
        self.affinity.find(&key, hash).is_none()
            && self.affinity.insert(key, hash, Affinity::to(place as u32), until).is_ok()
    }

    /// Forgets a connection; false if there is none.
    pub(crate) fn forget(&mut self, key: &FlowKey) -> bool {
        let key = &untagged(*key);
        let found = self.affinity.find(key, self.affinity.hash(key));
        found.is_some_and(|id| self.remove(id))
    }

    /// Forgets silent connections, `visits` at most.
    pub fn expire(&mut self, now: Nanos, mut visits: u32) {
        while let Some(id) = self.affinity.next_due(now, &mut visits) {
            self.remove(id);
        }
    }

    /// The backends by their places, which [`Chosen::backend`] counts: those on the list, and those that are
    /// gone from it and that connections may still lead to.
    #[must_use]
    pub fn backends(&self) -> &[Backend] {
        &self.backends
    }

    /// Entries far from where their hash says; see [`Index::long_probes`](super::table::Index::long_probes).
    #[must_use]
    pub const fn long_probes(&self) -> u64 {
        self.affinity.long_probes()
    }

    /// Connections remembered.
    #[must_use]
    pub fn connections(&self) -> u32 {
        self.affinity.len()
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> &BalancerCounters {
        &self.counters
    }
}

/// NAT mode for IPv4: the service's endpoint becomes the backend's, and on the way back the backend's becomes
/// the service's. Without state: a backend's port belongs to one service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NatMode {
    /// TCP (6) or UDP (17).
    pub protocol: u8,
    /// Address and port that clients know.
    pub service: (Ipv4Addr, u16),
    /// The backends' port.
    pub port: u16,
}

impl NatMode {
    /// From client to backend; `None` if the packet is not for the service.
    #[inline]
    #[must_use]
    pub fn to_backend(&self, key: NarrowKey, backend: Ipv4Addr) -> Option<Rewrite> {
        let was = Tuple::of(key);
        let ours = (was.protocol, was.dst, was.dst_port)
            == (self.protocol, self.service.0.to_bits(), self.service.1);
        ours.then(|| {
            Rewrite::between(key, Tuple { dst: backend.to_bits(), dst_port: self.port, ..was }.key())
        })
    }

    /// From backend to client; `None` if the packet is not from the backend's port. The caller has made sure
    /// that the source is a backend.
    #[inline]
    #[must_use]
    pub fn from_backend(&self, key: NarrowKey) -> Option<Rewrite> {
        let was = Tuple::of(key);
        let (address, port) = self.service;
        let ours = (was.protocol, was.src_port) == (self.protocol, self.port);
        ours.then(|| Rewrite::between(key, Tuple { src: address.to_bits(), src_port: port, ..was }.key()))
    }

    /// An ICMP error from a client, or from a router on the way there, about a packet of the service: `outer`
    /// is its own key, `quoted` that of the packet, which the backend sent.
    #[must_use]
    pub fn error_to_backend(&self, outer: NarrowKey, quoted: NarrowKey, backend: Ipv4Addr) -> ErrorRewrite {
        let (to, about) = (Tuple::of(outer), Tuple::of(quoted));
        let backend = backend.to_bits();
        let (to, sent) = (Tuple { dst: backend, ..to }, Tuple { src: backend, src_port: self.port, ..about });
        ErrorRewrite::between([outer, to.key()], [quoted, sent.key()])
    }

    /// An ICMP error about a packet that went to a backend, from the backend or from a router on the way
    /// there; `None` if the packet was not for the backend's port. The caller has made sure that the packet
    /// went to a backend.
    #[must_use]
    pub fn error_from_backend(&self, outer: NarrowKey, quoted: NarrowKey) -> Option<ErrorRewrite> {
        let (from, about) = (Tuple::of(outer), Tuple::of(quoted));
        let (service, port) = (self.service.0.to_bits(), self.service.1);
        let src = if from.src == about.dst { service } else { from.src };
        let (from, sent) = (Tuple { src, ..from }, Tuple { dst: service, dst_port: port, ..about });
        let ours = (about.protocol, about.dst_port) == (self.protocol, self.port);
        ours.then(|| ErrorRewrite::between([outer, from.key()], [quoted, sent.key()]))
    }
}

#[cfg(test)]
mod tests;
