//! Rules that choose how a queue is driven: the law, and those it was compared with.

mod halt_polling;
pub(super) mod law;
mod net_dim;
mod spin_by_cost;
mod two_outcomes;

pub(super) use halt_polling::HaltPolling;
pub(super) use law::LawRule;
pub(super) use net_dim::{LADDER as NET_DIM_LADDER, NetDim};
pub(super) use spin_by_cost::SpinByCost;
pub(super) use two_outcomes::{LONGEST as LONGEST_SLEEP, TwoOutcomes};

/// How the core drives the queue. Times are in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Drive {
    /// Each packet interrupts, and waits don't poll.
    Plain,
    /// Waits poll, and interrupts are suspended while they find packets.
    Polling {
        /// The period of the timer that polls after an empty wait.
        grace: u64,
        /// How often the timer polls in vain before the interrupt is unmasked; 0: it is unmasked before
        /// the sleep. One less than `napi_defer_hard_irqs`, because the poll that resumes interrupts
        /// (`napi_resume_irqs`) counts, too.
        ticks: u32,
        /// How long a wait polls before it sleeps.
        spin: u64,
    },
}

impl Drive {
    /// Interrupt-first mode with a spin.
    pub(super) const fn interrupt_first(spin: u64) -> Self {
        Self::Polling { grace: 0, ticks: 0, spin }
    }

    /// Grace mode with `napi_defer_hard_irqs` 100.
    pub(super) const fn grace(grace: u64) -> Self {
        Self::Polling { grace, ticks: 99, spin: 0 }
    }
}

/// What a worker knows of a wait when it has returned. Times are in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct FinishedWait {
    pub started: u64,
    pub ended: u64,
    /// How many requests it returned.
    pub events: u64,
    /// The time from the empty poll, or the beginning of a sleep, to the next arrival; `None` if the wait returned at
    /// once.
    pub gap: Option<u64>,
    /// How long the worker's thread has been awake since the start.
    pub awake: u64,
}

/// Chooses how the queue is driven.
pub(super) trait Rule {
    /// The present choice.
    fn drive(&self) -> Drive;

    /// Whether the next wait must poll and not sleep.
    fn needs_pass(&self) -> bool {
        false
    }

    /// Takes in a wait.
    fn waited(&mut self, _wait: &FinishedWait) {}

    /// Takes in a poll by the timer, which found packets or did not.
    fn ticked(&mut self, _found: bool) {}
}

/// Always the same.
pub(super) struct Fixed(pub Drive);

impl Rule for Fixed {
    fn drive(&self) -> Drive {
        self.0
    }
}
