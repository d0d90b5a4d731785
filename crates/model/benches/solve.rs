//! Time of a solution: the reference's queue (L = 4096, β = 256, 1 ns slots) over processes and loads, and
//! its growth with L and β.

#![allow(clippy::unwrap_used, reason = "a benchmark")]
#![allow(missing_docs, reason = "criterion's macros make public items")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use slipstream_model::{Interarrival, Model, Parameters, ServiceTimes, Start, Variation};

fn solve(queue: usize, batch: usize, load: f64, cv: Option<f64>) -> f64 {
    let mean = (600.0 + 77.0 * batch as f64) / batch as f64 / load;
    let interarrival = match cv {
        None => Interarrival::poisson(mean),
        Some(cv) => Interarrival::negative_binomial(mean, cv),
    };
    let parameters = Parameters {
        queue,
        batch,
        slot_ns: 1.0,
        interarrival: interarrival.unwrap(),
        service: ServiceTimes::linear(600.0, 77.0, 100.0).unwrap(),
        variation: Variation::Poisson,
        start: Start::Equilibrium,
    };
    Model::new(parameters).unwrap().solve().unwrap().mean_batch
}

fn bench(c: &mut Criterion) {
    let mut group = c.benchmark_group("solve");
    group.sample_size(10);
    for load in [0.3, 0.95, 1.0, 1.2] {
        for (name, cv) in
            [("poisson", None), ("negbin 0.5", Some(0.5)), ("negbin 1", Some(1.0)), ("negbin 2", Some(2.0))]
        {
            group.bench_function(format!("L 4096, batch 256, load {load}, {name}"), |b| {
                b.iter(|| black_box(solve(4096, 256, load, cv)));
            });
        }
    }
    for (queue, batch) in [(512, 32), (1024, 64), (4096, 64), (16_384, 256), (4096, 1024)] {
        group.bench_function(format!("L {queue}, batch {batch}, load 1, negbin 1"), |b| {
            b.iter(|| black_box(solve(queue, batch, 1.0, Some(1.0))));
        });
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
