//! Mappings: which external endpoint an inside one has, static or made when it is needed.

use slipstream_wire::NarrowKey;

use super::config::{NatConfig, Pooling};
use super::packet::{Tuple, key_of};
use super::ports::{PortSpace, Ports};
use super::statics::Statics;
use super::{DropReason, StaticMapping};
use crate::functions::table::{Index, Key, NONE, Table};
use crate::time::Nanos;

/// A dynamic mapping.
#[derive(Clone, Copy, Debug)]
struct Mapping {
    /// Protocol, external address and port, as a key whose destination is 0.
    external: NarrowKey,
    /// Sessions that it has.
    sessions: u32,
    /// Which of the pool's addresses it is.
    pool_index: u32,
}

/// The other end of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapped {
    pub(super) address: u32,
    pub(super) port: u16,
    /// The dynamic mapping, or [`NONE`] of a static one.
    pub(super) mapping: u32,
    /// Whether it is one of a whole address.
    pub(super) whole: bool,
}

/// All mappings.
#[derive(Debug)]
pub(super) struct Mappings {
    statics: Statics,
    pool: Vec<u32>,
    ports: Ports,
    pooling: Pooling,
    seed: u64,
    /// By protocol, inside address and port, as a key whose destination is 0.
    dynamic: Table<NarrowKey, Mapping>,
    by_external: Index,
}

/// Protocol, address and port as a key.
const fn endpoint(protocol: u8, address: u32, port: u16) -> NarrowKey {
    key_of(protocol, address, port, 0, 0)
}

impl Mappings {
    pub(super) fn new(config: &NatConfig) -> Self {
        let mut pool: Vec<u32> = config.pool.iter().map(|a| a.to_bits()).collect();
        pool.sort_unstable();
        let mut ports = Ports::new(pool.len(), config.ports.clone(), config.low_ports.clone());
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
            seed: config.seed,
            dynamic: Table::new(config.mappings, config.seed),
            by_external: Index::new(config.mappings),
        }
    }

    pub(super) fn len(&self) -> u32 {
        self.dynamic.len()
    }

    /// Whether packets from this inside address are translated.
    pub(super) fn translates(&self, config: &NatConfig, inside: u32) -> bool {
        config.inside.is_empty()
            || config.inside.iter().any(|net| net.contains(&std::net::Ipv4Addr::from_bits(inside)))
    }

    /// Whether this address is one of the NAT's external ones.
    pub(super) fn owns(&self, external: u32) -> bool {
        self.pool.binary_search(&external).is_ok() || self.statics.owns(external)
    }

    /// The external endpoint of the source of a packet from inside, if it has one already.
    fn present(&self, from: &Tuple) -> Option<Mapped> {
        if let Some(address) = self.statics.external_of(from.src) {
            return Some(Mapped { address, port: from.src_port, mapping: NONE, whole: true });
        }
        if let Some((address, port)) = self.statics.external_port(from.protocol, from.src, from.src_port) {
            return Some(Mapped { address, port, mapping: NONE, whole: false });
        }
        let key = endpoint(from.protocol, from.src, from.src_port);
        let id = self.dynamic.find(&key, self.dynamic.hash(&key))?;
        let external = Tuple::of(self.dynamic.get(id)?.external);
        Some(Mapped { address: external.src, port: external.src_port, mapping: id, whole: false })
    }

    /// The external endpoint of the source of a packet from inside, made if there is none.
    pub(super) fn outbound(&mut self, from: &Tuple) -> Result<(Mapped, bool), DropReason> {
        if let Some(mapped) = self.present(from) {
            return Ok((mapped, false));
        }
        let space = PortSpace::of(from.protocol).ok_or(DropReason::Protocol)?;
        if self.dynamic.is_full() {
            return Err(DropReason::MappingsFull);
        }
        let (pool_index, address, port) = self.take_port(space, from).ok_or(DropReason::NoPort)?;
        let key = endpoint(from.protocol, from.src, from.src_port);
        let external = endpoint(from.protocol, address, port);
        let value = Mapping { external, sessions: 0, pool_index };
        let hash = self.dynamic.hash(&key);
        let Ok(mapping) = self.dynamic.insert(key, hash, value, Nanos::MAX) else {
            return Err(DropReason::MappingsFull);
        };
        self.by_external.insert(external.hash(self.seed), mapping);
        Ok((Mapped { address, port, mapping, whole: false }, true))
    }

    fn take_port(&mut self, space: PortSpace, from: &Tuple) -> Option<(u32, u32, u16)> {
        let addresses = self.pool.len();
        let first = (u64::from(from.src).hash(self.seed) % addresses.max(1) as u64) as usize;
        let tries = if self.pooling == Pooling::Paired { addresses.min(1) } else { addresses };
        let hash = from.key().hash(self.seed);
        (0..tries).find_map(|n| {
            let at = (first + n) % addresses;
            let port = self.ports.take(at, space, from.src_port, hash)?;
            Some((at as u32, self.pool.get(at).copied()?, port))
        })
    }

    /// The inside endpoint of the destination of a packet from outside.
    pub(super) fn inbound(&self, to: &Tuple) -> Option<Mapped> {
        if let Some(address) = self.statics.inside_of(to.dst) {
            return Some(Mapped { address, port: to.dst_port, mapping: NONE, whole: true });
        }
        if let Some((address, port)) = self.statics.inside_port(to.protocol, to.dst, to.dst_port) {
            return Some(Mapped { address, port, mapping: NONE, whole: false });
        }
        let key = endpoint(to.protocol, to.dst, to.dst_port);
        let is = |id| self.dynamic.get(id).is_some_and(|m| m.external == key);
        let mapping = self.by_external.find(key.hash(self.seed), is)?;
        let inside = Tuple::of(*self.dynamic.key(mapping)?);
        Some(Mapped { address: inside.src, port: inside.src_port, mapping, whole: false })
    }

    /// The address that stands for all of another, on either side.
    pub(super) fn whole_external(&self, inside: u32) -> Option<u32> {
        self.statics.external_of(inside)
    }

    /// The inside address that an external one stands for.
    pub(super) fn whole_inside(&self, external: u32) -> Option<u32> {
        self.statics.inside_of(external)
    }

    /// A session of this mapping begins.
    pub(super) fn hold(&mut self, mapping: u32) {
        if let Some(mapping) = self.dynamic.get_mut(mapping) {
            mapping.sessions += 1;
        }
    }

    /// A session of this mapping ended (or none began); true if that was the last, and the mapping is no more.
    pub(super) fn let_go(&mut self, id: u32, ended: u32) -> bool {
        if id == NONE {
            return false;
        }
        let Some(mapping) = self.dynamic.get_mut(id) else { return false };
        mapping.sessions -= ended.min(mapping.sessions);
        if mapping.sessions > 0 {
            return false;
        }
        let Mapping { external, pool_index, .. } = *mapping;
        let Tuple { protocol, src_port, .. } = Tuple::of(external);
        self.by_external.remove(external.hash(self.seed), id);
        self.dynamic.remove(id);
        if let Some(space) = PortSpace::of(protocol) {
            self.ports.give_back(pool_index as usize, space, src_port);
        }
        true
    }
}
