//! Servers compared under a fleet of clients: their capacity, and their latency and CPU time at given rates.

mod capacity;
mod comparison;
mod config;
mod contender;
mod measurement;
mod rows;
mod running_contender;
mod running_server;
mod server_command;

pub use capacity::{Capacity, CapacityTrial};
pub use comparison::{FleetComparison, FleetComparisonResult, InvalidTurn, LoadResult};
pub use config::{Alternation, FleetComparisonConfig, Reference};
pub use contender::{Contender, requests_for};
pub use measurement::{AttachTurn, RECEIVED_SHARE, ServerFigures, TurnMeasurement};
pub use rows::{CapacityRow, ClassRows, FleetRow};
pub(in crate::experiments) use running_contender::workload_memory;
pub(in crate::experiments) use running_server::RunningServer;
pub use running_server::{RunningPolicy, ServerMemory};
pub use server_command::ServerCommand;
