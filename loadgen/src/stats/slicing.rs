//! Divides the measurement into intervals of equal length.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The length of an interval in a run of up to ten minutes, and how often workers hand over what
/// they have recorded.
pub(crate) const LONGEST_INTERVAL: Duration = Duration::from_millis(100);

/// A short run is divided into shorter intervals, so that there are enough for statistics: this
/// many, but none shorter than `SHORTEST_INTERVAL`.
const FEW: u128 = 20;
const SHORTEST_INTERVAL: Duration = Duration::from_millis(5);

/// A run of hours is divided into longer intervals: this many, so that memory doesn't grow with its
/// duration.
const MANY: u128 = 6000;

/// The index of the interval that comprises the time before the measurement.
pub(crate) const BEFORE: u32 = u32::MAX;

/// How the measurement is divided into intervals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Slicing {
    pub(crate) interval: Duration,
    pub(crate) count: u32,
}

impl Slicing {
    pub(crate) fn new(duration: Duration) -> Self {
        let long = duration.as_nanos().div_ceil(LONGEST_INTERVAL.as_nanos()).min(MANY);
        let short = duration.as_nanos() / SHORTEST_INTERVAL.as_nanos();
        let count = long.max(short.min(FEW)).clamp(1, BEFORE.into()) as u32;
        Self { interval: (duration / count).max(Duration::from_nanos(1)), count }
    }

    pub(crate) fn complete_after(self, time: Duration) -> u32 {
        u32::try_from(time.as_nanos() / self.interval.as_nanos()).unwrap_or(u32::MAX).min(self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_of_equal_length_and_neither_long_nor_few() {
        let slice = |micros: u64| {
            let Slicing { interval, count } = Slicing::new(Duration::from_micros(micros));
            (interval.as_micros(), count)
        };
        assert_eq!(slice(5_000_000), (100_000, 50));
        assert_eq!(slice(2_050_000), (97_619, 21));
        assert_eq!(slice(500_000), (25_000, 20));
        assert_eq!(slice(50_000), (5_000, 10));
        assert_eq!(slice(4_000), (4_000, 1));
        assert_eq!(slice(86_400_000_000), (14_400_000, 6000));
        assert_eq!(Slicing::new(Duration::ZERO).count, 1);
    }
}
