//! The trie against a trie of one bit a level from another hand, and against a look at every prefix.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use prefix_trie::PrefixMap;
use proptest::prelude::*;

use super::{Lpm, Lpm4, Lpm6, Rib};

/// The obvious twin: the longest of all prefixes that hold the address; of equal ones the last.
fn scan(routes: &[(IpNet, u32)], address: IpAddr) -> Option<u32> {
    let holds = routes.iter().filter(|(net, _)| net.contains(&address));
    holds.max_by_key(|(net, _)| net.prefix_len()).map(|&(_, value)| value)
}

fn v4() -> impl Strategy<Value = u32> {
    // Few values of each part, so that prefixes nest and neighbour.
    prop_oneof![
        3 => (0..3_u32, 0..4_u32, 0..4_u32, 0..4_u32)
            .prop_map(|(a, b, c, d)| (10 + a) << 24 | b << 22 | c << 12 | d << 3 | d),
        1 => any::<u32>(),
        1 => prop::sample::select(&[0, u32::MAX, 1, 1 << 31]),
    ]
}

fn v6() -> impl Strategy<Value = u128> {
    prop_oneof![
        3 => (0..3_u128, 0..4_u128, 0..4_u128, 0..8_u128)
            .prop_map(|(a, b, c, d)| (0x2001_0db8 + a) << 96 | b << 78 | c << 62 | d << 30 | d),
        1 => any::<u128>(),
        1 => prop::sample::select(&[0, u128::MAX, 1, 1 << 127, 1 << 63, 1 << 64]),
    ]
}

fn net() -> impl Strategy<Value = IpNet> {
    prop_oneof![
        (v4(), prop_oneof![0..=32_u8, Just(0), Just(32), Just(24), Just(16)])
            .prop_map(|(a, len)| Ipv4Net::new(a.into(), len).unwrap().trunc().into()),
        (v6(), prop_oneof![0..=128_u8, Just(0), Just(128), Just(64), Just(48), Just(63)])
            .prop_map(|(a, len)| Ipv6Net::new(a.into(), len).unwrap().trunc().into()),
    ]
}

/// First and last address of a prefix, and their neighbours outside: where tries go wrong.
fn edges(net: &IpNet) -> Vec<IpAddr> {
    match net {
        IpNet::V4(n) => {
            let (a, b) = (n.network().to_bits(), n.broadcast().to_bits());
            [a, b, a.wrapping_sub(1), b.wrapping_add(1)].map(|x| Ipv4Addr::from(x).into()).to_vec()
        }
        IpNet::V6(n) => {
            let (a, b) = (n.network().to_bits(), n.broadcast().to_bits());
            [a, b, a.wrapping_sub(1), b.wrapping_add(1)].map(|x| Ipv6Addr::from(x).into()).to_vec()
        }
    }
}

fn agrees(routes: &[(IpNet, u32)], others: &[IpAddr]) -> Result<(), TestCaseError> {
    let table = Lpm::build(routes.iter().copied());
    let mut trie4 = PrefixMap::<Ipv4Net, u32>::new();
    let mut trie6 = PrefixMap::<Ipv6Net, u32>::new();
    for &(net, value) in routes {
        match net {
            IpNet::V4(net) => trie4.insert(net, value),
            IpNet::V6(net) => trie6.insert(net, value),
        };
    }
    prop_assert_eq!(table.v4.len(), trie4.len());
    prop_assert_eq!(table.v6.len(), trie6.len());
    let asked: Vec<IpAddr> =
        routes.iter().flat_map(|(net, _)| edges(net)).chain(others.iter().copied()).collect();
    let (mut asked4, mut asked6) = (Vec::new(), Vec::new());
    for &address in &asked {
        let expected = scan(routes, address);
        prop_assert_eq!(table.lookup(address), expected, "{}", address);
        let other = match address {
            IpAddr::V4(a) => {
                asked4.push(a);
                trie4.get_lpm(&a.into()).map(|(_, v)| *v)
            }
            IpAddr::V6(a) => {
                asked6.push(a);
                trie6.get_lpm(&a.into()).map(|(_, v)| *v)
            }
        };
        prop_assert_eq!(other, expected, "{}", address);
    }
    let mut many = vec![Some(77); asked4.len()];
    table.v4.lookup_many(&asked4, &mut many);
    prop_assert_eq!(many, asked4.iter().map(|&a| table.v4.lookup(a)).collect::<Vec<_>>());
    let mut many = vec![Some(77); asked6.len()];
    table.v6.lookup_many(&asked6, &mut many);
    prop_assert_eq!(many, asked6.iter().map(|&a| table.v6.lookup(a)).collect::<Vec<_>>());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn the_longest_prefix_wins(
        routes in prop::collection::vec((net(), any::<u32>()), 0..120),
        v4 in prop::collection::vec(v4(), 40),
        v6 in prop::collection::vec(v6(), 40),
    ) {
        let others: Vec<IpAddr> = v4.into_iter().map(|a| Ipv4Addr::from(a).into())
            .chain(v6.into_iter().map(|a| Ipv6Addr::from(a).into())).collect();
        agrees(&routes, &others)?;
    }

    #[test]
    fn what_was_removed_is_gone(
        steps in prop::collection::vec((net(), prop::option::weighted(0.6, any::<u32>())), 0..80),
    ) {
        let mut rib = Rib::default();
        let mut routes: Vec<(IpNet, u32)> = Vec::new();
        for (net, value) in steps {
            let before = routes.iter().position(|&(n, _)| n == net).map(|at| routes.remove(at).1);
            match value {
                Some(value) => {
                    prop_assert_eq!(rib.insert(net, value), before);
                    routes.push((net, value));
                }
                None => prop_assert_eq!(rib.remove(net), before),
            }
            prop_assert_eq!(rib.len(), routes.len());
        }
        let table = rib.build();
        for address in routes.iter().flat_map(|(net, _)| edges(net)) {
            prop_assert_eq!(table.lookup(address), scan(&routes, address));
        }
    }
}

/// Distinct numbers that look random (a full-period congruence).
fn scattered(n: u32) -> u32 {
    n.wrapping_mul(2_654_435_761).wrapping_add(12_345)
}

/// IPv4 routes of every kind of length; returns the bytes of their table.
fn large_table_agrees(routes: u32) -> usize {
    let routes: Vec<(Ipv4Net, u32)> = (0..routes)
        .map(|i| {
            let len = [8, 12, 16, 19, 20, 22, 23, 24, 24, 24, 24, 32][i as usize % 12];
            (Ipv4Net::new(scattered(i).into(), len).unwrap().trunc(), i % 500)
        })
        .collect();
    let table = Lpm4::build(routes.iter().copied());
    let trie: PrefixMap<Ipv4Net, u32> = routes.iter().copied().collect();
    let random = (0..50_000).map(|i| Ipv4Addr::from(scattered(i * 7 + 3)));
    let asked: Vec<Ipv4Addr> = random.chain(routes.iter().step_by(7).map(|(n, _)| n.broadcast())).collect();
    let mut many = vec![None; asked.len()];
    table.lookup_many(&asked, &mut many);
    for (&address, got) in asked.iter().zip(many) {
        let expected = trie.get_lpm(&address.into()).map(|(_, v)| *v);
        assert_eq!((got, table.lookup(address)), (expected, expected), "{address}");
    }
    table.memory()
}

#[test]
fn large_tables_agree_in_the_batch_and_one_by_one_with_another_trie() {
    let memory = large_table_agrees(60_000);
    assert!(memory < 60_000 * 64, "{memory}");
}

/// One of the size of the Internet's has a root of its own kind.
#[test]
fn the_largest_tables_agree_with_another_trie() {
    let memory = large_table_agrees(500_000);
    assert!((64 << 20..100 << 20).contains(&memory), "{memory}");
}

#[test]
fn large_ipv6_tables_agree_with_another_trie() {
    let routes: Vec<(Ipv6Net, u32)> = (0..40_000_u32)
        .map(|i| {
            let len = [29, 32, 32, 36, 40, 44, 48, 48, 48, 48, 64, 128][i as usize % 12];
            let bits =
                0x2a00_u128 << 112 | u128::from(scattered(i)) << 72 | u128::from(scattered(i ^ 0xabcd));
            (Ipv6Net::new(bits.into(), len).unwrap().trunc(), i % 500)
        })
        .collect();
    let table = Lpm6::build(routes.iter().copied());
    let trie: PrefixMap<Ipv6Net, u32> = routes.iter().copied().collect();
    let asked: Vec<Ipv6Addr> = routes.iter().flat_map(|(n, _)| [n.network(), n.broadcast()]).collect();
    let mut many = vec![None; asked.len()];
    table.lookup_many(&asked, &mut many);
    for (&address, got) in asked.iter().zip(many) {
        let expected = trie.get_lpm(&address.into()).map(|(_, v)| *v);
        assert_eq!((got, table.lookup(address)), (expected, expected), "{address}");
    }
}

#[test]
fn an_empty_table_knows_nothing_and_needs_no_memory() {
    let table = Lpm::build([]);
    assert_eq!(table.lookup("10.0.0.1".parse().unwrap()), None);
    assert_eq!(table.lookup("::1".parse().unwrap()), None);
    assert_eq!(table.memory(), 0);
}

#[test]
fn a_default_route_holds_every_address() {
    let table = Lpm::build([("0.0.0.0/0".parse().unwrap(), u32::MAX), ("::/0".parse().unwrap(), 0)]);
    for (address, value) in [("0.0.0.0", u32::MAX), ("255.255.255.255", u32::MAX), ("::", 0), ("ff::1", 0)] {
        assert_eq!(table.lookup(address.parse().unwrap()), Some(value), "{address}");
    }
}
