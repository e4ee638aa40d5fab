//! Detects the end of the warm-up in a measurement.

use crate::config::{Config, WarmUp};
use crate::stats::timeline::Timeline;

/// With fewer intervals nothing is excluded.
const MIN_INTERVALS: usize = 10;

/// Consecutive intervals at the level of the second half that mark the end of the warm-up.
const IN_A_ROW: usize = 3;

pub(crate) fn first_counted_interval(config: &Config, timeline: &Timeline, end: u32) -> u32 {
    match config.warm_up {
        WarmUp::Fixed(_) => 0,
        WarmUp::UntilSteady => first_steady(timeline, end, config.pacing.is_closed()),
    }
}

/// The first interval of the steady state: the first of several consecutive intervals at the level
/// of the second half, or at most half of the run. So a slow start is excluded, and a later stall
/// never is.
///
/// Uses throughput in the closed loop, and latency in the open loop, whose throughput is given.
fn first_steady(timeline: &Timeline, end: u32, closed: bool) -> u32 {
    let values: Vec<f64> = (0..end)
        .map(|interval| {
            let Some(stats) = timeline.interval(interval) else { return 0.0 };
            let latency = stats.latency();
            if closed { latency.len() as f64 } else { latency.mean() }
        })
        .collect();
    first_at_level(&values) as u32
}

/// The first of several consecutive values at the level of the second half, at most half of them.
fn first_at_level(values: &[f64]) -> usize {
    if values.len() < MIN_INTERVALS {
        return 0;
    }
    let half = values.len() / 2;
    let mut rest = values[half..].to_vec();
    rest.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| rest[((rest.len() - 1) as f64 * share).round() as usize];
    let level = at(0.02)..=at(0.98);
    let at_level = |values: &[f64]| values.iter().all(|value| level.contains(value));
    values.windows(IN_A_ROW).position(at_level).map_or(half, |first| first.min(half))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(index: usize) -> f64 {
        // Irregular, but the same in each run.
        ((index * 7919 % 101) as f64 / 101.0 - 0.5) * 20.0
    }

    #[test]
    fn a_slow_start_is_excluded() {
        let values: Vec<f64> =
            (0..100).map(|index| 1000.0 * (1.0 - (-(index as f64) / 4.0).exp()) + noise(index)).collect();
        let excluded = first_at_level(&values);
        assert!((8..40).contains(&excluded), "{excluded}");
    }

    #[test]
    fn little_of_a_steady_run_is_excluded() {
        let values: Vec<f64> = (0..100).map(|index| 1000.0 + noise(index)).collect();
        let excluded = first_at_level(&values);
        assert!(excluded < 20, "{excluded}");
    }

    #[test]
    fn a_stall_after_a_steady_start_is_not_excluded() {
        let mut values: Vec<f64> = (0..50).map(|index| 1000.0 + noise(index)).collect();
        values[10..15].fill(0.0);
        let excluded = first_at_level(&values);
        assert!(excluded < 10, "{excluded}");
    }

    #[test]
    fn at_most_half_of_a_run_is_excluded_and_nothing_of_a_short_run() {
        let rising: Vec<f64> = (0..60).map(|index| index as f64).collect();
        assert!(first_at_level(&rising) <= 30);
        assert_eq!(first_at_level(&[1.0, 5.0, 9.0]), 0);
    }
}
