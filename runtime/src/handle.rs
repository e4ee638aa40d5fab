//! A runtime as other threads see it, and as the calling task does.

use std::future::Future;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::Arc;

use policies::Policy;

use crate::blocking::BlockingMetrics;
use crate::counters::Metrics;
use crate::metrics::Snapshot;
use crate::task::{AbortHandle, JoinHandle, JoinSet, spawn_local, spawn_on_runtime};
use crate::task_core::identity::Identity;
use crate::task_core::span::TaskSpan;
use crate::worker::current::{self, EnteredRuntime};
use crate::worker::report::WorkerReport;
use crate::worker::runtime_state::RuntimeState;
use crate::worker::thread_wait;

/// A running runtime, for threads that are not its workers: it spawns tasks, waits for them, and
/// can be cloned and sent. It doesn't keep the runtime running: tasks that are spawned afterwards
/// are cancelled.
///
/// ```
/// #[runtime::main(workers = 2)]
/// async fn main() {
///     let handle = runtime::Handle::current();
///     // A thread that the application has started, not a worker of the runtime.
///     let thread = std::thread::spawn(move || {
///         let task = handle.spawn_on(1, || async { runtime::current_worker() });
///         handle.block_on(task).unwrap()
///     });
///     let worker = runtime::spawn_blocking(|| thread.join().unwrap()).await.unwrap();
///     assert_eq!(worker, 1);
/// }
/// ```
#[derive(Clone)]
pub struct Handle(Arc<RuntimeState>);

impl Handle {
    pub(crate) fn new(state: Arc<RuntimeState>) -> Self {
        Self(state)
    }

    /// The runtime of the calling task, or the one that the thread has [entered](Handle::enter).
    #[track_caller]
    pub fn current() -> Self {
        Self(current::runtime())
    }

    /// The runtime of the calling task, or the one that the thread has [entered](Handle::enter).
    pub fn try_current() -> Option<Self> {
        current::try_runtime().map(Self)
    }

    /// Makes [`spawn_on`](crate::spawn_on), [`spawn_blocking`](crate::spawn_blocking),
    /// [`Handle::current`] and the functions that read the runtime's state work on this thread, as
    /// long as the guard lives. Sockets and [`spawn`](crate::spawn) need a worker's thread.
    #[must_use = "the runtime is left when the guard is dropped"]
    #[track_caller]
    pub fn enter(&self) -> EnterGuard<'_> {
        self.enter_at(Location::caller())
    }

    fn enter_at(&self, caller: &'static Location<'static>) -> EnterGuard<'_> {
        let previous = current::enter_runtime(Some(EnteredRuntime { runtime: Arc::clone(&self.0), caller }));
        EnterGuard { previous, _handle: PhantomData }
    }

    /// Spawns a task on a worker. The closure is sent there and makes the future, which need not be
    /// `Send`.
    ///
    /// # Panics
    /// If there is no such worker.
    #[track_caller]
    pub fn spawn_on<F, Fut>(&self, worker: usize, make: F) -> JoinHandle<Fut::Output>
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future + 'static,
        Fut::Output: Send + 'static,
    {
        spawn_on_runtime(&self.0, Identity::new(Location::caller()), worker, make)
    }

    /// Spawns a task on any worker: one after the other, without worker 0 if there are others and
    /// it runs in `block_on` only ([`BackgroundRuntime`](crate::BackgroundRuntime)).
    #[track_caller]
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let worker = self.0.next_worker();
        spawn_on_runtime(&self.0, Identity::new(Location::caller()), worker, move || future)
    }

    /// Runs a future on the calling thread until it is ready. The thread must not be a worker. With
    /// a [`JoinHandle`] it is a blocking join: `handle.block_on(handle.spawn(…))`.
    ///
    /// Until the future is woken, the thread waits as
    /// [`Builder::thread_wait`](crate::Builder::thread_wait) says: by default it spins for up to 20
    /// µs if its last wait was short, and then sleeps. The runtime is [entered](Handle::enter)
    /// meanwhile. The future may wait for tasks, channels, blocking work and timers, which a worker
    /// keeps, but sockets and [`spawn`](crate::spawn) need a worker's thread: spawn what uses them
    /// by [`Handle::spawn`] or [`Handle::spawn_on`].
    ///
    /// It does not end with the runtime. A future that waits for a task then gets a cancelled
    /// [`JoinError`](crate::JoinError); one that nobody wakes is waited for forever. Worker 0's
    /// tasks make no progress while no thread is in
    /// [`Runtime::block_on`](crate::Runtime::block_on), so waiting for one then never ends; with
    /// one worker every task is such a task.
    ///
    /// # Panics
    /// If the future panics, or on a worker's thread, which would stop that worker's other tasks,
    /// timers and sockets.
    #[track_caller]
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let is_worker = current::try_with(|_| ()).is_some();
        assert!(
            !is_worker,
            "Handle::block_on was called on a worker's thread, whose other tasks would stop: await the future there, or call it from spawn_blocking"
        );
        let _entered = self.enter();
        thread_wait::block_on(future, self.0.config.options.thread_wait)
    }

    /// As [`runtime::spawn_blocking`](crate::spawn_blocking). The task that waits for the closure
    /// is on any worker.
    #[track_caller]
    pub fn spawn_blocking<F, T>(&self, work: F) -> JoinHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let worker = self.0.next_worker();
        let identity = Identity::without_span(Location::caller());
        let waiting = self.begin_blocking(&identity, work);
        spawn_on_runtime(&self.0, identity, worker, move || waiting)
    }

    /// The closure finds the runtime entered on its thread.
    fn begin_blocking<F, T>(&self, identity: &Identity, work: F) -> impl Future<Output = T> + Send + use<F, T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let handle = self.clone();
        let (span, caller) = (TaskSpan::blocking(identity, size_of::<F>()), identity.spawned);
        self.0.blocking.spawn(move || {
            let _entered = handle.enter_at(caller);
            let _in_span = span.enter();
            work()
        })
    }

    pub(crate) fn state(&self) -> &Arc<RuntimeState> {
        &self.0
    }

    pub(crate) fn stop(&self) {
        self.0.stop();
    }

    /// The number of workers.
    pub fn workers(&self) -> usize {
        self.0.workers.len()
    }

    /// The counters of each worker since it started, in the order of the workers' numbers.
    pub fn metrics(&self) -> Vec<Metrics> {
        self.0.metrics()
    }

    /// All metrics of the runtime at one time, also as a page for Prometheus.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(&self.0)
    }

    /// What is in effect on each worker that has started. A [`Runtime`](crate::Runtime)'s worker 0
    /// starts in its first `block_on`.
    pub fn reports(&self) -> Vec<WorkerReport> {
        self.0.reports()
    }

    /// Counts of the runtime's blocking work.
    pub fn blocking_metrics(&self) -> BlockingMetrics {
        self.0.blocking.metrics()
    }
}

opaque_debug!(Handle, "Handle", |it| "workers" = it.workers());

/// The runtime is [entered](Handle::enter) while this lives.
#[must_use = "the runtime is left when the guard is dropped"]
pub struct EnterGuard<'a> {
    previous: Option<EnteredRuntime>,
    /// It belongs to its thread.
    _handle: PhantomData<(&'a Handle, *const ())>,
}

impl Drop for EnterGuard<'_> {
    fn drop(&mut self) {
        drop(current::enter_runtime(self.previous.take()));
    }
}

opaque_debug!(EnterGuard<'_>, "EnterGuard");

/// Runs a closure that may block, on a thread of its own kind: named `lull-blocking-…`, at most
/// [`Builder::max_blocking_threads`](crate::Builder::max_blocking_threads), and ended after 10 s
/// without work. On a worker it would keep sockets, timers and other tasks waiting.
///
/// A panic of the closure is the task's. Aborting the task drops a closure that no thread has
/// begun; one that runs goes on, and is waited for when the runtime is dropped
/// ([`Runtime::shutdown_timeout`](crate::Runtime::shutdown_timeout)).
#[track_caller]
pub fn spawn_blocking<F, T>(work: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let handle = Handle::current();
    if current::try_with(|_| ()).is_none() {
        return handle.spawn_blocking(work);
    }
    let identity = Identity::without_span(Location::caller());
    let waiting = handle.begin_blocking(&identity, work);
    spawn_local(identity, waiting)
}

impl<T: 'static> JoinSet<T> {
    /// Runs a blocking closure on a thread of the blocking pool, as
    /// [`runtime::spawn_blocking`](crate::spawn_blocking) does. Aborting has no effect on one that
    /// has begun, other than that its result is lost.
    ///
    /// # Panics
    /// Outside of a runtime.
    #[track_caller]
    pub fn spawn_blocking(&mut self, work: impl FnOnce() -> T + Send + 'static) -> AbortHandle
    where
        T: Send,
    {
        self.add(spawn_blocking(work))
    }
}

/// The number of workers of this runtime.
#[track_caller]
pub fn workers() -> usize {
    current::runtime().workers.len()
}

/// The number of the calling worker, from 0.
#[track_caller]
pub fn current_worker() -> usize {
    current::with(|worker| worker.handle.index)
}

/// What is in effect on each worker of this runtime.
#[track_caller]
pub fn reports() -> Vec<WorkerReport> {
    current::runtime().reports()
}

/// The counters of each worker of this runtime.
#[track_caller]
pub fn metrics() -> Vec<Metrics> {
    current::runtime().metrics()
}

/// The policy that was asked for.
#[track_caller]
pub fn policy() -> Policy {
    current::runtime().config.policy
}
