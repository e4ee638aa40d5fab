//! An encrypted stream.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_io::{AsyncBufRead, AsyncRead, AsyncWrite};
use futures_rustls::TlsStream;

use crate::forward_write::forward_write;

/// What a TLS record carries at most.
const RECORD: usize = 16 << 10;

thread_local! {
    /// A free read buffer. Streams have one only while they hold unread data.
    static FREE: Cell<Option<Box<[u8]>>> = const { Cell::new(None) };
}

/// A connection after its TLS handshake, of a server or of a client.
///
/// Closing it tells the peer (`close_notify`); dropping it does not. It has a read buffer only
/// while it holds unread data: an idle connection has none.
#[derive(Debug)]
pub struct Stream<S> {
    tls: TlsStream<S>,
    buffer: Option<Box<[u8]>>,
    start: usize,
    end: usize,
}

impl<S> Stream<S> {
    pub(super) fn new(tls: TlsStream<S>) -> Self {
        Self { tls, buffer: None, start: 0, end: 0 }
    }

    /// The stream that carries the encrypted bytes, for its options and addresses.
    pub fn get_ref(&self) -> &S {
        self.tls.get_ref().0
    }

    /// The application protocol that was agreed on (ALPN).
    pub fn alpn_protocol(&self) -> Option<&[u8]> {
        self.tls.get_ref().1.alpn_protocol()
    }

    /// The name that the client asked for (SNI). `None` on a client.
    pub fn server_name(&self) -> Option<&str> {
        match &self.tls {
            TlsStream::Server(server) => server.get_ref().1.server_name(),
            TlsStream::Client(_) => None,
        }
    }

    /// The peer's certificate chain in DER, if it has presented one.
    pub fn peer_certificates(&self) -> Option<&[futures_rustls::pki_types::CertificateDer<'static>]> {
        self.tls.get_ref().1.peer_certificates()
    }

    fn unread(&self) -> &[u8] {
        self.buffer.as_deref().map_or(&[], |buffer| &buffer[self.start..self.end])
    }

    fn release(&mut self) {
        (self.start, self.end) = (0, 0);
        if let Some(buffer) = self.buffer.take() {
            // The thread may be ending.
            let _ = FREE.try_with(|free| free.set(Some(buffer)));
        }
    }
}

impl<S> Drop for Stream<S> {
    fn drop(&mut self) {
        self.release();
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncBufRead for Stream<S> {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let this = self.get_mut();
        if this.start == this.end {
            let taken = FREE.try_with(Cell::take).ok().flatten();
            let buffer = this.buffer.insert(taken.unwrap_or_else(|| vec![0; RECORD].into_boxed_slice()));
            match Pin::new(&mut this.tls).poll_read(context, buffer) {
                Poll::Ready(Ok(length @ 1..)) => (this.start, this.end) = (0, length),
                Poll::Ready(result) => {
                    this.release();
                    result?;
                }
                Poll::Pending => {
                    this.release();
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(Ok(this.unread()))
    }

    fn consume(self: Pin<&mut Self>, amount: usize) {
        let this = self.get_mut();
        assert!(amount <= this.end - this.start, "consumed more bytes than were buffered");
        this.start += amount;
        if this.start == this.end {
            this.release();
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Stream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.start == this.end {
            return Pin::new(&mut this.tls).poll_read(context, buffer);
        }
        let unread = ready!(Pin::new(&mut *this).poll_fill_buf(context))?;
        let length = unread.len().min(buffer.len());
        buffer[..length].copy_from_slice(&unread[..length]);
        Pin::new(this).consume(length);
        Poll::Ready(Ok(length))
    }
}

forward_write!([S: AsyncRead + AsyncWrite + Unpin] Stream<S>, tls);
