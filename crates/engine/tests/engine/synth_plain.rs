//! Plain traffic has exactly the locality, rates, sizes and shares that were asked for.

use std::collections::{HashMap, HashSet};

use crate::synth_support::{self, all, fingerprint, flow_numbers, runs, slf};
use slipstream::io::synth::{Arrivals, Lifetime, Order, Rate, Size, SynthConfig, TrainModel};

fn config() -> SynthConfig {
    SynthConfig { packets: 20_000, flows: 100, ..SynthConfig::default() }
}

#[test]
fn in_turn_every_run_has_exactly_slf_packets() {
    for s in [1, 2, 5, 16] {
        let seen = all(SynthConfig {
            order: Order::RoundRobin,
            slf: s as f64,
            flows: 7,
            packets: 7 * 16 * 20,
            ..config()
        });
        let flows = flow_numbers(&seen);
        for (i, run) in runs(&flows).iter().enumerate() {
            assert_eq!(*run, s);
            assert_eq!(flows[i * s], i % 7, "flows take turns");
        }
        assert!((slf(&flows) - s as f64).abs() < 1e-9);
    }
}

#[test]
fn in_random_order_runs_never_merge() {
    for s in [1, 3] {
        for zipf in [0.0, 1.1, 3.0] {
            let flows =
                flow_numbers(&all(SynthConfig { slf: s as f64, zipf, flows: 5, packets: 3000, ..config() }));
            assert!(runs(&flows).iter().all(|&r| r == s), "slf {s}, zipf {zipf}");
        }
    }
}

#[test]
fn fractional_and_geometric_runs_have_the_mean_asked_for() {
    for order in [Order::Random, Order::RoundRobin] {
        let seen = all(SynthConfig { slf: 2.3, order, ..config() });
        let lengths = runs(&flow_numbers(&seen));
        assert!(lengths[..lengths.len() - 1].iter().all(|r| (2..=3).contains(r)));
        let mean = seen.len() as f64 / lengths.len() as f64;
        assert!((mean - 2.3).abs() < 0.02, "{mean}");
    }
    let seen = all(SynthConfig { slf: 3.0, train: TrainModel::Geometric, ..config() });
    let lengths = runs(&flow_numbers(&seen));
    let mean = seen.len() as f64 / lengths.len() as f64;
    // Standard deviation of a run is √6; of the mean of 6,700 runs 0.03.
    assert!((mean - 3.0).abs() < 0.12, "{mean}");
    let ones = lengths.iter().filter(|&&r| r == 1).count() as f64 / lengths.len() as f64;
    assert!((ones - 1.0 / 3.0).abs() < 0.025, "{ones}");
}

#[test]
fn times_keep_the_rate() {
    let span = |c: SynthConfig| {
        let seen = all(c);
        (seen.last().unwrap().time - seen[0].time) as f64 / 1e9
    };
    // 3 packets a microsecond don't fit whole nanoseconds; no error adds up.
    let c = SynthConfig { rate: Rate::Packets(3_000_000), start: 77, ..config() };
    let seen = all(c.clone());
    for (i, p) in seen.iter().enumerate() {
        assert_eq!(p.time, 77 + i as u64 * 1000 / 3);
    }
    let seconds = span(c);
    assert!((seconds * 3e6 / 19_999.0 - 1.0).abs() < 1e-3);
    let c = SynthConfig { rate: Rate::Bits(2_200_000_000), ..config() };
    let bits: usize = all(c.clone()).iter().rev().skip(1).map(|p| p.len * 8).sum();
    assert!((bits as f64 / span(c) / 2.2e9 - 1.0).abs() < 1e-3);
    // 200,000 exponential gaps: a relative standard deviation of 0.0022.
    let c = SynthConfig { arrivals: Arrivals::Poisson, packets: 200_000, size: Size::Fixed(60), ..config() };
    assert!((span(c) * 1e6 / 200_000.0 - 1.0).abs() < 0.01);
}

#[test]
fn poisson_gaps_are_exponential() {
    let seen = all(SynthConfig {
        arrivals: Arrivals::Poisson,
        size: Size::Fixed(60),
        rate: Rate::Packets(1000),
        ..config()
    });
    let gaps: Vec<f64> = seen.windows(2).map(|w| (w[1].time - w[0].time) as f64 / 1e6).collect();
    for x in [0.1, 0.5, 1.0, 2.0, 4.0_f64] {
        let share = gaps.iter().filter(|&&g| g > x).count() as f64 / gaps.len() as f64;
        assert!((share - (-x).exp()).abs() < 0.012, "P(gap > {x}) = {share}");
    }
}

/// Packets of each of `n` flows, the most frequent first, and the weights that Zipf's law gives them.
fn ranks(n: u32, zipf: f64, packets: u64, seed: u64) -> (Vec<f64>, Vec<f64>) {
    let seen = all(SynthConfig { zipf, flows: n, packets, size: Size::Fixed(60), seed, ..config() });
    let mut counts: HashMap<usize, f64> = HashMap::new();
    for f in flow_numbers(&seen) {
        *counts.entry(f).or_default() += 1.0;
    }
    let mut counts: Vec<f64> = counts.into_values().collect();
    counts.sort_by(|a, b| b.total_cmp(a));
    (counts, (1..=n).map(|r| f64::from(r).powf(-zipf)).collect())
}

#[test]
fn ranks_follow_zipf() {
    // Flow numbers are ranks: with as many packets as here, take the flows in order of their counts.
    for (exponent, seed) in [(0.0, 1), (0.8, 2), (1.1, 3), (1.1, 4)] {
        let n = 50;
        let (counts, weights) = ranks(n, exponent, 100_000, seed);
        let total: f64 = weights.iter().sum();
        let chi2: f64 = weights
            .iter()
            .zip(&counts)
            .map(|(w, c)| {
                let expected = w / total * 100_000.0;
                (c - expected).powi(2) / expected
            })
            .sum();
        // 49 degrees of freedom: the 99.99 % point is 95. Sorting and the ban on repeats only bring the
        // counts closer.
        assert!(chi2 < 95.0, "zipf {exponent}, seed {seed}: chi² {chi2}");
    }
}

#[test]
fn no_rank_has_more_than_half() {
    // The last exponent gives the first of 100 ranks a share of 0.5 - 1e-9: drawing until it doesn't come
    // again would take for ever.
    for (n, exponent) in [(2, 1.0), (3, 1.5), (10, 2.0), (100, 1.8), (1000, 5.0), (100, 1.698541672225933)] {
        let packets = 50_000;
        let (counts, weights) = ranks(n, exponent, packets, 5);
        let others: f64 = weights.iter().skip(1).sum();
        // A first rank whose share would be a half or more has half, the others the rest in proportion.
        let expected = weights.iter().enumerate().map(|(i, w)| if i == 0 { 0.5 } else { 0.5 * w / others });
        for (rank, (expected, count)) in expected.zip(&counts).enumerate().take(5) {
            let share = count / packets as f64;
            assert!(
                (share - expected).abs() < 0.008,
                "{n} ranks, zipf {exponent}, {rank}: {share}, {expected}"
            );
        }
    }
}

#[test]
fn sizes_are_what_was_asked_for() {
    let sizes = |size| all(SynthConfig { size, ..config() }).into_iter().map(|p| p.len).collect::<Vec<_>>();
    assert!(sizes(Size::Fixed(60)).iter().all(|&s| s == 60));
    assert!(sizes(Size::Fixed(65_535)).iter().all(|&s| s == 65_535));
    let range = sizes(Size::Range(64, 1500));
    assert!(range.iter().all(|s| (64..=1500).contains(s)));
    let mean = range.iter().sum::<usize>() as f64 / range.len() as f64;
    assert!((mean - 782.0).abs() < 12.0, "{mean}");
    assert!(range.contains(&64) && range.contains(&1500));
    let mix = sizes(Size::imix());
    for (size, share) in [(64, 7.0 / 12.0), (594, 4.0 / 12.0), (1518, 1.0 / 12.0)] {
        let measured = mix.iter().filter(|&&s| s == size).count() as f64 / mix.len() as f64;
        assert!((measured - share).abs() < 0.015, "{size}: {measured}");
    }
}

#[test]
fn shares_of_ipv6_and_vlans() {
    let c = SynthConfig {
        flows: 5000,
        ipv6: 0.3,
        vlan: 0.4,
        vlan_ids: vec![7, 4094],
        size: Size::Fixed(100),
        ..config()
    };
    let mut flows: Vec<_> = all(c).into_iter().map(|p| p.flow).collect();
    flows.sort();
    flows.dedup();
    let share = |f: &dyn Fn(&synth_support::Flow) -> bool| {
        flows.iter().filter(|x| f(x)).count() as f64 / flows.len() as f64
    };
    // Five standard deviations of 5,000 draws are below 0.035.
    assert!((share(&|f| f.src.len() == 16) - 0.3).abs() < 0.035);
    assert!((share(&|f| f.vlan.is_some()) - 0.4).abs() < 0.035);
    assert!((share(&|f| f.vlan == Some(7)) - 0.2).abs() < 0.035);
    assert!(flows.iter().all(|f| matches!(f.vlan, None | Some(7 | 4094))));
}

#[test]
fn active_flows_go_on_alone_after_one_packet_of_each() {
    for order in [Order::Random, Order::RoundRobin] {
        let seen =
            all(SynthConfig { flows: 3000, active: Some(64), order, size: Size::Fixed(60), ..config() });
        let flows = flow_numbers(&seen);
        assert!(flows[..3000].iter().enumerate().all(|(i, &f)| f == i), "each once");
        let active: HashSet<usize> = flows[3000..].iter().copied().collect();
        assert_eq!(active, (0..64).collect());
        assert_eq!(slf(&flows), 1.0);
    }
}

#[test]
fn flows_that_end_make_room_for_new_ones() {
    let lifetime = Lifetime { min: 3, max: 1000, shape: 1.2 };
    let seen = all(SynthConfig { lifetime: Some(lifetime), flows: 20, size: Size::Fixed(60), ..config() });
    let flows = flow_numbers(&seen);
    let mut counts: HashMap<usize, u64> = HashMap::new();
    for &f in &flows {
        *counts.entry(f).or_default() += 1;
    }
    // The last twenty may be cut off by the end of the trace.
    assert!(counts.len() > 1000);
    assert!(counts.values().filter(|&&c| c < 3).count() <= 20);
    assert!(counts.values().all(|&c| c <= 1000));
    let above_6 = counts.values().filter(|&&c| c >= 6).count() as f64 / counts.len() as f64;
    assert!((above_6 - 0.5_f64.powf(1.2)).abs() < 0.05, "P(X >= 6) = {above_6}");
}

#[test]
fn flows_are_as_many_as_asked_for() {
    let seen =
        all(SynthConfig { flows: 20_000, order: Order::RoundRobin, size: Size::Fixed(60), ..config() });
    assert_eq!(flow_numbers(&seen).iter().max(), Some(&19_999));
}

#[test]
fn the_same_seed_gives_the_same_bytes_everywhere() {
    let c = SynthConfig {
        packets: 10_000,
        zipf: 1.1,
        slf: 1.5,
        train: TrainModel::Geometric,
        arrivals: Arrivals::Poisson,
        lifetime: Some(Lifetime { min: 1, max: 1 << 40, shape: 1.1 }),
        protocol: slipstream::io::synth::Protocol::Mix(0.5),
        size: Size::Range(100, 1500),
        ipv6: 0.2,
        vlan: 0.2,
        seed: 7,
        ..config()
    };
    assert_eq!(fingerprint(c.clone()), GOLDEN);
    assert_ne!(fingerprint(SynthConfig { seed: 8, ..c }), GOLDEN);
}

/// A change of this number changes every trace that people have made with a seed.
const GOLDEN: u64 = 0x37ca_94f9_4be0_2415;
