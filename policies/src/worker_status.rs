//! What a worker reports of itself, and of how its queue is driven.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::controller::{Budgets, QueueMode, QueueSettings, Reason};

/// The state of a worker, at most a second old. Times count from the worker's start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStatus {
    pub worker: usize,
    pub thread: i32,
    /// The id of the NAPI whose sockets it polls; 0 if none.
    pub napi: u32,
    /// The policy in effect, which may be less than the requested one.
    pub running: String,
    /// How its queue is driven at present. `None` unless kernel polling is in effect.
    pub queue: Option<QueueStatus>,
    /// Nanoseconds spent running tasks.
    pub running_ns: u64,
    /// Nanoseconds spent polling without blocking.
    pub polling_ns: u64,
    /// Nanoseconds spent waiting.
    pub parked_ns: u64,
}

/// How a worker's queue is driven, and why. Times are whole microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueStatus {
    /// What drives the queue while the worker waits.
    pub mode: QueueMode,
    /// The latency budget of the controller that adapts the queue. `None` if the configuration
    /// fixes its values, as the next.
    pub latency_budget_us: Option<u64>,
    /// Its CPU budget, in percent.
    pub cpu_budget_percent: Option<u16>,
    /// `gro_flush_timeout`.
    pub grace_time_us: u64,
    /// How long the worker's wait sleeps at most before it polls again, in timed mode; 0 in others.
    pub poll_interval_us: u64,
    /// `busy_poll_usecs`: how long a wait polls before it sleeps, beyond the first poll.
    pub spin_us: u64,
    /// For how long the controller has tried polling, or given it up for a moment to measure
    /// interrupts, since the start. 0 if the values are fixed.
    pub trials_us: u64,
    /// Why the queue is driven this way, as `reason`, with `cpu` and `delay` in percent of plain
    /// interrupts' where they were compared.
    #[serde(flatten)]
    pub why: Reason,
}

impl QueueStatus {
    /// The status without trials.
    pub fn new(settings: &QueueSettings, budgets: Option<Budgets>) -> Self {
        Self {
            mode: settings.mode,
            latency_budget_us: budgets.map(|budgets| micros(budgets.latency.delay())),
            cpu_budget_percent: budgets.map(|budgets| budgets.cpu.percent()),
            grace_time_us: micros(settings.grace_time),
            poll_interval_us: micros(settings.poll_interval),
            spin_us: micros(settings.spin),
            trials_us: 0,
            why: settings.why,
        }
    }

    /// The same, with trials that have taken so long.
    pub fn with_trials(self, trials: Duration) -> Self {
        Self { trials_us: micros(trials), ..self }
    }

    /// The mode, with the times that count in it: `grace 20 µs`.
    pub fn mode_text(&self) -> String {
        let settings = QueueSettings {
            mode: self.mode,
            grace_time: Duration::from_micros(self.grace_time_us),
            poll_interval: Duration::from_micros(self.poll_interval_us),
            spin: Duration::from_micros(self.spin_us),
            ..QueueSettings::plain(self.why)
        };
        settings.mode_text()
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::Comparison;

    #[test]
    fn a_queue_status_says_the_mode_and_the_times_that_count() {
        let spinning = |settings| QueueSettings { spin: Duration::from_micros(3), ..settings };
        let text = |settings| QueueStatus::new(&settings, None).mode_text();
        let short = QueueSettings::SHORT_GRACE_TIME;
        assert_eq!(text(QueueSettings::plain(Reason::Start)), "plain");
        assert_eq!(text(QueueSettings::interrupt_first(short, Reason::Start)), "interrupt-first");
        let spins = spinning(QueueSettings::interrupt_first(short, Reason::Start));
        assert_eq!(text(spins), "interrupt-first, spins 3 µs");
        assert_eq!(text(QueueSettings::grace(short, Reason::Start)), "grace 20 µs");
        let timed = QueueSettings::timed(short, short * 10, Reason::Start);
        assert_eq!(text(timed), "timed 20 µs");
        assert_eq!(text(QueueSettings { spin: short, ..timed }), "timed, never sleeps");
    }

    #[test]
    fn every_reason_is_read_back_from_a_status() {
        let beside = Comparison { cpu: 52, delay: 81 };
        let reasons = [
            Reason::Start,
            Reason::Fixed,
            Reason::Idle,
            Reason::Measures,
            Reason::CannotPay,
            Reason::Failed,
            Reason::Unsupervised,
            Reason::Tries,
            Reason::Pays(beside),
            Reason::DidNotPay(beside),
        ];
        for why in reasons {
            let status = QueueStatus::new(&QueueSettings::plain(why), Some(Budgets::default()));
            let json = serde_json::to_value(status).unwrap();
            assert_eq!(json["reason"], why.name(), "{json}");
            assert_eq!(serde_json::from_value::<QueueStatus>(json).unwrap(), status);
        }
    }
}
