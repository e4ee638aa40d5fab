//! TLS by rustls on connections to PostgreSQL.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_io::{AsyncBufRead, AsyncWrite};
use tokio::io::ReadBuf;
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};

use crate::Io;
use crate::tls::{Connector, Stream};

/// Makes the TLS handshake of one connection, with a certificate for `name`, after the server has
/// agreed to TLS (tokio-postgres' `TlsConnect`).
pub(super) struct Tls {
    connector: Connector,
    name: String,
}

impl Tls {
    /// `name`: what the server's certificate has to be valid for.
    pub(super) fn new(connector: Connector, name: &str) -> Self {
        Self { connector, name: name.to_owned() }
    }
}

impl<S> TlsConnect<Io<S>> for Tls
where
    S: AsyncBufRead + AsyncWrite + Unpin + 'static,
{
    type Stream = Encrypted<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted<S>>>>>;

    fn connect(self, stream: Io<S>) -> Self::Future {
        Box::pin(async move {
            let stream = self.connector.connect(&self.name, stream.into_inner()).await?;
            Ok(Encrypted(Io::new(stream)))
        })
    }
}

/// A stream after its handshake. It offers no channel binding.
pub(super) struct Encrypted<S>(Io<Stream<S>>);

impl<S: AsyncBufRead + AsyncWrite + Unpin> TlsStream for Encrypted<S> {
    fn channel_binding(&self) -> ChannelBinding {
        // It would need the hash that has signed the certificate, which rustls doesn't tell.
        ChannelBinding::none()
    }
}

impl<S: AsyncBufRead + AsyncWrite + Unpin> tokio::io::AsyncRead for Encrypted<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        tokio::io::AsyncRead::poll_read(Pin::new(&mut self.get_mut().0), context, buffer)
    }
}

impl<S: AsyncBufRead + AsyncWrite + Unpin> tokio::io::AsyncWrite for Encrypted<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        tokio::io::AsyncWrite::poll_write(Pin::new(&mut self.get_mut().0), context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        tokio::io::AsyncWrite::poll_flush(Pin::new(&mut self.get_mut().0), context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        tokio::io::AsyncWrite::poll_shutdown(Pin::new(&mut self.get_mut().0), context)
    }
}
