//! Time in whole seconds, as memcached counts it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Up to 30 days an expiry is relative, above it is Unix time (`protocol.txt`, "Expiration times").
const LARGEST_RELATIVE: i64 = 60 * 60 * 24 * 30;

/// Seconds since shortly before the server started, so that 0 can mean "never" and 1 "long ago".
#[derive(Debug)]
pub struct Clock {
    started: Instant,
    epoch: i64,
    /// The present second, as [`Clock::refresh`] has found it.
    second: AtomicU32,
}

/// How far the clock is ahead at the start.
const HEAD_START: u32 = 2;

impl Clock {
    pub fn start() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let epoch = i64::try_from(unix.as_secs()).unwrap_or(i64::MAX) - i64::from(HEAD_START);
        Self { started: Instant::now(), epoch, second: AtomicU32::new(HEAD_START) }
    }

    /// The second of the last [`Clock::refresh`]: reading the kernel's clock for each request would cost
    /// more than finding an item.
    pub fn now(&self) -> u32 {
        self.second.load(Ordering::Relaxed)
    }

    /// Looks at the kernel's clock. To be called several times a second.
    pub fn refresh(&self) -> u32 {
        let passed = u32::try_from(self.started.elapsed().as_secs()).unwrap_or(u32::MAX);
        let now = HEAD_START.saturating_add(passed);
        self.second.store(now, Ordering::Relaxed);
        now
    }

    pub fn unix(&self) -> i64 {
        self.epoch + i64::from(self.now())
    }

    /// A second of this clock as Unix time.
    pub fn unix_of(&self, second: u32) -> i64 {
        self.epoch + i64::from(second)
    }

    /// Turns an expiry of the protocol into one of this clock: 0 is never, and one that has passed
    /// already is 1.
    pub fn expiry(&self, given: i64) -> u32 {
        match given {
            0 => 0,
            ..0 => 1,
            1..=LARGEST_RELATIVE => self.now().saturating_add(u32::try_from(given).unwrap_or(u32::MAX)),
            absolute => match absolute - self.epoch {
                ..=0 => 1,
                relative => u32::try_from(relative).unwrap_or(u32::MAX),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiries_are_never_relative_absolute_or_past() {
        let clock = Clock::start();
        assert_eq!(clock.expiry(0), 0);
        assert_eq!(clock.expiry(-1), 1);
        assert_eq!(clock.expiry(i64::MIN), 1);
        assert_eq!(clock.expiry(10), clock.now() + 10);
        assert_eq!(clock.expiry(LARGEST_RELATIVE + 1), 1);
        assert_eq!(clock.expiry(clock.unix() + 100), clock.now() + 100);
        assert_eq!(clock.expiry(i64::MAX), u32::MAX);
    }
}
