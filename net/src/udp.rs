//! UDP sockets.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use runtime::io::{AsyncFd, Direction, SourceKind};
use socket2::{Socket, Type};

use crate::bind_options::BindOptions;

/// A UDP socket on its worker's driver. It uses readiness and system calls on every driver.
#[derive(Debug)]
pub struct UdpSocket {
    fd: AsyncFd<std::net::UdpSocket>,
}

impl UdpSocket {
    /// Binds to an address; port 0 takes any free one. `[::]` takes IPv4 datagrams too, unless
    /// [`BindOptions::only_v6`] is set.
    ///
    /// # Errors
    /// `AddrInUse` if another socket has the address, or the error of another system call.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        Self::bind_with(address, &BindOptions::new())
    }

    /// Like [`UdpSocket::bind`], with options; the backlog has no meaning.
    ///
    /// # Errors
    /// As [`UdpSocket::bind`].
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn bind_with(address: SocketAddr, options: &BindOptions) -> io::Result<Self> {
        Self::from_std(bound_socket(address, options, false)?.into())
    }

    /// Binds a reuseport group of `sockets` sockets to an address. The kernel spreads datagrams over them by
    /// their senders. Each worker takes over one of them by [`UdpSocket::from_std`].
    ///
    /// # Errors
    /// `AddrInUse` if another socket has the address, or the error of another system call.
    #[doc(alias = "SO_REUSEPORT")]
    pub fn bind_group(address: SocketAddr, sockets: usize) -> io::Result<Vec<std::net::UdpSocket>> {
        Self::bind_group_with(address, sockets, &BindOptions::new())
    }

    /// Like [`UdpSocket::bind_group`], with options.
    ///
    /// # Errors
    /// As [`UdpSocket::bind_group`].
    pub fn bind_group_with(
        address: SocketAddr,
        sockets: usize,
        options: &BindOptions,
    ) -> io::Result<Vec<std::net::UdpSocket>> {
        // Bound without the option first: two programs never share an address by mistake.
        let first = bound_socket(address, options, false)?;
        if sockets <= 1 {
            return Ok(vec![first.into()]);
        }
        // It keeps the address, and lets others of this user join (`net/ipv4/udp.c`, `udp_lib_lport_inuse`).
        first.set_reuse_port(true)?;
        let first = std::net::UdpSocket::from(first);
        let address = first.local_addr()?;
        let others = (1..sockets).map(|_| Ok(bound_socket(address, options, true)?.into()));
        std::iter::once(Ok(first)).chain(others).collect()
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
    /// `buffer` is lost. Any number of tasks may wait; one of them gets the datagram.
    ///
    /// # Errors
    /// The error of the system call, for example `ConnectionRefused` after an earlier datagram was refused.
    pub async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let (length, sender) = self.fd.io(Direction::Read, |socket| socket.recv_from(buffer)).await?;
        // Unlike with a stream, a short datagram doesn't mean that the receive buffer is empty.
        self.fd.record_read(length, length);
        Ok((length, sender))
    }

    /// Sends a datagram. Returns its length. Any number of tasks may wait for room.
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

fn bound_socket(address: SocketAddr, options: &BindOptions, reuse_port: bool) -> io::Result<Socket> {
    let socket = options.socket(address, Type::DGRAM)?;
    socket.set_reuse_port(reuse_port)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.get_ref().as_fd()
    }
}
