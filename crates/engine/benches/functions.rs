//! Cost of the cores of the network functions, per look-up: over few flows (warm: everything in the cache)
//! and over many (cold: the table is larger than the cache), straight and with the lines asked for ahead.

#![allow(missing_docs, clippy::unwrap_used)]

use std::hint::black_box;

use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use slipstream::functions::balancer::{Backend, Balancer, BalancerConfig};
use slipstream::functions::conntrack::{Conntrack, ConntrackConfig, Tracked};
use slipstream::functions::maglev::{LARGE, Maglev, Member};
use slipstream::functions::meter::{Colour, FlowMeters, Marker, Meter};
use slipstream::functions::nat::{Kind, Nat, NatConfig, Packet, Side, Verdict, key_of};
use slipstream::functions::table::NONE;
use slipstream::time::Nanos;
use slipstream_wire::{Flags, FlowKey, Headers};

const LOOK_UPS: usize = 4096;
const CHUNK: usize = 64;
const NOW: Nanos = Nanos(1_700_000_000_000_000_000);
/// Everything in the cache, and nothing.
const FLOWS: [(&str, u32); 2] = [("warm_1k", 1024), ("cold_1m", 1_000_000)];

type Group<'a> = BenchmarkGroup<'a, criterion::measurement::WallTime>;

fn group<'a>(c: &'a mut Criterion, name: &str) -> Group<'a> {
    let mut group = c.benchmark_group(name);
    group.throughput(Throughput::Elements(LOOK_UPS as u64)).sample_size(20);
    group
}

/// Flow numbers in no order, the same at every run.
fn numbers(flows: u32) -> Vec<u32> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    (0..LOOK_UPS)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % u64::from(flows)) as u32
        })
        .collect()
}

/// UDP from an inside host, one of 50,000 ports of each.
fn from_inside(n: u32) -> Packet {
    let key = key_of(17, 0x0a00_0000 + n / 50_000, 1024 + (n % 50_000) as u16, 0x0808_0808, 53);
    Packet { key, kind: Kind::Opens, tcp_flags: 0 }
}

fn nat(c: &mut Criterion) {
    let mut group = group(c, "nat");
    for (name, flows) in FLOWS {
        let config = NatConfig {
            pool: (0..64).map(|n| (0xc000_0200_u32 + n).into()).collect(),
            pooling: slipstream::functions::nat::Pooling::Arbitrary,
            sessions: flows,
            mappings: flows,
            ..NatConfig::default()
        };
        let mut nat = Nat::new(&config).unwrap();
        for n in 0..flows {
            assert!(matches!(nat.outbound(&from_inside(n), NOW), Verdict::Rewrite { .. }));
        }
        let out: Vec<Packet> = numbers(flows).into_iter().map(from_inside).collect();
        let back: Vec<Packet> = out
            .iter()
            .map(|packet| {
                let Verdict::Rewrite { rewrite, .. } = nat.outbound(packet, NOW) else { return *packet };
                let key = slipstream::functions::nat::Tuple::of(rewrite.endpoints()).reversed().key();
                Packet { key, ..*packet }
            })
            .collect();
        group.bench_function(format!("outbound_{name}"), |b| {
            b.iter(|| {
                for packet in &out {
                    black_box(nat.outbound(packet, NOW));
                }
            });
        });
        group.bench_function(format!("outbound_ahead_{name}"), |b| {
            b.iter(|| {
                for packets in out.chunks(CHUNK) {
                    let mut hashes = [0; CHUNK];
                    for (packet, hash) in packets.iter().zip(&mut hashes) {
                        *hash = nat.hash(packet);
                        nat.prefetch_index(Side::Inside, *hash);
                    }
                    for hash in &hashes {
                        nat.prefetch_session(Side::Inside, *hash);
                    }
                    for packet in packets {
                        black_box(nat.outbound(packet, NOW));
                    }
                }
            });
        });
        group.bench_function(format!("inbound_{name}"), |b| {
            b.iter(|| {
                for packet in &back {
                    black_box(nat.inbound(packet, NOW));
                }
            });
        });
    }
    let mut frame = [0_u8; 60];
    frame[..20].copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 8, 8, 8, 8]);
    let mut nat = Nat::new(&NatConfig { pool: vec![[192, 0, 2, 1].into()], ..NatConfig::default() }).unwrap();
    let packet = Packet::read(&frame, 0).unwrap();
    let Verdict::Rewrite { rewrite, .. } = nat.outbound(&packet, NOW) else { return };
    group.throughput(Throughput::Elements(1));
    group.bench_function("apply", |b| b.iter(|| rewrite.apply(black_box(&mut frame), 0, 20)));
    group.finish();
}

fn conntrack(c: &mut Criterion) {
    let mut group = group(c, "conntrack");
    let read = |n: u32, back: bool| {
        let (host, server) = ((0x0a00_0000 + n / 50_000).to_be_bytes().into(), [192, 0, 2, 1].into());
        let key = FlowKey::new(&[], host, server, 17, 1024 + (n % 50_000) as u16, 53).unwrap();
        let key = if back { key.reversed() } else { key };
        Tracked::read(&[], &Headers { key, l3: 14, l4: 34, flags: Flags(Flags::PORTS), tcp_flags: 0, tos: 0 })
    };
    for (name, flows) in FLOWS {
        let mut tracker =
            Conntrack::new(&ConntrackConfig { connections_v4: flows, ..ConntrackConfig::default() });
        for n in 0..flows {
            let packet = read(n, false);
            let seen = tracker.look_up(&packet, NOW);
            tracker.accept(&packet, &seen, NOW).unwrap();
        }
        let packets: Vec<Tracked> = numbers(flows).into_iter().map(|n| read(n, n % 2 == 0)).collect();
        group.bench_function(format!("look_up_accept_{name}"), |b| {
            b.iter(|| {
                for packet in &packets {
                    let seen = tracker.look_up(packet, NOW);
                    let _ = black_box(tracker.accept(packet, &seen, NOW));
                }
            });
        });
    }
    group.finish();
}

fn meters(c: &mut Criterion) {
    let mut group = group(c, "meter");
    let single = Marker::SingleRate { cir: 8_000_000, cbs: 100_000, ebs: 100_000 };
    let two = Marker::TwoRate { cir: 8_000_000, cbs: 100_000, pir: 16_000_000, pbs: 100_000 };
    for (name, marker) in [("single_rate", single), ("two_rate", two)] {
        let mut meter = Meter::new(&marker, NOW);
        let mut now = NOW;
        group.bench_function(name, |b| {
            b.iter(|| {
                for _ in 0..LOOK_UPS {
                    now = now.after(1000);
                    black_box(meter.colour(&marker, 60, Colour::Green, now));
                }
            });
        });
    }
    let key = |n| FlowKey::new(&[], [10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, n as u16, 53).unwrap();
    let keys: Vec<FlowKey> = numbers(1024).into_iter().map(key).collect();
    let mut flows = FlowMeters::new(single, 1024, 7).unwrap();
    group.bench_function("flow_warm_1k", |b| {
        b.iter(|| {
            for key in &keys {
                let (marker, meter) = flows.meter(key, flows.prefetch(key), NOW);
                black_box(meter.colour(marker, 60, Colour::Green, NOW));
            }
        });
    });
    group.finish();
}

fn balancer(c: &mut Criterion) {
    let mut group = group(c, "maglev");
    let members: Vec<Member> = (0..100).map(|identity| Member { identity, weight: 1 }).collect();
    let maglev = Maglev::new(&members, LARGE).unwrap();
    let hashes: Vec<u64> =
        numbers(u32::MAX).into_iter().map(|n| u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    group.bench_function("place", |b| {
        b.iter(|| {
            for h in &hashes {
                black_box(maglev.backend(*h));
            }
        })
    });
    let key = |n: u32| FlowKey::new(&[], n.to_be_bytes().into(), [10, 0, 0, 2].into(), 6, 1000, 443).unwrap();
    for (name, flows) in FLOWS {
        let backends =
            (0..100).map(|n| Backend { address: [10, 1, 0, n].into(), weight: 1, healthy: true }).collect();
        let config = BalancerConfig { places: LARGE, connections: flows, idle: u64::MAX / 2, seed: 7 };
        let mut balancer = Balancer::new(&config, backends).unwrap();
        for n in 0..flows {
            balancer.choose(&key(n), NONE, NOW);
        }
        let keys: Vec<FlowKey> = numbers(flows).into_iter().map(key).collect();
        group.bench_function(format!("affinity_{name}"), |b| {
            b.iter(|| {
                for key in &keys {
                    black_box(balancer.choose(key, NONE, NOW));
                }
            });
        });
    }
    group.sample_size(10).throughput(Throughput::Elements(u64::from(LARGE)));
    group.bench_function("build_100", |b| b.iter(|| Maglev::new(black_box(&members), LARGE).unwrap()));
    group.finish();
}

criterion_group!(benches, nat, conntrack, meters, balancer);
criterion_main!(benches);
