//! The paper's potential degradation, and predictions from the model.

use loadgen::medians::Interval;
use serde::Serialize;

/// What crossings cost over all CPU time: the paper's potential degradation, δ / (a + o(b)), of which o(b) contains the
/// crossings. 0 to 1. `crossings` per request at `crossing_us` each, of `cpu_us` per request. `None` if there is no time, or
/// if a figure is not finite.
pub fn potential(crossings: f64, crossing_us: f64, cpu_us: f64) -> Option<f64> {
    let share = crossings * crossing_us / cpu_us;
    (cpu_us > 0.0 && share.is_finite()).then(|| share.clamp(0.0, 1.0))
}

/// What a prediction came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Outcome {
    /// The intervals of the predicted and the measured gain overlap.
    Overlaps,
    /// They don't: the model does not predict the gain.
    NotPredicted,
    /// Too few rounds for an interval.
    NoInterval,
}

/// A prediction of the gain in CPU time per request, with what was measured.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Prediction {
    /// The change, for example `echo: epoll to uring`.
    pub change: String,
    /// System calls per request that wait, poll or submit, counted before and after the change.
    pub waits: [f64; 2],
    /// The gain that the model predicts, as a share of the CPU time before; negative for a loss.
    pub predicted_gain: Interval,
    /// The gain that was measured; negative for a loss.
    pub measured_gain: Interval,
    /// Whether they agree.
    pub outcome: Outcome,
}

impl Prediction {
    /// `None` if nothing was measured.
    pub fn new(change: String, waits: [f64; 2], predicted: Interval, measured: Interval) -> Option<Self> {
        let outcome = if !(predicted.reaches_target() && measured.reaches_target()) {
            Outcome::NoInterval
        } else if predicted.low <= measured.high && measured.low <= predicted.high {
            Outcome::Overlaps
        } else {
            Outcome::NotPredicted
        };
        let (predicted_gain, measured_gain) = (predicted, measured);
        (measured.count > 0).then_some(Self { change, waits, predicted_gain, measured_gain, outcome })
    }
}

#[cfg(test)]
mod tests {
    use loadgen::medians::median_interval;

    use super::*;

    #[test]
    fn the_potential_is_the_crossings_share_and_falls_with_more_work() {
        let at = |cpu_us: f64| potential(2.0, 0.1, cpu_us).unwrap();
        assert!((at(2.0) - 0.1).abs() < 1e-12 && at(200.0) < at(2.0));
        assert_eq!(at(0.1), 1.0, "noise gives no more than everything");
    }

    #[test]
    fn no_time_at_all_and_figures_that_are_none_have_no_potential() {
        assert_eq!(potential(2.0, 0.1, 0.0), None);
        assert_eq!(potential(f64::NAN, 0.1, 1.0), None);
        assert_eq!(potential(2.0, f64::INFINITY, 1.0), None);
    }

    #[test]
    fn a_gain_outside_the_interval_is_not_predicted_and_few_rounds_say_nothing() {
        let predicted = median_interval(&[0.012; 6]);
        let outcome = |measured: &[f64]| {
            let measured = median_interval(measured);
            Prediction::new(String::new(), [0.2, 0.1], predicted, measured).map(|it| it.outcome)
        };
        assert_eq!(outcome(&[0.27; 6]), Some(Outcome::NotPredicted));
        assert_eq!(outcome(&[-0.27; 6]), Some(Outcome::NotPredicted));
        assert_eq!(outcome(&[0.0, 0.01, 0.02, 0.03, 0.04, 0.05]), Some(Outcome::Overlaps));
        assert_eq!(outcome(&[0.27; 5]), Some(Outcome::NoInterval));
        assert_eq!(outcome(&[]), None);
    }
}
