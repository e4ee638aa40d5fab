//! Timed mode: waits that never sleep for longer than a poll interval before the NAPI is polled
//! again.

use std::cell::Cell;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use policies::epoll_params::EpollParams;

use super::earlier_timer::EarlierTimer;
use super::epoll_sys::{self, Event};
use super::napi_poller::NapiPoller;
use super::wait::{POLL_PASS, WaitOutcome};
use crate::timers::clock::monotonic_nanos;

/// After this many poll intervals without the poller it polls, also if the instance seems to poll:
/// its last events may have been others than packets, like completions of file operations.
const MOST_INTERVALS: u64 = 4;
/// A wait returns after this time also without events, so that a controller can end the polls.
const LONGEST_WAIT: u64 = 10_000_000;

pub(super) struct TimedPolls {
    poller: NapiPoller,
    /// In nanoseconds; 0 in other modes than timed.
    interval: Cell<u64>,
    /// How long the wait sleeps between two polls, in nanoseconds: the interval; 0 if the instance
    /// spins in the kernel for that time while it knows its NAPI.
    pause: Cell<u64>,
    /// When the NAPI was polled last, on the monotonic clock.
    polled: Cell<u64>,
    poller_polled: Cell<u64>,
    earlier_timer: EarlierTimer,
    /// Whether the poller has failed: it is said once.
    failed: Cell<bool>,
    /// Whether the last wait brought network events, so that the waiting instance knows its NAPI,
    /// and polls before it sleeps.
    knows_napi: Cell<bool>,
}

impl TimedPolls {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            poller: NapiPoller::new()?,
            interval: Cell::new(0),
            pause: Cell::new(0),
            polled: Cell::new(0),
            poller_polled: Cell::new(0),
            earlier_timer: EarlierTimer::default(),
            failed: Cell::new(false),
            knows_napi: Cell::new(false),
        })
    }

    /// Takes in a socket of the NAPI, which has to be [removed](Self::remove) before it is closed.
    pub(super) fn add(&self, socket: BorrowedFd<'_>) {
        self.poller.add(socket);
    }

    pub(super) fn remove(&self, socket: BorrowedFd<'_>) {
        self.poller.remove(socket);
    }

    pub(super) fn are_on(&self) -> bool {
        self.interval.get() > 0
    }

    pub(super) fn have_failed(&self) -> bool {
        self.failed.get()
    }

    /// Sets the poll interval, 0 in other modes than timed, and how one poll is made. `watchdog`:
    /// after this time without a poll the kernel makes one. The queue has the values of the mode
    /// already.
    pub(super) fn set(
        &self,
        (interval, watchdog): (Duration, Duration),
        params: EpollParams,
    ) -> io::Result<()> {
        if self.are_on() && interval.is_zero() {
            // If nothing is deferred any more, this poll unmasks the interrupt now, and not the
            // watchdog later.
            self.poll();
        }
        let spin = Duration::from_micros(params.busy_poll_usecs.into());
        self.pause.set(if spin >= interval { 0 } else { interval.as_nanos() as u64 });
        // The poller makes one pass: a packet for a socket that it doesn't have would not end its
        // spin.
        self.poller.set_params(EpollParams::polling(0, params.busy_poll_budget))?;
        self.earlier_timer.set(if interval.is_zero() { Duration::ZERO } else { watchdog });
        self.interval.set(interval.as_nanos() as u64);
        self.knows_napi.set(false);
        Ok(())
    }

    /// Polls by the poller. Returns the number of system calls. If it can't poll, the watchdog
    /// does.
    fn poll(&self) -> usize {
        self.poller_polled.set(monotonic_nanos());
        self.poller.poll().unwrap_or_else(|error| {
            if !self.failed.replace(true) {
                tracing::warn!(%error, "a worker can't poll its queue by its own timer");
            }
            0
        })
    }

    pub(super) fn waited(&self, network_events: bool) {
        self.knows_napi.set(network_events);
        if network_events {
            self.polled.set(monotonic_nanos());
        }
    }

    /// Waits on an epoll instance as [`epoll_sys::epoll_wait`] does, and polls after each interval.
    /// Sets the outcome's looks and sleeps, and counts the system calls beyond the first.
    pub(super) fn wait(
        &self,
        instance: BorrowedFd<'_>,
        events: &mut [Event],
        timeout: Option<Duration>,
        outcome: &mut WaitOutcome,
    ) -> io::Result<usize> {
        let interval = self.interval.get();
        let pause = self.pause.get();
        let mut now = monotonic_nanos();
        outcome.looked = now;
        outcome.look_budget = u32::try_from(events.len()).unwrap_or(u32::MAX);
        let timeout = timeout.map_or(LONGEST_WAIT, |timeout| timeout.as_nanos() as u64);
        let end = now + timeout.min(LONGEST_WAIT);
        loop {
            let began = now;
            let since = now.saturating_sub(self.polled.get());
            let since_poller = now.saturating_sub(self.poller_polled.get());
            let polls = since >= pause && !self.knows_napi.get() || since_poller >= interval * MOST_INTERVALS;
            if polls || self.knows_napi.get() {
                self.earlier_timer.keep(now);
            }
            if polls {
                outcome.calls += self.poll();
            }
            // An instance that knows its NAPI polls before it sleeps. If that is in vain, it has
            // forgotten the NAPI.
            if polls || self.knows_napi.replace(false) {
                self.polled.set(now);
                outcome.looked = now;
            }
            let next = self.polled.get() + pause;
            let sleep = Duration::from_nanos(next.min(end).saturating_sub(now)).max(POLL_PASS);
            let count = epoll_sys::epoll_wait(instance, events, Some(sleep))?;
            if count > 0 {
                return Ok(count);
            }
            outcome.found_nothing = self.polled.get();
            now = monotonic_nanos();
            if pause > 0 && next <= end {
                outcome.overslept.0 += Duration::from_nanos(now - began).saturating_sub(sleep);
                outcome.overslept.1 += 1;
            }
            if now >= end {
                return Ok(0);
            }
            outcome.calls += 1;
        }
    }
}
