//! What a worker counts and times, in its own memory. Other threads read it.

use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) mod histogram;
pub(crate) mod worker_counters;

/// A counter that any thread may read.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds without a locked instruction. Only for a counter that one thread writes.
    pub(crate) fn add(&self, amount: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }

    pub(crate) fn increment(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
