//! Mappings: which external endpoint an inside one has, static or made when it is needed.

use slipstream_wire::NarrowKey;

use super::config::{NatConfig, Pooling};
use super::packet::{Tuple, key_of};
use super::ports::{PortSpace, Ports, Starts};
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
    /// Which of the pool's addresses it is.
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
    mappings: u32,
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
    pool: Vec<u32>,
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
}

/// Protocol, address and port as a key.
const fn endpoint(protocol: u8, address: u32, port: u16) -> NarrowKey {
    key_of(protocol, address, port, 0, 0)
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
        }
    }

    pub(super) fn len(&self) -> u32 {
        self.dynamic.len()
    }

    /// Returns true if packets from this inside address are translated.
    pub(super) fn translates(&self, config: &NatConfig, inside: u32) -> bool {
        config.inside.is_empty()
            || config.inside.iter().any(|net| net.contains(&std::net::Ipv4Addr::from_bits(inside)))
    }

    /// Returns true if this address is one of the NAT's external ones.
    pub(super) fn owns(&self, external: u32) -> bool {
        self.pool.binary_search(&external).is_ok() || self.statics.owns(external)
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
        let address = u64::from(from.src);
        let known = self.hosts.find(&address, self.hosts.hash(&address));
        if known.and_then(|id| self.hosts.get(id)).is_some_and(|h| h.sessions >= self.host_sessions) {
            return Err(DropReason::HostSessions);
        }
        if self.dynamic.is_full() {
            return Err(DropReason::MappingsFull);
        }
        let (pool_index, external, port) = self.take_port(space, from).ok_or(DropReason::NoPort)?;
        // There is room: there are never more hosts than mappings.
        let host = known.or_else(|| {
            self.hosts.insert(address, self.hosts.hash(&address), Host::default(), Nanos::MAX).ok()
        });
        let host = host.ok_or(DropReason::MappingsFull)?;
        let key_outside = endpoint(from.protocol, external, port);
        let value = Mapping { external: key_outside, sessions: 0, pool_index, host, kept: Nanos(0) };
        let inserted = self.dynamic.insert(key, hash, value, Nanos::MAX);
        let mapping = inserted.map_err(|_| DropReason::MappingsFull)?;
        if let Some(host) = self.hosts.get_mut(host) {
            host.mappings += 1;
        }
        self.by_external.insert(key_outside.hash(self.seed), mapping);
        Ok((Mapped { address: external, port, mapping, whole: false }, true))
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

    fn take_port(&mut self, space: PortSpace, from: &Tuple) -> Option<(u32, u32, u16)> {
        let addresses = self.pool.len();
        let first = (u64::from(from.src).hash(self.choices) % addresses.max(1) as u64) as usize;
        let tries = if self.pooling == Pooling::Paired { addresses.min(1) } else { addresses };
        (0..tries).find_map(|n| {
            let at = (first + n) % addresses;
            let port = self.ports.take(at, space, from.src_port, || self.starts.of(from.key()))?;
            Some((at as u32, self.pool.get(at).copied()?, port))
        })
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
        }
        if let Some(host) = self.hosts.get_mut(host_id) {
            host.mappings -= 1;
            if host.mappings == 0 {
                self.hosts.remove(host_id);
            }
        }
        true
    }

    /// Entries far from where their hash says.
    pub(super) const fn long_probes(&self) -> u64 {
        self.dynamic.long_probes() + self.by_external.long_probes() + self.hosts.long_probes()
    }
}
