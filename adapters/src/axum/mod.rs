//! axum's routers on [`net`]'s listeners.
//!
//! A server on tokio becomes one on Lull by its attribute, its listener and `serve`; routes,
//! extractors, state and layers stay as they are:
//!
//! ```no_run
//! use axum::Router;
//! use axum::routing::get;
//!
//! #[runtime::main]
//! async fn main() -> std::io::Result<()> {
//!     let app = Router::new().route("/", get(async || "hello"));
//!     let listener = net::TcpListener::bind("127.0.0.1:8080")?;
//!     adapters::axum::serve(listener, app).await
//! }
//! ```
//!
//! # `Send`
//! axum's handlers are `Send` futures, also here. They run on the worker of their connection and
//! stay on it, but what they hold across an `.await` has to be `Send`: no `Rc`, and no stream of
//! [`net`]. Put such work into a task, `runtime::spawn`, and await its handle: that is `Send` if
//! the task's result is.
//!
//! # What uses tokio's runtime
//! `axum::extract::ws`, `Sse::keep_alive` and tower-http's `TimeoutLayer` use tokio's tasks and
//! timers, on the thread of `tokio_context`. `adapters::axum::ws` (feature `ws`)
//! and [`tower::TimeoutLayer`](crate::tower::TimeoutLayer) do the same on the connection's worker.

#[cfg(feature = "ws")]
pub mod ws;

use std::convert::Infallible;
use std::net::{Ipv6Addr, SocketAddr};
use std::task::{Context, Poll, Waker};

use ::axum::Router;
use ::axum::body::Body;
use ::axum::extract::Request;
use ::axum::extract::connect_info::IntoMakeServiceWithConnectInfo;
use ::axum::response::Response;
use ::axum::routing::{IntoMakeService, MethodRouter};
use ::hyper::body::Incoming;
use hyper_util::service::TowerToHyperService;
use tower_service::Service;

use crate::hyper::{Listen, MakeService, Peer, Serve, serve as serve_hyper};

/// Serves an application on a listener, as `axum::serve` does: HTTP/1 and HTTP/2, each connection
/// on the worker that owns its NAPI.
///
/// `app` is a `Router`, a `MethodRouter`, or what `into_make_service` or
/// `into_make_service_with_connect_info::<SocketAddr>` makes of one: then handlers can extract
/// `ConnectInfo`. On a Unix domain socket its address is `[::]:0`, and
/// so is that of a connection that has broken before it is served.
///
/// The result is awaited, after [`with_graceful_shutdown`](Serve::with_graceful_shutdown) perhaps,
/// or [started](Serve::start).
#[track_caller]
pub fn serve<L: Listen, A: App>(listener: L, app: A) -> Serve<L, impl MakeService> {
    serve_hyper(listener, move |peer: &Peer| TowerToHyperService::new(app.service(peer)))
}

/// An axum application that [`serve`] takes.
pub trait App: sealed::App {}

impl App for Router {}
impl App for MethodRouter {}
impl<S> App for IntoMakeService<S> where Self: sealed::App {}
impl<S> App for IntoMakeServiceWithConnectInfo<S, SocketAddr> where Self: sealed::App {}

mod sealed {
    use super::*;

    pub trait App: Send + Sync + 'static {
        type Service: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible, Future: 'static>
            + Clone
            + 'static;

        fn service(&self, peer: &Peer) -> Self::Service;
    }
}

impl sealed::App for Router {
    type Service = Router;

    fn service(&self, _: &Peer) -> Router {
        self.clone()
    }
}

impl sealed::App for MethodRouter {
    type Service = MethodRouter;

    fn service(&self, _: &Peer) -> MethodRouter {
        self.clone()
    }
}

/// A service that makes the services of connections of a target. axum's are ready at once.
fn make<M, T>(maker: &M, target: T) -> M::Response
where
    M: Service<T, Error = Infallible, Future: Unpin> + Clone,
{
    let mut context = Context::from_waker(Waker::noop());
    match std::pin::Pin::new(&mut maker.clone().call(target)).poll(&mut context) {
        Poll::Ready(Ok(service)) => service,
        Poll::Ready(Err(never)) => match never {},
        Poll::Pending => unreachable!("axum makes the service of a connection without waiting"),
    }
}

impl<S> sealed::App for IntoMakeService<S>
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible, Future: 'static>
        + Clone
        + Send
        + Sync
        + 'static,
{
    type Service = S;

    fn service(&self, _: &Peer) -> S {
        make(self, ())
    }
}

impl<S> sealed::App for IntoMakeServiceWithConnectInfo<S, SocketAddr>
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible, Future: 'static>
        + Clone
        + Send
        + Sync
        + 'static,
{
    type Service = <Self as Service<SocketAddr>>::Response;

    fn service(&self, peer: &Peer) -> Self::Service {
        make(self, peer.address().unwrap_or(SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))))
    }
}
