//! The shape of a pipeline's graph: what goes round, what meets again, and what packets come to from a stage.

use std::ops::Range;

use slipstream_wire::Encapsulation;

use super::{Node, Pipeline};

impl Pipeline {
    /// Finds out, once it is wired up, what goes round and where packets are taken as they arrive.
    pub(in crate::runtime) fn look_over(&mut self) {
        let back =
            |(place, node): (usize, &Node)| node.wiring.edges.iter().flatten().any(|e| e.node <= place);
        self.rounds = self.nodes.iter().enumerate().any(back);
        let live = self.live;
        let edges = self.nodes.iter().flat_map(|n| n.wiring.edges.iter().flatten());
        let met: Vec<usize> = edges.chain(self.heads.iter().map(|h| &h.edge)).map(|e| e.node).collect();
        for head in &mut self.heads {
            head.takes_unread =
                live && self.nodes.get(head.edge.node).is_some_and(|n| n.stage.takes_unread());
            head.leads_alone = met.iter().filter(|node| **node == head.edge.node).count() == 1;
            let taken = self.nodes.get(head.edge.node).and_then(|n| n.stage.takes_arrivals());
            head.takes_arrivals = taken.is_some();
            head.takes_classified = taken == Some(Encapsulation::Outer);
        }
        self.keeps_time = match self.heads.as_slice() {
            [head] => {
                let mut others = self.nodes.iter().enumerate().filter(|(place, _)| *place != head.edge.node);
                head.takes_arrivals && others.all(|(_, node)| node.stage.is_timeless())
            }
            _ => false,
        };
    }

    /// Finds the stages whose output ports lead to one stage in the end.
    pub(super) fn find_reunions(&mut self) {
        let meets = |node: &Node| {
            let mut edges = node.wiring.edges.iter().flatten();
            // Packets that leave by one port alone meet nothing of their own.
            if edges.clone().nth(1).is_none() {
                return false;
            }
            let mut seen = vec![false; self.nodes.len()];
            edges.any(|edge| {
                let way = self.reachable(edge.node);
                way.iter().any(|n| seen.get_mut(*n).is_some_and(|seen| std::mem::replace(seen, true)))
            })
        };
        let ordered: Vec<bool> = self.nodes.iter().map(meets).collect();
        for (node, meets) in self.nodes.iter_mut().zip(ordered) {
            node.wiring.ordered |= meets;
        }
    }

    /// The places of nodes that share something, and of all that packets come to from there: a stage that
    /// parked payloads hears of a packet that is freed, behind a splicer too that didn't know it any more,
    /// and has to hear of it at the same time whoever runs it. Whoever shares anything is taken to share all
    /// of it.
    pub(super) fn among(&self, sharing: &[usize]) -> Range<usize> {
        let (mut reached, mut known) = (Vec::new(), self.none_known());
        sharing.iter().for_each(|place| self.reach(*place, &mut reached, &mut known));
        let start = reached.iter().min().copied().unwrap_or_default();
        start..reached.iter().max().map_or(start, |place| place + 1)
    }

    pub(super) fn reachable(&self, from: usize) -> Vec<usize> {
        let mut all = Vec::new();
        self.reach(from, &mut all, &mut self.none_known());
        all
    }

    /// For each node that it isn't known yet.
    fn none_known(&self) -> Vec<bool> {
        vec![false; self.nodes.len()]
    }

    /// Adds a node and what packets come to from there, not beyond those that are in `all`, which are those
    /// that are `known`.
    fn reach(&self, from: usize, all: &mut Vec<usize>, known: &mut [bool]) {
        let mut add = |node: usize, all: &mut Vec<usize>| {
            if let Some(known @ false) = known.get_mut(node) {
                *known = true;
                all.push(node);
            }
        };
        let mut at = all.len();
        add(from, all);
        while let Some(node) = all.get(at).and_then(|n| self.nodes.get(*n)) {
            for edge in node.wiring.edges.iter().flatten() {
                add(edge.node, all);
            }
            at += 1;
        }
    }

    /// Says that events must go through one by one to keep their order: packets may meet others that were
    /// held elsewhere, or copies of themselves, or go round, which they do behind all that came with them.
    /// Stages that hold packets one behind the other need no such thing: what each of them emits is in the
    /// order of time.
    pub(in crate::runtime) fn needs_single_events(&self) -> bool {
        if self.rounds || self.nodes.iter().any(|n| n.wiring.ordered && n.stage.emits_apart()) {
            return true;
        }
        let holding = self.nodes.iter().filter(|n| n.stage.holds()).count();
        let edges = self.nodes.iter().flat_map(|n| n.wiring.edges.iter().flatten());
        let mut met: Vec<usize> = edges.chain(self.heads.iter().map(|h| &h.edge)).map(|e| e.node).collect();
        let all = met.len();
        met.sort_unstable();
        met.dedup();
        holding > 0 && met.len() < all
    }
}
