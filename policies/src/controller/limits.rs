//! What the controller may choose.

use super::queue_settings::QueueSettings;

/// What the controller may choose for a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControllerLimits {
    /// The slots of the receive ring. Between two polls at most half of them may fill.
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
    /// The worker's, in timed mode. Where the worker is saturated interrupts drive the queue.
    Worker,
}

impl Default for ControllerLimits {
    fn default() -> Self {
        Self { ring_slots: 256, fixed: None, polls_always: false, timer: PollTimer::Kernel }
    }
}
