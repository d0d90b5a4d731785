//! A pipeline that runs: stages in an order in which wires lead onwards, and what passes between them.
//!
//! A stage's output is handed to the stages behind it at once, depth first, so that a batch goes through the
//! whole pipeline while it is in the cache. What a wire leads back to a router waits until all of that has
//! been done, then goes there in the order in which it came.

mod assemble;
mod contexts;
#[cfg(test)]
mod due_tests;
mod ends;
mod flow;
mod ledger;
mod packed;
mod reach;
mod report;
mod sections;

use std::ops::Range;

use slipstream_core::batch::{Arrivals, Batch};
use slipstream_core::clock::LiveClock;
use slipstream_core::flow_context::{ContextCounts, FlowContexts, Place};
use slipstream_core::interface::Interface;
use slipstream_core::operate::Operate;
use slipstream_core::pool::{Pool, Region};
use slipstream_core::stage::Output;
use slipstream_core::stage::{Context, DropReason, Drops, Egress, Stage, StageError};
use slipstream_core::time::Nanos;
use slipstream_wire::LinkType;

pub use self::contexts::{ContextPlace, FlowContextPlan, FlowContextSettings};
use self::flow::{Event, Later, Way, enter};
use self::ledger::Ledger;
pub use self::ledger::Tally;
pub use self::report::StageReport;
pub(super) use self::sections::{Crossing, Sections, StopOnPanic};
use super::operator::Visits;
use slipstream_core::source::{Came, Source};

/// Maximum number of routers that a packet passes: its time to live is counted down at each.
const MOST_HOPS: u32 = 255;

/// Bits of the number of a call for a deadline among those of its section.
const CALL_BITS: u32 = 40;

/// One of so many calls is timed, as a power of two.
const SAMPLED_BITS: u32 = 4;

/// Calls in a row of one stage for the same deadline that come to nothing, at most.
const MOST_CALLS: u32 = 1_000_000;

/// The stage and the input that a port leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Edge {
    node: usize,
    input: u8,
}

/// A stage in its place.
struct Node {
    name: String,
    kind: &'static str,
    stage: Box<dyn Stage + Send>,
    wiring: Wiring,
    ledger: Ledger,
    /// Place of its words in flow contexts.
    place: Place,
}

/// The edges by which a stage's output goes on.
#[derive(Default)]
struct Wiring {
    edges: Vec<Option<Edge>>,
    /// Two ports lead to one stage in the end: batches are cut where the port changes, so that no packet
    /// overtakes another.
    ordered: bool,
    scratch: Batch,
    /// The drop reason of each port that leads nowhere.
    reasons: Vec<DropReason>,
    unconnected: Drops,
    packets_out: u64,
    /// Time spent in the stages behind.
    behind_ns: u64,
}

/// A source and where its packets go.
pub(super) struct Head {
    pub(super) name: String,
    pub(super) kind: &'static str,
    pub(super) source: Box<dyn Source + Send>,
    pub(super) edge: Edge,
    /// The stage that it leads to takes packets as they arrive.
    pub(super) takes_arrivals: bool,
    /// That stage would classify them by their outermost headers.
    pub(super) takes_classified: bool,
    /// That stage looks at nothing but the packets of a batch.
    pub(super) takes_unread: bool,
    /// Packets come to that stage from nowhere else.
    pub(super) leads_alone: bool,
    /// A port that packets may come to, in a live run, and that sends Ethernet frames only: its name and
    /// type.
    pub(super) ethernet_only: Option<(String, &'static str)>,
}

impl Head {
    /// A head of which nothing is known yet but where it leads: see [`Pipeline::look_over`].
    pub(super) fn new(name: String, kind: &'static str, source: Box<dyn Source + Send>, edge: Edge) -> Self {
        let (takes_arrivals, takes_classified, takes_unread, leads_alone) = (false, false, false, false);
        Self {
            name,
            kind,
            source,
            edge,
            takes_arrivals,
            takes_classified,
            takes_unread,
            leads_alone,
            ethernet_only: None,
        }
    }

    /// Holds the interfaces that the source has now against the port that packets may come to.
    pub(super) fn check_links(&self) -> Result<(), StageError> {
        let Some((port, kind)) = &self.ethernet_only else { return Ok(()) };
        let other = self.source.interfaces().iter().find(|one| one.link() != LinkType::Ethernet);
        other.map_or(Ok(()), |other| {
            Err(StageError::new(format!(
                "`{}` brings packets of link type {}, and `{port}` ({kind}) sends Ethernet frames only: capture on \
                 one interface instead of `any`, or give them Ethernet headers first (tcprewrite --dlt=enet)",
                self.name, other.link_number as u16,
            )))
        })
    }
}

/// A pipeline that was built.
pub struct Pipeline {
    nodes: Vec<Node>,
    /// Place of the first of them, in the pipeline that this is a section of.
    base: usize,
    /// Number of the section that it is.
    number: usize,
    /// Other sections run elsewhere: they are told of the time.
    split: bool,
    /// A stage changes frames, or makes some.
    changes_frames: bool,
    /// Some packets go round.
    rounds: bool,
    /// Nothing is ever due but in the stage behind the one source, which takes packets as they arrive.
    keeps_time: bool,
    /// The time of the call that is under way.
    now: Nanos,
    /// Places of nodes that must be in one section: those that share something, and where packets come
    /// between them.
    together: Range<usize>,
    /// Calls so far.
    calls: u32,
    /// Calls for deadlines of this section so far; and the last call of an earlier one from which batches
    /// came.
    deadlines: u64,
    followed_call: u64,
    pub(super) heads: Vec<Head>,
    links: Vec<LinkType>,
    timed: bool,
    live: bool,
    /// A stage that nobody vouched for to run beside other threads, and its type.
    not_shared: Option<(String, &'static str)>,
    /// The nodes that the packets of each head may come to, in a live run.
    ways: Vec<Vec<usize>>,
    /// The nodes from which packets may come to each.
    before: Vec<Vec<usize>>,
    /// The nodes that were told that nothing more will come.
    told: Vec<bool>,
    /// Batches that go back to an earlier stage or on to another section.
    later: Later,
    /// State that its stages keep of flows.
    contexts: Option<Box<FlowContexts>>,
    /// The settings that they were laid out by, and their seed.
    laid_out: (FlowContextSettings, u64),
    /// The section whose numbers of flows they have, where that is another one.
    follows: Option<usize>,
    /// Counts of contexts that sections had.
    counted: Option<ContextCounts>,
    /// A stage that keeps time from going on, where there is one.
    stuck: Option<StageError>,
}

/// Calls in a row of a stage for the same deadline that come to nothing.
#[derive(Default)]
struct Repeated {
    /// Packets that left it, and those that it holds.
    progress: (u64, u64),
    count: u32,
}

impl std::fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = self.nodes.iter().map(|n| &n.name).collect();
        f.debug_struct("Pipeline").field("stages", &names).finish_non_exhaustive()
    }
}

impl Pipeline {
    /// Stages in a row behind one source that brings nothing by itself: for measurements, which bring their
    /// own packets.
    #[must_use]
    pub fn chain(stages: Vec<(String, Box<dyn Stage + Send>)>) -> Self {
        let last = stages.len().saturating_sub(1);
        let node = |(i, (name, stage)): (usize, (String, Box<dyn Stage + Send>))| {
            let next = (i < last).then_some(Edge { node: i + 1, input: 0 });
            let wiring = Wiring { edges: vec![next], ..Wiring::default() };
            Node { name, kind: "", stage, wiring, ledger: Ledger::default(), place: Place::NONE }
        };
        let nodes = stages.into_iter().enumerate().map(node).collect();
        let source = Box::new(slipstream_io::preload::Preload::default());
        let edge = Edge { node: 0, input: 0 };
        let head = Head::new("in".into(), "null", source, edge);
        let mut this = Self::of(nodes, vec![head]);
        this.not_shared = this.nodes.first().map(|node| (node.name.clone(), node.kind));
        this.look_over();
        this.with_contexts(&FlowContextSettings::default())
    }

    /// Lets a pipeline of stages that come as values, or of a source that does, run on several threads.
    ///
    /// # Safety
    /// As for [`Registry::register_shared`](crate::pipeline::Registry::register_shared), of every stage and
    /// source in it.
    #[allow(unsafe_code)]
    #[must_use]
    pub unsafe fn shared(mut self) -> Self {
        self.not_shared = None;
        self
    }

    fn of(nodes: Vec<Node>, heads: Vec<Head>) -> Self {
        let (links, ways, before, told) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let later = Later::default();
        Self {
            nodes,
            base: 0,
            number: 0,
            split: false,
            changes_frames: false,
            rounds: false,
            keeps_time: false,
            now: Nanos(0),
            together: 0..0,
            calls: 0,
            deadlines: 0,
            followed_call: 0,
            heads,
            links,
            timed: true,
            live: false,
            not_shared: None,
            ways,
            before,
            told,
            later,
            contexts: None,
            laid_out: (FlowContextSettings::OFF, 0),
            follows: None,
            counted: None,
            stuck: None,
        }
    }

    /// With this source in place of the one that it has.
    #[must_use]
    pub fn from_source(mut self, source: Box<dyn Source + Send>) -> Self {
        let head = self.heads.first();
        self.not_shared = self.not_shared.or_else(|| head.map(|head| (head.name.clone(), head.kind)));
        if let Some(head) = self.heads.first_mut() {
            head.source = source;
        }
        self
    }

    /// Leaves the time of a stage out of that of the run: it is measured, batch by batch.
    pub(super) fn leave_out(&mut self, name: &str) {
        let named = self.nodes.iter_mut().filter(|n| n.name == name);
        named.for_each(|n| n.ledger.left_out = Some(Box::default()));
    }

    /// Real time and CPU time of the stages that are left out, in ns.
    pub(super) fn left_out(&self) -> (u64, u64) {
        let meters = self.nodes.iter().filter_map(|n| n.ledger.left_out.as_ref());
        meters.fold((0, 0), |(real, cpu), meter| (real + meter.elapsed_ns(), cpu + meter.cpu_ns()))
    }

    /// A stage that nobody vouched for to run beside other threads, by its name and type.
    pub(super) fn not_shared(&self) -> Option<(String, &'static str)> {
        self.not_shared.clone()
    }

    /// The stages by themselves, in an order in which every wire led onwards.
    #[must_use]
    pub fn into_stages(self) -> Vec<(String, Box<dyn Stage + Send>)> {
        self.nodes.into_iter().map(|n| (n.name, n.stage)).collect()
    }

    /// Don't measure the time of each stage.
    pub fn untimed(&mut self) {
        self.timed = false;
    }

    /// Tells all stages of interfaces that have come up. Where frames are changed or made on the way, none is
    /// said to end with a frame check sequence: it would be wrong, or bytes of the packet would be taken for
    /// one.
    pub(super) fn interfaces(&mut self, new: &[Interface]) -> Result<(), StageError> {
        let without: Vec<Interface>;
        let new = if self.changes_frames {
            without = new.iter().map(Interface::without_check_sequence).collect();
            &without
        } else {
            new
        };
        self.links.extend(new.iter().map(|i| LinkType::from_number(i.link_number as u16)));
        if self.split {
            self.pass_on(Event::Interfaces(new.to_vec()));
        }
        self.ends().try_for_each(|end| end.interfaces(new))
    }

    /// Packet memory that a port would have the pool adopt: that of the first one that offers some.
    pub(in crate::runtime) fn region(&mut self) -> Option<Box<dyn Region>> {
        self.heads
            .iter_mut()
            .find_map(|head| head.source.region())
            .or_else(|| self.ends().find_map(Egress::region))
    }

    pub(super) fn links(&self) -> &[LinkType] {
        &self.links
    }

    /// Returns true if the first stage behind a source takes packets as they arrive.
    pub(super) fn takes_arrivals(&self, head: usize) -> bool {
        self.heads.get(head).is_some_and(|h| h.takes_arrivals)
    }

    /// Returns true if that stage is in another section, and takes packets that were classified by their
    /// outermost headers.
    pub(super) fn takes_classified(&self, head: usize) -> bool {
        self.heads.get(head).is_some_and(|h| h.takes_classified && h.edge.node >= self.nodes.len())
    }

    /// Returns true if that stage is in this section, and looks at nothing but the packets of a batch.
    pub(super) fn takes_unread(&self, head: usize) -> bool {
        self.heads.get(head).is_some_and(|h| h.takes_unread && h.edge.node < self.nodes.len())
    }

    /// Hands a batch that has no trains to that stage.
    pub(super) fn push_unread(&mut self, head: usize, pool: &mut Pool, now: Nanos, batch: &mut Batch) {
        let Some(edge) = self.heads.get(head).map(|h| h.edge) else { return };
        self.call(edge.node, pool, now, edge.input, |stage, cx, ledger, out| {
            ledger.process_unread(stage, cx, batch, out);
        });
    }

    /// Leads packets of a live source straight to the port behind it, up to `max`, and appends them to
    /// `came`; returns how many. None where all are to be polled.
    pub(super) fn relay(
        &mut self,
        head: usize,
        pool: &mut Pool,
        now: Nanos,
        max: usize,
        came: &mut Vec<Came>,
    ) -> Option<usize> {
        let Self { heads, nodes, .. } = self;
        let head = heads.get_mut(head).filter(|head| head.leads_alone)?;
        let node = nodes.get_mut(head.edge.node)?;
        if !head.source.live()?.relay(pool, node.stage.egress()?.relay()?, max, now, came) {
            return None;
        }
        let n = came.iter().map(|those| those.packets).sum();
        if n > 0 {
            node.ledger.relayed(n as u64, came);
        }
        Some(n)
    }

    /// Hands arrivals to the first stage behind a source.
    pub(super) fn arrive(&mut self, head: usize, pool: &mut Pool, now: Nanos, arrivals: &mut Arrivals) {
        let Some(edge) = self.heads.get(head).map(|h| h.edge) else { return };
        if edge.node >= self.nodes.len() {
            self.later.pass_arrivals(now, edge, arrivals);
            return self.pass_end();
        }
        self.call(edge.node, pool, now, edge.input, |stage, cx, ledger, out| {
            ledger.arrive(stage, cx, arrivals, out);
        });
    }

    /// Hands a batch to the first stage behind a source.
    pub(super) fn push(&mut self, head: usize, pool: &mut Pool, now: Nanos, batch: &mut Batch) {
        let Some(edge) = self.heads.get(head).map(|h| h.edge) else { return };
        if edge.node >= self.nodes.len() {
            self.later.pass(now, edge, batch);
            return self.pass_end();
        }
        self.call(edge.node, pool, now, edge.input, |stage, cx, ledger, out| {
            ledger.process(stage, cx, batch, out);
        });
    }

    /// Does what is due at or before `now`, each at its own time: in the order of deadlines, then of stages.
    pub(super) fn run_to(&mut self, pool: &mut Pool, now: Nanos) {
        self.run_due(pool, now);
        self.pass_on(Event::Until(now));
    }

    /// Does what is due before packets arrive, the first of them at `now`. A stage that takes packets as they
    /// arrive does what is due there itself, arrival by arrival: it isn't asked to where nothing is ever due
    /// elsewhere.
    pub(super) fn run_to_arrival(&mut self, pool: &mut Pool, now: Nanos) {
        if !self.keeps_time {
            self.run_to(pool, now);
        }
    }

    /// Does the same here; the sections behind are told of what comes to them by it, and not of the time.
    fn run_due(&mut self, pool: &mut Pool, now: Nanos) {
        let (mut last, mut calls) = (None, Repeated::default());
        loop {
            let due = self.nodes.iter().map(|n| match n.stage.next_deadline() {
                past if past < now && !n.stage.catches_up() => now,
                deadline => deadline,
            });
            let due = due.enumerate().min_by_key(|(i, d)| (*d, *i));
            let Some((node, deadline)) = due.filter(|(_, d)| *d <= now && *d < Nanos::MAX) else { break };
            if last.replace((node, deadline)) == Some((node, deadline)) {
                self.repeat(node, deadline, &mut calls);
            } else {
                calls = Repeated::default();
            }
            if self.stuck.is_some() {
                break;
            }
            self.deadlines += 1;
            self.later.before = deadline;
            self.later.call = (self.number as u64) << CALL_BITS | self.deadlines;
            self.call(self.base + node, pool, deadline, 0, |stage, cx, _, out| stage.on_deadline(cx, out));
        }
        (self.later.before, self.later.call) = (Nanos(0), 0);
    }

    /// Counts calls of a stage for one deadline. Where too many come to nothing, time can't go on.
    #[inline(never)]
    fn repeat(&mut self, node: usize, deadline: Nanos, calls: &mut Repeated) {
        let Some(n) = self.nodes.get(node) else { return };
        let progress = (n.wiring.packets_out, n.stage.held());
        if calls.progress != progress {
            *calls = Repeated { progress, count: 0 };
        }
        calls.count += 1;
        if calls.count >= MOST_CALLS {
            let (name, kind, at) = (&n.name, n.kind, deadline.0);
            self.stuck = Some(StageError::new(format!(
                "stage `{name}` ({kind}) keeps time from going on: what is due there at {at} ns is still due after \
                 {MOST_CALLS} calls"
            )));
        }
    }

    /// Does what is due before `time`, while a call that is not of this section goes on.
    fn run_before(&mut self, pool: &mut Pool, time: Nanos) {
        if time.0 > 0 && self.next_deadline() < time {
            self.run_due(pool, Nanos(time.0 - 1));
        }
    }

    /// Has the lateness of packets measured by this clock from now on.
    pub(super) fn set_clock(&mut self, clock: LiveClock) {
        self.nodes.iter_mut().filter_map(|n| n.ledger.excess.as_mut()).for_each(|e| e.set_clock(clock));
    }

    /// The time at which the last packets left by a port; 0 before there were any.
    pub(super) fn last_left(&self) -> Nanos {
        let left = self.nodes.iter().filter_map(|n| Some(n.ledger.excess.as_ref()?.last_left()));
        left.max().unwrap_or_default()
    }

    /// Returns true if packets come or go by the wall clock.
    #[must_use]
    pub fn live(&self) -> bool {
        self.live
    }

    /// Finds out which stages the packets of each source may come to.
    pub(super) fn find_ways(&mut self) {
        self.ways = self.heads.iter().map(|h| self.reachable(h.edge.node)).collect();
        self.before = vec![Vec::new(); self.nodes.len()];
        for from in 0..self.nodes.len() {
            for to in self.reachable(from).into_iter().filter(|to| *to != from) {
                if let Some(before) = self.before.get_mut(to) {
                    before.push(from);
                }
            }
        }
        self.told = vec![false; self.nodes.len()];
        let nodes = &mut self.nodes;
        for (head, way) in self.heads.iter_mut().zip(&self.ways) {
            head.ethernet_only = way.iter().find_map(|place| {
                let node = nodes.get_mut(*place)?;
                node.stage
                    .egress()
                    .is_some_and(|end| end.ethernet_only())
                    .then(|| (node.name.clone(), node.kind))
            });
        }
    }

    /// Says which source brings packets, as far as is known, that a port on their way can't send.
    pub(super) fn check_links(&self) -> Result<(), StageError> {
        self.heads.iter().try_for_each(Head::check_links)
    }

    /// The time at which the next stage wants to be called although no packet comes; never where that is of
    /// no use.
    pub(super) fn next_deadline(&self) -> Nanos {
        if self.stuck.is_some() {
            return Nanos::MAX;
        }
        self.nodes.iter().map(|n| n.stage.next_deadline()).min().unwrap_or(Nanos::MAX)
    }

    /// Returns true if no stage holds packets, or waits until somebody has taken them.
    pub(super) fn finished(&mut self) -> bool {
        self.nodes.iter().all(|n| n.stage.held() == 0) && !self.ends().any(|end| end.unfinished())
    }

    /// Everything that is held leaves now, also what comes by a stage again that had let go all that it held.
    pub(super) fn drain(&mut self, pool: &mut Pool, now: Nanos) {
        for _ in 0..=MOST_HOPS {
            for node in 0..self.nodes.len() {
                self.call(self.base + node, pool, now, 0, |stage, cx, _, out| stage.drain(cx, out));
            }
            if self.nodes.iter().all(|n| n.stage.held() == 0) {
                break;
            }
        }
        self.pass_on(Event::Drain(now));
    }

    /// The stages that can read something anew, and what.
    pub(super) fn reloads(&self) -> Vec<(&str, &'static str)> {
        self.nodes.iter().filter_map(|n| Some((n.name.as_str(), n.stage.reloads()?))).collect()
    }

    /// Has them do so.
    pub(super) fn reload(&mut self, now: Nanos) {
        self.nodes.iter_mut().for_each(|n| n.stage.reload(now));
        self.pass_on(Event::Reload(now));
    }

    /// Does the work that is for stages of this section, and passes the rest on.
    pub(super) fn visit(&mut self, visits: &Visits, now: Nanos) {
        let mine = visits.take(|name| self.nodes.iter().any(|n| n.name == name));
        for (name, work) in mine {
            if let Some(node) = self.nodes.iter_mut().find(|n| n.name == name) {
                work(node.stage.as_mut(), now);
            }
        }
        if !visits.is_done() {
            self.pass_on(Event::Visit(now, visits.clone()));
        }
    }

    /// The stage of this name as its operator sees it.
    pub(super) fn operate(&mut self, name: &str) -> Option<&mut dyn Operate> {
        self.nodes.iter_mut().find(|n| n.name == name)?.stage.operate()
    }

    /// Finishes all files of a replay, or none where one can't be written.
    pub(super) fn finish_all_or_none(&mut self) -> Result<(), StageError> {
        if let Some(stuck) = self.stuck.take() {
            return Err(stuck);
        }
        self.ends().try_for_each(|end| end.flush())?;
        self.finish()
    }

    /// Finishes all files, also where one can't be; then the first error.
    pub(super) fn finish(&mut self) -> Result<(), StageError> {
        let finished: Vec<_> = self.ends().map(|end| end.finish()).collect();
        self.stuck.take().map_or(Ok(()), Err).and(finished.into_iter().collect())
    }

    /// Lets a stage do its work, and the stages behind it theirs, until nothing waits between stages.
    fn call(
        &mut self,
        place: usize,
        pool: &mut Pool,
        now: Nanos,
        input: u8,
        work: impl FnOnce(&mut dyn Stage, &mut Context<'_>, &mut Ledger, &mut dyn Output),
    ) {
        let timed = self.sample();
        let sent = self.later.beyond.len();
        self.step(place, pool, (now, timed), input, work);
        self.go_round(pool, (now, timed));
        if self.later.beyond.len() > sent {
            self.pass_end();
        }
    }

    /// Tells the section behind that a call is over, where packets go round.
    fn pass_end(&mut self) {
        if self.rounds {
            self.pass_on(Event::End);
        }
    }

    /// Tells the section behind, where there is one.
    fn pass_on(&mut self, event: Event) {
        if self.split {
            self.later.beyond.push(event);
        }
    }

    /// Says whether the next call is one of those that are timed.
    fn sample(&mut self) -> bool {
        // A multiplicative hash: calls of kinds that come in turns are sampled alike. The first one is timed.
        let hash = self.calls.wrapping_mul(0x9E37_79B9);
        self.calls = self.calls.wrapping_add(1);
        self.timed && hash >> (32 - SAMPLED_BITS) == 0
    }

    /// Lets a stage do its work, and the stages behind it theirs.
    fn step(
        &mut self,
        place: usize,
        pool: &mut Pool,
        (now, timed): (Nanos, bool),
        input: u8,
        work: impl FnOnce(&mut dyn Stage, &mut Context<'_>, &mut Ledger, &mut dyn Output),
    ) {
        self.now = now;
        let Self { nodes, later, links, base, contexts, .. } = self;
        let way = Way { now, links, timed };
        if let Some(nodes) = place.checked_sub(*base).and_then(|n| nodes.get_mut(n..)) {
            // Its stages find them where the packets are, as long as they are at work.
            std::mem::swap(pool.flows(), contexts);
            enter(nodes, place, way, (pool, later), input, work);
            later.tell_begun(pool);
            std::mem::swap(pool.flows(), contexts);
        }
    }

    /// Lets go what waits to go back to a router.
    fn go_round(&mut self, pool: &mut Pool, (now, timed): (Nanos, bool)) {
        while let Some((edge, mut batch)) = self.later.take() {
            self.step(edge.node, pool, (now, timed), edge.input, |stage, cx, ledger, out| {
                ledger.process(stage, cx, &mut batch, out);
            });
            self.later.give_back(batch);
        }
    }
}
