//! The campus profile agrees with what the Reframer paper publishes of its trace, for every seed.

use std::collections::HashMap;

use crate::synth_support::{Flow, Seen, all, check_tcp, fingerprint, flow_numbers, slf, slf_held};
use slipstream::io::synth::{Profile, SynthConfig};

fn config(seed: u64, copies: u32, packets: u64) -> SynthConfig {
    SynthConfig { profile: Profile::Campus, seed, copies, packets, ..SynthConfig::default() }
}

fn gbps(seen: &[Seen]) -> f64 {
    let bits: usize = seen.iter().map(|p| p.len * 8).sum();
    bits as f64 / (seen.last().unwrap().time - seen[0].time) as f64
}

/// From the campus?
fn outward(flow: &Flow) -> bool {
    flow.src[0] == 10 || flow.src[..4] == [0x20, 1, 0x0d, 0xb8]
}

fn between(what: &str, value: f64, lo: f64, hi: f64) {
    assert!((lo..=hi).contains(&value), "{what}: {value} is not in {lo}..={hi}");
}

#[test]
fn one_copy_has_the_figures_of_the_paper() {
    for seed in [1, 2, 3] {
        let seen = all(config(seed, 1, 200_000));
        let flows = flow_numbers(&seen);
        let times: Vec<u64> = seen.iter().map(|p| p.time).collect();
        // §5.1: about 1.2, 1.9, 2.9, 3.3.
        between("SLF", slf(&flows), 1.15, 1.25);
        between("SLF held 16 us", slf_held(&times, &flows, 16_000), 1.8, 2.0);
        between("SLF held 64 us", slf_held(&times, &flows, 64_000), 2.75, 3.05);
        between("SLF held 128 us", slf_held(&times, &flows, 128_000), 3.15, 3.45);
        // §3: 2.2 Gbps; 1069 bytes out, 883 in.
        between("Gbps", gbps(&seen), 2.09, 2.31);
        let mean = |out: bool| {
            let lens: Vec<usize> = seen.iter().filter(|p| outward(&p.flow) == out).map(|p| p.len).collect();
            lens.iter().sum::<usize>() as f64 / lens.len() as f64
        };
        between("mean frame out", mean(true), 1016.0, 1122.0);
        between("mean frame in", mean(false), 839.0, 935.0);
        between("mean frame", seen.iter().map(|p| p.len).sum::<usize>() as f64 / 200_000.0, 900.0, 1100.0);
    }
}

#[test]
fn tcp_has_the_distances_of_the_paper() {
    for seed in [4, 5] {
        let seen: Vec<Seen> = all(config(seed, 1, 200_000)).into_iter().filter(|p| p.tcp.is_some()).collect();
        let flows = flow_numbers(&seen);
        let mut last: HashMap<usize, usize> = HashMap::new();
        let mut sizes: HashMap<usize, usize> = HashMap::new();
        let (mut apart, mut gaps) = (0, Vec::new());
        for (i, &flow) in flows.iter().enumerate() {
            *sizes.entry(flow).or_default() += 1;
            if let Some(before) = last.insert(flow, i) {
                apart += usize::from(i - before > 1);
                gaps.push(seen[i].time - seen[before].time);
            }
        }
        // Fig. 7a: 60 % in, 75 % out. Fig. 7b: below a few tens of microseconds, typically.
        between("share of distances above 1", apart as f64 / gaps.len() as f64, 0.60, 0.75);
        gaps.sort_unstable();
        between("median gap in us", gaps[gaps.len() / 2] as f64 / 1e3, 1.0, 30.0);
        // §3: flow sizes from 1, mean 63 and 137.
        between("mean flow", flows.len() as f64 / sizes.len() as f64, 45.0, 137.0);
        assert!(sizes.values().any(|&n| n == 1));
        assert!(sizes.values().any(|&n| n > 1000), "no elephant");
    }
}

#[test]
fn connections_make_sense() {
    let seen = all(config(9, 2, 300_000));
    let (opened, closed) = check_tcp(&seen);
    assert!(opened > 300 && closed > 150, "{opened} opened, {closed} closed");
    let has = |f: &dyn Fn(&Seen) -> bool| seen.iter().filter(|p| f(p)).count();
    assert!(has(&|p| p.flow.src.len() == 16) > 1000, "IPv6");
    assert!(has(&|p| p.flow.sport == 53 || p.flow.dport == 53) > 100, "DNS");
    assert!(has(&|p| matches!(p.flow.protocol, 1 | 58)) > 10, "ICMP");
    assert!(has(&|p| p.flow.protocol == 17) > 50_000, "UDP");
}

#[test]
fn copies_share_no_flow_and_add_up() {
    for copies in [4, 8] {
        let seen = all(config(3, copies, 200_000));
        between("Gbps a copy", gbps(&seen) / f64::from(copies), 2.09, 2.31);
        // A copy is known by its campus addresses: each sends its share.
        let mut sent: HashMap<u8, usize> = HashMap::new();
        for p in &seen {
            let campus = if outward(&p.flow) { &p.flow.src } else { &p.flow.dst };
            *sent.entry(if campus.len() == 4 { campus[1] } else { campus[7] }).or_default() += 1;
        }
        assert_eq!(sent.len(), copies as usize);
        assert!(sent.values().all(|&n| n as u32 > 200_000 / copies * 8 / 10));
        let (flows, times) = (flow_numbers(&seen), seen.iter().map(|p| p.time).collect::<Vec<_>>());
        // Holding gains the same, however many are superposed.
        between("SLF held 64 us", slf_held(&times, &flows, 64_000), 2.75, 3.05);
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes_everywhere() {
    let golden = fingerprint(config(7, 2, 10_000));
    assert_eq!(golden, GOLDEN);
    assert_ne!(fingerprint(config(8, 2, 10_000)), GOLDEN);
}

#[test]
fn traffic_begins_at_once() {
    let seen = all(SynthConfig { start: 1_700_000_000_000_000_000, ..config(1, 1, 100) });
    assert!(seen[0].time - 1_700_000_000_000_000_000 < 1_000_000);
}

/// A change of this number changes every trace that people have made with a seed.
const GOLDEN: u64 = 0x90cf_2155_4281_a82c;
