//! Questions beside those of a comparison under a fleet.

pub mod crossing_model;
mod kernel_client;
pub mod load_steps;
pub mod machine_check;
pub mod paper;
pub mod waiting;
