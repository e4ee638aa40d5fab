//! What all workers of a runtime share.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use policies::{Applied, QueueRequests, host};

use crate::blocking::BlockingPool;
use crate::config::Config;
use crate::config::Hooks;
use crate::counters::Metrics;
use crate::driver::rings::Rings;
use crate::worker::napi_map::NapiMap;
use crate::worker::report::WorkerReport;
use crate::worker::worker_handle::WorkerHandle;

/// A runtime's settings, and its workers as other threads see them.
pub(crate) struct RuntimeState {
    pub(crate) config: Config,
    pub(crate) hooks: Hooks,
    pub(crate) workers: Vec<Arc<WorkerHandle>>,
    pub(crate) rings: Rings,
    pub(crate) napis: Arc<NapiMap>,
    pub(crate) host: HostState,
    pub(crate) blocking: Arc<BlockingPool>,
    /// Until when the runtime's end is waited for; without a limit unless set.
    pub(crate) deadline: OnceLock<Instant>,
    spawned: AtomicUsize,
    /// Why the first worker that failed did.
    failure: Mutex<Option<String>>,
}

#[derive(Default)]
pub(crate) struct HostState {
    pub(crate) applied: Vec<Applied>,
    /// Why settings were not applied.
    pub(crate) notes: Vec<String>,
    /// The queues that the settings are for, in order; worker `i` polls the `i`-th.
    pub(crate) queues: Vec<u32>,
    /// Those of them whose values a supervisor may adapt, as far as this was permitted when the
    /// plan was made.
    pub(crate) adaptable: Vec<u32>,
    /// Where workers ask for their queues' values; `None` if nobody sets them.
    pub(crate) requests: Option<Arc<QueueRequests>>,
}

fn read_queues(napis: &NapiMap, interface: Option<&str>) -> Option<Vec<(u32, u32)>> {
    let interface = host::interface(interface?).ok()?;
    Some(napis.own_queues(&interface))
}

impl RuntimeState {
    pub(crate) fn new(
        config: Config,
        hooks: Hooks,
        workers: Vec<Arc<WorkerHandle>>,
        rings: Rings,
        napis: NapiMap,
        host: HostState,
    ) -> Self {
        let blocking = BlockingPool::new(config.options.max_blocking_threads, config.options.threads.clone());
        let spawned = AtomicUsize::new(0);
        Self {
            blocking,
            deadline: OnceLock::new(),
            spawned,
            config,
            hooks,
            workers,
            rings,
            napis: Arc::new(napis),
            host,
            failure: Mutex::default(),
        }
    }

    /// The core that a worker is to run on; `None`: it is not pinned.
    pub(crate) fn core_of(&self, worker: usize) -> Option<u32> {
        let followed = self.workers[worker].followed_core();
        if followed.is_some() {
            return followed;
        }
        let cores = &self.config.cores;
        (!cores.is_empty()).then(|| cores[worker % cores.len()])
    }

    /// The worker that serves a connection of this NAPI that worker `here` has accepted.
    pub(crate) fn worker_of_napi(&self, napi: u32, here: usize) -> usize {
        let read = self
            .config
            .interface
            .clone()
            .map(|interface| move |napis: &NapiMap| read_queues(napis, Some(&interface)));
        self.napis.owner(napi, here, &self.workers, read)
    }

    /// Reads which NAPIs the queues have now: a link that was opened again may have others, and a
    /// ring polls by their ids.
    pub(crate) fn reread_napis(&self) {
        if let Some(queues) = read_queues(&self.napis, self.config.interface.as_deref()) {
            self.napis.assign(&queues, &self.workers);
        }
    }

    pub(crate) fn fail(&self, worker: usize, error: &dyn fmt::Display) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert_with(|| format!("worker {worker} stopped: {error}"));
        drop(failure);
        self.stop();
        // Last, because the subscriber is foreign code: it may block or panic.
        tracing::error!(worker, %error, "worker stopped");
    }

    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A worker for a task that may be on any: one after the other. If there are others, without a
    /// worker 0 that only runs in `block_on`.
    pub(crate) fn next_worker(&self) -> usize {
        let first = usize::from(!self.config.options.background && self.workers.len() > 1);
        first + self.spawned.fetch_add(1, Ordering::Relaxed) % (self.workers.len() - first)
    }

    pub(crate) fn stop(&self) {
        self.workers.iter().for_each(|worker| worker.request_stop());
    }

    pub(crate) fn reports(&self) -> Vec<WorkerReport> {
        self.workers.iter().filter_map(|worker| worker.report()).collect()
    }

    pub(crate) fn metrics(&self) -> Vec<Metrics> {
        self.workers.iter().map(|worker| worker.metrics()).collect()
    }
}
