//! Marks of super-frames in batches of trains.

use slipstream_core::batch::{Batch, Train};
use slipstream_core::frame::{Frame, Info};
use slipstream_core::pool::{PacketMeta, Pool};
use slipstream_core::time::Nanos;
use slipstream_wire::gro::{Limits, Refusal};
use slipstream_wire::{LinkType, classify};

use super::test_packets::{PSH, Packet};
use super::{Gro, GroStats};

/// Trains of these packets; `wire`: bytes that were on the wire beyond those captured.
fn batch(pool: &mut Pool, trains: &[Vec<Packet>], wire: u32) -> Batch {
    let mut batch = Batch::new();
    for (flow, packets) in trains.iter().enumerate() {
        let (start, len) = (batch.frames.len() as u32, packets.len() as u32);
        for packet in packets {
            let data = packet.frame();
            let len = data.len() as u32;
            let buf = pool.insert(PacketMeta { original_len: len + wire, ..PacketMeta::default() }, &data);
            let headers = classify(LinkType::Ethernet, &data).unwrap();
            let info = Info::new(&headers);
            batch.frames.push(Frame { info, ..Frame::unclassified(Nanos(0), buf, len) });
        }
        let (flow, release) = (flow as u32, Nanos(0));
        batch.trains.push(Train { flow, start, len, release, order: 0, sequence: 0, continues: false });
    }
    batch
}

fn segments(n: u32) -> Vec<Packet> {
    let at = |i: u32| Packet { seq: 1000 + 100 * i, ident: i as u16, payload: 100, ..Packet::default() };
    (0..n).map(at).collect()
}

/// The facts known of a packet that nobody has marked.
fn alone(pool: &Pool, frame: &Frame) -> Info {
    Info::new(&classify(LinkType::Ethernet, pool.data(frame.buf, frame.len)).unwrap())
}

fn marks(batch: &Batch) -> String {
    batch
        .iter()
        .map(|(_, frames)| {
            frames.iter().map(|f| if f.info.joins() { '+' } else { '.' }).collect::<String>() + " "
        })
        .collect()
}

#[test]
fn trains_become_super_frames_and_none_goes_beyond_its_train() {
    let limits = Limits { segments: 4, ..Limits::default() };
    let (mut pool, mut gro) = (Pool::new(), Gro::new(limits, true));
    let mut pushed = segments(5);
    pushed[1].flags |= PSH;
    let mut wrong = segments(4);
    wrong[2].tcp_checksum_error = 1;
    let mut first_wrong = segments(3);
    first_wrong[0].tcp_checksum_error = 1;
    // The last train goes on where the one before it ends.
    let trains = [segments(6), pushed, wrong, first_wrong, segments(1), segments(3)[1..].to_vec()];
    let mut batch = batch(&mut pool, &trains, 0);
    let before: Vec<Vec<u8>> = batch.frames.iter().map(|f| pool.data(f.buf, f.len).to_vec()).collect();
    gro.mark(&pool, &mut batch);
    assert_eq!(marks(&batch), ".+++.+ .+.++ .+.. ..+ . .+ ");
    let after: Vec<Vec<u8>> = batch.frames.iter().map(|f| pool.data(f.buf, f.len).to_vec()).collect();
    assert_eq!(before, after);
    let stats = gro.stats();
    let refused: Vec<_> = stats.refused().collect();
    assert_eq!(refused, [(Refusal::Checksum, 3), (Refusal::Limit, 1), (Refusal::Ended, 1)]);
    assert_eq!((stats.super_frames, stats.segments, stats.trains), (7, 17, 5));
    assert_eq!((stats.longest, stats.bytes), (440, 7 * 40 + 17 * 100));
    // Each packet of a train of two and more begins it, joins the one before, or is refused.
    assert_eq!(stats.trains + stats.merged() + refused.iter().map(|(_, n)| n).sum::<u64>(), 20);
    assert_eq!(stats.mean_segments(), Some(17.0 / 7.0));
    assert_eq!(GroStats::default().mean_segments(), None);
    let mut twice = stats.clone();
    twice.merge(&stats);
    let refused = stats.refused.map(|packets| 2 * packets);
    let sums = GroStats {
        super_frames: 14,
        segments: 34,
        bytes: 2 * stats.bytes,
        longest: 440,
        trains: 10,
        refused,
    };
    assert_eq!(twice, sums);
    // A stage that leaves checksums to ports marks the same but for these.
    batch.frames.iter_mut().for_each(|frame| *frame = Frame { info: alone(&pool, frame), ..*frame });
    let mut gro = Gro::new(limits, false);
    gro.mark(&pool, &mut batch);
    assert_eq!(marks(&batch), ".+++.+ .+.++ .+++ .++ . .+ ");
    let refused: Vec<_> = gro.stats().refused().collect();
    assert_eq!(refused, [(Refusal::Limit, 1), (Refusal::Ended, 1)]);
}

#[test]
fn packets_that_are_not_wholly_there_are_left_alone() {
    let (mut pool, mut gro) = (Pool::new(), Gro::new(Limits::default(), false));
    let mut batch = batch(&mut pool, &[segments(3)], 1);
    gro.mark(&pool, &mut batch);
    assert_eq!(marks(&batch), "... ");
    assert_eq!(gro.stats().refused().collect::<Vec<_>>(), [(Refusal::Truncated, 2)]);
}
