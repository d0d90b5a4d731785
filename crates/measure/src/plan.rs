//! The sketches of a task: defaults of tasks, what goes together, and how memory is shared.

use slipstream_sketch::{AggregatorConfig, Config, CountMin, Eviction, Kind, Size, by_key_length};

use super::{Ask, KeyKind, Keying, MAX_KEY, SketchConfig, Task, is_ipv6};

/// Share of the memory that IPv4 gets, of four.
const IPV4_QUARTERS: usize = 3;
/// Keys that are kept at most, and at least, for an accuracy.
const KEPT: (usize, usize) = (64, 65_536);

/// Parameters of a measurement, besides the question.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// The sketch.
    pub kind: Kind,
    /// Its size; memory is for IPv4 and IPv6 together.
    pub size: Size,
    /// Which entry leaves the aggregator, where there is one.
    pub aggregate: Option<Eviction>,
    /// Seed of all hash functions.
    pub seed: u64,
    /// Fills an exact table beside the sketch.
    pub compare: bool,
    /// Saves the states.
    pub save: bool,
    /// Takes the time of updates.
    pub timed: bool,
}

/// Chooses the keys of a task; without a kind of key, by source, of victims by destination.
///
/// # Errors
/// There is no such kind of key, or it doesn't go with the task.
pub fn keying(key: Option<&str>, task: Task, kind: Kind) -> Result<Keying, String> {
    let victims = task == Task::DdosVictims;
    let key: KeyKind = key.unwrap_or(if victims { "dst" } else { "src" }).parse()?;
    // A two-level sketch holds pairs whatever it is asked.
    if task.counts_pairs() || kind == Kind::TwoLevel {
        return Keying::pairs(key, victims);
    }
    Ok(Keying::plain(key))
}

/// The least memory whose shares are so many bytes for the sketch of IPv4 and of IPv6.
pub(super) fn memory_of([four, six]: [usize; 2]) -> usize {
    four.div_ceil(IPV4_QUARTERS).max(six).saturating_mul(4)
}

/// The number of keys that a sketch of so many bytes has room for beside its counters.
fn keys_within(key_len: usize, bytes: usize) -> usize {
    fn of<const N: usize>(bytes: usize) -> usize {
        CountMin::<N>::keys_within(bytes)
    }
    by_key_length!(key_len, of(bytes), _ => of::<MAX_KEY>(bytes))
}

impl Plan {
    /// The sketches of IPv4 and IPv6 for a question.
    #[must_use]
    pub fn configs(&self, ask: &Ask) -> [SketchConfig; 2] {
        let [four, six] = ask.keying.lens();
        [self.config(ask, four), self.config(ask, six)]
    }

    /// The sketch of keys of so many bytes.
    fn config(&self, ask: &Ask, key_len: usize) -> SketchConfig {
        let ipv6 = is_ipv6(key_len);
        let size = match self.size {
            Size::Memory(all) => {
                let four = all / 4 * IPV4_QUARTERS;
                Size::Memory(if ipv6 { all - four } else { four })
            }
            accuracy => accuracy,
        };
        let lists = ask.task.lists_flows() && ask.flows.is_empty();
        // As the size allows, not as many as are to be listed: states fit together whatever is asked of them.
        let keep = match size {
            _ if !lists => 0,
            Size::Memory(bytes) => keys_within(key_len, bytes).max(1),
            // As many as may be heavier than the error.
            Size::Accuracy { error, .. } => ((1.0 / error) as usize).clamp(KEPT.0, KEPT.1),
        };
        let source_len = ask.keying.source_len(ipv6);
        let aggregator =
            |eviction| AggregatorConfig { eviction, seed: self.seed, ..AggregatorConfig::default() };
        SketchConfig {
            sketch: Config { kind: self.kind, size, seed: self.seed, keep, source_len },
            aggregator: self.aggregate.filter(|_| !self.kind.takes_values()).map(aggregator),
            compare: self.compare,
            changes: ask.task == Task::HeavyChanges,
            save: self.save,
            timed: self.timed,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use slipstream_sketch::Want;

    use super::*;
    use crate::{MeasureError, SketchSet};

    /// None where the key doesn't go with the task.
    fn set(kind: Kind, task: Task, key: &str, memory: usize) -> Option<Result<SketchSet, MeasureError>> {
        let keying = keying(Some(key), task, kind).ok()?;
        let ask = Ask { task, keying, want: Want { threshold: 1, top: 5 }, flows: Vec::new() };
        let size = Size::Memory(memory);
        let plan = Plan { kind, size, aggregate: None, seed: 1, compare: false, save: false, timed: false };
        Some(SketchSet::new(Arc::new(ask.clone()), plan.configs(&ask)))
    }

    /// Before any packet, a task is refused of every sketch that the book's table of tasks doesn't list, and
    /// of no other.
    #[test]
    fn sketches_answer_what_the_book_says_and_nothing_else() {
        let book = include_str!("../../../book/src/measure.md");
        for task in Task::ALL {
            let start = format!("| `{task}` |");
            let row = book.lines().find(|line| line.starts_with(&start)).unwrap();
            let listed = row.trim_end_matches([' ', '|']).rsplit('|').next().unwrap();
            let listed: Vec<_> = listed.split(',').filter_map(|s| s.split_whitespace().next()).collect();
            assert_eq!(listed.first(), Some(&task.sketch().name()), "{task}: the default is the first");
            let key = if task == Task::DdosVictims { "dst" } else { "src" };
            for kind in Kind::ALL {
                let made = set(kind, task, key, 1 << 20).unwrap();
                match made {
                    Ok(_) => assert!(listed.contains(&kind.name()), "{kind} answers {task}"),
                    Err(MeasureError::Query(_)) => {
                        assert!(!listed.contains(&kind.name()), "{kind} doesn't answer {task}");
                    }
                    Err(other) => panic!("{kind} {task}: {other}"),
                }
            }
        }
    }

    /// What is told as the least that a budget must be is that, to a word.
    #[test]
    fn the_least_memory_is_enough_and_less_is_not() {
        let mut tried = 0;
        for (kind, task) in Kind::ALL.into_iter().flat_map(|kind| Task::ALL.map(|task| (kind, task))) {
            for key in ["src", "dst", "src-dst", "5tuple"] {
                let made = |memory| set(kind, task, key, memory);
                let Some(Ok(_)) = made(1 << 20) else { continue };
                let Some(Err(MeasureError::TooSmall { least, budget: 1, .. })) = made(1) else { continue };
                tried += 1;
                if let Some(Err(error)) = made(least) {
                    panic!("{kind} {task} {key}: {least} bytes: {error}");
                }
                let less = made(least - 4);
                let same =
                    matches!(less, Some(Err(MeasureError::TooSmall { least: told, .. })) if told == least);
                assert!(same, "{kind} {task} {key}: {} bytes: {less:?}", least - 4);
            }
        }
        assert!(tried > 50, "{tried}");
    }
}
