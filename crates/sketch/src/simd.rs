//! The only unsafe code of the crate: SIMD comparison of a key with a line of sixteen, prefetching, and the
//! inner loop of Count-Min.
//!
//! Agg-Evict paper, §3.4, Algorithm 1. All three ways give the same mask; the aggregator chooses one at run
//! time.

#![allow(unsafe_code)]

use crate::Update;
use crate::hash::{Hasher, below};
use crate::kind::MAX_CELLS;

/// Keys of one bucket: exactly one cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [u32; 16]);

/// A way to compare a key with a line. Whoever holds a value of it runs on a processor that has the
/// instructions.
pub(crate) trait Lookup: Copy {
    /// Bit i is set where key i of the line equals `key`.
    fn find(self, line: &Line, key: u32) -> u32;
}

/// Any processor.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

impl Lookup for Portable {
    #[inline(always)]
    fn find(self, line: &Line, key: u32) -> u32 {
        let mut mask = 0;
        for (i, k) in line.0.iter().enumerate() {
            mask |= u32::from(*k == key) << i;
        }
        mask
    }
}

/// SSE2, which every x86-64 has.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct Sse2(());

#[cfg(target_arch = "x86_64")]
impl Lookup for Sse2 {
    #[inline(always)]
    fn find(self, line: &Line, key: u32) -> u32 {
        use std::arch::x86_64::{
            __m128i, _mm_cmpeq_epi32, _mm_load_si128, _mm_movemask_epi8, _mm_packs_epi16, _mm_packs_epi32,
            _mm_set1_epi32,
        };
        let at = std::ptr::from_ref(line).cast::<__m128i>();
        // SAFETY: SSE2 is part of x86-64; a line is 64 bytes, aligned to 64, so the four loads are within it
        // and aligned.
        unsafe {
            let item = _mm_set1_epi32(key.cast_signed());
            let a = _mm_cmpeq_epi32(item, _mm_load_si128(at));
            let b = _mm_cmpeq_epi32(item, _mm_load_si128(at.add(1)));
            let c = _mm_cmpeq_epi32(item, _mm_load_si128(at.add(2)));
            let d = _mm_cmpeq_epi32(item, _mm_load_si128(at.add(3)));
            let all = _mm_packs_epi16(_mm_packs_epi32(a, b), _mm_packs_epi32(c, d));
            _mm_movemask_epi8(all).cast_unsigned()
        }
    }
}

/// AVX2.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

#[cfg(target_arch = "x86_64")]
impl Lookup for Avx2 {
    #[inline(always)]
    fn find(self, line: &Line, key: u32) -> u32 {
        use std::arch::x86_64::{
            __m256i, _mm256_castsi256_ps, _mm256_cmpeq_epi32, _mm256_load_si256, _mm256_movemask_ps,
            _mm256_set1_epi32,
        };
        let at = std::ptr::from_ref(line).cast::<__m256i>();
        // SAFETY: a value of this type is made only where there is AVX2; a line is 64 bytes, aligned to 64,
        // so both loads are within it and aligned.
        unsafe {
            let item = _mm256_set1_epi32(key.cast_signed());
            let a = _mm256_cmpeq_epi32(item, _mm256_load_si256(at));
            let b = _mm256_cmpeq_epi32(item, _mm256_load_si256(at.add(1)));
            let low = _mm256_movemask_ps(_mm256_castsi256_ps(a)).cast_unsigned();
            let high = _mm256_movemask_ps(_mm256_castsi256_ps(b)).cast_unsigned();
            low | high << 8
        }
    }
}

/// A loop that wants the fastest comparison inlined into it.
pub(crate) trait Work {
    /// The loop. It must be `#[inline(always)]`, or the comparison costs a call.
    fn run<L: Lookup>(&mut self, lookup: L);
}

/// Which instructions compare keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instructions {
    /// No SIMD: a loop that any processor runs.
    Portable,
    /// Four keys at a time.
    Sse2,
    /// Eight keys at a time.
    Avx2,
}

impl Instructions {
    /// Lists the instructions that this processor has, the fastest first.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let mut all = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            if std::is_x86_feature_detected!("avx2")
                && std::is_x86_feature_detected!("bmi2")
                && std::is_x86_feature_detected!("bmi1")
                && std::is_x86_feature_detected!("lzcnt")
                && std::is_x86_feature_detected!("popcnt")
            {
                all.push(Self::Avx2);
            }
            all.push(Self::Sse2);
        }
        all.push(Self::Portable);
        all
    }

    /// The fastest of them.
    #[must_use]
    pub fn best() -> Self {
        Self::available().first().copied().unwrap_or(Self::Portable)
    }
}

/// Instructions that were found to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checked(Instructions);

impl Checked {
    /// These instructions if this processor has them, else the fastest that it has.
    pub(crate) fn new(wanted: Instructions) -> Self {
        Self(if Instructions::available().contains(&wanted) { wanted } else { Instructions::best() })
    }

    /// Which they are.
    pub(crate) const fn which(self) -> Instructions {
        self.0
    }

    /// Runs a loop with them.
    #[inline]
    pub(crate) fn run(self, work: &mut impl Work) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `new` found AVX2 on this processor.
            Instructions::Avx2 => unsafe { with_avx2(work) },
            #[cfg(target_arch = "x86_64")]
            Instructions::Sse2 => work.run(Sse2(())),
            _ => work.run(Portable),
        }
    }
}

/// # Safety
/// The processor must have AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
unsafe fn with_avx2(work: &mut impl Work) {
    work.run(Avx2(()));
}

/// Asks for the cache line that holds the beginning of an element. No effect on what a program computes.
#[inline(always)]
pub(crate) fn prefetch<T>(slice: &[T], index: usize) {
    prefetch_at(slice, index, 0);
}

/// As [`prefetch`], for the line that holds byte number `byte` of the element.
#[inline(always)]
pub(crate) fn prefetch_at<T>(slice: &[T], index: usize, byte: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch never faults, whatever the address, and reads nothing that the program sees.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(slice.as_ptr().wrapping_add(index).cast::<i8>().wrapping_add(byte))
        };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (slice, index, byte);
}

/// Updates whose counters are asked for before the first of them is touched, where the caches don't hold
/// them.
const AHEAD: usize = 32;
/// Counters that caches hold: beyond, the processor alone doesn't look ahead far enough.
pub(crate) const CACHED: usize = 1 << 20;

/// Adds to one counter of each of four rows of `width` (1 to 2²⁸). The caller knows that no counter reaches
/// its end.
///
/// # Panics
/// If there are fewer than four rows of counters, or the width is out of range.
#[inline(always)]
pub(crate) fn add_in_four_rows<const N: usize>(
    counters: &mut [u32],
    width: usize,
    hasher: Hasher,
    updates: &[Update<N>],
) {
    assert!((1..=MAX_CELLS / 4).contains(&width) && counters.len() >= 4 * width, "four rows of counters");
    let row = width as u32;
    let places = |key: &[u8; N]| {
        let [a, b, c, d] = hasher.hash(key).pieces().map(|piece| below(piece, width) as u32);
        [a, row + b, 2 * row + c, 3 * row + d]
    };
    let add = |counters: &mut [u32], places: &[u32; 4], weight: u32| {
        for i in places {
            // SAFETY: row r's place is r·width plus what is below the width: less than 4·width, which is no
            // more than the counters, as was asserted.
            let counter = unsafe { counters.get_unchecked_mut(*i as usize) };
            *counter = counter.wrapping_add(weight);
        }
    };
    if 4 * width <= CACHED {
        updates.iter().for_each(|u| add(counters, &places(&u.key), u.weight));
        return;
    }
    for some in updates.chunks(AHEAD) {
        let mut all = [[0u32; 4]; AHEAD];
        for (place, u) in all.iter_mut().zip(some) {
            *place = places(&u.key);
            place.iter().for_each(|i| prefetch(counters, *i as usize));
        }
        for (place, u) in all.iter().zip(some) {
            add(counters, place, u.weight);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct Find<'a> {
        line: &'a Line,
        key: u32,
        mask: u32,
    }

    impl Work for Find<'_> {
        #[inline(always)]
        fn run<L: Lookup>(&mut self, lookup: L) {
            self.mask = lookup.find(self.line, self.key);
        }
    }

    proptest! {
        #[test]
        fn all_instructions_find_the_same(keys in prop::array::uniform16(0u32..20), key in 0u32..20, high in any::<u32>()) {
            let line = Line(keys.map(|k| k.wrapping_mul(high | 1)));
            let key = key.wrapping_mul(high | 1);
            let want = line.0.iter().enumerate().fold(0, |m, (i, k)| if *k == key { m | 1 << i } else { m });
            for instructions in Instructions::available() {
                let mut find = Find { line: &line, key, mask: 0 };
                Checked::new(instructions).run(&mut find);
                prop_assert_eq!(find.mask, want, "{:?}", instructions);
            }
        }
    }
}
