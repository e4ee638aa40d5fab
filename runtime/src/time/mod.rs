//! Time: sleeping, timeouts, intervals, and the timer wheel behind them.

pub(crate) mod clock;
mod interval;
mod sleep;
mod timeout;
pub(crate) mod wheel;

pub use self::interval::{Interval, MissedTickBehavior, interval, interval_at};
pub use self::sleep::{Sleep, sleep, sleep_until};
pub use self::timeout::{Elapsed, timeout, timeout_at};
