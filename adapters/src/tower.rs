//! tower: any service can be served.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use ::hyper::body::{Body, Incoming};
use ::hyper::{Request, Response, StatusCode};
use hyper_util::service::TowerToHyperService;
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::hyper::{BoxError, Listen, MakeService, Peer, Serve, serve as serve_hyper};

/// Serves HTTP/1 and HTTP/2 by a tower service, which is cloned for each request. Neither its
/// clones nor its futures need to be `Send`, except for the original.
///
/// tower's and tower-http's layers work. Timers and tasks of those that need tokio's runtime are on
/// its thread (the feature `tokio-context`): [`TimeoutLayer`] and [`RateLimitLayer`] keep theirs on
/// the worker, and so does `tower::buffer::Buffer::pair`, whose worker is given to
/// [`runtime::spawn`].
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

    /// A layer that answers with this status after the limit, as tower-http's does: for axum's
    /// routes, whose services have no errors.
    pub fn with_status_code(status: StatusCode, limit: Duration) -> StatusTimeoutLayer {
        StatusTimeoutLayer { status, limit }
    }
}

impl<S> Layer<S> for TimeoutLayer {
    type Service = Timeout<S>;

    fn layer(&self, service: S) -> Timeout<S> {
        Timeout { service, limit: self.0 }
    }
}

/// A service whose calls fail with [`TimedOut`] after a limit, by the worker's timers. tower's own
/// of this name needs tokio's runtime. Its futures are `Send` if the service's are: it can be a
/// layer of axum's routes.
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
        TimeoutFuture { answer: runtime::timeout(self.limit, self.service.call(request)), limit: self.limit }
    }
}

pin_project! {
    /// The future of [`Timeout`].
    #[derive(Debug)]
    pub struct TimeoutFuture<F> {
        #[pin]
        answer: runtime::Timeout<F>,
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
        Poll::Ready(match ready!(this.answer.poll(context)) {
            Ok(answer) => answer.map_err(Into::into),
            Err(_elapsed) => Err(Box::new(TimedOut { limit: *this.limit })),
        })
    }
}

/// A service took longer than its [`Timeout`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the service has not answered within {limit:?}")]
pub struct TimedOut {
    limit: Duration,
}

/// Wraps services in [`StatusTimeout`]: [`TimeoutLayer::with_status_code`].
#[derive(Debug, Clone, Copy)]
pub struct StatusTimeoutLayer {
    status: StatusCode,
    limit: Duration,
}

impl<S> Layer<S> for StatusTimeoutLayer {
    type Service = StatusTimeout<S>;

    fn layer(&self, service: S) -> StatusTimeout<S> {
        StatusTimeout { service, layer: *self }
    }
}

/// A service that answers with a status and an empty body after a limit, by the worker's timers.
/// What was called is dropped then. The limit ends with the head of the response: a body may take
/// longer.
#[derive(Debug, Clone)]
pub struct StatusTimeout<S> {
    service: S,
    layer: StatusTimeoutLayer,
}

impl<S, R, B> Service<R> for StatusTimeout<S>
where
    S: Service<R, Response = Response<B>>,
    B: Default,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = StatusTimeoutFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let StatusTimeoutLayer { status, limit } = self.layer;
        StatusTimeoutFuture { answer: runtime::timeout(limit, self.service.call(request)), status }
    }
}

pin_project! {
    /// The future of [`StatusTimeout`].
    #[derive(Debug)]
    pub struct StatusTimeoutFuture<F> {
        #[pin]
        answer: runtime::Timeout<F>,
        status: StatusCode,
    }
}

impl<F, B, E> Future for StatusTimeoutFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    B: Default,
{
    type Output = Result<Response<B>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Ok(answer) = ready!(this.answer.poll(context)) {
            return Poll::Ready(answer);
        }
        let mut response = Response::new(B::default());
        *response.status_mut() = *this.status;
        Poll::Ready(Ok(response))
    }
}

/// Lets services be called at most `calls` times in each span of time; the others wait. All
/// services that a layer and its clones have made, and their clones, share the limit, on all
/// workers. tower's own needs tokio's runtime, and a buffer around it to be shared.
///
/// ```
/// use std::time::Duration;
///
/// let layer = adapters::tower::RateLimitLayer::new(100, Duration::from_secs(1));
/// let app: axum::Router = axum::Router::new().layer(layer);
/// ```
#[derive(Debug, Clone)]
pub struct RateLimitLayer(Arc<Rate>);

#[derive(Debug)]
struct Rate {
    calls: u64,
    per: Duration,
    span: Mutex<Span>,
}

#[derive(Debug)]
struct Span {
    /// When the next one may begin.
    until: Instant,
    left: u64,
}

impl RateLimitLayer {
    /// At most `calls`, at least 1, in each span of this length. A span begins with its first call.
    pub fn new(calls: u64, per: Duration) -> Self {
        let span = Mutex::new(Span { until: runtime::time::now(), left: 0 });
        Self(Arc::new(Rate { calls: calls.max(1), per, span }))
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, service: S) -> RateLimit<S> {
        RateLimit { service, rate: Arc::clone(&self.0), sleep: None, admitted: false }
    }
}

impl Rate {
    /// Takes a call out of the span, or returns when the next one begins.
    fn take(&self) -> Result<(), Instant> {
        let mut span = self.span.lock().unwrap_or_else(PoisonError::into_inner);
        let now = runtime::time::now();
        if now >= span.until {
            *span = Span { until: now + self.per, left: self.calls };
        }
        span.left = span.left.checked_sub(1).ok_or(span.until)?;
        Ok(())
    }
}

/// A service of [`RateLimitLayer`].
#[derive(Debug)]
pub struct RateLimit<S> {
    service: S,
    rate: Arc<Rate>,
    sleep: Option<runtime::Sleep>,
    /// It has taken the call that comes.
    admitted: bool,
}

impl<S: Clone> Clone for RateLimit<S> {
    fn clone(&self) -> Self {
        RateLimitLayer(Arc::clone(&self.rate)).layer(self.service.clone())
    }
}

impl<S: Service<R>, R> Service<R> for RateLimit<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        ready!(self.service.poll_ready(context))?;
        while !self.admitted {
            if let Some(sleep) = &mut self.sleep {
                ready!(Pin::new(sleep).poll(context));
            }
            self.sleep = self.rate.take().err().map(runtime::sleep_until);
            self.admitted = self.sleep.is_none();
        }
        Poll::Ready(Ok(()))
    }

    /// # Panics
    /// Unless [`poll_ready`](Self::poll_ready) has returned that it is ready.
    fn call(&mut self, request: R) -> S::Future {
        assert!(
            std::mem::take(&mut self.admitted),
            "the service was called before it was ready: await `ready` first"
        );
        self.service.call(request)
    }
}
