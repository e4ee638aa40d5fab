//! Replaces `acceptor.rs` when the cargo feature `tls` is off: opening TLS fails with an error that says so.

use std::convert::Infallible;
use std::io;

use super::config::{TlsConfig, TlsError};

/// Cannot be created.
#[derive(Debug)]
pub struct Tls(Infallible);

/// Cannot be created.
pub struct LoadedTls(Infallible);

impl Tls {
    pub fn open(_config: &TlsConfig) -> Result<Self, TlsError> {
        Err(TlsError::NotBuilt)
    }

    pub fn load(&self) -> Result<LoadedTls, TlsError> {
        match self.0 {}
    }

    pub fn replace(&self, loaded: LoadedTls) {
        match loaded.0 {}
    }

    pub async fn accept<S>(&self, _stream: S) -> io::Result<S> {
        match self.0 {}
    }
}
