//! A stage of one's own: defined here, registered beside the built-in types, and at work in a pipeline over
//! the bundled trace.
//!
//! `cargo run -p slipstream --example own_stage`

use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;

use slipstream::batch::Batch;
use slipstream::pipeline::{
    Group, Kind, Made, Meets, Plan, PortType, Ports, Properties, RegisterError, Registry, Setting, StageType,
    built_in,
};
use slipstream::reframe::Output;
use slipstream::runtime::{Driver, RunReport};
use slipstream::stage::{Context, DropReason, Observe, Stage};

/// Leads every n-th train to a port of its own.
pub(crate) const SAMPLE: StageType = StageType {
    name: "sample",
    group: Group::Plumbing,
    summary: "Leads every n-th train to a port of its own",
    example: "in -> s :: sample(every=8) -> out; s[sampled] -> tap(path=sampled.pcapng) -> discard",
    inputs: Ports::These(&[PortType { name: "in", help: "packets", unconnected: None }]),
    outputs: Ports::These(&[
        PortType { name: "out", help: "the other trains", unconnected: None },
        PortType {
            name: "sampled",
            help: "one train in so many",
            unconnected: Some(DropReason::Unconnected),
        },
    ]),
    settings: &[Setting::new("every", Kind::Count(1, 1 << 20), "Trains of which one is sampled").or("8")],
    // Any train may be the n-th: each core can count its own.
    properties: Properties::new(|_| Meets::Nothing),
    build: |settings, _| Ok(Made::Stage(Box::new(Sample { every: settings.number("every"), trains: 0 }))),
};

struct Sample {
    every: u64,
    trains: u64,
}

impl Stage for Sample {
    fn process(&mut self, cx: &mut Context<'_>, batch: &mut Batch, out: &mut dyn Output) {
        batch.ports.clear();
        for _ in &batch.trains {
            self.trains += 1;
            batch.ports.push(u8::from(self.trains.is_multiple_of(self.every)));
        }
        out.emit(cx.pool, batch);
    }
}

impl Observe for Sample {
    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        visit("trains", self.trains);
    }
}

/// The built-in types and [`SAMPLE`].
pub(crate) fn registry() -> Result<Registry, RegisterError> {
    let mut registry = built_in();
    registry.register(SAMPLE)?;
    Ok(registry)
}

/// Runs a graph, in which `in` stands for the bundled trace.
pub(crate) fn run(graph: &str) -> Result<RunReport, Box<dyn Error>> {
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces/campus.pcap.gz").to_owned();
    let input = ("pcap", vec![("path".to_owned(), trace)]);
    let plan = Plan::from_graph_with(&registry()?, graph, Some(input), None, Path::new(""))?;
    Ok(Driver::new(plan.build(plan.seeds(None))?).run(&mut |_| ControlFlow::Continue(()))?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let report = run("reframe -> s :: sample(every=8) -> rest :: null; s[sampled] -> sampled :: null")?;
    for stage in &report.stages {
        println!("{:<8} {:>6} packets, {:>6} trains", stage.name, stage.tally.packets, stage.tally.trains);
    }
    Ok(())
}
