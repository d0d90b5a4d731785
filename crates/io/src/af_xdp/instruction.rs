//! Instructions of the kernel's virtual machine (BPF), and their assembly into a program.

/// An instruction as the kernel reads it (`struct bpf_insn`).
pub(super) type Instruction = [u8; 8];

/// The registers. Functions of the kernel take arguments in R1 to R5, overwrite these, and return R0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Register {
    R0 = 0,
    R1 = 1,
    R2 = 2,
    R3 = 3,
    R4 = 4,
    R5 = 5,
    R6 = 6,
    R7 = 7,
    R8 = 8,
    R9 = 9,
    /// The end of the stack, which grows downwards.
    R10 = 10,
}

use Register::R0;

const fn instruction(code: u8, to: Register, from: u8, offset: i16, value: i32) -> Instruction {
    let [o0, o1] = offset.to_ne_bytes();
    let [v0, v1, v2, v3] = value.to_ne_bytes();
    let registers =
        if cfg!(target_endian = "little") { from << 4 | to as u8 } else { (to as u8) << 4 | from };
    [code, registers, o0, o1, v0, v1, v2, v3]
}

/// `to = value`
pub(super) fn set(to: Register, value: i32) -> Instruction {
    instruction(0xb7, to, 0, 0, value)
}

/// `to = from`
pub(super) fn copy(to: Register, from: Register) -> Instruction {
    instruction(0xbf, to, from as u8, 0, 0)
}

/// The operation of an instruction on the value of a register, all of whose 64 bits count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Add = 0x00,
    Subtract = 0x10,
    Multiply = 0x20,
    Or = 0x40,
    And = 0x50,
    ShiftLeft = 0x60,
    ShiftRight = 0x70,
    Xor = 0xa0,
}

/// `to = to operation value`
pub(super) fn change(to: Register, operation: Operation, value: i32) -> Instruction {
    instruction(operation as u8 | 0x07, to, 0, 0, value)
}

/// `to = to operation by`
pub(super) fn change_by(to: Register, operation: Operation, by: Register) -> Instruction {
    instruction(operation as u8 | 0x0f, to, by as u8, 0, 0)
}

/// `to += value`
pub(super) fn add(to: Register, value: i32) -> Instruction {
    change(to, Operation::Add, value)
}

/// Turns 16 bits from the network's order of bytes into the machine's; what is above them is 0 then.
pub(super) fn from_network16(to: Register) -> Instruction {
    instruction(0xdc, to, 0, 0, 16)
}

/// `to = *(u8 *)(from + offset)`
pub(super) fn load8(to: Register, from: Register, offset: i16) -> Instruction {
    instruction(0x71, to, from as u8, offset, 0)
}

/// `to = *(u16 *)(from + offset)`
pub(super) fn load16(to: Register, from: Register, offset: i16) -> Instruction {
    instruction(0x69, to, from as u8, offset, 0)
}

/// `to = *(u32 *)(from + offset)`
pub(super) const fn load32(to: Register, from: Register, offset: i16) -> Instruction {
    instruction(0x61, to, from as u8, offset, 0)
}

/// `to = *(u64 *)(from + offset)`
pub(super) fn load64(to: Register, from: Register, offset: i16) -> Instruction {
    instruction(0x79, to, from as u8, offset, 0)
}

/// `*(u64 *)(to + offset) = from`
pub(super) fn store64(to: Register, offset: i16, from: Register) -> Instruction {
    instruction(0x7b, to, from as u8, offset, 0)
}

/// `*(u64 *)to += from`, at once for all cores.
pub(super) fn count64(to: Register, from: Register) -> Instruction {
    instruction(0xdb, to, from as u8, 0, 0)
}

/// `to = value`, of 64 bits.
pub(super) fn set64(to: Register, value: u64) -> [Instruction; 2] {
    [instruction(0x18, to, 0, 0, value as i32), instruction(0, R0, 0, 0, (value >> 32) as i32)]
}

/// `to =` the map with this descriptor.
pub(super) fn set_map(to: Register, map: i32) -> [Instruction; 2] {
    [instruction(0x18, to, 1, 0, map), instruction(0, R0, 0, 0, 0)]
}

/// Calls a function of the kernel.
pub(super) fn call(function: i32) -> Instruction {
    instruction(0x85, R0, 0, 0, function)
}

/// Ends the program; R0 is the verdict.
pub(super) fn exit() -> Instruction {
    instruction(0x95, R0, 0, 0, 0)
}

/// A comparison of a register with a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal = 0x10,
    Greater = 0x20,
    NotEqual = 0x50,
    Less = 0xa0,
    AtMost = 0xb0,
}

/// A place in a program that jumps lead to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Label(usize);

/// A program under way: instructions, and jumps to places that may be known later.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    code: Vec<Instruction>,
    /// The place of each label.
    places: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
}

impl Assembly {
    /// A label, which has to be [placed](Self::place).
    pub(super) fn label(&mut self) -> Label {
        self.places.push(None);
        Label(self.places.len() - 1)
    }

    /// The label stands here: before the next instruction.
    pub(super) fn place(&mut self, label: Label) {
        if let Some(place) = self.places.get_mut(label.0) {
            *place = Some(self.code.len());
        }
    }

    /// Appends instructions.
    pub(super) fn put(&mut self, instructions: impl IntoIterator<Item = Instruction>) {
        self.code.extend(instructions);
    }

    /// Goes on at the label.
    pub(super) fn jump(&mut self, to: Label) {
        self.jump_by(instruction(0x05, R0, 0, 0, 0), to);
    }

    /// Goes on at the label where the lower 32 bits of the register compare so with the value, both without
    /// a sign.
    pub(super) fn jump_if(&mut self, register: Register, comparison: Comparison, value: u32, to: Label) {
        self.jump_by(instruction(comparison as u8 | 0x06, register, 0, 0, value as i32), to);
    }

    /// Goes on at the label if all bits of the register are zero.
    pub(super) fn jump_if_zero(&mut self, register: Register, to: Label) {
        self.jump_by(instruction(0x15, register, 0, 0, 0), to);
    }

    /// Goes on at the label if the one register is greater than the other, by all of their bits.
    pub(super) fn jump_if_greater(&mut self, register: Register, than: Register, to: Label) {
        self.jump_by(instruction(0x2d, register, than as u8, 0, 0), to);
    }

    /// Goes on at the label if the one register is less than the other, by all of their bits.
    pub(super) fn jump_if_less(&mut self, register: Register, than: Register, to: Label) {
        self.jump_by(instruction(0xad, register, than as u8, 0, 0), to);
    }

    fn jump_by(&mut self, jump: Instruction, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.code.push(jump);
    }

    /// The program. Jumps that go too far, or nowhere, lead to themselves, which the kernel refuses.
    pub(super) fn finish(mut self) -> Vec<Instruction> {
        for (at, label) in self.jumps {
            let place = self.places.get(label.0).copied().flatten();
            let distance = place.and_then(|place| i16::try_from(place as i64 - at as i64 - 1).ok());
            if let Some([_, _, o0, o1, ..]) = self.code.get_mut(at) {
                [*o0, *o1] = distance.unwrap_or(-1).to_ne_bytes();
            }
        }
        self.code
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Register::{R1, R2, R3, R5};

    /// Held against bytes that were put together by hand from the kernel's description of its instructions.
    #[test]
    #[cfg(target_endian = "little")]
    fn instructions_are_those_of_the_kernel() {
        assert_eq!(set(R2, -16), [0xb7, 0x02, 0, 0, 0xf0, 0xff, 0xff, 0xff]);
        assert_eq!(store64(R2, 8, R5), [0x7b, 0x52, 8, 0, 0, 0, 0, 0]);
        assert_eq!(load64(R1, Register::R10, -8), [0x79, 0xa1, 0xf8, 0xff, 0, 0, 0, 0]);
        assert_eq!(load8(R3, R2, 9), [0x71, 0x23, 9, 0, 0, 0, 0, 0]);
        assert_eq!(change(R1, Operation::ShiftRight, 63), [0x77, 0x01, 0, 0, 63, 0, 0, 0]);
        assert_eq!(change_by(R1, Operation::Xor, R2), [0xaf, 0x21, 0, 0, 0, 0, 0, 0]);
        assert_eq!(count64(R1, R3), [0xdb, 0x31, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn jumps_lead_to_their_labels() {
        let mut assembly = Assembly::default();
        let (here, there, nowhere) = (assembly.label(), assembly.label(), assembly.label());
        assembly.place(here);
        assembly.jump_if(R1, Comparison::NotEqual, u32::MAX, there);
        assembly.jump(here);
        assembly.place(there);
        assembly.jump_if_greater(R1, R2, nowhere);
        let code = assembly.finish();
        let distances: Vec<_> = code.iter().map(|one| i16::from_ne_bytes([one[2], one[3]])).collect();
        assert_eq!(distances, [1, -2, -1]);
        assert_eq!(code.iter().map(|one| one[0]).collect::<Vec<_>>(), [0x56, 0x05, 0x2d]);
    }
}
