//! Handles to spawned tasks.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::task::Header;

struct State<T> {
    result: Option<Result<T, JoinError>>,
    waker: Option<Waker>,
    complete: bool,
}

pub(crate) struct Cell<T>(Mutex<State<T>>);

impl<T> Cell<T> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(State { result: None, waker: None, complete: false })))
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn complete(&self, result: Result<T, JoinError>) {
        let mut state = self.lock();
        if state.complete {
            return;
        }
        state.complete = true;
        state.result = Some(result);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Runs a future and leaves its result in a cell, whatever becomes of it: finished, panicked, or
/// dropped before that.
pub(crate) struct Completing<F: Future> {
    future: Option<Pin<Box<F>>>,
    cell: Arc<Cell<F::Output>>,
}

impl<F: Future> Completing<F> {
    pub(crate) fn new(future: F, cell: Arc<Cell<F::Output>>) -> Self {
        Self { future: Some(Box::pin(future)), cell }
    }

    /// Gives the duty of completing the cell to someone else.
    pub(crate) fn disarm(mut self) {
        self.future.take();
        // A cell of its own, which nobody looks at, is completed instead.
        self.cell = Cell::new();
    }

    /// Completes the cell with a panic.
    pub(crate) fn fail(self, payload: Box<dyn Any + Send>) {
        self.cell.complete(Err(JoinError(Reason::Panicked(payload))));
    }
}

impl<F: Future> Future for Completing<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(future) = &mut self.future else { return Poll::Ready(()) };
        // AssertUnwindSafe: the future is dropped and never polled again after a panic.
        let result = match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(output)) => Ok(output),
            Err(payload) => Err(JoinError(Reason::Panicked(payload))),
        };
        // The future goes before the joiner learns of the end: what it held is free by then. Its
        // drop may panic too, and the result, or the first panic, is what counts.
        let future = self.future.take();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(future)));
        self.cell.complete(result);
        Poll::Ready(())
    }
}

impl<F: Future> Drop for Completing<F> {
    fn drop(&mut self) {
        if let Some(future) = self.future.take() {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(future)));
        }
        self.cell.complete(Err(JoinError(Reason::Cancelled)));
    }
}

/// A spawned task. Awaiting it gives the task's result; dropping it lets the task run on.
#[must_use = "dropping a JoinHandle detaches the task; write `drop(…)` if that is meant"]
pub struct JoinHandle<T> {
    header: Arc<Header>,
    cell: Arc<Cell<T>>,
}

impl<T> JoinHandle<T> {
    pub(crate) fn new(header: Arc<Header>, cell: Arc<Cell<T>>) -> Self {
        Self { header, cell }
    }

    /// Drops the task's future at its worker's next turn. Awaiting the handle then gives an error,
    /// unless the task had finished before.
    pub fn abort(&self) {
        self.header.abort();
    }

    /// A handle that can abort the task, from any thread, and nothing else.
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle(Arc::clone(&self.header))
    }

    /// Whether the task has finished, panicked or been dropped.
    pub fn is_finished(&self) -> bool {
        self.cell.lock().complete
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.cell.lock();
        match state.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").field("finished", &self.is_finished()).finish()
    }
}

/// Aborts a task; see [`JoinHandle::abort`].
#[derive(Debug, Clone)]
pub struct AbortHandle(Arc<Header>);

impl AbortHandle {
    /// Drops the task's future at its worker's next turn.
    pub fn abort(&self) {
        self.0.abort();
    }
}

/// Why a task has no result.
pub struct JoinError(Reason);

enum Reason {
    Cancelled,
    Panicked(Box<dyn Any + Send>),
}

impl JoinError {
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
    pub fn try_into_panic(self) -> Result<Box<dyn Any + Send>, Self> {
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
