//! Chooses a certificate by the name that the client asks for (SNI).

use std::sync::Arc;

use futures_rustls::rustls::server::{ClientHello, ResolvesServerCert, ResolvesServerCertUsingSni};
use futures_rustls::rustls::sign::CertifiedKey;

/// The certificates of names, and the one for all other clients.
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
