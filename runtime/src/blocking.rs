//! Threads for work that blocks.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, PoisonError};
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crate::config::ThreadOptions;
use crate::sync::{Condvar, Mutex, MutexGuard, lock, spawn_thread};
use crate::thread_settings::with_settings_from_before;

/// How long a thread without work waits for some before it ends.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce(Start) + Send>;

enum Start {
    Runs,
    /// Not at all: there is no thread, and none can be started.
    NoThread(String),
}

/// The threads of a runtime's blocking work.
pub(crate) struct BlockingPool {
    state: Mutex<PoolState>,
    /// There is a job, or the pool is closed, or a thread has ended.
    changed: Condvar,
    max_threads: usize,
    threads: ThreadOptions,
}

#[derive(Default)]
struct PoolState {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    started: u64,
    finished: u64,
    closed: bool,
}

/// Counts of a runtime's blocking work ([`spawn_blocking`](crate::spawn_blocking)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct BlockingMetrics {
    /// Threads that run at present, idle ones included.
    pub threads: usize,
    /// Those of them that wait for work.
    pub idle: usize,
    /// Closures that wait for a thread.
    pub queued: usize,
    /// Closures that have returned or panicked.
    pub finished: u64,
}

impl BlockingPool {
    pub(crate) fn new(max_threads: usize, threads: ThreadOptions) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(PoolState::default()),
            changed: Condvar::new(),
            max_threads: max_threads.max(1),
            threads,
        })
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        lock(&self.state)
    }

    /// Runs a job on a thread, a new one if none is idle and there may be more.
    ///
    /// # Errors
    /// If the runtime has ended.
    fn run(self: &Arc<Self>, job: Job) -> io::Result<()> {
        let mut state = self.lock();
        if state.closed {
            drop(state);
            drop(job);
            return Err(io::Error::other("the runtime has ended"));
        }
        state.jobs.push_back(job);
        if state.idle >= state.jobs.len() {
            self.changed.notify_one();
            return Ok(());
        }
        if state.threads == self.max_threads {
            return Ok(());
        }
        state.threads += 1;
        state.started += 1;
        let thread = self.threads.builder(format_args!("blocking-{}", state.started));
        drop(state);
        let pool = Arc::clone(self);
        if let Err(error) = with_settings_from_before(|| spawn_thread(thread, move || pool.work())) {
            self.thread_failed(&error);
        }
        Ok(())
    }

    /// A thread that was counted could not be started. The others take the jobs; without one nobody
    /// would, so they fail.
    fn thread_failed(&self, error: &io::Error) {
        let mut state = self.lock();
        state.threads -= 1;
        let jobs = if state.threads == 0 { std::mem::take(&mut state.jobs) } else { VecDeque::new() };
        drop(state);
        self.changed.notify_all();
        for job in jobs {
            job(Start::NoThread(error.to_string()));
        }
    }

    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                // A panic is given to the task that waits for the job; this is for what its drops
                // do.
                crate::sync::contain_panic(|| job(Start::Runs));
                state = self.lock();
                state.finished += 1;
                continue;
            }
            if state.closed {
                break;
            }
            state.idle += 1;
            let waited = self.changed.wait_timeout(state, KEEP_ALIVE);
            let (woken, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            if timeout.timed_out() && state.jobs.is_empty() {
                break;
            }
        }
        state.threads -= 1;
        drop(state);
        self.changed.notify_all();
    }

    /// Takes no more jobs, and drops those that no thread has begun.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let jobs = std::mem::take(&mut state.jobs);
        drop(state);
        self.changed.notify_all();
        crate::sync::contain_panic(|| drop(jobs));
    }

    /// Waits until all threads have ended, or until the deadline.
    pub(crate) fn wait(&self, deadline: Option<Instant>) {
        let mut state = self.lock();
        while state.threads > 0 {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return;
            }
            let waited = self.changed.wait_timeout(state, left.unwrap_or(KEEP_ALIVE));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whether a closure runs or waits for a thread.
    pub(crate) fn is_working(&self) -> bool {
        let state = self.lock();
        state.threads > state.idle || !state.jobs.is_empty()
    }

    pub(crate) fn metrics(&self) -> BlockingMetrics {
        let state = self.lock();
        let PoolState { threads, idle, finished, .. } = *state;
        BlockingMetrics { threads, idle, queued: state.jobs.len(), finished }
    }

    /// Runs a closure on a thread, and returns a future of its result. A closure that no thread has
    /// begun when the future is dropped is dropped, too.
    pub(crate) fn spawn<F, T>(self: &Arc<Self>, work: F) -> impl Future<Output = T> + Send + use<F, T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let reply = Arc::new(Mutex::new(Reply { result: None, waker: None, cancelled: false }));
        let replying = Arc::clone(&reply);
        let failed = self.run(Box::new(move |start| {
            if lock(&replying).cancelled {
                return;
            }
            let result = match start {
                Start::Runs => catch_unwind(AssertUnwindSafe(work)),
                Start::NoThread(error) => Err(no_thread(&error)),
            };
            let mut reply = lock(&replying);
            reply.result = Some(result);
            let waker = reply.waker.take();
            drop(reply);
            waker.into_iter().for_each(Waker::wake);
        }));
        let reply = CancelOnDrop(reply);
        async move {
            if let Err(error) = failed {
                resume_unwind(no_thread(&error.to_string()));
            }
            let result = std::future::poll_fn(|context| {
                let mut reply = lock(&reply.0);
                match reply.result.take() {
                    Some(result) => Poll::Ready(result),
                    None => {
                        reply.waker = Some(context.waker().clone());
                        Poll::Pending
                    }
                }
            });
            result.await.unwrap_or_else(|panic| resume_unwind(panic))
        }
    }
}

/// The panic of a task whose closure can't run.
fn no_thread(error: &str) -> Box<dyn std::any::Any + Send> {
    Box::new(format!("cannot start a thread for blocking work: {error}"))
}

/// What a closure has returned, and who waits for it.
struct Reply<T> {
    result: Option<thread::Result<T>>,
    waker: Option<Waker>,
    cancelled: bool,
}

struct CancelOnDrop<T>(Arc<Mutex<Reply<T>>>);

impl<T> Drop for CancelOnDrop<T> {
    fn drop(&mut self) {
        lock(&self.0).cancelled = true;
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Context;

    use super::*;

    #[test]
    fn closures_fail_when_the_last_thread_cannot_be_started() {
        let pool = BlockingPool::new(1, ThreadOptions::default());
        // As if another closure had been first, whose thread is about to start.
        pool.lock().threads = 1;
        let mut waits = pin!(pool.spawn(|| 7));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waits.as_mut().poll(&mut context).is_pending());
        pool.thread_failed(&io::ErrorKind::WouldBlock.into());
        let polled = catch_unwind(AssertUnwindSafe(|| waits.as_mut().poll(&mut context)));
        let message = polled.unwrap_err().downcast::<String>().unwrap();
        assert!(message.starts_with("cannot start a thread for blocking work"), "{message}");
        assert_eq!(pool.metrics().threads, 0);
    }

    #[test]
    fn closures_wait_for_the_other_threads_when_one_cannot_be_started() {
        let pool = BlockingPool::new(2, ThreadOptions::default());
        pool.lock().threads = 2;
        let mut waits = pin!(pool.spawn(|| 7));
        let mut context = Context::from_waker(Waker::noop());
        pool.thread_failed(&io::ErrorKind::WouldBlock.into());
        assert!(waits.as_mut().poll(&mut context).is_pending());
        let other = Arc::clone(&pool);
        pool.close();
        assert_eq!(pool.metrics().queued, 0);
        other.lock().threads = 0;
    }
}
