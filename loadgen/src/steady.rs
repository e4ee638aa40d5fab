//! Where a run is steady: what comes before is left out.

use crate::tally::Timeline;

/// Below so many pieces nothing can be told.
const FEWEST: usize = 10;

/// The first piece from which on a run is steady, by the rule of the marginal standard error (MSER; White,
/// *An effective truncation heuristic for bias reduction in simulation output*, 1997): leave out as much of
/// the beginning as makes the mean of the rest most certain, and at most half.
///
/// Looks at throughput in a closed loop, and in an open one, whose throughput is given, at latency.
pub(crate) fn first_steady(timeline: &Timeline, end: u32, closed: bool) -> u32 {
    let values: Vec<f64> = (0..end)
        .map(|piece| {
            let Some(samples) = timeline.piece(piece) else { return 0.0 };
            if closed { samples.requests() as f64 } else { samples.mean_latency() }
        })
        .collect();
    truncation(&values) as u32
}

/// How many values to leave out at the beginning.
fn truncation(values: &[f64]) -> usize {
    if values.len() < FEWEST {
        return 0;
    }
    let error = |from: usize| {
        let rest = &values[from..];
        let count = rest.len() as f64;
        let mean = rest.iter().sum::<f64>() / count;
        rest.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count * count)
    };
    (0..=values.len() / 2).min_by(|&a, &b| error(a).total_cmp(&error(b))).unwrap_or(0)
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
        let cut = truncation(&values);
        assert!((8..40).contains(&cut), "{cut}");
    }

    #[test]
    fn little_of_a_steady_run_is_left_out() {
        let values: Vec<f64> = (0..100).map(|index| 1000.0 + noise(index)).collect();
        let cut = truncation(&values);
        assert!(cut < 20, "{cut}");
    }

    #[test]
    fn no_more_than_half_is_left_out_and_nothing_of_a_short_run() {
        let rising: Vec<f64> = (0..60).map(|index| index as f64).collect();
        assert!(truncation(&rising) <= 30);
        assert_eq!(truncation(&[1.0, 5.0, 9.0]), 0);
    }
}
