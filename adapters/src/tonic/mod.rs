//! gRPC by tonic: servers on [`net`]'s listeners, and client channels.
//!
//! Generated servers and clients are used as they are. [`serve`] replaces
//! `tonic::transport::Server`, and [`Channel`] replaces `tonic::transport::Channel`; tonic's
//! feature `transport`, which needs tokio's runtime, is not used.
//!
//! Methods of services are `Send` futures, also here: what is not `Send` goes into a task of
//! `runtime::spawn`.

mod broken_connection;
mod channel;
mod deadline;

use std::task::{Context, Poll};

use ::hyper::{Request, Response};
use ::tonic::service::Routes;
use tower_layer::Layer;
use tower_service::Service;

pub use self::channel::{Channel, Responding};
use self::deadline::Reader;
pub use self::deadline::{Deadline, DeadlineBody, DeadlineLayer};
use crate::hyper::{Listen, MakeService, Serve};

/// Serves gRPC services on a listener, each connection on the worker that owns its NAPI.
///
/// The deadlines of clients are kept ([`DeadlineLayer`]). tower's layers go around services or
/// around `routes.into_axum_router()`. The result is awaited or [started](Serve::start); the server
/// speaks HTTP/2, by prior knowledge or by TLS. A stream of requests whose connection breaks ends
/// with the status `UNAVAILABLE`.
///
/// Let the acceptor that `Serve::tls` takes offer `h2` (ALPN), best nothing else: the server does
/// not start without it, and closes connections of clients that have not chosen it.
#[track_caller]
pub fn serve<L: Listen>(listener: L, routes: Routes) -> Serve<L, impl MakeService> {
    let router = routes.prepare().into_axum_router();
    let serve = crate::tower::serve(listener, DeadlineLayer::new().layer(StatusOfBrokenConnection(router)));
    #[cfg(feature = "tls")]
    let serve = serve.require_h2();
    serve
}

/// A service whose handlers get the status `UNAVAILABLE` if the connection breaks while they read a
/// request's body.
#[derive(Debug, Clone)]
struct StatusOfBrokenConnection<S>(S);

impl<S, B, R> Service<Request<B>> for StatusOfBrokenConnection<S>
where
    S: Service<Request<DeadlineBody<B>>, Response = Response<R>>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> S::Future {
        self.0.call(request.map(|body| DeadlineBody::new(body, None, Reader::Here)))
    }
}
