//! The construction of the trees of a [`Forest`](super::forest::Forest).

use std::collections::HashMap;

use super::block::WIDTH;
use super::entry::{DIMS, Family, Input, Region};
use super::fields::{DST, DST_HIGH, DST_PORT, PROTO, SRC, SRC_HIGH, SRC_PORT};
use super::forest::{Link, Tree, Window};

/// A leaf with so many entries need not be cut.
const LEAF: usize = 12;
/// A leaf may have so many where no cut parts them.
const LARGEST_LEAF: usize = 24;
/// Rounds of trees; what the last one leaves goes to the bit vectors.
const ROUNDS: usize = 5;
/// A round is kept if its trees take at least one in so many of the entries that the last one left.
const WORTH_IT: usize = 8;
/// The children of a node may have so many times the entries of the node.
const GROWTH: usize = 4;
/// Entries that all leaves of a round may hold, for each rule.
const COPIES: usize = 8;
/// The widest window.
const MAX_BITS: u32 = 12;

/// The trees over `input`, by index.
#[derive(Debug, Default)]
pub(super) struct Built {
    pub(super) trees: Vec<Tree>,
    pub(super) children: Vec<Link>,
    /// Entries of all leaves, in blocks.
    pub(super) leaves: Vec<u32>,
    /// Number of entries, without those that fill the blocks.
    pub(super) copies: usize,
    /// Entries that no tree took, ascending.
    pub(super) left: Vec<u32>,
}

/// An entry and what of its region can still be met.
#[derive(Clone, Copy, Debug)]
struct Item {
    at: u32,
    region: Region,
}

struct Builder<'a, F: Family> {
    input: &'a Input<F>,
    built: Built,
    /// Leaves by their entries.
    known: HashMap<Vec<u32>, Link>,
    spilled: Vec<u32>,
    /// Entries that leaves may still take.
    budget: usize,
}

/// Grows the trees.
pub(super) fn forest<F: Family>(input: &Input<F>) -> Built {
    let mut builder =
        Builder { input, built: Built::default(), known: HashMap::new(), spilled: Vec::new(), budget: 0 };
    let mut rest: Vec<u32> = (0_u32..).zip(&input.entries).map(|(at, _)| at).collect();
    for _ in 0..ROUNDS {
        builder.budget = rest.len() * COPIES + 1024;
        let before = builder.size();
        for share in shares(input, &rest) {
            builder.tree(&share);
        }
        let mut spilled = std::mem::take(&mut builder.spilled);
        spilled.sort_unstable();
        spilled.dedup();
        if rest.len() - spilled.len() < rest.len().div_ceil(WORTH_IT) {
            builder.truncate(before);
            break;
        }
        rest = spilled;
        if rest.is_empty() {
            break;
        }
    }
    builder.built.left = rest;
    builder.built
}

/// The entries parted by which of their addresses are narrow: at least 1/4096 of all for IPv6, 1/512 for
/// IPv4.
fn shares<F: Family>(input: &Input<F>, entries: &[u32]) -> Vec<Vec<u32>> {
    let free = u32::from(F::BITS) - if F::SIX { 20 } else { 10 };
    let mut shares = vec![Vec::new(); 4];
    for &at in entries {
        let Some(Region { lo: [s, d, ..], hi: [s_end, d_end, ..] }) = input.regions.get(at as usize) else {
            continue;
        };
        let narrow = |lo: u128, hi: u128| usize::from(hi - lo < 1 << free);
        if let Some(share) = shares.get_mut(narrow(*s, *s_end) * 2 + narrow(*d, *d_end)) {
            share.push(at);
        }
    }
    shares.retain(|share| !share.is_empty());
    shares
}

/// A cut of the rules of a node by a window of one dimension.
#[derive(Clone, Copy, Debug)]
struct Cut {
    dim: usize,
    /// The window: `bits` bits whose lowest is number `shift`.
    shift: u32,
    bits: u32,
    /// Number of entries of all children together.
    copies: usize,
    score: f64,
}

impl<F: Family> Builder<'_, F> {
    fn tree(&mut self, share: &[u32]) {
        let regions = &self.input.regions;
        let items = share
            .iter()
            .filter_map(|&at| regions.get(at as usize).map(|&region| Item { at, region }))
            .collect();
        let root = self.grow(items);
        let first = share.first().and_then(|&at| self.input.entries.get(at as usize));
        if let Some(first) = first.filter(|_| root != Link::EMPTY) {
            self.built.trees.push(Tree { root, first_rule: first.rule });
        }
    }

    /// Counts trees, links and entries of leaves.
    fn size(&self) -> [usize; 4] {
        [self.built.trees.len(), self.built.children.len(), self.built.leaves.len(), self.built.copies]
    }

    /// Takes back what was added since the sizes were `before`.
    fn truncate(&mut self, [trees, children, leaves, copies]: [usize; 4]) {
        self.built.trees.truncate(trees);
        self.built.children.truncate(children);
        self.built.leaves.truncate(leaves);
        self.built.copies = copies;
        self.known.clear();
    }

    /// The tree over `items`, which are in the order of their rules.
    fn grow(&mut self, mut items: Vec<Item>) -> Link {
        loop {
            self.drop_shadowed(&mut items);
            if items.len() <= LEAF {
                return self.leaf(&items);
            }
            let Some(cut) = best_cut(&items) else {
                return self.large_leaf(items);
            };
            if cut.copies <= GROWTH * items.len() {
                return self.cut(&items, cut);
            }
            if items.len() <= LARGEST_LEAF {
                return self.leaf(&items);
            }
            // Rules that span most of the children are for another tree.
            let before = items.len();
            let (wide, narrow): (Vec<Item>, Vec<Item>) = items.iter().partition(|item| {
                let (first, last) = span(&item.region, &cut);
                (last - first + 1) * 2 > 1 << cut.bits
            });
            if narrow.is_empty() || narrow.len() == before {
                return self.large_leaf(items);
            }
            self.spilled.extend(wide.iter().map(|item| item.at));
            items = narrow;
        }
    }

    /// A leaf of as many items as one may have; the others are for another tree.
    fn large_leaf(&mut self, mut items: Vec<Item>) -> Link {
        let over = items.split_off(items.len().min(LARGEST_LEAF));
        self.spilled.extend(over.iter().map(|item| item.at));
        self.leaf(&items)
    }

    fn leaf(&mut self, items: &[Item]) -> Link {
        if items.is_empty() {
            return Link::EMPTY;
        }
        let entries: Vec<u32> = items.iter().map(|item| item.at).collect();
        if let Some(&link) = self.known.get(&entries) {
            return link;
        }
        if self.budget < entries.len() {
            self.spilled.extend(entries);
            return Link::EMPTY;
        }
        self.budget -= entries.len();
        let link = Link::leaf(self.built.leaves.len() / WIDTH, entries.len().div_ceil(WIDTH));
        self.built.leaves.extend(&entries);
        self.built.copies += entries.len();
        // Copies of the last rule fill the last block: they match no packet that the rule itself did not
        // match before.
        let last = entries.last().copied().unwrap_or(0);
        self.built.leaves.resize(self.built.leaves.len().next_multiple_of(WIDTH), last);
        self.known.insert(entries, link);
        link
    }

    fn cut(&mut self, items: &[Item], cut: Cut) -> Link {
        let mut children: Vec<Vec<Item>> = vec![Vec::new(); 1 << cut.bits];
        let base = block(items, cut.dim).0;
        for item in items {
            let (first, last) = span(&item.region, &cut);
            for (i, child) in (first..).zip(children.get_mut(first..=last).unwrap_or(&mut [])) {
                let mut part = *item;
                let start = base + ((i as u128) << cut.shift);
                let end = start + ((1 << cut.shift) - 1);
                if let (Some(lo), Some(hi)) =
                    (part.region.lo.get_mut(cut.dim), part.region.hi.get_mut(cut.dim))
                {
                    (*lo, *hi) = ((*lo).max(start), (*hi).min(end));
                }
                child.push(part);
            }
        }
        let at = self.built.children.len();
        self.built.children.resize(at + children.len(), Link::EMPTY);
        for (i, child) in children.into_iter().enumerate() {
            let link = self.grow(child);
            if let Some(place) = self.built.children.get_mut(at + i) {
                *place = link;
            }
        }
        Link::node(at, window::<F>(&cut))
    }

    /// Leaves out what can't be met because an entry before it matches all that is here.
    fn drop_shadowed(&self, items: &mut Vec<Item>) {
        let Some(hull) = hull(items) else { return };
        let input = self.input;
        let is_final = |item: &Item| input.final_.get(item.at as usize).copied().unwrap_or(false);
        let mut covers = (0..items.len())
            .filter(|&i| items.get(i).is_some_and(|item| item.region.covers(&hull) && is_final(item)))
            .take(4)
            .collect::<Vec<_>>();
        covers.reverse();
        for i in covers {
            let Some(cover) = items.get(i).and_then(|item| input.entries.get(item.at as usize)) else {
                continue;
            };
            let mut place = 0;
            items.retain(|item| {
                place += 1;
                let entry = input.entries.get(item.at as usize);
                place <= i + 1 || !entry.is_some_and(|entry| cover.needs_no_more_than(entry))
            });
        }
    }
}

/// The smallest region that holds those of all items.
fn hull(items: &[Item]) -> Option<Region> {
    let mut all = items.first()?.region;
    for item in items {
        all.lo.iter_mut().zip(item.region.lo).for_each(|(a, b)| *a = b.min(*a));
        all.hi.iter_mut().zip(item.region.hi).for_each(|(a, b)| *a = b.max(*a));
    }
    Some(all)
}

fn side(values: &[u128; DIMS], dim: usize) -> u128 {
    values.get(dim).copied().unwrap_or(0)
}

/// The smallest block of 2^k values, beginning at a multiple of that, in which all items lie: its first
/// value, and k.
fn block(items: &[Item], dim: usize) -> (u128, u32) {
    let lo = items.iter().map(|item| side(&item.region.lo, dim)).min().unwrap_or(0);
    let hi = items.iter().map(|item| side(&item.region.hi, dim)).max().unwrap_or(0);
    let bits = 128 - (lo ^ hi).leading_zeros();
    (lo & !(u128::MAX.checked_shr(128 - bits).unwrap_or(0)), bits)
}

/// The first and last child that a region reaches into.
fn span(region: &Region, cut: &Cut) -> (usize, usize) {
    let mask = (1_usize << cut.bits) - 1;
    let child = |value: u128| (value >> cut.shift) as usize & mask;
    (child(side(&region.lo, cut.dim)), child(side(&region.hi, cut.dim)))
}

/// The window of the packet that this cut looks at.
fn window<F: Family>(cut: &Cut) -> Window {
    let (high, low) = match cut.dim {
        0 => (SRC_HIGH, SRC),
        1 => (DST_HIGH, DST),
        2 => (SRC_PORT, SRC_PORT),
        3 => (DST_PORT, DST_PORT),
        _ => (PROTO, PROTO),
    };
    let word = if cut.shift >= 64 { high } else { low };
    Window { word, shift: (cut.shift % 64) as u8, bits: cut.bits as u8 }
}

/// The cut that parts the items best for the memory that it takes; `None` where none parts them.
fn best_cut(items: &[Item]) -> Option<Cut> {
    let most = MAX_BITS.min((4 * items.len()).ilog2());
    let cuts = (0..DIMS).flat_map(|dim| {
        let (_, k) = block(items, dim);
        // A window lies in one word.
        let room = if k > 64 { k - 64 } else { k };
        (1..=most.min(room)).map(move |bits| (dim, k - bits, bits))
    });
    let mut counts = Vec::new();
    let mut best: Option<Cut> = None;
    for (dim, shift, bits) in cuts {
        let mut cut = Cut { dim, shift, bits, copies: 0, score: 0.0 };
        weigh(items, &mut cut, &mut counts);
        if cut.score > 0.05 && best.is_none_or(|b| cut.score > b.score) {
            best = Some(cut);
        }
    }
    best
}

/// Sets what a cut costs, and what it is worth: the logarithm of how much fewer items are where one looks,
/// less that of the growth of memory.
fn weigh(items: &[Item], cut: &mut Cut, counts: &mut Vec<i64>) {
    counts.clear();
    counts.resize((1 << cut.bits) + 1, 0);
    for item in items {
        let (first, last) = span(&item.region, cut);
        if let Some(n) = counts.get_mut(first) {
            *n += 1;
        }
        if let Some(n) = counts.get_mut(last + 1) {
            *n -= 1;
        }
    }
    let (mut here, mut sum, mut squares) = (0, 0, 0.0);
    for change in counts.iter() {
        here += change;
        sum += here;
        squares += (here * here) as f64;
    }
    let n = items.len() as f64;
    let expected = squares / (sum as f64).max(1.0);
    let growth = (sum as f64 + (1 << cut.bits) as f64 * 0.1) / n;
    cut.copies = usize::try_from(sum).unwrap_or(usize::MAX);
    cut.score = libm::log(n / expected) - libm::log(growth).max(0.0);
}
