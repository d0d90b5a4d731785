//! `slipstream model solve`: one load.

use std::path::PathBuf;

use anyhow::bail;
use slipstream_model::{Effort, Error, Model, Report, Simulated, Solution, simulate};
use slipstream_report::{Table, time};

use super::super::Outcome;
use super::{finish_beside, inputs, loss, mpps};
use crate::check;
use crate::cli::model::Solve;
use crate::replace::{Replacement, refuse_shared};
use crate::report::model::{Page, distribution};
use crate::ui::at_work;

pub(super) fn run(args: &Solve) -> anyhow::Result<Outcome> {
    let checks = check::parse_all(&args.reporting.fail_if)?;
    let inputs = [&args.server.log, &args.arrivals.interarrivals].into_iter().flatten();
    refuse_shared([("--report", args.report.as_deref())], inputs.map(PathBuf::as_path))?;
    let page = args.report.as_deref().map(|p| Replacement::create("--report", p)).transpose()?;
    let slot_ns = args.server.reading.slot.0;
    let mean = match (args.mean, args.rate) {
        (Some(mean), _) => Some(mean),
        (None, Some(rate)) => Some(inputs::mean_slots(rate.0, slot_ns)?),
        (None, None) => None,
    };
    let interarrival = inputs::interarrival(&args.arrivals, slot_ns, mean)?;
    let parameters = inputs::parameters(&args.server, (args.ring.queue, args.ring.batch), interarrival)?;
    let since = slipstream::clock::now();
    let model = Model::new(parameters)?;
    let solution = match at_work("solving", || model.solve()) {
        // A start that is only simulated.
        Err(Error::ExactStart { .. }) if args.simulate.is_some() => None,
        other => Some(other?),
    };
    let elapsed_ns = since.elapsed().as_nanos() as u64;
    if page.is_some() && solution.is_none() {
        bail!("--report draws a solution, and this start is only simulated");
    }
    let effort = |polls| Effort { polls, warmup: polls / 10, seed: args.seed };
    let simulated = args.simulate.map(|polls| at_work("simulating", || simulate(&model, effort(polls.0))));
    let simulated = simulated.transpose()?;
    let result =
        serde_json::to_value(Report::new(&model, solution.as_ref(), simulated.as_ref(), elapsed_ns))?;
    let process = model.parameters().interarrival.name();
    let drawn = |solution| report(solution, simulated.as_ref(), process);
    let written = page.zip(solution.as_ref()).map_or(Ok(()), |(file, solution)| drawn(solution).write(file));
    finish_beside(written, &args.reporting, &checks, &result, || table(solution.as_ref(), simulated.as_ref()))
}

fn table(solution: Option<&Solution>, simulated: Option<&Simulated>) -> Table {
    let mut t = Table::default();
    if let Some(s) = solution {
        solved(&mut t, s);
    }
    if let Some(sim) = simulated {
        simulated_rows(&mut t, sim);
    }
    t
}

fn solved(t: &mut Table, s: &Solution) {
    t.title("Load");
    t.row(["load (1 is saturation)", &format!("{:.4}", s.load)]);
    t.row(["offered", &mpps(s.offered_pps)]);
    t.row(["throughput", &mpps(s.throughput_pps)]);
    t.row(["loss", &loss(s.p_loss)]);
    t.row(["time spent on packets", &format!("{:.2} %", s.utilization * 100.0)]);
    t.title("Packets");
    t.row(["", "mean", "sd", "p5", "p50", "p95"]);
    let at = |q| s.batch_quantile(q).to_string();
    let (mean, sd) = (format!("{:.3}", s.mean_batch), format!("{:.3}", s.sd_batch));
    t.row(["batch", &mean, &sd, &at(0.05), &at(0.5), &at(0.95)]);
    t.row(["queue at a poll", &format!("{:.3}", s.mean_queue)]);
    t.title("Time");
    t.row(["", "mean", "p50", "p90", "p99"]);
    for (name, d) in [("until the poll", &s.wait), ("until the end of service", &s.sojourn)] {
        let quantiles = [0.5, 0.9, 0.99].map(|q| time(Some(d.quantile_ns(q))));
        t.row([name.to_owned(), time(Some(d.mean_ns()))].into_iter().chain(quantiles));
    }
    t.title(format!("One more poll would change the distribution by {:.1e}", s.residual));
}

fn simulated_rows(t: &mut Table, sim: &Simulated) {
    t.title("Simulated, with 99 % confidence");
    t.row(["", "mean", "±"]);
    for (name, e) in [("batch", sim.mean_batch), ("queue at a poll", sim.mean_queue), ("loss", sim.p_loss)] {
        t.row([name, &format!("{:.5}", e.mean), &format!("{:.5}", e.half_width)]);
    }
    for (name, e) in [("until the poll", sim.wait_ns), ("until the end of service", sim.sojourn_ns)] {
        t.row([name, &time(Some(e.mean)), &time(Some(e.half_width))]);
    }
}

fn report(s: &Solution, simulated: Option<&Simulated>, process: &str) -> Page {
    let mut page = Page::new(
        "A queue served in batches",
        &format!(
            "{process} arrivals of {} at a load of {:.3}: batches of {:.2} packets on average, a loss of {}, and 99 of 100 packets \
         through in {}.",
            mpps(s.offered_pps),
            s.load,
            s.mean_batch,
            loss(s.p_loss),
            time(Some(s.sojourn.quantile_ns(0.99))),
        ),
    );
    let mut curves = vec![("model", s.batch_pmf.as_slice())];
    curves.extend(simulated.map(|sim| ("simulation", sim.batch_pmf.as_slice())));
    page.figure(
        "batch",
        "Batch size",
        "The share of polls that take so many packets.",
        distribution("packets", &curves, false),
    );
    page.figure(
        "batch-cdf",
        "Batch size, cumulated",
        "The share of polls that take at most so many packets.",
        distribution("packets", &curves, true),
    );
    let queue = [("model", s.queue_pmf.as_slice())];
    page.figure(
        "queue",
        "Queue at a poll",
        "The share of polls that find at most so many packets.",
        distribution("packets", &queue, true),
    );
    let line = |d: &slipstream_model::Delay| d.cdf().map(|(ns, p)| (ns / 1e3, p)).collect::<Vec<_>>();
    page.figure(
        "time",
        "Time",
        "The share of packets that are through within so many µs: until the poll that takes them, and \
         until the end of the service of their batch.",
        vec![("until the poll".to_owned(), line(&s.wait)), ("until the end".to_owned(), line(&s.sojourn))]
            .into(),
    );
    page
}
