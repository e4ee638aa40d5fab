//! Parks a thread in `Handle::block_on` until its future is woken.

use std::sync::{Arc, PoisonError};
use std::task::Wake;

use crate::sync::{AtomicU8, Condvar, Mutex, Ordering, lock};

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
