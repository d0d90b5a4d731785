//! Saved states: the sketches of all epochs of a run, with what is needed to read them.
//!
//! `SLIPMEAS`, version (u16), length of the description (u32), the description (JSON), then for each epoch two sketches (IPv4, IPv6), each
//! a length (u64; 0 = none) and the bytes that `slipstream-sketch` writes; at the end CRC-32 of everything before. A
//! reader believes no length: nothing is allocated that the file doesn't hold.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use serde_json::{Value, json};
use slipstream::measure::{KeyKind, Keying, Task};
use slipstream_sketch::{Sketch, load, peek, save};

use crate::replace::Replacement;

const MAGIC: &[u8; 8] = b"SLIPMEAS";
const VERSION: u16 = 1;

/// What a file of states says of itself.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Description {
    pub(super) task: Task,
    pub(super) sketch: String,
    pub(super) key: KeyKind,
    pub(super) pairs: bool,
    pub(super) weight: String,
    pub(super) epoch: String,
    pub(super) aggregate: String,
}

/// One epoch of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SavedEpoch {
    pub(super) packets: u64,
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
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
    /// How packets became keys.
    ///
    /// # Errors
    /// Where key and task don't fit.
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
        let epochs: Vec<Value> = self
            .epochs
            .iter()
            .map(|e| json!({ "packets": e.packets, "start_ns": e.start_ns, "end_ns": e.end_ns }))
            .collect();
        let about = &self.about;
        let description = json!({
            "task": about.task.name(), "sketch": about.sketch, "key": about.key.to_string(),
            "pairs": about.pairs, "weight": about.weight, "epoch": about.epoch, "aggregate": about.aggregate,
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
            other => bail!("a state of version {other}; this program reads version {VERSION}"),
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

    /// Adds another run's states, epoch by epoch; epochs that only one has stay as they are.
    ///
    /// # Errors
    /// Where the two don't measure the same.
    pub(super) fn merge(&mut self, other: Self) -> anyhow::Result<()> {
        let (a, b) = (&self.about, &other.about);
        for (what, a, b) in [
            ("sketch", &a.sketch, &b.sketch),
            ("key", &a.key.to_string(), &b.key.to_string()),
            ("weight", &a.weight, &b.weight),
            ("length of an epoch", &a.epoch, &b.epoch),
        ] {
            if a != b {
                bail!("the states differ in {what}: {a} and {b}");
            }
        }
        if a.pairs != b.pairs || a.pairs && a.task != b.task {
            bail!("the states are of tasks that can't be merged: {} and {}", a.task, b.task);
        }
        if self.epochs.len() < other.epochs.len() {
            self.epochs.resize(other.epochs.len(), SavedEpoch::default());
        }
        let lens = self.about.keying()?.lens();
        for (mine, theirs) in self.epochs.iter_mut().zip(other.epochs) {
            let first = mine.packets == 0;
            mine.start_ns = if first { theirs.start_ns } else { mine.start_ns.min(theirs.start_ns) };
            mine.end_ns = mine.end_ns.max(theirs.end_ns);
            mine.packets += theirs.packets;
            for ((a, b), len) in mine.states.iter_mut().zip(theirs.states).zip([lens.0, lens.1]) {
                *a = merged(std::mem::take(a), b, len)?;
            }
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
    };
    let epoch = |e: &Value| {
        let number = |key: &str| e.get(key)?.as_u64();
        Some(SavedEpoch {
            packets: number("packets")?,
            start_ns: number("start_ns")?,
            end_ns: number("end_ns")?,
            states: Default::default(),
        })
    };
    let epochs = value.get("epochs")?.as_array()?.iter().map(epoch).collect::<Option<_>>()?;
    Some((about, epochs))
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
    match len {
        4 => of::<4>(&a, &b),
        8 => of::<8>(&a, &b),
        13 => of::<13>(&a, &b),
        16 => of::<16>(&a, &b),
        32 => of::<32>(&a, &b),
        37 => of::<37>(&a, &b),
        other => bail!("there is no key of {other} bytes"),
    }
}

/// Whether bytes are a state of this sketch and key length.
///
/// # Errors
/// Where they are not.
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
            },
            epochs: vec![SavedEpoch { packets: 3, start_ns: 1, end_ns: 2, states: [vec![1, 2, 3], vec![]] }],
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
