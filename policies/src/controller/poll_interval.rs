//! How long a packet may wait for the worker to look.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The longest time for which a packet waits until a worker that sleeps looks at its queue, while
/// the queue is polled: 10 to 1000 µs, 30 by default.
///
/// A longer interval takes less CPU time, a shorter one delays less. The queue is polled while two
/// packets come in an interval, so a longer one also polls at lower rates.
///
/// 0: the worker never sleeps while packets come, and takes all of its core.
///
/// [`FromStr`] accepts whole microseconds (`30`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct PollInterval(Duration);

impl PollInterval {
    /// The worker never sleeps while packets come.
    pub const NEVER_SLEEPS: Self = Self(Duration::ZERO);
    /// The shortest interval: 10 µs. A sleep costs some 2 µs of CPU time on hardware, and up to 20
    /// in a virtual machine.
    pub const MIN: Self = Self(Duration::from_micros(10));
    /// The longest interval: 1 ms.
    pub const MAX: Self = Self(Duration::from_millis(1));

    /// An interval of whole microseconds.
    ///
    /// # Errors
    /// If it is neither 0 nor between [`PollInterval::MIN`] and [`PollInterval::MAX`], or not a
    /// whole number of microseconds.
    pub fn new(interval: Duration) -> Result<Self, InvalidPollInterval> {
        let is_in_range = interval.is_zero() || (Self::MIN.0..=Self::MAX.0).contains(&interval);
        if !is_in_range || !interval.subsec_nanos().is_multiple_of(1_000) {
            return Err(InvalidPollInterval(format!("{interval:?}")));
        }
        Ok(Self(interval))
    }

    /// The interval; zero: never sleeps.
    pub fn get(self) -> Duration {
        self.0
    }

    /// Whether the worker never sleeps while packets come.
    pub fn never_sleeps(self) -> bool {
        self.0.is_zero()
    }
}

impl Default for PollInterval {
    fn default() -> Self {
        Self(Duration::from_micros(30))
    }
}

/// Whole microseconds without a unit, as [`FromStr`] accepts them.
impl fmt::Display for PollInterval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.as_micros())
    }
}

impl FromStr for PollInterval {
    type Err = InvalidPollInterval;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidPollInterval(text.to_owned());
        let micros = text.trim().parse().map_err(|_| invalid())?;
        Self::new(Duration::from_micros(micros)).map_err(|_| invalid())
    }
}

/// What is no poll interval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidPollInterval(String);

crate::error_text!(
    InvalidPollInterval: Self(given) =>
        "{given:?} is not a poll interval; use whole microseconds from 10 to 1000, or 0 to never sleep"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_0_or_from_10_to_1000_whole_microseconds() {
        for text in ["0", "10", " 40 ", "1000"] {
            let interval: PollInterval = text.parse().unwrap();
            assert_eq!(interval.to_string(), text.trim());
        }
        for text in ["", "9", "1001", "40us", "-1", "1.5"] {
            let error = text.parse::<PollInterval>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{text:?} is not a poll interval")), "{error}");
        }
        assert!(PollInterval::new(Duration::from_nanos(40_500)).is_err());
    }
}
