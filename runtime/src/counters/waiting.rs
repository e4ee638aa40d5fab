//! What a worker's waits cost under `WaitStrategy::Adaptive`.

use serde::Serialize;

use super::counter::Counter;

/// What a worker's waits have cost, and what they would have cost otherwise, under
/// [`WaitStrategy::Adaptive`](crate::WaitStrategy::Adaptive).
///
/// The cost of a wait is the time spun, and [`block_ns`](Self::block_ns) if the worker slept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct WaitingCosts {
    /// Waits that something has ended: an event of a descriptor, an operation of the ring, another thread's message or a timer.
    pub waits: u64,
    /// Those of them in which the worker slept.
    pub blocks: u64,
    /// How long the worker spins at present before it sleeps, in nanoseconds.
    pub spin_limit_ns: u64,
    /// What a sleep costs on this machine, in nanoseconds: its CPU time, and the delay from the event until the thread runs.
    /// Measured when the worker started; for threads that are no workers, once in a process.
    pub block_ns: u64,
    /// The cost of all waits, in nanoseconds.
    pub cost_ns: u64,
    /// What they would have cost if the worker had slept at once each time, in nanoseconds.
    pub blocking_cost_ns: u64,
    /// What they would have cost with the fixed spin limit that suits them best, in nanoseconds. It is known afterwards only. For
    /// threads that are no workers it is the sum of each thread's.
    pub best_fixed_cost_ns: u64,
}

/// The counters behind [`WaitingCosts`]. Only the worker writes them, or all threads that wait in `Handle::block_on`.
#[derive(Debug, Default)]
pub(crate) struct WaitingCounters {
    pub(crate) waits: Counter,
    pub(crate) blocks: Counter,
    pub(crate) spin_limit_ns: Counter,
    pub(crate) block_ns: Counter,
    pub(crate) cost_ns: Counter,
    pub(crate) blocking_cost_ns: Counter,
    pub(crate) best_fixed_cost_ns: Counter,
}

impl WaitingCounters {
    pub(crate) fn read(&self) -> WaitingCosts {
        WaitingCosts {
            waits: self.waits.get(),
            blocks: self.blocks.get(),
            spin_limit_ns: self.spin_limit_ns.get(),
            block_ns: self.block_ns.get(),
            cost_ns: self.cost_ns.get(),
            blocking_cost_ns: self.blocking_cost_ns.get(),
            best_fixed_cost_ns: self.best_fixed_cost_ns.get(),
        }
    }
}
