//! Ports that know each other: packets go from the one to the other without coming into the pool, but for a
//! sample.

use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use slipstream::pipeline::Plan;
use slipstream::runtime::{Driver, LiveOptions, RunReport};
use slipstream_core::batch::{Arrivals, Batch};
use slipstream_core::frame::Frame;
use slipstream_core::interface::Interface;
use slipstream_core::pool::{PacketMeta, Pool};
use slipstream_core::port::{Port, Transmit};
use slipstream_core::registry::{Group, IN, Made, Meets, OUT, Properties, Role, StageType};
use slipstream_core::source::{Came, LiveSource, Source, SourceError};
use slipstream_core::stage::Context;
use slipstream_core::time::Nanos;

/// The cable between the world and the ports.
#[derive(Default)]
struct Cable {
    /// Packets of each burst that is to come.
    bursts: VecDeque<usize>,
    /// The number of the next packet that comes.
    next: u32,
    /// Numbers of the packets that left.
    left: Vec<u32>,
    /// How many of them never came into the pool.
    relayed: usize,
    /// Those of them that it has left to be polled.
    left_to_poll: usize,
    /// It was looked at, and nothing was there.
    empty: bool,
    /// The sending half says that it takes packets from whom it knows.
    known: bool,
}

/// A burst of a multiple of so many packets is led nowhere, but left to be polled.
const LEFT: usize = 7;

struct Receiver(Arc<Mutex<Cable>>, [Interface; 1]);

impl Receiver {
    /// The numbers of the packets of the next burst, or a part of it.
    fn burst(&self, max: usize) -> std::ops::Range<u32> {
        let mut cable = self.0.lock().unwrap();
        if std::mem::take(&mut cable.empty) {
            return 0..0;
        }
        let Some(burst) = cable.bursts.front_mut() else { return 0..0 };
        let n = max.min(*burst);
        *burst -= n;
        if *burst == 0 {
            cable.bursts.pop_front();
        }
        cable.next += n as u32;
        cable.next - n as u32..cable.next
    }
}

impl Source for Receiver {
    fn fill(&mut self, _: &mut Pool, _: &mut Arrivals, _: usize) -> Result<usize, SourceError> {
        Ok(0)
    }

    fn interfaces(&self) -> &[Interface] {
        &self.1
    }

    fn live(&mut self) -> Option<&mut dyn LiveSource> {
        Some(self)
    }
}

impl LiveSource for Receiver {
    fn poll(
        &mut self,
        pool: &mut Pool,
        arrivals: &mut Arrivals,
        max: usize,
        now: Nanos,
    ) -> Result<usize, SourceError> {
        let burst = self.burst(max);
        let n = burst.len();
        for number in burst {
            let meta = PacketMeta { original_len: 60, interface: 0, time: now };
            let mut data = [0; 60];
            data[..4].copy_from_slice(&number.to_be_bytes());
            arrivals.frames.push(Frame::unclassified(now, pool.insert(meta, &data), 60));
        }
        Ok(n)
    }

    fn relay(
        &mut self,
        _: &mut Pool,
        to: &mut dyn Any,
        max: usize,
        now: Nanos,
        came: &mut Vec<Came>,
    ) -> bool {
        let Some(sender) = to.downcast_mut::<Sender>() else { return false };
        assert!(Arc::ptr_eq(&sender.0, &self.0));
        let next = self.0.lock().unwrap().bursts.front().copied().unwrap_or(0);
        if next > 0 && next.is_multiple_of(LEFT) {
            self.0.lock().unwrap().left_to_poll += max.min(next);
            return true;
        }
        let burst = self.burst(max);
        let mut cable = self.0.lock().unwrap();
        cable.empty = burst.is_empty();
        cable.relayed += burst.len();
        cable.left.extend(burst.clone());
        burst.for_each(|_| Came::add(came, now, now));
        true
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn ended(&self) -> bool {
        self.0.lock().unwrap().bursts.is_empty()
    }
}

struct Sender(Arc<Mutex<Cable>>);

impl Transmit for Sender {
    fn tx(&mut self, cx: &mut Context<'_>, batch: &mut Batch) {
        let mut cable = self.0.lock().unwrap();
        for frame in batch.frames.drain(..) {
            let number = cx.pool.data(frame.buf, 4).try_into().unwrap();
            cable.left.push(u32::from_be_bytes(number));
            cx.pool.free(frame.buf);
        }
        batch.clear();
    }

    fn takes_unread(&self) -> bool {
        true
    }

    fn relay(&mut self) -> Option<&mut dyn Any> {
        let known = self.0.lock().unwrap().known;
        known.then_some(self as _)
    }
}

thread_local! {
    /// The cable that the next ports are connected to.
    static CABLE: RefCell<Arc<Mutex<Cable>>> = RefCell::default();
}

const PLUG: StageType = StageType {
    name: "plug",
    group: Group::Port,
    summary: "An end of a cable",
    example: "in :: plug -> out :: plug",
    inputs: IN,
    outputs: OUT,
    settings: &[],
    properties: Properties { live: true, ..Properties::new(|_| Meets::Nothing) },
    build: |_, site| {
        let cable = CABLE.with(|cable| cable.borrow().clone());
        let interface = Interface { link_number: 1, snap_len: 0, name: Some("plug".into()) };
        Ok(match (site.dry, site.role) {
            (true, _) => Made::Checked,
            (_, Role::Source) => Port::receiving(Receiver(cable, [interface])).into(),
            _ => Port::transmitting(Sender(cable)).into(),
        })
    },
};

fn run(graph: &str, bursts: &[usize], known: bool, most: Option<u64>) -> (RunReport, Cable) {
    let cable = Cable { bursts: bursts.iter().copied().collect(), known, ..Cable::default() };
    let cable = Arc::new(Mutex::new(cable));
    CABLE.with(|next| *next.borrow_mut() = cable.clone());
    let mut registry = slipstream::pipeline::built_in();
    registry.register(PLUG).unwrap();
    let plan = Plan::from_graph_with(&registry, graph, None, None, Path::new("")).unwrap();
    let options = LiveOptions { packets: most, ..LiveOptions::default() };
    let mut driver = Driver::new(plan.build(1).unwrap()).live(options);
    let report = driver.run(&mut |_| ControlFlow::Continue(())).unwrap();
    drop(driver);
    CABLE.with(|next| *next.borrow_mut() = Arc::default());
    let cable = Arc::into_inner(cable).unwrap().into_inner().unwrap();
    assert_eq!(report.live, 0, "{report:#?}");
    (report, cable)
}

/// Bursts of packets, and polls that bring nothing.
fn bursts() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(prop_oneof![Just(0usize), 1usize..40, Just(256)], 0..400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Whether they know each other or not: the same packets leave in the same order, and the same is
    /// counted.
    #[test]
    fn what_is_led_past_the_pool_counts(bursts in bursts(), most in prop::option::of(0u64..5000)) {
        let all: usize = bursts.iter().sum();
        let expected = (all as u64).min(most.unwrap_or(u64::MAX));
        let mut tallies = Vec::new();
        for known in [false, true] {
            let (report, cable) = run(PLUG.example, &bursts, known, most);
            prop_assert!(cable.left.iter().copied().eq(0..expected as u32), "{} of {}", cable.left.len(), expected);
            let (source, out) = (&report.sources[0], &report.stages[0]);
            prop_assert_eq!((source.packets, out.tally.packets), (expected, expected));
            tallies.push((out.tally.batches, out.tally.trains));
            prop_assert!(known || cable.relayed == 0);
            if known && out.tally.batches > 64 {
                // The first 64 bursts, and one in 127.
                let first: usize = bursts.iter().copied().filter(|n| *n > 0).take(64).sum();
                let sampled = 256 * (bursts.len() / 127 + 1);
                let accounted = first + sampled + cable.relayed + cable.left_to_poll;
                prop_assert!(accounted >= expected as usize, "{}", cable.relayed);
            }
        }
        prop_assert_eq!(tallies[0], tallies[1]);
    }
}

/// What stands between the ports, or comes to the second one from elsewhere, takes packets from the pool.
#[test]
fn nothing_is_led_past_a_stage() {
    let bursts = [3; 300];
    for graph in [
        "in :: plug -> counter -> out :: plug",
        "in :: plug -> reframe(hold=1us) -> out :: plug",
        "in :: plug -> out :: plug; synth(traffic=\"flows=1,packets=1\") -> discard",
    ] {
        let (_, cable) = run(graph, &bursts, true, None);
        let straight = graph.contains("plug -> out");
        assert_eq!((cable.left.len(), cable.relayed > 0), (900, straight), "{graph}");
    }
    // Two ends lead to one: neither is led past the other's packets.
    let (_, cable) = run("a :: plug -> out :: plug; b :: plug -> out", &bursts, true, None);
    assert_eq!((cable.left.len(), cable.relayed), (900, 0));
}
