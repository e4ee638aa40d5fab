//! The allocation of a task, and the references to it, which don't know its type. The executor's
//! unsafe code is here.
//!
//! Who may touch what:
//! - the header: everyone with a reference, on any thread;
//! - the future: its worker's thread, from the first poll to the drop, which comes before
//!   `complete`. A future made for another worker ([`NewTask::remote`]) is an async block that has
//!   not been polled: it holds only what it captured, and that is `Send`. So is the span beside it;
//! - the result: the side to which `complete` or `detach` of the header gives it ([`ResultOwner`]).

use std::future::Future;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};

use super::header::{Header, ROOT, ResultOwner, TaskVtable};
use super::identity::Identity;
use super::join_error::{JoinError, PanicPayload};
use super::span::{SpanId, TaskSpan};
use crate::coop;
use crate::sync::{Ordering, UnsafeCell, contain_panic};

/// What a task runs on, as other threads see it.
pub(crate) trait Schedule: Send + Sync + Sized + 'static {
    /// Queues the task unless it is queued or finished already. Called on any thread.
    fn schedule(task: &TaskRef<Self>);

    /// [`waker_vtable`] in a static: promoted constants have a different address in each codegen
    /// unit, and `Waker::will_wake` compares addresses.
    fn waker_vtable() -> &'static RawWakerVTable;
}

/// The header comes first, so a pointer to it is a pointer to the cell.
#[repr(C)]
struct TaskCell<F: Future, S: Schedule> {
    header: Header<S>,
    stage: UnsafeCell<Stage<F>>,
}

enum Stage<F: Future> {
    /// The span closes with the future, not with the last waker.
    Future(F, TaskSpan),
    Result(Result<F::Output, JoinError>),
    Empty,
}

fn vtable<F: Future, S: Schedule>() -> &'static TaskVtable<S> {
    &TaskVtable {
        poll: poll::<F, S>,
        cancel: cancel::<F, S>,
        take: take::<F, S>,
        drop_result: drop_result::<F, S>,
        free: free::<F, S>,
    }
}

/// # Safety
/// `task` is a live `TaskCell<F, S>`, and the caller has the right to its stage.
unsafe fn with_stage<F: Future, S: Schedule, R>(
    task: NonNull<Header<S>>,
    action: impl FnOnce(*mut Stage<F>) -> R,
) -> R {
    // SAFETY: the caller's promise; like everywhere, only a shared reference to the cell is made.
    let cell = unsafe { task.cast::<TaskCell<F, S>>().as_ref() };
    cell.stage.with_mut(action)
}

/// # Safety
/// On the worker's thread, with a live task that is not complete.
unsafe fn poll<F: Future, S: Schedule>(task: NonNull<Header<S>>, context: &mut Context<'_>) -> Poll<()> {
    let poll = |stage: *mut Stage<F>| {
        // SAFETY: until the task is complete, only its worker touches the stage.
        let Stage::Future(future, span) = (unsafe { &mut *stage }) else { return Poll::Ready(None) };
        // SAFETY: the future stays in the allocation until it is dropped in place.
        let future = unsafe { Pin::new_unchecked(future) };
        // AssertUnwindSafe: after a panic the future is dropped and never polled again.
        let poll = || {
            let _entered = span.enter();
            future.poll(context)
        };
        match catch_unwind(AssertUnwindSafe(poll)) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Some(Ok(output))),
            Err(payload) => Poll::Ready(Some(Err(Some(payload)))),
        }
    };
    // SAFETY: as above.
    match unsafe { with_stage(task, poll) } {
        Poll::Pending => Poll::Pending,
        Poll::Ready(None) => Poll::Ready(()),
        Poll::Ready(Some(outcome)) => {
            // SAFETY: the caller's promise.
            unsafe { finish::<F, S>(task, outcome) };
            Poll::Ready(())
        }
    }
}

/// # Safety
/// With a live task that is not complete, on the worker's thread; or on any thread before the first
/// poll, where the future may be dropped anywhere.
unsafe fn cancel<F: Future, S: Schedule>(task: NonNull<Header<S>>) {
    // SAFETY: the caller's promise.
    unsafe { finish::<F, S>(task, Err(None)) }
}

/// `outcome`: what the future has returned or panicked with, or `None` if it is cancelled.
///
/// # Safety
/// As for `cancel`.
unsafe fn finish<F: Future, S: Schedule>(
    task: NonNull<Header<S>>,
    outcome: Result<F::Output, Option<PanicPayload>>,
) {
    // SAFETY: the task is live.
    let header = unsafe { task.as_ref() };
    let result = outcome.map_err(|panic| JoinError::new(header.identity.id, panic));
    let put = |stage: *mut Stage<F>| {
        // The future is dropped before the joiner is woken, which then finds free what the future
        // held. A panic of the drop is contained: the result, or the first panic, is what the
        // joiner gets. SAFETY: nobody else touches the stage before the task is complete. It is
        // overwritten without being dropped again, also if this drop panics.
        contain_panic(|| unsafe { stage.drop_in_place() });
        // SAFETY: what was there has been dropped.
        unsafe { stage.write(Stage::Result(result)) };
    };
    // SAFETY: the caller's promise.
    unsafe { with_stage::<F, S, _>(task, put) };
    if coop::after_task(|| header.complete()) == ResultOwner::Caller {
        // SAFETY: `complete` has given the result to this side.
        contain_panic(|| unsafe { drop_result::<F, S>(task) });
    }
}

/// # Safety
/// `task` is live and done, and the caller has the right to its result.
unsafe fn take_stage<F: Future, S: Schedule>(task: NonNull<Header<S>>) -> Stage<F> {
    // SAFETY: by the caller's promise nobody else touches the stage, which always holds a valid
    // value.
    let replace = |stage: *mut Stage<F>| unsafe { stage.replace(Stage::Empty) };
    // SAFETY: the caller's promise.
    unsafe { with_stage(task, replace) }
}

/// # Safety
/// `task` is live and done, the caller has the right to its result, and `slot` points to a valid
/// `Option<Result<F::Output, JoinError>>`.
unsafe fn take<F: Future, S: Schedule>(task: NonNull<Header<S>>, slot: NonNull<()>) {
    // SAFETY: the caller's promise.
    if let Stage::Result(result) = unsafe { take_stage::<F, S>(task) } {
        // SAFETY: the caller's promise.
        unsafe { *slot.cast::<Option<Result<F::Output, JoinError>>>().as_mut() = Some(result) };
    }
}

/// # Safety
/// `task` is live and done, and the caller has the right to its result.
unsafe fn drop_result<F: Future, S: Schedule>(task: NonNull<Header<S>>) {
    // SAFETY: the caller's promise.
    drop(unsafe { take_stage::<F, S>(task) });
}

/// # Safety
/// Called once, for the last reference. By then the stage is empty (a root's stage is a `Ready<()>`
/// without a span, which any thread may drop): the worker drops its reference after the end of the
/// task, and the joiner after it has taken the result or detached.
unsafe fn free<F: Future, S: Schedule>(task: NonNull<Header<S>>) {
    // SAFETY: allocated as a `Box<TaskCell<F, S>>` in `TaskRef::allocate`.
    drop(unsafe { Box::from_raw(task.cast::<TaskCell<F, S>>().as_ptr()) });
}

/// A counted reference to a task that runs on `S`.
pub(crate) struct TaskRef<S: Schedule>(NonNull<Header<S>>);

// SAFETY: a reference gives access to the header, which is `Sync` (`S` is), and the last one frees
// the task when it holds no future or result any more. The unsafe methods name the thread that may
// call them.
unsafe impl<S: Schedule> Send for TaskRef<S> {}
// SAFETY: as above.
unsafe impl<S: Schedule> Sync for TaskRef<S> {}

impl<S: Schedule> TaskRef<S> {
    /// A task, with its worker's reference and its joiner's.
    fn allocate<F: Future>(
        scheduler: Arc<S>,
        key: u32,
        identity: Identity,
        (id, span): (SpanId, TaskSpan),
        future: F,
    ) -> (Self, Self) {
        let cell = TaskCell {
            header: Header::new(scheduler, key, identity, id, vtable::<F, S>()),
            stage: UnsafeCell::new(Stage::Future(future, span)),
        };
        let task = NonNull::from(Box::leak(Box::new(cell))).cast::<Header<S>>();
        (Self(task), Self(task))
    }

    /// The task whose wakers wake a worker's root future. It is never polled itself: the root
    /// future is polled where it is, in `span`.
    pub(crate) fn root(scheduler: Arc<S>, identity: Identity, span: &TaskSpan) -> Self {
        let span = (span.id(), TaskSpan::none());
        Self::allocate(scheduler, ROOT, identity, span, std::future::ready(())).0
    }

    /// Polls the future.
    ///
    /// # Safety
    /// On the worker's thread, not after it was ready, and not after `cancel`.
    pub(crate) unsafe fn poll(&self) -> Poll<()> {
        // SAFETY: this waker counts no reference and is never dropped: `self` outlives it, and its
        // clones count references themselves.
        let waker = ManuallyDrop::new(unsafe { Waker::from_raw(raw_waker(self.0)) });
        // SAFETY: the caller's promise.
        unsafe { (self.vtable.poll)(self.0, &mut Context::from_waker(&waker)) }
    }

    /// Drops the future; the joiner gets a cancelled `JoinError`.
    ///
    /// # Safety
    /// As for `poll`.
    pub(crate) unsafe fn cancel(&self) {
        // SAFETY: the caller's promise.
        unsafe { (self.vtable.cancel)(self.0) }
    }

    /// Takes the result.
    ///
    /// # Safety
    /// `T` is the type of the future's output, the task is done, and the caller is its only joiner.
    pub(crate) unsafe fn take<T>(&self) -> Option<Result<T, JoinError>> {
        let mut slot: Option<Result<T, JoinError>> = None;
        // SAFETY: the caller's promise; the slot has the type that the function expects.
        unsafe { (self.vtable.take)(self.0, NonNull::from(&mut slot).cast()) };
        slot
    }

    /// Drops the result.
    ///
    /// # Safety
    /// The task is done, the caller is its only joiner, and the result may be dropped on this
    /// thread.
    pub(crate) unsafe fn drop_result(&self) {
        // SAFETY: the caller's promise.
        unsafe { (self.vtable.drop_result)(self.0) }
    }

    /// Has the worker drop the future instead of polling it again.
    pub(crate) fn abort(&self) {
        self.mark_aborted();
        S::schedule(self);
    }

    pub(crate) fn waker(&self) -> Waker {
        self.span.record("waker.clone");
        let waker = raw_waker(Self::clone(self).into_raw());
        // SAFETY: the waker owns the reference that was just cloned, and the vtable keeps the
        // contract.
        unsafe { Waker::from_raw(waker) }
    }

    fn into_raw(self) -> NonNull<Header<S>> {
        ManuallyDrop::new(self).0
    }
}

impl<S: Schedule> Deref for TaskRef<S> {
    type Target = Header<S>;

    fn deref(&self) -> &Header<S> {
        // SAFETY: the task is live while a reference exists, and nobody makes a unique reference to
        // it.
        unsafe { self.0.as_ref() }
    }
}

impl<S: Schedule> Clone for TaskRef<S> {
    fn clone(&self) -> Self {
        // Relaxed: a reference exists already, so nobody can be freeing the task (as in `Arc`). An
        // overflow would take 2^64 references, each of which takes memory or is leaked one by one
        // for centuries.
        self.references.fetch_add(1, Ordering::Relaxed);
        Self(self.0)
    }
}

impl<S: Schedule> Drop for TaskRef<S> {
    fn drop(&mut self) {
        // Release: what was done with this reference happens before the task is freed. Acquire:
        // which the last one sees. Not by a fence, which ThreadSanitizer doesn't know; on x86-64 it
        // is the same instruction.
        if self.references.fetch_sub(1, Ordering::AcqRel) == 1 {
            // SAFETY: it was the last reference.
            unsafe { (self.vtable.free)(self.0) };
        }
    }
}

pub(crate) const fn waker_vtable<S: Schedule>() -> RawWakerVTable {
    RawWakerVTable::new(
        |data| {
            let task = borrowed::<S>(data);
            task.span.record("waker.clone");
            raw_waker(TaskRef::clone(&task).into_raw())
        },
        |data| {
            let task = owned(data);
            task.span.record("waker.wake");
            S::schedule(&task);
        },
        |data| {
            let task = borrowed(data);
            task.span.record("waker.wake_by_ref");
            S::schedule(&task);
        },
        |data| owned::<S>(data).span.record("waker.drop"),
    )
}

fn raw_waker<S: Schedule>(task: NonNull<Header<S>>) -> RawWaker {
    RawWaker::new(task.as_ptr().cast_const().cast(), S::waker_vtable())
}

/// The reference that a waker is made of; the waker is used no further.
fn owned<S: Schedule>(data: *const ()) -> TaskRef<S> {
    // SAFETY: called from `waker_vtable::<S>` only, with what `raw_waker::<S>` has stored, which is
    // not null.
    TaskRef(unsafe { NonNull::new_unchecked(data.cast_mut().cast()) })
}

/// The reference that a waker is made of; the waker keeps it.
fn borrowed<S: Schedule>(data: *const ()) -> ManuallyDrop<TaskRef<S>> {
    ManuallyDrop::new(owned(data))
}

/// A task that its worker has not adopted yet. Dropping it cancels the task.
pub(crate) struct NewTask<S: Schedule>(Option<TaskRef<S>>);

impl<S: Schedule> NewTask<S> {
    /// A task of this thread's worker, and the joiner's reference.
    pub(crate) fn local<F>(
        scheduler: Arc<S>,
        identity: Identity,
        span: TaskSpan,
        future: F,
    ) -> (Self, TaskRef<S>)
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let (task, joiner) = TaskRef::allocate(scheduler, 0, identity, (span.id(), span), future);
        (Self(Some(task)), joiner)
    }

    /// A task for another thread's worker, where `make` is called too, and the joiner's reference.
    pub(crate) fn remote<M, F>(
        scheduler: Arc<S>,
        identity: Identity,
        span: TaskSpan,
        make: M,
    ) -> (Self, TaskRef<S>)
    where
        M: FnOnce() -> F + Send + 'static,
        F: Future + 'static,
        F::Output: Send + 'static,
    {
        // Holds only `make` until it is polled.
        let (task, joiner) =
            TaskRef::allocate(scheduler, 0, identity, (span.id(), span), async move { make().await });
        (Self(Some(task)), joiner)
    }

    pub(crate) fn adopt(mut self) -> TaskRef<S> {
        self.0.take().expect("a new task is adopted once")
    }
}

impl<S: Schedule> Drop for NewTask<S> {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            // SAFETY: never polled. If this is not the worker's thread, the task was made by
            // `remote`, and only its `Send` closure is dropped.
            unsafe { task.cancel() };
        }
    }
}
