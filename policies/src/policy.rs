//! The policies: what each is called, where packets are processed under it, and what its workers' waits do.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::grace_time::GraceTime;

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

    /// What distinguishes the policy. Plans, reports and commands ask this by the methods below.
    const fn description(self) -> Description {
        use Processing::{PackingCores, PollingThreads, WorkerCores};
        use WorkerWait::{Blocks, Polls, Suspends};
        let (name, processing, worker_wait) = match self {
            Policy::Vanilla => ("vanilla", WorkerCores, Blocks),
            Policy::Packing => ("packing", PackingCores, Blocks),
            Policy::Suppression => ("suppression", WorkerCores, Polls),
            Policy::KernelPolling => ("kernel-polling", WorkerCores, Suspends),
            Policy::KernelThread => ("kernel-thread", PollingThreads, Blocks),
        };
        Description { name, processing, worker_wait }
    }

    pub const fn name(self) -> &'static str {
        self.description().name
    }

    /// The names of all policies for a help text: `vanilla, packing, … or kernel-thread`.
    pub fn names() -> String {
        let [others @ .., last] = Self::ALL.map(Self::name);
        format!("{} or {last}", others.join(", "))
    }

    /// Where the packets of the queues are processed.
    pub const fn processing(self) -> Processing {
        self.description().processing
    }

    /// What a worker's wait does with its queue.
    pub const fn worker_wait(self) -> WorkerWait {
        self.description().worker_wait
    }

    /// Whether a worker's wait polls the queue under this policy.
    pub fn busy_polls(self) -> bool {
        self.worker_wait() != WorkerWait::Blocks
    }

    /// Whether a worker's wait suspends the queue's interrupt while it finds work.
    pub fn suspends_interrupts(self) -> bool {
        self.worker_wait() == WorkerWait::Suspends
    }

    /// Whether the [law](crate::law) of the workers sets the queues' values under this policy with a grace time.
    pub fn adapts(self, grace_time: GraceTime) -> bool {
        self.suspends_interrupts() && grace_time == GraceTime::Adaptive
    }

    /// Whether the queues are polled on the packing cores, away from the workers.
    pub fn uses_packing_cores(self) -> bool {
        self.processing() != Processing::WorkerCores
    }

    /// Whether kernel threads poll the queues all the time. Without them vanilla runs instead.
    pub fn has_polling_threads(self) -> bool {
        self.processing() == Processing::PollingThreads
    }
}

/// A row of the table of policies.
struct Description {
    name: &'static str,
    processing: Processing,
    worker_wait: WorkerWait,
}

/// Where the packets of the queues are processed before a worker reads them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Processing {
    /// On the core of each queue's worker, where the queue's interrupt goes.
    WorkerCores,
    /// On the packing cores, where all interrupts go.
    PackingCores,
    /// On the packing cores, by a kernel thread for each queue, which polls all the time.
    PollingThreads,
}

/// What a worker's wait does with its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerWait {
    /// Nothing: it sleeps until the kernel has processed packets.
    Blocks,
    /// Polls it, while the device and deferral delay its interrupts.
    Polls,
    /// Polls it, and suspends its interrupt while it finds work.
    Suspends,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Text that names no policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown policy {given:?}; the policies are: {}", Policy::ALL.map(Policy::name).join(", "))]
pub struct UnknownPolicy {
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
            assert_eq!(serde_json::to_value(policy).unwrap(), policy.name());
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
