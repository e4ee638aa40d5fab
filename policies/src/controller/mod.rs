//! How kernel polling adapts to the load: from what one worker measures, the controller chooses how
//! its queue is driven.
//!
//! The controller reads no clock and sets nothing, so that a runtime's worker and a process that
//! observes another one can both use it.

mod budget;
mod delays;
mod epoch;
mod forced_settings;
mod limits;
mod load_memory;
mod machine_costs;
mod measured;
mod polling_controller;
mod queue_settings;
mod reason;

pub use budget::{Budgets, CpuBudget, InvalidBudget, LatencyBudget};
pub use delays::Delays;
pub use epoch::{Epoch, receiving_time};
pub use forced_settings::ForcedSettings;
pub use limits::{ControllerLimits, PollTimer};
pub use machine_costs::MachineCosts;
pub use polling_controller::PollingController;
pub use queue_settings::{QueueMode, QueueSettings};
pub use reason::{Comparison, Reason};
