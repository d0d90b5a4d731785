//! The XDP program of a port: instructions for the kernel's virtual machine, put together here, so that no
//! compiler is needed where the port is used.
//!
//! A packet that the port's [rules](super::prefilter) don't ask for is counted, and goes on to the kernel's
//! own stack. To any other packet the program writes in front when it came, and hands it to the socket of its
//! queue. A packet of a queue without a socket goes on to the kernel, too.

use super::headers::slot;
use super::instruction::Comparison::NotEqual;
use super::instruction::Register::{R0, R1, R2, R3, R4, R5, R6, R7, R10};
use super::instruction::{
    Assembly, Instruction, add, call, copy, count64, exit, load32, set, set_map, set64, store64,
};
use super::prefilter::Prefilter;

/// `XDP_PASS`: the packet goes on to the kernel's stack.
pub(super) const PASS: i32 = 2;
/// Bytes that the program writes before a packet: the time and [`MARK`].
pub(super) const STAMP: usize = 16;
/// Follows the time, so that what the program wrote is told from what lay there before.
pub(super) const MARK: u64 = 0x9e6c_2b71_d35f_a84d;
/// Bytes of a queue's counter, of which the first eight count: a line of the cache, for queues to be served
/// by several cores.
pub(super) const COUNTER: usize = 64;

/// In what an older kernel says of a program that asks it for a packet's length.
pub(super) const LENGTH_REFUSED: &str = "#188";

/// Offsets in `struct xdp_md`.
pub(super) mod field {
    pub(in super::super) const DATA: i16 = 0;
    pub(in super::super) const DATA_END: i16 = 4;
    pub(in super::super) const DATA_META: i16 = 8;
    pub(in super::super) const QUEUE: i16 = 16;
}

/// Functions of the kernel, by number.
pub(super) mod helper {
    pub(in super::super) const MAP_LOOKUP: i32 = 1;
    pub(in super::super) const KTIME_GET_NS: i32 = 5;
    pub(in super::super) const ADJUST_HEAD: i32 = 44;
    pub(in super::super) const REDIRECT_MAP: i32 = 51;
    pub(in super::super) const ADJUST_META: i32 = 54;
    pub(in super::super) const GET_BUFF_LEN: i32 = 188;
}

/// Rules, and where packets that match none are counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Only<'a> {
    /// The rules.
    pub(super) rules: &'a Prefilter,
    /// The descriptor of an array with [`COUNTER`] bytes for each queue.
    pub(super) counters: i32,
}

/// The program that hands packets to the sockets of `map`, an XSKMAP by queue: all of them, or `only` some;
/// `stamped` says that it writes the time.
///
/// A driver that has no room before packets gives no time; they go to their sockets all the same.
pub(super) fn program(map: i32, only: Option<Only<'_>>, stamped: bool) -> Vec<Instruction> {
    let mut code = Assembly::default();
    let kernel = code.label();
    code.put([copy(R6, R1)]);
    if let Some(only) = only {
        only.rules.put(&mut code, kernel);
    }
    if stamped {
        write_time(&mut code);
    }
    code.put([load32(R2, R6, field::QUEUE)]);
    code.put(set_map(R1, map));
    code.put([set(R3, PASS), call(helper::REDIRECT_MAP)]);
    if stamped {
        // The kernel's stack doesn't merge packets (GRO) that have different bytes before them.
        let taken = code.label();
        code.put([copy(R7, R0)]);
        code.jump_if(R7, NotEqual, PASS as u32, taken);
        code.put([copy(R1, R6), set(R2, STAMP as i32), call(helper::ADJUST_META)]);
        code.place(taken);
        code.put([copy(R0, R7)]);
    }
    code.put([exit()]);
    code.place(kernel);
    if let Some(only) = only {
        leave_to_kernel(&mut code, only);
    }
    code.finish()
}

fn write_time(code: &mut Assembly) {
    let without = code.label();
    code.put([copy(R1, R6), set(R2, -(STAMP as i32)), call(helper::ADJUST_META)]);
    code.jump_if(R0, NotEqual, 0, without);
    code.put([call(helper::KTIME_GET_NS), load32(R2, R6, field::DATA_META), load32(R3, R6, field::DATA)]);
    code.put([copy(R4, R2), add(R4, STAMP as i32)]);
    // The kernel wants to see that what is written lies before the packet.
    code.jump_if_greater(R4, R3, without);
    code.put([store64(R2, 0, R0)]);
    code.put(set64(R5, MARK));
    code.put([store64(R2, 8, R5)]);
    code.place(without);
}

/// Counts a packet that no rule asks for, and lets the kernel have it.
fn leave_to_kernel(code: &mut Assembly, only: Only<'_>) {
    let uncounted = code.label();
    let key = slot::PROTOCOL.offset();
    code.put([load32(R2, R6, field::QUEUE), store64(R10, key, R2)]);
    code.put(set_map(R1, only.counters));
    code.put([copy(R2, R10), add(R2, key.into()), call(helper::MAP_LOOKUP)]);
    code.jump_if_zero(R0, uncounted);
    code.put([set(R1, 1), count64(R0, R1)]);
    code.place(uncounted);
    code.put([set(R0, PASS), exit()]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Held against bytes that were put together by hand from the kernel's description of its instructions.
    #[test]
    #[cfg(target_endian = "little")]
    fn instructions_are_those_of_the_kernel() {
        let all = program(7, None, false);
        let want: [Instruction; 7] = [
            [0xbf, 0x16, 0, 0, 0, 0, 0, 0],  // r6 = r1
            [0x61, 0x62, 16, 0, 0, 0, 0, 0], // r2 = ((u32 *)r6)[4]
            [0x18, 0x11, 0, 0, 7, 0, 0, 0],  // r1 = map 7
            [0, 0, 0, 0, 0, 0, 0, 0],
            [0xb7, 0x03, 0, 0, 2, 0, 0, 0], // r3 = 2
            [0x85, 0, 0, 0, 51, 0, 0, 0],   // call bpf_redirect_map
            [0x95, 0, 0, 0, 0, 0, 0, 0],    // exit
        ];
        assert_eq!(all, want);
    }

    /// Every jump leads forward to an instruction, and not into the middle of one of two parts.
    #[test]
    fn jumps_end_at_instructions() {
        let rules =
            Prefilter::new(&"udp port 53; not vlan 5-9 and ip6; length 64-".parse().unwrap()).unwrap();
        for only in [None, Some(Only { rules: &rules, counters: 9 })] {
            let all = program(1 << 20, only, true);
            let is_jump = |code: u8| matches!(code & 7, 5 | 6) && !matches!(code, 0x85 | 0x95);
            for (at, one) in all.iter().enumerate().filter(|(_, one)| is_jump(one[0])) {
                let to = at + 1 + usize::from(u16::from_ne_bytes([one[2], one[3]]));
                assert!(to < all.len() && all[to][0] != 0, "the jump at {at} ends at {to}");
            }
        }
    }
}
