//! Four rules side by side, as the leaves of a tree hold them: a packet is compared with all of them at once,
//! without a branch that depends on which of them match.

use super::PacketFields;
use super::entry::{Entry, Family};
use super::four::Four;

/// Rules of a block.
pub(super) const WIDTH: usize = 4;

/// Four rules of one IP version.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Block<F: Family> {
    nets: F::Nets,
    /// Value and mask of the packet's word.
    word: [Four; 2],
    /// First source and destination port, and how many follow them.
    ports: [Four; 2],
}

/// A packet as it is held against blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<F: Family> {
    nets: F::Asked,
    word: Four,
    ports: Four,
}

impl<F: Family> Asked<F> {
    #[inline(always)]
    pub(super) fn new(packet: &PacketFields) -> Self {
        let [_, _, _, _, src_port, dst_port, ..] = packet.words;
        Self {
            nets: F::ask(&packet.words),
            word: Four::splat(packet.word),
            ports: Four::splat(pair(src_port as u16, dst_port as u16)),
        }
    }
}

impl<F: Family> Block<F> {
    pub(super) fn new(entries: [&Entry<F>; WIDTH]) -> Self {
        let four = |of: fn(&Entry<F>) -> u32| Four::new(entries.map(of));
        Self {
            nets: F::nets(entries.map(|e| &e.addresses)),
            word: [four(|e| e.value), four(|e| e.mask)],
            ports: [
                four(|e| pair(e.src_ports.0, e.dst_ports.0)),
                four(|e| pair(e.src_ports.1, e.dst_ports.1)),
            ],
        }
    }

    /// The second cache line of a block that has two.
    #[inline(always)]
    pub(super) fn second_line(&self) -> &[Four; 2] {
        &self.word
    }

    /// The rules that match, as bits, but for conditions that are kept elsewhere.
    #[inline(always)]
    pub(super) fn matching(&self, asked: &Asked<F>) -> u32 {
        let ([value, mask], [first, more]) = (self.word, self.ports);
        let word = asked.word.differing(value, mask);
        let ports = asked.ports.outside(first, more);
        F::differing(&asked.nets, &self.nets).or(word).or(ports).zeros()
    }
}

const fn pair(src: u16, dst: u16) -> u32 {
    src as u32 | (dst as u32) << 16
}
