//! Mappings: which external endpoint an inside one has, static or made when it is needed.

use std::ops::RangeInclusive;

use slipstream_wire::NarrowKey;

use super::config::{NatConfig, Pooling};
use super::packet::{Tuple, key_of};
use super::ports::{AddressPorts, PortSpace, Ports, Starts};
use super::statics::Statics;
use super::{DropReason, StaticMapping};
use slipstream_core::table::{Index, Key, NONE, Table};
use slipstream_core::time::Nanos;

/// A dynamic mapping.
#[derive(Clone, Copy, Debug)]
struct Mapping {
    /// Protocol, external address and port, as a key whose destination is 0.
    external: NarrowKey,
    /// Sessions that it has.
    sessions: u32,
    /// Its number among the pool's addresses.
    pool_index: u32,
    /// The inside host that has it.
    host: u32,
    /// Until when packets from outside keep it, where they may: it may outlive its sessions.
    kept: Nanos,
}

impl Mapping {
    const fn is_over(&self, now: Nanos) -> bool {
        self.sessions == 0 && self.kept.0 <= now.0
    }
}

/// An inside host with dynamic mappings.
#[derive(Clone, Copy, Debug, Default)]
struct Host {
    sessions: u32,
    /// Its mappings by [`PortSpace`].
    mappings: [u32; 3],
    /// The number of its latest mapping's address among those of the pool.
    pool_index: u32,
}

impl Host {
    /// The number of its mappings of a protocol.
    fn of(&mut self, protocol: u8) -> Option<&mut u32> {
        self.mappings.get_mut(PortSpace::of(protocol)? as usize)
    }
}

/// The other end of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapped {
    pub(super) address: u32,
    pub(super) port: u16,
    /// The dynamic mapping, or [`NONE`] of a static one.
    pub(super) mapping: u32,
    /// True if it is one of a whole address.
    pub(super) whole: bool,
}

/// All mappings.
#[derive(Debug)]
pub(super) struct Mappings {
    statics: Statics,
    /// Addresses of the pool, by the numbers that mappings have of them; some may be there no longer.
    pool: Vec<u32>,
    /// The addresses that are in the pool now, in order, each with its number.
    active: Vec<(u32, u32)>,
    ports: Ports,
    pooling: Pooling,
    starts: Starts,
    choices: u64,
    seed: u64,
    /// By protocol, inside address and port, as a key whose destination is 0.
    dynamic: Table<NarrowKey, Mapping>,
    by_external: Index,
    /// By inside address.
    hosts: Table<u64, Host>,
    /// Sessions of a host and of a mapping at most.
    host_sessions: u32,
    mapping_sessions: u32,
    /// Mappings of a host at most, by [`PortSpace`].
    host_mappings: [u32; 3],
}

/// Parts of a configuration that [`Mappings::update`] needs, made elsewhere.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) statics: Statics,
    pub(super) pool: Vec<u32>,
    /// Ports of each address of the pool, none taken.
    pub(super) ports: Vec<AddressPorts>,
}

impl Made {
    pub(super) fn of(config: &NatConfig) -> Self {
        let pool: Vec<u32> = config.pool.iter().map(|a| a.to_bits()).collect();
        let ports = pool.iter().map(|_| AddressPorts::new()).collect();
        Self { statics: Statics::new(&config.statics), pool, ports }
    }
}

/// Protocol, address and port as a key.
const fn endpoint(protocol: u8, address: u32, port: u16) -> NarrowKey {
    key_of(protocol, address, port, 0, 0)
}

/// Mappings of a host at most, by [`PortSpace`]: a host leaves half of what it could take to the others.
fn host_mappings(config: &NatConfig) -> [u32; 3] {
    let addresses = if config.pooling == Pooling::Paired { 1 } else { config.pool.len() };
    let half = |numbers: &RangeInclusive<u16>| ((numbers.len() * addresses) as u32 / 2).max(1);
    let ports = half(&config.ports);
    [ports, ports, half(&config.identifiers)].map(|half| config.host_mappings.unwrap_or(half))
}

impl Mappings {
    pub(super) fn new(config: &NatConfig) -> Self {
        let mut pool: Vec<u32> = config.pool.iter().map(|a| a.to_bits()).collect();
        pool.sort_unstable();
        let mut ports = Ports::new(pool.len(), config.ports.clone(), config.low_ports.clone())
            .with_identifiers(config.identifiers.clone());
        for mapping in &config.statics {
            let StaticMapping::Port { protocol, external: (address, port), .. } = *mapping else { continue };
            if let (Ok(at), Some(space)) = (pool.binary_search(&address.to_bits()), PortSpace::of(protocol)) {
                ports.reserve(at, space, port);
            }
        }
        Self {
            statics: Statics::new(&config.statics),
            active: pool.iter().copied().zip(0..).collect(),
            pool,
            ports,
            pooling: config.pooling,
            starts: Starts::new(config.choices),
            choices: config.choices,
            seed: config.seed,
            dynamic: Table::new(config.mappings, config.seed),
            by_external: Index::new(config.mappings),
            hosts: Table::new(config.mappings, config.seed),
            host_sessions: config.host_sessions,
            mapping_sessions: config.mapping_sessions,
            host_mappings: host_mappings(config),
        }
    }

    /// Memory that so many mappings take, in bytes, piece by piece.
    pub(super) fn memory(mappings: u32) -> impl Iterator<Item = u64> {
        let (dynamic, hosts) =
            (Table::<NarrowKey, Mapping>::memory(mappings), Table::<u64, Host>::memory(mappings));
        dynamic.into_iter().chain([Index::memory(mappings)]).chain(hosts)
    }

    pub(super) fn len(&self) -> u32 {
        self.dynamic.len()
    }

    /// Returns true if packets from this inside address are translated.
    pub(super) fn translates(&self, config: &NatConfig, inside: u32) -> bool {
        config.inside.is_empty()
            || config.inside.iter().any(|net| net.contains(&std::net::Ipv4Addr::from_bits(inside)))
    }

    /// Returns true if a static mapping stands for all of an inside address.
    pub(super) fn has_whole(&self, inside: u32) -> bool {
        self.statics.external_of(inside).is_some()
    }

    /// Returns true if a static mapping stands for this inside endpoint, or for all of its address.
    pub(super) fn is_static(&self, from: &Tuple) -> bool {
        let port = self.statics.external_port(from.protocol, from.src, from.src_port);
        port.is_some() || self.has_whole(from.src)
    }

    /// Returns true if this address is one of the NAT's external ones.
    pub(super) fn owns(&self, external: u32) -> bool {
        self.number_of(external).is_some() || self.statics.owns(external)
    }

    /// The number of an address that is in the pool.
    fn number_of(&self, external: u32) -> Option<u32> {
        let at = self.active.binary_search_by_key(&external, |(address, _)| *address).ok()?;
        self.active.get(at).map(|(_, number)| *number)
    }

    /// The external endpoint of the source of a packet from inside, if it has one already.
    pub(super) fn present(&self, from: &Tuple, now: Nanos) -> Option<Mapped> {
        if let Some(address) = self.statics.external_of(from.src) {
            return Some(Mapped { address, port: from.src_port, mapping: NONE, whole: true });
        }
        if let Some((address, port)) = self.statics.external_port(from.protocol, from.src, from.src_port) {
            return Some(Mapped { address, port, mapping: NONE, whole: false });
        }
        let key = endpoint(from.protocol, from.src, from.src_port);
        let id = self.dynamic.find(&key, self.dynamic.hash(&key))?;
        let mapping = self.dynamic.get(id).filter(|m| !m.is_over(now))?;
        let external = Tuple::of(mapping.external);
        Some(Mapped { address: external.src, port: external.src_port, mapping: id, whole: false })
    }

    /// The external endpoint that a session from inside gets, made if there is none: whether it was made.
    /// `present` is the dynamic one that there is.
    pub(super) fn outbound(
        &mut self,
        from: &Tuple,
        present: Option<Mapped>,
    ) -> Result<(Mapped, bool), DropReason> {
        if let Some(mapped) = present {
            self.has_room(mapped.mapping)?;
            return Ok((mapped, false));
        }
        let space = PortSpace::of(from.protocol).ok_or(DropReason::Protocol)?;
        let key = endpoint(from.protocol, from.src, from.src_port);
        let hash = self.dynamic.hash(&key);
        if let Some(past) = self.dynamic.find(&key, hash) {
            self.remove(past);
        }
        let host = self.host(from.src);
        if host.is_some_and(|host| host.sessions >= self.host_sessions) {
            return Err(DropReason::HostSessions);
        }
        if host.is_some_and(|host| self.has_its_mappings(host, space)) {
            return Err(DropReason::HostMappings);
        }
        if self.dynamic.is_full() {
            return Err(DropReason::MappingsFull);
        }
        let present = host.map(|host| host.pool_index);
        let (pool_index, external, port) = self.take_port(space, from, present).ok_or(DropReason::NoPort)?;
        let key_outside = endpoint(from.protocol, external, port);
        let mapping = self.add(key, key_outside, pool_index).ok_or(DropReason::MappingsFull)?;
        Ok((Mapped { address: external, port, mapping, whole: false }, true))
    }

    /// An inside host, if it has dynamic mappings.
    fn host(&self, inside: u32) -> Option<&Host> {
        let address = u64::from(inside);
        self.hosts.find(&address, self.hosts.hash(&address)).and_then(|id| self.hosts.get(id))
    }

    /// Returns true if a host has as many mappings as one may have.
    fn has_its_mappings(&self, host: &Host, space: PortSpace) -> bool {
        let at = space as usize;
        host.mappings.get(at).zip(self.host_mappings.get(at)).is_some_and(|(has, most)| has >= most)
    }

    /// Adds a dynamic mapping, whose port was taken, of an inside endpoint that has none.
    fn add(&mut self, key: NarrowKey, external: NarrowKey, pool_index: u32) -> Option<u32> {
        let Tuple { protocol, src, .. } = Tuple::of(key);
        let address = u64::from(src);
        let hash = self.hosts.hash(&address);
        // There is room: there are never more hosts than mappings.
        let host = match self.hosts.find(&address, hash) {
            Some(host) => host,
            None => self.hosts.insert(address, hash, Host::default(), Nanos::MAX).ok()?,
        };
        let value = Mapping { external, sessions: 0, pool_index, host, kept: Nanos(0) };
        let mapping = self.dynamic.insert(key, self.dynamic.hash(&key), value, Nanos::MAX).ok()?;
        if let Some(host) = self.hosts.get_mut(host) {
            host.pool_index = pool_index;
            if let Some(mappings) = host.of(protocol) {
                *mappings += 1;
            }
        }
        self.by_external.insert(external.hash(self.seed), mapping);
        Some(mapping)
    }

    /// Checks that a mapping and its host may have another session.
    fn has_room(&self, mapping: u32) -> Result<(), DropReason> {
        let Some(mapping) = self.dynamic.get(mapping) else { return Ok(()) };
        if mapping.sessions >= self.mapping_sessions {
            return Err(DropReason::MappingSessions);
        }
        match self.hosts.get(mapping.host) {
            Some(host) if host.sessions >= self.host_sessions => Err(DropReason::HostSessions),
            _ => Ok(()),
        }
    }

    /// A port for a mapping: its address's number, the address, the port. `present` is the number of the
    /// address that the host has now, where it has mappings.
    fn take_port(&mut self, space: PortSpace, from: &Tuple, present: Option<u32>) -> Option<(u32, u32, u16)> {
        let addresses = self.active.len();
        let first = (u64::from(from.src).hash(self.choices) % addresses.max(1) as u64) as usize;
        let paired = self.pooling == Pooling::Paired;
        let tries = if paired { addresses.min(1) } else { addresses };
        // The pool may have changed since: a host that has mappings stays with their address (RFC 4787 §4.1).
        let stays = present
            .filter(|_| paired)
            .and_then(|number| self.active.iter().position(|(_, active)| *active == number));
        let first = stays.unwrap_or(first);
        if !paired && self.ports.has_none(space, from.src_port) {
            return None;
        }
        let taken = (0..tries).find_map(|n| {
            let (address, number) = self.active.get((first + n) % addresses).copied()?;
            let start = || self.starts.of(from.key());
            let port = self.ports.take(number as usize, space, from.src_port, start)?;
            Some((number, address, port))
        });
        if !paired && taken.is_none() {
            self.ports.note_none(space, from.src_port);
        }
        taken
    }

    /// The inside endpoint of the destination of a packet from outside.
    pub(super) fn inbound(&self, to: &Tuple, now: Nanos) -> Option<Mapped> {
        if let Some(address) = self.statics.inside_of(to.dst) {
            return Some(Mapped { address, port: to.dst_port, mapping: NONE, whole: true });
        }
        if let Some((address, port)) = self.statics.inside_port(to.protocol, to.dst, to.dst_port) {
            return Some(Mapped { address, port, mapping: NONE, whole: false });
        }
        let key = endpoint(to.protocol, to.dst, to.dst_port);
        let is = |id| self.dynamic.get(id).is_some_and(|m| m.external == key && !m.is_over(now));
        let mapping = self.by_external.find(key.hash(self.seed), is)?;
        let inside = Tuple::of(*self.dynamic.key(mapping)?);
        Some(Mapped { address: inside.src, port: inside.src_port, mapping, whole: false })
    }

    /// The dynamic mapping that has an external endpoint.
    fn with_external(&self, external: NarrowKey) -> Option<u32> {
        let is = |id| self.dynamic.get(id).is_some_and(|m| m.external == external);
        self.by_external.find(external.hash(self.seed), is)
    }

    /// The external address that stands for all of an inside one.
    pub(super) fn whole_external(&self, inside: u32) -> Option<u32> {
        self.statics.external_of(inside)
    }

    /// A packet from outside keeps a mapping until `until`.
    pub(super) fn keep(&mut self, mapping: u32, until: Nanos) {
        if let Some(mapping) = self.dynamic.get_mut(mapping) {
            mapping.kept = mapping.kept.max(until);
        }
    }

    /// A session of this mapping begins.
    pub(super) fn hold(&mut self, mapping: u32) {
        let Some(mapping) = self.dynamic.get_mut(mapping) else { return };
        mapping.sessions += 1;
        if let Some(host) = self.hosts.get_mut(mapping.host) {
            host.sessions += 1;
        }
    }

    /// A session of this mapping ended (or none began); true if that was the last, and the mapping is no
    /// more.
    pub(super) fn let_go(&mut self, id: u32, ended: u32, now: Nanos) -> bool {
        let Some(mapping) = self.dynamic.get_mut(id) else { return false };
        let ended = ended.min(mapping.sessions);
        mapping.sessions -= ended;
        let Mapping { sessions, kept, host, .. } = *mapping;
        if let Some(host) = self.hosts.get_mut(host) {
            host.sessions -= ended.min(host.sessions);
        }
        if sessions > 0 {
            return false;
        }
        if kept > now {
            self.dynamic.set_deadline(id, kept);
            return false;
        }
        self.remove(id)
    }

    /// Gives up mappings that nothing keeps any longer, after at most `visits` looks; how many.
    pub(super) fn expire(&mut self, now: Nanos, visits: &mut u32) -> u64 {
        let mut released = 0;
        while let Some(id) = self.dynamic.next_due(now, visits) {
            match self.dynamic.get(id) {
                Some(mapping) if mapping.is_over(now) => released += u64::from(self.remove(id)),
                Some(Mapping { sessions: 0, kept, .. }) => self.dynamic.renew(id, *kept),
                _ => self.dynamic.renew(id, Nanos::MAX),
            }
        }
        released
    }

    /// Takes a dynamic mapping out, with its port, and its host if that was the host's last; false if there
    /// is none.
    fn remove(&mut self, id: u32) -> bool {
        let Some((_, Mapping { external, pool_index, host: host_id, .. })) = self.dynamic.remove(id) else {
            return false;
        };
        let Tuple { protocol, src_port, .. } = Tuple::of(external);
        self.by_external.remove(external.hash(self.seed), id);
        if let Some(space) = PortSpace::of(protocol) {
            self.ports.give_back(pool_index as usize, space, src_port);
            if self.statics.inside_port(protocol, Tuple::of(external).src, src_port).is_some() {
                // A static mapping has taken it over meanwhile.
                self.ports.reserve(pool_index as usize, space, src_port);
            }
        }
        if let Some(host) = self.hosts.get_mut(host_id) {
            if let Some(mappings) = host.of(protocol) {
                *mappings -= 1;
            }
            if host.mappings == [0; 3] {
                self.hosts.remove(host_id);
            }
        }
        true
    }

    /// Goes by the addresses, ports and bounds of another configuration, of which `made` was made. Mappings
    /// stay as they are: [`fits`](Self::fits) says which may.
    pub(super) fn update(&mut self, config: &NatConfig, made: &mut Made) {
        let Made { statics, pool, ports } = made;
        std::mem::swap(&mut self.statics, statics);
        // Ports that were static are free again, unless a host has one still that it had before; those that
        // are static now are taken.
        for (at, address) in self.pool.iter().enumerate() {
            for (space, port) in statics.ports_of(*address) {
                if self.with_external(endpoint(space.protocol(), *address, port)).is_none() {
                    self.ports.give_back(at, space, port);
                }
            }
        }
        self.active.clear();
        for (address, new) in pool.iter().zip(ports.iter_mut()) {
            let number = match self.pool.iter().position(|known| known == address) {
                Some(number) => number,
                None => {
                    self.pool.push(*address);
                    self.ports.add(new);
                    self.pool.len() - 1
                }
            };
            for (space, port) in self.statics.ports_of(*address) {
                self.ports.reserve(number, space, port);
            }
            self.active.push((*address, number as u32));
        }
        self.active.sort_unstable();
        self.ports.set_ranges(config.ports.clone(), config.low_ports.clone());
        (self.host_sessions, self.mapping_sessions) = (config.host_sessions, config.mapping_sessions);
        self.host_mappings = host_mappings(config);
        self.pooling = config.pooling;
    }

    /// Returns true if the dynamic mapping of an inside endpoint to an external one may be, as the
    /// configuration is now.
    pub(super) fn fits(&self, config: &NatConfig, inside: &Tuple, external: (u32, u16)) -> bool {
        self.translates(config, inside.src)
            && self.number_of(external.0).is_some()
            && self.statics.inside_port(inside.protocol, external.0, external.1).is_none()
            && self.statics.external_of(inside.src).is_none()
            && self.statics.external_port(inside.protocol, inside.src, inside.src_port).is_none()
    }

    /// The dynamic mapping of an inside endpoint to this external one, made if there is none of it; none
    /// where it has another, or the port is another's, or nobody's to have, or the host has all that it may.
    pub(super) fn restore(&mut self, from: &Tuple, external: (u32, u16)) -> Option<u32> {
        let key = endpoint(from.protocol, from.src, from.src_port);
        let outside = endpoint(from.protocol, external.0, external.1);
        if let Some(id) = self.dynamic.find(&key, self.dynamic.hash(&key)) {
            return self.dynamic.get(id).is_some_and(|m| m.external == outside).then_some(id);
        }
        let space = PortSpace::of(from.protocol)?;
        let number = self.number_of(external.0)?;
        let host_is_full = self.host(from.src).is_some_and(|host| self.has_its_mappings(host, space));
        if self.dynamic.is_full() || host_is_full || !self.ports.take_this(number as usize, space, external.1)
        {
            return None;
        }
        self.add(key, outside, number)
    }

    /// Gives up the dynamic mapping of an inside endpoint to this external one, unless it has sessions:
    /// whether there was one to give up.
    pub(super) fn forget(&mut self, inside: &Tuple, external: (u32, u16)) -> bool {
        let key = endpoint(inside.protocol, inside.src, inside.src_port);
        let outside = endpoint(inside.protocol, external.0, external.1);
        let found = self.dynamic.find(&key, self.dynamic.hash(&key));
        let unused = |id: &u32| {
            self.dynamic.get(*id).is_some_and(|mapping| mapping.sessions == 0 && mapping.external == outside)
        };
        found.filter(unused).is_some_and(|id| self.remove(id))
    }

    /// Checks that a mapping may have another session, and gives it up if it has none.
    pub(super) fn may_hold(&mut self, mapping: u32) -> bool {
        let may = self.has_room(mapping).is_ok();
        if !may && self.dynamic.get(mapping).is_some_and(|m| m.sessions == 0) {
            self.remove(mapping);
        }
        may
    }

    /// Visits mappings without sessions that something keeps, among so many places: inside endpoint, external
    /// one, time left. Returns the place to go on from.
    pub(super) fn save(
        &self,
        from: u32,
        places: u32,
        now: Nanos,
        mut visit: impl FnMut(Tuple, (u32, u16), u64),
    ) -> Option<u32> {
        let (ids, next) = self.dynamic.ids_from(from, places);
        for id in ids {
            let (Some(key), Some(mapping)) = (self.dynamic.key(id), self.dynamic.get(id)) else { continue };
            if mapping.sessions == 0 && !mapping.is_over(now) {
                let external = Tuple::of(mapping.external);
                visit(Tuple::of(*key), (external.src, external.src_port), mapping.kept.since(now));
            }
        }
        next
    }

    /// Takes out mappings without sessions that the configuration doesn't let be any longer, among so many
    /// places; the place to go on from, and how many were taken out.
    pub(super) fn sweep(&mut self, config: &NatConfig, from: u32, places: u32) -> (Option<u32>, u64) {
        let (ids, next) = self.dynamic.ids_from(from, places);
        let is_over = |id: &u32| {
            let (Some(key), Some(mapping)) = (self.dynamic.key(*id), self.dynamic.get(*id)) else {
                return false;
            };
            let external = Tuple::of(mapping.external);
            mapping.sessions == 0 && !self.fits(config, &Tuple::of(*key), (external.src, external.src_port))
        };
        let over: Vec<u32> = ids.filter(is_over).collect();
        let removed = over.into_iter().map(|id| u64::from(self.remove(id))).sum();
        (next, removed)
    }

    /// Entries far from where their hash says.
    pub(super) const fn long_probes(&self) -> u64 {
        self.dynamic.long_probes() + self.by_external.long_probes() + self.hosts.long_probes()
    }
}
