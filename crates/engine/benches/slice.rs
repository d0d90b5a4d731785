//! Cost of slicing, a packet: slice and splice with the payload in place and copied, beside a copy of the
//! payload in and out alone; and what a packet below the threshold costs.
//!
//! `valgrind --tool=callgrind` counts the instructions of the same ways: `--profile-time 1 in-place` runs one
//! of them alone.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use slipstream::frame::Frame;
use slipstream::pool::{PacketMeta, Pool};
use slipstream::slice::{PayloadTable, SliceConfig, Sliced, Slicer, Splicer, Storage, TokenKey, TokenMode};
use slipstream::time::Nanos;
use slipstream_wire::checksum::{fill_ip, fill_transport};
use slipstream_wire::{LinkType, classify};

const LINK: LinkType = LinkType::Ethernet;
/// Packets under way at a time.
const BATCH: usize = 32;

/// A TCP segment over IPv4, `len` bytes as a frame without its check sequence.
fn packet(len: usize, n: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    frame.extend([0x45, 0]);
    frame.extend(((len - 14) as u16).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, n as u8, 10, 0, 0, 2]);
    frame.extend([4, 1, 0, 80, 0, 0, 0, 7, 0, 0, 0, 9, 0x50, 0x10, 2, 0, 0, 0, 0, 0]);
    frame.extend((0..len - frame.len()).map(|b| (b * 7 + n) as u8));
    let headers = classify(LINK, &frame).unwrap();
    fill_ip(&mut frame, &headers);
    fill_transport(&mut frame, &headers);
    frame
}

fn config(storage: Storage, mode: TokenMode) -> SliceConfig {
    SliceConfig { storage, mode, key: TokenKey::from_seed(1), ..SliceConfig::default() }
}

fn ends(config: &SliceConfig) -> (PayloadTable, Slicer, Splicer) {
    (PayloadTable::new(config, 0).unwrap(), Slicer::new(config).unwrap(), Splicer::new(config).unwrap())
}

fn in_place(c: &mut Criterion, name: &str, len: usize, mode: TokenMode) {
    let mut group = c.benchmark_group("slice");
    group.throughput(Throughput::Elements(BATCH as u64));
    let (mut table, mut slicer, mut splicer) = ends(&config(Storage::InPlace, mode));
    let mut pool = Pool::new();
    let mut frames: Vec<Frame> = (0..BATCH)
        .map(|n| {
            let bytes = packet(len, n);
            let meta = PacketMeta { original_len: len as u32, ..PacketMeta::default() };
            Frame::unclassified(Nanos(0), pool.insert(meta, &bytes), len as u32)
        })
        .collect();
    group.bench_function(name, |b| {
        b.iter(|| {
            for frame in &mut frames {
                black_box(slicer.slice_frame(&mut table, &mut pool, LINK, frame, Nanos(1), 0));
            }
            for frame in &mut frames {
                black_box(splicer.splice_frame(&mut table, &mut pool, LINK, frame, Nanos(2)).unwrap());
            }
        });
    });
    assert!(frames.iter().enumerate().all(|(n, f)| pool.data(f.buf, f.len) == packet(len, n)));
    group.finish();
}

/// Payloads that are copied, and beside it the same bytes to as many places and back, and nothing else:
/// `packets` over and over, through a table of `entries`.
fn copied(c: &mut Criterion, heat: &str, packets: usize, entries: usize) {
    let mut group = c.benchmark_group("slice");
    group.throughput(Throughput::Elements(BATCH as u64));
    let storage = Storage::Copied { entry_bytes: 1536 };
    let config = SliceConfig { entries: entries as u32, ..config(storage, TokenMode::Keyed) };
    let (mut table, mut slicer, mut splicer) = ends(&config);
    let mut buffers: Vec<Vec<u8>> = (0..packets).map(|n| packet(1518, n)).collect();
    let mut lens = [0; BATCH];
    let mut next = 0;
    group.bench_function(format!("copied{heat}/1518"), |b| {
        b.iter(|| {
            let batch = &mut buffers[next..next + BATCH];
            next = (next + BATCH) % packets;
            for (buffer, len) in batch.iter_mut().zip(&mut lens) {
                match slicer.slice(&mut table, LINK, buffer, 1518, Nanos(1)) {
                    Sliced::Sliced { len: sliced, .. } => *len = sliced,
                    other => panic!("{other:?}"),
                }
            }
            for (buffer, len) in batch.iter_mut().zip(&lens) {
                black_box(splicer.splice(&mut table, LINK, buffer, *len, Nanos(2)).unwrap());
            }
        });
    });
    let mut rooms = vec![0u8; 1536 * entries];
    let (mut next, mut place) = (0, 0);
    group.bench_function(format!("copy-alone{heat}/1518"), |b| {
        b.iter(|| {
            let batch = &mut buffers[next..next + BATCH];
            let room = &mut rooms[place * 1536..(place + BATCH) * 1536];
            (next, place) = ((next + BATCH) % packets, (place + BATCH) % entries);
            for (buffer, room) in batch.iter_mut().zip(room.chunks_exact_mut(1536)) {
                room[..1464].copy_from_slice(black_box(&buffer[54..]));
            }
            for (buffer, room) in batch.iter_mut().zip(room.chunks_exact(1536)) {
                buffer[54..].copy_from_slice(black_box(&room[..1464]));
            }
        });
    });
    group.finish();
}

fn small(c: &mut Criterion, name: &str, entries: u32) {
    let mut group = c.benchmark_group("slice");
    group.throughput(Throughput::Elements(BATCH as u64));
    let config = SliceConfig { entries, ..config(Storage::InPlace, TokenMode::Keyed) };
    let (mut table, mut slicer, _) = ends(&config);
    let mut pool = Pool::new();
    let mut frames: Vec<Frame> = (0..BATCH)
        .map(|n| {
            let len = 64 + n;
            let buf = pool.insert(PacketMeta::default(), &packet(len, n));
            Frame::unclassified(Nanos(0), buf, len as u32)
        })
        .collect();
    group.bench_function(name, |b| {
        b.iter(|| {
            for frame in &mut frames {
                black_box(slicer.slice_frame(&mut table, &mut pool, LINK, frame, Nanos(1), 0));
            }
        });
    });
    group.finish();
}

fn all(c: &mut Criterion) {
    in_place(c, "in-place/1518", 1518, TokenMode::Keyed);
    in_place(c, "in-place/512", 512, TokenMode::Keyed);
    in_place(c, "in-place-paper/1518", 1518, TokenMode::Paper);
    copied(c, "", BATCH, 1024);
    // Neither packets nor entries stay in a cache: both ways wait for memory.
    copied(c, "-cold", 32_768, 32_768);
    small(c, "below-threshold/64", 1024);
    // Every last eight bytes could name an entry.
    small(c, "below-threshold/64-of-65536", 65_536);
}

criterion_group!(benches, all);
criterion_main!(benches);
