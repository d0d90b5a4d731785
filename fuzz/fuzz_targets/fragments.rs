//! Any packets before a firewall that decides about whole datagrams: nothing panics, nothing is lost, every
//! bound holds, and a datagram leaves as a whole.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slipstream::batch::{Batch, Train};
use slipstream::frame::{Frame, Info};
use slipstream::functions::firewall::{Firewall, FirewallStage, Method, RuleSet};
use slipstream::functions::{FragmentLimits, PerTrain};
use slipstream::pool::{PacketMeta, Pool};
use slipstream::reframe::Output;
use slipstream::stage::{Context, Observe, Stage};
use slipstream::time::Nanos;
use slipstream_wire::{LinkType, classify};

const FRAGMENTS: u32 = 8;

#[derive(Default)]
struct Count(u64);

impl Output for Count {
    fn emit(&mut self, pool: &mut Pool, batch: &mut Batch) {
        self.0 += batch.frames.len() as u64;
        batch.frames.iter().for_each(|frame| pool.free(frame.buf));
        batch.clear();
    }
}

fuzz_target!(|data: &[u8]| {
    let rules = RuleSet::parse("deny udp dst port 53\ndefault allow").unwrap();
    let mut firewall = FirewallStage::new(Firewall::new(rules, Method::Linear), 0, true, 1);
    let limits = FragmentLimits { fragments: FRAGMENTS, bytes: 2000, ..FragmentLimits::default() };
    firewall.reassemble(limits);
    let mut stage = PerTrain::new(firewall);
    let (mut pool, mut out, mut batch) = (Pool::new(), Count::default(), Batch::new());
    let (mut rest, mut now, mut came) = (data, 1_u64 << 60, 0);
    let links = [LinkType::RawIp];
    // A packet: how long it is, and how much later it comes, or that a batch ends before it.
    while let Some((&[length, how], bytes)) = rest.split_first_chunk() {
        let (packet, next) = bytes.split_at(usize::from(length).min(bytes.len()));
        rest = next;
        now += u64::from(how >> 1) * 1_000_000_000;
        let meta = PacketMeta { original_len: packet.len() as u32, ..PacketMeta::default() };
        let buf = pool.insert(meta, packet);
        let mut frame = Frame::unclassified(Nanos(now), buf, packet.len() as u32);
        frame.info = classify(LinkType::RawIp, packet).map_or(Info::default(), |headers| Info::new(&headers));
        let start = batch.frames.len() as u32;
        batch.frames.push(frame);
        let release = Nanos(now);
        batch.trains.push(Train { flow: 0, start, len: 1, release, order: 0, sequence: 0, continues: false });
        came += 1;
        if how & 1 == 1 || batch.frames.len() == 200 || next.len() < 2 {
            let mut cx = Context { now: release, pool: &mut pool, input: 0, links: &links };
            stage.process(&mut cx, &mut batch, &mut out);
            assert!(stage.held() <= u64::from(FRAGMENTS));
            assert_eq!(pool.live(), stage.held());
            assert_eq!(came, out.0 + stage.held() + stage.drops().total());
        }
    }
    let mut cx = Context { now: Nanos(now), pool: &mut pool, input: 0, links: &links };
    stage.drain(&mut cx, &mut out);
    assert_eq!((stage.held(), pool.live()), (0, 0));
    assert_eq!(came, out.0 + stage.drops().total());
});
