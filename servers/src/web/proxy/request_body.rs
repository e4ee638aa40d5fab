//! The body of a forwarded request.

use std::cell::Cell;
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use adapters::hyper::BoxError;
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use super::error::Refusal;
use crate::web::body::ClientBody;
use crate::web::chunked_end::ChunkedEnd;

/// How much of a body is read before an upstream is chosen, if it is there.
const READ_AHEAD: usize = 64 << 10;

/// What the client sends, as it comes.
#[derive(Debug)]
pub(super) enum RequestBody {
    /// A request without a body can be sent again.
    Empty,
    Streamed(StreamedBody),
}

impl RequestBody {
    /// Returns the body, and how much of it was sent if it has any.
    /// A body that is longer than `limit` bytes is broken off.
    pub(super) fn new(
        incoming: ClientBody,
        limit: u64,
        end: Option<ChunkedEnd>,
    ) -> (Self, Option<Rc<Upload>>) {
        if incoming.is_end_stream() {
            return (Self::Empty, None);
        }
        let upload = Rc::new(Upload {
            last_part: Cell::new(runtime::time::now()),
            state: Cell::new(UploadState::Sending),
            answered: Cell::default(),
        });
        (
            Self::Streamed(StreamedBody {
                incoming,
                ahead: VecDeque::new(),
                left: limit,
                end,
                upload: Rc::clone(&upload),
            }),
            Some(upload),
        )
    }

    /// Waits for the first part of the body, for at most `limit`, and takes what else has come.
    ///
    /// It doesn't wait for more: the client may wait for an answer to what it has sent.
    ///
    /// # Errors
    /// If the client sends nothing or too much, or breaks its body off.
    pub(super) async fn read_ahead(&mut self, limit: Duration) -> Result<(), Refusal> {
        let Self::Streamed(body) = self else { return Ok(()) };
        let mut length = 0;
        let reading = std::future::poll_fn(|context| {
            while length < READ_AHEAD {
                match body.poll_part(context) {
                    Poll::Ready(Some(Ok(part))) => {
                        length += part.len();
                        body.ahead.push_back(part);
                    }
                    Poll::Ready(Some(Err(_))) => return Poll::Ready(Err(body.upload.refusal())),
                    Poll::Pending if length == 0 => return Poll::Pending,
                    Poll::Pending | Poll::Ready(None) => break,
                }
            }
            Poll::Ready(Ok(()))
        });
        runtime::timeout(limit, reading).await.unwrap_or(Err(Some(Refusal::RequestTimeout))).map_err(
            |refusal| {
                tracing::debug!(?refusal, "a client has not begun to send its body");
                refusal.unwrap_or(Refusal::BadRequest)
            },
        )
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::Empty)
    }
}

#[derive(Debug)]
pub(super) struct StreamedBody {
    incoming: ClientBody,
    /// What was read before an upstream was chosen.
    ahead: VecDeque<Bytes>,
    /// How many more bytes may come.
    left: u64,
    /// None also after trailers.
    end: Option<ChunkedEnd>,
    upload: Rc<Upload>,
}

impl StreamedBody {
    /// The next part that the client sends. Trailers are dropped: an upstream might take them for
    /// headers, which the client could not have set.
    fn poll_part(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, BoxError>>> {
        let polled = loop {
            match Pin::new(&mut self.incoming).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => break Poll::Ready(Some(Ok(data))),
                    Err(_trailers) => self.end = None,
                },
                Poll::Ready(Some(Err(error))) => break Poll::Ready(Some(Err(error))),
                Poll::Ready(None) => {
                    self.end.iter().for_each(ChunkedEnd::set_certain);
                    break Poll::Ready(None);
                }
                Poll::Pending => break Poll::Pending,
            }
        };
        if let Poll::Ready(Some(Ok(data))) = &polled {
            let Some(left) = self.left.checked_sub(data.len() as u64) else {
                self.upload.state.set(UploadState::TooLarge);
                return Poll::Ready(Some(Err("the body is larger than limits.body-size".into())));
            };
            self.left = left;
        }
        let state = match &polled {
            Poll::Pending => UploadState::Waiting,
            Poll::Ready(Some(Err(_))) => UploadState::Failed,
            Poll::Ready(_) => {
                self.upload.last_part.set(runtime::time::now());
                UploadState::Sending
            }
        };
        self.upload.state.set(state);
        polled
    }
}

impl Drop for StreamedBody {
    fn drop(&mut self) {
        if !self.upload.is_broken_off() {
            self.upload.state.set(UploadState::Ended);
        }
    }
}

/// How far a body has come.
#[derive(Debug)]
pub(super) struct Upload {
    last_part: Cell<Instant>,
    state: Cell<UploadState>,
    /// When the response had ended.
    answered: Cell<Option<Instant>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UploadState {
    /// The upstream has to take what there is.
    Sending,
    /// The client has to send more.
    Waiting,
    /// All was sent, or the upstream wants no more.
    Ended,
    /// The client has broken its body off.
    Failed,
    /// It has sent more than it may.
    TooLarge,
}

impl Upload {
    pub(super) fn state(&self) -> UploadState {
        self.state.get()
    }

    /// What the client is answered, if it has broken the body off.
    pub(super) fn refusal(&self) -> Option<Refusal> {
        match self.state.get() {
            UploadState::Failed => Some(Refusal::BadRequest),
            UploadState::TooLarge => Some(Refusal::PayloadTooLarge),
            _ => None,
        }
    }

    /// Whether the upstream does not get all of it.
    pub(super) fn is_broken_off(&self) -> bool {
        matches!(self.state.get(), UploadState::Failed | UploadState::TooLarge)
    }

    /// The response has ended.
    pub(super) fn set_answered(&self) {
        self.answered.set(Some(runtime::time::now()));
    }

    pub(super) fn answered(&self) -> Option<Instant> {
        self.answered.get()
    }

    /// When the upstream got a part, or the end.
    pub(super) fn last_part(&self) -> Instant {
        self.last_part.get()
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Self::Streamed(body) = self.get_mut() else { return Poll::Ready(None) };
        if let Some(part) = body.ahead.pop_front() {
            body.upload.last_part.set(runtime::time::now());
            body.upload.state.set(UploadState::Sending);
            return Poll::Ready(Some(Ok(Frame::data(part))));
        }
        Poll::Ready(ready!(body.poll_part(context)).map(|part| part.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Streamed(body) => body.ahead.is_empty() && body.incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Streamed(body) => {
                let ahead = body.ahead.iter().map(|part| part.len() as u64).sum::<u64>();
                let rest = body.incoming.size_hint();
                let mut hint = SizeHint::new();
                if let Some(upper) = rest.upper() {
                    hint.set_upper(upper + ahead);
                }
                hint.set_lower(rest.lower() + ahead);
                hint
            }
        }
    }
}
