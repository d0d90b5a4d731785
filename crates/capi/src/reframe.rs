//! The reframer's functions.

use core::cell::Cell;
use core::ffi::{c_char, c_int};
use core::marker::PhantomData;
use core::slice::{from_raw_parts, from_raw_parts_mut};

use slipstream_reframe::embed::{AHEAD, EmbedError, Packet, PushError, Reframer, Train};
use slipstream_reframe::{LinkType, Nanos};

use crate::config::{Sized0, read, slip_reframe_config, write};
use crate::error::{
    Failure, SLIP_E_ARGUMENT, SLIP_E_BUFFER, SLIP_E_CONFIG, SLIP_E_NULL, SLIP_E_TIME, SLIP_E_TOO_MANY,
    SLIP_E_UNPOLLED, SLIP_OK,
};
use crate::object::{self, Object, Shell, Shells};
use crate::packet::{slip_packet, slip_train};
use crate::stats::slip_stats;

/// Packets in a burst, and in a train, at most.
pub const SLIP_BURST: u32 = 256;
/// The flow number of a packet that belongs to none.
pub const SLIP_NO_FLOW: u32 = 0xffff_ffff;
/// The deadline where nothing is inside.
pub const SLIP_NEVER: u64 = 0xffff_ffff_ffff_ffff;

/// The latest time in ns at which packets can arrive, about 584 years: a push after that returns
/// SLIP_E_ARGUMENT.
pub const SLIP_LAST: u64 = 0xffff_ffff_1194_d7fd;

const _: () = assert!(SLIP_LAST == Reframer::LAST.0);

/// A reframer: handles of packets go in as the packets come, and out as trains, packets of a flow back to
/// back.
///
/// A handle is any number that says to the caller which packet it is (an index into a mempool, for example);
/// the bytes are read while a push runs and never again. Packets are pushed in the order of their arrival,
/// with the time at which they arrived; times are nanoseconds of any clock that does not run backwards, and
/// several packets may have the same. What has left by some time is polled with that time, until there is no
/// more, as often as one likes: what comes out, in which order and with which release times depends on the
/// packets and their times alone, not on when one polled. A train leaves when it is full, when its first
/// packet has waited for hold_ns, when there is no room, or when a packet of its flow passes at once;
/// whatever leaves at the same nanosecond leaves in the order of the policy, so that slip_reframe_poll gives
/// it from the next nanosecond on. Between packets, poll again at slip_reframe_next_deadline. Who pushes and
/// never polls is refused once 2 * capacity + SLIP_BURST handles are inside, held and waiting together;
/// nothing is ever lost, and every handle that was taken comes out exactly once. At the end, call
/// slip_reframe_drain and poll the rest. There is no thread, no clock and no file inside, and no allocation
/// between slip_reframe_new and slip_reframe_free but of slip_reframe_stats and of texts of errors.
///
/// Different reframers may be used by different threads; one of them by one thread at a time. After
/// slip_reframe_free a pointer is no longer to be used: until a thousand more reframers were freed, functions
/// then return SLIP_E_OBJECT and do nothing; after that the pointer may be that of another. A pointer that
/// slip_reframe_new never returned can't be told from one that it did.
#[derive(Debug)]
pub struct slip_reframe {
    _shell: PhantomData<Shell<Inside>>,
}

/// The reframer behind the pointer.
#[derive(Debug)]
pub(crate) struct Inside(Reframer);

static SHELLS: Shells<Inside> = Shells::new();

impl Object for Inside {
    const MAGIC: u64 = 0x7265_6672_616d_6572;

    fn shells() -> &'static Shells<Self> {
        &SHELLS
    }
}

/// The same address, as the library sees it.
fn shell(reframe: *const slip_reframe) -> *mut Shell<Inside> {
    reframe.cast_mut().cast()
}

impl From<PushError> for Failure {
    #[cold]
    fn from(error: PushError) -> Self {
        let code = match error {
            PushError::TimeRanBackwards { .. } => SLIP_E_TIME,
            PushError::EndOfTime(_) => SLIP_E_ARGUMENT,
            PushError::TooMany(_) => SLIP_E_TOO_MANY,
            PushError::Unpolled(_) => SLIP_E_UNPOLLED,
        };
        Self::new(code, error.to_string())
    }
}

impl From<EmbedError> for Failure {
    fn from(error: EmbedError) -> Self {
        Self::new(SLIP_E_CONFIG, error.to_string())
    }
}

/// Makes a reframer. `config` is NULL for what is usual. Where a setting can't be had, or the memory that it
/// asks for, NULL is returned, and `error`, a buffer of `error_size` bytes (NULL where there is none), says
/// why. Memory is asked for before it is taken: where another thread takes it in between, or the system
/// promised what it doesn't have, the process ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slip_reframe_new(
    config: *const slip_reframe_config,
    error: *mut c_char,
    error_size: usize,
) -> *mut slip_reframe {
    let build = || {
        let config = if config.is_null() {
            slip_reframe_config::usual()
        } else {
            // SAFETY: the header asks for it: as many bytes as the first word says.
            unsafe { read(config) }?
        };
        // SAFETY: the header asks for it: text, or NULL.
        let settings = unsafe { config.settings() }?;
        let link = LinkType::from_number(config.link_number()?);
        Ok(Inside(Reframer::new(&settings)?.with_link(link)))
    };
    // SAFETY: the header asks for it: NULL, or so many bytes.
    unsafe { object::make(error, error_size, build) }.cast()
}

/// Takes a packet that arrived at `now_ns`, with its bytes from the link-layer header on. Returns SLIP_OK, or
/// a code; the packet is still the caller's then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slip_reframe_push(
    reframe: *mut slip_reframe,
    now_ns: u64,
    handle: u32,
    data: *const u8,
    length: u32,
) -> c_int {
    let push = |inside: &mut Inside| {
        if data.is_null() && length > 0 {
            return Err(SLIP_E_NULL.into());
        }
        // SAFETY: the header asks for it: as many bytes are there.
        let bytes = if data.is_null() { &[] } else { unsafe { from_raw_parts(data, length as usize) } };
        inside.0.push(Nanos(now_ns), handle, bytes)?;
        Ok(SLIP_OK)
    };
    // SAFETY: the header asks for it.
    unsafe { object::with(shell(reframe), push) }
}

/// Takes `n` packets, up to SLIP_BURST, that arrived at `now_ns`, in the order of their arrival. Returns
/// SLIP_OK, or a code; all packets are still the caller's then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slip_reframe_push_burst(
    reframe: *mut slip_reframe,
    packets: *const slip_packet,
    n: u32,
    now_ns: u64,
) -> c_int {
    let push = |inside: &mut Inside| {
        if n == 0 {
            return Ok(SLIP_OK);
        }
        if packets.is_null() {
            return Err(SLIP_E_NULL.into());
        }
        if !packets.is_aligned() {
            return Err(Failure::new(SLIP_E_ARGUMENT, "packets is not aligned as a slip_packet is"));
        }
        if n > SLIP_BURST {
            return Err(PushError::TooMany(n as usize).into());
        }
        // SAFETY: the header asks for it: so many packets.
        let packets = unsafe { from_raw_parts(packets, n as usize) };
        // Mostly nobody has a key. That shows while the packets are read: in one pass, and without a branch
        // for each.
        if packets.first().is_some_and(slip_packet::is_usual) {
            let usual = Cell::new(true);
            let read = packets.iter().map(|p| -> Packet<'_> {
                usual.set(usual.get() & p.is_usual());
                // SAFETY: the header asks for it: bytes that nobody changes while this runs.
                unsafe { p.bytes() }
            });
            let ahead = packets.iter().skip(AHEAD).map(|p| p.data);
            if inside.0.push_burst_if(Nanos(now_ns), read, ahead, || usual.get())? {
                return Ok(SLIP_OK);
            }
        }
        for (at, packet) in packets.iter().enumerate() {
            // SAFETY: the header asks for it: NULL, or a key.
            unsafe { packet.check(at) }?;
        }
        // SAFETY: the header asks for it: bytes and keys that nobody changes while this runs.
        let any = packets.iter().map(|p| -> Packet<'_> { unsafe { p.packet() } });
        inside.0.push_burst(Nanos(now_ns), any)?;
        Ok(SLIP_OK)
    };
    // SAFETY: the header asks for it.
    unsafe { object::with(shell(reframe), push) }
}

/// Writes trains that left before `now_ns`, or at that time for good, to `trains` (room for `n_trains`, at
/// least 1), and the handles of their packets, one train behind the other, to `handles` (room for
/// `n_handles`, at least SLIP_BURST). Returns how many trains, 0 when there is no more, or a negative code.
/// Time passes to `now_ns`: a packet that is pushed with an earlier time later on counts as one that arrives
/// at `now_ns`. An earlier time than before asks for what has left already. Whoever polls a time after
/// SLIP_LAST has all that was pushed, and can push no more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slip_reframe_poll(
    reframe: *mut slip_reframe,
    now_ns: u64,
    trains: *mut slip_train,
    n_trains: u32,
    handles: *mut u32,
    n_handles: u32,
) -> i32 {
    let poll = |inside: &mut Inside| {
        if trains.is_null() || handles.is_null() {
            return Err(SLIP_E_NULL.into());
        }
        if n_trains == 0 || n_handles < SLIP_BURST {
            return Err(SLIP_E_BUFFER.into());
        }
        if !trains.is_aligned() || !handles.is_aligned() {
            return Err(Failure::new(SLIP_E_ARGUMENT, "trains or handles is not aligned as its type is"));
        }
        let n_trains = n_trains.min(i32::MAX as u32) as usize;
        let (from, until) = (trains.addr(), trains.wrapping_add(n_trains).addr());
        let (first, end) = (handles.addr(), handles.wrapping_add(n_handles as usize).addr());
        if from < end && first < until {
            return Err(Failure::new(SLIP_E_ARGUMENT, "trains and handles overlap"));
        }
        // SAFETY: the header asks for it: so many numbers, to be written.
        let handles = unsafe { from_raw_parts_mut(handles, n_handles as usize) };
        let (n, _) = inside.0.poll_burst(Nanos(now_ns), n_trains, handles, |at, train| {
            // SAFETY: `at` is below `n_trains`, and the header asks for so many.
            unsafe { trains.add(at).write(described(&train)) };
        });
        Ok(n as i32)
    };
    // SAFETY: the header asks for it.
    unsafe { object::with(shell(reframe), poll) }
}

/// The same without a copy: writes trains that left before `now_ns`, or at that time for good, to `trains`
/// (room for `n_trains`, at least 1), and to `handles` where the handles of their packets stand, one train
/// behind the other. They stand there until the next call with this reframer. Returns how many trains, 0 when
/// there is no more, or a negative code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slip_reframe_poll_lent(
    reframe: *mut slip_reframe,
    now_ns: u64,
    trains: *mut slip_train,
    n_trains: u32,
    handles: *mut *const u32,
) -> i32 {
    let poll = |inside: &mut Inside| {
        if trains.is_null() || handles.is_null() {
            return Err(SLIP_E_NULL.into());
        }
        if n_trains == 0 {
            return Err(SLIP_E_BUFFER.into());
        }
        if !trains.is_aligned() || !handles.is_aligned() {
            return Err(Failure::new(SLIP_E_ARGUMENT, "trains or handles is not aligned as its type is"));
        }
        let n_trains = n_trains.min(i32::MAX as u32) as usize;
        let (n, lent) = inside.0.poll_lent(Nanos(now_ns), n_trains, |at, train| {
            // SAFETY: `at` is below `n_trains`, and the header asks for so many.
            unsafe { trains.add(at).write(described(&train)) };
        });
        // SAFETY: the header asks for it: a pointer, to be written.
        unsafe { handles.write(lent.as_ptr()) };
        Ok(n as i32)
    };
    // SAFETY: the header asks for it.
    unsafe { object::with(shell(reframe), poll) }
}

/// A train as C sees it.
#[inline(always)]
fn described(train: &Train<'_>) -> slip_train {
    slip_train { release_ns: train.release.0, flow: train.flow, count: train.handles.len() as u32 }
}

/// The first time in ns at which slip_reframe_poll will give something if no packet comes; SLIP_NEVER when
/// nothing is inside, and for an object that is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slip_reframe_next_deadline(reframe: *const slip_reframe) -> u64 {
    let mut deadline = SLIP_NEVER;
    let ask = |inside: &mut Inside| {
        deadline = inside.0.next_deadline().0;
        Ok(SLIP_OK)
    };
    // SAFETY: the header asks for it.
    unsafe { object::with(shell(reframe), ask) };
    deadline
}

/// Everything that is inside leaves now, to be polled. The reframer can go on afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slip_reframe_drain(reframe: *mut slip_reframe) -> c_int {
    let drain = |inside: &mut Inside| {
        inside.0.drain();
        Ok(SLIP_OK)
    };
    // SAFETY: the header asks for it.
    unsafe { object::with(shell(reframe), drain) }
}

/// Fills in the counters, as many as `stats->size` has room for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slip_reframe_stats(reframe: *const slip_reframe, stats: *mut slip_stats) -> c_int {
    let count = |inside: &mut Inside| {
        if stats.is_null() {
            return Err(SLIP_E_NULL.into());
        }
        // SAFETY: the header asks for it: the first word is the size.
        let size = unsafe { stats.cast::<usize>().read_unaligned() };
        let whole = size >= size_of::<slip_stats>() || slip_stats::ends_a_field(size);
        if !(size_of::<usize>()..=4096).contains(&size) || !whole {
            let text = format!("stats->size = {size}; set it to sizeof(slip_stats)");
            return Err(Failure::new(SLIP_E_BUFFER, text));
        }
        let counted = slip_stats { size, ..slip_stats::of(&inside.0) };
        // SAFETY: the header asks for it: as many bytes as `size` says.
        unsafe { write(stats, &counted, size) };
        Ok(SLIP_OK)
    };
    // SAFETY: the header asks for it.
    unsafe { object::with(shell(reframe), count) }
}

/// Returns the text of the last error with this reframer. The text is there until the next one
/// fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slip_reframe_error(reframe: *const slip_reframe) -> *const c_char {
    // SAFETY: the header asks for it.
    unsafe { object::text(shell(reframe)) }
}

/// Frees a reframer, and what it holds: those handles do not come out. Nothing happens for NULL;
/// SLIP_E_OBJECT for one that was freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slip_reframe_free(reframe: *mut slip_reframe) -> c_int {
    // SAFETY: the header asks for it.
    unsafe { object::free(shell(reframe)) }
}
