//! TLS on TCP connections.

mod acceptor;
mod config;

pub use acceptor::Tls;
pub use config::{ClientCertificates, TlsConfig, TlsError};
