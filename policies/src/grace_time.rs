//! The grace time of a NAPI after an empty poll: a fixed value, or the controller's.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The grace time (`gro_flush_timeout`): how long after an empty poll the kernel leaves a queue to
/// the application's polls, before its timer polls.
///
/// A longer grace time means fewer timer polls, and a longer delay for packets that arrive while
/// the application sleeps.
///
/// [`FromStr`] accepts microseconds (`200`) and `auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum GraceTime {
    /// One value at every load, with the deferrals and the suspend timeout of
    /// [`Settings`](crate::Settings).
    Fixed(Duration),
    /// The [controller](crate::controller) of the application's workers chooses it, with the mode
    /// of the queue, from the load and the poll interval. Starts with interrupts.
    #[default]
    Adaptive,
}

impl GraceTime {
    /// The longest grace time: 1 s. The kernel stores nanoseconds in 32 bits.
    pub const LONGEST: Duration = Duration::from_secs(1);

    /// Whether a fixed value is not zero and within the limit.
    pub fn is_valid(self) -> bool {
        match self {
            Self::Fixed(time) => Duration::ZERO < time && time <= Self::LONGEST,
            Self::Adaptive => true,
        }
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
            Self::Adaptive => write!(f, "auto"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidGraceTime {
    given: String,
}

crate::error_text!(
    InvalidGraceTime: Self { given } => "{given:?} is not a grace time; use microseconds from 1 to 1000000, or `auto`"
);

impl FromStr for GraceTime {
    type Err = InvalidGraceTime;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = match text {
            "auto" => Some(Self::Adaptive),
            _ => text.parse().ok().map(|micros| Self::Fixed(Duration::from_micros(micros))),
        };
        parsed.filter(|grace| grace.is_valid()).ok_or_else(|| InvalidGraceTime { given: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displayed_grace_times_parse_to_the_same_value() {
        for text in ["200", "auto"] {
            assert_eq!(text.parse::<GraceTime>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn invalid_text_is_an_error_that_shows_the_valid_forms() {
        for text in ["", "0", "1000001", "auto:50-400", "1ms", "-1"] {
            let error = text.parse::<GraceTime>().unwrap_err().to_string();
            assert!(error.contains("microseconds from 1 to 1000000"), "{error}");
        }
    }
}
