//! The listener that TCP and Unix domain sockets have in common.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::Location;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use runtime::__net::RingListener;
use runtime::io::{AsyncFd, Direction, OnItsWorker, SourceKind};
use socket2::{SockAddr, Socket};

use crate::lone_worker::LoneWorker;
use crate::stream::Stream;

/// The default backlog. The kernel caps it at `net.core.somaxconn`.
pub(crate) const BACKLOG: i32 = 4096;

/// An accepted connection, and its peer's address if accept has returned it.
pub(crate) type Accepted = (Arc<Socket>, Option<SockAddr>);

/// A listening socket, of kind [`Tcp`](crate::Tcp) or [`Unix`](crate::Unix), on its worker's
/// driver.
#[derive(Debug)]
pub struct Listener<K> {
    on_its_worker: OnItsWorker,
    backend: ListenerBackend,
    backlog: i32,
    passed_in: bool,
    connection_limit: Option<usize>,
    caller: Option<&'static Location<'static>>,
    lone_worker: LoneWorker,
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
            lone_worker: LoneWorker::default(),
            kind: PhantomData,
        })
    }

    /// Lets [`serve`](#method.serve) handle at most so many connections at a time, at least 1, on
    /// all workers together. A connection holds its place from before its handler is called until
    /// the handler has ended. Without a place it waits: one for each worker is accepted, on a ring
    /// up to 64 more, the others are in the backlog. A graceful stop closes those that find no
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

    pub(crate) fn caller(&self) -> Option<&'static Location<'static>> {
        self.caller
    }

    pub(crate) fn connection_limit(&self) -> Option<usize> {
        self.connection_limit
    }

    /// Takes the socket off this worker's driver. Also returns the connections that a ring has
    /// accepted ahead: it has none before the first accept.
    pub(crate) fn into_socket(self) -> io::Result<(Socket, Vec<Socket>)> {
        match self.backend {
            ListenerBackend::Readiness(fd) => Ok((fd.into_inner()?, Vec::new())),
            ListenerBackend::Ring(ring, socket) => {
                let ahead = ring.stop().into_iter().map(Socket::from).collect();
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

    /// Whether somebody else may have the socket, who accepts what waits in its backlog.
    pub(crate) fn is_passed_in(&self) -> bool {
        self.passed_in
    }

    pub(crate) fn backlog(&self) -> i32 {
        self.backlog
    }

    pub(crate) fn socket(&self) -> &Socket {
        match &self.backend {
            ListenerBackend::Readiness(fd) => fd.get_ref(),
            ListenerBackend::Ring(_, socket) => socket,
        }
    }

    /// Takes an accepted connection onto this worker's driver.
    pub(crate) fn take_on(&self, socket: Arc<Socket>) -> io::Result<Stream<K>> {
        self.lone_worker.accepted();
        Stream::from_socket(socket)
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
    let (socket, address) = listener.accept()?;
    socket.set_nonblocking(true)?;
    Ok((Arc::new(socket), Some(address)))
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
