//! Kernel polling that adapts: a worker counts its queue's packets and its time awake, and applies
//! what the controller chooses.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use policies::controller::{Epoch, ForcedSettings, PollingController, QueueMode, QueueSettings, Reason};
use policies::thread_time::this_thread_cpu_time;
use policies::{ChangeStep, QueueChange, QueueRequests};

use super::worker_handle::WorkerHandle;
use crate::driver::Driver;
use crate::driver::wait::WaitOutcome;

/// How often the controller is asked.
const STEP: Duration = Duration::from_millis(10);
/// For how long nobody may poll the queue when a worker stops polling.
const LONGEST_INTERRUPTION: Duration = Duration::from_millis(1);
/// The payload of a full Ethernet frame with TCP timestamps, in bytes.
const SEGMENT: u64 = 1_448;

/// The readings at the last step.
#[derive(Debug, Clone, Copy, Default)]
struct Reading {
    time: u64,
    received_bytes: u64,
    sent_bytes: u64,
    /// Of all sockets, those of other queues included, as the bytes are.
    events: u64,
    /// The thread's CPU time if it waits on a ring, and its time in waits that could sleep.
    cpu: Duration,
    parked: u64,
}

/// The controller of one worker's queue, and its state.
pub(crate) struct QueueControl {
    controller: RefCell<PollingController>,
    forced: Option<ForcedSettings>,
    change: RefCell<QueueChange>,
    last: Cell<Reading>,
    next_step: Cell<u64>,
    /// Events of the queue since the last step.
    events: Cell<u64>,
}

impl QueueControl {
    /// `now`: on the clock of the event loop.
    pub(crate) fn new(
        queue: u32,
        requests: Option<Arc<QueueRequests>>,
        controller: PollingController,
        now: u64,
    ) -> Self {
        Self {
            change: RefCell::new(QueueChange::new(queue, requests, *controller.settings())),
            controller: RefCell::new(controller),
            forced: None,
            last: Cell::new(Reading { time: now, cpu: this_thread_cpu_time(), ..Reading::default() }),
            next_step: Cell::new(now + STEP.as_nanos() as u64),
            events: Cell::new(0),
        }
    }

    /// The same, whose settings a test may choose in the place of the controller.
    pub(crate) fn forced_by(self, forced: Option<ForcedSettings>) -> Self {
        Self { forced, ..self }
    }

    /// The worker waits on a ring.
    pub(crate) fn set_ring(&self) {
        self.controller.borrow_mut().set_ring();
    }

    /// The settings with which the queue is driven.
    pub(crate) fn in_effect(&self) -> QueueSettings {
        self.change.borrow().in_effect()
    }

    /// The queue's values if this process can't set them: those that it had when the worker
    /// started.
    pub(crate) fn kept_values(&self) -> Option<QueueSettings> {
        let change = self.change.borrow();
        (!change.can_set_values()).then(|| change.in_effect())
    }

    /// Whether the next wait must not sleep, because the worker stops polling after one that
    /// returns no event.
    pub(crate) fn needs_pass(&self) -> bool {
        self.change.borrow().stops_polling()
    }

    /// When a wait that begins now has to end at the latest, on the monotonic clock.
    pub(crate) fn end_of_wait(&self, now: u64) -> Option<u64> {
        let next = self.change.borrow().next_step(Duration::from_nanos(now), STEP)?;
        u64::try_from(next.as_nanos()).ok()
    }

    /// Takes in what a wait has brought.
    pub(crate) fn waited(&self, outcome: &WaitOutcome) {
        self.events.set(self.events.get() + outcome.queue_events as u64);
    }

    /// Asks the controller every [`STEP`], and applies the settings that it has chosen. Called after each
    /// wait.
    pub(crate) fn update(&self, now: u64, worker: &WorkerHandle, driver: &Driver) {
        let mut change = self.change.borrow_mut();
        if change.is_settled() && now < self.next_step.get() {
            return;
        }
        let step = change.step(Duration::from_nanos(now), driver.is_suspended());
        drop(change);
        match step {
            ChangeStep::Wait => {}
            ChangeStep::Choose { retries } => {
                self.next_step.set(now + STEP.as_nanos() as u64);
                let followed = driver.follow_napi(napi(worker));
                let epoch = self.measure(now, worker, driver);
                let mut controller = self.controller.borrow_mut();
                if let Err(error) = &followed {
                    tracing::warn!(worker = worker.index, %error, "the queue's new NAPI can't be polled");
                }
                if followed.is_err() || driver.polls_have_failed() {
                    controller.stop_polling(Reason::Failed);
                }
                if retries {
                    controller.release();
                }
                let chosen = match &self.forced {
                    Some(forced) => forced.take(),
                    None => controller.step(&epoch),
                };
                let settings = *controller.settings();
                drop(controller);
                if let Some(settings) = chosen {
                    self.start(now, settings, worker, driver);
                } else if settings != self.in_effect() && settings.equals_but_reason(&self.in_effect()) {
                    self.change.borrow_mut().set_reason(settings.why);
                    worker.set_queue_settings(settings);
                }
            }
            ChangeStep::ValuesSet(settings) => self.set_waiting(now, settings, worker, driver),
            ChangeStep::ValuesSetLate(settings) => {
                self.controller.borrow_mut().resume(settings);
                self.set_waiting(now, settings, worker, driver);
            }
            ChangeStep::Refused(settings) => {
                // The supervisor has reported the reason.
                self.keep_values(settings, Reason::Fixed, worker, driver);
            }
            ChangeStep::Unanswered(settings) => {
                tracing::warn!(
                    worker = worker.index,
                    "the supervisor does not answer: the queue is not driven by {settings}"
                );
                self.keep_values(settings, Reason::Unsupervised, worker, driver);
            }
            ChangeStep::Unsupervised => {
                tracing::warn!(
                    worker = worker.index,
                    "the supervisor has ended: interrupts drive the queue from now on"
                );
                self.controller.borrow_mut().supervisor_ended(self.in_effect());
            }
            ChangeStep::SetWaits(settings) => self.finish(now, settings, worker, driver),
        }
    }

    /// The queue keeps the values in effect for now, because those of `settings` could not be set.
    fn keep_values(&self, settings: QueueSettings, why: Reason, worker: &WorkerHandle, driver: &Driver) {
        let mut in_effect = self.in_effect();
        in_effect.why = why;
        if settings.mode == QueueMode::Timed {
            let _ = driver.set_polling(napi(worker), &in_effect);
        }
        self.controller.borrow_mut().fix(in_effect);
    }

    fn measure(&self, now: u64, worker: &WorkerHandle, driver: &Driver) -> Epoch {
        let counters = &worker.counters;
        let reading = Reading {
            time: now,
            received_bytes: counters.received_bytes.get(),
            sent_bytes: counters.sent_bytes.get(),
            events: counters.events.get(),
            // A ring sends and receives within waits. A wait in epoll only polls, and takes half of the
            // time of a worker that is idle.
            cpu: driver.ring().map_or(Duration::ZERO, |_| this_thread_cpu_time()),
            parked: counters.parked_ns.get(),
        };
        let last = self.last.replace(reading);
        let events = self.events.take();
        // The queue's part of the bytes.
        let share = events as f64 / (reading.events - last.events).max(events).max(1) as f64;
        let part = |bytes: u64| (bytes as f64 * share) as u64;
        let events = data_packets(events, part(reading.received_bytes - last.received_bytes));
        let packets = events + acknowledgements(part(reading.sent_bytes - last.sent_bytes));
        let duration = Duration::from_nanos(now - last.time);
        // Outside of waits the queue's kernel thread, or what interrupts do, may have the core.
        let outside = duration.saturating_sub(Duration::from_nanos(reading.parked - last.parked));
        Epoch { duration, events, packets, busy: outside.max(reading.cpu.saturating_sub(last.cpu)) }
    }

    /// First the queue's values, then the wait.
    fn start(&self, now: u64, settings: QueueSettings, worker: &WorkerHandle, driver: &Driver) {
        if !self.change.borrow().needs_values(&settings) {
            return self.set_waiting(now, settings, worker, driver);
        }
        // Before the values: with them, nobody else polls until the watchdog does.
        if settings.mode == QueueMode::Timed
            && let Err(error) = driver.set_polling(napi(worker), &settings)
        {
            tracing::warn!(worker = worker.index, %error, "the queue can't be polled; interrupts drive it from now on");
            return self.controller.borrow_mut().stop_polling(Reason::Failed);
        }
        self.change.borrow_mut().request(Duration::from_nanos(now), settings);
    }

    fn set_waiting(&self, now: u64, settings: QueueSettings, worker: &WorkerHandle, driver: &Driver) {
        // A saturated worker may have no wait without events for long. Then the kernel resumes the
        // queue after the suspend timeout, which is short where packets come often.
        let is_short = self.in_effect().suspend_timeout <= LONGEST_INTERRUPTION;
        let end = is_short.then(|| Duration::from_nanos(now) + STEP);
        let step = self.change.borrow_mut().values_set(settings, end);
        if let ChangeStep::SetWaits(settings) = step {
            self.finish(now, settings, worker, driver);
        }
    }

    fn finish(&self, now: u64, settings: QueueSettings, worker: &WorkerHandle, driver: &Driver) {
        if let Err(error) = driver.set_polling(napi(worker), &settings) {
            tracing::warn!(worker = worker.index, %error, "the wait can't be set to {settings}");
            if settings.mode == QueueMode::Timed {
                // The queue has its values, so others have to be asked for.
                self.change.borrow_mut().finish(settings);
                return self.controller.borrow_mut().stop_polling(Reason::Failed);
            }
            self.controller.borrow_mut().fix(self.in_effect());
            self.change.borrow_mut().abandon(Duration::from_nanos(now));
            return;
        }
        self.change.borrow_mut().finish(settings);
        // What was measured since the controller has chosen them belongs to neither mode.
        let _ = self.measure(now, worker, driver);
        self.next_step.set(now + STEP.as_nanos() as u64);
        worker.set_queue_settings(settings);
        tracing::debug!(worker = worker.index, "the queue is driven by {settings}");
    }
}

/// The NAPI that the worker polls at present.
fn napi(worker: &WorkerHandle) -> u32 {
    worker.napi.load(Ordering::Relaxed)
}

/// How many packets have brought `events` events and this many bytes, at least.
fn data_packets(events: u64, received_bytes: u64) -> u64 {
    events.max(received_bytes / SEGMENT)
}

/// About how many packets acknowledge this many sent bytes: one for each two segments (RFC 9293,
/// section 3.8.6.3), fewer where the peer merges segments. They are in the receive ring too, and
/// are no events.
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
