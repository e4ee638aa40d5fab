//! The worker of an endpoint.

use runtime::Handle;

/// One worker, as quinn's [`Runtime`](::quinn::Runtime): the endpoint that is made with it, and its
/// connections, run there, wherever their handles are used.
#[derive(Debug, Clone)]
pub struct Runtime {
    handle: Handle,
    worker: usize,
}

impl Runtime {
    /// The worker of the calling task.
    pub fn current() -> Self {
        Self::of_worker(runtime::current_worker())
    }

    pub(super) fn of_worker(worker: usize) -> Self {
        Self { handle: Handle::current(), worker }
    }

    #[track_caller]
    pub(super) fn spawn_with<F, Fut>(&self, make: F) -> runtime::JoinHandle<Fut::Output>
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output: Send + 'static> + 'static,
    {
        self.handle.spawn_on(self.worker, make)
    }
}
