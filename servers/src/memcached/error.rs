//! Why a server cannot start or reload.

use std::io;
use std::net::IpAddr;

use super::auth::UsersFileError;
use super::tls::TlsError;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    #[error("cannot listen on {address}: {source}")]
    Listen { address: String, source: io::Error },
    #[error(
        "{0} may be publicly reachable and clients need not authenticate; require authentication (-Y or -S), \
         listen on a loopback or private address (-l), or give --listen-unauthenticated"
    )]
    Unprotected(IpAddr),
    #[error(transparent)]
    Users(#[from] UsersFileError),
    /// Certificates or key cannot be used.
    #[error("TLS: {0}")]
    Tls(#[from] TlsError),
}

/// Users or certificates cannot be reloaded. The present ones stay in use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReloadError {
    #[error(transparent)]
    Users(#[from] UsersFileError),
    /// Certificates or key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}
