//! Tables of stages, read through the data path in slices of a few hundred places; text is made of them here.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use serde_json::{Map, Value, json};
use slipstream::operate::{Preparation, Selection, StateTable};
use slipstream::pipeline::Plan;
use slipstream::stage::Stage;

use super::Operation;
use super::reload::{Taken, Updates};

/// Places of a table that are looked at between two batches.
const SLICE: u32 = 256;
/// Slices that an answer has at most: the next one goes on.
const SLICES: u32 = 512;
/// Longest wait for the data path at one request; whoever asked waits for longer.
const PATIENCE: Duration = Duration::from_secs(6);
/// Time after which a page ends with what was read of it by then.
const PAGE: Duration = Duration::from_secs(3);
/// The reason for which an answer is missing, where the data path doesn't give one in time.
const NO_ANSWER: &str = "the data path does not answer";
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

/// Waiting for the data path at one request, which ends at a point in time.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    began: Instant,
    all: Duration,
}

impl Patience {
    pub(super) fn new(all: Duration) -> Self {
        Self { began: slipstream::clock::now(), all }
    }

    /// The time that is left.
    fn left(self) -> Duration {
        self.all.saturating_sub(self.began.elapsed())
    }

    /// Returns true if a page of a table should end here.
    fn is_a_page(self) -> bool {
        self.began.elapsed() >= PAGE.min(self.all / 2)
    }
}

impl Default for Patience {
    fn default() -> Self {
        Self::new(PATIENCE)
    }
}

/// Returns true of a whole number up to `most`, written as numbers of entries are: without a sign or zeros in
/// front.
fn is_up_to(text: &str, most: u64) -> bool {
    text.parse().is_ok_and(|n: u64| n <= most && n.to_string() == text)
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
        if let Some((_, names)) = kind.names.iter().find(|(of, _)| of == field) {
            // Entries that have none, such as the TCP state of datagrams, have `null`.
            let none = value.is_null() && text == "null";
            if !none && !names.contains(&text.as_str()) {
                bail!(
                    "`{field}` of `{}` is one of {}; `{text}` is none of them",
                    kind.name,
                    names.join(", ")
                );
            }
            continue;
        }
        let (fits, what) = match value {
            Value::Number(n) if n.is_u64() => match field.as_str() {
                "protocol" => (is_up_to(&text, u8::MAX.into()), "a number from 0 to 255"),
                port if port.ends_with("port") => {
                    (is_up_to(&text, u16::MAX.into()), "a number from 0 to 65535")
                }
                _ => (is_up_to(&text, u64::MAX), "a whole number"),
            },
            Value::Number(_) => {
                (text.parse().is_ok_and(|n: f64| n.is_finite() && n >= 0.0), "a number of at least 0")
            }
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
        patience: Patience,
    ) -> anyhow::Result<(Vec<u8>, Option<u32>)> {
        let mut out = Vec::with_capacity(SLICE as usize * record);
        let read = self.operator.visit(shard, stage, patience.left(), move |stage, now| {
            let next = stage.operate().and_then(|stage| stage.save(table, from, SLICE, now, &mut out));
            (out, next)
        });
        read.context(NO_ANSWER)
    }

    /// Visits the records of a selection, up to its limit, for [`SLICES`] slices and about half of the time
    /// that there is; the place to go on from.
    fn select(
        &self,
        selection: &Selection,
        patience: Patience,
        mut visit: impl FnMut(usize, &[u8], Value),
    ) -> anyhow::Result<Option<u64>> {
        let (place, kind) = table(&self.plan(), &selection.stage, &selection.table)?;
        check(&selection.only, &kind)?;
        let shards = self.running_shards()?;
        let (mut shard, mut from) = ((selection.from >> SHARD) as usize, selection.from as u32);
        let (mut rows, mut slices) = (0, 0);
        let _attention = self.operator.attention();
        while shard < shards {
            if slices == SLICES || rows >= selection.limit || (slices > 0 && patience.is_a_page()) {
                return Ok(Some((shard as u64) << SHARD | u64::from(from)));
            }
            slices += 1;
            let table = (place, kind.record);
            let (records, next) = self.slice(shard, &selection.stage, table, from, patience)?;
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
        let next = self.select(selection, Patience::default(), |_, _, entry| rows.push(entry))?;
        Ok(Page { rows, next })
    }

    /// Takes entries out: how many, and where to go on. An empty selection is refused.
    ///
    /// # Errors
    /// The selection can't be, or the data path doesn't answer in time: then the error says how many entries
    /// it took out, and it takes no more.
    pub(crate) fn delete(&self, selection: &Selection) -> anyhow::Result<(u64, Option<u64>)> {
        if selection.only.is_empty() {
            bail!(
                "`--only FIELD=VALUE` (`where`) says which entries are meant; without one all of them would be"
            );
        }
        let patience = Patience::default();
        let mut found = Vec::new();
        let next =
            self.select(selection, patience, |shard, record, _| found.push((shard, record.to_vec())))?;
        Ok((self.take_out(selection, &found, patience)?, next))
    }

    /// Takes out the entries of these records, each with its shard; how many there still were.
    fn take_out(
        &self,
        selection: &Selection,
        found: &[(usize, Vec<u8>)],
        patience: Patience,
    ) -> anyhow::Result<u64> {
        let place = table(&self.plan(), &selection.stage, &selection.table)?.0;
        let _attention = self.operator.attention();
        let mut removed = 0;
        for some in found.chunk_by(|a, b| a.0 == b.0).flat_map(|shard| shard.chunks(AT_ONCE)) {
            let shard = some.first().map_or(0, |(shard, _)| *shard);
            let records: Vec<Vec<u8>> = some.iter().map(|(_, record)| record.clone()).collect();
            let taken = self.operator.visit(shard, &selection.stage, patience.left(), move |stage, now| {
                let Some(stage) = stage.operate() else { return (0, records) };
                let taken = records.iter().filter(|record| stage.remove(place, record, now)).count();
                (taken, records)
            });
            let Some((taken, _)) = taken else {
                bail!("{NO_ANSWER}; {removed} of {} entries were taken out before", found.len());
            };
            removed += taken as u64;
        }
        Ok(removed)
    }

    /// Has a stage do what its type alone knows, on each shard; says in words what was done.
    ///
    /// # Errors
    /// The stage can't, or the data path doesn't answer in time: then nothing is done, on no shard.
    pub(crate) fn act(&self, action: &str, stage: &str, on: &str) -> anyhow::Result<String> {
        self.try_act(action, stage, on, Patience::default())
    }

    fn try_act(&self, action: &str, stage: &str, on: &str, patience: Patience) -> anyhow::Result<String> {
        if self.plan().stage(stage).is_none() {
            bail!("there is no stage `{stage}`");
        }
        let shards = self.running_shards()?;
        // A stage that a reload is about to change is not asked to act on what was before.
        let _alone = self.alone(patience.left()).context("a reload is under way; nothing was done")?;
        let _attention = self.operator.attention();
        let mut prepared = Vec::new();
        for shard in 0..shards {
            let (action, on) = (action.to_owned(), on.to_owned());
            let ask = move |stage: &mut dyn Stage, _| -> Result<Preparation, String> {
                match stage.operate() {
                    Some(stage) => stage.act(&action, &on),
                    None => Err("the stage does nothing of that kind".to_owned()),
                }
            };
            let prepare = self.operator.visit(shard, stage, patience.left(), ask);
            prepared.push(prepare.context(NO_ANSWER)?.map_err(|why| anyhow!(why))?);
        }
        // All of it is made, and all shards have answered, before any of it counts.
        let (mut updates, mut done) = (Vec::<Updates>::new(), String::new());
        for prepare in prepared {
            let (update, what) = prepare().map_err(|why| anyhow!(why))?;
            updates.push(vec![(stage.to_owned(), update)]);
            done = what;
        }
        match self.hand_over(updates, patience.left()) {
            Taken::All => Ok(done),
            Taken::Some => {
                Ok(format!("{done}; some shards have yet to do so, and do as soon as they answer"))
            }
            Taken::None => bail!(NO_ANSWER),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::{Sender, channel};
    use std::sync::{Arc, Mutex};
    use std::thread::{self, JoinHandle};

    use slipstream::operate::StateFile;
    use slipstream::runtime::LiveOptions;

    use super::super::state::{Keeper, Saver, Unreadable};
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
            ("remote_port", Value::from("65535"), true),
            ("remote_port", Value::from("65536"), false),
            ("remote_port", Value::from(99_999), false),
            ("remote_port", Value::from("-1"), false),
            ("remote_port", Value::from("0443"), false),
            ("remote_port", Value::from(44.5), false),
            ("protocol", Value::from("255"), true),
            ("protocol", Value::from("256"), false),
            ("expires_in_s", Value::from("0.5"), true),
            ("expires_in_s", Value::from("-0.5"), false),
            ("expires_in_s", Value::from("inf"), false),
            ("inside", Value::from("10.0.0.1"), true),
            ("inside", Value::from("999"), false),
            ("from_outside", Value::from("true"), true),
            ("from_outside", Value::from("yes"), false),
            ("tcp_state", Value::from("established"), true),
            ("tcp_state", Value::from("null"), true),
            ("tcp_state", Value::Null, true),
            ("tcp_state", Value::from("ESTABLISHED"), false),
            ("tcp_state", Value::from("establish"), false),
            ("tcp_state", Value::from(""), false),
        ];
        for (field, value, fits) in cases {
            let only = Map::from_iter([(field.to_owned(), value.clone())]);
            assert_eq!(check(&only, &sessions).is_ok(), fits, "{field}={value}");
        }
    }

    /// Whoever mistypes the name of a state would take it that there is no entry in it.
    #[test]
    fn names_that_no_entry_can_have_are_refused_with_those_that_there_are() {
        for (stage, name, field, some) in [
            ("nat", "sessions", "tcp_state", ["syn_sent", "established", "close"]),
            ("firewall", "connections", "tcp_state", ["syn_sent", "established", "close"]),
            ("firewall", "connections", "class", ["unanswered", "answered", "assured"]),
        ] {
            let only = |value: &str| Map::from_iter([(field.to_owned(), Value::from(value))]);
            let why = check(&only("estblished"), &kind(stage, name)).unwrap_err().to_string();
            for known in some {
                assert!(why.contains(known), "{why}");
                assert!(check(&only(known), &kind(stage, name)).is_ok(), "{known}");
            }
        }
        assert!(
            check(&Map::from_iter([("class".into(), "null".into())]), &kind("firewall", "connections"))
                .is_err()
        );
    }

    /// A pipeline that runs on so many shards, and can be stopped and ended.
    struct Running {
        operation: Arc<Operation>,
        stop: Arc<AtomicBool>,
        run: JoinHandle<()>,
    }

    impl Running {
        fn new(graph: &str, shards: usize) -> Self {
            Self::with_state(graph, shards, None)
        }

        fn with_state(graph: &str, shards: usize, state: Option<Keeper>) -> Self {
            let plan = Plan::from_graph(graph, None, None, "".as_ref()).unwrap();
            let mut operation = Operation::new(&plan, || bail!("nothing is read anew"), |_| Value::Null);
            operation.state = state;
            let seeds = || plan.seeds(None);
            let driver = if shards == 1 {
                types::driver(plan.build(seeds()).unwrap())
            } else {
                let sharded = plan.in_shards(shards).unwrap();
                let mut drivers = sharded.build(seeds).unwrap().into_iter().map(types::driver);
                operation.shards = Some(Mutex::new(sharded));
                drivers.next().unwrap().beside(drivers.collect())
            };
            let operation = Arc::new(operation);
            let options = LiveOptions { operator: operation.operator.clone(), ..LiveOptions::default() };
            let mut driver = driver.live(options).monitor(operation.monitor.clone());
            let stop = Arc::new(AtomicBool::new(false));
            let stopped = Arc::clone(&stop);
            let run = thread::spawn(move || {
                driver
                    .run(&mut |_| match stopped.load(Ordering::Relaxed) {
                        true => ControlFlow::Break(()),
                        false => ControlFlow::Continue(()),
                    })
                    .unwrap();
            });
            let since = slipstream::clock::now();
            while operation.operator.shards() < shards {
                assert!(since.elapsed() < LONG, "it does not begin");
                thread::yield_now();
            }
            Self { operation, stop, run }
        }

        /// Has a shard stand still at a stage until the result is gone.
        fn stall(&self, shard: usize, stage: &str) -> Sender<()> {
            let (stays, gone) = channel::<()>();
            let (begins, begun) = channel();
            let stand_still = move |_: &mut dyn Stage, _| {
                begins.send(()).unwrap();
                let _ = gone.recv();
            };
            self.operation.operator.post(shard, vec![(stage.to_owned(), Box::new(stand_still))]);
            begun.recv_timeout(LONG).unwrap();
            stays
        }

        /// Waits until a shard has done all that it was asked for before.
        fn catch_up(&self, shard: usize, stage: &str) {
            self.operation.operator.visit(shard, stage, LONG, |_, _| ()).unwrap();
        }

        /// The weight of a balancer's first backend on a shard.
        fn weight(&self, shard: usize) -> u64 {
            let report = self.operation.operator.visit(shard, "b", LONG, |stage, _| stage.report());
            report.unwrap().unwrap()["backends"][0]["weight"].as_u64().unwrap()
        }

        fn end(self) {
            self.stop.store(true, Ordering::Relaxed);
            self.run.join().unwrap();
        }
    }

    const LONG: Duration = Duration::from_secs(30);

    fn short() -> Patience {
        Patience::new(Duration::from_millis(100))
    }

    const BALANCED: &str = "paced(rate=1kpps) -> b :: balancer(service=\"192.0.2.80:80\", \
                            backends=[10.0.0.1, 10.0.0.2], source=192.0.2.79) -> null";

    /// A save doesn't keep whoever looks on from telling a service manager that the pipeline is alive.
    #[test]
    fn nobody_waits_until_the_state_is_saved() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("state");
        let keeper = Keeper::new(&path, Unreadable::Stop).unwrap();
        let running = Running::with_state(BALANCED, 1, Some(keeper));
        let mut saver = Saver::new(Arc::clone(&running.operation), Duration::ZERO);
        let go_on = running.stall(0, "b");
        let began = slipstream::clock::now();
        for _ in 0..3 {
            saver.save_if_due();
        }
        assert!(began.elapsed() < PATIENCE / 2, "it took {:?}", began.elapsed());
        assert!(!path.exists(), "the data path has not answered");
        drop(go_on);
        drop(saver);
        let state = std::fs::read(&path).unwrap();
        assert_eq!(StateFile::parse(&state).unwrap().tables.len(), 1);
        running.end();
    }

    /// The state that the end of a run leaves is not taken for one without entries by whoever asks for a save
    /// behind it, or before the run has begun; nor are tables shown as empty then.
    #[test]
    fn nothing_is_saved_of_a_pipeline_that_does_not_run() {
        let scratch = tempfile::tempdir().unwrap();
        for shards in [1, 2] {
            let path = scratch.path().join(format!("state{shards}"));
            let keeper = Keeper::new(&path, Unreadable::Stop).unwrap();
            let graph = "paced(rate=10kpps, traffic=\"flows=300\") -> n :: nat(pool=[203.0.113.1], hairpin=false) -> null";
            let running = Running::with_state(graph, shards, Some(keeper));
            let saved = || {
                let bytes = std::fs::read(&path).unwrap();
                StateFile::parse(&bytes)
                    .unwrap()
                    .tables
                    .iter()
                    .map(|table| table.records.len())
                    .sum::<usize>()
            };
            let since = slipstream::clock::now();
            while running.operation.save().map(|_| saved()).unwrap() == 0 {
                assert!(since.elapsed() < LONG, "there are no sessions");
            }
            let operation = Arc::clone(&running.operation);
            let kept = saved();
            running.end();
            let ended = super::super::NOT_ALL;
            assert_eq!(operation.save().unwrap_err().to_string(), ended);
            assert_eq!(saved(), kept);
            let selection: Selection =
                serde_json::from_value(json!({ "stage": "n", "table": "sessions" })).unwrap();
            assert_eq!(operation.list(&selection).err().unwrap().to_string(), ended);
        }
    }

    /// A backend isn't drained after all when the data path goes on, on no shard.
    #[test]
    fn an_action_that_was_refused_is_not_done_later() {
        for shards in [1, 2] {
            let running = Running::new(BALANCED, shards);
            let last = shards - 1;
            for _ in 0..3 {
                let stall = running.stall(last, "b");
                let why = running.operation.try_act("drain", "b", "10.0.0.1", short()).unwrap_err();
                assert_eq!(why.to_string(), NO_ANSWER);
                drop(stall);
                running.catch_up(last, "b");
            }
            let weights = || (0..shards).map(|shard| running.weight(shard)).collect::<Vec<_>>();
            assert_eq!(weights(), vec![1; shards], "drained after all");
            let done = running.operation.try_act("drain", "b", "10.0.0.1", Patience::new(LONG)).unwrap();
            assert!(done.contains("10.0.0.1") && !done.contains("shards"), "{done}");
            assert_eq!(weights(), vec![0; shards]);
            running.end();
        }
    }

    /// What a reload makes of a stage is not undone by an action that was made of what was before: it waits
    /// for the reload, for a while.
    #[test]
    fn an_action_waits_for_a_reload() {
        let running = Running::new(BALANCED, 1);
        let reload = running.operation.alone(LONG).unwrap();
        let why = running.operation.try_act("drain", "b", "10.0.0.1", short()).unwrap_err();
        assert!(why.to_string().contains("a reload is under way"), "{why}");
        assert_eq!(running.weight(0), 1);
        drop(reload);
        running.operation.try_act("drain", "b", "10.0.0.1", Patience::new(LONG)).unwrap();
        assert_eq!(running.weight(0), 0);
        running.end();
    }

    /// Sessions that were found, and were to be taken out, stay when the data path goes on.
    #[test]
    fn entries_that_were_not_taken_out_in_time_stay() {
        for shards in [1, 2] {
            let graph = "paced(rate=10kpps, traffic=\"flows=300\") -> n :: nat(pool=[203.0.113.1], hairpin=false) -> null";
            let running = Running::new(graph, shards);
            let selection: Selection = serde_json::from_value(json!({
                "stage": "n", "table": "sessions", "limit": 4096, "where": { "external": "203.0.113.1" }
            }))
            .unwrap();
            let found = || {
                let mut found = Vec::new();
                let note = |shard, record: &[u8], _| found.push((shard, record.to_vec()));
                running.operation.select(&selection, Patience::new(LONG), note).unwrap();
                found
            };
            let since = slipstream::clock::now();
            while found().len() < 200 {
                assert!(since.elapsed() < LONG, "there are no sessions");
            }
            let (all, last) = (found(), shards - 1);
            let of_last = all.iter().filter(|(shard, _)| *shard == last).count();
            assert!(of_last > 64, "more than are taken out at once");
            let stall = running.stall(last, "n");
            let why = running.operation.take_out(&selection, &all, short()).unwrap_err().to_string();
            let before = all.len() - of_last;
            assert_eq!(why, format!("{NO_ANSWER}; {before} of {} entries were taken out before", all.len()));
            drop(stall);
            running.catch_up(last, "n");
            let is_there = |wanted: &(usize, Vec<u8>)| {
                let (shard, record) = (wanted.0, wanted.1.clone());
                let (place, _) = table(&running.operation.plan(), "n", "sessions").unwrap();
                let remove = move |stage: &mut dyn Stage, now| {
                    stage.operate().is_some_and(|stage| stage.remove(place, &record, now))
                };
                running.operation.operator.visit(shard, "n", LONG, remove).unwrap()
            };
            let left = all.iter().filter(|wanted| wanted.0 == last && is_there(wanted)).count();
            assert_eq!(left, of_last, "taken out after all");
            running.end();
        }
    }
}
