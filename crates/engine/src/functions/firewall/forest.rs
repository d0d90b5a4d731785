//! The fast classifier: a few decision trees over disjoint shares of the rules, and bit vectors over what no tree takes.
//!
//! Rules are parted by which of their addresses say much (as in EffiCuts and CutSplit), so that rules that are wide where
//! others are narrow don't end up in every leaf of these. A node of a tree looks at a few bits of one field, chosen so
//! that the rules part well with little duplication; a leaf holds a few rules side by side, in their order. A rule that would have to be
//! copied too often is left to the next tree, and what is left after the last one to the bit vectors: they need memory in
//! proportion to the rules whatever these look like, and look at all of them, 64 at a time.
//!
//! A lookup goes through the trees in the order of the first rule in each, and stops where no better rule can come.

use std::mem::size_of;

use super::bitmap::Bitmap;
use super::build;
use super::conjunction::Rest;
use super::entry::{Entry, Family, Input, V4, V6};
use super::{PacketFields, RuleSet};
use crate::huge;
use crate::prefetch::prefetch;

/// No rule.
pub(super) const NONE: u32 = u32::MAX;

/// Where to go on in a tree, in one word. A leaf: the first of its entries (bits 0..32) and how many there are (32..63). A
/// node: the first of its children (0..32), the shift (32..38) and width (38..42) of its window, and the word of the
/// packet that it looks at (42..45); bit 63 is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link(u64);

const NODE: u64 = 1 << 63;

impl Link {
    pub(super) const EMPTY: Self = Self(0);

    pub(super) fn leaf(first: usize, len: usize) -> Self {
        Self(first as u64 & 0xffff_ffff | (len as u64) << 32 & !NODE)
    }

    pub(super) fn node(children: usize, window: Window) -> Self {
        let Window { word, shift, bits } = window;
        Self(
            NODE | children as u64 & 0xffff_ffff
                | u64::from(shift) << 32
                | u64::from(bits) << 38
                | (word as u64) << 42,
        )
    }
}

/// Trees that a packet is taken through ahead of its lookup: as many as nearly every lookup comes to.
const AHEAD: usize = 2;

/// The leaves where a packet comes to in the first [`AHEAD`] trees.
#[derive(Clone, Copy, Debug)]
pub struct Leaves([Link; AHEAD]);

impl Default for Leaves {
    fn default() -> Self {
        Self([Link::EMPTY; AHEAD])
    }
}

/// A few bits of one word of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) word: usize,
    pub(super) shift: u8,
    /// At most 15.
    pub(super) bits: u8,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Tree {
    pub(super) root: Link,
    /// The first rule in it.
    pub(super) first_rule: u32,
}

/// The trees of one IP version.
#[derive(Clone, Debug)]
pub(super) struct Trees<F: Family> {
    /// By the first rule in each.
    pub(super) trees: Vec<Tree>,
    pub(super) children: Vec<Link>,
    pub(super) entries: Vec<Entry<F>>,
    pub(super) left: Bitmap<F>,
    rests: Vec<Rest>,
}

impl<F: Family> Trees<F> {
    pub(super) fn new(rules: &RuleSet) -> Self {
        let input = Input::<F>::new(rules);
        let built = build::forest(&input);
        let left = Bitmap::new(&input, &built.left);
        let mut children = huge::with_capacity(built.children.len());
        children.extend(built.children);
        let mut entries = huge::with_capacity(built.leaves.len());
        entries.extend(built.leaves.iter().filter_map(|&at| input.entries.get(at as usize)).copied());
        let mut trees = built.trees;
        trees.sort_by_key(|tree| tree.first_rule);
        Self { trees, children, entries, left, rests: input.rests }
    }

    /// Takes a packet through the first trees, and asks for the rules that its lookup will compare it with.
    #[inline(always)]
    fn walk(&self, packet: &PacketFields, leaves: &mut Leaves) {
        for (tree, leaf) in self.trees.iter().zip(&mut leaves.0) {
            *leaf = self.descend(tree.root, packet);
            prefetch(self.entries.get(leaf.0 as u32 as usize));
        }
    }

    /// As [`lookup`](Self::lookup), where the leaves of the first trees are known already.
    #[inline(always)]
    fn lookup_in(&self, packet: &PacketFields, leaves: &Leaves) -> u32 {
        let mut best = NONE;
        let mut known = leaves.0.iter();
        for tree in &self.trees {
            if tree.first_rule >= best {
                break;
            }
            let leaf = known.next().map_or_else(|| self.descend(tree.root, packet), |leaf| *leaf);
            best = self.leaf::<false>(leaf, packet, 0, best);
        }
        if self.left.first_rule() >= best { best } else { self.left.lookup(packet, &self.rests, 0, best) }
    }

    #[inline]
    pub(super) fn lookup<const FROM: bool>(&self, packet: &PacketFields, start: u32) -> u32 {
        let mut best = NONE;
        for tree in &self.trees {
            if tree.first_rule >= best {
                break;
            }
            best = self.leaf::<FROM>(self.descend(tree.root, packet), packet, start, best);
        }
        // What no tree took may come before what a tree found.
        if self.left.first_rule() >= best { best } else { self.left.lookup(packet, &self.rests, start, best) }
    }

    #[inline(always)]
    fn descend(&self, root: Link, packet: &PacketFields) -> Link {
        let mut link = root.0;
        while link & NODE != 0 {
            let word = packet.words.get((link >> 42 & 7) as usize).copied().unwrap_or(0);
            let window = word >> (link >> 32 & 63) & !(u64::MAX << (link >> 38 & 15));
            let at = (link as u32 as usize).wrapping_add(window as usize);
            link = self.children.get(at).copied().unwrap_or(Link::EMPTY).0;
        }
        Link(link)
    }

    /// The first rule that matches among the entries of a leaf, if it comes before `best`.
    #[inline(always)]
    fn leaf<const FROM: bool>(&self, Link(leaf): Link, packet: &PacketFields, start: u32, best: u32) -> u32 {
        let first = leaf as u32 as usize;
        let entries = self.entries.get(first..first + (leaf >> 32) as usize).unwrap_or(&[]);
        for entry in entries {
            if entry.rule >= best {
                break;
            }
            if entry.matches(packet, &self.rests) && (!FROM || entry.rule >= start) {
                return entry.rule;
            }
        }
        best
    }

    fn memory(&self) -> usize {
        self.trees.len() * size_of::<Tree>()
            + self.children.len() * size_of::<Link>()
            + self.entries.len() * size_of::<Entry<F>>()
            + self.left.memory()
            + self.rests.len() * size_of::<Rest>()
    }
}

/// The fast classifier, for both IP versions.
#[derive(Clone, Debug)]
pub struct Forest {
    v4: Trees<V4>,
    v6: Trees<V6>,
}

/// What a classifier came to, for one IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Decision trees.
    pub trees: usize,
    /// Entries of their leaves: rules, each counted as often as it was copied.
    pub entries: usize,
    /// Links of their nodes.
    pub links: usize,
    /// Conjunctive rules that no tree took.
    pub left: usize,
}

impl Forest {
    /// Builds the trees: the time follows the number of rules and is bounded whatever they look like.
    #[must_use]
    pub fn new(rules: &RuleSet) -> Self {
        Self { v4: Trees::new(rules), v6: Trees::new(rules) }
    }

    /// The first rule that matches.
    #[inline]
    #[must_use]
    pub fn lookup(&self, packet: &PacketFields) -> Option<u32> {
        let found = if packet.is_ipv6() {
            self.v6.lookup::<false>(packet, 0)
        } else {
            self.v4.lookup::<false>(packet, 0)
        };
        (found != NONE).then_some(found)
    }

    /// Takes a packet through the trees as far as its [`lookup_in`](Self::lookup_in) will want it, and asks for the memory
    /// that this will read.
    #[inline(always)]
    pub(super) fn walk(&self, packet: &PacketFields, leaves: &mut Leaves) {
        if packet.is_ipv6() { self.v6.walk(packet, leaves) } else { self.v4.walk(packet, leaves) }
    }

    /// As [`lookup`](Self::lookup), of a packet whose leaves are known already.
    #[inline(always)]
    pub(super) fn lookup_in(&self, packet: &PacketFields, leaves: &Leaves) -> Option<u32> {
        let found = if packet.is_ipv6() {
            self.v6.lookup_in(packet, leaves)
        } else {
            self.v4.lookup_in(packet, leaves)
        };
        (found != NONE).then_some(found)
    }

    /// The first rule from `start` on that matches; see [`Firewall::lookup_from`](super::Firewall::lookup_from) for
    /// what `start` may be.
    #[must_use]
    pub fn lookup_from(&self, packet: &PacketFields, start: u32) -> Option<u32> {
        let found = if packet.is_ipv6() {
            self.v6.lookup::<true>(packet, start)
        } else {
            self.v4.lookup::<true>(packet, start)
        };
        (found != NONE).then_some(found)
    }

    /// Memory that lookups may touch, in bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.v4.memory() + self.v6.memory()
    }

    /// What came of the rules, for IPv4 and for IPv6.
    #[must_use]
    pub fn shape(&self) -> [Shape; 2] {
        fn of<F: Family>(t: &Trees<F>) -> Shape {
            let left = t.left.len();
            Shape { trees: t.trees.len(), entries: t.entries.len(), links: t.children.len(), left }
        }
        [of(&self.v4), of(&self.v6)]
    }
}
