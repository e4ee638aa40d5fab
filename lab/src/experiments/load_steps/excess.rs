//! By how much latencies are beyond vanilla's while a load steps up and down.

use std::time::Duration;

use loadgen::medians::{Interval, median_interval};
use serde::Serialize;

use super::Outcome;
use crate::engine::Round;
use crate::fleet::{FleetLatency, FleetWindow};

/// By how much a percentile may be beyond vanilla's, apart from the latency budget.
pub const ALLOWED_BEYOND_BUDGET: Duration = Duration::from_millis(1);

/// A percentile of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Percentile {
    /// The median.
    P50,
    /// The 90th.
    P90,
    /// The 99th.
    P99,
}

impl Percentile {
    /// Those that are compared. A window has too few requests for higher ones.
    pub const ALL: [Self; 3] = [Self::P50, Self::P90, Self::P99];

    /// This percentile of a latency, µs.
    pub fn of(self, latency: &FleetLatency) -> f64 {
        match self {
            Self::P50 => latency.p50,
            Self::P90 => latency.p90,
            Self::P99 => latency.p99,
        }
    }
}

/// The window in which a percentile is most beyond the reference's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Excess {
    /// The percentile.
    pub percentile: Percentile,
    /// Seconds from the step to the begin of the window.
    pub from: f64,
    /// The percentile minus the reference's in the same window of the same round, µs.
    pub us: Interval,
    /// Whether all windows keep the bound.
    pub outcome: Outcome,
}

/// Compares a percentile in each of the windows, which are named by their index and the seconds from the step on. `None` without
/// a round in which both were measured.
pub(super) fn excess(
    rounds: &[Round<'_>],
    contender: usize,
    reference: usize,
    windows: &[(usize, f64)],
    percentile: Percentile,
    allowed: Duration,
) -> Option<Excess> {
    let compared = windows.iter().map(|&(index, from)| {
        let window = |round: &Round<'_>, contender: usize| -> Option<f64> {
            let window: &FleetWindow = round[contender]?.windows.get(index)?;
            (window.requests > 0).then(|| percentile.of(&window.latency))
        };
        let difference = |round| Some(window(round, contender)? - window(round, reference)?);
        (from, median_interval(&rounds.iter().filter_map(difference).collect::<Vec<f64>>()))
    });
    let compared: Vec<(f64, Interval)> = compared.filter(|(_, excess)| excess.count > 0).collect();
    of_windows(&compared, percentile, allowed)
}

fn of_windows(compared: &[(f64, Interval)], percentile: Percentile, allowed: Duration) -> Option<Excess> {
    let worst = compared.iter().max_by(|(_, one), (_, other)| one.median.total_cmp(&other.median));
    let &(from, us) = worst?;
    let allowed = allowed.as_secs_f64() * 1e6;
    let outcome = if compared.iter().any(|(_, excess)| excess.reaches_target() && excess.low > allowed) {
        Outcome::Broken
    } else if compared.iter().all(|(_, excess)| excess.reaches_target() && excess.high <= allowed) {
        Outcome::Kept
    } else {
        Outcome::Undecided
    };
    Some(Excess { percentile, from, us, outcome })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(low: f64, median: f64, high: f64) -> Interval {
        median_interval(&[low, median, median, median, median, high])
    }

    fn outcome(windows: &[(f64, Interval)]) -> Outcome {
        of_windows(windows, Percentile::P99, Duration::from_micros(1020)).unwrap().outcome
    }

    #[test]
    fn the_window_that_is_most_beyond_the_reference_is_shown() {
        let windows = [(0.0, interval(10.0, 20.0, 30.0)), (0.02, interval(40.0, 50.0, 60.0))];
        let excess = of_windows(&windows, Percentile::P99, Duration::from_micros(1020)).unwrap();
        assert_eq!((excess.from, excess.us.median, excess.outcome), (0.02, 50.0, Outcome::Kept));
        assert_eq!(of_windows(&[], Percentile::P99, Duration::ZERO), None);
    }

    #[test]
    fn one_window_beyond_the_bound_breaks_it_and_all_have_to_keep_it() {
        let kept = (0.0, interval(10.0, 20.0, 1000.0));
        let open = (0.02, interval(10.0, 20.0, 1100.0));
        // Its median is below that of others.
        let broken = (0.04, interval(1100.0, 1200.0, 1300.0));
        assert_eq!(outcome(&[kept]), Outcome::Kept);
        assert_eq!(outcome(&[kept, open]), Outcome::Undecided);
        assert_eq!(outcome(&[kept, open, broken]), Outcome::Broken);
        let few = (0.0, median_interval(&[10.0; 5]));
        assert_eq!(outcome(&[few]), Outcome::Undecided);
    }
}
