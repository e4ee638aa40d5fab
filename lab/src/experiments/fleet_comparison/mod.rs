//! Servers compared under a fleet of clients: their capacity, and their latency and CPU time at given rates.

mod capacity;
mod comparison;
mod config;
mod contender;
mod measurement;
mod rows;

pub use capacity::{CAPACITY_P99_US, Capacity, CapacityTrial};
pub use comparison::{FleetComparison, FleetComparisonResult, InvalidTurn, LoadResult};
pub use config::{FleetComparisonConfig, Reference};
pub use contender::{Contender, RunningPolicy, requests_for};
pub use measurement::{RECEIVED_SHARE, TurnMeasurement};
pub use rows::{CapacityRow, ClassRows, FleetRow};
