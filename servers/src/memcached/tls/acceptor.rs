//! TLS on accepted connections. Certificates are read from files and can be reloaded.

use std::io;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use futures_rustls::TlsAcceptor;
use futures_rustls::pki_types::pem::PemObject;
use futures_rustls::pki_types::{CertificateDer, PrivateKeyDer};
use futures_rustls::rustls::crypto::ring;
use futures_rustls::rustls::server::WebPkiClientVerifier;
use futures_rustls::rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion, version};
use futures_rustls::server::TlsStream;
use futures_util::{AsyncRead, AsyncWrite};

use super::config::{ClientCertificates, TlsConfig, TlsError};

/// Certificates and key as last loaded.
#[derive(Debug)]
pub struct Tls {
    config: TlsConfig,
    current: RwLock<Arc<ServerConfig>>,
}

/// Certificates and key that were loaded, but are not in use yet.
pub struct LoadedTls(ServerConfig);

impl Tls {
    pub fn open(config: &TlsConfig) -> Result<Self, TlsError> {
        Ok(Self { config: config.clone(), current: RwLock::new(Arc::new(load(config)?)) })
    }

    /// Loads the files again, without using them yet.
    pub fn load(&self) -> Result<LoadedTls, TlsError> {
        load(&self.config).map(LoadedTls)
    }

    /// Uses what was loaded for all later connections.
    pub fn replace(&self, loaded: LoadedTls) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(loaded.0);
    }

    /// Performs the handshake on an accepted connection.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> io::Result<TlsStream<S>> {
        let current = Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner));
        TlsAcceptor::from(current).accept(stream).await
    }
}

fn file_error<E>(path: &Path, problem: &'static str) -> impl Fn(E) -> TlsError
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    move |source| TlsError::File { path: path.to_owned(), problem, source: source.into() }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(file_error(path, "cannot read certificates"))?;
    if found.is_empty() {
        return Err(TlsError::NoCertificate { path: path.to_owned() });
    }
    Ok(found)
}

/// Reads a private key, whichever of the three formats is in it: OpenSSL accepts a PKCS#8 key under the label `RSA
/// PRIVATE KEY`, and so do memcached and others.
fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let labelled =
        PrivateKeyDer::from_pem_file(path).map_err(file_error(path, "cannot read the private key"))?;
    let der = labelled.secret_der();
    let candidates = [
        PrivateKeyDer::Pkcs8(der.to_vec().into()),
        PrivateKeyDer::Pkcs1(der.to_vec().into()),
        PrivateKeyDer::Sec1(der.to_vec().into()),
    ];
    let provider = ring::default_provider();
    let usable =
        |key: &PrivateKeyDer<'static>| provider.key_provider.load_private_key(key.clone_key()).is_ok();
    if usable(&labelled) {
        return Ok(labelled);
    }
    // If none is usable, the error is that of the labelled one.
    let found = candidates.into_iter().find(usable);
    Ok(found.unwrap_or(labelled))
}

const TLS12_AND_13: &[&SupportedProtocolVersion] = &[&version::TLS13, &version::TLS12];
const ONLY_TLS13: &[&SupportedProtocolVersion] = &[&version::TLS13];

fn load(config: &TlsConfig) -> Result<ServerConfig, TlsError> {
    let chain = certificates(&config.certificates)?;
    let key = private_key(&config.key)?;
    let provider = Arc::new(ring::default_provider());
    let versions = if config.require_tls13 { ONLY_TLS13 } else { TLS12_AND_13 };
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .map_err(|error| TlsError::Setup { source: error.into() })?;
    let builder = match &config.authorities {
        Some(path) if config.client_certificates != ClientCertificates::Ignored => {
            let unusable = "cannot use it to verify clients";
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(file_error(path, unusable))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = match config.client_certificates {
                ClientCertificates::Required => verifier,
                _ => verifier.allow_unauthenticated(),
            };
            builder.with_client_cert_verifier(verifier.build().map_err(file_error(path, unusable))?)
        }
        _ => builder.with_no_client_auth(),
    };
    builder
        .with_single_cert(chain, key)
        .map_err(file_error(&config.certificates, "cannot use the certificate with this private key"))
}
