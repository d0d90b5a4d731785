//! Files of saved states: the sketches of all epochs of a run, with a head that says how to read them, and
//! which states they can be merged with. The book's page on formats has the layout.
//!
//! `SLIPMEAS`, version (u16), length of the description (u32), the description (JSON), then for each epoch
//! two sketches (IPv4, IPv6), each a length (u64; 0 = none) and the bytes that `slipstream-sketch` writes; at
//! the end CRC-32 of everything before. A reader believes no length: nothing is allocated that the file
//! doesn't hold.

use serde_json::{Value, json};

use crate::{KeyKind, Keying, Span, Task};

const MAGIC: &[u8; 8] = b"SLIPMEAS";
/// Version 2: epochs by time begin at multiples of their length; the head has the tunnel mode, the seed and
/// the times of packets.
const VERSION: u16 = 2;
/// The tunnel mode of a file of version 1, which doesn't say it: such files merge with one another alone.
const UNKNOWN: &str = "unknown";

/// Why bytes are no file of states.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SavedError {
    /// Something else altogether.
    #[error("this is no state that `measure --save` wrote")]
    Magic,
    /// Of a newer version.
    #[error(
        "a state of version {found}; this program reads versions 1 to {VERSION}: read it with a newer program"
    )]
    Version {
        /// The version of the file.
        found: u16,
    },
    /// Bits were changed or lost.
    #[error("the state is damaged: its checksum, at byte {0}, is wrong")]
    Checksum(usize),
    /// Its parts don't fit together.
    #[error("the state is damaged at byte {0}: {1}")]
    Damaged(usize, &'static str),
    /// Its key doesn't go with its task.
    #[error("{0}")]
    Keying(String),
}

/// The head of a file of states.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// The question that the states were made for.
    pub task: Task,
    /// Name of the sketch.
    pub sketch: String,
    /// What makes a flow.
    pub key: KeyKind,
    /// Keys are pairs of an address and its counterpart.
    pub pairs: bool,
    /// What a packet adds: `packets` or `bytes`.
    pub weight: String,
    /// Length of an epoch, as it is written.
    pub epoch: String,
    /// What stood in front of the sketch.
    pub aggregate: String,
    /// The header of a tunnel, outer or inner, that made the flows; `unknown` of a file of version 1.
    pub tunnel: String,
    /// Seed of all hash functions.
    pub seed: u64,
}

impl Description {
    /// The rule by which packets became keys.
    ///
    /// # Errors
    /// [`SavedError::Keying`] if key and task don't fit together.
    pub fn keying(&self) -> Result<Keying, SavedError> {
        if !self.pairs {
            return Ok(Keying::plain(self.key));
        }
        Keying::pairs(self.key, self.task == Task::DdosVictims).map_err(SavedError::Keying)
    }
}

/// One epoch of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SavedEpoch {
    /// The stretch that it covers.
    pub span: Span,
    /// The sketches of IPv4 and IPv6; empty where there was none.
    pub states: [Vec<u8>; 2],
}

/// A file of states.
#[derive(Clone, Debug, PartialEq)]
pub struct Saved {
    /// The head.
    pub about: Description,
    /// The epochs, in order.
    pub epochs: Vec<SavedEpoch>,
}

impl Saved {
    /// The bytes that every file of states begins with.
    pub const MAGIC: &[u8] = MAGIC;

    /// The bytes of the file.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let epoch = |e: &SavedEpoch| {
            let Span { packets, start_ns, end_ns, first_ns, last_ns, partial, gaps_missing } = e.span;
            let mut epoch = json!({ "packets": packets, "start_ns": start_ns, "end_ns": end_ns,
                                    "first_ns": first_ns, "last_ns": last_ns, "partial": partial });
            if let Some(map) = epoch.as_object_mut().filter(|_| gaps_missing) {
                map.insert("gaps_missing".to_owned(), true.into());
            }
            epoch
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
        out
    }

    /// A file from its bytes.
    ///
    /// # Errors
    /// [`SavedError`] for anything that [`Saved::to_bytes`] doesn't write.
    pub fn parse(bytes: &[u8]) -> Result<Self, SavedError> {
        if bytes.get(..8) != Some(MAGIC) {
            return Err(SavedError::Magic);
        }
        let mut d = Decoder { all: bytes, at: 8 };
        let version = match u16::from_le_bytes(d.take()?) {
            known @ 1..=VERSION => known,
            found => return Err(SavedError::Version { found }),
        };
        let Some((body, sum)) = bytes.split_last_chunk::<4>() else { return Err(d.short()) };
        if crc32fast::hash(body) != u32::from_le_bytes(*sum) {
            return Err(SavedError::Checksum(body.len()));
        }
        d.all = body;
        let len = u32::from_le_bytes(d.take()?) as usize;
        let wrong = SavedError::Damaged(d.at, "its description can't be read");
        let description: Value = serde_json::from_slice(d.bytes(len)?).map_err(|_| wrong.clone())?;
        let (mut about, mut epochs) = describe(&description, version).ok_or(wrong)?;
        about.keying()?;
        for state in epochs.iter_mut().flat_map(|e: &mut SavedEpoch| &mut e.states) {
            let len = u64::from_le_bytes(d.take()?);
            *state = d.bytes(usize::try_from(len).map_err(|_| d.short())?)?.to_vec();
        }
        if d.at < body.len() {
            return Err(SavedError::Damaged(d.at, "there is more than its description says"));
        }
        if version == 1 {
            about.seed = epochs.iter().flat_map(|e| &e.states).find_map(|s| seed_of(s)).unwrap_or(0);
        }
        Ok(Self { about, epochs })
    }
}

/// The seed of a saved sketch.
fn seed_of(state: &[u8]) -> Option<u64> {
    state.get(16..24).and_then(|bytes| bytes.first_chunk()).map(|bytes| u64::from_le_bytes(*bytes))
}

/// Takes a file apart.
struct Decoder<'a> {
    all: &'a [u8],
    at: usize,
}

impl<'a> Decoder<'a> {
    fn short(&self) -> SavedError {
        SavedError::Damaged(self.at, "it is cut short")
    }

    fn bytes(&mut self, n: usize) -> Result<&'a [u8], SavedError> {
        let end = self.at.checked_add(n).ok_or_else(|| self.short())?;
        let taken = self.all.get(self.at..end).ok_or_else(|| self.short())?;
        self.at = end;
        Ok(taken)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], SavedError> {
        let taken = self.bytes(N)?;
        taken.first_chunk::<N>().copied().ok_or_else(|| self.short())
    }
}

/// The head, and epochs whose sketches have yet to be read. What version 1 doesn't say is filled in later, or
/// follows from the rest.
fn describe(value: &Value, version: u16) -> Option<(Description, Vec<SavedEpoch>)> {
    let first = version == 1;
    let text = |key: &str| value.get(key)?.as_str().map(str::to_owned);
    let about = Description {
        task: text("task")?.parse().ok()?,
        sketch: text("sketch")?,
        key: text("key")?.parse().ok()?,
        pairs: value.get("pairs")?.as_bool()?,
        weight: text("weight")?,
        epoch: text("epoch")?,
        aggregate: text("aggregate")?,
        tunnel: if first { UNKNOWN.to_owned() } else { text("tunnel")? },
        seed: if first { 0 } else { value.get("seed")?.as_u64()? },
    };
    let epoch = |e: &Value| {
        let number = |key: &str| e.get(key)?.as_u64();
        let span = Span {
            packets: number("packets")?,
            start_ns: number("start_ns")?,
            end_ns: number("end_ns")?,
            first_ns: number(if first { "start_ns" } else { "first_ns" })?,
            last_ns: number(if first { "end_ns" } else { "last_ns" })?,
            // An epoch of version 1 began with its first packet, whenever that came.
            partial: if first { false } else { e.get("partial")?.as_bool()? },
            // Files without it are of other weights, of flows that were all remembered, or of a program that
            // didn't tell.
            gaps_missing: e.get("gaps_missing").map_or(Some(false), Value::as_bool)?,
        };
        Some(SavedEpoch { span, states: Default::default() })
    };
    let epochs = value.get("epochs")?.as_array()?.iter().map(epoch).collect::<Option<_>>()?;
    Some((about, epochs))
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
                span: Span {
                    packets: 3,
                    start_ns: 1,
                    end_ns: 2,
                    first_ns: 1,
                    last_ns: 2,
                    partial: true,
                    gaps_missing: true,
                },
                states: [vec![1, 2, 3], vec![]],
            }],
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let saved = saved();
        assert_eq!(Saved::parse(&saved.to_bytes()).unwrap(), saved);
    }

    /// Files as each version wrote them: they must stay readable.
    #[test]
    fn golden_files() {
        let file = |name: &str| {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
            std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        };
        let now = file("heavy-hitters.state");
        let saved = Saved::parse(&now).unwrap();
        assert_eq!(saved.to_bytes(), now);
        assert_eq!((saved.about.task, saved.about.tunnel.as_str()), (Task::HeavyHitters, "outer"));
        assert_eq!(slipstream_sketch::peek(&saved.epochs[0].states[0]).unwrap().1, 4);

        let old = Saved::parse(&file("flow-size.v1.state")).unwrap();
        let about = &old.about;
        assert_eq!((about.task, about.sketch.as_str()), (Task::FlowSize, "count-min"));
        assert_eq!((about.tunnel.as_str(), about.seed), (UNKNOWN, 42));
        assert_eq!(old.epochs.len(), 2);
        assert_eq!(
            old.epochs[0].span,
            Span {
                packets: 20,
                start_ns: 1_000,
                end_ns: 2_000,
                first_ns: 1_000,
                last_ns: 2_000,
                partial: false,
                gaps_missing: false
            }
        );
        let sketch = slipstream_sketch::load::<4>(&old.epochs[0].states[0]).unwrap();
        assert_eq!(sketch.flow_size(&[10, 0, 1, 19]).unwrap().estimate, 361);
        assert!(old.epochs[1].states.iter().all(Vec::is_empty));
        // Written again, it is a file of today.
        assert_eq!(Saved::parse(&old.to_bytes()).unwrap(), old);
        for found in [0, 3] {
            let mut bytes = now.clone();
            bytes[8] = found;
            assert_eq!(Saved::parse(&bytes).unwrap_err(), SavedError::Version { found: u16::from(found) });
        }
    }

    #[test]
    fn damage_is_told() {
        let whole = saved().to_bytes();
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
