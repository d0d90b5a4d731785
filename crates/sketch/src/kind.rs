//! The list of sketches: names, numbers in saved states, and how each is made to a size.

use std::any::Any;
use std::fmt;

use crate::serial::{Decoder, StateError};
use crate::state::decode as decode_as;
use crate::{
    CountMin, CountMinParams, DdSketch, ExaLogLog, ExaLogLogHip, Exact, FlowRadar, FlowRadarParams, Fm,
    LinearCounting, Mrac, RevSketch, Sketch, SpaceSaving, TwoLevel, TwoLevelParams, UnivMon, UnivMonParams,
};

/// The sketches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// [`CountMin`].
    CountMin,
    /// [`FlowRadar`].
    FlowRadar,
    /// [`SpaceSaving`].
    SpaceSaving,
    /// [`RevSketch`].
    RevSketch,
    /// [`TwoLevel`].
    TwoLevel,
    /// [`Mrac`].
    Mrac,
    /// [`Fm`].
    Fm,
    /// [`LinearCounting`].
    LinearCounting,
    /// [`UnivMon`].
    UnivMon,
    /// [`ExaLogLog`].
    ExaLogLog,
    /// [`DdSketch`].
    DdSketch,
    /// [`ExaLogLogHip`].
    ExaLogLogHip,
    /// [`Exact`]: a hash table, the baseline.
    Exact,
    /// A sketch of another crate, by its name.
    Other(&'static str),
}

impl Kind {
    /// Those of the Agg-Evict paper, in the order of its figures, and the exact table.
    pub const PAPER: [Self; 10] = [
        Self::CountMin,
        Self::FlowRadar,
        Self::SpaceSaving,
        Self::RevSketch,
        Self::TwoLevel,
        Self::Mrac,
        Self::Fm,
        Self::LinearCounting,
        Self::UnivMon,
        Self::Exact,
    ];

    /// All of this crate: the paper's, further ones, the exact table last.
    pub const ALL: [Self; 13] = [
        Self::CountMin,
        Self::FlowRadar,
        Self::SpaceSaving,
        Self::RevSketch,
        Self::TwoLevel,
        Self::Mrac,
        Self::Fm,
        Self::LinearCounting,
        Self::UnivMon,
        Self::ExaLogLog,
        Self::ExaLogLogHip,
        Self::DdSketch,
        Self::Exact,
    ];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::CountMin => "count-min",
            Self::FlowRadar => "flow-radar",
            Self::SpaceSaving => "space-saving",
            Self::RevSketch => "rev-sketch",
            Self::TwoLevel => "two-level",
            Self::Mrac => "mrac",
            Self::Fm => "fm",
            Self::LinearCounting => "linear-counting",
            Self::UnivMon => "univmon",
            Self::ExaLogLog => "exaloglog",
            Self::DdSketch => "ddsketch",
            Self::ExaLogLogHip => "exaloglog-hip",
            Self::Exact => "exact",
            Self::Other(name) => name,
        }
    }

    /// The sketch of a name. `hll` is another name of `exaloglog`, which is what one asks for by that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let name = if name == "hll" { "exaloglog" } else { name };
        Self::ALL.into_iter().find(|k| k.name() == name)
    }

    /// Says that an update's weight is a value of its own, not something that adds up by key: no aggregator
    /// can stand in front.
    #[must_use]
    pub const fn takes_values(self) -> bool {
        matches!(self, Self::DdSketch)
    }

    /// The version of this kind's saved states that is written; all before it are read, too. It is raised
    /// where the bytes come to mean something else: a state would be read without an error otherwise, and
    /// answer wrongly.
    #[must_use]
    pub const fn state_version(self) -> u16 {
        match self {
            // 2: the tag in a bucket's number has the bits that bytes leave, not always a quarter of all.
            Self::RevSketch | Self::TwoLevel => 2,
            // 2: what a merge says of keys that no state kept is the sum of what the states say, not the
            // greatest.
            Self::CountMin | Self::UnivMon => 2,
            // 2: registers by their entropy.
            Self::ExaLogLog => 2,
            // 2: registers that forgot nothing, while keys are few.
            Self::ExaLogLogHip => 2,
            _ => 1,
        }
    }

    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::CountMin => 1,
            Self::FlowRadar => 2,
            Self::SpaceSaving => 3,
            Self::RevSketch => 4,
            Self::TwoLevel => 5,
            Self::Mrac => 6,
            Self::Fm => 7,
            Self::LinearCounting => 8,
            Self::UnivMon => 9,
            Self::Exact => 10,
            Self::ExaLogLog => 11,
            Self::DdSketch => 12,
            Self::ExaLogLogHip => 13,
            Self::Other(_) => u8::MAX,
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|k| k.code() == code)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The size of a sketch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Size {
    /// The most bytes that its tables may take, up to [`MAX_MEMORY`](Self::MAX_MEMORY). [`Exact`] takes what
    /// it needs.
    Memory(usize),
    /// As large as an accuracy needs.
    Accuracy {
        /// The error that is accepted, as a share, above 0 and below 1: of all weight (flow sizes, heavy
        /// hitters, heavy changes), of the figure itself (cardinality, entropy, spreads, numbers of flows of
        /// a size).
        error: f64,
        /// The share of answers that must be within it, above 0 and below 1.
        confidence: f64,
        /// Distinct keys that are expected.
        flows: u64,
    },
}

/// Parameters from which [`build`] makes a sketch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Which sketch.
    pub kind: Kind,
    /// Its size.
    pub size: Size,
    /// The seed of all hash functions. States can be merged only where it is the same; where an adversary may
    /// choose keys, it must be random.
    pub seed: u64,
    /// Of sketches that need a store of keys to list the heaviest ([`CountMin`]): how many it keeps; 0 =
    /// none. A budget has room for [`CountMin::keys_within`]; more take room from the counters.
    pub keep: usize,
    /// Of [`TwoLevel`]: how many of the key's bytes are the source; the rest is its counterpart.
    pub source_len: usize,
}

impl Default for Config {
    /// The heaviest keys in 1 MiB ([`SpaceSaving`]), with a seed that everybody knows: 0.
    fn default() -> Self {
        Self { kind: Kind::SpaceSaving, size: Size::Memory(1 << 20), seed: 0, keep: 0, source_len: 0 }
    }
}

/// Why a sketch can't be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The budget doesn't hold the smallest sketch of this kind.
    #[error("{kind} needs at least {least} bytes, {budget} are too few")]
    TooSmall {
        /// Which sketch.
        kind: Kind,
        /// The bytes that it needs.
        least: usize,
        /// The bytes that it was given.
        budget: usize,
    },
    /// It would be larger than any sketch may be.
    #[error("{kind}: {what} would need more than {limit} {of}")]
    TooLarge {
        /// Which sketch.
        kind: Kind,
        /// The parameter that would be too large.
        what: &'static str,
        /// The most that is possible.
        limit: u64,
        /// Of what.
        of: &'static str,
    },
    /// An accuracy that no size of this kind has.
    #[error(
        "{kind}: an error of {error} can't be had with a confidence of {confidence}, the least is {least:.3}; \
         allow a larger error, or take the exact table"
    )]
    TooExact {
        /// Which sketch.
        kind: Kind,
        /// The error that was asked for.
        error: f64,
        /// The least error that can be had.
        least: f64,
        /// The share of answers that must be within it.
        confidence: f64,
    },
    /// A parameter out of range.
    #[error("{kind}: {what} must be {range}")]
    Parameter {
        /// Which sketch.
        kind: Kind,
        /// Which parameter.
        what: &'static str,
        /// Its range, in words.
        range: &'static str,
    },
    /// Its tables can't be had.
    #[error("{kind}: memory for its tables, {bytes} bytes, can't be had")]
    Memory {
        /// Which sketch.
        kind: Kind,
        /// The bytes that they take.
        bytes: usize,
    },
}

/// Asks whether memory for tables can be had, before it is taken: what is taken in vain ends the process.
/// That is still so if another thread takes it in between, or the system promises more than it has.
pub(crate) fn need(kind: Kind, bytes: usize) -> Result<(), BuildError> {
    let mut room = Vec::<u8>::new();
    let had = room.try_reserve_exact(bytes);
    // A compiler need not ask for memory that nobody looks at.
    std::hint::black_box(&room);
    had.map_err(|_| BuildError::Memory { kind, bytes })
}

/// The most counters, cells or bits (in words) that a table may have: 2³⁰.
pub(crate) const MAX_CELLS: usize = 1 << 30;

impl Size {
    /// The most bytes that a budget may have: 64 GiB.
    pub const MAX_MEMORY: u64 = 64 << 30;

    /// The most bytes that its tables may take, where that is what it says.
    #[must_use]
    pub const fn budget(self) -> Option<usize> {
        match self {
            Self::Memory(bytes) => Some(bytes),
            Self::Accuracy { .. } => None,
        }
    }

    /// The accuracy with its figures checked, or the budget.
    pub(crate) fn check(self, kind: Kind) -> Result<Self, BuildError> {
        let share = |v: f64| v > 0.0 && v < 1.0;
        let wrong = |what, range| Err(BuildError::Parameter { kind, what, range });
        match self {
            Self::Accuracy { error, .. } if !share(error) => wrong("the error", "above 0 and below 1"),
            Self::Accuracy { confidence, .. } if !share(confidence) => {
                wrong("the confidence", "above 0 and below 1")
            }
            Self::Accuracy { flows: 0, .. } => wrong("the number of flows", "at least 1"),
            // The table of everything goes by no budget.
            Self::Memory(bytes) if bytes as u64 > Self::MAX_MEMORY && kind != Kind::Exact => {
                wrong("the memory", "64 GiB at most")
            }
            other => Ok(other),
        }
    }
}

/// A number of cells that an accuracy asks for, within what is possible.
pub(crate) fn cells(kind: Kind, wanted: f64) -> Result<usize, BuildError> {
    if !(wanted.is_finite() && wanted <= MAX_CELLS as f64) {
        return Err(BuildError::TooLarge {
            kind,
            what: "this accuracy",
            limit: MAX_CELLS as u64,
            of: "cells",
        });
    }
    Ok((wanted.ceil() as usize).max(1))
}

/// Calls a function that is generic over the length of keys for one that is known only now; of another length
/// than those of flows' keys it is worth what stands last.
///
/// ```
/// use slipstream_sketch::{Config, Kind, build, by_key_length};
///
/// fn memory<const N: usize>(config: &Config) -> Option<usize> {
///     build::<N>(config).ok().map(|sketch| sketch.memory_bytes())
/// }
///
/// let config = Config { kind: Kind::CountMin, ..Config::default() };
/// let of_length = |bytes: usize| by_key_length!(bytes, memory(&config), _ => None);
/// assert!(of_length(13) > Some(0));
/// assert_eq!(of_length(12), None);
/// ```
#[macro_export]
macro_rules! by_key_length {
    ($len:expr, $of:ident($($arg:expr),* $(,)?), $other:pat => $otherwise:expr) => {
        match $len {
            4 => $of::<4>($($arg),*),
            8 => $of::<8>($($arg),*),
            13 => $of::<13>($($arg),*),
            16 => $of::<16>($($arg),*),
            32 => $of::<32>($($arg),*),
            37 => $of::<37>($($arg),*),
            $other => $otherwise,
        }
    };
}

/// Calls one of the two functions below. A crate that uses generic code compiles it again, and that of all
/// sketches for all lengths of keys takes a minute: for the lengths of flows' keys, this crate has done it.
/// Its own tests need a few of these only.
macro_rules! compiled_here {
    ($n:ident, $of:ident($($arg:ident: $type:ty),*) -> $error:ty) => {
        compiled_here!($n, $of($($arg: $type),*) -> $error, 4 8 13 16 32 37)
    };
    ($n:ident, $of:ident $args:tt -> $error:ty, $($len:literal)*) => {
        match $n {
            _ if cfg!(test) => compiled_here!(@call $of $args),
            $($len => compiled_here!(@length $len, $of $args -> $error),)*
            _ => compiled_here!(@call $of $args),
        }
    };
    (@call $of:ident($($arg:ident: $type:ty),*)) => { $of($($arg),*) };
    (@length $len:literal, $of:ident($($arg:ident: $type:ty),*) -> $error:ty) => {{
        fn compiled($($arg: $type),*) -> Result<Box<dyn Sketch<$len>>, $error> {
            $of::<$len>($($arg),*)
        }
        compiled($($arg),*).map(same_length)
    }};
}
/// A sketch whose keys are as long as they are said to be, though the compiler can't know.
fn same_length<const N: usize, const M: usize>(sketch: Box<dyn Sketch<N>>) -> Box<dyn Sketch<M>> {
    let sketch: Box<dyn Any> = Box::new(sketch);
    match sketch.downcast::<Box<dyn Sketch<M>>>() {
        Ok(sketch) => *sketch,
        Err(_) => unreachable!("keys of {N} bytes are not of {M}"),
    }
}

/// Makes an empty sketch.
///
/// ```
/// use slipstream_sketch::{Config, Kind, build};
///
/// let config = Config { kind: Kind::CountMin, seed: 7, keep: 100, ..Config::default() };
/// let mut sketch = build::<4>(&config)?;
/// sketch.update(&[10, 0, 0, 1], 5);
/// assert_eq!(sketch.flow_size(&[10, 0, 0, 1]).unwrap().estimate, 5);
/// assert!(sketch.memory_bytes() <= 1 << 20);
/// # Ok::<(), slipstream_sketch::BuildError>(())
/// ```
///
/// # Errors
/// [`BuildError`] where the size is impossible.
pub fn build<const N: usize>(config: &Config) -> Result<Box<dyn Sketch<N>>, BuildError> {
    compiled_here!(N, make(config: &Config) -> BuildError)
}

/// Makes an empty sketch; the code of all sketches is compiled for this length of keys wherever it is called.
fn make<const N: usize>(config: &Config) -> Result<Box<dyn Sketch<N>>, BuildError> {
    let size = config.size.check(config.kind)?;
    let seed = config.seed;
    Ok(match config.kind {
        Kind::CountMin => Box::new(CountMin::<N>::sized(size, seed, config.keep)?),
        Kind::FlowRadar => Box::new(FlowRadar::<N>::sized(size, seed)?),
        Kind::SpaceSaving => Box::new(SpaceSaving::<N>::sized(size, seed)?),
        Kind::RevSketch => Box::new(RevSketch::<N>::sized(size, seed)?),
        Kind::TwoLevel => Box::new(TwoLevel::<N>::sized(size, seed, config.source_len)?),
        Kind::Mrac => Box::new(Mrac::<N>::sized(size, seed)?),
        Kind::Fm => Box::new(Fm::<N>::sized(size, seed)?),
        Kind::LinearCounting => Box::new(LinearCounting::<N>::sized(size, seed)?),
        Kind::UnivMon => Box::new(UnivMon::<N>::sized(size, seed)?),
        Kind::ExaLogLog => Box::new(ExaLogLog::<N>::sized(size, seed)?),
        Kind::ExaLogLogHip => Box::new(ExaLogLogHip::<N>::sized(size, seed)?),
        Kind::DdSketch => Box::new(DdSketch::<N>::sized(size, seed)?),
        Kind::Exact => Box::new(Exact::<N>::new(seed)),
        kind @ Kind::Other(_) => {
            let (what, range) =
                ("the kind", "one of this crate; another crate's sketch has its own constructor");
            return Err(BuildError::Parameter { kind, what, range });
        }
    })
}

/// A sketch by its own parameters, instead of a [`Size`] that they are found for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Params {
    /// [`CountMin::new`].
    CountMin(CountMinParams),
    /// [`FlowRadar::new`].
    FlowRadar(FlowRadarParams),
    /// [`SpaceSaving::new`], with so many entries.
    SpaceSaving(usize),
    /// [`RevSketch::new`], with so many bits of a word.
    RevSketch(u32),
    /// [`TwoLevel::new`].
    TwoLevel(TwoLevelParams),
    /// [`Mrac`], with so many counters.
    Mrac(usize),
    /// [`Fm`], with so many bitmaps.
    Fm(usize),
    /// [`LinearCounting`], with so many words of bits.
    LinearCounting(usize),
    /// [`UnivMon::new`].
    UnivMon(UnivMonParams),
    /// [`Exact::new`].
    Exact,
}

/// Makes an empty sketch of these parameters. Of the lengths of flows' keys it is compiled already, as that
/// of [`build`] is; a caller who makes a sketch by its own `new` compiles it.
///
/// ```
/// use slipstream_sketch::{CountMinParams, Params, build_with};
///
/// let params = CountMinParams { rows: 4, width: 65_536, keep: 0 };
/// let mut sketch = build_with::<4>(Params::CountMin(params), 7)?;
/// sketch.update(&[10, 0, 0, 1], 5);
/// assert_eq!(sketch.flow_size(&[10, 0, 0, 1]).unwrap().estimate, 5);
/// # Ok::<(), slipstream_sketch::BuildError>(())
/// ```
///
/// # Errors
/// [`BuildError`] where a parameter is out of its range.
pub fn build_with<const N: usize>(params: Params, seed: u64) -> Result<Box<dyn Sketch<N>>, BuildError> {
    compiled_here!(N, with(params: Params, seed: u64) -> BuildError)
}

fn with<const N: usize>(params: Params, seed: u64) -> Result<Box<dyn Sketch<N>>, BuildError> {
    Ok(match params {
        Params::CountMin(params) => Box::new(CountMin::<N>::new(params, seed)?),
        Params::FlowRadar(params) => Box::new(FlowRadar::<N>::new(params, seed)?),
        Params::SpaceSaving(entries) => Box::new(SpaceSaving::<N>::new(entries, seed)?),
        Params::RevSketch(bits) => Box::new(RevSketch::<N>::new(bits, seed)?),
        Params::TwoLevel(params) => Box::new(TwoLevel::<N>::new(params, seed)?),
        Params::Mrac(counters) => Box::new(Mrac::<N>::new(counters, seed)?),
        Params::Fm(bitmaps) => Box::new(Fm::<N>::new(bitmaps, seed)?),
        Params::LinearCounting(words) => Box::new(LinearCounting::<N>::new(words, seed)?),
        Params::UnivMon(params) => Box::new(UnivMon::<N>::new(params, seed)?),
        Params::Exact => Box::new(Exact::<N>::new(seed)),
    })
}

/// Reads parameters and tables.
pub(crate) fn decode<const N: usize>(
    kind: Kind,
    seed: u64,
    weight: u64,
    d: &mut Decoder<'_>,
) -> Result<Box<dyn Sketch<N>>, StateError> {
    compiled_here!(N, read(kind: Kind, seed: u64, weight: u64, d: &mut Decoder<'_>) -> StateError)
}

/// Reads parameters and tables; as with [`make`], wherever it is called.
fn read<const N: usize>(
    kind: Kind,
    seed: u64,
    weight: u64,
    d: &mut Decoder<'_>,
) -> Result<Box<dyn Sketch<N>>, StateError> {
    match kind {
        Kind::CountMin => decode_as::<N, CountMin<N>>(seed, weight, d),
        Kind::FlowRadar => decode_as::<N, FlowRadar<N>>(seed, weight, d),
        Kind::SpaceSaving => decode_as::<N, SpaceSaving<N>>(seed, weight, d),
        Kind::RevSketch => decode_as::<N, RevSketch<N>>(seed, weight, d),
        Kind::TwoLevel => decode_as::<N, TwoLevel<N>>(seed, weight, d),
        Kind::Mrac => decode_as::<N, Mrac<N>>(seed, weight, d),
        Kind::Fm => decode_as::<N, Fm<N>>(seed, weight, d),
        Kind::LinearCounting => decode_as::<N, LinearCounting<N>>(seed, weight, d),
        Kind::UnivMon => decode_as::<N, UnivMon<N>>(seed, weight, d),
        Kind::ExaLogLog => decode_as::<N, ExaLogLog<N>>(seed, weight, d),
        Kind::ExaLogLogHip => decode_as::<N, ExaLogLogHip<N>>(seed, weight, d),
        Kind::DdSketch => decode_as::<N, DdSketch<N>>(seed, weight, d),
        Kind::Exact => decode_as::<N, Exact<N>>(seed, weight, d),
        Kind::Other(_) => Err(StateError::Kind(kind.code())),
    }
}
