//! What the application is called for: stalls, and the start and the stop of a worker.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use crate::task_core::identity::Id;

/// The application's functions that workers call.
#[derive(Clone, Default)]
pub(crate) struct Hooks {
    pub(crate) on_stall: Option<StallHook>,
    pub(crate) on_worker_start: Option<WorkerHook>,
    pub(crate) on_worker_stop: Option<WorkerHook>,
}

/// Called with a worker's number, on its thread.
pub(crate) type WorkerHook = Arc<dyn Fn(usize) + Send + Sync>;

opaque_debug!(
    Hooks,
    "Hooks",
    |it| "on_stall" = it.on_stall.is_some(),
    "on_worker_start" = it.on_worker_start.is_some(),
    "on_worker_stop" = it.on_worker_stop.is_some()
);

/// A poll of a task that took longer than
/// [`Builder::stall_threshold`](crate::Builder::stall_threshold).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stall {
    /// The worker whose timers, sockets and other tasks had to wait.
    pub worker: usize,
    /// The task's number, as [`JoinHandle::id`](crate::JoinHandle::id) returns it.
    pub id: Id,
    /// The task's name, if it has one ([`task::Builder::name`](crate::task::Builder::name)).
    pub name: Option<String>,
    /// Where the task was spawned; for the future of a `block_on`, where that was called.
    pub spawned: &'static Location<'static>,
    /// How long the poll took, give or take the kernel's tick (1 to 10 ms). This contains time in
    /// which the thread was not running.
    pub took: Duration,
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { worker, id, spawned, .. } = self;
        let name = self.name.as_deref().unwrap_or("without a name");
        let took = self.took.as_millis();
        write!(
            f,
            "task {id} ({name}), spawned or served at {spawned}, kept worker {worker} for {took} ms in one poll, while its other \
             tasks, timers and sockets waited: move what blocks or computes to runtime::spawn_blocking, and wrap the receives \
             of a loop over a channel in runtime::cooperative"
        )
    }
}

pub(crate) type StallHook = Arc<dyn Fn(&Stall) + Send + Sync>;
