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
/// With fewer polls than this in the watchdog's time the timer would cost more than it saves.
const FEWEST_POLLS: u64 = 8;

#[derive(Default)]
pub(super) struct EarlierTimer {
    /// `None` if the kernel had no descriptor for it: then polls cost more.
    timer: OnceCell<Option<OwnedFd>>,
    /// The watchdog's time in nanoseconds; 0 if there is none.
    watchdog: Cell<u64>,
    /// When the timer is due, and when the last poll was, on the monotonic clock.
    due: Cell<u64>,
    polled: Cell<u64>,
}

impl EarlierTimer {
    /// Sets the watchdog's time; 0 stops the timer.
    pub(super) fn set(&self, watchdog: Duration) {
        self.watchdog.set(watchdog.as_nanos() as u64);
        if watchdog.is_zero() && self.due.replace(0) > 0 {
            self.start(0);
        }
    }

    /// Moves the timer if it is due soon, and polls are frequent. Called at `now`, before each poll.
    pub(super) fn keep(&self, now: u64) {
        let watchdog = self.watchdog.get();
        let since = now.saturating_sub(self.polled.replace(now));
        let is_due = self.due.get() < now + watchdog / PARTS;
        if watchdog > 0 && is_due && since <= watchdog / FEWEST_POLLS {
            let time = watchdog / PARTS * (PARTS - 1);
            self.start(time);
            self.due.set(now + time);
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
        let (timer, start) = (EarlierTimer::default(), monotonic_nanos());
        timer.keep(start);
        timer.keep(start + 1);
        assert!(timer.timer.get().is_none(), "no queue is in timed mode");
        timer.set(Duration::from_millis(400));
        timer.keep(start + 2);
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
        timer.set(Duration::ZERO);
        assert_eq!(left(&timer), None);
    }

    #[test]
    fn it_is_not_moved_while_a_queue_is_polled_a_few_times_in_the_watchdogs_time() {
        let (timer, start) = (EarlierTimer::default(), monotonic_nanos());
        timer.set(Duration::from_millis(2));
        (0..10).for_each(|poll| timer.keep(start + poll * 500_000));
        assert!(timer.timer.get().is_none());
        timer.keep(start + 4_600_000);
        assert!(left(&timer).is_some());
    }
}
