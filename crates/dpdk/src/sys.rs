//! The C side, `shim.c`, and safe functions over it. Almost all that is unsafe is here.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr::{NonNull, null_mut};

/// A place that is none: see [`Place`].
pub(crate) const ELSEWHERE: u32 = u32::MAX;
/// Packets of a burst, at most.
pub(crate) const BURST: usize = 256;

/// An mbuf, of which only C knows more.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Mbuf(*mut c_void);

// SAFETY: an address; who has it may use the mbuf from any thread.
unsafe impl Send for Mbuf {}

impl Mbuf {
    pub(crate) const NONE: Self = Self(null_mut());
}

/// Place of a packet: its unit of 64 bytes, or [`ELSEWHERE`], and its length.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Place {
    pub(crate) unit: u32,
    pub(crate) len: u32,
}

/// A mempool and where its memory is. It is one until [`free`](Memory::free).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Memory {
    mempool: NonNull<c_void>,
    start: NonNull<u8>,
    size: usize,
    first: usize,
    stride: usize,
    len: usize,
    time_at: c_int,
}

// SAFETY: a mempool is used by any number of threads at once.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// The configuration of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Setup {
    /// Queues to receive from; when it was opened: those that it has.
    pub(crate) queues: u16,
    pub(crate) ring: u16,
    /// 0: as the device has it.
    pub(crate) mtu: u16,
    /// Shards that share it, at least 1.
    pub(crate) shards: u16,
    /// When it was opened: queues to send to.
    pub(crate) senders: u16,
}

/// Counters of a device.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Stats {
    pub(crate) received: u64,
    pub(crate) sent: u64,
    pub(crate) missed: u64,
    pub(crate) errors: u64,
    pub(crate) send_errors: u64,
    pub(crate) no_mbuf: u64,
}

/// Packets that went from one device to another, and their bytes.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Relayed {
    pub(crate) received: u32,
    /// The device had no room for the others.
    pub(crate) sent: u32,
    pub(crate) bytes_received: u64,
    pub(crate) bytes_sent: u64,
}

unsafe extern "C" {
    fn slip_dpdk_error(number: c_int) -> *const c_char;
    fn slip_dpdk_start(argc: c_int, argv: *mut *mut c_char) -> c_int;
    fn slip_dpdk_stop() -> c_int;
    fn slip_dpdk_folder() -> *const c_char;
    fn slip_dpdk_memory_new(mbufs: u32, room: u16, memory: *mut Memory) -> c_int;
    fn slip_dpdk_memory_free(memory: *const Memory) -> u32;
    fn slip_dpdk_free_mbufs(memory: *const Memory) -> u32;
    fn slip_dpdk_take(memory: *const Memory) -> u32;
    fn slip_dpdk_give_back(memory: *const Memory, units: *const u32, n: u32);
    fn slip_dpdk_find(
        name: *const c_char,
        arguments: *const c_char,
        port: *mut u16,
        made: *mut bool,
    ) -> c_int;
    fn slip_dpdk_name(n: u16) -> *const c_char;
    fn slip_dpdk_open(port: u16, memory: *const Memory, setup: *mut Setup) -> c_int;
    fn slip_dpdk_promiscuous(port: u16);
    fn slip_dpdk_find_time(port: u16, memory: *mut Memory) -> c_int;
    fn slip_dpdk_close(port: u16, remove: bool);
    fn slip_dpdk_stats(port: u16, stats: *mut Stats);
    fn slip_dpdk_receive(
        port: u16,
        queue: u16,
        memory: *const Memory,
        mbufs: *mut Mbuf,
        places: *mut Place,
        max: u16,
    ) -> u16;
    fn slip_dpdk_time(memory: *const Memory, mbuf: Mbuf) -> u64;
    fn slip_dpdk_copy_out(mbuf: Mbuf, to: *mut u8, len: u32);
    fn slip_dpdk_copy_in(memory: *const Memory, from: *const u8, len: u32) -> Mbuf;
    fn slip_dpdk_send(
        port: u16,
        queue: u16,
        memory: *const Memory,
        places: *const Place,
        mbufs: *mut Mbuf,
        n: u16,
        cycles: u64,
    ) -> u16;
    fn slip_dpdk_relay(
        from: u16,
        from_queue: u16,
        to: u16,
        to_queue: u16,
        max: u16,
        cycles: u64,
        relayed: *mut Relayed,
    );
    fn slip_dpdk_complete(port: u16, queue: u16);
    fn slip_dpdk_cycles(ns: u64) -> u64;
}

fn text(from: *const c_char) -> String {
    if from.is_null() {
        return String::new();
    }
    // SAFETY: DPDK's texts end with a NUL and stay until the next call, which comes behind this copy.
    unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned()
}

/// The system's text for a negative result.
pub(crate) fn reason(number: c_int) -> String {
    // SAFETY: takes any number.
    text(unsafe { slip_dpdk_error(number) })
}

/// Starts EAL; returns how many of its arguments it left over.
pub(crate) fn start(arguments: Vec<CString>) -> Result<c_int, c_int> {
    // EAL may keep what it is given, and change the order.
    let mut pointers: Vec<*mut c_char> = arguments.into_iter().map(CString::into_raw).collect();
    let count = pointers.len() as c_int;
    pointers.push(null_mut());
    let pointers = Vec::leak(pointers);
    // SAFETY: so many texts that end with a NUL, and a null pointer behind them, all of which stay for good.
    match unsafe { slip_dpdk_start(count, pointers.as_mut_ptr()) } {
        taken @ 0.. => Ok(count - 1 - taken),
        error => Err(error),
    }
}

/// The folder that EAL keeps its files in, once it was started.
pub(crate) fn folder() -> Option<PathBuf> {
    // SAFETY: a text that ends with a NUL and stays, or a null pointer.
    let text = unsafe { slip_dpdk_folder().as_ref().map(|first| CStr::from_ptr(first)) };
    text.map(|text| OsStr::from_bytes(text.to_bytes()).into())
}

/// Stops EAL, once no mempool nor device is there.
pub(crate) fn stop() {
    // SAFETY: it was started, as the only caller knows.
    unsafe { slip_dpdk_stop() };
}

impl Memory {
    /// Makes a mempool of so many mbufs, each with room for a packet of so many bytes.
    pub(crate) fn new(mbufs: u32, room: u16) -> Result<Self, c_int> {
        let mut memory = MaybeUninit::uninit();
        // SAFETY: a place to write to.
        match unsafe { slip_dpdk_memory_new(mbufs, room, memory.as_mut_ptr()) } {
            // SAFETY: it was written to, with addresses that are none but real ones.
            0 => Ok(unsafe { memory.assume_init() }),
            error => Err(error),
        }
    }

    /// Frees the mempool; returns how many mbufs had not come back.
    ///
    /// # Safety
    /// Nobody has a packet in it or a copy of this, and no device receives into it.
    pub(crate) unsafe fn free(self) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { slip_dpdk_memory_free(&raw const self) }
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Of the buffers behind mbufs: where the first begins, from one to the next, bytes of each.
    pub(crate) fn buffers(&self) -> (usize, usize, usize) {
        (self.first, self.stride, self.len)
    }

    /// Mbufs that are free.
    pub(crate) fn free_mbufs(&self) -> u32 {
        // SAFETY: the mempool is there.
        unsafe { slip_dpdk_free_mbufs(self) }
    }

    /// The unit of a free mbuf's packet.
    pub(crate) fn take(&self) -> Option<u32> {
        // SAFETY: the mempool is there.
        Some(unsafe { slip_dpdk_take(self) }).filter(|unit| *unit != ELSEWHERE)
    }

    /// Gives mbufs back whose packets have these units.
    ///
    /// # Safety
    /// They were received or taken, and neither sent nor given back since.
    pub(crate) unsafe fn give_back(&self, units: &[u32]) {
        // SAFETY: the caller's promise.
        unsafe { slip_dpdk_give_back(self, units.as_ptr(), units.len() as u32) };
    }

    /// A packet's time as net_pcap gives it, in µs.
    ///
    /// # Safety
    /// The mbuf was just received.
    pub(crate) unsafe fn time(&self, mbuf: Mbuf) -> u64 {
        // SAFETY: the caller's promise.
        unsafe { slip_dpdk_time(self, mbuf) }
    }

    /// A new packet with these bytes, where there are mbufs for it.
    pub(crate) fn copy_in(&self, from: &[u8]) -> Option<Mbuf> {
        // SAFETY: so many bytes are read.
        let mbuf = unsafe { slip_dpdk_copy_in(self, from.as_ptr(), from.len() as u32) };
        (!mbuf.0.is_null()).then_some(mbuf)
    }

    /// Looks for the times that a device gives; from then on [`time`](Self::time) does.
    pub(crate) fn find_time(&mut self, port: u16) -> Result<(), c_int> {
        // SAFETY: the device is there.
        match unsafe { slip_dpdk_find_time(port, self) } {
            0 => Ok(()),
            error => Err(error),
        }
    }
}

/// Copies a packet of `to.len()` bytes out of its mbufs, which are freed.
///
/// # Safety
/// The mbuf was received, and not adopted, sent or freed since.
pub(crate) unsafe fn copy_out(mbuf: Mbuf, to: &mut [u8]) {
    // SAFETY: the caller's promise; so many bytes are written at most.
    unsafe { slip_dpdk_copy_out(mbuf, to.as_mut_ptr(), to.len() as u32) };
}

/// The number of a device, which is made where there is none: then the second is true.
pub(crate) fn find(name: &CStr, arguments: &CStr) -> Result<(u16, bool), c_int> {
    let (mut port, mut made) = (0, false);
    // SAFETY: texts that end with a NUL, and two places to write to.
    match unsafe { slip_dpdk_find(name.as_ptr(), arguments.as_ptr(), &raw mut port, &raw mut made) } {
        0 => Ok((port, made)),
        error => Err(error),
    }
}

/// The names of all devices that there are.
pub(crate) fn names() -> Vec<String> {
    // SAFETY: any number will do; all calls are made under one lock.
    (0..).map(|n| text(unsafe { slip_dpdk_name(n) })).take_while(|name| !name.is_empty()).collect()
}

/// Opens a device with as many queues as `setup` says, or says there how many it has.
pub(crate) fn open(port: u16, memory: &Memory, setup: &mut Setup) -> Result<(), c_int> {
    // SAFETY: the mempool stays until all devices are closed.
    match unsafe { slip_dpdk_open(port, memory, setup) } {
        0 => Ok(()),
        error => Err(error),
    }
}

/// Lets a device take packets for other stations too, where it can.
pub(crate) fn promiscuous(port: u16) {
    // SAFETY: the device is open.
    unsafe { slip_dpdk_promiscuous(port) };
}

/// Stops and closes a device, and has it forgotten if asked to.
pub(crate) fn close(port: u16, remove: bool) {
    // SAFETY: nobody uses it any more, as the only caller knows.
    unsafe { slip_dpdk_close(port, remove) };
}

pub(crate) fn stats(port: u16) -> Stats {
    let mut stats = Stats::default();
    // SAFETY: the device is open.
    unsafe { slip_dpdk_stats(port, &raw mut stats) };
    stats
}

/// Receives from a queue; returns how many came, which are the first in both lists.
///
/// # Safety
/// The device is open with this queue, which no other thread receives from.
pub(crate) unsafe fn receive(
    port: u16,
    queue: u16,
    memory: &Memory,
    mbufs: &mut [Mbuf],
    places: &mut [Place],
) -> usize {
    let max = mbufs.len().min(places.len()).min(BURST) as u16;
    // SAFETY: the caller's promise; both lists have so many places.
    usize::from(unsafe {
        slip_dpdk_receive(port, queue, memory, mbufs.as_mut_ptr(), places.as_mut_ptr(), max)
    })
}

/// Sends packets; of those that are [`ELSEWHERE`] the mbufs are given. What the device doesn't take within
/// so many cycles is freed. Returns how many it took.
///
/// # Safety
/// The device is open with this queue, and no other thread sends to it. All places and mbufs were received or
/// taken, and neither sent nor given back since; the packets are so long at most.
pub(crate) unsafe fn send(
    port: u16,
    queue: u16,
    memory: &Memory,
    places: &[Place],
    mbufs: &mut [Mbuf],
    cycles: u64,
) -> usize {
    let n = places.len().min(mbufs.len()) as u16;
    // SAFETY: the caller's promise.
    usize::from(unsafe {
        slip_dpdk_send(port, queue, memory, places.as_ptr(), mbufs.as_mut_ptr(), n, cycles)
    })
}

/// Receives up to `max` packets from a queue of one device and sends them to one of another, as [`send`]
/// does.
///
/// # Safety
/// Both devices are open with these queues; no other thread receives from the one or sends to the other.
pub(crate) unsafe fn relay(from: (u16, u16), to: (u16, u16), max: usize, cycles: u64) -> Relayed {
    let mut relayed = Relayed::default();
    let max = max.min(BURST) as u16;
    // SAFETY: the caller's promise; the result has its place.
    unsafe { slip_dpdk_relay(from.0, from.1, to.0, to.1, max, cycles, &raw mut relayed) };
    relayed
}

/// Lets a device free what it has sent.
///
/// # Safety
/// The device is open with this queue, and no other thread sends to it.
pub(crate) unsafe fn complete(port: u16, queue: u16) {
    // SAFETY: the caller's promise.
    unsafe { slip_dpdk_complete(port, queue) };
}

/// Cycles of the time-stamp counter in so many ns.
pub(crate) fn cycles(ns: u64) -> u64 {
    // SAFETY: a calculation, once EAL was started.
    unsafe { slip_dpdk_cycles(ns) }
}
