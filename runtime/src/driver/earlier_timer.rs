//! A timer that is due before a queue's watchdog, so that polls don't set the core's clock.
//!
//! Each poll starts the watchdog again (`net/core/dev.c`, `busy_poll_stop`). If that is the core's next timer, the kernel also
//! programs the clock event device (`kernel/time/hrtimer.c`, `hrtimer_force_reprogram`). In a virtual machine that leaves
//! the guest, and may take longer than the poll: 5 µs under a nested hypervisor. With a timer that is due earlier, and is moved
//! once in many polls, the watchdog is never the next one.

use std::cell::{Cell, OnceCell};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

/// The timer is set to three quarters of the watchdog's time, and moved when less than a quarter is left: moving it programs the
/// device twice.
const PARTS: u64 = 4;
/// With fewer polls than this in the watchdog's time the timer costs more than it saves.
const FEWEST_POLLS: u64 = 8;

#[derive(Default)]
pub(super) struct EarlierTimer {
    /// `None` if the kernel had no descriptor for it: then polls cost more.
    timer: OnceCell<Option<OwnedFd>>,
    /// The watchdog's time in nanoseconds; 0 if the timer is not used.
    watchdog: Cell<u64>,
    /// When the timer is due, on the monotonic clock.
    due: Cell<u64>,
}

impl EarlierTimer {
    /// Uses the timer where that saves something. `sleep`: how long the worker sleeps at most before it polls again. `watchdog`: 0
    /// stops the timer.
    pub(super) fn set(&self, sleep: Duration, watchdog: Duration) {
        let (sleep, watchdog) = (sleep.as_nanos() as u64, watchdog.as_nanos() as u64);
        let saves = watchdog > 0 && watchdog / FEWEST_POLLS >= sleep;
        self.watchdog.set(if saves { watchdog } else { 0 });
        if !saves && self.due.replace(0) > 0 {
            self.start(0);
        }
    }

    /// Moves the timer if it is due soon. Called at `now`, before each poll.
    pub(super) fn keep(&self, now: u64) {
        let part = self.watchdog.get() / PARTS;
        if part > 0 && self.due.get() < now + part {
            self.start(part * (PARTS - 1));
            self.due.set(now + part * (PARTS - 1));
        }
    }

    /// Sets the timer, in nanoseconds from now; 0 stops it.
    fn start(&self, nanos: u64) {
        let create = || timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC).ok();
        let Some(timer) = self.timer.get_or_init(create) else { return };
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        // A watchdog is far shorter than a second.
        let value = Timespec { tv_sec: 0, tv_nsec: nanos.min(999_999_999) as i64 };
        // Nobody reads it. Fails only for values that are out of range.
        let _ = timerfd_settime(
            timer,
            TimerfdTimerFlags::empty(),
            &Itimerspec { it_interval: zero, it_value: value },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timers::clock::monotonic_nanos;
    use rustix::time::timerfd_gettime;

    fn left(timer: &EarlierTimer) -> Option<u64> {
        let value = timerfd_gettime(timer.timer.get()?.as_ref()?).unwrap().it_value;
        (value.tv_nsec > 0).then_some(value.tv_nsec as u64)
    }

    #[test]
    fn it_is_due_before_the_watchdog_and_moved_once_in_many_polls() {
        let timer = EarlierTimer::default();
        let (micros, start) = (Duration::from_micros, monotonic_nanos());
        timer.keep(start);
        assert!(timer.timer.get().is_none(), "no queue is in timed mode");
        timer.set(micros(20_000), micros(400_000));
        timer.keep(start);
        assert!(left(&timer).is_some_and(|left| left <= 300_000_000));
        let mut moved = 0;
        for poll in 1..=40 {
            let (now, before) = (start + poll * 20_000_000, timer.due.get());
            timer.keep(now);
            // The poll before has started the watchdog.
            assert!(timer.due.get() < now - 20_000_000 + 400_000_000);
            assert!(timer.due.get() >= now + 100_000_000);
            moved += u32::from(timer.due.get() != before);
        }
        assert_eq!(moved, 3);
        timer.set(Duration::ZERO, Duration::ZERO);
        assert_eq!(left(&timer), None);
    }

    #[test]
    fn it_is_not_used_where_a_queue_is_polled_a_few_times_in_the_watchdogs_time() {
        let timer = EarlierTimer::default();
        timer.set(Duration::from_micros(500), Duration::from_millis(2));
        timer.keep(monotonic_nanos());
        assert!(timer.timer.get().is_none());
    }
}
