//! A stream that knows whether its client has said yet which HTTP it speaks.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use futures_io::{AsyncBufRead, AsyncRead, AsyncWrite};

/// What an HTTP/2 client sends first (RFC 9113, section 3.4). hyper-util tells the versions apart by it, and has no time
/// limit until it has.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Whether the version of a connection is still unknown.
pub(super) type Undecided = Rc<Cell<bool>>;

/// A stream whose first bytes are compared with the preface of HTTP/2.
#[derive(Debug)]
pub(super) struct FirstBytes<S> {
    stream: S,
    /// How many bytes of the preface were read.
    read: usize,
    undecided: Undecided,
}

impl<S> FirstBytes<S> {
    pub(super) fn new(stream: S) -> (Self, Undecided) {
        let undecided = Rc::new(Cell::new(true));
        (Self { stream, read: 0, undecided: Rc::clone(&undecided) }, undecided)
    }

    /// Compares bytes that begin where the last read ended.
    fn compare(read: usize, undecided: &Cell<bool>, bytes: &[u8]) {
        let expected = &PREFACE[read.min(PREFACE.len())..];
        let length = bytes.len().min(expected.len());
        // At the end of the stream there are none.
        if bytes.is_empty() || bytes[..length] != expected[..length] || length == expected.len() {
            undecided.set(false);
        }
    }
}

impl<S: AsyncBufRead + Unpin> AsyncBufRead for FirstBytes<S> {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let Self { stream, read, undecided } = self.get_mut();
        let bytes = ready!(Pin::new(stream).poll_fill_buf(context))?;
        if undecided.get() {
            Self::compare(*read, undecided, bytes);
        }
        Poll::Ready(Ok(bytes))
    }

    fn consume(mut self: Pin<&mut Self>, amount: usize) {
        self.read = self.read.saturating_add(amount);
        Pin::new(&mut self.stream).consume(amount);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FirstBytes<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let Self { stream, read, undecided } = self.get_mut();
        let length = ready!(Pin::new(stream).poll_read(context, buffer))?;
        if undecided.get() {
            Self::compare(*read, undecided, &buffer[..length]);
        }
        *read = read.saturating_add(length);
        Poll::Ready(Ok(length))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FirstBytes<S> {
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

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    /// Reads `pieces` one after the other. Returns whether the version is unknown after each.
    async fn undecided_after(pieces: &[&[u8]]) -> Vec<bool> {
        struct Pieces<'a>(&'a [&'a [u8]]);
        impl AsyncBufRead for Pieces<'_> {
            fn poll_fill_buf(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
                Poll::Ready(Ok(self.get_mut().0.first().copied().unwrap_or_default()))
            }

            fn consume(mut self: Pin<&mut Self>, _: usize) {
                self.0 = &self.0[1..];
            }
        }
        impl AsyncRead for Pieces<'_> {
            fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut [u8]) -> Poll<io::Result<usize>> {
                Poll::Ready(Ok(0))
            }
        }
        let (mut stream, undecided) = FirstBytes::new(Pieces(pieces));
        let mut after = Vec::new();
        for piece in pieces {
            // Twice: hyper may look again without having taken any.
            for _ in 0..2 {
                poll_fn(|context| Pin::new(&mut stream).poll_fill_buf(context).map_ok(<[u8]>::len))
                    .await
                    .unwrap();
            }
            Pin::new(&mut stream).consume(piece.len());
            after.push(undecided.get());
        }
        after
    }

    #[runtime::test]
    async fn the_version_is_unknown_until_the_preface_is_complete_or_differs() {
        assert_eq!(undecided_after(&[b"GET / HTTP/1.1\r\n"]).await, [false]);
        assert_eq!(undecided_after(&[b"P", b"OST / HTTP/1.1\r\n"]).await, [true, false]);
        assert_eq!(
            undecided_after(&[b"PRI * HTTP/2.0\r\n", b"\r\nSM\r\n\r", b"\n"]).await,
            [true, true, false]
        );
        assert_eq!(undecided_after(&[PREFACE]).await, [false]);
        assert_eq!(undecided_after(&[b"PRI", b""]).await, [true, false]);
    }
}
