//! `slipstream slice switch`: how far slicing in a switch goes (Fig. 9).

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use slipstream_model::data_movement::switch::{Growth, Switch};
use slipstream_report::{Table, share};

use super::super::Outcome;
use super::finish;
use crate::check;
use crate::cli::slice::{GrowthKind, SliceSwitch};

pub(super) fn run(args: &SliceSwitch) -> anyhow::Result<Outcome> {
    let checks = check::parse_all(&args.reporting.fail_if)?;
    let switch = switch(&args.points)?;
    for card in &args.card {
        ensure!(
            card.is_finite() && (1.0..=10_000.0).contains(card),
            "--card {card}: 1 to 10000 Gbit/s are possible"
        );
    }
    let growths: &[Growth] = match args.growth {
        GrowthKind::Both => &Growth::BOTH,
        GrowthKind::Line => &[Growth::Line],
        GrowthKind::Proportional => &[Growth::Proportional],
    };
    let rows: Vec<Value> =
        args.card.iter().flat_map(|card| growths.iter().map(|g| row(&switch, *g, *card))).collect();
    let result = json!({ "schema": 1, "points": switch.points, "points_gbps": switch.gbps, "rows": rows });
    finish(&args.reporting, &checks, &result, || {
        let mut t = Table::default();
        t.title("Servers that a switch can slice for (model: SRAM, Little's law)");
        t.row(["card", "grows", "servers", "share of SRAM with 4", "8", "16", "32"]);
        for card in &args.card {
            for growth in growths {
                let at = |n| share(Some(switch.share(*growth, n, *card)));
                let servers = switch.servers(*growth, *card).to_string();
                t.row([
                    format!("{card} Gbit/s"),
                    growth.name().to_owned(),
                    servers,
                    at(4.0),
                    at(8.0),
                    at(16.0),
                    at(32.0),
                ]);
            }
        }
        t.title(
            "A card that slices for itself takes the same for any number of servers: slipstream slice size",
        );
        t
    })
}

fn row(switch: &Switch, growth: Growth, card: f64) -> Value {
    let shares: Vec<Value> = [4, 8, 12, 16, 20, 24, 28, 32]
        .into_iter()
        .map(|n| json!({ "servers": n, "sram_share": switch.share(growth, f64::from(n), card) }))
        .collect();
    json!({ "card_gbps": card, "growth": growth.name(), "servers": switch.servers(growth, card), "shares": shares })
}

/// A switch from `SERVERS:SHARE`, twice.
fn switch(points: &[String]) -> anyhow::Result<Switch> {
    let mut found = Vec::with_capacity(points.len());
    for text in points {
        let wrong = || format!("--points {text:?}: write SERVERS:SHARE, as in 4:0.26");
        let (servers, share) = text.split_once(':').with_context(wrong)?;
        let point: (f64, f64) = (servers.parse().with_context(wrong)?, share.parse().with_context(wrong)?);
        ensure!(point.0 >= 1.0 && point.0 <= 1e6 && point.1 > 0.0 && point.1 <= 1.0, wrong());
        found.push(point);
    }
    match found.as_slice() {
        [a, b] if a.0 < b.0 && a.1 < b.1 => Ok(Switch { points: [*a, *b], ..Switch::default() }),
        _ => anyhow::bail!("--points: two are needed, the second with more servers and a larger share"),
    }
}

#[cfg(test)]
mod tests {
    use super::switch;

    #[test]
    fn points_are_read_or_refused() {
        let of = |a: &str, b: &str| switch(&[a.to_owned(), b.to_owned()]);
        assert_eq!(
            of("4:0.26", "8:0.38").unwrap(),
            slipstream_model::data_movement::switch::Switch::default()
        );
        for (a, b) in [
            ("4:0.26", "4:0.38"),
            ("8:0.38", "4:0.26"),
            ("4", "8:0.38"),
            ("x:0.1", "8:0.38"),
            ("4:0.26", "8:38"),
            ("NaN:0.1", "8:0.3"),
        ] {
            assert!(of(a, b).is_err(), "{a} {b}");
        }
    }
}
