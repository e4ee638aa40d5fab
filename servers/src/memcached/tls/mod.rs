//! TLS on TCP connections, if the cargo feature `tls` is on.

#[cfg(feature = "tls")]
mod acceptor;
#[cfg(not(feature = "tls"))]
#[path = "acceptor_disabled.rs"]
mod acceptor;
mod config;

pub use acceptor::Tls;
pub use config::{ClientCertificates, TlsConfig, TlsError};
