//! What responses carry.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use adapters::hyper::{BoxError, FileBody};
use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};

/// A response's body. Its variants are polled without an allocation, which boxed bodies would need.
#[derive(Debug)]
pub enum ResponseBody {
    /// Bytes that are in memory; empty after they were taken.
    Bytes(Bytes),
    /// A part of a file.
    File(FileBody),
    /// Several, one after the other.
    Parts(VecDeque<ResponseBody>),
    /// The response of an upstream.
    Upstream(super::proxy::UpstreamBody),
}

impl ResponseBody {
    pub fn empty() -> Self {
        Self::Bytes(Bytes::new())
    }
}

impl From<Bytes> for ResponseBody {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<Vec<u8>> for ResponseBody {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes.into())
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Bytes(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Bytes(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::File(body) => Pin::new(body).poll_frame(context).map_err(Into::into),
            Self::Parts(parts) => loop {
                let Some(part) = parts.front_mut() else { return Poll::Ready(None) };
                match ready!(Pin::new(part).poll_frame(context)) {
                    Some(frame) => return Poll::Ready(Some(frame)),
                    None => drop(parts.pop_front()),
                }
            },
            Self::Upstream(body) => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Bytes(bytes) => bytes.is_empty(),
            Self::File(body) => body.is_end_stream(),
            Self::Parts(parts) => parts.iter().all(Self::is_end_stream),
            Self::Upstream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Bytes(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::File(body) => body.size_hint(),
            Self::Parts(parts) => {
                SizeHint::with_exact(parts.iter().map(|part| part.size_hint().lower()).sum())
            }
            Self::Upstream(body) => body.size_hint(),
        }
    }
}

/// A request's body.
#[derive(Debug)]
pub enum ClientBody {
    /// By HTTP/1 or HTTP/2.
    Hyper(Incoming),
    #[cfg(feature = "http3")]
    Http3(Box<super::http3_body::Http3Body>),
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Hyper(body) => Pin::new(body).poll_frame(context).map_err(Into::into),
            #[cfg(feature = "http3")]
            Self::Http3(body) => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Hyper(body) => body.is_end_stream(),
            #[cfg(feature = "http3")]
            Self::Http3(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Hyper(body) => body.size_hint(),
            #[cfg(feature = "http3")]
            Self::Http3(body) => body.size_hint(),
        }
    }
}

/// A response with a status, and its number and name as text.
pub fn error_response(status: StatusCode) -> Response<ResponseBody> {
    let mut response = Response::new(Bytes::from(format!("{status}\n")).into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// 405, with the methods that there are.
pub fn method_not_allowed(allowed: &'static str) -> Response<ResponseBody> {
    let mut response = error_response(StatusCode::METHOD_NOT_ALLOWED);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}
