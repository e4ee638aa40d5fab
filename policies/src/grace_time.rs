//! How long a NAPI waits after an empty poll: one value, or the best within bounds.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The grace time (`gro_flush_timeout`): how long the kernel leaves a queue to the application's own
/// polls after an empty one, before its timer polls.
///
/// A longer one means fewer wake-ups, and packets that wait longer where the application sleeps. Which
/// is best depends on the load: see [`GraceTime::Adaptive`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GraceTime {
    /// Always this.
    Fixed(Duration),
    /// Found while running, for each NAPI: the shortest under which its worker receives as much as
    /// under any other, tried in turns under the load that there is. Starts with the shortest.
    Adaptive {
        /// No shorter than this.
        shortest: Duration,
        /// No longer than this.
        longest: Duration,
    },
}

impl GraceTime {
    /// What is adapted unless told otherwise: 50 to 400 µs.
    pub const ADAPTIVE: Self =
        Self::Adaptive { shortest: Duration::from_micros(50), longest: Duration::from_micros(400) };
    /// The longest that can be asked for; the kernel takes 32 bits of nanoseconds.
    pub const LONGEST: Duration = Duration::from_secs(1);
    /// The longest that is tried where it is adapted: each trial leaves a queue that much longer.
    pub const LONGEST_ADAPTIVE: Duration = Duration::from_millis(1);

    /// Whether it can be had: not zero, no longer than allowed, and bounds in their order.
    pub fn is_valid(self) -> bool {
        match self {
            Self::Fixed(time) => Duration::ZERO < time && time <= Self::LONGEST,
            Self::Adaptive { shortest, longest } => {
                Duration::from_micros(1) <= shortest
                    && shortest < longest
                    && longest <= Self::LONGEST_ADAPTIVE
            }
        }
    }

    /// What it starts with.
    pub fn first(self) -> Duration {
        match self {
            Self::Fixed(time) => time,
            Self::Adaptive { shortest, .. } => shortest,
        }
    }

    /// The least and the most that it takes, in nanoseconds, where it is adapted.
    pub(crate) fn bounds(self) -> Option<(u64, u64)> {
        match self {
            Self::Fixed(_) => None,
            Self::Adaptive { shortest, longest } => Some((nanos(shortest), nanos(longest))),
        }
    }

    /// What may be tried: from the shortest to the longest in equal steps of about two, at most eight.
    pub(crate) fn candidates(self) -> Vec<Duration> {
        let Self::Adaptive { shortest, longest } = self else { return vec![self.first()] };
        let span = longest.as_secs_f64() / shortest.as_secs_f64();
        let steps = span.log2().round().clamp(1.0, 7.0) as i32;
        (0..=steps)
            .map(|step| {
                let micros = shortest.as_secs_f64() * 1e6 * span.powf(f64::from(step) / f64::from(steps));
                Duration::from_micros(micros.round() as u64).clamp(shortest, longest)
            })
            .collect()
    }
}

/// A time as the kernel takes it.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl fmt::Display for GraceTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(time) => write!(f, "{}", time.as_micros()),
            Self::Adaptive { shortest, longest } => {
                write!(f, "auto:{}-{}", shortest.as_micros(), longest.as_micros())
            }
        }
    }
}

/// Text that names no grace time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{given:?} is not a grace time; write microseconds from 1 to 1000000, auto, or with bounds up to 1000 auto:50-400"
)]
pub struct InvalidGraceTime {
    given: String,
}

impl FromStr for GraceTime {
    type Err = InvalidGraceTime;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let micros = |text: &str| text.parse().ok().map(Duration::from_micros);
            if text == "auto" {
                return Some(Self::ADAPTIVE);
            }
            let Some(bounds) = text.strip_prefix("auto:") else { return micros(text).map(Self::Fixed) };
            let (shortest, longest) = bounds.split_once('-')?;
            let (shortest, longest) = (micros(shortest)?, micros(longest)?);
            Some(Self::Adaptive { shortest, longest })
        };
        parse().filter(|grace| grace.is_valid()).ok_or_else(|| InvalidGraceTime { given: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grace_times_parse_back_from_what_they_print() {
        for text in ["200", "auto:20-500", "auto:50-400"] {
            assert_eq!(text.parse::<GraceTime>().unwrap().to_string(), text);
        }
        assert_eq!("auto".parse(), Ok(GraceTime::ADAPTIVE));
    }

    #[test]
    fn what_is_no_grace_time_is_answered_with_what_is() {
        for text in [
            "",
            "0",
            "1000001",
            "auto:",
            "auto:5",
            "auto:9-9",
            "auto:9-5",
            "auto:0-5",
            "auto:5-1001",
            "1ms",
            "-1",
        ] {
            let error = text.parse::<GraceTime>().unwrap_err().to_string();
            assert!(error.contains("auto:50-400"), "{error}");
        }
    }

    #[test]
    fn candidates_are_few_and_about_double_from_bound_to_bound() {
        let candidates = |text: &str| -> Vec<u128> {
            let times = text.parse::<GraceTime>().unwrap().candidates();
            times.iter().map(Duration::as_micros).collect()
        };
        assert_eq!(candidates("auto"), [50, 100, 200, 400]);
        assert_eq!(candidates("auto:10-100"), [10, 22, 46, 100]);
        assert_eq!(candidates("auto:10-11"), [10, 11]);
        let many = candidates("auto:1-1000");
        assert_eq!((many.len(), many[0], many[7]), (8, 1, 1_000));
        assert_eq!(candidates("70"), [70]);
    }
}
