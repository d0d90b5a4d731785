//! Registers that forget nothing, in the memory of those that do: while there are few keys for each register,
//! most of a register's bits say nothing. Until then the first eight events, of which fifteen out of sixteen
//! keys cause one, have a bit each; others stand with their register's number in a hash table that takes the
//! rest of the memory. Once that is full, registers become what they would have been from the start, for what
//! they keep follows from the set of keys alone.

use super::shape::{Register, Shape};

/// The most registers of which nothing is forgotten: of more, a short state would stand for much memory.
pub(super) const MOST: usize = 1 << 15;
/// Events that have a bit.
const BITS: u32 = 8;
/// Bytes of an entry: the register's number, and the event in the lowest seven bits.
const ENTRY: usize = 3;
const EVENT: u32 = 7;

/// The events of a register: event e is bit e − 1.
pub(super) type Events = u128;

pub(super) const fn event_bit(event: u32) -> Events {
    1 << (event.wrapping_sub(1) & 127)
}

/// The content of a register that has forgotten what is far below its highest event.
pub(super) fn kept(shape: Shape, events: Events) -> Register {
    let highest = Events::BITS - events.leading_zeros();
    if highest == 0 {
        return (0, 0);
    }
    let below = events ^ event_bit(highest);
    let at = highest - 1;
    let bits = if at > shape.below { below >> (at - shape.below) } else { below << (shape.below - at) };
    (highest, bits as u32)
}

/// An event that was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Added {
    /// It was there.
    Old,
    New,
    /// There is no room for it.
    Full,
}

/// How the bytes of all registers are used: a byte for each, then entries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sparse {
    registers: usize,
    slots: usize,
    used: usize,
}

impl Sparse {
    /// Registers without an event in so many bytes, which are zeros; nothing where these can't be used so.
    pub(super) const fn new(registers: usize, bytes: usize) -> Option<Self> {
        if registers > MOST || bytes < registers {
            return None;
        }
        Some(Self { registers, slots: (bytes - registers) / ENTRY, used: 0 })
    }

    /// Entries that there may be: an eighth of the table stays empty.
    const fn room(&self) -> usize {
        self.slots - self.slots.div_ceil(8)
    }

    /// Adds an event (1 to 126) of a register.
    pub(super) fn add(&mut self, bytes: &mut [u8], register: usize, event: u32) -> Added {
        if event <= BITS {
            let bit = event_bit(event) as u8;
            return match bytes.get_mut(register) {
                Some(byte) if *byte & bit == 0 => {
                    *byte |= bit;
                    Added::New
                }
                _ => Added::Old,
            };
        }
        let Some((_, table)) = bytes.split_at_mut_checked(self.registers) else { return Added::Full };
        let entry = (register as u32) << EVENT | event;
        let spread = u64::from(entry.wrapping_mul(0x9e37_79b1));
        let mut at = ((spread * self.slots as u64) >> 32) as usize;
        for _ in 0..self.slots {
            let Some(slot) = table.get_mut(at * ENTRY..).and_then(|t| t.first_chunk_mut::<ENTRY>()) else {
                break;
            };
            let there = read(*slot);
            if there == entry {
                return Added::Old;
            }
            if there == 0 {
                if self.used >= self.room() {
                    break;
                }
                let [a, b, c, _] = entry.to_le_bytes();
                *slot = [a, b, c];
                self.used += 1;
                return Added::New;
            }
            at = if at + 1 == self.slots { 0 } else { at + 1 };
        }
        Added::Full
    }

    /// The events of every register.
    pub(super) fn events(&self, bytes: &[u8]) -> Vec<Events> {
        let (bits, table) = bytes.split_at_checked(self.registers).unwrap_or_default();
        let mut all: Vec<Events> = bits.iter().map(|byte| Events::from(*byte)).collect();
        let entries = table.chunks_exact(ENTRY).filter_map(|slot| slot.first_chunk()).map(|slot| read(*slot));
        for entry in entries.filter(|entry| *entry != 0) {
            if let Some(events) = all.get_mut((entry >> EVENT) as usize) {
                *events |= event_bit(entry & ((1 << EVENT) - 1));
            }
        }
        all
    }
}

const fn read([a, b, c]: [u8; ENTRY]) -> u32 {
    u32::from_le_bytes([a, b, c, 0])
}
