//! A clock of whole seconds, as memcached uses it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// The largest relative expiry, 30 days; larger values are Unix times (`protocol.txt`, "Expiration
/// times").
const MAX_RELATIVE: i64 = 60 * 60 * 24 * 30;

/// Counts seconds from shortly before its start, so that expiry 0 can mean never and 1 already
/// expired, also while the machine is suspended. Setting the wall clock does not change it.
#[derive(Debug)]
pub struct Clock {
    started: Duration,
    /// The clock's second 0, as Unix time.
    epoch: i64,
    /// The second of the last [`Clock::refresh`].
    second: AtomicU32,
}

const FIRST_SECOND: u32 = 2;
/// A second before the clock's start.
pub const EXPIRED: u32 = 1;

impl Clock {
    pub fn start() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let epoch = i64::try_from(unix.as_secs()).unwrap_or(i64::MAX) - i64::from(FIRST_SECOND);
        Self { started: since_boot(), epoch, second: AtomicU32::new(FIRST_SECOND) }
    }

    /// The second of the last [`Clock::refresh`]. Reading the kernel's clock for each request would
    /// cost more than looking up an item.
    pub fn now(&self) -> u32 {
        self.second.load(Ordering::Relaxed)
    }

    /// Reads the kernel's clock. Must be called several times a second.
    pub fn refresh(&self) -> u32 {
        let passed = since_boot().saturating_sub(self.started).as_secs();
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        let now = FIRST_SECOND.saturating_add(passed);
        self.second.store(now, Ordering::Relaxed);
        now
    }

    #[cfg(test)]
    pub fn advance(&self, seconds: u32) {
        self.second.fetch_add(seconds, Ordering::Relaxed);
    }

    pub fn unix(&self) -> i64 {
        self.epoch + i64::from(self.now())
    }

    pub fn unix_of(&self, second: u32) -> i64 {
        self.epoch + i64::from(second)
    }

    /// Converts a protocol's expiry, as of the second `now`, to this clock: 0 is never, and an expiry
    /// in the past becomes 1.
    pub fn expiry(&self, expiry: i64, now: u32) -> u32 {
        match expiry {
            0 => 0,
            ..0 => EXPIRED,
            1..=MAX_RELATIVE => now.saturating_add(u32::try_from(expiry).unwrap_or(u32::MAX)),
            absolute => match absolute - self.epoch {
                ..=0 => EXPIRED,
                relative => u32::try_from(relative).unwrap_or(u32::MAX),
            },
        }
    }
}

/// `CLOCK_BOOTTIME`. `CLOCK_MONOTONIC`, which is that of `Instant`, stands still in a suspend:
/// lifetimes would be longer by that time, and all later Unix times off by it.
fn since_boot() -> Duration {
    // It is not negative, not even in a time namespace: the kernel refuses such offsets
    // (`proc_timens_set_offset`).
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiry_is_never_relative_absolute_or_past() {
        let clock = Clock::start();
        assert_eq!(clock.expiry(0, clock.now()), 0);
        assert_eq!(clock.expiry(-1, clock.now()), 1);
        assert_eq!(clock.expiry(i64::MIN, clock.now()), 1);
        assert_eq!(clock.expiry(10, clock.now()), clock.now() + 10);
        assert_eq!(clock.expiry(MAX_RELATIVE + 1, clock.now()), 1);
        assert_eq!(clock.expiry(clock.unix() + 100, clock.now()), clock.now() + 100);
        assert_eq!(clock.expiry(i64::MAX, clock.now()), u32::MAX);
    }
}
