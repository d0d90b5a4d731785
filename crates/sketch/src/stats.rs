//! The little statistics that sizes and bounds need.

/// Standard errors either side that hold 95 % of answers: 95.4 % of a normal distribution, for none is quite
/// normal.
pub(crate) const SIGMAS: f64 = 2.0;

/// The share of answers whose bounds hold, where these are of [`SIGMAS`] standard errors.
pub(crate) const SHARE: f64 = 0.95;

/// Finds the point at which a rising function passes zero, between `low` and `high`: by bisection, to the
/// last digit.
pub(crate) fn crossing(f: impl Fn(f64) -> f64, mut low: f64, mut high: f64) -> f64 {
    for _ in 0..100 {
        let middle = 0.5 * (low + high);
        // No number is between them: further steps would end here too.
        if middle == low || middle == high {
            return middle;
        }
        if f(middle) < 0.0 { low = middle } else { high = middle }
    }
    0.5 * (low + high)
}

/// The number of standard deviations either side of the mean that hold this share (0 to 1, both excluded) of
/// a normal distribution; good to nine digits.
pub(crate) fn two_sided(share: f64) -> f64 {
    crossing(|z| within(z) - share, 0.0, 40.0)
}

/// The share of a normal distribution within z standard deviations of its mean.
fn within(z: f64) -> f64 {
    if z > 8.0 {
        return 1.0;
    }
    // erf(x) = 2/√π · e^(−x²) · Σ 2ⁿ x^(2n+1) / (1·3·5···(2n+1)): all terms positive, no cancellation.
    let x = z / std::f64::consts::SQRT_2;
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while term > sum * 1e-17 {
        n += 1.0;
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
    }
    2.0 / std::f64::consts::PI.sqrt() * (-x * x).exp() * sum
}

/// The middle value (of an even number, the mean of the two in the middle); 0 of none.
pub(crate) fn median(values: &mut [i64]) -> i64 {
    values.sort_unstable();
    let n = values.len();
    match (values.get(n / 2), values.get(n.saturating_sub(1) / 2)) {
        (Some(a), Some(b)) => ((i128::from(*a) + i128::from(*b)) / 2) as i64,
        _ => 0,
    }
}

/// Counts the findings among the least of some chances, in ascending order, if of what is found a share of
/// `share` may be none, on average (Benjamini and Hochberg, J. R. Stat. Soc. B 57, 1995).
pub(crate) fn findings(chances: &[f64], share: f64) -> usize {
    let each = share / chances.len().max(1) as f64;
    let least = |(i, chance): (usize, &f64)| *chance <= each * (i + 1) as f64;
    chances.iter().enumerate().rposition(least).map_or(0, |last| last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against the definition, one number of findings after the other.
    #[test]
    fn findings_are_the_longest_list_that_keeps_the_share() {
        assert_eq!(findings(&[], 0.01), 0);
        assert_eq!(findings(&[0.0], 0.01), 1);
        assert_eq!(findings(&[0.02, 0.5], 0.01), 0);
        // The second is too great for two, but with the third all of them are as few as allowed.
        assert_eq!(findings(&[0.001, 0.0075, 0.0075, 0.9], 0.01), 3);
        let mut state = 7u64;
        for n in 1..60 {
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 11) as f64 / (1u64 << 53) as f64
            };
            let mut chances: Vec<f64> = (0..n).map(|i| next().powi(1 + i % 6)).collect();
            chances.sort_unstable_by(f64::total_cmp);
            let longest = (1..=chances.len())
                .filter(|m| chances[m - 1] <= 0.05 * *m as f64 / chances.len() as f64)
                .max()
                .unwrap_or(0);
            assert_eq!(findings(&chances, 0.05), longest, "{chances:?}");
        }
    }

    #[test]
    fn quantiles_of_the_normal_distribution() {
        for (share, z) in
            [(0.682_689_492, 1.0), (0.95, 1.959_963_985), (0.99, 2.575_829_304), (0.999_999, 4.891_638)]
        {
            assert!((two_sided(share) - z).abs() < 1e-6, "{share}: {}", two_sided(share));
        }
    }

    #[test]
    fn medians() {
        assert_eq!(median(&mut [3, 1, 2]), 2);
        assert_eq!(median(&mut [4, 1, 2, 3]), 2);
        assert_eq!(median(&mut []), 0);
        assert_eq!(median(&mut [i64::MAX, i64::MAX]), i64::MAX);
    }
}
