//! Interfaces of a router, from their text: `lan 10.0.0.1/24 02:00:00:00:00:01 mtu 1500`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv6Net};

use super::stays_on_link;
use crate::text::mac;

/// An Ethernet address.
pub(super) type Mac = [u8; 6];

/// Destination and source of an Ethernet frame, as words: they are written as they were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Macs(u64, u32);

impl Macs {
    #[inline(always)]
    pub(super) fn new(to: Mac, from: Mac) -> Self {
        let word = |[a, b, c, d, e, f]: Mac| u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
        Self(word(to) | word(from) << 48, (word(from) >> 16) as u32)
    }

    #[inline(always)]
    pub(super) fn write(self, place: &mut [u8; 12]) {
        if let Some((first, last)) = place.split_first_chunk_mut::<8>() {
            *first = self.0.to_le_bytes();
            last.copy_from_slice(&self.1.to_le_bytes());
        }
    }

    /// Writes them where a frame has room for them.
    pub(super) fn write_to(self, frame: &mut [u8]) {
        if let Some(place) = frame.first_chunk_mut() {
            self.write(place);
        }
    }
}

/// The least and the largest MTU of an interface, in bytes of IP packet (RFC 791: every host takes 576).
const MTU: std::ops::RangeInclusive<u32> = 576..=65_535;
/// Minimum MTU of a link that carries IPv6 (RFC 8200 §5).
const MTU_V6: u32 = 1280;
/// Longest prefix of a network with a subnet-router anycast address.
const MAX_ANYCAST: u8 = 126;
/// The longest prefix of a whole subnet (RFC 4291 §2.5.1).
const SUBNET: u8 = 64;
/// Interfaces that a router may have.
pub(super) const MAX_INTERFACES: usize = 64;

/// An interface of a router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Name of its port.
    pub name: String,
    /// Ethernet address; none where packets begin with IP.
    pub mac: Option<[u8; 6]>,
    /// Largest IP packet, in bytes: 576 to 65535.
    pub mtu: u32,
    /// Addresses, each with the length of its network's prefix.
    pub addresses: Vec<IpNet>,
    /// Addresses that something behind the port translates, such as the pool of a NAT: the interface answers
    /// questions about them as about its own (RFC 1027), and packets to them leave by it. They may be among
    /// its own.
    pub proxied: Vec<IpNet>,
}

/// The reason why a text describes no interfaces of a router.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InterfaceError {
    /// Nothing is there.
    #[error("an interface has no name")]
    NoName,
    /// A word that is no address, prefix or setting.
    #[error(
        "`{word}` of interface `{name}` is neither an address with its length, nor an Ethernet address, nor `mtu N`"
    )]
    Word {
        /// The interface.
        name: String,
        /// The word.
        word: String,
    },
    /// An MTU out of range.
    #[error("an MTU of `{0}` is out of range")]
    Mtu(String),
    /// An address that no interface can have.
    #[error("no interface can have the address {0}")]
    Address(IpNet),
    /// No address at all.
    #[error("interface `{0}` has no address")]
    NoAddress(String),
    /// A group address, or zero.
    #[error("the Ethernet address of interface `{0}` is a group's, or zero")]
    Mac(String),
    /// Two interfaces have the name.
    #[error("two interfaces are called `{0}`")]
    Name(String),
    /// Networks of two interfaces overlap.
    #[error("{0} and {1} overlap, on two interfaces")]
    Overlap(IpNet, IpNet),
    /// Ethernet here and not there.
    #[error("either all interfaces have an Ethernet address or none: `{0}` differs from the first")]
    Mixed(String),
    /// None, or too many.
    #[error("a router has 1 to {MAX_INTERFACES} interfaces, not {0}")]
    Count(usize),
}

impl Interface {
    /// `NAME ADDRESS/LENGTH… [ETHERNET ADDRESS] [mtu BYTES]`, what follows the name in any order; commas
    /// count as blanks.
    ///
    /// # Errors
    /// [`InterfaceError`].
    pub fn parse(text: &str) -> Result<Self, InterfaceError> {
        let mut words = text.split([' ', '\t', ',']).filter(|w| !w.is_empty());
        let name = words.next().ok_or(InterfaceError::NoName)?.to_owned();
        let mut this = Self { name, mac: None, mtu: 1500, addresses: Vec::new(), proxied: Vec::new() };
        while let Some(word) = words.next() {
            if word == "mtu" {
                let number = words.next().unwrap_or("");
                let mtu = number.parse().ok().filter(|mtu| MTU.contains(mtu));
                this.mtu = mtu.ok_or_else(|| InterfaceError::Mtu(number.to_owned()))?;
            } else if let Some(net) = word.contains('/').then(|| word.parse::<IpNet>().ok()).flatten() {
                this.addresses.push(net);
            } else if let Some(mac) = mac(word).filter(|_| this.mac.is_none()) {
                this.mac = Some(mac);
            } else {
                return Err(InterfaceError::Word { name: this.name, word: word.to_owned() });
            }
        }
        this.check()?;
        this.add_link_local();
        Ok(this)
    }

    fn check(&self) -> Result<(), InterfaceError> {
        if self.addresses.is_empty() {
            return Err(InterfaceError::NoAddress(self.name.clone()));
        }
        if self.mac.is_some_and(|mac| mac[0] & 1 == 1 || mac == [0; 6]) {
            return Err(InterfaceError::Mac(self.name.clone()));
        }
        if let Some(wrong) = self.addresses.iter().find(|net| !is_host(net)) {
            return Err(InterfaceError::Address(*wrong));
        }
        if self.mtu < MTU_V6 && self.has_v6() {
            return Err(InterfaceError::Mtu(format!("{} with IPv6 addresses", self.mtu)));
        }
        Ok(())
    }

    fn has_v6(&self) -> bool {
        self.addresses.iter().any(|net| matches!(net, IpNet::V6(_)))
    }

    /// An interface with IPv6 addresses has a link-local one: that which follows from the Ethernet address
    /// (RFC 4291, appendix A) where none is given.
    fn add_link_local(&mut self) {
        let has = |net: &IpNet| matches!(net, IpNet::V6(net) if net.addr().is_unicast_link_local());
        let Some([a, b, c, d, e, f]) = self.mac else { return };
        if self.has_v6() && !self.addresses.iter().any(has) {
            let bytes = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f];
            self.addresses.extend(Ipv6Net::new(Ipv6Addr::from(bytes), 64).map(IpNet::V6));
        }
    }

    /// The broadcast addresses of its IPv4 networks, of all ones and the old ones of all zeros (RFC 1812
    /// §5.3.5). A link of two hosts has none (RFC 3021).
    pub(super) fn broadcasts(&self) -> impl Iterator<Item = Ipv4Addr> {
        let nets = self.addresses.iter().filter_map(|net| match net {
            IpNet::V4(net) if net.prefix_len() < 31 => Some([net.network(), net.broadcast()]),
            _ => None,
        });
        nets.flatten()
    }

    /// The address to speak to `to` from: one of the network that `to` is in, else the first of its IP
    /// version that is not link-local, else any of its version.
    pub(super) fn source(&self, to: IpAddr) -> Option<IpAddr> {
        let same = || self.addresses.iter().filter(|net| net.addr().is_ipv6() == to.is_ipv6());
        let wide = |net: &&IpNet| !stays_on_link(net.addr());
        let found =
            same().find(|net| net.contains(&to)).or_else(|| same().find(wide)).or_else(|| same().next());
        found.map(IpNet::addr)
    }

    /// Returns true if an address is one of its own.
    pub(super) fn owns(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|net| net.addr() == address)
    }

    /// Says that something behind its port translates an address.
    pub(super) fn translates(&self, address: IpAddr) -> bool {
        self.proxied.iter().any(|net| net.contains(&address))
    }

    /// The addresses behind its port for which neighbours ask. Packets to whole IPv6 subnets that are none of
    /// the link's come by routes.
    pub(super) fn asked_for(&self) -> impl Iterator<Item = &IpNet> {
        let here = |net: &IpNet| self.addresses.iter().any(|own| own.contains(net) || net.contains(own));
        let whole = |net: &IpNet| net.addr().is_ipv6() && net.prefix_len() <= SUBNET;
        self.proxied.iter().filter(move |net| !whole(net) || here(net))
    }

    /// The subnet-router anycast addresses of its networks (RFC 4291 §2.6.1); a network of two addresses has
    /// none (RFC 6164 §6), nor one where the interface has that address itself.
    pub(super) fn anycast(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().filter_map(|net| match net {
            IpNet::V6(net) if net.prefix_len() <= MAX_ANYCAST && net.network() != net.addr() => {
                Some(net.network().into())
            }
            _ => None,
        })
    }

    /// Says that it answers questions about an address.
    pub(super) fn answers_for(&self, address: IpAddr) -> bool {
        self.owns(address) || self.translates(address) || self.anycast().any(|a| a == address)
    }

    /// Returns true if an address is on the link.
    pub(super) fn reaches(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|net| net.contains(&address))
    }
}

pub(super) fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(a) if a.is_unicast_link_local())
}

/// Returns true if an address may be an interface's: that of a host, and neither its network's own nor its
/// broadcast address.
fn is_host(net: &IpNet) -> bool {
    let special = net.addr().is_multicast() || net.addr().is_loopback() || net.addr().is_unspecified();
    match net {
        _ if special => false,
        IpNet::V4(net) => {
            let (address, wide) = (net.addr(), net.prefix_len() < 31);
            let end = address == net.network() || address == net.broadcast();
            !(matches!(address.octets(), [0 | 240..=255, ..]) || wide && end)
        }
        IpNet::V6(_) => true,
    }
}

/// Interfaces that go together, in the order of their ports.
///
/// # Errors
/// [`InterfaceError`].
pub fn interfaces<'a>(texts: impl Iterator<Item = &'a str>) -> Result<Vec<Interface>, InterfaceError> {
    let all = texts.map(Interface::parse).collect::<Result<Vec<_>, _>>()?;
    if all.is_empty() || all.len() > MAX_INTERFACES {
        return Err(InterfaceError::Count(all.len()));
    }
    let ethernet = all.first().is_some_and(|i| i.mac.is_some());
    for (i, one) in all.iter().enumerate() {
        if one.mac.is_some() != ethernet {
            return Err(InterfaceError::Mixed(one.name.clone()));
        }
        for other in all.iter().take(i) {
            if one.name == other.name {
                return Err(InterfaceError::Name(one.name.clone()));
            }
            for a in one.addresses.iter().filter(|net| !is_link_local(net.addr())) {
                let overlaps = |b: &&IpNet| b.contains(a) || a.contains(*b);
                if let Some(b) = other.addresses.iter().find(overlaps) {
                    return Err(InterfaceError::Overlap(b.trunc(), a.trunc()));
                }
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_read() {
        let lan = Interface::parse("lan 10.0.0.1/24, 2001:db8::1/64 02:00:00:00:00:01 mtu 9000").unwrap();
        assert_eq!((lan.name.as_str(), lan.mac, lan.mtu), ("lan", Some([2, 0, 0, 0, 0, 1]), 9000));
        let text: Vec<String> = lan.addresses.iter().map(IpNet::to_string).collect();
        assert_eq!(text, ["10.0.0.1/24", "2001:db8::1/64", "fe80::ff:fe00:1/64"]);
        assert_eq!(lan.source("10.0.0.9".parse().unwrap()), "10.0.0.1".parse().ok());
        assert_eq!(lan.source("2001:db9::9".parse().unwrap()), "2001:db8::1".parse().ok());
        assert_eq!(lan.source("fe80::9".parse().unwrap()), "fe80::ff:fe00:1".parse().ok());
        assert_eq!(Interface::parse("raw 192.0.2.0/31").unwrap().mac, None);
    }

    #[test]
    fn what_can_t_be_is_refused() {
        for (text, part) in [
            ("", "no name"),
            ("lan", "no address"),
            ("lan 10.0.0.1", "`10.0.0.1` of interface `lan`"),
            ("lan 10.0.0.0/24", "10.0.0.0/24"),
            ("lan 10.0.0.255/24", "10.0.0.255/24"),
            ("lan 127.0.0.1/8", "127.0.0.1/8"),
            ("lan 224.0.0.1/8", "224.0.0.1/8"),
            ("lan ::1/128", "::1/128"),
            ("lan 10.0.0.1/24 mtu 100", "MTU of `100`"),
            ("lan 2001:db8::1/64 mtu 1000", "with IPv6"),
            ("lan 10.0.0.1/24 03:00:00:00:00:01", "group"),
            ("lan 10.0.0.1/24 02:00:00:00:00:01 02:00:00:00:00:02", "`02:00:00:00:00:02`"),
            ("lan 10.0.0.1/24 02:00:00:00:00", "`02:00:00:00:00`"),
        ] {
            let error = Interface::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text:?}: {error}");
        }
        let all = |texts: &[&str]| interfaces(texts.iter().copied()).unwrap_err().to_string();
        assert!(all(&[]).contains("1 to 64"));
        assert!(all(&["a 10.0.0.1/24", "a 10.0.1.1/24"]).contains("two interfaces"));
        assert!(all(&["a 10.0.0.1/24", "b 10.0.0.2/25"]).contains("overlap"));
        assert!(all(&["a 10.0.0.1/24", "b 10.1.0.2/24 02:00:00:00:00:01"]).contains("`b` differs"));
    }
}
