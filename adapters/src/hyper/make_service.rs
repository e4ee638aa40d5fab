//! What makes the service of a connection.

use ::hyper::body::{Body, Incoming};
use ::hyper::service::Service;
use ::hyper::{Request, Response};

use super::BoxError;
use super::listen::Peer;

/// Makes the service of each connection, on the worker that serves it. Closures `Fn(&Peer) -> S` do.
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
