//! States as bytes: what is saved, sent, and merged elsewhere.
//!
//! Little endian: `SLIPSKCH`, version of the kind's format ([`Kind::state_version`], u16), kind (u8), 0 (u8),
//! key length (u16), 0 (u16), seed (u64), total weight (u64); then the sketch's parameters and tables; at the
//! end CRC-32 of everything before it (u32). A reader believes no length: it allocates only what the bytes at
//! hand can fill.

use std::fmt::Debug;

use crate::{Kind, Sketch};

const MAGIC: &[u8; 8] = b"SLIPSKCH";
/// Bytes before the parameters.
const HEADER: usize = 32;

/// Why bytes are no state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// Something else altogether.
    #[error("this is no saved sketch")]
    Magic,
    /// Written in a newer format of this kind.
    #[error(
        "a saved {kind} of version {found}; this program reads versions 1 to {reads}: read it with a newer \
         program"
    )]
    Version {
        /// Which sketch.
        kind: Kind,
        /// The version of the state.
        found: u16,
        /// The newest version that can be read: [`Kind::state_version`].
        reads: u16,
    },
    /// Bits were changed or lost.
    #[error("a damaged saved sketch: its checksum is wrong")]
    Checksum,
    /// Its parts don't fit together.
    #[error("a damaged saved sketch: {0}")]
    Damaged(&'static str),
    /// A sketch that isn't known.
    #[error("a saved sketch of unknown kind {0}")]
    Kind(u8),
    /// Its keys have another length.
    #[error("its keys have {found} bytes, not {expected}")]
    KeyLength {
        /// In the state.
        found: usize,
        /// As asked for.
        expected: usize,
    },
}

/// The kind and key length of a saved sketch, before reading it.
///
/// # Errors
/// [`StateError`] where this is no saved sketch.
pub fn peek(bytes: &[u8]) -> Result<(Kind, usize), StateError> {
    let mut d = Decoder { rest: bytes, version: 0 };
    if bytes.get(..8) != Some(MAGIC) {
        return Err(StateError::Magic);
    }
    d.bytes(8)?;
    let found = d.u16()?;
    let code = d.u8()?;
    let zero = d.u8()?;
    let kind = Kind::from_code(code).ok_or(StateError::Kind(code))?;
    let reads = kind.state_version();
    if found == 0 || found > reads {
        return Err(StateError::Version { kind, found, reads });
    }
    let len = usize::from(d.u16()?);
    if zero != 0 || d.u16()? != 0 {
        return Err(StateError::Damaged("reserved bytes are set"));
    }
    Ok((kind, len))
}

/// A state as bytes.
#[must_use]
pub fn save<const N: usize>(sketch: &dyn Sketch<N>) -> Vec<u8> {
    let mut out = Encoder { bytes: Vec::with_capacity(HEADER + 64) };
    out.bytes.extend_from_slice(MAGIC);
    out.u16(sketch.state_version());
    out.u8(sketch.kind().code());
    out.u8(0);
    out.u16(N as u16);
    out.u16(0);
    out.u64(sketch.seed());
    out.u64(sketch.weight());
    sketch.encode(&mut out);
    let sum = crc32fast::hash(&out.bytes);
    out.u32(sum);
    out.bytes
}

/// A state from bytes.
///
/// # Errors
/// [`StateError`] for anything that [`save`] doesn't write.
pub fn load<const N: usize>(bytes: &[u8]) -> Result<Box<dyn Sketch<N>>, StateError> {
    let (kind, len) = peek(bytes)?;
    if len != N {
        return Err(StateError::KeyLength { found: len, expected: N });
    }
    let Some((body, sum)) = bytes.split_last_chunk::<4>() else {
        return Err(StateError::Damaged("it is cut short"));
    };
    if crc32fast::hash(body) != u32::from_le_bytes(*sum) {
        return Err(StateError::Checksum);
    }
    let mut d = Decoder { rest: body, version: 0 };
    d.bytes(8)?;
    d.version = d.u16()?;
    d.bytes(6)?;
    let (seed, weight) = (d.u64()?, d.u64()?);
    let sketch = crate::kind::decode(kind, seed, weight, &mut d)?;
    if !d.rest.is_empty() {
        return Err(StateError::Damaged("there is more than its parameters say"));
    }
    Ok(sketch)
}

/// A cell of which tables are made.
pub trait Word: Copy + Debug + Default + Send + Sync + 'static {
    /// Its length in a saved state, in bytes.
    const BYTES: usize;
    /// Adds its bytes.
    fn write(self, out: &mut Vec<u8>);
    /// The cell that these bytes are; nothing where they are too few.
    fn read(bytes: &[u8]) -> Option<Self>;
}

macro_rules! words {
    ($($word:ty)*) => {$(
        impl Word for $word {
            const BYTES: usize = size_of::<$word>();

            fn write(self, out: &mut Vec<u8>) {
                out.extend(self.to_le_bytes());
            }

            fn read(bytes: &[u8]) -> Option<Self> {
                bytes.first_chunk().map(|word| Self::from_le_bytes(*word))
            }
        }
    )*};
}

words!(u32 u64 i64);

impl<const K: usize> Word for [u64; K]
where
    Self: Default,
{
    const BYTES: usize = 8 * K;

    fn write(self, out: &mut Vec<u8>) {
        self.into_iter().for_each(|word| word.write(out));
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let mut cell = Self::default();
        for (to, from) in cell.iter_mut().zip(bytes.get(..Self::BYTES)?.chunks_exact(8)) {
            *to = u64::read(from)?;
        }
        Some(cell)
    }
}

/// Collects the bytes of a state: [`Sketch::encode`] writes parameters and tables to it.
#[derive(Debug, Default)]
pub struct Encoder {
    bytes: Vec<u8>,
}

impl Encoder {
    #[cfg(test)]
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// A byte.
    pub fn u8(&mut self, v: u8) {
        self.bytes.push(v);
    }

    /// Two bytes, little endian, as all numbers.
    pub fn u16(&mut self, v: u16) {
        self.bytes.extend(v.to_le_bytes());
    }

    /// Four bytes.
    pub fn u32(&mut self, v: u32) {
        self.bytes.extend(v.to_le_bytes());
    }

    /// Eight bytes.
    pub fn u64(&mut self, v: u64) {
        self.bytes.extend(v.to_le_bytes());
    }

    /// A key.
    pub fn key<const N: usize>(&mut self, key: &[u8; N]) {
        self.bytes.extend_from_slice(key);
    }

    /// A table.
    pub fn all<W: Word>(&mut self, values: &[W]) {
        self.bytes.reserve(values.len() * W::BYTES);
        values.iter().for_each(|v| v.write(&mut self.bytes));
    }

    /// Their number, then keys with what belongs to them, in order.
    pub(crate) fn entries<const N: usize, const K: usize>(
        &mut self,
        entries: impl Iterator<Item = Entry<N, K>>,
    ) {
        let mut all: Vec<_> = entries.collect();
        crate::order::by_key(&mut all, |entry| &entry.0);
        self.u32(all.len() as u32);
        for (key, values) in all {
            self.key(&key);
            self.all(&values);
        }
    }
}

/// A key with what belongs to it.
type Entry<const N: usize, const K: usize> = ([u8; N], [u64; K]);

/// Takes the bytes of a state apart: [`Rule::read`](crate::Rule::read) reads cells from it.
#[derive(Debug)]
pub struct Decoder<'a> {
    rest: &'a [u8],
    version: u16,
}

const SHORT: StateError = StateError::Damaged("it is cut short");

impl<'a> Decoder<'a> {
    /// The version of the state.
    pub(crate) const fn version(&self) -> u16 {
        self.version
    }

    /// Some bytes by themselves.
    #[cfg(test)]
    pub(crate) const fn of(rest: &'a [u8]) -> Self {
        Self { rest, version: 0 }
    }

    /// The number of bytes that are left.
    pub(crate) const fn left(&self) -> usize {
        self.rest.len()
    }

    /// All bytes that are left.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    pub(crate) fn bytes(&mut self, n: usize) -> Result<&'a [u8], StateError> {
        let (taken, rest) = self.rest.split_at_checked(n).ok_or(SHORT)?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn key<const N: usize>(&mut self) -> Result<[u8; N], StateError> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(SHORT)?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, StateError> {
        self.key::<1>().map(|[b]| b)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, StateError> {
        self.key().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, StateError> {
        self.key().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, StateError> {
        self.key().map(u64::from_le_bytes)
    }

    /// A number of things of at least `each` bytes that are still to come.
    pub(crate) fn count(&mut self, each: usize) -> Result<usize, StateError> {
        let n = usize::try_from(self.u32()?).map_err(|_| SHORT)?;
        if n.checked_mul(each).is_none_or(|bytes| bytes > self.rest.len()) {
            return Err(SHORT);
        }
        Ok(n)
    }

    /// That many cells; memory is taken only where the bytes are there.
    pub(crate) fn all<W: Word>(&mut self, n: usize) -> Result<Vec<W>, StateError> {
        let bytes = self.bytes(n.checked_mul(W::BYTES).ok_or(SHORT)?)?;
        Ok(bytes.chunks_exact(W::BYTES).filter_map(W::read).collect())
    }

    /// Keys with what belongs to them: see [`Encoder::entries`].
    pub(crate) fn entries<const N: usize, const K: usize>(&mut self) -> Result<Vec<Entry<N, K>>, StateError> {
        let n = self.count(N + 8 * K)?;
        let mut entries = Vec::with_capacity(n);
        for _ in 0..n {
            let key = self.key()?;
            let mut values = [0; K];
            for value in &mut values {
                *value = self.u64()?;
            }
            entries.push((key, values));
        }
        Ok(entries)
    }
}
