//! Certificates for tests of TLS.

use std::path::PathBuf;

use adapters::tls::{Certificates, Connector};
use futures_util::{AsyncReadExt, AsyncWriteExt};
use net::{Serving, TcpListener, TcpStream};
use tempfile::TempDir;

/// Answers each connection of a listener with a TLS alert, and keeps it open, so that no reset
/// overtakes the alert.
pub fn serve_tls_alerts(listener: TcpListener) -> Serving {
    listener
        .serve(async |mut stream: TcpStream| {
            let _ = stream.read(&mut [0; 1024]).await;
            let _ = stream.write_all(&[21, 3, 3, 0, 2, 2, 50]).await;
            let _ = stream.flush().await;
            while let Ok(1..) = stream.read(&mut [0; 1024]).await {}
        })
        .unwrap()
}

/// A folder with an authority, `ca.pem`, and certificates that it has signed.
pub struct Authority {
    folder: TempDir,
    issuer: rcgen::CertifiedIssuer<'static, rcgen::KeyPair>,
}

impl Authority {
    pub fn new() -> Self {
        Self::named("authority")
    }

    pub fn named(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let issuer =
            rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap()).unwrap();
        std::fs::write(folder.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { folder, issuer }
    }

    pub fn path(&self) -> PathBuf {
        self.file("ca.pem")
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a certificate and its key to `{file}.pem` and `{file}.key` of the folder. `name` is a
    /// DNS name or an IP address.
    pub fn certificates(&self, file: &str, name: &str) -> Certificates {
        let (chain, key_file) = (self.file(&format!("{file}.pem")), self.file(&format!("{file}.key")));
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
        std::fs::write(&chain, params.signed_by(&key, &self.issuer).unwrap().pem()).unwrap();
        std::fs::write(&key_file, key.serialize_pem()).unwrap();
        Certificates::new(chain, key_file)
    }

    pub fn connector(&self) -> Connector {
        Connector::builder().authorities(self.path()).open().unwrap()
    }
}
