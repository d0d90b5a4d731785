//! A prediction beside a measurement, by the two numbers of §V-B of the paper.

use serde::Serialize;

use crate::error::Error;

/// The distance between two distributions of the batch size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Mean of the measured distribution.
    pub measured_mean: f64,
    /// Mean of the predicted one.
    pub predicted_mean: f64,
    /// `|measured − predicted| ÷ measured`, of the means.
    pub relative_error: f64,
    /// Jensen-Shannon divergence with the natural logarithm: 0 for equal distributions, ln 2 = 0.693 for
    /// disjoint ones.
    pub jsd: f64,
}

/// Compares probabilities of 0, 1, 2, …; the shorter one is 0 beyond its end. Both are taken as shares of
/// their sums.
///
/// # Errors
/// [`Error::Measurement`] where one has no probability, or the measured mean is zero.
pub fn compare(measured: &[f64], predicted: &[f64]) -> Result<Comparison, Error> {
    let sum = |what: &str, p: &[f64]| {
        let sum: f64 = p.iter().sum();
        if sum.is_finite() && sum > 0.0 && p.iter().all(|p| *p >= 0.0) {
            Ok(sum)
        } else {
            Err(Error::Measurement(format!("the {what} distribution has no probabilities")))
        }
    };
    let (p_sum, q_sum) = (sum("measured", measured)?, sum("predicted", predicted)?);
    let mean = |p: &[f64], sum: f64| p.iter().enumerate().map(|(k, p)| k as f64 * p).sum::<f64>() / sum;
    let (measured_mean, predicted_mean) = (mean(measured, p_sum), mean(predicted, q_sum));
    if measured_mean <= 0.0 {
        return Err(Error::Measurement(
            "only empty polls were measured: there is no mean to compare with".to_owned(),
        ));
    }
    // Half of the least number that there is, is 0: what is that small is nothing.
    let part = |p: f64, middle: f64| if p > 0.0 && middle > 0.0 { 0.5 * p * (p / middle).ln() } else { 0.0 };
    let at = |p: &[f64], k: usize, sum: f64| p.get(k).copied().unwrap_or(0.0) / sum;
    let each = (0..measured.len().max(predicted.len())).map(|k| {
        let (p, q) = (at(measured, k, p_sum), at(predicted, k, q_sum));
        let middle = 0.5 * (p + q);
        part(p, middle) + part(q, middle)
    });
    let jsd = each.sum::<f64>().max(0.0);
    Ok(Comparison {
        measured_mean,
        predicted_mean,
        relative_error: (measured_mean - predicted_mean).abs() / measured_mean,
        jsd,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_the_scale() {
        let same = compare(&[0.0, 2.0, 2.0], &[0.0, 0.5, 0.5]).unwrap();
        assert_eq!((same.relative_error, same.jsd), (0.0, 0.0));
        let apart = compare(&[0.0, 1.0], &[0.0, 0.0, 1.0]).unwrap();
        assert!((apart.jsd - std::f64::consts::LN_2).abs() < 1e-15);
        assert_eq!(apart.relative_error, 1.0);
        let half = compare(&[0.0, 1.0], &[0.0, 0.5, 0.5]).unwrap();
        assert!(
            (half.jsd - (0.5 * (1.0f64 / 0.75).ln() + 0.25 * (0.5f64 / 0.75).ln() + 0.25 * 2f64.ln())).abs()
                < 1e-15
        );
        // Probabilities of the far end of a solution come to be as small as numbers can.
        let least = f64::from_bits(1);
        let with_tail = compare(&[0.0, 1.0], &[least, 0.5, 0.5, least]).unwrap();
        assert_eq!(with_tail.jsd, half.jsd);
        for (p, q) in [
            (vec![], vec![1.0]),
            (vec![1.0], vec![1.0]),
            (vec![0.0, 1.0], vec![f64::NAN]),
            (vec![0.0, -1.0], vec![1.0]),
        ] {
            assert!(compare(&p, &q).is_err());
        }
    }
}
