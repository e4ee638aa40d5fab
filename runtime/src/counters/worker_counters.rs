//! A worker's counters.

use std::time::Duration;

use super::Counter;
use super::histogram::{Histogram, Recorder};

#[derive(Debug, Default)]
pub(crate) struct WorkerCounters {
    pub(crate) turns: Counter,
    pub(crate) polls: Counter,
    pub(crate) forced_yields: Counter,
    pub(crate) stalls: Counter,
    pub(crate) waits: Counter,
    pub(crate) forced_passes: Counter,
    pub(crate) events: Counter,
    pub(crate) received_bytes: Counter,
    pub(crate) sent_bytes: Counter,
    pub(crate) running_ns: Counter,
    pub(crate) polling_ns: Counter,
    pub(crate) parked_ns: Counter,
    pub(crate) turn_times: Recorder,
    /// `None` unless the application has enabled it, as the next.
    pub(crate) poll_times: Option<Box<Recorder>>,
    pub(crate) schedule_latency: Option<Box<Recorder>>,
}

/// A worker's counters since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Metrics {
    /// Turns of its loop: run tasks, wait, dispatch.
    pub turns: u64,
    /// Polls of tasks, those of the future of `block_on` included.
    pub polls: u64,
    /// Polls that were made to yield, because they had completed 128 operations (receives, sends,
    /// accepts, timers) and asked for more.
    pub forced_yields: u64,
    /// Polls that took longer than [`Builder::stall_threshold`](crate::Builder::stall_threshold).
    pub stalls: u64,
    /// Times that another thread has woken it while it was parked.
    pub wakes: u64,
    /// System calls that wait, poll or submit: `epoll_pwait2` on the instance that the worker waits
    /// in, and `io_uring_enter`. In timed mode also those by which it polls in between, three or
    /// four for each poll.
    pub waits: u64,
    /// Extra poll passes, made because a wait had returned only wake-ups or events of the other
    /// epoll instance, without polling the NAPI.
    pub forced_passes: u64,
    /// Events of descriptors and received buffers that the waits returned.
    pub events: u64,
    /// Bytes that its sockets have received.
    pub received_bytes: u64,
    /// Bytes that its streams have sent: those that the kernel has taken. Without datagrams.
    pub sent_bytes: u64,
    /// Time spent running tasks, in nanoseconds.
    pub running_ns: u64,
    /// Time spent in waits that don't block, in nanoseconds.
    pub polling_ns: u64,
    /// Time spent in waits that may block, in nanoseconds. Under kernel polling this includes the
    /// time in which the kernel polls the queue before it puts the thread to sleep.
    pub parked_ns: u64,
    /// How long turns have run tasks. Turns that had none to run are left out.
    pub turn_times: Histogram,
    /// How long polls of tasks took. `None` unless
    /// [`Builder::enable_metrics_poll_time_histogram`](crate::Builder::enable_metrics_poll_time_histogram)
    /// was called.
    pub poll_times: Option<Histogram>,
    /// How long tasks waited from being spawned or woken to being polled. `None` unless
    /// [`Builder::enable_metrics_schedule_latency_histogram`](crate::Builder::enable_metrics_schedule_latency_histogram)
    /// was called.
    pub schedule_latency: Option<Histogram>,
}

impl Metrics {
    /// [`running_ns`](Self::running_ns) as a duration.
    pub fn running(&self) -> Duration {
        Duration::from_nanos(self.running_ns)
    }

    /// [`polling_ns`](Self::polling_ns) as a duration.
    pub fn polling(&self) -> Duration {
        Duration::from_nanos(self.polling_ns)
    }

    /// [`parked_ns`](Self::parked_ns) as a duration.
    pub fn parked(&self) -> Duration {
        Duration::from_nanos(self.parked_ns)
    }
}

impl WorkerCounters {
    /// Counters, with the histograms that take a reading of the clock at each poll or each wake.
    pub(crate) fn new(poll_times: bool, schedule_latency: bool) -> Self {
        let recorder = |enabled: bool| enabled.then(Box::default);
        Self {
            poll_times: recorder(poll_times),
            schedule_latency: recorder(schedule_latency),
            ..Self::default()
        }
    }

    pub(crate) fn times_polls(&self) -> bool {
        self.poll_times.is_some() || self.schedule_latency.is_some()
    }

    /// Reads the counters; `wakes` is counted by the threads that wake the worker.
    pub(crate) fn read(&self, wakes: u64) -> Metrics {
        Metrics {
            turns: self.turns.get(),
            polls: self.polls.get(),
            forced_yields: self.forced_yields.get(),
            stalls: self.stalls.get(),
            wakes,
            waits: self.waits.get(),
            forced_passes: self.forced_passes.get(),
            events: self.events.get(),
            received_bytes: self.received_bytes.get(),
            sent_bytes: self.sent_bytes.get(),
            running_ns: self.running_ns.get(),
            polling_ns: self.polling_ns.get(),
            parked_ns: self.parked_ns.get(),
            turn_times: self.turn_times.read(),
            poll_times: self.poll_times.as_ref().map(|recorder| recorder.read()),
            schedule_latency: self.schedule_latency.as_ref().map(|recorder| recorder.read()),
        }
    }
}
