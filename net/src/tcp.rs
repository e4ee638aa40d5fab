//! TCP streams and listeners.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use socket2::{SockAddr, Socket, TcpKeepalive, Type};

use crate::listener::{Accepted, BACKLOG, BindOptions, Listener};
use crate::names::{connect_target, lookup_host};
use crate::sockopt;
use crate::stream::generic::{IntoStdError, Stream};
use crate::to_socket_addrs::{ToSocketAddrs, first_that_works};

/// The kind of TCP sockets.
#[derive(Debug, Clone, Copy)]
pub struct Tcp;

/// A TCP connection on its worker's driver. What holds for reads and writes on every driver: see
/// [`Stream`].
pub type TcpStream = Stream<Tcp>;

/// A listening TCP socket, on its worker's driver.
///
/// - [`bind`](Listener::bind) listens on an address, [`bind_with`](Listener::bind_with) with
///   [`BindOptions`], [`bind_within`](Listener::bind_within) as soon as the address is free.
/// - [`serve`](Listener::serve) accepts on all workers, and calls a handler for each connection
///   where its NAPI is polled; [`serve_paused`](Listener::serve_paused) once it is resumed.
///   [`limit_connections`](Listener::limit_connections) says how many at a time.
/// - [`accept`](Listener::accept) and [`poll_accept`](Listener::poll_accept) accept one connection
///   onto the calling worker.
/// - [`local_addr`](Listener::local_addr) is the address that it listens on.
/// - [`from_std`](Listener::from_std) and [`into_std`](Listener::into_std) change from and to the
///   standard library's.
///
/// ```
/// use futures_util::AsyncWriteExt;
/// use net::{TcpListener, TcpStream};
///
/// # #[runtime::main(driver = "epoll", workers = 2)]
/// # async fn main() -> std::io::Result<()> {
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// println!("listening on {}", listener.local_addr()?);
/// let serving = listener.limit_connections(10_000).serve(|mut stream: TcpStream| async move {
///     // Fails if the client has gone.
///     let _ = stream.write_all(b"hello\n").await;
/// })?;
/// let report = serving.shutdown(std::time::Duration::from_secs(5)).await;
/// assert_eq!(report.aborted, 0);
/// # Ok(())
/// # }
/// ```
pub type TcpListener = Listener<Tcp>;

const BIND_RETRY_INTERVAL: Duration = Duration::from_millis(2);
/// How long the listening socket of a killed process may keep its address: 5 to 26 ms were seen. Less
/// than what is logged as a stall, since `bind` keeps its worker.
const KILLED_PROCESS_TIME: Duration = Duration::from_millis(50);

/// The peer's address, for whom asks before the connection has broken.
#[doc(hidden)]
#[derive(Debug, Clone)]
pub struct LateAddress(Weak<Socket>);

impl LateAddress {
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        let socket = self.0.upgrade().ok_or(io::ErrorKind::NotConnected)?;
        internet_address(&socket.peer_addr()?)
    }
}

impl Stream<Tcp> {
    /// Connects to an address, or to a name such as `"example.org:80"`, which is looked up first
    /// ([`lookup_host`](crate::lookup_host)).
    ///
    /// Several addresses are tried in turn, alternating between IPv6 and IPv4, each a quarter of a
    /// second after the one before it or as soon as that has failed; the first that connects is
    /// taken (*happy eyeballs*, RFC 8305).
    ///
    /// # Errors
    /// The error of the system call, for example `ConnectionRefused`; of several addresses, that of
    /// the last attempt that failed. `NotFound` if there is no address. The resolver's error.
    /// `InvalidInput` for a string without a valid port.
    pub async fn connect(address: impl ToSocketAddrs) -> io::Result<Self> {
        connect_target(address.to_target()?).await
    }

    /// Like [`Stream::connect`], within a time limit, which includes the lookup of a name.
    ///
    /// # Errors
    /// `TimedOut` after `limit`, or as [`Stream::connect`].
    pub async fn connect_timeout(address: impl ToSocketAddrs, limit: Duration) -> io::Result<Self> {
        runtime::timeout(limit, Self::connect(address)).await?
    }

    /// Takes over a connected socket of the standard library, and makes it non-blocking.
    pub fn from_std(stream: std::net::TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Self::from_socket(Arc::new(stream.into()))
    }

    /// Takes the socket off this worker, and returns it, non-blocking as it is, with the bytes that
    /// were received and not read yet. What was written is sent before.
    ///
    /// On epoll there are such bytes only after reads through
    /// [`AsyncBufRead`](futures_io::AsyncBufRead). A ring receives ahead of its reader: its receive
    /// is cancelled, and what that has brought is returned here. The bytes after it are in the
    /// socket. If the future is dropped before it is ready, so is the stream, with its bytes.
    pub async fn into_std(self) -> Result<(std::net::TcpStream, Vec<u8>), IntoStdError<Tcp>> {
        self.into_socket().await.map(|(socket, unread)| (socket.into(), unread))
    }

    /// The address of this side.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        internet_address(&self.socket().local_addr()?)
    }

    /// The address of the other side.
    ///
    /// # Errors
    /// `NotConnected` after the connection has broken.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        internet_address(&self.socket().peer_addr()?)
    }

    /// For libraries that serve for an application, which may not want the address.
    #[doc(hidden)]
    pub fn late_peer_addr(&self) -> LateAddress {
        LateAddress(Arc::downgrade(self.shared_socket()))
    }

    /// Whether `TCP_NODELAY` is set. It is not by default.
    #[doc(alias = "TCP_NODELAY")]
    pub fn nodelay(&self) -> io::Result<bool> {
        self.socket().tcp_nodelay()
    }

    /// Sets `TCP_NODELAY`: small writes are sent at once, and don't wait for the acknowledgment of
    /// earlier ones (Nagle's algorithm).
    #[doc(alias = "TCP_NODELAY")]
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.socket().set_tcp_nodelay(nodelay)
    }

    /// Whether received data is acknowledged at once at present.
    #[doc(alias = "TCP_QUICKACK")]
    pub fn quickack(&self) -> io::Result<bool> {
        self.socket().tcp_quickack()
    }

    /// Acknowledges received data at once, until the kernel returns to delayed acknowledgments; see
    /// `tcp(7)`.
    #[doc(alias = "TCP_QUICKACK")]
    pub fn set_quickack(&self, quickack: bool) -> io::Result<()> {
        self.socket().set_tcp_quickack(quickack)
    }

    /// The IPv4 time to live of outgoing packets, in hops.
    #[doc(alias = "IP_TTL")]
    pub fn ttl(&self) -> io::Result<u32> {
        self.socket().ttl_v4()
    }

    /// Sets the IPv4 time to live of outgoing packets, in hops.
    #[doc(alias = "IP_TTL")]
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.socket().set_ttl_v4(ttl)
    }

    /// Probes the peer of a connection without traffic: after which time, how often, and after how
    /// many lost probes the connection breaks, with second granularity. What is not given is as in
    /// `net.ipv4.tcp_keepalive_*`. `None`, the default, turns probes off.
    #[doc(alias = "SO_KEEPALIVE")]
    pub fn set_keepalive(&self, probes: Option<TcpKeepalive>) -> io::Result<()> {
        sockopt::set_keepalive(self.socket(), probes)
    }

    /// Sets how long sent data may stay unacknowledged before the connection breaks; see `tcp(7)`.
    #[doc(alias = "TCP_USER_TIMEOUT")]
    pub fn set_user_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.socket().set_tcp_user_timeout(limit)
    }
}

impl Listener<Tcp> {
    /// Listens on an address, such as `"127.0.0.1:80"`; port 0 takes any free one. Of several
    /// addresses it takes the first that can be bound. The backlog is 4096, which the kernel caps
    /// at `net.core.somaxconn`. `[::]` takes IPv4 connections too, unless [`BindOptions::only_v6`]
    /// is set.
    ///
    /// # Errors
    /// `AddrInUse` if another socket has the address, even one of the same user with
    /// `SO_REUSEPORT`: two programs never share it by mistake. The listening socket of a process
    /// that was killed lives on for 5 to 26 ms (`io_uring.c`, `io_ring_exit_work`), so this tries
    /// for 50 ms, in which it blocks the thread; [`Listener::bind_within`] waits for longer, and
    /// lets tasks run. `InvalidInput` for a name, as this never blocks:
    /// give the addresses that [`lookup_host`](crate::lookup_host) returns.
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<Self> {
        Self::bind_with(address, &BindOptions::new())
    }

    /// Like [`Listener::bind`], with options.
    pub fn bind_with(address: impl ToSocketAddrs, options: &BindOptions) -> io::Result<Self> {
        let begun = Instant::now();
        loop {
            match Self::bind_once(&address, options) {
                Err(error)
                    if error.kind() == io::ErrorKind::AddrInUse && begun.elapsed() < KILLED_PROCESS_TIME =>
                {
                    std::thread::sleep(BIND_RETRY_INTERVAL);
                }
                result => return result,
            }
        }
    }

    fn bind_once(address: &impl ToSocketAddrs, options: &BindOptions) -> io::Result<Self> {
        let socket = first_that_works(address, |address| listening_socket(address, options, None))?;
        Self::from_socket(socket, options.backlog)
    }

    /// Like [`Listener::bind_with`], and tries again for as long as `limit` while another socket
    /// has the address. The socket of a killed process was seen to keep it for 5 to 9 ms. A name is
    /// looked up first.
    ///
    /// # Errors
    /// As [`Listener::bind`], and the resolver's error.
    pub async fn bind_within(
        address: impl ToSocketAddrs,
        options: &BindOptions,
        limit: Duration,
    ) -> io::Result<Self> {
        let addresses = lookup_host(address).await?;
        let begun = Instant::now();
        loop {
            match Self::bind_once(&addresses, options) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && begun.elapsed() < limit => {
                    runtime::sleep(BIND_RETRY_INTERVAL).await;
                }
                result => return result,
            }
        }
    }

    /// Takes over a listening socket of the standard library, and makes it non-blocking. If another
    /// process or the application has it too, a graceful stop of [`serve`](Self::serve) leaves it
    /// what waits in the backlog.
    pub fn from_std(listener: std::net::TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Self::from_passed_in(listener.into(), BACKLOG)
    }

    fn accepted(&self, (socket, address): Accepted) -> io::Result<(Stream<Tcp>, SocketAddr)> {
        let address = match address {
            Some(address) => address,
            None => internet_address(&sockopt::accepted_from(&socket)?)?,
        };
        Ok((self.take_on(socket)?, address))
    }

    /// Takes the socket off this worker, and returns it, non-blocking as it is, with the
    /// connections that were accepted and not returned yet: a ring accepts ahead.
    pub fn into_std(self) -> io::Result<(std::net::TcpListener, Vec<std::net::TcpStream>)> {
        let (socket, ahead) = self.into_socket()?;
        Ok((socket.into(), ahead.into_iter().map(Into::into).collect()))
    }

    /// Accepts one connection, onto this worker, and returns the address of its peer.
    /// [`Listener::serve`] serves connections on the workers that own their NAPIs. Any number of
    /// tasks may wait on one listener.
    ///
    /// A connection that its peer has reset already is returned too; its first read or write tells.
    /// No error is caused by a peer, and none ends the listener: the next accept may succeed.
    pub async fn accept(&self) -> io::Result<(Stream<Tcp>, SocketAddr)> {
        self.accepted(self.accept_socket().await?)
    }

    /// [`Listener::accept`] for use in a `poll` function. One task may wait in this way at a time;
    /// a second one replaces the first.
    pub fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<(Stream<Tcp>, SocketAddr)>> {
        self.poll_accept_socket(context).map(|result| self.accepted(result?))
    }

    /// The address it listens on.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        internet_address(&self.socket().local_addr()?)
    }
}

/// A listening socket. With `first` it is another member of that one's reuseport group, with the
/// same options.
fn listening_socket(
    address: SocketAddr,
    options: &BindOptions,
    first: Option<&Socket>,
) -> io::Result<Socket> {
    let socket = options.socket(address, Type::STREAM)?;
    // Connections of an earlier run in TIME_WAIT don't keep the address taken.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(first.is_some())?;
    if let Some(first) = first {
        copy_options(first, &socket)?;
    }
    socket.bind(&address.into())?;
    socket.listen(options.backlog)?;
    Ok(socket)
}

/// Gives `socket` the options of `first` that decide which connections it gets, and those that
/// connections inherit.
fn copy_options(first: &Socket, socket: &Socket) -> io::Result<()> {
    if let Some(device) = first.device()? {
        socket.bind_device(Some(&device))?;
    }
    socket.set_tcp_nodelay(first.tcp_nodelay()?)?;
    if first.keepalive()? {
        let keepalive = TcpKeepalive::new()
            .with_time(first.tcp_keepalive_time()?)
            .with_interval(first.tcp_keepalive_interval()?)
            .with_retries(first.tcp_keepalive_retries()?);
        socket.set_tcp_keepalive(&keepalive)?;
    }
    if let Some(linger) = first.linger()? {
        socket.set_linger(Some(linger))?;
    }
    sockopt::copy_inherited(first, socket)?;
    // The kernel reports twice of what was asked for. Sizes that nobody asked for are left to it:
    // it adapts them.
    let (send, receive) = sockopt::locked_buffers(first)?;
    if send {
        socket.set_send_buffer_size(first.send_buffer_size()? / 2)?;
    }
    if receive {
        socket.set_recv_buffer_size(first.recv_buffer_size()? / 2)?;
    }
    Ok(())
}

/// Makes `count` more listening sockets on the address of `first`, so that all are a reuseport
/// group.
///
/// The first was bound without `SO_REUSEPORT`, which made sure that the address was free. It gets
/// the option now, and with it the kernel lets others of this user join (`inet_csk_bind_conflict`).
pub(crate) fn extend_reuseport_group(first: &Socket, backlog: i32, count: usize) -> io::Result<Vec<Socket>> {
    let address = internet_address(&first.local_addr()?)?;
    let options = BindOptions::of(first, address, backlog)?;
    first.set_reuse_port(true)?;
    (0..count).map(|_| listening_socket(address, &options, Some(first))).collect()
}

pub(crate) fn internet_address(address: &SockAddr) -> io::Result<SocketAddr> {
    address.as_socket().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not an internet address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_members_of_a_group_have_the_options_of_the_first() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let first = BindOptions::new().socket(any, Type::STREAM).unwrap();
        // Allowed to everybody for a socket that is bound to no device (Linux 5.7).
        first.bind_device(Some(b"lo")).unwrap();
        first.set_tcp_nodelay(true).unwrap();
        first.set_tcp_keepalive(&TcpKeepalive::new().with_time(Duration::from_secs(77))).unwrap();
        first.set_recv_buffer_size(100_000).unwrap();
        first.set_tcp_user_timeout(Some(Duration::from_secs(5))).unwrap();
        first.set_tos_v4(0x10).unwrap();
        first.set_tcp_congestion(b"reno").unwrap();
        first.set_freebind_v4(true).unwrap();
        first.bind(&any.into()).unwrap();
        first.listen(16).unwrap();
        for member in extend_reuseport_group(&first, 16, 2).unwrap() {
            assert_eq!(member.device().unwrap(), Some(b"lo".to_vec()));
            assert!(member.tcp_nodelay().unwrap() && member.keepalive().unwrap());
            assert_eq!(member.tcp_keepalive_time().unwrap(), Duration::from_secs(77));
            assert_eq!(member.tcp_user_timeout().unwrap(), Some(Duration::from_secs(5)));
            assert_eq!(member.tos_v4().unwrap(), 0x10);
            assert!(member.tcp_congestion().unwrap().starts_with(b"reno\0") && member.freebind_v4().unwrap());
            assert_eq!(member.recv_buffer_size().unwrap(), first.recv_buffer_size().unwrap());
            // Nobody asked for a size of the other buffer.
            assert!(!sockopt::locked_buffers(&member).unwrap().0);
        }
    }
}
