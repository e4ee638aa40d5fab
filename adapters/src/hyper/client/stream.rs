//! A connection of an HTTP client.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_io::{AsyncBufRead, AsyncRead, AsyncWrite};
use hyper_util::client::legacy::connect::{Connected, Connection};

use crate::forward_write::forward_write;
use crate::io::{SendIo, impl_write};

/// What carries HTTP: a socket, or TLS on one.
pub(super) trait Transport: AsyncBufRead + AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncBufRead + AsyncRead + AsyncWrite + Unpin> Transport for S {}

/// A connection of a [`Connector`](super::Connector). On other threads it is used through its
/// worker, as a [`SendIo`].
#[derive(Debug)]
pub struct HttpStream {
    stream: SendIo<Box<dyn Transport>>,
    peer: SocketAddr,
    negotiated_h2: bool,
}

impl HttpStream {
    pub(super) fn new(stream: impl Transport + 'static, peer: SocketAddr, negotiated_h2: bool) -> Self {
        // It is closed on this worker, wherever the client drops it.
        Self { stream: SendIo::new(Box::new(stream)), peer, negotiated_h2 }
    }

    /// The address that it is connected to.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// Whether the server has chosen HTTP/2 in the TLS handshake (ALPN).
    pub fn negotiated_h2(&self) -> bool {
        self.negotiated_h2
    }
}

impl Connection for HttpStream {
    fn connected(&self) -> Connected {
        let connected = Connected::new();
        if self.negotiated_h2 { connected.negotiated_h2() } else { connected }
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

forward_write!([] HttpStream, stream);
impl_write!([] HttpStream, ::hyper::rt::Write);
