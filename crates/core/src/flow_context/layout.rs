//! The layout of flow contexts, and what stages say of their use of them.

use alloc::vec::Vec;

use slipstream_wire::WideKey;

use super::Line;
use crate::table::Index;

/// Words of 32 bits in a cache line.
pub(super) const WORDS: usize = 16;
/// Words of a context's first line that are its own: the key, and when it was last used.
const OWN: usize = 5;

/// The use that a stage makes of flow contexts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowUse {
    /// Words of 32 bits that it keeps of a flow; at most 16, and 0 for none.
    pub words: u8,
    /// A look-up is worth it for this stage alone; else where two stages share one.
    pub alone: bool,
    /// Trains behind the stage.
    pub trains: Trains,
}

impl FlowUse {
    /// A stage that keeps nothing of flows, and lets trains pass.
    pub const PASSES: Self = Self { words: 0, alone: false, trains: Trains::Pass };
    /// A stage that keeps nothing of flows, and makes trains anew.
    pub const MAKES: Self = Self { words: 0, alone: false, trains: Trains::Made };
}

/// The trains that leave a stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trains {
    /// Nothing is known: packets of a train may have flow keys that differ, or leave later than they came.
    #[default]
    Unknown,
    /// Packets leave with the flow key that they came with, at once, in trains of which each is, or is a part
    /// of, one that came, with its [`flow`](crate::batch::Train::flow); or with
    /// [`Frame::NO_FLOW`](crate::frame::Frame::NO_FLOW).
    Pass,
    /// Trains are made anew, each of packets with one flow key.
    Made,
    /// Packets may leave with another flow key than they came with, at once; a train whose packets came with
    /// one leaves in trains of which each has one.
    Changed,
}

/// The place of a stage's words in a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub(super) line: u16,
    pub(super) word: u16,
}

impl Place {
    /// No place: nothing is kept.
    pub const NONE: Self = Self { line: 0, word: WORDS as u16 };

    /// Offset from the beginning of a context, in bytes.
    #[must_use]
    pub fn offset(self) -> usize {
        (usize::from(self.line) * WORDS + usize::from(self.word)) * size_of::<u32>()
    }
}

/// The layout of contexts, as it is being made.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Words that are taken of each line.
    pub(super) lines: Vec<usize>,
}

impl Default for Layout {
    fn default() -> Self {
        Self { lines: alloc::vec![OWN] }
    }
}

impl Layout {
    /// Bytes before the first place: the key, and when the context was last used.
    pub const HEADER: usize = OWN * size_of::<u32>();

    /// A place for so many words, within one cache line. [`Place::NONE`] for 0 of them, or more than a line
    /// has.
    pub fn place(&mut self, words: u8) -> Place {
        let words = usize::from(words);
        if words == 0 || words > WORDS {
            return Place::NONE;
        }
        let line = match self.lines.iter().position(|taken| taken + words <= WORDS) {
            Some(line) => line,
            None => {
                self.lines.push(0);
                self.lines.len() - 1
            }
        };
        let word = self.lines.get_mut(line).map_or(WORDS, |taken| core::mem::replace(taken, *taken + words));
        Place { line: line as u16, word: word as u16 }
    }

    /// Bytes of a context.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.lines.len() * size_of::<Line>()
    }

    /// Memory of the contexts of so many flows with their index, in bytes; those of IPv6, or with several
    /// VLAN tags, take [`LONG_KEY`](Self::LONG_KEY) bytes each beyond that, when they come.
    #[must_use]
    pub fn memory(&self, flows: u32) -> u64 {
        u64::from(flows) * self.bytes() as u64 + Index::memory(flows)
    }

    /// Bytes for each number that a stage which makes trains may give a flow.
    pub const NUMBER: usize = size_of::<u32>();

    /// Bytes of a long key.
    pub const LONG_KEY: usize = size_of::<WideKey>();
}
