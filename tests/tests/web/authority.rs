//! Certificates that tests make.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A folder with an authority, `ca.pem`, and certificates that it has signed.
pub struct Authority {
    folder: TempDir,
    issuer: rcgen::CertifiedIssuer<'static, rcgen::KeyPair>,
}

impl Authority {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, "authority of a test");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let issuer =
            rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap()).unwrap();
        std::fs::write(folder.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { folder, issuer }
    }

    /// Its own certificate.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// Writes a certificate for a DNS name or an IP address to `{file}.pem`, and its key to `{file}.key`. Returns both.
    pub fn certify(&self, file: &str, name: &str) -> (PathBuf, PathBuf) {
        let chain = self.folder.path().join(format!("{file}.pem"));
        let key = self.folder.path().join(format!("{file}.key"));
        self.certify_to(&chain, &key, name);
        (chain, key)
    }

    /// Writes a certificate and its key to files of another folder, perhaps.
    pub fn certify_to(&self, chain: &Path, key_file: &Path, name: &str) {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(chain, certificate.pem()).unwrap();
        std::fs::write(key_file, key.serialize_pem()).unwrap();
    }
}
