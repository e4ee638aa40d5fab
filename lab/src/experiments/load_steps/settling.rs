//! How long a latency takes to settle after a step of the load.

use std::time::Duration;

use loadgen::medians::{Interval, median, median_interval};
use serde::Serialize;

use super::Outcome;
use crate::engine::Round;
use crate::fleet::{FleetLatency, FleetWindow, Step};

/// A window has settled if its percentile is at most this many times the settled one, and not less than the inverse of it.
pub const SETTLED_WITHIN: f64 = 1.25;
/// The time within which a latency is to settle.
pub const TIME_TO_SETTLE: Duration = Duration::from_millis(200);
/// The share of the time after a step, at its end, whose windows are what the others are compared with.
const SETTLED_SHARE: f64 = 0.25;

/// When a percentile settles, in ms from the step on: the end of the last window that has not settled. 0 if all have.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Settling {
    /// By the medians of the rounds.
    pub at: f64,
    /// At the earliest: the interval of each later window reaches into the range of settled ones.
    pub earliest: f64,
    /// At the latest: the intervals of all later windows are within that range. `None` if that is not so of the last window that
    /// is compared, and with fewer rounds than an interval needs.
    pub latest: Option<f64>,
}

impl Settling {
    /// Whether it takes at most [`TIME_TO_SETTLE`].
    pub fn outcome(&self) -> Outcome {
        let limit = TIME_TO_SETTLE.as_secs_f64() * 1e3;
        match self.latest {
            Some(latest) if latest <= limit => Outcome::Kept,
            _ if self.earliest > limit => Outcome::Broken,
            _ => Outcome::Undecided,
        }
    }
}

/// When a percentile of a contender settles after a step, over these rounds. `None` where the load stays for less than twice
/// [`TIME_TO_SETTLE`], so that nothing is known to be settled, and without a round.
pub(super) fn settling(
    rounds: &[Round<'_>],
    contender: usize,
    step: Step,
    seconds: f64,
    window_seconds: f64,
    percentile: fn(&FleetLatency) -> f64,
) -> Option<Settling> {
    if seconds < 2.0 * TIME_TO_SETTLE.as_secs_f64() {
        return None;
    }
    let settled_from = seconds * (1.0 - SETTLED_SHARE);
    let turns = rounds.iter().filter_map(|round| round[contender]);
    // The percentiles by window of each turn, over the settled one of the same turn.
    let mut ratios: Vec<Vec<f64>> = Vec::new();
    for turn in turns {
        let after: Vec<&FleetWindow> =
            turn.windows.iter().filter(|window| window.step == step && window.requests > 0).collect();
        // A window that begins a rounding error before.
        let is_settled = |window: &FleetWindow| window.from > settled_from - window_seconds / 2.0;
        let settled: Vec<f64> = after
            .iter()
            .filter(|window| is_settled(window))
            .map(|window| percentile(&window.latency))
            .collect();
        let reference = median(&settled);
        for window in after.iter().filter(|window| !is_settled(window)) {
            let index = (window.from / window_seconds).round() as usize;
            ratios.resize_with(ratios.len().max(index + 1), Vec::new);
            if reference > 0.0 {
                ratios[index].push(percentile(&window.latency) / reference);
            }
        }
    }
    let intervals: Vec<Interval> = ratios.iter().map(|ratios| median_interval(ratios)).collect();
    (!intervals.is_empty()).then(|| of_ratios(&intervals, window_seconds * 1e3))
}

/// When windows of this length (ms) settle whose percentiles are these ratios of the settled one.
fn of_ratios(ratios: &[Interval], window_ms: f64) -> Settling {
    let range = 1.0 / SETTLED_WITHIN..=SETTLED_WITHIN;
    let last = |unsettled: &dyn Fn(&Interval) -> bool| {
        ratios.iter().rposition(unsettled).map_or(0.0, |index| (index + 1) as f64 * window_ms)
    };
    let is_measured = |ratio: &Interval| ratio.count > 0;
    let latest =
        last(&|ratio| !(ratio.reaches_target() && range.contains(&ratio.low) && range.contains(&ratio.high)));
    Settling {
        at: last(&|ratio| is_measured(ratio) && !range.contains(&ratio.median)),
        earliest: last(&|ratio| {
            ratio.reaches_target() && (ratio.low > *range.end() || ratio.high < *range.start())
        }),
        latest: (latest < ratios.len() as f64 * window_ms).then_some(latest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratios(medians: &[f64], spread: f64) -> Vec<Interval> {
        let around = |&median: &f64| {
            median_interval(&[
                median / spread,
                median / spread,
                median,
                median,
                median * spread,
                median * spread,
            ])
        };
        medians.iter().map(around).collect()
    }

    #[test]
    fn a_latency_settles_at_the_end_of_its_last_window_outside_the_range() {
        let settling = of_ratios(&ratios(&[5.0, 2.0, 1.1, 1.0], 1.01), 20.0);
        assert_eq!(settling, Settling { at: 40.0, earliest: 40.0, latest: Some(40.0) });
        assert_eq!(settling.outcome(), Outcome::Kept);
        // Too low is not settled either, and a window between that is in the range changes nothing.
        let settling = of_ratios(&ratios(&[5.0, 1.0, 0.5, 1.0], 1.01), 20.0);
        assert_eq!(settling.at, 60.0);
        let settled = of_ratios(&ratios(&[1.0, 1.0], 1.01), 20.0);
        assert_eq!(settled, Settling { at: 0.0, earliest: 0.0, latest: Some(0.0) });
    }

    #[test]
    fn an_interval_on_both_sides_of_the_border_decides_nothing() {
        let settling = of_ratios(&ratios(&[5.0, 1.2, 1.0], 1.1), 150.0);
        assert_eq!(settling, Settling { at: 150.0, earliest: 150.0, latest: Some(300.0) });
        assert_eq!(settling.outcome(), Outcome::Undecided);
        let never = of_ratios(&ratios(&[1.0, 2.0, 2.0], 1.1), 150.0);
        assert_eq!((never.earliest, never.latest, never.outcome()), (450.0, None, Outcome::Broken));
    }

    #[test]
    fn fewer_than_six_rounds_decide_nothing() {
        let few = [median_interval(&[1.0; 5]), median_interval(&[1.0; 5])];
        let settling = of_ratios(&few, 20.0);
        assert_eq!(settling, Settling { at: 0.0, earliest: 0.0, latest: None });
        assert_eq!(settling.outcome(), Outcome::Undecided);
    }
}
