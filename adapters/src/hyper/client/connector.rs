//! Connects HTTP clients to hosts.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use ::hyper::Uri;
use net::TcpStream;
use runtime::JoinHandle;

#[cfg(feature = "tls")]
use super::https::Https;
use super::stream::HttpStream;
use crate::hyper::first_bytes::{Inspect, InspectedStream};
use crate::hyper::http_socket::HttpSocket;

/// What is wrong with an `https` URI if this crate was built without TLS.
pub(crate) const NEEDS_TLS: &str = "https needs the feature `tls` of lull-adapters";

/// Connects to the host of a URI, on the calling worker. A tower service, for hyper-util's client
/// and others.
///
/// The port is the URI's, else 80, or 443 for `https`, which needs the feature `tls`. Names are
/// looked up on another thread, and their addresses are tried one after the other.
///
/// With `https` the server's certificate has to be valid for the URI's host. Unless `tls` says
/// otherwise, the system's authorities are trusted, whose file is read once, for the first such
/// URI; HTTP/2 and HTTP/1.1 are offered (ALPN), and clients of hyper-util speak what the server
/// chooses. What is wrong with a handshake is a `tls::HandshakeError` in the `io::Error`.
#[derive(Debug, Clone)]
pub struct Connector {
    connect_timeout: Duration,
    #[cfg(feature = "tls")]
    https: Https,
}

impl Connector {
    /// A connector that gives each address 10 s.
    pub fn new() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            #[cfg(feature = "tls")]
            https: Https::default(),
        }
    }

    /// How long an address may take to be connected to, before the next one is tried. TLS
    /// handshakes have another limit: `tls::ConnectorBuilder::handshake_timeout`.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// How connections to `https` URIs are encrypted. If the TLS connector offers no protocol by
    /// ALPN, HTTP/2 and HTTP/1.1 are offered.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, connector: crate::tls::Connector) -> Self {
        self.https.set_connector(connector);
        self
    }

    /// Offers HTTP/2 only to `https` servers, and refuses those that don't choose it: for clients
    /// that speak nothing else (hyper-util's `http2_only`).
    #[cfg(feature = "tls")]
    pub fn http2_only(mut self) -> Self {
        self.https.set_http2_only();
        self
    }
}

impl Default for Connector {
    fn default() -> Self {
        Self::new()
    }
}

impl tower_service::Service<Uri> for Connector {
    type Response = HttpStream;
    type Error = io::Error;
    type Future = Connecting;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Connecting {
        // A task, because the future of a connect is not `Send`, and hyper-util's has to be.
        Connecting(runtime::spawn(connect(uri, self.clone())))
    }
}

async fn connect(uri: Uri, connector: Connector) -> io::Result<HttpStream> {
    let unusable = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("{uri}: {what}"));
    let encrypted = is_encrypted(uri.scheme_str(), cfg!(feature = "tls")).map_err(unusable)?;
    let host = uri.host().map(without_brackets).ok_or_else(|| unusable("the URI has no host"))?;
    let port = uri.port_u16().unwrap_or(if encrypted { 443 } else { 80 });
    let addresses = resolve(host, port).await?;
    let (stream, address) = connect_first(addresses, connector.connect_timeout).await?;
    let stream = HttpSocket::new(stream, true);
    #[cfg(feature = "tls")]
    if encrypted {
        let (stream, negotiated_h2) = connector.https.handshake(host, stream).await?;
        return Ok(HttpStream::new(stream, address, negotiated_h2));
    }
    Ok(HttpStream::new(InspectedStream::new(stream, AlertCheck), address, false))
}

/// Whether connections are encrypted for URIs of a scheme. `tls`: whether they can be.
fn is_encrypted(scheme: Option<&str>, tls: bool) -> Result<bool, &'static str> {
    match scheme {
        None | Some("http") => Ok(false),
        Some("https") if tls => Ok(true),
        Some("https") => Err(NEEDS_TLS),
        Some(_) => Err("this client speaks http and https only"),
    }
}

/// A URI's host without the brackets that it has IPv6 addresses in.
fn without_brackets(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// Looks a host up. Addresses are taken as they are.
async fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let found = net::lookup_host((host, port)).await?;
    if found.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, format!("the host {host} has no address")));
    }
    Ok(found)
}

async fn connect_first(addresses: Vec<SocketAddr>, limit: Duration) -> io::Result<(TcpStream, SocketAddr)> {
    let mut last_error = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in addresses {
        match TcpStream::connect_timeout(address, limit).await {
            Ok(stream) => return Ok((stream, address)),
            Err(error) => last_error = error,
        }
    }
    Err(last_error)
}

/// The future of a [`Connector`]. Dropping it gives up.
#[derive(Debug)]
pub struct Connecting(JoinHandle<io::Result<HttpStream>>);

impl Future for Connecting {
    type Output = io::Result<HttpStream>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0)
            .poll(context)
            .map(|joined| joined.map_err(|error| io::Error::other(error.to_string()))?)
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// How a TLS alert begins: its type, and the first part of its version (RFC 8446, section 5.1).
/// HTTP/1 begins with letters, HTTP/2 with the length of its first frame, whose first byte is 0.
const ALERT: [u8; 2] = [21, 3];

/// Compares the first bytes of a connection without TLS with an alert, which HTTP could make
/// nothing of.
#[derive(Debug)]
struct AlertCheck;

impl Inspect for AlertCheck {
    fn inspect(&mut self, position: usize, bytes: &[u8]) -> io::Result<()> {
        if position == 0 && bytes.starts_with(&ALERT) {
            let problem =
                "the server expects TLS, which a URI of https uses: it has answered with a TLS alert";
            return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn https_without_tls_names_the_feature_and_other_schemes_are_refused() {
        assert_eq!(is_encrypted(Some("http"), false), Ok(false));
        assert_eq!(is_encrypted(Some("https"), true), Ok(true));
        assert!(is_encrypted(Some("https"), false).unwrap_err().contains("feature `tls`"));
        assert!(is_encrypted(Some("ftp"), true).unwrap_err().contains("http and https"));
    }

    #[runtime::test]
    async fn addresses_need_no_lookup_and_names_have_one() {
        assert_eq!(resolve("127.0.0.1", 80).await.unwrap(), ["127.0.0.1:80".parse().unwrap()]);
        assert_eq!(resolve(without_brackets("[::1]"), 443).await.unwrap(), ["[::1]:443".parse().unwrap()]);
        assert!(resolve("localhost", 80).await.unwrap().iter().all(|address| address.ip().is_loopback()));
        assert!(resolve("no-such-host.invalid", 80).await.is_err());
    }
}
