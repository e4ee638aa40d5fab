//! Sleeping until an instant.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use super::paused::now;
use crate::coop;
use crate::timers::wheel::TimerKey;
use crate::worker::current;

/// Waits until `duration` has passed.
///
/// The resolution is that of `epoll_pwait2` or `io_uring_enter`: nanoseconds, as workers set their
/// timer slack to 1 ns (`prctl(2)`, `PR_SET_TIMERSLACK`). Before Linux 5.11 the epoll driver counts
/// in milliseconds.
pub fn sleep(duration: Duration) -> Sleep {
    sleep_until(after(now(), duration))
}

/// The instant after a duration. One beyond the end of the clock is 100 years away, which is never.
pub(super) fn after(start: Instant, duration: Duration) -> Instant {
    const NEVER: Duration = Duration::from_secs(100 * 365 * 86_400);
    start.checked_add(duration).unwrap_or_else(|| Instant::now() + NEVER)
}

/// Waits until `deadline`, with the resolution of [`sleep`]. Ready at once if it has passed.
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep { deadline, key: None }
}

/// The future of [`sleep`] and [`sleep_until`]. Panics when it is polled outside of a runtime.
///
/// It is `Send` and `Sync`, so that a future that contains it may be, too. Its timer belongs to the
/// worker on which it was polled: polled on another worker it sets a timer there, and the old one
/// wakes its task once in vain.
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Sleep {
    deadline: Instant,
    key: Option<TimerKey>,
}

impl Sleep {
    /// When it is ready.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether the deadline has passed.
    pub fn is_elapsed(&self) -> bool {
        now() >= self.deadline
    }

    /// Sets another deadline, also after it was ready. A task that waits for it is woken at the new
    /// one.
    pub fn reset(&mut self, deadline: Instant) {
        self.deadline = deadline;
        let Some(key) = self.key.take() else { return };
        // Without a worker, or on another one, the timer stays where it is, and wakes the task in
        // vain.
        self.key = current::try_with(|worker| {
            let mut timers = worker.timers.borrow_mut();
            let waker = timers.remove(key)?;
            Some(timers.insert(deadline, waker))
        })
        .flatten();
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        ready!(coop::poll_budget(context));
        current::with(|worker| {
            let mut timers = worker.timers.borrow_mut();
            // The start of the turn is exact enough: timers fire between turns.
            if worker.turn_time() >= timers.on_clock(self.deadline) {
                let waker = self.key.take().and_then(|key| timers.remove(key));
                // Dropped outside the borrow: the waker may be foreign code.
                drop(timers);
                drop(waker);
                coop::spend();
                return Poll::Ready(());
            }
            let mut replaced = None;
            match self.key.and_then(|key| timers.waker(key)) {
                Some(waker) if waker.will_wake(context.waker()) => {}
                Some(waker) => replaced = Some(std::mem::replace(waker, context.waker().clone())),
                None => self.key = Some(timers.insert(self.deadline, context.waker().clone())),
            }
            drop(timers);
            drop(replaced);
            Poll::Pending
        })
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            // Without a worker there is no timer either. The waker is dropped outside the borrow.
            let _ = current::try_with(|worker| worker.timers.borrow_mut().remove(key));
        }
    }
}
