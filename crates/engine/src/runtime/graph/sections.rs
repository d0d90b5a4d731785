//! A pipeline on several threads, with the result that it has on one.
//!
//! The nodes, which stand in an order in which wires lead onwards, are cut into sections. A section is run by
//! one thread at a time, any of them, and takes its events in the order in which they happen in the pipeline
//! as a whole: batches, deadlines that are due, the end. So every stage is called as on one thread, one call
//! after the other, with the same batches at the same times; while one thread has a stage decide about some
//! packets, another one has the stages before it at work on later packets. Nothing is divided between
//! threads, neither tables nor their bounds, and nothing that leaves depends on their number or on when which
//! of them runs.
//!
//! Events travel in chunks of a few thousand packets, as handles: the bytes stay where they are, in the
//! memory that all threads' pools have together.
//!
//! A thread that finds nothing to do sleeps, in a replay until several chunks wait or have room: to wake it
//! takes the other thread a part of the time of a chunk.
//!
//! Every thread has neighbouring sections of its own, so that a stage's tables stay in one core's cache; the
//! thread that asks the sources has the first ones. A thread takes a chunk through all of its sections while
//! it is in its cache. Sections are dealt out by the time that they took, so that the busiest thread has as
//! little as possible, and dealt out anew where that has changed.

mod ahead;
mod parts;
mod sleep;

use std::collections::VecDeque;
use std::mem::{replace, take};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use slipstream_core::batch::Arrivals;
use slipstream_core::clock::{self, thread_cpu_ns};
use slipstream_core::pool::Pool;
use slipstream_core::stage::{DraftReport, Stage, StageError};
use slipstream_core::time::Nanos;

use self::ahead::Ahead;
use super::flow::{Later, Spare};
use super::{Event, Pipeline, StageReport};

/// Packets of a chunk, about.
const CHUNK: usize = 1024;
/// Events of a chunk at most, where they have few packets each.
const EVENTS: usize = 1024;
/// Chunks that wait for a section at most.
const WAITING: usize = 16;
/// The same in a replay, whose chunks are full: packets that are under way then fit into the cache of the
/// core that stores the next ones in the places of those before.
const WAITING_IN_REPLAY: usize = 6;
/// Chunks for which a thread that sleeps is woken in a replay: so many that came, or that there is room for.
/// Waking another core takes a good part of the time of a chunk.
const SEVERAL: usize = 2;
/// A thread that finds nothing to do looks again after this time, if nobody has woken it before.
const NAP: Duration = Duration::from_millis(1);

/// Chunks after which sections are dealt out anew: at first so many, then twice as many each time.
const SHORTEST_WINDOW: u64 = 8;
const LONGEST_WINDOW: u64 = 512;

/// The costs since sections were last dealt out, as far as the thread that asks the sources knows them.
#[derive(Debug, Default)]
struct Balance {
    since: Option<Instant>,
    /// Chunks that were sent, and after how many of them it is time.
    sent: u64,
    window: u64,
    /// Time in which there was no room for another chunk.
    blocked_ns: u64,
}

/// A part of a pipeline, and the pool of whoever runs it.
struct Section {
    pipeline: Pipeline,
    pool: Pool,
    error: Option<StageError>,
    /// Batches of events that it took, empty.
    used: Spare,
    /// Arrivals that came packed.
    arrivals: Arrivals,
}

impl Section {
    /// Takes a chunk, of which `ahead` says what it needs that other cores may have.
    fn take(&mut self, mut chunk: Vec<Event>, ahead: Ahead) {
        if let Some(first) = chunk.first() {
            ahead.ask_for(first, &self.pipeline, &self.pool);
        }
        for at in 0..chunk.len() {
            if let Some(next) = chunk.get(at + 1) {
                ahead.ask_for(next, &self.pipeline, &self.pool);
            }
            if let Some(event) = chunk.get_mut(at) {
                let event = replace(event, Event::End);
                self.event(event);
            }
        }
        self.used.put_chunk(chunk);
        // Stages that wait for the memory of these packets are to have it soon.
        self.pool.settle();
    }

    fn event(&mut self, event: Event) {
        let Self { pipeline, pool, error, used, arrivals: unpacked } = self;
        match event {
            Event::Batch { before, call, now, edge, mut batch } => {
                // On one thread nothing comes between the batches of a call: a deadline that has come
                // before them in time comes behind them, too.
                if pipeline.followed_call != call {
                    pipeline.run_before(pool, before);
                    pipeline.followed_call = call;
                }
                (pipeline.later.before, pipeline.later.call) = (before, call);
                if !pipeline.has(edge.node) {
                    return pipeline.later.beyond.push(Event::Batch { before, call, now, edge, batch });
                }
                let timed = pipeline.sample();
                pipeline.step(edge.node, pool, (now, timed), edge.input, |stage, cx, ledger, out| {
                    ledger.process(stage, cx, &mut batch, out);
                });
                used.put_batch(batch);
            }
            Event::Arrivals { now, edge, mut arrivals } => {
                (pipeline.later.before, pipeline.later.call) = (Nanos(0), 0);
                if !pipeline.has(edge.node) {
                    return pipeline.later.beyond.push(Event::Arrivals { now, edge, arrivals });
                }
                let timed = pipeline.sample();
                pipeline.step(edge.node, pool, (now, timed), edge.input, |stage, cx, ledger, out| {
                    ledger.arrive(stage, cx, &mut arrivals, out);
                });
                used.put_arrivals(arrivals);
            }
            Event::Packed { now, edge, packed } => {
                (pipeline.later.before, pipeline.later.call) = (Nanos(0), 0);
                if !pipeline.has(edge.node) {
                    return pipeline.later.beyond.push(Event::Packed { now, edge, packed });
                }
                packed.unpack(unpacked);
                used.put_packed(packed);
                let timed = pipeline.sample();
                pipeline.step(edge.node, pool, (now, timed), edge.input, |stage, cx, ledger, out| {
                    ledger.arrive(stage, cx, unpacked, out);
                });
                unpacked.clear();
            }
            Event::Begun { section, last, begun } => {
                if pipeline.follows == Some(section)
                    && let Some(flows) = &mut pipeline.contexts
                {
                    flows.follow(&begun);
                }
                if pipeline.number < last {
                    return pipeline.later.beyond.push(Event::Begun { section, last, begun });
                }
                used.put_begun(begun);
            }
            Event::End => {
                let (now, timed) = (pipeline.now, pipeline.sample());
                pipeline.go_round(pool, (now, timed));
                pipeline.pass_on(Event::End);
            }
            Event::Until(time) => pipeline.run_to(pool, time),
            Event::Interfaces(new) => {
                if let Err(wrong) = pipeline.interfaces(&new) {
                    error.get_or_insert(wrong);
                }
            }
            Event::Drain(now) => pipeline.drain(pool, now),
            Event::Reload(now) => pipeline.reload(now),
            Event::Visit(now, visits) => pipeline.visit(&visits, now),
        }
    }
}

/// A section and what waits for it.
struct Cell {
    section: Mutex<Section>,
    /// The lines of packets that its stages need.
    needs: Ahead,
    input: Mutex<VecDeque<Vec<Event>>>,
    waiting: AtomicUsize,
    /// Empty batches of chunks that went through, for the section before.
    spare: Mutex<Spare>,
    /// Time spent in it since the sections were last dealt out, in ns.
    busy_ns: AtomicU64,
    /// The time at which its next stage wants to be called, in ns.
    due: AtomicU64,
    /// Its stages that write something and still can.
    ends_left: AtomicUsize,
}

/// The sections behind the first one, which whoever asks the sources runs.
pub(in crate::runtime) struct Sections {
    cells: Vec<Cell>,
    /// The first section of each thread's own; the last entry is the number of sections.
    first: Vec<AtomicUsize>,
    /// The costs by which the sections are dealt out.
    balance: Mutex<Balance>,
    /// Chunks that were sent and are not through.
    under_way: AtomicUsize,
    /// Nothing more will be sent.
    closed: AtomicBool,
    /// Nobody is to do anything more.
    stopped: AtomicBool,
    /// A stage can write nothing more.
    failed: AtomicBool,
    /// The interface that a stage sends by was taken away.
    gone: AtomicBool,
    sleeping: AtomicUsize,
    changes: AtomicUsize,
    bell: (Mutex<()>, Condvar),
    /// Threads that sleep until there is room for several chunks, and what wakes them.
    blocked: AtomicUsize,
    room: (Mutex<()>, Condvar),
    /// Chunks for which a thread that sleeps is woken.
    several: usize,
    /// Chunks that wait for a section at most.
    most: usize,
    /// CPU time of the threads that [`work`](Self::work) here, in ns.
    cpu_ns: AtomicU64,
}

/// Stops everything should its thread panic: nobody is to wait for what will not come.
pub(in crate::runtime) struct StopOnPanic<'a>(pub(in crate::runtime) &'a Sections);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.stop();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Packets and events on their way out of a section.
#[derive(Debug, Default)]
pub(in crate::runtime) struct Crossing {
    packets: usize,
    counted: usize,
}

impl Crossing {
    /// Returns true if nothing waits to be sent.
    pub(in crate::runtime) fn is_empty(&self) -> bool {
        self.counted == 0
    }
}

impl Pipeline {
    /// Returns true if a node is of this section.
    fn has(&self, place: usize) -> bool {
        (self.base..self.base + self.nodes.len()).contains(&place)
    }

    /// The places before which it can be cut: no wire leads back over them, and no stages on both sides share
    /// anything.
    fn cuts(&self) -> Vec<usize> {
        let over = |cut: usize| {
            let mut before = self.nodes.iter().enumerate().skip(cut);
            before.any(|(_, node)| node.wiring.edges.iter().flatten().any(|edge| edge.node < cut))
        };
        let apart = |cut: usize| self.together.start < cut && cut < self.together.end;
        (0..self.nodes.len()).filter(|cut| !over(*cut) && !apart(*cut)).collect()
    }

    /// Cuts it into sections, for so many threads; this one keeps the sources, and what stands before the
    /// first cut. `pool` becomes that of this one.
    ///
    /// None where it can't be cut.
    #[allow(unsafe_code)]
    pub(in crate::runtime) fn cut(&mut self, pool: &mut Pool, threads: usize) -> Option<Sections> {
        let cuts = self.cuts();
        if cuts.is_empty() {
            return None;
        }
        // SAFETY: a packet is in one place at a time: with the source, in a batch that passes between
        // sections behind a lock, in an event of a chunk behind a lock, or held by a stage, which belongs to
        // a section that one thread at a time has locked. Stages give a `BufId` on with its packet, or free
        // it, and forget it then; lengths are those that came with packets, or are made shorter.
        let mut pools = unsafe { take(pool).siblings(cuts.len() + 1) };
        *pool = pools.pop()?;
        if pools.len() < cuts.len() {
            // Its memory was adopted, and stays with one thread.
            return None;
        }
        let mut contexts = self.contexts_of_sections(&cuts);
        let mut cells = Vec::with_capacity(cuts.len());
        for (number, (cut, mut pool)) in (1..=cuts.len()).rev().zip(cuts.into_iter().rev().zip(pools)) {
            // A payload that waits is to be heard of soon where the packet that should have fetched it was
            // dropped.
            if self.together.is_empty() {
                pool.free_elsewhere();
            }
            let mut behind = Self::of(self.nodes.split_off(cut), Vec::new());
            behind.base = cut;
            behind.split = !cells.is_empty();
            behind.become_section(number, contexts.pop().unwrap_or_default());
            (behind.rounds, behind.timed) = (self.rounds, self.timed);
            behind.links.clone_from(&self.links);
            let (used, arrivals) = (Spare::default(), Arrivals::default());
            let (ends_left, needs) = (AtomicUsize::new(behind.ends_left()), Ahead::of(&mut behind));
            let section = Mutex::new(Section { pipeline: behind, pool, error: None, used, arrivals });
            cells.push(Cell {
                section,
                needs,
                input: Mutex::default(),
                waiting: AtomicUsize::new(0),
                spare: Mutex::default(),
                busy_ns: AtomicU64::new(0),
                due: AtomicU64::new(u64::MAX),
                ends_left,
            });
        }
        cells.reverse();
        self.become_section(0, contexts.pop().unwrap_or_default());
        self.split = true;
        // The thread that asks the sources begins with no section, the others with as many each.
        let first = |thread: usize| match thread.checked_sub(1) {
            Some(before) if threads > 1 => AtomicUsize::new(cells.len() * before / (threads - 1)),
            _ => AtomicUsize::new(0),
        };
        Some(Sections {
            first: (0..=threads).map(first).collect(),
            balance: Mutex::new(Balance { window: SHORTEST_WINDOW, ..Balance::default() }),
            cells,
            under_way: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            sleeping: AtomicUsize::new(0),
            changes: AtomicUsize::new(0),
            bell: Default::default(),
            blocked: AtomicUsize::new(0),
            room: Default::default(),
            several: 1,
            most: WAITING,
            cpu_ns: AtomicU64::new(0),
        })
    }

    /// Events that leave this section go on to the next one, where it is a chunk, or where `all` of it is to
    /// go.
    pub(in crate::runtime) fn send(&mut self, sections: &Sections, crossing: &mut Crossing, all: bool) {
        let events = &self.later.beyond;
        crossing.packets += events.iter().skip(crossing.counted).map(Event::packets).sum::<usize>();
        crossing.counted = events.len();
        if all && crossing.counted > 0 || crossing.packets >= CHUNK || crossing.counted >= EVENTS {
            *crossing = Crossing::default();
            sections.push(0, self.later.take_beyond());
            sections.tell(0);
            sections.balance();
            sections.fetch_spare(0, &mut self.later);
            self.later.packs = sections.own(0).is_empty();
        }
    }
}

impl Sections {
    fn push(&self, to: usize, chunk: Vec<Event>) {
        let Some(cell) = self.cells.get(to) else { return };
        self.under_way.fetch_add(1, Ordering::AcqRel);
        lock(&cell.input).push_back(chunk);
        cell.waiting.fetch_add(1, Ordering::AcqRel);
    }

    /// Lets threads that sleep do so until several chunks wait for them, or have room: for replays, where it
    /// doesn't matter when a packet leaves.
    pub(in crate::runtime) fn patient(mut self) -> Self {
        (self.several, self.most) = (SEVERAL, WAITING_IN_REPLAY);
        self
    }

    /// Takes empty batches that a section gave back, for the section before it.
    fn fetch_spare(&self, from: usize, later: &mut Later) {
        if let Some(cell) = self.cells.get(from) {
            later.spare.refill(&mut lock(&cell.spare));
        }
    }

    /// Takes chunks through the sections of the thread that asks the sources; works until there is room for
    /// more.
    pub(in crate::runtime) fn make_room(&self) {
        loop {
            let changes = self.changes();
            if self.is_stopped() {
                return;
            }
            if self.turn(0) {
                continue;
            }
            // Chunks that wait here while there is no room behind would leave the cache.
            let most = if self.own(0).is_empty() { self.most } else { 1 };
            if self.waiting(0) < most {
                return;
            }
            let since = clock::now();
            self.rest(0, changes);
            lock(&self.balance).blocked_ns += since.elapsed().as_nanos() as u64;
        }
    }

    /// The sections of a thread.
    fn own(&self, thread: usize) -> Range<usize> {
        let at = |n: usize| self.first.get(n).map_or(0, |first| first.load(Ordering::Acquire));
        at(thread)..at(thread + 1)
    }

    /// Takes a chunk through the sections of a thread; returns false if there was none, or no room behind
    /// them.
    fn turn(&self, thread: usize) -> bool {
        let own = self.own(thread);
        let Some(at) = own.clone().rev().find(|at| self.step(*at)) else { return false };
        // The same chunk goes on while it is in the cache.
        (at + 1..own.end).all(|next| self.step(next));
        true
    }

    /// Deals out the sections anew, once so many chunks were sent that their costs are known.
    fn balance(&self) {
        let mut balance = lock(&self.balance);
        balance.sent += 1;
        if balance.sent < balance.window {
            return;
        }
        let since = balance.since.replace(clock::now());
        let blocked = take(&mut balance.blocked_ns);
        balance.sent = 0;
        balance.window = (balance.window * 2).min(LONGEST_WINDOW);
        drop(balance);
        let costs: Vec<u64> = self.cells.iter().map(|c| c.busy_ns.swap(0, Ordering::Relaxed)).collect();
        let Some(since) = since else { return };
        let own: u64 = costs.iter().take(self.own(0).end).sum();
        let source = (since.elapsed().as_nanos() as u64).saturating_sub(blocked + own);
        let firsts: Vec<usize> = self.first.iter().map(|first| first.load(Ordering::Acquire)).collect();
        if let Some(better) = parts::better(source, &costs, &firsts) {
            self.first.iter().zip(better).for_each(|(first, at)| first.store(at, Ordering::Release));
        }
    }

    fn is_full(&self, at: usize) -> bool {
        self.waiting(at) >= self.most
    }

    fn waiting(&self, at: usize) -> usize {
        self.cells.get(at).map_or(0, |cell| cell.waiting.load(Ordering::Acquire))
    }

    /// Runs a section with one of its chunks, if there is one, room behind it, and nobody else at it.
    fn step(&self, at: usize) -> bool {
        let Some(cell) = self.cells.get(at) else { return false };
        if cell.waiting.load(Ordering::Acquire) == 0 || self.is_full(at + 1) {
            return false;
        }
        let mut section = match cell.section.try_lock() {
            Ok(section) => section,
            Err(TryLockError::WouldBlock) => return false,
            // Its thread is gone, and has stopped all.
            Err(TryLockError::Poisoned(_)) => return false,
        };
        let _told = StopOnPanic(self);
        let Some(chunk) = lock(&cell.input).pop_front() else { return false };
        cell.waiting.fetch_sub(1, Ordering::SeqCst);
        self.made_room(at);
        self.fetch_spare(at + 1, &mut section.pipeline.later);
        let since = clock::now();
        section.take(chunk, self.needs(at));
        cell.busy_ns.fetch_add(since.elapsed().as_nanos() as u64, Ordering::Relaxed);
        lock(&cell.spare).refill(&mut section.used);
        if section.error.is_some() || section.pipeline.failed() {
            cell.ends_left.store(section.pipeline.ends_left(), Ordering::Release);
            if section.pipeline.is_gone() {
                self.gone.store(true, Ordering::Release);
            }
            self.failed.store(true, Ordering::Release);
        }
        cell.due.store(section.pipeline.next_deadline().0, Ordering::Release);
        if !section.pipeline.later.beyond.is_empty() {
            self.push(at + 1, section.pipeline.later.take_beyond());
        }
        drop(section);
        self.under_way.fetch_sub(1, Ordering::AcqRel);
        self.tell(at + 1);
        true
    }

    /// Returns the lines to ask for before a section takes packets: none for sections of the first thread,
    /// whose own core has them, and those of all of a thread's sections for the first of them.
    fn needs(&self, at: usize) -> Ahead {
        let (Some(cell), false) = (self.cells.get(at), self.own(0).contains(&at)) else {
            return Ahead::default();
        };
        let mut threads = (1..self.first.len()).map(|thread| self.own(thread));
        let own = threads.find(|own| own.start == at && !own.is_empty()).unwrap_or_default();
        cell.needs.behind(self.cells.get(own).unwrap_or_default().iter().map(|cell| cell.needs))
    }

    /// Does some of what there is to do, the last sections first; returns whether there was anything.
    fn help(&self) -> bool {
        let found = (0..self.cells.len()).rev().find(|at| self.step(*at));
        let Some(at) = found else { return false };
        // The same chunk goes on while it is in the cache.
        (at + 1..self.cells.len()).all(|next| self.step(next));
        true
    }

    /// Works until all that was sent is through.
    pub(in crate::runtime) fn catch_up(&self) {
        while self.under_way.load(Ordering::Acquire) > 0 && !self.is_stopped() {
            self.help_or_wait();
        }
    }

    /// The time at which the next stage in these sections wants to be called, as far as they have caught up.
    pub(in crate::runtime) fn next_deadline(&self) -> Nanos {
        let due = self.cells.iter().map(|cell| cell.due.load(Ordering::Acquire)).min();
        Nanos(due.unwrap_or(u64::MAX))
    }

    /// As [`help`](Self::help); waits a little where there was nothing to do.
    pub(in crate::runtime) fn help_or_wait(&self) {
        let changes = self.changes();
        if !self.help() {
            self.sleep(changes);
        }
    }

    /// Works, as a thread other than that which asks the sources, until nothing more will come. CPU time is
    /// accounted for.
    pub(in crate::runtime) fn work(&self, thread: usize) {
        let before = thread_cpu_ns();
        while !self.stopped.load(Ordering::Acquire) && !self.through() {
            let changes = self.changes();
            if self.turn(thread) {
                continue;
            }
            if self.closed.load(Ordering::Acquire) {
                // Any thread may do the rest.
                self.help_or_wait();
                continue;
            }
            self.rest(thread, changes);
        }
        self.cpu_ns.fetch_add(thread_cpu_ns() - before, Ordering::Relaxed);
    }

    fn through(&self) -> bool {
        self.closed.load(Ordering::Acquire) && self.under_way.load(Ordering::Acquire) == 0
    }

    /// Nothing more will be sent; works until all is through.
    pub(in crate::runtime) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.ring();
        while !self.stopped.load(Ordering::Acquire) && !self.through() {
            self.help_or_wait();
        }
        self.ring();
    }

    /// Nobody does anything more: what is under way stays where it is.
    pub(in crate::runtime) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.ring();
        let _held = lock(&self.room.0);
        self.room.1.notify_all();
    }

    /// Returns true if a stage can write nothing more.
    pub(in crate::runtime) fn failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Returns true if what a stage sends by was taken away.
    pub(in crate::runtime) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// The stages that write something outside of the pipeline and still can.
    pub(in crate::runtime) fn ends_left(&self) -> usize {
        self.cells.iter().map(|cell| cell.ends_left.load(Ordering::Acquire)).sum()
    }

    /// Returns true if it was stopped before all was through.
    pub(in crate::runtime) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Does something with the stage at a place of the whole pipeline, between two chunks; none where no
    /// section of these has it.
    pub(super) fn with_stage<T>(&self, place: usize, work: impl FnOnce(&mut dyn Stage) -> T) -> Option<T> {
        let sections = self.cells.iter().map(|cell| lock(&cell.section));
        let mut section = sections.into_iter().find(|section| section.pipeline.has(place))?;
        let at = place.checked_sub(section.pipeline.base)?;
        section.pipeline.nodes.get_mut(at).map(|node| work(node.stage.as_mut()))
    }

    /// The reports of all stages in these sections, each section's between two chunks.
    pub(in crate::runtime) fn draft_reports(&self) -> Vec<(StageReport, DraftReport)> {
        let of = |cell: &Cell| lock(&cell.section).pipeline.draft_reports().collect::<Vec<_>>();
        self.cells.iter().flat_map(of).collect()
    }

    /// CPU time of the threads that have worked here.
    pub(in crate::runtime) fn cpu_ns(&self) -> u64 {
        self.cpu_ns.load(Ordering::Relaxed)
    }

    /// Makes one pipeline of all sections again.
    ///
    /// # Errors
    /// The error of the first stage that could not go on.
    pub(in crate::runtime) fn rejoin(&self, pipeline: &mut Pipeline) -> Result<(), StageError> {
        let mut result = Ok(());
        let mut counts = pipeline.end_contexts();
        for cell in &self.cells {
            let mut section = lock(&cell.section);
            counts = match (counts, section.pipeline.end_contexts()) {
                (Some(all), Some(more)) => Some(all + more),
                (all, more) => all.or(more),
            };
            pipeline.nodes.append(&mut section.pipeline.nodes);
            pipeline.stuck = pipeline.stuck.take().or(section.pipeline.stuck.take());
            if let (Ok(()), Some(error)) = (&result, section.error.take()) {
                result = Err(error);
            }
        }
        pipeline.split = false;
        pipeline.counted = counts;
        pipeline.later.beyond.clear();
        result
    }
}
