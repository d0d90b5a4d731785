//! Packets and rules at random, for the tests of this crate and of those that compile rules further.

#![allow(clippy::unwrap_used, reason = "only tests come here, and they may panic")]

use core::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use proptest::prelude::*;
use slipstream_wire::{Flags, FlowKey, Headers};

use super::expr::{ByteSet, Expr, Ranges, Side, Test};

/// Mostly few values, so that tests and packets often meet.
pub(super) fn few<T: Copy + core::fmt::Debug + 'static>(
    usual: &'static [T],
    any: impl Strategy<Value = T> + 'static,
) -> BoxedStrategy<T> {
    prop_oneof![4 => prop::sample::select(usual), 1 => any].boxed()
}

fn address4() -> BoxedStrategy<u32> {
    few(&[0x0a00_0001, 0x0a00_0002, 0x0a01_0000, 0xc0a8_0101], any::<u32>())
}

fn address6() -> BoxedStrategy<u128> {
    few(&[1, 0x2001_0db8 << 96 | 1, 0x2001_0db8 << 96 | 2, 0xffff_0a00_0001], any::<u128>())
}

fn port() -> BoxedStrategy<u16> {
    few(&[0, 53, 80, 443, 8000, 65_535], any::<u16>())
}

/// Headers as classification gives them: flags go together as its documentation says.
pub fn headers() -> impl Strategy<Value = Headers> {
    let addresses = prop_oneof![
        (address4(), address4()).prop_map(|(s, d)| (IpAddr::V4(s.into()), IpAddr::V4(d.into()))),
        (address6(), address6()).prop_map(|(s, d)| (IpAddr::V6(s.into()), IpAddr::V6(d.into()))),
    ];
    let vlans = prop::collection::vec(few(&[1, 100, 4095], 0..4096_u16), 0..4);
    let protocol = few(&[1, 6, 6, 6, 17, 47, 132], any::<u8>());
    let ports = (port(), port());
    (addresses, vlans, protocol, ports, any::<(u8, u8)>(), 0..8_u8).prop_map(
        |((src, dst), vlans, protocol, (sport, dport), (tos, tcp_flags), what)| {
            let fragment = what == 0;
            let ports = !fragment && what != 1 && matches!(protocol, 6 | 17 | 132);
            let tcp = ports && what != 2 && protocol == 6;
            let (sport, dport) = if ports { (sport, dport) } else { (0, 0) };
            let bit = |set: bool, bit: u8| if set { bit } else { 0 };
            Headers {
                key: FlowKey::new(&vlans, src, dst, protocol, sport, dport).unwrap(),
                l3: 14,
                l4: 34,
                flags: Flags(
                    bit(src.is_ipv6(), Flags::IPV6)
                        | bit(fragment, Flags::FRAGMENT)
                        | bit(ports, Flags::PORTS)
                        | bit(tcp, Flags::TCP),
                ),
                tcp_flags: if tcp { tcp_flags } else { 0 },
                tos,
            }
        },
    )
}

fn ranges(value: BoxedStrategy<u32>) -> impl Strategy<Value = Ranges> {
    prop::collection::vec((value.clone(), value), 1..4)
        .prop_map(|pairs| Ranges::new(pairs.into_iter().map(|(a, b)| (a.min(b), a.max(b))).collect()))
}

fn bytes(value: BoxedStrategy<u8>) -> impl Strategy<Value = ByteSet> {
    prop::collection::vec(value, 1..4).prop_map(|values| {
        let mut set = ByteSet::default();
        values.into_iter().for_each(|v| set.insert(v));
        set
    })
}

fn test() -> impl Strategy<Value = Test> {
    let side = prop::sample::select(&[Side::Src, Side::Dst, Side::Either]);
    let net = prop_oneof![
        (address4(), 0..=32_u8).prop_map(|(a, n)| IpNet::from(Ipv4Net::new(a.into(), n).unwrap().trunc())),
        (address6(), 0..=128_u8).prop_map(|(a, n)| IpNet::from(Ipv6Net::new(a.into(), n).unwrap().trunc())),
    ];
    let length = few(&[0, 60, 64, 1514, u32::MAX], any::<u32>());
    prop_oneof![
        any::<bool>().prop_map(Test::Ip6),
        bytes(few(&[1, 6, 17, 47, 132], any::<u8>())).prop_map(Test::Proto),
        (side.clone(), prop::collection::vec(net, 1..4)).prop_map(|(side, nets)| Test::Net(side, nets)),
        (side, ranges(port().prop_map(u32::from).boxed())).prop_map(|(side, ports)| Test::Port(side, ports)),
        prop_oneof![(0..64).prop_map(|n| 1_u64 << n), 1..=u64::MAX].prop_map(Test::Dscp),
        (1..16_u8).prop_map(Test::Ecn),
        (1..=u8::MAX, any::<u8>()).prop_map(|(mask, value)| Test::Flags { mask, value: value & mask }),
        (0..8_u32).prop_map(|n| Test::Flags { mask: 1_u8 << n, value: 1_u8 << n }),
        prop::option::of(ranges(few(&[1, 100, 4095], 0..4096_u32))).prop_map(Test::Vlan),
        Just(Test::Fragment),
        ranges(length).prop_map(Test::Length),
    ]
}

/// Rules of any shape.
pub fn expr() -> impl Strategy<Value = Expr> {
    let leaf = prop_oneof![1 => Just(Expr::Any), 1 => Just(Expr::None), 12 => test().prop_map(Expr::Test)];
    leaf.prop_recursive(5, 40, 4, |inner| {
        prop_oneof![
            inner.clone().prop_map(Expr::not),
            prop::collection::vec(inner.clone(), 1..5).prop_map(Expr::and),
            prop::collection::vec(inner, 1..5).prop_map(Expr::or),
        ]
    })
}
