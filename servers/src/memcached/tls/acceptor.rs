//! TLS on accepted connections, by `adapters`. Certificates are read from files and can be reloaded.

use std::io;

use adapters::tls::{self, Acceptor, Certificates, LoadedAcceptor, Stream};
use futures_util::{AsyncRead, AsyncWrite};

use super::config::{ClientCertificates, TlsConfig, TlsError};

/// Certificates and key as last loaded.
#[derive(Debug)]
pub struct Tls(Acceptor);

/// Certificates and key that were loaded, but are not in use yet.
pub struct LoadedTls(LoadedAcceptor);

impl Tls {
    pub fn open(config: &TlsConfig) -> Result<Self, TlsError> {
        let mut builder = Acceptor::builder(Certificates::new(&config.certificates, &config.key));
        let wanted = match config.client_certificates {
            ClientCertificates::Ignored => None,
            ClientCertificates::Optional => Some(tls::ClientCertificates::Optional),
            ClientCertificates::Required => Some(tls::ClientCertificates::Required),
        };
        if let (Some(authorities), Some(wanted)) = (&config.authorities, wanted) {
            builder = builder.client_certificates(authorities, wanted);
        }
        if config.require_tls13 {
            builder = builder.require_tls13();
        }
        Ok(Self(builder.open()?))
    }

    /// Loads the files again, without using them yet.
    pub fn load(&self) -> Result<LoadedTls, TlsError> {
        Ok(LoadedTls(self.0.load()?))
    }

    /// Uses what was loaded for all later connections.
    pub fn replace(&self, loaded: LoadedTls) {
        self.0.replace(loaded.0);
    }

    /// Performs the handshake on an accepted connection, within 10 s.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> io::Result<Stream<S>> {
        self.0.accept(stream).await
    }
}

impl From<tls::Error> for TlsError {
    fn from(error: tls::Error) -> Self {
        Self::Unusable(error.into())
    }
}
