//! Whether a turn fell out of gear.

use loadgen::medians::median_range;

/// The lowest of these throughputs over their median; 1 without one.
pub(super) fn slowest_over_median(throughputs: &[f64]) -> f64 {
    let range = median_range(throughputs);
    if range.median > 0.0 { range.min / range.median } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_turn_is_a_share_of_the_median() {
        assert_eq!(slowest_over_median(&[100.0, 50.0, 110.0]), 0.5);
        assert_eq!(slowest_over_median(&[100.0]), 1.0);
        assert_eq!(slowest_over_median(&[]), 1.0);
    }
}
