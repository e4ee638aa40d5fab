//! TLS: certificates from files, read again when they are asked for.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use futures_rustls::TlsAcceptor;
use futures_rustls::pki_types::pem::PemObject;
use futures_rustls::pki_types::{CertificateDer, PrivateKeyDer};
use futures_rustls::rustls::crypto::ring;
use futures_rustls::rustls::server::WebPkiClientVerifier;
use futures_rustls::rustls::{self, RootCertStore, ServerConfig, SupportedProtocolVersion, version};

/// Where a server's certificates are, and what it asks of clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsConfig {
    /// The server's certificate and those behind it, in PEM; memcached's `-o ssl_chain_cert`.
    pub certificates: PathBuf,
    /// Its private key, in PEM; memcached's `-o ssl_key`.
    pub key: PathBuf,
    /// Who signs clients' certificates, in PEM; memcached's `-o ssl_ca_cert`.
    pub authorities: Option<PathBuf>,
    /// Whether clients are asked for a certificate.
    pub ask_clients: bool,
    /// Whether they must have one.
    pub require_clients: bool,
    /// Whether TLS 1.3 is all that is spoken.
    pub only_1_3: bool,
}

/// Takes connections on, by what the files said when they were last read.
#[derive(Debug)]
pub struct Tls {
    config: TlsConfig,
    current: RwLock<Arc<ServerConfig>>,
}

impl Tls {
    pub fn open(config: &TlsConfig) -> io::Result<Self> {
        Ok(Self { config: config.clone(), current: RwLock::new(Arc::new(read(config)?)) })
    }

    /// Reads the files again.
    pub fn read(&self) -> io::Result<ServerConfig> {
        read(&self.config)
    }

    /// Goes by what was read from now on.
    pub fn replace(&self, fresh: ServerConfig) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(fresh);
    }

    pub fn acceptor(&self) -> TlsAcceptor {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner)).into()
    }
}

fn wrong(path: &Path, what: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{}: {what}", path.display()))
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let found: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| wrong(path, format!("cannot read certificates: {error}")))?;
    if found.is_empty() {
        return Err(wrong(path, "there is no certificate in it"));
    }
    Ok(found)
}

const BOTH: &[&SupportedProtocolVersion] = &[&version::TLS13, &version::TLS12];
const ONLY_1_3: &[&SupportedProtocolVersion] = &[&version::TLS13];

fn read(config: &TlsConfig) -> io::Result<ServerConfig> {
    let chain = certificates(&config.certificates)?;
    let key = PrivateKeyDer::from_pem_file(&config.key)
        .map_err(|error| wrong(&config.key, format!("cannot read the private key: {error}")))?;
    let provider = Arc::new(ring::default_provider());
    let versions = if config.only_1_3 { ONLY_1_3 } else { BOTH };
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .map_err(io::Error::other)?;
    let builder = match &config.authorities {
        Some(path) if config.ask_clients => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| wrong(path, error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = if config.require_clients { verifier } else { verifier.allow_unauthenticated() };
            builder.with_client_cert_verifier(verifier.build().map_err(|error| wrong(path, error))?)
        }
        _ => builder.with_no_client_auth(),
    };
    builder
        .with_single_cert(chain, key)
        .map_err(|error: rustls::Error| wrong(&config.certificates, format!("does not fit the key: {error}")))
}
