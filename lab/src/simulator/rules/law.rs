//! The law that the runtime uses, asked as a worker asks it (`runtime/src/worker/queue_control.rs`), with grace mode in the place
//! of timed mode.

use std::time::Duration;

use policies::law::{Epoch, LatencyBudget, LawLimits, PollingLaw, QueueMode, QueueSettings};

use super::{Drive, FinishedWait, Rule};
use crate::simulator::costs::Costs;

/// How often the law is asked.
const STEP: u64 = 10_000_000;
/// A wait that took no longer than this for each event was not a sleep.
const EVENT_TIME: u64 = 1_500;
/// What the runtime takes an interrupt and its softirq for, in nanoseconds.
pub(in crate::simulator) const INTERRUPT: u64 = 1_500;
/// How long the supervisor takes to set a queue's values.
const SUPERVISOR_TIME: u64 = 200_000;

#[derive(Debug, Clone, Copy)]
enum Phase {
    Settled,
    Requested { settings: QueueSettings, answered: u64 },
    StopsPolling(QueueSettings),
}

/// A worker's law, and its measurements since the last step.
pub(in crate::simulator) struct LawRule {
    law: PollingLaw,
    costs: Costs,
    phase: Phase,
    in_effect: QueueSettings,
    next_step: u64,
    last: FinishedWait,
    events: u64,
    sleeps: u64,
}

impl LawRule {
    pub(in crate::simulator) fn new(budget: LatencyBudget, costs: Costs) -> Self {
        let law = PollingLaw::new(budget, costs.machine(), LawLimits::default());
        Self {
            in_effect: *law.settings(),
            law,
            costs,
            phase: Phase::Settled,
            next_step: STEP,
            last: FinishedWait { started: 0, ended: 0, events: 0, gap: None, awake: 0 },
            events: 0,
            sleeps: 0,
        }
    }

    fn count(&mut self, wait: &FinishedWait) {
        self.events += wait.events;
        let waited = wait.ended - wait.started;
        let receiving = EVENT_TIME * wait.events;
        if waited <= self.costs.block + receiving {
            if wait.events > 0 && !self.in_effect.spin.is_zero() && waited > receiving {
                self.law.record_gap(Duration::from_nanos(waited - receiving));
            }
            return;
        }
        self.sleeps += 1;
        if wait.events > 0 {
            let gap = waited.saturating_sub(self.costs.wake_latency);
            self.law.record_gap(Duration::from_nanos(gap));
        }
    }

    fn measure(&mut self, wait: &FinishedWait) -> Epoch {
        let duration = wait.ended - self.last.ended;
        let awake = wait.awake - self.last.awake;
        self.last = *wait;
        let events = std::mem::take(&mut self.events);
        Epoch {
            duration: Duration::from_nanos(duration),
            events,
            packets: events,
            // As without a kernel thread: of what runs while the worker sleeps, the interrupt that wakes it counts.
            cpu: Duration::from_nanos(awake + INTERRUPT * std::mem::take(&mut self.sleeps)),
            waiting: Duration::ZERO,
        }
    }

    fn start(&mut self, settings: QueueSettings, now: u64) {
        let present = self.in_effect;
        let needs_host = (present.defer_hard_irqs, present.grace_time, present.suspend_timeout)
            != (settings.defer_hard_irqs, settings.grace_time, settings.suspend_timeout);
        if needs_host {
            self.phase = Phase::Requested { settings, answered: now + SUPERVISOR_TIME };
        } else {
            self.set_waiting(settings);
        }
    }

    fn set_waiting(&mut self, settings: QueueSettings) {
        if self.in_effect.polls() && !settings.polls() {
            self.phase = Phase::StopsPolling(settings);
        } else {
            self.finish(settings);
        }
    }

    fn finish(&mut self, settings: QueueSettings) {
        self.phase = Phase::Settled;
        self.in_effect = settings;
    }
}

impl Rule for LawRule {
    fn drive(&self) -> Drive {
        let settings = self.in_effect;
        match settings.mode {
            QueueMode::Plain => Drive::Plain,
            _ => Drive::Polling {
                grace: settings.grace_time.as_nanos() as u64,
                ticks: settings.defer_hard_irqs.saturating_sub(1) as u32,
                spin: settings.spin.as_nanos() as u64,
            },
        }
    }

    fn needs_pass(&self) -> bool {
        matches!(self.phase, Phase::StopsPolling(_))
    }

    fn waited(&mut self, wait: &FinishedWait) {
        self.count(wait);
        match self.phase {
            Phase::Settled if wait.ended < self.next_step => {}
            Phase::Settled => {
                self.next_step = wait.ended + STEP;
                let epoch = self.measure(wait);
                if let Some(settings) = self.law.step(&epoch) {
                    self.start(settings, wait.ended);
                }
            }
            Phase::Requested { settings, answered } if wait.ended >= answered => self.set_waiting(settings),
            // A wait that returns events suspends the queue.
            Phase::StopsPolling(settings) if wait.events == 0 => self.finish(settings),
            Phase::Requested { .. } | Phase::StopsPolling(_) => {}
        }
    }
}
