//! The inner loop of the elimination: several rows of the chain at once, side by side, so that what is
//! eliminated is read from memory once for all of them.
//!
//! On x86-64 with AVX2 the same additions and multiplications in the same order are done four at a time
//! instead of two: the result is the same to the last bit.

#![allow(unsafe_code)]

/// Rows that are reduced together.
pub(crate) const ROWS: usize = 8;
/// States that are eliminated together: each place of a row is loaded and stored once for all of them.
pub(crate) const GROUP: usize = 4;

/// A number for each of the rows.
pub(crate) type Lanes = [f64; ROWS];

/// Adds to every place `x` of `to` the sum over `i` of `factors[i] · parts[i][x]`, as far as all parts reach;
/// returns how far.
pub(crate) fn add_scaled(to: &mut [Lanes], parts: [&[f64]; GROUP], factors: &[Lanes; GROUP]) -> usize {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has what the function is compiled for.
        return unsafe { add_scaled_avx2(to, parts, factors) };
    }
    add_scaled_portable(to, parts, factors)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn add_scaled_avx2(to: &mut [Lanes], parts: [&[f64]; GROUP], factors: &[Lanes; GROUP]) -> usize {
    add_scaled_portable(to, parts, factors)
}

#[inline(always)]
fn add_scaled_portable(to: &mut [Lanes], parts: [&[f64]; GROUP], factors: &[Lanes; GROUP]) -> usize {
    let all = parts.iter().map(|p| p.len()).min().unwrap_or(0).min(to.len());
    let [p0, p1, p2, p3] = parts;
    let [f0, f1, f2, f3] = *factors;
    let parts = p0.iter().zip(p1).zip(p2).zip(p3);
    for (place, (((a, b), c), d)) in to.iter_mut().zip(parts) {
        let mut sum = *place;
        for ((((s, f0), f1), f2), f3) in sum.iter_mut().zip(f0).zip(f1).zip(f2).zip(f3) {
            *s += (f0 * a + f1 * b) + (f2 * c + f3 * d);
        }
        *place = sum;
    }
    all
}

/// Adds to every place `x` of `to` `factor · part[x]`.
pub(crate) fn add_one(to: &mut [Lanes], part: &[f64], factor: &Lanes) {
    for (place, p) in to.iter_mut().zip(part) {
        place.iter_mut().zip(factor).for_each(|(s, f)| *s += f * p);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against one row after the other; and what AVX2 computes against what everything else does, bit by
        /// bit.
        #[test]
        fn rows_side_by_side_are_rows(
            parts in prop::collection::vec(prop::collection::vec(0.0..1.0f64, 0..40), GROUP),
            numbers in prop::collection::vec(0.0..1.0f64, (GROUP + 40) * ROWS),
        ) {
            let lanes = |n: usize| -> Lanes { std::array::from_fn(|i| numbers[n * ROWS + i]) };
            let factors: [Lanes; GROUP] = std::array::from_fn(lanes);
            let before: Vec<Lanes> = (0..40).map(|n| lanes(GROUP + n)).collect();
            let views: [&[f64]; GROUP] = std::array::from_fn(|i| parts[i].as_slice());
            let (mut fast, mut plain) = (before.clone(), before.clone());
            let all = add_scaled(&mut fast, views, &factors);
            prop_assert_eq!(add_scaled_portable(&mut plain, views, &factors), all);
            prop_assert_eq!(all, parts.iter().map(Vec::len).min().unwrap());
            prop_assert_eq!(&fast, &plain);
            for (x, (a, b)) in fast.iter().zip(&before).enumerate() {
                for row in 0..ROWS {
                    let add: f64 = if x < all { (0..GROUP).map(|i| factors[i][row] * parts[i][x]).sum() } else { 0.0 };
                    prop_assert!((a[row] - b[row] - add).abs() < 1e-14);
                }
            }
            let mut one = before.clone();
            add_one(&mut one, &parts[0], &factors[1]);
            for (x, (a, b)) in one.iter().zip(&before).enumerate() {
                let p = parts[0].get(x).copied().unwrap_or(0.0);
                prop_assert!((0..ROWS).all(|row| a[row] == b[row] + factors[1][row] * p));
            }
        }
    }
}
