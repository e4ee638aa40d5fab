//! What the application is called for.

use std::fmt;
use std::sync::Arc;

use crate::worker::stall::StallHook;

/// The application's functions that workers call.
#[derive(Clone, Default)]
pub(crate) struct Hooks {
    pub(crate) on_stall: Option<StallHook>,
    pub(crate) on_worker_start: Option<WorkerHook>,
    pub(crate) on_worker_stop: Option<WorkerHook>,
}

/// Called with a worker's number, on its thread.
pub(crate) type WorkerHook = Arc<dyn Fn(usize) + Send + Sync>;

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks")
            .field("on_stall", &self.on_stall.is_some())
            .field("on_worker_start", &self.on_worker_start.is_some())
            .field("on_worker_stop", &self.on_worker_stop.is_some())
            .finish()
    }
}
