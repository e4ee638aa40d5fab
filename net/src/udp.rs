//! UDP sockets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket as Std};
use std::num::NonZeroU16;
use std::os::fd::{AsFd, BorrowedFd};
use std::task::{Context, Poll, ready};

use runtime::io::{AsyncFd, Direction, SourceKind};
use socket2::{SockRef, Socket, Type};

use crate::listener::BindOptions;
use crate::names::addresses;
use crate::sockopt;
use crate::to_socket_addrs::{Target, ToSocketAddrs, first_that_works, no_address};
use crate::udp_batch::{self, OutgoingDatagram, RecvBatch};
use crate::udp_message::{self, DatagramInfo, SendOptions};

/// A UDP socket on its worker's driver. It uses readiness and system calls on every driver. Options
/// that it has no method for are set by `socket2::SockRef::from(&socket)`.
///
/// Under a policy that polls, its queue is polled if the worker's NAPI has brought the socket's
/// first datagram, or the last one if the socket is connected: that is what the kernel keeps
/// (`SO_INCOMING_NAPI_ID`).
#[derive(Debug)]
pub struct UdpSocket {
    pub(super) fd: AsyncFd<std::net::UdpSocket>,
}

impl UdpSocket {
    /// Binds to an address, such as `"127.0.0.1:53"`; port 0 takes any free one. Of several
    /// addresses it takes the first that can be bound. `[::]` takes IPv4 datagrams too, unless
    /// [`BindOptions::only_v6`] is set.
    ///
    /// # Errors
    /// `AddrInUse` if another socket has the address, or the error of another system call.
    /// `InvalidInput` for a name, as this never blocks: give the addresses that
    /// [`lookup_host`](crate::lookup_host) returns.
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<Self> {
        Self::bind_with(address, &BindOptions::new())
    }

    /// Like [`UdpSocket::bind`], with options; the backlog has no meaning.
    pub fn bind_with(address: impl ToSocketAddrs, options: &BindOptions) -> io::Result<Self> {
        let socket = first_that_works(&address, |address| bound_socket(address, options))?;
        Self::from_std(socket.into())
    }

    /// Takes over a socket of the standard library, and makes it non-blocking.
    pub fn from_std(socket: std::net::UdpSocket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        if let Some(time) = runtime::__net::socket_busy_poll() {
            sockopt::set_busy_poll(&socket, time);
        }
        Ok(Self { fd: AsyncFd::new(socket, SourceKind::Datagrams)? })
    }

    /// Receives a datagram. Returns its length in `buffer`, and its sender. The part that does not
    /// fit in `buffer` is lost. Any number of tasks may wait; one of them gets the datagram.
    ///
    /// # Errors
    /// The error of the system call, for example `ConnectionRefused` after an earlier datagram was
    /// refused.
    pub async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let (length, sender) = self.fd.io(Direction::Read, |socket| socket.recv_from(buffer)).await?;
        self.fd.record_datagrams(1, length);
        Ok((length, sender))
    }

    /// Sends a datagram. Returns its length. Any number of tasks may wait for room. Of several
    /// addresses it takes the first. A name is looked up each time.
    ///
    /// # Errors
    /// The error of the system call, for example `EMSGSIZE` for a datagram longer than the protocol
    /// allows; the resolver's error; `InvalidInput` without an address or a valid port.
    pub async fn send_to(&self, datagram: &[u8], to: impl ToSocketAddrs) -> io::Result<usize> {
        let to = match to.to_target()? {
            Target::One(address) => address,
            // Boxed: most callers have one address, and their futures should not have room for this.
            target => {
                let addresses = Box::pin(addresses(target)).await?;
                *addresses.first().ok_or_else(no_address)?
            }
        };
        self.fd.io(Direction::Write, |socket| socket.send_to(datagram, to)).await
    }

    /// Sets the address that [`UdpSocket::send`] sends to, and the only one that is received from.
    /// Of several addresses it takes the first to which there is a route.
    ///
    /// # Errors
    /// The error of the system call, for example `NetworkUnreachable`; `InvalidInput` for a name,
    /// as [`UdpSocket::bind`].
    pub fn connect(&self, to: impl ToSocketAddrs) -> io::Result<()> {
        first_that_works(&to, |address| self.fd.get_ref().connect(address))
    }

    /// Sends a datagram to the connected address. Returns its length.
    ///
    /// # Errors
    /// As [`UdpSocket::send_to`]; `EDESTADDRREQ` without [`UdpSocket::connect`].
    pub async fn send(&self, datagram: &[u8]) -> io::Result<usize> {
        self.fd.io(Direction::Write, |socket| socket.send(datagram)).await
    }

    /// Receives a datagram. Returns its length in `buffer`; the part that does not fit is lost.
    pub async fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.fd.io(Direction::Read, |socket| socket.recv(buffer)).await?;
        self.fd.record_datagrams(1, length);
        Ok(length)
    }

    /// Waits for a datagram, and returns it without receiving it, as [`UdpSocket::recv_from`]
    /// would.
    #[doc(alias = "MSG_PEEK")]
    pub async fn peek_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.fd.io(Direction::Read, |socket| socket.peek_from(buffer)).await
    }

    /// Waits for a datagram, and returns it without receiving it, as [`UdpSocket::recv`] would.
    #[doc(alias = "MSG_PEEK")]
    pub async fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.fd.io(Direction::Read, |socket| socket.peek(buffer)).await
    }

    /// The address it is connected to.
    ///
    /// # Errors
    /// `NotConnected` without [`UdpSocket::connect`].
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.fd.get_ref().peer_addr()
    }

    /// Takes the socket's pending error, such as that an earlier datagram was refused.
    #[doc(alias = "SO_ERROR")]
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.fd.get_ref().take_error()
    }

    /// The time to live of outgoing IPv4 packets, in hops.
    #[doc(alias = "IP_TTL")]
    pub fn ttl(&self) -> io::Result<u32> {
        self.fd.get_ref().ttl()
    }

    /// Sets the time to live of outgoing IPv4 packets, in hops. It doesn't concern packets to
    /// groups ([`UdpSocket::set_multicast_ttl_v4`]).
    #[doc(alias = "IP_TTL")]
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.fd.get_ref().set_ttl(ttl)
    }

    /// The traffic class of outgoing IPv4 packets: the DSCP in the upper six bits.
    #[doc(alias = "IP_TOS")]
    pub fn tos_v4(&self) -> io::Result<u32> {
        SockRef::from(self).tos_v4()
    }

    /// Sets the traffic class of outgoing IPv4 packets: the DSCP in the upper six bits. Default: 0.
    #[doc(alias = "IP_TOS")]
    pub fn set_tos_v4(&self, tos: u32) -> io::Result<()> {
        SockRef::from(self).set_tos_v4(tos)
    }

    /// Whether datagrams may be sent to broadcast addresses.
    #[doc(alias = "SO_BROADCAST")]
    pub fn broadcast(&self) -> io::Result<bool> {
        self.fd.get_ref().broadcast()
    }

    /// Whether datagrams may be sent to broadcast addresses. Default: no.
    #[doc(alias = "SO_BROADCAST")]
    pub fn set_broadcast(&self, broadcast: bool) -> io::Result<()> {
        self.fd.get_ref().set_broadcast(broadcast)
    }

    /// Whether [`UdpSocket::recv_msg`] says to which address of this host a datagram was sent, and
    /// by which interface it came. Default: no. A server that is bound to all addresses (`0.0.0.0`,
    /// `[::]`) answers from that address ([`UdpSocket::send_from`]), or else from one that the
    /// route chooses.
    #[doc(alias = "IP_PKTINFO")]
    #[doc(alias = "IPV6_RECVPKTINFO")]
    pub fn set_pktinfo(&self, on: bool) -> io::Result<()> {
        sockopt::set_pktinfo(self, self.local_addr()?.is_ipv6(), on)
    }

    /// Whether [`UdpSocket::recv_msg`] tells the congestion mark of each datagram's packet
    /// ([`DatagramInfo::ecn`]), also of IPv4 on a socket of both families. Default: no.
    #[doc(alias = "IP_RECVTOS")]
    #[doc(alias = "IPV6_RECVTCLASS")]
    pub fn set_recv_ecn(&self, on: bool) -> io::Result<()> {
        sockopt::set_recv_traffic_class(self, self.local_addr()?.is_ipv6(), on)
    }

    /// Whether datagrams of one sender and one length, which have come together, are received by
    /// one call (generic receive offload, `udp(7)`). Default: no. Then use [`UdpSocket::recv_msg`]
    /// only, which says where one ends ([`DatagramInfo::segment_size`]), with a buffer of 64 KiB:
    /// what does not fit is lost.
    ///
    /// # Errors
    /// The error of the system call, before Linux 5.0 `ENOPROTOOPT`.
    #[doc(alias = "UDP_GRO")]
    pub fn set_gro(&self, on: bool) -> io::Result<()> {
        sockopt::set_int(self, libc::SOL_UDP, libc::UDP_GRO, on.into())
    }

    /// Receives a datagram, as [`UdpSocket::recv_from`], with what [`DatagramInfo`] lists.
    /// Addresses of IPv4 are mapped (`::ffff:192.0.2.1`) on a socket of both families.
    pub async fn recv_msg(&self, buffer: &mut [u8]) -> io::Result<DatagramInfo> {
        let received = self.fd.io(Direction::Read, |socket| udp_message::receive(socket, buffer)).await?;
        self.fd.record_datagrams(received.count(), received.length);
        Ok(received)
    }

    /// [`UdpSocket::recv_msg`] without waiting: `WouldBlock` if there is no datagram.
    pub fn try_recv_msg(&self, buffer: &mut [u8]) -> io::Result<DatagramInfo> {
        let received = self.fd.try_io(Direction::Read, |socket| udp_message::receive(socket, buffer))?;
        self.fd.record_datagrams(received.count(), received.length);
        Ok(received)
    }

    /// [`UdpSocket::send_msg`] without waiting: `WouldBlock` if there is no room.
    pub fn try_send_msg(&self, datagram: &[u8], to: SocketAddr, options: &SendOptions) -> io::Result<usize> {
        self.fd.try_io(Direction::Write, |socket| udp_message::send(socket, datagram, to, options))
    }

    /// Sends a datagram from one of this host's addresses, as [`DatagramInfo::local`] names it.
    /// Returns its length.
    ///
    /// # Errors
    /// As [`UdpSocket::send_to`]; that of the system call if `from` is not an address of this host;
    /// `InvalidInput` if one address is of IPv4 and the other of IPv6.
    pub async fn send_from(&self, datagram: &[u8], to: SocketAddr, from: IpAddr) -> io::Result<usize> {
        self.send_msg(datagram, to, &SendOptions::new().from(from)).await
    }

    /// Sends a datagram with these options: from an address of this host, with a congestion mark,
    /// or as several datagrams. Returns the number of bytes sent.
    ///
    /// # Errors
    /// As [`UdpSocket::send_from`] and, with a segment size, as sends after
    /// [`UdpSocket::set_segment_size`].
    pub async fn send_msg(
        &self,
        datagram: &[u8],
        to: SocketAddr,
        options: &SendOptions,
    ) -> io::Result<usize> {
        self.fd.io(Direction::Write, |socket| udp_message::send(socket, datagram, to, options)).await
    }

    /// Receives the datagrams that are there, at least one, into a batch. Returns how many.
    #[doc(alias = "recvmmsg")]
    pub async fn recv_batch(&self, batch: &mut RecvBatch) -> io::Result<usize> {
        let count = self.fd.io(Direction::Read, |socket| batch.receive(socket)).await?;
        self.fd.record_datagrams(batch.datagrams(), batch.bytes());
        Ok(count)
    }

    /// [`UdpSocket::recv_batch`] without waiting: `WouldBlock` if there is no datagram.
    pub fn try_recv_batch(&self, batch: &mut RecvBatch) -> io::Result<usize> {
        let count = self.fd.try_io(Direction::Read, |socket| batch.receive(socket))?;
        self.fd.record_datagrams(batch.datagrams(), batch.bytes());
        Ok(count)
    }

    /// Sends datagrams, in order, by one call. Returns how many were sent, at least one of those
    /// given: the rest can be sent next.
    ///
    /// # Errors
    /// That of the first one's, as [`UdpSocket::send_msg`]. None is sent then.
    #[doc(alias = "sendmmsg")]
    pub async fn send_batch(&self, datagrams: &[OutgoingDatagram<'_>]) -> io::Result<usize> {
        self.fd.io(Direction::Write, |socket| udp_batch::send(socket, datagrams)).await
    }

    /// [`UdpSocket::send_batch`] without waiting: `WouldBlock` if there is no room.
    pub fn try_send_batch(&self, datagrams: &[OutgoingDatagram<'_>]) -> io::Result<usize> {
        self.fd.try_io(Direction::Write, |socket| udp_batch::send(socket, datagrams))
    }

    /// Sends the bytes of one call as datagrams of this length, the last of which may be shorter:
    /// up to 64 of them (128 on newer kernels), which pass through most of the kernel as one
    /// packet, and are split by the network card if it can (generic segmentation offload,
    /// `udp(7)`). `None`, the default: one datagram a call.
    ///
    /// # Errors
    /// The error of the system call, before Linux 4.18 `ENOPROTOOPT`. Later sends fail if a
    /// datagram exceeds the route's MTU, or a call's bytes 65,507, or if they are too many
    /// datagrams.
    #[doc(alias = "UDP_SEGMENT")]
    pub fn set_segment_size(&self, bytes: Option<NonZeroU16>) -> io::Result<()> {
        let bytes = bytes.map_or(0, |bytes| bytes.get().into());
        sockopt::set_int(self, libc::SOL_UDP, libc::UDP_SEGMENT, bytes)
    }

    /// Receives the datagrams of a multicast group, on the interface with this address, or for
    /// `0.0.0.0` on one that the kernel chooses.
    #[doc(alias = "IP_ADD_MEMBERSHIP")]
    pub fn join_multicast_v4(&self, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        self.fd.get_ref().join_multicast_v4(&group, &interface)
    }

    /// Undoes [`UdpSocket::join_multicast_v4`].
    #[doc(alias = "IP_DROP_MEMBERSHIP")]
    pub fn leave_multicast_v4(&self, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        self.fd.get_ref().leave_multicast_v4(&group, &interface)
    }

    /// Receives the datagrams of a multicast group, on the interface with this index, or for 0 on
    /// one that the kernel chooses.
    #[doc(alias = "IPV6_ADD_MEMBERSHIP")]
    pub fn join_multicast_v6(&self, group: &Ipv6Addr, interface: u32) -> io::Result<()> {
        self.fd.get_ref().join_multicast_v6(group, interface)
    }

    /// Undoes [`UdpSocket::join_multicast_v6`].
    #[doc(alias = "IPV6_DROP_MEMBERSHIP")]
    pub fn leave_multicast_v6(&self, group: &Ipv6Addr, interface: u32) -> io::Result<()> {
        self.fd.get_ref().leave_multicast_v6(group, interface)
    }

    /// Whether datagrams to a group that this host has joined are received here, too.
    #[doc(alias = "IP_MULTICAST_LOOP")]
    pub fn multicast_loop_v4(&self) -> io::Result<bool> {
        self.fd.get_ref().multicast_loop_v4()
    }

    /// Whether datagrams to a group that this host has joined are received here, too. Default: yes.
    #[doc(alias = "IP_MULTICAST_LOOP")]
    pub fn set_multicast_loop_v4(&self, loops: bool) -> io::Result<()> {
        self.fd.get_ref().set_multicast_loop_v4(loops)
    }

    /// As [`UdpSocket::multicast_loop_v4`], for groups of IPv6.
    #[doc(alias = "IPV6_MULTICAST_LOOP")]
    pub fn multicast_loop_v6(&self) -> io::Result<bool> {
        self.fd.get_ref().multicast_loop_v6()
    }

    /// As [`UdpSocket::set_multicast_loop_v4`], for groups of IPv6.
    #[doc(alias = "IPV6_MULTICAST_LOOP")]
    pub fn set_multicast_loop_v6(&self, loops: bool) -> io::Result<()> {
        self.fd.get_ref().set_multicast_loop_v6(loops)
    }

    /// The time to live of packets to groups of IPv4, in hops.
    #[doc(alias = "IP_MULTICAST_TTL")]
    pub fn multicast_ttl_v4(&self) -> io::Result<u32> {
        self.fd.get_ref().multicast_ttl_v4()
    }

    /// Sets the time to live of packets to groups of IPv4, in hops. Default: 1, which stays in the
    /// network.
    #[doc(alias = "IP_MULTICAST_TTL")]
    pub fn set_multicast_ttl_v4(&self, ttl: u32) -> io::Result<()> {
        self.fd.get_ref().set_multicast_ttl_v4(ttl)
    }

    /// Gives the socket back, non-blocking as it is.
    pub fn into_std(self) -> io::Result<std::net::UdpSocket> {
        self.fd.into_inner()
    }

    /// The address it is bound to.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.fd.get_ref().local_addr()
    }
}

fn bound_socket(address: SocketAddr, options: &BindOptions) -> io::Result<Socket> {
    let socket = options.socket(address, Type::DGRAM)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.get_ref().as_fd()
    }
}

/// The `poll` functions of one direction are for one task at a time: a second one that waits
/// replaces the first.
impl UdpSocket {
    /// Waits until a datagram has come, or an error. Any number of tasks may wait.
    pub async fn readable(&self) -> io::Result<()> {
        self.fd.readable().await.map(drop)
    }

    /// Waits until there is room for a datagram. Any number of tasks may wait.
    pub async fn writable(&self) -> io::Result<()> {
        self.fd.writable().await.map(drop)
    }

    /// Tries an operation of the caller's on the socket, without waiting. What it receives and sends
    /// is not in the worker's metrics.
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
    /// the socket is ready. Any number of tasks may wait. As [`try_io`](Self::try_io) in the metrics.
    pub async fn async_io<R>(
        &self,
        direction: Direction,
        mut operation: impl FnMut() -> io::Result<R>,
    ) -> io::Result<R> {
        self.fd.io(direction, |_| operation()).await
    }

    /// [`UdpSocket::recv_from`] without waiting: `WouldBlock` if there is no datagram.
    pub fn try_recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let received = self.fd.try_io(Direction::Read, |socket| socket.recv_from(buffer))?;
        self.fd.record_datagrams(1, received.0);
        Ok(received)
    }

    /// [`UdpSocket::recv`] without waiting: `WouldBlock` if there is no datagram.
    pub fn try_recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.fd.try_io(Direction::Read, |socket| socket.recv(buffer))?;
        self.fd.record_datagrams(1, length);
        Ok(length)
    }

    /// [`UdpSocket::send_to`] without waiting: `WouldBlock` if there is no room.
    pub fn try_send_to(&self, datagram: &[u8], to: SocketAddr) -> io::Result<usize> {
        self.fd.try_io(Direction::Write, |socket| socket.send_to(datagram, to))
    }

    /// [`UdpSocket::send`] without waiting: `WouldBlock` if there is no room.
    pub fn try_send(&self, datagram: &[u8]) -> io::Result<usize> {
        self.fd.try_io(Direction::Write, |socket| socket.send(datagram))
    }

    /// [`UdpSocket::recv_from`] for use in a `poll` function.
    pub fn poll_recv_from(
        &self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<(usize, SocketAddr)>> {
        let received =
            ready!(self.fd.poll_io(Direction::Read, context, |socket: &Std| socket.recv_from(buffer)))?;
        self.fd.record_datagrams(1, received.0);
        Poll::Ready(Ok(received))
    }

    /// [`UdpSocket::recv`] for use in a `poll` function.
    pub fn poll_recv(&self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let length = ready!(self.fd.poll_io(Direction::Read, context, |socket: &Std| socket.recv(buffer)))?;
        self.fd.record_datagrams(1, length);
        Poll::Ready(Ok(length))
    }

    /// [`UdpSocket::send_to`] for use in a `poll` function.
    pub fn poll_send_to(
        &self,
        context: &mut Context<'_>,
        datagram: &[u8],
        to: SocketAddr,
    ) -> Poll<io::Result<usize>> {
        self.fd.poll_io(Direction::Write, context, |socket| socket.send_to(datagram, to))
    }

    /// [`UdpSocket::send`] for use in a `poll` function.
    pub fn poll_send(&self, context: &mut Context<'_>, datagram: &[u8]) -> Poll<io::Result<usize>> {
        self.fd.poll_io(Direction::Write, context, |socket| socket.send(datagram))
    }
}
