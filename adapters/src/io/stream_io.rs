//! A futures-io stream with hyper's and tokio's I/O traits.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_io::{AsyncBufRead, AsyncRead, AsyncWrite};

use crate::forward_write::forward_write;

/// A stream with the I/O traits of hyper ([`hyper::rt::Read`](::hyper::rt::Read),
/// [`Write`](::hyper::rt::Write)) and tokio ([`AsyncRead`](tokio::io::AsyncRead),
/// [`AsyncWrite`](tokio::io::AsyncWrite)), and still those of futures-io.
///
/// Reads lend the stream's buffer ([`AsyncBufRead`]) and copy from it once: on a ring that is the
/// buffer that the kernel has filled. So an idle connection holds no buffer, and nothing here is
/// `unsafe`.
///
/// A write that is pending has taken nothing. The next one may bring another buffer, as HTTP/2
/// does: only the bytes of the write that returns a length are sent.
///
/// A stream that implements only `AsyncRead` goes into a
/// [`BufReader`](https://docs.rs/futures-util) before.
///
/// ```
/// use adapters::Io;
/// use net::{TcpListener, TcpStream};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// #[runtime::main]
/// async fn main() -> std::io::Result<()> {
///     let listener = TcpListener::bind("127.0.0.1:0")?;
///     let mut client = Io::new(TcpStream::connect(listener.local_addr()?).await?);
///     let mut server = Io::new(listener.accept().await?.0);
///     client.write_all(b"hello").await?;
///     let mut received = [0; 5];
///     server.read_exact(&mut received).await?;
///     assert_eq!(&received, b"hello");
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct Io<S>(S);

impl<S> Io<S> {
    /// Wraps a stream with futures-io's traits, such as a `TcpStream` or a TLS stream.
    pub fn new(stream: S) -> Self {
        Self(stream)
    }

    /// The stream, for its options and addresses.
    pub fn get_ref(&self) -> &S {
        &self.0
    }

    /// The stream, for reads and writes past the wrapper, which buffers nothing.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.0
    }

    /// Takes the stream out. Nothing is buffered here.
    pub fn into_inner(self) -> S {
        self.0
    }
}

impl<S: Unpin> Io<S> {
    fn stream(self: Pin<&mut Self>) -> Pin<&mut S> {
        Pin::new(&mut self.get_mut().0)
    }
}

impl<S: AsyncBufRead + Unpin> Io<S> {
    /// Lends at most `room` unread bytes to `copy`, and consumes them. It isn't called at the end
    /// of the stream.
    fn poll_copy(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        room: usize,
        copy: impl FnOnce(&[u8]),
    ) -> Poll<io::Result<()>> {
        // A read without room must not wait for bytes.
        if room == 0 {
            return Poll::Ready(Ok(()));
        }
        let mut stream = self.stream();
        let unread = ready!(stream.as_mut().poll_fill_buf(context))?;
        let length = unread.len().min(room);
        if length > 0 {
            copy(&unread[..length]);
            stream.consume(length);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncBufRead + Unpin> ::hyper::rt::Read for Io<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut buffer: ::hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_copy(context, buffer.remaining(), |bytes| buffer.put_slice(bytes))
    }
}

impl<S: AsyncBufRead + Unpin> tokio::io::AsyncRead for Io<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_copy(context, buffer.remaining(), |bytes| buffer.put_slice(bytes))
    }
}

impl<S: AsyncBufRead + Unpin> tokio::io::AsyncBufRead for Io<S> {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        self.stream().poll_fill_buf(context)
    }

    fn consume(self: Pin<&mut Self>, amount: usize) {
        self.stream().consume(amount);
    }
}

/// hyper's and tokio's write traits by futures-io's, which has the same methods by other names.
macro_rules! impl_write {
    ([$($generics:tt)*] $type:ty, $trait:path) => {
        impl<$($generics)*> $trait for $type {
            fn poll_write(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                buffer: &[u8],
            ) -> Poll<io::Result<usize>> {
                AsyncWrite::poll_write(self, context, buffer)
            }

            fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                AsyncWrite::poll_flush(self, context)
            }

            fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.poll_close(context)
            }

            fn is_write_vectored(&self) -> bool {
                // futures-io can't say. A stream that takes only the first slice is still correct.
                true
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                buffers: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                AsyncWrite::poll_write_vectored(self, context, buffers)
            }
        }
    };
}

pub(crate) use impl_write;

impl_write!([S: AsyncWrite + Unpin] Io<S>, ::hyper::rt::Write);
impl_write!([S: AsyncWrite + Unpin] Io<S>, tokio::io::AsyncWrite);

impl<S: AsyncRead + Unpin> AsyncRead for Io<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.stream().poll_read(context, buffer)
    }
}

forward_write!([S: AsyncWrite + Unpin] Io<S>, 0);
