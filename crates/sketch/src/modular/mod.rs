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

mod search;

pub(crate) use search::{Heavy, MAX_HEAVY, MAX_PATHS, heaviest};

use crate::hash::{Hasher, mix, split_mix};

/// Tables a stage.
pub(crate) const TABLES: usize = 4;
/// The longest keys, in bytes.
pub(crate) const MAX_LEN: usize = 64;
/// Bits of a bucket's number that four bytes need, the last of which the next stage tells, too.
const MODULAR_BITS: u32 = 11;
/// Stages of the longest keys.
pub(crate) const MAX_STAGES: usize = 1 + (MAX_LEN - 4).div_ceil(3);
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
}
