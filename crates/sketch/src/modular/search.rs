//! The search: from the buckets that stand out back to keys.

use super::{Field, MAX_STAGES, Modular, TABLES, last_byte};

/// Values of a field at most: a quarter of 16 bits.
const PARTS: usize = 16;
/// Buckets of one table that are followed at most.
pub(crate) const MAX_HEAVY: usize = 512;

/// Partial keys that are followed at most, in one search: more take longer than an answer may.
pub(crate) const MAX_PATHS: usize = 1 << 20;

/// The buckets of one stage that stand out, by table.
pub(crate) type Heavy = [Vec<u32>; TABLES];

impl Modular {
    /// All keys whose buckets stand out in every table of every stage, but for `misses` tables together, one
    /// a stage. Nothing where there are more partial keys to follow than `paths`, from which those that were
    /// followed are taken.
    pub(crate) fn keys(&self, heavy: &[Heavy], misses: usize, paths: &mut usize) -> Option<Vec<Vec<u8>>> {
        let mut found = Vec::new();
        let stages: Vec<Vec<Byte<'_>>> = (0..self.stages).map(|stage| self.bytes(stage)).collect();
        for tag in 0..1u32 << self.tag_bits {
            let mut words = Vec::with_capacity(self.stages);
            for (bytes, heavy) in stages.iter().zip(heavy) {
                let shift = self.bits - self.tag_bits;
                let of_tag = |list: &Vec<u32>| list.iter().copied().filter(|b| b >> shift == tag).collect();
                let some: [Vec<u32>; TABLES] =
                    std::array::from_fn(|t| heavy.get(t).map_or_else(Vec::new, of_tag));
                let mut stage_words = words_of(bytes, &some, misses.min(1), paths)?;
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

    /// The bytes of one stage.
    fn bytes(&self, stage: usize) -> Vec<Byte<'_>> {
        let hashes = self.hashes.get(stage).into_iter().flatten();
        hashes.zip(self.fields).map(|(hashes, field)| Byte::new(hashes, field)).collect()
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
            let last = chain.units.get(..chain.len).and_then(<[u32]>::last);
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

/// The words of one stage that agree with its buckets, but for those of `misses` tables (0 or 1). As of
/// [`Modular::keys`], nothing where there are more beginnings of them than `paths`.
fn words_of(bytes: &[Byte<'_>], heavy: &Heavy, misses: usize, paths: &mut usize) -> Option<Vec<Word>> {
    match heavy.iter().map(Vec::len).max().unwrap_or(0) {
        0..=64 => words_in::<1>(bytes, heavy, misses, paths),
        65..=128 => words_in::<2>(bytes, heavy, misses, paths),
        _ => words_in::<{ MAX_HEAVY / 64 }>(bytes, heavy, misses, paths),
    }
}

/// As [`words_of`], with sets of up to 64 times `W` buckets a table.
fn words_in<const W: usize>(
    bytes: &[Byte<'_>],
    heavy: &Heavy,
    misses: usize,
    paths: &mut usize,
) -> Option<Vec<Word>> {
    let levels: Vec<Level<'_, W>> = bytes.iter().map(|byte| Level::new(byte, heavy)).collect();
    let mut found = Vec::new();
    let whole: [Set<W>; TABLES] = heavy.each_ref().map(|list| Set::first(list.len()));
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
        let left = paths.checked_sub(values.len());
        *paths = left.unwrap_or(0);
        left?;
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

/// A byte of a stage's words, and where its values lead.
struct Byte<'a> {
    hashes: &'a [u64; 256],
    field: Field,
    /// By table and part of a bucket's number: the values that lead there.
    values: [[Values; PARTS]; TABLES],
}

impl<'a> Byte<'a> {
    fn new(hashes: &'a [u64; 256], field: Field) -> Self {
        let mut this = Self { hashes, field, values: [[Values::default(); PARTS]; TABLES] };
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
}

/// A byte, and what the buckets say of it.
struct Level<'a, const W: usize> {
    byte: &'a Byte<'a>,
    /// By table and part of a bucket's number: the buckets that have it.
    sets: [[Set<W>; PARTS]; TABLES],
}

impl<'a, const W: usize> Level<'a, W> {
    fn new(byte: &'a Byte<'a>, heavy: &Heavy) -> Self {
        Self { byte, sets: heavy.each_ref().map(|list| sets_of(list, byte.field)) }
    }

    /// By table: the values that lead to one of its buckets.
    fn reached(&self, state: &[Set<W>; TABLES]) -> [Values; TABLES] {
        std::array::from_fn(|t| {
            let (Some(set), Some(sets), Some(values)) =
                (state.get(t), self.sets.get(t), self.byte.values.get(t))
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
        let parts = self.byte.parts(value);
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
    use crate::hash::split_mix;
    use crate::modular::bucket_of;

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

    /// Bytes one after the other, as `words_of` finds them: what is left of all is tried with every value of
    /// the next byte, and kept where a bucket of enough tables agrees in all bytes so far. The words with
    /// what they miss, and how many beginnings were followed.
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
            let found = words_of(&modular.bytes(0), &again, misses, &mut paths);
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
