//! The lab's fleet of clients on the testbed, and the `lab` command.

mod attach;
mod card;
mod command;
mod conditions;
mod failures;
mod load;
mod pacing;
mod paper;
mod reports;
mod server;
