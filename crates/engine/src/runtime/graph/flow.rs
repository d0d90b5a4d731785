//! The way of packets from stage to stage.

use std::collections::VecDeque;

use super::packed::Packed;
use super::{Edge, Ledger, Node, Wiring};
use crate::runtime::operator::Visits;
use slipstream_core::batch::{Arrivals, Batch, Train};
use slipstream_core::clock;
use slipstream_core::flow_context::Begun;
use slipstream_core::interface::Interface;
use slipstream_core::pool::Pool;
use slipstream_core::stage::Output;
use slipstream_core::stage::{Context, DropReason, Stage};
use slipstream_core::time::Nanos;
use slipstream_wire::LinkType;

/// Empty batches that are kept for their memory, at most.
const SPARE: usize = 256;

/// Empty batches, which are kept for their memory.
#[derive(Default)]
pub(super) struct Spare {
    batches: Vec<Batch>,
    arrivals: Vec<Arrivals>,
    packed: Vec<Packed>,
    begun: Vec<Vec<Begun>>,
    chunks: Vec<Vec<Event>>,
}

impl Spare {
    /// Keeps the memory of a batch.
    pub(super) fn put_batch(&mut self, mut batch: Batch) {
        if self.batches.len() < SPARE {
            batch.clear();
            self.batches.push(batch);
        }
    }

    /// Keeps the memory of arrivals.
    pub(super) fn put_arrivals(&mut self, mut arrivals: Arrivals) {
        if self.arrivals.len() < SPARE {
            arrivals.clear();
            self.arrivals.push(arrivals);
        }
    }

    /// Keeps the memory of packed arrivals.
    pub(super) fn put_packed(&mut self, mut packed: Packed) {
        if self.packed.len() < SPARE {
            packed.clear();
            self.packed.push(packed);
        }
    }

    /// Keeps the memory of a list of contexts.
    pub(super) fn put_begun(&mut self, begun: Vec<Begun>) {
        if self.begun.len() < SPARE {
            self.begun.push(begun);
        }
    }

    /// Keeps the memory of events.
    pub(super) fn put_chunk(&mut self, mut chunk: Vec<Event>) {
        if self.chunks.len() < SPARE {
            chunk.clear();
            self.chunks.push(chunk);
        }
    }

    /// Takes over all that there is room for.
    pub(super) fn refill(&mut self, other: &mut Self) {
        let take = |mine: usize, others: usize| others.saturating_sub(SPARE.saturating_sub(mine));
        self.batches.extend(other.batches.drain(take(self.batches.len(), other.batches.len())..));
        self.arrivals.extend(other.arrivals.drain(take(self.arrivals.len(), other.arrivals.len())..));
        self.packed.extend(other.packed.drain(take(self.packed.len(), other.packed.len())..));
        self.begun.extend(other.begun.drain(take(self.begun.len(), other.begun.len())..));
        self.chunks.extend(other.chunks.drain(take(self.chunks.len(), other.chunks.len())..));
    }
}

impl Event {
    /// Packets that come with it.
    pub(super) fn packets(&self) -> usize {
        match self {
            Self::Batch { batch, .. } => batch.frames.len(),
            Self::Arrivals { arrivals, .. } => arrivals.frames.len(),
            Self::Packed { packed, .. } => packed.packets(),
            Self::Begun { .. }
            | Self::End
            | Self::Until(_)
            | Self::Interfaces(_)
            | Self::Drain(_)
            | Self::Reload(_)
            | Self::Visit(..) => 0,
        }
    }
}

/// Batches that leave the depth-first way: some go back to a router, some on to a section of the pipeline
/// that another thread runs.
#[derive(Default)]
pub(super) struct Later {
    batches: VecDeque<(Edge, Batch)>,
    /// Events for the section behind, where there is one.
    pub(super) beyond: Vec<Event>,
    /// Deadlines before this time come before the call that is under way, in the sections behind.
    pub(super) before: Nanos,
    /// The number of that call, where a deadline caused it; otherwise 0.
    pub(super) call: u64,
    /// Empty batches, for their memory.
    pub(super) spare: Spare,
    /// Packets that arrive go to another core.
    pub(super) packs: bool,
    /// This section, and the last one that has contexts of the numbers that flows are given here.
    pub(super) followed: Option<(usize, usize)>,
}

/// Something that happens to a section of a pipeline. Events reach it in the order in which they happen in
/// the pipeline as a whole.
#[derive(Debug)]
pub(super) enum Event {
    /// Packets come to a stage.
    Batch {
        /// Deadlines before this time come first, if this is the first batch here that this call caused.
        before: Nanos,
        call: u64,
        now: Nanos,
        edge: Edge,
        batch: Batch,
    },
    /// Packets come to the stage behind a source, as they arrive.
    Arrivals { now: Nanos, edge: Edge, arrivals: Arrivals },
    /// The same, packed.
    Packed { now: Nanos, edge: Edge, packed: Packed },
    /// Flow contexts begin anew in a section, and in those that follow it, up to the last one.
    Begun { section: usize, last: usize, begun: Vec<Begun> },
    /// The call that the batches before came from is over: what goes round may go.
    End,
    /// Deadlines at or before this time are due.
    Until(Nanos),
    /// Interfaces have come up.
    Interfaces(Vec<Interface>),
    /// Everything that is held leaves.
    Drain(Nanos),
    /// Stages read anew what they can.
    Reload(Nanos),
    /// Somebody has something to do at stages.
    Visit(Nanos, Visits),
}

impl Later {
    /// Takes the batch that has waited longest, and its edge.
    pub(super) fn take(&mut self) -> Option<(Edge, Batch)> {
        self.batches.pop_front()
    }

    /// Takes the events for the section behind.
    pub(super) fn take_beyond(&mut self) -> Vec<Event> {
        std::mem::replace(&mut self.beyond, self.spare.chunks.pop().unwrap_or_default())
    }

    /// A batch that has gone, for its memory.
    pub(super) fn give_back(&mut self, batch: Batch) {
        self.spare.put_batch(batch);
    }

    /// Takes packets that arrive at a stage of a section behind.
    pub(super) fn pass_arrivals(&mut self, now: Nanos, edge: Edge, arrivals: &mut Arrivals) {
        if self.packs {
            let mut packed = self.spare.packed.pop().unwrap_or_default();
            if packed.pack(arrivals) {
                return self.beyond.push(Event::Packed { now, edge, packed });
            }
            self.spare.put_packed(packed);
        }
        let mut kept = self.spare.arrivals.pop().unwrap_or_default();
        std::mem::swap(&mut kept, arrivals);
        self.beyond.push(Event::Arrivals { now, edge, arrivals: kept });
    }

    /// Takes the packets out of a batch.
    fn keep(&mut self, edge: Edge, batch: &mut Batch) {
        let kept = self.moved(batch);
        self.batches.push_back((edge, kept));
    }

    /// Tells the sections behind which flow contexts have begun: before any packets go there whose trains may
    /// have their numbers.
    pub(super) fn tell_begun(&mut self, pool: &mut Pool) {
        if let Some((section, last)) = self.followed
            && let Some(flows) = pool.flows()
            && flows.has_begun()
        {
            let mut begun = self.spare.begun.pop().unwrap_or_default();
            flows.take_begun(&mut begun);
            self.beyond.push(Event::Begun { section, last, begun });
        }
    }

    /// Takes the packets out of a batch, which go to a stage of a section behind.
    pub(super) fn pass(&mut self, now: Nanos, edge: Edge, batch: &mut Batch) {
        let batch = self.moved(batch);
        self.beyond.push(Event::Batch { before: self.before, call: self.call, now, edge, batch });
    }

    fn moved(&mut self, batch: &mut Batch) -> Batch {
        let mut kept = self.spare.batches.pop().unwrap_or_default();
        std::mem::swap(&mut kept, batch);
        kept
    }
}

/// The part of a stage's context that is the same for all stages behind a call.
#[derive(Clone, Copy)]
pub(super) struct Way<'a> {
    pub(super) now: Nanos,
    pub(super) links: &'a [LinkType],
    pub(super) timed: bool,
}

/// Lets the first of `nodes`, whose place in the pipeline is `place`, work; returns the time that took in ns.
pub(super) fn enter(
    nodes: &mut [Node],
    place: usize,
    way: Way<'_>,
    (pool, later): (&mut Pool, &mut Later),
    input: u8,
    work: impl FnOnce(&mut dyn Stage, &mut Context<'_>, &mut Ledger, &mut dyn Output),
) -> u64 {
    let Some((node, behind)) = nodes.split_first_mut() else { return 0 };
    let start = way.timed.then(clock::now);
    let packets = node.ledger.tally.packets;
    let before = pool.flows().as_mut().map(|flows| flows.turn_to(node.place));
    let mut cx = Context { now: way.now, pool: &mut *pool, input, links: way.links };
    let mut out = Downstream { wiring: &mut node.wiring, behind, first: place + 1, way, later };
    work(node.stage.as_mut(), &mut cx, &mut node.ledger, &mut out);
    // The stage before may not be done yet.
    if let (Some(flows), Some(before)) = (pool.flows(), before) {
        flows.turn_to(before);
    }
    node.ledger.calls += 1;
    let Some(start) = start else { return 0 };
    let all = start.elapsed().as_nanos() as u64;
    let behind = std::mem::take(&mut node.wiring.behind_ns);
    node.ledger.time(node.ledger.tally.packets - packets, all.saturating_sub(behind));
    all
}

/// The stages behind one.
struct Downstream<'a> {
    wiring: &'a mut Wiring,
    behind: &'a mut [Node],
    /// Place of the first of them.
    first: usize,
    way: Way<'a>,
    later: &'a mut Later,
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
        let Some(onwards) = edge.node.checked_sub(self.first) else {
            return self.later.keep(edge, batch);
        };
        let Some(nodes) = self.behind.get_mut(onwards..).filter(|nodes| !nodes.is_empty()) else {
            self.later.tell_begun(pool);
            return self.later.pass(self.way.now, edge, batch);
        };
        let spent =
            enter(nodes, edge.node, self.way, (pool, self.later), edge.input, |stage, cx, ledger, out| {
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
            part.trains.push(Train { start, ..*train });
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
        if batch.ports.len() >= batch.trains.len() && batch.ports.iter().all(|p| *p == first) {
            batch.ports.clear();
            return self.hand_on(pool, first, batch);
        }
        let mut ports = std::mem::take(&mut batch.ports);
        ports.resize(batch.trains.len(), 0);
        if self.wiring.ordered {
            let mut at = 0;
            while let Some(&port) = ports.get(at) {
                let len = ports.iter().skip(at).take_while(|p| **p == port).count();
                self.hand_on_part(pool, batch, port, at..at + len);
                at += len;
            }
        } else {
            // Also ports that no stage has: what goes there is counted as dropped.
            let mut done = [false; 1 << u8::BITS];
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
