//! Four words at once.

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
pub(super) use sse2::Four;

#[cfg(not(target_arch = "x86_64"))]
pub(super) use plain::Four;

#[cfg(target_arch = "x86_64")]
mod sse2 {
    use std::arch::x86_64::{
        __m128i, _mm_and_si128, _mm_castsi128_ps, _mm_cmpeq_epi32, _mm_movemask_ps, _mm_or_si128,
        _mm_set_epi32, _mm_set1_epi32, _mm_setzero_si128, _mm_sub_epi16, _mm_subs_epu16, _mm_xor_si128,
    };

    /// Four words.
    #[derive(Clone, Copy, Debug)]
    pub(in super::super) struct Four(__m128i);

    impl Four {
        pub(in super::super) fn new([a, b, c, d]: [u32; 4]) -> Self {
            // SAFETY: every x86-64 has these instructions.
            Self(unsafe { _mm_set_epi32(d as i32, c as i32, b as i32, a as i32) })
        }

        #[inline(always)]
        pub(in super::super) fn splat(word: u32) -> Self {
            // SAFETY: every x86-64 has these instructions.
            Self(unsafe { _mm_set1_epi32(word as i32) })
        }

        /// The bits under a mask that are not as in `value`.
        #[inline(always)]
        pub(in super::super) fn differing(self, Self(value): Self, Self(mask): Self) -> Self {
            // SAFETY: every x86-64 has these instructions.
            Self(unsafe { _mm_and_si128(_mm_xor_si128(self.0, value), mask) })
        }

        /// Not 0 where a half of a word is neither `first` nor one of the `more` numbers behind it.
        #[inline(always)]
        pub(in super::super) fn outside(self, Self(first): Self, Self(more): Self) -> Self {
            // SAFETY: every x86-64 has these instructions.
            Self(unsafe { _mm_subs_epu16(_mm_sub_epi16(self.0, first), more) })
        }

        #[inline(always)]
        pub(in super::super) fn or(self, Self(other): Self) -> Self {
            // SAFETY: every x86-64 has these instructions.
            Self(unsafe { _mm_or_si128(self.0, other) })
        }

        /// The words that are 0, as bits.
        #[inline(always)]
        pub(in super::super) fn zeros(self) -> u32 {
            // SAFETY: every x86-64 has these instructions.
            let bits =
                unsafe { _mm_movemask_ps(_mm_castsi128_ps(_mm_cmpeq_epi32(self.0, _mm_setzero_si128()))) };
            bits as u32
        }
    }
}

#[cfg(any(test, not(target_arch = "x86_64")))]
mod plain {
    /// Four words.
    #[derive(Clone, Copy, Debug)]
    #[repr(align(16))]
    pub(in super::super) struct Four([u32; 4]);

    impl Four {
        pub(in super::super) fn new(words: [u32; 4]) -> Self {
            Self(words)
        }

        #[inline(always)]
        pub(in super::super) fn splat(word: u32) -> Self {
            Self([word; 4])
        }

        #[inline(always)]
        fn with(self, Self(b): Self, of: impl Fn(u32, u32) -> u32) -> Self {
            let mut b = b.into_iter();
            Self(self.0.map(|a| of(a, b.next().unwrap_or(0))))
        }

        /// The bits under a mask that are not as in `value`.
        #[inline(always)]
        pub(in super::super) fn differing(self, value: Self, mask: Self) -> Self {
            self.with(value, |a, b| a ^ b).with(mask, |a, b| a & b)
        }

        /// Not 0 where a half of a word is neither `first` nor one of the `more` numbers behind it.
        #[inline(always)]
        pub(in super::super) fn outside(self, first: Self, more: Self) -> Self {
            let halves = |a: u32, b: u32, of: fn(u16, u16) -> u16| {
                u32::from(of(a as u16, b as u16)) | u32::from(of((a >> 16) as u16, (b >> 16) as u16)) << 16
            };
            self.with(first, |a, b| halves(a, b, u16::wrapping_sub))
                .with(more, |a, b| halves(a, b, u16::saturating_sub))
        }

        #[inline(always)]
        pub(in super::super) fn or(self, other: Self) -> Self {
            self.with(other, |a, b| a | b)
        }

        /// The words that are 0, as bits.
        #[inline(always)]
        pub(in super::super) fn zeros(self) -> u32 {
            let [a, b, c, d] = self.0.map(|word| u32::from(word == 0));
            a | b << 1 | c << 2 | d << 3
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use proptest::prelude::*;

    use super::{plain, sse2};

    fn words() -> impl Strategy<Value = [u32; 4]> {
        prop::array::uniform4(prop_oneof![Just(0), Just(u32::MAX), 0..4_u32, any::<u32>()])
    }

    proptest! {
        /// The instructions of the processor against plain words.
        #[test]
        fn four_at_once_are_as_one_by_one(one in any::<u32>(), a in words(), b in words(), c in words(), d in words()) {
            let plain = {
                let [one, a, b, c, d] = [plain::Four::splat(one), plain::Four::new(a), plain::Four::new(b), plain::Four::new(c), plain::Four::new(d)];
                [one.differing(a, b).zeros(), one.outside(c, d).zeros(), one.differing(a, b).or(a.outside(c, d)).zeros()]
            };
            let [one, a, b, c, d] = [sse2::Four::splat(one), sse2::Four::new(a), sse2::Four::new(b), sse2::Four::new(c), sse2::Four::new(d)];
            let fast = [one.differing(a, b).zeros(), one.outside(c, d).zeros(), one.differing(a, b).or(a.outside(c, d)).zeros()];
            prop_assert_eq!(fast, plain);
        }
    }
}
