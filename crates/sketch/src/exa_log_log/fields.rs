//! Registers of a few bits each, packed.

/// Bytes behind the registers, so that four can be read at each.
const SPARE: usize = 3;

/// Registers of some bits each, side by side.
#[derive(Clone, Debug)]
pub(super) struct Fields {
    pub(super) bytes: Vec<u8>,
    /// Bits of a register: at most 25.
    pub(super) width: u32,
}

impl Fields {
    pub(super) fn new(n: usize, width: u32) -> Self {
        Self { bytes: vec![0; Self::bytes_for(n, width)], width }
    }

    pub(super) const fn bytes_for(n: usize, width: u32) -> usize {
        (n * width as usize).div_ceil(8) + SPARE
    }

    #[inline(always)]
    const fn place(&self, i: usize) -> (usize, u32) {
        let bit = i * self.width as usize;
        (bit / 8, (bit % 8) as u32)
    }

    #[inline(always)]
    pub(super) fn get(&self, i: usize) -> u32 {
        let (at, shift) = self.place(i);
        let word = self.bytes.get(at..).and_then(|b| b.first_chunk::<4>());
        word.map_or(0, |word| u32::from_le_bytes(*word) >> shift & ((1 << self.width) - 1))
    }

    #[inline]
    pub(super) fn set(&mut self, i: usize, value: u32) {
        let (at, shift) = self.place(i);
        if let Some(word) = self.bytes.get_mut(at..).and_then(|b| b.first_chunk_mut::<4>()) {
            let others = u32::from_le_bytes(*word) & !(((1 << self.width) - 1) << shift);
            *word = (others | value << shift).to_le_bytes();
        }
    }
}
