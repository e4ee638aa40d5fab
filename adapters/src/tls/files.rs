//! Certificates and keys, in PEM files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_rustls::pki_types::pem::PemObject;
use futures_rustls::pki_types::{CertificateDer, PrivateKeyDer};
use futures_rustls::rustls::RootCertStore;
use futures_rustls::rustls::crypto::CryptoProvider;
use futures_rustls::rustls::sign::CertifiedKey;

use super::error::{Error, file_error};

/// A certificate chain and its private key, in two PEM files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificates {
    chain: PathBuf,
    key: PathBuf,
}

impl Certificates {
    /// `chain` begins with the certificate of the key; those that sign it follow.
    pub fn new(chain: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        Self { chain: chain.into(), key: key.into() }
    }

    pub(super) fn chain(&self) -> &Path {
        &self.chain
    }

    pub(super) fn read(
        &self,
        provider: &CryptoProvider,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), Error> {
        let chain = read_certificates(&self.chain)?;
        let key = read_key(&self.key, provider)?;
        Ok((chain, key))
    }

    pub(super) fn load(&self, provider: &CryptoProvider) -> Result<Arc<CertifiedKey>, Error> {
        let (chain, key) = self.read(provider)?;
        let unusable = "cannot use the certificate with this private key";
        let certified = CertifiedKey::from_der(chain, key, provider);
        certified.map(Arc::new).map_err(file_error(&self.chain, unusable))
    }
}

/// Reads a private key, whichever of the three formats is in it: OpenSSL accepts a PKCS#8 key under
/// the label `RSA PRIVATE KEY`, and so do memcached and others.
fn read_key(path: &Path, provider: &CryptoProvider) -> Result<PrivateKeyDer<'static>, Error> {
    let labelled =
        PrivateKeyDer::from_pem_file(path).map_err(file_error(path, "cannot read the private key"))?;
    let der = labelled.secret_der();
    let candidates = [
        PrivateKeyDer::Pkcs8(der.to_vec().into()),
        PrivateKeyDer::Pkcs1(der.to_vec().into()),
        PrivateKeyDer::Sec1(der.to_vec().into()),
    ];
    let usable =
        |key: &PrivateKeyDer<'static>| provider.key_provider.load_private_key(key.clone_key()).is_ok();
    if usable(&labelled) {
        return Ok(labelled);
    }
    // If none is usable, the error is that of the labelled one.
    let found = candidates.into_iter().find(usable);
    Ok(found.unwrap_or(labelled))
}

pub(super) fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(file_error(path, "cannot read certificates"))?;
    if found.is_empty() {
        return Err(Error::NoCertificate { path: path.to_owned() });
    }
    Ok(found)
}

/// Reads the certificates of authorities. `unusable` says what they are for.
pub(super) fn read_authorities(path: &Path, unusable: &'static str) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(path)? {
        roots.add(certificate).map_err(file_error(path, unusable))?;
    }
    Ok(roots)
}

/// Reads the certificates of authorities, without those that rustls can't use: a file of the system
/// may have some.
pub(super) fn read_usable_authorities(path: &Path) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    let (usable, _) = roots.add_parsable_certificates(read_certificates(path)?);
    if usable == 0 {
        return Err(Error::NoCertificate { path: path.to_owned() });
    }
    Ok(roots)
}
