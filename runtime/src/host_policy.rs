//! The host's side of a runtime's policy: applied at start, supervised while the runtime runs.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use policies::status::{StatusFile, WorkerStatus};
use policies::{
    Change, Cpus, Guard, Interface, Knob, Lifetime, Plan, QueueDelegate, QueueRequests, Settings, Supervisor,
    SupervisorHooks,
};

use crate::config::Config;
use crate::worker::runtime_state::RuntimeState;
use crate::worker::worker_handle::WorkerHandle;

pub(crate) type HostChangeHook = Box<dyn FnMut(&Change) + Send>;

/// What the application does for its runtime's policy.
#[derive(Default)]
pub(crate) struct HostHooks {
    pub(crate) on_change: Option<HostChangeHook>,
    /// Sets the queues' values if the process may not.
    pub(crate) delegate: Option<Box<QueueDelegate>>,
}

#[derive(Default)]
pub(crate) struct PreparedHost {
    pub(crate) guard: Option<Guard>,
    /// Why settings were not applied.
    pub(crate) notes: Vec<String>,
    /// The queues that this process polls; `None`: all.
    pub(crate) own_queues: Option<Vec<u32>>,
}

/// Applies the policy's plan as far as this process may, to a queue for each worker if workers poll.
/// The notes say what it may not or can't.
pub(crate) fn prepare_host(config: &Config, interface: &Interface, workers: usize) -> PreparedHost {
    let mut settings = config.settings.clone();
    settings.limit_queues(config.policy, interface, workers);
    let plan = Plan::new(config.policy, interface, &settings);
    let to_do: Vec<_> = plan.steps.iter().filter(|step| !step.is_done()).collect();
    if !to_do.is_empty() && to_do.iter().all(|step| step.forbidden.is_some()) {
        // Nothing can be set, so there is nothing to journal. `policies apply` may have prepared
        // the host.
        let notes = to_do
            .iter()
            .filter_map(|step| Some(format!("{}: {}", step.knob, step.forbidden.as_ref()?)))
            .collect();
        return PreparedHost { notes, ..PreparedHost::default() };
    }
    match policies::apply(&plan, Lifetime::Process, &config.options.journals) {
        Ok(guard) => PreparedHost { guard: Some(guard), ..PreparedHost::default() },
        Err(in_use @ policies::Error::QueuesInUse { .. }) => {
            take_free_queues(config, interface, workers, &in_use)
        }
        Err(error) => PreparedHost { notes: vec![error.to_string()], ..PreparedHost::default() },
    }
}

/// Applies the plan to the queues that no other process polls: two processes that poll the same
/// queue cancel each other's settings.
fn take_free_queues(
    config: &Config,
    interface: &Interface,
    workers: usize,
    in_use: &policies::Error,
) -> PreparedHost {
    let mut prepared =
        PreparedHost { guard: None, notes: vec![in_use.to_string()], own_queues: Some(Vec::new()) };
    let policies::Error::QueuesInUse { free: Some(free), .. } = in_use else { return prepared };
    let most = if config.policy.busy_polls() { workers } else { free.len() };
    let queues: Vec<u32> = free.iter().take(most).collect();
    let settings = Settings { channels: None, queues: Some(queues.clone()), ..config.settings.clone() };
    let plan = Plan::new(config.policy, interface, &settings);
    match policies::apply(&plan, Lifetime::Process, &config.options.journals) {
        Ok(guard) => {
            let taken: Cpus = queues.iter().copied().collect();
            prepared.notes.push(format!("took queues {taken} instead"));
            (prepared.guard, prepared.own_queues) = (Some(guard), Some(queues));
        }
        // Another process has taken them meanwhile.
        Err(error) => prepared.notes.push(error.to_string()),
    }
    prepared
}

/// The queues of a plan whose values were set. Without permission the plan kept the present ones,
/// which somebody may have prepared.
pub(crate) fn adaptable_queues(guard: &Guard) -> Vec<u32> {
    let is_permitted = |queue: u32| {
        let knob = Knob::NapiDeferHardIrqs { queue };
        guard.plan().steps.iter().any(|step| step.knob == knob && step.forbidden.is_none())
            && guard.applied().iter().any(|step| step.knob == knob && step.outcome.is_ok())
    };
    guard.plan().queues.iter().copied().filter(|queue| is_permitted(*queue)).collect()
}

/// Starts the thread that keeps the policy applied, moves workers after their interrupts, and
/// writes the status file for `policies watch`.
pub(crate) fn supervise(state: &Arc<RuntimeState>, guard: Guard, hooks: HostHooks) -> io::Result<Supervisor> {
    let journals = state.config.options.journals.clone();
    let ifindex = guard.plan().ifindex;
    let mut file = Some((ifindex, StatusFile::new(&journals, ifindex)));
    let queues = guard.plan().queues.clone();
    let affinity = state.config.affinity;
    let has_polling_threads = guard.plan().policy.has_polling_threads();
    let (all, observed, polling) = (Arc::clone(state), Arc::clone(state), Arc::clone(state));
    let worker_of_queue = move |queue: u32| {
        let position = queues.iter().position(|own| *own == queue)?;
        all.workers.get(position % all.workers.len()).cloned()
    };
    let requests = match &state.host.requests {
        Some(requests) => Arc::clone(requests),
        None => Arc::new(QueueRequests::new()?),
    };
    let HostHooks { mut on_change, delegate } = hooks;
    let hooks = SupervisorHooks {
        requests,
        delegate,
        on_tick: Box::new(move |ifindex| {
            // Of an interface that is back with another index the old file is removed.
            let (_, file) = match file.take().filter(|(index, _)| *index == ifindex) {
                Some(same) => file.insert(same),
                None => file.insert((ifindex, StatusFile::new(&journals, ifindex))),
            };
            // The file only informs other programs.
            if let Err(error) = file.write(observed.workers.iter().map(|worker| status(worker)).collect()) {
                tracing::debug!(%error, "the status file can't be written");
            }
        }),
        takes_back: true,
    };
    let on_change = move |change: &Change| {
        tracing::debug!(?change, "the interface changed");
        // Under kernel-thread the interrupt's core is kept busy by the thread.
        if let Change::InterruptMoved { queue, core } = change
            && !has_polling_threads
            && let Some(worker) = worker_of_queue(*queue)
        {
            worker.follow(*core);
        }
        if matches!(change, Change::LinkUp) {
            polling.reread_napis();
        }
        if let Some(hook) = &mut on_change {
            hook(change);
        }
    };
    Supervisor::start(guard, affinity, on_change, hooks)
}

fn status(worker: &WorkerHandle) -> WorkerStatus {
    let metrics = worker.metrics();
    let report = worker.locked_report();
    WorkerStatus {
        worker: worker.index,
        thread: worker.thread.get().copied().unwrap_or(0),
        napi: worker.napi.load(Ordering::Relaxed),
        running: report.as_ref().map_or_else(String::new, |report| report.running.to_string()),
        queue: report.as_ref().and_then(|report| report.queue_status()),
        running_ns: metrics.running_ns,
        polling_ns: metrics.polling_ns,
        parked_ns: metrics.parked_ns,
    }
}
