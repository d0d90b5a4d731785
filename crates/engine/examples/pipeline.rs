//! A pipeline from a program: a capture goes through the reframer and a counter into another capture.
//!
//! `cargo run -p slipstream --example pipeline -- IN.pcap OUT.pcapng`

use std::env;
use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;

use slipstream::pipeline::Plan;
use slipstream::runtime::Driver;

fn main() -> Result<(), Box<dyn Error>> {
    let mut paths = env::args().skip(1);
    let mut capture = || Some(("pcap", vec![("path".to_owned(), paths.next()?)]));
    let (Some(input), Some(output)) = (capture(), capture()) else {
        return Err("usage: pipeline IN.pcap OUT.pcapng".into());
    };

    let graph = "reframe(hold=64us) -> c :: counter(rules=\"tcp syn\")";
    let plan = Plan::from_graph(graph, Some(input), Some(output), Path::new(""))?;
    let pipeline = plan.build(plan.seeds(None))?;
    let report = Driver::new(pipeline).workers(2).run(&mut |_progress| ControlFlow::Continue(()))?;
    for stage in &report.stages {
        println!("{:<8} {:>6} packets in {:>6} trains", stage.name, stage.tally.packets, stage.tally.trains);
    }
    Ok(())
}
