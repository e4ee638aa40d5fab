//! The wakes of a worker's turn.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::thread::Thread;

thread_local! {
    static BATCH: Rc<Batch> = Rc::default();
}

/// The threads that a worker wakes when the tasks of its turn have run. One task of each worker does that: it is queued
/// behind the tasks that fill the batch.
#[derive(Debug, Default)]
struct Batch {
    threads: RefCell<Vec<Thread>>,
    /// Wakes the task that wakes them.
    task: RefCell<Option<Waker>>,
    /// Whether there is such a task.
    has_task: Cell<bool>,
    /// Connections on this worker: without any the task ends.
    users: Cell<usize>,
    /// The worker yields its core after this many wakes in a turn; 0: never.
    yield_after: Cell<usize>,
}

/// A connection's share in its worker's batch.
#[derive(Debug)]
pub(super) struct BatchUser(Rc<Batch>);

impl BatchUser {
    /// The calling worker's batch. `yield_after`: the worker yields its core after this many wakes in a turn; 0: never.
    pub(super) fn join(yield_after: usize) -> Self {
        let batch = BATCH.with(Rc::clone);
        batch.yield_after.set(yield_after);
        batch.users.set(batch.users.get() + 1);
        if !batch.has_task.replace(true) {
            let task = WakingTask(Rc::clone(&batch));
            drop(runtime::spawn(async move {
                std::future::poll_fn(|context| task.0.poll(context.waker())).await;
            }));
        }
        Self(batch)
    }

    /// Wakes a thread when the tasks of this turn have run.
    pub(super) fn wake(&self, thread: Thread) {
        self.0.threads.borrow_mut().push(thread);
        self.0.wake_task();
    }
}

impl Drop for BatchUser {
    fn drop(&mut self) {
        self.0.users.set(self.0.users.get() - 1);
        if self.0.users.get() == 0 {
            self.0.wake_task();
        }
    }
}

/// Held by the task, so that a worker that shuts down leaves nobody asleep.
struct WakingTask(Rc<Batch>);

impl Drop for WakingTask {
    fn drop(&mut self) {
        self.0.has_task.set(false);
        self.0.wake_all();
    }
}

impl Batch {
    fn wake_task(&self) {
        if !self.has_task.get() {
            self.wake_all();
            return;
        }
        let task = self.task.borrow_mut().take();
        task.into_iter().for_each(Waker::wake);
    }

    fn wake_all(&self) -> usize {
        let mut threads = self.threads.take();
        let count = threads.len();
        threads.drain(..).for_each(|thread| thread.unpark());
        // Its memory is used again.
        self.threads.replace(threads);
        count
    }

    fn poll(&self, waker: &Waker) -> Poll<()> {
        let woken = self.wake_all();
        if self.users.get() == 0 {
            return Poll::Ready(());
        }
        *self.task.borrow_mut() = Some(waker.clone());
        if self.yield_after.get() > 0 && woken >= self.yield_after.get() {
            std::thread::yield_now();
        }
        Poll::Pending
    }
}
