//! The allocation of a task, behind references without its type. The executor's unsafe code is here.
//!
//! Who may touch what:
//! - the header: everyone with a reference, on any thread;
//! - the future: its worker's thread, from the first poll to the drop, which comes before `complete`.
//!   A future made for another worker (`Unborn`) is an async block that has not been polled: it holds
//!   what it captured, and that is `Send`;
//! - the result: whoever `complete`, `join` and `detach` of the header say.

use std::any::Any;
use std::future::Future;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};

use super::join::JoinError;
use super::{Header, Result as Outcome};
use crate::shared::WorkerShared;
use crate::sync::{Ordering, UnsafeCell, contain, fence};

/// The header comes first, so that a pointer to it is one to the cell.
#[repr(C)]
struct TaskCell<F: Future> {
    header: Header,
    stage: UnsafeCell<Stage<F>>,
}

enum Stage<F: Future> {
    Future(F),
    Result(Result<F::Output, JoinError>),
    Empty,
}

/// What needs the task's type.
pub(super) struct Calls {
    /// Polls the future; puts the result in when there is one.
    poll: unsafe fn(NonNull<Header>, &mut Context<'_>) -> Poll<()>,
    /// Drops the future, and puts in that it was cancelled.
    cancel: unsafe fn(NonNull<Header>),
    /// Moves the result to an `Option<Result<F::Output, JoinError>>`.
    take: unsafe fn(NonNull<Header>, NonNull<()>),
    /// Drops the result.
    drop_result: unsafe fn(NonNull<Header>),
    free: unsafe fn(NonNull<Header>),
}

fn calls<F: Future>() -> &'static Calls {
    &Calls {
        poll: poll::<F>,
        cancel: cancel::<F>,
        take: take::<F>,
        drop_result: drop_result::<F>,
        free: free::<F>,
    }
}

/// # Safety
/// `task` is a live `TaskCell<F>`, and the caller has the right to its stage.
unsafe fn with_stage<F: Future, R>(task: NonNull<Header>, action: impl FnOnce(*mut Stage<F>) -> R) -> R {
    // SAFETY: the caller's promise; only a shared reference to the cell is made, as everywhere.
    let cell = unsafe { task.cast::<TaskCell<F>>().as_ref() };
    cell.stage.with_mut(action)
}

/// # Safety
/// On the worker's thread, of a live task that is not complete.
unsafe fn poll<F: Future>(task: NonNull<Header>, context: &mut Context<'_>) -> Poll<()> {
    let poll = |stage: *mut Stage<F>| {
        // SAFETY: until the task is complete, its worker alone touches the stage.
        let Stage::Future(future) = (unsafe { &mut *stage }) else { return Poll::Ready(None) };
        // SAFETY: the future stays where it is, in the allocation, until it is dropped in place.
        let future = unsafe { Pin::new_unchecked(future) };
        // AssertUnwindSafe: the future is dropped and never polled again after a panic.
        match catch_unwind(AssertUnwindSafe(|| future.poll(context))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Some(Ok(output))),
            Err(payload) => Poll::Ready(Some(Err(JoinError::panicked(payload)))),
        }
    };
    // SAFETY: as above.
    match unsafe { with_stage(task, poll) } {
        Poll::Pending => Poll::Pending,
        Poll::Ready(None) => Poll::Ready(()),
        Poll::Ready(Some(result)) => {
            // SAFETY: the caller's promise.
            unsafe { finish::<F>(task, result) };
            Poll::Ready(())
        }
    }
}

/// # Safety
/// On the worker's thread (or before the first poll, where the future may be dropped anywhere), of a
/// live task that is not complete.
unsafe fn cancel<F: Future>(task: NonNull<Header>) {
    // SAFETY: the caller's promise.
    unsafe { finish::<F>(task, Err(JoinError::cancelled())) }
}

/// # Safety
/// As for `cancel`.
unsafe fn finish<F: Future>(task: NonNull<Header>, result: Result<F::Output, JoinError>) {
    let put = |stage: *mut Stage<F>| {
        // The future goes before the joiner learns of the end: what it held is free by then. Its drop
        // may panic too, and the result, or the first panic, is what counts.
        // SAFETY: nobody else touches the stage before the task is complete, and it is overwritten
        // without being dropped again, so also if this panics.
        contain(|| unsafe { stage.drop_in_place() });
        // SAFETY: what was there has been dropped.
        unsafe { stage.write(Stage::Result(result)) };
    };
    // SAFETY: the caller's promise.
    unsafe { with_stage::<F, _>(task, put) };
    // SAFETY: the task is live.
    if unsafe { task.as_ref() }.complete() == Outcome::Unwanted {
        // SAFETY: `complete` has given the result to this side.
        contain(|| unsafe { drop_result::<F>(task) });
    }
}

/// # Safety
/// `task` is live and done, and the caller has the right to its result.
unsafe fn empty<F: Future>(task: NonNull<Header>) -> Stage<F> {
    // SAFETY: by the caller's promise nobody else touches the stage, which is always a valid one.
    let replace = |stage: *mut Stage<F>| unsafe { stage.replace(Stage::Empty) };
    // SAFETY: the caller's promise.
    unsafe { with_stage(task, replace) }
}

/// # Safety
/// `task` is live, the caller has the right to its result, and `slot` is a valid
/// `Option<Result<F::Output, JoinError>>`.
unsafe fn take<F: Future>(task: NonNull<Header>, slot: NonNull<()>) {
    // SAFETY: the caller's promise.
    if let Stage::Result(result) = unsafe { empty::<F>(task) } {
        // SAFETY: the caller's promise.
        unsafe { *slot.cast::<Option<Result<F::Output, JoinError>>>().as_mut() = Some(result) };
    }
}

/// # Safety
/// `task` is live, and the caller has the right to its result.
unsafe fn drop_result<F: Future>(task: NonNull<Header>) {
    // SAFETY: the caller's promise.
    drop(unsafe { empty::<F>(task) });
}

/// # Safety
/// Called once, for the last reference. Then the stage is empty (but for a root's, which is nothing): the
/// worker drops its reference after the end of the task, and the joiner after it has taken the result,
/// or left it to someone.
unsafe fn free<F: Future>(task: NonNull<Header>) {
    // SAFETY: allocated as this by `Box` in `TaskRef::allocate`.
    drop(unsafe { Box::from_raw(task.cast::<TaskCell<F>>().as_ptr()) });
}

/// A counted reference to a task.
pub(crate) struct TaskRef(NonNull<Header>);

// SAFETY: a reference gives access to the header, which is `Sync`, and frees the task when it is the
// last, and then there is no future or result in it any more. The unsafe calls say themselves on
// which thread they may be made.
unsafe impl Send for TaskRef {}
// SAFETY: as above.
unsafe impl Sync for TaskRef {}

impl TaskRef {
    /// A task, referred to by its worker and its joiner.
    fn allocate<F: Future>(worker: Arc<WorkerShared>, key: u32, future: F) -> (Self, Self) {
        let cell = TaskCell {
            header: Header::new(worker, key, calls::<F>()),
            stage: UnsafeCell::new(Stage::Future(future)),
        };
        let task = NonNull::from(Box::leak(Box::new(cell))).cast::<Header>();
        (Self(task), Self(task))
    }

    /// What wakes a worker's root future, which is polled elsewhere.
    pub(crate) fn root(worker: Arc<WorkerShared>) -> Self {
        Self::allocate(worker, super::ROOT, std::future::ready(())).0
    }

    /// Polls the future.
    ///
    /// # Safety
    /// On the worker's thread, until it is ready, and never after `cancel`.
    pub(crate) unsafe fn poll(&self) -> Poll<()> {
        // SAFETY: it holds no reference of its own, and is never dropped: `self` outlives it, and
        // clones of it count.
        let waker = ManuallyDrop::new(unsafe { Waker::from_raw(raw_waker(self.0)) });
        // SAFETY: the caller's promise.
        unsafe { (self.calls.poll)(self.0, &mut Context::from_waker(&waker)) }
    }

    /// Drops the future; its joiner learns that it was cancelled.
    ///
    /// # Safety
    /// As for `poll`.
    pub(crate) unsafe fn cancel(&self) {
        // SAFETY: the caller's promise.
        unsafe { (self.calls.cancel)(self.0) }
    }

    /// Takes the result.
    ///
    /// # Safety
    /// `T` is the type of the future's output, the task is done, and this is its one joiner.
    pub(super) unsafe fn take<T>(&self) -> Option<Result<T, JoinError>> {
        let mut slot: Option<Result<T, JoinError>> = None;
        // SAFETY: the caller's promise; the slot is of the type that the call expects.
        unsafe { (self.calls.take)(self.0, NonNull::from(&mut slot).cast()) };
        slot
    }

    /// Drops the result.
    ///
    /// # Safety
    /// The task is done, this is its one joiner, and the result may be dropped on this thread.
    pub(super) unsafe fn drop_result(&self) {
        // SAFETY: the caller's promise.
        unsafe { (self.calls.drop_result)(self.0) }
    }

    pub(crate) fn waker(&self) -> Waker {
        let waker = raw_waker(Self::clone(self).into_raw());
        // SAFETY: it has a reference of its own, and the table keeps the contract.
        unsafe { Waker::from_raw(waker) }
    }

    fn into_raw(self) -> NonNull<Header> {
        ManuallyDrop::new(self).0
    }
}

impl Deref for TaskRef {
    type Target = Header;

    fn deref(&self) -> &Header {
        // SAFETY: the task is live while there is a reference, and nobody makes a unique one to it.
        unsafe { self.0.as_ref() }
    }
}

impl Clone for TaskRef {
    fn clone(&self) -> Self {
        // Relaxed: a reference is there already, so nobody can be freeing it (as in `Arc`). An overflow
        // would take 2^64 references, of which each takes memory, or is leaked one by one for centuries.
        self.references.fetch_add(1, Ordering::Relaxed);
        Self(self.0)
    }
}

impl Drop for TaskRef {
    fn drop(&mut self) {
        // Release: what was done with this reference comes before the freeing.
        if self.references.fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            // SAFETY: it was the last reference.
            unsafe { (self.calls.free)(self.0) };
        }
    }
}

const WAKER: RawWakerVTable = RawWakerVTable::new(
    |data| raw_waker(TaskRef::clone(&borrowed(data)).into_raw()),
    |data| owned(data).schedule(),
    |data| borrowed(data).schedule(),
    |data| drop(owned(data)),
);

fn raw_waker(task: NonNull<Header>) -> RawWaker {
    static TABLE: RawWakerVTable = WAKER;
    RawWaker::new(task.as_ptr().cast_const().cast(), &TABLE)
}

/// The reference that a waker is, of which it makes no further use.
fn owned(data: *const ()) -> TaskRef {
    // SAFETY: called from the wakers' table only, with what `raw_waker` has put in, which is not null.
    TaskRef(unsafe { NonNull::new_unchecked(data.cast_mut().cast()) })
}

/// The reference that a waker is, which it keeps.
fn borrowed(data: *const ()) -> ManuallyDrop<TaskRef> {
    ManuallyDrop::new(owned(data))
}

/// A task that its worker has not taken in yet. Dropped before that, it is cancelled.
pub(crate) struct Unborn(Option<TaskRef>);

impl Unborn {
    /// A task of this thread's worker, and the joiner's reference.
    pub(crate) fn here<F>(worker: Arc<WorkerShared>, future: F) -> (Self, TaskRef)
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let (task, joiner) = TaskRef::allocate(worker, 0, future);
        (Self(Some(task)), joiner)
    }

    /// A task for another thread, where the future is made, too.
    pub(crate) fn elsewhere<M, F>(worker: Arc<WorkerShared>, make: M) -> (Self, TaskRef)
    where
        M: FnOnce() -> F + Send + 'static,
        F: Future + 'static,
        F::Output: Send + 'static,
    {
        // Holds nothing but `make` until it is polled.
        let (task, joiner) = TaskRef::allocate(worker, 0, async move { make().await });
        (Self(Some(task)), joiner)
    }

    /// Hands the task to its worker.
    pub(crate) fn born(mut self) -> TaskRef {
        self.0.take().expect("it is taken once")
    }
}

impl Drop for Unborn {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            // SAFETY: never polled; where this is not the worker's thread the future is one of
            // `elsewhere`, of which only the `Send` closure is dropped.
            unsafe { task.cancel() };
        }
    }
}

/// What a panic was raised with.
pub(super) type Payload = Box<dyn Any + Send>;
