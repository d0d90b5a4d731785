//! A pipeline that runs: stages in an order in which wires lead onwards, and what passes between them.
//!
//! A stage's output is handed to the stages behind it at once, depth first, so that a batch goes through the whole
//! pipeline while it is in the cache. What a wire leads back to a router waits until all of that has been done, then goes
//! there in the order in which it came.

mod assemble;
mod flow;

use crate::batch::{Arrivals, Batch};
use crate::clock::LiveClock;
use crate::io::capture::Interface;
use crate::pool::Pool;
use crate::reframe::{Output, ReframeStats};
use crate::stage::{Context, DropReason, Drops, Stage, StageError};
use crate::time::Nanos;
use slipstream_stats::Histogram;
use slipstream_wire::LinkType;

use self::flow::{Later, Way, enter};
use super::live::Excess;
use super::source::Source;

/// How often a packet may come by a router: as often as its time to live can be counted down.
const MOST_HOPS: u32 = 255;

/// Where a port leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Edge {
    node: usize,
    input: u8,
}

/// What went through a stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Packets that came in.
    pub packets: u64,
    /// Trains that came in.
    pub trains: u64,
    /// Batches that came in.
    pub batches: u64,
    /// Packets that went out.
    pub packets_out: u64,
    /// Time spent in the stage itself, without the stages behind it, in ns.
    pub busy_ns: u64,
}

/// A stage in its place.
struct Node {
    name: String,
    kind: &'static str,
    stage: Box<dyn Stage + Send>,
    wiring: Wiring,
    ledger: Ledger,
}

/// What is written down about a stage.
#[derive(Default)]
struct Ledger {
    tally: Tally,
    /// Of the stages at the end of a live pipeline.
    excess: Option<Box<Excess>>,
}

impl Ledger {
    /// The stage takes a batch.
    fn process(
        &mut self,
        stage: &mut dyn Stage,
        cx: &mut Context<'_>,
        batch: &mut Batch,
        out: &mut dyn Output,
    ) {
        self.tally.packets += batch.frames.len() as u64;
        self.tally.trains += batch.trains.len() as u64;
        self.tally.batches += 1;
        if let Some(excess) = &mut self.excess {
            excess.leaving(cx.pool, batch);
        }
        stage.process(cx, batch, out);
        if let Some(excess) = &mut self.excess {
            excess.left();
        }
    }
}

/// Where a stage's output goes.
#[derive(Default)]
struct Wiring {
    edges: Vec<Option<Edge>>,
    /// Two ports lead to one stage in the end: batches are cut where the port changes, so that no packet overtakes another.
    ordered: bool,
    scratch: Batch,
    /// What packets count as that leave by a port that leads nowhere, one a port.
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
    edge: Edge,
}

/// A pipeline that was built.
pub struct Pipeline {
    nodes: Vec<Node>,
    pub(super) heads: Vec<Head>,
    links: Vec<LinkType>,
    timed: bool,
    live: bool,
    /// The nodes that the packets of each head may come to, in a live run.
    ways: Vec<Vec<usize>>,
    /// The nodes from which packets may come to each.
    before: Vec<Vec<usize>>,
    /// Which nodes were told that nothing more will come.
    told: Vec<bool>,
    /// What goes round.
    later: Later,
}

impl std::fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = self.nodes.iter().map(|n| &n.name).collect();
        f.debug_struct("Pipeline").field("stages", &names).finish_non_exhaustive()
    }
}

/// What a stage did.
#[derive(Clone, Debug)]
pub struct StageReport {
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: &'static str,
    /// What went through.
    pub tally: Tally,
    /// Its own counters.
    pub counters: Vec<(&'static str, u64)>,
    /// What it dropped, and what left by ports that lead nowhere.
    pub drops: Drops,
    /// Packets that it holds.
    pub held: u64,
    /// What else it has to say.
    pub report: Option<serde_json::Value>,
    /// The figures of a reframe stage.
    pub reframe: Option<Box<ReframeStats>>,
    /// Of a stage at the end of a live pipeline: how much later than they were due packets left, in ns. Due is the end of
    /// the hold time, and the arrival for what is not held.
    pub excess: Option<Histogram>,
    /// Of the same: how long packets were on their way, in ns, from the time stamp that they came with to when they had left;
    /// only of those whose time stamp lies within the run, as those of interfaces and of `paced` do.
    pub transit: Option<Histogram>,
}

impl Pipeline {
    /// Stages in a row behind one source that brings nothing by itself: for measurements, which bring their own packets.
    #[must_use]
    pub fn chain(stages: Vec<(String, Box<dyn Stage + Send>)>) -> Self {
        let last = stages.len().saturating_sub(1);
        let node = |(i, (name, stage)): (usize, (String, Box<dyn Stage + Send>))| {
            let next = (i < last).then_some(Edge { node: i + 1, input: 0 });
            let wiring = Wiring { edges: vec![next], ..Wiring::default() };
            Node { name, kind: "", stage, wiring, ledger: Ledger::default() }
        };
        let nodes = stages.into_iter().enumerate().map(node).collect();
        let source = Box::new(super::source::Preload::default());
        let head = Head { name: "in".into(), kind: "null", source, edge: Edge { node: 0, input: 0 } };
        Self::of(nodes, vec![head])
    }

    fn of(nodes: Vec<Node>, heads: Vec<Head>) -> Self {
        let (links, ways, before, told) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { nodes, heads, links, timed: true, live: false, ways, before, told, later: Later::default() }
    }

    /// The stages by themselves, in an order in which every wire led onwards.
    #[must_use]
    pub fn into_stages(self) -> Vec<(String, Box<dyn Stage + Send>)> {
        self.nodes.into_iter().map(|n| (n.name, n.stage)).collect()
    }

    /// Finds the stages whose output ports lead to one stage in the end.
    fn find_reunions(&mut self) {
        let reach: Vec<Vec<usize>> = (0..self.nodes.len()).map(|n| self.reachable(n)).collect();
        for node in &mut self.nodes {
            let mut seen = Vec::new();
            let ways =
                node.wiring.edges.iter().flatten().map(|e| reach.get(e.node).cloned().unwrap_or_default());
            for way in ways {
                node.wiring.ordered |= way.iter().any(|n| seen.contains(n));
                seen.extend(way);
            }
        }
    }

    fn reachable(&self, from: usize) -> Vec<usize> {
        let mut all = vec![from];
        let mut at = 0;
        while let Some(node) = all.get(at).and_then(|n| self.nodes.get(*n)) {
            for edge in node.wiring.edges.iter().flatten() {
                if !all.contains(&edge.node) {
                    all.push(edge.node);
                }
            }
            at += 1;
        }
        all
    }

    /// Whether events must go through one by one to keep their order: packets may meet others that were held elsewhere.
    pub(super) fn needs_single_events(&self) -> bool {
        let holding = self.nodes.iter().filter(|n| n.stage.holds()).count();
        let edges = self.nodes.iter().flat_map(|n| n.wiring.edges.iter().flatten());
        let mut met: Vec<usize> = edges.chain(self.heads.iter().map(|h| &h.edge)).map(|e| e.node).collect();
        let all = met.len();
        met.sort_unstable();
        met.dedup();
        holding > 1 || holding == 1 && met.len() < all
    }

    /// Don't measure the time of each stage.
    pub fn untimed(&mut self) {
        self.timed = false;
    }

    /// Tells all stages of interfaces that have come up.
    pub(super) fn interfaces(&mut self, new: &[Interface]) -> Result<(), StageError> {
        self.links.extend(new.iter().map(|i| LinkType::from_number(i.link_number as u16)));
        self.nodes.iter_mut().try_for_each(|n| n.stage.interfaces(new))
    }

    pub(super) fn links(&self) -> &[LinkType] {
        &self.links
    }

    /// Whether the first stage behind a source takes packets as they arrive.
    pub(super) fn takes_arrivals(&self, head: usize) -> bool {
        let node = self.heads.get(head).and_then(|h| self.nodes.get(h.edge.node));
        node.is_some_and(|n| n.stage.takes_arrivals())
    }

    /// Hands arrivals to the first stage behind a source.
    pub(super) fn arrive(&mut self, head: usize, pool: &mut Pool, now: Nanos, arrivals: &mut Arrivals) {
        let packets = arrivals.frames.len() as u64;
        let Some(edge) = self.heads.get(head).map(|h| h.edge) else { return };
        self.call(edge.node, pool, now, edge.input, |stage, cx, ledger, out| {
            ledger.tally.packets += packets;
            ledger.tally.batches += 1;
            ledger.tally.trains += stage.arrive(cx, arrivals, out);
        });
    }

    /// Hands a batch to the first stage behind a source.
    pub(super) fn push(&mut self, head: usize, pool: &mut Pool, now: Nanos, batch: &mut Batch) {
        let Some(edge) = self.heads.get(head).map(|h| h.edge) else { return };
        self.call(edge.node, pool, now, edge.input, |stage, cx, ledger, out| {
            ledger.process(stage, cx, batch, out);
        });
    }

    /// Does what is due at or before `now`, each at its own time: in the order of deadlines, then of stages.
    pub(super) fn run_to(&mut self, pool: &mut Pool, now: Nanos) {
        loop {
            let due =
                self.nodes.iter().map(|n| n.stage.next_deadline()).enumerate().min_by_key(|(i, d)| (*d, *i));
            let Some((node, deadline)) = due.filter(|(_, d)| *d <= now && *d < Nanos::MAX) else { return };
            self.call(node, pool, deadline, 0, |stage, cx, _, out| stage.on_deadline(cx, out));
        }
    }

    /// Has the lateness of packets measured by this clock from now on.
    pub(super) fn set_clock(&mut self, clock: LiveClock) {
        self.nodes.iter_mut().filter_map(|n| n.ledger.excess.as_mut()).for_each(|e| e.set_clock(clock));
    }

    /// Whether packets come or go by the wall clock.
    #[must_use]
    pub fn live(&self) -> bool {
        self.live
    }

    /// Finds out which stages the packets of each source may come to.
    pub(super) fn find_ways(&mut self) {
        self.ways = self.heads.iter().map(|h| self.reachable(h.edge.node)).collect();
        let reach: Vec<Vec<usize>> = (0..self.nodes.len()).map(|n| self.reachable(n)).collect();
        let leads = |to: usize| {
            move |(from, way): (usize, &Vec<usize>)| (from != to && way.contains(&to)).then_some(from)
        };
        self.before = (0..self.nodes.len())
            .map(|to| reach.iter().enumerate().filter_map(leads(to)).collect())
            .collect();
        self.told = vec![false; self.nodes.len()];
    }

    /// Packets that all stages on the ways of a source have room for.
    pub(super) fn room(&mut self, head: usize) -> usize {
        let way = self.ways.get(head).map_or(&[][..], Vec::as_slice);
        let rooms = way.iter().filter_map(|n| self.nodes.get_mut(*n).map(|n| n.stage.room()));
        rooms.min().unwrap_or(usize::MAX)
    }

    /// Tells stages that nothing more will come to them, where `at_end` says that of a source.
    pub(super) fn tell_ends(&mut self, at_end: impl Fn(usize) -> bool) {
        for node in 0..self.nodes.len() {
            let mut heads = self.ways.iter().enumerate().filter(|(_, way)| way.contains(&node));
            let held = |place: &usize| self.nodes.get(*place).is_some_and(|n| n.stage.held() > 0);
            let over = self.told.get(node) == Some(&false)
                && heads.all(|(head, _)| at_end(head))
                && !self.before.get(node).is_some_and(|before| before.iter().any(held));
            if over && let (Some(n), Some(told)) = (self.nodes.get_mut(node), self.told.get_mut(node)) {
                *told = true;
                n.stage.no_more();
            }
        }
    }

    /// When the next stage wants to be called although no packet comes.
    pub(super) fn next_deadline(&self) -> Nanos {
        self.nodes.iter().map(|n| n.stage.next_deadline()).min().unwrap_or(Nanos::MAX)
    }

    /// Whether no stage holds packets, or waits until somebody has taken them.
    pub(super) fn finished(&self) -> bool {
        self.nodes.iter().all(|n| n.stage.held() == 0 && !n.stage.unfinished())
    }

    /// Everything that is held leaves now, also what comes by a stage again that had let go all that it held.
    pub(super) fn drain(&mut self, pool: &mut Pool, now: Nanos) {
        for _ in 0..=MOST_HOPS {
            for node in 0..self.nodes.len() {
                self.call(node, pool, now, 0, |stage, cx, _, out| stage.drain(cx, out));
            }
            if self.nodes.iter().all(|n| n.stage.held() == 0) {
                return;
            }
        }
    }

    /// The stages that can read something anew, and what.
    pub(super) fn reloads(&self) -> Vec<(&str, &'static str)> {
        self.nodes.iter().filter_map(|n| Some((n.name.as_str(), n.stage.reloads()?))).collect()
    }

    /// Has them do so.
    pub(super) fn reload(&mut self, now: Nanos) {
        self.nodes.iter_mut().for_each(|n| n.stage.reload(now));
    }

    /// Finishes all files, also where one can't be; then the first error.
    pub(super) fn finish(&mut self) -> Result<(), StageError> {
        let finished: Vec<_> = self.nodes.iter_mut().map(|n| n.stage.finish()).collect();
        finished.into_iter().collect()
    }

    /// What every stage did.
    #[must_use]
    pub fn reports(&self) -> Vec<StageReport> {
        let report = |node: &Node| {
            let mut counters = Vec::new();
            node.stage.counters(&mut |name, n| counters.push((name, n)));
            let mut drops = node.stage.drops();
            drops.merge(&node.wiring.unconnected);
            StageReport {
                name: node.name.clone(),
                kind: node.kind,
                tally: Tally { packets_out: node.wiring.packets_out, ..node.ledger.tally },
                counters,
                drops,
                held: node.stage.held(),
                report: node.stage.report(),
                reframe: node.stage.reframe_stats().map(Box::new),
                excess: node.ledger.excess.as_ref().map(|e| e.histogram().clone()),
                transit: node.ledger.excess.as_ref().map(|e| e.transit().clone()),
            }
        };
        self.nodes.iter().map(report).collect()
    }

    /// Lets a stage do its work, and the stages behind it theirs, until nothing waits between stages.
    fn call(
        &mut self,
        node: usize,
        pool: &mut Pool,
        now: Nanos,
        input: u8,
        work: impl FnOnce(&mut dyn Stage, &mut Context<'_>, &mut Ledger, &mut dyn Output),
    ) {
        let Self { nodes, later, links, timed, .. } = self;
        let way = Way { now, links, timed: *timed };
        if let Some(nodes) = nodes.get_mut(node..) {
            enter(nodes, node, way, (pool, later), input, work);
        }
        while let Some((edge, mut batch)) = later.take() {
            if let Some(nodes) = nodes.get_mut(edge.node..) {
                enter(nodes, edge.node, way, (pool, later), edge.input, |stage, cx, ledger, out| {
                    ledger.process(stage, cx, &mut batch, out);
                });
            }
            later.give_back(batch);
        }
    }
}
