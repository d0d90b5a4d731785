//! A stage type that another crate defines is as good as a built-in one.

#[allow(dead_code, reason = "the example's own main")]
#[allow(clippy::module_inception, reason = "the example's own name")]
#[path = "../../examples/own_stage.rs"]
mod own_stage;

use std::ops::ControlFlow;
use std::path::Path;

use own_stage::{registry, run};
use slipstream::pipeline::{Plan, Registry, StageType, built_in, json_schema};
use slipstream::runtime::Driver;

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
