//! The listeners that a server takes, whom its connections come from, and what makes their
//! services.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::panic::Location;
use std::sync::OnceLock;

use ::hyper::body::{Body, Incoming};
use ::hyper::service::Service;
use ::hyper::{Request, Response};
use net::{Arrival, LateAddress, Serving, Stream, Tcp, TcpListener, Unix, UnixListener};

/// An error of a service, of a body or of a connection.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The peer of a connection that is being served.
#[derive(Clone)]
pub struct Peer {
    /// Asked for when somebody wants it: a system call for each connection.
    address: OnceLock<Option<SocketAddr>>,
    ask: Option<LateAddress>,
    encrypted: bool,
}

impl Peer {
    /// The client's address; `None` on a Unix domain socket, and if the connection has broken
    /// before it was first asked for. A clone that was made before asks for itself.
    pub fn address(&self) -> Option<SocketAddr> {
        *self.address.get_or_init(|| self.ask.as_ref()?.peer_addr().ok())
    }

    /// Whether the connection is encrypted (`Serve::tls`).
    pub fn is_encrypted(&self) -> bool {
        self.encrypted
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer").field("address", &self.address()).field("encrypted", &self.encrypted).finish()
    }
}

/// A listener of [`net`]: [`TcpListener`] or [`UnixListener`].
pub trait Listen: sealed::Listen {}

impl Listen for TcpListener {}
impl Listen for UnixListener {}

pub(super) mod sealed {
    use super::*;

    pub trait Listen {
        type Kind: 'static;
        /// Whether its connections are TCP's.
        const IS_TCP: bool;

        /// For the application's line `caller`. Accepts nothing before [`Serving::resume`].
        fn serve_paused<H, F>(self, caller: &'static Location<'static>, handler: H) -> io::Result<Serving>
        where
            H: Fn(Stream<Self::Kind>, Arrival) -> F + Clone + Send + 'static,
            F: Future<Output = ()> + 'static;

        fn peer(stream: &Stream<Self::Kind>, arrival: Arrival, encrypted: bool) -> Peer;
    }

    impl Listen for TcpListener {
        type Kind = Tcp;
        const IS_TCP: bool = true;

        fn serve_paused<H, F>(self, caller: &'static Location<'static>, handler: H) -> io::Result<Serving>
        where
            H: Fn(Stream<Tcp>, Arrival) -> F + Clone + Send + 'static,
            F: Future<Output = ()> + 'static,
        {
            self.served_at(caller).serve_paused_arrivals(handler)
        }

        fn peer(stream: &Stream<Tcp>, arrival: Arrival, encrypted: bool) -> Peer {
            let ask = arrival.peer.is_none().then(|| stream.late_peer_addr());
            let address = arrival.peer.map_or_else(OnceLock::new, |peer| OnceLock::from(Some(peer)));
            Peer { address, ask, encrypted }
        }
    }

    impl Listen for UnixListener {
        type Kind = Unix;
        const IS_TCP: bool = false;

        fn serve_paused<H, F>(self, caller: &'static Location<'static>, handler: H) -> io::Result<Serving>
        where
            H: Fn(Stream<Unix>, Arrival) -> F + Clone + Send + 'static,
            F: Future<Output = ()> + 'static,
        {
            self.served_at(caller).serve_paused_arrivals(handler)
        }

        fn peer(_: &Stream<Unix>, _: Arrival, encrypted: bool) -> Peer {
            Peer { address: OnceLock::new(), ask: None, encrypted }
        }
    }
}

/// Makes the service of each connection, on the worker that serves it. Closures `Fn(&Peer) -> S`
/// do.
pub trait MakeService: Send + Sync + 'static {
    /// Answers the requests of one connection. Neither it nor its futures need to be `Send`.
    type Service: Service<
            Request<Incoming>,
            Response = Response<Self::Body>,
            Error = Self::Error,
            Future = Self::Future,
        > + 'static;
    /// What it answers with.
    type Body: Body<Error: Into<BoxError>> + 'static;
    /// Its errors close the connection.
    type Error: Into<BoxError>;
    /// An answer in the making.
    type Future: Future<Output = Result<Response<Self::Body>, Self::Error>> + 'static;

    /// Makes the service for a connection from `peer`.
    fn make(&self, peer: &Peer) -> Self::Service;
}

impl<M, S, B> MakeService for M
where
    M: Fn(&Peer) -> S + Send + Sync + 'static,
    S: Service<Request<Incoming>, Response = Response<B>, Future: 'static, Error: Into<BoxError>> + 'static,
    B: Body<Error: Into<BoxError>> + 'static,
{
    type Service = S;
    type Body = B;
    type Error = S::Error;
    type Future = S::Future;

    fn make(&self, peer: &Peer) -> S {
        self(peer)
    }
}
