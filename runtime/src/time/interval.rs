//! Periodic ticks.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use futures_core::Stream;

use super::paused::now;
use super::sleep::{Sleep, after, sleep_until};

/// Ticks each `period`, the first time at once.
///
/// # Panics
/// If `period` is zero.
pub fn interval(period: Duration) -> Interval {
    interval_at(now(), period)
}

/// Ticks each `period`, the first time at `start`.
///
/// # Panics
/// If `period` is zero.
pub fn interval_at(start: Instant, period: Duration) -> Interval {
    assert!(!period.is_zero(), "the period of an interval must not be zero");
    Interval { next: sleep_until(start), period, missed: MissedTickBehavior::default() }
}

/// What an [`Interval`] does after ticks that nobody has waited for in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum MissedTickBehavior {
    /// Makes up for them, one immediately after the other.
    Burst,
    /// The next tick is a period after one that was more than 5 ms late.
    Delay,
    /// Leaves them out. Later ticks stay at multiples of the period.
    #[default]
    Skip,
}

/// How late a tick may be before later ones are delayed: timers are never exact.
const LATE: Duration = Duration::from_millis(5);

/// The ticks of [`interval`] and [`interval_at`].
#[derive(Debug)]
pub struct Interval {
    next: Sleep,
    period: Duration,
    missed: MissedTickBehavior,
}

impl Interval {
    /// Waits for the next tick, and returns when it was due. A dropped wait loses no tick.
    pub async fn tick(&mut self) -> Instant {
        std::future::poll_fn(|context| self.poll_tick(context)).await
    }

    /// [`Interval::tick`] for use in a `poll` function.
    pub fn poll_tick(&mut self, context: &mut Context<'_>) -> Poll<Instant> {
        ready!(Pin::new(&mut self.next).poll(context));
        let due = self.next.deadline();
        let late = now().saturating_duration_since(due);
        let next = match self.missed {
            MissedTickBehavior::Burst => after(due, self.period),
            MissedTickBehavior::Delay if late > LATE => after(due + late, self.period),
            MissedTickBehavior::Delay => after(due, self.period),
            MissedTickBehavior::Skip => {
                let missed = late.as_nanos() / self.period.as_nanos();
                let periods = u32::try_from(missed + 1).unwrap_or(u32::MAX);
                after(due, self.period.saturating_mul(periods))
            }
        };
        self.next.reset(next);
        Poll::Ready(due)
    }

    /// What happens after missed ticks. Default: [`MissedTickBehavior::Skip`].
    pub fn set_missed_tick_behavior(&mut self, behavior: MissedTickBehavior) {
        self.missed = behavior;
    }

    /// What happens after missed ticks.
    pub fn missed_tick_behavior(&self) -> MissedTickBehavior {
        self.missed
    }

    /// The time between two ticks.
    pub fn period(&self) -> Duration {
        self.period
    }

    /// Makes the next tick due a period from now.
    pub fn reset(&mut self) {
        self.reset_at(after(now(), self.period));
    }

    /// Makes the next tick due at an instant.
    pub fn reset_at(&mut self, next: Instant) {
        self.next.reset(next);
    }
}

/// The ticks, without an end.
impl Stream for Interval {
    type Item = Instant;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Instant>> {
        self.poll_tick(context).map(Some)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::MAX, None)
    }
}
