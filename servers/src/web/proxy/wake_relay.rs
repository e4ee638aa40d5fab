//! The waker of a pooled connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use futures_util::task::AtomicWaker;

/// Wakes whoever uses a connection at present. hyper and the socket keep the waker of their last poll. If that were the
/// waker of a task, each request would wake the task of the client that had the connection before.
#[derive(Debug, Default)]
pub(super) struct WakeRelay {
    user: AtomicWaker,
    muted: AtomicBool,
    woken: AtomicBool,
}

impl WakeRelay {
    /// Whom to wake from now on.
    pub(super) fn set_user(&self, waker: &Waker) {
        self.user.register(waker);
    }

    /// Whether something has woken the connection since it was polled.
    pub(super) fn is_woken(&self) -> bool {
        self.woken.load(Ordering::Relaxed)
    }

    /// The connection is about to be polled.
    pub(super) fn begin_poll(&self) {
        self.woken.store(false, Ordering::Relaxed);
    }

    /// Runs what would wake the connection, which its user polls next anyway.
    pub(super) fn muted<T>(&self, run: impl FnOnce() -> T) -> T {
        self.muted.store(true, Ordering::Relaxed);
        let result = run();
        self.muted.store(false, Ordering::Relaxed);
        result
    }
}

impl Wake for WakeRelay {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.muted.load(Ordering::Relaxed) {
            self.woken.store(true, Ordering::Relaxed);
            self.user.wake();
        }
    }
}
