//! `slipstream model compare`: the prediction beside a poll log, load by load.

use anyhow::{Context, anyhow, bail};
use serde_json::{Value, json};
use slipstream_model::{Comparison, Fit, Model, Parameters, PollLog, Solution, compare};
use slipstream_report::{Table, time};

use super::super::Outcome;
use super::{finish_beside, inputs, loss, mpps};
use crate::check;
use crate::cli::model::Compare;
use crate::replace::{Replacement, refuse_shared};
use crate::report::model::{Page, distribution};
use crate::ui::at_work;

/// Bytes that a frame takes on an Ethernet link beside its own: preamble, start and gap.
const OVERHEAD: u32 = 20;

struct Row {
    rate: String,
    measured: Vec<f64>,
    served_pps: f64,
    solution: Solution,
    comparison: Comparison,
}

pub(super) fn run(args: &Compare) -> anyhow::Result<Outcome> {
    let checks = check::parse_all(&args.reporting.fail_if)?;
    refuse_shared([("--report", args.report.as_deref())], [args.log.as_path()])?;
    let page = args.report.as_deref().map(|p| Replacement::create("--report", p)).transpose()?;
    let log = inputs::poll_log(&args.log, args.reading.clock)?;
    let found = inputs::line(&args.log, &log)?;
    let one_packet_ns = found.global.service_base_ns + found.global.service_per_packet_ns;
    inputs::warn_of_coarse(args.reading.slot.0, one_packet_ns);
    let rates: Vec<String> = log.rates().into_iter().map(str::to_owned).collect();
    if args.rate.is_some() && rates.len() > 1 {
        bail!("--rate is for a log of one load, and {} has {}", args.log.display(), rates.len());
    }
    let rows =
        rates.into_iter().map(|rate| row(args, &log, &found, rate)).collect::<anyhow::Result<Vec<_>>>()?;
    let result = json!({
        "schema": 1,
        "file": args.log.display().to_string(),
        "service_base_ns": found.global.service_base_ns,
        "service_per_packet_ns": found.global.service_per_packet_ns,
        "rates": rows.iter().map(json_row).collect::<Vec<_>>(),
        "relative_error_max": rows.iter().map(|r| r.comparison.relative_error).fold(0.0, f64::max),
        "jsd_max": rows.iter().map(|r| r.comparison.jsd).fold(0.0, f64::max),
    });
    let written = page.map_or(Ok(()), |file| report(&rows).write(file));
    finish_beside(written, &args.reporting, &checks, &result, || table(&rows))
}

fn row(args: &Compare, log: &PollLog, found: &Fit, rate: String) -> anyhow::Result<Row> {
    let what = || if rate.is_empty() { args.log.display().to_string() } else { format!("load {rate}") };
    let part = log.of_rate(&rate);
    let served_pps = part.rate_pps().ok_or_else(|| anyhow!("{}: no service has an end", what()))?;
    let offered = match (args.rate, args.frame_bytes) {
        (Some(rate), _) => rate.0,
        (None, Some(_)) if rate.is_empty() => bail!(
            "{}: --frame-bytes needs the load of each poll in Mbit/s, as column `rate`; or give --rate",
            what()
        ),
        (None, Some(bytes)) => {
            let mbit: f64 = rate.parse().with_context(|| format!("{}: not in Mbit/s", what()))?;
            mbit * 1e6 / (f64::from(bytes.saturating_add(OVERHEAD)) * 8.0)
        }
        (None, None) => served_pps,
    };
    let mean = inputs::mean_slots(offered, args.reading.slot.0)?;
    let interarrival =
        inputs::interarrival(&args.arrivals, args.reading.slot.0, Some(mean)).with_context(what)?;
    let (service, variation) = inputs::measured(
        log,
        found,
        (args.reading.fit, args.reading.service),
        Some(&rate),
        args.reading.empty_poll,
    )
    .with_context(what)?;
    let parameters = Parameters {
        queue: args.ring.queue,
        batch: args.ring.batch,
        slot_ns: args.reading.slot.0,
        interarrival,
        service,
        variation,
        start: inputs::start(args.reading.start),
    };
    let measured = part.batch_pmf();
    if measured.len() > args.ring.batch + 1 {
        bail!(
            "{}: a poll took {} packets, more than --batch {}",
            what(),
            measured.len() - 1,
            args.ring.batch
        );
    }
    let solved = at_work("solving", || Model::new(parameters).and_then(|m| m.solve()));
    let solution = solved.with_context(what)?;
    let comparison = compare(&measured, &solution.batch_pmf).with_context(what)?;
    Ok(Row { rate, measured, served_pps, solution, comparison })
}

fn json_row(r: &Row) -> Value {
    json!({
        "rate": r.rate,
        "measured_mean_batch": r.comparison.measured_mean,
        "predicted_mean_batch": r.comparison.predicted_mean,
        "relative_error": r.comparison.relative_error,
        "jsd": r.comparison.jsd,
        "served_pps": r.served_pps,
        "predicted": r.solution.summary(),
        "measured_batch_pmf": r.measured,
        "predicted_batch_pmf": r.solution.batch_pmf,
    })
}

fn table(rows: &[Row]) -> Table {
    let mut t = Table::default();
    t.title("Mean batch, measured and predicted");
    t.row([
        "load",
        "offered",
        "measured",
        "predicted",
        "relative error",
        "JSD",
        "predicted loss",
        "predicted p99",
    ]);
    for r in rows {
        let c = &r.comparison;
        t.row([
            if r.rate.is_empty() { "all".to_owned() } else { r.rate.clone() },
            mpps(r.solution.offered_pps),
            format!("{:.3}", c.measured_mean),
            format!("{:.3}", c.predicted_mean),
            format!("{:.2} %", c.relative_error * 100.0),
            format!("{:.4}", c.jsd),
            loss(r.solution.p_loss),
            time(Some(r.solution.sojourn.quantile_ns(0.99))),
        ]);
    }
    t
}

fn report(rows: &[Row]) -> Page {
    let worst = rows.iter().map(|r| r.comparison.relative_error).fold(0.0, f64::max);
    let mut page = Page::new(
        "Prediction beside measurement",
        &format!(
            "The mean batch is off by at most {:.2} %. A Jensen-Shannon divergence of 0 means equal distributions, one of 0.693 that they have \
         nothing in common.",
            worst * 100.0,
        ),
    );
    for (i, r) in rows.iter().enumerate() {
        let curves = [("measured", r.measured.as_slice()), ("predicted", r.solution.batch_pmf.as_slice())];
        let name = if r.rate.is_empty() {
            "Batch size".to_owned()
        } else {
            format!("Batch size at load {}", r.rate)
        };
        let caption = format!(
            "Measured mean {:.2}, predicted {:.2}: relative error {:.4}, divergence {:.4}.",
            r.comparison.measured_mean,
            r.comparison.predicted_mean,
            r.comparison.relative_error,
            r.comparison.jsd
        );
        page.figure(&format!("pmf{i}"), &name, &caption, distribution("packets", &curves, false));
        page.figure(
            &format!("cdf{i}"),
            &format!("{name}, cumulated"),
            &caption,
            distribution("packets", &curves, true),
        );
    }
    page
}
