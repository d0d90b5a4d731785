//! `slipstream recommend`: how long should packets be held, and what will it bring?
//!
//! `curve` holds the trace for every time there is to choose from, `costs` reads what packets cost by
//! locality, the model predicts what each hold would do at the offered load, `show` prints it.

mod costs;
mod curve;
mod show;

use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use slipstream_lab::frontier::Frontier;
use slipstream_model::{
    Costs, Error, Gain, Goal, Interarrival, Outlook, Parameters, Pmf, ServiceTimes, Start, Variation,
    outlook, recommend,
};

use super::Outcome;
use super::model::warn_of_coarse;
use crate::check;
use crate::cli::model::Process;
use crate::cli::recommend::{Aim, Recommend};
use crate::port::is_special;
use crate::replace::{Replacement, refuse_shared};
use crate::ui;
use curve::Arrived;

/// Length of the model's slots where packets come often.
const USUAL_SLOT_NS: f64 = 10.0;
/// Time between two looks for an interrupt while the model is solved.
const LOOK: Duration = Duration::from_millis(5);

/// Everything that was found out.
struct Answer {
    packets: u64,
    duration_ns: u64,
    trace_pps: f64,
    offered_pps: f64,
    interarrival: Interarrival,
    costs: Costs,
    costs_from: costs::From,
    slot_ns: f64,
    /// The cost of holding was measured on this machine.
    measured: bool,
    curve: Vec<Gain>,
    outlooks: Vec<Outlook>,
    best: Outlook,
    /// Fixed holds beside the adaptive one and clairvoyance, of so many packets.
    frontier: Frontier,
    frontier_packets: usize,
}

pub(super) fn run(args: &Recommend) -> anyhow::Result<Outcome> {
    let checks = check::parse_all(&args.reporting.fail_if)?;
    let read = [Some(args.trace.as_path()), args.costs.as_deref()];
    refuse_shared([("--report", args.report.as_deref())], read.into_iter().flatten())?;
    let page = args.report.as_deref().map(|p| Replacement::create("--report", p)).transpose()?;
    if args.trace.as_os_str() == "-" {
        bail!("the trace is read once a hold, and stdin can be read only once: name a file");
    }
    if is_special(&args.trace) {
        bail!(
            "{}: the trace is read once a hold, and this is no file but can be read only once: name a file",
            args.trace.display()
        );
    }
    let interrupted = ui::interrupts()?;
    let (mut costs, known, costs_from) = costs::of(args)?;
    let holds = holds(args);
    let arrived = Arrived::read(&args.trace, args.damage.strict, &interrupted)?;
    // Where nothing may be held, holding costs nothing.
    let measured = args.hold_cost.is_none() && !known && holds.iter().any(|hold| *hold > 0);
    if let Some(cost) = args.hold_cost {
        costs.per_held_packet_ns = cost.0;
    } else if measured {
        costs.per_held_packet_ns = arrived.hold_cost_ns(&holds, args.burst, &interrupted)?.context(
            "the trace has too few Ethernet packets to measure what holding costs: give --hold-cost TIME",
        )?;
    }
    let curve = curve::gains(&args.trace, &holds, args.burst, &interrupted)?;
    let none = curve.first().map_or(1.0, |g| g.slf);
    let offered_pps = match (args.rate, args.load) {
        (Some(rate), _) => rate.0,
        (None, Some(load)) if load.is_finite() && load > 0.0 => {
            load * 1e9 / (costs.packet_ns(none) + costs.per_batch_ns / args.ring.batch.max(1) as f64)
        }
        (None, Some(load)) => bail!("--load {load}: a load is above 0"),
        (None, None) => arrived.rate_pps(),
    };
    let slot_ns = slot_ns(args, offered_pps)?;
    if args.slot.is_some() {
        warn_of_coarse(slot_ns, costs.per_batch_ns + costs.packet_ns(none));
    }
    let interarrival = interarrival(args, &arrived, offered_pps, slot_ns)
        .with_context(|| args.trace.display().to_string())?;
    let base = Parameters {
        queue: args.ring.queue,
        batch: args.ring.batch,
        slot_ns,
        interarrival: interarrival.clone(),
        // Every hold has its own.
        service: ServiceTimes::linear(costs.per_batch_ns, costs.packet_ns(none), costs.empty_poll_ns)?,
        variation: Variation::Poisson,
        start: Start::Equilibrium,
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let gains = curve.clone();
    let outlooks = unless(&interrupted, move || outlook(&base, &costs, &gains, threads))??;
    let goal = Goal { aim: aim(args.aim), p99_ns: args.p99.map(|t| t.0) };
    let best = *recommend(&outlooks, goal).ok_or_else(|| unreachable(&outlooks, goal))?;
    let (frontier, frontier_packets) = arrived.frontier(&holds, args.burst, &interrupted)?;
    let answer = Answer {
        packets: arrived.packets,
        duration_ns: arrived.duration_ns,
        trace_pps: arrived.rate_pps(),
        offered_pps,
        interarrival,
        costs,
        costs_from,
        measured,
        slot_ns,
        curve,
        outlooks,
        best,
        frontier,
        frontier_packets,
    };
    let result = show::json(args, &answer);
    let written = page.map_or(Ok(()), |file| show::page(args, &answer).write(file));
    super::finish_beside(written, &args.reporting, &checks, &result, || show::table(args, &answer))
}

/// Does work on another thread, which is left alone with it where the user interrupts.
fn unless<T: Send + 'static>(
    interrupted: &AtomicBool,
    work: impl FnOnce() -> T + Send + 'static,
) -> anyhow::Result<T> {
    let worker = thread::Builder::new().spawn(work)?;
    while !worker.is_finished() {
        ui::unless(interrupted)?;
        thread::sleep(LOOK);
    }
    worker.join().map_err(|_| anyhow!("a thread of the model failed"))
}

/// The holds to choose from in order, none at all first.
fn holds(args: &Recommend) -> Vec<u64> {
    let mut holds: Vec<u64> = args.holds.iter().map(|h| h.0).chain([0]).collect();
    holds.sort_unstable();
    holds.dedup();
    holds
}

fn aim(aim: Aim) -> slipstream_model::Aim {
    match aim {
        Aim::Throughput => slipstream_model::Aim::Throughput,
        Aim::Capacity => slipstream_model::Aim::Capacity,
        Aim::Latency => slipstream_model::Aim::Latency,
    }
}

/// The length of the model's slots: 10 ns, or the next power of ten with which a gap has so few of them that
/// the model is soon solved.
fn slot_ns(args: &Recommend, rate_pps: f64) -> anyhow::Result<f64> {
    const SLOTS: f64 = 1e6;
    match args.slot {
        Some(slot) if slot.0 <= 0.0 => bail!("--slot 0: a slot must last"),
        Some(slot) => Ok(slot.0),
        None => {
            let tens = (1e9 / rate_pps / USUAL_SLOT_NS / SLOTS).log10().ceil().max(0.0);
            Ok(USUAL_SLOT_NS * 10f64.powf(tens))
        }
    }
}

/// Interarrival times at this rate: of the distribution asked for, else with the trace's coefficient of
/// variation.
fn interarrival(
    args: &Recommend,
    arrived: &Arrived,
    rate_pps: f64,
    slot_ns: f64,
) -> anyhow::Result<Interarrival> {
    let mean = 1e9 / rate_pps / slot_ns;
    if args.cv.is_some() && args.interarrival.is_some_and(|p| p != Process::Negbin) {
        bail!("--cv is for --interarrival negbin; the variation of the others follows from their mean");
    }
    Ok(match args.interarrival {
        Some(Process::Deterministic) => Interarrival::deterministic(mean)?,
        Some(Process::Poisson) => Interarrival::poisson(mean)?,
        Some(Process::Geometric) => Interarrival::geometric(mean)?,
        Some(Process::Empirical) => {
            // The gaps of the trace, stretched to the rate.
            let factor = arrived.rate_pps() / rate_pps / slot_ns;
            Interarrival::empirical(Pmf::from_samples("gaps", arrived.gaps.iter().map(|g| g * factor))?)?
        }
        Some(Process::Negbin) | None => {
            let cv = args.cv.unwrap_or_else(|| arrived.cv());
            match Interarrival::negative_binomial(mean, cv) {
                // Less variation than a negative binomial can have: the nearest that there is.
                Err(_) if args.cv.is_none() && cv * cv * mean < 0.25 => Interarrival::deterministic(mean)?,
                Err(Error::Variation { .. }) if args.cv.is_none() && cv * cv * mean <= 1.0 + 1e-6 => {
                    Interarrival::poisson(mean)?
                }
                other => other?,
            }
        }
    })
}

fn unreachable(outlooks: &[Outlook], goal: Goal) -> Error {
    let shortest = outlooks.iter().min_by(|a, b| a.p99_latency_ns.total_cmp(&b.p99_latency_ns));
    Error::Unreachable(match (shortest, goal.p99_ns) {
        (Some(o), Some(most)) => format!(
            "no hold keeps 99 of 100 packets within {}; the least is {}, with a hold of {}",
            slipstream_report::time(Some(most)),
            slipstream_report::time(Some(o.p99_latency_ns)),
            slipstream_report::time(Some(o.hold_ns)),
        ),
        _ => "there is no hold to choose from".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_ends_what_takes_long() {
        let (flag, (end, ended)) = (AtomicBool::new(false), std::sync::mpsc::channel::<()>());
        assert_eq!(unless(&flag, || 7).unwrap(), 7);
        flag.store(true, std::sync::atomic::Ordering::Relaxed);
        let error = unless(&flag, move || ended.recv()).unwrap_err();
        assert!(error.is::<ui::Interrupted>(), "{error}");
        drop(end);
        let trace = std::path::Path::new("synth:packets=5000");
        let error = Arrived::read(trace, false, &flag).err().unwrap();
        assert!(error.is::<ui::Interrupted>(), "{error}");
    }
}
