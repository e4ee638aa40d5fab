//! A runtime: its workers, and the host settings that it holds while they run.

use std::future::Future;
use std::io;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use policies::status::{StatusFile, WorkerStatus};
use policies::{Affinity, Applied, Change, Cpus, Guard, Lifetime, Plan, Supervisor, SupervisorHooks, host};

use crate::builder::{BuildError, Config};
use crate::driver::{Driver, DriverKind, EpollParams};
use crate::metrics::Metrics;
use crate::napi_map::NapiMap;
use crate::report::{Circumstances, WorkerReport};
use crate::shared::WorkerShared;
use crate::worker::Worker;

/// What all workers of a runtime know.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) workers: Vec<Arc<WorkerShared>>,
    pub(crate) napis: NapiMap,
    applied: Vec<Applied>,
    host_notes: Vec<String>,
    failure: Mutex<Option<String>>,
}

impl Shared {
    fn core(&self, worker: usize) -> Option<u32> {
        let followed = self.workers[worker].followed_core();
        if followed.is_some() {
            return followed;
        }
        let cores = &self.config.cores;
        (!cores.is_empty()).then(|| cores[worker % cores.len()])
    }

    fn fail(&self, worker: usize, error: &dyn std::fmt::Display) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert_with(|| format!("worker {worker} stopped: {error}"));
        drop(failure);
        self.workers.iter().for_each(|worker| worker.request_stop());
    }

    pub(crate) fn owner_of(&self, napi: u32) -> usize {
        self.napis.owner(napi, self.config.interface.as_deref(), &self.workers)
    }
}

/// A running runtime. The thread that calls [`Runtime::block_on`] is its worker 0.
///
/// Dropping it stops the workers, drops their tasks, and then puts the host's settings back.
pub struct Runtime {
    shared: Arc<Shared>,
    threads: Vec<thread::JoinHandle<()>>,
    supervisor: Option<Supervisor>,
}

impl Runtime {
    pub(crate) fn new(mut config: Config, tell: Option<Tell>) -> Result<Self, BuildError> {
        let interface = config.interface.as_deref().map(host::interface).transpose()?;
        let queues = interface.as_ref().map_or(0, |interface| interface.queues.len());
        let count = config.workers.unwrap_or_else(|| {
            let cores = thread::available_parallelism().map_or(1, usize::from);
            if queues > 0 { queues.min(cores) } else { cores }
        });
        if !config.cores.is_empty() && config.affinity == Affinity::Pin {
            config.settings.worker_cores =
                (0..count).map(|worker| config.cores[worker % config.cores.len()]).collect();
        }
        let prepared = interface.as_ref().map(|interface| prepare_host(&config, interface));
        let Prepared { guard, notes: host_notes, queues: held } = prepared.unwrap_or_default();
        let applied = guard.as_ref().map(|guard| guard.applied().to_vec()).unwrap_or_default();
        let workers = (0..count)
            .map(|index| WorkerShared::new(index).map(Arc::new))
            .collect::<io::Result<Vec<_>>>()
            .map_err(|source| BuildError::Worker { worker: 0, source })?;
        let napis = NapiMap::default();
        // Ids are looked at again: what was set may have moved them.
        if let Some(name) = config.interface.as_deref() {
            if let Some(held) = held {
                napis.hold(held);
            }
            let ids = napis.own_ids(&host::interface(name)?);
            napis.fill(&ids, &workers);
        }
        let shared =
            Arc::new(Shared { config, workers, napis, applied, host_notes, failure: Mutex::default() });
        let mut runtime = Self { shared, threads: Vec::new(), supervisor: None };
        // Worker 0 opens its driver only when it runs, and then it is late for an error.
        runtime.probe_driver().map_err(|source| BuildError::Worker { worker: 0, source })?;
        for index in 1..count {
            // Dropped on an error: the workers that did start are stopped.
            let handle = start_worker(&runtime.shared, index)
                .map_err(|source| BuildError::Worker { worker: index, source })?;
            runtime.threads.push(handle);
        }
        if let Some(guard) = guard {
            runtime.supervisor = Some(
                keep(&runtime.shared, guard, tell)
                    .map_err(|source| BuildError::Worker { worker: 0, source })?,
            );
        }
        Ok(runtime)
    }

    /// Runs a future on the calling thread, as worker 0, until it is ready. Spawned tasks go on
    /// running on the other workers until the runtime is dropped; those of this worker are dropped.
    ///
    /// # Panics
    /// If the future panics, if it is called from within a runtime, or if the kernel refuses to let a
    /// worker wait.
    pub fn block_on<F: Future>(&mut self, future: F) -> F::Output {
        let future = std::pin::pin!(future);
        let outcome = make_worker(&self.shared, 0).and_then(|worker| worker.run(Some(future)));
        match outcome {
            Ok(Some(output)) => output,
            Ok(None) => {
                let failure = self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner);
                panic!("{}", failure.as_deref().unwrap_or("the runtime was stopped"))
            }
            Err(error) => panic!("worker 0 cannot wait for the kernel: {error}"),
        }
    }

    /// Whether the driver that was asked for by name can be had; `auto` always finds one.
    fn probe_driver(&self) -> io::Result<()> {
        let config = &self.shared.config;
        match config.driver {
            DriverKind::Auto | DriverKind::Epoll => Ok(()),
            named => Driver::open(named, false, config.max_events, &self.shared.workers[0]).map(drop),
        }
    }

    /// What each started worker really runs. Worker 0 reports from [`Runtime::block_on`] on.
    pub fn reports(&self) -> Vec<WorkerReport> {
        reports(&self.shared)
    }

    /// What each worker has done so far.
    pub fn metrics(&self) -> Vec<Metrics> {
        metrics(&self.shared)
    }

    /// The host settings that the policy asked for, and how each went.
    pub fn applied(&self) -> &[Applied] {
        &self.shared.applied
    }
}

pub(crate) fn reports(shared: &Shared) -> Vec<WorkerReport> {
    let report =
        |worker: &Arc<WorkerShared>| worker.report.lock().unwrap_or_else(PoisonError::into_inner).clone();
    shared.workers.iter().filter_map(report).collect()
}

pub(crate) fn metrics(shared: &Shared) -> Vec<Metrics> {
    shared.workers.iter().map(|worker| worker.metrics.read()).collect()
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.shared.workers.iter().for_each(|worker| worker.request_stop());
        for thread in self.threads.drain(..) {
            // A worker's panic was reported by the panic hook, and stopped the runtime.
            let _ = thread.join();
        }
        // Restores the host.
        self.supervisor.take();
    }
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime").field("workers", &self.shared.workers.len()).finish_non_exhaustive()
    }
}

/// What was done to the host, and what could not be.
#[derive(Default)]
struct Prepared {
    guard: Option<Guard>,
    notes: Vec<String>,
    /// The queues that are this process's; `None` is all.
    queues: Option<Vec<u32>>,
}

/// Applies the policy's plan as far as this process may. What it may not or can't is in the notes.
fn prepare_host(config: &Config, interface: &policies::Interface) -> Prepared {
    let plan = Plan::new(config.policy, interface, &config.settings);
    let to_do: Vec<_> = plan.steps.iter().filter(|step| !step.is_done()).collect();
    if !to_do.is_empty() && to_do.iter().all(|step| step.forbidden.is_some()) {
        // Nothing could be set, so nothing is journalled; perhaps `policies apply` has prepared it.
        let notes = to_do
            .iter()
            .filter_map(|step| Some(format!("{}: {}", step.knob, step.forbidden.as_ref()?)))
            .collect();
        return Prepared { notes, ..Prepared::default() };
    }
    match policies::apply(&plan, Lifetime::Process, &config.journals) {
        Ok(guard) => Prepared { guard: Some(guard), ..Prepared::default() },
        Err(error @ policies::Error::QueuesInUse { .. }) => take_free_queues(config, interface, &error),
        Err(error) => Prepared { notes: vec![error.to_string()], ..Prepared::default() },
    }
}

/// Two that poll one queue cancel each other: what another process holds is left to it.
fn take_free_queues(config: &Config, interface: &policies::Interface, taken: &policies::Error) -> Prepared {
    let mut notes = vec![taken.to_string()];
    let policies::Error::QueuesInUse { free: Some(free), .. } = taken else {
        return Prepared { notes, queues: Some(Vec::new()), ..Prepared::default() };
    };
    let queues: Vec<u32> = free.iter().collect();
    let settings = policies::Settings { queues: Some(queues.clone()), ..config.settings.clone() };
    let plan = Plan::new(config.policy, interface, &settings);
    match policies::apply(&plan, Lifetime::Process, &config.journals) {
        Ok(guard) => {
            notes.push(format!("took queues {free} instead"));
            Prepared { guard: Some(guard), notes, queues: Some(queues) }
        }
        // Somebody was faster.
        Err(error) => {
            notes.push(error.to_string());
            Prepared { notes, queues: Some(Vec::new()), ..Prepared::default() }
        }
    }
}

/// Hears of changes to the interface.
pub(crate) type Tell = Box<dyn FnMut(&Change) + Send>;

/// Has the policy kept, and what the workers do shown.
fn keep(shared: &Arc<Shared>, guard: Guard, mut tell: Option<Tell>) -> io::Result<Supervisor> {
    let file = StatusFile::new(&shared.config.journals, guard.plan().ifindex);
    let queues = guard.plan().queues.clone();
    let affinity = shared.config.affinity;
    let (all, seen) = (Arc::clone(shared), Arc::clone(shared));
    let worker_of = move |queue: u32| {
        let position = queues.iter().position(|own| *own == queue)?;
        all.workers.get(position % all.workers.len()).cloned()
    };
    let polling = worker_of.clone();
    let hooks = SupervisorHooks {
        received_bytes: Box::new(move |queue| {
            polling(queue).map_or(0, |worker| worker.metrics.read().received_bytes)
        }),
        on_tick: Box::new(move || {
            // Only for others to look at: a folder that can't be written costs no more than that.
            let _ = file.write(seen.workers.iter().map(status).collect());
        }),
    };
    let tell = move |change: &Change| {
        if let Change::InterruptMoved { queue, core } = change
            && let Some(worker) = worker_of(*queue)
        {
            worker.follow(*core);
        }
        if let Some(tell) = &mut tell {
            tell(change);
        }
    };
    Supervisor::start(guard, affinity, tell, hooks)
}

fn status(worker: &Arc<WorkerShared>) -> WorkerStatus {
    let metrics = worker.metrics.read();
    let report = worker.report.lock().unwrap_or_else(PoisonError::into_inner);
    WorkerStatus {
        worker: worker.index,
        thread: worker.thread.get().copied().unwrap_or(0),
        napi: worker.napi.load(Ordering::Relaxed),
        running: report.as_ref().map_or_else(String::new, |report| report.running.to_string()),
        running_ns: metrics.running_ns,
        polling_ns: metrics.polling_ns,
        parked_ns: metrics.parked_ns,
    }
}

/// How long a ring busy-polls at least, where it is asked to: with 0 it would not poll at all.
const RING_BUSY_POLL: Duration = Duration::from_micros(50);

fn start_worker(shared: &Arc<Shared>, index: usize) -> io::Result<thread::JoinHandle<()>> {
    let (started, start) = mpsc::channel();
    let shared = Arc::clone(shared);
    let handle = thread::Builder::new().name(format!("lull-{index}")).spawn(move || {
        let worker = match make_worker(&shared, index) {
            Ok(worker) => worker,
            Err(error) => {
                let _ = started.send(Err(error));
                return;
            }
        };
        let _ = started.send(Ok(()));
        // A panic out of a worker's loop (a waker's, say) must stop the program, not lose a queue.
        let stop_all = StopOnPanic(&shared, index);
        if let Err(error) = worker.run::<()>(None) {
            shared.fail(index, &error);
        }
        drop(stop_all);
    })?;
    match start.recv() {
        Ok(Ok(())) => Ok(handle),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(io::Error::other("the thread panicked at its start")),
    }
}

struct StopOnPanic<'a>(&'a Shared, usize);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.fail(self.1, &"its loop panicked");
        }
    }
}

/// Makes the calling thread's worker: pins it, makes its driver, and works out what it runs.
fn make_worker(shared: &Arc<Shared>, index: usize) -> io::Result<Rc<Worker>> {
    let this = Arc::clone(&shared.workers[index]);
    let thread_id = rustix::thread::gettid().as_raw_nonzero().get();
    this.thread.get_or_init(|| thread_id);
    let core = shared.core(index);
    if let Some(core) = core {
        if core as usize >= rustix::thread::CpuSet::MAX_CPU {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("there is no core {core}")));
        }
        Cpus::one(core)
            .pin(None)
            .map_err(|error| io::Error::other(format!("cannot pin it to core {core}: {error}")))?;
    }
    // Without this a timeout of 1 ns sleeps for up to the default slack of 50 µs.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    let config = &shared.config;
    let split = config.policy.busy_polls() && config.interface.is_some();
    let (driver, driver_note) = Driver::open(config.driver, split, config.max_events, &this)?;
    driver.publish(&this)?;
    let mut params_error = None;
    let mut ring_polls = None;
    let napi_id = this.napi.load(Ordering::Relaxed);
    if split && let Some(ring) = driver.ring().filter(|_| driver.kind() == DriverKind::Uring) {
        let polled = ring.poll_napi(napi_id, config.busy_poll.max(RING_BUSY_POLL));
        ring_polls = Some(polled.map_err(|error| error.to_string()));
    } else if split {
        let micros = u32::try_from(config.busy_poll.as_micros()).unwrap_or(i32::MAX as u32);
        let wanted = EpollParams::new(micros, 64);
        params_error = driver.epoll().set_params(wanted).err().map(|error| error.to_string());
    }
    let report = Circumstances {
        worker: index,
        core,
        asked: config.policy,
        napi_id,
        interface: config.interface.as_deref(),
        applied: &shared.applied,
        host_notes: &shared.host_notes,
        params_error,
        ring_polls,
        driver_note,
        so_busy_poll: split,
    }
    .report(&driver);
    *this.report.lock().unwrap_or_else(PoisonError::into_inner) = Some(report);
    Ok(Rc::new(Worker::new(Arc::clone(shared), this, driver, config.wait)))
}

/// For how long sockets should ask to be busy-polled when they are read, where the epoll instance
/// can't do it: the step below `EPIOCSPARAMS`.
pub(crate) fn socket_busy_poll(shared: &Shared, worker: &WorkerShared) -> Option<Duration> {
    let report = worker.report.lock().unwrap_or_else(PoisonError::into_inner);
    let fallback = report.as_ref().is_some_and(|report| report.running == crate::Running::SoBusyPoll);
    fallback.then(|| shared.config.busy_poll.max(Duration::from_micros(1)))
}
