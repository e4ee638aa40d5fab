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
    /// At most this many are woken before the worker yields its core to them; 0: no limit, and it does not yield.
    size: Cell<usize>,
}

/// A connection's share in its worker's batch.
#[derive(Debug)]
pub(super) struct BatchUser(Rc<Batch>);

impl BatchUser {
    /// The calling worker's batch. `size`: at most this many threads are woken before the worker yields its core to them;
    /// 0: no limit, and it does not yield.
    pub(super) fn join(size: usize) -> Self {
        let batch = BATCH.with(Rc::clone);
        batch.size.set(size);
        batch.users.set(batch.users.get() + 1);
        if !batch.has_task.replace(true) {
            let task = WakingTask(Rc::clone(&batch));
            drop(runtime::spawn(async move {
                std::future::poll_fn(|context| task.0.poll(context.waker())).await;
            }));
        }
        Self(batch)
    }

    /// Wakes a thread when the batch is full, or the tasks of this turn have run.
    pub(super) fn wake(&self, thread: Thread) {
        let length = {
            let mut threads = self.0.threads.borrow_mut();
            threads.push(thread);
            threads.len()
        };
        if length == self.0.size.get() {
            self.0.hand_out();
        } else {
            self.0.wake_task();
        }
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

    /// Wakes the threads. Returns whether there were any.
    fn wake_all(&self) -> bool {
        let mut threads = self.threads.take();
        let any = !threads.is_empty();
        threads.drain(..).for_each(|thread| thread.unpark());
        // Its memory is used again.
        self.threads.replace(threads);
        any
    }

    /// Wakes the threads, and lets them run while their bytes and sockets are in the core's caches.
    fn hand_out(&self) {
        if self.wake_all() && self.size.get() > 0 {
            std::thread::yield_now();
        }
    }

    fn poll(&self, waker: &Waker) -> Poll<()> {
        self.hand_out();
        if self.users.get() == 0 {
            return Poll::Ready(());
        }
        *self.task.borrow_mut() = Some(waker.clone());
        Poll::Pending
    }
}
