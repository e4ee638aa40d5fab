//! Byte streams: TCP and Unix.

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::marker::PhantomData;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_io::{AsyncBufRead, AsyncRead, AsyncWrite};
use runtime::io::{AsyncFd, Direction, RingSocket, SourceKind};
use socket2::{Domain, SockAddr, Socket, TcpKeepalive, Type};

use crate::buffers::ReadBuffer;
use crate::sockopt;

/// Marks TCP sockets.
#[derive(Debug, Clone, Copy)]
pub struct Tcp;

/// Marks Unix domain sockets.
#[derive(Debug, Clone, Copy)]
pub struct Unix;

/// A TCP connection.
pub type TcpStream = Stream<Tcp>;

/// A connection over a Unix domain socket.
pub type UnixStream = Stream<Unix>;

/// A connected socket on its worker's driver.
///
/// Reads through futures-io's traits; as [`AsyncBufRead`] it lends a buffer of its worker's pool, and
/// gives it back once all of it is consumed, so that an idle connection costs no buffer.
#[derive(Debug)]
pub struct Stream<K> {
    io: Io<K>,
    unread: ReadBuffer,
}

/// The descriptor, without what was read ahead: what both halves of a split stream share.
#[derive(Debug)]
struct Io<K> {
    transport: Transport,
    kind: PhantomData<K>,
}

/// By what bytes move.
#[derive(Debug)]
enum Transport {
    /// System calls, when the driver has said that the socket is ready.
    Ready(AsyncFd<Arc<Socket>>),
    /// Operations of the worker's ring.
    Ring(RingSocket, Arc<Socket>),
}

impl<K> Io<K> {
    fn socket(&self) -> &Socket {
        match &self.transport {
            Transport::Ready(fd) => fd.get_ref(),
            Transport::Ring(_, socket) => socket,
        }
    }

    /// Reads past an empty `unread`.
    fn poll_read(
        &self,
        context: &mut Context<'_>,
        unread: &mut ReadBuffer,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let Transport::Ready(fd) = &self.transport else {
            ready!(self.poll_fill(context, unread))?;
            return Poll::Ready(Ok(unread.read(buffer)));
        };
        let length = buffer.len();
        let result = ready!(fd.poll_io(Direction::Read, context, |socket| (&**socket).read(buffer)));
        if let Ok(read) = result {
            fd.record_read(read, length);
        }
        Poll::Ready(result)
    }

    fn poll_fill(&self, context: &mut Context<'_>, unread: &mut ReadBuffer) -> Poll<io::Result<()>> {
        if !unread.is_empty() {
            return Poll::Ready(Ok(()));
        }
        match &self.transport {
            Transport::Ready(fd) => {
                let read = ready!(fd.poll_io(Direction::Read, context, |socket| unread.fill(&**socket)))?;
                fd.record_read(read, crate::buffers::SIZE);
            }
            Transport::Ring(ring, _) => {
                if let Some(received) = ready!(ring.poll_receive(context))? {
                    unread.hold(received);
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write(&self, context: &mut Context<'_>, buffers: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        match &self.transport {
            Transport::Ready(fd) => fd.poll_io(Direction::Write, context, |socket| match buffers {
                // A broken connection is an error here, never a signal.
                [one] => socket.send_with_flags(one, libc::MSG_NOSIGNAL),
                several => socket.send_vectored_with_flags(several, libc::MSG_NOSIGNAL),
            }),
            Transport::Ring(ring, _) => {
                let mut written = 0;
                for buffer in buffers {
                    match ring.poll_write(context, buffer) {
                        Poll::Ready(Ok(length)) => {
                            written += length;
                            if length < buffer.len() {
                                break;
                            }
                        }
                        // What was taken over before counts; the error comes again.
                        _ if written > 0 => break,
                        other => return other,
                    }
                }
                Poll::Ready(Ok(written))
            }
        }
    }

    async fn write_owned(&self, bytes: Bytes) -> io::Result<()> {
        if let Transport::Ring(ring, _) = &self.transport {
            std::future::poll_fn(|context| ring.poll_flush(context)).await?;
            ring.send_owned(bytes)?;
            return std::future::poll_fn(|context| ring.poll_flush(context)).await;
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let write = |context: &mut Context<'_>| self.poll_write(context, &[IoSlice::new(rest)]);
            let written = std::future::poll_fn(write).await?;
            rest = &rest[written..];
        }
        Ok(())
    }

    fn poll_flush(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.transport {
            Transport::Ready(_) => Poll::Ready(Ok(())),
            Transport::Ring(ring, _) => ring.poll_flush(context),
        }
    }

    /// What was written goes out before the end does.
    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        if let Transport::Ring(ring, _) = &self.transport
            && how != Shutdown::Read
            && ring.shutdown_after_sends()
        {
            return if how == Shutdown::Both { self.socket().shutdown(Shutdown::Read) } else { Ok(()) };
        }
        self.socket().shutdown(how)
    }

    /// Ends the writing, after what was written.
    fn poll_close(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_flush(context))?;
        Poll::Ready(end_writing(self.socket()))
    }
}

/// Reads what was read ahead, then the socket.
fn poll_read_through<K>(
    io: &Io<K>,
    unread: &mut ReadBuffer,
    context: &mut Context<'_>,
    buffer: &mut [u8],
) -> Poll<io::Result<usize>> {
    if buffer.is_empty() {
        return Poll::Ready(Ok(0));
    }
    if unread.is_empty() {
        return io.poll_read(context, unread, buffer);
    }
    Poll::Ready(Ok(unread.read(buffer)))
}

fn end_writing(socket: &Socket) -> io::Result<()> {
    match socket.shutdown(Shutdown::Write) {
        // Closed by the peer already: what is to be brought about.
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
        result => result,
    }
}

impl<K> Stream<K> {
    /// Takes a connected, non-blocking socket onto this worker's driver. Its kind goes by its NAPI.
    pub(crate) fn from_socket(socket: Arc<Socket>) -> io::Result<Self> {
        if let Some(time) = runtime::io::socket_busy_poll() {
            // Refused only by old kernels without CAP_NET_ADMIN; the worker's report tells the step.
            let _ = sockopt::set_busy_poll(&socket, u32::try_from(time.as_micros()).unwrap_or(u32::MAX));
        }
        let kind = source_kind(&socket);
        let transport = match runtime::io::ring_socket(Arc::clone(&socket), kind)? {
            Some(ring) => Transport::Ring(ring, socket),
            None => Transport::Ready(AsyncFd::new(socket, kind)?),
        };
        Ok(Self { io: Io { transport, kind: PhantomData }, unread: ReadBuffer::default() })
    }

    pub(crate) fn socket(&self) -> &Socket {
        self.io.socket()
    }

    /// The NAPI that this connection's packets come from; 0 where there is none.
    #[doc(alias = "SO_INCOMING_NAPI_ID")]
    pub fn incoming_napi_id(&self) -> u32 {
        sockopt::incoming_napi_id(self.socket())
    }

    /// Ends reading, writing or both, see `shutdown(2)`.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.io.shutdown(how)
    }

    /// The size of the kernel's receive buffer, in bytes, see `socket(7)` `SO_RCVBUF`.
    pub fn recv_buffer_size(&self) -> io::Result<usize> {
        self.socket().recv_buffer_size()
    }

    /// Sets the size of the kernel's receive buffer; the kernel doubles it.
    pub fn set_recv_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.socket().set_recv_buffer_size(bytes)
    }

    /// The size of the kernel's send buffer, in bytes.
    pub fn send_buffer_size(&self) -> io::Result<usize> {
        self.socket().send_buffer_size()
    }

    /// Sets the size of the kernel's send buffer; the kernel doubles it.
    pub fn set_send_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.socket().set_send_buffer_size(bytes)
    }

    /// Has a close wait for unsent data (`Some`), or break the connection at once (`Some(0)`).
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.socket().set_linger(linger)
    }

    /// The error that is pending on the socket, and clears it.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.socket().take_error()
    }

    /// Splits into a half that reads and one that writes, for use in one task.
    pub fn split(&mut self) -> (ReadHalf<'_, K>, WriteHalf<'_, K>) {
        (ReadHalf { io: &self.io, unread: &mut self.unread }, WriteHalf { io: &self.io })
    }

    /// Splits into owned halves, for two tasks of this worker. The connection closes when both are
    /// dropped; dropping the writing half ends the writing.
    pub fn into_split(self) -> (OwnedReadHalf<K>, OwnedWriteHalf<K>) {
        let io = Rc::new(self.io);
        (OwnedReadHalf { io: Rc::clone(&io), unread: self.unread }, OwnedWriteHalf { io })
    }
}

/// A socket of this worker's NAPI goes into the epoll instance that polls it.
fn source_kind(socket: &Socket) -> SourceKind {
    match sockopt::incoming_napi_id(socket) {
        0 => SourceKind::Other,
        id => SourceKind::Napi(id),
    }
}

async fn connect<K>(address: &SockAddr, domain: Domain) -> io::Result<Stream<K>> {
    let socket = Socket::new(domain, Type::STREAM.nonblocking().cloexec(), None)?;
    match socket.connect(address) {
        Ok(()) => return Stream::from_socket(Arc::new(socket)),
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        Err(error) => return Err(error),
    }
    // Not yet with a NAPI: that is known when the first packet has come in.
    let connecting = AsyncFd::new(socket, SourceKind::Other)?;
    loop {
        connecting.clear_ready(Direction::Write);
        connecting.ready(Direction::Write).await;
        if let Some(error) = connecting.get_ref().take_error()? {
            return Err(error);
        }
        match connecting.get_ref().peer_addr() {
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::NotConnected => {}
            Err(error) => return Err(error),
        }
    }
    Stream::from_socket(Arc::new(connecting.into_inner()?))
}

impl Stream<Tcp> {
    /// Connects.
    pub async fn connect(address: SocketAddr) -> io::Result<Self> {
        connect(&address.into(), Domain::for_address(address)).await
    }

    /// Connects, or gives up with `TimedOut` after `limit`.
    pub async fn connect_timeout(address: SocketAddr, limit: Duration) -> io::Result<Self> {
        runtime::timeout(limit, Self::connect(address)).await?
    }

    /// Takes over a connected socket of the standard library.
    pub fn from_std(stream: std::net::TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Self::from_socket(Arc::new(stream.into()))
    }

    /// The address of this side.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        internet_address(&self.socket().local_addr()?)
    }

    /// The address of the other side.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        internet_address(&self.socket().peer_addr()?)
    }

    /// Whether small writes go out at once.
    pub fn nodelay(&self) -> io::Result<bool> {
        self.socket().tcp_nodelay()
    }

    /// Has small writes go out at once, rather than wait for the answer to what went before (Nagle).
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.socket().set_tcp_nodelay(nodelay)
    }

    /// Has the kernel acknowledge at once, until it next thinks better of it, see `tcp(7)`.
    pub fn set_quickack(&self, quickack: bool) -> io::Result<()> {
        self.socket().set_tcp_quickack(quickack)
    }

    /// Probes the peer after `idle` without traffic; `None` turns that off.
    pub fn set_keepalive(&self, idle: Option<Duration>) -> io::Result<()> {
        match idle {
            Some(idle) => self.socket().set_tcp_keepalive(&TcpKeepalive::new().with_time(idle)),
            None => self.socket().set_keepalive(false),
        }
    }

    /// How long sent data may stay unacknowledged; see `tcp(7)` `TCP_USER_TIMEOUT`.
    pub fn set_user_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.socket().set_tcp_user_timeout(limit)
    }

    /// Sets the IPv4 time to live of outgoing packets.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.socket().set_ttl_v4(ttl)
    }
}

impl Stream<Unix> {
    /// Connects to a path.
    pub async fn connect(path: impl AsRef<Path>) -> io::Result<Self> {
        connect(&SockAddr::unix(path)?, Domain::UNIX).await
    }
}

pub(crate) fn internet_address(address: &SockAddr) -> io::Result<SocketAddr> {
    address.as_socket().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not an internet address"))
}

impl<K> AsFd for Stream<K> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket().as_fd()
    }
}

/// The reading half of [`Stream::split`].
#[derive(Debug)]
pub struct ReadHalf<'a, K> {
    io: &'a Io<K>,
    unread: &'a mut ReadBuffer,
}

/// The writing half of [`Stream::split`].
#[derive(Debug)]
pub struct WriteHalf<'a, K> {
    io: &'a Io<K>,
}

/// The reading half of [`Stream::into_split`].
#[derive(Debug)]
pub struct OwnedReadHalf<K> {
    io: Rc<Io<K>>,
    unread: ReadBuffer,
}

/// The writing half of [`Stream::into_split`].
#[derive(Debug)]
pub struct OwnedWriteHalf<K> {
    io: Rc<Io<K>>,
}

impl<K> Drop for OwnedWriteHalf<K> {
    fn drop(&mut self) {
        // Fails where the peer has broken the connection, and then there is nothing to end.
        let _ = self.io.shutdown(Shutdown::Write);
    }
}

/// Gives a type the reading traits: `$io` and `$unread` name its fields.
macro_rules! reads {
    ($type:ty) => {
        impl<K> AsyncRead for $type {
            fn poll_read(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                buffer: &mut [u8],
            ) -> Poll<io::Result<usize>> {
                let this = self.get_mut();
                poll_read_through(&this.io, &mut this.unread, context, buffer)
            }

            fn poll_read_vectored(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                buffers: &mut [IoSliceMut<'_>],
            ) -> Poll<io::Result<usize>> {
                let this = self.get_mut();
                if let Transport::Ready(fd) = &this.io.transport
                    && this.unread.is_empty()
                {
                    let length: usize = buffers.iter().map(|buffer| buffer.len()).sum();
                    let result = ready!(
                        fd.poll_io(Direction::Read, context, |socket| (&**socket).read_vectored(buffers))
                    );
                    if let Ok(read) = result {
                        fd.record_read(read, length);
                    }
                    return Poll::Ready(result);
                }
                match buffers.iter_mut().find(|buffer| !buffer.is_empty()) {
                    Some(buffer) => poll_read_through(&this.io, &mut this.unread, context, buffer),
                    None => Poll::Ready(Ok(0)),
                }
            }
        }

        impl<K> AsyncBufRead for $type {
            fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
                let this = self.get_mut();
                ready!(this.io.poll_fill(context, &mut this.unread))?;
                Poll::Ready(Ok(this.unread.unread()))
            }

            fn consume(self: Pin<&mut Self>, amount: usize) {
                self.get_mut().unread.consume(amount);
            }
        }
    };
}

/// Gives a type the writing trait.
macro_rules! writes {
    ($type:ty) => {
        impl<K> $type {
            /// Writes bytes that are given away, without a copy in user space: for large ones. Returns
            /// when all are handed to the kernel. On io_uring, from 64 KiB on, the kernel makes no copy
            /// either, where the route allows it (`IORING_OP_SEND_ZC`); the memory is freed when the peer
            /// has acknowledged it.
            ///
            /// Dropped before its end, what has begun to be sent on io_uring is still sent whole; on epoll
            /// it breaks off, as any write does.
            pub async fn write_owned(&mut self, bytes: Bytes) -> io::Result<()> {
                self.io.write_owned(bytes).await
            }
        }

        impl<K> AsyncWrite for $type {
            fn poll_write(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                buffer: &[u8],
            ) -> Poll<io::Result<usize>> {
                self.io.poll_write(context, &[IoSlice::new(buffer)])
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                buffers: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                self.io.poll_write(context, buffers)
            }

            fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.io.poll_flush(context)
            }

            fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.io.poll_close(context)
            }
        }
    };
}

reads!(Stream<K>);
reads!(ReadHalf<'_, K>);
reads!(OwnedReadHalf<K>);
writes!(Stream<K>);
writes!(WriteHalf<'_, K>);
writes!(OwnedWriteHalf<K>);

// Nothing in these is ever pinned: the marker only names a kind of socket.
impl<K> Unpin for Stream<K> {}
impl<K> Unpin for OwnedReadHalf<K> {}
impl<K> Unpin for OwnedWriteHalf<K> {}
