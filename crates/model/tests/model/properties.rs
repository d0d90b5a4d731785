//! Properties of every model: conservation, monotony, limits known from the textbook, and the simulation.

use proptest::prelude::*;
use slipstream_model::{
    Effort, Error, Interarrival, Model, Parameters, Pmf, ServiceTimes, Solution, Start, Variation, simulate,
};

pub(crate) fn parameters(queue: usize, batch: usize, interarrival: Interarrival) -> Parameters {
    Parameters {
        queue,
        batch,
        slot_ns: 1.0,
        interarrival,
        service: ServiceTimes::linear(60.0, 8.0, 20.0).unwrap(),
        variation: Variation::Poisson,
        start: Start::Equilibrium,
    }
}

fn solve(parameters: Parameters) -> Solution {
    Model::new(parameters).unwrap().solve().unwrap()
}

fn arrivals() -> impl Strategy<Value = Interarrival> {
    let observed = Pmf::from_weights("test", 1, vec![5.0, 0.0, 1.0, 2.0, 0.0, 0.0, 0.0, 3.0]).unwrap();
    let observed = Interarrival::empirical(observed).unwrap();
    (2.0..60.0f64, 0..5usize, 1.1..2.5f64).prop_map(move |(mean, kind, cv)| match kind {
        0 => Interarrival::deterministic(mean).unwrap(),
        1 => Interarrival::poisson(mean).unwrap(),
        2 => Interarrival::geometric(mean).unwrap(),
        3 => Interarrival::negative_binomial(mean, cv).unwrap(),
        _ => observed.with_mean(mean).unwrap(),
    })
}

fn variations() -> impl Strategy<Value = Variation> {
    prop_oneof![
        Just(Variation::Poisson),
        Just(Variation::Deterministic),
        Just(Variation::Empirical([(1, vec![0.8, 1.0, 1.3]), (9, vec![0.5, 1.5])].into())),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn probabilities_add_up_and_what_is_accepted_is_served(
        a in arrivals(),
        variation in variations(),
        (batch, extra) in (1..24usize, 0..60usize),
        renewal in any::<bool>(),
    ) {
        let start = if renewal { Start::Renewal } else { Start::Equilibrium };
        let model = Model::new(Parameters { variation, start, ..parameters(batch + extra, batch, a) }).unwrap();
        let s = match model.solve() {
            Ok(s) => s,
            Err(Error::NotUnique { .. } | Error::NoArrivals) => return Ok(()),
            Err(other) => return Err(TestCaseError::fail(other.to_string())),
        };
        for pmf in [&s.queue_pmf, &s.batch_pmf] {
            prop_assert!((pmf.iter().sum::<f64>() - 1.0).abs() < 1e-12);
            prop_assert!(pmf.iter().all(|p| (0.0..=1.0 + 1e-12).contains(p)));
        }
        prop_assert!(s.imbalance < 1e-9 && s.residual < 1e-11, "{} {}", s.imbalance, s.residual);
        prop_assert!((0.0..=1.0).contains(&s.p_loss) && (0.0..=1.0 + 1e-12).contains(&s.utilization));
        if start == Start::Equilibrium {
            let accepted = s.offered_pps * (1.0 - s.p_loss);
            prop_assert!((s.throughput_pps / accepted - 1.0).abs() < 1e-9, "{} {accepted}", s.throughput_pps);
        }
        let quantiles = [0.0, 0.5, 0.9, 0.99, 1.0];
        for delay in [&s.wait, &s.sojourn] {
            prop_assert!(quantiles.windows(2).all(|w| delay.quantile_ns(w[0]) <= delay.quantile_ns(w[1]) + 1e-9));
            prop_assert!(delay.mean_ns() >= 0.0 && delay.mean_ns() <= delay.quantile_ns(1.0) + 1.0);
        }
        prop_assert!(s.sojourn.mean_ns() > s.wait.mean_ns());
    }

    #[test]
    fn more_load_never_means_less_queue_or_loss(
        kind in 0..4usize,
        (batch, extra) in (1..24usize, 0..60usize),
    ) {
        let mut last: Option<Solution> = None;
        for load in [0.2, 0.5, 0.8, 0.95, 1.0, 1.05, 1.3, 2.0] {
            let mean = (60.0 + 8.0 * batch as f64) / batch as f64 / load;
            let a = match kind {
                0 => Interarrival::deterministic(mean),
                1 => Interarrival::poisson(mean),
                2 => Interarrival::geometric(mean),
                _ => Interarrival::negative_binomial(mean, 1.5),
            };
            let s = solve(parameters(batch + extra, batch, a.unwrap()));
            prop_assert!((s.load - load).abs() < 1e-9);
            if let Some(last) = last {
                prop_assert!(s.mean_queue >= last.mean_queue * (1.0 - 1e-9), "{load}");
                prop_assert!(s.p_loss >= last.p_loss * (1.0 - 1e-9), "{load}: {} {}", s.p_loss, last.p_loss);
                prop_assert!(s.throughput_pps >= last.throughput_pps * (1.0 - 1e-9), "{load}");
            }
            last = Some(s);
        }
    }

    /// Twice as many slots, each half as long, with the same times in ns: the same queue. Deterministic times
    /// that are whole in both leave no rounding, so this is to the last digits.
    #[test]
    fn the_slot_is_a_unit(batch in 1..12usize, extra in 0..40usize, mean in 3..40u32, factor in 2..5u32) {
        let at = |slot_ns: f64| Parameters {
            slot_ns,
            variation: Variation::Deterministic,
            ..parameters(batch + extra, batch, Interarrival::deterministic(f64::from(mean) / slot_ns).unwrap())
        };
        // The residual of a deterministic time is uniform over its slots, so only its ends depend on the
        // slot.
        match (Model::new(at(1.0)).unwrap().solve(), Model::new(at(1.0 / f64::from(factor))).unwrap().solve()) {
            (Ok(a), Ok(b)) => {
                prop_assert!((a.mean_batch - b.mean_batch).abs() < 1e-9 * a.mean_batch);
                prop_assert!((a.p_loss - b.p_loss).abs() < 1e-12);
                prop_assert!((a.throughput_pps / b.throughput_pps - 1.0).abs() < 1e-9);
            }
            (Err(_), Err(_)) => {}
            (a, b) => return Err(TestCaseError::fail(format!("{:?} {:?}", a.err(), b.err()))),
        }
    }
}

/// The share of sojourns up to a time.
fn share_up_to(s: &Solution, ns: f64) -> f64 {
    s.sojourn.cdf().take_while(|(at, _)| *at <= ns).last().map_or(0.0, |(_, share)| share)
}

/// Every result within three half-widths of its 99 % confidence interval: one in 10^13 fails by chance.
/// Quantiles of the sojourn within `apart` of what the simulation saw, beside the error that its share of
/// packets has: `noise` at the median, and what a queue brings along that is off by as much as its mean may
/// be, since near saturation it takes hundreds of polls to forget.
#[track_caller]
pub(crate) fn agrees(parameters: Parameters, polls: u64, apart: f64, noise: f64) {
    let model = Model::new(parameters.clone()).unwrap();
    let s = model.solve().unwrap();
    let places = parameters.queue as f64;
    let sim = simulate(&model, Effort { polls, warmup: polls / 10, seed: 11 }).unwrap();
    let name = format!("{} {:?} load {}", parameters.interarrival.name(), parameters.start, s.load);
    for (what, estimate, value) in [
        ("batch", sim.mean_batch, s.mean_batch),
        ("queue", sim.mean_queue, s.mean_queue),
        ("loss", sim.p_loss, s.p_loss),
        ("wait", sim.wait_ns, s.wait.mean_ns()),
        ("sojourn", sim.sojourn_ns, s.sojourn.mean_ns()),
    ] {
        // Events too rare to be seen have no interval.
        let unseen = estimate.half_width == 0.0
            && (value - estimate.mean).abs() < 10.0 / polls as f64 * estimate.mean.max(1.0);
        assert!(unseen || estimate.holds(value, 3.0), "{name}: {what}: {value} against {estimate:?}");
    }
    for (q, got) in [0.5, 0.9, 0.99].into_iter().zip(sim.sojourn_quantiles_ns) {
        let error = (noise + 3.0 * sim.mean_queue.half_width / places) * 2.0 * f64::sqrt(q * (1.0 - q));
        let (low, high) = (share_up_to(&s, got - apart), share_up_to(&s, got + apart));
        assert!(low <= q + error && high >= q - error, "{name}: p{q}: {low} to {high} around {got} ns");
    }
}

#[test]
fn the_simulation_agrees() {
    for load in [0.4, 0.9, 1.0, 1.2] {
        let mean = (60.0 + 8.0 * 16.0) / 16.0 / load;
        for a in [
            Interarrival::deterministic(mean),
            Interarrival::poisson(mean),
            Interarrival::geometric(mean),
            Interarrival::negative_binomial(mean, 1.5),
        ] {
            let a = a.unwrap();
            for start in [Start::Equilibrium, Start::Renewal] {
                agrees(Parameters { start, ..parameters(80, 16, a.clone()) }, 40_000, 3.0, 0.025);
            }
        }
    }
}

/// Bursts into a queue of few batches show it most that more packets come during a longer service before
/// one's own; that they find no place in a queue that is full; and that one's own batch may be small behind
/// full ones.
#[test]
fn quantiles_of_small_queues_agree() {
    for (queue, batch, load, cv) in
        [(8, 8, 0.9, 2.0), (12, 8, 0.5, 3.0), (20, 2, 0.8, 1.1), (64, 4, 0.5, 3.0), (100, 8, 0.6, 4.0)]
    {
        let mean = (60.0 + 8.0 * batch as f64) / batch as f64 / load;
        let a = Interarrival::negative_binomial(mean, cv).unwrap();
        agrees(parameters(queue, batch, a), 200_000, 3.0, 0.02);
    }
}

/// In a queue of one batch and little more, the last packets wait for a full batch and leave in a small one,
/// as those behind them find no place; behind two full ones a batch is small after a pause. Services don't
/// vary here, so that each batch size shows.
#[test]
fn own_batches_at_the_end_of_the_queue_agree() {
    for (queue, batch, load, cv) in
        [(17, 16, 0.9, 4.0), (9, 8, 1.1, 1.5), (3, 2, 0.3, 2.0), (21, 8, 0.95, 4.0)]
    {
        let mean = (60.0 + 8.0 * batch as f64) / batch as f64 / load;
        let a = Interarrival::negative_binomial(mean, cv).unwrap();
        let variation = Variation::Deterministic;
        agrees(Parameters { variation, ..parameters(queue, batch, a) }, 2_000_000, 2.0, 0.004);
    }
}

#[test]
fn the_simulation_agrees_at_full_size() {
    for (load, cv) in [(0.95, 1.0), (1.0, 2.0)] {
        let a = Interarrival::negative_binomial(20_312.0 / 256.0 / load, cv).unwrap();
        let service = ServiceTimes::linear(600.0, 77.0, 100.0).unwrap();
        // A bin is a 256th of the longest service, some 80 ns.
        agrees(Parameters { service, ..parameters(4096, 256, a) }, 30_000, 90.0, 0.15);
    }
}

/// The few packets that are accepted in deep overload wait as long as in the simulation.
#[test]
fn waits_in_deep_overload_agree() {
    let service = ServiceTimes::linear(600.0, 77.0, 100.0).unwrap();
    for (queue, batch) in [(1, 1), (4, 4), (64, 32), (256, 256)] {
        for a in [
            Interarrival::geometric(1.0),
            Interarrival::geometric(2.5),
            Interarrival::poisson(1.0),
            Interarrival::deterministic(2.0),
            Interarrival::deterministic(8.0),
            Interarrival::negative_binomial(3.0, 2.0),
        ] {
            let p = Parameters { service: service.clone(), ..parameters(queue, batch, a.unwrap()) };
            let model = Model::new(p).unwrap();
            let s = model.solve().unwrap();
            let sim = simulate(&model, Effort { polls: 3000, warmup: 300, seed: 5 }).unwrap();
            let name = format!("{} {queue} {batch} load {}", model.parameters().interarrival.name(), s.load);
            for (estimate, value) in [(sim.wait_ns, s.wait.mean_ns()), (sim.sojourn_ns, s.sojourn.mean_ns())]
            {
                assert!(estimate.holds(value, 3.0), "{name}: {value} against {estimate:?}");
            }
            let [p01, p999] = [0.001, 0.999].map(|q| s.wait.quantile_ns(q));
            assert!((p01..=p999).contains(&s.wait.mean_ns()), "{name}: {p01} {} {p999}", s.wait.mean_ns());
        }
    }
}

/// Arrivals as bursty as there are: an answer or a refusal, in bounded time and memory.
#[test]
fn the_most_bursty_arrivals_are_solved() {
    for cv in [50.0, 1000.0, 20_000.0] {
        let a = Interarrival::negative_binomial(80.0, cv).unwrap();
        let s = solve(parameters(64, 16, a));
        assert!(s.imbalance < 1e-9 && (0.0..1.0).contains(&s.p_loss), "{cv}");
    }
    // A whole interarrival time begins at every poll, and nothing bounds what a burst may bring.
    let a = Interarrival::negative_binomial(80.0, 20_000.0).unwrap();
    let renewal = Parameters { start: Start::Renewal, ..parameters(64, 16, a) };
    let error = Model::new(renewal).unwrap().solve().unwrap_err().to_string();
    assert!(error.contains("choose a longer slot"), "{error}");
    // Many packets in a slot, far more than the queue holds.
    let a = Interarrival::negative_binomial(2e-4, 200.0).unwrap();
    assert!(solve(parameters(1024, 16, a)).p_loss > 0.9);
}

/// β = 1, constant service, packets at random in continuous time: the mean number seen in an M/D/1 queue,
/// ρ + ρ²/(2(1 − ρ)). Slots a two-hundredth of the service come close to continuous time.
#[test]
fn one_packet_a_batch_is_m_d_1() {
    for rho in [0.3, 0.6, 0.8] {
        let service = 400.0;
        // An empty poll takes one slot: as good as none.
        let times = ServiceTimes::linear(0.0, service, 1.0).unwrap();
        let s = solve(Parameters {
            service: times,
            variation: Variation::Deterministic,
            ..parameters(200, 1, Interarrival::geometric(service / rho).unwrap())
        });
        let waiting = rho * service / (2.0 * (1.0 - rho));
        assert!((s.wait.mean_ns() / waiting - 1.0).abs() < 0.01, "{rho}: {} {waiting}", s.wait.mean_ns());
        assert!((s.sojourn.mean_ns() - s.wait.mean_ns() - service).abs() < 1e-6);
        assert!((s.utilization / rho - 1.0).abs() < 1e-9);
        assert!(s.p_loss < 1e-12);
    }
}

/// Bulk service with Poisson arrivals and an endless queue: the transform of the queue at polls has the mean
/// that follows from the β − 1 roots within the unit circle (Bailey 1954; here with β = 2, where the root is
/// real).
#[test]
fn two_packets_a_batch_is_bulk_service() {
    // Arrivals in a service of constant length: Poisson with mean 2ρ, whatever was taken.
    for rho in [0.3, 0.7, 0.9] {
        let service = 40_000.0;
        let mean = service / (2.0 * rho);
        let s = solve(Parameters {
            service: ServiceTimes::linear(service, 0.0, service).unwrap(),
            variation: Variation::Deterministic,
            slot_ns: 1.0,
            ..parameters(300, 2, Interarrival::geometric(mean).unwrap())
        });
        // P(z) = Σ q_i (z² − z^i) / (z²/K(z) − 1), K(z) = exp(−λ(1−z)): the numerator vanishes at the root z0
        // of z² = K(z) in (−1, 0) and at 1, where its slope is that of the denominator.
        let lambda = 2.0 * rho;
        let k = |z: f64| (-lambda * (1.0 - z)).exp();
        let (mut low, mut high) = (-1.0, 0.0);
        for _ in 0..200 {
            let mid = 0.5 * (low + high);
            if mid * mid > k(mid) { low = mid } else { high = mid }
        }
        let z0: f64 = 0.5 * (low + high);
        // q0 (z0² − 1) + q1 (z0² − z0) = 0 and 2 q0 + q1 = 2 − λ.
        let ratio = -(z0 * z0 - 1.0) / (z0 * z0 - z0);
        let q0 = (2.0 - lambda) / (2.0 + ratio);
        let q1 = ratio * q0;
        assert!((s.queue_pmf[0] / q0 - 1.0).abs() < 1e-3, "{rho}: {} {q0}", s.queue_pmf[0]);
        assert!((s.queue_pmf[1] / q1 - 1.0).abs() < 1e-3, "{rho}: {} {q1}", s.queue_pmf[1]);
    }
}

#[test]
fn bad_inputs_are_named() {
    let good = parameters(64, 16, Interarrival::poisson(20.0).unwrap());
    let cases = [
        (Parameters { batch: 65, ..good.clone() }, "larger than the queue"),
        (Parameters { batch: 0, ..good.clone() }, "largest batch"),
        (Parameters { queue: 1 << 30, ..good.clone() }, "queue"),
        (Parameters { slot_ns: 0.0, ..good.clone() }, "slot"),
        (Parameters { slot_ns: f64::NAN, ..good.clone() }, "slot"),
        (Parameters { slot_ns: 1e-9, ..good.clone() }, "longer slot"),
        (Parameters { service: ServiceTimes::linear(10.0, 1.0, 0.0).unwrap(), ..good.clone() }, "0 packets"),
        (Parameters { service: ServiceTimes::linear(0.0, 0.0, 1.0).unwrap(), ..good.clone() }, "1 packets"),
    ];
    for (parameters, word) in cases {
        let error = Model::new(parameters).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
    let model = Model::new(good).unwrap();
    assert!(simulate(&model, Effort { polls: 10, warmup: 0, seed: 1 }).is_err());
}

fn exact(queue: usize, batch: usize, interarrival: Interarrival) -> Model {
    let service = ServiceTimes::linear(12.0, 3.0, 4.0).unwrap();
    Model::new(Parameters { service, start: Start::Exact, ..parameters(queue, batch, interarrival) }).unwrap()
}

/// For a process without memory the residual in the state changes nothing.
#[test]
fn the_exact_start_of_arrivals_without_memory_is_the_equilibrium() {
    let pmf = Interarrival::geometric(2.0).unwrap().pmf().unwrap();
    let remembered = exact(24, 5, Interarrival::empirical(pmf).unwrap()).solve().unwrap();
    let forgotten = exact(24, 5, Interarrival::geometric(2.0).unwrap()).solve().unwrap();
    for (a, b) in remembered.queue_pmf.iter().zip(&forgotten.queue_pmf) {
        assert!((a - b).abs() < 1e-12, "{a} {b}");
    }
    for (a, b) in [
        (remembered.p_loss, forgotten.p_loss),
        (remembered.wait.mean_ns(), forgotten.wait.mean_ns()),
        (remembered.throughput_pps, forgotten.throughput_pps),
    ] {
        assert!((a / b - 1.0).abs() < 1e-6, "{a} {b}");
    }
}

/// The queue as it is, against the simulation that never starts anew; the equilibrium start is elsewhere.
#[test]
fn the_exact_start_is_what_a_simulation_without_restarts_says() {
    let bursts = Pmf::from_weights("test", 1, [[9.0].as_slice(), &[0.0; 28], &[1.0]].concat()).unwrap();
    let mut apart = false;
    for (name, interarrival) in [
        ("bursts", Interarrival::empirical(bursts).unwrap()),
        ("deterministic", Interarrival::deterministic(7.0).unwrap()),
        ("deterministic, between slots", Interarrival::deterministic(4.6).unwrap()),
        ("poisson", Interarrival::poisson(5.0).unwrap()),
    ] {
        let model = exact(40, 8, interarrival.clone());
        let s = model.solve().unwrap();
        let sim = simulate(&model, Effort { polls: 400_000, warmup: 10_000, seed: 3 }).unwrap();
        for (what, estimate, value) in [
            ("mean batch", sim.mean_batch, s.mean_batch),
            ("mean queue", sim.mean_queue, s.mean_queue),
            ("loss", sim.p_loss, s.p_loss),
            ("wait", sim.wait_ns, s.wait.mean_ns()),
            ("sojourn", sim.sojourn_ns, s.sojourn.mean_ns()),
        ] {
            // An event too rare for a simulation to meet is no difference.
            let rare = estimate.mean == 0.0 && value < 1e-7;
            assert!(rare || estimate.holds(value, 1.5), "{name}, {what}: {value} against {estimate:?}");
        }
        let rough = solve(Parameters { start: Start::Equilibrium, ..model.parameters().clone() });
        let off = |s: &Solution| -> f64 {
            s.batch_pmf.iter().zip(&sim.batch_pmf).map(|(a, b)| (a - b).abs()).sum()
        };
        assert!(off(&s) < 0.02, "{name}: {}", off(&s));
        apart |= off(&rough) > 3.0 * off(&s);
        let accepted = s.offered_pps * (1.0 - s.p_loss);
        assert!((s.throughput_pps / accepted - 1.0).abs() < 1e-9, "{name}: {} {accepted}", s.throughput_pps);
    }
    assert!(apart, "the equilibrium start is as good: the test can't tell them apart");
}

#[test]
fn an_exact_start_that_is_too_large_says_what_it_would_take() {
    let long = exact(4096, 256, Interarrival::negative_binomial(80.0, 2.0).unwrap());
    match long.solve() {
        Err(Error::ExactStart { mebibytes, residuals, .. }) => assert!(mebibytes > 1024.0 && residuals > 80),
        other => panic!("{other:?}"),
    }
}

/// Polls that hardly ever find a packet: one that comes is served all the same.
#[test]
fn packets_that_hardly_ever_come_are_served() {
    let a = Interarrival::deterministic(59.80815424633069).unwrap();
    let model = Model::new(Parameters { start: Start::Renewal, ..parameters(1, 1, a) }).unwrap();
    let s = model.solve().unwrap();
    assert!(s.batch_pmf[1] < 1e-11, "{:?}", s.batch_pmf);
    // A batch of one takes 68 slots in the mean.
    assert!((s.sojourn.mean_ns() - s.wait.mean_ns() - 68.0).abs() < 1.0);
    let (wait, sojourn) = (s.wait.quantile_ns(0.5), s.sojourn.quantile_ns(0.5));
    assert!((60.0..80.0).contains(&(sojourn - wait)), "{wait} {sojourn}");
    assert!(s.sojourn.quantile_ns(1.0) >= s.sojourn.mean_ns());
}

/// The mean of a distribution as its bins have it: half a bin before the end of each.
fn mean_of_bins(d: &slipstream_model::Delay) -> f64 {
    let ends: Vec<(f64, f64)> = d.cdf().collect();
    let first = ends.first().map_or(0.0, |(at, share)| at * share);
    first + ends.windows(2).map(|w| (w[0].0 + w[1].0) / 2.0 * (w[1].1 - w[0].1)).sum::<f64>()
}

/// A batch of one and a queue of twenty thousand: as many full batches before a packet. Work that grew with
/// the square of these took minutes; a queue that is never near full is that of a shorter one, and the bins
/// agree with the means, which don't come from bins, where waits are of one service and of thousands.
#[test]
fn long_queues_of_small_batches_are_solved() {
    let bursty = |mean| Interarrival::negative_binomial(mean, 10.0).unwrap();
    let [long, short] = [20_000, 2000].map(|queue| solve(parameters(queue, 1, bursty(100.0))));
    for q in [0.1, 0.5, 0.9, 0.99] {
        let (a, b) = (long.sojourn.quantile_ns(q), short.sojourn.quantile_ns(q));
        assert!((a / b - 1.0).abs() < 1e-4, "{q}: {a} {b}");
    }
    for (mean, cv) in [(67.9, 10.0), (68.0, 2.0), (60.0, 2.0)] {
        let a = Interarrival::negative_binomial(mean, cv).unwrap();
        let s = solve(parameters(20_000, 1, a));
        for d in [&s.wait, &s.sojourn] {
            let (bins, exact) = (mean_of_bins(d), d.mean_ns());
            assert!((bins / exact - 1.0).abs() < 1e-3, "{mean} {cv}: {bins} {exact}");
        }
    }
}

/// The longest queue of all where its upper part is never seen: numbers scaled down each time that one grows
/// too large, all of them, took minutes.
#[test]
fn the_longest_queue_is_solved() {
    let [long, short] = [1 << 20, 64].map(|queue| {
        solve(Parameters {
            start: Start::Equilibrium,
            ..parameters(queue, 1, Interarrival::poisson(100.0).unwrap())
        })
    });
    for (k, p) in short.queue_pmf.iter().enumerate().take(32) {
        assert!((long.queue_pmf[k] - p).abs() <= 1e-12 * p, "{k}: {} {p}", long.queue_pmf[k]);
    }
    assert!(long.p_loss == 0.0 && (long.sojourn.mean_ns() / short.sojourn.mean_ns() - 1.0).abs() < 1e-9);
}

#[test]
fn what_would_take_too_long_is_refused() {
    let a = Interarrival::negative_binomial(90.0, 10.0).unwrap();
    let service = ServiceTimes::linear(600.0, 77.0, 100.0).unwrap();
    let model = Model::new(Parameters { service, ..parameters(1_000_000, 100, a) }).unwrap();
    let error = model.solve().unwrap_err().to_string();
    assert!(error.starts_with("the elimination needs ") && error.contains("additions"), "{error}");
}
