//! The kernel's virtual machine in small, for tests: a program's instructions one after the other, each as
//! the kernel's documentation (`Documentation/bpf/standardization/instruction-set.rst`) describes it. An
//! access beyond the packet, the context, the stack or a counter ends the test.

use super::instruction::Instruction;
use super::program::{COUNTER, field, helper};

/// `XDP_REDIRECT`: the packet went to a socket.
pub(super) const REDIRECT: u64 = 4;

/// The beginnings of the parts of memory, by their highest bits.
const CONTEXT: u64 = 1 << 28;
const PACKET: u64 = 2 << 28;
const STACK: u64 = 3 << 28;
const COUNTERS: u64 = 4 << 28;
/// `-EINVAL`, as functions of the kernel return it.
const INVALID: u64 = (-22_i64) as u64;
/// Bytes of the stack.
const STACK_SIZE: usize = 512;

/// The memory that a program reads and writes.
pub(super) struct Machine<'a> {
    packet: &'a [u8],
    context: Vec<u8>,
    stack: Vec<u8>,
    /// The values of the map of counters.
    pub(super) counters: Vec<u8>,
}

impl<'a> Machine<'a> {
    /// A machine with a packet that came by this queue, and counters of so many.
    pub(super) fn new(packet: &'a [u8], queue: u32, queues: u32) -> Self {
        let end = PACKET as u32 + packet.len() as u32;
        // `struct xdp_md`: data, data_end, data_meta, ingress_ifindex, rx_queue_index.
        let context = [PACKET as u32, end, PACKET as u32, 1, queue].map(u32::to_ne_bytes).concat();
        Self { packet, context, stack: vec![0xa5; STACK_SIZE], counters: vec![0; queues as usize * COUNTER] }
    }

    fn load(&self, address: u64, bytes: usize) -> u64 {
        let memory = match address >> 28 << 28 {
            CONTEXT => self.context.as_slice(),
            PACKET => self.packet,
            STACK => self.stack.as_slice(),
            COUNTERS => self.counters.as_slice(),
            _ => panic!("a load from {address:#x}"),
        };
        let at = (address & 0x0fff_ffff) as usize;
        match memory[at..at + bytes] {
            [a] => a.into(),
            [a, b] => u16::from_ne_bytes([a, b]).into(),
            [a, b, c, d] => u32::from_ne_bytes([a, b, c, d]).into(),
            ref all => u64::from_ne_bytes(all.try_into().unwrap()),
        }
    }

    fn store(&mut self, address: u64, value: u64) {
        let memory = match address >> 28 << 28 {
            STACK => &mut self.stack,
            COUNTERS => &mut self.counters,
            _ => panic!("a store to {address:#x}"),
        };
        let at = (address & 0x0fff_ffff) as usize;
        memory[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    }

    /// Runs a program; returns its verdict.
    pub(super) fn run(&mut self, program: &[Instruction]) -> u64 {
        let mut registers = [0_u64; 11];
        registers[1] = CONTEXT;
        registers[10] = STACK + STACK_SIZE as u64;
        let mut at = 0;
        loop {
            let [code, both, o0, o1, v0, v1, v2, v3] = program[at];
            let (low, high) = (usize::from(both & 15), usize::from(both >> 4));
            let (to, from) = if cfg!(target_endian = "little") { (low, high) } else { (high, low) };
            let offset = i64::from(i16::from_ne_bytes([o0, o1]));
            let value = i32::from_ne_bytes([v0, v1, v2, v3]);
            let wide = i64::from(value) as u64;
            let address = |register: u64| register.wrapping_add_signed(offset);
            at += 1;
            let (a, b) = (registers[to], registers[from]);
            match code {
                0x95 => return registers[0],
                0x85 => {
                    registers[0] = self.call(value, registers[2]);
                    // Nothing that was in them may be used any more.
                    registers[1..6].fill(0xdead << 48);
                }
                0x18 => {
                    let [.., w0, w1, w2, w3] = program[at];
                    let upper = u64::from(u32::from_ne_bytes([w0, w1, w2, w3])) << 32;
                    at += 1;
                    registers[to] = match from {
                        0 => upper | u64::from(value as u32),
                        // A map, which only functions take.
                        _ => 0,
                    };
                }
                0x71 => registers[to] = self.load(address(b), 1),
                0x69 => registers[to] = self.load(address(b), 2),
                0x61 => registers[to] = self.load(address(b), 4),
                0x79 => registers[to] = self.load(address(b), 8),
                0x7b => self.store(address(a), b),
                0xdb => self.store(a, self.load(a, 8) + b),
                0xdc => registers[to] = u64::from((a as u16).to_be()),
                // Arithmetic of 64 bits, with a number or a register.
                _ if code & 7 == 7 => {
                    let by = if code & 8 == 0 { wide } else { b };
                    registers[to] = match code & 0xf0 {
                        0x00 => a.wrapping_add(by),
                        0x10 => a.wrapping_sub(by),
                        0x20 => a.wrapping_mul(by),
                        0x40 => a | by,
                        0x50 => a & by,
                        0x60 => a << (by & 63),
                        0x70 => a >> (by & 63),
                        0xa0 => a ^ by,
                        0xb0 => by,
                        _ => panic!("instruction {code:#x}"),
                    };
                }
                // Jumps by 64 bits, or by the lower 32.
                _ if matches!(code & 7, 5 | 6) => {
                    let narrow = |n: u64| if code & 7 == 6 { n & 0xffff_ffff } else { n };
                    let (a, b) = (narrow(a), narrow(if code & 8 == 0 { wide } else { b }));
                    let jumps = match code & 0xf0 {
                        0x00 => true,
                        0x10 => a == b,
                        0x20 => a > b,
                        0x30 => a >= b,
                        0x50 => a != b,
                        0xa0 => a < b,
                        0xb0 => a <= b,
                        _ => panic!("instruction {code:#x}"),
                    };
                    if jumps {
                        at = at.checked_add_signed(offset as isize).unwrap();
                    }
                }
                _ => panic!("instruction {code:#x}"),
            }
        }
    }

    /// The beginning of the packet, in bytes from the one that it had at first.
    pub(super) fn begins(&self) -> u64 {
        self.load(CONTEXT + field::DATA as u64, 4) - PACKET
    }

    /// Has the packet begin later by so many bytes, if it has those of an Ethernet header then.
    fn adjust_head(&mut self, by: i32) -> u64 {
        let begin = self.begins() as i64 + i64::from(by);
        assert!(begin >= 0, "the packet begins {begin} bytes before it began");
        if begin + 14 > self.packet.len() as i64 {
            return INVALID;
        }
        for at in [field::DATA, field::DATA_META] {
            let now = (PACKET as u32 + begin as u32).to_ne_bytes();
            self.context[at as usize..at as usize + 4].copy_from_slice(&now);
        }
        0
    }

    fn call(&mut self, function: i32, second: u64) -> u64 {
        match function {
            helper::REDIRECT_MAP => REDIRECT,
            helper::MAP_LOOKUP => match self.load(second, 4) as usize * COUNTER {
                at if at < self.counters.len() => COUNTERS + at as u64,
                _ => 0,
            },
            helper::ADJUST_HEAD => self.adjust_head(second as i32),
            helper::GET_BUFF_LEN => self.packet.len() as u64,
            // As of a driver that has no room before packets.
            helper::ADJUST_META => INVALID,
            _ => panic!("function {function}"),
        }
    }
}
