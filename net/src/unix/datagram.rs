//! Unix domain datagram sockets.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{SocketAddr, UnixDatagram as StdDatagram};
use std::path::Path;

use runtime::io::{AsyncFd, Direction, SourceKind};

/// A Unix domain datagram socket on its worker's driver. It uses readiness and system calls on
/// every driver. Any number of tasks may wait on one socket.
#[derive(Debug)]
pub struct UnixDatagram {
    fd: AsyncFd<StdDatagram>,
}

impl UnixDatagram {
    /// Binds to a path, which must not exist. Dropping the socket leaves it.
    ///
    /// # Errors
    /// `AddrInUse` if the path exists, or the error of another system call.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::from_std(StdDatagram::bind(path)?)
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
    ///
    /// # Errors
    /// The error of the system call, for example `ConnectionRefused`.
    pub fn connect(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.fd.get_ref().connect(path)
    }

    /// Sends a datagram to the connected path. Waits while its receiver has no room.
    ///
    /// # Errors
    /// `NotConnected` without [`UnixDatagram::connect`], or the error of the system call.
    pub async fn send(&self, datagram: &[u8]) -> io::Result<usize> {
        self.fd.io(Direction::Write, |socket| socket.send(datagram)).await
    }

    /// Sends a datagram to a path. Waits while its receiver has no room.
    ///
    /// # Errors
    /// The error of the system call, for example `ConnectionRefused`.
    pub async fn send_to(&self, datagram: &[u8], path: impl AsRef<Path>) -> io::Result<usize> {
        self.fd.io(Direction::Write, |socket| socket.send_to(datagram, path.as_ref())).await
    }

    /// Receives a datagram. The part that does not fit in `buffer` is lost.
    pub async fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.fd.io(Direction::Read, |socket| socket.recv(buffer)).await
    }

    /// Receives a datagram, and returns its sender. The part that does not fit in `buffer` is lost.
    pub async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.fd.io(Direction::Read, |socket| socket.recv_from(buffer)).await
    }

    /// The path that it is bound to.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.fd.get_ref().local_addr()
    }
}

impl AsFd for UnixDatagram {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.get_ref().as_fd()
    }
}
