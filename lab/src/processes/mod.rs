//! The processes of an experiment: a server, the load on another core, and what attaches to the
//! server.
//!
//! An experiment process is the `lab` program again, moved into its network namespace. It reads its
//! task from its arguments and commands from standard input, and writes messages to standard
//! output, one JSON value a line; what may fail is a `Result` with the reason. It is killed when
//! the lab exits (`PR_SET_PDEATHSIG`), and the kernel frees a network namespace with its last
//! process.

mod child;
mod messages;
mod roles;

pub use child::ExperimentProcess;
pub(crate) use child::NOT_ATTACHED;
pub(crate) use messages::ServerReady;
pub use messages::{ProcessRole, RunningPolicy, SUBCOMMAND};
pub use roles::run;
