//! Settings of a NAT: addresses, ports, static mappings, behaviour, timeouts, sizes.

use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

use ipnet::Ipv4Net;

use crate::tcp_state::TcpTimeouts;

/// Senders outside that may send to a mapping (RFC 4787 §5). Static mappings are open to everybody: a
/// firewall is the place to restrict them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Filtering {
    /// Anybody: most transparent to applications.
    #[default]
    EndpointIndependent,
    /// Addresses that the inside endpoint has sent to.
    AddressDependent,
    /// Addresses and ports that the inside endpoint has sent to.
    AddressAndPortDependent,
}

/// The address of the pool that an inside host gets (RFC 4787 §4.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooling {
    /// Always the same one; when it has no port left the packet is dropped, though others may have.
    #[default]
    Paired,
    /// The same one while it has ports, then the next.
    Arbitrary,
}

/// A mapping that is always there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StaticMapping {
    /// An external address stands for an inside one, with all ports and protocols. It can't be in the pool.
    Address {
        /// Inside.
        inside: Ipv4Addr,
        /// Outside.
        external: Ipv4Addr,
    },
    /// An external endpoint stands for an inside one. Its address may be one of the pool.
    Port {
        /// TCP (6) or UDP (17).
        protocol: u8,
        /// Inside address and port.
        inside: (Ipv4Addr, u16),
        /// External address and port.
        external: (Ipv4Addr, u16),
    },
}

/// Timeouts in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NatTimeouts {
    /// TCP, by state.
    pub tcp: TcpTimeouts,
    /// UDP; at least 2 min, 5 min recommended (RFC 4787 REQ-5).
    pub udp: u64,
    /// ICMP queries; at least 60 s (RFC 5508 REQ-2).
    pub icmp: u64,
}

/// Settings of a NAT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatConfig {
    /// Inside sources that are translated; others pass. Empty: every source is.
    pub inside: Vec<Ipv4Net>,
    /// External addresses, at most 4,096.
    pub pool: Vec<Ipv4Addr>,
    /// External ports for inside ports from 1024 on.
    pub ports: RangeInclusive<u16>,
    /// External ports for inside ports below 1024 (RFC 4787 REQ-3a); empty: they are treated like the others.
    pub low_ports: RangeInclusive<u16>,
    /// External identifiers for ICMP queries.
    pub identifiers: RangeInclusive<u16>,
    /// Static mappings.
    pub statics: Vec<StaticMapping>,
    /// The senders that may send to a mapping.
    pub filtering: Filtering,
    /// The external address that a host gets.
    pub pooling: Pooling,
    /// True if inside hosts reach each other by external endpoints (RFC 4787 REQ-9).
    pub hairpin: bool,
    /// True if packets from outside keep UDP mappings and sessions and ICMP sessions alive (RFC 4787 REQ-6:
    /// they may). Those from inside always do.
    pub inbound_refresh: bool,
    /// True if a TCP session may begin with an ACK: after a restart connections go on.
    pub loose: bool,
    /// Timeouts.
    pub timeouts: NatTimeouts,
    /// Sessions (pairs of endpoints) remembered at most, 1 to 2³⁰.
    pub sessions: u32,
    /// Sessions of one inside host at most: one alone can't fill the table.
    pub host_sessions: u32,
    /// Mappings of one inside host at most, of each protocol: one alone can't take all ports. `None`: half of
    /// the ports, or identifiers, that it could get.
    pub host_mappings: Option<u32>,
    /// Sessions of one mapping at most.
    pub mapping_sessions: u32,
    /// Mappings remembered at most, 1 to 2³⁰.
    pub mappings: u32,
    /// Seed of the tables' hashes.
    pub seed: u64,
    /// Seed of the choice of ports and addresses, which others see: the same one and the same packets give
    /// the same mappings.
    pub choices: u64,
}

/// The reason why a configuration makes no NAT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NatConfigError {
    /// No pool and no static mapping.
    #[error("a NAT needs external addresses or static mappings")]
    Nothing,
    /// More than 4,096 addresses in the pool.
    #[error("{0} addresses in the pool, 4096 at most")]
    PoolSize(usize),
    /// An external address that no host can have: of this network, loopback, multicast or broadcast.
    #[error("{0} can't be the address of a host")]
    NoHost(Ipv4Addr),
    /// An address twice in the pool, or in two static address mappings, or in both.
    #[error("{0} is used twice")]
    TwiceAddress(Ipv4Addr),
    /// Two static mappings of one endpoint.
    #[error("{0}:{1} is mapped twice")]
    TwiceEndpoint(Ipv4Addr, u16),
    /// No external ports.
    #[error("the range of ports is empty, or begins at 0")]
    Ports,
    /// A static port mapping of a protocol other than TCP and UDP.
    #[error("ports of protocol {0} can't be mapped, only those of TCP (6) and UDP (17)")]
    Protocol(u8),
    /// Port 0 in a static port mapping.
    #[error("port 0 can't be mapped")]
    PortZero,
}

impl NatConfig {
    pub(super) fn check(&self) -> Result<(), NatConfigError> {
        if self.pool.is_empty() && self.statics.is_empty() {
            return Err(NatConfigError::Nothing);
        }
        if self.pool.len() > 4096 {
            return Err(NatConfigError::PoolSize(self.pool.len()));
        }
        if self.ports.is_empty() || *self.ports.start() == 0 {
            return Err(NatConfigError::Ports);
        }
        if !self.low_ports.is_empty() && *self.low_ports.start() == 0 {
            return Err(NatConfigError::Ports);
        }
        let mut whole = self.pool.clone();
        let mut inside_addresses = Vec::new();
        let (mut inside_ports, mut external_ports) = (Vec::new(), Vec::new());
        for mapping in &self.statics {
            match *mapping {
                StaticMapping::Address { inside, external } => {
                    whole.push(external);
                    inside_addresses.push(inside);
                }
                StaticMapping::Port { protocol, inside, external } => {
                    if !matches!(protocol, 6 | 17) {
                        return Err(NatConfigError::Protocol(protocol));
                    }
                    if inside.1 == 0 || external.1 == 0 {
                        return Err(NatConfigError::PortZero);
                    }
                    inside_ports.push((protocol, inside));
                    external_ports.push((protocol, external));
                }
            }
        }
        for list in [&mut whole, &mut inside_addresses] {
            if let Some(address) = twice(list) {
                return Err(NatConfigError::TwiceAddress(address));
            }
        }
        for list in [&mut inside_ports, &mut external_ports] {
            if let Some((_, (address, port))) = twice(list) {
                return Err(NatConfigError::TwiceEndpoint(address, port));
            }
        }
        // An endpoint of an address that is mapped as a whole would be mapped twice.
        for (_, (address, port)) in &external_ports {
            if whole.contains(address) && !self.pool.contains(address) {
                return Err(NatConfigError::TwiceEndpoint(*address, *port));
            }
        }
        for (_, (address, port)) in &inside_ports {
            if inside_addresses.contains(address) {
                return Err(NatConfigError::TwiceEndpoint(*address, *port));
            }
        }
        let external = whole.iter().chain(external_ports.iter().map(|(_, (address, _))| address));
        if let Some(address) = external.copied().find(|address| !may_be_a_host(*address)) {
            return Err(NatConfigError::NoHost(address));
        }
        Ok(())
    }
}

/// Returns true unless an address never is the source of a packet on a network (RFC 1122 §3.2.1.3).
const fn may_be_a_host(address: Ipv4Addr) -> bool {
    let this_network = address.octets()[0] == 0;
    !(this_network || address.is_loopback() || address.is_multicast() || address.is_broadcast())
}

fn twice<T: Ord + Copy>(list: &mut [T]) -> Option<T> {
    list.sort_unstable();
    list.iter().zip(list.iter().skip(1)).find(|(a, b)| a == b).map(|(a, _)| *a)
}
