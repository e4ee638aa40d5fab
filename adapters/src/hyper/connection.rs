//! Serves one connection, and closes it so that its last response arrives.

use std::borrow::Cow;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use ::hyper::body::{Body, Incoming};
use ::hyper::rt::{Read, Write};
use ::hyper::service::Service;
use ::hyper::{Request, Response};
use futures_io::{AsyncBufRead, AsyncRead, AsyncWrite};
use hyper_util::server::conn::auto;
use net::Stream;
use runtime::Sleep;

use super::BoxError;
use super::activity::Activity;
use super::connection_limit::ConnectionLimit;
use super::first_bytes::{FirstBytes, Spoken, SpokenCell};
use super::http_socket::{HttpSocket, SocketUsage};
use super::idle_limit::{Idle, IdleLimit};
use super::inspected_stream::InspectedStream;
use super::listen::{MakeService, Peer};
use super::request_window::RequestWindow;
use super::rt::Executor;
use super::shutdown::{Shutdown, ShutdownListener};
use super::stalls::{StallLimit, Streams};
use super::watched_service::WatchedService;
use crate::io::lend;

pub(super) struct ConnectionContext<M> {
    pub(super) make: M,
    pub(super) builder: auto::Builder<Executor>,
    pub(super) shutdown: Arc<Shutdown>,
    /// How long a client may take for the bytes that tell HTTP/1 from HTTP/2.
    pub(super) first_bytes_limit: Option<Duration>,
    /// How long nothing may come.
    pub(super) idle_limit: Option<Duration>,
    /// How long a write may wait.
    pub(super) stall_limit: Option<Duration>,
    pub(super) connection_limit: Option<ConnectionLimit>,
    /// What a client of HTTP/2 may send before somebody reads it.
    pub(super) request_window: Option<u32>,
    pub(super) http1_only: bool,
    #[cfg(feature = "tls")]
    pub(super) tls: Option<crate::tls::Acceptor>,
    #[cfg(feature = "tls")]
    pub(super) h2_required: bool,
}

/// Serves a connection until it ends, and what it was upgraded to until that is dropped. It is
/// closed at once if there are too many, and later if its place is taken away.
pub(super) async fn serve_connection<K: 'static, M: MakeService>(
    stream: Stream<K>,
    peer: Peer,
    context: Arc<ConnectionContext<M>>,
) {
    let activity = Arc::new(Activity::new());
    let Some(limit) = &context.connection_limit else {
        return serve_admitted(stream, &peer, &context, activity).await;
    };
    let Some(mut place) = limit.admit(&activity) else {
        tracing::debug!(?peer, "a connection is closed: there are too many");
        return;
    };
    let mut served = pin!(serve_admitted(stream, &peer, &context, activity));
    poll_fn(|task| {
        if place.poll_taken_away(task).is_ready() {
            tracing::debug!(?peer, "an idle connection is closed for a new one");
            return Poll::Ready(());
        }
        served.as_mut().poll(task)
    })
    .await;
}

async fn serve_admitted<K: 'static, M: MakeService>(
    stream: Stream<K>,
    peer: &Peer,
    context: &ConnectionContext<M>,
    activity: Arc<Activity>,
) {
    let stream = HttpSocket::new(stream).with_stall_limit(context.stall_limit);
    let usage = stream.usage();
    #[cfg(feature = "tls")]
    if let Some(acceptor) = &context.tls {
        // Boxed, so that connections without TLS don't reserve memory for its state.
        let served = Box::pin(async {
            let stream = acceptor.accept(stream).await?;
            let h2_agreed = stream.alpn_protocol() == Some(b"h2");
            if context.h2_required && !h2_agreed {
                return Err("the client has not agreed to HTTP/2 in its TLS handshake (ALPN)".into());
            }
            serve_stream(
                FirstBytes::of(stream, h2_agreed, context.http1_only),
                usage,
                peer,
                context,
                activity,
            )
            .await
        });
        if let Err(error) = served.await {
            tracing::debug!(?peer, error, "a TLS connection has failed");
        }
        return;
    }
    if let Err(error) =
        serve_stream(FirstBytes::of(stream, false, context.http1_only), usage, peer, context, activity).await
    {
        tracing::debug!(?peer, error, "a connection has failed");
    }
}

async fn serve_stream<S, M>(
    (stream, spoken): (InspectedStream<S, FirstBytes>, SpokenCell),
    usage: Rc<SocketUsage>,
    peer: &Peer,
    context: &ConnectionContext<M>,
    activity: Arc<Activity>,
) -> Result<(), BoxError>
where
    S: AsyncBufRead + AsyncRead + AsyncWrite + Unpin + 'static,
    M: MakeService,
{
    let streams = context.stall_limit.map(|_| Streams::default());
    let stalls =
        context.stall_limit.zip(streams.clone()).map(|(limit, streams)| StallLimit::new(limit, streams));
    let service = WatchedService::new(context.make.make(peer), Arc::clone(&activity), streams);
    let (lender, borrowed) = lend(stream);
    let mut shutdown = ShutdownListener::new(Arc::clone(&context.shutdown));
    // It is dropped when it is ready: unless it was upgraded, that returns the stream.
    let limits = Limits {
        first_bytes: context.first_bytes_limit.map(runtime::sleep),
        idle: context.idle_limit.map(|limit| IdleLimit::new(limit, Rc::clone(&usage), Arc::clone(&activity))),
        stalls,
        window: context.request_window.map(RequestWindow::take),
    };
    let mut builder = Cow::Borrowed(&context.builder);
    if let Some(window) = &limits.window {
        builder.to_mut().http2().initial_connection_window_size(window.bytes());
    }
    let ended = run(&builder, borrowed, service, &mut shutdown, (&spoken, &activity), limits).await;
    // What it was upgraded to is in use.
    let upgraded = activity.begin();
    let returned = lender.returned().await;
    drop(upgraded);
    // A client that has sent no request waits for no response.
    if let Some(stream) = returned
        && spoken.get() != Spoken::Unknown
    {
        lingering_close(stream, |task| shutdown.poll(task)).await;
    }
    ended
}

/// How long a client may be silent, and more.
struct Limits {
    /// Before it is known what it speaks.
    first_bytes: Option<Sleep>,
    /// Afterwards, on a connection of HTTP/2.
    idle: Option<IdleLimit>,
    /// How long a client of HTTP/2 may take nothing of a response.
    stalls: Option<StallLimit>,
    /// Kept until the connection ends, for HTTP/2: dropping it gives the window back.
    window: Option<RequestWindow>,
}

async fn run<I, S, B>(
    builder: &auto::Builder<Executor>,
    stream: I,
    service: S,
    shutdown: &mut ShutdownListener,
    (spoken, activity): (&SpokenCell, &Activity),
    mut limits: Limits,
) -> Result<(), BoxError>
where
    I: Read + Write + Unpin + Send + 'static,
    S: Service<Request<Incoming>, Response = Response<B>, Future: 'static, Error: Into<BoxError>>,
    B: Body<Error: Into<BoxError>> + 'static,
{
    let mut connection = pin!(builder.serve_connection_with_upgrades(stream, service));
    let mut shutdown = Some(shutdown);
    std::future::poll_fn(|task| {
        if let Some(listener) = &mut shutdown
            && listener.poll(task).is_ready()
        {
            shutdown = None;
            connection.as_mut().graceful_shutdown();
        }
        if let Poll::Ready(ended) = connection.as_mut().poll(task) {
            return Poll::Ready(ended);
        }
        if let Some(sleep) = &mut limits.first_bytes {
            if spoken.get() != Spoken::Unknown {
                limits.first_bytes = None;
            } else if Pin::new(sleep).poll(task).is_ready() {
                return Poll::Ready(Err("the client has not begun a request in time".into()));
            }
        }
        // hyper itself limits the connections of HTTP/1, and their socket those that take nothing.
        if spoken.get() == Spoken::Http1 {
            limits.idle = None;
            limits.stalls = None;
            limits.window = None;
        }
        if limits.stalls.as_mut().is_some_and(|stalls| stalls.poll(task, activity).is_ready()) {
            return Poll::Ready(Err("the client takes nothing of its responses".into()));
        }
        // Also registers its timer again.
        while let Some(Poll::Ready(idle)) = limits.idle.as_mut().map(|limit| limit.poll(task)) {
            match idle {
                Idle::Ask => connection.as_mut().graceful_shutdown(),
                Idle::End => return Poll::Ready(Err("the client has been silent for too long".into())),
            }
            if let Poll::Ready(ended) = connection.as_mut().poll(task) {
                return Poll::Ready(ended);
            }
        }
        Poll::Pending
    })
    .await
}

/// How long a client may take to read the response and to close its side.
const LINGER_LIMIT: Duration = Duration::from_secs(2);

/// Takes a stream whose side that writes is closed. Reads what the client still sends, and drops
/// it, until the client closes its side.
///
/// A server may answer before it has read the whole request, for example that its body is too
/// large. When a socket is closed while received bytes are unread, or when more arrive after that,
/// the kernel resets the connection, and the client's kernel throws the response away, read or not
/// (RFC 9112, section 9.6).
///
/// It waits for at most [`LINGER_LIMIT`], and not at all once `shutdown` is ready: then it drops
/// what is there.
async fn lingering_close<S>(mut stream: S, mut shutdown: impl FnMut(&Context<'_>) -> Poll<()>)
where
    S: AsyncBufRead + Unpin,
{
    let read_to_the_end = poll_fn(|task| {
        loop {
            match Pin::new(&mut stream).poll_fill_buf(task) {
                Poll::Ready(Ok(bytes)) if !bytes.is_empty() => {
                    let length = bytes.len();
                    Pin::new(&mut stream).consume(length);
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return shutdown(task),
            }
        }
    });
    // The time is up: nothing is left to do for this client.
    let _ = runtime::timeout(LINGER_LIMIT, read_to_the_end).await;
}
