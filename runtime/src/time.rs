//! Time: sleeping, timeouts, intervals.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use crate::timer::TimerKey;
use crate::worker;

/// Waits until `duration` has passed.
///
/// Timers have the resolution of `epoll_pwait2`, nanoseconds, plus the kernel's timer slack
/// (50 µs unless changed, see `prctl(2)` `PR_SET_TIMERSLACK`).
pub fn sleep(duration: Duration) -> Sleep {
    let now = Instant::now();
    // A duration past the end of the clock is as good as never: 100 years.
    sleep_until(now.checked_add(duration).unwrap_or(now + Duration::from_secs(100 * 365 * 86_400)))
}

/// Waits until `deadline`.
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep { deadline, key: None, _local: PhantomData }
}

/// The future of [`sleep`].
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Sleep {
    deadline: Instant,
    key: Option<TimerKey>,
    /// The timer is its worker's.
    _local: PhantomData<*const ()>,
}

impl Sleep {
    /// When it ends.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        worker::with(|worker| {
            let mut timers = worker.timers.borrow_mut();
            // The time of the turn will do: timers fire between turns.
            if worker.turn_time() >= timers.on_clock(self.deadline) {
                let waker = self.key.take().and_then(|key| timers.remove(key));
                // Outside the borrow: it may be foreign, and do as it likes.
                drop(timers);
                drop(waker);
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
            // Without a worker its timers are gone too. The waker is dropped outside the borrow.
            let _ = worker::try_with(|worker| worker.timers.borrow_mut().remove(key));
        }
    }
}

/// Awaits a future for at most `duration`; it is dropped when the time is over.
///
/// # Errors
/// [`Elapsed`] when the time was over first.
pub async fn timeout<F: Future>(duration: Duration, future: F) -> Result<F::Output, Elapsed> {
    let mut future = std::pin::pin!(future);
    let mut sleep = std::pin::pin!(sleep(duration));
    std::future::poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Ok(output));
        }
        ready!(sleep.as_mut().poll(context));
        Poll::Ready(Err(Elapsed))
    })
    .await
}

/// The time of a [`timeout`] was over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elapsed;

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the time was over")
    }
}

impl std::error::Error for Elapsed {}

impl From<Elapsed> for std::io::Error {
    fn from(elapsed: Elapsed) -> Self {
        std::io::Error::new(std::io::ErrorKind::TimedOut, elapsed)
    }
}

/// Ticks each `period`, the first time at once. Ticks that were missed are skipped, and the next
/// one is on the grid again.
///
/// # Panics
/// If `period` is zero.
pub fn interval(period: Duration) -> Interval {
    assert!(!period.is_zero(), "an interval of zero would tick for ever");
    Interval { next: Instant::now(), period }
}

/// The ticks of [`interval`].
#[derive(Debug)]
pub struct Interval {
    next: Instant,
    period: Duration,
}

impl Interval {
    /// Waits for the next tick and returns when it was due.
    pub async fn tick(&mut self) -> Instant {
        let due = self.next;
        sleep_until(due).await;
        let missed = due.elapsed().as_nanos() / self.period.as_nanos();
        let periods = u32::try_from(missed + 1).unwrap_or(u32::MAX);
        self.next = due + self.period * periods;
        due
    }
}
