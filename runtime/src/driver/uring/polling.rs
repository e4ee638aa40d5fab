//! Polling of a NAPI by the ring: each enter that would sleep polls first (`io_uring/napi.c`).
//!
//! In [timed mode](policies::controller::QueueMode::Timed) the enter sleeps no longer than a poll
//! interval, so the queue is polled once an interval, and again after each batch. An enter that
//! finds completions, or that follows ready tasks, doesn't poll. Where an interval has passed so, an
//! epoll instance polls ([`Poller`]): it takes 64 packets, where an enter takes 16. Each poll
//! restarts the queue's timer (`busy_poll_stop`), which keeps the interrupt masked: no packet wakes
//! anybody before the worker polls.

use std::cell::{Cell, RefCell};
use std::io;
use std::time::Duration;

use io_uring::{opcode, squeue, types};
use policies::controller::QueueSettings;
use policies::epoll_params::EpollParams;

use super::operations::AHEAD_TIMERS;
use super::ring::Ring;
use crate::driver::epoll::instance::QueueSockets;
use crate::driver::epoll::poller::Poller;
use crate::timers::monotonic_nanos;

/// The longest time for which the kernel polls within an enter (`io_uring/napi.c`). Kernels with
/// CVE-2026-53321 don't enforce it.
const LONGEST_BUSY_POLL: Duration = Duration::from_millis(10);
/// How long the poll that ends timed mode may sleep. With no time left the kernel would poll for as
/// long as in a wait that never sleeps.
pub(super) const SHORT_SLEEP: Duration = Duration::from_micros(3);
/// The weight of the latest sleep in the averages is 1 / SLEEPS.
const SLEEPS: u64 = 8;
/// The time awake is foreseen if it differs from its average by less than this part of the poll
/// interval. With the whole of it a queue near saturation was polled too late; with a quarter
/// nothing was gained from 48,000 requests/s on.
const PART: u64 = 2;
/// Longer times awake count as the average plus this many poll intervals, because a pause of the
/// machine says nothing of the next turn.
const LONGEST: u64 = 4;
/// Ahead of the watchdog by this part of its time.
const AHEAD: (u64, u64) = (7, 8);

#[derive(Default)]
pub(crate) struct Polling {
    /// Where the policy polls.
    poller: Option<Poller>,
    /// The NAPI that is registered with the ring; 0: none.
    pub(super) napi: Cell<u32>,
    /// How long an enter polls before it sleeps, beyond the first poll.
    pub(super) busy_poll: Cell<Duration>,
    /// In nanoseconds; 0 in other modes than timed.
    pub(super) interval: Cell<u64>,
    /// After how many nanoseconds without a poll the kernel makes one.
    pub(super) watchdog: Cell<u64>,
    pub(super) timers: AheadTimers,
    /// When an enter last polled, on the monotonic clock.
    pub(super) polled: Cell<u64>,
}

impl Polling {
    /// `polls`: whether the policy busy-polls a queue.
    pub(super) fn new(polls: bool) -> io::Result<Self> {
        let poller = polls.then(Poller::new).transpose()?;
        let params = EpollParams::polling(0, QueueSettings::BUSY_POLL_BUDGET);
        // Before Linux 6.9 an instance has no parameters. A ring can't name its NAPI there either,
        // so nothing polls.
        let poller = poller.filter(|poller| poller.set_params(params).is_ok());
        Ok(Self { poller, ..Self::default() })
    }

    pub(crate) fn is_on(&self) -> bool {
        self.napi.get() != 0
    }

    pub(super) fn is_timed(&self) -> bool {
        self.interval.get() > 0
    }

    /// Whether enters poll for the whole interval.
    pub(super) fn never_sleeps(&self) -> bool {
        !self.busy_poll.get().is_zero()
    }

    /// Whether the queue is in timed mode, and was not polled for an interval.
    pub(super) fn is_overdue(&self) -> bool {
        self.is_timed() && monotonic_nanos().saturating_sub(self.polled.get()) > self.interval.get()
    }

    /// Polls by the epoll instance, without sleeping. `sockets`: those of the NAPI. Returns the
    /// number of system calls.
    pub(super) fn look(&self, sockets: &RefCell<QueueSockets>) -> usize {
        self.poller.as_ref().map_or(0, |poller| poller.poll(sockets))
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.poller.as_ref().is_some_and(Poller::has_failed)
    }

    /// Sets timed mode, or ends it if the interval is 0. `watchdog`: after this time without a poll
    /// the kernel makes one.
    pub(super) fn set_timed_mode(&self, interval: Duration, watchdog: Duration) {
        self.interval.set(interval.as_nanos() as u64);
        self.watchdog.set(watchdog.as_nanos() as u64);
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

/// Timers ahead of the watchdog, which end the sleeps of timed mode, and program the core's clock
/// device once for each sleep.
///
/// Starting a timer that is due before all others programs the clock event device, and so does each
/// timer that expires (`kernel/time/hrtimer.c`, `hrtimer_start_range_ns` and `hrtimer_interrupt`).
/// In a virtual machine that leaves the guest, and takes longer than a poll: 5 µs under a nested
/// hypervisor. A timer that is started behind a pending one programs nothing, so two take turns:
/// each is started a period before its sleep, while the other one is due earlier. When that one
/// expires, the kernel programs the device for the next.
///
/// A period is the poll interval and the time that the worker is awake between two sleeps. Where
/// that time can't be foreseen a timer would expire in the middle of a turn, or long after it.
/// There the wait's own timeout ends the sleeps, and these timers only stay ahead of the watchdog:
/// each poll starts that again (`net/core/dev.c`, `busy_poll_stop`), which programs nothing while
/// one of them is due earlier.
#[derive(Default)]
pub(super) struct AheadTimers {
    /// What the kernel reads when it takes in a timer's entry.
    times: RefCell<Box<[types::Timespec; 2]>>,
    /// When each is due, on the monotonic clock in nanoseconds; `None` if it is not pending.
    due: [Cell<Option<u64>>; 2],
    /// When the last sleep should have ended.
    woken: Cell<Option<u64>>,
    /// How long the worker is awake between two sleeps, and by how much that differs from one to
    /// the next: smoothed, in nanoseconds.
    awake: Cell<u64>,
    deviation: Cell<u64>,
}

impl AheadTimers {
    /// The entries of the timers to start at `now`, before a poll and a sleep of up to `interval`;
    /// `None`: before a wait that never sleeps. `watchdog`: what the poll starts.
    pub(super) fn start(
        &self,
        now: u64,
        interval: Option<u64>,
        watchdog: u64,
    ) -> impl Iterator<Item = squeue::Entry> {
        let ahead = watchdog * AHEAD.0 / AHEAD.1;
        let (first, period) = interval
            .filter(|interval| self.foresees(*interval))
            .map_or((ahead, ahead), |interval| (interval.min(ahead), interval + self.awake.get()));
        std::iter::from_fn(move || {
            let slot = self.due.iter().position(|due| due.get().is_none())?;
            let due =
                self.due[1 - slot].get().map_or(now + first, |other| other.max(now) + period.min(ahead));
            self.due[slot].set(Some(due));
            let time = &mut self.times.borrow_mut()[slot];
            *time = types::Timespec::new().sec(due / 1_000_000_000).nsec((due % 1_000_000_000) as u32);
            let entry = opcode::Timeout::new(time).flags(types::TimeoutFlags::ABS).build();
            Some(entry.user_data(AHEAD_TIMERS + slot as u64))
        })
    }

    /// When a sleep of at most `interval` that begins now should end, if one of the timers ends it.
    pub(super) fn end(&self, now: u64, interval: u64) -> Option<u64> {
        let next = self.due.iter().filter_map(Cell::get).min();
        next.filter(|due| *due <= now + interval)
    }

    /// Whether the time awake is foreseen.
    fn foresees(&self, interval: u64) -> bool {
        self.deviation.get() * PART <= interval
    }

    /// Takes in a sleep that began at `began`, and should have ended at `due`.
    pub(super) fn slept(&self, began: u64, due: u64, interval: u64) {
        let Some(woken) = self.woken.replace(Some(due)) else { return };
        let before = self.awake.get();
        let awake = began.saturating_sub(woken).min(before + LONGEST * interval);
        self.awake.set((before * (SLEEPS - 1) + awake) / SLEEPS);
        self.deviation.set((self.deviation.get() * (SLEEPS - 1) + awake.abs_diff(before)) / SLEEPS);
    }

    /// Takes in a completion, if it is that of one of the timers.
    pub(super) fn complete(&self, user_data: u64) {
        if let Some(due) = self.due.get((user_data - AHEAD_TIMERS) as usize) {
            due.set(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: u64 = 20_000;
    const WATCHDOG: u64 = 2_000_000;

    fn due(timers: &AheadTimers) -> [Option<u64>; 2] {
        [timers.due[0].get(), timers.due[1].get()]
    }

    /// Starts timers at `now`, and returns how many.
    fn start(timers: &AheadTimers, now: u64) -> usize {
        timers.start(now, Some(INTERVAL), WATCHDOG).count()
    }

    #[test]
    fn each_timer_is_started_a_period_before_its_sleep_while_the_other_one_is_due_earlier() {
        let timers = AheadTimers::default();
        assert_eq!(start(&timers, 1_000_000), 2);
        assert_eq!(due(&timers), [Some(1_020_000), Some(1_040_000)]);
        assert_eq!(start(&timers, 1_000_000), 0, "both are pending");
        // Each time the worker is awake for 8 µs.
        let (mut began, mut end) = (1_000_000, 1_020_000);
        for turn in 0..100 {
            timers.complete(AHEAD_TIMERS + turn % 2);
            timers.slept(began, end, INTERVAL);
            began = end + 8_000;
            assert_eq!(start(&timers, began), 1);
            let next = timers.end(began, INTERVAL).unwrap();
            assert!(next > began && due(&timers).iter().all(|due| due.unwrap() >= next));
            end = next;
        }
        assert!((7_000..=8_000).contains(&timers.awake.get()), "{}", timers.awake.get());
        let [one, other] = due(&timers).map(Option::unwrap);
        assert_eq!(one.abs_diff(other), INTERVAL + timers.awake.get());
    }

    #[test]
    fn where_turns_can_not_be_foreseen_timers_lengthen_no_sleep_and_are_due_before_the_watchdog() {
        let timers = AheadTimers::default();
        for turn in 1..=50 {
            let woken = turn * 1_000_000;
            timers.slept(woken - 500_000 - (turn % 2) * 100_000, woken, INTERVAL);
        }
        for now in (100_000_000..120_000_000).step_by(INTERVAL as usize) {
            for (slot, due) in due(&timers).into_iter().enumerate() {
                if due.is_some_and(|due| due <= now) {
                    timers.complete(AHEAD_TIMERS + slot as u64);
                }
            }
            start(&timers, now);
            let first = due(&timers).into_iter().flatten().min().unwrap();
            assert!(now < first && first < now + WATCHDOG);
            assert!(timers.end(now, INTERVAL).is_none_or(|due| due <= now + INTERVAL));
        }
    }

    #[test]
    fn where_a_wait_never_sleeps_timers_are_due_before_the_watchdog() {
        let timers = AheadTimers::default();
        assert_eq!(timers.start(1_000_000, None, WATCHDOG).count(), 2);
        assert_eq!(due(&timers), [Some(2_750_000), Some(4_500_000)]);
        assert_eq!(timers.end(1_000_000, INTERVAL), None);
    }

    #[test]
    fn completions_of_others_start_no_timer() {
        let timers = AheadTimers::default();
        start(&timers, 1_000_000);
        timers.complete(super::super::operations::WAKE_MESSAGE);
        timers.complete(super::super::operations::CANCEL);
        assert_eq!(start(&timers, 1_010_000), 0);
        timers.complete(AHEAD_TIMERS + 1);
        assert_eq!(start(&timers, 1_010_000), 1);
        assert_eq!(due(&timers), [Some(1_020_000), Some(1_040_000)]);
    }
}
