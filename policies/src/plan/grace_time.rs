//! The grace time of a NAPI after an empty poll: a fixed value, or bounds for the tuner.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The grace time (`gro_flush_timeout`): how long after an empty poll the kernel leaves a queue to the
/// application's polls, before its timer polls.
///
/// A longer grace time means fewer timer polls, and a longer delay for packets that arrive while the
/// application sleeps. The best value depends on the load: see [`GraceTime::Adaptive`].
///
/// [`FromStr`] accepts microseconds (`200`), `auto`, and `auto:MIN-MAX` in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum GraceTime {
    /// One value.
    Fixed(Duration),
    /// Tuned while the application runs, for each NAPI: the shortest value under which its worker
    /// receives as much as under any other. Candidates are tried in turn under the present load. Starts
    /// with the shortest.
    Adaptive {
        /// The lower bound, at least 1 µs.
        shortest: Duration,
        /// The upper bound, at most [`GraceTime::LONGEST_ADAPTIVE`].
        longest: Duration,
    },
}

impl GraceTime {
    /// The default bounds: 50 to 400 µs.
    pub const ADAPTIVE: Self =
        Self::Adaptive { shortest: Duration::from_micros(50), longest: Duration::from_micros(400) };
    /// The longest fixed grace time: 1 s. The kernel stores nanoseconds in 32 bits.
    pub const LONGEST: Duration = Duration::from_secs(1);
    /// The longest upper bound: 1 ms. Each trial delays a queue by up to its candidate.
    pub const LONGEST_ADAPTIVE: Duration = Duration::from_millis(1);

    /// Whether the value is not zero and within the limits, and bounds are in ascending order.
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

    /// The value to start with: the fixed one, or the lower bound.
    pub fn initial(self) -> Duration {
        match self {
            Self::Fixed(time) => time,
            Self::Adaptive { shortest, .. } => shortest,
        }
    }

    /// Lower and upper bound in nanoseconds; `None` for a fixed value.
    pub(crate) fn bounds(self) -> Option<(u64, u64)> {
        match self {
            Self::Fixed(_) => None,
            Self::Adaptive { shortest, longest } => Some((nanos(shortest), nanos(longest))),
        }
    }

    /// The values to try: at most eight from the lower to the upper bound, each about twice the one
    /// before.
    pub(crate) fn candidates(self) -> Vec<Duration> {
        let Self::Adaptive { shortest, longest } = self else { return vec![self.initial()] };
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

/// A duration in nanoseconds, saturating.
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

/// Text that is not a grace time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{given:?} is not a grace time; use microseconds from 1 to 1000000, `auto`, or bounds up to 1000 as in \
     `auto:50-400`"
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
    fn displayed_grace_times_parse_to_the_same_value() {
        for text in ["200", "auto:20-500", "auto:50-400"] {
            assert_eq!(text.parse::<GraceTime>().unwrap().to_string(), text);
        }
        assert_eq!("auto".parse(), Ok(GraceTime::ADAPTIVE));
    }

    #[test]
    fn invalid_text_is_an_error_that_shows_the_valid_forms() {
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
    fn candidates_are_at_most_eight_and_about_double_between_the_bounds() {
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
