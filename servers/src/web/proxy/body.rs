//! The body of an upstream's response.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use adapters::hyper::BoxError;
use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use runtime::{JoinHandle, Sleep};

use super::pool::{Lease, WorkerPool};
use super::request_body::{Upload, UploadState};

/// What an upstream sends, as it comes. It fails if the upstream breaks or sends nothing for the
/// response timeout; then the client's connection has to be cut, because an ended body would look
/// complete.
#[derive(Debug)]
pub struct UpstreamBody {
    body: Incoming,
    source: Source,
    /// How long a part may take.
    limit: Duration,
    /// Runs while a part is awaited.
    timer: Option<Sleep>,
}

/// Where the parts come from.
#[derive(Debug)]
enum Source {
    /// A connection that is polled here.
    Lease(Lease),
    /// A connection whose request is still being sent.
    Task(ConnectionTask),
    /// The error is still to be returned.
    Failed(Option<BoxError>),
    Ended,
}

/// Aborted when the client goes.
#[derive(Debug)]
struct ConnectionTask {
    handle: Option<JoinHandle<()>>,
    pool: Rc<WorkerPool>,
    upstream: usize,
    upload: Rc<Upload>,
}

impl Drop for ConnectionTask {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            handle.abort();
        }
    }
}

impl UpstreamBody {
    /// The body of a response on a connection. `upload` is that of the request, if it had a body.
    pub(super) fn new(body: Incoming, lease: Lease, upload: Option<Rc<Upload>>, limit: Duration) -> Self {
        let source = match upload.filter(|upload| upload.state() != UploadState::Ended) {
            Some(upload) => {
                let handle = Some(lease.connection.into_task(Rc::clone(&upload), limit));
                Source::Task(ConnectionTask { handle, pool: lease.pool, upstream: lease.upstream, upload })
            }
            None => Source::Lease(lease),
        };
        let mut body = Self { body, source, limit, timer: None };
        if body.body.is_end_stream() {
            body.end();
        }
        body
    }

    /// All of it has come.
    fn end(&mut self) {
        match std::mem::replace(&mut self.source, Source::Ended) {
            Source::Lease(lease) => {
                lease.pool.get(lease.upstream).upstream.record_success();
                lease.release();
            }
            Source::Task(mut task) => {
                task.pool.get(task.upstream).upstream.record_success();
                task.upload.set_answered();
                // The rest of the request may still be wanted.
                drop(task.handle.take());
            }
            Source::Failed(_) | Source::Ended => {}
        }
    }

    /// Fails, but not in this poll: an error discards what the client's connection has buffered.
    /// Until the next poll that is sent, as the upstream's bytes would have been without a proxy.
    fn fail<T>(&mut self, error: BoxError, context: &Context<'_>) -> Poll<T> {
        let upstream = match &self.source {
            Source::Lease(lease) => Some(lease.pool.get(lease.upstream)),
            // The client may be what has broken.
            Source::Task(task) if task.upload.is_broken_off() => None,
            Source::Task(task) => Some(task.pool.get(task.upstream)),
            Source::Failed(_) | Source::Ended => None,
        };
        if let Some(upstream) = upstream {
            tracing::debug!(upstream = upstream.upstream.address, error, "a response has broken off");
            upstream.record_failure(&error);
        }
        self.source = Source::Failed(Some(error));
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let polled = match &mut this.source {
            Source::Lease(lease) => {
                let body = &mut this.body;
                lease.connection.poll_body(context, |context| Pin::new(&mut *body).poll_frame(context))
            }
            Source::Task(_) => Pin::new(&mut this.body).poll_frame(context),
            Source::Failed(error) => return Poll::Ready(error.take().map(Err)),
            Source::Ended => return Poll::Ready(None),
        };
        let Poll::Ready(frame) = polled else {
            let limit = this.limit;
            ready!(Pin::new(this.timer.get_or_insert_with(|| runtime::sleep(limit))).poll(context));
            return this.fail("the upstream has stopped sending its response".into(), context);
        };
        this.timer = None;
        Poll::Ready(match frame {
            Some(Ok(frame)) => {
                if this.body.is_end_stream() {
                    this.end();
                }
                Some(Ok(frame))
            }
            Some(Err(error)) => return this.fail(error.into(), context),
            None => {
                this.end();
                None
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.source, Source::Ended) && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
