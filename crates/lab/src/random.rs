//! Numbers that look random, from a seed.

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The number with this number in the stream of seed 0, counted from 1.
pub(crate) fn numbered(n: u64) -> u64 {
    scramble(n.wrapping_mul(STEP))
}

fn scramble(state: u64) -> u64 {
    let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// SplitMix64 (Steele, Lea and Flood, 2014), and its seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// 64 bits.
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        scramble(self.0)
    }

    /// One below `n`; 0 where `n` is 0.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.bits() % n.max(1) as u64) as usize
    }

    /// A number from 0 on, below 1.
    pub(crate) fn share(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_that_of_splitmix64() {
        // The first number of seed 0, as others have it.
        assert_eq!(numbered(1), 0xe220_a839_7b1d_cdaf);
        let mut random = Random(0);
        assert!((1..100).all(|n| random.bits() == numbered(n)));
        assert!((0..100).all(|_| (0.0..1.0).contains(&random.share()) && random.below(7) < 7));
        assert_eq!(random.below(0), 0);
    }
}
