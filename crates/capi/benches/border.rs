//! The cost of the way through C: the same bursts pushed and polled by Rust's methods and by C's functions,
//! one round each by turns, medians over all rounds, in ns of CPU time a packet. C's functions are called by
//! pointers that the compiler can't see through, as a program in another language calls them.
//!
//! `cargo bench -p slipstream-capi --bench border`; with `--test` one short round that says only that both
//! give the same.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a benchmark")]

use std::hint::black_box;
use std::ptr::{null, null_mut};

use rustix::time::{ClockId, clock_gettime};
use slipstream_capi::packet::{slip_packet, slip_train};
use slipstream_capi::reframe::*;
use slipstream_reframe::embed::{Packet, Reframer, Train};
use slipstream_reframe::{Nanos, ReframeConfig};

const TRAINS: usize = 64;
const HANDLES: usize = 512;

/// Packets of `flows` flows, in random order: Ethernet, IPv4, UDP, 64 bytes.
fn traffic(flows: u32, packets: usize) -> Vec<[u8; 64]> {
    let mut random = 7_u64;
    let mut packet = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let flow = ((random >> 33) as u32 % flows).to_be_bytes();
        let mut bytes = [0; 64];
        bytes[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 50, 0, 0, 0, 0, 64, 17]);
        bytes[26..34].copy_from_slice(&[10, flow[1], flow[2], flow[3], 10, 0, 0, 9]);
        bytes[35] = 53;
        bytes
    };
    (0..packets).map(|_| packet()).collect()
}

/// A summary of the output, so that the compiler can't leave the work out: trains, and a sum of the handles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    trains: u64,
    sum: u64,
}

impl Seen {
    #[inline(always)]
    fn take(&mut self, trains: usize, handles: &[u32]) {
        self.trains += trains as u64;
        self.sum += handles.iter().map(|h| u64::from(*h)).sum::<u64>();
    }
}

type Push = unsafe extern "C" fn(*mut slip_reframe, *const slip_packet, u32, u64) -> i32;
type Poll = unsafe extern "C" fn(*mut slip_reframe, u64, *mut slip_train, u32, *mut u32, u32) -> i32;
type PollLent = unsafe extern "C" fn(*mut slip_reframe, u64, *mut slip_train, u32, *mut *const u32) -> i32;

const NOTHING: slip_packet =
    slip_packet { data: null(), key: null(), captured: 0, length: 0, handle: 0, reserved: 0 };

/// Fills in the array that C's function wants.
#[inline(always)]
fn describe(packets: &[&[u8]], first: u32, to: &mut [slip_packet; 256]) {
    for ((n, bytes), to) in packets.iter().enumerate().zip(to) {
        let handle = first + n as u32;
        *to = slip_packet { data: bytes.as_ptr(), captured: bytes.len() as u32, handle, ..NOTHING };
    }
}

/// The part of the way through C that is the program's own: filling in the array.
#[inline(never)]
fn array_alone(packets: &[&[u8]], burst: usize) {
    let mut described = [NOTHING; 256];
    for packets in packets.chunks(burst) {
        describe(packets, 0, &mut described);
        black_box(&described);
    }
}

#[inline(never)]
fn through_rust(
    reframer: &mut Reframer,
    packets: &[&[u8]],
    (burst, lent): (usize, bool),
    now: &mut u64,
) -> Seen {
    let mut seen = Seen::default();
    let mut copied = [0; HANDLES];
    let mut handle = 0;
    for packets in packets.chunks(burst) {
        *now += 50 * packets.len() as u64;
        let numbered = packets.iter().enumerate().map(|(n, bytes)| Packet::new(handle + n as u32, bytes));
        reframer.push_burst(Nanos(*now), numbered).unwrap();
        handle += packets.len() as u32;
        loop {
            let mut trains = [slip_train::default(); TRAINS];
            let each = |at: usize, train: Train<'_>| {
                let count = train.handles.len() as u32;
                trains[at] = slip_train { release_ns: train.release.0, flow: train.flow, count };
            };
            let (n, handles) = if lent {
                reframer.poll_lent(Nanos(*now), TRAINS, each)
            } else {
                let (n, packets) = reframer.poll_burst(Nanos(*now), TRAINS, &mut copied, each);
                (n, &copied[..packets])
            };
            black_box(&trains);
            seen.take(n, handles);
            if n < TRAINS && (lent || handles.len() + 256 <= HANDLES) {
                break;
            }
        }
    }
    seen
}

#[inline(never)]
fn through_c(
    (reframe, push, poll, poll_lent): (*mut slip_reframe, Push, Poll, PollLent),
    packets: &[&[u8]],
    (burst, lent): (usize, bool),
    now: &mut u64,
) -> Seen {
    let mut seen = Seen::default();
    let mut copied = [0; HANDLES];
    let mut handle = 0;
    let mut described = [NOTHING; 256];
    for packets in packets.chunks(burst) {
        *now += 50 * packets.len() as u64;
        describe(packets, handle, &mut described);
        handle += packets.len() as u32;
        // SAFETY: pointers to what is there, as long as is said.
        let code = unsafe { push(reframe, described.as_ptr(), packets.len() as u32, *now) };
        assert_eq!(code, 0);
        loop {
            let mut trains = [slip_train::default(); TRAINS];
            let to: *mut u32 = copied.as_mut_ptr();
            let mut handles = to.cast_const();
            // SAFETY: as above.
            let n = unsafe {
                if lent {
                    poll_lent(reframe, *now, trains.as_mut_ptr(), TRAINS as u32, &raw mut handles)
                } else {
                    poll(reframe, *now, trains.as_mut_ptr(), TRAINS as u32, to, HANDLES as u32)
                }
            };
            black_box(&trains);
            let n = usize::try_from(n).unwrap();
            let packets = trains[..n].iter().map(|t| t.count as usize).sum::<usize>();
            // SAFETY: so many were written, or are lent until the reframer is called again.
            seen.take(n, unsafe { std::slice::from_raw_parts(handles, packets) });
            if n < TRAINS && (lent || packets + 256 <= HANDLES) {
                break;
            }
        }
    }
    seen
}

/// CPU time of this thread: what neighbours take doesn't count.
fn cpu_ns() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let test = !std::env::args().any(|a| a == "--bench");
    let (rounds, n) = if test { (1, 10_000) } else { (101, 200_000) };
    println!("ns a packet, medians of {rounds} rounds of {n} packets; handles are copied, or lent");
    println!("flows  burst           Rust      C   C - Rust   array");
    for flows in [16, 1000, 100_000] {
        for (burst, lent) in [(1, false), (32, false), (32, true), (256, false), (256, true)] {
            let bytes = traffic(flows, n);
            // As a data plane has them: somewhere, of a length that only memory tells.
            let packets: Vec<&[u8]> = black_box(bytes.iter().map(|p| p.as_slice()).collect());
            let mut reframer = Reframer::new(&ReframeConfig::default()).unwrap();
            // SAFETY: NULL is allowed.
            let reframe = unsafe { slip_reframe_new(null(), null_mut(), 0) };
            let c: (_, Push, Poll, PollLent) = (
                reframe,
                black_box(slip_reframe_push_burst as Push),
                black_box(slip_reframe_poll as Poll),
                black_box(slip_reframe_poll_lent as PollLent),
            );
            let (mut now_rust, mut now_c) = (0, 0);
            let (mut rust, mut other, mut differences) = (Vec::new(), Vec::new(), Vec::new());
            let mut arrays = Vec::new();
            for _ in 0..rounds {
                let start = cpu_ns();
                let a = through_rust(&mut reframer, &packets, (burst, lent), &mut now_rust);
                let middle = cpu_ns();
                let b = through_c(c, &packets, (burst, lent), &mut now_c);
                let end = cpu_ns();
                array_alone(&packets, burst);
                arrays.push((cpu_ns() - end) / n as f64);
                let (first, second) = ((middle - start) / n as f64, (end - middle) / n as f64);
                assert_eq!(a, b, "the same comes out");
                rust.push(first);
                other.push(second);
                differences.push(second - first);
            }
            // SAFETY: it is one.
            assert_eq!(unsafe { slip_reframe_free(reframe) }, 0);
            let (rust, other, difference) = (median(rust), median(other), median(differences));
            let array = median(arrays);
            let how = if lent { "lent  " } else { "copied" };
            println!("{flows:>6} {burst:>5} {how} {rust:>7.1} {other:>6.1} {difference:>8.1} {array:>7.1}");
        }
    }
}
