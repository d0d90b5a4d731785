//! The complete classifier: any link type, up to ten VLAN tags, IPv4 options, IPv6 extension headers,
//! short captures. The fast paths of [`classify`](fn@crate::classify) are shortcuts of it and must agree with
//! it.

use crate::bytes::{array, be16, be32, be64, byte};
use crate::key::{FlowKey, VlanStack};
use crate::protocol::{self, ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use crate::{Flags, Headers, LinkType, Skip};

/// IPv6 extension headers walked at most.
pub(crate) const MAX_EXTENSIONS: u32 = 32;

/// An IP header found: where it should begin and which version the layer below announced.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Network {
    pub(crate) at: usize,
    pub(crate) ethertype: u16,
    pub(crate) vlans: VlanStack,
}

/// The result of [`ip`]: the headers, and the offset of the transport header where it exceeds `u16`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parsed {
    pub(crate) headers: Headers,
    pub(crate) l4: usize,
    pub(crate) vlans: VlanStack,
}

/// Headers of a frame, the key from the outermost IP header.
pub(crate) fn classify(link: LinkType, frame: &[u8]) -> Result<Parsed, Skip> {
    ip(frame, network(link, frame)?)
}

/// Walks the link layer.
fn network(link: LinkType, frame: &[u8]) -> Result<Network, Skip> {
    match link {
        LinkType::Ethernet => ethernet(frame, 0, VlanStack::default()),
        LinkType::LinuxSll => cooked(frame, 16, 14),
        LinkType::LinuxSll2 => cooked(frame, 20, 0),
        LinkType::Loopback => bare(frame, 4),
        LinkType::RawIp => bare(frame, 0),
        LinkType::Other(_) => Err(Skip::UnsupportedLinkType),
    }
}

/// An Ethernet header at `start`, and its VLAN tags, which join `vlans`.
pub(crate) fn ethernet(frame: &[u8], start: usize, vlans: VlanStack) -> Result<Network, Skip> {
    let at = start + 12;
    if frame.len() < at + 2 {
        return Err(Skip::Truncated);
    }
    tagged(frame, Network { at: at + 2, ethertype: be16(frame, at), vlans })
}

/// Linux cooked capture: a header of `length` bytes with the ethertype at `field`. Where that is the one of a
/// VLAN tag, the rest of the tag follows the header.
fn cooked(frame: &[u8], length: usize, field: usize) -> Result<Network, Skip> {
    if frame.len() < length {
        return Err(Skip::Truncated);
    }
    tagged(frame, Network { at: length, ethertype: be16(frame, field), vlans: VlanStack::default() })
}

/// VLAN tags, each the number of the VLAN and the ethertype of what follows, as long as that is another tag.
fn tagged(frame: &[u8], mut network: Network) -> Result<Network, Skip> {
    while protocol::is_vlan(network.ethertype) {
        if frame.len() < network.at + 4 {
            return Err(Skip::Truncated);
        }
        if !network.vlans.push(be16(frame, network.at)) {
            return Err(Skip::Malformed);
        }
        network.ethertype = be16(frame, network.at + 2);
        network.at += 4;
    }
    announced(network)
}

/// IP after `at` bytes, its version in the first nibble.
fn bare(frame: &[u8], at: usize) -> Result<Network, Skip> {
    let ethertype = match frame.get(at).ok_or(Skip::Truncated)? >> 4 {
        4 => ETHERTYPE_IPV4,
        6 => ETHERTYPE_IPV6,
        _ => return Err(Skip::NonIp),
    };
    Ok(Network { at, ethertype, vlans: VlanStack::default() })
}

fn announced(network: Network) -> Result<Network, Skip> {
    match network.ethertype {
        ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => Ok(network),
        _ => Err(Skip::NonIp),
    }
}

/// The IP header and what the key needs of the transport header.
pub(crate) fn ip(frame: &[u8], network: Network) -> Result<Parsed, Skip> {
    let Network { at, ethertype, vlans } = network;
    let (version, minimum) = if ethertype == ETHERTYPE_IPV4 { (4, 20) } else { (6, 40) };
    if frame.get(at).ok_or(Skip::Truncated)? >> 4 != version {
        return Err(Skip::NonIp);
    }
    if frame.len() < at + minimum {
        return Err(Skip::Truncated);
    }
    if version == 4 { ipv4(frame, at, vlans) } else { Ok(ipv6(frame, at, vlans)) }
}

fn ipv4(frame: &[u8], at: usize, vlans: VlanStack) -> Result<Parsed, Skip> {
    let header = usize::from(byte(frame, at) & 15) * 4;
    if header < 20 {
        return Err(Skip::Malformed);
    }
    let transport = Transport {
        protocol: byte(frame, at + 9),
        at: at + header,
        fragment: be16(frame, at + 6) & 0x3fff != 0,
    };
    let (ports, flags, tcp_flags) = transport.read(frame);
    let key = FlowKey::pack_v4(&vlans, be64(frame, at + 12), transport.protocol, ports);
    let tos = byte(frame, at + 1);
    Ok(Parsed { headers: headers(key, at, transport.at, flags, tcp_flags, tos), l4: transport.at, vlans })
}

fn ipv6(frame: &[u8], at: usize, vlans: VlanStack) -> Parsed {
    let transport = extensions(frame, at);
    let (ports, flags, tcp_flags) = transport.read(frame);
    let src = [be64(frame, at + 8), be64(frame, at + 16)];
    let dst = [be64(frame, at + 24), be64(frame, at + 32)];
    let key = FlowKey::pack_v6(&vlans, src, dst, transport.protocol, ports);
    let tos = (be16(frame, at) >> 4) as u8;
    let headers = headers(key, at, transport.at, flags | Flags::IPV6, tcp_flags, tos);
    Parsed { headers, l4: transport.at, vlans }
}

/// Walks IPv6 extension headers (RFC 8200 §4; authentication header: RFC 4302 §2.2). Stops at a fragment:
/// what follows may lie in another packet. A fragment header of a whole packet (RFC 6946) is no fragment.
/// Also stops where fewer than eight bytes of a header are captured, its own number then is the protocol.
fn extensions(frame: &[u8], ip: usize) -> Transport {
    let mut found = Transport { protocol: byte(frame, ip + 6), at: ip + 40, fragment: false };
    for _ in 0..MAX_EXTENSIONS {
        let Transport { protocol, at, .. } = found;
        if !protocol::is_extension(protocol) || frame.len() < at + 8 {
            break;
        }
        let [next, length, offset @ ..] = array::<4>(frame, at);
        found.protocol = next;
        found.at += match protocol {
            protocol::FRAGMENT => 8,
            protocol::AH => (usize::from(length) + 2) * 4,
            _ => (usize::from(length) + 1) * 8,
        };
        if protocol == protocol::FRAGMENT && u16::from_be_bytes(offset) & 0xfff9 != 0 {
            found.fragment = true;
            break;
        }
    }
    found
}

/// The offset at which the transport header should begin, and its protocol.
#[derive(Clone, Copy, Debug)]
struct Transport {
    protocol: u8,
    at: usize,
    fragment: bool,
}

impl Transport {
    /// Ports (source high, destination low), [`Flags`] bits, TCP flags.
    fn read(self, frame: &[u8]) -> (u32, u8, u8) {
        let Self { protocol, at, fragment } = self;
        if fragment {
            return (0, Flags::FRAGMENT, 0);
        }
        if !protocol::has_ports(protocol) || frame.len() < at + 4 {
            return (0, 0, 0);
        }
        let ports = be32(frame, at);
        if protocol == protocol::TCP && frame.len() >= at + 14 {
            (ports, Flags::PORTS | Flags::TCP, byte(frame, at + 13))
        } else {
            (ports, Flags::PORTS, 0)
        }
    }
}

fn headers(key: FlowKey, l3: usize, l4: usize, flags: u8, tcp_flags: u8, tos: u8) -> Headers {
    let short = |at: usize| u16::try_from(at).unwrap_or(u16::MAX);
    Headers { key, l3: short(l3), l4: short(l4), flags: Flags(flags), tcp_flags, tos }
}
