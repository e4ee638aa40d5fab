//! Deadlines of requests, on servers.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use ::hyper::body::{Body, Bytes};
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::deadline_body::{DeadlineBody, Reader, deadline_exceeded};
use super::grpc_timeout;
use crate::hyper::BoxError;

/// Ends requests at the deadline that their clients set (`grpc-timeout`), or at a limit of the
/// server, whichever is sooner, with the status `DEADLINE_EXCEEDED`. [`serve`](super::serve) has it
/// without a limit.
///
/// A streamed answer is ended when hyper asks it for more. While a client takes nothing (its HTTP/2
/// window is used up) hyper does not ask, and the answer is kept until the client goes on or goes
/// away.
#[derive(Debug, Clone, Copy, Default)]
pub struct DeadlineLayer {
    limit: Option<Duration>,
}

impl DeadlineLayer {
    /// A layer that knows only the clients' deadlines.
    pub fn new() -> Self {
        Self::default()
    }

    /// A layer that ends each request after `limit`, or the client's deadline if that is sooner.
    pub fn with_limit(limit: Duration) -> Self {
        Self { limit: Some(limit) }
    }
}

impl<S> Layer<S> for DeadlineLayer {
    type Service = Deadline<S>;

    fn layer(&self, service: S) -> Deadline<S> {
        Deadline { service, limit: self.limit }
    }
}

/// A service with the deadlines of [`DeadlineLayer`]. They cover streamed answers, too.
#[derive(Debug, Clone)]
pub struct Deadline<S> {
    service: S,
    limit: Option<Duration>,
}

impl<S, R, B> Service<Request<R>> for Deadline<S>
where
    S: Service<Request<R>, Response = Response<B>>,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Default,
{
    type Response = Response<DeadlineBody<B>>;
    type Error = S::Error;
    type Future = DeadlineFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<R>) -> Self::Future {
        let asked = grpc_timeout::read(request.headers());
        let time = [asked, self.limit].into_iter().flatten().min();
        let sleep = time.map(runtime::sleep);
        DeadlineFuture { answer: self.service.call(request), sleep }
    }
}

pin_project! {
    /// The future of [`Deadline`].
    #[derive(Debug)]
    pub struct DeadlineFuture<F> {
        #[pin]
        answer: F,
        sleep: Option<runtime::Sleep>,
    }
}

impl<F, B, E> Future for DeadlineFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    B: Default,
{
    type Output = Result<Response<DeadlineBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(answer) = this.answer.poll(context) {
            let sleep = this.sleep.take();
            return Poll::Ready(
                answer.map(|response| response.map(|body| DeadlineBody::new(body, sleep, Reader::Peer))),
            );
        }
        if let Some(sleep) = this.sleep
            && Pin::new(sleep).poll(context).is_ready()
        {
            let response = deadline_exceeded().into_http::<B>();
            return Poll::Ready(Ok(response.map(|body| DeadlineBody::new(body, None, Reader::Peer))));
        }
        Poll::Pending
    }
}
