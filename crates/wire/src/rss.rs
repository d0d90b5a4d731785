//! Receive-side scaling: the Toeplitz hash by which network cards spread flows over queues (Microsoft's RSS
//! specification), so that software can place a flow on the same worker as the card does.

use core::net::IpAddr;

use crate::FlowKey;

/// Bytes of a key. Inputs are at most 36 bytes long (IPv6 addresses and ports); bit n of the input selects
/// bits n to n + 32 of the key.
const KEY: usize = 40;
const INPUT: usize = 36;
const NIBBLES: usize = INPUT * 2;

/// A key of the Toeplitz hash, with a table made of it: 4.6 KB, to be kept, not made per packet.
#[derive(Clone, Debug)]
pub struct ToeplitzKey {
    key: [u8; KEY],
    /// Entry `v` of row `n`: what the value `v` of the input's nibble `n` adds (XOR) to the hash.
    table: [[u32; 16]; NIBBLES],
}

impl ToeplitzKey {
    /// The key of Microsoft's verification suite, the default of many network cards.
    pub const MICROSOFT: [u8; KEY] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
        0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
        0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    /// Both directions of a connection hash alike: a key that repeats every 16 bits (Woo and Park, "Scalable
    /// TCP Session Monitoring with Symmetric Receive-side Scaling", 2012).
    pub const SYMMETRIC: [u8; KEY] = symmetric();

    /// Prepares a key.
    #[must_use]
    pub fn new(key: [u8; KEY]) -> Self {
        let mut table = [[0; 16]; NIBBLES];
        for (nibble, row) in table.iter_mut().enumerate() {
            for (value, entry) in row.iter_mut().enumerate() {
                for bit in (0..4).filter(|bit| value >> (3 - bit) & 1 == 1) {
                    *entry ^= window(&key, nibble * 4 + bit);
                }
            }
        }
        Self { key, table }
    }

    /// The bytes of the key, as they are given to a network card.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; KEY] {
        &self.key
    }

    /// The hash of an input; bytes beyond the 36th are ignored.
    #[inline]
    #[must_use]
    pub fn hash(&self, input: &[u8]) -> u32 {
        self.continued(0, 0, input)
    }

    /// The hash of an input that goes on after `at` bytes with hash `hash`.
    #[inline]
    fn continued(&self, hash: u32, at: usize, input: &[u8]) -> u32 {
        let rows = self.table.as_chunks::<2>().0.iter().skip(at);
        rows.zip(input)
            .fold(hash, |hash, ([high, low], &byte)| hash ^ nibble(high, byte >> 4) ^ nibble(low, byte & 15))
    }
}

/// The RSS hash of a flow: source and destination address, then, of TCP, UDP and SCTP, source and destination
/// port. For fragments, whose ports are 0, it is the hash over addresses alone. VLAN ids and protocol don't
/// count.
#[inline]
#[must_use]
pub fn rss_hash(flow: &FlowKey, key: &ToeplitzKey) -> u32 {
    let ports = (u32::from(flow.src_port()) << 16 | u32::from(flow.dst_port())).to_be_bytes();
    match (flow.src(), flow.dst()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let hash = key.continued(0, 0, &src.octets());
            key.continued(key.continued(hash, 4, &dst.octets()), 8, &ports)
        }
        (src, dst) => {
            let octets = |address| match address {
                IpAddr::V6(v6) => v6.octets(),
                IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            };
            let hash = key.continued(0, 0, &octets(src));
            key.continued(key.continued(hash, 16, &octets(dst)), 32, &ports)
        }
    }
}

#[inline]
#[expect(clippy::indexing_slicing, reason = "masked to the length of the row")]
fn nibble(row: &[u32; 16], value: u8) -> u32 {
    row[usize::from(value & 15)]
}

/// 32 bits of the key from bit `at` on, the first bit the highest.
fn window(key: &[u8; KEY], at: usize) -> u32 {
    let bits = crate::bytes::be64(key, (at / 8).min(KEY - 8));
    let shift = at - (at / 8).min(KEY - 8) * 8;
    (bits << shift >> 32) as u32
}

#[expect(
    clippy::indexing_slicing,
    reason = "evaluated in the build, which an index out of bounds would fail"
)]
const fn symmetric() -> [u8; KEY] {
    let mut key = [0x6d; KEY];
    let mut n = 1;
    while n < KEY {
        key[n] = 0x5a;
        n += 2;
    }
    key
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;

    use proptest::prelude::*;

    use super::*;

    /// Bit by bit: for every set bit of the input, the 32 bits of the key that begin there.
    fn slow(key: &[u8; KEY], input: &[u8]) -> u32 {
        let bit = |bytes: &[u8], n: usize| u32::from(bytes[n / 8] >> (7 - n % 8) & 1);
        let mut hash = 0;
        for n in (0..input.len() * 8).filter(|&n| bit(input, n) == 1) {
            hash ^= (n..n + 32).fold(0, |window, n| window << 1 | bit(key, n));
        }
        hash
    }

    /// Microsoft, "Verifying the RSS hash calculation": destination, source, hash of addresses, hash with TCP
    /// ports.
    #[test]
    fn verification_suite() {
        let key = ToeplitzKey::new(ToeplitzKey::MICROSOFT);
        for (dst, src, addresses, with_ports) in [
            ("161.142.100.80:1766", "66.9.149.187:2794", 0x323e_8fc2, 0x51cc_c178),
            ("65.69.140.83:4739", "199.92.111.2:14230", 0xd718_262a, 0xc626_b0ea),
            ("12.22.207.184:38024", "24.19.198.95:12898", 0xd2d0_a5de, 0x5c2b_394a),
            ("209.142.163.6:2217", "38.27.205.30:48228", 0x8298_9176, 0xafc7_327f),
            ("202.188.127.2:1303", "153.39.163.191:44251", 0x5d18_09c5, 0x10e8_28a2),
            ("[3ffe:2501:200:3::1]:1766", "[3ffe:2501:200:1fff::7]:2794", 0x2cc1_8cd5, 0x4020_7d3d),
            ("[ff02::1]:4739", "[3ffe:501:8::260:97ff:fe40:efab]:14230", 0x0f0c_461c, 0xdde5_1bbf),
            (
                "[fe80::200:f8ff:fe21:67cf]:38024",
                "[3ffe:1900:4545:3:200:f8ff:fe21:67cf]:44251",
                0x4b61_e985,
                0x02d1_feef,
            ),
        ] {
            let (dst, src): (SocketAddr, SocketAddr) = (dst.parse().unwrap(), src.parse().unwrap());
            let flow =
                |protocol| FlowKey::new(&[], src.ip(), dst.ip(), protocol, src.port(), dst.port()).unwrap();
            assert_eq!(rss_hash(&flow(6), &key), with_ports, "{src} > {dst} with ports");
            assert_eq!(rss_hash(&flow(1), &key), addresses, "{src} > {dst}, addresses alone");
        }
    }

    #[test]
    fn bytes_beyond_the_longest_input_are_ignored() {
        let key = ToeplitzKey::new(ToeplitzKey::MICROSOFT);
        assert_eq!(key.hash(&[0xa5; 64]), key.hash(&[0xa5; 36]));
        assert_eq!(key.bytes(), &ToeplitzKey::MICROSOFT);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn table_equals_bit_by_bit(key: [u8; KEY], input in proptest::collection::vec(any::<u8>(), 0..=36)) {
            prop_assert_eq!(ToeplitzKey::new(key).hash(&input), slow(&key, &input));
        }

        #[test]
        fn symmetric_key_hashes_both_directions_alike(v4: bool, a: [u8; 16], b: [u8; 16], ports: (u16, u16)) {
            let address = |octets: [u8; 16]| {
                if v4 { IpAddr::from([octets[0], octets[1], octets[2], octets[3]]) } else { IpAddr::from(octets) }
            };
            let flow = FlowKey::new(&[], address(a), address(b), 17, ports.0, ports.1).unwrap();
            let key = ToeplitzKey::new(ToeplitzKey::SYMMETRIC);
            prop_assert_eq!(rss_hash(&flow, &key), rss_hash(&flow.reversed(), &key));
        }
    }
}
