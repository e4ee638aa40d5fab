//! TLS on the connections of a client.

use std::io;
use std::sync::{Arc, OnceLock};

use futures_io::{AsyncRead, AsyncWrite};

use crate::tls::{Connector, Stream};

const H2: &str = "h2";
const HTTP1: &str = "http/1.1";

/// How `https` connections are encrypted. Clones share the authorities that were read.
#[derive(Debug, Clone, Default)]
pub(super) struct Https {
    /// `None`: one with the system's authorities.
    given: Option<Connector>,
    http2_only: bool,
    /// The connector with its protocols, which the first handshake sets.
    ready: Arc<OnceLock<Connector>>,
}

impl Https {
    pub(super) fn set_connector(&mut self, connector: Connector) {
        *self = Self { given: Some(connector), http2_only: self.http2_only, ready: Arc::default() };
    }

    pub(super) fn set_http2_only(&mut self) {
        *self = Self { given: self.given.take(), http2_only: true, ready: Arc::default() };
    }

    /// Performs the handshake with the server of a URI. Returns whether HTTP/2 was chosen.
    pub(super) async fn handshake<S>(&self, host: &str, stream: S) -> io::Result<(Stream<S>, bool)>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let stream = self.connector().await?.connect(host, stream).await?;
        let negotiated_h2 = stream.alpn_protocol() == Some(H2.as_bytes());
        if self.http2_only && !negotiated_h2 {
            let problem = format!("{host} has not agreed to HTTP/2 in the TLS handshake (ALPN)");
            return Err(io::Error::new(io::ErrorKind::Unsupported, problem));
        }
        Ok((stream, negotiated_h2))
    }

    async fn connector(&self) -> io::Result<&Connector> {
        if let Some(ready) = self.ready.get() {
            return Ok(ready);
        }
        let connector = match &self.given {
            Some(given) => given.clone(),
            None => system_connector().await?,
        };
        let connector = if self.http2_only {
            connector.with_alpn(&[H2])
        } else if connector.offers_any() {
            connector
        } else {
            connector.with_alpn(&[H2, HTTP1])
        };
        Ok(self.ready.get_or_init(|| connector))
    }
}

/// Reads the system's authorities, on a thread that may block.
async fn system_connector() -> io::Result<Connector> {
    let opened = runtime::spawn_blocking(|| Connector::builder().open()).await;
    opened.map_err(|error| io::Error::other(error.to_string()))?.map_err(io::Error::other)
}
