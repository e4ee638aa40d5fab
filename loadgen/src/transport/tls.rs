//! TLS, by rustls.

use std::io;
use std::path::Path;
use std::sync::Arc;

use futures_rustls::TlsConnector;
use futures_rustls::client::TlsStream;
use futures_rustls::pki_types::pem::PemObject;
use futures_rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use futures_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use futures_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use futures_rustls::rustls::{
    ClientConfig, DigitallySignedStruct, Error as TlsError, RootCertStore, SignatureScheme,
};
use futures_util::io::BufReader;
use net::TcpStream;

use crate::address::Address;
use crate::config::TlsFiles;
use crate::error::Error;

/// Makes TLS connections with the run's certificates.
pub(crate) struct Tls {
    connector: TlsConnector,
    name: Option<ServerName<'static>>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("name", &self.name).finish_non_exhaustive()
    }
}

fn invalid(path: &Path, what: impl std::fmt::Display) -> Error {
    Error::Config(format!("{}: {what}", path.display()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| invalid(path, format!("cannot read certificates: {error}")))?;
    if found.is_empty() { Err(invalid(path, "the file contains no certificate")) } else { Ok(found) }
}

impl Tls {
    pub(crate) fn open(files: &TlsFiles) -> Result<Self, Error> {
        let invalid_config = |error: TlsError| Error::Config(format!("invalid TLS configuration: {error}"));
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(invalid_config)?;
        let builder = match &files.ca_certificates {
            _ if files.skip_verification => {
                builder.dangerous().with_custom_certificate_verifier(Arc::new(Unverified(provider)))
            }
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(path)? {
                    roots.add(certificate).map_err(|error| invalid(path, error))?;
                }
                builder.with_root_certificates(roots)
            }
            None => {
                return Err(Error::Config(
                    "TLS needs the CA certificate of the server, or verification turned off".to_owned(),
                ));
            }
        };
        let config = match (&files.certificate, &files.key) {
            (Some(chain), Some(key)) => {
                let private_key = PrivateKeyDer::from_pem_file(key)
                    .map_err(|error| invalid(key, format!("cannot read the private key: {error}")))?;
                builder.with_client_auth_cert(certificates(chain)?, private_key).map_err(invalid_config)?
            }
            (None, None) => builder.with_no_client_auth(),
            _ => {
                return Err(Error::Config(
                    "a client certificate and its key have to be given together".to_owned(),
                ));
            }
        };
        let name = files.server_name.clone().map(|name| {
            ServerName::try_from(name.clone())
                .map_err(|_| Error::Config(format!("{name:?} is not a valid server name")))
        });
        Ok(Self { connector: Arc::new(config).into(), name: name.transpose()? })
    }

    pub(crate) async fn connect(
        &self,
        stream: TcpStream,
        server: &Address,
    ) -> io::Result<BufReader<TlsStream<TcpStream>>> {
        let name = match (&self.name, server) {
            (Some(name), _) => name.clone(),
            (None, Address::Tcp(address)) => address.ip().into(),
            (None, Address::Unix(_)) => return Err(io::ErrorKind::InvalidInput.into()),
        };
        let stream = self.connector.connect(name, stream).await?;
        Ok(BufReader::with_capacity(64 << 10, stream))
    }
}

/// Accepts any certificate whose private key the server has.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
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
