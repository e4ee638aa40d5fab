//! What the controller may choose.

use super::queue_settings::QueueSettings;

/// What the controller may choose for a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControllerLimits {
    /// The slots of the receive ring. In a poll interval at most a quarter of them may fill.
    pub ring_slots: u32,
    /// The queue's values if they can't be changed: the controller then only chooses whether waits
    /// poll.
    pub fixed: Option<QueueSettings>,
    /// Whether the queue is polled from 2,000 events a second on, however busy the core: for tests
    /// of the modes.
    pub polls_always: bool,
    /// Whose timer polls the queue while the application sleeps.
    pub timer: PollTimer,
}

/// Whose timer polls a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PollTimer {
    /// The kernel's, in deferral mode: what waits for the queue knows of no poll interval, like a
    /// program that is attached to. Where it is saturated its waits poll, in grace mode.
    #[default]
    Kernel,
    /// That of a worker's epoll wait, in timed mode, also where the worker is saturated: its wait
    /// then takes up to 64 events without an interrupt.
    Epoll,
    /// That of a worker's ring, in timed mode. A saturated ring takes many packets at an interrupt,
    /// and 16 at a poll, so interrupts drive its queue.
    Ring,
}

impl Default for ControllerLimits {
    fn default() -> Self {
        Self { ring_slots: 256, fixed: None, polls_always: false, timer: PollTimer::Kernel }
    }
}
