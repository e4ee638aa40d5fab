//! Periodic ticks.

use std::time::{Duration, Instant};

use super::sleep::{after, sleep_until};

/// Ticks each `period`, the first time at once. Missed ticks are skipped; later ticks stay at multiples of
/// the period.
///
/// # Panics
/// If `period` is zero.
pub fn interval(period: Duration) -> Interval {
    assert!(!period.is_zero(), "the period of an interval must not be zero");
    Interval { next: Instant::now(), period }
}

/// The ticks of [`interval`].
#[derive(Debug)]
pub struct Interval {
    next: Instant,
    period: Duration,
}

impl Interval {
    /// Waits for the next tick, and returns when it was due.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub async fn tick(&mut self) -> Instant {
        let due = self.next;
        sleep_until(due).await;
        let missed = due.elapsed().as_nanos() / self.period.as_nanos();
        let periods = u32::try_from(missed + 1).unwrap_or(u32::MAX);
        self.next = after(due, self.period.saturating_mul(periods));
        due
    }
}
