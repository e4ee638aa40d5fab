//! What other threads see of a worker.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use policies::Cpus;
use policies::controller::QueueSettings;

use super::report::WorkerReport;
use crate::counters::{Metrics, WorkerCounters};
use crate::inbox::Inbox;
use crate::task_core::cell::{NewTask, TaskRef};
use crate::timers::monotonic_nanos;
use crate::wake_handle::WakeHandle;

pub(crate) enum Message {
    /// Queue a task, which was woken at [`WorkerHandle::wake_time`].
    Wake(TaskRef<WorkerHandle>, u64),
    /// Adopt a task that was spawned on another thread, at [`WorkerHandle::wake_time`].
    Adopt(NewTask<WorkerHandle>, u64),
    CheckStop,
}

/// A worker's inbox, counters and placement. Tasks hold a reference to their worker's.
pub(crate) struct WorkerHandle {
    pub(crate) index: usize,
    pub(crate) inbox: Inbox<Message>,
    pub(crate) wake: Arc<WakeHandle>,
    pub(crate) stop: AtomicBool,
    pub(crate) counters: WorkerCounters,
    /// The NAPI whose sockets the worker's epoll instance holds. 0: none.
    pub(crate) napi: AtomicU32,
    pub(crate) connections: AtomicUsize,
    report: Mutex<Option<WorkerReport>>,
    pub(crate) thread: OnceLock<i32>,
    /// Whether the thread runs the worker's loop. Between two `block_on`s worker 0's is its
    /// caller's.
    in_loop: Mutex<bool>,
    /// The core that handles its queue's interrupt, if the worker follows that.
    followed_core: AtomicU32,
}

const NO_CORE: u32 = u32::MAX;

impl WorkerHandle {
    pub(crate) fn new(index: usize, counters: WorkerCounters) -> std::io::Result<Self> {
        Ok(Self {
            index,
            inbox: Inbox::default(),
            wake: Arc::new(WakeHandle::new()?),
            stop: AtomicBool::new(false),
            counters,
            napi: AtomicU32::new(0),
            connections: AtomicUsize::new(0),
            report: Mutex::new(None),
            thread: OnceLock::new(),
            in_loop: Mutex::new(false),
            followed_core: AtomicU32::new(NO_CORE),
        })
    }

    /// Sends a message, and wakes the worker at once if it is parked. The message is dropped if the
    /// worker has stopped.
    pub(crate) fn send(&self, message: Message) {
        if self.push(message) {
            self.wake.wake();
        }
    }

    /// Pushes a message; whether the worker is parked and has to be woken.
    #[must_use]
    pub(super) fn push(&self, message: Message) -> bool {
        if let Err(refused) = self.inbox.push(message) {
            // Dropped outside the lock: a task's joiner is woken.
            drop(refused);
            return false;
        }
        self.wake.park_state.is_parked()
    }

    /// The time at which a task is woken, on the monotonic clock; 0, without a look at the clock,
    /// unless schedule latency is recorded.
    pub(crate) fn wake_time(&self) -> u64 {
        if self.counters.schedule_latency.is_some() { monotonic_nanos() } else { 0 }
    }

    pub(crate) fn request_stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.send(Message::CheckStop);
    }

    pub(crate) fn metrics(&self) -> Metrics {
        self.counters.read(self.wake.wakes())
    }

    pub(crate) fn report(&self) -> Option<WorkerReport> {
        self.locked_report().clone()
    }

    /// Reports the settings with which the worker's queue is driven now.
    pub(crate) fn set_queue_settings(&self, settings: QueueSettings) {
        if let Some(report) = &mut *self.locked_report() {
            report.set_queue_settings(settings);
        }
    }

    pub(crate) fn locked_report(&self) -> MutexGuard<'_, Option<WorkerReport>> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The core given to [`WorkerHandle::follow`] last.
    pub(crate) fn followed_core(&self) -> Option<u32> {
        Some(self.followed_core.load(Ordering::Acquire)).filter(|&core| core != NO_CORE)
    }

    pub(super) fn set_in_loop(&self, in_loop: bool) {
        *self.in_loop.lock().unwrap_or_else(PoisonError::into_inner) = in_loop;
    }

    /// Reports the core that the worker's thread was pinned to.
    pub(super) fn report_core(&self, core: u32) {
        if let Some(report) = &mut *self.locked_report() {
            report.core = Some(core);
        }
    }

    /// Moves the worker's thread to a core, or lets a thread that doesn't run the worker now start
    /// there. A core that this process may not use leaves the worker where it is.
    pub(crate) fn follow(&self, core: u32) {
        if !Cpus::allowed().is_ok_and(|allowed| allowed.contains(core)) {
            return;
        }
        self.followed_core.store(core, Ordering::Release);
        // Locked until the thread is pinned: afterwards it may not be the worker's any more.
        let in_loop = self.in_loop.lock().unwrap_or_else(PoisonError::into_inner);
        if !*in_loop {
            return;
        }
        let Some(thread) = self.thread.get().and_then(|&thread| rustix::thread::Pid::from_raw(thread)) else {
            return;
        };
        if Cpus::one(core).pin(Some(thread)).is_ok() {
            self.report_core(core);
        }
    }
}

opaque_debug!(WorkerHandle, "WorkerHandle", |it| "index" = it.index);
