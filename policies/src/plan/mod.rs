//! Works out the steps that give an interface a policy. Reads the host, changes nothing.

mod coalescing;
mod placement;
mod planner;
mod polling_thread;
mod settings;
mod steps;
mod suspend_timeout;

pub use settings::{Settings, SuppressionValues};
pub use steps::{Plan, Step};
