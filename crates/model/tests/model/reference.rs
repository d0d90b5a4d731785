//! The reference results: every case of `model/ref1.json`, computed by another program and checked by
//! simulation.

use std::path::{Path, PathBuf};

use serde_json::Value;
use slipstream_model::{Interarrival, Model, Parameters, ServiceTimes, Start, Variation};

/// The reference. `None` where it is said to be missing, by `SLIPSTREAM_TRACES=none`.
///
/// # Panics
/// If it is missing: a test that compares nothing is no test.
fn reference() -> Option<Value> {
    let traces = std::env::var_os("SLIPSTREAM_TRACES").map(PathBuf::from);
    if traces.as_deref() == Some(Path::new("none")) {
        eprintln!("SLIPSTREAM_TRACES=none: nothing was compared");
        return None;
    }
    let traces =
        traces.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces"));
    let file = traces.join("../model/ref1.json");
    let bytes = std::fs::read(&file).unwrap_or_else(|error| {
        panic!(
            "{}: {error}; SLIPSTREAM_TRACES names the folder beside it, or is `none` to go without",
            file.display()
        )
    });
    Some(serde_json::from_slice(&bytes).unwrap())
}

fn model(case: &Value) -> Model {
    let mean = case["mean_interarrival_slots"].as_f64().unwrap();
    let kind = case["interarrival"].as_str().unwrap();
    let interarrival = match kind {
        "poisson" => Interarrival::poisson(mean),
        "geometric" => Interarrival::geometric(mean),
        nb => Interarrival::negative_binomial(mean, nb.strip_prefix("nb").unwrap().parse().unwrap()),
    };
    let interarrival = interarrival.unwrap();
    assert!((interarrival.cv() / case["cv_interarrival"].as_f64().unwrap() - 1.0).abs() < 1e-9);
    Model::new(Parameters {
        queue: 4096,
        batch: 256,
        slot_ns: 1.0,
        interarrival,
        service: ServiceTimes::linear(600.0, 77.0, 100.0).unwrap(),
        variation: Variation::Poisson,
        start: Start::Equilibrium,
    })
    .unwrap()
}

#[test]
fn every_case_of_the_reference() {
    let Some(reference) = reference() else { return };
    let cases = reference["cases"].as_array().unwrap();
    assert!(cases.len() >= 12);
    for case in cases {
        let solution = model(case).solve().unwrap();
        let name = format!("{} at {}", case["interarrival"], case["rho"]);
        let near = |key: &str, got: f64, below: f64| {
            let want = case[key].as_f64().unwrap();
            // A spread of one rounding error is none, and probabilities below the stated floor carry nothing.
            assert!((got - want).abs() <= 1e-6 * want + below, "{name}: {key} {got} against {want}");
        };
        near("mean_batch", solution.mean_batch, 0.0);
        near("mean_queue", solution.mean_queue, 0.0);
        near("sd_batch", solution.sd_batch, 1e-9);
        near("p_loss", solution.p_loss, 1e-15);
        near("rho", solution.load, 0.0);
        for (key, q) in [("batch_q05", 0.05), ("batch_q50", 0.5), ("batch_q95", 0.95)] {
            assert_eq!(solution.batch_quantile(q) as u64, case[key].as_u64().unwrap(), "{name}: {key}");
        }
        for (v, want) in case["batch_pmf"].as_array().unwrap().iter().enumerate() {
            let got = solution.batch_pmf[v];
            assert!((got - want.as_f64().unwrap()).abs() < 1e-9, "{name}: batch {v}: {got} {want}");
        }
        assert!(solution.residual < 1e-12, "{name}: {}", solution.residual);
        assert!(solution.imbalance < 1e-11, "{name}: {}", solution.imbalance);
    }
}
