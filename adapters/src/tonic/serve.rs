//! gRPC servers.

use ::tonic::service::Routes;
use tower_layer::Layer;

use super::deadline::DeadlineLayer;
use super::request_body::WithRequestBody;
use crate::hyper::{Listen, MakeService, Serve};

/// Serves gRPC services on a listener, each connection on the worker that owns its NAPI.
///
/// The deadlines of clients are kept ([`DeadlineLayer`]). tower's layers go around services or around
/// `routes.into_axum_router()`. The result is awaited or [started](Serve::start); the server speaks HTTP/2, by prior
/// knowledge or by TLS. A stream of requests whose connection breaks ends with the
/// status `UNAVAILABLE`.
///
/// Let the acceptor that `Serve::tls` takes offer `h2` (ALPN), best nothing else: the server does not start without it,
/// and closes connections of clients that have not chosen it.
pub fn serve<L: Listen>(listener: L, routes: Routes) -> Serve<L, impl MakeService> {
    let router = routes.prepare().into_axum_router();
    let serve = crate::tower::serve(listener, DeadlineLayer::new().layer(WithRequestBody(router)));
    #[cfg(feature = "tls")]
    let serve = serve.require_h2();
    serve
}
