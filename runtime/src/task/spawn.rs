//! Spawning tasks, and yielding to them.

use std::future::Future;
use std::panic::Location;
use std::sync::Arc;
use std::task::Poll;

use crate::task::join::JoinHandle;
use crate::task_core::cell::NewTask;
use crate::task_core::identity::Identity;
use crate::task_core::span::TaskSpan;
use crate::worker::current;
use crate::worker::runtime_state::RuntimeState;
use crate::worker::worker_handle::Message;

/// Spawns a task on the calling worker.
#[track_caller]
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    spawn_local(Identity::new(Location::caller()), future)
}

/// Spawns a task on another worker. The closure is sent there and makes the future, which need not
/// be `Send`.
///
/// If that worker has stopped, awaiting the handle gives a cancelled
/// [`JoinError`](crate::JoinError).
///
/// # Panics
/// Outside of a runtime ([`Handle::enter`](crate::Handle::enter)), or if there is no such worker.
#[track_caller]
pub fn spawn_on<F, Fut>(worker: usize, make: F) -> JoinHandle<Fut::Output>
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future + 'static,
    Fut::Output: Send + 'static,
{
    spawn_remote(Identity::new(Location::caller()), worker, make)
}

#[track_caller]
pub(crate) fn spawn_local<F>(identity: Identity, future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    current::with(|worker| {
        let span = TaskSpan::task(&identity, worker.handle.index, size_of::<F>());
        let (task, joiner) = NewTask::local(Arc::clone(&worker.handle), identity, span, future);
        worker.adopt(task, worker.handle.wake_time());
        // SAFETY: the joiner's reference, of a future with this output.
        unsafe { JoinHandle::new(joiner) }
    })
}

#[track_caller]
pub(crate) fn spawn_remote<F, Fut>(identity: Identity, worker: usize, make: F) -> JoinHandle<Fut::Output>
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future + 'static,
    Fut::Output: Send + 'static,
{
    spawn_on_runtime(&current::runtime(), identity, worker, make)
}

pub(crate) fn spawn_on_runtime<F, Fut>(
    runtime: &RuntimeState,
    identity: Identity,
    worker: usize,
    make: F,
) -> JoinHandle<Fut::Output>
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future + 'static,
    Fut::Output: Send + 'static,
{
    let count = runtime.workers.len();
    assert!(worker < count, "there is no worker {worker}; there are {count}, from 0");
    let target = &runtime.workers[worker];
    let span = TaskSpan::task(&identity, worker, size_of::<Fut>());
    let (task, joiner) = NewTask::remote(Arc::clone(target), identity, span, make);
    // The worker is woken at once: the caller may block this thread until the task is done.
    target.send(Message::Adopt(task, target.wake_time()));
    // SAFETY: the joiner's reference, of a future with this output.
    unsafe { JoinHandle::new(joiner) }
}

/// Lets the other ready tasks of this worker run first.
pub async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
