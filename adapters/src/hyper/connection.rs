//! Serves one connection.

use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
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
use super::executor::Executor;
use super::first_bytes::{FirstBytes, Undecided};
use super::lingering_close::lingering_close;
use super::listen::Peer;
use super::make_service::MakeService;
use super::shutdown::{Shutdown, ShutdownListener};
use super::turn_end_flush::TurnEndFlush;
use crate::io::lend;

/// What all connections of a server share.
pub(super) struct ConnectionContext<M> {
    pub(super) make: M,
    pub(super) builder: auto::Builder<Executor>,
    pub(super) shutdown: Arc<Shutdown>,
    /// How long a client may take for the bytes that tell HTTP/1 from HTTP/2.
    pub(super) first_bytes_limit: Option<Duration>,
    #[cfg(feature = "tls")]
    pub(super) tls: Option<crate::tls::Acceptor>,
    #[cfg(feature = "tls")]
    pub(super) h2_required: bool,
}

/// Serves a connection until it ends, and what it was upgraded to until that is dropped.
pub(super) async fn serve_connection<K: 'static, M: MakeService>(
    stream: Stream<K>,
    peer: Peer,
    context: Arc<ConnectionContext<M>>,
) {
    let stream = TurnEndFlush(stream);
    #[cfg(feature = "tls")]
    if let Some(acceptor) = &context.tls {
        // Boxed, so that connections without TLS don't reserve memory for its state.
        let served = Box::pin(async {
            let stream = acceptor.accept(stream).await?;
            if context.h2_required && stream.alpn_protocol() != Some(b"h2") {
                return Err("the client has not agreed to HTTP/2 in its TLS handshake (ALPN)".into());
            }
            serve_stream(stream, &peer, &context).await
        });
        if let Err(error) = served.await {
            tracing::debug!(?peer, error, "a TLS connection has failed");
        }
        return;
    }
    if let Err(error) = serve_stream(stream, &peer, &context).await {
        tracing::debug!(?peer, error, "a connection has failed");
    }
}

async fn serve_stream<S, M>(stream: S, peer: &Peer, context: &ConnectionContext<M>) -> Result<(), BoxError>
where
    S: AsyncBufRead + AsyncRead + AsyncWrite + Unpin + 'static,
    M: MakeService,
{
    let service = context.make.make(peer);
    let (stream, undecided) = FirstBytes::of(stream);
    let (lender, borrowed) = lend(stream);
    let shutdown = ShutdownListener::new(Arc::clone(&context.shutdown));
    // It is dropped when it is ready: unless it was upgraded, that returns the stream.
    let limit = context.first_bytes_limit.map(|limit| (runtime::sleep(limit), Rc::clone(&undecided)));
    let ended = run(&context.builder, borrowed, service, shutdown, limit).await;
    // A client that has sent no request waits for no response.
    if let Some(stream) = lender.returned().await
        && !undecided.get()
    {
        let mut shutdown = ShutdownListener::new(Arc::clone(&context.shutdown));
        lingering_close(stream, |task| shutdown.poll(task)).await;
    }
    ended
}

async fn run<I, S, B>(
    builder: &auto::Builder<Executor>,
    stream: I,
    service: S,
    shutdown: ShutdownListener,
    mut limit: Option<(Sleep, Undecided)>,
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
        if let Some((sleep, undecided)) = &mut limit {
            if !undecided.get() {
                limit = None;
            } else if Pin::new(sleep).poll(task).is_ready() {
                return Poll::Ready(Err("the client has not begun a request in time".into()));
            }
        }
        Poll::Pending
    })
    .await
}
