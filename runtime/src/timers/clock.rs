//! The clocks of the event loop, and that of its timers, which tests can pause.

use std::cell::Cell;

/// The monotonic clock, which is that of `Instant`, in nanoseconds since an arbitrary start.
pub(crate) fn monotonic_nanos() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// The same clock as it was at the kernel's last tick, up to 10 ms ago. It is read in a fraction of
/// the time.
pub(crate) fn coarse_nanos() -> u64 {
    read(libc::CLOCK_MONOTONIC_COARSE)
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable. Every kernel has these clocks, so the call can't fail.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// The clock of one worker's timers, in nanoseconds: the monotonic clock, unless it was paused.
#[derive(Default)]
pub(crate) struct TimerClock {
    /// The time at which it stands.
    paused_at: Cell<Option<u64>>,
    /// How far it is ahead of the monotonic clock while it runs; negative after a pause.
    ahead: Cell<i64>,
}

impl TimerClock {
    /// The time when the monotonic clock shows `monotonic`.
    pub(crate) fn at(&self, monotonic: u64) -> u64 {
        self.paused_at.get().unwrap_or_else(|| monotonic.saturating_add_signed(self.ahead.get()))
    }

    /// What the monotonic clock shows at a time of this clock, if that is not paused until then.
    pub(crate) fn to_monotonic(&self, time: u64) -> u64 {
        time.saturating_add_signed(-self.ahead.get())
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused_at.get().is_some()
    }

    /// Whether it shows something else than the monotonic clock.
    pub(crate) fn differs(&self) -> bool {
        self.is_paused() || self.ahead.get() != 0
    }

    pub(crate) fn pause(&self) {
        self.paused_at.set(Some(self.at(monotonic_nanos())));
    }

    pub(crate) fn resume(&self) {
        if let Some(paused_at) = self.paused_at.take() {
            // Both are less than 2^63: 292 years after the machine's start.
            self.ahead.set(paused_at.cast_signed() - monotonic_nanos().cast_signed());
        }
    }

    /// Moves a paused clock to `time`, but not back.
    pub(crate) fn advance_to(&self, time: u64) {
        self.paused_at.set(self.paused_at.get().map(|paused_at| paused_at.max(time)));
    }
}
