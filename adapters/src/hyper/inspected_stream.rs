//! A stream that looks at what it reads.

use std::io;
use std::pin::Pin;
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

    /// How many bytes may be lent next. Pending if others have their turn first.
    fn poll_room(&mut self, _context: &Context<'_>) -> Poll<usize> {
        Poll::Ready(usize::MAX)
    }

    /// Nothing is there to be read.
    fn end_turn(&mut self) {}
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
        let Poll::Ready(bytes) = Pin::new(stream).poll_fill_buf(context)? else {
            inspector.end_turn();
            return Poll::Pending;
        };
        let room = ready!(inspector.poll_room(context));
        let bytes = &bytes[..bytes.len().min(room)];
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
