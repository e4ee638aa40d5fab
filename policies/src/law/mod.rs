//! How kernel polling adapts to the load: from what one worker measures, the law chooses how its queue is driven.
//!
//! The law reads no clock and sets nothing, so that a simulator, a runtime's worker and a process that
//! observes another one can all use it.

mod budget;
mod cost_comparison;
mod epoch;
mod gaps;
mod limits;
mod machine_costs;
mod polling_law;
mod queue_settings;
mod reason;

pub use budget::{InvalidLatencyBudget, LatencyBudget};
pub use epoch::Epoch;
pub use gaps::GapHistogram;
pub use limits::{LawLimits, PollTimer};
pub use machine_costs::MachineCosts;
pub use polling_law::PollingLaw;
pub use queue_settings::{QueueMode, QueueSettings};
pub use reason::Reason;
