//! Hashing that can be undone: from the buckets that stand out back to the keys (Schweller et al., IEEE/ACM
//! ToN 15, 2007).
//!
//! Each byte of a key is hashed by itself to a few bits, and these together make the bucket's number
//! (*modular hashing*). So, given the buckets that stand out in each of four tables, keys are found byte by
//! byte: a prefix is followed only while every table has such a bucket that agrees with it. Keys of a network
//! share bytes, so before that a key is *mangled*: a keyed bijection spreads every byte over all of it.
//!
//! Four tables tell 4 × 16 bits, enough for keys of four bytes. Longer keys are hashed in *stages*, four
//! mangled bytes each, every stage but the first beginning with the last byte of the one before. What belongs
//! together is told by this byte and, where the bucket's number has room for it, by a tag of up to four bits,
//! hashed from the whole key.

use crate::hash::{Hasher, mix, split_mix};

/// Tables a stage.
pub(crate) const TABLES: usize = 4;
/// The longest keys, in bytes.
pub(crate) const MAX_LEN: usize = 64;
/// Values of a field at most: a quarter of 16 bits.
const PARTS: usize = 16;
/// Bits of a bucket's number that four bytes need, the last of which the next stage tells, too.
const MODULAR_BITS: u32 = 11;
/// Stages of the longest keys.
pub(crate) const MAX_STAGES: usize = 1 + (MAX_LEN - 4).div_ceil(3);
/// Buckets of one table that are followed at most.
pub(crate) const MAX_HEAVY: usize = 512;

/// Partial keys that are followed at most, in one search: more take longer than an answer may.
pub(crate) const MAX_PATHS: usize = 1 << 20;

/// Bits of a bucket's number that a byte gives: where they begin, how many.
type Field = (u32, u32);

/// A reversible hash function on keys of one length.
#[derive(Clone, Debug)]
pub(crate) struct Modular {
    len: usize,
    stages: usize,
    bits: u32,
    tag_bits: u32,
    fields: [Field; 4],
    /// By stage and byte: the bits of all four tables for each value, 16 bits a table.
    hashes: Vec<[[u64; 256]; 4]>,
    /// Of mangling: constants of each unit.
    keys: Vec<[u64; 4]>,
    tags: Hasher,
}

/// The buckets of one stage that stand out, by table.
pub(crate) type Heavy = [Vec<u32>; TABLES];

/// The bucket of one table among those of a stage, as [`Modular::buckets`] gives them.
#[inline(always)]
pub(crate) fn bucket_of(packed: u64, table: usize) -> usize {
    (packed >> (16 * table) & 0xffff) as usize
}

impl Modular {
    /// For keys of `len` bytes (1 to 64), tables of 2^`bits` buckets (8 to 16).
    pub(crate) fn new(len: usize, bits: u32, seed: u64) -> Self {
        // Three bits a byte in each of four tables tell a byte; with fewer, every stage would multiply the
        // keys that are possible.
        Self::with_tag(len, bits, seed, (bits / 4).min(bits.saturating_sub(MODULAR_BITS)))
    }

    /// As states of version 1 have it, where the tag always had a quarter of the bits.
    pub(crate) fn of_version(version: u16, len: usize, bits: u32, seed: u64) -> Self {
        if version == 1 { Self::with_tag(len, bits, seed, bits / 4) } else { Self::new(len, bits, seed) }
    }

    fn with_tag(len: usize, bits: u32, seed: u64, tag_bits: u32) -> Self {
        let stages = Self::stages_for(len);
        let tag_bits = if stages > 1 { tag_bits } else { 0 };
        let modular = bits - tag_bits;
        let mut at = 0;
        let fields = std::array::from_fn(|i| {
            let width = modular / 4 + u32::from((i as u32) < modular % 4);
            at += width;
            (at - width, width)
        });
        let mut state = seed ^ 0x6d_6f_64_75_6c_61_72;
        let hashes = (0..stages).map(|_| fields.map(|field| byte_hash(field, &mut state))).collect();
        let keys = (0..stages).map(|_| std::array::from_fn(|_| split_mix(&mut state) | 1)).collect();
        Self { len, stages, bits, tag_bits, fields, hashes, keys, tags: Hasher::new(seed, 0x74_61_67) }
    }

    /// Stages of keys of `len` bytes.
    pub(crate) const fn stages_for(len: usize) -> usize {
        if len <= 4 { 1 } else { 1 + (len - 4).div_ceil(3) }
    }

    /// Memory of the hash tables in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of_val(self.hashes.as_slice()) + size_of_val(self.keys.as_slice())
    }

    /// Bytes that the hash tables of keys of `len` bytes take.
    pub(crate) const fn bytes_for(len: usize) -> usize {
        Self::stages_for(len) * (4 * 256 * 8 + 4 * 8)
    }

    pub(crate) fn stages(&self) -> usize {
        self.stages
    }

    /// The bytes that tell this layout from today's, behind the shape of a sketch: nothing where it is the
    /// same.
    pub(crate) fn layout(&self) -> &'static str {
        if self.version() == 1 { ", laid out as by version 1" } else { "" }
    }

    /// The version of states whose buckets mean these keys, of the versions 1 and 2.
    pub(crate) fn version(&self) -> u16 {
        let narrower = self.bits.saturating_sub(MODULAR_BITS) < self.tag_bits;
        if narrower { 1 } else { 2 }
    }

    /// The buckets of a key in every stage, 16 bits a table.
    #[inline(always)]
    pub(crate) fn buckets(&self, key: &[u8], out: &mut [u64; MAX_STAGES]) {
        if self.stages == 1 {
            let word = self.mangle_one(short(key));
            if let (Some(out), Some(hashes)) = (out.first_mut(), self.hashes.first()) {
                *out = pick(hashes, word);
            }
            return;
        }
        let mut units = [0; MAX_STAGES];
        self.units(key, &mut units);
        self.mangle(&mut units);
        let tag = self.tag(key) << (self.bits - self.tag_bits);
        let tag = tag * 0x0001_0001_0001_0001;
        let mut before = None;
        for ((out, hashes), unit) in out.iter_mut().zip(&self.hashes).zip(units) {
            *out = pick(hashes, word_of(before, unit)) | tag;
            before = Some(last_byte(before.is_none(), unit));
        }
    }

    fn tag(&self, key: &[u8]) -> u64 {
        self.tags.hash_slice(key) & ((1 << self.tag_bits) - 1)
    }

    /// A key as units: four bytes, then three each.
    #[inline(always)]
    fn units(&self, key: &[u8], units: &mut [u32; MAX_STAGES]) {
        let (first, rest) = key.split_at_checked(4).unwrap_or((key, &[]));
        let parts = std::iter::once(first).chain(rest.chunks(3));
        for (unit, part) in units.iter_mut().zip(parts) {
            *unit = short(part);
        }
    }

    /// Units back to a key; nothing where they are not those of any key.
    fn key_of(&self, units: &[u32]) -> Option<Vec<u8>> {
        let mut key = Vec::with_capacity(self.len + 4);
        for (i, unit) in units.iter().enumerate() {
            let bytes = unit.to_le_bytes();
            key.extend(bytes.into_iter().take(if i == 0 { 4 } else { 3 }));
        }
        let padding = key.split_off(self.len.min(key.len()));
        (key.len() == self.len && padding.iter().all(|b| *b == 0)).then_some(key)
    }

    /// A bijection on units: each is changed by what the others are, one after the other, and then mixed in
    /// itself.
    #[inline(always)]
    fn mangle(&self, units: &mut [u32; MAX_STAGES]) {
        let mut all = 0u64;
        for (unit, k) in units.iter().zip(&self.keys) {
            all = all.wrapping_add(own(*unit, k));
        }
        for (i, (unit, k)) in units.iter_mut().zip(&self.keys).enumerate() {
            let others = all.wrapping_sub(own(*unit, k));
            let mixed = (*unit ^ foreign(others, k)) & mask_of(i);
            all = others.wrapping_add(own(mixed, k));
            *unit = mixed;
        }
        for (i, (unit, k)) in units.iter_mut().zip(&self.keys).enumerate() {
            *unit = stir(*unit, i, k);
        }
    }

    /// Undoes [`Modular::mangle`].
    fn unmangle(&self, units: &mut [u32]) {
        for (i, (unit, k)) in units.iter_mut().zip(&self.keys).enumerate() {
            *unit = unstir(*unit, i, k);
        }
        let mut all = 0u64;
        for (unit, k) in units.iter().zip(&self.keys) {
            all = all.wrapping_add(own(*unit, k));
        }
        for (i, (unit, k)) in units.iter_mut().zip(&self.keys).enumerate().rev() {
            let others = all.wrapping_sub(own(*unit, k));
            let was = (*unit ^ foreign(others, k)) & mask_of(i);
            all = others.wrapping_add(own(was, k));
            *unit = was;
        }
    }

    /// Units as they were before [`Modular::buckets`] mangled them.
    fn undo(&self, units: &mut [u32]) {
        match (self.stages, units.first_mut(), self.keys.first()) {
            (1, Some(unit), Some(k)) => *unit = unstir(*unit, 0, k),
            _ => self.unmangle(units),
        }
    }

    #[inline(always)]
    fn mangle_one(&self, unit: u32) -> u32 {
        self.keys.first().map_or(unit, |k| stir(unit, 0, k))
    }

    /// All keys whose buckets stand out in every table of every stage, but for `misses` tables together, one
    /// a stage. Nothing where there are more partial keys to follow than `paths`, from which those that were
    /// followed are taken.
    pub(crate) fn keys(&self, heavy: &[Heavy], misses: usize, paths: &mut usize) -> Option<Vec<Vec<u8>>> {
        let mut found = Vec::new();
        for tag in 0..1u32 << self.tag_bits {
            let mut words = Vec::with_capacity(self.stages);
            for (stage, heavy) in heavy.iter().enumerate().take(self.stages) {
                let shift = self.bits - self.tag_bits;
                let of_tag = |list: &Vec<u32>| list.iter().copied().filter(|b| b >> shift == tag).collect();
                let some: [Vec<u32>; TABLES] =
                    std::array::from_fn(|t| heavy.get(t).map_or_else(Vec::new, of_tag));
                let mut stage_words = self.words(stage, &some, misses.min(1), paths)?;
                if stage_words.is_empty() {
                    break;
                }
                stage_words.sort_unstable_by_key(|w| (w.word & 0xff, w.word));
                words.push(stage_words);
            }
            if words.len() == self.stages {
                self.join(&words, u64::from(tag), misses, &mut found, paths)?;
            }
        }
        found.sort_unstable();
        found.dedup();
        Some(found)
    }

    /// The words of one stage that agree with its buckets, but for those of `misses` tables (0 or 1).
    fn words(&self, stage: usize, heavy: &Heavy, misses: usize, paths: &mut usize) -> Option<Vec<Word>> {
        match heavy.iter().map(Vec::len).max().unwrap_or(0) {
            0..=64 => self.words_in::<1>(stage, heavy, misses, paths),
            65..=128 => self.words_in::<2>(stage, heavy, misses, paths),
            _ => self.words_in::<{ MAX_HEAVY / 64 }>(stage, heavy, misses, paths),
        }
    }

    /// As [`words`](Self::words), with sets of up to 64 times `W` buckets a table.
    fn words_in<const W: usize>(
        &self,
        stage: usize,
        heavy: &Heavy,
        misses: usize,
        paths: &mut usize,
    ) -> Option<Vec<Word>> {
        let Some(hashes) = self.hashes.get(stage) else { return Some(Vec::new()) };
        let levels: Vec<Level<'_, W>> = hashes
            .iter()
            .zip(&self.fields)
            .map(|(hashes, field)| Level::new(hashes, *field, heavy))
            .collect();
        let mut found = Vec::new();
        let whole: [Set<W>; TABLES] = std::array::from_fn(|t| Set::first(heavy.get(t).map_or(0, Vec::len)));
        let mut open = vec![(0usize, 0u32, whole)];
        while let Some((depth, word, state)) = open.pop() {
            let Some(level) = levels.get(depth) else { continue };
            let reached = level.reached(&state);
            let [a, b, c, d] = &reached;
            let values = if misses == 0 {
                a.and(b).and(&c.and(d))
            } else {
                a.and(b).and(&c.or(d)).or(&c.and(d).and(&a.or(b)))
            };
            let enough = *paths >= values.len();
            *paths = paths.saturating_sub(values.len());
            if !enough {
                return None;
            }
            values.for_each(|value| {
                let longer = word | u32::from(value) << (8 * depth);
                if depth + 1 < levels.len() {
                    open.push((depth + 1, longer, level.left(&state, value)));
                } else {
                    let misses = reached.iter().filter(|of_table| !of_table.has(value)).count();
                    found.push(Word { word: longer, misses });
                }
            });
        }
        Some(found)
    }

    /// Chains words of consecutive stages that share a byte.
    fn join(
        &self,
        words: &[Vec<Word>],
        tag: u64,
        misses: usize,
        found: &mut Vec<Vec<u8>>,
        paths: &mut usize,
    ) -> Option<()> {
        let Some(first) = words.first() else { return Some(()) };
        let mut open: Vec<_> = first.iter().map(|w| Chain::default().and(w, w.word)).collect();
        while let Some(chain) = open.pop() {
            *paths = paths.checked_sub(1)?;
            let Some(stage) = words.get(chain.len) else {
                let mut whole = chain;
                let units = whole.units.get_mut(..whole.len).unwrap_or_default();
                self.undo(units);
                if let Some(key) = self.key_of(units).filter(|k| self.stages == 1 || self.tag(k) == tag) {
                    found.push(key);
                }
                continue;
            };
            let last = chain.units.get(chain.len.wrapping_sub(1));
            let byte = last.map_or(0, |unit| last_byte(chain.len == 1, *unit));
            let from = stage.partition_point(|w| (w.word & 0xff) < byte);
            let to = stage.partition_point(|w| (w.word & 0xff) <= byte);
            let agree = stage.get(from..to).unwrap_or_default().iter();
            let fit = agree.filter(|word| chain.misses + word.misses <= misses);
            open.extend(fit.map(|word| chain.and(word, word.word >> 8)));
        }
        Some(())
    }
}

/// The beginning of a key: units of as many stages as it has, and the tables that miss them.
#[derive(Clone, Copy, Default)]
struct Chain {
    units: [u32; MAX_STAGES],
    len: usize,
    misses: usize,
}

impl Chain {
    /// With a word of the next stage, whose unit is this.
    #[inline(always)]
    fn and(mut self, word: &Word, unit: u32) -> Self {
        if let Some(next) = self.units.get_mut(self.len) {
            *next = unit;
        }
        self.len += 1;
        self.misses += word.misses;
        self
    }
}

/// Bytes of a stage that agree with its buckets, but for those of `misses` tables.
struct Word {
    word: u32,
    misses: usize,
}

/// A random function from a byte to a field of bits, every value of it equally often, for each of four
/// tables.
fn byte_hash((shift, width): Field, state: &mut u64) -> [u64; 256] {
    let mut hashes = [0; 256];
    for table in 0..TABLES {
        let mut values: [u64; 256] = std::array::from_fn(|i| i as u64);
        for i in (1..256usize).rev() {
            values.swap(i, (split_mix(state) % (i as u64 + 1)) as usize);
        }
        for (hash, value) in hashes.iter_mut().zip(values) {
            *hash |= (value & ((1 << width) - 1)) << shift << (16 * table);
        }
    }
    hashes
}

#[inline(always)]
fn pick(hashes: &[[u64; 256]; 4], word: u32) -> u64 {
    let [a, b, c, d] = hashes;
    let [w, x, y, z] = word.to_le_bytes();
    let at = |table: &[u64; 256], byte: u8| table.get(usize::from(byte)).copied().unwrap_or(0);
    at(a, w) | at(b, x) | at(c, y) | at(d, z)
}

/// The word of a stage: its unit, behind the last byte of the one before.
#[inline(always)]
const fn word_of(before: Option<u32>, unit: u32) -> u32 {
    match before {
        None => unit,
        Some(byte) => byte | unit << 8,
    }
}

#[inline(always)]
const fn last_byte(first: bool, unit: u32) -> u32 {
    if first { unit >> 24 } else { unit >> 16 }
}

#[inline(always)]
const fn mask_of(index: usize) -> u32 {
    if index == 0 { u32::MAX } else { 0xff_ffff }
}

/// Up to four bytes as a number.
#[inline(always)]
fn short(bytes: &[u8]) -> u32 {
    match bytes.first_chunk::<4>() {
        Some(four) => u32::from_le_bytes(*four),
        None => bytes.iter().rev().fold(0, |all, b| all << 8 | u32::from(*b)),
    }
}

#[inline(always)]
const fn own(unit: u32, [a, b, ..]: &[u64; 4]) -> u64 {
    mix(unit as u64 ^ *a, *b)
}

#[inline(always)]
const fn foreign(others: u64, [_, b, c, _]: &[u64; 4]) -> u32 {
    (mix(others ^ *c, *b) >> 16) as u32
}

/// Mixes a unit: every bit comes to depend on every other.
#[inline(always)]
const fn stir(unit: u32, index: usize, [a, _, c, d]: &[u64; 4]) -> u32 {
    let (mask, half) = (mask_of(index), if index == 0 { 16 } else { 12 });
    let mut x = unit ^ (*a >> 32) as u32 & mask;
    x ^= x >> half;
    x = x.wrapping_mul(*c as u32 | 1) & mask;
    x ^= x >> half;
    x = x.wrapping_mul(*d as u32 | 1) & mask;
    x ^ x >> half
}

const fn unstir(unit: u32, index: usize, [a, _, c, d]: &[u64; 4]) -> u32 {
    let (mask, half) = (mask_of(index), if index == 0 { 16 } else { 12 });
    let mut x = unit ^ unit >> half;
    x = x.wrapping_mul(inverse(*d as u32 | 1)) & mask;
    x ^= x >> half;
    x = x.wrapping_mul(inverse(*c as u32 | 1)) & mask;
    x ^= x >> half;
    x ^ (*a >> 32) as u32 & mask
}

/// The inverse of an odd number modulo 2³² (Newton: the number of right bits doubles each time).
const fn inverse(odd: u32) -> u32 {
    let mut x = odd;
    let mut i = 0;
    while i < 5 {
        x = x.wrapping_mul(2u32.wrapping_sub(odd.wrapping_mul(x)));
        i += 1;
    }
    x
}

/// A set of up to 64 times `W` buckets.
#[derive(Clone, Copy, Debug)]
struct Set<const W: usize>([u64; W]);

impl<const W: usize> Set<W> {
    const EMPTY: Self = Self([0; W]);

    /// The first n.
    fn first(n: usize) -> Self {
        let mut set = Self::EMPTY;
        (0..n.min(64 * W)).for_each(|i| set.insert(i));
        set
    }

    fn insert(&mut self, i: usize) {
        if let Some(word) = self.0.get_mut(i / 64) {
            *word |= 1 << (i % 64);
        }
    }

    #[inline(always)]
    fn intersect(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a &= *b);
    }

    /// Returns true if a bucket is in both.
    #[inline(always)]
    fn meets(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).fold(0, |all, (a, b)| all | a & b) != 0
    }
}

/// For each value of a field: which of the buckets have it.
fn sets_of<const W: usize>(buckets: &[u32], (shift, width): Field) -> [Set<W>; PARTS] {
    let mut sets = [Set::EMPTY; PARTS];
    for (i, bucket) in buckets.iter().enumerate().take(64 * W) {
        if let Some(set) = sets.get_mut((bucket >> shift) as usize & ((1 << width) - 1)) {
            set.insert(i);
        }
    }
    sets
}

/// A set of values that a byte may have: those below 128, and the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Values(u128, u128);

impl Values {
    fn insert(&mut self, value: u8) {
        let half = if value < 128 { &mut self.0 } else { &mut self.1 };
        *half |= 1 << (value % 128);
    }

    fn has(&self, value: u8) -> bool {
        let half = if value < 128 { self.0 } else { self.1 };
        half >> (value % 128) & 1 == 1
    }

    #[inline(always)]
    fn and(&self, other: &Self) -> Self {
        Self(self.0 & other.0, self.1 & other.1)
    }

    #[inline(always)]
    fn or(&self, other: &Self) -> Self {
        Self(self.0 | other.0, self.1 | other.1)
    }

    fn len(&self) -> usize {
        (self.0.count_ones() + self.1.count_ones()) as usize
    }

    /// In ascending order.
    #[inline(always)]
    fn for_each(&self, mut what: impl FnMut(u8)) {
        for (base, mut rest) in [(0, self.0), (128, self.1)] {
            while rest != 0 {
                what(base + rest.trailing_zeros() as u8);
                rest &= rest - 1;
            }
        }
    }
}

/// A byte of a stage's words, and what its buckets say of it.
struct Level<'a, const W: usize> {
    hashes: &'a [u64; 256],
    field: Field,
    /// By table and part of a bucket's number: the buckets that have it, and the values that lead there.
    sets: [[Set<W>; PARTS]; TABLES],
    values: [[Values; PARTS]; TABLES],
}

impl<'a, const W: usize> Level<'a, W> {
    fn new(hashes: &'a [u64; 256], field: Field, heavy: &Heavy) -> Self {
        let mut this = Self {
            hashes,
            field,
            sets: std::array::from_fn(|t| sets_of(heavy.get(t).map_or(&[], Vec::as_slice), field)),
            values: [[Values::default(); PARTS]; TABLES],
        };
        for value in 0..=u8::MAX {
            let parts = this.parts(value);
            for (of_table, part) in this.values.iter_mut().zip(parts) {
                if let Some(values) = of_table.get_mut(part) {
                    values.insert(value);
                }
            }
        }
        this
    }

    /// The part of a bucket's number that a value gives, by table.
    #[inline(always)]
    fn parts(&self, value: u8) -> [usize; TABLES] {
        let (shift, width) = self.field;
        let packed = self.hashes.get(usize::from(value)).copied().unwrap_or(0);
        std::array::from_fn(|t| (packed >> (16 * t) >> shift) as usize & ((1 << width) - 1))
    }

    /// By table: the values that lead to one of its buckets.
    fn reached(&self, state: &[Set<W>; TABLES]) -> [Values; TABLES] {
        std::array::from_fn(|t| {
            let (Some(set), Some(sets), Some(values)) = (state.get(t), self.sets.get(t), self.values.get(t))
            else {
                return Values::default();
            };
            let meets = sets.iter().zip(values).filter(|(with, _)| set.meets(with));
            meets.fold(Values::default(), |all, (_, values)| all.or(values))
        })
    }

    /// By table: its buckets that this value leads to.
    #[inline(always)]
    fn left(&self, state: &[Set<W>; TABLES], value: u8) -> [Set<W>; TABLES] {
        let parts = self.parts(value);
        let of = |t: usize| {
            let mut left = *state.get(t)?;
            left.intersect(self.sets.get(t)?.get(*parts.get(t)?)?);
            Some(left)
        };
        std::array::from_fn(|t| of(t).unwrap_or(Set::EMPTY))
    }
}

/// Buckets whose value is at least `threshold`, of these the greatest `most`.
pub(crate) fn heaviest(values: impl Iterator<Item = i64>, threshold: i64, most: usize) -> Vec<u32> {
    let mut heavy: Vec<(i64, u32)> =
        values.enumerate().filter(|(_, v)| *v >= threshold).map(|(i, v)| (v, i as u32)).collect();
    if heavy.len() > most {
        heavy.select_nth_unstable_by(most, |a, b| b.cmp(a));
        heavy.truncate(most);
    }
    heavy.into_iter().map(|(_, i)| i).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn heavy_of(modular: &Modular, keys: &[Vec<u8>]) -> Vec<Heavy> {
        let mut heavy: Vec<Heavy> = vec![Default::default(); modular.stages()];
        for key in keys {
            let mut buckets = [0; MAX_STAGES];
            modular.buckets(key, &mut buckets);
            for (stage, packed) in heavy.iter_mut().zip(buckets) {
                for (t, list) in stage.iter_mut().enumerate() {
                    let bucket = bucket_of(packed, t) as u32;
                    if !list.contains(&bucket) {
                        list.push(bucket);
                    }
                }
            }
        }
        heavy
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn mangling_can_be_undone(key in prop::collection::vec(any::<u8>(), 1..=64), seed in any::<u64>()) {
            let modular = Modular::new(key.len(), 16, seed);
            let mut units = [0; MAX_STAGES];
            modular.units(&key, &mut units);
            let plain = units;
            if modular.stages() == 1 {
                units[0] = modular.mangle_one(units[0]);
            } else {
                modular.mangle(&mut units);
            }
            let mut back = units[..modular.stages()].to_vec();
            modular.undo(&mut back);
            prop_assert_eq!(&back[..], &plain[..modular.stages()]);
            prop_assert_eq!(modular.key_of(&back), Some(key));
        }
    }

    /// Bytes one after the other, as `words` finds them: what is left of all is tried with every value of the
    /// next byte, and kept where a bucket of enough tables agrees in all bytes so far. The words with what
    /// they miss, and how many beginnings were followed.
    fn words_by_trying(modular: &Modular, heavy: &Heavy, misses: usize) -> (Vec<(u32, usize)>, usize) {
        let (mut kept, mut followed) = (vec![(0u32, 0)], 0);
        for depth in 0..4 {
            let tried = kept.iter().flat_map(|(word, _)| (0..256).map(move |v| word | v << (8 * depth)));
            let missed = |word: u32| {
                let bytes = word.to_le_bytes();
                let agrees = |t: usize, bucket: u32| {
                    (0..=depth).all(|d| {
                        let (shift, width) = modular.fields[d];
                        let own = modular.hashes[0][d][usize::from(bytes[d])] >> (16 * t) >> shift;
                        (own as u32 ^ bucket >> shift) & ((1 << width) - 1) == 0
                    })
                };
                (0..TABLES).filter(|t| !heavy[*t].iter().any(|bucket| agrees(*t, *bucket))).count()
            };
            kept = tried.map(|word| (word, missed(word))).filter(|(_, missed)| *missed <= misses).collect();
            followed += kept.len();
        }
        (kept, followed)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn words_are_those_that_trying_finds(
            bits in 8u32..=16,
            seed in any::<u64>(),
            keys in prop::collection::vec(any::<[u8; 4]>(), 0..4),
            others in prop::collection::vec((0..TABLES, any::<u16>()), 0..8),
            misses in 0..2usize,
            spare in -3isize..3,
            before in prop::sample::select(vec![0usize, 62, 120, 400]),
        ) {
            let modular = Modular::new(4, bits, seed);
            let keys: Vec<Vec<u8>> = keys.iter().map(|key| key.to_vec()).collect();
            let [mut heavy] = <[Heavy; 1]>::try_from(heavy_of(&modular, &keys)).unwrap();
            for (table, bucket) in others {
                heavy[table].push(u32::from(bucket) & ((1 << bits) - 1));
            }
            let (mut twins, followed) = words_by_trying(&modular, &heavy, misses);
            let all = followed.saturating_add_signed(spare);
            let mut paths = all;
            // A bucket that is listed often says nothing new, but makes sets larger.
            let often = |list: &Vec<u32>| vec![list.first().copied(); before].into_iter().flatten();
            let again: Heavy = heavy.each_ref().map(|list| often(list).chain(list.iter().copied()).collect());
            let found = modular.words(0, &again, misses, &mut paths);
            prop_assert_eq!(paths, all.saturating_sub(followed));
            if all < followed {
                prop_assert!(found.is_none());
            } else {
                let mut words: Vec<_> = found.unwrap().iter().map(|w| (w.word, w.misses)).collect();
                words.sort_unstable();
                twins.sort_unstable();
                prop_assert_eq!(words, twins);
            }
        }
    }

    #[test]
    fn keys_are_found_again() {
        for len in [1, 3, 4, 5, 8, 13, 16, 32, 37] {
            for seed in 0..5u64 {
                let modular = Modular::new(len, 16, seed);
                let mut state = seed + 99;
                // Half of them differ in their last bytes only.
                let mut keys: Vec<Vec<u8>> = (0..40u8)
                    .map(|i| {
                        let mut key: Vec<u8> = vec![10; len];
                        let n = if i % 2 == 0 { len } else { 1 };
                        key.iter_mut().rev().take(n).for_each(|b| *b = split_mix(&mut state) as u8);
                        key
                    })
                    .collect();
                keys.sort();
                keys.dedup();
                let found = modular.keys(&heavy_of(&modular, &keys), 0, &mut (1 << 20)).unwrap();
                for key in &keys {
                    assert!(found.contains(key), "len {len}, seed {seed}: {key:?} is lost");
                }
                assert!(found.len() <= keys.len() + 20, "len {len}: {} for {}", found.len(), keys.len());
            }
        }
    }
}
