//! What is measured between two steps of the controller.

use std::time::Duration;

/// The measurements of one worker and its queue since the step before.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Epoch {
    /// How long the epoch took.
    pub duration: Duration,
    /// How many packets with data arrived on sockets of the queue, or an estimate: as many as
    /// receives at least.
    pub events: u64,
    /// The same with acknowledgements, which are in the receive ring, too.
    pub packets: u64,
    /// For how long the worker was awake: on epoll only outside of waits. There a wait that polls
    /// does nothing else, and its time would make an idle worker a busy one.
    pub busy: Duration,
}

impl Epoch {
    /// Packets with data per second.
    pub fn event_rate(&self) -> f64 {
        self.events as f64 / self.seconds()
    }

    /// Packets per second, acknowledgements included.
    pub fn packet_rate(&self) -> f64 {
        self.packets as f64 / self.seconds()
    }

    /// The share of the time in which the worker was busy, from 0 to 1.
    pub fn busy_share(&self) -> f64 {
        (self.busy.as_secs_f64() / self.seconds()).min(1.0)
    }

    fn seconds(&self) -> f64 {
        self.duration.as_secs_f64().max(1e-9)
    }
}
