//! A connected stream socket, of kind [`Tcp`](crate::Tcp) or [`Unix`](crate::Unix): how it is
//! connected, read and written, and taken off its worker.

use std::error::Error;
use std::marker::PhantomData;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use runtime::io::{AsyncFd, Direction, OnItsWorker, SourceKind};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::buffers::ReadBuffer;
use crate::sockopt;
use crate::stream::socket_io::SocketIo;

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
/// - **Dropping** the stream sends the accepted bytes and the end of the stream; a failure
///   of that is not reported.
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
        let napi = sockopt::napi_of(&socket);
        Self::new(socket, napi, false)
    }

    /// As [`Stream::from_socket`], of a socket that was accepted, and its NAPI.
    pub(crate) fn accepted(socket: Arc<Socket>, napi: u32) -> io::Result<Self> {
        Self::new(socket, napi, true)
    }

    fn new(socket: Arc<Socket>, napi: u32, accepted: bool) -> io::Result<Self> {
        let io = SocketIo::new(socket, napi, accepted)?;
        Ok(Self { on_its_worker: PhantomData, io, unread: ReadBuffer::default() })
    }

    pub(crate) fn socket(&self) -> &Socket {
        self.io.socket()
    }

    pub(crate) fn shared_socket(&self) -> &Arc<Socket> {
        self.io.shared_socket()
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
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.io.shutdown(how)
    }

    /// Breaks the connection: what was written and not sent is lost, operations in flight end with
    /// an error, and the peer gets a reset once the stream is dropped. A Unix socket's peer reads
    /// the end of the stream instead.
    ///
    /// Without it a ring still sends what a dropped stream has written, and holds the descriptor
    /// for as long as the peer takes to read that.
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

/// Implements `AsyncRead`, `AsyncBufRead`, and reading without waiting, for a type with the fields
/// `io` and `unread`.
macro_rules! impl_async_read {
    ($type:ty) => {
        impl<K> $type {
            /// Waits until a read would not block: there are bytes, the stream has ended, or the
            /// connection is broken, of which the read that follows returns the error. On a ring
            /// this starts the receive. One task may wait to read a stream.
            pub async fn readable(&self) -> std::io::Result<()> {
                self.io.readable(&self.unread).await
            }

            /// Reads what has come, without waiting; 0 at the end of the stream. The bytes that the
            /// stream has buffered come first. After them it is a `recv(2)` on epoll. On a ring it
            /// returns what the worker's turns have received. The first call starts the receive,
            /// and finds nothing: wait for [`readable`](Self::readable) before.
            ///
            /// # Errors
            /// `WouldBlock` if there is nothing to read, else as a read.
            pub fn try_read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                self.io.try_read(&mut self.unread, buffer)
            }

            /// Waits until there are bytes, and copies them without taking them: the next read
            /// returns them, too. 0 at the end of the stream. Later calls return more once more has
            /// come; on a ring at most the 128 KiB that it receives ahead of the reader.
            ///
            /// # Errors
            /// As a read; the error is taken by that.
            #[doc(alias = "MSG_PEEK")]
            pub async fn peek(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                std::future::poll_fn(|context| self.io.poll_peek(context, &mut self.unread, buffer)).await
            }
        }

        impl<K> futures_io::AsyncRead for $type {
            fn poll_read(
                self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
                buffer: &mut [u8],
            ) -> std::task::Poll<std::io::Result<usize>> {
                let this = self.get_mut();
                this.io.poll_read(context, &mut this.unread, buffer)
            }

            fn poll_read_vectored(
                self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
                buffers: &mut [std::io::IoSliceMut<'_>],
            ) -> std::task::Poll<std::io::Result<usize>> {
                let this = self.get_mut();
                this.io.poll_read_vectored(context, &mut this.unread, buffers)
            }
        }

        impl<K> futures_io::AsyncBufRead for $type {
            fn poll_fill_buf(
                self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<&[u8]>> {
                let this = self.get_mut();
                std::task::ready!(this.io.poll_fill(context, &mut this.unread))?;
                std::task::Poll::Ready(Ok(this.unread.unread()))
            }

            fn consume(self: std::pin::Pin<&mut Self>, amount: usize) {
                self.get_mut().unread.consume(amount);
            }
        }
    };
}

/// Implements `AsyncWrite`, `write_owned`, and writing without waiting, for a type with the field
/// `io`.
macro_rules! impl_async_write {
    ($type:ty) => {
        impl<K> $type {
            /// Waits until a write would accept a byte, or fail: it returns the error. One task may
            /// wait to write to a stream.
            pub async fn writable(&self) -> std::io::Result<()> {
                self.io.writable().await
            }

            /// Writes as many bytes as there is room for, without waiting. On epoll that is the
            /// room in the kernel's send buffer. On a ring, writes below 16 KiB are copied and sent
            /// at the end of the turn; larger ones go out at once if nothing is unsent. There is
            /// room while fewer than 64 KiB are unsent.
            ///
            /// # Errors
            /// `WouldBlock` if there is no room, else as a write.
            pub fn try_write(&self, bytes: &[u8]) -> std::io::Result<usize> {
                self.io.try_write(bytes)
            }

            /// Writes bytes whose ownership it takes, without a copy in user space: for large ones.
            /// Returns when the kernel has taken all of them. On a ring, from 64 KiB on, the kernel
            /// makes no copy either where the route allows it (`IORING_OP_SEND_ZC`); the memory is
            /// freed when the peer has acknowledged it.
            ///
            /// If the future is dropped before it is ready, a ring still sends all of the bytes if
            /// it has begun to; on epoll only those are sent that were written by then, as with any
            /// write.
            ///
            /// # Errors
            /// The socket's, for example `BrokenPipe` after the writing side was shut down.
            #[doc(alias = "IORING_OP_SEND_ZC")]
            pub async fn write_owned(&mut self, bytes: bytes::Bytes) -> std::io::Result<()> {
                self.io.write_owned(bytes).await
            }
        }

        impl<K> futures_io::AsyncWrite for $type {
            fn poll_write(
                self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
                buffer: &[u8],
            ) -> std::task::Poll<std::io::Result<usize>> {
                self.io.poll_write(context, &[std::io::IoSlice::new(buffer)])
            }

            fn poll_write_vectored(
                self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
                buffers: &[std::io::IoSlice<'_>],
            ) -> std::task::Poll<std::io::Result<usize>> {
                self.io.poll_write(context, buffers)
            }

            fn poll_flush(
                self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                self.io.poll_flush(context)
            }

            fn poll_close(
                self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                self.io.poll_close(context)
            }
        }
    };
}

pub(super) use {impl_async_read, impl_async_write};

/// A stream's socket could not be given back. The stream is as it was, with everything that it has
/// received.
///
/// It converts to its [`io::Error`], which closes the stream.
#[derive(Debug)]
pub struct IntoStdError<K> {
    /// The error of sending what was written; or the error that the connection broke with, which
    /// the next read returns; or `EMFILE` without a free descriptor.
    pub error: io::Error,
    /// It can be read, written to and given back as before.
    pub stream: Stream<K>,
}

impl<K> fmt::Display for IntoStdError<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a stream can't be given back")
    }
}

impl<K: fmt::Debug> Error for IntoStdError<K> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.error)
    }
}

impl<K> From<IntoStdError<K>> for io::Error {
    fn from(failed: IntoStdError<K>) -> Self {
        failed.error
    }
}

impl<K> Stream<K> {
    /// The socket, and the bytes that were received and not read.
    pub(crate) async fn into_socket(mut self) -> Result<(Socket, Vec<u8>), IntoStdError<K>> {
        let quiet = std::future::poll_fn(|context| self.io.poll_quiesce(context)).await;
        // A duplicate: those who only look at the socket, such as `serve`, may have a share in the
        // descriptor.
        match quiet.and_then(|()| self.socket().try_clone()) {
            Ok(socket) => {
                let unread = self.take_unread();
                Ok((socket, unread))
            }
            Err(error) => Err(IntoStdError { error, stream: self }),
        }
    }
}

pub(crate) async fn connect<K>(address: &SockAddr, domain: Domain) -> io::Result<Stream<K>> {
    connect_socket(Socket::new(domain, Type::STREAM.nonblocking().cloexec(), None)?, address).await
}

/// How long a Unix domain socket waits before it tries again to get into a full backlog, and the
/// longest time; twice as long each time.
const FIRST_RETRY: Duration = Duration::from_millis(1);
const LAST_RETRY: Duration = Duration::from_millis(32);

/// Begins to connect a non-blocking socket. Returns whether it is connected; otherwise that is in
/// progress.
async fn begin_connect(socket: &Socket, address: &SockAddr) -> io::Result<bool> {
    let mut pause = FIRST_RETRY;
    loop {
        match socket.connect(address) {
            Ok(()) => return Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => return Ok(false),
            // Only of Unix domain sockets: the listener's backlog is full. A blocking connect would
            // wait, and no readiness says when there is room (net/unix/af_unix.c,
            // unix_stream_connect).
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                runtime::sleep(pause).await;
                pause = (pause * 2).min(LAST_RETRY);
            }
            Err(error) => return Err(error),
        }
    }
}

pub(crate) async fn connect_socket<K>(socket: Socket, address: &SockAddr) -> io::Result<Stream<K>> {
    if begin_connect(&socket, address).await? {
        return Stream::from_socket(Arc::new(socket));
    }
    // Its NAPI is not known until the first packet has come in.
    let connecting = AsyncFd::new(socket, SourceKind::Other)?;
    let finished = |socket: &Socket| match socket.take_error()? {
        Some(error) => Err(error),
        None => match socket.peer_addr() {
            // Not yet.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => {
                Err(io::ErrorKind::WouldBlock.into())
            }
            result => result.map(drop),
        },
    };
    connecting.io(Direction::Write, finished).await?;
    Stream::from_socket(Arc::new(connecting.into_inner()?))
}
