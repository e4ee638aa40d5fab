//! Pausing the clock of timers, for tests.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::task::spawn::yield_now;
use crate::timers::clock::monotonic_nanos;
use crate::worker::current;

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
