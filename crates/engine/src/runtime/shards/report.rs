//! One report of several shards.

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
    if let Some(more) = &other.report {
        all.report = all.report.take().and_then(|report| with_hits(report, more));
    }
}

/// The report of a stage that counts what its rules match, with the hits of another shard's. What any other
/// says in words of its own stays in each shard's report.
fn with_hits(mut all: Value, more: &Value) -> Option<Value> {
    let more = more.as_object()?;
    let fields = all.as_object_mut()?;
    let number = |value: Option<&Value>| value.and_then(Value::as_u64).unwrap_or_default();
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
        let (Some(Value::Array(list)), Some(Value::Array(others))) = (fields.get_mut(name), more.get(name))
        else {
            continue;
        };
        for one in others {
            if name == "logged" || !list.contains(one) {
                list.push(one.clone());
            }
        }
    }
    let memory = number(fields.get("memory_bytes")) + number(more.get("memory_bytes"));
    fields.insert("memory_bytes".to_owned(), memory.into());
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
        let one = json!({ "rules": 3, "memory_bytes": 10, "notes": ["a"], "logged": [1], "rules_error": "x",
                          "hits": [{ "rule": 0, "line": 1, "packets": 2, "bytes": 20 },
                                   { "rule": 2, "line": 5, "packets": 1, "bytes": 7 }] });
        let other = json!({ "rules": 3, "memory_bytes": 11, "notes": ["a", "b"], "logged": [2],
                            "hits": [{ "rule": 1, "line": 2, "packets": 4, "bytes": 40 },
                                     { "rule": 2, "line": 5, "packets": 3, "bytes": 3 }] });
        let both = json!({ "rules": 3, "memory_bytes": 21, "notes": ["a", "b"], "logged": [1, 2], "rules_error": "x",
                           "hits": [{ "rule": 0, "line": 1, "packets": 2, "bytes": 20 },
                                    { "rule": 1, "line": 2, "packets": 4, "bytes": 40 },
                                    { "rule": 2, "line": 5, "packets": 4, "bytes": 10 }] });
        assert_eq!(with_hits(one, &other), Some(both));
        assert_eq!(with_hits(json!({ "epochs": [] }), &other), None);
        assert_eq!(with_hits(other, &json!({ "epochs": [] })), None);
    }

    #[test]
    fn counts_that_each_shard_has_whole_are_not_added_up() {
        let mut all = vec![("hold_ns", 16_000), ("routes", 10), ("packets", 3)];
        add_counters(&mut all, &[("hold_ns", 64_000), ("routes", 10), ("packets", 4), ("native", 1)]);
        assert_eq!(all, [("hold_ns", 64_000), ("routes", 10), ("packets", 7), ("native", 1)]);
    }
}
