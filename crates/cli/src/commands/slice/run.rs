//! `slipstream slice run`: the middlebox, as the pipeline that it is.

use super::super::{Outcome, run as pipeline};
use crate::cli::{self, slice::SliceRun};
use crate::operate::state::Unreadable;
use crate::ui;
use crate::units::Count;

pub(super) fn run(args: &SliceRun) -> anyhow::Result<Outcome> {
    if !std::path::Path::new(&args.through).exists() {
        ui::note(&format!(
            "waiting for the process with the functions: slipstream run -i shm:{0} -o shm:{0} -e GRAPH",
            args.through
        ));
    }
    pipeline::run(&cli::Run {
        workers: 1,
        pipeline: cli::PipelineArgs {
            context: None,
            context_flows: None,
            context_memory: None,
            config: None,
            expression: Some(graph(args)),
            input: Some(args.input.clone()),
            output: Some(args.output.clone()),
        },
        live: args.live.clone(),
        pace: args.pace,
        metrics: None,
        state: None,
        state_unreadable: Unreadable::default(),
        session_log: None,
        log_denied: false,
        poll_log: None,
        poll_log_max: Count(0),
        seed: args.seed,
        damage: cli::Damage::default(),
        reporting: args.reporting.clone(),
    })
}

/// The pipeline, in words.
fn graph(args: &SliceRun) -> String {
    let path = args.through.replace('\\', "\\\\").replace('"', "\\\"");
    let wait = args.wait.map(|wait| format!(", wait={}ns", wait.0)).unwrap_or_default();
    let there = format!("functions :: shm(path=\"{path}\", ring={}{wait})", args.ring.0);
    if args.whole {
        format!("out_to :: counter -> {there}; functions -> back :: counter")
    } else {
        format!("slice :: slice({}) -> {there}; functions -> splice", args.slice)
    }
}
