//! Experiments under a fleet of clients: contenders, loads, and how each contender runs.

mod capacity;
mod contender;
mod host;
mod plan;
mod run;
mod running;
mod server_command;

pub use contender::{Contender, requests_for};
pub use plan::{Alternation, Experiment, Load};
pub use run::Outcome;
pub use running::RunningPolicy;
pub use server_command::ServerCommand;

/// Steal, as a share of one core, above which a turn or a window is repeated. A 99th percentile
/// bears 1 % of the time.
const STEAL_LIMIT: f64 = 0.005;
