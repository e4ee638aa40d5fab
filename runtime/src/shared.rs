//! What other threads may know of a worker.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::inbox::{Inbox, Notify, Remote};
use crate::metrics::WorkerMetrics;
use crate::report::WorkerReport;
use crate::worker;

pub(crate) struct WorkerShared {
    pub(crate) index: usize,
    pub(crate) inbox: Inbox,
    /// Readable when the worker was woken while parked.
    pub(crate) wake: OwnedFd,
    /// The ring that the worker waits in, while it does.
    ring: Mutex<Option<Arc<OwnedFd>>>,
    pub(crate) stop: AtomicBool,
    pub(crate) metrics: WorkerMetrics,
    /// The NAPI whose sockets the worker's epoll instance holds; 0 is none.
    pub(crate) napi: AtomicU32,
    /// Connections that the worker serves.
    pub(crate) load: AtomicUsize,
    pub(crate) report: Mutex<Option<WorkerReport>>,
    pub(crate) thread: OnceLock<i32>,
}

impl WorkerShared {
    pub(crate) fn new(index: usize) -> std::io::Result<Self> {
        Ok(Self {
            index,
            inbox: Inbox::default(),
            wake: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            ring: Mutex::new(None),
            stop: AtomicBool::new(false),
            metrics: WorkerMetrics::default(),
            napi: AtomicU32::new(0),
            load: AtomicUsize::new(0),
            report: Mutex::new(None),
            thread: OnceLock::new(),
        })
    }

    /// Sends a message to the worker, waking it if it is parked. Dropped if the worker has stopped.
    pub(crate) fn send(self: &Arc<Self>, message: Remote) {
        match self.inbox.push(message) {
            Ok(Notify::Yes) => {
                self.metrics.remote_wakes.increment();
                if !worker::take_wake(self) {
                    self.write_eventfd();
                }
            }
            Ok(Notify::No) => {}
            // Dropped here, outside the lock: a task's joiner learns that it was cancelled.
            Err(_refused) => {}
        }
    }

    pub(crate) fn request_stop(self: &Arc<Self>) {
        self.stop.store(true, Ordering::SeqCst);
        self.send(Remote::Look);
    }

    /// The ring to which a message wakes the worker.
    pub(crate) fn ring(&self) -> Option<Arc<OwnedFd>> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_ring(&self, ring: Option<OwnedFd>) {
        *self.ring.lock().unwrap_or_else(PoisonError::into_inner) = ring.map(Arc::new);
    }

    pub(crate) fn write_eventfd(&self) {
        // Fails only when the counter is full (EAGAIN), and then the worker is awake already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    pub(crate) fn drain_eventfd(&self) {
        let mut count = [0; 8];
        // EAGAIN: another turn has drained it.
        let _ = rustix::io::read(&self.wake, &mut count);
    }
}

impl fmt::Debug for WorkerShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerShared").field("index", &self.index).finish_non_exhaustive()
    }
}
