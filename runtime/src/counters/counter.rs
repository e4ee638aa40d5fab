//! A counter that any thread may read.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter that any thread may read.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds without a locked instruction. Only for a counter that one thread writes.
    pub(crate) fn add(&self, amount: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }

    /// Replaces the value. Only for a counter that one thread writes.
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Adds one, from any thread.
    pub(crate) fn increment(&self) {
        self.add_shared(1);
    }

    /// Adds, from any thread.
    pub(crate) fn add_shared(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
