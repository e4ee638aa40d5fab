//! Tasks: one allocation each, with the future, its result, and what wakers need.
//!
//! The future never leaves its worker and need not be `Send`. What crosses threads is the header.

mod cell;
mod join;

use std::sync::Arc;
use std::task::Waker;

pub(crate) use self::cell::{TaskRef, Unborn};
pub use self::join::{AbortHandle, JoinError, JoinHandle};
use crate::inbox::Remote;
use crate::shared::WorkerShared;
use crate::sync::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Mutex, Ordering, lock};
use crate::worker;

/// The key of a worker's root future, which is not in the slab.
pub(crate) const ROOT: u32 = u32::MAX;

/// The result is there.
const DONE: u8 = 1;
/// A joiner has left its waker.
const JOINING: u8 = 2;
/// Nobody will take the result.
const DETACHED: u8 = 4;

/// Who has to drop a result that nobody takes.
#[derive(Debug, PartialEq, Eq)]
enum Result {
    /// It stays for the joiner.
    Kept,
    /// The caller, now.
    Unwanted,
}

/// A task's shared part.
pub(crate) struct Header {
    /// How many references there are; the last one frees the task.
    references: AtomicUsize,
    calls: &'static cell::Calls,
    /// Where the task runs.
    worker: Arc<WorkerShared>,
    /// The task's place in its worker's slab. Only the worker's thread uses it.
    key: AtomicU32,
    /// Whether the task is in its worker's queue, or over. Only the worker's thread uses it: so a wake
    /// there costs no atomic operation.
    queued: AtomicBool,
    /// Whether another thread's wake is on its way.
    sent: AtomicBool,
    /// Set once; the worker drops the future instead of polling it.
    aborted: AtomicBool,
    outcome: AtomicU8,
    joiner: Mutex<Option<Waker>>,
}

impl Header {
    /// With two references: the worker's, and the joiner's.
    fn new(worker: Arc<WorkerShared>, key: u32, calls: &'static cell::Calls) -> Self {
        Self {
            references: AtomicUsize::new(2),
            calls,
            worker,
            key: AtomicU32::new(key),
            queued: AtomicBool::new(false),
            sent: AtomicBool::new(false),
            aborted: AtomicBool::new(false),
            outcome: AtomicU8::new(0),
            joiner: Mutex::new(None),
        }
    }

    pub(crate) fn worker(&self) -> &Arc<WorkerShared> {
        &self.worker
    }

    pub(crate) fn key(&self) -> u32 {
        self.key.load(Ordering::Relaxed)
    }

    pub(crate) fn set_key(&self, key: u32) {
        self.key.store(key, Ordering::Relaxed);
    }

    /// Notes that the worker queues the task; `false` if it is queued already, or over.
    pub(crate) fn enqueue(&self) -> bool {
        let queued = self.queued.load(Ordering::Relaxed);
        if !queued {
            self.queued.store(true, Ordering::Relaxed);
        }
        !queued
    }

    /// Lets the next wake queue the task again: called before the poll, so that a wake during it counts.
    pub(crate) fn begin_poll(&self) {
        self.queued.store(false, Ordering::Relaxed);
    }

    /// Takes note of another thread's wake. From here on the next one sends again; what that thread
    /// wrote before it is seen by the poll that follows.
    pub(crate) fn take_in(&self) {
        self.sent.swap(false, Ordering::AcqRel);
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }

    /// Notes that the result is there, and wakes the joiner.
    fn complete(&self) -> Result {
        self.queued.store(true, Ordering::Relaxed);
        let before = self.outcome.fetch_or(DONE, Ordering::AcqRel);
        if before & DETACHED != 0 {
            return Result::Unwanted;
        }
        if before & JOINING != 0 {
            // Woken outside the lock: a waker may be foreign, and do as it likes.
            let waker = lock(&self.joiner).take();
            waker.into_iter().for_each(Waker::wake);
        }
        Result::Kept
    }

    fn is_done(&self) -> bool {
        self.outcome.load(Ordering::Acquire) & DONE != 0
    }

    /// Leaves a waker for the end; `false` if the end was faster.
    fn join(&self, waker: &Waker) -> bool {
        let waker = waker.clone();
        let replaced = lock(&self.joiner).replace(waker);
        drop(replaced);
        self.outcome.fetch_or(JOINING, Ordering::AcqRel) & DONE == 0
    }

    /// Notes that nobody will take the result.
    fn detach(&self) -> Result {
        let before = self.outcome.fetch_or(DETACHED, Ordering::AcqRel);
        if before & DONE != 0 {
            return Result::Unwanted;
        }
        // A waker keeps its task; nobody waits any more.
        let waker = lock(&self.joiner).take();
        drop(waker);
        Result::Kept
    }
}

impl TaskRef {
    /// Queues the task, unless it is queued already or over. From any thread.
    pub(crate) fn schedule(&self) {
        if !worker::push_if_current(self) && !self.sent.swap(true, Ordering::AcqRel) {
            self.worker.send(Remote::Wake(self.clone()));
        }
    }

    fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
        self.schedule();
    }
}
