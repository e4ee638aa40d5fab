//! TLS on connections to servers.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_io::{AsyncRead, AsyncWrite};
use futures_rustls::TlsConnector;
use futures_rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use futures_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use futures_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use futures_rustls::rustls::{ClientConfig, DigitallySignedStruct, Error as TlsError, SignatureScheme};

use super::error::{Error, HandshakeError, file_error, setup_error};
use super::files::{Certificates, read_authorities, read_usable_authorities};
use super::stream::Stream;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Where distributions keep the system's authorities: Debian and Arch, Fedora, openSUSE, Alpine.
const SYSTEM_AUTHORITIES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Sets up a [`Connector`].
#[derive(Debug, Clone, Default)]
#[must_use = "a builder does nothing until it is opened"]
pub struct ConnectorBuilder {
    authorities: Option<PathBuf>,
    any_certificate: bool,
    certificates: Option<Certificates>,
    alpn: Vec<Vec<u8>>,
    handshake_timeout: Option<Duration>,
}

impl ConnectorBuilder {
    /// The authorities that sign servers' certificates, a PEM file. Default: the file that
    /// `SSL_CERT_FILE` names in the environment, else the system's.
    pub fn authorities(mut self, path: impl Into<PathBuf>) -> Self {
        self.authorities = Some(path.into());
        self
    }

    /// Accepts any certificate whose key the server has, whoever signed it and whatever its name,
    /// so that anybody on the way can read and change what is sent. For measurements and tests.
    pub fn accept_any_certificate(mut self) -> Self {
        self.any_certificate = true;
        self
    }

    /// Presents a certificate to servers that ask for one.
    pub fn client_certificate(mut self, certificates: Certificates) -> Self {
        self.certificates = Some(certificates);
        self
    }

    /// The application protocols that are offered (ALPN), the preferred one first. Default: none.
    pub fn alpn<P: AsRef<[u8]>>(mut self, protocols: impl IntoIterator<Item = P>) -> Self {
        self.alpn = protocols.into_iter().map(|protocol| protocol.as_ref().to_owned()).collect();
        self
    }

    /// How long a handshake may take. Default: 10 s.
    pub fn handshake_timeout(mut self, limit: Duration) -> Self {
        self.handshake_timeout = Some(limit);
        self
    }

    /// Reads the authorities and the client's certificate from their files, and makes the
    /// connector. Blocks for as long as the files take.
    ///
    /// # Errors
    /// If a file can't be read or used; the error names it.
    pub fn open(self) -> Result<Connector, Error> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(setup_error)?;
        let builder = if self.any_certificate {
            let verifier = Arc::new(AnyCertificate(Arc::clone(&provider)));
            builder.dangerous().with_custom_certificate_verifier(verifier)
        } else {
            let roots = match self.authorities {
                Some(path) => read_authorities(&path, "cannot use it to verify servers")?,
                None => read_usable_authorities(&system_authorities().ok_or(Error::NoAuthorities)?)?,
            };
            builder.with_root_certificates(roots)
        };
        let mut config = match &self.certificates {
            Some(certificates) => {
                let (chain, key) = certificates.read(&provider)?;
                let unusable = "cannot use the certificate with this private key";
                builder
                    .with_client_auth_cert(chain, key)
                    .map_err(file_error(certificates.chain(), unusable))?
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = self.alpn;
        let limit = self.handshake_timeout.unwrap_or(HANDSHAKE_TIMEOUT);
        Ok(Connector { config: Arc::new(config), limit })
    }
}

fn system_authorities() -> Option<PathBuf> {
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    named.or_else(|| SYSTEM_AUTHORITIES.iter().map(Path::new).find(|path| path.is_file()).map(Path::to_owned))
}

/// Performs the handshakes of a client. Clones share their settings and sessions, on all workers.
#[derive(Debug, Clone)]
pub struct Connector {
    config: Arc<ClientConfig>,
    limit: Duration,
}

impl Connector {
    /// Sets up a connector.
    pub fn builder() -> ConnectorBuilder {
        ConnectorBuilder::default()
    }

    /// Performs the handshake on a connection to a server, whose certificate has to be valid for
    /// `name`: a DNS name or an IP address.
    ///
    /// # Errors
    /// `InvalidInput` for what is neither; else a [`HandshakeError`] says what is wrong with the
    /// certificate, the handshake or the stream. Its kind is `TimedOut` after the handshake's
    /// limit.
    pub async fn connect<S>(&self, name: &str, stream: S) -> io::Result<Stream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let server = ServerName::try_from(name.to_owned()).map_err(|error| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("the server name {name:?}: {error}"))
        })?;
        let handshake = TlsConnector::from(Arc::clone(&self.config)).connect(server, stream);
        match runtime::timeout(self.limit, handshake).await {
            Ok(Ok(stream)) => Ok(Stream::new(stream.into())),
            Ok(Err(error)) => Err(HandshakeError::new(name, error).into()),
            Err(_) => Err(HandshakeError::TimedOut { server: name.to_owned(), limit: self.limit }.into()),
        }
    }

    /// The configuration of a client of QUIC, which offers these protocols (ALPN). The limit on the
    /// handshake has no effect there.
    #[cfg(feature = "quinn")]
    pub fn quic<P: AsRef<[u8]>>(
        &self,
        protocols: impl IntoIterator<Item = P>,
    ) -> Result<quinn::ClientConfig, Error> {
        let mut config = ClientConfig::clone(&self.config);
        config.alpn_protocols = protocols.into_iter().map(|protocol| protocol.as_ref().to_owned()).collect();
        let config = quinn::crypto::rustls::QuicClientConfig::try_from(config);
        Ok(quinn::ClientConfig::new(Arc::new(config.map_err(super::error::quic_error)?)))
    }

    #[cfg(feature = "client")]
    pub(crate) fn offers_any(&self) -> bool {
        !self.config.alpn_protocols.is_empty()
    }

    /// The same connector, with these application protocols.
    #[cfg(feature = "client")]
    pub(crate) fn with_alpn(&self, protocols: &[&str]) -> Self {
        let mut config = ClientConfig::clone(&self.config);
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_owned()).collect();
        Self { config: Arc::new(config), limit: self.limit }
    }
}

/// Accepts any certificate whose private key the server has.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
