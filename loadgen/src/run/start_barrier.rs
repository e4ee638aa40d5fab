//! Lets the workers of a run start and stop at the same time.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Lets the workers of a run start and stop at the same time.
#[derive(Debug, Default)]
pub(super) struct StartBarrier {
    ready: AtomicUsize,
    start: OnceLock<Instant>,
    pub(super) stop: Arc<AtomicBool>,
}

impl StartBarrier {
    /// The number of workers that wait for the start.
    pub(super) fn ready(&self) -> usize {
        self.ready.load(Ordering::SeqCst)
    }

    /// Sets the start, which may be in the future, unless it is set already. Returns the start.
    pub(super) fn start_at(&self, start: Instant) -> Instant {
        *self.start.get_or_init(|| start)
    }

    /// Reports a worker as ready, and waits until the start is set.
    pub(super) async fn wait(&self) -> Instant {
        self.ready.fetch_add(1, Ordering::SeqCst);
        loop {
            match self.start.get() {
                Some(start) => return *start,
                None => runtime::sleep(Duration::from_millis(1)).await,
            }
        }
    }
}
