//! `slipstream slice run`: the middlebox, as the pipeline that it is.

use slipstream::pipeline::{Diagnostic, Diagnostics};
use slipstream::rules::RuleError;

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
    let expression = graph(args);
    let ended = pipeline::run(&cli::Run {
        workers: 1,
        pipeline: cli::PipelineArgs {
            context: None,
            context_flows: None,
            context_memory: None,
            config: None,
            expression: Some(expression.clone()),
            input: Some(args.input.clone()),
            output: Some(args.output.clone()),
        },
        live: args.live.clone(),
        pace: Some(args.pace),
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
    });
    ended.map_err(|error| match error.downcast::<Diagnostics>() {
        Ok(errors) => by_option(errors, args, &expression).into(),
        Err(other) => other,
    })
}

/// The errors of a graph that nobody wrote, as those of the options that it is made of.
fn by_option(errors: Diagnostics, args: &SliceRun, graph: &str) -> Diagnostics {
    let settings = graph.find(SETTINGS).filter(|_| !args.whole).map(|at| at + SETTINGS.len());
    let option = |mut d: Diagnostic| {
        if d.file != "graph" {
            return d;
        }
        let within =
            settings.and_then(|at| d.error.offset.checked_sub(at)).filter(|at| *at < args.slice.len());
        let error = match within {
            Some(at) => RuleError::new(&args.slice, at, 1, d.error.message),
            None => RuleError::elsewhere(d.error.message),
        };
        d.file = match within {
            Some(_) => "--slice".to_owned(),
            None => format!("--through {}", args.through),
        };
        d.error = match d.error.hint {
            Some(hint) => error.hint(hint),
            None => error,
        };
        d
    };
    Diagnostics(errors.0.into_iter().map(option).collect())
}

/// The text before the settings of the slicer in the graph.
const SETTINGS: &str = "slice :: slice(";

/// The pipeline, in words.
fn graph(args: &SliceRun) -> String {
    let path = args.through.replace('\\', "\\\\").replace('"', "\\\"");
    let wait = args.wait.map(|wait| format!(", wait={}ns", wait.0)).unwrap_or_default();
    let there = format!("functions :: shm(path=\"{path}\", ring={}{wait})", args.ring.0);
    if args.whole {
        format!("out_to :: counter -> {there}; functions -> back :: counter")
    } else {
        format!("{SETTINGS}{}) -> {there}; functions -> splice", args.slice)
    }
}
