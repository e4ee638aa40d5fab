//! A server that speaks memcached's protocols: the text protocol with its classic and its meta
//! commands, the binary protocol, and text requests over UDP.

mod auth;
mod clock;
mod config;
mod connection;
mod context;
mod dump_slot;
mod error;
#[cfg(fuzzing)]
pub mod fuzzing;
mod listen;
pub mod logging;
mod mutation;
mod protocol;
mod server;
mod session;
mod stats;
mod store;
mod tls;
mod udp;

pub use auth::UsersFileError;
pub use config::{Config, Protocol};
pub use error::{ReloadError, StartError};
pub use net::{Alignment, ShutdownReport};
pub use server::Server;
pub use tls::{ClientCertificates, TlsConfig, TlsError};

/// The reply to `version`: the memcached version whose protocols the server implements, followed by
/// the crate's version. Clients parse the leading number to detect features.
pub const VERSION: &str = concat!("1.6.45-lull-", env!("CARGO_PKG_VERSION"));
