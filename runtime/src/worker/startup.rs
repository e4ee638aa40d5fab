//! How a worker starts: its thread is pinned, its driver opened, and busy polling set and read
//! back.

use std::io;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use policies::controller::{ControllerLimits, PollTimer, PollingController, QueueSettings, Reason};
use policies::epoll_params::EpollParams;
use policies::netlink::netdev::Netdev;
use policies::{Cpus, Knob};
use rustix::thread::{CpuSet, gettid, set_current_timer_slack};

use crate::config::Config;
use crate::driver::epoll::sys;
use crate::driver::{Driver, DriverKind, QueuePolling};
use crate::thread_settings::KeptSettings;
use crate::timers::monotonic_nanos;
use crate::worker::event_loop::Worker;
use crate::worker::queue_control::QueueControl;
use crate::worker::report::{PollingStart, ReportInputs, Running, preset};
use crate::worker::runtime_state::RuntimeState;
use crate::worker::worker_handle::WorkerHandle;

/// The shortest time for which a ring is set to busy-poll where the queue's values are fixed: with
/// 0 it would poll once.
const RING_BUSY_POLL: Duration = Duration::from_micros(50);

/// Makes the calling thread's worker, and stores its report. The worker stays on this thread, which
/// is a [`WorkerThread`] while it runs.
pub(crate) fn make_worker(runtime: &Arc<RuntimeState>, index: usize) -> io::Result<Rc<Worker>> {
    let config = &runtime.config;
    let handle = Arc::clone(&runtime.workers[index]);
    let napi_id = handle.napi.load(Ordering::Relaxed);
    let adaptation = adaptation(runtime, index, napi_id);
    let (ring, wake) = (runtime.rings.take(index), Arc::clone(&handle.wake));
    let polling = adaptation.polling();
    let driver = Driver::open(config.driver, polling, config.options.max_events, ring, wake)?;
    let driver_note = runtime.rings.missing.clone().filter(|_| polling != QueuePolling::Fixed);
    driver.publish_ring()?;
    let (control, polling) = begin_polling(config, &driver, napi_id, adaptation)?;
    let report = ReportInputs {
        config,
        worker: index,
        core: runtime.core_of(index),
        napi_id,
        applied: &runtime.host.applied,
        host_notes: &runtime.host.notes,
        polling,
        driver_note,
        unpolled: runtime.napis.unpolled_queues(index, napi_id),
        adapts: control.is_some(),
        keeps: control.as_ref().and_then(QueueControl::kept_values),
    };
    let mut report = report.report(&driver);
    if let Some(control) = &control {
        report.set_queue_settings(control.in_effect());
    }
    // As it runs, not as it was requested: without a suspend timeout nothing is suspended.
    let suspends = report.running == Running::KernelPolling;
    if suspends && report.napi.as_ref().is_some_and(|napi| napi.threaded.is_some_and(|threaded| threaded > 0))
    {
        driver.set_napi_thread();
    }
    tracing::debug!(%report, "worker started");
    // All workers have the same driver.
    let falls_back = report.driver_note.is_some() && index == 0;
    let warning = (falls_back || !report.steps_down.is_empty()).then(|| report.to_string());
    *handle.locked_report() = Some(report);
    let worker = Worker::new(Arc::clone(runtime), handle, driver, control, config.wait);
    warning.into_iter().for_each(|text| worker.early_logs.warn(text));
    Ok(worker)
}

/// Whether a worker's queue is polled, and who chooses its values.
enum Adaptation {
    /// It is not polled: the policy doesn't, or there is no queue.
    NotPolled,
    /// The worker's controller, as far as this process may set them.
    Controller(Box<QueueControl>),
    /// Nobody: they are fixed by the settings, or those of the device (before Linux 6.13), or can't
    /// be read.
    Fixed,
    /// Nobody: this process may not set them, and nobody has set those that polling needs.
    Unprepared,
}

impl Adaptation {
    fn polling(&self) -> QueuePolling {
        match self {
            Adaptation::NotPolled => QueuePolling::None,
            Adaptation::Controller(control) if control.kept_values().is_none() => QueuePolling::ByController,
            _ => QueuePolling::Fixed,
        }
    }
}

fn adaptation(runtime: &RuntimeState, worker: usize, napi_id: u32) -> Adaptation {
    let config = &runtime.config;
    // `napi_id` is 0 if the configuration names no interface.
    if !config.policy.busy_polls() || napi_id == 0 {
        return Adaptation::NotPolled;
    }
    if !config.policy.adapts(config.settings.gro_flush_timeout) {
        return Adaptation::Fixed;
    }
    queue_control(runtime, worker, napi_id)
}

/// Makes the driver's waits poll the queue.
fn begin_polling(
    config: &Config,
    driver: &Driver,
    napi_id: u32,
    adaptation: Adaptation,
) -> io::Result<(Option<QueueControl>, PollingStart)> {
    let polling = adaptation.polling();
    let mut start = PollingStart::default();
    if polling != QueuePolling::None && driver.kind() == DriverKind::Epoll {
        let micros = u32::try_from(config.busy_poll.as_micros()).unwrap_or(i32::MAX as u32);
        let wanted = EpollParams::polling(micros, QueueSettings::BUSY_POLL_BUDGET);
        if let Err(error) = driver.instance().set_params(wanted) {
            start.params_error = Some(error.to_string());
            return Ok((None, start));
        }
    }
    match (adaptation, driver.ring()) {
        (Adaptation::NotPolled, _) | (Adaptation::Fixed, None) => {}
        (Adaptation::Fixed, Some(ring)) => {
            let time = config.busy_poll.max(RING_BUSY_POLL);
            let polled = ring.set_polling(napi_id, time, (Duration::ZERO, Duration::ZERO));
            start.ring_polls = Some(polled.map_err(|error| error.to_string()));
        }
        (Adaptation::Controller(_), Some(_)) if polling != QueuePolling::ByController => {
            start.no_controller = Some(format!(
                "this process can't set the values of NAPI {napi_id}, which needs CAP_NET_ADMIN, and the uring driver can't \
                 poll with those that others have set; use epoll or auto"
            ));
        }
        (Adaptation::Controller(controller), ring) => {
            if ring.is_some() {
                controller.set_ring();
            }
            // On epoll the call has succeeded above.
            driver.set_polling(napi_id, &controller.in_effect())?;
            return Ok((Some(*controller), start));
        }
        (Adaptation::Unprepared, _) => {
            start.no_controller = Some(format!(
                "NAPI {napi_id} defers no interrupts, and this process could not set that, which needs CAP_NET_ADMIN; \
                 `policies apply` prepares a queue for processes without it"
            ));
            // Waits that poll a queue which defers nothing take the interrupts as well.
            driver.set_polling(napi_id, &QueueSettings::interrupts(Reason::Fixed))?;
        }
    }
    Ok((None, start))
}

fn queue_control(runtime: &RuntimeState, worker: usize, napi_id: u32) -> Adaptation {
    let settings = &runtime.config.settings;
    let queue = runtime.host.queues.get(worker).copied();
    let interface = runtime.config.interface.as_deref().unwrap_or_default();
    let may_set = |queue: u32| {
        let knob = Knob::NapiDeferHardIrqs { queue };
        // The supervisor may still set them where this thread has given up its privileges since, as
        // that of worker 0 can between `build` and `block_on`.
        let can_be_set = || runtime.host.requests.as_ref().is_some_and(|requests| requests.can_be_set());
        runtime.host.adaptable.contains(&queue)
            && (policies::may_set(&knob, interface).is_ok() || can_be_set())
    };
    let settable = queue.filter(|queue| may_set(*queue));
    let Ok(napi) = Netdev::open().and_then(|mut netdev| netdev.napi(napi_id)) else {
        return Adaptation::Fixed;
    };
    let fixed = if settable.is_some() {
        None
    } else {
        let preset = preset(&napi);
        match napi.defer_hard_irqs {
            Some(_) if !preset.polls() => return Adaptation::Unprepared,
            Some(_) if napi.irq_suspend_timeout.is_some_and(|timeout| timeout > 0) => Some(preset),
            _ => return Adaptation::Fixed,
        }
    };
    let ring = policies::host::interface(interface).ok().and_then(|interface| interface.rx_ring);
    let limits = ControllerLimits {
        ring_slots: ring.map_or(ControllerLimits::default().ring_slots, |ring| ring.size),
        fixed,
        polls_always: runtime.config.options.polls_always,
        timer: if sys::waits_in_nanoseconds() { PollTimer::Epoll } else { PollTimer::Kernel },
    };
    let controller = PollingController::new(settings.poll_interval, limits);
    let requests = settable.and(runtime.host.requests.clone());
    let queue = settable.unwrap_or(0);
    let control = QueueControl::new(queue, requests, controller, monotonic_nanos());
    let control = control.forced_by(runtime.config.options.forced.clone());
    Adaptation::Controller(Box::new(control))
}

/// The value for `SO_BUSY_POLL` of the worker's sockets, if that is the fallback in effect.
pub(crate) fn socket_busy_poll(runtime: &RuntimeState, worker: &WorkerHandle) -> Option<Duration> {
    let report = worker.locked_report();
    let fallback = report.as_ref().is_some_and(|report| report.running == Running::SoBusyPoll);
    fallback.then(|| runtime.config.busy_poll.max(Duration::from_micros(1)))
}

/// While it lives, the calling thread runs a worker. Dropping it puts the thread's affinity and
/// timer slack back: the thread of a `block_on` is its caller's.
pub(crate) struct WorkerThread {
    handle: Arc<WorkerHandle>,
    /// Put back after the worker has ceased to follow its interrupt.
    _before: KeptSettings,
}

impl WorkerThread {
    pub(crate) fn enter(runtime: &RuntimeState, index: usize) -> io::Result<Self> {
        let handle = Arc::clone(&runtime.workers[index]);
        handle.thread.get_or_init(|| gettid().as_raw_nonzero().get());
        let before = KeptSettings::new();
        // From here on the worker follows its interrupt.
        handle.set_in_loop(true);
        let entered = Self { handle, _before: before };
        let core = runtime.core_of(index);
        if let Some(core) = core {
            pin(core)?;
            entered.handle.report_core(core);
        }
        // With the default slack, a timeout of 1 ns sleeps for up to 50 µs.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        Ok(entered)
    }
}

impl Drop for WorkerThread {
    fn drop(&mut self) {
        self.handle.set_in_loop(false);
    }
}

fn pin(core: u32) -> io::Result<()> {
    if core as usize >= CpuSet::MAX_CPU {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("there is no core {core}")));
    }
    Cpus::one(core)
        .pin(None)
        .map_err(|error| io::Error::other(format!("cannot pin it to core {core}: {error}")))
}
