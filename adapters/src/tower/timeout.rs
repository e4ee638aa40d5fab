//! A limit on how long a service may take.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::hyper::BoxError;

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
