//! Waits and sojourns against the simulation, packet by packet, where services differ most: polls of nothing
//! that take longer than full batches, batches that take longer than larger ones, any load; and packets that
//! come in the slot of the poll itself.

use slipstream_model::{
    Effort, Error, Interarrival, Model, Parameters, Pmf, ServiceTimes, Solution, Start, Variation, simulate,
};

use super::properties::{agrees, parameters};

/// The longest that a packet can wait: the longest service that it may come in, and full batches before it.
fn longest_wait(p: &Parameters, s: &Solution) -> f64 {
    let spread = |mean: f64| match &p.variation {
        Variation::Poisson => mean + 12.0 * mean.sqrt(),
        Variation::Deterministic => mean,
        Variation::Empirical(factors) => mean * factors.values().flatten().copied().fold(1.0, f64::max),
    };
    let met = s.batch_pmf.iter().enumerate().filter(|(_, q)| **q > 0.0);
    let service = |size: usize| spread(p.service.mean_ns(size)).ceil();
    let rest = met.map(|(size, _)| service(size)).fold(0.0, f64::max);
    rest + ((p.queue - 1) / p.batch) as f64 * service(p.batch)
}

/// Mean wait, sojourn and loss within three half-widths of the simulation's, as far as it saw enough packets;
/// says whether it did.
#[track_caller]
fn means_agree(p: Parameters, polls: u64) -> bool {
    let model = Model::new(p.clone()).unwrap();
    let s = match model.solve() {
        Ok(s) => s,
        // A whole interarrival time is longer than any service.
        Err(Error::NoArrivals) if p.start == Start::Renewal => return false,
        Err(other) => panic!("{other}"),
    };
    let name = format!(
        "{} {} {:?}, queue {} batch {}, empty {}, {}, load {}",
        p.interarrival.name(),
        p.interarrival.cv(),
        p.start,
        p.queue,
        p.batch,
        p.service.mean_ns(0),
        p.variation.name(),
        s.load
    );
    let most = longest_wait(&p, &s);
    assert!(s.wait.mean_ns() <= most * (1.0 + 1e-9), "{name}: {} of at most {most}", s.wait.mean_ns());
    assert!(s.wait.quantile_ns(0.999) <= 1.02 * most + 1.0, "{name}: {}", s.wait.quantile_ns(0.999));
    let sim = simulate(&model, Effort { polls, warmup: polls / 10, seed: 23 }).unwrap();
    if sim.mean_batch.mean * (polls as f64) < 2000.0 {
        return false;
    }
    for (what, estimate, value) in
        [("wait", sim.wait_ns, s.wait.mean_ns()), ("sojourn", sim.sojourn_ns, s.sojourn.mean_ns())]
    {
        assert!(estimate.holds(value, 3.0), "{name}: {what}: {value} against {estimate:?}");
    }
    true
}

/// A poll of nothing that takes up to forty times as long as a full batch, and loses packets meanwhile.
#[test]
fn waits_beside_long_polls_of_nothing_agree() {
    let at = |mean: Interarrival, base: f64, each: f64, empty: f64, variation| Parameters {
        service: ServiceTimes::linear(base, each, empty).unwrap(),
        variation,
        ..parameters(16, 16, mean)
    };
    let geometric = |mean| Interarrival::geometric(mean).unwrap();
    assert!(means_agree(at(geometric(100.0), 10.0, 50.0, 4000.0, Variation::Poisson), 100_000));
    assert!(means_agree(at(geometric(1.5), 0.0, 1.0, 200.0, Variation::Deterministic), 100_000));
    assert!(means_agree(at(geometric(15.0), 100.0, 1.0, 4000.0, Variation::Poisson), 100_000));
}

/// Queues of one batch to three, loads from a hundredth to four, polls of nothing from one slot to twenty
/// full batches, and service times that rise with the batch or don't.
#[test]
fn means_agree_at_every_load() {
    let (mut seen, mut tried) = (0, 0);
    for (queue, batch) in [(1, 1), (7, 3), (16, 16)] {
        let full = 20.0 + 4.0 * batch as f64;
        let linear = |empty| ServiceTimes::linear(20.0, 4.0, empty).unwrap();
        // A batch of one takes three times as long as a full one, as logs have it where only the first packet
        // of a batch finds everything cold.
        let uneven = |empty| linear(empty).with_measured([(1, 3.0 * full), (2, 9.0)]).unwrap();
        let factors = Variation::Empirical([(0, vec![0.5, 1.5]), (1, vec![0.2, 0.8, 2.0])].into());
        for empty in [1.0, 30.0, 20.0 * full] {
            for (service, variation) in [
                (linear(empty), Variation::Poisson),
                (uneven(empty), Variation::Deterministic),
                (uneven(empty), factors.clone()),
            ] {
                for load in [0.01, 0.2, 0.8, 1.0, 1.5, 4.0] {
                    let mean = service.mean_ns(batch) / (batch as f64 * load);
                    for a in [
                        Interarrival::geometric(mean.max(1.0)),
                        Interarrival::poisson(mean),
                        Interarrival::negative_binomial(mean, 2.0f64.max(1.2 / mean.sqrt())),
                    ] {
                        for start in [Start::Equilibrium, Start::Renewal] {
                            let (service, variation, a) =
                                (service.clone(), variation.clone(), a.clone().unwrap());
                            let p = Parameters { service, variation, start, ..parameters(queue, batch, a) };
                            tried += 1;
                            seen += usize::from(means_agree(p, 6000));
                        }
                    }
                }
            }
        }
    }
    assert!(seen > tried * 2 / 3, "{seen} of {tried}");
}

/// Packets that come in the very slot of a poll, or several in one slot, wait for the whole service: in bins
/// of a slot, and in longer ones.
#[test]
fn packets_that_come_with_the_poll_agree() {
    let burst = Pmf::from_weights("test", 0, [vec![30.0], vec![0.0; 39], vec![10.0; 3]].concat()).unwrap();
    for (queue, batch, mean, base, empty) in
        [(2, 1, 2.02, 1.0, 1.0), (8, 4, 30.0, 10.0, 20.0), (64, 32, 60.0, 900.0, 700.0)]
    {
        for a in [
            Interarrival::negative_binomial(mean, 2.0).unwrap(),
            Interarrival::empirical(burst.clone()).unwrap().with_mean(mean).unwrap(),
        ] {
            let p = Parameters {
                service: ServiceTimes::linear(base, 1.0, empty).unwrap(),
                start: Start::Renewal,
                ..parameters(queue, batch, a)
            };
            agrees(p, 100_000, 3.0, 0.01);
        }
    }
}
