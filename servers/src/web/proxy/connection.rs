//! Connects to upstreams, and a connection to one.

use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use adapters::hyper::{Connector, HttpStream};
use adapters::tls;
use bytes::Bytes;
use futures_util::task::AtomicWaker;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response};
use tower_service::Service;

use super::client_share::ClientShare;
use super::request_body::{RequestBody, Upload, UploadState};
use super::upstream::{OpenConnection, Upstream};

/// A connection that carries one request at a time. It has no task: the task of its request polls
/// it. Dropping it closes it.
pub(super) struct Connection {
    requests: SendRequest<RequestBody>,
    /// None some time after it has ended.
    driver: Option<http1::Connection<HttpStream, RequestBody>>,
    /// The driver is done, and is not polled again: that would shut an upgraded connection down.
    ended: bool,
    relay: Arc<WakeRelay>,
    /// The relay's.
    waker: Waker,
    open: OpenConnection,
    /// Of the client whose request it carries.
    pub(super) share: Option<ClientShare>,
    /// The pool's tick in which it became idle.
    pub(super) idle_since: u32,
}

/// What counts a connection, as one of its upstream and as one of its client.
pub(super) type Held = (OpenConnection, Option<ClientShare>);

/// What is read of a response at a time at most, and kept until the client takes it; and the limit
/// of its head.
const BUFFER: usize = 64 << 10;

/// Why a request has no response.
#[derive(Debug)]
pub(super) enum SendError {
    /// Nothing of it was sent.
    Unsent(Box<Request<RequestBody>>, hyper::Error),
    /// The connection broke, or its bytes are no response.
    Broken(hyper::Error),
    /// The upstream has not answered in time.
    TimedOut,
    /// The client has not sent its body in time.
    ClientTimedOut,
}

impl Connection {
    /// Prepares a stream for requests.
    pub(super) async fn open(stream: HttpStream, open: OpenConnection) -> Result<Box<Self>, hyper::Error> {
        let (requests, driver) = http1::Builder::new().max_buf_size(BUFFER).handshake(stream).await?;
        let relay = Arc::new(WakeRelay::default());
        let waker = Waker::from(Arc::clone(&relay));
        let driver = Some(driver);
        Ok(Box::new(Self { requests, driver, ended: false, relay, waker, open, share: None, idle_since: 0 }))
    }

    /// Reads and writes. Returns whether the connection has ended.
    fn drive(&mut self, context: &Context<'_>) -> bool {
        let Some(driver) = self.driver.as_mut().filter(|_| !self.ended) else { return true };
        self.relay.set_user(context.waker());
        self.relay.begin_poll();
        match Pin::new(driver).poll(&mut Context::from_waker(&self.waker)) {
            Poll::Pending => false,
            Poll::Ready(result) => {
                self.ended = true;
                if let Err(error) = result {
                    tracing::debug!(%error, "a connection to an upstream has ended");
                }
                true
            }
        }
    }

    /// Whether it can carry another request.
    pub(super) fn is_reusable(&self) -> bool {
        !self.ended && self.requests.is_ready()
    }

    /// An idle connection wakes `sweeper` when the upstream closes it.
    pub(super) fn set_idle(&self, sweeper: &Waker) {
        self.relay.set_user(sweeper);
    }

    /// Looks after an idle connection that was woken. Returns whether it can be kept.
    pub(super) fn poll_idle(&mut self, context: &Context<'_>) -> bool {
        !self.relay.is_woken() || !self.drive(context)
    }

    /// Sends a request and waits for the head of its response, for at most `limit` after the last
    /// part of the request.
    pub(super) async fn send(
        &mut self,
        request: Request<RequestBody>,
        limit: Duration,
        upload: Option<&Upload>,
    ) -> Result<Response<Incoming>, SendError> {
        let requests = &mut self.requests;
        let mut response = pin!(self.relay.muted(|| requests.try_send_request(request)));
        let mut sleep = runtime::sleep(limit);
        std::future::poll_fn(|context| {
            let ended = self.drive(context);
            // Only the connection makes the response ready, and that was polled just now.
            let mut unwoken = Context::from_waker(Waker::noop());
            let mut answer = response.as_mut().poll(&mut unwoken);
            if ended && answer.is_pending() {
                // Gives a request back that it still has.
                self.driver = None;
                answer = response.as_mut().poll(&mut unwoken);
            }
            if let Poll::Ready(answer) = answer {
                return Poll::Ready(answer.map_err(|mut error| match error.take_message() {
                    Some(request) => SendError::Unsent(Box::new(request), error.into_error()),
                    None => SendError::Broken(error.into_error()),
                }));
            }
            while Pin::new(&mut sleep).poll(context).is_ready() {
                let Some(upload) = upload else { return Poll::Ready(Err(SendError::TimedOut)) };
                let deadline = upload.last_part() + limit;
                if deadline <= sleep.deadline() {
                    let waiting = upload.state() == UploadState::Waiting;
                    let error = if waiting { SendError::ClientTimedOut } else { SendError::TimedOut };
                    return Poll::Ready(Err(error));
                }
                sleep.reset(deadline);
            }
            Poll::Pending
        })
        .await
    }

    /// Polls the body of a response of this connection, and the connection if the body needs it.
    pub(super) fn poll_body<T>(
        &mut self,
        context: &Context<'_>,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        // Only the connection makes a part ready.
        let mut unwoken = Context::from_waker(Waker::noop());
        if let ready @ Poll::Ready(_) = self.relay.muted(|| poll(&mut unwoken)) {
            return ready;
        }
        if self.drive(context) {
            // The end of the body, or its error.
            self.driver = None;
        }
        self.relay.muted(|| poll(&mut unwoken))
    }

    /// Goes on without its user, and closes after this exchange: for requests whose body is still
    /// being sent while the response comes. Either may have to wait for its end of the other
    /// connection. It ends when no part of the request has come for `limit`.
    pub(super) fn into_task(self: Box<Self>, upload: Rc<Upload>, limit: Duration) -> runtime::JoinHandle<()> {
        // Without a sender the driver ends when nothing is left to do.
        let Self { driver, ended, open, share, .. } = *self;
        runtime::spawn(async move {
            let _held = (open, share);
            let Some(mut driver) = driver.filter(|_| !ended) else { return };
            let mut sleep = runtime::sleep(limit);
            std::future::poll_fn(|context| {
                if let Poll::Ready(result) = Pin::new(&mut driver).poll(context) {
                    if let Err(error) = result {
                        tracing::debug!(%error, "a connection to an upstream has ended");
                    }
                    return Poll::Ready(());
                }
                while Pin::new(&mut sleep).poll(context).is_ready() {
                    // A response in progress is limited by `UpstreamBody`.
                    let last = match upload.state() {
                        UploadState::Ended => upload.answered(),
                        _ => Some(upload.last_part()),
                    };
                    let deadline = last.map_or(sleep.deadline() + limit, |last| last + limit);
                    if deadline <= sleep.deadline() {
                        tracing::debug!("a request has not been sent in time");
                        return Poll::Ready(());
                    }
                    sleep.reset(deadline);
                }
                Poll::Pending
            })
            .await;
        })
    }

    /// The stream of a connection that the upstream has upgraded, and bytes that were read of it.
    /// None if it has broken.
    pub(super) async fn into_upgraded(mut self: Box<Self>) -> Option<(HttpStream, Bytes, Held)> {
        std::future::poll_fn(|context| if self.drive(context) { Poll::Ready(()) } else { Poll::Pending })
            .await;
        let parts = self.driver.take()?.into_parts();
        Some((parts.io, parts.read_buf, (self.open, self.share)))
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("ended", &self.ended).finish_non_exhaustive()
    }
}

/// Makes a connector for HTTP/1.1. `encrypted`: for `https`, too; then it reads the authorities,
/// which blocks.
pub(super) fn connector(encrypted: bool, limit: Duration) -> Result<Connector, tls::Error> {
    let connector = Connector::new().connect_timeout(limit);
    if !encrypted {
        return Ok(connector);
    }
    let tls = tls::Connector::builder().alpn(["http/1.1"]).handshake_timeout(limit).open()?;
    Ok(connector.tls(tls))
}

/// Connects to an upstream, with the lookup of its name and the TLS handshake, within `limit`. The
/// error's kind is `TimedOut` after that.
pub(super) async fn connect(
    connector: &Connector,
    upstream: &Upstream,
    limit: Duration,
) -> io::Result<HttpStream> {
    runtime::timeout(limit, connector.clone().call(upstream.uri.clone())).await?
}

/// Wakes the task that uses a connection now. hyper and the socket keep the waker of their last
/// poll. If that were the waker of a task, each request would wake the task of the client that had
/// the connection before.
#[derive(Debug, Default)]
pub(super) struct WakeRelay {
    user: AtomicWaker,
    muted: AtomicBool,
    woken: AtomicBool,
}

impl WakeRelay {
    /// Whom to wake from now on.
    pub(super) fn set_user(&self, waker: &Waker) {
        self.user.register(waker);
    }

    /// Whether something has woken the connection since it was polled.
    pub(super) fn is_woken(&self) -> bool {
        self.woken.load(Ordering::Relaxed)
    }

    /// The connection is about to be polled.
    pub(super) fn begin_poll(&self) {
        self.woken.store(false, Ordering::Relaxed);
    }

    /// Runs what would wake the connection, which its user polls next anyway.
    pub(super) fn muted<T>(&self, run: impl FnOnce() -> T) -> T {
        self.muted.store(true, Ordering::Relaxed);
        let result = run();
        self.muted.store(false, Ordering::Relaxed);
        result
    }
}

impl Wake for WakeRelay {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.muted.load(Ordering::Relaxed) {
            self.woken.store(true, Ordering::Relaxed);
            self.user.wake();
        }
    }
}
