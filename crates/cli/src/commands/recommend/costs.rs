//! The costs of packets, α and β′: those of a small file or of a saved result of `lab nf-locality`
//! (`--costs`), those that this lab measures now (`--measure`), or those of a typical chain.

use std::path::Path;

use anyhow::{Context, bail};
use serde_json::{Map, Value, json};
use slipstream::text_file;
use slipstream_lab::Lab;
use slipstream_model::Costs;

use crate::cli::recommend::Recommend;
use crate::ui::unreadable;

/// Default time of an empty poll, ns.
const EMPTY_POLL_NS: f64 = 100.0;
/// The function of a lab's result that counts by default.
const FUNCTION: &str = "chain";
/// The largest file, in bytes: a lab's result has some ten thousand.
const MAX_BYTES: u64 = 1 << 24;

/// Costs in ns, once for a train and once for each packet, of a chain of flow statistics, router, firewall
/// and NAT in polls of 32 packets, trains being of mixed lengths: about what `lab hold` measures on an AMD
/// EPYC (family 25, model 17).
const TYPICAL: (f64, f64) = (60.0, 65.0);

/// The origin of the costs of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    /// A file.
    File,
    /// They were measured for this answer.
    Here,
    /// They were taken for granted.
    Typical,
}

impl From {
    /// In a word, as JSON has it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Here => "measured",
            Self::Typical => "typical",
        }
    }
}

/// The costs that the command line asks for, whether they say what holding costs, and where they are from.
pub(super) fn of(args: &Recommend) -> anyhow::Result<(Costs, bool, From)> {
    let function = args.function.as_deref();
    if let Some(path) = &args.costs {
        let (costs, holds) = read(path, function).context("--costs")?;
        return Ok((costs, holds, From::File));
    }
    if args.measure {
        let results = super::super::lab::measure(Lab::find("nf-locality")?, true)?;
        let (costs, holds) = parse(&results.json().to_string(), function).context("--measure")?;
        return Ok((costs, holds, From::Here));
    }
    let (per_train_ns, per_packet_ns) = TYPICAL;
    let typical = json!({ "per_train_ns": per_train_ns, "per_packet_ns": per_packet_ns });
    let (costs, holds) = parse(&typical.to_string(), function)?;
    Ok((costs, holds, From::Typical))
}

/// Reads costs; `function` is which of a lab's, where one was asked for. Returns them, and whether they say
/// what holding costs.
fn read(path: &Path, function: Option<&str>) -> anyhow::Result<(Costs, bool)> {
    let name = || path.display().to_string();
    let text = text_file::read_at_most(path, MAX_BYTES).map_err(|error| unreadable(path, error))?;
    if text.len() as u64 >= MAX_BYTES {
        bail!("{}: too large for a file of costs", name());
    }
    parse(&text, function).with_context(name)
}

fn parse(text: &str, function: Option<&str>) -> anyhow::Result<(Costs, bool)> {
    let mut value: Value = serde_json::from_str(text).context("it is not JSON")?;
    if let Some(rows) = value.get("rows").and_then(Value::as_array) {
        return Ok((of_lab(rows, function.unwrap_or(FUNCTION))?, false));
    }
    if let Some(function) = function {
        bail!(
            "there is no function {function:?} in it (--function): it has costs, and not those of several functions"
        );
    }
    let Some(map) = value.as_object_mut() else { bail!("it is no JSON object") };
    map.entry("empty_poll_ns").or_insert_with(|| EMPTY_POLL_NS.into());
    let holds = map.contains_key("per_held_packet_ns");
    let costs: Costs = serde_json::from_value(value).context("neither costs nor the result of a lab")?;
    costs.check()?;
    Ok((costs, holds))
}

/// The line through what the lab measured, decisions being taken once per train.
fn of_lab(rows: &[Value], function: &str) -> anyhow::Result<Costs> {
    let rows = || rows.iter().filter_map(Value::as_object);
    let text = |row: &Map<String, Value>, key: &str| row.get(key).and_then(Value::as_str).map(str::to_owned);
    let number = |row: &Map<String, Value>, key: &str| row.get(key).and_then(Value::as_f64);
    let per_train = || rows().filter(|r| text(r, "per").as_deref() == Some("train"));
    let of = |row: &&Map<String, Value>| text(row, "function").as_deref() == Some(function);
    let points: Vec<(f64, f64)> = per_train()
        .filter(of)
        .filter_map(|r| Some((number(r, "slf")?, number(r, "ns_per_packet")?)))
        .collect();
    if !points.is_empty() {
        return Ok(Costs::fit(&points, EMPTY_POLL_NS)?);
    }
    let mut known: Vec<String> = per_train().filter_map(|r| text(r, "function")).collect();
    known.dedup();
    if known.is_empty() {
        bail!("it is the result of a lab, but not of nf-locality: it has no cost a packet by SLF");
    }
    bail!("there is no function {function:?} in it (--function); there are: {}", known.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read() {
        let (costs, holds) = parse(r#"{"per_train_ns": 500, "per_packet_ns": 200.5}"#, None).unwrap();
        assert!(!holds && costs.per_train_ns == 500.0 && costs.empty_poll_ns == EMPTY_POLL_NS);
        let (costs, holds) =
            parse(r#"{"per_train_ns": 1, "per_packet_ns": 2, "per_held_packet_ns": 60}"#, None).unwrap();
        assert!(holds && costs.per_held_packet_ns == 60.0);
        let row = |function: &str, per: &str, slf: f64, ns: f64| serde_json::json!({ "function": function, "per": per, "slf": slf, "ns_per_packet": ns });
        let lab = serde_json::json!({ "schema": 1, "rows": [
            row("chain", "train", 1.0, 700.0), row("chain", "packet", 1.0, 9.0), row("nat", "train", 1.0, 3.0),
            row("chain", "train", 2.0, 450.0), row("chain", "train", 4.0, 325.0), { "fit": "chain", "per": "train" },
        ]});
        let (costs, holds) = parse(&lab.to_string(), None).unwrap();
        assert!(
            !holds && (costs.per_train_ns - 500.0).abs() < 1e-9 && (costs.per_packet_ns - 200.0).abs() < 1e-9
        );
        let refused = |text: &str, function: &str| format!("{:#}", parse(text, Some(function)).unwrap_err());
        assert!(refused(&lab.to_string(), "dpi").contains("chain, nat"));
        assert!(refused(&lab.to_string(), "nat").contains("two localities"));
        let plain = r#"{"per_train_ns": 500, "per_packet_ns": 200.5}"#;
        assert!(refused(plain, "chain").contains("--function"));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, word) in [
            ("", "JSON"),
            ("[]", "object"),
            ("{}", "per_train_ns"),
            (r#"{"per_train_ns": 1, "per_packet_ns": 2, "typo": 3}"#, "typo"),
            (r#"{"per_train_ns": -1, "per_packet_ns": 2}"#, "-1"),
            (r#"{"per_train_ns": 1, "per_packet_ns": 2, "empty_poll_ns": 0}"#, "above zero"),
            (r#"{"rows": []}"#, "nf-locality"),
        ] {
            let error = format!("{:#}", parse(text, None).unwrap_err());
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
