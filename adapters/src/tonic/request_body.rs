//! The body of a request on a server, whose errors are statuses.

use std::pin::Pin;
use std::task::{Context, Poll};

use ::hyper::body::{Body, Bytes, Frame, SizeHint};
use ::hyper::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::broken_connection::with_status;
use crate::hyper::BoxError;

pin_project! {
    /// A body whose errors tonic recognizes. A connection that breaks is `UNAVAILABLE`. Other servers of gRPC have
    /// `CANCELLED` for that, which tonic takes for the end of the requests: a handler would take half of them for all.
    #[derive(Debug)]
    pub(super) struct RequestBody<B> {
        #[pin]
        body: B,
    }
}

impl<B: Body<Data = Bytes, Error: Into<BoxError>>> Body for RequestBody<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.project().body.poll_frame(context).map_err(|error| with_status(error.into()))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A service whose requests have these bodies.
#[derive(Debug, Clone)]
pub(super) struct WithRequestBody<S>(pub(super) S);

impl<S, B, R> Service<Request<B>> for WithRequestBody<S>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> S::Future {
        self.0.call(request.map(|body| RequestBody { body }))
    }
}
