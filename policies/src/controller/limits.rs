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
    /// Whether a mode has to pay. Without, the queue is polled whenever packets come: for tests of
    /// the modes.
    pub has_to_pay: bool,
    /// Whose timer polls the queue while the application sleeps.
    pub timer: PollTimer,
}

/// Whose timer polls a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PollTimer {
    /// The kernel's, in deferral and grace mode: what waits for the queue knows of no poll
    /// interval, like a program that is attached to.
    #[default]
    Kernel,
    /// The worker's, in timed mode.
    Worker,
}

impl Default for ControllerLimits {
    fn default() -> Self {
        Self { ring_slots: 256, fixed: None, has_to_pay: true, timer: PollTimer::Kernel }
    }
}
