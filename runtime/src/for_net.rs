//! What `lull-net` takes connections and sockets from, and `lull-adapters` starts its thread by. The
//! crates are released together, so it may change in every release: applications use `net`, or
//! [`io`](crate::io).

use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use policies::socket_options::incoming_napi_id;
pub use policies::socket_options::{peer_credentials, steer_by_queue};

use crate::driver::readiness::SourceKind;
pub use crate::driver::uring::socket::{RingListener, RingSocket};
pub use crate::driver::uring::socket_state::Received;
pub use crate::io::{OnItsWorker, StaysOnItsWorkerUseRuntimeSpawn};
pub use crate::thread_settings::with_settings_from_before;
pub use crate::worker::napi_map::OwnedQueue;
use crate::worker::worker_handle::WorkerHandle;
use crate::worker::{current, startup};

/// Takes a connected stream socket onto this worker's ring. `None` where the worker's driver has no
/// ring ([`DriverKind::Epoll`](crate::DriverKind::Epoll)): use an [`AsyncFd`](crate::io::AsyncFd)
/// there.
#[track_caller]
pub fn ring_socket(descriptor: Arc<impl AsFd + 'static>, kind: SourceKind) -> Option<RingSocket> {
    current::with(|worker| {
        let ring = worker.driver.ring()?;
        let in_queue = match kind {
            SourceKind::Napi(id) => id != 0 && id == worker.handle.napi.load(Ordering::Relaxed),
            SourceKind::Datagrams | SourceKind::Other => false,
        };
        Some(RingSocket::new(Rc::clone(ring), descriptor, in_queue))
    })
}

/// Takes a listening socket onto this worker's ring. `None` where the worker's driver has no ring.
#[track_caller]
pub fn ring_listener(descriptor: Arc<impl AsFd + 'static>) -> Option<RingListener> {
    current::with(|worker| {
        let ring = worker.driver.ring()?;
        Some(RingListener::new(Rc::clone(ring), descriptor))
    })
}

/// `SO_INCOMING_NAPI_ID` of a socket that a worker takes on. 0 without an interface, where nothing
/// depends on it: it costs a system call for each connection.
#[track_caller]
pub fn napi_of(socket: &impl AsFd) -> u32 {
    let is_named = current::with(|worker| worker.runtime.config.interface.is_some());
    if is_named { incoming_napi_id(socket) } else { 0 }
}

/// The worker that serves connections of this NAPI (`SO_INCOMING_NAPI_ID`), because it owns the
/// queue. Where none does, and for id 0, that with the fewest connections ([`CountedConnection`]),
/// and of several the calling one.
#[track_caller]
pub fn worker_of_napi(napi: u32) -> usize {
    current::with(|worker| worker.runtime.worker_of_napi(napi, worker.handle.index))
}

/// The receive queues of the runtime's interface that this process serves, in order. Empty without
/// an interface, or where it has no NAPIs.
#[track_caller]
pub fn owned_queues() -> Vec<OwnedQueue> {
    current::with(|worker| worker.runtime.napis.queues())
}

/// The number that a packet of the interface's receive queue 0 has for a BPF program
/// (`SKF_AD_QUEUE`): 1 on hardware, 0 on veth.
#[track_caller]
pub fn first_queue_number() -> u32 {
    current::with(|worker| worker.runtime.napis.first_queue_number())
}

/// The value that sockets of this worker should set `SO_BUSY_POLL` to. `None` unless the policy
/// busy-polls and the kernel can't set the worker's epoll instance to do so (Linux before 6.9).
#[track_caller]
pub fn socket_busy_poll() -> Option<Duration> {
    current::with(|worker| startup::socket_busy_poll(&worker.runtime, &worker.handle))
}

/// Counts as one connection of a worker while it lives. [`worker_of_napi`] gives connections
/// without a NAPI to the worker with the fewest.
#[derive(Debug)]
pub struct CountedConnection(Arc<WorkerHandle>);

impl CountedConnection {
    /// Adds one to the connections of a worker of this runtime, which must exist.
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
