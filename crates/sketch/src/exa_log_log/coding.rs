//! Registers as few bytes: an arithmetic code (a range coder that carries, as LZMA's) whose probabilities
//! adapt, in whole numbers alone, so that every machine writes and reads the same.
//!
//! Register by register, it is said of the events from the highest one of all registers down whether they
//! occurred, until one has, and then of each of those that the register remembers below it. The probability
//! is that of the event's group, learnt from what was said of it before: two weights, of "occurred" and
//! "not", that begin as a group's of that rarity and grow by one each time. Nothing is lost, and what is
//! written is within a few bytes of the entropy: 17.8 bits for a register of `exaloglog`, which has 32 in
//! memory.

use super::shape::{GROUPS, Register, Shape};
use super::sparse::{self, Events, event_bit};
use crate::StateError;
use crate::serial::{Decoder, Encoder};

/// Registers for each byte of the code, at most, and as many as need no byte: a reader of a few bytes must
/// not have to take much memory. What would have more is written uncoded.
const EACH: usize = 16;
const FREE: usize = 4096;
/// Weights of "occurred" and "not" of a group whose events occur 2^(−k/2) times a register on average, k from
/// −8 on: 1 − e^(−x) and e^(−x) for x such times, with the weight of about 40 registers.
const WEIGHTS: [[u32; 2]; 21] = [
    [4096, 1],
    [4096, 1],
    [2980, 1],
    [285, 1],
    [54, 1],
    [32, 2],
    [32, 5],
    [28, 9],
    [31, 18],
    [32, 31],
    [24, 37],
    [14, 33],
    [13, 46],
    [6, 31],
    [4, 30],
    [5, 54],
    [2, 31],
    [2, 44],
    [1, 32],
    [1, 45],
    [1, 64],
];
/// At this sum weights are halved.
const MOST: u32 = 1 << 16;

/// Weights of every group.
struct Model([[u32; 2]; GROUPS]);

impl Model {
    /// The first group's events occur 2^(−k/2) times a register, each following one's half as often.
    fn new(k: i32) -> Self {
        let weights = |group: usize| {
            let k = (k + 2 * group as i32 + 8).clamp(0, 38) as u32;
            let last = WEIGHTS.len() as u32 - 1;
            match WEIGHTS.get(k as usize) {
                Some(weights) => *weights,
                None => [1, 64 << ((k - last) / 2)],
            }
        };
        Self(std::array::from_fn(weights))
    }

    /// The weight of "occurred", and of both.
    #[inline]
    fn of(&self, group: u32) -> [u32; 2] {
        self.0.get(group as usize).map_or([1, 2], |[yes, no]| [*yes, yes + no])
    }

    #[inline]
    fn learn(&mut self, group: u32, occurred: bool) {
        let Some([yes, no]) = self.0.get_mut(group as usize) else { return };
        *if occurred { &mut *yes } else { &mut *no } += 1;
        if *yes + *no >= MOST {
            (*yes, *no) = ((*yes).div_ceil(2), (*no).div_ceil(2));
        }
    }
}

/// Says of events whether they occurred, or is told so.
trait Coder {
    fn code(&mut self, occurred: bool, weights: [u32; 2]) -> bool;
}

struct Writer {
    low: u64,
    range: u32,
    /// The last byte, which a carry may still raise, and those of all ones behind it.
    last: Option<u8>,
    ones: usize,
    out: Vec<u8>,
}

impl Writer {
    const fn new() -> Self {
        Self { low: 0, range: u32::MAX, last: None, ones: 0, out: Vec::new() }
    }

    fn shift(&mut self) {
        let (byte, carry) = ((self.low >> 24) as u8, (self.low >> 32) as u8);
        if carry == 0 && byte == u8::MAX {
            self.ones += 1;
        } else {
            self.out.extend(self.last.map(|last| last.wrapping_add(carry)));
            self.out.extend(std::iter::repeat_n(u8::MAX.wrapping_add(carry), self.ones));
            (self.last, self.ones) = (Some(byte), 0);
        }
        self.low = (self.low & 0x00ff_ffff) << 8;
    }

    /// The code. A reader takes what is behind it for zeros, so that zeros at its end are left out; of the
    /// numbers that mean the same the one with the most is taken.
    fn finish(mut self) -> Vec<u8> {
        let end = self.low + u64::from(self.range) - 1;
        let zeros = (0..32).rev().find(|z| end >> z << z >= self.low).unwrap_or(0);
        self.low = end >> zeros << zeros;
        (0..5).for_each(|_| self.shift());
        let kept = self.out.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        self.out.truncate(kept);
        self.out
    }
}

impl Coder for Writer {
    #[inline]
    fn code(&mut self, occurred: bool, [yes, all]: [u32; 2]) -> bool {
        let bound = self.range / all * yes;
        if occurred {
            self.range = bound;
        } else {
            self.low += u64::from(bound);
            self.range -= bound;
        }
        while self.range < 1 << 24 {
            self.range <<= 8;
            self.shift();
        }
        occurred
    }
}

struct Reader<'a> {
    rest: &'a [u8],
    code: u32,
    range: u32,
}

impl<'a> Reader<'a> {
    fn new(rest: &'a [u8]) -> Self {
        let mut reader = Self { rest, code: 0, range: u32::MAX };
        (0..4).for_each(|_| reader.shift());
        reader
    }

    #[inline]
    fn shift(&mut self) {
        let byte = match self.rest.split_first() {
            Some((byte, rest)) => {
                self.rest = rest;
                *byte
            }
            None => 0,
        };
        self.code = self.code << 8 | u32::from(byte);
    }
}

impl Reader<'_> {
    fn done(&self) -> Result<(), StateError> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(StateError::Damaged("there is more than its parameters say"))
    }
}

impl Coder for Reader<'_> {
    #[inline]
    fn code(&mut self, _: bool, [yes, all]: [u32; 2]) -> bool {
        let bound = self.range / all * yes;
        let occurred = self.code < bound;
        if occurred {
            self.range = bound;
        } else {
            self.code -= bound;
            self.range -= bound;
        }
        while self.range < 1 << 24 {
            self.range <<= 8;
            self.shift();
        }
        occurred
    }
}

/// Says what one register keeps, or is told.
#[inline]
fn code(
    shape: Shape,
    top: u32,
    model: &mut Model,
    coder: &mut impl Coder,
    (highest, below): Register,
) -> Register {
    let mut said = |event: u32, occurred: bool| {
        let group = shape.group(event);
        let occurred = coder.code(occurred, model.of(group));
        model.learn(group, occurred);
        occurred
    };
    let highest = (1..=top).rev().find(|event| said(*event, *event == highest)).unwrap_or(0);
    let mut bits = 0;
    for distance in 1..=shape.below.min(highest.saturating_sub(1)) {
        let place = shape.below - distance;
        bits |= u32::from(said(highest - distance, below >> place & 1 == 1)) << place;
    }
    (highest, bits)
}

/// The highest event of all registers, and how rare the events of the first group are: they occur 2^(−k/2)
/// times a register on average. Where a share s of registers has seen none above some group, its events occur
/// −ln(s)·2⁻ᵗ times.
fn rarity(shape: Shape, registers: impl Iterator<Item = Register>) -> (u32, i8) {
    let mut of = [0u64; 256];
    let mut n = 0u64;
    for (highest, _) in registers {
        n += 1;
        of.get_mut(highest as usize).into_iter().for_each(|n| *n += 1);
    }
    let top = of.iter().rposition(|there| *there > 0).unwrap_or(0) as u32;
    let t = shape.t as i32;
    let [empty, events @ ..] = &of;
    if 2 * empty > n {
        let some = (n - empty).max(1);
        return (top, (2 * (t + 1)) as i8 + (n * n / (some * some)).ilog2() as i8);
    }
    let (mut below, mut group) = (*empty, -1);
    for more in events.chunks(1 << shape.t) {
        if 4 * below >= n {
            break;
        }
        below += more.iter().sum::<u64>();
        group += 1;
    }
    // 1/4 to 1/2 of the registers: −ln(s) is 2^0.47 to 2^−0.53.
    let finer = match 1000 * below / n {
        0..309 => -1,
        309..431 => 0,
        _ => 1,
    };
    (top, (2 * (t - group) + finer) as i8)
}

/// Writes registers: 0 (u8), and each as it is (u32: the highest event in the upper 8 bits, the events below
/// it in the upper ones of the other 24); or 1 (u8), the highest event of all (u8), the rarity of the first
/// group (i8), and the code, which goes on to the end.
pub(super) fn write<R>(shape: Shape, registers: R, out: &mut Encoder)
where
    R: ExactSizeIterator<Item = Register> + Clone,
{
    let n = registers.len();
    let (top, k) = rarity(shape, registers.clone());
    let (mut model, mut writer) = (Model::new(i32::from(k)), Writer::new());
    for register in registers.clone() {
        code(shape, top, &mut model, &mut writer, register);
    }
    let bytes = writer.finish();
    if n > most(bytes.len()) || bytes.len() >= 4 * n {
        out.u8(0);
        registers.for_each(|(highest, below)| out.u32(highest << 24 | below << (24 - shape.below)));
        return;
    }
    out.u8(1);
    out.u8(top as u8);
    out.u8(k as u8);
    bytes.iter().for_each(|byte| out.u8(*byte));
}

/// Registers that so many bytes of code may stand for.
const fn most(bytes: usize) -> usize {
    FREE.saturating_add(EACH.saturating_mul(bytes))
}

/// Writes registers that forgot nothing: 2 (u8), the highest event of all (u8), the rarity of the first group
/// (i8), and the code: of every register, whether each event from the highest of all down occurred.
pub(super) fn write_all(shape: Shape, registers: &[Events], out: &mut Encoder) {
    let (top, k) = rarity(shape, registers.iter().map(|events| sparse::kept(shape, *events)));
    let (mut model, mut writer) = (Model::new(i32::from(k)), Writer::new());
    for events in registers {
        code_all(shape, top, &mut model, &mut writer, *events);
    }
    out.u8(2);
    out.u8(top as u8);
    out.u8(k as u8);
    writer.finish().iter().for_each(|byte| out.u8(*byte));
}

/// Says which events of a register occurred, or is told.
fn code_all(shape: Shape, top: u32, model: &mut Model, coder: &mut impl Coder, events: Events) -> Events {
    let mut said = 0;
    for event in (1..=top).rev() {
        let group = shape.group(event);
        let occurred = coder.code(events & event_bit(event) != 0, model.of(group));
        model.learn(group, occurred);
        said |= if occurred { event_bit(event) } else { 0 };
    }
    said
}

/// Registers as they were saved.
pub(super) enum Saved {
    Kept(Vec<Register>),
    /// Of which nothing was forgotten.
    All(Vec<Events>),
}

/// Reads what [`fn@write`] has written of n registers; `each` gets them in order.
pub(super) fn read(
    shape: Shape,
    n: usize,
    d: &mut Decoder<'_>,
    each: impl FnMut(Register),
) -> Result<(), StateError> {
    let way = d.u8()?;
    read_kept(way, shape, n, d, each)
}

/// Reads what [`fn@write`] or [`write_all`] has written.
pub(super) fn read_either(shape: Shape, n: usize, d: &mut Decoder<'_>) -> Result<Saved, StateError> {
    let way = d.u8()?;
    if way != 2 || d.version() < 2 {
        let mut all = Vec::new();
        read_kept(way, shape, n, d, |register| all.push(register))?;
        return Ok(Saved::Kept(all));
    }
    let (top, mut model, mut reader) = begin(shape, n <= sparse::MOST, d)?;
    let all = (0..n).map(|_| code_all(shape, top, &mut model, &mut reader, 0)).collect();
    reader.done()?;
    Ok(Saved::All(all))
}

fn read_kept(
    way: u8,
    shape: Shape,
    n: usize,
    d: &mut Decoder<'_>,
    mut each: impl FnMut(Register),
) -> Result<(), StateError> {
    match way {
        0 => read_raw(shape, &d.all::<u32>(n)?, each),
        1 => {
            let few = n <= most(d.left().saturating_sub(2));
            let (top, mut model, mut reader) = begin(shape, few, d)?;
            (0..n).for_each(|_| each(code(shape, top, &mut model, &mut reader, (0, 0))));
            reader.done()
        }
        _ => Err(StateError::Damaged("its registers are written in no way that is known")),
    }
}

/// The head of a code: the highest event, and the rarity; `few` says that its bytes may stand for so many
/// registers.
fn begin<'a>(shape: Shape, few: bool, d: &mut Decoder<'a>) -> Result<(u32, Model, Reader<'a>), StateError> {
    let (top, k) = (u32::from(d.u8()?), d.u8()? as i8);
    if !few || top > shape.events() {
        return Err(StateError::Damaged("its shape is impossible"));
    }
    Ok((top, Model::new(i32::from(k)), Reader::new(d.rest())))
}

/// Registers as they are.
pub(super) fn read_raw(
    shape: Shape,
    words: &[u32],
    mut each: impl FnMut(Register),
) -> Result<(), StateError> {
    for word in words {
        let (highest, bits) = (word >> 24, word & 0x00ff_ffff);
        let unused = 24 - shape.below;
        if highest > shape.events() || bits & ((1 << unused) - 1) != 0 {
            return Err(StateError::Damaged("a register keeps what can't be"));
        }
        // Bits of events that there are none of, which nothing sets.
        let below = bits >> unused;
        let there = shape.below.min(highest.saturating_sub(1));
        if below & ((1 << (shape.below - there)) - 1) != 0 {
            return Err(StateError::Damaged("a register keeps what can't be"));
        }
        each((highest, below));
    }
    Ok(())
}
