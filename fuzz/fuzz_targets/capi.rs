//! Any calls of the C interface in any order: objects that were freed, NULL, sizes of 0, times that run
//! backwards, buffers that are too small. Whatever comes, a code comes back, and every handle that was taken
//! comes out exactly once.
#![no_main]

use std::collections::HashSet;
use std::ptr::{null, null_mut};

use libfuzzer_sys::fuzz_target;
use slipstream_capi::config::{slip_reframe_config, slip_reframe_config_init};
use slipstream_capi::error::SLIP_OK;
use slipstream_capi::packet::{slip_key, slip_packet, slip_train};
use slipstream_capi::reframe::*;
use slipstream_capi::stats::slip_stats;
use slipstream_fuzz::Input;

/// A reframer in C's hands, freed or not, and the handles that are inside.
struct Held {
    reframe: *mut slip_reframe,
    live: bool,
    inside: HashSet<u32>,
    last: u64,
}

fn make(input: &mut Input<'_>) -> *mut slip_reframe {
    let mut config = std::mem::MaybeUninit::<slip_reframe_config>::uninit();
    let mut why = [1_i8; 64];
    // SAFETY: there is room for one, which is filled in; the text has a buffer of that length.
    unsafe {
        assert_eq!(slip_reframe_config_init(config.as_mut_ptr(), size_of::<slip_reframe_config>()), SLIP_OK);
        let mut config = config.assume_init();
        let bypass = [null(), c"none".as_ptr(), c"length 60-100 or udp".as_ptr(), c"nonsense".as_ptr()];
        config.bypass = bypass[usize::from(input.byte() & 3)];
        config.hold_ns = u64::from(input.u32() >> (input.byte() & 31));
        config.burst = u32::from(input.byte());
        config.capacity = u32::from(input.byte());
        config.capacity_bytes = u64::from(input.u32() >> 8);
        config.flows = u32::from(input.byte());
        config.policy = u32::from(input.byte() & 3);
        config.admit = u32::from(input.byte() & 1);
        config.inner = u32::from(input.byte() & 1);
        config.link_type = u32::from(input.byte() & 127);
        let made = slip_reframe_new(&config, why.as_mut_ptr().cast(), usize::from(input.byte() & 63));
        assert!(!made.is_null() || why[63] == 1);
        made
    }
}

fn poll(held: &mut Held, input: &mut Input<'_>, now: u64, whole: bool) -> i32 {
    let (n_trains, n_handles) = if whole { (4, 256) } else { (input.byte() & 3, 200 + u16::from(input.byte())) };
    let mut trains = vec![slip_train::default(); n_trains.into()];
    let mut handles = vec![0; n_handles.into()];
    let mut lent = handles.as_ptr();
    // SAFETY: both are as long as is said.
    let n = unsafe {
        let (t, h) = (trains.as_mut_ptr(), handles.as_mut_ptr());
        if n_handles % 2 == 1 {
            slip_reframe_poll_lent(held.reframe, now, t, n_trains.into(), &raw mut lent)
        } else {
            slip_reframe_poll(held.reframe, now, t, n_trains.into(), h, n_handles.into())
        }
    };
    assert!(n <= i32::from(n_trains) && (held.live || n < 0));
    let packets = trains.iter().take(n.max(0) as usize).map(|train| train.count as usize).sum();
    // SAFETY: so many handles stand there, in the array above or in the reframer until it is called again.
    let mut handles = unsafe { std::slice::from_raw_parts(lent, packets) }.iter();
    for train in trains.iter().take(n.max(0) as usize) {
        for handle in handles.by_ref().take(train.count as usize) {
            assert!(held.inside.remove(handle), "{handle} came out, and was not inside");
        }
    }
    n
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let mut all = vec![Held { reframe: null_mut(), live: false, inside: HashSet::new(), last: 0 }];
    let mut handle = 0;
    while !input.0.is_empty() {
        let (what, which) = (input.byte(), usize::from(input.byte()));
        let n = all.len();
        let held = &mut all[which % n];
        match what % 8 {
            0 if n < 8 => {
                let reframe = make(&mut input);
                if !reframe.is_null() {
                    all.push(Held { reframe, live: true, inside: HashSet::new(), last: 0 });
                }
            }
            1 => {
                // SAFETY: NULL, or what was made by the library.
                let code = unsafe { slip_reframe_free(held.reframe) };
                assert_eq!(code == SLIP_OK, held.live || held.reframe.is_null());
                (held.live, held.inside) = (false, HashSet::new());
            }
            2 => {
                let now = u64::from(input.u32() >> (input.byte() & 31));
                poll(held, &mut input, now, false);
            }
            3 => {
                // SAFETY: NULL, or what was made by the library.
                assert_eq!(unsafe { slip_reframe_drain(held.reframe) } == SLIP_OK, held.live);
            }
            4 => {
                let mut stats = slip_stats { size: usize::from(input.byte()), ..slip_stats::default() };
                let size = stats.size;
                // SAFETY: there is room for as much as the size says.
                unsafe {
                    if size <= size_of::<slip_stats>() {
                        slip_reframe_stats(held.reframe, &mut stats);
                    }
                    slip_reframe_next_deadline(held.reframe);
                    assert!(!slip_reframe_error(held.reframe).is_null());
                }
            }
            _ => {
                let back = u64::from(input.byte() == 7);
                let now = (held.last + u64::from(input.byte())).saturating_sub(300 * back);
                let mut keys = Vec::new();
                let mut packets = Vec::new();
                for _ in 0..input.byte() % 40 {
                    let kind = input.byte();
                    let n = usize::from(input.byte() & 127);
                    let bytes = input.bytes(n);
                    let mut key = slip_key { ip_version: 4 + (kind >> 3 & 3), protocol: 6, ..slip_key::default() };
                    (key.src[3], key.tcp_flags, key.vlan) = (kind >> 6, kind >> 4, u16::from(kind) & 8);
                    keys.push(key);
                    let data = if kind & 1 == 1 { null() } else { bytes.as_ptr() };
                    let length = input.u32() >> (input.byte() & 31);
                    packets.push(slip_packet {
                        data,
                        key: null(),
                        captured: bytes.len() as u32,
                        length,
                        handle: handle + packets.len() as u32,
                        reserved: u32::from(kind & 6 == 6),
                    });
                }
                for (packet, key) in packets.iter_mut().zip(&keys) {
                    if packet.reserved == 1 {
                        packet.key = key;
                    }
                }
                let n = packets.len() as u32;
                // SAFETY: so many packets are there, and their bytes and keys.
                let code = unsafe { slip_reframe_push_burst(held.reframe, packets.as_ptr(), n, now) };
                assert!(held.live || code != SLIP_OK);
                if code == SLIP_OK && n > 0 {
                    held.last = now;
                    held.inside.extend(handle..handle + n);
                    handle += n;
                }
            }
        }
    }
    for held in &mut all {
        if held.live {
            // SAFETY: what was made by the library, and not freed.
            assert_eq!(unsafe { slip_reframe_drain(held.reframe) }, SLIP_OK);
            while poll(held, &mut input, 0, true) > 0 {}
            assert!(held.inside.is_empty(), "{:?} did not come out", held.inside);
            // SAFETY: as above.
            assert_eq!(unsafe { slip_reframe_free(held.reframe) }, SLIP_OK);
        }
    }
});
