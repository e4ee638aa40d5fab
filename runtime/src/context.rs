//! The runtime and the worker that the calling task runs on.

use policies::Policy;

use crate::counters::worker_counters::Metrics;
use crate::worker::current;
use crate::worker::report::WorkerReport;

/// The number of workers of this runtime.
#[track_caller]
pub fn workers() -> usize {
    current::runtime().workers.len()
}

/// The number of the calling worker, from 0.
#[track_caller]
pub fn current_worker() -> usize {
    current::with(|worker| worker.handle.index)
}

/// What is in effect on each worker of this runtime.
#[track_caller]
pub fn reports() -> Vec<WorkerReport> {
    current::runtime().reports()
}

/// The counters of each worker of this runtime.
#[track_caller]
pub fn metrics() -> Vec<Metrics> {
    current::runtime().metrics()
}

/// The policy that was asked for.
#[track_caller]
pub fn policy() -> Policy {
    current::runtime().config.policy
}
