//! Rates of a pipeline between two of its reports.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use slipstream_report::{Table, time, visible};

use crate::counters::LOST;

/// A source or a stage between two looks.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) kind: String,
    /// Packets a second that came in; none of a source, where they come from outside.
    pub(super) came: Option<f64>,
    /// Packets a second that went on.
    pub(super) left: f64,
    /// Bits a second that a port received, sent or wrote; none of a stage that counts no bytes.
    pub(super) bits: Option<f64>,
    /// Packets a train; none where none came.
    pub(super) mean_train: Option<f64>,
    /// Share of the time that the stage itself worked; none of a source.
    pub(super) busy: Option<f64>,
    /// Packets that it holds now.
    pub(super) held: u64,
    /// Packets a second that it dropped, by reason, or that a source lost before any stage saw them, by
    /// counter; those that are none are left out.
    pub(super) dropped: Vec<(String, f64)>,
}

/// The hold that a stage has set itself.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Hold {
    stage: String,
    /// In shards each sets its own.
    shard: Option<usize>,
    /// The stage's own words about it.
    auto: Value,
}

/// A pipeline between two looks.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rates {
    pub(super) seconds: f64,
    /// Packets a second, of all sources.
    pub(super) came: f64,
    /// Packets a second, of all sinks.
    pub(super) left: f64,
    /// Packets a second that were dropped, by reason, those that are none left out.
    pub(super) dropped: Vec<(String, f64)>,
    /// Packets a second that sources lost before any stage saw them, by counter, those that are none left
    /// out.
    pub(super) lost: Vec<(String, f64)>,
    /// Packets inside now.
    pub(super) inside: u64,
    /// Cores' worth of CPU time that the data path took.
    pub(super) cpu: f64,
    /// Since the beginning: how much later than due packets left, median and 99th percentile, in ns.
    pub(super) excess_ns: Option<(f64, f64)>,
    /// Sources, then stages, in the order of the pipeline.
    pub(super) rows: Vec<Row>,
    /// The stages whose holds set themselves.
    pub(super) holds: Vec<Hold>,
}

/// The two looks are not of one run, or no time lies between them.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the pipeline that is watched was started anew")]
pub(super) struct Restarted;

impl Rates {
    /// From two answers of `/report`.
    pub(super) fn between(before: &Value, after: &Value) -> Result<Self, Restarted> {
        let since = |of: &[&str]| Some(number(after, of)? - number(before, of)?);
        let seconds = since(&["time_ns"]).unwrap_or(0.0) / 1e9;
        let came = since(&["packets_in"]).ok_or(Restarted)?;
        if seconds <= 0.0 || came < 0.0 {
            return Err(Restarted);
        }
        let (mut rows, mut holds) = (Vec::new(), Vec::new());
        let shards = items(after, "shards").iter().enumerate().map(|(n, shard)| (Some(n), shard));
        for (shard, part) in std::iter::once((None, after)).chain(shards) {
            for stage in items(part, "stages") {
                let name = stage.get("name").and_then(Value::as_str).unwrap_or_default();
                let told = stage.get("report").unwrap_or(&Value::Null);
                let hold = |auto: &Value| Hold { stage: name.to_owned(), shard, auto: auto.clone() };
                holds.extend(items(told, "auto").iter().map(hold));
            }
        }
        for list in ["sources", "stages"] {
            let (old, new) = (items(before, list), items(after, list));
            let same = |(a, b): (&Value, &Value)| ["name", "type"].iter().all(|k| a.get(k) == b.get(k));
            if old.len() != new.len() || !old.iter().zip(new).all(same) {
                return Err(Restarted);
            }
            rows.extend(old.iter().zip(new).map(|(old, new)| Row::between(old, new, seconds)));
        }
        let sources = items(before, "sources").iter().zip(items(after, "sources"));
        let lost = sources.flat_map(|(old, new)| lost(old, new, seconds));
        let excess = |q: &str| number(after, &["excess_delay_ns", q]);
        Ok(Self {
            seconds,
            came: came / seconds,
            left: since(&["packets_out"]).unwrap_or(0.0) / seconds,
            dropped: dropped(before, after, seconds),
            lost: added_up(lost),
            inside: number(after, &["left_inside"]).unwrap_or(0.0) as u64,
            cpu: since(&["cpu_ns"]).unwrap_or(0.0) / 1e9 / seconds,
            excess_ns: excess("p50").zip(excess("p99")),
            rows,
            holds,
        })
    }

    pub(super) fn as_json(&self) -> Value {
        let row = |r: &Row| {
            json!({
                "name": r.name,
                "type": r.kind,
                "packets_in_pps": r.came,
                "packets_out_pps": r.left,
                "bits_per_second": r.bits,
                "mean_train": r.mean_train,
                "busy": r.busy,
                "held": r.held,
                "dropped_pps": by_reason(&r.dropped),
            })
        };
        json!({
            "schema": 1,
            "interval_ns": (self.seconds * 1e9) as u64,
            "packets_in_pps": self.came,
            "packets_out_pps": self.left,
            "dropped_pps": by_reason(&self.dropped),
            "lost_pps": by_reason(&self.lost),
            "inside": self.inside,
            "cpu": self.cpu,
            "excess_delay_ns": self.excess_ns.map(|(p50, p99)| json!({ "p50": p50 as u64, "p99": p99 as u64 })),
            "stages": self.rows.iter().map(row).collect::<Vec<_>>(),
            "holds": self.holds.iter().map(Hold::as_json).collect::<Vec<_>>(),
        })
    }

    pub(super) fn as_table(&self) -> Table {
        let mut t = Table::default();
        t.title(format!("Packets a second, over {:.1} s", self.seconds));
        t.row(["in".to_owned(), per_second(self.came)]);
        t.row(["out".to_owned(), per_second(self.left)]);
        for (reason, rate) in &self.dropped {
            t.row([format!("dropped: {reason}"), per_second(*rate)]);
        }
        for (counter, rate) in &self.lost {
            t.row([format!("lost before the pipeline: {counter}"), per_second(*rate)]);
        }
        t.row(["inside now".to_owned(), self.inside.to_string()]);
        t.row(["CPU, cores".to_owned(), format!("{:.2}", self.cpu)]);
        t.title("Stages");
        t.row(HEADING);
        for row in &self.rows {
            t.row(row.cells());
        }
        self.holds.iter().for_each(|hold| hold.show(&mut t));
        t
    }
}

impl Hold {
    fn as_json(&self) -> Value {
        let mut hold = json!({ "stage": self.stage, "auto": self.auto });
        if let (Some(shard), Some(fields)) = (self.shard, hold.as_object_mut()) {
            fields.insert("shard".to_owned(), shard.into());
        }
        hold
    }

    /// Shows it, and what others would give.
    fn show(&self, t: &mut Table) {
        let of = |v: &Value, key: &str| time(number(v, &[key]));
        let shard = self.shard.map(|n| format!(" in shard {n}")).unwrap_or_default();
        t.title(format!(
            "Holds of {}{shard}, at present {}",
            visible(&self.stage),
            of(&self.auto, "hold_ns")
        ));
        t.row(["hold", "mean train", "delay, mean", "futile wait a packet"]);
        for tried in items(&self.auto, "tried") {
            let train = number(tried, &["mean_train"]);
            let train = train.map_or_else(|| "–".to_owned(), |n| format!("{n:.2}"));
            t.row([of(tried, "hold_ns"), train, of(tried, "mean_delay_ns"), of(tried, "futile_wait_ns")]);
        }
    }
}

/// The headings of a row's cells.
pub(super) const HEADING: [&str; 9] =
    ["", "type", "in/s", "out/s", "bit/s", "a train", "busy", "held", "dropped/s"];

/// Counters by which ports tell the bytes of their packets.
const BYTES: [&str; 5] = ["bytes", "bytes_received", "bytes_sent", "bytes_written", "bytes_counted"];

impl Row {
    fn between(before: &Value, after: &Value, seconds: f64) -> Self {
        let since = |key: &str| Some((number(after, &[key])? - number(before, &[key])?).max(0.0));
        let text = |key: &str| after.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let came = since("packets_in");
        let is_source = came.is_none();
        let trains = since("trains").filter(|n| *n > 0.0);
        Self {
            name: text("name"),
            kind: text("type"),
            came: came.map(|n| n / seconds),
            left: since("packets_out").or_else(|| since("packets")).unwrap_or(0.0) / seconds,
            bits: BYTES.iter().find_map(|name| {
                let bytes = |of: &Value| number(of, &["counters", name]);
                Some((bytes(after)? - bytes(before)?).max(0.0) * 8.0 / seconds)
            }),
            mean_train: came.zip(trains).map(|(packets, trains)| packets / trains),
            busy: since("busy_ns").map(|ns| ns / 1e9 / seconds),
            held: number(after, &["held"]).unwrap_or(0.0) as u64,
            dropped: dropped(before, after, seconds)
                .into_iter()
                .chain(lost(before, after, seconds).filter(|_| is_source))
                .collect(),
        }
    }

    /// The row as a table shows it, in the order of [`HEADING`].
    pub(super) fn cells(&self) -> [String; 9] {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "–".to_owned());
        // Packets that a port sends or writes go on to no stage.
        let is_last = self.left == 0.0 && self.came.is_some() && self.bits.is_some();
        let lost: f64 = self.dropped.iter().map(|(_, rate)| rate).sum();
        let why = self.dropped.iter().max_by(|a, b| a.1.total_cmp(&b.1)).map(|(why, _)| why.as_str());
        [
            visible(&self.name),
            visible(&self.kind),
            or_dash(self.came.map(per_second)),
            or_dash((!is_last).then(|| per_second(self.left))),
            or_dash(self.bits.map(per_second)),
            or_dash(self.mean_train.map(|n| format!("{n:.1}"))),
            or_dash(self.busy.map(|share| format!("{:.1} %", share * 100.0))),
            if self.held < 1_000_000 { self.held.to_string() } else { per_second(self.held as f64) },
            why.map_or("0".to_owned(), |why| format!("{} {}", per_second(lost), visible(why))),
        ]
    }
}

/// A rate, or a large number, as people read it: three digits and the power of a thousand.
pub(super) fn per_second(rate: f64) -> String {
    let (scaled, suffix) = match rate {
        r if r >= 999.5e6 => (r / 1e9, " G"),
        r if r >= 999.5e3 => (r / 1e6, " M"),
        r if r >= 999.5 => (r / 1e3, " k"),
        r => (r, ""),
    };
    let decimals = match scaled {
        s if s >= 99.95 => 0,
        s if s >= 9.995 => 1,
        _ => 2,
    };
    let decimals = if suffix.is_empty() && rate.fract() == 0.0 { 0 } else { decimals };
    format!("{scaled:.decimals$}{suffix}")
}

fn items<'a>(report: &'a Value, list: &str) -> &'a [Value] {
    report.get(list).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn number(report: &Value, path: &[&str]) -> Option<f64> {
    path.iter().try_fold(report, |at, key| at.get(key))?.as_f64()
}

/// Packets a second that were dropped, by reason, those that are none left out.
fn dropped(before: &Value, after: &Value, seconds: f64) -> Vec<(String, f64)> {
    let all = after.get("dropped").and_then(Value::as_object);
    let rate = |(reason, n): (&String, &Value)| {
        let old = number(before, &["dropped", reason]).unwrap_or(0.0);
        let rate = (n.as_f64()? - old) / seconds;
        (rate > 0.0).then(|| (reason.clone(), rate))
    };
    all.into_iter().flatten().filter_map(rate).collect()
}

/// Packets a second that a source lost before any stage saw them, by counter, those that are none left out.
fn lost<'a>(before: &'a Value, after: &'a Value, seconds: f64) -> impl Iterator<Item = (String, f64)> + 'a {
    let counter = |of: &Value, name: &str| number(of, &["counters", name]);
    LOST.into_iter().filter_map(move |name| {
        let rate = (counter(after, name)? - counter(before, name).unwrap_or(0.0)) / seconds;
        (rate > 0.0).then(|| (name.to_owned(), rate))
    })
}

/// Rates of the same name as one.
fn added_up(rates: impl Iterator<Item = (String, f64)>) -> Vec<(String, f64)> {
    let mut all = BTreeMap::new();
    rates.for_each(|(name, rate)| *all.entry(name).or_default() += rate);
    all.into_iter().collect()
}

fn by_reason(dropped: &[(String, f64)]) -> Value {
    Value::Object(dropped.iter().map(|(reason, rate)| (reason.clone(), (*rate).into())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(time_ns: u64, packets: u64, denied: u64) -> Value {
        json!({
            "time_ns": time_ns, "packets_in": packets, "packets_out": packets - denied, "left_inside": 7, "cpu_ns": time_ns / 4,
            "dropped": { "denied": denied, "no_route": 3 },
            "excess_delay_ns": { "p50": 900, "p99": 4000 },
            "sources": [{ "name": "in", "type": "paced", "packets": packets,
                "counters": { "bytes": 64 * packets } }],
            "stages": [
                { "name": "fw", "type": "firewall", "packets_in": packets, "packets_out": packets - denied, "trains": packets / 4,
                  "busy_ns": time_ns / 10, "held": 7, "dropped": { "denied": denied } },
            ],
        })
    }

    #[test]
    fn rates_are_differences_over_time() {
        let rates =
            Rates::between(&report(1_000_000_000, 1000, 10), &report(3_000_000_000, 5000, 30)).unwrap();
        assert_eq!((rates.seconds, rates.came, rates.left), (2.0, 2000.0, 1990.0));
        assert_eq!(rates.dropped, [("denied".to_owned(), 10.0)], "what was dropped before doesn't count");
        assert_eq!((rates.inside, rates.cpu, rates.excess_ns), (7, 0.25, Some((900.0, 4000.0))));
        let [source, stage] = rates.rows.as_slice() else { panic!("{rates:?}") };
        assert_eq!(source.cells(), ["in", "paced", "–", "2.00 k", "1.02 M", "–", "–", "0", "0"]);
        assert_eq!(
            stage.cells(),
            ["fw", "firewall", "2.00 k", "1.99 k", "–", "4.0", "10.0 %", "7", "10 denied"]
        );
        let json = rates.as_json();
        assert_eq!(json["stages"][1]["dropped_pps"]["denied"], 10.0);
        assert_eq!(json["interval_ns"], 2_000_000_000u64);
    }

    /// Packets that a port loses never come to a stage that could drop them.
    #[test]
    fn what_sources_lose_before_the_pipeline_is_shown() {
        let with = |time_ns: u64, lost: u64| {
            let mut report = report(time_ns, 1000 + time_ns / 1_000_000, 0);
            let source = |name: &str, lost: u64| {
                let counters = json!({ "dropped_by_queue": lost, "no_buffer": lost, "missed": 0 });
                json!({ "name": name, "type": "paced", "packets": 1000, "counters": counters })
            };
            report["sources"] = json!([source("a", lost), source("b", 2 * lost)]);
            report
        };
        let rates = Rates::between(&with(1_000_000_000, 10), &with(3_000_000_000, 30)).unwrap();
        assert_eq!(rates.lost, [("dropped_by_queue".to_owned(), 30.0)]);
        assert_eq!(rates.rows[1].cells()[8], "20 dropped_by_queue");
        let json = rates.as_json();
        assert_eq!(json["lost_pps"], json!({ "dropped_by_queue": 30.0 }));
        assert_eq!(json["dropped_pps"], json!({}), "no stage dropped any");
        let table = rates.as_table().render(None);
        assert!(table.contains("lost before the pipeline: dropped_by_queue"), "{table}");
    }

    /// In shards each stage has set a hold of its own; all are shown.
    #[test]
    fn holds_of_all_shards_are_there() {
        let told = |hold_ns: u64| {
            let tried = json!([{ "hold_ns": 16_000, "mean_train": 1.5, "mean_delay_ns": 9000, "futile_wait_ns": 10 }]);
            json!({ "auto": [{ "class": 0, "hold_ns": hold_ns, "tried": tried }] })
        };
        let (before, mut after) = (report(1_000_000_000, 1000, 10), report(3_000_000_000, 5000, 30));
        let shard = |hold_ns: u64| json!({ "stages": [{ "name": "fw", "report": told(hold_ns) }] });
        after["shards"] = json!([shard(32_000), shard(64_000)]);
        let rates = Rates::between(&before, &after).unwrap();
        let json = rates.as_json();
        let holds = items(&json, "holds").iter();
        let holds: Vec<_> = holds.map(|h| (h["shard"].as_u64(), h["auto"]["hold_ns"].as_u64())).collect();
        assert_eq!(holds, [(Some(0), Some(32_000)), (Some(1), Some(64_000))]);
        let shown = rates.as_table().render(None);
        assert!(shown.contains("Holds of fw in shard 1, at present 64.0 µs"), "{shown}");
        // On one thread the stage itself tells.
        (after["shards"], after["stages"][0]["report"]) = (Value::Null, told(16_000));
        let json = Rates::between(&before, &after).unwrap().as_json();
        assert_eq!(json["holds"][0], json!({ "stage": "fw", "auto": told(16_000)["auto"][0] }));
    }

    /// A server at the address need not be a pipeline of ours.
    #[test]
    fn names_do_nothing_to_a_terminal() {
        let mut after = report(2_000_000_000, 5000, 30);
        let mut before = report(1_000_000_000, 1000, 10);
        for report in [&mut before, &mut after] {
            report["stages"][0]["name"] = json!("\u{1b}]0;x\u{7}");
            report["dropped"]["\u{1b}[2J"] = report["packets_in"].clone();
        }
        let rates = Rates::between(&before, &after).unwrap();
        let shown = rates.as_table().render(None) + &rates.rows[1].cells().concat();
        assert!(!shown.contains(['\u{1b}', '\u{7}']), "{shown:?}");
    }

    #[test]
    fn another_run_is_noticed() {
        let (early, late) = (report(1_000_000_000, 5000, 30), report(2_000_000_000, 100, 0));
        assert_eq!(Rates::between(&early, &late), Err(Restarted));
        let mut other = report(2_000_000_000, 6000, 30);
        other["stages"][0]["name"] = json!("nat");
        assert_eq!(Rates::between(&early, &other), Err(Restarted));
        assert_eq!(Rates::between(&early, &early), Err(Restarted), "no time lies between");
        assert_eq!(Rates::between(&json!({}), &json!({})), Err(Restarted));
    }

    #[test]
    fn rates_have_three_digits() {
        let shown =
            [0.0, 0.254, 12.0, 99.96, 999.4, 999.6, 12_345.0, 999_600.0, 14_880_952.0, 2.5e9].map(per_second);
        assert_eq!(
            shown,
            ["0", "0.25", "12", "100", "999", "1.00 k", "12.3 k", "1.00 M", "14.9 M", "2.50 G"]
        );
    }
}
