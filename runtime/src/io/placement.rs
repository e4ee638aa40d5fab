//! Which worker a connection belongs to.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::worker::OwnedQueue;
use crate::worker::worker_handle::WorkerHandle;
use crate::worker::{current, startup};

/// The worker that serves connections of this NAPI (`SO_INCOMING_NAPI_ID`). Id 0 means no NAPI, and
/// gives the worker with the fewest connections ([`CountedConnection`]).
#[doc(alias = "SO_INCOMING_NAPI_ID")]
#[track_caller]
pub fn worker_of_napi(napi: u32) -> usize {
    current::with(|worker| worker.runtime.worker_of_napi(napi))
}

/// The receive queues of the runtime's interface that this process serves, in order. Empty without
/// an interface, or where it has no NAPIs.
#[track_caller]
pub fn owned_queues() -> Vec<OwnedQueue> {
    current::with(|worker| worker.runtime.napis.queues())
}

/// The number that a packet of the interface's receive queue 0 has for a BPF program
/// (`SKF_AD_QUEUE`): 1 on hardware, 0 on veth.
#[doc(alias = "SKF_AD_QUEUE")]
#[track_caller]
pub fn first_queue_number() -> u32 {
    current::with(|worker| worker.runtime.napis.first_queue_number())
}

/// The NAPI that the calling worker polls, or would poll under a policy that polls. 0: it has none.
#[track_caller]
pub fn own_napi() -> u32 {
    current::with(|worker| worker.handle.napi.load(Ordering::Relaxed))
}

/// The value that sockets of this worker should set `SO_BUSY_POLL` to. `None` unless the policy
/// busy-polls and the kernel can't set the worker's epoll instance to do so (Linux before 6.9).
#[doc(alias = "SO_BUSY_POLL")]
#[track_caller]
pub fn socket_busy_poll() -> Option<Duration> {
    current::with(|worker| startup::socket_busy_poll(&worker.runtime, &worker.handle))
}

/// Counts as one connection of a worker while it lives. [`worker_of_napi`] gives connections
/// without a NAPI to the worker with the fewest.
#[derive(Debug)]
pub struct CountedConnection(Arc<WorkerHandle>);

impl CountedConnection {
    /// Adds one to the connections of a worker of this runtime.
    ///
    /// # Panics
    /// Outside of a runtime, or if there is no such worker.
    #[track_caller]
    pub fn on(worker: usize) -> Self {
        let handle = current::with(|current| Arc::clone(&current.runtime.workers[worker]));
        handle.connections.fetch_add(1, Ordering::Relaxed);
        Self(handle)
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
