//! Unix domain sockets of the type `SOCK_SEQPACKET`: connections that keep the boundaries of messages.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use runtime::io::{AsyncFd, Direction, SourceKind};
use socket2::{Domain, SockAddr, Socket, Type};

use super::descriptors::{self, ReceivedDescriptors};
use crate::listener::BACKLOG;
use crate::stream::begin_connect;

/// A connection whose messages arrive whole and in order. It uses readiness and system calls on every driver. Any number of
/// tasks may wait on one socket.
#[derive(Debug)]
pub struct UnixSeqpacket {
    fd: AsyncFd<Socket>,
}

fn new_socket() -> io::Result<Socket> {
    Socket::new(Domain::UNIX, Type::SEQPACKET.nonblocking().cloexec(), None)
}

impl UnixSeqpacket {
    fn new(socket: Socket) -> io::Result<Self> {
        Ok(Self { fd: AsyncFd::new(socket, SourceKind::Other)? })
    }

    /// Connects to a listener's path. Waits while its backlog is full.
    ///
    /// # Errors
    /// The error of the system call, for example `NotFound` or `ConnectionRefused`.
    pub async fn connect(path: impl AsRef<Path>) -> io::Result<Self> {
        let (socket, address) = (new_socket()?, SockAddr::unix(path)?);
        // A Unix domain socket is connected at once (net/unix/af_unix.c, unix_stream_connect).
        begin_connect(&socket, &address).await?;
        Self::new(socket)
    }

    /// Two sockets that are connected to each other.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = Socket::pair(Domain::UNIX, Type::SEQPACKET.nonblocking().cloexec(), None)?;
        Ok((Self::new(one)?, Self::new(other)?))
    }

    /// Sends a message. Waits while its receiver has no room.
    ///
    /// # Errors
    /// `BrokenPipe` if the peer has closed, or the error of the system call, for example if the message is longer than
    /// the send buffer.
    pub async fn send(&self, message: &[u8]) -> io::Result<usize> {
        // `send` of socket2 raises no SIGPIPE either.
        self.fd.io(Direction::Write, |socket| socket.send_vectored(&[IoSlice::new(message)])).await
    }

    /// Sends a message with descriptors, which stay open here, too: at most 253. Waits while its receiver has no room.
    ///
    /// # Errors
    /// Those of [`send`](Self::send), and `InvalidInput` for more descriptors.
    pub async fn send_with_descriptors(
        &self,
        message: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<usize> {
        self.fd.io(Direction::Write, |socket| descriptors::send(socket, message, descriptors)).await
    }

    /// Receives a message. The part that does not fit in `buffer` is lost, and so are descriptors that came with it. 0: the
    /// peer has closed, or sent an empty message.
    pub async fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.fd.io(Direction::Read, |socket| io::Read::read(&mut { socket }, buffer)).await
    }

    /// Receives a message and the descriptors that came with it.
    pub async fn recv_with_descriptors(&self, buffer: &mut [u8]) -> io::Result<ReceivedDescriptors> {
        self.fd.io(Direction::Read, |socket| descriptors::receive(socket, buffer)).await
    }
}

impl AsFd for UnixSeqpacket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.get_ref().as_fd()
    }
}

/// A connected socket of this type, from elsewhere. It becomes non-blocking.
impl TryFrom<OwnedFd> for UnixSeqpacket {
    type Error = io::Error;

    fn try_from(descriptor: OwnedFd) -> io::Result<Self> {
        let socket = Socket::from(descriptor);
        if (socket.domain()?, socket.r#type()?) != (Domain::UNIX, Type::SEQPACKET) {
            let error = "not a Unix domain socket of the type SOCK_SEQPACKET";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
        }
        socket.set_nonblocking(true)?;
        Self::new(socket)
    }
}

/// Accepts [`UnixSeqpacket`] connections on one worker.
#[derive(Debug)]
pub struct UnixSeqpacketListener {
    fd: AsyncFd<Socket>,
}

impl UnixSeqpacketListener {
    /// Listens on a path, which must not exist. Dropping the listener leaves it.
    ///
    /// # Errors
    /// `AddrInUse` if the path exists, or the error of another system call.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<Self> {
        let socket = new_socket()?;
        socket.bind(&SockAddr::unix(path)?)?;
        socket.listen(BACKLOG)?;
        Ok(Self { fd: AsyncFd::new(socket, SourceKind::Other)? })
    }

    /// Accepts one connection.
    ///
    /// # Errors
    /// The error of the system call, for example if the process has no descriptors left.
    pub async fn accept(&self) -> io::Result<UnixSeqpacket> {
        let (socket, _) = self.fd.io(Direction::Read, Socket::accept).await?;
        socket.set_nonblocking(true)?;
        UnixSeqpacket::new(socket)
    }
}

impl AsFd for UnixSeqpacketListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.get_ref().as_fd()
    }
}
