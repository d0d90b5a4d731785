//! The fast classifier: a few decision trees over disjoint shares of the rules, and bit vectors over what no
//! tree takes.
//!
//! Rules are parted by which of their addresses say much (as in EffiCuts and CutSplit), so that rules that
//! are wide where others are narrow don't end up in every leaf of these. A node of a tree looks at a few bits
//! of one field, chosen so that the rules part well with little duplication; a leaf holds a few rules side by
//! side, in their order. A rule that would have to be copied too often is left to the next tree, and what is
//! left after the last one to the bit vectors: they need memory in proportion to the rules whatever these
//! look like, and look at all of them, 64 at a time.
//!
//! A lookup goes through the trees in the order of the first rule in each, and stops where no better rule can
//! come.

use std::mem::size_of;

use super::bitmap::Bitmap;
use super::block::{Asked, Block, WIDTH};
use super::build;
use super::conjunction::Rest;
use super::entry::{Entry, Family, Input, NO_REST, V4, V6};
use super::{PacketFields, RuleSet};
use slipstream_core::huge;
use slipstream_core::prefetch::prefetch;

/// No rule.
pub(super) const NONE: u32 = u32::MAX;

/// A link to the next step in a tree, in one word. A leaf: the first of its blocks (bits 0..32) and how many
/// there are (32..52). A node: the first of its children (0..32), the shift (32..38) of its window, the word
/// of the packet that it looks at (40..43), and the mask of the window (52..64), which is 0 for a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link(u64);

impl Link {
    pub(super) const EMPTY: Self = Self(0);

    pub(super) fn leaf(first: usize, blocks: usize) -> Self {
        Self(first as u64 & 0xffff_ffff | (blocks as u64 & 0xf_ffff) << 32)
    }

    pub(super) fn node(children: usize, window: Window) -> Self {
        let Window { word, shift, bits } = window;
        let mask = !(u64::MAX << bits) & 0xfff;
        Self(children as u64 & 0xffff_ffff | u64::from(shift) << 32 | (word as u64) << 40 | mask << 52)
    }

    #[inline(always)]
    pub(super) const fn is_node(self) -> bool {
        self.0 >> 52 != 0
    }

    /// The child of a node that a packet goes to.
    #[inline(always)]
    pub(super) fn child(self, words: &[u64; 8]) -> usize {
        let word = words.get((self.0 >> 40 & 7) as usize).copied().unwrap_or(0);
        let window = word >> (self.0 >> 32 & 63) & self.0 >> 52;
        (self.0 as u32 as usize).wrapping_add(window as usize)
    }

    /// First block of a leaf, and how many there are.
    #[inline(always)]
    const fn blocks(self) -> (usize, usize) {
        (self.0 as u32 as usize, (self.0 >> 32) as usize)
    }
}

/// Trees that a packet is taken through ahead of its lookup: as many as nearly every lookup comes to.
pub(super) const AHEAD: usize = 3;

/// The leaves where a packet comes to in the first [`AHEAD`] trees.
#[derive(Clone, Copy, Debug)]
pub struct Leaves(pub(super) [Link; AHEAD]);

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
    /// At most 12.
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
    pub(super) blocks: Vec<Block<F>>,
    /// The rule at each place of the blocks, and behind them [`NONE`].
    pub(super) rules: Vec<u32>,
    /// Index of the rest of each rule's conditions, for each place of the blocks; empty if no rule has any.
    rest_of: Vec<u32>,
    copies: usize,
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
        let entries: Vec<&Entry<F>> =
            built.leaves.iter().filter_map(|&at| input.entries.get(at as usize)).collect();
        let (all, _) = entries.as_chunks::<WIDTH>();
        let mut blocks = huge::with_capacity(all.len());
        blocks.extend(all.iter().map(|four| Block::new(*four)));
        let rests = entries.iter().any(|entry| entry.rest != NO_REST);
        let rest_of = if rests { entries.iter().map(|entry| entry.rest).collect() } else { Vec::new() };
        let rules = entries.iter().map(|entry| entry.rule).chain([NONE]).collect();
        let mut trees = built.trees;
        trees.sort_by_key(|tree| tree.first_rule);
        Self { trees, children, blocks, rules, rest_of, copies: built.copies, left, rests: input.rests }
    }

    /// Takes a packet through the first trees, and asks for the rules that its lookup will compare it with.
    #[inline(always)]
    fn walk(&self, packet: &PacketFields, leaves: &mut Leaves) {
        for (tree, leaf) in self.trees.iter().zip(&mut leaves.0) {
            *leaf = self.descend(tree.root, packet);
            self.prefetch_leaf(*leaf);
        }
    }

    #[inline(always)]
    pub(super) fn prefetch_leaf(&self, leaf: Link) {
        let block = self.blocks.get(leaf.blocks().0);
        prefetch(block);
        prefetch(block.map(Block::second_line));
    }

    /// As [`lookup`](Self::lookup), where the leaves of the first trees are known already.
    #[inline(always)]
    pub(super) fn lookup_in(&self, packet: &PacketFields, leaves: &Leaves) -> u32 {
        let asked = Asked::new(packet);
        let mut best = NONE;
        // No branch asks if a rule was found already: it would be mispredicted.
        for leaf in leaves.0 {
            best = self.leaf::<false>(leaf, packet, &asked, 0, best);
        }
        for tree in self.trees.get(AHEAD..).unwrap_or_default() {
            if tree.first_rule >= best {
                break;
            }
            best = self.leaf::<false>(self.descend(tree.root, packet), packet, &asked, 0, best);
        }
        if self.left.first_rule() >= best { best } else { self.left.lookup(packet, &self.rests, 0, best) }
    }

    #[inline]
    pub(super) fn lookup<const FROM: bool>(&self, packet: &PacketFields, start: u32) -> u32 {
        let asked = Asked::new(packet);
        let mut best = NONE;
        for tree in &self.trees {
            if tree.first_rule >= best {
                break;
            }
            best = self.leaf::<FROM>(self.descend(tree.root, packet), packet, &asked, start, best);
        }
        // A rule that is in no tree may come before the one that a tree found.
        if self.left.first_rule() >= best { best } else { self.left.lookup(packet, &self.rests, start, best) }
    }

    #[inline(always)]
    fn descend(&self, root: Link, packet: &PacketFields) -> Link {
        let mut link = root;
        while link.is_node() {
            link = self.children.get(link.child(&packet.words)).copied().unwrap_or(Link::EMPTY);
        }
        link
    }

    /// The first rule that matches among those of a leaf, if it comes before `best`.
    #[inline(always)]
    fn leaf<const FROM: bool>(
        &self,
        leaf: Link,
        packet: &PacketFields,
        asked: &Asked<F>,
        start: u32,
        best: u32,
    ) -> u32 {
        if FROM || !self.rest_of.is_empty() {
            return self.leaf_with_rest(leaf, packet, asked, start, best);
        }
        let (first, count) = leaf.blocks();
        let blocks = self.blocks.get(first..first + count).unwrap_or(&[]);
        // Without a match it is the place behind all blocks. From the last to the first, what counts is set
        // last.
        let mut place = self.rules.len().wrapping_sub(1);
        let mut at = (first + count) * WIDTH;
        for block in blocks.iter().rev() {
            at -= WIDTH;
            let matching = block.matching(asked);
            place = if matching == 0 { place } else { at + matching.trailing_zeros() as usize };
        }
        self.rules.get(place).map_or(best, |rule| best.min(*rule))
    }

    #[inline(never)]
    fn leaf_with_rest(
        &self,
        leaf: Link,
        packet: &PacketFields,
        asked: &Asked<F>,
        start: u32,
        best: u32,
    ) -> u32 {
        let (first, count) = leaf.blocks();
        for (at, block) in (first..).zip(self.blocks.get(first..first + count).unwrap_or(&[])) {
            let mut matching = block.matching(asked);
            while matching != 0 {
                let place = at * WIDTH + matching.trailing_zeros() as usize;
                matching &= matching - 1;
                let rule = self.rules.get(place).copied().unwrap_or(NONE);
                if rule >= best {
                    return best;
                }
                if rule >= start && self.rest_holds(place, packet) {
                    return rule;
                }
            }
        }
        best
    }

    fn rest_holds(&self, place: usize, packet: &PacketFields) -> bool {
        let rest = self.rest_of.get(place).copied().unwrap_or(NO_REST);
        rest == NO_REST || self.rests.get(rest as usize).is_some_and(|rest| rest.holds(packet))
    }

    fn memory(&self) -> usize {
        self.trees.len() * size_of::<Tree>()
            + self.children.len() * size_of::<Link>()
            + self.blocks.len() * size_of::<Block<F>>()
            + (self.rules.len() + self.rest_of.len()) * size_of::<u32>()
            + self.left.memory()
            + self.rests.len() * size_of::<Rest>()
    }
}

/// The fast classifier, for both IP versions.
#[derive(Clone, Debug)]
pub struct Forest {
    pub(super) v4: Trees<V4>,
    pub(super) v6: Trees<V6>,
}

/// Size of a compiled classifier, for one IP version.
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

    /// Takes a packet through the trees as far as its [`lookup_in`](Self::lookup_in) will want it, and asks
    /// for the memory that this will read.
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

    /// The first rule from `start` on that matches; see
    /// [`Firewall::lookup_from`](super::Firewall::lookup_from) for what `start` may be.
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

    /// Sizes of the classifiers for IPv4 and for IPv6.
    #[must_use]
    pub fn shape(&self) -> [Shape; 2] {
        fn of<F: Family>(t: &Trees<F>) -> Shape {
            let left = t.left.len();
            Shape { trees: t.trees.len(), entries: t.copies, links: t.children.len(), left }
        }
        [of(&self.v4), of(&self.v6)]
    }
}
