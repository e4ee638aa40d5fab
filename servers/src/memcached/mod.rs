//! A server that speaks memcached's protocols: the classic and the meta commands as text, the binary one,
//! and gets over UDP.

mod admin;
mod auth;
mod binary;
mod classic;
mod clock;
mod command;
mod connection;
#[cfg(fuzzing)]
pub mod fuzzing;
pub mod logging;
mod meta;
mod meta_commands;
mod numbers;
mod reply;
mod report;
mod server;
mod session;
mod settings;
mod shared;
mod stats;
mod store;
mod storing;
mod tls;
mod traffic;
mod udp;

#[cfg(test)]
mod session_tests;

pub use server::{Server, StartError};
pub use settings::{Config, Protocol};
pub use store::Bits;
pub use store::{Contents, Counts, Data, Header, Large, Limits, New, OutOfMemory, Slot, Store, Value};
pub use tls::TlsConfig;

/// What `version` answers: the version whose protocols this speaks, and our own behind it.
/// Clients parse the number to learn what they may ask.
pub const VERSION: &str = concat!("1.6.45-lull-", env!("CARGO_PKG_VERSION"));
