//! How kernel polling adapts to the load: from the rate of a queue's events, the controller chooses
//! whether interrupts drive the queue or polls do.
//!
//! The controller reads no clock and sets nothing, so that a runtime's worker and a process that
//! observes another one can both use it.

mod epoch;
mod forced_settings;
mod limits;
mod poll_interval;
mod polling_controller;
mod queue_settings;
mod reason;

pub use epoch::Epoch;
pub use forced_settings::ForcedSettings;
pub use limits::{ControllerLimits, PollTimer};
pub use poll_interval::{InvalidPollInterval, PollInterval};
pub use polling_controller::PollingController;
pub use queue_settings::{QueueMode, QueueSettings};
pub use reason::Reason;
