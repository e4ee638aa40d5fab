//! TLS to servers.

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
use net::TcpStream;

use crate::address::Address;
use crate::config::TlsFiles;
use crate::error::Error;

/// Makes connections by what the files say.
pub(crate) struct Tls {
    connector: TlsConnector,
    name: Option<ServerName<'static>>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("name", &self.name).finish_non_exhaustive()
    }
}

fn wrong(path: &Path, what: impl std::fmt::Display) -> Error {
    Error::Config(format!("{}: {what}", path.display()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| wrong(path, format!("cannot read certificates: {error}")))?;
    if found.is_empty() { Err(wrong(path, "there is no certificate in it")) } else { Ok(found) }
}

impl Tls {
    pub(crate) fn open(files: &TlsFiles) -> Result<Self, Error> {
        let other = |error: TlsError| Error::Config(format!("TLS can't be used so: {error}"));
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(other)?;
        let builder = match &files.authorities {
            _ if files.unverified => {
                builder.dangerous().with_custom_certificate_verifier(Arc::new(Unverified(provider)))
            }
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(path)? {
                    roots.add(certificate).map_err(|error| wrong(path, error))?;
                }
                builder.with_root_certificates(roots)
            }
            None => {
                return Err(Error::Config(
                    "TLS needs the certificate of who signs the server's, or leave to verify nothing"
                        .to_owned(),
                ));
            }
        };
        let config = match (&files.certificate, &files.key) {
            (Some(chain), Some(key)) => {
                let own = PrivateKeyDer::from_pem_file(key)
                    .map_err(|error| wrong(key, format!("cannot read the private key: {error}")))?;
                builder.with_client_auth_cert(certificates(chain)?, own).map_err(other)?
            }
            (None, None) => builder.with_no_client_auth(),
            _ => {
                return Err(Error::Config(
                    "a certificate of one's own needs its key, and a key its certificate".to_owned(),
                ));
            }
        };
        let name = files.name.clone().map(|name| {
            ServerName::try_from(name.clone())
                .map_err(|_| Error::Config(format!("{name:?} can't be a server's name")))
        });
        Ok(Self { connector: Arc::new(config).into(), name: name.transpose()? })
    }

    pub(crate) async fn connect(
        &self,
        stream: TcpStream,
        server: &Address,
    ) -> io::Result<TlsStream<TcpStream>> {
        let name = match (&self.name, server) {
            (Some(name), _) => name.clone(),
            (None, Address::Tcp(address)) => address.ip().into(),
            (None, Address::Unix(_)) => return Err(io::ErrorKind::InvalidInput.into()),
        };
        self.connector.connect(name, stream).await
    }
}

/// Takes any certificate whose key the server has.
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
