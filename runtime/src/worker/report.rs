//! Which policy is in effect on a worker, read back from the kernel, and why it is not the one
//! asked for.

use std::fmt;
use std::time::Duration;

use policies::controller::QueueSettings;
use policies::epoll_params::EpollParams;
use policies::netlink::netdev::{Napi, Netdev};
use policies::status::QueueStatus;
use policies::{Applied, Policy, Processing, WorkerWait};

use crate::config::Config;
use crate::driver::{Driver, DriverKind};

/// What is in effect on a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum Running {
    /// Blocks; packets are processed in interrupts.
    Vanilla,
    /// Blocks; packets are processed on the packing cores.
    Packing,
    /// Busy-polls, with the queue's interrupts deferred for the grace time.
    Suppression,
    /// Polls the queue in its wait; the queue's interrupt stays masked while there is work.
    KernelPolling,
    /// Kernel polling was asked for: busy-polls with deferral, without suspension.
    BusyPollingWithDeferral,
    /// Busy-polls, but interrupts are not deferred or suspended between polls, or the NAPI's
    /// settings can't be read.
    BusyPolling,
    /// The wait doesn't poll; reads of sockets do (`SO_BUSY_POLL`).
    SoBusyPoll,
    /// Blocks, although a policy that polls was asked for.
    Blocking,
    /// Blocks; a kernel thread polls the queue all the time, with the interrupt masked.
    KernelThread,
}

policies::names!(Running, "state of a worker": Vanilla = "vanilla", Packing = "packing", Suppression = "suppression",
    KernelPolling = "kernel-polling", BusyPollingWithDeferral = "busy-polling-with-deferral",
    BusyPolling = "busy-polling", SoBusyPoll = "so-busy-poll", Blocking = "blocking", KernelThread = "kernel-thread");

/// Which policy was asked for and what is in effect on a worker.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct WorkerReport {
    /// The worker's number, from 0.
    pub worker: usize,
    /// The thread id (`gettid(2)`).
    pub thread: i32,
    /// The core that the thread is pinned to.
    pub core: Option<u32>,
    /// The policy that was asked for.
    pub asked: Policy,
    /// What is in effect.
    pub running: Running,
    /// Why that is less than what was asked for, and which settings failed although the policy is
    /// in effect: a sentence each.
    pub steps_down: Vec<String>,
    /// What limits the policy although it runs as asked: values of the queue that others have set
    /// and that it keeps; and at worker 0 a wait strategy that the policy leaves without effect, and
    /// cores without a worker because the interface has fewer queues. A sentence each.
    pub notes: Vec<String>,
    /// The settings of the NAPI whose sockets its epoll instance holds, as the kernel has them.
    pub napi: Option<Napi>,
    /// How its epoll instance busy-polls (`EPIOCGPARAMS`). `None` if it doesn't.
    pub epoll: Option<EpollParams>,
    /// How the controller drives its queue at present. `None` if the queue's values are fixed.
    pub queue: Option<QueueSettings>,
    /// The driver in use.
    pub driver: DriverKind,
    /// The io_uring features that the driver uses, by the kernel's names.
    pub features: Vec<&'static str>,
    /// Why `auto` chose epoll: the reason why io_uring is not available.
    pub driver_note: Option<String>,
}

impl WorkerReport {
    /// How its queue is driven at present: by the controller, or by fixed values. `None` unless
    /// kernel polling is in effect.
    pub fn queue_status(&self) -> Option<QueueStatus> {
        if let Some(settings) = &self.queue {
            return Some(QueueStatus::new(settings));
        }
        let napi = self.napi.as_ref().filter(|_| self.running == Running::KernelPolling)?;
        let mut settings = preset(napi);
        settings.spin =
            self.epoll.map_or(Duration::ZERO, |epoll| Duration::from_micros(epoll.busy_poll_usecs.into()));
        Some(QueueStatus::new(&settings))
    }

    pub(crate) fn set_queue_settings(&mut self, settings: QueueSettings) {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        if let Some(napi) = &mut self.napi {
            napi.defer_hard_irqs = Some(settings.defer_hard_irqs);
            napi.gro_flush_timeout = Some(nanos(settings.grace_time));
            napi.irq_suspend_timeout = Some(nanos(settings.suspend_timeout));
        }
        self.queue = Some(settings);
    }
}

impl fmt::Display for WorkerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worker {}: {} on {}", self.worker, self.running, self.driver)?;
        if let Some(napi) = &self.napi {
            write!(f, ", NAPI {}", napi.id)?;
        }
        if let Some(core) = self.core {
            write!(f, ", core {core}")?;
        }
        if let Some(queue) = &self.queue {
            write!(f, ", {queue}")?;
        }
        if let Some(note) = &self.driver_note {
            write!(f, " (no io_uring: {note})")?;
        }
        if !self.steps_down.is_empty() {
            write!(f, " ({} asked: {})", self.asked, self.steps_down.join("; "))?;
        }
        if !self.notes.is_empty() {
            write!(f, " ({})", self.notes.join("; "))?;
        }
        Ok(())
    }
}

/// What a [`WorkerReport`] is made from, beside the kernel's answers.
pub(crate) struct ReportInputs<'a> {
    pub(crate) config: &'a Config,
    pub(crate) worker: usize,
    pub(crate) core: Option<u32>,
    pub(crate) napi_id: u32,
    pub(crate) applied: &'a [Applied],
    pub(crate) host_notes: &'a [String],
    pub(crate) polling: PollingStart,
    /// Why `auto` chose epoll.
    pub(crate) driver_note: Option<String>,
    /// The queues of this worker beside the one that it polls.
    pub(crate) unpolled: Vec<u32>,
    /// Whether the worker has a controller.
    pub(crate) adapts: bool,
    /// The values that the queue keeps, because the controller can't set others.
    pub(crate) keeps: Option<QueueSettings>,
}

/// How setting up a driver to poll the worker's queue has ended.
#[derive(Default)]
pub(crate) struct PollingStart {
    /// Why busy polling could not be set on the epoll instance.
    pub(crate) params_error: Option<String>,
    /// The result of setting busy polling on the ring; `None` if it was not tried.
    pub(crate) ring_polls: Option<Result<(), String>>,
    /// Why no controller chooses how the queue is polled, although the grace time is adaptive, and
    /// nothing polls it.
    pub(crate) no_controller: Option<String>,
}

impl ReportInputs<'_> {
    /// Reads the settings back from the kernel.
    pub(crate) fn report(&self, driver: &Driver) -> WorkerReport {
        let napi = (self.napi_id != 0)
            .then(|| Netdev::open().and_then(|mut netdev| netdev.napi(self.napi_id)).ok())
            .flatten();
        let epoll = driver.instance().params().ok().filter(|params| params.prefer_busy_poll == 1);
        let (running, steps_down) = self.in_effect(napi.as_ref(), epoll);
        WorkerReport {
            worker: self.worker,
            thread: rustix::thread::gettid().as_raw_nonzero().get(),
            core: self.core,
            asked: self.config.policy,
            running,
            steps_down,
            notes: self.notes(),
            napi,
            epoll,
            queue: None,
            driver: driver.kind(),
            features: driver.features().to_vec(),
            driver_note: self.driver_note.clone(),
        }
    }

    fn notes(&self) -> Vec<String> {
        // Those of all workers are worker 0's to say.
        let of_all = if self.worker == 0 { self.config.notes.as_slice() } else { &[] };
        self.kept_values().into_iter().chain(of_all.iter().cloned()).collect()
    }

    /// The values that somebody has prepared the queue with are part of the policy.
    fn kept_values(&self) -> Option<String> {
        let kept = self.keeps?;
        Some(format!(
            "NAPI {} keeps defer-hard-irqs {} and a grace time of {} µs at every load: this process could not set \
             others, which needs CAP_NET_ADMIN, so it only chooses between waits that poll and waits that don't",
            self.napi_id,
            kept.defer_hard_irqs,
            kept.grace_time.as_micros()
        ))
    }

    fn failed_knobs(&self) -> Vec<String> {
        let failed = self.applied.iter().filter(|step| !step.outcome.is_ok());
        failed.map(ToString::to_string).collect()
    }

    /// What is in effect, and the reasons why it is less than what was asked for.
    fn in_effect(&self, napi: Option<&Napi>, epoll: Option<EpollParams>) -> (Running, Vec<String>) {
        let mut why = self.failed_knobs();
        why.extend(self.host_notes.iter().cloned());
        let interface = self.config.interface.as_deref();
        match (self.config.policy.worker_wait(), self.config.policy.processing()) {
            (WorkerWait::Polls | WorkerWait::Suspends, _) => self.polling_in_effect(napi, epoll, why),
            // Vanilla is what Linux does by default. A knob that failed leaves it vanilla, but with
            // interrupts on other cores than the policy wants, which the reasons say.
            (WorkerWait::Blocks, Processing::WorkerCores) => (Running::Vanilla, self.failed_knobs()),
            (WorkerWait::Blocks, Processing::PackingCores) => {
                if interface.is_none() {
                    why.push("no interface is named, so no queue can be moved to a packing core".into());
                } else if self.applied.is_empty() && why.is_empty() {
                    why.push("the interface has nothing that could be moved to a packing core".into());
                }
                if why.is_empty() { (Running::Packing, why) } else { (Running::Vanilla, why) }
            }
            (WorkerWait::Blocks, Processing::PollingThreads) => {
                if napi.is_some_and(Napi::has_polling_thread) {
                    return (Running::KernelThread, why);
                }
                match (interface, napi) {
                    (None, _) => why.push("no interface is named, so no queue can have a kernel thread".into()),
                    (Some(name), None) => why.push(without_napi(name)),
                    // The failed step says it, too.
                    (_, Some(napi)) if self.failed_knobs().is_empty() => why.push(format!(
                        "no kernel thread polls NAPI {} all the time (it needs Linux 6.19); vanilla runs instead",
                        napi.id
                    )),
                    _ => {}
                }
                (Running::Vanilla, why)
            }
        }
    }

    fn polling_in_effect(
        &self,
        napi: Option<&Napi>,
        epoll: Option<EpollParams>,
        mut why: Vec<String>,
    ) -> (Running, Vec<String>) {
        if self.napi_id == 0 {
            why.push(match &self.config.interface {
                None => "no interface is named, so there is no queue to poll".to_owned(),
                Some(name) => without_napi(name),
            });
            return (Running::Blocking, why);
        }
        if !self.unpolled.is_empty() {
            let queues: Vec<String> = self.unpolled.iter().map(|queue| format!("rx-{queue}")).collect();
            why.push(format!(
                "a worker polls one queue, so {} of this worker's keep their interrupts",
                queues.join(", ")
            ));
        }
        if let Some(no_controller) = &self.polling.no_controller {
            let thread = napi.filter(|napi| napi.has_polling_thread()).map(polled_by_thread);
            why.push(thread.unwrap_or_else(|| no_controller.clone()));
            return (Running::Blocking, why);
        }
        // The controller sets the NAPI's values, as far as it may.
        if self.adapts {
            return (Running::KernelPolling, why);
        }
        if let Some(Err(error)) = &self.polling.ring_polls {
            why.push(format!("the ring can't busy-poll (IORING_REGISTER_NAPI, Linux 6.13): {error}"));
            return (Running::Blocking, why);
        }
        if epoll.is_none() && self.polling.ring_polls.is_none() {
            let error = self
                .polling
                .params_error
                .as_deref()
                .unwrap_or("the kernel took the values but reads back others");
            why.push(format!("the epoll instance can't busy-poll (EPIOCSPARAMS, Linux 6.9): {error}"));
            return (Running::SoBusyPoll, why);
        }
        let set = |value: Option<u64>| value.is_some_and(|value| value > 0);
        let Some(napi) = napi else {
            why.push("the NAPI's settings can't be read back".to_owned());
            return (Running::BusyPolling, why);
        };
        if napi.has_polling_thread() {
            why.push(polled_by_thread(napi));
            return (Running::Blocking, why);
        }
        let mut missing = Vec::new();
        if !set(napi.defer_hard_irqs) {
            missing.push("defer-hard-irqs is 0");
        }
        if !set(napi.gro_flush_timeout) {
            missing.push("gro-flush-timeout is 0");
        }
        if !missing.is_empty() {
            why.push(format!(
                "{} on NAPI {}, so interrupts come back after each poll",
                missing.join(" and "),
                napi.id
            ));
            return (Running::BusyPolling, why);
        }
        if self.config.policy.worker_wait() == WorkerWait::Polls {
            return (Running::Suppression, why);
        }
        if self.polling.ring_polls.is_some() {
            why.push("io_uring's waits never suspend interrupts; those of the epoll driver do".to_owned());
            return (Running::BusyPollingWithDeferral, why);
        }
        if !set(napi.irq_suspend_timeout) {
            why.push(match napi.irq_suspend_timeout {
                Some(_) => format!("irq-suspend-timeout is 0 on NAPI {}", napi.id),
                None => "this kernel can't suspend interrupts (irq-suspend-timeout, Linux 6.13)".to_owned(),
            });
            return (Running::BusyPollingWithDeferral, why);
        }
        (Running::KernelPolling, why)
    }
}

/// How a queue is driven by the values that its NAPI has.
pub(crate) fn preset(napi: &Napi) -> QueueSettings {
    let nanos = |value: Option<u64>| Duration::from_nanos(value.unwrap_or(0));
    let (grace, suspend) = (nanos(napi.gro_flush_timeout), nanos(napi.irq_suspend_timeout));
    QueueSettings::preset(napi.defer_hard_irqs.unwrap_or(0), grace, suspend)
}

/// The driver polls a veth by its NAPI only with GRO.
fn without_napi(interface: &str) -> String {
    const LOOPBACK: u32 = 1;
    let queues = policies::host::interface(interface).map(|interface| interface.queues);
    if queues.is_ok_and(|queues| queues.iter().any(|queue| queue.napi.is_some())) {
        return format!("no queue of {interface} is left for this worker");
    }
    if Netdev::open().and_then(|mut netdev| netdev.napis(LOOPBACK)).is_err() {
        return format!("this kernel doesn't tell which NAPIs {interface} has (netdev netlink, Linux 6.8)");
    }
    format!(
        "{interface} has no NAPI for this worker; if it is a veth, `ethtool -K {interface} gro on` gives it one"
    )
}

fn polled_by_thread(napi: &Napi) -> String {
    format!("a kernel thread polls NAPI {} all the time, so the worker's wait can't", napi.id)
}
