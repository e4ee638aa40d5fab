//! A worker's counters.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;

/// A counter that any thread may read.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds without a locked instruction. Only for a counter that one thread writes.
    pub(crate) fn add(&self, amount: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }

    /// Adds one, from any thread.
    pub(crate) fn increment(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters that only the worker writes.
#[derive(Debug, Default)]
pub(crate) struct WorkerCounters {
    pub(crate) turns: Counter,
    pub(crate) polls: Counter,
    pub(crate) forced_yields: Counter,
    pub(crate) stalls: Counter,
    pub(crate) waits: Counter,
    pub(crate) forced_passes: Counter,
    pub(crate) events: Counter,
    pub(crate) received_bytes: Counter,
    pub(crate) running_ns: Counter,
    pub(crate) polling_ns: Counter,
    pub(crate) parked_ns: Counter,
}

/// A worker's counters since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Metrics {
    /// Turns of its loop: run tasks, wait, dispatch.
    pub turns: u64,
    /// Polls of tasks, those of the future of `block_on` included.
    pub polls: u64,
    /// Polls that were made to yield, because they had completed 128 operations (receives, sends, accepts, timers) and
    /// asked for more.
    pub forced_yields: u64,
    /// Polls that took longer than [`Builder::stall_threshold`](crate::Builder::stall_threshold).
    pub stalls: u64,
    /// Times that another thread has woken it while it was parked.
    pub wakes: u64,
    /// System calls that wait, poll or submit: `epoll_pwait2` on the instance that the worker waits in, and
    /// `io_uring_enter`.
    pub waits: u64,
    /// Extra poll passes, made because a wait had returned only wake-ups or events of the other epoll instance,
    /// without polling the NAPI.
    pub forced_passes: u64,
    /// Events of descriptors and received buffers that the waits returned.
    pub events: u64,
    /// Bytes that its sockets have received.
    pub received_bytes: u64,
    /// Time spent running tasks, in nanoseconds.
    pub running_ns: u64,
    /// Time spent in waits that don't block, in nanoseconds.
    pub polling_ns: u64,
    /// Time spent in waits that may block, in nanoseconds. Under kernel polling this includes the time in
    /// which the kernel polls the queue before it puts the thread to sleep.
    pub parked_ns: u64,
}

impl Metrics {
    /// Mean number of events per wait; 0 without waits.
    pub fn events_per_wait(&self) -> f64 {
        if self.waits == 0 { 0.0 } else { self.events as f64 / self.waits as f64 }
    }

    /// [`running_ns`](Self::running_ns) as a duration.
    pub fn running(&self) -> Duration {
        Duration::from_nanos(self.running_ns)
    }

    /// [`polling_ns`](Self::polling_ns) as a duration.
    pub fn polling(&self) -> Duration {
        Duration::from_nanos(self.polling_ns)
    }

    /// [`parked_ns`](Self::parked_ns) as a duration.
    pub fn parked(&self) -> Duration {
        Duration::from_nanos(self.parked_ns)
    }
}

impl WorkerCounters {
    /// Reads the counters; `wakes` is counted by the threads that wake the worker.
    pub(crate) fn read(&self, wakes: u64) -> Metrics {
        Metrics {
            turns: self.turns.get(),
            polls: self.polls.get(),
            forced_yields: self.forced_yields.get(),
            stalls: self.stalls.get(),
            wakes,
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
