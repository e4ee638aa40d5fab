//! The stream that TCP and Unix domain sockets have in common.

use std::io;
use std::marker::PhantomData;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use runtime::io::OnItsWorker;
use socket2::Socket;

use super::async_io::{impl_async_read, impl_async_write};
use super::socket_io::SocketIo;
use crate::buffers::ReadBuffer;
use crate::sockopt;

/// A connected socket, of kind [`Tcp`](crate::Tcp) or [`Unix`](crate::Unix), on its worker's
/// driver.
///
/// Reads and writes are those of the futures-io traits. As
/// [`AsyncBufRead`](futures_io::AsyncBufRead) a stream lends a buffer of its worker's pool and
/// returns it when all of it is consumed, so that an idle connection holds no buffer.
///
/// # What is promised on every driver
///
/// - A **write** is done when its bytes are accepted: they are copied, and the buffer may be
///   changed. Accepted bytes are sent without a further call, in order, also when the stream is
///   dropped.
/// - **[`flush`](futures_io::AsyncWrite::poll_flush)** returns when the kernel has taken all
///   accepted bytes. The peer need not have them.
/// - An **error** of sending is returned by the write itself, or by the next write or flush, and
///   then by every later write: bytes that were accepted before are lost. A flush after the last
///   write finds all errors that the kernel knows by then.
/// - **[`close`](futures_io::AsyncWrite::poll_close)** flushes, and then sends the end of the
///   stream. What the peer sends can still be read. Later writes fail with `BrokenPipe`; another
///   close does nothing.
/// - **[`shutdown`](Stream::shutdown)** returns at once, and the end of the stream follows the
///   accepted bytes. Later writes fail with `BrokenPipe`. A read that waits ends if reading is shut
///   down.
/// - **Dropping** the stream sends the accepted bytes and the end of the stream; nobody is told
///   whether that succeeds.
/// - A **read** returns 0 at the end of the stream, each time. A connection that breaks is one
///   error, `ConnectionReset` for example, and then the end.
///
/// - **[`try_read`](Stream::try_read)** and **[`peek`](Stream::peek)** begin with the bytes that
///   are buffered, as reads do. **[`into_std`](Stream::into_std)** returns those bytes with the
///   socket.
///
/// # What differs
///
/// - On the `epoll` driver a write is a `send(2)`: its bytes are in the kernel's send buffer when
///   it returns. A flush has nothing to do.
/// - On a driver with a ring (`uring`) accepted bytes are sent at the end of the worker's turn,
///   together with those of other connections, so their error comes with a later call. Only a write
///   of 16 KiB or more with nothing unsent before it is sent at once. A write waits while 64 KiB of
///   its connection are unsent. A peer that takes nothing of a dropped stream for 30 s loses the
///   rest.
#[derive(Debug)]
pub struct Stream<K> {
    pub(super) on_its_worker: OnItsWorker,
    pub(super) io: SocketIo<K>,
    pub(super) unread: ReadBuffer,
}

impl<K> Stream<K> {
    /// Takes a connected, non-blocking socket onto this worker's driver.
    pub(crate) fn from_socket(socket: Arc<Socket>) -> io::Result<Self> {
        Ok(Self { on_its_worker: PhantomData, io: SocketIo::new(socket)?, unread: ReadBuffer::default() })
    }

    pub(crate) fn socket(&self) -> &Socket {
        self.io.socket()
    }

    pub(super) fn take_unread(&mut self) -> Vec<u8> {
        self.io.take_unread(&mut self.unread)
    }

    /// The id of the NAPI that this connection's packets come from; 0 if it has none, as on
    /// loopback.
    #[doc(alias = "SO_INCOMING_NAPI_ID")]
    pub fn incoming_napi_id(&self) -> u32 {
        sockopt::incoming_napi_id(self.socket())
    }

    /// Shuts down reading, writing or both, see `shutdown(2)`. Accepted writes are sent before.
    ///
    /// # Errors
    /// The error of the system call, for example `ENOTCONN` if the connection is broken.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.io.shutdown(how)
    }

    /// Breaks the connection: what was written and not sent is lost, operations in flight end with
    /// an error, and the peer gets a reset once the stream is dropped. A Unix socket's peer reads
    /// the end of the stream instead.
    ///
    /// Without it a ring still sends what a dropped stream has written, and holds the descriptor
    /// for as long as the peer takes to read that.
    ///
    /// # Errors
    /// The error of the system call, for example `ENOTCONN` if the connection is broken already.
    #[doc(alias = "SO_LINGER")]
    pub fn abort(&self) -> io::Result<()> {
        self.set_zero_linger()?;
        self.socket().shutdown(Shutdown::Both)
    }

    /// The size of the kernel's receive buffer in bytes, see `socket(7)`.
    #[doc(alias = "SO_RCVBUF")]
    pub fn recv_buffer_size(&self) -> io::Result<usize> {
        self.socket().recv_buffer_size()
    }

    /// Sets the size of the kernel's receive buffer in bytes. The kernel doubles it, and caps it at
    /// `net.core.rmem_max` before.
    #[doc(alias = "SO_RCVBUF")]
    pub fn set_recv_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.socket().set_recv_buffer_size(bytes)
    }

    /// The size of the kernel's send buffer in bytes, see `socket(7)`.
    #[doc(alias = "SO_SNDBUF")]
    pub fn send_buffer_size(&self) -> io::Result<usize> {
        self.socket().send_buffer_size()
    }

    /// Sets the size of the kernel's send buffer in bytes. The kernel doubles it, and caps it at
    /// `net.core.wmem_max` before.
    #[doc(alias = "SO_SNDBUF")]
    pub fn set_send_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.socket().set_send_buffer_size(bytes)
    }

    /// Lets the close reset the connection: what was written and not sent by then is lost. A time
    /// other than zero would block the worker in `close(2)`.
    #[doc(alias = "SO_LINGER")]
    pub fn set_zero_linger(&self) -> io::Result<()> {
        self.socket().set_linger(Some(Duration::ZERO))
    }

    /// Takes the socket's pending error.
    ///
    /// # Errors
    /// The error of the system call, if it can't be read.
    #[doc(alias = "SO_ERROR")]
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.socket().take_error()
    }
}

impl<K> AsFd for Stream<K> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket().as_fd()
    }
}

impl_async_read!(Stream<K>);
impl_async_write!(Stream<K>);

// `K` only names a kind of socket: nothing in a stream is ever pinned.
impl<K> Unpin for Stream<K> {}
