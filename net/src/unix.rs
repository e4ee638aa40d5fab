//! Unix domain streams, listeners and datagrams.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixDatagram as StdDatagram};
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use runtime::io::{AsyncFd, Direction, SourceKind, poll_operation};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use crate::listener::{Accepted, BACKLOG, BindOptions, Listener};
use crate::sockopt;
use crate::stream::generic::{IntoStdError, Stream, connect};

/// The kind of Unix domain sockets.
#[derive(Debug, Clone, Copy)]
pub struct Unix;

/// Who is at the other end of a Unix domain stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerCredentials {
    /// The process's id; 0 if it is not of this process's PID namespace.
    pub pid: i32,
    /// The effective user id that it had when it connected or called `listen`.
    pub uid: u32,
    /// The effective group id that it had then.
    pub gid: u32,
}

/// A connection over a Unix domain socket.
///
/// Descriptors that its peer passes (`SCM_RIGHTS`, `unix(7)`) are lost, as a read of bytes takes
/// none. Pass them over a [`UnixDatagram`], or over a stream in an
/// [`AsyncFd`](runtime::io::AsyncFd).
pub type UnixStream = Stream<Unix>;

/// A listening Unix domain socket. Dropping it leaves its path, as `unix(7)` says.
pub type UnixListener = Listener<Unix>;

impl Stream<Unix> {
    /// Connects to a path.
    ///
    /// # Errors
    /// The error of the system call, for example `ConnectionRefused` if nobody listens on the path,
    /// and `InvalidInput` if the path is longer than 107 bytes.
    pub async fn connect(path: impl AsRef<Path>) -> io::Result<Self> {
        connect(&SockAddr::unix(path)?, Domain::UNIX).await
    }

    /// Two streams that are connected to each other.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = Socket::pair(Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None)?;
        Ok((Stream::from_socket(Arc::new(one))?, Stream::from_socket(Arc::new(other))?))
    }

    /// Takes over a connected socket of the standard library, and makes it non-blocking.
    pub fn from_std(stream: std::os::unix::net::UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Self::from_socket(Arc::new(stream.into()))
    }

    /// As [`TcpStream::into_std`](crate::TcpStream).
    pub async fn into_std(self) -> Result<(std::os::unix::net::UnixStream, Vec<u8>), IntoStdError<Unix>> {
        self.into_socket().await.map(|(socket, unread)| (socket.into(), unread))
    }

    /// The address of this side: unnamed on the side that has connected, unless it was bound.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        unix_address(&self.socket().local_addr()?)
    }

    /// The address of the other side: unnamed where that has connected, unless it was bound.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        unix_address(&self.socket().peer_addr()?)
    }

    /// Who connected, or listened: the process's credentials at that time.
    #[doc(alias = "SO_PEERCRED")]
    pub fn peer_cred(&self) -> io::Result<PeerCredentials> {
        let found = sockopt::peer_credentials(self.socket())?;
        Ok(PeerCredentials { pid: found.pid, uid: found.uid, gid: found.gid })
    }
}

impl Listener<Unix> {
    /// Listens on a path, which must not exist (`AddrInUse`). The backlog is 4096, which the kernel
    /// caps at `net.core.somaxconn`.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::bind_with(path, &BindOptions::new())
    }

    /// Like [`Listener::bind`], with a backlog, and with permissions of the path
    /// ([`BindOptions::mode`]).
    pub fn bind_with(path: impl AsRef<Path>, options: &BindOptions) -> io::Result<Self> {
        Self::from_socket(listening_socket(path.as_ref(), options)?, options.backlog)
    }

    /// Takes over a listening socket of the standard library, such as one that a service manager
    /// has passed, and makes it non-blocking. Whoever has it too is left what waits in the backlog,
    /// as [`TcpListener::from_std`](crate::TcpListener) says.
    pub fn from_std(listener: std::os::unix::net::UnixListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Self::from_passed_in(listener.into(), BACKLOG)
    }

    fn accepted(&self, (socket, _): Accepted) -> io::Result<(Stream<Unix>, SocketAddr)> {
        // Its peer stays known after it has gone (`net/unix/af_unix.c`, `unix_getname`). A peer may have a
        // path of 108 bytes, which the kernel allows and the standard library has no address for.
        let address = socket.peer_addr().and_then(|address| unix_address(&address));
        let address = address.or_else(|_| SocketAddr::from_pathname(""))?;
        Ok((self.take_on(socket)?, address))
    }

    /// Accepts one connection, onto this worker, and returns the address of its peer, which is
    /// unnamed unless the peer has bound its socket, to a path of less than 108 bytes. Any number of tasks may wait on one listener.
    /// No error is caused by a peer, and none ends the listener: the next accept may succeed.
    pub async fn accept(&self) -> io::Result<(Stream<Unix>, SocketAddr)> {
        self.accepted(self.accept_socket().await?)
    }

    /// [`Listener::accept`] for use in a `poll` function. One task may wait in this way at a time;
    /// a second one replaces the first.
    pub fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<(Stream<Unix>, SocketAddr)>> {
        self.poll_accept_socket(context).map(|result| self.accepted(result?))
    }

    /// The address it listens on.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        unix_address(&self.socket().local_addr()?)
    }

    /// As [`TcpListener::into_std`](crate::TcpListener).
    pub fn into_std(
        self,
    ) -> io::Result<(std::os::unix::net::UnixListener, Vec<std::os::unix::net::UnixStream>)> {
        let (socket, ahead) = self.into_socket()?;
        Ok((socket.into(), ahead.into_iter().map(Into::into).collect()))
    }
}

pub(crate) fn unix_address(address: &SockAddr) -> io::Result<SocketAddr> {
    match address.as_abstract_namespace() {
        Some(name) => SocketAddr::from_abstract_name(name),
        // An unnamed one has an empty path.
        None => SocketAddr::from_pathname(address.as_pathname().unwrap_or(Path::new(""))),
    }
}

/// A connect is refused until the socket listens, which is after its path has its mode.
fn listening_socket(path: &Path, options: &BindOptions) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    if let Some(mode) = options.mode {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    }
    socket.listen(options.backlog)?;
    Ok(socket)
}

/// How long a sender waits for room at its receiver before it tries again.
const NO_ROOM_PAUSE: Duration = Duration::from_millis(1);

/// A Unix domain datagram socket on its worker's driver. It uses readiness and system calls on
/// every driver. Any number of tasks may wait on one socket.
#[derive(Debug)]
pub struct UnixDatagram {
    fd: AsyncFd<StdDatagram>,
}

impl UnixDatagram {
    /// Binds to a path, which must not exist (`AddrInUse`). Dropping the socket leaves it. A path
    /// that begins with a 0 byte is a name in the abstract namespace, as for streams.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<Self> {
        let socket = Socket::new(Domain::UNIX, Type::DGRAM.nonblocking().cloexec(), None)?;
        socket.bind(&SockAddr::unix(path)?)?;
        Self::from_std(socket.into())
    }

    /// A socket without a path, which can send only.
    pub fn unbound() -> io::Result<Self> {
        Self::from_std(StdDatagram::unbound()?)
    }

    /// Two sockets that are connected to each other.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = StdDatagram::pair()?;
        Ok((Self::from_std(one)?, Self::from_std(other)?))
    }

    /// Takes over a socket of the standard library, and makes it non-blocking.
    pub fn from_std(socket: StdDatagram) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { fd: AsyncFd::new(socket, SourceKind::Other)? })
    }

    /// Gives the socket back, non-blocking as it is.
    pub fn into_std(self) -> io::Result<StdDatagram> {
        self.fd.into_inner()
    }

    /// Sets the path that [`UnixDatagram::send`] sends to, and the only one that is received from.
    pub fn connect(&self, path: impl AsRef<Path>) -> io::Result<()> {
        SockRef::from(self.fd.get_ref()).connect(&SockAddr::unix(path)?)
    }

    /// Sends a datagram to the connected path. Waits while its receiver has no room.
    ///
    /// # Errors
    /// `NotConnected` without [`UnixDatagram::connect`], or the error of the system call.
    pub async fn send(&self, datagram: &[u8]) -> io::Result<usize> {
        self.fd.io(Direction::Write, |socket| socket.send(datagram)).await
    }

    /// Sends a datagram to a path. Waits while its receiver has no room: by trying again, as no event
    /// says to an unconnected sender that there is room (`net/unix/af_unix.c`, `unix_dgram_poll`).
    pub async fn send_to(&self, datagram: &[u8], path: impl AsRef<Path>) -> io::Result<usize> {
        let address = SockAddr::unix(path)?;
        let send = |socket: &StdDatagram| SockRef::from(socket).send_to(datagram, &address);
        loop {
            std::future::poll_fn(|context| poll_operation(context)).await;
            match self.fd.try_io(Direction::Write, send) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    runtime::sleep(NO_ROOM_PAUSE).await
                }
                result => return result,
            }
        }
    }

    /// Receives a datagram. The part that does not fit in `buffer` is lost.
    pub async fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.fd.io(Direction::Read, |socket| socket.recv(buffer)).await
    }

    /// Receives a datagram, and returns its sender. The part that does not fit in `buffer` is lost.
    pub async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.fd.io(Direction::Read, |socket| socket.recv_from(buffer)).await
    }

    /// The address that it is bound to: a path, an abstract name, or unnamed.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.fd.get_ref().local_addr()
    }

    /// The address it is connected to.
    ///
    /// # Errors
    /// `NotConnected` without [`UnixDatagram::connect`].
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.fd.get_ref().peer_addr()
    }

    /// Shuts down receiving, sending or both, see `shutdown(2)`. It must be connected.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.fd.get_ref().shutdown(how)
    }

    /// Takes the socket's pending error.
    #[doc(alias = "SO_ERROR")]
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.fd.get_ref().take_error()
    }
}

/// The `poll` functions of one direction are for one task at a time: a second one that waits
/// replaces the first.
impl UnixDatagram {
    /// Waits until a datagram has come, or an error. Any number of tasks may wait.
    pub async fn readable(&self) -> io::Result<()> {
        self.fd.readable().await.map(drop)
    }

    /// Waits until the connected receiver has room. Any number of tasks may wait. It says nothing
    /// of other receivers.
    pub async fn writable(&self) -> io::Result<()> {
        self.fd.writable().await.map(drop)
    }

    /// [`UnixDatagram::send`] without waiting: `WouldBlock` if its receiver has no room.
    pub fn try_send(&self, datagram: &[u8]) -> io::Result<usize> {
        self.fd.try_io(Direction::Write, |socket| socket.send(datagram))
    }

    /// [`UnixDatagram::send_to`] without waiting: `WouldBlock` if its receiver has no room.
    pub fn try_send_to(&self, datagram: &[u8], path: impl AsRef<Path>) -> io::Result<usize> {
        let address = SockAddr::unix(path)?;
        self.fd.try_io(Direction::Write, |socket| SockRef::from(socket).send_to(datagram, &address))
    }

    /// [`UnixDatagram::recv`] without waiting: `WouldBlock` if there is no datagram.
    pub fn try_recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.fd.try_io(Direction::Read, |socket| socket.recv(buffer))
    }

    /// [`UnixDatagram::recv_from`] without waiting: `WouldBlock` if there is no datagram.
    pub fn try_recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.fd.try_io(Direction::Read, |socket| socket.recv_from(buffer))
    }

    /// [`UnixDatagram::send`] for use in a `poll` function. [`UnixDatagram::send_to`] has none, as
    /// it waits by a timer.
    pub fn poll_send(&self, context: &mut Context<'_>, datagram: &[u8]) -> Poll<io::Result<usize>> {
        self.fd.poll_io(Direction::Write, context, |socket| socket.send(datagram))
    }

    /// [`UnixDatagram::recv`] for use in a `poll` function.
    pub fn poll_recv(&self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        self.fd.poll_io(Direction::Read, context, |socket| socket.recv(buffer))
    }

    /// [`UnixDatagram::recv_from`] for use in a `poll` function.
    pub fn poll_recv_from(
        &self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<(usize, SocketAddr)>> {
        self.fd.poll_io(Direction::Read, context, |socket| socket.recv_from(buffer))
    }

    /// Tries an operation of the caller's on the socket, without waiting.
    ///
    /// # Errors
    /// Those of the operation. After `WouldBlock` the socket is not ready until its next event.
    pub fn try_io<R>(
        &self,
        direction: Direction,
        mut operation: impl FnMut() -> io::Result<R>,
    ) -> io::Result<R> {
        self.fd.try_io(direction, |_| operation())
    }

    /// Tries an operation of the caller's on the socket, and whenever it would block, waits until
    /// the socket is ready. Any number of tasks may wait. Connect the socket before it sends by this:
    /// for a receiver that the operation names, no event says that there is room, and it would be
    /// tried in each turn. So descriptors are passed, for example:
    ///
    /// ```
    /// use std::io::IoSlice;
    /// use std::mem::MaybeUninit;
    /// use std::os::fd::AsFd;
    ///
    /// use runtime::io::Direction;
    /// use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    ///
    /// # #[runtime::main(driver = "epoll")]
    /// # async fn main() -> std::io::Result<()> {
    /// let (socket, _peer) = net::UnixDatagram::pair()?;
    /// let output = std::io::stdout();
    /// let passed = [output.as_fd()];
    /// let sent = socket.async_io(Direction::Write, || {
    ///     let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    ///     let mut control = SendAncillaryBuffer::new(&mut space);
    ///     control.push(SendAncillaryMessage::ScmRights(&passed));
    ///     Ok(sendmsg(&socket, &[IoSlice::new(b"output")], &mut control, SendFlags::empty())?)
    /// });
    /// assert_eq!(sent.await?, 6);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "SCM_RIGHTS")]
    pub async fn async_io<R>(
        &self,
        direction: Direction,
        mut operation: impl FnMut() -> io::Result<R>,
    ) -> io::Result<R> {
        self.fd.io(direction, |_| operation()).await
    }
}

impl AsFd for UnixDatagram {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.get_ref().as_fd()
    }
}
