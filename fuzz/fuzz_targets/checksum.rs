//! Any bytes: the fast sum equals the slow one, an update equals a computation anew, what is filled is right.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slipstream_wire::checksum::{
    Delta, Verdict, checksum, combine, fill_ip, fill_transport, sum, verify_ip, verify_transport,
};
use slipstream_wire::{Encapsulation, Flags, LinkType, classify_with};

fn slow(data: &[u8]) -> u16 {
    let mut sum = 0_u32;
    for pair in data.chunks(2) {
        sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |&low| u32::from(low));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fuzz_target!(|data: &[u8]| {
    assert_eq!(sum(data), slow(data));

    if let Some((&[at, w0, w1, d0, d1, d2, d3], rest)) = data.split_first_chunk() {
        let even = usize::from(at) * 2;
        assert_eq!(
            combine(sum(rest.get(..even).unwrap_or(&[])), sum(rest.get(even..).unwrap_or(rest))),
            sum(rest)
        );
        if rest.len() >= even + 6 {
            let mut changed = rest.to_vec();
            changed[even..even + 6].copy_from_slice(&[w0, w1, d0, d1, d2, d3]);
            let old = &rest[even..even + 6];
            let delta = Delta::new()
                .word(u16::from_be_bytes([old[0], old[1]]), u16::from_be_bytes([w0, w1]))
                .double_word(
                    u32::from_be_bytes([old[2], old[3], old[4], old[5]]),
                    u32::from_be_bytes([d0, d1, d2, d3]),
                );
            let (before, after) = (checksum(rest), checksum(&changed));
            assert_eq!(delta.apply(before) % 0xffff, after % 0xffff);
            if sum(&changed) != 0 {
                assert_eq!(delta.apply(before), after);
            }
        }
    }

    for link in [LinkType::RawIp, LinkType::Ethernet] {
        let Ok(headers) = classify_with(link, data, Encapsulation::Inner) else { continue };
        let mut frame = data.to_vec();
        let before = verify_transport(&frame, &headers);
        assert_eq!(fill_transport(&mut frame, &headers), before != Verdict::Unknown);
        if before == Verdict::Unknown {
            assert_eq!(frame, data);
        } else {
            assert_eq!(verify_transport(&frame, &headers), Verdict::Right);
        }
        if before == Verdict::Right && !headers.flags.has(Flags::IPV6) {
            // Only the two encodings of zero may differ.
            assert_eq!(sum(&frame) % 0xffff, sum(data) % 0xffff);
        }
        if fill_ip(&mut frame, &headers) {
            assert_eq!(verify_ip(&frame, &headers), Verdict::Right);
        }
    }
});
