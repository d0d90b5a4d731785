//! Lookups of several packets at once, ahead of what is decided about them.
//!
//! IPv4 packets go through the trees step by step, all of them one step before any goes the next: what one
//! waits for comes while the others' is asked for, and how deep a tree is where one goes through it is no
//! branch.

use slipstream_wire::{FlowKey, NarrowKey};

use super::forest::{AHEAD, Forest, Leaves, Link, NONE, Tree};
use super::{PacketFields, Verdict};
use crate::conntrack::CtState;

/// The result of reading a packet ahead of the decision.
#[derive(Clone, Debug)]
pub struct Found {
    /// True if there is anything: it is an IP packet.
    pub(super) known: bool,
    /// There is nothing since the packet's extension headers did not lead to a protocol.
    pub(super) hidden: bool,
    /// Its key, where that is kept.
    pub(super) key: FlowKey,
    pub(super) packet: PacketFields,
    pub(super) leaves: Leaves,
    /// The first rule that matches, or [`NONE`].
    first: u32,
    /// The verdict, if it is simple and known ahead.
    pub(super) fate: Option<Verdict>,
    /// Rule and verdict are those of the flow's context; where connections are tracked, the rule is, if the
    /// connection's state is as it was.
    pub(super) by_context: bool,
    /// Entry of the flow's context, if connections are tracked.
    pub(super) kept: Kept,
}

/// Entry of a flow's context about a packet whose connection is tracked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    /// Number of its connection, most likely; or [`NONE`].
    pub(super) connection: u32,
    /// The first rule that matches in this state, or [`NONE`] if none does.
    pub(super) rule: u32,
    pub(super) state: CtState,
}

impl Kept {
    /// Nothing is known of the flow.
    pub(super) const NOTHING: Self = Self { connection: NONE, rule: NONE, state: CtState::Invalid };
}

impl Default for Found {
    fn default() -> Self {
        let key = FlowKey::Narrow(NarrowKey([0; 2]));
        let packet = PacketFields::of(&key, 0, 0);
        Self {
            known: false,
            hidden: false,
            key,
            packet,
            leaves: Leaves::default(),
            first: NONE,
            fate: None,
            by_context: false,
            kept: Kept::NOTHING,
        }
    }
}

impl Found {
    /// The first rule that matches, where it was looked up.
    #[inline(always)]
    pub(super) fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    pub(super) fn note(&mut self, first: Option<u32>) {
        self.first = first.unwrap_or(NONE);
    }
}

/// Packets that go through the trees together.
const TOGETHER: usize = 16;
/// Places of a packet, one a tree.
const STRIDE: usize = AHEAD.next_power_of_two();
const LANES: usize = TOGETHER * STRIDE;

impl Forest {
    /// Takes packets through the first trees, and asks for the rules that they will be compared with.
    #[inline(never)]
    pub(super) fn walk_together(&self, found: &mut [Found]) {
        for found in found.chunks_mut(TOGETHER) {
            let links = self.walk_some(found);
            for (found, &[a, b, c, _]) in found.iter_mut().zip(&links) {
                found.leaves = Leaves([a, b, c]);
                if found.packet.is_ipv6() && found.known {
                    self.walk(&found.packet, &mut found.leaves);
                }
            }
        }
    }

    /// Looks packets up.
    pub(super) fn lookup_together(&self, found: &mut [Found]) {
        for found in found.chunks_mut(TOGETHER) {
            let links = self.walk_some(found);
            for (found, &[a, b, c, _]) in found.iter_mut().zip(&links) {
                if found.known && !found.packet.is_ipv6() {
                    found.first = self.v4.lookup_in(&found.packet, &Leaves([a, b, c]));
                } else if found.known {
                    found.first = self.lookup_v6(&found.packet);
                }
            }
        }
    }

    #[inline(never)]
    fn lookup_v6(&self, packet: &PacketFields) -> u32 {
        self.v6.lookup::<false>(packet, 0)
    }

    /// The leaves that packets come to in the first trees of IPv4. (What a packet is that has no business
    /// there, is not asked: nobody looks at its leaves.)
    #[inline(never)]
    fn walk_some(&self, found: &[Found]) -> [[Link; STRIDE]; TOGETHER] {
        let trees = &self.v4;
        let children = trees.children.as_slice();
        let child = |at: usize| children.get(at).copied().unwrap_or(Link::EMPTY);
        let mut links = [[Link::EMPTY; STRIDE]; TOGETHER];
        // The lanes that are at nodes, as packet and tree.
        let mut under_way = [0_u8; LANES];
        let mut count = 0;
        for (tree, &Tree { root, .. }) in (0..AHEAD).zip(&trees.trees) {
            let mut lane = tree as u8;
            for (found, links) in found.iter().zip(&mut links) {
                let next = if root.is_node() { child(root.child(&found.packet.words)) } else { root };
                if let (Some(link), Some(place)) = (links.get_mut(tree), under_way.get_mut(count % LANES)) {
                    (*link, *place) = (next, lane);
                }
                count += usize::from(next.is_node());
                lane += STRIDE as u8;
            }
        }
        while count > 0 {
            let before = std::mem::take(&mut count);
            for at in 0..before {
                let lane = under_way.get(at % LANES).copied().unwrap_or(0);
                let (packet, tree) = (usize::from(lane) / STRIDE, usize::from(lane) % STRIDE);
                let (Some(found), Some(links)) = (found.get(packet), links.get_mut(packet)) else { break };
                let Some(link) = links.get_mut(tree) else { break };
                let next = child(link.child(&found.packet.words));
                *link = next;
                if let Some(place) = under_way.get_mut(count % LANES) {
                    *place = lane;
                }
                count += usize::from(next.is_node());
            }
        }
        for links in links.iter().take(found.len()) {
            links.iter().take(AHEAD).for_each(|link| trees.prefetch_leaf(*link));
        }
        links
    }
}
