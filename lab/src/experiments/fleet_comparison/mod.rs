//! Servers compared under a fleet of clients: their capacity, and their latency and CPU time at given rates.

mod capacity;
mod comparison;
mod config;
mod contender;
mod measurement;
mod rows;
mod server_command;

pub use capacity::{Capacity, CapacityTrial};
pub use comparison::{FleetComparison, FleetComparisonResult, InvalidTurn, LoadResult};
pub use config::{FleetComparisonConfig, Reference};
pub use contender::{Contender, RunningPolicy, requests_for};
pub use measurement::{AttachTurn, RECEIVED_SHARE, TurnMeasurement};
pub use rows::{CapacityRow, ClassRows, FleetRow};
pub use server_command::ServerCommand;
