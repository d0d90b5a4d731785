//! The cost of a packet: one million packets in memory, snap length 96, the default three windows.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a benchmark")]
#![allow(missing_docs, reason = "criterion's macros make public items")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Zipf};
use slipstream_trace::{Analyzer, Config};
use slipstream_wire::LinkType;
use std::hint::black_box;

const PACKETS: usize = 1_000_000;
const SNAP: usize = 96;

/// Packets back to back, `SNAP` bytes each, with their times.
struct Capture {
    bytes: Vec<u8>,
    times: Vec<u64>,
}

/// `flows` flows, Zipf-distributed, in geometric bursts of two on average, at a million packets a second;
/// nine in ten are TCP, every third packet of these a pure acknowledgement.
fn capture(flows: u32) -> Capture {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let zipf = Zipf::new(f64::from(flows), 1.1).unwrap();
    let (mut bytes, mut times) = (Vec::with_capacity(PACKETS * SNAP), Vec::with_capacity(PACKETS));
    let (mut now, mut flow) = (1_700_000_000_000_000_000, 1);
    for n in 0..PACKETS as u32 {
        if rng.random_bool(0.5) {
            flow = zipf.sample(&mut rng) as u32;
        }
        now += rng.random_range(1..2000);
        times.push(now);
        let start = bytes.len();
        bytes.resize(start + SNAP, 0);
        frame(&mut bytes[start..], flow, n, rng.random_bool(0.33));
    }
    Capture { bytes, times }
}

fn frame(frame: &mut [u8], flow: u32, n: u32, pure_ack: bool) {
    let tcp = !flow.is_multiple_of(10);
    let total: u16 = if pure_ack { 40 } else { 1500 };
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    frame[23] = if tcp { 6 } else { 17 };
    frame[26..30].copy_from_slice(&flow.wrapping_mul(0x9e37_79b1).to_be_bytes());
    frame[30..34].copy_from_slice(&[10, 0, 0, 1]);
    frame[34..36].copy_from_slice(&(1024 + flow as u16 % 50_000).to_be_bytes());
    frame[36..38].copy_from_slice(&[0, 80]);
    if tcp {
        frame[42..46].copy_from_slice(&n.to_be_bytes());
        frame[46] = 0x50;
        frame[47] = 0x10;
    }
}

fn analyze(capture: &Capture, threads: usize) -> u64 {
    let mut analyzer = Analyzer::new(Config { threads, ..Config::default() }).unwrap();
    for (bytes, time) in capture.bytes.chunks_exact(SNAP).zip(&capture.times) {
        analyzer.packet(*time, LinkType::Ethernet, 1514, bytes);
    }
    analyzer.finish().report().ip.runs
}

fn bench(c: &mut Criterion) {
    let mut group = c.benchmark_group("analyze");
    group.throughput(Throughput::Elements(PACKETS as u64)).sample_size(10);
    for (name, flows) in [("10k flows", 10_000), ("500k flows", 500_000)] {
        let capture = capture(flows);
        for threads in [1, 2] {
            group.bench_function(format!("{name}, threads {threads}"), |b| {
                b.iter(|| black_box(analyze(&capture, threads)));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
