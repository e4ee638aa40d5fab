//! `Handle::block_on`: a thread outside of the runtime polls a future, and spins and sleeps between
//! polls as `WaitStrategy` says.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use crate::config::WaitStrategy;
use crate::sync::{AtomicU8, Condvar, Mutex, Ordering, lock};
use crate::worker::adaptive_spin::{AdaptiveSpin, SPIN_TIME};

const EMPTY: u8 = 0;
const ASLEEP: u8 = 1;
/// The future was woken since it was last polled.
const NOTIFIED: u8 = 2;

/// Each `block_on` has its own parker, so a nested `block_on` can't consume the outer future's
/// notification.
#[derive(Default)]
pub(crate) struct ThreadParker {
    state: AtomicU8,
    lock: Mutex<()>,
    woken: Condvar,
}

impl ThreadParker {
    pub(crate) fn take(&self) -> bool {
        // A locked instruction in a spin would take the cache line away from the one who wakes.
        self.state.load(Ordering::Relaxed) == NOTIFIED
            && self.state.compare_exchange(NOTIFIED, EMPTY, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Sleeps until there is a notification, and takes it.
    pub(crate) fn sleep(&self) {
        let mut guard = lock(&self.lock);
        // Fails if it was notified meanwhile.
        let _ = self.state.compare_exchange(EMPTY, ASLEEP, Ordering::Relaxed, Ordering::Relaxed);
        while !self.take() {
            guard = self.woken.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Wake for ThreadParker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.swap(NOTIFIED, Ordering::Release) == ASLEEP {
            // The sleeper holds the lock from before it says so until it waits.
            drop(lock(&self.lock));
            self.woken.notify_one();
        }
    }
}

thread_local! {
    /// What the thread expects of its next wait.
    static SPIN: AdaptiveSpin = const { AdaptiveSpin::new() };
}

/// Polls a future on the calling thread until it is ready.
pub(crate) fn block_on<F: Future>(future: F, strategy: WaitStrategy) -> F::Output {
    let parker = Arc::new(ThreadParker::default());
    let waker = Waker::from(Arc::clone(&parker));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        match strategy {
            WaitStrategy::Block => parker.sleep(),
            WaitStrategy::Spin => while !spin(&parker) {},
            WaitStrategy::Adaptive => {
                // Fails if a destructor of another thread-local calls `block_on` while the thread
                // exits.
                if SPIN.try_with(|expected| wait_adaptively(&parker, expected)).is_err() {
                    parker.sleep();
                }
            }
        }
    }
}

fn wait_adaptively(parker: &ThreadParker, expected: &AdaptiveSpin) {
    if expected.is_expecting() {
        if spin(parker) {
            expected.found();
            return;
        }
        expected.missed();
    }
    let begun = Instant::now();
    parker.sleep();
    expected.slept(begun.elapsed(), true);
}

/// Looks for a notification for [`SPIN_TIME`], and takes it. Returns whether there was one.
fn spin(parker: &ThreadParker) -> bool {
    let begun = Instant::now();
    loop {
        if parker.take() {
            return true;
        }
        if begun.elapsed() >= SPIN_TIME {
            return false;
        }
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Ready in the poll after another thread has set the flag and woken it.
    fn woken_after(delay: Duration) -> impl Future<Output = u32> {
        let set = Arc::new(AtomicBool::new(false));
        let (mut begun, mut polls) = (false, 0);
        poll_fn(move |context| {
            polls += 1;
            if set.load(Ordering::SeqCst) {
                return Poll::Ready(polls);
            }
            if !std::mem::replace(&mut begun, true) {
                let (set, waker) = (Arc::clone(&set), context.waker().clone());
                thread::spawn(move || {
                    thread::sleep(delay);
                    set.store(true, Ordering::SeqCst);
                    waker.wake();
                });
            }
            Poll::Pending
        })
    }

    #[test]
    fn a_future_is_polled_again_only_when_it_was_woken() {
        for strategy in [WaitStrategy::Block, WaitStrategy::Spin, WaitStrategy::Adaptive] {
            for delay in [0, 2] {
                let polls = block_on(woken_after(Duration::from_millis(delay)), strategy);
                assert_eq!(polls, 2, "{strategy}");
            }
        }
    }

    #[test]
    fn a_wake_during_the_poll_is_kept_for_the_wait() {
        let polls = AtomicU32::new(0);
        let future = poll_fn(|context| {
            context.waker().wake_by_ref();
            if polls.fetch_add(1, Ordering::Relaxed) < 1_000 { Poll::Pending } else { Poll::Ready(7) }
        });
        assert_eq!(block_on(future, WaitStrategy::Block), 7);
    }

    #[test]
    fn a_wait_within_a_poll_takes_no_wake_of_the_outer_future() {
        let mut nested = false;
        let outer = poll_fn(|context| {
            if std::mem::replace(&mut nested, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            block_on(woken_after(Duration::from_millis(1)), WaitStrategy::Block);
            Poll::Pending
        });
        block_on(outer, WaitStrategy::Block);
    }
}
