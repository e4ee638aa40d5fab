//! A server that speaks memcached's ASCII protocol.

mod clock;
mod command;
mod connection;
mod numbers;
mod report;
mod server;
mod stats;
mod store;

pub use server::{Config, Server, StartError};
pub use store::{Item, Store};

/// What `version` answers: the version whose ASCII protocol this speaks, and our own behind it.
/// Clients parse the number to learn what they may ask.
pub const VERSION: &str = concat!("1.6.18-lull-", env!("CARGO_PKG_VERSION"));
