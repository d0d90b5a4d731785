//! Settings: what can't be is refused with its cause, what can be never fails.

use proptest::prelude::*;
use slipstream::io::synth::{
    Arrivals, Lifetime, Order, Profile, Protocol, Rate, Size, Synth, SynthConfig, SynthError, TrainModel,
};

fn ok() -> SynthConfig {
    SynthConfig::default()
}

#[test]
fn absurd_settings_are_refused() {
    let refused = |c: SynthConfig| Synth::new(c).map(|_| ()).unwrap_err();
    assert_eq!(refused(SynthConfig { packets: 0, ..ok() }), SynthError::NoPackets);
    assert_eq!(refused(SynthConfig { flows: 0, ..ok() }), SynthError::Flows(0));
    assert_eq!(refused(SynthConfig { flows: u32::MAX, ..ok() }), SynthError::Flows(u32::MAX));
    assert_eq!(
        refused(SynthConfig { flows: 3, active: Some(4), ..ok() }),
        SynthError::Active { active: 4, flows: 3 }
    );
    assert_eq!(refused(SynthConfig { flows: 3, protocol: Protocol::Tcp, ..ok() }), SynthError::OddTcp);
    assert_eq!(refused(SynthConfig { slf: 0.5, ..ok() }), SynthError::Slf(0.5));
    assert!(matches!(refused(SynthConfig { slf: f64::NAN, ..ok() }), SynthError::Slf(_)));
    assert_eq!(refused(SynthConfig { zipf: -1.0, ..ok() }), SynthError::Zipf(-1.0));
    assert!(matches!(refused(SynthConfig { zipf: f64::NAN, ..ok() }), SynthError::Zipf(_)));
    let in_turn = SynthConfig { zipf: 1.0, order: Order::RoundRobin, ..ok() };
    assert_eq!(refused(in_turn), SynthError::ZipfInTurn(1.0));
    assert_eq!(refused(SynthConfig { rate: Rate::Packets(0), ..ok() }), SynthError::Rate(0));
    assert_eq!(refused(SynthConfig { rate: Rate::Bits(0), ..ok() }), SynthError::Rate(0));
    assert_eq!(refused(SynthConfig { size: Size::Fixed(59), ..ok() }), SynthError::Size(59));
    assert_eq!(refused(SynthConfig { size: Size::Fixed(65_536), ..ok() }), SynthError::Size(65_536));
    assert_eq!(refused(SynthConfig { size: Size::Range(100, 99), ..ok() }), SynthError::SizeRange(100, 99));
    assert_eq!(refused(SynthConfig { size: Size::Mix(vec![(64, 0)]), ..ok() }), SynthError::SizeMix);
    let v6 = SynthConfig { size: Size::Fixed(60), ipv6: 0.1, ..ok() };
    assert_eq!(refused(v6), SynthError::SizeBelowHeaders { size: 60, needed: 62 });
    let stamps =
        SynthConfig { size: Size::Fixed(64), protocol: Protocol::Tcp, tcp_timestamps: Some(true), ..ok() };
    assert_eq!(refused(stamps), SynthError::SizeBelowHeaders { size: 64, needed: 66 });
    assert!(matches!(refused(SynthConfig { ipv6: 1.1, ..ok() }), SynthError::Share { setting: "ipv6", .. }));
    assert!(matches!(
        refused(SynthConfig { vlan: f64::NAN, ..ok() }),
        SynthError::Share { setting: "vlan", .. }
    ));
    assert_eq!(refused(SynthConfig { vlan: 0.1, vlan_ids: vec![], ..ok() }), SynthError::NoVlanIds);
    assert_eq!(refused(SynthConfig { vlan_ids: vec![4095], ..ok() }), SynthError::VlanId(4095));
    assert_eq!(refused(SynthConfig { vlan_ids: vec![7], ..ok() }), SynthError::VlanIdsOfNone);
    SynthConfig { vlan_ids: vec![7], vlan: 0.1, ..ok() }.validate().unwrap();
    SynthConfig { vlan_ids: vec![], ..ok() }.validate().unwrap();
    let short = Lifetime { min: 0, max: 1, shape: 1.0 };
    assert!(matches!(refused(SynthConfig { lifetime: Some(short), ..ok() }), SynthError::Lifetime { .. }));
    assert_eq!(refused(SynthConfig { copies: 0, ..ok() }), SynthError::Copies(0));
    assert_eq!(refused(SynthConfig { copies: 2, ..ok() }), SynthError::CopiesOfPlain(2));
    assert_eq!(refused(SynthConfig { start: u64::MAX, ..ok() }), SynthError::Start(u64::MAX));
    let slow = |packets| SynthConfig { rate: Rate::Bits(1), size: Size::Fixed(1500), packets, ..ok() };
    // 12,000 s a packet.
    assert!(Synth::new(slow((1 << 63) / 12_000_000_000_000)).is_ok());
    let said = refused(slow((1 << 63) / 12_000_000_000_000 + 1)).to_string();
    assert_eq!(said, "rate: 768615 packets at 1 bps last longer than 2^63 ns, which are 292 years");
    let most = SynthConfig { packets: u64::MAX, rate: Rate::Packets(1), ..ok() };
    assert!(matches!(refused(most), SynthError::TooLong { packets: u64::MAX, .. }));
    assert_eq!(refused(SynthConfig { snap_len: Some(13), ..ok() }), SynthError::SnapLen(13));
    assert!(Synth::new(SynthConfig { copies: 2, profile: Profile::Campus, ..ok() }).is_ok());
}

#[test]
fn settings_are_read_as_people_write_them() {
    assert_eq!("64".parse(), Ok(Size::Fixed(64)));
    assert_eq!("64..1500".parse(), Ok(Size::Range(64, 1500)));
    assert_eq!("imix".parse(), Ok(Size::imix()));
    assert_eq!("64:7,594:4,1518:1".parse(), Ok(Size::imix()));
    assert_eq!("1mpps".parse(), Ok(Rate::Packets(1_000_000)));
    assert_eq!("14.88Mpps".parse(), Ok(Rate::Packets(14_880_000)));
    assert_eq!("2.2gbps".parse(), Ok(Rate::Bits(2_200_000_000)));
    assert_eq!("1000".parse(), Ok(Rate::Packets(1000)));
    assert_eq!("1.00500kpps".parse(), Ok(Rate::Packets(1005)));
    assert_eq!("mix:0.7".parse(), Ok(Protocol::Mix(0.7)));
    assert_eq!("round-robin".parse(), Ok(Order::RoundRobin));
    for bad in ["", "x", "64..", "64:", "-1", "64..x", "1:2:3"] {
        assert!(matches!(bad.parse::<Size>(), Err(SynthError::Text { .. })), "{bad:?}");
    }
    for bad in [
        "",
        "mpps",
        "1.5pps",
        "1.05pps",
        "0.001pps",
        "1.00005kpps",
        "1 parsec",
        "1..2mpps",
        "-1pps",
        "99999999999999999999pps",
        "20000000000gbps",
    ] {
        assert!(matches!(bad.parse::<Rate>(), Err(SynthError::Text { .. })), "{bad:?}");
    }
}

#[test]
fn the_snap_length_cuts() {
    assert_eq!(ok().captured_len(1514), 1514);
    let snapped = SynthConfig { snap_len: Some(96), ..ok() };
    assert_eq!((snapped.captured_len(1514), snapped.captured_len(60)), (96, 60));
}

fn any_size() -> impl Strategy<Value = Size> {
    let size = 50_u32..3000;
    prop_oneof![
        size.clone().prop_map(Size::Fixed),
        (size.clone(), size.clone()).prop_map(|(a, b)| Size::Range(a, b)),
        prop::collection::vec((size, 0_u32..5), 0..4).prop_map(Size::Mix),
    ]
}

prop_compose! {
    fn any_config()(
        (profile, copies, packets, flows) in (prop_oneof![9 => Just(Profile::Plain), 1 => Just(Profile::Campus)], 0_u32..3, 0_u64..400, 0_u32..40),
        active in prop::option::of(0_u32..40),
        slf in prop_oneof![0.5..4.0, Just(1.0), Just(f64::NAN)],
        order in prop_oneof![Just(Order::Random), Just(Order::RoundRobin)],
        train in prop_oneof![Just(TrainModel::Fixed), Just(TrainModel::Geometric)],
        zipf in prop_oneof![-0.5..11.0, Just(0.0)],
        size in any_size(),
        rate in prop_oneof![(0_u64..2_000_000_000).prop_map(Rate::Packets), (0_u64..20_000_000_000_000).prop_map(Rate::Bits)],
        arrivals in prop_oneof![Just(Arrivals::Constant), Just(Arrivals::Poisson)],
        protocol in prop_oneof![Just(Protocol::Udp), Just(Protocol::Tcp), (0.0..1.1).prop_map(Protocol::Mix)],
        (ipv6, vlan) in (prop_oneof![Just(0.0), 0.0..1.05], prop_oneof![Just(0.0), 0.0..1.05]),
        vlan_ids in prop_oneof![Just(vec![100]), prop::collection::vec(0_u16..4096, 0..3)],
        tcp_timestamps in any::<Option<bool>>(),
        lifetime in prop::option::of((0_u64..5, 0_u64..50, 0.0..3.0).prop_map(|(min, max, shape)| Lifetime { min, max, shape })),
        start in prop_oneof![Just(0), any::<u64>()],
        seed in any::<u64>(),
    ) -> SynthConfig {
        SynthConfig { profile, copies, packets, flows, active, slf, order, train, zipf, size, rate, arrivals, protocol, ipv6, vlan,
            vlan_ids, tcp_timestamps, lifetime, start, seed, snap_len: None }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the settings, they are refused, or every packet of them is right.
    #[test]
    fn any_settings_are_refused_or_work(config in any_config()) {
        if config.validate().is_err() {
            prop_assert!(Synth::new(config).is_err());
        } else {
            let seen = crate::synth_support::all(config);
            crate::synth_support::check_tcp(&seen);
        }
    }

    /// Sensible settings are not refused.
    #[test]
    fn settings_in_range_work(
        flows in 1_u32..30, slf in 1.0..8.0, zipf in 0.0..10.0, lo in 90_u32..200, more in 0_u32..2000,
        share in 0.0..=1.0, ipv6 in 0.0..=1.0, vlan in 0.0..=1.0, lives in any::<bool>(), seed in any::<u64>(),
    ) {
        let config = SynthConfig {
            packets: 500, flows, slf, zipf, size: Size::Range(lo, lo + more), protocol: Protocol::Mix(share), ipv6, vlan,
            lifetime: lives.then_some(Lifetime { min: 2, max: 20, shape: 1.0 }), seed, ..ok()
        };
        crate::synth_support::check_tcp(&crate::synth_support::all(config));
    }
}
