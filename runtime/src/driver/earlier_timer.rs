//! Timers that are due before a queue's watchdog, so that polls don't program the core's timer.
//!
//! Each poll starts the watchdog again (`net/core/dev.c`, `busy_poll_stop`). If that is the core's
//! next timer, the kernel also programs the clock event device (`kernel/time/hrtimer.c`,
//! `hrtimer_force_reprogram`). In a virtual machine that leaves the guest, and may take longer than
//! the poll: 5 µs under a nested hypervisor. While another timer is due earlier, the watchdog is
//! not the next one.

use std::cell::{Cell, OnceCell};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

/// The timer is due after this part of the watchdog's time.
const PART: (u64, u64) = (7, 8);
/// With fewer polls than this in the watchdog's time the timer would cost more than it saves.
const FEWEST_POLLS: u64 = 4;

/// Two timers by turns: one that is started while the other is pending, and due first, doesn't
/// program the device.
#[derive(Default)]
pub(super) struct EarlierTimer {
    /// `None` if the kernel had no descriptors for them: then polls cost more.
    timers: OnceCell<Option<[OwnedFd; 2]>>,
    next: Cell<usize>,
    /// The watchdog's time in nanoseconds; 0 if there is none.
    watchdog: Cell<u64>,
    /// When the timer that was started last is due, and when the last poll was, on the monotonic
    /// clock.
    due: Cell<u64>,
    polled: Cell<u64>,
}

impl EarlierTimer {
    /// Sets the watchdog's time; 0 stops the timers.
    pub(super) fn set(&self, watchdog: Duration) {
        self.watchdog.set(watchdog.as_nanos() as u64);
        if watchdog.is_zero() && self.due.replace(0) > 0 {
            self.start(0);
            self.start(0);
        }
    }

    /// Starts a timer if the present one is due before the next poll, and polls are frequent.
    /// Called at `now`, before each poll.
    pub(super) fn keep(&self, now: u64) {
        let watchdog = self.watchdog.get();
        let since = now.saturating_sub(self.polled.replace(now));
        if watchdog > 0 && self.due.get() < now + 2 * since && since <= watchdog / FEWEST_POLLS {
            let time = watchdog * PART.0 / PART.1;
            self.start(time);
            self.due.set(now + time);
        }
    }

    /// Starts the next timer, in nanoseconds from now; 0 stops it.
    fn start(&self, nanos: u64) {
        let create = || timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC).ok();
        let Some(timers) = self.timers.get_or_init(|| Some([create()?, create()?])) else { return };
        let next = self.next.replace(1 - self.next.get());
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        // A watchdog is far shorter than a second.
        let value = Timespec { tv_sec: 0, tv_nsec: nanos.min(999_999_999) as i64 };
        // Nobody reads it. Fails only for values that are out of range.
        let _ = timerfd_settime(
            &timers[next],
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

    fn pending(timer: &EarlierTimer) -> usize {
        let timers = timer.timers.get().and_then(Option::as_ref).map_or(&[][..], |timers| timers);
        timers.iter().filter(|timer| timerfd_gettime(timer).unwrap().it_value.tv_nsec > 0).count()
    }

    #[test]
    fn one_is_due_before_the_watchdog_and_after_the_next_poll() {
        let (timer, start) = (EarlierTimer::default(), monotonic_nanos());
        timer.keep(start);
        timer.keep(start + 1);
        assert!(timer.timers.get().is_none(), "no queue is in timed mode");
        timer.set(Duration::from_millis(400));
        let mut started = 0;
        for poll in 1..=50 {
            let (now, before) = (start + poll * 20_000_000, timer.due.get());
            timer.keep(now);
            // This poll starts the watchdog.
            assert!(timer.due.get() < now + 400_000_000);
            assert!(timer.due.get() > now + 20_000_000);
            started += u32::from(timer.due.get() != before);
        }
        assert_eq!((started, pending(&timer)), (4, 2));
        timer.set(Duration::ZERO);
        assert_eq!(pending(&timer), 0);
    }

    #[test]
    fn none_is_started_while_a_queue_is_polled_a_few_times_in_the_watchdogs_time() {
        let (timer, start) = (EarlierTimer::default(), monotonic_nanos());
        timer.set(Duration::from_millis(2));
        (0..10).for_each(|poll| timer.keep(start + poll * 600_000));
        assert_eq!(pending(&timer), 0);
        timer.keep(start + 5_500_000);
        assert_eq!(pending(&timer), 1);
    }
}
