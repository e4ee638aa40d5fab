//! Polls that kept their worker for too long.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

/// A poll of a task that took longer than [`Builder::stall_threshold`](crate::Builder::stall_threshold).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stall {
    /// The worker whose timers, sockets and other tasks had to wait.
    pub worker: usize,
    /// Where the task was spawned; for the future of a `block_on`, where that was called.
    pub spawned: &'static Location<'static>,
    /// How long the poll took, give or take the kernel's tick (1 to 10 ms). This contains time in which the thread was
    /// not running.
    pub took: Duration,
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { worker, spawned, took } = self;
        write!(
            f,
            "a task kept worker {worker} for {} ms in one poll; it was spawned at {spawned}",
            took.as_millis()
        )
    }
}

/// What is called on each stall, on the worker that stalled.
pub(crate) type StallHook = Arc<dyn Fn(&Stall) + Send + Sync>;
