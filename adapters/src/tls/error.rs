//! What is wrong with certificates, keys or settings, and why a handshake with a server has failed.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_rustls::rustls::{self, AlertDescription, CertificateError, InvalidMessage};

/// Certificates, a private key or settings can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file can't be used.
    #[error("{}: {problem}: {source}", path.display())]
    File {
        /// The file, as the caller named it.
        path: PathBuf,
        /// The step that failed, as `cannot read the private key`.
        problem: &'static str,
        /// The error of the system or of the parser.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A file contains no certificate.
    #[error("{}: the file contains no certificate", path.display())]
    NoCertificate {
        /// The file, as the caller named it.
        path: PathBuf,
    },
    /// No file with the system's authorities was found.
    #[error(
        "no file with the system's authorities was found; name one by `authorities`, or by SSL_CERT_FILE"
    )]
    NoAuthorities,
    /// rustls refuses the settings.
    #[error("cannot configure TLS: {source}")]
    Setup {
        /// rustls' error: the key does not match the certificate, or no protocol version is left.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

pub(super) fn file_error<E>(path: &Path, problem: &'static str) -> impl Fn(E) -> Error
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    move |source| Error::File { path: path.to_owned(), problem, source: source.into() }
}

pub(super) fn setup_error(error: futures_rustls::rustls::Error) -> Error {
    Error::Setup { source: error.into() }
}

#[cfg(feature = "quinn")]
pub(super) fn quic_error(error: quinn::crypto::rustls::NoInitialCipherSuite) -> Error {
    Error::Setup { source: error.into() }
}

/// Why a handshake with a server has failed: the inner error of what
/// [`Connector::connect`](super::Connector::connect) returns.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// None of the trusted authorities has signed the certificate.
    #[error("the certificate of {server} is not trusted: {source}")]
    NotTrusted {
        /// The name or address that was connected to.
        server: String,
        /// rustls' error.
        source: rustls::Error,
    },
    /// The certificate is valid for other names.
    #[error("the certificate of {server} is for another name: {source}")]
    NameMismatch {
        /// The name or address that was connected to.
        server: String,
        /// rustls' error, with the names of the certificate.
        source: rustls::Error,
    },
    /// The certificate has expired, was revoked, or can't be used for another reason.
    #[error("the certificate of {server} is not valid: {source}")]
    InvalidCertificate {
        /// The name or address that was connected to.
        server: String,
        /// rustls' error.
        source: rustls::Error,
    },
    /// The answer is not TLS: a server without TLS, perhaps.
    #[error("{server} does not speak TLS on this port: {source}")]
    NotTls {
        /// The name or address that was connected to.
        server: String,
        /// rustls' error.
        source: rustls::Error,
    },
    /// The server speaks none of the application protocols that were offered (ALPN).
    #[error("{server} speaks none of the offered protocols: {source}")]
    NoCommonProtocol {
        /// The name or address that was connected to.
        server: String,
        /// rustls' error.
        source: rustls::Error,
    },
    /// The handshake has not ended in time.
    #[error("{server} has not completed the TLS handshake within {limit:?}")]
    TimedOut {
        /// The name or address that was connected to.
        server: String,
        /// The connector's limit.
        limit: Duration,
    },
    /// The connection has broken, or TLS was not agreed on for another reason.
    #[error("the TLS handshake with {server} has failed: {source}")]
    Failed {
        /// The name or address that was connected to.
        server: String,
        /// The stream's error, or rustls'.
        source: io::Error,
    },
}

impl HandshakeError {
    /// Sorts an error of futures-rustls, which wraps rustls' own.
    pub(super) fn new(server: &str, source: io::Error) -> Self {
        let server = server.to_owned();
        let inner = source.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        let Some(error) = inner.cloned() else { return Self::Failed { server, source } };
        match &error {
            // The signature is wrong if an authority of the same name was made again.
            rustls::Error::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::BadSignature,
            ) => Self::NotTrusted { server, source: error },
            rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            ) => Self::NameMismatch { server, source: error },
            rustls::Error::InvalidCertificate(_) => Self::InvalidCertificate { server, source: error },
            rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
                Self::NotTls { server, source: error }
            }
            rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol) => {
                Self::NoCommonProtocol { server, source: error }
            }
            _ => Self::Failed { server, source },
        }
    }
}

impl From<HandshakeError> for io::Error {
    fn from(error: HandshakeError) -> Self {
        let kind = match &error {
            HandshakeError::TimedOut { .. } => io::ErrorKind::TimedOut,
            HandshakeError::Failed { source, .. } => source.kind(),
            _ => io::ErrorKind::InvalidData,
        };
        io::Error::new(kind, error)
    }
}
