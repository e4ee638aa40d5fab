//! Kernel polling that adapts: a worker measures its waits, and applies what the law chooses.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use policies::law::{Epoch, PollingLaw, QueueMode, QueueSettings};
use policies::thread_time::{AwakeTime, this_thread_cpu_time};
use policies::{ChangeStep, QueueChange, QueueRequests};

use super::worker_handle::WorkerHandle;
use crate::counters::worker_counters::WorkerCounters;
use crate::driver::Driver;

/// How often the law is asked.
const STEP: Duration = Duration::from_millis(10);
/// What the kernel takes at most to receive and report one event within a wait. A wait that took no longer than its
/// events was not a sleep.
const EVENT_TIME: Duration = Duration::from_nanos(1_500);
/// For how long nobody may poll the queue when a worker stops polling.
const LONGEST_INTERRUPTION: Duration = Duration::from_millis(1);
/// About what an interrupt and its softirq take for one packet.
const INTERRUPT: Duration = Duration::from_nanos(1_500);
/// The payload of a full Ethernet frame with TCP timestamps, in bytes.
const SEGMENT: u64 = 1_448;

/// The readings at the last step.
#[derive(Debug, Clone, Copy)]
struct Reading {
    time: u64,
    events: u64,
    received_bytes: u64,
    sent_bytes: u64,
    /// As far as the kernel counts it.
    threads: Option<ThreadTimes>,
}

/// How the worker's thread and its queue's have spent their time so far.
#[derive(Debug, Clone, Copy)]
struct ThreadTimes {
    /// How long the worker has run.
    run: Duration,
    /// How long the worker was ready while others had its core.
    ready: Duration,
    /// How long the kernel thread that polls the queue has run; `None` if there is none.
    received: Option<Duration>,
}

impl ThreadTimes {
    /// The CPU time of the worker and of the kernel's work for its queue, and how long the worker waited for its core
    /// beyond that, with `sleeps` in between and `packets` received.
    fn since(&self, before: &Self, sleeps: u32, packets: u64) -> (Duration, Duration) {
        let run = self.run.saturating_sub(before.run);
        let ready = self.ready.saturating_sub(before.ready);
        match (before.received, self.received) {
            (Some(before), Some(after)) => {
                let received = after.saturating_sub(before);
                // While the kernel thread has the worker's core, the worker is ready.
                (run + received, ready.saturating_sub(received))
            }
            // Interrupts do the kernel's work. While they hold up the worker, it is running or ready; while it sleeps,
            // it is neither. The rest of the time in which it was ready, other programs had the core.
            _ => {
                let in_interrupts = ready.min(INTERRUPT * u32::try_from(packets).unwrap_or(u32::MAX));
                (run + in_interrupts + INTERRUPT * sleeps, ready - in_interrupts)
            }
        }
    }
}

/// The law of one worker's queue, and its state.
pub(crate) struct QueueControl {
    law: RefCell<PollingLaw>,
    change: RefCell<QueueChange>,
    busy_poll_budget: u16,
    /// The worker's thread; `None` where the kernel does not count. Then the lengths of waits are used.
    thread: Option<AwakeTime>,
    /// The kernel thread that polls the queue, if there is one.
    napi_thread: Option<AwakeTime>,
    last: Cell<Reading>,
    next_step: Cell<u64>,
    /// The waits that put the worker to sleep since the last step.
    sleeps: Cell<u32>,
    /// The sum of those sleeps' lengths.
    slept: Cell<Duration>,
}

impl QueueControl {
    /// `thread`: the worker's thread id. `napi_thread`: the id of the kernel thread that polls the queue. `now`: on the
    /// clock of the event loop.
    pub(crate) fn new(
        queue: u32,
        requests: Option<Arc<QueueRequests>>,
        law: PollingLaw,
        busy_poll_budget: u16,
        thread: i32,
        napi_thread: Option<i32>,
        now: u64,
    ) -> Self {
        let control = Self {
            change: RefCell::new(QueueChange::new(queue, requests, *law.settings())),
            law: RefCell::new(law),
            busy_poll_budget,
            thread: AwakeTime::open(thread).ok(),
            napi_thread: napi_thread.and_then(|thread| AwakeTime::open(thread).ok()),
            last: Cell::new(Reading {
                time: now,
                events: 0,
                received_bytes: 0,
                sent_bytes: 0,
                threads: None,
            }),
            next_step: Cell::new(now + STEP.as_nanos() as u64),
            sleeps: Cell::new(0),
            slept: Cell::new(Duration::ZERO),
        };
        let threads = control.thread_times();
        control.last.set(Reading { threads, ..control.last.get() });
        control
    }

    /// The settings with which the queue is driven.
    pub(crate) fn in_effect(&self) -> QueueSettings {
        self.change.borrow().in_effect()
    }

    /// The queue's values if this process can't set them: those that it had when the worker started.
    pub(crate) fn kept_values(&self) -> Option<QueueSettings> {
        let change = self.change.borrow();
        (!change.can_set_values()).then(|| change.in_effect())
    }

    /// Whether the next wait must not sleep, because the worker stops polling after one that returns no event.
    pub(crate) fn needs_pass(&self) -> bool {
        self.change.borrow().stops_polling()
    }

    /// Takes in the length of a wait that could sleep.
    pub(crate) fn waited(&self, nanos: u64, events: usize) {
        let waited = Duration::from_nanos(nanos);
        let costs = self.law.borrow().costs();
        let receiving = EVENT_TIME * events.try_into().unwrap_or(u32::MAX);
        if waited <= costs.block + receiving {
            // The gaps that a spin catches are those that it is there for. Without them it would look useless.
            if events > 0 && !self.in_effect().spin.is_zero() && waited > receiving {
                self.law.borrow_mut().record_gap(waited - receiving);
            }
            return;
        }
        self.sleeps.set(self.sleeps.get() + 1);
        self.slept.set(self.slept.get() + waited);
        if events > 0 {
            self.law.borrow_mut().record_gap(waited.saturating_sub(costs.wake_latency));
        }
    }

    /// Asks the law if it is time, and carries on with what it has chosen. Called after each wait.
    pub(crate) fn update(&self, now: u64, worker: &WorkerHandle, driver: &Driver) {
        let mut change = self.change.borrow_mut();
        if change.is_settled() && now < self.next_step.get() {
            return;
        }
        let step = change.step(Duration::from_nanos(now), driver.epoll().is_suspended());
        drop(change);
        match step {
            ChangeStep::Wait => {}
            ChangeStep::Choose { retries } => {
                self.next_step.set(now + STEP.as_nanos() as u64);
                let epoch = self.measure(now, &worker.counters);
                let mut law = self.law.borrow_mut();
                if retries {
                    law.release();
                }
                let chosen = law.step(&epoch);
                let settings = *law.settings();
                drop(law);
                if chosen.is_some() {
                    self.start(now, settings, worker, driver);
                } else if settings != self.in_effect() {
                    // Another reason for the same values.
                    self.change.borrow_mut().finish(settings);
                    worker.set_queue_settings(settings);
                }
            }
            ChangeStep::ValuesSet(settings) => self.set_waiting(now, settings, worker, driver),
            ChangeStep::Refused(settings) => {
                // The supervisor has reported the reason. The queue keeps the values in effect for now.
                if settings.mode == QueueMode::Timed {
                    let _ = driver.set_polling(&self.in_effect(), self.busy_poll_budget);
                }
                self.law.borrow_mut().fix(self.in_effect());
            }
            ChangeStep::SetWaits(settings) => self.finish(now, settings, worker, driver),
        }
    }

    fn measure(&self, now: u64, counters: &WorkerCounters) -> Epoch {
        let reading = Reading {
            time: now,
            events: counters.events.get(),
            received_bytes: counters.received_bytes.get(),
            sent_bytes: counters.sent_bytes.get(),
            threads: self.thread_times(),
        };
        let last = self.last.replace(reading);
        let duration = Duration::from_nanos(now - last.time);
        let (sleeps, slept) = (self.sleeps.take(), self.slept.take());
        let events = reading.events - last.events;
        let data = data_packets(events, reading.received_bytes - last.received_bytes);
        // In timed mode nothing interrupts.
        let is_timed = self.in_effect().mode == QueueMode::Timed;
        let (sleeps, interrupting) = if is_timed { (0, 0) } else { (sleeps, data) };
        let packets = data + acknowledgements(reading.sent_bytes - last.sent_bytes);
        let (cpu, waiting) = match (last.threads, reading.threads) {
            // Without acknowledgements: one interrupt takes many, and few are sent where segments are merged (GRO).
            (Some(before), Some(after)) => after.since(&before, sleeps, interrupting),
            _ => (duration.saturating_sub(slept) + INTERRUPT * sleeps, Duration::ZERO),
        };
        Epoch { duration, events, packets, cpu, waiting }
    }

    fn thread_times(&self) -> Option<ThreadTimes> {
        let (_, ready) = self.thread.as_ref()?.read().ok()?;
        // Exact at any moment. The first field of schedstat lags behind by up to a tick while the thread runs, which is a
        // good part of a step, and a worker that polls is hardly ever switched out.
        let run = this_thread_cpu_time();
        let received = match &self.napi_thread {
            Some(napi_thread) => Some(napi_thread.read().ok()?.0),
            None => None,
        };
        Some(ThreadTimes { run, ready, received })
    }

    /// First the queue's values, then the wait.
    fn start(&self, now: u64, settings: QueueSettings, worker: &WorkerHandle, driver: &Driver) {
        if !self.change.borrow().needs_values(&settings) {
            return self.set_waiting(now, settings, worker, driver);
        }
        // Before the values: with them, nobody else polls until the watchdog does.
        if settings.mode == QueueMode::Timed
            && let Err(error) = driver.set_polling(&settings, self.busy_poll_budget)
        {
            tracing::warn!(worker = worker.index, %error, "the epoll instance can't be set to {settings}");
        }
        self.change.borrow_mut().request(settings);
    }

    fn set_waiting(&self, now: u64, settings: QueueSettings, worker: &WorkerHandle, driver: &Driver) {
        // A saturated worker may have no wait without events for long. Then the kernel resumes the queue after the
        // suspend timeout, which is short where packets come often.
        let is_short = self.in_effect().suspend_timeout <= LONGEST_INTERRUPTION;
        let end = is_short.then(|| Duration::from_nanos(now) + STEP);
        let step = self.change.borrow_mut().values_set(settings, end);
        if let ChangeStep::SetWaits(settings) = step {
            self.finish(now, settings, worker, driver);
        }
    }

    fn finish(&self, now: u64, settings: QueueSettings, worker: &WorkerHandle, driver: &Driver) {
        if let Err(error) = driver.set_polling(&settings, self.busy_poll_budget) {
            // The same call has succeeded when the worker started.
            self.law.borrow_mut().fix(self.in_effect());
            self.change.borrow_mut().abandon(Duration::from_nanos(now));
            tracing::warn!(worker = worker.index, %error, "the epoll instance can't be set to {settings}");
            return;
        }
        self.change.borrow_mut().finish(settings);
        // What was measured since the law has chosen them belongs to neither mode.
        let _ = self.measure(now, &worker.counters);
        self.next_step.set(now + STEP.as_nanos() as u64);
        worker.set_queue_settings(settings);
        tracing::debug!(worker = worker.index, "the queue is driven by {settings}");
    }
}

/// How many packets have brought `events` events and this many bytes, at least.
fn data_packets(events: u64, received_bytes: u64) -> u64 {
    events.max(received_bytes / SEGMENT)
}

/// About how many packets acknowledge this many sent bytes: one for each two segments (RFC 9293, section 3.8.6.3), fewer where the
/// peer merges segments. They are in the receive ring too, and are no events.
fn acknowledgements(sent_bytes: u64) -> u64 {
    sent_bytes / (2 * SEGMENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_of_large_replies_are_packets_and_those_of_small_ones_come_with_requests() {
        // 1000 requests of 100 bytes each.
        assert_eq!(data_packets(1_000, 100_000), 1_000);
        assert_eq!(acknowledgements(1_000 * 1_000_000), 345_303);
        assert_eq!(acknowledgements(1_000 * 100), 34);
    }
}
