//! TLS on TCP connections, if the cargo feature `tls` is on. Its settings and errors exist without
//! it, too.

#[cfg(not(feature = "tls"))]
pub use disabled::Tls;
#[cfg(feature = "tls")]
pub use enabled::Tls;

/// Certificates or a private key cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The crate was compiled without the cargo feature `tls`.
    #[error("not available, because lull-servers was compiled without its cargo feature `tls`")]
    NotBuilt,
    /// A file or a setting can't be used; the error names it.
    #[error(transparent)]
    Unusable(Box<dyn std::error::Error + Send + Sync>),
}

/// TLS on accepted connections, by `adapters`. Certificates are read from files and can be
/// reloaded.
#[cfg(feature = "tls")]
mod enabled {
    use std::io;

    use adapters::tls::{self, Acceptor, Certificates, LoadedAcceptor, Stream};
    use futures_util::{AsyncRead, AsyncWrite};

    use super::TlsError;
    use crate::memcached::config::{ClientCertificates, TlsConfig};

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
}

/// Opening TLS fails with an error that says that the feature is off.
#[cfg(not(feature = "tls"))]
mod disabled {
    use std::convert::Infallible;
    use std::io;

    use super::TlsError;
    use crate::memcached::config::TlsConfig;

    #[derive(Debug)]
    pub struct Tls(Infallible);

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
}
