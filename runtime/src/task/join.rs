//! Handles to spawned tasks.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use crate::coop;
use crate::task_core::cell::TaskRef;
use crate::task_core::header::ResultOwner;
use crate::task_core::identity::Id;
use crate::task_core::join_error::JoinError;
use crate::worker::worker_handle::WorkerHandle;

/// A spawned task. Awaiting it gives the task's result; dropping it detaches the task, which runs
/// on.
pub struct JoinHandle<T> {
    task: TaskRef<WorkerHandle>,
    taken: bool,
    /// The handle owns the result: it is `Send` only if the result is.
    result: PhantomData<T>,
}

// The result is in the task, not in the handle.
impl<T> Unpin for JoinHandle<T> {}

impl<T> JoinHandle<T> {
    /// # Safety
    /// `task` is the joiner's reference, `T` is the output of the task's future, and no other
    /// `JoinHandle` of this task exists.
    pub(crate) unsafe fn new(task: TaskRef<WorkerHandle>) -> Self {
        Self { task, taken: false, result: PhantomData }
    }

    /// Drops the task's future in its worker's next turn. Awaiting the handle then gives a
    /// cancelled [`JoinError`], unless the task had finished before.
    pub fn abort(&self) {
        self.task.abort();
    }

    /// A handle that can abort the task from any thread.
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle(self.task.clone())
    }

    /// Whether the task has returned, panicked or been dropped.
    pub fn is_finished(&self) -> bool {
        self.task.is_done()
    }

    /// The task's number, unique in this process.
    pub fn id(&self) -> Id {
        self.task.identity().id
    }

    /// The task's name ([`Builder::name`](super::Builder::name)).
    pub fn name(&self) -> Option<&str> {
        self.task.identity().name.as_deref().map(String::as_str)
    }

    pub(super) fn is_taken(&self) -> bool {
        self.taken
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    /// # Panics
    /// If it is polled again after it has returned the result.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(!self.taken, "a JoinHandle was polled after it had returned its result");
        ready!(coop::poll_budget(context));
        if !self.task.is_done() && self.task.join(context.waker()) {
            return Poll::Pending;
        }
        coop::spend();
        self.taken = true;
        // SAFETY: the task is done, this is its only joiner, and `T` is the output's type (`new`).
        match unsafe { self.task.take() } {
            Some(result) => Poll::Ready(result),
            None => unreachable!("a task that is done has a result until its joiner takes it"),
        }
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        if !self.taken && self.task.detach() == ResultOwner::Caller {
            // SAFETY: the task is done, this is its only joiner, and `PhantomData<T>` keeps the
            // handle on this thread unless the result is `Send`.
            unsafe { self.task.drop_result() };
        }
    }
}

opaque_debug!(JoinHandle<T>, "JoinHandle", [T], |it| "finished" = it.is_finished());

/// Aborts a task; see [`JoinHandle::abort`].
#[derive(Clone)]
pub struct AbortHandle(TaskRef<WorkerHandle>);

impl AbortHandle {
    /// Drops the task's future in its worker's next turn.
    pub fn abort(&self) {
        self.0.abort();
    }

    /// Whether the task has returned, panicked or been dropped.
    pub fn is_finished(&self) -> bool {
        self.0.is_done()
    }

    /// The task's number, unique in this process.
    pub fn id(&self) -> Id {
        self.0.identity().id
    }
}

opaque_debug!(AbortHandle, "AbortHandle");
