//! Works out the steps that give an interface a policy. Reads the host, changes nothing.

mod coalescing;
pub(crate) mod grace_time;
mod placement;
mod planner;
mod polling_thread;
mod settings;
mod steps;
mod suspend_timeout;

pub use grace_time::{GraceTime, InvalidGraceTime};
pub use settings::{Settings, SuppressionValues};
pub use steps::{Plan, Step};
