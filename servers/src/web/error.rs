//! Why a web server cannot start or reload.

use std::io;
use std::path::PathBuf;

use super::config::ConfigError;
use super::proxy::ProxyConfigError;
use super::static_files::RootError;

/// A web server cannot start, or cannot take a new configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A route of the proxy is wrong.
    #[error(transparent)]
    Proxy(#[from] ProxyConfigError),
    /// The folder cannot be served.
    #[error(transparent)]
    Root(#[from] RootError),
    /// The access log cannot be opened.
    #[error("cannot open the access log {source}")]
    AccessLog {
        /// The path, as configured.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// Certificates or keys cannot be used.
    #[error("TLS: {0}")]
    Tls(#[from] adapters::tls::Error),
    /// A reload would change what only a start can.
    #[error("{0} cannot change while the server runs; restart it")]
    NeedsRestart(&'static str),
}
