//! ExaLogLog with the martingale estimate, also called historic inverse probability (Cohen, KDD 2014; Ting,
//! KDD 2014): how many distinct keys one stream has, in the least memory.
//!
//! A key's hash alone decides if it changes the registers, with a probability q that the registers
//! tell. A key that does stands for 1/q keys, of which on average one does. The sum of all 1/q is the
//! estimate; its variance is that of the history, not of the registers at the end, and a third less. It is
//! one of the stream that was seen, though: the order of keys has a part in it, and two of them don't add up.
//! After a merge the number is estimated from the registers, as [`ExaLogLog`](crate::ExaLogLog) does, with a
//! standard error a sixth greater.
//!
//! Registers are narrower than there: events come in pairs of the same probability (the paper's t = 1), and
//! of the highest one it is kept how far it is above the lowest of all registers, in 5 bits. The few of which
//! these are too small stand in a list. Which of the events below it occurred, of `below`, takes a bit each.
//! With 6 of them, 11 bits a register, the error is the least in memory: variance times bits is 2.5, where
//! HyperLogLog of 4 bits with the same estimate has 2.77. With 14, 19 bits a register, a saved state is the
//! smallest, for it is compressed: 1.64, where the theory's least is 1.63 (Pettie, Wang and Yin, PODS 2021).
//! While keys are few for each register, up to about two, nothing is forgotten at all: see [`sparse`].

use super::coding::{self, Saved};
use super::fields::Fields;
use super::sets;
use super::shape::{Register, Seen, Shape, bounds};
use super::sparse::{self, Added, Events, Sparse, event_bit};
use crate::hash::{Hasher, below};
use crate::kind::need;
use crate::serial::{Decoder, Encoder, StateError};
use crate::sketch::same;
use crate::state::{State, state_methods};
use crate::stats::two_sided;
use crate::{Bounds, BuildError, Kind, QueryError, SetSizes, Size, Sketch, Update};

/// Events of a pair have the same probability.
const T: u32 = 1;
/// Bits of a register that say how far its highest event is above the lowest.
const HIGHEST: u32 = 5;
/// The greatest of these: the register stands in the list.
const LISTED: u32 = (1 << HIGHEST) - 1;
/// The binary logarithm of the unit in which probabilities are added up: all are whole multiples of it.
const UNIT: u32 = 63;

/// The most registers.
const MAX: usize = 1 << 24;
/// Events below a register's highest one that may be kept.
const BELOW: std::ops::RangeInclusive<u32> = 1..=16;

/// Distinct keys of one stream.
#[derive(Clone, Debug)]
pub struct ExaLogLogHip<const N: usize> {
    pub(super) record: Record,
    hasher: Hasher,
    seed: u64,
    weight: u64,
}

/// All that keys leave, of which only the hashes are known: the same code for keys of all lengths.
#[derive(Clone, Debug)]
pub(super) struct Record {
    /// Registers: how far the highest event is above `base` in the upper 5 bits, or [`LISTED`]; below, the
    /// events before it. Where nothing is forgotten, `sparse` says what they are.
    fields: Fields,
    sparse: Option<Sparse>,
    n: usize,
    shape: Shape,
    /// The lowest of all registers' highest events, and how many registers have it.
    base: u32,
    at_base: usize,
    /// Registers whose highest event is too far above `base`: number (upper 24 bits) and event, ascending.
    listed: Vec<u32>,
    /// The chance that a new key changes some register, in units of 2⁻⁶³, times the number of registers.
    chance: u128,
    /// Keys that were seen, estimated; nothing after a merge.
    pub(super) seen: Option<f64>,
}

impl<const N: usize> ExaLogLogHip<N> {
    /// The most registers.
    pub const MAX: usize = MAX;
    /// Events below a register's highest one that may be kept.
    pub const BELOW: std::ops::RangeInclusive<u32> = BELOW;
    /// As many as make the error in a given memory the least.
    pub const LEAST_MEMORY: u32 = 6;
    /// As many as make the error in a saved state of a given length the least.
    pub const LEAST_SAVED: u32 = 14;

    /// An empty sketch of so many registers (1 to 2²⁴) of 5 bits and `below` (1 to 16) more.
    ///
    /// # Errors
    /// [`BuildError`] where a number is out of range.
    pub fn new(registers: usize, below: u32, seed: u64) -> Result<Self, BuildError> {
        let record = Record::new(registers, below)?;
        Ok(Self { record, hasher: Hasher::new(seed, 0x68_69_70), seed, weight: 0 })
    }

    /// The sketch for a size, with the registers that err the least in it.
    ///
    /// # Errors
    /// [`BuildError`] where the size is impossible.
    pub fn sized(size: Size, seed: u64) -> Result<Self, BuildError> {
        Self::sized_below(size, Self::LEAST_MEMORY, seed)
    }

    /// The sketch for a size, with registers that keep so many events below their highest one.
    ///
    /// # Errors
    /// [`BuildError`] where the size is impossible.
    pub fn sized_below(size: Size, kept: u32, seed: u64) -> Result<Self, BuildError> {
        Self::new(Record::registers_for(size, kept)?, kept, seed)
    }

    #[inline(always)]
    fn add(&mut self, key: &[u8; N]) {
        let [a, b] = self.hasher.hash(key).0;
        self.record.meet(below(a as u32, self.record.n), self.record.shape.event(b));
    }
}

impl Record {
    /// No keys, in so many registers of 5 bits and `below` more.
    fn new(registers: usize, below: u32) -> Result<Self, BuildError> {
        let wrong = |what, range| Err(BuildError::Parameter { kind: Kind::ExaLogLogHip, what, range });
        if registers == 0 || registers > MAX {
            return wrong("the number of registers", "1 to 2^24");
        }
        if !BELOW.contains(&below) {
            return wrong("the events below the highest one", "1 to 16");
        }
        let shape = Shape { t: T, below };
        need(Kind::ExaLogLogHip, Self::bytes_for(registers, below))?;
        let fields = Fields::new(registers, HIGHEST + below);
        let mut this = Self {
            sparse: Sparse::new(registers, fields.bytes.len()),
            fields,
            n: registers,
            shape,
            base: 0,
            at_base: registers,
            listed: Vec::new(),
            chance: chance(shape, (0, 0)) * registers as u128,
            seen: Some(0.0),
        };
        this.listed.reserve_exact(Self::room(registers));
        Ok(this)
    }

    /// As many registers as a size asks for, if each keeps so many events below its highest one.
    fn registers_for(size: Size, kept: u32) -> Result<usize, BuildError> {
        let kind = Kind::ExaLogLogHip;
        match size {
            Size::Memory(budget) => {
                let least = Self::bytes_for(1, kept);
                if budget < least {
                    return Err(BuildError::TooSmall { kind, least, budget });
                }
                // The most that fit, found by halves.
                let (mut fits, mut too_many) = (1, budget.min(MAX) + 1);
                while too_many - fits > 1 {
                    let middle = fits + (too_many - fits) / 2;
                    if Self::bytes_for(middle, kept) <= budget { fits = middle } else { too_many = middle }
                }
                Ok(fits)
            }
            Size::Accuracy { error, confidence, .. } => {
                let shape = Shape { t: T, below: kept };
                // At many keys for each register the error is the greatest.
                let one = variance(shape, 1.0, 1e9);
                crate::kind::cells(kind, one * (two_sided(confidence) / error).powi(2))
            }
        }
    }

    /// Registers that are listed at most: several times as many as are expected.
    const fn room(registers: usize) -> usize {
        4 + registers / 512
    }

    const fn bytes_for(registers: usize, below: u32) -> usize {
        Fields::bytes_for(registers, HIGHEST + below) + Self::room(registers) * size_of::<u32>()
    }

    #[inline(always)]
    fn get(&self, i: usize) -> Register {
        let field = self.fields.get(i);
        let (above, below) = (field >> self.shape.below, field & ((1 << self.shape.below) - 1));
        (if above == LISTED { self.listed(i) } else { self.base + above }, below)
    }

    /// The highest event of a register that stands in the list.
    #[cold]
    fn listed(&self, i: usize) -> u32 {
        let from = self.listed.partition_point(|l| (*l >> 8) < i as u32);
        self.listed.get(from).map_or(0, |l| l & 0xff)
    }

    fn set(&mut self, i: usize, (highest, below): Register) {
        let above = highest - self.base;
        let in_field = above.min(LISTED);
        if in_field == LISTED {
            let from = self.listed.partition_point(|l| (*l >> 8) < i as u32);
            let line = (i as u32) << 8 | highest;
            match self.listed.get_mut(from).filter(|l| **l >> 8 == i as u32) {
                Some(listed) => *listed = line,
                None => self.listed.insert(from, line),
            }
        }
        self.fields.set(i, in_field << self.shape.below | below);
    }

    #[inline(always)]
    pub(super) fn meet(&mut self, i: usize, event: u32) {
        if self.sparse.is_some() {
            return self.meet_sparse(i, event);
        }
        let register = self.get(i);
        if let Some(now) = self.shape.add(register, event) {
            self.change(i, register, now);
        }
    }

    fn meet_sparse(&mut self, i: usize, event: u32) {
        let Some(sparse) = &mut self.sparse else { return };
        let added = sparse.add(&mut self.fields.bytes, i, event);
        if added == Added::Old {
            return;
        }
        self.count();
        if added == Added::Full {
            let mut all = self.events().unwrap_or_default();
            all.get_mut(i).into_iter().for_each(|events| *events |= event_bit(event));
            self.forget(&all);
        } else {
            self.chance = self.chance.saturating_sub(each(self.shape, event));
        }
    }

    /// A key changes something: it stands for as many as the chance for that, as it was before it did, tells.
    fn count(&mut self) {
        let units = self.chance.max(1) as f64;
        if let Some(seen) = &mut self.seen {
            *seen += (self.n as f64) * f64::from(UNIT).exp2() / units;
        }
    }

    #[cold]
    fn change(&mut self, i: usize, before: Register, now: Register) {
        self.count();
        self.chance = self.chance + chance(self.shape, now) - chance(self.shape, before);
        self.set(i, now);
        if before.0 == self.base && now.0 > self.base {
            self.at_base -= 1;
            if self.at_base == 0 {
                self.rise();
            }
        }
    }

    /// The lowest of all registers has risen.
    fn rise(&mut self) {
        let all: Vec<Register> = self.registers().collect();
        self.put(&all);
    }

    /// Registers that forget.
    fn registers(&self) -> impl ExactSizeIterator<Item = Register> + Clone {
        (0..self.n).map(|i| self.get(i))
    }

    /// The events of all registers, if none was forgotten.
    pub(super) fn events(&self) -> Option<Vec<Events>> {
        self.sparse.map(|sparse| sparse.events(&self.fields.bytes))
    }

    /// Registers as they are once they have forgotten what they don't keep.
    pub(super) fn kept(&self) -> Vec<Register> {
        match self.events() {
            Some(all) => all.iter().map(|events| sparse::kept(self.shape, *events)).collect(),
            None => self.registers().collect(),
        }
    }

    /// All that is known of events.
    fn told(&self) -> Seen {
        match self.events() {
            Some(all) => Seen::of_all(self.shape, &all),
            None => Seen::of(self.shape, self.registers()),
        }
    }

    /// Takes these events for its own; false if there is no room for all of them.
    fn put_all(&mut self, all: &[Events]) -> bool {
        self.fields.bytes.fill(0);
        let Some(mut sparse) = Sparse::new(self.n, self.fields.bytes.len()) else { return false };
        self.chance = chance(self.shape, (0, 0)) * self.n as u128;
        (self.base, self.at_base) = (0, self.n);
        self.listed.clear();
        for (i, events) in all.iter().enumerate() {
            let mut left = *events;
            while left != 0 {
                let event = left.trailing_zeros() + 1;
                left ^= event_bit(event);
                if sparse.add(&mut self.fields.bytes, i, event) == Added::Full {
                    return false;
                }
                self.chance = self.chance.saturating_sub(each(self.shape, event));
            }
        }
        self.sparse = Some(sparse);
        true
    }

    /// Takes what registers keep of these events once they forget.
    fn forget(&mut self, all: &[Events]) {
        let all: Vec<Register> = all.iter().map(|events| sparse::kept(self.shape, *events)).collect();
        self.put(&all);
    }

    /// Takes these registers for its own.
    fn put(&mut self, all: &[Register]) {
        self.sparse = None;
        self.fields.bytes.fill(0);
        self.base = all.iter().map(|r| r.0).min().unwrap_or(0);
        self.at_base = all.iter().filter(|r| r.0 == self.base).count();
        self.listed.clear();
        (0..).zip(all).for_each(|(i, register)| self.set(i, *register));
        self.chance = all.iter().map(|r| chance(self.shape, *r)).sum();
    }

    fn is_empty(&self) -> bool {
        self.chance == chance(self.shape, (0, 0)) * self.n as u128
    }
    fn read_parameters(d: &mut Decoder<'_>) -> Result<Self, StateError> {
        let (n, below, merged, seen) = (d.u32()? as usize, d.u8()?, d.u8()?, f64::from_bits(d.u64()?));
        let below = u32::from(below);
        let possible = n > 0 && n <= MAX && BELOW.contains(&below) && merged <= 1;
        if !possible || !(0.0..=1e38).contains(&seen) {
            return Err(StateError::Damaged("its shape is impossible"));
        }
        // The registers come when it is known that they are there.
        let mut this = Self::new(1, below).map_err(|_| StateError::Damaged("its shape is impossible"))?;
        this.n = n;
        this.seen = (merged == 0).then_some(seen);
        Ok(this)
    }

    fn write_parameters(&self, out: &mut Encoder) {
        out.u32(self.n as u32);
        out.u8(self.shape.below as u8);
        out.u8(u8::from(self.seen.is_none()));
        out.u64(self.seen.unwrap_or(0.0).to_bits());
    }

    fn read_tables(&mut self, d: &mut Decoder<'_>) -> Result<(), StateError> {
        let all = coding::read_either(self.shape, self.n, d)?;
        self.fields = Fields::new(self.n, HIGHEST + self.shape.below);
        self.listed.reserve_exact(Self::room(self.n));
        match all {
            Saved::Kept(all) if all.iter().any(|register| *register != (0, 0)) => self.put(&all),
            Saved::Kept(all) => {
                if !self.put_all(&[]) {
                    self.put(&all);
                }
            }
            Saved::All(all) => {
                if !self.put_all(&all) {
                    return Err(StateError::Damaged("there are more events than it has room for"));
                }
            }
        }
        Ok(())
    }

    fn write_tables(&self, out: &mut Encoder) {
        match self.events() {
            Some(all) => coding::write_all(self.shape, &all, out),
            None => coding::write(self.shape, self.registers(), out),
        }
    }

    fn clear_tables(&mut self) {
        self.fields.bytes.fill(0);
        self.sparse = Sparse::new(self.n, self.fields.bytes.len());
        self.listed.clear();
        (self.base, self.at_base, self.seen) = (0, self.n, Some(0.0));
        self.chance = chance(self.shape, (0, 0)) * self.n as u128;
    }

    fn unite_tables(&mut self, other: &Self) {
        if other.is_empty() {
            return;
        }
        let seen = if self.is_empty() { other.seen } else { None };
        let all = self.events().zip(other.events());
        let all = all.map(|(mine, theirs)| mine.iter().zip(&theirs).map(|(a, b)| a | b).collect::<Vec<_>>());
        match all {
            Some(all) => {
                if !self.put_all(&all) {
                    self.forget(&all);
                }
            }
            None => {
                let all = self.kept().into_iter().zip(other.kept());
                self.put(&all.map(|(a, b)| self.shape.united(a, b)).collect::<Vec<_>>());
            }
        }
        self.seen = seen;
    }

    fn cardinality(&self) -> Bounds<f64> {
        let Some(seen) = self.seen else {
            return self.told().cardinality();
        };
        if self.is_empty() {
            return Bounds::exact(0.0);
        }
        let m = self.n as f64;
        let below = if self.sparse.is_some() { u32::MAX } else { self.shape.below };
        bounds(seen, variance(Shape { below, ..self.shape }, m, seen), 1.0_f64.min(seen), m)
    }

    fn set_sizes(&self, other: &Self) -> SetSizes {
        let keys = |all: Seen| [self.cardinality(), other.cardinality(), all.cardinality()];
        if let (Some(a), Some(b)) = (self.events(), other.events()) {
            let united: Vec<Events> = a.iter().zip(&b).map(|(a, b)| a | b).collect();
            let keys = keys(Seen::of_all(self.shape, &united));
            return sets::sizes(self.shape, a.into_iter().zip(b), keys);
        }
        let both = || self.kept().into_iter().zip(other.kept());
        let united = |(a, b)| self.shape.united(a, b);
        sets::sizes(self.shape, both(), keys(Seen::of(self.shape, both().map(united))))
    }

    fn is_saturated(&self) -> bool {
        self.sparse.is_none() && self.shape.group(self.base) + 1 == self.shape.groups()
    }
}

/// The chance of an event, in units of 2⁻⁶³.
fn each(shape: Shape, event: u32) -> u128 {
    1 << (UNIT - (shape.group(event).min(shape.groups() - 2) + shape.t + 1))
}

/// The chance that a key which meets this register changes it, in units of 2⁻⁶³.
fn chance(shape: Shape, (highest, below): Register) -> u128 {
    // Of each event of a group, and of all groups above it.
    let each = |event: u32| each(shape, event);
    if highest == 0 {
        return 1 << UNIT;
    }
    let group = shape.group(highest);
    let above = if group + 1 < shape.groups() { 1 << (UNIT - group - 1) } else { 0 };
    let rest = u128::from(((group + 1) << shape.t) - highest) * each(highest);
    let missed = (1..=shape.below.min(highest - 1)).filter(|d| below >> (shape.below - d) & 1 == 0);
    above + rest + missed.map(|d| each(highest - d)).sum::<u128>()
}

/// The variance of the logarithm of the martingale estimate of n keys by m registers. It is the sum of
/// 1/q − 1 over all keys, divided by n², where q is the chance that a key changes a register.
fn variance(shape: Shape, m: f64, n: f64) -> f64 {
    if n <= 1.0 {
        return 0.0;
    }
    // The chance that a register is changed, after x keys for each: an event hasn't occurred, nor any so far
    // above it that it is forgotten.
    let chance = |x: f64| -> f64 {
        let each = |event: u32| {
            let p = shape.probability(shape.group(event));
            let forgotten = event.saturating_add(shape.below);
            if forgotten > shape.events() {
                return p * (-x * p).exp();
            }
            let group = shape.group(forgotten);
            let after = f64::from(((group + 1) << shape.t) - forgotten) * shape.probability(group);
            let above = if group + 1 < shape.groups() { (-f64::from(group + 1)).exp2() } else { 0.0 };
            p * (-x * (p + after + above)).exp()
        };
        (1..=shape.events()).map(each).sum()
    };
    // Steps of equal ratio, from half a key on.
    const STEPS: u32 = 96;
    let ratio = (2.0 * n).ln() / f64::from(STEPS);
    let step = |i: u32| {
        let keys = 0.5 * (ratio * (f64::from(i) + 0.5)).exp();
        (1.0 / chance(keys / m) - 1.0).max(0.0) * keys * ratio
    };
    (0..STEPS).map(step).sum::<f64>() / (n * n)
}

impl<const N: usize> State<N> for ExaLogLogHip<N> {
    fn read_parameters(seed: u64, d: &mut Decoder<'_>) -> Result<Self, StateError> {
        Ok(Self {
            record: Record::read_parameters(d)?,
            hasher: Hasher::new(seed, 0x68_69_70),
            seed,
            weight: 0,
        })
    }

    fn write_parameters(&self, out: &mut Encoder) {
        self.record.write_parameters(out);
    }

    fn read_tables(&mut self, d: &mut Decoder<'_>) -> Result<(), StateError> {
        self.record.read_tables(d)
    }

    fn write_tables(&self, out: &mut Encoder) {
        self.record.write_tables(out);
    }

    fn clear_tables(&mut self) {
        self.record.clear_tables();
    }

    fn unite_tables(&mut self, other: &Self) {
        self.record.unite_tables(&other.record);
    }

    fn set_weight(&mut self, weight: u64) {
        self.weight = weight;
    }
}

impl<const N: usize> Sketch<N> for ExaLogLogHip<N> {
    state_methods!();

    fn kind(&self) -> Kind {
        Kind::ExaLogLogHip
    }

    fn shape(&self) -> String {
        format!("{} registers of {} bits", self.record.n, self.record.fields.width)
    }

    fn memory_bytes(&self) -> usize {
        self.record.fields.bytes.len() + self.record.listed.capacity() * size_of::<u32>()
    }

    fn update(&mut self, key: &[u8; N], weight: u64) {
        self.weight = self.weight.saturating_add(weight);
        self.add(key);
    }

    fn update_all(&mut self, updates: &[Update<N>]) {
        for u in updates {
            self.weight = self.weight.saturating_add(u64::from(u.weight));
            self.add(&u.key);
        }
    }

    fn update_cost(&self) -> f64 {
        0.6
    }

    /// Lower and upper hold in about 95 % of cases.
    fn cardinality(&self) -> Result<Bounds<f64>, QueryError> {
        Ok(self.record.cardinality())
    }

    /// Of the registers alone: which keys two streams share, no history of one of them tells.
    fn set_sizes(&self, other: &dyn Sketch<N>) -> Result<SetSizes, QueryError> {
        Ok(self.record.set_sizes(&same(self, other)?.record))
    }

    fn is_saturated(&self) -> bool {
        self.record.is_saturated()
    }
}
