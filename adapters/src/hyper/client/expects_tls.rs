//! Recognizes a server that expects TLS from a client that does not speak it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_io::{AsyncBufRead, AsyncRead, AsyncWrite};

/// How a TLS alert begins: its type, and the first part of its version (RFC 8446, section 5.1). HTTP/1 begins with
/// letters, HTTP/2 with the length of its first frame, whose first byte is 0.
const ALERT: [u8; 2] = [21, 3];

/// A connection without TLS. Its first bytes are compared with an alert, which HTTP could make nothing of.
#[derive(Debug)]
pub(super) struct WithoutTls<S> {
    stream: S,
    begun: bool,
}

impl<S> WithoutTls<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, begun: false }
    }
}

/// Fails if an answer begins with these bytes and is an alert.
fn check(begun: &mut bool, bytes: &[u8]) -> io::Result<()> {
    if !std::mem::replace(begun, true) && bytes.starts_with(&ALERT) {
        let problem = "the server expects TLS, which a URI of https uses: it has answered with a TLS alert";
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
    }
    Ok(())
}

impl<S: AsyncRead + Unpin> AsyncRead for WithoutTls<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let Self { stream, begun } = self.get_mut();
        let length = ready!(Pin::new(stream).poll_read(context, buffer))?;
        check(begun, &buffer[..length])?;
        Poll::Ready(Ok(length))
    }
}

impl<S: AsyncBufRead + Unpin> AsyncBufRead for WithoutTls<S> {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let Self { stream, begun } = self.get_mut();
        let bytes = ready!(Pin::new(stream).poll_fill_buf(context))?;
        check(begun, bytes)?;
        Poll::Ready(Ok(bytes))
    }

    fn consume(mut self: Pin<&mut Self>, amount: usize) {
        Pin::new(&mut self.stream).consume(amount);
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WithoutTls<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, buffer)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, buffers)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_close(context)
    }
}
