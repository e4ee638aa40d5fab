//! A stream that is used on another thread than its worker's: a pipe, whose bytes a task of the
//! worker copies from and to the stream.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_channel::oneshot;
use futures_io::{AsyncBufRead, AsyncRead, AsyncWrite};
use runtime::Sleep;
use tokio::io::{AsyncWriteExt, BufReader, DuplexStream};

use super::stream_io::Io;

/// Bytes that wait in each direction, at most.
const PIPE_SIZE: usize = 64 << 10;
/// How long what was written is still sent after the user has gone, as with a dropped socket.
const LEFT_TO_SEND: Duration = Duration::from_millis(if cfg!(test) { 100 } else { 30_000 });

/// What the ends of a pipe tell each other.
#[derive(Default)]
struct Ends {
    /// The user has closed its side that writes, and not only dropped it.
    closed: AtomicBool,
    /// How the stream's side that reads has ended: by its end, or by an error. Unset if the stream
    /// was dropped before.
    read: OnceLock<Result<(), (io::ErrorKind, String)>>,
}

impl Ends {
    /// What a read returns at the end of the pipe.
    fn read(&self) -> io::Result<()> {
        match self.read.get() {
            Some(Ok(())) => Ok(()),
            Some(Err((kind, text))) => Err(io::Error::new(*kind, text.clone())),
            None => Err(closed_by_server()),
        }
    }
}

/// Reads and writes of a stream that the server has closed, at the deadline of its shutdown.
pub(super) fn closed_by_server() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the server has shut down and closed the connection")
}

/// Makes the two ends of a pipe.
pub(super) fn relay() -> (Far, Near) {
    let (near, far) = tokio::io::duplex(PIPE_SIZE);
    let (alive, dropped) = oneshot::channel();
    let ends = Arc::new(Ends::default());
    (
        Far { pipe: BufReader::new(far), ends: Arc::clone(&ends), _alive: alive },
        Near { pipe: near, ends, dropped },
    )
}

/// The end of the thread that uses the stream.
pub(super) struct Far {
    pipe: BufReader<DuplexStream>,
    ends: Arc<Ends>,
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
        let far = self.get_mut();
        let (room, mut buffer) = (buffer.len(), tokio::io::ReadBuf::new(buffer));
        ready!(tokio::io::AsyncRead::poll_read(Pin::new(&mut far.pipe), context, &mut buffer))?;
        let length = buffer.filled().len();
        if length == 0 && room > 0 {
            far.ends.read()?;
        }
        Poll::Ready(Ok(length))
    }
}

impl AsyncBufRead for Far {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let Self { pipe, ends, .. } = self.get_mut();
        let bytes = ready!(tokio::io::AsyncBufRead::poll_fill_buf(Pin::new(pipe), context))?;
        if bytes.is_empty() {
            ends.read()?;
        }
        Poll::Ready(Ok(bytes))
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
        self.ends.closed.store(true, Ordering::Release);
        tokio::io::AsyncWrite::poll_shutdown(self.pipe(), context)
    }
}

/// The end of the stream's worker.
pub(super) struct Near {
    pipe: DuplexStream,
    ends: Arc<Ends>,
    dropped: oneshot::Receiver<()>,
}

impl Near {
    /// Copies until the other end is dropped and what it has written is sent, for
    /// [`LEFT_TO_SEND`] at most, or until a write fails. Returns whether the other end has closed the
    /// stream.
    pub(super) async fn run<S: AsyncBufRead + AsyncWrite + Unpin>(self, stream: &mut Io<S>) -> bool {
        let Self { pipe, ends, mut dropped } = self;
        let (mut from_user, mut to_user) = tokio::io::split(pipe);
        let (mut from_peer, mut to_peer) = tokio::io::split(stream);
        let mut receiving = pin!(async {
            let copied = tokio::io::copy(&mut from_peer, &mut to_user).await;
            // Before the user sees the end of the pipe.
            let _ = ends.read.set(copied.map(drop).map_err(|error| (error.kind(), error.to_string())));
            let _ = to_user.shutdown().await;
        });
        let mut sending = pin!(async {
            tokio::io::copy(&mut from_user, &mut to_peer).await?;
            let is_closed = ends.closed.load(Ordering::Acquire);
            if is_closed {
                to_peer.shutdown().await?;
            }
            io::Result::Ok(is_closed)
        });
        let (mut is_received, mut is_closed, mut is_gone) = (false, false, false);
        let mut limit: Option<Sleep> = None;
        poll_fn(|context| {
            is_received = is_received || receiving.as_mut().poll(context).is_ready();
            is_gone = is_gone || Pin::new(&mut dropped).poll(context).is_ready();
            if !is_closed {
                match sending.as_mut().poll(context) {
                    Poll::Ready(Ok(true)) => is_closed = true,
                    Poll::Ready(_) => return Poll::Ready(false),
                    Poll::Pending if is_gone => {
                        let limit = limit.get_or_insert_with(|| runtime::sleep(LEFT_TO_SEND));
                        return Pin::new(limit).poll(context).map(|()| false);
                    }
                    Poll::Pending => return Poll::Pending,
                }
            }
            // It may still read.
            if is_gone { Poll::Ready(true) } else { Poll::Pending }
        })
        .await
    }
}
