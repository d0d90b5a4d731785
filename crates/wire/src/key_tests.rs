use proptest::prelude::*;

use super::*;

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![any::<[u8; 4]>().prop_map(IpAddr::from), any::<[u8; 16]>().prop_map(IpAddr::from)]
}

fn key() -> impl Strategy<Value = (Vec<u16>, IpAddr, IpAddr, u8, u16, u16)> {
    let pair = prop_oneof![
        any::<([u8; 4], [u8; 4])>().prop_map(|(a, b)| (IpAddr::from(a), IpAddr::from(b))),
        any::<([u8; 16], [u8; 16])>().prop_map(|(a, b)| (IpAddr::from(a), IpAddr::from(b))),
    ];
    let protocol = prop_oneof![Just(6), Just(17), Just(132), any::<u8>()];
    (proptest::collection::vec(0..4096_u16, 0..=10), pair, protocol, any::<(u16, u16)>())
        .prop_map(|(vlans, (src, dst), protocol, (sp, dp))| (vlans, src, dst, protocol, sp, dp))
}

proptest! {
    #[test]
    fn parts_come_back((vlans, src, dst, protocol, sp, dp) in key()) {
        let key = FlowKey::new(&vlans, src, dst, protocol, sp, dp).unwrap();
        let (sp, dp) = if matches!(protocol, 6 | 17 | 132) { (sp, dp) } else { (0, 0) };
        prop_assert_eq!(key.vlans().collect::<Vec<_>>(), vlans.clone());
        prop_assert_eq!(key.vlans().len(), vlans.len());
        prop_assert_eq!((key.src(), key.dst()), (src, dst));
        prop_assert_eq!((key.protocol(), key.src_port(), key.dst_port()), (protocol, sp, dp));
        prop_assert_eq!(key.is_ipv6(), src.is_ipv6());
        prop_assert_eq!(matches!(key, FlowKey::Narrow(_)), src.is_ipv4() && vlans.len() < 2);

        let reversed = FlowKey::new(&vlans, dst, src, protocol, dp, sp).unwrap();
        prop_assert_eq!(key.reversed(), reversed);
        let bidirectional = if (src, sp) <= (dst, dp) { key } else { reversed };
        prop_assert_eq!(key.bidirectional(), bidirectional);
        prop_assert_eq!(reversed.bidirectional(), bidirectional);
    }

    #[test]
    fn addresses_of_two_versions_make_no_key(a in address(), b in address()) {
        let mixed = a.is_ipv4() != b.is_ipv4();
        prop_assert_eq!(FlowKey::new(&[], a, b, 6, 1, 2) == Err(KeyError::MixedVersions), mixed);
    }

    #[test]
    fn accessors_take_any_words(words: [u64; 7]) {
        for key in [FlowKey::Wide(WideKey(words)), FlowKey::Narrow(NarrowKey([words[0], words[1]]))] {
            prop_assert!(key.vlans().count() <= 10);
            prop_assert!(!key.to_string().is_empty());
            prop_assert_eq!(key.reversed().reversed(), key);
        }
    }
}

#[test]
fn tags_that_do_not_fit() {
    let (a, b) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
    assert_eq!(FlowKey::new(&[1; 11], a, b, 6, 1, 2), Err(KeyError::TooManyTags(11)));
    assert_eq!(FlowKey::new(&[4096], a, b, 6, 1, 2), Err(KeyError::VlanId(4096)));
}

#[test]
fn written_as_people_write_it() {
    let v4 = |vlans: &[u16], protocol, sp, dp| {
        FlowKey::new(vlans, [10, 0, 0, 1].into(), [10, 0, 0, 2].into(), protocol, sp, dp).unwrap().to_string()
    };
    let (a, b) = ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
    for (written, expected) in [
        (v4(&[], 6, 80, 1234), "10.0.0.1:80 > 10.0.0.2:1234 tcp"),
        (v4(&[100], 17, 53, 4000), "10.0.0.1:53 > 10.0.0.2:4000 udp vlan 100"),
        (v4(&[7, 100], 132, 1, 2), "10.0.0.1:1 > 10.0.0.2:2 sctp vlan 7.100"),
        (v4(&[], 1, 0, 0), "10.0.0.1 > 10.0.0.2 icmp"),
        (v4(&[], 6, 0, 0), "10.0.0.1 > 10.0.0.2 tcp"),
        (v4(&[], 253, 0, 0), "10.0.0.1 > 10.0.0.2 proto 253"),
        (
            FlowKey::new(&[], a, b, 17, 53, 4000).unwrap().to_string(),
            "[2001:db8::1]:53 > [2001:db8::2]:4000 udp",
        ),
        (FlowKey::new(&[], a, b, 58, 0, 0).unwrap().to_string(), "2001:db8::1 > 2001:db8::2 icmp6"),
    ] {
        assert_eq!(written, expected);
    }
}

/// Keys that have the same hash under a known seed have others under other seeds: a table whose seed nobody
/// knows can't be filled with collisions.
#[test]
fn what_collides_under_one_seed_does_not_under_another() {
    // Stacks of ten VLAN tags whose two words differ in a way that cancels out where they are joined without
    // the seed.
    let stacks: Vec<FlowKey> = (0..1000_u64)
        .map(|n| {
            let change = n << 8 | n << 40;
            let [f, g] = [0x1230_4560_7890_abc0 ^ change.rotate_left(32), 0x0120_3040_5060_7080 ^ change];
            FlowKey::Wide(WideKey([0, 1, 0, 2, 80 << 48 | 6 << 24 | 4 << 16 | 10, f, g]))
        })
        .collect();
    // Addresses and ports whose hash has the same highest byte under the seed 1.
    let random = |n: u64| n.wrapping_mul(K1) ^ n.wrapping_mul(K2).rotate_left(29);
    let narrow =
        (0..).map(|n| FlowKey::Narrow(NarrowKey([random(n), random(n + 7) & 0xffff_ffff << 32 | 17 << 24])));
    let wide = (0..).map(|n| {
        FlowKey::Wide(WideKey([
            random(n),
            1,
            random(n + 9),
            2,
            random(n + 7) & 0xffff_ffff << 32 | 17 << 24 | 6 << 16,
            0,
            0,
        ]))
    });
    let same = |key: &FlowKey| key.hash64(1) >> 56 == 0;
    let (narrow, wide) = (narrow.filter(same).take(1000).collect(), wide.filter(same).take(1000).collect());
    let sets: [(&str, Vec<FlowKey>); 3] = [("stacks", stacks), ("narrow", narrow), ("wide", wide)];
    for (name, keys) in sets {
        for seed in [0, 2, 3, 0x1234_5678_9abc_def0, u64::MAX] {
            let hashes: std::collections::BTreeSet<u64> = keys.iter().map(|k| k.hash64(seed)).collect();
            assert_eq!(hashes.len(), keys.len(), "{name}: equal hashes under the seed {seed:#x}");
            let mut counts = [0_u32; 256];
            keys.iter().for_each(|k| counts[(k.hash64(seed) >> 56) as usize] += 1);
            // 1000 keys over 256 values: 4 each; 22 or more of one value by chance less than once in 10⁷.
            let most = counts.iter().max();
            assert!(most < Some(&22), "{name}: {most:?} keys of one highest byte under the seed {seed:#x}");
        }
    }
}

/// The values were calculated apart from this code: of a narrow key, a wide one, and one with more than five
/// tags.
#[test]
fn hash_is_the_same_on_every_machine() {
    let narrow = FlowKey::Narrow(NarrowKey([0x0a00_0001_c000_0201, 0x0050_c001_0600_0000]));
    let wide = |last| {
        let (src, dst) = ([0x2001_0db8_0000_0000, 1], [0x2001_0db8_0000_0000, 2]);
        let rest = [0x0050_c001_0606_0006, 0x0123_4567_89ab_cdef, last];
        FlowKey::Wide(WideKey([src[0], src[1], dst[0], dst[1], rest[0], rest[1], rest[2]]))
    };
    let keys = [narrow, wide(0), wide(0xfedc_ba98_7654_3210)];
    for (seed, expected) in [
        (0x0, [0x9b00_ec6a_261a_bae6, 0x5dac_85fa_2d50_b150, 0x1ca1_0a62_3f55_74e3]),
        (0x0123_4567_89ab_cdef, [0x25cd_291b_d508_51e2, 0x9d4d_1ef3_1edc_d0f7, 0xa7bb_4b65_0ffd_1986]),
    ] {
        assert_eq!(keys.map(|key| key.hash64(seed)), expected, "seed {seed:#x}");
    }
}

/// Neighbouring keys, as a scan or a load generator makes them, spread evenly by low and by high bits of the
/// hash.
#[test]
fn hash_spreads_neighbouring_keys() {
    const KEYS: u32 = 1 << 16;
    const BUCKETS: usize = 256;
    type Make = fn(u32) -> FlowKey;
    let v4: Make = |n| {
        FlowKey::new(&[], (0x0a00_0000 + n).to_be_bytes().into(), [9, 9, 9, 9].into(), 6, 80, 80).unwrap()
    };
    let ports: Make =
        |n| FlowKey::new(&[], [10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, n as u16, 53).unwrap();
    let v6: Make = |n| {
        let src = Ipv6Addr::from(0x2001_0db8_u128 << 96 | u128::from(n));
        FlowKey::new(&[], src.into(), Ipv6Addr::LOCALHOST.into(), 6, 80, 80).unwrap()
    };
    let prefixes: Make = |n| {
        let src = Ipv6Addr::from(0x2001_0db8_u128 << 96 | u128::from(n) << 64 | u128::from(K1));
        FlowKey::new(&[], src.into(), Ipv6Addr::LOCALHOST.into(), 6, 80, 80).unwrap()
    };
    for (name, make) in [("v4", v4), ("ports", ports), ("v6", v6), ("prefixes", prefixes)] {
        for seed in [0, 1, 0x1234_5678_9abc_def0, u64::MAX] {
            for shift in [0, 24, 56] {
                let mut counts = [0_u32; BUCKETS];
                for n in 0..KEYS {
                    counts[(make(n).hash64(seed) >> shift) as usize % BUCKETS] += 1;
                }
                let mean = f64::from(KEYS) / BUCKETS as f64;
                let chi2: f64 = counts.iter().map(|&c| (f64::from(c) - mean).powi(2) / mean).sum();
                // 255 degrees of freedom: mean 255, standard deviation 22.6. An even sequence may lie below.
                assert!(chi2 < 255.0 + 6.0 * 22.6, "{name} seed {seed:#x} shift {shift}: chi-square {chi2}");
            }
        }
    }
}
