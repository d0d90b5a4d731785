//! One report of several shards.

use std::collections::BTreeMap;

use serde_json::Value;
use slipstream_stats::Histogram;

use crate::runtime::graph::StageReport;
use crate::runtime::report::{RunReport, SourceReport};

/// The report of all shards together, with each shard's own behind it.
pub(in crate::runtime) fn merged(mut shards: Vec<RunReport>) -> RunReport {
    for shard in &mut shards {
        // A source and the box for packets from other shards are one.
        shard.sources = by_name(std::mem::take(&mut shard.sources).into_iter());
    }
    let sources = by_name(shards.iter().flat_map(|s| s.sources.iter().cloned()));
    let mut stages: Vec<StageReport> = Vec::new();
    for stage in shards.iter().flat_map(|s| &s.stages) {
        match stages.iter_mut().find(|s| s.name == stage.name) {
            Some(all) => add_stage(all, stage),
            None => stages.push(stage.clone()),
        }
    }
    let sum = |of: fn(&RunReport) -> u64| shards.iter().map(of).sum();
    let mut contexts = shards.iter().filter_map(|s| s.contexts);
    let first = contexts.next();
    RunReport {
        sources,
        stages,
        elapsed_ns: shards.iter().map(|s| s.elapsed_ns).max().unwrap_or_default(),
        cpu_ns: sum(|s| s.cpu_ns),
        live: sum(|s| s.live),
        service_time: None,
        poll_log: None,
        contexts: first.map(|first| {
            contexts.fold(first, |mut all, other| {
                all.lookups += other.lookups;
                all.by_number += other.by_number;
                all.begun += other.begun;
                all.evicted += other.evicted;
                all.without += other.without;
                all
            })
        }),
        interrupted: shards.iter().any(|s| s.interrupted),
        shards,
    }
}

fn by_name(sources: impl Iterator<Item = SourceReport>) -> Vec<SourceReport> {
    let mut all: Vec<SourceReport> = Vec::new();
    for source in sources {
        match all.iter_mut().find(|s| s.name == source.name) {
            Some(one) => {
                one.packets += source.packets;
                one.clock_backwards += source.clock_backwards;
                add_counters(&mut one.counters, &source.counters);
            }
            None => all.push(source),
        }
    }
    all
}

/// Counts that each shard has whole, as its copy of all routes: together they are the largest and no sum.
const OF_EACH: [&str; 6] = ["hold_ns", "native", "price_ns", "routes", "stations", "zero_copy"];

fn add_counters(all: &mut Vec<(&'static str, u64)>, more: &[(&'static str, u64)]) {
    for (name, n) in more {
        match all.iter_mut().find(|(known, _)| known == name) {
            Some((_, own)) if OF_EACH.contains(name) => *own = (*own).max(*n),
            Some((_, sum)) => *sum += n,
            None => all.push((name, *n)),
        }
    }
}

fn add_stage(all: &mut StageReport, other: &StageReport) {
    let (tally, more) = (&mut all.tally, &other.tally);
    tally.packets += more.packets;
    tally.trains += more.trains;
    tally.batches += more.batches;
    tally.packets_out += more.packets_out;
    tally.busy_ns += more.busy_ns;
    add_counters(&mut all.counters, &other.counters);
    all.drops.merge(&other.drops);
    all.held += other.held;
    if all.trouble.is_none() {
        all.trouble.clone_from(&other.trouble);
    }
    add_histogram(&mut all.excess, other.excess.as_ref());
    add_histogram(&mut all.transit, other.transit.as_ref());
    match (&mut all.reframe, &other.reframe) {
        (Some(stats), Some(more)) => stats.merge(more),
        (none @ None, Some(more)) => *none = Some(more.clone()),
        (_, None) => {}
    }
    all.report = together(all.report.take(), other.report.as_ref());
}

/// The reasons for which stages refuse files that they read anew, by their names in reports. Each shard reads
/// files by itself: what one of them refuses, the report of all tells.
const REFUSALS: [&str; 2] = ["routes_error", "rules_error"];

/// The report of a stage that counts what its rules match, with the hits of another shard's, and why one of
/// both refuses its files. What any other says in words of its own stays in each shard's report.
fn together(all: Option<Value>, more: Option<&Value>) -> Option<Value> {
    let refusal = |name: &str| {
        let of = |report: Option<&Value>| report?.get(name).cloned();
        Some((name.to_owned(), of(all.as_ref()).or_else(|| of(more))?))
    };
    let refusals: Vec<_> = REFUSALS.iter().filter_map(|name| refusal(name)).collect();
    let mut both = all.zip(more).and_then(|(all, more)| with_hits(all, more)).unwrap_or_default();
    if let Some(fields) = both.as_object_mut() {
        fields.extend(refusals);
    } else if !refusals.is_empty() {
        both = Value::Object(refusals.into_iter().collect());
    }
    (!both.is_null()).then_some(both)
}

fn number(value: Option<&Value>) -> u64 {
    value.and_then(Value::as_u64).unwrap_or_default()
}

fn list<'a>(report: &'a Value, name: &str) -> &'a [Value] {
    report.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The numbers of the rules that a report has no hits of, in their order.
fn unmet(report: &Value) -> impl Iterator<Item = u64> {
    let mut hits = list(report, "hits").iter().map(|hit| number(hit.get("rule"))).peekable();
    (0..number(report.get("rules"))).filter(move |rule| hits.next_if_eq(rule).is_none())
}

/// Both reports' hits together; none where one of them counts none.
fn with_hits(mut all: Value, more: &Value) -> Option<Value> {
    // Lines of rules that one of both has no hits of, as far as their lists go, by the rules' numbers.
    let lines = |of: &Value| unmet(of).zip(list(of, "lines_without_hits").to_vec()).collect::<Vec<_>>();
    let lines: BTreeMap<u64, Value> = [lines(&all), lines(more)].into_iter().flatten().collect();
    let fields = all.as_object_mut()?;
    let hits = fields.get_mut("hits")?.as_array_mut()?;
    for hit in more.get("hits")?.as_array()? {
        let same = |known: &&mut Value| known.get("rule") == hit.get("rule");
        match hits.iter_mut().find(same).and_then(Value::as_object_mut) {
            Some(known) => {
                for name in ["packets", "bytes"] {
                    let sum = number(known.get(name)) + number(hit.get(name));
                    known.insert(name.to_owned(), sum.into());
                }
            }
            None => hits.push(hit.clone()),
        }
    }
    hits.sort_by_key(|hit| number(hit.get("rule")));
    for name in ["logged", "notes"] {
        let (Some(Value::Array(list)), others) = (fields.get_mut(name), list(more, name)) else { continue };
        for one in others {
            if name == "logged" || !list.contains(one) {
                list.push(one.clone());
            }
        }
    }
    let memory = number(fields.get("memory_bytes")) + number(more.get("memory_bytes"));
    fields.insert("memory_bytes".to_owned(), memory.into());
    // Without hits is what no shard has any of.
    let count = unmet(&all).count();
    let without: Vec<Value> = unmet(&all).map_while(|rule| lines.get(&rule).cloned()).collect();
    let fields = all.as_object_mut()?;
    fields.insert("rules_without_hits".to_owned(), count.into());
    fields.insert("lines_without_hits".to_owned(), without.into());
    Some(all)
}

fn add_histogram(all: &mut Option<Histogram>, more: Option<&Histogram>) {
    match (all, more) {
        (Some(all), Some(more)) => all.merge(more),
        (none @ None, Some(more)) => *none = Some(more.clone()),
        (_, None) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn hits_of_shards_are_added_up() {
        let one = json!({ "rules": 4, "memory_bytes": 10, "notes": ["a"], "logged": [1], "rules_error": "x",
                          "hits": [{ "rule": 0, "line": 1, "packets": 2, "bytes": 20 },
                                   { "rule": 2, "line": 5, "packets": 1, "bytes": 7 }],
                          "rules_without_hits": 2, "lines_without_hits": [2, 4] });
        let other = json!({ "rules": 4, "memory_bytes": 11, "notes": ["a", "b"], "logged": [2],
                            "hits": [{ "rule": 1, "line": 2, "packets": 4, "bytes": 40 },
                                     { "rule": 2, "line": 5, "packets": 3, "bytes": 3 }],
                            "rules_without_hits": 2, "lines_without_hits": [1, 4] });
        let both = json!({ "rules": 4, "memory_bytes": 21, "notes": ["a", "b"], "logged": [1, 2], "rules_error": "x",
                           "hits": [{ "rule": 0, "line": 1, "packets": 2, "bytes": 20 },
                                    { "rule": 1, "line": 2, "packets": 4, "bytes": 40 },
                                    { "rule": 2, "line": 5, "packets": 4, "bytes": 10 }],
                           "rules_without_hits": 1, "lines_without_hits": [4] });
        assert_eq!(together(Some(one), Some(&other)), Some(both));
        assert_eq!(together(Some(json!({ "epochs": [] })), Some(&other)), None);
        assert_eq!(together(Some(other), Some(&json!({ "epochs": [] }))), None);
    }

    /// Lists of rules without hits are cut: what both tell together is the beginning of the true list.
    #[test]
    fn rules_without_hits_are_those_that_no_shard_has_hits_of() {
        // Lines are no order of the rules.
        let line = |rule: u64| (7 * rule) % 31;
        let report = |hits: &[u64]| {
            let unmet: Vec<u64> = (0..30).filter(|rule| !hits.contains(rule)).collect();
            let lines: Vec<u64> = unmet.iter().take(6).map(|rule| line(*rule)).collect();
            let hit = |rule: &u64| json!({ "rule": rule, "line": line(*rule), "packets": 1, "bytes": 60 });
            json!({ "rules": 30, "hits": hits.iter().map(hit).collect::<Vec<_>>(),
                    "rules_without_hits": unmet.len(), "lines_without_hits": lines })
        };
        let shards = [&[0, 1, 2, 3, 9][..], &[4, 5, 6, 9, 29], &[10, 11, 12]];
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let mut reports = order.map(|n| report(shards[n])).into_iter();
            let first = reports.next();
            let all = reports.fold(first, |all, more| together(all, Some(&more))).unwrap();
            assert_eq!(all["rules_without_hits"], 18);
            let told: Vec<u64> = list(&all, "lines_without_hits").iter().map(|n| number(Some(n))).collect();
            let truth: Vec<u64> = [7, 8, 13, 14, 15, 16].map(line).into();
            assert!(!told.is_empty() && truth.starts_with(&told), "{told:?} of {truth:?}");
        }
        let [one, other] = [report(&[0]), report(&[1])];
        assert_eq!(list(&together(Some(one), Some(&other)).unwrap(), "lines_without_hits").len(), 5);
    }

    #[test]
    fn what_one_shard_refuses_the_report_of_all_tells() {
        let why = json!({ "routes_error": "line 1: no gateway" });
        assert_eq!(together(Some(why.clone()), None), Some(why.clone()));
        assert_eq!(together(None, Some(&why)), Some(why));
        assert_eq!(together(None, None), None);
        let rules = |error: Option<&str>| {
            let mut report = json!({ "rules": 1, "hits": [], "lines_without_hits": [3] });
            error.into_iter().for_each(|error| report["rules_error"] = error.into());
            report
        };
        let all = together(Some(rules(None)), Some(&rules(Some("line 2"))));
        assert_eq!(all.unwrap()["rules_error"], "line 2");
    }

    #[test]
    fn counts_that_each_shard_has_whole_are_not_added_up() {
        let mut all = vec![("hold_ns", 16_000), ("routes", 10), ("packets", 3)];
        add_counters(&mut all, &[("hold_ns", 64_000), ("routes", 10), ("packets", 4), ("native", 1)]);
        assert_eq!(all, [("hold_ns", 64_000), ("routes", 10), ("packets", 7), ("native", 1)]);
    }
}
