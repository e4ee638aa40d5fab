//! The policies and their names.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How network processing is scheduled against application processing.
///
/// The first four and their names are those of Cai and Karsten, *Kernel vs. User-Level Networking* (2023),
/// section 4.
/// [`FromStr`] and [`Display`](fmt::Display) use kebab case: `kernel-polling`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Interrupt balancing: each queue's interrupt goes to its worker's core; workers block
    /// (section 4.1.1).
    #[default]
    Vanilla,
    /// All queue interrupts go to as few cores as the load needs; workers run on the others
    /// (section 4.1.2).
    Packing,
    /// Interrupts are delayed as far as the device allows; workers busy-poll (section 4.2.1). The only
    /// policy that sets the device's interrupt coalescing.
    Suppression,
    /// The worker's wait polls the queue, and the queue's interrupt stays masked while the worker finds
    /// work (section 4.2.2; IRQ suspension, Linux 6.13).
    KernelPolling,
    /// For each queue a kernel thread on a packing core polls all the time, and keeps the queue's interrupt
    /// masked; workers block (threaded NAPI busy polling, Linux 6.19). On an older kernel vanilla runs
    /// instead.
    KernelThread,
}

impl Policy {
    /// Every policy: those of the paper in its order, then `kernel-thread`.
    pub const ALL: [Policy; 5] =
        [Policy::Vanilla, Policy::Packing, Policy::Suppression, Policy::KernelPolling, Policy::KernelThread];

    /// The policies of the paper, in its order. None of them needs a core that only polls.
    pub const PAPER: [Policy; 4] =
        [Policy::Vanilla, Policy::Packing, Policy::Suppression, Policy::KernelPolling];

    /// The name in kebab case.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Vanilla => "vanilla",
            Policy::Packing => "packing",
            Policy::Suppression => "suppression",
            Policy::KernelPolling => "kernel-polling",
            Policy::KernelThread => "kernel-thread",
        }
    }

    /// Whether a worker's wait polls the queue under this policy.
    pub fn busy_polls(self) -> bool {
        matches!(self, Policy::Suppression | Policy::KernelPolling)
    }

    /// Whether the queues are polled on the packing cores, away from the workers.
    pub fn uses_packing_cores(self) -> bool {
        matches!(self, Policy::Packing | Policy::KernelThread)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Text that names no policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown policy {given:?}; the policies are: vanilla, packing, suppression, kernel-polling, kernel-thread"
)]
pub struct UnknownPolicy {
    /// What was given instead of a policy.
    pub given: String,
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Policy::ALL
            .into_iter()
            .find(|policy| policy.name() == text)
            .ok_or_else(|| UnknownPolicy { given: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_parses_to_its_policy() {
        for policy in Policy::ALL {
            assert_eq!(policy.to_string().parse::<Policy>(), Ok(policy));
        }
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_known_ones() {
        let message = "poling".parse::<Policy>().unwrap_err().to_string();
        assert!(message.contains("\"poling\""), "{message}");
        for policy in Policy::ALL {
            assert!(message.contains(policy.name()), "{message}");
        }
    }
}
