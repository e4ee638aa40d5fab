//! tower: any service can be served.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use ::hyper::body::{Body, Incoming};
use ::hyper::{Request, Response};
use hyper_util::service::TowerToHyperService;
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::hyper::{BoxError, Listen, MakeService, Peer, Serve, serve as serve_hyper};

/// Serves HTTP/1 and HTTP/2 by a tower service, which is cloned for each request. Neither its clones nor its futures
/// need to be `Send`, except for the original.
///
/// tower's layers work if they need no timer: limits of concurrency, load shedding, filters, retries, buffers made by
/// hand. tower's `timeout` and `limit::rate` and tower-http's `timeout` use tokio's timers, which exist only in its
/// runtime: [`TimeoutLayer`] is this crate's own.
#[track_caller]
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

/// Wraps services in [`Timeout`].
#[derive(Debug, Clone, Copy)]
pub struct TimeoutLayer(Duration);

impl TimeoutLayer {
    /// A layer with this limit.
    pub fn new(limit: Duration) -> Self {
        Self(limit)
    }
}

impl<S> Layer<S> for TimeoutLayer {
    type Service = Timeout<S>;

    fn layer(&self, service: S) -> Timeout<S> {
        Timeout { service, limit: self.0 }
    }
}

/// A service whose calls fail with [`TimedOut`] after a limit, by the worker's timers. tower's own of this name needs
/// tokio's runtime. Its futures are `Send` if the service's are: it can be a layer of axum's routes.
#[derive(Debug, Clone)]
pub struct Timeout<S> {
    service: S,
    limit: Duration,
}

impl<S, R> Service<R> for Timeout<S>
where
    S: Service<R, Error: Into<BoxError>>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = TimeoutFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.service.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: R) -> Self::Future {
        TimeoutFuture {
            answer: self.service.call(request),
            sleep: runtime::sleep(self.limit),
            limit: self.limit,
        }
    }
}

pin_project! {
    /// The future of [`Timeout`].
    #[derive(Debug)]
    pub struct TimeoutFuture<F> {
        #[pin]
        answer: F,
        sleep: runtime::Sleep,
        limit: Duration,
    }
}

impl<F, T, E> Future for TimeoutFuture<F>
where
    F: Future<Output = Result<T, E>>,
    E: Into<BoxError>,
{
    type Output = Result<T, BoxError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(answer) = this.answer.poll(context) {
            return Poll::Ready(answer.map_err(Into::into));
        }
        ready!(Pin::new(this.sleep).poll(context));
        Poll::Ready(Err(Box::new(TimedOut { limit: *this.limit })))
    }
}

/// A service took longer than its [`Timeout`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the service has not answered within {limit:?}")]
pub struct TimedOut {
    limit: Duration,
}
