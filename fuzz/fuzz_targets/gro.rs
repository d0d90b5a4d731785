//! Packets of a flow with any bytes of theirs changed, and any limits: what is put into super-frames is, when
//! these are cut again, what came, byte for byte; and no packet is joined whose checksums are wrong.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slipstream::batch::{Arrivals, Batch, Train};
use slipstream::classify::Classifier;
use slipstream::frame::Frame;
use slipstream::io::super_frame::there_and_back;
use slipstream::pool::{PacketMeta, Pool};
use slipstream::reframe::compress::Gro;
use slipstream::time::Nanos;
use slipstream_wire::checksum::{Verdict, fill_ip, fill_transport, verify_ip, verify_transport};
use slipstream_wire::gro::Limits;
use slipstream_wire::{LinkType, classify};

/// The packet with this number of a flow.
fn packet(v6: bool, udp: bool, tag: bool, number: u16, size: u16, len: u16) -> Vec<u8> {
    let mut transport = vec![0x10, 0, 0x20, 0];
    if udp {
        transport.extend((8 + len).to_be_bytes());
        transport.extend([0, 0]);
    } else {
        let seq = 0xffff_ff80_u32.wrapping_add(u32::from(number) * u32::from(size));
        transport.extend(seq.to_be_bytes());
        transport.extend([0, 0, 0, 1, 0x80, 0x10, 1, 0, 0, 0, 0, 0]);
        transport.extend([1, 1, 8, 10, 0, 0, 0, 5, 0, 0, 0, 6]);
    }
    transport.extend((0..len).map(|n| n as u8));
    let mut frame = vec![2; 12];
    if tag {
        frame.extend([0x81, 0, 0, 9]);
    }
    let protocol = if udp { 17 } else { 6 };
    if v6 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend((transport.len() as u16).to_be_bytes());
        frame.extend([protocol, 64]);
        frame.extend([0x20; 32]);
    } else {
        frame.extend([8, 0, 0x45, 0]);
        frame.extend((20 + transport.len() as u16).to_be_bytes());
        frame.extend(0xfffe_u16.wrapping_add(number).to_be_bytes());
        frame.extend([0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    }
    frame.extend(transport);
    frame
}

fuzz_target!(|data: &[u8]| {
    let Some(([kind, size, bytes, segments], mut rest)) = data.split_first_chunk::<4>() else { return };
    let (size, bit) = (u16::from(*size) + 1, |n: u8| kind >> n & 1 == 1);
    let limits = Limits { bytes: u32::from(*bytes) * 257, segments: u16::from(*segments).max(2) };
    let (mut pool, mut arrivals) = (Pool::new(), Arrivals::default());
    let mut number = 0;
    while let Some(([shorter, edits], after)) = rest.split_first_chunk::<2>() {
        rest = after;
        let len = size.saturating_sub(u16::from(shorter & 0x7f));
        let mut frame = packet(bit(0), bit(1), bit(2), number, size, len);
        number += 1;
        let fill = |frame: &mut Vec<u8>| {
            if let Ok(headers) = classify(LinkType::Ethernet, frame) {
                fill_ip(frame, &headers);
                fill_transport(frame, &headers);
            }
        };
        let right = edits & 0x80 == 0;
        if !right {
            fill(&mut frame);
        }
        for _ in 0..edits & 3 {
            let Some(([at, value], after)) = rest.split_first_chunk::<2>() else { break };
            rest = after;
            if let Some(byte) = frame.get_mut(usize::from(*at)) {
                *byte = *value;
            }
        }
        if right {
            fill(&mut frame);
        }
        if shorter & 0x80 != 0 {
            frame.truncate(frame.len() - usize::from(edits >> 2 & 0x1f).min(frame.len()));
        }
        let meta = PacketMeta { original_len: frame.len() as u32, ..PacketMeta::default() };
        let buf = pool.insert(meta, &frame);
        arrivals.frames.push(Frame::unclassified(Nanos(0), buf, frame.len() as u32));
    }
    let mut classifier = Classifier::default();
    classifier.links(&[LinkType::Ethernet]);
    classifier.classify(&pool, &mut arrivals);
    let mut batch = Batch::new();
    for frames in arrivals.frames.chunks(256) {
        let (start, len) = (batch.frames.len() as u32, frames.len() as u32);
        batch.frames.extend_from_slice(frames);
        batch.trains.push(Train { flow: 0, start, len, release: Nanos(0), order: 0, sequence: 0, continues: false });
    }
    let mut gro = Gro::new(limits, true);
    gro.mark(&pool, &mut batch);
    let joined = batch.frames.iter().filter(|f| f.info.joins()).count() as u64;
    assert_eq!(gro.stats().merged(), joined);
    for pair in batch.frames.windows(2).filter(|pair| pair[1].info.joins()) {
        for frame in pair {
            let bytes = pool.data(frame.buf, frame.len);
            let headers = classify(LinkType::Ethernet, bytes).unwrap();
            assert_eq!(verify_transport(bytes, &headers), Verdict::Right);
            assert_ne!(verify_ip(bytes, &headers), Verdict::Wrong);
        }
    }
    let mut came = batch.frames.iter();
    there_and_back(&pool, &batch.frames, &mut |bytes| {
        let frame = came.next().unwrap();
        assert_eq!(bytes, pool.data(frame.buf, frame.len));
    });
    assert_eq!(came.next(), None);
});
