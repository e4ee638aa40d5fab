//! What other threads may know of a worker.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use policies::Cpus;
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
    /// The core that its queue's interrupt goes to, where it follows that.
    followed_core: AtomicU32,
}

const NO_CORE: u32 = u32::MAX;

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
            followed_core: AtomicU32::new(NO_CORE),
        })
    }

    /// Sends a message to the worker, waking it if it is parked. Dropped if the worker has stopped.
    pub(crate) fn send(self: &Arc<Self>, message: Remote) {
        // A new task may be awaited by blocking the thread, and so may the end of a worker: they are not
        // put off until this thread's worker has done its turn.
        let may_wait = matches!(message, Remote::Wake(_));
        if let Err(refused) = self.inbox.push(message) {
            // Here, outside the lock: a task's joiner learns that it was cancelled.
            drop(refused);
            return;
        }
        if self.inbox.is_parked() && !(may_wait && worker::take_wake(self)) {
            self.wake_up();
        }
    }

    /// The core that the worker was told to follow its interrupt to.
    pub(crate) fn followed_core(&self) -> Option<u32> {
        Some(self.followed_core.load(Ordering::Acquire)).filter(|&core| core != NO_CORE)
    }

    /// Moves the worker's thread to a core, or has it start there.
    pub(crate) fn follow(&self, core: u32) {
        // A core that this process may not use leaves the worker where it is.
        if !Cpus::allowed().is_ok_and(|allowed| allowed.contains(core)) {
            return;
        }
        self.followed_core.store(core, Ordering::Release);
        let Some(thread) = self.thread.get().and_then(|&thread| rustix::thread::Pid::from_raw(thread)) else {
            return;
        };
        if Cpus::one(core).pin(Some(thread)).is_ok()
            && let Some(report) = &mut *self.report.lock().unwrap_or_else(PoisonError::into_inner)
        {
            report.core = Some(core);
        }
    }

    /// Claims the worker's wake-up; `false` if it needs none, or somebody else has.
    pub(crate) fn claim_wake(&self) -> bool {
        let claimed = self.inbox.notify() == Notify::Yes;
        if claimed {
            self.metrics.remote_wakes.increment();
        }
        claimed
    }

    /// Wakes the worker by its eventfd, if it is parked.
    pub(crate) fn wake_up(&self) {
        if self.claim_wake() {
            self.write_eventfd();
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
