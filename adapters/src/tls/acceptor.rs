//! TLS on accepted connections.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures_io::{AsyncRead, AsyncWrite};
use futures_rustls::TlsAcceptor;
use futures_rustls::rustls::crypto::ring;
use futures_rustls::rustls::server::{
    ClientHello, ResolvesServerCert, ResolvesServerCertUsingSni, WebPkiClientVerifier,
};
use futures_rustls::rustls::sign::CertifiedKey;
use futures_rustls::rustls::{ServerConfig, SupportedProtocolVersion, version};

#[cfg(feature = "quinn")]
use super::error::quic_error;
use super::error::{Error, file_error, setup_error};
use super::files::{Certificates, read_authorities};
use super::stream::Stream;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Whether clients present a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientCertificates {
    /// A certificate is verified if the client presents one.
    Optional,
    /// Clients without a valid certificate are refused.
    Required,
}

/// Sets up an [`Acceptor`].
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until it is opened"]
pub struct AcceptorBuilder {
    default: Certificates,
    named: Vec<(String, Certificates)>,
    authorities: Option<(PathBuf, ClientCertificates)>,
    require_tls13: bool,
    alpn: Vec<Vec<u8>>,
    handshake_timeout: Duration,
}

impl AcceptorBuilder {
    /// Other certificates for clients that ask for this name (SNI). They must be valid for it.
    pub fn server_name(mut self, name: impl Into<String>, certificates: Certificates) -> Self {
        self.named.push((name.into(), certificates));
        self
    }

    /// Asks clients for a certificate that one of the authorities in this PEM file has signed. By
    /// default they are not asked.
    pub fn client_certificates(mut self, authorities: impl Into<PathBuf>, use_: ClientCertificates) -> Self {
        self.authorities = Some((authorities.into(), use_));
        self
    }

    /// Accepts TLS 1.3 only. Default: TLS 1.2, too.
    pub fn require_tls13(mut self) -> Self {
        self.require_tls13 = true;
        self
    }

    /// The application protocols that are offered (ALPN), the preferred one first. Default: none.
    pub fn alpn<P: AsRef<[u8]>>(mut self, protocols: impl IntoIterator<Item = P>) -> Self {
        self.alpn = protocols.into_iter().map(|protocol| protocol.as_ref().to_owned()).collect();
        self
    }

    /// Offers HTTP/2 and HTTP/1.1 by ALPN.
    pub fn http(self) -> Self {
        self.alpn(["h2", "http/1.1"])
    }

    /// How long a client may take for its handshake. Default: 10 s.
    pub fn handshake_timeout(mut self, limit: Duration) -> Self {
        self.handshake_timeout = limit;
        self
    }

    /// Reads certificates and key from their files, and makes the acceptor. Blocks for as long as
    /// the files take.
    ///
    /// # Errors
    /// If a file can't be read or used; the error names it.
    pub fn open(self) -> Result<Acceptor, Error> {
        let loaded = self.load()?;
        Ok(Acceptor(Arc::new(RwLock::new(Arc::new(loaded)))))
    }

    /// Reads certificates and key from their files, for [`Acceptor::replace`]. Blocks for as long
    /// as the files take.
    pub fn load(self) -> Result<LoadedAcceptor, Error> {
        let config = Arc::new(self.read()?);
        Ok(LoadedAcceptor { builder: self, config })
    }

    fn read(&self) -> Result<ServerConfig, Error> {
        const TLS12_AND_13: &[&SupportedProtocolVersion] = &[&version::TLS13, &version::TLS12];
        const ONLY_TLS13: &[&SupportedProtocolVersion] = &[&version::TLS13];
        let provider = Arc::new(ring::default_provider());
        let default = self.default.load(&provider)?;
        let mut named = ResolvesServerCertUsingSni::new();
        for (name, certificates) in &self.named {
            let certified = Arc::unwrap_or_clone(certificates.load(&provider)?);
            let unusable = "cannot use the certificate for its server name";
            named.add(name, certified).map_err(file_error(certificates.chain(), unusable))?;
        }
        let versions = if self.require_tls13 { ONLY_TLS13 } else { TLS12_AND_13 };
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)
            .map_err(setup_error)?;
        let builder = match &self.authorities {
            Some((path, wanted)) => {
                let unusable = "cannot use it to verify clients";
                let roots = Arc::new(read_authorities(path, unusable)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                let verifier = match wanted {
                    ClientCertificates::Required => verifier,
                    ClientCertificates::Optional => verifier.allow_unauthenticated(),
                };
                builder.with_client_cert_verifier(verifier.build().map_err(file_error(path, unusable))?)
            }
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(Arc::new(CertificateByName { named, default }));
        config.alpn_protocols.clone_from(&self.alpn);
        // Clients keep their sessions themselves: rustls would remember 256 of them.
        config.ticketer = ring::Ticketer::new().map_err(setup_error)?;
        Ok(config)
    }
}

/// Performs the handshakes of a server. Clones share their certificates, on all workers.
///
/// ```
/// use adapters::tls::{Acceptor, Certificates};
/// # let names = vec!["localhost".to_owned()];
/// # let rcgen::CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed(names).unwrap();
/// # let folder = tempfile::tempdir().unwrap();
/// # let (chain, key) = (folder.path().join("chain.pem"), folder.path().join("key.pem"));
/// # std::fs::write(&chain, cert.pem()).unwrap();
/// # std::fs::write(&key, signing_key.serialize_pem()).unwrap();
///
/// // Offers HTTP/2 and HTTP/1.1; a server gets a clone: `adapters::axum::serve(listener, app).tls(…)`.
/// let acceptor = Acceptor::builder(Certificates::new(&chain, key)).http().open()?;
///
/// // Once the files were renewed, on a signal for example. What can't be read is not taken.
/// acceptor.reload()?;
/// std::fs::write(&chain, "no certificate").unwrap();
/// assert!(acceptor.reload().is_err());
/// # Ok::<(), adapters::tls::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Acceptor(Arc<RwLock<Arc<LoadedAcceptor>>>);

/// Certificates and keys that were read, but are not in use yet.
#[derive(Debug)]
pub struct LoadedAcceptor {
    builder: AcceptorBuilder,
    config: Arc<ServerConfig>,
}

impl Acceptor {
    /// Sets up an acceptor with these certificates.
    pub fn builder(certificates: Certificates) -> AcceptorBuilder {
        AcceptorBuilder {
            default: certificates,
            named: Vec::new(),
            authorities: None,
            require_tls13: false,
            alpn: Vec::new(),
            handshake_timeout: HANDSHAKE_TIMEOUT,
        }
    }

    /// Performs the handshake on an accepted connection.
    ///
    /// # Errors
    /// `TimedOut` after the handshake's limit, or what is wrong with the handshake or the stream.
    pub async fn accept<S>(&self, stream: S) -> io::Result<Stream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let current = self.current();
        let handshake = TlsAcceptor::from(Arc::clone(&current.config)).accept(stream);
        let stream = runtime::timeout(current.builder.handshake_timeout, handshake).await??;
        Ok(Stream::new(stream.into()))
    }

    #[cfg(feature = "hyper")]
    pub(crate) fn offers(&self, protocol: &str) -> bool {
        self.current().builder.alpn.iter().any(|offered| offered == protocol.as_bytes())
    }

    /// Reads the files again and uses them for all later connections. On an error the present ones
    /// stay in use.
    pub fn reload(&self) -> Result<(), Error> {
        self.replace(self.load()?);
        Ok(())
    }

    /// Reads the files again, without using them yet.
    pub fn load(&self) -> Result<LoadedAcceptor, Error> {
        self.current().builder.clone().load()
    }

    /// Later connections use the loaded certificates and settings, including the handshake timeout.
    /// [`AcceptorBuilder::load`] may have loaded them from other files. What is offered by ALPN
    /// should be the same: a server of HTTP/2 only, such as tonic's, looks at it when it starts.
    pub fn replace(&self, loaded: LoadedAcceptor) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(loaded);
    }

    /// The configuration of a server of QUIC, which offers these protocols (ALPN). Certificates
    /// that are loaded later are used there, too; other settings stay as they are now.
    #[cfg(feature = "quinn")]
    pub fn quic<P: AsRef<[u8]>>(
        &self,
        protocols: impl IntoIterator<Item = P>,
    ) -> Result<quinn::ServerConfig, Error> {
        let mut config = ServerConfig::clone(&self.current().config);
        config.alpn_protocols = protocols.into_iter().map(|protocol| protocol.as_ref().to_owned()).collect();
        config.cert_resolver = Arc::new(CurrentCertificate(self.clone()));
        let config = quinn::crypto::rustls::QuicServerConfig::try_from(config);
        Ok(quinn::ServerConfig::with_crypto(Arc::new(config.map_err(quic_error)?)))
    }

    fn current(&self) -> Arc<LoadedAcceptor> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(feature = "quinn")]
#[derive(Debug)]
struct CurrentCertificate(Acceptor);

#[cfg(feature = "quinn")]
impl ResolvesServerCert for CurrentCertificate {
    fn resolve(&self, client: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.current().config.cert_resolver.resolve(client)
    }
}

#[derive(Debug)]
pub(super) struct CertificateByName {
    pub(super) named: ResolvesServerCertUsingSni,
    pub(super) default: Arc<CertifiedKey>,
}

impl ResolvesServerCert for CertificateByName {
    fn resolve(&self, client: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.named.resolve(client).or_else(|| Some(Arc::clone(&self.default)))
    }
}
