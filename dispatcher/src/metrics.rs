//! What a dispatcher counts.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

/// Counts since a dispatcher was built, over all workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct DispatcherMetrics {
    /// Threads that run at present.
    pub threads: usize,
    /// Threads started since the dispatcher was built.
    pub started: u64,
    /// Connections that were closed without a thread: the limit was reached, or the system refused one.
    pub refused: u64,
    /// Threads woken because bytes had come.
    pub wakes: u64,
    /// Arrivals that found their thread running, or about to: no wake was needed.
    pub found_running: u64,
    /// Times that a worker stopped reading a connection because its buffer was full.
    pub full: u64,
    /// Bytes handed to threads.
    pub received_bytes: u64,
    /// Bytes that threads have written.
    pub sent_bytes: u64,
}

/// Workers beyond this many share counters.
const SHARDS: usize = 16;

/// The counters, one set for each worker, so that workers do not write to each other's cache lines.
#[derive(Debug, Default)]
pub(crate) struct Counters([Shard; SHARDS]);

/// The counters of one worker and its threads. Cache lines are fetched in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Shard {
    pub(crate) wakes: AtomicU64,
    pub(crate) found_running: AtomicU64,
    pub(crate) full: AtomicU64,
    pub(crate) received_bytes: AtomicU64,
    pub(crate) sent_bytes: AtomicU64,
}

pub(crate) fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn of(&self, worker: usize) -> &Shard {
        &self.0[worker % SHARDS]
    }

    pub(crate) fn read(&self) -> DispatcherMetrics {
        let sum = |counter: fn(&Shard) -> &AtomicU64| {
            self.0.iter().map(|shard| counter(shard).load(Ordering::Relaxed)).sum()
        };
        DispatcherMetrics {
            wakes: sum(|shard| &shard.wakes),
            found_running: sum(|shard| &shard.found_running),
            full: sum(|shard| &shard.full),
            received_bytes: sum(|shard| &shard.received_bytes),
            sent_bytes: sum(|shard| &shard.sent_bytes),
            ..DispatcherMetrics::default()
        }
    }
}
