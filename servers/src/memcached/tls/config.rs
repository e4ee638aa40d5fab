//! TLS settings and errors. They exist with and without the cargo feature `tls`.

use std::path::PathBuf;

/// Certificates, private key and client authentication of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsConfig {
    /// The server's certificate chain, a PEM file (`-o ssl_chain_cert`).
    pub certificates: PathBuf,
    /// The private key, a PEM file (`-o ssl_key`).
    pub key: PathBuf,
    /// The authorities that sign clients' certificates, a PEM file (`-o ssl_ca_cert`). Without it clients are
    /// not asked for a certificate.
    pub authorities: Option<PathBuf>,
    /// Whether clients present a certificate (`-o ssl_verify_mode`).
    pub client_certificates: ClientCertificates,
    /// Whether TLS 1.2 is refused (`-o ssl_min_version=tlsv1.3`).
    pub require_tls13: bool,
}

/// Whether clients present a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClientCertificates {
    /// Clients are not asked for a certificate.
    #[default]
    Ignored,
    /// Clients are asked for a certificate, which is verified if they present one.
    Optional,
    /// Clients without a valid certificate are refused.
    Required,
}

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
