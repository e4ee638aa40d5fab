//! Serves one connection.

use std::pin::pin;
use std::sync::Arc;

use ::hyper::body::{Body, Incoming};
use ::hyper::rt::{Read, Write};
use ::hyper::service::Service;
use ::hyper::{Request, Response};
use futures_io::{AsyncBufRead, AsyncRead, AsyncWrite};
use hyper_util::server::conn::auto;
use net::Stream;

use super::BoxError;
use super::executor::Executor;
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
    #[cfg(feature = "tls")]
    pub(super) tls: Option<crate::tls::Acceptor>,
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
    let (lender, borrowed) = lend(stream);
    let shutdown = ShutdownListener::new(Arc::clone(&context.shutdown));
    // It is dropped when it is ready: unless it was upgraded, that returns the stream.
    run(&context.builder, borrowed, service, shutdown).await?;
    lender.returned().await;
    Ok(())
}

async fn run<I, S, B>(
    builder: &auto::Builder<Executor>,
    stream: I,
    service: S,
    shutdown: ShutdownListener,
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
        connection.as_mut().poll(task)
    })
    .await
}
