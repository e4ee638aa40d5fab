//! Streams with the I/O traits of futures-io, hyper and tokio.

mod loan;
mod relay;
mod stream_io;

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ::hyper::rt::{Read, Write};

pub use self::loan::SendIo;
#[cfg(feature = "hyper")]
pub(crate) use self::loan::lend;
pub use self::stream_io::Io;
#[cfg(feature = "client")]
pub(crate) use self::stream_io::impl_write;

/// An object with hyper's I/O traits, such as
/// [`Upgraded`](https://docs.rs/hyper/1/hyper/upgrade/struct.Upgraded.html), with those of tokio
/// and futures-io.
#[derive(Debug)]
pub struct HyperIo<T>(T);

impl<T> HyperIo<T> {
    /// Wraps an object with hyper's `Read`, `Write` or both.
    pub fn new(io: T) -> Self {
        Self(io)
    }

    /// Takes the object out. Nothing is buffered here.
    pub fn into_inner(self) -> T {
        self.0
    }
}

impl<T: Read + Unpin> HyperIo<T> {
    fn poll_read_into(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut buffer = ::hyper::rt::ReadBuf::new(buffer);
        ready!(Pin::new(&mut self.get_mut().0).poll_read(context, buffer.unfilled()))?;
        Poll::Ready(Ok(buffer.filled().len()))
    }
}

impl<T: Read + Unpin> tokio::io::AsyncRead for HyperIo<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // Zeroed where it is not initialized: tokio can't learn what hyper has filled without
        // unsafe code.
        let length = ready!(self.poll_read_into(context, buffer.initialize_unfilled()))?;
        buffer.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl<T: Read + Unpin> futures_io::AsyncRead for HyperIo<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_read_into(context, buffer)
    }
}

impl<T: Write + Unpin> tokio::io::AsyncWrite for HyperIo<T> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().0).poll_write(context, buffer)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().0).poll_write_vectored(context, buffers)
    }
}

impl<T: Write + Unpin> futures_io::AsyncWrite for HyperIo<T> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().0).poll_write(context, buffer)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_flush(context)
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_shutdown(context)
    }
}
