//! Saved states in files, and how those of several runs are added up.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::path::Path;

use anyhow::{Context, bail};
use slipstream::measure::{Description, EpochLength, Saved, SavedEpoch, Span, empty_state, merge_states};
use slipstream::text_file;
use slipstream_sketch::peek;
use tracing::warn;

use crate::replace::Replacement;
use crate::ui::unreadable;

/// Writes a file of states.
pub(super) fn write(saved: &Saved, file: Replacement) -> anyhow::Result<()> {
    file.commit_with(&saved.to_bytes())
}

/// Reads a file of states; `-` is stdin.
///
/// # Errors
/// For anything that [`write`] doesn't write.
pub(super) fn read(path: &Path) -> anyhow::Result<Saved> {
    parse(path, &bytes_of(path)?)
}

fn bytes_of(path: &Path) -> anyhow::Result<Vec<u8>> {
    text_file::marked(path, Saved::MAGIC).map_err(|error| unreadable(path, error))
}

fn parse(path: &Path, bytes: &[u8]) -> anyhow::Result<Saved> {
    Saved::parse(bytes).with_context(|| path.display().to_string())
}

/// Reads states that are to be added up, and warns of one that has come before, by whatever name: no two runs
/// that saw different packets write the same bytes.
#[derive(Default)]
pub(super) struct Parts<'a> {
    seen: HashMap<u64, &'a Path>,
}

impl<'a> Parts<'a> {
    /// As [`read`].
    pub(super) fn read(&mut self, path: &'a Path) -> anyhow::Result<Saved> {
        let bytes = bytes_of(path)?;
        let saved = parse(path, &bytes)?;
        let counts = saved.epochs.iter().any(|epoch| epoch.span.packets > 0);
        let before = self.seen.insert(BuildHasherDefault::<DefaultHasher>::default().hash_one(&bytes), path);
        if let Some(before) = before.filter(|_| counts) {
            let (a, b) = (before.display(), path.display());
            let what =
                if before == path { format!("{a} is named twice") } else { format!("{b} is a copy of {a}") };
            warn!("{what}: its packets are counted twice");
        }
        Ok(saved)
    }
}

/// Adds another run's states: epochs by time those of the same time, else the only epoch of each.
///
/// # Errors
/// If the two don't measure the same, or their epochs don't belong together.
pub(super) fn merge(saved: &mut Saved, other: Saved) -> anyhow::Result<()> {
    check(&saved.about, &other.about)?;
    let lens = saved.about.keying()?.lens();
    check_sketches(saved, &other, lens)?;
    let by_time = matches!(saved.about.epoch.parse(), Ok(EpochLength::Time(_)));
    if by_time { merge_by_time(saved, other, lens) } else { merge_whole(saved, other, lens) }
}

/// Refuses sketches that can't be merged, also of epochs that only one side has.
fn check_sketches(one: &Saved, other: &Saved, lens: [usize; 2]) -> anyhow::Result<()> {
    for (side, len) in lens.into_iter().enumerate() {
        let some = |saved: &Saved| {
            let mut states = saved.epochs.iter().filter_map(|e| e.states.get(side));
            states.find(|s| !s.is_empty()).map(|s| emptied(s, len)).transpose()
        };
        merged(some(one)?.unwrap_or_default(), some(other)?.unwrap_or_default(), len)?;
    }
    Ok(())
}

/// Epochs of one time become one; between them stand those in which nothing came, as in a run over
/// everything.
fn merge_by_time(saved: &mut Saved, other: Saved, lens: [usize; 2]) -> anyhow::Result<()> {
    let nothing = saved.epochs.first().cloned().unwrap_or_default();
    let mut all: BTreeMap<u64, SavedEpoch> = BTreeMap::new();
    for epoch in std::mem::take(&mut saved.epochs).into_iter().chain(other.epochs) {
        if epoch.span.packets > 0 {
            merge_epoch(all.entry(epoch.span.start_ns).or_default(), epoch, lens)?;
        }
    }
    for epoch in all.into_values() {
        if let Some(last) = saved.epochs.last().filter(|last| last.span.end_ns < epoch.span.start_ns) {
            let (start_ns, end_ns) = (last.span.end_ns, epoch.span.start_ns);
            let span = Span { start_ns, end_ns, ..Span::default() };
            saved.epochs.push(SavedEpoch { span, states: all_emptied(&last.states, lens)? });
        }
        saved.epochs.push(epoch);
    }
    if saved.epochs.is_empty() {
        saved.epochs.push(nothing);
    }
    Ok(())
}

/// Merges epochs by packets. They end where each run's own packets do: no two of them cover the same
/// time, but all of each run do.
fn merge_whole(saved: &mut Saved, other: Saved, lens: [usize; 2]) -> anyhow::Result<()> {
    let ([mine], Ok([theirs])) = (saved.epochs.as_mut_slice(), <[SavedEpoch; 1]>::try_from(other.epochs))
    else {
        bail!(
            "epochs of {} packets end at other times in every state, so they don't belong together; measure with \
             an --epoch by time (1s), or with one that is longer than the whole trace",
            saved.about.epoch.trim_end_matches('p')
        );
    };
    let (a, b) = (mine.span, theirs.span);
    if a.packets > 0 && b.packets > 0 && (a.last_ns < b.first_ns || b.last_ns < a.first_ns) {
        warn!(
            "the states are of different times; the sum is of everything from the earlier to the later one"
        );
    }
    merge_epoch(mine, theirs, lens)
}

/// Refuses files whose keys are others, or in another sketch.
pub(super) fn check_keys(a: &Description, b: &Description) -> anyhow::Result<()> {
    for (what, a, b) in [
        ("sketch", &a.sketch, &b.sketch),
        ("key", &a.key.to_string(), &b.key.to_string()),
        ("tunnel mode", &a.tunnel, &b.tunnel),
    ] {
        if a != b {
            bail!(
                "the states differ in {what}: {a} and {b}; only keys that were measured alike can be compared"
            );
        }
    }
    if a.pairs || b.pairs {
        bail!(
            "the states of {} have pairs of keys; measure --task cardinality to compare keys",
            if a.pairs { a.task } else { b.task }
        );
    }
    Ok(())
}

/// Refuses files that don't measure the same.
fn check(a: &Description, b: &Description) -> anyhow::Result<()> {
    for (what, a, b) in [
        ("sketch", &a.sketch, &b.sketch),
        ("key", &a.key.to_string(), &b.key.to_string()),
        ("weight", &a.weight, &b.weight),
        ("length of an epoch", &a.epoch, &b.epoch),
        ("tunnel mode", &a.tunnel, &b.tunnel),
    ] {
        if a != b {
            bail!("the states differ in {what}: {a} and {b}; only what was measured alike can be merged");
        }
    }
    if a.pairs != b.pairs || a.pairs && a.task != b.task {
        bail!("the states are of tasks that can't be merged: {} and {}", a.task, b.task);
    }
    Ok(())
}

/// Adds another run's states of the same epoch.
pub(super) fn merge_epoch(epoch: &mut SavedEpoch, other: SavedEpoch, lens: [usize; 2]) -> anyhow::Result<()> {
    epoch.span = epoch.span.and(other.span);
    for ((a, b), len) in epoch.states.iter_mut().zip(other.states).zip(lens) {
        *a = merged(std::mem::take(a), b, len)?;
    }
    Ok(())
}

/// Two states as one; either may be missing.
fn merged(a: Vec<u8>, b: Vec<u8>, len: usize) -> anyhow::Result<Vec<u8>> {
    if a.is_empty() || b.is_empty() {
        return Ok(if a.is_empty() { b } else { a });
    }
    Ok(merge_states(len, &a, &b)?)
}

/// The states of IPv4 and IPv6 as [`emptied`] makes them, for keys of these lengths.
pub(super) fn all_emptied(
    [four, six]: &[Vec<u8>; 2],
    [len4, len6]: [usize; 2],
) -> anyhow::Result<[Vec<u8>; 2]> {
    Ok([emptied(four, len4)?, emptied(six, len6)?])
}

/// A state of the same kind, seed and shape into which nothing was put; none where there is none.
pub(super) fn emptied(state: &[u8], len: usize) -> anyhow::Result<Vec<u8>> {
    if state.is_empty() {
        return Ok(Vec::new());
    }
    Ok(empty_state(len, state)?)
}

/// Refuses bytes that are no state of this sketch and key length.
///
/// # Errors
/// If they are not.
pub(super) fn check_state(bytes: &[u8], sketch: &str, len: usize) -> anyhow::Result<()> {
    let (kind, found) = peek(bytes)?;
    if kind.name() != sketch || found != len {
        bail!("the state is damaged: it holds {kind} of keys of {found} bytes, not {sketch} of {len}");
    }
    Ok(())
}
