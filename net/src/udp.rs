//! Datagrams.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use runtime::io::{AsyncFd, Direction, SourceKind};
use socket2::{Domain, Socket, Type};

/// A UDP socket on its worker's driver.
#[derive(Debug)]
pub struct UdpSocket {
    fd: AsyncFd<std::net::UdpSocket>,
}

fn bound(address: SocketAddr, reuse_port: bool) -> io::Result<std::net::UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM.nonblocking().cloexec(), None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_port(reuse_port)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

impl UdpSocket {
    /// Takes datagrams for an address; port 0 takes any free one.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        Self::from_std(bound(address, false)?)
    }

    /// Sockets for one address, that the kernel spreads its datagrams over by their senders: one for
    /// each worker, to be taken over there by [`UdpSocket::from_std`].
    ///
    /// # Errors
    /// `AddrInUse` where another socket has the address.
    #[doc(alias = "SO_REUSEPORT")]
    pub fn bind_group(address: SocketAddr, sockets: usize) -> io::Result<Vec<std::net::UdpSocket>> {
        // Bound without the option first: two programs never share an address by mistake.
        let first = bound(address, false)?;
        let address = first.local_addr()?;
        if sockets <= 1 {
            return Ok(vec![first]);
        }
        drop(first);
        (0..sockets).map(|_| bound(address, true)).collect()
    }

    /// Takes over a socket of the standard library.
    pub fn from_std(socket: std::net::UdpSocket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { fd: AsyncFd::new(socket, SourceKind::Other)? })
    }

    /// Receives a datagram: how many bytes of it there are, and who sent it. What does not fit is lost.
    pub async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let (length, sender) = self.fd.io(Direction::Read, |socket| socket.recv_from(buffer)).await?;
        // A short datagram says nothing of the next.
        self.fd.record_read(length, length);
        Ok((length, sender))
    }

    /// Sends a datagram.
    pub async fn send_to(&self, datagram: &[u8], to: SocketAddr) -> io::Result<usize> {
        self.fd.io(Direction::Write, |socket| socket.send_to(datagram, to)).await
    }

    /// The address that datagrams are taken for.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.fd.get_ref().local_addr()
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.get_ref().as_fd()
    }
}
