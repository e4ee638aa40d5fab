//! Experiments under a fleet of clients: contenders, loads, and how each contender runs.

mod bed;
mod contender;
mod host;
mod plan;
mod run;
mod running;
mod server_command;

pub use bed::Bed;
pub use contender::{Contender, requests_for};
pub use plan::{Experiment, Load};
pub use run::Outcome;
pub use server_command::ServerCommand;
