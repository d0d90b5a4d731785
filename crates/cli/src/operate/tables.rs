//! Tables of stages, read through the data path in slices of a few hundred places; text is made of them here.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use serde_json::{Map, Value, json};
use slipstream::operate::Selection;
use slipstream::operate::{Preparation, StateTable};
use slipstream::pipeline::Plan;

use super::Operation;

/// Places of a table that are looked at between two batches.
const SLICE: u32 = 256;
/// Slices that an answer has at most: the next one goes on.
const SLICES: u32 = 512;
/// Longest wait for the data path.
const PATIENCE: Duration = Duration::from_secs(5);
/// Entries that are taken out between two batches.
const AT_ONCE: usize = 64;
/// Shards are counted from this bit of a place on.
const SHARD: u32 = 32;

/// Entries of a table, and where to go on.
pub(crate) struct Page {
    pub(crate) rows: Vec<Value>,
    pub(crate) next: Option<u64>,
}

/// The place of a stage's table, and what it is.
fn table(plan: &Plan, stage: &str, table: &str) -> anyhow::Result<(usize, StateTable)> {
    let known = plan.stage(stage).and_then(|id| plan.stages.get(id));
    let known = known.ok_or_else(|| anyhow!("there is no stage `{stage}`"))?;
    let tables = known.kind.properties.tables;
    let found = tables.iter().enumerate().find(|(_, t)| t.name == table);
    let names: Vec<_> = tables.iter().map(|t| t.name).collect();
    let (place, kind) = found.with_context(|| match names.as_slice() {
        [] => format!("`{stage}` has no tables"),
        names => format!("`{stage}` has no table `{table}`; there are {}", names.join(", ")),
    })?;
    Ok((place, *kind))
}

/// Refuses a selection by fields that the table doesn't have, or by what no entry can have there.
fn check(only: &Map<String, Value>, kind: &StateTable) -> anyhow::Result<()> {
    let Some(Value::Object(sample)) = (kind.describe)(&vec![0; kind.record]) else { return Ok(()) };
    for (field, wanted) in only {
        let Some(value) = sample.get(field) else {
            let fields = sample.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            bail!("`{}` has no field `{field}`; there are {fields}", kind.name);
        };
        let text = wanted.as_str().map_or_else(|| wanted.to_string(), str::to_owned);
        let (fits, what) = match value {
            Value::Number(_) => (text.parse::<f64>().is_ok(), "a number"),
            Value::Bool(_) => (text.parse::<bool>().is_ok(), "true or false"),
            Value::String(shown) if shown.parse::<IpAddr>().is_ok() => {
                (text.parse::<IpAddr>().is_ok(), "an address")
            }
            _ => (true, ""),
        };
        if !fits {
            bail!("`{field}` of `{}` is {what}, which `{text}` is not", kind.name);
        }
    }
    Ok(())
}

impl Operation {
    /// The tables that there are: each with its stage.
    pub(crate) fn tables(&self) -> Vec<Value> {
        let plan = self.plan();
        let of = |s: &slipstream::pipeline::PlannedStage| -> Vec<Value> {
            s.kind.properties.tables.iter().map(|t| json!({ "stage": s.name, "table": t.name })).collect()
        };
        plan.stages.iter().flat_map(of).collect()
    }

    /// A slice of a table of one shard, and the place to go on from.
    pub(super) fn slice(
        &self,
        shard: usize,
        stage: &str,
        (table, record): (usize, usize),
        from: u32,
    ) -> anyhow::Result<(Vec<u8>, Option<u32>)> {
        let mut out = Vec::with_capacity(SLICE as usize * record);
        let read = self.operator.visit(shard, stage, PATIENCE, move |stage, now| {
            let next = stage.operate().and_then(|stage| stage.save(table, from, SLICE, now, &mut out));
            (out, next)
        });
        read.context("the data path does not answer")
    }

    /// Visits the records of a selection, up to its limit and for [`SLICES`] slices; the place to go on from.
    fn select(
        &self,
        selection: &Selection,
        mut visit: impl FnMut(usize, &[u8], Value),
    ) -> anyhow::Result<Option<u64>> {
        let (place, kind) = table(&self.plan(), &selection.stage, &selection.table)?;
        check(&selection.only, &kind)?;
        let shards = self.operator.shards();
        let (mut shard, mut from) = ((selection.from >> SHARD) as usize, selection.from as u32);
        let (mut rows, mut slices) = (0, 0);
        let _attention = self.operator.attention();
        while shard < shards {
            if slices == SLICES || rows >= selection.limit {
                return Ok(Some((shard as u64) << SHARD | u64::from(from)));
            }
            slices += 1;
            let (records, next) = self.slice(shard, &selection.stage, (place, kind.record), from)?;
            for record in records.chunks_exact(kind.record) {
                let Some(entry) = (kind.describe)(record).filter(|entry| selection.matches(entry)) else {
                    continue;
                };
                rows += 1;
                visit(shard, record, entry);
            }
            match next {
                Some(next) => from = next,
                None => (shard, from) = (shard + 1, 0),
            }
        }
        Ok(None)
    }

    /// Lists entries. A page ends with a slice, so that it may have a few more rows than its limit.
    pub(crate) fn list(&self, selection: &Selection) -> anyhow::Result<Page> {
        let mut rows = Vec::new();
        let next = self.select(selection, |_, _, entry| rows.push(entry))?;
        Ok(Page { rows, next })
    }

    /// Takes entries out: how many, and where to go on. An empty selection is refused.
    pub(crate) fn delete(&self, selection: &Selection) -> anyhow::Result<(u64, Option<u64>)> {
        if selection.only.is_empty() {
            bail!(
                "`--only FIELD=VALUE` (`where`) says which entries are meant; without one all of them would be"
            );
        }
        let place = table(&self.plan(), &selection.stage, &selection.table)?.0;
        let mut found: Vec<(usize, Vec<u8>)> = Vec::new();
        let next = self.select(selection, |shard, record, _| found.push((shard, record.to_vec())))?;
        let mut removed = 0;
        for some in found.chunk_by(|a, b| a.0 == b.0).flat_map(|shard| shard.chunks(AT_ONCE)) {
            let shard = some.first().map_or(0, |(shard, _)| *shard);
            let records: Vec<Vec<u8>> = some.iter().map(|(_, record)| record.clone()).collect();
            let taken = self.operator.visit(shard, &selection.stage, PATIENCE, move |stage, now| {
                let Some(stage) = stage.operate() else { return (0, records) };
                let taken = records.iter().filter(|record| stage.remove(place, record, now)).count();
                (taken, records)
            });
            removed += taken.context("the data path does not answer")?.0 as u64;
        }
        Ok((removed, next))
    }

    /// Has a stage do what its type alone knows; says in words what was done.
    pub(crate) fn act(&self, action: &str, stage: &str, on: &str) -> anyhow::Result<String> {
        if self.plan().stage(stage).is_none() {
            bail!("there is no stage `{stage}`");
        }
        let mut done = String::new();
        for shard in 0..self.operator.shards() {
            let (action, on) = (action.to_owned(), on.to_owned());
            let ask = move |stage: &mut dyn slipstream::stage::Stage, _| -> Result<Preparation, String> {
                match stage.operate() {
                    Some(stage) => stage.act(&action, &on),
                    None => Err("the stage does nothing of that kind".to_owned()),
                }
            };
            let prepare = self.operator.visit(shard, stage, PATIENCE, ask);
            let prepare = prepare.context("the data path does not answer")?.map_err(|why| anyhow!(why))?;
            let (update, what) = prepare().map_err(|why| anyhow!(why))?;
            let old = self.operator.visit(shard, stage, PATIENCE, move |stage, now| {
                stage.operate().map(|stage| stage.update(update, now))
            });
            old.context("the data path does not answer")?;
            done = what;
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types;

    fn kind(stage: &str, name: &str) -> StateTable {
        let tables = types::stage_type(stage).unwrap().properties.tables;
        *tables.iter().find(|t| t.name == name).unwrap()
    }

    /// Every table says which fields it has, though it has no entries.
    #[test]
    fn fields_that_a_table_does_not_have_are_refused() {
        let all = [
            ("nat", "sessions", "remote_port, tcp_state"),
            ("nat", "mappings", "external_port"),
            ("firewall", "connections", "age_s"),
            ("balancer", "affinity", "backend"),
        ];
        for (stage, name, some) in all {
            let wrong = Map::from_iter([("nope".to_owned(), Value::from(1))]);
            let why = check(&wrong, &kind(stage, name)).unwrap_err().to_string();
            assert!(why.contains("no field `nope`"), "{why}");
            assert!(some.split(", ").all(|field| why.contains(field)), "{why}");
        }
    }

    #[test]
    fn values_that_no_field_can_have_are_refused() {
        let sessions = kind("nat", "sessions");
        let cases = [
            ("remote_port", Value::from("9"), true),
            ("remote_port", Value::from(9), true),
            ("remote_port", Value::from("http"), false),
            ("inside", Value::from("10.0.0.1"), true),
            ("inside", Value::from("999"), false),
            ("from_outside", Value::from("true"), true),
            ("from_outside", Value::from("yes"), false),
            ("tcp_state", Value::from("ESTABLISHED"), true),
        ];
        for (field, value, fits) in cases {
            let only = Map::from_iter([(field.to_owned(), value.clone())]);
            assert_eq!(check(&only, &sessions).is_ok(), fits, "{field}={value}");
        }
    }
}
