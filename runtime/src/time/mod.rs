//! Sleeping, timeouts and intervals, and a clock that tests can pause.
//!
//! A timer belongs to the worker on which it is polled. Deadlines are [`std::time::Instant`]s, of
//! the monotonic clock.

mod interval;
mod paused;
mod sleep;
mod timeout;

pub use self::interval::{Interval, MissedTickBehavior, interval, interval_at};
pub use self::paused::{advance, now, pause, resume};
pub use self::sleep::{Sleep, sleep, sleep_until};
pub use self::timeout::{Elapsed, timeout, timeout_at};
