//! A connection's service and its responses, as hyper gets them.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use ::hyper::body::{Body, Buf, Frame, SizeHint};
use ::hyper::header::{CONNECTION, UPGRADE};
use ::hyper::service::Service;
use ::hyper::{Method, Request, Response, Version};
use pin_project_lite::pin_project;

use super::file_body::{poll_for_socket, stands_for_file};
use super::http_socket::SocketUsage;
use super::idle::{InProgress, Requests};
use super::listen::BoxError;

/// Counts the requests in progress, notes the last one, and lets the kernel send files where the
/// connection allows it.
pub(super) struct ConnectionService<S> {
    service: S,
    requests: Rc<Requests>,
    socket: Rc<SocketUsage>,
    encrypted: bool,
}

impl<S> ConnectionService<S> {
    pub(super) fn new(service: S, requests: Rc<Requests>, socket: Rc<SocketUsage>, encrypted: bool) -> Self {
        Self { service, requests, socket, encrypted }
    }
}

/// Whether the client of a connection of HTTP/1 sends nothing after the head of this request: it
/// has no body, and says that it is the last (RFC 9112, section 9.6).
fn is_last(request: &Request<impl Body>) -> bool {
    let headers = request.headers();
    let closes = match headers.get(CONNECTION) {
        Some(options) => options.as_bytes().eq_ignore_ascii_case(b"close"),
        None => request.version() == Version::HTTP_10,
    };
    // After an upgrade the client goes on in another protocol.
    let upgrades = *request.method() == Method::CONNECT || headers.contains_key(UPGRADE);
    closes && !upgrades && request.body().is_end_stream()
}

impl<S, R, B> Service<Request<R>> for ConnectionService<S>
where
    S: Service<Request<R>, Response = Response<B>>,
    R: Body,
    B: Body<Error: Into<BoxError>>,
{
    type Response = Response<ResponseBody<B>>;
    type Error = S::Error;
    type Future = Responding<S::Future>;

    fn call(&self, request: Request<R>) -> Self::Future {
        let is_http2 = request.version() == Version::HTTP_2;
        // A client of TLS may answer the end of the session.
        self.socket.has_last_request.set(!is_http2 && !self.encrypted && is_last(&request));
        Responding {
            is_connect: is_http2 && *request.method() == Method::CONNECT,
            takes_files: !is_http2 && !self.encrypted,
            in_progress: Some(self.requests.begin()),
            response: self.service.call(request),
        }
    }
}

pin_project! {
    pub(super) struct Responding<F> {
        #[pin]
        response: F,
        // None after its end.
        in_progress: Option<InProgress>,
        is_connect: bool,
        takes_files: bool,
    }
}

impl<F, B, E> Future for Responding<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<ResponseBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let response = ready!(this.response.poll(context))?;
        let in_progress = this.in_progress.take();
        if let Some(tunnel) =
            in_progress.as_ref().filter(|_| *this.is_connect && response.status().is_success())
        {
            tunnel.set_tunnel();
        }
        let takes_files = *this.takes_files;
        Poll::Ready(Ok(response.map(|body| ResponseBody { body, takes_files, in_progress })))
    }
}

pin_project! {
    pub(super) struct ResponseBody<B> {
        #[pin]
        body: B,
        takes_files: bool,
        // Counts until it is dropped.
        in_progress: Option<InProgress>,
    }
}

impl<B: Body<Error: Into<BoxError>>> Body for ResponseBody<B> {
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        let this = self.project();
        if !*this.takes_files {
            return this.body.poll_frame(context).map_err(Into::into);
        }
        let (polled, gave_file) = poll_for_socket(|| this.body.poll_frame(context));
        let passes_file_on = match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                frame.data_ref().is_some_and(|data| stands_for_file(data.chunk()))
            }
            _ => false,
        };
        if gave_file && !passes_file_on {
            let problem = "a layer reads or changes a FileBody that the kernel is to send (sent_by_kernel)";
            return Poll::Ready(Some(Err(problem.into())));
        }
        polled.map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
