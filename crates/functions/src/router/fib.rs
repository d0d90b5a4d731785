//! The forwarding table: routes of a file and those that follow from the interfaces, compiled for look-ups.
//!
//! A table never changes. Another set of routes is another table, which takes the place of the old one
//! between two packets.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net};

use super::interface::{Interface, Mac, is_link_local};
use crate::lpm::Lpm;
use crate::routes::{NextHop, Route};

/// The next hop of packets to a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Hop {
    /// They are for the router.
    Own,
    /// Their destination is on the link of this port.
    Link(u8),
    /// They go to a gateway (an index into [`Fib::gateways`]), by this port.
    Gateway(u8, u32),
    /// The broadcast address of a link: not forwarded (RFC 2644).
    Broadcast,
    /// Something behind this port translates it.
    Translated(u8),
    /// Dropped without a word.
    Blackhole,
    /// Dropped; the sender is told that there is no route.
    Unreachable,
    /// Dropped; the sender is told that it is not allowed.
    Prohibit,
    /// As if no route led there.
    Nowhere,
}

/// A next router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Gateway {
    pub(super) port: u8,
    pub(super) address: IpAddr,
    /// Its Ethernet address where the route says it.
    pub(super) mac: Option<Mac>,
}

/// The gateways of the routes so far.
#[derive(Default)]
struct Gateways {
    /// Their numbers in [`Fib::gateways`].
    numbers: HashMap<Gateway, u32>,
    /// The Ethernet addresses that routes say, and the line of the first that does.
    said: HashMap<(u8, IpAddr), (Mac, u32)>,
}

/// The table.
#[derive(Debug, Default)]
pub(super) struct Fib {
    lpm: Lpm,
    hops: Vec<Hop>,
    pub(super) gateways: Vec<Gateway>,
    /// Routes of the file.
    pub(super) routes: usize,
}

/// A route that leads nowhere, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub(super) struct FibError {
    pub(super) line: u32,
    pub(super) message: String,
}

impl Fib {
    /// The table of these routes over these interfaces. A route of the file counts before one that follows
    /// from an interface's network, never before an interface's own address, or what is translated behind it.
    /// The anycast address of routers in a network is the router's own, too.
    pub(super) fn build(interfaces: &[Interface], routes: &[Route]) -> Result<Self, FibError> {
        let mut made = Self { routes: routes.len(), ..Self::default() };
        let mut hops = HashMap::new();
        let mut gateways = Gateways::default();
        let mut all: Vec<(IpNet, u32)> = Vec::with_capacity(routes.len() + 8);
        let mut broadcasts = Vec::new();
        for (port, interface) in (0u8..).zip(interfaces) {
            for net in &interface.addresses {
                all.push((net.trunc(), made.number(&mut hops, Hop::Link(port))));
            }
            broadcasts.extend(interface.broadcasts());
        }
        for route in routes {
            let hop = made.hop(interfaces, route, &mut gateways)?;
            all.push((route.net, made.number(&mut hops, hop)));
        }
        for (port, interface) in (0u8..).zip(interfaces) {
            let hop = made.number(&mut hops, Hop::Translated(port));
            all.extend(interface.proxied.iter().map(|net| (net.trunc(), hop)));
        }
        let broadcast = made.number(&mut hops, Hop::Broadcast);
        broadcasts.push(Ipv4Addr::BROADCAST);
        all.extend(broadcasts.into_iter().map(|a| (Ipv4Net::from(a).into(), broadcast)));
        for (port, interface) in (0u8..).zip(interfaces) {
            for net in &interface.addresses {
                let translated = interface.translates(net.addr());
                let hop = if translated { Hop::Translated(port) } else { Hop::Own };
                all.push((net.addr().into(), made.number(&mut hops, hop)));
            }
        }
        // Subnet-router anycast addresses, unless something translates them.
        let own = made.number(&mut hops, Hop::Own);
        let translated = |address| interfaces.iter().any(|i| i.translates(address));
        let anycast = interfaces.iter().flat_map(Interface::anycast).filter(|a| !translated(*a));
        all.extend(anycast.map(|address| (address.into(), own)));
        made.lpm = Lpm::build(all);
        Ok(made)
    }

    fn number(&mut self, known: &mut HashMap<Hop, u32>, hop: Hop) -> u32 {
        *known.entry(hop).or_insert_with(|| {
            self.hops.push(hop);
            self.hops.len() as u32 - 1
        })
    }

    fn hop(
        &mut self,
        interfaces: &[Interface],
        route: &Route,
        known: &mut Gateways,
    ) -> Result<Hop, FibError> {
        let wrong = |message: String| FibError { line: route.line, message };
        let (gateway, port, mac) = match &route.next {
            NextHop::Blackhole => return Ok(Hop::Blackhole),
            NextHop::Unreachable => return Ok(Hop::Unreachable),
            NextHop::Prohibit => return Ok(Hop::Prohibit),
            NextHop::Throw => return Ok(Hop::Nowhere),
            NextHop::Forward { gateway, port, mac } => (*gateway, port.as_deref(), *mac),
        };
        let port = match port {
            Some(name) => Some(port_of(interfaces, name).ok_or_else(|| {
                let names: Vec<&str> = interfaces.iter().map(|i| i.name.as_str()).collect();
                wrong(format!("no interface is called `{name}`; there are {}", names.join(", ")))
            })?),
            None => None,
        };
        let Some(address) = gateway else {
            return port
                .map(Hop::Link)
                .ok_or_else(|| wrong("the route names neither gateway nor port".into()));
        };
        if interfaces.iter().any(|i| i.owns(address)) {
            return Err(wrong(format!("the gateway {address} is the router itself")));
        }
        let port = match port {
            Some(port) => port,
            None if is_link_local(address) => {
                return Err(wrong(format!(
                    "the gateway {address} is link-local: the route must name a port"
                )));
            }
            None => interfaces
                .iter()
                .position(|i| i.reaches(address))
                .map(|n| n as u8)
                .ok_or_else(|| wrong(format!("no interface has a network with the gateway {address}")))?,
        };
        let interface = interfaces.get(usize::from(port));
        let stands_for_many = |i: &Interface| i.broadcasts().any(|broadcast| broadcast == address);
        if interface.is_some_and(stands_for_many) {
            return Err(wrong(format!(
                "the gateway {address} is no host's: a network's first or last address"
            )));
        }
        if interface.is_some_and(|i| i.translates(address)) {
            return Err(wrong(format!(
                "the gateway {address} is among the external addresses behind `{}`: the router itself answers for them",
                interface.map_or("", |i| i.name.as_str())
            )));
        }
        if let Some(mac) = mac {
            let (said, line) = *known.said.entry((port, address)).or_insert((mac, route.line));
            if said != mac {
                return Err(wrong(format!(
                    "the gateway {address} has another Ethernet address in line {line}"
                )));
            }
        }
        let gateway = Gateway { port, address, mac };
        let number = *known.numbers.entry(gateway).or_insert_with(|| {
            self.gateways.push(gateway);
            self.gateways.len() as u32 - 1
        });
        Ok(Hop::Gateway(port, number))
    }

    /// The next hop of packets to an address; none if no route leads there.
    #[inline]
    pub(super) fn look_up(&self, address: IpAddr) -> Option<Hop> {
        self.hops.get(self.lpm.lookup(address)? as usize).copied()
    }

    /// As [`look_up`](Self::look_up), of an IPv4 address.
    #[inline]
    pub(super) fn look_up_v4(&self, address: Ipv4Addr) -> Option<Hop> {
        self.hops.get(self.lpm.v4.lookup(address)? as usize).copied()
    }

    /// Neighbours that are gateways.
    pub(super) fn next_routers(&self) -> usize {
        self.gateways.iter().map(|gateway| (gateway.port, gateway.address)).collect::<HashSet<_>>().len()
    }

    /// Memory of the table, in bytes.
    pub(super) fn memory(&self) -> usize {
        self.lpm.memory()
    }
}

/// An interface by its name or number.
fn port_of(interfaces: &[Interface], name: &str) -> Option<u8> {
    let by_name = interfaces.iter().position(|i| i.name == name);
    by_name.or_else(|| name.parse().ok().filter(|n| *n < interfaces.len())).map(|n| n as u8)
}

/// The solicited-node multicast address of an address (RFC 4291 §2.7.1), and the Ethernet address that it is
/// sent to.
pub(super) fn solicited_node(address: Ipv6Addr) -> (Ipv6Addr, Mac) {
    let [.., a, b, c] = address.octets();
    let [low, high] = [u16::from_be_bytes([b, c]), u16::from_be_bytes([0xff, a])];
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, high, low);
    (group, station(group))
}

/// The Ethernet address of an IPv6 group (RFC 2464 §7).
pub(super) fn station(group: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}
