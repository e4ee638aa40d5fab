//! Listening sockets.

use std::io;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use runtime::io::{AsyncFd, Direction, RingListener, SourceKind};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::stream::{Stream, Tcp, Unix, internet_address};

/// A listening TCP socket.
pub type TcpListener = Listener<Tcp>;

/// A listening Unix domain socket.
pub type UnixListener = Listener<Unix>;

/// A listening socket on its worker's driver.
#[derive(Debug)]
pub struct Listener<K> {
    transport: Transport,
    backlog: i32,
    kind: PhantomData<K>,
}

/// By what connections come.
#[derive(Debug)]
enum Transport {
    /// A system call each, when the driver has said that there is one.
    Ready(AsyncFd<Socket>),
    /// An operation of the worker's ring.
    Ring(RingListener, Arc<Socket>),
}

/// How many connections may wait to be accepted unless told otherwise; the kernel caps it at
/// `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// How long the address of a process that was killed may take to be free: 5 to 9 ms were seen.
const FREED_WITHIN: Duration = Duration::from_millis(100);
const FREED_STEP: Duration = Duration::from_millis(2);

impl<K> Listener<K> {
    pub(crate) fn from_socket(socket: Socket, backlog: i32) -> io::Result<Self> {
        let socket = Arc::new(socket);
        let transport = match runtime::io::ring_listener(Arc::clone(&socket)) {
            Some(ring) => Transport::Ring(ring, socket),
            None => {
                let socket = Arc::into_inner(socket).expect("a ring that there is not keeps nothing");
                // A listener has no NAPI, and is not for the epoll instance that polls one.
                Transport::Ready(AsyncFd::new(socket, SourceKind::Other)?)
            }
        };
        Ok(Self { transport, backlog, kind: PhantomData })
    }

    /// Takes the socket off this worker's driver. Connections that a ring has accepted ahead are closed;
    /// it has none before the first accept.
    pub(crate) fn into_socket(self) -> io::Result<(Socket, i32)> {
        let socket = match self.transport {
            Transport::Ready(fd) => fd.into_inner()?,
            Transport::Ring(ring, socket) => {
                drop(ring);
                match Arc::try_unwrap(socket) {
                    Ok(socket) => socket,
                    // An accept still has it.
                    Err(shared) => shared.try_clone()?,
                }
            }
        };
        Ok((socket, self.backlog))
    }

    pub(crate) fn backlog(&self) -> i32 {
        self.backlog
    }

    pub(crate) fn socket(&self) -> &Socket {
        match &self.transport {
            Transport::Ready(fd) => fd.get_ref(),
            Transport::Ring(_, socket) => socket,
        }
    }

    /// Accepts a connection without taking it onto this worker's driver.
    pub(crate) async fn accept_socket(&self) -> io::Result<Arc<Socket>> {
        let socket = match &self.transport {
            Transport::Ready(fd) => {
                let (socket, _) = fd.io(Direction::Read, Socket::accept).await?;
                socket.set_nonblocking(true)?;
                socket
            }
            Transport::Ring(ring, _) => {
                std::future::poll_fn(|context| ring.poll_accept(context)).await?.into()
            }
        };
        Ok(Arc::new(socket))
    }
}

/// A TCP socket that listens.
fn listening(address: SocketAddr, backlog: i32, reuse_port: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking().cloexec(), None)?;
    // Connections of an earlier run that linger in TIME_WAIT don't keep the address taken.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_port(reuse_port)?;
    socket.bind(&address.into())?;
    socket.listen(backlog)?;
    Ok(socket)
}

impl Listener<Tcp> {
    /// Listens on an address; port 0 takes any free one.
    ///
    /// # Errors
    /// `AddrInUse` where another socket has the address, even one of the same user with
    /// `SO_REUSEPORT`: two programs never share it by mistake. It is tried for a tenth of a second before,
    /// by blocking the thread: the listening socket of a process that was killed lives on for some
    /// milliseconds in its ring (`io_uring.c`, `io_ring_exit_work`).
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        Self::bind_with_backlog(address, BACKLOG)
    }

    /// Like [`Listener::bind`], with room for so many connections that wait to be accepted.
    pub fn bind_with_backlog(address: SocketAddr, backlog: i32) -> io::Result<Self> {
        let give_up = Instant::now() + FREED_WITHIN;
        loop {
            match listening(address, backlog, false) {
                Ok(socket) => return Self::from_socket(socket, backlog),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < give_up => {
                    std::thread::sleep(FREED_STEP);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes over a listening socket of the standard library.
    pub fn from_std(listener: std::net::TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Self::from_socket(listener.into(), BACKLOG)
    }

    /// Accepts one connection, onto this worker.
    pub async fn accept(&self) -> io::Result<(Stream<Tcp>, SocketAddr)> {
        let stream = Stream::from_socket(self.accept_socket().await?)?;
        let peer = stream.peer_addr()?;
        Ok((stream, peer))
    }

    /// The address that is listened on.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        internet_address(&self.socket().local_addr()?)
    }
}

/// Further listening sockets on the address of `first`, so that all are a reuseport group.
///
/// The first was bound without `SO_REUSEPORT`, which made sure that the address was free. It gets the
/// option now, and with it the kernel lets others of this user join (`inet_csk_bind_conflict`).
pub(crate) fn join_group(first: &Socket, backlog: i32, others: usize) -> io::Result<Vec<Socket>> {
    let address = internet_address(&first.local_addr()?)?;
    first.set_reuse_port(true)?;
    (0..others).map(|_| listening(address, backlog, true)).collect()
}

/// A Unix socket that listens; until it does, whoever connects is refused.
fn listening_at(path: &Path, backlog: i32, mode: Option<u32>) -> io::Result<Listener<Unix>> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    if let Some(mode) = mode {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode & 0o7777))?;
    }
    socket.listen(backlog)?;
    Listener::from_socket(socket, backlog)
}

impl Listener<Unix> {
    /// Listens on a path, which must not exist.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::bind_with_backlog(path, BACKLOG)
    }

    /// Like [`Listener::bind`], with room for so many connections that wait to be accepted.
    pub fn bind_with_backlog(path: impl AsRef<Path>, backlog: i32) -> io::Result<Self> {
        listening_at(path.as_ref(), backlog, None)
    }

    /// Like [`Listener::bind_with_backlog`], with these permissions on the path, such as `0o700`, instead
    /// of those that the umask leaves: who may write to it may connect (unix(7)). It has them before
    /// anybody can.
    pub fn bind_with_mode(path: impl AsRef<Path>, backlog: i32, mode: u32) -> io::Result<Self> {
        listening_at(path.as_ref(), backlog, Some(mode))
    }

    /// Accepts one connection, onto this worker.
    pub async fn accept(&self) -> io::Result<Stream<Unix>> {
        Stream::from_socket(self.accept_socket().await?)
    }
}

impl<K> AsFd for Listener<K> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket().as_fd()
    }
}
