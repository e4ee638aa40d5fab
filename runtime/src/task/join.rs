//! Handles to spawned tasks.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::Result as Outcome;
use super::cell::{Payload, TaskRef};

/// A spawned task. Awaiting it gives the task's result; dropping it lets the task run on.
#[must_use = "dropping a JoinHandle detaches the task; write `drop(…)` if that is meant"]
pub struct JoinHandle<T> {
    task: TaskRef,
    /// The result has been given out.
    taken: bool,
    /// It owns the result: it may go where that may go.
    result: PhantomData<T>,
}

// The result is not in the handle.
impl<T> Unpin for JoinHandle<T> {}

impl<T> JoinHandle<T> {
    /// # Safety
    /// `T` is the output of the task's future, and `task` the reference of its one joiner.
    pub(crate) unsafe fn new(task: TaskRef) -> Self {
        Self { task, taken: false, result: PhantomData }
    }

    /// Drops the task's future at its worker's next turn. Awaiting the handle then gives an error,
    /// unless the task had finished before.
    pub fn abort(&self) {
        self.task.abort();
    }

    /// A handle that can abort the task, from any thread, and nothing else.
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle(self.task.clone())
    }

    /// Whether the task has finished, panicked or been dropped.
    pub fn is_finished(&self) -> bool {
        self.task.is_done()
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    /// # Panics
    /// When it is polled after it has given the result.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(!self.taken, "a JoinHandle was polled after it had given its result");
        if !self.task.is_done() && self.task.join(context.waker()) {
            return Poll::Pending;
        }
        self.taken = true;
        // SAFETY: the task is done, and this is its one joiner, of the output's type (`new`).
        match unsafe { self.task.take() } {
            Some(result) => Poll::Ready(result),
            None => unreachable!("a task that is done has a result until its joiner takes it"),
        }
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        if !self.taken && self.task.detach() == Outcome::Unwanted {
            // SAFETY: the task is done, this is its one joiner, and the handle is on this thread only
            // if the result may be, too.
            unsafe { self.task.drop_result() };
        }
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").field("finished", &self.is_finished()).finish()
    }
}

/// Aborts a task; see [`JoinHandle::abort`].
#[derive(Clone)]
pub struct AbortHandle(TaskRef);

impl AbortHandle {
    /// Drops the task's future at its worker's next turn.
    pub fn abort(&self) {
        self.0.abort();
    }
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AbortHandle").finish()
    }
}

/// Why a task has no result.
pub struct JoinError(Reason);

enum Reason {
    Cancelled,
    Panicked(Payload),
}

impl JoinError {
    pub(super) fn cancelled() -> Self {
        Self(Reason::Cancelled)
    }

    pub(super) fn panicked(payload: Payload) -> Self {
        Self(Reason::Panicked(payload))
    }

    /// Whether the task was aborted, or dropped with its runtime.
    pub fn is_cancelled(&self) -> bool {
        matches!(self.0, Reason::Cancelled)
    }

    /// Whether the task panicked.
    pub fn is_panic(&self) -> bool {
        matches!(self.0, Reason::Panicked(_))
    }

    /// The panic's payload.
    ///
    /// # Errors
    /// Gives the error back where the task didn't panic.
    pub fn try_into_panic(self) -> Result<Box<dyn std::any::Any + Send>, Self> {
        match self.0 {
            Reason::Panicked(payload) => Ok(payload),
            Reason::Cancelled => Err(self),
        }
    }

    /// Goes on with the task's panic in the caller; returns where there was none.
    pub fn resume_panic(self) {
        if let Reason::Panicked(payload) = self.0 {
            resume_unwind(payload);
        }
    }

    fn panic_message(&self) -> Option<&str> {
        let Reason::Panicked(payload) = &self.0 else { return None };
        payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .or(Some("with a value that is no text"))
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.panic_message() {
            Some(message) => write!(f, "the task panicked: {message}"),
            None => write!(f, "the task was cancelled"),
        }
    }
}

impl fmt::Debug for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinError({self})")
    }
}

impl std::error::Error for JoinError {}
