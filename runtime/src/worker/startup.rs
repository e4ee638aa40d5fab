//! How a worker starts: its thread is pinned, its driver opened, and busy polling set and read back.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use policies::Cpus;

use super::event_loop::Worker;
use super::report::{ReportInputs, Running};
use super::worker_handle::WorkerHandle;
use crate::driver::Driver;
use crate::driver::driver_kind::DriverKind;
use crate::driver::epoll_sys::EpollParams;
use crate::runtime_state::RuntimeState;

/// The shortest time for which a ring is set to busy-poll: with 0 it would not poll at all.
const RING_BUSY_POLL: Duration = Duration::from_micros(50);
/// How many packets one poll of a NAPI takes: the most that is allowed without `CAP_NET_ADMIN`.
const BUSY_POLL_BUDGET: u16 = 64;

/// Makes the calling thread's worker, and stores its report.
pub(crate) fn make_worker(runtime: &Arc<RuntimeState>, index: usize) -> io::Result<Rc<Worker>> {
    let handle = Arc::clone(&runtime.workers[index]);
    let thread_id = rustix::thread::gettid().as_raw_nonzero().get();
    handle.thread.get_or_init(|| thread_id);
    let core = runtime.core_of(index);
    if let Some(core) = core {
        pin(core)?;
    }
    // With the default slack, a timeout of 1 ns sleeps for up to 50 µs.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    let config = &runtime.config;
    let split = config.policy.busy_polls() && config.interface.is_some();
    let (driver, driver_note) = Driver::open(config.driver, split, config.max_events, &handle.wake)?;
    driver.publish_ring()?;
    let mut params_error = None;
    let mut ring_polls = None;
    let napi_id = handle.napi.load(Ordering::Relaxed);
    if split && let Some(ring) = driver.ring().filter(|_| driver.kind() == DriverKind::Uring) {
        let polled = ring.poll_napi(napi_id, config.busy_poll.max(RING_BUSY_POLL));
        ring_polls = Some(polled.map_err(|error| error.to_string()));
    } else if split {
        let micros = u32::try_from(config.busy_poll.as_micros()).unwrap_or(i32::MAX as u32);
        let wanted = EpollParams::new(micros, BUSY_POLL_BUDGET);
        params_error = driver.epoll().set_params(wanted).err().map(|error| error.to_string());
    }
    let report = ReportInputs {
        worker: index,
        core,
        asked: config.policy,
        napi_id,
        interface: config.interface.as_deref(),
        applied: &runtime.applied,
        host_notes: &runtime.host_notes,
        params_error,
        ring_polls,
        driver_note,
        so_busy_poll: split,
    }
    .report(&driver);
    // As it runs, not as it was requested: without a suspend timeout nothing is suspended.
    let suspends = report.running == Running::KernelPolling;
    if let Some(ring) = driver.ring().filter(|_| suspends) {
        ring.set_suspends();
    }
    if suspends && report.napi.as_ref().is_some_and(|napi| napi.threaded.is_some_and(|threaded| threaded > 0))
    {
        driver.epoll().set_napi_thread();
    }
    tracing::debug!(%report, "worker started");
    handle.set_report(report);
    Ok(Worker::new(Arc::clone(runtime), handle, driver, config.wait))
}

fn pin(core: u32) -> io::Result<()> {
    if core as usize >= rustix::thread::CpuSet::MAX_CPU {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("there is no core {core}")));
    }
    Cpus::one(core)
        .pin(None)
        .map_err(|error| io::Error::other(format!("cannot pin it to core {core}: {error}")))
}

/// The value for `SO_BUSY_POLL` of the worker's sockets, if that is the fallback in effect.
pub(crate) fn socket_busy_poll(runtime: &RuntimeState, worker: &WorkerHandle) -> Option<Duration> {
    let report = worker.locked_report();
    let fallback = report.as_ref().is_some_and(|report| report.running == super::report::Running::SoBusyPoll);
    fallback.then(|| runtime.config.busy_poll.max(Duration::from_micros(1)))
}
