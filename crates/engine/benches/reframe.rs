//! The reframe stage and its parts: flow table, hold and release, ACK compressor.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::hint::black_box;
use std::ops::ControlFlow;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use slipstream::batch::{Arrivals, Batch, Train};
use slipstream::classify::Classifier;
use slipstream::frame::Frame;
use slipstream::pool::{PacketMeta, Pool};
use slipstream::reframe::compress::{AckCompressor, AckState, Gro, PacketView};
use slipstream::reframe::flow_table::{FlowTable, NONE};
use slipstream::reframe::{ClassSettings, Policy, ReframeConfig};
use slipstream::rules::Rule;
use slipstream::runtime::{NullSink, Preload, Replay};
use slipstream::time::Nanos;
use slipstream_wire::checksum::{fill_ip, fill_transport};
use slipstream_wire::gro::Limits;
use slipstream_wire::{FlowKey, LinkType, NarrowKey, classify};

const PACKETS: usize = 200_000;

fn udp(flow: u32) -> [u8; 60] {
    let mut p = [0u8; 60];
    p[12..15].copy_from_slice(&[8, 0, 0x45]);
    p[16..18].copy_from_slice(&46u16.to_be_bytes());
    p[22..24].copy_from_slice(&[64, 17]);
    p[26..30].copy_from_slice(&(0x0a00_0000 + flow).to_be_bytes());
    p[30..38].copy_from_slice(&[192, 168, 0, 1, 3, 232, 0, 53]);
    p
}

fn flows(n: u32, random: bool) -> Vec<u32> {
    let mut x = 0x1234_5678_9abc_def0u64;
    let mut next = |i: usize| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        if random { (x >> 20) as u32 % n } else { i as u32 % n }
    };
    (0..PACKETS).map(&mut next).collect()
}

/// The whole data path in memory: parse, classify, hold, release, all statistics.
fn hold_and_release(c: &mut Criterion) {
    let mut group = c.benchmark_group("hold_and_release");
    group.throughput(Throughput::Elements(PACKETS as u64)).sample_size(20);
    let rows = [
        ("1k_flows_trains_of_1", 1024, false, 64_000, Policy::Oldest),
        ("1k_flows_trains_of_17", 1024, false, 1_700_000, Policy::Oldest),
        ("1k_flows_random", 1024, true, 1_700_000, Policy::Oldest),
        ("200k_flows_random", 200_000, true, 64_000, Policy::Oldest),
        ("200k_flows_random_waiting", 200_000, true, 64_000, Policy::Waiting),
    ];
    for (name, n, random, hold_ns, policy) in rows {
        let frames: Vec<_> = flows(n, random).into_iter().map(udp).collect();
        let config = ReframeConfig {
            default: ClassSettings { hold_ns, hold_min_ns: None, burst: 32, weight: 1, bypass: false },
            capacity: 65_536,
            policy,
            bypass: Rule::parse("tcp syn").unwrap(),
            ..ReframeConfig::default()
        };
        let load = || {
            let mut pool = Pool::new();
            let timed = frames.iter().enumerate().map(|(i, f)| (Nanos(i as u64 * 100), f.as_slice()));
            (Preload::from_frames(timed, &mut pool, 1), pool)
        };
        group.bench_function(name, |b| {
            b.iter_batched(
                load,
                |(source, pool)| {
                    Replay::new(&config)
                        .unwrap()
                        .run(source, pool, NullSink, &mut |_| ControlFlow::Continue(()))
                        .unwrap()
                },
                BatchSize::LargeInput,
            );
        });
    }
    group.finish();
}

fn flow_table(c: &mut Criterion) {
    let mut group = c.benchmark_group("flow_table");
    group.throughput(Throughput::Elements(PACKETS as u64)).sample_size(20);
    for n in [1024, 65_536, 1_000_000] {
        let key = |flow| FlowKey::Narrow(NarrowKey([u64::from(flow), 17 << 24]));
        let keys: Vec<FlowKey> = flows(n, true).into_iter().map(key).collect();
        let mut table = FlowTable::new(1 << 20, 7);
        group.bench_function(format!("look_up_{n}"), |b| {
            b.iter(|| {
                for keys in keys.chunks(64) {
                    let mut hashes = [0; 64];
                    let mut candidates = [NONE; 64];
                    for (key, hash) in keys.iter().zip(&mut hashes) {
                        *hash = table.hash(key);
                        table.prefetch_index(*hash);
                    }
                    for (hash, candidate) in hashes.iter().zip(&mut candidates) {
                        *candidate = table.candidate(*hash);
                    }
                    for ((key, hash), candidate) in keys.iter().zip(&hashes).zip(&candidates) {
                        black_box(table.entry(key, *hash, *candidate, Nanos(0)));
                    }
                }
            });
        });
    }
    group.finish();
}

/// Trains of 16 pure ACKs, each of which lets its predecessor go.
fn ack_compressor(c: &mut Criterion) {
    let ack = |n: u32| {
        let mut p = udp(1);
        p[16..18].copy_from_slice(&40u16.to_be_bytes());
        p[23] = 6;
        p[42..46].copy_from_slice(&(n * 1460).to_be_bytes());
        p[46..50].copy_from_slice(&[0x50, 0x10, 16, 0]);
        let headers = slipstream_wire::classify(slipstream_wire::LinkType::Ethernet, &p).unwrap();
        slipstream_wire::checksum::fill_ip(&mut p, &headers);
        slipstream_wire::checksum::fill_transport(&mut p, &headers);
        p
    };
    let frames: Vec<_> = (1..=16).map(ack).collect();
    let views: Vec<_> = frames.iter().map(|data| PacketView { data, l3: 14, l4: 34 }).collect();
    let mut keep = Vec::new();
    let mut group = c.benchmark_group("ack_compressor");
    group.throughput(Throughput::Elements(16));
    group.bench_function("train_of_16", |b| {
        b.iter(|| {
            let mut state = AckState::default();
            AckCompressor.compress(&mut state, black_box(&views), &mut keep)
        });
    });
    group.finish();
}

/// Marks of super-frames in trains of 16 segments, `payload` bytes each; what it costs a packet.
fn super_frames(c: &mut Criterion) {
    let mut group = c.benchmark_group("super_frames");
    group.throughput(Throughput::Elements(256));
    for payload in [6_usize, 1460] {
        let (mut pool, mut arrivals) = (Pool::new(), Arrivals::default());
        let mut classifier = Classifier::default();
        classifier.links(&[LinkType::Ethernet]);
        for n in 0..256_u32 {
            let mut frame = vec![2_u8; 12];
            frame.extend([8, 0, 0x45, 0]);
            frame.extend((40 + payload as u16).to_be_bytes());
            frame.extend((n as u16).to_be_bytes());
            frame.extend([0x40, 0, 64, 6, 0, 0, 10, 0, 0, (n / 16) as u8, 10, 0, 0, 2, 1, 1, 2, 2]);
            frame.extend((n % 16 * payload as u32).to_be_bytes());
            frame.extend([0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
            frame.resize(54 + payload, 7);
            let headers = classify(LinkType::Ethernet, &frame).unwrap();
            fill_ip(&mut frame, &headers);
            fill_transport(&mut frame, &headers);
            let meta = PacketMeta { original_len: frame.len() as u32, ..PacketMeta::default() };
            let buf = pool.insert(meta, &frame);
            arrivals.frames.push(Frame::unclassified(Nanos(0), buf, frame.len() as u32));
        }
        classifier.classify(&pool, &mut arrivals);
        let (mut batch, mut gro) = (Batch::new(), Gro::new(Limits::default(), false));
        for flow in 0..16 {
            let (start, len, release) = (16 * flow, 16, Nanos(0));
            batch.trains.push(Train { flow, start, len, release, order: 0, sequence: 0, continues: false });
        }
        group.bench_function(BenchmarkId::from_parameter(payload), |b| {
            b.iter(|| {
                batch.frames.clear();
                batch.frames.extend_from_slice(&arrivals.frames);
                gro.mark(&pool, black_box(&mut batch));
            });
        });
        assert_eq!(gro.stats().mean_segments(), Some(16.0));
    }
    group.finish();
}

criterion_group!(benches, hold_and_release, flow_table, ack_compressor, super_frames);
criterion_main!(benches);
