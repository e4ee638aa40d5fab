//! What an application pays for less CPU time, or for less delay.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// How much longer than under vanilla requests may wait in the median, in exchange for CPU time: 0
/// (the default) to 1000 µs.
///
/// With 0, the queue is polled where that takes less CPU time and delays no request longer than
/// interrupts do.
///
/// [`FromStr`] accepts whole microseconds (`20`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct LatencyBudget(Duration);

impl LatencyBudget {
    /// No delay beyond that of interrupts.
    pub const ZERO: Self = Self(Duration::ZERO);
    /// The largest budget: 1 ms.
    pub const MAX: Self = Self(Duration::from_millis(1));

    /// A budget of whole microseconds, at most [`LatencyBudget::MAX`].
    ///
    /// # Errors
    /// If the duration is longer than the largest budget, or is not a whole number of microseconds.
    pub fn new(delay: Duration) -> Result<Self, InvalidBudget> {
        if delay > Self::MAX.0 || !delay.subsec_nanos().is_multiple_of(1_000) {
            return Err(InvalidBudget::Latency(format!("{delay:?}")));
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

impl FromStr for LatencyBudget {
    type Err = InvalidBudget;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let micros = text.parse().ok().map(Duration::from_micros);
        micros.and_then(|delay| Self::new(delay).ok()).ok_or_else(|| InvalidBudget::Latency(text.to_owned()))
    }
}

/// How much more CPU time than under vanilla a request may take, in exchange for less delay: 0 (the
/// default) to 400 percent.
///
/// With more than 0 the queue is polled as often as the budget allows and as long as delay falls by
/// at least the same share, up to a wait that never sleeps. A [`LatencyBudget`] has no effect then.
///
/// [`FromStr`] accepts whole percents (`50`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct CpuBudget(u16);

impl CpuBudget {
    /// No CPU time beyond that of interrupts.
    pub const ZERO: Self = Self(0);
    /// The largest budget: 400 %.
    pub const MAX: Self = Self(400);

    /// A budget in percent of the CPU time under vanilla, at most [`CpuBudget::MAX`].
    ///
    /// # Errors
    /// If it is larger.
    pub fn new(percent: u16) -> Result<Self, InvalidBudget> {
        if percent > Self::MAX.0 {
            return Err(InvalidBudget::Cpu(percent.to_string()));
        }
        Ok(Self(percent))
    }

    /// The budget in percent of the CPU time under vanilla.
    pub fn percent(self) -> u16 {
        self.0
    }

    /// The same as a share.
    pub fn share(self) -> f64 {
        f64::from(self.0) / 100.0
    }
}

impl fmt::Display for CpuBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl FromStr for CpuBudget {
    type Err = InvalidBudget;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let percent = text.parse().ok();
        percent.and_then(|percent| Self::new(percent).ok()).ok_or_else(|| InvalidBudget::Cpu(text.to_owned()))
    }
}

/// Both budgets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Budgets {
    /// Delay that may be paid for less CPU time.
    pub latency: LatencyBudget,
    /// CPU time that may be paid for less delay.
    pub cpu: CpuBudget,
}

/// A value that is not a budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InvalidBudget {
    /// Not a [`LatencyBudget`].
    Latency(String),
    /// Not a [`CpuBudget`].
    Cpu(String),
}

crate::error_text!(
    InvalidBudget:
    Self::Latency(given) => "{given:?} is not a latency budget; use whole microseconds from 0 to 1000, for example 20";
    Self::Cpu(given) => "{given:?} is not a CPU budget; use whole percents from 0 to 400, for example 50";
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displayed_budgets_parse_to_the_same_value() {
        for text in ["0", "20", "1000"] {
            assert_eq!(text.parse::<LatencyBudget>().unwrap().to_string(), text);
        }
        for text in ["0", "50", "400"] {
            assert_eq!(text.parse::<CpuBudget>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn values_out_of_range_are_errors_that_name_the_range() {
        for text in ["", "-1", "1001", "20us", "0.5"] {
            let error = text.parse::<LatencyBudget>().unwrap_err().to_string();
            assert!(error.contains("from 0 to 1000"), "{error}");
            let error = text.parse::<CpuBudget>().unwrap_err().to_string();
            assert!(error.contains("from 0 to 400"), "{error}");
        }
        assert!(LatencyBudget::new(Duration::from_nanos(1)).is_err());
    }
}
