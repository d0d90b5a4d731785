//! Time of what runs per packet: classification by kind of frame with the hash of the key (fast paths and the
//! reference), hashes, checksums. Batches of 256 frames; divide by that, or read the throughput.
#![allow(missing_docs)]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use slipstream_wire::checksum::sum;
use slipstream_wire::{
    FlowKey, Headers, LinkType, Skip, ToeplitzKey, classify, classify_reference, rss_hash,
};

const BATCH: usize = 256;

/// An IP header for `next` and 20 bytes of transport header that vary with `n`.
fn ip(v6: bool, next: u8, n: usize) -> Vec<u8> {
    let [high, low] = (n as u16).to_be_bytes();
    let mut packet = if v6 {
        let mut header = vec![0x60, 0, 0, 0, 0, 20, next, 64];
        header.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, high, low]);
        header.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1]);
        header
    } else {
        vec![0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, next, 0, 0, 10, 0, high, low, 10, 1, 0, 1]
    };
    packet.extend([high, low, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    packet
}

fn frames(tags: &[u8], v6: bool, next: u8, length: usize) -> Vec<Vec<u8>> {
    let frame = |n| {
        let ethertype: [u8; 2] = if v6 { [0x86, 0xdd] } else { [8, 0] };
        let mut frame = [&[2; 12][..], tags, &ethertype, &ip(v6, next, n)].concat();
        frame.resize(length, 0);
        frame
    };
    (0..BATCH).map(frame).collect()
}

fn classification(c: &mut Criterion) {
    let kinds = [
        ("tcp", frames(&[], false, 6, 60)),
        ("udp", frames(&[], false, 17, 60)),
        ("udp-42-bytes", frames(&[], false, 17, 42)),
        ("tcp-tagged", frames(&[0x81, 0, 0, 5], false, 6, 64)),
        ("tcp-tagged-twice", frames(&[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6], false, 6, 68)),
        ("tcp-ipv6", frames(&[], true, 6, 74)),
        ("icmp", frames(&[], false, 1, 60)),
    ];
    ways(c, "classify", &kinds, |frame| classify(LinkType::Ethernet, frame));
    ways(c, "reference", &kinds, |frame| classify_reference(LinkType::Ethernet, frame));
}

/// Generic, so that what is meant to be inlined is. A stage uses the fields at once, so they are taken apart
/// here.
fn ways(
    c: &mut Criterion,
    way: &str,
    kinds: &[(&str, Vec<Vec<u8>>)],
    classify: impl Fn(&[u8]) -> Result<Headers, Skip>,
) {
    let mut group = c.benchmark_group(way);
    group.throughput(Throughput::Elements(BATCH as u64));
    for (kind, frames) in kinds {
        group.bench_function(*kind, |b| {
            b.iter(|| {
                frames.iter().fold(0, |all, frame| match classify(black_box(frame)) {
                    Ok(h) => all ^ h.key.hash64(7) ^ u64::from(h.l4) ^ u64::from(h.tcp_flags | h.flags.0),
                    Err(_) => all,
                })
            });
        });
    }
}

fn hashes(c: &mut Criterion) {
    let keys = |v6| -> Vec<FlowKey> {
        let frames = frames(&[], v6, 6, 74);
        frames.iter().filter_map(|frame| classify(LinkType::Ethernet, frame).ok()).map(|h| h.key).collect()
    };
    let toeplitz = ToeplitzKey::new(ToeplitzKey::SYMMETRIC);
    let mut group = c.benchmark_group("hash");
    group.throughput(Throughput::Elements(BATCH as u64));
    for (kind, keys) in [("ipv4", keys(false)), ("ipv6", keys(true))] {
        group.bench_function(format!("hash64-{kind}"), |b| {
            b.iter(|| keys.iter().fold(0, |all, key| all ^ black_box(key).hash64(7)));
        });
        group.bench_function(format!("rss-{kind}"), |b| {
            b.iter(|| keys.iter().fold(0, |all, key| all ^ rss_hash(black_box(key), &toeplitz)));
        });
    }
}

fn checksums(c: &mut Criterion) {
    let mut group = c.benchmark_group("sum");
    for length in [20, 64, 1500] {
        let data = vec![0xa5; length];
        group.throughput(Throughput::Bytes(length as u64));
        group.bench_function(format!("{length}-bytes"), |b| b.iter(|| sum(black_box(&data))));
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(30).measurement_time(std::time::Duration::from_millis(800)).warm_up_time(std::time::Duration::from_millis(300));
    targets = classification, hashes, checksums
}
criterion_main!(benches);
