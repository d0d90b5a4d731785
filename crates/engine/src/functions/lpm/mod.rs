//! Longest-prefix match: which value belongs to the longest prefix that holds an address.
//!
//! A table is built from a list and never changes; who needs other routes builds another table and puts it in the
//! place of the old one between two batches. [`Rib`] keeps the list for that, prefix by prefix.
//!
//! ```
//! use slipstream::functions::lpm::Lpm;
//!
//! let table = Lpm::build([("0.0.0.0/0".parse()?, 1), ("10.0.0.0/8".parse()?, 2), ("2001:db8::/32".parse()?, 3)]);
//! assert_eq!(table.lookup("10.1.2.3".parse()?), Some(2));
//! assert_eq!(table.lookup("11.1.2.3".parse()?), Some(1));
//! assert_eq!(table.lookup("::1".parse()?), None);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The structure is a multibit trie with a direct root of 12 to 22 bits, strides chosen node by node so that a node is at
//! least partly full, and levels at which all prefixes agree skipped (level and path compression: Nilsson and Karlsson,
//! "IP-address lookup using LC-tries", 1999), the values pushed to the leaves. The memory follows the number of
//! prefixes: two hundred routes stay in the first-level cache, which a flat table of 2²⁴ entries could not. From 2¹⁸ IPv4
//! prefixes on the root is such a table (64 MB; Gupta, Lin and McKeown, "Routing lookups in hardware at memory access
//! speeds", 1998): nearly all of them end there, after one access.

#[cfg(test)]
mod tests;
mod trie;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use trie::{Prefix, Trie};

/// Addresses that a batch lookup takes through the trie together.
pub const BATCH: usize = trie::LANES;

/// A table of IPv4 prefixes.
#[derive(Clone, Debug, Default)]
pub struct Lpm4(Trie);

impl Lpm4 {
    /// A table of `routes`, in any order; of several routes with one prefix the last counts. Host bits are ignored.
    #[must_use]
    pub fn build(routes: impl IntoIterator<Item = (Ipv4Net, u32)>) -> Self {
        let of = |(net, value): (Ipv4Net, u32)| Prefix {
            bits: u128::from(net.network().to_bits()) << 96,
            len: net.prefix_len(),
            value,
        };
        Self(Trie::build(routes.into_iter().map(of).collect(), false))
    }

    /// The value of the longest prefix that holds `address`.
    #[inline]
    #[must_use]
    pub fn lookup(&self, address: Ipv4Addr) -> Option<u32> {
        self.0.lookup::<false>(key4(address))
    }

    /// As [`lookup`](Self::lookup) for every address of a list, cache lines being asked for ahead. Fills as many of
    /// `values` as there are addresses and values.
    #[inline]
    pub fn lookup_many(&self, addresses: &[Ipv4Addr], values: &mut [Option<u32>]) {
        self.0.lookup_many::<false, _>(addresses, key4, values);
    }

    /// Prefixes in the table.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.prefixes
    }

    /// Whether no prefix is in the table.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.prefixes == 0
    }

    /// Memory that lookups may touch, in bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.0.memory()
    }
}

/// A table of IPv6 prefixes.
#[derive(Clone, Debug, Default)]
pub struct Lpm6(Trie);

impl Lpm6 {
    /// A table of `routes`, in any order; of several routes with one prefix the last counts. Host bits are ignored.
    #[must_use]
    pub fn build(routes: impl IntoIterator<Item = (Ipv6Net, u32)>) -> Self {
        let of = |(net, value): (Ipv6Net, u32)| Prefix {
            bits: net.network().to_bits(),
            len: net.prefix_len(),
            value,
        };
        Self(Trie::build(routes.into_iter().map(of).collect(), true))
    }

    /// The value of the longest prefix that holds `address`.
    #[inline]
    #[must_use]
    pub fn lookup(&self, address: Ipv6Addr) -> Option<u32> {
        self.0.lookup::<true>(key6(address))
    }

    /// As [`lookup`](Self::lookup) for every address of a list, cache lines being asked for ahead. Fills as many of
    /// `values` as there are addresses and values.
    #[inline]
    pub fn lookup_many(&self, addresses: &[Ipv6Addr], values: &mut [Option<u32>]) {
        self.0.lookup_many::<true, _>(addresses, key6, values);
    }

    /// Prefixes in the table.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.prefixes
    }

    /// Whether no prefix is in the table.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.prefixes == 0
    }

    /// Memory that lookups may touch, in bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.0.memory()
    }
}

/// A table for both IP versions. IPv4 addresses that are mapped into IPv6 (`::ffff:10.0.0.1`) count as IPv6.
#[derive(Clone, Debug, Default)]
pub struct Lpm {
    /// The IPv4 prefixes.
    pub v4: Lpm4,
    /// The IPv6 prefixes.
    pub v6: Lpm6,
}

impl Lpm {
    /// A table of `routes`, in any order; of several routes with one prefix the last counts. Host bits are ignored.
    #[must_use]
    pub fn build(routes: impl IntoIterator<Item = (IpNet, u32)>) -> Self {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for (net, value) in routes {
            match net {
                IpNet::V4(net) => v4.push((net, value)),
                IpNet::V6(net) => v6.push((net, value)),
            }
        }
        Self { v4: Lpm4::build(v4), v6: Lpm6::build(v6) }
    }

    /// The value of the longest prefix that holds `address`.
    #[inline]
    #[must_use]
    pub fn lookup(&self, address: IpAddr) -> Option<u32> {
        match address {
            IpAddr::V4(address) => self.v4.lookup(address),
            IpAddr::V6(address) => self.v6.lookup(address),
        }
    }

    /// Memory that lookups may touch, in bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.v4.memory() + self.v6.memory()
    }
}

/// Prefixes and their values, one by one put in and taken out, from which a table can be built at any time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rib {
    routes: BTreeMap<IpNet, u32>,
}

impl Rib {
    /// Sets the value of a prefix (host bits are ignored) and gives the one that it had.
    pub fn insert(&mut self, net: IpNet, value: u32) -> Option<u32> {
        self.routes.insert(net.trunc(), value)
    }

    /// Takes a prefix out and gives the value that it had.
    pub fn remove(&mut self, net: IpNet) -> Option<u32> {
        self.routes.remove(&net.trunc())
    }

    /// Prefixes and values, IPv4 first.
    pub fn iter(&self) -> impl Iterator<Item = (IpNet, u32)> {
        self.routes.iter().map(|(&net, &value)| (net, value))
    }

    /// Prefixes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.routes.len()
    }

    /// Whether there is no prefix.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }

    /// A table of what is in now.
    #[must_use]
    pub fn build(&self) -> Lpm {
        Lpm::build(self.iter())
    }
}

#[inline]
fn key4(address: Ipv4Addr) -> [u64; 2] {
    [u64::from(address.to_bits()) << 32, 0]
}

#[inline]
fn key6(address: Ipv6Addr) -> [u64; 2] {
    let bits = address.to_bits();
    [(bits >> 64) as u64, bits as u64]
}
