//! `slipstream model sweep`: many loads, several arrival processes.

use std::thread;

use anyhow::{Context, bail};
use serde::Serialize;
use serde_json::json;
use slipstream_model::{Interarrival, Parameters, Solution, Summary, solve_all};
use slipstream_report::{Table, time};

use super::super::Outcome;
use super::{finish_beside, inputs, loss, mpps};
use crate::check;
use crate::cli::model::Sweep;
use crate::replace::{Replacement, refuse_shared};
use crate::report::model::{Curves, Page};
use crate::ui::at_work;

struct Point {
    process: String,
    solution: Solution,
}

/// A point, as the report has it.
#[derive(Serialize)]
struct Row<'a> {
    #[serde(flatten)]
    figures: Summary,
    process: &'a str,
}

pub(super) fn run(args: &Sweep) -> anyhow::Result<Outcome> {
    let checks = check::parse_all(&args.reporting.fail_if)?;
    refuse_shared([("--report", args.report.as_deref())], args.server.log.as_deref())?;
    let page = args.report.as_deref().map(|p| Replacement::create("--report", p)).transpose()?;
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.map_or(cores, usize::from);
    let slot_ns = args.server.reading.slot.0;
    // One slot between packets stands in until the mean is known.
    let base = inputs::parameters(
        &args.server,
        (args.ring.queue, args.ring.batch),
        Interarrival::deterministic(1.0)?,
    )?;
    let means = means(args, &base, slot_ns)?;
    let mut questions = Vec::new();
    for process in &args.processes {
        for mean in &means {
            let interarrival = named(process, *mean)?;
            questions.push((process, Parameters { interarrival, ..base.clone() }));
        }
    }
    let since = slipstream::clock::now();
    let parameters: Vec<Parameters> = questions.iter().map(|q| q.1.clone()).collect();
    let answers = at_work("solving", || solve_all(&parameters, threads));
    let points = questions.iter().zip(answers).map(|((process, p), answer)| {
        let at = || format!("{process}, {:.4} slots between packets", p.interarrival.mean());
        Ok(Point { process: (*process).clone(), solution: answer.with_context(at)? })
    });
    let points = points.collect::<anyhow::Result<Vec<_>>>()?;
    let elapsed_ns = since.elapsed().as_nanos() as u64;
    let rows = points.iter().map(|p| Row { figures: p.solution.summary(), process: &p.process });
    let result = json!({
        "schema": 1,
        "queue": args.ring.queue,
        "batch": args.ring.batch,
        "slot_ns": slot_ns,
        "rows": rows.collect::<Vec<_>>(),
        "elapsed_ns": elapsed_ns,
    });
    let written = page.map_or(Ok(()), |file| report(args, &points).write(file));
    finish_beside(written, &args.reporting, &checks, &result, || table(&points))
}

fn means(args: &Sweep, base: &Parameters, slot_ns: f64) -> anyhow::Result<Vec<f64>> {
    if args.loads.is_empty() {
        return args.rates.iter().map(|r| inputs::mean_slots(r.0, slot_ns)).collect();
    }
    if args.ring.batch == 0 {
        bail!("--batch 0: a poll must be able to take a packet");
    }
    let full = base.service.mean_ns(args.ring.batch) / slot_ns / args.ring.batch as f64;
    let mean = |load: &f64| match load {
        load if load.is_finite() && *load > 0.0 => Ok(full / load),
        load => bail!("--loads {load}: a load must be above 0"),
    };
    args.loads.iter().map(mean).collect()
}

/// An arrival process by name: `poisson`, `negbin:0.5`.
fn named(process: &str, mean: f64) -> anyhow::Result<Interarrival> {
    let (name, cv) = process.split_once(':').map_or((process, None), |(name, cv)| (name, Some(cv)));
    let made = match (name, cv) {
        ("deterministic", None) => Interarrival::deterministic(mean),
        ("poisson", None) => Interarrival::poisson(mean),
        ("geometric", None) => Interarrival::geometric(mean),
        ("negbin", Some(cv)) => {
            let number =
                cv.parse().with_context(|| format!("--processes {process}: {cv:?} is not a number"))?;
            Interarrival::negative_binomial(mean, number)
        }
        _ => bail!("--processes {process}: there are deterministic, poisson, geometric and negbin:CV"),
    };
    made.with_context(|| format!("--processes {process}"))
}

fn table(points: &[Point]) -> Table {
    let mut t = Table::default();
    for (i, p) in points.iter().enumerate() {
        if i == 0 || points.get(i - 1).is_some_and(|last| last.process != p.process) {
            t.title(p.process.clone());
            t.row(["offered", "load", "mean batch", "sd", "loss", "mean sojourn", "p99"]);
        }
        let s = &p.solution;
        t.row([
            mpps(s.offered_pps),
            format!("{:.3}", s.load),
            format!("{:.3}", s.mean_batch),
            format!("{:.3}", s.sd_batch),
            loss(s.p_loss),
            time(Some(s.sojourn.mean_ns())),
            time(Some(s.sojourn.quantile_ns(0.99))),
        ]);
    }
    t
}

fn report(args: &Sweep, points: &[Point]) -> Page {
    let mut page = Page::new(
        "Load and arrival process",
        &format!(
            "A queue of {} packets, polled for at most {}, over {}.",
            args.ring.queue,
            args.ring.batch,
            match points.len() / args.processes.len().max(1) {
                1 => "one load".to_owned(),
                loads => format!("{loads} loads"),
            },
        ),
    );
    let curves = |value: &dyn Fn(&Solution) -> f64| -> Curves {
        let of = |process: &String| {
            let mine = points.iter().filter(|p| p.process == *process);
            let mut line: Vec<_> = mine.map(|p| (p.solution.load, value(&p.solution))).collect();
            line.sort_by(|a, b| a.0.total_cmp(&b.0));
            (process.clone(), line)
        };
        args.processes.iter().map(of).collect::<Vec<_>>().into()
    };
    page.figure(
        "mean",
        "Mean batch against load",
        "Packets that a poll takes.",
        curves(&|s| s.mean_batch).named("load", "packets"),
    );
    page.figure(
        "loss",
        "Loss against load",
        "The share of packets that find the queue full; where an axis begins at 0, a point there stands for less than \
         1e-9.",
        curves(&|s| s.p_loss).named("load", "share lost").log(),
    );
    page.figure(
        "p99",
        "Sojourn of 99 of 100 packets",
        "From arrival to the end of service, in µs.",
        curves(&|s| s.sojourn.quantile_ns(0.99) / 1e3).named("load", "µs").log(),
    );
    page
}
