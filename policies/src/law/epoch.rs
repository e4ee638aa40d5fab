//! What is measured between two steps of the law.

use std::time::Duration;

/// The measurements of one worker and its queue during some milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Epoch {
    /// How long the epoch took.
    pub duration: Duration,
    /// How many times data arrived on sockets.
    pub events: u64,
    /// How many packets arrived, or an estimate: at least `events`. Acknowledgements count, too.
    pub packets: u64,
    /// The CPU time of the worker, and of the kernel's work for its queue.
    pub cpu: Duration,
    /// How long the worker was ready while other programs had its core. Requests wait meanwhile, but cost nothing.
    pub waiting: Duration,
}

impl Epoch {
    /// Adds another epoch's measurements.
    pub fn add(&mut self, other: &Self) {
        self.duration += other.duration;
        self.events += other.events;
        self.packets += other.packets;
        self.cpu += other.cpu;
        self.waiting += other.waiting;
    }

    /// Events that waits returned, per second of the epoch.
    pub fn rate(&self) -> f64 {
        per_second(self.events, self.duration)
    }

    /// Packets that the queue received, per second of the epoch.
    pub fn packet_rate(&self) -> f64 {
        per_second(self.packets, self.duration)
    }

    /// The share of the time in which requests had the core or waited for it, from 0 to 1.
    pub fn busy_share(&self) -> f64 {
        self.share(self.cpu + self.waiting)
    }

    /// The part of [`Epoch::busy_share`] in which other programs had the core.
    pub fn waiting_share(&self) -> f64 {
        self.share(self.waiting)
    }

    fn share(&self, time: Duration) -> f64 {
        let duration = self.duration.as_secs_f64();
        if duration == 0.0 { 0.0 } else { (time.as_secs_f64() / duration).min(1.0) }
    }

    /// The CPU time for an event, in seconds. `None` without events.
    pub fn cost(&self) -> Option<f64> {
        (self.events > 0).then(|| self.cpu.as_secs_f64() / self.events as f64)
    }
}

fn per_second(count: u64, duration: Duration) -> f64 {
    if duration.is_zero() { 0.0 } else { count as f64 / duration.as_secs_f64() }
}
