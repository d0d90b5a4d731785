//! Static mappings, by either side.

use std::net::Ipv4Addr;

use super::config::StaticMapping;
use super::ports::PortSpace;

/// A protocol, an address and a port.
type Endpoint = (u8, u32, u16);

/// Static mappings as sorted lists: they are asked once per session.
#[derive(Debug, Default)]
pub(super) struct Statics {
    inside_addresses: Vec<(u32, u32)>,
    external_addresses: Vec<(u32, u32)>,
    inside_ports: Vec<(Endpoint, (u32, u16))>,
    external_ports: Vec<(Endpoint, (u32, u16))>,
    /// All external addresses.
    external: Vec<u32>,
}

fn find<K: Ord + Copy, V: Copy>(list: &[(K, V)], key: K) -> Option<V> {
    let at = list.binary_search_by_key(&key, |(k, _)| *k).ok()?;
    list.get(at).map(|(_, value)| *value)
}

impl Statics {
    pub(super) fn new(mappings: &[StaticMapping]) -> Self {
        let mut statics = Self::default();
        let bits = |(address, port): (Ipv4Addr, u16)| (address.to_bits(), port);
        for mapping in mappings {
            match *mapping {
                StaticMapping::Address { inside, external } => {
                    let (inside, external) = (inside.to_bits(), external.to_bits());
                    statics.inside_addresses.push((inside, external));
                    statics.external_addresses.push((external, inside));
                }
                StaticMapping::Port { protocol, inside, external } => {
                    let (inside, external) = (bits(inside), bits(external));
                    statics.inside_ports.push(((protocol, inside.0, inside.1), external));
                    statics.external_ports.push(((protocol, external.0, external.1), inside));
                }
            }
        }
        statics.external = statics.external_addresses.iter().map(|(address, _)| *address).collect();
        statics.external.extend(statics.external_ports.iter().map(|((_, address, _), _)| *address));
        statics.external.sort_unstable();
        statics.external.dedup();
        statics.inside_addresses.sort_unstable();
        statics.external_addresses.sort_unstable();
        statics.inside_ports.sort_unstable();
        statics.external_ports.sort_unstable();
        statics
    }

    /// The external address that stands for all of an inside one.
    pub(super) fn external_of(&self, inside: u32) -> Option<u32> {
        find(&self.inside_addresses, inside)
    }

    /// The inside address that an external one stands for.
    pub(super) fn inside_of(&self, external: u32) -> Option<u32> {
        find(&self.external_addresses, external)
    }

    /// The external endpoint of an inside one.
    pub(super) fn external_port(&self, protocol: u8, inside: u32, port: u16) -> Option<(u32, u16)> {
        find(&self.inside_ports, (protocol, inside, port))
    }

    /// The inside endpoint of an external one.
    pub(super) fn inside_port(&self, protocol: u8, external: u32, port: u16) -> Option<(u32, u16)> {
        find(&self.external_ports, (protocol, external, port))
    }

    /// The ports of an external address that are mapped.
    pub(super) fn ports_of(&self, external: u32) -> impl Iterator<Item = (PortSpace, u16)> + '_ {
        let here = self.external_ports.iter().filter(move |((_, address, _), _)| *address == external);
        here.filter_map(|((protocol, _, port), _)| Some((PortSpace::of(*protocol)?, *port)))
    }

    /// Returns true if packets to this address are for a static mapping.
    pub(super) fn owns(&self, external: u32) -> bool {
        self.external.binary_search(&external).is_ok()
    }
}
