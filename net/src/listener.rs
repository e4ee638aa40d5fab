//! How a socket is bound, and the listener that TCP and Unix domain sockets have in common.

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::Location;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use runtime::__net::RingListener;
use runtime::io::{AsyncFd, Direction, OnItsWorker, SourceKind};
use rustix::net::SocketFlags;
use socket2::{Domain, Socket, Type};

use crate::sockopt;
use crate::stream::generic::Stream;

/// Options of a socket that is bound to an address.
///
/// ```
/// use net::{BindOptions, TcpListener};
///
/// # #[runtime::main(driver = "epoll")]
/// # async fn main() -> std::io::Result<()> {
/// let options = BindOptions::new().backlog(128).only_v6(true);
/// let listener = TcpListener::bind_with("[::]:0", &options)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "options do nothing until a socket is bound with them"]
pub struct BindOptions {
    pub(crate) backlog: i32,
    only_v6: Option<bool>,
    pub(crate) mode: Option<u32>,
}

impl Default for BindOptions {
    fn default() -> Self {
        Self { backlog: BACKLOG, only_v6: None, mode: None }
    }
}

impl BindOptions {
    /// A backlog of 4096, and IPv4 beside IPv6 as the system has it.
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of connections that may wait to be accepted. Default: 4096. The kernel caps it at
    /// `net.core.somaxconn`.
    pub fn backlog(mut self, backlog: i32) -> Self {
        self.backlog = backlog;
        self
    }

    /// Whether an IPv6 address takes IPv6 only. Default: as the system has it
    /// (`net.ipv6.bindv6only`, which is 0): `[::]` takes IPv4 too, and the addresses of its IPv4
    /// peers are mapped (`::ffff:192.0.2.1`,
    /// [`Ipv6Addr::to_canonical`](std::net::Ipv6Addr::to_canonical)). It has no effect on IPv4
    /// addresses.
    #[doc(alias = "IPV6_V6ONLY")]
    pub fn only_v6(mut self, only: bool) -> Self {
        self.only_v6 = Some(only);
        self
    }

    /// The permissions of a Unix domain socket's path, such as `0o700`: who may write to the path
    /// may connect (`unix(7)`). The path has them before anybody can connect. Default: what the
    /// umask leaves. It has no effect on IP addresses.
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = Some(mode & 0o7777);
        self
    }

    /// A socket with these options, not bound yet.
    pub(crate) fn socket(&self, address: SocketAddr, kind: Type) -> std::io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(address), kind.nonblocking().cloexec(), None)?;
        if let Some(only) = self.only_v6.filter(|_| address.is_ipv6()) {
            socket.set_only_v6(only)?;
        }
        Ok(socket)
    }

    /// The options with which `first` was bound, for further members of its reuseport group.
    pub(crate) fn of(first: &Socket, address: SocketAddr, backlog: i32) -> std::io::Result<Self> {
        let only_v6 = if address.is_ipv6() { Some(first.only_v6()?) } else { None };
        Ok(Self { backlog, only_v6, mode: None })
    }
}

/// The default backlog. The kernel caps it at `net.core.somaxconn`.
pub(crate) const BACKLOG: i32 = 4096;

/// After this many connections of a listener it is looked whether other workers do anything.
const LOOK_AFTER: u32 = 64;

/// An accepted connection, close-on-exec and non-blocking; and its peer's address if accept has
/// returned one of the internet.
pub(crate) type Accepted = (Arc<Socket>, Option<SocketAddr>);

/// What is known of a connection when it is served, so that nobody asks the kernel again.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    /// The peer's address, where accept has returned it.
    pub peer: Option<SocketAddr>,
    /// `SO_INCOMING_NAPI_ID` as it was then; 0 where the runtime has no interface.
    pub napi: u32,
}

/// A listening socket, of kind [`Tcp`](crate::Tcp) or [`Unix`](crate::Unix), on its worker's
/// driver.
///
/// ```
/// use net::{TcpListener, TcpStream};
///
/// #[runtime::main]
/// async fn main() -> std::io::Result<()> {
///     let listener = TcpListener::bind("127.0.0.1:0")?;
///     let client = TcpStream::connect(listener.local_addr()?).await?;
///     // On this worker; `serve` accepts on all of them.
///     let (stream, peer) = listener.accept().await?;
///     assert_eq!(peer, client.local_addr()?);
///     assert_eq!(stream.local_addr()?, client.peer_addr()?);
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct Listener<K> {
    on_its_worker: OnItsWorker,
    backend: ListenerBackend,
    pub(crate) backlog: i32,
    /// Somebody else may have the socket, who accepts what waits in its backlog.
    pub(crate) passed_in: bool,
    pub(crate) connection_limit: Option<usize>,
    pub(crate) caller: Option<&'static Location<'static>>,
    /// How many connections its worker has accepted for itself; no more than are looked at.
    accepted: Cell<u32>,
    kind: PhantomData<K>,
}

#[derive(Debug)]
enum ListenerBackend {
    /// One system call for each connection, after the driver has reported readiness.
    Readiness(AsyncFd<Socket>),
    Ring(RingListener, Arc<Socket>),
}

impl<K> Listener<K> {
    pub(crate) fn from_socket(socket: Socket, backlog: i32) -> io::Result<Self> {
        let socket = Arc::new(socket);
        let backend = match runtime::__net::ring_listener(Arc::clone(&socket)) {
            Some(ring) => ListenerBackend::Ring(ring, socket),
            None => {
                let socket = Arc::into_inner(socket).expect("without a ring nothing else holds the socket");
                // A listener has no NAPI, and doesn't belong in the epoll instance that polls one.
                ListenerBackend::Readiness(AsyncFd::new(socket, SourceKind::Other)?)
            }
        };
        Ok(Self {
            on_its_worker: PhantomData,
            backend,
            backlog,
            passed_in: false,
            connection_limit: None,
            caller: None,
            accepted: Cell::new(0),
            kind: PhantomData,
        })
    }

    /// Lets [`serve`](#method.serve) handle at most so many connections at a time, at least 1, on
    /// all workers together. A connection holds its place from before its handler is called until
    /// the handler has ended. Without a place it waits: one for each worker is accepted, on a ring
    /// up to 16 more, the others are in the backlog. A graceful stop closes those that find no
    /// place then. [`accept`](#method.accept) knows no limit.
    ///
    /// To refuse connections instead, let the handler try to get a permit of a semaphore.
    pub fn limit_connections(self, most: usize) -> Self {
        Self { connection_limit: Some(most.max(1)), ..self }
    }

    /// For libraries that serve for an application: its line, which reports of stalls name.
    #[doc(hidden)]
    pub fn served_at(self, caller: &'static Location<'static>) -> Self {
        Self { caller: Some(caller), ..self }
    }

    /// Takes the socket off this worker's driver. Also returns the connections that a ring has
    /// accepted ahead: it has none before the first accept.
    pub(crate) fn into_socket(self) -> io::Result<(Socket, Vec<Socket>)> {
        match self.backend {
            ListenerBackend::Readiness(fd) => Ok((fd.into_inner()?, Vec::new())),
            ListenerBackend::Ring(ring, socket) => {
                let ahead = ring.stop().into_iter().map(Socket::from).collect();
                drop(ring);
                // An accept may still hold it.
                let socket = Arc::try_unwrap(socket).or_else(|held| held.try_clone())?;
                Ok((socket, ahead))
            }
        }
    }

    /// For a socket that this crate has not made, and that may live on elsewhere.
    pub(crate) fn from_passed_in(socket: Socket, backlog: i32) -> io::Result<Self> {
        Ok(Self { passed_in: true, ..Self::from_socket(socket, backlog)? })
    }

    pub(crate) fn socket(&self) -> &Socket {
        match &self.backend {
            ListenerBackend::Readiness(fd) => fd.get_ref(),
            ListenerBackend::Ring(_, socket) => socket,
        }
    }

    /// Warns once, if no other worker has ever polled a task when this one has accepted many
    /// connections for itself.
    fn warn_of_idle_workers(&self) {
        let count = self.accepted.get();
        if count > LOOK_AFTER {
            return;
        }
        self.accepted.set(count + 1);
        let here = runtime::current_worker();
        if count == LOOK_AFTER && runtime::workers() > 1 {
            let metrics = runtime::metrics();
            let mut others = metrics.iter().enumerate().filter(|(worker, _)| *worker != here);
            if others.all(|(_, metrics)| metrics.polls == 0) {
                let idle = metrics.len() - 1;
                tracing::warn!(
                    worker = here,
                    idle,
                    "one worker serves all connections, and the others are idle: a task stays on the worker that spawned it; \
                     let TcpListener::serve accept on all workers"
                );
            }
        }
    }

    /// Takes an accepted connection onto this worker's driver.
    pub(crate) fn take_on(&self, socket: Arc<Socket>) -> io::Result<Stream<K>> {
        self.warn_of_idle_workers();
        let napi = sockopt::napi_of(&socket);
        Stream::accepted(socket, napi)
    }

    /// Accepts a connection without taking it onto this worker's driver. The address is that which
    /// accept has returned; a ring's returns none.
    pub(crate) async fn accept_socket(&self) -> io::Result<Accepted> {
        loop {
            let accepted = match &self.backend {
                ListenerBackend::Readiness(fd) => fd.io(Direction::Read, accept).await,
                ListenerBackend::Ring(ring, _) => ring.accept().await.map(by_ring),
            };
            if !is_gone(&accepted) {
                return accepted;
            }
        }
    }

    /// [`Listener::accept_socket`] for one task at a time.
    pub(crate) fn poll_accept_socket(&self, context: &mut Context<'_>) -> Poll<io::Result<Accepted>> {
        loop {
            let accepted = match &self.backend {
                ListenerBackend::Readiness(fd) => fd.poll_io(Direction::Read, context, accept),
                ListenerBackend::Ring(ring, _) => ring.poll_accept(context).map_ok(by_ring),
            };
            let accepted = ready!(accepted);
            if !is_gone(&accepted) {
                return Poll::Ready(accepted);
            }
        }
    }
}

pub(crate) fn accept(listener: &Socket) -> io::Result<Accepted> {
    // One call: socket2's takes two more for a socket that is non-blocking.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (socket, address) = rustix::net::acceptfrom_with(listener, flags)?;
    Ok((Arc::new(socket.into()), address.and_then(|address| address.try_into().ok())))
}

fn by_ring(accepted: OwnedFd) -> Accepted {
    (Arc::new(accepted.into()), None)
}

/// Gone before it was accepted: that is a client's doing, and no fault of the listener.
fn is_gone(accepted: &io::Result<Accepted>) -> bool {
    matches!(accepted, Err(error) if error.kind() == io::ErrorKind::ConnectionAborted)
}

impl<K> AsFd for Listener<K> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket().as_fd()
    }
}
