//! The parameters of an attachment.

use super::target::Target;
use crate::journal::JournalDir;
use crate::law::LatencyBudget;

/// What to attach to, and how.
#[derive(Debug, Clone)]
pub struct AttachConfig {
    /// The server.
    pub target: Target,
    /// Only queues of this interface of the server's network namespace; `None` is all interfaces.
    pub interface: Option<String>,
    /// How much longer the median request may take than under plain interrupts.
    pub latency_budget: LatencyBudget,
    /// Whether listeners with `SO_REUSEPORT`, one for each queue, are steered: each then gets the new connections of one
    /// queue.
    pub steer: bool,
    /// Where the old values are journalled.
    pub journals: JournalDir,
}

impl AttachConfig {
    /// All interfaces, a latency budget of 0, and the default journals.
    pub fn new(target: Target) -> Self {
        Self {
            target,
            interface: None,
            latency_budget: LatencyBudget::ZERO,
            steer: false,
            journals: JournalDir::default(),
        }
    }
}
