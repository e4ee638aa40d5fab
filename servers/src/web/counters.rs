//! What the server counts, for each worker.

use std::sync::atomic::{AtomicU64, Ordering};

use hyper::StatusCode;

/// One worker's counters, on cache lines that no other worker writes.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct WorkerCounters {
    /// By the first digit of the status, from 1 on.
    responses: [AtomicU64; 5],
    bytes: AtomicU64,
    connections: AtomicU64,
}

/// The counters of all workers.
#[derive(Debug)]
pub struct Counters(Box<[WorkerCounters]>);

/// Sums over all workers.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Responses by the first digit of their status, from 1 on.
    pub responses: [u64; 5],
    /// Bytes of bodies that were handed to connections.
    pub bytes: u64,
    /// Connections that were served, after their TLS handshake if they have one.
    pub connections: u64,
    /// Connections that were closed at once, as there were too many and none was idle.
    pub refused: u64,
    /// Idle connections that were closed for new ones.
    pub closed_idle: u64,
    /// How often no connection could be accepted, for want of descriptors or memory.
    pub accept_errors: u64,
}

impl Counters {
    pub fn new(workers: usize) -> Self {
        Self((0..workers).map(|_| WorkerCounters::default()).collect())
    }

    /// Those of the calling worker.
    pub fn worker(&self) -> &WorkerCounters {
        &self.0[runtime::current_worker()]
    }

    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for worker in &self.0 {
            for (total, count) in totals.responses.iter_mut().zip(&worker.responses) {
                *total += count.load(Ordering::Relaxed);
            }
            totals.bytes += worker.bytes.load(Ordering::Relaxed);
            totals.connections += worker.connections.load(Ordering::Relaxed);
        }
        totals
    }
}

/// Only its worker writes a counter, so no atomic addition is needed.
fn add(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
}

impl WorkerCounters {
    pub fn count_response(&self, status: StatusCode) {
        // hyper's statuses are 100 to 999; those from 600 on are nobody's.
        let class = usize::from(status.as_u16() / 100).clamp(1, 5);
        add(&self.responses[class - 1], 1);
    }

    pub fn count_bytes(&self, bytes: u64) {
        add(&self.bytes, bytes);
    }

    pub fn count_connection(&self) {
        add(&self.connections, 1);
    }
}
