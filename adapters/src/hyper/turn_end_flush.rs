//! A socket whose flush doesn't wait.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_io::{AsyncBufRead, AsyncRead, AsyncWrite};
use net::Stream;

/// hyper flushes after each response. On a ring the bytes are sent at the end of the turn anyway, and waiting for it
/// would poll the connection once more for each response, and hold HTTP/2 up in between. An error of the send is
/// returned by the next write or by the close, and the close does wait.
#[derive(Debug)]
pub(super) struct TurnEndFlush<K>(pub(super) Stream<K>);

impl<K> TurnEndFlush<K> {
    fn stream(self: Pin<&mut Self>) -> Pin<&mut Stream<K>> {
        Pin::new(&mut self.get_mut().0)
    }
}

impl<K> AsyncRead for TurnEndFlush<K> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.stream().poll_read(context, buffer)
    }
}

impl<K> AsyncBufRead for TurnEndFlush<K> {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        self.stream().poll_fill_buf(context)
    }

    fn consume(self: Pin<&mut Self>, amount: usize) {
        self.stream().consume(amount);
    }
}

impl<K> AsyncWrite for TurnEndFlush<K> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        self.stream().poll_write(context, buffer)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream().poll_write_vectored(context, buffers)
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_close(context)
    }
}
