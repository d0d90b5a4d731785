//! `slipstream model fit`: service times from a poll log.

use serde_json::{Value, json};
use slipstream_model::{Fit, Line};
use slipstream_report::{Table, count};

use super::super::Outcome;
use super::{finish, inputs};
use crate::check;
use crate::cli::model;

pub(super) fn run(args: &model::Fit) -> anyhow::Result<Outcome> {
    let checks = check::parse_all(&args.reporting.fail_if)?;
    let log = inputs::poll_log(&args.log, args.clock)?;
    let found = inputs::line(&args.log, &log)?;
    let per_rate = found.per_rate.iter().map(|(rate, line)| match line {
        Ok(line) => json!({ "rate": rate, "line": line, "why": null }),
        Err(error) => json!({ "rate": rate, "line": null, "why": error.to_string() }),
    });
    let piecewise = found
        .piecewise
        .as_ref()
        .map(|(low, high)| json!({ "knee": high.batch_min, "below": low, "from": high }));
    let result = json!({
        "schema": 1,
        "file": args.log.display().to_string(),
        "polls": log.polls(),
        "runs": log.runs.len(),
        "services": found.global.services,
        "service_base_ns": found.global.service_base_ns,
        "service_per_packet_ns": found.global.service_per_packet_ns,
        "r_squared": found.global.r_squared,
        "empty_poll_ns": found.empty_poll_ns,
        "rate_pps": log.rate_pps(),
        "global": found.global,
        "per_rate": per_rate.collect::<Vec<Value>>(),
        "piecewise": piecewise,
        "by_size": found.by_size,
    });
    finish(&args.reporting, &checks, &result, || table(&found, log.polls()))
}

fn table(fit: &Fit, polls: usize) -> Table {
    let mut t = Table::default();
    t.title("Service times");
    t.row(["polls", &count(polls as u64)]);
    if let Some(ns) = fit.empty_poll_ns {
        t.row(["empty poll", &format!("{ns:.1} ns")]);
    }
    t.title("Lines");
    t.row(["", "batches", "sizes", "a batch, ns", "a packet, ns", "R²", "sd, ns"]);
    t.row(row("all", &fit.global));
    for (rate, line) in fit.per_rate.iter().filter(|_| fit.per_rate.len() > 1) {
        match line {
            Ok(line) => t.row(row(&format!("load {rate}"), line)),
            Err(_) => t.row([format!("load {rate}"), "one size".to_owned()]),
        }
    }
    if let Some((low, high)) = &fit.piecewise {
        t.row(row(&format!("below {}", high.batch_min), low));
        t.row(row(&format!("from {}", high.batch_min), high));
    }
    t
}

fn row(name: &str, l: &Line) -> [String; 7] {
    [
        name.to_owned(),
        count(l.services),
        format!("{}..{}", l.batch_min, l.batch_max),
        format!("{:.1}", l.service_base_ns),
        format!("{:.2}", l.service_per_packet_ns),
        format!("{:.4}", l.r_squared),
        format!("{:.1}", l.sd_ns),
    ]
}
