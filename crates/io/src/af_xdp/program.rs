//! The XDP program of a port: instructions for the kernel's virtual machine, put together here, so that no
//! compiler is needed where the port is used.
//!
//! It writes before the packet when that came, and hands the packet to the socket of its queue. A packet of a
//! queue without a socket goes on to the kernel's own stack.

/// `XDP_PASS`: the packet goes on to the kernel's stack.
const PASS: i32 = 2;
/// Bytes that the program writes before a packet: the time and [`MARK`].
pub(super) const STAMP: usize = 16;
/// Follows the time, so that what the program wrote is told from what lay there before.
pub(super) const MARK: u64 = 0x9e6c_2b71_d35f_a84d;

/// Offsets in `struct xdp_md`.
mod field {
    pub(super) const DATA: i16 = 0;
    pub(super) const DATA_META: i16 = 8;
    pub(super) const QUEUE: i16 = 16;
}

/// Functions of the kernel, by number.
mod helper {
    pub(super) const KTIME_GET_NS: i32 = 5;
    pub(super) const REDIRECT_MAP: i32 = 51;
    pub(super) const ADJUST_META: i32 = 54;
}

/// The registers that the program uses.
#[derive(Clone, Copy)]
enum Register {
    /// Result of a function.
    R0 = 0,
    /// Arguments of functions, which these overwrite.
    R1 = 1,
    R2 = 2,
    R3 = 3,
    R4 = 4,
    R5 = 5,
    /// Kept: the context.
    R6 = 6,
    /// Kept: the verdict.
    R7 = 7,
}

use Register::{R0, R1, R2, R3, R4, R5, R6, R7};

/// An instruction as the kernel reads it (`struct bpf_insn`).
pub(super) type Instruction = [u8; 8];

fn instruction(code: u8, to: Register, from: u8, offset: i16, value: i32) -> Instruction {
    let [o0, o1] = offset.to_ne_bytes();
    let [v0, v1, v2, v3] = value.to_ne_bytes();
    let registers =
        if cfg!(target_endian = "little") { from << 4 | to as u8 } else { (to as u8) << 4 | from };
    [code, registers, o0, o1, v0, v1, v2, v3]
}

/// `to = value`
fn set(to: Register, value: i32) -> Instruction {
    instruction(0xb7, to, 0, 0, value)
}

/// `to = from`
fn copy(to: Register, from: Register) -> Instruction {
    instruction(0xbf, to, from as u8, 0, 0)
}

/// `to += value`
fn add(to: Register, value: i32) -> Instruction {
    instruction(0x07, to, 0, 0, value)
}

/// `to = *(u32 *)(from + offset)`
fn load32(to: Register, from: Register, offset: i16) -> Instruction {
    instruction(0x61, to, from as u8, offset, 0)
}

/// `*(u64 *)(to + offset) = from`
fn store64(to: Register, offset: i16, from: Register) -> Instruction {
    instruction(0x7b, to, from as u8, offset, 0)
}

/// `to = value`, of 64 bits. `kind` is 0 of a number, 1 of a map's descriptor.
fn set64(to: Register, value: u64, kind: u8) -> [Instruction; 2] {
    [instruction(0x18, to, kind, 0, value as i32), instruction(0, R0, 0, 0, (value >> 32) as i32)]
}

/// Calls a function of the kernel.
fn call(function: i32) -> Instruction {
    instruction(0x85, R0, 0, 0, function)
}

/// Goes on so many instructions behind the next one, if the register isn't this number.
fn skip_unless(register: Register, value: i32, instructions: i16) -> Instruction {
    instruction(0x55, register, 0, instructions, value)
}

/// Goes on so many instructions behind the next one, if the one register is greater than the other.
fn skip_if_greater(register: Register, than: Register, instructions: i16) -> Instruction {
    instruction(0x2d, register, than as u8, instructions, 0)
}

fn exit() -> Instruction {
    instruction(0x95, R0, 0, 0, 0)
}

/// The program that hands packets to the sockets of `map`, an XSKMAP by queue; `stamped` says that it writes
/// the time.
///
/// A driver that has no room before packets gives no time; they go to their sockets all the same.
pub(super) fn program(map: i32, stamped: bool) -> Vec<Instruction> {
    let stamp = STAMP as i32;
    let mut write = vec![copy(R1, R6), set(R2, -stamp), call(helper::ADJUST_META)];
    let [mark_low, mark_high] = set64(R5, MARK, 0);
    let body = [
        call(helper::KTIME_GET_NS),
        load32(R2, R6, field::DATA_META),
        load32(R3, R6, field::DATA),
        copy(R4, R2),
        add(R4, stamp),
        // The kernel wants to see that what is written lies before the packet.
        skip_if_greater(R4, R3, 4),
        store64(R2, 0, R0),
        mark_low,
        mark_high,
        store64(R2, 8, R5),
    ];
    write.push(skip_unless(R0, 0, body.len() as i16));
    write.extend(body);

    let [map_low, map_high] = set64(R1, map as u64, 1);
    let redirect =
        [load32(R2, R6, field::QUEUE), map_low, map_high, set(R3, PASS), call(helper::REDIRECT_MAP)];
    // The kernel's stack doesn't merge packets (GRO) that have different bytes before them.
    let take_back = [copy(R1, R6), set(R2, stamp), call(helper::ADJUST_META)];

    let mut all = vec![copy(R6, R1)];
    if stamped {
        all.extend(write);
    }
    all.extend(redirect);
    if stamped {
        all.push(copy(R7, R0));
        all.push(skip_unless(R7, PASS, take_back.len() as i16));
        all.extend(take_back);
        all.push(copy(R0, R7));
    }
    all.push(exit());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Held against bytes that were put together by hand from the kernel's description of its instructions.
    #[test]
    #[cfg(target_endian = "little")]
    fn instructions_are_those_of_the_kernel() {
        let all = program(7, false);
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
        assert_eq!(skip_unless(R0, 0, 10), [0x55, 0x00, 10, 0, 0, 0, 0, 0]);
        assert_eq!(set(R2, -16), [0xb7, 0x02, 0, 0, 0xf0, 0xff, 0xff, 0xff]);
        assert_eq!(store64(R2, 8, R5), [0x7b, 0x52, 8, 0, 0, 0, 0, 0]);
    }

    /// Every jump ends at an instruction, and not in the middle of one of two parts.
    #[test]
    fn jumps_end_at_instructions() {
        let all = program(1 << 20, true);
        for (at, one) in all.iter().enumerate().filter(|(_, one)| [0x55, 0x2d].contains(&one[0])) {
            let to = at + 1 + usize::from(u16::from_ne_bytes([one[2], one[3]]));
            assert!(to < all.len() && all[to][0] != 0, "the jump at {at} ends at {to}");
        }
    }
}
