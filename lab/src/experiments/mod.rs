//! What is measured, and in which rounds.

mod contestant;
mod core_assignment;
pub mod crossing_model;
pub mod fleet_comparison;
pub mod generator_comparison;
pub mod load_steps;
pub mod machine_check;
pub mod memcached_cpu;
mod memcached_process;
pub mod numa;
pub mod paper;
pub mod peer_comparison;
pub mod policy_comparison;
mod slowest_turn;
mod steal;
mod turn_conditions;
pub mod waiting;

pub use contestant::Contestant;
pub use core_assignment::CoreAssignment;
pub use turn_conditions::MeasuredRounds;
pub(crate) use turn_conditions::order_by_rounds;
