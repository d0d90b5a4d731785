//! Saved states: the sketches of all epochs of a run, with a head that says how to read them, and which
//! states they can be merged with.
//!
//! `SLIPMEAS`, version (u16), length of the description (u32), the description (JSON), then for each epoch
//! two sketches (IPv4, IPv6), each a length (u64; 0 = none) and the bytes that `slipstream-sketch` writes; at
//! the end CRC-32 of everything before. A reader believes no length: nothing is allocated that the file
//! doesn't hold. One version is read: the present one.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use serde_json::{Value, json};
use slipstream::measure::{EpochLength, KeyKind, Keying, Span, Task};
use slipstream_sketch::{Sketch, load, peek, save};
use tracing::warn;

use crate::replace::Replacement;

const MAGIC: &[u8; 8] = b"SLIPMEAS";
/// Version 2: epochs by time begin at multiples of their length; the head has the tunnel mode, the seed and
/// the times of packets.
const VERSION: u16 = 2;

/// The head of a file of states.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Description {
    pub(super) task: Task,
    pub(super) sketch: String,
    pub(super) key: KeyKind,
    pub(super) pairs: bool,
    pub(super) weight: String,
    pub(super) epoch: String,
    pub(super) aggregate: String,
    /// The header of a tunnel, outer or inner, that made the flows.
    pub(super) tunnel: String,
    pub(super) seed: u64,
}

/// One epoch of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SavedEpoch {
    pub(super) span: Span,
    /// The sketches of IPv4 and IPv6; empty where there was none.
    pub(super) states: [Vec<u8>; 2],
}

/// A file of states.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Saved {
    pub(super) about: Description,
    pub(super) epochs: Vec<SavedEpoch>,
}

impl Description {
    /// The rule by which packets became keys.
    ///
    /// # Errors
    /// If key and task don't fit together.
    pub(super) fn keying(&self) -> anyhow::Result<Keying> {
        if !self.pairs {
            return Ok(Keying::plain(self.key));
        }
        Keying::pairs(self.key, self.task == Task::DdosVictims).map_err(|e| anyhow!(e))
    }
}

impl Saved {
    /// Writes the file.
    pub(super) fn write(&self, mut file: Replacement) -> anyhow::Result<()> {
        let epoch = |e: &SavedEpoch| {
            let Span { packets, start_ns, end_ns, first_ns, last_ns, partial } = e.span;
            json!({ "packets": packets, "start_ns": start_ns, "end_ns": end_ns, "first_ns": first_ns,
                    "last_ns": last_ns, "partial": partial })
        };
        let epochs: Vec<Value> = self.epochs.iter().map(epoch).collect();
        let about = &self.about;
        let description = json!({
            "task": about.task.name(), "sketch": about.sketch, "key": about.key.to_string(),
            "pairs": about.pairs, "weight": about.weight, "epoch": about.epoch, "aggregate": about.aggregate,
            "tunnel": about.tunnel, "seed": about.seed,
            "epochs": epochs,
        })
        .to_string();
        let mut out = MAGIC.to_vec();
        out.extend(VERSION.to_le_bytes());
        out.extend((description.len() as u32).to_le_bytes());
        out.extend(description.as_bytes());
        for state in self.epochs.iter().flat_map(|e| &e.states) {
            out.extend((state.len() as u64).to_le_bytes());
            out.extend(state);
        }
        out.extend(crc32fast::hash(&out).to_le_bytes());
        file.write_all(&out).context("--save")?;
        file.commit().context("--save")
    }

    /// Reads a file.
    ///
    /// # Errors
    /// For anything that [`Saved::write`] doesn't write.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let name = || path.display().to_string();
        let bytes = std::fs::read(path).with_context(name)?;
        Self::parse(&bytes).with_context(name)
    }

    fn parse(bytes: &[u8]) -> anyhow::Result<Self> {
        if bytes.get(..8) != Some(MAGIC) {
            bail!("this is no state that `measure --save` wrote");
        }
        let damaged = || anyhow!("the state is damaged");
        let (body, sum) = bytes.split_last_chunk::<4>().ok_or_else(damaged)?;
        let mut rest = body.get(8..).ok_or_else(damaged)?;
        match u16::from_le_bytes(take(&mut rest)?) {
            VERSION => {}
            other => bail!(
                "a state of version {other}; this program reads version {VERSION}: {}",
                if other < VERSION {
                    "measure the traffic again, or ask the state with the program that saved it"
                } else {
                    "read it with a newer program"
                }
            ),
        }
        if crc32fast::hash(body) != u32::from_le_bytes(*sum) {
            bail!("the state is damaged: its checksum is wrong");
        }
        let len = u32::from_le_bytes(take(&mut rest)?) as usize;
        let (description, mut rest) = rest.split_at_checked(len).ok_or_else(damaged)?;
        let description: Value = serde_json::from_slice(description).context("the state is damaged")?;
        let (about, mut epochs) = describe(&description).ok_or_else(damaged)?;
        about.keying()?;
        for state in epochs.iter_mut().flat_map(|e: &mut SavedEpoch| &mut e.states) {
            let len = usize::try_from(u64::from_le_bytes(take(&mut rest)?))?;
            let (bytes, after) = rest.split_at_checked(len).ok_or_else(damaged)?;
            *state = bytes.to_vec();
            rest = after;
        }
        if !rest.is_empty() {
            return Err(damaged());
        }
        Ok(Self { about, epochs })
    }

    /// Adds another run's states: epochs by time those of the same time, else the only epoch of each.
    ///
    /// # Errors
    /// If the two don't measure the same, or their epochs don't belong together.
    pub(super) fn merge(&mut self, other: Self) -> anyhow::Result<()> {
        self.about.check(&other.about)?;
        let lens = self.about.keying()?.lens();
        self.check_sketches(&other, lens)?;
        let by_time = matches!(self.about.epoch.parse(), Ok(EpochLength::Time(_)));
        if by_time { self.merge_by_time(other, lens) } else { self.merge_whole(other, lens) }
    }

    /// Refuses sketches that can't be merged, also of epochs that only one side has.
    fn check_sketches(&self, other: &Self, lens: (usize, usize)) -> anyhow::Result<()> {
        for (side, len) in [lens.0, lens.1].into_iter().enumerate() {
            let some = |saved: &Self| {
                let mut states = saved.epochs.iter().filter_map(|e| e.states.get(side));
                states.find(|s| !s.is_empty()).map(|s| emptied(s, len)).transpose()
            };
            merged(some(self)?.unwrap_or_default(), some(other)?.unwrap_or_default(), len)?;
        }
        Ok(())
    }

    /// Epochs of one time become one; between them stand those in which nothing came, as in a run over
    /// everything.
    fn merge_by_time(&mut self, other: Self, lens: (usize, usize)) -> anyhow::Result<()> {
        let nothing = self.epochs.first().cloned().unwrap_or_default();
        let mut all: BTreeMap<u64, SavedEpoch> = BTreeMap::new();
        for epoch in std::mem::take(&mut self.epochs).into_iter().chain(other.epochs) {
            if epoch.span.packets > 0 {
                all.entry(epoch.span.start_ns).or_default().merge(epoch, lens)?;
            }
        }
        for epoch in all.into_values() {
            if let Some(last) = self.epochs.last().filter(|last| last.span.end_ns < epoch.span.start_ns) {
                let (start_ns, end_ns) = (last.span.end_ns, epoch.span.start_ns);
                let span = Span { start_ns, end_ns, ..Span::default() };
                let [four, six] = &last.states;
                let states = [emptied(four, lens.0)?, emptied(six, lens.1)?];
                self.epochs.push(SavedEpoch { span, states });
            }
            self.epochs.push(epoch);
        }
        if self.epochs.is_empty() {
            self.epochs.push(nothing);
        }
        Ok(())
    }

    /// Merges epochs by packets. They end where each run's own packets do: no two of them cover the same
    /// time, but all of each run do.
    fn merge_whole(&mut self, other: Self, lens: (usize, usize)) -> anyhow::Result<()> {
        let ([mine], Ok([theirs])) = (self.epochs.as_mut_slice(), <[SavedEpoch; 1]>::try_from(other.epochs))
        else {
            bail!(
                "epochs of {} packets end at other times in every state, so they don't belong together; measure with \
                 an --epoch by time (1s), or with one that is longer than the whole trace",
                self.about.epoch.trim_end_matches('p')
            );
        };
        let (a, b) = (mine.span, theirs.span);
        if a.packets > 0 && b.packets > 0 && (a.last_ns < b.first_ns || b.last_ns < a.first_ns) {
            warn!(
                "the states are of different times; the sum is of everything from the earlier to the later one"
            );
        }
        mine.merge(theirs, lens)
    }
}

impl Description {
    /// Refuses files that don't measure the same.
    fn check(&self, other: &Self) -> anyhow::Result<()> {
        let (a, b) = (self, other);
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
}

impl SavedEpoch {
    fn merge(&mut self, other: Self, lens: (usize, usize)) -> anyhow::Result<()> {
        self.span = self.span.and(other.span);
        for ((a, b), len) in self.states.iter_mut().zip(other.states).zip([lens.0, lens.1]) {
            *a = merged(std::mem::take(a), b, len)?;
        }
        Ok(())
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> anyhow::Result<[u8; N]> {
    let (taken, after) = rest.split_first_chunk::<N>().ok_or_else(|| anyhow!("the state is cut short"))?;
    *rest = after;
    Ok(*taken)
}

fn describe(value: &Value) -> Option<(Description, Vec<SavedEpoch>)> {
    let text = |key: &str| value.get(key)?.as_str().map(str::to_owned);
    let about = Description {
        task: text("task")?.parse().ok()?,
        sketch: text("sketch")?,
        key: text("key")?.parse().ok()?,
        pairs: value.get("pairs")?.as_bool()?,
        weight: text("weight")?,
        epoch: text("epoch")?,
        aggregate: text("aggregate")?,
        tunnel: text("tunnel")?,
        seed: value.get("seed")?.as_u64()?,
    };
    let epoch = |e: &Value| {
        let number = |key: &str| e.get(key)?.as_u64();
        let span = Span {
            packets: number("packets")?,
            start_ns: number("start_ns")?,
            end_ns: number("end_ns")?,
            first_ns: number("first_ns")?,
            last_ns: number("last_ns")?,
            partial: e.get("partial")?.as_bool()?,
        };
        Some(SavedEpoch { span, states: Default::default() })
    };
    let epochs = value.get("epochs")?.as_array()?.iter().map(epoch).collect::<Option<_>>()?;
    Some((about, epochs))
}

/// Calls a function that is generic over the length of keys for one that is known only now.
macro_rules! by_length {
    ($len:expr, $of:ident($($arg:expr),*)) => {
        match $len {
            4 => $of::<4>($($arg),*),
            8 => $of::<8>($($arg),*),
            13 => $of::<13>($($arg),*),
            16 => $of::<16>($($arg),*),
            32 => $of::<32>($($arg),*),
            37 => $of::<37>($($arg),*),
            other => bail!("there is no key of {other} bytes"),
        }
    };
}

/// Two states as one; either may be missing.
fn merged(a: Vec<u8>, b: Vec<u8>, len: usize) -> anyhow::Result<Vec<u8>> {
    if a.is_empty() || b.is_empty() {
        return Ok(if a.is_empty() { b } else { a });
    }
    fn of<const N: usize>(a: &[u8], b: &[u8]) -> anyhow::Result<Vec<u8>> {
        let mut whole: Box<dyn Sketch<N>> = load(a)?;
        whole.merge(load::<N>(b)?.as_ref())?;
        Ok(save(whole.as_ref()))
    }
    by_length!(len, of(&a, &b))
}

/// A state of the same kind, seed and shape into which nothing was put; none where there is none.
fn emptied(state: &[u8], len: usize) -> anyhow::Result<Vec<u8>> {
    if state.is_empty() {
        return Ok(Vec::new());
    }
    fn of<const N: usize>(state: &[u8]) -> anyhow::Result<Vec<u8>> {
        let mut sketch: Box<dyn Sketch<N>> = load(state)?;
        sketch.clear();
        Ok(save(sketch.as_ref()))
    }
    by_length!(len, of(state))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn saved() -> Saved {
        Saved {
            about: Description {
                task: Task::HeavyHitters,
                sketch: "fm".into(),
                key: "src/24".parse().unwrap(),
                pairs: false,
                weight: "packets".into(),
                epoch: "1s".into(),
                aggregate: "grr".into(),
                tunnel: "outer".into(),
                seed: 1,
            },
            epochs: vec![SavedEpoch {
                span: Span { packets: 3, start_ns: 1, end_ns: 2, first_ns: 1, last_ns: 2, partial: true },
                states: [vec![1, 2, 3], vec![]],
            }],
        }
    }

    fn bytes(saved: &Saved) -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        saved.write(Replacement::create("--save", &path).unwrap()).unwrap();
        std::fs::read(path).unwrap()
    }

    #[test]
    fn what_is_written_is_read() {
        let saved = saved();
        assert_eq!(Saved::parse(&bytes(&saved)).unwrap(), saved);
    }

    #[test]
    fn damage_is_told() {
        let whole = bytes(&saved());
        for cut in 0..whole.len() {
            assert!(Saved::parse(&whole[..cut]).is_err(), "cut at {cut}");
        }
        for bit in 0..whole.len() * 8 {
            let mut bad = whole.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Saved::parse(&bad).is_err(), "bit {bit}");
        }
    }
}
