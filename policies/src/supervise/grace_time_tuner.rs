//! Tunes the grace time of an applied policy's queues under load.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::change::Change;
use super::grace_time_search::GraceTimeSearch;
use crate::apply::Guard;
use crate::host::device::Device;
use crate::knob::{Knob, Value};
use crate::netlink::netdev::{NapiSetting, Netdev};
use crate::plan::GraceTime;
use crate::plan::grace_time::nanos;
use crate::policy::Policy;

/// How long a candidate is in effect before it is measured: connections that wait for each other's
/// responses need some round trips to reach their new rate.
const SETTLING_TIME: Duration = Duration::from_millis(2);
/// How long a candidate is measured.
const MEASURING_TIME: Duration = Duration::from_millis(10);
/// How long one call may search, so that links are still checked.
const SEARCH_TIME: Duration = Duration::from_millis(600);
/// How often a settled search is repeated.
const RECHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Bytes per second below which rates are not comparable: some two thousand small requests.
const MIN_LOAD: f64 = 100_000.0;

/// Checks without load after which a queue counts as idle, for which the shortest grace time is best.
const IDLE_CHECKS: u32 = 2;

/// Returns the bytes that the worker of a receive queue has received so far.
type ReceivedBytes = Box<dyn FnMut(u32) -> u64 + Send>;

pub(super) struct GraceTimeTuner {
    queues: Vec<TunedQueue>,
    received_bytes: ReceivedBytes,
    last_check: Instant,
    last_search: Option<Instant>,
}

struct TunedQueue {
    queue: u32,
    /// The NAPI's id; `None` while the queue has no NAPI.
    napi: Option<u32>,
    search: GraceTimeSearch,
    /// The grace time between trials.
    grace_time: Duration,
    /// The received bytes at the last check.
    received_bytes: u64,
    is_loaded: bool,
    /// Consecutive checks without load.
    idle_checks: u32,
}

impl GraceTimeTuner {
    /// Tunes the queues whose grace time the guard has set, if the plan asks for it.
    pub(super) fn new(guard: &Guard, mut received_bytes: ReceivedBytes) -> Self {
        let grace_time = guard.plan().settings.gro_flush_timeout;
        let is_tuned =
            guard.plan().policy == Policy::KernelPolling && matches!(grace_time, GraceTime::Adaptive { .. });
        let set = guard.applied().iter().filter(|applied| is_tuned && applied.outcome.is_ok());
        let queues = set
            .filter_map(|applied| match (&applied.knob, &applied.target) {
                (Knob::NapiGroFlushTimeout { queue }, Value::Number(nanos)) => Some(TunedQueue {
                    queue: *queue,
                    napi: None,
                    search: GraceTimeSearch::new(grace_time.candidates(), u64::from(*queue)),
                    grace_time: Duration::from_nanos(*nanos),
                    received_bytes: received_bytes(*queue),
                    is_loaded: false,
                    idle_checks: 0,
                }),
                _ => None,
            })
            .collect();
        Self { queues, received_bytes, last_check: Instant::now(), last_search: None }
    }

    /// Tries candidates on loaded queues if a search is due. Called about once a second.
    pub(super) fn run(&mut self, guard: &mut Guard, stop: &AtomicBool, on_change: &mut dyn FnMut(&Change)) {
        if self.queues.is_empty() {
            return;
        }
        self.check_load();
        let mut loaded = self.queues.iter().filter(|queue| queue.is_loaded).peekable();
        let any_loaded = loaded.peek().is_some();
        let settled = loaded.all(|queue| queue.search.is_settled());
        let checked_recently = self.last_search.is_some_and(|time| time.elapsed() < RECHECK_INTERVAL);
        let search_due = any_loaded && !(settled && checked_recently);
        let must_reset = |queue: &TunedQueue| {
            queue.idle_checks >= IDLE_CHECKS && queue.grace_time != queue.search.chosen()
        };
        if !search_due && !self.queues.iter().any(must_reset) {
            return;
        }
        let Ok(mut netdev) = Netdev::open() else { return };
        self.look_up_napis(guard, on_change);
        let before: Vec<(u32, Duration)> =
            self.queues.iter().map(|queue| (queue.queue, queue.grace_time)).collect();
        let mut result = Ok(());
        if search_due {
            let time = if settled { Duration::ZERO } else { SEARCH_TIME };
            result = self.search(guard, &mut netdev, stop, time);
            self.last_search = Some(Instant::now());
        }
        // Also after an error, so that no candidate stays in effect.
        result = result.and(self.set_chosen(guard, &mut netdev));
        if let Err(error) = result.as_ref()
            && is_permanent(error)
        {
            for queue in self.queues.drain(..) {
                let (queue, time) = (queue.queue, queue.grace_time);
                on_change(&Change::TuningStopped { queue, time, reason: error.to_string() });
            }
        }
        for queue in &self.queues {
            if !before.contains(&(queue.queue, queue.grace_time)) {
                on_change(&Change::GraceTime { queue: queue.queue, time: queue.grace_time });
            }
        }
    }

    /// Updates which queues are loaded.
    fn check_load(&mut self) {
        let seconds = std::mem::replace(&mut self.last_check, Instant::now()).elapsed().as_secs_f64();
        for queue in &mut self.queues {
            let now = (self.received_bytes)(queue.queue);
            let before = std::mem::replace(&mut queue.received_bytes, now);
            queue.is_loaded = now.wrapping_sub(before) as f64 > MIN_LOAD * seconds;
            queue.idle_checks = if queue.is_loaded { 0 } else { queue.idle_checks.saturating_add(1) };
            if queue.idle_checks == IDLE_CHECKS {
                queue.search.reset();
            }
        }
    }

    /// Updates the NAPI ids, which change when a link is reopened. Stops tuning queues whose grace time
    /// another process has set.
    fn look_up_napis(&mut self, guard: &Guard, on_change: &mut dyn FnMut(&Change)) {
        let device = Device::new(&guard.plan().interface, guard.plan().ifindex);
        self.queues.retain_mut(|queue| {
            let napi = device.napi(queue.queue).ok();
            queue.napi = napi.as_ref().map(|napi| napi.id);
            let Some(nanos) = napi.and_then(|napi| napi.gro_flush_timeout) else { return true };
            let now = Duration::from_nanos(nanos);
            // A device that was reset has 0; the supervisor sets it again.
            let is_own = now.is_zero() || now == queue.grace_time || queue.search.candidates().contains(&now);
            if !is_own {
                let reason = format!("another process has set it to {} µs", now.as_micros());
                on_change(&Change::TuningStopped { queue: queue.queue, time: now, reason });
            }
            is_own
        });
    }

    /// Runs rounds for `time`, at least one.
    fn search(
        &mut self,
        guard: &Guard,
        netdev: &mut Netdev,
        stop: &AtomicBool,
        time: Duration,
    ) -> io::Result<()> {
        let start = Instant::now();
        while !stop.load(Ordering::Acquire) {
            self.run_round(guard, netdev)?;
            if start.elapsed() >= time {
                break;
            }
        }
        Ok(())
    }

    /// Sets each queue to the candidate that its search has chosen.
    fn set_chosen(&mut self, guard: &mut Guard, netdev: &mut Netdev) -> io::Result<()> {
        let mut result = Ok(());
        for queue in &mut self.queues {
            let (Some(napi), chosen) = (queue.napi, queue.search.chosen()) else { continue };
            match set_grace_time(guard, netdev, napi, chosen) {
                Ok(()) => {
                    queue.grace_time = chosen;
                    guard.set_grace_time_target(queue.queue, chosen);
                }
                Err(error) => result = Err(error),
            }
        }
        result
    }

    /// Measures each candidate once, on all loaded queues at the same time.
    fn run_round(&mut self, guard: &Guard, netdev: &mut Netdev) -> io::Result<()> {
        let orders: Vec<Vec<usize>> = self.queues.iter_mut().map(|queue| queue.search.order()).collect();
        let mut rates: Vec<Vec<f64>> = orders.iter().map(|order| vec![0.0; order.len()]).collect();
        let trials = orders.first().map_or(0, Vec::len);
        for trial in 0..trials {
            for (queue, order) in self.queues.iter().zip(&orders).filter(|(queue, _)| queue.is_loaded) {
                let Some(napi) = queue.napi else { continue };
                set_grace_time(guard, netdev, napi, queue.search.candidates()[order[trial]])?;
            }
            thread::sleep(SETTLING_TIME);
            let (start, before) = (Instant::now(), self.read_received_bytes());
            thread::sleep(MEASURING_TIME);
            let (after, seconds) = (self.read_received_bytes(), start.elapsed().as_secs_f64());
            for (queue, order) in orders.iter().enumerate() {
                rates[queue][order[trial]] = after[queue].wrapping_sub(before[queue]) as f64 / seconds;
            }
        }
        for (queue, rates) in self.queues.iter_mut().zip(&rates) {
            if queue.is_loaded && queue.napi.is_some() {
                queue.search.record(rates);
            }
        }
        Ok(())
    }

    fn read_received_bytes(&mut self) -> Vec<u64> {
        self.queues.iter().map(|queue| (self.received_bytes)(queue.queue)).collect()
    }
}

/// Whether a retry can't succeed: without permission, or without support by the kernel. Other errors (a
/// NAPI that was just removed, no free descriptor) may pass.
fn is_permanent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported)
}

/// Sets a NAPI's grace time, unless the host has been restored.
fn set_grace_time(guard: &Guard, netdev: &mut Netdev, napi: u32, time: Duration) -> io::Result<()> {
    let set = || netdev.set_napi(napi, NapiSetting::GroFlushTimeout, nanos(time));
    guard.while_applied(set).unwrap_or(Ok(()))
}
