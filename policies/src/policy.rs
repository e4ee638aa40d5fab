//! The policies: what each is called, where packets are processed under it, and what its workers'
//! waits do. And how workers and interrupts are kept together.

use crate::grace_time::GraceTime;
use crate::json::json_text;
use crate::names;
use crate::names::listed;

/// How network processing is scheduled against application processing.
///
/// The first four and their names are those of Cai and Karsten, *Kernel vs. User-Level Networking*
/// (2023), section 4. [`FromStr`](std::str::FromStr) and [`Display`](std::fmt::Display) use kebab
/// case: `kernel-polling`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    /// Interrupt balancing: each queue's interrupt goes to its worker's core; workers block
    /// (section 4.1.1).
    #[default]
    Vanilla,
    /// All queue interrupts go to as few cores as the load needs; workers run on the others
    /// (section 4.1.2).
    Packing,
    /// Interrupts are delayed as far as the device allows; workers busy-poll (section 4.2.1). The
    /// only policy that sets the device's interrupt coalescing.
    Suppression,
    /// The worker's wait polls the queue, and the queue's interrupt stays masked while the worker
    /// finds work (section 4.2.2; IRQ suspension, Linux 6.13).
    KernelPolling,
    /// For each queue a kernel thread on a packing core polls all the time, and keeps the queue's
    /// interrupt masked; workers block (threaded NAPI busy polling, Linux 6.19). On an older kernel
    /// vanilla runs instead.
    KernelThread,
}

impl Policy {
    /// The names of all policies for a help text: `vanilla, packing, … or kernel-thread`.
    pub fn names() -> String {
        listed(Self::NAMES)
    }

    pub const fn processing(self) -> Processing {
        match self {
            Policy::Vanilla | Policy::Suppression | Policy::KernelPolling => Processing::WorkerCores,
            Policy::Packing => Processing::PackingCores,
            Policy::KernelThread => Processing::PollingThreads,
        }
    }

    pub const fn worker_wait(self) -> WorkerWait {
        match self {
            Policy::Vanilla | Policy::Packing | Policy::KernelThread => WorkerWait::Blocks,
            Policy::Suppression => WorkerWait::Polls,
            Policy::KernelPolling => WorkerWait::Suspends,
        }
    }

    /// Whether a worker's wait polls the queue under this policy.
    pub fn busy_polls(self) -> bool {
        self.worker_wait() != WorkerWait::Blocks
    }

    /// Whether a worker's wait suspends the queue's interrupt while it finds work.
    pub fn suspends_interrupts(self) -> bool {
        self.worker_wait() == WorkerWait::Suspends
    }

    /// Whether the [controller](crate::controller) of the workers sets the queues' values under
    /// this policy with a grace time.
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

names!(
    Policy, "policy": Vanilla = "vanilla", Packing = "packing", Suppression = "suppression",
    KernelPolling = "kernel-polling", KernelThread = "kernel-thread"
);
json_text!(Affinity, Policy);

/// How workers and the interrupts of their queues are kept on the same core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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
