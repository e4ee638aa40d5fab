//! Spawning tasks, and yielding to them.

use std::future::Future;
use std::panic::Location;
use std::sync::Arc;
use std::task::Poll;

use crate::task::cell::NewTask;
use crate::task::join::JoinHandle;
use crate::worker::current;
use crate::worker::worker_handle::Message;

/// Spawns a task on the calling worker.
///
/// # Panics
/// Outside of a runtime.
#[track_caller]
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let spawned = Location::caller();
    current::with(|worker| {
        let (task, joiner) = NewTask::local(Arc::clone(&worker.handle), spawned, future);
        worker.adopt(task);
        // SAFETY: the joiner's reference, of a future with this output.
        unsafe { JoinHandle::new(joiner) }
    })
}

/// Spawns a task on another worker. The closure is sent there and makes the future, which need not be
/// `Send`.
///
/// If that worker has stopped, awaiting the handle gives a cancelled [`JoinError`](crate::JoinError).
///
/// # Panics
/// Outside of a runtime, or if there is no such worker.
#[track_caller]
pub fn spawn_on<F, Fut>(worker: usize, make: F) -> JoinHandle<Fut::Output>
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future + 'static,
    Fut::Output: Send + 'static,
{
    let target = current::with(|current| {
        let workers = &current.runtime.workers;
        let count = workers.len();
        assert!(worker < count, "there is no worker {worker}; there are {count}, from 0");
        Arc::clone(&workers[worker])
    });
    let (task, joiner) = NewTask::remote(Arc::clone(&target), Location::caller(), make);
    // The worker is woken at once: the caller may block this thread until the task is done.
    target.send(Message::Adopt(task));
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
