//! Routes that change while flow contexts keep the ways by them: a router with contexts against one without.

use std::fmt::Write;

use proptest::prelude::*;
use slipstream_core::batch::{Batch, Train};
use slipstream_core::flow_context::{FlowContexts, Layout};
use slipstream_core::frame::{Frame, Info};
use slipstream_core::pool::{PacketMeta, Pool};
use slipstream_core::stage::{Context, Observe, Stage};
use slipstream_core::time::Nanos;
use slipstream_wire::{LinkType, classify};

use super::tests::{Collect, datagram, framed};
use super::{Router, interfaces};
use crate::PerTrain;

const INTERFACES: [&str; 2] =
    ["a 192.0.2.1/24 2001:db8:a::1/64 02:00:00:00:00:01", "b 198.51.100.1/24 02:00:00:00:00:02"];

/// Routes for four networks: each leads to a station at either port whose address is known, or nowhere in
/// three ways.
fn routes(targets: [u8; 4]) -> String {
    let mut text = String::new();
    for (net, target) in targets.iter().enumerate() {
        let via = match target % 6 {
            0 => "via 192.0.2.9 mac 02:00:00:00:09:01",
            1 => "via 198.51.100.9 mac 02:00:00:00:09:02",
            2 => "via 198.51.100.10 mac 02:00:00:00:09:03",
            3 => {
                writeln!(text, "unreachable 10.{net}.0.0/16").unwrap();
                continue;
            }
            4 => {
                writeln!(text, "blackhole 10.{net}.0.0/16").unwrap();
                continue;
            }
            _ => continue,
        };
        writeln!(text, "10.{net}.0.0/16 {via}").unwrap();
    }
    text
}

struct Made {
    stage: PerTrain<Router>,
    file: tempfile::NamedTempFile,
    pool: Pool,
    contexts: Option<Box<FlowContexts>>,
    out: Collect,
    reloads: u64,
}

impl Made {
    fn new(targets: [u8; 4], flows: Option<u32>) -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), routes(targets)).unwrap();
        let mut router = Router::with_defaults(interfaces(INTERFACES.into_iter()).unwrap(), 3);
        router.watch(file.path(), 1 << 62).unwrap();
        let mut layout = Layout::default();
        let place = layout.place(3);
        let contexts = flows.map(|flows| {
            let mut contexts = Box::new(FlowContexts::new(&layout, flows, 5));
            contexts.turn_to(place);
            contexts
        });
        let (pool, out) = (Pool::new(), Collect::default());
        Self { stage: PerTrain::new(router), file, pool, contexts, out, reloads: 0 }
    }

    fn reload(&mut self, targets: [u8; 4], now: u64) {
        std::fs::write(self.file.path(), routes(targets)).unwrap();
        self.stage.reload(Nanos(now));
        self.reloads += 1;
        loop {
            let links = [LinkType::Ethernet];
            let now = self.stage.next_deadline();
            let mut cx = Context { now, pool: &mut self.pool, input: 0, links: &links };
            self.stage.on_deadline(&mut cx, &mut self.out);
            let mut reloads = 0;
            self.stage.counters(&mut |name, n| reloads = if name == "route_reloads" { n } else { reloads });
            if reloads == self.reloads {
                break;
            }
            std::thread::yield_now();
        }
    }

    fn send(&mut self, packets: &[Vec<u8>], now: u64) {
        let mut batch = Batch::new();
        for (start, data) in (0u32..).zip(packets) {
            let meta = PacketMeta { original_len: data.len() as u32, interface: 0, time: Nanos(now) };
            let buf = self.pool.insert(meta, data);
            let info = classify(LinkType::Ethernet, data).map_or(Info::default(), |h| Info::new(&h));
            batch.frames.push(Frame { info, ..Frame::unclassified(Nanos(now), buf, data.len() as u32) });
            let (flow, release) = (Frame::NO_FLOW, Nanos(now));
            batch.trains.push(Train {
                flow,
                start,
                len: 1,
                release,
                order: 0,
                sequence: 0,
                continues: false,
            });
        }
        let links = [LinkType::Ethernet];
        let mut cx = Context { now: Nanos(now), pool: &mut self.pool, input: 0, links: &links };
        if let Some(contexts) = &mut self.contexts {
            contexts.look_up(&cx, &mut batch, 0);
        }
        std::mem::swap(cx.pool.flows(), &mut self.contexts);
        self.stage.process(&mut cx, &mut batch, &mut self.out);
        std::mem::swap(self.pool.flows(), &mut self.contexts);
        if let Some(contexts) = &mut self.contexts {
            contexts.leave();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn ways_are_by_the_routes_in_force(
        phases in prop::collection::vec(
            ([0u8..6, 0..6, 0..6, 0..6], prop::collection::vec((0u8..5, 0u8..3, 0u8..4), 1..40)), 1..6),
        flows in prop::sample::select(vec![1u32, 4, 64]),
    ) {
        let first = phases[0].0;
        let (mut with, mut without) = (Made::new(first, Some(flows)), Made::new(first, None));
        let mut now = 1 << 60;
        for (targets, packets) in &phases {
            let packets: Vec<_> = packets.iter().map(|(net, host, lives)| {
                // To another station in one case, and used up in another.
                framed(if *lives == 3 { 2 } else { 1 }, &datagram([10, *net, 0, *host].into(), lives + 1, b"data"))
            }).collect();
            for made in [&mut with, &mut without] {
                made.reload(*targets, now);
                made.send(&packets, now + 1000);
            }
            now += 100_000_000_000;
            prop_assert_eq!(&with.out.0, &without.out.0);
        }
        let counted = |made: &Made| {
            let mut all = Vec::new();
            made.stage.counters(&mut |name, n| all.push((name, n)));
            (all, made.stage.drops(), made.stage.held())
        };
        prop_assert_eq!(counted(&with), counted(&without));
    }
}
