//! A stream that looks at what it reads, and finds out which HTTP a client speaks.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use futures_io::{AsyncBufRead, AsyncRead, AsyncWrite};

use crate::forward_write::forward_write;

/// Looks at the bytes of a stream.
pub(super) trait Inspect {
    /// Looks at bytes that were read, of which the first is the stream's byte `position`. There are
    /// none at the end of the stream. Bytes that were lent and not consumed come again.
    ///
    /// # Errors
    /// Ends the read with the error.
    fn inspect(&mut self, position: usize, bytes: &[u8]) -> io::Result<()>;
}

/// A stream whose reads an [`Inspect`] looks at.
#[derive(Debug)]
pub(super) struct InspectedStream<S, I> {
    stream: S,
    /// How many bytes were read and consumed.
    position: usize,
    inspector: I,
}

impl<S, I> InspectedStream<S, I> {
    pub(super) fn new(stream: S, inspector: I) -> Self {
        Self { stream, position: 0, inspector }
    }
}

impl<S: AsyncBufRead + Unpin, I: Inspect + Unpin> AsyncBufRead for InspectedStream<S, I> {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let Self { stream, position, inspector } = self.get_mut();
        let bytes = ready!(Pin::new(stream).poll_fill_buf(context))?;
        inspector.inspect(*position, bytes)?;
        Poll::Ready(Ok(bytes))
    }

    fn consume(mut self: Pin<&mut Self>, amount: usize) {
        self.position = self.position.saturating_add(amount);
        Pin::new(&mut self.stream).consume(amount);
    }
}

impl<S: AsyncRead + Unpin, I: Inspect + Unpin> AsyncRead for InspectedStream<S, I> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let Self { stream, position, inspector } = self.get_mut();
        let length = ready!(Pin::new(stream).poll_read(context, buffer))?;
        inspector.inspect(*position, &buffer[..length])?;
        *position = position.saturating_add(length);
        Poll::Ready(Ok(length))
    }
}

forward_write!([S: AsyncWrite + Unpin, I: Unpin] InspectedStream<S, I>, stream);

/// What an HTTP/2 client sends first (RFC 9113, section 3.4). hyper-util tells the versions apart
/// by it, and has no time limit until it has.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spoken {
    /// Its first bytes may be of either.
    Unknown,
    Http1,
    Http2,
}

/// What the client of a connection speaks, as it is found out.
pub(super) type SpokenCell = Rc<Cell<Spoken>>;

/// Compares the first bytes of a stream with the preface of HTTP/2.
#[derive(Debug)]
pub(super) struct FirstBytes {
    spoken: SpokenCell,
    /// The client has agreed to HTTP/2 already.
    h2_agreed: bool,
    http1_only: bool,
}

impl FirstBytes {
    /// Compares the reads of a stream. `h2_agreed`: anything but the preface is an error; hyper
    /// would answer it by HTTP/1. `http1_only`: the preface is an error.
    pub(super) fn of<S>(
        stream: S,
        h2_agreed: bool,
        http1_only: bool,
    ) -> (InspectedStream<S, Self>, SpokenCell) {
        let spoken = Rc::new(Cell::new(Spoken::Unknown));
        let inspect = Self { spoken: Rc::clone(&spoken), h2_agreed, http1_only };
        (InspectedStream::new(stream, inspect), spoken)
    }
}

impl Inspect for FirstBytes {
    fn inspect(&mut self, position: usize, bytes: &[u8]) -> io::Result<()> {
        if self.spoken.get() != Spoken::Unknown {
            return Ok(());
        }
        let expected = &PREFACE[position.min(PREFACE.len())..];
        let length = bytes.len().min(expected.len());
        // At the end of the stream there are none.
        if bytes.is_empty() || bytes[..length] != expected[..length] {
            if self.h2_agreed {
                let problem = "the client has agreed to HTTP/2 (ALPN), and doesn't begin with its preface";
                return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
            }
            self.spoken.set(Spoken::Http1);
        } else if length == expected.len() {
            if self.http1_only {
                let problem = "the client speaks HTTP/2, which is turned off";
                return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
            }
            self.spoken.set(Spoken::Http2);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

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

    /// Reads `pieces` one after the other. Returns what is known after each.
    async fn spoken_after(pieces: &[&[u8]]) -> Vec<Spoken> {
        let (mut stream, spoken) = FirstBytes::of(Pieces(pieces), false, false);
        let mut after = Vec::new();
        for piece in pieces {
            // Twice: hyper may look again without having taken any.
            for _ in 0..2 {
                poll_fn(|context| Pin::new(&mut stream).poll_fill_buf(context).map_ok(<[u8]>::len))
                    .await
                    .unwrap();
            }
            Pin::new(&mut stream).consume(piece.len());
            after.push(spoken.get());
        }
        after
    }

    #[runtime::test]
    async fn the_version_is_unknown_until_the_preface_is_complete_or_differs() {
        assert_eq!(spoken_after(&[b"GET / HTTP/1.1\r\n"]).await, [Spoken::Http1]);
        assert_eq!(spoken_after(&[b"P", b"OST / HTTP/1.1\r\n"]).await, [Spoken::Unknown, Spoken::Http1]);
        assert_eq!(
            spoken_after(&[b"PRI * HTTP/2.0\r\n", b"\r\nSM\r\n\r", b"\n"]).await,
            [Spoken::Unknown, Spoken::Unknown, Spoken::Http2]
        );
        assert_eq!(spoken_after(&[PREFACE]).await, [Spoken::Http2]);
        assert_eq!(spoken_after(&[b"PRI", b""]).await, [Spoken::Unknown, Spoken::Http1]);
    }
}
