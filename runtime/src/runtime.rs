//! A running runtime: it starts the workers' threads, and stops them.

use std::cell::OnceCell;
use std::future::Future;
use std::marker::PhantomData;
use std::ops::Deref;
use std::panic::Location;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};
use std::{io, thread};

use policies::{Affinity, Applied, QueueRequests, Supervisor, host};

use crate::config::{BuildError, Config, Hooks};
use crate::counters::WorkerCounters;
use crate::driver::rings::Rings;
use crate::handle::Handle;
use crate::host_policy::{HostHooks, PreparedHost, adaptable_queues, prepare_host, supervise};
use crate::thread_settings::with_settings_from_before;
use crate::worker::current::{self, ShutDown};
use crate::worker::event_loop::Worker;
use crate::worker::napi_map::NapiMap;
use crate::worker::runtime_state::{HostState, RuntimeState};
use crate::worker::startup::{WorkerThread, make_worker};
use crate::worker::worker_handle::WorkerHandle;

/// A running runtime. The thread that calls [`Runtime::block_on`] is its worker 0. It dereferences
/// to its [`Handle`], which spawns tasks and has the metrics.
///
/// Worker 0's sockets, timers and tasks stay on that thread, as those of every worker do, and so
/// does the runtime, which is neither `Send` nor `Sync`.
///
/// Dropping it stops the workers, drops their tasks, and then restores the host's settings.
pub struct Runtime {
    /// Worker 0, made by the first `block_on`. It is shut down before the others are stopped.
    worker: OnceCell<ShutDown>,
    /// Also without a worker 0 it belongs to its thread.
    _local: PhantomData<*const ()>,
    handle: Handle,
    threads: Vec<thread::JoinHandle<()>>,
    supervisor: Option<Supervisor>,
}

impl Runtime {
    pub(crate) fn new(mut config: Config, hooks: Hooks, host_hooks: HostHooks) -> Result<Self, BuildError> {
        let interface = config.interface.as_deref().map(host::interface).transpose()?;
        // It may be given by an alternative name.
        config.interface = interface.as_ref().map(|interface| interface.name.clone());
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let count = config.choose_workers(cores, interface.as_ref());
        if !config.cores.is_empty() && config.affinity == Affinity::Pin {
            config.settings.worker_cores =
                (0..count).map(|worker| config.cores[worker % config.cores.len()]).collect();
        }
        let prepared = interface.as_ref().map(|interface| prepare_host(&config, interface, count));
        let PreparedHost { guard, notes, own_queues } = prepared.unwrap_or_default();
        let worker_0_failed = |source| BuildError::Worker { worker: 0, source };
        let mut host_state = HostState { notes, ..HostState::default() };
        if let Some(guard) = &guard {
            host_state.applied = guard.applied().to_vec();
            host_state.queues.clone_from(&guard.plan().queues);
            host_state.adaptable = adaptable_queues(guard);
            host_state.requests = Some(Arc::new(QueueRequests::new().map_err(worker_0_failed)?));
        }
        let counters = || {
            WorkerCounters::new(config.options.poll_time_histogram, config.options.schedule_latency_histogram)
        };
        let workers = (0..count)
            .map(|index| WorkerHandle::new(index, counters()).map(Arc::new))
            .collect::<io::Result<Vec<_>>>()
            .map_err(worker_0_failed)?;
        let napis = NapiMap::default();
        // The interface is read again: applying the settings may have changed its NAPI ids.
        if let Some(name) = config.interface.as_deref() {
            if let Some(queues) = own_queues {
                napis.restrict_to(queues);
            }
            let queues = napis.own_queues(&host::interface(name)?);
            napis.assign(&queues, &workers);
        }
        let rings = Rings::prepare(config.driver, count, &config.cores, &config.options.ring);
        let rings = rings.map_err(worker_0_failed)?;
        let state = Arc::new(RuntimeState::new(config, hooks, workers, rings, napis, host_state));
        let mut runtime = Self {
            worker: OnceCell::new(),
            _local: PhantomData,
            handle: Handle::new(state),
            threads: Vec::new(),
            supervisor: None,
        };
        for index in 1..count {
            // On an error `runtime` is dropped, which stops the workers that did start.
            let handle = start_worker(runtime.handle.state(), index)
                .map_err(|source| BuildError::Worker { worker: index, source })?;
            runtime.threads.push(handle);
        }
        if let Some(guard) = guard {
            let supervisor = supervise(runtime.handle.state(), guard, host_hooks).map_err(worker_0_failed)?;
            runtime.supervisor = Some(supervisor);
        }
        Ok(runtime)
    }

    /// Runs a future on the calling thread, as worker 0, until it is ready.
    ///
    /// It may be called several times. What the future has spawned on this worker stays, like its
    /// sockets and timers, and goes on in the next `block_on`, as on tokio's current-thread
    /// runtime; until then nobody polls it. Tasks of the other workers always run. All of them are
    /// dropped with the runtime.
    ///
    /// While it runs, the thread is pinned if the workers are, and has a timer slack of 1 ns;
    /// afterwards both are as they were.
    ///
    /// # Panics
    /// If the future panics, if it is called on a worker's thread, if a worker failed, or if
    /// worker 0 can't be pinned to its core or its driver can't be opened.
    #[track_caller]
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let spawned = Location::caller();
        // Before anything of the thread is changed.
        current::assert_none();
        let future = std::pin::pin!(future);
        let outcome = self.run(future, spawned);
        match outcome {
            Ok(Some(output)) => output,
            Ok(None) => {
                panic!("{}", self.state().failure().as_deref().unwrap_or("the runtime was stopped"))
            }
            Err(error) => panic!("worker 0 cannot wait for the kernel: {error}"),
        }
    }

    fn run<R>(
        &self,
        root: Pin<&mut dyn Future<Output = R>>,
        spawned: &'static Location<'static>,
    ) -> io::Result<Option<R>> {
        let (_thread, worker) = self.enter_worker()?;
        current::run(&worker, Some(root), spawned)
    }

    fn enter_worker(&self) -> io::Result<(WorkerThread, Rc<Worker>)> {
        let thread = WorkerThread::enter(self.state(), 0)?;
        let worker = match self.worker.get() {
            Some(worker) => worker,
            None => {
                let made = ShutDown(make_worker(self.state(), 0)?);
                self.worker.get_or_init(|| made)
            }
        };
        Ok((thread, Rc::clone(&worker.0)))
    }

    /// Runs worker 0 on the calling thread until the workers are asked to stop, and then drops the
    /// runtime as by `deadline`.
    pub(crate) fn run_in_background(
        mut self,
        deadline: &OnceLock<Instant>,
        started: impl FnOnce(Result<Handle, BuildError>),
    ) {
        let (thread, worker) = match self.enter_worker() {
            Ok(entered) => entered,
            Err(source) => return started(Err(BuildError::Worker { worker: 0, source })),
        };
        started(Ok(self.handle()));
        run_worker(self.state(), &worker);
        if let Some(deadline) = deadline.get() {
            let _ = self.state().deadline.set(*deadline);
        }
        drop(worker);
        // Shut down by its own thread, with that thread's settings, as the others are.
        drop(self.worker.take());
        drop(thread);
    }

    /// The runtime for other threads.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Drops the runtime, but waits at most this long for its other workers and for closures of
    /// [`spawn_blocking`](crate::spawn_blocking). What has not ended by then is left behind: a
    /// worker then stops when its task's poll returns. Worker 0's tasks are dropped in any case.
    /// The host's settings are restored.
    pub fn shutdown_timeout(self, limit: Duration) {
        if let Some(deadline) = Instant::now().checked_add(limit) {
            let _ = self.state().deadline.set(deadline);
        }
    }

    /// The host settings of the policy, each with its outcome.
    pub fn applied(&self) -> &[Applied] {
        &self.state().host.applied
    }
}

impl Deref for Runtime {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let deadline = self.state().deadline.get().copied();
        // Its tasks may wait for the others' when they are dropped.
        if self.worker.take().is_none() {
            // Without a `block_on` nobody has taken in what was spawned on it.
            drop(self.state().workers[0].inbox.close());
        }
        self.state().stop();
        self.state().blocking.close();
        for (index, thread) in (1..).zip(self.threads.drain(..)) {
            if !ends_by(&thread, deadline.unwrap_or_else(|| Instant::now() + SLOW_END)) {
                if deadline.is_some() {
                    continue;
                }
                tracing::warn!(
                    "the end of the runtime waits for worker {index}: a poll or a destructor of one of its tasks blocks or computes; \
                     shutdown_timeout waits for a limited time"
                );
            }
            // The panic hook has reported a worker's panic, and the panic has stopped the runtime.
            let _ = thread.join();
        }
        self.state().blocking.wait(deadline);
        // Dropping the supervisor restores the host's settings.
        self.supervisor.take();
    }
}

opaque_debug!(Runtime, "Runtime", |it| "workers" = it.workers());

/// After this time the end of a runtime says for which worker it waits.
const SLOW_END: Duration = Duration::from_secs(2);

/// Waits for the end of a thread. `false`: it has not ended by the deadline.
pub(crate) fn ends_by(thread: &thread::JoinHandle<()>, deadline: Instant) -> bool {
    let mut pause = Duration::from_micros(50);
    while !thread.is_finished() {
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(1));
    }
    true
}

/// Starts a worker's thread, and waits until the worker runs or has failed to start.
fn start_worker(state: &Arc<RuntimeState>, index: usize) -> io::Result<thread::JoinHandle<()>> {
    let (started, start) = mpsc::channel();
    let state = Arc::clone(state);
    let thread = state.config.options.threads.builder(index);
    let handle = thread.spawn(move || {
        let made = WorkerThread::enter(&state, index)
            .and_then(|thread| Ok((ShutDown(make_worker(&state, index)?), thread)));
        let (worker, _thread) = match made {
            Ok(made) => made,
            Err(error) => {
                let _ = started.send(Err(error));
                return;
            }
        };
        let _ = started.send(Ok(()));
        run_worker(&state, &worker.0);
        drop(worker);
    })?;
    match start.recv() {
        Ok(Ok(())) => Ok(handle),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(io::Error::other("the thread panicked at its start")),
    }
}

/// Runs a worker that has no root future, until it is asked to stop.
fn run_worker(state: &RuntimeState, worker: &Rc<Worker>) {
    // A panic out of a worker's loop (of a waker, for example) must stop the program: nobody else
    // would serve the worker's queue.
    let _stop_all = StopOnPanic(state, worker.handle.index);
    if let Err(error) = current::run::<()>(worker, None, Location::caller()) {
        state.fail(worker.handle.index, &error);
    }
}

struct StopOnPanic<'a>(&'a RuntimeState, usize);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.fail(self.1, &"its loop panicked");
        }
    }
}

/// How long putting the host's settings back may take.
const RESTORING: Duration = Duration::from_secs(1);

/// A running runtime whose workers all have a thread, for programs that have no `block_on` at their
/// heart: made by [`Builder::build_background`](crate::Builder::build_background). It is used by
/// its [`Handle`], to which it dereferences.
///
/// ```
/// use runtime::Builder;
///
/// let runtime = Builder::new().workers(2).build_background()?;
/// let answer = runtime.spawn_on(0, || async { runtime::current_worker() });
/// assert_eq!(runtime.block_on(answer).unwrap(), 0);
/// # Ok::<(), runtime::BuildError>(())
/// ```
///
/// It is `Send` and `Sync`, and can be a `static`. Dropping it does what dropping a [`Runtime`]
/// does; it must not be dropped on one of its own workers, for whose end it would wait.
pub struct BackgroundRuntime {
    handle: Handle,
    /// Taken by the drop.
    owner: Option<thread::JoinHandle<()>>,
    deadline: Arc<OnceLock<Instant>>,
}

impl BackgroundRuntime {
    pub(crate) fn new(config: Config, hooks: Hooks, host_hooks: HostHooks) -> Result<Self, BuildError> {
        let failed = |source| BuildError::Worker { worker: 0, source };
        let deadline = Arc::new(OnceLock::new());
        let (started, start) = mpsc::channel();
        let owned = Arc::clone(&deadline);
        let thread = config.options.threads.builder(0);
        let own = move || match Runtime::new(config, hooks, host_hooks) {
            Ok(runtime) => runtime.run_in_background(&owned, |handle| _ = started.send(handle)),
            Err(error) => _ = started.send(Err(error)),
        };
        let owner = with_settings_from_before(|| thread.spawn(own));
        let owner = Some(owner.map_err(failed)?);
        match start.recv() {
            Ok(handle) => Ok(Self { handle: handle?, owner, deadline }),
            Err(_) => Err(failed(std::io::Error::other("the thread panicked at its start"))),
        }
    }

    /// As [`Runtime::shutdown_timeout`].
    pub fn shutdown_timeout(self, limit: Duration) {
        if let Some(deadline) = Instant::now().checked_add(limit) {
            let _ = self.deadline.set(deadline);
        }
    }
}

impl Deref for BackgroundRuntime {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for BackgroundRuntime {
    fn drop(&mut self) {
        self.handle.stop();
        let Some(owner) = self.owner.take() else { return };
        // The thread has to put the host's settings back, after it has waited for the others until
        // the deadline.
        let by = |deadline: &Instant| ends_by(&owner, *deadline + RESTORING);
        if self.deadline.get().is_none_or(by) {
            // The panic hook has reported a panic.
            let _ = owner.join();
        }
    }
}

opaque_debug!(BackgroundRuntime, "BackgroundRuntime", |it| "workers" = it.workers());
