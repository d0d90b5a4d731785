//! The sketches' functions: a thin layer over `slipstream-sketch`, keys of four lengths.

use core::ffi::{c_char, c_int};
use core::marker::PhantomData;
use core::mem::{offset_of, size_of};
use core::slice::from_raw_parts;

use slipstream_sketch::{
    AggregatorConfig, Bounds, Config, Flow, Front, Kind, QueryError, Size, Update, Want, build, quantile,
};

use crate::config::{Sized0, ends_eight_or_four, init, read, secret, text};
use crate::error::{
    Failure, SLIP_E_ARGUMENT, SLIP_E_BUFFER, SLIP_E_CONFIG, SLIP_E_NULL, SLIP_E_UNSUPPORTED, SLIP_OK,
};
use crate::object::{self, Object, Shell, Shells};

/// Updates that are handed on at once.
const CHUNK: usize = 64;

/// Settings of a sketch. slip_sketch_config_init fills in what is usual; change what you want to be
/// otherwise.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct slip_sketch_config {
    /// Bytes of this structure.
    pub size: usize,
    /// Its kind: "count-min", "flow-radar", "space-saving", "rev-sketch", "two-level", "mrac", "fm",
    /// "linear-counting", "univmon", "exaloglog", "exaloglog-hip", "ddsketch" or "exact". NULL:
    /// "space-saving".
    pub kind: *const c_char,
    /// The most bytes that its tables may take, up to 64 GiB; not of "exact", whose table grows with the
    /// keys.
    pub memory: u64,
    /// Seed of all hashes. Sketches can be merged only where it is the same. 0: a secret one, as it must be
    /// where somebody may choose keys.
    pub seed: u64,
    /// Bytes of a key: 4, 8, 13 or 16.
    pub key_length: u32,
    /// Of "count-min": how many of the heaviest keys it keeps, for slip_sketch_top.
    pub keep: u32,
    /// Of "two-level": how many bytes of the key are the source.
    pub source_length: u32,
    /// 0: none; else an aggregator in front adds up what belongs to one key.
    pub aggregate: u32,
}

// SAFETY: numbers and a pointer.
unsafe impl Sized0 for slip_sketch_config {
    fn usual() -> Self {
        Self {
            size: size_of::<Self>(),
            kind: core::ptr::null(),
            memory: 1 << 20,
            seed: 0,
            key_length: 4,
            keep: 0,
            source_length: 0,
            aggregate: 1,
        }
    }

    fn ends_a_field(size: usize) -> bool {
        ends_eight_or_four(size, offset_of!(Self, key_length))
    }
}

/// The answer of a sketch about a key: the best guess, and bounds that hold as the documentation of its kind
/// says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct slip_estimate {
    /// The best guess.
    pub estimate: u64,
    /// No less than this.
    pub lower: u64,
    /// No more than this.
    pub upper: u64,
}

/// One of the heaviest keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct slip_heavy {
    /// Its size.
    pub size: slip_estimate,
    /// The key, with zeros behind it.
    pub key: [u8; 16],
}

/// The answer of a sketch about all keys together, with bounds as those of slip_estimate.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct slip_figure {
    /// The best guess.
    pub estimate: f64,
    /// No less than this.
    pub lower: f64,
    /// No more than this.
    pub upper: f64,
}

impl From<Bounds<f64>> for slip_figure {
    fn from(Bounds { estimate, lower, upper }: Bounds<f64>) -> Self {
        Self { estimate, lower, upper }
    }
}

/// The number of keys that have one size.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct slip_size_count {
    /// The size.
    pub size: u64,
    /// Keys of that size, as estimated.
    pub keys: f64,
}

impl From<Bounds<u64>> for slip_estimate {
    fn from(Bounds { estimate, lower, upper }: Bounds<u64>) -> Self {
        Self { estimate, lower, upper }
    }
}

/// A sketch: how much came of which key, in little memory. Different ones may be used by different threads;
/// one of them by one thread at a time. After slip_sketch_free, the same holds as for a reframer.
#[derive(Debug)]
pub struct slip_sketch {
    _shell: PhantomData<Shell<AnySketch>>,
}

/// Behind the pointer: a sketch of each length of keys.
#[derive(Debug)]
pub(crate) enum AnySketch {
    Four(Front<4>),
    Eight(Front<8>),
    Thirteen(Front<13>),
    Sixteen(Front<16>),
}

static SHELLS: Shells<AnySketch> = Shells::new();

impl Object for AnySketch {
    const MAGIC: u64 = 0x736c_6970_736b_6574;

    fn shells() -> &'static Shells<Self> {
        &SHELLS
    }
}

/// Does the same to the sketch of each length.
macro_rules! each {
    ($sketch:expr, $front:ident => $work:expr) => {
        match $sketch {
            AnySketch::Four($front) => $work,
            AnySketch::Eight($front) => $work,
            AnySketch::Thirteen($front) => $work,
            AnySketch::Sixteen($front) => $work,
        }
    };
}

/// The same address, as the library sees it.
fn shell(sketch: *const slip_sketch) -> *mut Shell<AnySketch> {
    sketch.cast_mut().cast()
}

fn front<const N: usize>(config: &Config, aggregate: bool) -> Result<Front<N>, Failure> {
    let wrong = |text: String| Failure::new(SLIP_E_CONFIG, text);
    let sketch = build::<N>(config).map_err(|e| wrong(e.to_string()))?;
    if !aggregate {
        return Ok(Front::plain(sketch));
    }
    let aggregator = AggregatorConfig { seed: config.seed, ..AggregatorConfig::default() };
    Front::aggregated(sketch, &aggregator).map_err(|e| wrong(e.to_string()))
}

/// A burst of updates whose bytes stand one key behind the other.
fn add<const N: usize>(front: &mut Front<N>, keys: &[u8], weights: Option<&[u32]>) {
    let mut updates = [Update { key: [0; N], weight: 1 }; CHUNK];
    let (keys, _) = keys.as_chunks::<N>();
    for (chunk, keys) in keys.chunks(CHUNK).enumerate() {
        let weights = weights.and_then(|w| w.get(chunk * CHUNK..)).unwrap_or_default();
        let weights = weights.iter().copied().chain(core::iter::repeat(1));
        for ((update, key), weight) in updates.iter_mut().zip(keys).zip(weights) {
            *update = Update { key: *key, weight };
        }
        front.update_all(updates.get(..keys.len()).unwrap_or_default());
    }
}

fn unsupported(error: &QueryError) -> Failure {
    Failure::new(SLIP_E_UNSUPPORTED, error.to_string())
}

fn top<const N: usize>(front: &mut Front<N>, want: Want) -> Result<Vec<slip_heavy>, Failure> {
    front.settled().heavy_hitters(want).map(heavy).map_err(|e| unsupported(&e))
}

fn spreaders<const N: usize>(
    front: &mut Front<N>,
    source_length: usize,
    want: Want,
) -> Result<Vec<slip_heavy>, Failure> {
    if source_length == 0 || source_length >= N {
        let text =
            format!("source_length = {source_length}: of keys of {N} bytes a source has 1 to {}", N - 1);
        return Err(Failure::new(SLIP_E_ARGUMENT, text));
    }
    front.settled().superspreaders(source_length, want).map(heavy).map_err(|e| unsupported(&e))
}

fn heavy<const N: usize>(flows: Vec<Flow<N>>) -> Vec<slip_heavy> {
    let heavy = |flow: &Flow<N>| {
        let mut key = [0; 16];
        key.iter_mut().zip(flow.key).for_each(|(to, from)| *to = from);
        slip_heavy { size: flow.size.into(), key }
    };
    flows.iter().map(heavy).collect()
}

/// Asks a sketch for a list of at most `n` answers, for which `to` has room; how many it wrote, or a negative
/// code.
///
/// # Safety
/// As the header asks for it: a sketch, and room for `n` answers or NULL.
unsafe fn list<T: Copy>(
    sketch: *mut slip_sketch,
    to: *mut T,
    n: u32,
    ask: impl Fn(&mut AnySketch, usize) -> Result<Vec<T>, Failure>,
) -> i32 {
    let work = |sketch: &mut AnySketch| {
        if to.is_null() {
            return Err(SLIP_E_NULL.into());
        }
        if n == 0 {
            return Err(SLIP_E_BUFFER.into());
        }
        let most = n.min(i32::MAX as u32) as usize;
        let mut found = ask(sketch, most)?;
        found.truncate(most);
        for (at, one) in found.iter().enumerate() {
            // SAFETY: `at` is below `n`, and the caller has room for so many.
            unsafe { to.add(at).write_unaligned(*one) };
        }
        Ok(found.len() as i32)
    };
    // SAFETY: the caller's promise.
    unsafe { object::with(shell(sketch), work) }
}

/// Asks a sketch for a figure.
///
/// # Safety
/// As the header asks for it: a sketch, and room for a figure or NULL.
unsafe fn figure(
    sketch: *mut slip_sketch,
    figure: *mut slip_figure,
    ask: impl Fn(&mut AnySketch) -> Result<Bounds<f64>, Failure>,
) -> c_int {
    let work = |sketch: &mut AnySketch| {
        if figure.is_null() {
            return Err(SLIP_E_NULL.into());
        }
        let found = ask(sketch)?;
        // SAFETY: the caller's promise.
        unsafe { figure.write_unaligned(found.into()) };
        Ok(SLIP_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { object::with(shell(sketch), work) }
}

/// Fills in what is usual: 1 MiB of "space-saving" with keys of 4 bytes, an aggregator in front. `size` is
/// sizeof(slip_sketch_config).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slip_sketch_config_init(config: *mut slip_sketch_config, size: usize) -> c_int {
    // SAFETY: the header asks for it: NULL, or `size` bytes.
    unsafe { init(config, size) }
}

/// Makes a sketch. `config` is NULL for what is usual. Where a setting can't be had, or the memory that it
/// takes, NULL is returned, and `error`, a buffer of `error_size` bytes (NULL where there is none), says why.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slip_sketch_new(
    config: *const slip_sketch_config,
    error: *mut c_char,
    error_size: usize,
) -> *mut slip_sketch {
    let build = || {
        let config = if config.is_null() {
            slip_sketch_config::usual()
        } else {
            // SAFETY: the header asks for it: as many bytes as the first word says.
            unsafe { read(config) }?
        };
        let kind = if config.kind.is_null() {
            Kind::SpaceSaving
        } else {
            // SAFETY: the header asks for it: text.
            let name = unsafe { text(config.kind, "kind") }?;
            Kind::from_name(name).ok_or_else(|| {
                let names = Kind::ALL.map(Kind::name).join(", ");
                Failure::new(SLIP_E_CONFIG, format!("kind = {name:?} is none; there are {names}"))
            })?
        };
        let made = Config {
            kind,
            size: Size::Memory(usize::try_from(config.memory).unwrap_or(usize::MAX)),
            seed: if config.seed == 0 { secret() } else { config.seed },
            keep: config.keep as usize,
            source_len: config.source_length as usize,
        };
        let aggregate = config.aggregate != 0;
        match config.key_length {
            4 => front(&made, aggregate).map(AnySketch::Four),
            8 => front(&made, aggregate).map(AnySketch::Eight),
            13 => front(&made, aggregate).map(AnySketch::Thirteen),
            16 => front(&made, aggregate).map(AnySketch::Sixteen),
            other => {
                let text = format!("key_length = {other} is not possible; there are 4, 8, 13 and 16");
                Err(Failure::new(SLIP_E_CONFIG, text))
            }
        }
    };
    // SAFETY: the header asks for it: NULL, or so many bytes.
    unsafe { object::make(error, error_size, build) }.cast()
}

/// Adds `n` keys, which stand at `keys` one behind the other, with their weights (packets or bytes); NULL:
/// each counts 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slip_sketch_add_burst(
    sketch: *mut slip_sketch,
    keys: *const u8,
    weights: *const u32,
    n: u32,
) -> c_int {
    let work = |sketch: &mut AnySketch| {
        if n == 0 {
            return Ok(SLIP_OK);
        }
        if keys.is_null() {
            return Err(SLIP_E_NULL.into());
        }
        if !weights.is_aligned() {
            return Err(Failure::new(SLIP_E_ARGUMENT, "weights is not aligned as a uint32_t is"));
        }
        let bytes = n as usize * key_length(sketch);
        // SAFETY: the header asks for it: `n` keys, and as many weights or NULL.
        let (keys, weights) = unsafe {
            let weights = (!weights.is_null()).then(|| from_raw_parts(weights, n as usize));
            (from_raw_parts(keys, bytes), weights)
        };
        each!(sketch, front => add(front, keys, weights));
        Ok(SLIP_OK)
    };
    // SAFETY: the header asks for it.
    unsafe { object::with(shell(sketch), work) }
}

fn key_length(sketch: &AnySketch) -> usize {
    match sketch {
        AnySketch::Four(_) => 4,
        AnySketch::Eight(_) => 8,
        AnySketch::Thirteen(_) => 13,
        AnySketch::Sixteen(_) => 16,
    }
}

/// Estimates the weight of a key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slip_sketch_estimate(
    sketch: *mut slip_sketch,
    key: *const u8,
    estimate: *mut slip_estimate,
) -> c_int {
    let work = |sketch: &mut AnySketch| {
        if key.is_null() || estimate.is_null() {
            return Err(SLIP_E_NULL.into());
        }
        // SAFETY: the header asks for it: a key.
        let key = unsafe { from_raw_parts(key, key_length(sketch)) };
        let size = each!(sketch, front => {
            let key = key.first_chunk().ok_or(SLIP_E_ARGUMENT)?;
            front.settled().flow_size(key).map_err(|e| unsupported(&e))?
        });
        // SAFETY: the header asks for it: room for one.
        unsafe { estimate.write_unaligned(size.into()) };
        Ok(SLIP_OK)
    };
    // SAFETY: the header asks for it.
    unsafe { object::with(shell(sketch), work) }
}

/// Writes the heaviest keys of at least `threshold`, the heaviest first, to `heavy`, which has room for `n`.
/// Returns how many, or a negative code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slip_sketch_top(
    sketch: *mut slip_sketch,
    threshold: u64,
    heavy: *mut slip_heavy,
    n: u32,
) -> i32 {
    let ask = |sketch: &mut AnySketch, most| {
        let want = Want { threshold, top: most };
        each!(sketch, front => top(front, want))
    };
    // SAFETY: the header asks for it.
    unsafe { list(sketch, heavy, n, ask) }
}

/// Says that answers are worse than the documentation of the sketch's kind states: a table is full, or
/// counters are. 1: they are; 0: they aren't; or a negative code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slip_sketch_is_saturated(sketch: *mut slip_sketch) -> c_int {
    let work =
        |sketch: &mut AnySketch| Ok(c_int::from(each!(sketch, front => front.settled().is_saturated())));
    // SAFETY: the header asks for it.
    unsafe { object::with(shell(sketch), work) }
}

/// Writes the sources with the most distinct counterparts, at least `threshold` of them, the first the one
/// with most, to `heavy`, which has room for `n`. The source is the first `source_length` bytes of a key, the
/// counterpart the others. Returns how many, or a negative code. Kinds: "two-level" (with the source_length
/// that it was made with), "flow-radar", "exact".
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slip_sketch_spreaders(
    sketch: *mut slip_sketch,
    source_length: u32,
    threshold: u64,
    heavy: *mut slip_heavy,
    n: u32,
) -> i32 {
    let ask = |sketch: &mut AnySketch, most| {
        let want = Want { threshold, top: most };
        each!(sketch, front => spreaders(front, source_length as usize, want))
    };
    // SAFETY: the header asks for it.
    unsafe { list(sketch, heavy, n, ask) }
}

/// Tells how many distinct keys came. Kinds: "linear-counting", "fm", "exaloglog", "exaloglog-hip",
/// "univmon", "flow-radar", "mrac", "exact". SLIP_E_UNSUPPORTED also where it is saturated, as
/// slip_sketch_error then says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slip_sketch_cardinality(
    sketch: *mut slip_sketch,
    figure: *mut slip_figure,
) -> c_int {
    let ask = |sketch: &mut AnySketch| {
        let found = each!(sketch, front => front.settled().cardinality());
        found.map_err(|e| unsupported(&e))
    };
    // SAFETY: the header asks for it.
    unsafe { self::figure(sketch, figure, ask) }
}

/// Tells the entropy of the sizes of keys, in bits. Kinds: "univmon", "flow-radar", "exact".
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slip_sketch_entropy(sketch: *mut slip_sketch, figure: *mut slip_figure) -> c_int {
    let ask = |sketch: &mut AnySketch| {
        let found = each!(sketch, front => front.settled().entropy());
        found.map_err(|e| unsupported(&e))
    };
    // SAFETY: the header asks for it.
    unsafe { self::figure(sketch, figure, ask) }
}

/// Tells the weight that the share `q` of all weights is no more than, 0 to 1. Kind: "ddsketch", each of
/// whose weights is a value by itself, so that it has no aggregator in front. SLIP_E_ARGUMENT where there is
/// no value yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slip_sketch_quantile(
    sketch: *mut slip_sketch,
    q: f64,
    figure: *mut slip_figure,
) -> c_int {
    let ask = |sketch: &mut AnySketch| {
        if !(0.0..=1.0).contains(&q) {
            return Err(Failure::new(SLIP_E_ARGUMENT, format!("q = {q} is not 0 to 1")));
        }
        let ranges = each!(sketch, front => front.settled().value_ranges());
        let ranges = ranges.map_err(|e| unsupported(&e))?;
        quantile(&ranges, q).ok_or_else(|| Failure::new(SLIP_E_ARGUMENT, "there is no value yet"))
    };
    // SAFETY: the header asks for it.
    unsafe { self::figure(sketch, figure, ask) }
}

/// Writes how many keys have which size, in ascending order of sizes, to `counts`, which has room for `n`.
/// Returns how many it wrote, or a negative code. Kinds: "mrac", "flow-radar", "exact".
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slip_sketch_distribution(
    sketch: *mut slip_sketch,
    counts: *mut slip_size_count,
    n: u32,
) -> i32 {
    let ask = |sketch: &mut AnySketch, _| {
        let found = each!(sketch, front => front.settled().size_distribution());
        let counts = found.map_err(|e| unsupported(&e))?.into_iter();
        Ok(counts.map(|(size, keys)| slip_size_count { size, keys }).collect())
    };
    // SAFETY: the header asks for it.
    unsafe { list(sketch, counts, n, ask) }
}

/// Adds what `from` has seen to `sketch`, and empties `from`. Both must be of one kind, size, seed and length
/// of keys. Where they can't be added up, nothing changes in either. After SLIP_E_INTERNAL what was under way
/// is not undone: both answer nothing but that from then on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slip_sketch_merge(sketch: *mut slip_sketch, from: *mut slip_sketch) -> c_int {
    if core::ptr::eq(sketch, from) {
        let refuse = |_: &mut AnySketch| {
            Err(Failure::new(SLIP_E_ARGUMENT, "a sketch can't be added to itself: there are to be two"))
        };
        // SAFETY: the header asks for it.
        return unsafe { object::with(shell(sketch), refuse) };
    }
    let work = |into: &mut AnySketch, from: &mut AnySketch| {
        let merged = match (into, from) {
            (AnySketch::Four(into), AnySketch::Four(from)) => into.absorb(from),
            (AnySketch::Eight(into), AnySketch::Eight(from)) => into.absorb(from),
            (AnySketch::Thirteen(into), AnySketch::Thirteen(from)) => into.absorb(from),
            (AnySketch::Sixteen(into), AnySketch::Sixteen(from)) => into.absorb(from),
            _ => return Err(Failure::new(SLIP_E_UNSUPPORTED, "the keys have different lengths")),
        };
        merged.map_err(|e| Failure::new(SLIP_E_UNSUPPORTED, e.to_string()))?;
        Ok(SLIP_OK)
    };
    // SAFETY: the header asks for it; `from` is another object than `sketch`.
    unsafe { object::with_both(shell(sketch), shell(from), work) }
}

/// Returns the text of the last error with this sketch. The text is there until the next one
/// fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slip_sketch_error(sketch: *const slip_sketch) -> *const c_char {
    // SAFETY: the header asks for it.
    unsafe { object::text(shell(sketch)) }
}

/// Frees a sketch. Nothing happens for NULL; SLIP_E_OBJECT for one that was freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slip_sketch_free(sketch: *mut slip_sketch) -> c_int {
    // SAFETY: the header asks for it.
    unsafe { object::free(shell(sketch)) }
}
