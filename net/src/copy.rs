//! Copying between two streams.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_io::{AsyncBufRead, AsyncWrite};

enum Direction {
    Copying(u64),
    /// The source has ended; what was written is flushed, and the end sent.
    Closing(u64),
    Done(u64),
}

/// Copies in both directions until both have ended, as a proxy does, and returns how many bytes
/// went from `a` to `b` and from `b` to `a`. The end of one direction is passed on (`close`), while
/// the other goes on. It copies out of the streams' read buffers, and needs none of its own.
///
/// # Errors
/// The first error of either stream, after which nothing more is copied.
pub async fn copy_bidirectional<A, B>(a: &mut A, b: &mut B) -> io::Result<(u64, u64)>
where
    A: AsyncBufRead + AsyncWrite + Unpin + ?Sized,
    B: AsyncBufRead + AsyncWrite + Unpin + ?Sized,
{
    let (mut there, mut back) = (Direction::Copying(0), Direction::Copying(0));
    std::future::poll_fn(|context| {
        let there = poll_copy(&mut there, context, a, b)?;
        let back = poll_copy(&mut back, context, b, a)?;
        Poll::Ready(Ok((ready!(there), ready!(back))))
    })
    .await
}

fn poll_copy<R, W>(
    direction: &mut Direction,
    context: &mut Context<'_>,
    reader: &mut R,
    writer: &mut W,
) -> io::Result<Poll<u64>>
where
    R: AsyncBufRead + Unpin + ?Sized,
    W: AsyncWrite + Unpin + ?Sized,
{
    loop {
        match direction {
            Direction::Copying(copied) => {
                let Poll::Ready(bytes) = Pin::new(&mut *reader).poll_fill_buf(context)? else {
                    // The reader may wait for an answer to what was written.
                    let _ = Pin::new(&mut *writer).poll_flush(context)?;
                    return Ok(Poll::Pending);
                };
                if bytes.is_empty() {
                    *direction = Direction::Closing(*copied);
                    continue;
                }
                let Poll::Ready(written) = Pin::new(&mut *writer).poll_write(context, bytes)? else {
                    return Ok(Poll::Pending);
                };
                if written == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                Pin::new(&mut *reader).consume(written);
                *copied += written as u64;
            }
            Direction::Closing(copied) => {
                let copied = *copied;
                if Pin::new(&mut *writer).poll_close(context)?.is_pending() {
                    return Ok(Poll::Pending);
                }
                *direction = Direction::Done(copied);
            }
            Direction::Done(copied) => return Ok(Poll::Ready(*copied)),
        }
    }
}
