//! How much median delay the application grants for less CPU time.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How much longer than under vanilla the median request may take, in exchange for CPU time: 0 (the
/// default) to 1000 µs.
///
/// With 0, kernel polling is in effect only where it costs no latency: where the worker's queue stays busy.
/// From 20 µs on the budget is the poll interval of timed mode: packets that arrive while the worker sleeps wait for its
/// timer, and are processed together. `policies attach` and fixed values use it as the grace time (`gro_flush_timeout`).
///
/// [`FromStr`] accepts whole microseconds (`20`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LatencyBudget(Duration);

impl LatencyBudget {
    /// No delay that polling could avoid: plain interrupts until the core is about 78 % busy, then interrupt-first mode, which
    /// delays no packet. From about 90 % on, or earlier where requests take long, the queue is polled after a short time (20 to 160 µs), because
    /// packets wait longer than that for the core. Between that load and saturation the median may be longer than vanilla's; the 99th percentile is
    /// shorter.
    pub const ZERO: Self = Self(Duration::ZERO);
    /// The largest budget: 1 ms.
    pub const MAX: Self = Self(Duration::from_millis(1));

    /// A budget of whole microseconds, at most [`LatencyBudget::MAX`].
    ///
    /// # Errors
    /// If the duration is longer than the largest budget, or is not a whole number of microseconds.
    pub fn new(delay: Duration) -> Result<Self, InvalidLatencyBudget> {
        if delay > Self::MAX.0 || !delay.subsec_nanos().is_multiple_of(1_000) {
            return Err(InvalidLatencyBudget { given: format!("{delay:?}") });
        }
        Ok(Self(delay))
    }

    /// The delay that is granted.
    pub fn delay(self) -> Duration {
        self.0
    }
}

impl fmt::Display for LatencyBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.as_micros())
    }
}

/// A value that is not a latency budget.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not a latency budget; use whole microseconds from 0 to 1000, for example 20")]
pub struct InvalidLatencyBudget {
    given: String,
}

impl FromStr for LatencyBudget {
    type Err = InvalidLatencyBudget;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let micros = text.parse().ok().map(Duration::from_micros);
        micros
            .and_then(|delay| Self::new(delay).ok())
            .ok_or_else(|| InvalidLatencyBudget { given: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displayed_budgets_parse_to_the_same_value() {
        for text in ["0", "20", "1000"] {
            assert_eq!(text.parse::<LatencyBudget>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn values_out_of_range_are_errors_that_name_the_range() {
        for text in ["", "-1", "1001", "20us", "0.5"] {
            let error = text.parse::<LatencyBudget>().unwrap_err().to_string();
            assert!(error.contains("from 0 to 1000"), "{error}");
        }
        assert!(LatencyBudget::new(Duration::from_nanos(1)).is_err());
    }
}
