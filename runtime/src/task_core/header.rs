//! The part of a task that any thread may touch: its flags, its worker, and the joiner's waker.
//!
//! | field | written by | meaning |
//! |---|---|---|
//! | `references` | any thread | counts [`TaskRef`](super::cell::TaskRef)s; the last one frees the task |
//! | `identity` | nobody | the task's number, name and place, for reports |
//! | `span` | nobody | the number of the task's span, for what wakers record |
//! | `key` | the worker | index into the worker's task slab |
//! | `queued` | the worker, or the thread that drops a refused new task | the task is in the run queue, or finished: local wakes do nothing |
//! | `remote_wake_pending` | any thread | a wake message is in the worker's inbox |
//! | `aborted` | any thread | the worker drops the future instead of polling it |
//! | `outcome` | worker and joiner | `DONE`, `JOINING` and `DETACHED`, see below |

use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::identity::Identity;
use super::span::SpanId;
use crate::sync::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Mutex, Ordering, contain_panic, lock};

/// The key of a worker's root future, which is not in the slab.
pub(crate) const ROOT: u32 = u32::MAX;
/// A key that no task has.
pub(crate) const NO_TASK: u32 = u32::MAX - 1;

const DONE: u8 = 1;
const JOINING: u8 = 2;
/// The join handle was dropped; nobody will take the result.
const DETACHED: u8 = 4;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ResultOwner {
    JoinHandle,
    Caller,
}

/// The functions that know the task's type.
pub(crate) struct TaskVtable<S: 'static> {
    /// Polls the future, and stores the result when there is one.
    pub(crate) poll: unsafe fn(NonNull<Header<S>>, &mut Context<'_>) -> Poll<()>,
    /// Drops the future, and stores that it was cancelled.
    pub(crate) cancel: unsafe fn(NonNull<Header<S>>),
    /// Moves the result to an `Option<Result<F::Output, JoinError>>`.
    pub(crate) take: unsafe fn(NonNull<Header<S>>, NonNull<()>),
    pub(crate) drop_result: unsafe fn(NonNull<Header<S>>),
    pub(crate) free: unsafe fn(NonNull<Header<S>>),
}

/// A task's shared part. `S` is the worker that the task runs on, as other threads see it.
pub(crate) struct Header<S: 'static> {
    pub(crate) references: AtomicUsize,
    pub(crate) vtable: &'static TaskVtable<S>,
    pub(crate) scheduler: Arc<S>,
    pub(crate) identity: Identity,
    pub(crate) span: SpanId,
    key: AtomicU32,
    /// Only the worker's thread reads and writes it, so a local wake needs no atomic
    /// read-modify-write.
    queued: AtomicBool,
    remote_wake_pending: AtomicBool,
    aborted: AtomicBool,
    outcome: AtomicU8,
    join_waker: Mutex<Option<Waker>>,
}

impl<S> Header<S> {
    /// Starts with two references: the worker's and the join handle's.
    pub(crate) fn new(
        scheduler: Arc<S>,
        key: u32,
        identity: Identity,
        span: SpanId,
        vtable: &'static TaskVtable<S>,
    ) -> Self {
        Self {
            references: AtomicUsize::new(2),
            vtable,
            scheduler,
            identity,
            span,
            key: AtomicU32::new(key),
            queued: AtomicBool::new(false),
            remote_wake_pending: AtomicBool::new(false),
            aborted: AtomicBool::new(false),
            outcome: AtomicU8::new(0),
            join_waker: Mutex::new(None),
        }
    }

    pub(crate) fn key(&self) -> u32 {
        self.key.load(Ordering::Relaxed)
    }

    pub(crate) fn set_key(&self, key: u32) {
        self.key.store(key, Ordering::Relaxed);
    }

    /// Marks the task as queued. `false` if it is queued or finished already. Worker's thread only.
    pub(crate) fn mark_queued(&self) -> bool {
        let queued = self.queued.load(Ordering::Relaxed);
        if !queued {
            self.queued.store(true, Ordering::Relaxed);
        }
        !queued
    }

    /// Lets the next wake queue the task again. Called before the poll, so that a wake during it
    /// counts.
    pub(crate) fn begin_poll(&self) {
        self.queued.store(false, Ordering::Relaxed);
    }

    /// Claims the sending of a wake message. `false` if one is in the inbox already.
    pub(crate) fn claim_remote_wake(&self) -> bool {
        !self.remote_wake_pending.swap(true, Ordering::AcqRel)
    }

    /// The worker has taken the wake message out of its inbox. The next remote wake sends a new
    /// one; the poll that follows sees what the waking thread wrote before its wake.
    pub(crate) fn acknowledge_remote_wake(&self) {
        self.remote_wake_pending.swap(false, Ordering::AcqRel);
    }

    pub(crate) fn mark_aborted(&self) {
        self.aborted.store(true, Ordering::Release);
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }

    pub(crate) fn complete(&self) -> ResultOwner {
        self.queued.store(true, Ordering::Relaxed);
        let before = self.outcome.fetch_or(DONE, Ordering::AcqRel);
        if before & DETACHED != 0 {
            return ResultOwner::Caller;
        }
        if before & JOINING != 0 {
            // Woken outside the lock: the waker may be foreign code.
            let waker = lock(&self.join_waker).take();
            // Its panic must not stop the worker, as in tokio.
            contain_panic(|| waker.into_iter().for_each(Waker::wake));
        }
        ResultOwner::JoinHandle
    }

    pub(crate) fn is_done(&self) -> bool {
        self.outcome.load(Ordering::Acquire) & DONE != 0
    }

    /// Stores the joiner's waker. `false` if the task has completed meanwhile.
    pub(crate) fn join(&self, waker: &Waker) -> bool {
        let waker = waker.clone();
        let replaced = lock(&self.join_waker).replace(waker);
        drop(replaced);
        self.outcome.fetch_or(JOINING, Ordering::AcqRel) & DONE == 0
    }

    /// The join handle is dropped without taking the result.
    pub(crate) fn detach(&self) -> ResultOwner {
        let before = self.outcome.fetch_or(DETACHED, Ordering::AcqRel);
        if before & DONE != 0 {
            return ResultOwner::Caller;
        }
        // A waker holds a reference to its task, which nothing needs any more.
        let waker = lock(&self.join_waker).take();
        drop(waker);
        ResultOwner::JoinHandle
    }
}
