use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::Sketch;
use crate::hash::{Hasher, below};

/// The events that a register keeps of a set: the highest, and those within 24 below it.
fn twin(events: &BTreeSet<u32>) -> u32 {
    let Some(highest) = events.last() else { return 0 };
    let below = events.iter().filter(|e| *e < highest && highest - *e <= BELOW);
    highest << BELOW | below.map(|e| 1 << (BELOW - (highest - e))).sum::<u32>()
}

proptest! {
    #[test]
    fn a_register_keeps_what_it_should(
        a in proptest::collection::vec(1u32..249, 0..40),
        b in proptest::collection::vec(1u32..249, 0..40),
    ) {
        let of = |events: &[u32]| {
            let mut register = 0;
            events.iter().for_each(|e| Registers::add(&mut register, *e, 1));
            register
        };
        prop_assert_eq!(of(&a), twin(&a.iter().copied().collect()));
        let mut both = of(&a);
        Registers::unite(&mut both, of(&b));
        prop_assert_eq!(both, twin(&a.iter().chain(&b).copied().collect()));
    }
}

#[test]
fn the_error_is_as_stated_at_every_number_of_keys() {
    for (registers, trials) in [(16, 400u64), (256, 200)] {
        for n in [1u32, 2, 5, 20, 100, 1000, 20_000] {
            let (mut square, mut bias, mut held) = (0.0, 0.0, 0u64);
            for seed in 0..trials {
                let mut sketch = ExaLogLog::<4>::new(registers, seed).unwrap();
                (0..n).for_each(|i| sketch.update(&i.to_le_bytes(), 1));
                let got = sketch.cardinality().unwrap();
                let error = got.estimate / f64::from(n) - 1.0;
                (square, bias) = (square + error * error, bias + error);
                held += u64::from((got.lower..=got.upper).contains(&f64::from(n)));
            }
            let (rms, bias) = ((square / trials as f64).sqrt(), bias / trials as f64);
            let stated = ERROR / (registers as f64).sqrt();
            assert!(rms < 1.2 * stated, "{registers} registers, {n} keys: {rms} instead of {stated}");
            assert!(bias.abs() < 0.25 * stated, "{registers} registers, {n} keys: a bias of {bias}");
            assert!(held * 100 >= trials * 92, "{registers} registers, {n} keys: {held} of {trials} held");
        }
    }
}

#[test]
fn nothing_and_the_most() {
    let mut sketch = ExaLogLog::<4>::new(4, 1).unwrap();
    assert_eq!(sketch.cardinality().unwrap(), Bounds::exact(0.0));
    sketch.update(&[1; 4], 7);
    assert!((sketch.cardinality().unwrap().estimate - 1.0).abs() < 0.1);
    // A register whose bits no traffic would set is no reason to fail.
    for register in [u32::MAX, 0xff00_0000, 0x01ff_ffff] {
        let bounds = Registers::cardinality(&[register; 3]).unwrap();
        assert!(bounds.lower <= bounds.estimate && bounds.estimate <= bounds.upper, "{bounds:?}");
    }
    assert!(Registers::is_saturated(&[u32::MAX]) && !Registers::is_saturated(&[0, u32::MAX]));
}

/// The contents of registers as an array of 32-bit words, and as bytes.
fn coded(shape: Shape, registers: &[Register]) -> Vec<u8> {
    let mut out = Encoder::default();
    coding::write(shape, registers.iter().copied(), &mut out);
    out.into_bytes()
}

fn decoded(shape: Shape, n: usize, bytes: &[u8]) -> Result<Vec<Register>, StateError> {
    let mut all = Vec::new();
    coding::read(shape, n, &mut Decoder::of(bytes), |r| all.push(r))?;
    Ok(all)
}

fn shapes() -> impl Strategy<Value = Shape> {
    prop_oneof![Just(SHAPE), (1u32..=16).prop_map(|below| Shape { t: 1, below })]
}

/// The registers after some events each.
fn filled(shape: Shape, events: &[Vec<u32>]) -> Vec<Register> {
    let of = |events: &Vec<u32>| events.iter().fold((0, 0), |r, e| shape.add(r, *e).unwrap_or(r));
    events.iter().map(of).collect()
}

proptest! {
    /// Whatever registers keep, also what no traffic would leave in them.
    #[test]
    fn what_is_coded_is_decoded(
        shape in shapes(), most in 1u32..=126,
        events in prop::collection::vec(prop::collection::vec(1u32..=126, 0..30), 1..300),
    ) {
        let events: Vec<_> = events.into_iter().map(|of| of.into_iter().map(|e| e.min(most)).collect()).collect();
        let registers = filled(shape, &events);
        let bytes = coded(shape, &registers);
        prop_assert_eq!(decoded(shape, registers.len(), &bytes), Ok(registers.clone()));
        prop_assert!(bytes.len() <= 4 * registers.len() + 3);
        let mut longer = bytes.clone();
        longer.extend([1; 4096]);
        prop_assert!(bytes[0] == 0 || decoded(shape, registers.len(), &longer).is_err());
    }

    /// Any bytes: an error, or registers that are written and read again.
    #[test]
    fn any_bytes_are_read_or_refused(shape in shapes(), n in 1usize..200, bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(registers) = decoded(shape, n, &bytes) {
            prop_assert_eq!(decoded(shape, n, &coded(shape, &registers)), Ok(registers));
        }
    }

    /// The packed registers beside sets of events, of which nothing is forgotten while those of more than 8
    /// that there are fit behind a byte for each register; whose chance of being changed is counted event by
    /// event.
    #[test]
    fn packed_registers_are_as_plain_ones(
        n in 1usize..40, kept in 1u32..=16, seed in 0u64..1000, keys in prop::collection::vec(any::<u16>(), 0..600),
        high in prop::collection::vec((0usize..40, 1u32..=126), 0..8),
    ) {
        let mut sketch = ExaLogLogHip::<4>::new(n, kept, seed).unwrap();
        let hasher = Hasher::new(seed, 0x68_69_70);
        let mut plain = Plain::new(n, kept);
        for (i, event) in high {
            // As keys that are rare would have it.
            sketch.record.meet(i % n, event);
            plain.meet(i % n, event);
        }
        for key in keys {
            let key = u32::from(key).to_le_bytes();
            let [a, b] = hasher.hash(&key).0;
            plain.meet(below(a as u32, n), plain.shape.event(b));
            sketch.update(&key, 1);
        }
        prop_assert_eq!(sketch.record.kept(), plain.kept());
        prop_assert_eq!(sketch.record.events().is_some(), !plain.forgets);
        if let Some(all) = sketch.record.events() {
            let bits = |events: &BTreeSet<u32>| events.iter().map(|e| 1u128 << (e - 1)).sum::<u128>();
            prop_assert_eq!(all, plain.events.iter().map(bits).collect::<Vec<_>>());
        }
        let got = sketch.cardinality().unwrap().estimate;
        prop_assert!((got - plain.seen).abs() <= 1e-6 * plain.seen, "{} instead of {}", got, plain.seen);
        let bytes = crate::save(&sketch);
        let again = crate::load::<4>(&bytes).unwrap();
        prop_assert_eq!(crate::save(again.as_ref()), bytes);
        prop_assert_eq!(again.cardinality(), sketch.cardinality());
    }

    /// What a merged state keeps is what one of all keys would, whatever either had forgotten: so it doesn't
    /// matter in which order states are merged.
    #[test]
    fn merged_registers_are_those_of_all_keys(
        n in 1usize..300, kept in 1u32..=16, seed in 0u64..1000, first in 0u32..700, second in 0u32..700, shared in 0u32..200,
    ) {
        let filled = |keys: std::ops::Range<u32>| {
            let mut sketch = ExaLogLogHip::<4>::new(n, kept, seed).unwrap();
            keys.for_each(|k| sketch.update(&k.to_le_bytes(), 1));
            sketch
        };
        let (a, b) = (filled(0..first), filled(first.saturating_sub(shared)..first + second));
        let all = filled(0..first + second);
        for (a, b) in [(&a, &b), (&b, &a)] {
            let mut merged = a.clone();
            merged.merge(b).unwrap();
            prop_assert_eq!(merged.record.events(), all.record.events());
            prop_assert_eq!(merged.record.kept(), all.record.kept());
            merged.record.seen = None;
            let again = crate::load::<4>(&crate::save(&merged)).unwrap();
            prop_assert_eq!(again.cardinality(), merged.cardinality());
        }
    }

    #[test]
    fn registers_keep_of_their_events_what_they_would_have_kept(
        kept in 1u32..=24, events in prop::collection::btree_set(1u32..=126, 0..40),
    ) {
        let shape = Shape { t: 1, below: kept };
        let one_by_one = events.iter().rev().fold((0, 0), |r, e| shape.add(r, *e).unwrap_or(r));
        prop_assert_eq!(sparse::kept(shape, events.iter().map(|e| sparse::event_bit(*e)).sum()), one_by_one);
    }
}

/// Registers as sets of events.
struct Plain {
    shape: Shape,
    events: Vec<BTreeSet<u32>>,
    /// Events above 8 that there is room for.
    room: usize,
    forgets: bool,
    seen: f64,
}

impl Plain {
    fn new(n: usize, kept: u32) -> Self {
        let bytes = (n * (kept as usize + 5)).div_ceil(8) + 3;
        let slots = bytes.saturating_sub(n) / 3;
        Self {
            shape: Shape { t: 1, below: kept },
            events: vec![BTreeSet::new(); n],
            room: slots - slots.div_ceil(8),
            forgets: bytes < n,
            seen: 0.0,
        }
    }

    fn kept(&self) -> Vec<Register> {
        let of =
            |events: &BTreeSet<u32>| events.iter().fold((0, 0), |r, e| self.shape.add(r, *e).unwrap_or(r));
        self.events.iter().map(of).collect()
    }

    fn changes(&self, events: &BTreeSet<u32>, event: u32) -> bool {
        let highest = events.last().copied().unwrap_or(0);
        let forgotten = self.forgets && event < highest && highest - event > self.shape.below;
        !forgotten && !events.contains(&event)
    }

    fn chance(&self) -> f64 {
        let each = |e: u32| (-f64::from(self.shape.group(e).min(61) + 2)).exp2();
        let of =
            |events| (1..=self.shape.events()).filter(|e| self.changes(events, *e)).map(each).sum::<f64>();
        self.events.iter().map(of).sum::<f64>() / self.events.len() as f64
    }

    fn meet(&mut self, i: usize, event: u32) {
        if !self.changes(&self.events[i], event) {
            return;
        }
        self.seen += 1.0 / self.chance();
        self.events[i].insert(event);
        self.forgets |= self.events.iter().flatten().filter(|e| **e > 8).count() > self.room;
    }
}

/// Root mean square and mean of the relative error, and the share of trials whose bounds held.
fn tried(trials: u64, n: u32, make: impl Fn(u64, u32) -> Bounds<f64>) -> (f64, f64, f64) {
    let (mut square, mut bias, mut held) = (0.0, 0.0, 0u64);
    for seed in 0..trials {
        let got = make(seed, n);
        let error = got.estimate / f64::from(n) - 1.0;
        (square, bias) = (square + error * error, bias + error);
        held += u64::from((got.lower..=got.upper).contains(&f64::from(n)));
    }
    let trials = trials as f64;
    ((square / trials).sqrt(), bias / trials, held as f64 / trials)
}

#[test]
fn the_martingale_errs_as_stated_and_merged_states_as_the_registers_tell() {
    let filled = |registers, kept, seed, keys: std::ops::Range<u32>| {
        let mut sketch = ExaLogLogHip::<4>::new(registers, kept, seed).unwrap();
        keys.for_each(|i| sketch.update(&i.to_le_bytes(), 1));
        sketch
    };
    for (kept, stated, merged) in [(6, 0.2269f64, 0.3083f64), (14, 0.1767, 0.2167)] {
        for n in [1u32, 5, 50, 1000, 20_000] {
            let m = 256;
            let stated = (stated / m as f64).sqrt();
            let (rms, bias, held) =
                tried(150, n, |seed, n| filled(m, kept, seed, 0..n).cardinality().unwrap());
            assert!(rms < 1.2 * stated && bias.abs() < 0.25 * stated, "{kept} {n}: {rms}, {stated}, {bias}");
            assert!(held > 0.92, "{kept} {n}: {held}");
            let merged = (merged / m as f64).sqrt();
            let (rms, bias, held) = tried(150, n, |seed, n| {
                let mut sketch = filled(m, kept, seed, 0..n / 3 * 2);
                sketch.merge(&filled(m, kept, seed, n / 3..n)).unwrap();
                assert_eq!(sketch.record.seen.is_none(), n >= 3);
                sketch.cardinality().unwrap()
            });
            assert!(rms < 1.2 * merged && bias.abs() < 0.25 * merged, "{kept} {n}: {rms}, {merged}, {bias}");
            assert!(held > 0.92, "{kept} {n}: {held}");
        }
    }
}

/// An empty state takes nothing from the estimate of the other.
#[test]
fn a_merge_with_nothing_is_none() {
    let mut some = ExaLogLogHip::<4>::new(100, 6, 1).unwrap();
    (0..1000u32).for_each(|i| some.update(&i.to_le_bytes(), 1));
    let before = crate::save(&some);
    let mut none = ExaLogLogHip::<4>::new(100, 6, 1).unwrap();
    some.merge(&none).unwrap();
    assert_eq!(crate::save(&some), before);
    none.merge(&some).unwrap();
    assert_eq!(crate::save(&none), before);
}

/// The code is within a few bytes of the least: the logarithm of the probability of what the registers keep,
/// for one who knows how many keys there were.
#[test]
fn the_code_is_as_short_as_can_be() {
    for (shape, keys) in
        [(SHAPE, 200_000u32), (SHAPE, 2000), (SHAPE, 100), (Shape { t: 1, below: 14 }, 200_000)]
    {
        let (m, trials) = (512, 8);
        let (mut bytes, mut least) = (0.0, 0.0);
        let rate = f64::from(keys) / m as f64;
        for seed in 0..trials {
            let hasher = Hasher::new(seed, 1);
            let mut registers = vec![(0, 0); m];
            for key in 0..keys {
                let [a, b] = hasher.hash(&key.to_le_bytes()).0;
                let register = &mut registers[below(a as u32, m)];
                *register = shape.add(*register, shape.event(b)).unwrap_or(*register);
            }
            bytes += coded(shape, &registers).len() as f64;
            for (highest, bits) in registers {
                for event in highest.saturating_sub(shape.below).max(1)..=shape.events() {
                    let missed = (-rate * shape.probability(shape.group(event))).exp();
                    let apart = highest.wrapping_sub(event);
                    let there = apart == 0 || event < highest && bits >> (shape.below - apart) & 1 == 1;
                    least -= if there { 1.0 - missed } else { missed }.log2() / 8.0;
                }
            }
        }
        let over = (bytes - least) / trials as f64;
        assert!((0.0..14.0).contains(&over), "{shape:?}, {keys} keys: {over} bytes more than {least}");
    }
}

/// Sets of which one is small or has few keys in common, too: bounds hold, and errors are less than those of
/// inclusion and exclusion.
#[test]
fn shared_keys_are_told_from_others() {
    type Make = fn(u64) -> Box<dyn Sketch<4>>;
    let makes: [Make; 2] = [
        |seed| Box::new(ExaLogLog::<4>::new(256, seed).unwrap()),
        |seed| Box::new(ExaLogLogHip::<4>::new(400, 6, seed).unwrap()),
    ];
    for make in makes {
        for (a, b, x) in
            [(4000u32, 4000, 4000), (20_000, 500, 300), (10_000, 1000, 0), (0, 3000, 2000), (3, 5, 2)]
        {
            let (mut square, mut by_difference, mut held, trials) = (0.0, 0.0, [0; 3], 60);
            for seed in 0..trials {
                let (mut first, mut second) = (make(seed), make(seed));
                (0..a + x).for_each(|k| first.update(&k.to_le_bytes(), 1));
                (a..a + x + b).for_each(|k| second.update(&k.to_le_bytes(), 1));
                let sizes = first.set_sizes(second.as_ref()).unwrap();
                let parts = [(sizes.only_first, a), (sizes.only_second, b), (sizes.intersection, x)];
                for (held, (got, truth)) in held.iter_mut().zip(parts) {
                    *held += u32::from((got.lower..=got.upper).contains(&f64::from(truth)));
                }
                square += (sizes.intersection.estimate - f64::from(x)).powi(2);
                let mut all = first.boxed_clone();
                all.merge(second.as_ref()).unwrap();
                let keys = [&first, &second, &all].map(|s| s.cardinality().unwrap());
                let difference = keys[0].estimate + keys[1].estimate - keys[2].estimate;
                by_difference += (difference - f64::from(x)).powi(2);
            }
            assert!(square <= 1.05 * by_difference + 0.5, "{a} {b} {x}: {square} and {by_difference}");
            assert!(held.iter().all(|h| *h as u64 * 100 >= trials * 91), "{a} {b} {x}: {held:?} of {trials}");
        }
    }
}

/// Of an exact table the sizes are exact; of others by inclusion and exclusion.
#[test]
fn every_sketch_that_counts_keys_tells_what_is_shared() {
    for kind in crate::Kind::ALL {
        let make = || {
            let config = crate::Config { kind, seed: 3, source_len: 4, ..crate::Config::default() };
            crate::build::<8>(&config).unwrap()
        };
        let (mut a, mut b) = (make(), make());
        (0..600u64).for_each(|k| a.update(&k.to_le_bytes(), 1));
        (400..900u64).for_each(|k| b.update(&k.to_le_bytes(), 1));
        let Ok(sizes) = a.set_sizes(b.as_ref()) else {
            assert!(a.cardinality().is_err(), "{kind}");
            continue;
        };
        for (got, truth) in [
            (sizes.union, 900.0),
            (sizes.intersection, 200.0),
            (sizes.only_first, 400.0),
            (sizes.only_second, 300.0),
        ] {
            assert!((got.lower..=got.upper).contains(&truth), "{kind}: {sizes:?}");
            assert!((got.estimate - truth).abs() < 60.0, "{kind}: {sizes:?}");
        }
        assert!(kind != crate::Kind::Exact || sizes.intersection == Bounds::exact(200.0));
        let other =
            crate::build::<8>(&crate::Config { kind, seed: 4, source_len: 4, ..crate::Config::default() });
        assert!(a.set_sizes(other.unwrap().as_ref()).is_err(), "{kind}");
    }
}
