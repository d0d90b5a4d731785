//! A pipeline that runs: stages in an order in which every wire leads onwards, and what passes between them.
//!
//! A stage's output is handed to the stages behind it at once, depth first, so that a batch goes through the whole
//! pipeline while it is in the cache.

use crate::batch::{Arrivals, Batch};
use crate::clock;
use crate::io::capture::Interface;
use crate::pipeline::{Diagnostics, Finding, Group, Made, Plan, Ports, Role, Site, Slices, order};
use crate::pool::Pool;
use crate::reframe::{Output, ReframeStats};
use crate::stage::{Context, DropReason, Drops, Stage, StageError};
use crate::time::Nanos;
use slipstream_stats::Histogram;
use slipstream_wire::LinkType;

use super::live::Excess;
use super::source::Source;

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

impl Plan {
    /// Checks everything that can be checked without opening a port or creating a file.
    ///
    /// # Errors
    /// Everything that is wrong.
    pub fn check(&self) -> Result<(), Diagnostics> {
        Pipeline::assemble(self, true, 0).map(|_| ())
    }

    /// Builds the pipeline. `seed` is that of its hashes and random choices.
    ///
    /// # Errors
    /// Everything that is wrong.
    pub fn build(&self, seed: u64) -> Result<Pipeline, Diagnostics> {
        Pipeline::assemble(self, false, seed)
    }
}

impl Pipeline {
    fn assemble(plan: &Plan, dry: bool, seed: u64) -> Result<Self, Diagnostics> {
        let mut findings = Vec::new();
        let mut this = Self::of(Vec::new(), Vec::new());
        this.live = plan.stages.iter().any(|s| s.kind.live());
        let ordered = order(&plan.stages, &plan.wires).unwrap_or_default();
        // Place of each planned stage among the nodes, and the names of its ports where settings give them.
        let mut places = vec![None; plan.stages.len()];
        let mut outputs = vec![Vec::new(); plan.stages.len()];
        let mut inputs = vec![Vec::new(); plan.stages.len()];
        let mut sources = Vec::new();
        let slices = Slices::default();
        for id in ordered {
            let Some(planned) = plan.stages.get(id) else { continue };
            let (name, role, base) = (&planned.name, planned.role, &plan.base);
            let site = Site { name, role, dry, base, seed, live: this.live, slices: &slices };
            let mut ports = match planned.kind.outputs {
                Ports::These(ports) => ports.iter().map(|p| p.name.to_owned()).collect(),
                Ports::None | Ports::AsSet(_) => Vec::new(),
            };
            let made = match (planned.kind.build)(&planned.settings, &site) {
                Ok(made) => made,
                Err(error) => {
                    let finding = Finding::new(&plan.setting_span(planned, error.setting), error.message);
                    findings.push(match error.hint {
                        Some(hint) => finding.hint(hint),
                        None => finding,
                    });
                    continue;
                }
            };
            let stage = match made {
                Made::Stage(stage) => Some(stage),
                Made::WithPorts(stage, names) => {
                    ports = names;
                    Some(stage)
                }
                Made::Between(stage, names) => {
                    if let Some(place) = inputs.get_mut(id) {
                        place.clone_from(&names);
                    }
                    ports = names;
                    Some(stage)
                }
                Made::Source(source) => {
                    sources.push((id, source));
                    None
                }
                Made::TwoWay(source, stage) => {
                    sources.push((id, source));
                    Some(stage)
                }
                Made::Checked => None,
            };
            let mut wiring = Wiring { edges: vec![None; ports.len()], ..Wiring::default() };
            if let Ports::These(ports) = planned.kind.outputs {
                wiring.reasons =
                    ports.iter().map(|p| p.unconnected.unwrap_or(DropReason::Unconnected)).collect();
            }
            if let Some(place) = outputs.get_mut(id) {
                *place = ports;
            }
            if let Some(stage) = stage {
                let name = planned.name.clone();
                let end = this.live && planned.kind.group == Group::Port;
                let excess = end.then(|| Box::new(Excess::default()));
                this.nodes.push(Node {
                    name,
                    kind: planned.kind.name,
                    stage,
                    wiring,
                    ledger: Ledger { excess, ..Ledger::default() },
                });
                if let Some(place) = places.get_mut(id) {
                    *place = Some(this.nodes.len() - 1);
                }
            }
        }
        let mut heads = this.connect(plan, &places, (&inputs, &outputs), &mut findings);
        for (id, source) in sources {
            if let (Some(edge), Some(planned)) = (heads.remove(&id), plan.stages.get(id)) {
                let (name, kind) = (planned.name.clone(), planned.kind.name);
                this.heads.push(Head { name, kind, source, edge });
            }
        }
        plan.fail_on(findings)?;
        this.find_reunions();
        Ok(this)
    }

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
        Self { nodes, heads, links, timed: true, live: false, ways, before, told }
    }

    /// The stages by themselves, in an order in which every wire led onwards.
    #[must_use]
    pub fn into_stages(self) -> Vec<(String, Box<dyn Stage + Send>)> {
        self.nodes.into_iter().map(|n| (n.name, n.stage)).collect()
    }

    fn connect(
        &mut self,
        plan: &Plan,
        places: &[Option<usize>],
        (inputs, outputs): (&[Vec<String>], &[Vec<String>]),
        findings: &mut Vec<Finding>,
    ) -> std::collections::BTreeMap<usize, Edge> {
        let mut heads = std::collections::BTreeMap::new();
        let mut taken = std::collections::BTreeSet::new();
        for wire in &plan.wires {
            let (Some(from), Some(to)) = (plan.stages.get(wire.from), plan.stages.get(wire.to)) else {
                continue;
            };
            let names: &[String] = outputs.get(wire.from).map_or(&[], Vec::as_slice);
            let source = from.kind.inputs == Ports::None || matches!(from.role, Role::Source | Role::TwoWay);
            let output = match resolve(wire.output.as_deref(), names) {
                Some(port) => port,
                None if source && is_default(wire.output.as_deref()) => 0,
                // Its ports are not known, since it couldn't be built.
                None if names.is_empty() && !findings.is_empty() => continue,
                None => {
                    findings.push(no_port(
                        wire.output.as_deref(),
                        &from.name,
                        "output",
                        names,
                        &wire.output_span,
                    ));
                    continue;
                }
            };
            if !taken.insert((wire.from, output)) {
                let message = format!("output port {output} of `{}` is wired twice", from.name);
                findings.push(
                    Finding::new(&wire.output_span, message).hint("use `tee` to send packets two ways"),
                );
                continue;
            }
            let names: Vec<String> = match to.kind.inputs {
                Ports::These(ports) => ports.iter().map(|p| p.name.to_owned()).collect(),
                Ports::None | Ports::AsSet(_) => inputs.get(wire.to).cloned().unwrap_or_default(),
            };
            // Its ports are not known, since it couldn't be built.
            if matches!(to.kind.inputs, Ports::AsSet(_)) && names.is_empty() && !findings.is_empty() {
                continue;
            }
            let Some(input) = resolve(wire.input.as_deref(), &names) else {
                findings.push(no_port(wire.input.as_deref(), &to.name, "input", &names, &wire.input_span));
                continue;
            };
            let Some(node) = places.get(wire.to).copied().flatten() else { continue };
            let edge = Edge { node, input: input as u8 };
            let node = if source { None } else { places.get(wire.from).copied().flatten() };
            match node.and_then(|n| self.nodes.get_mut(n)) {
                Some(node) => {
                    if let Some(place) = node.wiring.edges.get_mut(output) {
                        *place = Some(edge);
                    }
                }
                None => {
                    heads.insert(wire.from, edge);
                }
            }
        }
        for (id, stage) in plan.stages.iter().enumerate() {
            let Ports::These(ports) = stage.kind.outputs else { continue };
            if stage.role == Role::Sink && stage.kind.group == Group::Port {
                continue;
            }
            for (n, port) in ports.iter().enumerate().filter(|(_, p)| p.unconnected.is_none()) {
                let named = |w: &crate::pipeline::Wire| {
                    w.from == id
                        && (w.output.as_deref() == Some(port.name)
                            || resolve(w.output.as_deref(), &[]) == Some(n))
                };
                if !taken.contains(&(id, n)) && !plan.wires.iter().any(named) {
                    let message =
                        format!("packets that leave `{}` by its port `{}` go nowhere", stage.name, port.name);
                    findings.push(
                        Finding::new(&stage.span, message).hint("wire it up: `… -> out`, or `… -> discard`"),
                    );
                }
            }
        }
        heads
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
            stage.arrive(cx, arrivals, out);
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

    /// Everything that is held leaves now.
    pub(super) fn drain(&mut self, pool: &mut Pool, now: Nanos) {
        for node in 0..self.nodes.len() {
            self.call(node, pool, now, 0, |stage, cx, _, out| stage.drain(cx, out));
        }
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

    fn call(
        &mut self,
        node: usize,
        pool: &mut Pool,
        now: Nanos,
        input: u8,
        work: impl FnOnce(&mut dyn Stage, &mut Context<'_>, &mut Ledger, &mut dyn Output),
    ) {
        let Some(nodes) = self.nodes.get_mut(node..) else { return };
        let way = Way { now, links: &self.links, timed: self.timed };
        enter(nodes, node, way, pool, input, work);
    }
}

/// What stays the same all the way of a batch.
#[derive(Clone, Copy)]
struct Way<'a> {
    now: Nanos,
    links: &'a [LinkType],
    timed: bool,
}

/// Lets the first of `nodes`, whose place in the pipeline is `place`, work; returns the time that took in ns.
fn enter(
    nodes: &mut [Node],
    place: usize,
    way: Way<'_>,
    pool: &mut Pool,
    input: u8,
    work: impl FnOnce(&mut dyn Stage, &mut Context<'_>, &mut Ledger, &mut dyn Output),
) -> u64 {
    let Some((node, behind)) = nodes.split_first_mut() else { return 0 };
    let start = way.timed.then(clock::now);
    let mut cx = Context { now: way.now, pool, input, links: way.links };
    let mut out = Downstream { wiring: &mut node.wiring, behind, first: place + 1, way };
    work(node.stage.as_mut(), &mut cx, &mut node.ledger, &mut out);
    let Some(start) = start else { return 0 };
    let all = start.elapsed().as_nanos() as u64;
    let behind = std::mem::take(&mut node.wiring.behind_ns);
    node.ledger.tally.busy_ns += all.saturating_sub(behind);
    all
}

/// The stages behind one.
struct Downstream<'a> {
    wiring: &'a mut Wiring,
    behind: &'a mut [Node],
    /// Place of the first of them.
    first: usize,
    way: Way<'a>,
}

impl Downstream<'_> {
    fn hand_on(&mut self, pool: &mut Pool, port: u8, batch: &mut Batch) {
        let Some(edge) = self.wiring.edges.get(usize::from(port)).copied().flatten() else {
            let reason =
                self.wiring.reasons.get(usize::from(port)).copied().unwrap_or(DropReason::Unconnected);
            self.wiring.unconnected.add(reason, batch.frames.len() as u64);
            batch.frames.iter().for_each(|f| pool.free(f.buf));
            batch.clear();
            return;
        };
        self.wiring.packets_out += batch.frames.len() as u64;
        let Some(nodes) = edge.node.checked_sub(self.first).and_then(|n| self.behind.get_mut(n..)) else {
            return;
        };
        let spent = enter(nodes, edge.node, self.way, pool, edge.input, |stage, cx, ledger, out| {
            ledger.process(stage, cx, batch, out);
        });
        self.wiring.behind_ns += spent;
        batch.clear();
    }

    /// Hands on the trains that `take` says, by the port that it is asked about.
    fn hand_on_part(
        &mut self,
        pool: &mut Pool,
        batch: &Batch,
        port: u8,
        trains: impl Iterator<Item = usize>,
    ) {
        let mut part = std::mem::take(&mut self.wiring.scratch);
        for i in trains {
            let Some(train) = batch.trains.get(i) else { continue };
            let (from, to) = (train.start as usize, train.start as usize + train.len as usize);
            let start = part.frames.len() as u32;
            part.frames.extend_from_slice(batch.frames.get(from..to).unwrap_or_default());
            part.trains.push(crate::batch::Train { start, ..*train });
        }
        self.hand_on(pool, port, &mut part);
        self.wiring.scratch = part;
    }
}

impl Output for Downstream<'_> {
    fn emit(&mut self, pool: &mut Pool, batch: &mut Batch) {
        let Some(&first) = batch.ports.first() else {
            return self.hand_on(pool, 0, batch);
        };
        if batch.ports.iter().all(|p| *p == first) {
            batch.ports.clear();
            return self.hand_on(pool, first, batch);
        }
        let ports = std::mem::take(&mut batch.ports);
        if self.wiring.ordered {
            let mut at = 0;
            while let Some(&port) = ports.get(at) {
                let len = ports.iter().skip(at).take_while(|p| **p == port).count();
                self.hand_on_part(pool, batch, port, at..at + len);
                at += len;
            }
        } else {
            let mut done = [false; crate::stage::Verdict::MAX_PORTS as usize];
            for &port in &ports {
                let Some(done) = done.get_mut(usize::from(port)).filter(|d| !**d) else { continue };
                *done = true;
                let of_port = ports.iter().enumerate().filter(|(_, p)| **p == port).map(|(i, _)| i);
                self.hand_on_part(pool, batch, port, of_port);
            }
        }
        batch.ports = ports;
        batch.clear();
    }
}

fn is_default(port: Option<&str>) -> bool {
    port.is_none_or(|p| p == "0" || p == "out")
}

/// A port's number by its name or number; none written means 0.
fn resolve(port: Option<&str>, names: &[String]) -> Option<usize> {
    let Some(port) = port else { return (!names.is_empty()).then_some(0) };
    names.iter().position(|n| n == port).or_else(|| port.parse().ok().filter(|n| *n < names.len()))
}

fn no_port(
    port: Option<&str>,
    stage: &str,
    side: &str,
    names: &[String],
    span: &std::ops::Range<usize>,
) -> Finding {
    let message = match port {
        Some(port) => format!("`{stage}` has no {side} port `{port}`"),
        None => format!("`{stage}` has no {side} port"),
    };
    let known: Vec<String> = names.iter().enumerate().map(|(i, n)| format!("{i} `{n}`")).collect();
    let hint = if known.is_empty() {
        format!("it has no {side} ports at all")
    } else {
        format!("it has {}", known.join(", "))
    };
    Finding::new(span, message).hint(hint)
}
