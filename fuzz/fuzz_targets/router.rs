//! Any frames through a router, per train and per packet: the same leaves, nothing is lost, nothing panics.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slipstream::batch::{Batch, Train};
use slipstream::frame::{Frame, Info};
use slipstream::functions::router::{Router, interfaces};
use slipstream::functions::{PerPacket, PerTrain};
use slipstream::pool::{PacketMeta, Pool};
use slipstream::reframe::Output;
use slipstream::stage::{Context, Observe, Stage};
use slipstream::time::Nanos;
use slipstream_wire::{LinkType, classify};

#[derive(Default)]
struct Collect(Vec<(u8, u64, Vec<u8>)>);

impl Output for Collect {
    fn emit(&mut self, pool: &mut Pool, batch: &mut Batch) {
        for (i, (train, frames)) in batch.iter().enumerate() {
            for frame in frames {
                let port = batch.ports.get(i).copied().unwrap_or(0);
                let time = train.release.max(frame.arrival).0;
                self.0.push((port, time, pool.data(frame.buf, frame.len).to_vec()));
                pool.free(frame.buf);
            }
        }
        batch.clear();
    }
}

/// Frames: two bytes of length and gap, then that many bytes, the first half of the addresses filled in.
fn frames(mut data: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let (mut all, mut now) = (Vec::new(), 0);
    while let [len, gap, rest @ ..] = data {
        let (frame, after) = rest.split_at(usize::from(*len).min(rest.len()));
        now += u64::from(*gap) << 22;
        let head: &[u8] = if gap & 1 == 0 { &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9] } else { &[] };
        all.push((now, [head, frame].concat()));
        data = after;
    }
    all
}

fn run(stage: &mut dyn Stage, sent: &[(u64, Vec<u8>)]) -> Vec<(u8, u64, Vec<u8>)> {
    let (mut pool, mut batch, mut out) = (Pool::new(), Batch::new(), Collect::default());
    let mut last = None;
    for (start, (time, data)) in sent.iter().enumerate() {
        let now = Nanos(*time);
        let meta = PacketMeta { original_len: data.len() as u32, interface: 0, time: now };
        let buf = pool.insert(meta, data);
        let headers = classify(LinkType::Ethernet, data).ok();
        let info = headers.map_or(Info::default(), |h| Info::new(&h));
        batch.frames.push(Frame { info, ..Frame::unclassified(now, buf, data.len() as u32) });
        let key = headers.map(|h| h.key);
        match batch.trains.last_mut() {
            Some(train) if key.is_some() && key == last => train.len += 1,
            _ => batch.trains.push(Train {
                flow: 0,
                start: start as u32,
                len: 1,
                release: now,
                order: 0,
                sequence: 0,
                continues: false,
            }),
        }
        last = key;
    }
    let links = [LinkType::Ethernet];
    let mut cx = Context { now: Nanos(0), pool: &mut pool, input: 0, links: &links };
    stage.process(&mut cx, &mut batch, &mut out);
    assert_eq!(pool.live(), stage.held());
    out.0
}

fuzz_target!(|data: &[u8]| {
    let texts = [
        "a 192.0.2.1/24 2001:db8:a::1/64 02:00:00:00:00:01",
        "b 198.51.100.1/24 2001:db8:b::1/64 02:00:00:00:00:02 mtu 1280",
    ];
    let router = || Router::with_defaults(interfaces(texts.into_iter()).unwrap(), 3);
    let sent = frames(data);
    let (mut trains, mut single) = (PerTrain::new(router()), PerPacket::new(router()));
    assert_eq!(run(&mut trains, &sent), run(&mut single, &sent));
    assert_eq!(trains.drops(), single.drops());
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = interfaces(text.lines());
    }
});
