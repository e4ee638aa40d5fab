//! A rate that steps up and down.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The open loop at a rate that alternates: `high` for `high_seconds`, then `low` for
/// `low_seconds`, again and again. The measurement begins with a step up. Latencies are kept apart
/// by windows that begin with each step; the windows of all cycles that have the same distance from
/// their step are one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AlternatingRate {
    pub high: f64,
    /// Requests per second after a step down; 0 for none.
    pub low: f64,
    pub high_seconds: f64,
    pub low_seconds: f64,
    pub window_seconds: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    Up,
    Down,
}

policies::names!(Step, "step": Up = "up", Down = "down");

impl AlternatingRate {
    pub fn steps(&self) -> Vec<Step> {
        if self.low > 0.0 { vec![Step::Up, Step::Down] } else { vec![Step::Up] }
    }

    pub fn seconds_after(&self, step: Step) -> f64 {
        match step {
            Step::Up => self.high_seconds,
            Step::Down => self.low_seconds,
        }
    }

    pub fn windows_after(&self, step: Step) -> usize {
        // Rounded to nanoseconds: 0.5 / 0.02 may be more than 25.
        nanos(self.seconds_after(step)).div_ceil(nanos(self.window_seconds)) as usize
    }

    /// The index of the window in which a moment lies, in ns from the begin of the measurement on.
    /// Those after a step up come first.
    pub(super) fn window(&self, at: i64) -> usize {
        let (high, window) = (nanos(self.high_seconds), nanos(self.window_seconds));
        let position = self.position(at);
        match position.checked_sub(high) {
            None => (position / window) as usize,
            Some(after) => self.windows_after(Step::Up) + (after / window) as usize,
        }
    }

    /// The moment, in ns from the begin of the measurement on, at which the expected number of
    /// requests since `at` is `requests`.
    pub(super) fn after(&self, at: f64, requests: f64) -> f64 {
        let (high, cycle) = (nanos(self.high_seconds), nanos(self.high_seconds) + nanos(self.low_seconds));
        let (mut at, mut left) = (at, requests);
        loop {
            let position = self.position(at.floor() as i64);
            let (rate, end) = if position < high { (self.high, high) } else { (self.low, cycle) };
            let rest = (end - position) as f64;
            let gap = left * 1e9 / rate;
            // Infinite, if no requests are due.
            if gap < rest {
                return at + gap;
            }
            // Not below 0 by rounding: nothing would be due for minus infinity.
            left = (left - rest * rate / 1e9).max(0.0);
            at += rest;
        }
    }

    /// The time since the last step up, in ns.
    fn position(&self, at: i64) -> u64 {
        let cycle = nanos(self.high_seconds) + nanos(self.low_seconds);
        at.rem_euclid(cycle.cast_signed()).cast_unsigned()
    }
}

/// For example `steps of 400 ms, 4000 to 36000/s`, or `bursts of 10 ms, 36000/s`.
impl fmt::Display for AlternatingRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = Duration::from_secs_f64(self.high_seconds);
        if self.low > 0.0 {
            write!(f, "steps of {length:?}, {:.0} to {:.0}/s", self.low, self.high)
        } else {
            write!(f, "bursts of {length:?}, {:.0}/s", self.high)
        }
    }
}

/// At least 1.
fn nanos(seconds: f64) -> u64 {
    ((seconds * 1e9).round() as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1000/s for 100 ms, then 100/s for 300 ms.
    const RATE: AlternatingRate = AlternatingRate {
        high: 1000.0,
        low: 100.0,
        high_seconds: 0.1,
        low_seconds: 0.3,
        window_seconds: 0.02,
    };
    const MILLI: f64 = 1e6;

    #[test]
    fn a_gap_goes_on_across_a_step_at_the_other_rate() {
        assert_eq!(RATE.after(0.0, 50.0), 50.0 * MILLI);
        // 10 of 20 requests are due until the step, and the others take ten times as long.
        assert_eq!(RATE.after(90.0 * MILLI, 20.0), 200.0 * MILLI);
        // 130 requests are due in each cycle.
        assert_eq!(RATE.after(0.0, 260.0), 800.0 * MILLI);
        // Before the measurement it is the end of a cycle.
        assert_eq!(RATE.after(-100.0 * MILLI, 10.0 + 5.0), 5.0 * MILLI);
    }

    #[test]
    fn nothing_is_due_between_bursts() {
        let bursts = AlternatingRate { low: 0.0, ..RATE };
        assert_eq!(bursts.after(99.5 * MILLI, 1.0), 400.5 * MILLI);
        assert_eq!(bursts.steps(), [Step::Up]);
        assert_eq!(bursts.to_string(), "bursts of 100ms, 1000/s");
        assert_eq!(RATE.to_string(), "steps of 100ms, 100 to 1000/s");
    }

    #[test]
    fn windows_begin_with_each_step_and_are_the_same_in_every_cycle() {
        assert_eq!((RATE.windows_after(Step::Up), RATE.windows_after(Step::Down)), (5, 15));
        let window = |millis: i64| RATE.window(millis * 1_000_000);
        assert_eq!([0, 19, 20, 99, 100, 119, 399].map(window), [0, 0, 1, 4, 5, 5, 19]);
        assert_eq!([400, 420, -1].map(window), [0, 1, 19]);
        // 0.5 / 0.02 is not a whole number of windows in floating point.
        assert_eq!(AlternatingRate { high_seconds: 0.5, ..RATE }.windows_after(Step::Up), 25);
    }
}
