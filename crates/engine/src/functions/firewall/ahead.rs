//! Lookups of several packets at once, ahead of what is decided about them.
//!
//! IPv4 packets go through the trees step by step, all of them one step before any goes the next: what one waits for comes
//! while the others' is asked for, and how deep a tree is where one goes through it is no branch.

use slipstream_wire::{FlowKey, NarrowKey};

use super::PacketFields;
use super::forest::{AHEAD, Forest, Leaves, Link, NONE, Tree};

/// What is found out about a packet ahead of the decision.
#[derive(Clone, Debug)]
pub struct Found {
    /// Whether there is anything: it is an IP packet.
    pub(super) known: bool,
    /// Its key, where that is kept.
    pub(super) key: FlowKey,
    pub(super) packet: PacketFields,
    pub(super) leaves: Leaves,
    /// The first rule that matches, or [`NONE`].
    first: u32,
}

impl Default for Found {
    fn default() -> Self {
        let key = FlowKey::Narrow(NarrowKey([0; 2]));
        let packet = PacketFields::of(&key, 0, 0);
        Self { known: false, key, packet, leaves: Leaves::default(), first: NONE }
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
            let (links, _) = links.as_chunks::<STRIDE>();
            for (found, &[a, b, c, _]) in found.iter_mut().zip(links) {
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
            let (links, _) = links.as_chunks::<STRIDE>();
            for (found, &[a, b, c, _]) in found.iter_mut().zip(links) {
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

    /// The leaves that IPv4 packets come to; those of others are empty.
    #[inline(never)]
    fn walk_some(&self, found: &[Found]) -> [Link; LANES] {
        let trees = &self.v4;
        let child = |at: usize| trees.children.get(at).copied().unwrap_or(Link::EMPTY);
        let mut links = [Link::EMPTY; LANES];
        // The lanes that are at nodes.
        let mut under_way = [0_u8; LANES];
        let mut count = 0;
        for (tree, &Tree { root, .. }) in (0..AHEAD).zip(&trees.trees) {
            for (packet, found) in found.iter().enumerate().filter(|(_, f)| f.known && !f.packet.is_ipv6()) {
                let lane = packet * STRIDE + tree;
                let next = if root.is_node() { child(root.child(&found.packet.words)) } else { root };
                if let (Some(link), Some(place)) = (links.get_mut(lane), under_way.get_mut(count % LANES)) {
                    (*link, *place) = (next, lane as u8);
                }
                count += usize::from(next.is_node());
            }
        }
        while count > 0 {
            let before = std::mem::take(&mut count);
            for at in 0..before {
                let lane = under_way.get(at % LANES).copied().unwrap_or(0);
                let Some(found) = found.get(usize::from(lane) / STRIDE) else { break };
                let Some(link) = links.get_mut(usize::from(lane) % LANES) else { break };
                *link = child(link.child(&found.packet.words));
                if let Some(place) = under_way.get_mut(count % LANES) {
                    *place = lane;
                }
                count += usize::from(link.is_node());
            }
        }
        let (packets, _) = links.as_chunks::<STRIDE>();
        for links in packets.iter().take(found.len()) {
            links.iter().take(AHEAD).for_each(|link| trees.prefetch_leaf(*link));
        }
        links
    }
}
