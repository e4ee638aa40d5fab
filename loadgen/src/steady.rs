//! Where a run is steady: what comes before is left out.

use crate::tally::Timeline;

/// Below so many pieces nothing can be told.
const FEWEST: usize = 10;

/// So many pieces in a row at the level of the rest: from then on it is steady.
const IN_A_ROW: usize = 3;

/// The first piece from which on a run is steady: where several pieces in a row are first at the level of its
/// second half, or where the mean of the rest is most certain (the rule of the marginal standard error, MSER;
/// White, *An effective truncation heuristic for bias reduction in simulation output*, 1997), whichever comes
/// first, and at most half. So a start that is slow is left out, and a stall later on never is.
///
/// Looks at throughput in a closed loop, and in an open one, whose throughput is given, at latency.
pub(crate) fn first_steady(timeline: &Timeline, end: u32, closed: bool) -> u32 {
    let values: Vec<f64> = (0..end)
        .map(|piece| {
            let Some(samples) = timeline.piece(piece) else { return 0.0 };
            if closed { samples.requests() as f64 } else { samples.mean_latency() }
        })
        .collect();
    truncation(&values).min(first_at_level(&values)) as u32
}

/// Where values are first at the level of the second half, for some in a row.
fn first_at_level(values: &[f64]) -> usize {
    let mut rest = values[values.len() / 2..].to_vec();
    rest.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| rest.get((rest.len().saturating_sub(1) as f64 * share).round() as usize).copied();
    let (Some(low), Some(high)) = (at(0.02), at(0.98)) else { return 0 };
    let at_level = |values: &[f64]| values.iter().all(|value| (low..=high).contains(value));
    values.windows(IN_A_ROW).position(at_level).unwrap_or(values.len() / 2)
}

/// How many values to leave out at the beginning, by MSER.
fn truncation(values: &[f64]) -> usize {
    if values.len() < FEWEST {
        return 0;
    }
    let errors: Vec<f64> = (0..=values.len() / 2)
        .map(|from| {
            let rest = &values[from..];
            let count = rest.len() as f64;
            let mean = rest.iter().sum::<f64>() / count;
            rest.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count * count)
        })
        .collect();
    let least = errors.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1));
    least.map_or(0, |(from, _)| from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(index: usize) -> f64 {
        // Neither regular nor random: the same in each run.
        ((index * 7919 % 101) as f64 / 101.0 - 0.5) * 20.0
    }

    #[test]
    fn a_slow_start_is_left_out() {
        let values: Vec<f64> =
            (0..100).map(|index| 1000.0 * (1.0 - (-(index as f64) / 4.0).exp()) + noise(index)).collect();
        let cut = truncation(&values).min(first_at_level(&values));
        assert!((8..40).contains(&cut), "{cut}");
    }

    #[test]
    fn little_of_a_steady_run_is_left_out() {
        let values: Vec<f64> = (0..100).map(|index| 1000.0 + noise(index)).collect();
        let cut = truncation(&values);
        assert!(cut < 20, "{cut}");
    }

    #[test]
    fn a_stall_after_a_steady_start_stays_in() {
        let mut values: Vec<f64> = (0..50).map(|index| 1000.0 + noise(index)).collect();
        values[10..15].fill(0.0);
        assert!(truncation(&values) >= 15, "by itself the rule would leave it out");
        let cut = truncation(&values).min(first_at_level(&values));
        assert!(cut < 10, "{cut}");
    }

    #[test]
    fn no_more_than_half_is_left_out_and_nothing_of_a_short_run() {
        let rising: Vec<f64> = (0..60).map(|index| index as f64).collect();
        assert!(truncation(&rising) <= 30);
        assert_eq!(truncation(&[1.0, 5.0, 9.0]), 0);
    }
}
