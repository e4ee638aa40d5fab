//! Polls of a NAPI by the ring: each enter that would sleep polls first (`io_uring/napi.c`).
//!
//! In [timed mode](policies::controller::QueueMode::Timed) the enter sleeps no longer than a poll
//! interval, so the queue is polled once an interval, and again after each batch. Each poll
//! restarts the queue's timer (`busy_poll_stop`), which keeps the interrupt masked: no packet wakes
//! anybody before the worker polls.

use std::cell::Cell;
use std::io;
use std::time::Duration;

use io_uring::types;

use super::ring::Ring;
use super::sleep_timers::SleepTimers;
use crate::timers::clock::monotonic_nanos;

/// The longest time for which the kernel polls within an enter (`io_uring/napi.c`). Kernels with
/// CVE-2026-53321 don't enforce it.
const LONGEST_BUSY_POLL: Duration = Duration::from_millis(10);
/// How many packets an enter's polls take: the budget of one (`BUSY_POLL_BUDGET`), and the last one
/// of a wait (`busy_poll_stop`).
pub(super) const LOOK_BUDGET: u32 = 16;
/// A wait in timed mode returns after this time also without events, so that the controller can end
/// the polls.
pub(super) const LONGEST_WAIT: u64 = 10_000_000;
/// A worker whose enters don't poll, because they find completions at once or tasks are ready,
/// makes a poll after this many intervals without one...
const MOST_INTERVALS: u64 = 4;
/// ...or after this part of the watchdog's time, if that is shorter. Such a poll may cost a sleep.
const WATCHDOG_PART: u64 = 2;
/// How long a poll in between may sleep. With no time left the kernel would poll for as long as in
/// a wait that never sleeps.
pub(super) const SHORT_SLEEP: Duration = Duration::from_micros(3);

#[derive(Default)]
pub(super) struct QueuePolls {
    /// The NAPI that is registered with the ring; 0: none.
    pub(super) napi: Cell<u32>,
    /// How long an enter polls before it sleeps, beyond the first poll.
    pub(super) busy_poll: Cell<Duration>,
    /// In nanoseconds; 0 in other modes than timed.
    pub(super) interval: Cell<u64>,
    /// After how many nanoseconds without a poll the kernel makes one.
    pub(super) watchdog: Cell<u64>,
    /// For how many nanoseconds the queue may be left alone.
    pub(super) most: Cell<u64>,
    pub(super) sleep_timers: SleepTimers,
    /// When an enter last polled, on the monotonic clock.
    pub(super) polled: Cell<u64>,
}

impl QueuePolls {
    pub(super) fn are_on(&self) -> bool {
        self.napi.get() != 0
    }

    pub(super) fn are_timed(&self) -> bool {
        self.interval.get() > 0
    }

    /// Whether enters poll for the whole interval.
    pub(super) fn never_sleep(&self) -> bool {
        !self.busy_poll.get().is_zero()
    }

    /// Whether the queue is in timed mode, and was not polled for several intervals.
    pub(super) fn are_overdue(&self) -> bool {
        self.are_timed() && monotonic_nanos().saturating_sub(self.polled.get()) > self.most.get()
    }

    /// Sets timed mode, or ends it if the interval is 0. `watchdog`: after this time without a poll
    /// the kernel makes one.
    pub(super) fn set_interval(&self, interval: Duration, watchdog: Duration) {
        let (interval, watchdog) = (interval.as_nanos() as u64, watchdog.as_nanos() as u64);
        self.interval.set(interval);
        self.watchdog.set(watchdog);
        self.most.set((interval * MOST_INTERVALS).min(watchdog / WATCHDOG_PART));
    }

    /// Registers a NAPI with the ring in place of the present one (Linux 6.13); 0 for none.
    pub(super) fn register(&self, ring: &Ring, napi: u32, busy_poll: Duration) -> io::Result<()> {
        let micros = u32::try_from(busy_poll.min(LONGEST_BUSY_POLL).as_micros()).unwrap_or(u32::MAX);
        let mut settings = types::Napi::new()
            .set_busy_poll_timeout(micros)
            .set_prefer_busy_poll(true)
            .set_tracking(types::NapiTracking::Static);
        let before = self.napi.replace(0);
        if napi == 0 {
            if before != 0 {
                // Unregistering alone leaves the id in the ring's list, and each wait goes on
                // polling it. Fails only if it is not there.
                let _ = ring.submitter().register_napi_del_id(before);
            }
            ring.submitter().unregister_napi(&mut settings)?;
        } else {
            ring.submitter().register_napi(&mut settings)?;
            ring.submitter().register_napi_add_id(napi)?;
        }
        self.napi.set(napi);
        self.busy_poll.set(busy_poll);
        Ok(())
    }
}
