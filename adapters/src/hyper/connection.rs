//! Serves one connection, and closes it so that its last response arrives.

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

use super::first_bytes::{FirstBytes, InspectedStream, Spoken, SpokenCell};
use super::http_socket::{HttpSocket, SocketUsage};
use super::idle::{Idle, IdleLimit, Leaving, Requests};
use super::listen::{BoxError, MakeService, Peer};
use super::rt::Executor;
use super::service::ConnectionService;
use super::shutdown::{Shutdown, ShutdownListener};
use crate::io::lend;

pub(super) struct ConnectionContext<M> {
    pub(super) make: M,
    pub(super) builder: auto::Builder<Executor>,
    pub(super) shutdown: Arc<Shutdown>,
    pub(super) is_tcp: bool,
    /// How long a client may take for the bytes that tell HTTP/1 from HTTP/2.
    pub(super) first_bytes_limit: Option<Duration>,
    /// How long nothing may come.
    pub(super) idle_limit: Option<Duration>,
    /// How long a write may wait.
    pub(super) stall_limit: Option<Duration>,
    pub(super) http1_only: bool,
    #[cfg(feature = "tls")]
    pub(super) tls: Option<crate::tls::Acceptor>,
    #[cfg(feature = "tls")]
    pub(super) h2_required: bool,
}

const SHUT_DOWN: &str = "the server has shut down";

/// Serves a connection until it ends, and what it was upgraded to until that is dropped.
pub(super) async fn serve_connection<K: 'static, M: MakeService>(
    stream: Stream<K>,
    peer: Peer,
    context: Arc<ConnectionContext<M>>,
) {
    // Once the connection has broken it has no address any more, and a handshake takes time.
    if peer.is_encrypted() || tracing::enabled!(tracing::Level::DEBUG) {
        peer.address();
    }
    let stream = HttpSocket::new(stream, context.is_tcp).with_stall_limit(context.stall_limit);
    let usage = stream.usage();
    #[cfg_attr(
        not(feature = "tls"),
        expect(unused_mut, reason = "only TLS polls it before the first request")
    )]
    let mut shutdown = ShutdownListener::new(Arc::clone(&context.shutdown));
    #[cfg(feature = "tls")]
    if let Some(acceptor) = &context.tls {
        // Boxed, so that connections without TLS don't reserve memory for its state.
        let served = Box::pin(async {
            let mut accepting = pin!(acceptor.accept(stream));
            // A client that has not agreed on TLS has no request in progress.
            let accepted = poll_fn(|task| match shutdown.poll(task) {
                Poll::Ready(()) => Poll::Ready(None),
                Poll::Pending => accepting.as_mut().poll(task).map(Some),
            });
            let stream = accepted.await.ok_or(SHUT_DOWN)??;
            let h2_agreed = stream.alpn_protocol() == Some(b"h2");
            if context.h2_required && !h2_agreed {
                return Err("the client has not agreed to HTTP/2 in its TLS handshake (ALPN)".into());
            }
            serve_stream(
                FirstBytes::of(stream, h2_agreed, context.http1_only),
                usage,
                &peer,
                &context,
                shutdown,
            )
            .await
        });
        if let Err(error) = served.await {
            tracing::debug!(?peer, error, "a TLS connection has failed");
        }
        return;
    }
    let stream = FirstBytes::of(stream, false, context.http1_only);
    if let Err(error) = serve_stream(stream, usage, &peer, &context, shutdown).await {
        tracing::debug!(?peer, error, "a connection has failed");
    }
}

async fn serve_stream<S, M>(
    (stream, spoken): (InspectedStream<S, FirstBytes>, SpokenCell),
    usage: Rc<SocketUsage>,
    peer: &Peer,
    context: &ConnectionContext<M>,
    mut shutdown: ShutdownListener,
) -> Result<(), BoxError>
where
    S: AsyncBufRead + AsyncRead + AsyncWrite + Unpin + 'static,
    M: MakeService,
{
    let requests = Rc::new(Requests::default());
    let service = ConnectionService::new(
        context.make.make(peer),
        Rc::clone(&requests),
        Rc::clone(&usage),
        peer.is_encrypted(),
    );
    let (lender, borrowed) = lend(stream);
    let new_idle_limit = |limit| IdleLimit::new(limit, Rc::clone(&usage), Rc::clone(&requests));
    let limits = Limits {
        first_bytes: context.first_bytes_limit.map(runtime::sleep),
        idle: context.idle_limit.map(new_idle_limit),
        usage: (Rc::clone(&usage), requests),
        leaving: None,
    };
    // It is dropped when it is ready: unless it was upgraded, that returns the stream.
    let ended = run(&context.builder, borrowed, service, &mut shutdown, &spoken, limits).await;
    // A client that has sent no request waits for no response.
    if let Some(stream) = lender.returned().await
        && spoken.get() != Spoken::Unknown
        && !usage.ends_at_once()
    {
        lingering_close(stream, |task| shutdown.poll(task)).await;
    }
    ended
}

/// How long a client may be silent.
struct Limits {
    /// Before it is known what it speaks.
    first_bytes: Option<Sleep>,
    /// Afterwards, on a connection of HTTP/2.
    idle: Option<IdleLimit>,
    usage: (Rc<SocketUsage>, Rc<Requests>),
    /// Ends a connection without requests. Set when a graceful shutdown begins.
    leaving: Option<Leaving>,
}

async fn run<I, S, B>(
    builder: &auto::Builder<Executor>,
    stream: I,
    service: S,
    shutdown: &mut ShutdownListener,
    spoken: &SpokenCell,
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
            let (socket, requests) = limits.usage.clone();
            socket.shuts_down.set(true);
            limits.leaving = Some(Leaving::new(LINGER_LIMIT, socket, requests));
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
        if limits.leaving.as_mut().is_some_and(|leaving| leaving.poll(task).is_ready()) {
            return Poll::Ready(Err(SHUT_DOWN.into()));
        }
        // hyper itself limits the connections of HTTP/1.
        if spoken.get() == Spoken::Http1 {
            limits.idle = None;
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

/// How long a client may take to read the response and to close its side, or after a shutdown has
/// begun to send a request that is on its way.
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
