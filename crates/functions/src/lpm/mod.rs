//! Longest-prefix match: which value belongs to the longest prefix that holds an address.
//!
//! A table is built from a list and never changes; who needs other routes builds another table and puts it in
//! the place of the old one between two batches. [`Rib`] keeps the list for that, prefix by prefix.
//!
//! ```
//! use slipstream_functions::lpm::Lpm;
//!
//! let table = Lpm::build([("0.0.0.0/0".parse()?, 1), ("10.0.0.0/8".parse()?, 2), ("2001:db8::/32".parse()?, 3)]);
//! assert_eq!(table.lookup("10.1.2.3".parse()?), Some(2));
//! assert_eq!(table.lookup("11.1.2.3".parse()?), Some(1));
//! assert_eq!(table.lookup("::1".parse()?), None);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The structure is a multibit trie with a direct root of 12 to 22 bits, strides chosen node by node so that
//! a node is at least partly full, and levels at which all prefixes agree skipped (level and path
//! compression: Nilsson and Karlsson, "IP-address lookup using LC-tries", 1999), the values pushed to the
//! leaves. The memory follows the number of prefixes: two hundred routes stay in the first-level cache, which
//! a flat table of 2²⁴ entries could not. From 2¹⁸ IPv4 prefixes on the root is such a table (64 MB; Gupta,
//! Lin and McKeown, "Routing lookups in hardware at memory access speeds", 1998): nearly all of them end
//! there, after one access.

#[cfg(test)]
mod tests;
mod trie;

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use trie::{Prefix, Trie};

/// Addresses that a batch lookup takes through the trie together.
pub const BATCH: usize = trie::LANES;

mod family {
    use super::{Ipv4Addr, Ipv4Net, Ipv6Addr, Ipv6Net};

    /// An IP version: its addresses as keys, and its prefixes.
    pub trait Family: Copy {
        /// A prefix with its length.
        type Net: Copy;
        /// True if keys take more than one word.
        const WIDE: bool;
        /// The key of an address, left-aligned.
        fn key(self) -> [u64; 2];
        /// The bits of a prefix, left-aligned, and its length.
        fn prefix(net: Self::Net) -> (u128, u8);
    }

    impl Family for Ipv4Addr {
        type Net = Ipv4Net;
        const WIDE: bool = false;

        #[inline]
        fn key(self) -> [u64; 2] {
            [u64::from(self.to_bits()) << 32, 0]
        }

        fn prefix(net: Ipv4Net) -> (u128, u8) {
            (u128::from(net.network().to_bits()) << 96, net.prefix_len())
        }
    }

    impl Family for Ipv6Addr {
        type Net = Ipv6Net;
        const WIDE: bool = true;

        #[inline]
        fn key(self) -> [u64; 2] {
            let bits = self.to_bits();
            [(bits >> 64) as u64, bits as u64]
        }

        fn prefix(net: Ipv6Net) -> (u128, u8) {
            (net.network().to_bits(), net.prefix_len())
        }
    }
}

use family::Family;

/// A table of IPv4 prefixes.
pub type Lpm4 = LpmOf<Ipv4Addr>;
/// A table of IPv6 prefixes.
pub type Lpm6 = LpmOf<Ipv6Addr>;

/// A table of the prefixes of one IP version, whose addresses are of type `A`.
#[derive(Clone, Debug)]
pub struct LpmOf<A>(Trie, PhantomData<A>);

impl<A> Default for LpmOf<A> {
    fn default() -> Self {
        Self(Trie::default(), PhantomData)
    }
}

impl<A: Family> LpmOf<A> {
    /// A table of `routes`, in any order; of several routes with one prefix the last counts. Host bits are
    /// ignored.
    #[must_use]
    pub fn build(routes: impl IntoIterator<Item = (A::Net, u32)>) -> Self {
        let of = |(net, value)| {
            let (bits, len) = A::prefix(net);
            Prefix { bits, len, value }
        };
        Self(Trie::build(routes.into_iter().map(of).collect(), A::WIDE), PhantomData)
    }

    /// The value of the longest prefix that holds `address`.
    #[inline]
    #[must_use]
    pub fn lookup(&self, address: A) -> Option<u32> {
        let key = address.key();
        if A::WIDE { self.0.lookup::<true>(key) } else { self.0.lookup::<false>(key) }
    }

    /// As [`lookup`](Self::lookup) for every address of a list, cache lines being asked for ahead. Fills as
    /// many of `values` as there are addresses and values.
    #[inline]
    pub fn lookup_many(&self, addresses: &[A], values: &mut [Option<u32>]) {
        if A::WIDE {
            self.0.lookup_many::<true, _>(addresses, A::key, values);
        } else {
            self.0.lookup_many::<false, _>(addresses, A::key, values);
        }
    }

    /// Prefixes in the table.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.prefixes
    }

    /// Returns true if no prefix is in the table.
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
    /// A table of `routes`, in any order; of several routes with one prefix the last counts. Host bits are
    /// ignored.
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

    /// Returns true if there is no prefix.
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
