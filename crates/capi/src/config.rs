//! Settings, as C sees them: structures that say how long they are, so that later ones can be longer.

use core::ffi::{CStr, c_char, c_int};
use core::mem::{MaybeUninit, offset_of, size_of};
use std::hash::{BuildHasher, Hasher, RandomState};

use slipstream_reframe::{Admit, ClassSettings, Encapsulation, Policy, ReframeConfig, Rule};

use crate::error::{Failure, SLIP_E_ARGUMENT, SLIP_E_CONFIG, SLIP_E_NULL, SLIP_OK};
use crate::reframe::SLIP_BURST;

/// Of trains that leave at the same time, that of the oldest flow first.
pub const SLIP_POLICY_OLDEST: u32 = 0;
/// ... the one that waited longest first.
pub const SLIP_POLICY_WAITING: u32 = 1;
/// ... that of the shortest flow first.
pub const SLIP_POLICY_SHORTEST: u32 = 2;

/// A flow is held from its first packet on.
pub const SLIP_ADMIT_ALWAYS: u32 = 0;
/// A flow's first packet passes at once.
pub const SLIP_ADMIT_SECOND: u32 = 1;

/// Packets begin with an Ethernet header.
pub const SLIP_LINK_ETHERNET: u32 = 1;
/// Packets begin with an IP header.
pub const SLIP_LINK_RAW_IP: u32 = 101;

/// Settings of a reframer. slip_reframe_config_init fills in what is usual; change what you want to be
/// otherwise.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct slip_reframe_config {
    /// Bytes of this structure.
    pub size: usize,
    /// Longest wait of any packet, in ns, up to 4 s; 0: packets pass at once.
    pub hold_ns: u64,
    /// Bytes held at most, lengths on the wire, up to 3 GiB; then the oldest train leaves.
    pub capacity_bytes: u64,
    /// Seed of the flow table's hash. 0: a secret one, as it must be where packets come from a network.
    /// Trains don't depend on it.
    pub seed: u64,
    /// Packets that pass at once, after the train of their own flow: a rule such as "tcp syn" or "udp port
    /// 53", or "none". NULL: "tcp syn".
    pub bypass: *const c_char,
    /// Packets in a train at which it leaves at once, 1 to SLIP_BURST.
    pub burst: u32,
    /// Packets held at most, 1 to 2^24; then the oldest train leaves.
    pub capacity: u32,
    /// Flows whose age and size are remembered, 1 to 2^28; at least 1024 and twice the capacity are.
    pub flows: u32,
    /// The order of trains that leave at the same time: SLIP_POLICY_*.
    pub policy: u32,
    /// From which packet on a flow is held: SLIP_ADMIT_*.
    pub admit: u32,
    /// With which header packets begin: SLIP_LINK_*, or another number of the list that captures use
    /// (LINKTYPE_*).
    pub link_type: u32,
    /// 1: the innermost header of a tunnel makes the flow; 0: the outermost one.
    pub inner: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// A structure for C, which begins with its own length.
///
/// # Safety
/// All of it are numbers and pointers, which may be any bytes.
pub(crate) unsafe trait Sized0: Copy {
    /// As it is where nothing is said.
    fn usual() -> Self;

    /// Returns true if a field ends at so many bytes. None of a shorter structure is read or written in part.
    fn ends_a_field(size: usize) -> bool;
}

/// Fields of eight bytes up to here, then of four.
pub(crate) const fn ends_eight_or_four(size: usize, first_of_four: usize) -> bool {
    size.is_multiple_of(if size < first_of_four { 8 } else { 4 })
}

/// Reads a structure of the length that it says: what it lacks is as usual, what it has more must be zeros. A
/// length that ends within a field is none that any version has.
///
/// # Safety
/// `from` is not NULL, and leads to as many bytes as its first word says.
pub(crate) unsafe fn read<T: Sized0>(from: *const T) -> Result<T, Failure> {
    // SAFETY: the caller's promise; the first word is the size.
    let size = unsafe { from.cast::<usize>().read_unaligned() };
    if size < size_of::<usize>() {
        let text = format!("the size of the settings is {size}; fill it in by the function for that");
        return Err(Failure::new(SLIP_E_CONFIG, text));
    }
    if size > 4096 {
        let text = format!("the size of the settings is {size} bytes, more than any version has");
        return Err(Failure::new(SLIP_E_CONFIG, text));
    }
    if size < size_of::<T>() && !T::ends_a_field(size) {
        let text = format!("the size of the settings is {size} bytes, which no version has");
        return Err(Failure::new(SLIP_E_CONFIG, text));
    }
    let mut value = MaybeUninit::new(T::usual());
    let known = size.min(size_of::<T>());
    // SAFETY: as many bytes are there, and any bytes are a `T`.
    let value = unsafe {
        core::ptr::copy_nonoverlapping(from.cast::<u8>(), value.as_mut_ptr().cast(), known);
        value.assume_init()
    };
    // SAFETY: the caller's promise.
    let more = (known..size).any(|at| unsafe { from.cast::<u8>().add(at).read() } != 0);
    if more {
        let text = "a setting that only a later version of the library knows; use that, or leave it 0";
        return Err(Failure::new(SLIP_E_CONFIG, text));
    }
    Ok(value)
}

/// Writes as much of a structure as there is room for; the rest of a longer one becomes zeros.
///
/// # Safety
/// There are `size` bytes at `to` to be written.
pub(crate) unsafe fn write<T: Sized0>(to: *mut T, value: &T, size: usize) {
    let n = size.min(size_of::<T>());
    // SAFETY: the caller's promise; a `T` has no padding, as a test says, so that all its bytes are
    // initialised.
    unsafe {
        core::ptr::copy_nonoverlapping(core::ptr::from_ref(value).cast::<u8>(), to.cast(), n);
        to.cast::<u8>().add(n).write_bytes(0, size - n);
    }
}

// SAFETY: numbers and a pointer.
unsafe impl Sized0 for slip_reframe_config {
    fn usual() -> Self {
        let usual = ReframeConfig::default();
        Self {
            size: size_of::<Self>(),
            hold_ns: usual.default.hold_ns,
            capacity_bytes: usual.capacity_bytes,
            seed: 0,
            bypass: core::ptr::null(),
            burst: u32::from(usual.default.burst),
            capacity: usual.capacity,
            flows: usual.flows,
            policy: SLIP_POLICY_OLDEST,
            admit: SLIP_ADMIT_ALWAYS,
            link_type: SLIP_LINK_ETHERNET,
            inner: 0,
            reserved: 0,
        }
    }

    fn ends_a_field(size: usize) -> bool {
        ends_eight_or_four(size, offset_of!(Self, burst))
    }
}

/// Text of C as text.
///
/// # Safety
/// It is not NULL and ends with a 0.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str, Failure> {
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::new(SLIP_E_CONFIG, format!("{what} is no UTF-8 text")))
}

/// A number that nobody can guess, from the system.
pub(crate) fn secret() -> u64 {
    RandomState::new().build_hasher().finish()
}

impl slip_reframe_config {
    /// As the library wants it.
    ///
    /// # Safety
    /// `bypass` is NULL or text that ends with a 0.
    pub(crate) unsafe fn settings(&self) -> Result<ReframeConfig, Failure> {
        let wrong = |what: &str, value: u32, range: &str| {
            Failure::new(SLIP_E_CONFIG, format!("{what} = {value} is not possible; {range}"))
        };
        if self.reserved != 0 {
            return Err(wrong("reserved", self.reserved, "it is 0"));
        }
        // Two bytes have it below.
        let burst = u16::try_from(self.burst).map_err(|_| {
            let text =
                format!("burst = {} packets is out of range; 1 to {SLIP_BURST} are possible", self.burst);
            Failure::new(SLIP_E_CONFIG, format!("reframe: {text}"))
        })?;
        let usual = ReframeConfig::default();
        let bypass = if self.bypass.is_null() {
            usual.bypass.clone()
        } else {
            // SAFETY: the caller's promise.
            let rule = unsafe { text(self.bypass, "bypass") }?;
            Rule::parse(rule).map_err(|e| Failure::new(SLIP_E_CONFIG, format!("bypass: {e}")))?
        };
        Ok(ReframeConfig {
            default: ClassSettings { hold_ns: self.hold_ns, burst, ..usual.default.clone() },
            capacity: self.capacity,
            capacity_bytes: self.capacity_bytes,
            flows: self.flows,
            policy: match self.policy {
                SLIP_POLICY_OLDEST => Policy::Oldest,
                SLIP_POLICY_WAITING => Policy::Waiting,
                SLIP_POLICY_SHORTEST => Policy::Shortest,
                other => return Err(wrong("policy", other, "take one of SLIP_POLICY_*")),
            },
            admit: match self.admit {
                SLIP_ADMIT_ALWAYS => Admit::Always,
                SLIP_ADMIT_SECOND => Admit::Second,
                other => return Err(wrong("admit", other, "take one of SLIP_ADMIT_*")),
            },
            bypass,
            encapsulation: match self.inner {
                0 => Encapsulation::Outer,
                1 => Encapsulation::Inner,
                other => return Err(wrong("inner", other, "it is 0 or 1")),
            },
            seed: if self.seed == 0 { secret() } else { self.seed },
            ..usual
        })
    }

    /// The link type's number.
    pub(crate) fn link_number(&self) -> Result<u16, Failure> {
        let text = || format!("link_type = {} is not possible; it has 16 bits", self.link_type);
        u16::try_from(self.link_type).map_err(|_| Failure::new(SLIP_E_CONFIG, text()))
    }
}

/// Fills in what is usual: a hold of 64 µs, bursts of 32, room for 8192 packets, "tcp syn" passes at once.
/// `size` is sizeof(slip_reframe_config).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slip_reframe_config_init(config: *mut slip_reframe_config, size: usize) -> c_int {
    // SAFETY: the header asks for it: NULL, or `size` bytes.
    unsafe { init(config, size) }
}

/// See [`slip_reframe_config_init`].
///
/// # Safety
/// `to` is NULL, or there are `size` bytes to be written.
pub(crate) unsafe fn init<T: Sized0>(to: *mut T, size: usize) -> c_int {
    if to.is_null() {
        return SLIP_E_NULL;
    }
    let whole = size >= size_of::<T>() || T::ends_a_field(size);
    if !(size_of::<usize>()..=4096).contains(&size) || !whole {
        return SLIP_E_ARGUMENT;
    }
    // SAFETY: the caller's promise; the first word is the size.
    unsafe {
        write(to, &T::usual(), size);
        to.cast::<usize>().write_unaligned(size);
    }
    SLIP_OK
}
