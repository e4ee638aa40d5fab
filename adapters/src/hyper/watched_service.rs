//! Services whose requests and responses are counted, for the limits of their connection.

use std::cell::RefCell;
use std::io::IoSlice;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use ::hyper::body::{Body, Buf, Bytes, Frame, SizeHint};
use ::hyper::service::Service;
use ::hyper::{Method, Request, Response, Version};
use pin_project_lite::pin_project;

use super::activity::{Activity, InProgress, Unsent};
use super::stalls::{Awaited, OpenStream, Stream, Streams};

thread_local! {
    /// The stream whose request was just given to its service. hyper spawns its task next, and
    /// tells nobody whose it is.
    static CALLED: RefCell<Option<Rc<Stream>>> = const { RefCell::new(None) };
}

/// The stream whose task hyper spawns now, if it is one.
pub(super) fn take_called_stream() -> Option<Rc<Stream>> {
    CALLED.take()
}

pub(super) struct WatchedService<S> {
    service: S,
    activity: Arc<Activity>,
    /// None if streams may stall.
    streams: Option<Streams>,
}

impl<S> WatchedService<S> {
    pub(super) fn new(service: S, activity: Arc<Activity>, streams: Option<Streams>) -> Self {
        Self { service, activity, streams }
    }
}

impl<S, R, B> Service<Request<R>> for WatchedService<S>
where
    S: Service<Request<R>, Response = Response<B>>,
    B: Body,
{
    type Response = Response<WatchedBody<B>>;
    type Error = S::Error;
    type Future = WatchedResponse<S::Future>;

    fn call(&self, request: Request<R>) -> Self::Future {
        let in_progress = self.activity.begin();
        let is_http2 = request.version() == Version::HTTP_2;
        let is_connect = is_http2 && *request.method() == Method::CONNECT;
        let future = self.service.call(request);
        let stream = self.streams.as_ref().filter(|_| is_http2).map(Streams::add);
        if let Some(open) = &stream {
            CALLED.set(Some(Rc::clone(&open.stream)));
        }
        WatchedResponse { future, watch: Some(Watch { in_progress, stream, is_http2 }), is_connect }
    }
}

/// A request in progress, and its stream, if it is one of HTTP/2.
#[derive(Debug)]
struct Watch {
    in_progress: InProgress,
    stream: Option<OpenStream>,
    is_http2: bool,
}

impl Watch {
    fn set(&self, awaited: Awaited) {
        if let Some(open) = &self.stream {
            open.stream.set(awaited);
        }
    }
}

pin_project! {
    pub(super) struct WatchedResponse<F> {
        #[pin]
        future: F,
        // None after its end.
        watch: Option<Watch>,
        is_connect: bool,
    }
}

impl<F, B, E> Future for WatchedResponse<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<WatchedBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let response = ready!(this.future.poll(context))?;
        let watch = this.watch.take();
        if let Some(watch) = watch.as_ref().filter(|_| *this.is_connect && response.status().is_success()) {
            watch.in_progress.activity().set_tunnel();
        }
        Poll::Ready(Ok(response.map(|body| WatchedBody { body, watch })))
    }
}

pin_project! {
    pub(super) struct WatchedBody<B> {
        #[pin]
        body: B,
        watch: Option<Watch>,
    }
}

impl<B: Body> Body for WatchedBody<B> {
    type Data = WatchedData<B::Data>;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, B::Error>>> {
        let this = self.project();
        let Some(watch) = this.watch else { return Poll::Ready(None) };
        let activity = watch.in_progress.activity();
        // hyper takes no more of a body of HTTP/1 than fits into its buffer.
        if watch.is_http2 && activity.poll_room(context).is_pending() {
            watch.set(Awaited::OtherStreams);
            return Poll::Pending;
        }
        let polled = this.body.poll_frame(context);
        watch.set(if polled.is_pending() { Awaited::Server } else { Awaited::Client });
        polled.map_ok(|frame| {
            frame.map_data(|data| WatchedData {
                unsent: activity.give(data.remaining(), watch.is_http2),
                data,
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A part of a body, until it is written or given up.
#[derive(Debug)]
pub(super) struct WatchedData<D> {
    data: D,
    #[expect(dead_code, reason = "it counts when it is dropped")]
    unsent: Unsent,
}

impl<D: Buf> Buf for WatchedData<D> {
    fn remaining(&self) -> usize {
        self.data.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.data.chunk()
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        self.data.chunks_vectored(slices)
    }

    fn advance(&mut self, count: usize) {
        self.data.advance(count);
    }

    fn copy_to_bytes(&mut self, length: usize) -> Bytes {
        self.data.copy_to_bytes(length)
    }
}
