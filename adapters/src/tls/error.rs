//! What is wrong with certificates, keys or settings.

use std::path::{Path, PathBuf};

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

/// Makes errors about a file.
pub(super) fn file_error<E>(path: &Path, problem: &'static str) -> impl Fn(E) -> Error
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    move |source| Error::File { path: path.to_owned(), problem, source: source.into() }
}

pub(super) fn setup_error(error: futures_rustls::rustls::Error) -> Error {
    Error::Setup { source: error.into() }
}
