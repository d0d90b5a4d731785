//! The state of a pipeline in a file: read at the start, written every minute and at the end, so that a
//! restart loses no connection.

use std::collections::{BTreeSet, HashSet};
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use clap::ValueEnum;
use serde_json::Value;
use slipstream::clock::{self, LiveClock};
use slipstream::new_file::{NewFile, target};
use slipstream::operate::{
    EntryEnds, Fields, SavedTable, SessionEvent, StateFile, StateTable, StateWriter, put_address,
};
use slipstream::pipeline::{EventKind, Plan, ShardPlan};
use slipstream::runtime::Driver;
use slipstream::text_file;
use slipstream::time::Nanos;
use tracing::{info, warn};

use super::session_log::SessionLog;
use super::sessions::AT_ONCE;
use super::tables::Patience;
use super::{Operation, Shared};
use crate::log::LIVE;
use crate::{types, ui};

/// Time between two saves.
pub(crate) const EVERY: Duration = Duration::from_secs(60);
/// Longest wait for a process that keeps its state in the same file: one that was killed has its lock until
/// the system has taken it apart.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time between two attempts to get a lock.
const AGAIN: Duration = Duration::from_millis(20);
/// Larger files are no states.
const LARGEST: u64 = 16 << 30;

/// A table of no stage: hosts behind a NAT that its settings don't name, as shards that were led their
/// packets have told; an address each, of IPv4 as `::ffff:a.b.c.d`.
const INSIDE: (&str, u16, usize) = ("inside", 1, 16);

/// Treatment of a state that can't be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Unreadable {
    /// The pipeline doesn't start.
    #[default]
    Stop,
    /// It starts without, with a warning; the file is overwritten at the next save.
    Ignore,
}

/// Keeps the state.
#[derive(Debug)]
pub(crate) struct Keeper {
    path: PathBuf,
    unreadable: Unreadable,
    /// The file as it was read, or written last, under a lock: it is nobody else's while this process lives.
    held: Mutex<Option<File>>,
    /// Held while a state is made and written, so that none takes the place of a later one.
    saving: Mutex<()>,
}

/// Entries that came back, and those that did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Restored {
    pub(crate) entries: u64,
    pub(crate) left_out: u64,
}

impl Keeper {
    /// Of the file of this name.
    ///
    /// # Errors
    /// Another process keeps its state there, or no file can be written: that is said now, and not after a
    /// minute.
    pub(crate) fn new(path: &Path, unreadable: Unreadable) -> anyhow::Result<Self> {
        let keeper =
            Self { path: path.to_owned(), unreadable, held: Mutex::new(None), saving: Mutex::default() };
        let target = target(path);
        match fs::metadata(&target) {
            Ok(about) if !about.is_file() => Err(anyhow!("this is no regular file")),
            _ => NewFile::create(&target).map(drop).map_err(anyhow::Error::from),
        }
        .and_then(|()| keeper.hold(&target))
        .with_context(|| format!("--state {}: can't be written", path.display()))?;
        Ok(keeper)
    }

    /// Sees to it that the file that is there now is no other process's.
    fn hold(&self, target: &Path) -> anyhow::Result<()> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let there = match File::open(target) {
                // One that can't be read is told of where it is to be.
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) =>
                {
                    return Ok(());
                }
                other => other?,
            };
            let about = there.metadata()?;
            let is_there = |file: &File| -> io::Result<bool> {
                let file = file.metadata()?;
                Ok((file.dev(), file.ino()) == (about.dev(), about.ino()))
            };
            if let Some(held) = &*held
                && is_there(held)?
            {
                return Ok(());
            }
            lock(&there)?;
            // A process that has ended meanwhile may have put another one there before.
            *held = Some(there);
        }
    }

    /// Gives the stages of a pipeline that is about to run what the file has of them. The `log` is told of
    /// sessions that have ended since then.
    ///
    /// # Errors
    /// The file is damaged, or none of ours, and [`Unreadable`] says to stop; or it can't be written; or
    /// `goes_on`, which is asked now and then, says that the user interrupted: then the file stays as it is.
    pub(crate) fn restore(
        &self,
        driver: &mut Driver,
        plan: &Plan,
        log: Option<&SessionLog>,
        goes_on: &mut dyn FnMut() -> Result<(), ui::Interrupted>,
    ) -> anyhow::Result<()> {
        let file = self.path.display().to_string();
        match self.try_restore(driver, plan, log, goes_on) {
            Err(why) if ui::is_interrupt(&why) => return Err(why),
            Ok(None) => {
                info!(target: LIVE, file, "there is no state yet");
                // From now on it is this process's, for others to see.
                self.write(StateWriter::now())?;
            }
            Ok(Some(Restored { entries, left_out })) => {
                info!(target: LIVE, file, entries, left_out, "state restored");
            }
            Err(why) if self.unreadable == Unreadable::Ignore => {
                warn!(target: LIVE, file, "the state is left out: {why:#}");
            }
            Err(why) => {
                let hint = "take the file away, or start with --state-unreadable ignore";
                return Err(why.context(format!("--state {file}: can't be used; {hint}")));
            }
        }
        Ok(())
    }

    fn try_restore(
        &self,
        driver: &mut Driver,
        plan: &Plan,
        log: Option<&SessionLog>,
        goes_on: &mut dyn FnMut() -> Result<(), ui::Interrupted>,
    ) -> anyhow::Result<Option<Restored>> {
        let bytes = match fs::metadata(&self.path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
            Ok(about) if about.len() > LARGEST || !about.is_file() => {
                return Err(anyhow!("this is no state of Slipstream"));
            }
            Ok(_) => text_file::marked(&self.path, StateFile::MAGIC)?,
        };
        let state = StateFile::parse(&bytes)?;
        let now = LiveClock::get().now();
        let away = clock::real_time().since(Nanos(state.saved_ns));
        let mut restored = Restored::default();
        let sharded = match driver.shards() {
            1 => None,
            shards => Some(plan.in_shards(shards)?),
        };
        let hosts = sharded.as_ref().map(|_| hosts_of_nats(plan, &state)).unwrap_or_default();
        let owner = sharded.as_ref().map(|sharded| sharded.owners(&hosts));
        for table in state.tables.iter().filter(|table| !is_inside(table)) {
            let count = (table.records.len() / table.record) as u64;
            let Some((place, kind)) = place(plan, table) else {
                warn!(target: LIVE, stage = table.stage, table = table.name, entries = count, "no stage has this table as it was saved; it is left out");
                restored.left_out += count;
                if let (Some(log), Some(kind)) = (log, of_sessions(table)) {
                    let records = table.records.chunks_exact(table.record);
                    let ends: Vec<_> =
                        records.filter_map(|r| end_of(&kind, r, state.saved_ns, now)).collect();
                    log.offer(0, &ends);
                }
                continue;
            };
            // An entry goes to the shard that its packets will come to.
            let owner = |record| match &owner {
                None => Some(0),
                Some(owner) => (kind.ends)(record).and_then(|ends| owner(&ends)),
            };
            for (n, record) in table.records.chunks_exact(table.record).enumerate() {
                // Millions of them take seconds.
                if n % AT_ONCE as usize == 0 {
                    goes_on()?;
                }
                let shard = owner(record);
                let stage = shard.and_then(|shard| driver.operate_shard(shard, table.stage));
                if stage.is_some_and(|stage| stage.restore(place, record, away, now)) {
                    restored.entries += 1;
                    continue;
                }
                restored.left_out += 1;
                if let (Some(log), Some(end)) = (log, end_of(kind, record, state.saved_ns, now)) {
                    log.offer(shard.unwrap_or_default(), &[end]);
                }
            }
        }
        Ok(Some(restored))
    }

    fn write(&self, state: StateWriter) -> anyhow::Result<u64> {
        let bytes = state.finish();
        self.write_bytes(&bytes)
            .with_context(|| format!("--state {}: can't be written", self.path.display()))?;
        Ok(bytes.len() as u64)
    }

    fn write_bytes(&self, bytes: &[u8]) -> anyhow::Result<()> {
        let target = target(&self.path);
        self.hold(&target)?;
        let mut file = NewFile::create(&target)?;
        // Who talks to whom is nobody else's business.
        file.file().set_permissions(fs::Permissions::from_mode(0o600))?;
        file.write_all(bytes)?;
        file.file().sync_data()?;
        // The lock is there before the name is.
        let new = file.file().try_clone()?;
        lock(&new)?;
        file.persist()?;
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = Some(new);
        Ok(())
    }

    /// Saves the state of a pipeline that has ended.
    ///
    /// # Errors
    /// The file can't be written.
    fn save_ended(
        &self,
        driver: &mut Driver,
        plan: &Plan,
        sharded: Option<&ShardPlan>,
    ) -> anyhow::Result<()> {
        let _alone = self.saving.lock().unwrap_or_else(PoisonError::into_inner);
        let now = LiveClock::get().now();
        let state = state_of(plan, sharded, driver.shards(), |shard, stage, (place, _), from| {
            let mut records = Vec::new();
            let Some(operated) = driver.operate_shard(shard, stage) else { return Ok((records, None)) };
            if from == 0 {
                // Sessions that are not saved any more end now, and are told of.
                operated.expire(now);
            }
            let next = operated.save(place, from, AT_ONCE, now, &mut records);
            Ok((records, next))
        })?;
        let bytes = self.write(state)?;
        let file = self.path.display().to_string();
        info!(target: LIVE, file, bytes, "state saved");
        Ok(())
    }
}

/// Takes a lock of a file for as long as it is open. File systems that have none are no reason to stop.
fn lock(file: &File) -> anyhow::Result<()> {
    let since = clock::now();
    loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if since.elapsed() < PATIENCE => thread::sleep(AGAIN),
            Err(TryLockError::WouldBlock) => {
                let hint = "end that one, or name another file";
                return Err(anyhow!("another process keeps its state in this file; {hint}"));
            }
            Ok(()) | Err(TryLockError::Error(_)) => return Ok(()),
        }
    }
}

/// A table like one that was saved, of a type of stages that have sessions, where none of the plan's stages
/// has it.
fn of_sessions(saved: &SavedTable<'_>) -> Option<StateTable> {
    let registry = types::registry();
    let mut types = registry.types().iter().map(|kind| kind.properties);
    types.find_map(|of| {
        let tables = (of.events == Some(EventKind::Sessions)).then_some(of.tables)?;
        tables.iter().copied().find(|kind| is_like(kind, saved))
    })
}

/// The inside hosts of sessions and mappings that NATs had.
fn hosts_of_nats(plan: &Plan, state: &StateFile<'_>) -> HashSet<IpAddr> {
    let tables = state.tables.iter().filter_map(|table| Some((table, place(plan, table)?.1)));
    let ends =
        tables.flat_map(|(table, kind)| table.records.chunks_exact(table.record).filter_map(kind.ends));
    let told = state.tables.iter().filter(|table| is_inside(table));
    let told = told.flat_map(|table| table.records.chunks_exact(table.record));
    let told = told.map(|record| Fields(record).address());
    ends.filter(|ends| ends.external.is_some()).map(|ends| ends.source.0).chain(told).collect()
}

/// The state of all tables, given the records of a table on a shard from a place on, slice by slice: those of
/// the places that were read, and where to go on.
fn state_of(
    plan: &Plan,
    sharded: Option<&ShardPlan>,
    shards: usize,
    mut slice: impl FnMut(usize, &str, (usize, &StateTable), u32) -> anyhow::Result<(Vec<u8>, Option<u32>)>,
) -> anyhow::Result<StateWriter> {
    let mut state = StateWriter::now();
    let mut inside = InsideHosts::new(sharded.and_then(ShardPlan::inside_hosts));
    for (stage, place, kind) in tables(plan) {
        state.table(stage, kind.name, kind.version, kind.record as u16);
        for shard in 0..shards {
            let mut from = Some(0);
            while let Some(at) = from {
                let (records, next) = slice(shard, stage, (place, kind), at)?;
                inside.see(shard, kind, &records);
                state.records(&records);
                from = next;
            }
        }
    }
    inside.put(&mut state);
    Ok(state)
}

/// Returns true of the table of [inside hosts](INSIDE).
fn is_inside(table: &SavedTable<'_>) -> bool {
    table.stage.is_empty() && (table.name, table.version, table.record) == INSIDE
}

/// Collects the hosts behind a NAT that nothing but the shard of their connections tells of.
struct InsideHosts<F> {
    of: Option<F>,
    hosts: BTreeSet<IpAddr>,
}

impl<F: Fn(usize, &EntryEnds) -> Option<IpAddr>> InsideHosts<F> {
    fn new(of: Option<F>) -> Self {
        Self { of, hosts: BTreeSet::new() }
    }

    /// A shard has these records.
    fn see(&mut self, shard: usize, kind: &StateTable, records: &[u8]) {
        if let Some(of) = &self.of {
            let ends = records.chunks_exact(kind.record).filter_map(kind.ends);
            self.hosts.extend(ends.filter_map(|ends| of(shard, &ends)));
        }
    }

    fn put(self, state: &mut StateWriter) {
        let (name, version, record) = INSIDE;
        if self.hosts.is_empty() {
            return;
        }
        state.table("", name, version, record as u16);
        let mut records = Vec::new();
        self.hosts.into_iter().for_each(|host| put_address(&mut records, host));
        state.records(&records);
    }
}

/// Returns true if a table has the layout of one that was saved.
fn is_like(kind: &StateTable, saved: &SavedTable<'_>) -> bool {
    (kind.name, kind.version, kind.record) == (saved.name, saved.version, saved.record)
}

/// The end of a session that was saved at `saved_ns` and doesn't come back: when its time was over, or now.
/// None of what is no session.
fn end_of(kind: &StateTable, record: &[u8], saved_ns: u64, now: Nanos) -> Option<SessionEvent> {
    let EntryEnds { protocol, source, destination, external } = (kind.ends)(record)?;
    let fields = (kind.describe)(record).filter(|_| kind.name == "sessions")?;
    let number = |name: &str| fields.get(name).and_then(Value::as_f64);
    let left = Duration::try_from_secs_f64(number("expires_in_s")?).ok()?;
    let over = Nanos(saved_ns).after(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
    Some(SessionEvent {
        time: over.min(now),
        begins: false,
        protocol,
        inside: source,
        external: external?,
        remote: (destination.0, number("remote_port")? as u16),
    })
}

/// The tables of a plan's stages: stage, place of the table, and what it is.
fn tables(plan: &Plan) -> impl Iterator<Item = (&str, usize, &StateTable)> {
    let of = |s: &'_ slipstream::pipeline::PlannedStage| s.kind.properties.tables;
    plan.stages.iter().flat_map(move |s| of(s).iter().enumerate().map(|(n, t)| (s.name.as_str(), n, t)))
}

/// The place of a table that was saved, where a stage has it in the same layout.
fn place<'a>(plan: &'a Plan, saved: &SavedTable<'_>) -> Option<(usize, &'a StateTable)> {
    let same = |(stage, _, kind): &(&str, usize, &StateTable)| *stage == saved.stage && is_like(kind, saved);
    tables(plan).find(same).map(|(_, place, kind)| (place, kind))
}

impl Operation {
    /// Saves the state of the pipeline, which has ended, if there is a file for it.
    ///
    /// # Errors
    /// The file can't be written.
    pub(crate) fn save_ended(&self, driver: &mut Driver, plan: &Plan) -> anyhow::Result<()> {
        let Some(keeper) = &self.state else { return Ok(()) };
        keeper.save_ended(driver, plan, self.sharded().as_deref())
    }

    /// Saves the state of the pipeline while it runs, in slices between batches.
    ///
    /// # Errors
    /// There is no file for it, it can't be written, or the data path does not answer; or not all of the
    /// pipeline runs, whose state would be taken for all that there is.
    pub(crate) fn save(&self) -> anyhow::Result<u64> {
        let saved = self.try_save();
        self.counts.save(saved.is_ok());
        saved
    }

    fn try_save(&self) -> anyhow::Result<u64> {
        let keeper = self.state.as_ref().context("no file for the state was given (--state)")?;
        let _alone = keeper.saving.lock().unwrap_or_else(PoisonError::into_inner);
        let shards = self.running_shards()?;
        let plan = self.plan().clone();
        let sharded = self.sharded().map(|sharded| sharded.clone());
        let _attention = self.operator.attention();
        let state = state_of(&plan, sharded.as_ref(), shards, |shard, stage, (place, kind), from| {
            self.slice(shard, stage, (place, kind.record), from, Patience::default())
        })?;
        keeper.write(state)
    }
}

/// Saves the state of a pipeline that runs now and then, on a thread of its own: whoever looks on waits
/// neither for a slow disk nor for a data path that has large tables to read.
pub(crate) struct Saver {
    operation: Shared,
    every: Duration,
    last: Instant,
    under_way: Option<JoinHandle<()>>,
}

impl Saver {
    /// Of this pipeline, first when so much time has passed from now on.
    pub(crate) fn new(operation: Shared, every: Duration) -> Self {
        Self { operation, every, last: slipstream::clock::now(), under_way: None }
    }

    /// Begins to save the state if it is time, and what was begun before is done.
    pub(crate) fn save_if_due(&mut self) {
        let is_busy = self.under_way.as_ref().is_some_and(|thread| !thread.is_finished());
        if self.operation.state.is_none() || self.last.elapsed() < self.every || is_busy {
            return;
        }
        self.last = slipstream::clock::now();
        let operation = Shared::clone(&self.operation);
        let save = move || match operation.save() {
            Ok(bytes) => tracing::debug!(target: LIVE, bytes, "state saved"),
            Err(why) => warn!(target: LIVE, "the state could not be saved: {why:#}"),
        };
        match thread::Builder::new().name("state".into()).spawn(save) {
            Ok(thread) => self.under_way = Some(thread),
            Err(why) => {
                self.operation.counts.save(false);
                warn!(target: LIVE, "the state could not be saved: there is no thread for it: {why}");
            }
        }
    }
}

impl Drop for Saver {
    /// The state of the end of a run is written behind the one that was begun before.
    fn drop(&mut self) {
        if let Some(thread) = self.under_way.take() {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that was killed just now has its lock for a while yet.
    #[test]
    fn a_process_that_is_about_to_be_gone_is_waited_for() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("state");
        fs::write(&path, "").unwrap();
        let others = File::open(&path).unwrap();
        others.try_lock().unwrap();
        // This one writes it once more before.
        let (new, name) = (scratch.path().join("new"), path.clone());
        let ends = thread::spawn(move || {
            thread::sleep(PATIENCE / 20);
            fs::write(&new, "").unwrap();
            fs::rename(&new, &name).unwrap();
            drop(others);
        });
        let first = Keeper::new(&path, Unreadable::Stop).unwrap();
        ends.join().unwrap();
        let why = Keeper::new(&path, Unreadable::Stop).unwrap_err();
        assert!(format!("{why:#}").contains("another process keeps its state"), "{why:#}");
        drop(first);
    }

    /// Whoever stops a start before all of a state is restored finds the whole of it at the next one.
    #[test]
    fn a_start_that_is_stopped_leaves_the_state_as_it_is() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("state");
        let graph = "paced(rate=1kpps) -> n :: nat(pool=[192.0.2.1]) -> null";
        let plan = Plan::from_graph(graph, None, None, "".as_ref()).unwrap();
        let mut state = StateWriter::now();
        state.table("n", "sessions", 1, 32);
        state.records(&[0; 32]);
        fs::write(&path, state.finish()).unwrap();
        let before = fs::read(&path).unwrap();
        let mut driver = types::driver(plan.build(plan.seeds(None)).unwrap());
        for unreadable in [Unreadable::Stop, Unreadable::Ignore] {
            let keeper = Keeper::new(&path, unreadable).unwrap();
            let stopped = &mut || Err(ui::Interrupted);
            let why = keeper.restore(&mut driver, &plan, None, stopped).unwrap_err();
            assert!(ui::is_interrupt(&why), "{why:#}");
            assert_eq!(fs::read(&path).unwrap(), before);
            keeper.restore(&mut driver, &plan, None, &mut || Ok(())).unwrap();
        }
    }
}
