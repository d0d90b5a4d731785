//! A stage type that another crate defines is as good as a built-in one.

#[allow(dead_code, reason = "the example's own main")]
#[allow(clippy::module_inception, reason = "the example's own name")]
#[path = "../../examples/own_stage.rs"]
mod own_stage;

use std::ops::ControlFlow;
use std::path::Path;

use own_stage::{SAMPLE, registry, run};
use slipstream::batch::Batch;
use slipstream::pipeline::{Made, Plan, Registry, StageType, built_in, json_schema};
use slipstream::reframe::Output;
use slipstream::runtime::Driver;
use slipstream::stage::{Context, Observe, Stage};
use slipstream::time::Nanos;

#[test]
fn it_runs_in_a_pipeline() {
    let report =
        run("reframe -> s :: sample(every=4) -> rest :: null; s[sampled] -> sampled :: null").unwrap();
    let stage = |name: &str| report.stages.iter().find(|s| s.name == name).unwrap();
    let (all, rest, sampled) = (&stage("s").tally, &stage("rest").tally, &stage("sampled").tally);
    assert!(all.trains > 1000, "{}", all.trains);
    assert_eq!(sampled.trains, all.trains / 4);
    assert_eq!(rest.trains + sampled.trains, all.trains);
    assert_eq!((rest.packets + sampled.packets, report.live), (report.sources[0].packets, 0));
    assert!(stage("s").counters.contains(&("trains", all.trains)));
}

/// The stages of a type run on several threads only if somebody promised that they may.
#[test]
fn on_several_threads_it_runs_if_somebody_vouches_for_it() {
    let run = |registry: &Registry| {
        let graph = "synth(traffic=\"packets=5000\") -> s :: sample -> reframe -> null";
        let plan = Plan::from_graph_with(registry, graph, None, None, Path::new("")).unwrap();
        let mut driver = Driver::new(plan.build(1).unwrap()).workers(3);
        driver.run(&mut |_| ControlFlow::Continue(()))
    };
    let said = run(&registry().unwrap()).unwrap_err().to_string();
    assert!(said.contains("stage `s` runs on one thread") && said.contains("leave out --workers"), "{said}");
    let mut vouched = built_in();
    // SAFETY: it counts trains, and looks at no packet.
    unsafe { vouched.register_shared(own_stage::SAMPLE) }.unwrap();
    assert_eq!(run(&vouched).unwrap().sources[0].packets, 5000);
}

/// A type that goes by the name of another is not taken for it.
#[test]
fn nobody_vouches_for_a_type_by_another_ones_name() {
    let counter = *built_in().get("counter").unwrap();
    assert!(built_in().is_shared(&counter));
    assert!(!built_in().is_shared(&StageType { build: own_stage::SAMPLE.build, ..counter }));
    assert!(!Registry::of(&[counter]).is_shared(&counter));
}

#[test]
fn its_settings_are_checked_and_published() {
    let errors = run("sample(every=0) -> null").unwrap_err().to_string();
    assert!(errors.contains("1 to 1048576 are possible"), "{errors}");
    let errors = run("sample(evry=2) -> null").unwrap_err().to_string();
    assert!(errors.contains("did you mean `every`?"), "{errors}");
    let schema = json_schema(&registry().unwrap());
    assert_eq!(schema["$defs"]["stage_sample"]["properties"]["every"]["default"], "8");
}

#[test]
fn without_its_registry_it_is_unknown() {
    let plan = Plan::from_graph("in :: null -> sample -> out :: null", None, None, Path::new(""));
    assert!(plan.unwrap_err().to_string().contains("`sample` is neither a stage type"));
    assert!(registry().unwrap().register(own_stage::SAMPLE).unwrap_err().to_string().contains("already"));
}

/// Always has something to do at the time of the first packet.
#[derive(Default)]
struct Stuck(Option<Nanos>);

impl Stage for Stuck {
    fn process(&mut self, cx: &mut Context<'_>, batch: &mut Batch, out: &mut dyn Output) {
        self.0 = self.0.or(Some(cx.now));
        out.emit(cx.pool, batch);
    }

    fn next_deadline(&self) -> Nanos {
        self.0.unwrap_or(Nanos::MAX)
    }
}

impl Observe for Stuck {}

const STUCK: StageType = StageType {
    name: "stuck",
    settings: &[],
    build: |_, _| Ok(Made::Stage(Box::new(Stuck::default()))),
    ..SAMPLE
};

/// A stage of which something stays due ends a run with an error that names it, on one thread and on several,
/// live and not: time could never go on.
#[test]
fn a_deadline_that_never_moves_ends_the_run() {
    let mut registry = built_in();
    // SAFETY: it looks at no packet.
    unsafe { registry.register_shared(STUCK) }.unwrap();
    for source in ["synth(traffic=\"packets=5000\")", "paced(rate=10kpps)"] {
        for workers in [1, 3] {
            let graph = format!("{source} -> s :: stuck -> reframe -> null");
            let plan = Plan::from_graph_with(&registry, &graph, None, None, Path::new("")).unwrap();
            let mut driver = Driver::new(plan.build(1).unwrap()).workers(workers);
            let said = driver.run(&mut |_| ControlFlow::Continue(())).unwrap_err().to_string();
            assert!(said.contains("stage `s` (stuck) keeps time from going on"), "{graph}: {said}");
        }
    }
}

/// Says of trains up to `.0` that they leave by port `.1`, and nothing of others.
struct Says(usize, u8);

impl Stage for Says {
    fn process(&mut self, cx: &mut Context<'_>, batch: &mut Batch, out: &mut dyn Output) {
        batch.ports = vec![self.1; self.0.min(batch.trains.len())];
        out.emit(cx.pool, batch);
    }
}

impl Observe for Says {}

/// Trains that a stage says no port of leave by port 0; what leaves by a port that it doesn't have is counted
/// as dropped. No packet is lost without a trace.
#[test]
fn ports_that_a_stage_leaves_out_are_port_0() {
    const SAYS: [StageType; 2] = [
        StageType {
            name: "one",
            settings: &[],
            build: |_, _| Ok(Made::Stage(Box::new(Says(1, 1)))),
            ..SAMPLE
        },
        StageType {
            name: "none_such",
            settings: &[],
            build: |_, _| Ok(Made::Stage(Box::new(Says(1, 200)))),
            ..SAMPLE
        },
    ];
    for (kind, by_port_1) in [("one", true), ("none_such", false)] {
        for meets in [false, true] {
            let mut registry = built_in();
            for says in SAYS {
                registry.register(says).unwrap();
            }
            let end = if meets { "meet" } else { "other" };
            let other = if meets { "" } else { "; other :: null" };
            let graph = format!(
                "synth(traffic=\"packets=5000\") -> s :: {kind} -> a :: counter -> meet :: null; \
                 s[sampled] -> b :: counter -> {end}{other}"
            );
            let plan = Plan::from_graph_with(&registry, &graph, None, None, Path::new("")).unwrap();
            let mut driver = Driver::new(plan.build(1).unwrap());
            let report = driver.run(&mut |_| ControlFlow::Continue(())).unwrap();
            let stage = |name: &str| report.stages.iter().find(|s| s.name == name).unwrap();
            let (batches, a, b) = (stage("s").tally.batches, stage("a").tally, stage("b").tally);
            let others = stage("s").tally.trains - batches;
            assert!(others > batches && batches > 1, "{batches}");
            assert_eq!((a.trains, b.trains), (others, if by_port_1 { batches } else { 0 }), "{graph}");
            assert_eq!(report.live, 0, "{graph}");
        }
    }
}
