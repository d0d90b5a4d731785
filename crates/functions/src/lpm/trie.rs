//! The trie itself, over keys of up to 128 bits, left-aligned in two words.

use std::mem::size_of;

use slipstream_core::huge;
use slipstream_core::prefetch::prefetch;

/// Fewest and most bits of the direct root, for keys of one word. Those of two, IPv6, are much alike in their
/// first bits, so that a wider root would only be larger.
const ROOT_BITS: (u32, u32) = (12, 22);
const WIDE_ROOT_BITS: (u32, u32) = (16, 16);
/// A table of so many IPv4 prefixes is the Internet's, hardly any longer than 24 bits: then one access in a
/// root of that many (64 MB) tells nearly all of them.
const INTERNET: usize = 1 << 18;
const INTERNET_BITS: u32 = 24;
/// The widest stride below the root.
const MAX_STRIDE: u32 = 16;
/// A node is made so wide that a prefix begins at one or more in so many of its entries.
const SPARSITY: usize = 4;
/// Keys that go through the trie together in a batch lookup.
pub(super) const LANES: usize = 16;

/// Marks an entry as a node; else it is a leaf: 0, or 1 and up for a value.
const NODE: u32 = 1 << 31;

/// A route, its address left-aligned, bits beyond the prefix zero.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prefix {
    pub(super) bits: u128,
    pub(super) len: u8,
    pub(super) value: u32,
}

/// The link from an entry to those of the next level. Levels and window lie in one word of the key.
#[derive(Clone, Copy, Debug)]
struct Node {
    /// Bits that all prefixes below have, and which ones these are.
    expected: u64,
    mask: u64,
    /// The first of its entries.
    base: u32,
    /// The entry for keys whose bits differ: always a leaf.
    otherwise: u32,
    /// Place of its window in the key, and its width: 2^`bits` entries.
    shift: u8,
    bits: u8,
    word: u8,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Trie {
    root: Vec<u32>,
    /// Distance, from the right end of the first word, of the bits that choose an entry of the root.
    root_shift: u32,
    nodes: Vec<Node>,
    entries: Vec<u32>,
    /// Values that leaves stand for, each once.
    values: Vec<u32>,
    pub(super) prefixes: usize,
}

impl Trie {
    pub(super) fn build(mut prefixes: Vec<Prefix>, wide: bool) -> Self {
        // Stable, so that of equal prefixes the last one given stays last.
        prefixes.sort_by_key(|p| (p.bits, p.len));
        let mut unique: Vec<Prefix> = Vec::with_capacity(prefixes.len());
        for prefix in prefixes {
            match unique.last_mut() {
                Some(last) if (last.bits, last.len) == (prefix.bits, prefix.len) => *last = prefix,
                _ => unique.push(prefix),
            }
        }
        let mut values: Vec<u32> = unique.iter().map(|p| p.value).collect();
        values.sort_unstable();
        values.dedup();
        for prefix in &mut unique {
            // There are fewer than 2^31 prefixes in any memory, so fewer values.
            let at = values.binary_search(&prefix.value).unwrap_or(0);
            prefix.value = u32::try_from(at + 1).unwrap_or(0) & !NODE;
        }
        let mut trie = Self { values, prefixes: unique.len(), ..Self::default() };
        if !unique.is_empty() {
            let (least, most) = if wide { WIDE_ROOT_BITS } else { ROOT_BITS };
            let bits = match unique.len() {
                INTERNET.. if !wide => INTERNET_BITS,
                n => (n.ilog2() + 2).clamp(least, most),
            };
            trie.root = huge::with_capacity(1 << bits);
            trie.root_shift = 64 - bits;
            let entries = trie.window(&unique, 0, bits, 0);
            trie.root.extend(entries);
            huge::advise(&mut trie.entries);
            huge::advise(&mut trie.nodes);
        }
        trie
    }

    /// The entry for all keys below a block of 2^(128 - `depth`) of them, in which `prefixes` lie: longer
    /// than `depth`, sorted. `inherited` is the leaf of the longest prefix above.
    fn below(&mut self, prefixes: &[Prefix], depth: u32, inherited: u32) -> u32 {
        let ([first, ..], [.., last]) = (prefixes, prefixes) else { return inherited };
        let shortest = prefixes.iter().map(|p| u32::from(p.len)).min().unwrap_or(depth);
        // The levels that are skipped, and then the window, must lie in one word.
        let word_end = if depth < 64 { 64 } else { 128 };
        let common = (first.bits ^ last.bits).leading_zeros().min(shortest).min(word_end);
        let (mut rest, mut own) = (prefixes, inherited);
        if let Some(((whole, longer), true)) =
            prefixes.split_first().map(|s| (s, u32::from(s.0.len) == common))
        {
            (own, rest) = (whole.value, longer);
        }
        if common == word_end && !rest.is_empty() && common < 128 {
            // Everything below is in the next word: this node only compares, and its one entry leads on.
            return self
                .node(first.bits, depth..common, inherited, 0, |trie| vec![trie.below(rest, common, own)]);
        }
        let stride = stride(rest, common, word_end);
        self.node(first.bits, depth..common, inherited, stride, |trie| trie.window(rest, common, stride, own))
    }

    /// Adds a node that skips the levels `skipped`, on which keys must be as `bits`.
    fn node(
        &mut self,
        bits: u128,
        skipped: std::ops::Range<u32>,
        otherwise: u32,
        stride: u32,
        entries: impl FnOnce(&mut Self) -> Vec<u32>,
    ) -> u32 {
        let mask = ones(skipped.start, skipped.end);
        let word = u32::from(skipped.start >= 64);
        let at = self.nodes.len();
        let half = |bits: u128| (bits >> (64 * (1 - word))) as u64;
        let end = skipped.end + stride;
        self.nodes.push(Node {
            expected: half(bits & mask),
            mask: half(mask),
            base: 0,
            otherwise,
            // A window of no bits may lie anywhere.
            shift: if stride == 0 { 0 } else { (64 * (word + 1) - end) as u8 },
            bits: stride as u8,
            word: word as u8,
        });
        let entries = entries(self);
        if let Some(node) = self.nodes.get_mut(at) {
            node.base = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        }
        self.entries.extend(entries);
        NODE | u32::try_from(at).unwrap_or(0)
    }

    /// The entries of a window of `stride` bits at `depth`.
    fn window(&mut self, prefixes: &[Prefix], depth: u32, stride: u32, own: u32) -> Vec<u32> {
        let mut entries = vec![own; 1 << stride];
        let index = |bits: u128| if stride == 0 { 0 } else { (bits << depth >> (128 - stride)) as usize };
        let end = depth + stride;
        let mut short: Vec<&Prefix> = prefixes.iter().filter(|p| u32::from(p.len) <= end).collect();
        short.sort_by_key(|p| p.len);
        for prefix in short {
            let (first, count) = (index(prefix.bits), 1_usize << (end - u32::from(prefix.len)));
            if let Some(covered) = entries.get_mut(first..first + count) {
                covered.fill(prefix.value);
            }
        }
        for children in prefixes.chunk_by(|a, b| index(a.bits) == index(b.bits)) {
            let longer = children.partition_point(|p| u32::from(p.len) <= end);
            // Prefixes of one window that begin at one address are sorted by length; others are all longer
            // than it.
            let longer = children.get(longer..).unwrap_or(&[]);
            if let Some(entry) = longer.first().and_then(|p| entries.get_mut(index(p.bits))) {
                *entry = self.below(longer, end, *entry);
            }
        }
        entries
    }

    /// The value for a key. `WIDE` is for keys that use their second word.
    #[inline]
    pub(super) fn lookup<const WIDE: bool>(&self, key: [u64; 2]) -> Option<u32> {
        let mut entry = self.enter(key);
        while entry & NODE != 0 {
            let node = self.nodes.get((entry & !NODE) as usize)?;
            entry = match node.next::<WIDE>(key) {
                Ok(at) => *self.entries.get(at)?,
                Err(leaf) => leaf,
            };
        }
        self.value(entry)
    }

    #[inline]
    pub(super) fn lookup_many<const WIDE: bool, K: Copy>(
        &self,
        keys: &[K],
        word: impl Fn(K) -> [u64; 2],
        values: &mut [Option<u32>],
    ) {
        for (keys, values) in keys.chunks(LANES).zip(values.chunks_mut(LANES)) {
            if self.entries.len() < CACHED {
                keys.iter().zip(values).for_each(|(&k, v)| *v = self.lookup::<WIDE>(word(k)));
                continue;
            }
            for &key in keys {
                let [high, _] = word(key);
                prefetch(self.root.get(self.root_index(high)));
            }
            let mut entries = [0; LANES];
            for (entry, &key) in entries.iter_mut().zip(keys) {
                *entry = self.enter(word(key));
                prefetch(self.nodes.get((*entry & !NODE) as usize));
            }
            let mut more = true;
            while more {
                more = self.advance::<WIDE, K>(&mut entries, keys, &word);
            }
            for (value, entry) in values.iter_mut().zip(entries) {
                *value = self.value(entry);
            }
        }
    }

    /// Takes every key of a batch one node on; whether any has further to go.
    #[inline]
    fn advance<const WIDE: bool, K: Copy>(
        &self,
        entries: &mut [u32; LANES],
        keys: &[K],
        word: &impl Fn(K) -> [u64; 2],
    ) -> bool {
        let mut at = [usize::MAX; LANES];
        for ((entry, at), &key) in entries.iter_mut().zip(&mut at).zip(keys) {
            if *entry & NODE != 0
                && let Some(node) = self.nodes.get((*entry & !NODE) as usize)
            {
                match node.next::<WIDE>(word(key)) {
                    Ok(next) => {
                        *at = next;
                        prefetch(self.entries.get(next));
                    }
                    Err(leaf) => *entry = leaf,
                }
            }
        }
        let mut more = 0;
        for (entry, at) in entries.iter_mut().zip(at) {
            if let Some(&next) = self.entries.get(at) {
                *entry = next;
                more |= next & NODE;
                prefetch(self.nodes.get((next & !NODE) as usize));
            }
        }
        more != 0
    }

    #[inline]
    fn enter(&self, [high, _]: [u64; 2]) -> u32 {
        self.root.get(self.root_index(high)).copied().unwrap_or(0)
    }

    #[inline]
    fn root_index(&self, high: u64) -> usize {
        (high >> (self.root_shift & 63)) as usize
    }

    #[inline]
    fn value(&self, leaf: u32) -> Option<u32> {
        self.values.get((leaf as usize).wrapping_sub(1)).copied()
    }

    pub(super) fn memory(&self) -> usize {
        (self.root.len() + self.entries.len() + self.values.len()) * size_of::<u32>()
            + self.nodes.len() * size_of::<Node>()
    }
}

/// Entries that are likely to stay in the caches next to the core, so that asking ahead for them only costs
/// time.
const CACHED: usize = 1 << 14;

impl Node {
    /// The entry at which a key goes on, or the leaf at which it ends.
    #[inline]
    fn next<const WIDE: bool>(&self, [high, low]: [u64; 2]) -> Result<usize, u32> {
        let word = if WIDE && self.word != 0 { low } else { high };
        if word & self.mask != self.expected {
            return Err(self.otherwise);
        }
        let window = word >> (self.shift & 63) & !(u64::MAX << (self.bits & 63));
        Ok(self.base as usize + window as usize)
    }
}

/// The bits from `start` to `end`, counted from the left.
fn ones(start: u32, end: u32) -> u128 {
    let from = |n: u32| u128::MAX.checked_shr(n).unwrap_or(0);
    from(start) & !from(end)
}

/// Chooses the width of a window at `depth` for longer prefixes: the widest that stays well filled.
fn stride(prefixes: &[Prefix], depth: u32, word_end: u32) -> u32 {
    let longest = prefixes.iter().map(|p| u32::from(p.len)).max().unwrap_or(depth);
    let most = MAX_STRIDE.min(word_end - depth).min(longest.saturating_sub(depth));
    let enough = |stride: &u32| {
        // Entries at which a prefix begins; one that covers several is no reason for a wider window.
        let mut filled = 0_usize;
        let mut before = None;
        for prefix in prefixes {
            let at = Some(prefix.bits << depth >> (128 - stride));
            filled += usize::from(at != before);
            before = at;
        }
        filled * SPARSITY >= 1 << stride
    };
    (1..=most).rev().find(enough).unwrap_or(most.min(1))
}
