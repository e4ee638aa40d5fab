//! Connects HTTP clients to hosts.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use ::hyper::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use net::{Tcp, TcpStream};
use runtime::JoinHandle;

use super::resolve::resolve;
use super::turn_end_flush::TurnEndFlush;
use crate::io::SendIo;

/// Connects to the host of a URI, on the calling worker. A tower service, for hyper-util's client and others.
///
/// The port is the URI's, else 80. `https` is refused: it needs a connector that does TLS. Names are looked up on a
/// thread of their own, and their addresses are tried one after the other.
#[derive(Debug, Clone)]
pub struct Connector {
    connect_timeout: Duration,
}

impl Connector {
    /// A connector that gives each address 10 s.
    pub fn new() -> Self {
        Self { connect_timeout: Duration::from_secs(10) }
    }

    /// How long an address may take to be connected to, before the next one is tried.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
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
        Connecting(runtime::spawn(connect(uri, self.connect_timeout)))
    }
}

async fn connect(uri: Uri, limit: Duration) -> io::Result<HttpStream> {
    let unusable = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("{uri}: {what}"));
    if uri.scheme_str().is_some_and(|scheme| scheme != "http") {
        return Err(unusable("this client speaks http only"));
    }
    let host = uri.host().ok_or_else(|| unusable("the URI has no host"))?;
    let addresses = resolve(host, uri.port_u16().unwrap_or(80)).await?;
    let mut last_error = unusable("the host has no address");
    for address in addresses {
        match TcpStream::connect_timeout(address, limit).await {
            Ok(stream) => return HttpStream::new(stream, address),
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

/// A connection of a [`Connector`]. It may be moved to other threads and dropped there, but is read and written on
/// its own worker only: elsewhere it gives errors.
#[derive(Debug)]
pub struct HttpStream {
    stream: SendIo<TurnEndFlush<Tcp>>,
    peer: SocketAddr,
}

impl HttpStream {
    fn new(stream: TcpStream, peer: SocketAddr) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        // It is closed on this worker, wherever the client drops it.
        Ok(Self { stream: SendIo::new(TurnEndFlush(stream)), peer })
    }

    /// The address that it is connected to.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }
}

impl Connection for HttpStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl ::hyper::rt::Read for HttpStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ::hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        ::hyper::rt::Read::poll_read(Pin::new(&mut self.stream), context, buffer)
    }
}

impl ::hyper::rt::Write for HttpStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        ::hyper::rt::Write::poll_write(Pin::new(&mut self.stream), context, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ::hyper::rt::Write::poll_flush(Pin::new(&mut self.stream), context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ::hyper::rt::Write::poll_shutdown(Pin::new(&mut self.stream), context)
    }

    fn is_write_vectored(&self) -> bool {
        ::hyper::rt::Write::is_write_vectored(&self.stream)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ::hyper::rt::Write::poll_write_vectored(Pin::new(&mut self.stream), context, buffers)
    }
}
