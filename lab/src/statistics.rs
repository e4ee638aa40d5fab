//! Medians, and intervals for them that assume nothing about the distribution.

use serde::Serialize;

/// A median with an interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval {
    /// The median.
    pub median: f64,
    /// The interval's lower end.
    pub low: f64,
    /// The interval's upper end.
    pub high: f64,
    /// How likely the interval holds the true median, 0 to 1.
    pub confidence: f64,
}

/// The confidence that is aimed at; few values give less, and the interval says how much.
const AIM: f64 = 0.95;

/// The median of some values; 0 for none.
pub fn median(values: &[f64]) -> f64 {
    let sorted = sorted(values);
    match sorted.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => sorted[odd / 2],
        even => (sorted[even / 2 - 1] + sorted[even / 2]) / 2.0,
    }
}

/// The median and an interval between two of the values: the narrowest pair, equally far from both
/// ends, that reaches the aim; the extremes where none does.
///
/// A value is above the true median as often as below, so how many are below is binomial with ½.
pub fn interval(values: &[f64]) -> Interval {
    let sorted = sorted(values);
    let count = sorted.len();
    if count == 0 {
        return Interval { median: 0.0, low: 0.0, high: 0.0, confidence: 0.0 };
    }
    // Leaving out `cut` values at each end misses if `cut` or fewer are on one side.
    let confidence = |cut: usize| 1.0 - 2.0 * (0..=cut).map(|below| binomial_half(count, below)).sum::<f64>();
    let cut = (0..count.div_ceil(2)).rev().find(|&cut| confidence(cut) >= AIM).unwrap_or(0);
    Interval {
        median: median(values),
        low: sorted[cut],
        high: sorted[count - 1 - cut],
        confidence: confidence(cut).max(0.0),
    }
}

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
    fn the_median_of_even_and_odd_counts() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }

    #[test]
    fn few_values_give_their_extremes_and_an_honest_confidence() {
        let five = interval(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!((five.low, five.high), (1.0, 5.0));
        assert!((five.confidence - 0.9375).abs() < 1e-12);
        assert_eq!(interval(&[7.0]).confidence, 0.0);
    }

    #[test]
    fn many_values_give_an_inner_pair_of_at_least_the_aimed_confidence() {
        let values: Vec<f64> = (1..=11).map(f64::from).collect();
        let eleven = interval(&values);
        // Tabulated: ranks 2 and 10 of 11 hold the median with 98.8 %, ranks 3 and 9 with 93.5 %.
        assert_eq!((eleven.low, eleven.high), (2.0, 10.0));
        assert!((eleven.confidence - 0.988).abs() < 0.001);
    }
}
