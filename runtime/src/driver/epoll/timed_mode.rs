//! Timed mode: waits that never sleep for longer than a poll interval before the NAPI is polled
//! again.

use std::cell::{Cell, OnceCell, RefCell};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use policies::epoll_params::EpollParams;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::instance::QueueSockets;
use super::poller::Poller;
use super::sys::{self, Event};
use crate::driver::wait::{LONGEST_TIMED_WAIT, POLL_PASS, WaitOutcome};
use crate::timers::monotonic_nanos;

/// After this many poll intervals without the poller it polls, also if the instance seems to poll:
/// its last events may have been others than packets, like completions of file operations.
const MOST_INTERVALS: u64 = 4;
/// A timer is due after this part of the watchdog's time.
const AHEAD: (u64, u64) = (7, 8);
/// With fewer polls than this in the watchdog's time the timer would cost more than it saves.
const FEWEST_POLLS: u64 = 4;

pub(super) struct TimedMode {
    poller: Poller,
    /// In nanoseconds; 0 in other modes than timed.
    interval: Cell<u64>,
    /// How long the wait sleeps between two polls, in nanoseconds: the interval; 0 if the instance
    /// spins in the kernel for that time while it knows its NAPI.
    pause: Cell<u64>,
    /// When the NAPI was polled last, on the monotonic clock.
    polled: Cell<u64>,
    poller_polled: Cell<u64>,
    ahead_timers: AheadTimers,
    /// Whether the last wait brought network events, so that the waiting instance knows its NAPI,
    /// and polls before it sleeps.
    knows_napi: Cell<bool>,
}

impl TimedMode {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            poller: Poller::new()?,
            interval: Cell::new(0),
            pause: Cell::new(0),
            polled: Cell::new(0),
            poller_polled: Cell::new(0),
            ahead_timers: AheadTimers::default(),
            knows_napi: Cell::new(false),
        })
    }

    pub(super) fn is_on(&self) -> bool {
        self.interval.get() > 0
    }

    pub(super) fn has_failed(&self) -> bool {
        self.poller.has_failed()
    }

    /// Sets the poll interval, 0 in other modes than timed, and how one poll is made. `watchdog`:
    /// after this time without a poll the kernel makes one. The queue has the values of the mode
    /// already. `sockets`: those of the NAPI, here and in what follows.
    pub(super) fn set(
        &self,
        sockets: &RefCell<QueueSockets>,
        (interval, watchdog): (Duration, Duration),
        params: EpollParams,
    ) -> io::Result<()> {
        if self.is_on() && interval.is_zero() {
            // If nothing is deferred any more, this poll unmasks the interrupt now, and not the
            // watchdog later.
            self.poll(sockets);
        }
        let spin = Duration::from_micros(params.busy_poll_usecs.into());
        self.pause.set(if spin >= interval { 0 } else { interval.as_nanos() as u64 });
        // The poller makes one pass: a packet for a socket that it doesn't have would not end its
        // spin.
        self.poller.set_params(EpollParams::polling(0, params.busy_poll_budget))?;
        self.ahead_timers.set(if interval.is_zero() { Duration::ZERO } else { watchdog });
        self.interval.set(interval.as_nanos() as u64);
        self.knows_napi.set(false);
        Ok(())
    }

    /// Polls by the poller. Returns the number of system calls.
    fn poll(&self, sockets: &RefCell<QueueSockets>) -> usize {
        self.poller_polled.set(monotonic_nanos());
        self.poller.poll(sockets)
    }

    pub(super) fn waited(&self, network_events: bool) {
        self.knows_napi.set(network_events);
        if network_events {
            self.polled.set(monotonic_nanos());
        }
    }

    /// Waits on an epoll instance as [`sys::epoll_wait`] does, and polls after each interval.
    /// Counts the system calls beyond the first in the outcome.
    pub(super) fn wait(
        &self,
        sockets: &RefCell<QueueSockets>,
        instance: BorrowedFd<'_>,
        events: &mut [Event],
        timeout: Option<Duration>,
        outcome: &mut WaitOutcome,
    ) -> io::Result<usize> {
        let interval = self.interval.get();
        let pause = self.pause.get();
        let mut now = monotonic_nanos();
        let timeout = timeout.map_or(LONGEST_TIMED_WAIT, |timeout| timeout.as_nanos() as u64);
        let end = now + timeout.min(LONGEST_TIMED_WAIT);
        loop {
            let since = now.saturating_sub(self.polled.get());
            let since_poller = now.saturating_sub(self.poller_polled.get());
            let polls = since >= pause && !self.knows_napi.get() || since_poller >= interval * MOST_INTERVALS;
            if polls || self.knows_napi.get() {
                self.ahead_timers.keep(now);
            }
            if polls {
                outcome.calls += self.poll(sockets);
            }
            // An instance that knows its NAPI polls before it sleeps. If that is in vain, it has
            // forgotten the NAPI.
            if polls || self.knows_napi.replace(false) {
                self.polled.set(now);
            }
            let next = self.polled.get() + pause;
            let sleep = Duration::from_nanos(next.min(end).saturating_sub(now)).max(POLL_PASS);
            let count = sys::epoll_wait(instance, events, Some(sleep))?;
            if count > 0 {
                return Ok(count);
            }
            now = monotonic_nanos();
            if now >= end {
                return Ok(0);
            }
            outcome.calls += 1;
        }
    }
}

/// Timers that are due ahead of a queue's watchdog, so that polls don't program the core's timer.
///
/// Each poll starts the watchdog again (`net/core/dev.c`, `busy_poll_stop`). If that is the core's
/// next timer, the kernel also programs the clock event device (`kernel/time/hrtimer.c`,
/// `hrtimer_force_reprogram`). In a virtual machine that leaves the guest, and may take longer than
/// the poll: 5 µs under a nested hypervisor. While another timer is due earlier, the watchdog is
/// not the next one.
///
/// Two timers by turns: one that is started while the other is pending, and due first, doesn't
/// program the device.
#[derive(Default)]
struct AheadTimers {
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

impl AheadTimers {
    /// Sets the watchdog's time; 0 stops the timers.
    fn set(&self, watchdog: Duration) {
        self.watchdog.set(watchdog.as_nanos() as u64);
        if watchdog.is_zero() && self.due.replace(0) > 0 {
            self.start(0);
            self.start(0);
        }
    }

    /// Starts a timer if the present one is due before the next poll, and polls are frequent.
    /// Called at `now`, before each poll.
    fn keep(&self, now: u64) {
        let watchdog = self.watchdog.get();
        let since = now.saturating_sub(self.polled.replace(now));
        if watchdog > 0 && self.due.get() < now + 2 * since && since <= watchdog / FEWEST_POLLS {
            let time = watchdog * AHEAD.0 / AHEAD.1;
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
    use rustix::time::timerfd_gettime;

    use super::*;

    fn pending(timer: &AheadTimers) -> usize {
        let timers = timer.timers.get().and_then(Option::as_ref).map_or(&[][..], |timers| timers);
        timers.iter().filter(|timer| timerfd_gettime(timer).unwrap().it_value.tv_nsec > 0).count()
    }

    #[test]
    fn one_is_due_before_the_watchdog_and_after_the_next_poll() {
        let (timer, start) = (AheadTimers::default(), monotonic_nanos());
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
        let (timer, start) = (AheadTimers::default(), monotonic_nanos());
        timer.set(Duration::from_millis(2));
        (0..10).for_each(|poll| timer.keep(start + poll * 600_000));
        assert_eq!(pending(&timer), 0);
        timer.keep(start + 5_500_000);
        assert_eq!(pending(&timer), 1);
    }
}
