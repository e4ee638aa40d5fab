//! Sleeping, timeouts and intervals, and a clock that tests can pause.
//!
//! A timer belongs to the worker on which it is polled. On a thread that is none, and has entered a
//! runtime ([`Handle::block_on`](crate::Handle::block_on)), a task of a worker keeps it. Deadlines
//! are [`std::time::Instant`]s, of the monotonic clock.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use futures_core::Stream;
use pin_project_lite::pin_project;

use crate::coop;
use crate::task::{JoinHandle, spawn_on_runtime, yield_now};
use crate::task_core::identity::Identity;
use crate::timers::{TimerKey, monotonic_nanos};
use crate::worker::current;
use crate::worker::event_loop::Worker;

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
    Sleep { deadline, timer: Timer::Unset }
}

/// The future of [`sleep`] and [`sleep_until`]. Panics when it is polled outside of a runtime, or on
/// a thread that is no worker's after its runtime has ended.
///
/// It is `Send` and `Sync`, so that a future that contains it may be, too. Its timer belongs to the
/// worker on which it was polled: polled on another worker it sets a timer there, and the old one
/// wakes its task once in vain.
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Sleep {
    deadline: Instant,
    timer: Timer,
}

#[derive(Debug)]
enum Timer {
    Unset,
    /// Of this worker, or of another one where it was polled before.
    Worker(TimerKey),
    /// A worker's task, which sleeps for a thread that is none.
    Task(Box<JoinHandle<()>>),
    /// One of an earlier deadline of this, which is aborted: that wakes who waits for it.
    Stale(Box<JoinHandle<()>>),
}

impl Timer {
    fn key(&self) -> Option<TimerKey> {
        match self {
            Self::Worker(key) => Some(*key),
            _ => None,
        }
    }
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
        match std::mem::replace(&mut self.timer, Timer::Unset) {
            Timer::Unset => {}
            Timer::Worker(key) => {
                // Without a worker, or on another one, the timer stays where it is, and wakes the
                // task in vain.
                let moved = current::try_with(|worker| {
                    let mut timers = worker.timers.borrow_mut();
                    let waker = timers.remove(key)?;
                    Some(timers.insert(deadline, waker))
                });
                self.timer = moved.flatten().map_or(Timer::Unset, Timer::Worker);
            }
            Timer::Task(task) | Timer::Stale(task) => {
                task.abort();
                self.timer = Timer::Stale(task);
            }
        }
    }

    fn poll_here(&mut self, worker: &Worker, context: &Context<'_>) -> Poll<()> {
        // Of another thread that has polled it before. Its waker may be foreign code, too.
        if let Timer::Task(_) | Timer::Stale(_) = self.timer
            && let Timer::Task(task) | Timer::Stale(task) = std::mem::replace(&mut self.timer, Timer::Unset)
        {
            task.abort();
        }
        let mut timers = worker.timers.borrow_mut();
        // The start of the turn is exact enough: timers fire between turns.
        if worker.turn_time() >= timers.on_clock(self.deadline) {
            let waker = self.timer.key().and_then(|key| timers.remove(key));
            // Dropped outside the borrow: the waker may be foreign code.
            drop(timers);
            self.timer = Timer::Unset;
            drop(waker);
            coop::spend();
            return Poll::Ready(());
        }
        let mut replaced = None;
        match self.timer.key().and_then(|key| timers.waker(key)) {
            Some(waker) if waker.will_wake(context.waker()) => {}
            Some(waker) => replaced = Some(std::mem::replace(waker, context.waker().clone())),
            None => self.timer = Timer::Worker(timers.insert(self.deadline, context.waker().clone())),
        }
        drop(timers);
        drop(replaced);
        Poll::Pending
    }

    /// On a thread that is no worker's.
    fn poll_elsewhere(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let entered = current::entered_runtime();
        if self.is_elapsed() {
            self.timer = Timer::Unset;
            return Poll::Ready(());
        }
        let mut task = match std::mem::replace(&mut self.timer, Timer::Unset) {
            Timer::Task(task) => task,
            _ => {
                let (deadline, runtime) = (self.deadline, entered.runtime);
                let identity = Identity::new(entered.caller);
                let worker = runtime.next_worker();
                Box::new(spawn_on_runtime(&runtime, identity, worker, move || sleep_until(deadline)))
            }
        };
        match Pin::new(&mut *task).poll(context) {
            Poll::Ready(slept) => {
                assert!(slept.is_ok(), "the runtime has ended whose timers this thread has used");
                Poll::Ready(())
            }
            Poll::Pending => {
                self.timer = Timer::Task(task);
                Poll::Pending
            }
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        ready!(coop::poll_budget(context));
        match current::try_with(|worker| self.poll_here(worker, context)) {
            Some(polled) => polled,
            None => self.poll_elsewhere(context),
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        match &self.timer {
            Timer::Unset | Timer::Stale(_) => {}
            Timer::Worker(key) => {
                // Without a worker there is no timer either. The waker is dropped outside the
                // borrow.
                let _ = current::try_with(|worker| worker.timers.borrow_mut().remove(*key));
            }
            Timer::Task(task) => task.abort(),
        }
    }
}

/// Awaits a future for at most `duration`.
///
/// # Errors
/// [`Elapsed`] if the future was not ready in time.
pub fn timeout<F: IntoFuture>(duration: Duration, future: F) -> Timeout<F::IntoFuture> {
    Timeout { future: future.into_future(), sleep: sleep(duration) }
}

/// Awaits a future until `deadline`.
///
/// # Errors
/// [`Elapsed`] if the future was not ready by then.
pub fn timeout_at<F: IntoFuture>(deadline: Instant, future: F) -> Timeout<F::IntoFuture> {
    Timeout { future: future.into_future(), sleep: sleep_until(deadline) }
}

pin_project! {
    /// The future of [`timeout`] and [`timeout_at`]. The future in it is dropped with it, also if
    /// that was not ready in time.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless awaited"]
    pub struct Timeout<F> {
        #[pin]
        future: F,
        sleep: Sleep,
    }
}

impl<F> Timeout<F> {
    /// The future that is awaited.
    pub fn get_ref(&self) -> &F {
        &self.future
    }

    /// The future that is awaited.
    pub fn get_mut(&mut self) -> &mut F {
        &mut self.future
    }

    /// The future that was awaited, without the limit.
    pub fn into_inner(self) -> F {
        self.future
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(output) = this.future.poll(context) {
            return Poll::Ready(Ok(output));
        }
        // Also when the future has used up the poll's budget: it may do so in each poll.
        ready!(coop::without_budget(|| Pin::new(this.sleep).poll(context)));
        Poll::Ready(Err(Elapsed))
    }
}

/// A [`timeout`] has expired. Converts to an [`io::Error`](std::io::Error) of the kind `TimedOut`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elapsed;

policies::error_text!(Elapsed: _ => "the timeout has expired");

impl From<Elapsed> for std::io::Error {
    fn from(elapsed: Elapsed) -> Self {
        std::io::Error::new(std::io::ErrorKind::TimedOut, elapsed)
    }
}

/// Ticks each `period`, the first time at once.
///
/// # Panics
/// If `period` is zero.
pub fn interval(period: Duration) -> Interval {
    interval_at(now(), period)
}

/// Ticks each `period`, the first time at `start`.
///
/// # Panics
/// If `period` is zero.
pub fn interval_at(start: Instant, period: Duration) -> Interval {
    assert!(!period.is_zero(), "the period of an interval must not be zero");
    Interval { next: sleep_until(start), period, missed: MissedTickBehavior::default() }
}

/// What an [`Interval`] does after ticks that nobody has waited for in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum MissedTickBehavior {
    /// Makes up for them, one immediately after the other.
    Burst,
    /// The next tick is a period after one that was more than 5 ms late.
    Delay,
    /// Leaves them out. Later ticks stay at multiples of the period.
    #[default]
    Skip,
}

/// How late a tick may be before later ones are delayed: timers are never exact.
const LATE: Duration = Duration::from_millis(5);

/// The ticks of [`interval`] and [`interval_at`].
#[derive(Debug)]
pub struct Interval {
    next: Sleep,
    period: Duration,
    missed: MissedTickBehavior,
}

impl Interval {
    /// Waits for the next tick, and returns when it was due. A dropped wait loses no tick.
    pub async fn tick(&mut self) -> Instant {
        std::future::poll_fn(|context| self.poll_tick(context)).await
    }

    /// [`Interval::tick`] for use in a `poll` function.
    pub fn poll_tick(&mut self, context: &mut Context<'_>) -> Poll<Instant> {
        ready!(Pin::new(&mut self.next).poll(context));
        let due = self.next.deadline();
        let late = now().saturating_duration_since(due);
        let next = match self.missed {
            MissedTickBehavior::Burst => after(due, self.period),
            MissedTickBehavior::Delay if late > LATE => after(due + late, self.period),
            MissedTickBehavior::Delay => after(due, self.period),
            MissedTickBehavior::Skip => {
                let missed = late.as_nanos() / self.period.as_nanos();
                let periods = u32::try_from(missed + 1).unwrap_or(u32::MAX);
                after(due, self.period.saturating_mul(periods))
            }
        };
        self.next.reset(next);
        Poll::Ready(due)
    }

    /// What happens after missed ticks. Default: [`MissedTickBehavior::Skip`].
    pub fn set_missed_tick_behavior(&mut self, behavior: MissedTickBehavior) {
        self.missed = behavior;
    }

    /// What happens after missed ticks.
    pub fn missed_tick_behavior(&self) -> MissedTickBehavior {
        self.missed
    }

    /// The time between two ticks.
    pub fn period(&self) -> Duration {
        self.period
    }

    /// Makes the next tick due a period from now.
    pub fn reset(&mut self) {
        self.reset_at(after(now(), self.period));
    }

    /// Makes the next tick due at an instant.
    pub fn reset_at(&mut self, next: Instant) {
        self.next.reset(next);
    }
}

/// The ticks, without an end.
impl Stream for Interval {
    type Item = Instant;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Instant>> {
        self.poll_tick(context).map(Some)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::MAX, None)
    }
}

/// Whether any clock of this process was ever paused. Until then nobody has to look for one.
static ANY_PAUSED: AtomicBool = AtomicBool::new(false);

/// The time on the clock of this worker's timers. It is [`Instant::now`] unless the clock was
/// [paused](pause), and outside of a runtime.
pub fn now() -> Instant {
    if !ANY_PAUSED.load(Ordering::Relaxed) {
        return Instant::now();
    }
    let paused = current::try_with(|worker| {
        let time = worker.clock.differs().then(|| worker.clock.at(monotonic_nanos()))?;
        Some(worker.timers.borrow().instant(time))
    });
    paused.flatten().unwrap_or_else(Instant::now)
}

/// Stops the clock of this runtime's timers, for tests. It then moves only by [`advance`], and by
/// itself: whenever the worker has nothing to run, it jumps to the next timer. So a test that waits
/// for hours takes no time.
///
/// ```
/// use std::time::Duration;
///
/// # #[runtime::main(driver = "epoll", workers = 1)]
/// # async fn main() {
/// let begun = std::time::Instant::now();
/// runtime::time::pause();
/// let an_hour_later = runtime::time::now() + Duration::from_secs(3600);
/// runtime::sleep(Duration::from_secs(3600)).await;
/// assert!(runtime::time::now() >= an_hour_later);
/// assert!(begun.elapsed() < Duration::from_secs(60));
/// # }
/// ```
///
/// # Limits
/// - It concerns `sleep`, `timeout`, `interval`, and what is made of them. [`Instant::now`], the
///   kernel, sockets' timeouts, other threads and other processes have the real time. Compute
///   deadlines for `sleep_until`, `timeout_at` and `interval_at` from [`now`].
/// - The clock does not jump while closures of [`spawn_blocking`](crate::spawn_blocking) run, which
///   includes the lookup of names. It does while tasks wait for sockets or other threads: what they
///   bring may come after a timeout that has not really passed. Let such a test use channels
///   between its tasks, or sockets of which it has both ends.
/// - The runtime has one worker, as in [`#[runtime::test]`](crate::test) by default.
///
/// # Panics
/// Outside of a runtime, in a runtime with several workers, and if the clock is paused already.
#[track_caller]
pub fn pause() {
    current::with(|worker| {
        assert!(worker.runtime.workers.len() == 1, "time can be paused in a runtime with one worker only");
        assert!(!worker.clock.is_paused(), "time is paused already");
        ANY_PAUSED.store(true, Ordering::Relaxed);
        worker.clock.pause();
        worker.update_turn_time();
    });
}

/// Lets a paused clock run again, from the time that it shows.
///
/// # Panics
/// Outside of a runtime, and if the clock is not paused.
#[track_caller]
pub fn resume() {
    current::with(|worker| {
        assert!(worker.clock.is_paused(), "time is not paused");
        worker.clock.resume();
        worker.update_turn_time();
    });
}

/// Moves a paused clock by `duration`, fires the timers that are due, and lets the tasks that they
/// wake run once. All of them see the new time: an interval of a second that is advanced by three
/// has three ticks due.
///
/// # Panics
/// Outside of a runtime, and if the clock is not paused.
pub async fn advance(duration: Duration) {
    current::with(|worker| {
        assert!(worker.clock.is_paused(), "time is not paused");
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        worker.advance_clock(worker.clock.at(0).saturating_add(nanos));
    });
    yield_now().await;
}
