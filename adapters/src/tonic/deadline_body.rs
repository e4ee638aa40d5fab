//! A body that ends at its deadline, and whose errors are statuses.

use std::pin::Pin;
use std::task::{Context, Poll};

use ::hyper::body::{Body, Bytes, Frame, SizeHint};
use ::tonic::Status;
use pin_project_lite::pin_project;

use super::broken_connection::with_status;
use crate::hyper::BoxError;

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
