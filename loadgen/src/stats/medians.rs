//! Medians with their confidence intervals, without assumptions about the distribution, and
//! percentiles.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Interval {
    pub median: f64,
    /// Lower end of the interval, a value of the sample.
    pub low: f64,
    /// Upper end of the interval, a value of the sample.
    pub high: f64,
    /// Probability that the interval contains the true median, 0 to 1.
    pub confidence: f64,
    pub count: usize,
}

impl Interval {
    /// Whether the interval contains the true median with 95 % probability or more. Fewer than six
    /// values can't reach it, however close they are: their extremes are not an interval to rely
    /// on.
    pub fn reaches_target(&self) -> bool {
        self.confidence >= TARGET_CONFIDENCE
    }
}

/// Intended confidence, 0 to 1. Small samples reach less; [`Interval::confidence`] says how much.
pub const TARGET_CONFIDENCE: f64 = 0.95;

/// The median of `values`; 0 if there are none.
pub fn median(values: &[f64]) -> f64 {
    let sorted = sorted(values);
    match sorted.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => sorted[odd / 2],
        even => (sorted[even / 2 - 1] + sorted[even / 2]) / 2.0,
    }
}

/// The value at `percent` % of the sorted `values`; `None` if there are none. Reorders them.
///
/// # Panics
/// If `percent` is 100 or more.
pub fn percentile<T: Ord + Copy>(values: &mut [T], percent: usize) -> Option<T> {
    assert!(percent < 100, "{percent} is not a percentile below the maximum");
    let index = values.len() * percent / 100;
    (!values.is_empty()).then(|| *values.select_nth_unstable(index).1)
}

/// The median and the narrowest interval between two sample values, at equal ranks from both ends,
/// that reaches 95 % confidence; the extremes if none does.
///
/// A value is above the true median as often as below it, so the number of values below it has a
/// binomial distribution with probability ½.
pub fn median_interval(values: &[f64]) -> Interval {
    let sorted = sorted(values);
    let count = sorted.len();
    if count == 0 {
        return Interval { median: 0.0, low: 0.0, high: 0.0, confidence: 0.0, count };
    }
    // With `cut` values left out at each end, the interval misses if `cut` or fewer values are on
    // one side.
    let confidence = |cut: usize| 1.0 - 2.0 * (0..=cut).map(|below| binomial_half(count, below)).sum::<f64>();
    let cut = (0..count.div_ceil(2)).rev().find(|&cut| confidence(cut) >= TARGET_CONFIDENCE).unwrap_or(0);
    Interval {
        median: median(values),
        low: sorted[cut],
        high: sorted[count - 1 - cut],
        confidence: confidence(cut).max(0.0),
        count,
    }
}

/// Probability of `successes` in `count` fair coin tosses.
fn binomial_half(count: usize, successes: usize) -> f64 {
    let choose =
        (0..successes).fold(1.0, |product, index| product * (count - index) as f64 / (index + 1) as f64);
    choose * 0.5f64.powi(i32::try_from(count).unwrap_or(i32::MAX))
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_value_of_the_sample() {
        let mut values: Vec<u64> = (1..=200).rev().collect();
        assert_eq!(
            [0, 50, 99].map(|percent| percentile(&mut values, percent)),
            [Some(1), Some(101), Some(199)]
        );
        assert_eq!(percentile(&mut [7], 99), Some(7));
        assert_eq!(percentile::<u64>(&mut [], 50), None);
    }

    #[test]
    fn the_median_of_an_even_count_is_the_mean_of_the_middle_pair() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }

    #[test]
    fn a_small_sample_gives_its_extremes_and_the_confidence_they_reach() {
        let five = median_interval(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!((five.low, five.high), (1.0, 5.0));
        assert!((five.confidence - 0.9375).abs() < 1e-12);
        assert!(!five.reaches_target());
        assert!(median_interval(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).reaches_target());
        assert_eq!(median_interval(&[7.0]).confidence, 0.0);
        assert!(!median_interval(&[]).reaches_target());
    }

    #[test]
    fn a_larger_sample_gives_an_inner_pair_that_reaches_the_target_confidence() {
        let values: Vec<f64> = (1..=11).map(f64::from).collect();
        let eleven = median_interval(&values);
        // From tables: ranks 2 and 10 of 11 contain the median with 98.8 %, ranks 3 and 9 with 93.5
        // %.
        assert_eq!((eleven.low, eleven.high), (2.0, 10.0));
        assert!((eleven.confidence - 0.988).abs() < 0.001);
    }
}
