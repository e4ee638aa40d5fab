//! How a worker starts: its driver is opened, and busy polling set and read back.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use policies::Knob;
use policies::controller::{
    Budgets, ControllerLimits, MachineCosts, PollTimer, PollingController, QueueSettings, Reason,
};
use policies::epoll_params::EpollParams;
use policies::netlink::netdev::Netdev;

use super::event_loop::Worker;
use super::queue_control::QueueControl;
use super::report::{NoController, ReportInputs, Running};
use super::worker_handle::WorkerHandle;
use crate::driver::driver_kind::DriverKind;
use crate::driver::epoll_sys;
use crate::driver::{Driver, QueuePolling};
use crate::timers::clock::monotonic_nanos;
use crate::worker::runtime_state::RuntimeState;

/// The shortest time for which a ring is set to busy-poll where the queue's values are fixed: with
/// 0 it would poll once.
const RING_BUSY_POLL: Duration = Duration::from_micros(50);

/// Makes the calling thread's worker, and stores its report. The worker stays on this thread, which
/// is a [`WorkerThread`](super::worker_thread::WorkerThread) while it runs.
pub(crate) fn make_worker(runtime: &Arc<RuntimeState>, index: usize) -> io::Result<Rc<Worker>> {
    let handle = Arc::clone(&runtime.workers[index]);
    let thread_id = rustix::thread::gettid().as_raw_nonzero().get();
    let core = runtime.core_of(index);
    let config = &runtime.config;
    let split = config.policy.busy_polls() && config.interface.is_some();
    let napi_id = handle.napi.load(Ordering::Relaxed);
    let adapts = split && napi_id != 0 && config.policy.adapts(config.settings.gro_flush_timeout);
    let adaptation =
        if adapts { queue_control(runtime, index, napi_id, thread_id) } else { Adaptation::Fixed };
    let polling = match &adaptation {
        _ if !split || napi_id == 0 => QueuePolling::None,
        Adaptation::Controller(control) if control.kept_values().is_none() => QueuePolling::ByController,
        _ => QueuePolling::Fixed,
    };
    let (driver, driver_note) =
        Driver::open(config.driver, polling, config.max_events, &config.ring, &handle.wake)?;
    driver.publish_ring()?;
    let mut params_error = None;
    let mut ring_polls = None;
    let mut no_controller = None;
    let mut control = None;
    let is_ring = driver.kind() == DriverKind::Uring;
    if polling != QueuePolling::None && !is_ring {
        let micros = u32::try_from(config.busy_poll.as_micros()).unwrap_or(i32::MAX as u32);
        let wanted = EpollParams::polling(micros, QueueSettings::BUSY_POLL_BUDGET);
        params_error = driver.epoll().set_params(wanted).err().map(|error| error.to_string());
    }
    match adaptation {
        Adaptation::Controller(controller) if params_error.is_none() => {
            if is_ring && polling != QueuePolling::ByController {
                no_controller = Some(NoController::Ring);
            } else {
                // On epoll the call has succeeded above.
                driver.set_polling(napi_id, &controller.in_effect())?;
                control = Some(*controller);
            }
        }
        Adaptation::Unprepared if params_error.is_none() => {
            no_controller = Some(NoController::Unprepared);
            // Waits that poll a queue which defers nothing take the interrupts as well.
            driver.set_polling(napi_id, &QueueSettings::plain(Reason::Fixed))?;
        }
        _ => {
            if let Some(ring) = driver.ring().filter(|_| split && napi_id != 0) {
                let time = config.busy_poll.max(RING_BUSY_POLL);
                let polled = ring.set_queue_polls(napi_id, time, (Duration::ZERO, Duration::ZERO));
                ring_polls = Some(polled.map_err(|error| error.to_string()));
            }
        }
    }
    let report = ReportInputs {
        worker: index,
        core,
        asked: config.policy,
        napi_id,
        interface: config.interface.as_deref(),
        applied: &runtime.host.applied,
        host_notes: &runtime.host.notes,
        params_error,
        ring_polls,
        driver_note,
        so_busy_poll: split,
        unpolled: runtime.napis.unpolled_queues(index, napi_id),
        budgets: control.as_ref().map(QueueControl::budgets),
        no_controller,
        keeps: control.as_ref().and_then(QueueControl::kept_values),
        wait_note: config.wait_note,
    };
    let mut report = report.report(&driver);
    if let Some(control) = &control {
        report.set_queue_settings(control.in_effect(), Duration::ZERO);
    }
    // As it runs, not as it was requested: without a suspend timeout nothing is suspended.
    let suspends = report.running == Running::KernelPolling;
    if suspends && report.napi.as_ref().is_some_and(|napi| napi.threaded.is_some_and(|threaded| threaded > 0))
    {
        driver.epoll().set_napi_thread();
    }
    tracing::debug!(%report, "worker started");
    // All workers have the same driver.
    let falls_back = report.driver_note.is_some() && index == 0;
    let warning = (falls_back || !report.steps_down.is_empty()).then(|| report.to_string());
    handle.set_report(report);
    let worker = Worker::new(Arc::clone(runtime), handle, driver, control, config.wait);
    warning.into_iter().for_each(|text| worker.early_logs.warn(text));
    Ok(worker)
}

/// Who chooses the values of a worker's queue, under kernel polling with an adaptive grace time.
enum Adaptation {
    /// The worker's controller, as far as this process may set them.
    Controller(Box<QueueControl>),
    /// Nobody: they are those of the device (before Linux 6.13), or can't be read.
    Fixed,
    /// Nobody: this process may not set them, and nobody has set those that polling needs.
    Unprepared,
}

fn queue_control(runtime: &RuntimeState, worker: usize, napi_id: u32, thread: i32) -> Adaptation {
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
        let nanos = |value: Option<u64>| Duration::from_nanos(value.unwrap_or(0));
        let (grace, suspend) = (nanos(napi.gro_flush_timeout), nanos(napi.irq_suspend_timeout));
        let preset = QueueSettings::preset(napi.defer_hard_irqs.unwrap_or(0), grace, suspend);
        match napi.defer_hard_irqs {
            Some(_) if !preset.polls() => return Adaptation::Unprepared,
            Some(_) if !suspend.is_zero() => Some(preset),
            _ => return Adaptation::Fixed,
        }
    };
    let ring = policies::host::interface(interface).ok().and_then(|interface| interface.rx_ring);
    let limits = ControllerLimits {
        ring_slots: ring.map_or(ControllerLimits::default().ring_slots, |ring| ring.size),
        fixed,
        has_to_pay: !runtime.config.ignores_polling_costs,
        timer: if epoll_sys::waits_in_nanoseconds() { PollTimer::Worker } else { PollTimer::Kernel },
    };
    let budgets = Budgets { latency: settings.latency_budget, cpu: runtime.config.cpu_budget };
    let controller = PollingController::new(budgets, MachineCosts::measure(), limits);
    let requests = settable.and(runtime.host.requests.clone());
    let now = monotonic_nanos();
    let napi_thread = napi.pid.and_then(|pid| i32::try_from(pid).ok());
    let queue = settable.unwrap_or(0);
    let control = QueueControl::new(queue, requests, controller, limits.ring_slots, thread, napi_thread, now);
    let control = control.forced_by(runtime.config.forced.clone());
    Adaptation::Controller(Box::new(control))
}

/// The value for `SO_BUSY_POLL` of the worker's sockets, if that is the fallback in effect.
pub(crate) fn socket_busy_poll(runtime: &RuntimeState, worker: &WorkerHandle) -> Option<Duration> {
    let report = worker.locked_report();
    let fallback = report.as_ref().is_some_and(|report| report.running == super::report::Running::SoBusyPoll);
    fallback.then(|| runtime.config.busy_poll.max(Duration::from_micros(1)))
}
