//! UDP sockets.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use runtime::io::{AsyncFd, Direction, SourceKind};
use socket2::{Domain, Socket, Type};

/// A UDP socket on its worker's driver. It uses readiness and system calls on every driver.
#[derive(Debug)]
pub struct UdpSocket {
    fd: AsyncFd<std::net::UdpSocket>,
}

impl UdpSocket {
    /// Binds to an address; port 0 takes any free one. An IPv6 address takes IPv6 datagrams only
    /// (`IPV6_V6ONLY` is set).
    ///
    /// # Errors
    /// `AddrInUse` if another socket has the address, or the error of another system call.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        Self::from_std(bound_socket(address, false)?)
    }

    /// Binds a reuseport group of `sockets` sockets to an address. The kernel spreads datagrams over them by
    /// their senders. Each worker takes over one of them by [`UdpSocket::from_std`].
    ///
    /// # Errors
    /// `AddrInUse` if another socket has the address, or the error of another system call.
    #[doc(alias = "SO_REUSEPORT")]
    pub fn bind_group(address: SocketAddr, sockets: usize) -> io::Result<Vec<std::net::UdpSocket>> {
        // Bound without the option first: two programs never share an address by mistake.
        let first = bound_socket(address, false)?;
        let address = first.local_addr()?;
        if sockets <= 1 {
            return Ok(vec![first]);
        }
        drop(first);
        (0..sockets).map(|_| bound_socket(address, true)).collect()
    }

    /// Takes over a socket of the standard library, and makes it non-blocking.
    ///
    /// # Errors
    /// The error of the system call.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn from_std(socket: std::net::UdpSocket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { fd: AsyncFd::new(socket, SourceKind::Other)? })
    }

    /// Receives a datagram. Returns its length in `buffer`, and its sender. The part that does not fit in
    /// `buffer` is lost.
    ///
    /// # Errors
    /// The error of the system call, for example `ConnectionRefused` after an earlier datagram was refused.
    pub async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let (length, sender) = self.fd.io(Direction::Read, |socket| socket.recv_from(buffer)).await?;
        // Unlike with a stream, a short datagram doesn't mean that the receive buffer is empty.
        self.fd.record_read(length, length);
        Ok((length, sender))
    }

    /// Sends a datagram. Returns its length.
    ///
    /// # Errors
    /// The error of the system call, for example `EMSGSIZE` for a datagram longer than the protocol allows.
    pub async fn send_to(&self, datagram: &[u8], to: SocketAddr) -> io::Result<usize> {
        self.fd.io(Direction::Write, |socket| socket.send_to(datagram, to)).await
    }

    /// The address it is bound to.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.fd.get_ref().local_addr()
    }
}

fn bound_socket(address: SocketAddr, reuse_port: bool) -> io::Result<std::net::UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM.nonblocking().cloexec(), None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_port(reuse_port)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.get_ref().as_fd()
    }
}
