//! How workers and the interrupts of their queues are kept together.

use serde::{Deserialize, Serialize};

/// How workers and the interrupts of their queues are kept on the same core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Affinity {
    /// Workers are pinned, and each queue's interrupt goes to its worker's core. An interrupt that
    /// was moved is moved back.
    #[default]
    Pin,
    /// Each worker runs on the core of its queue's interrupt, and moves with it. Waking a thread on
    /// the core that took the interrupt is much cheaper than across cores (FastWake).
    Follow,
    /// Interrupts stay where they are.
    None,
}

crate::names!(Affinity, "affinity": Pin = "pin", Follow = "follow", None = "none");
