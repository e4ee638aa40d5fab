//! A task's shared part: what a waker on any thread needs of it.
//!
//! The future itself never leaves its worker and need not be `Send`; it lives in the worker's slab.
//! The header is what crosses threads: whether the task is queued, and where.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Wake;

use crate::inbox::Remote;
use crate::shared::WorkerShared;
use crate::worker;

/// The key of a worker's root future, which is not in the slab.
pub(crate) const ROOT: usize = usize::MAX;
/// The key of a task that its worker has not taken in yet.
pub(crate) const UNBORN: usize = usize::MAX - 1;

#[derive(Debug)]
pub(crate) struct Header {
    /// Where the task runs.
    pub(crate) worker: Arc<WorkerShared>,
    /// The task's place in its worker's slab. Written once, by the worker, before the first poll.
    key: AtomicUsize,
    /// Set by whoever queues the task, cleared by the worker just before a poll: so a task is queued
    /// at most once, and a wake during its poll queues it again.
    queued: AtomicBool,
    /// Set once; the worker drops the future instead of polling it.
    aborted: AtomicBool,
    /// Set once, when the future is gone: later wakes do nothing.
    finished: AtomicBool,
}

impl Header {
    pub(crate) fn new(worker: Arc<WorkerShared>, key: usize) -> Arc<Self> {
        Arc::new(Self {
            worker,
            key: AtomicUsize::new(key),
            queued: AtomicBool::new(false),
            aborted: AtomicBool::new(false),
            finished: AtomicBool::new(false),
        })
    }

    pub(crate) fn key(&self) -> usize {
        self.key.load(Ordering::Relaxed)
    }

    pub(crate) fn set_key(&self, key: usize) {
        self.key.store(key, Ordering::Relaxed);
    }

    /// Lets the next wake queue the task again. Acquires what the wakers before it released.
    pub(crate) fn begin_poll(&self) {
        self.queued.swap(false, Ordering::AcqRel);
    }

    pub(crate) fn finish(&self) {
        self.finished.store(true, Ordering::Release);
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Acquire)
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }

    pub(crate) fn abort(self: &Arc<Self>) {
        self.aborted.store(true, Ordering::Release);
        self.schedule();
    }

    /// Queues the task, unless it is queued already or gone.
    pub(crate) fn schedule(self: &Arc<Self>) {
        if self.is_finished() || self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        if !worker::push_if_current(self) {
            self.worker.send(Remote::Wake(Arc::clone(self)));
        }
    }
}

impl Wake for Header {
    fn wake(self: Arc<Self>) {
        self.schedule();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.schedule();
    }
}
