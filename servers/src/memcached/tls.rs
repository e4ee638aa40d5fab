//! TLS on TCP connections by `adapters`, if the cargo feature `tls` is on. Without it opening fails
//! with an error that says so.

#[cfg(feature = "tls")]
pub use adapters::tls::Acceptor as Tls;
#[cfg(not(feature = "tls"))]
pub use disabled::Tls;

use super::config::TlsConfig;

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

#[cfg(feature = "tls")]
impl From<adapters::tls::Error> for TlsError {
    fn from(error: adapters::tls::Error) -> Self {
        Self::Unusable(error.into())
    }
}

/// Reads certificates and key, which can be loaded again.
#[cfg(feature = "tls")]
pub fn open(config: &TlsConfig) -> Result<Tls, TlsError> {
    use adapters::tls::{Certificates, ClientCertificates as Wanted};

    use super::config::ClientCertificates;

    let mut builder = Tls::builder(Certificates::new(&config.certificates, &config.key));
    let wanted = match config.client_certificates {
        ClientCertificates::Ignored => None,
        ClientCertificates::Optional => Some(Wanted::Optional),
        ClientCertificates::Required => Some(Wanted::Required),
    };
    if let (Some(authorities), Some(wanted)) = (&config.authorities, wanted) {
        builder = builder.client_certificates(authorities, wanted);
    }
    if config.require_tls13 {
        builder = builder.require_tls13();
    }
    Ok(builder.open()?)
}

#[cfg(not(feature = "tls"))]
pub fn open(_config: &TlsConfig) -> Result<Tls, TlsError> {
    Err(TlsError::NotBuilt)
}

/// In place of the acceptor of `adapters`. There is none.
#[cfg(not(feature = "tls"))]
mod disabled {
    use std::convert::Infallible;

    #[derive(Debug)]
    pub enum Tls {}

    impl Tls {
        pub fn load(&self) -> Result<Infallible, Infallible> {
            match *self {}
        }

        pub fn replace(&self, _loaded: Infallible) {}

        pub async fn accept<S>(&self, _stream: S) -> std::io::Result<S> {
            match *self {}
        }
    }

    impl From<Infallible> for super::TlsError {
        fn from(never: Infallible) -> Self {
            match never {}
        }
    }
}
