//! tower: any service can be served.

use std::time::Duration;

use ::hyper::body::{Body, Incoming};
use ::hyper::{Request, Response};
use hyper_util::service::TowerToHyperService;
use tower_service::Service;

use crate::hyper::{BoxError, Listen, MakeService, Peer, Serve, serve as serve_hyper};

mod timeout;

pub use self::timeout::{TimedOut, Timeout, TimeoutLayer};

/// Serves HTTP/1 and HTTP/2 by a tower service, which is cloned for each request. Neither its clones nor its futures
/// need to be `Send`, except for the original.
///
/// tower's layers work if they need no timer: limits of concurrency, load shedding, filters, retries, buffers made by
/// hand. tower's `timeout` and `limit::rate` and tower-http's `timeout` use tokio's timers, which exist only in its
/// runtime: [`TimeoutLayer`] is this crate's own.
pub fn serve<L, S, B>(listener: L, service: S) -> Serve<L, impl MakeService>
where
    L: Listen,
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Future: 'static,
    S::Error: Into<BoxError> + 'static,
    B: Body<Error: Into<BoxError>> + 'static,
{
    serve_hyper(listener, move |_: &Peer| TowerToHyperService::new(service.clone()))
}

/// A limit on how long a service may take, as a layer.
pub fn timeout(limit: Duration) -> TimeoutLayer {
    TimeoutLayer::new(limit)
}
