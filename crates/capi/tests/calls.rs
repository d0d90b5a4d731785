//! Calls through C give what calls in Rust give, and nothing is allocated on the way.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::{null, null_mut};

use proptest::prelude::*;
use slipstream_capi::config::{slip_reframe_config, slip_reframe_config_init};
use slipstream_capi::error::{SLIP_E_TIME, SLIP_E_UNPOLLED, SLIP_OK};
use slipstream_capi::packet::{slip_key, slip_packet, slip_train};
use slipstream_capi::reframe::*;
use slipstream_capi::stats::slip_stats;
use slipstream_reframe::embed::{Packet, PushError, Reframer};
use slipstream_reframe::{Nanos, ReframeConfig};

/// Under Miri everything is a thousand times as slow.
const CASES: u32 = if cfg!(miri) { 4 } else { 200 };

thread_local! {
    /// Allocations of this thread.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    /// Bytes that this thread can still have.
    static LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// The system's allocator, which counts.
struct Counting;

// SAFETY: the system's allocator does it all.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        let Some(left) = LEFT.get().checked_sub(layout.size()) else { return null_mut() };
        LEFT.set(left);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        LEFT.set(LEFT.get().saturating_add(layout.size()));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        let left = LEFT.get().saturating_add(layout.size());
        let Some(left) = left.checked_sub(size) else { return null_mut() };
        LEFT.set(left);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(place, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn small_config() -> slip_reframe_config {
    let mut config = std::mem::MaybeUninit::<slip_reframe_config>::uninit();
    // SAFETY: it is filled in.
    let mut config = unsafe {
        assert_eq!(slip_reframe_config_init(config.as_mut_ptr(), size_of::<slip_reframe_config>()), SLIP_OK);
        config.assume_init()
    };
    (config.capacity, config.flows, config.seed, config.hold_ns) = (32, 64, 1, 500);
    config
}

/// UDP or TCP over IPv4 or IPv6; some packets have options, so that their layers lie elsewhere, and some are
/// cut.
fn bytes(flow: u8, kind: u8) -> Vec<u8> {
    let mut bytes = vec![0; 100];
    if kind == 3 {
        bytes[12..21].copy_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 40, 17]);
        bytes[37] = flow;
        return bytes;
    }
    let words = if kind == 1 { 6 } else { 5 };
    let protocol = if kind == 2 { 6 } else { 17 };
    bytes[12..24].copy_from_slice(&[8, 0, 0x40 | words, 0, 0, 86, 0, 0, 0, 0, 64, protocol]);
    bytes[26..34].copy_from_slice(&[10, 0, 0, flow, 10, 0, 0, 9]);
    bytes.truncate(if kind == 4 { 20 } else { 100 });
    bytes
}

type Trains = Vec<(u64, u32, Vec<u32>)>;

fn poll_c(reframe: *mut slip_reframe, now: u64, n: usize, out: &mut Trains) {
    let mut trains = [slip_train::default(); 16];
    let mut copied = [0; 300];
    // Copies and loans by turns: both give what comes next.
    for lent in [false, true].into_iter().cycle() {
        let to: *mut u32 = copied.as_mut_ptr();
        let mut handles = to.cast_const();
        // SAFETY: all are as long as is said.
        let got = unsafe {
            let trains = trains.as_mut_ptr();
            if lent {
                slip_reframe_poll_lent(reframe, now, trains, n as u32, &raw mut handles)
            } else {
                slip_reframe_poll(reframe, now, trains, n as u32, to, 300)
            }
        };
        assert!(got >= 0 && got as usize <= n);
        let packets = trains[..got as usize].iter().map(|train| train.count as usize).sum();
        // SAFETY: so many handles stand there, of the array above or of the reframer until it is called
        // again.
        let handles = unsafe { std::slice::from_raw_parts(handles, packets) };
        let mut at = 0;
        for train in &trains[..got as usize] {
            let end = at + train.count as usize;
            out.push((train.release_ns, train.flow, handles[at..end].to_vec()));
            at = end;
        }
        if got == 0 {
            return;
        }
    }
}

fn poll_rust(reframer: &mut Reframer, now: u64, out: &mut Trains) {
    while let Some(train) = reframer.poll(Nanos(now)) {
        out.push((train.release.0, train.flow, train.handles.to_vec()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn c_is_as_rust(
        steps in prop::collection::vec((0..5_u8, 0..300_u64, prop::collection::vec((0..4_u8, 0..5_u8), 0..6)), 0..60),
    ) {
        let config = small_config();
        // SAFETY: pointers to what is there, as long as is said.
        let reframe = unsafe { slip_reframe_new(&config, null_mut(), 0) };
        let usual = ReframeConfig { capacity: 32, flows: 64, seed: 1, ..ReframeConfig::default() };
        let mut settings = usual.default.clone();
        settings.hold_ns = 500;
        let mut reframer = Reframer::new(&ReframeConfig { default: settings, ..usual }).unwrap();
        let (mut c, mut rust, mut now, mut handle) = (Trains::new(), Trains::new(), 1000, 0);
        for (step, time, packets) in steps {
            let all: Vec<_> = packets.iter().map(|(flow, kind)| bytes(*flow, *kind)).collect();
            match step {
                0 => {
                    poll_c(reframe, now + time, 1 + time as usize % 16, &mut c);
                    poll_rust(&mut reframer, now + time, &mut rust);
                }
                1 => {
                    // SAFETY: as above.
                    assert_eq!(unsafe { slip_reframe_drain(reframe) }, SLIP_OK);
                    reframer.drain();
                }
                _ => {
                    let at = if step == 2 { now - 400 + time } else { now + time };
                    let packed: Vec<_> = (handle..).zip(&all).map(|(handle, bytes)| slip_packet {
                        data: bytes.as_ptr(), key: null(), captured: bytes.len() as u32, length: 0, handle, reserved: 0,
                    }).collect();
                    let same = (handle..).zip(&all).map(|(handle, bytes)| Packet::new(handle, bytes)).collect::<Vec<_>>();
                    // SAFETY: as above.
                    let code = unsafe { slip_reframe_push_burst(reframe, packed.as_ptr(), packed.len() as u32, at) };
                    let result = if same.is_empty() { Ok(()) } else { reframer.push_burst(Nanos(at), same.iter().copied()) };
                    let expected = match result {
                        Ok(()) => SLIP_OK,
                        Err(PushError::TimeRanBackwards { .. }) => SLIP_E_TIME,
                        Err(_) => SLIP_E_UNPOLLED,
                    };
                    prop_assert_eq!(code, expected);
                    if code == SLIP_OK && !same.is_empty() {
                        now = at;
                        handle += packed.len() as u32;
                    }
                }
            }
            // SAFETY: as above.
            prop_assert_eq!(unsafe { slip_reframe_next_deadline(reframe) }, reframer.next_deadline().0);
        }
        poll_c(reframe, u64::MAX, 16, &mut c);
        poll_rust(&mut reframer, u64::MAX, &mut rust);
        prop_assert_eq!(c, rust);
        let mut counted = slip_stats { size: size_of::<slip_stats>(), ..slip_stats::default() };
        // SAFETY: as above.
        unsafe {
            assert_eq!(slip_reframe_stats(reframe, &mut counted), SLIP_OK);
            assert_eq!(slip_reframe_free(reframe), SLIP_OK);
        }
        let (stats, total) = (reframer.stats(), reframer.stats().total());
        prop_assert_eq!((counted.packets_in, counted.packets_out), (stats.packets_in, stats.packets_out));
        prop_assert_eq!((counted.trains, counted.delay_max_ns), (total.trains, total.delay.max().unwrap_or(0)));
        prop_assert_eq!(counted.packets_in, u64::from(handle));
    }
}

#[test]
fn a_key_is_what_the_bytes_say() {
    let mut key = slip_key { src_port: 0, protocol: 17, ip_version: 4, ..slip_key::default() };
    key.src[..4].copy_from_slice(&[10, 0, 0, 1]);
    key.dst[..4].copy_from_slice(&[10, 0, 0, 9]);
    let mut six = slip_key { ip_version: 6, ..key };
    (six.src, six.dst) = ([0; 16], [0; 16]);
    six.src[15] = 1;
    let (four_bytes, six_bytes) = (bytes(1, 0), bytes(1, 3));
    let with = |bytes: &[u8], handle| slip_packet {
        data: bytes.as_ptr(),
        key: null(),
        captured: bytes.len() as u32,
        length: 0,
        handle,
        reserved: 0,
    };
    let known = |key: *const slip_key, handle| slip_packet { key, length: 100, ..with(&[], handle) };
    let packets = [with(&four_bytes, 1), with(&six_bytes, 2), known(&key, 3), known(&six, 4)];
    let mut out = Trains::new();
    // SAFETY: pointers to what is there, as long as is said.
    unsafe {
        let reframe = slip_reframe_new(&small_config(), null_mut(), 0);
        assert_eq!(slip_reframe_push_burst(reframe, packets.as_ptr(), 4, 0), SLIP_OK);
        poll_c(reframe, 501, 16, &mut out);
        assert_eq!(slip_reframe_free(reframe), SLIP_OK);
    }
    let handles: Vec<_> = out.into_iter().map(|train| train.2).collect();
    assert_eq!(handles, [[1, 3], [2, 4]]);
}

/// Flows of every kind come, the table forgets, trains fill, wait, give way; all memory was taken before.
#[test]
fn nothing_is_allocated_between_new_and_free() {
    let bursts = if cfg!(miri) { 20 } else { 20_000 };
    let all: Vec<_> = (0..=255).flat_map(|flow| (0..5).map(move |kind| bytes(flow, kind))).collect();
    let mut random = 1_u64;
    let mut packets = Vec::new();
    let mut handles = [0; 256];
    let mut trains = [slip_train::default(); 256];
    packets.reserve(256);
    // SAFETY: pointers to what is there, as long as is said.
    let (reframe, before) = unsafe {
        let reframe = slip_reframe_new(&small_config(), null_mut(), 0);
        (reframe, ALLOCATIONS.get())
    };
    let (mut now, mut out) = (0, 0);
    for _ in 0..bursts {
        packets.clear();
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        for n in 0..random >> 56 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Few flows and many, by turns.
            let flow = (random >> 33) as usize % if n % 2 == 0 { 20 } else { all.len() };
            let data = &all[flow];
            packets.push(slip_packet {
                data: data.as_ptr(),
                key: null(),
                captured: data.len() as u32,
                length: 0,
                handle: n as u32,
                reserved: 0,
            });
        }
        now += random >> 55;
        // SAFETY: as above.
        unsafe {
            assert_eq!(
                slip_reframe_push_burst(reframe, packets.as_ptr(), packets.len() as u32, now),
                SLIP_OK
            );
            loop {
                let n = slip_reframe_poll(reframe, now, trains.as_mut_ptr(), 256, handles.as_mut_ptr(), 256);
                out += n;
                if n == 0 {
                    break;
                }
            }
        }
    }
    assert_eq!(ALLOCATIONS.get() - before, 0, "allocations for {out} trains");
    assert!(cfg!(miri) || out > 100_000);
    // SAFETY: as above.
    unsafe { assert_eq!(slip_reframe_free(reframe), SLIP_OK) };
}

/// However little memory there is, a reframer is made or refused in words, and the process goes on.
#[test]
#[cfg_attr(miri, ignore = "slow")]
fn memory_that_cannot_be_had_is_refused() {
    let mut config = small_config();
    (config.capacity, config.flows, config.hold_ns) = (5000, 100_000, 4_000_000_000);
    let (mut refused, mut made) = (0, 0);
    for left in (1..2000).map(|n| n * 16_384) {
        let mut why = [0_u8; 200];
        LEFT.set(left);
        // SAFETY: pointers to what is there, as long as is said.
        let reframe = unsafe { slip_reframe_new(&config, why.as_mut_ptr().cast(), why.len()) };
        LEFT.set(usize::MAX);
        if reframe.is_null() {
            let why = String::from_utf8_lossy(&why);
            assert!(why.contains("bytes of memory can't be had; lower flows or capacity"), "{left}: {why}");
            (refused, made) = (refused + 1, 0);
        } else {
            made += 1;
            // SAFETY: as above.
            assert_eq!(unsafe { slip_reframe_free(reframe) }, SLIP_OK);
        }
        if made == 20 {
            break;
        }
    }
    assert!(refused > 100 && made == 20, "{refused} refused");
    // Most of what was asked for is what it takes.
    let mut usual = small_config();
    usual.flows = 1 << 28;
    LEFT.set(1 << 30);
    let mut why = [0_u8; 200];
    // SAFETY: as above.
    let reframe = unsafe { slip_reframe_new(&usual, why.as_mut_ptr().cast(), why.len()) };
    LEFT.set(usize::MAX);
    assert!(reframe.is_null(), "27 GiB of 1");
}

/// Structures that are copied byte by byte have no byte that belongs to no field.
#[test]
fn structures_have_no_padding() {
    assert_eq!(size_of::<slip_reframe_config>(), 8 * 5 + 4 * 8);
    assert_eq!(size_of::<slip_stats>(), 22 * 8);
    assert_eq!(size_of::<slipstream_capi::sketch::slip_sketch_config>(), 8 * 4 + 4 * 4);
    assert_eq!((size_of::<slip_packet>(), size_of::<slip_train>(), size_of::<slip_key>()), (32, 16, 44));
}
