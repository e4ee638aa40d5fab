//! A response's body whose bytes are counted, and logged at its end.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use adapters::hyper::BoxError;
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use super::access_log::{AccessLog, LogLine};
use super::body::ResponseBody;
use super::context::ServerContext;

/// Counts when it is dropped: a response has ended then, also if its client went away.
#[derive(Debug)]
pub struct TrackedBody {
    body: ResponseBody,
    context: Arc<ServerContext>,
    bytes: u64,
    line: Option<Box<(Arc<AccessLog>, LogLine)>>,
}

impl TrackedBody {
    pub fn new(
        body: ResponseBody,
        context: Arc<ServerContext>,
        line: Option<Box<(Arc<AccessLog>, LogLine)>>,
    ) -> Self {
        Self { body, context, bytes: 0, line }
    }
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        self.context.counters.worker().count_bytes(self.bytes);
        if let Some(line) = &mut self.line {
            let (log, line) = &mut **line;
            line.bytes = self.bytes;
            log.record(line);
        }
    }
}

impl Body for TrackedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            self.bytes += data.len() as u64;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
