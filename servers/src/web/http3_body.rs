//! The body of a request of HTTP/3.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use adapters::hyper::BoxError;
use bytes::{Buf, Bytes};
use h3::server::RequestStream;
use hyper::body::{Body, Frame, SizeHint};

use super::http3_frames::Checked;

/// What a client sends of a request: as much as its content-length says, if it has one.
pub struct Http3Body {
    stream: RequestStream<Checked<h3_quinn::RecvStream>, Bytes>,
    /// What came with the head.
    ahead: Option<Result<Bytes, BoxError>>,
    /// How much of the length that the client has named is to come.
    left: Option<u64>,
    has_ended: bool,
}

impl Http3Body {
    pub(super) async fn new(
        stream: RequestStream<Checked<h3_quinn::RecvStream>, Bytes>,
        length: Option<u64>,
    ) -> Self {
        let mut body = Self { stream, ahead: None, left: length, has_ended: false };
        // Tells whether there is a body at all.
        poll_fn(|task| {
            if let Poll::Ready(Some(part)) = body.poll_part(task) {
                body.ahead = Some(part);
            }
            Poll::Ready(())
        })
        .await;
        body
    }

    fn poll_part(&mut self, task: &mut Context<'_>) -> Poll<Option<Result<Bytes, BoxError>>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let received = ready!(self.stream.poll_recv_data(task));
        let part = received.map(|part| part.map(|mut part| part.copy_to_bytes(part.remaining())));
        Poll::Ready(match part {
            Ok(Some(part)) => match self.left.map(|left| left.checked_sub(part.len() as u64)) {
                Some(None) => Some(Err("the body is longer than its content-length".into())),
                left => {
                    self.left = left.flatten();
                    Some(Ok(part))
                }
            },
            Ok(None) => {
                self.has_ended = true;
                let is_short = self.left.is_some_and(|left| left > 0);
                is_short.then(|| Err("the body is shorter than its content-length".into()))
            }
            Err(error) => Some(Err(error.into())),
        })
    }
}

impl Body for Http3Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(part) = self.ahead.take() {
            return Poll::Ready(Some(part.map(Frame::data)));
        }
        self.poll_part(task).map(|part| part.map(|part| part.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.ahead.is_none() && (self.has_ended || self.left == Some(0))
    }

    fn size_hint(&self) -> SizeHint {
        let ahead = self.ahead.as_ref().and_then(|part| part.as_ref().ok()).map_or(0, Bytes::len) as u64;
        match self.left {
            Some(left) => SizeHint::with_exact(ahead + left),
            None if self.has_ended => SizeHint::with_exact(ahead),
            None => SizeHint::new(),
        }
    }
}

impl fmt::Debug for Http3Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http3Body").field("left", &self.left).finish_non_exhaustive()
    }
}
