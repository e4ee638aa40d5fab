//! The body of a forwarded request.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use adapters::hyper::BoxError;
use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

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
    pub(super) fn new(incoming: Incoming, limit: u64) -> (Self, Option<Rc<Upload>>) {
        if incoming.is_end_stream() {
            return (Self::Empty, None);
        }
        let upload = Rc::new(Upload {
            last_part: Cell::new(runtime::time::now()),
            state: Cell::new(UploadState::Sending),
            answered: Cell::default(),
        });
        (Self::Streamed(StreamedBody { incoming, left: limit, upload: Rc::clone(&upload) }), Some(upload))
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::Empty)
    }
}

#[derive(Debug)]
pub(super) struct StreamedBody {
    incoming: Incoming,
    /// How many more bytes may come.
    left: u64,
    upload: Rc<Upload>,
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
        let polled = Pin::new(&mut body.incoming).poll_frame(context).map_err(BoxError::from);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(data) = frame.data_ref()
        {
            let Some(left) = body.left.checked_sub(data.len() as u64) else {
                body.upload.state.set(UploadState::TooLarge);
                return Poll::Ready(Some(Err("the body is larger than limits.body-size".into())));
            };
            body.left = left;
        }
        let state = match &polled {
            Poll::Pending => UploadState::Waiting,
            Poll::Ready(Some(Err(_))) => UploadState::Failed,
            Poll::Ready(_) => {
                body.upload.last_part.set(runtime::time::now());
                UploadState::Sending
            }
        };
        body.upload.state.set(state);
        polled
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Streamed(body) => body.incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Streamed(body) => body.incoming.size_hint(),
        }
    }
}
