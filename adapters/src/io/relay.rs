//! A stream that is used on another thread than its worker's: a pipe, whose bytes a task of the
//! worker copies from and to the stream.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures_channel::oneshot;
use futures_io::{AsyncBufRead, AsyncRead, AsyncWrite};
use tokio::io::{AsyncWriteExt, BufReader, DuplexStream};

use super::stream_io::Io;

/// Bytes that wait in each direction, at most.
const PIPE_SIZE: usize = 64 << 10;

/// Makes the two ends of a pipe.
pub(super) fn relay() -> (Far, Near) {
    let (near, far) = tokio::io::duplex(PIPE_SIZE);
    let (alive, dropped) = oneshot::channel();
    let closed = Arc::new(AtomicBool::new(false));
    (
        Far { pipe: BufReader::new(far), closed: Arc::clone(&closed), _alive: alive },
        Near { pipe: near, closed, dropped },
    )
}

/// The end of the thread that uses the stream.
pub(super) struct Far {
    pipe: BufReader<DuplexStream>,
    /// Its side that writes was closed, and not only dropped.
    closed: Arc<AtomicBool>,
    _alive: oneshot::Sender<()>,
}

impl Far {
    fn pipe(self: Pin<&mut Self>) -> Pin<&mut BufReader<DuplexStream>> {
        Pin::new(&mut self.get_mut().pipe)
    }
}

impl AsyncRead for Far {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut buffer = tokio::io::ReadBuf::new(buffer);
        tokio::io::AsyncRead::poll_read(self.pipe(), context, &mut buffer).map_ok(|()| buffer.filled().len())
    }
}

impl AsyncBufRead for Far {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        tokio::io::AsyncBufRead::poll_fill_buf(self.pipe(), context)
    }

    fn consume(self: Pin<&mut Self>, amount: usize) {
        tokio::io::AsyncBufRead::consume(self.pipe(), amount);
    }
}

impl AsyncWrite for Far {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        tokio::io::AsyncWrite::poll_write(self.pipe(), context, buffer)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        tokio::io::AsyncWrite::poll_write_vectored(self.pipe(), context, buffers)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        tokio::io::AsyncWrite::poll_flush(self.pipe(), context)
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Before the worker sees the end.
        self.closed.store(true, Ordering::Release);
        tokio::io::AsyncWrite::poll_shutdown(self.pipe(), context)
    }
}

/// The end of the stream's worker.
pub(super) struct Near {
    pipe: DuplexStream,
    closed: Arc<AtomicBool>,
    dropped: oneshot::Receiver<()>,
}

impl Near {
    /// Copies until the other end is dropped and what it has written is sent, or until a write
    /// fails. Returns whether the other end has closed the stream.
    pub(super) async fn run<S: AsyncBufRead + AsyncWrite + Unpin>(self, stream: &mut Io<S>) -> bool {
        let Self { pipe, closed, mut dropped } = self;
        let (mut from_user, mut to_user) = tokio::io::split(pipe);
        let (mut from_peer, mut to_peer) = tokio::io::split(stream);
        let mut receiving = pin!(async {
            // The user sees the end of the stream, also after an error.
            let _ = tokio::io::copy(&mut from_peer, &mut to_user).await;
            let _ = to_user.shutdown().await;
        });
        let mut sending = pin!(async {
            tokio::io::copy(&mut from_user, &mut to_peer).await?;
            let is_closed = closed.load(Ordering::Acquire);
            if is_closed {
                to_peer.shutdown().await?;
            }
            io::Result::Ok(is_closed)
        });
        let (mut is_received, mut is_closed) = (false, false);
        poll_fn(|context| {
            is_received = is_received || receiving.as_mut().poll(context).is_ready();
            if !is_closed {
                match sending.as_mut().poll(context) {
                    Poll::Ready(Ok(true)) => is_closed = true,
                    Poll::Ready(_) => return Poll::Ready(false),
                    Poll::Pending => return Poll::Pending,
                }
            }
            // It may still read.
            Pin::new(&mut dropped).poll(context).map(|_| true)
        })
        .await
    }
}
