//! A TCP socket whose options are set before it connects or listens.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use socket2::{Domain, Socket, TcpKeepalive, Type};

use crate::listener::Listener;
use crate::sockopt;
use crate::stream::generic::{Stream, connect_socket};
use crate::tcp::{Tcp, internet_address};

/// A TCP socket that is neither connected nor listening yet, for options that have to be set
/// before. `socket2::SockRef::from(&socket)` reads them, and sets others.
///
/// ```
/// use net::TcpSocket;
///
/// # #[runtime::main(driver = "epoll")]
/// # async fn main() -> std::io::Result<()> {
/// let listening = TcpSocket::new_v4()?;
/// listening.set_recv_buffer_size(64 << 10)?;
/// listening.bind("127.0.0.1:0".parse().unwrap())?;
/// let listener = listening.listen(128)?;
///
/// let client = TcpSocket::new_v4()?;
/// client.bind("127.0.0.2:0".parse().unwrap())?;
/// let client = client.connect(listener.local_addr()?).await?;
/// assert_eq!(client.local_addr()?.ip().to_string(), "127.0.0.2");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TcpSocket(Socket);

impl TcpSocket {
    /// A socket for IPv4.
    pub fn new_v4() -> io::Result<Self> {
        Self::new(Domain::IPV4)
    }

    /// A socket for IPv6, and for IPv4 unless [`TcpSocket::set_only_v6`] says otherwise.
    pub fn new_v6() -> io::Result<Self> {
        Self::new(Domain::IPV6)
    }

    fn new(domain: Domain) -> io::Result<Self> {
        Ok(Self(Socket::new(domain, Type::STREAM.nonblocking().cloexec(), None)?))
    }

    /// Whether an address may be bound although connections of an earlier socket are in
    /// `TIME_WAIT`. Default: no.
    #[doc(alias = "SO_REUSEADDR")]
    pub fn set_reuseaddr(&self, reuse: bool) -> io::Result<()> {
        self.0.set_reuse_address(reuse)
    }

    /// Whether other sockets of this user with the option may be bound to the same address.
    /// Default: no.
    #[doc(alias = "SO_REUSEPORT")]
    pub fn set_reuseport(&self, reuse: bool) -> io::Result<()> {
        self.0.set_reuse_port(reuse)
    }

    /// Whether an IPv6 socket takes IPv6 only. Default: as `net.ipv6.bindv6only` says, which is no.
    #[doc(alias = "IPV6_V6ONLY")]
    pub fn set_only_v6(&self, only: bool) -> io::Result<()> {
        self.0.set_only_v6(only)
    }

    /// As [`Stream::set_nodelay`].
    #[doc(alias = "TCP_NODELAY")]
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.0.set_tcp_nodelay(nodelay)
    }

    /// As [`Stream::set_keepalive`].
    #[doc(alias = "SO_KEEPALIVE")]
    pub fn set_keepalive(&self, probes: Option<TcpKeepalive>) -> io::Result<()> {
        sockopt::set_keepalive(&self.0, probes)
    }

    /// As [`Stream::set_zero_linger`].
    #[doc(alias = "SO_LINGER")]
    pub fn set_zero_linger(&self) -> io::Result<()> {
        self.0.set_linger(Some(Duration::ZERO))
    }

    /// The size of the kernel's send buffer in bytes, which connections that are accepted inherit.
    #[doc(alias = "SO_SNDBUF")]
    pub fn set_send_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.0.set_send_buffer_size(bytes)
    }

    /// The size of the kernel's receive buffer in bytes, which connections that are accepted
    /// inherit. More than 64 KiB has to be set before connecting or listening, because the window's
    /// scale is agreed on then (`tcp(7)`).
    #[doc(alias = "SO_RCVBUF")]
    pub fn set_recv_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.0.set_recv_buffer_size(bytes)
    }

    /// The interface that packets go through.
    #[doc(alias = "SO_BINDTODEVICE")]
    pub fn bind_device(&self, interface: Option<&str>) -> io::Result<()> {
        self.0.bind_device(interface.map(str::as_bytes))
    }

    /// The traffic class of outgoing IPv4 packets: the DSCP in the upper six bits. Default: 0.
    /// Connections that are accepted inherit it.
    #[doc(alias = "IP_TOS")]
    pub fn set_tos_v4(&self, tos: u32) -> io::Result<()> {
        self.0.set_tos_v4(tos)
    }

    /// Binds it to an address; port 0 takes any free one.
    pub fn bind(&self, address: SocketAddr) -> io::Result<()> {
        self.0.bind(&address.into())
    }

    /// The address that it is bound to.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        internet_address(&self.0.local_addr()?)
    }

    /// Connects to an address, and takes the socket onto this worker's driver.
    pub async fn connect(self, address: SocketAddr) -> io::Result<Stream<Tcp>> {
        connect_socket(self.0, &address.into()).await
    }

    /// Listens, with room for `backlog` connections that wait to be accepted; the kernel caps it at
    /// `net.core.somaxconn`.
    pub fn listen(self, backlog: i32) -> io::Result<Listener<Tcp>> {
        self.0.listen(backlog)?;
        Listener::from_socket(self.0, backlog)
    }
}

impl AsFd for TcpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
