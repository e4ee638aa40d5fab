//! Deadlines of requests: the header `grpc-timeout`, the layer of servers, and bodies that end at
//! their deadline.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use ::hyper::body::{Body, Bytes, Frame, SizeHint};
use ::tonic::Status;
use http::{HeaderMap, HeaderValue, Request, Response};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::broken_connection::with_status;
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
        let asked = requested_time(request.headers());
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

/// Who reads the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reader {
    /// The client of a server gets a status in trailers.
    Peer,
    /// A handler or a caller here gets a status as an error, also if the connection breaks. Other
    /// servers of gRPC have `CANCELLED` for a connection that breaks, which tonic takes for the end
    /// of the requests: a handler would take half of them for all.
    Here,
}

pin_project! {
    /// A body of gRPC. It ends with the status `DEADLINE_EXCEEDED` at its deadline, if it has one,
    /// and errors become statuses.
    #[derive(Debug)]
    pub struct DeadlineBody<B> {
        #[pin]
        body: B,
        sleep: Option<runtime::Sleep>,
        reader: Reader,
        ended: bool,
    }
}

impl<B> DeadlineBody<B> {
    pub(super) fn new(body: B, sleep: Option<runtime::Sleep>, reader: Reader) -> Self {
        Self { body, sleep, reader, ended: false }
    }
}

pub(super) fn deadline_exceeded() -> Status {
    Status::deadline_exceeded("the request's deadline has passed")
}

impl<B> Body for DeadlineBody<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.project();
        if *this.ended {
            return Poll::Ready(None);
        }
        if let Some(sleep) = this.sleep
            && Pin::new(sleep).poll(context).is_ready()
        {
            *this.ended = true;
            return Poll::Ready(match this.reader {
                Reader::Peer => {
                    let mut trailers = http::HeaderMap::new();
                    // Fails only if the message can't stand in a header; this constant one can.
                    let added = deadline_exceeded().add_header(&mut trailers);
                    Some(added.map(|()| Frame::trailers(trailers)).map_err(Into::into))
                }
                Reader::Here => Some(Err(deadline_exceeded().into())),
            });
        }
        this.body.poll_frame(context).map_err(|error| match this.reader {
            Reader::Peer => error.into(),
            Reader::Here => with_status(error.into()),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.sleep.is_some() { SizeHint::default() } else { self.body.size_hint() }
    }
}

const GRPC_TIMEOUT: &str = "grpc-timeout";

/// The time that a request has, as its client says. `None` if it doesn't, or says it wrongly.
///
/// Format: at most eight digits and a unit, one of `H M S m u n` (gRPC over HTTP/2, "Timeout").
pub(super) fn requested_time(headers: &HeaderMap<HeaderValue>) -> Option<Duration> {
    let text = headers.get(GRPC_TIMEOUT)?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_and_a_unit_are_a_time_and_anything_else_is_none() {
        let parsed = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(GRPC_TIMEOUT, HeaderValue::from_static(text));
            requested_time(&headers)
        };
        assert_eq!(parsed("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        assert_eq!(parsed("2M"), Some(Duration::from_secs(120)));
        assert_eq!(parsed("3S"), Some(Duration::from_secs(3)));
        assert_eq!(parsed("0m"), Some(Duration::ZERO));
        assert_eq!(parsed("5u"), Some(Duration::from_micros(5)));
        assert_eq!(parsed("7n"), Some(Duration::from_nanos(7)));
        for wrong in ["", "S", "1", "1s", "+1S", "-1S", "123456789S", "1 S"] {
            assert_eq!(parsed(wrong), None, "{wrong:?}");
        }
        assert_eq!(requested_time(&HeaderMap::new()), None);
    }
}
