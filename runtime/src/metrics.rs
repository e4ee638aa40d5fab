//! What a worker counts about itself.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;

/// A counter that any thread may read. Those that only the worker writes are added to without a
/// locked instruction.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds, from the only thread that writes.
    pub(crate) fn add(&self, amount: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }

    /// Adds one, from any thread.
    pub(crate) fn increment(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(crate) struct WorkerMetrics {
    pub(crate) turns: Counter,
    pub(crate) polls: Counter,
    pub(crate) remote_wakes: Counter,
    pub(crate) waits: Counter,
    pub(crate) forced_passes: Counter,
    pub(crate) events: Counter,
    pub(crate) received_bytes: Counter,
    pub(crate) running_ns: Counter,
    pub(crate) polling_ns: Counter,
    pub(crate) parked_ns: Counter,
}

/// What a worker has done since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Metrics {
    /// Turns of its loop: run tasks, wait, dispatch.
    pub turns: u64,
    /// Polls of tasks.
    pub polls: u64,
    /// Wake-ups that other threads wrote to it while it was parked.
    pub wakes: u64,
    /// Calls of `epoll_pwait2`.
    pub waits: u64,
    /// Of those, poll passes that were forced because a turn had seen only wake-ups.
    pub forced_passes: u64,
    /// Events that the waits returned.
    pub events: u64,
    /// Bytes that its sockets have received.
    pub received_bytes: u64,
    /// Time running tasks, in nanoseconds.
    pub running_ns: u64,
    /// Time in waits that don't block, in nanoseconds.
    pub polling_ns: u64,
    /// Time in waits that may block, in nanoseconds. Under kernel polling the kernel polls the
    /// queue in this time, before it puts the thread to sleep.
    pub parked_ns: u64,
}

impl Metrics {
    /// Mean events a wait.
    pub fn events_per_wait(&self) -> f64 {
        if self.waits == 0 { 0.0 } else { self.events as f64 / self.waits as f64 }
    }

    /// Time running tasks.
    pub fn running(&self) -> Duration {
        Duration::from_nanos(self.running_ns)
    }

    /// Time in waits that don't block.
    pub fn polling(&self) -> Duration {
        Duration::from_nanos(self.polling_ns)
    }

    /// Time in waits that may block.
    pub fn parked(&self) -> Duration {
        Duration::from_nanos(self.parked_ns)
    }
}

impl WorkerMetrics {
    pub(crate) fn read(&self) -> Metrics {
        Metrics {
            turns: self.turns.get(),
            polls: self.polls.get(),
            wakes: self.remote_wakes.get(),
            waits: self.waits.get(),
            forced_passes: self.forced_passes.get(),
            events: self.events.get(),
            received_bytes: self.received_bytes.get(),
            running_ns: self.running_ns.get(),
            polling_ns: self.polling_ns.get(),
            parked_ns: self.parked_ns.get(),
        }
    }
}
