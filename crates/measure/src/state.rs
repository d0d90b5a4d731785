//! Saved sketches over keys of one length: added up, compared, and asked.
//!
//! The length is known only when a state is read, while sketches are compiled for each length: whoever reads
//! states need not know that.

use std::collections::VecDeque;
use std::ops::Range;

use slipstream_sketch::{Confidence, MergeError, Question, SetSizes, Sketch, by_key_length, load, save};

use super::MeasureError;
use super::answer::{Answer, Ask, Promise, Side};

/// What a state answers.
#[derive(Debug)]
pub struct StateAnswer {
    /// The answer.
    pub answer: Answer,
    /// Statements about it as a whole.
    pub promise: Promise,
    /// All weight.
    pub weight: u64,
    /// Says that the sketch was so full that answers are worse than stated.
    pub saturated: bool,
    /// Memory of the sketch, in bytes.
    pub memory_bytes: usize,
}

/// Two states of sketches over keys of `len` bytes as one.
///
/// # Errors
/// One is no state of such a sketch, or the two don't fit together.
pub fn merge_states(len: usize, one: &[u8], other: &[u8]) -> Result<Vec<u8>, MeasureError> {
    fn of<const N: usize>(one: &[u8], other: &[u8]) -> Result<Vec<u8>, MeasureError> {
        let mut whole: Box<dyn Sketch<N>> = load(one)?;
        whole.merge(load::<N>(other)?.as_ref())?;
        Ok(save(whole.as_ref()))
    }
    by_key_length!(len, of(one, other), other => Err(MeasureError::KeyLength(other)))
}

/// The sums of stretches of a list of states, each what [`merge_states`] makes of its states one after
/// another, or why these can't be added up: [`MergeError::Undecodable`], of which the other stretches know
/// nothing. An empty state is that of a sketch that there isn't; so is the sum of nothing else.
///
/// Each state is read once as long as no stretch begins before the one ahead of it does, and no more of them
/// are in memory than the longest stretch has. Where it makes no difference in which order states are
/// merged ([`Sketch::merges_exactly`]), and no stretch ends before the one ahead of it either, there are
/// two merges at most for each state and one for each stretch, however long stretches are.
///
/// # Errors
/// One is no state of a sketch over keys of `len` bytes, or they don't fit together.
pub fn sum_states(
    len: usize,
    states: &[&[u8]],
    stretches: &[Range<usize>],
) -> Result<Vec<Result<Vec<u8>, MergeError>>, MeasureError> {
    fn of<const N: usize>(
        states: &[&[u8]],
        stretches: &[Range<usize>],
    ) -> Result<Vec<Result<Vec<u8>, MergeError>>, MeasureError> {
        let first = states.iter().find(|state| !state.is_empty());
        let exactly = first.map(|state| load::<N>(state)).transpose()?.is_some_and(|s| s.merges_exactly());
        let slides = stretches.windows(2).all(|w| match w {
            [a, b] => a.start <= b.start && a.end <= b.end,
            _ => true,
        });
        if exactly && slides {
            Sums::<N>::default().sliding(states, stretches)
        } else {
            plainly::<N>(states, stretches)
        }
    }
    by_key_length!(len, of(states, stretches), other => Err(MeasureError::KeyLength(other)))
}

/// Each stretch by itself.
fn plainly<const N: usize>(
    states: &[&[u8]],
    stretches: &[Range<usize>],
) -> Result<Vec<Result<Vec<u8>, MergeError>>, MeasureError> {
    let mut loaded: VecDeque<Summed<N>> = VecDeque::new();
    let mut first = 0;
    let mut sums = Vec::with_capacity(stretches.len());
    for stretch in stretches {
        if stretch.start < first || stretch.start > first + loaded.len() {
            loaded.clear();
            first = stretch.start;
        }
        while first < stretch.start {
            loaded.pop_front();
            first += 1;
        }
        for state in states.get(first + loaded.len()..stretch.end).unwrap_or_default() {
            loaded.push_back(if state.is_empty() { None } else { Some(load(state)?) });
        }
        let mut within = loaded.iter().take(stretch.len()).flatten();
        let mut sum = within.next().map(|sketch| sketch.boxed_clone());
        let merged = match &mut sum {
            Some(sum) => within.try_for_each(|sketch| sum.merge(sketch.as_ref())),
            None => Ok(()),
        };
        sums.push(match merged {
            Ok(()) => Ok(saved(sum.as_deref())),
            Err(error @ MergeError::Undecodable(_)) => Err(error),
            Err(error) => return Err(error.into()),
        });
    }
    Ok(sums)
}

/// The sum of some states; none where there was no sketch among them.
type Summed<const N: usize> = Option<Box<dyn Sketch<N>>>;

fn saved<const N: usize>(sum: Option<&dyn Sketch<N>>) -> Vec<u8> {
    sum.map(save).unwrap_or_default()
}

/// A queue of states of which the sum is known: two stacks, of which the one has the sums of each of its
/// states and all that came after it there, the other the states themselves and their sum.
#[derive(Default)]
struct Sums<const N: usize> {
    /// The last is that of the oldest state.
    old: Vec<Summed<N>>,
    new: Vec<Summed<N>>,
    new_sum: Summed<N>,
    /// Merges so far.
    merges: usize,
}

impl<const N: usize> Sums<N> {
    fn sliding(
        &mut self,
        states: &[&[u8]],
        stretches: &[Range<usize>],
    ) -> Result<Vec<Result<Vec<u8>, MergeError>>, MeasureError> {
        let mut held = 0..0;
        let mut sums = Vec::with_capacity(stretches.len());
        for stretch in stretches {
            let end = stretch.end.min(states.len()).max(stretch.start);
            while held.start < stretch.start.min(held.end) {
                self.pop()?;
                held.start += 1;
            }
            if held.is_empty() {
                held = stretch.start..stretch.start;
            }
            for state in states.get(held.end..end).unwrap_or_default() {
                self.push(if state.is_empty() { None } else { Some(load(state)?) })?;
            }
            held.end = held.end.max(end);
            let mut sum = self.old.last().and_then(cloned);
            self.add(&mut sum, &cloned(&self.new_sum))?;
            sums.push(Ok(saved(sum.as_deref())));
        }
        Ok(sums)
    }

    fn push(&mut self, state: Summed<N>) -> Result<(), MeasureError> {
        let mut sum = self.new_sum.take();
        self.add(&mut sum, &state)?;
        self.new_sum = sum;
        self.new.push(state);
        Ok(())
    }

    /// Takes the oldest one out.
    fn pop(&mut self) -> Result<(), MeasureError> {
        if self.old.is_empty() {
            self.new_sum = None;
            while let Some(mut state) = self.new.pop() {
                self.add(&mut state, &self.old.last().and_then(cloned))?;
                self.old.push(state);
            }
        }
        self.old.pop();
        Ok(())
    }

    fn add(&mut self, to: &mut Summed<N>, more: &Summed<N>) -> Result<(), MeasureError> {
        match (to, more) {
            (Some(to), Some(more)) => {
                self.merges += 1;
                to.merge(more.as_ref())?;
            }
            (to, Some(more)) => *to = Some(more.boxed_clone()),
            (_, None) => {}
        }
        Ok(())
    }
}

fn cloned<const N: usize>(sum: &Summed<N>) -> Summed<N> {
    sum.as_ref().map(|sketch| sketch.boxed_clone())
}

/// A state of the same kind, seed and shape into which nothing was put.
///
/// # Errors
/// It is no state of a sketch over keys of `len` bytes.
pub fn empty_state(len: usize, state: &[u8]) -> Result<Vec<u8>, MeasureError> {
    fn of<const N: usize>(state: &[u8]) -> Result<Vec<u8>, MeasureError> {
        let mut sketch: Box<dyn Sketch<N>> = load(state)?;
        sketch.clear();
        Ok(save(sketch.as_ref()))
    }
    by_key_length!(len, of(state), other => Err(MeasureError::KeyLength(other)))
}

/// How many keys are in either of two states, in both, and in one alone, and how sure that is.
///
/// # Errors
/// One is no state of a sketch over keys of `len` bytes, or the sketches can't tell.
pub fn compare_states(len: usize, one: &[u8], other: &[u8]) -> Result<(SetSizes, Confidence), MeasureError> {
    fn of<const N: usize>(one: &[u8], other: &[u8]) -> Result<(SetSizes, Confidence), MeasureError> {
        let (one, other): (Box<dyn Sketch<N>>, Box<dyn Sketch<N>>) = (load(one)?, load(other)?);
        Ok((one.set_sizes(other.as_ref())?, one.confidence(Question::Cardinality)))
    }
    by_key_length!(len, of(one, other), other => Err(MeasureError::KeyLength(other)))
}

/// Asks a state. `before` is that of the epoch before, if there was one: it is empty if none of its packets
/// had such keys.
///
/// # Errors
/// A state is none of a sketch over keys of `len` bytes, or the sketch can't tell.
pub fn ask_state(
    len: usize,
    now: &[u8],
    before: Option<&[u8]>,
    ask: &Ask,
) -> Result<StateAnswer, MeasureError> {
    fn of<const N: usize>(now: &[u8], before: Option<&[u8]>, ask: &Ask) -> Result<StateAnswer, MeasureError> {
        let now: Box<dyn Sketch<N>> = load(now)?;
        let before = before.map(|state| match state.is_empty() {
            true => {
                let mut nothing = now.boxed_clone();
                nothing.clear();
                Ok(nothing)
            }
            false => load(state),
        });
        let before = before.transpose()?;
        let side = Side { now: now.as_ref(), truth: None, before: before.as_deref(), truth_before: None };
        Ok(StateAnswer {
            answer: side.answer(ask)?,
            promise: side.promise(ask.task)?,
            weight: now.weight(),
            saturated: now.is_saturated() || side.before.is_some_and(Sketch::is_saturated),
            memory_bytes: now.memory_bytes(),
        })
    }
    by_key_length!(len, of(now, before, ask), other => Err(MeasureError::KeyLength(other)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use slipstream_sketch::{Confidence, Config, Kind, Size, Want, build};

    use super::*;
    use crate::{Keying, Task};

    fn state<const N: usize>(kind: Kind, keys: impl Iterator<Item = u8>) -> Vec<u8> {
        let config = Config { kind, size: Size::Memory(1 << 16), ..Config::default() };
        let mut sketch = build::<N>(&config).unwrap();
        keys.for_each(|n| sketch.update(&[n; N], u64::from(n)));
        save(sketch.as_ref())
    }

    fn asked(len: usize, key: &str, state: &[u8], before: Option<&[u8]>, task: Task) -> StateAnswer {
        let want = Want { threshold: 1, top: 5 };
        let ask = Ask { task, keying: Keying::plain(key.parse().unwrap()), want, flows: Vec::new() };
        ask_state(len, state, before, &ask).unwrap()
    }

    fn of_length<const N: usize>(key: &str) {
        for kind in [Kind::Exact, Kind::FlowRadar] {
            let (one, other) = (state::<N>(kind, 1..20), state::<N>(kind, 15..30));
            let both = merge_states(N, &one, &other).unwrap();
            let got = asked(N, key, &both, None, Task::HeavyHitters);
            assert_eq!(got.weight, (1..20).chain(15..30).sum::<u64>());
            let Answer::Keys { rows, .. } = &got.answer else { panic!("{got:?}") };
            // 15 to 19 were put into both.
            let sizes: Vec<u64> = rows.iter().map(|row| row.size.estimate).collect();
            assert_eq!(sizes, [38, 36, 34, 32, 30], "{kind} {N}");
            let (sets, _) = compare_states(N, &one, &other).unwrap();
            assert_eq!((sets.union.estimate, sets.intersection.estimate), (29.0, 5.0), "{kind} {N}");

            let nothing = empty_state(N, &both).unwrap();
            assert_eq!(merge_states(N, &nothing, &one).unwrap(), one, "{kind} {N}");
            // An epoch before without such keys is an empty one.
            let changes = |before: &[u8]| asked(N, key, &one, Some(before), Task::HeavyChanges).answer;
            let Answer::Keys { rows, .. } = changes(&[]) else { panic!("changes are of keys") };
            assert_eq!(rows.first().map(|row| row.size.estimate), Some(19), "{kind} {N}");
            assert_eq!(changes(&nothing), changes(&[]), "{kind} {N}");
        }
    }

    #[test]
    fn states_of_every_length_of_key() {
        of_length::<4>("src");
        of_length::<16>("src");
        of_length::<8>("src-dst");
        of_length::<32>("src-dst");
        of_length::<13>("5tuple");
        of_length::<37>("5tuple");
    }

    /// Keys of equal size and of equal change come in one order, that of their text, as where the answers for
    /// both IP versions are joined.
    #[test]
    fn ties_are_in_the_order_of_what_is_printed() {
        for kind in [Kind::Exact, Kind::FlowRadar, Kind::RevSketch, Kind::UnivMon] {
            let config = Config { kind, size: Size::Memory(1 << 20), ..Config::default() };
            let mut sketch = build::<4>(&config).unwrap();
            [9u8, 10, 100].into_iter().for_each(|n| sketch.update(&[n; 4], 50));
            let state = save(sketch.as_ref());
            for (before, task) in [(None, Task::HeavyHitters), (Some(&[][..]), Task::HeavyChanges)] {
                let Answer::Keys { rows, .. } = asked(4, "src", &state, before, task).answer else {
                    panic!("{task:?} lists keys")
                };
                let listed: Vec<&str> = rows.iter().map(|row| row.key.as_str()).collect();
                assert_eq!(listed, ["10.10.10.10", "100.100.100.100", "9.9.9.9"], "{kind} {task:?}");
            }
        }
    }

    /// States that were merged until no counter can hold what they sum up say so, and promise no bounds.
    #[test]
    fn sums_beyond_64_bits_promise_nothing() {
        let kinds =
            [Kind::CountMin, Kind::SpaceSaving, Kind::FlowRadar, Kind::RevSketch, Kind::UnivMon, Kind::Exact];
        for kind in kinds {
            let config = Config { kind, size: Size::Memory(1 << 18), keep: 20, ..Config::default() };
            let mut sketch = build::<4>(&config).unwrap();
            [1u8, 2].into_iter().for_each(|n| sketch.update(&[n; 4], u64::from(u32::MAX)));
            let mut state = save(sketch.as_ref());
            for doubled in 0..40 {
                let got = asked(4, "src", &state, None, Task::HeavyHitters);
                let truth = u128::from(u32::MAX) << doubled;
                let Answer::Keys { rows, .. } = &got.answer else { panic!("{got:?}") };
                let holds = rows.len() == 2
                    && rows.iter().all(|r| (r.size.lower.into()..=r.size.upper.into()).contains(&truth));
                let promises = got.promise.confidence != Confidence::None;
                assert!(holds || got.saturated && !promises, "{kind}, doubled {doubled} times: {got:?}");
                let full = truth * 2 > u64::MAX.into();
                assert!(!full || got.saturated && !promises, "{kind}, doubled {doubled} times: {got:?}");
                state = merge_states(4, &state, &state).unwrap();
            }
        }
    }

    /// Sums of stretches are what one merge after another gives, to the bit, of every kind of sketch.
    #[test]
    fn sums_of_stretches_are_those_of_merges() {
        for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::TwoLevel) {
            let state = |keys: Range<u8>| {
                // Few counters, so that not every key has one, where that keeps none from being merged.
                let memory = match kind {
                    Kind::RevSketch => 1 << 18,
                    Kind::FlowRadar => 1 << 16,
                    _ => 1 << 11,
                };
                let config = Config { kind, size: Size::Memory(memory), ..Config::default() };
                let mut sketch = build::<4>(&config).unwrap();
                keys.for_each(|n| (0..9).for_each(|m| sketch.update(&[n, m, n, 7], u64::from(n % 5) + 1)));
                save(sketch.as_ref())
            };
            let states = [state(0..30), state(20..50), Vec::new(), state(3..9), state(100..180), state(0..4)];
            let states: Vec<&[u8]> = states.iter().map(Vec::as_slice).collect();
            let stretches = [0..1, 0..3, 1..4, 2..3, 2..6, 5..6, 1..2, 0..6, 6..6];
            let sums = sum_states(4, &states, &stretches).unwrap();
            assert_eq!(sums.len(), stretches.len());
            for (sum, stretch) in sums.iter().zip(stretches) {
                let within = states[stretch.clone()].iter().filter(|s| !s.is_empty()).map(|s| s.to_vec());
                let one_by_one = within.reduce(|a, b| merge_states(4, &a, &b).unwrap()).unwrap_or_default();
                assert_eq!(sum, &Ok(one_by_one), "{kind} {stretch:?}");
            }
        }
        let (four, stretches) = (state::<4>(Kind::Exact, 1..3), [0..1, 0..0]);
        assert!(matches!(sum_states(5, &[&four], &stretches), Err(MeasureError::KeyLength(5))));
        assert!(matches!(sum_states(4, &[&four[..9]], &stretches), Err(MeasureError::State(_))));
    }

    /// Windows that slide: the sums of two stacks are those of one merge after another, with as few merges as
    /// stated.
    #[test]
    fn two_stacks_are_one_merge_after_another() {
        for kind in [Kind::Exact, Kind::CountMin, Kind::DdSketch] {
            let state = |n: u8| if n % 5 == 3 { Vec::new() } else { state::<4>(kind, n..n + 1 + n % 7) };
            let states: Vec<Vec<u8>> = (1..100).map(state).collect();
            let states: Vec<&[u8]> = states.iter().map(Vec::as_slice).collect();
            for (width, step, skip) in [(1, 1, 0), (30, 1, 0), (10, 3, 0), (2, 5, 0), (98, 1, 40), (20, 0, 7)]
            {
                let stretches: Vec<_> = (0..99)
                    .map(|n| skip + n * step..skip + n * step + width)
                    .filter(|s| s.end <= 99)
                    .collect();
                let mut sums = Sums::<4>::default();
                let got = sums.sliding(&states, &stretches).unwrap();
                assert_eq!(got, plainly::<4>(&states, &stretches).unwrap(), "{kind} {width} {step}");
                assert!(sums.merges <= 2 * states.len() + stretches.len(), "{} merges", sums.merges);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]
        #[test]
        fn two_stacks_are_one_merge_after_another_wherever_stretches_lie(
            steps in prop::collection::vec((0..5usize, 0..5usize), 1..30),
            there in prop::collection::vec(any::<bool>(), 40),
        ) {
            let state = |(n, there): (usize, bool)| {
                if there { state::<4>(Kind::CountMin, n as u8..n as u8 + 3) } else { Vec::new() }
            };
            let states: Vec<Vec<u8>> = there.into_iter().enumerate().map(state).collect();
            let states: Vec<&[u8]> = states.iter().map(Vec::as_slice).collect();
            let (mut start, mut end) = (0, 0);
            let stretches: Vec<_> = steps.into_iter().map(|(a, b)| {
                start += a;
                end = (end + b).max(start);
                start.min(40)..end.min(40)
            }).collect();
            let got = Sums::<4>::default().sliding(&states, &stretches).unwrap();
            prop_assert_eq!(got, plainly::<4>(&states, &stretches).unwrap());
        }
    }

    /// Two that hold too many flows can't be added up; that is no matter of the stretches beside.
    #[test]
    fn a_stretch_that_does_not_add_up_fails_alone() {
        let state = |keys: Range<u8>, bytes| {
            let config = Config { kind: Kind::FlowRadar, size: Size::Memory(bytes), ..Config::default() };
            let mut sketch = build::<4>(&config).unwrap();
            keys.for_each(|n| sketch.update(&[n; 4], 1));
            save(sketch.as_ref())
        };
        let states = [state(0..9, 2048), state(0..250, 2048), state(1..251, 2048), state(3..9, 2048)];
        let states: Vec<&[u8]> = states.iter().map(Vec::as_slice).collect();
        let sums = sum_states(4, &states, &[0..2, 1..3, 2..4]).unwrap();
        let fails = Err(MergeError::Undecodable(Kind::FlowRadar));
        assert!(sums[0].is_ok() && sums[1] == fails && sums[2].is_ok());
        let other = state(0..9, 8192);
        assert!(sum_states(4, &[states[0], &other], &[0..1, 0..2]).is_err());
    }

    #[test]
    fn what_is_no_state_of_such_keys() {
        let four = state::<4>(Kind::Exact, 1..3);
        assert!(matches!(empty_state(5, &four), Err(MeasureError::KeyLength(5))));
        assert!(matches!(merge_states(8, &four, &four), Err(MeasureError::State(_))));
        assert!(matches!(empty_state(4, &four[..9]), Err(MeasureError::State(_))));
        let other = state::<4>(Kind::FlowRadar, 1..3);
        assert!(matches!(merge_states(4, &four, &other), Err(MeasureError::Merge(_))));
    }
}
