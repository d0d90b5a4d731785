//! A live run with a source that is read by time and one that brings packets whenever it is asked: all
//! packets of both go in.

use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;

use slipstream::pipeline::Plan;
use slipstream::runtime::Driver;
use slipstream_core::batch::Arrivals;
use slipstream_core::frame::Frame;
use slipstream_core::pool::{PacketMeta, Pool};
use slipstream_core::port::Port;
use slipstream_core::registry::{Group, IN, Made, Meets, OUT, Properties, StageType};
use slipstream_core::source::{LiveSource, SourceError};
use slipstream_core::time::Nanos;

use crate::common::Polled;

/// Packets that the source brings.
const PACKETS: u64 = 20_000;
/// Packets that it brings at a time.
const AT_ONCE: u64 = 7;

/// Brings some packets whenever it is asked.
struct Drip {
    brought: u64,
}

impl LiveSource for Drip {
    fn poll(
        &mut self,
        pool: &mut Pool,
        arrivals: &mut Arrivals,
        max: usize,
        now: Nanos,
    ) -> Result<usize, SourceError> {
        let n = AT_ONCE.min(max as u64).min(PACKETS - self.brought);
        for _ in 0..n {
            let meta = PacketMeta { original_len: 60, interface: 0, time: now };
            arrivals.frames.push(Frame::unclassified(now, pool.insert(meta, &[0; 60]), 60));
        }
        self.brought += n;
        Ok(n as usize)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn patience(&self) -> Option<u64> {
        Some(10_000)
    }

    fn ended(&self) -> bool {
        self.brought == PACKETS
    }
}

const DRIP: StageType = StageType {
    name: "drip",
    group: Group::Port,
    summary: "Brings some packets whenever it is asked",
    example: "in :: drip -> null",
    inputs: IN,
    outputs: OUT,
    settings: &[],
    properties: Properties { live: true, ..Properties::new(|_| Meets::Nothing) },
    build: |_, site| {
        Ok(match site.dry {
            true => Made::Checked,
            false => Port::receiving(Polled::new("drip", Drip { brought: 0 })).into(),
        })
    },
};

#[test]
fn packets_of_a_live_source_wait_for_those_of_another() {
    let mut registry = slipstream::pipeline::built_in();
    registry.register(DRIP).unwrap();
    let graph = "made :: synth(traffic=\"packets=20000,flows=10,rate=1mpps\") -> all :: counter -> null; in :: drip -> all";
    let plan = Plan::from_graph_with(&registry, graph, None, None, "".as_ref()).unwrap();
    let mut driver = Driver::new(plan.build(1).unwrap());
    let report = driver.run(&mut |_| ControlFlow::Continue(())).unwrap();
    let came = |name: &str| report.sources.iter().find(|s| s.name == name).unwrap().packets;
    assert_eq!((came("made"), came("in"), report.live), (20_000, PACKETS, 0), "{report:#?}");
}
